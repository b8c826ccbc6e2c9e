# SPDX-License-Identifier: Apache-2.0
"""memory.py - tensors in symmetric memory: empty, the original's Manager, and what there is not.

A tensor of empty is as any other: when nothing shares its memory any more it is given back, at the
group's next allocation (heap.lend). A Manager gives back when it is told.
What always holds: a manager frees its own alone, and once; a tensor that was freed is empty, so no
call can reach the memory through it.
"""

import math

import mindspore as ms

from hyper_parallel import heap
from hyper_parallel import world as worlds
from hyper_parallel.mindspore.groups import group_of
from hyper_parallel.mindspore.tensors import (address, check_mode, item_bytes, settle, tensor_at)
from hyper_parallel.mindspore.tensors import empty as empty_of


def _shape(size):
    shape = tuple(size[0]) if len(size) == 1 and isinstance(size[0], (tuple, list)) else size
    if not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in shape):
        raise ValueError(f"expected a shape of whole numbers above 0, given {shape}")
    return shape


def empty(*size, dtype=ms.float32, alignment=0, group=None):
    """A tensor of zeros in symmetric memory. Collective over the group (None: all ranks), whose
    members ask for the same number of bytes. alignment: of its address, in bytes, a power of two
    up to 4096 (0: 64). Errors: ValueError, HyperParallelError naming ranks or the limit."""
    check_mode()
    shape = _shape(size)
    block, owner = heap.lend(math.prod(shape) * item_bytes(dtype), group_of(group), alignment)
    return tensor_at(block.address, shape, dtype, owner)


class Manager:
    """Owns symmetric tensors: attr_init, malloc, free, finalize, as the original's Manager."""

    def __init__(self):
        self._blocks = []

    def attr_init(self, my_pe=None, n_ranks=None, local_mem_size=None, ip_port=None):
        """Join the job, if this process has not. my_pe, n_ranks: ValueError when they are not
        this process's. local_mem_size: SYMMETRIC_MEMORY_HEAP_SIZE says that; ip_port: the launcher
        has said that; neither is looked at."""
        worlds.world(rank=-1 if my_pe is None else my_pe, size=-1 if n_ranks is None else n_ranks)

    def get_name(self):
        """What moves the bytes."""
        return "hyper_parallel"

    def malloc(self, shape, dtype=ms.float32):
        """A tensor of zeros of this shape. Collective over all ranks."""
        return self.aligned_malloc(shape, dtype, 0)

    def aligned_malloc(self, shape, dtype, alignment):
        """The same, its address a multiple of alignment, a power of two up to 4096."""
        check_mode()
        shape = _shape((shape,))
        block = heap.allocate(math.prod(shape) * item_bytes(dtype), None, alignment)
        self._blocks.append(block)
        return tensor_at(block.address, shape, dtype, block)

    def free(self, tensor):
        """Give a tensor of this manager back; it has no elements from then on, and views of it
        must not be used. Collective over all ranks. ValueError: not one of this manager's."""
        settle()
        block = heap.block_at(address(tensor))
        if block not in self._blocks:
            raise ValueError("expected a tensor that this manager has given and not yet freed")
        self._blocks.remove(block)
        tensor.assign_value(empty_of((0,), tensor.dtype))
        heap.free(block)

    def finalize(self):
        """Free what is left. Collective over all ranks."""
        settle()
        while self._blocks:
            heap.free(self._blocks.pop(0))


class MemPool:
    """Not on CPU: MindSpore takes an allocator for Ascend devices alone (mindspore.runtime.
    use_mem_pool fails with "name '_enable_pluggable_allocator' is not defined")."""

    def __init__(self, *_args, **_kwargs):
        raise RuntimeError("expected symm.empty or symm.Manager on CPU, given MemPool: MindSpore's "
                           "CPU build routes no allocation to an allocator of the program's "
                           "(mindspore.runtime.use_mem_pool: name '_enable_pluggable_allocator' "
                           "is not defined)")


def rendezvous(tensor, group=None):
    """The Group whose members' symmetric memory this rank can reach at this tensor: nothing has
    to be exchanged. ValueError when the tensor lies in ordinary memory."""
    settle()
    heap.find(address(tensor), tensor.size * item_bytes(tensor.dtype), "tensor")
    return group_of(group)


def get_signal_pad_size():
    """The library's signals are words that the program allocates: there is no pad."""
    raise NotImplementedError("expected signals in a tensor of symm.empty(n, dtype=mindspore."
                              "int64): there is no signal pad")


def set_signal_pad_size(size):
    """As get_signal_pad_size."""
    get_signal_pad_size()

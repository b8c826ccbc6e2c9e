# SPDX-License-Identifier: Apache-2.0
"""memory.py - torch tensors in symmetric memory: empty, Manager, MemPool, rendezvous.

A tensor of empty is as any other: when nothing shares its storage any more its memory is given
back, at the group's next allocation (heap.lend). A Manager gives back when it is told.
What always holds: a manager frees its own alone, and once; a tensor that was freed has no elements
and no call reaches memory through it.
"""

import contextlib
import math

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hyper_parallel import heap
from hyper_parallel import world as worlds
from hyper_parallel._c import check, ffi, lib
from hyper_parallel.torch.eager import eager
from hyper_parallel.torch.groups import group_of_torch, world_of_torch
from hyper_parallel.torch.tensors import DTYPES, address, tensor_at

def _shape_of(size):
    """A shape from empty(2, 3), empty((2, 3)) or malloc(6). ValueError for what is none."""
    shape = tuple(size[0]) if len(size) == 1 and isinstance(size[0], (tuple, list)) else size
    if not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in shape):
        raise ValueError(f"expected a shape of whole numbers above 0, given {shape}")
    return shape


def _dtype_of(dtype):
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"expected dtype to be a torch.dtype, given {dtype!r}")
    return dtype


def _tensor(block, shape, dtype, owner=None):
    return tensor_at(block.address, shape, dtype, owner).data  # a view of nothing: may be freed


@eager
def empty(*size, dtype=None, device="cpu", alignment=0, group=None):
    """A tensor of zeros in symmetric memory. Collective over the group (None: all ranks), whose
    members ask for the same number of bytes.

    dtype: None: torch's default; alignment: of its address, in bytes, a power of two up to 4096
    (0: 64). Errors: ValueError; HyperParallelError naming the ranks that differ, or the limit."""
    shape, dtype, group = _shape_of(size), _dtype_of(dtype), group_of_torch(group)
    if torch.device(device).type != "cpu":
        raise ValueError(f"expected device 'cpu', given {device!r}")
    block, owner = heap.lend(math.prod(shape) * dtype.itemsize, group, alignment)
    return _tensor(block, shape, dtype, owner)


class Manager:
    """Owns symmetric tensors: attr_init, malloc, free, finalize, as the original's Manager."""

    def __init__(self):
        self._blocks = []

    def attr_init(self, my_pe=None, n_ranks=None, local_mem_size=None, ip_port=None):
        """Join the job, if this process has not. my_pe, n_ranks: ValueError when they are not this
        process's. local_mem_size (SYMMETRIC_MEMORY_HEAP_SIZE says that) and ip_port (the launcher
        has said it) are not looked at."""
        world_of_torch()
        worlds.world(rank=-1 if my_pe is None else my_pe, size=-1 if n_ranks is None else n_ranks)

    def get_name(self):
        """What moves the bytes."""
        return "hyper_parallel"

    def malloc(self, shape, dtype=None):
        """A tensor of zeros of this shape. Collective over all ranks."""
        return self.aligned_malloc(shape, dtype, 0)

    def aligned_malloc(self, shape, dtype, alignment):
        """The same, its address a multiple of alignment, a power of two up to 4096."""
        shape, dtype = _shape_of((shape,)), _dtype_of(dtype)
        block = heap.allocate(math.prod(shape) * dtype.itemsize, group_of_torch(), alignment)
        self._blocks.append(block)
        return _tensor(block, shape, dtype)

    def free(self, tensor):
        """Give a tensor of this manager back: it has no elements from then on, and views of it
        must not be used. Collective over all ranks. ValueError: not one of this manager's."""
        block = heap.block_at(address(tensor))
        if block is None or block not in self._blocks:
            raise ValueError("expected a tensor that this manager has given and not yet freed")
        self._blocks.remove(block)
        tensor.set_()
        heap.free(block)

    def finalize(self):
        """Free what is left. Collective over all ranks."""
        while self._blocks:
            heap.free(self._blocks.pop(0))


# Operators that make a tensor out of no other: what a pool takes for its own.
_FACTORIES = frozenset((
    "arange", "empty", "empty_like", "empty_strided", "full", "full_like", "lift_fresh", "linspace",
    "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros", "normal", "ones",
    "ones_like", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm",
    "zeros", "zeros_like"))


class MemPool:
    """Symmetric memory for what torch makes: inside `with symm.use_mem_pool(pool):` (or `with
    pool:`) torch.empty, zeros, randn, ..._like, new_... and so nn modules give tensors that lie in
    it, where they have elements, a row-major order and a dtype that the library knows. Each is one
    allocation, collective over the group: its members make the same tensors in the same order."""

    def __init__(self, group=None):
        self._group = group_of_torch(group)
        self._modes = []

    def __enter__(self):
        self._modes.append(_Place(self._group))
        self._modes[-1].__enter__()
        return self

    def __exit__(self, *failure):
        return self._modes.pop().__exit__(*failure)


class _Place(TorchDispatchMode):
    def __init__(self, group):
        super().__init__()
        self._group = group

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ not in _FACTORIES or not _can_hold(made):
            return made
        with torch.utils._python_dispatch._disable_current_modes():
            return empty(tuple(made.shape), dtype=made.dtype, group=self._group).copy_(made)


def _can_hold(made):
    return (isinstance(made, torch.Tensor) and made.device.type == "cpu" and made.numel() > 0
            and made.layout is torch.strided and made.is_contiguous() and made.dtype in DTYPES
            and heap.block_at(made.data_ptr()) is None)


@contextlib.contextmanager
def use_mem_pool(pool):
    """The scope in which torch's factory functions take memory from a MemPool."""
    with pool:
        yield pool


class Handle:
    """Symmetric memory as the members of a group see each other's. rank, world_size: of this
    process in the group; buffer_size: bytes that this rank's tensor has behind its beginning."""

    def __init__(self, block, offset, group):
        self._block, self._offset, self.group = block, offset, group
        self.rank, self.world_size = group.rank, group.size
        self.buffer_size = block.n_bytes - offset

    def get_buffer(self, rank, sizes, dtype, storage_offset=0):
        """The tensor that a rank's block holds there, read and written in place, with no call and
        no copy: what makes it safe is a signal or a barrier. storage_offset: elements."""
        shape = _shape_of((sizes,))
        begin = storage_offset * dtype.itemsize
        n_bytes = math.prod(shape) * dtype.itemsize
        if begin < 0 or begin + n_bytes > self.buffer_size:
            raise ValueError(f"expected {n_bytes} bytes at byte {begin} within {self.buffer_size}")
        out = ffi.new("void **")
        check(lib.hp_symm_pointer(self._block.handle[0], rank, self.group.handle, out))
        place = int(ffi.cast("uintptr_t", out[0])) + self._offset + begin
        return tensor_at(place, shape, dtype, self)

    def barrier(self):
        """Returns when every member has called it."""
        check(lib.hp_barrier(self.group.handle))


@eager
def rendezvous(tensor, group=None):
    """The Handle through which a tensor's bytes at the other members are reached; nothing has to be
    exchanged for it. group None: the one it was allocated over. ValueError: ordinary memory."""
    block, offset = heap.find(address(tensor), tensor.numel() * tensor.element_size(), "tensor")
    return Handle(block, offset, block.group if group is None else group_of_torch(group))


def get_signal_pad_size():
    """There is no pad: signals are words that the program allocates."""
    raise NotImplementedError("expected signals in a tensor of symm.empty(n, dtype=torch.int64): "
                              "there is no signal pad")


def set_signal_pad_size(size):
    """As get_signal_pad_size."""
    get_signal_pad_size()

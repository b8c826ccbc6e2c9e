# SPDX-License-Identifier: Apache-2.0
"""buffers.py - symmetric memory for what a process group sends and receives.

FSDP2 asks its process group for the buffers of its collectives when it is told to
(set_allocate_memory_from_process_group_for_comm). Peers read and write them where they lie, while
ordinary memory is staged. A buffer is this rank's alone, allocated over a group of this rank, so
that nobody has to meet: peers reach all of a rank's symmetric memory in their collectives.

Always: a block serves one storage at a time, and is free again when the last tensor that shares
the storage is gone.
"""

import threading

import torch

from hyper_parallel import heap
from hyper_parallel._c import HyperParallelError
from hyper_parallel.torch.tensors import tensor_at
from hyper_parallel.world import world

ALIGNMENT = 4096

_lock = threading.Lock()
_owner = None  # the world of the blocks
_free = []  # append is atomic: __del__ may come in any thread, and takes no lock


class _Loan:
    """Lives as long as a tensor over the block."""

    def __init__(self, block):
        self._block, self._world = block, _owner

    def __del__(self):
        if self._world is _owner:  # else its memory is gone
            _free.append(self._block)


def _take(n_bytes):
    """The smallest free block that is large enough and not twice as large; None: there is none."""
    fitting = [block for block in list(_free) if n_bytes <= block.n_bytes < 2 * n_bytes]
    block = min(fitting, key=lambda block: block.n_bytes, default=None)
    if block:
        _free.remove(block)
    return block


def _allocate(n_bytes):
    """A new block; None when there is no more symmetric memory."""
    for is_last in False, True:
        try:
            return heap.allocate(n_bytes, _owner.group_of([_owner.rank]), ALIGNMENT)
        except HyperParallelError as error:
            if error.status != "HP_ERR_LIMIT":
                raise
            if is_last or not _free:
                return None
            while _free:
                heap.free(_free.pop())


def empty(n, dtype):
    """An uninitialized tensor of n elements; in ordinary memory when there is no other."""
    global _owner
    n_bytes = -(-n * dtype.itemsize // ALIGNMENT) * ALIGNMENT
    block = None
    if n_bytes:
        with _lock:
            if _owner is not world():
                _owner = world()
                _free.clear()
            block = _take(n_bytes) or _allocate(n_bytes)
    if block is None:
        return torch.empty(n, dtype=dtype)
    return tensor_at(block.address, (n,), dtype, _Loan(block))

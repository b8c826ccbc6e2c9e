# SPDX-License-Identifier: Apache-2.0
"""heap.py - symmetric memory by address: what a front end's tensors lie in, without a framework.

An allocation is a Block, known by where it lies in this process, so a tensor (or a view of one) is
found again by its address alone, and the calls below take addresses. Sizes and offsets are bytes;
the slots of signals are 64-bit words, counted. Ranks are numbers in the group.
A block that is lent belongs to a tensor: when nothing shares the tensor's memory any more it is
given back. Since that is collective it happens at the group's next loan, for what every member has
dropped by then: no garbage collector decides when ranks meet.
What always holds: a Block that was freed is never found, and no block outlives its world.
"""

import bisect
import threading
import weakref

from hyper_parallel import world as worlds
from hyper_parallel._c import check, ffi, lib, new

SIGNAL_OPS = {"set": lib.HP_SIGNAL_SET, "add": lib.HP_SIGNAL_ADD, 0: lib.HP_SIGNAL_SET,
              1: lib.HP_SIGNAL_ADD}
# The numbers are the original's, which knows three; the words are all that there are.
COMPARES = {"eq": lib.HP_EQ, "ne": lib.HP_NE, "gt": lib.HP_GT, "ge": lib.HP_GE, "lt": lib.HP_LT,
            "le": lib.HP_LE, 0: lib.HP_EQ, 1: lib.HP_GT, 2: lib.HP_LT}
WORD_BYTES = 8

_lock = threading.Lock()
_blocks = []  # by address
_lent = weakref.WeakKeyDictionary()  # Group: [(Block, the Owner of its tensor, weakly)]


class Owner:
    """Lives as long as a tensor that shares the memory."""


class Block:
    """One allocation: address and n_bytes here, the group it was allocated over."""

    def __init__(self, handle, address, n_bytes, group):
        self.handle = handle
        self.address = address
        self.n_bytes = n_bytes
        self.group = group

    def __lt__(self, other):
        return self.address < other.address


def allocate(n_bytes, group=None, alignment=0):
    """A zeroed Block of n_bytes (at least 1) on every member of a Group (None: all ranks), aligned
    to a power of two up to 4096. Collective over it; members may give different groups different
    orders. Errors: HyperParallelError, naming ranks and sizes that differ, or the limit."""
    group = group or worlds.group_of()
    memory = ffi.new("hp_symm *")
    check(lib.hp_symm_alloc(group.world.handle, group.handle, n_bytes, alignment, memory))
    out = ffi.new("void **")
    check(lib.hp_symm_pointer(memory[0], group.rank, group.handle, out))
    block = Block(memory, int(ffi.cast("uintptr_t", out[0])), n_bytes, group)
    with _lock:
        if not _blocks:
            worlds.before_shutdown(_forget_all)
        bisect.insort(_blocks, block)
    return block


def free(block):
    """Give a Block back. Collective over its group: returns when every member has come. ValueError
    when it is not there (any more)."""
    with _lock:
        if block not in _blocks:
            raise ValueError("expected symmetric memory that lives, given some that was freed")
        _blocks.remove(block)
    check(lib.hp_symm_free(block.handle[0]))


def lend(n_bytes, group=None, alignment=0):
    """(Block, Owner): allocate, for a tensor that keeps the Owner. Before that, what every member
    has dropped is freed. Collective over the group. Errors: as of allocate."""
    group = group or worlds.group_of()
    mine = _take_back(group)
    block, owner = allocate(n_bytes, group, alignment), Owner()
    mine.append((block, weakref.ref(owner)))
    return block, owner


def _take_back(group):
    """Free what all members have dropped. They have lent the same, so their lists are as long."""
    mine = _lent.setdefault(group, [])
    if mine:
        flags = ffi.new("int8_t[]", [owner() is None for _, owner in mine])
        check(lib.hp_all_reduce(group.handle, flags, flags, len(mine), lib.HP_INT8, lib.HP_MIN))
        for flag, (block, _) in zip(flags, mine):
            if flag:
                free(block)
        mine[:] = [row for flag, row in zip(flags, mine) if not flag]
    return mine


def _forget_all():
    with _lock:
        _blocks.clear()  # their memory goes with the world
    _lent.clear()


def block_at(address):
    """The Block that an address lies in, or None."""
    with _lock:
        at = bisect.bisect_right(_blocks, Block(None, address, 0, None)) - 1
        block = _blocks[at] if at >= 0 else None
    return block if block and address < block.address + block.n_bytes else None


def find(address, n_bytes, name):
    """(Block, offset in it) of the memory that n_bytes at an address lie in. ValueError when that
    is ordinary memory."""
    block = block_at(address)
    if block is None:
        raise ValueError(f"expected {name} in symmetric memory (symm.empty), given ordinary memory")
    offset = address - block.address
    if offset + n_bytes > block.n_bytes:
        raise ValueError(f"expected {name} within its symmetric memory of {block.n_bytes} bytes, "
                         f"given {n_bytes} bytes at offset {offset}")
    return block, offset


def run(what, rank=0, group=None, memory=None, signal=None, **fields):
    """One one-sided call, blocking. what: "put", "get", "signal", "put_signal", "wait"; memory and
    signal: (Block, offset); group: a Group, None: all ranks; fields: of hp_symm_call."""
    call = new("hp_symm_call", what=getattr(lib, "HP_SYMM_" + what.upper()), rank=rank, **fields)
    if what != "wait":
        call.group = (group or worlds.group_of()).handle
    if memory:
        call.memory, call.offset = memory[0].handle[0], memory[1]
    if signal:
        call.signal, call.signal_offset = signal[0].handle[0], signal[1]
    check(lib.hp_symm_run(call))


def code(table, value, name):
    """A word or number of SIGNAL_OPS or COMPARES. ValueError listing them."""
    key = value.lower() if isinstance(value, str) else value
    if isinstance(key, bool) or key not in table:
        raise ValueError(f"expected {name} to be one of {', '.join(map(repr, table))}, "
                         f"given {value!r}")
    return table[key]


def stats():
    """{"allocated", "peak", "free"}: bytes of this rank's symmetric memory."""
    out = ffi.new("hp_symm_stats *")
    check(lib.hp_symm_stats_get(worlds.world().handle, out))
    return {"allocated": out.allocated_bytes, "peak": out.peak_bytes, "free": out.free_bytes}


def is_available():
    """Can this machine run the library? The reason why not stands in the library's log."""
    return bool(lib.hp_is_available())

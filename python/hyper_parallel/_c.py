# SPDX-License-Identifier: Apache-2.0
"""_c.py - the C library as this package calls it: `ffi`, `lib`, `new`, `check`.

The library is the one beside this file (a wheel's), or the one that HYPER_PARALLEL_LIBRARY names.
Every failing call of the library becomes a HyperParallelError with the library's own sentence;
nothing is decided here.
"""

import os

from hyper_parallel._abi import INITIAL, VERSION, ffi

_path = os.environ.get("HYPER_PARALLEL_LIBRARY") or os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "lib", "libhyperparallel.so.0")
lib = ffi.dlopen(_path)
NULL = ffi.NULL


class HyperParallelError(RuntimeError):
    """A call of the C library failed. status: its name ("HP_ERR_PEER"); rank: the world rank whose
    fault it was, -1 when nobody's in particular."""

    def __init__(self, message, status, rank):
        super().__init__(message)
        self.status = status
        self.rank = rank


def error():
    """This thread's last failure, as an exception."""
    record = ffi.new("hp_error *")
    lib.hp_last_error_get(record)
    return HyperParallelError(ffi.string(lib.hp_last_error()).decode(),
                              ffi.string(lib.hp_status_name(record.status)).decode(),
                              record.world_rank)


def check(status):
    """Raise what the library says of a negative status."""
    if status < 0:
        raise error()
    return status


def new(struct, **fields):
    """A struct as its HP_..._INIT macro makes it, with some fields set."""
    value = ffi.new(struct + " *")
    ffi.memmove(value, INITIAL[struct], len(INITIAL[struct]))
    for name, field in fields.items():
        setattr(value, name, field)
    return value


check(lib.hp_version_check(VERSION))

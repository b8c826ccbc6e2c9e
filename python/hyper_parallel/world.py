# SPDX-License-Identifier: Apache-2.0
"""world.py - who we are: the ranks of this job and their groups, for every front end.

A process is one rank, so it has one world, made when it is first asked for: from a store that the
caller has, or from what hprun, torchrun, mpirun or srun left in the environment; a program that
none of them started is a world of one rank. Everything hangs from it, so what front ends build on
it (streams, memory, engines) says so with before_shutdown and is gone before it.
What always holds: a closed group or world is never given to the library, shutdown waits for nobody,
and a child made by fork leaves its parent's world alone.
"""

import atexit
import contextlib
import os
import threading
from datetime import timedelta

from hyper_parallel._c import NULL, check, ffi, lib, new

_lock = threading.RLock()
_leaving = threading.Lock()  # held by the one that shuts down
_world = None
_is_forked = False
_closers = []


class Group:
    """An ordered list of ranks with a signal space of its own; a rank is its place in the list.

    rank, size: this process's place, how many there are. ranks: their ranks in the world, a tuple.
    world: the World. Use from one thread at a time; different groups concurrently."""

    def __init__(self, world, handle, is_owned=True):
        self._handle = handle
        self._is_owned = is_owned
        self.world = world
        self.rank = lib.hp_group_rank(handle)
        self.size = lib.hp_group_size(handle)
        self.ranks = tuple(lib.hp_group_world_rank(handle, i) for i in range(self.size))
        world._groups.append(self)

    def __repr__(self):
        return f"<Group of ranks {list(self.ranks)}>"

    @property
    def handle(self):
        """The hp_group *. RuntimeError when the group is closed."""
        if self._handle is None:
            raise RuntimeError(f"expected a group that lives, {self!r} is closed")
        return self._handle

    def duplicate(self):
        """The same ranks with a second signal space, so that both can be used concurrently.
        Collective over the group."""
        out = ffi.new("hp_group **")
        check(lib.hp_group_duplicate(self.handle, out))
        return Group(self.world, out[0])

    def split(self, color, key=0):
        """Members with the same color form a group, ordered by key, then by rank; None for a
        negative color. Collective over the group."""
        out = ffi.new("hp_group **")
        check(lib.hp_group_split(self.handle, color, key, out))
        return Group(self.world, out[0]) if out[0] != NULL else None

    def close(self):
        """Give it back; local, and harmless when done before. The world's own stays."""
        with _lock:
            if self._handle is None or not self._is_owned:
                return
            handle, self._handle = self._handle, None
            self.world._forget(self)
        lib.hp_group_destroy(handle)


class World:
    """All ranks of the job. rank, size: of this process, of the job; local_rank, local_size: among
    the ranks that share this one's memory; group: of all ranks."""

    def __init__(self, handle, store):
        self._handle = handle
        self._store = store
        self._groups = []
        self._cache = {}
        self.rank = lib.hp_world_rank(handle)
        self.size = lib.hp_world_size(handle)
        self.local_rank = lib.hp_world_local_rank(handle)
        self.local_size = lib.hp_world_local_size(handle)
        self.group = Group(self, lib.hp_world_group(handle), is_owned=False)
        self._cache[self.group.ranks] = self.group

    def __repr__(self):
        return f"<World, rank {self.rank} of {self.size}>"

    @property
    def handle(self):
        """The hp_world *. RuntimeError when it is closed."""
        if self._handle is None:
            raise RuntimeError("expected a world that lives, it is closed")
        return self._handle

    def check(self):
        """Raises HyperParallelError naming the rank (or the launcher) that has died."""
        check(lib.hp_world_check(self.handle))

    def group_of(self, ranks):
        """The group of these world ranks, in this order; made at the first call, which is
        collective over them. The world's own for all ranks in order."""
        ranks = tuple(int(rank) for rank in ranks)
        with _lock:
            group = self._cache.get(ranks)
            if group is None:
                out = ffi.new("hp_group **")
                check(lib.hp_group_create(self.handle, ffi.new("int[]", ranks), len(ranks), out))
                group = self._cache[ranks] = Group(self, out[0])
            return group

    def _forget(self, group):
        self._groups.remove(group)
        if self._cache.get(group.ranks) is group:
            del self._cache[group.ranks]

    def _close(self):
        handle, self._handle = self._handle, None
        for group in reversed(self._groups):
            if group._is_owned:
                lib.hp_group_destroy(group._handle)
            group._handle = None
        self._groups.clear()
        self._cache.clear()
        lib.hp_world_destroy(handle)


class _Store:
    """A store of the caller (set(key, bytes), wait([key], timedelta), get(key) -> bytes, as torch's
    stores have them) as the library calls it. What the store raises becomes a status."""

    def __init__(self, store):
        self.store = store
        self.callbacks = (
            ffi.callback("hp_status(void *, const char *, const void *, size_t)", self._set,
                         error=lib.HP_ERR_SYSTEM),
            ffi.callback("hp_status(void *, const char *, void *, size_t, size_t *, uint64_t)",
                         self._get, error=lib.HP_ERR_SYSTEM))
        self.struct = ffi.new("hp_store *", {"set": self.callbacks[0], "get": self.callbacks[1]})

    def _set(self, _context, key, value, n_bytes):
        key = ffi.string(key).decode()
        try:
            self.store.set(key, bytes(ffi.buffer(value, n_bytes)))
        except Exception as error:
            return _store_failed(key, error)
        return lib.HP_OK

    def _get(self, _context, key, out_value, capacity, out_n_bytes, timeout_ms):
        key = ffi.string(key).decode()
        try:
            self.store.wait([key], timedelta(milliseconds=max(1, timeout_ms)))
            value = bytes(self.store.get(key))
        except Exception as error:
            return _store_failed(key, error)
        if len(value) > capacity:
            return _failed(lib.HP_ERR_ARGUMENT, f"expected at most {capacity} bytes under {key!r} "
                                                f"of the store, there are {len(value)}")
        ffi.memmove(out_value, value, len(value))
        out_n_bytes[0] = len(value)
        return lib.HP_OK


def _failed(status, text):
    return lib.hp_error_set(status, NULL, b"%s", ffi.new("char[]", text.encode()))


def _store_failed(key, error):
    text = str(error).strip().splitlines()[:1]
    is_late = isinstance(error, TimeoutError) or "timeout" in str(error).lower()
    return _failed(lib.HP_ERR_TIMEOUT if is_late else lib.HP_ERR_SYSTEM,
                   f"the store has not answered for {key!r}: {type(error).__name__}: "
                   f"{text[0] if text else ''}")


def world(store=None, rank=-1, size=-1):
    """The World of this process, made at the first call, which is collective over all ranks.

    store: what the ranks meet in, an object with set, wait and get as torch's stores have them;
    needs rank and size. None: what started the program says who we are. Later calls give the same
    world, and ValueError when rank or size are not its own. Errors: HyperParallelError naming the
    ranks that did not come."""
    global _world
    with _lock:
        if _is_forked:
            raise RuntimeError("expected a process that joined the job itself, this one was made "
                               "by fork after its parent had joined; start it by spawn")
        if _world is None:
            if store is not None and (rank < 0 or size < 1):
                raise ValueError(f"expected rank and size beside a store, given rank {rank} and "
                                 f"size {size}")
            ours = _Store(store) if store is not None else None
            out = ffi.new("hp_world **")
            check(lib.hp_world_create(
                new("hp_world_config", rank=rank, n_ranks=size,
                    **({"store": ours.struct} if ours else {})), out))
            _world = World(out[0], ours)
        elif (rank not in (-1, _world.rank)) or (size not in (-1, _world.size)):
            raise ValueError(f"this process is rank {_world.rank} of {_world.size} already, given "
                             f"rank {rank} of {size}")
        return _world


def is_initialized():
    """Is there a world now?"""
    return _world is not None


def group_of(ranks=None):
    """The Group of these world ranks, cached; None: of all ranks. The first call for a list is
    collective over its ranks, and makes the world if there is none."""
    here = world()
    return here.group if ranks is None else here.group_of(ranks)


def before_shutdown(function):
    """Call function() before groups and world are destroyed, the last one given first: for what
    holds a stream, memory or an engine. Once, however often it is given; a next world needs it
    again."""
    with _lock:
        if function not in _closers:
            _closers.append(function)


def shutdown():
    """Leave the job: everything that was built on the world, its groups, itself. Waits for nobody:
    ranks that still wait for this one get an error saying that it left. A next call of world()
    joins anew. Runs by itself when the interpreter ends. What a function of before_shutdown raises
    is raised when all is closed. Beside another shutdown that goes on it does nothing.
    Tensors in the library's memory (of symm, shards) do not outlive it: whoever holds one must not
    touch it any more."""
    if not _leaving.acquire(blocking=False):
        return
    try:
        failure = _leave()
    finally:
        _leaving.release()
    if failure is not None:
        raise failure


def _leave():
    """Returns the first failure. Closers run without the lock: they wait for threads, which may
    run a function of the program's that asks for the world."""
    global _world
    failure = None
    while True:
        with _lock:
            if _world is None:
                return failure
            if not _closers:
                here, _world = _world, None
                here._close()
                return failure
            function = _closers.pop()
        try:
            function()
        except Exception as error:
            failure = failure or error


def _at_exit():
    with contextlib.suppress(Exception):  # nobody is left to be told
        shutdown()


def _after_fork():
    global _world, _is_forked, _lock, _leaving
    _lock, _leaving = threading.RLock(), threading.Lock()
    _is_forked = _is_forked or _world is not None
    _world = None
    _closers.clear()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)

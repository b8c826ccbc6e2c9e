# SPDX-License-Identifier: Apache-2.0
"""work.py - handles of collectives: what torch.distributed calls Work.

A call that has run gives a Done. A call that was put on a Lane (a stream of the C library, in
order, with a thread of its own) gives a Pending, which knows its mark there. What a call reads and
writes is kept by its lane until it has run, whether or not anybody keeps the handle.

Always: a handle that says it is complete has its outputs in the caller's tensors; a failure is
raised by wait(), by every time it is asked for, and set in the future.
"""

import threading
import time
from collections import deque

import torch
import torch.distributed as dist

from hyper_parallel._c import HyperParallelError, check, error, ffi, lib, new

IN_PROGRESS = lib.HP_IN_PROGRESS
_finishing = threading.Lock()


class Done(dist.Work):
    """The handle of a call that has run. tensors: its outputs."""

    def __init__(self, tensors=(), source=-1):
        super().__init__()
        self._tensors = tensors
        self._source = source

    def wait(self, timeout=None):
        return True

    def synchronize(self):
        self.wait()

    def is_completed(self):
        return True

    def is_success(self):
        return self.is_completed() and self.exception() is None

    def exception(self):
        return None

    def result(self):
        return list(self._tensors)

    def source_rank(self):
        return self._source

    _source_rank = source_rank

    def get_future(self):
        """A torch.futures.Future of the list of outputs."""
        future = torch.futures.Future()
        future.set_result(list(self._tensors))
        return future


class Pending(Done):
    """The handle of calls that were put on a lane. after: run once, when they have run."""

    def __init__(self, lane, mark, tensors=(), after=None, source=-1):
        super().__init__(tensors, source)
        self._lane = lane
        self._mark = mark
        self._after = after or None
        self._error = None

    def _finish(self):
        if self._after is None:
            return
        with _finishing:  # one thread waits, a future is told in another
            if self._after is not None:
                self._after()
                self._after = None

    def wait(self, timeout=None):
        """timeout: a timedelta; none, or 0, waits as long as the group does."""
        try:
            self._lane.wait(self._mark, timeout.total_seconds() if timeout else 0)
            self._finish()
        except Exception as failure:
            self._error = failure
            raise
        self._error = None  # an earlier wait may have been too short
        return True

    def is_completed(self):
        try:
            if not self._lane.is_past(self._mark):
                return False
            self._finish()
            self._error = None
        except Exception as failure:
            self._error = failure
        return True

    def exception(self):
        return self._error if self.is_completed() else None

    def get_future(self):
        future = torch.futures.Future()

        def tell(failure):
            if self.is_completed():  # what fails behind it is not its own
                failure = self._error
            if failure:
                future.set_exception(failure)
            else:
                future.set_result(list(self._tensors))

        if self.is_completed():
            tell(self._error)
        else:
            self._lane.notify(tell)
        return future


class All(Done):
    """The handle of several."""

    def __init__(self, works):
        super().__init__([tensor for work in works for tensor in work.result()])
        self._works = works

    def wait(self, timeout=None):
        for work in self._works:
            work.wait(timeout)
        return True

    def is_completed(self):
        return all(work.is_completed() for work in self._works)

    def exception(self):
        return next((e for e in (work.exception() for work in self._works) if e), None)

    def get_future(self):
        outputs = list(self._tensors)
        futures = torch.futures.collect_all([work.get_future() for work in self._works])

        def gather(done):
            for future in done.value():
                future.value()  # raises what went wrong
            return outputs

        return futures.then(gather)


@ffi.callback("void(void *, hp_status)")
def _tell(handle, status):
    """In the thread of a stream: what Lane.notify was given, with the failure or None."""
    lane, function = ffi.from_handle(handle)
    lane.teller = threading.get_ident()
    try:
        function(error() if status < 0 else None)
    finally:
        lane.teller = None
        lane.told.discard(handle)


class Lane:
    """An hp_stream and what its calls use. Threads: any.

    What is put on it in a function of notify, which runs in the stream's thread, runs at once: it
    comes before what is on the stream already, as it does on ranks where the function was told too
    late to run there."""

    def __init__(self, name):
        out = ffi.new("hp_stream **")
        config = new("hp_stream_config", name=ffi.new("char[]", name.encode()))
        check(lib.hp_stream_create(config, out))
        # Destroyed when neither the group nor any handle has the lane: a handle may ask for its
        # mark when the group is gone.
        self._stream = ffi.gc(out[0], lib.hp_stream_destroy)
        self._lock = threading.Lock()
        self._kept = deque()  # (mark of a call, what it uses)
        self.told = set()  # handles that _tell has not done with
        self.teller = None  # the thread of _tell, while it is in a function

    def put(self, call, used):
        """Put an hp_coll_call on it; returns its mark. used: what lives until it has run."""
        if self.is_here():
            check(lib.hp_coll_run(call))
            return ffi.new("hp_mark *", {"stream": self._stream})
        call.stream = self._stream
        with self._lock:
            self._let_go()
            mark = self.last()
            mark.number += 1
            self._kept.append((mark, used))  # before it runs: Ctrl-C may come in between
            if lib.hp_coll_run(call) < 0:
                self._kept.pop()
                raise error()
        return mark

    def is_here(self):
        """Is the caller a function of notify?"""
        return self.teller == threading.get_ident()

    def last(self):
        """The mark behind everything on it."""
        mark = ffi.new("hp_mark *")
        check(lib.hp_stream_record(self._stream, mark))
        return mark

    def is_past(self, mark):
        """Has it run? Raises its failure."""
        return check(lib.hp_mark_query(mark[0])) != IN_PROGRESS

    def is_idle(self):
        """Has everything on it run? Lets go of what the calls that have run used."""
        with self._lock:
            self._let_go()
            return not self._kept

    def _let_go(self):
        while self._kept and lib.hp_mark_query(self._kept[0][0][0]) != IN_PROGRESS:
            self._kept.popleft()

    def wait(self, mark, seconds=0):
        if self.is_here() and not self.is_past(mark):
            raise HyperParallelError("expected a future's function to wait for none of the calls "
                                     "that its group was given before it ran: they come after it",
                                     "HP_ERR_STATE", -1)
        if not seconds:
            check(lib.hp_mark_synchronize(mark[0]))
            return
        end = time.monotonic() + seconds
        pause = 20e-6
        while not self.is_past(mark):
            if time.monotonic() > end:
                raise HyperParallelError(f"expected the call to end within {seconds} s, it goes on",
                                         "HP_ERR_TIMEOUT", -1)
            time.sleep(pause)
            pause = min(2 * pause, 1e-3)

    def notify(self, function):
        """function(None, or the failure), once, when all on it now has run: in the stream's thread,
        or here when the stream has failed."""
        handle = ffi.new_handle((self, function))
        with self._lock:
            self.told.add(handle)
            failure = None
            if lib.hp_stream_notify(self._stream, _tell, handle) < 0:
                failure = error()
                self.told.discard(handle)
        if failure:
            function(failure)

    def drain(self):
        """Wait for everything on it, functions of notify too; in one of these for nothing."""
        if (self._kept or self.told) and not self.is_here():
            check(lib.hp_stream_synchronize(self._stream))
            self.is_idle()

    def close(self):
        """Waits for what is on it, functions of notify too; failures were told to who waited."""
        status = lib.hp_stream_synchronize(self._stream)
        while self.told and status != lib.HP_ERR_FORKED:  # of a failure, which they hear of now
            time.sleep(1e-4)
        self.is_idle()

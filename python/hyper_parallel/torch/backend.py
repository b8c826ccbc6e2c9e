# SPDX-License-Identifier: Apache-2.0
"""backend.py - torch.distributed's backend "hyper": a ProcessGroup whose calls the C library runs.

Each process group of torch is a group of the library over the same ranks. A call becomes one
hp_coll_call. What torch does not want to go on beside it (async_op=False) runs at once in the
caller; the rest is put on the group's lane, in order, and what runs in the caller waits for the
lane first: so a group's collectives run in the order in which they were called, on all ranks.
Messages have a lane for each peer and direction.

Reductions are the library's (sum, avg, max, min; the same bits on every rank); whatever only moves,
moves in any dtype. Every failure is an exception: ValueError for what was given, before anything
is touched; HyperParallelError, with the rank whose fault it is, for the rest.
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch._C._autograd import _profiler_enabled
from torch.autograd.profiler import record_function

from hyper_parallel._c import HyperParallelError, check, ffi, lib, new
from hyper_parallel.torch import buffers
from hyper_parallel.torch.groups import world_of_torch
from hyper_parallel.torch.operands import (Copies, apart, in_out, reduced, source, sources, target,
                                           targets)
from hyper_parallel.torch.tensors import moved_as, pointer
from hyper_parallel.torch.work import All, Done, Lane, Pending
from hyper_parallel.world import Group, before_shutdown, world

ALL_GATHER, ALL_REDUCE = c10d.AllgatherOptions(), c10d.AllreduceOptions()
REDUCE_SCATTER, ALL_TO_ALL = c10d.ReduceScatterOptions(), c10d.AllToAllOptions()
BROADCAST, REDUCE, BARRIER = c10d.BroadcastOptions(), c10d.ReduceOptions(), c10d.BarrierOptions()
GATHER, SCATTER = c10d.GatherOptions(), c10d.ScatterOptions()
TIMEOUT_OPTION = "SYMMETRIC_MEMORY_SIGNAL_TIMEOUT_MS"

NAMES = {lib.HP_ALL_GATHER: "all_gather", lib.HP_ALL_GATHER_V: "all_gather",
         lib.HP_REDUCE_SCATTER: "reduce_scatter", lib.HP_REDUCE_SCATTER_V: "reduce_scatter",
         lib.HP_ALL_REDUCE: "all_reduce", lib.HP_ALL_TO_ALL: "all_to_all",
         lib.HP_ALL_TO_ALL_V: "all_to_all", lib.HP_BROADCAST: "broadcast",
         lib.HP_BARRIER: "barrier"}  # as torch.profiler shows them


def _one(tensors, what):
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"{what}: expected one tensor, given {len(tensors)}")
    return tensors[0]


def _numbers(values):
    return ffi.new("uint64_t[]", list(values))


def _check_whole(whole, part, n, what):
    if whole.dtype is not part.dtype or whole.numel() != n * part.numel():
        raise ValueError(f"{what}: expected {n} times the {part.numel()} elements of {part.dtype} "
                         f"that are a rank's, given {whole.numel()} of {whole.dtype}")


class HyperProcessGroup(dist.ProcessGroup):
    """A process group over a group of the library. Threads: one at a time."""

    def __init__(self, store, group, timeout):
        super().__init__(group.rank, group.size)
        self._group = group
        self._store = store
        self._name = self._description = "undefined"
        self._collectives = None  # the lane, from the first call that goes on beside its caller
        self._messages = {}  # {(peer, what): its lane}
        self._batch = None  # the works since _start_coalescing
        self._is_closed = False
        self.set_timeout(timeout)
        _open.add(self)

    # ---- what torch asks of it ------------------------------------------------------------------

    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False

    def getBackendName(self):
        return "hyper"

    name = _get_backend_name = getBackendName

    def getGroupName(self):
        return self._name

    def setGroupName(self, name):
        self._name = name

    def getGroupDesc(self):
        return self._description

    def setGroupDesc(self, description):
        self._description = description

    def __repr__(self):
        return f"<HyperProcessGroup, rank {self._group.rank} of {self._group.size}>"

    @property
    def group(self):
        """The hyper_parallel.world.Group that carries it."""
        return self._group

    def get_group_store(self):
        return self._store

    @property
    def _device_types(self):
        return [torch.device("cpu")]

    def _get_backend(self, device):
        return self

    def supports_tensor_alloc(self, device):
        return torch.device(device).type == "cpu"

    def allocate_tensor(self, size, *, dtype=torch.float32, device="cpu"):
        """An uninitialized tensor of `size` elements that peers reach where it lies."""
        return buffers.empty(int(size), dtype)

    def set_timeout(self, timeout):
        """How long a call waits for another rank: a timedelta. Where it is the one that nobody has
        asked for, and the library's option is set, the option holds."""
        ms = max(1, int(timeout.total_seconds() * 1000))
        if timeout == dist.default_pg_timeout and TIMEOUT_OPTION in os.environ:
            ms = 0
        check(lib.hp_group_timeout_set(self._group.handle, ms))
        self._timeout = timeout

    _set_default_timeout = set_timeout

    def split_group(self, ranks, timeout=None, opts=None, group_name=None, group_desc=None,
                    device_types=None):
        """The process group of these ranks of this one, None for who is not among them. Waits for
        nobody."""
        if self._group.rank not in ranks:
            return None
        split = create_group(self._store, [self._group.ranks[rank] for rank in ranks],
                             timeout or self._timeout)
        if group_name is not None:
            split._set_group_name(group_name)
        if group_desc is not None:
            split._set_group_desc(group_desc)
        return split

    def abort(self):
        """End it for all members: what waits in it, here and elsewhere, fails."""
        if not self._is_closed:
            check(lib.hp_group_cancel(self._group.handle))

    def shutdown(self, seconds=1):
        """Give everything back. What is still on its lanes after some seconds is given up, and with
        it the group, on all members. RuntimeError in a function of a future of its own, which
        would wait for itself."""
        if self._is_closed:
            return
        lanes = [lane for lane in (self._collectives, *self._messages.values()) if lane]
        if any(lane.is_here() for lane in lanes):
            raise RuntimeError("expected the end of a group outside of the functions that its "
                               "futures call, given in one")
        end = time.monotonic() + seconds
        while not all(lane.is_idle() for lane in lanes):
            if time.monotonic() >= end:
                self.abort()
                break
            time.sleep(1e-3)
        self._is_closed = True
        _open.discard(self)
        for lane in lanes:
            lane.close()
        self._group.close()

    # ---- how a call runs ------------------------------------------------------------------------

    def _call(self, what, read, written, **fields):
        """An hp_coll_call. read, written: tensors, or None."""
        call = new("hp_coll_call", what=what, group=self._group.handle, **fields)
        if read is not None:
            setattr(call, "in", pointer(read))
        if written is not None:
            call.out = pointer(written)
        return call

    def _run(self, call, is_async, used, outputs, copies=None):
        """Run it here, or put it on the lane. used: what lives until it has run; outputs: what its
        handle shows; copies: made when it has run."""
        if _profiler_enabled():
            with record_function("hyper::" + NAMES[call.what]):
                return self._start(call, is_async, used, outputs, copies)
        return self._start(call, is_async, used, outputs, copies)

    def _start(self, call, is_async, used, outputs, copies):
        if is_async:
            if self._collectives is None:
                self._collectives = Lane("collectives")
            mark = self._collectives.put(call, used)
            return Pending(self._collectives, mark, outputs, copies)
        if self._collectives is not None:
            self._collectives.drain()
        check(lib.hp_coll_run(call))
        if copies:
            copies()
        return Done(outputs)

    # ---- reductions -----------------------------------------------------------------------------

    def allreduce(self, tensors, opts=ALL_REDUCE):
        tensor = _one(tensors, "all_reduce")
        copies = Copies()
        data = in_out(tensor, copies, "all_reduce")
        dtype, op, unit = reduced(tensor, opts.reduceOp, "all_reduce")
        call = self._call(lib.HP_ALL_REDUCE, data, data, count=data.numel() * unit, dtype=dtype,
                          op=op)
        return self._run(call, opts.asyncOp, data, [tensor], copies)

    def allreduce_coalesced(self, tensors, opts=ALL_REDUCE):
        return All([self.allreduce([tensor], opts) for tensor in tensors])

    def reduce(self, tensors, opts=REDUCE):
        """A reduce_scatter of which the root gets all, so only the root's tensor is written."""
        tensor = _one(tensors, "reduce")
        is_root, copies = self._group.rank == opts.rootRank, Copies()
        data = in_out(tensor, copies, "reduce") if is_root else source(tensor, "reduce")
        dtype, op, unit = reduced(tensor, opts.reduceOp, "reduce")
        counts = _numbers(data.numel() * unit * (rank == opts.rootRank)
                          for rank in range(self._group.size))
        call = self._call(lib.HP_REDUCE_SCATTER_V, data, data, in_counts=counts, dtype=dtype, op=op,
                          count=counts[self._group.rank])
        return self._run(call, opts.asyncOp, (data, counts), [tensor], copies)

    def reduce_scatter(self, outputs, inputs, opts=REDUCE_SCATTER):
        output, parts, copies = _one(outputs, "reduce_scatter"), inputs[0], Copies()
        self._check_parts(parts, output, "reduce_scatter")
        data = sources(parts, "reduce_scatter")
        own = target(output, copies, "reduce_scatter")
        dtype, op, unit = reduced(output, opts.reduceOp, "reduce_scatter")
        counts = _numbers(part.numel() * unit for part in parts)
        call = self._call(lib.HP_REDUCE_SCATTER_V, data, own, in_counts=counts, dtype=dtype, op=op,
                          count=counts[self._group.rank])
        return self._run(call, opts.asyncOp, (data, own, counts), [output], copies)

    def reduce_scatter_single(self, output, input, opts=REDUCE_SCATTER):
        _check_whole(input, output, self._group.size, "reduce_scatter")
        copies = Copies()
        data, own = source(input, "reduce_scatter"), target(output, copies, "reduce_scatter")
        dtype, op, unit = reduced(output, opts.reduceOp, "reduce_scatter")
        call = self._call(lib.HP_REDUCE_SCATTER, data, own, count=own.numel() * unit, dtype=dtype,
                          op=op)
        return self._run(call, opts.asyncOp, (data, own), [output], copies)

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=REDUCE_SCATTER):
        return All([self.reduce_scatter_single(output, input, opts)
                    for output, input in zip(outputs, inputs, strict=True)])

    # ---- what only moves ------------------------------------------------------------------------

    def allgather(self, outputs, inputs, opts=ALL_GATHER):
        parts, tensor, copies = outputs[0], _one(inputs, "all_gather"), Copies()
        self._check_parts(parts, tensor, "all_gather")
        whole = targets(parts, copies, "all_gather")
        own = apart(source(tensor, "all_gather"), whole)
        dtype, unit = moved_as(tensor)
        counts = _numbers(part.numel() * unit for part in parts)
        call = self._call(lib.HP_ALL_GATHER_V, own, whole, out_counts=counts, dtype=dtype,
                          count=counts[self._group.rank])
        return self._run(call, opts.asyncOp, (own, whole, counts), parts, copies)

    def all_gather_single(self, output, input, opts=ALL_GATHER):
        _check_whole(output, input, self._group.size, "all_gather")
        copies = Copies()
        own, whole = source(input, "all_gather"), target(output, copies, "all_gather")
        dtype, unit = moved_as(input)
        call = self._call(lib.HP_ALL_GATHER, own, whole, count=own.numel() * unit, dtype=dtype)
        return self._run(call, opts.asyncOp, (own, whole), [output], copies)

    def all_gather_single_coalesced(self, outputs, inputs, opts=ALL_GATHER):
        return All([self.all_gather_single(output, input, opts)
                    for output, input in zip(outputs, inputs, strict=True)])

    def allgather_coalesced(self, outputs, inputs, opts=ALL_GATHER):
        """outputs[rank][k]: inputs[k] of that rank."""
        return All([self.allgather([[of_rank[k] for of_rank in outputs]], [tensor], opts)
                    for k, tensor in enumerate(inputs)])

    def broadcast(self, tensors, opts=BROADCAST):
        tensor = _one(tensors, "broadcast")
        copies = Copies()
        data = in_out(tensor, copies, "broadcast")
        dtype, unit = moved_as(tensor)
        call = self._call(lib.HP_BROADCAST, None, data, count=data.numel() * unit, dtype=dtype,
                          rank=opts.rootRank)
        return self._run(call, opts.asyncOp, data, [tensor], copies)

    def gather(self, outputs, inputs, opts=GATHER):
        tensor, n = _one(inputs, "gather"), self._group.size
        is_root = self._group.rank == opts.rootRank
        outputs = outputs[0] if is_root else []
        if is_root:
            self._check_parts(outputs, tensor, "gather")
        sent = [tensor.numel() * (rank == opts.rootRank) for rank in range(n)]
        received = [output.numel() for output in outputs] or [0] * n
        return self._exchange(outputs, [tensor], sent, received, opts, "gather")

    def scatter(self, outputs, inputs, opts=SCATTER):
        tensor, n = _one(outputs, "scatter"), self._group.size
        is_root = self._group.rank == opts.rootRank
        inputs = inputs[0] if is_root else []
        if is_root:
            self._check_parts(inputs, tensor, "scatter")
        sent = [input.numel() for input in inputs] or [0] * n
        received = [tensor.numel() * (rank == opts.rootRank) for rank in range(n)]
        return self._exchange([tensor], inputs, sent, received, opts, "scatter")

    def alltoall(self, outputs, inputs, opts=ALL_TO_ALL):
        self._check_length(inputs, "all_to_all")
        self._check_length(outputs, "all_to_all")
        self._check_parts(inputs, outputs[self._group.rank], "all_to_all")
        self._check_parts(outputs, inputs[self._group.rank], "all_to_all")
        return self._exchange(outputs, inputs, [input.numel() for input in inputs],
                              [output.numel() for output in outputs], opts, "all_to_all")

    def all_to_all_single(self, output, input, output_splits=None, input_splits=None,
                          opts=ALL_TO_ALL):
        """Splits are rows of the first dimension, by rank; none: equal parts."""
        if output_splits or input_splits:
            return self._exchange([output], [input], self._elements(input, input_splits),
                                  self._elements(output, output_splits), opts, "all_to_all")
        _check_whole(output, input, 1, "all_to_all")
        count = self._elements(input, None)[0]
        copies = Copies()
        data, whole = source(input, "all_to_all"), target(output, copies, "all_to_all")
        dtype, unit = moved_as(input)
        call = self._call(lib.HP_ALL_TO_ALL, data, whole, count=count * unit, dtype=dtype)
        return self._run(call, opts.asyncOp, (data, whole), [output], copies)

    def _elements(self, tensor, splits):
        """How many elements of a tensor go to, or come from, each rank."""
        n, rows = self._group.size, tensor.size(0) if tensor.dim() else 1
        if not splits and rows % n:
            raise ValueError(f"all_to_all: expected splits, or a first dimension that {n} ranks "
                             f"divide, given shape {list(tensor.shape)}")
        splits = splits or [rows // n] * n
        if len(splits) != n or sum(splits) != rows or min(splits) < 0:
            raise ValueError(f"all_to_all: expected {n} splits that add up to {rows}, given "
                             f"{list(splits)}")
        return [split * (tensor.numel() // rows) if rows else 0 for split in splits]

    def _exchange(self, outputs, inputs, sent, received, opts, what):
        """From each rank to each. outputs, inputs: tensors, packed one behind the other; sent,
        received: by rank, how many elements of them."""
        copies = Copies()
        dtype, unit = moved_as((*inputs, *outputs)[0])
        data = sources(inputs, what) if inputs else None
        whole = targets(outputs, copies, what) if outputs else None
        if data is not None and whole is not None:
            if data.dtype is not whole.dtype:
                raise ValueError(f"{what}: expected one dtype, given {data.dtype} to {whole.dtype}")
            data = apart(data, whole)
        counts = [_numbers(count * unit for count in numbers) for numbers in (sent, received)]
        call = self._call(lib.HP_ALL_TO_ALL_V, data, whole, dtype=dtype, in_counts=counts[0],
                          out_counts=counts[1])
        return self._run(call, opts.asyncOp, (data, whole, counts), outputs, copies)

    def _check_length(self, parts, what):
        if len(parts) != self._group.size:
            raise ValueError(f"{what}: expected a tensor for each of {self._group.size} ranks, "
                             f"given {len(parts)}")

    def _check_parts(self, parts, own, what):
        """A list by rank, whose part of this rank is like `own`."""
        self._check_length(parts, what)
        _check_whole(parts[self._group.rank], own, 1, what)

    def barrier(self, opts=BARRIER):
        if opts.timeout > timedelta(0):
            self.monitored_barrier(opts.timeout)
            return Done()
        return self._run(self._call(lib.HP_BARRIER, None, None), opts.asyncOp, (), [])

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        """A barrier whose error names the rank that has not come within timeout, a timedelta."""
        before = self._timeout
        self.set_timeout(timeout or before)
        try:
            self._run(self._call(lib.HP_BARRIER, None, None), False, (), [])
        finally:
            self.set_timeout(before)

    # ---- messages -------------------------------------------------------------------------------

    def _message(self, what, data, tensor, peer, tag):
        """Put a message on the lane of its peer and direction. A tag other than 0 travels before
        it, and has to be the one that the receiver wants."""
        lane = self._messages.get((peer, what))
        if lane is None:
            lane = self._messages[peer, what] = Lane(f"{'send' if what == lib.HP_SEND else 'recv'} "
                                                     f"{peer}")
        dtype, unit = moved_as(data)
        after = None
        if tag:
            label = torch.tensor([tag])
            call = self._call(what, label, label, count=1, dtype=lib.HP_INT64, rank=peer)
            lane.put(call, label)
            if what == lib.HP_RECV:
                after = _TagCheck(label, tag, self._group.ranks[peer])
        call = self._call(what, data, data, count=data.numel() * unit, dtype=dtype, rank=peer)
        work = Pending(lane, lane.put(call, data), [tensor], after, peer)
        if self._batch is not None:
            self._batch.append(work)
        return work

    def send(self, tensors, peer, tag=0):
        """Messages to a rank arrive in the order in which they were sent."""
        tensor = _one(tensors, "send")
        return self._message(lib.HP_SEND, source(tensor, "send"), tensor, peer, tag)

    def recv(self, tensors, peer, tag=0):
        tensor = _one(tensors, "recv")
        copies = Copies()
        data = target(tensor, copies, "recv")
        if copies:
            raise ValueError(f"recv: expected a contiguous tensor, given strides {tensor.stride()}")
        return self._message(lib.HP_RECV, data, tensor, peer, tag)

    def recv_anysource(self, tensors, tag=0):
        raise ValueError("recv: expected the rank to receive from, given none: backend \"hyper\" "
                         "has a queue for each pair of ranks")

    # ---- several at once ------------------------------------------------------------------------

    def _start_coalescing(self, device):
        self._batch = []

    def _end_coalescing(self, device):
        works, self._batch = self._batch, None
        if self._collectives is not None:
            works.append(Pending(self._collectives, self._collectives.last()))
        return All(works)

    # Names that other versions of torch call these by.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single
    monitoredBarrier = monitored_barrier


class _TagCheck:
    """When a message has come: is it the one with the tag that was asked for?"""

    def __init__(self, label, tag, peer):
        """peer: its rank in the world."""
        self.label, self.tag, self.peer = label, tag, peer

    def __call__(self):
        if self.label.item() != self.tag:
            raise HyperParallelError(
                f"recv: expected the next message of rank {self.peer} to have tag {self.tag}, it "
                f"has {self.label.item()}; they arrive in the order in which they were sent",
                "HP_ERR_MISMATCH", self.peer)


_open = set()  # process groups that are not shut down


def _close_all():
    for group in list(_open):
        group.shutdown(0)


def create_group(store, ranks, timeout):
    """A HyperProcessGroup of these ranks of the world, in this order, with signals of its own."""
    here = world_of_torch()
    before_shutdown(_close_all)
    out = ffi.new("hp_group **")
    check(lib.hp_group_create(here.handle, ffi.new("int[]", ranks), len(ranks), out))
    return HyperProcessGroup(store, Group(here, out[0]), timeout)


def create(options, backend_options=None):
    """What torch.distributed calls for each new group, on its members."""
    ranks = list(options.global_ranks_in_group)
    if not ranks:  # the default group, which is everybody
        by_launcher = "HYPER_PARALLEL_LAUNCHER" in os.environ
        world(None if by_launcher else options.store, options.group_rank, options.group_size)
        ranks = list(range(options.group_size))
    return create_group(options.store, ranks, options.timeout)

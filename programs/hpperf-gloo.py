#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What hpperf measures, by Gloo through torch.distributed: a peer of hpperf --beside.

usage: hprun -n N hpperf-gloo.py collectives --token NAME

As hpperf-mpi.c: started by hpperf, waits for the token, says nothing. Buffers, values and times are
the C code of perf/peer.c, in the library beside this file; it calls back into Python for each call
of Gloo, which takes some microseconds of the hundreds that Gloo does. Gloo reduces in place alone:
elsewhere a copy comes before. Exit status: 0 when the token is gone; 1 when Gloo failed; 2 for a
wrong command line.
"""
import ctypes
import os
import socket
import sys
import warnings

# What coll.h and base.h number.
ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, ALL_TO_ALL, BROADCAST, SEND = 0, 2, 4, 5, 7, 9
SUM, AVG, MAX, MIN = range(4)


class Call(ctypes.Structure):
    """peer_call of perf/peer.h."""

    _fields_ = [
        ("what", ctypes.c_int),
        ("dtype", ctypes.c_int),
        ("reduce", ctypes.c_int),
        ("count", ctypes.c_ulonglong),
        ("part_bytes", ctypes.c_size_t),
        ("is_in_place", ctypes.c_bool),
        ("root", ctypes.c_int),
        ("partner", ctypes.c_int),
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
    ]


CALL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Call))
BARRIER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
MOST = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_double), ctypes.c_int)


class Library(ctypes.Structure):
    """peer_library of perf/peer.h."""

    _fields_ = [
        ("self", ctypes.c_void_p),
        ("rank", ctypes.c_int),
        ("n_ranks", ctypes.c_int),
        ("scatters_to_own_part", ctypes.c_bool),
        ("prepare", CALL),
        ("run", CALL),
        ("barrier", BARRIER),
        ("most", MOST),
    ]


def guarded(function):
    """Exceptions end here: the callers are C, to whom a negative number says as much."""

    def call(*arguments):
        try:
            return function(*arguments)
        except Exception as error:  # whatever it is, the C side must hear of it
            print(f"hpperf-gloo: {error}", file=sys.stderr)
            return -1

    return call


class Gloo:
    """The calls, on tensors that lie on the C side's memory."""

    def __init__(self, torch, dist):
        self.torch, self.dist = torch, dist
        self.dtypes = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
        self.dtypes += [torch.int64, torch.int32, torch.int8, torch.uint8]
        reductions = dist.ReduceOp
        self.reductions = [reductions.SUM, None, reductions.MAX, reductions.MIN]
        self.once = None

    def tensor(self, address, n_bytes, dtype):
        if not n_bytes:
            return None
        return self.torch.frombuffer((ctypes.c_char * n_bytes).from_address(address), dtype=dtype)

    def all_reduce(self, op):
        if self.input.data_ptr() != self.output.data_ptr():
            self.output.copy_(self.input)
        self.dist.all_reduce(self.output, op)

    def bounce(self, partner):
        if partner < 0:
            return
        if partner % 2:  # this is the even one
            self.dist.send(self.input, partner)
        self.dist.recv(self.output, partner)
        if partner % 2 == 0:
            self.dist.send(self.input, partner)

    def prepare(self, _, call):
        c, n, dist = call.contents, self.dist.get_world_size(), self.dist
        op = self.reductions[c.reduce]
        if op is None or (c.is_in_place and c.what in (ALL_TO_ALL, REDUCE_SCATTER)):
            return 0
        n_in = n if c.what in (REDUCE_SCATTER, ALL_TO_ALL) else 1
        n_out = n if c.what in (ALL_GATHER, ALL_TO_ALL) else 1
        self.input = self.tensor(c.input, c.part_bytes * n_in, self.dtypes[c.dtype])
        self.output = self.tensor(c.output, c.part_bytes * n_out, self.dtypes[c.dtype])
        root, partner = c.root, c.partner
        self.once = {
            ALL_REDUCE: lambda: self.all_reduce(op),
            ALL_GATHER: lambda: dist.all_gather_into_tensor(self.output, self.input),
            REDUCE_SCATTER: lambda: dist.reduce_scatter_tensor(self.output, self.input, op),
            ALL_TO_ALL: lambda: dist.all_to_all_single(self.output, self.input),
            BROADCAST: lambda: dist.broadcast(self.output, root),
            SEND: lambda: self.bounce(partner),
        }.get(c.what, dist.barrier)
        return 1

    def run(self, _, __):
        self.once()
        return 0

    def barrier(self, _):
        self.dist.barrier()
        return 0

    def most(self, _, x, n):
        address = ctypes.addressof(x.contents)
        self.dist.all_reduce(self.tensor(address, 8 * n, self.torch.float64), self.dist.ReduceOp.MAX)
        return 0


def connect(token, rank, text):
    """As token_connect of perf/token.h."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect("\0" + token)
    connection.sendall(f"peer {rank} {text}\n".encode())
    return connection


def pin(rank, n_ranks):
    """A core for each rank, where there is one."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) >= n_ranks:
        os.sched_setaffinity(0, {cores[rank]})


def main():
    if len(sys.argv) != 4 or sys.argv[1] != "collectives" or sys.argv[2] != "--token":
        print("hpperf-gloo: expected collectives --token NAME; hpperf --beside starts it", file=sys.stderr)
        return 2
    rank, n_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    pin(rank, n_ranks)
    warnings.simplefilter("ignore")  # numpy, which is not needed; names that torch is about to change
    import torch  # only now: its threads are born where this one is bound
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    gloo = Gloo(torch, dist)
    functions = (CALL(guarded(gloo.prepare)), CALL(guarded(gloo.run)))
    functions += (BARRIER(guarded(gloo.barrier)), MOST(guarded(gloo.most)))
    library = Library(None, rank, n_ranks, False, *functions)
    here = os.path.dirname(os.path.realpath(__file__))
    peer = ctypes.CDLL(os.path.join(here, "libhpperf-peer.so"))
    connection = connect(sys.argv[3], rank, f"Gloo of torch {torch.__version__}")
    status = peer.peer_take_turns(ctypes.byref(library), connection.fileno())
    if status < 0:
        return 1
    dist.destroy_process_group()
    return 0


sys.exit(main())

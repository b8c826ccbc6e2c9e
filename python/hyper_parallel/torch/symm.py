# SPDX-License-Identifier: Apache-2.0
"""symm.py - symmetric memory and its collectives for PyTorch, on CPU ranks.

The names, the order of arguments and the numbers that stand for operations are the original's.
Sizes and offsets are bytes; a signal is a 64-bit word of a tensor of int64, and signal_offset
counts words. group: whose ranks a call means (groups.group_of_torch), None: all; ranks are numbers
in it. Calls return when they are done. Tensors are used where they lie: on the CPU and contiguous,
anything else is refused in words before a rank is told.
Source: the symmetric memory seed; the original's hyper_parallel.core.symmetric_memory.
"""

import operator

import torch

from hyper_parallel import heap
from hyper_parallel.collective import Call, mode_of, reduce_of, wire_of
from hyper_parallel.torch.autograd import (AllReduce, Collective, Recv, Send, fresh, is_recorded,
                                           run)
from hyper_parallel.torch.eager import eager
from hyper_parallel.torch.fused import fused_all_gather_matmul, fused_matmul_reduce_scatter
from hyper_parallel.torch.groups import group_of_torch as group_of
from hyper_parallel.torch.memory import (Manager, MemPool, empty, get_signal_pad_size, rendezvous,
                                         set_signal_pad_size, use_mem_pool)
from hyper_parallel.torch.tensors import address, dtype_of

__all__ = [
    "Manager", "MemPool", "barrier", "empty", "fused_all_gather_matmul",
    "fused_matmul_reduce_scatter", "get_signal_pad_size", "is_shmem_available", "rendezvous",
    "set_signal_pad_size", "shmem_allgather", "shmem_allreduce", "shmem_alltoall", "shmem_get",
    "shmem_put", "shmem_put_with_signal", "shmem_recv", "shmem_reduce_scatter", "shmem_send",
    "shmem_signal_op", "shmem_wait_for_signal", "symm_memory_stats", "use_mem_pool",
]


def is_shmem_available():
    """Can this machine run the library?"""
    return heap.is_available()


def symm_memory_stats():
    """{"allocated", "peak", "free"}: bytes of this rank's symmetric memory. "allocated" has in it
    what collectives have taken for themselves."""
    group_of()
    return heap.stats()


@eager
def barrier(group=None):
    """Returns when every member of the group has called it."""
    Call("barrier", group_of(group)).run()


# ---- one-sided ------------------------------------------------------------------------------


def _number(value, name):
    """A whole number: an int, or a tensor of one element. TypeError for anything else."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"expected {name} to be a whole number, given {value!r}") from None


def _range(tensor, offset, size, name):
    """Where `size` bytes at an offset of a tensor lie. ValueError when they are not in it."""
    offset, n_bytes = _number(offset, f"{name}_offset"), tensor.numel() * tensor.element_size()
    if offset < 0 or size < 0 or offset + size > n_bytes:
        raise ValueError(f"expected {size} bytes at {name}_offset {offset} within the {n_bytes} "
                         f"bytes of {name}")
    return address(tensor, name) + offset


def _moved(target, target_offset, src, src_offset, size):
    """(place in target, place in src, bytes) of a put or a get."""
    address(target, "target"), address(src, "src")
    size = _number(size, "size")
    return (_range(target, target_offset, size, "target"), _range(src, src_offset, size, "src"),
            size)


def _word(signal, signal_offset):
    """The (Block, offset) of a signal's word."""
    place, slot = address(signal, "signal"), _number(signal_offset, "signal_offset")
    if signal.dtype not in (torch.int64, torch.uint64):
        raise TypeError(f"expected signal of int64, given {signal.dtype}")
    if not 0 <= slot < signal.numel():
        raise ValueError(f"expected signal_offset below the {signal.numel()} words of signal, "
                         f"given {slot}")
    return heap.find(place + slot * heap.WORD_BYTES, heap.WORD_BYTES, "signal")


def _signal(signal, signal_offset, signal_value, signal_op):
    """The fields of a call that signals."""
    return {"signal": _word(signal, signal_offset),
            "op": heap.code(heap.SIGNAL_OPS, signal_op, "signal_op"),
            "value": _number(signal_value, "signal_value") % (1 << 64)}


@eager
def shmem_put(target, target_offset, src, src_offset, size, target_rank, group=None):
    """Copy `size` bytes of src to target of target_rank, both at offsets in bytes. target: in
    symmetric memory of all members; src: any. Returns target."""
    place, source, size = _moved(target, target_offset, src, src_offset, size)
    heap.run("put", _number(target_rank, "target_rank"), group_of(group),
             memory=heap.find(place, size, "target"), source=heap.ffi.cast("void *", source),
             bytes=size)
    return target


@eager
def shmem_get(target, target_offset, src, src_offset, size, target_rank, group=None):
    """Copy `size` bytes of src of target_rank to target here. src: in symmetric memory of all
    members; target: any. Returns target."""
    place, source, size = _moved(target, target_offset, src, src_offset, size)
    heap.run("get", _number(target_rank, "target_rank"), group_of(group),
             memory=heap.find(source, size, "src"), target=heap.ffi.cast("void *", place),
             bytes=size)
    torch.autograd.graph.increment_version(target)
    return target


@eager
def shmem_signal_op(signal, signal_offset, signal_value, signal_op, target_rank, group=None):
    """Set ("set" or 0) or add to ("add" or 1) a word of signal of target_rank, and wake whoever
    waits for it. Returns signal."""
    heap.run("signal", _number(target_rank, "target_rank"), group_of(group),
             **_signal(signal, signal_offset, signal_value, signal_op))
    return signal


@eager
def shmem_put_with_signal(target, target_offset, src, src_offset, size, signal, signal_offset,
                          signal_value, signal_op, target_rank, group=None):
    """shmem_put, then shmem_signal_op: who has waited for the signal sees the data."""
    place, source, size = _moved(target, target_offset, src, src_offset, size)
    heap.run("put_signal", _number(target_rank, "target_rank"), group_of(group),
             memory=heap.find(place, size, "target"), source=heap.ffi.cast("void *", source),
             bytes=size, **_signal(signal, signal_offset, signal_value, signal_op))
    return target


@eager
def shmem_wait_for_signal(signal, signal_offset, compare_value, compare_op, depend_tensor=None):
    """Wait until this rank's own word compares with compare_value: "eq" or 0, "gt" or 1, "lt" or
    2, "ne", "ge", "le"; words are unsigned. After SYMMETRIC_MEMORY_SIGNAL_TIMEOUT_MS a
    HyperParallelError names who did not signal. Returns depend_tensor, or signal."""
    heap.run("wait", signal=_word(signal, signal_offset),
             compare=heap.code(heap.COMPARES, compare_op, "compare_op"),
             value=_number(compare_value, "compare_value") % (1 << 64))
    return signal if depend_tensor is None else depend_tensor


# ---- collectives ----------------------------------------------------------------------------


def _same_dtype(a, b, names):
    if a.dtype != b.dtype:
        raise TypeError(f"expected {names} of one dtype, given {a.dtype} and {b.dtype}")
    return dtype_of(a)


def _expect_size(tensor, size, name, why):
    if tensor.numel() != size:
        raise ValueError(f"expected {name} of {size} elements ({why}), given {tensor.numel()}")


def _collective(call, output, source, keeps=False):
    if is_recorded(output, source):
        return Collective.apply(fresh(output), source, call, keeps)
    return run(call, output)


@eager
def shmem_allgather(output_tensor, input_tensor, group=None):
    """output = the members' inputs, one behind the other by rank; input may be this rank's place
    in it. Returns output; its backward is a reduce-scatter (sum)."""
    group = group_of(group)
    places = address(input_tensor, "input_tensor"), address(output_tensor, "output_tensor")
    dtype = _same_dtype(output_tensor, input_tensor, "output_tensor and input_tensor")
    _expect_size(output_tensor, group.size * input_tensor.numel(), "output_tensor",
                 f"{group.size} ranks times {input_tensor.numel()}")
    call = Call("all_gather", group, *places, count=input_tensor.numel(), dtype=dtype)
    return _collective(call, output_tensor, input_tensor)


@eager
def shmem_reduce_scatter(output_tensor, input_tensor, op="sum", group=None,
                         low_precision_dtype=None):
    """output = this rank's part of op over the members' inputs, of equal parts by rank. op: "sum",
    "avg", "max", "min". low_precision_dtype: what terms are rounded to, once, to travel (a torch
    dtype or "fp16", "bf16", "fp8_e4m3", "fp8_e5m2"; None: SYMMETRIC_MEMORY_LOW_PRECISION_DTYPE);
    sums are fp32. Returns output; its backward is an all-gather."""
    group = group_of(group)
    places = address(input_tensor, "input_tensor"), address(output_tensor, "output_tensor")
    dtype = _same_dtype(output_tensor, input_tensor, "output_tensor and input_tensor")
    _expect_size(input_tensor, group.size * output_tensor.numel(), "input_tensor",
                 f"{group.size} ranks times {output_tensor.numel()}")
    call = Call("reduce_scatter", group, *places, count=output_tensor.numel(), dtype=dtype,
                op=reduce_of(op), wire=_wire(low_precision_dtype))
    return _collective(call, output_tensor, input_tensor, _keeps(op))


@eager
def shmem_allreduce(tensor, op="sum", group=None, low_precision_dtype=None, backward="identity"):
    """tensor = op over the members' tensors, in place, the same bits on every rank. op and
    low_precision_dtype: as of shmem_reduce_scatter. backward: "identity" where the result is used
    alike on all ranks, "sum" where each rank uses it in its own way. Returns tensor."""
    group = group_of(group)
    place = address(tensor)
    mode_of(backward)
    call = Call("all_reduce", group, place, place, count=tensor.numel(), dtype=dtype_of(tensor),
                op=reduce_of(op), wire=_wire(low_precision_dtype))
    if is_recorded(tensor):
        return AllReduce.apply(tensor, call, backward, _keeps(op))
    return run(call, tensor)


@eager
def shmem_alltoall(send_tensor_list, receive_tensor, receive_list, group=None):
    """Send tensor i of the list to rank i; receive_tensor = what came, packed by source rank, of
    receive_list[i] elements from rank i. Returns receive_tensor; its backward is the same with
    counts exchanged."""
    group = group_of(group)
    parts, counts = list(send_tensor_list), [_number(n, "receive_list") for n in receive_list]
    if len(parts) != group.size or len(counts) != group.size:
        raise ValueError(f"expected {group.size} tensors to send and {group.size} counts to "
                         f"receive (the group's size), given {len(parts)} and {len(counts)}")
    for i, part in enumerate(parts):
        address(part, f"send_tensor_list[{i}]")
        _same_dtype(part, receive_tensor, f"send_tensor_list[{i}] and receive_tensor")
    place = address(receive_tensor, "receive_tensor")
    if min(counts) < 0:
        raise ValueError(f"expected receive_list of counts from 0 up, given {counts}")
    _expect_size(receive_tensor, sum(counts), "receive_tensor", "the sum of receive_list")
    packed = parts[0].reshape(-1) if len(parts) == 1 else torch.cat([p.reshape(-1) for p in parts])
    call = Call("all_to_all_v", group, address(packed), place, dtype=dtype_of(packed),
                in_counts=[part.numel() for part in parts], out_counts=counts)
    return _collective(call, receive_tensor, packed)


@eager
def shmem_send(tensor, dst_rank, group=None):
    """Send to a rank, whose shmem_recvs get what is sent to it in the order of sending. Returns
    tensor. Where that requires a gradient, what is computed from the result gets the receiver's
    in its backward, so the receiver's result must require one too."""
    call = Call("send", group_of(group), address(tensor), None, count=tensor.numel(),
                dtype=dtype_of(tensor), rank=_number(dst_rank, "dst_rank"))
    if is_recorded(tensor):
        return Send.apply(tensor, call)
    run(call, None)
    return tensor


@eager
def shmem_recv(tensor, src_rank, group=None, depend_tensor=None):
    """tensor = what src_rank has sent, of the same dtype and number of elements. Returns tensor;
    where tensor or depend_tensor requires a gradient, the result does, and its backward sends it
    back (they get none themselves)."""
    call = Call("recv", group_of(group), None, address(tensor), count=tensor.numel(),
                dtype=dtype_of(tensor), rank=_number(src_rank, "src_rank"))
    for reason in (tensor, depend_tensor):
        if reason is not None and is_recorded(reason):
            return Recv.apply(tensor.detach(), reason, call)
    return run(call, tensor)


def _keeps(op):
    return op in ("max", "min")


def _wire(dtype):
    return wire_of(dtype if dtype is None or isinstance(dtype, str) else str(dtype))

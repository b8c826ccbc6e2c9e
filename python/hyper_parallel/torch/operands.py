# SPDX-License-Identifier: Apache-2.0
"""operands.py - tensors as the C library takes them: an address, a count, a dtype.

A tensor that is contiguous is used where it lies. One that is not is read from a copy, and written
through one whose contents `Copies` puts where they belong when the call has run; lists likewise,
unless their tensors lie one behind the other, as torch.chunk makes them.

Always: what is handed to the library is contiguous memory of this process's CPU.
"""

import torch
from torch.distributed import ReduceOp

from hyper_parallel._c import lib
from hyper_parallel.torch.tensors import DTYPES

# {value of a ReduceOp: the library's}; by value, for enums of pybind11 are slow to hash.
OPS = {ReduceOp.SUM.value: lib.HP_SUM, ReduceOp.AVG.value: lib.HP_AVG,
       ReduceOp.MAX.value: lib.HP_MAX, ReduceOp.MIN.value: lib.HP_MIN}
# Of pairs of numbers.
COMPLEX_OPS = {ReduceOp.SUM.value: lib.HP_SUM, ReduceOp.AVG.value: lib.HP_AVG}
# Of truth values, which lie in bytes of 0 and 1: any of them, or all of them.
BOOL_OPS = {ReduceOp.SUM.value: lib.HP_MAX, ReduceOp.MAX.value: lib.HP_MAX,
            ReduceOp.BOR.value: lib.HP_MAX, ReduceOp.MIN.value: lib.HP_MIN,
            ReduceOp.BAND.value: lib.HP_MIN, ReduceOp.PRODUCT.value: lib.HP_MIN}


class Copies:
    """What is to be copied into the caller's tensors when a call has run."""

    def __init__(self):
        self._pairs = []

    def add(self, target, source):
        self._pairs.append((target, source))

    def __bool__(self):
        return bool(self._pairs)

    def __call__(self):
        with torch.no_grad():
            for target, source in self._pairs:
                target.detach().copy_(source.view(target.shape))
        self._pairs.clear()


def plain(tensor, what):
    """The tensor, if it is one of the CPU's with memory of its own; for complex numbers of which
    only a view is conjugated or negated, what they are."""
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        raise ValueError(f"{what}: expected a dense tensor on the CPU, given {tensor.layout} on "
                         f"{tensor.device}")
    if tensor.is_conj() or tensor.is_neg():
        return tensor.resolve_conj().resolve_neg()
    return tensor


def source(tensor, what):
    """A contiguous tensor of what is to be read."""
    return plain(tensor, what).contiguous()


def target(tensor, copies, what):
    """A contiguous tensor for what is to be written."""
    if plain(tensor, what) is tensor and tensor.is_contiguous():
        return tensor
    buffer = torch.empty(tensor.shape, dtype=tensor.dtype)
    copies.add(tensor, buffer)
    return buffer


def in_out(tensor, copies, what):
    """A contiguous tensor for what is read, then written."""
    buffer = target(tensor, copies, what)
    if buffer is not tensor:
        buffer.copy_(tensor)
    return buffer


def _flat_view(tensors):
    """All tensors as one of a single dimension, if they lie one behind the other, else None."""
    first = tensors[0]
    storage, end = first.untyped_storage().data_ptr(), first.data_ptr()
    for tensor in tensors:
        if (tensor.data_ptr() != end or not tensor.is_contiguous()
                or tensor.untyped_storage().data_ptr() != storage):
            return None
        end += tensor.nbytes
    n = sum(tensor.numel() for tensor in tensors)
    return first.detach().as_strided((n,), (1,), first.storage_offset())


def _plain_all(tensors, what):
    tensors = [plain(tensor, what) for tensor in tensors]
    for tensor in tensors:
        if tensor.dtype is not tensors[0].dtype:
            raise ValueError(f"{what}: expected tensors of one dtype, given {tensors[0].dtype} and "
                             f"{tensor.dtype}")
    return tensors


def sources(tensors, what):
    """What the tensors hold, packed, as one of a single dimension."""
    tensors = _plain_all(tensors, what)
    flat = _flat_view(tensors)
    return torch.cat([tensor.reshape(-1) for tensor in tensors]) if flat is None else flat


def targets(tensors, copies, what):
    """A tensor of a single dimension for what is to be written to all of them, packed."""
    are_plain = all(a is b for a, b in zip(_plain_all(tensors, what), tensors))
    flat = _flat_view(tensors) if are_plain else None
    if flat is None:
        sizes = [tensor.numel() for tensor in tensors]
        flat = torch.empty(sum(sizes), dtype=tensors[0].dtype)
        for tensor, part in zip(tensors, flat.split(sizes)):
            copies.add(tensor, part)
    return flat


def apart(read, written):
    """What is to be read, as a copy if some of it is to be written."""
    begin, out = read.data_ptr(), written.data_ptr()
    is_apart = begin + read.nbytes <= out or out + written.nbytes <= begin
    return read if is_apart else read.clone()


def reduced(tensor, op, what):
    """(dtype, op, elements of it that one of the tensor's takes) for what is reduced. op: a
    ReduceOp."""
    dtype, ops, unit = DTYPES.get(tensor.dtype), OPS, 1
    if tensor.dtype is torch.bool:
        dtype, ops = lib.HP_UINT8, BOOL_OPS
    elif tensor.is_complex():
        dtype, ops, unit = DTYPES.get(tensor.dtype.to_real()), COMPLEX_OPS, 2
    kind = getattr(op, "op", op)
    if dtype is None:
        names = ", ".join(str(known).removeprefix("torch.") for known in (*DTYPES, torch.bool))
        raise ValueError(f"{what}: expected a dtype that can be reduced ({names}), given "
                         f"{tensor.dtype}")
    if kind.value not in ops:
        names = ", ".join(known.name for known in type(kind).__members__.values()
                          if known.value in ops)
        raise ValueError(f"{what}: expected an operation on {tensor.dtype} ({names}), given "
                         f"{kind.name}")
    return dtype, ops[kind.value], unit

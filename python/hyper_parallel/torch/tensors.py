# SPDX-License-Identifier: Apache-2.0
"""tensors.py - torch tensors as the C library sees them: an address, a dtype, a count.

Nothing is copied: what lies in a tensor is read and written where it lies. So a tensor must be
dense, in row-major order and on the CPU; one that is not is refused in words, before any rank is
told of the call.
"""

import ctypes

import torch

from hyper_parallel._c import ffi, lib

DTYPES = {
    torch.float64: lib.HP_FP64,
    torch.float32: lib.HP_FP32,
    torch.float16: lib.HP_FP16,
    torch.bfloat16: lib.HP_BF16,
    torch.int64: lib.HP_INT64,
    torch.int32: lib.HP_INT32,
    torch.int8: lib.HP_INT8,
    torch.uint8: lib.HP_UINT8,
}
TORCH_DTYPES = {ours: theirs for theirs, ours in DTYPES.items()}


def address(tensor, name="tensor"):
    """Where the first element of a CPU tensor lies, an int; 0 when it has none. TypeError: no
    tensor; ValueError: another device or layout, or strides with gaps or in another order."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"expected {name} to be a torch.Tensor, given {type(tensor).__name__}")
    if tensor.device.type != "cpu":
        raise ValueError(f"expected {name} on the CPU, given one on {tensor.device}")
    if tensor.layout is not torch.strided:
        raise ValueError(f"expected {name} to be dense, given layout {tensor.layout}")
    if not tensor.is_contiguous():
        raise ValueError(f"expected {name} to be contiguous, given shape {tuple(tensor.shape)} "
                         f"with strides {tensor.stride()}; pass {name}.contiguous()")
    if tensor.is_conj() or tensor.is_neg():
        raise ValueError(f"expected {name} as its values lie in memory, given a lazily conjugated "
                         f"or negated view; pass {name}.resolve_conj().resolve_neg()")
    return tensor.data_ptr()


def pointer(tensor, name="tensor"):
    """The same as a void * of cffi; the tensor must outlive its use."""
    return ffi.cast("void *", address(tensor, name))


def dtype_of(tensor, name="tensor"):
    """The hp_dtype of a tensor's elements. TypeError, listing what there is, for another one."""
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None:
        raise TypeError(f"expected {name} of one of {', '.join(str(d)[6:] for d in DTYPES)}, given "
                        f"{tensor.dtype}")
    return dtype


def moved_as(tensor):
    """(hp_dtype, how many of them make an element), for calls that only move: any dtype, those
    that the library does not know as bytes."""
    dtype = DTYPES.get(tensor.dtype)
    return (dtype, 1) if dtype is not None else (lib.HP_UINT8, tensor.element_size())


def tensor_at(pointer, shape, dtype, owner=None):
    """A tensor over memory that is there, not copied. pointer: a void * or an int; dtype: torch's.
    owner is kept alive as long as any tensor lives that shares the storage."""
    shape = tuple(shape)
    n_bytes = torch.Size(shape).numel() * dtype.itemsize
    if n_bytes == 0:
        return torch.empty(shape, dtype=dtype)
    place = int(pointer if isinstance(pointer, int) else ffi.cast("uintptr_t", pointer))
    memory = (ctypes.c_char * n_bytes).from_address(place)
    memory.owner = owner  # torch keeps the object whose buffer it uses
    return torch.frombuffer(memory, dtype=dtype).view(shape)

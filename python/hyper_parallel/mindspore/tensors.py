# SPDX-License-Identifier: Apache-2.0
"""tensors.py - MindSpore tensors as the C library sees them: an address, a dtype, a count.

Nothing is copied: what lies in a tensor is read and written where it lies, so a tensor must be
dense and in row-major order; one that is not is refused in words, before any rank is told of the
call. PyNative mode runs operators behind the program's back: whoever hands memory to the library,
or takes it from there, calls settle() first, and then everything before it has happened.
"""

import ctypes
import math

import mindspore as ms
import numpy as np
from mindspore import Tensor, context
from mindspore.common.np_dtype import bfloat16
from mindspore.graph.api import _pynative_executor

from hyper_parallel._c import ffi, lib

DTYPES = {
    ms.float64: lib.HP_FP64,
    ms.float32: lib.HP_FP32,
    ms.float16: lib.HP_FP16,
    ms.bfloat16: lib.HP_BF16,
    ms.int64: lib.HP_INT64,
    ms.int32: lib.HP_INT32,
    ms.int8: lib.HP_INT8,
    ms.uint8: lib.HP_UINT8,
}
MS_DTYPES = {ours: theirs for theirs, ours in DTYPES.items()}
_NUMPY = {
    ms.float64: np.float64, ms.float32: np.float32, ms.float16: np.float16, ms.bfloat16: bfloat16,
    ms.int64: np.int64, ms.int32: np.int32, ms.int8: np.int8, ms.uint8: np.uint8,
}


def settle():
    """Wait until every operator that was called has run."""
    _pynative_executor.sync()


def check_mode():
    """RuntimeError in graph mode, where operators run in an order of the compiler's, and none of
    them can be told of the library's calls."""
    if context.get_context("mode") != context.PYNATIVE_MODE:
        raise RuntimeError("expected PyNative mode (mindspore.set_context(mode=mindspore."
                           "PYNATIVE_MODE)), given graph mode, which compiles cells and cannot "
                           "call the library in the middle of them")


def eager(function):
    """A decorator: MindSpore refuses the function by name inside @jit and in graph mode."""
    function.__jit_forbidden__ = True
    return function


def address(tensor, name="tensor"):
    """Where the first element of a tensor lies, an int. TypeError: no tensor; ValueError: strides
    with gaps or in another order. settle() goes before."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"expected {name} to be a mindspore.Tensor, given {type(tensor).__name__}")
    if not tensor.is_contiguous():
        raise ValueError(f"expected {name} to be contiguous, given shape {tensor.shape} with "
                         f"strides {tuple(tensor.stride())}; pass {name}.contiguous()")
    return tensor.data_ptr()


def dtype_of(tensor, name="tensor"):
    """The hp_dtype of a tensor's elements. TypeError, listing what there is, for another one."""
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None:
        raise TypeError(f"expected {name} of one of {', '.join(str(d) for d in DTYPES)}, given "
                        f"{tensor.dtype}")
    return dtype


def item_bytes(dtype):
    """Bytes of one element of a MindSpore dtype; TypeError as of dtype_of."""
    if dtype not in _NUMPY:
        raise TypeError(f"expected a dtype of {', '.join(str(d) for d in DTYPES)}, given {dtype}")
    return np.dtype(_NUMPY[dtype]).itemsize


def empty(shape, dtype):
    """A tensor in ordinary memory whose elements are anything."""
    item_bytes(dtype)
    return Tensor.from_numpy(np.empty(shape, _NUMPY[dtype]))


def zeros(shape, dtype):
    """A tensor of zeros in ordinary memory."""
    item_bytes(dtype)
    return Tensor.from_numpy(np.zeros(shape, _NUMPY[dtype]))


def tensor_at(place, shape, dtype, owner=None):
    """A tensor over memory that is there, not copied. place: an int or a pointer of cffi. owner is
    kept alive as long as any tensor lives that shares the storage."""
    shape = tuple(shape)
    n_bytes = math.prod(shape) * item_bytes(dtype)
    if n_bytes == 0:
        return empty(shape, dtype)
    place = place if isinstance(place, int) else int(ffi.cast("uintptr_t", place))
    memory = (ctypes.c_char * n_bytes).from_address(place)
    memory.owner = owner  # numpy keeps the object whose buffer it uses, and MindSpore numpy's array
    return Tensor.from_numpy(np.frombuffer(memory, _NUMPY[dtype]).reshape(shape))


def number_of(value, name):
    """A whole number, given as one or as a tensor of one element (as the original has offsets)."""
    if isinstance(value, Tensor):
        if value.size != 1:
            raise ValueError(f"expected {name} to be one number, given shape {value.shape}")
        value = value.asnumpy().reshape(-1)[0]
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"expected {name} to be a whole number, given {value!r}")
    return int(value)

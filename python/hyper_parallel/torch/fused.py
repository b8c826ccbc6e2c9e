# SPDX-License-Identifier: Apache-2.0
"""fused.py - the two fused operators for PyTorch: all-gather + matmul, matmul + reduce-scatter.

Rows are cut over the group, each rank the same number; a rank multiplies its own block at once and
the peers' where they lie. Gradients are the library's other fused products (fused.h has the table),
so nothing is gathered for a backward and kept. Matrices may have rows that lie apart, and the
weights may be transposed, as `layer.weight.t()` is.
What always holds: the library signals and waits by itself, so signal and block_size, which the
original's programs pass, are taken and not looked at.
"""

import torch
from torch.autograd.function import once_differentiable

from hyper_parallel import engine
from hyper_parallel.collective import pointer
from hyper_parallel.torch.autograd import fresh
from hyper_parallel.torch.eager import eager
from hyper_parallel.torch.groups import group_of_torch
from hyper_parallel.torch.tensors import address, dtype_of


def _rows(matrix):
    """(address, elements from a row to the next) of a matrix whose rows are dense."""
    return matrix.data_ptr(), max(matrix.stride(0), matrix.shape[1])


def _is_row_major(matrix):
    return (matrix.stride(1) == 1 or matrix.shape[1] <= 1) and (
        matrix.stride(0) >= matrix.shape[1] or matrix.shape[0] <= 1)


def _product(what, group, rows, a, b, c, n, k, **fields):
    """One fused product; b row-major or the transpose of a row-major matrix."""
    if what != "all_gather_weight_grad" and not _is_row_major(b):
        b, fields["transpose_b"] = b.t(), 1 - fields.get("transpose_b", 0)
    engine.product(what, group, [rows] * group.size, n, k, dtype_of(a), *_rows(a), *_rows(b),
                   *_rows(c), **fields)
    return c


def _like(matrix):
    return torch.empty(matrix.shape, dtype=matrix.dtype)


class _AllGatherMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b, c, gathered, group):
        ctx.save_for_backward(a, b)
        ctx.group = group
        fields = {} if gathered is None else {"gathered": pointer(gathered.data_ptr()),
                                              "ld_gathered": gathered.shape[1]}
        _product("all_gather_matmul", group, a.shape[0], a, b, c, b.shape[1], a.shape[1], **fields)
        ctx.mark_dirty(c)
        return c

    @staticmethod
    @once_differentiable
    def backward(ctx, c_grad):
        (a, b), group, c_grad = ctx.saved_tensors, ctx.group, c_grad.contiguous()
        (rows, k), n = a.shape, b.shape[1]
        a_grad = b_grad = None
        if ctx.needs_input_grad[0]:
            a_grad = _product("matmul_reduce_scatter", group, rows, c_grad, b, _like(a), k, n,
                              transpose_b=1)
        if ctx.needs_input_grad[1]:
            b_grad = _product("all_gather_weight_grad", group, rows, a, c_grad, _like(b), n, k)
        return a_grad, b_grad, None, None, None


class _MatmulReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b, group):
        ctx.save_for_backward(a, b)
        ctx.group = group
        c = torch.empty(a.shape[0] // group.size, b.shape[1], dtype=a.dtype)
        return _product("matmul_reduce_scatter", group, c.shape[0], a, b, c, b.shape[1], a.shape[1])

    @staticmethod
    @once_differentiable
    def backward(ctx, c_grad):
        (a, b), group, c_grad = ctx.saved_tensors, ctx.group, c_grad.contiguous()
        (k, n), rows = b.shape, a.shape[0] // group.size
        a_grad = b_grad = None
        if ctx.needs_input_grad[0]:
            a_grad = _product("all_gather_matmul", group, rows, c_grad, b, _like(a), k, n,
                              transpose_b=1)
        if ctx.needs_input_grad[1]:
            b_grad = _product("all_gather_weight_grad", group, rows, c_grad, a, _like(b), k, n,
                              transpose_c=1)
        return a_grad, b_grad, None


def _matrix(tensor, name, may_be_transposed=False):
    """A matrix as the library reads it. ValueError for another shape or order."""
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cpu" or tensor.dim() != 2:
        address(tensor, name)  # says what is wrong with the device, or that it is no tensor
        raise ValueError(f"expected {name} to be a matrix, given shape {tuple(tensor.shape)}")
    if not (_is_row_major(tensor) or (may_be_transposed and _is_row_major(tensor.t()))):
        raise ValueError(f"expected {name} with dense rows{' or columns' * may_be_transposed}, "
                         f"given shape {tuple(tensor.shape)} with strides {tensor.stride()}; pass "
                         f"{name}.contiguous()")
    dtype_of(tensor, name)


def _check_product(a, b, names):
    _matrix(a, names[0])
    _matrix(b, names[1], may_be_transposed=True)
    if a.shape[1] != b.shape[0] or a.dtype != b.dtype:
        raise ValueError(f"expected {names[0]} [m, k] and {names[1]} [k, n] of one dtype, given "
                         f"{tuple(a.shape)} {a.dtype} and {tuple(b.shape)} {b.dtype}")


def _expect_shape(tensor, shape, dtype, name):
    address(tensor, name)
    if tuple(tensor.shape) != shape or tensor.dtype != dtype:
        raise ValueError(f"expected {name} of shape {shape} and {dtype}, given "
                         f"{tuple(tensor.shape)} and {tensor.dtype}")


@eager
def fused_all_gather_matmul(a, b, c=None, gather_out=None, signal=None, block_size=None,
                            group=None):
    """c [size * m, n] = the members' a [m, k], one behind the other, times b [k, n], which is each
    rank's own. gather_out [size * m, k], when given, gets the gathered a; a in symmetric memory is
    read where it lies. Returns (gather_out, c). fp32, bf16 and fp16. Both gradients are the
    library's; gather_out has none. Errors: ValueError for shapes; HyperParallelError."""
    group = group_of_torch(group)
    _check_product(a, b, ("a", "b"))
    rows = group.size * a.shape[0]
    c = torch.empty(rows, b.shape[1], dtype=a.dtype) if c is None else c
    _expect_shape(c, (rows, b.shape[1]), a.dtype, "c")
    if gather_out is not None:
        _expect_shape(gather_out, (rows, a.shape[1]), a.dtype, "gather_out")
    return gather_out, _AllGatherMatmul.apply(a, b, fresh(c), gather_out, group)


@eager
def fused_matmul_reduce_scatter(x1, x2, symm=None, signal=None, reduce_op="sum", group=None):
    """[m / size, n]: this rank's rows of the sum over the members of x1 [m, k] times x2 [k, n].
    reduce_op: "sum" or "avg". symm: taken and not looked at, the library has memory of its own for
    tiles on their way. Errors: ValueError for shapes; HyperParallelError."""
    group = group_of_torch(group)
    _check_product(x1, x2, ("x1", "x2"))
    if reduce_op not in ("sum", "avg"):
        raise ValueError(f"expected reduce_op 'sum' or 'avg', given {reduce_op!r}")
    if x1.shape[0] % group.size:
        raise ValueError(f"expected rows of x1 that {group.size} ranks can share, given "
                         f"{x1.shape[0]}")
    c = _MatmulReduceScatter.apply(x1, x2, group)
    return c / group.size if reduce_op == "avg" else c

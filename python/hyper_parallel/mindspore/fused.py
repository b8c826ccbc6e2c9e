# SPDX-License-Identifier: Apache-2.0
"""fused.py - the two fused operators for MindSpore, and the matrix products of their gradients.

Rows are cut over the group, each rank the same number; a rank multiplies its own block at once and
the peers' where they lie. Gradients are the library's other fused products (fused.h has the table),
so nothing is gathered for a backward and kept.
What always holds: the library signals and waits by itself, so signal and block_size, which the
original's programs pass, are taken and not looked at.
"""

from mindspore.common._grad_function import _Function

from hyper_parallel import engine
from hyper_parallel.mindspore.autograd import settled
from hyper_parallel.mindspore.groups import group_of
from hyper_parallel.mindspore.tensors import address, dtype_of, eager, empty, settle


def _product(what, group, rows, a, b, c, n, k, **fields):
    """One fused product of row-major tensors; fields: transpose_b, transpose_c, gathered."""
    for name, tensor in (("a", a), ("b", b), ("c", c)):
        address(tensor, name)
    gathered = fields.pop("gathered", None)
    if gathered is not None:
        fields.update(gathered=engine.pointer(address(gathered)), ld_gathered=k)
    engine.product(what, group, [rows] * group.size, n, k, dtype_of(a), address(a),
                   a.shape[1], address(b), b.shape[1], address(c), c.shape[1], **fields)


class _AllGatherMatmul(_Function):
    @staticmethod
    def forward(ctx, a, b, c, gathered, group):
        ctx.operands = a, b, group
        _product("all_gather_matmul", group, a.shape[0], a, b, c, b.shape[1], a.shape[1],
                 gathered=gathered)
        ctx.mark_dirty(c)
        return c

    @staticmethod
    def backward(ctx, c_grad):
        a, b, group = ctx.operands
        c_grad = settled(c_grad)
        (rows, k), n = a.shape, b.shape[1]
        a_grad, b_grad = empty(a.shape, a.dtype), empty(b.shape, b.dtype)
        _product("matmul_reduce_scatter", group, rows, c_grad, b, a_grad, k, n, transpose_b=1)
        _product("all_gather_weight_grad", group, rows, a, c_grad, b_grad, n, k)
        return a_grad, b_grad, None, None, None


class _MatmulReduceScatter(_Function):
    @staticmethod
    def forward(ctx, a, b, c, group):
        ctx.operands = a, b, group
        _product("matmul_reduce_scatter", group, c.shape[0], a, b, c, b.shape[1], a.shape[1])
        ctx.mark_dirty(c)
        return c

    @staticmethod
    def backward(ctx, c_grad):
        a, b, group = ctx.operands
        c_grad = settled(c_grad)
        k, n = b.shape
        rows = a.shape[0] // group.size
        a_grad, b_grad = empty(a.shape, a.dtype), empty(b.shape, b.dtype)
        _product("all_gather_matmul", group, rows, c_grad, b, a_grad, k, n, transpose_b=1)
        _product("all_gather_weight_grad", group, rows, c_grad, a, b_grad, k, n, transpose_c=1)
        return a_grad, b_grad, None, None


def _check_product(a, b, names):
    for name, tensor in zip(names, (a, b)):
        address(tensor, name)
        if len(tensor.shape) != 2:
            raise ValueError(f"expected {name} to be a matrix, given shape {tensor.shape}")
    if a.shape[1] != b.shape[0] or a.dtype != b.dtype:
        raise ValueError(f"expected {names[0]} [m, k] and {names[1]} [k, n] of one dtype, given "
                         f"{a.shape} {a.dtype} and {b.shape} {b.dtype}")
    dtype_of(a)


def _expect_shape(tensor, shape, dtype, name):
    address(tensor, name)
    if tuple(tensor.shape) != shape or tensor.dtype != dtype:
        raise ValueError(f"expected {name} of shape {shape} and {dtype}, given {tensor.shape} and "
                         f"{tensor.dtype}")


@eager
def fused_all_gather_matmul(a, b, c=None, gather_out=None, signal=None, block_size=None,
                            group=None):
    """c [size * m, n] = the members' a [m, k], one behind the other, times b [k, n], which is each
    rank's own. gather_out [size * m, k], when given, gets the gathered a; a in symmetric memory is
    read where it lies. Returns (gather_out, c). Both gradients are the library's; gather_out has
    none. Errors: ValueError for shapes; HyperParallelError."""
    group = group_of(group)
    settle()
    _check_product(a, b, ("a", "b"))
    rows = group.size * a.shape[0]
    c = empty((rows, b.shape[1]), a.dtype) if c is None else c
    _expect_shape(c, (rows, b.shape[1]), a.dtype, "c")
    if gather_out is not None:
        _expect_shape(gather_out, (rows, a.shape[1]), a.dtype, "gather_out")
    return gather_out, _AllGatherMatmul.apply(a, b, c, gather_out, group)


@eager
def fused_matmul_reduce_scatter(x1, x2, symm=None, signal=None, reduce_op="sum", group=None):
    """[m / size, n]: this rank's rows of the sum over the members of x1 [m, k] times x2 [k, n].
    reduce_op: "sum" or "avg". symm: taken and not looked at, the library has memory of its own
    for tiles on their way. Errors: ValueError for shapes; HyperParallelError."""
    group = group_of(group)
    settle()
    _check_product(x1, x2, ("x1", "x2"))
    if reduce_op not in ("sum", "avg"):
        raise ValueError(f"expected reduce_op 'sum' or 'avg', given {reduce_op!r}")
    if x1.shape[0] % group.size:
        raise ValueError(f"expected rows of x1 that {group.size} ranks can share, given "
                         f"{x1.shape[0]}")
    c = empty((x1.shape[0] // group.size, x2.shape[1]), x1.dtype)
    c = _MatmulReduceScatter.apply(x1, x2, c, group)
    return c / group.size if reduce_op == "avg" else c

# SPDX-License-Identifier: Apache-2.0
"""autograd.py - each collective with its backward, as a function that MindSpore differentiates.

The forward call is a struct (collective.Call), and its backward is the library's own
hp_coll_backward on that struct: nothing is derived here. A backward runs when MindSpore's gradient
comes to it, as a collective on all ranks that ran the forward call, so all ranks must differentiate
what they computed together. max and min need their operands as they were, so copies of both are
kept while a gradient is asked for.
Source: the symmetric memory seed, section 1.5.3; mindspore.common._grad_function, which
MindSpore's own recomputation is made of.
"""

from mindspore.common._grad_function import _Function
from mindspore.graph.api import _pynative_executor

from hyper_parallel._c import ffi
from hyper_parallel.mindspore.tensors import address, empty, item_bytes, settle


def keeps_operands(op):
    """Must a reduction's operands be kept for its backward?"""
    return op in ("max", "min") and bool(_pynative_executor.requires_grad())


def settled(gradient):
    """A gradient as the library can read it: row-major, and there."""
    gradient = gradient.contiguous()
    settle()
    return gradient


def _copy(tensor):
    copy = empty(tensor.shape, tensor.dtype)
    ffi.memmove(ffi.cast("void *", copy.data_ptr()), ffi.cast("void *", tensor.data_ptr()),
                tensor.size * item_bytes(tensor.dtype))
    return copy


def _remember(ctx, call, mode, source):
    ctx.call, ctx.mode = call, mode
    ctx.shape, ctx.dtype = source.shape, source.dtype


def _keep(ctx, source, result):
    """The operands of a call from here on."""
    ctx.kept = source, _copy(result)
    ctx.call.place(*map(address, ctx.kept))


def _gradient(ctx, out_grad):
    """Run the forward call's backward: the gradient of its input."""
    in_grad = empty(ctx.shape, ctx.dtype)
    ctx.call.backward(None if out_grad is None else address(out_grad), address(in_grad), ctx.mode)
    return in_grad


class Collective(_Function):
    """apply(output, source, call, is_kept) -> output, which the call has filled from source."""

    @staticmethod
    def forward(ctx, output, source, call, is_kept):
        _remember(ctx, call, "identity", source)
        call.run()
        if is_kept:
            _keep(ctx, _copy(source), output)
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx, out_grad):
        return None, _gradient(ctx, settled(out_grad)), None, None


class InPlace(_Function):
    """apply(tensor, call, mode, is_kept) -> tensor, reduced in place."""

    @staticmethod
    def forward(ctx, tensor, call, mode, is_kept):
        _remember(ctx, call, mode, tensor)
        source = _copy(tensor) if is_kept else tensor
        call.place(address(source), address(tensor))
        call.run()
        if is_kept:
            _keep(ctx, source, tensor)
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(ctx, out_grad):
        return _gradient(ctx, settled(out_grad)), None, None, None


class Send(_Function):
    """apply(tensor, call) -> tensor as it was: its gradient is the result's own and the one that
    the receiver sends back."""

    @staticmethod
    def forward(ctx, tensor, call):
        _remember(ctx, call, "identity", tensor)
        call.run()
        return tensor

    @staticmethod
    def backward(ctx, out_grad):
        settle()
        return out_grad + _gradient(ctx, None), None


class Recv(_Function):
    """apply(tensor, depend, call) -> tensor, filled. depend: what makes the result part of a
    differentiated computation; its own gradient is zero."""

    @staticmethod
    def forward(ctx, tensor, depend, call):
        ctx.call, ctx.depend = call, depend
        call.run()
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(ctx, out_grad):
        ctx.call.backward(address(settled(out_grad)), None)
        return None, None if ctx.depend is None else ctx.depend * 0, None

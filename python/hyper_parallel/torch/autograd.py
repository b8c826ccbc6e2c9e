# SPDX-License-Identifier: Apache-2.0
"""autograd.py - each collective with its backward, as a torch.autograd.Function.

The forward call is a struct (collective.Call) and its backward the library's own hp_coll_backward
on that struct: nothing is derived here. A backward is a collective, which runs when autograd comes
to it, so all ranks that computed something together differentiate it together. Operands are kept
for max and min alone.
What always holds: where nothing is differentiated no graph is made, and torch still knows that the
output has changed.
"""

import torch
from torch.autograd.function import once_differentiable

from hyper_parallel.torch.tensors import address


def is_recorded(*tensors):
    """Does autograd want to know of a call on these?"""
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def fresh(output):
    """An output about to be overwritten whole: what it was computed from before is forgotten, so a
    buffer that is used in every step does not chain the steps."""
    if output.grad_fn is not None and not output._is_view():
        output.detach_()
    return output


def run(call, output):
    """A call that autograd does not record; output: what it writes, or None."""
    call.run()
    if output is not None:
        torch.autograd.graph.increment_version(output)
    return output


def _backward(ctx, out_grad, mode="identity"):
    """The gradient of the forward call's input."""
    in_grad = torch.empty(ctx.shape, dtype=ctx.dtype)
    out_grad = None if out_grad is None else out_grad.contiguous()
    ctx.call.backward(None if out_grad is None else address(out_grad), address(in_grad), mode)
    return in_grad


class Collective(torch.autograd.Function):
    """apply(output, source, call, keeps) -> output, which the call fills from source. keeps: is it
    a max or min, whose operands the backward reads?"""

    @staticmethod
    def forward(ctx, output, source, call, keeps):
        call.run()
        ctx.call, ctx.shape, ctx.dtype = call, source.shape, source.dtype
        if keeps:
            ctx.save_for_backward(source, output)
        ctx.mark_dirty(output)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx, out_grad):
        if ctx.saved_tensors:
            ctx.call.place(*map(address, ctx.saved_tensors))
        return None, _backward(ctx, out_grad), None, None


class AllReduce(torch.autograd.Function):
    """apply(tensor, call, mode, keeps) -> tensor, reduced in place."""

    @staticmethod
    def forward(ctx, tensor, call, mode, keeps):
        source = tensor.clone() if keeps else tensor
        call.place(address(source), address(tensor))
        call.run()
        ctx.call, ctx.mode, ctx.shape, ctx.dtype = call, mode, tensor.shape, tensor.dtype
        if keeps:
            ctx.save_for_backward(source, tensor)
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    @once_differentiable
    def backward(ctx, out_grad):
        if ctx.saved_tensors:
            ctx.call.place(*map(address, ctx.saved_tensors))
        return _backward(ctx, out_grad, ctx.mode), None, None, None


class Send(torch.autograd.Function):
    """apply(tensor, call) -> tensor as it is; its gradient is the result's own and the one that the
    receiver sends back."""

    @staticmethod
    def forward(ctx, tensor, call):
        call.run()
        ctx.call, ctx.shape, ctx.dtype = call, tensor.shape, tensor.dtype
        return tensor.view_as(tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx, out_grad):
        return out_grad + _backward(ctx, None), None


class Recv(torch.autograd.Function):
    """apply(tensor, reason, call) -> tensor, filled. reason: what requires the gradient, which
    gets none itself."""

    @staticmethod
    def forward(ctx, tensor, reason, call):
        call.run()
        ctx.call = call
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    @once_differentiable
    def backward(ctx, out_grad):
        out_grad = out_grad.contiguous()
        ctx.call.backward(address(out_grad), None)
        return None, None, None

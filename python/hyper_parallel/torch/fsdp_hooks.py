# SPDX-License-Identifier: Apache-2.0
"""fsdp_hooks.py - from the hooks of modules and of autograd to the calls of the C engine.

    forward pre-hook     hp_forward_begin, parameters are full, inputs are watched
    forward hook         hp_forward_end, parameters are shards, outputs are watched
    gradient of output   hp_backward_begin, parameters are full
    gradient of weights  to the engine
    gradients of inputs  hp_backward_end, parameters are shards

A forward inside of backward is one that activation checkpointing computes again. Non-reentrant
checkpointing keeps what that saves until it is used, perhaps after the unit has been freed: what is
computed again before the unit's own backward computes with copies then.
"""

import sys
import weakref

import torch
from torch.utils import _pytree as pytree

from hyper_parallel._c import lib
from hyper_parallel.torch.eager import eager
from hyper_parallel.torch.fsdp_units import BACKWARD, FORWARD, IDLE, RECOMPUTE

_top_hooks = torch._C._autograd._top_saved_tensors_default_hooks
_push_hooks = torch._C._autograd._push_saved_tensors_default_hooks
_pop_hooks = torch._C._autograd._pop_saved_tensors_default_hooks


def install(unit, adopt):
    """Hook the modules of a unit. adopt(module): makes the unit's tree at the first forward."""
    for module in unit.modules:
        @eager
        def before(module, args, kwargs):
            if unit.tree is None:
                adopt(module)
            return pre_forward(unit, args, kwargs)

        @eager
        def after(_module, args, kwargs, output):
            return post_forward(unit, args, kwargs, output)

        module.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
        module.register_forward_hook(after, with_kwargs=True, always_call=True)


def watch_params(unit):
    """After commit: gradients of the unit's parameters go to the engine."""
    for param in unit.params:
        if not param.is_frozen:
            param.tensor.register_post_accumulate_grad_hook(
                lambda _tensor, param=param: param.unit.tree.take_gradient(param))


# ---- tensors in arguments --------------------------------------------------------------------

def _cast(tree, dtype):
    def cast(x):
        if isinstance(x, torch.Tensor) and x.is_floating_point() and x.dtype != dtype:
            return x.to(dtype)
        return x
    return pytree.tree_map(cast, tree)


def _is_watched(x):
    return isinstance(x, torch.Tensor) and x.requires_grad


class _Inputs(torch.autograd.Function):
    """Stands between a unit and its inputs: runs when the gradients of all have come."""

    @staticmethod
    def forward(ctx, unit, *inputs):
        ctx.unit = unit
        ctx.set_materialize_grads(False)
        return inputs

    @staticmethod
    def backward(ctx, *grads):
        unit = ctx.unit
        unit.tree.finish_backward(unit)
        return (None, *grads)


def _watch_inputs(unit, args, kwargs):
    """The same arguments, seen by _Inputs."""
    leaves, shape = pytree.tree_flatten((args, kwargs))
    places = [i for i, x in enumerate(leaves) if _is_watched(x)]
    unit.has_inputs = bool(places)
    if not places:
        return args, kwargs
    for i, x in zip(places, _Inputs.apply(unit, *(leaves[i] for i in places))):
        leaves[i] = x
    return pytree.tree_unflatten(leaves, shape)


def _tensors_in(output):
    if isinstance(output, torch.Tensor):
        return [output]
    return [x for x in pytree.tree_leaves(output) if isinstance(x, torch.Tensor)]


class _Outputs:
    """Of one forward: called with the first gradient that comes to one of its outputs, which begins
    the unit's backward. It lives as long as the graph that the backward would go through."""

    def __init__(self, unit, is_outermost):
        self.unit, self.is_begun, self.has_inputs = unit, False, unit.has_inputs
        if is_outermost:
            unit.tree.awaited.append(weakref.ref(self))

    def __call__(self, _grad):
        if not self.is_begun or not self.unit.tree.in_backward:  # or once more, which is refused
            self.is_begun = True
            self.unit.has_inputs = self.has_inputs
            self.unit.tree.begin_backward(self.unit)


def _watch_outputs(unit, is_outermost, inputs, output):
    passed_on = {id(x) for x in pytree.tree_leaves(inputs)}
    outputs = _Outputs(unit, is_outermost)
    for x in _tensors_in(output):
        if x.requires_grad and id(x) not in passed_on:
            x.register_hook(outputs)


# ---- what autograd saves ---------------------------------------------------------------------

def _is_checkpointing(hooks):
    return hooks is not None and hooks[0].__module__ == "torch.utils.checkpoint"


def _push(unit):
    """Weights that autograd saves are looked up again in backward, when the unit may lie elsewhere.
    Hooks of others get all else. Those of checkpointing save nothing: they stay alone."""
    if unit.is_stable or not torch.is_grad_enabled():
        return
    others = _top_hooks(True)
    if others is None:
        pack, unpack = unit.pack, unit.unpack
    elif _is_checkpointing(others):
        return
    else:
        def pack(tensor):
            saved = unit.pack(tensor)
            return others[0](tensor) if saved is tensor else (saved,)

        def unpack(saved):
            return unit.unpack(saved[0]) if type(saved) is tuple else others[1](saved)

    _push_hooks(pack, unpack)
    unit.has_hooks = True


def _pop(unit):
    if unit.has_hooks:
        _pop_hooks()
        unit.has_hooks = False


# ---- forward ---------------------------------------------------------------------------------

def pre_forward(unit, args, kwargs):
    tree, policy = unit.tree, unit.options.mp_policy
    if policy.param_dtype is not None and policy.cast_forward_inputs:
        args, kwargs = _cast((args, kwargs), policy.param_dtype)
    unit.n_entered += 1
    if unit.n_entered > 1:  # another module of a list
        return args, kwargs
    unit.exception = sys.exc_info()[1]
    if tree.in_backward and torch._C._current_graph_task_id() == -1:
        tree.leave()  # the last backward was left in its middle
    if tree.in_backward and not tree.is_broken:
        return _compute_again(unit, args, kwargs)
    is_training = torch.is_grad_enabled()
    unit.is_outermost = tree.depth == 0
    if unit.is_outermost:
        try:
            tree.enter(is_training)
        except BaseException:
            unit.n_entered = 0
            raise
    tree.depth += 1
    if unit.is_parent:
        unit.call("hp_unit_unshard", 1)
    unit.call("hp_forward_begin")
    unit.phase = FORWARD
    unit.show()
    unit.range("forward").__enter__()
    if is_training and not unit.is_parent:
        args, kwargs = _watch_inputs(unit, args, kwargs)
    _push(unit)
    return args, kwargs


def _compute_again(unit, args, kwargs):
    if unit.is_parent:
        if not unit.is_shown:
            unit.show()
        return args, kwargs
    if unit.phase == BACKWARD:
        return args, kwargs
    is_segment = _is_checkpointing(_top_hooks(True))
    unit.call("hp_recompute_begin")
    if is_segment and not unit.is_stable:
        unit.copy_out()
        unit.call("hp_recompute_end")
        return args, kwargs
    unit.phase = RECOMPUTE
    unit.show()
    if torch.is_grad_enabled() and not is_segment:
        args, kwargs = _watch_inputs(unit, args, kwargs)
        _push(unit)
    return args, kwargs


def post_forward(unit, args, kwargs, output):
    exception = sys.exc_info()[1]
    is_left = exception is not None and exception is not unit.exception
    if is_left:
        unit.n_entered = 1
    unit.n_entered -= 1
    if unit.n_entered == 0:
        _pop(unit)
        if unit.phase == FORWARD:
            _end_forward(unit, is_left, (args, kwargs), output)
        elif unit.phase == RECOMPUTE:
            _end_again(unit, (args, kwargs), output)
    if is_left or unit.options.mp_policy.output_dtype is None:
        return output
    return _cast(output, unit.options.mp_policy.output_dtype)


def leave(unit, args, kwargs):
    """An exception that no hook was told of goes through a module's forward."""
    if unit.tree is not None and unit.n_entered:
        post_forward(unit, args, kwargs, None)


def _end_forward(unit, is_left, inputs, output):
    tree = unit.tree
    unit.phase = IDLE
    unit.range("forward").__exit__(None, None, None)
    tree.depth -= 1
    if is_left or tree.is_broken:
        tree.leave()
        return
    unit.hide()
    unit.call("hp_forward_end")
    if torch.is_grad_enabled():
        _watch_outputs(unit, unit.is_outermost, inputs, output)
    elif unit.is_outermost and tree.kind == lib.HP_EVALUATE and not tree.held:
        tree.end()


def _end_again(unit, inputs, output):
    unit.phase = IDLE
    unit.hide()
    unit.call("hp_recompute_end")
    if torch.is_grad_enabled() and not _is_checkpointing(_top_hooks(True)):
        _watch_outputs(unit, False, inputs, output)

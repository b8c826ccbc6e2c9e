# SPDX-License-Identifier: Apache-2.0
"""fsdp_hooks.py - what MindSpore tells of a unit's cells, said to the tree.

Four hooks of a cell are the engine's four calls around its compute, a hook of each parameter brings
its gradient, and hooks on what autograd saves look weights up again. Operators run behind the
program's back, so every end waits for them first.
What always holds: a forward that is run again for its backward (recompute) is no use of the unit;
no hook keeps its unit, because MindSpore keeps some where Python's collector does not see them.
"""

import sys
import weakref

from mindspore import Tensor, ops
from mindspore.graph.api import _pynative_executor

from hyper_parallel._c import lib
from hyper_parallel.mindspore.fsdp_units import (BACKWARD, FORWARD, IDLE, RECOMPUTE, is_floating)
from hyper_parallel.mindspore.tensors import check_mode, settle


def _cast(value, dtype):
    """Floating tensors in it, in lists and dicts too, cast."""
    if isinstance(value, Tensor):
        return ops.cast(value, dtype) if is_floating(value) and value.dtype != dtype else value
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_cast(v, dtype) for v in value)
    if isinstance(value, dict):
        return {key: _cast(v, dtype) for key, v in value.items()}
    return value


def _weakly(owner, function):
    """function(owner), for a hook: whatever it is told, and without keeping the owner."""
    there = weakref.ref(owner)
    return lambda *_told: function(there())


def install(unit, adopt):
    """Put the hooks on a unit's cells. adopt(cell): makes the tree, at the first forward."""

    def pre_forward(cell, args, kwargs):
        check_mode()
        if unit.tree is None:
            adopt(cell)
        return _pre_forward(unit, args, kwargs)

    for cell in unit.cells:
        cell.register_forward_pre_hook(pre_forward, with_kwargs=True)
        cell.register_forward_hook(lambda _cell, _args, output: _post_forward(unit, output),
                                   always_call=True)
        cell.register_backward_pre_hook(_weakly(unit, _pre_backward))
        cell.register_backward_hook(_weakly(unit, _post_backward))
        for hook in (cell._cell_backward_pre_hook, cell._cell_backward_hook):
            hook.cell = weakref.proxy(cell)  # MindSpore never frees the hook, nor what it has
        cell.register_saved_tensors_hooks(*_saved_hooks(unit, cell))


def _saved_hooks(unit, cell):
    """The unit's hooks for what is saved; the cell's own, where it has some, get all else."""
    theirs_pack, theirs_unpack = cell._saved_tensors_pack_hook, cell._saved_tensors_unpack_hook
    if theirs_pack is None:
        return unit.pack, unit.unpack

    def pack(tensor):
        saved = unit.pack(tensor)
        return saved if len(saved) > 1 else (theirs_pack(saved[0]),)

    def unpack(saved):
        return unit.unpack(saved) if len(saved) > 1 else theirs_unpack(saved[0])

    return pack, unpack


def watch_params(unit):
    """Gradients of the unit's parameters go to the engine."""
    for param in unit.params:
        if not param.is_frozen:
            param.tensor.register_hook(_taker(param))


def _taker(param):
    there = weakref.ref(param)

    def take(gradient):
        param = there()
        return param.unit.tree.take_gradient(param, gradient)

    return take


def _pre_forward(unit, args, kwargs):
    tree, policy = unit.tree, unit.options.mp_policy
    unit.n_entered += 1
    if unit.n_entered == 1:
        try:
            _begin_forward(unit, tree)
        except BaseException:
            unit.n_entered = 0
            raise
    if policy.param_dtype is not None and policy.cast_forward_inputs:
        args, kwargs = _cast((args, kwargs), policy.param_dtype)
    return args, kwargs


def _begin_forward(unit, tree):
    if tree.in_backward and not tree.is_broken:
        _begin_again(unit)
        return
    unit.is_outermost = tree.depth == 0
    if unit.is_outermost:
        tree.enter(bool(_pynative_executor.requires_grad()))
    if unit.is_parent:
        unit.call("hp_unit_unshard", 1)
    unit.call("hp_forward_begin")
    tree.depth += 1
    unit.phase = FORWARD
    unit.show()


def _begin_again(unit):
    """In backward, recomputed."""
    if unit.is_parent:
        if not unit.is_shown:
            unit.show()
    elif unit.phase != BACKWARD:
        unit.call("hp_recompute_begin")
        unit.phase = RECOMPUTE
        unit.show()


def _post_forward(unit, output):
    is_left = output is None and sys.exc_info()[1] is not None
    unit.n_entered = 0 if is_left else unit.n_entered - 1
    if unit.n_entered == 0 and unit.phase in (FORWARD, RECOMPUTE):
        _end_forward(unit, is_left)
    if is_left or unit.options.mp_policy.output_dtype is None:
        return None
    return _cast(output, unit.options.mp_policy.output_dtype)


def _end_forward(unit, is_left):
    tree, was, unit.phase = unit.tree, unit.phase, IDLE
    if was == RECOMPUTE:
        unit.hide()
        unit.call("hp_recompute_end")
        return
    tree.depth -= 1
    if is_left or tree.is_broken:
        tree.leave()
        return
    settle()
    unit.hide()
    unit.call("hp_forward_end")
    if unit.is_outermost and tree.kind == lib.HP_EVALUATE and not tree.held:
        tree.end()


def _pre_backward(unit):
    unit.tree.begin_backward(unit)


def _post_backward(unit):
    if unit.phase == BACKWARD:
        unit.tree.leave_backward(unit)

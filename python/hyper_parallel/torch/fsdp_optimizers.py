# SPDX-License-Identifier: Apache-2.0
"""fsdp_optimizers.py - a step of any optimizer of torch is an update to the engine.

Hooks before and after every step find the trees whose parameters the optimizer has. In between the
shards are the optimizer's to write; a closure that computes loss and gradients in the step ends
the update and begins it again.
"""

import weakref

import torch
from torch.optim import optimizer as torch_optimizer

_checked = weakref.WeakSet()  # optimizers


def _trees_of(optimizer):
    params = (getattr(p, "_hyper_parallel", None)
              for group in optimizer.param_groups for p in group["params"])
    trees = {param.unit.tree for param in params if param is not None}
    return sorted(trees, key=lambda tree: tree.order)


def _check_state(optimizer):
    """Some optimizers make their state in their constructor, perhaps before there were shards."""
    if optimizer in _checked:
        return
    _checked.add(optimizer)
    for tensor, state in optimizer.state.items():
        param = getattr(tensor, "_hyper_parallel", None)
        for value in state.values() if param is not None else ():
            is_whole = isinstance(value, torch.Tensor) and value.shape == param.shape
            if is_whole and value.ndim and value.shape != param.shard.shape:
                raise RuntimeError(
                    f"expected state of shape {tuple(param.shard.shape)} for {param.name}, given "
                    f"{tuple(value.shape)}: call model.commit() before "
                    f"{type(optimizer).__name__} is made, so that it sees shards")


def _before_step(optimizer, _args, _kwargs):
    trees = _trees_of(optimizer)
    if trees:
        _check_state(optimizer)
    for tree in trees:
        tree.begin_update()
        tree.in_optimizer = True


def _after_step(optimizer, _args, _kwargs):
    for tree in _trees_of(optimizer):
        tree.in_optimizer = False
        tree.end_update()


def install():
    """Watch the steps of all optimizers of this process from here on; once."""
    torch_optimizer.register_optimizer_step_pre_hook(_before_step)
    torch_optimizer.register_optimizer_step_post_hook(_after_step)

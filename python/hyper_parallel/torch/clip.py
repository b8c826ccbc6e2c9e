# SPDX-License-Identifier: Apache-2.0
"""clip.py - the norm of all gradients of a sharded model, and their scaling.

The C engine finds the exact norm, the same bits on any mesh, and scales in place. Gradients of
parameters that no unit has are counted as every rank has them, once.
"""

import math

import torch

from hyper_parallel._c import ffi


def _given_params(parameters):
    if isinstance(parameters, torch.nn.Module):
        return list(parameters.parameters())
    return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)


def _take_in(tree):
    """What is in param.grad is what the engine has: the user may have put something else there."""
    for param in tree.params():
        if param.is_frozen:
            continue
        grad, shard = param.gradient(), param.gradient_shard()
        if grad is shard:
            continue
        if grad is None:
            shard.zero_()
        else:
            shard.copy_(grad)
            if not param.has_main_grad:
                param.tensor.grad = shard


def _give_back(tree):
    """A main_grad is a tensor of its own: it gets what the engine has scaled."""
    for param in tree.params():
        if param.has_main_grad and not param.is_frozen and param.gradient() is not None:
            param.gradient().copy_(param.gradient_shard())


def _norm(tree, max_norm, norm_type):
    out = ffi.new("double *")
    tree.call("hp_clip_grad_norm", max_norm, norm_type, out)
    if max_norm < math.inf:
        _give_back(tree)
    return out[0]


def _together(norms, norm_type):
    if norm_type == math.inf:
        return max(norms, default=0.0)
    return sum(norm ** norm_type for norm in norms) ** (1.0 / norm_type)


@torch.no_grad()
def clip_grad_norm_(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    """Scale all gradients by min(1, max_norm / (norm + 1e-6)); returns the norm before that, a
    tensor of one fp32 element. Collective.

    parameters: a module or an iterable of parameters, with all trainable ones of each model in it;
    where the policy has apply_grad_on_fp32_main_grad their gradients are those in main_grad.
    norm_type: 1, 2 or infinity. A norm that is not finite scales nothing, or is a RuntimeError with
    error_if_nonfinite. foreach: taken for torch's sake. Errors: ValueError."""
    norm_type = float(norm_type)
    if norm_type not in (1.0, 2.0, math.inf):
        raise ValueError(f"expected norm_type 1, 2 or inf, given {norm_type}")
    if not max_norm >= 0:
        raise ValueError(f"expected max_norm of 0 or more, given {max_norm}")
    given = _given_params(parameters)
    managed = [p._hyper_parallel for p in given if hasattr(p, "_hyper_parallel")]
    others = [p.grad for p in given if not hasattr(p, "_hyper_parallel") and p.grad is not None]
    trees = sorted({param.unit.tree for param in managed}, key=lambda tree: tree.order)
    here = set(managed)
    for tree in trees:
        tree.settle()
        missing = [p.name for p in tree.params() if not p.is_frozen and p not in here]
        if missing:
            raise ValueError("expected all parameters of a model, whose norm is one, given some "
                             f"without {missing[0]}")
        _take_in(tree)
    is_one = len(trees) == 1 and not others
    norms = [_norm(tree, max_norm if is_one else math.inf, norm_type) for tree in trees]
    norms += [torch.linalg.vector_norm(grad.double(), norm_type).item() for grad in others]
    total = norms[0] if is_one else _together(norms, norm_type)
    if error_if_nonfinite and not math.isfinite(total):
        raise RuntimeError(f"expected a finite norm of the gradients, it is {total}")
    factor = max_norm / (total + 1e-6)
    if not is_one and math.isfinite(total) and factor < 1:
        grads = [p.gradient() for p in managed if not p.is_frozen]
        for grad in {id(grad): grad for grad in grads + others if grad is not None}.values():
            grad.mul_(factor)
    return torch.tensor(total, dtype=torch.float32)

# SPDX-License-Identifier: Apache-2.0
"""state.py - the weights of a sharded network under their names, in and out; the gradients' norm.

A state dict is whole (every parameter complete, equal on all ranks) or this rank's shards. Weights
are the engine's masters, fp32 whatever the policy computes with. What is loaded is checked before
anything is changed, and is the engine's from the next forward on.
"""

import math

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from hyper_parallel._c import check, ffi, lib
from hyper_parallel.collective import Call
from hyper_parallel.mindspore.tensors import address, dtype_of, empty, settle


def _managed(cell):
    """{name: Param} of the parameters of a cell that units have."""
    return {name: tensor._hyper_parallel for name, tensor in cell.parameters_and_names()
            if hasattr(tensor, "_hyper_parallel")}


def _gather(tensor, counts, group):
    """The members' tensors, flat, one behind the other; counts: of their elements."""
    out = empty((sum(counts),), tensor.dtype)
    if out.size:
        Call("all_gather_v", group, address(tensor), address(out), count=counts[group.rank],
             out_counts=counts, dtype=dtype_of(tensor)).run()
    return out.asnumpy()


def _whole(param):
    """The complete parameter, a tensor of its own. Collective over the shard group."""
    mesh, shard = param.unit.options.mesh, param.tensor.contiguous()
    settle()
    if mesh.shape[-1] == 1 or param.shard_dim is None:
        return shard.copy().reshape(param.shape)
    group = param.unit.shard_group()
    counts = _gather(Tensor(np.array([param.n_elements])), [1] * group.size, group).tolist()
    values = _gather(shard, counts, group)
    dim = param.shard_dim
    if dim and param.unit.options.mode != "mapped":
        rest = (*param.shape[:dim], -1, *param.shape[dim + 1:])
        parts = np.split(values, np.cumsum(counts)[:-1])
        values = np.concatenate([part.reshape(rest) for part in parts], dim)
    return Tensor.from_numpy(np.ascontiguousarray(values.reshape(param.shape)))


def get_model_state_dict(cell, full_state_dict=True):
    """{name: tensor} of a sharded network: whole parameters, equal on all ranks (collective), or
    with full_state_dict=False copies of this rank's shards. Parameters that no unit has are as they
    are."""
    for unit in {id(p.unit): p.unit for p in _managed(cell).values()}.values():
        unit.check_idle("get_model_state_dict")
    return {name: _value(tensor, full_state_dict) for name, tensor in cell.parameters_and_names()}


def _value(tensor, is_whole):
    param = getattr(tensor, "_hyper_parallel", None)
    if param is not None and is_whole:
        return _whole(param)
    settle()
    return Tensor(tensor.asnumpy().copy())


def set_model_state_dict(cell, state_dict, strict=True):
    """Load {name: tensor}, each whole or this rank's shard. Errors, with nothing changed:
    RuntimeError for missing and unexpected names (strict), ValueError for shapes."""
    tensors = dict(cell.parameters_and_names())
    missing = sorted(set(tensors) - set(state_dict))
    unexpected = sorted(set(state_dict) - set(tensors))
    if strict and (missing or unexpected):
        raise RuntimeError(f"expected the names of the network, given a state dict without "
                           f"{missing} and with {unexpected} beside")
    named = [(name, tensors[name], value) for name, value in state_dict.items() if name in tensors]
    for name, tensor, value in named:
        _check_shape(name, tensor, value)
    for _, tensor, value in named:
        param = getattr(tensor, "_hyper_parallel", None)
        if param is not None:
            param.unit.check_idle("set_model_state_dict")
            param.load(value)
        else:
            tensor.set_data(value)


def _check_shape(name, tensor, value):
    param = getattr(tensor, "_hyper_parallel", None)
    shapes = (param.shape, param.shard_shape) if param is not None else (tuple(tensor.shape),)
    if not isinstance(value, Tensor) or tuple(value.shape) not in shapes:
        raise ValueError(f"expected {name} as a tensor of shape {' or '.join(map(str, shapes))}, "
                         f"given {getattr(value, 'shape', type(value).__name__)}")


def clip_grad_norm_(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False):
    """Scale the gradients that the last backward has left, which value_and_grad has given out, by
    min(1, max_norm / (norm + 1e-6)), in place; returns the norm before that, a fp32 tensor. The
    same bits on any mesh. Between value_and_grad and the optimizer; collective.

    parameters: a cell or its parameters, of one sharded network. norm_type: 1, 2 or infinity. A
    norm that is not finite scales nothing, or is a RuntimeError with error_if_nonfinite."""
    norm_type = float(norm_type)
    if norm_type not in (1.0, 2.0, math.inf):
        raise ValueError(f"expected norm_type 1, 2 or inf, given {norm_type}")
    if not max_norm >= 0:
        raise ValueError(f"expected max_norm of 0 or more, given {max_norm}")
    tensors = parameters.trainable_params() if hasattr(parameters, "trainable_params") else list(
        parameters)
    trees = {id(t._hyper_parallel.unit.tree): t._hyper_parallel.unit.tree for t in tensors
             if hasattr(t, "_hyper_parallel")}
    if len(trees) != 1 or None in trees.values() or not all(
            hasattr(t, "_hyper_parallel") for t in tensors):
        raise ValueError("expected the parameters of one sharded network after its first backward")
    tree, out = next(iter(trees.values())), ffi.new("double *")
    settle()
    check(lib.hp_clip_grad_norm(tree.handle, max_norm, norm_type, out))
    if error_if_nonfinite and not math.isfinite(out[0]):
        raise RuntimeError(f"expected a finite norm of the gradients, it is {out[0]}")
    return ops.cast(Tensor(out[0], ms.float64), ms.float32)

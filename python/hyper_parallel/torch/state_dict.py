# SPDX-License-Identifier: Apache-2.0
"""state_dict.py - the weights of a sharded model under their names, in and out.

A state dict is whole (every parameter complete, equal on all ranks) or sharded: DTensors where
torch.distributed is initialized, so that torch.distributed.checkpoint saves and loads them, else
this rank's shards. Weights are those of the engine's masters, fp32 whatever the policy computes
with. What is loaded is checked before anything is written.
"""

import torch

from hyper_parallel._c import check, lib
from hyper_parallel.torch.groups import world_of_torch
from hyper_parallel.torch.mesh import is_torch_mesh, mesh_handle
from hyper_parallel.torch.tensors import moved_as, pointer


def _option(options, name):
    return bool(getattr(options, name, False)) if options is not None else False


def _managed(module):
    """{name: Param} of all parameters of a module that a committed unit has."""
    return {name: tensor._hyper_parallel
            for name, tensor in module.named_parameters(remove_duplicate=False)
            if hasattr(tensor, "_hyper_parallel")}


def _trees(params):
    trees = {param.unit.tree for param in params.values()}
    return sorted(trees, key=lambda tree: tree.order)


# ---- out -------------------------------------------------------------------------------------

def whole(param):
    """The complete parameter, from the shards of all ranks. Collective over the shard group."""
    tree = param.unit.tree
    shard = param.shard
    if tree.n_shards == 1 or param.shard_dim is None:
        return shard.clone().reshape(param.shape)
    n_elements = torch.Size(param.shape).numel()
    if tree.mode == "mapped":
        return _gather_flat(param, tree, n_elements)
    dim = param.shard_dim
    rows = param.shape[dim] if param.shape else 1
    chunk = -(-rows // tree.n_shards)
    lead, rest = param.shape[:dim], param.shape[dim + 1:]
    padded = shard.new_zeros((*lead, chunk, *rest))
    if shard.numel():
        padded.narrow(dim, 0, shard.shape[dim] if param.shape else 1).copy_(
            shard.reshape((*lead, -1, *rest)))
    gathered = _all_gather(padded, tree)
    full = torch.cat(list(gathered.unbind(0)), dim=dim)
    return full.narrow(dim, 0, rows).reshape(param.shape).contiguous()


def _all_gather(tensor, tree):
    """[n_shards, *shape], in the order of ranks."""
    out = tensor.new_empty((tree.n_shards, *tensor.shape))
    group = lib.hp_mesh_group(mesh_handle(tree.mesh), tree.n_dims - 1)
    dtype, times = moved_as(tensor)
    if tensor.numel():
        check(lib.hp_all_gather(group, pointer(tensor), pointer(out), tensor.numel() * times,
                                dtype))
    return out


def _gather_flat(param, tree, n_elements):
    """Shards of mode mapped are ranges of elements, of any length."""
    spans = _all_gather(torch.tensor(param.range, dtype=torch.int64), tree).tolist()
    most = max(end - begin for begin, end in spans)
    padded = param.shard.new_zeros(most)
    padded[:param.shard.numel()] = param.shard
    gathered = _all_gather(padded, tree)
    full = param.shard.new_empty(n_elements)
    for part, (begin, end) in zip(gathered, spans):
        full[begin:end] = part[:end - begin]
    return full.reshape(param.shape)


def _sharded(param):
    """A DTensor over the shard where that can say what it is, else the shard."""
    mesh = param.unit.tree.mesh
    shard = param.shard.detach()
    if not is_torch_mesh(mesh) or param.unit.tree.mode == "mapped" or not param.shape:
        return shard
    from torch.distributed.tensor import DTensor, Replicate, Shard

    own = Replicate() if param.shard_dim is None else Shard(param.shard_dim)
    placements = [Replicate()] * (mesh.ndim - 1) + [own]
    stride = torch.empty(param.shape, device="meta").stride()
    return DTensor.from_local(shard, mesh, placements, run_check=False,
                              shape=torch.Size(param.shape), stride=stride)


def get_model_state_dict(model, *, submodules=None, options=None):
    """{name: tensor} of a module's parameters and persistent buffers. Collective.

    options: torch.distributed.checkpoint.state_dict.StateDictOptions or None. full_state_dict:
    whole tensors on every rank; with cpu_offload too, on rank 0 alone and {} on the others. Else
    shards, DTensors where torch.distributed is initialized and made the mesh; frozen ones not with
    ignore_frozen_params.
    submodules: the names in these modules alone."""
    managed = _managed(model)
    for tree in _trees(managed):
        tree.settle()
        tree.take_data()
    names = _names_in(model, submodules)
    is_full = _option(options, "full_state_dict")
    out, wholes = {}, {}
    for name, value in model.state_dict().items():
        param = managed.get(name)
        if names is not None and name not in names:
            continue
        if param is not None and param.is_frozen and _option(options, "ignore_frozen_params"):
            continue
        if param is None:
            out[name] = value
        elif not is_full:
            out[name] = _sharded(param)
        else:
            if param not in wholes:
                wholes[param] = whole(param)
            out[name] = wholes[param]
    is_elsewhere = is_full and _option(options, "cpu_offload") and world_of_torch().rank
    return {} if is_elsewhere else out


def _names_in(model, submodules):
    if submodules is None:
        return None
    prefixes = [name for name, module in model.named_modules() if module in set(submodules)]
    return {name for name in model.state_dict() if any(
        not prefix or name.startswith(prefix + ".") for prefix in prefixes)}


# ---- in --------------------------------------------------------------------------------------

def _slice(param, value):
    """This rank's shard of a whole value."""
    if param.unit.tree.mode == "mapped" and param.shard_dim is not None:
        return value.reshape(-1)[param.range[0]:param.range[1]]
    if param.shard_dim is None or param.unit.tree.n_shards == 1:
        return value
    if not param.shape:
        return value.reshape(-1)[param.range[0]:param.range[1]].reshape(param.shard_shape)
    return value.narrow(param.shard_dim, param.range[0], param.range[1] - param.range[0])


def _local(param, value):
    """This rank's shard of what was given: a DTensor, a whole tensor or the shard."""
    if not isinstance(value, torch.Tensor):
        raise ValueError(f"{param.name}: expected a tensor, given {type(value).__name__}")
    if hasattr(value, "to_local"):
        if tuple(value.shape) == param.shape and value.to_local().shape == param.shard.shape:
            return value.to_local()
        value = value.full_tensor()
    if tuple(value.shape) == param.shape:
        return _slice(param, value)
    if tuple(value.shape) == tuple(param.shard.shape):
        return value
    raise ValueError(f"{param.name}: expected shape {param.shape}, or {tuple(param.shard.shape)} "
                     f"for this rank's shard, given {tuple(value.shape)}")


def load_shards(module, state_dict, strict, load):
    """Load into a committed module; load: nn.Module.load_state_dict of it."""
    managed = _managed(module)
    for tree in _trees(managed):
        tree.settle()
    local = {name: _local(managed[name], value) if name in managed else value
             for name, value in state_dict.items()}
    if strict:  # before anything is written
        known = set(module.state_dict())
        missing, unexpected = known - set(local), set(local) - known
        if missing or unexpected:
            raise RuntimeError(f"expected the names of the model, given none for {sorted(missing)} "
                               f"and {sorted(unexpected)} that it has not")
    trees = _trees(managed)
    for tree in trees:
        tree.begin_update()
    try:
        return load(local, strict=strict)
    finally:
        for tree in trees:
            tree.end_update()


def _broadcast(model, state_dict):
    """Rank 0's whole values on every rank, one after the other."""
    out = {}
    world = world_of_torch()
    managed = _managed(model)
    for name, own in model.state_dict().items():
        param = managed.get(name)
        shape = own.shape if param is None else param.shape
        dtype = own.dtype if param is None else param.shard.dtype
        value = torch.empty(shape, dtype=dtype)
        if world.rank == 0:
            value.copy_(state_dict[name])
        if value.numel():
            kind, times = moved_as(value)
            check(lib.hp_broadcast(world.group.handle, pointer(value), value.numel() * times, kind,
                                   0))
        out[name] = value
    return out


def set_model_state_dict(model, model_state_dict, *, options=None):
    """Load {name: tensor}: whole tensors, DTensors or this rank's shards. Collective.

    options: strict (True); broadcast_from_rank0: rank 0 alone has whole tensors. Returns the names
    that are missing and unexpected, as load_state_dict. Errors: ValueError, RuntimeError; the model
    is as it was then."""
    strict = True if options is None else bool(getattr(options, "strict", True))
    if _option(options, "broadcast_from_rank0"):
        model_state_dict = _broadcast(model, model_state_dict)
    if _managed(model):
        return load_shards(model, model_state_dict, strict, _load_of(model))
    return model.load_state_dict(model_state_dict, strict=strict)


def _load_of(model):
    return lambda values, strict: torch.nn.Module.load_state_dict(model, values, strict=strict)

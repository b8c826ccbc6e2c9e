# SPDX-License-Identifier: Apache-2.0
"""fsdp.py - fully_shard for torch modules, on the C engine.

fully_shard marks a module as a unit: its parameters, but for those of units inside it, are gathered
around its compute and kept as shards else. Call it for the layers first and the whole model last,
then make the optimizer. The engine is made at the first forward, which is collective; until then
parameters are whole, and can be initialized or loaded as ever.
Source: PyTorch's fully_shard; the original's names where it adds to them.
"""

import itertools
from dataclasses import dataclass

from torch import nn

from hyper_parallel.torch import fsdp_hooks as hooks
from hyper_parallel.torch import fsdp_optimizers as optimizers
from hyper_parallel.torch import fsdp_tree as trees
from hyper_parallel.torch.fsdp_adopt import adopt
from hyper_parallel.torch.fsdp_commit import mode_of
from hyper_parallel.torch.fsdp_module import HSDPModule, check_bool
from hyper_parallel.torch.fsdp_policies import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
)
from hyper_parallel.torch.fsdp_units import Unit
from hyper_parallel.torch.mesh import check_mesh

__all__ = ["CPUOffloadPolicy", "HSDPModule", "MixedPrecisionPolicy",
           "OffloadPolicy", "fully_shard", "hsdp_sync_stream"]

optimizers.install()
_classes = {}
_order = itertools.count()


@dataclass
class _Options:
    mesh: object
    reshard_after_forward: bool | None
    placement: object
    mp_policy: MixedPrecisionPolicy
    offload: bool
    ignored: frozenset
    replicated: frozenset
    comm_fusion: bool
    comm_fusion_zero_copy: bool | None
    mode: str | None
    reduce_op: str = "avg"
    factor: float = 1.0
    n_spans: int = 0  # room for a trace


def _params_of(name, params):
    if params is None:
        return frozenset()
    if not isinstance(params, (set, frozenset, list, tuple)):
        raise TypeError(f"expected {name} to be a set of parameters, given "
                        f"{type(params).__name__}")
    for param in params:
        if not isinstance(param, nn.Parameter):
            raise TypeError(f"expected {name} to hold parameters, given {type(param).__name__}")
    return frozenset(params)


def _root_most(module):
    modules = [module] if isinstance(module, nn.Module) else module
    if not isinstance(modules, (list, tuple)) or not modules or not all(
            isinstance(m, nn.Module) for m in modules):
        raise ValueError("expected a module or a list of modules that is not empty, given "
                         f"{module!r}")
    inner = {id(child) for m in modules for child in m.modules() if child is not m}
    found = {id(m): m for m in modules if id(m) not in inner}
    for m in found.values():
        if isinstance(m, (nn.ModuleList, nn.ModuleDict)):
            raise ValueError(f"expected a module with a forward, given {type(m).__name__}: give "
                             "its elements")
        if isinstance(m, HSDPModule):
            raise ValueError(f"expected a module that is no unit yet, given {type(m).__name__}")
    return list(found.values())


def fully_shard(module, *, mesh=None, reshard_after_forward=True, shard_placement_fn=None,
                mp_policy=None, offload_policy=None, ignored_params=None, replicate_params=None,
                comm_fusion=False, comm_fusion_zero_copy=None, mode=None):
    """Make a module a unit, or a list of modules one unit. Returns the same object, whose class
    becomes a subclass of its own and of HSDPModule.

    mesh: of 1 dimension (FSDP) or 2 (HSDP: replicate, shard), over all ranks; None: 1 dimension.
    reshard_after_forward: free the full parameters between forward and backward. A unit that has
    others inside keeps them, whatever is said. None: as True.
    shard_placement_fn(parameter): a placement Shard(dim) with its dim, or None, which is dim 0.
    ignored_params: left alone, neither sharded nor reduced; replicate_params: kept whole on every
    rank, reduced over all. comm_fusion: one gather and one reduction for a unit, through packed
    buffers; comm_fusion_zero_copy: packed where the gather takes it from (None: True).
    mode: in place of the two, a name of the C engine's: "per-param", "fused", "fused-zero-copy",
    "mapped" (ranks of a node read one copy of the parameters in shared memory; nothing is gathered;
    shards are flat), "auto" (one of these, by size).
    Mesh, precision, mode and offload must be alike in all units of a model.
    Errors: ValueError, TypeError, HyperParallelError. Not collective; the first forward is."""
    modules = _root_most(module)
    check_mesh(mesh)
    if reshard_after_forward is None:
        reshard_after_forward = True
    policy = MixedPrecisionPolicy() if mp_policy is None else mp_policy
    offload = OffloadPolicy() if offload_policy is None else offload_policy
    if not isinstance(policy, MixedPrecisionPolicy):
        raise TypeError(f"expected a MixedPrecisionPolicy, given {type(policy).__name__}")
    if not isinstance(offload, OffloadPolicy):
        raise TypeError(f"expected an OffloadPolicy, given {type(offload).__name__}")
    if comm_fusion_zero_copy is not None:
        check_bool("comm_fusion_zero_copy", comm_fusion_zero_copy)
    options = _Options(mesh, check_bool("reshard_after_forward", reshard_after_forward),
                       shard_placement_fn, policy, isinstance(offload, CPUOffloadPolicy),
                       _params_of("ignored_params", ignored_params),
                       _params_of("replicate_params", replicate_params),
                       check_bool("comm_fusion", comm_fusion), comm_fusion_zero_copy, mode)
    mode_of(options)
    unit = Unit(modules, options, next(_order))
    for m in modules:
        m._hyper_parallel_unit = unit
        _swap_class(m)
        _is_top_of(m)
    hooks.install(unit, adopt)
    return module


def _is_top_of(module):
    """The outermost unit around a module, whose tree it will be in, is known before any forward."""
    inside = set(map(id, module.modules()))
    for m in module.modules():
        top = m.__dict__.get("_hyper_parallel_top", m)
        if id(top) in inside:
            object.__setattr__(m, "_hyper_parallel_top", module)  # no child of m


def _swap_class(module):
    base = type(module)
    if base not in _classes:
        _classes[base] = type(f"HSDP{base.__name__}", (HSDPModule, base), {
            "__module__": base.__module__, "__doc__": base.__doc__})
    module.__class__ = _classes[base]


def hsdp_sync_stream():
    """Until all gradients that are on their way are there: passes that wait for a backward which
    did not come are ended. Collective."""
    for tree in trees.all_trees():
        tree.settle()

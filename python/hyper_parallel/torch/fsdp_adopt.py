# SPDX-License-Identifier: Apache-2.0
"""fsdp_adopt.py - from modules that fully_shard has marked to units with parameters, and one tree.

It happens once, at the first forward: the outermost unit's module says which units there are, in
the order of its modules. A parameter belongs to the innermost unit around it; of units that share
one, to the first that fully_shard was given.
"""

import torch

from hyper_parallel.torch import fsdp_hooks as hooks
from hyper_parallel.torch.fsdp_tree import Tree
from hyper_parallel.torch.fsdp_units import Param


def units_in(module):
    """The units of a module and of what it holds, in the order of modules."""
    found = {}
    for m in module.modules():
        unit = m.__dict__.get("_hyper_parallel_unit")
        if unit is not None:
            found.setdefault(id(unit), unit)
    return list(found.values())


def _name_of(module, names):
    return names.get(id(module)) or "root"


def _claim(unit, claimed, module_names):
    """The parameters that are the unit's: those of its modules which no unit inside has."""
    for top in unit.modules:
        prefix = module_names.get(id(top), "")
        for name, tensor in top.named_parameters():
            if id(tensor) in claimed or tensor in unit.options.ignored:
                continue
            claimed.add(id(tensor))
            path, _, key = name.rpartition(".")
            _add_param(unit, tensor, f"{prefix}.{name}" if prefix else name,
                       (top.get_submodule(path), key))


def _add_param(unit, tensor, name, owner):
    if tensor.is_meta:
        raise RuntimeError(f"expected values in {name} before the first forward, it is on the meta "
                           "device: model.to_empty(device='cpu') and initialize it")
    if type(tensor.data) is not torch.Tensor:
        raise NotImplementedError(f"expected a plain tensor in {name}, given "
                                  f"{type(tensor.data).__name__}")
    if tensor.device.type != "cpu":
        raise RuntimeError(f"expected {name} on the CPU, given {tensor.device}")
    unit.params.append(Param(unit, len(unit.params), tensor, name,
                             _shard_dim(unit.options, tensor, name), owner))


def _shard_dim(options, tensor, name):
    if tensor in options.replicated:
        return None
    placement = options.placement(tensor) if options.placement else None
    if placement is None:
        return 0
    dim = getattr(placement, "dim", None)
    if not isinstance(dim, int) or not -tensor.ndim <= dim < max(1, tensor.ndim):
        raise ValueError(f"expected shard_placement_fn to give None or a Shard of a dimension of "
                         f"{name}, given {placement!r}")
    return dim % max(1, tensor.ndim)


def _inner_first(units):
    """(unit, the units inside it): those inside come first, else in the order of fully_shard."""
    inside = {unit: [u for m in unit.modules for u in units_in(m) if u is not unit]
              for unit in units}
    return sorted(inside.items(), key=lambda item: (len(item[1]), item[0].order))


def adopt(module):
    """Make one tree of all units of a module, or of the outermost that it is in; collective."""
    module = module.__dict__["_hyper_parallel_top"]
    units = units_in(module)
    for unit in units:
        if unit.tree is not None:
            raise ValueError(f"expected units that belong to no other model, given {unit.name}")
    module_names = {id(m): name for name, m in module.named_modules()}
    claimed = set()
    for unit in units:
        claimed |= {id(tensor) for tensor in unit.options.ignored}
    for unit, inner in _inner_first(units):
        unit.params.clear()
        unit.name = ", ".join(_name_of(m, module_names) for m in unit.modules)
        unit.is_parent = len(unit.modules) > 1 or bool(inner)
        if unit.is_parent:
            unit.options.reshard_after_forward = False
        _claim(unit, claimed, module_names)
    try:
        tree = Tree(module, units)
    except BaseException:
        for unit in units:
            unit.tree = unit.handle = None
        raise
    for unit in units:
        hooks.watch_params(unit)
    return tree

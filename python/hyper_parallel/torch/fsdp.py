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

import torch
from torch import nn

from hyper_parallel.torch import fsdp_hooks as hooks
from hyper_parallel.torch import fsdp_tree as trees
from hyper_parallel.torch.fsdp_policies import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
)
from hyper_parallel.torch.fsdp_units import Param, Unit
from hyper_parallel.torch.mesh import check_mesh
from hyper_parallel.torch.state_dict import load_shards

__all__ = ["CPUOffloadPolicy", "HSDPModule", "MixedPrecisionPolicy",
           "OffloadPolicy", "fully_shard", "hsdp_sync_stream"]

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


def _bool(name, value):
    if not isinstance(value, bool):
        raise ValueError(f"expected {name} to be a bool, given {value!r}")
    return value


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
        _bool("comm_fusion_zero_copy", comm_fusion_zero_copy)
    options = _Options(mesh, _bool("reshard_after_forward", reshard_after_forward),
                       shard_placement_fn, policy, isinstance(offload, CPUOffloadPolicy),
                       _params_of("ignored_params", ignored_params),
                       _params_of("replicate_params", replicate_params),
                       _bool("comm_fusion", comm_fusion), comm_fusion_zero_copy, mode)
    trees.mode_of(options)
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


# ---- from modules to a tree --------------------------------------------------------------------

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
            _add_param(unit, tensor, f"{prefix}.{name}" if prefix else name)


def _add_param(unit, tensor, name):
    if tensor.is_meta:
        raise RuntimeError(f"expected values in {name} before the first forward, it is on the meta "
                           "device: model.to_empty(device='cpu') and initialize it")
    if type(tensor.data) is not torch.Tensor:
        raise NotImplementedError(f"expected a plain tensor in {name}, given "
                                  f"{type(tensor.data).__name__}")
    if tensor.device.type != "cpu":
        raise RuntimeError(f"expected {name} on the CPU, given {tensor.device}")
    unit.params.append(Param(unit, len(unit.params), tensor, name,
                             _shard_dim(unit.options, tensor, name)))


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
        tree = trees.Tree(module, units)
    except BaseException:
        for unit in units:
            unit.tree = unit.handle = None
        raise
    for unit in units:
        hooks.watch_params(unit)
    return tree


# ---- methods of a sharded module ---------------------------------------------------------------

class UnshardHandle:
    """What unshard(async_op=True) gives."""

    def __init__(self, unit):
        self._unit = unit

    def wait(self):
        """Until the parameters are full."""
        if self._unit is not None:
            self._unit.tree.hold(self._unit, True)
            self._unit.show()
        self._unit = None


class HSDPModule:
    """What fully_shard adds to a module. Flags count from the next forward on."""

    def _unit(self):
        return self.__dict__["_hyper_parallel_unit"]

    def _units(self, recurse):
        return units_in(self) if recurse else [self._unit()]

    def _before_first_forward(self, what):
        if self._unit().tree is not None:
            raise RuntimeError(f"expected {what} before the first forward")

    def _tree(self):
        unit = self._unit()
        return unit.tree or adopt(self)

    def commit(self):
        """Make the engine now, and shards of the parameters, in place of at the first forward of
        the whole model: for an optimizer that makes its state at once. Collective."""
        self._tree()

    def set_requires_gradient_sync(self, requires_gradient_sync, *, recurse=True):
        """False: gradients are added up on this rank and join those of the next backward that
        reduces. All ranks alike."""
        for unit in self._units(recurse):
            unit.requires_sync = _bool("requires_gradient_sync", requires_gradient_sync)

    def set_requires_all_reduce(self, requires_all_reduce, *, recurse=True):
        """False, of HSDP: gradients are reduced over the shard dimension alone and join the next
        all-reduce. NotImplementedError without recurse."""
        if not recurse:
            raise NotImplementedError("expected recurse=True: units of a model reduce together")
        for unit in self._units(True):
            unit.requires_all_reduce = _bool("requires_all_reduce", requires_all_reduce)

    def set_is_last_backward(self, is_last_backward):
        """False: more backwards of this pass are to come; gradients are there after the last."""
        self._tree().is_last_backward = _bool("is_last_backward", is_last_backward)

    def set_reshard_after_forward(self, reshard_after_forward, recurse=True):
        """As fully_shard's; before the first forward."""
        value = _bool("reshard_after_forward", reshard_after_forward)
        self._before_first_forward("set_reshard_after_forward")
        for unit in self._units(recurse):
            unit.options.reshard_after_forward = value

    def set_reshard_after_backward(self, reshard_after_backward, recurse=True):
        """A hint, which the engine does not take: it gathers ahead of the next forward anyway."""
        _bool("reshard_after_backward", reshard_after_backward)

    def set_reduce_op_type(self, reduce_op_type, recurse=True):
        """ "avg": gradients are means over the ranks; "sum". Before the first forward."""
        op = reduce_op_type.strip().lower() if isinstance(reduce_op_type, str) else None
        if op not in ("avg", "sum"):
            raise ValueError(f'expected "avg" or "sum", given {reduce_op_type!r}')
        self._before_first_forward("set_reduce_op_type")
        for unit in self._units(recurse):
            unit.options.reduce_op = op

    def set_gradient_scaling_factor(self, factor, recurse=True):
        """Gradients are multiplied by it once; None: 1. Before the first forward."""
        value = 1.0 if factor is None else factor
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            value = value.item()
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
            raise ValueError(f"expected a positive number, a tensor of one or None, given "
                             f"{factor}")
        self._before_first_forward("set_gradient_scaling_factor")
        for unit in self._units(recurse):
            unit.options.factor = float(value)

    def _sharded(self, modules):
        for module in modules:
            if not isinstance(module, HSDPModule):
                raise ValueError(f"expected modules that fully_shard was given, given "
                                 f"{type(module).__name__}")
        return [module._unit() for module in modules]

    def set_modules_to_forward_prefetch(self, modules):
        """What to gather while this unit computes its forward, in place of the order that the
        engine learns. Before the first forward."""
        units = self._sharded(modules)
        self._before_first_forward("set_modules_to_forward_prefetch")
        self._unit().forward_prefetch = units

    def set_modules_to_backward_prefetch(self, modules):
        """How far ahead to gather in backward: as many units as the longest of these lists; which,
        the engine knows from the forward. Before the first forward."""
        units = self._sharded(modules)
        self._before_first_forward("set_modules_to_backward_prefetch")
        self._unit().backward_prefetch = units

    def unshard(self, async_op=False):
        """Gather the unit by hand, to read its full parameters or ahead of its use. Returns None,
        or with async_op a handle whose wait() ends it. Collective."""
        tree, unit = self._tree(), self._unit()
        tree.hold(unit, not async_op)
        if async_op:
            return UnshardHandle(unit)
        unit.show()
        return None

    def reshard(self):
        """Free what unshard has gathered."""
        self._tree().let_go(self._unit())

    def reset_iter_state(self, recursive=True):
        """After an exception in forward or backward: drop the pass and its gradients. Collective;
        weights are those of the last step."""
        for tree in {id(u.tree): u.tree for u in self._units(recursive) if u.tree}.values():
            tree.reset()

    def record_trace(self, n_spans=1 << 16):
        """Keep what the engine does, up to n_spans spans of each stream. Before the first forward.
        """
        if isinstance(n_spans, bool) or not isinstance(n_spans, int) or n_spans < 1:
            raise ValueError(f"expected a number of spans of 1 or more, given {n_spans!r}")
        self._before_first_forward("record_trace")
        self._unit().options.n_spans = n_spans

    def write_trace(self, path):
        """Write this rank's trace so far as a file for Perfetto or chrome://tracing."""
        self._tree().write_trace(path)

    def load_state_dict(self, state_dict, strict=True, assign=False):
        """As nn.Module's; values may be whole, DTensors or this rank's shards. Not collective, but
        the weights must become the same model on all ranks. ValueError: another shape."""
        if self._unit().tree is None:
            return super().load_state_dict(state_dict, strict=strict, assign=assign)
        return load_shards(self, state_dict, strict, super().load_state_dict)


def hsdp_sync_stream():
    """Until all gradients that are on their way are there: passes that wait for a backward which
    did not come are ended. Collective."""
    for tree in trees.all_trees():
        tree.settle()

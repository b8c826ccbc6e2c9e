# SPDX-License-Identifier: Apache-2.0
"""fsdp.py - fully_shard for MindSpore cells, on the C engine.

fully_shard makes a cell a unit: its parameters, but for those of units inside it, are this rank's
shards from there on, and whole around its compute. Call it for the layers first and the whole
network last, then make the optimizer. The engine is made at the first forward, which is collective.
Source: PyTorch's fully_shard; the original's names where it adds to them.
"""

import itertools
from dataclasses import dataclass

from mindspore import Parameter, Tensor, nn

from hyper_parallel.mesh import DeviceMesh
from hyper_parallel.mindspore import fsdp_hooks as hooks
from hyper_parallel.mindspore.fsdp_tree import Tree
from hyper_parallel.mindspore.fsdp_units import Options, Param, Unit
from hyper_parallel.mindspore.state import set_model_state_dict
from hyper_parallel.mindspore.tensors import check_mode, eager, settle
from hyper_parallel.world import world

_classes = {}
_order = itertools.count()


@dataclass(frozen=True)
class MixedPrecisionPolicy:
    """param_dtype: of the full parameters, what is gathered and computed with; reduce_dtype: of the
    gradients that are reduced (None: as param_dtype); output_dtype: floating outputs of a cell are
    cast to it; cast_forward_inputs: its floating inputs are cast to param_dtype. Shards, optimizer
    state and sums are fp32. apply_grad_on_fp32_main_grad: NotImplementedError, MindSpore's
    optimizers are given gradients, and those are fp32."""

    param_dtype: object = None
    reduce_dtype: object = None
    output_dtype: object = None
    cast_forward_inputs: bool = True
    apply_grad_on_fp32_main_grad: bool = False

    def __post_init__(self):
        if self.apply_grad_on_fp32_main_grad:
            raise NotImplementedError("expected apply_grad_on_fp32_main_grad=False: the gradients "
                                      "that value_and_grad gives are fp32 shards already")


@dataclass(frozen=True)
class OffloadPolicy:
    """Shards stay where they are."""


@dataclass(frozen=True)
class CPUOffloadPolicy(OffloadPolicy):
    """Shards and optimizer state in host memory, where those of CPU ranks are already."""

    pin_memory: bool = True


def _bool(name, value):
    if not isinstance(value, bool):
        raise ValueError(f"expected {name} to be a bool, given {value!r}")
    return value


def _params_of(name, params):
    if params is None:
        return frozenset()
    if not isinstance(params, (set, frozenset, list, tuple)) or not all(
            isinstance(p, Parameter) for p in params):
        raise TypeError(f"expected {name} to be a set of parameters, given {params!r}")
    return frozenset(map(id, params))


def _root_most(cell):
    cells = [cell] if isinstance(cell, nn.Cell) else cell
    if not isinstance(cells, (list, tuple)) or not cells or not all(
            isinstance(c, nn.Cell) for c in cells):
        raise ValueError(f"expected a cell or a list of cells that is not empty, given {cell!r}")
    inner = {id(child) for c in cells for _, child in c.cells_and_names() if child is not c}
    found = {id(c): c for c in cells if id(c) not in inner}
    for c in found.values():
        if isinstance(c, (nn.CellList, nn.CellDict)):
            raise ValueError(f"expected a cell with a construct, given {type(c).__name__}: give "
                             "its elements")
        if isinstance(c, HSDPCell):
            raise ValueError(f"expected a cell that is no unit yet, given {type(c).__name__}")
    return list(found.values())


def _mesh_of(mesh):
    if mesh is None:
        mesh = DeviceMesh((world().size,))
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"expected a mesh of init_device_mesh or None, given {type(mesh).__name__}")
    if mesh.ndim not in (1, 2):
        raise ValueError("expected a mesh of 1 dimension (shard) or 2 (replicate, shard), given "
                         f"{mesh.ndim}")
    return mesh


def _mode_of(comm_fusion, comm_fusion_zero_copy, mode):
    _bool("comm_fusion", comm_fusion)
    if comm_fusion_zero_copy is not None:
        _bool("comm_fusion_zero_copy", comm_fusion_zero_copy)
    if mode == "auto":
        raise ValueError("expected a mode that says how shards lie before the whole network is "
                         "known: 'per-param', 'fused', 'fused-zero-copy' or 'mapped', given 'auto'")
    if mode is not None:
        return mode
    return ("fused-zero-copy" if comm_fusion_zero_copy else "fused") if comm_fusion else "per-param"


def _policy(name, value, default):
    value = default() if value is None else value
    if not isinstance(value, default):
        raise TypeError(f"expected {name} to be a {default.__name__}, given {type(value).__name__}")
    return value


@eager
def fully_shard(module, *, mesh=None, reshard_after_forward=True, shard_placement_fn=None,
                mp_policy=None, offload_policy=None, ignored_params=None, replicate_params=None,
                comm_fusion=False, comm_fusion_zero_copy=None, mode=None):
    """Make a cell a unit, or a list of cells one unit. Returns the same object, whose class becomes
    a subclass of its own and of HSDPCell.

    mesh: of init_device_mesh, 1 dimension (FSDP) or 2 (HSDP: replicate, shard), over all ranks;
    None: 1 dimension. reshard_after_forward: free the full parameters between forward and backward;
    a unit that has others inside keeps them, whatever is said. shard_placement_fn(parameter): the
    dimension to cut, a number or something with .dim; None: 0. ignored_params: left alone, neither
    cut nor reduced, and so are batch normalization's statistics, which the forward writes;
    replicate_params: whole on every rank, reduced over all. comm_fusion: one
    gather and one reduction for a unit, through packed buffers; comm_fusion_zero_copy: packed where
    the gather takes it from (None: False). mode: in place of the two, a name of the C engine's:
    "per-param", "fused", "fused-zero-copy", "mapped" (ranks of a node read one copy of the
    parameters in shared memory; shards are flat). Mesh, precision, mode and offload must be alike
    in all units of a network. Errors: ValueError, TypeError, RuntimeError in graph mode."""
    check_mode()
    cells = _root_most(module)
    options = Options(_mesh_of(mesh), _mode_of(comm_fusion, comm_fusion_zero_copy, mode),
                      _bool("reshard_after_forward", reshard_after_forward),
                      _policy("mp_policy", mp_policy, MixedPrecisionPolicy),
                      isinstance(_policy("offload_policy", offload_policy, OffloadPolicy),
                                 CPUOffloadPolicy))
    ignored = _params_of("ignored_params", ignored_params) | _statistics(cells)
    replicated = _params_of("replicate_params", replicate_params)
    is_parent = len(cells) > 1 or len(units_in(cells[0])) > 0
    unit = Unit(cells, options, next(_order), is_parent)
    for cell in cells:
        for name, tensor in cell.parameters_and_names():
            if id(tensor) not in ignored and not hasattr(tensor, "_hyper_parallel"):
                dim = None if id(tensor) in replicated else _dim(shard_placement_fn, tensor, name)
                tensor._hyper_parallel = Param(unit, tensor, tensor.name or name, dim)
                unit.params.append(tensor._hyper_parallel)
    try:
        unit.cut()
    except BaseException:
        for param in unit.params:
            del param.tensor._hyper_parallel
        raise
    for cell in cells:
        cell._hyper_parallel_unit = unit
        _swap_class(cell)
    hooks.install(unit, adopt)
    hooks.watch_params(unit)
    return module


def _statistics(cells):
    """What cells write in their forward (batch normalization's means and variances), which is no
    weight: each rank has its own, whole."""
    return frozenset(id(p) for top in cells for _, cell in top.cells_and_names()
                     for p in (getattr(cell, "moving_mean", None),
                               getattr(cell, "moving_variance", None)) if p is not None)


def _dim(placement, tensor, name):
    dim = placement(tensor) if placement else 0
    dim = 0 if dim is None else getattr(dim, "dim", dim)
    n = max(1, len(tensor.shape))
    if isinstance(dim, bool) or not isinstance(dim, int) or not -n <= dim < n:
        raise ValueError(f"expected shard_placement_fn to give None or a dimension of {name}, "
                         f"given {dim!r}")
    return dim % n


def _swap_class(cell):
    base = type(cell)
    if base not in _classes:
        _classes[base] = type(f"HSDP{base.__name__}", (HSDPCell, base), {
            "__module__": base.__module__, "__doc__": base.__doc__})
    cell.__class__ = _classes[base]


# ---- from cells to a tree ----------------------------------------------------------------------

def units_in(cell):
    """The units of a cell and of what it holds, in the order of cells."""
    found = {}
    for _, c in cell.cells_and_names():
        unit = c.__dict__.get("_hyper_parallel_unit")
        if unit is not None:
            found.setdefault(id(unit), unit)
    return list(found.values())


def _check_shared(units):
    """A parameter of two units would be a shard while the second computes."""
    for unit in units:
        inside = {id(u) for cell in unit.cells for u in units_in(cell)}
        for cell in unit.cells:
            for name, tensor in cell.parameters_and_names():
                param = getattr(tensor, "_hyper_parallel", None)
                if param and id(param.unit) not in inside:
                    raise ValueError(f"expected {name} in one unit, it is in {param.unit.name} and "
                                     f"{unit.name}: let cells that share a parameter be one unit, "
                                     "fully_shard([a, b]), or leave both to the unit around them")


def adopt(cell):
    """Make one tree of all units of a cell; collective."""
    units = units_in(cell)
    names = {id(c): name for name, c in cell.cells_and_names()}
    for unit in units:
        if unit.tree is not None:
            raise ValueError(f"expected units that belong to no other network, given {unit.name}")
        unit.name = ", ".join(names.get(id(c)) or "root" for c in unit.cells)
    _check_shared(units)
    return Tree(units)


# ---- methods of a sharded cell -----------------------------------------------------------------

def hsdp_sync_stream():
    """Wait until every operator that was called has run; gradients are there when value_and_grad
    returns anyway."""
    settle()


class UnshardHandle:
    """What unshard(async_op=True) gives."""

    def __init__(self, unit):
        self._unit = unit

    def wait(self):
        """Until the parameters are whole."""
        if self._unit is not None:
            self._unit.tree.hold(self._unit, True)
            self._unit.show()
        self._unit = None


class HSDPCell:
    """What fully_shard adds to a cell. Flags count from the next forward on."""

    def _unit(self):
        return self.__dict__["_hyper_parallel_unit"]

    def _units(self, recurse):
        return units_in(self) if recurse else [self._unit()]

    def _before_first_forward(self, what):
        if self._unit().tree is not None:
            raise RuntimeError(f"expected {what} before the first forward")

    def _tree(self):
        return self._unit().tree or adopt(self)

    def load_state_dict(self, state_dict, strict=True):
        """set_model_state_dict of this cell."""
        set_model_state_dict(self, state_dict, strict)

    def set_requires_gradient_sync(self, requires_gradient_sync, *, recurse=True):
        """False: gradients are added up on this rank and join those of the next backward that
        reduces; what value_and_grad gives meanwhile is zeros. All ranks alike."""
        for unit in self._units(recurse):
            unit.requires_sync = _bool("requires_gradient_sync", requires_gradient_sync)

    def set_requires_all_reduce(self, requires_all_reduce, *, recurse=True):
        """False, of HSDP: gradients are reduced over the shard dimension alone and join the next
        all-reduce. NotImplementedError without recurse."""
        if not recurse:
            raise NotImplementedError("expected recurse=True: units of a network reduce together")
        for unit in self._units(True):
            unit.requires_all_reduce = _bool("requires_all_reduce", requires_all_reduce)

    def set_is_last_backward(self, is_last_backward):
        """False: more backwards are to come whose gradients belong together; they are reduced, and
        given out, with the last one's. All ranks alike."""
        for unit in self._units(True):
            unit.is_last = _bool("is_last_backward", is_last_backward)

    def zero_grad(self):
        """Drop the gradients that passes without synchronization have added up."""
        for tree in {id(u.tree): u.tree for u in self._units(True) if u.tree}.values():
            tree.drops_sums = True

    def set_reduce_comm_interval(self, interval=1):
        """How many units later a reduction is waited for: 1, as the engine does it.
        NotImplementedError for more."""
        if isinstance(interval, bool) or not isinstance(interval, int) or interval < 1:
            raise ValueError(f"expected a whole number above 0, given {interval!r}")
        if interval > 1:
            raise NotImplementedError("expected interval=1, which is how far the engine's "
                                      f"reductions run behind compute, given {interval}")

    def set_reshard_after_backward(self, reshard_after_backward, recurse=True):
        """A hint, which the engine does not take: it gathers ahead of the next forward anyway."""
        _bool("reshard_after_backward", reshard_after_backward)

    def set_reshard_after_forward(self, reshard_after_forward, recurse=True):
        """As fully_shard's; before the first forward."""
        value = _bool("reshard_after_forward", reshard_after_forward)
        self._before_first_forward("set_reshard_after_forward")
        for unit in self._units(recurse):
            unit.options.reshard_after_forward = value

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
        if isinstance(value, Tensor) and value.size == 1:
            value = float(value.asnumpy().reshape(-1)[0])
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
            raise ValueError("expected a positive number, a tensor of one or None, given "
                             f"{factor!r}")
        self._before_first_forward("set_gradient_scaling_factor")
        for unit in self._units(recurse):
            unit.options.factor = float(value)

    def _sharded(self, cells):
        for cell in cells:
            if not isinstance(cell, HSDPCell):
                raise ValueError("expected cells that fully_shard was given, given "
                                 f"{type(cell).__name__}")
        return [cell._unit() for cell in cells]

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

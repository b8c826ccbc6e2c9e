# SPDX-License-Identifier: Apache-2.0
"""fsdp_commit.py - from the units of a model to one hp_fsdp: what commit(tree) does, once.

Units must agree in mesh, mode, precision and offload, which are the engine's as a whole. After it
every parameter is its shard. Collective; ranks whose models differ are told by the library.
"""

import math
import weakref

from hyper_parallel import world as worlds
from hyper_parallel._c import NULL, check, ffi, lib, new
from hyper_parallel.torch.groups import world_of_torch
from hyper_parallel.torch.mesh import check_mesh, mesh_handle
from hyper_parallel.torch.tensors import DTYPES

_memories = weakref.WeakSet()


class _Memory:
    """The hp_fsdp, and its trace: they live as long as a tensor that views the memory,
    but no longer than the world."""

    def __init__(self, handle, trace):
        self.handle, self.trace = handle, trace
        if not _memories:
            worlds.before_shutdown(_close_all)
        _memories.add(self)

    def close(self):
        handle, self.handle = self.handle, None
        if handle is not None:
            lib.hp_fsdp_destroy(handle)
            lib.hp_trace_destroy(self.trace)
            self.trace = NULL

    __del__ = close


def _close_all():
    for memory in list(_memories):
        memory.close()
    _memories.clear()


def mode_of(options):
    """The hp_mode that options ask for; HyperParallelError listing the names."""
    mode = ffi.new("hp_mode *")
    name = options.mode
    if name is None:
        zero_copy = options.comm_fusion_zero_copy in (None, True)
        name = "per-param"
        if options.comm_fusion:
            name = "fused-zero-copy" if zero_copy else "fused"
    check(lib.hp_mode_parse(name.encode(), mode))
    return mode[0]


def _agreed(units):
    """The options that are the model's: of all units, which must have them alike."""
    first = units[0].options
    for unit in units:
        names = f"{units[0].name} and {unit.name}"
        if check_mesh(unit.options.mesh) != check_mesh(first.mesh):
            raise ValueError(f"expected one mesh in {names}, given {first.mesh} and "
                             f"{unit.options.mesh}")
        for name in ("comm_fusion", "comm_fusion_zero_copy", "mode", "offload"):
            ours, theirs = getattr(first, name), getattr(unit.options, name)
            if ours != theirs:
                raise ValueError(f"expected one {name} in {names}, given {ours!r} and {theirs!r}")
        ours, theirs = first.mp_policy, unit.options.mp_policy
        if (ours.param_dtype, ours.reduce_dtype) != (theirs.param_dtype, theirs.reduce_dtype):
            raise ValueError(f"expected one param_dtype and one reduce_dtype in {names}, given "
                             f"{ours} and {theirs}")
    return first


def _config(options, units):
    prefetch = [len(unit.backward_prefetch or ()) for unit in units]
    config = new("hp_fsdp_config", mode=mode_of(options), offload=int(options.offload),
                 caller_writes=1,
                 prefetch=min(16, max(1, *prefetch)))
    for name in ("param_dtype", "reduce_dtype"):
        dtype = getattr(options.mp_policy, name)
        if dtype is not None and dtype not in DTYPES:
            raise TypeError(f"expected {name} to be fp32, bf16 or fp16, given {dtype}")
        if dtype is not None:
            setattr(config, name, DTYPES[dtype])
    return config


def _make_trace(units):
    n_spans = max(unit.options.n_spans for unit in units)
    out = ffi.new("hp_trace **")
    if n_spans:
        check(lib.hp_trace_create(world_of_torch().rank, n_spans, out))
    return out[0]


def _create(mesh, config):
    out = ffi.new("hp_fsdp **")
    status = lib.hp_fsdp_create(mesh_handle(mesh), config, out)
    if status < 0:
        lib.hp_trace_destroy(config.trace)
    check(status)
    return _Memory(out[0], config.trace)


def _in_order(units):
    """Of declarations: a unit comes after those that it prefetches by list."""
    has_lists = any(unit.forward_prefetch is not None for unit in units)
    return reversed(units) if has_lists else units


def _declare(fsdp, unit, keep):
    params = ffi.new("hp_param[]", max(1, len(unit.params)))
    for param, out in zip(unit.params, params):
        param.describe(out, keep)
    prefetch = [ahead.handle for ahead in unit.forward_prefetch or ()]
    if None in prefetch:
        raise ValueError(f"expected {unit.name} to prefetch units of its model that come after it, "
                         f"given {[ahead.name for ahead in unit.forward_prefetch]}")
    units_ahead = ffi.new("hp_unit *[]", prefetch)
    config = new("hp_unit_config", factor=unit.options.factor,
                 reshard_after_forward=int(unit.options.reshard_after_forward),
                 reduce=lib.HP_AVG if unit.options.reduce_op == "avg" else lib.HP_SUM)
    if unit.forward_prefetch is not None:
        config.prefetch, config.n_prefetch = units_ahead, len(prefetch)
    out = ffi.new("hp_unit **")
    check(lib.hp_unit_create(fsdp, unit.name.encode(), params, len(unit.params), config, out))
    unit.handle = out[0]


def commit(tree):
    """Give a tree its memory (the hp_fsdp), mesh and mode, and its units their handles."""
    units = tree.units
    options = _agreed(units)
    meshes = (unit.options.mesh for unit in units)
    tree.mesh = next((mesh for mesh in meshes if mesh is not None), None)
    sizes = check_mesh(tree.mesh)
    tree.n_dims, tree.n_shards, tree.n_replicas = len(sizes), sizes[-1], math.prod(sizes[:-1])
    config = _config(options, units)
    config.trace = _make_trace(units)
    tree.memory = _create(tree.mesh, config)
    keep = []
    for unit in _in_order(units):
        unit.tree = tree
        _declare(tree.handle, unit, keep)
    check(lib.hp_fsdp_commit(tree.handle))
    tree.mode = ffi.string(lib.hp_mode_name(lib.hp_fsdp_mode(tree.handle))).decode()
    tree.has_stable_addresses = tree.mode == "mapped" or tree.n_shards == 1
    for param in tree.params():
        param.take_shard()
        param.tensor._hyper_parallel = param

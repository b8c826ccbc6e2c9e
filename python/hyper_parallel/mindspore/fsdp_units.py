# SPDX-License-Identifier: Apache-2.0
"""fsdp_units.py - a unit of the C engine and its parameters, as MindSpore's.

A Parameter stays one Python object. Between computes it is this rank's shard, a view of the
engine's memory; while the unit computes it is the full parameter, a view of where the engine has
gathered it. Nothing is copied here but gradients, once, to where the engine reduces them from.
MindSpore's optimizers take their state's shape from parameters when they are made, so a parameter
is cut at once, before there is an engine: a virtual one, for this unit alone, says where.
What always holds: outside of a compute no parameter refers to gathered memory; an optimizer sees no
shard without elements (MindSpore's make no state for one): such a one has a row of zeros of its own
that nobody reads.
"""

import bisect

import mindspore as ms
import numpy as np
from mindspore import ops

from hyper_parallel._c import NULL, check, error, ffi, lib, new
from hyper_parallel.mindspore.tensors import (DTYPES, MS_DTYPES, address, empty, item_bytes,
                                              settle, tensor_at, zeros)
from hyper_parallel.world import world

IDLE, FORWARD, BACKWARD, RECOMPUTE = "idle", "forward", "backward", "recompute"


def given(pointer):
    """A pointer that the library gives; its error when it is NULL."""
    if pointer == NULL:
        raise error()
    return pointer


def _copy_in(place, tensor):
    ffi.memmove(place, ffi.cast("void *", address(tensor)), tensor.size * item_bytes(tensor.dtype))


class Param:
    """One parameter of a unit: index is its number there. tensor: the mindspore.Parameter."""

    def __init__(self, unit, tensor, name, shard_dim):
        self.unit, self.index, self.tensor, self.name = unit, len(unit.params), tensor, name
        self.shape = tuple(tensor.shape)
        self.shard_dim = shard_dim  # None: every rank holds all of it
        self.declared = tensor.dtype
        self.is_frozen = not tensor.requires_grad
        self.shard = None
        self.gradient = None  # what MindSpore gives out as its gradient, the same object always
        self.pending = []  # of a unit that holds its parameters to the end: full gradients
        self._cached = {}

    def describe(self, out, keep):
        """Fill an hp_param, whose values come later. `keep` gets what must live until commit."""
        name = ffi.new("char[]", self.name.encode())
        keep.append(name)
        out.size = ffi.sizeof("hp_param")
        out.name = name
        out.n_dims = len(self.shape)
        out.shape[0:len(self.shape)] = self.shape
        out.dtype = DTYPES[self.declared]
        out.shard_dim = lib.HP_REPLICATED if self.shard_dim is None else self.shard_dim
        out.is_frozen = self.is_frozen

    def _read(self, handle):
        shard = ffi.new("hp_shard *")
        check(lib.hp_param_shard(handle, self.index, shard))
        return shard

    def cut(self, handle):
        """Of the unit's virtual self: the parameter is its shard from here on."""
        shard = self._read(handle)
        self.n_elements, self.dtype = shard.n_elements, MS_DTYPES[shard.dtype]
        self.begin, self.end = shard.begin, shard.end
        self.shard_shape = self._shape_of(shard)
        self.shard = self._part_of(self.tensor)
        if not self.is_frozen:
            self.gradient = empty(self.shard_shape, self.dtype)
        self.hide()

    def _shape_of(self, shard):
        flat = self.unit.options.mode == "mapped" and self.shard_dim is not None
        if flat or not self.shape:
            return (max(1, shard.n_elements),) if flat or not shard.n_elements else ()
        if self.shard_dim is None:
            return self.shape
        rows = max(1, shard.end - shard.begin)
        return (*self.shape[:self.shard_dim], rows, *self.shape[self.shard_dim + 1:])

    def _part_of(self, full):
        """A tensor of its own with the values of this rank's part."""
        if not self.n_elements:
            return zeros(self.shard_shape, self.dtype)
        full = ops.cast(full, self.dtype).contiguous()
        settle()
        values = full.asnumpy()
        if self.shard_dim is not None and self.unit.options.mode == "mapped":
            values = values.reshape(-1)[self.begin:self.end]
        elif self.shard_dim is not None and self.shape:
            values = np.take(values, np.arange(self.begin, self.end), self.shard_dim)
        part = empty(self.shard_shape, self.dtype)
        part.asnumpy()[...] = values.reshape(self.shard_shape)
        return part

    def move(self):
        """The real engine is there: the shard's values, and the parameter, move into it."""
        shard = self._read(self.unit.handle)
        data, grad = ffi.new("hp_dtype *"), ffi.new("hp_dtype *")
        check(lib.hp_param_dtypes(self.unit.handle, self.index, data, grad))
        self.data_dtype, self.grad_dtype = MS_DTYPES[data[0]], MS_DTYPES[grad[0]]
        if not self.n_elements:
            return
        self.shard = tensor_at(shard.values, self.shard_shape, self.dtype, self.unit.tree.memory)

    def is_replaced(self):
        """Has somebody given the parameter other memory (set_data, a loaded checkpoint)?"""
        return self.tensor.data_ptr() != self.shard.data_ptr()

    def take_values(self):
        """What the parameter is now, shard or whole, becomes the shard's values."""
        self.load(self.tensor)
        _copy_in(ffi.cast("void *", self.shard.data_ptr()), self.tensor)
        self.hide()

    def load(self, values):
        """The parameter is a copy of these values, a shard's or whole ones, until take_values."""
        shape = tuple(values.shape)
        if shape != self.shard_shape and shape != self.shape:
            raise ValueError(f"expected {self.name} of shape {self.shard_shape} (this rank's "
                             f"shard) or {self.shape} (whole), given {shape}")
        if shape == self.shard_shape:
            part = ops.cast(values, self.dtype).contiguous().copy()
            settle()
        else:
            part = self._part_of(values)
        self.tensor.assign_value(part)

    def _view(self, place, shape, dtype):
        key = int(ffi.cast("uintptr_t", place))
        view = self._cached.get(key)
        if view is None:
            view = self._cached[key] = tensor_at(place, shape, dtype, self.unit.tree.memory)
        return view

    def show(self):
        """The parameter is the full one; returns (address, bytes)."""
        place = given(lib.hp_param_data(self.unit.handle, self.index))
        self.full = self._view(place, self.shape, self.data_dtype)
        self.tensor.assign_value(self.full)
        return self.full.data_ptr(), self.full.size * item_bytes(self.data_dtype)

    def hide(self):
        """The parameter is the shard."""
        self.tensor.assign_value(self.shard)

    def give_gradient(self, gradient):
        """Between backward begin and end: a full gradient goes to the engine."""
        place = given(lib.hp_param_grad(self.unit.handle, self.index))
        if gradient.dtype != self.grad_dtype:
            gradient = ops.cast(gradient, self.grad_dtype)
        gradient = gradient.contiguous()
        settle()
        _copy_in(place, gradient)

    def point_gradient(self):
        """After a pass: what MindSpore gives out is the gradient shard, or zeros without one."""
        if self.is_frozen:
            return
        shard = self._read(self.unit.handle)
        if shard.grad != NULL and self.n_elements:
            self.gradient.assign_value(self._view(shard.grad, self.shard_shape, self.dtype))
        else:
            self.gradient.assign_value(zeros(self.shard_shape, self.dtype))

    def leave(self):
        """The engine is about to go: what the program holds are copies."""
        self.shard = self.shard.copy()
        self.hide()
        if self.gradient is not None:
            self.gradient.assign_value(self.gradient.copy())


class Unit:
    """What fully_shard made of one cell, or of several that compute as one."""

    def __init__(self, cells, options, order, is_parent):
        self.cells, self.options, self.order = cells, options, order
        self.is_parent = is_parent  # holds its parameters while other units compute
        self.tree = self.handle = None
        self.params = []
        self.requires_sync = self.requires_all_reduce = self.is_last = True
        self.own_pass = -1  # hp_unit_set_pass
        self.forward_prefetch = self.backward_prefetch = None
        self.name = f"unit{order}"
        self.forget()

    def forget(self):
        """Between passes."""
        self.phase = IDLE
        self.n_entered = 0  # of its cells, in this forward
        self.n_missing = 0  # gradients of parameters to come, in this backward
        self.n_backwards = 0
        self.is_outermost = self.is_shown = self.is_past = False
        self.ranges = []

    def shard_group(self):
        """The Group that the shards are cut over."""
        return self.options.mesh.get_group(self.options.mesh.ndim - 1)

    def check_idle(self, call):
        """RuntimeError in the middle of a forward or backward."""
        if self.tree is not None and (self.tree.depth or self.tree.in_backward or self.is_shown):
            raise RuntimeError(f"expected {call} between passes, {self.name} is in one")

    def call(self, function, *arguments):
        check(getattr(lib, function)(self.handle, *arguments))

    def declare(self, fsdp, config, keep):
        """hp_unit_create of an engine: the real one, or a virtual one. Returns the hp_unit *."""
        params = ffi.new("hp_param[]", max(1, len(self.params)))
        for param, out in zip(self.params, params):
            param.describe(out, keep)
        out = ffi.new("hp_unit **")
        check(lib.hp_unit_create(fsdp, self.name.encode(), params, len(self.params), config, out))
        return out[0]

    def cut(self):
        """Cut the parameters, as an engine of this rank and this unit alone would."""
        sizes = self.options.mesh.shape
        mesh, fsdp = ffi.new("hp_mesh **"), ffi.new("hp_fsdp **")
        keep = []
        check(lib.hp_mesh_create_virtual(ffi.new("int[]", sizes), len(sizes), world().rank, mesh))
        try:
            config = self.options.config(executor=lib.HP_EXECUTOR_VIRTUAL)
            check(lib.hp_fsdp_create(mesh[0], config, fsdp))
            handle = self.declare(fsdp[0], NULL, keep)
            check(lib.hp_fsdp_commit(fsdp[0]))
            for param in self.params:
                param.cut(handle)
        finally:
            lib.hp_fsdp_destroy(fsdp[0])
            lib.hp_mesh_destroy(mesh[0])

    def show(self):
        """The parameters are the full ones."""
        self.ranges = sorted((*param.show(), param.index) for param in self.params)
        self.is_shown = True

    def hide(self):
        """The parameters are the shards. Operators that were called have run: the full ones may be
        gone after this."""
        if self.is_shown:
            settle()
            for param in self.params:
                param.hide()
            self.is_shown = False

    # ---- what autograd saves ------------------------------------------------------------

    def pack(self, tensor):
        """A tensor that autograd saves: a part of a parameter is saved as such, and looked up in
        backward, when the engine may have gathered it elsewhere."""
        place = tensor.data_ptr()
        at = bisect.bisect_right(self.ranges, (place, float("inf"))) - 1
        if at < 0 or place >= self.ranges[at][0] + self.ranges[at][1]:
            return (tensor,)
        if not tensor.is_contiguous():
            return (tensor.contiguous(),)
        begin, _, index = self.ranges[at]
        return index, place - begin, tuple(tensor.shape), tensor.dtype

    def unpack(self, saved):
        if len(saved) == 1:
            return saved[0]
        index, offset, shape, dtype = saved
        full = self.params[index].full
        if offset == 0 and shape == tuple(full.shape) and dtype == full.dtype:
            return full
        return tensor_at(full.data_ptr() + offset, shape, dtype, full)


class Options:
    """What fully_shard was told. mode: a name of the engine's."""

    def __init__(self, mesh, mode, reshard_after_forward, mp_policy, offload):
        self.mesh, self.mode = mesh, mode
        self.reshard_after_forward = reshard_after_forward
        self.mp_policy, self.offload = mp_policy, offload
        self.reduce_op, self.factor = "avg", 1.0

    def shared(self):
        """What must be alike in all units of a tree, by name."""
        return {"mesh": self.mesh.shape, "mode": self.mode, "offload_policy": self.offload,
                "param_dtype": self.mp_policy.param_dtype,
                "reduce_dtype": self.mp_policy.reduce_dtype}

    def config(self, **fields):
        """The hp_fsdp_config."""
        mode = ffi.new("hp_mode *")
        check(lib.hp_mode_parse(self.mode.encode(), mode))
        return new("hp_fsdp_config", mode=mode[0], offload=int(self.offload),
                   param_dtype=_dtype(self.mp_policy.param_dtype),
                   reduce_dtype=_dtype(self.mp_policy.reduce_dtype), **fields)


def _dtype(dtype):
    if dtype is None:
        return lib.HP_OWN_DTYPE
    if dtype not in DTYPES:
        raise TypeError(f"expected a dtype of {', '.join(map(str, DTYPES))}, given {dtype}")
    return DTYPES[dtype]


def is_floating(tensor):
    """Is it of a dtype that a precision policy casts?"""
    return tensor.dtype in (ms.float64, ms.float32, ms.float16, ms.bfloat16)

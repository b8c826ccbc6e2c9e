# SPDX-License-Identifier: Apache-2.0
"""fsdp_units.py - a unit of the C engine and its parameters, as torch tensors.

A parameter stays one Python object. Between computes its data is this rank's shard, a view of the
engine's memory; while the unit computes it is the full parameter, a view of where the engine has
gathered it. Nothing is copied here but gradients, once, to where the engine reduces them from.
What always holds: outside of a compute no parameter refers to gathered memory.
"""

import bisect

import torch
from torch.autograd.graph import get_gradient_edge

from hyper_parallel._c import NULL, check, error, ffi, lib
from hyper_parallel.torch.tensors import TORCH_DTYPES, dtype_of, pointer, tensor_at

IDLE, FORWARD, BACKWARD, RECOMPUTE = "idle", "forward", "backward", "recompute"


def given(pointer):
    """A pointer that the library gives; its error when it is NULL."""
    if pointer == NULL:
        raise error()
    return pointer


class Param:
    """One parameter of a unit: index is its number there. tensor: the nn.Parameter; owner: a
    module that has it, and its name there."""

    def __init__(self, unit, index, tensor, name, shard_dim, owner):
        self.owner = owner
        self.unit, self.index, self.tensor, self.name = unit, index, tensor, name
        self.shape = tuple(tensor.shape)
        self.shard_dim = shard_dim  # None: every rank holds all of it
        self.is_frozen = not tensor.requires_grad
        self.shard = None  # tensor
        self.range = (0, 0)  # hp_shard.begin, end
        self.is_given = False  # its gradient, in this backward of the unit
        self._full, self._grads, self._grad_shards = {}, {}, {}

    def check_owner(self):
        """RuntimeError when the module has another parameter by the name now."""
        module, key = self.owner
        other = module._parameters.get(key, self.tensor)
        if isinstance(other, torch.nn.Parameter) and other is not self.tensor:
            raise RuntimeError(f"expected {self.name} to be the parameter that fully_shard cut, "
                               "given another one: write its values, or load a state dict")

    def check_accumulated(self):
        """In backward: RuntimeError where it is torch.autograd.grad with respect to this parameter,
        which would get this rank's own gradient of the full one."""
        if not self.tensor.requires_grad:
            return
        try:
            torch._C._will_engine_execute_node(get_gradient_edge(self.tensor).node)
        except RuntimeError as error:
            raise RuntimeError(f"expected backward(), which reduces the gradient of {self.name} "
                               "over the ranks, given torch.autograd.grad of it") from error

    def describe(self, out, keep):
        """Fill an hp_param. `keep` gets what must live until commit."""
        values = self.tensor.detach().contiguous()
        name = ffi.new("char[]", self.name.encode())
        keep += [values, name]
        out.size = ffi.sizeof("hp_param")
        out.name = name
        out.n_dims = len(self.shape)
        out.shape[0:len(self.shape)] = self.shape
        out.dtype = dtype_of(values, self.name)
        out.shard_dim = lib.HP_REPLICATED if self.shard_dim is None else self.shard_dim
        out.is_frozen = self.is_frozen
        out.data = pointer(values) if values.numel() else NULL

    def take_shard(self):
        """After commit: the parameter's data is its shard from here on."""
        shard = self._read()
        unit = self.unit
        data, grad = ffi.new("hp_dtype *"), ffi.new("hp_dtype *")
        check(lib.hp_param_dtypes(unit.handle, self.index, data, grad))
        self.data_dtype, self.grad_dtype = TORCH_DTYPES[data[0]], TORCH_DTYPES[grad[0]]
        self.range = (shard.begin, shard.end)
        self.shard_shape = self._shape_of(shard)
        self.shard = self._tensor(shard.values, self.shard_shape, TORCH_DTYPES[shard.dtype])
        self._place = self.shard.data_ptr()
        self.hide()

    def _read(self):
        shard = ffi.new("hp_shard *")
        check(lib.hp_param_shard(self.unit.handle, self.index, shard))
        return shard

    def _shape_of(self, shard):
        if self.unit.tree.mode == "mapped" and self.shard_dim is not None:
            return (shard.n_elements,)
        if self.shard_dim is None or (not self.shape and shard.n_elements):
            return self.shape
        if not self.shape:
            return (0,)
        rows = shard.end - shard.begin
        return (*self.shape[:self.shard_dim], rows, *self.shape[self.shard_dim + 1:])

    def _tensor(self, place, shape, dtype):
        with torch.inference_mode(False):
            return tensor_at(place, shape, dtype, self.unit.tree.memory)

    def _cached(self, cache, place, shape, dtype):
        key = int(ffi.cast("uintptr_t", place))
        tensor = cache.get(key)
        if tensor is None:
            tensor = cache[key] = self._tensor(place, shape, dtype)
        return key, tensor

    def show(self):
        """The parameter's data is the full parameter; returns (address, bytes)."""
        place = given(lib.hp_param_data(self.unit.handle, self.index))
        key, full = self._cached(self._full, place, self.shape, self.data_dtype)
        self.tensor.data = full
        return key, full.numel() * full.element_size()

    def hide(self):
        """The parameter's data is the shard."""
        self.tensor.data = self.shard

    def has_other_data(self):
        """Did anybody assign to the parameter's data, outside of a compute?"""
        return not self.unit.is_shown and self.tensor.data_ptr() != self._place

    def take_data(self):
        """What was assigned to the parameter's data becomes the shard. ValueError: its shape, or
        its dtype, as of module.to(dtype)."""
        data = self.tensor.data
        if data.dtype is not self.shard.dtype:
            raise ValueError(f"expected data of {self.shard.dtype} in {self.name}, given "
                             f"{data.dtype}: what is computed with is MixedPrecisionPolicy's")
        if data.shape != self.shard.shape:
            raise ValueError(f"expected data of shape {tuple(self.shard.shape)}, this rank's "
                             f"shard, in {self.name}, given {tuple(data.shape)}")
        self.shard.copy_(data)
        self.hide()

    def give_gradient(self):
        """Between backward begin and end: param.grad, a full one, goes to the engine. Reentrant
        checkpointing gives it in parts, one for each segment that the parameter is used in."""
        place = given(lib.hp_param_grad(self.unit.handle, self.index))
        _, grad = self._cached(self._grads, place, self.shape, self.grad_dtype)
        with torch.no_grad():
            if self.is_given:
                grad.add_(self.tensor.grad)
            else:
                grad.copy_(self.tensor.grad)
        self.is_given, self.tensor.grad = True, None

    def gradient_shard(self):
        """After a pass that reduced it: the gradient shard, a view of the engine's memory."""
        shard = self._read()
        if shard.grad == NULL:
            if shard.n_elements:
                raise RuntimeError(f"expected a gradient of {self.name}, the pass left none")
            return torch.empty(self.shard_shape, dtype=self.shard.dtype)
        return self._cached(self._grad_shards, shard.grad, self.shard_shape, self.shard.dtype)[1]

    @property
    def has_main_grad(self):
        """Are gradients in param.main_grad?"""
        return self.unit.options.mp_policy.apply_grad_on_fp32_main_grad

    def gradient(self):
        """Where the user finds the gradient shard: param.grad or param.main_grad; or None."""
        return getattr(self.tensor, "main_grad" if self.has_main_grad else "grad", None)

    def hand_out(self, grad):
        """The gradient shard of a pass goes to param.grad, or is added to param.main_grad."""
        tensor = self.tensor
        if not self.has_main_grad:
            tensor.grad = grad
        elif getattr(tensor, "main_grad", None) is None:
            tensor.main_grad = grad.to(torch.float32, copy=True)
        else:
            tensor.main_grad.add_(grad)

    def is_gradient_shard(self, grad):
        """Is it the view that gradient_shard gives?"""
        return any(grad is tensor for tensor in self._grad_shards.values())


class _Weight:
    """A saved tensor that lay in gathered memory: which parameter, and which part of it."""

    __slots__ = ("param", "dtype", "size", "stride", "offset")

    def __init__(self, param, tensor, offset_bytes):
        self.param, self.dtype = param, tensor.dtype
        self.size, self.stride = tensor.size(), tensor.stride()
        self.offset = offset_bytes // tensor.element_size()


class Unit:
    """What fully_shard made of one module, or of several that compute as one."""

    def __init__(self, modules, options, order):
        self.modules, self.options, self.order = modules, options, order
        self.tree = None
        self.name = None
        self.handle = None
        self.params = []
        self.is_parent = len(modules) > 1  # holds its parameters while other units compute
        self.phase = IDLE
        self.n_entered = 0  # of its modules, in this forward
        self.is_outermost = False
        self.exception = None  # that was being handled when this forward began
        self.own_pass = -1  # hp_unit_set_pass
        self.is_shown = False
        self.has_inputs = False  # that gradients go to, in this forward
        self.n_missing = 0  # gradients of parameters to come, in this backward
        self.requires_sync, self.requires_all_reduce = True, True
        self.forward_prefetch, self.backward_prefetch = None, None
        self._ranges = {}
        self._places, self._starts = [], []
        self._first = self._last = 0
        self.has_hooks = False  # for what autograd saves

    @property
    def is_stable(self):
        """Do its full parameters lie at one address from forward to backward?"""
        return self.tree.has_stable_addresses or not self.options.reshard_after_forward

    # ---- full parameters ------------------------------------------------------------------

    def show(self):
        """Parameters are full: inside of a compute, or while the unit is held."""
        self.is_shown = True
        places = []
        for param in self.params:
            start, n_bytes = param.show()
            if n_bytes:
                places.append((start, start + n_bytes, param))
        if not self.is_stable:
            places.sort(key=lambda place: place[0])
            self._places, self._starts = places, [place[0] for place in places]
            self._first = places[0][0] if places else 0
            self._last = max((place[1] for place in places), default=0)

    def hide(self):
        """Parameters are shards."""
        self.is_shown = False
        for param in self.params:
            param.hide()

    def forget(self):
        """As between two passes."""
        self.phase, self.n_entered, self.has_hooks = IDLE, 0, False
        self._ranges = {}  # one that was entered cannot be entered again
        self.hide()

    def copy_out(self):
        """The parameter's data is a copy of the full parameter, which outlives the gathered one."""
        self.is_shown = True
        for param in self.params:
            param.show()
            param.tensor.data = param.tensor.data.clone()

    # ---- tensors that autograd saves ------------------------------------------------------

    def pack(self, tensor):
        """Autograd saves `tensor`: a weight, or a view of one, is looked up again in backward."""
        place = tensor.data_ptr()
        if self._first <= place < self._last:
            start, end, param = self._places[bisect.bisect_right(self._starts, place) - 1]
            if place < end:
                return _Weight(param, tensor, place - start)
        return tensor

    def unpack(self, saved):
        if type(saved) is not _Weight:
            return saved
        if self.phase == IDLE:
            self.tree.begin_backward(self)
        full = saved.param.tensor.data
        if full.dtype != saved.dtype:
            full = full.view(saved.dtype)
        return torch.as_strided(full, saved.size, saved.stride, saved.offset)

    # ---- the engine's calls ---------------------------------------------------------------

    def call(self, function, *arguments):
        """A call of the C library on this unit, in a range of the profiler."""
        with self.range(function):
            check(getattr(lib, function)(self.handle, *arguments))

    def begin_backward(self):
        """Gradients can be given from here on."""
        self.call("hp_backward_begin")
        for param in self.params:
            param.is_given = False

    def range(self, name):
        """A range of torch.profiler, "NAME unit", as the C trace has it."""
        known = self._ranges.get(name)
        if known is None:
            known = self._ranges[name] = torch._C._profiler._RecordFunctionFast(
                f"{name} {self.name}")
        return known

# SPDX-License-Identifier: Apache-2.0
"""fsdp_module.py - HSDPModule: the methods that a module has from fully_shard.

A flag counts from the next forward on. What the engine is told when it is made can be changed
before the first forward alone, and says so afterwards.
"""

import torch

from hyper_parallel.torch import fsdp_hooks as hooks
from hyper_parallel.torch.fsdp_adopt import adopt, units_in
from hyper_parallel.torch.state_dict import load_shards


def check_bool(name, value):
    """The value; ValueError when it is no bool."""
    if not isinstance(value, bool):
        raise ValueError(f"expected {name} to be a bool, given {value!r}")
    return value


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

    def __call__(self, *args, **kwargs):
        try:
            return super().__call__(*args, **kwargs)
        except Exception:
            raise  # the forward hook has seen it
        except BaseException:  # Ctrl-C, sys.exit(): of these torch tells no hook
            hooks.leave(self._unit(), args, kwargs)
            raise

    def __reduce_ex__(self, protocol):
        raise RuntimeError("expected no copy.deepcopy and no pickle of a module that fully_shard "
                           f"was given, {type(self).__name__}: its shards belong to one engine; "
                           "copy it before fully_shard, and carry weights by get_model_state_dict")

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
            unit.requires_sync = check_bool("requires_gradient_sync", requires_gradient_sync)

    def set_requires_all_reduce(self, requires_all_reduce, *, recurse=True):
        """False, of HSDP: gradients are reduced over the shard dimension alone and join the next
        all-reduce. NotImplementedError without recurse."""
        if not recurse:
            raise NotImplementedError("expected recurse=True: units of a model reduce together")
        for unit in self._units(True):
            unit.requires_all_reduce = check_bool("requires_all_reduce", requires_all_reduce)

    def set_is_last_backward(self, is_last_backward):
        """False: more backwards of this pass are to come; gradients are there after the last."""
        self._tree().is_last_backward = check_bool("is_last_backward", is_last_backward)

    def set_reshard_after_forward(self, reshard_after_forward, recurse=True):
        """As fully_shard's; before the first forward."""
        value = check_bool("reshard_after_forward", reshard_after_forward)
        self._before_first_forward("set_reshard_after_forward")
        for unit in self._units(recurse):
            unit.options.reshard_after_forward = value

    def set_reshard_after_backward(self, reshard_after_backward, recurse=True):
        """A hint, which the engine does not take: it gathers ahead of the next forward anyway."""
        check_bool("reshard_after_backward", reshard_after_backward)

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
        """As nn.Module's; values may be whole, DTensors or this rank's shards. Collective when
        there are shards; the weights must become one model on all ranks. ValueError: a shape."""
        if self._unit().tree is None:
            return super().load_state_dict(state_dict, strict=strict, assign=assign)
        return load_shards(self, state_dict, strict, super().load_state_dict)

# SPDX-License-Identifier: Apache-2.0
"""fsdp_tree.py - the units of one model and their engine: one hp_fsdp, and which pass it is in.

The tree is made at the first forward of its outermost cell. It holds no schedule: it tells the
engine what MindSpore does, and gives MindSpore what the engine has. A pass begins with an outermost
forward and ends with it (evaluation) or with the backward (training), when MindSpore calls back.
What always holds: between passes every parameter is a shard that may be written, by an optimizer or
by hand, and nobody is told: the engine (caller_writes) lets no peer read it then, and the next pass
has what it is.
"""

import weakref

from mindspore.graph.api import _pynative_executor

from hyper_parallel import world as worlds
from hyper_parallel._c import HyperParallelError, check, ffi, lib, new
from hyper_parallel.mindspore.fsdp_units import BACKWARD, IDLE
from hyper_parallel.mindspore.tensors import settle

_trees = weakref.WeakSet()
_memories = weakref.WeakSet()
_dropped = []  # engines that nobody has any more


class _Memory:
    """The engine: it lives as long as a tensor on its memory, or its tree. The last of these may go
    in any thread, but the library is called in the program's: what is left is freed there later."""

    def __init__(self, handle):
        self.handle = handle
        if not _memories:
            worlds.before_shutdown(close_all)
        _memories.add(self)

    def close(self):
        handle, self.handle = self.handle, None
        if handle is not None:
            lib.hp_fsdp_destroy(handle)

    def __del__(self):
        if self.handle is not None:
            _dropped.append(self.handle)


def _free_dropped():
    while _dropped:
        lib.hp_fsdp_destroy(_dropped.pop())


class Tree:
    """units: in the order of cells, the outermost first. Collective."""

    def __init__(self, units):
        self.units = units
        self.order = min(unit.order for unit in units)
        self.options = units[0].options
        self._check_alike()
        self.memory = None
        self.in_pass = self.in_backward = self.is_broken = False
        self.drops_sums = False  # of gradients, before the next pass
        self.kind = lib.HP_EVALUATE
        self.depth = 0
        self.held = []
        mesh = self.options.mesh
        self.n_shards = mesh.shape[-1]
        self.n_replicas = mesh.shape[0] if mesh.ndim == 2 else 1
        self.has_stable_addresses = self.options.mode == "mapped" or self.n_shards == 1
        self._create(mesh)

    def _check_alike(self):
        first = self.units[0]
        for unit in self.units:
            ours, theirs = first.options.shared(), unit.options.shared()
            for name, value in ours.items():
                if theirs[name] != value:
                    raise ValueError(f"expected one {name} in {first.name} and {unit.name}, given "
                                     f"{value} and {theirs[name]}")

    def _create(self, mesh):
        _free_dropped()
        ahead = max((len(u.backward_prefetch) for u in self.units if u.backward_prefetch),
                    default=1)
        out, keep = ffi.new("hp_fsdp **"), []
        config = self.options.config(prefetch=ahead, caller_writes=1)
        check(lib.hp_fsdp_create(mesh.handle, config, out))
        self.memory = _Memory(out[0])
        _trees.add(self)
        try:
            has_lists = any(unit.forward_prefetch is not None for unit in self.units)
            for unit in reversed(self.units) if has_lists else self.units:
                unit.handle = unit.declare(self.handle, self._config(unit, keep), keep)
            check(lib.hp_fsdp_commit(self.handle))
        except BaseException:
            self.memory.close()
            for unit in self.units:
                unit.handle = None
            raise
        for unit in self.units:
            unit.tree = self
        for param in self.params():
            param.move()

    def _config(self, unit, keep):
        config = new("hp_unit_config", factor=unit.options.factor,
                     reshard_after_forward=int(unit.options.reshard_after_forward and
                                               not unit.is_parent),
                     reduce=lib.HP_AVG if unit.options.reduce_op == "avg" else lib.HP_SUM)
        if unit.forward_prefetch is not None:
            handles = [u.handle for u in unit.forward_prefetch]
            if None in handles:
                raise ValueError(f"expected {unit.name} to prefetch units of its model that come "
                                 f"after it, given {[u.name for u in unit.forward_prefetch]}")
            keep.append(ffi.new("hp_unit *[]", handles))
            config.prefetch, config.n_prefetch = keep[-1], len(handles)
        return config

    @property
    def handle(self):
        """The hp_fsdp *. RuntimeError when it is closed."""
        if self.memory.handle is None:
            raise RuntimeError("expected a model whose world lives, it was shut down")
        return self.memory.handle

    def params(self):
        return (param for unit in self.units for param in unit.params)

    # ---- passes -------------------------------------------------------------------------

    def enter(self, is_training):
        """An outermost forward begins."""
        if self.is_broken or self.in_backward:
            raise RuntimeError("expected reset_iter_state() on all ranks first: the last forward "
                               "or backward was left in its middle")
        if self.in_pass and is_training and self.kind == lib.HP_EVALUATE:
            self.end()
        if not self.in_pass:
            self._begin(is_training)

    def _begin(self, is_training):
        settle()
        _free_dropped()
        self._see_writes()
        self.kind = lib.HP_EVALUATE
        if is_training:
            kinds = [self._kind_of(unit) for unit in self.units]
            self.kind = kinds[0]
            for unit, kind in zip(self.units, kinds):
                own = -1 if kind == self.kind else kind
                if own != unit.own_pass:
                    check(lib.hp_unit_set_pass(unit.handle, own))
                    unit.own_pass = own
        check(lib.hp_fsdp_begin(self.handle, self.kind))
        self.in_pass = True

    def _kind_of(self, unit):
        if not (unit.requires_sync and unit.is_last):
            return lib.HP_NO_SYNC
        is_whole = unit.requires_all_reduce or self.n_replicas == 1
        return lib.HP_SYNC if is_whole else lib.HP_DEFER_REPLICATE

    def end(self):
        """End the pass: gradients, where it had any, are what MindSpore gives out."""
        for unit in self.units:
            self.finish_backward(unit)
            unit.hide()
        self._flush_parents()
        check(lib.hp_fsdp_end(self.handle))
        self.in_pass = False
        self.held = []
        for unit in self.units:
            unit.forget()
        if self.kind == lib.HP_EVALUATE:
            return
        for param in self.params():
            param.point_gradient()

    def _flush_parents(self):
        """Units that compute around others give their gradients when all is computed."""
        for unit in self.units:
            if not any(param.pending for param in unit.params):
                continue
            unit.call("hp_backward_begin")
            for param in unit.params:
                if param.pending:
                    param.give_gradient(sum(param.pending[1:], param.pending[0]))
                    param.pending = []
            unit.call("hp_backward_end")

    # ---- backward -----------------------------------------------------------------------

    def begin_backward(self, unit):
        """The first gradient has come to an output of the unit, or to something in it."""
        if not self.in_pass or self.kind == lib.HP_EVALUATE:
            raise RuntimeError(f"expected one backward for each forward of {unit.name}, given one "
                               "more: its pass has ended")
        if not self.in_backward:
            self.in_backward = True
            _pynative_executor.queue_backward_final_callback(self._backward_done)
        if unit.is_parent:
            if not unit.is_shown:
                unit.show()
            return
        for other in self.units:
            self.finish_backward(other)
        unit.call("hp_backward_begin")
        unit.phase = BACKWARD
        unit.n_missing = sum(not param.is_frozen for param in unit.params)
        unit.is_past = False
        unit.show()

    def finish_backward(self, unit):
        """The unit's gradients are complete."""
        if unit.phase == BACKWARD:
            unit.phase = IDLE
            unit.hide()
            unit.n_backwards += 1
            unit.call("hp_backward_end")

    def leave_backward(self, unit):
        """The gradient has come to the unit's inputs. Parameters' may still be on their way."""
        unit.is_past = True
        if not unit.n_missing:
            self.finish_backward(unit)

    def take_gradient(self, param, gradient):
        """A parameter's full gradient is there. Returns what MindSpore gives out in its place.
        MindSpore brings a gradient of zeros, last of all, of what was not used."""
        unit = param.unit
        if unit.is_parent:
            param.pending.append(gradient)
            return param.gradient
        if unit.phase != BACKWARD and not gradient.asnumpy().any():
            return param.gradient
        if unit.phase != BACKWARD:
            try:  # nothing of its outputs could be watched
                self.begin_backward(unit)
            except HyperParallelError as error:
                raise RuntimeError(
                    f"expected the gradient of {param.name} while its unit {unit.name} is in "
                    "backward, given it later: let cells that share a parameter be one unit, "
                    "fully_shard([a, b])") from error
        param.give_gradient(gradient)
        unit.n_missing -= 1
        if unit.is_past and not unit.n_missing:
            self.finish_backward(unit)
        return param.gradient

    def _backward_done(self):
        settle()
        self.in_backward = False
        self.end()

    # ---- writes of shards ---------------------------------------------------------------

    def _see_writes(self):
        """What a parameter was replaced with is written into its shard: this rank's own affair."""
        for param in self.params():
            if param.is_replaced():
                param.take_values()
        if self.drops_sums:
            check(lib.hp_fsdp_update_begin(self.handle))
            check(lib.hp_fsdp_update_end(self.handle))
            self.drops_sums = False

    # ---- by hand ------------------------------------------------------------------------

    def hold(self, unit, wait):
        """Gather a unit by hand."""
        if not self.in_pass:
            self._begin(False)
        unit.call("hp_unit_unshard", int(wait))
        if unit not in self.held:
            self.held.append(unit)

    def let_go(self, unit):
        """Free what hold has gathered."""
        if not self.in_pass or unit not in self.held or unit.phase != IDLE:
            return
        unit.hide()
        unit.call("hp_unit_reshard")
        self.held.remove(unit)
        if not self.held and self.kind == lib.HP_EVALUATE and not self.depth:
            self.end()

    # ---- the end ------------------------------------------------------------------------

    def leave(self):
        """An exception has left a forward in its middle."""
        self.is_broken = True
        for unit in self.units:
            unit.hide()

    def reset(self):
        """Drop the pass and its gradients; collective. MindSpore's record of it goes too: it would
        take the next network for a part of the one that was left."""
        settle()
        _pynative_executor.clear_res()
        check(lib.hp_fsdp_reset(self.handle))
        self.in_pass = self.in_backward = self.is_broken = False
        self.depth = 0
        self.held = []
        for unit in self.units:
            unit.hide()
            unit.forget()
        for param in self.params():
            param.pending = []

    def close(self):
        """The parameters keep copies of their shards; the engine is gone."""
        settle()
        for param in self.params():
            param.leave()
        settle()
        self.memory.close()


def close_all():
    """Before the world is shut down."""
    for tree in sorted(_trees, key=lambda tree: tree.order):
        if tree.memory.handle is not None:
            tree.close()
    for memory in list(_memories):  # of models that are no more
        memory.close()
    _free_dropped()
    _trees.clear()
    _memories.clear()

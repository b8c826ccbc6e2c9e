# SPDX-License-Identifier: Apache-2.0
"""fsdp_tree.py - all units under one root module as one hp_fsdp, and its passes.

A pass begins with the outermost forward and ends with the backward after which no outermost forward
of it waits for one, whose graph still lives; evaluation (no_grad) ends with its forward. What
happens when inside of a pass is the C engine's. Gradients of the shards are in param.grad from the
end of the pass on. Between passes anybody may write the shards (hp_fsdp_config.caller_writes), each
rank as it likes: nothing collective follows from what a rank finds written. Optimizers and loads do
it between hp_fsdp_update_begin and end, which end an open pass and drop what was accumulated.
"""

import itertools
import weakref

import torch

from hyper_parallel import world as worlds
from hyper_parallel._c import NULL, HyperParallelError, check, lib
from hyper_parallel.torch.fsdp_commit import commit
from hyper_parallel.torch.fsdp_units import BACKWARD, IDLE

_trees = weakref.WeakSet()
_order = itertools.count()


class Tree:
    """units: in the order of their modules. They must agree in mesh, mode and precision."""

    def __init__(self, root, units):
        self.root_module, self.units = root, units
        self.memory = None
        self.in_pass = self.in_update = self.in_backward = self.in_optimizer = False
        self.is_broken = self.is_last_backward = True
        self.kind = lib.HP_SYNC
        self.depth = 0  # of forwards that are open
        self.awaited = []  # weak references to outermost forwards of this pass (_Outputs)
        self.had_backward = False  # in this pass
        self.backward_task = -1  # autograd's number of the backward that runs
        self.kept = {}  # gradients of earlier passes, that the next one's are added to
        self.versions = 0
        self.held = []  # units gathered by hand
        self.ranges = {}
        commit(self)
        self.note_versions()
        self.is_broken = False
        self.order = next(_order)
        if not _trees:
            worlds.before_shutdown(close_all)
        _trees.add(self)

    @property
    def handle(self):
        """The hp_fsdp *. RuntimeError when it is closed."""
        if self.memory.handle is None:
            raise RuntimeError("expected a model whose world lives, it was shut down")
        return self.memory.handle

    def call(self, function, *arguments):
        """A call of the C library on the fsdp, in a range of torch.profiler."""
        if function not in self.ranges:
            self.ranges[function] = torch._C._profiler._RecordFunctionFast(function)
        with self.ranges[function]:
            check(getattr(lib, function)(self.handle, *arguments))

    def params(self):
        return (param for unit in self.units for param in unit.params)

    # ---- passes ---------------------------------------------------------------------------

    def enter(self, is_training):
        """An outermost forward begins."""
        if self.is_broken:
            raise RuntimeError("expected reset_iter_state() on all ranks first: the last forward "
                               "or backward was left in its middle")
        was_written = self.in_pass and self.is_written()
        if was_written and self.mode == "mapped":
            raise RuntimeError("expected weights of mode mapped to be written after a backward, an "
                               "evaluation or hsdp_sync_stream(): others may be reading them, in "
                               "the pass of a forward whose backward has not come")
        if self.in_pass and (was_written or is_training and self.kind == lib.HP_EVALUATE):
            held = self.held  # by hand, before the forward
            self.end()
            self.begin(is_training)
            for unit in held:
                self.hold(unit, False)
        elif not self.in_pass:
            self.begin(is_training)

    def begin(self, is_training):
        """Begin a pass: a training one as the units' flags say, or an evaluation."""
        for param in self.params():
            param.check_owner()
        self.see_writes()
        self.kind = lib.HP_EVALUATE
        if is_training:
            kinds = [self._kind_of(unit) for unit in self.units]
            self.kind = kinds[0]
            for unit, kind in zip(self.units, kinds):
                own = -1 if kind == self.kind else kind
                if own != unit.own_pass:
                    check(lib.hp_unit_set_pass(unit.handle, own))
                    unit.own_pass = own
            self._keep_gradients()
        self.note_versions()
        self.call("hp_fsdp_begin", self.kind)
        self.in_pass, self.had_backward = True, False
        self.awaited = []

    def _kind_of(self, unit):
        if not unit.requires_sync:
            return lib.HP_NO_SYNC
        is_whole = unit.requires_all_reduce or self.n_replicas == 1
        return lib.HP_SYNC if is_whole else lib.HP_DEFER_REPLICATE

    def _keep_gradients(self):
        for param in self.params():
            if param.is_frozen and param.tensor.requires_grad:
                raise RuntimeError(f"expected {param.name} to stay frozen, as it was at the first "
                                   "forward, given requires_grad=True")
            grad, param.tensor.grad = param.tensor.grad, None
            if grad is not None:
                self.kept[param] = grad.clone() if param.is_gradient_shard(grad) else grad

    def end(self):
        """End the pass: gradients are in param.grad."""
        for unit in self.units:
            self.finish_backward(unit)
        if self.kind != lib.HP_EVALUATE:
            self._flush_parents()
        self.call("hp_fsdp_end")
        self.in_pass = False
        self.held = []
        for unit in self.units:
            if unit.is_shown:
                unit.hide()
        if self.kind != lib.HP_EVALUATE:
            self._hand_out_gradients()
        if self.in_optimizer:
            self.begin_update()

    def _flush_parents(self):
        """Units that compute around others give their gradients when all is computed."""
        for unit in self.units:
            if unit.is_parent and any(p.tensor.grad is not None for p in unit.params):
                unit.begin_backward()
                for param in unit.params:
                    if param.tensor.grad is not None:
                        param.give_gradient()
                unit.call("hp_backward_end")

    def _hand_out_gradients(self):
        for param in self.params():
            kept = self.kept.pop(param, None)
            is_reduced = self._kind_of_pass(param.unit) == lib.HP_SYNC and self.had_backward
            if not is_reduced or param.is_frozen:
                param.tensor.grad = kept
                continue
            if not param.tensor.requires_grad:
                continue
            grad = param.gradient_shard()
            if kept is not None:
                grad.add_(kept)
            param.hand_out(grad)

    def _kind_of_pass(self, unit):
        return self.kind if unit.own_pass < 0 else unit.own_pass

    def settle(self):
        """End a pass that waits for a backward that did not come."""
        if self.in_pass and not self.is_broken:
            if self.depth or self.in_backward:
                raise RuntimeError("expected the end of the forward or backward that is running")
            self.end()

    # ---- backward -------------------------------------------------------------------------

    def begin_backward(self, unit):
        """The first gradient has come to an output of the unit, or to something in it."""
        if not self.in_pass or self.kind == lib.HP_EVALUATE:
            raise RuntimeError(
                f"expected one backward for each forward of {unit.name}, given one more: its pass "
                "has ended; add up losses before backward, or call the model again")
        if not self.in_backward:
            for param in self.params():
                param.check_accumulated()
            self.in_backward = self.had_backward = True
            self.backward_task = torch._C._current_graph_task_id()
            torch.autograd.Variable._execution_engine.queue_callback(self._backward_done)
        if unit.is_parent:
            unit.show()
            return
        self.finish_backward(unit)
        unit.begin_backward()
        unit.phase = BACKWARD
        unit.n_missing = sum(param.tensor.requires_grad for param in unit.params)
        unit.show()
        unit.range("backward").__enter__()

    def finish_backward(self, unit):
        """The unit's gradients are complete."""
        if unit.phase == BACKWARD:
            unit.range("backward").__exit__(None, None, None)
            unit.phase = IDLE
            unit.hide()
            unit.call("hp_backward_end")

    def take_gradient(self, param):
        """Autograd has accumulated a parameter's full gradient."""
        unit = param.unit
        if unit.is_parent:
            return
        if unit.phase != BACKWARD:
            try:  # nothing of its outputs could be watched
                self.begin_backward(unit)
            except HyperParallelError as error:
                raise RuntimeError(
                    f"expected the gradient of {param.name} while its unit {unit.name} is in "
                    "backward, given it later: let modules that share a parameter be one unit, "
                    "fully_shard([a, b])") from error
        param.give_gradient()
        if torch._C._current_graph_task_id() != self.backward_task:
            return  # of a segment that reentrant checkpointing differentiates: more may come
        unit.n_missing -= 1
        if not unit.n_missing and not unit.has_inputs:
            self.finish_backward(unit)

    def _backward_done(self):
        self.in_backward = False
        for unit in self.units:
            self.finish_backward(unit)
            if unit.is_shown:
                unit.hide()
        forwards = [forward() for forward in self.awaited]
        is_awaited = any(forward is not None and not forward.is_begun for forward in forwards)
        if self.in_pass and not is_awaited and self.is_last_backward:
            self.end()

    # ---- writes of shards -----------------------------------------------------------------

    def begin_update(self):
        self.settle()
        if not self.in_update:
            self.call("hp_fsdp_update_begin")
            self.in_update = True

    def end_update(self):
        if self.in_update:
            self.take_data()
            self.call("hp_fsdp_update_end")
            self.in_update = False

    def _version(self):
        return sum(param.tensor._version for param in self.params())

    def note_versions(self):
        self.versions = self._version()

    def take_data(self):
        """What somebody assigned to a parameter's data is in its shard."""
        _ = self.handle  # whose memory it is, if it is open
        for param in self.params():
            if param.has_other_data():
                param.take_data()

    def is_written(self):
        """Has this rank written weights since the pass began?"""
        return self._version() != self.versions or any(
            param.has_other_data() for param in self.params())

    def see_writes(self):
        """Between passes: the shards are the weights, as they were written."""
        if self.in_update:
            self.end_update()
        self.take_data()

    # ---- by hand --------------------------------------------------------------------------

    def hold(self, unit, wait):
        if not self.in_pass:
            self.begin(False)
        unit.call("hp_unit_unshard", int(wait))
        if unit not in self.held:
            self.held.append(unit)

    def let_go(self, unit):
        if not self.in_pass or unit not in self.held or unit.phase != IDLE:
            return
        unit.hide()
        unit.call("hp_unit_reshard")
        self.held.remove(unit)
        if not self.held and self.kind == lib.HP_EVALUATE and not self.depth:
            self.end()

    # ---- the end --------------------------------------------------------------------------

    def write_trace(self, path):
        if self.handle and self.memory.trace == NULL:
            raise RuntimeError("expected record_trace() before the first forward")
        self.settle()
        check(lib.hp_trace_write(self.memory.trace, str(path).encode()))

    def leave(self):
        """An exception has left a forward in its middle."""
        self.is_broken = True
        for unit in self.units:
            unit.hide()

    def reset(self):
        """Drop the pass and its gradients; collective."""
        self.in_optimizer = False  # a step that an exception has left
        if self.in_update:
            self.end_update()
        self.call("hp_fsdp_reset")
        self.in_pass = self.in_backward = self.is_broken = False
        self.depth, self.awaited = 0, []
        self.held = []
        self.kept.clear()
        for unit in self.units:
            unit.forget()
        for param in self.params():
            param.tensor.grad = None

    def close(self):
        """The parameters keep copies of their shards; the engine is gone."""
        for param in self.params():
            if param.shard is not None:
                if not param.has_other_data():
                    param.tensor.data = param.shard.clone()
                grad, param.tensor.grad = param.tensor.grad, None
                if grad is not None and grad.dtype is param.tensor.dtype:
                    param.tensor.grad = grad.clone()
        self.memory.close()


def all_trees():
    """In one order on all ranks."""
    return sorted(_trees, key=lambda tree: tree.order)


def close_all():
    """Before the world is shut down; the ranks close their trees in one order."""
    for tree in all_trees():
        tree.close()
    _trees.clear()

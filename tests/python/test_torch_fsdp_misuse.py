# SPDX-License-Identifier: Apache-2.0
"""test_torch_fsdp_misuse.py - what fully_shard refuses, in which words, and how programs go on.

Exceptions in the middle of a pass, ranks that die, units gathered by hand, state dicts, clipping,
groups and meshes, and the ranges that torch.profiler shows.
"""

import copy
import json
import os
import pickle
import signal
import time

import pytest

torch = pytest.importorskip("torch")

import ranks  # noqa: E402
from fsdp_models import (  # noqa: E402
    WIDTH,
    Net,
    batches,
    close,
    everything,
    mean,
    mine,
    net,
    shard,
    train,
)
from torch import nn  # noqa: E402

import hyper_parallel as hp  # noqa: E402
from hyper_parallel import world as worlds  # noqa: E402

MODES = ["per-param", "fused", "fused-zero-copy", "mapped"]


class FULL:
    full_state_dict = True


class Failing(Net):
    """Raises where it is told to."""

    fails = None

    def forward(self, x):
        x = self.blocks[0](self.first(x))
        if self.fails == "forward":
            raise ZeroDivisionError("forward")
        x = self.blocks[1](x)
        if self.fails == "backward" and x.requires_grad:
            x.register_hook(self.fail)
        return self.last(self.blocks[2](x))

    @staticmethod
    def fail(_grad):
        raise ZeroDivisionError("backward")


def exceptions():
    for mode in MODES:
        data = batches(4)
        expected = train(net(), data, everything)
        model = shard(net(Failing), mode=mode)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses = []
        for k, batch in enumerate(data):
            model.fails = (None, "forward", "backward", None)[k]
            if model.fails:
                # or that the other rank has reset before
                with pytest.raises((ZeroDivisionError, hp.HyperParallelError),
                                   match=f"{model.fails}|has reset it"):
                    model(mine(batch)).square().mean().backward()
                with pytest.raises(RuntimeError, match="reset"):
                    model(mine(batch))
                model.fails = None
                assert model.first.weight.shape == (WIDTH // 2, WIDTH) or mode == "mapped"
                model.reset_iter_state()
            loss = model(mine(batch)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        close(mean(losses), expected)


def test_exceptions_and_reset():
    ranks.together(2, exceptions)


class Interrupted(Net):
    """As by Ctrl-C in the middle of a block, of which torch tells no hook."""

    is_on = True

    def forward(self, x):
        def interrupt(*_):
            if self.is_on:
                raise KeyboardInterrupt

        self.blocks[1].b.register_forward_hook(interrupt)
        return super().forward(x)


def interrupted():
    data = batches(2)
    expected = train(net(), data, everything)
    model = shard(net(Interrupted))
    with pytest.raises((KeyboardInterrupt, hp.HyperParallelError)):  # or the other has reset
        model(mine(data[0]))
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    with pytest.raises(RuntimeError, match="reset"):
        model(mine(data[0]))
    model.is_on = False
    model.reset_iter_state()
    close(mean(train(model, data, mine)), expected)


def test_ctrl_c():
    ranks.together(2, interrupted)


def copied_and_assigned():
    """What would leave the engine behind is refused."""
    x = batches(1)[0]
    model = shard(net())
    model(x)
    for copy_of in copy.copy, copy.deepcopy, pickle.dumps:
        with pytest.raises(RuntimeError, match="no copy.deepcopy and no pickle.*HSDPNet"):
            copy_of(model)
    model.to(torch.bfloat16)
    with pytest.raises(ValueError, match="float32 in first.weight, given torch.bfloat16"):
        model(x)
    model = shard(net())
    model(x).sum().backward()
    with pytest.raises(RuntimeError, match="given torch.autograd.grad|has reset it"):
        torch.autograd.grad(model(x).sum(), list(model.parameters()))
    model.reset_iter_state()
    model.last.weight = nn.Parameter(torch.ones(1, WIDTH))
    with pytest.raises(RuntimeError, match="expected last.weight to be the parameter"):
        model(x)


def test_copies_and_assignments():
    ranks.together(2, copied_and_assigned)


def compiled():
    data = batches(2)
    expected = train(net(), data, everything)
    model = shard(net())
    for block in model.blocks:
        block.compile(backend="eager")
    close(mean(train(model, data, mine)), expected)

    @torch.compile(backend="eager")
    def twice(x):
        return hp.symm.shmem_allreduce(x * 2) + 1

    x = torch.ones(3, requires_grad=True)
    twice(x).sum().backward()
    assert twice(x).tolist() == [5.0] * 3 and x.grad.tolist() == [2.0] * 3


def test_torch_compile():
    ranks.together(2, compiled)


def refusals():
    model = net()
    with pytest.raises(ValueError, match="list of modules that is not empty, given"):
        hp.fully_shard([])
    with pytest.raises(ValueError, match="given ModuleList: give its elements"):
        hp.fully_shard(model.blocks)
    with pytest.raises(TypeError, match="replicate_params to be a set of parameters"):
        hp.fully_shard(model, replicate_params=3)
    with pytest.raises(ValueError, match="1 dimension .shard. or 2"):
        hp.fully_shard(model, mesh=hp.init_device_mesh("cpu", (1, 1, 2)))
    with pytest.raises(ValueError, match="reshard_after_forward to be a bool, given 2"):
        hp.fully_shard(model, reshard_after_forward=2)
    with pytest.raises(ValueError, match="number of ranks, 2, given .3,."):
        hp.init_device_mesh("cpu", (3,))
    with pytest.raises(ValueError, match='"cpu", given .npu.'):
        hp.init_device_mesh("npu", (2,))
    with pytest.raises(hp.HyperParallelError, match="fused-zero-copy.*given .*quick"):
        hp.fully_shard(model, mode="quick")
    shard(model)
    assert type(model).__name__ == "HSDPNet" and isinstance(model, (Net, hp.HSDPModule))
    with pytest.raises(ValueError, match="no unit yet, given HSDPNet"):
        hp.fully_shard(model)
    with pytest.raises(ValueError, match="to be a bool, given 1"):
        model.set_requires_gradient_sync(1)
    with pytest.raises(ValueError, match='"avg" or "sum", given .max.'):
        model.set_reduce_op_type("max")
    with pytest.raises(NotImplementedError, match="recurse=True"):
        model.set_requires_all_reduce(False, recurse=False)
    with pytest.raises(ValueError, match="fully_shard was given, given Linear"):
        model.set_modules_to_forward_prefetch([model.first])
    loss = model(batches(1)[0]).square().mean()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="one backward for each forward"):
        loss.backward()
    model.reset_iter_state()
    with pytest.raises(RuntimeError, match="set_reduce_op_type before the first forward"):
        model.set_reduce_op_type("sum")
    other = net()
    hp.fully_shard(other.blocks[0], mode="fused")
    hp.fully_shard(other)
    with pytest.raises(ValueError, match="expected one mode in"):
        other(batches(1)[0])
    with pytest.raises(TypeError, match="param_dtype to be fp32, bf16 or fp16, given torch.float8"):
        shard(net(), mp_policy=hp.MixedPrecisionPolicy(param_dtype=torch.float8_e4m3fn))(x=None)
    with pytest.raises(TypeError, match="expected last.bias of one of float64, .* torch.complex64"):
        odd = net()
        odd.last.bias = nn.Parameter(torch.ones(1, dtype=torch.complex64))
        shard(odd)(batches(1)[0])
    thawed = net()
    thawed.first.bias.requires_grad_(False)
    shard(thawed)(batches(1)[0]).sum().backward()
    thawed.first.bias.requires_grad_(True)
    with pytest.raises(RuntimeError, match="expected first.bias to stay frozen"):
        thawed(batches(1)[0])
    empty = hp.fully_shard(nn.Linear(2, 2, device="meta"))
    with pytest.raises(RuntimeError, match="on the meta device"):
        empty(torch.ones(1, 2))
    unequal = shard(net(n_blocks=1 + worlds.world().rank))
    with pytest.raises(hp.HyperParallelError, match="number of units on ranks 0 and 1") as caught:
        unequal(batches(1)[0])
    assert caught.value.status == "HP_ERR_MISMATCH"


def test_refusals():
    ranks.together(2, refusals)


def by_hand():
    for mode in MODES:
        model = shard(net(), mode=mode)
        whole = net()
        block = model.blocks[1]
        block.unshard()
        assert torch.equal(block.a.weight, whole.blocks[1].a.weight)
        block.reshard()
        assert block.a.weight.shape != whole.blocks[1].a.weight.shape
        handle = block.unshard(async_op=True)
        handle.wait()
        handle.wait()
        loss = model(mine(batches(1)[0])).square().mean()
        loss.backward()
        hp.hsdp_sync_stream()
        assert block.a.weight.grad.shape == block.a.weight.shape
        with torch.no_grad():
            model.unshard()
            assert torch.equal(model.first.weight, whole.first.weight)
            model.reshard()
        close(mean(train(model, batches(2), mine)), train(net(), batches(2), everything))


def test_units_gathered_by_hand():
    ranks.together(2, by_hand)


def one_layer_after_another():
    """Without a root every unit is a model of its own."""
    model = net()
    for block in model.blocks:
        hp.fully_shard(block)
    plain = [p for name, p in model.named_parameters() if "blocks" not in name]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for batch in batches(4):
        loss = model(batch).square().mean()  # the same on both ranks
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    close(losses, train(net(), batches(4), everything))
    assert not any(hasattr(p, "_hyper_parallel") for p in plain)
    model(batches(1)[0]).square().mean().backward()
    whole = net()
    whole.load_state_dict(hp.get_model_state_dict(model, options=FULL))
    whole(batches(1)[0]).square().mean().backward()
    norm = nn.utils.clip_grad_norm_(whole.parameters(), 1e-3)
    close([hp.clip_grad_norm_(model.parameters(), 1e-3).item()], [norm.item()])
    ours, theirs = model.first.weight.grad, whole.first.weight.grad
    assert torch.allclose(ours, theirs, rtol=1e-5, atol=0)


def test_units_without_a_root():
    ranks.together(2, one_layer_after_another)


def state_dicts():
    here = worlds.world()
    for mode in MODES:
        for mesh in ((2, 2), (4,)):
            model, whole = shard(net(), mode=mode, mesh=mesh), net()
            data = batches(2)
            train(model, data, mine)
            train(whole, data, everything)
            full = hp.get_model_state_dict(model, options=FULL)
            assert list(full) == list(whole.state_dict())
            for name, value in whole.state_dict().items():
                assert torch.allclose(full[name], value, atol=1e-5), name
            again = shard(net(), mode=mode, mesh=mesh)
            hp.set_model_state_dict(again, full)  # parameters are whole still
            again(data[0])
            x = mine(data[0])
            assert torch.equal(again(x), model(x))
            twice = {name: 2 * value for name, value in full.items()}
            hp.set_model_state_dict(again, twice)
            sharded = hp.get_model_state_dict(again)
            assert all(torch.equal(sharded[n], p) for n, p in again.named_parameters())
            back = hp.get_model_state_dict(again, options=FULL)
            assert all(torch.equal(back[n], twice[n]) for n in twice)
            again.load_state_dict(hp.get_model_state_dict(model))
            assert torch.equal(again(x), model(x))
            bad = {**twice, "first.weight": torch.ones(3, 3)}
            with pytest.raises(ValueError, match=r"first.weight: expected shape \(10, 10\)"):
                again.load_state_dict(bad)
            del bad["first.weight"]
            with pytest.raises(RuntimeError, match="given none for .'first.weight'."):
                again.load_state_dict(bad)
            assert torch.equal(again(x), model(x))

            class FROM_RANK_0:
                broadcast_from_rank0 = True
            hp.set_model_state_dict(again, full if here.rank == 0 else {}, options=FROM_RANK_0)
            assert torch.equal(again(x), model(x))


@pytest.mark.full
def test_state_dicts():
    ranks.together(4, state_dicts)


def clip_main_gradients():
    x = batches(1)[0]
    policy = hp.MixedPrecisionPolicy(apply_grad_on_fp32_main_grad=True)
    model, other, whole, extra = shard(net(), mp_policy=policy), shard(net()), net(), net()
    for part in (mine(x), mine(x)):  # they add up
        model(part).square().mean().backward()
        whole(x).square().mean().backward()
    theirs = nn.utils.clip_grad_norm_(whole.parameters(), 1e-2)
    close([hp.clip_grad_norm_(model, 1e-2).item()], [theirs.item()])
    close([hp.clip_grad_norm_(model, 1.0).item()], [1e-2], 1e-3)
    other(mine(x)).square().mean().backward()  # the norm of two models
    extra(x).square().mean().backward()
    both = [*model.parameters(), *other.parameters()]
    theirs = nn.utils.clip_grad_norm_([*whole.parameters(), *extra.parameters()], 1e-3)
    close([hp.clip_grad_norm_(both, 1e-3).item()], [theirs.item()])
    close([hp.clip_grad_norm_(both, 1.0).item()], [1e-3], 1e-3)
    assert model.first.weight.grad is None


def clipping():
    for norm_type in (1, 2, float("inf")):
        model, whole = shard(net()), net()
        x = batches(1)[0]
        model(mine(x)).square().mean().backward()
        whole(x).square().mean().backward()
        theirs = nn.utils.clip_grad_norm_(whole.parameters(), 1e-2, norm_type)
        close([hp.clip_grad_norm_(model, 1e-2, norm_type).item()], [theirs.item()])
        own = hp.clip_grad_norm_(model.parameters(), 1.0, norm_type).item()
        close([own], [1e-2], 1e-3)
    clip_main_gradients()
    with pytest.raises(ValueError, match="norm_type 1, 2 or inf, given 3.0"):
        hp.clip_grad_norm_(model, 1.0, 3)
    with pytest.raises(ValueError, match="given some without first.bias"):
        hp.clip_grad_norm_([model.first.weight], 1.0)
    model.first.weight.grad = torch.full_like(model.first.weight, float("inf"))
    with pytest.raises(RuntimeError, match="expected a finite norm"):
        hp.clip_grad_norm_(model, 1.0, error_if_nonfinite=True)
    model.first.weight.grad = None
    assert torch.isfinite(hp.clip_grad_norm_(model, 1.0))


def test_clipping():
    ranks.together(2, clipping)


def with_torch_distributed():
    """With a process group: its DeviceMesh, DTensors in state dicts, groups that are split."""
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor

    dist.init_process_group("gloo")
    mesh = hp.init_device_mesh("cpu", (2,), mesh_dim_names=("shard",))
    assert type(mesh).__name__ == "DeviceMesh"
    model = net()
    for block in model.blocks:
        hp.fully_shard(block, mesh=mesh)
    hp.fully_shard(model, mesh=mesh)
    close(mean(train(model, batches(3), mine)), train(net(), batches(3), everything))
    sharded = hp.get_model_state_dict(model)
    full = hp.get_model_state_dict(model, options=FULL)
    weight = sharded["first.weight"]
    assert isinstance(weight, DTensor) and weight.device_mesh == mesh
    assert torch.equal(weight.full_tensor(), full["first.weight"])
    hp.set_model_state_dict(model, sharded)
    group = hp.collectives.split_group(split_ranks=[[1], [0]])
    assert dist.get_process_group_ranks(group) == [dist.get_rank()]
    dist.destroy_process_group()
    return True


@pytest.mark.full
def test_with_torch_distributed():
    env = {"MASTER_ADDR": "127.0.0.1"}
    assert ranks.values_of(2, with_torch_distributed, launcher="torchrun", env=env) == [True] * 2


def groups_and_meshes():
    mesh = hp.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    here = worlds.world()
    assert mesh.size() == 4 and mesh.size("shard") == 2 and mesh.ndim == 2
    assert (mesh.get_local_rank("replicate"), mesh.get_local_rank("shard")) == divmod(here.rank, 2)
    assert mesh.get_group("shard").ranks == (here.rank // 2 * 2, here.rank // 2 * 2 + 1)
    assert mesh.get_group("shard") is mesh.get_group(1) and mesh.get_rank() == here.rank
    group = hp.collectives.split_group(split_ranks=[[2, 0]])
    assert (group is None) == (here.rank % 2 == 1) and (group is None or group.ranks == (2, 0))
    with pytest.raises(ValueError, match="each once at most"):
        hp.collectives.split_group(split_ranks=[[0, 1], [1]])


def test_groups_and_meshes():
    ranks.together(4, groups_and_meshes)


def profiled(folder):
    from torch.profiler import ProfilerActivity, profile

    model = shard(net(), mode="per-param")
    with pytest.raises(ValueError, match="spans of 1 or more, given 0"):
        model.record_trace(0)
    model.record_trace()
    model(batches(1)[0]).sum().backward()
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        model(batches(1)[0]).sum().backward()
    names = {event.name for event in seen.events()}
    for name in ("hp_forward_begin blocks.1", "hp_backward_end blocks.0", "hp_backward_end root",
                 "hp_fsdp_begin", "hp_fsdp_end"):
        assert name in names, sorted(names)
    path = os.path.join(folder, f"trace{worlds.world().rank}.json")
    model.write_trace(path)
    with open(path) as file:
        events = json.load(file)["traceEvents"]
    traced = {f"{event['name']} {event['args']['unit']}" for event in events
              if event["ph"] == "B" and event["name"] in ("forward", "backward")}
    ours = {name for name in names if name.split()[0] in ("forward", "backward")}
    assert ours | {"backward root"} == traced and len(ours) == 4 + 3
    with pytest.raises(RuntimeError, match="expected record_trace"):
        silent = shard(net())
        silent(batches(1)[0])
        silent.write_trace(path)


def test_ranges_in_the_profiler_and_the_trace(tmp_path):
    ranks.together(2, profiled, str(tmp_path))


def survivor():
    here = worlds.world()
    model = shard(net())
    model(batches(1)[0]).sum().backward()
    if here.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        while True:
            model(batches(1)[0]).sum().backward()
    except hp.HyperParallelError as error:
        with open(os.environ["SAID"], "w") as out:
            out.write(f"{error.rank} {time.monotonic() - began:.3f}")
        raise


def test_a_rank_that_dies_is_named(tmp_path):
    ranks.run(2, survivor, env={"SAID": tmp_path / "said"})
    rank, seconds = (tmp_path / "said").read_text().split()
    assert rank == "1" and float(seconds) < 1.0


def closed():
    model = shard(net())
    model(mine(batches(1)[0])).sum().backward()
    shape = model.first.weight.shape
    worlds.shutdown()
    assert model.first.weight.shape == shape and torch.isfinite(model.first.weight.grad).all()
    with pytest.raises(RuntimeError, match="it was shut down"):
        model(batches(1)[0])
    with pytest.raises(RuntimeError, match="it was shut down"):
        hp.get_model_state_dict(model)
    fresh = shard(net())
    fresh(batches(1)[0]).sum().backward()  # in the world that it joins
    return True


def test_shutdown_leaves_copies():
    assert ranks.together(2, closed) == [True] * 2


def test_one_rank_alone():
    for mode in MODES:
        close(train(shard(net(), mode=mode), batches(3), everything),
              train(net(), batches(3), everything))
    worlds.shutdown()

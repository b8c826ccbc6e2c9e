# SPDX-License-Identifier: Apache-2.0
"""test_torch_fsdp.py - fully_shard trains as the model that is not sharded does.

Transformers' Qwen3 in every mode and on every mesh, then what PyTorch programs do with modules:
checkpointing of both kinds, autocast, lists of modules, tied and frozen parameters, evaluation,
accumulation, several forwards before a backward, optimizers of all sorts.
"""

import functools

import pytest

torch = pytest.importorskip("torch")

import ranks  # noqa: E402
from fsdp_models import (  # noqa: E402
    WIDTH,
    Block,
    Net,
    batches,
    close,
    compare,
    everything,
    mean,
    mine,
    net,
    shard,
    train,
)
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import hyper_parallel as hp  # noqa: E402
from hyper_parallel import world as worlds  # noqa: E402

MODES = [{"mode": "per-param"}, {"comm_fusion": True},
         {"comm_fusion": True, "comm_fusion_zero_copy": False}, {"mode": "mapped"},
         {"mode": "auto"}, {"reshard_after_forward": False}]

# ---- Qwen3 ------------------------------------------------------------------------------------


def qwen3():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, tie_word_embeddings=True)
    return transformers.Qwen3ForCausalLM(config)


def tokens(n):
    random = torch.Generator().manual_seed(1)
    starts = [torch.randint(0, 64, (8, 1), generator=random) for _ in range(n)]
    return [(start + torch.arange(12)) % 64 for start in starts]


def language_loss(model, x):
    return model(input_ids=x, labels=x).loss


def shard_qwen3(model, options):
    if "mesh" in options:
        options = {**options, "mesh": hp.init_device_mesh("cpu", options["mesh"])}
    for layer in model.model.layers:
        hp.fully_shard(layer, **options)
    return hp.fully_shard(model, **options)


MAKE = functools.partial(torch.optim.AdamW, lr=3e-3)


def qwen3_sharded(list_of_options):
    """Losses over 20 steps, for each of the options."""
    return [mean(train(shard_qwen3(qwen3(), options), tokens(20), mine, language_loss, MAKE))
            for options in list_of_options]


@functools.cache
def qwen3_losses():
    losses = train(qwen3(), tokens(20), everything, language_loss, MAKE)
    assert losses[-1] < losses[0]
    return losses


@pytest.mark.parametrize("n, mesh", [
    (2, {}), pytest.param(4, {}, marks=pytest.mark.full),
    pytest.param(4, {"mesh": (2, 2)}, marks=pytest.mark.full)])
def test_qwen3_has_the_losses_of_the_unsharded_model(n, mesh):
    pytest.importorskip("transformers")
    cases = [{**mesh, **mode} for mode in MODES[:4]]
    for losses in ranks.together(n, qwen3_sharded, cases, seconds=150)[0]:
        close(losses, qwen3_losses())


# ---- what programs do -------------------------------------------------------------------------

class Checkpointed(Net):
    """checkpoint around each block, or around all of them."""

    def __init__(self, use_reentrant, is_segment, inside=False):
        super().__init__()
        self.use_reentrant, self.is_segment = use_reentrant, is_segment

    def run(self, x):
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, x):
        x = self.first(x)
        if self.is_segment:
            return self.last(checkpoint(self.run, x, use_reentrant=self.use_reentrant))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.use_reentrant)
        return self.last(x)


class InnerCheckpoint(Block):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=self.use_reentrant)


def checkpointing():
    for mode in MODES:
        for use_reentrant in (False, True):
            for is_segment in (False, True):
                compare(lambda: net(Checkpointed, use_reentrant=use_reentrant,
                                    is_segment=is_segment), lambda m: shard(m, **mode), n_steps=3)

            def inner():
                model = net()
                for block in model.blocks:
                    block.__class__ = InnerCheckpoint
                    block.use_reentrant = use_reentrant
                return model
            compare(inner, lambda m: shard(m, **mode), n_steps=3)


def test_activation_checkpointing():
    ranks.together(2, checkpointing)


class Shared(nn.Module):
    """A block in two segments, and outside of them, of a module that is one unit."""

    def __init__(self):
        super().__init__()
        self.first, self.block = nn.Linear(WIDTH, WIDTH), Block()

    def forward(self, x):
        x = self.first(x)
        for _ in range(2):
            x = checkpoint(self.block, x, use_reentrant=True)
        return self.block(x)


def shared_segments():
    for mode in MODES[:4]:
        compare(lambda: net(Shared), lambda m: hp.fully_shard(m, **mode), n_steps=3)


def test_a_block_in_several_segments():
    ranks.together(2, shared_segments)


def meshes():
    for options in ({"mesh": (2, 2)}, {"mesh": (1, 4)}, {"mesh": (4, 1)}, {"mesh": (4,)}):
        for mode in MODES[:4]:
            compare(net, lambda m: shard(m, **options, **mode), clip=True, max_norm=0.05)


def test_meshes_and_rows_that_do_not_divide():
    ranks.together(4, meshes)


def with_autocast(model, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(x).float().square().mean()


def autocast():
    for mode in MODES[:4]:
        compare(net, lambda m: shard(m, **mode), loss_of=with_autocast, tolerance=1e-2)
    # The same rounding in the same places: one rank's whole batch on both is bit for bit.
    data = batches(4)
    expected = train(net(), data, everything, with_autocast)
    close(train(shard(net()), data, everything, with_autocast), expected, 1e-5)


def test_autocast():
    ranks.together(2, autocast)


def listed(model):
    hp.fully_shard([model.first, model.last])
    hp.fully_shard([model.blocks[0], model.blocks[1]])
    return hp.fully_shard(model)


class Tied(Net):
    """Two blocks share a weight, and the last layer is the first one again."""

    def __init__(self):
        super().__init__(2)
        self.last = nn.Linear(WIDTH, WIDTH)
        self.last.weight = self.first.weight
        self.blocks[1].a.weight = self.blocks[0].a.weight


class Frozen(Net):
    def __init__(self):
        super().__init__()
        self.first.weight.requires_grad_(False)
        self.blocks[1].requires_grad_(False)
        self.blocks[2].scale.requires_grad_(False)


def lists_ties_and_frozen_parameters():
    for mode in MODES:
        compare(net, listed)
        model = compare(lambda: net(Tied), lambda m: (
            hp.fully_shard([m.blocks[0], m.blocks[1]], **mode), hp.fully_shard(m, **mode))[1])
        assert model.last.weight is model.first.weight
        model = compare(lambda: net(Frozen), lambda m: shard(m, **mode))
        assert model.blocks[1].a.weight.grad is None
        whole = hp.get_model_state_dict(model, options=FULL)
        assert torch.equal(whole["blocks.1.a.weight"], net(Frozen).blocks[1].a.weight)


class FULL:
    full_state_dict = True


def test_lists_of_modules_tied_and_frozen_parameters():
    ranks.together(2, lists_ties_and_frozen_parameters)


def evaluation():
    for mode in MODES:
        data, made = batches(4), []

        def loss_of(model, x):
            with torch.no_grad():
                made.append(model(x).sum().item())
            with torch.inference_mode():
                made.append(model(x).sum().item())
            return model(x).square().mean()

        expected = train(net(), data, everything, loss_of)
        whole, made = mean(made), []
        model = shard(net(), **mode)
        close(mean(train(model, data, mine, loss_of)), expected)
        assert torch.allclose(torch.tensor(mean(made)) * 2, torch.tensor(whole), rtol=1e-5)
        model.eval()
        with torch.no_grad():
            again = [model(mine(data[0])) for _ in range(2)]
        assert torch.equal(*again)


def test_evaluation_between_steps_and_inside_of_one():
    ranks.together(2, evaluation)


def accumulate(model, data, part, sync, all_reduce=None, n_passes=3):
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
    for batch in data:
        for k, x in enumerate(part(batch).chunk(n_passes)):
            is_last = k == n_passes - 1
            if hasattr(model, "set_requires_gradient_sync"):
                model.set_requires_gradient_sync(is_last or sync)
                if all_reduce is not None:
                    model.set_requires_all_reduce(is_last or all_reduce)
            loss = model(x).square().sum()
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def accumulation():
    random = torch.Generator().manual_seed(9)
    data = [torch.randn(24, WIDTH, generator=random) for _ in range(3)]

    def expected_parts(batch):  # in the order in which the ranks' chunks are taken
        parts = [part.chunk(3) for part in batch.chunk(4)]
        return torch.cat([torch.cat([part[k] for part in parts]) for k in range(3)])

    scaled = net()
    expected = accumulate(scaled, data, lambda batch: expected_parts(batch), True)
    for mesh in ((4,), (2, 2)):
        for mode in MODES[:4]:
            for sync, all_reduce in ((True, None), (False, None), (True, False)):
                model = net()
                shard(model, mesh=mesh, **mode).set_reduce_op_type("sum")
                ours = accumulate(model, data, mine, sync, all_reduce)
                close([4 * loss for loss in mean(ours)], expected, 3e-6)


def test_accumulation_with_and_without_communication():
    ranks.together(4, accumulation)


def both_at_once(model, x):
    a, b = x.chunk(2)
    return model(a).square().mean() / 2 + model(b).square().mean() / 2


def each_for_itself(model, data, part):
    """Two forwards, then a backward of each; returns losses."""
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for batch in data:
        a, b = part(batch).chunk(2)
        first, second = model(a).square().mean() / 2, model(b).square().mean() / 2
        first.backward()
        second.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append((first + second).item())
    return losses


def several_forwards():
    data = batches(4)
    expected = each_for_itself(net(), data, everything)
    for mode in MODES:
        compare(net, lambda m: shard(m, **mode), loss_of=both_at_once)
        close(mean(each_for_itself(shard(net(), **mode), data, mine)), expected)

        def wasted(model, x):  # a forward that no backward follows
            model(x)
            return model(x).square().mean()
        compare(net, lambda m: shard(m, **mode), loss_of=wasted)


def test_several_forwards_before_a_backward():
    ranks.together(2, several_forwards)


OPTIMIZERS = [
    functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    functools.partial(torch.optim.Adam, lr=1e-2, amsgrad=True),
    functools.partial(torch.optim.AdamW, lr=1e-2, fused=True),
    functools.partial(torch.optim.AdamW, lr=1e-2, foreach=True),
    functools.partial(torch.optim.RMSprop, lr=1e-2),
    functools.partial(torch.optim.Adagrad, lr=1e-2),
]


def committed(model, mode):
    shard(model, **mode).commit()
    return model


def with_closure(model, data, part, fails=False):
    """The step computes loss and gradients; an exception in it is no step."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for batch in data:
        def closure(batch=batch):
            optimizer.zero_grad()
            loss = model(part(batch)).square().mean()
            loss.backward()
            return loss

        def failing(closure=closure):
            closure()
            raise ZeroDivisionError

        if fails:
            with pytest.raises(ZeroDivisionError):
                optimizer.step(failing)
            model.reset_iter_state()
        losses.append(optimizer.step(closure).item())
    return losses


def optimizers():
    expected = with_closure(net(), batches(4), everything)
    for mode in (MODES[0], MODES[3]):
        for fails in (False, True):
            close(mean(with_closure(shard(net(), **mode), batches(4), mine, fails)), expected)
    for make in OPTIMIZERS:
        for mode in (MODES[0], MODES[3]):
            compare(net, lambda m: committed(m, mode), optimizer=make, tolerance=3e-6)
    model = shard(net())
    early = torch.optim.Adagrad(model.parameters())
    model(batches(1)[0]).sum().backward()
    with pytest.raises(RuntimeError, match=r"call model.commit\(\) before Adagrad is made"):
        early.step()


def test_any_optimizer():
    ranks.together(2, optimizers)


def halve(model, how):
    with torch.no_grad():
        for p in model.parameters():
            if how == "data":
                p.data = p.data * 0.5
            elif how == "data in place":
                p.data.mul_(0.5)
            else:
                p.mul_(0.5)


def written_by_hand():
    """Weights that no optimizer writes are seen, also where the engine keeps copies of them."""
    policy = hp.MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    x = batches(1)[0]
    for mode in MODES[:4]:
        for options in ({}, {"mp_policy": policy}):
            model, whole = shard(net(), **options, **mode), net()
            model(x).sum().backward()
            before = model(x).detach()
            for how in ("in place", "data in place", "data"):
                hp.hsdp_sync_stream()  # no backward comes
                halve(model, how)
                halve(whole, how)
                after = model(x).detach()
                assert not torch.equal(before, after)
                assert torch.allclose(after.float(), whole(x), rtol=0.1, atol=0.02)
                before = after
            weight = model.first.weight
            assert weight.data_ptr() == weight._hyper_parallel.shard.data_ptr()
            halve(model, "in place")  # in the open pass
            if mode == MODES[3]:
                with pytest.raises(RuntimeError, match="mode mapped to be written after a backw"):
                    model(x)
            else:
                assert not torch.equal(model(x), before)


def written_on_one_rank():
    """What a rank writes by itself, others need not know."""
    data = batches(3)
    for mode in MODES[:4]:
        model = shard(net(), **mode)
        train(model, data, mine)
        weight = model.first.weight
        for rank in (1, 0):
            if worlds.world().rank == rank:
                with torch.no_grad():
                    weight.data = torch.zeros_like(weight) if rank else weight.zero_()
            with torch.no_grad():
                model(data[0])
        full = hp.get_model_state_dict(model, options=FULL)
        assert not full["first.weight"].any() and full["first.bias"].any()
        train(model, data, mine)
        model.reset_iter_state()  # ranks agree on how often weights were updated
        weight.data = torch.zeros(3)
        with pytest.raises(ValueError, match=r"this rank's shard, in first.weight, given \(3,\)"):
            model(data[0])


def test_weights_written_by_hand():
    ranks.together(2, written_by_hand)


def test_weights_written_on_one_rank():
    ranks.together(2, written_on_one_rank)


def precision():
    def sharded(model):
        low = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}
        for block in model.blocks:
            hp.fully_shard(block, mp_policy=hp.MixedPrecisionPolicy(**low))
        return hp.fully_shard(model, mp_policy=hp.MixedPrecisionPolicy(
            **low, output_dtype=torch.float32))
    compare(net, sharded, tolerance=3e-2)
    model = shard(net(), mp_policy=hp.MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, apply_grad_on_fp32_main_grad=True))
    seen = []
    model.blocks[0].register_forward_pre_hook(
        lambda module, args: seen.append((args[0].dtype, module.a.weight.dtype)))
    for _ in range(2):
        assert model(mine(batches(1)[0])).dtype == torch.bfloat16
    model(mine(batches(1)[0])).float().sum().backward()
    assert set(seen) == {(torch.bfloat16, torch.bfloat16)}
    weight = model.blocks[0].a.weight
    assert weight.dtype == torch.float32 and weight.grad is None
    once = weight.main_grad.clone()
    model(mine(batches(1)[0])).float().sum().backward()
    assert torch.allclose(weight.main_grad, 2 * once)


def test_mixed_precision():
    ranks.together(2, precision)


def placement():
    class Shard:
        def __init__(self, dim):
            self.dim = dim

    def second(param):
        return Shard(1) if param.ndim == 2 and param.shape[1] % 2 == 0 else None

    model = net()
    bias = model.last.bias
    compare(net, lambda m: shard(m, shard_placement_fn=second))
    made = shard(model, shard_placement_fn=second, replicate_params={bias})
    made(batches(1)[0])
    assert made.first.weight.shape == (WIDTH, WIDTH // 2) and bias.shape == (1,)
    ignored = net()
    own = ignored.blocks[0].scale
    hp.fully_shard(ignored.blocks[0], ignored_params={own})
    hp.fully_shard(ignored, ignored_params={own})
    ignored(batches(1)[0]).sum().backward()
    assert own.shape == () and own.grad is not None and not hasattr(own, "_hyper_parallel")
    scaled = net()
    shard(scaled).set_gradient_scaling_factor(0.25)
    scaled(batches(1)[0]).sum().backward()
    plain = shard(net())
    plain(batches(1)[0]).sum().backward()
    assert torch.allclose(4 * scaled.first.weight.grad, plain.first.weight.grad)
    listed_ahead = shard(net())
    listed_ahead.set_modules_to_forward_prefetch([listed_ahead.blocks[0]])
    listed_ahead.blocks[0].set_modules_to_forward_prefetch(list(listed_ahead.blocks[1:]))
    listed_ahead.blocks[2].set_modules_to_backward_prefetch(list(listed_ahead.blocks[:2]))
    close(mean(train(listed_ahead, batches(3), mine)), mean(train(shard(net()), batches(3), mine)),
          1e-7)


def test_placement_ignored_replicated_scaled_and_prefetched():
    ranks.together(2, placement)

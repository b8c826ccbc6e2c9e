# SPDX-License-Identifier: Apache-2.0
"""fully_shard for MindSpore: a sharded network against the same one whole, which sees the global
batch, on 2 and 4 ranks and as HSDP (2, 2).

Sample i of a step is the same whatever the mesh; a rank takes its part by its world rank.
"""

import gc
import time
import weakref

import numpy as np
import pytest
import ranks

ms = pytest.importorskip("mindspore", reason="MindSpore is not installed")
ms.runtime.launch_blocking()  # its threads spin while they wait: in the way of ranks beside them
from hyper_parallel import world as worlds  # noqa: E402
from hyper_parallel.mindspore import fsdp_tree  # noqa: E402
from hyper_parallel.mindspore import (  # noqa: E402
    HSDPCell, MixedPrecisionPolicy, clip_grad_norm_, fully_shard, get_model_state_dict,
    hsdp_sync_stream, init_device_mesh, set_model_state_dict, symm)
from mindspore import Parameter, Tensor, nn, ops  # noqa: E402
from mindspore.graph.api import _pynative_executor  # noqa: E402

WORDS, WIDTH, SAMPLES, LENGTH = 17, 12, 4, 6
MODES = ["per-param", "fused", "fused-zero-copy", "mapped"]


class Block(nn.Cell):
    """A transformer layer of one head."""

    def __init__(self):
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm((WIDTH,)), nn.LayerNorm((WIDTH,))
        # A bias of k would have no gradient but noise, which Adam makes as large as any other.
        self.qkv = nn.Dense(WIDTH, 3 * WIDTH, has_bias=False)
        self.out = nn.Dense(WIDTH, WIDTH, has_bias=False)
        self.up, self.down = nn.Dense(WIDTH, 2 * WIDTH), nn.Dense(2 * WIDTH, WIDTH)

    def construct(self, x):
        q, k, v = ops.split(self.qkv(self.norm(x)), WIDTH, -1)
        weights = ops.softmax(ops.matmul(q, k.swapaxes(-1, -2)) / WIDTH ** 0.5)
        x = x + self.out(ops.matmul(weights, v))
        return x + self.down(ops.gelu(self.up(self.norm2(x))))


class Net(nn.Cell):
    def __init__(self, n_blocks=1):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.CellList([Block() for _ in range(n_blocks)])
        self.head = nn.Dense(WIDTH, WORDS)

    def construct(self, words, labels):
        x = self.embed(words)
        for block in self.blocks:
            x = block(x)
        return ops.cross_entropy(self.head(x).reshape(-1, WORDS), labels.reshape(-1))


def values(name, shape):
    seed = sum(ord(c) * (i + 1) for i, c in enumerate(name))
    return (np.random.default_rng(seed).standard_normal(shape) * 0.3).astype(np.float32)


def network(make=Net):
    net = make()
    for name, p in net.parameters_and_names():
        p.set_data(Tensor(values(name, p.shape)))
    return net


def shard(net, mesh=None, inner=None, **options):
    mesh = init_device_mesh("cpu", mesh) if mesh else None
    for cell in net.blocks if inner is None else inner:
        fully_shard(cell, mesh=mesh, **options)
    return fully_shard(net, mesh=mesh, **options)


def batch(step, rank=0, size=1, samples=SAMPLES):
    words = np.random.default_rng(step).integers(0, WORDS, (2, samples, LENGTH)).astype(np.int32)
    n = samples // size
    return [Tensor(w[rank * n:(rank + 1) * n]) for w in words]


def adamw(params):
    return nn.AdamWeightDecay(params, 1e-2, weight_decay=0.02)


def adam(params):
    return nn.Adam(params, 1e-2)


def train(net, optimizer, steps, rank=0, size=1):
    opt = optimizer(net.trainable_params())
    grad = ms.value_and_grad(net, None, net.trainable_params())
    losses = []
    for step in range(steps):
        loss, grads = grad(*batch(step, rank, size))
        opt(grads)
        losses.append(float(loss))
    return losses


_references = {}


def reference(optimizer, steps=20):
    if optimizer not in _references:
        net = network()
        losses = train(net, optimizer, steps)
        weights = {name: p.asnumpy() for name, p in net.parameters_and_names()}
        _references[optimizer] = losses, weights
    return _references[optimizer]


def sharded(mesh, options, optimizer):
    here = worlds.world()
    net = shard(network(), mesh, **options)
    losses = train(net, optimizer, 20, here.rank, here.size)
    mean = symm.shmem_allreduce(Tensor(np.array(losses)), "avg").asnumpy()
    shapes = [p.shape for p in net.get_parameters()]
    return mean, {name: t.asnumpy() for name, t in get_model_state_dict(net).items()}, shapes


def check_equal(came, optimizer):
    losses, weights = reference(optimizer)
    for mean, whole, _ in came:
        assert np.max(np.abs(mean - losses) / np.abs(losses)) < 1e-6
        for name, values in weights.items():
            assert np.allclose(whole[name], values, 1e-4, 1e-5), name


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("mesh", [
    (2,), pytest.param((4,), marks=pytest.mark.full),
    pytest.param((2, 2), marks=pytest.mark.full)])
def test_losses_are_those_of_the_whole_network(mesh, mode):
    check_equal(ranks.together(int(np.prod(mesh)), sharded, mesh, {"mode": mode}, adamw), adamw)


@pytest.mark.parametrize("options", [{"comm_fusion": True}, {"reshard_after_forward": False}])
def test_other_options_and_adam(options):
    came = ranks.together(2, sharded, None, options, adam)
    check_equal(came, adam)
    for rank, (_, _, shapes) in enumerate(came):  # embedding first: 17 rows over 2 ranks
        assert shapes[0] == ((9, 8)[rank], WIDTH)


# ---- what a pass can be -------------------------------------------------------------------------


def gradients_of(net, inputs):
    loss, grads = ms.value_and_grad(net, None, net.trainable_params())(*inputs)
    return float(loss), [g.asnumpy().copy() for g in grads]


def part(net, whole):
    """This rank's shards of whole gradients, in the order of trainable_params."""
    return [w[p._hyper_parallel.begin:p._hyper_parallel.end] for p, w in
            zip(net.trainable_params(), whole)]


def close(ours, theirs):
    return all(np.allclose(a[:len(b)], b, 1e-4, 1e-6) for a, b in zip(ours, theirs))


def accumulation(mesh):
    here, k = worlds.world(), 2
    net = shard(network(), mesh)
    inputs = [batch(7, here.rank * k + i, here.size * k, 8) for i in range(k)]
    _, whole = gradients_of(network(), batch(7, samples=8))
    net.set_requires_gradient_sync(False)
    _, none = gradients_of(net, inputs[0])
    net(*inputs[0])
    net.set_requires_gradient_sync(True)
    _, grads = gradients_of(net, inputs[1])
    assert not any(g.any() for g in none)
    assert close([g / k for g in grads], part(net, whole))
    net.set_is_last_backward(False)
    gradients_of(net, inputs[1])
    net.zero_grad()
    gradients_of(net, inputs[0])
    net.set_is_last_backward(True)
    _, grads = gradients_of(net, inputs[1])
    assert close([g / k for g in grads], part(net, whole))
    net.set_requires_all_reduce(False)
    gradients_of(net, inputs[0])
    net.set_requires_all_reduce(True)
    _, grads = gradients_of(net, inputs[1])
    return close([g / (k if mesh == (2, 2) else 1) for g in grads], part(net, whole)
                 if mesh == (2, 2) else grads)


@pytest.mark.parametrize("mesh", [(2,), pytest.param((2, 2), marks=pytest.mark.full)])
def test_accumulation(mesh):
    assert all(ranks.together(int(np.prod(mesh)), accumulation, mesh))


def accumulation_of_one():
    """A cell that accumulates while the others reduce keeps its sums, also over what is written."""
    net = shard(network())
    _, first = gradients_of(net, batch(0))
    _, second = gradients_of(net, batch(1))
    net.blocks[0].set_requires_gradient_sync(False)
    gradients_of(net, batch(0))
    net.blocks[0].set_requires_gradient_sync(True)
    _, grads = gradients_of(net, batch(1))
    return close(grads, [b + a * ("blocks" in p.name) for p, a, b in
                         zip(net.trainable_params(), first, second)])


def test_accumulation_of_one():
    assert all(ranks.together(2, accumulation_of_one))


# ---- what is written between passes -------------------------------------------------------------


def late_reader():
    """One rank's optimizer writes when another one is in an evaluation still."""
    here, alone = worlds.world(), network()
    net = shard(network(), mode="mapped")
    want = float(net(*batch(1)))
    _, grads = ms.value_and_grad(net, None, net.trainable_params())(*batch(0, here.rank, here.size))
    opt = adamw(net.trainable_params())
    if here.rank == 1:
        net.blocks[0].norm2.register_forward_pre_hook(lambda cell, args: time.sleep(0.2))
    evaluated = float(net(*batch(1)))
    opt(grads)
    train(alone, adamw, 1)
    return evaluated == want and abs(float(net(*batch(1))) - float(alone(*batch(1)))) < 1e-5


def test_a_write_while_others_read():
    assert all(ranks.together(2, late_reader))


def written(mode):
    """In place and in their place, after evaluations, with copies in fp16 of what is computed with.
    Some of it on a rank that has no part of the parameter."""
    policy = MixedPrecisionPolicy(param_dtype=ms.float16)
    other = network(Odd)
    for p in other.get_parameters():
        p.set_data(p * 1.5)
    net, x = network(Odd), Tensor(values("x", (1, WIDTH)))
    for n in (net, other):
        for cell in (n.twice, n.first, n):
            fully_shard(cell, mode=mode, mp_policy=policy)
    before = net(x)
    for p in net.get_parameters():
        if p.name in ("few", "scale"):
            p.set_data(Tensor(values(p.name, p._hyper_parallel.shape) * np.float32(1.5)))
        else:
            place = p.data_ptr()
            p.copy_(p * 1.5)
            assert p.data_ptr() == place
    return bool(net(x) == other(x) != before)


@pytest.mark.parametrize("mode", ["per-param", "mapped"])
def test_what_is_written_after_an_evaluation(mode):
    assert all(ranks.together(2, written, mode))


def freed():
    """An engine goes with its network, once MindSpore has forgotten the pass."""
    net, x = shard(network(Fails)), Tensor(values("x", (1, WIDTH)))
    gradients_of(net, [x])
    memory = weakref.ref(net._hyper_parallel_unit.tree.memory)
    del net
    _pynative_executor.clear_res()
    gc.collect()
    assert memory() is None and len(fsdp_tree._dropped) > 0
    shard(network(Fails))(x)
    return not fsdp_tree._dropped


def test_memory_goes_with_the_network():
    assert all(ranks.together(2, freed))


class Stopped(nn.Cell):
    """Autograd saves a weight behind stop_gradient, which is the same memory."""

    def __init__(self):
        super().__init__()
        self.weight = Parameter(Tensor(np.ones((WIDTH, WIDTH), np.float32)), "weight")
        self.bias = Parameter(Tensor(np.ones(WIDTH, np.float32)), "bias")

    def construct(self, x):
        return ops.matmul(ops.matmul(x, self.weight), ops.stop_gradient(self.weight)) + self.bias


class Odd(nn.Cell):
    """A cell used twice, one frozen and one unused parameter, one cut along dimension 1, one of
    fewer rows than ranks, one of no dimension."""

    def __init__(self):
        super().__init__()
        self.twice = nn.Dense(WIDTH, WIDTH)
        self.first = Stopped()
        self.frozen = Parameter(Tensor(np.ones((WIDTH,), np.float32)), "frozen",
                                requires_grad=False)
        self.unused = Parameter(Tensor(np.ones((3, WIDTH), np.float32)), "unused")
        self.few = Parameter(Tensor(np.ones((1, WIDTH), np.float32)), "few")
        self.scale = Parameter(Tensor(np.float32(2.0)), "scale")

    def construct(self, x):
        x = self.first(x) * self.scale
        x = ops.tanh(self.twice(x))
        x = ops.tanh(self.twice(x))
        return (x * self.frozen * self.few).sum()


def odd(mode):
    here = worlds.world()
    x = Tensor(values("x", (here.size, WIDTH)))
    loss, whole = gradients_of(network(Odd), [x])
    net = network(Odd)
    replicated, ignored = {net.first.bias}, {net.scale}
    fully_shard(net.twice, mode=mode, shard_placement_fn=lambda p: len(p.shape) - 1)
    fully_shard(net.first, mode=mode, replicate_params=replicated)
    fully_shard(net, mode=mode, ignored_params=ignored, reshard_after_forward=True)
    net.set_reduce_op_type("SUM ")
    for _ in range(2):
        mine, grads = gradients_of(net, [x[here.rank:here.rank + 1]])
    total = float(symm.shmem_allreduce(Tensor(np.array([mine])), "sum")[0])
    assert abs(total - loss) < 1e-5 * abs(loss)
    for p, ours, full in zip(net.trainable_params(), grads, whole):
        param = getattr(p, "_hyper_parallel", None)
        if param is None:  # ignored: this rank's own gradient
            ours = symm.shmem_allreduce(Tensor(ours.reshape(1))).asnumpy().reshape(())
            assert p is net.scale and np.allclose(ours, full, 1e-4)
            continue
        if mode == "mapped" and param.shard_dim is not None:
            full = full.reshape(-1)[param.begin:param.end]
        elif param.shard_dim is not None:
            full = np.take(full, np.arange(param.begin, param.end), param.shard_dim)
        assert ours.shape == tuple(p.shape)
        if full.size:
            assert np.allclose(ours, full, 1e-4, 1e-5), p.name
        else:
            assert not ours.any()
    weights = get_model_state_dict(net)
    return all((weights[name].asnumpy() == values(name, weights[name].shape)).all()
               for name in weights)


@pytest.mark.parametrize("mode", MODES)
def test_odd_parameters(mode):
    assert all(ranks.together(2, odd, mode))


class Stack(nn.Cell):
    def __init__(self, again=False, mean=True):
        super().__init__()
        self.mean = mean
        self.blocks = nn.CellList([Block() for _ in range(3)])
        if again:
            for block in self.blocks:
                block.recompute()

    def construct(self, x):
        for block in self.blocks:
            x = block(x)
        return x.mean() if self.mean else x


def variants():
    """Recomputed cells, a list of cells as one unit, prefetch lists, evaluation in between."""
    here = worlds.world()
    x = Tensor(values("x", (here.size, LENGTH, WIDTH)))
    loss, whole = gradients_of(network(Stack), [x])
    again = shard(network(lambda: Stack(True)))
    listed = network(Stack)
    fully_shard([listed.blocks[0], listed.blocks[1]])
    fully_shard(listed)
    ahead = shard(network(Stack))
    ahead.blocks[0].set_modules_to_forward_prefetch([ahead.blocks[1], ahead.blocks[2]])
    ahead.blocks[2].set_modules_to_backward_prefetch([ahead.blocks[1], ahead.blocks[0]])
    mine = x[here.rank:here.rank + 1]
    for net in (again, listed, ahead):
        before = float(net(mine))
        for _ in range(2):
            mean, grads = gradients_of(net, [mine])
            assert mean == float(net(mine)) == before
        mean = float(symm.shmem_allreduce(Tensor(np.array([mean])), "avg")[0])
        assert abs(mean - loss) < 1e-6 and close(grads, part(net, whole))
    return True


def test_variants():
    assert all(ranks.together(2, variants))


class Normed(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense, self.norm = nn.Dense(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)
        self.blocks = [self.dense]

    def construct(self, x):
        return self.norm(self.dense(x)).square().sum() + (x * x).sum()


def normed(mode):
    """What a forward writes is each rank's own; hooks on what is saved get what is no weight."""
    x = Tensor(values("x", (4, WIDTH)))
    alone, net, seen = network(Normed), network(Normed), []
    net.dense.register_saved_tensors_hooks(lambda t: seen.append(t.shape) or [t], lambda s: s[0])
    shard(net, mode=mode)
    for cell in (alone, net):
        cell.set_train()
    loss, whole = gradients_of(alone, [x])
    mine, grads = gradients_of(net, [x])
    assert mine == loss and seen == [(4, WIDTH)]
    if mode != "mapped":
        assert close(grads, part(net, whole))
    return (net.norm.moving_mean.asnumpy() == alone.norm.moving_mean.asnumpy()).all()


@pytest.mark.parametrize("mode", ["fused", "mapped"])
def test_what_a_forward_writes(mode):
    assert all(ranks.together(2, normed, mode))


def one_step_cells():
    """nn.TrainOneStepCell and ops.GradOperation, with the loss outside of the sharded network."""
    here, losses = worlds.world(), []
    x = np.random.default_rng(1).standard_normal((2, 4, LENGTH, WIDTH)).astype(np.float32)

    def trained(net, rank, size):
        inside = nn.WithLossCell(net, nn.MSELoss())
        step = nn.TrainOneStepCell(inside, nn.Momentum(net.trainable_params(), 0.1, 0.9))
        n = 4 // size
        part = [Tensor(values[rank * n:(rank + 1) * n]) for values in x]
        return np.array([float(step.set_train()(*part)) for _ in range(3)])

    losses = trained(network(lambda: Stack(mean=False)), 0, 1)
    net = shard(network(lambda: Stack(mean=False)))
    mean = symm.shmem_allreduce(Tensor(trained(net, here.rank, here.size)), "avg").asnumpy()
    assert np.max(np.abs(mean - losses) / losses) < 1e-6
    grads = ops.GradOperation(get_by_list=True)(net, net.trainable_params())(Tensor(x[0]))
    return all(g.shape == p.shape and g.asnumpy().any() for g, p in
               zip(grads, net.trainable_params()))


def test_cells_that_train():
    assert all(ranks.together(2, one_step_cells))


def clipped():
    here = worlds.world()
    net = shard(network())
    _, whole = gradients_of(network(), batch(3))
    norm = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in whole))
    _, grads = ms.value_and_grad(net, None, net.trainable_params())(*batch(3, here.rank, here.size))
    told = clip_grad_norm_(net.trainable_params(), norm / 4)
    again = clip_grad_norm_(net, 1e9)
    assert abs(float(told) - norm) < 1e-5 * norm and abs(float(again) - norm / 4) < 1e-5 * norm
    assert close([4 * g.asnumpy() for g in grads], part(net, whole))
    for bad in ({"norm_type": 3}, {"max_norm": -1}):
        with pytest.raises(ValueError):
            clip_grad_norm_(net, **{"max_norm": 1, **bad})
    return True


def test_clipping():
    assert all(ranks.together(2, clipped))


def loaded():
    """Weights out of one mode and into another, whole and as shards."""
    net = shard(network(lambda: Net(2)), mode="mapped")
    first = float(net(*batch(5)))
    state = get_model_state_dict(net)
    other = shard(Net(2), mode="fused")
    set_model_state_dict(other, state)
    assert float(other(*batch(5))) == first
    twice = {name: t * 2 for name, t in get_model_state_dict(other, full_state_dict=False).items()}
    other.load_state_dict(twice)
    whole = get_model_state_dict(other)
    assert all((whole[n].asnumpy() == 2 * t.asnumpy()).all() for n, t in state.items())
    assert float(other(*batch(5))) != first
    with pytest.raises(RuntimeError, match="without \\['head.bias'\\]"):
        other.load_state_dict({n: t for n, t in state.items() if n != "head.bias"})
    with pytest.raises(ValueError, match="head.bias"):
        other.load_state_dict({**state, "head.bias": Tensor(np.zeros(3, np.float32))})
    other.load_state_dict({"head.bias": state["head.bias"]}, strict=False)
    other.blocks[0].unshard()
    shape = other.blocks[0].up.weight.shape
    other.blocks[0].reshard()
    handle = other.blocks[1].unshard(async_op=True)
    handle.wait()
    assert shape == other.blocks[1].up.weight.shape == (2 * WIDTH, WIDTH)
    other.blocks[1].reshard()
    return other.blocks[1].up.weight.shape


def test_state_dicts():
    assert ranks.together(2, loaded) == [(WIDTH, WIDTH)] * 2


def low_precision():
    here = worlds.world()
    policy = MixedPrecisionPolicy(param_dtype=ms.float16, reduce_dtype=ms.float32,
                                  output_dtype=ms.float32)
    net = shard(network(Stack), mp_policy=policy)
    x = Tensor(values("x", (here.size, LENGTH, WIDTH)))
    _, whole = gradients_of(network(Stack), [x])
    seen = []
    net.blocks[0].up.register_forward_hook(lambda cell, args, out: seen.append(
        (args[0].dtype, cell.weight.dtype)))
    _, grads = ms.value_and_grad(net, None, net.trainable_params())(x[here.rank:here.rank + 1])
    assert seen == [(ms.float16, ms.float16)] and all(g.dtype == ms.float32 for g in grads)
    assert all(p.dtype == ms.float32 for p in net.get_parameters())
    errors = [np.abs(g.asnumpy() - w).max() / np.abs(w).max()
              for g, w in zip(grads, part(net, whole)) if np.abs(w).max() > 1e-6]
    return max(errors)


def test_mixed_precision():
    assert all(0 < error < 2e-2 for error in ranks.together(2, low_precision))


# ---- faults -------------------------------------------------------------------------------------


class Fails(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense, self.fails = nn.Dense(WIDTH, WIDTH), False
        self.blocks = [self.dense]

    def construct(self, x):
        x = self.dense(x)
        if self.fails:
            raise FloatingPointError("as told")
        return x.sum()


def broken():
    net = shard(network(Fails))
    x = Tensor(values("x", (1, WIDTH)))
    want, wanted = gradients_of(net, [x])
    net.fails = True
    for _ in range(2):
        with pytest.raises(FloatingPointError):
            gradients_of(net, [x])
        net.fails = False
        with pytest.raises(RuntimeError, match="reset_iter_state"):
            gradients_of(net, [x])
        symm.barrier()  # nobody is in a forward any more, whose end a reset would make fail
        net.reset_iter_state()
        loss, grads = gradients_of(net, [x])
        assert loss == want and all((a == b).all() for a, b in zip(grads, wanted))
        net.fails = True
    assert net.dense.weight.shape == (WIDTH // 2, WIDTH)
    return True


def test_an_exception_in_the_middle():
    assert all(ranks.together(2, broken))


def misused():
    net = Net()
    for wrong, kind in (({"mesh": (2,)}, TypeError), ({"comm_fusion": 1}, ValueError),
                        ({"mp_policy": 3}, TypeError), ({"ignored_params": "w"}, TypeError),
                        ({"reshard_after_forward": None}, ValueError),
                        ({"shard_placement_fn": lambda p: 5}, ValueError),
                        ({"mode": "auto"}, ValueError)):
        with pytest.raises(kind, match="expected"):
            fully_shard(net, **wrong)
    for wrong in ([], [3], nn.CellList([nn.Dense(2, 2)])):
        with pytest.raises(ValueError, match="expected a cell"):
            fully_shard(wrong)
    with pytest.raises(ValueError, match="number of ranks, 2, given"):
        init_device_mesh("cpu", (3,))
    with pytest.raises(ValueError, match='"cpu"'):
        init_device_mesh("npu", (2,))
    with pytest.raises(NotImplementedError):
        MixedPrecisionPolicy(apply_grad_on_fp32_main_grad=True)
    ms.set_context(mode=ms.GRAPH_MODE)
    with pytest.raises(RuntimeError, match="PyNative"):
        fully_shard(net)
    ms.set_context(mode=ms.PYNATIVE_MODE)
    assert net.head.weight.shape == (WORDS, WIDTH) and not isinstance(net, HSDPCell)
    shard(net)
    assert type(net).__name__ == "HSDPNet" and isinstance(net, (HSDPCell, Net))
    with pytest.raises(ValueError, match="no unit yet"):
        fully_shard(net)
    for method, wrong in (("set_requires_gradient_sync", 1), ("set_requires_all_reduce", None),
                          ("set_reduce_op_type", "max"), ("set_reduce_comm_interval", 0),
                          ("set_is_last_backward", 1), ("set_reshard_after_backward", 0),
                          ("set_gradient_scaling_factor", True),
                          ("set_modules_to_forward_prefetch", [net.head])):
        with pytest.raises(ValueError, match="expected|given"):
            getattr(net, method)(wrong)
    with pytest.raises(NotImplementedError):
        net.set_requires_all_reduce(True, recurse=False)
    with pytest.raises(NotImplementedError):
        net.set_reduce_comm_interval(2)
    hsdp_sync_stream()
    tied = Net(2)
    tied.blocks[1].up.weight = tied.blocks[0].up.weight
    shard(tied)
    with pytest.raises(ValueError, match="up.weight in one unit"):
        tied(*batch(0))
    mixed = Net()
    fully_shard(mixed.blocks[0], mode="fused")
    fully_shard(mixed)
    with pytest.raises(ValueError, match="one mode"):
        mixed(*batch(0))
    net.set_gradient_scaling_factor(Tensor(np.float32(0.5)))
    _, grads = gradients_of(net, batch(0))
    with pytest.raises(RuntimeError, match="before the first forward"):
        net.set_gradient_scaling_factor(1)
    return True


def test_misuse_is_told():
    assert all(ranks.together(2, misused))


def left():
    """After the end of the world parameters and gradients are there still, as copies."""
    here = worlds.world()
    net = shard(network())
    _, grads = ms.value_and_grad(net, None, net.trainable_params())(
        *batch(0, here.rank, here.size))
    tensors = [*grads, *net.get_parameters()]
    before = [t.asnumpy().copy() for t in tensors]
    worlds.shutdown()
    with pytest.raises(RuntimeError, match="it was shut down"):
        net(*batch(0))
    return all((t.asnumpy() == b).all() for t, b in zip(tensors, before))


def test_the_end_of_the_world():
    assert ranks.values_of(2, left) == [True, True]

# SPDX-License-Identifier: Apache-2.0
"""test_symm.py - symmetric memory for PyTorch: the seed's rows, one test or more for each, on two
ranks (four where groups are cut). References are torch's sums; values are small whole numbers, so
all is exact where it should be.
"""

import gc
import os
import time

import pytest
import ranks

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.distributed as dist  # noqa: E402
from hyper_parallel import HyperParallelError, heap  # noqa: E402
from hyper_parallel import world as worlds  # noqa: E402
from hyper_parallel.torch import symm  # noqa: E402


def raises(expected, words, function, *arguments, **options):
    with pytest.raises(expected) as caught:
        function(*arguments, **options)
    assert words in str(caught.value), str(caught.value)


def arange(n, start=0, dtype=torch.float32):
    return torch.arange(start, start + n).to(dtype)


def is_symmetric(tensor):
    return heap.block_at(tensor.data_ptr()) is not None


# ---- memory and one-sided calls ---------------------------------------------------------------


def memory():
    before = symm.symm_memory_stats()
    t = symm.empty(3, 5)
    after = symm.symm_memory_stats()
    assert t.shape == (3, 5) and t.dtype == torch.float32 and not t.any() and not t._is_view()
    assert after["allocated"] - before["allocated"] >= 60 and after["peak"] >= after["allocated"]
    assert after["free"] > 0
    assert t.data_ptr() % 64 == 0 and symm.empty((2,), alignment=4096).data_ptr() % 4096 == 0
    for dtype in (torch.bfloat16, torch.bool, torch.complex64, torch.float8_e4m3fn):
        assert symm.empty([4], dtype=dtype).dtype == dtype
    raises(ValueError, "above 0", symm.empty, 0, 3)
    raises(TypeError, "torch.dtype", symm.empty, 3, dtype="float")
    raises(ValueError, "'cpu'", symm.empty, 3, device="cuda")
    raises(HyperParallelError, "same size on every rank", symm.empty, 8 + worlds.world().rank)
    return symm.is_shmem_available()


def test_memory():
    assert ranks.together(2, memory) == [True, True]


def dropped():
    """What every rank has dropped comes back at the next allocation, and nothing else."""
    gc.collect()
    kept = symm.empty(1 << 20)
    views = symm.empty(1 << 20)[4:8]  # a view keeps it all
    symm.empty(16)
    base = symm.symm_memory_stats()["allocated"]
    for _ in range(20):
        t = symm.empty(1 << 20)
    peak = symm.symm_memory_stats()["allocated"]
    mine = symm.empty(8)
    if worlds.world().rank:
        del mine
    symm.empty(8)
    views.fill_(1)
    return kept.sum().item(), t.sum().item(), round((peak - base) / 2**22)


def test_dropped_tensors_come_back():
    assert ranks.together(2, dropped) == [(0, 0, 2)] * 2  # the newest, and the one before it


def manager():
    m = symm.Manager()
    m.attr_init()
    m.attr_init(worlds.world().rank, 2, 1 << 20, "tcp://127.0.0.1:8662")
    raises(ValueError, "rank", m.attr_init, my_pe=7, n_ranks=9)
    gc.collect()
    symm.empty(1)
    allocated = symm.symm_memory_stats()["allocated"]
    a, b = m.malloc((4, 4)), m.aligned_malloc((8,), torch.float16, 256)
    m.malloc(6)
    assert m.get_name() == "hyper_parallel" and b.data_ptr() % 256 == 0
    m.free(a)
    assert a.numel() == 0
    raises(ValueError, "not yet freed", m.free, a)
    raises(ValueError, "not yet freed", m.free, symm.empty(4))
    raises(ValueError, "within the 0 bytes", symm.shmem_put, a, 0, b, 0, 4, 0)
    m.finalize()
    return symm.symm_memory_stats()["allocated"] - allocated


def test_manager_frees_what_it_gave():
    assert ranks.together(2, manager) == [0, 0]


def mem_pool():
    pool = symm.MemPool()
    with symm.use_mem_pool(pool):
        layer = torch.nn.Linear(3, 4)
        made = [torch.zeros(3), torch.ones(2, 2), torch.empty(5, dtype=torch.int64),
                torch.tensor([1.0, 2.0]), torch.full((2,), 7.0), layer.weight, layer.bias]
        assert is_symmetric(torch.zeros_like(made[0])) and is_symmetric(made[0].new_empty(4))
        assert not is_symmetric(torch.empty(0)) and not is_symmetric(torch.zeros(2).bool())
    assert all(map(is_symmetric, made)) and not is_symmetric(torch.zeros(3))
    assert made[1].sum() == 4 and made[3].tolist() == [1, 2] and made[4].tolist() == [7, 7]
    layer(torch.ones(2, 3)).sum().backward()
    assert layer.bias.grad.tolist() == [2] * 4
    return symm.shmem_allreduce(made[1]).sum().item()


def test_mem_pool():
    assert ranks.together(2, mem_pool) == [8, 8]


def peers():
    rank = worlds.world().rank
    t = symm.empty(2, 8)
    t[1] = arange(8, 100 * rank)
    handle = symm.rendezvous(t[1])
    assert (handle.rank, handle.world_size, handle.buffer_size) == (rank, 2, 32)
    handle.barrier()
    theirs = handle.get_buffer(1 - rank, (2, 2), torch.float32, storage_offset=4)
    assert theirs.tolist() == [[100 * (1 - rank) + i for i in (4, 5)],
                               [100 * (1 - rank) + i for i in (6, 7)]]
    handle.barrier()
    theirs[0, 0] = -1
    handle.barrier()
    raises(ValueError, "within 32", handle.get_buffer, 0, (9,), torch.float32)
    raises(ValueError, "ordinary memory", symm.rendezvous, arange(3))
    raises(NotImplementedError, "no signal pad", symm.get_signal_pad_size)
    raises(NotImplementedError, "no signal pad", symm.set_signal_pad_size, 8)
    return t[1, 4].item()


def test_rendezvous():
    assert ranks.together(2, peers) == [-1, -1]


def put_get():
    rank = worlds.world().rank
    target, got = symm.empty(16, dtype=torch.int64), torch.zeros(16, dtype=torch.int64)
    src = arange(16, 100 * rank, torch.int64)
    symm.shmem_put(target, 32, src, 8, 32, 1 - rank)  # bytes: elements 1 to 4 to 4 to 7
    symm.barrier()
    symm.shmem_get(got, 0, target, 0, 128, 1 - rank)
    symm.shmem_get(got[8:], torch.tensor(0), target[4:], 0, torch.tensor([8]), rank)
    symm.shmem_put(target, 0, src, 0, 0, 1 - rank)  # nothing, checked
    raises(HyperParallelError, "rank", symm.shmem_put, target, 0, src, 0, 8, 2)
    raises(ValueError, "within the 128 bytes", symm.shmem_put, target, 120, src, 0, 16, 0)
    raises(ValueError, "within the 128 bytes", symm.shmem_get, got, 0, target, -8, 8, 0)
    raises(ValueError, "ordinary memory", symm.shmem_put, src, 0, target, 0, 8, 0)
    raises(ValueError, "ordinary memory", symm.shmem_get, target, 0, src, 0, 8, 0)
    raises(TypeError, "whole number", symm.shmem_put, target, 0.5, src, 0, 8, 0)
    symm.barrier()
    return target.tolist(), got.tolist()


def test_put_and_get():
    for rank, (target, got) in enumerate(ranks.together(2, put_get)):
        came = [100 * (1 - rank) + i for i in range(1, 5)]
        assert target == [0] * 4 + came + [0] * 8
        assert got[4:8] == [100 * rank + i for i in range(1, 5)] and got[8] == came[0]


def signals():
    rank = worlds.world().rank
    data, signal = symm.empty(4), symm.empty(4, dtype=torch.int64)
    symm.shmem_put_with_signal(data, 0, torch.full((4,), rank + 1.0), 0, 16, signal, 1, 1, 0,
                               1 - rank)
    values = symm.shmem_wait_for_signal(signal, 1, 1, 0, depend_tensor=data).tolist()
    for value, op, compare, to in ((1, "add", "eq", 1), (-1, 1, 2, 1), (2, 0, 1, 1),
                                   (5, "SET", "ge", 5), (0, 0, "ne", 5), (0, 0, "le", 0)):
        symm.shmem_signal_op(signal, 2, value, op, 1 - rank)
        assert symm.shmem_wait_for_signal(signal, 2, to, compare) is signal
        symm.barrier()
    raises(ValueError, "signal_op", symm.shmem_signal_op, signal, 0, 1, "mul", 0)
    raises(ValueError, "compare_op", symm.shmem_wait_for_signal, signal, 0, 1, 3)
    raises(ValueError, "below the 4 words", symm.shmem_signal_op, signal, 4, 1, 0, 0)
    raises(TypeError, "int64", symm.shmem_signal_op, data, 0, 1, 0, 0)
    return values


def test_signals():
    assert ranks.together(2, signals) == [[2.0] * 4, [1.0] * 4]


# ---- collectives ------------------------------------------------------------------------------


def collectives(name):
    dtype, rank = getattr(torch, name), worlds.world().rank
    x = arange(6, 0, dtype)
    out = symm.shmem_allgather(torch.zeros(12, dtype=dtype), x + rank)
    parts = symm.shmem_reduce_scatter(torch.zeros(3, dtype=dtype), x * (rank + 1))
    total, largest = x + rank, x * (1 - rank)
    assert symm.shmem_allreduce(total) is total
    symm.shmem_allreduce(largest, "max")
    rows = arange(5, 10 * rank, dtype)
    got = symm.shmem_alltoall([rows[:2], rows[2:]], torch.zeros(4 + 2 * rank, dtype=dtype),
                              torch.tensor([2 + rank] * 2))
    moved = (symm.shmem_recv(torch.zeros(6, dtype=dtype), 0) if rank else
             symm.shmem_send(x + 7, 1))
    return [t.tolist() for t in (out, parts, total, largest, got, moved)]


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16", "int64", "int32",
                                  "int8", "uint8"])
def test_collectives(name):
    x = list(range(6))
    for rank, came in enumerate(ranks.together(2, collectives, name)):
        assert came[0] == x + [v + 1 for v in x]
        assert came[1] == [3 * v for v in x[3 * rank:3 * rank + 3]]
        assert came[2] == [2 * v + 1 for v in x]
        assert came[3] == x
        assert came[4] == ([0, 1, 10, 11] if rank == 0 else [2, 3, 4, 12, 13, 14])
        assert came[5] == [v + 7 for v in x]


def symmetric_operands():
    rank = worlds.world().rank
    whole = symm.empty(8)
    place = whole[4 * rank:4 * rank + 4]
    place.copy_(arange(4, 10 * rank))
    version = whole._version
    assert symm.shmem_allgather(whole, place) is whole and whole._version > version
    symm.shmem_allreduce(whole, "avg")
    assert is_symmetric(whole)
    return whole.tolist()


def test_symmetric_memory_is_used_where_it_lies():
    assert ranks.together(2, symmetric_operands) == [[0, 1, 2, 3, 10, 11, 12, 13]] * 2


def subgroups():
    rank = worlds.world().rank
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    group = pairs[rank % 2]
    members = dist.get_process_group_ranks(group)
    local = members.index(rank)
    total = symm.shmem_allreduce(torch.tensor([1.0 + rank]), group=group)
    out = symm.shmem_allgather(torch.zeros(2), torch.tensor([float(rank)]), group)
    block = symm.empty(1, dtype=torch.int64, group=group)
    symm.shmem_put(block, 0, torch.tensor([rank]), 0, 8, 1 - local, group)  # a rank of the group
    symm.barrier(group)
    for op in (symm.shmem_send, symm.shmem_recv):  # to and from oneself
        raises(HyperParallelError, "", op, torch.ones(1), local, group)
    dist.all_reduce(total, group=group)  # the other library, on the same group object
    raises(TypeError, "ProcessGroup", symm.barrier, "pair")
    raises(ValueError, "group that this rank is in", symm.barrier, pairs[1 - rank % 2])
    return total.item(), sorted(out.tolist()), block.item()


def test_subgroups():
    """The same group object serves torch.distributed and us; ranks are numbers in it."""
    came = ranks.together(4, subgroups)
    assert came == [(8, [0, 2], 2), (12, [1, 3], 3), (8, [0, 2], 0), (12, [1, 3], 1)]


def low_precision():
    generator = torch.Generator().manual_seed(worlds.world().rank)
    x = torch.randn(1000, generator=generator)
    full = symm.shmem_allreduce(x.clone())
    scale = full.abs().max()

    def error(dtype):
        return ((symm.shmem_allreduce(x.clone(), low_precision_dtype=dtype) - full).abs().max()
                / scale).item()

    half = symm.shmem_reduce_scatter(torch.zeros(500), x, low_precision_dtype="fp16")
    rank = worlds.world().rank
    assert torch.allclose(half, full[500 * rank:500 * rank + 500], rtol=1e-3, atol=2e-3)
    raises(ValueError, "low_precision_dtype", symm.shmem_allreduce, x, low_precision_dtype="int4")
    os.environ["SYMMETRIC_MEMORY_LOW_PRECISION_DTYPE"] = "bf16"
    return [error(dtype) for dtype in ("full", "fp16", torch.float16, torch.bfloat16, "fp8_e4m3",
                                       torch.float8_e4m3fn, torch.float8_e5m2)]


def test_low_precision():
    for full, fp16, same, bf16, e4m3, as4, e5m2 in ranks.together(2, low_precision):
        assert full == 0 < fp16 == same < 1e-3 and fp16 < bf16 < e4m3 == as4 < e5m2 < 0.2


def views():
    whole = arange(12).reshape(3, 4)
    out = torch.zeros(24)
    for view in (whole.t(), whole[:, :2], whole[::2], whole[:, 1].unsqueeze(1),
                 whole.expand(2, 3, 4)):
        for call in (lambda: symm.shmem_allreduce(view), lambda: symm.shmem_send(view, 0),
                     lambda: symm.shmem_recv(view, 0),
                     lambda: symm.shmem_allgather(out[:2 * view.numel()], view),
                     lambda: symm.shmem_allgather(view, arange(view.numel() // 2)),
                     lambda: symm.shmem_reduce_scatter(view, arange(2 * view.numel())),
                     lambda: symm.shmem_alltoall([view, view], out[:2 * view.numel()],
                                                 [view.numel()] * 2),
                     lambda: symm.shmem_put(view, 0, out, 0, 4, 0),
                     lambda: symm.shmem_get(out, 0, view, 0, 4, 0)):
            raises(ValueError, "contiguous", call)
    raises(ValueError, "conj", symm.shmem_allreduce, torch.ones(2, dtype=torch.complex64).conj())
    raises(ValueError, "dense", symm.shmem_allreduce, torch.eye(3).to_sparse())
    raises(ValueError, "CPU", symm.shmem_allreduce, torch.empty(3, device="meta"))
    raises(TypeError, "torch.Tensor", symm.shmem_allreduce, [1.0, 2.0])
    raises(TypeError, "torch.bool", symm.shmem_allreduce, torch.ones(3, dtype=torch.bool))
    raises(TypeError, "one dtype", symm.shmem_allgather, arange(4), arange(2, 0, torch.int32))
    raises(ValueError, "2 ranks times 2", symm.shmem_allgather, arange(5), arange(2))
    raises(ValueError, "2 ranks times 2", symm.shmem_reduce_scatter, arange(2), arange(5))
    raises(ValueError, "sum, avg, max, min", symm.shmem_allreduce, arange(2), "prod")
    raises(ValueError, "2 counts", symm.shmem_alltoall, [arange(2)], arange(4), [2, 2])
    raises(ValueError, "sum of receive_list", symm.shmem_alltoall, [arange(2)] * 2, arange(4),
           [2, 3])
    raises(ValueError, "'sum'", symm.shmem_allreduce, arange(2), backward="both")
    raises(HyperParallelError, "avg", symm.shmem_allreduce, arange(2, 0, torch.int32), "avg")
    assert whole.tolist() == arange(12).reshape(3, 4).tolist() and not out.any()
    symm.shmem_allreduce(whole[1:2])  # dense, so used where it lies
    return whole.tolist()


def test_N2_views_are_right_or_refused():
    for whole in ranks.together(2, views):
        assert whole == [[0, 1, 2, 3], [8, 10, 12, 14], [8, 9, 10, 11]]


# ---- gradients --------------------------------------------------------------------------------


def alltoall_of(x, rank):
    cut = x.split([1 + rank, 3 - rank])
    return symm.shmem_alltoall(cut, torch.zeros(3 if rank == 0 else 5),
                               [1, 2] if rank == 0 else [3, 2])


FORMS = {
    "allgather": lambda x, rank: symm.shmem_allgather(torch.zeros(8), x),
    "reduce_scatter": lambda x, rank: symm.shmem_reduce_scatter(torch.zeros(2), x),
    "reduce_scatter avg": lambda x, rank: symm.shmem_reduce_scatter(torch.zeros(2), x, "avg"),
    "reduce_scatter max": lambda x, rank: symm.shmem_reduce_scatter(torch.zeros(2), x, "max"),
    "allreduce": lambda x, rank: symm.shmem_allreduce(x * 1),
    "allreduce avg": lambda x, rank: symm.shmem_allreduce(x * 1, "avg"),
    "allreduce sum": lambda x, rank: symm.shmem_allreduce(x * 1, backward="sum"),
    "allreduce min": lambda x, rank: symm.shmem_allreduce(x * 1, "min", backward="sum"),
    "alltoall": alltoall_of,
    "send": lambda x, rank: symm.shmem_recv(torch.zeros(4), 0, depend_tensor=x) if rank else
    symm.shmem_send(x, 1),
}


def gradients(symmetric):
    """The gradient of this rank's input by the sum over ranks of weights times result, by form."""
    rank, came = worlds.world().rank, {}
    for name, form in FORMS.items():
        x = symm.empty(4) if symmetric else torch.zeros(4)
        x.copy_(arange(4, rank)).requires_grad_()
        y = form(x, rank)
        (y * arange(y.numel(), 1 + 10 * rank)).sum().backward()
        came[name] = None if x.grad is None else x.grad.tolist()
    return came


def expected_gradients(rank):
    own, other = arange(8, 1 + 10 * rank), arange(8, 1 + 10 * (1 - rank))
    first = torch.cat([arange(2, 1), arange(2, 11)])
    both = (own + other)[:4]
    wanted = {
        "allgather": (own + other)[4 * rank:4 * rank + 4],
        "reduce_scatter": first,
        "reduce_scatter avg": first / 2,
        "reduce_scatter max": first * rank,  # rank 1 has the larger values
        "allreduce": own[:4],
        "allreduce avg": own[:4] / 2,
        "allreduce sum": both,
        "allreduce min": both * (1 - rank),
        "alltoall": torch.tensor([1.0, 11, 12, 13] if rank == 0 else [2.0, 3, 14, 15]),
    }
    return {**{name: grad.tolist() for name, grad in wanted.items()},
            "send": None if rank else both.tolist()}


@pytest.mark.parametrize("symmetric", [False, True])
def test_gradients(symmetric):
    for rank, came in enumerate(ranks.together(2, gradients, symmetric)):
        assert came == expected_gradients(rank)


def buffers_in_a_loop():
    """A buffer that takes the result of every step does not chain the steps; what was kept for a
    backward and then written over is torch's own error."""
    rank = worlds.world().rank
    whole, weight = symm.empty(8), torch.ones(4, requires_grad=True)
    for step in range(3):
        out = symm.shmem_allgather(whole, weight * (rank + 1 + step))
        assert out is whole
        out.sum().backward()
    y = (weight * 2).exp()
    z = symm.shmem_allreduce(y)  # exp's backward reads its result
    raises(RuntimeError, "modified by an inplace operation", z.sum().backward)
    with torch.no_grad():
        assert not symm.shmem_allreduce(weight * 1).requires_grad
    raises(RuntimeError, "leaf", symm.shmem_allreduce, weight)
    return weight.grad.tolist()


def test_buffers_in_a_loop():
    assert ranks.together(2, buffers_in_a_loop) == [[12.0] * 4, [18.0] * 4]


def round_trip():
    x = torch.randn(8, generator=torch.Generator().manual_seed(worlds.world().rank))
    whole = symm.shmem_allgather(torch.zeros(16), x)
    return torch.equal(symm.shmem_reduce_scatter(torch.zeros(8), whole, "avg"), x)


def test_gather_then_averaging_scatter_is_the_input():
    assert ranks.together(2, round_trip) == [True, True]


# ---- fused ------------------------------------------------------------------------------------


def test_threads_of_products(monkeypatch):
    from hyper_parallel import engine
    for text, n in ("3", 3), ("4,2", 4), ("", 1), ("0", 1), ("many", 1):
        monkeypatch.setenv("OMP_NUM_THREADS", text)
        assert engine._n_threads() == n


def fused(name):
    dtype, world = getattr(torch, name), worlds.world()
    group = None if world.size == 2 else worlds.group_of([[0, 2], [3, 1]][world.rank % 2])
    members, local = group.ranks if group else (0, 1), group.rank if group else world.rank
    generator = torch.Generator().manual_seed(5)  # all know all operands

    def draw(*shape):
        return torch.randint(-3, 4, (4, *shape), generator=generator).to(dtype)

    a, b, x1, g = draw(3, 5), draw(5, 6), draw(4, 5), draw(6, 6)
    rank = world.rank
    gather_out = torch.zeros(6, 5, dtype=dtype)
    whole = torch.cat([a[m] for m in members])
    for transposed in (False, True):  # as a Linear's weight is
        weight = b[rank].t().contiguous().t() if transposed else b[rank].clone()
        mine = symm.empty(3, 5, dtype=dtype, group=group).copy_(a[rank]).requires_grad_()
        weight.requires_grad_()
        gathered, c = symm.fused_all_gather_matmul(mine, weight, gather_out=gather_out, group=group)
        assert torch.equal(gathered, whole) and torch.equal(c, whole @ b[rank])
        (c * g[rank]).sum().backward()
        rows = slice(3 * local, 3 * local + 3)
        assert torch.equal(mine.grad, sum(g[m] @ b[m].t() for m in members)[rows])
        assert torch.equal(weight.grad, whole.t() @ g[rank])

        x, weight = x1[rank].clone().requires_grad_(), weight.detach().requires_grad_()
        y = symm.fused_matmul_reduce_scatter(x, weight, group=group)
        assert torch.equal(y, sum(x1[m] @ b[m] for m in members)[2 * local:2 * local + 2])
        (y * g[rank][:2]).sum().backward()
        dy = torch.cat([g[m][:2] for m in members])
        assert torch.equal(x.grad, dy @ b[rank].t()) and torch.equal(weight.grad, x1[rank].t() @ dy)
        mean = symm.fused_matmul_reduce_scatter(x, weight, reduce_op="avg", group=group)
        assert torch.equal(mean, y / 2)
    for bad, words, call in (
            (b[0].t(), "[m, k]", symm.fused_all_gather_matmul),
            (b[0][:, ::2], "dense rows", symm.fused_all_gather_matmul),
            (b[0].double(), "[m, k]", symm.fused_matmul_reduce_scatter)):
        raises(ValueError, words, call, a[0], bad, group=group)
    raises(ValueError, "can share", symm.fused_matmul_reduce_scatter, a[0], b[0], group=group)
    raises(ValueError, "'sum' or 'avg'", symm.fused_matmul_reduce_scatter, x1[0], b[0],
           reduce_op="max", group=group)
    raises(ValueError, "of shape", symm.fused_all_gather_matmul, a[0], b[0], x1[0], group=group)
    return True


@pytest.mark.parametrize("n, name", [(2, "float32"), (2, "bfloat16"), (4, "float16")])
def test_fused_operators(n, name):
    assert all(ranks.together(n, fused, name))


# ---- what goes wrong --------------------------------------------------------------------------


def waits():
    """A rank disagrees, a signal never comes, a rank dies: in words, with whose fault it was."""
    rank, said = worlds.world().rank, []
    signal = symm.empty(1, dtype=torch.int64)
    for call in (lambda: symm.shmem_wait_for_signal(signal, 0, 1, "eq"),
                 lambda: symm.shmem_allreduce(arange(3 + rank),
                                              group=worlds.world().group.split(0))):
        with pytest.raises(HyperParallelError) as caught:
            call()
        said.append(caught.value.status)
    symm.barrier()
    if rank == 1:
        os.kill(os.getpid(), 9)
    began = time.monotonic()
    with pytest.raises(HyperParallelError) as caught:
        symm.shmem_wait_for_signal(signal, 0, 1, "eq")
    said += [caught.value.status, caught.value.rank, time.monotonic() - began < 1]
    with open(os.environ["SAID"], "w") as out:
        out.write(repr(said))


def test_what_goes_wrong(tmp_path):
    ranks.run(2, waits, env={"SAID": tmp_path / "said",
                             "SYMMETRIC_MEMORY_SIGNAL_TIMEOUT_MS": 500})
    assert (tmp_path / "said").read_text() == repr(["HP_ERR_TIMEOUT", "HP_ERR_MISMATCH",
                                                    "HP_ERR_PEER", 1, True])

# SPDX-License-Identifier: Apache-2.0
"""Symmetric memory for MindSpore: the seed's rows, one test or more for each, on two ranks (four
where groups are cut). References are numpy's sums; values are small whole numbers, so all is exact.
"""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile

import numpy as np
import pytest
import ranks

ms = pytest.importorskip("mindspore", reason="MindSpore is not installed")
ms.runtime.launch_blocking()  # its threads spin while they wait: in the way of ranks beside them
from hyper_parallel import _c  # noqa: E402
from hyper_parallel import world as worlds  # noqa: E402
from hyper_parallel.mindspore import split_group, symm  # noqa: E402
from mindspore import Tensor, mint, ops  # noqa: E402


def raises(expected, words, function, *arguments, **options):
    try:
        function(*arguments, **options)
    except expected as error:
        assert words in str(error), str(error)
    else:
        raise AssertionError(f"expected {expected}")


def tensor(values, dtype=np.float32):
    return Tensor(np.array(values, dtype))


def arange(n, start=0, dtype=np.float32):
    return Tensor(np.arange(start, start + n, dtype=dtype))


# ---- memory and one-sided calls ---------------------------------------------------------------


def memory():
    before = symm.symm_memory_stats()
    t = symm.empty(3, 5, dtype=ms.float32)
    after = symm.symm_memory_stats()
    assert t.shape == (3, 5) and t.dtype == ms.float32 and float(t.sum()) == 0
    assert after["allocated"] - before["allocated"] >= 60 and after["peak"] >= after["allocated"]
    assert t.data_ptr() % 64 == 0 and symm.empty((2,), alignment=4096).data_ptr() % 4096 == 0
    assert [symm.empty(4, dtype=d).dtype for d in (ms.bfloat16, ms.int8)] == [ms.bfloat16, ms.int8]
    raises(ValueError, "above 0", symm.empty, 0, 3)
    raises(TypeError, "dtype", symm.empty, 3, dtype=ms.bool_)
    assert symm.rendezvous(t).size == 2
    raises(ValueError, "ordinary memory", symm.rendezvous, arange(3))
    raises(RuntimeError, "_enable_pluggable_allocator", symm.MemPool)
    raises(NotImplementedError, "no signal pad", symm.get_signal_pad_size)
    raises(NotImplementedError, "no signal pad", symm.set_signal_pad_size, 8)
    raises(_c.HyperParallelError, "same size on every rank", symm.empty, 8 + worlds.world().rank)
    return symm.is_shmem_available()


def test_memory():
    assert ranks.together(2, memory) == [True, True]


def dropped():
    kept = symm.empty(1000)
    before = symm.symm_memory_stats()["allocated"]
    for i in range(5):
        t = symm.empty(1 << 16)
        view = t[2:]
        del t
        view[0] = i
    return symm.symm_memory_stats()["allocated"] - before, float(kept.sum())


def test_dropped_tensors_come_back():
    for more, kept in ranks.together(2, dropped):
        assert more <= 2 * 4 << 16 and kept == 0


def manager():
    m = symm.Manager()
    m.attr_init()
    raises(ValueError, "rank", m.attr_init, my_pe=7, n_ranks=9)
    allocated = symm.symm_memory_stats()["allocated"]
    a, b = m.malloc((4, 4)), m.aligned_malloc((8,), ms.float16, 256)
    assert m.get_name() == "hyper_parallel" and b.data_ptr() % 256 == 0
    m.free(a)
    raises(ValueError, "not yet freed", m.free, a)
    raises(ValueError, "not yet freed", m.free, symm.empty(4))
    raises(ValueError, "within the 0 bytes", symm.shmem_put, a, 0, b, 0, 4, 0)
    m.finalize()
    return symm.symm_memory_stats()["allocated"] - allocated


def test_manager_frees_what_it_gave():
    assert all(more <= 64 for more in ranks.together(2, manager))  # one of symm.empty is left


def put_get():
    rank = worlds.world().rank
    target, got = symm.empty(16, dtype=ms.int64), Tensor(np.zeros(16, np.int64))
    src = arange(16, 100 * rank, np.int64)
    symm.shmem_put(target, 32, src, 8, 32, 1 - rank)  # four elements, from the second, to the fifth
    symm.barrier()
    symm.shmem_get(got, 0, target, 0, 128, 1 - rank)
    symm.shmem_get(got, Tensor(np.int64(64)), target, Tensor(np.int64(32)), 8, rank)
    raises(_c.HyperParallelError, "rank", symm.shmem_put, target, 0, src, 0, 8, 2)
    raises(ValueError, "within the 128 bytes", symm.shmem_put, target, 120, src, 0, 16, 0)
    raises(ValueError, "within the 128 bytes", symm.shmem_get, got, 0, target, -8, 8, 0)
    raises(ValueError, "ordinary memory", symm.shmem_put, src, 0, target, 0, 8, 0)
    raises(TypeError, "whole number", symm.shmem_put, target, 0.5, src, 0, 8, 0)
    symm.barrier()
    return target.asnumpy().tolist(), got.asnumpy().tolist()


def test_put_and_get():
    for rank, (target, got) in enumerate(ranks.together(2, put_get)):
        came = [100 * (1 - rank) + i for i in range(1, 5)]
        assert target == [0] * 4 + came + [0] * 8
        assert got[4:8] == [100 * rank + i for i in range(1, 5)] and got[8] == came[0]


def signals():
    rank = worlds.world().rank
    data, signal = symm.empty(4, dtype=ms.float32), symm.empty(4, dtype=ms.int64)
    symm.shmem_put_with_signal(data, 0, tensor([rank + 1.0] * 4), 0, 16, signal, 1, 1, 0, 1 - rank)
    seen = symm.shmem_wait_for_signal(signal, 1, 1, 0, depend_tensor=data)
    values = seen.asnumpy().tolist()
    for step, (value, op, compare, to) in enumerate(((1, "add", "eq", 1), (-1, 1, 2, 1),
                                                     (2, 0, 1, 1), (5, "set", "ge", 5),
                                                     (0, 0, "ne", 5), (0, 0, "le", 0))):
        symm.shmem_signal_op(signal, 2, value, op, 1 - rank)
        symm.shmem_wait_for_signal(signal, 2, to, compare)
        symm.barrier()
    raises(ValueError, "signal_op", symm.shmem_signal_op, signal, 0, 1, "mul", 0)
    raises(ValueError, "compare_op", symm.shmem_wait_for_signal, signal, 0, 1, 3)
    raises(ValueError, "below the 4 words", symm.shmem_signal_op, signal, 4, 1, 0, 0)
    raises(TypeError, "int64", symm.shmem_signal_op, data, 0, 1, 0, 0)
    return values


def test_signals():
    assert ranks.together(2, signals) == [[2.0] * 4, [1.0] * 4]


# ---- collectives ------------------------------------------------------------------------------


def collectives(dtype):
    rank, x = worlds.world().rank, arange(6, 0, dtype)
    out = symm.shmem_allgather(Tensor(np.zeros(12, dtype)), x + rank)
    parts = symm.shmem_reduce_scatter(Tensor(np.zeros(3, dtype)), x * (rank + 1))
    total = symm.shmem_allreduce(x + rank)
    largest = symm.shmem_allreduce(x * (1 - 2 * rank), "max")
    got = symm.shmem_alltoall([arange(2, 10 * rank, dtype), arange(3, 10 * rank + 5, dtype)],
                              Tensor(np.zeros(4 + 2 * rank, dtype)), [2 + rank] * 2)
    if rank:
        moved = symm.shmem_recv(Tensor(np.zeros(6, dtype)), 0)
    else:
        moved = symm.shmem_send(x + 7, 1)
    return [t.asnumpy().tolist() for t in (out, parts, total, largest, got, moved)]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int64"])
def test_collectives(dtype):
    x = list(range(6))
    for rank, came in enumerate(ranks.together(2, collectives, dtype)):
        assert came[0] == x + [v + 1 for v in x]
        assert came[1] == [3 * v for v in x[3 * rank:3 * rank + 3]]
        assert came[2] == [2 * v + 1 for v in x]
        assert came[3] == x
        assert came[4] == ([0, 1, 10, 11] if rank == 0 else [5, 6, 7, 15, 16, 17])
        assert came[5] == [v + 7 for v in x]


def symmetric_operands():
    rank = worlds.world().rank
    heap = symm.empty(8)
    heap[4 * rank:4 * rank + 4] = arange(4, 10 * rank)
    place = heap[4 * rank:4 * rank + 4]
    gathered = symm.shmem_allgather(heap, place)
    assert gathered.data_ptr() == heap.data_ptr()
    whole = symm.shmem_allreduce(heap, "avg")
    return whole.asnumpy().tolist()


def test_symmetric_memory_is_used_where_it_lies():
    whole = [0, 1, 2, 3, 10, 11, 12, 13]
    assert ranks.together(2, symmetric_operands) == [whole, whole]


def subgroups():
    rank = worlds.world().rank
    name = split_group(split_ranks=[[0, 2], [3, 1]])
    total = symm.shmem_allreduce(tensor([1.0 + rank]), group=name)
    out = symm.shmem_allgather(Tensor(np.zeros(2, np.float32)), tensor([rank]), name)
    block = symm.empty(1, dtype=ms.int64, group=name)
    local = [0, 2].index(rank) if rank in (0, 2) else [3, 1].index(rank)
    symm.shmem_put(block, 0, Tensor(np.array([rank])), 0, 8, 1 - local, name)  # a rank of the group
    symm.barrier(name)
    for op in (symm.shmem_send, symm.shmem_recv):  # to and from oneself
        raises(_c.HyperParallelError, "", op, tensor([1.0]), local, name)
    raises(ValueError, "nobody", symm.barrier, "nobody")
    raises(TypeError, "name", symm.barrier, 3)
    raises(ValueError, "at most once", split_group, split_ranks=[[0, 0]])
    raises(ValueError, "lists of ranks", split_group, split_ranks=[])
    raises(ValueError, f"rank {rank}", split_group, split_ranks=[[(rank + 1) % 4]])
    return name, total.asnumpy().tolist(), out.asnumpy().tolist(), int(block[0])


def test_subgroups():
    came = ranks.together(4, subgroups)
    assert came[0] == ("2-0_2", [4.0], [0.0, 2.0], 2)
    assert came[1] == ("2-3_1", [6.0], [3.0, 1.0], 3)
    assert came[2][3] == 0 and came[3][3] == 1


def both(port, said):
    """Collectives of MindSpore's own and ours in turn, on a group of mindspore.communication."""
    rank = worlds.world().rank
    env = {"MS_WORKER_NUM": "2", "MS_SCHED_HOST": "127.0.0.1", "MS_SCHED_PORT": str(port),
           "MS_NODE_ID": str(rank), "GLOG_v": "3"}
    scheduler = subprocess.Popen(
        [sys.executable, "-c", "from mindspore import communication as c; c.init()"],
        env={**os.environ, **env, "MS_ROLE": "MS_SCHED"}) if rank == 0 else None
    os.environ.update(env, MS_ROLE="MS_WORKER")
    try:
        ms.communication.init()
        ms.communication.create_group("pair", [1, 0])
        total = ops.AllReduce(group="pair")(tensor([1.0 + rank]))
        gathered = symm.shmem_allgather(Tensor(np.zeros(2, np.float32)), total + rank, "pair")
        again = ops.AllReduce(group="pair")(gathered)
        with open(f"{said}{rank}", "w") as out:
            out.write(f"{gathered.asnumpy().tolist()} {again.asnumpy().tolist()}")
        symm.barrier()
    finally:
        if scheduler:
            scheduler.kill()
            scheduler.wait()
    os._exit(0)  # MindSpore's own end of a job waits for its scheduler


def test_a_group_serves_both_libraries(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    done = ranks.run(2, both, port, str(tmp_path / "rank"))
    assert done.status == 0, done.output
    for rank in range(2):
        assert (tmp_path / f"rank{rank}").read_text() == "[4.0, 3.0] [8.0, 6.0]"


def low_precision():
    rank = worlds.world().rank
    x = np.random.default_rng(rank).standard_normal(1000).astype(np.float32)
    full = symm.shmem_allreduce(Tensor(x)).asnumpy()
    scale = np.abs(full).max()
    errors = [float(np.abs(symm.shmem_allreduce(Tensor(x), low_precision_dtype=d).asnumpy()
                           - full).max() / scale)
              for d in ("full", "fp16", ms.float16, "bf16", "fp8_e4m3", "fp8_e5m2")]
    raises(ValueError, "low_precision_dtype", symm.shmem_allreduce, Tensor(x),
           low_precision_dtype="int4")
    return errors


def test_low_precision():
    for full, fp16, same, bf16, e4m3, e5m2 in ranks.together(2, low_precision):
        assert full == 0 < fp16 == same < 1e-3 and fp16 < bf16 < e4m3 < e5m2 < 0.2


def bad_tensors():
    whole = arange(12).reshape(3, 4)
    for view in (whole.T, whole[:, :2], mint.t(whole)):
        raises(ValueError, "contiguous", symm.shmem_allreduce, view)
        raises(ValueError, "contiguous", symm.shmem_send, view, 0)
    raises(ValueError, "contiguous", symm.shmem_allgather, whole.T, arange(6))
    raises(TypeError, "mindspore.Tensor", symm.shmem_allreduce, np.zeros(3))
    raises(TypeError, "given Bool", symm.shmem_allreduce, Tensor(np.zeros(3, np.bool_)))
    raises(TypeError, "one dtype", symm.shmem_allgather, arange(4), arange(2, 0, np.int32))
    raises(ValueError, "2 ranks times 2", symm.shmem_allgather, arange(5), arange(2))
    raises(ValueError, "2 ranks times 2", symm.shmem_reduce_scatter, arange(2), arange(5))
    raises(ValueError, "sum, avg, max, min", symm.shmem_allreduce, arange(2), "prod")
    raises(ValueError, "2 counts", symm.shmem_alltoall, [arange(2)], arange(4), [2, 2])
    raises(_c.HyperParallelError, "", symm.shmem_allreduce, arange(2, 0, np.int32), "avg")
    row = whole[1:2]  # dense, so used where it lies
    symm.shmem_allreduce(row)
    return whole.asnumpy().tolist()


def test_views_are_right_or_refused():  # FIELD-CASES N2
    for whole in ranks.together(2, bad_tensors):
        assert whole == [[0, 1, 2, 3], [8, 10, 12, 14], [8, 9, 10, 11]]


# ---- gradients --------------------------------------------------------------------------------


def gradient_of(kind):
    """Loss: the sum over ranks of weight_of_rank times the result; the gradient of this rank's
    input, which is zero where it does not matter."""
    rank = worlds.world().rank
    x = arange(4, rank)
    weights = arange(8, 1 + 10 * rank)

    def use(y):
        return (y * weights[:y.size]).sum()

    forms = {
        "allgather": lambda x: use(symm.shmem_allgather(Tensor(np.zeros(8, np.float32)), x * 1)),
        "reduce_scatter": lambda x: use(symm.shmem_reduce_scatter(
            Tensor(np.zeros(2, np.float32)), x * 1)),
        "reduce_scatter avg": lambda x: use(symm.shmem_reduce_scatter(
            Tensor(np.zeros(2, np.float32)), x * 1, "avg")),
        "reduce_scatter max": lambda x: use(symm.shmem_reduce_scatter(
            Tensor(np.zeros(2, np.float32)), x * 1, "max")),
        "allreduce": lambda x: use(symm.shmem_allreduce(x * 1)),
        "allreduce avg": lambda x: use(symm.shmem_allreduce(x * 1, "avg")),
        "allreduce sum": lambda x: use(symm.shmem_allreduce(x * 1, backward="sum")),
        "allreduce min": lambda x: use(symm.shmem_allreduce(x * 1, "min", backward="sum")),
        "alltoall": lambda x: use(symm.shmem_alltoall(
            [(x * 1)[:1 + rank], (x * 1)[1 + rank:]], Tensor(np.zeros(3 if rank == 0 else 5,
                                                                       np.float32)),
            [1, 2] if rank == 0 else [3, 2])),
        "send": lambda x: use(symm.shmem_send(x * 1, 1)) if rank == 0 else use(
            symm.shmem_recv(Tensor(np.zeros(4, np.float32)), 0, depend_tensor=x)),
    }
    _, grad = ms.value_and_grad(forms[kind])(x)
    return grad.asnumpy().tolist()


def expected_gradient(kind, rank):
    own, other = np.arange(8) + 1 + 10 * rank, np.arange(8) + 1 + 10 * (1 - rank)
    first = np.concatenate([np.arange(8)[:2] + 1, np.arange(8)[:2] + 11])
    both = (own + other)[:4]
    return {
        "allgather": (own + other)[4 * rank:4 * rank + 4],
        "reduce_scatter": first,
        "reduce_scatter avg": first / 2,
        "reduce_scatter max": first * rank,  # rank 1 has the larger values
        "allreduce": own[:4],
        "allreduce avg": own[:4] / 2,
        "allreduce sum": both,
        "allreduce min": both * (1 - rank),
        "alltoall": np.array([1, 11, 12, 13]) if rank == 0 else np.array([2, 3, 14, 15]),
        "send": both if rank == 0 else 0 * both,
    }[kind].tolist()


KINDS = ["allgather", "reduce_scatter", "reduce_scatter avg", "reduce_scatter max", "allreduce",
         "allreduce avg", "allreduce sum", "allreduce min", "alltoall", "send"]


@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind):
    for rank, grad in enumerate(ranks.together(2, gradient_of, kind)):
        assert grad == expected_gradient(kind, rank), (kind, rank)


def round_trip():
    x = Tensor(np.random.default_rng(worlds.world().rank).standard_normal(8).astype(np.float32))
    whole = symm.shmem_allgather(Tensor(np.zeros(16, np.float32)), x)
    back = symm.shmem_reduce_scatter(Tensor(np.zeros(8, np.float32)), whole, "avg")
    return bool((back == x).all())


def test_gather_then_averaging_scatter_is_the_input():
    assert ranks.together(2, round_trip) == [True, True]


# ---- fused ------------------------------------------------------------------------------------


def fused(group_of_four):
    rank, size = worlds.world().rank, worlds.world().size
    name, local = None, rank
    if group_of_four:
        name = split_group(split_ranks=[[0, 2], [3, 1]])
        local, size = ([0, 2] if rank in (0, 2) else [3, 1]).index(rank), 2
    rng = np.random.default_rng(5)  # all know all operands
    a = rng.integers(-3, 4, (4, 3, 5)).astype(np.float32)
    b = rng.integers(-3, 4, (4, 5, 6)).astype(np.float32)
    x1 = rng.integers(-3, 4, (4, 4, 5)).astype(np.float32)
    g = rng.integers(-3, 4, (4, 6, 6)).astype(np.float32)
    members = ([0, 2] if rank in (0, 2) else [3, 1]) if name else [0, 1]
    mine = symm.empty(3, 5, group=name)
    mine[:] = Tensor(a[rank])
    gather_out = Tensor(np.zeros((size * 3, 5), np.float32))
    gathered, c = symm.fused_all_gather_matmul(mine, Tensor(b[rank]), gather_out=gather_out,
                                               group=name)
    whole = np.concatenate([a[m] for m in members])
    assert (gathered.asnumpy() == whole).all() and (c.asnumpy() == whole @ b[rank]).all()
    _, (da, db) = ms.value_and_grad(lambda a, b: (symm.fused_all_gather_matmul(
        a, b, group=name)[1] * Tensor(g[rank])).sum(), (0, 1))(Tensor(a[rank]), Tensor(b[rank]))
    rows = slice(3 * local, 3 * local + 3)
    assert (da.asnumpy() == sum(g[m] @ b[m].T for m in members)[rows]).all()
    assert (db.asnumpy() == whole.T @ g[rank]).all()

    y = symm.fused_matmul_reduce_scatter(Tensor(x1[rank]), Tensor(b[rank]), group=name)
    rows = slice(2 * local, 2 * local + 2)
    assert (y.asnumpy() == sum(x1[m] @ b[m] for m in members)[rows]).all()
    mean = symm.fused_matmul_reduce_scatter(Tensor(x1[rank]), Tensor(b[rank]), reduce_op="avg",
                                            group=name)
    assert (mean.asnumpy() == y.asnumpy() / 2).all()
    _, (dx, dw) = ms.value_and_grad(lambda a, b: (symm.fused_matmul_reduce_scatter(
        a, b, group=name) * Tensor(g[rank][:2])).sum(), (0, 1))(Tensor(x1[rank]), Tensor(b[rank]))
    dy = np.concatenate([g[m][:2] for m in members])
    assert (dx.asnumpy() == dy @ b[rank].T).all() and (dw.asnumpy() == x1[rank].T @ dy).all()

    raises(ValueError, "[m, k]", symm.fused_all_gather_matmul, mine, Tensor(b[0].T.copy()),
           group=name)
    raises(ValueError, "can share", symm.fused_matmul_reduce_scatter, mine, Tensor(b[0]),
           group=name)
    raises(ValueError, "'sum' or 'avg'", symm.fused_matmul_reduce_scatter, Tensor(x1[0]),
           Tensor(b[0]), reduce_op="max", group=name)
    raises(ValueError, "of shape", symm.fused_all_gather_matmul, mine, Tensor(b[0]),
           Tensor(x1[0]), group=name)
    return True


@pytest.mark.parametrize("n", [2, 4])
def test_fused_operators(n):
    assert all(ranks.together(n, fused, n == 4))


# ---- what MindSpore's CPU build cannot do -------------------------------------------------------


def compiled():
    @ms.jit
    def in_a_graph(x):
        return symm.shmem_allreduce(x)

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):  # it leaves files
        raises(RuntimeError, "not supported in 'construct' or function with @jit", in_a_graph,
               arange(3))
    ms.set_context(mode=ms.GRAPH_MODE)
    raises(RuntimeError, "expected PyNative mode", symm.empty, 3)
    ms.set_context(mode=ms.PYNATIVE_MODE)
    return True


def test_graphs_are_refused():
    assert ranks.together(2, compiled) == [True, True]


def waits_and_dies():
    symm.shmem_allreduce(arange(3))
    signal = symm.empty(1, dtype=ms.int64)
    said = []
    try:
        symm.shmem_wait_for_signal(signal, 0, 1, "eq")
    except _c.HyperParallelError as error:
        said.append(error.status)
    symm.barrier()
    if worlds.world().rank == 1:
        os._exit(3)
    try:
        symm.shmem_allreduce(ops.ones(1 << 20, ms.float32))
    except _c.HyperParallelError as error:
        said.append(f"{error.status} {error.rank}")
    with open(os.environ["SAID"], "w") as out:
        out.write(", ".join(said))


def test_late_signals_and_dead_ranks_are_told(tmp_path):
    said = tmp_path / "said"
    ranks.run(2, waits_and_dies, env={"SAID": said, "SYMMETRIC_MEMORY_SIGNAL_TIMEOUT_MS": 3000})
    assert said.read_text() == "HP_ERR_TIMEOUT, HP_ERR_PEER 1"

# SPDX-License-Identifier: Apache-2.0
"""test_backend.py - torch.distributed on backend "hyper": every call, in every form it takes.

Each test runs one function on two or three ranks, which compares what it got with what the ranks
must have given. They stay from test to test, with one default process group; a test that breaks its
group makes one of its own.
"""

from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this PyTorch has no torch.distributed", allow_module_level=True)

import torch.distributed as dist  # noqa: E402
from ranks import together  # noqa: E402

from hyper_parallel import world as worlds  # noqa: E402
from hyper_parallel.torch.work import Pending  # noqa: E402

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
          torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64,
          torch.float8_e4m3fn, torch.float8_e5m2]
REDUCED = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
           torch.int8, torch.uint8]


def begin():
    """(rank, n) in the default group, made at the first call."""
    if not dist.is_initialized():
        from hyper_parallel.torch_entry import register
        register()
        dist.init_process_group("hyper")
    return dist.get_rank(), dist.get_world_size()


def of(rank, shape, dtype=torch.float32):
    """What a rank gives: the same wherever it is computed."""
    n = torch.Size(shape).numel()
    values = torch.arange(n) % 5 + rank
    return (values % 2 == 0 if dtype is torch.bool else values.to(torch.float32).to(dtype)
            ).reshape(shape)


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def equal(a, b):
    assert a.dtype is b.dtype and a.shape == b.shape, (a, b)
    assert torch.equal(bits(a), bits(b)), (a, b)


def raises(kind, *words):
    return pytest.raises(kind, match=".*".join(words))


# ---- reductions ---------------------------------------------------------------------------------


def reductions():
    rank, n = begin()
    for dtype in REDUCED:
        mine = [of(r, (7, 3), dtype) for r in range(n)]
        stacked = torch.stack(mine).to(torch.float64)
        cases = {dist.ReduceOp.SUM: stacked.sum(0), dist.ReduceOp.MAX: stacked.amax(0),
                 dist.ReduceOp.MIN: stacked.amin(0)}
        if dtype.is_floating_point:
            cases[dist.ReduceOp.AVG] = stacked.mean(0)
        for op, expected in cases.items():
            expected = expected.to(torch.float32 if dtype.is_floating_point else dtype).to(dtype)
            for is_async in False, True:
                data = mine[rank].clone()
                work = dist.all_reduce(data, op, async_op=is_async)
                if is_async:
                    assert work.wait() and work.is_completed() and work.is_success()
                torch.testing.assert_close(data, expected)
            for root in range(n):
                data = mine[rank].clone()
                dist.reduce(data, root, op)
                torch.testing.assert_close(data, expected if rank == root else mine[rank])
            big = torch.cat([m.roll(r) for r, m in enumerate([mine[rank]] * n)])
            out = torch.empty_like(mine[0])
            dist.reduce_scatter_single(out, big, op)
            parts = torch.stack([m.roll(rank) for m in mine]).to(torch.float64)
            reduced = {dist.ReduceOp.SUM: parts.sum(0), dist.ReduceOp.MAX: parts.amax(0),
                       dist.ReduceOp.MIN: parts.amin(0), dist.ReduceOp.AVG: parts.mean(0)}[op]
            reduced = reduced.to(torch.float32 if dtype.is_floating_point else dtype).to(dtype)
            torch.testing.assert_close(out, reduced)
            out.zero_()
            dist.reduce_scatter(out, [part.clone() for part in big.chunk(n)], op)
            torch.testing.assert_close(out, reduced)


def other_reductions():
    rank, n = begin()
    for op, expected in ((dist.ReduceOp.SUM, torch.stack([of(r, (9,), torch.bool)
                                                          for r in range(n)]).any(0)),
                         (dist.ReduceOp.BAND, torch.stack([of(r, (9,), torch.bool)
                                                           for r in range(n)]).all(0))):
        data = of(rank, (9,), torch.bool)
        dist.all_reduce(data, op)
        equal(data, expected)
    data = torch.complex(of(rank, (4,)), of(rank + 1, (4,)))
    dist.all_reduce(data)
    expected = sum(torch.complex(of(r, (4,)), of(r + 1, (4,))) for r in range(n))
    torch.testing.assert_close(data, expected)
    data = torch.complex(of(rank, (4,)), of(rank + 1, (4,)))
    dist.reduce(data, 0)
    if rank == 0:
        torch.testing.assert_close(data, expected)
    for dtype in torch.int16, torch.float8_e4m3fn:
        with raises(ValueError, "expected a dtype that can be reduced", "int8", str(dtype)):
            dist.all_reduce(of(rank, (4,), dtype))
    for op in dist.ReduceOp.PRODUCT, dist.ReduceOp.BXOR:
        with raises(ValueError, "expected an operation on torch.float32", "SUM", op.name):
            dist.all_reduce(torch.ones(4), op)
    data = torch.ones(3, dtype=torch.int32)
    with raises(RuntimeError, "float dtype for avg"):
        dist.all_reduce(data, dist.ReduceOp.AVG)
    dist.all_reduce(data)  # nothing has happened to the group
    assert data.tolist() == [n] * 3


def test_reductions():
    together(2, reductions)
    together(3, reductions)


def test_other_reductions():
    together(2, other_reductions)


# ---- what only moves ----------------------------------------------------------------------------


def moves():
    rank, n = begin()
    for dtype in DTYPES:
        mine = of(rank, (4, 3), dtype)
        all_of = [of(r, (4, 3), dtype) for r in range(n)]
        for is_async in False, True:
            def done(work):
                if is_async:
                    work.wait()
            out = torch.empty((4 * n, 3), dtype=dtype)
            done(dist.all_gather_single(out, mine, async_op=is_async))
            equal(out, torch.cat(all_of))
            parts = [torch.empty((4, 3), dtype=dtype) for _ in range(n)]
            done(dist.all_gather(parts, mine, async_op=is_async))
            for part, expected in zip(parts, all_of):
                equal(part, expected)
            for root in range(n):
                data = mine.clone()
                done(dist.broadcast(data, root, async_op=is_async))
                equal(data, all_of[root])
                parts = [torch.empty((4, 3), dtype=dtype) for _ in range(n)]
                done(dist.gather(mine, parts if rank == root else None, root, async_op=is_async))
                if rank == root:
                    for part, expected in zip(parts, all_of):
                        equal(part, expected)
                data = torch.empty((4, 3), dtype=dtype)
                sent = [of(r, (4, 3), dtype) for r in range(n)] if rank == root else None
                done(dist.scatter(data, sent, root, async_op=is_async))
                equal(data, mine)
            data, out = of(rank, (n, 5), dtype), torch.empty((n, 5), dtype=dtype)
            done(dist.all_to_all_single(out, data, async_op=is_async))
            equal(out, torch.stack([of(r, (n, 5), dtype)[rank] for r in range(n)]))


def uneven():
    """Parts of different sizes: rank r sends r + q + 1 rows to rank q."""
    rank, n = begin()
    sent = [of(10 * rank + q, (rank + q + 1, 2)) for q in range(n)]
    wanted = [of(10 * q + rank, (rank + q + 1, 2)) for q in range(n)]
    sizes = [rank + q + 1 for q in range(n)]
    got = [torch.empty_like(w) for w in wanted]
    dist.all_to_all(got, sent)
    for a, b in zip(got, wanted):
        equal(a, b)
    out = torch.empty(sum(sizes), 2)
    dist.all_to_all_single(out, torch.cat(sent), sizes, sizes)
    equal(out, torch.cat(wanted))
    dist.all_to_all_single(out, torch.cat(sent), sizes, sizes, async_op=True).wait()
    equal(out, torch.cat(wanted))
    parts = [torch.empty(r + 1) for r in range(n)]
    dist.all_gather(parts, of(rank, (rank + 1,)))
    for r, part in enumerate(parts):
        equal(part, of(r, (r + 1,)))
    out = torch.empty(rank + 1)
    dist.reduce_scatter(out, [of(rank, (r + 1,)) for r in range(n)])
    torch.testing.assert_close(out, sum(of(r, (rank + 1,)) for r in range(n)))
    with raises(ValueError, "splits that add up to 4", "given"):
        dist.all_to_all_single(torch.empty(4), torch.empty(4), [9] * n, [9] * n)
    with raises(ValueError, f"expected {n} times the 4 elements"):
        dist.all_gather_single(torch.empty(5), torch.empty(4))
    with raises(ValueError, f"a tensor for each of {n} ranks, given 1"):
        dist.all_gather([torch.empty(4)], torch.empty(4))
    for outs, ins in (got[:1], sent), (got, sent[:1]):
        with raises(ValueError, f"a tensor for each of {n} ranks, given 1"):
            dist.all_to_all(outs, ins)


def shapes():
    """Nothing at all, a scalar, strides, halves of one tensor, what is only a view."""
    rank, n = begin()
    for shape in (0,), (3, 0, 2), ():
        data = of(rank, shape)
        dist.all_reduce(data)
        torch.testing.assert_close(data, sum(of(r, shape) for r in range(n)))
        parts = [torch.empty(shape) for _ in range(n)]
        dist.all_gather(parts, of(rank, shape))
        for r, part in enumerate(parts):
            equal(part, of(r, shape))
    for is_async in False, True:
        wide = torch.zeros(6, 8)
        data = wide[:, ::2].t()
        data.copy_(of(rank, (4, 6)))
        work = dist.all_reduce(data, async_op=is_async)
        if is_async:
            assert work.wait()
        torch.testing.assert_close(data, sum(of(r, (4, 6)) for r in range(n)))
        assert not wide[:, 1::2].any()
        out = torch.zeros(4, 2 * n)[:, ::2]
        work = dist.all_gather_single(out, of(rank, (4,)), async_op=is_async)
        if is_async:
            work.wait()
        equal(out.reshape(-1).contiguous(), torch.cat([of(r, (4,)) for r in range(n)]))
    whole = torch.empty(n, 5)
    whole[rank] = of(rank, (5,))
    dist.all_gather(list(whole), whole[rank])  # in place
    equal(whole, torch.stack([of(r, (5,)) for r in range(n)]))
    whole[rank] = of(rank, (5,))
    dist.all_gather_single(whole, whole[rank])
    equal(whole, torch.stack([of(r, (5,)) for r in range(n)]))
    data = torch.complex(of(rank, (4,)), of(rank, (4,))).conj()
    out = torch.empty(4 * n, dtype=data.dtype)
    dist.group.WORLD.all_gather_single(out, data).wait()
    assert out.equal(torch.cat([torch.complex(of(r, (4,)), -of(r, (4,))) for r in range(n)]))
    out = torch.zeros(n, dtype=data.dtype).conj()
    dist.group.WORLD.all_to_all_single(out, data[:n], [1] * n, [1] * n).wait()
    assert out.equal(torch.stack([torch.complex(of(r, (4,)), -of(r, (4,)))[rank]
                                  for r in range(n)]))
    with raises(ValueError, "expected a dense tensor on the CPU", "sparse"):
        dist.all_reduce(torch.eye(3).to_sparse())
    with raises(ValueError, "expected a dense tensor on the CPU", "meta"):
        dist.broadcast(torch.empty(3, device="meta"), 0)


def test_moves():
    together(2, moves)


def test_moves_of_three():
    together(3, moves)


def test_uneven_parts():
    together(3, uneven)


def test_shapes_and_strides():
    together(2, shapes)


# ---- messages -----------------------------------------------------------------------------------


def messages():
    rank, n = begin()
    to, source = (rank + 1) % n, (rank - 1) % n
    for dtype in DTYPES:
        got = torch.empty(300, dtype=dtype)
        works = [dist.irecv(got, source), dist.isend(of(rank, (300,), dtype), to)]
        for work in works:
            work.wait()
        equal(got, of(source, (300,), dtype))
    for count in 0, 1, 1 << 20:  # all send before they receive
        got = torch.empty(count)
        ops = [dist.P2POp(dist.isend, of(rank, (count,)), to),
               dist.P2POp(dist.irecv, got, source)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        equal(got, of(source, (count,)))
    if rank == 0:
        for k in range(20):
            dist.send(torch.tensor([k]), 1, tag=k % 3)
        dist.send(of(0, (4, 4)).t(), 1)
    elif rank == 1:
        got = torch.empty(1, dtype=torch.int64)
        for k in range(20):
            assert dist.recv(got, 0, tag=k % 3) == 0
            assert got.item() == k
        got = torch.empty(4, 4)
        dist.recv(got, 0)
        equal(got, of(0, (4, 4)).t().contiguous())
    with raises(ValueError, "expected the rank to receive from"):
        dist.recv(torch.empty(1))
    with raises(ValueError, "expected a contiguous tensor"):
        dist.irecv(torch.empty(4, 4).t(), source)
    dist.barrier()


def wrong_tag():
    rank, n = begin()
    group = dist.new_group()
    if rank == 0:
        dist.send(torch.ones(1), 1, group=group, tag=5)
    elif rank == 1:
        with raises(RuntimeError, "message of rank 0 to have tag 4, it has 5"):
            dist.recv(torch.ones(1), 0, group=group, tag=4)
    dist.destroy_process_group(group)


def test_messages():
    together(2, messages)
    together(3, messages)


def test_a_tag_that_nobody_waits_for():
    together(2, wrong_tag)


# ---- handles, groups ----------------------------------------------------------------------------


def handles():
    rank, n = begin()
    data = [torch.full((50000,), float(k)) for k in range(8)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in data]
    for k in (7, 0, 3, 1, 2, 4, 5, 6):  # in any order
        works[k].wait(timedelta(seconds=50))
        assert data[k][0] == k * n and works[k].is_completed() and works[k].result()[0] is data[k]
    futures = []
    for k in range(3):
        tensor = torch.full((1000,), float(rank))
        futures.append(dist.all_reduce(tensor, async_op=True).get_future()
                       .then(lambda done: done.value()[0] * 2))
    assert all(f.wait()[5] == n * (n - 1) for f in futures)
    work = dist.all_reduce(torch.ones(4), async_op=True)
    work.wait()
    assert work.get_future().wait()[0].tolist() == [n] * 4
    for k in range(50):  # nobody keeps the handle or what is sent
        dist.all_reduce(torch.full((3000,), 1.0), async_op=True)
    data = torch.ones(4)
    dist.all_reduce(data)  # comes after them
    assert data.tolist() == [n] * 4
    work = dist.barrier(async_op=True)
    while not work.is_completed():
        pass
    assert work.is_success() and work.exception() is None
    with dist._coalescing_manager() as manager:
        several = [torch.full((5,), float(k)) for k in range(4)]
        for tensor in several:
            dist.all_reduce(tensor)
    assert [t[0].item() for t in several] == [k * n for k in range(4)]
    outs, ins = [torch.empty(2 * n) for _ in range(3)], [of(rank, (2,)) for _ in range(3)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for out, tensor in zip(outs, ins):
            dist.all_gather_single(out, tensor)
    manager.wait()
    for out in outs:
        equal(out, torch.cat([of(r, (2,)) for r in range(n)]))
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        got = torch.empty(3)
        dist.irecv(got, (rank - 1) % n)
        dist.isend(of(rank, (3,)), (rank + 1) % n)
    manager.wait()
    equal(got, of((rank - 1) % n, (3,)))


def futures():
    """Functions of futures call the group again, as PowerSGD's do, in one order on all ranks."""
    rank, n = begin()

    def twice(done):
        data = done.value()[0][:3].clone()
        dist.all_reduce(data)
        return dist.all_reduce(data, async_op=True).get_future().wait()[0]

    works = []
    for k in range(4):
        work = dist.all_reduce(torch.full((30000,), float(k)), async_op=True)
        works.append(work.get_future().then(twice).then(lambda done: done.value() + 1))
    for k, work in enumerate(works):
        assert work.wait().tolist() == [k * n ** 3 + 1.0] * 3
    group, data = dist.new_group(), torch.ones(1)
    work = None
    if rank == 0:
        work = dist.all_reduce(data, group=group, async_op=True)
        with raises(RuntimeError, "within 0.01 s"):
            work.wait(timedelta(milliseconds=10))
        assert work.exception() is None
    dist.barrier()
    work = work or dist.all_reduce(data, group=group, async_op=True)
    assert work.wait() and work.is_success() and data.item() == n

    def broken():
        raise OSError("no room for it")

    lane = dist.group.WORLD._collectives
    with raises(OSError, "no room"):
        Pending(lane, lane.last(), after=broken).get_future().wait()


def power_sgd():
    """Buckets whose functions call the group twice each, DDP's next buckets meanwhile."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power
    rank, n = begin()
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(48, 48) for _ in range(6)])
    model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01)
    model.register_comm_hook(power.PowerSGDState(None, 2, start_powerSGD_iter=2),
                             power.powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    x = of(rank, (8, 48)) / 4
    losses = []
    for _ in range(6):
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    for p in model.parameters():
        first = p.detach().clone()
        dist.broadcast(first, 0)
        equal(p.detach(), first)


def closed():
    """What is asked of handles when their group is gone."""
    rank, n = begin()
    group, data, other, told = dist.new_group(), torch.ones(300), (rank + 1) % n, []
    done = dist.all_reduce(data, group=group, async_op=True)
    first = dist.irecv(torch.ones(1), other, group=group).get_future()
    first = first.then(lambda _: closing(group))
    dist.barrier()
    dist.send(torch.ones(1), other, group=group)
    assert "outside of" in first.wait() and done.wait()
    lost = dist.irecv(torch.ones(1), other, group=group)
    future = lost.get_future()
    future.add_done_callback(lambda _: told.append(worlds.world().rank))
    dist.barrier()
    group.shutdown(0)
    assert told == [rank]
    assert done.wait() and done.is_success() and done.get_future().wait()[0][0] == n
    for wait in lost.wait, lost.wait, future.wait, lost.get_future().wait:
        with raises(RuntimeError, "cancel"):
            wait()
    assert lost.is_completed() and not lost.is_success()
    dist.destroy_process_group(group)


def closing(group):
    try:
        group.shutdown()
    except RuntimeError as error:
        return str(error)
    return "it was closed"


def groups():
    rank, n = begin()
    pairs = [dist.new_group([a, b]) for a, b in ((0, 1), (1, 2), (2, 0))]
    members = [(0, 1), (1, 2), (0, 2)]
    for group, ranks in zip(pairs, members):
        if rank in ranks:
            assert dist.get_process_group_ranks(group) == list(ranks)
            data = torch.tensor([float(rank)])
            dist.all_reduce(data, group=group)
            assert data.item() == sum(ranks)
            data = torch.tensor([rank])
            dist.broadcast(data, ranks[1], group=group)
            assert data.item() == ranks[1]
    one, two = dist.new_group(), dist.new_group()  # each in an order of its own
    order = (one, two) if rank == 0 else (two, one)
    data = {group: torch.ones(1000) for group in order}
    works = [dist.all_reduce(data[group], group=group, async_op=True) for group in order]
    for work in works:
        work.wait()
    assert all(tensor[0] == n for tensor in data.values())
    half = dist.group.WORLD.split_group([0, 2])
    assert (half is None) == (rank == 1)
    if half is not None:
        data = torch.tensor([float(rank)])
        half.allreduce([data]).wait()
        assert data.item() == 2 and half.size() == 2
        half.shutdown()
    gathered = [None] * n
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * (1000 * rank)})
    assert [(g["rank"], len(g["text"])) for g in gathered] == [(r, 1000 * r) for r in range(n)]
    objects = ["a", {2: 3}] if rank == 1 else [None, None]
    dist.broadcast_object_list(objects, src=1)
    assert objects == ["a", {2: 3}]
    dist.group.WORLD.monitored_barrier(timedelta(seconds=30))
    dist.barrier()
    for group in (*pairs, one, two):
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)
    assert dist.get_backend() == "hyper" and dist.group.WORLD.group_name == "0"


def functional():
    import torch.distributed._functional_collectives as funcol
    rank, n = begin()
    group = dist.group.WORLD
    wait = funcol.wait_tensor
    x = of(rank, (4, 3))
    torch.testing.assert_close(wait(funcol.all_reduce(x, "sum", group)),
                               sum(of(r, (4, 3)) for r in range(n)))
    torch.testing.assert_close(wait(funcol.all_reduce(x, "avg", group)),
                               sum(of(r, (4, 3)) for r in range(n)) / n)
    equal(wait(funcol.all_gather_tensor(x, 0, group)), torch.cat([of(r, (4, 3)) for r in range(n)]))
    equal(wait(funcol.all_gather_tensor(x, 1, group)),
          torch.cat([of(r, (4, 3)) for r in range(n)], 1))
    torch.testing.assert_close(wait(funcol.reduce_scatter_tensor(of(rank, (2 * n, 3)), "sum", 0,
                                                                 group)),
                               sum(of(r, (2 * n, 3)) for r in range(n)).chunk(n)[rank])
    equal(wait(funcol.broadcast(x, 1, group)), of(1, (4, 3)))
    equal(wait(funcol.all_to_all_single(of(rank, (n, 2)), None, None, group)),
          torch.stack([of(r, (n, 2))[rank] for r in range(n)]))
    a, b = funcol.all_reduce_coalesced([x, x + 1], "sum", group)
    torch.testing.assert_close(wait(b) - wait(a), torch.full((4, 3), float(n)))
    a, b = funcol.all_gather_into_tensor_coalesced([x, x[0]], group)
    equal(wait(b), torch.cat([of(r, (4, 3))[0] for r in range(n)]))


def buffers():
    """Of allocate_tensor: where peers reach them, used again when no tensor shares them."""
    from hyper_parallel import heap
    rank, n = begin()
    group = dist.group.WORLD
    data = group.allocate_tensor(5000, dtype=torch.float32, device=torch.device("cpu"))
    place = data.data_ptr()
    assert heap.block_at(place) is not None and data.shape == (5000,)
    for k in range(3):
        data.fill_(rank + k)
        dist.all_reduce(data)
        assert data.unique().tolist() == [sum(range(n)) + n * k]
    part = data[10:20]
    del data
    other = group.allocate_tensor(5000, dtype=torch.float32)
    assert other.data_ptr() != place and part[0] == sum(range(n)) + 2 * n
    del part
    again = group.allocate_tensor(9000, dtype=torch.bfloat16)  # 18,000 bytes of the 20,480
    assert again.data_ptr() == place
    assert group.allocate_tensor(0, dtype=torch.float32).numel() == 0


def test_buffers_in_symmetric_memory():
    together(2, buffers)


def profiled():
    rank, n = begin()
    with torch.profiler.profile() as profile:
        dist.all_reduce(torch.ones(4))
        dist.barrier(async_op=True).wait()
    names = {event.name for event in profile.events()}
    assert {"hyper::all_reduce", "hyper::barrier"} <= names, names


def test_ranges_in_the_profiler():
    together(2, profiled)


def test_handles():
    together(2, handles)


def test_futures():
    together(2, futures)


def test_power_sgd():
    together(2, power_sgd)


def test_handles_of_a_group_that_is_gone():
    together(2, closed)


def test_groups():
    together(3, groups)


def test_functional_collectives():
    together(2, functional)

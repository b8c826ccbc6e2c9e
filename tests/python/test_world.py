# SPDX-License-Identifier: Apache-2.0
"""test_world.py - the world, its groups, torch's stores as where ranks meet, and how it ends."""

import os
import socket
import subprocess
import sys
import threading
import time
from importlib.util import find_spec

import pytest
import ranks

from hyper_parallel import world as worlds
from hyper_parallel._c import HyperParallelError, check, ffi, lib


def all_sum(group, value):
    """The sum over a group, of an int."""
    cell = ffi.new("int64_t *", value)
    check(lib.hp_all_reduce(group.handle, cell, cell, 1, lib.HP_INT64, lib.HP_SUM))
    return cell[0]


def groups():
    here = worlds.world()
    assert worlds.world() is here and worlds.is_initialized()
    assert here.group.ranks == tuple(range(here.size)) and worlds.group_of() is here.group
    assert worlds.group_of(range(here.size)) is here.group
    back = worlds.group_of([3, 2, 1, 0])
    assert back.rank == 3 - here.rank and worlds.group_of([3, 2, 1, 0]) is back
    half = here.group.split(here.rank % 2, -here.rank)
    assert half.ranks == (here.rank % 2 + 2, here.rank % 2)
    assert here.group.split(-1 if here.rank else 0) is None or here.rank == 0
    twin = half.duplicate()
    twin.close()
    twin.close()
    with pytest.raises(RuntimeError, match="closed"):
        _ = twin.handle
    with pytest.raises(ValueError, match="rank 7 of 9"):
        worlds.world(rank=7, size=9)
    with pytest.raises(HyperParallelError, match="given 4 at place 1") as caught:
        worlds.group_of([here.rank, 4])
    assert caught.value.status == "HP_ERR_ARGUMENT"
    return all_sum(back, 1), all_sum(half, here.rank)


def test_groups():
    assert ranks.together(4, groups) == [(4, 2), (4, 4), (4, 2), (4, 4)]


def again():
    closed = []

    def ask():  # as a function of a future does, in a thread that is waited for
        thread = threading.Thread(target=lambda: closed.append(worlds.world().rank), daemon=True)
        thread.start()
        thread.join(5)

    for _ in range(2):
        here = worlds.world()
        for _ in range(2):
            worlds.before_shutdown(ask)  # once
        worlds.before_shutdown(lambda: closed.append("first"))
        worlds.before_shutdown(lambda: closed.append("second"))
        group = here.group.duplicate()
        assert all_sum(group, 1) == 2
        check(lib.hp_barrier(here.group.handle))
        worlds.shutdown()
        worlds.shutdown()
        assert not worlds.is_initialized()
        with pytest.raises(RuntimeError, match="closed"):
            _ = group.handle
        worlds.world()
        check(lib.hp_barrier(worlds.world().group.handle))
        worlds.shutdown()
    return closed


def test_shutdown_and_again():
    assert ranks.values_of(2, again) == [["second", "first", rank] * 2 for rank in (0, 1)]


def forked():
    worlds.world()
    child = os.fork()
    if child == 0:
        try:
            worlds.world()
        except RuntimeError as error:
            os._exit(0 if "fork" in str(error) and not worlds.is_initialized() else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    return all_sum(worlds.world().group, 1)


def test_child_made_by_fork():
    assert ranks.values_of(2, forked) == [2, 2]


def test_alone():
    program = ("from hyper_parallel import world as w\n"
               "here = w.world(); print(here, here.group, here.local_size)")
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True,
                          text=True, env=ranks.environment())
    assert said.stdout.strip() == "<World, rank 0 of 1> <Group of ranks [0]> 1"
    assert said.stderr == ""


def meet(store, rank):
    """Join in a store of torch, use it, and leave."""
    here = worlds.world(store, rank, 2)
    assert (here.rank, here.size) == (rank, 2)
    total = all_sum(here.group, rank + 1), all_sum(worlds.group_of([1, 0]), 1)
    check(lib.hp_barrier(here.group.handle))
    worlds.shutdown()
    return total


def over_stores(folder, port, rank):
    import torch.distributed as dist
    file = dist.FileStore(f"{folder}/store", 2)
    tcp = dist.TCPStore("127.0.0.1", port, 2, rank == 0, wait_for_workers=False)
    print(meet(file, rank), meet(dist.PrefixStore("some", dist.PrefixStore("prefix", tcp)), rank),
          end=" ")
    if rank == 0:  # the other one does not come
        os.environ["HYPER_PARALLEL_START_TIMEOUT_MS"] = "300"
        with pytest.raises(HyperParallelError, match="did not come: 1") as caught:
            meet(dist.FileStore(f"{folder}/late", 2), rank)
        print(caught.value.status)


def test_torch_stores(tmp_path):
    """Ranks that nobody started together meet in a FileStore, and in a TCPStore with prefixes."""
    if not find_spec("torch"):
        pytest.skip("PyTorch is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = ("import sys; sys.path.insert(0, sys.argv[1]); import test_world\n"
               "test_world.over_stores(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))")
    both = [subprocess.Popen([sys.executable, "-c", program, os.path.dirname(__file__),
                              str(tmp_path), str(port), str(rank)], text=True,
                             env=ranks.environment(), stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE) for rank in range(2)]
    said = [process.communicate(timeout=60) for process in both]
    assert said[0][0] == "(3, 2) (3, 2) HP_ERR_TIMEOUT\n", said
    assert said[1][0] == "(3, 2) (3, 2) ", said


def test_store_that_fails():
    """What a store raises is a status of the library, in a sentence."""

    class Broken:
        def set(self, key, value):
            raise OSError("no room on this shelf")

    with pytest.raises(ValueError, match="rank and size"):
        worlds.world(Broken())
    with pytest.raises(HyperParallelError, match="OSError: no room on this shelf"):
        worlds.world(Broken(), 0, 2)
    assert not worlds.is_initialized()


def survivor():
    here = worlds.world()
    check(lib.hp_barrier(here.group.handle))
    if here.rank == 1:
        os.kill(os.getpid(), 9)
    began = time.monotonic()
    try:
        check(lib.hp_barrier(here.group.handle))
    except HyperParallelError as error:
        with open(os.environ["SAID"], "w") as out:
            out.write(f"{error.status} {error.rank} {time.monotonic() - began:.3f}")
        raise


def test_rank_that_is_killed(tmp_path):
    result = ranks.run(2, survivor, env={"SAID": tmp_path / "said"})
    status, rank, seconds = (tmp_path / "said").read_text().split()
    assert (status, rank) == ("HP_ERR_PEER", "1") and float(seconds) < 1.0
    assert result.status != 0 and "rank 1" in result.output

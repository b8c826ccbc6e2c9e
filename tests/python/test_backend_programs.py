# SPDX-License-Identifier: Apache-2.0
"""test_backend_programs.py - whole programs on backend "hyper", and what they hear of a rank's end.

The programs of PyTorch's tutorials train to the losses that they have on Gloo, under torchrun. When
a rank is killed the others get an exception that names it within a second, in whatever they wait.
"""

import json
import os
import signal
import time
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this PyTorch has no torch.distributed", allow_module_level=True)

import torch.distributed as dist  # noqa: E402
from ranks import run, together  # noqa: E402
from test_backend import begin  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))


def test_programs_of_the_tutorials(tmp_path):
    results = run(2, os.path.join(HERE, "programs_of_torch.py"), "gloo", "hyper", tmp_path,
                  launcher="torchrun", seconds=110)
    assert results.status == 0, results.output
    losses = [json.loads((tmp_path / f"losses.{rank}").read_text()) for rank in range(2)]
    assert losses[0] == losses[1]
    for program in "ddp", "fsdp2", "fsdp2_allocated", "tensor_parallel":
        gloo, hyper = losses[0]["gloo"][program], losses[0]["hyper"][program]
        assert hyper == pytest.approx(gloo, rel=1e-6), program
        assert hyper[-1] < 0.8 * hyper[0], program


def outlive(folder):
    """Ranks 0 and 2 wait for rank 1, each in its own way; each returns (seconds from rank 1's end
    to the exception, what it says) of each wait."""
    rank, n = begin()
    ended = os.path.join(folder, "ended")
    groups = [dist.new_group() for _ in range(3)]
    data = torch.ones(1000)
    dist.barrier()
    if rank == 1:
        time.sleep(0.3)  # the others wait by then
        with open(ended, "w") as out:
            out.write(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)
    waits = {
        0: [lambda: dist.all_reduce(data, group=groups[0]),
            lambda: dist.recv(data, 1, group=groups[1]),
            lambda: dist.barrier()],
        2: [lambda: dist.all_reduce(data, group=groups[0], async_op=True).wait(),
            lambda: dist.all_reduce(data, group=groups[1], async_op=True).get_future().wait(),
            lambda: dist.all_gather_object([None] * n, rank, group=groups[2])],
    }[rank]
    heard = []
    for wait in waits:
        with pytest.raises(RuntimeError) as failure:
            wait()
        with open(ended) as file:
            heard.append((time.time() - float(file.read()), str(failure.value)))
    return heard


def test_a_killed_rank_is_named(tmp_path):
    results = run(3, outlive, str(tmp_path))
    assert results.status == 128 + signal.SIGKILL, results.output
    for rank in 0, 2:
        assert results.errors[rank] is None, results.errors[rank]
        for seconds, text in results.values[rank]:
            assert seconds < 1 and "rank 1" in text, (rank, seconds, text)


def deadline():
    """Of one group, of one call, of one wait."""
    rank, n = begin()
    if rank == 0:
        with pytest.raises(RuntimeError, match="rank 1"):
            dist.barrier(dist.new_group(timeout=timedelta(milliseconds=50)))
        with pytest.raises(RuntimeError, match="rank 1"):
            dist.barrier(dist.new_group(), timeout=timedelta(milliseconds=50))
        group = dist.new_group()
        work = dist.irecv(torch.ones(1), 1, group=group)
        with pytest.raises(RuntimeError, match="within 0.05 s"):
            work.wait(timedelta(milliseconds=50))
        assert not work.is_completed()
        dist.destroy_process_group(group)  # waits for no message that never comes
    else:
        for _ in range(3):
            dist.new_group(timeout=timedelta(seconds=50))
    dist.barrier()


@pytest.mark.full
def test_deadlines():
    together(2, deadline)

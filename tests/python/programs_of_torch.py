# SPDX-License-Identifier: Apache-2.0
"""programs_of_torch.py - the programs of PyTorch's distributed tutorials, on backends by name.

usage: torchrun --nproc-per-node 2 programs_of_torch.py BACKEND... FOLDER

For each backend, one after the other in the same processes: DistributedDataParallel ("Getting
Started with DDP"), FSDP2 ("Getting Started with Fully Sharded Data Parallel") and DTensor tensor
parallelism with sequence parallelism ("Large Scale Transformer model training with Tensor
Parallel"). Nothing but the name depends on the backend, but for fsdp2_allocated: FSDP2 with its
buffers in memory of backend hyper, where that is the backend. Rank r writes FOLDER/losses.r, a JSON
object {backend: {program: [loss of each step]}}.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput,
                                               RowwiseParallel, SequenceParallel,
                                               parallelize_module)
from torch.nn.parallel import DistributedDataParallel

STEPS = 4


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class ToyModel(nn.Module):
    def __init__(self, width=32, n_blocks=3):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block(width) for _ in range(n_blocks))
        self.head = nn.Linear(width, 8)
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def train(model, rank, is_seen_alike=False):
    """The losses of some steps, averaged over the ranks."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    random = torch.Generator().manual_seed(0 if is_seen_alike else rank)
    losses = []
    for _ in range(STEPS):
        x = torch.randn(4, 16, 32, generator=random)
        loss = (model(x) - x[..., :8]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
    return losses


def ddp(rank):
    model = DistributedDataParallel(ToyModel(), find_unused_parameters=True, bucket_cap_mb=0.02)
    with model.no_sync():
        model(torch.ones(1, 1, 32)).sum().backward()
    return train(model, rank)


def fsdp2(rank, allocates=False):
    model = ToyModel()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    if allocates:
        model.set_allocate_memory_from_process_group_for_comm(True)
    return train(model, rank)


def fsdp2_allocated(rank):
    return fsdp2(rank, allocates=dist.get_backend() == "hyper")


def tensor_parallel(rank):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = ToyModel()
    for block in model.blocks:  # between them each rank has its part of the sequence
        parallelize_module(block, mesh, {
            "norm": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Shard(1)),
        })
    parallelize_module(model, mesh, {
        "blocks.0": PrepareModuleInput(input_layouts=(Replicate(),),
                                       desired_input_layouts=(Shard(1),), use_local_output=True),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    })
    return train(model, rank, is_seen_alike=True)


PROGRAMS = ddp, fsdp2, fsdp2_allocated, tensor_parallel


def main():
    *backends, folder = sys.argv[1:]
    rank = int(os.environ["RANK"])
    losses = {}
    for backend in backends:
        dist.init_process_group(backend)
        losses[backend] = {f.__name__: f(rank) for f in PROGRAMS}
        dist.destroy_process_group()
    with open(os.path.join(folder, f"losses.{rank}"), "w") as out:
        json.dump(losses, out)


if __name__ == "__main__":
    main()

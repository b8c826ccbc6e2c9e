# SPDX-License-Identifier: Apache-2.0
"""fsdp_models.py - small models, their data, and training them sharded and not.

A global batch is cut into equal parts, one for each rank, so that the mean of the ranks' losses is
the loss of a model that is not sharded; what train gives is that mean, on every rank.
"""

import functools

import torch
from torch import nn

import hyper_parallel as hp
from hyper_parallel import world as worlds
from hyper_parallel._c import check, ffi, lib

BATCH, WIDTH = 8, 10
# Unit 0 of all ranks and a rank that has no rows of the smallest parameters are in every test.


class Block(nn.Module):
    def __init__(self, width=WIDTH):
        super().__init__()
        self.a, self.b = nn.Linear(width, 3), nn.Linear(3, width, bias=False)
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        return x + self.scale * self.b(torch.tanh(self.a(x)))


class Net(nn.Module):
    """Blocks between an input and an output layer."""

    def __init__(self, n_blocks=3):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.blocks = nn.ModuleList(Block() for _ in range(n_blocks))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def net(kind=Net, **options):
    torch.manual_seed(3)
    return kind(**options)


def shard(model, **options):
    """Each block a unit, and the model."""
    if "mesh" in options:
        options["mesh"] = hp.init_device_mesh("cpu", options["mesh"])
    for block in getattr(model, "blocks", ()):
        hp.fully_shard(block, **options)
    return hp.fully_shard(model, **options)


def batches(n, width=WIDTH):
    random = torch.Generator().manual_seed(5)
    return [torch.randn(BATCH, width, generator=random) for _ in range(n)]


def mine(batch):
    """This rank's part of a global batch."""
    here = worlds.world()
    n = len(batch) // here.size
    return batch[here.rank * n:(here.rank + 1) * n]


def everything(batch):
    return batch


def mean(values):
    """Over the ranks, of a list of floats."""
    here = worlds.world()
    x = torch.tensor(values, dtype=torch.float64)
    check(lib.hp_all_reduce(here.group.handle, ffi.cast("void *", x.data_ptr()),
                            ffi.cast("void *", x.data_ptr()), x.numel(), lib.HP_FP64, lib.HP_AVG))
    return x.tolist()


def square(model, x):
    return model(x).square().mean()


def train(model, data, part, loss_of=square, optimizer=None, max_norm=None, clip=None):
    """Losses of this rank's part, one for each step."""
    make = optimizer or functools.partial(torch.optim.AdamW, lr=1e-2)
    optimizer = make([p for p in model.parameters() if p.requires_grad])
    losses = []
    for batch in data:
        loss = loss_of(model, part(batch))
        loss.backward()
        if max_norm is not None:
            clip([p for p in model.parameters() if p.requires_grad], max_norm)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def close(ours, theirs, tolerance=1e-6):
    """Within a relative tolerance of the model that is not sharded."""
    assert all(abs(a - b) <= tolerance * abs(b) for a, b in zip(ours, theirs, strict=True)), (
        ours, theirs)


def compare(make, sharded=shard, n_steps=6, tolerance=1e-6, clip=False, width=WIDTH, **training):
    """Train make() sharded and not; the losses are the same. Returns the sharded model."""
    data = batches(n_steps, width)
    expected = train(make(), data, everything, **training,
                     clip=nn.utils.clip_grad_norm_ if clip else None)
    model = sharded(make())
    close(mean(train(model, data, mine, **training, clip=hp.clip_grad_norm_ if clip else None)),
          expected, tolerance)
    return model

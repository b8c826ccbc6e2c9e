# SPDX-License-Identifier: Apache-2.0
"""torch_fsdp.py - a training step of fully_shard beside PyTorch's FSDP2, in one run.

usage: hprun -n 2 python tools/bench/torch_fsdp.py [--layers 8] [--hidden 512] [--rounds 5]
           [--batch 1] [--tokens 128] [WAY ...]

Qwen3 on numbers in a row: forward, backward and AdamW, the same model, data and optimizer in every
way. Ways are PyTorch's FSDP2 on a backend ("fsdp2-gloo", "fsdp2-hyper", or with its buffers in the
backend's memory "fsdp2-hyper-memory") and ours by the name of a mode ("per-param", "fused",
"fused-zero-copy", "mapped"). Rounds go through all ways one after the other, so that what else the
machine does meets all of them; the table has medians over rounds, and ratios to the first way.
Losses of all ways are compared: where one is further than 1e-6 from the first way's the run fails.
"""

import argparse
import math
import statistics
import sys
import time

import torch
import torch.distributed as dist
import transformers
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard as fsdp2

import hyper_parallel as hp
from hyper_parallel.torch_entry import register

TOLERANCE = 1e-6


def make_model(arguments):
    torch.manual_seed(0)
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(
        vocab_size=arguments.vocab, hidden_size=arguments.hidden,
        intermediate_size=3 * arguments.hidden, num_hidden_layers=arguments.layers,
        num_attention_heads=8, num_key_value_heads=4, head_dim=arguments.hidden // 8,
        tie_word_embeddings=True, use_cache=False))


def shard(model, way):
    if way.startswith("fsdp2-"):
        _, backend, *memory = way.split("-")
        size = dist.get_world_size()
        group = dist.new_group(list(range(size)), backend=backend)
        mesh = DeviceMesh.from_group(group, "cpu")
        for layer in model.model.layers:
            fsdp2(layer, mesh=mesh)
        fsdp2(model, mesh=mesh)
        model.set_allocate_memory_from_process_group_for_comm(bool(memory))
        return model
    for layer in model.model.layers:
        hp.fully_shard(layer, mode=way)
    return hp.fully_shard(model, mode=way)


class Way:
    def __init__(self, name, arguments):
        self.name = name
        self.model = shard(make_model(arguments), name)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4,
                                           foreach=arguments.foreach or None)
        self.losses, self.seconds = [], []

    def step(self, tokens):
        began = time.perf_counter()
        loss = self.model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.item())
        return time.perf_counter() - began


def batches(arguments, rank):
    random = torch.Generator().manual_seed(rank)
    while True:
        start = torch.randint(0, arguments.vocab, (arguments.batch, 1), generator=random)
        yield (start + torch.arange(arguments.tokens)) % arguments.vocab


def run(arguments):
    rank = dist.get_rank()
    ways = [Way(name, arguments) for name in arguments.ways]
    data = {way.name: batches(arguments, rank) for way in ways}
    for way in ways:  # the first two steps make, and learn, what later ones have
        for _ in range(2):
            way.step(next(data[way.name]))
    for k in range(arguments.rounds):
        for way in ways[k % len(ways):] + ways[:k % len(ways)]:
            dist.barrier()
            way.seconds.append(way.step(next(data[way.name])))
    return ways


def distance(way, first):
    """The largest between losses of the same step, relative; infinity where one is no number."""
    pairs = zip(way.losses, first.losses, strict=True)
    apart = [abs(a - b) / abs(b) for a, b in pairs]
    return max(math.inf if math.isnan(x) else x for x in apart)


def show(ways):
    first = ways[0]
    for way in ways:
        pairs = [a / b for a, b in zip(first.seconds, way.seconds)]
        apart = distance(way, first)
        print(f"{way.name:16} {1e3 * statistics.median(way.seconds):8.1f} ms  "
              f"{statistics.median(pairs):5.2f} times as fast as {first.name}  "
              f"losses within {apart:.0e}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (("layers", 8), ("hidden", 512), ("vocab", 256), ("batch", 1),
                        ("tokens", 128), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--foreach", action="store_true", help="of AdamW, in every way")
    parser.add_argument("ways", nargs="*", default=["fsdp2-hyper", "per-param", "fused-zero-copy",
                                                    "mapped"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    register()  # of a package that is not installed
    dist.init_process_group("hyper")
    ways = run(arguments)
    if dist.get_rank() == 0:
        show(ways)
    dist.destroy_process_group()
    wrong = [way.name for way in ways if distance(way, ways[0]) > TOLERANCE]
    if wrong:
        sys.exit(f"expected losses within {TOLERANCE} of {ways[0].name}'s, those of "
                 f"{', '.join(wrong)} are not")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch on backend "hyper" beside PyTorch on Gloo, in one run.

usage: hprun -n N torch_backend.py collectives|fsdp [--seconds S] [--json FILE]

Both backends are groups of the same ranks in the same processes, each bound to a core of its own as
hpperf binds what it measures, and take turns call by call (collectives) or step by step (fsdp:
FSDP2 on a Qwen3 of 8 layers x 512 in fp32, AdamW, from the same weights on the same tokens). What
is shown is the median time of a turn, the slowest rank's, and the median of the ratios of
neighbouring turns. The losses of fsdp must be equal within 1e-6 relative. The tables stand in
docs/python.md.
"""

import argparse
import json
import os
import statistics
import sys
import time
import warnings


def bind(rank, n):
    """To a core of its own, where there are as many."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) >= n:
        os.sched_setaffinity(0, {cores[rank]})


warnings.simplefilter("ignore")  # names that torch is about to change
bind(int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)))  # its threads inherit it

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from hyper_parallel.torch_entry import register  # noqa: E402

BACKENDS = "gloo", "hyper"


def slowest(seconds):
    """The longest of all ranks, for each of a list of times."""
    times = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return times.tolist()


def in_turns(functions, seconds, least=5):
    """{name: median seconds}, and {name: median ratio of the first one's time to its}. functions:
    {name: function}; all ranks make the same number of turns."""
    for function in functions.values():
        function()
        function()
    begin = time.perf_counter()
    times = {name: [] for name in functions}
    for name, function in functions.items():
        function()
    once = max(slowest([time.perf_counter() - begin]))
    for _ in range(max(least, min(300, int(seconds / once)))):
        for name, function in functions.items():
            dist.barrier()
            begin = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - begin)
    times = {name: slowest(ts) for name, ts in times.items()}
    first = next(iter(times.values()))
    ratios = {name: statistics.median(a / b for a, b in zip(first, ts))
              for name, ts in times.items()}
    return {name: statistics.median(ts) for name, ts in times.items()}, ratios


# ---- collectives --------------------------------------------------------------------------------


def calls(n_bytes, n):
    """{name: function(group)} of collectives whose larger operand has n_bytes."""
    whole, part = torch.zeros(n_bytes // 4), torch.zeros(n_bytes // 4 // n)  # sums stay zeros
    return {
        "all_reduce": lambda g: dist.all_reduce(whole, group=g),
        "all_gather": lambda g: dist.all_gather_single(whole, part, group=g),
        "reduce_scatter": lambda g: dist.reduce_scatter_single(part, whole, group=g),
        "async all_reduce": lambda g: dist.all_reduce(whole, group=g, async_op=True).wait(),
    }


def collectives(groups, seconds):
    rows = []
    for power in range(10, 27, 2):
        for name, call in calls(1 << power, dist.get_world_size()).items():
            times, ratios = in_turns({b: lambda g=g: call(g) for b, g in groups.items()}, seconds)
            rows.append({"what": name, "bytes": 1 << power, **times, "ratio": ratios["hyper"]})
    return rows


# ---- FSDP2 --------------------------------------------------------------------------------------


def model_of(group, allocates):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(
        vocab_size=256, hidden_size=512, intermediate_size=1536, num_hidden_layers=8,
        num_attention_heads=8, num_key_value_heads=4, head_dim=64, tie_word_embeddings=True))
    mesh = DeviceMesh.from_group(group, "cpu")
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if allocates:
        model.set_allocate_memory_from_process_group_for_comm(True)
    return model, torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=True)


def fsdp(groups, seconds, batch=1, length=128):
    cases = {name: (group, False) for name, group in groups.items()}
    cases["hyper, its memory"] = groups["hyper"], True
    losses = {name: [] for name in cases}
    steps = {}
    for name, (group, allocates) in cases.items():
        model, optimizer = model_of(group, allocates)
        random = torch.Generator().manual_seed(dist.get_rank())

        def step(model=model, optimizer=optimizer, random=random, losses=losses[name]):
            tokens = torch.randint(0, 256, (batch, length), generator=random)
            loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())

        steps[name] = step
    times, ratios = in_turns(steps, seconds, 8)
    rows = []
    for name in cases:
        worst = max(abs(a - b) / abs(a) for a, b in zip(losses["gloo"], losses[name]))
        if worst > 1e-6:
            sys.exit(f"torch_backend: losses of {name} differ by {worst:.2g} relative from Gloo's")
        rows.append({"what": f"FSDP2 step, {batch} x {length} tokens a rank ({name})", "bytes": 0,
                     "gloo": times["gloo"], "hyper": times[name], "ratio": ratios[name],
                     "losses_differ": worst})
    return rows[1:]


def size_text(n_bytes):
    return f"{n_bytes >> 20} MiB" if n_bytes >= 1 << 20 else f"{n_bytes >> 10} KiB"


def time_text(seconds):
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"


def show(rows):
    print("| | bytes | Gloo | hyper | ratio |\n|---|---|---|---|---|")
    for row in rows:
        size = size_text(row["bytes"]) if row["bytes"] else ""
        print(f"| {row['what']} | {size} | {time_text(row['gloo'])} | {time_text(row['hyper'])} | "
              f"{row['ratio']:.2f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["collectives", "fsdp"])
    parser.add_argument("--seconds", type=float, default=0.3, help="for each row")
    parser.add_argument("--json", help="write the rows there too")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    register()
    dist.init_process_group("hyper")
    groups = {name: dist.new_group(backend=name) for name in BACKENDS}
    rows = {"collectives": collectives, "fsdp": fsdp}[arguments.what](groups, arguments.seconds)
    if dist.get_rank() == 0:
        show(rows)
        if arguments.json:
            with open(arguments.json, "w") as out:
                json.dump(rows, out, indent=1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

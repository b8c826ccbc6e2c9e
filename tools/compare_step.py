#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# compare_step.py - one training step of Qwen3 here and in eager PyTorch, in one interleaved run.
#
# usage: compare_step.py BUILD [--steps N] [--core N] [--most RATIO] [--torch-profile]
#
# Both start from the same weights, see the same tokens, run one thread on the same core, and step
# in turn: each sleeps while the other computes. A step is forward, backward and AdamW, fp32, with
# nothing computed again. The peer is Transformers' model with PyTorch's own attention and whichever
# of its three AdamW loops is the fastest here. The losses must agree, or the two did not do the same
# work.
# Prints medians, their ratio, and where our time goes. The exit status is 1 when the ratio is above
# --most. Needs torch and transformers.
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

RATE, N_ROWS, SEQ = 1e-4, 2, 256
SHAPE = {
    "vocab_size": 256, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64,
    "max_position_embeddings": SEQ, "tie_word_embeddings": False,
    "bos_token_id": None, "eos_token_id": None,
}

parser = argparse.ArgumentParser()
parser.add_argument("build", help="the build folder, for its tests/model/qwen3_probe")
parser.add_argument("--steps", type=int, default=15)
parser.add_argument("--most", type=float, default=1.15, help="ratio of steps, ours to PyTorch's")
parser.add_argument("--core", type=int, default=min(os.sched_getaffinity(0)))
parser.add_argument("--torch-profile", action="store_true", help="where PyTorch's time goes")
options = parser.parse_args()
probe = os.path.join(options.build, "tests", "model", "qwen3_probe")
if not os.path.exists(probe):
    sys.exit(f"compare_step: expected {probe}, which is not there: build the tests first")

# Before torch starts a thread; the probe inherits it.
os.sched_setaffinity(0, {options.core})
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", HF_HUB_OFFLINE="1")
import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

torch.set_num_threads(1)
transformers.utils.logging.disable_progress_bar()


class Theirs:
    def __init__(self, weights, rows):
        self.weights = weights
        self.rows = torch.from_numpy(rows.astype(np.int64))
        self.begin_with()

    def begin_with(self, **variant):
        """The first weights again, and an AdamW loop of PyTorch's."""
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            self.weights, dtype=torch.float32, attn_implementation="sdpa"
        )
        self.model.train()
        self.adamw = torch.optim.AdamW(self.model.parameters(), lr=RATE, **variant)

    def step(self):
        logits = self.model(self.rows[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), self.rows[:, 1:].flatten())
        loss.backward()
        self.adamw.step()
        self.adamw.zero_grad()
        return loss.item()

    def timed_step(self):
        begin, begin_cpu = time.perf_counter(), time.process_time()
        loss = self.step()
        return {
            "loss": loss,
            "step_ms": (time.perf_counter() - begin) * 1e3,
            "cpu_ms": (time.process_time() - begin_cpu) * 1e3,
        }

    def choose_adamw(self):
        variants = {
            "loop": {"foreach": False},
            "foreach": {"foreach": True},
            "fused": {"fused": True},
        }
        times = {}
        for name, variant in variants.items():
            self.begin_with(**variant)
            times[name] = min(self.timed_step()["cpu_ms"] for _ in range(3))
        best = min(times, key=times.get)
        print("torch's AdamW:", ", ".join(f"{k} {v:.0f} ms" for k, v in times.items()), "->", best)
        self.begin_with(**variants[best])


class Ours:
    def __init__(self, config, folder):
        words = [config, "fp32", "1x1", str(N_ROWS), str(SEQ), os.path.join(folder, "tokens"),
                 "save", os.path.join(folder, "weights"), "fp32", "1000000000", "serve", str(RATE)]
        self.process = subprocess.Popen(
            [probe, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        # The weights are on disk once the first step has been answered; it is not measured.
        self.first = self.timed_step()

    def timed_step(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit("compare_step: the probe ended")
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        if self.process.wait() != 0:
            sys.exit("compare_step: the probe failed")


def medians(steps):
    return {key: statistics.median(step[key] for step in steps) for key in steps[0]}


def print_shares(m):
    """Where our time goes; the rest is what stands between the products."""
    products, attention = m["products_ms"], m["attention_products_ms"]
    parts = {
        "products with weights": products,
        "products of attention": attention,
        "rest of the passes": m["forward_ms"] + m["backward_ms"] - products - attention,
        "optimizer": m["optimizer_ms"],
    }
    for name, ms in parts.items():
        print(f"      {ms:8.1f} ms {100 * ms / m['step_ms']:5.1f} %  {name}")


def profile(theirs):
    with torch.profiler.profile() as profiler:
        theirs.step()
    print(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=16,
                                        max_name_column_width=44))


def main(folder):
    config = os.path.join(folder, "config.json")
    transformers.Qwen3Config(architectures=["Qwen3ForCausalLM"], **SHAPE).save_pretrained(folder)
    rows = np.random.default_rng(1).integers(0, 256, (N_ROWS, SEQ + 1), dtype=np.int32)
    rows.tofile(os.path.join(folder, "tokens"))
    ours = Ours(config, folder)
    theirs = Theirs(os.path.join(folder, "weights"), rows)
    theirs.choose_adamw()
    first = theirs.timed_step()
    losses = [(ours.first["loss"], first["loss"])]
    our_steps, their_steps = [], []
    for _ in range(options.steps):
        our_steps.append(ours.timed_step())
        their_steps.append(theirs.timed_step())
        losses.append((our_steps[-1]["loss"], their_steps[-1]["loss"]))
    ours.close()

    apart = max(abs(a - b) for a, b in losses)
    m, t = medians(our_steps), medians(their_steps)
    ratios = [a["step_ms"] / b["step_ms"] for a, b in zip(our_steps, their_steps)]
    print(f"loss {losses[0][0]:.4f} -> {losses[-1][0]:.4f}, apart by at most {apart:.1e}")
    print(f"ours  {m['step_ms']:8.1f} ms: forward {m['forward_ms']:.1f}, backward "
          f"{m['backward_ms']:.1f}, optimizer {m['optimizer_ms']:.1f}")
    print_shares(m)
    print(f"torch {t['step_ms']:8.1f} ms")
    ratio = m["step_ms"] / t["step_ms"]
    print(f"ratio ours / torch: {ratio:.3f} of medians (at most {options.most:g}); of pairs "
          f"{min(ratios):.3f} to {max(ratios):.3f}, median {statistics.median(ratios):.3f}")
    print(f"on a core that others use too: CPU time {m['cpu_ms']:.1f} ms / {t['cpu_ms']:.1f} ms = "
          f"{m['cpu_ms'] / t['cpu_ms']:.3f}")
    if options.torch_profile:
        profile(theirs)
    if not apart <= 1e-3:
        sys.exit("compare_step: expected losses within 1e-3, the two did not do the same work")
    if not ratio <= options.most:
        sys.exit(f"compare_step: expected a ratio of at most {options.most:g}, given {ratio:.3f}")


with tempfile.TemporaryDirectory() as temporary:
    main(temporary)

# SPDX-License-Identifier: Apache-2.0
#
# agree.py - our Qwen3 against Transformers' on PyTorch: weights, logits, gradients, training.
#
# usage: agree.py BIN PROBE FOLDER      (the folder with hprun; qwen3_probe; an empty folder)
#
# Tied and untied heads, grouped and ungrouped queries; weights that this library made and weights
# that Transformers made. Both sides read the same files and the same tokens. Nothing is assumed of
# the other side: what is compared went through safetensors or raw float32. Norms are no powers of
# two, head_dim is not hidden / heads, and norms' weights differ from 1, so that a mixed-up axis
# cannot pass. Prints every figure beside its limit; the exit status is 1 when one is above.
import itertools
import json
import os
import subprocess
import sys

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen3Config
from transformers.utils import logging

VOCAB, SEQ, ROWS, STEPS, RATE = 96, 70, 8, 10, 3e-3
# A power of two, so large that the rounding of the weights does not reach the gradients.
SGD_RATE = 2.0**20

bin_folder, probe, folder = sys.argv[1:]
failed = []


def path(*parts):
    return os.path.join(folder, *parts)


def check(what, value, limit):
    ok = value <= limit  # false for nan
    print(f"  {'ok' if ok else 'FAILED':6} {what:58} {value:.1e} (limit {limit:.2g})")
    if not ok:
        failed.append(what)


def run(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")


def ours(config, mesh, *commands, dtype="fp32"):
    """Run the probe on a mesh; all meshes share the same ROWS sequences a step."""
    ranks = int(np.prod([int(size) for size in mesh.split("x")]))
    words = [config, dtype, mesh, ROWS // ranks, SEQ, path("tokens"), *commands]
    run([os.path.join(bin_folder, "hprun"), "-n", ranks, probe, *words])


def theirs(directory, attention="sdpa"):
    model, about = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation=attention, output_loading_info=True
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if about.get(kind):
            sys.exit(f"{directory}: {kind} {about[kind]}")
    return model


def loss_of(model, rows):
    logits = model(rows[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def their_logits(model):
    with torch.no_grad():
        return model(tokens[0, :, :-1], use_cache=False).logits


def our_logits(name):
    raw = np.fromfile(path(name), dtype=np.float32).reshape(ROWS, SEQ, VOCAB)
    return torch.from_numpy(raw)


def farthest(a, b):
    return (a - b).abs().max().item()


def weights_in(directory):
    """All tensors of a directory, of one file or several."""
    index = os.path.join(directory, "model.safetensors.index.json")
    names = {"model.safetensors"}
    if os.path.exists(index):
        with open(index) as file:
            names = set(json.load(file)["weight_map"].values())
    return {k: v for name in names for k, v in load_file(os.path.join(directory, name)).items()}


def check_gradients(what, model, before, after):
    model.zero_grad()
    loss_of(model, tokens[0]).backward()
    worst = 0.0
    for name, parameter in model.named_parameters():
        gradient = (before[name].double() - after[name].double()) / SGD_RATE
        expected = parameter.grad.double()
        worst = max(worst, ((gradient - expected).norm() / expected.norm()).item())
    check(f"{what}: gradient of the worst tensor, relative", worst, 1e-4)


def their_training(model):
    """Losses before each step and norms of its gradient; the model is trained in place."""
    adamw = torch.optim.AdamW(model.parameters(), lr=RATE)
    lines = []
    for rows in tokens:
        adamw.zero_grad()
        loss = loss_of(model, rows)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        lines.append([loss.item(), norm.item()])
    return np.array(lines)


def check_agreement(what, directory):
    """What both make of the same directory of weights."""
    config = os.path.join(directory, "config.json")
    model = theirs(directory)
    for mesh in ("1x1", "2x2"):
        ours(config, mesh, "load", directory, "logits", path("logits"), "sgd", SGD_RATE, "save",
             path("after"), "fp32", 10**9)
        check_gradients(f"{what}: {mesh}", model, weights_in(directory), weights_in(path("after")))
    for attention in ("eager", "sdpa"):
        logits = their_logits(theirs(directory, attention))
        check(f"{what}: logits, {attention}", farthest(our_logits("logits"), logits), 1e-4)

    expected = their_training(model)
    for mesh in ("1x1", "2x2", "1x4"):
        ours(config, mesh, "load", directory, "losses", path("losses"), STEPS, RATE, "save",
             path("trained"), "fp32", 50000, "logits", path("logits"))
        given = np.loadtxt(path("losses"))
        check(f"{what}: {STEPS} losses on {mesh}", abs(given - expected)[:, 0].max(), 1e-3)
        norms = (abs(given - expected) / expected)[:, 1].max()
        check(f"{what}: norms of the gradient on {mesh}, relative", norms, 1e-3)
    trained = theirs(path("trained"))
    check(f"{what}: logits of what was trained here, loaded there",
          farthest(our_logits("logits"), their_logits(trained)), 1e-4)
    # AdamW makes a whole update of a gradient near eps, whose digits are noise: hence no closer.
    check(f"{what}: logits of what was trained here and there",
          farthest(our_logits("logits"), their_logits(model)), 4e-3)


def check_bf16(what, directory):
    """Their products in fp32, ours in bf16: eight bits of mantissa, sums in fp32."""
    config = os.path.join(directory, "config.json")
    ours(config, "2x2", "load", directory, "logits", path("logits"), "losses", path("losses"),
         STEPS, RATE, dtype="bf16")
    model = theirs(directory)
    check(f"{what}: logits, computed in bf16",
          farthest(our_logits("logits"), their_logits(model)), 1e-1)
    losses = abs(np.loadtxt(path("losses")) - their_training(model))[:, 0]
    check(f"{what}: {STEPS} losses on 2x2, computed in bf16", losses.max(), 2e-2)


def check_loading(what, config):
    """Checkpoints that Transformers writes in its three ways give its logits here."""
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(path("single"))
    model.save_pretrained(path("several"), max_shard_size="50KB")
    if not os.path.exists(path("several", "model.safetensors.index.json")):
        sys.exit("expected Transformers to write several files, it wrote one")
    model.to(torch.bfloat16).save_pretrained(path("bf16"))
    for name in ("single", "several", "bf16"):
        ours(path(name, "config.json"), "2x2", "load", path(name), "logits", path("logits"))
        logits = their_logits(theirs(path(name)))
        check(f"{what}: logits of their checkpoint, {name}",
              farthest(our_logits("logits"), logits), 1e-4)


def check_program():
    """hptrain goes on from their checkpoint; of what it exports they measure its held-out loss."""
    config = configuration(tied=True, kv_heads=2, vocab=256)
    AutoModelForCausalLM.from_config(config).save_pretrained(path("bytes"))
    text, log, samples = "data/genesis_to_deuteronomy.txt", path("log"), 16
    run([os.path.join(bin_folder, "hprun"), "-n", 4, os.path.join(bin_folder, "hptrain"),
         "--mesh", "2x2", "--model", path("bytes"), "--data", text, "--seq", SEQ, "--batch", 1,
         "--steps", 5, "--lr", RATE, "--warmup", 1, "--eval-samples", samples,
         "--save", path("saved"), "--export", "hf", "--log", log])
    with open(log) as file:
        losses = [line["held_out_loss"] for line in map(json.loads, file)
                  if line.get("held_out_loss") is not None]

    held = np.fromfile(text, dtype=np.uint8)
    held = held[len(held) // 10 * 9 :]
    places = [(len(held) - SEQ) * i // samples for i in range(samples)]
    rows = torch.from_numpy(np.stack([held[i : i + SEQ + 1] for i in places]).astype(np.int64))
    with torch.no_grad():
        before, after = (loss_of(theirs(path(*where)), rows).item()
                         for where in (("bytes",), ("saved", "hf")))
    check("hptrain: held-out loss of their checkpoint", abs(losses[0] - before), 1e-4)
    check("hptrain: held-out loss of its export after training", abs(losses[-1] - after), 1e-4)
    check("hptrain: training left of the loss, share", after / before, 0.95)


def configuration(tied, kv_heads, vocab=VOCAB):
    return Qwen3Config(
        vocab_size=vocab, hidden_size=56, intermediate_size=104, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=kv_heads, head_dim=24,
        tie_word_embeddings=tied, initializer_range=0.1, max_position_embeddings=128,
        bos_token_id=None, eos_token_id=None,
    )


torch.manual_seed(1)
torch.set_num_threads(1)
logging.disable_progress_bar()
# Progressions, so that there is something to learn and the losses fall.
start, stride = torch.randint(VOCAB, (2, STEPS, ROWS, 1))
tokens = (start + stride % 4 * torch.arange(SEQ + 1)) % VOCAB
tokens.numpy().astype(np.int32).tofile(path("tokens"))
for tied, kv_heads in itertools.product((False, True), (2, 4)):
    name = f"{'tied' if tied else 'untied'}, {'un' if kv_heads == 4 else ''}grouped"
    print(name)
    config = configuration(tied, kv_heads)
    config.architectures = ["Qwen3ForCausalLM"]
    config.save_pretrained(path("config"))
    check_loading(name, config)
    ours(path("config", "config.json"), "2x2", "save", path("ours"), "fp32", 50000)
    check_agreement(f"{name}, our weights", path("ours"))
    check_agreement(f"{name}, their weights", path("single"))
    check_bf16(name, path("single"))
check_program()
if failed:
    sys.exit("FAILED: " + "; ".join(failed))

# SPDX-License-Identifier: Apache-2.0
#
# jobs.py - what `make bench` measures: one job for each file of rows.
#
# A job is one table (one collective on one number of ranks in one memory) beside one peer, or what is
# measured alone: a few runs of hpperf, whose JSON lines are kept as they are. Parts are what a user
# asks for by name. Time goes into large sizes, most of it beside slow peers: there hpperf ends a size
# with two pairs in a row that are far above the goal; small sizes get more pairs than large ones.
import fused
import goals
from goals import Key

# Debian's and the registry's builds of these wait without yielding: with more ranks than cores an
# all-reduce of 8 bytes takes 8 to 48 ms (a wait lasts until the scheduler takes the core away).
NEVER_YIELDS = {"mpich", "mpich5", "mpich5-rg", "oneccl"}

COLLECTIVES = [  # op, in place
    ("all_reduce", False), ("all_reduce", True), ("reduce_scatter", False), ("all_gather", False),
    ("all_gather", True), ("all_to_all", False), ("send_recv", False), ("broadcast", False),
    ("barrier", False)]
# Elsewhere Open MPI's collectives in shared memory take 5 to 30 times as long as its first setting
# (barrier, 64 B), and Gloo, over sockets, 1,000 times as long as ours (64 B; 5 times at 16 MiB).
ONLY_ROOMY = {"openmpi-sm", "openmpi5-sm", "gloo"}
NOT_PRIVATE = {"gloo"}  # 8 times as long as ours at 16 MiB, more below
ALONE = {"dtypes", "wire", "one_sided", "fused", "kernels", "limits"}  # parts that need no peer
WIRES = ["fp16", "bf16", "fp8_e4m3", "fp8_e5m2"]

K, M = 1 << 10, 1 << 20
# A size has so many pairs, up to three times as many within so many ms; two in a row that are 1.5
# times its goal, and twice as slow as ours, end it.
PAIRS, QUICK_PAIRS, PAIRS_MS, FAR, LEAST_FAR = 5, 3, 50, 1.5, 2.0
GOALS = goals.load_json("goals.json")


def steps(least, most, factor):
    return [least] + steps(least * factor, most, factor) if least <= most else []


def sizes_of(key, is_quick):
    """Bytes of the larger buffer of a rank."""
    if key.op == "barrier":
        return [0]
    if key.memory == "private":
        return steps(1 * K, 16 * M, 16 if is_quick else 4)
    if is_quick:
        return steps(64, 16 * M, 64 if key.ranks > 2 else 16)
    if key.ranks > 2:
        return steps(64, 4 * M, 16) + [16 * M]
    return [8] + steps(16, 64 * M, 4)


def words_of(n):
    """As people write it: 16M."""
    return f"{n // M}M" if n % M == 0 else f"{n // K}K" if n % K == 0 else str(n)


def enough(key, n):
    goal = goals.goal_of(GOALS, key, n) or 1.0
    return f"{max(FAR * goal, LEAST_FAR):g}"


def job(part, name, ranks, runs, peer=None):
    return {"part": part, "name": name, "ranks": ranks, "runs": runs, "peer": peer}


def part_of(key):
    return "private" if key.memory == "private" else key.op


def table_name(key):
    where = "in-place" if key.in_place else "apart"
    return f"{part_of(key)}-{key.op}-{key.ranks}-{key.memory}-{where}"


def beside(key, peer, sizes, is_quick):
    """One run, so one start of the peer."""
    run = [key.op, *(["--in-place"] if key.in_place else []), "--memory", key.memory]
    if key.op != "barrier":
        run += ["--sizes", ",".join(words_of(n) for n in sizes)]
    run += ["--beside", peer, "--pairs", str(QUICK_PAIRS if is_quick else PAIRS)]
    run += [] if is_quick else ["--pairs-ms", str(PAIRS_MS)]
    run += ["--enough", ",".join(enough(key, n) for n in sizes)]
    return job(part_of(key), f"{table_name(key)}-{peer}", key.ranks, [run], peer)


def of_table(key, peers, is_quick):
    return [beside(key, peer, sizes_of(key, is_quick), is_quick) for peer in peers]


def of_collectives(peers, n_cores, is_quick):
    out = []
    for op, in_place in COLLECTIVES:
        for ranks in (2, 4, 8):
            here = [peer for peer in peers
                    if ranks <= n_cores or peer not in NEVER_YIELDS | ONLY_ROOMY]
            out += of_table(Key(op, in_place, ranks, "symm"), here, is_quick)
    return out


def of_private(peers, is_quick):
    here = [peer for peer in peers if peer not in NOT_PRIVATE]
    return [one for op, in_place in COLLECTIVES if op != "barrier"
            for one in of_table(Key(op, in_place, 2, "private"), here, is_quick)]


def alone(part, name, runs):
    return job(part, f"{part}-{name}", 2, runs)


def of_kinds(is_quick):
    sizes = ["-b", "1M", "-e", "1M"] if is_quick else ["-b", "64K", "-e", "16M", "-f", "16"]
    return [alone("dtypes", op, [[op, "-d", "all", *sizes]])
            for op in ("all_reduce", "reduce_scatter")]


def of_wires(is_quick):
    """fp32 by itself and over each wire; then the fp16 call of as many elements."""
    full = ["-b", "1M", "-e", "1M" if is_quick else "16M", "-f", "4"]
    half = ["-b", "512K", "-e", "512K" if is_quick else "8M", "-f", "4"]
    return [alone("wire", op, [[op, *full]] + [[op, *full, "--wire", w] for w in WIRES] +
                  [[op, "-d", "fp16", *half]])
            for op in ("all_reduce", "reduce_scatter")]


def of_one_sided(is_quick):
    sizes = ["-b", "8", "-e", "16M", "-f", "64" if is_quick else "8"]
    return [alone("one_sided", what, [["--latency", what, *(sizes if what != "signal" else [])]])
            for what in ("put", "get", "signal")]


def all_jobs(peers, n_cores, is_quick=False):
    return [*of_collectives(peers, n_cores, is_quick), *of_private(peers, is_quick),
            *of_kinds(is_quick), *of_wires(is_quick), *of_one_sided(is_quick),
            *fused.all_jobs(job, is_quick)]


def parts():
    names = [op for op, _ in COLLECTIVES]
    return list(dict.fromkeys(names + ["private", "dtypes", "wire", "one_sided", "fused", "kernels",
                                  "limits"]))

# SPDX-License-Identifier: Apache-2.0
#
# jobs.py - what `make bench` measures: one job for each file of rows.
#
# A job is one collective on one number of ranks in one memory, beside one peer or alone: a few runs
# of hpperf, whose JSON lines are kept as they are. Parts are what a user asks for by name.

# Debian's and the registry's builds of these wait without yielding: with more ranks than cores an
# all-reduce of 8 bytes takes 8 to 48 ms (a wait lasts until the scheduler takes the core away).
NEVER_YIELDS = {"mpich", "mpich5", "mpich5-rg", "oneccl"}

COLLECTIVES = [
    # part, op, options, in place
    ("all_reduce", "all_reduce", []),
    ("all_reduce", "all_reduce", ["--in-place"]),
    ("reduce_scatter", "reduce_scatter", []),
    ("all_gather", "all_gather", []),
    ("all_gather", "all_gather", ["--in-place"]),
    ("all_to_all", "all_to_all", []),
    ("send_recv", "send_recv", []),
    ("broadcast", "broadcast", []),
    ("barrier", "barrier", []),
]
# Second settings of a library, and the slowest of all: only where each rank has a core. Elsewhere
# Open MPI in shared memory (-sm) takes 5 to 30 times as long as over its first setting (barrier, 64 B).
ONLY_ROOMY = {"openmpi-sm", "openmpi5-sm", "openmpi5-ucx", "mpich5-rg", "gloo"}
ALONE = {"dtypes", "wire", "one_sided", "kernels", "limits"}  # parts that need no peer
WIRES = ["fp16", "bf16", "fp8_e4m3", "fp8_e5m2"]


def sizes_of(op, ranks, memory, is_quick):
    """Lists of -b, -e, -f: of the larger buffer of a rank."""
    if op == "barrier":
        return [[]]
    if memory == "private":
        return [["-b", "1K", "-e", "16M", "-f", "16" if is_quick else "4"]]
    if is_quick:
        return [["-b", "64", "-e", "16M", "-f", "64" if ranks > 2 else "16"]]
    if ranks > 2:
        return [["-b", "64", "-e", "4M", "-f", "16"], ["-b", "16M", "-e", "16M"]]
    return [["-b", "8", "-e", "8"], ["-b", "16", "-e", "64M", "-f", "4"]]


def job(part, name, ranks, runs, peer=None):
    return {"part": part, "name": name, "ranks": ranks, "runs": runs, "peer": peer}


def beside(part, op, options, ranks, memory, peer, is_quick):
    where = "in-place" if options else "apart"
    pairs = ["--pairs", "3" if is_quick else "5"]
    runs = [[op, *options, "--memory", memory, *sizes, "--beside", peer, *pairs]
            for sizes in sizes_of(op, ranks, memory, is_quick)]
    return job(part, f"{part}-{op}-{ranks}-{memory}-{where}-{peer}", ranks, runs, peer)


def of_collectives(peers, n_cores, is_quick):
    jobs = []
    for part, op, options in COLLECTIVES:
        for ranks in (2, 4, 8):
            for peer in peers:
                if ranks <= n_cores or peer not in NEVER_YIELDS | ONLY_ROOMY:
                    jobs.append(beside(part, op, options, ranks, "symm", peer, is_quick))
    return jobs


def of_private(peers, is_quick):
    return [beside("private", op, options, 2, "private", peer, is_quick)
            for part, op, options in COLLECTIVES if part not in ("barrier",)
            for peer in peers if peer not in ONLY_ROOMY]


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
            *of_kinds(is_quick), *of_wires(is_quick), *of_one_sided(is_quick)]


def parts():
    names = [part for part, _, _ in COLLECTIVES]
    return list(dict.fromkeys(names + ["private", "dtypes", "wire", "one_sided", "kernels", "limits"]))

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# hpperf step and hpperf OP beside another library: the fields and right values, alone and in turns
# with each peer that is installed; a peer that is not there, does not start, says nothing or dies in
# the middle is named, and ends the run at once. Launchers that do so are scripts of the same name,
# first in PATH.
set -euo pipefail
build=$1
hprun=$build/bin/hprun
hpperf=$build/bin/hpperf
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

fail() {
    echo "test_hpperf_beside: $*" >&2
    cat "$out/said" "$out/error" >&2 2>/dev/null || true
    exit 1
}

step() { # ARGUMENT...: into $out/said; ends with 0
    "$hprun" -n 2 --deadline 60 "$hpperf" step "$@" >"$out/said" 2>"$out/error" ||
        fail "$*: expected exit status 0"
}

perf() { # RANKS ARGUMENT...: into $out/said; ends with 0
    local n=$1
    shift
    "$hprun" -n "$n" --deadline 60 "$hpperf" "$@" >"$out/said" 2>"$out/error" ||
        fail "$n ranks, $*: expected exit status 0"
}

fails() { # STATUS TEXT ARGUMENT...: ends with STATUS and says TEXT
    local wanted=$1 text=$2 status=0
    shift 2
    "$hprun" -n 2 --deadline 60 "$hpperf" "$@" >"$out/said" 2>"$out/error" || status=$?
    [ "$status" -eq "$wanted" ] || fail "$*: expected exit status $wanted, given $status"
    grep -qF -- "$text" "$out/error" || fail "$*: expected \"$text\""
}

holds() { # CONDITION over the rows that were printed, a list of dicts
    python3 - "$out/said" "$1" <<'PYTHON' || fail "expected $1"
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
sys.exit(not eval(sys.argv[2]))
PYTHON
}

launcher() { # NAME: a launcher of that name, from standard input
    mkdir -p "$out/bin"
    cat >"$out/bin/$1"
    chmod +x "$out/bin/$1"
}

few=(--units 3 --width 64K --pairs 2 --steps 1 --json)

echo "== alone: every mode, both executors"
step "${few[@]}"
holds 'len(rows) == 5 and all(r["wrong"] == 0 and r["ours_ms"] > 0 for r in rows)'
holds 'all("ratio" not in r and r["executor"] == "inline" and r["units"] == 3 for r in rows)'
step "${few[@]}" --executor thread --comm per-param,mapped
holds '[r["mode"] for r in rows] == ["per-param", "mapped"] and rows[0]["executor"] == "thread"'

echo "== what it does not understand"
fails 2 'expected --beside to be one of openmpi, openmpi-ucx, mpich, openmpi5' step --beside nccl
fails 2 'expected an MPI for --beside of hpperf step, given "gloo"' step --beside gloo
fails 2 'expected --width to be a multiple of 32' step --width 1001
fails 2 'unknown or ambiguous option' step --hurry
fails 2 'expected --beside to be one of openmpi, openmpi-ucx, mpich, openmpi5' barrier --beside nccl
fails 2 'expected --pairs to be a whole number from 1' barrier --beside mpich --pairs 0
fails 2 'expected --enough to be 1 to 64 ratios from 1 to 1000000' barrier --beside mpich --enough 2,0.5
fails 2 'expected no --latency with --beside' --latency put --beside mpich
fails 2 'expected no -o avg with --beside' all_reduce -o avg --beside mpich
fails 2 'expected no --group-split with --beside' all_reduce --group-split 2 --beside mpich

echo "== a peer that is not there, a launcher that fails, is silent"
mkdir "$out/alone" # no peers lie beside this one
cp "$hpperf" "$out/alone"
status=0
"$hprun" -n 2 "$out/alone/hpperf" barrier --beside mpich5 >"$out/said" 2>"$out/error" || status=$?
[ $status -eq 1 ] || fail "expected exit status 1, given $status"
grep -qF 'for --beside mpich5, there is none; tools/setup.sh peers installs it' "$out/error" ||
    fail "expected to be told what installs it"
cp "$out/alone/hpperf" "$out" # beside it lies a program that no launcher here gets to start
printf '#!/bin/sh\nexit 1\n' >"$out/hpperf-mpi.mpich"
chmod +x "$out/hpperf-mpi.mpich"
built=$hpperf
hpperf=$out/hpperf
launcher mpirun.mpich <<<$'#!/bin/sh\nexit 3'
began=$(date +%s%N)
PATH=$out/bin:$PATH fails 1 'the peer mpich until its ranks have connected, it has ended: exit status 3' \
    step "${few[@]}" --beside mpich
launcher mpirun.mpich <<<$'#!/bin/sh\nexec sleep 60'
PATH=$out/bin:$PATH fails 1 'the peer mpich until its ranks have connected within 200 ms' \
    step "${few[@]}" --beside mpich --peer-timeout-ms 200
[ $((($(date +%s%N) - began) / 1000000)) -lt 10000 ] || fail "expected both within seconds"
hpperf=$built

n_peers=0
for mpi in openmpi mpich; do
    if [ ! -x "$build/bin/hpperf-mpi.$mpi" ] || ! command -v "mpirun.$mpi" >/dev/null; then
        continue
    fi
    n_peers=$((n_peers + 1))
    echo "== beside $mpi"
    step "${few[@]}" --comm per-param,mapped --beside $mpi
    holds 'len(rows) == 2 and all(r["wrong"] == 0 for r in rows)'
    holds 'all(r["peer"] == "'$mpi'" and "MPI" in r["peer_version"] for r in rows)'
    holds 'all(r["peer_ms"] >= r["peer_calls_ms"] > 0 for r in rows)'
    holds 'all(r["ratio"] > 0 and r["ratio_calls"] > 0 for r in rows)'

    echo "== more pairs of what is short, fewer beside what is far behind"
    perf 2 barrier -n 2 --pairs 2 --pairs-ms 60000 --enough 1000000 --json --beside $mpi
    holds '[r["pairs"] for r in rows] == [6]'
    perf 2 all_reduce --sizes 4K,8K -n 2 --pairs 9 --enough 1000000,1 --json --beside $mpi
    holds 'len(rows) == 2 and rows[0]["pairs"] == 9 and rows[1]["pairs"] in range(2, 10)'
    holds 'rows[1]["pairs"] == 9 or rows[1]["ratio_most"] >= 1'

    echo "== $mpi dies in the middle"
    real=$(command -v mpirun.$mpi)
    launcher mpirun.$mpi <<DIES
#!/bin/sh
"$real" "\$@" &
while ! pgrep -P \$! >/dev/null; do sleep 0.05; done
sleep 2
date +%s%N >"$out/killed"
kill -9 \$!
exit 9
DIES
    PATH=$out/bin:$PATH fails 1 "the peer $mpi" step --units 3 --width 64K --pairs 10000 --beside $mpi
    took_ms=$((($(date +%s%N) - $(cat "$out/killed")) / 1000000))
    [ $took_ms -lt 2000 ] || fail "expected the end soon after $mpi had died, it took $took_ms ms"
done

# Of each peer every collective, small and large, touched and classic, in place and not.
few=(all -b 8 -e 300K -f 30000 -n 2 --pairs 2 --json)
for peer in openmpi openmpi-sm openmpi-ucx mpich openmpi5 openmpi5-sm openmpi5-ucx mpich5 mpich5-rg intelmpi \
    oneccl gloo; do
    status=0
    "$hprun" -n 2 --deadline 60 "$hpperf" "${few[@]}" --beside $peer >"$out/said" 2>"$out/error" || status=$?
    if [ $status -ne 0 ] && grep -qE 'tools/setup.sh (mpi|peers) installs it' "$out/error"; then
        continue
    fi
    echo "== every collective beside $peer"
    [ $status -eq 0 ] || fail "expected exit status 0, given $status"
    n_peers=$((n_peers + 1))
    holds 'len(rows) == 13 and len({r["op"] for r in rows}) == 7'
    holds 'all(r["peer"] == "'$peer'" and r["peer_version"] and r["pairs"] == 2 for r in rows)'
    holds 'all(not r["wrong"] and r["ratio_least"] <= r["ratio"] <= r["ratio_most"] for r in rows)'
    holds 'all(r["time_us"] >= 0 and r["peer_us"] >= 0 for r in rows)'
    perf 2 "${few[@]}" --in-place --mode classic -o max -d bf16 --root 1 --memory private --beside $peer
    holds 'len(rows) == 13 and all(not r["wrong"] for r in rows)'
    holds 'all((r["ratio"] is None) == (r["peer_us"] is None) for r in rows)'
    holds 'all(r["ratio"] for r in rows if "reduce" not in r["op"] and "to_all" not in r["op"])'
done
[ $n_peers -gt 0 ] || echo "skipped: beside another library: none is installed (tools/setup.sh mpi peers)"

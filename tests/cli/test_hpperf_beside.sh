#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# hpperf step: the fields and right values, alone and in turns with each MPI that is installed; a
# peer that does not start, says nothing or dies in the middle is named, and ends the run at once.
# Launchers that do so are scripts of the same name, first in PATH.
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

fails() { # STATUS TEXT ARGUMENT...: ends with STATUS and says TEXT
    local wanted=$1 text=$2 status=0
    shift 2
    "$hprun" -n 2 --deadline 60 "$hpperf" step "$@" >"$out/said" 2>"$out/error" || status=$?
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
fails 2 'expected --beside to be one of openmpi, openmpi-ucx, mpich, given "gloo"' --beside gloo
fails 2 'expected --width to be a multiple of 32' --width 1001
fails 2 'unknown or ambiguous option' --hurry

echo "== a launcher that is not there, fails, is silent"
launcher mpirun.mpich <<<$'#!/bin/sh\nexit 3'
began=$(date +%s%N)
PATH=$out/bin:$PATH fails 1 'the peer mpich until its ranks have connected, it has ended: exit status 3' \
    "${few[@]}" --beside mpich
launcher mpirun.mpich <<<$'#!/bin/sh\nexec sleep 60'
PATH=$out/bin:$PATH fails 1 'the peer mpich until its ranks have connected within 200 ms' \
    "${few[@]}" --beside mpich --peer-timeout-ms 200
[ $((($(date +%s%N) - began) / 1000000)) -lt 10000 ] || fail "expected both within seconds"

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
    PATH=$out/bin:$PATH fails 1 "the peer $mpi" --units 3 --width 64K --pairs 10000 --beside $mpi
    took_ms=$((($(date +%s%N) - $(cat "$out/killed")) / 1000000))
    [ $took_ms -lt 2000 ] || fail "expected the end soon after $mpi had died, it took $took_ms ms"
done
[ $n_peers -gt 0 ] || echo "skipped: beside MPI: none is installed (tools/setup.sh mpi)"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# hprun --max-restarts: a job whose rank dies starts again and is told so; one that was told to end
# does not, nor one whose command line is wrong.
set -euo pipefail
build=$1
hprun=$build/bin/hprun
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

fail() {
    echo "test_hprun_restarts: $*" >&2
    cat "$out/said" >&2 2>/dev/null || true
    exit 1
}

expect() { # STATUS LINES ARGUMENT...: hprun ends with STATUS and says so many lines with "restart"
    local status=0 expected=$1 lines=$2
    shift 2
    rm -f "$out"/try.*
    "$hprun" "$@" >"$out/said" 2>&1 || status=$?
    [ "$status" -eq "$expected" ] || fail "$*: expected exit status $expected, given $status"
    [ "$(grep -c 'restart' "$out/said")" -eq "$lines" ] || fail "$*: expected $lines lines about restarts"
}
n_tries() { find "$out" -name 'try.*' | wc -l; }
export out

echo "== a rank that is killed, one that fails before it has joined: again, until it works"
# shellcheck disable=SC2016 # expanded by the ranks
expect 0 2 -n 2 --max-restarts 3 bash -c 'touch "$out/try.$TORCHELASTIC_RESTART_COUNT.$TORCHELASTIC_MAX_RESTARTS"
    [ "$RANK" = 0 ] || [ "$TORCHELASTIC_RESTART_COUNT" = 2 ] || kill -KILL $$'
[ "$(cd "$out" && echo try.*)" = "try.0.3 try.1.3 try.2.3" ] || fail "expected three tries, given $(ls "$out")"
grep -q '^hprun: rank 1 (pid [0-9]*) was killed by SIGKILL$' "$out/said" || fail "expected the reason"
grep -q '^hprun: restart 2 of 3' "$out/said" || fail "expected the number of the restart"

echo "== no more often than it says; the status is that of the last try"
# shellcheck disable=SC2016
expect 6 2 -n 2 --max-restarts 1 bash -c 'exit $((5 + TORCHELASTIC_RESTART_COUNT))'
grep -q '^hprun: it has failed after each of 1 restart: no more$' "$out/said" || fail "expected that there are no more"

echo "== without the option, and where a restart cannot help, there is none"
expect 3 0 -n 2 bash -c 'exit 3'
expect 2 0 -n 2 --max-restarts 3 bash -c 'exit 2'
expect 127 0 -n 2 --max-restarts 3 no-such-program
expect 64 1 -n 2 --max-restarts -1 true
grep -qF 'expected --max-restarts to be a number from 0 to 1000000, given "-1"' "$out/said" || fail "expected why"

echo "== SIGTERM, SIGINT and SIGHUP end it, in a try and in the pause before one"
told() { # SIGNAL STATUS AFTER-TRIES COMMAND: after so many tries have begun
    local status=0 launcher
    rm -f "$out"/try.*
    # shellcheck disable=SC2016 # expanded by the ranks
    # what a script puts into the background ignores SIGINT, and so would its ranks
    env --default-signal=INT "$hprun" -n 2 --max-restarts 9 bash -c 'touch "$out/try.$TORCHELASTIC_RESTART_COUNT"; '"$4" >"$out/said" 2>&1 &
    launcher=$!
    until [ "$(n_tries)" -ge "$3" ]; do sleep 0.02; done
    sleep 0.05
    kill "-$1" $launcher
    wait $launcher || status=$?
    [ "$status" -eq "$2" ] || fail "SIG$1: expected status $2, given $status"
    [ "$(n_tries)" -le $(($3 + 1)) ] || fail "SIG$1: expected no more tries, given $(ls "$out")"
}
told TERM 143 1 'exec sleep 60'
told INT 130 1 'exec sleep 60'
told HUP 129 1 'exec sleep 60'
told TERM 5 3 'exit 5'
told INT 5 3 'exit 5'

echo "== a second try is no child of the first: what a rank has started is gone"
# shellcheck disable=SC2016
expect 0 1 -n 1 --max-restarts 1 bash -c 'if [ "$TORCHELASTIC_RESTART_COUNT" = 0 ]; then sleep 600 & echo $! >"$out/left"; exit 4; fi
    ! grep -qs "^State:[[:space:]]*[RSDT]" "/proc/$(cat "$out/left")/status"'

echo "== over hosts: an mpirun starts the ranks, and again after a failure"
expect 64 0 -n 2 --hosts a true
expect 64 0 --mpi mpich true
expect 64 0 --hosts localhost:2,b:0 true
grep -qF 'expected hosts as HOST:RANKS,... with 1 to 1024 ranks each, given "b:0"' "$out/said" || fail "expected why"
expect 64 0 --hosts localhost,localhost:2 true
expect 64 0 --hosts localhost --mpi pigeon true
unset OMPI_COMM_WORLD_SIZE PMI_SIZE PMIX_RANK # of a launcher of this test
for mpi in openmpi mpich; do
    if ! command -v "mpirun.$mpi" >/dev/null; then
        echo "   not of $mpi, which is not here (tools/setup.sh mpi installs it)"
        continue
    fi
    # shellcheck disable=SC2016
    OF_TEST=1 HYPER_PARALLEL_OF_TEST=2 expect 0 1 --hosts localhost:2 --mpi $mpi --max-restarts 2 \
        bash -c 'rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK} try=$TORCHELASTIC_RESTART_COUNT
        echo "$HYPER_PARALLEL_OF_TEST" >"$0/try.$try.$rank.of.${OMPI_COMM_WORLD_SIZE:-$PMI_SIZE}"
        [ "$rank" = 0 ] || [ "$try" = 1 ] || exit 5' "$out"
    [ "$(cd "$out" && cat try.?.?.of.2)" = "$(printf '2\n%.0s' 1 2 3 4)" ] ||
        fail "$mpi: expected two tries of two ranks with our options, given $(cd "$out" && head try.*)"
    grep -q '^hprun: mpirun (pid [0-9]*) ended with status 5$' "$out/said" || fail "$mpi: expected the reason"
    if [ "$mpi" = mpich ]; then # docs/decisions/0016
        # shellcheck disable=SC2016
        expect 0 0 --hosts localhost:1 --mpi $mpi bash -c '[ "$UCX_RNDV_THRESH" = 65536 ]'
        # shellcheck disable=SC2016
        UCX_RNDV_THRESH=7 expect 0 0 --hosts localhost:1 --mpi $mpi bash -c '[ "$UCX_RNDV_THRESH" = 7 ]'
    fi
    # shellcheck disable=SC2016
    expect 7 0 --hosts localhost:2 --mpi $mpi bash -c 'exit 7'
    expect 2 0 --hosts localhost:2 --mpi $mpi --max-restarts 2 bash -c 'exit 2'
    expect 124 0 --hosts localhost:2 --mpi $mpi --deadline 1 --max-restarts 2 sleep 60
    expect 126 0 --hosts localhost:1,nowhere:1 --mpi $mpi --agent false true
    grep -qF 'expected host nowhere to answer "false nowhere cat" within 5 s' "$out/said" || fail "$mpi: expected which host"

    echo "== $mpi: SIGTERM ends the ranks, and hprun"
    rm -f "$out"/try.*
    # shellcheck disable=SC2016
    "$hprun" --hosts localhost:2 --mpi $mpi --max-restarts 9 bash -c 'touch "$0/try.$$"; exec sleep 60' "$out" >"$out/said" 2>&1 &
    launcher=$!
    until [ "$(n_tries)" -ge 2 ]; do sleep 0.02; done
    kill -TERM $launcher
    wait $launcher || true # what an mpirun says of it differs
    for _ in $(seq 100); do # its daemon may end them a little later than itself
        n_left=0
        for try in "$out"/try.*; do
            ! grep -qs "^State:[[:space:]]*[RSDT]" "/proc/${try##*.}/status" || n_left=$((n_left + 1))
        done
        [ $n_left -gt 0 ] || break
        sleep 0.05
    done
    [ "$n_left.$(n_tries)" = 0.2 ] || fail "$mpi: expected two ranks, that are gone, given $(ls "$out"), $n_left left"
done

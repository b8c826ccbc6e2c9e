#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# train.sh - the first run that anybody makes: 8 ranks of this machine as HSDP, 2 replicas of 4 shards.
#
# usage: tools/train.sh BUILD [HPTRAIN OPTION...]      environment: JOBS
#
# Builds the two programs and leaves log, trace, checkpoint and loss curve in BUILD/train, which is
# emptied first.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
shift
out=$build/train

echo "== building"
tools/build.sh "$build" -- hprun hptrain

rm -rf "$out"
mkdir -p "$out"
run=("$build/bin/hprun" -n 8 "$build/bin/hptrain" --mesh 2x4 --log "$out/run.jsonl"
    --trace "$out/trace" --save "$out/checkpoint" --curve "$out/loss.svg" "$@")
echo "== ${run[*]}"
exec "${run[@]}"

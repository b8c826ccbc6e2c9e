#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# train.sh - the first run that anybody makes: 8 ranks of this machine as HSDP, 2 replicas of 4 shards,
# train a small Qwen3 on the shipped text, then write some text.
#
# usage: tools/train.sh BUILD [HPTRAIN OPTION...]      environment: JOBS
#
# Builds the two programs and leaves log, trace, checkpoint, the model for Transformers and the loss
# curve in BUILD/train; what an earlier run left there is moved to BUILD/train.old. With --resume it
# stays, and the log goes on. A small model and many short steps learn most in the minute or two
# that this takes; what people read comes out in a pipe too.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
shift
out=$build/train

# The bytes model has neither.
extra=(--sample "And God said" --export hf)
case " $* " in
*" --model bytes-mlp "* | *" --model=bytes-mlp "*) extra=() ;;
esac

echo "== building (a minute or two the first time)"
tools/build.sh "$build" -- hprun hptrain

case " $* " in
*" --resume "* | *" --resume="*) ;;
*)
    if [ -e "$out" ]; then
        rm -rf "$out.old"
        mv "$out" "$out.old"
        echo "== $out of an earlier run is now $out.old"
    fi
    ;;
esac
mkdir -p "$out"
run=("$build/bin/hprun" -n 8 "$build/bin/hptrain" --mesh 2x4
    --batch 3 --steps 1150 --eval-every 100 --output text "${extra[@]}"
    --save "$out/checkpoint" --log "$out/run.jsonl" --trace "$out/trace"
    --curve "$out/loss.svg" "$@")
echo "==$(printf ' %q' "${run[@]}")"
exec "${run[@]}"

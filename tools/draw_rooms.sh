#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# draw_rooms.sh - draw src/LAYERS as docs/images/rooms.svg (needs graphviz).
#
# An arrow goes from a room to the rooms whose door it includes; arrows that follow from others are
# left out (tred), so the picture shows the order in which the rooms stand on each other.
set -euo pipefail
cd "$(dirname "$0")/.."

declare -A owns=(
    [base]='status, errors, options, memory, clock'
    [trace]='spans per stream, Chrome trace files'
    [stream]='operations as data, events, executors'
    [matmul]='matrix products: engines by name'
    [transport]='bytes between hosts: post, test, cancel'
    [world]='ranks, groups, mesh, waiting, liveness, launcher'
    [symm]='symmetric heap, put, get, signal, wait'
    [coll]='collectives under the bit contract'
    [fused]='products that communicate'
    [fsdp]='units, the plan, optimizers, checkpoints'
)

draw() {
    echo 'digraph rooms { rankdir=TB; node [shape=box, style="rounded,filled", fillcolor="#eef4fb", color="#3b6ea5", fontname="Helvetica", fontsize=12, margin="0.18,0.08"]; edge [color="#7a8ca0"];'
    grep -v '^#' src/LAYERS | while IFS=: read -r room below; do
        echo "$room [label=<<b>$room</b><br/><font point-size=\"10\">${owns[$room]}</font>>];"
        for other in $below; do echo "$room -> $other;"; done
    done
    echo 'programs [label=<<b>programs, models, examples</b><br/><font point-size="10">public headers only</font>>, fillcolor="#fdf3e3", color="#b07d2b"]; programs -> fsdp; programs -> fused; }'
}

draw | tred 2>/dev/null | dot -Tsvg -o docs/images/rooms.svg

# SPDX-License-Identifier: Apache-2.0
#
# hpreport_traces.awk - the trace of one rank as hp_trace_write would write it: 12 units, as many
# steps as asked for, 157 spans in each. A pass takes 24 ms. Which rank comes late to a
# collective, and by how much, hangs on step, unit and rank. Step `slow`, if named, takes 34 ms.
#
# usage: awk -v rank=R -v steps=N [-v slow=N] -f hpreport_traces.awk
function us(ns) { return sprintf("%d.%03d", int(ns / 1000), ns % 1000) }
function span(tid, name, id, bytes, begin, end) {
    printf ",\n{\"ph\":\"B\",\"pid\":%d,\"tid\":%d,\"ts\":%s,\"name\":\"%s\",\"args\":{\"step\":%d," \
        "\"bytes\":%d,\"id\":%d,\"unit\":\"block%d\"}},\n{\"ph\":\"E\",\"pid\":%d,\"tid\":%d,\"ts\":%s}",
        rank, tid, us(now + begin), name, step, bytes, id, unit, rank, tid, us(now + end)
}
function compute(is_backward, i) {
    span(0, "wait", 10 * i + 1, 0, 0, 100000)
    span(0, "allocate", 10 * i + 2, 1000000, 100000, 100000)
    span(0, is_backward ? "backward" : "forward", 10 * i + 3, 0, 101000, 900000)
    span(0, "release", 10 * i + 4, 1000000, 900000, 900000)
    if (is_backward)
        span(0, "wait", 10 * i + 5, 0, 910000, 960000)
}
BEGIN {
    printf "{\"otherData\":{\"library\":\"hyperparallel 0.1.0\",\"dropped_spans\":0},\n\"traceEvents\":["
    printf "\n{\"ph\":\"M\",\"pid\":%d,\"tid\":0,\"name\":\"process_name\",\"args\":{\"name\":\"rank\"}}", rank
    n_streams = split("compute unshard reduce replicate", names, " ")
    for (i = 1; i <= n_streams; i++)
        printf ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_name\",\"args\":{\"name\":\"%s\"}}",
            rank, i - 1, names[i]
    n_units = 12
    for (tid = 0; tid < n_streams; tid++) {
        now = 1000000000000
        for (step = 0; step < steps; step++) {
            if (tid == 0)
                printf ",\n{\"ph\":\"B\",\"pid\":%d,\"tid\":0,\"ts\":%s,\"name\":\"step\",\"args\":{\"step\":%d,\"bytes\":0}}",
                    rank, us(now), step
            for (i = 0; i < 2 * n_units; i++) {
                is_backward = i >= n_units
                unit = is_backward ? 2 * n_units - 1 - i : i
                late = (step * 7 + i * 3 + rank * 11) % 13 * 3000
                if (tid == 0)
                    compute(is_backward, i)
                else if (tid == 1)
                    span(1, "all_gather", 10 * i + 1, 4000000, 100000 + late, 600000 + late)
                else if (tid == 2 && is_backward)
                    span(2, "reduce_scatter", 10 * i + 5, 4000000, 200000 + late, 800000)
                else if (tid == 3 && is_backward)
                    span(3, "all_reduce", 10 * i + 6, 1000000, 500000 + late, 950000)
                now += 1000000
            }
            if (slow != "" && step == slow)
                now += 10000000
            if (tid == 0)
                printf ",\n{\"ph\":\"E\",\"pid\":%d,\"tid\":0,\"ts\":%s}", rank, us(now)
            now += 200000
        }
    }
    print "\n]}"
}

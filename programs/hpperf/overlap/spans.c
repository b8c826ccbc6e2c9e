/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/overlap/spans.c - what collectives take, from the trace of a step.
 *
 * A collective lasts until its last rank has come, which is no need of its own. So it is looked at
 * where nothing lies beside it, under the serial schedule, and on the rank for which it was the
 * shortest: the one that came last and waited for nobody. The delay before it is in it.
 */
#include "../fail.h"
#include "model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The operations of a stream in a step. */
typedef struct stretch {
    const hp_trace *trace;
    unsigned stream;
    uint64_t first, end;
} stretch;

static stretch stretch_of(const model *m, unsigned stream) {
    return (stretch){m->trace, stream, m->seen[stream], hp_trace_count(m->trace, stream)};
}

static const hp_span *span_at(const stretch *s, uint64_t i) {
    return hp_trace_at(s->trace, s->stream, i);
}

static double span_ms(const hp_span *span) {
    return (double)(span->end_ns - span->begin_ns) / 1e6;
}

static bool is_collective(const hp_span *span) {
    return strcmp(span->name, "all_gather") == 0 || strcmp(span->name, "barrier") == 0;
}

/* Of the operations that bring parameters: the collectives, or what is done around them. */
static double unshard_ms(const stretch *s, bool wants_collectives) {
    double sum = 0;
    for (uint64_t i = s->first; i < s->end; i++)
        if (is_collective(span_at(s, i)) == wants_collectives)
            sum += span_ms(span_at(s, i));
    return sum;
}

/* ---- needs ---- */

/* The length of each operation, on the rank of the group for which it is the shortest. */
static hp_status shortest(const stretch *s, hp_group *group, double *ms) {
    for (uint64_t i = s->first; i < s->end; i++)
        ms[i - s->first] = span_ms(span_at(s, i));
    return s->end == s->first ? HP_OK
                              : hp_all_reduce(group, ms, ms, s->end - s->first, HP_FP64, HP_MIN);
}

/* A unit is known by its name's address. Sums over the operations: all, those that began in
 * forward; those of the first unit in the phase that it began in; those of the last unit. */
typedef struct sums {
    double all, forward, first, last;
} sums;

static bool is_forward(const hp_span *span, double forward_end_ns) {
    return (double)span->begin_ns < forward_end_ns;
}

static sums add_up(const stretch *s, const double *ms, double forward_end_ns) {
    sums sum = {0};
    for (uint64_t i = s->first; i < s->end; i++) {
        const hp_span *span = span_at(s, i);
        const hp_span *first = span_at(s, s->first);
        const bool is_early = is_forward(span, forward_end_ns);
        sum.all += ms[i - s->first];
        if (is_early)
            sum.forward += ms[i - s->first];
        if (span->detail == first->detail && is_early == is_forward(first, forward_end_ns))
            sum.first += ms[i - s->first];
        if (span->detail == span_at(s, s->end - 1)->detail)
            sum.last += ms[i - s->first];
    }
    return sum;
}

static hp_status stream_sums(const model *m, unsigned stream, sums *out_sums) {
    const stretch s = stretch_of(m, stream);
    const int dim = stream == HP_STREAM_REPLICATE ? 0 : 1;
    double *ms = malloc((s.end - s.first + 1) * sizeof *ms);
    hp_status status =
        agree(m->world, ms ? HP_OK : fail(HP_ERR_MEMORY, "expected memory for the times"));
    if (status >= 0 && ms)
        status = shortest(&s, hp_mesh_group(m->mesh, dim), ms);
    if (status >= 0 && ms)
        *out_sums = add_up(&s, ms, m->forward_end_ns);
    free(ms);
    return status;
}

static hp_status look_at_needs(const model *m, double metrics[N_METRICS]) {
    sums gathers = {0}, reduces = {0}, replicates = {0};
    TRY(stream_sums(m, HP_STREAM_UNSHARD, &gathers));
    TRY(stream_sums(m, HP_STREAM_REDUCE, &reduces));
    TRY(stream_sums(m, HP_STREAM_REPLICATE, &replicates));
    metrics[M_FORWARD_GATHERS] = gathers.forward;
    metrics[M_BACKWARD_GATHERS] = gathers.all - gathers.forward;
    metrics[M_FIRST_GATHER] = gathers.first;
    metrics[M_REDUCES] = reduces.all;
    metrics[M_FIRST_REDUCE] = reduces.first;
    metrics[M_LAST_REDUCE] = reduces.last;
    metrics[M_REPLICATES] = replicates.all;
    metrics[M_LAST_REPLICATE] = replicates.last;
    return HP_OK;
}

hp_status model_look(model *m, bool is_alone, double metrics[N_METRICS]) {
    const stretch unshard = stretch_of(m, HP_STREAM_UNSHARD);
    hp_status status = HP_OK;
    if (hp_trace_dropped(m->trace))
        status = fail(HP_ERR_LIMIT, "expected room for every span of the trace");
    TRY(agree(m->world, status));
    metrics[M_COLLECTIVE] = unshard_ms(&unshard, true);
    metrics[M_PACK] = unshard_ms(&unshard, false);
    if (is_alone)
        TRY(look_at_needs(m, metrics));
    for (unsigned s = 0; s < HP_N_STREAMS; s++)
        m->seen[s] = hp_trace_count(m->trace, s);
    return HP_OK;
}

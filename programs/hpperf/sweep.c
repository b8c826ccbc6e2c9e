/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/sweep.c - over collectives, types, reductions and sizes.
 */
#include "bench.h"
#include "fail.h"

/* Elements of a part, so that the larger buffer has at most `bytes`, but at least one. */
static uint64_t count_of(const bench *b, uint64_t bytes) {
    const uint64_t count = bytes / (hp_dtype_size(b->dtype) * bench_parts(b));
    return count ? count : 1;
}

static uint64_t next_of_list(const options *o, uint64_t bytes) {
    for (int i = 0; i < o->n_sizes; i++)
        if (o->sizes[i] > bytes)
            return o->sizes[i];
    return 0;
}

/* 0 behind the last. */
static uint64_t next_size(const options *o, uint64_t bytes) {
    if (o->n_sizes)
        return next_of_list(o, bytes);
    if (o->step_bytes)
        return bytes + o->step_bytes <= o->most_bytes ? bytes + o->step_bytes : 0;
    return bytes <= o->most_bytes / o->factor ? bytes * o->factor : 0;
}

/* Of the i-th size; 0: none. */
static double enough_of(const options *o, int i) {
    return o->n_enough ? o->enough[i < o->n_enough ? i : o->n_enough - 1] : 0;
}

static hp_status one_size(bench *b, uint64_t count, uint64_t *wrong) {
    result r = {0};
    bench_set_count(b, count);
    TRY(b->peer ? compare(b, &r) : measure(b, &r));
    *wrong += r.wrong + r.peer_wrong;
    if (hp_world_rank(b->world) == 0)
        print_row(b, &r);
    return HP_OK;
}

/* Sizes that come to the same count are one. */
static hp_status sizes(bench *b, uint64_t *wrong) {
    uint64_t last = 0;
    int i = 0;
    b->enough = enough_of(b->o, i);
    if (!bench_has_data(b->op))
        return one_size(b, 0, wrong);
    for (uint64_t bytes = b->o->least_bytes; bytes; bytes = next_size(b->o, bytes)) {
        const uint64_t count = count_of(b, bytes);
        b->enough = enough_of(b->o, i++);
        if (count != last)
            TRY(one_size(b, count, wrong));
        last = count;
    }
    return HP_OK;
}

static hp_status one_kind(bench *b, uint64_t *wrong) {
    const uint64_t most = count_of(b, b->o->most_bytes) * hp_dtype_size(b->dtype) * bench_parts(b);
    hp_status status = bench_open(b, most);
    if (status >= 0)
        status = sizes(b, wrong);
    return status < 0 ? status : bench_close(b); /* failed: nothing can be given back together */
}

static bool is_valid(const bench *b) {
    if (!b->op->reduces)
        return b->reduce == HP_SUM;
    if (b->o->wire != HP_WIRE_FULL && !op_has_wire(b->dtype))
        return false;
    return b->reduce != HP_AVG || op_has_avg(b->dtype);
}

/* What was asked for, or 0 to n - 1 of what is to be gone through. */
static int from(int asked) {
    return asked == ALL ? 0 : asked;
}
static int to(int asked, int n) {
    return asked == ALL ? n : asked + 1;
}

static hp_status reductions(bench *b, uint64_t *wrong) {
    const int asked = b->op->reduces ? b->o->reduce : HP_SUM;
    for (int reduce = from(asked); reduce < to(asked, HP_MIN + 1); reduce++) {
        b->reduce = (hp_reduce)reduce;
        if (is_valid(b))
            TRY(one_kind(b, wrong));
    }
    return HP_OK;
}

static hp_status dtypes(bench *b, uint64_t *wrong) {
    const int asked = bench_has_data(b->op) ? b->o->dtype : HP_UINT8;
    for (int dtype = from(asked); dtype < to(asked, HP_UINT8 + 1); dtype++) {
        b->dtype = (hp_dtype)dtype;
        TRY(reductions(b, wrong));
    }
    return HP_OK;
}

/* Of "all", what these ranks can do. */
static hp_status collectives(bench *b, uint64_t *wrong) {
    for (int i = 0; i < n_ops; i++) {
        const bool is_asked =
            b->o->op ? b->o->op == &ops[i] : !ops[i].is_latency && b->n >= ops[i].least_ranks;
        if (!is_asked)
            continue;
        b->op = &ops[i];
        if (hp_world_rank(b->world) == 0)
            print_head(b);
        TRY(dtypes(b, wrong));
    }
    return HP_OK;
}

static int partner_of(int rank, int n) {
    return (rank ^ 1) < n ? rank ^ 1 : -1;
}

/* A group of its own in any case: what the program says on the world's is not measured. */
static hp_status open_group(bench *b) {
    const int rank = hp_world_rank(b->world), n = hp_world_size(b->world) / b->o->n_groups;
    TRY(hp_group_split(hp_world_group(b->world), rank / n, rank, &b->group));
    b->rank = hp_group_rank(b->group);
    b->n = n;
    b->partner = partner_of(b->rank, n);
    return b->o->on_stream ? hp_stream_create(NULL, &b->stream) : HP_OK;
}

hp_status sweep_open_peer(hp_world *world, const options *o, beside **out_peer) {
    *out_peer = NULL;
    return o->beside ? beside_open(world, o->beside, "collectives", o->timeout_ms, out_peer)
                     : HP_OK;
}

hp_status sweep(hp_world *world, const options *o, beside *peer, uint64_t *out_wrong) {
    bench b = {.o = o, .world = world, .peer = peer};
    *out_wrong = 0;
    hp_status status = agree(world, open_group(&b));
    if (status >= 0)
        status = collectives(&b, out_wrong);
    hp_stream_destroy(b.stream);
    bench_abandon(&b);
    hp_group_destroy(b.group);
    return status;
}

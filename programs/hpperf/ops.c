/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/ops.c - the rows, and how each is called.
 *
 * Calls go through the full forms, so that blocking and on a stream are one path.
 */
#include "ops.h"
#include "bench.h"
#include "fail.h"

#include <string.h>

/* ---- calls ---- */

static hp_status call_collective(bench *b) {
    return hp_coll_run(&b->call);
}

static bool is_first(const bench *b) {
    return b->rank % 2 == 0;
}

static hp_status call_send_recv(bench *b) {
    hp_coll_call send = b->call, recv = b->call;
    if (b->partner < 0)
        return HP_OK;
    send.what = HP_SEND;
    recv.what = HP_RECV;
    TRY(hp_coll_run(is_first(b) ? &send : &recv));
    return hp_coll_run(is_first(b) ? &recv : &send);
}

static hp_symm_call symm_call(const bench *b, hp_symm_what what) {
    return (hp_symm_call){.size = sizeof(hp_symm_call),
                          .what = what,
                          .offset = b->o->misalign_bytes,
                          .source = b->in,
                          .target = b->out,
                          .bytes = b->count * hp_dtype_size(b->dtype),
                          .signal = b->signal,
                          .op = HP_SIGNAL_SET,
                          .value = b->n_bounces + (is_first(b) ? 1 : 0), /* signals sent */
                          .rank = b->partner,
                          .group = b->group,
                          .stream = b->stream};
}

static hp_status put(bench *b) {
    hp_symm_call call = symm_call(b, HP_SYMM_PUT_SIGNAL);
    call.memory = b->out_buffer.symm;
    return hp_symm_run(&call);
}

static hp_status signal_partner(bench *b) {
    const hp_symm_call call = symm_call(b, HP_SYMM_SIGNAL);
    return hp_symm_run(&call);
}

static hp_status wait_for_partner(bench *b) {
    hp_symm_call call = symm_call(b, HP_SYMM_WAIT);
    call.compare = HP_GE;
    call.value = ++b->n_bounces;
    return hp_symm_run(&call);
}

/* The answer says that what was put has been read: the block may be written again. */
static hp_status wait_and_read(bench *b) {
    TRY(wait_for_partner(b));
    return b->o->is_classic ? HP_OK : bench_do(b, bench_read);
}

static hp_status call_put(bench *b) {
    if (b->partner < 0)
        return HP_OK;
    if (!is_first(b)) {
        TRY(wait_and_read(b));
        return put(b);
    }
    TRY(put(b));
    return wait_and_read(b);
}

static hp_status call_get(bench *b) {
    hp_symm_call call = symm_call(b, HP_SYMM_GET);
    call.memory = b->in_buffer.symm;
    return b->partner >= 0 && is_first(b) ? hp_symm_run(&call) : HP_OK;
}

static hp_status call_signal(bench *b) {
    if (b->partner < 0)
        return HP_OK;
    if (!is_first(b)) {
        TRY(wait_for_partner(b));
        return signal_partner(b);
    }
    TRY(signal_partner(b));
    return wait_for_partner(b);
}

/* ---- formulae ---- */

static double bus_one(double n) {
    (void)n;
    return 1;
}
static double bus_all_reduce(double n) {
    return 2 * (n - 1) / n;
}
static double bus_parts(double n) {
    return (n - 1) / n;
}

/* Every input is read, every output written. */
static double bound_all_reduce(double n, double bytes, double keep) {
    (void)keep;
    return 2 * n * bytes;
}
static double bound_reduce_scatter(double n, double bytes, double keep) {
    (void)keep;
    return n * bytes + bytes;
}
/* The inputs of all are `bytes` together. */
static double bound_all_gather(double n, double bytes, double keep) {
    return bytes + n * (bytes - keep);
}
static double bound_all_to_all(double n, double bytes, double keep) {
    return 2 * n * (bytes - keep);
}
static double bound_broadcast(double n, double bytes, double keep) {
    (void)keep;
    return n > 1 ? bytes + (n - 1) * bytes : 0;
}
/* Two messages for each pair. */
static double bound_send_recv(double n, double bytes, double keep) {
    (void)keep;
    const int n_pairs = (int)n / 2;
    return n_pairs * 4 * bytes;
}

/* ---- rows ---- */

const op_row ops[] = {
    {.name = "all_reduce",
     .what = HP_ALL_REDUCE,
     .has_in_place = true,
     .reduces = true,
     .source = FROM_ALL,
     .least_ranks = 1,
     .call = call_collective,
     .bus = bus_all_reduce,
     .bound = bound_all_reduce},
    {.name = "all_gather",
     .what = HP_ALL_GATHER,
     .has_in_place = true,
     .each_out = true,
     .source = FROM_EACH,
     .least_ranks = 1,
     .call = call_collective,
     .bus = bus_parts,
     .bound = bound_all_gather},
    {.name = "reduce_scatter",
     .what = HP_REDUCE_SCATTER,
     .has_in_place = true,
     .reduces = true,
     .each_in = true,
     .source = FROM_ALL,
     .least_ranks = 1,
     .call = call_collective,
     .bus = bus_parts,
     .bound = bound_reduce_scatter},
    {.name = "all_to_all",
     .what = HP_ALL_TO_ALL,
     .has_in_place = true,
     .each_in = true,
     .each_out = true,
     .source = FROM_EACH,
     .least_ranks = 1,
     .call = call_collective,
     .bus = bus_parts,
     .bound = bound_all_to_all},
    {.name = "broadcast",
     .what = HP_BROADCAST,
     .source = FROM_ROOT,
     .least_ranks = 1,
     .call = call_collective,
     .bus = bus_one,
     .bound = bound_broadcast},
    {.name = "send_recv",
     .what = HP_SEND,
     .source = FROM_PARTNER,
     .least_ranks = 2,
     .is_pairs = true,
     .call = call_send_recv,
     .bus = bus_one,
     .bound = bound_send_recv},
    {.name = "barrier",
     .what = HP_BARRIER,
     .source = FROM_NOBODY,
     .least_ranks = 1,
     .call = call_collective,
     .bus = bus_one},
    {.name = "put",
     .is_latency = true,
     .source = FROM_PARTNER,
     .least_ranks = 2,
     .is_pairs = true,
     .reads_itself = true,
     .call = call_put,
     .bus = bus_one},
    {.name = "get",
     .is_latency = true,
     .source = FROM_PARTNER,
     .least_ranks = 2,
     .is_one_sided = true,
     .call = call_get,
     .bus = bus_one},
    {.name = "signal",
     .is_latency = true,
     .source = FROM_NOBODY,
     .least_ranks = 2,
     .is_pairs = true,
     .call = call_signal,
     .bus = bus_one},
};
const int n_ops = sizeof ops / sizeof *ops;

const op_row *op_find(const char *name, bool is_latency) {
    for (int i = 0; i < n_ops; i++)
        if (ops[i].is_latency == is_latency && strcmp(ops[i].name, name) == 0)
            return &ops[i];
    return NULL;
}

bool op_has_wire(hp_dtype dtype) {
    return dtype == HP_FP32 || dtype == HP_FP16 || dtype == HP_BF16;
}

bool op_has_avg(hp_dtype dtype) {
    return dtype == HP_FP64 || op_has_wire(dtype);
}

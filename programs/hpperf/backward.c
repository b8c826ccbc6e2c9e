/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/backward.c - what the backward of a call costs beside the call.
 *
 * The same buffers the other way round: every rank writes the gradient of the output anew where the
 * output lies, and reads that of the input where the input lies. In turns with the call, see
 * bench_turns; the ratio is backward / call. Of max and min the operands of the call must stay, so
 * that the gradients are in buffers of their own.
 */
#include "bench.h"
#include "fail.h"

#include <stdlib.h>
#include <string.h>

typedef struct backward {
    bench *b;
    hp_coll_backward_call call;
    unsigned char *out_grad, *in_grad;
    buffer own[2]; /* of max and min */
} backward;

static bool picks(const bench *b) {
    return b->op->reduces && (b->reduce == HP_MAX || b->reduce == HP_MIN);
}

/* What the others had before a broadcast has a gradient of zeros, which nobody reads. */
static bool is_wanted(const bench *b) {
    return b->op->source != FROM_ROOT || b->rank == b->o->root;
}

/* ---- calls ---- */

static hp_status run(backward *w, const hp_coll_call *forward) {
    w->call.forward = forward;
    return hp_coll_backward(&w->call);
}

/* The last message first. */
static hp_status run_messages(backward *w) {
    const bench *b = w->b;
    hp_coll_call send = b->call, recv = b->call;
    if (b->partner < 0)
        return HP_OK;
    const bool sent_first = b->rank % 2 == 0;
    send.what = HP_SEND;
    recv.what = HP_RECV;
    TRY(run(w, sent_first ? &recv : &send));
    return run(w, sent_first ? &send : &recv);
}

static int call(void *self) {
    backward *w = self;
    return w->b->op->is_pairs ? run_messages(w) : run(w, &w->b->call);
}

/* As a stream calls them. */
static hp_status fill_grad(void *argument) {
    backward *w = argument;
    bench *b = w->b;
    b->iteration++;
    values_fill(&b->values, b->rank, b->iteration, 0, b->out_bytes / hp_dtype_size(b->dtype),
                w->out_grad);
    return HP_OK;
}
static hp_status read_grad(void *argument) {
    backward *w = argument;
    if (is_wanted(w->b))
        w->b->sink = values_read(w->in_grad, w->b->in_bytes);
    return HP_OK;
}

static hp_status put(backward *w, hp_status (*function)(void *argument)) {
    return w->b->stream ? hp_stream_call(w->b->stream, function, w) : function(w);
}
static int fill(void *self) {
    return put(self, fill_grad);
}
static int read(void *self) {
    return put(self, read_grad);
}

/* ---- the loop is that of calls ---- */

static int begin(void *self) {
    bench *b = ((backward *)self)->b;
    return bench_timed(b).begin(b);
}
static int end(void *self) {
    bench *b = ((backward *)self)->b;
    return bench_timed(b).end(b);
}
static int most(void *self, double *x, int n) {
    bench *b = ((backward *)self)->b;
    return bench_timed(b).most(b, x, n);
}

static timed backward_timed(backward *w) {
    timed t = bench_timed(w->b);
    t.self = w;
    t.begin = begin;
    t.call = call;
    t.most = most;
    t.end = t.end ? end : NULL;
    t.fill = t.fill ? fill : NULL;
    t.read = t.read ? read : NULL;
    t.is_one_way = false; /* a sum needs all ranks */
    return t;
}

static hp_status open_gradients(backward *w) {
    bench *b = w->b;
    w->out_grad = b->out;
    w->in_grad = b->in;
    if (!picks(b))
        return HP_OK;
    TRY(buffer_open(b, b->out_bytes, b->o->is_private, &w->own[0]));
    TRY(buffer_open(b, b->in_bytes, b->o->is_private, &w->own[1]));
    w->out_grad = w->own[0].data;
    w->in_grad = w->own[1].data;
    return bench_check(b, &(uint64_t){0}); /* the operands belong together */
}

static hp_status close_gradients(backward *w) {
    TRY(buffer_close(&w->own[0]));
    return buffer_close(&w->own[1]);
}

hp_status measure_backward(bench *b, int n, int batch, double *samples, result *out) {
    double forward_ns, backward_ns;
    backward w = {.b = b, .call = HP_COLL_BACKWARD_CALL_INIT};
    if (!b->o->has_backward)
        return HP_OK;
    TRY(open_gradients(&w));
    w.call.mode = b->o->backward;
    w.call.stream = b->stream;
    w.call.out_grad = w.out_grad;
    w.call.in_grad = w.in_grad;
    const timed ours = backward_timed(&w), forward = bench_timed(b);
    TRY(bench_turns(&ours, &forward, n, batch, samples, &backward_ns, &forward_ns,
                    &out->over_forward));
    out->backward_us = backward_ns * (b->op->is_pairs ? 0.5e-3 : 1e-3);
    return close_gradients(&w);
}

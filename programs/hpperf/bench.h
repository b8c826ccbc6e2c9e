/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/bench.h - one thing that is measured, on its way over types and sizes.
 */
#ifndef HPPERF_BENCH_H
#define HPPERF_BENCH_H

#include "../perf/timed.h"
#include "../perf/values.h"
#include "beside/beside.h"
#include "options.h"

typedef struct buffer {
    hp_symm symm;
    void *ordinary; /* NULL: it is symmetric */
    unsigned char *data;
} buffer;

typedef struct exchange exchange;

struct bench {
    const options *o;
    hp_world *world;
    hp_group *group;    /* that is measured; the world's own keeps the ranks in step */
    hp_stream *stream;  /* NULL: calls block */
    beside *peer;       /* that takes turns; NULL: none */
    exchange *exchange; /* by plain means, while that is measured */
    int rank, n;        /* in the group */
    int partner;        /* of a pair; -1: none */

    const op_row *op;
    hp_dtype dtype;
    hp_reduce reduce;
    values values;
    buffer in_buffer, out_buffer; /* in place: the second alone */
    hp_symm signal;               /* a word, of what bounces by signals */

    uint64_t count;                      /* elements of a part */
    uint64_t bytes, in_bytes, out_bytes; /* of the larger buffer, of each */
    unsigned char *in, *out;
    hp_coll_call call; /* of this size, of a collective */
    double enough;     /* --enough of this size; 0: never */

    uint64_t iteration;     /* whose values the input holds */
    uint64_t n_bounces;     /* signals that were waited for */
    volatile uint64_t sink; /* takes what is read, so that it is */
};

typedef struct result {
    double time_us, p99_us, slowest_us;
    double moved_over_bound; /* NAN: nothing has to move, or it is not counted */
    uint64_t wrong;
    /* With a peer: medians over the pairs; NAN: it has no such call. */
    double peer_us, ratio, ratio_least, ratio_most; /* ratio: its time over ours */
    uint64_t peer_wrong;
    int n_pairs;                      /* that were taken */
    double plain_us, over_plain;      /* by plain means; NAN: not measured */
    double backward_us, over_forward; /* with --backward */
} result;

/* ---- buffers.c ---- */

/* Memory of `bytes`, as the options say, with its pages. Collective where it is symmetric. */
hp_status buffer_open(bench *b, uint64_t bytes, bool is_private, buffer *out);
hp_status buffer_close(buffer *old);

/* Is there anything in the buffers? */
static inline bool bench_has_data(const op_row *op) {
    return op->source != FROM_NOBODY;
}
/* Parts that the larger buffer holds. */
uint64_t bench_parts(const bench *b);
/* Take buffers for sizes up to `most_bytes` and make the values. Collective. */
hp_status bench_open(bench *b, uint64_t most_bytes);
/* Collective. */
hp_status bench_close(bench *b);
/* Local: what a failure left and needs no peer, who may be anywhere. Behind the stream's end. */
void bench_abandon(bench *b);
/* Lay the buffers out for `count` elements a part. */
void bench_set_count(bench *b, uint64_t count);

/* Write the next values into the input / spoil the output / read the output / count what is wrong
 * in it. The first and the third are as a stream calls them. */
hp_status bench_fill(void *argument);
void bench_spoil(bench *b);
hp_status bench_read(void *argument);
uint64_t bench_wrong(const bench *b);
/* Call it here, or put it on the stream. */
hp_status bench_do(bench *b, hp_status (*function)(void *argument));

/* ---- plain.c ---- */

/* A latency: the same by memcpy and a plain spin, in turns with ours. samples: [2 * n]. */
hp_status measure_plain(bench *b, int n, int batch, double *samples, result *out);

/* ---- exchange.c ---- */

/* --plain: the same of a collective in which two ranks exchange parts. Collective. */
hp_status measure_exchange(bench *b, int n, int batch, double *samples, result *out);

/* ---- backward.c ---- */

/* With --backward: the backward of the call, in turns with it. samples: [2 * n]. */
hp_status measure_backward(bench *b, int n, int batch, double *samples, result *out);

/* ---- measure.c ---- */

/* Two kinds of calls in turns, five rounds of a fifth of n iterations of each: the medians over the
 * rounds, and that of a / b, NAN where b is 0. samples: [2 * n]. */
hp_status bench_turns(const timed *a, const timed *b, int n, int batch, double *samples,
                      double *out_a_ns, double *out_b_ns, double *out_ratio);

/* How an iteration of it goes. */
timed bench_timed(bench *b);
/* Calls of an iteration, for calls that take so long with their fill and read. */
int bench_batch(const bench *b, double whole_ns);
/* A call on fresh values into a spoilt output. Collective. */
hp_status bench_check(bench *b, uint64_t *wrong);
/* What is wrong of the last call that was timed, as far as that can be told. */
uint64_t bench_wrong_timed(const bench *b);
/* From n samples of the slowest rank, ns, which are sorted; own_ns: the median of this rank's own.
 * Collective. */
hp_status bench_summarise(bench *b, double *samples, int n, double own_ns, uint64_t wrong,
                          result *out_result);
/* Measure one size. Collective over the world; the result is the same on every rank. */
hp_status measure(bench *b, result *out_result);

/* ---- compare.c ---- */

/* The same in turns with the peer. p99_us is that of all our turns; slowest_us is 0. */
hp_status compare(bench *b, result *out_result);

/* ---- print.c ---- */

void print_head(const bench *b);
void print_row(const bench *b, const result *r);

/* ---- sweep.c ---- */

/* Start the peer, while ranks may still use every core: before they are bound. *out_peer is NULL
 * without --beside. Collective. */
hp_status sweep_open_peer(hp_world *world, const options *o, beside **out_peer);
/* Everything that the options ask for. *out_wrong: elements, over all ranks and both sides.
 * Collective. */
hp_status sweep(hp_world *world, const options *o, beside *peer, uint64_t *out_wrong);

#endif

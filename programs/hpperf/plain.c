/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/plain.c - what put, get and signal cost beside a plain copy and a plain spin.
 *
 * The same bytes go the same way by memcpy on the pointers that hp_symm_pointer gives, and the same
 * word is stored and spun on, by the same processes, in turns with the library's calls: see
 * bench_turns. The ratio is ours / plain.
 */
#include "bench.h"
#include "fail.h"

#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

/* Where the calls reach, as seen here. */
typedef struct places {
    unsigned char *in, *out;            /* the partner's */
    _Atomic uint64_t *own, *partner_of; /* words */
} places;

static hp_status find_places(const bench *b, places *out) {
    void *in = NULL, *data = NULL, *own, *theirs;
    if (b->op->is_one_sided)
        TRY(hp_symm_pointer(b->in_buffer.symm, b->partner, b->group, &in));
    if (b->op->reads_itself)
        TRY(hp_symm_pointer(b->out_buffer.symm, b->partner, b->group, &data));
    TRY(hp_symm_pointer(b->signal, b->rank, b->group, &own));
    TRY(hp_symm_pointer(b->signal, b->partner, b->group, &theirs));
    const uint64_t off = b->o->misalign_bytes;
    *out = (places){in ? (unsigned char *)in + off : NULL,
                    data ? (unsigned char *)data + off : NULL, own, theirs};
    return HP_OK;
}

/* ---- calls ---- */

typedef struct plain {
    bench *b;
    places at;
} plain;

static void signal_partner(const plain *p, uint64_t value) {
    atomic_store_explicit(p->at.partner_of, value, memory_order_release); /* acquired by spin */
}

/* Where ranks share a core, the other one must get it. */
static void spin(const plain *p, uint64_t value) {
    enum { GREEDY = 100000 };
    for (int i = 0; atomic_load_explicit(p->at.own, memory_order_acquire) < value; i++)
        if (i > GREEDY)
            sched_yield();
}

static hp_status read_output(bench *b) {
    return b->op->reads_itself && !b->o->is_classic ? bench_do(b, bench_read) : HP_OK;
}

/* A put and a signal, or a signal alone, there and back. */
static hp_status bounce(const plain *p) {
    bench *b = p->b;
    const uint64_t value = ++b->n_bounces;
    const bool is_first = b->rank % 2 == 0;
    if (!is_first) {
        spin(p, value);
        TRY(read_output(b));
    }
    if (p->at.out)
        memcpy(p->at.out, b->in, b->in_bytes);
    signal_partner(p, value);
    if (is_first) {
        spin(p, value);
        TRY(read_output(b));
    }
    return HP_OK;
}

static int call(void *self) {
    const plain *p = self;
    bench *b = p->b;
    if (b->partner < 0)
        return HP_OK;
    if (!b->op->is_one_sided)
        return bounce(p);
    if (b->rank % 2 == 0)
        memcpy(b->out, p->at.in, b->out_bytes);
    return HP_OK;
}

/* ---- the loop is the library's own ---- */

static int begin(void *self) {
    bench *b = ((plain *)self)->b;
    return bench_timed(b).begin(b);
}
static int fill(void *self) {
    return bench_do(((plain *)self)->b, bench_fill);
}
static int read(void *self) {
    return bench_do(((plain *)self)->b, bench_read);
}
static int most(void *self, double *x, int n) {
    bench *b = ((plain *)self)->b;
    return bench_timed(b).most(b, x, n);
}

hp_status measure_plain(bench *b, int n, int batch, double *samples, result *out) {
    double ours_ns, plain_ns;
    out->plain_us = out->over_plain = NAN;
    if (b->o->is_plain)
        return measure_exchange(b, n, batch, samples, out);
    if (!b->op->is_latency || b->stream)
        return HP_OK;
    plain p = {.b = b};
    if (b->partner >= 0)
        TRY(find_places(b, &p.at));
    const timed ours = bench_timed(b);
    timed theirs = ours;
    theirs.self = &p;
    theirs.begin = begin;
    theirs.call = call;
    theirs.most = most;
    theirs.fill = ours.fill ? fill : NULL;
    theirs.read = ours.read ? read : NULL;
    TRY(bench_turns(&ours, &theirs, n, batch, samples, &ours_ns, &plain_ns, &out->over_plain));
    out->plain_us = plain_ns * (b->op->is_pairs ? 0.5e-3 : 1e-3);
    return HP_OK;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/exchange.c - --plain: what two ranks need to exchange what they have just written, with no
 * library.
 *
 * Each rank sends a part to the other and keeps one, by copies and a word. In turns with our calls
 * it is done in two ways, the faster of which counts: reading where the part lies; and through two
 * pieces of memory that go to and fro, so that each rank fills what it was the last to read, which
 * is one wait less. Nothing is checked, agreed on or given up here: it is the limit of a call, not
 * a call.
 */
#include "../perf/median.h"
#include "bench.h"
#include "fail.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>

enum { ROUNDS = 5, LINE = 64, PAGE = 4096, PIECE_BYTES = 512 << 10 };

typedef enum way { IN_PLACE, TO_AND_FRO, N_WAYS } way;

/* Of each rank, in symmetric memory. */
typedef struct shared {
    _Alignas(2 * LINE) _Atomic uint64_t said;
    _Alignas(2 * LINE) unsigned char piece[PIECE_BYTES];
} shared;

struct exchange {
    way way;
    shared *own, *theirs;
    unsigned char *pieces[2];     /* that is filled next, that is read next */
    const unsigned char *peer_in; /* the part for us, where the peer has it */
    uint64_t bytes, said;         /* of a part; words */
};

/* ---- copies ---- */

/* What is sent, and what is kept: from the end on, which was written last and lies in the nearest
 * cache. Of a gather both are the same. */
static void fill_from_end(unsigned char *to, const unsigned char *from, unsigned char *own_to,
                          const unsigned char *own_from, uint64_t bytes) {
    for (uint64_t n; bytes > 0;) {
        n = (bytes - 1) % PAGE + 1;
        bytes -= n;
        memcpy(to + bytes, from + bytes, n);
        if (own_to != own_from)
            memcpy(own_to + bytes, own_from + bytes, n);
    }
}

/* One string instruction, which takes lines without reading what they held. */
static void copy_at_once(unsigned char *to, const unsigned char *from, uint64_t bytes) {
#if defined(__x86_64__) && defined(__GNUC__)
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
#else
    memcpy(to, from, bytes);
#endif
}

/* From two places at once, so that two pages are fetched ahead of it. */
static void read_two(unsigned char *to, const unsigned char *from, uint64_t bytes) {
    enum { STEP = 256 };
    const uint64_t half = bytes / 2 / STEP * STEP;
    for (uint64_t at = 0; at < half; at += STEP) {
        memcpy(to + at, from + at, STEP);
        memcpy(to + half + at, from + half + at, STEP);
    }
    memcpy(to + 2 * half, from + 2 * half, bytes - 2 * half);
}

/* ---- one exchange ---- */

static void say(exchange *e) {
    atomic_store_explicit(&e->own->said, ++e->said, memory_order_release); /* acquired by hear */
}

/* Where ranks share a core, the other one must get it. */
static void hear(const exchange *e) {
    enum { GREEDY = 100000 };
    for (int i = 0; atomic_load_explicit(&e->theirs->said, memory_order_acquire) < e->said; i++)
        if (i > GREEDY)
            sched_yield();
}

/* Where a part for `rank` lies in an input that has one for each, or in one that all get. */
static const unsigned char *part_for(const bench *b, const unsigned char *in, int rank) {
    return in + (b->op->each_in ? (uint64_t)rank * b->exchange->bytes : 0);
}

static unsigned char *place_of_theirs(const bench *b) {
    return b->out + (uint64_t)!b->rank * b->exchange->bytes;
}

/* The peer fills next what it reads now, and so do we. */
static void to_and_fro(const bench *b) {
    exchange *e = b->exchange;
    const unsigned char *ours = part_for(b, b->in, !b->rank);
    const unsigned char *kept = part_for(b, b->in, b->rank);
    unsigned char *own = b->out + (uint64_t)b->rank * e->bytes;
    for (uint64_t at = 0, n; at < e->bytes; at += n) {
        unsigned char *filled = e->pieces[0], *come = e->pieces[1];
        n = e->bytes - at < PIECE_BYTES ? e->bytes - at : PIECE_BYTES;
        fill_from_end(filled, ours + at, own + at, kept + at, n);
        say(e);
        hear(e);
        read_two(place_of_theirs(b) + at, come, n);
        e->pieces[0] = come;
        e->pieces[1] = filled;
    }
}

static void in_place(const bench *b) {
    exchange *e = b->exchange;
    const unsigned char *kept = part_for(b, b->in, b->rank);
    unsigned char *own = b->out + (uint64_t)b->rank * e->bytes;
    say(e);
    hear(e);
    copy_at_once(place_of_theirs(b), e->peer_in, e->bytes);
    if (own != kept)
        copy_at_once(own, kept, e->bytes);
    say(e);
    hear(e);
}

static int call(void *self) {
    const bench *b = self;
    (b->exchange->way == IN_PLACE ? in_place : to_and_fro)(b);
    return HP_OK;
}

/* ---- in turns with ours ---- */

static hp_status find_places(const bench *b, hp_symm memory, exchange *e) {
    const bool is_one_buffer = b->o->is_in_place;
    const unsigned char *base = is_one_buffer ? b->out_buffer.data : b->in_buffer.data;
    void *own, *theirs, *in;
    TRY(hp_symm_pointer(memory, b->rank, b->group, &own));
    TRY(hp_symm_pointer(memory, !b->rank, b->group, &theirs));
    TRY(hp_symm_pointer(is_one_buffer ? b->out_buffer.symm : b->in_buffer.symm, !b->rank, b->group,
                        &in));
    e->own = own;
    e->theirs = theirs;
    e->pieces[0] = e->own->piece;
    e->pieces[1] = e->theirs->piece;
    e->bytes = b->bytes / 2;
    /* in place the peer's part lies where it comes to here */
    const uint64_t begin = is_one_buffer ? (uint64_t)!b->rank * e->bytes
                                         : (uint64_t)(part_for(b, b->in, b->rank) - base);
    e->peer_in = (unsigned char *)in + begin;
    return HP_OK;
}

static hp_status time_of(const bench *b, const timed *t, int n, int batch, double *samples,
                         double *out_ns) {
    double own_ns;
    TRY((hp_status)timed_run(t, n, batch, samples, &own_ns));
    *out_ns = median(samples, n);
    const uint64_t wrong = bench_wrong_timed(b);
    return agree(b->world, wrong == 0 ? HP_OK
                                      : fail(HP_ERR_STATE,
                                             "expected plain copies to bring the same values, "
                                             "%llu are wrong",
                                             (unsigned long long)wrong));
}

static hp_status one_round(const bench *b, const timed *ours, int n, int batch, double *samples,
                           double *out_ours_ns, double *out_plain_ns) {
    timed plain = *ours;
    plain.call = call;
    *out_plain_ns = 0;
    TRY(time_of(b, ours, n, batch, samples, out_ours_ns));
    for (way w = 0; w < N_WAYS; w++) {
        double ns;
        b->exchange->way = w;
        TRY(time_of(b, &plain, n, batch, samples, &ns));
        if (w == 0 || ns < *out_plain_ns)
            *out_plain_ns = ns;
    }
    return HP_OK;
}

static hp_status measure_rounds(bench *b, int n, int batch, double *samples, result *out) {
    const timed ours = bench_timed(b);
    double plain_ns[ROUNDS], ratios[ROUNDS], ours_ns;
    for (int k = 0; k < ROUNDS; k++) {
        TRY(one_round(b, &ours, 1 + n / ROUNDS, batch, samples, &ours_ns, &plain_ns[k]));
        ratios[k] = ours_ns / (plain_ns[k] > 1 ? plain_ns[k] : 1);
    }
    out->plain_us = median(plain_ns, ROUNDS) * 1e-3;
    out->over_plain = median(ratios, ROUNDS);
    return HP_OK;
}

hp_status measure_exchange(bench *b, int n, int batch, double *samples, result *out) {
    exchange e = {0};
    hp_symm memory;
    TRY(hp_symm_alloc(b->world, b->group, sizeof(shared), 2 * LINE, &memory));
    b->exchange = &e;
    hp_status status = find_places(b, memory, &e);
    if (status >= 0) {
        memset(e.own, 0, sizeof *e.own);
        status = hp_barrier(b->group);
    }
    if (status >= 0)
        status = measure_rounds(b, n, batch, samples, out);
    b->exchange = NULL;
    const hp_status freed = hp_symm_free(memory);
    return status < 0 ? status : freed;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * perf/peer.c - a peer's turns: memory, values, times, the answer.
 *
 * Buffers grow to the largest size that was asked for and ask for huge pages, which makes copies
 * across processes faster. The answer to a line is a JSON object: "us" of a call on the slowest
 * rank, "whole_ns" with its fill and read, "wrong" elements, "unsupported" 1 where there is no such
 * call.
 */
#include "peer.h"
#include "cores.h"
#include "timed.h"
#include "token.h"
#include "values.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { NO_MEMORY = -1, HUGE_PAGE = 2 << 20, SPOILED = 0xa5 };

typedef struct memory {
    unsigned char *data;
    size_t size;
} memory;

typedef struct peer {
    const peer_library *library;
    turn turn;
    peer_call call;
    values values;
    memory in_memory, out_memory; /* in place: the second alone */
    size_t in_bytes, out_bytes;
    double *samples;
    int n_samples;
    uint64_t iteration;     /* whose values the input holds */
    volatile uint64_t sink; /* takes what is read */
} peer;

/* ---- memory ---- */

static bool has_parts_in(hp_collective what) {
    return what == HP_REDUCE_SCATTER || what == HP_ALL_TO_ALL;
}
static bool has_parts_out(hp_collective what) {
    return what == HP_ALL_GATHER || what == HP_ALL_TO_ALL;
}
static bool reduces(hp_collective what) {
    return what == HP_ALL_REDUCE || what == HP_REDUCE_SCATTER;
}
static bool is_one_buffer(const turn *t) {
    return t->what == HP_BROADCAST || t->is_in_place;
}

static bool grow(memory *m, size_t bytes) {
    const size_t size = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    if (size <= m->size)
        return true;
    free(m->data);
    m->data = aligned_alloc(HUGE_PAGE, size);
    m->size = m->data ? size : 0;
    if (!m->data)
        return false;
    (void)madvise(m->data, size, MADV_HUGEPAGE); /* without them it is slower, and right */
    memset(m->data, SPOILED, size);
    return true;
}

static bool lay_out(peer *p) {
    const turn *t = &p->turn;
    const size_t n = (size_t)p->library->n_ranks, part = p->call.part_bytes;
    const size_t own = (size_t)p->library->rank * part;
    p->in_bytes = has_parts_in(t->what) ? n * part : part;
    p->out_bytes = has_parts_out(t->what) ? n * part : part;
    const size_t most = p->in_bytes > p->out_bytes ? p->in_bytes : p->out_bytes;
    if (!grow(&p->out_memory, most) || (!is_one_buffer(t) && !grow(&p->in_memory, p->in_bytes)))
        return false;
    p->call.out = p->out_memory.data;
    p->call.in = is_one_buffer(t) ? p->out_memory.data : p->in_memory.data;
    if (t->is_in_place && t->what == HP_ALL_GATHER)
        p->call.in = p->out_memory.data + own;
    if (t->is_in_place && t->what == HP_REDUCE_SCATTER && p->library->scatters_to_own_part)
        p->call.out = p->out_memory.data + own;
    return true;
}

/* ---- values ---- */

/* Another library may add in another order: contributions of which no order is seen. */
static bool make_values(peer *p) {
    const values_config config = {.dtype = p->turn.dtype,
                                  .n_ranks = p->library->n_ranks,
                                  .reduces = reduces(p->turn.what),
                                  .op = p->turn.reduce,
                                  .is_rounded = true};
    values_destroy(&p->values);
    return values_create(&config, &p->values);
}

static bool has_input(const peer *p) {
    return p->turn.what != HP_BARRIER &&
           (p->turn.what != HP_BROADCAST || p->library->rank == p->turn.root);
}

static int fill(void *self) {
    peer *p = self;
    p->iteration++;
    if (has_input(p))
        values_fill(&p->values, p->library->rank, p->iteration, 0,
                    p->in_bytes / values_size(p->turn.dtype), p->call.in);
    return 0;
}

static int read_output(void *self) {
    peer *p = self;
    if (p->out_bytes)
        p->sink = values_read(p->call.out, p->out_bytes);
    return 0;
}

static uint64_t count_wrong_parts(const peer *p, uint64_t first) {
    uint64_t wrong = 0;
    for (int i = 0; i < p->library->n_ranks; i++)
        wrong += values_wrong(&p->values, i, p->iteration, first, p->call.count,
                              (unsigned char *)p->call.out + (size_t)i * p->call.part_bytes);
    return wrong;
}

static uint64_t count_wrong(const peer *p) {
    const peer_call *c = &p->call;
    const uint64_t first = has_parts_in(c->what) ? (uint64_t)p->library->rank * c->count : 0;
    if (c->what == HP_BARRIER || (c->what == HP_SEND && c->partner < 0))
        return 0;
    if (has_parts_out(c->what))
        return count_wrong_parts(p, first);
    const int source = reduces(c->what)          ? VALUES_REDUCED
                       : c->what == HP_BROADCAST ? c->root
                                                 : c->partner;
    return values_wrong(&p->values, source, p->iteration, first, c->count, c->out);
}

/* ---- a turn ---- */

static int begin(void *self) {
    peer *p = self;
    return p->library->barrier(p->library->self);
}

static int call(void *self) {
    peer *p = self;
    return p->library->run(p->library->self, &p->call);
}

static int most(void *self, double *x, int n) {
    peer *p = self;
    return p->library->most(p->library->self, x, n);
}

static timed timed_of(peer *p) {
    return (timed){.self = p,
                   .begin = begin,
                   .fill = p->turn.is_classic ? NULL : fill,
                   .call = call,
                   .read = p->turn.is_classic ? NULL : read_output,
                   .most = most,
                   .is_one_way = p->turn.what == HP_BROADCAST,
                   .is_root = p->library->rank == p->turn.root};
}

/* A call on fresh values into a spoilt output; before it, what the last call that was timed left.
 */
static int check(peer *p, uint64_t *wrong) {
    if (!p->turn.is_classic)
        *wrong += count_wrong(p);
    int status = begin(p);
    if (status < 0)
        return status;
    if (p->out_bytes)
        memset(p->call.out, SPOILED, p->out_bytes);
    fill(p);
    status = begin(p);
    if (status == 0)
        status = call(p);
    *wrong += count_wrong(p);
    return status;
}

static bool set_up(peer *p) {
    const turn *t = &p->turn;
    const peer_library *l = p->library;
    p->call = (peer_call){.what = t->what,
                          .dtype = t->dtype,
                          .reduce = t->reduce,
                          .count = t->count,
                          .part_bytes = t->count * values_size(t->dtype),
                          .is_in_place = t->is_in_place,
                          .root = t->root,
                          .partner = (l->rank ^ 1) < l->n_ranks ? l->rank ^ 1 : -1};
    if (t->iterations > p->n_samples) {
        free(p->samples);
        p->samples = calloc(2 * (size_t)t->iterations, sizeof *p->samples);
        p->n_samples = p->samples ? t->iterations : 0;
    }
    return p->n_samples && make_values(p) && lay_out(p);
}

static int take_turn(peer *p, char *out, size_t size) {
    timed_result r = {0};
    uint64_t wrong = 0;
    if (!set_up(p))
        return NO_MEMORY;
    const timed t = timed_of(p);
    const int supports = p->library->prepare(p->library->self, &p->call);
    int status = supports < 0 ? supports : 0;
    if (supports > 0)
        status = timed_turn(&t, p->turn.iterations, p->turn.batch, p->samples, &r);
    if (supports > 0 && status == 0 && p->turn.checks)
        status = check(p, &wrong);
    snprintf(out, size, "{\"us\": %.6f, \"whole_ns\": %.3f, \"wrong\": %llu, \"unsupported\": %d}",
             r.call_ns * (p->turn.what == HP_SEND ? 0.5e-3 : 1e-3), r.whole_ns,
             (unsigned long long)wrong, supports == 0);
    return status;
}

int peer_take_turns(const peer_library *library, int fd) {
    peer p = {.library = library};
    char line[TOKEN_LINE], reply[TOKEN_LINE];
    int status = 0;
    (void)cores_spread(library->rank, library->n_ranks); /* else it is slower, and right */
    while (status == 0 && token_read(fd, line) == 1 && turn_parse(line, &p.turn)) {
        status = take_turn(&p, reply, sizeof reply);
        if (status == 0 && token_write(fd, reply))
            break;
    }
    values_destroy(&p.values);
    free(p.in_memory.data);
    free(p.out_memory.data);
    free(p.samples);
    return status;
}

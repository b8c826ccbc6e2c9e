/* SPDX-License-Identifier: Apache-2.0
 *
 * direct.c - collectives in ordinary memory: each rank reads its peers' operands across processes.
 *
 *     rank            0      1      2      3
 *     inputs         [abcd] [efgh] [ijkl] [mnop]
 *     scatter_reduce  aeim   bfjn   cgko   dhlp     each fetches its column, a cache-sized piece
 *     reduce         [all]  [all]  [all]  [all]     of it at a time, sums it at home, and fetches
 *                                                   the others' sums when they are there
 *
 * Moves go straight from the peer's operand to ours; nobody writes a peer's but the root of a
 * broadcast, so in place works where it does for symmetric memory. Steps: 2; 1 + 2 for each round
 * of an all-reduce.
 * Source: CMA of Open MPI and MPICH; rounds as long as a second-level cache: performance.md 5.
 */
#include "direct.h"

/* ---- moves ---- */

/* Bytes [0, end) of rank `part`'s part from where it lies alone, into its places in the output. */
static hp_status fetch_part(const hpi_run *run, int part) {
    const unsigned char *from = run->state->in[part];
    const uint64_t end = hpi_part_total(run, part) * run->in_size;
    hpi_fetch f;
    uint64_t offset;
    hpi_fetch_begin(&f, run, part, run->state->entered[part].in);
    for (uint64_t at = 0, bytes; at < end; at += bytes) {
        bytes = hpi_part_piece(run, part, at, end, &offset);
        HP_TRY(hpi_fetch_add(&f, (unsigned char *)run->c.out + offset, from + at, bytes));
    }
    return hpi_fetch_end(&f);
}

hp_status hpi_gather_direct(hpi_run *run) {
    for (int k = 1; k < run->n; k++)
        HP_TRY(fetch_part(run, (run->rank + k) % run->n));
    hpi_gather_own(run);
    return HP_OK;
}

static hp_status fetch(const hpi_run *run, int peer, void *to, const void *from, uint64_t bytes) {
    hpi_fetch f;
    hpi_fetch_begin(&f, run, peer, run->state->entered[peer].in);
    HP_TRY(hpi_fetch_add(&f, to, from, bytes));
    return hpi_fetch_end(&f);
}

static hp_status store(const hpi_run *run, int peer, void *to, const void *from, uint64_t bytes) {
    hpi_fetch f;
    hpi_fetch_begin(&f, run, peer, run->state->entered[peer].out);
    f.is_store = true;
    HP_TRY(hpi_fetch_add(&f, to, from, bytes));
    return hpi_fetch_end(&f);
}

/* The root stores its slice into every output: see placed/broadcast.c. */
hp_status hpi_broadcast_direct(hpi_run *run) {
    const int root = run->c.root;
    const unsigned char *in = run->state->in[root];
    const hpi_piece last = hpi_root_slice(run);
    if (run->rank != root)
        return fetch(run, root, run->c.out, in, last.begin);
    for (int k = 1; k < run->n; k++) {
        const int peer = (root + k) % run->n;
        HP_TRY(store(run, peer, run->state->out[peer] + last.begin, in + last.begin, last.bytes));
    }
    return HP_OK;
}

hp_status hpi_exchange_direct(hpi_run *run) {
    const uint64_t bytes = run->c.count * run->in_size;
    const uint64_t mine = (uint64_t)run->rank * bytes; /* in every input */
    for (int k = 1; k < run->n; k++) {
        const int peer = (run->rank + run->n - k) % run->n;
        HP_TRY(fetch(run, peer, (unsigned char *)run->c.out + (uint64_t)peer * bytes,
                     run->state->in[peer] + mine, bytes));
    }
    hpi_exchange_own(run);
    return HP_OK;
}

/* ---- reductions ---- */

/* What is fetched of one peer at a time: a call is dear, and all of it should stay in a
 * second-level cache. */
enum { FETCH_BYTES = 256 * 1024, LEAST_FETCH_BYTES = 4 * 1024, ALL_FETCHED_BYTES = 512 * 1024 };

static uint64_t fetch_bytes(int n) {
    const uint64_t share = ALL_FETCHED_BYTES / (uint64_t)n / 64 * 64;
    return hpi_max(hpi_min(share, FETCH_BYTES), LEAST_FETCH_BYTES);
}

static hp_status open_scratch(hpi_coll_state *s, int n) {
    if (!s->fetched)
        s->fetched = hpi_alloc_aligned(4096, fetch_bytes(n) * (uint64_t)n);
    return s->fetched ? HP_OK : HP_ERR_MEMORY;
}

void hpi_direct_close(hpi_coll_state *state) {
    hpi_free(state->fetched);
}

/* Where a reduction reads rank i's elements: bytes [at, at + bytes) of what the caller sums. */
typedef hp_status (*bring_function)(const hpi_run *run, int i, uint64_t at, uint64_t bytes,
                                    unsigned char *scratch, const void **out_at);

static hp_status reduce(const hpi_run *run, bring_function bring, uint64_t first, uint64_t count,
                        unsigned char *out) {
    hpi_coll_state *s = run->state;
    const hpi_reduction r = hpi_reduction_of(run);
    const uint64_t room = fetch_bytes(run->n), step = room / run->in_size;
    for (uint64_t at = 0; at < count; at += step) {
        const uint64_t n = hpi_min(step, count - at);
        void *to = out + at * run->out_size;
        for (int k = 1; k <= run->n; k++) {
            const int i = (run->rank + k) % run->n;
            HP_TRY(bring(run, i, (first + at) * run->in_size, n * run->in_size,
                         s->fetched + (uint64_t)i * room, &s->chunk[i]));
        }
        hpi_reduce_into(&r, s->chunk, &to, 1, n, false);
    }
    return HP_OK;
}

/* Of this rank's part, its blocks taken as adjacent. */
static hp_status bring_part(const hpi_run *run, int i, uint64_t at, uint64_t bytes,
                            unsigned char *scratch, const void **out_at) {
    const uint64_t end = at + bytes;
    const hpi_place place = run->state->entered[i].in;
    hpi_fetch f;
    uint64_t offset;
    *out_at = scratch;
    hpi_fetch_begin(&f, run, i, place);
    for (uint64_t done = at, n; done < end; done += n) {
        n = hpi_part_piece(run, run->rank, done, end, &offset);
        const unsigned char *from = run->state->in[i] + offset;
        if (n == bytes && f.is_near) {
            *out_at = from;
            return HP_OK;
        }
        HP_TRY(hpi_fetch_add(&f, scratch + (done - at), from, n));
    }
    return hpi_fetch_end(&f);
}

hp_status hpi_scatter_reduce_direct(hpi_run *run) {
    HP_TRY(open_scratch(run->state, run->n));
    return reduce(run, bring_part, 0, hpi_part_total(run, run->rank), run->c.out);
}

/* Of the vector. */
static hp_status bring_span(const hpi_run *run, int i, uint64_t at, uint64_t bytes,
                            unsigned char *scratch, const void **out_at) {
    const unsigned char *from = run->state->in[i] + at;
    const bool is_near = hpi_is_near(run, i, run->state->entered[i].in);
    *out_at = is_near ? from : scratch;
    return is_near ? HP_OK : fetch(run, i, scratch, from, bytes);
}

static hp_status fetch_sums(const hpi_run *run, int peer, uint64_t first, uint64_t count) {
    uint64_t begin, end;
    hpi_fetch f;
    hpi_slice(run, count, peer, &begin, &end);
    const uint64_t at = (first + begin) * run->out_size;
    hpi_fetch_begin(&f, run, peer, run->state->entered[peer].out);
    HP_TRY(hpi_fetch_add(&f, (unsigned char *)run->c.out + at, run->state->out[peer] + at,
                         (end - begin) * run->out_size));
    return hpi_fetch_end(&f);
}

uint64_t hpi_reduce_direct_step(const hpi_run *run) {
    enum { ROUND_BYTES = 4 << 20 };
    return ROUND_BYTES / hpi_max(run->in_size, run->out_size);
}

hp_status hpi_reduce_direct(hpi_run *run) {
    const uint64_t step = hpi_reduce_direct_step(run);
    HP_TRY(open_scratch(run->state, run->n));
    for (uint64_t at = 0; at < run->c.count; at += step) {
        const uint64_t count = hpi_min(step, run->c.count - at);
        uint64_t begin, end;
        hpi_slice(run, count, run->rank, &begin, &end);
        HP_TRY(reduce(run, bring_span, at + begin, end - begin,
                      (unsigned char *)run->c.out + (at + begin) * run->out_size));
        hpi_tick_say(run, 0); /* my sums are there; of the peer's slice of mine I need no more */
        for (int k = 1; k < run->n; k++) {
            const int peer = (run->rank + k) % run->n;
            HP_TRY(hpi_tick_hear(run, peer));
            HP_TRY(fetch_sums(run, peer, at, count));
        }
    }
    return HP_OK;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/compare.c - one size, in turns with a peer.
 *
 * A turn is a few iterations of one side (perf/timed.h) while the other sleeps; a pair is a turn of
 * each, and every second pair begins with the peer. Both sides make as many calls in an iteration.
 * A ratio is taken within a pair: what the machine does to one of them it mostly does to both.
 * A size has --pairs of them: more where they are short (--pairs-ms), fewer where the peer is
 * far behind (--enough). All ranks know the same times, so they agree without a word.
 */
#include "../perf/median.h"
#include "../perf/turn.h"
#include "bench.h"
#include "fail.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of a turn; of an iteration of the slower side, which sets an end to the batch. */
static const double turn_ns = 20e6, most_iteration_ns = 10e6, least_us = 1e-3;
enum { LEAST = 3, MOST = 25, MORE_PAIRS = 3, BESIDE_SAMPLES = 9 };

typedef struct side {
    double us, whole_ns; /* of a call; with its fill and read */
    double wrong;
} side;

typedef struct campaign {
    bench *b;
    turn turn;
    int n_pairs;           /* that are to be taken; in the end, that were */
    int n_ours, n_theirs;  /* iterations of a turn */
    double *ours, *theirs; /* [n_pairs], us */
    double *ratios;        /* [n_pairs], their time over ours */
    double *pool, *turned; /* [n_pairs * n_ours] samples of all our turns; [2 * n_ours] of one */
    double wrong, peer_wrong;
} campaign;

static double scale_of(const bench *b) {
    return b->op->is_pairs ? 0.5e-3 : 1e-3;
}

/* ---- turns ---- */

static hp_status our_turn(campaign *c, int n, double *samples, side *out) {
    const timed t = bench_timed(c->b);
    timed_result r;
    TRY((hp_status)timed_turn(&t, n, c->turn.batch, samples, &r));
    *out = (side){.us = r.call_ns * scale_of(c->b), .whole_ns = r.whole_ns};
    c->wrong += (double)bench_wrong_timed(c->b);
    return HP_OK;
}

/* us: NAN, the peer has no such call. */
static hp_status their_turn(campaign *c, int n, side *out) {
    static const char *const names[] = {"us", "whole_ns", "wrong", "unsupported"};
    char line[200];
    double said[4];
    c->turn.iterations = n;
    turn_print(&c->turn, line, sizeof line);
    TRY(beside_turn(c->b->peer, line, names, 4, said));
    *out = (side){said[3] > 0 ? NAN : said[0], said[1], said[2]};
    c->peer_wrong += said[2];
    return HP_OK;
}

/* Calls of a turn: what warms up and what is taken off stand beside its samples (timed.c). */
static double turn_calls(const campaign *c, int n) {
    return (double)c->turn.batch * (n + BESIDE_SAMPLES);
}

/* As many as --pairs, or as fit into --pairs-ms. */
static int choose_pairs(const campaign *c, const side *ours, const side *theirs) {
    const options *o = c->b->o;
    const double pair_ns =
        ours->whole_ns * turn_calls(c, c->n_ours) + theirs->whole_ns * turn_calls(c, c->n_theirs);
    const int most = o->pairs_ms ? MORE_PAIRS * o->n_pairs : o->n_pairs;
    return timed_count(pair_ns, 1, o->pairs_ms * 1e6, o->n_pairs, most);
}

/* A short turn of each tells how long theirs are; the batch is the one of the faster side. */
static hp_status choose_amounts(campaign *c) {
    const bench *b = c->b;
    double samples[2];
    side ours, theirs;
    c->turn.batch = 2;
    TRY(our_turn(c, 1, samples, &ours));
    TRY(their_turn(c, 1, &theirs));
    if (isnan(theirs.us))
        theirs.whole_ns = ours.whole_ns;
    const int batch = bench_batch(b, fmin(ours.whole_ns, theirs.whole_ns));
    const double most = most_iteration_ns / fmax(fmax(ours.whole_ns, theirs.whole_ns), 1);
    c->turn.batch = most < batch && !b->o->batch ? (int)fmax(most, 1) : batch;
    c->n_ours = timed_count(ours.whole_ns, c->turn.batch, turn_ns, LEAST, MOST);
    c->n_theirs = timed_count(theirs.whole_ns, c->turn.batch, turn_ns, LEAST, MOST);
    if (b->o->n_iterations)
        c->n_ours = c->n_theirs = b->o->n_iterations;
    c->n_pairs = choose_pairs(c, &ours, &theirs);
    return HP_OK;
}

static hp_status one_pair(campaign *c, int k) {
    side ours, theirs = {0};
    const bool begins = k % 2 == 0;
    c->turn.checks = c->b->o->checks && k == 0; /* and in the short turn before */
    if (!begins)
        TRY(their_turn(c, c->n_theirs, &theirs));
    TRY(our_turn(c, c->n_ours, c->turned, &ours));
    memcpy(c->pool + k * c->n_ours, c->turned, (size_t)c->n_ours * sizeof *c->pool);
    if (begins)
        TRY(their_turn(c, c->n_theirs, &theirs));
    c->ours[k] = ours.us;
    c->theirs[k] = theirs.us;
    c->ratios[k] = theirs.us / fmax(ours.us, least_us);
    return HP_OK;
}

/* ---- what comes out ---- */

static hp_status summarise(campaign *c, result *out) {
    const int n = c->n_pairs;
    out->n_pairs = n;
    TRY(bench_summarise(c->b, c->pool, n * c->n_ours, 0, (uint64_t)c->wrong, out));
    out->time_us = median(c->ours, n);
    out->peer_wrong = (uint64_t)c->peer_wrong;
    if (isnan(c->theirs[0])) {
        out->peer_us = out->ratio = out->ratio_least = out->ratio_most = NAN;
        return HP_OK;
    }
    out->peer_us = median(c->theirs, n);
    out->ratio = median(c->ratios, n); /* sorted now */
    out->ratio_least = c->ratios[0];
    out->ratio_most = c->ratios[n - 1];
    return HP_OK;
}

static hp_status check_ours(campaign *c) {
    uint64_t wrong = 0;
    if (c->b->o->checks)
        TRY(bench_check(c->b, &wrong));
    c->wrong += (double)wrong;
    return HP_OK;
}

/* Behind pair k: has the peer been far behind in the last two? Short ones may fall into a moment
 * that is not like others, and cost nothing: of these --pairs are taken in any case. */
static bool is_enough(const campaign *c, int k) {
    const double enough = c->b->enough;
    const int asked = c->b->o->n_pairs;
    const int fewest = c->n_pairs > asked && asked > 2 ? asked : 2;
    return enough > 0 && k + 1 >= fewest && c->ratios[k - 1] >= enough && c->ratios[k] >= enough;
}

static hp_status run(campaign *c, result *out_result) {
    for (int k = 0; k < c->n_pairs; k++) {
        TRY(one_pair(c, k));
        if (is_enough(c, k))
            c->n_pairs = k + 1;
    }
    TRY(check_ours(c));
    return summarise(c, out_result);
}

static hp_status take_memory(campaign *c) {
    const size_t n = (size_t)c->n_pairs, n_ours = (size_t)c->n_ours;
    double *all = calloc(3 * n + n * n_ours + 2 * n_ours, sizeof *all);
    if (!all)
        return fail(HP_ERR_MEMORY, "expected memory for %d pairs", c->n_pairs);
    c->ours = all;
    c->theirs = all + n;
    c->ratios = all + 2 * n;
    c->pool = all + 3 * n;
    c->turned = c->pool + n * n_ours;
    return HP_OK;
}

hp_status compare(bench *b, result *out_result) {
    campaign c = {.b = b,
                  .turn = {.what = b->op->what,
                           .dtype = b->dtype,
                           .reduce = b->reduce,
                           .count = b->count,
                           .is_classic = b->o->is_classic,
                           .is_in_place = b->o->is_in_place && b->op->has_in_place,
                           .checks = b->o->checks,
                           .root = b->o->root}};
    TRY(check_ours(&c));
    TRY(choose_amounts(&c));
    hp_status status = agree(b->world, take_memory(&c));
    if (c.ours && status >= 0)
        status = run(&c, out_result);
    free(c.ours);
    return status;
}

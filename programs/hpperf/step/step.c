/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/step/step.c - all modes and the peer in turns, the medians, and the rows.
 *
 * Every second pair goes through the modes the other way, so that none always comes behind the
 * peer. A ratio is the peer's turn over ours of the same pair; the median of ratios is printed, not
 * the ratio of medians.
 */
#include "step.h"
#include "../../perf/median.h"
#include "../fail.h"

#include <math.h>
#include <stdlib.h>

typedef struct peer_turn {
    double step_ms, calls_ms, wrong;
} peer_turn;

typedef struct campaign {
    hp_world *world;
    const step_options *o;
    beside *peer;
    step_model *models[STEP_MOST_MODES];
    double *ours[STEP_MOST_MODES]; /* [n_pairs], ms of a step */
    double wrong[STEP_MOST_MODES];
    peer_turn *theirs; /* [n_pairs] */
    double *column;    /* [n_pairs] */
} campaign;

/* ---- medians ---- */

/* Of our step; of the peer's; of the peer's over ours: those that apply are not NULL. */
static double median_of(const campaign *c, const double *ours, const double *theirs) {
    const size_t stride = sizeof *c->theirs / sizeof(double);
    for (int k = 0; k < c->o->n_pairs; k++) {
        const double mine = ours ? ours[k] : 1;
        c->column[k] = theirs ? theirs[(size_t)k * stride] / mine : mine;
    }
    return median(c->column, c->o->n_pairs);
}

/* ---- rows ---- */

static void print_head(const campaign *c) {
    const step_options *o = c->o;
    if (o->as_json)
        return;
    printf("# step: %d ranks, %d units of %llu bytes in %d parameters, %s, %d pairs of %d steps\n",
           hp_world_size(c->world), o->n_units, (unsigned long long)o->width_bytes, o->n_params,
           o->is_threaded ? "threads" : "inline", o->n_pairs, o->n_steps);
    if (c->peer)
        printf("# beside %s: %s\n", o->beside->name, beside_version(c->peer));
    printf("# %-15s %-15s %9s", "comm", "mode", "ours ms");
    if (c->peer)
        printf(" %9s %9s %7s %7s", "peer ms", "calls ms", "ratio", "calls");
    printf(" %6s\n", "wrong");
}

static void print_table_row(const campaign *c, int i) {
    const double *ours = c->ours[i];
    printf("  %-15s %-15s %9.3f", hp_mode_name(c->o->modes[i]),
           hp_mode_name(step_model_mode(c->models[i])), median_of(c, ours, NULL));
    if (c->peer)
        printf(" %9.3f %9.3f %7.2f %7.2f", median_of(c, NULL, &c->theirs->step_ms),
               median_of(c, NULL, &c->theirs->calls_ms), median_of(c, ours, &c->theirs->step_ms),
               median_of(c, ours, &c->theirs->calls_ms));
    printf(" %6.0f\n", c->wrong[i]);
}

static void print_json_row(const campaign *c, int i) {
    const step_options *o = c->o;
    const double *ours = c->ours[i];
    printf("{\"op\": \"step\", \"comm\": \"%s\", \"mode\": \"%s\", \"ranks\": %d, \"units\": %d, "
           "\"params\": %d, \"width\": %llu, \"executor\": \"%s\", \"pairs\": %d, \"steps\": %d, "
           "\"ours_ms\": %.4f",
           hp_mode_name(o->modes[i]), hp_mode_name(step_model_mode(c->models[i])),
           hp_world_size(c->world), o->n_units, o->n_params, (unsigned long long)o->width_bytes,
           o->is_threaded ? "thread" : "inline", o->n_pairs, o->n_steps, median_of(c, ours, NULL));
    if (c->peer)
        printf(", \"peer\": \"%s\", \"peer_version\": \"%s\", \"peer_ms\": %.4f, "
               "\"peer_calls_ms\": %.4f, \"ratio\": %.4f, \"ratio_calls\": %.4f",
               o->beside->name, beside_version(c->peer), median_of(c, NULL, &c->theirs->step_ms),
               median_of(c, NULL, &c->theirs->calls_ms), median_of(c, ours, &c->theirs->step_ms),
               median_of(c, ours, &c->theirs->calls_ms));
    printf(", \"wrong\": %.0f}\n", c->wrong[i]);
}

/* ---- turns ---- */

static hp_status peer_turns(campaign *c, peer_turn *out_turn) {
    static const char *const names[] = {"step_ms", "calls_ms", "wrong"};
    double values[3];
    if (!c->peer)
        return HP_OK;
    TRY(beside_turn(c->peer, "step", names, 3, values));
    *out_turn = (peer_turn){values[0], values[1], values[2]};
    return HP_OK;
}

static hp_status one_pair(campaign *c, int pair) {
    for (int k = 0; k < c->o->n_modes; k++) {
        const int i = pair % 2 ? c->o->n_modes - 1 - k : k;
        double wrong;
        TRY(step_model_turn(c->models[i], &c->ours[i][pair], &wrong));
        c->wrong[i] = fmax(c->wrong[i], wrong);
    }
    return peer_turns(c, &c->theirs[pair]);
}

/* Before the first pair: pages are there, and what each library makes at its first call. */
static hp_status warm_up(campaign *c) {
    for (int i = 0; i < c->o->n_modes; i++) {
        double ms, wrong;
        TRY(step_model_turn(c->models[i], &ms, &wrong));
    }
    return peer_turns(c, &c->theirs[0]);
}

static hp_status measure(campaign *c) {
    for (int i = 0; i < c->o->n_modes; i++)
        TRY(step_model_create(c->world, c->o, c->o->modes[i], &c->models[i]));
    TRY(warm_up(c));
    for (int pair = 0; pair < c->o->n_pairs; pair++)
        TRY(one_pair(c, pair));
    return c->o->trace ? step_model_write_trace(c->models[0]) : HP_OK;
}

static void print(const campaign *c) {
    print_head(c);
    for (int i = 0; i < c->o->n_modes; i++)
        (c->o->as_json ? print_json_row : print_table_row)(c, i);
}

/* ---- all of it ---- */

/* The peer's elements are counted as ours are: a comparison with what is wrong is none. */
static uint64_t count_wrong(const campaign *c) {
    double n = 0;
    for (int i = 0; i < c->o->n_modes; i++)
        n += c->wrong[i];
    for (int k = 0; k < c->o->n_pairs; k++)
        n += c->theirs[k].wrong;
    return (uint64_t)n;
}

static hp_status take_memory(campaign *c) {
    const size_t n = (size_t)c->o->n_pairs;
    bool is_there = true;
    for (int i = 0; i < c->o->n_modes; i++)
        is_there &= (c->ours[i] = calloc(n, sizeof *c->ours[i])) != NULL;
    c->theirs = calloc(n, sizeof *c->theirs);
    c->column = calloc(n, sizeof *c->column);
    return is_there && c->theirs && c->column
               ? HP_OK
               : fail(HP_ERR_MEMORY, "expected memory for %d pairs", c->o->n_pairs);
}

static void release(campaign *c) {
    for (int i = 0; i < c->o->n_modes; i++) {
        step_model_destroy(c->models[i]);
        free(c->ours[i]);
    }
    free(c->theirs);
    free(c->column);
}

hp_status step_open_peer(hp_world *world, const step_options *o, beside **out_peer) {
    char arguments[200];
    *out_peer = NULL;
    if (!o->beside)
        return HP_OK;
    snprintf(arguments, sizeof arguments, "step --units %d --params %d --width %llu --steps %d",
             o->n_units, o->n_params, (unsigned long long)o->width_bytes, o->n_steps);
    return beside_open(world, o->beside, arguments, o->timeout_ms, out_peer);
}

hp_status step(hp_world *world, const step_options *o, beside *peer, uint64_t *out_wrong) {
    campaign c = {.world = world, .o = o, .peer = peer};
    hp_status status = agree(world, take_memory(&c));
    if (status >= 0)
        status = measure(&c);
    if (status >= 0) {
        *out_wrong = count_wrong(&c);
        if (hp_world_rank(world) == 0)
            print(&c);
    }
    release(&c);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/fused/run.c - both forms in turns, the medians, and the rows.
 *
 * A sample is a call's time on the slowest rank; with --delay, of those that do not come late. A
 * turn is the median of a few calls, more of those that are short. Every second pair begins with
 * the other form.
 */
#include "../../perf/median.h"
#include "../fail.h"
#include "fused.h"

#include <hyperparallel/coll.h>

#include <math.h>
#include <stdlib.h>

enum { MOST_PAIRS = 100, MOST_CALLS = 15 };

typedef struct campaign {
    hp_world *world;
    const fused_options *o;
    const fused_shape *shape;
    int64_t tokens;
    forms *forms;
    double late_us; /* of the last rank */
    int n_calls;    /* of a turn */
    uint64_t wrong;
    double us[2][MOST_PAIRS], share[MOST_PAIRS], ratio[MOST_PAIRS];
} campaign;

static hp_status most(const campaign *c, double *x) {
    return hp_all_reduce(hp_world_group(c->world), x, x, 1, HP_FP64, HP_MAX);
}

static bool is_late(const campaign *c) {
    return c->o->delays && hp_world_rank(c->world) == hp_world_size(c->world) - 1;
}

/* *out_share: of the collective in the separate form. */
static hp_status turn(campaign *c, form which, double *out_us, double *out_share) {
    double us[MOST_CALLS], share[MOST_CALLS];
    for (int i = 0; i < c->n_calls; i++) {
        double collective_us;
        TRY(forms_call(c->forms, which, is_late(c) ? c->late_us : 0, &us[i], &collective_us));
        if (is_late(c))
            us[i] = collective_us = 0;
        TRY(most(c, &us[i]));
        TRY(most(c, &collective_us));
        share[i] = collective_us / us[i];
    }
    *out_us = median(us, c->n_calls);
    *out_share = median(share, c->n_calls);
    return HP_OK;
}

/* A whole product of every rank at once: how late the last rank comes, and how many calls make a
 * turn of some 20 ms. */
static hp_status warm_up(campaign *c) {
    double us, share;
    const bool delays = c->o->delays;
    c->late_us = 0;
    c->n_calls = 3;
    TRY(turn(c, PRODUCT, &us, &share));
    TRY(forms_compare(c->forms, &c->wrong));
    double wrong = (double)c->wrong;
    TRY(hp_all_reduce(hp_world_group(c->world), &wrong, &wrong, 1, HP_FP64, HP_SUM));
    c->wrong = (uint64_t)wrong;
    TRY(turn(c, PRODUCT, &us, &share));
    c->late_us = delays ? us : 0;
    TRY(most(c, &us));
    c->n_calls = us > 10e3 ? 1 : us > 2e3 ? 5 : MOST_CALLS;
    return most(c, &c->late_us);
}

static hp_status measure(campaign *c) {
    TRY(warm_up(c));
    for (int pair = 0; pair < c->o->n_pairs; pair++) {
        double unused;
        for (int k = 0; k < 2; k++) {
            const form which = (form)((pair + k) % 2);
            TRY(turn(c, which, &c->us[which][pair], which == SEPARATE ? &c->share[pair] : &unused));
        }
        c->ratio[pair] = c->us[SEPARATE][pair] / c->us[FUSED][pair];
    }
    return HP_OK;
}

/* ---- printing ---- */

static const char *op_name(const fused_options *o) {
    return o->is_scatter ? "matmul_rs" : "ag_matmul";
}

static void print_head(const hp_world *world, const fused_options *o) {
    if (o->as_json)
        return;
    printf("# %s: %d ranks, %s, %d pairs%s\n", op_name(o), hp_world_size(world),
           hp_dtype_name(o->dtype), o->n_pairs, o->delays ? ", the last rank comes late" : "");
    printf("# %-12s %7s %6s %6s %11s %11s %7s %7s %6s\n", "shape", "tokens", "n", "k", "fused us",
           "separate us", "share", "ratio", "wrong");
}

static void print_row(campaign *c) {
    const fused_options *o = c->o;
    const int n = o->n_pairs, n_ranks = hp_world_size(c->world);
    const long long width = c->shape->n / (o->is_scatter ? 1 : n_ranks);
    const long long depth = c->shape->k / (o->is_scatter ? n_ranks : 1);
    const double fused = median(c->us[FUSED], n), separate = median(c->us[SEPARATE], n);
    const double share = median(c->share, n), ratio = median(c->ratio, n);
    if (!o->as_json) {
        printf("  %-12s %7lld %6lld %6lld %11.1f %11.1f %7.3f %7.3f %6llu\n", c->shape->name,
               (long long)c->tokens, width, depth, fused, separate, share, ratio,
               (unsigned long long)c->wrong);
        return;
    }
    printf("{\"op\": \"%s\", \"shape\": \"%s\", \"ranks\": %d, \"tokens\": %lld, \"n\": %lld, "
           "\"k\": %lld, \"dtype\": \"%s\", \"pairs\": %d, \"fused_us\": %.2f, "
           "\"separate_us\": %.2f, \"collective_share\": %.4f, \"ratio\": %.4f, ",
           op_name(o), c->shape->name, n_ranks, (long long)c->tokens, width, depth,
           hp_dtype_name(o->dtype), n, fused, separate, share, ratio);
    if (o->delays)
        printf("\"delay_us\": %.2f, ", c->late_us);
    printf("\"wrong\": %llu}\n", (unsigned long long)c->wrong);
}

/* ---- all of it ---- */

static hp_status one_row(campaign *c) {
    hp_status status =
        agree(c->world, forms_create(c->world, c->o, c->shape, c->tokens, &c->forms));
    if (status >= 0)
        status = measure(c);
    const hp_status ended = forms_destroy(c->forms);
    c->forms = NULL;
    if (status >= 0 && ended >= 0 && hp_world_rank(c->world) == 0) {
        print_row(c);
        fflush(stdout);
    }
    return status < 0 ? status : ended;
}

hp_status fused_job(hp_world *world, const fused_options *o, uint64_t *out_wrong) {
    campaign c = {.world = world, .o = o};
    if (hp_world_rank(world) == 0)
        print_head(world, o);
    for (int i = 0; i < o->n_shapes; i++)
        for (int t = 0; t < o->n_tokens; t++) {
            c.shape = o->shapes[i];
            c.tokens = (int64_t)o->tokens[t];
            TRY(one_row(&c));
            *out_wrong += c.wrong;
        }
    return HP_OK;
}

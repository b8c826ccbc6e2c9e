/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/fused/run.c - both forms in turns, the medians, and the rows.
 *
 * A sample is the time from the first rank's begin to the last one's end, with --delay of those
 * that do not come late: where ranks share cores some begin when others are through, and what a
 * rank measures by itself is not the whole. A turn is the median of a few calls, more of those that
 * are short. A pair is a turn of each form, and of the product alone; the order turns from pair to
 * pair.
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
    double us[N_FORMS][MOST_PAIRS], share[MOST_PAIRS], ratio[MOST_PAIRS];
} campaign;

static bool is_late(const campaign *c) {
    return c->o->delays && hp_world_rank(c->world) == hp_world_size(c->world) - 1;
}

/* One call, as long as it takes all ranks. */
static hp_status call(campaign *c, form which, double *out_us) {
    double begin_us, end_us;
    TRY(forms_call(c->forms, which, is_late(c) ? c->late_us : 0, &begin_us, &end_us));
    double times[] = {-begin_us, is_late(c) ? begin_us : end_us};
    TRY(hp_all_reduce(hp_world_group(c->world), times, times, 2, HP_FP64, HP_MAX));
    *out_us = times[1] + times[0];
    return HP_OK;
}

static hp_status turn(campaign *c, form which, double *out_us) {
    double us[MOST_CALLS];
    for (int i = 0; i < c->n_calls; i++)
        TRY(call(c, which, &us[i]));
    *out_us = median(us, c->n_calls);
    return HP_OK;
}

/* Are the results alike? The first calls of each form as well. */
static hp_status check(campaign *c) {
    TRY(forms_compare(c->forms, &c->wrong));
    double wrong = (double)c->wrong;
    TRY(hp_all_reduce(hp_world_group(c->world), &wrong, &wrong, 1, HP_FP64, HP_SUM));
    c->wrong = (uint64_t)wrong;
    return HP_OK;
}

/* A whole product of every rank at once: how late the last rank comes, and how many calls make a
 * turn of some 20 ms. */
static hp_status warm_up(campaign *c) {
    double us;
    c->late_us = 0;
    c->n_calls = 1;
    TRY(check(c));
    TRY(turn(c, PRODUCT, &us));
    c->n_calls = us > 10e3 ? 1 : us > 2e3 ? 5 : MOST_CALLS;
    if (!c->o->delays)
        return HP_OK;
    c->n_calls = c->n_calls < 3 ? 3 : c->n_calls;
    TRY(turn(c, PRODUCT, &us));
    c->late_us = us;
    return HP_OK;
}

static hp_status one_pair(campaign *c, int pair) {
    for (int k = 0; k < N_FORMS; k++) {
        const form which = (form)((pair + k) % N_FORMS);
        if (which == PRODUCT && c->o->delays)
            c->us[which][pair] = c->late_us;
        else
            TRY(turn(c, which, &c->us[which][pair]));
    }
    c->ratio[pair] = c->us[SEPARATE][pair] / c->us[FUSED][pair];
    c->share[pair] = 1 - c->us[PRODUCT][pair] / c->us[SEPARATE][pair];
    return HP_OK;
}

static hp_status measure(campaign *c) {
    TRY(warm_up(c));
    for (int pair = 0; pair < c->o->n_pairs; pair++)
        TRY(one_pair(c, pair));
    return HP_OK;
}

/* ---- printing ---- */

static void print_head(const hp_world *world, const fused_options *o) {
    if (o->as_json)
        return;
    printf("# %s: %d ranks, %s, %d pairs%s\n", fused_op_name(o->op), hp_world_size(world),
           hp_dtype_name(o->dtype), o->n_pairs, o->delays ? ", the last rank comes late" : "");
    printf("# %-12s %7s %6s %6s %11s %11s %11s %7s %7s %6s\n", "shape", "tokens", "n", "k",
           "fused us", "separate us", o->delays ? "late us" : "product us", "share", "ratio",
           "wrong");
}

/* The medians over the pairs. */
typedef struct row {
    const fused_shape *shape;
    const char *op, *dtype;
    int n_ranks, n_pairs;
    long long tokens, n, k;
    double us[N_FORMS], share, ratio, ratio_least, ratio_most;
    unsigned long long wrong;
} row;

static row row_of(campaign *c) {
    const fused_options *o = c->o;
    const int n = o->n_pairs, n_ranks = hp_world_size(c->world);
    const bool is_scatter = c->shape->is_scatter;
    const double ratio = median(c->ratio, n); /* which puts them in order */
    row r = {.shape = c->shape,
             .op = fused_op_name(o->op),
             .dtype = hp_dtype_name(o->dtype),
             .n_ranks = n_ranks,
             .n_pairs = n,
             .tokens = c->tokens,
             .n = c->shape->n / (is_scatter ? 1 : n_ranks),
             .k = c->shape->k / (is_scatter ? n_ranks : 1),
             .share = median(c->share, n),
             .ratio = ratio,
             .ratio_least = c->ratio[0],
             .ratio_most = c->ratio[n - 1],
             .wrong = c->wrong};
    for (int i = 0; i < N_FORMS; i++)
        r.us[i] = median(c->us[i], n);
    return r;
}

static void print_text(const row *r, bool delays) {
    printf("  %-12s %7lld %6lld %6lld %11.1f %11.1f %11.1f ", r->shape->name, r->tokens, r->n, r->k,
           r->us[FUSED], r->us[SEPARATE], r->us[PRODUCT]);
    if (delays)
        printf("%7s", "-");
    else
        printf("%7.3f", r->share);
    printf(" %7.3f %6llu\n", r->ratio, r->wrong);
}

static void print_json(const row *r, bool delays) {
    printf("{\"op\": \"%s\", \"shape\": \"%s\", \"ranks\": %d, \"tokens\": %lld, \"n\": %lld, "
           "\"k\": %lld, \"dtype\": \"%s\", \"pairs\": %d, \"fused_us\": %.2f, "
           "\"separate_us\": %.2f, ",
           r->op, r->shape->name, r->n_ranks, r->tokens, r->n, r->k, r->dtype, r->n_pairs,
           r->us[FUSED], r->us[SEPARATE]);
    if (delays)
        printf("\"delay_us\": %.2f, ", r->us[PRODUCT]);
    else
        printf("\"product_us\": %.2f, \"collective_share\": %.4f, ", r->us[PRODUCT], r->share);
    printf("\"ratio\": %.4f, \"ratio_least\": %.4f, \"ratio_most\": %.4f, \"wrong\": %llu}\n",
           r->ratio, r->ratio_least, r->ratio_most, r->wrong);
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
        const row r = row_of(c);
        (c->o->as_json ? print_json : print_text)(&r, c->o->delays);
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

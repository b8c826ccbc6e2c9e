/* SPDX-License-Identifier: Apache-2.0
 *
 * random_loop.h - a random model and a random training loop, from one seed.
 *
 * Both are data that all ranks and both runs of a comparison have alike: parameters of every sort
 * in units, and a list of calls that is in order whatever the mode, with at most `room` units held
 * beside the one that computes. random_fsdp.h plays it.
 */
#ifndef RANDOM_LOOP_H
#define RANDOM_LOOP_H

#include "base/base.h"

#include <hyperparallel/hyperparallel.h>
#include <stdio.h>
#include <string.h>

enum { LOOP_UNITS = 6, LOOP_PARAMS = 5, LOOP_STEPS = 5, LOOP_CALLS = 600, LOOP_DIMS = 3 };

static inline int draw(uint64_t *random, int n) {
    return (int)((hpi_random_next(random) >> 8) % (uint64_t)n);
}
static inline bool draw_chance(uint64_t *random, int percent) {
    return draw(random, 100) < percent;
}

/* ---- the model --------------------------------------------------------------------------- */

typedef struct loop_param {
    char name[16];
    int n_dims, shard_dim, owner; /* owner: number in the unit of what it is tied to; -1 */
    int64_t shape[LOOP_DIMS];
    hp_dtype dtype;
    bool is_frozen, is_ignored;
    uint64_t n_elements, seed;
    uint64_t first; /* of its elements among those of all parameters */
} loop_param;

typedef struct loop_unit {
    loop_param params[LOOP_PARAMS];
    int n_params, reshard, n_prefetch, prefetch[3]; /* n_prefetch -1: no list */
    hp_reduce reduce;
    double factor;
} loop_unit;

typedef struct loop_model {
    loop_unit units[LOOP_UNITS];
    int n_units;
    uint64_t n_elements;
} loop_model;

static inline void draw_shape(uint64_t *random, int n_ranks, loop_param *p) {
    p->n_dims = draw(random, LOOP_DIMS + 1);
    for (int d = 0; d < p->n_dims; d++)
        p->shape[d] = draw_chance(random, 4) ? 0 : 1 + draw(random, d ? 5 : 40);
    p->shard_dim = draw_chance(random, 15) ? HP_REPLICATED : 0;
    if (p->n_dims > 1 && draw_chance(random, 30)) { /* every mesh of the ranks must divide it */
        p->shard_dim = 1 + draw(random, p->n_dims - 1);
        p->shape[p->shard_dim] = n_ranks * (1 + draw(random, 2));
    }
}

static inline void draw_param(uint64_t *random, int n_ranks, loop_unit *unit, int j) {
    static const hp_dtype trained[] = {HP_FP32, HP_FP32, HP_BF16, HP_FP64};
    loop_param *p = &unit->params[j];
    p->owner = j && draw_chance(random, 12) ? draw(random, j) : -1;
    if (p->owner >= 0) {
        const int owner = unit->params[p->owner].owner;
        const int first = owner >= 0 ? owner : p->owner;
        *p = unit->params[first];
        p->owner = first;
        if (!p->is_ignored)
            return;
        p->owner = -1; /* what is ignored cannot be tied */
    }
    draw_shape(random, n_ranks, p);
    p->is_frozen = draw_chance(random, 20);
    p->is_ignored = draw_chance(random, 5);
    p->dtype = p->is_frozen ? (hp_dtype)draw(random, HP_UINT8 + 1) : trained[draw(random, 4)];
}

static inline void count_elements(loop_param *p, uint64_t *total) {
    p->n_elements = 1;
    for (int d = 0; d < p->n_dims; d++)
        p->n_elements *= (uint64_t)p->shape[d];
    p->first = *total;
    *total += p->n_elements;
}

static inline void draw_unit(uint64_t *random, int n_ranks, loop_model *model, int u) {
    loop_unit *unit = &model->units[u];
    unit->n_params = draw(random, LOOP_PARAMS + 1);
    if (u == 0 && !unit->n_params)
        unit->n_params = 1;
    unit->reshard = draw(random, 4) - 1 > 0 ? 1 : draw(random, 3) - 1;
    unit->reduce = draw_chance(random, 70) ? HP_AVG : HP_SUM;
    unit->factor = draw_chance(random, 70) ? 1.0 : 0.3;
    unit->n_prefetch = draw_chance(random, 15) ? draw(random, 4) : -1;
    for (int k = 0; k < unit->n_prefetch; k++)
        unit->prefetch[k] = draw(random, model->n_units);
    for (int j = 0; j < unit->n_params; j++) {
        loop_param *p = &unit->params[j];
        draw_param(random, n_ranks, unit, j);
        if (u == 0 && j == 0) /* something must train */
            *p = (loop_param){.n_dims = 1, .shape = {17}, .dtype = HP_FP32, .owner = -1};
        snprintf(p->name, sizeof p->name, "u%d.p%d", u, j);
        p->seed = hpi_random_next(random);
        count_elements(p, &model->n_elements);
    }
}

static inline void draw_model(uint64_t *random, int n_ranks, loop_model *model) {
    memset(model, 0, sizeof *model);
    model->n_units = 1 + draw(random, LOOP_UNITS);
    for (int u = 0; u < model->n_units; u++)
        draw_unit(random, n_ranks, model, u);
}

/* ---- the loop ---------------------------------------------------------------------------- */

typedef enum loop_what {
    LOOP_BEGIN, /* number: the pass */
    LOOP_END,
    LOOP_FORWARD,  /* unit; number: a unit within it, -1 */
    LOOP_BACKWARD, /* the same */
    LOOP_RECOMPUTE,
    LOOP_HOLD,     /* number: wait */
    LOOP_LET_GO,   /* number: it is read before that */
    LOOP_SET_PASS, /* number: the pass, -1 */
    LOOP_CLIP,     /* number: 0 for its norm alone */
    LOOP_UPDATE,
    LOOP_RESET
} loop_what;

typedef struct loop_call {
    loop_what what;
    int unit, number;
    bool is_last; /* LOOP_END of a step that is like the one before */
} loop_call;

typedef struct loop {
    loop_call calls[LOOP_CALLS];
    int n_calls;
    bool has_deferred;
    /* while it is drawn */
    uint64_t random;
    int n_units, room;
    bool is_repeating;
    bool is_held[LOOP_UNITS], is_waited[LOOP_UNITS];
    int own_pass[LOOP_UNITS];
    int uses[2 * LOOP_UNITS], n_uses;
    int n_left[LOOP_UNITS]; /* backwards to come */
    bool was_used[LOOP_UNITS];
} loop;

static inline loop_call *loop_add(loop *l, loop_what what, int unit, int number) {
    loop_call *call = &l->calls[l->n_calls < LOOP_CALLS - 1 ? l->n_calls++ : LOOP_CALLS - 1];
    *call = (loop_call){.what = what, .unit = unit, .number = number};
    return call;
}

static inline int loop_n_held(const loop *l) {
    int n = 0;
    for (int u = 0; u < l->n_units; u++)
        n += l->is_held[u];
    return n;
}

/* May it have another forward? */
static inline bool loop_is_open(const loop *l, int unit) {
    return l->n_left[unit] || !l->was_used[unit];
}

/* A unit whose last backward has been is left alone: in mode mapped it cannot be read any more. */
static inline void loop_by_hand(loop *l, bool is_backward) {
    const int u = draw(&l->random, l->n_units);
    if (!draw_chance(&l->random, 15))
        return;
    if (l->is_held[u])
        loop_add(l, LOOP_LET_GO, u, l->is_waited[u] && (!is_backward || loop_is_open(l, u)));
    else if (loop_n_held(l) < l->room && (!is_backward || loop_is_open(l, u)))
        loop_add(l, LOOP_HOLD, u, l->is_waited[u] = draw(&l->random, 2));
    else
        return;
    l->is_held[u] = !l->is_held[u];
}

static inline void loop_draw_uses(loop *l) {
    const bool is_in_order = draw_chance(&l->random, 60);
    l->n_uses = 0;
    memset(l->n_left, 0, sizeof l->n_left);
    memset(l->was_used, 0, sizeof l->was_used);
    for (int i = 0; i < l->n_units; i++)
        if (draw_chance(&l->random, 88))
            l->uses[l->n_uses++] = is_in_order ? i : draw(&l->random, l->n_units);
    while (!l->n_uses || (l->n_uses < 2 * LOOP_UNITS && draw_chance(&l->random, 20)))
        l->uses[l->n_uses++] = draw(&l->random, l->n_units);
}

static inline void loop_forward(loop *l, int unit) {
    l->n_left[unit]++;
    l->was_used[unit] = true;
}

static inline void loop_forwards(loop *l) {
    for (int i = 0; i < l->n_uses; i++) {
        const int next = i + 1 < l->n_uses ? l->uses[i + 1] : l->uses[i];
        const bool is_nested =
            next != l->uses[i] && l->room && !loop_n_held(l) && draw_chance(&l->random, 8);
        loop_by_hand(l, false);
        if (loop_n_held(l) && is_nested) {
            i--; /* drawn again, with less room */
            continue;
        }
        loop_add(l, LOOP_FORWARD, l->uses[i], is_nested ? next : -1);
        loop_forward(l, l->uses[i]);
        if (is_nested)
            loop_forward(l, l->uses[++i]);
    }
}

static inline void loop_backwards(loop *l) {
    for (int i = l->n_uses; i-- > 0;) {
        const int unit = l->uses[i], other = l->uses[draw(&l->random, l->n_uses)];
        loop_by_hand(l, true);
        if (l->n_left[other] && draw_chance(&l->random, 15))
            loop_add(l, LOOP_RECOMPUTE, other, 0);
        if (loop_is_open(l, other) && draw_chance(&l->random, 5)) {
            loop_add(l, LOOP_FORWARD, other, -1);
            loop_forward(l, other);
        }
        if (!l->n_left[unit] || draw_chance(&l->random, 8))
            continue;
        const bool is_nested = other != unit && l->n_left[other] && l->room && !loop_n_held(l) &&
                               draw_chance(&l->random, 8);
        loop_add(l, LOOP_BACKWARD, unit, is_nested ? other : -1);
        l->n_left[unit]--;
        l->n_left[other] -= is_nested;
    }
}

static inline void loop_pass(loop *l, hp_pass pass, bool is_left) {
    loop_add(l, LOOP_BEGIN, -1, (int)pass);
    loop_draw_uses(l);
    loop_forwards(l);
    if (pass != HP_EVALUATE && (!is_left || draw(&l->random, 2)))
        loop_backwards(l);
    loop_add(l, is_left ? LOOP_RESET : LOOP_END, -1, 0);
    memset(l->is_held, 0, sizeof l->is_held);
    for (int u = 0; u < l->n_units; u++)
        l->has_deferred |= l->own_pass[u] == HP_DEFER_REPLICATE;
    l->has_deferred |= pass == HP_DEFER_REPLICATE;
}

static inline void loop_set_passes(loop *l) {
    for (int u = 0; u < l->n_units; u++) {
        if (l->is_repeating || !draw_chance(&l->random, 10))
            continue;
        static const int passes[] = {-1, -1, HP_SYNC, HP_NO_SYNC, HP_DEFER_REPLICATE};
        l->own_pass[u] = passes[draw(&l->random, 5)];
        loop_add(l, LOOP_SET_PASS, u, l->own_pass[u]);
    }
}

static inline bool loop_has_gradients(const loop *l) {
    for (int u = 0; u < l->n_units; u++)
        if (l->own_pass[u] <= HP_SYNC)
            return true;
    return false;
}

/* The passes of a step, up to the one that is HP_SYNC. */
static inline void loop_step(loop *l) {
    loop_set_passes(l);
    if (draw_chance(&l->random, 25))
        loop_pass(l, HP_EVALUATE, false);
    while (draw_chance(&l->random, 35))
        loop_pass(l, draw(&l->random, 2) ? HP_NO_SYNC : HP_DEFER_REPLICATE, false);
    loop_pass(l, HP_SYNC, false);
}

static inline void loop_update(loop *l) {
    if (!loop_has_gradients(l))
        return;
    loop_add(l, LOOP_CLIP, -1, draw(&l->random, 2));
    if (draw_chance(&l->random, 85))
        loop_add(l, LOOP_UPDATE, -1, 0);
}

/* A repeated loop has the same passes in each of its steps, drawn from the same numbers. */
static inline void draw_loop(uint64_t seed, int n_units, int room, bool is_repeating, loop *l) {
    memset(l, 0, sizeof *l);
    l->n_units = n_units;
    l->room = room;
    l->is_repeating = is_repeating;
    for (int u = 0; u < n_units; u++)
        l->own_pass[u] = -1;
    int n_alike = 0;
    uint64_t other = seed ^ 0x5555;
    for (int step = 0; step < LOOP_STEPS; step++) {
        l->random = is_repeating ? seed : seed + (uint64_t)step * 977;
        loop_step(l);
        l->calls[l->n_calls - 1].is_last = is_repeating && ++n_alike > 2;
        l->random = other;
        loop_update(l);
        if (draw_chance(&l->random, 12)) {
            /* a HP_SYNC pass that is replayed would have to be like the others */
            loop_pass(l, (hp_pass)(is_repeating ? 1 + draw(&l->random, 3) : draw(&l->random, 4)),
                      true);
            n_alike = 0;
        }
        other = l->random;
    }
}

#endif

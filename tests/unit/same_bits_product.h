/* SPDX-License-Identifier: Apache-2.0
 *
 * same_bits_product.h - SPEC A9 over whole products of settings, for the long tests.
 *
 * A session is one fsdp that goes through every optimizer with every clipping, so it stands for
 * twelve settings. Those that decide the bits change slowest: the oracle trains once for all
 * sessions that must end like it.
 */
#ifndef SAME_BITS_PRODUCT_H
#define SAME_BITS_PRODUCT_H

#include "unit/same_bits.h"

enum { N_PHASES = N_OPTIMIZERS * N_CLIPS };

typedef struct product {
    const factor *factors; /* in the order of change, the fastest first */
    int n_factors;
    int n_steps; /* of each phase */
    /* Choose what the product leaves open; false: this setting is another one. */
    bool (*complete)(setting *s, uint64_t *seed);
} product;

static inline void list_phases(phase *out) {
    for (int k = 0; k < N_PHASES; k++)
        out[k] = (phase){(optimizer_choice)(k % N_OPTIMIZERS), (clip_choice)(k / N_OPTIMIZERS)};
}

/* False after the last. */
static inline bool next_setting(const product *p, setting *s) {
    for (int k = 0; k < p->n_factors; k++) {
        const factor f = p->factors[k];
        if (++s->of[f] < n_values[f])
            return true;
        s->of[f] = 0;
    }
    return false;
}

/* The number of settings that were trained. */
static inline int train_product(const product *p) {
    setting s = {{0}};
    lesson learnt = {0};
    snapshot *expected = NULL;
    phase phases[N_PHASES];
    uint64_t seed = 1;
    int n = 0;
    list_phases(phases);
    do {
        const lesson l = setting_lesson(&s);
        if (!p->complete(&s, &seed))
            continue;
        if (!expected || memcmp(&l, &learnt, sizeof l) != 0) {
            free(expected);
            expected = expect(&l, phases, N_PHASES, p->n_steps);
            learnt = l;
        }
        session one = {s, phases, N_PHASES, p->n_steps, expected};
        ranks_run(N_RANKS, RANKS_THREADS, session_body, &one);
        n += N_PHASES;
    } while (next_setting(p, &s));
    free(expected);
    return n;
}

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * disturbed.h - a training with random delays whose ranks die or stop every few steps and start
 * again on another mesh, in another mode, from the newest checkpoint.
 *
 * Each of its steps must have the loss, and its end the weights, of the run that nothing disturbs.
 */
#ifndef DISTURBED_H
#define DISTURBED_H

#include "fault/restarted.h"

enum { SAVE_EVERY = 5, MOST_STEPS_OF_A_TRY = 12, MOST_DELAY_US = 60 };

/* Every second try stops in order at some step, with a checkpoint or not; the others lose a rank.
 */
static inline void draw_disturbed(attempt *a, uint64_t *random, told *t, int number) {
    const uint64_t n_steps = 1 + random_below(random, MOST_STEPS_OF_A_TRY);
    const uint64_t last = (uint64_t)undisturbed.n_steps, at = t->saved + n_steps;
    *a = (attempt){.told = t, .save_every = SAVE_EVERY, .last_step = at < last ? at : last};
    way_draw(&a->way, random, JOB_RANKS, MOST_DELAY_US);
    if (number % 2 || a->last_step == last)
        return;
    a->cut = CUT_ANYWHERE;
    a->victim = (int)random_below(random, JOB_RANKS);
    a->cut_step = n_steps - 1;
}

static inline void train_disturbed(told *t, int n_steps, ranks_kind kind) {
    uint64_t random = restarted_seed();
    int n_tries = 0, n_cut = 0;
    make_undisturbed(n_steps);
    while (t->saved < (uint64_t)n_steps) {
        attempt a;
        draw_disturbed(&a, &random, t, n_tries);
        const uint64_t begin = t->saved, made_before = t->n_made;
        run_try(&a, kind);
        assert_int_equal(t->begun, begin);
        assert_int_equal(t->saved, (begin + (t->n_made - made_before)) / SAVE_EVERY * SAVE_EVERY);
        n_cut += a.cut != CUT_NOT;
        n_tries++;
    }
    printf("%d steps, %llu made in %d tries, %d of them cut\n", n_steps,
           (unsigned long long)t->n_made, n_tries, n_cut);
    assert_true(n_cut > 0 && n_tries > n_cut);
    way w;
    way_set(&w, 2, JOB_RANKS / 2, HP_FUSED);
    assert_int_equal(load_in(&w, t, 0), n_steps); /* its weights are compared there */
}

#endif

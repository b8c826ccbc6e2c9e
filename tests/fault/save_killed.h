/* SPDX-License-Identifier: Apache-2.0
 *
 * save_killed.h - ranks that are killed at random moments of a save, over and over.
 *
 * test_checkpoint_crash kills before each system call of one rank's save; here processes save
 * together, and one of them, or all, is killed anywhere, also while it waits for the others. Then
 * something loads, the last checkpoint that was reported or the one that was being written, on any
 * mesh and in any mode, and the next try goes on from it with the bits of the undisturbed run.
 */
#ifndef SAVE_KILLED_H
#define SAVE_KILLED_H

#include "fault/restarted.h"

enum { MOST_SAVES = 3 }; /* of a try; it is killed in one of them, or soon after */

static inline void draw_attempt(attempt *a, uint64_t *random, told *t) {
    *a = (attempt){.told = t, .last_step = (uint64_t)undisturbed.n_steps, .save_every = 1};
    way_draw(&a->way, random, JOB_RANKS, 0);
    a->cut = CUT_IN_SAVE;
    a->victim = (int)random_below(random, JOB_RANKS + 1) - 1;
    a->cut_save = random_below(random, MOST_SAVES);
    a->share = (double)random_below(random, 1000) * 1e-3;
}

static inline void kill_while_saving(told *t, int n_kills) {
    uint64_t random = restarted_seed();
    make_undisturbed((MOST_SAVES + 3) * n_kills);
    for (int i = 0; i < n_kills; i++) {
        attempt a;
        way other;
        const uint64_t saved_before = t->saved;
        draw_attempt(&a, &random, t);
        run_try(&a, RANKS_PROCESSES);
        assert_true(t->begun <= saved_before + 1); /* what is lost is the step being saved */
        assert_true(t->begun >= saved_before);
        way_draw(&other, &random, 1 << random_below(&random, 4), 0);
        const uint64_t loaded = load_in(&other, t, 0);
        assert_true(loaded == t->saved || loaded == t->saved + 1);
        assert_true(scratch_count_hidden() <= 2); /* the next save removes what was left */
        t->saved = loaded;
    }
    assert_true(t->n_killed_in_save >= n_kills);
    /* each try makes its first step anew, or the one after it */
    assert_true(t->n_made <= t->saved + (uint64_t)n_kills);
}

/* What is there now, in every mode on every mesh of 1 to 8 ranks; on 4 ranks it goes on. is_full:
 * all of the product, else each mesh and each mode some time. */
static inline void load_everywhere(told *t, bool is_full) {
    int number = 0;
    for (int n = 1; n <= 8; n *= 2)
        for (int n_shards = 1; n_shards <= n; n_shards *= 2)
            for (int mode = 0; mode <= HP_AUTO; mode++) {
                way w;
                if (!is_full && number++ % 4)
                    continue;
                way_set(&w, n / n_shards, n_shards, (hp_mode)mode);
                load_in(&w, t, n == JOB_RANKS ? 2 : 0);
            }
}

#endif

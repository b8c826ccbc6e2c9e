/* SPDX-License-Identifier: Apache-2.0
 *
 * test_mapped_saved.c - what one mode has written, checkpoint or weights, any other reads.
 *
 * In mode mapped a shard is an interval of elements whatever the parameter's shape, so this is
 * where pieces of different kinds meet: rows, columns, intervals that begin inside a row, none at
 * all. A run that goes on from a checkpoint ends with the bits of one that was not interrupted.
 */
#include "unit/scratch.h"
#include "unit/varied_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { SAVED_AFTER = 2, N_STEPS = 4 };

/* Where a model lives. Five shards do not divide the inner dimensions: mapped alone takes them. */
typedef struct place {
    hp_mode mode;
    int n_replicas, n_shards;
} place;
static const place places[] = {
    {HP_PER_PARAM, 1, 3}, {HP_MAPPED, 1, 3}, {HP_MAPPED, 2, 2}, {HP_MAPPED, 1, 5},
    {HP_FUSED, 1, 4},     {HP_MAPPED, 3, 1}, {HP_MAPPED, 1, 2},
};
enum { N_PLACES = sizeof places / sizeof *places };

static char weights_path[96];

typedef struct run {
    place at;
    varied_values middle, end;
} run;

static void steps(const varied *m, hp_optimizer *o, int from, int to) {
    double norm;
    for (int t = from; t < to; t++) {
        varied_pass(m, t, 1);
        RANK_OK(hp_clip_grad_norm(m->fsdp, 1.0, 2.0, &norm));
        RANK_OK(hp_optimizer_step(o, 0.1));
    }
}

static void save_body(hp_world *world, void *argument) {
    run *r = argument;
    varied m;
    hp_optimizer *o;
    varied_create_as(world, r->at.n_replicas, r->at.mode, &m);
    RANK_OK(hp_optimizer_create(m.fsdp, "adamw", NULL, &o));
    steps(&m, o, 0, SAVED_AFTER);
    varied_collect(&m, VARIED_WEIGHTS, &r->middle);
    RANK_OK(hp_checkpoint_save(m.fsdp, o, scratch, 7));
    RANK_OK(hp_weights_save(m.fsdp, weights_path, NULL));
    steps(&m, o, SAVED_AFTER, N_STEPS);
    varied_collect(&m, VARIED_WEIGHTS, &r->end);
    hp_optimizer_destroy(o);
    varied_destroy(&m);
}

static void look_at(const varied *m) {
    RANK_OK(hp_fsdp_begin(m->fsdp, HP_EVALUATE));
    for (int u = 0; u < VARIED_UNITS; u++) {
        RANK_OK(hp_forward_begin(m->units[u]));
        RANK_OK(hp_forward_end(m->units[u]));
    }
    RANK_OK(hp_fsdp_end(m->fsdp));
}

static void load_body(hp_world *world, void *argument) {
    run *r = argument;
    varied m;
    hp_optimizer *o;
    uint64_t step = 0;
    varied_create_as(world, r->at.n_replicas, r->at.mode, &m);
    RANK_OK(hp_optimizer_create(m.fsdp, "adamw", NULL, &o));
    look_at(&m); /* and read what the load writes */
    RANK_OK(hp_weights_load(m.fsdp, weights_path));
    varied_collect(&m, VARIED_WEIGHTS, &r->middle);
    varied_check_casts(&m);
    steps(&m, o, 8, 9); /* away from there */
    RANK_OK(hp_checkpoint_load(m.fsdp, o, scratch, &step));
    RANK_CHECK(step == 7);
    varied_check_casts(&m);
    steps(&m, o, SAVED_AFTER, N_STEPS);
    varied_collect(&m, VARIED_WEIGHTS, &r->end);
    hp_optimizer_destroy(o);
    varied_destroy(&m);
}

static run *run_at(const place *at, ranks_body body) {
    run *r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->at = *at;
    ranks_run(at->n_replicas * at->n_shards, RANKS_THREADS, body, r);
    return r;
}

/* Files of weights hold fp32: what was fp64 is rounded. */
static void expect_weights(const varied_values *loaded, const varied_values *saved) {
    for (int row = 0; row < N_VARIED; row++)
        for (int i = 0; i < VARIED_MOST; i++)
            assert_true(loaded->of[row][i] == (double)(float)saved->of[row][i]);
}

static void any_mode_loads_what_any_other_saved(void **state) {
    (void)state;
    snprintf(weights_path, sizeof weights_path, "%s/weights", scratch);
    for (int from = 0; from < N_PLACES; from++) {
        run *saved = run_at(&places[from], save_body);
        for (int to = 0; to < N_PLACES; to++) {
            run *loaded = run_at(&places[to], load_body);
            expect_weights(&loaded->middle, &saved->middle);
            assert_memory_equal(&loaded->end, &saved->end, sizeof saved->end);
            free(loaded);
        }
        free(saved);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(any_mode_loads_what_any_other_saved, scratch_make,
                                        scratch_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

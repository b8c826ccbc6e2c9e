/* SPDX-License-Identifier: Apache-2.0
 *
 * test_clip.c - the global norm counts every gradient once, with the same bits on every mesh (F6).
 *
 * The oracle sums the whole parameters in long double: tied, frozen and ignored ones left out,
 * replicated ones and replicas once.
 */
#include "unit/varied_model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static const int meshes[][2] = {{1, 1}, {1, 2}, {2, 1}, {1, 3}, {3, 1}, {1, 4}, {2, 2}, {2, 3}};
enum { N_MESHES = sizeof meshes / sizeof *meshes };

typedef struct run {
    int n_replicas;
    double max_norm, p, factor; /* gradients are multiplied by the factor */
    int poison_rank;            /* this world rank's shards get `poison` before clipping */
    double poison;
    double norms[8]; /* by world rank */
    varied_values before, after;
} run;

static long double oracle(double p, double factor) {
    long double sum = 0, largest = 0;
    for (int row = 0; row < N_VARIED; row++)
        for (uint64_t i = 0; i < varied_count(&varied_rows[row]); i++) {
            if (!varied_is_trained(&varied_rows[row]))
                continue;
            const long double g = fabsl((long double)(factor * varied_gradient(row, 1, i)));
            sum += p == 1 ? g : g * g;
            largest = fmaxl(largest, g);
        }
    return isinf(p) ? largest : p == 1 ? sum : sqrtl(sum);
}

/* One element of the last parameter of this rank. */
static void poison_shard(const varied *m, double value) {
    const hp_unit *unit = m->units[1];
    const hpi_param *p = &unit->params[unit->n_params - 1];
    varied_write(hpi_param_grad_shard(unit, p), p->master, 3, value);
}

static void clip(hp_world *world, void *argument) {
    run *r = argument;
    varied m;
    varied_create(world, r->n_replicas, &m);
    varied_pass(&m, 1, r->factor);
    if (hp_world_rank(world) == r->poison_rank)
        poison_shard(&m, r->poison);
    varied_collect(&m, VARIED_GRADS, &r->before);
    RANK_OK(hp_clip_grad_norm(m.fsdp, r->max_norm, r->p, &r->norms[hp_world_rank(world)]));
    varied_collect(&m, VARIED_GRADS, &r->after);
    varied_destroy(&m);
}

static run *clip_on(int mesh, double p, double max_norm, double factor) {
    run *r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->n_replicas = meshes[mesh][0];
    r->p = p;
    r->max_norm = max_norm;
    r->factor = factor;
    r->poison_rank = -1;
    ranks_run(meshes[mesh][0] * meshes[mesh][1], RANKS_THREADS, clip, r);
    for (int rank = 1; rank < meshes[mesh][0] * meshes[mesh][1]; rank++)
        assert_memory_equal(&r->norms[rank], &r->norms[0], sizeof(double));
    return r;
}

static void check_scaled(const run *r, double factor) {
    for (int row = 0; row < N_VARIED; row++)
        for (uint64_t i = 0; i < VARIED_MOST; i++) {
            const double g = r->before.of[row][i];
            const double expected =
                varied_rows[row].dtype == HP_FP64 ? g * factor : (double)((float)g * (float)factor);
            assert_true(r->after.of[row][i] == expected);
        }
}

/* Every p, norms of all sizes: the oracle's value, and one result for all meshes. */
static void f6_norm_is_the_oracles_on_every_mesh(void **state) {
    (void)state;
    static const double ps[] = {1, 2, INFINITY};
    static const double factors[] = {1, 0x1p-100, 0x1p+90};
    for (int k = 0; k < 3; k++)
        for (int f = 0; f < 3; f++) {
            double norm = 0;
            for (int mesh = 0; mesh < N_MESHES; mesh++) {
                run *r = clip_on(mesh, ps[k], INFINITY, factors[f]);
                if (mesh == 0)
                    norm = r->norms[0];
                assert_memory_equal(&r->norms[0], &norm, sizeof norm);
                assert_memory_equal(&r->after, &r->before, sizeof r->after);
                free(r);
            }
            const long double expected = oracle(ps[k], factors[f]);
            assert_true(fabsl(norm - expected) <= 3e-16L * expected);
        }
}

static void gradients_are_scaled_once_by_the_coefficient(void **state) {
    (void)state;
    run *first = NULL;
    for (int mesh = 0; mesh < N_MESHES; mesh++) {
        run *r = clip_on(mesh, 2, 0.75, 1);
        check_scaled(r, 0.75 / (r->norms[0] + 1e-6));
        if (!first)
            first = r;
        assert_memory_equal(&r->after, &first->after, sizeof r->after);
        if (r != first)
            free(r);
    }
    free(first);
}

static void small_norms_are_left_alone(void **state) {
    (void)state;
    const double norm = (double)oracle(2, 1);
    run *r = clip_on(3, 2, norm * 1.5, 1);
    assert_memory_equal(&r->after, &r->before, sizeof r->after);
    free(r);
    r = clip_on(3, 2, 0, 1); /* everything goes */
    check_scaled(r, 0);
    free(r);
    r = clip_on(3, 2, 1, 0); /* no gradient at all: nothing to divide by */
    assert_true(r->norms[0] == 0);
    assert_memory_equal(&r->after, &r->before, sizeof r->after);
    free(r);
}

/* Whichever rank holds it, every rank gets a norm that is not finite, and nothing is scaled. */
static void not_finite_is_told_and_not_scaled(void **state) {
    (void)state;
    static const double poisons[] = {NAN, INFINITY, -INFINITY};
    static const double ps[] = {1, 2, INFINITY};
    for (int rank = 0; rank < 3; rank++)
        for (int k = 0; k < 3; k++) {
            run r = {.n_replicas = 1,
                     .max_norm = 0.5,
                     .p = ps[rank],
                     .factor = 1,
                     .poison_rank = rank,
                     .poison = poisons[k]};
            ranks_run(3, RANKS_THREADS, clip, &r);
            for (int i = 0; i < 3; i++)
                assert_true(k == 0 ? isnan(r.norms[i]) : isinf(r.norms[i]) && r.norms[i] > 0);
            assert_memory_equal(&r.after, &r.before, sizeof r.after);
        }
}

static void misuse(hp_world *world, void *argument) {
    (void)argument;
    varied m;
    double norm = -1;
    varied_create(world, 1, &m);
    RANK_FAILS(hp_clip_grad_norm(m.fsdp, 1, 2, &norm), HP_ERR_STATE);
    RANK_FAILS(hp_clip_grad_norm(NULL, 1, 2, &norm), HP_ERR_ARGUMENT);
    varied_pass(&m, 1, 1);
    RANK_FAILS(hp_clip_grad_norm(m.fsdp, -1, 2, &norm), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_clip_grad_norm(m.fsdp, NAN, 2, &norm), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_clip_grad_norm(m.fsdp, 1, 3, &norm), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_clip_grad_norm(m.fsdp, 1, NAN, &norm), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_clip_grad_norm(m.fsdp, 1, 2, NULL), HP_ERR_ARGUMENT);
    RANK_CHECK(norm == -1);
    RANK_OK(hp_fsdp_begin(m.fsdp, HP_SYNC));
    RANK_FAILS(hp_clip_grad_norm(m.fsdp, 1, 2, &norm), HP_ERR_STATE);
    RANK_OK(hp_fsdp_end(m.fsdp)); /* no unit was used: all gradients are zero */
    RANK_OK(hp_clip_grad_norm(m.fsdp, 1, 2, &norm));
    RANK_CHECK(norm == 0);
    varied_destroy(&m);
}

static void misuse_is_refused(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, misuse, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f6_norm_is_the_oracles_on_every_mesh),
        cmocka_unit_test(gradients_are_scaled_once_by_the_coefficient),
        cmocka_unit_test(small_norms_are_left_alone),
        cmocka_unit_test(not_finite_is_told_and_not_scaled),
        cmocka_unit_test(misuse_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

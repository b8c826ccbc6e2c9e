/* SPDX-License-Identifier: Apache-2.0
 *
 * test_fsdp_auto_full.c - the size at which auto goes from few large collectives to many small
 * ones.
 *
 * Two ranks, steps without compute, the modes taking turns in one run; prints the shortest step of
 * each by the size of a parameter (others may be at work here, which lengthens a median). Where
 * parameters are far smaller than the limit in config.c a fused step must be the shorter one, where
 * they are far larger that of per-param: docs/modes.md has a run of it.
 */
#include "base/base.h"
#include "support/ranks.h"

#include <hyperparallel/hyperparallel.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { N_UNITS = 4, MAX_PARAMS = 16, N_MODES = 3, N_STEPS = 31, NAME_BYTES = 16 };

struct row {
    int n_params;
    int64_t n_elements;
    double best_ms[N_MODES];
};

typedef struct model {
    hp_fsdp *fsdp;
    hp_unit *units[N_UNITS];
} model;

static void make_unit(model *m, int i, const struct row *row) {
    char names[MAX_PARAMS + 1][NAME_BYTES];
    hp_param params[MAX_PARAMS];
    for (int j = 0; j < row->n_params; j++) {
        snprintf(names[j], NAME_BYTES, "u%d.p%d", i, j);
        params[j] = (hp_param)HP_PARAM_INIT;
        params[j].name = names[j];
        params[j].n_dims = 1;
        params[j].shape[0] = row->n_elements;
    }
    snprintf(names[MAX_PARAMS], NAME_BYTES, "u%d", i);
    RANK_OK(hp_unit_create(m->fsdp, names[MAX_PARAMS], params, row->n_params, NULL, &m->units[i]));
}

static void make(hp_mesh *mesh, hp_mode mode, const struct row *row, model *m) {
    hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    config.mode = mode;
    RANK_OK(hp_fsdp_create(mesh, &config, &m->fsdp));
    for (int i = 0; i < N_UNITS; i++)
        make_unit(m, i, row);
    RANK_OK(hp_fsdp_commit(m->fsdp));
}

/* Gradients are asked for and left as they are: only where they go is of interest. */
static void step(const model *m, int n_params) {
    RANK_OK(hp_fsdp_begin(m->fsdp, HP_SYNC));
    for (int i = 0; i < N_UNITS; i++) {
        RANK_OK(hp_forward_begin(m->units[i]));
        RANK_OK(hp_forward_end(m->units[i]));
    }
    for (int i = N_UNITS; i-- > 0;) {
        RANK_OK(hp_backward_begin(m->units[i]));
        for (int j = 0; j < n_params; j++)
            RANK_CHECK(hp_param_grad(m->units[i], j) != NULL);
        RANK_OK(hp_backward_end(m->units[i]));
    }
    RANK_OK(hp_fsdp_end(m->fsdp));
}

static int compare(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void measure_body(hp_world *world, void *argument) {
    struct row *row = argument; /* of this rank's process; rank 0 prints */
    const int n_ranks = hp_world_size(world);
    uint64_t step_ns[N_MODES][N_STEPS];
    model models[N_MODES];
    hp_mesh *mesh;
    RANK_OK(hp_mesh_create(world, &n_ranks, 1, &mesh));
    for (int mode = 0; mode < N_MODES; mode++)
        make(mesh, (hp_mode)mode, row, &models[mode]);
    for (int k = 0; k < N_STEPS; k++)
        for (int mode = 0; mode < N_MODES; mode++) {
            RANK_OK(hp_barrier(hp_world_group(world)));
            const uint64_t begin_ns = hpi_now_ns();
            step(&models[mode], row->n_params);
            step_ns[mode][k] = hpi_now_ns() - begin_ns;
        }
    for (int mode = 0; mode < N_MODES; mode++) {
        qsort(step_ns[mode], N_STEPS, sizeof **step_ns, compare);
        row->best_ms[mode] = (double)step_ns[mode][0] / 1e6;
        hp_fsdp_destroy(models[mode].fsdp);
    }
    hp_mesh_destroy(mesh);
    if (hp_world_rank(world) != 0)
        return;
    printf("%2d parameters of %5lld KB: per-param %7.3f ms, fused %7.3f, fused-zero-copy %7.3f\n",
           row->n_params, (long long)row->n_elements * 4 / 1024, row->best_ms[HP_PER_PARAM],
           row->best_ms[HP_FUSED], row->best_ms[HP_FUSED_ZERO_COPY]);
    fflush(stdout);
    if (row->n_elements <= 1024)
        RANK_CHECK(row->best_ms[HP_FUSED_ZERO_COPY] < row->best_ms[HP_PER_PARAM]);
    if (row->n_elements >= 262144)
        RANK_CHECK(row->best_ms[HP_PER_PARAM] < row->best_ms[HP_FUSED_ZERO_COPY]);
}

static void test_by_size(void **state) {
    (void)state;
    struct row rows[] = {
        {.n_params = 16, .n_elements = 256},   {.n_params = 16, .n_elements = 1024},
        {.n_params = 16, .n_elements = 4096},  {.n_params = 16, .n_elements = 8192},
        {.n_params = 16, .n_elements = 16384}, {.n_params = 4, .n_elements = 65536},
        {.n_params = 4, .n_elements = 262144}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        ranks_run(2, RANKS_PROCESSES, measure_body, &rows[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_by_size)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf-mpi/step.c - forward and backward of equal units with per-unit packing, as FSDP does it.
 *
 *     gather:  pack shards into this rank's row | MPI_Allgather in place | unpack to parameters
 *     reduce:  pack gradients, a row a rank | MPI_Reduce_scatter_block | divide into the shards
 *
 * One buffer of each kind, used again by every unit: fewer than a real step needs, and so warmer.
 * Memory asks for huge pages, which makes copies across processes faster. Between the calls, not
 * timed, every gathered parameter is compared and every gradient written anew.
 */
#include "../perf/step_values.h"
#include "jobs.h"

#include <mpi.h>
#include <stdlib.h>
#include <sys/mman.h>

struct step {
    step_options o;
    uint32_t full, part; /* elements of a parameter, of its shard; full = part * n_ranks */
    float *shards;       /* [unit][param][part] */
    float *gradients;    /* the same */
    float *rows;         /* [rank][param][part]: gathered, or packed gradients */
    float *reduced;      /* [param][part] */
    float *params;       /* [param][full]: a unit, and its gradients behind it */
    double calls_s, packing_s;
    uint64_t wrong;
};

/* ---- memory ---- */

static float *take(uint64_t n_floats) {
    enum { HUGE_PAGE = 2 << 20 };
    const size_t bytes = (n_floats * sizeof(float) + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    float *x = aligned_alloc(HUGE_PAGE, bytes);
    if (x) {
        (void)madvise(x, bytes, MADV_HUGEPAGE); /* without them it is slower, and right */
        memset(x, 0, bytes);
    }
    return x;
}

static float *shard_of(const step *s, float *all, int unit, int param) {
    return all + ((uint64_t)unit * (uint64_t)s->o.n_params + (uint64_t)param) * s->part;
}

static void fill_shards(step *s) {
    const uint32_t begin = s->part * (uint32_t)s->o.rank;
    for (int i = 0; i < s->o.n_units; i++)
        for (int j = 0; j < s->o.n_params; j++)
            for (uint32_t k = 0; k < s->part; k++)
                shard_of(s, s->shards, i, j)[k] = step_param(i, j, begin + k);
}

step *step_create(const step_options *o) {
    step *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->o = *o;
    s->full = (uint32_t)(o->width_bytes / sizeof(float) / (uint64_t)o->n_params);
    s->part = s->full / (uint32_t)o->n_ranks;
    const uint64_t unit = (uint64_t)o->n_params * s->full;
    s->shards = take((uint64_t)o->n_units * unit / (uint64_t)o->n_ranks);
    s->gradients = take((uint64_t)o->n_units * unit / (uint64_t)o->n_ranks);
    s->rows = take(unit);
    s->reduced = take(unit / (uint64_t)o->n_ranks);
    s->params = take(2 * unit);
    if (s->shards && s->gradients && s->rows && s->reduced && s->params) {
        fill_shards(s);
        return s;
    }
    step_destroy(s);
    return NULL;
}

void step_destroy(step *s) {
    if (!s)
        return;
    free(s->shards);
    free(s->gradients);
    free(s->rows);
    free(s->reduced);
    free(s->params);
    free(s);
}

/* ---- communication: what is timed ---- */

static float *row_of(const step *s, int rank, int param) {
    return s->rows + ((uint64_t)rank * (uint64_t)s->o.n_params + (uint64_t)param) * s->part;
}

/* Of a parameter of the unit, or of its gradient. */
static float *param_of(const step *s, int param, int is_gradient) {
    return s->params + (uint64_t)(param + is_gradient * s->o.n_params) * s->full;
}

static int row_count(const step *s) {
    return (int)s->part * s->o.n_params;
}

static void gather(step *s, int unit) {
    const size_t bytes = s->part * sizeof(float);
    const double begin = MPI_Wtime();
    /* The shards of a unit lie behind each other: one copy packs them. */
    memcpy(row_of(s, s->o.rank, 0), shard_of(s, s->shards, unit, 0), bytes * (size_t)s->o.n_params);
    const double packed = MPI_Wtime();
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, s->rows, row_count(s), MPI_FLOAT,
                  MPI_COMM_WORLD);
    const double gathered = MPI_Wtime();
    for (int r = 0; r < s->o.n_ranks; r++)
        for (int j = 0; j < s->o.n_params; j++)
            memcpy(param_of(s, j, 0) + (uint64_t)r * s->part, row_of(s, r, j), bytes);
    const double end = MPI_Wtime();
    s->calls_s += gathered - packed;
    s->packing_s += packed - begin + (end - gathered);
}

/* As wide as this library's own. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__)
__attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#endif
static void
divide(float *restrict to, const float *restrict from, int n, float parts) {
    for (int i = 0; i < n; i++)
        to[i] = from[i] / parts;
}

static void reduce(step *s, int unit) {
    const double begin = MPI_Wtime();
    for (int r = 0; r < s->o.n_ranks; r++)
        for (int j = 0; j < s->o.n_params; j++)
            memcpy(row_of(s, r, j), param_of(s, j, 1) + (uint64_t)r * s->part,
                   s->part * sizeof(float));
    const double packed = MPI_Wtime();
    MPI_Reduce_scatter_block(s->rows, s->reduced, row_count(s), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    const double reduced = MPI_Wtime();
    divide(shard_of(s, s->gradients, unit, 0), s->reduced, row_count(s), (float)s->o.n_ranks);
    const double end = MPI_Wtime();
    s->calls_s += reduced - packed;
    s->packing_s += packed - begin + (end - reduced);
}

/* ---- a step ---- */

static void read_params(step *s, int unit) {
    for (int j = 0; j < s->o.n_params; j++)
        s->wrong += step_count_params(param_of(s, j, 0), unit, j, 0, s->full);
}

static void one_step(step *s) {
    for (int i = 0; i < s->o.n_units; i++) {
        gather(s, i);
        read_params(s, i);
    }
    for (int i = s->o.n_units; i-- > 0;) {
        gather(s, i);
        read_params(s, i);
        for (int j = 0; j < s->o.n_params; j++)
            step_write_grads(param_of(s, j, 1), i, j, s->o.rank, s->full);
        reduce(s, i);
    }
}

static void check_gradients(step *s) {
    const uint32_t begin = s->part * (uint32_t)s->o.rank;
    for (int i = 0; i < s->o.n_units; i++)
        for (int j = 0; j < s->o.n_params; j++)
            s->wrong += step_count_grads(shard_of(s, s->gradients, i, j), i, j, s->o.n_ranks, begin,
                                         begin + s->part);
}

void step_turn(step *s, char *out, size_t size) {
    s->wrong = 0;
    one_step(s);
    s->calls_s = s->packing_s = 0;
    for (int k = 0; k < s->o.n_steps; k++)
        one_step(s);
    check_gradients(s);
    const double ms = 1e3 / s->o.n_steps;
    snprintf(out, size, "{\"step_ms\": %.6f, \"calls_ms\": %.6f, \"wrong\": %llu}",
             (s->calls_s + s->packing_s) * ms, s->calls_s * ms, (unsigned long long)s->wrong);
}

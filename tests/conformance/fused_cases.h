/* SPDX-License-Identifier: Apache-2.0
 *
 * fused_cases.h - a fused product, its operands, and the same in the separate form.
 *
 * Operands are small random numbers. The separate form is a collective of the library beside
 * hp_matmul_run: with the plain engine, whose bits depend on no blocks, the two must agree bit for
 * bit, however the product is cut; but for a weight gradient, whose pieces are rounded one by one.
 */
#ifndef FUSED_CASES_H
#define FUSED_CASES_H

#include "fused/fused.h"
#include "support/oracle.h"
#include "support/ranks.h"

#include <hyperparallel/coll.h>
#include <hyperparallel/symm.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 8 };

typedef enum kind { GATHER, SCATTER, WEIGHTS, N_KINDS } kind;

typedef struct fused_case {
    kind kind;
    int64_t rows[MOST_RANKS];
    int64_t n, k;
    hp_dtype dtype, out_dtype;
    int transpose_b, transpose_c, accumulate;
    bool is_symmetric, wants_gathered, is_in_place;
    int64_t gap; /* elements between rows of a, b and c */
    hpi_fused_cut cut;
    uint64_t seed;
} fused_case;

/* One rank's. */
typedef struct fused {
    const fused_case *what;
    hp_group *group;
    int rank, n_ranks;
    int64_t m, a_rows, b_rows, b_columns, c_rows, c_columns;
    hp_symm symm;
    void *a, *b, *c, *wanted, *gathered;
    hp_fused_args args;
    hp_matmul *engine;
} fused;

static inline void case_put(void *memory, hp_dtype dtype, int64_t i, double value) {
    if (dtype == HP_FP32)
        ((float *)memory)[i] = (float)value;
    else
        ((uint16_t *)memory)[i] =
            dtype == HP_FP16 ? oracle_to_fp16((float)value) : oracle_to_bf16((float)value);
}

static inline double case_get(const void *memory, hp_dtype dtype, int64_t i) {
    return dtype == HP_FP32   ? (double)((const float *)memory)[i]
           : dtype == HP_FP16 ? (double)oracle_from_fp16(((const uint16_t *)memory)[i])
                              : (double)oracle_from_bf16(((const uint16_t *)memory)[i]);
}

/* A number in [-1, 1) that follows from all of these. */
static inline double case_number(uint64_t seed, int rank, int64_t i) {
    uint64_t state = seed * 1000003 + (uint64_t)rank * 7919 + (uint64_t)i;
    (void)hpi_random_next(&state);
    return 2 * hpi_random_unit(&state) - 1;
}

static inline void case_fill(void *memory, hp_dtype dtype, int64_t rows, int64_t columns,
                             int64_t stride, uint64_t seed, int rank) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < stride; j++)
            case_put(memory, dtype, i * stride + j,
                     j < columns ? case_number(seed, rank, i * columns + j) : 99);
}

static inline void *case_room(int64_t rows, int64_t stride, hp_dtype dtype) {
    void *memory = calloc((size_t)(rows * stride + 16), hp_dtype_size(dtype));
    RANK_CHECK(memory);
    return memory;
}

static inline int64_t case_before(const fused *f, int rank) {
    int64_t n = 0;
    for (int i = 0; i < rank; i++)
        n += f->what->rows[i];
    return n;
}

/* Sizes and operands; collective over the group. */
static inline void fused_open(fused *f, hp_group *group, hp_matmul *engine,
                              const fused_case *what) {
    const int rank = hp_group_rank(group), n = hp_group_size(group);
    *f = (fused){.what = what, .group = group, .rank = rank, .n_ranks = n, .engine = engine};
    f->m = case_before(f, n);
    f->a_rows = what->kind == SCATTER ? f->m : what->rows[rank];
    f->b_rows = what->kind == WEIGHTS ? f->m : what->transpose_b ? what->n : what->k;
    f->b_columns = what->kind != WEIGHTS && what->transpose_b ? what->k : what->n;
    f->c_rows = what->kind == GATHER    ? f->m
                : what->kind == SCATTER ? what->rows[rank]
                : what->transpose_c     ? what->n
                                        : what->k;
    f->c_columns = what->kind == WEIGHTS && what->transpose_c ? what->k : what->n;
    const int64_t lda = what->is_in_place ? what->k : what->k + what->gap;
    const int64_t ldb = f->b_columns + what->gap, ldc = f->c_columns + what->gap;
    const size_t a_bytes = (size_t)(f->m * lda + 16) * hp_dtype_size(what->dtype);
    f->gathered = case_room(f->m, what->k, what->dtype);
    if (what->is_symmetric) {
        void *at;
        RANK_OK(hp_symm_alloc(hp_group_world(group), group, hpi_align_up(a_bytes, 4096), 0,
                              &f->symm)); /* ranks that disagree take the same */
        RANK_OK(hp_symm_pointer(f->symm, rank, group, &at));
        f->a = at;
    } else if (what->is_in_place) {
        f->a = (char *)f->gathered +
               (size_t)(case_before(f, rank) * what->k) * hp_dtype_size(what->dtype);
    } else {
        f->a = case_room(f->m, lda, what->dtype);
    }
    f->b = case_room(f->b_rows, ldb, what->dtype);
    f->c = case_room(f->c_rows, ldc, what->out_dtype);
    f->wanted = case_room(f->c_rows, ldc, what->out_dtype);
    case_fill(f->a, what->dtype, f->a_rows, what->k, lda, what->seed, rank);
    case_fill(f->b, what->dtype, f->b_rows, f->b_columns, ldb, what->seed + 1, rank);
    case_fill(f->c, what->out_dtype, f->c_rows, f->c_columns, ldc, what->seed + 2, rank);
    memcpy(f->wanted, f->c, (size_t)(f->c_rows * ldc) * hp_dtype_size(what->out_dtype));
    f->args = (hp_fused_args)HP_FUSED_ARGS_INIT;
    f->args.group = group;
    f->args.matmul = engine;
    f->args.rows = what->rows;
    f->args.n = what->n;
    f->args.k = what->k;
    f->args.dtype = what->dtype;
    f->args.out_dtype = what->out_dtype;
    f->args.transpose_b = what->transpose_b;
    f->args.transpose_c = what->transpose_c;
    f->args.accumulate = what->accumulate;
    f->args.a = f->a;
    f->args.b = f->b;
    f->args.c = f->c;
    f->args.lda = lda;
    f->args.ldb = ldb;
    f->args.ldc = ldc;
    f->args.gathered = what->wants_gathered || what->is_in_place ? f->gathered : NULL;
    f->args.ld_gathered = what->k;
}

static inline void fused_close(fused *f) {
    if (f->what->is_symmetric)
        RANK_OK(hp_symm_free(f->symm));
    else if (!f->what->is_in_place)
        free(f->a);
    free(f->b);
    free(f->c);
    free(f->wanted);
    free(f->gathered);
}

static inline hp_status fused_run(const fused *f) {
    return f->what->kind == GATHER    ? hp_all_gather_matmul(&f->args)
           : f->what->kind == SCATTER ? hp_matmul_reduce_scatter(&f->args)
                                      : hp_all_gather_weight_grad(&f->args);
}

/* ---- the separate form ---- */

/* `a` without its gaps. */
static inline void *packed_a(const fused *f) {
    const size_t size = hp_dtype_size(f->what->dtype), row = (size_t)f->what->k * size;
    char *out = case_room(f->a_rows, f->what->k, f->what->dtype);
    for (int64_t i = 0; i < f->a_rows; i++)
        memcpy(out + (size_t)i * row, (const char *)f->a + (size_t)(i * f->args.lda) * size, row);
    return out;
}

static inline void separate_gather(const fused *f) {
    const fused_case *w = f->what;
    uint64_t counts[MOST_RANKS];
    hp_matmul_args p = HP_MATMUL_ARGS_INIT;
    for (int i = 0; i < f->n_ranks; i++)
        counts[i] = (uint64_t)(w->rows[i] * w->k);
    void *mine = packed_a(f), *all = case_room(f->m, w->k, w->dtype);
    RANK_OK(hp_all_gather_v(f->group, mine, all, counts, w->dtype));
    const bool is_weights = w->kind == WEIGHTS, turned = is_weights && w->transpose_c;
    p.m = is_weights ? f->c_rows : f->m;
    p.n = f->c_columns;
    p.k = is_weights ? f->m : w->k;
    p.dtype = w->dtype;
    p.out_dtype = w->out_dtype;
    p.transpose_a = is_weights;
    p.transpose_b = !is_weights && w->transpose_b;
    p.accumulate = w->accumulate;
    p.a = turned ? f->b : all;
    p.lda = turned ? f->args.ldb : w->k;
    p.b = turned ? all : f->b;
    p.ldb = turned ? w->k : f->args.ldb;
    p.c = f->wanted;
    p.ldc = f->args.ldc;
    RANK_OK(hp_matmul_run(f->engine, &p));
    free(mine);
    free(all);
}

static inline void separate_scatter(const fused *f) {
    const fused_case *w = f->what;
    uint64_t counts[MOST_RANKS];
    hp_matmul_args p = HP_MATMUL_ARGS_INIT;
    for (int i = 0; i < f->n_ranks; i++)
        counts[i] = (uint64_t)(w->rows[i] * w->n);
    float *all = case_room(f->m, w->n, HP_FP32), *sums = case_room(f->c_rows, w->n, HP_FP32);
    p.m = f->m;
    p.n = w->n;
    p.k = w->k;
    p.dtype = w->dtype;
    p.transpose_b = w->transpose_b;
    p.a = f->a;
    p.lda = f->args.lda;
    p.b = f->b;
    p.ldb = f->args.ldb;
    p.c = all;
    p.ldc = w->n;
    RANK_OK(hp_matmul_run(f->engine, &p));
    RANK_OK(hp_reduce_scatter_v(f->group, all, sums, counts, HP_FP32, HP_SUM));
    for (int64_t i = 0; i < f->c_rows; i++)
        for (int64_t j = 0; j < w->n; j++) {
            const int64_t at = i * f->args.ldc + j;
            float sum = sums[i * w->n + j];
            if (w->accumulate)
                sum += (float)case_get(f->wanted, w->out_dtype, at);
            case_put(f->wanted, w->out_dtype, at, sum);
        }
    free(all);
    free(sums);
}

static inline void separate_run(const fused *f) {
    (f->what->kind == SCATTER ? separate_scatter : separate_gather)(f);
}

#endif

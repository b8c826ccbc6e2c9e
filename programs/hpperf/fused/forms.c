/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/fused/forms.c - the two forms of one product, on the same operands.
 *
 * Weights lie as models have them, [out][in]. Of 16-bit types the separate matmul_rs sums fp32
 * products as well, and rounds once: then the forms mean the same.
 */
#include "../fail.h"
#include "fused.h"

#include <hyperparallel/coll.h>
#include <hyperparallel/fused.h>
#include <hyperparallel/matmul.h>
#include <hyperparallel/symm.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PIECE = 256 }; /* elements that are made, or compared, at once */

struct forms {
    hp_world *world;
    hp_group *group;
    hp_matmul *engine;
    hp_dtype dtype;
    int rank, n_ranks;
    fused_op op;
    int64_t m, n, k, mine; /* rows of all, of this rank */
    int64_t *rows;         /* [n_ranks] */
    hp_symm rows_symm;     /* gathered: [m][k], with this rank's block in its place */
    hp_symm sums_symm;     /* matmul_rs: [m][n] products, fp32, and this rank's sums behind them */
    unsigned char *input;  /* what is written anew: the block, or all of a */
    unsigned char *a, *b, *fresh; /* fresh: what is written */
    unsigned char *c[2];          /* by form */
    size_t input_bytes;
};

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static bool is_scatter(const forms *f) {
    return f->op == MATMUL_RS;
}
static bool is_weights(const forms *f) {
    return f->op == AG_WEIGHT_GRAD;
}
static int64_t n_results(const forms *f) {
    return is_weights(f) ? f->n * f->k : (is_scatter(f) ? f->mine : f->m) * f->n;
}
/* Gradients of weights are wanted in fp32. */
static hp_dtype result_dtype(const forms *f) {
    return is_weights(f) ? HP_FP32 : f->dtype;
}
/* Elements of b: weights, or this rank's columns of all rows' gradients. */
static int64_t n_local(const forms *f) {
    return f->n * (is_weights(f) ? f->m : f->k);
}

/* ---- making them ---- */

static hp_status take(size_t bytes, unsigned char **out) {
    *out = aligned_alloc(64, (bytes + 127) / 64 * 64);
    if (!*out)
        return fail(HP_ERR_MEMORY, "expected memory for %zu bytes", bytes);
    memset(*out, 0, (bytes + 127) / 64 * 64);
    return HP_OK;
}

/* Numbers in [-1, 1), others on each rank. */
static hp_status fill(const forms *f, void *out, int64_t count) {
    float piece[PIECE];
    uint32_t x = 12345 + (uint32_t)f->rank * 977;
    for (int64_t at = 0; at < count; at += PIECE) {
        const int64_t n = count - at < PIECE ? count - at : PIECE;
        for (int64_t i = 0; i < n; i++) {
            x = x * 1664525 + 1013904223;
            piece[i] = (float)(int32_t)x * 0x1p-31F;
        }
        TRY(hp_convert(piece, HP_FP32, (char *)out + (size_t)at * hp_dtype_size(f->dtype), f->dtype,
                       (uint64_t)n));
    }
    return HP_OK;
}

static hp_status take_symmetric(const forms *f, size_t bytes, hp_symm *out_symm,
                                unsigned char **out) {
    void *at;
    TRY(hp_symm_alloc(f->world, f->group, bytes, 64, out_symm));
    TRY(hp_symm_pointer(*out_symm, f->rank, f->group, &at));
    *out = at;
    return HP_OK;
}

/* Tokens that ranks do not divide: the first ones have one more. */
static hp_status cut_rows(forms *f) {
    f->rows = calloc((size_t)f->n_ranks, sizeof *f->rows);
    if (!f->rows)
        return fail(HP_ERR_MEMORY, "expected memory for %d ranks", f->n_ranks);
    for (int i = 0; i < f->n_ranks; i++)
        f->rows[i] = f->m / f->n_ranks + (i < f->m % f->n_ranks);
    f->mine = f->rows[f->rank];
    return HP_OK;
}

static hp_status take_operands(forms *f) {
    const size_t size = hp_dtype_size(f->dtype);
    const size_t row = (size_t)f->k * size;
    const size_t c_bytes = (size_t)n_results(f) * hp_dtype_size(result_dtype(f));
    int64_t before = 0;
    for (int i = 0; i < f->rank; i++)
        before += f->rows[i];
    if (is_scatter(f)) {
        unsigned char *products;
        TRY(take((size_t)f->m * row, &f->a));
        TRY(take_symmetric(f, (size_t)((f->m + f->rows[0]) * f->n) * sizeof(float), &f->sums_symm,
                           &products));
        f->input = f->a;
    } else {
        TRY(take_symmetric(f, (size_t)f->m * row, &f->rows_symm, &f->a));
        f->input = f->a + (size_t)before * row;
    }
    f->input_bytes = (size_t)(is_scatter(f) ? f->m : f->mine) * row;
    TRY(take(f->input_bytes, &f->fresh));
    TRY(take((size_t)n_local(f) * size, &f->b));
    TRY(take(c_bytes, &f->c[FUSED]));
    TRY(take(c_bytes, &f->c[SEPARATE]));
    TRY(fill(f, f->fresh, (int64_t)(f->input_bytes / size)));
    return fill(f, f->b, n_local(f));
}

hp_status forms_create(hp_world *world, const fused_options *o, const fused_shape *shape,
                       int64_t tokens, forms **out_forms) {
    forms *f = calloc(1, sizeof *f);
    if (!f)
        return fail(HP_ERR_MEMORY, "expected memory for a shape");
    *out_forms = f;
    *f = (forms){.world = world,
                 .group = hp_world_group(world),
                 .dtype = o->dtype,
                 .rank = hp_world_rank(world),
                 .n_ranks = hp_world_size(world),
                 .op = o->op,
                 .m = tokens};
    f->n = shape->is_scatter ? shape->n : shape->n / f->n_ranks;
    f->k = shape->is_scatter ? shape->k / f->n_ranks : shape->k;
    TRY(cut_rows(f));
    TRY(hp_matmul_open(o->engine, 1, &f->engine));
    return take_operands(f);
}

hp_status forms_destroy(forms *f) {
    if (!f)
        return HP_OK;
    hp_status status = HP_OK;
    if (f->rows_symm.id)
        status = hp_symm_free(f->rows_symm);
    if (f->sums_symm.id)
        status = hp_symm_free(f->sums_symm);
    hp_matmul_close(f->engine);
    if (is_scatter(f))
        free(f->a);
    free(f->b);
    free(f->fresh);
    free(f->c[FUSED]);
    free(f->c[SEPARATE]);
    free(f->rows);
    free(f);
    return status;
}

/* ---- the forms ---- */

static hp_status run_fused(const forms *f) {
    hp_fused_args args = HP_FUSED_ARGS_INIT;
    args.group = f->group;
    args.matmul = f->engine;
    args.rows = f->rows;
    args.n = args.ldc = f->n;
    args.k = args.lda = args.ldb = f->k;
    args.dtype = f->dtype;
    args.out_dtype = result_dtype(f);
    args.transpose_b = args.transpose_c = 1;
    args.a = f->input;
    args.b = f->b;
    args.c = f->c[FUSED];
    if (is_weights(f)) {
        args.ldb = f->n;
        args.ldc = f->k;
        return hp_all_gather_weight_grad(&args);
    }
    return is_scatter(f) ? hp_matmul_reduce_scatter(&args) : hp_all_gather_matmul(&args);
}

/* c [n][k]: b, transposed, times a. */
static hp_status run_weights(const forms *f, void *c) {
    hp_matmul_args p = HP_MATMUL_ARGS_INIT;
    p.m = p.lda = f->n;
    p.n = p.ldb = p.ldc = f->k;
    p.k = f->m;
    p.dtype = f->dtype;
    p.out_dtype = HP_FP32;
    p.transpose_a = 1;
    p.a = f->b;
    p.b = f->a;
    p.c = c;
    return hp_matmul_run(f->engine, &p);
}

static hp_status run_product(const forms *f, void *c, hp_dtype out_dtype) {
    hp_matmul_args p = HP_MATMUL_ARGS_INIT;
    p.m = f->m;
    p.n = p.ldc = f->n;
    p.k = p.lda = p.ldb = f->k;
    p.dtype = f->dtype;
    p.out_dtype = out_dtype;
    p.transpose_b = 1;
    p.a = f->a;
    p.b = f->b;
    p.c = c;
    return hp_matmul_run(f->engine, &p);
}

static hp_status gather(const forms *f) {
    uint64_t counts[1024];
    for (int i = 0; i < f->n_ranks; i++)
        counts[i] = (uint64_t)(f->rows[i] * f->k);
    if (f->m % f->n_ranks == 0)
        return hp_all_gather(f->group, f->input, f->a, (uint64_t)(f->rows[0] * f->k), f->dtype);
    return hp_all_gather_v(f->group, f->input, f->a, counts, f->dtype);
}

static hp_status scatter(const forms *f, float *products, float *sums) {
    uint64_t counts[1024];
    for (int i = 0; i < f->n_ranks; i++)
        counts[i] = (uint64_t)(f->rows[i] * f->n);
    if (f->m % f->n_ranks == 0)
        return hp_reduce_scatter(f->group, products, sums, (uint64_t)(f->rows[0] * f->n), HP_FP32,
                                 HP_SUM);
    return hp_reduce_scatter_v(f->group, products, sums, counts, HP_FP32, HP_SUM);
}

static hp_status run_gathered(const forms *f) {
    return is_weights(f) ? run_weights(f, f->c[SEPARATE])
                         : run_product(f, f->c[SEPARATE], f->dtype);
}

static hp_status products_at(const forms *f, float **out) {
    void *at;
    TRY(hp_symm_pointer(f->sums_symm, f->rank, f->group, &at));
    *out = at;
    return HP_OK;
}

static hp_status run_scatter(const forms *f) {
    float *products;
    TRY(products_at(f, &products));
    float *sums = products + f->m * f->n;
    float *to = f->dtype == HP_FP32 ? (float *)(void *)f->c[SEPARATE] : sums;
    TRY(run_product(f, products, HP_FP32));
    TRY(scatter(f, products, to));
    if (f->dtype == HP_FP32)
        return HP_OK;
    return hp_convert(to, HP_FP32, f->c[SEPARATE], f->dtype, (uint64_t)(f->mine * f->n));
}

static hp_status run_separate(const forms *f) {
    if (is_scatter(f))
        return run_scatter(f);
    TRY(gather(f));
    return run_gathered(f);
}

static hp_status run_alone(const forms *f) {
    float *products;
    if (!is_scatter(f))
        return run_gathered(f);
    TRY(products_at(f, &products));
    return run_product(f, products, HP_FP32);
}

static void wait_us(double us) {
    const struct timespec t = {.tv_sec = (time_t)(us / 1e6),
                               .tv_nsec = (long)(fmod(us, 1e6) * 1e3)};
    if (us > 0)
        nanosleep(&t, NULL);
}

hp_status forms_call(forms *f, form which, double late_us, double *out_begin_us,
                     double *out_end_us) {
    memcpy(f->input, f->fresh, f->input_bytes);
    TRY(hp_barrier(f->group));
    *out_begin_us = now_us();
    wait_us(late_us);
    TRY(which == PRODUCT ? run_alone(f) : which == FUSED ? run_fused(f) : run_separate(f));
    *out_end_us = now_us();
    return HP_OK;
}

/* ---- comparing ---- */

static double tolerance(hp_dtype dtype) {
    return dtype == HP_FP32 ? 1e-5 : dtype == HP_FP16 ? 1e-3 : 0x1p-7;
}

hp_status forms_compare(forms *f, uint64_t *out_wrong) {
    const hp_dtype dtype = result_dtype(f);
    const size_t size = hp_dtype_size(dtype);
    const uint64_t n = (uint64_t)n_results(f);
    const double depth = (double)(is_weights(f) ? f->m : f->k);
    double begin_us, end_us;
    TRY(forms_call(f, FUSED, 0, &begin_us, &end_us));
    TRY(forms_call(f, SEPARATE, 0, &begin_us, &end_us));
    *out_wrong = 0;
    for (uint64_t at = 0; at < n; at += PIECE) {
        float x[PIECE], y[PIECE];
        const uint64_t count = n - at < PIECE ? n - at : PIECE;
        TRY(hp_convert(f->c[FUSED] + at * size, dtype, x, HP_FP32, count));
        TRY(hp_convert(f->c[SEPARATE] + at * size, dtype, y, HP_FP32, count));
        for (uint64_t i = 0; i < count; i++)
            *out_wrong += !(fabs((double)x[i] - (double)y[i]) <=
                            tolerance(dtype) * (fabs((double)y[i]) + sqrt(depth)));
    }
    return HP_OK;
}

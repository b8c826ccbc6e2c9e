/* SPDX-License-Identifier: Apache-2.0
 *
 * matmul.c - the public door: engines by name, and the checks that all of them share.
 *
 * An engine is a row of a table. What can be said without one (empty results, sums over nothing)
 * is done here, so an engine is only ever asked to multiply.
 */
#include "matmul.h"

#include "../base/base.h"

#include <inttypes.h>
#include <stdio.h>

/* What hp_matmul_open gives: the engine, and room for its note. */
typedef struct opened {
    hp_matmul engine;
    char note[sizeof((hp_error *)0)->message];
} opened;

static hp_status open_plain(const char *plugins, int n_threads, opened *out) {
    (void)plugins;
    (void)n_threads;
    return hpi_matmul_open_plain(&out->engine);
}

static hp_status open_onednn(const char *plugins, int n_threads, opened *out) {
    return hpi_matmul_open_plugin(plugins, "matmul_onednn.so", n_threads, &out->engine);
}

static hp_status open_plain_because(const char *why, opened *out) {
    HP_TRY(hpi_matmul_open_plain(&out->engine));
    snprintf(out->note, sizeof out->note, "%s", why);
    out->engine.note = out->note;
    return HP_OK;
}

/* Whoever names a folder of plug-ins wants what is in it. */
static hp_status open_auto(const char *plugins, int n_threads, opened *out) {
#ifdef HP_PLAIN_KERNELS
    (void)plugins;
    (void)n_threads;
    return open_plain_because("sanitizers see nothing of generated code", out);
#else
    hp_error before, why;
    hp_last_error_get(&before);
    const hp_status status = open_onednn(plugins, n_threads, out);
    if (status != HP_ERR_UNSUPPORTED || *plugins)
        return status;
    hp_last_error_get(&why);
    hpi_error_set(&before); /* not a failure of the caller's */
    return open_plain_because(why.message, out);
#endif
}

static const struct {
    const char *name;
    hp_status (*open)(const char *plugins, int n_threads, opened *out);
} engines[] = {{"auto", open_auto}, {"plain", open_plain}, {"onednn", open_onednn}};
enum { N_ENGINES = sizeof engines / sizeof *engines };

static hp_status open_named(const char *name, const hpi_options *options, int n_threads,
                            opened *out) {
    for (size_t i = 0; i < N_ENGINES; i++)
        if (strcmp(name, engines[i].name) == 0)
            return engines[i].open(options->plugins, n_threads, out);
    return HPI_FAIL(HP_ERR_ARGUMENT, "expected a matmul engine (auto, plain, onednn), given \"%s\"",
                    name);
}

hp_status hp_matmul_open(const char *name, int n_threads, hp_matmul **out_matmul) {
    hpi_options options;
    if (!out_matmul)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a place for the engine, given NULL");
    if (n_threads < 1)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected 1 thread or more, given %d", n_threads);
    HP_TRY(hpi_options_load(&options));
    opened *out = hpi_alloc(1, sizeof *out);
    if (!out)
        return HP_ERR_MEMORY;
    const hp_status status = open_named(name ? name : options.matmul, &options, n_threads, out);
    if (status < 0) {
        hpi_free(out);
        return status;
    }
    *out_matmul = &out->engine; /* where `out` begins: hp_matmul_close frees both */
    return HP_OK;
}

void hp_matmul_close(hp_matmul *matmul) {
    if (matmul && matmul->close)
        matmul->close(matmul);
    hpi_free(matmul);
}

/* ---- a product ---- */

static hp_status check_dtypes(const hp_matmul_args *p) {
    const bool is_half = p->dtype == HP_BF16 || p->dtype == HP_FP16;
    const bool is_taken = p->dtype == HP_FP32 || p->dtype == HP_FP64 || is_half;
    const bool is_widened = is_half && p->out_dtype == HP_FP32;
    if (is_taken && (p->out_dtype == p->dtype || is_widened))
        return HP_OK;
    return HPI_FAIL(HP_ERR_ARGUMENT,
                    "expected a product of fp32, bf16, fp16 or fp64 in its own dtype, or of "
                    "bf16 or fp16 in fp32; given %s in %s",
                    hp_dtype_name(p->dtype), hp_dtype_name(p->out_dtype));
}

static hp_status check_matrix(const char *name, const void *data, int64_t n_rows, int64_t n_columns,
                              int64_t stride) {
    if (stride < n_columns)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected ld%c of at least a row, %" PRId64 " elements, given %" PRId64,
                        *name, n_columns, stride);
    if (!data && n_rows > 0 && n_columns > 0)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected %s of %" PRId64 " x %" PRId64 ", given NULL",
                        name, n_rows, n_columns);
    return HP_OK;
}

static hp_status check(const hp_matmul *matmul, const hp_matmul_args *p) {
    if (!matmul || !p)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected an engine and a product, given NULL");
    if (matmul->size != sizeof *matmul || !matmul->run)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected an engine of %zu bytes with a run, given %zu%s",
                        sizeof *matmul, matmul->size, matmul->run ? "" : " and no run");
    if (p->size != sizeof *p)
        return HPI_FAIL(HP_ERR_VERSION,
                        "expected hp_matmul_args of %zu bytes, given %zu: use HP_MATMUL_ARGS_INIT",
                        sizeof *p, p->size);
    if (p->m < 0 || p->n < 0 || p->k < 0)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected sizes of 0 or more, given m %" PRId64 " n %" PRId64 " k %" PRId64,
                        p->m, p->n, p->k);
    HP_TRY(check_dtypes(p));
    const bool ta = p->transpose_a != 0, tb = p->transpose_b != 0;
    HP_TRY(check_matrix("a", p->a, ta ? p->k : p->m, ta ? p->m : p->k, p->lda));
    HP_TRY(check_matrix("b", p->b, tb ? p->n : p->k, tb ? p->k : p->n, p->ldb));
    return check_matrix("c", p->c, p->m, p->n, p->ldc);
}

static void fill_zeros(const hp_matmul_args *p) {
    const size_t width = hp_dtype_size(p->out_dtype);
    for (int64_t i = 0; i < p->m; i++)
        memset((char *)p->c + (size_t)(i * p->ldc) * width, 0, (size_t)p->n * width);
}

static hp_status multiply(hp_matmul *matmul, const hp_matmul_args *args) {
    if (args->m == 0 || args->n == 0)
        return HP_OK;
    if (args->k > 0)
        return matmul->run(matmul, args);
    if (!args->accumulate)
        fill_zeros(args);
    return HP_OK;
}

/* The flag is a plain int, because the header that holds it is C++ too. Its acquire pairs with the
 * release of the product before, whoever's that was. */
hp_status hp_matmul_run(hp_matmul *matmul, const hp_matmul_args *args) {
    HP_TRY(check(matmul, args));
    if (__atomic_exchange_n(&matmul->is_busy, 1, __ATOMIC_ACQUIRE))
        return HPI_FAIL(HP_ERR_BUSY, "expected one product at a time, another runs on engine %s",
                        matmul->name ? matmul->name : "(no name)");
    const hp_status status = multiply(matmul, args);
    __atomic_store_n(&matmul->is_busy, 0, __ATOMIC_RELEASE);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * matmul.h - matrix products on one rank, behind one function pointer.
 *
 * An engine is chosen by name when it is opened: "plain", loops in the library itself, or
 * "onednn", a plug-in that is loaded then (lib/hyperparallel/matmul_onednn.so). Or the caller fills
 * hp_matmul with a function of its own. Whoever multiplies calls hp_matmul_run and knows no more.
 *
 * Sums run in fp32 (fp64 for fp64), whatever the operands. The same call of the same engine with
 * the same number of threads gives the same bits; two engines differ in the order of sums.
 */
#ifndef HYPERPARALLEL_MATMUL_H
#define HYPERPARALLEL_MATMUL_H

#include <hyperparallel/base.h>

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* C = A B, or C += A B: A is [m][k], B is [k][n], C is [m][n], row-major. */
typedef struct hp_matmul_args {
    size_t size;        /* sizeof(hp_matmul_args) */
    int64_t m, n, k;    /* any may be 0; k = 0 gives zeros (or leaves C, when accumulating) */
    hp_dtype dtype;     /* of A and B: fp32, bf16, fp16, fp64 */
    hp_dtype out_dtype; /* of C: dtype, or fp32 where dtype is bf16 or fp16 */
    int transpose_a;    /* 1: A lies in memory as [k][m] */
    int transpose_b;    /* 1: B lies in memory as [n][k] */
    int accumulate;     /* 1: add to C */
    const void *a, *b;  /* C may overlap neither */
    void *c;
    int64_t lda, ldb, ldc; /* elements from a row in memory to the next one */
} hp_matmul_args;
#define HP_MATMUL_ARGS_INIT                                                                        \
    { sizeof(hp_matmul_args), 0, 0, 0, HP_FP32, HP_FP32, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Who fills one leaves what is not named here zero. */
typedef struct hp_matmul hp_matmul;
struct hp_matmul {
    size_t size;      /* sizeof(hp_matmul) */
    const char *name; /* "plain", "onednn" */
    hp_status (*run)(hp_matmul *matmul, const hp_matmul_args *args);
    void (*close)(hp_matmul *matmul); /* NULL: nothing to give back */
    int n_threads;                    /* that one product may use */
    void *state;                      /* the engine's own */
    const char *note; /* why "auto" gave plain, for people; else NULL. Valid until the close */
    int is_busy;      /* the library's own: a product runs */
};

/* name: "plain", "onednn", or "auto": onednn where it can be loaded, else plain, whose note says
 * why; NULL takes the option HYPER_PARALLEL_MATMUL. n_threads: 1 or more; plain uses one. Errors:
 * ARGUMENT (listing the names); UNSUPPORTED, saying where it was looked for, when onednn is asked
 * for and cannot be loaded, by auto too where HYPER_PARALLEL_PLUGINS is set; VERSION when the
 * plug-in is another release's; MEMORY; SYSTEM when oneDNN itself fails. Several threads wait for
 * each other as OpenMP's do: where ranks share cores, set OMP_WAIT_POLICY=passive. Owns: the
 * caller. Threads: one at a time per engine. */
HP_MUST_CHECK hp_status hp_matmul_open(const char *name, int n_threads, hp_matmul **out_matmul);
/* What hp_matmul_open gave. Takes NULL. */
void hp_matmul_close(hp_matmul *matmul);

/* Errors: VERSION (args not from HP_MATMUL_ARGS_INIT), ARGUMENT (sizes, strides below a row,
 * dtypes), BUSY when another thread's product runs on this engine, and those of the engine. */
HP_MUST_CHECK hp_status hp_matmul_run(hp_matmul *matmul, const hp_matmul_args *args);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif

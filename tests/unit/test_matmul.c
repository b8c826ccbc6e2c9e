/* SPDX-License-Identifier: Apache-2.0
 *
 * test_matmul.c - every engine against sums in double, for every layout and dtype.
 *
 * The bound is that of any order of sums: k+1 roundings of fp32 (or fp64) of the sum of magnitudes,
 * and one of the output's dtype. Rows are padded with NaN on the way in and with a mark on the way
 * out, so a step outside the matrix shows. Where oneDNN's plug-in is not built its tests say so.
 */
#include "base/base.h"
#include "matmul/matmul.h"
#include "scratch.h"
#include "support/oracle.h"

#include <hyperparallel/matmul.h>

#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/wait.h>

#include <cmocka.h>

enum { MOST = 300 * 310 };

/* One matrix of a product: its numbers, and the same as the engine sees them. */
typedef struct matrix {
    double values[MOST];
    _Alignas(64) unsigned char memory[MOST * sizeof(double) + 64];
} matrix;

static matrix a, b, c;
static unsigned char before[sizeof c.memory];

static void put(void *memory, hp_dtype dtype, int64_t i, double value) {
    if (dtype == HP_FP64)
        ((double *)memory)[i] = value;
    else if (dtype == HP_FP32)
        ((float *)memory)[i] = (float)value;
    else if (dtype == HP_FP16)
        ((uint16_t *)memory)[i] = oracle_to_fp16((float)value);
    else
        ((uint16_t *)memory)[i] = oracle_to_bf16((float)value);
}

static double get(const void *memory, hp_dtype dtype, int64_t i) {
    return dtype == HP_FP64   ? ((const double *)memory)[i]
           : dtype == HP_FP32 ? (double)((const float *)memory)[i]
           : dtype == HP_FP16 ? (double)oracle_from_fp16(((const uint16_t *)memory)[i])
                              : (double)oracle_from_bf16(((const uint16_t *)memory)[i]);
}

/* Random numbers in [-1, 1); rows `stride` apart, `pad` between them. values: as they were rounded,
 * without the gaps. */
static void fill(matrix *m, void *memory, hp_dtype dtype, int64_t n_rows, int64_t n_columns,
                 int64_t stride, double pad, uint64_t seed) {
    for (int64_t i = 0; i < n_rows; i++)
        for (int64_t j = 0; j < stride; j++) {
            put(memory, dtype, i * stride + j,
                j < n_columns ? 2 * hpi_random_unit(&seed) - 1 : pad);
            if (j < n_columns)
                m->values[i * n_columns + j] = get(memory, dtype, i * stride + j);
        }
}

static double epsilon(hp_dtype dtype) {
    return dtype == HP_FP64 ? 0x1p-52 : dtype == HP_FP32 ? 0x1p-23 : 0x1p-8;
}

static double in_a(const hp_matmul_args *p, int64_t i, int64_t k) {
    return a.values[p->transpose_a ? k * p->m + i : i * p->k + k];
}
static double in_b(const hp_matmul_args *p, int64_t k, int64_t j) {
    return b.values[p->transpose_b ? j * p->k + k : k * p->n + j];
}

static void check_element(const hp_matmul_args *p, int64_t i, int64_t j) {
    long double sum = 0, magnitude = 0;
    for (int64_t k = 0; k < p->k; k++) {
        const long double product = (long double)in_a(p, i, k) * in_b(p, k, j);
        sum += product;
        magnitude += fabsl(product);
    }
    if (p->accumulate) {
        sum += c.values[i * p->n + j];
        magnitude += fabs(c.values[i * p->n + j]);
    }
    const double eps = p->dtype == HP_FP64 ? 0x1p-52 : 0x1p-23;
    const double bound =
        (double)(p->k + 1) * eps * (double)magnitude + epsilon(p->out_dtype) * fabs((double)sum);
    const double got = get(p->c, p->out_dtype, i * p->ldc + j);
    if (!(fabs(got - (double)sum) <= bound))
        fail_msg("m %d n %d k %d ta %d tb %d %s to %s%s: expected %.9g at (%d, %d), given %.9g",
                 (int)p->m, (int)p->n, (int)p->k, p->transpose_a, p->transpose_b,
                 hp_dtype_name(p->dtype), hp_dtype_name(p->out_dtype),
                 p->accumulate ? " added" : "", (double)sum, (int)i, (int)j, got);
}

/* What lies between the rows of C is as it was. */
static void check_gaps(const hp_matmul_args *p) {
    const size_t width = hp_dtype_size(p->out_dtype);
    for (int64_t i = 0; i < p->m; i++) {
        const size_t end = (size_t)(i * p->ldc + p->n) * width;
        assert_memory_equal((char *)p->c + end, before + end, (size_t)(p->ldc - p->n) * width);
    }
}

typedef struct layout {
    int64_t m, n, k, gap; /* gap: elements between the rows */
    hp_dtype dtype, out_dtype;
    int transpose_a, transpose_b, accumulate;
} layout;

static hp_matmul_args fill_all(const layout *l, size_t shift) {
    hp_matmul_args p = {sizeof p,
                        l->m,
                        l->n,
                        l->k,
                        l->dtype,
                        l->out_dtype,
                        l->transpose_a,
                        l->transpose_b,
                        l->accumulate,
                        a.memory + shift * hp_dtype_size(l->dtype),
                        b.memory + shift * hp_dtype_size(l->dtype),
                        c.memory + shift * hp_dtype_size(l->out_dtype),
                        (l->transpose_a ? l->m : l->k) + l->gap,
                        (l->transpose_b ? l->k : l->n) + l->gap,
                        l->n + l->gap};
    fill(&a, a.memory + shift * hp_dtype_size(l->dtype), l->dtype, l->transpose_a ? l->k : l->m,
         l->transpose_a ? l->m : l->k, p.lda, NAN, 1);
    fill(&b, b.memory + shift * hp_dtype_size(l->dtype), l->dtype, l->transpose_b ? l->n : l->k,
         l->transpose_b ? l->k : l->n, p.ldb, NAN, 2);
    fill(&c, p.c, l->out_dtype, l->m, l->n, p.ldc, 12345, 3);
    return p;
}

static void check_layout(hp_matmul *engine, const layout *l) {
    const hp_matmul_args p = fill_all(l, 0);
    memcpy(before, c.memory, sizeof before);
    if (hp_matmul_run(engine, &p) < 0)
        fail_msg("%s", hp_last_error());
    for (int64_t i = 0; i < p.m; i++)
        for (int64_t j = 0; j < p.n; j++)
            check_element(&p, i, j);
    check_gaps(&p);
}

static const int64_t sizes[][3] = {{1, 1, 1},     {1, 70, 33},  {5, 3, 7},    {17, 1, 64},
                                   {16, 64, 128}, {9, 20, 300}, {65, 129, 40}};
static const hp_dtype dtypes[][2] = {{HP_FP32, HP_FP32}, {HP_BF16, HP_FP32}, {HP_BF16, HP_BF16},
                                     {HP_FP16, HP_FP32}, {HP_FP16, HP_FP16}, {HP_FP64, HP_FP64}};
enum { N_SIZES = sizeof sizes / sizeof *sizes, N_DTYPES = sizeof dtypes / sizeof *dtypes };

/* Calls body for each size, dtype, transposition, addition and gap. Threads cost: the last size
 * alone, which is large enough for two. */
static void each_layout(hp_matmul *engine, void (*body)(hp_matmul *, const layout *)) {
    for (int s = engine->n_threads > 1 ? N_SIZES - 1 : 0; s < N_SIZES; s++)
        for (int d = 0; d < N_DTYPES; d++)
            for (int way = 0; way < 16; way++) {
                const layout l = {sizes[s][0],     sizes[s][1],  sizes[s][2],
                                  way & 8 ? 3 : 0, dtypes[d][0], dtypes[d][1],
                                  way & 1,         way >> 1 & 1, way >> 2 & 1};
                body(engine, &l);
            }
}

static hp_matmul *open_or_fail(const char *name, int n_threads) {
    hp_matmul *engine;
    if (hp_matmul_open(name, n_threads, &engine) < 0)
        fail_msg("%s", hp_last_error());
    return engine;
}

/* The plug-in, or the test is skipped, saying why. */
static hp_matmul *onednn_or_skip(int n_threads) {
    hp_matmul *engine;
    const hp_status status = hp_matmul_open("onednn", n_threads, &engine);
    if (status == HP_ERR_UNSUPPORTED) {
        print_message("skipped: %s\n", hp_last_error());
        skip();
    }
    if (status < 0)
        fail_msg("%s", hp_last_error());
    return engine;
}

static void test_plain(void **state) {
    (void)state;
    hp_matmul *engine = open_or_fail("plain", 1);
    assert_string_equal(engine->name, "plain");
    each_layout(engine, check_layout);
    hp_matmul_close(engine);
}

static void test_onednn(void **state) {
    (void)state;
    hp_matmul *engine = onednn_or_skip(1);
    assert_string_equal(engine->name, "onednn");
    each_layout(engine, check_layout);
    each_layout(engine, check_layout); /* what was made the first time is used again */
    hp_matmul_close(engine);
}

static void test_onednn_threaded(void **state) {
    (void)state;
    hp_matmul *engine = onednn_or_skip(2);
    each_layout(engine, check_layout);
    hp_matmul_close(engine);
}

/* ---- bits ---- */

/* The plain engine's are those of the loop that everybody would write. */
static void check_plain_bits(hp_matmul *engine, const layout *l) {
    if (l->dtype != HP_FP32)
        return;
    const hp_matmul_args p = fill_all(l, 0);
    assert_int_equal(hp_matmul_run(engine, &p), HP_OK);
    for (int64_t i = 0; i < p.m; i++)
        for (int64_t j = 0; j < p.n; j++) {
            float sum = 0;
            for (int64_t k = 0; k < p.k; k++)
                sum += (float)in_a(&p, i, k) * (float)in_b(&p, k, j);
            if (p.accumulate)
                sum += (float)c.values[i * p.n + j];
            assert_memory_equal((float *)p.c + i * p.ldc + j, &sum, sizeof sum);
        }
}

static void test_plain_bits(void **state) {
    (void)state;
    hp_matmul *engine = open_or_fail("plain", 1);
    each_layout(engine, check_plain_bits);
    hp_matmul_close(engine);
}

static hp_matmul *other; /* a second engine of the kind that is tested */

/* The same bits again, in the second engine, and at addresses that are no multiple of a vector. */
static void check_same_bits(hp_matmul *engine, const layout *l) {
    static unsigned char first[sizeof c.memory];
    const size_t bytes = (size_t)(l->m * (l->n + l->gap)) * hp_dtype_size(l->out_dtype);
    for (size_t shift = 0; shift < 4; shift++) {
        const hp_matmul_args p = fill_all(l, shift);
        assert_int_equal(hp_matmul_run(shift % 2 ? other : engine, &p), HP_OK);
        if (shift == 0)
            memcpy(first, p.c, bytes);
        assert_memory_equal(p.c, first, bytes);
    }
}

static void check_bits_of(hp_matmul *engine) {
    other = open_or_fail(engine->name, engine->n_threads);
    each_layout(engine, check_same_bits);
    hp_matmul_close(other);
    hp_matmul_close(engine);
}

static void test_same_bits(void **state) {
    (void)state;
    check_bits_of(open_or_fail("plain", 1));
    check_bits_of(onednn_or_skip(1));
    check_bits_of(onednn_or_skip(2));
}

/* ---- empty and wrong ---- */

static void test_empty(void **state) {
    float x[6] = {1, 2, 3, 4, 5, 6};
    const float y[6] = {7, 7, 7, 7, 7, 7};
    (void)state;
    hp_matmul *engine = open_or_fail("plain", 1);
    hp_matmul_args p = {sizeof p, 0, 3, 2, HP_FP32, HP_FP32, 0, 0, 0, NULL, y, NULL, 2, 3, 3};
    assert_int_equal(hp_matmul_run(engine, &p), HP_OK);
    p = (hp_matmul_args){sizeof p, 2, 2, 0, HP_FP32, HP_FP32, 0, 0, 1, NULL, NULL, x, 0, 2, 3};
    assert_int_equal(hp_matmul_run(engine, &p), HP_OK);
    assert_true(x[0] == 1 && x[4] == 5); /* nothing was added */
    p.accumulate = 0;
    assert_int_equal(hp_matmul_run(engine, &p), HP_OK);
    assert_true(x[0] == 0 && x[1] == 0 && x[2] == 3 && x[3] == 0 && x[4] == 0 && x[5] == 6);
    hp_matmul_close(engine);
    hp_matmul_close(NULL);
}

static void expect(hp_status status, hp_status expected, const char *said) {
    assert_int_equal(status, expected);
    if (!strstr(hp_last_error(), said))
        fail_msg("expected \"%s\" in \"%s\"", said, hp_last_error());
}

static void test_refuses(void **state) {
    float x[16] = {0};
    const hp_matmul_args good = {sizeof good, 2, 2,     2,     HP_FP32, HP_FP32, 0, 0,
                                 0,           x, x + 4, x + 8, 2,       2,       2};
    (void)state;
    hp_matmul *engine = open_or_fail("plain", 1);
    hp_matmul_args p = good;
    assert_int_equal(hp_matmul_run(engine, &p), HP_OK);
    expect(hp_matmul_run(NULL, &p), HP_ERR_ARGUMENT, "given NULL");
    expect(hp_matmul_run(engine, NULL), HP_ERR_ARGUMENT, "given NULL");
    p.n = -1;
    expect(hp_matmul_run(engine, &p), HP_ERR_ARGUMENT, "n -1");
    p = good;
    p.out_dtype = HP_BF16;
    expect(hp_matmul_run(engine, &p), HP_ERR_ARGUMENT, "given fp32 in bf16");
    p.dtype = p.out_dtype = HP_INT32;
    expect(hp_matmul_run(engine, &p), HP_ERR_ARGUMENT, "given int32 in int32");
    p = good;
    p.lda = 1;
    expect(hp_matmul_run(engine, &p), HP_ERR_ARGUMENT, "lda");
    p = good;
    p.ldb = 1;
    expect(hp_matmul_run(engine, &p), HP_ERR_ARGUMENT, "ldb");
    p = good;
    p.ldc = 1;
    expect(hp_matmul_run(engine, &p), HP_ERR_ARGUMENT, "ldc");
    p = good;
    p.m = 3; /* as [k][m] a row has 3 */
    p.transpose_a = 1;
    expect(hp_matmul_run(engine, &p), HP_ERR_ARGUMENT, "3 elements, given 2");
    p = good;
    p.c = NULL;
    expect(hp_matmul_run(engine, &p), HP_ERR_ARGUMENT, "c of 2 x 2, given NULL");
    p = good;
    p.size = 0;
    expect(hp_matmul_run(engine, &p), HP_ERR_VERSION, "HP_MATMUL_ARGS_INIT");
    hp_matmul wrong = *engine;
    wrong.size = 4;
    expect(hp_matmul_run(&wrong, &good), HP_ERR_ARGUMENT, "given 4");
    hp_matmul_close(engine);
}

/* ---- opening ---- */

static void test_open_refuses(void **state) {
    hp_matmul *engine = NULL;
    (void)state;
    expect(hp_matmul_open("mkl", 1, &engine), HP_ERR_ARGUMENT, "auto, plain, onednn");
    expect(hp_matmul_open("plain", 0, &engine), HP_ERR_ARGUMENT, "given 0");
    expect(hp_matmul_open("plain", 1, NULL), HP_ERR_ARGUMENT, "given NULL");
    assert_null(engine);
}

static void expect_auto(hp_status expected, const char *said) {
    hp_matmul *engine = NULL;
#ifdef HP_PLAIN_KERNELS
    (void)expected;
    (void)said;
    engine = open_or_fail("auto", 1);
    assert_non_null(strstr(engine->note, "sanitizers"));
    hp_matmul_close(engine);
#else
    expect(hp_matmul_open("auto", 1, &engine), expected, said);
    assert_null(engine);
#endif
}

static void test_missing_plugin(void **state) {
    hp_matmul *engine = NULL;
    const char *given = getenv("HYPER_PARALLEL_PLUGINS");
    char *real = given ? hpi_strdup(given) : NULL;
    (void)state;
    setenv("HYPER_PARALLEL_PLUGINS", scratch, 1);
    expect(hp_matmul_open("onednn", 1, &engine), HP_ERR_UNSUPPORTED, scratch);
    assert_null(engine);
    expect_auto(HP_ERR_UNSUPPORTED, scratch); /* a folder that was named is meant */
    scratch_write("matmul_onednn.so", "no shared object");
    expect(hp_matmul_open("onednn", 1, &engine), HP_ERR_UNSUPPORTED, "could not be loaded");
    expect_auto(HP_ERR_UNSUPPORTED, "could not be loaded");
    unsetenv("HYPER_PARALLEL_PLUGINS");
    if (real)
        setenv("HYPER_PARALLEL_PLUGINS", real, 1);
    hpi_free(real);
}

static void test_option(void **state) {
    hp_matmul *engine = NULL;
    (void)state;
    setenv("HYPER_PARALLEL_MATMUL", "plain", 1);
    engine = open_or_fail(NULL, 1);
    assert_string_equal(engine->name, "plain");
    hp_matmul_close(engine);
    setenv("HYPER_PARALLEL_MATMUL", "fast", 1);
    expect(hp_matmul_open(NULL, 1, &engine), HP_ERR_ARGUMENT, "given \"fast\"");
    unsetenv("HYPER_PARALLEL_MATMUL");
}

static void test_auto(void **state) {
    (void)state;
    hp_matmul *engine = open_or_fail(NULL, 1), *onednn = NULL;
    const bool is_there = hp_matmul_open("onednn", 1, &onednn) == HP_OK;
#ifdef HP_PLAIN_KERNELS
    assert_string_equal(engine->name, "plain");
#else
    assert_string_equal(engine->name, is_there ? "onednn" : "plain");
#endif
    assert_true(is_there || strstr(hp_last_error(), "matmul_onednn.so"));
    if (strcmp(engine->name, "plain") == 0)
        assert_true(engine->note && *engine->note);
    else
        assert_null(engine->note);
    hp_matmul_close(onednn);
    hp_matmul_close(engine);
}

/* Every allocation of an opening and of a first call may fail. */
static void check_starved(const char *name) {
    hp_matmul *engine = NULL;
    hp_status status = HP_ERR_MEMORY;
    const layout l = {5, 3, 7, 0, HP_BF16, HP_BF16, 0, 0, 0};
    for (uint64_t n = 1; status == HP_ERR_MEMORY; n++) {
        hpi_alloc_fail_after(n);
        status = hp_matmul_open(name, 1, &engine);
        if (status == HP_OK) {
            const hp_matmul_args p = fill_all(&l, 0);
            status = hp_matmul_run(engine, &p);
            hp_matmul_close(engine);
        }
        assert_true(n < 20);
    }
    hpi_alloc_fail_after(0);
    assert_int_equal(status, HP_OK);
}

static void test_starved(void **state) {
    (void)state;
    check_starved("plain");
    hp_matmul_close(onednn_or_skip(1));
    check_starved("onednn");
}

/* ---- what a call costs ---- */

static int count_threads(void) {
    int n = 0;
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    for (struct dirent *entry; (entry = readdir(tasks));)
        n += entry->d_name[0] != '.';
    closedir(tasks);
    return n;
}

/* Threads of a process after one product. Of its own: run times keep their threads. */
static int threads_after_product(int n_threads) {
    int status = 0;
    const pid_t child = fork();
    if (child == 0) {
        const layout l = {200, 200, 200, 0, HP_FP32, HP_FP32, 0, 1, 0};
        const hp_matmul_args p = fill_all(&l, 0);
        hp_matmul *engine = NULL;
        const bool ran = hp_matmul_open("onednn", n_threads, &engine) == HP_OK &&
                         hp_matmul_run(engine, &p) == HP_OK;
        _exit(!ran ? 100 : count_threads());
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void test_threads(void **state) {
    (void)state;
    hp_matmul_close(onednn_or_skip(1));
    assert_int_equal(threads_after_product(1), 1);
    assert_int_equal(threads_after_product(2), 2);
}

static void check_warm(hp_matmul *engine, const layout *l) {
    const hp_matmul_args p = fill_all(l, 0);
    assert_int_equal(hp_matmul_run(engine, &p), HP_OK);
}

static void test_warm_calls_take_nothing(void **state) {
    (void)state;
    hp_matmul *engine = onednn_or_skip(1);
    each_layout(engine, check_warm);
    const uint64_t n_before = hpi_alloc_count();
    each_layout(engine, check_warm);
    assert_int_equal(hpi_alloc_count(), n_before);
    hp_matmul_close(engine);
}

/* Ranks may be threads of one process, each with an engine of its own. */
enum { N_RANKS = 4, SIDE = 96 };

typedef struct rank {
    pthread_t thread;
    hp_status status;
    float out[SIDE * SIDE];
} rank;

static void *run_rank(void *argument) {
    rank *r = argument;
    hp_matmul *engine;
    r->status = hp_matmul_open("auto", 1, &engine);
    if (r->status < 0)
        return NULL;
    for (int64_t k = 1; k <= SIDE && r->status == HP_OK; k++) {
        const hp_matmul_args p = {sizeof p, SIDE,     SIDE,     k,      HP_FP32, HP_FP32, 0,   1,
                                  1,        a.memory, b.memory, r->out, SIDE,    SIDE,    SIDE};
        r->status = hp_matmul_run(engine, &p);
    }
    hp_matmul_close(engine);
    return NULL;
}

static void test_ranks_as_threads(void **state) {
    static rank ranks[N_RANKS];
    (void)state;
    fill(&a, a.memory, HP_FP32, SIDE, SIDE, SIDE, 0, 1);
    fill(&b, b.memory, HP_FP32, SIDE, SIDE, SIDE, 0, 2);
    for (int i = 0; i < N_RANKS; i++)
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
    for (int i = 0; i < N_RANKS; i++) {
        pthread_join(ranks[i].thread, NULL);
        assert_int_equal(ranks[i].status, HP_OK);
        assert_memory_equal(ranks[i].out, ranks[0].out, sizeof ranks[0].out);
    }
}

/* While a product runs, another thread's is refused. */
static hp_status second_status;

static void *run_second(void *argument) {
    float x[3] = {0};
    const hp_matmul_args p = {sizeof p, 1,     1,     1,     HP_FP32, HP_FP32, 0, 0,
                              0,        &x[0], &x[1], &x[2], 1,       1,       1};
    second_status = hp_matmul_run(argument, &p);
    return NULL;
}

static hp_status run_both(hp_matmul *matmul, const hp_matmul_args *p) {
    pthread_t second;
    (void)p;
    assert_int_equal(pthread_create(&second, NULL, run_second, matmul), 0);
    pthread_join(second, NULL);
    return HP_OK;
}

static void test_one_at_a_time(void **state) {
    float x[3] = {2, 3, 0};
    const hp_matmul_args p = {sizeof p, 1,     1,     1,     HP_FP32, HP_FP32, 0, 0,
                              0,        &x[0], &x[1], &x[2], 1,       1,       1};
    hp_matmul engine = {.size = sizeof engine, .name = "both", .run = run_both, .n_threads = 1};
    (void)state;
    for (int k = 0; k < 2; k++) {
        second_status = HP_OK;
        assert_int_equal(hp_matmul_run(&engine, &p), HP_OK);
        assert_int_equal(second_status, HP_ERR_BUSY);
    }
}

/* More shapes than the table keeps. */
static void test_many_shapes(void **state) {
    (void)state;
    hp_matmul *engine = onednn_or_skip(1);
    for (int64_t m = 1; m <= 25; m++)
        for (int64_t n = 1; n <= 25; n++) {
            const layout l = {m, n, 2, 0, HP_FP32, HP_FP32, 0, 0, 0};
            check_layout(engine, &l);
        }
    hp_matmul_close(engine);
}

/* The same tests of oneDNN on the processors that it takes this one for. */
static void test_other_processors(void **state) {
    static const char *const names[] = {"SSE41", "AVX2", "AVX512_CORE"};
    (void)state;
    hp_matmul_close(onednn_or_skip(1));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int status = 0;
        const pid_t child = fork();
        if (child == 0) {
            setenv("DNNL_MAX_CPU_ISA", names[i], 1);
            execl("/proc/self/exe", "test_matmul", "onednn", (char *)NULL);
            _exit(100);
        }
        assert_true(child > 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        if (status != 0)
            fail_msg("as on a processor with %s: status %d", names[i], status);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest of_onednn[] = {
        cmocka_unit_test(test_onednn),
        cmocka_unit_test(test_same_bits),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_onednn),
        cmocka_unit_test(test_plain_bits),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_open_refuses),
        cmocka_unit_test_setup_teardown(test_missing_plugin, scratch_make, scratch_remove),
        cmocka_unit_test(test_option),
        cmocka_unit_test(test_auto),
        cmocka_unit_test(test_starved),
        cmocka_unit_test(test_warm_calls_take_nothing),
        cmocka_unit_test(test_many_shapes),
        cmocka_unit_test(test_ranks_as_threads),
        cmocka_unit_test(test_one_at_a_time),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_other_processors),
        cmocka_unit_test(test_onednn_threaded), /* from here on this process has threads */
        cmocka_unit_test(test_same_bits),
    };
    setenv("OMP_WAIT_POLICY", "passive", 1); /* the other tests want the cores too */
    if (argc > 1 && strcmp(argv[1], "onednn") == 0)
        return cmocka_run_group_tests(of_onednn, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * test_fused.c - products that communicate, against the separate form and sums in double.
 *
 * Every kind, dtype and layout, blocks of any length and none, cut in every way; directional
 * derivatives; streams; what is refused; ranks that disagree, come late, or die in the middle.
 */
#include "fused_cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

/* ---- in double, from the numbers themselves ---- */

static double number(hp_dtype dtype, uint64_t seed, int rank, int64_t i) {
    uint32_t room;
    case_put(&room, dtype, 0, case_number(seed, rank, i));
    return case_get(&room, dtype, 0);
}

static double in_b(const fused *f, int rank, int64_t row, int64_t column) {
    const fused_case *w = f->what;
    const bool turned = w->kind != WEIGHTS && w->transpose_b;
    return number(w->dtype, w->seed + 1, rank, turned ? column * w->k + row : row * w->n + column);
}

/* The rank that has row `row` of all, which becomes its row there. */
static int owner(const fused *f, int64_t *row) {
    int rank = 0;
    for (; *row >= f->what->rows[rank]; rank++)
        *row -= f->what->rows[rank];
    return rank;
}

typedef struct bounded {
    double sum, magnitude;
    int64_t n;
} bounded;

static void add(bounded *b, double x, double y) {
    b->sum += x * y;
    b->magnitude += fabs(x * y);
    b->n++;
}

static bounded expected(const fused *f, int64_t i, int64_t j) {
    const fused_case *w = f->what;
    bounded b = {0};
    int64_t row = i;
    if (w->kind == GATHER) {
        const int rank = owner(f, &row);
        for (int64_t p = 0; p < w->k; p++)
            add(&b, number(w->dtype, w->seed, rank, row * w->k + p), in_b(f, f->rank, p, j));
    } else if (w->kind == SCATTER) {
        row += case_before(f, f->rank);
        for (int rank = 0; rank < f->n_ranks; rank++)
            for (int64_t p = 0; p < w->k; p++)
                add(&b, number(w->dtype, w->seed, rank, row * w->k + p), in_b(f, rank, p, j));
    } else {
        for (int64_t p = 0; p < f->m; p++) {
            int64_t r = p;
            const int rank = owner(f, &r);
            add(&b, number(w->dtype, w->seed, rank, r * w->k + (w->transpose_c ? j : i)),
                in_b(f, f->rank, p, w->transpose_c ? i : j));
        }
    }
    return b;
}

static void check_in_double(const fused *f) {
    const fused_case *w = f->what;
    const double eps = w->out_dtype == HP_FP32   ? 0x1p-23
                       : w->out_dtype == HP_FP16 ? 0x1p-10
                                                 : 0x1p-8;
    for (int64_t i = 0; i < f->c_rows; i++)
        for (int64_t j = 0; j < f->c_columns; j++) {
            bounded b = expected(f, i, j);
            if (w->accumulate)
                add(&b, 1, number(w->out_dtype, w->seed + 2, f->rank, i * f->c_columns + j));
            const double bound =
                (double)(b.n + 8) * 0x1p-23 * b.magnitude + eps * fabs(b.sum) + 0x1p-24;
            const double got = case_get(f->c, w->out_dtype, i * f->args.ldc + j);
            RANK_CHECK(fabs(got - b.sum) <= bound);
        }
}

/* ---- against the separate form ---- */

/* All of c, gaps too. A weight gradient in pieces: within the tolerances of the two forms. */
static void check_separate(const fused *f) {
    const fused_case *w = f->what;
    const size_t bytes = (size_t)(f->c_rows * f->args.ldc) * hp_dtype_size(w->out_dtype);
    if (w->kind != WEIGHTS) {
        RANK_CHECK(memcmp(f->c, f->wanted, bytes) == 0);
        return;
    }
    for (int64_t i = 0; i < f->c_rows * f->args.ldc; i++) {
        const double got = case_get(f->c, w->out_dtype, i),
                     x = case_get(f->wanted, w->out_dtype, i);
        RANK_CHECK(fabs(got - x) <= 1e-5 * (fabs(x) + sqrt((double)f->m + 1)));
    }
}

static void check_gathered(const fused *f) {
    const fused_case *w = f->what;
    for (int64_t i = 0; f->args.gathered && w->kind != SCATTER && i < f->m; i++) {
        int64_t row = i;
        const int rank = owner(f, &row);
        for (int64_t j = 0; j < w->k; j++)
            RANK_CHECK(case_get(f->gathered, w->dtype, i * w->k + j) ==
                       number(w->dtype, w->seed, rank, row * w->k + j));
    }
}

/* Twice: the second call must give the first one's bits. */
static void check_case(hp_world *world, hp_matmul *engine, const fused_case *what) {
    hp_group *group = hp_world_group(world);
    fused f;
    fused_open(&f, group, engine, what);
    const size_t bytes = (size_t)(f.c_rows * f.args.ldc) * hp_dtype_size(what->out_dtype);
    void *before = malloc(bytes + 1), *first = malloc(bytes + 1);
    RANK_CHECK(before && first);
    memcpy(before, f.c, bytes);
    RANK_OK(hpi_fused_set_cut(group, &what->cut));
    RANK_OK(fused_run(&f));
    memcpy(first, f.c, bytes);
    memcpy(f.c, before, bytes);
    RANK_OK(fused_run(&f));
    RANK_CHECK(memcmp(first, f.c, bytes) == 0);
    check_gathered(&f);
    separate_run(&f);
    check_separate(&f);
    check_in_double(&f);
    free(before);
    free(first);
    fused_close(&f);
}

static const hp_dtype dtypes[][2] = {{HP_FP32, HP_FP32},
                                     {HP_BF16, HP_BF16},
                                     {HP_BF16, HP_FP32},
                                     {HP_FP16, HP_FP16},
                                     {HP_FP16, HP_FP32}};
enum { N_DTYPES = sizeof dtypes / sizeof *dtypes };

static const int64_t row_sets[][MOST_RANKS] = {
    {8, 8, 8, 8, 8}, {5, 0, 13, 2, 7}, {0, 9, 0, 0, 1}, {0, 0, 0, 0, 0}, {1, 30, 1, 1, 1}};
static const hpi_fused_cut cuts[] = {
    {0, 0, 0, 0}, {1, 4, 8, -1}, {-1, 3, 64, 0}, {-1, 40, 5, 0}, {1, 7, 16, 1}};
static const int64_t sizes[][2] = {{11, 17}, {33, 1}, {1, 20}, {16, 8}, {0, 5}, {6, 0}};
enum { N_ROW_SETS = 5, N_CUTS = 5, N_SIZES = 6 };

/* A case of each kind, whose settings go round with `i`, each in its own step. */
static fused_case case_of(uint64_t i) {
    fused_case c = {.kind = (kind)(i % N_KINDS),
                    .n = sizes[i / 3 % N_SIZES][0],
                    .k = sizes[i / 3 % N_SIZES][1],
                    .dtype = dtypes[i / 2 % N_DTYPES][0],
                    .out_dtype = dtypes[i / 2 % N_DTYPES][1],
                    .transpose_b = i / 5 % 2,
                    .transpose_c = i / 7 % 2,
                    .accumulate = i / 4 % 3 == 1,
                    .is_symmetric = i / 2 % 3 != 0,
                    .wants_gathered = i / 6 % 2,
                    .gap = (int64_t)(i / 3 % 4),
                    .cut = cuts[i / 5 % N_CUTS],
                    .seed = 1000 + i};
    memcpy(c.rows, row_sets[i / 2 % N_ROW_SETS], sizeof c.rows);
    c.is_in_place = c.kind != SCATTER && !c.is_symmetric && i / 11 % 2;
    return c;
}

enum { N_CASES = 180 };
static void cases_body(hp_world *world, void *argument) {
    hp_matmul *engine;
    (void)argument;
    RANK_OK(hp_matmul_open("plain", 1, &engine));
    for (uint64_t i = 0; i < N_CASES; i++) {
        const fused_case c = case_of(i);
        check_case(world, engine, &c);
    }
    hp_matmul_close(engine);
}

static void test_cases(void **state) {
    (void)state;
    for (int n = 1; n <= 5; n++)
        ranks_run(n, RANKS_THREADS, cases_body, NULL);
}

static void test_cases_processes(void **state) {
    (void)state;
    ranks_run(3, RANKS_PROCESSES, cases_body, NULL);
}

/* ---- what the shape alone decides, with the engine that is there ---- */

static void shapes_body(hp_world *world, void *argument) {
    /* cut into blocks, long and short; too short for that: gathered first, multiplied once */
    static const int64_t rows[][MOST_RANKS] = {{700, 801, 650}, {40, 30, 50}, {4, 3, 5}};
    enum { N_ROWS = sizeof rows / sizeof *rows };
    hp_matmul *engine;
    (void)argument;
    RANK_OK(hp_matmul_open("auto", 1, &engine));
    for (int i = 0; i < N_ROWS * N_KINDS * 2; i++) {
        fused_case c = {.kind = (kind)(i % N_KINDS),
                        .n = 48,
                        .k = 64,
                        .dtype = i % 2 ? HP_BF16 : HP_FP32,
                        .out_dtype = HP_FP32,
                        .is_symmetric = true,
                        .transpose_b = 1,
                        .seed = (uint64_t)i};
        fused f;
        memcpy(c.rows, rows[i / N_KINDS % N_ROWS], sizeof c.rows);
        fused_open(&f, hp_world_group(world), engine, &c);
        const size_t bytes = (size_t)(f.c_rows * f.args.ldc) * sizeof(float);
        void *first = malloc(bytes);
        RANK_CHECK(first);
        RANK_OK(fused_run(&f));
        memcpy(first, f.c, bytes);
        RANK_OK(fused_run(&f));
        RANK_CHECK(memcmp(first, f.c, bytes) == 0);
        free(first);
        separate_run(&f);
        for (int64_t j = 0; j < f.c_rows * f.args.ldc; j++)
            RANK_CHECK(fabs(case_get(f.c, HP_FP32, j) - case_get(f.wanted, HP_FP32, j)) <=
                       1e-5 * (fabs(case_get(f.wanted, HP_FP32, j)) + 8));
        fused_close(&f);
    }
    hp_matmul_close(engine);
}

static void test_shapes(void **state) {
    (void)state;
    ranks_run(3, RANKS_THREADS, shapes_body, NULL);
}

/* ---- gradients ---- */

/* <weights, product> over all ranks, of operands a + h da and b + h db. The other operand of the
 * gradients is `s`, as large as c. */
typedef struct slope {
    fused f;
    float *s, *da, *db;
} slope;

static double inner(const float *x, const float *y, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)y[i];
    return sum;
}

static double total(const slope *g, double x) {
    RANK_OK(hp_all_reduce(g->f.group, &x, &x, 1, HP_FP64, HP_SUM));
    return x;
}

static void move(float *x, const float *dx, int64_t n, float h) {
    for (int64_t i = 0; i < n; i++)
        x[i] += h * dx[i];
}

/* The slope of <s, c> along da and db: central differences are exact but for rounding, c being
 * linear in each. */
static double slope_of(slope *g, bool is_along_a) {
    fused *f = &g->f;
    float *x = is_along_a ? f->a : f->b;
    const float *dx = is_along_a ? g->da : g->db;
    const int64_t n = is_along_a ? f->a_rows * f->what->k : f->b_rows * f->b_columns;
    double values[2];
    for (int i = 0; i < 2; i++) {
        move(x, dx, n, i ? -2.0F : 1.0F);
        RANK_OK(fused_run(f));
        values[i] = total(g, inner(g->s, f->c, f->c_rows * f->c_columns));
    }
    move(x, dx, n, 1);
    return (values[0] - values[1]) / 2;
}

static float *case_floats(int64_t n, uint64_t seed, int rank) {
    float *x = case_room(1, n, HP_FP32);
    case_fill(x, HP_FP32, 1, n, n, seed, rank);
    return x;
}

/* The gradients of the rows and of the weights, by the calls that fused.h names. */
static void check_slopes(hp_group *group, hp_matmul *engine, const fused_case *what) {
    slope g;
    fused *f = &g.f;
    fused_open(f, group, engine, what);
    const int64_t n_a = f->a_rows * what->k, n_b = f->b_rows * f->b_columns;
    g.s = case_floats(f->c_rows * f->c_columns, 50, f->rank);
    g.da = case_floats(n_a, 51, f->rank);
    g.db = case_floats(n_b, 52, f->rank);
    float *grad_a = case_room(1, n_a, HP_FP32), *grad_b = case_room(1, n_b, HP_FP32);

    hp_fused_args rows = f->args;
    rows.n = what->k;
    rows.k = what->n;
    rows.transpose_b = !what->transpose_b;
    rows.a = g.s;
    rows.lda = what->n;
    rows.c = grad_a;
    rows.ldc = what->k;
    RANK_OK(what->kind == GATHER ? hp_matmul_reduce_scatter(&rows) : hp_all_gather_matmul(&rows));

    hp_fused_args weights = f->args;
    const bool is_gather = what->kind == GATHER;
    weights.k = is_gather ? what->k : what->n; /* of what is gathered */
    weights.n = is_gather ? what->n : what->k;
    weights.transpose_c = is_gather ? what->transpose_b : !what->transpose_b;
    weights.a = is_gather ? f->a : g.s;
    weights.lda = weights.k;
    weights.b = is_gather ? (void *)g.s : f->a;
    weights.ldb = weights.n;
    weights.c = grad_b;
    weights.ldc = f->b_columns;
    RANK_OK(hp_all_gather_weight_grad(&weights));

    const double by_a = slope_of(&g, true), by_b = slope_of(&g, false);
    RANK_CHECK(fabs(by_a - total(&g, inner(grad_a, g.da, n_a))) <= 1e-4 * (fabs(by_a) + 1));
    RANK_CHECK(fabs(by_b - total(&g, inner(grad_b, g.db, n_b))) <= 1e-4 * (fabs(by_b) + 1));
    free(g.s);
    free(g.da);
    free(g.db);
    free(grad_a);
    free(grad_b);
    fused_close(f);
}

static void slopes_body(hp_world *world, void *argument) {
    hp_matmul *engine;
    (void)argument;
    RANK_OK(hp_matmul_open("plain", 1, &engine));
    for (int i = 0; i < 4; i++) {
        const fused_case c = {.kind = i % 2 ? GATHER : SCATTER,
                              .rows = {6, 0, 9, 3},
                              .n = 10,
                              .k = 7,
                              .dtype = HP_FP32,
                              .out_dtype = HP_FP32,
                              .transpose_b = i / 2,
                              .is_symmetric = true,
                              .seed = 70};
        check_slopes(hp_world_group(world), engine, &c);
    }
    hp_matmul_close(engine);
}

static void test_slopes(void **state) {
    (void)state;
    ranks_run(4, RANKS_THREADS, slopes_body, NULL);
}

/* ---- on streams, many times, without a malloc ---- */

static void stream_body(hp_world *world, void *argument) {
    enum { N = 12 };
    hp_matmul *engine;
    hp_stream *stream;
    fused f[N];
    fused_case cases[N];
    (void)argument;
    RANK_OK(hp_matmul_open("plain", 1, &engine));
    RANK_OK(hp_stream_create(NULL, &stream));
    for (int i = 0; i < N; i++) {
        cases[i] = case_of((uint64_t)i);
        fused_open(&f[i], hp_world_group(world), engine, &cases[i]);
    }
    for (int i = 0; i < N; i++) {
        int64_t rows[MOST_RANKS];
        memcpy(rows, cases[i].rows, sizeof rows);
        f[i].args.rows = rows;
        f[i].args.stream = stream;
        RANK_OK(fused_run(&f[i]));
        memset(rows, 0xff, sizeof rows); /* it was copied */
    }
    RANK_OK(hp_stream_synchronize(stream));
    for (int i = 0; i < N; i++) {
        separate_run(&f[i]);
        check_separate(&f[i]);
        fused_close(&f[i]);
    }
    hp_stream_destroy(stream);
    hp_matmul_close(engine);
}

static void test_stream(void **state) {
    (void)state;
    ranks_run(3, RANKS_THREADS, stream_body, NULL);
}

static void again_body(hp_world *world, void *argument) {
    const int n_calls = *(const int *)argument;
    hp_group *group = hp_world_group(world);
    hp_matmul *engine;
    uint64_t warm = 0;
    RANK_OK(hp_matmul_open("plain", 1, &engine));
    for (int which = 0; which < N_KINDS; which++) {
        const fused_case c = {.kind = (kind)which,
                              .rows = {9, 4, 0},
                              .n = 24,
                              .k = 5,
                              .dtype = HP_FP32,
                              .out_dtype = HP_FP32,
                              .is_symmetric = which == WEIGHTS,
                              .cut = {1, 3, 8, 0}};
        fused f;
        fused_open(&f, group, engine, &c);
        RANK_OK(hpi_fused_set_cut(group, &c.cut));
        separate_run(&f);
        for (int i = 0; i < n_calls; i++) {
            RANK_OK(fused_run(&f));
            check_separate(&f);
            if (i == 1) {
                RANK_OK(hp_barrier(group)); /* ranks are threads here, and count together */
                warm = hpi_alloc_count();
                RANK_OK(hp_barrier(group));
            }
        }
        RANK_OK(hp_barrier(group));
        RANK_CHECK(hpi_alloc_count() == warm);
        RANK_OK(hp_barrier(group));
        fused_close(&f);
    }
    hp_matmul_close(engine);
}

static void test_again(void **state) {
    int n_calls = 200; /* of 15 tiles each: slots are used again, and hold new numbers */
    (void)state;
    ranks_run(3, RANKS_THREADS, again_body, &n_calls);
}

/* ---- what is refused ---- */

static void refuse(hp_status status, hp_status expected, const char *said) {
    RANK_FAILS(status, expected);
    RANK_CHECK(strstr(hp_last_error(), said));
}

static void misuse_body(hp_world *world, void *argument) {
    const fused_case c = {
        .kind = GATHER, .rows = {3, 4}, .n = 5, .k = 6, .dtype = HP_FP32, .out_dtype = HP_FP32};
    hp_matmul *engine;
    fused f;
    (void)argument;
    RANK_OK(hp_matmul_open("plain", 1, &engine));
    fused_open(&f, hp_world_group(world), engine, &c);
    const hp_fused_args good = f.args;
#define REFUSED(change, status, said)                                                              \
    do {                                                                                           \
        hp_fused_args bad = good;                                                                  \
        change;                                                                                    \
        refuse(hp_all_gather_matmul(&bad), status, said);                                          \
    } while (0)
    refuse(hp_all_gather_matmul(NULL), HP_ERR_ARGUMENT, "arguments, given NULL");
    REFUSED(bad.group = NULL, HP_ERR_ARGUMENT, "a group, given NULL");
    REFUSED(bad.matmul = NULL, HP_ERR_ARGUMENT, "an engine, given NULL");
    REFUSED(bad.size--, HP_ERR_VERSION, "HP_FUSED_ARGS_INIT");
    REFUSED(bad.rows = NULL, HP_ERR_ARGUMENT, "rows of each rank, given NULL");
    REFUSED(bad.n = -1, HP_ERR_ARGUMENT, "n -1");
    REFUSED(bad.dtype = HP_FP64, HP_ERR_ARGUMENT, "given fp64");
    REFUSED(bad.out_dtype = HP_BF16, HP_ERR_ARGUMENT, "given fp32 and bf16");
    REFUSED(bad.lda = 5, HP_ERR_ARGUMENT, "lda");
    REFUSED(bad.ldb = 4, HP_ERR_ARGUMENT, "ldb");
    REFUSED(bad.ldc = 4, HP_ERR_ARGUMENT, "ldc");
    REFUSED(bad.a = NULL, HP_ERR_ARGUMENT, "expected a of");
    REFUSED(bad.ldc = INT64_MAX / 2, HP_ERR_ARGUMENT, "less than 2^63 bytes");
    const int64_t negative[MOST_RANKS] = {3, -4};
    REFUSED(bad.rows = negative, HP_ERR_ARGUMENT, "-4 for rank 1");
#undef REFUSED
    RANK_OK(hp_all_gather_matmul(&good)); /* nobody has failed, and nobody waits */
    fused_close(&f);
    hp_matmul_close(engine);
}

static void test_misuse(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, misuse_body, NULL);
}

/* Rank 1 means something else. */
static void differ_body(hp_world *world, void *argument) {
    const int how = *(const int *)argument;
    const bool is_other = hp_world_rank(world) == 1;
    hp_matmul *engine;
    fused f;
    fused_case c = {.kind = how == 0 && is_other ? SCATTER
                            : how == 4           ? SCATTER
                                                 : GATHER,
                    .rows = {3, 4, 2},
                    .n = how == 4 && is_other ? 8 : 6,
                    .k = how == 1 && is_other ? 7 : 6,
                    .dtype = how == 2 && is_other ? HP_BF16 : HP_FP32,
                    .out_dtype = HP_FP32,
                    .is_symmetric = true};
    if (how == 3 && is_other)
        c.rows[2]++;
    RANK_OK(hp_matmul_open("plain", 1, &engine));
    fused_open(&f, hp_world_group(world), engine, &c);
    const hp_status status = fused_run(&f);
    RANK_CHECK(status == HP_ERR_MISMATCH || status == HP_ERR_PEER);
    RANK_FAILS(hp_barrier(f.group), status); /* it stays failed */
    if (status == HP_ERR_MISMATCH)
        RANK_CHECK(strstr(hp_last_error(), "expected the same call of all ranks"));
    hp_matmul_close(engine);
    ranks_die(); /* what is left cannot be freed together */
}

static void test_differ(void **state) {
    (void)state;
    for (int how = 0; how < 5; how++)
        ranks_run(3, RANKS_PROCESSES, differ_body, &how);
}

static void nodes_body(hp_world *world, void *argument) {
    const int64_t rows[4] = {1, 1, 1, 1};
    hp_matmul *engine;
    (void)argument;
    RANK_OK(hp_matmul_open("plain", 1, &engine));
    hp_fused_args args = HP_FUSED_ARGS_INIT;
    args.group = hp_world_group(world);
    args.matmul = engine;
    args.rows = rows;
    refuse(hp_all_gather_matmul(&args), HP_ERR_UNSUPPORTED, "on this node");
    hp_matmul_close(engine);
}

static void test_nodes(void **state) {
    (void)state;
    ranks_run_nodes(4, 2, nodes_body, NULL);
}

/* ---- a rank that dies in the middle ---- */

/* An engine that ends its rank in the third product. */
static hp_status dying_run(hp_matmul *matmul, const hp_matmul_args *args) {
    int *n_left = matmul->state;
    (void)args;
    if (--*n_left == 0)
        ranks_die();
    return HP_OK;
}

static const char *const names[N_KINDS] = {"all_gather_matmul", "matmul_reduce_scatter",
                                           "all_gather_weight_grad"};

static void death_body(hp_world *world, void *argument) {
    const bool is_victim = hp_world_rank(world) == 1;
    int n_left = is_victim ? 3 : -1;
    hp_matmul engine = {.size = sizeof engine, .name = "dying", .run = dying_run, .state = &n_left};
    fused_case c = {.kind = *(const kind *)argument,
                    .rows = {8, 8, 8},
                    .n = 8,
                    .k =
                        8200, /* blocks that are read where they lie: rank 1 is needed to the end */
                    .dtype = HP_FP32,
                    .out_dtype = HP_FP32,
                    .is_symmetric = true,
                    .cut = {1, 2, 8, -1}};
    fused f;
    fused_open(&f, hp_world_group(world), &engine, &c);
    RANK_OK(hpi_fused_set_cut(f.group, &c.cut));
    const hp_status status = fused_run(&f);
    RANK_FAILS(status, HP_ERR_PEER);
    RANK_CHECK(!is_victim);
    RANK_CHECK(strstr(hp_last_error(), names[c.kind]));
    RANK_CHECK(strstr(hp_last_error(), "rank 1"));
    ranks_die();
}

static void test_death(void **state) {
    (void)state;
    for (kind what = GATHER; what < N_KINDS; what++)
        ranks_run(3, RANKS_PROCESSES, death_body, &what);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),  cmocka_unit_test(test_cases_processes),
        cmocka_unit_test(test_shapes), cmocka_unit_test(test_slopes),
        cmocka_unit_test(test_stream), cmocka_unit_test(test_again),
        cmocka_unit_test(test_misuse), cmocka_unit_test(test_differ),
        cmocka_unit_test(test_nodes),  cmocka_unit_test(test_death),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

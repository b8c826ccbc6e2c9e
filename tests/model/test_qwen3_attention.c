/* SPDX-License-Identifier: Apache-2.0
 *
 * test_qwen3_attention.c - attention against plain formulas in double, forward and backward.
 *
 * The reference's own gradients are held to directional derivatives of its forward; the kernel is
 * held to the reference, element by element. Then what must hold to the bit: a sequence depends on
 * no other, a token on none that follows.
 */
#include "base/base.h"
#include "qwen3/attention.h"
#include "support/oracle.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { Q, K, V, OUT, D_OUT, D_Q, D_K, D_V, N_ARRAYS };

typedef struct shape {
    size_t n_sequences, seq, n_heads, n_kv_heads, head_dim;
} shape;

static const shape shapes[] = {{0, 7, 2, 2, 8},   {1, 1, 1, 1, 4},  {2, 5, 4, 2, 8},
                               {1, 64, 2, 1, 16}, {3, 65, 4, 4, 6}, {2, 130, 6, 2, 20},
                               {1, 200, 4, 2, 64}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

/* A problem: the arrays in double and as the kernel has them (gradients in fp32). */
typedef struct problem {
    shape s;
    hp_dtype dtype;
    double *exact[N_ARRAYS], *lse;
    void *arrays[N_ARRAYS];
    float *kernel_lse;
    qwen3_attention attention;
} problem;

static size_t n_tokens(const shape *s) {
    return s->n_sequences * s->seq;
}

static size_t n_elements(const shape *s, int array) {
    const bool is_kv = array == K || array == V || array == D_K || array == D_V;
    return n_tokens(s) * s->head_dim * (is_kv ? s->n_kv_heads : s->n_heads);
}

static hp_dtype dtype_of(const problem *p, int array) {
    return array >= D_Q ? HP_FP32 : p->dtype;
}

static void put(const problem *p, int array, size_t i, double value) {
    if (dtype_of(p, array) == HP_BF16)
        ((uint16_t *)p->arrays[array])[i] = oracle_to_bf16((float)value);
    else
        ((float *)p->arrays[array])[i] = (float)value;
}

static double get(const problem *p, int array, size_t i) {
    return dtype_of(p, array) == HP_BF16
               ? (double)oracle_from_bf16(((const uint16_t *)p->arrays[array])[i])
               : (double)((const float *)p->arrays[array])[i];
}

/* q, k, v and d_out random, `spread` wide; what is to be computed is NaN. */
static problem problem_create(hp_matmul *matmul, const shape *s, hp_dtype dtype, double spread) {
    problem p = {.s = *s, .dtype = dtype};
    uint64_t seed = 5;
    for (int array = 0; array < N_ARRAYS; array++) {
        const size_t n = n_elements(s, array);
        p.exact[array] = hpi_alloc(n, sizeof(double));
        p.arrays[array] = hpi_alloc_aligned(64, n * sizeof(float));
        for (size_t i = 0; i < n; i++) {
            const bool is_given = array < OUT || array == D_OUT;
            put(&p, array, i, is_given ? spread * (2 * hpi_random_unit(&seed) - 1) : NAN);
            p.exact[array][i] = get(&p, array, i);
        }
    }
    p.lse = hpi_alloc(n_tokens(s) * s->n_heads, sizeof(double));
    p.kernel_lse = hpi_alloc(n_tokens(s) * s->n_heads, sizeof(float));
    p.attention = (qwen3_attention){s->n_sequences, s->seq, s->n_heads, s->n_kv_heads,
                                    s->head_dim,    dtype,  matmul,     NULL};
    p.attention.scratch = hpi_alloc_aligned(64, qwen3_attention_scratch_bytes(&p.attention));
    return p;
}

static void problem_destroy(problem *p) {
    for (int array = 0; array < N_ARRAYS; array++) {
        hpi_free(p->exact[array]);
        hpi_free(p->arrays[array]);
    }
    hpi_free(p->lse);
    hpi_free(p->kernel_lse);
    hpi_free(p->attention.scratch);
}

/* ---- the reference ---- */

static double *row_of(const problem *p, int array, size_t token, size_t head) {
    const bool is_kv = array == K || array == V || array == D_K || array == D_V;
    const size_t group = p->s.n_heads / p->s.n_kv_heads;
    const size_t n = is_kv ? p->s.n_kv_heads : p->s.n_heads;
    return p->exact[array] + (token * n + (is_kv ? head / group : head)) * p->s.head_dim;
}

static double dot(const double *x, const double *y, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

static void add_scaled(double *out, double factor, const double *x, size_t n) {
    for (size_t i = 0; i < n; i++)
        out[i] += factor * x[i];
}

static double score(const problem *p, size_t token, size_t other, size_t head) {
    return dot(row_of(p, Q, token, head), row_of(p, K, other, head), p->s.head_dim) /
           sqrt((double)p->s.head_dim);
}

static double *lse_of(const problem *p, size_t token, size_t head) {
    return &p->lse[head * n_tokens(&p->s) + token];
}

static void reference_forward(const problem *p, size_t token, size_t head) {
    const size_t first = token / p->s.seq * p->s.seq, dim = p->s.head_dim;
    double most = -INFINITY, sum = 0;
    for (size_t j = first; j <= token; j++)
        most = fmax(most, score(p, token, j, head));
    for (size_t j = first; j <= token; j++)
        sum += exp(score(p, token, j, head) - most);
    *lse_of(p, token, head) = most + log(sum);
    double *out = row_of(p, OUT, token, head);
    memset(out, 0, dim * sizeof *out);
    for (size_t j = first; j <= token; j++)
        add_scaled(out, exp(score(p, token, j, head) - *lse_of(p, token, head)),
                   row_of(p, V, j, head), dim);
}

/* d_out -> d_q, and shares of d_k and d_v. */
static void reference_backward(const problem *p, size_t token, size_t head) {
    const size_t first = token / p->s.seq * p->s.seq, dim = p->s.head_dim;
    const double *d_out = row_of(p, D_OUT, token, head);
    const double mean = dot(d_out, row_of(p, OUT, token, head), dim);
    for (size_t j = first; j <= token; j++) {
        const double probability = exp(score(p, token, j, head) - *lse_of(p, token, head));
        const double d =
            probability * (dot(d_out, row_of(p, V, j, head), dim) - mean) / sqrt((double)dim);
        add_scaled(row_of(p, D_V, j, head), probability, d_out, dim);
        add_scaled(row_of(p, D_Q, token, head), d, row_of(p, K, j, head), dim);
        add_scaled(row_of(p, D_K, j, head), d, row_of(p, Q, token, head), dim);
    }
}

static void each_row(const problem *p, void (*body)(const problem *, size_t, size_t)) {
    for (size_t token = 0; token < n_tokens(&p->s); token++)
        for (size_t head = 0; head < p->s.n_heads; head++)
            body(p, token, head);
}

static void reference(const problem *p) {
    for (int array = D_Q; array <= D_V; array++)
        for (size_t i = 0; i < n_elements(&p->s, array); i++)
            p->exact[array][i] = 0;
    each_row(p, reference_forward);
    each_row(p, reference_backward);
}

/* sum(out * d_out), whose gradients the reference computes. */
static double loss(const problem *p) {
    each_row(p, reference_forward);
    return dot(p->exact[OUT], p->exact[D_OUT], n_elements(&p->s, OUT));
}

/* Moves one input by `step` along a random direction; returns what its gradient foretells. */
static double move(const problem *p, int array, double step) {
    uint64_t seed = 77;
    double foretold = 0;
    for (size_t i = 0; i < n_elements(&p->s, array); i++) {
        const double direction = 2 * hpi_random_unit(&seed) - 1;
        foretold += direction * p->exact[D_Q + array - Q][i];
        p->exact[array][i] += step * direction;
    }
    return foretold;
}

static void test_reference(void **state) {
    const double step = 1e-5;
    (void)state;
    for (int i = 0; i < N_SHAPES - 1; i++) {
        problem p = problem_create(NULL, &shapes[i], HP_FP32, 1);
        reference(&p);
        for (int array = Q; array <= V; array++) {
            const double foretold = move(&p, array, step);
            const double above = loss(&p);
            move(&p, array, -2 * step);
            const double below = loss(&p);
            move(&p, array, step);
            const double found = (above - below) / (2 * step);
            assert_true(fabs(found - foretold) <= 1e-7 * (1 + fabs(foretold)));
        }
        problem_destroy(&p);
    }
}

/* ---- the kernel ---- */

static void run(problem *p) {
    void **x = p->arrays;
    const qwen3_attention *a = &p->attention;
    assert_int_equal(qwen3_attention_forward(a, x[Q], x[K], x[V], x[OUT], p->kernel_lse), HP_OK);
    assert_int_equal(qwen3_attention_backward(a, x[Q], x[K], x[V], x[OUT], p->kernel_lse, x[D_OUT],
                                              x[D_Q], x[D_K], x[D_V]),
                     HP_OK);
}

/* Within `tolerance` of the array's largest element. */
static void check_array(const problem *p, int array, double tolerance) {
    static const char *const names[N_ARRAYS] = {"q", "k", "v", "out", "d_out", "d_q", "d_k", "d_v"};
    const size_t n = n_elements(&p->s, array);
    double most = 0;
    for (size_t i = 0; i < n; i++)
        most = fmax(most, fabs(p->exact[array][i]));
    for (size_t i = 0; i < n; i++)
        if (!(fabs(get(p, array, i) - p->exact[array][i]) <= tolerance * most))
            fail_msg("seq %zu heads %zu/%zu dim %zu %s: expected %g in %s at %zu, given %g",
                     p->s.seq, p->s.n_heads, p->s.n_kv_heads, p->s.head_dim,
                     hp_dtype_name(p->dtype), p->exact[array][i], names[array], i,
                     get(p, array, i));
}

static void check_against_reference(hp_matmul *matmul, const shape *s, hp_dtype dtype,
                                    double spread) {
    /* bf16: probabilities, their gradient and out are rounded, by 2^-9 each */
    const double tolerance = dtype == HP_BF16 ? 0x1p-6 : 1e-5 * spread;
    problem p = problem_create(matmul, s, dtype, spread);
    reference(&p);
    run(&p);
    for (int array = OUT; array < N_ARRAYS; array++)
        check_array(&p, array, tolerance);
    for (size_t i = 0; i < n_tokens(s) * s->n_heads; i++)
        assert_true(fabs((double)p.kernel_lse[i] - p.lse[i]) <= 2e-6 * (1 + fabs(p.lse[i])));
    problem_destroy(&p);
}

static hp_matmul *open_engine(const char *name) {
    hp_matmul *matmul;
    if (hp_matmul_open(name, 1, &matmul) < 0)
        fail_msg("%s", hp_last_error());
    return matmul;
}

static void check_engine(const char *name) {
    hp_matmul *matmul = open_engine(name);
    for (int i = 0; i < N_SHAPES; i++) {
        check_against_reference(matmul, &shapes[i], HP_FP32, 1);
        check_against_reference(matmul, &shapes[i], HP_FP32, 8); /* nearly one-hot */
        check_against_reference(matmul, &shapes[i], HP_BF16, 1);
    }
    hp_matmul_close(matmul);
}

static void test_plain(void **state) {
    (void)state;
    check_engine("plain");
}

static void test_best(void **state) {
    (void)state;
    check_engine("auto");
}

/* Rows of one sequence among three are the bits of that sequence alone. */
static void check_alone(hp_matmul *matmul, const shape *s, hp_dtype dtype) {
    shape three = *s;
    three.n_sequences = 3;
    shape one = three;
    one.n_sequences = 1;
    problem all = problem_create(matmul, &three, dtype, 1);
    problem alone = problem_create(matmul, &one, dtype, 1);
    for (int array = 0; array < N_ARRAYS; array++) {
        const size_t bytes = n_elements(&one, array) * hp_dtype_size(dtype_of(&all, array));
        memcpy(alone.arrays[array], (char *)all.arrays[array] + bytes, bytes);
    }
    run(&all);
    run(&alone);
    for (int array = OUT; array < N_ARRAYS; array++) {
        const size_t bytes = n_elements(&one, array) * hp_dtype_size(dtype_of(&all, array));
        assert_memory_equal((char *)all.arrays[array] + bytes, alone.arrays[array], bytes);
    }
    problem_destroy(&all);
    problem_destroy(&alone);
}

static void test_sequences_are_independent(void **state) {
    (void)state;
    hp_matmul *matmul = open_engine("auto");
    for (int i = 1; i < N_SHAPES; i++) {
        check_alone(matmul, &shapes[i], HP_FP32);
        check_alone(matmul, &shapes[i], HP_BF16);
    }
    hp_matmul_close(matmul);
}

/* Other numbers in the second half of a sequence leave the bits of the first half. */
static void test_causal(void **state) {
    const shape s = {1, 100, 4, 2, 16};
    const size_t half = s.seq / 2;
    (void)state;
    hp_matmul *matmul = open_engine("auto");
    problem p = problem_create(matmul, &s, HP_FP32, 1),
            other = problem_create(matmul, &s, HP_FP32, 1);
    for (int array = Q; array <= V; array++)
        for (size_t i = n_elements(&s, array) / 2; i < n_elements(&s, array); i++)
            put(&other, array, i, -3 * get(&p, array, i));
    run(&p);
    run(&other);
    assert_memory_equal(p.arrays[OUT], other.arrays[OUT],
                        half * s.n_heads * s.head_dim * sizeof(float));
    for (size_t head = 0; head < s.n_heads; head++)
        assert_memory_equal(p.kernel_lse + head * s.seq, other.kernel_lse + head * s.seq,
                            half * sizeof(float));
    assert_memory_not_equal(p.arrays[OUT], other.arrays[OUT],
                            s.seq * s.n_heads * s.head_dim * sizeof(float));
    problem_destroy(&p);
    problem_destroy(&other);
    hp_matmul_close(matmul);
}

/* Each row once more, alone against the keys so far. */
static void check_one(hp_matmul *matmul, const shape *s, hp_dtype dtype) {
    problem p = problem_create(matmul, s, dtype, 1);
    const size_t q_row = s->n_heads * s->head_dim * hp_dtype_size(dtype);
    reference(&p);
    for (size_t token = 0; token < s->seq; token++) /* of the first sequence */
        qwen3_attention_one(&p.attention, (char *)p.arrays[Q] + token * q_row, p.arrays[K],
                            p.arrays[V], token + 1, (char *)p.arrays[OUT] + token * q_row);
    p.s.n_sequences = 1;
    check_array(&p, OUT, dtype == HP_BF16 ? 0x1p-8 : 1e-5);
    problem_destroy(&p);
}

static void test_one(void **state) {
    (void)state;
    hp_matmul *matmul = open_engine("plain");
    for (int i = 1; i < N_SHAPES; i++) {
        check_one(matmul, &shapes[i], HP_FP32);
        check_one(matmul, &shapes[i], HP_BF16);
    }
    hp_matmul_close(matmul);
}

/* ---- an engine that fails ---- */

static hp_status fail_later(hp_matmul *matmul, const hp_matmul_args *args) {
    int *left = matmul->state;
    (void)args;
    return (*left)-- > 0 ? HP_OK : hp_error_set(HP_ERR_UNSUPPORTED, NULL, "no product today");
}

static void test_errors_are_passed_on(void **state) {
    int left = 0;
    hp_matmul broken = {
        .size = sizeof broken, .name = "broken", .run = fail_later, .n_threads = 1, .state = &left};
    problem p = problem_create(&broken, &shapes[2], HP_FP32, 1);
    void **x = p.arrays;
    (void)state;
    for (int n = 0; n < 2; n++) {
        left = n;
        assert_int_equal(
            qwen3_attention_forward(&p.attention, x[Q], x[K], x[V], x[OUT], p.kernel_lse),
            HP_ERR_UNSUPPORTED);
    }
    for (int n = 0; n < 5; n++) {
        left = n;
        assert_int_equal(qwen3_attention_backward(&p.attention, x[Q], x[K], x[V], x[OUT],
                                                  p.kernel_lse, x[D_OUT], x[D_Q], x[D_K], x[D_V]),
                         HP_ERR_UNSUPPORTED);
    }
    problem_destroy(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_best),
        cmocka_unit_test(test_sequences_are_independent),
        cmocka_unit_test(test_causal),
        cmocka_unit_test(test_one),
        cmocka_unit_test(test_errors_are_passed_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

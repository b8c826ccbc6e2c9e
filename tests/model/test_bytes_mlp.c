/* SPDX-License-Identifier: Apache-2.0
 *
 * test_bytes_mlp.c - the model's arithmetic, without ranks.
 *
 * The network is written down a second time, in fp64 and in the plainest way (reference_loss). A
 * directional derivative of that, by central difference, must equal the inner product of the
 * direction with the fp32 gradients of the layers; one random direction per tensor. The kernels
 * must give the bits of the obvious loop, since the order of sums is part of their contract.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bytes_mlp/kernels.h"
#include "bytes_mlp/layers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Small and odd, so that every kernel has a rest to deal with. */
enum { WINDOW = 3, SEQ = 5, WIDTH = 7, HIDDEN = 10, BLOCKS = 2, SAMPLES = 4 };
enum { SAMPLE_BYTES = WINDOW + SEQ, ROWS = SAMPLES * SEQ, V = BYTES_MLP_VOCABULARY };

/* Where each tensor begins in one flat array of all weights. */
enum {
    TABLE = 0,
    BLOCK0 = TABLE + WINDOW * V * WIDTH,
    W1 = 0,
    B1 = W1 + WIDTH * HIDDEN,
    W2 = B1 + HIDDEN,
    B2 = W2 + HIDDEN * WIDTH,
    BLOCK_SIZE = B2 + WIDTH,
    HEAD_W = BLOCK0 + BLOCKS * BLOCK_SIZE,
    HEAD_B = HEAD_W + WIDTH * V,
    N_WEIGHTS = HEAD_B + V
};
static const bytes_mlp_sizes sizes = {WINDOW, SEQ, WIDTH, HIDDEN};

static double random_unit(uint64_t *state) { /* in [-1, 1) */
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(*state >> 11) * 0x1.0p-52 - 1;
}

/* ---- kernels ---- */

static void fill(float *out, size_t n, uint64_t seed) {
    for (size_t i = 0; i < n; i++)
        out[i] = (float)random_unit(&seed);
}

static void plain_matmul_add(float *c, const float *a, const float *b, size_t n_i, size_t n_p,
                             size_t n_j) {
    for (size_t i = 0; i < n_i; i++)
        for (size_t j = 0; j < n_j; j++)
            for (size_t p = 0; p < n_p; p++)
                c[i * n_j + j] += a[i * n_p + p] * b[p * n_j + j];
}

static void check_matmul(size_t n_i, size_t n_p, size_t n_j) {
    enum { MOST = 70 * 70 };
    static float a[MOST], turned[MOST], b[MOST], c[MOST], d[MOST], want[MOST];
    fill(a, n_i * n_p, 1);
    fill(b, n_p * n_j, 2);
    fill(want, n_i * n_j, 3);
    memcpy(c, want, sizeof c);
    memcpy(d, want, sizeof d);
    plain_matmul_add(want, a, b, n_i, n_p, n_j);
    bytes_mlp_matmul_add(c, (bytes_mlp_matrix){a, n_p, 1}, b, n_i, n_p, n_j);
    assert_memory_equal(c, want, n_i * n_j * sizeof *c);
    bytes_mlp_transpose(turned, a, n_i, n_p);
    bytes_mlp_matmul_add(d, (bytes_mlp_matrix){turned, 1, n_i}, b, n_i, n_p, n_j);
    assert_memory_equal(d, want, n_i * n_j * sizeof *d);
}

static void matmul_has_the_bits_of_the_plain_loop(void **state) {
    (void)state;
    for (size_t i = 0; i < 10; i++)
        for (size_t p = 0; p < 10; p++)
            for (size_t j = 1; j < 10; j++)
                check_matmul(i, p, j);
    check_matmul(8, 12, 64);
    check_matmul(67, 65, 70);
}

/* Rows are independent: a row's bits do not change with the rows around it. */
static void rows_do_not_depend_on_each_other(void **state) {
    (void)state;
    enum { N = 9, P = 16, J = 32 };
    float a[N * P], b[P * J], all[N * J] = {0}, one[J] = {0};
    fill(a, N * P, 4);
    fill(b, P * J, 5);
    bytes_mlp_matmul_add(all, (bytes_mlp_matrix){a, P, 1}, b, N, P, J);
    bytes_mlp_matmul_add(one, (bytes_mlp_matrix){a + 2 * P, P, 1}, b, 1, P, J);
    assert_memory_equal(one, all + 2 * J, sizeof one);
}

static void softmax_is_stable(void **state) {
    (void)state;
    float logits[3 * 4] = {1000, -1000, 0, 0, -1e30F, -1e30F, -1e30F, -1e30F, 0, 0, 0, 0};
    const unsigned char target[3] = {1, 2, 3};
    const double loss = bytes_mlp_softmax_loss(logits, target, 3, 4);
    assert_true(fabs(loss - (2000 + 2 * log(4))) < 1e-9);
    for (int i = 0; i < 3; i++) {
        const float *p = logits + 4 * i;
        assert_true(fabsf(p[0] + p[1] + p[2] + p[3] - 1) < 1e-6F);
    }
}

/* ---- the network, twice ---- */

static void reference_norm(const double *h, double *x) {
    double squares = 0;
    for (int j = 0; j < WIDTH; j++)
        squares += h[j] * h[j];
    for (int j = 0; j < WIDTH; j++)
        x[j] = h[j] / sqrt(squares / WIDTH + 1e-5);
}

static void reference_block(double *h, const double *w) {
    double x[WIDTH], a[HIDDEN];
    reference_norm(h, x);
    for (int k = 0; k < HIDDEN; k++) {
        a[k] = w[B1 + k];
        for (int j = 0; j < WIDTH; j++)
            a[k] += x[j] * w[W1 + j * HIDDEN + k];
        a[k] = fmax(a[k], 0);
    }
    for (int j = 0; j < WIDTH; j++) {
        h[j] += w[B2 + j];
        for (int k = 0; k < HIDDEN; k++)
            h[j] += a[k] * w[W2 + k * WIDTH + j];
    }
}

static double reference_head(const double *h, const double *w, int target) {
    double x[WIDTH], sum = 0, logit_of_target = 0;
    reference_norm(h, x);
    for (int v = 0; v < V; v++) {
        double logit = w[HEAD_B + v];
        for (int j = 0; j < WIDTH; j++)
            logit += x[j] * w[HEAD_W + j * V + v];
        sum += exp(logit);
        if (v == target)
            logit_of_target = logit;
    }
    return log(sum) - logit_of_target;
}

/* Mean over all rows, in fp64. */
static double reference_loss(const double *w, const unsigned char *samples) {
    double loss = 0;
    for (int i = 0; i < ROWS; i++) {
        const unsigned char *byte = samples + i / SEQ * SAMPLE_BYTES + WINDOW + i % SEQ;
        double h[WIDTH] = {0};
        for (int place = 0; place < WINDOW; place++)
            for (int j = 0; j < WIDTH; j++)
                h[j] += w[TABLE + (place * V + byte[-1 - place]) * WIDTH + j];
        for (int l = 0; l < BLOCKS; l++)
            reference_block(h, w + BLOCK0 + l * BLOCK_SIZE);
        loss += reference_head(h, w, *byte);
    }
    return loss / ROWS;
}

static bytes_mlp_block block_at(const float *w, int l) {
    w += BLOCK0 + l * BLOCK_SIZE;
    return (bytes_mlp_block){w + W1, w + B1, w + W2, w + B2};
}

static bytes_mlp_block_grad block_grad_at(float *g, int l) {
    g += BLOCK0 + l * BLOCK_SIZE;
    return (bytes_mlp_block_grad){g + W1, g + B1, g + W2, g + B2};
}

/* The model's own layers on the first n_samples: mean loss, and the gradients of all weights. */
static double layers_loss(const float *w, const unsigned char *samples, size_t n_samples,
                          float *g) {
    static float h[ROWS * WIDTH], x[ROWS * WIDTH], scale[ROWS], p[ROWS * V];
    static float saved_x[BLOCKS][ROWS * WIDTH], saved_scale[BLOCKS][ROWS];
    static float saved_a[BLOCKS][ROWS * HIDDEN];
    static float d_wide[ROWS * V], d_x[ROWS * WIDTH], turned[WIDTH * V], tree[3 * WIDTH * V];
    const bytes_mlp_scratch scratch = {d_wide, d_x, turned, tree};
    assert_int_equal(bytes_mlp_tree_levels(SAMPLES), 3);
    unsigned char target[ROWS];
    for (size_t i = 0; i < n_samples * SEQ; i++)
        target[i] = samples[i / SEQ * SAMPLE_BYTES + WINDOW + i % SEQ];

    bytes_mlp_embed(&sizes, h, w + TABLE, samples, n_samples);
    for (int l = 0; l < BLOCKS; l++)
        bytes_mlp_block_forward(&sizes, h, block_at(w, l),
                                (bytes_mlp_saved){saved_x[l], saved_scale[l], saved_a[l]},
                                n_samples);
    const double loss =
        bytes_mlp_head_forward(&sizes, h, w + HEAD_W, w + HEAD_B, x, scale, p, target, n_samples);

    bytes_mlp_head_backward(&sizes, h, w + HEAD_W, g + HEAD_W, g + HEAD_B, x, scale, p, target, 1,
                            scratch, n_samples);
    for (int l = BLOCKS; l-- > 0;)
        bytes_mlp_block_backward(&sizes, h, block_at(w, l), block_grad_at(g, l),
                                 (bytes_mlp_saved){saved_x[l], saved_scale[l], saved_a[l]}, scratch,
                                 n_samples);
    bytes_mlp_embed_grad(&sizes, g + TABLE, h, samples, scratch, n_samples);
    return loss / (double)(n_samples * SEQ);
}

typedef struct network {
    float w[N_WEIGHTS], g[N_WEIGHTS];
    double wide[N_WEIGHTS]; /* w in fp64 */
    unsigned char samples[SAMPLES * SAMPLE_BYTES];
    double loss;
} network;

static int network_setup(void **state) {
    network *net = calloc(1, sizeof *net);
    uint64_t seed = 7;
    if (!net)
        return 1;
    for (int i = 0; i < N_WEIGHTS; i++) {
        net->w[i] = (float)(0.8 * random_unit(&seed));
        net->g[i] = NAN; /* a backward must write every element */
        net->wide[i] = (double)net->w[i];
    }
    for (size_t i = 0; i < sizeof net->samples; i++) /* few bytes: table rows are used many times */
        net->samples[i] = (unsigned char)(i * 7 % 11 * 23);
    net->loss = layers_loss(net->w, net->samples, SAMPLES, net->g);
    *state = net;
    return 0;
}

static int network_teardown(void **state) {
    free(*state);
    return 0;
}

static void forward_matches_the_reference(void **state) {
    const network *net = *state;
    assert_true(fabs(net->loss - reference_loss(net->wide, net->samples)) < 2e-6 * net->loss);
}

/* d/dt loss(w + t direction) at 0, the direction living in elements [begin, begin + n). */
static void check_tensor(const network *net, int begin, int n) {
    static double there[N_WEIGHTS], back[N_WEIGHTS];
    const double t = 1e-6;
    double from_gradient = 0;
    uint64_t seed = (uint64_t)begin + 11;
    memcpy(there, net->wide, sizeof there);
    memcpy(back, net->wide, sizeof back);
    for (int i = begin; i < begin + n; i++) {
        const double direction = random_unit(&seed);
        there[i] += t * direction;
        back[i] -= t * direction;
        from_gradient += direction * (double)net->g[i];
    }
    const double difference =
        (reference_loss(there, net->samples) - reference_loss(back, net->samples)) / (2 * t);
    assert_true(fabs(difference) > 1e-4); /* else the direction tells nothing */
    assert_true(fabs(from_gradient - difference) < 1e-5 * fabs(difference) + 1e-7);
}

static void gradients_match_central_differences(void **state) {
    const network *net = *state;
    check_tensor(net, TABLE, WINDOW * V * WIDTH);
    for (int l = 0; l < BLOCKS; l++) {
        const int block = BLOCK0 + l * BLOCK_SIZE;
        check_tensor(net, block + W1, WIDTH * HIDDEN);
        check_tensor(net, block + B1, HIDDEN);
        check_tensor(net, block + W2, HIDDEN * WIDTH);
        check_tensor(net, block + B2, WIDTH);
    }
    check_tensor(net, HEAD_W, WIDTH * V);
    check_tensor(net, HEAD_B, V);
}

static void backward_writes_every_element(void **state) {
    const network *net = *state;
    for (int i = 0; i < N_WEIGHTS; i++)
        assert_true(net->g[i] == net->g[i]); /* not NaN */
}

/* Two ranks with half of the samples each: the mean of their gradients has one rank's bits. */
static void gradients_do_not_depend_on_the_ranks(void **state) {
    const network *net = *state;
    static float left[N_WEIGHTS], right[N_WEIGHTS], mean[N_WEIGHTS];
    const unsigned char *middle = net->samples + SAMPLES / 2 * SAMPLE_BYTES;
    const double loss = layers_loss(net->w, net->samples, SAMPLES / 2, left) +
                        layers_loss(net->w, middle, SAMPLES / 2, right);
    for (int i = 0; i < N_WEIGHTS; i++)
        mean[i] = (left[i] + right[i]) / 2;
    assert_true(loss / 2 == net->loss);
    for (int i = 0; i < N_WEIGHTS; i++)
        assert_true(mean[i] == net->g[i]);
}

/* A rank that has no samples in a pass contributes zeros, not what was there. */
static void no_samples_give_zero_gradients(void **state) {
    (void)state;
    float w[WIDTH * V] = {0}, d_w[WIDTH * V], d_b[V], turned[WIDTH * V], none = 0;
    const unsigned char no_target = 0;
    memset(d_w, 0xff, sizeof d_w);
    memset(d_b, 0xff, sizeof d_b);
    bytes_mlp_head_backward(&sizes, &none, w, d_w, d_b, &none, &none, &none, &no_target, 1,
                            (bytes_mlp_scratch){&none, &none, turned, &none}, 0);
    for (int i = 0; i < WIDTH * V; i++)
        assert_true(d_w[i] == 0);
    for (int i = 0; i < V; i++)
        assert_true(d_b[i] == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matmul_has_the_bits_of_the_plain_loop),
        cmocka_unit_test(rows_do_not_depend_on_each_other),
        cmocka_unit_test(softmax_is_stable),
        cmocka_unit_test_setup_teardown(forward_matches_the_reference, network_setup,
                                        network_teardown),
        cmocka_unit_test_setup_teardown(gradients_match_central_differences, network_setup,
                                        network_teardown),
        cmocka_unit_test_setup_teardown(backward_writes_every_element, network_setup,
                                        network_teardown),
        cmocka_unit_test_setup_teardown(gradients_do_not_depend_on_the_ranks, network_setup,
                                        network_teardown),
        cmocka_unit_test(no_samples_give_zero_gradients),
    };
    return cmocka_run_group_tests_name("bytes_mlp", tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * test_qwen3_layers.c - embedding, layer and head against the same network in fp64.
 *
 * The network (reference_loss) is written down a second time, in the plainest way. Its gradients
 * are central differences in fp64: of every single weight where the network is small, along random
 * directions where it is larger. The layers run on the engine "plain", in fp32 and bf16; all that
 * they write is filled with NaN before, so an element that is left out shows.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "qwen3/kernels.h"
#include "qwen3/layers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Tensors of the whole network, in the order of one flat array. */
enum {
    TABLE, /* [vocab][hidden] */
    INPUT_NORM,
    Q,
    K,
    V,
    Q_NORM,
    K_NORM,
    O,
    POST_NORM,
    GATE,
    UP,
    DOWN,
    NORM,
    HEAD, /* [vocab][hidden] */
    N_TENSORS
};

typedef struct network {
    qwen3_shape s;
    size_t n_sequences, seq, n;
    size_t begin[N_TENSORS + 1]; /* of each tensor, in elements */
    double *theta;               /* all weights, as the layers see them */
    void *weights[N_TENSORS];    /* in dtype */
    void *grads[N_TENSORS];      /* in grad_dtype */
    int32_t *tokens, *targets;   /* [n] */
    float *cosines, *sines;
    void *saved, *head_saved, *scratch;
    float *h, *dh, *logits;
    double loss;
} network;

static const double loss_weight = 0.25;

static void *taken(size_t n_bytes) {
    void *p = aligned_alloc(64, (n_bytes + 64) / 64 * 64);
    assert_non_null(p);
    memset(p, 0xff, (n_bytes + 64) / 64 * 64); /* NaN, in every dtype */
    return p;
}

static uint64_t next(uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 11;
}
static double random_unit(uint64_t *state) { /* in [-1, 1) */
    return (double)next(state) * 0x1.0p-52 - 1;
}

static size_t n_of(const network *t, int tensor) {
    return t->begin[tensor + 1] - t->begin[tensor];
}

static void lay_tensors(network *t) {
    const qwen3_shape *s = &t->s;
    const size_t q = s->n_heads * s->head_dim * s->hidden;
    const size_t kv = s->n_kv_heads * s->head_dim * s->hidden;
    const size_t swiglu = s->intermediate * s->hidden, ends = s->vocab * s->hidden;
    const size_t sizes[N_TENSORS] = {ends,        s->hidden,   q,         kv,        kv,
                                     s->head_dim, s->head_dim, q,         s->hidden, swiglu,
                                     swiglu,      swiglu,      s->hidden, ends};
    t->begin[0] = 0;
    for (int i = 0; i < N_TENSORS; i++)
        t->begin[i + 1] = t->begin[i] + sizes[i];
}

/* Weights that no part of the network makes small: norms around 1, matrices of unit gain. */
static void fill_weights(network *t, uint64_t seed) {
    for (int i = 0; i < N_TENSORS; i++) {
        const size_t n = n_of(t, i), inputs = i == DOWN ? t->s.intermediate : t->s.hidden;
        const bool is_norm = n == t->s.hidden || n == t->s.head_dim;
        float *values = taken(n * sizeof *values);
        for (size_t j = 0; j < n; j++)
            values[j] = (float)(is_norm ? 1 + 0.5 * random_unit(&seed)
                                        : random_unit(&seed) * 1.7 / sqrt((double)inputs));
        t->weights[i] = taken(n * hp_dtype_size(t->s.dtype));
        qwen3_round(t->s.dtype, values, n, t->weights[i]);
        qwen3_widen(t->s.dtype, t->weights[i], n, values);
        for (size_t j = 0; j < n; j++)
            t->theta[t->begin[i] + j] = (double)values[j];
        free(values);
        t->grads[i] = taken(n * hp_dtype_size(t->s.grad_dtype));
    }
}

/* Some tokens come twice, one target in five does not count. */
static void fill_tokens(network *t, uint64_t seed) {
    for (size_t i = 0; i < t->n; i++) {
        t->tokens[i] = (int32_t)(next(&seed) % t->s.vocab);
        t->targets[i] = next(&seed) % 5 == 0 ? -100 : (int32_t)(next(&seed) % t->s.vocab);
    }
}

static network network_create(qwen3_shape s, size_t n_sequences, size_t seq) {
    network t = {.s = s, .n_sequences = n_sequences, .seq = seq, .n = n_sequences * seq};
    const size_t angles = (seq + 1) * s.head_dim / 2;
    lay_tensors(&t);
    t.theta = taken(t.begin[N_TENSORS] * sizeof *t.theta);
    t.tokens = taken(t.n * sizeof *t.tokens);
    t.targets = taken(t.n * sizeof *t.targets);
    fill_weights(&t, 1 + s.hidden);
    fill_tokens(&t, 2 + seq);
    t.cosines = taken(angles * sizeof *t.cosines);
    t.sines = taken(angles * sizeof *t.sines);
    qwen3_rope_fill(seq + 1, s.head_dim, 100, t.cosines, t.sines);
    t.s.cosines = t.cosines;
    t.s.sines = t.sines;
    assert_int_equal(hp_matmul_open("plain", 1, &t.s.matmul), HP_OK);
    t.saved = taken(qwen3_saved_bytes(&t.s, n_sequences, seq));
    t.head_saved = taken(qwen3_head_saved_bytes(&t.s, t.n));
    t.scratch = taken(qwen3_scratch_bytes(&t.s, n_sequences, seq));
    t.h = taken(t.n * s.hidden * sizeof *t.h);
    t.dh = taken(t.n * s.hidden * sizeof *t.dh);
    t.logits = taken(t.n * s.vocab * sizeof *t.logits);
    return t;
}

static void network_destroy(network *t) {
    for (int i = 0; i < N_TENSORS; i++) {
        free(t->weights[i]);
        free(t->grads[i]);
    }
    hp_matmul_close(t->s.matmul);
    void *const memory[] = {t->theta,      t->tokens,  t->targets, t->cosines, t->sines, t->saved,
                            t->head_saved, t->scratch, t->h,       t->dh,      t->logits};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        free(memory[i]);
}

static qwen3_layer_weights weights_of(const network *t) {
    void *const *w = t->weights;
    return (qwen3_layer_weights){w[INPUT_NORM], w[Q],         w[K],    w[V],  w[Q_NORM], w[K_NORM],
                                 w[O],          w[POST_NORM], w[GATE], w[UP], w[DOWN]};
}
static qwen3_layer_grads grads_of(const network *t) {
    void *const *g = t->grads;
    return (qwen3_layer_grads){g[INPUT_NORM], g[Q],         g[K],    g[V],  g[Q_NORM], g[K_NORM],
                               g[O],          g[POST_NORM], g[GATE], g[UP], g[DOWN]};
}

static hp_status layer_forward(network *t) {
    const qwen3_layer_weights w = weights_of(t);
    return qwen3_layer_forward(&t->s, t->n_sequences, t->seq, &w, t->h, t->saved, t->scratch);
}
static hp_status layer_backward(network *t) {
    const qwen3_layer_weights w = weights_of(t);
    const qwen3_layer_grads g = grads_of(t);
    return qwen3_layer_backward(&t->s, t->n_sequences, t->seq, &w, &g, t->saved, t->dh, t->scratch);
}

static void forward(network *t) {
    qwen3_embed_forward(&t->s, t->weights[TABLE], t->tokens, t->n, t->h);
    assert_int_equal(layer_forward(t), HP_OK);
    assert_int_equal(qwen3_head_forward(&t->s, t->weights[NORM], t->weights[HEAD], t->h, t->n,
                                        t->targets, t->logits, t->head_saved, &t->loss),
                     HP_OK);
}

static void backward(network *t) {
    assert_int_equal(qwen3_head_backward(&t->s, t->weights[NORM], t->weights[HEAD], t->grads[NORM],
                                         t->grads[HEAD], t->targets, t->n, loss_weight, t->logits,
                                         t->head_saved, t->dh, t->scratch),
                     HP_OK);
    assert_int_equal(layer_backward(t), HP_OK);
    qwen3_embed_backward(&t->s, t->tokens, t->n, t->dh, t->grads[TABLE], t->scratch);
}

static float grad_of(const network *t, int tensor, size_t i) {
    float g;
    qwen3_widen(t->s.grad_dtype, (char *)t->grads[tensor] + i * hp_dtype_size(t->s.grad_dtype), 1,
                &g);
    return g;
}

/* ---- the same network in fp64 ---- */

/* y[i] = sum over j of w[i][j] x[j]. */
static void times(const double *w, const double *x, size_t n_out, size_t n_in, double *y) {
    for (size_t i = 0; i < n_out; i++) {
        y[i] = 0;
        for (size_t j = 0; j < n_in; j++)
            y[i] += w[i * n_in + j] * x[j];
    }
}

static void normed(const double *w, const double *x, size_t n, double eps, double *y) {
    double squares = 0;
    for (size_t j = 0; j < n; j++)
        squares += x[j] * x[j];
    for (size_t j = 0; j < n; j++)
        y[j] = w[j] * x[j] / sqrt(squares / (double)n + eps);
}

/* Norm and rotation of one head, in place. */
static void turned(const double *w, size_t dim, size_t position, double eps, double *x) {
    normed(w, x, dim, eps, x);
    for (size_t i = 0; i < dim / 2; i++) {
        const double angle = (double)position * pow(100, -2.0 * (double)i / (double)dim);
        const double a = x[i], b = x[i + dim / 2];
        x[i] = a * cos(angle) - b * sin(angle);
        x[i + dim / 2] = a * sin(angle) + b * cos(angle);
    }
}

/* One head of one query over the keys up to its own. Rows of k and v are `step` apart. */
static void attended(const double *q, const double *k, const double *v, size_t n_keys, size_t step,
                     size_t dim, double *out) {
    double sum = 0;
    for (size_t c = 0; c < dim; c++)
        out[c] = 0;
    for (size_t j = 0; j < n_keys; j++) {
        double score = 0;
        for (size_t c = 0; c < dim; c++)
            score += q[c] * k[j * step + c];
        const double e = exp(score / sqrt((double)dim));
        sum += e;
        for (size_t c = 0; c < dim; c++)
            out[c] += e * v[j * step + c];
    }
    for (size_t c = 0; c < dim; c++)
        out[c] /= sum;
}

/* h += o attention(norm(h)), of one sequence: [seq][hidden]. */
static void reference_attention(const network *t, const double *theta, double *h) {
    const qwen3_shape *s = &t->s;
    const size_t *at = t->begin, dim = s->head_dim, q_step = s->n_heads * dim;
    const size_t kv_step = s->n_kv_heads * dim, group = s->n_heads / s->n_kv_heads;
    double *q = taken(t->seq * q_step * sizeof *q), *k = taken(t->seq * kv_step * sizeof *k);
    double *v = taken(t->seq * kv_step * sizeof *v), *x = taken(s->hidden * sizeof *x);
    double *out = taken(q_step * sizeof *out), *more = taken(s->hidden * sizeof *more);
    for (size_t i = 0; i < t->seq; i++) {
        normed(theta + at[INPUT_NORM], h + i * s->hidden, s->hidden, (double)s->eps, x);
        times(theta + at[Q], x, q_step, s->hidden, q + i * q_step);
        times(theta + at[K], x, kv_step, s->hidden, k + i * kv_step);
        times(theta + at[V], x, kv_step, s->hidden, v + i * kv_step);
        for (size_t c = 0; c < q_step; c += dim)
            turned(theta + at[Q_NORM], dim, i, (double)s->eps, q + i * q_step + c);
        for (size_t c = 0; c < kv_step; c += dim)
            turned(theta + at[K_NORM], dim, i, (double)s->eps, k + i * kv_step + c);
        for (size_t head = 0; head < s->n_heads; head++)
            attended(q + i * q_step + head * dim, k + head / group * dim, v + head / group * dim,
                     i + 1, kv_step, dim, out + head * dim);
        times(theta + at[O], out, s->hidden, q_step, more);
        for (size_t j = 0; j < s->hidden; j++)
            h[i * s->hidden + j] += more[j];
    }
    void *const memory[] = {q, k, v, x, out, more};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        free(memory[i]);
}

/* h += down(silu(gate(norm(h))) * up(norm(h))), of one token. */
static void reference_swiglu(const network *t, const double *theta, double *h) {
    const qwen3_shape *s = &t->s;
    const size_t *at = t->begin, wide = s->intermediate;
    double *x = taken(s->hidden * sizeof *x), *gate = taken(wide * sizeof *gate);
    double *up = taken(wide * sizeof *up);
    normed(theta + at[POST_NORM], h, s->hidden, (double)s->eps, x);
    times(theta + at[GATE], x, wide, s->hidden, gate);
    times(theta + at[UP], x, wide, s->hidden, up);
    for (size_t j = 0; j < wide; j++)
        up[j] *= gate[j] / (1 + exp(-gate[j]));
    times(theta + at[DOWN], up, s->hidden, wide, x);
    for (size_t j = 0; j < s->hidden; j++)
        h[j] += x[j];
    free(x);
    free(gate);
    free(up);
}

/* out_h [n][hidden], out_logits [n][vocab]: NULL where nobody asks. Returns loss_weight times the
 * sum of the losses. */
static double reference_loss(const network *t, const double *theta, double *out_h,
                             double *out_logits) {
    const qwen3_shape *s = &t->s;
    const size_t *at = t->begin, hidden = s->hidden;
    double *h = taken(t->n * hidden * sizeof *h), *x = taken(hidden * sizeof *x);
    double *logits = taken(s->vocab * sizeof *logits), loss = 0;
    for (size_t i = 0; i < t->n; i++)
        memcpy(h + i * hidden, theta + at[TABLE] + (size_t)t->tokens[i] * hidden,
               hidden * sizeof *h);
    for (size_t i = 0; i < t->n_sequences; i++)
        reference_attention(t, theta, h + i * t->seq * hidden);
    for (size_t i = 0; i < t->n; i++) {
        double sum = 0;
        reference_swiglu(t, theta, h + i * hidden);
        normed(theta + at[NORM], h + i * hidden, hidden, (double)s->eps, x);
        times(theta + at[HEAD], x, s->vocab, hidden, logits);
        for (size_t j = 0; j < s->vocab; j++)
            sum += exp(logits[j]);
        if (t->targets[i] >= 0)
            loss += log(sum) - logits[t->targets[i]];
        if (out_logits)
            memcpy(out_logits + i * s->vocab, logits, s->vocab * sizeof *logits);
    }
    if (out_h)
        memcpy(out_h, h, t->n * hidden * sizeof *h);
    free(h);
    free(x);
    free(logits);
    return loss_weight * loss;
}

/* ---- agreement ---- */

/* |a - b| / |b|, over all elements together. */
static double distance(const float *a, const double *b, size_t n) {
    double apart = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        apart += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += b[i] * b[i];
    }
    return sqrt(apart / size);
}

static void check_forward(network *t, double bound) {
    double *h = taken(t->n * t->s.hidden * sizeof *h);
    double *logits = taken(t->n * t->s.vocab * sizeof *logits);
    const double loss = reference_loss(t, t->theta, h, logits);
    forward(t);
    assert_true(distance(t->h, h, t->n * t->s.hidden) < bound);
    assert_true(distance(t->logits, logits, t->n * t->s.vocab) < bound);
    assert_true(fabs(loss_weight * t->loss - loss) < bound * (1 + fabs(loss)));
    free(h);
    free(logits);
}

/* The derivative by theta[i], in fp64. */
static double derivative(const network *t, double *theta, size_t i) {
    const double step = 1e-5, there = theta[i];
    theta[i] = there + step;
    const double above = reference_loss(t, theta, NULL, NULL);
    theta[i] = there - step;
    const double below = reference_loss(t, theta, NULL, NULL);
    theta[i] = there;
    return (above - below) / (2 * step);
}

/* Every element of every gradient, relative to the size of its tensor's gradient. */
static void check_elements(network *t, double bound) {
    forward(t);
    backward(t);
    for (int tensor = 0; tensor < N_TENSORS; tensor++) {
        const size_t n = n_of(t, tensor);
        float *grad = taken(n * sizeof *grad);
        double *want = taken(n * sizeof *want), most = 0;
        qwen3_widen(t->s.grad_dtype, t->grads[tensor], n, grad);
        for (size_t i = 0; i < n; i++) {
            want[i] = derivative(t, t->theta, t->begin[tensor] + i);
            most = fmax(most, fabs(want[i]));
        }
        for (size_t i = 0; i < n; i++)
            assert_true(fabs((double)grad[i] - want[i]) <= bound * (most + 1e-5));
        assert_true(distance(grad, want, n) < bound || most < 1e-5);
        free(grad);
        free(want);
    }
}

/* One random direction per tensor: its product with the gradient is the slope of the loss. */
static void check_directions(network *t, double bound) {
    uint64_t seed = 77;
    double *theta = taken(t->begin[N_TENSORS] * sizeof *theta),
           *turn = taken(t->begin[N_TENSORS] * sizeof *turn);
    forward(t);
    backward(t);
    for (int tensor = 0; tensor < N_TENSORS; tensor++) {
        const double step = 1e-5;
        double slope = 0, size = 0, loss[2];
        for (size_t i = 0; i < n_of(t, tensor); i++) {
            turn[i] = random_unit(&seed);
            const double g = (double)grad_of(t, tensor, i);
            slope += turn[i] * g;
            size += g * g;
        }
        for (int side = 0; side < 2; side++) {
            memcpy(theta, t->theta, t->begin[N_TENSORS] * sizeof *theta);
            for (size_t i = 0; i < n_of(t, tensor); i++)
                theta[t->begin[tensor] + i] += side == 0 ? step * turn[i] : -step * turn[i];
            loss[side] = reference_loss(t, theta, NULL, NULL);
        }
        /* A random direction of unit entries has about |gradient| of slope. */
        assert_true(fabs((loss[0] - loss[1]) / (2 * step) - slope) < bound * sqrt(size));
    }
    free(theta);
    free(turn);
}

static qwen3_shape shape(size_t hidden, size_t intermediate, size_t n_heads, size_t n_kv_heads,
                         size_t head_dim, size_t vocab) {
    return (qwen3_shape){.hidden = hidden,
                         .intermediate = intermediate,
                         .n_heads = n_heads,
                         .n_kv_heads = n_kv_heads,
                         .head_dim = head_dim,
                         .vocab = vocab,
                         .eps = 1e-3F, /* large enough to show when it is left out */
                         .dtype = HP_FP32,
                         .grad_dtype = HP_FP32};
}
static qwen3_shape small_shape(void) {
    return shape(24, 20, 4, 2, 6, 11);
}

static void every_gradient_agrees_with_fp64(void **state) {
    (void)state;
    const struct {
        qwen3_shape s;
        size_t n_sequences, seq;
    } cases[] = {
        {small_shape(), 3, 5},               /* grouped */
        {shape(24, 20, 4, 4, 6, 11), 3, 5},  /* not grouped */
        {shape(10, 33, 3, 1, 10, 40), 2, 3}, /* one key head for all; wider inside than outside */
        {shape(17, 7, 1, 1, 2, 5), 1, 1},    /* one token */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        network t = network_create(cases[i].s, cases[i].n_sequences, cases[i].seq);
        check_forward(&t, 2e-6);
        check_elements(&t, 1e-4);
        network_destroy(&t);
    }
}

static void slopes_agree_with_fp64(void **state) {
    (void)state;
    qwen3_shape s = shape(48, 72, 4, 2, 16, 60);
    network t = network_create(s, 2, 70);
    check_forward(&t, 2e-6);
    check_directions(&t, 1e-4);
    network_destroy(&t);
    s.dtype = HP_BF16;
    t = network_create(s, 2, 70);
    check_forward(&t, 2e-2);
    check_directions(&t, 5e-2);
    network_destroy(&t);
}

static void gradients_of_bf16_are_near(void **state) {
    (void)state;
    qwen3_shape s = small_shape();
    s.dtype = HP_BF16;
    network t = network_create(s, 3, 5);
    check_forward(&t, 2e-2);
    check_elements(&t, 5e-2);
    network_destroy(&t);
}

/* ---- what is written, and where ---- */

/* bf16 gradients are the fp32 ones, rounded once. Products may differ in the order of sums where a
 * band of rows is computed at a time, so a neighbour is allowed. */
static void bf16_gradients_are_rounded_once(void **state) {
    (void)state;
    for (int k = 0; k < 2; k++) {
        /* head: 2,600 rows of 50 are three bands */
        qwen3_shape s = shape(50, 20, 4, 2, 6, 2600);
        s.dtype = k == 0 ? HP_FP32 : HP_BF16;
        network wide = network_create(s, 2, 5);
        s.grad_dtype = HP_BF16;
        network narrow = network_create(s, 2, 5);
        forward(&wide);
        backward(&wide);
        forward(&narrow);
        backward(&narrow);
        for (int tensor = 0; tensor < N_TENSORS; tensor++)
            for (size_t i = 0; i < n_of(&wide, tensor); i++) {
                const float g = grad_of(&wide, tensor, i);
                assert_true(fabsf(grad_of(&narrow, tensor, i) - g) <= 0x1.01p-8F * fabsf(g));
            }
        network_destroy(&wide);
        network_destroy(&narrow);
    }
}

static void no_sequences_give_zero_gradients(void **state) {
    (void)state;
    for (int k = 0; k < 4; k++) {
        qwen3_shape s = small_shape();
        s.dtype = k % 2 ? HP_BF16 : HP_FP32;
        s.grad_dtype = k / 2 ? HP_BF16 : HP_FP32;
        network t = network_create(s, 0, 5);
        forward(&t);
        assert_true(t.loss == 0);
        backward(&t);
        for (int tensor = 0; tensor < N_TENSORS; tensor++)
            for (size_t i = 0; i < n_of(&t, tensor); i++)
                assert_true(grad_of(&t, tensor, i) == 0);
        network_destroy(&t);
    }
}

static void rows_without_target_pass_nothing_back(void **state) {
    (void)state;
    network t = network_create(small_shape(), 3, 5);
    for (size_t i = 0; i < t.n; i++)
        t.targets[i] = i < 5 ? 3 : -1;
    forward(&t);
    backward(&t);
    for (size_t i = 0; i < t.n * t.s.hidden; i++)
        assert_true((t.dh[i] == 0) == (i >= 5 * t.s.hidden));
    for (size_t i = 0; i < t.n; i++)
        t.targets[i] = -1;
    forward(&t);
    assert_true(t.loss == 0);
    backward(&t);
    for (int tensor = 0; tensor < N_TENSORS; tensor++)
        for (size_t i = 0; i < n_of(&t, tensor); i++)
            assert_true(grad_of(&t, tensor, i) == 0);
    network_destroy(&t);
}

static void without_targets_there_are_logits_alone(void **state) {
    (void)state;
    network t = network_create(small_shape(), 3, 5);
    forward(&t);
    float *logits = taken(t.n * t.s.vocab * sizeof *logits);
    double untouched = 7;
    assert_int_equal(qwen3_head_forward(&t.s, t.weights[NORM], t.weights[HEAD], t.h, t.n, NULL,
                                        logits, t.head_saved, &untouched),
                     HP_OK);
    assert_memory_equal(logits, t.logits, t.n * t.s.vocab * sizeof *logits);
    assert_true(untouched == 7);
    free(logits);
    network_destroy(&t);
}

/* ---- bits ---- */

static void check_recompute(hp_dtype dtype) {
    qwen3_shape s = small_shape();
    s.dtype = dtype;
    network a = network_create(s, 3, 5), b = network_create(s, 3, 5);
    const size_t n_bytes = a.n * s.hidden * sizeof(float);
    forward(&a);
    forward(&b);
    backward(&a);
    /* What a model does that keeps a layer's input alone. */
    memset(b.saved, 0xff, qwen3_saved_bytes(&b.s, 3, 5));
    memset(b.scratch, 0xff, qwen3_scratch_bytes(&b.s, 3, 5));
    float *output = taken(n_bytes);
    memcpy(output, b.h, n_bytes);
    qwen3_embed_forward(&b.s, b.weights[TABLE], b.tokens, b.n, b.h);
    assert_int_equal(layer_forward(&b), HP_OK);
    assert_memory_equal(b.h, output, n_bytes);
    backward(&b);
    assert_memory_equal(a.dh, b.dh, n_bytes);
    for (int i = 0; i < N_TENSORS; i++)
        assert_memory_equal(a.grads[i], b.grads[i], n_of(&a, i) * hp_dtype_size(s.grad_dtype));
    free(output);
    network_destroy(&a);
    network_destroy(&b);
}

static void computing_a_forward_again_gives_the_same_bits(void **state) {
    (void)state;
    check_recompute(HP_FP32);
    check_recompute(HP_BF16);
}

/* Each sequence alone gives the bits of its rows, in h, the logits and the gradient of the input.
 */
static void check_independence(hp_dtype dtype) {
    enum { N_SEQUENCES = 3, SEQ = 5 };
    qwen3_shape s = small_shape();
    s.dtype = dtype;
    network all = network_create(s, N_SEQUENCES, SEQ);
    forward(&all);
    float *logits = taken(all.n * s.vocab * sizeof *logits);
    memcpy(logits, all.logits, all.n * s.vocab * sizeof *logits);
    backward(&all);
    for (size_t i = 0; i < N_SEQUENCES; i++) {
        network one = network_create(s, 1, SEQ);
        memcpy(one.tokens, all.tokens + i * SEQ, SEQ * sizeof *one.tokens);
        memcpy(one.targets, all.targets + i * SEQ, SEQ * sizeof *one.targets);
        forward(&one);
        assert_memory_equal(one.h, all.h + i * SEQ * s.hidden, SEQ * s.hidden * sizeof *one.h);
        assert_memory_equal(one.logits, logits + i * SEQ * s.vocab, SEQ * s.vocab * sizeof *logits);
        backward(&one);
        assert_memory_equal(one.dh, all.dh + i * SEQ * s.hidden, SEQ * s.hidden * sizeof *one.h);
        network_destroy(&one);
    }
    free(logits);
    network_destroy(&all);
}

static void sequences_do_not_see_each_other(void **state) {
    (void)state;
    check_independence(HP_FP32);
    check_independence(HP_BF16);
}

/* ---- one token at a time ---- */

/* The first n_first tokens in one forward, the others one by one, against a forward over all. */
static void check_reading(qwen3_shape s, size_t seq, size_t n_first, double bound) {
    network t = network_create(s, 1, seq);
    const qwen3_layer_weights w = weights_of(&t);
    const size_t cache_bytes = seq * s.n_kv_heads * s.head_dim * hp_dtype_size(s.dtype);
    void *k_cache = taken(cache_bytes), *v_cache = taken(cache_bytes);
    void *saved = taken(qwen3_saved_bytes(&t.s, 1, n_first));
    float *h = taken(seq * s.hidden * sizeof *h);
    qwen3_embed_forward(&t.s, t.weights[TABLE], t.tokens, t.n, h);
    if (n_first > 0)
        assert_int_equal(
            qwen3_layer_first(&t.s, n_first, &w, h, k_cache, v_cache, saved, t.scratch), HP_OK);
    for (size_t i = n_first; i < seq; i++) {
        void *scratch = aligned_alloc(64, qwen3_scratch_bytes(&t.s, 1, i + 1));
        assert_non_null(scratch); /* not a byte more than was asked for */
        memset(scratch, 0xff, qwen3_scratch_bytes(&t.s, 1, i + 1));
        assert_int_equal(qwen3_layer_one(&t.s, i, &w, h + i * s.hidden, k_cache, v_cache, scratch),
                         HP_OK);
        free(scratch);
    }
    forward(&t);
    const size_t split = n_first * s.hidden; /* what came first has the forward's bits */
    assert_memory_equal(h, t.h, split * sizeof *h);
    double apart = 0, size = 0;
    for (size_t i = split; i < seq * s.hidden; i++) {
        apart += (double)(h[i] - t.h[i]) * (double)(h[i] - t.h[i]);
        size += (double)t.h[i] * (double)t.h[i];
    }
    assert_true(sqrt(apart / size) < bound);
    free(k_cache);
    free(v_cache);
    free(saved);
    free(h);
    network_destroy(&t);
}
static void one_token_at_a_time_gives_the_same(void **state) {
    (void)state;
    enum { SEQ = 70 }; /* more than a block of attention */
    qwen3_shape s = small_shape();
    for (size_t n_first = 0; n_first < SEQ; n_first += 33)
        check_reading(s, SEQ, n_first, 1e-6);
    s.dtype = HP_BF16;
    check_reading(s, SEQ, 0, 1e-2);
    check_reading(s, SEQ, 66, 1e-2);
}

/* Scores laid out for one token would reach into what stands behind them. */
static void a_long_context_has_its_room(void **state) {
    (void)state;
    enum { SEQ = 2200 };
    qwen3_shape s = small_shape();
    check_reading(s, SEQ, SEQ - 2, 1e-5);
    s.dtype = HP_BF16;
    check_reading(s, SEQ, SEQ - 2, 1e-2);
}

/* The scratch of position + 1 tokens is enough for a first one. */
static void a_single_token_fits_its_own_scratch(void **state) {
    (void)state;
    network t = network_create(small_shape(), 1, 1);
    const qwen3_layer_weights w = weights_of(&t);
    float k[12], v[12], h[24];
    forward(&t);
    qwen3_embed_forward(&t.s, t.weights[TABLE], t.tokens, 1, h);
    assert_int_equal(qwen3_layer_one(&t.s, 0, &w, h, k, v, t.scratch), HP_OK);
    for (size_t j = 0; j < 24; j++)
        assert_true(fabsf(h[j] - t.h[j]) < 1e-5F);
    network_destroy(&t);
}

/* ---- errors ---- */

/* An engine that fails at the call that was asked for. */
typedef struct failing {
    hp_matmul door, *engine;
    int calls_left;
} failing;

static hp_status run_until(hp_matmul *matmul, const hp_matmul_args *args) {
    failing *f = matmul->state;
    if (f->calls_left-- == 0)
        return hp_error_set(HP_ERR_SYSTEM, "run_until", "as asked");
    return hp_matmul_run(f->engine, args);
}

/* The status of both passes when product number `call` fails. */
static hp_status both_passes(network *t, int call) {
    hp_matmul *engine = t->s.matmul;
    failing f = {.door = *engine, .engine = engine, .calls_left = call};
    double loss;
    f.door.run = run_until;
    f.door.state = &f;
    t->s.matmul = &f.door;
    hp_status status = layer_forward(t);
    if (status == HP_OK)
        status = qwen3_head_forward(&t->s, t->weights[NORM], t->weights[HEAD], t->h, t->n,
                                    t->targets, t->logits, t->head_saved, &loss);
    if (status == HP_OK)
        status = qwen3_head_backward(&t->s, t->weights[NORM], t->weights[HEAD], t->grads[NORM],
                                     t->grads[HEAD], t->targets, t->n, 1, t->logits, t->head_saved,
                                     t->dh, t->scratch);
    if (status == HP_OK)
        status = layer_backward(t);
    t->s.matmul = engine;
    return status;
}

static void a_failing_product_is_passed_on(void **state) {
    (void)state;
    enum { PRODUCTS = 7 + 1 + 2 + 14 }; /* without those of attention */
    qwen3_shape s = small_shape();
    for (int k = 0; k < 2; k++) {
        s.grad_dtype = k ? HP_BF16 : HP_FP32;
        network t = network_create(s, 1, 3);
        int call = 0;
        for (; both_passes(&t, call) != HP_OK; call++)
            assert_int_equal(both_passes(&t, call), HP_ERR_SYSTEM);
        assert_true(call >= PRODUCTS);
        network_destroy(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_gradient_agrees_with_fp64),
        cmocka_unit_test(slopes_agree_with_fp64),
        cmocka_unit_test(gradients_of_bf16_are_near),
        cmocka_unit_test(bf16_gradients_are_rounded_once),
        cmocka_unit_test(no_sequences_give_zero_gradients),
        cmocka_unit_test(rows_without_target_pass_nothing_back),
        cmocka_unit_test(without_targets_there_are_logits_alone),
        cmocka_unit_test(computing_a_forward_again_gives_the_same_bits),
        cmocka_unit_test(sequences_do_not_see_each_other),
        cmocka_unit_test(one_token_at_a_time_gives_the_same),
        cmocka_unit_test(a_long_context_has_its_room),
        cmocka_unit_test(a_single_token_fits_its_own_scratch),
        cmocka_unit_test(a_failing_product_is_passed_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

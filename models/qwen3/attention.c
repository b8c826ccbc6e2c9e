/* SPDX-License-Identifier: Apache-2.0
 *
 * qwen3/attention.c - two products forward, five backward, and the softmax between them.
 *
 * A block is up to BLOCK query rows of one sequence and head against the keys up to its last row;
 * its scores are [rows][width] floats, width being n_keys rounded up so that loops along a row have
 * no rest. What a row must not see is minus infinity before the exponential and 0 after it. Blocks
 * are taken in one order, so sums over them are too; a sequence's results depend on no other.
 * Sums along a row run in 16 lanes that are added as a tree: the same bits for every vector width.
 */
#include "attention.h"

#include "common.h"
#include "kernels.h"
#include "layout.h"
#include "math.h"

#include <assert.h>
#include <stdbool.h>

/* Fewer rows waste less above the diagonal, more make better products. */
enum { BLOCK = 64 };

/* ---- where things lie ---- */

/* [BLOCK][width of a whole sequence] each, and one row or value per query. */
typedef struct room {
    float *scores, *d_scores; /* the first becomes probabilities, the second their gradient */
    void *narrow;             /* what enters a product: either of them in bf16 */
    float *out;               /* [BLOCK][head_dim] */
    float *sums;              /* [BLOCK]: of a row's exponentials; d_out . out in the backward */
} room;

static size_t round_up(size_t n) {
    return (n + QWEN3_LANES - 1) / QWEN3_LANES * QWEN3_LANES;
}

static size_t lay_room(const qwen3_attention *a, void *memory, room *out) {
    qwen3_layout l = {memory, 0};
    const size_t n = BLOCK * round_up(a->seq);
    out->scores = qwen3_take(&l, HP_FP32, n);
    out->d_scores = qwen3_take(&l, HP_FP32, n);
    out->narrow = qwen3_take(&l, a->dtype, a->dtype == HP_FP32 ? 0 : n);
    out->out = qwen3_take(&l, HP_FP32, BLOCK * a->head_dim);
    out->sums = qwen3_take(&l, HP_FP32, BLOCK);
    return l.n_bytes;
}

size_t qwen3_attention_scratch_bytes(const qwen3_attention *a) {
    room unused;
    return lay_room(a, NULL, &unused);
}

/* Query rows [first, first + n_rows) of one sequence and head. */
typedef struct block {
    const qwen3_attention *a;
    room room;
    size_t head, kv_head;
    size_t start; /* the sequence's first token */
    size_t first, n_rows;
    size_t n_keys, width; /* first + n_rows; rounded up */
    float scale;
} block;

static block block_of(const qwen3_attention *a, size_t sequence, size_t head, size_t first) {
    assert(a->scratch);
    const size_t left = a->seq - first, n_rows = left < BLOCK ? left : BLOCK;
    block b = {.a = a,
               .head = head,
               .kv_head = head / (a->n_heads / a->n_kv_heads),
               .start = sequence * a->seq,
               .first = first,
               .n_rows = n_rows,
               .n_keys = first + n_rows,
               .width = round_up(first + n_rows),
               .scale = 1.0F / sqrtf((float)a->head_dim)};
    lay_room(a, a->scratch, &b.room);
    return b;
}

/* Elements before token `token` of head `head`, in rows of `n_heads` heads. */
static size_t offset(const block *b, size_t token, size_t head, size_t n_heads) {
    return ((b->start + token) * n_heads + head) * b->a->head_dim;
}

static const void *at(const void *data, hp_dtype dtype, size_t element) {
    return (const char *)data + element * hp_dtype_size(dtype);
}

/* One operand of a product: rows `step` elements apart. */
typedef struct matrix {
    const void *data;
    size_t step;
    bool is_transposed;
} matrix;

/* The block's rows of q, out or their gradients. */
static matrix queries(const block *b, const void *data) {
    const qwen3_attention *a = b->a;
    const size_t element = offset(b, b->first, b->head, a->n_heads);
    return (matrix){at(data, a->dtype, element), a->n_heads * a->head_dim, false};
}

/* The keys or values that the block sees. */
static matrix keys(const block *b, const void *data) {
    const qwen3_attention *a = b->a;
    const size_t element = offset(b, 0, b->kv_head, a->n_kv_heads);
    return (matrix){at(data, a->dtype, element), a->n_kv_heads * a->head_dim, false};
}

static matrix transposed(matrix m) {
    m.is_transposed = !m.is_transposed;
    return m;
}

/* scores as an operand: in bf16 a rounded copy, valid until the next one. */
static matrix operand(const block *b, const float *scores) {
    if (b->a->dtype == HP_FP32)
        return (matrix){scores, b->width, false};
    qwen3_round(b->a->dtype, scores, b->n_rows * b->width, b->room.narrow);
    return (matrix){b->room.narrow, b->width, false};
}

/* out = x y, or += : [m][n] in fp32, rows `step` apart. */
typedef struct result {
    float *out;
    size_t m, n, k, step;
    bool accumulate;
} result;

static hp_status multiply(const block *b, matrix x, matrix y, result r) {
    const hp_matmul_args args = {.size = sizeof args,
                                 .m = (int64_t)r.m,
                                 .n = (int64_t)r.n,
                                 .k = (int64_t)r.k,
                                 .dtype = b->a->dtype,
                                 .out_dtype = HP_FP32,
                                 .transpose_a = x.is_transposed,
                                 .transpose_b = y.is_transposed,
                                 .accumulate = r.accumulate,
                                 .a = x.data,
                                 .b = y.data,
                                 .c = r.out,
                                 .lda = (int64_t)x.step,
                                 .ldb = (int64_t)y.step,
                                 .ldc = (int64_t)r.step};
    return hp_matmul_run(b->a->matmul, &args);
}

/* out[rows][width] = x y^T, x being rows of queries and y of keys. */
static hp_status multiply_rows(const block *b, const void *x, const void *y, float *out) {
    const result r = {out, b->n_rows, b->n_keys, b->a->head_dim, b->width, false};
    return multiply(b, queries(b, x), transposed(keys(b, y)), r);
}

/* ---- loops along a row ---- */

/* Hide what lies after row `row` of the block. */
static inline void hide(const block *b, size_t row, float *scores) {
    for (size_t j = b->first + row + 1; j < b->width; j++)
        scores[j] = -INFINITY;
}

static inline float most_of(const float *row, size_t width) {
    float lane[QWEN3_LANES];
    memcpy(lane, row, sizeof lane);
    for (size_t j = QWEN3_LANES; j < width; j += QWEN3_LANES)
        for (size_t l = 0; l < QWEN3_LANES; l++)
            lane[l] = row[j + l] > lane[l] ? row[j + l] : lane[l];
    float most = lane[0];
    for (size_t l = 1; l < QWEN3_LANES; l++)
        most = lane[l] > most ? lane[l] : most;
    return most;
}

/* row = exp(row * scale - less); returns the sum. */
static inline float exponentials(float *row, size_t width, float scale, float less) {
    float lane[QWEN3_LANES] = {0};
    for (size_t j = 0; j < width; j += QWEN3_LANES)
        for (size_t l = 0; l < QWEN3_LANES; l++) {
            row[j + l] = qwen3_exp(row[j + l] * scale - less);
            lane[l] += row[j + l];
        }
    return qwen3_sum_lanes(lane);
}

/* Scores become exponentials, the row's largest one being 1. out_lse: [n_rows]. */
MODEL_KERNEL static void softmax(const block *b, float *out_lse) {
    for (size_t i = 0; i < b->n_rows; i++) {
        float *row = b->room.scores + i * b->width;
        hide(b, i, row);
        const float most = most_of(row, b->width) * b->scale;
        b->room.sums[i] = exponentials(row, b->width, b->scale, most);
        out_lse[i] = most + logf(b->room.sums[i]);
    }
}

/* Scores become probabilities. lse: [n_rows]. */
MODEL_KERNEL static void softmax_again(const block *b, const float *lse) {
    for (size_t i = 0; i < b->n_rows; i++) {
        float *row = b->room.scores + i * b->width;
        hide(b, i, row);
        exponentials(row, b->width, b->scale, lse[i]);
    }
}

/* d_scores, the gradient of the probabilities so far, becomes that of q . k. */
MODEL_KERNEL static void softmax_backward(const block *b) {
    for (size_t i = 0; i < b->n_rows; i++) {
        const float *restrict p = b->room.scores + i * b->width;
        float *restrict d = b->room.d_scores + i * b->width;
        const float sum = b->room.sums[i], scale = b->scale;
        for (size_t j = 0; j < b->width; j++)
            d[j] = p[j] * (d[j] - sum) * scale;
    }
}

static inline float dot(const void *x, const void *y, bool is_bf16, size_t n) {
    float lane[QWEN3_LANES] = {0};
    const size_t whole = n / QWEN3_LANES * QWEN3_LANES;
    for (size_t j = 0; j < whole; j += QWEN3_LANES)
        for (size_t l = 0; l < QWEN3_LANES; l++)
            lane[l] += qwen3_load(x, j + l, is_bf16) * qwen3_load(y, j + l, is_bf16);
    for (size_t j = whole; j < n; j++)
        lane[j - whole] += qwen3_load(x, j, is_bf16) * qwen3_load(y, j, is_bf16);
    return qwen3_sum_lanes(lane);
}

/* The inner products of rows of d_out and out. */
MODEL_KERNEL static void row_sums(const block *b, matrix d_out, matrix out) {
    const hp_dtype dtype = b->a->dtype;
    for (size_t i = 0; i < b->n_rows; i++) {
        const void *x = at(d_out.data, dtype, i * d_out.step);
        const void *y = at(out.data, dtype, i * out.step);
        b->room.sums[i] =
            dtype == HP_BF16 ? dot(x, y, true, b->a->head_dim) : dot(x, y, false, b->a->head_dim);
    }
}

/* out = x * factor, in dtype. */
static inline void scale_row(hp_dtype dtype, size_t n, const float *x, float factor, void *out) {
    for (size_t i = 0; i < n; i++)
        qwen3_store(out, i, dtype == HP_BF16, x[i] * factor);
}

MODEL_KERNEL static void write_out(const block *b, void *out) {
    const qwen3_attention *a = b->a;
    for (size_t i = 0; i < b->n_rows; i++) {
        const size_t element = offset(b, b->first + i, b->head, a->n_heads);
        scale_row(a->dtype, a->head_dim, b->room.out + i * a->head_dim, 1.0F / b->room.sums[i],
                  (char *)out + element * hp_dtype_size(a->dtype));
    }
}

/* ---- forward ---- */

static hp_status forward_block(const block *b, const void *q, const void *k, const void *v,
                               void *out, float *out_lse) {
    const size_t n = b->a->n_sequences * b->a->seq, head_dim = b->a->head_dim;
    const result values = {b->room.out, b->n_rows, head_dim, b->n_keys, head_dim, false};
    TRY(multiply_rows(b, q, k, b->room.scores));
    softmax(b, out_lse + b->head * n + b->start + b->first);
    TRY(multiply(b, operand(b, b->room.scores), keys(b, v), values));
    write_out(b, out);
    return HP_OK;
}

hp_status qwen3_attention_forward(const qwen3_attention *a, const void *q, const void *k,
                                  const void *v, void *out, float *out_lse) {
    for (size_t sequence = 0; sequence < a->n_sequences; sequence++)
        for (size_t head = 0; head < a->n_heads; head++)
            for (size_t first = 0; first < a->seq; first += BLOCK) {
                const block b = block_of(a, sequence, head, first);
                TRY(forward_block(&b, q, k, v, out, out_lse));
            }
    return HP_OK;
}

/* ---- backward ---- */

typedef struct inputs {
    const void *q, *k, *v, *out, *d_out;
    const float *lse;
} inputs;
typedef struct gradients {
    float *q, *k, *v;
} gradients;

/* The block's share in the gradient of keys or values. The first block that comes to them sees all
 * of them and writes; later ones add. */
static result of_keys(const block *b, float *d_keys) {
    const qwen3_attention *a = b->a;
    const bool is_first = b->n_keys == a->seq && b->head % (a->n_heads / a->n_kv_heads) == 0;
    return (result){d_keys + offset(b, 0, b->kv_head, a->n_kv_heads),
                    b->n_keys,
                    a->head_dim,
                    b->n_rows,
                    a->n_kv_heads * a->head_dim,
                    !is_first};
}

static result of_queries(const block *b, float *d_queries) {
    const qwen3_attention *a = b->a;
    return (result){d_queries + offset(b, b->first, b->head, a->n_heads),
                    b->n_rows,
                    a->head_dim,
                    b->n_keys,
                    a->n_heads * a->head_dim,
                    false};
}

static hp_status backward_block(const block *b, const inputs *in, const gradients *d) {
    const size_t n = b->a->n_sequences * b->a->seq;
    const matrix d_out = queries(b, in->d_out);
    TRY(multiply_rows(b, in->q, in->k, b->room.scores));
    softmax_again(b, in->lse + b->head * n + b->start + b->first);
    TRY(multiply(b, transposed(operand(b, b->room.scores)), d_out, of_keys(b, d->v)));
    TRY(multiply_rows(b, in->d_out, in->v, b->room.d_scores));
    row_sums(b, d_out, queries(b, in->out));
    softmax_backward(b);
    const matrix d_scores = operand(b, b->room.d_scores);
    TRY(multiply(b, d_scores, keys(b, in->k), of_queries(b, d->q)));
    return multiply(b, transposed(d_scores), queries(b, in->q), of_keys(b, d->k));
}

hp_status qwen3_attention_backward(const qwen3_attention *a, const void *q, const void *k,
                                   const void *v, const void *out, const float *lse,
                                   const void *d_out, float *d_q, float *d_k, float *d_v) {
    const inputs in = {q, k, v, out, d_out, lse};
    const gradients d = {d_q, d_k, d_v};
    const size_t n_blocks = (a->seq + BLOCK - 1) / BLOCK;
    for (size_t sequence = 0; sequence < a->n_sequences; sequence++)
        for (size_t head = 0; head < a->n_heads; head++)
            for (size_t i = n_blocks; i-- > 0;) {
                const block b = block_of(a, sequence, head, i * BLOCK);
                TRY(backward_block(&b, &in, &d));
            }
    return HP_OK;
}

/* ---- one row ---- */

/* The softmax of one query against all keys, in scratch. */
static float one_softmax(const block *b, const void *q, const void *k) {
    const matrix rows = keys(b, k);
    const hp_dtype dtype = b->a->dtype;
    const void *query = at(q, dtype, b->head * b->a->head_dim);
    float *row = b->room.scores;
    for (size_t j = 0; j < b->n_keys; j++)
        row[j] = dot(query, at(rows.data, dtype, j * rows.step), dtype == HP_BF16, b->a->head_dim);
    for (size_t j = b->n_keys; j < b->width; j++)
        row[j] = -INFINITY;
    return exponentials(row, b->width, b->scale, most_of(row, b->width) * b->scale);
}

void qwen3_attention_one(const qwen3_attention *a, const void *q, const void *k, const void *v,
                         size_t n_keys, void *out) {
    const bool is_bf16 = a->dtype == HP_BF16;
    for (size_t head = 0; head < a->n_heads; head++) {
        block b = block_of(a, 0, head, 0);
        b.n_keys = n_keys;
        b.width = round_up(n_keys);
        const float sum = one_softmax(&b, q, k);
        const matrix rows = keys(&b, v);
        memset(b.room.out, 0, a->head_dim * sizeof(float));
        for (size_t j = 0; j < n_keys; j++)
            for (size_t i = 0; i < a->head_dim; i++)
                b.room.out[i] +=
                    b.room.scores[j] * qwen3_load(rows.data, j * rows.step + i, is_bf16);
        scale_row(a->dtype, a->head_dim, b.room.out, 1.0F / sum,
                  (char *)out + head * a->head_dim * hp_dtype_size(a->dtype));
    }
}

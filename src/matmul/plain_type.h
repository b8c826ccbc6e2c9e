/* SPDX-License-Identifier: Apache-2.0
 *
 * plain_type.h - the loops of plain.c for one type of sums, TYPE; included once per type.
 *
 * No include guard, on purpose. NAME(x) is x with the type's suffix, OF_TYPE the dtype. Loops over
 * columns are the innermost ones and are vectorised; what they add to one element keeps its order.
 */

/* An element as TYPE; fp64 is only met where TYPE is double. */
static inline TYPE NAME(load)(const void *data, hp_dtype dtype, int64_t i) {
    return dtype == HP_FP64   ? (TYPE)((const double *)data)[i]
           : dtype == HP_FP32 ? (TYPE)((const float *)data)[i]
           : dtype == HP_FP16 ? (TYPE)hpi_fp16_to_fp32(((const uint16_t *)data)[i])
                              : (TYPE)hpi_bf16_to_fp32(((const uint16_t *)data)[i]);
}

/* out[j] = data[first + j * step]. dtype and, mostly, step are constants where this is inlined. */
static inline void NAME(pack_row)(TYPE *restrict out, const void *data, hp_dtype dtype,
                                  int64_t first, int64_t step, int64_t n) {
    for (int64_t j = 0; j < n; j++)
        out[j] = NAME(load)(data, dtype, first + j * step);
}

/* out[i][j] = m[i0 + i][j0 + j], rows `stride` apart. */
static inline void NAME(pack)(TYPE *restrict out, int64_t stride, view m, int64_t i0, int64_t j0,
                              int64_t n_i, int64_t n_j) {
    for (int64_t i = 0; i < n_i; i++, out += stride) {
        const int64_t first = (i0 + i) * m.row_step + j0 * m.column_step;
        if (m.dtype == HP_BF16 && m.column_step == 1)
            NAME(pack_row)(out, m.data, HP_BF16, first, 1, n_j);
        else if (m.dtype == HP_BF16)
            NAME(pack_row)(out, m.data, HP_BF16, first, m.column_step, n_j);
        else if (m.dtype == HP_FP16 && m.column_step == 1)
            NAME(pack_row)(out, m.data, HP_FP16, first, 1, n_j);
        else if (m.dtype == HP_FP16)
            NAME(pack_row)(out, m.data, HP_FP16, first, m.column_step, n_j);
        else if (m.column_step == 1)
            NAME(pack_row)(out, m.data, OF_TYPE, first, 1, n_j);
        else
            NAME(pack_row)(out, m.data, OF_TYPE, first, m.column_step, n_j);
    }
}

/* Four rows of c, four rows of b: a row of b is loaded once for four products. */
static inline void NAME(add_4x4)(TYPE *restrict c, const TYPE *restrict b, const TYPE *restrict a) {
    TYPE w[4][4];
    for (int x = 0; x < 4; x++)
        for (int y = 0; y < 4; y++)
            w[x][y] = a[x * DEPTH + y];
    TYPE *c0 = c, *c1 = c + COLUMNS, *c2 = c + 2 * COLUMNS, *c3 = c + 3 * COLUMNS;
    const TYPE *b0 = b, *b1 = b + COLUMNS, *b2 = b + 2 * COLUMNS, *b3 = b + 3 * COLUMNS;
    for (int j = 0; j < COLUMNS; j++) {
        c0[j] = c0[j] + w[0][0] * b0[j] + w[0][1] * b1[j] + w[0][2] * b2[j] + w[0][3] * b3[j];
        c1[j] = c1[j] + w[1][0] * b0[j] + w[1][1] * b1[j] + w[1][2] * b2[j] + w[1][3] * b3[j];
        c2[j] = c2[j] + w[2][0] * b0[j] + w[2][1] * b1[j] + w[2][2] * b2[j] + w[2][3] * b3[j];
        c3[j] = c3[j] + w[3][0] * b0[j] + w[3][1] * b1[j] + w[3][2] * b2[j] + w[3][3] * b3[j];
    }
}

/* c += a b for one block. Columns beyond the matrix hold what was there before: they are computed
 * and never written out. */
static inline void NAME(add_block)(blocks *s, int64_t n_i, int64_t n_p) {
    const TYPE *a = (const TYPE *)s->a, *b = (const TYPE *)s->b;
    TYPE *c = (TYPE *)s->c;
    const int64_t i_end = n_i / 4 * 4, p_end = n_p / 4 * 4;
    for (int64_t i = 0; i < i_end; i += 4)
        for (int64_t p = 0; p < p_end; p += 4)
            NAME(add_4x4)(c + i * COLUMNS, b + p * COLUMNS, a + i * DEPTH + p);
    for (int64_t i = 0; i < n_i; i++)
        for (int64_t p = i < i_end ? p_end : 0; p < n_p; p++)
            for (int j = 0; j < COLUMNS; j++)
                c[i * COLUMNS + j] += a[i * DEPTH + p] * b[p * COLUMNS + j];
}

static inline void NAME(store)(const hp_matmul_args *p, int64_t i, TYPE value) {
    if (p->accumulate)
        value += NAME(load)(p->c, p->out_dtype, i);
    if (p->out_dtype == HP_FP64)
        ((double *)p->c)[i] = (double)value;
    else if (p->out_dtype == HP_FP32)
        ((float *)p->c)[i] = (float)value;
    else if (p->out_dtype == HP_FP16)
        ((uint16_t *)p->c)[i] = hpi_fp32_to_fp16((float)value);
    else
        ((uint16_t *)p->c)[i] = hpi_fp32_to_bf16((float)value);
}

/* Rows [i0, i0 + n_i) and columns [j0, j0 + n_j) of C. */
static inline void NAME(multiply_block)(blocks *s, const hp_matmul_args *p, int64_t i0, int64_t j0,
                                        int64_t n_i, int64_t n_j) {
    const view a = view_of(p->a, p->dtype, p->lda, p->transpose_a);
    const view b = view_of(p->b, p->dtype, p->ldb, p->transpose_b);
    memset(s->c, 0, sizeof s->c);
    for (int64_t p0 = 0; p0 < p->k; p0 += DEPTH) {
        const int64_t n_p = p->k - p0 < DEPTH ? p->k - p0 : DEPTH;
        NAME(pack)((TYPE *)s->a, DEPTH, a, i0, p0, n_i, n_p);
        NAME(pack)((TYPE *)s->b, COLUMNS, b, p0, j0, n_p, n_j);
        NAME(add_block)(s, n_i, n_p);
    }
    for (int64_t i = 0; i < n_i; i++)
        for (int64_t j = 0; j < n_j; j++)
            NAME(store)(p, (i0 + i) * p->ldc + j0 + j, ((TYPE *)s->c)[i * COLUMNS + j]);
}

HPI_KERNEL void NAME(hpi_matmul_multiply)(void *state, const hp_matmul_args *p);
HPI_KERNEL void NAME(hpi_matmul_multiply)(void *state, const hp_matmul_args *p) {
    for (int64_t i = 0; i < p->m; i += ROWS)
        for (int64_t j = 0; j < p->n; j += COLUMNS)
            NAME(multiply_block)
    (state, p, i, j, p->m - i < ROWS ? p->m - i : ROWS, p->n - j < COLUMNS ? p->n - j : COLUMNS);
}

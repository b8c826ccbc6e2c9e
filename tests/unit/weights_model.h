/* SPDX-License-Identifier: Apache-2.0
 *
 * weights_model.h - one unit with a parameter of every sort that a file of weights may hold, and
 * such files, byte by byte.
 *
 * Values are functions of the row and the element, among them those that conversions go wrong on.
 * A file is put together from texts here, without the library's writer.
 */
#ifndef WEIGHTS_MODEL_H
#define WEIGHTS_MODEL_H

#include "fsdp/together/between.h"
#include "support/ranks.h"
#include "unit/scratch.h"

#include <math.h>

enum { N_ROWS = 10, MOST_ELEMENTS = 24, ROW_W = 0, ROW_ALIAS = 1, ROW_LEFT = 9 };

typedef struct weights_row {
    const char *name;
    int n_dims;
    int64_t shape[2];
    hp_dtype dtype;
    int shard_dim, is_frozen, is_ignored;
} weights_row;

/* 5 rows are uneven over 2 and 3 ranks, 6 columns even over 1, 2 and 3. */
static const weights_row weights_rows[N_ROWS] = {
    {"w", 2, {5, 3}, HP_FP32, 0, 0, 0},     {"w.alias", 2, {5, 3}, HP_FP32, 0, 0, 0},
    {"inner", 2, {4, 6}, HP_FP32, 1, 0, 0}, {"bias", 1, {4}, HP_BF16, HP_REPLICATED, 0, 0},
    {"double", 1, {3}, HP_FP64, 0, 0, 0},   {"ids", 1, {3}, HP_INT64, 0, 1, 0},
    {"half", 1, {5}, HP_FP16, 0, 1, 0},     {"empty", 2, {0, 4}, HP_FP32, 0, 0, 0},
    {"scalar", 0, {0}, HP_FP32, 0, 0, 0},   {"left", 1, {2}, HP_FP32, 0, 0, 1},
};

static inline uint64_t weights_count(int row) {
    uint64_t n = 1;
    for (int d = 0; d < weights_rows[row].n_dims; d++)
        n *= (uint64_t)weights_rows[row].shape[d];
    return n;
}

/* Ties, ends of ranges, subnormal numbers and what is no number. */
static inline double weights_value(int row, uint64_t element) {
    static const double hard[15] = {
        0.1,      -0.0,       (double)NAN, (double)INFINITY, -INFINITY,
        0x1p-140, 0x1p-24,    0x1.8p-25,   65519.9375,       65520.0,
        3e38,     1.00390625, 1.01171875,  0x1.002p+0,       -0x1.fffffep+127};
    if (row == ROW_W || row == ROW_ALIAS)
        return hard[element];
    return row == 4 ? 1.0 / (double)(element + 3) : (double)(element * 7 % 11) - 5 + row;
}

/* The nearest number with so many bits behind the point, no smaller step than 2^least, at most
 * `largest`: what rounding once must give. */
static inline double weights_round_to(double v, int n_bits, int least, double largest) {
    if (v != v || isinf(v) || v == 0)
        return v;
    const int exponent = ilogb(v) - n_bits;
    const int step = exponent > least ? exponent : least;
    const double rounded = ldexp(nearbyint(ldexp(v, -step)), step);
    return fabs(rounded) > largest ? copysign(INFINITY, v) : copysign(rounded, v);
}

static inline double weights_round(double v, hp_dtype dtype) {
    if (dtype == HP_FP16)
        return weights_round_to(v, 10, -24, 65504);
    if (dtype == HP_BF16)
        return weights_round_to(v, 7, -133, 0x1.fep127);
    return dtype == HP_FP32 ? weights_round_to(v, 23, -149, 0x1.fffffep127) : v;
}

/* Element i of an array; fp16 by its definition. */
static inline double weights_read(const void *values, hp_dtype dtype, uint64_t i) {
    if (dtype == HP_INT64)
        return (double)((const int64_t *)values)[i];
    if (dtype == HP_FP64)
        return ((const double *)values)[i];
    if (dtype == HP_FP32)
        return (double)((const float *)values)[i];
    const uint16_t bits = ((const uint16_t *)values)[i];
    if (dtype == HP_BF16)
        return (double)hpi_bf16_to_fp32(bits);
    const int exponent = bits >> 10 & 31, rest = bits & 1023;
    const double size = exponent == 31  ? rest ? (double)NAN : (double)INFINITY
                        : exponent == 0 ? ldexp(rest, -24)
                                        : ldexp(1024 + rest, exponent - 25);
    return bits >> 15 ? -size : size;
}

static inline uint16_t weights_fp16_bits(double value) {
    const double size = fabs(value);
    const unsigned sign = signbit(value) ? 0x8000U : 0;
    if (size != size || isinf(size))
        return (uint16_t)(sign | (isinf(size) ? 0x7c00U : 0x7e00U));
    if (size < 0x1p-14)
        return (uint16_t)(sign | (unsigned)ldexp(size, 24));
    const int exponent = ilogb(size);
    const unsigned bits = ((unsigned)(exponent + 14) << 10) + (unsigned)ldexp(size, 10 - exponent);
    return (uint16_t)(sign | bits);
}

/* `value` must be one that dtype has. */
static inline void weights_write(void *values, hp_dtype dtype, uint64_t i, double value) {
    if (dtype == HP_INT64)
        ((int64_t *)values)[i] = (int64_t)value;
    else if (dtype == HP_FP64)
        ((double *)values)[i] = value;
    else if (dtype == HP_FP32)
        ((float *)values)[i] = (float)value;
    else if (dtype == HP_BF16)
        ((uint16_t *)values)[i] = hpi_fp32_to_bf16((float)value);
    else
        ((uint16_t *)values)[i] = weights_fp16_bits(value);
}

/* Equal, the sign of a zero too; a NaN is any NaN. */
static inline bool weights_same(double a, double b) {
    return (a != a && b != b) || (a == b && !signbit(a) == !signbit(b));
}

/* ---- the model ------------------------------------------------------------------------------- */

typedef struct weights_model {
    hp_mesh *mesh;
    hp_fsdp *fsdp;
    hp_unit *unit;
    int is_filled; /* 0: all zeros */
} weights_model;

/* By row and element of the whole parameter; all ranks (threads) write their own. */
typedef struct weights_values {
    double of[N_ROWS][MOST_ELEMENTS];
} weights_values;

static inline void weights_fill(void *context, uint64_t begin, uint64_t end, void *out_elements) {
    const weights_row *row = context;
    const int number = (int)(row - weights_rows);
    for (uint64_t i = begin; i < end; i++)
        weights_write(out_elements, row->dtype, i - begin,
                      weights_round(weights_value(number, i), row->dtype));
}

static inline hp_param weights_param(int row, int is_filled) {
    static const float zeros[15] = {0};
    static float hard[15];
    const weights_row *r = &weights_rows[row];
    hp_param p = HP_PARAM_INIT;
    p.name = r->name;
    p.n_dims = r->n_dims;
    for (int d = 0; d < r->n_dims; d++)
        p.shape[d] = r->shape[d];
    p.dtype = r->dtype;
    p.shard_dim = r->shard_dim;
    p.is_frozen = r->is_frozen;
    p.is_ignored = r->is_ignored;
    if (is_filled) {
        p.fill = weights_fill;
        p.fill_context = (void *)(uintptr_t)r;
    }
    if (row <= ROW_ALIAS) { /* one parameter, two names */
        p.data = is_filled ? hard : zeros;
        p.fill = NULL;
    }
    return p;
}

/* The values that weights_param points to; before ranks start. */
static inline void weights_create(hp_world *world, int n_replicas, int is_filled,
                                  weights_model *m) {
    const int sizes[] = {n_replicas, hp_world_size(world) / n_replicas};
    float hard[15];
    hp_param params[N_ROWS];
    for (int i = 0; i < N_ROWS; i++)
        params[i] = weights_param(i, is_filled);
    for (int i = 0; i < 15; i++)
        hard[i] = (float)weights_value(ROW_W, (uint64_t)i);
    if (is_filled)
        params[ROW_W].data = params[ROW_ALIAS].data = hard;
    m->is_filled = is_filled;
    RANK_OK(hp_mesh_create(world, sizes, 2, &m->mesh));
    RANK_OK(hp_fsdp_create(m->mesh, NULL, &m->fsdp));
    RANK_OK(hp_unit_create(m->fsdp, "u", params, N_ROWS, NULL, &m->unit));
    RANK_OK(hp_fsdp_commit(m->fsdp));
}

static inline void weights_destroy(weights_model *m) {
    hp_fsdp_destroy(m->fsdp);
    hp_mesh_destroy(m->mesh);
}

/* This rank's elements (those of the last replica, so that all are looked at in turn). */
static inline void weights_collect(const weights_model *m, int replica, weights_values *out) {
    if (m->fsdp->replica_rank != replica)
        return;
    for (int row = 0; row < N_ROWS; row++) {
        const hpi_param *p = &m->unit->params[row];
        hp_shard shard;
        if (!hpi_param_is_owned(p) ||
            (weights_rows[row].shard_dim == HP_REPLICATED && m->fsdp->shard_rank != 0))
            continue;
        RANK_OK(hp_param_shard(m->unit, row, &shard));
        const uint64_t run = (uint64_t)(shard.end - shard.begin) * p->layout.inner;
        for (uint64_t i = 0; i < shard.n_elements; i++) {
            const uint64_t at = i / run * (p->layout.rows * p->layout.inner) +
                                (uint64_t)shard.begin * p->layout.inner + i % run;
            out->of[row][at] = weights_read(shard.values, shard.dtype, i);
        }
    }
}

/* What a whole parameter is after it was stored as `dtype`; integers stay. */
static inline double weights_expected(int row, uint64_t i, hp_dtype dtype) {
    const hp_dtype own = weights_rows[row].dtype;
    const double first = weights_round(weights_value(row, i), own);
    const hp_dtype shard = weights_rows[row].is_frozen ? own : own == HP_BF16 ? HP_FP32 : own;
    return own == HP_INT64 ? first : weights_round(weights_round(first, dtype), shard);
}

/* Are they what a save and a load through `dtype` must give? Prints those that are not. */
static inline bool weights_match(const weights_values *values, hp_dtype dtype) {
    bool is_good = true;
    for (int row = 0; row < N_ROWS; row++)
        for (uint64_t i = 0; row != ROW_ALIAS && row != ROW_LEFT && i < weights_count(row); i++) {
            const double expected = weights_expected(row, i, dtype);
            if (weights_same(values->of[row][i], expected))
                continue;
            fprintf(stderr, "%s[%d]: expected %a, found %a\n", weights_rows[row].name, (int)i,
                    expected, values->of[row][i]);
            is_good = false;
        }
    return is_good;
}

/* ---- files ----------------------------------------------------------------------------------- */

static inline const char *weights_dtype_name(hp_dtype dtype) {
    static const char *const names[] = {"F64", "F32", "F16", "BF16", "I64"};
    return names[dtype];
}

/* SCRATCH/name: the size of the header, the header, the data. */
static inline void weights_put(const char *name, const char *header, const void *data,
                               size_t n_bytes) {
    const uint64_t size = strlen(header);
    FILE *file = fopen(scratch_path(name), "w");
    if (!file)
        return;
    fwrite(&size, 1, sizeof size, file);
    fwrite(header, 1, size, file);
    fwrite(data, 1, n_bytes, file);
    fclose(file);
}

/* A file of rows [first, end) but for those whose bit is in `without`, floats stored as `dtype`. */
static inline void weights_put_rows(const char *name, int first, int end, unsigned without,
                                    hp_dtype dtype) {
    char header[4096] = "{\"__metadata__\":{\"format\":\"pt\"}";
    unsigned char data[4096];
    size_t n = strlen(header), n_data = 0;
    for (int row = first; row < end; row++) {
        const weights_row *r = &weights_rows[row];
        const hp_dtype stored = r->dtype == HP_INT64 ? HP_INT64 : dtype;
        const size_t begin = n_data;
        double aligned[MOST_ELEMENTS];
        if (without >> row & 1U)
            continue;
        for (uint64_t i = 0; i < weights_count(row); i++)
            weights_write(aligned, stored, i,
                          weights_round(weights_round(weights_value(row, i), r->dtype), stored));
        n_data += weights_count(row) * hp_dtype_size(stored);
        memcpy(data + begin, aligned, n_data - begin);
        n +=
            (size_t)snprintf(header + n, sizeof header - n, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[",
                             r->name, weights_dtype_name(stored));
        for (int d = 0; d < r->n_dims; d++)
            n += (size_t)snprintf(header + n, sizeof header - n, "%s%d", d ? "," : "",
                                  (int)r->shape[d]);
        n += (size_t)snprintf(header + n, sizeof header - n, "],\"data_offsets\":[%zu,%zu]}", begin,
                              n_data);
    }
    snprintf(header + n, sizeof header - n, "}");
    weights_put(name, header, data, n_data);
}

#endif

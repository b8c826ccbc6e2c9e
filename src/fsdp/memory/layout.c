/* SPDX-License-Identifier: Apache-2.0
 *
 * layout.c - which elements of a parameter a rank holds.
 *
 * Rows are cut as torch.chunk and FSDP2 cut them: ceil(rows / n) each, the last ranks holding what
 * is left, possibly nothing. Every product is checked once, here, against 2^63 bytes of the widest
 * dtype; arithmetic on a finished layout cannot overflow.
 */
#include "layout.h"

/* Elements of the widest dtype (8 bytes) that a signed 64-bit byte count can hold. */
static const uint64_t most_elements = INT64_MAX / 8;

static const char *name_of(const hp_param *param) {
    return param->name ? param->name : "(null)";
}

static hp_status check_shape(const hp_param *param) {
    if (param->n_dims < 0 || param->n_dims > HP_MAX_DIMS)
        return HPI_FAIL(HP_ERR_ARGUMENT, "parameter \"%s\": expected 0 to %d dimensions, given %d",
                        name_of(param), HP_MAX_DIMS, param->n_dims);
    for (int d = 0; d < param->n_dims; d++)
        if (param->shape[d] < 0)
            return HPI_FAIL(HP_ERR_ARGUMENT,
                            "parameter \"%s\": expected sizes of 0 or more, given %lld in "
                            "dimension %d",
                            name_of(param), (long long)param->shape[d], d);
    const int last = param->n_dims > 0 ? param->n_dims - 1 : 0;
    if (param->shard_dim != HP_REPLICATED && (param->shard_dim < 0 || param->shard_dim > last))
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "parameter \"%s\": expected a shard dimension from 0 to %d or "
                        "HP_REPLICATED, given %d",
                        name_of(param), last, param->shard_dim);
    return HP_OK;
}

/* The product of shape[from, to). */
static bool product(const hp_param *param, int from, int to, uint64_t *out) {
    *out = 1;
    for (int d = from; d < to; d++)
        if (!hpi_multiply(*out, (uint64_t)param->shape[d], out))
            return false;
    return true;
}

/* outer, rows, inner and what follows from them; false when a size does not fit. */
static bool fill_sizes(const hp_param *param, int dim, hpi_layout *l) {
    uint64_t row;
    l->rows = param->n_dims ? (uint64_t)param->shape[dim] : 1;
    l->chunk = hpi_ceil_div(l->rows, l->n_shards);
    if (!product(param, 0, dim, &l->outer) || !product(param, dim + 1, param->n_dims, &l->inner) ||
        !hpi_multiply(l->outer, l->inner, &row) ||
        !hpi_multiply(row, l->chunk, &l->shard_elements) ||
        !hpi_multiply(l->shard_elements, l->n_shards, &l->full_elements))
        return false;
    l->n_elements = row * l->rows; /* rows <= chunk * n_shards: it fits when the padded one does */
    return l->full_elements <= most_elements;
}

hp_status hpi_layout_make(const hp_param *param, int n_shards, hpi_layout *out_layout) {
    if (n_shards < 1)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected 1 or more shards, given %d", n_shards);
    HP_TRY(check_shape(param));
    const bool is_replicated = param->shard_dim == HP_REPLICATED;
    const int dim = is_replicated ? 0 : param->shard_dim;
    hpi_layout layout = {.n_shards = is_replicated ? 1 : (uint64_t)n_shards};
    if (!fill_sizes(param, dim, &layout))
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "parameter \"%s\": expected at most %llu elements in all, padding "
                        "included, the shape has more",
                        name_of(param), (unsigned long long)most_elements);
    if (dim > 0 && layout.rows % layout.n_shards != 0)
        return HPI_FAIL(
            HP_ERR_ARGUMENT,
            "parameter \"%s\": expected dimension %d, which is not the first, to divide "
            "evenly over %d shards, its size is %llu",
            name_of(param), dim, n_shards, (unsigned long long)layout.rows);
    *out_layout = layout;
    return HP_OK;
}

void hpi_layout_rows(const hpi_layout *layout, int rank, uint64_t *out_begin, uint64_t *out_end) {
    const uint64_t shard = layout->n_shards == 1 ? 0 : (uint64_t)rank;
    const uint64_t begin = shard * layout->chunk, first = layout->first;
    *out_begin = hpi_min(hpi_max(begin, first) - first, layout->rows);
    *out_end = hpi_min(hpi_max(begin + layout->chunk, first) - first, layout->rows);
}

void hpi_layout_flatten(hpi_layout *layout, uint64_t first, uint64_t chunk, int rank) {
    layout->is_flat = true;
    layout->outer = layout->inner = 1;
    layout->rows = layout->full_elements = layout->n_elements;
    layout->chunk = chunk;
    layout->first = first;
    layout->shard_elements = hpi_layout_count(layout, rank);
}

uint64_t hpi_layout_count(const hpi_layout *layout, int rank) {
    uint64_t begin, end;
    hpi_layout_rows(layout, rank, &begin, &end);
    return layout->outer * (end - begin) * layout->inner;
}

void hpi_layout_extract(const hpi_layout *layout, int rank, size_t bytes, const void *whole,
                        void *out_shard) {
    uint64_t begin, end;
    hpi_layout_rows(layout, rank, &begin, &end);
    const size_t run = (size_t)((end - begin) * layout->inner) * bytes;
    const size_t stride = (size_t)(layout->rows * layout->inner) * bytes;
    const unsigned char *from = whole;
    unsigned char *to = out_shard;
    if (run == 0)
        return; /* the pointers may be NULL then */
    from += begin * layout->inner * bytes;
    for (uint64_t o = 0; o < layout->outer; o++)
        memcpy(to + o * run, from + o * stride, run);
}

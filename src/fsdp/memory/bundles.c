/* SPDX-License-Identifier: Apache-2.0
 *
 * bundles.c - rows of shards: where they lie, how they are filled and emptied.
 *
 * In memory a parameter with its padding is [outer][n_shards][run], run being a shard's rows times
 * what a row holds; row s of the bundle has [outer][run] of it. Gaps in rows of gradients are
 * zeroed, because they are summed with the rest and buckets' padding stays zero for ever.
 */
#include "bundles.h"
#include "buffers.h"

enum { LINE = 64, SECTION_ALIGNMENT = 512, ROW_ALIGNMENT = 128 };

/* ---- layout ------------------------------------------------------------------------------ */

/* Rows of `row_bytes` at the end of what has `end` bytes so far. */
static void place_rows(const hp_fsdp *fsdp, hpi_plan_bundle *b, uint64_t row_bytes, uint64_t *end) {
    b->begin = hpi_append(end, row_bytes * (uint64_t)fsdp->n_shards, LINE);
    b->end = *end;
    b->own_begin = b->begin + (uint64_t)fsdp->shard_rank * row_bytes;
    b->own_end = b->own_begin + row_bytes;
}

static void lay_out_gather(hp_unit *unit, hp_dtype dtype, const hpi_plan_param *params,
                           hpi_plan_unit *out) {
    uint64_t row = 0;
    for (uint32_t j = 0; j < out->n_params; j++) {
        hpi_param *p = &unit->params[params[j].param];
        if (params[j].is_gathered && p->data_dtype == dtype)
            p->row_offset = hpi_append(&row, p->layout.shard_elements * hp_dtype_size(dtype), 1);
    }
    if (!row)
        return;
    hpi_plan_bundle *b = &out->gathers[out->n_gathers++];
    uint64_t pack_end = out->n_gathers > 1 ? b[-1].pack_end : 0;
    row = hpi_align_up(row, LINE);
    b->dtype = (uint8_t)dtype;
    place_rows(unit->fsdp, b, row, &out->gather_bytes);
    b->pack_begin = hpi_append(&pack_end, row, LINE);
    b->pack_end = pack_end;
    out->storage_bytes = hpi_max(out->storage_bytes, pack_end);
}

static void lay_out_scatter(hp_unit *unit, hp_dtype dtype, hpi_plan_param *params,
                            hpi_plan_unit *out, uint64_t bucket_end[2]) {
    const uint64_t sum_bytes = hp_dtype_size(hpi_sum_dtype(dtype));
    const int bucket = dtype == HP_FP64;
    const uint64_t begin = hpi_align_up(bucket_end[bucket], SECTION_ALIGNMENT);
    uint64_t end = begin;
    for (uint32_t j = 0; j < out->n_params; j++) {
        hpi_param *p = &unit->params[params[j].param];
        if (params[j].route != HPI_ROUTE_REDUCE_SCATTER || p->grad_dtype != dtype)
            continue;
        p->bucket_offset = hpi_append(&end, p->layout.shard_elements * sum_bytes, LINE);
        params[j].bucket_begin = p->bucket_offset;
        params[j].bucket_end = end;
        p->row_grad_offset = (p->bucket_offset - begin) / sum_bytes * hp_dtype_size(dtype);
    }
    if (end == begin)
        return;
    bucket_end[bucket] = begin + hpi_align_up(end - begin, ROW_ALIGNMENT);
    hpi_plan_bundle *b = &out->scatters[out->n_scatters++];
    b->dtype = (uint8_t)dtype;
    b->bucket = bucket;
    b->bucket_begin = begin;
    b->bucket_end = bucket_end[bucket];
    place_rows(unit->fsdp, b, (b->bucket_end - begin) / sum_bytes * hp_dtype_size(dtype),
               &out->pack_bytes);
}

void hpi_bundles_lay_out(hp_unit *unit, hpi_plan_param *params, hpi_plan_unit *out,
                         uint64_t bucket_end[2]) {
    for (int dtype = 0; dtype < HPI_MAX_BUNDLES; dtype++)
        lay_out_gather(unit, (hp_dtype)dtype, params, out);
    for (int dtype = 0; dtype < HPI_MAX_BUNDLES; dtype++)
        lay_out_scatter(unit, (hp_dtype)dtype, params, out, bucket_end);
    for (uint32_t j = 0; j < out->n_params; j++) {
        if (params[j].route != HPI_ROUTE_ALL_REDUCE)
            continue;
        params[j].pack_begin =
            hpi_append(&out->pack_bytes, params[j].grad_end - params[j].grad_begin, LINE);
        params[j].pack_end = out->pack_bytes;
    }
}

/* ---- rows -------------------------------------------------------------------------------- */

/* The unit of an operation, with its plan. */
typedef struct subject {
    const hp_unit *unit;
    const hpi_plan_unit *plan;
    uint64_t n_shards;
} subject;

static subject subject_of(void *context, const hp_op *op) {
    const hp_fsdp *fsdp = ((hpi_bindings *)context)->owner;
    return (subject){fsdp->units[op->unit], &fsdp->plan_units[op->unit], (uint64_t)fsdp->n_shards};
}

static const hpi_param *param_of(const subject *s, uint32_t j) {
    return &s->unit->params[s->plan->params[j].param];
}

static uint64_t row_bytes(const hpi_plan_bundle *b) {
    return b->own_end - b->own_begin;
}

/* Bytes of a shard's run in each of `outer` places, and from one place to the next. */
typedef struct stripe {
    uint64_t run, stride;
} stripe;

static stripe stripe_of(const hpi_param *p, size_t element_bytes) {
    const uint64_t run = p->layout.chunk * p->layout.inner * element_bytes;
    return (stripe){run, run * p->layout.n_shards};
}

static void spread(const hpi_param *p, size_t bytes, uint64_t shard, const unsigned char *row,
                   unsigned char *full) {
    const stripe s = stripe_of(p, bytes);
    for (uint64_t o = 0; o < p->layout.outer; o++)
        hpi_copy(full + o * s.stride + shard * s.run, row + o * s.run, s.run);
}

static void collect(const hpi_param *p, size_t bytes, uint64_t shard, const unsigned char *full,
                    unsigned char *row) {
    const stripe s = stripe_of(p, bytes);
    for (uint64_t o = 0; o < p->layout.outer; o++)
        hpi_copy(row + o * s.run, full + o * s.stride + shard * s.run, s.run);
}

/* ---- parameters -------------------------------------------------------------------------- */

hp_status hpi_run_pack(void *context, const hp_op *op) {
    const subject s = subject_of(context, op);
    unsigned char *row = hpi_bound(context, &op->writes[0]);
    for (uint32_t j = 0; j < s.plan->n_params; j++) {
        const hpi_param *p = param_of(&s, j);
        if (!s.plan->params[j].is_gathered || p->data_dtype != (hp_dtype)op->dtype)
            continue;
        HP_TRY(hpi_convert(hpi_param_master(s.unit, p), p->master, row + p->row_offset,
                           p->data_dtype, p->layout.shard_elements));
    }
    return HP_OK;
}

hp_status hpi_run_copy(void *context, const hp_op *op) {
    hpi_copy(hpi_bound(context, &op->writes[0]), hpi_bound(context, &op->reads[0]),
             op->reads[0].end - op->reads[0].begin);
    return HP_OK;
}

static void spread_bundle(const subject *s, const hpi_plan_bundle *b, const unsigned char *rows,
                          unsigned char *storage) {
    const size_t bytes = hp_dtype_size((hp_dtype)b->dtype);
    for (uint32_t j = 0; j < s->plan->n_params; j++) {
        const hpi_param *p = param_of(s, j);
        if (!s->plan->params[j].is_gathered || p->data_dtype != (hp_dtype)b->dtype)
            continue;
        for (uint64_t shard = 0; shard < s->n_shards; shard++)
            spread(p, bytes, shard, rows + shard * row_bytes(b) + p->row_offset,
                   storage + p->storage_offset);
    }
}

hp_status hpi_run_copy_out(void *context, const hp_op *op) {
    const subject s = subject_of(context, op);
    const unsigned char *rows = hpi_bound(context, &op->reads[0]);
    unsigned char *storage = hpi_bound(context, &op->writes[0]);
    for (uint32_t i = 0; i < s.plan->n_gathers; i++)
        spread_bundle(&s, &s.plan->gathers[i], rows + s.plan->gathers[i].begin, storage);
    return HP_OK;
}

/* ---- gradients --------------------------------------------------------------------------- */

static void collect_row(const subject *s, const hpi_plan_bundle *b, uint64_t shard,
                        const unsigned char *grads, unsigned char *row) {
    const size_t bytes = hp_dtype_size((hp_dtype)b->dtype);
    uint64_t at = 0; /* of the row, filled so far */
    for (uint32_t j = 0; j < s->plan->n_params; j++) {
        const hpi_param *p = param_of(s, j);
        if (s->plan->params[j].route != HPI_ROUTE_REDUCE_SCATTER ||
            p->grad_dtype != (hp_dtype)b->dtype)
            continue;
        memset(row + at, 0, p->row_grad_offset - at);
        collect(p, bytes, shard, grads + p->grad_offset, row + p->row_grad_offset);
        at = p->row_grad_offset + p->layout.shard_elements * bytes;
    }
    memset(row + at, 0, row_bytes(b) - at);
}

hp_status hpi_run_pack_grads(void *context, const hp_op *op) {
    const subject s = subject_of(context, op);
    const unsigned char *grads = hpi_bound(context, &op->reads[0]);
    unsigned char *packed = hpi_bound(context, &op->writes[0]);
    for (uint32_t i = 0; i < s.plan->n_scatters; i++) {
        const hpi_plan_bundle *b = &s.plan->scatters[i];
        for (uint64_t shard = 0; shard < s.n_shards; shard++)
            collect_row(&s, b, shard, grads, packed + b->begin + shard * row_bytes(b));
    }
    for (uint32_t j = 0; j < s.plan->n_params; j++) {
        const hpi_plan_param *p = &s.plan->params[j];
        if (p->route == HPI_ROUTE_ALL_REDUCE)
            hpi_copy(packed + p->pack_begin, grads + p->grad_begin, p->grad_end - p->grad_begin);
    }
    return HP_OK;
}

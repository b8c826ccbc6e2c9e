/* SPDX-License-Identifier: Apache-2.0
 *
 * segments.c - mode mapped: a unit's parameters as flat segments that the shard group shares.
 *
 * The sharded parameters of a unit that are alike in dtypes and in whether they train stand in one
 * row of elements, each at a multiple of 64 of them. The row is cut into equal chunks, one for each
 * rank of the shard group, whatever parameters the cuts go through. Gradients, buckets and sums
 * have the same layout, so one reduce-scatter takes a segment from where backward has written it.
 *
 * All segments of all units lie in one spanning allocation: one mapping, of which rank i owns the
 * i-th chunk of each segment. Users read through a second mapping of the same pages, without
 * permission to write; where ranks are threads there is one mapping only, and no such protection.
 */
#include "../together/agree.h"
#include "buffers.h"

#include <assert.h>

/* Cuts are where every buffer's slices are aligned: 128 elements are 512 bytes of fp32. */
enum { ALIGNMENT = 64, CHUNK_ALIGNMENT = 128 };

struct segment {
    hp_unit *unit;
    const hpi_param *first;
    uint64_t chunk;   /* elements of one rank */
    uint64_t begin;   /* where it begins in the shared buffer; in bytes, as the others */
    uint64_t masters; /* in the shard buffer, with a cast */
    uint64_t grad, bucket, accumulator;
};

static bool is_alike(const hpi_param *a, const hpi_param *b) {
    return a->is_mapped && b->is_mapped && a->data_dtype == b->data_dtype &&
           a->master == b->master && a->grad_dtype == b->grad_dtype && a->is_frozen == b->is_frozen;
}

static bool is_first_of_its_kind(const hp_unit *unit, const hpi_param *p) {
    for (const hpi_param *q = unit->params; q < p; q++)
        if (is_alike(q, p))
            return false;
    return p->is_mapped;
}

/* Give each parameter its place in the row; sets `chunk`. */
static void place(struct segment *s) {
    hp_unit *unit = s->unit;
    uint64_t end = 0;
    hpi_param *last = NULL;
    for (int j = 0; j < unit->n_params; j++) {
        hpi_param *p = &unit->params[j];
        if (!is_alike(p, s->first))
            continue;
        p->layout.first = hpi_append(&end, p->layout.n_elements, ALIGNMENT);
        if (last)
            last->grad_padding = p->layout.first - last->layout.first - last->layout.n_elements;
        last = p;
    }
    const uint64_t n_shards = (uint64_t)unit->fsdp->n_shards;
    s->chunk = hpi_align_up(hpi_ceil_div(end, n_shards), CHUNK_ALIGNMENT);
    assert(last); /* s->first at least */
    last->grad_padding = n_shards * s->chunk - end;
}

/* Room for the segment in the unit's buffers. */
static void reserve(struct segment *s, hpi_unit_bytes *end) {
    const hpi_param *p = s->first;
    const uint64_t whole = (uint64_t)s->unit->fsdp->n_shards * s->chunk;
    const uint64_t master = hp_dtype_size(p->master);
    s->begin = hpi_append(&end->shared, whole * hp_dtype_size(p->data_dtype), HPI_PARAM_ALIGNMENT);
    if (p->has_cast)
        s->masters = hpi_append(&end->shard, s->chunk * master, HPI_PARAM_ALIGNMENT);
    if (p->is_frozen)
        return;
    s->grad = hpi_append(&end->grad, whole * hp_dtype_size(p->grad_dtype), HPI_PARAM_ALIGNMENT);
    s->bucket =
        hpi_append(&end->bucket[p->master == HP_FP64], s->chunk * master, HPI_SLICE_ALIGNMENT);
    s->accumulator = hpi_append(&end->accumulator, whole * master, HPI_PARAM_ALIGNMENT);
}

/* Where the parameter, and this rank's elements of it, lie in those buffers. */
static void locate(const struct segment *s, hpi_param *p) {
    const uint64_t rank = (uint64_t)s->unit->fsdp->shard_rank, first = p->layout.first;
    const uint64_t data = hp_dtype_size(p->data_dtype), master = hp_dtype_size(p->master);
    uint64_t begin, end;
    hpi_layout_flatten(&p->layout, first, s->chunk, (int)rank);
    hpi_layout_rows(&p->layout, (int)rank, &begin, &end);
    const uint64_t own = begin < end ? first + begin - rank * s->chunk : 0; /* in the chunk */
    p->storage_offset = s->begin + first * data;
    p->shard_offset = p->cast_offset = s->begin + (rank * s->chunk + own) * data;
    if (p->has_cast)
        p->shard_offset = s->masters + own * master;
    if (p->is_frozen)
        return;
    p->bucket = p->master == HP_FP64;
    p->bucket_offset = s->bucket + own * master;
    p->grad_offset = s->grad + first * hp_dtype_size(p->grad_dtype);
}

static void describe(const struct segment *s, hpi_plan_param *out) {
    const hpi_param *p = s->first;
    const uint64_t n_shards = (uint64_t)s->unit->fsdp->n_shards, whole = n_shards * s->chunk;
    const uint64_t data = hp_dtype_size(p->data_dtype), master = hp_dtype_size(p->master);
    const uint64_t own = s->begin + (uint64_t)s->unit->fsdp->shard_rank * s->chunk * data;
    out->param = (uint32_t)(p - s->unit->params);
    out->dtype = (uint8_t)p->data_dtype;
    out->blocks = 1;
    out->source = (hp_ref){0, 0, own, own + s->chunk * data};
    if (p->is_frozen)
        return;
    out->grad_dtype = (uint8_t)p->grad_dtype;
    out->route = HPI_ROUTE_REDUCE_SCATTER;
    out->bucket = p->master == HP_FP64;
    out->bucket_begin = s->bucket;
    out->bucket_end = s->bucket + s->chunk * master;
    out->grad_begin = s->grad;
    out->grad_end = s->grad + whole * hp_dtype_size(p->grad_dtype);
    out->accumulator_begin = s->accumulator;
    out->accumulator_end = s->accumulator + whole * master;
}

void hpi_segments_lay_out(hp_unit *unit, hpi_unit_bytes *end, hpi_plan_param *params,
                          hpi_plan_unit *out) {
    for (int k = 0; k < unit->n_params; k++) {
        struct segment s = {.unit = unit, .first = &unit->params[k]};
        if (!is_first_of_its_kind(unit, s.first))
            continue;
        place(&s);
        reserve(&s, end);
        for (int j = 0; j < unit->n_params; j++)
            if (is_alike(&unit->params[j], s.first))
                locate(&s, &unit->params[j]);
        describe(&s, &params[out->n_params++]);
        out->is_trainable |= !s.first->is_frozen;
    }
}

/* ---- memory ------------------------------------------------------------------------------ */

static uint64_t count_bytes(const hp_fsdp *fsdp) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < fsdp->n_units; i++)
        bytes += fsdp->plan_units[i].shared.end; /* whole chunks: each unit's begins aligned */
    return bytes;
}

static void bind(hp_fsdp *fsdp, unsigned char *base) {
    uint64_t at = 0;
    for (uint32_t i = 0; i < fsdp->n_units; i++) {
        const hp_ref shared = fsdp->plan_units[i].shared;
        if (!shared.buffer)
            continue;
        fsdp->bindings.buffers[shared.buffer] = base + at;
        fsdp->units[i]->view = (const unsigned char *)fsdp->view + at;
        at += shared.end;
    }
}

/* The mesh's group is there as long as the mesh is; the fsdp's own may be replaced. */
static hp_group *sharers(const hp_fsdp *fsdp) {
    return hp_mesh_group(fsdp->mesh, hp_mesh_n_dims(fsdp->mesh) - 1);
}

hp_status hpi_segments_take_memory(hp_fsdp *fsdp) {
    const uint64_t bytes = count_bytes(fsdp), n_shards = (uint64_t)fsdp->n_shards;
    void *base = NULL;
    if (!bytes || !fsdp->world) /* a virtual fsdp has no memory */
        return HP_OK;
    hp_status status = hpi_world_check_memory(fsdp->world, bytes * (uint64_t)fsdp->n_replicas,
                                              "parameters that shard groups share");
    HP_TRY(hpi_agree(fsdp, status));
    status = hp_symm_alloc_spanning(fsdp->world, sharers(fsdp), bytes / n_shards, &fsdp->shared);
    status = status ? status : hp_symm_pointer(fsdp->shared, 0, sharers(fsdp), &base);
    status = status ? status : hpi_group_view(sharers(fsdp), base, bytes, &fsdp->view);
    HP_TRY(hpi_agree(fsdp, status));
    bind(fsdp, base);
    return HP_OK;
}

void hpi_segments_drop_memory(hp_fsdp *fsdp) {
    if (fsdp->view)
        hpi_group_drop_view(sharers(fsdp), fsdp->view, count_bytes(fsdp));
    hpi_symm_drop(fsdp->shared);
}

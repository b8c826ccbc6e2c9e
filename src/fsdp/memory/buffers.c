/* SPDX-License-Identifier: Apache-2.0
 *
 * buffers.c - where everything that a step touches lies: layouts of units, buffers, memory.
 *
 * A unit's parameters are laid out in its buffers (engine.h names them), the buffers in one
 * symmetric allocation, the same on every rank. Operations name a buffer by its id. Accumulators
 * have an id from the start and memory of this rank alone when they are first needed.
 */
#include "buffers.h"
#include "../together/agree.h"
#include "bundles.h"

#include <stdio.h>

enum { N_GRAD_SLOTS = 2 };

/* Hand out ids and, in `offsets`, places in the one allocation. */
struct cutter {
    hp_fsdp *fsdp;
    uint64_t *offsets;
    uint64_t total;
};

#define NOWHERE UINT64_MAX /* the offset of a buffer outside that allocation */

/* An id, for memory that will come from elsewhere. */
static hp_ref reserve(struct cutter *cutter, uint64_t bytes) {
    if (!bytes)
        return (hp_ref){0, 0, 0, 0};
    hpi_bindings *b = &cutter->fsdp->bindings;
    const uint32_t id = b->n_buffers++;
    cutter->offsets[id] = NOWHERE;
    b->buffer_bytes[id] = bytes;
    return (hp_ref){id, 0, 0, bytes};
}

static hp_ref cut(struct cutter *cutter, uint64_t bytes) {
    const hp_ref whole = reserve(cutter, bytes);
    if (!whole.buffer)
        return whole;
    cutter->total = hpi_align_up(cutter->total, HPI_SLICE_ALIGNMENT);
    cutter->offsets[whole.buffer] = cutter->total;
    cutter->total += bytes;
    return whole;
}

static hpi_route choose_route(const hp_fsdp *fsdp, const hpi_param *p) {
    if (fsdp->n_shards == 1)
        return p->grad_dtype == p->master ? HPI_ROUTE_DIRECT : HPI_ROUTE_CONVERT;
    return p->layout.n_shards > 1 ? HPI_ROUTE_REDUCE_SCATTER : HPI_ROUTE_ALL_REDUCE;
}

static void lay_out_slice(hpi_param *p, hpi_unit_bytes *end, hpi_plan_param *out) {
    const uint64_t bytes = p->layout.shard_elements * hp_dtype_size(p->master);
    p->bucket_offset = hpi_append(&end->bucket[p->bucket], bytes, HPI_SLICE_ALIGNMENT);
    out->bucket_begin = p->bucket_offset;
    out->bucket_end = p->bucket_offset + bytes;
}

static void lay_out_gradient(hp_fsdp *fsdp, hpi_param *p, hpi_unit_bytes *end,
                             hpi_plan_param *out) {
    const uint64_t sum_bytes = hp_dtype_size(p->master);
    const uint64_t full = p->layout.full_elements;
    p->bucket = out->bucket = p->master == HP_FP64;
    out->accumulator_begin = hpi_append(&end->accumulator, full * sum_bytes, HPI_PARAM_ALIGNMENT);
    out->accumulator_end = out->accumulator_begin + full * sum_bytes;
    out->grad_dtype = (uint8_t)p->grad_dtype;
    out->route = choose_route(fsdp, p);
    p->is_direct = out->route == HPI_ROUTE_DIRECT;
    if (p->is_direct)
        return;
    p->grad_padding = full - p->layout.n_elements;
    p->grad_offset =
        hpi_append(&end->grad, full * hp_dtype_size(p->grad_dtype), HPI_PARAM_ALIGNMENT);
    out->grad_begin = p->grad_offset;
    out->grad_end = p->grad_offset + full * hp_dtype_size(p->grad_dtype);
}

static void lay_out_param(hp_fsdp *fsdp, hpi_param *p, hpi_unit_bytes *end, hpi_plan_param *out) {
    const uint64_t bytes = hp_dtype_size(p->data_dtype), full = p->layout.full_elements;
    const uint64_t shard = p->layout.shard_elements;
    out->is_gathered = fsdp->n_shards > 1 && p->layout.n_shards > 1;
    if (out->is_gathered && hpi_mode_is_fused(fsdp->config.mode))
        p->has_cast = false;
    p->shard_offset =
        hpi_append(&end->shard, shard * hp_dtype_size(p->master), HPI_PARAM_ALIGNMENT);
    if (p->has_cast)
        p->cast_offset = hpi_append(&end->cast, shard * bytes, HPI_PARAM_ALIGNMENT);
    out->dtype = (uint8_t)p->data_dtype;
    out->blocks = p->layout.outer;
    if (out->is_gathered) {
        p->storage_offset = hpi_append(&end->storage, full * bytes, HPI_PARAM_ALIGNMENT);
        out->storage_begin = p->storage_offset;
        out->storage_end = p->storage_offset + full * bytes;
    }
    if (!p->is_frozen)
        lay_out_gradient(fsdp, p, end, out);
}

/* Where a parameter's shard is gathered from. */
static hp_ref source_of(const hpi_param *p, const hpi_plan_unit *unit) {
    const uint64_t bytes = p->layout.shard_elements * hp_dtype_size(p->data_dtype);
    const uint64_t at = p->has_cast ? p->cast_offset : p->shard_offset;
    return (hp_ref){p->has_cast ? unit->cast.buffer : unit->shard.buffer, 0, at, at + bytes};
}

/* Where each gradient shard lies in its bucket: those of segments and bundles first. */
static void lay_out_buckets(hp_unit *unit, hpi_plan_param *params, hpi_unit_bytes *end,
                            hpi_plan_unit *out) {
    const bool has_bundles = hpi_mode_is_fused(out->mode) && unit->fsdp->n_shards > 1;
    if (has_bundles)
        hpi_bundles_lay_out(unit, params, out, end->bucket);
    for (uint32_t j = 0; j < out->n_params; j++) {
        hpi_param *p = &unit->params[params[j].param];
        const bool is_bundled = has_bundles && params[j].route == HPI_ROUTE_REDUCE_SCATTER;
        if (params[j].route != HPI_ROUTE_NONE && !is_bundled && !p->is_mapped)
            lay_out_slice(p, end, &params[j]);
    }
}

static void lay_out_unit(struct cutter *cutter, hp_unit *unit, hpi_plan_param *params,
                         hpi_plan_unit *out) {
    hp_fsdp *fsdp = cutter->fsdp;
    hpi_unit_bytes end = {0};
    out->mode = fsdp->config.mode;
    out->params = params;
    for (int j = 0; j < unit->n_params; j++) {
        hpi_param *p = &unit->params[j];
        if (!hpi_param_is_owned(p) || !p->layout.n_elements || p->is_mapped)
            continue;
        params[out->n_params].param = (uint32_t)j;
        lay_out_param(fsdp, p, &end, &params[out->n_params++]);
        out->is_trainable |= p->bucket >= 0;
    }
    hpi_segments_lay_out(unit, &end, params, out);
    out->storage_bytes = end.storage;
    out->grad_bytes = end.grad;
    lay_out_buckets(unit, params, &end, out);
    out->shard = cut(cutter, end.shard);
    out->cast = cut(cutter, end.cast);
    for (int b = 0; b < 2; b++)
        out->bucket[b] = cut(cutter, hpi_align_up(end.bucket[b], HPI_SLICE_ALIGNMENT));
    out->shared = reserve(cutter, end.shared);
    out->accumulator = reserve(cutter, end.accumulator);
    for (int b = 0; b < 2; b++)
        out->partial[b] = reserve(cutter, out->bucket[b].end);
    out->is_resharded = hpi_unit_is_resharded(unit);
    out->own_storage = out->is_resharded ? 0 : cut(cutter, out->storage_bytes).buffer;
    out->is_divided = hpi_unit_parts(unit) != 1.0 || unit->config.factor != 1.0;
    out->is_mean =
        fsdp->n_replicas == 1 && unit->config.reduce == HP_AVG && unit->config.factor == 1.0;
    for (uint32_t j = 0; j < out->n_params; j++) /* the ids are known now */
        if (unit->params[params[j].param].is_mapped)
            params[j].source.buffer = out->shared.buffer;
        else
            params[j].source = source_of(&unit->params[params[j].param], out);
}

/* (1 + prefetch) gathered units and two units of gradients; fewer when there are fewer units. Fused
 * modes: a gather's output and packed gradients, of one unit at a time. */
static void cut_slots(struct cutter *cutter) {
    hp_fsdp *fsdp = cutter->fsdp;
    hpi_plan_config *plan = &fsdp->plan_config;
    uint64_t storage_bytes = 0, grad_bytes = 0, gather_bytes = 0, pack_bytes = 0;
    uint32_t n_pooled = 0, n_trainable = 0;
    for (uint32_t i = 0; i < fsdp->n_units; i++) {
        const hpi_plan_unit *unit = &fsdp->plan_units[i];
        grad_bytes = hpi_max(grad_bytes, unit->grad_bytes);
        gather_bytes = hpi_max(gather_bytes, unit->gather_bytes);
        pack_bytes = hpi_max(pack_bytes, unit->pack_bytes);
        n_trainable += unit->grad_bytes != 0;
        if (unit->own_storage || !unit->storage_bytes)
            continue;
        storage_bytes = hpi_max(storage_bytes, unit->storage_bytes);
        n_pooled++;
    }
    plan->n_storage_slots = (uint32_t)hpi_min(n_pooled, plan->prefetch + 1U);
    plan->n_grad_slots = (uint32_t)hpi_min(n_trainable, N_GRAD_SLOTS);
    for (uint32_t s = 0; s < plan->n_storage_slots; s++)
        plan->storage_slots[s] = cut(cutter, storage_bytes).buffer;
    for (uint32_t s = 0; s < plan->n_grad_slots; s++)
        plan->grad_slots[s] = cut(cutter, grad_bytes).buffer;
    plan->gather_buffer = cut(cutter, gather_bytes).buffer;
    plan->pack_buffer = cut(cutter, pack_bytes).buffer;
    fsdp->stats.pack_bytes = gather_bytes + pack_bytes;
}

static hp_status take_tables(hp_fsdp *fsdp, uint64_t **out_offsets) {
    size_t n_params = 0;
    for (uint32_t i = 0; i < fsdp->n_units; i++)
        n_params += (size_t)fsdp->units[i]->n_params;
    const size_t n_buffers = 1 + 9 * (size_t)fsdp->n_units + 2 * HPI_MAX_SLOTS;
    fsdp->plan_units = hpi_alloc(fsdp->n_units, sizeof *fsdp->plan_units);
    fsdp->plan_params = hpi_alloc(n_params, sizeof *fsdp->plan_params);
    fsdp->unit_names = hpi_alloc(fsdp->n_units, sizeof *fsdp->unit_names);
    fsdp->bindings.buffers = hpi_alloc(n_buffers, sizeof *fsdp->bindings.buffers);
    fsdp->bindings.buffer_bytes = hpi_alloc(n_buffers, sizeof *fsdp->bindings.buffer_bytes);
    fsdp->bindings.comms = hpi_alloc(HPI_N_COMMS, sizeof *fsdp->bindings.comms);
    fsdp->bindings.comm_base = hpi_alloc(HPI_N_COMMS, sizeof *fsdp->bindings.comm_base);
    fsdp->bindings.unit_pass = hpi_alloc(fsdp->n_units, sizeof *fsdp->bindings.unit_pass);
    fsdp->bindings.n_units = fsdp->n_units;
    *out_offsets = hpi_alloc(n_buffers, sizeof **out_offsets);
    return fsdp->plan_units && fsdp->plan_params && fsdp->unit_names && fsdp->bindings.buffers &&
                   fsdp->bindings.buffer_bytes && fsdp->bindings.comms &&
                   fsdp->bindings.comm_base && fsdp->bindings.unit_pass && *out_offsets
               ? HP_OK
               : HP_ERR_MEMORY;
}

static void count_bytes(hp_fsdp *fsdp) {
    hp_fsdp_stats *stats = &fsdp->stats;
    const hpi_plan_config *plan = &fsdp->plan_config;
    const uint64_t *bytes = fsdp->bindings.buffer_bytes;
    for (uint32_t i = 0; i < fsdp->n_units; i++) {
        const hpi_plan_unit *unit = &fsdp->plan_units[i];
        stats->shard_bytes += unit->shard.end + unit->cast.end;
        stats->bucket_bytes += unit->bucket[0].end + unit->bucket[1].end;
        stats->shared_bytes += unit->shared.end / (uint64_t)fsdp->n_shards;
        stats->gather_bytes += unit->own_storage ? bytes[unit->own_storage] : 0;
    }
    for (uint32_t s = 0; s < plan->n_storage_slots; s++)
        stats->gather_bytes += bytes[plan->storage_slots[s]];
    for (uint32_t s = 0; s < plan->n_grad_slots; s++)
        stats->grad_bytes += bytes[plan->grad_slots[s]];
}

static hp_status bind_memory(hp_fsdp *fsdp, const uint64_t *offsets, uint64_t total) {
    void *base = NULL;
    if (hpi_fsdp_is_virtual(fsdp))
        return HP_OK;
    HP_TRY(hp_symm_alloc(fsdp->world, NULL, total ? total : 1, 4096, &fsdp->memory));
    HP_TRY(hp_symm_pointer(fsdp->memory, hp_world_rank(fsdp->world), NULL, &base));
    for (uint32_t id = 1; id < fsdp->bindings.n_buffers; id++)
        if (offsets[id] != NOWHERE)
            fsdp->bindings.buffers[id] = (unsigned char *)base + offsets[id];
    return HP_OK;
}

hp_status hpi_fsdp_take_memory(hp_fsdp *fsdp) {
    uint64_t *offsets = NULL;
    hp_status status = hpi_agree(fsdp, take_tables(fsdp, &offsets));
    if (!status) {
        struct cutter cutter = {fsdp, offsets, 0};
        hpi_plan_param *params = fsdp->plan_params;
        fsdp->bindings.n_buffers = 1;
        for (uint32_t i = 0; i < fsdp->n_units; i++) {
            lay_out_unit(&cutter, fsdp->units[i], params, &fsdp->plan_units[i]);
            params += fsdp->plan_units[i].n_params;
            fsdp->unit_names[i] = fsdp->units[i]->name;
        }
        cut_slots(&cutter);
        status = bind_memory(fsdp, offsets, cutter.total);
        status = status ? status : hpi_segments_take_memory(fsdp);
        count_bytes(fsdp);
    }
    hpi_free(offsets);
    return status;
}

/* The other ranks of the node are about to take as much: what they have taken already shows in what
 * the machine has left. So one unit at a time is enough, and nobody has to be asked. */
static hp_status check_sums(const hp_unit *unit, const char *what, uint64_t bytes) {
    char text[160];
    snprintf(text, sizeof text, "sums of %s gradients of unit %s, of all ranks of this node", what,
             unit->name);
    return hpi_world_check_memory(unit->fsdp->world,
                                  bytes * (uint64_t)hp_world_local_size(unit->fsdp->world), text);
}

/* Memory for the buffer, kept in *memory, which is NULL until then. */
static hp_status take_sums(hp_unit *unit, const char *what, hp_ref ref, void **memory) {
    if (!ref.buffer || *memory || hpi_fsdp_is_virtual(unit->fsdp))
        return HP_OK;
    HP_TRY(check_sums(unit, what, ref.end));
    *memory = hpi_alloc_aligned(HPI_PARAM_ALIGNMENT, ref.end);
    if (!*memory)
        return HP_ERR_MEMORY;
    unit->fsdp->bindings.buffers[ref.buffer] = *memory;
    unit->fsdp->stats.grad_bytes += ref.end;
    return HP_OK;
}

hp_status hpi_unit_take_accumulator(hp_unit *unit) {
    const hpi_plan_unit *plan = &unit->fsdp->plan_units[unit->index];
    return take_sums(unit, "full", plan->accumulator, &unit->accumulator);
}

hp_status hpi_unit_take_partial(hp_unit *unit) {
    const hpi_plan_unit *plan = &unit->fsdp->plan_units[unit->index];
    for (int b = 0; b < 2; b++)
        HP_TRY(take_sums(unit, "reduced", plan->partial[b], &unit->partial[b]));
    return HP_OK;
}

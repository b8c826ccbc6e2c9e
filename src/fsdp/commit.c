/* SPDX-License-Identifier: Apache-2.0
 *
 * commit.c - from declarations to memory: ties, layouts, agreement, buffers, first values.
 *
 * Everything a step will ever touch is taken here, in one symmetric allocation that is cut into
 * buffers, so that a training step takes no memory. The order is: check what one rank can check
 * alone, agree with the other ranks, take memory, fill the shards, make plan and executor.
 */
#include "engine.h"

#define XXH_INLINE_ALL
#include <stdio.h>
#include <xxhash.h>

enum { SLICE_ALIGNMENT = 512, PARAM_ALIGNMENT = 64, N_GRAD_SLOTS = 2 };

/* ---- ties and layouts -------------------------------------------------------------------- */

static bool same_shape(const hpi_param *a, const hpi_param *b) {
    return a->n_dims == b->n_dims && a->dtype == b->dtype &&
           memcmp(a->shape, b->shape, sizeof a->shape) == 0;
}

/* Parameters with the same first values are one parameter. Its first name is the owner. */
static hp_status tie(hp_unit *unit, hpi_param *p, hp_unit *earlier_unit, int earlier) {
    const hpi_param *owner = &earlier_unit->params[earlier];
    if (unit != earlier_unit)
        return HPI_FAIL(
            HP_ERR_ARGUMENT,
            "expected tied parameters in one unit, given %s of unit %s and %s of unit %s: "
            "make them one unit, or use one unit twice",
            owner->name, earlier_unit->name, p->name, unit->name);
    if (!same_shape(owner, p))
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected tied parameters of one shape and dtype, given %s and %s",
                        owner->name, p->name);
    p->alias_of = owner->alias_of >= 0 ? owner->alias_of : earlier;
    return HP_OK;
}

static bool is_empty(const hpi_param *p) {
    for (int d = 0; d < p->n_dims; d++)
        if (p->shape[d] == 0)
            return true;
    return false;
}

static hp_status find_tie(hp_fsdp *fsdp, hp_unit *unit, int index) {
    hpi_param *p = &unit->params[index];
    if (is_empty(p))
        return HP_OK;
    for (uint32_t i = 0; p->data && !p->is_ignored && i <= unit->index; i++) {
        hp_unit *other = fsdp->units[i];
        const int n = other == unit ? index : other->n_params;
        for (int j = 0; j < n; j++)
            if (other->params[j].data == p->data && !other->params[j].is_ignored)
                return tie(unit, p, other, j);
    }
    return HP_OK;
}

static hp_status make_layout(hp_fsdp *fsdp, hpi_param *p) {
    hp_param description = HP_PARAM_INIT;
    description.name = p->name;
    description.n_dims = p->n_dims;
    memcpy(description.shape, p->shape, sizeof p->shape);
    description.dtype = p->dtype;
    description.shard_dim = p->shard_dim;
    return hpi_layout_make(&description, fsdp->n_shards, &p->layout);
}

/* Every sum of sizes below is a small multiple of this one: with it bounded, none can overflow. */
static hp_status add_bytes(const hp_unit *unit, const hpi_param *p, uint64_t *total_bytes) {
    const uint64_t most_bytes = UINT64_C(1) << 46;
    if (p->is_ignored)
        return HP_OK;
    if (p->layout.full_elements < most_bytes / sizeof(double))
        *total_bytes += p->layout.full_elements * sizeof(double);
    else
        *total_bytes = most_bytes;
    if (*total_bytes < most_bytes)
        return HP_OK;
    return HPI_FAIL(
        HP_ERR_ARGUMENT,
        "expected parameters of less than %llu bytes together, given more: %s of unit %s "
        "has %llu elements",
        (unsigned long long)most_bytes, p->name, unit->name,
        (unsigned long long)p->layout.n_elements);
}

static hp_status make_layouts(hp_fsdp *fsdp) {
    uint64_t total_bytes = 0;
    for (uint32_t i = 0; i < fsdp->n_units; i++)
        for (int j = 0; j < fsdp->units[i]->n_params; j++) {
            HP_TRY(find_tie(fsdp, fsdp->units[i], j));
            HP_TRY(make_layout(fsdp, &fsdp->units[i]->params[j]));
            HP_TRY(add_bytes(fsdp->units[i], &fsdp->units[i]->params[j], &total_bytes));
        }
    return HP_OK;
}

/* ---- agreement --------------------------------------------------------------------------- */

static bool is_resharded(const hp_unit *unit) {
    const int own = unit->config.reshard_after_forward;
    return own < 0 ? unit->fsdp->config.reshard_after_forward != 0 : own != 0;
}

static uint64_t param_fingerprint(const hp_unit *unit, const hpi_param *p, uint64_t seed) {
    uint64_t h = XXH3_64bits_withSeed(p->name, strlen(p->name), seed);
    h = XXH3_64bits_withSeed(unit->name, strlen(unit->name), h);
    h = XXH3_64bits_withSeed(p->shape, sizeof p->shape, h);
    const int64_t rest[] = {p->n_dims,    p->dtype,      p->shard_dim,
                            p->is_frozen, p->is_ignored, p->alias_of};
    return XXH3_64bits_withSeed(rest, sizeof rest, h);
}

static uint64_t unit_fingerprint(const hp_unit *unit) {
    uint64_t factor;
    memcpy(&factor, &unit->config.factor, sizeof factor);
    const uint64_t rest[] = {is_resharded(unit), unit->config.reduce, factor,
                             unit->prefetch != NULL};
    uint64_t h = XXH3_64bits_withSeed(rest, sizeof rest, 1);
    for (int k = 0; unit->prefetch && k < unit->config.n_prefetch; k++)
        h = XXH3_64bits_withSeed(&unit->prefetch[k]->index, sizeof unit->prefetch[k]->index, h);
    for (int j = 0; j < unit->n_params; j++)
        h = param_fingerprint(unit, &unit->params[j], h);
    return h;
}

/* Exchange one word; returns the first world rank whose word differs from rank 0's, or -1. */
static hp_status find_odd_rank(hp_fsdp *fsdp, uint64_t word, int *out_rank) {
    const int n = hp_world_size(fsdp->world);
    uint64_t *all = hpi_alloc((size_t)n, sizeof *all);
    if (!all)
        return HP_ERR_MEMORY;
    const hp_status status = hpi_fsdp_exchange(fsdp, "hp_fsdp_commit", &word, 1, all);
    *out_rank = -1;
    for (int r = n - 1; r > 0 && !status; r--)
        if (all[r] != all[0])
            *out_rank = r;
    hpi_free(all);
    return status;
}

/* Every rank walks the same path here, because all see the same words. */
static hp_status agree_on_units(hp_fsdp *fsdp) {
    int odd = -1;
    HP_TRY(find_odd_rank(fsdp, fsdp->n_units, &odd));
    if (odd >= 0)
        return HPI_FAIL_RANK(
            HP_ERR_MISMATCH, odd,
            "expected the same number of units on ranks 0 and %d; this rank has %u", odd,
            fsdp->n_units);
    const uint64_t settings[] = {fsdp->config.mode, (uint64_t)fsdp->config.prefetch,
                                 fsdp->config.schedule, fsdp->n_units};
    HP_TRY(find_odd_rank(fsdp, XXH3_64bits(settings, sizeof settings), &odd));
    if (odd >= 0)
        return HPI_FAIL_RANK(HP_ERR_MISMATCH, odd,
                             "expected the same mode, prefetch and schedule on ranks 0 and %d; "
                             "this rank has %s, %d, %d",
                             odd, hp_mode_name(fsdp->config.mode), fsdp->config.prefetch,
                             (int)fsdp->config.schedule);
    for (uint32_t i = 0; i < fsdp->n_units; i++) {
        HP_TRY(find_odd_rank(fsdp, unit_fingerprint(fsdp->units[i]), &odd));
        if (odd >= 0)
            return HPI_FAIL_RANK(HP_ERR_MISMATCH, odd,
                                 "expected unit %u (%s here) with the same parameters, shapes, "
                                 "dtypes and options on ranks 0 and %d",
                                 i, fsdp->units[i]->name, odd);
    }
    return HP_OK;
}

/* ---- buffers ----------------------------------------------------------------------------- */

/* Hand out ids and, in `offsets`, places in the one allocation. */
struct cutter {
    hp_fsdp *fsdp;
    uint64_t *offsets;
    uint64_t total;
};

static hp_ref cut(struct cutter *cutter, uint64_t bytes) {
    if (!bytes)
        return (hp_ref){0, 0, 0, 0};
    hpi_bindings *b = &cutter->fsdp->bindings;
    const uint32_t id = b->n_buffers++;
    cutter->total = hpi_align_up(cutter->total, SLICE_ALIGNMENT);
    cutter->offsets[id] = cutter->total;
    b->buffer_bytes[id] = bytes;
    cutter->total += bytes;
    return (hp_ref){id, 0, 0, bytes};
}

/* Room for `bytes` at the end of a buffer that is being laid out. */
static uint64_t append(uint64_t *end, uint64_t bytes, uint64_t alignment) {
    const uint64_t at = hpi_align_up(*end, alignment);
    *end = at + bytes;
    return at;
}

static hpi_route choose_route(const hp_fsdp *fsdp, const hpi_param *p) {
    if (p->bucket < 0)
        return HPI_ROUTE_NONE;
    if (fsdp->n_shards == 1)
        return p->dtype == p->master ? HPI_ROUTE_DIRECT : HPI_ROUTE_CONVERT;
    return p->layout.n_shards > 1 ? HPI_ROUTE_REDUCE_SCATTER : HPI_ROUTE_ALL_REDUCE;
}

struct unit_bytes {
    uint64_t shard, cast, storage, grad, bucket[2];
};

static void lay_out_param(hp_fsdp *fsdp, hpi_param *p, struct unit_bytes *end,
                          hpi_plan_param *out) {
    const uint64_t bytes = hp_dtype_size(p->dtype), master_bytes = hp_dtype_size(p->master);
    const uint64_t shard = p->layout.shard_elements, full = p->layout.full_elements;
    p->shard_offset = append(&end->shard, shard * master_bytes, PARAM_ALIGNMENT);
    if (p->has_cast)
        p->cast_offset = append(&end->cast, shard * bytes, PARAM_ALIGNMENT);
    out->dtype = (uint8_t)p->dtype;
    out->blocks = p->layout.outer;
    out->is_gathered = fsdp->n_shards > 1 && p->layout.n_shards > 1;
    if (out->is_gathered) {
        p->storage_offset = append(&end->storage, full * bytes, PARAM_ALIGNMENT);
        out->storage_begin = p->storage_offset;
        out->storage_end = p->storage_offset + full * bytes;
    }
    if (!p->is_frozen) {
        p->bucket = p->master == HP_FP64;
        p->bucket_offset = append(&end->bucket[p->bucket], shard * master_bytes, SLICE_ALIGNMENT);
        out->bucket_begin = p->bucket_offset;
        out->bucket_end = p->bucket_offset + shard * master_bytes;
        out->bucket = p->bucket;
    }
    out->route = choose_route(fsdp, p);
    p->is_direct = out->route == HPI_ROUTE_DIRECT;
    if (out->route != HPI_ROUTE_NONE && !p->is_direct) {
        p->grad_offset = append(&end->grad, full * bytes, PARAM_ALIGNMENT);
        out->grad_begin = p->grad_offset;
        out->grad_end = p->grad_offset + full * bytes;
    }
}

static void lay_out_unit(struct cutter *cutter, hp_unit *unit, hpi_plan_param *params,
                         hpi_plan_unit *out) {
    hp_fsdp *fsdp = cutter->fsdp;
    struct unit_bytes end = {0};
    out->params = params;
    for (int j = 0; j < unit->n_params; j++) {
        hpi_param *p = &unit->params[j];
        if (!hpi_param_is_owned(p) || !p->layout.n_elements)
            continue;
        params[out->n_params].param = (uint32_t)j;
        lay_out_param(fsdp, p, &end, &params[out->n_params++]);
        out->is_trainable |= p->bucket >= 0;
    }
    out->shard = cut(cutter, end.shard);
    out->cast = cut(cutter, end.cast);
    for (int b = 0; b < 2; b++)
        out->bucket[b] = cut(cutter, hpi_align_up(end.bucket[b], SLICE_ALIGNMENT));
    out->storage_bytes = end.storage;
    out->grad_bytes = end.grad;
    out->is_resharded = is_resharded(unit);
    out->own_storage = out->is_resharded ? 0 : cut(cutter, end.storage).buffer;
    const double parts =
        unit->config.reduce == HP_AVG ? (double)fsdp->n_shards * fsdp->n_replicas : 1.0;
    out->is_divided = parts != 1.0 || unit->config.factor != 1.0;
    for (uint32_t j = 0; j < out->n_params; j++) { /* the shard's and cast's ids are known now */
        const hpi_param *p = &unit->params[params[j].param];
        const uint64_t bytes = p->layout.shard_elements * hp_dtype_size(p->dtype);
        const uint64_t at = p->has_cast ? p->cast_offset : p->shard_offset;
        params[j].source =
            (hp_ref){p->has_cast ? out->cast.buffer : out->shard.buffer, 0, at, at + bytes};
    }
}

/* (1 + prefetch) gathered units and two units of gradients; fewer when there are fewer units. */
static void cut_slots(struct cutter *cutter) {
    hp_fsdp *fsdp = cutter->fsdp;
    hpi_plan_config *plan = &fsdp->plan_config;
    uint64_t storage_bytes = 0, grad_bytes = 0;
    uint32_t n_pooled = 0, n_trainable = 0;
    for (uint32_t i = 0; i < fsdp->n_units; i++) {
        const hpi_plan_unit *unit = &fsdp->plan_units[i];
        grad_bytes = hpi_max(grad_bytes, unit->grad_bytes);
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
}

static hp_status copy_prefetch_lists(hp_fsdp *fsdp) {
    size_t total = 0;
    for (uint32_t i = 0; i < fsdp->n_units; i++)
        total += fsdp->units[i]->prefetch ? (size_t)fsdp->units[i]->config.n_prefetch : 0;
    uint32_t *list = fsdp->prefetch_lists = hpi_alloc(total, sizeof *list);
    if (!list)
        return HP_ERR_MEMORY;
    for (uint32_t i = 0; i < fsdp->n_units; i++) {
        const hp_unit *unit = fsdp->units[i];
        if (!unit->prefetch)
            continue;
        fsdp->plan_units[i].prefetch = list;
        fsdp->plan_units[i].n_prefetch = (uint32_t)unit->config.n_prefetch;
        for (int k = 0; k < unit->config.n_prefetch; k++)
            *list++ = unit->prefetch[k]->index;
    }
    return HP_OK;
}

static hp_status take_tables(hp_fsdp *fsdp, uint64_t **out_offsets) {
    size_t n_params = 0;
    for (uint32_t i = 0; i < fsdp->n_units; i++)
        n_params += (size_t)fsdp->units[i]->n_params;
    const size_t n_buffers = 1 + 5 * (size_t)fsdp->n_units + 2 * HPI_MAX_SLOTS;
    fsdp->plan_units = hpi_alloc(fsdp->n_units, sizeof *fsdp->plan_units);
    fsdp->plan_params = hpi_alloc(n_params, sizeof *fsdp->plan_params);
    fsdp->unit_names = hpi_alloc(fsdp->n_units, sizeof *fsdp->unit_names);
    fsdp->bindings.buffers = hpi_alloc(n_buffers, sizeof *fsdp->bindings.buffers);
    fsdp->bindings.buffer_bytes = hpi_alloc(n_buffers, sizeof *fsdp->bindings.buffer_bytes);
    fsdp->bindings.comms = hpi_alloc(HPI_N_COMMS, sizeof *fsdp->bindings.comms);
    fsdp->bindings.comm_base = hpi_alloc(HPI_N_COMMS, sizeof *fsdp->bindings.comm_base);
    *out_offsets = hpi_alloc(n_buffers, sizeof **out_offsets);
    return fsdp->plan_units && fsdp->plan_params && fsdp->unit_names && fsdp->bindings.buffers &&
                   fsdp->bindings.buffer_bytes && fsdp->bindings.comms &&
                   fsdp->bindings.comm_base && *out_offsets
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
        stats->gather_bytes += unit->own_storage ? bytes[unit->own_storage] : 0;
    }
    for (uint32_t s = 0; s < plan->n_storage_slots; s++)
        stats->gather_bytes += bytes[plan->storage_slots[s]];
    for (uint32_t s = 0; s < plan->n_grad_slots; s++)
        stats->grad_bytes += bytes[plan->grad_slots[s]];
}

static hp_status bind_memory(hp_fsdp *fsdp, const uint64_t *offsets, uint64_t total) {
    void *base = NULL;
    HP_TRY(hp_symm_alloc(fsdp->world, NULL, total ? total : 1, 4096, &fsdp->memory));
    HP_TRY(hp_symm_pointer(fsdp->memory, hp_world_rank(fsdp->world), NULL, &base));
    for (uint32_t id = 1; id < fsdp->bindings.n_buffers; id++)
        fsdp->bindings.buffers[id] = (unsigned char *)base + offsets[id];
    return HP_OK;
}

static hp_status take_memory(hp_fsdp *fsdp) {
    uint64_t *offsets = NULL;
    hp_status status = take_tables(fsdp, &offsets);
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
        count_bytes(fsdp);
    }
    hpi_free(offsets);
    return status;
}

/* ---- first values ------------------------------------------------------------------------ */

static void fill_by_function(const hpi_param *p, int rank, size_t bytes, unsigned char *out) {
    uint64_t begin, end;
    hpi_layout_rows(&p->layout, rank, &begin, &end);
    for (uint64_t o = 0; o < p->layout.outer && begin < end; o++)
        p->fill(p->fill_context, (o * p->layout.rows + begin) * p->layout.inner,
                (o * p->layout.rows + end) * p->layout.inner,
                out + o * p->layout.chunk * p->layout.inner * bytes);
}

static hp_status fill_param(hp_fsdp *fsdp, hp_unit *unit, hpi_param *p) {
    if (!hpi_param_is_owned(p) || !p->layout.n_elements)
        return HP_OK;
    const int rank = p->layout.n_shards > 1 ? fsdp->shard_rank : 0;
    const size_t bytes = hp_dtype_size(p->dtype);
    void *target = p->has_cast ? hpi_param_cast(unit, p) : hpi_param_master(unit, p);
    if (p->data)
        hpi_layout_extract(&p->layout, rank, bytes, p->data, target);
    else if (p->fill)
        fill_by_function(p, rank, bytes, target);
    p->data = NULL; /* the caller may free it now */
    if (!p->has_cast)
        return HP_OK;
    return hpi_convert(target, p->dtype, hpi_param_master(unit, p), p->master,
                       p->layout.shard_elements);
}

static hp_status fill_shards(hp_fsdp *fsdp) {
    for (uint32_t i = 0; i < fsdp->n_units; i++)
        for (int j = 0; j < fsdp->units[i]->n_params; j++)
            HP_TRY(fill_param(fsdp, fsdp->units[i], &fsdp->units[i]->params[j]));
    return HP_OK;
}

/* ---- plan and executor ------------------------------------------------------------------- */

static void thread_start(void *context) {
    (void)context;
    hpi_thread_never_spins();
}

static hp_status make_executor(hp_fsdp *fsdp) {
    const char *delay =
        fsdp->config.delay ? fsdp->config.delay : hpi_world_options(fsdp->world)->delay;
    hp_executor_config config = HP_EXECUTOR_CONFIG_INIT;
    hpi_fsdp_register_kinds(fsdp->kinds);
    config.type = fsdp->config.executor;
    config.kinds = fsdp->kinds;
    config.n_kinds = HPI_OP_N_KINDS;
    config.context = &fsdp->bindings;
    config.trace = fsdp->config.trace;
    config.units = fsdp->unit_names;
    config.n_units = fsdp->n_units;
    config.rank = hp_world_rank(fsdp->world);
    config.delay = delay;
    config.thread_start = thread_start;
    HP_TRY(hp_executor_create(&config, &fsdp->executor));
    if (!fsdp->config.record)
        return HP_OK;
    hp_executor *recorder = NULL;
    HP_TRY(hp_recorder_create(fsdp->executor, &recorder));
    fsdp->executor = recorder;
    return hpi_replay_create(&fsdp->replay);
}

static hp_status make_plan(hp_fsdp *fsdp) {
    hpi_plan_config *plan = &fsdp->plan_config;
    plan->units = fsdp->plan_units;
    plan->n_units = fsdp->n_units;
    plan->schedule = fsdp->config.schedule;
    plan->n_replicas = fsdp->n_replicas;
    plan->n_buffers = fsdp->bindings.n_buffers;
    return hpi_plan_create(plan, &fsdp->plan);
}

static hp_status check_prefetch_lists(const hp_fsdp *fsdp) {
    for (uint32_t i = 0; i < fsdp->n_units; i++) {
        const hp_unit *unit = fsdp->units[i];
        for (int k = 0; unit->prefetch && k < unit->config.n_prefetch; k++)
            if (!unit->prefetch[k] || unit->prefetch[k]->fsdp != fsdp)
                return HPI_FAIL(
                    HP_ERR_ARGUMENT,
                    "unit %s: expected units of the same fsdp to prefetch, given another "
                    "at position %d",
                    unit->name, k);
    }
    return HP_OK;
}

static hp_status commit_alone(hp_fsdp *fsdp) {
    if (!fsdp->n_units)
        return HPI_FAIL(HP_ERR_STATE,
                        "expected at least one unit before hp_fsdp_commit, given none");
    HP_TRY(check_prefetch_lists(fsdp));
    return make_layouts(fsdp);
}

hp_status hp_fsdp_commit(hp_fsdp *fsdp) {
    if (!fsdp)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected an fsdp, given NULL");
    if (fsdp->is_committed || fsdp->is_failed)
        return HPI_FAIL(HP_ERR_STATE, "expected one hp_fsdp_commit, given a second");
    fsdp->is_failed = true; /* until all is well: a half-made fsdp can only be destroyed */
    HP_TRY(hpi_fsdp_agree(fsdp, "hp_fsdp_commit", commit_alone(fsdp)));
    HP_TRY(agree_on_units(fsdp));
    fsdp->plan_config.prefetch =
        fsdp->config.schedule == HP_SERIAL ? 0 : (uint32_t)fsdp->config.prefetch;
    HP_TRY(take_memory(fsdp));
    hpi_bindings *b = &fsdp->bindings;
    b->n_comms = HPI_N_COMMS;
    b->comms[HPI_COMM_UNSHARD] = fsdp->shard;
    b->comms[HPI_COMM_REDUCE] = fsdp->reduce;
    b->comms[HPI_COMM_REPLICATE] = fsdp->replicate;
    b->owner = fsdp;
    hp_status status = copy_prefetch_lists(fsdp);
    status = status ? status : fill_shards(fsdp);
    status = status ? status : make_plan(fsdp);
    status = status ? status : make_executor(fsdp);
    HP_TRY(hpi_fsdp_agree(fsdp, "hp_fsdp_commit", status));
    fsdp->is_committed = true;
    fsdp->is_failed = false;
    return HP_OK;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * commit.c - from declarations to memory: ties, layouts, agreement, buffers, first values.
 *
 * The order is: check what one rank can check alone, agree with the other ranks, take memory
 * (buffers.c), fill the shards, make plan and executor. After it a training step takes no memory.
 */
#include "engine.h"
#include "together/agree.h"

#define XXH_INLINE_ALL
#include <stdio.h>
#include <xxhash.h>

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
    if (p->shard_dim != owner->shard_dim || p->is_frozen != owner->is_frozen)
        return hpi_fail_tie(owner->name, owner->shard_dim, owner->is_frozen, p->name, p->shard_dim,
                            p->is_frozen);
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
    p->is_mapped = fsdp->config.mode == HP_MAPPED && fsdp->n_shards > 1 &&
                   p->shard_dim != HP_REPLICATED && hpi_param_is_owned(p) && !is_empty(p);
    if (p->is_mapped) /* flat: any dimension will do */
        description.shard_dim = 0;
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
    const uint64_t rest[] = {hpi_unit_is_resharded(unit), unit->config.reduce, factor,
                             unit->prefetch != NULL};
    uint64_t h = XXH3_64bits_withSeed(rest, sizeof rest, 1);
    for (int k = 0; unit->prefetch && k < unit->config.n_prefetch; k++)
        h = XXH3_64bits_withSeed(&unit->prefetch[k]->index, sizeof unit->prefetch[k]->index, h);
    for (int j = 0; j < unit->n_params; j++)
        h = param_fingerprint(unit, &unit->params[j], h);
    return h;
}

static const char *policy_name(int dtype) {
    return dtype == HP_OWN_DTYPE ? "own" : hp_dtype_name((hp_dtype)dtype);
}

/* Every rank walks the same path here, because all see the same words. */
static hp_status agree_on_units(hp_fsdp *fsdp) {
    int odd = -1;
    HP_TRY(hpi_find_odd_rank(fsdp, fsdp->n_units, &odd));
    if (odd >= 0)
        return HPI_FAIL_RANK(
            HP_ERR_MISMATCH, odd,
            "expected the same number of units on ranks 0 and %d; this rank has %u", odd,
            fsdp->n_units);
    const hp_fsdp_config *c = &fsdp->config;
    const int64_t settings[] = {
        c->mode,         c->prefetch,       c->schedule,        c->param_dtype,
        c->reduce_dtype, c->replicate_wire, !!c->caller_writes, fsdp->n_units};
    HP_TRY(hpi_find_odd_rank(fsdp, XXH3_64bits(settings, sizeof settings), &odd));
    if (odd >= 0)
        return HPI_FAIL_RANK(HP_ERR_MISMATCH, odd,
                             "expected the same mode, prefetch, schedule, param_dtype, "
                             "reduce_dtype, replicate_wire and caller_writes on ranks 0 and %d; "
                             "this rank has %s, %d, %s, %s, %s, %s, %d",
                             odd, hp_mode_name(c->mode), c->prefetch, hp_schedule_name(c->schedule),
                             policy_name(c->param_dtype), policy_name(c->reduce_dtype),
                             policy_name(c->replicate_wire), !!c->caller_writes);
    for (uint32_t i = 0; i < fsdp->n_units; i++) {
        HP_TRY(hpi_find_odd_rank(fsdp, unit_fingerprint(fsdp->units[i]), &odd));
        if (odd >= 0)
            return HPI_FAIL_RANK(HP_ERR_MISMATCH, odd,
                                 "expected unit %u (%s here) with the same parameters, shapes, "
                                 "dtypes and options on ranks 0 and %d",
                                 i, fsdp->units[i]->name, odd);
    }
    return HP_OK;
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

/* In the declared dtype first, where the master then lies: nothing is rounded on the way. */
static hp_status fill_param(hp_fsdp *fsdp, hp_unit *unit, hpi_param *p) {
    if (!hpi_param_is_owned(p) || !p->layout.n_elements)
        return HP_OK;
    const int rank = p->layout.n_shards > 1 ? fsdp->shard_rank : 0;
    const size_t bytes = hp_dtype_size(p->dtype);
    void *master = hpi_param_master(unit, p);
    if (p->data)
        hpi_layout_extract(&p->layout, rank, bytes, p->data, master);
    else if (p->fill)
        fill_by_function(p, rank, bytes, master);
    p->data = NULL; /* the caller may free it now */
    if (p->dtype != p->master)
        HP_TRY(hpi_convert(master, p->dtype, master, p->master, p->layout.shard_elements));
    return hpi_param_refresh_cast(unit, p);
}

static hp_status fill_shards(hp_fsdp *fsdp) {
    if (hpi_fsdp_is_virtual(fsdp))
        return HP_OK;
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

/* In the world, or where a virtual one would be. */
static int rank_of(const hp_fsdp *fsdp) {
    return hpi_fsdp_is_virtual(fsdp) ? fsdp->replica_rank * fsdp->n_shards + fsdp->shard_rank
                                     : hp_world_rank(fsdp->world);
}

static const char *delay_of(const hp_fsdp *fsdp) {
    return fsdp->config.delay || hpi_fsdp_is_virtual(fsdp) ? fsdp->config.delay
                                                           : hpi_world_options(fsdp->world)->delay;
}

hp_status hpi_fsdp_make_executor(hp_fsdp *fsdp) {
    hp_executor_config config = HP_EXECUTOR_CONFIG_INIT;
    hpi_fsdp_register_kinds(fsdp->kinds);
    if (hpi_fsdp_is_virtual(fsdp))
        hpi_fsdp_virtualize_kinds(fsdp->kinds);
    config.type = fsdp->config.executor;
    config.kinds = fsdp->kinds;
    config.n_kinds = HPI_OP_N_KINDS;
    config.context = &fsdp->bindings;
    config.trace = fsdp->config.trace;
    config.units = fsdp->unit_names;
    config.n_units = fsdp->n_units;
    config.rank = rank_of(fsdp);
    config.delay = delay_of(fsdp);
    config.costs = fsdp->config.costs;
    config.thread_start = thread_start;
    config.first_step = fsdp->n_passes;
    HP_TRY(hp_executor_create(&config, &fsdp->executor));
    if (!fsdp->config.record)
        return HP_OK;
    hp_executor *recorder = NULL;
    HP_TRY(hp_recorder_create(fsdp->executor, &recorder));
    fsdp->executor = recorder;
    return fsdp->replay ? HP_OK : hpi_replay_create(&fsdp->replay);
}

void hpi_fsdp_drop_executor(hp_fsdp *fsdp) {
    hp_fsdp_stats stats;
    if (fsdp->executor && hp_fsdp_stats_get(fsdp, &stats) == HP_OK) {
        fsdp->stats.exposed_unshard_ns = stats.exposed_unshard_ns;
        fsdp->stats.exposed_reduce_ns = stats.exposed_reduce_ns;
        fsdp->stats.exposed_replicate_ns = stats.exposed_replicate_ns;
    }
    hp_executor_destroy(fsdp->executor);
    fsdp->executor = NULL;
}

void hpi_fsdp_bind_groups(hp_fsdp *fsdp) {
    void **comms = fsdp->bindings.comms;
    comms[HPI_COMM_UNSHARD] = fsdp->shard;
    comms[HPI_COMM_REDUCE] = fsdp->reduce;
    comms[HPI_COMM_REPLICATE] = fsdp->replicate;
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

static hp_status make_plan(hp_fsdp *fsdp) {
    hpi_plan_config *plan = &fsdp->plan_config;
    plan->units = fsdp->plan_units;
    plan->n_units = fsdp->n_units;
    plan->schedule = fsdp->config.schedule;
    plan->replicate_wire = fsdp->config.replicate_wire == HP_OWN_DTYPE
                               ? HP_FP32
                               : (hp_dtype)fsdp->config.replicate_wire;
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

/* What was asked for and changes nothing is said. */
static void tell_offload(const hp_fsdp *fsdp) {
    if (fsdp->config.offload && !hpi_fsdp_is_virtual(fsdp))
        HPI_SAY(hpi_world_journal(fsdp->world), HPI_LOG_INFO, "fsdp",
                "offload: shards and optimizer state are in host memory already");
}

hp_status hp_fsdp_commit(hp_fsdp *fsdp) {
    if (!fsdp)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected an fsdp, given NULL");
    if (fsdp->is_committed || fsdp->is_failed)
        return HPI_FAIL(HP_ERR_STATE, "expected one hp_fsdp_commit, given a second");
    fsdp->is_failed = true; /* until all is well: a half-made fsdp can only be destroyed */
    HP_TRY(hpi_fsdp_choose_mode(fsdp));
    HP_TRY(hpi_agree(fsdp, commit_alone(fsdp)));
    HP_TRY(agree_on_units(fsdp));
    fsdp->plan_config.prefetch =
        fsdp->config.schedule == HP_SERIAL ? 0 : (uint32_t)fsdp->config.prefetch;
    HP_TRY(hpi_fsdp_take_memory(fsdp));
    hpi_bindings *b = &fsdp->bindings;
    b->n_comms = HPI_N_COMMS;
    hpi_fsdp_bind_groups(fsdp);
    b->owner = fsdp;
    hp_status status = copy_prefetch_lists(fsdp);
    status = status ? status : fill_shards(fsdp);
    status = status ? status : make_plan(fsdp);
    status = status ? status : hpi_fsdp_make_executor(fsdp);
    HP_TRY(hpi_agree(fsdp, status));
    fsdp->is_committed = true;
    fsdp->is_failed = false;
    tell_offload(fsdp);
    return HP_OK;
}

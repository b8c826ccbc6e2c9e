/* SPDX-License-Identifier: Apache-2.0
 *
 * unit.c - declaring units and parameters, and reading what they hold.
 *
 * A declaration copies names and shapes; values are read during commit. Between a unit's begin and
 * end its pointers are those that the begin operation was given, so a replayed step needs no plan.
 */
#include "engine.h"

static hp_status check_param(const hp_fsdp *fsdp, const char *unit, const hp_param *p) {
    if (p->size != sizeof *p)
        return HPI_FAIL(HP_ERR_VERSION,
                        "expected hp_param of %zu bytes, given %zu: use HP_PARAM_INIT", sizeof *p,
                        p->size);
    if (!p->name || !*p->name)
        return HPI_FAIL(HP_ERR_ARGUMENT, "unit %s: expected a parameter name, given none", unit);
    if (p->n_dims < 0 || p->n_dims > HP_MAX_DIMS)
        return HPI_FAIL(HP_ERR_ARGUMENT, "parameter %s: expected 0 to %d dimensions, given %d",
                        p->name, HP_MAX_DIMS, p->n_dims);
    for (int d = 0; d < p->n_dims; d++)
        if (p->shape[d] < 0)
            return HPI_FAIL(
                HP_ERR_ARGUMENT,
                "parameter %s: expected sizes of at least 0, given %lld in dimension %d", p->name,
                (long long)p->shape[d], d);
    if (p->shard_dim != HP_REPLICATED &&
        (p->shard_dim < 0 || (p->n_dims && p->shard_dim >= p->n_dims)))
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "parameter %s: expected shard_dim in [0, %d) or HP_REPLICATED, given %d",
                        p->name, p->n_dims ? p->n_dims : 1, p->shard_dim);
    if (!hp_dtype_size(p->dtype))
        return HPI_FAIL(HP_ERR_ARGUMENT, "parameter %s: expected an hp_dtype, given %d", p->name,
                        (int)p->dtype);
    const bool can_train = p->dtype == HP_FP32 || p->dtype == HP_FP64 || p->dtype == HP_BF16;
    if (!p->is_frozen && !p->is_ignored && !can_train)
        return HPI_FAIL(HP_ERR_UNSUPPORTED,
                        "parameter %s: expected fp32, fp64 or bf16 for one that trains, given %s",
                        p->name, hp_dtype_name(p->dtype));
    for (uint32_t i = 0; i < fsdp->n_units; i++)
        for (int j = 0; j < fsdp->units[i]->n_params; j++)
            if (strcmp(fsdp->units[i]->params[j].name, p->name) == 0)
                return HPI_FAIL(
                    HP_ERR_ARGUMENT,
                    "expected a new parameter name in unit %s, given %s, which unit %s has", unit,
                    p->name, fsdp->units[i]->name);
    return HP_OK;
}

hp_status hpi_fail_tie(const char *owner, int owner_dim, bool owner_is_frozen, const char *name,
                       int dim, bool is_frozen) {
    return HPI_FAIL(HP_ERR_ARGUMENT,
                    "expected tied parameters with one shard_dim and one is_frozen, given %s with "
                    "%d and %d and %s with %d and %d",
                    owner, owner_dim, owner_is_frozen, name, dim, is_frozen);
}

/* Where in the unit the parameter is that params[j] is another name of; -1: it is its own. */
static int owner_of(const hp_param *params, int j) {
    for (int k = 0; params[j].tied_to && k < j; k++)
        if (strcmp(params[k].name, params[j].tied_to) == 0)
            return params[k].tied_to ? owner_of(params, k) : k;
    return -1;
}

static hp_status check_tie(const char *unit, const hp_param *params, int j) {
    const hp_param *p = &params[j];
    const int k = owner_of(params, j);
    if (!p->tied_to)
        return HP_OK;
    if (k < 0)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "unit %s: expected %s to be tied to an earlier parameter of the unit, "
                        "given %s",
                        unit, p->name, p->tied_to);
    const hp_param *owner = &params[k];
    if (p->n_dims != owner->n_dims || p->dtype != owner->dtype ||
        memcmp(p->shape, owner->shape, (size_t)p->n_dims * sizeof *p->shape) != 0 ||
        p->is_ignored || owner->is_ignored)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected tied parameters of one shape and dtype, both managed, given %s "
                        "and %s",
                        owner->name, p->name);
    if (p->shard_dim != owner->shard_dim || !p->is_frozen != !owner->is_frozen)
        return hpi_fail_tie(owner->name, owner->shard_dim, owner->is_frozen, p->name, p->shard_dim,
                            p->is_frozen);
    return HP_OK;
}

static hp_status check_unit(const hp_fsdp *fsdp, const char *name, const hp_param *params,
                            int n_params, const hp_unit_config *config) {
    if (fsdp->is_committed)
        return HPI_FAIL(HP_ERR_STATE, "expected units before hp_fsdp_commit, given %s after it",
                        name);
    if (n_params < 0 || (n_params && !params))
        return HPI_FAIL(HP_ERR_ARGUMENT, "unit %s: expected an array of parameters, given %d at %p",
                        name, n_params, (const void *)params);
    if (config && config->size != sizeof *config)
        return HPI_FAIL(HP_ERR_VERSION,
                        "expected hp_unit_config of %zu bytes, given %zu: use HP_UNIT_CONFIG_INIT",
                        sizeof *config, config->size);
    if (config && config->prefetch && config->n_prefetch < 0)
        return HPI_FAIL(HP_ERR_ARGUMENT, "unit %s: expected n_prefetch of at least 0, given %d",
                        name, config->n_prefetch);
    if (config && config->reduce != HP_AVG && config->reduce != HP_SUM)
        return HPI_FAIL(HP_ERR_ARGUMENT, "unit %s: expected reduce HP_AVG or HP_SUM, given %d",
                        name, (int)config->reduce);
    if (config && !(config->factor > 0 && config->factor < 1e38))
        return HPI_FAIL(HP_ERR_ARGUMENT, "unit %s: expected a positive finite factor, given %g",
                        name, config->factor);
    for (int j = 0; j < n_params; j++) {
        HP_TRY(check_param(fsdp, name, &params[j]));
        for (int k = 0; k < j; k++)
            if (strcmp(params[k].name, params[j].name) == 0)
                return HPI_FAIL(HP_ERR_ARGUMENT,
                                "unit %s: expected different parameter names, given %s twice", name,
                                params[j].name);
        HP_TRY(check_tie(name, params, j));
    }
    return HP_OK;
}

/* The precision policy speaks of fp32 and bf16 alone. */
static void choose_dtypes(const hp_fsdp_config *policy, hpi_param *p) {
    const bool is_ruled = p->dtype == HP_FP32 || p->dtype == HP_BF16;
    const bool has_param = is_ruled && policy->param_dtype != HP_OWN_DTYPE;
    const bool has_reduce = is_ruled && policy->reduce_dtype != HP_OWN_DTYPE;
    p->master = p->is_frozen ? p->dtype : hpi_sum_dtype(p->dtype);
    p->data_dtype = has_param ? (hp_dtype)policy->param_dtype : p->dtype;
    p->grad_dtype = has_reduce ? (hp_dtype)policy->reduce_dtype : p->data_dtype;
    p->has_cast = !p->is_ignored && p->master != p->data_dtype;
}

static hp_status copy_param(const hp_fsdp_config *policy, const hp_param *from, int alias_of,
                            hpi_param *to) {
    to->name = hpi_strdup(from->name);
    to->n_dims = from->n_dims;
    memcpy(to->shape, from->shape, sizeof to->shape);
    to->shard_dim = from->shard_dim;
    to->dtype = from->dtype;
    to->is_frozen = from->is_frozen != 0;
    to->is_ignored = from->is_ignored != 0;
    choose_dtypes(policy, to);
    to->alias_of = alias_of;
    to->bucket = -1;
    to->data = alias_of < 0 ? from->data : NULL;
    to->fill = from->fill;
    to->fill_context = from->fill_context;
    return to->name ? HP_OK : HP_ERR_MEMORY;
}

static void unit_free(hp_unit *unit) {
    if (!unit)
        return;
    for (int j = 0; unit->params && j < unit->n_params; j++)
        hpi_free(unit->params[j].name);
    hpi_free(unit->params);
    hpi_free(unit->accumulator);
    hpi_free(unit->partial[0]);
    hpi_free(unit->partial[1]);
    hpi_free(unit->prefetch);
    hpi_free(unit->name);
    hpi_free(unit);
}

void hpi_units_free(hp_fsdp *fsdp) {
    for (uint32_t i = 0; i < fsdp->n_units; i++)
        unit_free(fsdp->units[i]);
    hpi_free(fsdp->units);
}

static hp_status unit_fill(hp_unit *unit, const char *name, const hp_param *params, int n_params) {
    unit->name = hpi_strdup(name);
    unit->params = hpi_alloc((size_t)n_params, sizeof *unit->params);
    if (!unit->name || !unit->params)
        return HP_ERR_MEMORY;
    unit->n_params = n_params;
    for (int j = 0; j < n_params; j++)
        HP_TRY(copy_param(&unit->fsdp->config, &params[j], owner_of(params, j), &unit->params[j]));
    if (!unit->config.prefetch)
        return HP_OK;
    const size_t n = (size_t)unit->config.n_prefetch;
    unit->prefetch = hpi_alloc(n, sizeof *unit->prefetch);
    if (!unit->prefetch)
        return HP_ERR_MEMORY;
    memcpy(unit->prefetch, unit->config.prefetch, n * sizeof *unit->prefetch);
    return HP_OK;
}

static hp_status reserve_unit(hp_fsdp *fsdp) {
    if (fsdp->n_units < fsdp->units_capacity)
        return HP_OK;
    const uint32_t capacity = fsdp->units_capacity ? 2 * fsdp->units_capacity : 16;
    hp_unit **grown = hpi_alloc(capacity, sizeof *grown);
    if (!grown)
        return HP_ERR_MEMORY;
    if (fsdp->n_units)
        memcpy(grown, fsdp->units, fsdp->n_units * sizeof *grown);
    hpi_free(fsdp->units);
    fsdp->units = grown;
    fsdp->units_capacity = capacity;
    return HP_OK;
}

hp_status hp_unit_create(hp_fsdp *fsdp, const char *name, const hp_param *params, int n_params,
                         const hp_unit_config *config, hp_unit **out_unit) {
    static const hp_unit_config defaults = HP_UNIT_CONFIG_INIT;
    if (!fsdp || !name || !out_unit)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected fsdp, name and out_unit, given NULL");
    HP_TRY(check_unit(fsdp, name, params, n_params, config));
    HP_TRY(reserve_unit(fsdp));
    hp_unit *unit = hpi_alloc(1, sizeof *unit);
    if (!unit)
        return HP_ERR_MEMORY;
    unit->fsdp = fsdp;
    unit->index = fsdp->n_units;
    unit->config = config ? *config : defaults;
    unit->own_pass = -1;
    const hp_status status = unit_fill(unit, name, params, n_params);
    if (status) {
        unit_free(unit);
        return status;
    }
    fsdp->units[fsdp->n_units++] = unit;
    *out_unit = unit;
    return HP_OK;
}

int hp_unit_n_params(const hp_unit *unit) {
    return unit->n_params;
}
const char *hp_unit_name(const hp_unit *unit) {
    return unit->name;
}
hp_unit *hp_fsdp_unit(const hp_fsdp *fsdp, int i) {
    return i >= 0 && (uint32_t)i < fsdp->n_units ? fsdp->units[i] : NULL;
}

/* ---- reading ----------------------------------------------------------------------------- */

const hpi_param *hpi_unit_param(const hp_unit *unit, int param) {
    if (!unit || param < 0 || param >= unit->n_params) {
        (void)HPI_FAIL(HP_ERR_ARGUMENT, "expected a parameter in [0, %d), given %d",
                       unit ? unit->n_params : 0, param);
        return NULL;
    }
    const hpi_param *p = &unit->params[param];
    if (p->is_ignored) {
        (void)HPI_FAIL(HP_ERR_STATE, "expected a managed parameter, given %s, which is ignored",
                       p->name);
        return NULL;
    }
    return p->alias_of >= 0 ? &unit->params[p->alias_of] : p;
}

/* Why hpi_unit_param gave none: the parameter is ignored, or there is no such one. */
static hp_status status_of_none(const hp_unit *unit, int param) {
    return unit && param >= 0 && param < unit->n_params ? HP_ERR_STATE : HP_ERR_ARGUMENT;
}

static unsigned char *buffer_of(const hp_unit *unit, hp_ref ref) {
    return unit->fsdp->bindings.buffers[ref.buffer];
}

static const hpi_plan_unit *plan_of(const hp_unit *unit) {
    return &unit->fsdp->plan_units[unit->index];
}

void *hpi_param_master(const hp_unit *unit, const hpi_param *p) {
    const hpi_plan_unit *plan = plan_of(unit);
    const bool is_shared = p->is_mapped && !p->has_cast;
    return buffer_of(unit, is_shared ? plan->shared : plan->shard) + p->shard_offset;
}

void *hpi_param_cast(const hp_unit *unit, const hpi_param *p) {
    const hpi_plan_unit *plan = plan_of(unit);
    if (!p->has_cast)
        return NULL;
    return buffer_of(unit, p->is_mapped ? plan->shared : plan->cast) + p->cast_offset;
}

void *hpi_param_grad_shard(const hp_unit *unit, const hpi_param *p) {
    return p->bucket < 0 ? NULL
                         : buffer_of(unit, plan_of(unit)->bucket[p->bucket]) + p->bucket_offset;
}

hp_status hpi_param_refresh_cast(const hp_unit *unit, const hpi_param *p) {
    if (!p->has_cast)
        return HP_OK;
    return hpi_convert(hpi_param_master(unit, p), p->master, hpi_param_cast(unit, p), p->data_dtype,
                       p->layout.shard_elements);
}

/* Is the parameter's full form a gathered copy, or the shard itself? */
static bool is_gathered(const hp_fsdp *fsdp, const hpi_param *p) {
    return fsdp->n_shards > 1 && p->layout.n_shards > 1;
}

const void *hp_param_data(const hp_unit *unit, int param) {
    static const _Alignas(64) unsigned char no_elements[64];
    const hpi_param *p = hpi_unit_param(unit, param);
    if (!p)
        return NULL;
    if (unit->phase == HPI_PHASE_IDLE && !unit->is_readable) {
        (void)HPI_FAIL(HP_ERR_STATE, "expected unit %s between begin and end to read %s",
                       unit->name, p->name);
        return NULL;
    }
    if (!p->layout.n_elements)
        return no_elements;
    if (hpi_fsdp_check_real(unit->fsdp, __func__) < 0)
        return NULL;
    if (p->is_mapped)
        return unit->view + p->storage_offset;
    if (is_gathered(unit->fsdp, p))
        return unit->storage + p->storage_offset;
    return p->has_cast ? hpi_param_cast(unit, p) : hpi_param_master(unit, p);
}

void *hp_param_grad(hp_unit *unit, int param) {
    static _Alignas(64) unsigned char no_elements[64]; /* nobody may write into it: zero elements */
    hpi_param *p = (hpi_param *)hpi_unit_param(unit, param);
    if (!p)
        return NULL;
    if (p->is_frozen || unit->phase != HPI_PHASE_BACKWARD) {
        (void)HPI_FAIL(
            HP_ERR_STATE,
            "expected a trainable parameter of unit %s between backward begin and end, given %s%s",
            unit->name, p->name, p->is_frozen ? ", which is frozen" : "");
        return NULL;
    }
    if (!p->layout.n_elements)
        return no_elements;
    if (hpi_fsdp_check_real(unit->fsdp, __func__) < 0)
        return NULL;
    p->grad_taken = p->grad_given = true;
    return p->is_direct ? hpi_param_grad_shard(unit, p) : unit->grad + p->grad_offset;
}

hp_status hp_param_dtypes(const hp_unit *unit, int param, hp_dtype *out_data, hp_dtype *out_grad) {
    const hpi_param *p = hpi_unit_param(unit, param);
    if (!p)
        return status_of_none(unit, param);
    if (!out_data || !out_grad)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected places for the dtypes of %s, given NULL",
                        p->name);
    *out_data = p->data_dtype;
    *out_grad = p->grad_dtype;
    return HP_OK;
}

hp_status hp_param_shard(const hp_unit *unit, int param, hp_shard *out_shard) {
    const hpi_param *p = hpi_unit_param(unit, param);
    if (!p)
        return status_of_none(unit, param);
    if (!out_shard)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a place for the shard of %s, given NULL",
                        p->name);
    if (!unit->fsdp->is_committed)
        return HPI_FAIL(HP_ERR_STATE, "expected hp_fsdp_commit before the shard of %s is read",
                        p->name);
    const bool has_memory = !hpi_fsdp_is_virtual(unit->fsdp);
    const bool has_gradients = has_memory && unit->fsdp->has_gradients && unit->has_gradients;
    uint64_t begin, end;
    const int rank = p->layout.n_shards > 1 ? unit->fsdp->shard_rank : 0;
    hpi_layout_rows(&p->layout, rank, &begin, &end);
    if (unit->fsdp->config.mode == HP_MAPPED && !p->layout.is_flat) { /* all of it, in elements */
        begin = 0;
        end = p->layout.n_elements;
    }
    *out_shard = (hp_shard){
        .begin = (int64_t)begin,
        .end = (int64_t)end,
        .n_elements = hpi_layout_count(&p->layout, rank),
        .dtype = p->master,
        .values = has_memory && p->layout.n_elements ? hpi_param_master(unit, p) : NULL,
        .grad = has_gradients ? hpi_param_grad_shard(unit, p) : NULL,
    };
    return HP_OK;
}

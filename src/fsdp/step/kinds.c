/* SPDX-License-Identifier: Apache-2.0
 *
 * kinds.c - what fsdp's own operations do when an executor runs them.
 *
 * They run on the compute stream, in the thread of the caller. The begin operations hand a unit the
 * memory of its current life; everything that follows from it (hp_param_data, hp_param_grad) is
 * read from there, so a replayed list behaves like a planned one.
 */
#include "../memory/accumulate.h"
#include "../memory/bundles.h"

static hp_fsdp *owner_of(void *context) {
    return ((hpi_bindings *)context)->owner;
}

static hp_unit *unit_of(void *context, const hp_op *op) {
    return owner_of(context)->units[op->unit];
}

static bool is_poisoning(const hp_fsdp *fsdp) {
#ifdef __OPTIMIZE__
    const bool is_default = hpi_world_options(fsdp->world)->poison != 0;
#else /* assertions stay in everywhere, so NDEBUG does not tell a debug build */
    const bool is_default = true;
#endif
    return fsdp->config.poison < 0 ? is_default : fsdp->config.poison != 0;
}

/* Whoever still reads there, or reads before it has written, gets NaNs: all bits set are one in
 * every floating dtype. */
static hp_status run_release(void *context, const hp_op *op) {
    const hp_ref *life = &op->reads[0];
    if (is_poisoning(owner_of(context)))
        memset(hpi_bound(context, life), 0xFF, life->end - life->begin);
    return HP_OK;
}

static void begin_phase(void *context, const hp_op *op, hpi_phase phase) {
    hp_unit *unit = unit_of(context, op);
    const bool has_storage = owner_of(context)->plan_units[op->unit].storage_bytes != 0;
    unit->storage = has_storage ? hpi_bound(context, &op->reads[0]) : NULL;
    unit->phase = phase;
}

static void end_phase(void *context, const hp_op *op) {
    hp_unit *unit = unit_of(context, op);
    unit->phase = HPI_PHASE_IDLE;
    unit->grad = NULL;
    if (!unit->is_readable)
        unit->storage = NULL;
}

static hp_status run_forward_begin(void *context, const hp_op *op) {
    begin_phase(context, op, HPI_PHASE_FORWARD);
    return HP_OK;
}

static hp_status run_forward_end(void *context, const hp_op *op) {
    end_phase(context, op);
    return HP_OK;
}

static hp_status run_recompute_begin(void *context, const hp_op *op) {
    begin_phase(context, op, HPI_PHASE_RECOMPUTE);
    return HP_OK;
}

static hp_status run_hold_begin(void *context, const hp_op *op) {
    begin_phase(context, op, HPI_PHASE_IDLE);
    unit_of(context, op)->is_readable = true;
    return HP_OK;
}

static hp_status run_hold_end(void *context, const hp_op *op) {
    unit_of(context, op)->is_readable = false;
    end_phase(context, op);
    return HP_OK;
}

/* Where backward writes a parameter's gradient, and how many bytes with and without padding. */
static unsigned char *grad_of(const hp_unit *unit, const hpi_param *p) {
    return p->is_direct ? hpi_param_grad_shard(unit, p) : unit->grad + p->grad_offset;
}

static hp_status run_backward_begin(void *context, const hp_op *op) {
    hp_unit *unit = unit_of(context, op);
    begin_phase(context, op, HPI_PHASE_BACKWARD);
    unit->grad = hpi_bound(context, &op->writes[0]);
    for (int j = 0; j < unit->n_params; j++) {
        hpi_param *p = &unit->params[j];
        p->grad_taken = false;
        if (!hpi_param_is_trainable(p))
            continue;
        const size_t bytes = hp_dtype_size(p->grad_dtype);
        if (p->grad_padding) /* the slot was another unit's: padding must stay zero for ever */
            memset(grad_of(unit, p) + p->layout.n_elements * bytes, 0, p->grad_padding * bytes);
    }
    return HP_OK;
}

/* A gradient that nobody asked for is zero. */
static hp_status run_backward_end(void *context, const hp_op *op) {
    hp_unit *unit = unit_of(context, op);
    for (int j = 0; j < unit->n_params; j++) {
        const hpi_param *p = &unit->params[j];
        if (hpi_param_is_trainable(p) && !p->grad_taken)
            memset(grad_of(unit, p), 0, p->layout.full_elements * hp_dtype_size(p->grad_dtype));
    }
    end_phase(context, op);
    return HP_OK;
}

static uint64_t count_of(const hp_op *op) {
    return (op->reads[0].end - op->reads[0].begin) / hp_dtype_size((hp_dtype)op->dtype);
}

static hp_status run_convert(void *context, const hp_op *op) {
    const hp_dtype dtype = (hp_dtype)op->dtype;
    return hpi_convert(hpi_bound(context, &op->reads[0]), dtype, hpi_bound(context, &op->writes[0]),
                       hpi_sum_dtype(dtype), count_of(op));
}

static hp_status run_accumulate(void *context, const hp_op *op) {
    const void *grad = hpi_bound(context, &op->reads[0]);
    void *sum = hpi_bound(context, &op->writes[0]);
    const hp_dtype dtype = (hp_dtype)op->dtype;
    if (!op->reads[1].buffer) /* the first */
        return hpi_convert(grad, dtype, sum, hpi_sum_dtype(dtype), count_of(op));
    hpi_accumulate(sum, grad, dtype, count_of(op));
    return HP_OK;
}

static hp_status run_fold(void *context, const hp_op *op) {
    hpi_fold(hpi_bound(context, &op->writes[0]), hpi_bound(context, &op->reads[1]),
             (hp_dtype)op->dtype, count_of(op));
    return HP_OK;
}

/* One step, after all sums: x / parts, or x * (factor / parts) when the user gave a factor. The
 * scalar is computed in double and rounded once. */
HPI_KERNEL static void divide_fp32(float *x, uint64_t n, float divisor) {
    for (uint64_t i = 0; i < n; i++)
        x[i] /= divisor;
}

HPI_KERNEL static void multiply_fp32(float *x, uint64_t n, float multiplier) {
    for (uint64_t i = 0; i < n; i++)
        x[i] *= multiplier;
}

HPI_KERNEL static void divide_fp64(double *x, uint64_t n, double divisor) {
    for (uint64_t i = 0; i < n; i++)
        x[i] /= divisor;
}

HPI_KERNEL static void multiply_fp64(double *x, uint64_t n, double multiplier) {
    for (uint64_t i = 0; i < n; i++)
        x[i] *= multiplier;
}

/* Over a power of two a product has the quotient's bits, and takes a fraction of its time. */
static bool is_product(double factor, double parts) {
    return factor != 1.0 || hpi_is_power_of_two((uint64_t)parts);
}

static hp_status run_divide(void *context, const hp_op *op) {
    if (op->reduce == HP_AVG) /* the reduction has */
        return HP_OK;
    const hp_unit *unit = unit_of(context, op);
    const double factor = unit->config.factor, parts = hpi_unit_parts(unit);
    void *x = hpi_bound(context, &op->writes[0]);
    const uint64_t bytes = op->writes[0].end - op->writes[0].begin;
    const bool is_double = op->dtype == HP_FP64, multiplies = is_product(factor, parts);
    const double multiplier = factor / parts;
    if (is_double && multiplies)
        multiply_fp64(x, bytes / sizeof(double), multiplier);
    else if (is_double)
        divide_fp64(x, bytes / sizeof(double), parts);
    else if (multiplies)
        multiply_fp32(x, bytes / sizeof(float), (float)multiplier);
    else
        divide_fp32(x, bytes / sizeof(float), (float)parts);
    return HP_OK;
}

static hp_status run_apply(void *context, const hp_op *op) {
    hp_fsdp *fsdp = owner_of(context);
    if (op->param != UINT32_MAX) /* names what the one before it has written */
        return HP_OK;
    fsdp->has_torn_weights = op->kind == HPI_OP_UPDATE; /* until all are written */
    return fsdp->apply(fsdp->apply_context, unit_of(context, op));
}

void hpi_fsdp_register_kinds(hp_kind *out_kinds) {
    static const hp_kind own[] = {
        {"allocate", NULL, NULL, HP_ROLE_ALLOCATE},
        {"release", run_release, NULL, HP_ROLE_RELEASE},
        {"wait", NULL, NULL, HP_ROLE_PLAIN},
        {"forward_begin", run_forward_begin, NULL, HP_ROLE_BEGIN},
        {"forward_end", run_forward_end, NULL, HP_ROLE_END},
        {"backward_begin", run_backward_begin, NULL, HP_ROLE_BEGIN},
        {"backward_end", run_backward_end, NULL, HP_ROLE_END},
        {"convert", run_convert, NULL, HP_ROLE_PLAIN},
        {"accumulate", run_accumulate, NULL, HP_ROLE_PLAIN},
        {"fold", run_fold, NULL, HP_ROLE_PLAIN},
        {"divide", run_divide, NULL, HP_ROLE_PLAIN},
        {"update", run_apply, NULL, HP_ROLE_PLAIN},
        {"scale", run_apply, NULL, HP_ROLE_PLAIN},
        {"pack", hpi_run_pack, NULL, HP_ROLE_PLAIN},
        {"copy", hpi_run_copy, NULL, HP_ROLE_PLAIN},
        {"copy_out", hpi_run_copy_out, NULL, HP_ROLE_PLAIN},
        {"pack_grads", hpi_run_pack_grads, NULL, HP_ROLE_PLAIN},
        {"recompute_begin", run_recompute_begin, NULL, HP_ROLE_BEGIN},
        {"recompute_end", run_forward_end, NULL, HP_ROLE_END},
        {"hold_begin", run_hold_begin, NULL, HP_ROLE_BEGIN},
        {"hold_end", run_hold_end, NULL, HP_ROLE_END},
    };
    _Static_assert((int)HPI_OP_ALLOCATE == (int)HPI_N_COLL_KINDS, "the collectives come first");
    _Static_assert(sizeof own / sizeof *own == (int)HPI_OP_N_KINDS - (int)HPI_N_COLL_KINDS,
                   "a row per kind");
    memcpy(out_kinds, hpi_coll_kinds, HPI_N_COLL_KINDS * sizeof *out_kinds);
    memcpy(out_kinds + HPI_N_COLL_KINDS, own, sizeof own);
}

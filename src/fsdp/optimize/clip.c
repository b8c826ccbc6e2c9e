/* SPDX-License-Identifier: Apache-2.0
 *
 * clip.c - the global norm of all gradients, exact, and the scaling by it.
 *
 * The largest |g| of the shard group comes first; terms scaled by its power of two are summed in
 * integers (exact.h), which the ranks then add up. So the norm has the same bits on every rank and
 * for every mesh. Replicas hold equal gradients and are never added; a replicated parameter is
 * counted by shard rank 0. Source: SPEC A9; torch.nn.utils.clip_grad_norm_ for the coefficient.
 */
#include "../together/between.h"
#include "../together/groups.h"
#include "exact.h"

#include <hyperparallel/coll.h>
#include <math.h>

/* The next gradient that this rank counts. */
static bool next_counted(const hp_fsdp *fsdp, hpi_cursor *cursor) {
    while (hpi_next_trainable(fsdp, cursor))
        if (cursor->unit->has_gradients &&
            (cursor->param->layout.n_shards > 1 || fsdp->shard_rank == 0))
            return true;
    return false;
}

/* ---- the norm ------------------------------------------------------------------------------- */

static hp_status find_largest(const hp_fsdp *fsdp, double *out_largest) {
    hpi_cursor c = {0};
    uint64_t bits = 0;
    while (next_counted(fsdp, &c))
        bits = hpi_max(bits, hpi_exact_largest(hpi_param_grad_shard(c.unit, c.param),
                                               c.param->master, hpi_param_count(fsdp, c.param)));
    HP_TRY(hp_all_reduce(fsdp->shard, &bits, &bits, 1, HP_INT64, HP_MAX)); /* the sign bit is 0 */
    memcpy(out_largest, &bits, sizeof bits);
    return HP_OK;
}

/* Add a 128-bit sum over the shard group, 32 bits at a time: the carries stay in the upper halves.
 */
static hp_status add_up(hp_group *group, hpi_int128 *sum) {
    int64_t parts[4];
    for (int i = 0; i < 4; i++)
        parts[i] = (int64_t)(uint32_t)(*sum >> (32 * i));
    HP_TRY(hp_all_reduce(group, parts, parts, 4, HP_INT64, HP_SUM));
    *sum = 0;
    for (int i = 3; i >= 0; i--)
        *sum = *sum * (INT64_C(1) << 32) + parts[i];
    return HP_OK;
}

static hp_status find_norm(const hp_fsdp *fsdp, double p, double *out_norm) {
    double largest;
    HP_TRY(find_largest(fsdp, &largest));
    *out_norm = largest;
    if (isinf(p) || largest == 0 || !isfinite(largest))
        return HP_OK;
    const int power = (int)p, exponent = hpi_exact_exponent(largest);
    hpi_int128 sum = 0;
    for (hpi_cursor c = {0}; next_counted(fsdp, &c);)
        hpi_exact_add(hpi_param_grad_shard(c.unit, c.param), c.param->master,
                      hpi_param_count(fsdp, c.param), power, exponent, &sum);
    HP_TRY(add_up(fsdp->shard, &sum));
    *out_norm = hpi_exact_norm(sum, power, exponent);
    return HP_OK;
}

/* ---- the scaling ---------------------------------------------------------------------------- */

HPI_KERNEL static void scale_fp32(float *x, uint64_t n, float factor) {
    for (uint64_t i = 0; i < n; i++)
        x[i] *= factor;
}

HPI_KERNEL static void scale_fp64(double *x, uint64_t n, double factor) {
    for (uint64_t i = 0; i < n; i++)
        x[i] *= factor;
}

static hp_status scale_unit(void *context, hp_unit *unit) {
    const double factor = *(const double *)context;
    for (int j = 0; unit->has_gradients && j < unit->n_params; j++) {
        const hpi_param *p = &unit->params[j];
        if (!hpi_param_is_trainable(p))
            continue;
        void *x = hpi_param_grad_shard(unit, p);
        const uint64_t n = hpi_param_count(unit->fsdp, p);
        if (p->master == HP_FP64)
            scale_fp64(x, n, factor);
        else
            scale_fp32(x, n, (float)factor);
    }
    return HP_OK;
}

hp_status hp_clip_grad_norm(hp_fsdp *fsdp, double max_norm, double p, double *out_norm) {
    HP_TRY(hpi_fsdp_check_gradients(fsdp, __func__));
    HP_TRY(hpi_fsdp_check_real(fsdp, __func__));
    if (!out_norm)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected out_norm, given NULL");
    if (!(max_norm >= 0))
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a max_norm of 0 or more, given %g", max_norm);
    if (p != 1 && p != 2 && p != INFINITY)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected p to be 1, 2 or INFINITY, given %g", p);
    const uint64_t began_ns = hpi_now_ns();
    double norm;
    HP_TRY(find_norm(fsdp, p, &norm));
    hpi_fsdp_done(fsdp);
    double factor = max_norm / (norm + 1e-6);
    if (isfinite(norm) && factor < 1)
        HP_TRY(hpi_fsdp_apply(fsdp, HPI_APPLY_SCALE, scale_unit, &factor));
    hpi_fsdp_trace(fsdp, hpi_span_clip, began_ns, 0);
    *out_norm = norm;
    return HP_OK;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/finite.c - looking for what is not finite.
 *
 * A loss does not tell of all weights: the row of a token that the data never has could be
 * anything. So before weights are written, each of them is looked at.
 */
#include "finite.h"
#include "fail.h"

#include <math.h>

hp_status finite_check(const char *what, double value, uint64_t step) {
    if (isfinite(value))
        return HP_OK;
    return fail(HP_ERR_STATE,
                "expected a finite %s, step %llu gave %g: the run has diverged (a smaller --lr, or "
                "--clip); the last checkpoint is as it was",
                what, (unsigned long long)step, value);
}

/* Trained weights are fp32 or fp64 in their shards. */
static double element(const hp_shard *shard, uint64_t i) {
    return shard->dtype == HP_FP64 ? ((const double *)shard->values)[i]
                                   : (double)((const float *)shard->values)[i];
}

static hp_status check_shard(const hp_unit *unit, const hp_shard *shard, uint64_t step) {
    if (shard->dtype != HP_FP32 && shard->dtype != HP_FP64)
        return HP_OK;
    for (uint64_t i = 0; i < shard->n_elements; i++)
        if (!isfinite(element(shard, i)))
            return fail(HP_ERR_STATE,
                        "expected finite weights, unit %s holds %g after step %llu: the run has "
                        "diverged (a smaller --lr, or --clip); the last checkpoint is as it was",
                        hp_unit_name(unit), element(shard, i), (unsigned long long)step);
    return HP_OK;
}

hp_status finite_check_weights(const hp_fsdp *fsdp, uint64_t step) {
    const hp_unit *unit;
    for (int u = 0; (unit = hp_fsdp_unit(fsdp, u)); u++)
        for (int p = 0; p < hp_unit_n_params(unit); p++) {
            hp_shard shard;
            TRY(hp_param_shard(unit, p, &shard));
            TRY(check_shard(unit, &shard, step));
        }
    return HP_OK;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * bound.c - the most memory that a rank may hold, from the parameters' sizes alone.
 *
 * This is the rule of docs/memory.md in code. It looks at shapes, dtypes and options and at nothing
 * that was laid out, so that it can be held against what was: hp_fsdp_stats.bound_bytes. Every
 * piece is rounded up by itself, which is never less than what a layout that packs them can come
 * to.
 */
#include "bundles.h"

enum { PIECE = 64, SLICE = 512, ROW = 128 }; /* bytes; elements of a flat segment: PIECE and ROW */

/* Of one unit, in bytes. */
typedef struct need {
    uint64_t shards, casts, shared, optimizer, gradient_shards;
    uint64_t gathered, full_gradients, gather, pack;
} need;

/* Elements of a parameter, or of one rank's rows of it, the last rank's padding included. */
static uint64_t count(const hpi_param *p, uint64_t n_shards) {
    uint64_t n = 1;
    for (int d = 0; d < p->n_dims; d++) {
        const bool is_cut = d == p->shard_dim;
        n *= is_cut ? hpi_ceil_div((uint64_t)p->shape[d], n_shards) : (uint64_t)p->shape[d];
    }
    return n;
}

/* Of a parameter that is cut along a dimension, or replicated. */
static void add_rows(const hp_fsdp *fsdp, const hpi_param *p, need *n) {
    const bool is_cut = fsdp->n_shards > 1 && p->shard_dim != HP_REPLICATED;
    const uint64_t parts = is_cut ? (uint64_t)fsdp->n_shards : 1, mine = count(p, parts);
    const uint64_t data = hp_dtype_size(p->data_dtype), master = hp_dtype_size(p->master);
    const uint64_t grad = hp_dtype_size(p->grad_dtype);
    n->shards += hpi_align_up(mine * master, PIECE);
    const bool is_cast =
        p->data_dtype != p->master && !(is_cut && hpi_mode_is_fused(fsdp->config.mode));
    n->casts +=
        is_cast ? hpi_align_up(mine * data, PIECE) : 0; /* fused modes cast when they pack */
    n->gathered += is_cut ? hpi_align_up(parts * mine * data, PIECE) : 0;
    n->gather += is_cut ? parts * hpi_align_up(mine * data, PIECE) : 0;
    if (p->is_frozen)
        return;
    n->optimizer += 2 * hpi_align_up(mine * master, PIECE);
    n->gradient_shards += hpi_align_up(mine * master, SLICE);
    if (fsdp->n_shards == 1 && p->grad_dtype == p->master)
        return; /* written where they stay */
    n->full_gradients += hpi_align_up(parts * mine * grad, PIECE);
    n->pack += parts * hpi_align_up(mine * master, ROW) / master * grad;
}

/* Of a parameter in a flat segment, which begins at a multiple of PIECE elements; its cut at one of
 * ROW. */
static void add_flat(const hp_fsdp *fsdp, const hpi_param *p, need *n) {
    const uint64_t parts = (uint64_t)fsdp->n_shards;
    const uint64_t mine = hpi_align_up(hpi_ceil_div(hpi_align_up(count(p, 1), PIECE), parts), ROW);
    const uint64_t data = hp_dtype_size(p->data_dtype), master = hp_dtype_size(p->master);
    n->shared += mine * data;
    n->shards += p->data_dtype != p->master ? mine * master : 0;
    if (p->is_frozen)
        return;
    n->optimizer += 2 * mine * master;
    n->gradient_shards += hpi_align_up(mine * master, SLICE);
    n->full_gradients += parts * mine * hp_dtype_size(p->grad_dtype);
}

static need need_of(const hp_fsdp *fsdp, const hp_unit *unit) {
    need n = {0};
    const bool is_mapped = fsdp->config.mode == HP_MAPPED && fsdp->n_shards > 1;
    for (int j = 0; j < unit->n_params; j++) {
        const hpi_param *p = &unit->params[j];
        if (!hpi_param_is_owned(p) || !count(p, 1))
            continue;
        if (is_mapped && p->shard_dim != HP_REPLICATED)
            add_flat(fsdp, p, &n);
        else
            add_rows(fsdp, p, &n);
    }
    return n;
}

/* What stays, of a unit: each kind is a buffer of its own, of whole slices. */
static uint64_t kept(const hp_unit *unit, const need *n) {
    const uint64_t own_storage = hpi_unit_is_resharded(unit) ? 0 : n->gathered;
    return hpi_align_up(n->shards, SLICE) + hpi_align_up(n->casts, SLICE) +
           hpi_align_up(n->shared, SLICE) + hpi_align_up(n->gradient_shards, SLICE) +
           hpi_align_up(n->optimizer, SLICE) + hpi_align_up(own_storage, SLICE);
}

uint64_t hpi_fsdp_bound(const hp_fsdp *fsdp) {
    uint64_t total = 0, n_gathered = 0, n_trainable = 0;
    need most = {0}; /* of any unit, for what units take turns in */
    for (uint32_t i = 0; i < fsdp->n_units; i++) {
        const hp_unit *unit = fsdp->units[i];
        const need n = need_of(fsdp, unit);
        total += kept(unit, &n);
        most.gather = hpi_max(most.gather, n.gather);
        most.pack = hpi_max(most.pack, n.pack);
        most.full_gradients = hpi_max(most.full_gradients, n.full_gradients);
        n_trainable += n.full_gradients != 0;
        if (!hpi_unit_is_resharded(unit) || !n.gathered)
            continue;
        most.gathered = hpi_max(most.gathered, n.gathered);
        n_gathered++;
    }
    const uint64_t depth = fsdp->config.schedule == HP_SERIAL ? 0 : (uint64_t)fsdp->config.prefetch;
    total += hpi_min(n_gathered, 1 + depth) * hpi_align_up(most.gathered, SLICE);
    total += hpi_min(n_trainable, 2) * hpi_align_up(most.full_gradients, SLICE);
    if (hpi_mode_is_fused(fsdp->config.mode) && fsdp->n_shards > 1)
        total += hpi_align_up(most.gather, SLICE) + hpi_align_up(most.pack, SLICE);
    return total;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * fused.c - modes fused and fused-zero-copy: a collective for all of a unit's parameters of a
 * dtype.
 *
 *     unshard:  allocate G | pack | copy | all_gather in place | copy_out | release G
 *     reduce:   allocate P | pack_grads | release gradients | reduce_scatter | release P
 *
 * G, the gather's output, and P, the packed gradients, are one buffer each, and a life for each
 * use: a release waits until no peer reads there any more, and the next unit comes behind it on the
 * same stream. Shards are packed into the unit's own storage, which is not in use before copy_out,
 * and copied to this rank's row of G; zero-copy packs them there at once. Source: SPEC A4, A5; the
 * seed's overlap document, section 4.
 */
#include "inside.h"

/* ---- parameters -------------------------------------------------------------------------- */

static hp_op *emit_move(hpi_plan *plan, uint16_t kind, uint32_t unit, uint8_t dtype, hp_ref to) {
    hp_op *op = hpi_emit(plan, kind, HP_STREAM_UNSHARD, unit);
    op->dtype = op->wire = dtype;
    op->writes[0] = to;
    op->bytes = to.end - to.begin;
    return op;
}

/* This rank's row: from the shards to where the gather reads it. */
static void emit_pack(hpi_plan *plan, uint32_t unit, const hpi_plan_bundle *b, hp_ref row,
                      hp_event allocated) {
    const hpi_plan_unit *description = &plan->config->units[unit];
    const bool is_direct = description->mode == HP_FUSED_ZERO_COPY;
    const hp_ref storage = plan->units[unit].storage;
    const hp_ref packed = hpi_ref_piece(storage, b->pack_begin, b->pack_end);
    hp_op *op = emit_move(plan, HPI_OP_PACK, unit, b->dtype, is_direct ? row : packed);
    op->reads[0] = description->shard;
    hpi_wait_for(op, allocated);
    if (!is_direct)
        emit_move(plan, HPI_OP_COPY, unit, b->dtype, row)->reads[0] = packed;
}

static hp_event emit_gather(hpi_plan *plan, uint32_t unit, const hpi_plan_bundle *b, hp_ref whole,
                            hp_ref row) {
    hp_op *op =
        hpi_emit_collective(plan, HPI_OP_ALL_GATHER, HP_STREAM_UNSHARD, HPI_COMM_UNSHARD, unit);
    op->dtype = op->wire = b->dtype;
    op->reads[0] = row;
    op->writes[0] = hpi_ref_piece(whole, b->begin, b->end);
    op->bytes = row.end - row.begin;
    return hpi_drained(op->id);
}

void hpi_fused_gather(hpi_plan *plan, uint32_t unit, hp_event allocated) {
    const hpi_plan_unit *description = &plan->config->units[unit];
    hpi_unit_state *u = &plan->units[unit];
    const hp_ref whole = hpi_emit_allocate_on(
        plan, HP_STREAM_UNSHARD, unit, plan->config->gather_buffer, description->gather_bytes);
    hp_event drained = 0;
    for (uint32_t i = 0; i < description->n_gathers; i++) {
        const hpi_plan_bundle *b = &description->gathers[i];
        emit_pack(plan, unit, b, hpi_ref_piece(whole, b->own_begin, b->own_end), allocated);
        allocated = 0; /* the stream is in order: the first one's wait is enough */
    }
    for (uint32_t i = 0; i < description->n_gathers; i++) {
        const hpi_plan_bundle *b = &description->gathers[i];
        drained = emit_gather(plan, unit, b, whole, hpi_ref_piece(whole, b->own_begin, b->own_end));
    }
    hp_op *out = emit_move(plan, HPI_OP_COPY_OUT, unit, description->gathers[0].dtype, u->storage);
    out->reads[0] = whole;
    u->gathered = hpi_done(out->id);
    hpi_wait_for(hpi_emit_release_on(plan, HP_STREAM_UNSHARD, unit, whole), drained);
}

/* ---- gradients --------------------------------------------------------------------------- */

static hp_ref emit_pack_grads(hpi_plan *plan, uint32_t unit, hp_event computed) {
    const hpi_plan_unit *description = &plan->config->units[unit];
    const hp_ref packed = hpi_emit_allocate_on(plan, HP_STREAM_REDUCE, unit,
                                               plan->config->pack_buffer, description->pack_bytes);
    hp_op *op = hpi_emit(plan, HPI_OP_PACK_GRADS, HP_STREAM_REDUCE, unit);
    op->reads[0] = plan->units[unit].grad;
    op->writes[0] = packed;
    op->bytes = description->pack_bytes;
    hpi_wait_for(op, computed);
    hpi_release_grad_on(plan, HP_STREAM_REDUCE, unit);
    return packed;
}

static hp_op *emit_reduction(hpi_plan *plan, uint32_t unit, uint16_t kind, uint8_t dtype,
                             hp_ref from, hp_ref to) {
    hp_op *op = hpi_emit_collective(plan, kind, HP_STREAM_REDUCE, HPI_COMM_REDUCE, unit);
    op->dtype = op->wire = dtype;
    op->reduce = (uint8_t)plan->units[unit].reduction;
    op->reads[0] = from;
    op->writes[0] = to;
    op->bytes = from.end - from.begin;
    return op;
}

/* The rows of each dtype; and, each for itself, the parameters of which every shard is the whole.
 * Returns the last. */
static hp_op *emit_reductions(hpi_plan *plan, uint32_t unit, hp_ref packed) {
    const hpi_plan_unit *description = &plan->config->units[unit];
    hp_op *op = NULL;
    for (uint32_t i = 0; i < description->n_scatters; i++) {
        const hpi_plan_bundle *b = &description->scatters[i];
        const hp_ref bucket = description->bucket[b->bucket];
        op = emit_reduction(plan, unit, HPI_OP_REDUCE_SCATTER, b->dtype,
                            hpi_ref_piece(packed, b->begin, b->end),
                            hpi_ref_piece(bucket, b->bucket_begin, b->bucket_end));
    }
    for (uint32_t j = 0; j < description->n_params; j++) {
        const hpi_plan_param *p = &description->params[j];
        if (p->route != HPI_ROUTE_ALL_REDUCE)
            continue;
        const hp_ref bucket = description->bucket[p->bucket];
        op = emit_reduction(plan, unit, HPI_OP_ALL_REDUCE, p->grad_dtype,
                            hpi_ref_piece(packed, p->pack_begin, p->pack_end),
                            hpi_ref_piece(bucket, p->bucket_begin, p->bucket_end));
        op->param = p->param;
    }
    return op;
}

void hpi_fused_reduce(hpi_plan *plan, uint32_t unit, hp_event computed) {
    hpi_unit_state *u = &plan->units[unit];
    if (!plan->config->units[unit].pack_bytes) { /* one shard: nothing to put together */
        hpi_per_param_reduce(plan, unit, computed);
        return;
    }
    const hp_ref packed = emit_pack_grads(plan, unit, computed);
    const hp_op *last = emit_reductions(plan, unit, packed);
    u->reduced = hpi_done(last->id);
    const hp_event drained = hpi_drained(last->id);
    hpi_wait_for(hpi_emit_release_on(plan, HP_STREAM_REDUCE, unit, packed), drained);
}

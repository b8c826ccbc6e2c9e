/* SPDX-License-Identifier: Apache-2.0
 *
 * kinds.c - the collectives as operations of an executor.
 *
 * An operation names buffers and a communicator by number; the executor's context, a hpi_bindings,
 * says where they lie. `run` returns when the outputs are valid, `drain` when no peer reads the
 * input any more. The sequence number that the plan gave must be the one that the group has come
 * to, else somebody else has used the group.
 */
#include "inside.h"

typedef hp_status run_function(hp_group *group, const hpi_coll *c, uint64_t *out_seq);

static uint64_t ref_bytes(const hp_ref *ref) {
    return ref->end - ref->begin;
}

static hp_status check_ref(const hpi_bindings *b, const hp_ref *ref) {
    if (ref->buffer >= b->n_buffers || ref->begin > ref->end ||
        (ref->buffer && ref->end > b->buffer_bytes[ref->buffer]))
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected a piece of buffers 0 to %u, given [%llu, %llu) "
                        "of buffer %u",
                        b->n_buffers - 1, (unsigned long long)ref->begin,
                        (unsigned long long)ref->end, ref->buffer);
    return HP_OK;
}

static hp_status find_group(const hpi_bindings *b, const hp_op *op, hp_group **out_group) {
    if (op->comm == 0 || op->comm >= b->n_comms || !b->comms[op->comm])
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a communicator from 1 to %u, given %u",
                        b->n_comms - 1, op->comm);
    *out_group = b->comms[op->comm];
    return HP_OK;
}

/* The number of the operation's collective on its group. */
static uint64_t seq_of(const hpi_bindings *b, const hp_op *op) {
    return b->comm_base[op->comm] + op->seq + 1;
}

/* The element type of an output for `elements` elements; a reduction may keep the sum's. */
static hp_status out_dtype_of(const hp_op *op, uint64_t elements, bool is_sum,
                              hp_dtype *out_dtype) {
    const hp_dtype dtype = (hp_dtype)op->dtype, sum = is_sum ? hpi_sum_dtype(dtype) : dtype;
    const uint64_t bytes = ref_bytes(&op->writes[0]);
    if (bytes != elements * hp_dtype_size(dtype) && bytes != elements * hp_dtype_size(sum))
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "operation %u: expected room for %llu elements of %s or %s, given %llu "
                        "bytes",
                        op->id, (unsigned long long)elements, hp_dtype_name(dtype),
                        hp_dtype_name(sum), (unsigned long long)bytes);
    *out_dtype = bytes == elements * hp_dtype_size(dtype) ? dtype : sum;
    return HP_OK;
}

/* fp32 contributions may be narrower on the wire than in memory. */
static hp_wire wire_of(const hp_op *op) {
    if (op->dtype != HP_FP32)
        return HP_WIRE_FULL;
    return op->wire == HP_FP16 ? HP_WIRE_FP16 : op->wire == HP_BF16 ? HP_WIRE_BF16 : HP_WIRE_FULL;
}

/* Layers are often alike, so sizes alone would not tell that two ranks are at different ones. */
static uint32_t tag_of(const hp_op *op) {
    const uint32_t most = (1U << HPI_TAG_BITS) - 1;
    return ((op->unit + 1) << HPI_TAG_BITS | (op->param & most)) & 0xffffff;
}

/* A unit may have a pass of its own. */
static uint32_t pass_of(const hpi_bindings *b, const hp_op *op) {
    return op->unit < b->n_units ? b->unit_pass[op->unit] : b->pass;
}

/* A shape says which operands hold all n parts, and whether the output may be of the sum type. */
typedef struct shape {
    bool in_is_whole, out_is_whole, is_sum;
} shape;

static hp_status make_coll(const hpi_bindings *b, const hp_op *op, shape s, uint64_t n,
                           hpi_coll *out_coll) {
    HP_TRY(check_ref(b, &op->reads[0]));
    HP_TRY(check_ref(b, &op->writes[0]));
    const uint64_t blocks = hpi_max(op->blocks, 1), bytes = ref_bytes(&op->reads[0]);
    const uint64_t item = hp_dtype_size((hp_dtype)op->dtype) * (s.in_is_whole ? n : 1);
    uint64_t unit; /* bytes of the input for each element of `count` */
    if (!hpi_multiply(blocks, item, &unit) || !unit || bytes % unit != 0)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "operation %u: expected an input of whole elements of dtype %d in %llu "
                        "blocks, given %llu bytes for %llu ranks",
                        op->id, op->dtype, (unsigned long long)blocks, (unsigned long long)bytes,
                        (unsigned long long)n);
    hpi_coll c = {.in = hpi_bound(b, &op->reads[0]),
                  .out = hpi_bound(b, &op->writes[0]),
                  .count = bytes / unit,
                  .blocks = blocks,
                  .dtype = (hp_dtype)op->dtype,
                  .op = (hp_reduce)op->reduce,
                  .wire = wire_of(op),
                  .tag = tag_of(op),
                  .pass = pass_of(b, op)};
    HP_TRY(out_dtype_of(op, c.count * blocks * (s.out_is_whole ? n : 1), s.is_sum, &c.out_dtype));
    *out_coll = c;
    return HP_OK;
}

static hp_status check_seq(const hpi_bindings *b, const hp_op *op, hp_group *group) {
    const uint64_t next = hpi_coll_seq(group) + 1;
    if (next != seq_of(b, op))
        return HPI_FAIL(HP_ERR_STATE,
                        "operation %u: expected to be collective %llu of %s, the group has come to "
                        "%llu",
                        op->id, (unsigned long long)seq_of(b, op), hpi_group_name(group),
                        (unsigned long long)next);
    return HP_OK;
}

static hp_status run_op(void *context, const hp_op *op, run_function *run, shape s) {
    const hpi_bindings *b = context;
    hp_group *group;
    hpi_coll c;
    uint64_t seq;
    HP_TRY(find_group(b, op, &group));
    HP_TRY(make_coll(b, op, s, (uint64_t)hp_group_size(group), &c));
    HP_TRY(check_seq(b, op, group));
    return run(group, &c, &seq);
}

static hp_status run_all_gather(void *context, const hp_op *op) {
    return run_op(context, op, hpi_all_gather, (shape){.out_is_whole = true});
}

static hp_status run_reduce_scatter(void *context, const hp_op *op) {
    return run_op(context, op, hpi_reduce_scatter, (shape){.in_is_whole = true, .is_sum = true});
}

static hp_status run_all_reduce(void *context, const hp_op *op) {
    return run_op(context, op, hpi_all_reduce, (shape){.is_sum = true});
}

static hp_status run_barrier(void *context, const hp_op *op) {
    const hpi_bindings *b = context;
    const hpi_coll c = {.blocks = 1,
                        .dtype = HP_UINT8,
                        .out_dtype = HP_UINT8,
                        .tag = tag_of(op),
                        .pass = pass_of(b, op)};
    hp_group *group;
    uint64_t seq;
    HP_TRY(find_group(b, op, &group));
    HP_TRY(check_seq(b, op, group));
    return hpi_barrier(group, &c, &seq);
}

static hp_status drain_op(void *context, const hp_op *op) {
    const hpi_bindings *b = context;
    hp_group *group;
    HP_TRY(find_group(b, op, &group));
    return hpi_coll_drain(group, seq_of(b, op));
}

const hp_kind hpi_coll_kinds[HPI_N_COLL_KINDS] = {
    [HPI_KIND_ALL_GATHER] = {"all_gather", run_all_gather, drain_op, HP_ROLE_PLAIN},
    [HPI_KIND_REDUCE_SCATTER] = {"reduce_scatter", run_reduce_scatter, drain_op, HP_ROLE_PLAIN},
    [HPI_KIND_ALL_REDUCE] = {"all_reduce", run_all_reduce, drain_op, HP_ROLE_PLAIN},
    [HPI_KIND_BARRIER] = {"barrier", run_barrier, NULL, HP_ROLE_PLAIN},
};

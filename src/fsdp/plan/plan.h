/* SPDX-License-Identifier: Apache-2.0
 *
 * fsdp/plan/plan.h - the plan: pure functions from (state, unit) to operations and the next state.
 *
 * The plan never communicates and never waits. It knows units by number, memory by buffer id, and
 * events by the operation they belong to. hpi_plan_begin starts the numbering of a step afresh, so
 * that from the third step on the operations of a step are the same bytes as the last one's.
 *
 * Residency of a unit: sharded -> pending (gathers issued) -> resident (waited for) -> sharded.
 * Gradients of a unit: computed in a slot -> reduce-scattered into its bucket -> bucket all-reduced
 * -> divided. In a HP_NO_SYNC pass, and in all but a unit's last backward: computed in a slot ->
 * added to its accumulator, which the next reduction takes in. In a HP_DEFER_REPLICATE pass:
 * reduce-scattered into its bucket -> added to its partial sums, which the next HP_SYNC pass adds
 * before the all-reduce. Source: the seed's overlap document, sections 2 and 5; SPEC A2, A3, A8.
 */
#ifndef HPI_PLAN_H
#define HPI_PLAN_H

#include "../../stream/stream.h"
#include <hyperparallel/fsdp.h>
#include <stdbool.h>

/* Operation kinds: the collectives of coll first, then these. */
enum {
    HPI_OP_ALL_GATHER = 0,
    HPI_OP_REDUCE_SCATTER,
    HPI_OP_ALL_REDUCE,
    HPI_OP_BARRIER,
    HPI_OP_ALLOCATE,      /* writes[0] is a new life of a buffer */
    HPI_OP_RELEASE,       /* reads[0] is the life that ends */
    HPI_OP_WAIT,          /* nothing but its waits */
    HPI_OP_FORWARD_BEGIN, /* reads the parameters, until the forward_end of the unit */
    HPI_OP_FORWARD_END,
    HPI_OP_BACKWARD_BEGIN, /* reads the parameters, writes the gradients, until backward_end */
    HPI_OP_BACKWARD_END,
    HPI_OP_CONVERT,    /* reads[0] in dtype -> writes[0] in the sum dtype, on one rank */
    HPI_OP_ACCUMULATE, /* writes[0] = reads[1] + reads[0], in the sum dtype; no reads[1]: reads[0]
                        */
    HPI_OP_FOLD,       /* writes[0], which is reads[0], = reads[1] + reads[0], rounded to dtype */
    HPI_OP_DIVIDE,     /* writes[0] (a bucket) times the unit's factor, over its divisor,
                          but HP_AVG: nothing, the unit's reductions have divided */
    HPI_OP_UPDATE,     /* writes shards; what two refs cannot say, others that follow it do */
    HPI_OP_SCALE,      /* writes buckets */
    HPI_OP_PACK,       /* reads[0] (shards) -> writes[0]: this rank's row of a bundle */
    HPI_OP_COPY,       /* reads[0] -> writes[0] */
    HPI_OP_COPY_OUT,   /* reads[0] (gathered bundles) -> writes[0] (the unit's storage) */
    HPI_OP_PACK_GRADS, /* reads[0] (the unit's gradients) -> writes[0] (bundles of them) */
    HPI_OP_RECOMPUTE_BEGIN, /* reads the parameters, until the recompute_end of the unit */
    HPI_OP_RECOMPUTE_END,
    HPI_OP_HOLD_BEGIN, /* the same for a unit gathered by hand, until its hold_end */
    HPI_OP_HOLD_END,
    HPI_OP_N_KINDS
};

/* Communicators, as hp_op.comm. Unshard and reduce have the same ranks and two signal spaces. */
enum { HPI_COMM_UNSHARD = 1, HPI_COMM_REDUCE = 2, HPI_COMM_REPLICATE = 3, HPI_N_COMMS = 4 };

/* How a parameter's gradient gets from where backward writes it into the bucket. */
typedef enum hpi_route {
    HPI_ROUTE_NONE = 0,       /* no gradient */
    HPI_ROUTE_REDUCE_SCATTER, /* sharded: each rank receives the sum of its shard */
    HPI_ROUTE_ALL_REDUCE,     /* replicated in the shard group: the sum of all of it */
    HPI_ROUTE_CONVERT,        /* one shard: no collective, but the bucket's dtype differs */
    HPI_ROUTE_DIRECT          /* one shard: backward writes into the bucket */
} hpi_route;

/* What the plan knows of a parameter, or of a mapped unit's flat segment of several, which it
 * treats as one. Ranges are bytes in the buffer named. */
typedef struct hpi_plan_param {
    uint32_t param;            /* number in the unit */
    uint8_t dtype, grad_dtype; /* of what is gathered, of what is reduced */
    bool is_gathered;          /* else read where its shard lies */
    hpi_route route;
    int bucket;      /* 0 fp32, 1 fp64 */
    uint64_t blocks; /* of collectives along an inner dimension; else 1 */
    hp_ref source;   /* this rank's shard, in the shard, the cast or the shared buffer */
    uint64_t storage_begin, storage_end;         /* gathered, in the unit's storage */
    uint64_t grad_begin, grad_end;               /* full gradient, in the unit's grad slot */
    uint64_t bucket_begin, bucket_end;           /* gradient shard, in its bucket */
    uint64_t accumulator_begin, accumulator_end; /* sum of full gradients, in the sum dtype */
    uint64_t pack_begin, pack_end; /* fused, HPI_ROUTE_ALL_REDUCE: in the packed gradients */
} hpi_plan_param;

/* Parameters of one dtype that travel together: a row for each shard, one row behind the other. Row
 * r is shard r of each, padding included. Ranges are bytes. */
typedef struct hpi_plan_bundle {
    uint8_t dtype;
    int bucket;                        /* of gradients: 0 fp32, 1 fp64 */
    uint64_t begin, end;               /* all rows, in the gather or the pack buffer */
    uint64_t own_begin, own_end;       /* of it this rank's row */
    uint64_t pack_begin, pack_end;     /* that row while it is packed, in the unit's storage */
    uint64_t bucket_begin, bucket_end; /* the sum of this rank's row of gradients, in the bucket */
} hpi_plan_bundle;

enum { HPI_MAX_BUNDLES = HP_UINT8 + 1 }; /* one for each dtype */

typedef struct hpi_plan_unit {
    hp_mode mode;                 /* how it is brought and reduced; never HP_AUTO */
    const hpi_plan_param *params; /* those with elements */
    uint32_t n_params;
    hp_ref shard, cast, bucket[2];  /* whole buffers; buffer 0: it has none */
    hp_ref shared;                  /* mapped: the shard group's one copy, read where it lies */
    hp_ref accumulator, partial[2]; /* memory of this rank alone; partial: as bucket */
    uint32_t own_storage;           /* buffer of a unit that keeps its parameters; 0: a pool slot */
    uint64_t storage_bytes, grad_bytes;
    /* Fused modes, with more than one shard: what is gathered, and what is reduced. */
    hpi_plan_bundle gathers[HPI_MAX_BUNDLES], scatters[HPI_MAX_BUNDLES];
    uint32_t n_gathers, n_scatters;
    uint64_t gather_bytes, pack_bytes; /* of the gather's output; of the packed gradients */
    bool is_resharded;                 /* freed after forward */
    bool is_trainable;
    bool is_divided;          /* the division changes something */
    bool is_mean;             /* it is by the size of the shard group, and by nothing else */
    const uint32_t *prefetch; /* explicit list, or NULL: the learnt order */
    uint32_t n_prefetch;
} hpi_plan_unit;

enum { HPI_MAX_SLOTS = 18 };

typedef struct hpi_plan_config {
    const hpi_plan_unit *units;
    uint32_t n_units;
    uint32_t prefetch;
    hp_schedule schedule;
    int n_replicas;
    uint32_t n_buffers;                                     /* ids are below it */
    uint32_t storage_slots[HPI_MAX_SLOTS], n_storage_slots; /* buffer ids */
    uint32_t grad_slots[HPI_MAX_SLOTS], n_grad_slots;
    uint32_t gather_buffer, pack_buffer; /* fused modes: buffer ids; 0: none */
    hp_dtype replicate_wire;             /* of fp32 buckets; HP_FP32: as they are */
} hpi_plan_config;

typedef struct hpi_plan hpi_plan;

/* The operations that one call brought; valid until the next call. */
typedef struct hpi_burst {
    const hp_op *ops;
    uint64_t n;
} hpi_burst;

/* `config` and what it points to must outlive the plan. */
hp_status hpi_plan_create(const hpi_plan_config *config, hpi_plan **out_plan);
void hpi_plan_destroy(hpi_plan *plan);

/* Start a step: ids, lives and sequence numbers count from 0. */
void hpi_plan_begin(hpi_plan *plan, hp_pass pass);
/* What the step is to one unit, in place of the pass: after hpi_plan_begin, before anything else.
 * Not HP_EVALUATE, unless the step is that. */
void hpi_plan_set_pass(hpi_plan *plan, uint32_t unit, hp_pass pass);
/* As after hpi_plan_create, in the middle of a step too. The order that was learnt is forgotten:
 * a rank may have ended the step, and learnt from it, that another is in the middle of. */
void hpi_plan_reset(hpi_plan *plan);
/* Errors: STATE when a unit's storage cannot be had (too many units in use at once). */
hp_status hpi_plan_forward_begin(hpi_plan *plan, uint32_t unit, hpi_burst *out_burst);
hp_status hpi_plan_forward_end(hpi_plan *plan, uint32_t unit, hpi_burst *out_burst);
hp_status hpi_plan_backward_begin(hpi_plan *plan, uint32_t unit, hpi_burst *out_burst);
hp_status hpi_plan_backward_end(hpi_plan *plan, uint32_t unit, hpi_burst *out_burst);
/* Around a forward that is computed again for a backward to come. */
hp_status hpi_plan_recompute_begin(hpi_plan *plan, uint32_t unit, hpi_burst *out_burst);
hp_status hpi_plan_recompute_end(hpi_plan *plan, uint32_t unit, hpi_burst *out_burst);
/* Gather a unit that is not resharded until it is let go, or the step ends; is_read: wait for it,
 * its parameters are read from here on. Errors: STATE as above. */
hp_status hpi_plan_hold(hpi_plan *plan, uint32_t unit, bool is_read, hpi_burst *out_burst);
hp_status hpi_plan_let_go(hpi_plan *plan, uint32_t unit, hpi_burst *out_burst);
hp_status hpi_plan_end(hpi_plan *plan, hpi_burst *out_burst);
/* Operations on the shards or buckets of every trainable (UPDATE: every) unit, between passes. */
hp_status hpi_plan_apply(hpi_plan *plan, uint16_t kind, hpi_burst *out_burst);
/* What stands before the first UPDATE of those, for weights that are written before they are named.
 */
hp_status hpi_plan_begin_update(hpi_plan *plan, hpi_burst *out_burst);
/* Weights may have been written that no UPDATE names; gradients that were accumulated stay. */
void hpi_plan_note_writes(hpi_plan *plan);

/* The pass was replayed, with n_ops operations: what hpi_plan_end would have left behind. Gradients
 * that were accumulated are used up, and numbers go on from there. */
void hpi_plan_replayed(hpi_plan *plan, uint64_t n_ops);
/* A number for what the passes since the last HP_SYNC have left to the next: whose gradients and
 * partial sums are accumulated. */
uint64_t hpi_plan_carried(const hpi_plan *plan);

/* Units resident or on the way. 0 after hpi_plan_end, when every queue is empty. */
uint32_t hpi_plan_n_gathered(const hpi_plan *plan);
bool hpi_plan_is_idle(const hpi_plan *plan);

#endif

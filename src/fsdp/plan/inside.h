/* SPDX-License-Identifier: Apache-2.0
 *
 * fsdp/plan/inside.h - the state of a plan and how operations are appended, for this folder alone.
 *
 * plan.c starts and ends passes, forward.c brings parameters and takes them back, backward.c takes
 * gradients to their buckets; what a mode does in its own way has a file of its own: per_param.c,
 * fused.c, mapped.c.
 * Every function appends operations to plan->ops and changes the state; nothing else. Waiting is an
 * operation too (HPI_OP_WAIT on the compute stream), so the list says all: what is issued, what is
 * waited for, when memory begins and ends a life.
 */
#ifndef HPI_PLAN_INSIDE_H
#define HPI_PLAN_INSIDE_H

#include "../../base/base.h"
#include "plan.h"

enum { HPI_NOBODY = UINT32_MAX };

typedef enum hpi_residency { HPI_SHARDED = 0, HPI_PENDING, HPI_RESIDENT } hpi_residency;

typedef struct hpi_unit_state {
    hpi_residency residency;
    hp_pass pass;                     /* what this pass is to it */
    bool is_computing;                /* between a begin and its end */
    bool is_held, is_read;            /* hpi_plan_hold; its hold_begin was issued */
    uint32_t n_forwards, n_backwards; /* in this pass */
    bool is_reduced;                  /* in this pass: its reductions were issued */
    hp_reduce reduction;              /* what these ask for: HP_AVG divides, HP_SUM leaves it */
    bool is_accumulated, is_partial;  /* sums wait in accumulator, partial; these outlive a pass */
    bool left_accumulated, left_partial; /* what the last planned HP_SYNC pass has left of them */
    hp_ref storage;                      /* while pending or resident */
    hp_event gathered;                   /* the last gather; 0: nothing to wait for */
    hp_ref grad;                         /* while it holds a slot */
    hp_event reduced;                    /* bucket complete on this rank's shard */
    hp_event grad_drained;  /* no peer reads the gradients any more; 0: none ever did */
    hp_event replicated[2]; /* bucket complete over the replicas */
} hpi_unit_state;

/* One forward of a unit in this pass, and whether its backward has begun. */
typedef struct hpi_use {
    uint32_t unit;
    bool is_backwarded;
} hpi_use;

/* What the plan knows about readers and writers of shared memory. All of it follows from passes and
 * updates alone, in which ranks are alike, and from nothing that a rank may do by itself. */
typedef struct hpi_sharing {
    bool is_written;              /* since peers were last known to see it */
    bool is_read;                 /* peers may not be through with what they read */
    bool is_published;            /* in this pass */
    bool was_held;                /* in this pass: a unit, so perhaps read after its reduction */
    hp_event published;           /* what the first use waits for; 0: nothing any more */
    uint32_t next_seq_after_sync; /* on the reduce communicator: what a replayed pass leaves */
    bool is_read_after_sync;      /* the same */
} hpi_sharing;

struct hpi_plan {
    const hpi_plan_config *config;
    hp_pass pass;
    hpi_unit_state *units;
    uint32_t *order, n_order; /* uses in forward order, learnt from the last pass with backward */
    uint32_t next_use;        /* where in `order` this pass has come to */
    hpi_use *uses;            /* of this pass */
    uint32_t n_uses, n_max_uses;          /* room in `order` and `uses` */
    uint32_t *replicating, n_replicating; /* units whose all-reduce is in flight, in issue order */
    uint32_t reducing;                    /* unit whose reduce-scatter is in flight, or nobody */
    uint32_t storage_owner[HPI_MAX_SLOTS], grad_owner[HPI_MAX_SLOTS];
    hp_event grad_free[HPI_MAX_SLOTS]; /* when a slot that nobody owns was released elsewhere */
    uint32_t *lives;
    uint32_t next_id, next_seq[HPI_N_COMMS];
    hp_event last_drained[HPI_N_COMMS]; /* of the last collective on each communicator */
    hpi_sharing sharing;                /* mapped.c */
    hp_op *ops;
    uint64_t n_ops, ops_capacity;
};

/* plan.c: appending. */
hp_op *hpi_emit(hpi_plan *plan, uint16_t kind, uint16_t stream, uint32_t unit);
hp_op *hpi_emit_collective(hpi_plan *plan, uint16_t kind, uint16_t stream, uint32_t comm,
                           uint32_t unit);
/* A begin or an end of the unit's compute. */
hp_op *hpi_emit_compute(hpi_plan *plan, uint16_t kind, uint32_t unit);
void hpi_emit_wait(hpi_plan *plan, uint32_t unit, hp_event event);
/* A new life of a buffer. */
hp_ref hpi_emit_allocate(hpi_plan *plan, uint32_t unit, uint32_t buffer, uint64_t bytes);
void hpi_emit_release(hpi_plan *plan, uint32_t unit, hp_ref ref, hp_event after);
/* On another stream than compute. */
hp_ref hpi_emit_allocate_on(hpi_plan *plan, uint16_t stream, uint32_t unit, uint32_t buffer,
                            uint64_t bytes);
hp_op *hpi_emit_release_on(hpi_plan *plan, uint16_t stream, uint32_t unit, hp_ref ref);
void hpi_wait_for(hp_op *op, hp_event event);

static inline hp_ref hpi_ref_piece(hp_ref whole, uint64_t begin, uint64_t end) {
    return (hp_ref){whole.buffer, whole.life, begin, end};
}
/* The slot that `owner` has, or HPI_NOBODY. */
uint32_t hpi_slot_of(const uint32_t *owners, uint32_t n, uint32_t owner);

void hpi_burst_start(hpi_plan *plan);
hp_status hpi_burst_finish(const hpi_plan *plan, hpi_burst *out_burst);

/* How the units of a mode are brought and their gradients taken: all that modes differ in. */
typedef struct hpi_way {
    /* Parameters into the unit's storage, a life that begins at `allocated`. Sets `gathered`. */
    void (*gather)(hpi_plan *plan, uint32_t unit, hp_event allocated);
    /* Gradients, complete at `computed`, over the shard group into the unit's bucket. Sets
     * `reduced`, and `grad_drained` unless it has given the slot back. */
    void (*reduce)(hpi_plan *plan, uint32_t unit, hp_event computed);
    /* SPEC A4, not A3: one unit in each stage of the reduction. */
    bool is_staged;
} hpi_way;
/* plan.c: the one place that chooses. */
const hpi_way *hpi_plan_way(const hpi_plan *plan, uint32_t unit);
/* per_param.c */
void hpi_per_param_gather(hpi_plan *plan, uint32_t unit, hp_event allocated);
void hpi_per_param_reduce(hpi_plan *plan, uint32_t unit, hp_event computed);
/* fused.c */
void hpi_fused_gather(hpi_plan *plan, uint32_t unit, hp_event allocated);
void hpi_fused_reduce(hpi_plan *plan, uint32_t unit, hp_event computed);

/* mapped.c */
/* Before a unit's first use in a pass: its owners' writes are on their way to be seen. */
void hpi_mapped_publish(hpi_plan *plan, uint32_t unit);
void hpi_mapped_wait(hpi_plan *plan, uint32_t unit);
/* The end of a pass: who may still read. */
void hpi_mapped_end(hpi_plan *plan);
/* Around the operations that write weights; between them those that name what a unit's write. */
void hpi_mapped_begin_update(hpi_plan *plan);
void hpi_mapped_name_writes(hpi_plan *plan, uint32_t unit);
void hpi_mapped_end_update(hpi_plan *plan);
/* hpi_plan_replayed and hpi_plan_reset for what is shared. */
void hpi_mapped_replayed(hpi_plan *plan);
void hpi_mapped_reset(hpi_plan *plan);

/* forward.c */
/* Issue the gathers of a unit unless it is resident or on the way. */
hp_status hpi_plan_unshard(hpi_plan *plan, uint32_t unit, bool is_needed);
/* The same, and wait for them; from here on the unit cannot be evicted. */
hp_status hpi_plan_unshard_now(hpi_plan *plan, uint32_t unit);
void hpi_plan_wait_unshard(hpi_plan *plan, uint32_t unit);
/* Not while it is held. */
void hpi_plan_reshard(hpi_plan *plan, uint32_t unit);

/* by_hand.c: from where a unit that is held has been waited for. */
void hpi_plan_begin_hold(hpi_plan *plan, uint32_t unit);
void hpi_plan_end_hold(hpi_plan *plan, uint32_t unit);

/* partial.c: the bucket of a unit is complete over its shard group. In a HP_DEFER_REPLICATE pass it
 * is added to the partial sums, in a HP_SYNC pass they are added to it: sets `reduced`. */
void hpi_plan_add_partial(hpi_plan *plan, uint32_t unit);

/* Where backward has written a parameter's gradient, and an operation that reads it from there. */
hp_ref hpi_grad_of(const hpi_plan *plan, uint32_t unit, const hpi_plan_param *p);
void hpi_about_grad(hp_op *op, const hpi_plan_param *p, hp_ref grad);
/* Release a unit's gradients, which were read on another stream by what was emitted there last. */
void hpi_release_grad_on(hpi_plan *plan, uint16_t stream, uint32_t unit);
/* backward.c: at the end of a pass, every gradient that it reduces to its bucket; divided where the
 * pass is HP_SYNC to the unit. */
void hpi_plan_finish_gradients(hpi_plan *plan);

#endif

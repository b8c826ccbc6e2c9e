/* SPDX-License-Identifier: Apache-2.0
 *
 * fsdp/engine.h - the inside of room `fsdp`: what a unit and an fsdp are made of.
 *
 * The engine turns the user's calls into plan steps (plan.h, pure), hands the operations to the
 * executor, and owns the memory that they name. Optimizers, clipping and checkpoints go through
 * hpi_fsdp_apply, so that every write of a weight or a gradient is an operation too.
 *
 * Memory of a unit (bytes; offsets are in the buffer named):
 *   shard   masters of all parameters, in fp32 / fp64, or the own dtype when frozen; persistent
 *   cast    copies of masters in another dtype, what is gathered then; persistent. Fused modes cast
 *           while they pack, so only parameters that are not gathered have copies there
 *   bucket  gradient shards, [0] in fp32 and [1] in fp64, every slice 512-byte aligned; persistent
 *   storage the gathered parameters; a slot of a pool, or its own when the unit does not reshard
 *   grad    the full gradients, in the dtypes that are reduced; a slot of a pool of two
 *   shared  mapped: the parameters themselves, one copy for the shard group, flat segments of which
 *           each rank owns a range; a shard lies in it, or its cast where it has one
 *   gather, pack  fused modes, one buffer each for all units: what bundles.h puts together
 *   accumulator  sums of full gradients, in fp32 / fp64; ordinary memory, taken at the first need
 *   partial sums of buckets that were not all-reduced yet, laid out as they are; the same memory
 */
#ifndef HPI_ENGINE_H
#define HPI_ENGINE_H

#include "../coll/coll.h"
#include "memory/layout.h"
#include "plan/plan.h"
#include <hyperparallel/fsdp.h>

typedef struct hpi_param {
    char *name;
    int n_dims;
    int64_t shape[HP_MAX_DIMS];
    int shard_dim;
    hp_dtype dtype;      /* declared */
    hp_dtype master;     /* of the shard: fp32 or fp64; dtype when frozen */
    hp_dtype data_dtype; /* of what is gathered, by the precision policy */
    hp_dtype grad_dtype; /* of what backward writes and the ranks reduce */
    bool is_frozen, is_ignored;
    bool has_cast; /* read or gathered from the cast buffer: data_dtype is not the master's */
    int alias_of;  /* index in the unit of the parameter that this is another name of; -1: none */
    hpi_layout layout;
    uint64_t shard_offset, cast_offset, storage_offset, grad_offset, bucket_offset;
    uint64_t row_offset, row_grad_offset; /* fused: in the rows of its bundles (bundles.h) */
    int bucket;                           /* 0 fp32, 1 fp64; -1: no gradient */
    bool is_mapped; /* lies in the shared buffer; offsets of shard and cast are in that, too */
    uint64_t grad_padding; /* elements behind the full gradient that stay zero */
    bool is_direct;        /* backward writes straight into the bucket */
    bool grad_taken;       /* hp_param_grad was called in this backward */
    bool grad_given;       /* the same, in this pass */
    const void *data;
    void (*fill)(void *context, uint64_t begin, uint64_t end, void *out_elements);
    void *fill_context;
} hpi_param;

typedef enum hpi_phase {
    HPI_PHASE_IDLE = 0,
    HPI_PHASE_FORWARD,
    HPI_PHASE_BACKWARD,
    HPI_PHASE_RECOMPUTE
} hpi_phase;

struct hp_unit {
    hp_fsdp *fsdp;
    char *name;
    uint32_t index;
    hp_unit_config config;
    hp_unit **prefetch; /* copy of the explicit list, or NULL */
    int n_params;
    hpi_param *params;
    /* While the unit computes: set by the operations that begin and end it. */
    hpi_phase phase;
    unsigned char *storage, *grad; /* this life's bytes; NULL without */
    const unsigned char *view;     /* its shared buffer, read-only */
    uint64_t phase_began_ns;
    uint32_t n_forwards, n_backwards; /* begun in this pass */
    bool is_complete;                 /* in this pass: a backward for each forward, once */
    bool is_readable;                 /* gathered by hand and waited for: set by operations */
    int own_pass;                     /* hp_unit_set_pass; -1: none */
    hp_pass pass;                     /* what this pass is to it */
    bool has_gradients;               /* in its shards, from the last pass */
    uint32_t n_no_sync, n_deferred;   /* passes whose gradients its next HP_SYNC takes in */
    void *accumulator;                /* memory of the buffer; NULL until it is needed */
    void *partial[2];                 /* the same */
};

/* Called for each unit while an apply operation runs, on the compute stream. */
typedef hp_status (*hpi_apply)(void *context, hp_unit *unit);

typedef struct hpi_replay hpi_replay;   /* replay.c */
typedef struct hpi_meeting hpi_meeting; /* groups.c */

struct hp_fsdp {
    hp_world *world;
    hp_mesh *mesh;
    hp_fsdp_config config;
    hp_group *shard, *reduce; /* reduce: duplicate of shard */
    hp_group *replicate;      /* NULL when its size is 1 */
    hp_group *all;            /* every rank, for what is agreed between passes */
    hpi_meeting *meeting;     /* every rank, for resets alone (groups.c) */
    int n_shards, n_replicas, shard_rank, replica_rank;
    hp_unit **units;
    uint32_t n_units, units_capacity;
    bool is_committed;
    hp_symm memory; /* one allocation for everything that peers may touch */
    hp_symm shared; /* mapped: what the shard group has together */
    void *view;     /* of all of it, read-only; NULL without */
    hpi_bindings bindings;
    hp_executor *executor;
    hpi_plan *plan;
    const char **unit_names;
    hpi_apply apply; /* of the running apply operations */
    void *apply_context;
    bool in_pass, has_gradients, in_update;
    hp_pass pass;
    uint64_t grad_generation; /* rises with each hp_fsdp_end that leaves gradients */
    uint64_t n_updates;       /* of the weights: ranks that made as many have the same */
    uint64_t optimizer_bytes;
    hp_fsdp_stats stats;
    hpi_replay *replay;
    hpi_plan_config plan_config;
    hpi_plan_unit *plan_units;
    hpi_plan_param *plan_params;
    uint32_t *prefetch_lists;
    hp_kind kinds[HPI_OP_N_KINDS];
    uint64_t pass_began_ns;
    uint32_t n_passes;     /* begun */
    bool is_failed;        /* an operation failed: reset and destroy are left */
    bool has_torn_weights; /* an update has begun to write and not ended: destroy alone */
};

/* Pointers into this rank's memory. `full` counts include padding: layout.shard_elements. */
void *hpi_param_master(const hp_unit *unit, const hpi_param *param);
void *hpi_param_cast(const hp_unit *unit, const hpi_param *param); /* NULL without a cast copy */
void *hpi_param_grad_shard(const hp_unit *unit,
                           const hpi_param *param); /* sum dtype; NULL when frozen */
/* Has a gradient: trainable, not ignored, not another name of a parameter. */
static inline bool hpi_param_is_trainable(const hpi_param *p) {
    return p->bucket >= 0;
}
/* Held in shards and saved: not ignored, not an alias. */
static inline bool hpi_param_is_owned(const hpi_param *p) {
    return !p->is_ignored && p->alias_of < 0;
}

/* Run `apply` once per unit as operations on the compute stream. HPI_APPLY_UPDATE writes shards
 * (masters and casts): it waits until no peer reads them. HPI_APPLY_SCALE writes gradient shards.
 * `apply` must refresh the cast copy of what it changes (hpi_param_refresh_cast). */
enum { HPI_APPLY_UPDATE = 0, HPI_APPLY_SCALE = 1 };
hp_status hpi_fsdp_apply(hp_fsdp *fsdp, int what, hpi_apply apply, void *context);
hp_status hpi_param_refresh_cast(const hp_unit *unit, const hpi_param *param);
/* update.c: for a caller who writes shards untold. After a pass: until no peer reads them any more.
 * Before one: what they are now is what the pass has. */
hp_status hpi_fsdp_open_shards(hp_fsdp *fsdp);
hp_status hpi_fsdp_take_writes(hp_fsdp *fsdp);
/* config.c: what hp_fsdp_create is given. */
hp_status hpi_config_check(const hp_mesh *mesh, const hp_fsdp_config *config);
/* In place of HP_AUTO: by the number of parameters that are gathered, and of their bytes. */
hp_mode hpi_mode_choose(int n_shards, bool is_on_node, uint64_t n_params, uint64_t n_bytes);
/* config.mode is no longer HP_AUTO, but the same on all ranks. Collective. */
hp_status hpi_fsdp_choose_mode(hp_fsdp *fsdp);
/* buffers.c: lay everything out, take symmetric memory for it and bind it. Collective. */
hp_status hpi_fsdp_take_memory(hp_fsdp *fsdp);
/* bound.c: hp_fsdp_stats.bound_bytes */
uint64_t hpi_fsdp_bound(const hp_fsdp *fsdp);
/* The unit's accumulator, or its partial sums, are there from now on. */
hp_status hpi_unit_take_accumulator(hp_unit *unit);
hp_status hpi_unit_take_partial(hp_unit *unit);
/* commit.c: executor and recorder, for groups that are bound. */
hp_status hpi_fsdp_make_executor(hp_fsdp *fsdp);
void hpi_fsdp_drop_executor(hp_fsdp *fsdp);
void hpi_fsdp_bind_groups(hp_fsdp *fsdp);
/* kinds.c: the operations that are not collectives. */
void hpi_fsdp_register_kinds(hp_kind *out_kinds);
/* virtual.c: a mesh of ranks that do not exist. Nobody is told anything, nothing has memory:
 * `world`, the groups and the bound buffers are NULL. */
static inline bool hpi_fsdp_is_virtual(const hp_fsdp *fsdp) {
    return !fsdp->world;
}
/* Kinds that do nothing but begin and end a unit's phases. */
void hpi_fsdp_virtualize_kinds(hp_kind *kinds);
/* UNSUPPORTED, for calls that need values. */
hp_status hpi_fsdp_check_real(const hp_fsdp *fsdp, const char *call);

/* unit.c: a managed parameter by number, aliases resolved; NULL with the record when there is none.
 */
const hpi_param *hpi_unit_param(const hp_unit *unit, int param);
void hpi_units_free(hp_fsdp *fsdp);
/* One parameter under two names, which say different things about it. */
hp_status hpi_fail_tie(const char *owner, int owner_dim, bool owner_is_frozen, const char *name,
                       int dim, bool is_frozen);

/* replay.c: a pass's operations, call by call, so that the next one needs no planning. What is
 * applied between two passes is always planned: a step may clip or load where another did not. */
typedef enum hpi_hook {
    HPI_HOOK_FORWARD_BEGIN = 0,
    HPI_HOOK_FORWARD_END,
    HPI_HOOK_BACKWARD_BEGIN,
    HPI_HOOK_BACKWARD_END,
    HPI_HOOK_RECOMPUTE_BEGIN,
    HPI_HOOK_RECOMPUTE_END,
    HPI_HOOK_UNSHARD,
    HPI_HOOK_HOLD, /* the same, and wait for it */
    HPI_HOOK_RESHARD,
    HPI_HOOK_END,
    HPI_HOOK_UPDATE_BEGIN, /* until nobody reads weights any more: before HPI_HOOK_UPDATE, for a
                            * caller who writes them himself */
    HPI_HOOK_UPDATE,
    HPI_HOOK_SCALE
} hpi_hook;
hp_status hpi_replay_create(hpi_replay **out_replay);
void hpi_replay_destroy(hpi_replay *replay);
/* After a planned HP_SYNC pass: keep its operations, the first of the recorder's, and be active. */
hp_status hpi_replay_keep(hpi_replay *replay, const hp_executor *recorder);
/* At the start of a HP_SYNC pass: start over. carried: hpi_plan_carried, which must be as it was.
 * Errors: STATE. */
hp_status hpi_replay_begin(hpi_replay *replay, uint64_t carried);
bool hpi_replay_is_active(const hpi_replay *replay);
/* Plan anew: what is noted belongs to a pass that was left. */
void hpi_replay_forget(hpi_replay *replay);
/* Of the pass, while active. */
uint64_t hpi_replay_n_ops(const hpi_replay *replay);
/* Room for a note, taken before the plan has gone on: what it says then is submitted. */
hp_status hpi_replay_reserve(hpi_replay *replay);
/* Note what a hook brought. */
void hpi_replay_note(hpi_replay *replay, hpi_hook hook, uint32_t unit, uint64_t n_ops);
/* The operations of the next hook. Errors: STATE when the step differs from the recorded one. */
hp_status hpi_replay_next(hpi_replay *replay, hpi_hook hook, uint32_t unit, hpi_burst *out_burst);

/* Are the parameters freed after forward? */
static inline bool hpi_unit_is_resharded(const hp_unit *unit) {
    const int own = unit->config.reshard_after_forward;
    return own < 0 ? unit->fsdp->config.reshard_after_forward != 0 : own != 0;
}

/* What a unit's sums are divided by, before the user's factor. */
static inline double hpi_unit_parts(const hp_unit *unit) {
    const hp_fsdp *fsdp = unit->fsdp;
    return unit->config.reduce == HP_AVG ? (double)fsdp->n_shards * fsdp->n_replicas : 1.0;
}

/* HP_OK when the fsdp is committed and sound. */
hp_status hpi_fsdp_check_usable(const hp_fsdp *fsdp, const char *call);
/* engine.c: the operations of one call, from plan or replay to the executor. After a failure every
 * wait in the fsdp's groups ends, here and on the peers. `unit`: UINT32_MAX for none. */
hp_status hpi_fsdp_run_hook(hp_fsdp *fsdp, hpi_hook hook, uint32_t unit);
/* What a failure of the executor entails; returns it. */
hp_status hpi_fsdp_note_failure(hp_fsdp *fsdp, hp_status status);
/* Leave the pass for a fault of this rank, which this thread's record tells: the peers get FAILED
 * with it. Returns the record's status. */
hp_status hpi_fsdp_abandon(hp_fsdp *fsdp);
const char *hpi_phase_name(hpi_phase phase);
/* A unit's call is in order when it is in a pass, in the phase that the call expects. */
hp_status hpi_unit_check(const hp_unit *unit, const char *call, hpi_phase expected);
/* The user's compute is what lies between two hooks: after the begin's operations have run, before
 * the end's are submitted. */
hp_status hpi_unit_begin_compute(hp_unit *unit, hpi_hook hook);
hp_status hpi_unit_end_compute(hp_unit *unit, hpi_hook hook, const char *name);
/* passes.c: as between two passes, nothing accumulated. */
void hpi_unit_forget(hp_unit *unit);
/* STATE, and the pass abandoned, when a trainable parameter had no gradient where one is asked for.
 */
hp_status hpi_unit_check_gradients(hp_unit *unit, const char *call);
/* What spans of the trace are numbered by, as the executor does: passes from 0, evaluations too. */
static inline uint32_t hpi_fsdp_step(const hp_fsdp *fsdp) {
    return fsdp->n_passes ? fsdp->n_passes - 1 : 0;
}
#endif

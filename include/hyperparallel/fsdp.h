/* SPDX-License-Identifier: Apache-2.0
 *
 * fsdp.h - fully sharded training: units, the step, optimizers, clipping, checkpoints.
 *
 * A unit is a set of parameters gathered and reduced together, usually one layer. Parameters and
 * optimizer state live in shards; a unit's full parameters exist only around its compute, gathered
 * ahead while the unit before it computes. Gradients are reduce-scattered over the shard dimension
 * and all-reduced over the replicate dimension behind the rest of backward.
 *
 *     forward:  hp_forward_begin(u);  compute, reading hp_param_data;   hp_forward_end(u);
 *     backward: hp_backward_begin(u); compute, writing hp_param_grad;   hp_backward_end(u);
 *
 * Calls are collective over the mesh: every rank makes the same ones in the same order, from one
 * thread. docs/architecture.md follows one gradient through it.
 *
 * Errors that any call may return and that are not repeated below: ARGUMENT; STATE, before commit
 * or in the wrong place of a pass; FAILED, after an operation has failed, until hp_fsdp_reset;
 * where ranks wait for each other PEER and TIMEOUT, naming the rank; MEMORY. UNSUPPORTED, of an
 * fsdp in virtual time, for what needs values.
 */
#ifndef HYPERPARALLEL_FSDP_H
#define HYPERPARALLEL_FSDP_H

#include <hyperparallel/base.h>
#include <hyperparallel/stream.h>
#include <hyperparallel/trace.h>
#include <hyperparallel/world.h>

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

typedef struct hp_fsdp hp_fsdp;
typedef struct hp_unit hp_unit;
typedef struct hp_optimizer hp_optimizer;

/* How a unit's parameters reach the ranks, and its gradients leave them. The values that a training
 * computes are the same bits in every mode. */
typedef enum hp_mode {
    /* Each parameter gathered into its own storage, each gradient reduced from it: no copies. */
    HP_PER_PARAM = 0,
    /* One gather and one reduction for a unit, through packed buffers: few, large collectives.
     * Shards are cast and packed into a pack buffer and copied from there into this rank's slice of
     * the gather's output, which is released as soon as it has been copied out. */
    HP_FUSED = 1,
    /* The same, packed straight into that slice. */
    HP_FUSED_ZERO_COPY = 2,
    /* Nothing is gathered: a unit's parameters lie in memory that the shard group shares, and are
     * read where they are; one copy of the model for the ranks of a node. Gradients are reduced
     * from where backward writes them, one reduction for a unit. A shard is a range of the unit's
     * elements, whatever shard_dim says. Needs a shard group within one node (UNSUPPORTED). */
    HP_MAPPED = 3,
    /* One of these, chosen by size at commit; hp_fsdp_mode tells which. */
    HP_AUTO = 4
} hp_mode;
/* "per-param", "fused", "fused-zero-copy", "mapped", "auto". Errors: ARGUMENT listing the names. */
HP_MUST_CHECK hp_status hp_mode_parse(const char *name, hp_mode *out_mode);
const char *hp_mode_name(hp_mode mode);

typedef enum hp_schedule {
    HP_OVERLAP = 0, /* "full": communication behind compute */
    HP_SERIAL = 1,  /* "serial": no prefetch, every wait at once: the yardstick */
    HP_PREFETCH = 2 /* "prefetch": gathers ahead of compute, reductions waited for at once */
} hp_schedule;
/* "serial", "prefetch", "full"; "overlap" is another name of the last. Errors: ARGUMENT. */
HP_MUST_CHECK hp_status hp_schedule_parse(const char *name, hp_schedule *out_schedule);
const char *hp_schedule_name(hp_schedule schedule);

/* What a trainable parameter is whose gradient was not asked for in a HP_SYNC pass. */
typedef enum hp_missing_grad {
    HP_MISSING_ZERO = 0, /* zero */
    HP_MISSING_ERROR = 1 /* an error: STATE on this rank, naming it; PEER or FAILED on the others */
} hp_missing_grad;

typedef struct hp_fsdp_config {
    size_t size; /* sizeof(hp_fsdp_config) */
    hp_mode mode;
    int prefetch;              /* units gathered ahead, 0 to 16 */
    int reshard_after_forward; /* of the units: 1 frees after forward, 0 keeps until backward */
    hp_schedule schedule;
    hp_executor_type executor;
    hp_trace *trace;   /* NULL: none; must outlive the fsdp */
    int record;        /* 1: keep each step's operations (hp_fsdp_recorded) */
    int replay_after;  /* n > 0, with record: from step n on the last pass is repeated unplanned */
    const char *delay; /* rule of HYPER_PARALLEL_DELAY; NULL: the option's */
    /* Precision, of parameters declared fp32 or bf16; HP_OWN_DTYPE leaves each as it was declared.
     * Shards, optimizer state and sums stay fp32. */
    int param_dtype;  /* of hp_param_data: what is gathered and computed with; fp32, bf16, fp16 */
    int reduce_dtype; /* of hp_param_grad: what is reduced; HP_OWN_DTYPE: as hp_param_data */
    /* Of the all-reduce between replicas on the wire: fp32 (or HP_OWN_DTYPE), bf16, fp16. The sums
     * stay fp32, but bits then differ between meshes. */
    int replicate_wire;
    hp_missing_grad missing_grad;
    /* 1: keep shards and optimizer state in host memory. On CPU ranks they are there already: it is
     * accepted and logged (INFO), and changes nothing. */
    int offload;
    /* Overwrite every released buffer with NaNs: 1 always, 0 never, -1: in a debug build of the
     * library (not optimised), or with HYPER_PARALLEL_POISON=1. */
    int poison;
    /* Of HP_EXECUTOR_VIRTUAL, which a mesh of hp_mesh_create_virtual needs, and which needs one: no
     * rank is spoken to, no memory of parameters is taken, hp_param_data is NULL. */
    const hp_cost_model *costs;
    /* 1: between any two passes the caller may write hp_shard.values, each rank its own, and tells
     * nobody (another library's optimizer, which he cannot watch). Every hp_fsdp_end then returns
     * when no peer reads them any more (HP_MAPPED: ranks meet in each), and every hp_fsdp_begin
     * takes them as they are. What was accumulated stays. Alike on all ranks. */
    int caller_writes;
} hp_fsdp_config;
enum { HP_OWN_DTYPE = -1 };
#define HP_FSDP_CONFIG_INIT                                                                        \
    {                                                                                              \
        sizeof(hp_fsdp_config), HP_PER_PARAM, 1, 1, HP_OVERLAP, HP_EXECUTOR_THREAD, 0, 0, 0, 0,    \
            -1, -1, -1, HP_MISSING_ZERO, 0, -1, 0, 0                                               \
    }

enum { HP_MAX_DIMS = 8, HP_REPLICATED = -1 };

/* One parameter. Its shard is rows [begin, end) along shard_dim: ceil-chunks, so 10 rows over 4
 * ranks are 3, 3, 3, 1 and a rank may own none. A dimension other than 0 must divide evenly. */
typedef struct hp_param {
    size_t size;      /* sizeof(hp_param) */
    const char *name; /* unique in the fsdp; the name in checkpoints */
    int n_dims;       /* 0 (a scalar) to HP_MAX_DIMS */
    int64_t shape[HP_MAX_DIMS];
    hp_dtype dtype; /* of the first values: fp32, fp64, bf16; any when frozen. Also of data and
                     * gradient, unless hp_fsdp_config says otherwise */
    int shard_dim;  /* or HP_REPLICATED: every rank of the shard group holds all of it */
    int is_frozen;  /* gathered, no gradient */
    int is_ignored; /* left to the caller: neither gathered nor reduced nor saved */
    /* First values: the whole row-major parameter, equal on all ranks, read during hp_fsdp_commit;
     * or a function that writes elements [begin, end) of it; or neither: zeros. Two parameters with
     * the same `data` are one parameter (tied): inside a unit the second is another name of the
     * first; across units commit refuses it, naming both, and where they differ as below. */
    const void *data;
    void (*fill)(void *context, uint64_t begin, uint64_t end, void *out_elements);
    void *fill_context;
    /* Another name of the parameter of this name, declared earlier in the unit with the same shape,
     * dtype, shard_dim and is_frozen (tied); first values are that one's. NULL: a parameter of its
     * own. */
    const char *tied_to;
} hp_param;
#define HP_PARAM_INIT                                                                              \
    { sizeof(hp_param), 0, 0, {0}, HP_FP32, 0, 0, 0, 0, 0, 0, 0 }

typedef struct hp_unit_config {
    size_t size;               /* sizeof(hp_unit_config) */
    int reshard_after_forward; /* -1: as hp_fsdp_config says */
    hp_reduce reduce; /* HP_AVG divides the sum once by both sizes; HP_SUM does not divide */
    double factor;    /* gradients are multiplied by it once; 1 */
    /* What to gather ahead of this unit's forward; NULL: the order learnt in the first step. */
    hp_unit *const *prefetch;
    int n_prefetch;
} hp_unit_config;
#define HP_UNIT_CONFIG_INIT                                                                        \
    { sizeof(hp_unit_config), -1, HP_AVG, 1.0, 0, 0 }

/* A mesh of one dimension is FSDP, of two HSDP (replicate, shard). config NULL: defaults.
 * Collective, but for a virtual mesh. Owns: the caller, who destroys it before the mesh. Errors:
 * ARGUMENT, UNSUPPORTED (a dtype of the precision policy), VERSION (config.size). */
HP_MUST_CHECK hp_status hp_fsdp_create(hp_mesh *mesh, const hp_fsdp_config *config,
                                       hp_fsdp **out_fsdp);
/* Local: waits for nobody, so a rank that failed can leave. After a failure, or inside a pass, its
 * symmetric memory is given back with the world. In a child made by fork it does nothing. Takes
 * NULL. */
void hp_fsdp_destroy(hp_fsdp *fsdp);

/* Declare a unit, before commit, in the order of the forward. Copies names and shapes, not values.
 * Errors: ARGUMENT (names, shapes, dtypes), STATE after commit. Owns: the fsdp. */
HP_MUST_CHECK hp_status hp_unit_create(hp_fsdp *fsdp, const char *name, const hp_param *params,
                                       int n_params, const hp_unit_config *config,
                                       hp_unit **out_unit);
int hp_unit_n_params(const hp_unit *unit);
const char *hp_unit_name(const hp_unit *unit);
/* Unit i in the order of declaration; NULL when there are not so many. */
hp_unit *hp_fsdp_unit(const hp_fsdp *fsdp, int i);

/* Layouts agreed between the ranks, ties checked, all memory taken, shards filled. Collective.
 * Errors: MISMATCH naming ranks, units and parameters; LIMIT; ARGUMENT for ties across units. */
HP_MUST_CHECK hp_status hp_fsdp_commit(hp_fsdp *fsdp);

/* What a pass is for. */
typedef enum hp_pass {
    HP_SYNC = 0,     /* forward and backward, gradients reduced at the end */
    HP_EVALUATE = 1, /* forward alone; leaves accumulated gradients as they are */
    HP_NO_SYNC = 2,  /* forward and backward without communication of gradients: this rank's full
                      * gradients are added up in fp32 and join those of the next HP_SYNC pass */
    HP_DEFER_REPLICATE = 3 /* gradients are reduced over the shard group alone; these partial sums
                            * are added up in fp32, in the shards, and join the one all-reduce of
                            * the next HP_SYNC pass. HP_NO_SYNC passes before it are taken in. */
} hp_pass;
/* The sum of K passes is a sum: HP_AVG divides by the ranks and never by passes, so whoever wants a
 * mean over microbatches scales the loss. New weights (an optimizer's step, a load) drop what was
 * accumulated. Ranks that are in different passes, or come to one after other numbers of HP_NO_SYNC
 * passes, get MISMATCH, saying so, from the first call in which they meet.
 * A pass holds at most 65,536 operations, some ten for each call around a unit. Errors: LIMIT and
 * MEMORY, where there is no room for partial sums: nothing has changed then; STATE, where a pass
 * that is replayed (replay_after) has other gradients accumulated than the recorded one. */
HP_MUST_CHECK hp_status hp_fsdp_begin(hp_fsdp *fsdp, hp_pass pass);
/* Units without a gradient count as zero, the last reductions are waited for and divided, gathers
 * that nobody used are cancelled, every queue is empty: gradients are in the shards. Errors: STATE
 * while a unit computes; MISMATCH. */
HP_MUST_CHECK hp_status hp_fsdp_end(hp_fsdp *fsdp);

/* What this unit does in the passes that follow, whatever hp_fsdp_begin says: HP_SYNC, HP_NO_SYNC,
 * HP_DEFER_REPLICATE, or -1: as the pass. HP_EVALUATE passes are not changed. Between passes, equal
 * on all ranks (MISMATCH in the next pass otherwise). Errors: ARGUMENT, STATE. */
HP_MUST_CHECK hp_status hp_unit_set_pass(hp_unit *unit, int pass);

/* After an error that was not a rank's death, or to leave a pass in its middle: what is in flight
 * is cancelled, gradients and accumulated gradients are dropped, and the next call is
 * hp_fsdp_begin. Weights and optimizer state are those of the last update. Collective: ranks that
 * are still in the pass, or in another call of all ranks on this fsdp, get FAILED from the call in
 * which they wait or their next one of a pass, naming a rank that reset, and then reset too. A rank
 * that has not finished the pass before can finish it, and update, first. A rank that waits in a
 * collective of its own, such as hp_barrier on the world's group, is not told: both wait as long as
 * for any rank, until TIMEOUT. Errors: PEER; TIMEOUT when a rank does not come; MISMATCH when ranks
 * have updated the weights differently often; FAILED when weights are half new; MEMORY, on all
 * ranks, of one: the fsdp stays failed until they reset once more; STATE before commit. */
HP_MUST_CHECK hp_status hp_fsdp_reset(hp_fsdp *fsdp);

/* Gather a unit by hand, inside a pass, ahead of its use or to read it without a forward: its
 * parameters can be read (hp_param_data) from the first hp_unit_unshard with wait != 0, or the
 * first forward or backward begin, until hp_unit_reshard or the end of the pass, and it is not
 * resharded meanwhile. With wait 0 the call does not wait for the gather. HP_MAPPED: it can be read
 * until the end of its last backward at most, when its gradients are reduced. Errors: STATE when
 * its storage cannot be had (1 + prefetch units at once), the unit computes, or, HP_MAPPED, it has
 * been reduced. */
HP_MUST_CHECK hp_status hp_unit_unshard(hp_unit *unit, int wait);
HP_MUST_CHECK hp_status hp_unit_reshard(hp_unit *unit);

/* Around a forward that is computed again for the backward to come (activation checkpointing), when
 * that happens before hp_backward_begin: no use of the unit, asks for no backward of its own, and
 * keeps the parameters for the backward. Several units may be recomputed before the backward of the
 * last. Errors: STATE in a HP_EVALUATE pass, or before the unit's forward. */
HP_MUST_CHECK hp_status hp_recompute_begin(hp_unit *unit);
HP_MUST_CHECK hp_status hp_recompute_end(hp_unit *unit);

/* Around the compute of a unit. A unit may be used several times in a pass (an embedding whose
 * table is also the head): as many backwards as forwards then, each writing a full gradient, and
 * all its forwards before the last of its backwards; the gradients are added up in fp32 and reduced
 * after the last, or at the end of the pass when there are fewer. Whoever computes a forward again
 * for the backward does it between hp_backward_begin and hp_backward_end, where the parameters can
 * be read, or in hp_recompute_begin and hp_recompute_end: another hp_forward_begin would be another
 * use, that asks for a backward of its own.
 * The sums are 4 bytes (8 for fp64) for each element of the full unit, ordinary memory of this
 * rank: taken once, in the first backward that is not a unit's last of a HP_SYNC pass, when the
 * node has room for those of all its ranks. Errors: STATE when the order is impossible, naming the
 * unit; MISMATCH, PEER, TIMEOUT; of a backward begin LIMIT, with the machine's numbers, and MEMORY
 * when there is no room for the sums: nothing has changed then. */
HP_MUST_CHECK hp_status hp_forward_begin(hp_unit *unit);
HP_MUST_CHECK hp_status hp_forward_end(hp_unit *unit);
HP_MUST_CHECK hp_status hp_backward_begin(hp_unit *unit);
HP_MUST_CHECK hp_status hp_backward_end(hp_unit *unit);

/* The full parameter, row-major, 64-byte aligned, to be read between begin and end. NULL (with the
 * error record) outside, or for a parameter that is ignored or does not exist. A parameter without
 * elements gives a non-NULL pointer. */
const void *hp_param_data(const hp_unit *unit, int param);
/* Where to write the full gradient between backward begin and end; same shape, in the dtype that
 * hp_param_dtypes gives. Every element must be written (contents are not zero), rounded once from
 * fp32 (hp_convert). A trainable parameter whose gradient was not asked for counts as zero. NULL
 * for frozen and ignored parameters. */
void *hp_param_grad(hp_unit *unit, int param);

/* What hp_param_data and hp_param_grad point to, by the declaration and the precision policy; of a
 * frozen parameter *out_grad is what it would be. Errors: ARGUMENT; STATE when it is ignored. */
HP_MUST_CHECK hp_status hp_param_dtypes(const hp_unit *unit, int param, hp_dtype *out_data,
                                        hp_dtype *out_grad);

/* This rank's shard: rows [begin, end) along shard_dim, in the order of memory, or, HP_MAPPED,
 * elements [begin, end) of the row-major parameter; fp32 (fp64 for fp64, the parameter's own dtype
 * when frozen). Values may be read between steps. The gradient shard is valid from hp_fsdp_end to
 * the next hp_fsdp_begin; NULL for frozen parameters. In virtual time both are NULL. Errors:
 * ARGUMENT; STATE when it is ignored, or before commit. */
typedef struct hp_shard {
    int64_t begin, end;  /* rows along shard_dim (the flat scalar counts as one row), elements */
    uint64_t n_elements; /* of this shard */
    hp_dtype dtype;
    const void *values; /* may be written between hp_fsdp_update_begin and end; caller_writes */
    const void *grad;
} hp_shard;
HP_MUST_CHECK hp_status hp_param_shard(const hp_unit *unit, int param, hp_shard *out_shard);

/* ---- optimizers and clipping ---- */

/* Around an update of the caller's own (another library's optimizer, a load): between the two he
 * writes what he likes of hp_shard.values, each rank its own shards; padding is not his. From begin
 * on no peer reads what is written; with end all that follows has the new weights, and what was
 * accumulated is dropped. Between passes; no other call on the fsdp between the two (STATE), but
 * hp_fsdp_destroy. Collective; ranks meet in begin at most where mapped parameters are still read.
 */
HP_MUST_CHECK hp_status hp_fsdp_update_begin(hp_fsdp *fsdp);
HP_MUST_CHECK hp_status hp_fsdp_update_end(hp_fsdp *fsdp);

typedef struct hp_optimizer_config {
    size_t size;         /* sizeof(hp_optimizer_config) */
    double weight_decay; /* adamw: decoupled, default 0.01; sgd: added to the gradient, default 0 */
    double momentum;     /* sgd; 0 */
    double beta1, beta2, eps; /* adamw; 0.9, 0.999, 1e-8 */
} hp_optimizer_config;
/* weight_decay < 0 takes the optimizer's own default. */
#define HP_OPTIMIZER_CONFIG_INIT                                                                   \
    { sizeof(hp_optimizer_config), -1.0, 0.0, 0.9, 0.999, 1e-8 }

/* "adamw" or "sgd", as torch.optim defines them. State is fp32 (fp64 for fp64), in shards.
 * Owns: the caller, who destroys it before the fsdp. Collective. Errors: MISMATCH when ranks have
 * different ones. Source: Loshchilov and Hutter 2019, alg. 2. */
HP_MUST_CHECK hp_status hp_optimizer_create(hp_fsdp *fsdp, const char *name,
                                            const hp_optimizer_config *config,
                                            hp_optimizer **out_optimizer);
void hp_optimizer_destroy(hp_optimizer *optimizer);
/* Update every trainable shard in place from its gradient shard; a unit whose own pass was not
 * HP_SYNC (hp_unit_set_pass) has none and is left as it is. Between hp_fsdp_end and hp_fsdp_begin,
 * once per end (STATE otherwise). Ranks meet in it at most where mapped parameters are still read.
 */
HP_MUST_CHECK hp_status hp_optimizer_step(hp_optimizer *optimizer, double learning_rate);

/* The exact global norm of all gradients (p = 1, 2 or INFINITY), the same bits for every mesh, and
 * a scaling of all gradients by min(1, max_norm / (norm + 1e-6)). Replicas are not counted twice. A
 * gradient that is not finite gives such a norm, and nothing is scaled. Collective. */
HP_MUST_CHECK hp_status hp_clip_grad_norm(hp_fsdp *fsdp, double max_norm, double p,
                                          double *out_norm);

/* ---- checkpoints ---- */

/* Write shards, optimizer state (optimizer may be NULL) and `step` as sharded safetensors under
 * directory/step-N, written beside and renamed; then point directory/latest at it and remove
 * checkpoints older than the last two. A kill or a full disk at any moment leaves the old one
 * loadable. Collective. Errors: FILE on every rank, naming the rank and path. */
HP_MUST_CHECK hp_status hp_checkpoint_save(hp_fsdp *fsdp, hp_optimizer *optimizer,
                                           const char *directory, uint64_t step);
/* Load the newest checkpoint, written by any mesh and number of ranks. Nothing changes unless
 * everything was read and checked. Collective. Errors: FILE, FORMAT naming file and tensor. */
HP_MUST_CHECK hp_status hp_checkpoint_load(hp_fsdp *fsdp, hp_optimizer *optimizer,
                                           const char *directory, uint64_t *out_step);

/* ---- weights of other programs (Hugging Face) ---- */

/* Load the weights by their names from a safetensors file, or from a directory that holds
 * model.safetensors, or model.safetensors.index.json with its files. Each rank reads its own
 * intervals alone, through a small block. F32, BF16, F16 and F64 become the shard's dtype, other
 * dtypes must be a frozen parameter's own. The name of an alias (with its owner's values) or of an
 * ignored parameter may be there or not; all else must match: nothing changes unless everything was
 * checked. The optimizer's state is left as it is, gradients are no more. A file that is cut, or a
 * disk that fails, while weights are read leaves them half new: the fsdp has failed then.
 * Collective. Errors: FILE, FORMAT naming file and tensor (missing, unexpected, of another shape,
 * of a dtype that has no meaning, truncated, overlapping); ARGUMENT, STATE (inside a pass), MEMORY;
 * MISMATCH when the ranks are not in the same call. */
HP_MUST_CHECK hp_status hp_weights_load(hp_fsdp *fsdp, const char *path);

typedef struct hp_weights_config {
    size_t size;             /* sizeof(hp_weights_config) */
    hp_dtype dtype;          /* of floating tensors in the file: fp32, bf16 or fp16, rounded once */
    uint64_t max_file_bytes; /* of tensors in one file; more make several, with an index */
    /* Files that belong beside them (config.json), written in the same stroke: name, whole text. */
    const char *const *file_names, *const *file_texts;
    int n_files;
} hp_weights_config;
#define HP_WEIGHTS_CONFIG_INIT                                                                     \
    { sizeof(hp_weights_config), HP_FP32, UINT64_C(5000000000), 0, 0, 0 }

/* Write the whole weights as `directory`: model.safetensors, or several files and
 * model.safetensors.index.json. config NULL: defaults. The ranks of one replica write in pieces; no
 * rank holds more than a few. An alias is not written. The directory is written beside and
 * exchanged for the one that was there, whose other files (a tokenizer's) are kept: a kill at any
 * moment leaves the old or the new. Directories in it are moved over after that.
 * Collective. Errors: FILE on every rank, naming the rank and path; ARGUMENT, STATE (inside a
 * pass), MISMATCH (another configuration on other ranks), MEMORY. */
HP_MUST_CHECK hp_status hp_weights_save(hp_fsdp *fsdp, const char *directory,
                                        const hp_weights_config *config);

/* ---- looking inside ---- */

typedef struct hp_fsdp_stats {
    uint64_t n_steps;
    /* Compute stood still, since creation. */
    uint64_t exposed_unshard_ns, exposed_reduce_ns, exposed_replicate_ns;
    /* Of this rank, taken at commit; grad_bytes grows by a unit's sums of full gradients when they
     * are first needed, once for each unit. */
    uint64_t shard_bytes, gather_bytes, grad_bytes, bucket_bytes, optimizer_bytes;
    uint64_t gathered_units; /* resident or on the way, now */
    uint64_t pack_bytes;     /* packed and transient buffers of the fused modes */
    uint64_t shared_bytes;   /* HP_MAPPED: this rank's part of what the shard group shares */
    /* What all of these may be together by the rule of docs/memory.md, from the parameters' sizes
     * alone; sums of HP_NO_SYNC and HP_DEFER_REPLICATE passes apart. */
    uint64_t bound_bytes;
} hp_fsdp_stats;
HP_MUST_CHECK hp_status hp_fsdp_stats_get(const hp_fsdp *fsdp, hp_fsdp_stats *out_stats);
/* The mode, after commit never HP_AUTO. */
hp_mode hp_fsdp_mode(const hp_fsdp *fsdp);
/* The operations of the last step (config.record), valid until the next begin, and the kind table
 * that names them (hp_op_print). Local. Errors: STATE without config.record. */
HP_MUST_CHECK hp_status hp_fsdp_recorded(const hp_fsdp *fsdp, const hp_op **out_ops,
                                         uint64_t *out_n, const hp_kind **out_kinds,
                                         uint32_t *out_n_kinds);

/* Verify (hp_verify) the lists of all ranks: HP_VERIFY_PLAN, three steps as they will be planned
 * (every unit's forward in the order of declaration, the backwards the other way, then an update),
 * before the first pass; HP_VERIFY_RECORDED, the last two passes with what was applied between and
 * after them (config.record). Every rank gets rank 0's verdict. Collective, between passes; of a
 * virtual fsdp it is local, about all ranks of its mesh, and HP_VERIFY_PLAN alone. Errors: UNSOUND;
 * STATE (inside a pass, nothing recorded); MEMORY; MISMATCH. */
typedef enum hp_verify_what { HP_VERIFY_PLAN = 0, HP_VERIFY_RECORDED = 1 } hp_verify_what;
HP_MUST_CHECK hp_status hp_fsdp_verify(hp_fsdp *fsdp, hp_verify_what what, hp_verdict *out_verdict);

/* As hp_simulate needs it: the planned job of all ranks of the mesh, three steps as HP_VERIFY_PLAN
 * has them. Owns: the caller, who gives it back before the fsdp, whose kinds and names it points
 * to. Local. */
HP_MUST_CHECK hp_status hp_fsdp_job_create(hp_fsdp *fsdp, hp_job *out_job);
void hp_fsdp_job_destroy(hp_job *job);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif

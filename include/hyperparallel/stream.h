/* SPDX-License-Identifier: Apache-2.0
 *
 * stream.h - streams of calls; operations as data and their executors.
 *
 * hp_stream, first below, is what a program puts calls on: an ordered queue with a thread of its
 * own. The rest is for training schedules.
 *
 * An operation is a struct without a pointer: it can be copied, hashed, printed, replayed and
 * verified. Streams are in order. An operation starts when the one before it on its stream is done
 * and every event in `waits` has happened. Each operation has two events: `done` (its outputs are
 * valid) and `drained` (no peer reads its inputs any more).
 *
 * What an operation means is a row of a kind table, {name, run, drain}, that other rooms supply.
 */
#ifndef HYPERPARALLEL_STREAM_H
#define HYPERPARALLEL_STREAM_H

#include <hyperparallel/base.h>
#include <hyperparallel/trace.h>

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* ---- streams of calls ---------------------------------------------------------------------- */

/* Calls put on a stream run one after the other in its thread, while the caller goes on. What they
 * read and write is left alone until they have run: record a mark behind them and synchronize with
 * it. The first call that fails stops its stream: those behind it are not run, and it is returned,
 * with its record, by everything that is asked of the stream from then on, and to whoever waits for
 * one of its marks that was not reached before. A mark names calls that are already there, so
 * streams cannot wait for each other in a circle. The groups, memory and worlds that calls name are
 * kept as well until these have run: synchronize first, then destroy or free them. In a child made
 * by fork every call is FORKED. Threads: any. */
typedef struct hp_stream hp_stream;

typedef struct hp_stream_config {
    size_t size;           /* sizeof(hp_stream_config) */
    const char *name;      /* of the thread and in traces; copied; NULL: "stream" */
    hp_trace *trace;       /* record the calls on `trace_stream` of it; NULL: nowhere */
    unsigned trace_stream; /* 0 to HP_TRACE_STREAMS - 1, of this stream alone */
} hp_stream_config;
#define HP_STREAM_CONFIG_INIT                                                                      \
    { sizeof(hp_stream_config), 0, 0, 0 }

/* A place in a stream: behind all calls that were on it when it was recorded. A value: nothing to
 * destroy; good until its stream is destroyed. */
typedef struct hp_mark {
    hp_stream *stream;
    uint64_t number;
} hp_mark;

/* config NULL: all defaults. Owns: the caller. Errors: ARGUMENT, MEMORY, SYSTEM. */
HP_MUST_CHECK hp_status hp_stream_create(const hp_stream_config *config, hp_stream **out_stream);
/* Waits for what is on it, then ends its thread. Other streams may still have waits for its marks
 * on them. In a call on the stream itself it does not wait: the rest runs, then the thread ends.
 * In a child made by fork it does nothing. Takes NULL. */
void hp_stream_destroy(hp_stream *stream);
/* Put a function of your own on it. It may put calls on streams and wait for others, but not for
 * what comes after itself: nothing would end that wait. */
HP_MUST_CHECK hp_status hp_stream_call(hp_stream *stream, hp_status (*function)(void *argument),
                                       void *argument);
/* Call a function when everything that is on it now has run, or never will: in the stream's thread,
 * with HP_OK or the stream's failure, whose record is then that thread's. What comes after it on
 * the stream waits until it returns. Errors: as of hp_stream_call; then it is not called. */
HP_MUST_CHECK hp_status hp_stream_notify(hp_stream *stream,
                                         void (*function)(void *argument, hp_status status),
                                         void *argument);
HP_MUST_CHECK hp_status hp_stream_record(hp_stream *stream, hp_mark *out_mark);
/* What is put on `stream` from now on runs after `mark`, of any stream. Does not wait here. */
HP_MUST_CHECK hp_status hp_stream_wait(hp_stream *stream, hp_mark mark);
/* Wait here for everything that is on it. Errors: its failure, STATE in a call on the stream
 * itself. */
HP_MUST_CHECK hp_status hp_stream_synchronize(hp_stream *stream);
/* Wait here for a mark. / HP_OK when it is reached, HP_IN_PROGRESS when not yet. */
HP_MUST_CHECK hp_status hp_mark_synchronize(hp_mark mark);
HP_MUST_CHECK hp_status hp_mark_query(hp_mark mark);

/* ---- operations as data --------------------------------------------------------------------- */

/* The streams of a rank in a training schedule. The compute stream is the thread that calls submit.
 */
typedef enum hp_stream_id {
    HP_STREAM_COMPUTE = 0,
    HP_STREAM_UNSHARD = 1,
    HP_STREAM_REDUCE = 2,
    HP_STREAM_REPLICATE = 3,
    HP_N_STREAMS = 4
} hp_stream_id;
const char *hp_stream_id_name(unsigned stream);

/* An event of the current step: 2 * (id + 1) + {0 done, 1 drained}; 0 is none. */
typedef uint32_t hp_event;

/* A piece [begin, end), in bytes, of one life of a buffer. buffer 0 is none. A buffer's life rises
 * by one at each allocate; a buffer that is never allocated (shards, buckets) has life 0. */
typedef struct hp_ref {
    uint32_t buffer, life;
    uint64_t begin, end;
} hp_ref;

enum { HP_OP_WAITS = 4 };

typedef struct hp_op {
    uint16_t kind;      /* row of the executor's kind table */
    uint16_t stream;    /* hp_stream_id */
    uint32_t id;        /* position in the step, from 0 */
    uint32_t unit;      /* whose operation; UINT32_MAX: nobody's */
    uint32_t param;     /* of the unit; UINT32_MAX: the whole unit */
    uint32_t comm;      /* communicator of a collective; 0: none */
    uint32_t seq;       /* position on that communicator in the step, from 0 */
    uint8_t dtype;      /* of the elements read */
    uint8_t wire;       /* of the elements on the wire */
    uint8_t reduce;     /* hp_reduce */
    uint8_t peers_read; /* bit k: peers read reads[k] */
    uint32_t n_waits;
    hp_event waits[HP_OP_WAITS];
    hp_ref reads[2], writes[2];
    uint64_t bytes;  /* that one rank contributes, for cost and statistics */
    uint64_t blocks; /* a collective along an inner dimension runs over so many blocks; else 1 */
} hp_op;             /* 160 bytes, no padding */

/* All that whoever reads a list of operations must know of a kind: when what an operation names is
 * in use, and where lives begin and end. */
typedef enum hp_role {
    HP_ROLE_PLAIN = 0, /* while it runs; reads[k] that peers read, until it is drained */
    HP_ROLE_ALLOCATE,  /* writes[0] begins a life; nothing else is touched */
    HP_ROLE_RELEASE,   /* the life of reads[0] ends; nothing else is touched */
    HP_ROLE_BEGIN, /* until the HP_ROLE_END that closes it, the next one of its unit, on the same
                      stream; pairs nest */
    HP_ROLE_END
} hp_role;

/* What an operation of a kind does. `context` is the executor's. */
typedef struct hp_kind {
    const char *name;
    /* Returns when done. NULL: nothing to do but wait. */
    hp_status (*run)(void *context, const hp_op *op);
    /* May run in any waiting thread, and in two at once. NULL: drained when done. */
    hp_status (*drain)(void *context, const hp_op *op);
    hp_role role;
} hp_kind;

/* What operations of one kind on one communicator take: fixed_ns + bytes * ns_per_byte, alone; each
 * part at most 2^46 ns (19 hours). */
typedef struct hp_cost {
    uint64_t fixed_ns;
    double ns_per_byte; /* of hp_op.bytes */
    uint32_t link; /* those of a rank that run on one link at the same time share its rate; 0: a
                      link of its own */
} hp_cost;

/* How long things take in virtual time. What it points to must outlive its users. */
typedef struct hp_cost_model {
    size_t size;          /* sizeof(hp_cost_model) */
    const hp_cost *costs; /* [n_kinds][n_comms]; row kind, column op.comm, 0 for local operations */
    uint32_t n_kinds, n_comms;
    /* [n_kinds]; NULL, or [n_units]: added to the operations of a unit, such as a layer's compute
     * to its "forward_end". NULL: none. */
    const uint64_t *const *unit_ns;
    uint32_t n_units;
} hp_cost_model;
#define HP_COST_MODEL_INIT                                                                         \
    { sizeof(hp_cost_model), 0, 0, 0, 0, 0 }

typedef struct hp_executor hp_executor;
typedef enum hp_executor_type {
    HP_EXECUTOR_THREAD = 0, /* a thread per stream; the compute stream is the caller */
    HP_EXECUTOR_INLINE = 1, /* everything at once, in list order, in the caller */
    HP_EXECUTOR_VIRTUAL = 2 /* moves nothing and advances a virtual clock: every peer is taken to be
                               where this rank is. `run` is called, `drain` is not. */
} hp_executor_type;

typedef struct hp_executor_config {
    size_t size; /* sizeof(hp_executor_config) */
    hp_executor_type type;
    const hp_kind *kinds; /* must outlive the executor */
    uint32_t n_kinds;
    uint32_t max_ops;         /* operations of one step at most (submit refuses more); 0: 65536 */
    void *context;            /* handed to run and drain */
    hp_trace *trace;          /* NULL: none */
    const char *const *units; /* names for the trace, indexed by op.unit; may be NULL */
    uint32_t n_units;
    int rank;          /* for `delay` */
    const char *delay; /* a rule as option HYPER_PARALLEL_DELAY takes it; NULL or "": none */
    /* Called first in each stream thread, with `context`; NULL: nothing. */
    void (*thread_start)(void *context);
    const hp_cost_model *costs; /* of HP_EXECUTOR_VIRTUAL; NULL: nothing takes any time */
    uint32_t first_step;        /* its number in the trace */
} hp_executor_config;
#define HP_EXECUTOR_CONFIG_INIT                                                                    \
    { sizeof(hp_executor_config), HP_EXECUTOR_THREAD, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

typedef struct hp_executor_stats {
    uint64_t n_ops;                   /* run so far */
    uint64_t waited_ns[HP_N_STREAMS]; /* the compute stream stood still, by the stream waited for */
    uint64_t busy_ns[HP_N_STREAMS];   /* inside run */
} hp_executor_stats;

/* Owns: the caller. destroy drains what runs, and takes NULL. Errors: ARGUMENT, MEMORY. */
HP_MUST_CHECK hp_status hp_executor_create(const hp_executor_config *config,
                                           hp_executor **out_executor);

/* An executor that runs through `inner` and keeps the list. It takes `inner` over. */
HP_MUST_CHECK hp_status hp_recorder_create(hp_executor *inner, hp_executor **out_executor);
/* The operations since hp_executor_begin_step, and how many each submit brought (their sum is the
 * number of operations); valid until the next submit. Errors: ARGUMENT for others. */
HP_MUST_CHECK hp_status hp_recorder_ops(const hp_executor *recorder, const hp_op **out_ops,
                                        uint64_t *out_n);
HP_MUST_CHECK hp_status hp_recorder_bursts(const hp_executor *recorder, const uint64_t **out_counts,
                                           uint64_t *out_n);

/* Ids count from 0 again. Everything submitted before must be drained (STATE otherwise). */
HP_MUST_CHECK hp_status hp_executor_begin_step(hp_executor *executor);

/* Append operations whose ids continue the step's. Operations of the compute stream are run before
 * the call returns, the others whenever their turn comes. The first failure of any operation is
 * returned by this and every later call, with its record. Errors: ARGUMENT for a broken list. */
HP_MUST_CHECK hp_status hp_executor_submit(hp_executor *executor, const hp_op *ops, uint64_t n_ops);

/* Wait in the calling thread (as the compute stream) for an event. */
HP_MUST_CHECK hp_status hp_executor_wait(hp_executor *executor, hp_event event);

/* Wait until everything that was submitted is done and drained. */
HP_MUST_CHECK hp_status hp_executor_drain(hp_executor *executor);

uint64_t hp_executor_now_ns(const hp_executor *executor);
void hp_executor_stats_get(const hp_executor *executor, hp_executor_stats *out_stats);
void hp_executor_destroy(hp_executor *executor);

/* ---- lists of all ranks: verified, simulated --------------------------------------------------
 */

/* A buffer as operations name it, the same on every rank. */
typedef struct hp_buffer {
    uint64_t bytes;
    /* 0: each rank has its own memory for it. A communicator: the members of a rank's group on it
     * have one memory together, and [begin, end) are the same bytes to all of them. */
    uint32_t shared_by;
} hp_buffer;

typedef struct hp_list {
    const hp_op *ops;
    uint64_t n;
} hp_list;

/* What all ranks did, or are going to do: n_steps lists for each rank. When a step begins on a rank
 * everything of its step before is drained there. */
typedef struct hp_job {
    size_t size; /* sizeof(hp_job) */
    uint32_t n_ranks, n_steps;
    const hp_list *lists; /* [n_steps][n_ranks] */
    const hp_kind *kinds;
    uint32_t n_kinds;
    const hp_buffer *buffers; /* [n_buffers], by hp_ref.buffer; entry 0 is none */
    uint32_t n_buffers;
    const int *colors; /* [n_comms][n_ranks]: equal ones are one group; -1: in none. Row 0 unused */
    uint32_t n_comms;
    const char *const *units; /* names for messages, by op.unit; may be NULL */
    uint32_t n_units;
} hp_job;
#define HP_JOB_INIT                                                                                \
    { sizeof(hp_job), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

typedef enum hp_rule {
    HP_RULE_NONE = 0, /* sound */
    HP_RULE_LIST,     /* a list is broken: ids, events, kinds, ranges outside their buffer */
    HP_RULE_LIFE,     /* a life is used before its allocate or after its release, or never ends */
    HP_RULE_REUSE, /* a release, or a new life in the same bytes, before every reader is through */
    HP_RULE_RACE,  /* two operations touch the same bytes, one writes, and neither comes first */
    HP_RULE_MATCH, /* members of a communicator issue different collectives at one position */
    HP_RULE_CYCLE  /* ranks that run their lists in order wait for each other in a circle */
} hp_rule;
const char *hp_rule_name(hp_rule rule); /* "sound", "list", "life" ... */

typedef struct hp_verdict {
    hp_rule rule;
    /* The two operations that break it; the second is like the first where there is only one. */
    struct {
        uint32_t rank, step;
        hp_op op;
    } at[2];
    uint64_t n_ops, n_accesses; /* looked at */
    uint64_t peak_bytes; /* the most that lives took at one time on one rank, in list order */
    uint32_t peak_rank;
} hp_verdict;

/* Prove that a job is free of races, of use outside a life, of disagreement and of deadlock, from
 * its lists alone: what a rank does in order on a stream, what operations wait for, and that a
 * collective is done nowhere before it has begun everywhere, and drained only when it is done
 * everywhere, whatever `drain` of its kind. Times are not evidence, and neither is the order of a
 * list, except that no executor gets stuck in lists that can be run in order, and some in others.
 * `out_verdict` is set in any case where the arguments are right. Errors: UNSOUND, whose record
 * names the rule and both operations with rank, step and unit; ARGUMENT (also: more than 4,096
 * ranks or 2^31 operations), MEMORY. Threads: any.
 * Source: Lamport 1978 (happens-before); Mattern 1989 (vector clocks). */
HP_MUST_CHECK hp_status hp_verify(const hp_job *job, hp_verdict *out_verdict);

/* When an operation ran, in virtual time. */
typedef struct hp_moment {
    uint64_t begin_ns, done_ns, drained_ns;
} hp_moment;

/* Run a job in virtual time: an operation begins when its stream is free and its waits have
 * happened, a collective moves when all its members have begun it, and is done and drained on all
 * of them at once. What stands in a list behind a HP_ROLE_BEGIN or HP_ROLE_END of the compute
 * stream begins after it: the caller submits it then. `delay`: a rule of HYPER_PARALLEL_DELAY, NULL
 * none. out_moments: [n_steps][n_ranks] pointers to the caller's arrays,
 * each as long as its list; or NULL. out_stats: [n_ranks], busy and waited times; or NULL.
 * out_end_ns: when the last rank is through. Errors: ARGUMENT, MEMORY, UNSOUND (a circle, or a
 * collective that a member never comes to). */
HP_MUST_CHECK hp_status hp_simulate(const hp_job *job, const hp_cost_model *costs,
                                    const char *delay, hp_moment *const *out_moments,
                                    hp_executor_stats *out_stats, uint64_t *out_end_ns);

/* One line of text for an operation: kind, stream, unit, waits, refs. Returns the length. */
int hp_op_print(const hp_op *op, const hp_kind *kinds, uint32_t n_kinds, char *text, size_t size);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif

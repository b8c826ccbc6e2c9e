/* SPDX-License-Identifier: Apache-2.0
 *
 * coll.h - collectives over a group.
 *
 * Every member makes the same call, with the same count, dtype and op, in the same order; ranks
 * that disagree get HP_ERR_MISMATCH saying how. The group of all ranks is hp_world_group(world);
 * NULL, which would not say of which world, is ARGUMENT. Counts are elements, of any size including
 * 0. Buffers may lie in symmetric memory (read and written where they are) or in ordinary memory
 * (staged), at any address; input and output are apart, or in place as each call says (ARGUMENT
 * otherwise). On return outputs are valid and every buffer may be used again. A group's calls come
 * from one thread at a time (BUSY otherwise). After a failure that is not about the arguments the
 * group stays failed, on every member.
 *
 * hp_coll_run is every call in its full form: on a stream, with low precision on the wire, with
 * offsets. The functions below it are its short forms.
 *
 * The bit contract: the sum over a group is the balanced binary tree over the group's ranks,
 * ((r0+r1)+(r2+r3))+..., in fp32 (fp64 for fp64; integers wrap), whatever the chunking, memory or
 * algorithm, and the same bits on every rank. For n ranks the tree is: sum(b, e) = sum(b, m) +
 * sum(m, e), m - b the largest power of two below e - b. Results are rounded to the dtype once,
 * after the last addition and, for avg, one division. A NaN in any contribution gives a NaN in
 * sum, avg, max and min. max(-0, +0) is +0, min is -0.
 *
 * Every dtype can be reduced and moved. avg of integers: ARGUMENT.
 */
#ifndef HYPERPARALLEL_COLL_H
#define HYPERPARALLEL_COLL_H

#include <hyperparallel/base.h>
#include <hyperparallel/stream.h>
#include <hyperparallel/world.h>

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

typedef enum hp_collective {
    HP_ALL_GATHER = 0,
    HP_ALL_GATHER_V = 1,
    HP_REDUCE_SCATTER = 2,
    HP_REDUCE_SCATTER_V = 3,
    HP_ALL_REDUCE = 4,
    HP_ALL_TO_ALL = 5,
    HP_ALL_TO_ALL_V = 6,
    HP_BROADCAST = 7,
    HP_BARRIER = 8,
    HP_SEND = 9,
    HP_RECV = 10
} hp_collective;

/* What contributions of a reduction are rounded to, once, to travel; they are widened again and
 * summed in fp32, by the same tree. fp8 carries a power of two as scale for each 128 elements of a
 * part. For fp32, fp16 and bf16; others: ARGUMENT. Errors of each: docs/low-precision.md. */
typedef enum hp_wire {
    HP_WIRE_DEFAULT = 0, /* what SYMMETRIC_MEMORY_LOW_PRECISION_DTYPE says, for fp32; else FULL */
    HP_WIRE_FULL = 1,    /* the dtype itself */
    HP_WIRE_FP16 = 2,
    HP_WIRE_BF16 = 3,
    HP_WIRE_FP8_E4M3 = 4,
    HP_WIRE_FP8_E5M2 = 5
} hp_wire;

/* A collective in its full form. Fields that a call does not name are not looked at. Counts and
 * offsets are elements, by group rank; offsets NULL: packed, one part behind the other. */
typedef struct hp_coll_call {
    size_t size; /* sizeof(hp_coll_call) */
    hp_collective what;
    hp_group *group;
    const void *in;
    void *out; /* broadcast: its data (in is not looked at) */
    uint64_t count;
    /* [size of the group], copied before the call returns. all_gather_v: out_counts, out_offsets,
     * and count is this rank's own; reduce_scatter_v: in_counts, in_offsets, and count is this
     * rank's own; all_to_all_v: all four. */
    const uint64_t *in_counts, *in_offsets, *out_counts, *out_offsets;
    hp_dtype dtype;
    hp_reduce op;
    int rank;          /* root of a broadcast; whom to send to, or to receive from */
    hp_wire wire;      /* of all_reduce, reduce_scatter, reduce_scatter_v */
    int wire_result;   /* all_reduce: 1 sends the result in the wire's precision too */
    hp_stream *stream; /* NULL: returns when it is done; else checked, then put on the stream */
} hp_coll_call;
#define HP_COLL_CALL_INIT                                                                          \
    {                                                                                              \
        sizeof(hp_coll_call), HP_BARRIER, 0, 0, 0, 0, 0, 0, 0, 0, HP_FP32, HP_SUM, 0,              \
            HP_WIRE_DEFAULT, 0, 0                                                                  \
    }
HP_MUST_CHECK hp_status hp_coll_run(const hp_coll_call *call);

/* How an all_reduce's result was used, which its backward must be told. */
typedef enum hp_backward_mode {
    HP_BACKWARD_IDENTITY = 0, /* alike on all ranks: out_grad is equal on all, and whole */
    HP_BACKWARD_SUM = 1       /* each rank in its own way: out_grads are added up */
} hp_backward_mode;

/* The backward of a collective. With the loss, one number that all outputs of all ranks flow into:
 * out_grad is its gradient by this rank's output of the forward call, in_grad becomes that by this
 * rank's input. Dtype, counts, offsets and places are those of output and input in the forward
 * call; in_grad may lie in out_grad, or around it, as input and output may there. */
typedef struct hp_coll_backward_call {
    size_t size; /* sizeof(hp_coll_backward_call) */
    /* As it was run; in and out are looked at for max and min alone, stream not at all. wire holds
     * for the sum of a backward too, also where the forward call adds nothing. */
    const hp_coll_call *forward;
    const void *out_grad;  /* send, barrier: not looked at */
    void *in_grad;         /* recv, barrier: not looked at */
    hp_backward_mode mode; /* all_reduce */
    hp_stream *stream;     /* as of hp_coll_call */
} hp_coll_backward_call;
#define HP_COLL_BACKWARD_CALL_INIT                                                                 \
    { sizeof(hp_coll_backward_call), 0, 0, 0, HP_BACKWARD_IDENTITY, 0 }

/* Run the backward of a collective: as a collective, on all ranks that ran the forward call, with
 * the same bits each time. What it is, by what the forward call was:
 *
 *     all_gather, all_gather_v           a reduce_scatter of the same parts, sum
 *     reduce_scatter, reduce_scatter_v   an all_gather of the same parts; avg: of out_grad / n
 *     all_to_all, all_to_all_v           itself, in_ and out_ counts and offsets exchanged
 *     all_reduce, IDENTITY               out_grad; avg: / n. Nobody meets
 *     all_reduce, SUM                    an all_reduce of out_grad, sum or avg
 *     broadcast                          at the root the sum of all out_grads; others: zeros, for
 *                                        what they had before has gone
 *     send, recv                         a recv of in_grad, a send of out_grad; in which order, see
 *                                        below
 *     barrier                            a barrier
 *     max, min                           as sum, and each element's gradient goes to one rank, the
 *                                        others get 0: the lowest whose contribution is the result,
 *                                        bit by bit (-0 is not +0; over a wire: what it was rounded
 *                                        to), or is a NaN where the result is one
 *
 * Messages come in the order in which they are sent: so run their backwards, on both ends, from the
 * last forward call to the first.
 *
 * Of max and min in and out of the forward call must be what they were when it returned, so not in
 * place, and apart from in_grad; ARGUMENT also for an all_reduce with wire_result over fp8, whose
 * results no rank has contributed. Errors are those of the collective that is run, and name it;
 * ranks that disagree about max or min get MISMATCH. Traffic is not told of. */
HP_MUST_CHECK hp_status hp_coll_backward(const hp_coll_backward_call *call);

/* What a collective of one rank moved: loads from and stores to operands, cells and words. What
 * stays in the first-level cache (the sums of a chunk) is not counted, nor is what waiting moves.
 */
typedef struct hp_coll_traffic {
    const char *algorithm; /* a row of src/coll/algorithms.def, or "mailbox"; "" in a group of one
                              and where nothing was moved; "across" in a group that spans nodes:
                              then the bytes are those of messages, sent and received */
    int steps;             /* of it: waits for every peer */
    uint64_t read_bytes, written_bytes;
} hp_coll_traffic;
/* Of the call that ran last on its group, given again. Local. Errors: ARGUMENT as of the call,
 * STATE (another one ran last), BUSY (one runs). */
HP_MUST_CHECK hp_status hp_coll_traffic_get(const hp_coll_call *call, hp_coll_traffic *out_traffic);

/* A call as far as the choice of its algorithm goes; nobody has to make it, and the ranks need not
 * be these. The processor is this one, with near caches. */
typedef struct hp_coll_case {
    size_t size; /* sizeof(hp_coll_case) */
    hp_collective what;
    int n_ranks;
    int is_crowded; /* ranks share cores */
    uint64_t count; /* as the call's; of a v form the elements of the longest part */
    hp_dtype dtype;
    hp_wire wire;                                       /* DEFAULT counts as FULL */
    int in_is_symmetric, out_is_symmetric, is_in_place; /* of all ranks; broadcast: of the root */
} hp_coll_case;
#define HP_COLL_CASE_INIT                                                                          \
    { sizeof(hp_coll_case), HP_ALL_REDUCE, 2, 0, 0, HP_FP32, HP_WIRE_FULL, 1, 1, 0 }

typedef struct hp_coll_choice {
    const char *algorithm; /* as of hp_coll_traffic */
    char why[256];         /* in words: what it needs, its range, which ones before it do not run */
    uint64_t bytes;        /* of the larger operand, as thresholds count */
    uint64_t from_bytes, to_bytes; /* its range: from <= bytes < to; UINT64_MAX: no end. Of the
                                      calls in it, those run that no row before it takes */
    int steps;                     /* waits for every peer */
    const char *moves, *source;    /* bytes moved, and where the algorithm comes from, in words */
} hp_coll_choice;
/* What hp_coll_run chooses there. HYPER_PARALLEL_THRESHOLDS is read from the environment. Local.
 * Threads: any. Errors: ARGUMENT, of the case or of the option. */
HP_MUST_CHECK hp_status hp_coll_choice_get(const hp_coll_case *c, hp_coll_choice *out_choice);

/* Where one algorithm gives way to another, in bytes of the larger operand of a rank: the library's
 * table, measured on one machine. HYPER_PARALLEL_THRESHOLDS="name=bytes,..." stands in its place.
 */
typedef struct hp_coll_threshold {
    const char *name, *meaning;
    uint64_t roomy_bytes, crowded_bytes; /* with a core for each rank; where ranks share cores */
} hp_coll_threshold;
/* Its rows: returns 1, or 0 when there are no more. Threads: any. */
int hp_coll_threshold_at(int index, hp_coll_threshold *out_threshold);

/* out[i * count + k] = in of rank i [k]. in: [count], out: [size * count]. in may be this rank's
 * place in out. Reads (n - 1) * count elements of the peers per rank. */
HP_MUST_CHECK hp_status hp_all_gather(hp_group *group, const void *in, void *out, uint64_t count,
                                      hp_dtype dtype);

/* out[k] = op over ranks of in[rank * count + k]. in: [size * count], out: [count]; out may be this
 * rank's place in in. Reads n * count, writes count per rank. */
HP_MUST_CHECK hp_status hp_reduce_scatter(hp_group *group, const void *in, void *out,
                                          uint64_t count, hp_dtype dtype, hp_reduce op);

/* out[k] = op over ranks of in[k]. in, out: [count]; in == out is in place. */
HP_MUST_CHECK hp_status hp_all_reduce(hp_group *group, const void *in, void *out, uint64_t count,
                                      hp_dtype dtype, hp_reduce op);

/* data of rank root, on every rank. data: [count]. Below 16 MiB (2 MiB where ranks share cores) the
 * root returns when it has passed the data on, maybe before the others have come: a disagreement or
 * an end that it did not see is an error of a later call. A root is at most 32 calls ahead. Those
 * of more than 32 bytes take 2 MiB of the root's symmetric memory, once for each group that it is a
 * root in, until every member has destroyed the group. */
HP_MUST_CHECK hp_status hp_broadcast(hp_group *group, void *data, uint64_t count, hp_dtype dtype,
                                     int root);

/* out[i * count + k] = in of rank i [rank * count + k]. in, out: [size * count]; in == out is in
 * place. */
HP_MUST_CHECK hp_status hp_all_to_all(hp_group *group, const void *in, void *out, uint64_t count,
                                      hp_dtype dtype);

/* The same with parts of any size, packed: in_counts[j] elements go to rank j, out_counts[i] come
 * from rank i, whose in_counts[own rank] it must be (MISMATCH naming both). Not in place. */
HP_MUST_CHECK hp_status hp_all_to_all_v(hp_group *group, const void *in, const uint64_t *in_counts,
                                        void *out, const uint64_t *out_counts, hp_dtype dtype);

/* all_gather where rank i contributes counts[i] elements; out: [sum of counts], packed. In place as
 * all_gather. counts must be equal on all ranks. */
HP_MUST_CHECK hp_status hp_all_gather_v(hp_group *group, const void *in, void *out,
                                        const uint64_t *counts, hp_dtype dtype);

/* reduce_scatter where rank i gets counts[i] elements; in: [sum of counts], packed. */
HP_MUST_CHECK hp_status hp_reduce_scatter_v(hp_group *group, const void *in, void *out,
                                            const uint64_t *counts, hp_dtype dtype, hp_reduce op);

/* What rank `source` sent to rank `target` arrives in the order in which it was sent on this group;
 * nothing has to match but count and dtype (MISMATCH on both otherwise). send returns when `data`
 * may be used again, which for small messages may be before the receiver has come. Messages run
 * beside the group's collectives and beside each other: one thread at a time for each member and
 * direction (BUSY otherwise), so a stream is the way to send and receive at once. Ranks that all
 * send long messages before they receive wait for each other: TIMEOUT. To oneself: ARGUMENT.
 */
HP_MUST_CHECK hp_status hp_send(hp_group *group, const void *data, uint64_t count, hp_dtype dtype,
                                int target);
HP_MUST_CHECK hp_status hp_recv(hp_group *group, void *data, uint64_t count, hp_dtype dtype,
                                int source);

/* Returns when every member has entered. */
HP_MUST_CHECK hp_status hp_barrier(hp_group *group);

/* The instruction set whose loops reduce here: "AVX-512, BF16", "AVX-512", "AVX2", "SSE2", "NEON"
 * or "plain". It changes how long a reduction takes, and no bit of it. Threads: any. */
const char *hp_coll_kernels(void);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif

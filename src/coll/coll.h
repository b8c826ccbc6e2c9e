/* SPDX-License-Identifier: Apache-2.0
 *
 * coll/coll.h - the door of room `coll`: collectives in two phases, and as kinds of operations.
 *
 * The first phase returns when this rank's outputs are valid (`done`), with the collective's
 * sequence number; hpi_coll_drain(seq) returns when no peer reads this rank's input any more
 * (`drained`). The public calls are both, one after the other.
 */
#ifndef HPI_COLL_H
#define HPI_COLL_H

#include "../stream/stream.h"
#include "../symm/symm.h"
#include <hyperparallel/coll.h>

/* One collective. With `blocks` > 1 it runs along an inner dimension: the gathered tensor is
 * [blocks][size][count] and each rank's part is [blocks][count] (rank i owns [b][i][:] of every
 * block b). The output of a reduction may be of the sum type (out_dtype fp32 for bf16 inputs): then
 * nothing is rounded. */
typedef struct hpi_coll {
    const void *in;
    void *out;
    uint64_t count, blocks; /* elements of one rank's part in one block; blocks is at least 1 */
    hp_dtype dtype;         /* of the input */
    hp_dtype out_dtype;     /* of the output: dtype, or hpi_sum_dtype(dtype) */
    hp_reduce op;
    int root; /* of a broadcast; the other end of a send or receive */
    /* of the v forms, [size] each, elements; offsets NULL: packed; see hp_coll_call */
    const uint64_t *in_counts, *in_offsets, *out_counts, *out_offsets;
    hp_wire wire; /* DEFAULT counts as FULL here: the environment speaks to public calls alone */
    bool is_wire_result;
    /* What the caller does it for, and in which pass: ranks that differ in either disagree. At most
     * 24 and HPI_PASS_BITS bits, cut; 0: none. A broadcast has no pass. */
    uint32_t tag, pass;
} hpi_coll;

/* A pass, as far as collectives of a step tell passes apart: its kind (0 to 3: HP_SYNC,
 * HP_EVALUATE, HP_NO_SYNC, HP_DEFER_REPLICATE), and how many passes of the last two kinds went
 * before it, cut to 6 bits, whose gradients it takes in. */
enum { HPI_PASS_BITS = 16 };
static inline uint32_t hpi_coll_pass(uint32_t kind, uint32_t n_no_sync, uint32_t n_deferred) {
    return (kind + 1) | (n_no_sync & 63) << 3 | (n_deferred & 63) << 9;
}

hp_status hpi_all_gather(hp_group *group, const hpi_coll *c, uint64_t *out_seq);
hp_status hpi_reduce_scatter(hp_group *group, const hpi_coll *c, uint64_t *out_seq);
hp_status hpi_all_reduce(hp_group *group, const hpi_coll *c,
                         uint64_t *out_seq); /* count elements, blocks 1 */
/* Of `c` the tag and the pass alone. Drained when it is done: it reads nothing. */
hp_status hpi_barrier(hp_group *group, const hpi_coll *c, uint64_t *out_seq);
/* Wait until every member has finished reading for collective `seq`. Any thread. */
hp_status hpi_coll_drain(hp_group *group, uint64_t seq);
/* The number that the next collective on this group will get, less one: 0 on a fresh group. */
uint64_t hpi_coll_seq(hp_group *group);

/* Memory of this rank that its readers may need after it has left the group: take `bytes`, zeroed,
 * in the own segment, their pages too; leave gives them back when the last member has left. */
typedef struct hpi_outbox hpi_outbox;
hp_status hpi_outbox_take(hp_group *group, uint64_t bytes, hpi_outbox **out_outbox);
unsigned char *hpi_outbox_memory(const hpi_outbox *outbox);
uint64_t hpi_outbox_offset(const hpi_outbox *outbox); /* the same, in the segment */
void hpi_outbox_leave(hp_group *group, hpi_outbox *outbox);

/* out[k] = the tree of the bit contract over in[0..n)[k], in fp32. scratch: hpi_sum_scratch_bytes,
 * 64-byte aligned, apart from all. */
void hpi_sum_fp32(const void *const *in, int n, float *out, uint64_t count, void *scratch);
uint64_t hpi_sum_scratch_bytes(int n);

/* The collectives as kinds for an executor whose context is a hpi_bindings. Operands: reads[0],
 * writes[0]; the count follows from reads[0], blocks and the kind; out_dtype from the size of
 * writes[0]; op.reduce is the reduction; op.seq counts on bindings->comm_base. */
enum {
    HPI_KIND_ALL_GATHER = 0,
    HPI_KIND_REDUCE_SCATTER = 1,
    HPI_KIND_ALL_REDUCE = 2,
    HPI_KIND_BARRIER = 3, /* no operands: done when every member has come */
    HPI_N_COLL_KINDS = 4
};
extern const hp_kind hpi_coll_kinds[HPI_N_COLL_KINDS];

#endif

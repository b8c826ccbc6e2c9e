/* SPDX-License-Identifier: Apache-2.0
 *
 * stream/verify/proof.h - what the verifier knows while it walks through a job, for this folder.
 *
 * A chain is a stream of a rank: what stands on it runs in order. An operation's position counts on
 * its chain from 1, over all steps. A clock has a word for each chain: how many of its operations
 * are done for certain. So x is over when y begins exactly if y's clock has reached x's position on
 * x's chain. Drained needs no position of its own: it is done on every member.
 *
 * The walk (walk.c) takes the operations in an order in which nothing comes before what it follows
 * from, so every access is compared with those that were met earlier, and these suffice: one that
 * is met later cannot be over. Source: Lamport 1978; Mattern 1989; the bookkeeping of accesses
 * after Flanagan and Freund, FastTrack, PLDI 2009.
 */
#ifndef HPI_PROOF_H
#define HPI_PROOF_H

#include "../../base/base.h"
#include "../stream.h"

enum { HPI_NO_OP = UINT32_MAX };

/* An operation of the job. */
typedef struct hpi_place {
    uint32_t rank, step, id;
} hpi_place;

/* What lists.c finds out about an operation, and what the walk keeps about it. */
typedef struct hpi_note {
    uint32_t position; /* on its chain */
    uint32_t last;     /* id of the operation whose done ends its accesses: its END, or itself */
    uint32_t n_waiters[2]; /* operations still to begin that wait for its done, its drained */
    uint32_t kept[2];      /* the clocks of these, while there are such */
    uint32_t n_begun;      /* of a group's first member: how many have begun this collective */
} hpi_note;

/* The ranks of a group, in ascending order. */
typedef struct hpi_members {
    const uint32_t *ranks;
    uint32_t n;
} hpi_members;

/* Something that an operation does with bytes: from its begin until `last` is done, or, by peers,
 * until it is drained. */
typedef struct hpi_access {
    hpi_place place;
    hp_ref ref;
    uint32_t chain, position; /* of the done that ends it */
    bool is_write, is_by_peers;
} hpi_access;

/* The bytes of one buffer on one rank, or of a group that shares them. */
typedef struct hpi_memory {
    hpi_access *accesses; /* that a later one may still have to be compared with */
    uint32_t n_accesses, capacity;
    uint32_t life; /* the last one allocated in this step; 0: none */
    bool is_released;
    hpi_place allocated, released;
    uint64_t begin, end; /* of the life */
} hpi_memory;

typedef struct hpi_clocks {
    uint32_t n_chains;
    uint32_t *now;   /* [n_chains][n_chains]: after the last operation taken from each chain */
    uint32_t *after; /* [n_ranks][n_chains]: when all of the rank's step so far is drained */
    uint32_t **kept; /* for those who wait; the free ones are linked through next_free */
    uint32_t *next_free;
    uint32_t n_kept, capacity, first_free;
} hpi_clocks;

typedef struct hpi_proof {
    const hp_job *job;
    hp_verdict *verdict;
    hpi_note *notes;      /* of all operations, list after list */
    uint32_t *first_note; /* [n_steps][n_ranks] */
    hpi_members *members; /* [n_comms][n_ranks]: the group that a rank is in */
    uint32_t *member_ranks;
    uint32_t *by_seq;       /* ids of collectives, by list, communicator and seq */
    uint32_t *first_by_seq; /* [n_steps][n_ranks][n_comms], and one more */
    bool *has_lives;        /* [n_buffers]: somebody allocates it */
    hpi_memory *memories;   /* [n_ranks][n_buffers]; of a group its first member's */
    hpi_clocks clocks;
} hpi_proof;

/* ---- looking things up ---------------------------------------------------------------------- */

static inline const hp_list *hpi_list_at(const hpi_proof *p, uint32_t step, uint32_t rank) {
    return &p->job->lists[(uint64_t)step * p->job->n_ranks + rank];
}
static inline const hp_op *hpi_op_at(const hpi_proof *p, hpi_place at) {
    return &hpi_list_at(p, at.step, at.rank)->ops[at.id];
}
static inline hpi_note *hpi_note_at(const hpi_proof *p, hpi_place at) {
    return &p->notes[p->first_note[(uint64_t)at.step * p->job->n_ranks + at.rank] + at.id];
}
static inline hp_role hpi_role_of(const hpi_proof *p, const hp_op *op) {
    return p->job->kinds[op->kind].role;
}
static inline uint32_t hpi_chain_of(hpi_place at, const hp_op *op) {
    return at.rank * HP_N_STREAMS + op->stream;
}
static inline const hpi_members *hpi_members_of(const hpi_proof *p, uint32_t comm, uint32_t rank) {
    return &p->members[(uint64_t)comm * p->job->n_ranks + rank];
}
static inline const uint32_t *hpi_collectives_of(const hpi_proof *p, uint32_t step, uint32_t rank,
                                                 uint32_t comm, uint32_t *out_n) {
    const uint64_t k = ((uint64_t)step * p->job->n_ranks + rank) * p->job->n_comms + comm;
    *out_n = p->first_by_seq[k + 1] - p->first_by_seq[k];
    return p->by_seq + p->first_by_seq[k];
}
/* The same collective on another member, once match.c has found one there. */
static inline hpi_place hpi_peer_place(const hpi_proof *p, hpi_place at, uint32_t rank) {
    uint32_t n;
    const hp_op *op = hpi_op_at(p, at);
    return (hpi_place){rank, at.step, hpi_collectives_of(p, at.step, rank, op->comm, &n)[op->seq]};
}

/* ---- the parts, in the order in which they are used ----------------------------------------- */

/* lists.c: check each list by itself, and fill notes, by_seq, has_lives and the peak. */
hp_status hpi_proof_read(hpi_proof *proof);
/* match.c: who is in a group; do its members issue the same? */
hp_status hpi_proof_find_members(hpi_proof *proof);
hp_status hpi_proof_match(hpi_proof *proof);
/* walk.c: take all operations in order; races, lives, circles. */
hp_status hpi_proof_walk(hpi_proof *proof);

/* accesses.c: an operation begins, when `clock` is over. */
hp_status hpi_proof_access(hpi_proof *proof, hpi_place at, const uint32_t *clock);
/* A rank's step is over: no life may go on. */
hp_status hpi_proof_end_lives(hpi_proof *proof, uint32_t rank);

/* clocks.c */
hp_status hpi_clocks_create(hpi_clocks *clocks, uint32_t n_ranks);
void hpi_clocks_destroy(hpi_clocks *clocks);
static inline uint32_t *hpi_clock_now(const hpi_clocks *c, uint32_t chain) {
    return c->now + (uint64_t)chain * c->n_chains;
}
static inline uint32_t *hpi_clock_after(const hpi_clocks *c, uint32_t rank) {
    return c->after + (uint64_t)rank * c->n_chains;
}
void hpi_clock_join(const hpi_clocks *clocks, uint32_t *into, const uint32_t *other);
void hpi_clock_copy(const hpi_clocks *clocks, uint32_t *into, const uint32_t *other);
/* Keep a copy, until as many as wait for it have dropped it. */
hp_status hpi_clock_keep(hpi_clocks *clocks, const uint32_t *clock, uint32_t *out_number);
void hpi_clock_drop(hpi_clocks *clocks, uint32_t number);

/* text.c: set the verdict and fail with UNSOUND; the text goes on after "rule: ". */
enum { HPI_PLACE_TEXT = 160 };
hp_status hpi_unsound(hpi_proof *proof, hp_rule rule, hpi_place first, hpi_place second,
                      const char *format, ...) __attribute__((format(printf, 5, 6)));
/* "reduce_scatter of block 3 param 1 (step 0, rank 1, op 57)" */
const char *hpi_place_text(const hpi_proof *proof, hpi_place at, char text[HPI_PLACE_TEXT]);
/* "buffer 12 life 2 [0, 4096)" */
const char *hpi_ref_text(hp_ref ref, char text[HPI_PLACE_TEXT]);

#endif

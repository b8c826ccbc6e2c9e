/* SPDX-License-Identifier: Apache-2.0
 *
 * across/across.h - collectives of groups that span nodes: what its files share.
 *
 *     inside a node   collectives of the inner group, in shared memory
 *     between nodes   messages, each between two members
 *
 * What holds: every member comes to the same pieces in the same order, from the call and from where
 * the members are, so nothing but the header is agreed on. Members of a node make the same calls of
 * their inner group in the same order. Messages of one kind between two members are posted in the
 * same order by both, each kind has a tag.
 */
#ifndef HPI_ACROSS_H
#define HPI_ACROSS_H

#include "../inside.h"
#include "../meet/words.h"

/* ---- messages under way ---- */

/* By tag. */
enum {
    HPI_TAG_HEADER,
    HPI_TAG_PART,   /* of a sum, or of an exchange */
    HPI_TAG_RESULT, /* of a gather, or of a broadcast */
    HPI_TAG_LETTER, /* send and receive */
    HPI_TAG_LETTER_DATA
};

/* Messages are waited for in the order in which they were posted; those without a byte count, and
 * take no packet. */
typedef struct hpi_flights {
    hpi_transfer **at; /* packets; NULL: over */
    int *ends;         /* by message: packets up to its last one */
    int n_packets, n_over, packet_room;
    int n, n_landed, room; /* messages */
} hpi_flights;

/* Receives by kind, then sends: those whose memory is used again, and those that end with the call.
 */
enum { HPI_HEARD, HPI_PARTS, HPI_RESULTS, HPI_SENT_PARTS, HPI_SENT, HPI_N_FLIGHTS };

/* ---- the tree over nodes ---- */

/* A subtree of the bit contract's tree, summed already, or one member's contribution: a leaf. */
typedef struct hpi_branch {
    int end; /* it is [its index, end); 0: no term begins here */
    bool is_leaf;
    const unsigned char *data;
} hpi_branch;

/* ---- state ---- */

/* What two members say of their call. */
typedef struct hpi_header {
    uint64_t words[HPI_N_WORDS]; /* see words.h; no places */
    uint64_t group;              /* its check number */
    uint64_t seq;
    uint64_t part; /* of an all_to_all_v: elements for the one that reads this */
} hpi_header;
_Static_assert(sizeof(hpi_header) == 80, "sent between hosts");

/* Memory that is taken when it is first needed, and kept. */
typedef struct hpi_room {
    unsigned char *at;
    uint64_t bytes;
} hpi_room;

struct hpi_across {
    hp_group *group, *inner;
    const hpi_nodes *nodes;
    int n, rank;
    int mine, place, size; /* this rank's node, its place there, and how many members it has */
    bool *folds;           /* [nodes]: its members' contributions become one */
    bool do_all_fold;
    hpi_branch *branches; /* [n] */
    int n_slots[2];       /* pieces that a sum holds at once: in full precision, over a wire */
    unsigned char *tree;  /* scratch of the tree */
    hpi_flights flights[HPI_N_FLIGHTS];
    hpi_header own, *sent, *heard; /* [n] each; those of members that this rank hears */
    hpi_header *beside;            /* [size], of this node's members */
    uint64_t *counts, *begins;     /* [n]: parts that the call does not name */
    uint64_t *inner_counts[2], *inner_begins[2]; /* [size]: parts of an inner call, in and out */
    uint64_t scratch_bytes, piece_bytes; /* at most, but where a call cannot go on with that; the
                                            same on every member */
    hpi_room slots, pack;
    unsigned char nothing[1];            /* stands for operands without an element */
    uint64_t sent_bytes, received_bytes; /* of the last collective */
    hpi_algorithm row;                   /* that it ran by */
    const hpi_run *run;                  /* the collective that runs */
};

static inline uint64_t hpi_piece_length(uint64_t count, uint64_t step, uint64_t k) {
    return k * step < count ? hpi_min(step, count - k * step) : 0;
}
/* Member `i` of `node`, as a rank of the group. */
static inline int hpi_member(const hpi_across *a, int node, int i) {
    return a->nodes->members[a->nodes->begin[node] + i];
}
/* The k-th of the other nodes; each begins with the next one. */
static inline int hpi_other_node(const hpi_across *a, int k) {
    return (a->mine + 1 + k) % a->nodes->n;
}
/* A node's contributions travel as they are. */
static inline bool hpi_is_leafy(const hpi_across *a, int node) {
    return !a->folds[node] || hpi_node_size(a->nodes, node) == 1;
}

static inline int hpi_n_branches(const hpi_across *a, int node) {
    return a->folds[node] ? 1 : hpi_node_size(a->nodes, node);
}

/* ---- across.c ---- */

/* At least so many bytes; what was in it is lost. Errors: MEMORY. */
hp_status hpi_room_take(hpi_room *room, uint64_t bytes);
/* Parts of `count` elements, one behind the other. */
hpi_parts hpi_equal_parts(hpi_across *a, uint64_t count);
uint64_t hpi_longest(const hpi_across *a, const uint64_t *counts);
/* ---- flights.c ---- */

hp_status hpi_fly_to(hpi_across *a, int list, int to, uint32_t tag, const void *data,
                     uint64_t bytes);
hp_status hpi_fly_from(hpi_across *a, int list, int from, uint32_t tag, void *out, uint64_t bytes);
/* Wait for those of a list up to the until-th. */
hp_status hpi_land(hpi_across *a, int list, int until);
static inline hp_status hpi_land_all(hpi_across *a, int list) {
    return hpi_land(a, list, a->flights[list].n);
}
/* A list begins anew; all of it has landed. */
void hpi_flights_forget(hpi_across *a, int list);
/* All are over, or given up. */
void hpi_flights_end(hpi_across *a);
void hpi_flights_free(hpi_across *a);

/* A collective of the members on this node, drained. */
hp_status hpi_across_inner(hpi_across *a, hp_collective what, const hpi_coll *c);

/* ---- agree.c ---- */

/* Say to members of other nodes what this rank is about to do, and compare with those of this one.
 * Those of which anything is received are among them. */
hp_status hpi_agree_begin(hpi_across *a);
/* Before anything that was received is used: all have said the same. Errors: MISMATCH. */
hp_status hpi_agree_end(hpi_across *a);

/* ---- tree.c ---- */

/* Which nodes fold, and where the branches begin. */
void hpi_tree_plant(hpi_across *a);
/* Bytes of `count` elements of a branch, as they travel and lie. */
uint64_t hpi_branch_bytes(const hpi_across *a, bool is_leaf, uint64_t count);
/* Sum `count` elements of the branches' data to `out`, in out_dtype. */
void hpi_tree_sum(const hpi_across *a, void *out, uint64_t count);

/* ---- gather.c ---- */

/* Every member's part in the output of each; a part of a part is a piece. */
typedef struct hpi_spread {
    unsigned char *out;
    hp_dtype dtype;
    uint64_t size;   /* bytes of an element */
    hpi_parts parts; /* [n] */
    uint64_t step;   /* elements of a piece */
} hpi_spread;
/* Piece k of this rank's part, which lies at `own`, goes to other nodes. */
hp_status hpi_spread_send(hpi_across *a, const hpi_spread *s, const unsigned char *own, uint64_t k);
hp_status hpi_spread_receive(hpi_across *a, const hpi_spread *s, uint64_t k);
/* Wait for what was received of piece k, and share it with this node. */
hp_status hpi_spread_share(hpi_across *a, const hpi_spread *s, uint64_t k);
/* Piece k of the parts of this node's members. */
hp_status hpi_spread_own(hpi_across *a, const hpi_spread *s, const unsigned char *own, uint64_t k);
hp_status hpi_across_gather(hpi_across *a);

/* ---- reduce.c ---- */

/* Slots of the scratch that one piece takes. */
int hpi_sum_slots(const hpi_across *a, bool over_wire);
hp_status hpi_across_scatter_reduce(hpi_across *a);
hp_status hpi_across_reduce(hpi_across *a);

/* ---- small.c ---- */

/* Is an all-reduce so short that each member gets all branches at once? */
bool hpi_is_short(const hpi_across *a);
hp_status hpi_across_reduce_short(hpi_across *a);

/* ---- exchange.c, broadcast.c ---- */

hp_status hpi_across_exchange(hpi_across *a);
hp_status hpi_across_broadcast(hpi_across *a);

#endif

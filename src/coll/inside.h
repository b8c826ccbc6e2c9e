/* SPDX-License-Identifier: Apache-2.0
 *
 * coll/inside.h - the inside of room `coll`: one collective on its way through.
 *
 *     check   arguments and sizes, nothing touched                                      check.c
 *     enter   say in an entry what I am about to do and where my operands               meet/
 *             lie; wait until all have, compare, find their places
 *     choose  the first algorithm whose needs are met                                   choose.c
 *     move    in place, through cells, across processes             placed/, staged/, direct/
 *     leave   post the READ line: I have finished with the peers' memory                coll.c
 *
 * A collective's number, its sequence on the group, is the value of the lines. Every rank waits for
 * every peer's entry, which all the rest leans on: see enter.c; but for the broadcasts of cast/.
 */
#ifndef HPI_COLL_INSIDE_H
#define HPI_COLL_INSIDE_H

#include "coll.h"
#include "kernels/kernels.h"

typedef struct hpi_run hpi_run;
typedef struct hpi_cast hpi_cast;
typedef struct hpi_kept hpi_kept;
typedef struct hpi_across hpi_across;

/* A row of thresholds.def; HPI_FROM_ANY: no limit. */
typedef enum hpi_threshold {
    HPI_FROM_ANY = -1,
#define X(NAME, name, roomy, crowded, meaning) HPI_FROM_##NAME,
#include "thresholds.def"
#undef X
    HPI_N_THRESHOLDS
} hpi_threshold;

/* A row of needs.def. */
typedef enum hpi_needs {
#define X(NAME, words) HPI_NEEDS_##NAME,
#include "needs.def"
#undef X
    HPI_N_NEEDS
} hpi_needs;
/* Of those over a wire. */
static inline bool hpi_needs_wire(hpi_needs needs) {
    return needs == HPI_NEEDS_WIRE || needs == HPI_NEEDS_WIRE_INPUTS ||
           needs == HPI_NEEDS_WIRE_OUTPUTS || needs == HPI_NEEDS_WIRE_APART;
}
/* A row of algorithms.def. */
typedef struct hpi_algorithm {
    hp_collective what;
    const char *name;
    hp_status (*run)(hpi_run *run);
    hpi_needs needs;
    hpi_threshold from, to; /* it runs where from <= bytes < to */
    int steps;
    const char *moves, *source;
} hpi_algorithm;
extern const hpi_algorithm hpi_algorithms[];
extern const int hpi_n_algorithms;

/* A tag is (1 + unit) << HPI_TAG_BITS | parameter, as far as its 24 bits go; 0: none. */
enum { HPI_TAG_BITS = 10 };

/* The last value of each enum: beyond it a call is refused. enter.c packs them into few bits. */
enum { HPI_LAST_COLLECTIVE = HP_RECV, HPI_LAST_REDUCE = HP_MIN, HPI_LAST_WIRE = HP_WIRE_FP8_E5M2 };

enum { HPI_SMALL_WORDS = 4, HPI_SMALL_BYTES = 8 * HPI_SMALL_WORDS };
enum { HPI_ROW_WORDS = 8, HPI_ROW_BYTES = 8 * HPI_ROW_WORDS }; /* a vector, to be summed whole */
enum { HPI_ENTER_WORDS = 3 + HPI_SMALL_WORDS }; /* that a rank says when it enters, see enter.c */

/* What a rank said of its operands when it entered: {key, offset} in symmetric memory, {0, address}
 * in ordinary memory, {0, 0} where peers may not read it. Peers write the outputs of an all-reduce
 * and of a broadcast; of the others the place of `out` carries two numbers, which enter.c names. */
typedef struct hpi_entered {
    hpi_place in, out;
} hpi_entered;

/* See ring.c. */
typedef struct hpi_ring {
    hpi_outbox *box;     /* NULL: not taken yet */
    unsigned char *base; /* of this rank's, as seen here */
    uint64_t bytes;
    uint64_t end; /* of the last piece */
    /* Of two ranks, whose pieces go to and fro. */
    unsigned char *peers_base; /* NULL: not heard of yet */
    unsigned pair;             /* of the last piece: 0 or 1 */
    bool is_across[2];         /* by pair: its last piece of this rank's lay in the peer's ring */
    bool was_carried;          /* the last piece was no cell */
} hpi_ring;

/* Can each rank of a group read and write the others' ordinary memory? */
typedef enum hpi_reach { HPI_REACH_UNKNOWN, HPI_REACH_NONE, HPI_REACH_ALL } hpi_reach;

/* How far the other ranks' caches are, as this rank has found: by storing what they have read
 * (ring.c), by reading what they have stored (handback.c). */
enum { HPI_SLOW_FOR_SURE = 3 };
typedef struct hpi_distance {
    uint64_t n_slow;          /* samples behind each other that were slow */
    uint64_t fills_to_sample; /* a long one counts for several */
    const void *begin;        /* of the ring; NULL: it has none */
    bool is_begin_cached;     /* it was last stored through the caches, and read, while afar */
    bool is_unasked;          /* nobody stores past the caches, so nobody samples */
} hpi_distance;
static inline bool hpi_is_afar(const hpi_distance *d) {
    return d->n_slow == HPI_SLOW_FOR_SURE;
}
/* Nothing says otherwise than the last sample. */
static inline bool hpi_is_sure(const hpi_distance *d) {
    return d->n_slow == 0 || hpi_is_afar(d);
}
static inline void hpi_note_sample(hpi_distance *d, bool is_slow) {
    d->n_slow = is_slow ? hpi_min(d->n_slow + 1, HPI_SLOW_FOR_SURE) : 0;
}

/* Hangs on a group; made by the first collective. Used by one thread at a time, but for `seq`. */
typedef struct hpi_coll_state {
    hp_group *group;
    _Atomic uint64_t seq;                       /* of the last collective that began */
    uint64_t thresholds[HPI_N_THRESHOLDS];      /* bytes, the same on every member */
    const char *only;                           /* force this algorithm; NULL: choose */
    uint8_t first_row[HPI_LAST_COLLECTIVE + 1]; /* of each in algorithms.def, or one before it */
    const hpi_algorithm *last;                  /* that ran */
    hpi_kept *kept;                             /* [HPI_LAST_COLLECTIVE + 1] */
    uint64_t copied_bytes;                      /* by it, of this rank's input to its output */
    uint64_t twice_bytes;                       /* by it, loaded once and stored twice */
    bool is_last_pushed;                        /* by it owners stored results into every output */
    bool are_lines_dear;                        /* that a peer has read: see handback.c */
    hpi_distance distance;                      /* of peers */
    uint64_t n_readings;                        /* that may be sampled */
    uint64_t n_afar;                            /* calls that went through cells for that */
    /* [size] each, of the collective that runs */
    const unsigned char **in; /* by rank: where its input is read from here */
    unsigned char **out;      /* by rank: where its output is written from here */
    const void **chunk;       /* inputs of the chunk being reduced */
    hpi_entered *entered;
    uint64_t said[HPI_ENTER_WORDS - HPI_SMALL_WORDS]; /* by this rank, of the call */
    uint64_t (*small)[HPI_ROW_WORDS]; /* contributions that came in words, zero behind them */
    uint64_t n_pocketed;              /* collectives so far whose inputs might lie in pockets */
    unsigned char *scratch;           /* of the kernels */
    uint64_t *packed[2];              /* where packed parts begin, of in and out */
    unsigned char **heaps;            /* [size]: where the shared memory of each begins here */
    hpi_ring ring;
    unsigned char **cells; /* [size]: a piece of each rank's ring, of the present tick */
    uint64_t cell_bytes;   /* the longest that is filled in one tick */
    uint64_t tick;         /* steps over the CHUNK line so far, equal on all ranks */
    /* Reading across processes, see direct/. */
    hpi_reach reach;
    int64_t *pids;          /* [size] */
    unsigned char *fetched; /* what is summed next, a piece for each rank */
    unsigned char *strips;  /* the same, encoded: see rounded.c */
    /* Of broadcasts for which nobody meets, see meet/ahead.c and cast/. */
    uint64_t history;           /* a hash of all calls so far */
    _Atomic uint64_t last_read; /* the last collective in which peers touched operands */
    uint64_t floor;             /* every member has left the collectives up to this one */
    hpi_cast *cast;
    hpi_across *across; /* of a group that spans nodes, which has little else of this */
} hpi_coll_state;

/* The parts of an operand by rank, in elements: [n] each. NULL: `count` each, one behind the other.
 */
typedef struct hpi_parts {
    const uint64_t *counts, *begins;
} hpi_parts;

struct hpi_run {
    hpi_coll_state *state;
    hp_group *group;
    hp_collective what;
    hpi_coll c;
    const char *name; /* a literal: "all_reduce" */
    int rank, n;
    uint64_t seq;
    uint64_t in_size, out_size;   /* bytes of an element */
    uint64_t in_bytes, out_bytes; /* of this rank's operands, up to the end of their last part */
    uint64_t in_skip_bytes, out_skip_bytes; /* of that, before their first part: of a v form */
    uint64_t own_begin; /* the element at which this rank's part of the cut operand begins */
    bool is_in_place, is_empty;    /* empty: no rank has anything to move */
    hpi_parts in_parts, out_parts; /* of the v forms */
    hp_wire wire;                  /* HP_WIRE_FULL, or what contributions travel in */
    /* What a rank says of the call, see words.h: TYPES, COUNT, and what both mix into the history.
     */
    uint64_t types, count_word, mixed;
    hpi_reduction reduction;      /* of a reduction in full precision */
    const hpi_algorithm *unmet;   /* for which nobody meets; NULL: ranks meet */
    const hpi_algorithm *carried; /* where the input comes with the meeting; NULL: it does not */
    uint64_t carried_own_bytes;   /* of the input, this rank's part, which stays where it lies */
    bool is_small;                /* the input travels in the words */
    bool may_be_carried;          /* ... or may be copied for all to read, by the call alone */
    bool must_be_carried;         /* ... or is, wherever it lies: then nobody looks where */
    bool is_carried;              /* ... and was; after the meeting: on every rank */
    bool has_own;                 /* ... and this rank's part of the output is there already */
    bool are_afar;                /* by what all have found of each other: ring.c, handback.c */
    bool inputs_placed, outputs_placed;
    bool is_apart;    /* of an all-reduce: the output has the type of the input, and is another
                         buffer on some rank */
    bool is_readable; /* all that is read of peers, wherever it lies: see direct/ */
    uint64_t longest; /* of an all_to_all_v: elements of the longest part of any rank */
    const hpi_algorithm *algorithm; /* NULL: nothing moves */
};
/* From here on a run holds what the meeting finds: zeros before it. */
#define HPI_RUN_MET offsetof(hpi_run, is_carried)

/* The last call of a kind, but of a v form, as it was given and as it stood before the meeting: the
 * next one is mostly the same, and need not be checked and prepared again. */
struct hpi_kept {
    bool is_there;
    bool has_call; /* of the public call that it came by */
    hp_coll_call call;
    hpi_coll given;
    hpi_run run;
};

/* ---- check.c ---- */

/* Check every argument and fill in what follows from them. Touches nothing else. */
hp_status hpi_coll_check(hp_group *group, hp_collective what, const hpi_coll *c, hpi_run *out_run);
/* The part of it that asks count, dtypes and the number of ranks alone; sizes of the forms whose
 * parts are equal follow. Fills what `run` says of these. */
hp_status hpi_coll_check_shape(hpi_run *run);
const char *hpi_reduce_name(hp_reduce op);
const char *hpi_collective_name(hp_collective what);
const char *hpi_wire_name(hp_wire wire);

/* The probe of a collective: the rows of events.def stand in the order of hp_collective. */
static inline hpi_event hpi_collective_event(hp_collective what) {
    _Static_assert(HPI_EVENT_all_reduce - HPI_EVENT_all_gather == HP_ALL_REDUCE &&
                       HPI_EVENT_broadcast - HPI_EVENT_all_gather == HP_BROADCAST &&
                       HPI_EVENT_recv - HPI_EVENT_all_gather == HP_RECV,
                   "events.def and hp_collective differ");
    return (hpi_event)(HPI_EVENT_all_gather + (int)what);
}

/* ---- meet/enter.c ---- */

/* Meet: returns when every member has entered this collective and all mean the same, with
 * state->in and state->out filled as the algorithm that was chosen needs. Errors: MISMATCH, and
 * what waiting gives. */
hp_status hpi_coll_enter(hpi_run *run);
/* What this rank will say of a checked call. */
void hpi_words_prepare(hpi_run *run);

/* ---- meet/carried.c: inputs that have come with the meeting ---- */

hp_status hpi_reduce_words(hpi_run *run);
hp_status hpi_scatter_reduce_words(hpi_run *run);
hp_status hpi_reduce_carried(hpi_run *run);
hp_status hpi_scatter_reduce_carried(hpi_run *run);
hp_status hpi_gather_carried(hpi_run *run);
hp_status hpi_exchange_carried(hpi_run *run);

/* ---- choose.c ---- */

/* Of a call that may be carried: is it, where its operands are in symmetric memory or are not? */
bool hpi_is_worth_carrying(const hpi_run *run, bool is_symmetric);
/* Is there a row of such needs for as many bytes? */
bool hpi_has_row(const hpi_run *run, hpi_needs needs);
/* Set run->algorithm, when all have said where their operands lie. Every rank chooses the same,
 * because it chooses from what all have said. Errors: UNSUPPORTED, of a forced one. */
hp_status hpi_choose(hpi_run *run);
/* Why it did, in words. */
void hpi_choice_explain(const hpi_run *run, char *out_text, size_t size);
/* Before the meeting, from the call alone: what hpi_run says of is_small, may_be_carried, unmet
 * and carried. Every rank whose call is the same chooses the same. */
void hpi_choose_ahead(hpi_run *run);
/* Is the call as large as that? */
bool hpi_is_from(const hpi_run *run, hpi_threshold threshold);
/* Are its operands, of STREAM bytes on the mean, more than caches hold? Each rank for itself. */
bool hpi_passes_caches(const hpi_run *run);
/* The number of the forced row, from 1; 0: none. */
unsigned hpi_only_find(const hpi_run *run);
static inline unsigned hpi_only_of(const hpi_run *run) {
    return run->state->only ? hpi_only_find(run) : 0;
}

/* ---- thresholds.c ---- */

/* The table, or where the option's `text` names one, that. Errors: ARGUMENT, of the text. */
hp_status hpi_thresholds_fill(const char *text, bool is_crowded, uint64_t *out_thresholds);
const char *hpi_threshold_name(hpi_threshold threshold);

/* ---- placed/: where the data lie ---- */

hp_status hpi_gather(hpi_run *run);
/* What this rank keeps of its own input; nothing in place. */
void hpi_gather_own(const hpi_run *run);
/* A block of that: from STREAM on past the caches, which the peers' blocks take. */
void hpi_copy_own(const hpi_run *run, void *to, const void *from, uint64_t bytes);
hp_status hpi_scatter_reduce(hpi_run *run);
hp_status hpi_reduce_push(hpi_run *run);
hp_status hpi_reduce_copied(hpi_run *run);
hp_status hpi_broadcast_pull(hpi_run *run);
hp_status hpi_broadcast_push_pull(hpi_run *run);

/* What the call means to the kernels. */
hpi_reduction hpi_reduction_of(const hpi_run *run);
/* The elements of [0, count) that `rank` owns: cut at cache lines, so that owners share none; over
 * a wire at whole blocks. */
void hpi_slice(const hpi_run *run, uint64_t count, int rank, uint64_t *out_begin,
               uint64_t *out_end);

/* ---- cast/: broadcasts for which nobody meets ---- */

hp_status hpi_cast_run(hpi_run *run);
hp_status hpi_cast_create(hpi_cast **out_cast);
void hpi_cast_destroy(hp_group *group, hpi_cast *cast);

/* ---- placed/handback.c: what this rank alone has read of a peer's memory ---- */

/* Is a line that a peer has read dear to write again on this processor, and can it be flushed? */
bool hpi_are_lines_dear(void);
typedef struct hpi_reading {
    hpi_coll_state *state; /* NULL: nothing goes back */
} hpi_reading;
/* Before this call reads anything. `own` and `peer` are its own input and a peer's, `bytes` of
 * each; now and then loads from their ends are timed. */
hpi_reading hpi_reading_begin(const hpi_run *run, const void *own, const void *peer,
                              uint64_t bytes);
/* What was timed, of a reading that may hand back. */
void hpi_reading_judge(const hpi_reading *reading, uint64_t own_ns, uint64_t peer_ns);
bool hpi_is_from_afar(const hpi_reading *reading);
/* The most bytes of the next piece of each peer; and one that is not needed any more. */
uint64_t hpi_reading_step(const hpi_reading *reading);
void hpi_hand_back(const hpi_reading *reading, const void *piece, uint64_t bytes);

/* ---- placed/exchange.c: all-to-all ---- */

hp_status hpi_exchange(hpi_run *run);
hp_status hpi_exchange_v(hpi_run *run);
/* This rank's part for itself. */
void hpi_exchange_own(const hpi_run *run);
/* This rank's share of a sum that is 0 over the group where each part is as long as its receiver
 * expects (and, but for one chance in 2^64, only there). */
uint64_t hpi_exchange_balance(const hpi_run *run);
/* The sum is not 0: find the parts that differ. MISMATCH naming them, the same on every rank. */
hp_status hpi_exchange_blame(hpi_run *run);

/* ---- parts.c: operands that are cut into a part for each rank ---- */

static inline bool hpi_is_v(hp_collective what) {
    return what == HP_ALL_GATHER_V || what == HP_REDUCE_SCATTER_V || what == HP_ALL_TO_ALL_V;
}
/* The counts and offsets of a v form; fills the sizes of the run. */
hp_status hpi_parts_check(hpi_run *run);
/* In place, no part of another rank may lie over this rank's own. */
bool hpi_parts_own_is_apart(const hpi_run *run);
/* A v form: where the parts of its operands begin. Called once, when the state is there. */
void hpi_parts_lay(hpi_run *run);
/* Rank i's part of the operand that is cut into parts (the output of a gather, the input of a
 * reduce-scatter): *out_count elements of each block, the first of them element *out_begin of the
 * operand; block b is b * n * count further. A v form has one block. */
void hpi_part_elements(const hpi_run *run, int i, uint64_t *out_begin, uint64_t *out_count);
/* Elements of rank i's part in all its blocks; of the longest part, which is the same on every
 * rank. */
uint64_t hpi_part_total(const hpi_run *run, int i);
uint64_t hpi_part_longest(const hpi_run *run);
/* Of bytes [at, end) of a part: how many from `at` on are adjacent in the operand, and where. */
uint64_t hpi_part_piece(const hpi_run *run, int part, uint64_t at, uint64_t end,
                        uint64_t *out_offset);
/* Bytes [begin, end) of rank `part`'s part, to or from a plain array that holds these bytes alone.
 */
void hpi_part_scatter(const hpi_run *run, int part, const void *plain, uint64_t begin,
                      uint64_t end);
void hpi_part_collect(const hpi_run *run, int part, void *plain, uint64_t begin, uint64_t end);

typedef struct hpi_piece {
    uint64_t begin, bytes;
} hpi_piece;
/* Of a large broadcast, what the root stores into every output. */
hpi_piece hpi_root_slice(const hpi_run *run);
/* Of an all-to-all: what this rank sends to rank j, and what it gets of rank i. */
hpi_piece hpi_sent_to(const hpi_run *run, int j);
hpi_piece hpi_got_of(const hpi_run *run, int i);

/* ---- ring.c ---- */

/* How large cells and ring of a group are: fills cell_bytes and ring.bytes. is_roomy: each rank has
 * a core, and the heap is not limited. */
void hpi_ring_size(hpi_coll_state *s, int n_ranks, bool is_roomy);
uint64_t hpi_ring_most(const hpi_coll_state *s); /* bytes of the longest piece */
/* Before the first piece. Local. Errors: MEMORY, LIMIT. */
hp_status hpi_ring_open(hpi_run *run);
void hpi_ring_close(hpi_coll_state *s);
/* The next piece, to be filled; of two ranks it is the next one until hpi_ring_took. */
unsigned char *hpi_ring_take(hpi_run *run, uint64_t bytes, bool is_carried);
/* Both ranks have filled it, or will. */
void hpi_ring_took(hpi_run *run, bool is_carried);
/* What peers are told: where the piece lies in this rank's segment; of two ranks, where the ring.
 */
uint64_t hpi_ring_told(const hpi_run *run, const unsigned char *piece);
/* The piece of a peer that has told so, filled since hpi_ring_took. */
unsigned char *hpi_ring_find(hpi_run *run, int peer, uint64_t told);
/* Fill (a part of) a piece or a pocket, in the way that suits where its readers are; now and then
 * the stores are timed. */
void hpi_ring_fill(hpi_distance *distance, void *to, const void *from, uint64_t bytes);
/* The same, and a copy to this rank's own output, where that costs less at once: true. */
bool hpi_ring_fill_twice(hpi_distance *distance, void *to, void *own, const void *from,
                         uint64_t bytes);
/* Copy a piece of a peer's out of its caches. */
void hpi_ring_read(void *out, const void *in, uint64_t bytes);
/* This rank alone reads these bytes of a peer's piece, and has done so: see ring.c. */
void hpi_ring_keep(const hpi_run *run, const void *piece, uint64_t bytes);

/* ---- staged/: through cells, for ordinary memory, and for ranks that are afar ---- */

hp_status hpi_gather_staged(hpi_run *run);
hp_status hpi_broadcast_staged(hpi_run *run);
hp_status hpi_exchange_staged(hpi_run *run);
hp_status hpi_scatter_reduce_staged(hpi_run *run);
hp_status hpi_reduce_staged(hpi_run *run);
uint64_t hpi_reduce_staged_step(const hpi_run *run); /* elements of its chunks */
/* For who moves through cells; what a tick is, and why it is safe, stands in stage.c. */
unsigned char *hpi_cell_of(const hpi_run *run, int rank); /* of the present tick */
/* Where rank `part`'s part is in the cell of `writer`, which has a place for each rank: the parts
 * of the others first, its own last. So the cells of two ranks are alike, and the lines that one
 * has read are those that it fills. */
static inline uint64_t hpi_cell_index(const hpi_run *run, int writer, int part) {
    return (uint64_t)(part == writer ? run->n - 1 : part - (part > writer));
}
/* Returns the own cell, to fill: `bytes` of it, up to cell_bytes. */
unsigned char *hpi_tick_begin(hpi_run *run, uint64_t bytes);
void hpi_tick_post(hpi_run *run);
hp_status hpi_tick_hear(const hpi_run *run, int peer);
hp_status hpi_tick_wait(hpi_run *run, int peer); /* and then find its cell */
hp_status hpi_tick_wait_all(hpi_run *run);
/* A tick without cells: each rank says a word; and waits for all others'. */
void hpi_tick_say(hpi_run *run, uint64_t word);
hp_status hpi_tick_tell(hpi_run *run, uint64_t word);
uint64_t hpi_tick_told(const hpi_run *run, int rank); /* in the present tick */

/* ---- direct/: ordinary memory, read and written across processes ---- */

hp_status hpi_gather_direct(hpi_run *run);
hp_status hpi_broadcast_direct(hpi_run *run);
hp_status hpi_exchange_direct(hpi_run *run);
hp_status hpi_scatter_reduce_direct(hpi_run *run);
hp_status hpi_reduce_direct(hpi_run *run);
uint64_t hpi_reduce_direct_step(const hpi_run *run); /* elements of a round */

/* ---- staged/wire.c: what travels in low precision ---- */

/* The wire that a call means: FULL where it does not apply. Errors: ARGUMENT, for one asked for by
 * argument that the dtype cannot take. */
hp_status hpi_wire_choose(hp_group *group, hp_dtype dtype, hp_wire asked, const char *call,
                          hp_wire *out_wire);
hp_status hpi_scatter_reduce_wire(hpi_run *run);
hp_status hpi_reduce_wire(hpi_run *run);
uint64_t hpi_wire_step(const hpi_run *run); /* elements of its chunks */
/* Do the owners store their results straight into every output? */
bool hpi_wire_pushes(const hpi_run *run);
hp_status hpi_wire_alone(hpi_run *run); /* in a group of one */

/* ---- staged/rounded.c: the same where operands are seen by all ---- */

/* Can the kernels round what they read, in the algorithms of full precision? */
bool hpi_rounds_in_registers(const hpi_run *run);
hp_status hpi_scatter_reduce_rounded(hpi_run *run);
hp_status hpi_reduce_rounded(hpi_run *run);

/* ---- message/mailbox.c: send and receive ---- */

/* `rank`, count, dtype and data (in of a send, out of a receive) as the call gives them; checked
 * against the group, and nothing touched, by the first. */
hp_status hpi_mailbox_check(hp_group *group, hp_collective what, const hpi_coll *c);
hp_status hpi_mailbox_run(hp_group *group, hp_collective what, const hpi_coll *c);

/* ---- across/: groups that span nodes ---- */

/* What hangs on such a group. Errors: MEMORY. */
hp_status hpi_across_state(hp_group *group, hpi_coll_state **out_state);
/* One collective; it is drained when it returns. */
hp_status hpi_across_run(hp_group *group, hp_collective what, const hpi_coll *c, uint64_t *out_seq);
/* A send or a receive. */
hp_status hpi_across_letter(hp_group *group, hp_collective what, const hpi_coll *c);
/* What messages moved in the last collective. */
void hpi_across_traffic(const hpi_run *run, hp_coll_traffic *out_traffic);

/* ---- traffic.c: the bytes that were moved ---- */

/* What a checked run moves by run->algorithm. false: that has no row in traffic.c. */
bool hpi_traffic_of(const hpi_run *run, hp_coll_traffic *out_traffic);

/* ---- call.c ---- */

/* What a public call means, but for its stream. Errors: ARGUMENT. */
hp_status hpi_coll_of(const hp_coll_call *call, hpi_coll *out_coll);
/* The arguments of a public call, as its run checks them. Of a message only out_run->what. */
hp_status hpi_coll_check_call(const hp_coll_call *call, hpi_run *out_run);

/* ---- coll.c ---- */

hp_status hpi_wait_those_beside(hp_group *group, int channel, uint64_t seq, const char *name);
/* Before a wait for all: those who share this rank's core come first. They come when it gives way,
 * and by then the others may be there. Nothing to do with a core for each rank. */
static inline hp_status hpi_wait_beside(hp_group *group, int channel, uint64_t seq,
                                        const char *name) {
    return hpi_world_can_spin(hp_group_world(group))
               ? HP_OK
               : hpi_wait_those_beside(group, channel, seq, name);
}
/* Run a collective that was called in public and not on a stream: checked, and drained too. */
hp_status hpi_coll_run_call(const hp_coll_call *call);
/* Run one collective. is_public: drained too, as public calls are. out_seq may be NULL. */
hp_status hpi_coll_run(hp_group *group, hp_collective what, const hpi_coll *c, bool is_public,
                       uint64_t *out_seq);
/* Force an algorithm by name; NULL: choose again. All members must agree. For tests. */
hp_status hpi_coll_only(hp_group *group, const char *name);
/* The algorithm that ran last on this group, "" when nothing was moved. */
const char *hpi_coll_last(hp_group *group);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * fused/inside.h - the inside of room `fused`: one product on its way through.
 *
 *     check     arguments and sizes, nothing touched                                   call.c
 *     say       in an entry what I am about to do, and where my block lies             meet.c
 *     gather    multiply pieces, each when its ranks have said the same                gather.c
 *     scatter   multiply tiles into slots, add mine of all ranks                       scatter.c
 *
 * Each rank has an hpi_shared in its segment that it alone writes. Its numbers only rise, from 0 in
 * fresh memory. A call's number, its sequence on the group, is the value of entries and of `read`;
 * tiles are counted over all calls. Every rank hears every entry before it returns, so when one
 * posts number s all have posted s - 1, and have heard s - 2: two entries are enough.
 */
#ifndef HPI_FUSED_INSIDE_H
#define HPI_FUSED_INSIDE_H

#include "../coll/coll.h"
#include "../symm/symm.h"
#include "fused.h"

typedef enum hpi_fused_what {
    HPI_GATHER_MATMUL,
    HPI_MATMUL_SCATTER,
    HPI_GATHER_WEIGHTS,
    HPI_N_FUSED
} hpi_fused_what;

/* What ranks compare, then where the block lies: {key, offset} in symmetric memory, {0, offset in
 * the segment} where it was copied to. */
enum { HPI_SAYS_TYPES, HPI_SAYS_WIDTH, HPI_SAYS_ROWS, HPI_SAYS_CUT, HPI_N_COMPARED };
enum {
    HPI_SAYS_KEY = HPI_N_COMPARED,
    HPI_SAYS_OFFSET,
    HPI_SAYS_STRIDE, /* elements between its rows */
    HPI_SAYS_TIME,   /* when the rank came, on the clock of the node */
    HPI_N_SAYS
};

typedef struct hpi_fused_entry {
    _Alignas(128) _Atomic uint64_t seq; /* release; acquired by who waits for it, in meet.c */
    _Atomic uint64_t words[HPI_N_SAYS];
} hpi_fused_entry;
_Static_assert(sizeof(hpi_fused_entry) == 128, "entries are shared between processes");

typedef struct hpi_fused_line {
    _Alignas(128) _Atomic uint64_t value;
} hpi_fused_line;

/* Of one rank. Each value is stored seq_cst, since sleepers are looked for behind it, and acquired
 * by hpi_world_wait or by hpi_fused_is_there. */
typedef struct hpi_shared {
    hpi_fused_entry entries[2]; /* of call s: s % 2 */
    hpi_fused_line read;        /* the last call whose blocks of peers this rank needs no more */
    hpi_fused_line made;        /* tiles that lie in its slots, or lay there */
    hpi_fused_line added;       /* tiles of all ranks whose slots it needs no more */
} hpi_shared;
_Static_assert(sizeof(hpi_shared) == 640, "shared between processes");

/* Tile number t lies in slot t % HPI_TILE_SLOTS of each rank. */
enum { HPI_TILE_SLOTS = 4, HPI_TILE_BYTES = 2 << 20 };
_Static_assert(HPI_TILE_SLOTS *HPI_TILE_BYTES == 8 << 20, "fused.h says what a group takes");

/* Ordinary memory that grows, in huge pages where it is large and the kernel has them: products
 * read a line of many rows each, and would look up a page for every one. Pages that are never
 * touched are never there. */
typedef struct hpi_memory {
    void *allocation, *data;
    uint64_t bytes;
} hpi_memory;

/* Of a gather: the rows of ranks [first, end), multiplied at once. */
typedef struct hpi_fused_piece {
    int first, end;
    bool is_done;
} hpi_fused_piece;

/* Hangs on a group. Used by one thread at a time. */
typedef struct hpi_fused_state {
    hp_group *group;
    uint64_t seq;        /* of the last call */
    uint64_t n_tiles;    /* of all calls so far; numbers, some of which are left out */
    uint64_t staged_seq; /* the last call whose block was copied for peers to read; 0: none */
    hpi_fused_cut cut;
    hpi_outbox *control, *staging, *slots; /* in the own segment; NULL: not taken yet */
    uint64_t staging_bytes;
    hpi_shared **shared;         /* [size]: of each rank, as seen here */
    unsigned char **heaps;       /* [size]: where the segment of each begins here */
    const unsigned char **block; /* [size]: of the present call, of who has been heard; else NULL */
    uint64_t *stride;            /* [size]: elements between its rows */
    bool *is_heard;              /* [size] */
    hpi_fused_piece *pieces;     /* [size]: of the present call */
    const void **tile;           /* [size]: the same tile of each rank */
    unsigned char *scratch;      /* of the tree's sums */
    hpi_memory gathered;         /* blocks that were copied here */
    hpi_memory sums;             /* a row of a tile, before it is rounded */
} hpi_fused_state;

typedef struct hpi_fused_run {
    hpi_fused_state *state;
    hp_group *group;
    hp_world *world;
    const hp_fused_args *args;
    hpi_fused_what what;
    const char *name; /* a literal */
    int rank, n;
    uint64_t seq;
    int64_t m;        /* rows of all */
    uint64_t element; /* bytes, of a and b */
} hpi_fused_run;

/* The first of rank i's rows; i may be the size of the group. */
static inline int64_t hpi_rows_before(const hpi_fused_run *run, int i) {
    int64_t n = 0;
    for (int j = 0; j < i; j++)
        n += run->args->rows[j];
    return n;
}

/* ---- state.c ---- */

/* The group is entered. The first call waits for all members. */
hp_status hpi_fused_state_get(hp_group *group, hpi_fused_state **out_state);
/* Ordinary memory of at least `bytes`; what it held before is lost. Errors: MEMORY. */
hp_status hpi_fused_reserve(hpi_memory *memory, uint64_t bytes);

/* Rows of row_bytes; steps are bytes from a row to the next one. */
void hpi_fused_copy(void *to, uint64_t to_step, const void *from, uint64_t from_step,
                    uint64_t row_bytes, int64_t n_rows);

/* ---- call.c ---- */

const char *hpi_fused_name(hpi_fused_what what);

/* ---- meet.c ---- */

/* Post the entry of this call; `a` is copied for the peers if they cannot see it. Errors: LIMIT,
 * and those of a wait for who still reads the last copy. */
hp_status hpi_fused_say(hpi_fused_run *run);
/* Hear rank i, which may be this one: waits until it has come. Fills state->block and stride.
 * Errors: MISMATCH, and those of a wait. */
hp_status hpi_fused_hear(hpi_fused_run *run, int i);
bool hpi_fused_has_come(const hpi_fused_run *run, int i);
/* Ranks [first, end). */
hp_status hpi_fused_hear_all(hpi_fused_run *run, int first, int end);
/* Have all others come long ago? They can go on when this rank has copied their blocks, which takes
 * less than they have waited already. */
bool hpi_fused_is_late(const hpi_fused_run *run);
/* Others, in the order in which they are likely to come: for k from 0 while it is below 2 n; -1 is
 * nobody. Who shares this core comes when it is given away, and by then the rest may be there. */
static inline int hpi_fused_other(const hpi_fused_run *run, int k) {
    const int i = (run->rank + k) % run->n;
    const bool is_first_round = k < run->n;
    if (i == run->rank)
        return -1;
    if (is_first_round && (hpi_world_can_spin(run->world) ||
                           !hpi_world_is_beside(run->world, hp_group_world_rank(run->group, i))))
        return -1;
    return i;
}
/* Post a value of the own shared lines, and wait for rank i's. */
void hpi_fused_post(hpi_fused_run *run, _Atomic uint64_t *own, uint64_t value);
hp_status hpi_fused_wait(hpi_fused_run *run, const _Atomic uint64_t *word, int i, uint64_t value);
static inline bool hpi_fused_is_there(const _Atomic uint64_t *word, uint64_t value) {
    return atomic_load_explicit(word, memory_order_acquire) >= value;
}

/* ---- gather.c, scatter.c ---- */

hp_status hpi_fused_run_gather(hpi_fused_run *run);
hp_status hpi_fused_run_scatter(hpi_fused_run *run);

/* ---- cut.c ---- */

/* Is each rank's block multiplied by itself, or are all gathered and multiplied at once? */
bool hpi_fused_is_apart(const hpi_fused_run *run);
/* Rows and columns of a tile, the same on all ranks. */
void hpi_fused_tile(const hpi_fused_run *run, int64_t *out_rows, int64_t *out_columns);

#endif

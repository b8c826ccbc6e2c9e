/* SPDX-License-Identifier: Apache-2.0
 *
 * coll_bench.h - run any collective on a rank and hold it against the serial oracle, bit for bit.
 *
 * One engine runs a case (collective, dtypes, op, count, shape of its parts, memory, in place or
 * not) on every rank: fill, call, compare with what the oracle makes of all ranks' inputs, and look
 * that not a byte beside the output was written. It goes through the short forms, hp_coll_run and
 * the two phases of the room's door in turn. Tests feed it lists of cases.
 */
#ifndef SUPPORT_COLL_BENCH_H
#define SUPPORT_COLL_BENCH_H

#include "coll/inside.h"

enum { BENCH_MAX_RANKS = 9 };

/* Where the operands of a rank lie. */
typedef enum whereabouts {
    SYMMETRIC,
    ORDINARY,
    SHIFTED, /* symmetric, an element off the cache line */
    ODD,     /* symmetric, at an odd address */
    APART,   /* symmetric, at another offset on every rank */
    MIXED,   /* symmetric on even ranks, ordinary on odd ones */
    N_MEMORIES
} whereabouts;

/* How the parts of a v form differ in length. */
typedef enum skew { EVEN, ZEROS /* 0, 1, 2 times count */, LONE /* one part alone */ } skew;
/* Where they lie: packed, or from the last to the first with gaps, the same on all ranks or not. */
typedef enum layout { PACKED, BACKWARDS, OWN_WAY } layout;

typedef struct coll_case {
    hp_collective what;
    hp_dtype dtype, out_dtype;
    hp_reduce op;
    uint64_t count, blocks;
    whereabouts where;
    bool in_place;
    int root;
    skew skew;
    layout layout;
} coll_case;

/* What a rank runs cases with. */
typedef struct bench {
    hp_group *group;
    int rank, n;
    hp_symm memory;
    unsigned char *symmetric[2], *ordinary[2]; /* in, out */
    unsigned char *inputs;                     /* every rank's, packed, arena_bytes apart */
    unsigned char *expected, *image;           /* the output's pieces; the arena around it */
    uint64_t arena_bytes, n_cases;
} bench;

/* Operands of up to most_bytes; collective over the group. Every failure ends the rank's body. */
void bench_open(bench *b, hp_world *world, hp_group *group, uint64_t most_bytes);
void bench_close(bench *b);
void bench_run(bench *b, const coll_case *c);
/* Can the case be in place at all? */
bool bench_can_be_in_place(const coll_case *c);

/* Call `run` for every collective, dtype, op and sum type, the rest of the case being as given. */
void bench_each_kind(bench *b, coll_case c, void (*run)(bench *b, coll_case c));

#endif

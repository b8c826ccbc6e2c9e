/* SPDX-License-Identifier: Apache-2.0
 *
 * perf/peer.h - another library, measured as hpperf measures this one.
 *
 * A peer program fills in what its library can do and calls peer_take_turns: buffers, values, their
 * checking and the times are the same code for all. Nothing here needs this library at run time.
 */
#ifndef PERF_PEER_H
#define PERF_PEER_H

#include "turn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One call, again and again on the same memory. */
typedef struct peer_call {
    hp_collective what; /* HP_SEND: one message to `partner` and one back, the even rank first */
    hp_dtype dtype;
    hp_reduce reduce;
    unsigned long long count; /* elements of a part */
    size_t part_bytes;
    bool is_in_place;
    int root, partner; /* partner: -1, none */
    void *in, *out;    /* broadcast: the same; in place: see peer_library.scatters_to_own_part */
} peer_call;

typedef struct peer_library {
    void *self;
    int rank, n_ranks;
    /* In place, a reduce_scatter leaves its result at this rank's part of the input, not at its
     * beginning. */
    bool scatters_to_own_part;
    /* Before the first of equal calls. 1; 0: the library has no such call; negative: failed. */
    int (*prepare)(void *self, const peer_call *call);
    int (*run)(void *self, const peer_call *call); /* 0, or negative */
    int (*barrier)(void *self);
    int (*most)(void *self, double *x, int n); /* x[k] becomes its largest over the ranks */
} peer_library;

/* Measure what the lines of `fd`, a connection of token.h, say, until there is no line any more. 0;
 * negative when a call failed or there is no memory. Collective. */
int peer_take_turns(const peer_library *library, int fd);

#ifdef __cplusplus
}
#endif

#endif

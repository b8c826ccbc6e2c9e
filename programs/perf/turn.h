/* SPDX-License-Identifier: Apache-2.0
 *
 * perf/turn.h - the line that tells a peer what to measure.
 *
 *     all_reduce fp32 sum 16384 touched in_place root=0 batch=4 iterations=25 check
 *
 * It says all that there is to know, so that a peer keeps nothing from turn to turn but its memory.
 */
#ifndef PERF_TURN_H
#define PERF_TURN_H

#include <hyperparallel/coll.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct turn {
    hp_collective what; /* HP_SEND: there and back */
    hp_dtype dtype;
    hp_reduce reduce;
    unsigned long long count; /* elements of a part */
    bool is_classic, is_in_place, checks;
    int root;
    int batch, iterations;
} turn;

void turn_print(const turn *t, char *out, size_t size);
/* false: it says something else. */
bool turn_parse(const char *line, turn *out_turn);

#ifdef __cplusplus
}
#endif

#endif

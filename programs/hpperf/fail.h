/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/fail.h - failures of the program itself, kept in the library's error record.
 *
 * Functions return an hp_status, their own failures through fail(), and pass others on with TRY.
 * The text is printed once: by agree(), or by main at the end.
 */
#ifndef HPPERF_FAIL_H
#define HPPERF_FAIL_H

#include <hyperparallel/world.h>
#include <stdio.h>

#define TRY(expression)                                                                            \
    do {                                                                                           \
        const hp_status try_status_ = (expression);                                                \
        if (try_status_ < 0)                                                                       \
            return try_status_;                                                                    \
    } while (0)

/* Keep the text and return the status. */
#define fail(status, ...) (hp_error_set((status), NULL, __VA_ARGS__), (status))

/* Every rank brings its own status; where one failed, all return what the first of them brought,
 * which that rank has said, so that nobody has a text any more. Collective. */
hp_status agree(hp_world *world, hp_status mine);

/* Say why `status` was returned, if it is this rank's to tell: see fail.c. world_rank: -1 before
 * there is a world. */
void failure_print(FILE *file, hp_status status, int world_rank);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/fail.h - failures of the program itself, kept in the library's error record.
 *
 * Every function of hptrain that can fail returns an hp_status, its own failures through fail(),
 * and passes others on with TRY. main prints the text once, at the end.
 */
#ifndef HPTRAIN_FAIL_H
#define HPTRAIN_FAIL_H

#include <hyperparallel/world.h>
#include <stdbool.h>
#include <stdio.h>

#define TRY(expression)                                                                            \
    do {                                                                                           \
        const hp_status try_status_ = (expression);                                                \
        if (try_status_ < 0)                                                                       \
            return try_status_;                                                                    \
    } while (0)

/* Keep the text and return the status. */
#define fail(status, ...) hp_error_set(status, NULL, __VA_ARGS__)

/* Every rank brings its own status; where one failed, all return what the first of them brought,
 * and that rank alone has a text. For what ranks do by themselves between two calls that they make
 * together. Collective. */
hp_status agree(hp_world *world, hp_status mine);

/* Say why `status` was returned, if it is this rank's to tell. What a rank saw by itself is. A
 * failure that all ranks get alike is told by the rank that the record names and by rank 0; one
 * that agree() found, by the first rank that had it. world_rank: -1 before there is a world. */
void failure_print(FILE *file, hp_status status, int world_rank);

#endif

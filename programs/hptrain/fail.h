/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/fail.h - failures of the program itself, beside those of the library.
 *
 * Every function of hptrain that can fail returns an hp_status, its own failures through fail(),
 * and passes others on with TRY. main prints the text once, at the end.
 */
#ifndef HPTRAIN_FAIL_H
#define HPTRAIN_FAIL_H

#include <hyperparallel/world.h>
#include <stdbool.h>

#define TRY(expression)                                                                            \
    do {                                                                                           \
        const hp_status try_status_ = (expression);                                                \
        if (try_status_ < 0)                                                                       \
            return try_status_;                                                                    \
    } while (0)

/* Keep the text and return the status. */
hp_status fail(hp_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Why `status` was returned: the program's own text, else the library's, else the status's. */
const char *failure_text(hp_status status);

/* Is it this rank's to tell? What a rank saw by itself is. A failure that all ranks get alike is
 * told by the rank that the library's record names and by rank 0; one that agree() found, by the
 * first rank that had it. */
bool failure_is_mine(hp_status status, int world_rank);

/* Every rank brings its own status; all fail when one did. For what ranks do by themselves between
 * two calls that they make together. Collective. */
hp_status agree(hp_world *world, hp_status mine);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * tensor_parallel.c - tensor_parallel.h by four ranks that mpirun started.
 */
#include "tensor_parallel.h"

#include <stdio.h>

static int fail(const char *what) {
    fprintf(stderr, "tensor_parallel: %s\n", what);
    return 1;
}

int main(void) {
    hp_world *world;
    bool is_equal = false;
    if (hp_world_create(NULL, &world) < 0)
        return fail(hp_last_error());
    const int rank = hp_world_rank(world);
    if (hp_world_size(world) != TP_RANKS || tp_train(world, &is_equal) < 0)
        return fail(hp_last_error());
    hp_world_destroy(world);
    if (!is_equal)
        return fail("expected the weights of one rank that is all of them");
    printf("rank %d: the same bits in %d steps\n", rank, (int)TP_STEPS);
    return 0;
}

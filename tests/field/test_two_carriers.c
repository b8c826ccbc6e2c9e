/* SPDX-License-Identifier: Apache-2.0
 *
 * test_two_carriers.c - in one job some groups are carried by the transport and others by
 * symmetric memory. Here ranks are threads, and messages go between them; tests/cluster runs the
 * same under mpirun.
 */
#include "../cluster/tensor_parallel.h"
#include "../support/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void train(hp_world *world, void *argument) {
    bool is_equal = false;
    (void)argument;
    RANK_OK(tp_train(world, &is_equal));
    RANK_CHECK(is_equal);
}

/* Tensor groups over the transport, data groups over symmetric memory. */
static void tensor_parallel_beside_data_parallel(void **state) {
    (void)state;
    ranks_run_nodes(TP_RANKS, TP_RANKS, train, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(tensor_parallel_beside_data_parallel)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

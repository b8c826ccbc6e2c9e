/* SPDX-License-Identifier: Apache-2.0
 *
 * test_nodes_misuse.c - public calls on groups that span nodes, or that the transport carries, as
 * somebody makes them who does not think of nodes: each works, or says what it expected.
 */
#include "../support/ranks.h"
#include "world/inside.h"

#include <hyperparallel/hyperparallel.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { N = 4, PER_NODE = 2 };

/* One range for a group of one node whose members speak over the transport. */
static void spanning_memory(hp_world *world, void *argument) {
    hp_group *near, *carried;
    hp_symm symm;
    void *pointer;
    uint64_t word = 1;
    const int rank = hp_world_rank(world);
    (void)argument;
    RANK_OK(hp_group_split(hp_world_group(world), rank / PER_NODE, 0, &near));
    RANK_OK(hp_group_duplicate_over(near, HP_CARRIER_TRANSPORT, &carried));
    RANK_OK(hp_symm_alloc_spanning(world, carried, 4096, &symm));
    for (int i = 0; i < PER_NODE; i++)
        RANK_OK(hp_symm_pointer(symm, i, carried, &pointer));
    RANK_OK(hp_symm_free(symm));
    RANK_OK(hp_symm_alloc(world, carried, 4096, 64, &symm));
    RANK_OK(
        hp_symm_put_signal(symm, 8, &word, 8, symm, 0, HP_SIGNAL_ADD, 1, 1 - rank % 2, carried));
    RANK_OK(hp_symm_wait(symm, 0, HP_GE, 1, 0));
    RANK_OK(hp_symm_free(symm));
    hp_group_destroy(carried);
    hp_group_destroy(near);
}

/* Another node's word, and own ones that nobody raises. */
static void one_sided(hp_world *world, void *argument) {
    hp_symm symm;
    const int rank = hp_world_rank(world), far = (rank + PER_NODE) % N;
    uint64_t word = 7;
    void *pointer;
    (void)argument;
    RANK_OK(hp_symm_alloc(world, NULL, 64, 0, &symm));
    RANK_FAILS(hp_symm_put_signal(symm, 8, &word, 8, symm, 0, HP_SIGNAL_SET, 1, far, NULL),
               HP_ERR_UNSUPPORTED);
    RANK_FAILS(hp_symm_put(symm, 8, &word, 8, far, hp_world_group(world)), HP_ERR_UNSUPPORTED);
    RANK_FAILS(hp_symm_pointer(symm, far, hp_world_group(world), &pointer), HP_ERR_UNSUPPORTED);
    for (int what = HP_SYMM_PUT; what < HP_SYMM_WAIT; what++) {
        hp_symm_call call = HP_SYMM_CALL_INIT;
        call.what = (hp_symm_what)what;
        call.memory = call.signal = symm;
        call.source = call.target = &word;
        call.bytes = 8;
        call.rank = far;
        RANK_FAILS(hp_symm_run(&call), HP_ERR_UNSUPPORTED);
    }
    RANK_FAILS(hp_symm_wait(symm, 0, HP_EQ, 1, 100), HP_ERR_TIMEOUT);
    RANK_OK(hp_barrier(hp_world_group(world)));
    RANK_OK(hp_symm_free(symm));
}

static void queries(hp_world *world, void *argument) {
    hp_group *group, *none;
    hp_coll_traffic traffic;
    hp_symm_stats stats;
    float in[8] = {1}, out[8 * N];
    hp_coll_call call = HP_COLL_CALL_INIT;
    (void)argument;
    RANK_OK(hp_group_duplicate(hp_world_group(world), &group));
    call.what = HP_ALL_GATHER;
    call.group = group;
    call.in = in;
    call.out = out;
    call.count = 8;
    RANK_FAILS(hp_coll_traffic_get(&call, &traffic), HP_ERR_STATE);
    RANK_OK(hp_coll_run(&call));
    RANK_OK(hp_coll_traffic_get(&call, &traffic));
    RANK_CHECK(!strcmp(traffic.algorithm, "across"));
    call.what = HP_SEND;
    call.rank = (hp_group_rank(group) + 1) % N;
    RANK_OK(hp_coll_traffic_get(&call, &traffic));
    call.rank = N;
    RANK_FAILS(hp_coll_traffic_get(&call, &traffic), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_coll_run(&call), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_all_gather(group, in, NULL, 8, HP_FP32), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_broadcast(group, in, 8, HP_FP32, -1), HP_ERR_ARGUMENT);
    RANK_OK(hp_symm_stats_get(world, &stats));
    RANK_OK(hp_group_split(group, -1, 0, &none));
    RANK_CHECK(!none);
    RANK_FAILS(hp_group_create(world, (int[]){(hp_world_rank(world) + 2) % N}, 1, &none),
               HP_ERR_ARGUMENT);
    RANK_OK(hp_world_check(world));
    RANK_OK(hp_barrier(group));
    hp_group_destroy(group);
}

/* Nodes that make different set-up calls, with other numbers of words. */
static void other_setup(hp_world *world, void *argument) {
    hp_group *group, *half;
    hp_symm symm;
    (void)argument;
    RANK_OK(hp_group_duplicate(hp_world_group(world), &group));
    const bool is_first = hp_world_rank(world) < PER_NODE;
    RANK_FAILS(is_first ? hp_symm_alloc(world, group, 64, 0, &symm)
                        : hp_group_split(group, 0, 0, &half),
               HP_ERR_MISMATCH);
    RANK_CHECK(strstr(hp_last_error(), "symm_alloc") && strstr(hp_last_error(), "group_split"));
    hp_group_destroy(group);
}

static void fsdp_modes(hp_world *world, void *argument) {
    hp_mesh *mesh;
    (void)argument;
    RANK_OK(hp_mesh_create(world, (int[]){1, N}, 2, &mesh));
    for (int mode = HP_PER_PARAM; mode <= HP_AUTO; mode++) {
        hp_fsdp *fsdp;
        hp_unit *unit;
        hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
        const int64_t shape[] = {8, 8};
        hp_param param = HP_PARAM_INIT;
        param.name = "w";
        memcpy(param.shape, shape, sizeof shape);
        param.n_dims = 2;
        config.mode = (hp_mode)mode;
        RANK_OK(hp_fsdp_create(mesh, &config, &fsdp));
        RANK_OK(hp_unit_create(fsdp, "u", &param, 1, NULL, &unit));
        const hp_status status = hp_fsdp_commit(fsdp);
        RANK_CHECK(status == (mode == HP_MAPPED ? HP_ERR_UNSUPPORTED : HP_OK));
        hp_fsdp_destroy(fsdp);
    }
    hp_mesh_destroy(mesh);
}

/* One rank leaves while the others are in its group. */
static void one_leaves(hp_world *world, void *argument) {
    hp_group *group;
    (void)argument;
    RANK_OK(hp_group_duplicate(hp_world_group(world), &group));
    RANK_OK(hp_barrier(group));
    if (hp_world_rank(world) == 0) {
        hp_group_destroy(group);
        return;
    }
    RANK_FAILS(hp_barrier(group), HP_ERR_PEER);
    hp_group_destroy(group);
}

#define TEST(name)                                                                                 \
    static void test_##name(void **state) {                                                        \
        (void)state;                                                                               \
        ranks_run_nodes(N, PER_NODE, name, NULL);                                                  \
    }
TEST(spanning_memory)
TEST(one_sided)
TEST(queries)
TEST(other_setup)
TEST(fsdp_modes)
TEST(one_leaves)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spanning_memory), cmocka_unit_test(test_one_sided),
        cmocka_unit_test(test_queries),         cmocka_unit_test(test_other_setup),
        cmocka_unit_test(test_fsdp_modes),      cmocka_unit_test(test_one_leaves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

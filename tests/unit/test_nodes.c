/* SPDX-License-Identifier: Apache-2.0
 *
 * test_nodes.c - a world over several nodes: who is where, groups that span nodes, their words and
 * messages.
 */
#include "../support/ranks.h"
#include "symm/symm.h"
#include "world/inside.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { N = 6, PER_NODE = 4 }; /* nodes of 4 and 2 */

static void where_ranks_are(hp_world *world, void *argument) {
    const int rank = hp_world_rank(world);
    (void)argument;
    RANK_CHECK(hp_world_size(world) == N);
    RANK_CHECK(hp_world_local_rank(world) == rank % PER_NODE);
    RANK_CHECK(hp_world_local_size(world) == (rank < PER_NODE ? PER_NODE : N - PER_NODE));
    for (int i = 0; i < N; i++) {
        uint64_t bytes;
        RANK_CHECK(hpi_world_is_local(world, i) == (i / PER_NODE == rank / PER_NODE));
        RANK_CHECK(!hpi_world_segment(world, i, &bytes) == !hpi_world_is_local(world, i));
    }
}

static void ranks_of_two_nodes(void **state) {
    (void)state;
    ranks_run_nodes(N, PER_NODE, where_ranks_are, NULL);
}

/* What launchers say of a host, all of it wrong. */
static void S16_nodes_are_found_not_told(void **state) {
    static const char *const names[] = {"LOCAL_WORLD_SIZE", "LOCAL_RANK",
                                        "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        setenv(names[i], "6", 1);
    ranks_run_nodes(N, PER_NODE, where_ranks_are, NULL);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unsetenv(names[i]);
}

/* Each says its world rank, and a number of the round. */
static void exchange(hp_group *group, uint64_t round) {
    const uint64_t mine[2] = {(uint64_t)hp_world_rank(hp_group_world(group)), round};
    uint64_t all[N][2];
    RANK_OK(hpi_group_enter(group, "test"));
    RANK_OK(hpi_group_exchange(group, "test", mine, 2, &all[0][0]));
    hpi_group_leave(group);
    for (int i = 0; i < hp_group_size(group); i++)
        RANK_CHECK(all[i][0] == (uint64_t)hp_group_world_rank(group, i) && all[i][1] == round);
}

static void check_place(hp_group *group) {
    const hpi_nodes *nodes = hpi_group_nodes(group);
    const int rank = hp_group_rank(group);
    RANK_CHECK(nodes && nodes->node_of[rank] == nodes->mine);
    RANK_CHECK(nodes->members[nodes->begin[nodes->mine] + nodes->place_of[rank]] == rank);
    RANK_CHECK(hp_group_size(hpi_group_inner(group)) == hpi_node_size(nodes, nodes->mine));
    RANK_CHECK(hp_group_rank(hpi_group_inner(group)) == nodes->place_of[rank]);
}

static bool is_among(const int *ranks, int n, int rank) {
    for (int i = 0; i < n; i++)
        if (ranks[i] == rank)
            return true;
    return false;
}

static const int lists[][N] = {{0, 1, 2, 3, 4, 5}, {5, 0, 4, 1}, {3, 4}, {0, 1, 4}, {0, 1, 5}};
static const int sizes[] = {6, 4, 2, 3, 3};
enum { N_LISTS = 5 };

/* Those of one list, and of lists whose part on a node is the same, in orders that differ. */
static void many_groups(hp_world *world, void *argument) {
    hp_group *groups[2][N_LISTS] = {{NULL}};
    const int rank = hp_world_rank(world);
    (void)argument;
    for (int copy = 0; copy < 2; copy++)
        for (int k = 0; k < N_LISTS; k++) {
            const int i = rank % 2 ? k : N_LISTS - 1 - k;
            if (is_among(lists[i], sizes[i], rank))
                RANK_OK(hp_group_create(world, lists[i], sizes[i], &groups[copy][i]));
        }
    for (int i = 0; i < N_LISTS; i++)
        for (int copy = 1; copy >= 0 && groups[copy][i]; copy--) {
            check_place(groups[copy][i]);
            for (uint64_t round = 0; round < 5; round++)
                exchange(groups[copy][i], 100 * (uint64_t)i + round);
        }
    for (int i = 0; i < N_LISTS; i++)
        for (int copy = 0; copy < 2; copy++)
            hp_group_destroy(groups[copy][i]);
}

static void groups_that_span(void **state) {
    (void)state;
    ranks_run_nodes(N, PER_NODE, many_groups, NULL);
    ranks_run_nodes(N, 1, many_groups, NULL);
}

/* Split and meshes exchange over groups that span. */
static void derived(hp_world *world, void *argument) {
    hp_group *half, *carried;
    hp_mesh *mesh;
    const int rank = hp_world_rank(world);
    (void)argument;
    RANK_OK(hp_group_split(hp_world_group(world), rank % 2, -rank, &half));
    RANK_CHECK(hp_group_size(half) == N / 2 && hp_group_world_rank(half, 0) == 4 + rank % 2);
    exchange(half, 7);
    RANK_OK(hp_mesh_create(world, (int[]){3, 2}, 2, &mesh));
    RANK_CHECK(hpi_group_nodes(hp_mesh_group(mesh, 0)) && !hpi_group_nodes(hp_mesh_group(mesh, 1)));
    exchange(hp_mesh_group(mesh, 0), 8);
    exchange(hp_mesh_group(mesh, 1), 9);
    RANK_OK(hp_group_duplicate_over(hp_mesh_group(mesh, 1), HP_CARRIER_TRANSPORT, &carried));
    RANK_CHECK(hpi_group_nodes(carried)->n == 2);
    check_place(carried);
    exchange(carried, 10);
    hp_group_destroy(carried);
    hp_mesh_destroy(mesh);
    hp_group_destroy(half);
}

static void split_and_meshes(void **state) {
    (void)state;
    ranks_run_nodes(N, PER_NODE, derived, NULL);
}

/* Both directions at once, more than a transport keeps for itself. */
static void messages(hp_world *world, void *argument) {
    enum { BYTES = 100000 };
    hp_group *group = hp_world_group(world);
    const int rank = hp_group_rank(group), peer = N - 1 - rank;
    unsigned char *out = malloc(BYTES), *in = malloc(BYTES);
    hpi_transfer *sent, *received;
    (void)argument;
    memset(out, rank, BYTES);
    RANK_OK(hpi_remote_send(group, peer, 3, out, BYTES, &sent));
    RANK_OK(hpi_remote_receive(group, peer, 3, in, BYTES, &received));
    RANK_OK(hpi_remote_wait(group, received, 1, "test"));
    RANK_OK(hpi_remote_wait(group, sent, 1, "test"));
    for (int i = 0; i < BYTES; i++)
        RANK_CHECK(in[i] == peer);
    free(in);
    free(out);
}

static void messages_between_nodes(void **state) {
    (void)state;
    ranks_run_nodes(N, 1, messages, NULL);
    ranks_run_nodes(N, 3, messages, NULL);
}

/* Ranks of other nodes make another call. */
static void other_calls(hp_world *world, void *argument) {
    hp_group *group;
    uint64_t word = 0, all[N];
    const bool is_odd = !hpi_world_is_local(world, 0);
    (void)argument;
    RANK_OK(hp_group_duplicate(hp_world_group(world), &group));
    RANK_OK(hpi_group_enter(group, "test"));
    RANK_FAILS(hpi_group_exchange(group, is_odd ? "one" : "another", &word, 1, all),
               HP_ERR_MISMATCH);
    RANK_CHECK(strstr(hp_last_error(), "another") && strstr(hp_last_error(), "one"));
    hpi_group_leave(group);
    RANK_FAILS(hpi_group_enter(group, "test"), HP_ERR_MISMATCH);
    hp_group_destroy(group);
}

static void calls_that_differ(void **state) {
    (void)state;
    ranks_run_nodes(N, PER_NODE, other_calls, NULL);
}

/* Memory of a group that spans: on every rank, reached inside the node. */
static void memory(hp_world *world, void *argument) {
    hp_symm symm;
    uint64_t word = 100 + (uint64_t)hp_world_rank(world), got = 0;
    void *pointer;
    (void)argument;
    RANK_OK(hp_symm_alloc(world, NULL, 4096, 0, &symm));
    for (int i = 0; i < N; i++) {
        const bool is_near = hpi_world_is_local(world, i);
        const hp_status expected = HP_ERR_UNSUPPORTED;
        if (is_near) {
            RANK_OK(hp_symm_put(symm, 8 * (uint64_t)hp_world_rank(world), &word, 8, i, NULL));
            RANK_OK(hp_symm_pointer(symm, i, NULL, &pointer));
            continue;
        }
        RANK_FAILS(hp_symm_put(symm, 0, &word, 8, i, NULL), expected);
        RANK_CHECK(strstr(hp_last_error(), "node0") && strstr(hp_last_error(), "node1"));
        RANK_FAILS(hp_symm_get(&got, symm, 0, 8, i, NULL), expected);
        RANK_FAILS(hp_symm_signal(symm, 0, HP_SIGNAL_SET, 1, i, NULL), expected);
        RANK_FAILS(hp_symm_pointer(symm, i, NULL, &pointer), expected);
    }
    exchange(hp_world_group(world), 11);
    for (int i = 0; i < N; i++) {
        RANK_OK(hp_symm_get(&got, symm, 8 * (uint64_t)i, 8, hp_world_rank(world), NULL));
        RANK_CHECK(!hpi_world_is_local(world, i) || got == 100 + (uint64_t)i);
    }
    RANK_OK(hp_symm_free(symm));
    RANK_FAILS(hp_symm_alloc_spanning(world, NULL, 4096, &symm), HP_ERR_UNSUPPORTED);
    RANK_OK(hp_symm_alloc_spanning(world, hpi_group_inner(hp_world_group(world)), 4096, &symm));
    RANK_OK(hp_symm_free(symm));
}

static void memory_of_a_group_that_spans(void **state) {
    (void)state;
    ranks_run_nodes(N, PER_NODE, memory, NULL);
}

static void no_transport(hp_world *world, void *argument) {
    hp_group *group;
    (void)argument;
    RANK_FAILS(hp_group_duplicate_over(hp_world_group(world), HP_CARRIER_TRANSPORT, &group),
               HP_ERR_UNSUPPORTED);
    RANK_FAILS(hp_group_duplicate_over(hp_world_group(world), (hp_carrier)2, &group),
               HP_ERR_ARGUMENT);
    RANK_FAILS(hp_group_duplicate_over(NULL, HP_CARRIER_AUTO, &group), HP_ERR_ARGUMENT);
    RANK_OK(hp_group_duplicate_over(hp_world_group(world), HP_CARRIER_AUTO, &group));
    hp_group_destroy(group);
}

static void a_job_without_a_transport(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, no_transport, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_of_two_nodes),
        cmocka_unit_test(S16_nodes_are_found_not_told),
        cmocka_unit_test(groups_that_span),
        cmocka_unit_test(split_and_meshes),
        cmocka_unit_test(messages_between_nodes),
        cmocka_unit_test(calls_that_differ),
        cmocka_unit_test(memory_of_a_group_that_spans),
        cmocka_unit_test(a_job_without_a_transport),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

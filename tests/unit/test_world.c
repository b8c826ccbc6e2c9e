/* SPDX-License-Identifier: Apache-2.0
 *
 * test_world.c - groups, lines, waits and the mesh, between ranks that are threads or processes.
 *
 * What must hold: groups need nobody's order but that of equal lists; lines carry no value over
 * from an earlier group; every wait ends, with the answer or with an error that names the rank.
 */
#include "support/ranks.h"
#include "world/inside.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

enum { MOST_RANKS = 16 };

static void check_exchange(hp_group *group, uint64_t salt) {
    uint64_t all[MOST_RANKS];
    const uint64_t mine = salt + (uint64_t)hp_group_rank(group);
    RANK_OK(hpi_group_exchange(group, "test_exchange", &mine, 1, all));
    for (int i = 0; i < hp_group_size(group); i++)
        RANK_CHECK(all[i] == salt + (uint64_t)i);
}

/* ---- who we are ---------------------------------------------------------------------------- */

static void identity_body(hp_world *world, void *argument) {
    const int n = *(int *)argument;
    hp_group *group = hp_world_group(world);
    RANK_CHECK(hp_world_size(world) == n && hp_world_local_size(world) == n);
    RANK_CHECK(hp_world_rank(world) == hp_group_rank(group));
    RANK_CHECK(hp_world_local_rank(world) == hp_world_rank(world));
    RANK_CHECK(hp_group_size(group) == n && hp_group_world(group) == world);
    RANK_CHECK(hp_group_world_rank(group, n) == -1 && hp_group_world_rank(group, -1) == -1);
    RANK_CHECK(!strcmp(hpi_group_name(group), "world"));
    RANK_OK(hp_world_check(world));
    for (uint64_t i = 0; i < 50; i++)
        check_exchange(group, 1000 * i);
}

static void test_sizes(void **state) {
    (void)state;
    for (int n = 1; n <= 9; n += n < 5 ? 1 : 4) {
        ranks_run(n, RANKS_THREADS, identity_body, &n);
        ranks_run(n, RANKS_PROCESSES, identity_body, &n);
    }
}

/* ---- groups -------------------------------------------------------------------------------- */

enum { ORDER_RANKS = 5, N_SUBSETS = 1 << ORDER_RANKS };

static void shuffle(int *items, int n, uint64_t *seed) {
    for (int i = n - 1; i > 0; i--) {
        const int k = (int)(hpi_random_next(seed) % (uint64_t)(i + 1));
        const int swap = items[i];
        items[i] = items[k];
        items[k] = swap;
    }
}

static int members_of(int subset, int *out_ranks) {
    int n = 0;
    for (int i = 0; i < ORDER_RANKS; i++)
        if (subset >> i & 1)
            out_ranks[n++] = i;
    return n;
}

/* Every subset is a group; each rank creates and destroys its own in an order of its own. */
static void orders_body(hp_world *world, void *argument) {
    uint64_t seed = *(uint64_t *)argument + 77 * (uint64_t)hp_world_rank(world);
    int mine[N_SUBSETS], n_mine = 0, ranks[ORDER_RANKS];
    hp_group *groups[N_SUBSETS] = {0};
    for (int subset = 1; subset < N_SUBSETS; subset++)
        if (subset >> hp_world_rank(world) & 1)
            mine[n_mine++] = subset;
    for (int round = 0; round < 10; round++) {
        shuffle(mine, n_mine, &seed);
        for (int i = 0; i < n_mine; i++) {
            const int n = members_of(mine[i], ranks);
            RANK_OK(hp_group_create(world, ranks, n, &groups[mine[i]]));
        }
        /* used in one order everywhere, subsets before the world and after it */
        for (int subset = 1; subset < N_SUBSETS; subset++)
            if (groups[subset])
                check_exchange(groups[subset], (uint64_t)subset);
        check_exchange(hp_world_group(world), 5);
        shuffle(mine, n_mine, &seed);
        for (int i = 0; i < n_mine; i++) {
            hp_group_destroy(groups[mine[i]]);
            groups[mine[i]] = NULL;
        }
    }
}

static void test_any_order(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 5; seed++)
        ranks_run(ORDER_RANKS, RANKS_THREADS, orders_body, &seed);
    ranks_run(ORDER_RANKS, RANKS_PROCESSES, orders_body, &(uint64_t){9});
}

static void order_of_members_body(hp_world *world, void *argument) {
    const int ranks[3] = {2, 0, 1};
    hp_group *group;
    (void)argument;
    RANK_OK(hp_group_create(world, ranks, 3, &group));
    RANK_CHECK(ranks[hp_group_rank(group)] == hp_world_rank(world));
    for (int i = 0; i < 3; i++)
        RANK_CHECK(hp_group_world_rank(group, i) == ranks[i]);
    check_exchange(group, 3);
    hp_group_destroy(group);
}

static void test_order_of_members(void **state) {
    (void)state;
    ranks_run(3, RANKS_THREADS, order_of_members_body, NULL);
}

static void split_body(hp_world *world, void *argument) {
    const int rank = hp_world_rank(world);
    hp_group *half, *none = (hp_group *)world, *copy;
    (void)argument;
    /* the even ranks backwards, the odd ones in order of equal keys */
    RANK_OK(hp_group_split(hp_world_group(world), rank % 2, rank % 2 ? 7 : -rank, &half));
    RANK_CHECK(hp_group_size(half) == (rank % 2 ? 2 : 3));
    RANK_CHECK(hp_group_rank(half) == (rank % 2 ? rank / 2 : 2 - rank / 2));
    check_exchange(half, 40);
    RANK_OK(hp_group_split(half, rank == 4 ? -1 : 0, 0, &none));
    RANK_CHECK((none == NULL) == (rank == 4));
    if (none)
        check_exchange(none, 50);
    RANK_OK(hp_group_duplicate(half, &copy));
    RANK_CHECK(copy->slot != half->slot && hp_group_size(copy) == hp_group_size(half));
    /* a call on the copy between the two phases of one on the original does not disturb it */
    hpi_line_post(half, HPI_LINE_CHUNK, 1);
    check_exchange(copy, 60);
    for (int i = 0; i < hp_group_size(half); i++)
        RANK_OK(hpi_line_wait(half, i, HPI_LINE_CHUNK, 1, "test"));
    hp_group_destroy(none);
    hp_group_destroy(half);
    check_exchange(copy, 70);
    hp_group_destroy(copy);
}

static void test_split_duplicate(void **state) {
    (void)state;
    ranks_run(5, RANKS_THREADS, split_body, NULL);
    ranks_run(5, RANKS_PROCESSES, split_body, NULL);
}

/* Slots are used again, at whatever value their lines were left. Between two exchanges a rank may
 * be 16 groups ahead of the other. */
enum { MOST_AHEAD = 40 };
static void churn_body(hp_world *world, void *argument) {
    const int n_groups = *(int *)argument;
    for (int i = 0; i < n_groups; i++) {
        hp_group *group;
        const int ranks[2] = {i % 2, 1 - i % 2};
        RANK_OK(hp_group_create(world, ranks, 2, &group));
        RANK_CHECK(group->slot < MOST_AHEAD);
        if (i % 16 == 0)
            check_exchange(group, (uint64_t)i);
        hp_group_destroy(group);
    }
    check_exchange(hp_world_group(world), 1);
    RANK_CHECK(hpi_segment_directory(&world->segments[0])->n_entries < MOST_AHEAD);
}

/* Groups that the other rank has not joined yet queue up: as many as are alive at once. */
static void ahead_body(hp_world *world, void *argument) {
    enum { N_AHEAD = 200 };
    hp_group *groups[N_AHEAD];
    (void)argument;
    for (int i = 0; i < N_AHEAD; i++) {
        RANK_OK(hp_group_create(world, (int[]){0, 1}, 2, &groups[i]));
        hpi_line_post(groups[i], HPI_LINE_ENTER, (uint64_t)i + 1);
    }
    for (int i = 0; i < N_AHEAD; i++) {
        RANK_OK(hpi_line_wait(groups[i], 1 - hp_world_rank(world), HPI_LINE_ENTER, (uint64_t)i + 1,
                              "test"));
        RANK_CHECK(!hpi_line_reached(groups[i], 1 - hp_world_rank(world), HPI_LINE_ENTER,
                                     (uint64_t)i + 2));
    }
    for (int i = 0; i < N_AHEAD; i++)
        hp_group_destroy(groups[i]);
}

static void test_churn(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, ahead_body, NULL);
    ranks_run(2, RANKS_THREADS, churn_body, &(int){10000});
    ranks_run(2, RANKS_PROCESSES, churn_body, &(int){10000});
}

static void bad_group_body(hp_world *world, void *argument) {
    hp_group *group;
    (void)argument;
    RANK_FAILS(hp_group_create(NULL, (int[]){0}, 1, &group), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_group_create(world, NULL, 1, &group), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_group_create(world, (int[]){0}, 0, &group), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_group_create(world, (int[]){0, 2}, 2, &group), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_group_create(world, (int[]){0, 1, 0}, 3, &group), HP_ERR_ARGUMENT);
    RANK_CHECK(strstr(hp_last_error(), "rank 0 is given twice"));
    RANK_FAILS(hp_group_create(world, (int[]){1 - hp_world_rank(world)}, 1, &group),
               HP_ERR_ARGUMENT);
    RANK_FAILS(hp_group_split(NULL, 0, 0, &group), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_group_duplicate(hp_world_group(world), NULL), HP_ERR_ARGUMENT);
    hp_group_destroy(NULL);
    check_exchange(hp_world_group(world), 2);
}

static void test_bad_groups(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, bad_group_body, NULL);
}

static void busy_body(hp_world *world, void *argument) {
    hp_group *group = hp_world_group(world);
    (void)argument;
    RANK_OK(hpi_group_enter(group, "first"));
    RANK_FAILS(hpi_group_enter(group, "second"), HP_ERR_BUSY);
    RANK_FAILS(hp_group_duplicate(group, &group), HP_ERR_BUSY);
    hpi_group_leave(group);
    RANK_OK(hpi_group_enter(group, "third"));
    hpi_group_leave(group);
    (void)HPI_FAIL_RANK(HP_ERR_MISMATCH, 5, "a reason");
    hpi_group_fail(group);
    (void)HPI_FAIL(HP_ERR_ARGUMENT, "another");
    hpi_group_fail(group);
    hp_error error;
    RANK_FAILS(hpi_group_enter(group, "late"), HP_ERR_MISMATCH);
    hp_last_error_get(&error);
    RANK_CHECK(error.world_rank == 5 && !strcmp(error.message, "a reason"));
}

static void test_busy_and_failed(void **state) {
    (void)state;
    ranks_run(1, RANKS_THREADS, busy_body, NULL);
}

static void count_down(void *counter) {
    --*(int *)counter;
}

static void attach_body(hp_world *world, void *argument) {
    int on_group = 1;
    hp_group *group;
    (void)argument;
    RANK_OK(hp_group_create(world, (int[]){0}, 1, &group));
    RANK_CHECK(!hpi_group_attached(group, HPI_SLOT_COLL));
    hpi_group_attach(group, HPI_SLOT_COLL, &on_group, count_down);
    RANK_CHECK(hpi_group_attached(group, HPI_SLOT_COLL) == &on_group);
    hp_group_destroy(group);
    RANK_CHECK(on_group == 0);
    RANK_CHECK(hpi_world_attach(world, HPI_SLOT_SYMM, argument, count_down));
    RANK_CHECK(!hpi_world_attach(world, HPI_SLOT_SYMM, &on_group, count_down)); /* too late */
    RANK_CHECK(hpi_world_attached(world, HPI_SLOT_SYMM) == argument);
}

static void test_attach(void **state) {
    int on_world = 1;
    (void)state;
    ranks_run(1, RANKS_THREADS, attach_body, &on_world);
    assert_int_equal(on_world, 0);
}

static void map_body(hp_world *world, void *argument) {
    enum { BYTES = 1 << 20 };
    hp_group *group = hp_world_group(world), *pair = NULL;
    const int rank = hp_world_rank(world), n = hp_world_size(world);
    void *memory, *other;
    (void)argument;
    RANK_OK(hpi_group_map(group, BYTES, &memory));
    ((unsigned char *)memory)[rank] = (unsigned char)(rank + 1);
    check_exchange(group, 1);
    for (int i = 0; i < n; i++)
        RANK_CHECK(((unsigned char *)memory)[i] == i + 1);
    RANK_CHECK(((unsigned char *)memory)[BYTES - 1] == 0);
    /* mappings of several groups at once, each with its own first member */
    RANK_OK(hp_group_split(group, rank % 2, -rank, &pair));
    RANK_OK(hpi_group_map(pair, 100, &other));
    RANK_CHECK(*(uint64_t *)other == 0);
    check_exchange(pair, 1);
    if (hp_group_rank(pair) == 0)
        *(uint64_t *)other = 17;
    check_exchange(pair, 2);
    RANK_CHECK(*(uint64_t *)other == 17);
    hpi_group_unmap(group, memory, BYTES);
    hpi_group_unmap(pair, other, 100);
    RANK_FAILS(hpi_group_map(pair, UINT64_C(1) << 46, &other), HP_ERR_LIMIT);
    hp_group_destroy(pair);
}

static void test_map(void **state) {
    (void)state;
    ranks_run(4, RANKS_THREADS, map_body, NULL);
    ranks_run(4, RANKS_PROCESSES, map_body, NULL);
    ranks_run(13, RANKS_PROCESSES, map_body, NULL); /* more than a datagram queue holds */
}

static void segment_body(hp_world *world, void *argument) {
    const int rank = hp_world_rank(world), next = (rank + 1) % hp_world_size(world);
    uint64_t bytes = 0, next_bytes = 0;
    (void)argument;
    unsigned char *mine = hpi_world_segment(world, rank, &bytes);
    RANK_CHECK(mine && bytes >= (UINT64_C(1) << 20));
    RANK_CHECK((uintptr_t)mine % 4096 == 0);
    RANK_OK(hpi_world_commit(world, 0, 100000));
    RANK_OK(hpi_world_commit(world, 0, 100000));
    RANK_OK(hpi_world_commit(world, 5000, 0));
    RANK_FAILS(hpi_world_commit(world, bytes, 1), HP_ERR_LIMIT);
    RANK_FAILS(hpi_world_commit(world, 1, UINT64_MAX), HP_ERR_LIMIT);
    RANK_FAILS(hpi_world_check_memory(world, UINT64_C(1) << 50, "a test"), HP_ERR_LIMIT);
    RANK_CHECK(strstr(hp_last_error(), "a test") && strstr(hp_last_error(), "available"));
    memset(mine, rank + 1, 100000);
    check_exchange(hp_world_group(world), 1);
    const unsigned char *theirs = hpi_world_segment(world, next, &next_bytes);
    RANK_CHECK(theirs[99999] == next + 1 && next_bytes == bytes);
    RANK_CHECK(!hpi_world_segment(world, -1, &bytes) && !hpi_world_is_local(world, 99));
    check_exchange(hp_world_group(world), 2);
}

static void test_segments(void **state) {
    (void)state;
    ranks_run(3, RANKS_THREADS, segment_body, NULL);
    ranks_run(3, RANKS_PROCESSES, segment_body, NULL);
}

/* ---- the mesh ------------------------------------------------------------------------------ */

static void mesh_body(hp_world *world, void *argument) {
    const int rank = hp_world_rank(world);
    hp_mesh *mesh;
    (void)argument;
    RANK_OK(hp_mesh_create(world, (int[]){2, 3}, 2, &mesh));
    RANK_CHECK(hp_mesh_n_dims(mesh) == 2 && hp_mesh_world(mesh) == world);
    RANK_CHECK(hp_mesh_size(mesh, 0) == 2 && hp_mesh_size(mesh, 1) == 3);
    RANK_CHECK(hp_mesh_coordinate(mesh, 0) == rank / 3 && hp_mesh_coordinate(mesh, 1) == rank % 3);
    for (int dim = 0; dim < 2; dim++) {
        hp_group *group = hp_mesh_group(mesh, dim);
        RANK_CHECK(hp_group_rank(group) == hp_mesh_coordinate(mesh, dim));
        RANK_CHECK(hp_group_size(group) == hp_mesh_size(mesh, dim));
        check_exchange(group, 9);
    }
    RANK_CHECK(hp_group_world_rank(hp_mesh_group(mesh, 0), 1) == 3 + rank % 3);
    RANK_CHECK(hp_group_world_rank(hp_mesh_group(mesh, 1), 2) == rank / 3 * 3 + 2);
    if (rank == 4) {
        RANK_CHECK(!strcmp(hpi_group_name(hp_mesh_group(mesh, 0)), "dim0[1,4]"));
        RANK_CHECK(!strcmp(hpi_group_name(hp_mesh_group(mesh, 1)), "dim1[3..5]"));
    }
    RANK_CHECK(!hp_mesh_group(mesh, 2) && hp_mesh_size(mesh, -1) == -1);
    hp_mesh_destroy(mesh);
}

static void bad_mesh_body(hp_world *world, void *argument) {
    const int rank = hp_world_rank(world);
    const int sizes[2] = {rank == 2 ? 1 : 2, rank == 2 ? 4 : 2};
    hp_mesh *mesh;
    (void)argument;
    RANK_FAILS(hp_mesh_create(world, (int[]){2, 3}, 2, &mesh), HP_ERR_ARGUMENT);
    RANK_CHECK(strstr(hp_last_error(), "4 ranks") && strstr(hp_last_error(), "2x3"));
    RANK_FAILS(hp_mesh_create(world, (int[]){-2, -2}, 2, &mesh), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_mesh_create(world, (int[]){4}, 0, &mesh), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_mesh_create(world, (int[]){1, 1, 1, 1, 1, 1, 1, 1, 4}, 9, &mesh),
               HP_ERR_ARGUMENT);
    RANK_FAILS(hp_mesh_create(world, (int[]){65536, 65536, 65536, 65536, 4}, 5, &mesh),
               HP_ERR_ARGUMENT);
    RANK_FAILS(hp_mesh_create(world, sizes, 2, &mesh), HP_ERR_MISMATCH);
    RANK_CHECK(strstr(hp_last_error(), "1x4") && strstr(hp_last_error(), "rank 2"));
    hp_mesh_destroy(NULL);
}

static void test_mesh(void **state) {
    (void)state;
    ranks_run(6, RANKS_THREADS, mesh_body, NULL);
    ranks_run(6, RANKS_PROCESSES, mesh_body, NULL);
    ranks_run(4, RANKS_THREADS, bad_mesh_body, NULL);
}

/* ---- waiting ------------------------------------------------------------------------------- */

static void test_compare(void **state) {
    (void)state;
    static const struct {
        hp_compare how;
        bool below, equal, above;
    } rows[] = {{HP_EQ, false, true, false}, {HP_NE, true, false, true},
                {HP_GT, false, false, true}, {HP_GE, false, true, true},
                {HP_LT, true, false, false}, {HP_LE, true, true, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(hpi_compare(4, rows[i].how, 5), rows[i].below);
        assert_int_equal(hpi_compare(5, rows[i].how, 5), rows[i].equal);
        assert_int_equal(hpi_compare(UINT64_MAX, rows[i].how, 5), rows[i].above);
    }
}

/* A token goes round: every step but one sleeps, with more ranks than there are cores. */
static void ring_body(hp_world *world, void *argument) {
    hp_group *group = hp_world_group(world);
    const int rank = hp_group_rank(group), n = hp_group_size(group);
    const uint64_t n_rounds = *(uint64_t *)argument;
    for (uint64_t round = 1; round <= n_rounds; round++) {
        if (rank > 0)
            RANK_OK(hpi_line_wait(group, rank - 1, HPI_LINE_CHUNK, round, "ring"));
        hpi_line_post(group, HPI_LINE_CHUNK, round);
        RANK_OK(hpi_line_wait(group, n - 1, HPI_LINE_CHUNK, round, "ring"));
    }
}

static void test_ring(void **state) {
    (void)state;
    ranks_run(MOST_RANKS, RANKS_THREADS, ring_body, &(uint64_t){100});
    ranks_run(MOST_RANKS, RANKS_PROCESSES, ring_body, &(uint64_t){100});
}

/* The wake protocol: threads that never spin, several waiters per rank, words of their own. */
enum { N_PAIRS = 3, N_ROUNDS = 2000 };
typedef struct waiter {
    hp_world *world;
    _Atomic uint64_t *words; /* [2] */
    int side;
    hp_status status;
} waiter;

static void *pair_main(void *argument) {
    waiter *p = argument;
    const hpi_reason reason = {"ping", hp_world_group(p->world), 1 - p->side, 0, 0, 0};
    hpi_thread_never_spins();
    for (uint64_t i = 1; i <= N_ROUNDS && !p->status; i++) {
        if (p->side == 0) {
            atomic_store_explicit(&p->words[0], i, memory_order_seq_cst);
            hpi_world_wake(p->world, 1);
        }
        p->status = hpi_world_wait(p->world, &p->words[1 - p->side], HP_GE, i, &reason);
        if (p->side == 1) {
            atomic_store_explicit(&p->words[1], i, memory_order_seq_cst);
            hpi_world_wake(p->world, 0);
        }
    }
    return NULL;
}

static void wake_body(hp_world *world, void *argument) {
    _Atomic uint64_t(*words)[2] = argument;
    waiter pairs[N_PAIRS];
    pthread_t threads[N_PAIRS];
    for (int i = 0; i < N_PAIRS; i++) {
        pairs[i] = (waiter){world, words[i], hp_world_rank(world), HP_OK};
        RANK_CHECK(!pthread_create(&threads[i], NULL, pair_main, &pairs[i]));
    }
    for (int i = 0; i < N_PAIRS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < N_PAIRS; i++)
        RANK_CHECK(pairs[i].status == HP_OK);
    const hpi_control *own = hpi_world_control(world, hp_world_rank(world));
    RANK_CHECK(atomic_load(&own->sleepers) == 0);
    for (int i = 0; i < HPI_N_NOTES; i++)
        RANK_CHECK(atomic_load(&own->notes[i].since_ns) == 0);
}

static void test_wake(void **state) {
    static _Atomic uint64_t words[N_PAIRS][2];
    (void)state;
    ranks_run(2, RANKS_THREADS, wake_body, words);
}

static void timeout_body(hp_world *world, void *argument) {
    hp_group *group = hp_world_group(world);
    _Atomic uint64_t word = 0;
    hp_error error;
    (void)argument;
    if (hp_world_rank(world) == 0) {
        const hpi_reason for_rank = {"all_gather", group, 1, 17, 80, 0};
        const hpi_reason for_anybody = {"symm_wait", group, -1, 3, 80, 0};
        RANK_FAILS(hpi_world_wait(world, &word, HP_NE, 0, &for_rank), HP_ERR_TIMEOUT);
        hp_last_error_get(&error);
        RANK_CHECK(error.world_rank == 1);
        RANK_CHECK(strstr(error.message, "all_gather #17") && strstr(error.message, "of world"));
        /* and it says what the other rank is doing */
        RANK_CHECK(strstr(error.message, "waiting for rank 0 in test_exchange"));
        RANK_FAILS(hpi_world_wait(world, &word, HP_GT, 5, &for_anybody), HP_ERR_TIMEOUT);
        hp_last_error_get(&error);
        RANK_CHECK(error.world_rank == -1 && strstr(error.message, "symm_wait"));
    }
    check_exchange(group, 1);
}

static void test_timeout(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, timeout_body, NULL);
}

/* ---- ranks that end ------------------------------------------------------------------------ */

static void leave_body(hp_world *world, void *argument) {
    hp_group *group = hp_world_group(world);
    hp_error error;
    (void)argument;
    if (hp_world_rank(world) == 1) {
        hpi_line_post(group, HPI_LINE_CHUNK, 5);
        return;
    }
    /* what a rank did before it left counts; what it did not do is an error, not a time-out */
    RANK_OK(hpi_line_wait(group, 1, HPI_LINE_CHUNK, 5, "broadcast"));
    RANK_FAILS(hpi_line_wait(group, 1, HPI_LINE_CHUNK, 6, "broadcast"), HP_ERR_PEER);
    hp_last_error_get(&error);
    RANK_CHECK(error.world_rank == 1 && strstr(error.message, "left the job"));
    RANK_OK(hp_world_check(world)); /* it left in order */
    RANK_OK(hpi_line_wait(group, 1, HPI_LINE_CHUNK, 5, "broadcast"));
}

static void die_body(hp_world *world, void *argument) {
    hp_group *group = hp_world_group(world);
    hp_error error;
    (void)argument;
    if (hp_world_rank(world) == 2)
        ranks_die();
    /* rank 1 waits for rank 0, which gives up because of rank 2: that is who is to blame */
    RANK_FAILS(hpi_line_wait(group, hp_world_rank(world) == 0 ? 2 : 0, HPI_LINE_CHUNK, 1, "reduce"),
               HP_ERR_PEER);
    hp_last_error_get(&error);
    RANK_CHECK(error.world_rank == 2 && strstr(error.message, "rank 2 died"));
    RANK_CHECK(strstr(error.message, "reduce #1"));
    RANK_FAILS(hp_world_check(world), HP_ERR_PEER);
}

/* Rank 0 dies of rank 2's end: whoever asks how all are, without having waited, is told so too. */
static void follow_body(hp_world *world, void *argument) {
    hp_group *group = hp_world_group(world);
    hp_error error;
    (void)argument;
    if (hp_world_rank(world) == 2)
        ranks_die();
    if (hp_world_rank(world) == 0) {
        RANK_FAILS(hpi_line_wait(group, 2, HPI_LINE_CHUNK, 1, "reduce"), HP_ERR_PEER);
        ranks_die();
    }
    while (!hpi_liveness_is_dead(world, 0))
        hpi_sleep_ns(UINT64_C(1000000));
    RANK_FAILS(hp_world_check(world), HP_ERR_PEER);
    hp_last_error_get(&error);
    RANK_CHECK(error.world_rank == 2 && strstr(error.message, "rank 2 died"));
}

static void apart_body(hp_world *world, void *argument) {
    hp_group *pair;
    (void)argument;
    if (hp_world_rank(world) == 2)
        ranks_die();
    /* a group goes on while its own members live */
    RANK_OK(hp_group_create(world, (int[]){0, 1}, 2, &pair));
    for (uint64_t i = 0; i < 10; i++)
        check_exchange(pair, i);
    hp_group_destroy(pair);
}

/* Rank 1 hears of rank 2's end and leaves in order: who waits for rank 1 in a group of their own is
 * told of rank 2. */
static void leave_because_body(hp_world *world, void *argument) {
    hp_group *pair;
    hp_error error;
    (void)argument;
    if (hp_world_rank(world) == 2)
        ranks_die();
    RANK_OK(hp_group_create(world, (int[]){0, 1}, 2, &pair));
    if (hp_world_rank(world) == 1) {
        while (hp_world_check(world) == HP_OK)
            hpi_sleep_ns(UINT64_C(1000000));
    } else {
        RANK_FAILS(hpi_line_wait(pair, 1, HPI_LINE_CHUNK, 1, "reduce"), HP_ERR_PEER);
        hp_last_error_get(&error);
        RANK_CHECK(error.world_rank == 2 && strstr(error.message, "rank 2 died"));
    }
    hp_group_destroy(pair);
}

static void test_ends(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, leave_body, NULL);
    ranks_run(2, RANKS_PROCESSES, leave_body, NULL);
    ranks_run(3, RANKS_THREADS, die_body, NULL);
    ranks_run(3, RANKS_THREADS, follow_body, NULL);
    ranks_run(3, RANKS_THREADS, apart_body, NULL);
    ranks_run(3, RANKS_THREADS, leave_because_body, NULL);
}

static void fail_body(hp_world *world, void *argument) {
    (void)argument;
    RANK_CHECK(hp_world_rank(world) != 1);
    RANK_OK(hpi_line_wait(hp_world_group(world), 1, HPI_LINE_CHUNK, 1, "reduce"));
}

/* The scaffolding itself: a failed rank is named first, and the others do not hang. */
static void test_failures_are_seen(void **state) {
    char text[2048];
    (void)state;
    print_message("(two failures of rank 1 follow, as they should)\n");
    assert_int_equal(ranks_try(3, RANKS_THREADS, fail_body, NULL, text, sizeof text), 3);
    assert_non_null(strstr(text, "rank 1: "));
    assert_non_null(strstr(text, "hp_world_rank(world) != 1"));
    assert_int_equal(ranks_try(3, RANKS_PROCESSES, fail_body, NULL, text, sizeof text), 1);
    assert_non_null(strstr(text, "rank 1 (pid "));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sizes),
                                       cmocka_unit_test(test_any_order),
                                       cmocka_unit_test(test_order_of_members),
                                       cmocka_unit_test(test_split_duplicate),
                                       cmocka_unit_test(test_churn),
                                       cmocka_unit_test(test_bad_groups),
                                       cmocka_unit_test(test_busy_and_failed),
                                       cmocka_unit_test(test_attach),
                                       cmocka_unit_test(test_map),
                                       cmocka_unit_test(test_segments),
                                       cmocka_unit_test(test_mesh),
                                       cmocka_unit_test(test_compare),
                                       cmocka_unit_test(test_ring),
                                       cmocka_unit_test(test_wake),
                                       cmocka_unit_test(test_timeout),
                                       cmocka_unit_test(test_ends),
                                       cmocka_unit_test(test_failures_are_seen)};
    return cmocka_run_group_tests_name("world", tests, NULL, NULL);
}

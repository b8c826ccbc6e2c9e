/* SPDX-License-Identifier: Apache-2.0
 *
 * test_crossed.c - ranks that disagree about what they are doing, or give a group up, without
 * dying.
 *
 * What must hold: every rank that is in the call gets an error that names the other's doing, with
 * the default deadline of five minutes and within a second; and nobody gets one who may go on.
 */
#include "support/ranks.h"
#include "world/inside.h"

#include <hyperparallel/coll.h>
#include <hyperparallel/fused.h>
#include <hyperparallel/stream.h>
#include <hyperparallel/symm.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#if defined(__SANITIZE_THREAD__)
enum { HAS_A_THREAD_OF_ITS_OWN = 1 };
#else
enum { HAS_A_THREAD_OF_ITS_OWN = 0 };
#endif

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define PROMISE_NS UINT64_C(5000000000)
#else
#define PROMISE_NS UINT64_C(1000000000)
#endif

/* The call fails with this status, in time, and says all of the texts. */
#define FAILS_SAYING(call, expected, ...)                                                          \
    do {                                                                                           \
        const uint64_t begin_ns_ = hpi_now_ns();                                                   \
        RANK_FAILS(call, expected);                                                                \
        RANK_CHECK(hpi_now_ns() - begin_ns_ < PROMISE_NS);                                         \
        const char *const texts_[] = {__VA_ARGS__};                                                \
        for (size_t t_ = 0; t_ < sizeof texts_ / sizeof *texts_; t_++)                             \
            if (!strstr(hp_last_error(), texts_[t_]))                                              \
                RANK_OK(hp_error_set(HP_ERR_FORMAT, NULL, "expected \"%s\" in: %.400s",            \
                                     texts_[t_], hp_last_error()));                                \
    } while (0)

static void on_both(int n, ranks_body body) {
    ranks_run(n, RANKS_THREADS, body, NULL);
    ranks_run(n, RANKS_PROCESSES, body, NULL);
}

static hp_status reduce_one(hp_group *group) {
    float one = 1;
    return hp_all_reduce(group, &one, &one, 1, HP_FP32, HP_SUM);
}

/* ---- S4: a set-up call against a collective -------------------------------------------------- */

static void alloc_body(hp_world *world, void *argument) {
    hp_group *group = hp_world_group(world);
    hp_symm memory;
    (void)argument;
    RANK_OK(reduce_one(group));
    if (hp_world_rank(world) == 1)
        FAILS_SAYING(hp_symm_alloc(world, NULL, 64, 0, &memory), HP_ERR_MISMATCH, "symm_alloc",
                     "all_reduce");
    else
        FAILS_SAYING(reduce_one(group), HP_ERR_MISMATCH, "symm_alloc", "all_reduce");
    /* and it stays failed, on every rank */
    RANK_FAILS(hp_barrier(group), HP_ERR_MISMATCH);
}

static void test_S4_alloc_against_collective(void **state) {
    (void)state;
    on_both(2, alloc_body);
    on_both(4, alloc_body);
}

/* ---- a fused product against a collective -----------------------------------------------------
 */

static hp_status multiply(hp_group *group, hp_matmul *engine) {
    static const int64_t rows[4] = {2, 2, 2, 2};
    const float a[4] = {1, 2, 3, 4}, b[4] = {1, 0, 0, 1};
    float c[16];
    hp_fused_args args = HP_FUSED_ARGS_INIT;
    args.group = group, args.matmul = engine, args.rows = rows;
    args.n = args.k = args.lda = args.ldb = args.ldc = 2;
    args.a = a, args.b = b, args.c = c;
    return hp_all_gather_matmul(&args);
}

static void fused_body(hp_world *world, void *argument) {
    hp_group *group = hp_world_group(world);
    hp_matmul *engine;
    (void)argument;
    RANK_OK(hp_matmul_open("plain", 1, &engine));
    for (int k = 0; k < 2; k++) { /* in turns they do not cross */
        RANK_OK(reduce_one(group));
        RANK_OK(multiply(group, engine));
    }
    if (hp_world_rank(world) == 1)
        FAILS_SAYING(multiply(group, engine), HP_ERR_MISMATCH, "all_gather_matmul", "all_reduce");
    else
        FAILS_SAYING(reduce_one(group), HP_ERR_MISMATCH, "all_gather_matmul", "all_reduce");
    hp_matmul_close(engine);
}

static void test_fused_against_collective(void **state) {
    (void)state;
    on_both(2, fused_body);
    on_both(4, fused_body);
}

/* The last to come decides: one that has not come yet is no disagreement. */
static void late_body(hp_world *world, void *argument) {
    hp_group *group = hp_world_group(world);
    hp_group *half = NULL;
    (void)argument;
    switch (hp_world_rank(world)) {
    case 0:
        FAILS_SAYING(hp_group_split(group, 0, 0, &half), HP_ERR_MISMATCH, "group_split");
        break;
    case 1:
        hpi_sleep_ns(300000000);
        FAILS_SAYING(hp_barrier(group), HP_ERR_MISMATCH, "group_split");
        break;
    default:
        FAILS_SAYING(hp_barrier(group), HP_ERR_MISMATCH, "group_split");
    }
}

static void test_S4_late(void **state) {
    (void)state;
    ranks_run(3, RANKS_THREADS, late_body, NULL);
}

static void free_body(hp_world *world, void *argument) {
    hp_symm memory, more;
    hp_mesh *mesh;
    (void)argument;
    RANK_OK(hp_symm_alloc(world, NULL, 64, 0, &memory));
    switch (hp_world_rank(world)) {
    case 0:
        FAILS_SAYING(hp_symm_free(memory), HP_ERR_MISMATCH, "symm_free");
        break;
    case 1:
        FAILS_SAYING(hp_symm_alloc(world, NULL, 64, 0, &more), HP_ERR_MISMATCH, "symm_alloc");
        break;
    default:
        FAILS_SAYING(hp_mesh_create(world, (int[]){3}, 1, &mesh), HP_ERR_MISMATCH, "mesh_create");
    }
}

static void test_S4_set_up_calls(void **state) {
    (void)state;
    ranks_run(3, RANKS_THREADS, free_body, NULL);
}

/* Mail needs nobody's turn: a receive is no call that a collective could cross. */
static void mail_body(hp_world *world, void *argument) {
    hp_group *group = hp_world_group(world);
    int32_t word = 7;
    (void)argument;
    if (hp_world_rank(world) == 0) {
        hpi_sleep_ns(200000000);
        RANK_OK(hp_send(group, &word, 1, HP_INT32, 1));
    } else if (hp_world_rank(world) == 1) {
        RANK_OK(hp_recv(group, &word, 1, HP_INT32, 0));
    }
    RANK_OK(hp_barrier(group));
}

static void test_S4_mail_is_not_crossed(void **state) {
    (void)state;
    ranks_run(3, RANKS_THREADS, mail_body, NULL);
}

/* ---- R11: groups of different lists ---------------------------------------------------------- */

static void lists_body(hp_world *world, void *argument) {
    hp_group *group;
    const int rank = hp_world_rank(world);
    (void)argument;
    RANK_OK(hp_group_create(world, (int[]){0, 1, 2}, rank == 0 ? 2 : 3, &group));
    FAILS_SAYING(hp_barrier(group), HP_ERR_MISMATCH, rank == 0 ? "group[0,1]" : "group[0..2]",
                 "never created");
    hp_group_destroy(group);
    RANK_OK(hp_barrier(hp_world_group(world))); /* which is unharmed */
}

static void order_body(hp_world *world, void *argument) {
    hp_group *group;
    hp_symm memory;
    const int rank = hp_world_rank(world);
    (void)argument;
    RANK_OK(hp_group_create(world, (int[]){rank, 1 - rank}, 2, &group));
    FAILS_SAYING(hp_symm_alloc(world, group, 64, 0, &memory), HP_ERR_MISMATCH,
                 rank == 0 ? "group[0,1]" : "group[1,0]", "never created");
    hp_group_destroy(group);
    RANK_OK(hp_barrier(hp_world_group(world)));
}

/* Where other threads might still create the group, and so among threads, it is known at the
 * deadline; a sanitizer has a thread of its own. */
static void test_R11_lists_that_differ(void **state) {
    (void)state;
    if (!HAS_A_THREAD_OF_ITS_OWN) {
        ranks_run(3, RANKS_PROCESSES, lists_body, NULL);
        ranks_run(2, RANKS_PROCESSES, order_body, NULL);
    }
    setenv("SYMMETRIC_MEMORY_SIGNAL_TIMEOUT_MS", "700", 1);
    ranks_run(2, RANKS_THREADS, order_body, NULL);
    unsetenv("SYMMETRIC_MEMORY_SIGNAL_TIMEOUT_MS");
}

/* Either rank's stream waits in a group that the other has yet to create: legal, however late. */
static void late_streams_body(hp_world *world, void *argument) {
    hp_group *groups[2];
    hp_stream *streams[2];
    float ones[2] = {1, 1};
    const int rank = hp_world_rank(world);
    (void)argument;
    for (int i = 0; i < 2; i++) {
        const int k = (rank + i) % 2; /* each begins with its own */
        hp_coll_call c = HP_COLL_CALL_INIT;
        RANK_OK(hp_group_create(world, (int[]){k, 1 - k}, 2, &groups[k]));
        RANK_OK(hp_stream_create(NULL, &streams[k]));
        c.what = HP_ALL_REDUCE;
        c.group = groups[k];
        c.in = c.out = &ones[k];
        c.count = 1;
        c.stream = streams[k];
        RANK_OK(hp_coll_run(&c));
        hpi_sleep_ns(i == 0 ? 900000000 : 0);
    }
    for (int k = 0; k < 2; k++) {
        RANK_OK(hp_stream_synchronize(streams[k]));
        RANK_CHECK(ones[k] == 2);
        hp_stream_destroy(streams[k]);
        hp_group_destroy(groups[k]);
    }
}

static void test_R11_streams_may_wait_for_late_groups(void **state) {
    (void)state;
    on_both(2, late_streams_body);
}

static void never_body(hp_world *world, void *argument) {
    hp_group *group;
    const uint64_t mine = 5;
    uint64_t all[2];
    (void)argument;
    if (hp_world_rank(world) == 0) {
        RANK_OK(hp_group_create(world, (int[]){0, 1}, 2, &group));
        hpi_group_set_name(group, "pair");
        FAILS_SAYING(hp_barrier(group), HP_ERR_TIMEOUT, "pair", "rank 1 is alive",
                     "has never created this group", "test_exchange");
        hp_group_destroy(group);
    } else { /* so that it still waits when rank 0 looks at it */
        hpi_sleep_ns(150000000);
    }
    RANK_OK(hpi_group_exchange(hp_world_group(world), "test_exchange", &mine, 1, all));
}

/* Two groups of two lists, each waited for by a rank that the other has joined. */
static void cycle_body(hp_world *world, void *argument) {
    hp_group *a, *b;
    (void)argument;
    RANK_OK(hp_group_create(world, (int[]){0, 1}, 2, &a));
    RANK_OK(hp_group_create(world, (int[]){1, 0}, 2, &b));
    if (hp_world_rank(world) == 0)
        FAILS_SAYING(hp_barrier(a), HP_ERR_TIMEOUT, "barrier #1", "group[0,1]", "all_reduce #1",
                     "group[1,0]");
    hpi_sleep_ns(hp_world_rank(world) == 1 ? 100000000 : 0); /* it still waits when 0 looks */
    if (hp_world_rank(world) == 1)
        RANK_CHECK(reduce_one(b) < 0);
    hp_group_destroy(a);
    hp_group_destroy(b);
}

static void test_R11_explained_at_the_deadline(void **state) {
    (void)state;
    setenv("SYMMETRIC_MEMORY_SIGNAL_TIMEOUT_MS", "300", 1);
    ranks_run(2, RANKS_THREADS, cycle_body, NULL);
    setenv("SYMMETRIC_MEMORY_SIGNAL_TIMEOUT_MS", "400", 1);
    ranks_run(2, RANKS_THREADS, never_body, NULL);
    unsetenv("SYMMETRIC_MEMORY_SIGNAL_TIMEOUT_MS");
}

/* ---- a member that fails, or leaves ---------------------------------------------------------- */

static void failed_body(hp_world *world, void *argument) {
    hp_group *group = hp_world_group(world);
    (void)argument;
    RANK_OK(hp_barrier(group));
    if (hp_world_rank(world) == 2) {
        RANK_OK(hpi_group_enter(group, "all_gather"));
        (void)HPI_FAIL(HP_ERR_MEMORY, "expected room for a test");
        hpi_group_fail(group);
        hpi_group_leave(group);
    } else {
        hp_error error;
        FAILS_SAYING(hp_barrier(group), HP_ERR_MEMORY, "rank 2 failed in all_gather",
                     "expected room for a test");
        hp_last_error_get(&error);
        RANK_CHECK(error.world_rank == 2);
        /* the first cause is told, not who told whom */
        RANK_CHECK(!strstr(strstr(error.message, "failed in") + 1, "failed in"));
    }
    RANK_FAILS(hp_barrier(group), HP_ERR_MEMORY);
}

static void test_failure_is_told(void **state) {
    (void)state;
    on_both(4, failed_body);
}

static void timeout_body(hp_world *world, void *argument) {
    hp_group *group = hp_world_group(world);
    const hpi_reason reason = {.operation = "a test", .group = group, .rank = 0, .timeout_ms = 100};
    static const _Atomic uint64_t never;
    (void)argument;
    if (hp_world_rank(world) == 1) {
        RANK_FAILS(hpi_world_wait(world, &never, HP_EQ, 1, &reason), HP_ERR_TIMEOUT);
        hpi_group_fail(group);
    } else if (hp_world_rank(world) == 2) {
        FAILS_SAYING(hp_barrier(group), HP_ERR_TIMEOUT, "rank 1 failed: rank 1 waited", "a test");
    } else { /* it comes late, and learns that it was given up */
        hpi_sleep_ns(300000000);
        FAILS_SAYING(hp_barrier(group), HP_ERR_TIMEOUT, "rank 1 failed: rank 1 waited", "a test");
    }
}

static void test_timeout_is_told(void **state) {
    (void)state;
    ranks_run(3, RANKS_THREADS, timeout_body, NULL);
}

static void destroyed_body(hp_world *world, void *argument) {
    hp_group *group;
    (void)argument;
    RANK_OK(hp_group_duplicate(hp_world_group(world), &group));
    RANK_OK(hp_barrier(group));
    if (hp_world_rank(world) == 1)
        hpi_sleep_ns(100000000);
    else
        FAILS_SAYING(hp_barrier(group), HP_ERR_PEER, "rank 1 destroyed the group");
    hp_group_destroy(group);
    RANK_OK(hp_barrier(hp_world_group(world)));
}

static void test_destroyed_group(void **state) {
    (void)state;
    on_both(3, destroyed_body);
}

/* Leaving after one's part is nobody's error, and what one group says is not heard in the next. */
static void leave_body(hp_world *world, void *argument) {
    uint64_t seed = 77 + (uint64_t)hp_world_rank(world);
    (void)argument;
    for (int i = 0; i < 200; i++) {
        hp_group *group;
        RANK_OK(hp_group_duplicate(hp_world_group(world), &group));
        RANK_OK(reduce_one(group));
        if (hpi_random_next(&seed) % 8 == 0)
            hpi_sleep_ns(hpi_random_next(&seed) % 1000000);
        RANK_OK(hp_barrier(group));
        if (i % 4 == 0) { /* failed by one, told to the others: the slot's next group is whole */
            (void)HPI_FAIL(HP_ERR_SYSTEM, "a test");
            if (hp_world_rank(world) == i % 3)
                hpi_group_fail(group);
            else
                RANK_FAILS(hp_barrier(group), HP_ERR_SYSTEM);
        }
        hp_group_destroy(group);
    }
}

static void test_leaving_is_no_failure(void **state) {
    (void)state;
    on_both(3, leave_body);
}

/* Rank 0 waits for 1, which waits for 2, which does not come: whoever fails first names rank 2. */
static void chain_body(hp_world *world, void *argument) {
    hp_group *group = hp_world_group(world);
    const int rank = hp_world_rank(world);
    static const _Atomic uint64_t never;
    hpi_reason reason = {.operation = "a test", .group = group, .rank = rank + 1};
    hp_error error;
    (void)argument;
    reason.timeout_ms = rank == 0 ? 300 : 450;
    if (rank < 2) {
        RANK_FAILS(hpi_world_wait(world, &never, HP_EQ, 1, &reason), HP_ERR_TIMEOUT);
        hp_last_error_get(&error);
        RANK_CHECK(error.world_rank == 2);
        RANK_CHECK(!rank == !!strstr(error.message, "holds up rank 1"));
    } else { /* slow, not silent: a short wait is no link of the chain */
        reason.rank = 0;
        reason.timeout_ms = 20;
        for (int i = 0; i < 25; i++)
            RANK_FAILS(hpi_world_wait(world, &never, HP_EQ, 1, &reason), HP_ERR_TIMEOUT);
    }
    RANK_OK(hp_barrier(group));
}

static void test_the_end_of_a_chain_is_named(void **state) {
    (void)state;
    on_both(3, chain_body);
}

/* ---- a stopped rank -------------------------------------------------------------------------- */

static void stopped_body(hp_world *world, void *argument) {
    const uint64_t mine = (uint64_t)getpid();
    uint64_t pids[2];
    (void)argument;
    RANK_OK(hpi_group_exchange(hp_world_group(world), "pids", &mine, 1, pids));
    if (hp_world_rank(world) == 1) {
        RANK_CHECK(raise(SIGSTOP) == 0);
        RANK_OK(hp_barrier(hp_world_group(world))); /* rank 0 has entered this one */
        FAILS_SAYING(hp_barrier(hp_world_group(world)), HP_ERR_TIMEOUT, "rank 0 failed in");
        return;
    }
    FAILS_SAYING(hp_barrier(hp_world_group(world)), HP_ERR_TIMEOUT, "rank 1 is stopped");
    RANK_CHECK(kill((pid_t)pids[1], SIGCONT) == 0);
    hpi_sleep_ns(200000000); /* it sees the failure, not the end, of this rank */
}

static void test_stopped_rank(void **state) {
    (void)state;
    setenv("SYMMETRIC_MEMORY_SIGNAL_TIMEOUT_MS", "400", 1);
    ranks_run(2, RANKS_PROCESSES, stopped_body, NULL);
    unsetenv("SYMMETRIC_MEMORY_SIGNAL_TIMEOUT_MS");
}

/* ---- meshes ---------------------------------------------------------------------------------- */

static void mesh_body(hp_world *world, void *argument) {
    hp_mesh *mesh;
    const int rank = hp_world_rank(world);
    (void)argument;
    FAILS_SAYING(hp_mesh_create(world, rank == 3 ? (int[]){4, 1} : (int[]){2, 2}, 2, &mesh),
                 HP_ERR_MISMATCH, "4x1", "2x2");
    /* sizes that cannot be, on one rank: the others do not wait for it */
    FAILS_SAYING(hp_mesh_create(world, rank == 1 ? (int[]){3, 1} : (int[]){2, 2}, 2, &mesh),
                 rank == 1 ? HP_ERR_ARGUMENT : HP_ERR_MISMATCH, "3x1");
    RANK_OK(hp_mesh_create(world, (int[]){2, 2}, 2, &mesh));
    hp_mesh_destroy(mesh);
}

static void test_meshes_that_differ(void **state) {
    (void)state;
    ranks_run(4, RANKS_THREADS, mesh_body, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_S4_alloc_against_collective),
        cmocka_unit_test(test_fused_against_collective),
        cmocka_unit_test(test_S4_late),
        cmocka_unit_test(test_S4_set_up_calls),
        cmocka_unit_test(test_S4_mail_is_not_crossed),
        cmocka_unit_test(test_R11_lists_that_differ),
        cmocka_unit_test(test_R11_streams_may_wait_for_late_groups),
        cmocka_unit_test(test_R11_explained_at_the_deadline),
        cmocka_unit_test(test_failure_is_told),
        cmocka_unit_test(test_timeout_is_told),
        cmocka_unit_test(test_destroyed_group),
        cmocka_unit_test(test_leaving_is_no_failure),
        cmocka_unit_test(test_the_end_of_a_chain_is_named),
        cmocka_unit_test(test_stopped_rank),
        cmocka_unit_test(test_meshes_that_differ),
    };
    ranks_set_deadline_ms(30000);
    return cmocka_run_group_tests_name("crossed", tests, NULL, NULL);
}

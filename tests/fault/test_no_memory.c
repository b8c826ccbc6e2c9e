/* SPDX-License-Identifier: Apache-2.0
 *
 * test_no_memory.c - the k-th allocation fails, for every k, in every set-up call.
 *
 * Three ranks go through a life together, step by step; after each step they compare, outside the
 * library, who failed. What must hold: nobody waits longer than the promise; a step that is
 * collective fails on all ranks or on none; a local one that failed on one rank is an error for the
 * others when they use what they got; and after the failure is gone, a new world on the same
 * hub runs. Leaks are AddressSanitizer's to find.
 */
#include "support/ranks.h"
#include "world/inside.h"

#include <hyperparallel/coll.h>
#include <hyperparallel/symm.h>

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_RANKS = 3, MOST_ALLOCATIONS = 400, COUNT = 3000 };
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define PROMISE_NS UINT64_C(5000000000)
#else
#define PROMISE_NS UINT64_C(1000000000)
#endif

typedef struct life {
    hp_world *world;
    hp_group *group, *half, *twin;
    hp_mesh *mesh;
    hp_symm memory, span;
    float in[COUNT], out[COUNT];
} life;

typedef struct job {
    hp_hub *hub;
    pthread_barrier_t meet;
    hp_status statuses[N_RANKS];
    uint64_t longest_ns;
    bool is_bad;
    char text[1024];
} job;

typedef struct rank_of_job {
    job *job;
    int rank;
} rank_of_job;

/* ---- the steps ------------------------------------------------------------------------------- */

static hp_status join(life *l, job *j, int rank) {
    hp_world_config config = HP_WORLD_CONFIG_INIT;
    config.hub = j->hub;
    config.rank = rank;
    return hp_world_create(&config, &l->world);
}

static hp_status use(hp_group *group) {
    return hp_barrier(group);
}
static hp_status use_world(life *l) {
    return use(hp_world_group(l->world));
}
static hp_status create(life *l) {
    return hp_group_create(l->world, (int[]){2, 0, 1}, N_RANKS, &l->group);
}
static hp_status use_group(life *l) {
    return use(l->group);
}
static hp_status split(life *l) {
    return hp_group_split(l->group, 0, 0, &l->half);
}
static hp_status use_half(life *l) {
    return use(l->half);
}
static hp_status duplicate(life *l) {
    return hp_group_duplicate(hp_world_group(l->world), &l->twin);
}
static hp_status use_twin(life *l) {
    return use(l->twin);
}
static hp_status make_mesh(life *l) {
    return hp_mesh_create(l->world, (int[]){N_RANKS}, 1, &l->mesh);
}
static hp_status use_mesh(life *l) {
    return use(hp_mesh_group(l->mesh, 0));
}
static hp_status take(life *l) {
    return hp_symm_alloc(l->world, l->half, 4096, 0, &l->memory);
}
static hp_status take_span(life *l) {
    return hp_symm_alloc_spanning(l->world, l->group, 4096, &l->span);
}
static hp_status staged(life *l) {
    return hp_all_reduce(l->twin, l->in, l->out, COUNT, HP_FP32, HP_SUM);
}
static hp_status mail(life *l) {
    const int rank = hp_group_rank(l->group);
    if (rank == 0)
        return hp_send(l->group, l->in, COUNT, HP_FP32, 1);
    return rank == 1 ? hp_recv(l->group, l->out, COUNT, HP_FP32, 0) : HP_OK;
}
static hp_status give_back(life *l) {
    const hp_symm memory = l->memory;
    l->memory = (hp_symm){0};
    return hp_symm_free(memory);
}

typedef enum step_kind { COLLECTIVE, LOCAL, USE } step_kind; /* USE: of what the step before made */
static const struct step {
    const char *name;
    hp_status (*run)(life *l);
    step_kind kind;
} steps[] = {
    {"use_world", use_world, USE},
    {"create", create, LOCAL},
    {"use_group", use_group, USE},
    {"split", split, LOCAL},
    {"use_half", use_half, USE},
    {"duplicate", duplicate, LOCAL},
    {"use_twin", use_twin, USE},
    {"make_mesh", make_mesh, LOCAL},
    {"use_mesh", use_mesh, USE},
    {"take", take, COLLECTIVE},
    {"take_span", take_span, COLLECTIVE},
    {"staged", staged, COLLECTIVE},
    {"mail", mail, LOCAL},
    {"use_group", use_group, USE},
    {"give_back", give_back, COLLECTIVE},
};
enum { N_ALL = sizeof steps / sizeof *steps };

/* ---- one life -------------------------------------------------------------------------------- */

static void complain(job *j, const char *step, const char *what) {
    if (!j->is_bad)
        snprintf(j->text, sizeof j->text, "%s: %s: statuses %d %d %d, last error: %.600s", step,
                 what, j->statuses[0], j->statuses[1], j->statuses[2], hp_last_error());
    j->is_bad = true;
}

/* How many ranks failed in the step; all learn the same number. */
static int compare(job *j, int rank, hp_status status, uint64_t took_ns, const char *step,
                   step_kind kind, int n_failed_before) {
    int n_failed = 0;
    j->statuses[rank] = status;
    pthread_barrier_wait(&j->meet);
    for (int i = 0; i < N_RANKS; i++)
        n_failed += j->statuses[i] < 0;
    pthread_barrier_wait(&j->meet);
    if (rank == 0) {
        if (kind == COLLECTIVE && n_failed && n_failed < N_RANKS)
            complain(j, step, "a collective failed on some ranks alone");
        if (kind == USE && n_failed_before && n_failed < N_RANKS)
            complain(j, step, "a member that failed was not missed");
        if (kind == USE && !n_failed_before && n_failed && n_failed < N_RANKS)
            complain(j, step, "a use failed on some ranks alone");
    }
    pthread_barrier_wait(&j->meet);
    if (took_ns > PROMISE_NS) {
        complain(j, step, "somebody waited");
    }
    pthread_barrier_wait(&j->meet);
    return n_failed;
}

static void end(life *l) {
    hp_mesh_destroy(l->mesh);
    hp_group_destroy(l->twin);
    hp_group_destroy(l->half);
    hp_group_destroy(l->group);
    hp_world_destroy(l->world);
}

static void *live(void *argument) {
    rank_of_job *r = argument;
    job *j = r->job;
    life *l = calloc(1, sizeof *l);
    uint64_t begin_ns = hpi_now_ns();
    hp_status status = join(l, j, r->rank);
    int n_failed = compare(j, r->rank, status, hpi_now_ns() - begin_ns, "join", LOCAL, 0);
    for (int i = 0; i < N_ALL; i++) {
        begin_ns = hpi_now_ns();
        /* who has nothing to use has had the error already */
        if (steps[i].kind == USE ? status == HP_OK : n_failed == 0)
            status = steps[i].run(l);
        n_failed = compare(j, r->rank, status, hpi_now_ns() - begin_ns, steps[i].name,
                           steps[i].kind, n_failed);
        if (n_failed && steps[i].kind != LOCAL)
            break;
    }
    end(l);
    free(l);
    return NULL;
}

static void live_together(hp_hub *hub, job *j) {
    pthread_t threads[N_RANKS];
    rank_of_job ranks[N_RANKS];
    *j = (job){.hub = hub};
    pthread_barrier_init(&j->meet, NULL, N_RANKS);
    for (int i = 0; i < N_RANKS; i++) {
        ranks[i] = (rank_of_job){j, i};
        assert_int_equal(pthread_create(&threads[i], NULL, live, &ranks[i]), 0);
    }
    for (int i = 0; i < N_RANKS; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&j->meet);
}

static void test_every_allocation(void **state) {
    static job j;
    int n_lives = 0;
    (void)state;
    for (uint64_t k = 1; k < MOST_ALLOCATIONS; k++) {
        hp_hub *hub;
        assert_int_equal(hp_hub_create(N_RANKS, &hub), HP_OK);
        const uint64_t before = hpi_alloc_count();
        hpi_alloc_fail_after(k);
        live_together(hub, &j);
        const uint64_t made = hpi_alloc_count() - before;
        hpi_alloc_fail_after(0);
        if (j.is_bad)
            fail_msg("allocation %d: %s", (int)k, j.text);
        n_lives++;
        if (k % 8 == 0) { /* the hub is good for a world without failure */
            live_together(hub, &j);
            for (int i = 0; i < N_RANKS; i++)
                if (j.is_bad || j.statuses[i])
                    fail_msg("after allocation %d: %s", (int)k, j.text);
        }
        hp_hub_destroy(hub);
        if (made < k)
            break;
    }
    print_message("%d allocations failed, one at a time\n", n_lives);
}

/* ---- two nodes ------------------------------------------------------------------------------- */

static void *start_and_leave(void *argument) {
    const rank_of_job *r = argument;
    hp_world *world;
    hp_world_config config = HP_WORLD_CONFIG_INIT;
    config.hub = r->job->hub;
    config.rank = r->rank;
    r->job->statuses[r->rank] = hp_world_create(&config, &world);
    if (!r->job->statuses[r->rank])
        hp_world_destroy(world);
    return NULL;
}

/* Rank 0 waits for rank 1, whose allocations fail, to beyond where its heartbeat begins. Who fails
 * before the nodes know each other costs the others the time of a start. */
static void test_worlds_of_two_nodes(void **state) {
    enum { MOST = 32 };
    const int has_input = fcntl(STDIN_FILENO, F_GETFD);
    (void)state;
    setenv("HYPER_PARALLEL_START_TIMEOUT_MS", "50", 1);
    for (uint64_t k = 1; k <= MOST; k++) {
        job j = {0};
        pthread_t threads[2];
        rank_of_job ranks[2] = {{&j, 0}, {&j, 1}};
        assert_int_equal(hp_hub_create(2, &j.hub), HP_OK);
        assert_int_equal(hpi_hub_split(j.hub, 1), HP_OK);
        for (int i = 0; i < 2; i++) {
            if (i == 1)
                hpi_alloc_fail_after(k);
            assert_int_equal(pthread_create(&threads[i], NULL, start_and_leave, &ranks[i]), 0);
            hpi_sleep_ns(i == 0 ? 5000000 : 0);
        }
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        hpi_alloc_fail_after(0);
        hp_hub_destroy(j.hub);
        if (!j.statuses[0] && !j.statuses[1])
            fail_msg("allocation %d failed, and nobody says so", (int)k);
        assert_int_equal(fcntl(STDIN_FILENO, F_GETFD), has_input); /* no other's was closed */
    }
    setenv("HYPER_PARALLEL_START_TIMEOUT_MS", "8000", 1);
}

/* ---- processes ------------------------------------------------------------------------------- */

typedef struct pages {
    uint64_t k;
} pages;

static int process_body(void *argument) {
    const pages *p = argument;
    const char *rank = getenv("RANK");
    hp_world *world;
    const uint64_t begin_ns = hpi_now_ns();
    signal(SIGSEGV, SIG_DFL); /* cmocka's would go on in the child */
    if (rank && !strcmp(rank, "1"))
        hpi_alloc_fail_after(p->k);
    hp_status status = hp_world_create(NULL, &world);
    if (!status) {
        hp_symm span;
        status = hp_symm_alloc_spanning(world, NULL, 4096, &span);
        if (!status)
            status = use(hp_world_group(world));
        hp_world_destroy(world);
    }
    if (hpi_now_ns() - begin_ns > PROMISE_NS)
        return 9;
    return status ? 3 : 0;
}

static void test_processes(void **state) {
    int n_failed = 0;
    (void)state;
    for (uint64_t k = 1; k < 60; k++) {
        pages p = {k};
        hp_launch_config config = HP_LAUNCH_CONFIG_INIT;
        int status = 0;
        config.n_ranks = N_RANKS;
        config.body = process_body;
        config.argument = &p;
        config.deadline_ms = 20000;
        config.grace_ms = 2000;
        assert_int_equal(hp_launch(&config, &status), HP_OK);
        if (status != 0 && status != 3)
            fail_msg("allocation %d of rank 1: a rank ended with %d", (int)k, status);
        if (!status)
            break;
        n_failed++;
    }
    print_message("%d allocations of one process failed\n", n_failed);
    assert_in_range(n_failed, 5, 58);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_allocation),
        cmocka_unit_test(test_worlds_of_two_nodes),
        cmocka_unit_test(test_processes),
    };
    setenv("SYMMETRIC_MEMORY_HEAP_SIZE", "4M", 1);
    /* a wait that nobody ends is told, not waited for */
    setenv("SYMMETRIC_MEMORY_SIGNAL_TIMEOUT_MS", "8000", 1);
    setenv("HYPER_PARALLEL_START_TIMEOUT_MS", "8000", 1);
    return cmocka_run_group_tests_name("no_memory", tests, NULL, NULL);
}

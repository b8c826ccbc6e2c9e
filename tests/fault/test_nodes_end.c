/* SPDX-License-Identifier: Apache-2.0
 *
 * test_nodes_end.c - a rank dies, leaves, or gives a group up, and the ranks of other nodes hear.
 *
 * The nodes are threads of one process, whose first ranks have real connections over the loopback.
 * What must hold: within a second each survivor has an error that names the rank with which it
 * began, whichever node it was on; and nobody has one where the machine is only busy.
 */
#include "support/ranks.h"
#include "world/inside.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <cmocka.h>

enum { N = 6, PER_NODE = 2 };

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define PROMISE_NS UINT64_C(5000000000)
#else
#define PROMISE_NS UINT64_C(1000000000)
#endif

static _Atomic uint64_t struck_ns;  /* when it happened; 0: it has not yet */
static _Atomic uint64_t longest_ns; /* until a survivor knew */

static void strike(void) {
    atomic_store(&struck_ns, hpi_now_ns());
}

static void note_time(void) {
    const uint64_t took_ns = hpi_now_ns() - atomic_load(&struck_ns);
    uint64_t longest = atomic_load(&longest_ns);
    RANK_CHECK(took_ns < PROMISE_NS);
    while (took_ns > longest && !atomic_compare_exchange_weak(&longest_ns, &longest, took_ns)) {
    }
}

static void report(const char *what) {
    print_message("%s: known everywhere after %.1f ms\n", what,
                  (double)atomic_load(&longest_ns) / 1e6);
    atomic_store(&longest_ns, 0);
    atomic_store(&struck_ns, 0);
}

static hp_status exchange(hp_group *group) {
    const uint64_t mine = 1;
    uint64_t all[N];
    HP_TRY(hpi_group_enter(group, "test"));
    const hp_status status = hpi_group_exchange(group, "test", &mine, 1, all);
    if (status < 0)
        hpi_group_fail(group);
    hpi_group_leave(group);
    return status;
}

/* Over and over, until it fails: with this, naming that rank. */
static void exchange_until(hp_group *group, hp_status expected, int culprit, const char *text) {
    hp_status status;
    hp_error error;
    do
        status = exchange(group);
    while (status == HP_OK);
    note_time();
    hp_last_error_get(&error);
    if (status != expected || error.world_rank != culprit || !strstr(hp_last_error(), text))
        RANK_OK(hp_error_set(HP_ERR_FORMAT, NULL, "expected %s by rank %d with \"%s\" in: %.600s",
                             hp_status_name(expected), culprit, text, hp_last_error()));
}

/* ---- ranks ---------------------------------------------------------------------------------- */

static void dies(hp_world *world, void *argument) {
    const int victim = *(int *)argument;
    hp_group *group = hp_world_group(world);
    if (hp_world_rank(world) == victim) {
        for (int i = 0; i < 3; i++)
            RANK_OK(exchange(group));
        strike();
        ranks_die();
    }
    exchange_until(group, HP_ERR_PEER, victim, "died");
    RANK_FAILS(hp_world_check(world), HP_ERR_PEER);
    if (!hpi_world_is_local(world, victim))
        RANK_CHECK(strstr(hp_last_error(), "on host"));
}

static void a_death_is_named_on_every_node(void **state) {
    (void)state;
    for (int victim = 0; victim < N; victim++) {
        ranks_run_nodes(N, PER_NODE, dies, &victim);
        report(victim % PER_NODE ? "the end of a rank" : "the end of a first rank");
    }
}

/* Nobody waits: hp_world_check says it all the same. */
static void dies_unawaited(hp_world *world, void *argument) {
    (void)argument;
    if (hp_world_rank(world) == N - 1) {
        strike();
        ranks_die();
    }
    while (hp_world_check(world) == HP_OK)
        hpi_sleep_ns(1000000);
    hp_error error;
    hp_last_error_get(&error);
    RANK_CHECK(error.world_rank == N - 1);
    while (!atomic_load(&struck_ns))
        hpi_sleep_ns(1000000);
    note_time();
}

static void a_death_is_told_to_who_asks(void **state) {
    (void)state;
    ranks_run_nodes(N, PER_NODE, dies_unawaited, NULL);
    report("the end of a rank, to who asks");
}

static void leaves(hp_world *world, void *argument) {
    const int who = *(int *)argument;
    if (hp_world_rank(world) == who) {
        RANK_OK(exchange(hp_world_group(world)));
        strike();
        return;
    }
    hp_status status;
    do
        status = exchange(hp_world_group(world));
    while (status == HP_OK);
    RANK_CHECK(status == HP_ERR_PEER);
    note_time();
}

static void who_leaves_is_missed(void **state) {
    (void)state;
    for (int who = 0; who < PER_NODE; who++) {
        ranks_run_nodes(N, PER_NODE, leaves, &who);
        report("that a rank left");
    }
}

/* ---- connections ---------------------------------------------------------------------------- */

/* All TCP connections of this process: the nodes' own. */
static void cut_connections(void) {
    for (int fd = 3; fd < 1024; fd++) {
        int family = 0;
        socklen_t length = sizeof family;
        if (!getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &length) &&
            (family == AF_INET || family == AF_INET6))
            (void)shutdown(fd, SHUT_RDWR);
    }
}

static _Atomic int n_cut_off; /* ranks whose wait has ended */

/* In the middle of everybody's wait for rank 0, which does not come before the others know. */
static void is_cut_off(hp_world *world, void *argument) {
    hp_group *group = hp_world_group(world);
    (void)argument;
    RANK_OK(exchange(group));
    if (hp_world_rank(world) == 0) {
        hpi_sleep_ns(100000000);
        strike();
        cut_connections();
        while (atomic_load(&n_cut_off) < PER_NODE)
            hpi_sleep_ns(1000000);
    }
    hp_status status;
    do /* what the others had sent before is there */
        status = exchange(group);
    while (status == HP_OK);
    RANK_CHECK(status == HP_ERR_PEER);
    note_time();
    if (hp_world_rank(world) >= PER_NODE) {
        RANK_CHECK(strstr(hp_last_error(), "it closed its connection"));
        atomic_fetch_add(&n_cut_off, 1);
    }
}

static void R5_a_closed_connection_ends_waits(void **state) {
    (void)state;
    ranks_run_nodes(2 * PER_NODE, PER_NODE, is_cut_off, NULL);
    report("a closed connection");
}

/* ---- groups --------------------------------------------------------------------------------- */

static void cancels(hp_world *world, void *argument) {
    hp_group *group;
    (void)argument;
    RANK_OK(hp_group_duplicate(hp_world_group(world), &group));
    if (hp_world_rank(world) == 3) {
        RANK_OK(exchange(group));
        (void)hp_error_set(HP_ERR_STATE, "test", "no more of this");
        strike();
        hpi_group_cancel(group);
    } else {
        exchange_until(group, HP_ERR_STATE, 3, "no more of this");
    }
    RANK_FAILS(exchange(group), HP_ERR_STATE);
    RANK_OK(exchange(hp_world_group(world))); /* others go on */
    hp_group_destroy(group);
}

static void a_cancelled_group_ends_on_every_node(void **state) {
    (void)state;
    ranks_run_nodes(N, PER_NODE, cancels, NULL);
    report("a cancelled group");
    ranks_run_nodes(N, 1, cancels, NULL);
    report("a cancelled group, each rank a node");
}

/* Carried by the transport inside a node, too. */
static void cancels_carried(hp_world *world, void *argument) {
    hp_group *group;
    (void)argument;
    RANK_OK(hp_group_duplicate_over(hp_world_group(world), HP_CARRIER_TRANSPORT, &group));
    if (hp_world_rank(world) == 2) {
        RANK_OK(exchange(group));
        (void)hp_error_set(HP_ERR_STATE, "test", "no more of this");
        strike();
        hpi_group_cancel(group);
    } else {
        exchange_until(group, HP_ERR_STATE, 2, "no more of this");
    }
    hp_group_destroy(group);
}

static void a_cancelled_group_that_is_carried(void **state) {
    (void)state;
    ranks_run_nodes(N, PER_NODE, cancels_carried, NULL);
    report("a cancelled group that is carried");
}

/* All have what they need of it when rank 1 destroys it; who then wants more is told. */
static void destroys(hp_world *world, void *argument) {
    hp_group *group;
    (void)argument;
    RANK_OK(hp_group_duplicate(hp_world_group(world), &group));
    if (hp_world_rank(world) == 1) {
        RANK_OK(exchange(group));
        strike();
    } else {
        exchange_until(group, HP_ERR_PEER, 1, "destroyed the group");
    }
    hp_group_destroy(group);
    RANK_OK(exchange(hp_world_group(world)));
}

static void a_destroyed_group_is_missed(void **state) {
    (void)state;
    ranks_run_nodes(N, PER_NODE, destroys, NULL);
    report("a destroyed group");
}

/* Many come and go, more than a ring holds: none of them is taken for another. */
static void come_and_go(hp_world *world, void *argument) {
    (void)argument;
    for (int i = 0; i < 300; i++) {
        hp_group *group;
        RANK_OK(hp_group_duplicate(hp_world_group(world), &group));
        if (i % 10 == 0)
            RANK_OK(exchange(group));
        hp_group_destroy(group);
    }
    RANK_OK(exchange(hp_world_group(world)));
    RANK_OK(hp_world_check(world));
}

static void groups_come_and_go(void **state) {
    (void)state;
    ranks_run_nodes(N, PER_NODE, come_and_go, NULL);
}

/* ---- worlds --------------------------------------------------------------------------------- */

typedef struct stay {
    hp_hub *hub;
    int rank;
    pthread_t thread;
    char text[512]; /* what failed */
} stay;

/* What a world has heard of its ranks is not for the next one on the same memory. */
static void *join_twice(void *argument) {
    stay *s = argument;
    hp_world_config config = HP_WORLD_CONFIG_INIT;
    config.hub = s->hub;
    config.rank = s->rank;
    for (int round = 0; round < 3 && !*s->text; round++) {
        hp_world *world = NULL;
        hp_status status = hp_world_create(&config, &world);
        for (int i = 0; !status && i < 20; i++)
            status = exchange(hp_world_group(world));
        if (!status)
            status = hp_world_check(world);
        if (status)
            snprintf(s->text, sizeof s->text, "%.511s", hp_last_error());
        hp_world_destroy(world);
    }
    return NULL;
}

static void one_world_after_another(void **state) {
    stay stays[N] = {0};
    hp_hub *hub;
    (void)state;
    assert_int_equal(hp_hub_create(N, &hub), HP_OK);
    assert_int_equal(hpi_hub_split(hub, PER_NODE), HP_OK);
    for (int i = 0; i < N; i++) {
        stays[i] = (stay){.hub = hub, .rank = i};
        assert_int_equal(pthread_create(&stays[i].thread, NULL, join_twice, &stays[i]), 0);
    }
    for (int i = 0; i < N; i++) {
        pthread_join(stays[i].thread, NULL);
        assert_string_equal(stays[i].text, "");
    }
    hp_hub_destroy(hub);
}

/* ---- a busy machine ------------------------------------------------------------------------- */

static _Atomic bool is_busy;

static void *burn(void *argument) {
    while (atomic_load_explicit(&is_busy, memory_order_relaxed))
        hpi_relax();
    return argument;
}

static void endures(hp_world *world, void *argument) {
    const uint64_t end_ns = hpi_now_ns() + UINT64_C(1500000000);
    (void)argument;
    while (hpi_now_ns() < end_ns) {
        RANK_OK(hp_world_check(world));
        hpi_sleep_ns(10000000);
    }
    RANK_OK(exchange(hp_world_group(world)));
}

static void a_busy_machine_is_no_end(void **state) {
    enum { N_BURNERS = 32 };
    pthread_t burners[N_BURNERS];
    (void)state;
    atomic_store(&is_busy, true);
    for (int i = 0; i < N_BURNERS; i++)
        assert_int_equal(pthread_create(&burners[i], NULL, burn, NULL), 0);
    ranks_run_nodes(N, PER_NODE, endures, NULL);
    atomic_store(&is_busy, false);
    for (int i = 0; i < N_BURNERS; i++)
        pthread_join(burners[i], NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_death_is_named_on_every_node),
        cmocka_unit_test(a_death_is_told_to_who_asks),
        cmocka_unit_test(who_leaves_is_missed),
        cmocka_unit_test(R5_a_closed_connection_ends_waits),
        cmocka_unit_test(a_cancelled_group_ends_on_every_node),
        cmocka_unit_test(a_cancelled_group_that_is_carried),
        cmocka_unit_test(a_destroyed_group_is_missed),
        cmocka_unit_test(groups_come_and_go),
        cmocka_unit_test(one_world_after_another),
        cmocka_unit_test(a_busy_machine_is_no_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * test_order_world.c - what room `world` publishes comes with all that was written before it.
 *
 * Each case writes ordinary memory, publishes by one means and reads it behind the matching look,
 * with nothing else between the two threads: so ThreadSanitizer reports a race as soon as one of
 * the two loses its order (tools/weaken.py takes it away). Without a sanitizer the values are
 * checked.
 */
#include "support/ranks.h"
#include "world/inside.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { N_ROUNDS = 20 };

/* Time passes without any order: a race must not be hidden by a lucky one. */
static void pause_a_little(int round) {
    if (round % 2)
        hpi_sleep_ns(200000);
}

/* ---- between two threads of one rank --------------------------------------------------------- */

typedef struct two {
    hp_group *group;
    int n_inside, value; /* ordinary memory */
    hp_world *world;
} two;

/* Run `other` beside the caller's own part. */
static void beside(hp_world *world, two *t, void *(*other)(void *), void (*own)(two *)) {
    pthread_t thread;
    t->world = world;
    RANK_CHECK(pthread_create(&thread, NULL, other, t) == 0);
    own(t);
    RANK_CHECK(pthread_join(thread, NULL) == 0);
}

static void go_in_and_out(two *t) {
    for (int n = 0; n < 200;) {
        if (hpi_group_enter(t->group, "a test")) {
            sched_yield();
            continue;
        }
        t->n_inside++;
        hpi_group_leave(t->group);
        n++;
    }
}

static void *go_in_and_out_too(void *argument) {
    go_in_and_out(argument);
    return NULL;
}

static void busy_body(hp_world *world, void *argument) {
    two t = {0};
    (void)argument;
    RANK_OK(hp_group_create(world, (int[]){0}, 1, &t.group));
    beside(world, &t, go_in_and_out_too, go_in_and_out);
    RANK_CHECK(t.n_inside == 400);
    hp_group_destroy(t.group);
}

static void *wait_for_failure(void *argument) {
    two *t = argument;
    while (hpi_group_check(t->group) == HP_OK)
        sched_yield();
    t->value += strstr(hp_last_error(), "a reason") != NULL;
    return NULL;
}

static void fail_group(two *t) {
    t->value = 1;
    (void)HPI_FAIL(HP_ERR_MISMATCH, "a reason");
    hpi_group_fail(t->group);
}

static void failed_body(hp_world *world, void *argument) {
    (void)argument;
    for (int i = 0; i < N_ROUNDS; i++) {
        two t = {0};
        RANK_OK(hp_group_create(world, (int[]){0}, 1, &t.group));
        beside(world, &t, wait_for_failure, fail_group);
        RANK_CHECK(t.value == 2);
        hp_group_destroy(t.group);
    }
}

static void nothing(void *state) {
    (void)state;
}

static void *wait_for_state(void *argument) {
    two *t = argument;
    const int *state;
    while (!(state = hpi_group_attached(t->group, HPI_SLOT_COLL)))
        sched_yield();
    t->value = *state;
    return NULL;
}

static void attach(two *t) {
    t->n_inside = 7;
    hpi_group_attach(t->group, HPI_SLOT_COLL, &t->n_inside, nothing);
}

static void *wait_for_world_state(void *argument) {
    two *t = argument;
    const two *state;
    while (!(state = hpi_world_attached(t->world, HPI_SLOT_SYMM)))
        sched_yield();
    t->value = state->n_inside;
    return NULL;
}

static void attach_to_world(two *t) {
    t->n_inside = 9;
    RANK_CHECK(hpi_world_attach(t->world, HPI_SLOT_SYMM, t, nothing));
}

static void attached_body(hp_world *world, void *argument) {
    static two of_world; /* it outlives the body, as what is attached must */
    (void)argument;
    for (int i = 0; i < N_ROUNDS; i++) {
        two t = {0};
        RANK_OK(hp_group_create(world, (int[]){0}, 1, &t.group));
        beside(world, &t, wait_for_state, attach);
        RANK_CHECK(t.value == 7);
        hp_group_destroy(t.group);
    }
    of_world = (two){0};
    beside(world, &of_world, wait_for_world_state, attach_to_world);
    RANK_CHECK(of_world.value == 9);
}

static void run_alone(ranks_body body) {
    ranks_run(1, RANKS_THREADS, body, NULL);
}

static void one_thread_at_a_time(void **state) {
    (void)state;
    run_alone(busy_body);
}
static void a_failure_comes_with_its_record(void **state) {
    (void)state;
    run_alone(failed_body);
}
static void what_is_attached_is_whole(void **state) {
    (void)state;
    run_alone(attached_body);
}

/* ---- between two ranks ------------------------------------------------------------------------
 */

/* Rank 0 says, rank 1 hears; `data` is ordinary memory of the test. */
typedef struct said {
    int data[N_ROUNDS + 1];
} said;

static void reached_body(hp_world *world, void *argument) {
    said *s = argument;
    hp_group *group = hp_world_group(world);
    for (int i = 1; i <= N_ROUNDS; i++) {
        if (hp_world_rank(world) == 0) {
            pause_a_little(i);
            s->data[i] = i;
            hpi_line_post(group, HPI_LINE_CHUNK, (uint64_t)i);
        } else {
            while (!hpi_line_reached(group, 0, HPI_LINE_CHUNK, (uint64_t)i))
                sched_yield();
            RANK_CHECK(s->data[i] == i);
        }
    }
}

/* Rank 1 comes late in one round, and finds the word there; early in the next, and waits. */
static void waited_body(hp_world *world, void *argument) {
    said *s = argument;
    hp_group *group = hp_world_group(world);
    const int rank = hp_world_rank(world);
    for (int i = 1; i <= N_ROUNDS; i++) {
        if (i % 2 == rank)
            hpi_sleep_ns(i % 4 < 2 ? 300000 : 3000000);
        if (rank == 0) {
            s->data[i] = i;
            hpi_line_post(group, HPI_LINE_CHUNK, (uint64_t)i);
        } else {
            RANK_OK(hpi_line_wait(group, 0, HPI_LINE_CHUNK, (uint64_t)i, "a test"));
            RANK_CHECK(s->data[i] == i);
        }
    }
}

static void told_body(hp_world *world, void *argument) {
    said *s = argument;
    hp_group *groups[N_ROUNDS];
    for (int i = 0; i < N_ROUNDS; i++)
        RANK_OK(hp_group_duplicate(hp_world_group(world), &groups[i]));
    for (int i = 0; i < N_ROUNDS; i++) {
        if (hp_world_rank(world) == 0) {
            pause_a_little(i);
            s->data[i] = i;
            (void)HPI_FAIL(HP_ERR_MISMATCH, "a reason");
            hpi_group_fail(groups[i]);
        } else {
            while (hpi_group_find_failed(groups[i]) != 0)
                sched_yield();
            RANK_CHECK(s->data[i] == i);
        }
    }
    for (int i = 0; i < N_ROUNDS; i++)
        hp_group_destroy(groups[i]);
}

static void run_two(ranks_body body) {
    said s = {{0}};
    ranks_run(2, RANKS_THREADS, body, &s);
}

static void a_line_is_looked_at(void **state) {
    (void)state;
    run_two(reached_body);
}
static void a_line_is_waited_for(void **state) {
    (void)state;
    run_two(waited_body);
}
static void a_member_s_failure_is_looked_for(void **state) {
    (void)state;
    run_two(told_body);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_thread_at_a_time),
        cmocka_unit_test(a_failure_comes_with_its_record),
        cmocka_unit_test(what_is_attached_is_whole),
        cmocka_unit_test(a_line_is_looked_at),
        cmocka_unit_test(a_line_is_waited_for),
        cmocka_unit_test(a_member_s_failure_is_looked_for),
    };
    return cmocka_run_group_tests_name("order_world", tests, NULL, NULL);
}

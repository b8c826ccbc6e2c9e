/* SPDX-License-Identifier: Apache-2.0
 *
 * test_checkpoint_crash.c - a save that is killed before each of its system calls in turn.
 *
 * The program counts the calls by which a save changes the disk (harmed_disk.h) and kills itself at
 * the n-th. For every n a checkpoint must load, the old one or the new one, and the next save must
 * clean up. The same with a disk that cannot exchange names, and with a disk whose n-th call fails:
 * then the save must say so, or have succeeded.
 */
#include "fault/harmed_disk.h"
#include "unit/scratch.h"
#include "unit/varied_training.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/wait.h>

#include <cmocka.h>

/* ---- saving and loading ---------------------------------------------------------------------- */

/* Train `step` steps; save, harmed by harm at call n (or never); *out_status is what it said. */
typedef struct attempt {
    enum harm harm;
    int countdown;
    uint64_t step;
    hp_status status;
    bool is_harmed;
} attempt;

static void save(hp_world *world, void *argument) {
    attempt *a = argument;
    varied m;
    hp_optimizer *o;
    training_make(world, &m, &o);
    training_run(&m, o, 0, (int)a->step);
    disk.countdown = a->countdown;
    disk.harm = a->harm;
    a->status = hp_checkpoint_save(m.fsdp, o, scratch, a->step);
    disk.harm = HARM_NONE;
    a->is_harmed = disk.countdown <= 0;
    training_drop(&m, o);
}

/* The one that loads is what training so far gives; *argument becomes its step. */
static void load(hp_world *world, void *argument) {
    varied m, again;
    hp_optimizer *o, *o_again;
    uint64_t *out_step = argument;
    varied_values *values = calloc(2, sizeof *values);
    RANK_CHECK(values != NULL);
    training_make(world, &m, &o);
    training_make(world, &again, &o_again);
    RANK_OK(hp_checkpoint_load(m.fsdp, o, scratch, out_step));
    training_run(&again, o_again, 0, (int)*out_step);
    varied_collect(&m, VARIED_WEIGHTS, values);
    varied_collect(&again, VARIED_WEIGHTS, values + 1);
    RANK_CHECK(memcmp(values, values + 1, sizeof *values) == 0);
    free(values);
    training_drop(&again, o_again);
    training_drop(&m, o);
}

static attempt save_now(uint64_t step) {
    attempt a = {.step = step};
    ranks_run(1, RANKS_THREADS, save, &a);
    assert_int_equal(a.status, HP_OK);
    return a;
}

static uint64_t load_now(void) {
    uint64_t step = 0;
    ranks_run(1, RANKS_THREADS, load, &step);
    return step;
}

/* Save in a child that is killed at call n; false when it came through. */
static bool save_killed_at(int n, uint64_t step) {
    int status;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        char text[256];
        attempt a = {.harm = HARM_KILL, .countdown = n, .step = step};
        _exit(ranks_try(1, RANKS_THREADS, save, &a, text, sizeof text) != 0 || a.status < 0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status)) {
        assert_int_equal(WTERMSIG(status), SIGKILL);
        return true;
    }
    assert_int_equal(WEXITSTATUS(status), 0);
    return false;
}

/* Save `step` after step 1, killed at each call in turn, until a save comes through. */
static void kill_at_each_call(uint64_t step, bool cannot_exchange) {
    int n = 1;
    disk.cannot_exchange = cannot_exchange;
    for (;; n++) {
        save_now(1);
        const bool was_killed = save_killed_at(n, step);
        const uint64_t loaded = load_now();
        assert_true(loaded == 1 || loaded == step);
        if (!was_killed)
            break;
        unlink(scratch_path("latest")); /* without it, something loads all the same */
        const uint64_t found = load_now();
        assert_true(found == 1 || found == step);
        save_now(3);
        assert_int_equal(scratch_count_hidden(), 0);
        assert_int_equal(scratch_remove(NULL) + scratch_make(NULL), 0); /* afresh */
    }
    disk.cannot_exchange = false;
    assert_true(n > 10); /* there were calls to be killed at */
    assert_int_equal(scratch_count_hidden(), 0);
}

static void killed_while_saving_a_new_step(void **state) {
    (void)state;
    kill_at_each_call(2, false);
}

static void killed_while_replacing_a_step(void **state) {
    (void)state;
    kill_at_each_call(1, false);
}

static void killed_where_names_cannot_be_exchanged(void **state) {
    (void)state;
    kill_at_each_call(1, true);
}

/* A call that fails: the save either tells, and the old one loads, or has succeeded. */
static void each_call_that_fails_is_told(void **state) {
    (void)state;
    attempt a = {.is_harmed = true};
    int n_told = 0;
    for (int n = 1; a.is_harmed; n++) {
        save_now(1);
        a = (attempt){.harm = HARM_FAIL, .countdown = n, .step = 2};
        ranks_run(1, RANKS_THREADS, save, &a);
        assert_true(a.status == HP_OK || a.status == HP_ERR_FILE);
        n_told += a.status < 0;
        const uint64_t loaded = load_now();
        assert_true(a.status == HP_OK ? loaded == 2 : loaded == 1 || loaded == 2);
        if (a.status < 0)
            assert_false(scratch_has("latest.tmp"));
    }
    assert_true(n_told > 5);
    save_now(3);
    assert_int_equal(scratch_count_hidden(), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_make, scratch_remove)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(killed_while_saving_a_new_step),
        TEST(killed_while_replacing_a_step),
        TEST(killed_where_names_cannot_be_exchanged),
        TEST(each_call_that_fails_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

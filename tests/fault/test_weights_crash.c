/* SPDX-License-Identifier: Apache-2.0
 *
 * test_weights_crash.c - saving weights is killed before each of its system calls in turn.
 *
 * Old weights are zeros, new ones are not, so what loads is one or the other or a mixture, which
 * would be the failure. After every kill one of them loads, a tokenizer that lay beside the old
 * ones is still there, and the next save cleans up and has a directory that lay there too. The same
 * where names cannot be exchanged, and with a disk whose n-th call fails.
 */
#include "fault/harmed_disk.h"
#include "unit/weights_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/wait.h>

#include <cmocka.h>

/* Files of full size are there before their bytes are, so writing is a step of its own. */
static bool counts_writes;
ssize_t pwrite(int fd, const void *data, size_t n_bytes, off_t offset) {
    return counts_writes && disk_strikes() ? -1 : syscall(SYS_pwrite64, fd, data, n_bytes, offset);
}

typedef struct attempt {
    enum harm harm;
    int countdown;
    int is_new;
    hp_status status; /* of rank 0 */
} attempt;

static void save(hp_world *world, void *argument) {
    static const char *const names[] = {"config.json"}, *const texts[] = {"{}\n"};
    attempt *a = argument;
    char path[96];
    weights_model m;
    hp_weights_config config = HP_WEIGHTS_CONFIG_INIT;
    config.max_file_bytes = a->is_new ? 100 : 5000000000;
    config.file_names = names;
    config.file_texts = texts;
    config.n_files = 1;
    snprintf(path, sizeof path, "%s/model", scratch);
    weights_create(world, 1, a->is_new, &m);
    RANK_OK(hp_barrier(hp_world_group(world)));
    if (hp_world_rank(world) == 0) {
        disk.countdown = a->countdown;
        disk.harm = a->harm;
    }
    RANK_OK(hp_barrier(hp_world_group(world)));
    const hp_status status = hp_weights_save(m.fsdp, path, &config);
    RANK_CHECK(status == HP_OK || status == HP_ERR_FILE);
    if (status < 0)
        RANK_CHECK(strstr(hp_last_error(), "rank ") && strstr(hp_last_error(), scratch));
    RANK_OK(hp_barrier(hp_world_group(world)));
    if (hp_world_rank(world) == 0) {
        disk.harm = HARM_NONE;
        a->status = status;
    }
    weights_destroy(&m);
}

static void load(hp_world *world, void *argument) {
    char path[96];
    weights_model m;
    snprintf(path, sizeof path, "%s/model", scratch);
    weights_create(world, 1, 1, &m);
    RANK_OK(hp_weights_load(m.fsdp, path));
    weights_collect(&m, 0, argument);
    weights_destroy(&m);
}

/* Which weights load: 1 the new ones, 0 the old ones. Anything else fails. */
static int load_now(void) {
    int n_zeros = 0, n = 0;
    weights_values values;
    memset(&values, 0x55, sizeof values);
    ranks_run(1, RANKS_THREADS, load, &values);
    for (int row = 0; row < N_ROWS; row++)
        for (uint64_t i = 0; row != ROW_ALIAS && row != ROW_LEFT && i < weights_count(row); i++) {
            n++;
            n_zeros += values.of[row][i] == 0 && !signbit(values.of[row][i]);
        }
    if (n_zeros == n)
        return 0;
    assert_true(weights_match(&values, HP_FP32));
    return 1;
}

static void save_now(int is_new) {
    attempt a = {.is_new = is_new};
    ranks_run(1, RANKS_THREADS, save, &a);
    assert_int_equal(a.status, HP_OK);
}

/* Save the new weights in a child, which is killed at call n; false when it came through. */
static bool save_killed_at(int n, int n_ranks) {
    int status;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        char text[256];
        attempt a = {.harm = HARM_KILL, .countdown = n, .is_new = 1};
        _exit(ranks_try(n_ranks, RANKS_THREADS, save, &a, text, sizeof text) != 0 || a.status < 0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status)) {
        assert_int_equal(WTERMSIG(status), SIGKILL);
        return true;
    }
    assert_int_equal(WEXITSTATUS(status), 0);
    return false;
}

static void begin_with_old_ones(void) {
    save_now(0);
    scratch_write("model/tokenizer.json", "mine");
    mkdir(scratch_path("model/.cache"), 0755);
    scratch_write("model/.cache/precious", "mine");
}

static void expect_clean(void) {
    assert_int_equal(scratch_count_hidden(), 0);
    assert_true(scratch_has("model/tokenizer.json") && scratch_has("model/config.json"));
    assert_true(scratch_has("model/.cache/precious"));
}

static void kill_at_each_call(bool cannot_exchange, int n_ranks) {
    int n = 1, n_new = 0, n_aside = 0;
    disk.cannot_exchange = cannot_exchange;
    begin_with_old_ones();
    for (; save_killed_at(n, n_ranks); n++) {
        n_aside += !scratch_has("model");
        n_new += load_now();
        save_now(0);
        expect_clean();
    }
    disk.cannot_exchange = false;
    assert_int_equal(load_now(), 1);
    expect_clean();
    print_message("%d calls, %d killed behind the exchange\n", n - 1, n_new);
    assert_true(n > 20 && n_new > 0 && n_new < n - 10); /* before and after the exchange */
    assert_int_equal(n_aside > 0, cannot_exchange);
}

static void killed_at_each_call(void **state) {
    (void)state;
    counts_writes = true;
    kill_at_each_call(false, 2);
    counts_writes = false;
}

static void killed_where_names_cannot_be_exchanged(void **state) {
    (void)state;
    kill_at_each_call(true, 1);
}

static void killed_before_there_was_one(void **state) {
    (void)state;
    for (int n = 1; save_killed_at(n, 1); n++) {
        if (scratch_has("model"))
            assert_int_equal(load_now(), 1);
        assert_int_equal(scratch_remove(NULL) + scratch_make(NULL), 0);
    }
    assert_int_equal(load_now(), 1);
    assert_int_equal(scratch_count_hidden(), 0);
}

/* A call that fails: the save tells, and the old ones load, or the new ones are there whole. */
static void fail_at_each_call(bool cannot_exchange) {
    int n_told = 0;
    attempt a = {.status = HP_ERR_FILE};
    disk.cannot_exchange = cannot_exchange;
    begin_with_old_ones();
    for (int n = 1; n < 200; n++) {
        a = (attempt){.harm = HARM_FAIL, .countdown = n, .is_new = 1};
        ranks_run(2, RANKS_THREADS, save, &a);
        const int is_new = load_now();
        assert_true(a.status == HP_ERR_FILE || is_new);
        assert_true(scratch_has("model/tokenizer.json")); /* and so by its own name */
        n_told += a.status < 0;
        if (disk.countdown > 0)
            break;
        save_now(0);
        expect_clean();
    }
    disk.cannot_exchange = false;
    assert_int_equal(a.status, HP_OK);
    assert_true(n_told > 15);
}

static void each_call_that_fails_is_told(void **state) {
    (void)state;
    fail_at_each_call(false);
}

static void failures_where_names_cannot_be_exchanged(void **state) {
    (void)state;
    fail_at_each_call(true);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_make, scratch_remove)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(killed_at_each_call),
        TEST(killed_where_names_cannot_be_exchanged),
        TEST(killed_before_there_was_one),
        TEST(each_call_that_fails_is_told),
        TEST(failures_where_names_cannot_be_exchanged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

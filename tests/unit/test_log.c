/* SPDX-License-Identifier: Apache-2.0
 *
 * test_log.c - the log and the trace of calls: which lines there are at which level, in which file,
 * that each failure is told once, and that a log which cannot be made fails nothing.
 */
#include "coll/coll.h"
#include "support/ranks.h"
#include "trace/trace.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { TEXT_BYTES = 1 << 16 };
static char folder[64];

static void ask(const char *level, const char *to_stdout) {
    if (level)
        assert_int_equal(setenv("HYPER_PARALLEL_SHMEM_LOG_LEVEL", level, 1), 0);
    else
        assert_int_equal(unsetenv("HYPER_PARALLEL_SHMEM_LOG_LEVEL"), 0);
    assert_int_equal(setenv("SHMEM_LOG_TO_STDOUT", to_stdout, 1), 0);
}

static int begin(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/hyperparallel-log-XXXXXX");
    if (!mkdtemp(folder) || setenv("HYPER_PARALLEL_LOG_DIR", folder, 1))
        return -1;
    return 0;
}

static int end(void **state) {
    char command[96];
    (void)state;
    unsetenv("HYPER_PARALLEL_SHMEM_LOG_LEVEL");
    unsetenv("SHMEM_LOG_TO_STDOUT");
    unsetenv("HYPER_PARALLEL_LOG_DIR");
    unsetenv("HYPER_PARALLEL_SLOW_WAIT_MS");
    unsetenv("SYMMETRIC_MEMORY_HEAP_SIZE");
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static int n_files(void) {
    int n = 0;
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* The log of a rank of this process; "" when there is none. */
static const char *text_of(int rank) {
    static char text[TEXT_BYTES];
    char path[160];
    snprintf(path, sizeof path, "%s/hyperparallel.rank%d.%d.log", folder, rank, (int)getpid());
    FILE *file = fopen(path, "re");
    const size_t n = file ? fread(text, 1, sizeof text - 1, file) : 0;
    text[n] = '\0';
    if (file)
        fclose(file);
    return text;
}

static int count(const char *text, const char *what) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, what)); at++)
        n++;
    return n;
}

static void small_job(hp_world *world, void *argument) {
    float x = 1, y = 0;
    hp_symm memory = {0};
    hp_group *pair = NULL;
    (void)argument;
    RANK_OK(hp_group_split(hp_world_group(world), 0, 0, &pair));
    RANK_OK(hp_symm_alloc(world, pair, 4096, 0, &memory));
    RANK_OK(hp_symm_put(memory, 0, &x, sizeof x, hp_world_rank(world), NULL));
    RANK_OK(hp_all_reduce(pair, &x, &y, 1, HP_FP32, HP_SUM));
    RANK_FAILS(hp_all_reduce(pair, &x, &y, 1, (hp_dtype)99, HP_SUM), HP_ERR_ARGUMENT);
    RANK_OK(hp_symm_free(memory));
    hp_group_destroy(pair);
}

static void test_log_level_unset_writes_nothing(void **state) {
    (void)state;
    ask(NULL, "0");
    ranks_run(2, RANKS_THREADS, small_job, NULL);
    assert_int_equal(n_files(), 0);
}

static void test_log_level_debug_has_every_call(void **state) {
    (void)state;
    ask("debug", "0");
    ranks_run(2, RANKS_THREADS, small_job, NULL);
    assert_int_equal(n_files(), 2); /* a file per rank */
    for (int rank = 0; rank < 2; rank++) {
        char head[32];
        const char *text = text_of(rank);
        snprintf(head, sizeof head, "Z rank %d ", rank);
        assert_int_equal(count(text, head), count(text, "\n"));
        assert_int_equal(count(text, "start: 2 ranks on this node, threads"), 1);
        assert_int_equal(count(text, "group_split of world"), 1);
        assert_int_equal(count(text, "symm_alloc of"), 1);
        assert_true(count(text, "DEBUG   coll   all_reduce #1 of") == 1);
        assert_int_equal(count(text, "4 bytes by words (the input, "), 1);
        assert_int_equal(count(text, " put "), 0); /* counted, not told */
        assert_int_equal(count(text, "in all 1 put, 4 bytes"), 1);
        assert_int_equal(count(text, "end: "), 1);
        assert_int_equal(count(text, "ERROR"), 1);
    }
}

static void test_log_level_by_number_and_order(void **state) {
    static const char *const levels[] = {"1", "2", "3"};
    (void)state;
    for (int i = 0; i < 3; i++) {
        ask(levels[i], "0");
        ranks_run(1, RANKS_THREADS, small_job, NULL);
        const char *text = text_of(0);
        assert_int_equal(count(text, "DEBUG"), 0);
        assert_int_equal(count(text, "INFO") > 0, i == 0);
        assert_int_equal(count(text, "ERROR"), 1);
        char path[160];
        snprintf(path, sizeof path, "%s/hyperparallel.rank0.%d.log", folder, (int)getpid());
        assert_int_equal(unlink(path), 0);
    }
}

static void test_log_level_unknown_is_refused(void **state) {
    hp_world *world = NULL;
    (void)state;
    ask("LOUD", "0");
    assert_int_equal(hp_world_create(NULL, &world), HP_ERR_ARGUMENT);
    assert_non_null(strstr(hp_last_error(), "DEBUG|INFO|WARNING|ERROR"));
    ask("4", "0");
    assert_int_equal(hp_world_create(NULL, &world), HP_ERR_ARGUMENT);
}

/* Lines of processes that share a pipe come whole. */
static void test_log_to_stdout(void **state) {
    char line[4096];
    int fds[2], n_lines = 0;
    (void)state;
    ask("INFO", "1");
    assert_int_equal(pipe(fds), 0);
    const pid_t child = fork();
    if (!child) {
        dup2(fds[1], STDOUT_FILENO);
        close(fds[0]);
        close(fds[1]);
        char text[64];
        _exit(ranks_try(3, RANKS_PROCESSES, small_job, NULL, text, sizeof text));
    }
    close(fds[1]);
    FILE *file = fdopen(fds[0], "r");
    while (fgets(line, sizeof line, file)) {
        assert_non_null(strstr(line, "Z rank "));
        assert_int_equal(line[strlen(line) - 1], '\n');
        n_lines++;
    }
    fclose(file);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_true(n_lines >= 3 * 6);
    assert_int_equal(n_files(), 0);
}

/* Whoever reads the log has gone: no SIGPIPE, no failure. */
static void test_log_to_closed_pipe_is_lost(void **state) {
    int fds[2], status;
    (void)state;
    ask("DEBUG", "1");
    assert_int_equal(pipe(fds), 0);
    const pid_t child = fork();
    if (!child) {
        char text[64];
        dup2(fds[1], STDOUT_FILENO);
        close(fds[0]);
        close(fds[1]);
        _exit(ranks_try(2, RANKS_THREADS, small_job, NULL, text, sizeof text));
    }
    close(fds[0]);
    close(fds[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* Said once, on standard error. */
static void test_log_that_cannot_be_made_fails_nothing(void **state) {
    char text[4096] = "";
    int fds[2], status;
    (void)state;
    ask("DEBUG", "0");
    assert_int_equal(setenv("HYPER_PARALLEL_LOG_DIR", "/nowhere/at/all", 1), 0);
    assert_int_equal(pipe(fds), 0);
    const pid_t child = fork();
    if (!child) {
        char first[64];
        dup2(fds[1], STDERR_FILENO);
        close(fds[0]);
        _exit(ranks_try(1, RANKS_THREADS, small_job, NULL, first, sizeof first));
    }
    close(fds[1]);
    size_t used = 0;
    for (ssize_t n; (n = read(fds[0], text + used, sizeof text - 1 - used)) > 0;)
        used += (size_t)n;
    close(fds[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(count(text, "\n"), 1);
    assert_non_null(strstr(text, "rank 0 goes on without a log, /nowhere/at/all/"));
}

static void late_for_barrier(hp_world *world, void *argument) {
    (void)argument;
    if (hp_world_rank(world) == 1)
        hpi_sleep_ns(UINT64_C(400000000));
    RANK_OK(hp_barrier(hp_world_group(world)));
}

static void test_slow_wait_is_told_once(void **state) {
    (void)state;
    ask("WARNING", "0");
    assert_int_equal(setenv("HYPER_PARALLEL_SLOW_WAIT_MS", "50", 1), 0);
    ranks_run(2, RANKS_THREADS, late_for_barrier, NULL);
    const char *text = text_of(0);
    assert_int_equal(count(text, "WARNING"), 1);
    assert_non_null(strstr(text, "rank 0 waited for rank 1 (rank 1 of world) in barrier #1"));
    assert_non_null(strstr(text, "for 50 ms and waits on"));
    assert_string_equal(text_of(1), "");
}

static void fill_the_heap(hp_world *world, void *argument) {
    hp_symm memory = {0}, more = {0};
    (void)argument;
    RANK_OK(hp_symm_alloc(world, NULL, 1 << 19, 0, &memory));
    RANK_OK(hp_symm_alloc(world, NULL, 460 << 10, 0, &more));
    RANK_OK(hp_symm_free(more));
    RANK_OK(hp_symm_free(memory));
}

static void test_full_heap_is_warned_of(void **state) {
    (void)state;
    ask("WARNING", "0");
    assert_int_equal(setenv("SYMMETRIC_MEMORY_HEAP_SIZE", "1M", 1), 0);
    ranks_run(1, RANKS_THREADS, fill_the_heap, NULL);
    assert_int_equal(count(text_of(0), "WARNING"), 1);
    assert_non_null(strstr(text_of(0), "of 1048576 bytes of symmetric memory are taken"));
}

static void disagree(hp_world *world, void *argument) {
    float x[2] = {0};
    (void)argument;
    RANK_FAILS(hp_all_reduce(hp_world_group(world), x, x, 1 + (uint64_t)hp_world_rank(world),
                             HP_FP32, HP_SUM),
               HP_ERR_MISMATCH);
}

static void test_failure_is_told_once_with_whose_it_was(void **state) {
    (void)state;
    ask("ERROR", "0");
    ranks_run(2, RANKS_THREADS, disagree, NULL);
    for (int rank = 0; rank < 2; rank++) {
        const char *text = text_of(rank);
        assert_int_equal(count(text, "\n"), 1);
        assert_non_null(strstr(text, "the count differs"));
        assert_non_null(strstr(text, "HP_ERR_MISMATCH"));
    }
}

/* ---- the trace of calls ---------------------------------------------------------------------- */

static const hp_span *find_span(const hp_trace *trace, unsigned stream, const char *name) {
    for (uint64_t i = 0; i < hp_trace_count(trace, stream); i++)
        if (!strcmp(hp_trace_at(trace, stream, i)->name, name))
            return hp_trace_at(trace, stream, i);
    return NULL;
}

static void trace_small_job(hp_world *world, void *argument) {
    hp_trace *trace = NULL;
    static const char *const names[] = {"group_split", "symm_alloc", "put", "all_reduce",
                                        "symm_free"};
    RANK_OK(hp_trace_create(hp_world_rank(world), 100, &trace));
    RANK_FAILS(hp_trace_thread(trace, HP_TRACE_STREAMS), HP_ERR_ARGUMENT);
    RANK_OK(hp_trace_thread(trace, 3));
    small_job(world, argument);
    RANK_OK(hp_trace_thread(NULL, 0));
    const uint64_t n = hp_trace_count(trace, 3);
    RANK_OK(hp_barrier(hp_world_group(world))); /* not traced */
    RANK_CHECK(hp_trace_count(trace, 3) == n);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        RANK_CHECK(find_span(trace, 3, names[i]));
    RANK_CHECK(!find_span(trace, 3, "barrier"));
    const hp_span *sum = find_span(trace, 3, "all_reduce"), *put = find_span(trace, 3, "put");
    RANK_CHECK(sum->id == 1 && sum->bytes == 4 && sum->end_ns > sum->begin_ns);
    RANK_CHECK(!strncmp(sum->detail, "group[", 6)); /* though the group is gone */
    RANK_CHECK(put->id == UINT32_MAX && put->bytes == 4 && put->end_ns <= sum->begin_ns);
    hp_trace_destroy(trace);
}

static void test_calls_are_traced_where_a_thread_asks(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, trace_small_job, NULL);
}

static void many_groups(hp_world *world, void *argument) {
    hp_trace *trace = NULL;
    (void)argument;
    RANK_OK(hp_trace_create(0, 300, &trace));
    RANK_OK(hp_trace_thread(trace, 0));
    for (int i = 0; i < 80; i++) {
        char name[16];
        hp_group *group = NULL;
        RANK_OK(hp_group_duplicate(hp_world_group(world), &group));
        snprintf(name, sizeof name, "group %d", i);
        hpi_group_set_name(group, name);
        RANK_OK(hp_barrier(group));
        hp_group_destroy(group);
    }
    RANK_OK(hp_trace_thread(NULL, 0));
    RANK_CHECK(hp_trace_count(trace, 0) == 160);
    RANK_CHECK(!strcmp(hp_trace_at(trace, 0, 1)->detail, "group 0"));
    RANK_CHECK(!strcmp(hp_trace_at(trace, 0, 159)->detail, "(another group)"));
    hp_trace_destroy(trace);
}

static void test_names_of_groups_outlive_them(void **state) {
    (void)state;
    ranks_run(1, RANKS_THREADS, many_groups, NULL);
}

/* ---- versions, options ------------------------------------------------------------------------
 */

static void test_versions_of_headers_and_library(void **state) {
    (void)state;
    assert_int_equal(hp_version_check(HP_VERSION_NUMBER), HP_OK);
    assert_int_equal(hp_version_check(HP_VERSION_NUMBER + 1), HP_ERR_VERSION);
    assert_non_null(strstr(hp_last_error(), hp_version()));
    assert_int_equal(hp_version_check(HP_VERSION_NUMBER + 1000), HP_ERR_VERSION);
    assert_int_equal(hp_version_check(HP_VERSION_NUMBER + 1000000), HP_ERR_VERSION);
    assert_int_equal(hp_version_check(0), HP_ERR_VERSION);
    assert_true(strlen(hp_version_build()) > 4);
}

static void test_options_as_a_list(void **state) {
    hp_option o;
    int n = 0;
    (void)state;
    ask("warning", "0");
    for (; hp_option_at(n, &o); n++)
        if (!strcmp(o.name, "HYPER_PARALLEL_SHMEM_LOG_LEVEL")) {
            assert_string_equal(o.value, "warning");
            assert_string_equal(o.fallback, "");
            assert_string_equal(o.takes, "DEBUG|INFO|WARNING|ERROR, or 0 to 3");
        } else if (!strcmp(o.name, "HYPER_PARALLEL_SLOW_WAIT_MS")) {
            assert_null(o.value);
            assert_string_equal(o.fallback, "10000");
            assert_string_equal(o.takes, "1 to 86400000 ms");
        }
    assert_true(n >= 11);
    assert_int_equal(hp_option_at(-1, &o), 0);
    assert_int_equal(hp_option_at(0, NULL), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_log_level_unset_writes_nothing, begin, end),
        cmocka_unit_test_setup_teardown(test_log_level_debug_has_every_call, begin, end),
        cmocka_unit_test_setup_teardown(test_log_level_by_number_and_order, begin, end),
        cmocka_unit_test_setup_teardown(test_log_level_unknown_is_refused, begin, end),
        cmocka_unit_test_setup_teardown(test_log_to_stdout, begin, end),
        cmocka_unit_test_setup_teardown(test_log_to_closed_pipe_is_lost, begin, end),
        cmocka_unit_test_setup_teardown(test_log_that_cannot_be_made_fails_nothing, begin, end),
        cmocka_unit_test_setup_teardown(test_slow_wait_is_told_once, begin, end),
        cmocka_unit_test_setup_teardown(test_full_heap_is_warned_of, begin, end),
        cmocka_unit_test_setup_teardown(test_failure_is_told_once_with_whose_it_was, begin, end),
        cmocka_unit_test(test_calls_are_traced_where_a_thread_asks),
        cmocka_unit_test(test_names_of_groups_outlive_them),
        cmocka_unit_test(test_versions_of_headers_and_library),
        cmocka_unit_test_setup_teardown(test_options_as_a_list, begin, end)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

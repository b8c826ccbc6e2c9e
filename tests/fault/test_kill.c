/* SPDX-License-Identifier: Apache-2.0
 *
 * test_kill.c - ranks that are killed, stopped, or simply end, at any moment.
 *
 * What must hold, whenever it happens: survivors get an error that names the rank; the launcher
 * names it too, says what every other rank waited for, and is back in under a second; no process,
 * descriptor or shared memory is left. A page that parent and ranks share carries what each saw.
 */
#include "support/ranks.h"
#include "world/inside.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_RANKS = 4, N_KILLS = 50, LINE_BYTES = 320, N_LINES = 64 };
#define PROMISE_NS UINT64_C(1000000000) /* from the kill to the end of the job */

typedef struct seen {
    _Atomic int pid;
    _Atomic int status; /* of the call that failed; 0: none did */
    _Atomic int world_rank;
    char message[256];
} seen;

typedef struct page {
    seen ranks[N_RANKS];
    _Atomic uint64_t killed_at_ns;
    _Atomic int victim;
} page;

static page *shared;

typedef struct report {
    int n_lines;
    char lines[N_LINES][LINE_BYTES];
} report;

static void say(void *context, const char *line) {
    report *r = context;
    if (r->n_lines < N_LINES)
        snprintf(r->lines[r->n_lines++], LINE_BYTES, "%s", line);
}

static int setup(void **state) {
    (void)state;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return shared == MAP_FAILED;
}

static int teardown(void **state) {
    (void)state;
    return munmap(shared, sizeof *shared);
}

/* ---- what must not be left ------------------------------------------------------------------- */

static int count_entries(const char *folder) {
    DIR *dir = opendir(folder);
    int n = 0;
    assert_non_null(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

typedef struct leftovers {
    int n_fds, n_shm;
} leftovers;

static leftovers look(void) {
    return (leftovers){count_entries("/proc/self/fd"), count_entries("/dev/shm")};
}

static bool is_running(pid_t pid) {
    char path[64], line[256] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    const char *state = fgets(line, sizeof line, file) ? strrchr(line, ')') : NULL;
    fclose(file);
    return state && state[2] != 'Z' && state[2] != 'X';
}

static void assert_nothing_left(leftovers before) {
    const leftovers now = look();
    assert_int_equal(now.n_fds, before.n_fds);
    assert_int_equal(now.n_shm, before.n_shm);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
    for (int i = 0; i < N_RANKS; i++)
        assert_false(shared->ranks[i].pid && is_running(shared->ranks[i].pid));
}

/* ---- the job ----------------------------------------------------------------------------------
 */

static void note_failure(int rank, hp_status status) {
    hp_error error;
    hp_last_error_get(&error);
    atomic_store(&shared->ranks[rank].world_rank, error.world_rank);
    snprintf(shared->ranks[rank].message, sizeof shared->ranks[rank].message, "%s", error.message);
    atomic_store(&shared->ranks[rank].status, status);
}

/* Exchange over the world and over pairs until something fails. */
static hp_status work(hp_world *world) {
    uint64_t all[N_RANKS];
    hp_group *pair;
    HP_TRY(hp_group_split(hp_world_group(world), hp_world_rank(world) / 2, 0, &pair));
    for (uint64_t i = 0;; i++) {
        HP_TRY(hpi_group_exchange(i % 3 ? hp_world_group(world) : pair, "step", &i, 1, all));
        if (i % 64 == 0)
            hpi_sleep_ns(100000);
    }
}

static int join_and_work(void *argument) {
    hp_world *world;
    const char *rank_text = getenv("RANK");
    const int rank = rank_text ? atoi(rank_text) : 0;
    (void)argument;
    atomic_store(&shared->ranks[rank].pid, getpid());
    hp_status status = hp_world_create(NULL, &world);
    if (!status)
        status = work(world);
    note_failure(rank, status);
    return 3;
}

/* Kill a rank once all have begun, at a moment that the seed chooses: while they start or work. */
typedef struct killer {
    uint64_t seed;
    int signal;
} killer;

static void *kill_one(void *argument) {
    killer *k = argument;
    const int victim = (int)(hpi_random_next(&k->seed) % N_RANKS);
    for (int i = 0; i < N_RANKS; i++)
        while (!atomic_load(&shared->ranks[i].pid))
            hpi_sleep_ns(20000);
    hpi_sleep_ns(hpi_random_next(&k->seed) % 20000000);
    atomic_store(&shared->victim, victim);
    atomic_store(&shared->killed_at_ns, hpi_now_ns());
    kill(atomic_load(&shared->ranks[victim].pid), k->signal);
    return NULL;
}

/* What the launcher returned, having killed a rank; *out_ns is the time from the kill to its end.
 */
static int launch_and_kill(killer k, report *r, uint64_t *out_ns) {
    hp_launch_config config = HP_LAUNCH_CONFIG_INIT;
    pthread_t thread;
    int status = -1;
    memset(shared, 0, sizeof *shared);
    *r = (report){0};
    config.n_ranks = N_RANKS;
    config.body = join_and_work;
    config.say = say;
    config.say_context = r;
    config.deadline_ms = 60000;
    assert_int_equal(pthread_create(&thread, NULL, kill_one, &k), 0);
    assert_int_equal(hp_launch(&config, &status), HP_OK);
    *out_ns = hpi_now_ns() - atomic_load(&shared->killed_at_ns);
    pthread_join(thread, NULL);
    return status;
}

static bool has_line(const report *r, const char *begin, const char *within) {
    for (int i = 0; i < r->n_lines; i++)
        if (!strncmp(r->lines[i], begin, strlen(begin)) && strstr(r->lines[i], within))
            return true;
    return false;
}

static void print_job(const report *r) {
    for (int i = 0; i < r->n_lines; i++)
        print_error("  %s\n", r->lines[i]);
    for (int i = 0; i < N_RANKS; i++)
        print_error("  rank %d: %s\n", i, shared->ranks[i].message);
}

static void test_kill(void **state) {
    (void)state;
    report *r = malloc(sizeof *r);
    int n_named = 0, n_survivors = 0;
    uint64_t longest_ns = 0;
    assert_non_null(r);
    const leftovers before = look();
    for (uint64_t seed = 0; seed < N_KILLS; seed++) {
        char begin[32];
        uint64_t ns;
        const int status = launch_and_kill((killer){seed, SIGKILL}, r, &ns);
        const int victim = atomic_load(&shared->victim);
        longest_ns = hpi_max(longest_ns, ns);
        if (status != 128 + SIGKILL)
            print_job(r);
        assert_int_equal(status, 128 + SIGKILL);
        snprintf(begin, sizeof begin, "rank %d (pid ", victim);
        assert_true(has_line(r, begin, "was killed by SIGKILL"));
        assert_int_equal(r->n_lines, N_RANKS);
        for (int i = 0; i < N_RANKS; i++) {
            if (i == victim)
                continue;
            n_survivors++;
            snprintf(begin, sizeof begin, "rank %d was ", i);
            assert_true(has_line(r, begin, ""));
            if (!atomic_load(&shared->ranks[i].status))
                continue; /* the launcher ended it first */
            if (atomic_load(&shared->ranks[i].world_rank) != victim)
                print_job(r);
            assert_int_equal(atomic_load(&shared->ranks[i].status), HP_ERR_PEER);
            assert_int_equal(atomic_load(&shared->ranks[i].world_rank), victim);
            n_named++;
        }
        assert_nothing_left(before);
    }
    free(r);
    print_message("%d of %d survivors named the rank themselves; longest end %.0f ms\n", n_named,
                  n_survivors, (double)longest_ns * 1e-6);
    assert_true(longest_ns < PROMISE_NS);
    assert_true(n_named * 10 >= n_survivors * 9);
}

/* ---- a rank that ends without a word -----------------------------------------------------------
 */

static int end_early(void *argument) {
    hp_world *world;
    hp_status status = hp_world_create(NULL, &world);
    if (status)
        return 4;
    const int rank = hp_world_rank(world);
    if (rank == 2)
        return *(int *)argument;
    note_failure(rank, work(world));
    return 0;
}

static void test_early_exit(void **state) {
    (void)state;
    for (int code = 0; code < 8; code += 7) {
        hp_launch_config config = HP_LAUNCH_CONFIG_INIT;
        report r = {0};
        int status = -1;
        memset(shared, 0, sizeof *shared);
        config.n_ranks = N_RANKS;
        config.body = end_early;
        config.argument = &code;
        config.say = say;
        config.say_context = &r;
        assert_int_equal(hp_launch(&config, &status), HP_OK);
        assert_int_equal(status, code);
        assert_int_equal(r.n_lines, code ? N_RANKS : 0);
        if (code)
            assert_true(has_line(&r, "rank 2 (pid ", "ended with status 7"));
        for (int i = 0; i < N_RANKS; i++) {
            if (i == 2 || !atomic_load(&shared->ranks[i].status))
                continue;
            assert_int_equal(atomic_load(&shared->ranks[i].status), HP_ERR_PEER);
            assert_int_equal(atomic_load(&shared->ranks[i].world_rank), 2);
        }
    }
}

/* ---- a rank that is stopped --------------------------------------------------------------------
 */

static void test_stop(void **state) {
    (void)state;
    report r;
    uint64_t ns;
    const leftovers before = look();
    setenv("SYMMETRIC_MEMORY_SIGNAL_TIMEOUT_MS", "300", 1);
    const int status = launch_and_kill((killer){4, SIGSTOP}, &r, &ns);
    unsetenv("SYMMETRIC_MEMORY_SIGNAL_TIMEOUT_MS");
    const int victim = atomic_load(&shared->victim);
    int n_late = 0;
    assert_int_equal(status, 3);
    for (int i = 0; i < N_RANKS; i++)
        if (atomic_load(&shared->ranks[i].status) == HP_ERR_TIMEOUT)
            n_late += atomic_load(&shared->ranks[i].world_rank) == victim;
    assert_true(n_late > 0);
    assert_nothing_left(before);
}

/* ---- the deadline, and the end of the launcher --------------------------------------------------
 */

static int work_until_killed(void *argument) {
    hp_world *world;
    (void)argument;
    signal(SIGTERM, SIG_IGN); /* it takes the second, harder request */
    if (hp_world_create(NULL, &world))
        return 4;
    atomic_store(&shared->ranks[hp_world_rank(world)].pid, getpid());
    if (hp_world_rank(world) == 1)
        for (;;)
            pause();
    (void)hpi_line_wait(hp_world_group(world), 1, HPI_LINE_CHUNK, 1, "all_gather");
    return 0;
}

static void test_deadline(void **state) {
    hp_launch_config config = HP_LAUNCH_CONFIG_INIT;
    report r = {0};
    int status = -1;
    (void)state;
    const leftovers before = look();
    memset(shared, 0, sizeof *shared);
    config.n_ranks = N_RANKS;
    config.body = work_until_killed;
    config.deadline_ms = 700;
    config.grace_ms = 50;
    config.say = say;
    config.say_context = &r;
    assert_int_equal(hp_launch(&config, &status), HP_OK);
    assert_int_equal(status, 124);
    assert_true(has_line(&r, "the job did not end", "700 ms"));
    assert_true(has_line(&r, "rank 0 was ", "waiting for rank 1 in all_gather #1 of world"));
    assert_true(has_line(&r, "rank 1 was ", "running"));
    assert_nothing_left(before);
}

static void test_launcher_dies(void **state) {
    (void)state;
    const leftovers before = look();
    memset(shared, 0, sizeof *shared);
    fflush(NULL);
    const pid_t launcher = fork();
    assert_true(launcher >= 0);
    if (launcher == 0) {
        hp_launch_config config = HP_LAUNCH_CONFIG_INIT;
        int status;
        config.n_ranks = N_RANKS;
        config.body = work_until_killed;
        _exit(hp_launch(&config, &status) ? 1 : status);
    }
    for (int i = 0; i < N_RANKS; i++)
        while (!atomic_load(&shared->ranks[i].pid))
            hpi_sleep_ns(1000000);
    kill(launcher, SIGKILL);
    assert_int_equal(waitpid(launcher, NULL, 0), launcher);
    bool is_any_left = true;
    for (int n = 0; n < 1000 && is_any_left; n++) {
        is_any_left = false;
        for (int i = 0; i < N_RANKS; i++)
            is_any_left |= is_running(atomic_load(&shared->ranks[i].pid));
        hpi_sleep_ns(1000000);
    }
    assert_false(is_any_left);
    assert_nothing_left(before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kill), cmocka_unit_test(test_early_exit), cmocka_unit_test(test_stop),
        cmocka_unit_test(test_deadline), cmocka_unit_test(test_launcher_dies)};
    return cmocka_run_group_tests_name("kill", tests, setup, teardown);
}

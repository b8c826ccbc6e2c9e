/* SPDX-License-Identifier: Apache-2.0
 *
 * test_kill.c - ranks that end at any moment of any call; a job without end; a launcher that dies.
 *
 * 50 seeds of kills.h, each call at least once; test_kill_full.c plays 1,000. A seed that fails is
 * played alone by HP_TEST_SEED.
 */
#include "fault/kills.h"
#include "support/ranks.h"
#include "world/inside.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { N_KILLS = 50, N_RANKS = 4 };

static fault_page *page;
static bool is_alone;

static int setup(void **state) {
    (void)state;
    page = fault_page_map();
    strcpy(kill_folder, "/tmp/hp_kill.XXXXXX");
    return !page || !mkdtemp(kill_folder);
}

static int teardown(void **state) {
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", kill_folder);
    return system(command) + munmap(page, sizeof *page);
}

static void assert_nothing_left(const fault_leftovers *before) {
    char text[160];
    if (fault_has_left(before, text, sizeof text))
        fail_msg("left: %s", text);
}

static void kill_at_any_moment_of_any_call(void **state) {
    (void)state;
    uint64_t longest_ns = 0;
    const char *chosen = getenv("HP_TEST_SEED");
    const uint64_t first = chosen ? strtoull(chosen, NULL, 10) : 0;
    int n_failed = 0;
    kill_plan *p = malloc(sizeof *p);
    assert_non_null(p);
    const fault_leftovers before = fault_look();
    for (uint64_t seed = first; seed < first + (chosen ? 1 : N_KILLS); seed++) {
        kill_choose(p, seed, page);
        assert_int_equal(kill_run(p), HP_OK);
        const char *what = kill_judge(p);
        if (what) {
            fprintf(stderr, "seed %llu: ", (unsigned long long)seed);
            kill_print(p, what);
        }
        n_failed += what != NULL;
        if (!kill_is_silent(p))
            longest_ns = hpi_max(longest_ns, kill_last_ns(p));
        assert_nothing_left(&before);
    }
    free(p);
    print_message("from a rank's end to the last survivor's error: at most %.0f ms%s\n",
                  1e-6 * (double)longest_ns, is_alone ? "" : "; sockets of others were seen");
    assert_int_equal(n_failed, 0);
}

/* ---- the deadline, and the end of the launcher ----------------------------------------------- */

static int work_until_killed(void *argument) {
    hp_world *world;
    (void)argument;
    signal(SIGTERM, SIG_IGN); /* it takes the second, harder request */
    if (hp_world_create(NULL, &world))
        return 4;
    atomic_store(&page->ranks[hp_world_rank(world)].pid, getpid());
    if (hp_world_rank(world) == 1)
        for (;;)
            pause();
    (void)hpi_line_wait(hp_world_group(world), 1, HPI_LINE_CHUNK, 1, "all_gather");
    return 0;
}

static void deadline_of_a_job(void **state) {
    hp_launch_config config = HP_LAUNCH_CONFIG_INIT;
    fault_job job = {.page = page};
    (void)state;
    const fault_leftovers before = fault_look();
    config.n_ranks = N_RANKS;
    config.body = work_until_killed;
    config.deadline_ms = 700;
    config.grace_ms = 50;
    config.say = fault_say;
    config.say_context = &job;
    assert_int_equal(hp_launch(&config, &job.exit_status), HP_OK);
    assert_int_equal(job.exit_status, 124);
    assert_true(fault_was_said(&job, "the job did not end", "700 ms"));
    assert_true(
        fault_was_said(&job, "rank 0 was ", "waiting for rank 1 in all_gather #1 of world"));
    assert_true(fault_was_said(&job, "rank 1 was ", "running"));
    assert_nothing_left(&before);
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

static bool is_any_running(void) {
    for (int i = 0; i < N_RANKS; i++)
        if (is_running(atomic_load(&page->ranks[i].pid)))
            return true;
    return false;
}

static void ranks_die_with_their_launcher(void **state) {
    (void)state;
    const fault_leftovers before = fault_look();
    memset(page, 0, sizeof *page);
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
        while (!atomic_load(&page->ranks[i].pid))
            hpi_sleep_ns(1000000);
    kill(launcher, SIGKILL);
    assert_int_equal(waitpid(launcher, NULL, 0), launcher);
    for (int n = 0; n < 1000 && is_any_running(); n++)
        hpi_sleep_ns(1000000);
    assert_false(is_any_running());
    while (waitpid(-1, NULL, WNOHANG) > 0) { /* the orphans are ours: see fault_be_alone */
    }
    assert_nothing_left(&before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kill_at_any_moment_of_any_call),
        cmocka_unit_test(deadline_of_a_job),
        cmocka_unit_test(ranks_die_with_their_launcher),
    };
    is_alone = fault_be_alone();
    return cmocka_run_group_tests_name("kill", tests, setup, teardown);
}

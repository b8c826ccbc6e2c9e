/* SPDX-License-Identifier: Apache-2.0
 *
 * test_kill_full.c - 1,000 ranks that end at random moments, and the figures of it.
 *
 * docs/reliability.md quotes what this prints: faults, phases and calls that were struck, the times
 * from a rank's end to the last survivor's error, and what was left. HP_TEST_SEED plays other
 * seeds, HP_TEST_KILLS more or fewer.
 */
#include "fault/kills.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { MOST_KILLS = 100000 };

static fault_page *page;
static bool is_alone;

/* Times of one group of jobs, in nanoseconds. */
typedef struct times {
    int n, n_failed;
    uint64_t *ns;
} times;

static void times_add(times *t, uint64_t ns, bool is_failed) {
    t->ns[t->n++] = ns;
    t->n_failed += is_failed;
}

static int compare(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void times_print(times *t, const char *name) {
    if (!t->n)
        return;
    qsort(t->ns, (size_t)t->n, sizeof *t->ns, compare);
    print_message("  %-34s %5d  median %7.1f ms  p99 %7.1f ms  largest %7.1f ms%s\n", name, t->n,
                  1e-6 * (double)t->ns[t->n / 2], 1e-6 * (double)t->ns[t->n * 99 / 100],
                  1e-6 * (double)t->ns[t->n - 1], t->n_failed ? "  (some failed)" : "");
}

typedef struct soak {
    times by_fault[N_FAULTS], by_phase[N_PHASES], by_call[N_KILL_CALLS], dead, silent;
    int n_failed, n_left, n_survivors;
} soak;

static uint64_t number_of(const char *name, uint64_t fallback) {
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : fallback;
}

static void soak_open(soak *k, size_t n) {
    times *all = (times *)k;
    const size_t n_times = offsetof(soak, n_failed) / sizeof(times);
    for (size_t i = 0; i < n_times; i++)
        assert_non_null(all[i].ns = calloc(n, sizeof *all[i].ns));
}

static void soak_close(soak *k) {
    times *all = (times *)k;
    for (size_t i = 0; i < offsetof(soak, n_failed) / sizeof(times); i++)
        free(all[i].ns);
}

static void soak_print(soak *k, size_t n, uint64_t first, double seconds) {
    print_message("%zu faults (seeds %llu to %llu) in %.0f s: %d survivors, %d jobs not as "
                  "promised, %d that left something\n",
                  n, (unsigned long long)first, (unsigned long long)(first + n - 1), seconds,
                  k->n_survivors, k->n_failed, k->n_left);
    print_message("from the rank's end to the last survivor's error\n");
    times_print(&k->dead, "all that died or left");
    times_print(&k->silent, "all that fell silent (300 ms)");
    print_message("by fault\n");
    for (int i = 0; i < N_FAULTS; i++)
        times_print(&k->by_fault[i], fault_name((fault)i));
    print_message("by phase, of those that died or left\n");
    for (int i = 0; i < N_PHASES; i++)
        times_print(&k->by_phase[i], fault_phase_name(i));
    print_message("by call, of those that died or left\n");
    for (int i = 0; i < N_KILL_CALLS; i++)
        times_print(&k->by_call[i], kill_calls[i].name);
}

static void soak_one(soak *k, kill_plan *p, uint64_t seed, const fault_leftovers *before) {
    char text[160];
    kill_choose(p, seed, page);
    assert_int_equal(kill_run(p), HP_OK);
    const char *what = kill_judge(p);
    const bool has_left = fault_has_left(before, text, sizeof text);
    const uint64_t ns = kill_last_ns(p);
    if (what || has_left) {
        fprintf(stderr, "seed %llu: ", (unsigned long long)seed);
        kill_print(p, what ? what : text);
    }
    k->n_failed += what != NULL;
    k->n_left += has_left;
    k->n_survivors += p->job.n_ranks - 1;
    times_add(&k->by_fault[p->job.how], ns, what);
    times_add(kill_is_silent(p) ? &k->silent : &k->dead, ns, what);
    if (kill_is_silent(p))
        return;
    times_add(&k->by_phase[atomic_load(&page->ranks[p->job.victim].phase)], ns, what);
    times_add(&k->by_call[p->call - kill_calls], ns, what);
}

static void a_thousand_ranks_end(void **state) {
    const uint64_t first = number_of("HP_TEST_SEED", 1000);
    const size_t n = (size_t)hpi_min(number_of("HP_TEST_KILLS", 1000), MOST_KILLS);
    const uint64_t begin_ns = hpi_now_ns();
    soak k = {0};
    kill_plan *p = malloc(sizeof *p);
    (void)state;
    assert_non_null(p);
    soak_open(&k, n);
    const fault_leftovers before = fault_look();
    for (uint64_t i = 0; i < n; i++)
        soak_one(&k, p, first + i, &before);
    soak_print(&k, n, first, 1e-9 * (double)(hpi_now_ns() - begin_ns));
    print_message("%s\n", is_alone ? "seen alone: in a network and a mount namespace"
                                   : "no namespace: others' sockets and /dev/shm were seen too");
    soak_close(&k);
    free(p);
    assert_int_equal(k.n_failed + k.n_left, 0);
}

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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_thousand_ranks_end)};
    is_alone = fault_be_alone();
    return cmocka_run_group_tests_name("kill_full", tests, setup, teardown);
}

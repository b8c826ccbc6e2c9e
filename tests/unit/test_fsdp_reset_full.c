/* SPDX-License-Identifier: Apache-2.0
 *
 * test_fsdp_reset_full.c - more resets than there are groups to be had: nothing is left behind.
 *
 * A reset makes four groups and an executor. After each hundred the rank has as many descriptors
 * and threads and as much memory as after the first.
 */
#include "small_fsdp.h"

#include <dirent.h>

enum { N_RESETS = 1100, N_CHUNK = 100 };

static int count_in(const char *path) {
    int n = 0;
    DIR *directory = opendir(path);
    RANK_CHECK(directory != NULL);
    while (readdir(directory))
        n++;
    closedir(directory);
    return n;
}

/* Pages of this process that are in memory. */
static long resident(void) {
    long total = 0, pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    RANK_CHECK(file && fscanf(file, "%ld %ld", &total, &pages) == 2);
    fclose(file);
    return pages;
}

static void leave_a_pass(hp_fsdp *fsdp, hp_unit *unit, int n_calls) {
    hp_status status = n_calls > 0 ? hp_fsdp_begin(fsdp, HP_SYNC) : HP_OK;
    status = status >= 0 && n_calls > 1 ? hp_forward_begin(unit) : status;
    status = status >= 0 && n_calls > 2 ? hp_forward_end(unit) : status;
    status = status >= 0 && n_calls > 3 ? hp_backward_begin(unit) : status;
    status = status >= 0 && n_calls > 4 ? hp_backward_end(unit) : status;
    RANK_CHECK(status >= 0 || status == HP_ERR_FAILED);
    RANK_OK(hp_fsdp_reset(fsdp));
}

static void resets(hp_world *world, void *argument) {
    (void)argument;
    hp_mesh *mesh;
    hp_unit *unit;
    hp_fsdp *fsdp = make_fsdp(world, &mesh);
    hp_param p = vector("w", 1000);
    int n_files = 0, n_threads = 0;
    long pages = 0;
    RANK_OK(hp_unit_create(fsdp, "layer", &p, 1, NULL, &unit));
    RANK_OK(hp_fsdp_commit(fsdp));
    for (int k = 1; k <= N_RESETS; k++) {
        leave_a_pass(fsdp, unit, (k + hp_world_rank(world)) % 6);
        if (k % N_CHUNK)
            continue;
        if (k > N_CHUNK) {
            RANK_CHECK(count_in("/proc/self/fd") == n_files);
            RANK_CHECK(count_in("/proc/self/task") == n_threads);
            RANK_CHECK(resident() < pages + 2048); /* 8 MB: less than one executor */
        } else {
            n_files = count_in("/proc/self/fd");
            n_threads = count_in("/proc/self/task");
            pages = resident();
        }
    }
    hp_fsdp_destroy(fsdp);
    hp_mesh_destroy(mesh);
}

static void test_a_thousand_resets(void **state) {
    (void)state;
    ranks_set_deadline_ms(600000);
    ranks_run(2, RANKS_PROCESSES, resets, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_thousand_resets)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

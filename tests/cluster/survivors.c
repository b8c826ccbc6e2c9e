/* SPDX-License-Identifier: Apache-2.0
 *
 * survivors.c - a job that calls all_reduce until one fails, and says when and why.
 *
 * Each rank writes a line into the file FOLDER/RANK, which outlives it and its launcher: the time
 * of the error by the machine's clock, whose fault it was, and the text; or how many calls it made
 * in SECONDS. Rank VICTIM kills itself after one. test_failures.sh reads them.
 *
 * usage: survivors FOLDER BYTES SECONDS VICTIM (-1: none)
 */
#include <hyperparallel/hyperparallel.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static long long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

static void say(const char *folder, int rank, const char *what, long long number) {
    char path[4096];
    hp_error error;
    hp_last_error_get(&error);
    snprintf(path, sizeof path, "%s/%d", folder, rank);
    FILE *file = fopen(path, "w");
    if (file) {
        fprintf(file, "%s %lld %lld of %d: %s\n", what, number, now_ms(), error.world_rank,
                hp_last_error());
        (void)fclose(file);
    }
}

int main(int argc, char **argv) {
    hp_world *world;
    if (argc != 5)
        return 2;
    const uint64_t count = strtoull(argv[2], NULL, 10) / sizeof(float);
    const long long seconds = atoll(argv[3]);
    const int victim = atoi(argv[4]);
    if (hp_world_create(NULL, &world)) {
        fprintf(stderr, "survivors: %s\n", hp_last_error());
        return 1;
    }
    hp_group *group = hp_world_group(world);
    const int rank = hp_group_rank(group);
    float *data = calloc(count, sizeof *data);
    const long long begin_ms = now_ms();
    long long n = 0;
    hp_status status = hp_barrier(group);
    say(argv[1], rank, "begun", 0);
    /* all make as many calls: rank 0's clock decides */
    for (int is_on = 1; !status && is_on; n++) {
        const long long ms = now_ms() - begin_ms;
        if (rank == victim && ms > 1000) {
            say(argv[1], rank, "struck", n);
            raise(SIGKILL);
        }
        data[0] = rank == 0 && ms > seconds * 1000;
        status = hp_all_reduce(group, data, data, count, HP_FP32, HP_MAX);
        is_on = data[0] == 0;
    }
    say(argv[1], rank, status ? "failed" : "done", n);
    free(data);
    hp_world_destroy(world);
    return status ? 1 : 0;
}

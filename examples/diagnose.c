/* SPDX-License-Identifier: Apache-2.0
 *
 * diagnose.c - a job to look at: docs/diagnosis.md shows what can be seen of it.
 *
 *     hprun -n 2 diagnose trace FILE     a trace of every call, in FILE.RANK.json
 *     hprun -n 2 diagnose memory         how much symmetric memory there is, was and is left
 *     hprun -n 2 diagnose late SECONDS   rank 1 comes to a barrier that much too late
 *     hprun -n 2 diagnose wrong          calls with arguments that cannot be
 *     hprun -n 2 diagnose newer          as if compiled with headers of a later version
 */
#include <hyperparallel/hyperparallel.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COUNT = 1024, ROUNDS = 3, SPANS = 1000, BLOCK_BYTES = 1 << 20 };

static void ok(hp_status status) {
    if (status >= 0)
        return;
    fprintf(stderr, "diagnose: %s: %s\n", hp_status_text(status), hp_last_error());
    exit(1);
}

/* A ring: each rank puts a block to the next one and sums over all. */
static void work(hp_world *world) {
    static float values[COUNT];
    const int n = hp_world_size(world), next = (hp_world_rank(world) + 1) % n;
    hp_group *group = hp_world_group(world);
    hp_symm block = {0}, word = {0};
    ok(hp_symm_alloc(world, NULL, sizeof values, 0, &block));
    ok(hp_symm_alloc(world, NULL, sizeof(uint64_t), 0, &word));
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        ok(hp_symm_put_signal(block, 0, values, sizeof values, word, 0, HP_SIGNAL_SET, round, next,
                              NULL));
        ok(hp_symm_wait(word, 0, HP_GE, round, 0));
        ok(hp_all_reduce(group, values, values, COUNT, HP_FP32, HP_SUM));
    }
    ok(hp_barrier(group));
    ok(hp_symm_free(word));
    ok(hp_symm_free(block));
}

/* What this thread does from here on is a span each. */
static void show_trace(hp_world *world, const char *file) {
    char path[1024];
    hp_trace *trace;
    ok(hp_trace_create(hp_world_rank(world), SPANS, &trace));
    ok(hp_trace_name_stream(trace, 0, "calls"));
    ok(hp_trace_thread(trace, 0));
    work(world);
    ok(hp_trace_thread(NULL, 0));
    snprintf(path, sizeof path, "%s.%d.json", file, hp_world_rank(world));
    ok(hp_trace_write(trace, path));
    hp_trace_destroy(trace);
}

static void say_memory(const hp_world *world, const char *when) {
    hp_symm_stats s;
    ok(hp_symm_stats_get(world, &s));
    if (hp_world_rank(world) == 0)
        printf("%-8s allocated %" PRIu64 ", peak %" PRIu64 ", free %" PRIu64 " bytes in %" PRIu64
               " allocations\n",
               when, s.allocated_bytes, s.peak_bytes, s.free_bytes, s.n_allocations);
}

static void show_memory(hp_world *world) {
    hp_symm a = {0}, b = {0};
    say_memory(world, "at first");
    ok(hp_symm_alloc(world, NULL, BLOCK_BYTES, 0, &a));
    ok(hp_symm_alloc(world, NULL, BLOCK_BYTES / 2, 0, &b));
    say_memory(world, "two");
    ok(hp_symm_free(a));
    say_memory(world, "one");
    ok(hp_symm_free(b));
}

static void show_late(hp_world *world, const char *seconds) {
    if (hp_world_rank(world) == 1)
        usleep((useconds_t)(strtod(seconds, NULL) * 1e6));
    ok(hp_barrier(hp_world_group(world)));
}

/* Each call is refused before anything is touched; the job goes on. */
static void show_wrong(hp_world *world) {
    float x = 1;
    hp_symm none = {0};
    if (hp_all_reduce(hp_world_group(world), &x, NULL, 1, HP_FP32, HP_SUM) < 0)
        fprintf(stderr, "%s\n", hp_last_error());
    if (hp_broadcast(hp_world_group(world), &x, 1, HP_FP32, 7) < 0)
        fprintf(stderr, "%s\n", hp_last_error());
    if (hp_symm_put(none, 0, &x, sizeof x, 0, NULL) < 0)
        fprintf(stderr, "%s\n", hp_last_error());
    ok(hp_barrier(hp_world_group(world)));
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    const int needs = !strcmp(what, "trace") || !strcmp(what, "late") ? 3 : 2;
    hp_world_config config = HP_WORLD_CONFIG_INIT;
    hp_world *world;
    if (argc != needs || !strstr(" trace memory late wrong newer ", what) || strlen(what) < 4) {
        fprintf(stderr, "usage: diagnose trace FILE | memory | late SECONDS | wrong | newer\n");
        return 2;
    }
    if (!strcmp(what, "newer"))
        config.version += 1000; /* the minor version */
    ok(hp_world_create(&config, &world));
    if (!strcmp(what, "trace"))
        show_trace(world, argv[2]);
    else if (!strcmp(what, "memory"))
        show_memory(world);
    else if (!strcmp(what, "late"))
        show_late(world, argv[2]);
    else
        show_wrong(world);
    hp_world_destroy(world);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * test_mapped_memory.c - mode mapped in processes: one copy of the model, which users only read.
 *
 * PSS (proc(5)) shares a page out among those that map it, so the sum over all ranks is what the
 * machine holds. A frozen model is all parameters: nothing else has a size worth counting.
 */
#include "base/base.h"
#include "support/ranks.h"

#include <hyperparallel/hyperparallel.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { N_UNITS = 4, ROWS = 1000, COLUMNS = 1024 };
static const uint64_t model_bytes = (uint64_t)N_UNITS * ROWS * COLUMNS * sizeof(float);

typedef struct model {
    hp_mesh *mesh;
    hp_fsdp *fsdp;
    hp_unit *units[N_UNITS];
} model;

static void fill(void *context, uint64_t begin, uint64_t end, void *out_elements) {
    (void)context;
    for (uint64_t i = begin; i < end; i++)
        ((float *)out_elements)[i - begin] = (float)(i % 4096);
}

static void declare_model(hp_world *world, hp_mode mode, model *m) {
    static const char *const names[N_UNITS] = {"a", "b", "c", "d"};
    hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    const int size = hp_world_size(world);
    config.mode = mode;
    RANK_OK(hp_mesh_create(world, &size, 1, &m->mesh));
    RANK_OK(hp_fsdp_create(m->mesh, &config, &m->fsdp));
    for (int i = 0; i < N_UNITS; i++) {
        hp_param p = HP_PARAM_INIT;
        p.name = names[i];
        p.n_dims = 2;
        p.shape[0] = ROWS;
        p.shape[1] = COLUMNS;
        p.is_frozen = 1;
        p.fill = fill;
        RANK_OK(hp_unit_create(m->fsdp, names[i], &p, 1, NULL, &m->units[i]));
    }
}

static void make_model(hp_world *world, hp_mode mode, model *m) {
    declare_model(world, mode, m);
    RANK_OK(hp_fsdp_commit(m->fsdp));
}

static void drop_model(model *m) {
    hp_fsdp_destroy(m->fsdp);
    hp_mesh_destroy(m->mesh);
}

static void read_all(const model *m) {
    RANK_OK(hp_fsdp_begin(m->fsdp, HP_EVALUATE));
    for (int i = 0; i < N_UNITS; i++) {
        RANK_OK(hp_forward_begin(m->units[i]));
        const float *data = hp_param_data(m->units[i], 0);
        for (uint64_t k = 0; k < (uint64_t)ROWS * COLUMNS; k++)
            RANK_CHECK(data[k] == (float)(k % 4096));
        RANK_OK(hp_forward_end(m->units[i]));
    }
    RANK_OK(hp_fsdp_end(m->fsdp));
}

/* ---- one copy -------------------------------------------------------------------------------- */

/* The sum of Pss over the process, or -1. */
static int64_t pss_bytes(void) {
    char line[256];
    int64_t kb = -1;
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "Pss:", 4) == 0)
            kb = strtoll(line + 4, NULL, 10);
    if (file)
        fclose(file);
    return kb < 0 ? -1 : kb * 1024;
}

/* What all ranks together hold; all are at this point at once. */
static int64_t total_pss(hp_world *world) {
    RANK_OK(hp_barrier(hp_world_group(world)));
    int64_t bytes = pss_bytes();
    RANK_OK(hp_all_reduce(hp_world_group(world), &bytes, &bytes, 1, HP_INT64, HP_SUM));
    return bytes;
}

/* What a model adds, once every rank has read all of it. */
static int64_t added_bytes(hp_world *world, hp_mode mode) {
    model m;
    const int64_t before = total_pss(world);
    make_model(world, mode, &m);
    read_all(&m);
    const int64_t after = total_pss(world);
    hp_fsdp_stats stats;
    RANK_OK(hp_fsdp_stats_get(m.fsdp, &stats));
    if (mode == HP_MAPPED) {
        RANK_CHECK(stats.shared_bytes * (uint64_t)hp_world_size(world) >= model_bytes);
        RANK_CHECK(stats.shared_bytes * (uint64_t)hp_world_size(world) < model_bytes * 101 / 100);
        RANK_CHECK(stats.shard_bytes == 0 && stats.gather_bytes == 0);
    }
    drop_model(&m);
    return after - before;
}

static void one_copy_body(hp_world *world, void *argument) {
    (void)argument;
    enum { OF_ONE_RANK = 512 * 1024 }; /* records, queues, stacks of its threads */
    const int64_t whole = (int64_t)model_bytes, n = hp_world_size(world);
    const int64_t mapped = added_bytes(world, HP_MAPPED);
    const int64_t gathered = added_bytes(world, HP_PER_PARAM);
    if (hp_world_rank(world) == 0)
        print_message("%d ranks: %.1f MB of parameters take %.1f MB mapped, %.1f MB per-param\n",
                      (int)n, (double)whole / 1e6, (double)mapped / 1e6, (double)gathered / 1e6);
    RANK_CHECK(mapped > whole / 32 * 31 && mapped < whole + n * OF_ONE_RANK);
    RANK_CHECK(gathered > whole + n * whole / N_UNITS); /* it does count what each has for itself */
}

static void skip_unless_processes(void) {
    if (!hpi_environment("HP_TEST_THREADS_ONLY"))
        return;
    print_message("needs ranks as processes: HP_TEST_THREADS_ONLY is set\n");
    skip();
}

static void test_one_copy_whatever_the_number_of_ranks(void **state) {
    (void)state;
    skip_unless_processes();
    if (pss_bytes() < 0) {
        print_message("needs /proc/self/smaps_rollup, which this kernel does not give\n");
        skip();
    }
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    print_message("needs a process without a sanitizer, whose shadow counts as well\n");
    skip();
#endif
    for (int n = 2; n <= 8; n *= 2)
        ranks_run(n, RANKS_PROCESSES, one_copy_body, NULL);
}

/* ---- only read ------------------------------------------------------------------------------- */

static sigjmp_buf trapped;

static void on_fault(int number) {
    siglongjmp(trapped, number);
}

static void write_body(hp_world *world, void *argument) {
    (void)argument;
    model m;
    struct sigaction action = {.sa_handler = on_fault}, before;
    make_model(world, HP_MAPPED, &m);
    RANK_OK(hp_fsdp_begin(m.fsdp, HP_EVALUATE));
    RANK_OK(hp_forward_begin(m.units[1]));
    float *data = (float *)(uintptr_t)hp_param_data(m.units[1], 0);
    RANK_CHECK(sigaction(SIGSEGV, &action, &before) == 0);
    const int number = sigsetjmp(trapped, 1);
    if (!number) {
        *(volatile float *)data = 1;
        RANK_CHECK(!*"a write through hp_param_data went through");
    }
    RANK_CHECK(number == SIGSEGV && sigaction(SIGSEGV, &before, NULL) == 0);
    RANK_OK(hp_forward_end(m.units[1]));
    RANK_OK(hp_fsdp_end(m.fsdp));
    read_all(&m);
    drop_model(&m);
}

static void test_a_write_traps(void **state) {
    (void)state;
    skip_unless_processes();
    ranks_run(2, RANKS_PROCESSES, write_body, NULL);
}

/* ---- again and again ------------------------------------------------------------------------- */

static uint64_t count_mappings(void) {
    char line[512];
    uint64_t n = 0;
    FILE *file = fopen("/proc/self/maps", "r");
    while (file && fgets(line, sizeof line, file))
        n += strstr(line, "hyperparallel-span") != NULL;
    if (file)
        fclose(file);
    return n;
}

static void repeated_body(hp_world *world, void *argument) {
    (void)argument;
    for (int i = 0; i < 4; i++) {
        model m;
        make_model(world, HP_MAPPED, &m);
        RANK_CHECK(count_mappings() == 2); /* whatever the number of units */
        drop_model(&m);
        RANK_CHECK(count_mappings() == 0);
    }
}

static void test_two_mappings_and_none_left(void **state) {
    (void)state;
    skip_unless_processes();
    ranks_run(3, RANKS_PROCESSES, repeated_body, NULL);
}

/* Rank 1 lacks memory somewhere in the commit: all of them fail, and a later one succeeds. */
static void starving_body(hp_world *world, void *argument) {
    hp_status status = HP_ERR_MEMORY;
    (void)argument;
    for (uint64_t n = 1; status < 0; n++) {
        model m;
        declare_model(world, HP_MAPPED, &m);
        hpi_alloc_fail_after(hp_world_rank(world) == 1 ? n : 0);
        status = hp_fsdp_commit(m.fsdp);
        hpi_alloc_fail_after(0);
        RANK_CHECK(status == HP_OK || status == HP_ERR_MEMORY);
        RANK_CHECK(n < 200);
        if (status == HP_OK)
            read_all(&m);
        drop_model(&m);
    }
}

static void test_a_rank_without_memory_fails_all(void **state) {
    (void)state;
    skip_unless_processes(); /* that count their own allocations */
    ranks_run(3, RANKS_PROCESSES, starving_body, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_copy_whatever_the_number_of_ranks),
        cmocka_unit_test(test_a_write_traps),
        cmocka_unit_test(test_two_mappings_and_none_left),
        cmocka_unit_test(test_a_rank_without_memory_fails_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

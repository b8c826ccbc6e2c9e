/* SPDX-License-Identifier: Apache-2.0
 *
 * test_direct.c - ordinary memory that is read across processes.
 *
 * Bits against the oracle around the pieces and rounds of direct.c, between processes. Where one
 * rank may not read, all go through cells; a peer whose memory is not there, or that dies in the
 * middle, is named by those who read from it.
 */
#include "support/coll_bench.h"
#include "support/ranks.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

enum { LARGE = 2 << 20, PIECE_FP32 = 256 * 1024 / 4, ROUND_FP32 = 4 * 1024 * 1024 / 4 };

/* ---- may it be read here at all? ------------------------------------------------------------- */

static void ask(hp_world *world, void *argument) {
    hp_group *group = hp_world_group(world);
    float *data = calloc(LARGE, sizeof *data);
    (void)argument;
    RANK_CHECK(data != NULL);
    RANK_OK(hp_all_reduce(group, data, data, LARGE, HP_FP32, HP_SUM));
    free(data);
    RANK_CHECK(strcmp(hpi_coll_last(group), "direct") == 0);
}

static void skip_unless_allowed(void) {
    char text[512];
    if (ranks_try(2, RANKS_PROCESSES, ask, NULL, text, sizeof text) == 0)
        return;
    print_message("skipped: processes may not read each other's memory here\n");
    skip();
}

/* ---- bits ------------------------------------------------------------------------------------ */

static void run_sizes(bench *b, hp_collective what) {
    static const uint64_t counts[] = {1000, PIECE_FP32 - 1, PIECE_FP32 + 1, ROUND_FP32 + 7};
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        coll_case c = {.what = what,
                       .dtype = k % 2 ? HP_BF16 : HP_FP32,
                       .op = k == 1 ? HP_AVG : HP_SUM,
                       .count = counts[k],
                       .blocks = 1,
                       .where = k == 1 ? MIXED : ORDINARY,
                       .root = b->n - 1,
                       .skew = (skew)(k % 3)};
        c.out_dtype = c.dtype;
        if (c.count > ROUND_FP32 && what != HP_ALL_REDUCE)
            continue;
        bench_run(b, &c);
        c.in_place = bench_can_be_in_place(&c) && what != HP_ALL_TO_ALL;
        bench_run(b, &c);
    }
}

/* Rows of many blocks arrive in many pieces. */
static void run_blocks(bench *b, hp_collective what) {
    coll_case c = {.what = what,
                   .dtype = HP_FP32,
                   .out_dtype = HP_FP32,
                   .count = 3,
                   .blocks = 1000,
                   .where = ORDINARY};
    bench_run(b, &c);
}

static void sizes_body(hp_world *world, void *argument) {
    bench b;
    (void)argument;
    bench_open(&b, world, hp_world_group(world), (uint64_t)(ROUND_FP32 + 7) * 4);
    RANK_OK(hpi_coll_only(b.group, "direct"));
    for (int i = 0; i < hpi_n_algorithms; i++)
        if (hpi_algorithms[i].needs == HPI_NEEDS_READABLE)
            run_sizes(&b, hpi_algorithms[i].what);
    run_blocks(&b, HP_ALL_GATHER);
    run_blocks(&b, HP_REDUCE_SCATTER);
    bench_close(&b);
}

static void bits_between_processes(void **state) {
    (void)state;
    skip_unless_allowed();
    ranks_run(2, RANKS_PROCESSES, sizes_body, NULL);
    ranks_run(3, RANKS_PROCESSES, sizes_body, NULL);
}

/* ---- forbidden ------------------------------------------------------------------------------- */

/* false: there are no filters here. */
static bool forbid_reading(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {sizeof code / sizeof *code, code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* Rank 1 cannot read what rank 0 sends: it is copied, this message and the next one. */
static void messages(hp_group *group, float *data) {
    const int rank = hp_group_rank(group);
    for (int turn = 0; turn < 2; turn++) {
        for (uint64_t k = 0; k < LARGE; k++)
            data[k] = rank == 0 ? (float)(k % 1000 + (uint64_t)turn) : -1;
        if (rank == 0)
            RANK_OK(hp_send(group, data, LARGE, HP_FP32, 1));
        if (rank == 1)
            RANK_OK(hp_recv(group, data, LARGE, HP_FP32, 0));
        for (uint64_t k = 0; rank == 1 && k < LARGE; k++)
            RANK_CHECK(data[k] == (float)(k % 1000 + (uint64_t)turn));
    }
}

/* One rank alone may not read, and all of them do without. */
static void forbidden_body(hp_world *world, void *argument) {
    hp_group *group = hp_world_group(world);
    const int n = hp_world_size(world), rank = hp_world_rank(world);
    float *data = malloc(LARGE * sizeof *data);
    (void)argument;
    RANK_CHECK(data != NULL);
    uint64_t refused = rank == 1 && !forbid_reading(), sum;
    RANK_OK(hp_all_reduce(group, &refused, &sum, 1, HP_INT64, HP_SUM));
    for (int turn = 0; turn < 2 && !sum; turn++) {
        for (uint64_t k = 0; k < LARGE; k++)
            data[k] = (float)(k % 1000 + (uint64_t)rank);
        RANK_OK(hp_all_reduce(group, data, data, LARGE, HP_FP32, HP_SUM));
        RANK_CHECK(strcmp(hpi_coll_last(group), "staged") == 0);
        for (uint64_t k = 0; k < LARGE; k++)
            RANK_CHECK(data[k] == (float)((uint64_t)n * (k % 1000)) + (float)(n * (n - 1) / 2));
    }
    if (!sum) {
        messages(group, data);
        RANK_OK(hpi_coll_only(group, "direct"));
        RANK_FAILS(hp_all_reduce(group, data, data, LARGE, HP_FP32, HP_SUM), HP_ERR_UNSUPPORTED);
    } else if (rank == 0) {
        fprintf(stderr, "skipped: this system takes no seccomp filter\n");
    }
    free(data);
}

static void where_one_rank_may_not_read(void **state) {
    (void)state;
    ranks_run(3, RANKS_PROCESSES, forbidden_body, NULL);
}

/* ---- what is not there ----------------------------------------------------------------------- */

static float *map(uint64_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    RANK_CHECK(memory != MAP_FAILED);
    return memory;
}

/* Rank 1 names memory that nobody can read; in place it does not look there itself. */
static void unreadable_body(hp_world *world, void *argument) {
    const uint64_t part = LARGE * sizeof(float);
    const int n = hp_world_size(world), rank = hp_world_rank(world);
    float *all = map((uint64_t)n * part), *own = all + (uint64_t)rank * LARGE;
    (void)argument;
    if (rank == 1)
        RANK_CHECK(mprotect(own, part, PROT_NONE) == 0);
    RANK_FAILS(hp_all_gather(hp_world_group(world), own, all, LARGE, HP_FP32), HP_ERR_SYSTEM);
    RANK_CHECK(strstr(hp_last_error(), "rank 1") && strstr(hp_last_error(), "all_gather"));
    (void)munmap(all, (uint64_t)n * part);
}

static void a_peer_whose_memory_cannot_be_read(void **state) {
    (void)state;
    skip_unless_allowed();
    ranks_run(2, RANKS_PROCESSES, unreadable_body, NULL);
}

/* Rank 1 dies when it stores its first sums, after all have met, and the others have most of its
 * input still to read. */
static void killed_body(hp_world *world, void *argument) {
    enum { COUNT = 2 * LARGE };
    const uint64_t part = COUNT * sizeof(float);
    const int n = hp_world_size(world), rank = hp_world_rank(world);
    float *in = map((uint64_t)n * part), *out = map(part);
    (void)argument;
    memset(in, 1, (uint64_t)n * part);
    if (rank == 1) {
        const struct rlimit none = {0, 0};
        RANK_CHECK(setrlimit(RLIMIT_CORE, &none) == 0 && signal(SIGSEGV, SIG_DFL) != SIG_ERR);
        RANK_CHECK(mprotect(out, part, PROT_NONE) == 0);
    }
    RANK_FAILS(hp_reduce_scatter(hp_world_group(world), in, out, COUNT, HP_FP32, HP_SUM),
               HP_ERR_PEER);
    RANK_CHECK(strstr(hp_last_error(), "rank 1") && strstr(hp_last_error(), "reduce_scatter"));
}

static void a_peer_that_dies_while_it_is_read(void **state) {
    char text[512];
    (void)state;
    skip_unless_allowed();
    for (int k = 0; k < 3; k++) {
        const int n_failed = ranks_try(3, RANKS_PROCESSES, killed_body, NULL, text, sizeof text);
        if (n_failed != 1)
            print_error("%s\n", text);
        assert_int_equal(n_failed, 1); /* rank 1 itself */
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_between_processes),
        cmocka_unit_test(where_one_rank_may_not_read),
        cmocka_unit_test(a_peer_whose_memory_cannot_be_read),
        cmocka_unit_test(a_peer_that_dies_while_it_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * test_wire.c - reductions with low precision on the wire, against the oracle, bit for bit.
 *
 * Whatever the wire, the result is the fp32 tree sum of the terms, each rounded once: for every
 * wire, dtype and op, groups of 1 to 9, counts around blocks of 128, chunks and cells, in place or
 * apart, symmetric, ordinary and mixed memory, as threads and as processes; test_wire_full.c runs
 * the whole product. Then which wire a call gets, and what is refused.
 */
#include "wire_cases.h"

/* Every reduction x wire x dtype x op; the rest turns through its values from case to case. Groups
 * of more than 4 run every other case each. */
static void everything(hp_world *world, void *argument) {
    static const uint64_t counts[] = {1, 127, 128, 129, 300, 511, 1025, 17};
    bench b;
    (void)argument;
    bench_open(&b, world, 12000);
    unsigned turn = (unsigned)b.n;
    for (int r = 0; r < 3; r++)
        for (hp_wire wire = HP_WIRE_FP16; wire <= HP_WIRE_FP8_E5M2; wire++)
            for (unsigned d = 0; d < 3; d++)
                for (hp_reduce op = HP_SUM; op <= HP_MIN; op++, turn++)
                    if (b.n <= 4 || turn % 2 == 0)
                        run_case(&b,
                                 &(wire_case){reductions[r], wire, dtype_at(d), op,
                                              counts[turn % 8], (whereabouts)(turn % N_MEMORIES),
                                              turn / 8 % 2 == 0, r == 0 && turn / 3 % 2 == 0});
    bench_close(&b);
}

/* For two ranks: around the chunk of 2048, and around what a cell of 128 KiB holds, of the vector
 * (65,536 elements of 16 bits, or results in fp32) or of a part (32,768, or 496 blocks of fp8). */
static void around_thresholds(hp_world *world, void *argument) {
    static const struct {
        hp_collective what;
        hp_wire wire;
        uint64_t threshold;
    } rows[] = {
        {HP_ALL_REDUCE, HP_WIRE_FP16, 2048},          {HP_ALL_REDUCE, HP_WIRE_FP8_E4M3, 2048},
        {HP_REDUCE_SCATTER, HP_WIRE_FP8_E5M2, 2048},  {HP_ALL_REDUCE, HP_WIRE_FP16, 65536},
        {HP_ALL_REDUCE, HP_WIRE_BF16, 65536},         {HP_ALL_REDUCE, HP_WIRE_FP8_E4M3, 65536},
        {HP_ALL_REDUCE, HP_WIRE_FP8_E5M2, 65536},     {HP_REDUCE_SCATTER, HP_WIRE_BF16, 32768},
        {HP_REDUCE_SCATTER, HP_WIRE_FP8_E4M3, 63488}, {HP_REDUCE_SCATTER_V, HP_WIRE_FP16, 32768},
        {HP_ALL_REDUCE, HP_WIRE_FP8_E4M3, 126976}, /* what a cell holds, twice its results */
    };
    bench b;
    (void)argument;
    bench_open(&b, world, 2 * 63500);
    for (unsigned k = 0; k < sizeof rows / sizeof *rows; k++)
        for (unsigned past = 0; past < 2; past++) {
            const unsigned turn = 3 * k + past;
            run_case(&b, &(wire_case){rows[k].what, rows[k].wire, HP_FP32, HP_SUM + past,
                                      rows[k].threshold - 1 + 2 * past,
                                      (whereabouts)(turn % N_MEMORIES), turn % 2 == 0,
                                      rows[k].what == HP_ALL_REDUCE && turn % 4 == 1});
        }
    bench_close(&b);
}

/* The engine's calls return before peers have finished with the inputs; the output is complete. */
static void outputs_are_complete(hp_world *world, void *argument) {
    enum { COUNT = 5000 };
    hp_group *group = hp_world_group(world);
    hp_symm memory;
    void *base;
    (void)argument;
    RANK_OK(hp_symm_alloc(world, group, COUNT * sizeof(float), 64, &memory));
    RANK_OK(hp_symm_pointer(memory, hp_group_rank(group), group, &base));
    for (int turn = 0; turn < 20; turn++) {
        float *data = base;
        uint64_t seq;
        for (int k = 0; k < COUNT; k++)
            data[k] = (float)(turn + k % 50);
        const hpi_coll c = {.in = data,
                            .out = data,
                            .count = COUNT,
                            .blocks = 1,
                            .dtype = HP_FP32,
                            .out_dtype = HP_FP32,
                            .wire = HP_WIRE_FP16};
        RANK_OK(hpi_all_reduce(group, &c, &seq));
        for (int k = 0; k < COUNT; k++)
            RANK_CHECK(data[k] == (float)(hp_group_size(group) * (turn + k % 50)));
        RANK_OK(hpi_coll_drain(group, seq));
    }
    RANK_OK(hp_symm_free(memory));
}

static void test_outputs_that_peers_write_are_complete(void **state) {
    (void)state;
    ranks_run(4, RANKS_THREADS, outputs_are_complete, NULL);
}

static void test_groups_of_1_to_9(void **state) {
    (void)state;
    for (int n = 1; n <= MAX_RANKS; n++)
        ranks_run(n, RANKS_THREADS, everything, NULL);
}

static void test_thresholds(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, around_thresholds, NULL);
}

static void test_processes(void **state) {
    (void)state;
    for (int n = 1; n <= MAX_RANKS; n += 2)
        ranks_run(n, RANKS_PROCESSES, everything, NULL);
    ranks_run(2, RANKS_PROCESSES, around_thresholds, NULL);
}

/* ---- the same bits, however a vector is cut ---- */

/* Part 1 of a reduce-scatter of 640 is what an all-reduce of these 640 elements alone gives, and an
 * all-reduce gives the same bits whichever memory its operands lie in. */
static void cuts(hp_world *world, void *argument) {
    enum { PART = 640 };
    hp_group *group = hp_world_group(world);
    const uint64_t n = (uint64_t)hp_group_size(group), rank = (uint64_t)hp_group_rank(group);
    static _Thread_local float in[4 * PART], part[PART], whole[PART];
    (void)argument;
    oracle_fill(HP_FP32, in, n * PART, 7 + rank);
    for (hp_wire wire = HP_WIRE_FP16; wire <= HP_WIRE_FP8_E5M2; wire++) {
        hp_coll_call call = HP_COLL_CALL_INIT;
        uint64_t first;
        call.group = group;
        call.wire = wire;
        call.what = HP_REDUCE_SCATTER;
        call.in = in;
        call.out = part;
        call.count = PART;
        RANK_OK(hp_coll_run(&call));
        for (uint64_t i = 0; i < n; i++) {
            call.what = HP_ALL_REDUCE;
            call.in = in + i * PART;
            call.out = whole;
            RANK_OK(hp_coll_run(&call));
            RANK_CHECK(i != rank || oracle_same(HP_FP32, part, whole, PART, &first));
        }
    }
}

/* Parts of each rank that lie apart: in blocks of a tensor, or wherever the offsets say. */
enum { LAID_COUNT = 50, LAID_BLOCKS = 170, LAID_PART = LAID_COUNT * LAID_BLOCKS };
typedef struct laid {
    hp_group *group;
    hp_wire wire;
    float *in, *part, *plain, *whole; /* in: of all ranks and gaps; the others: of one */
} laid;

/* `part` is this rank's result; it is that of an all-reduce of the part alone. collect(i) lays part
 * i out in `plain`. */
static void check_laid(const laid *l, uint64_t count, void (*collect)(const laid *l, int i)) {
    uint64_t first;
    for (int i = 0; i < hp_group_size(l->group); i++) {
        hp_coll_call call = HP_COLL_CALL_INIT;
        collect(l, i);
        call.what = HP_ALL_REDUCE;
        call.group = l->group;
        call.wire = l->wire;
        call.op = HP_AVG;
        call.in = l->plain;
        call.out = l->whole;
        call.count = count;
        RANK_OK(hp_coll_run(&call));
        if (i == hp_group_rank(l->group))
            RANK_CHECK(oracle_same(HP_FP32, l->part, l->whole, count, &first));
    }
}

static void collect_blocks(const laid *l, int i) {
    const size_t n = (size_t)hp_group_size(l->group);
    for (size_t b = 0; b < LAID_BLOCKS; b++)
        memcpy(l->plain + b * LAID_COUNT, l->in + (b * n + (size_t)i) * LAID_COUNT,
               LAID_COUNT * sizeof(float));
}

static void run_blocks(const laid *l) {
    uint64_t seq;
    const hpi_coll c = {.in = l->in,
                        .out = l->part,
                        .count = LAID_COUNT,
                        .blocks = LAID_BLOCKS,
                        .dtype = HP_FP32,
                        .out_dtype = HP_FP32,
                        .op = HP_AVG,
                        .wire = l->wire};
    RANK_OK(hpi_reduce_scatter(l->group, &c, &seq));
    RANK_OK(hpi_coll_drain(l->group, seq));
    check_laid(l, LAID_PART, collect_blocks);
}

/* From the last to the first, a gap between them. */
static uint64_t laid_at(const laid *l, int i) {
    return (uint64_t)(hp_group_size(l->group) - 1 - i) * (LAID_PART + 13) + 5;
}

static void collect_offsets(const laid *l, int i) {
    memcpy(l->plain, l->in + laid_at(l, i), LAID_PART * sizeof(float));
}

static void run_offsets(const laid *l) {
    uint64_t counts[MAX_RANKS], offsets[MAX_RANKS];
    hp_coll_call call = HP_COLL_CALL_INIT;
    for (int i = 0; i < hp_group_size(l->group); i++) {
        counts[i] = LAID_PART;
        offsets[i] = laid_at(l, i);
    }
    call.what = HP_REDUCE_SCATTER_V;
    call.group = l->group;
    call.in = l->in;
    call.out = l->part;
    call.count = LAID_PART;
    call.in_counts = counts;
    call.in_offsets = offsets;
    call.op = HP_AVG;
    call.wire = l->wire;
    RANK_OK(hp_coll_run(&call));
    check_laid(l, LAID_PART, collect_offsets);
}

static void layouts(hp_world *world, void *argument) {
    hp_group *group = hp_world_group(world);
    const uint64_t total = (uint64_t)hp_group_size(group) * (LAID_PART + 13) + 5;
    laid l = {.group = group,
              .in = malloc(total * sizeof(float)),
              .part = malloc(LAID_PART * sizeof(float)),
              .plain = malloc(LAID_PART * sizeof(float)),
              .whole = malloc(LAID_PART * sizeof(float))};
    (void)argument;
    RANK_CHECK(l.in && l.part && l.plain && l.whole);
    oracle_fill(HP_FP32, l.in, total, 70 + (uint64_t)hp_group_rank(group));
    for (l.wire = HP_WIRE_FP16; l.wire <= HP_WIRE_FP8_E5M2; l.wire++) {
        run_blocks(&l);
        run_offsets(&l);
    }
    free(l.in);
    free(l.part);
    free(l.plain);
    free(l.whole);
}

static void test_cuts_do_not_show(void **state) {
    (void)state;
    ranks_run(4, RANKS_THREADS, cuts, NULL);
}

/* Of nodes that sum before they send, and of one that does not. */
static void test_nodes_do_not_show(void **state) {
    static const struct { int n, per_node; } jobs[] = {{2, 1}, {4, 2}, {4, 3}, {5, 4}};
    (void)state;
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        ranks_run_nodes(jobs[i].n, jobs[i].per_node, everything, NULL);
        if (jobs[i].n <= 4)
            ranks_run_nodes(jobs[i].n, jobs[i].per_node, cuts, NULL);
        ranks_run_nodes(jobs[i].n, jobs[i].per_node, layouts, NULL);
    }
    ranks_run_nodes(2, 1, around_thresholds, NULL);
}

static void test_layouts_do_not_show(void **state) {
    (void)state;
    for (int n = 1; n <= 3; n++)
        ranks_run(n, RANKS_THREADS, layouts, NULL);
}

/* ---- which wire ---- */

static hp_status choose(hp_world *world, hp_dtype dtype, hp_wire asked, hp_wire *out_wire) {
    return hpi_wire_choose(hp_world_group(world), dtype, asked, "all_reduce", out_wire);
}

static void chosen(hp_world *world, void *argument) {
    const hp_wire *from_environment = argument;
    hp_wire wire = HP_WIRE_DEFAULT;
    RANK_OK(choose(world, HP_FP32, HP_WIRE_DEFAULT, &wire));
    RANK_CHECK(wire == *from_environment);
    for (hp_dtype dtype = HP_FP64; dtype <= HP_UINT8; dtype++)
        if (dtype != HP_FP32) { /* the environment speaks of fp32 alone */
            RANK_OK(choose(world, dtype, HP_WIRE_DEFAULT, &wire));
            RANK_CHECK(wire == HP_WIRE_FULL);
        }
    RANK_OK(choose(world, HP_FP32, HP_WIRE_FULL, &wire)); /* an argument goes before it */
    RANK_CHECK(wire == HP_WIRE_FULL);
    RANK_OK(choose(world, HP_FP32, HP_WIRE_FP8_E5M2, &wire));
    RANK_CHECK(wire == HP_WIRE_FP8_E5M2);
    RANK_OK(choose(world, HP_BF16, HP_WIRE_BF16, &wire)); /* the dtype itself */
    RANK_CHECK(wire == HP_WIRE_FULL);
    RANK_OK(choose(world, HP_BF16, HP_WIRE_FP16, &wire));
    RANK_CHECK(wire == HP_WIRE_FP16);
    RANK_FAILS(choose(world, HP_FP64, HP_WIRE_FP16, &wire), HP_ERR_ARGUMENT);
    RANK_CHECK(strstr(hp_last_error(), "expected fp32, fp16 or bf16 for a wire of fp16"));
    RANK_FAILS(choose(world, HP_UINT8, HP_WIRE_FP8_E4M3, &wire), HP_ERR_ARGUMENT);
    RANK_FAILS(choose(world, HP_FP32, (hp_wire)6, &wire), HP_ERR_ARGUMENT);
    RANK_FAILS(choose(world, HP_FP32, (hp_wire)-1, &wire), HP_ERR_ARGUMENT);
    RANK_CHECK(wire == HP_WIRE_FP16); /* outputs change only on success */
}

static void test_SYMMETRIC_MEMORY_LOW_PRECISION_DTYPE(void **state) {
    static const char name[] = "SYMMETRIC_MEMORY_LOW_PRECISION_DTYPE";
    static struct {
        const char *value;
        hp_wire wire;
    } rows[] = {{"", HP_WIRE_FULL},
                {"none", HP_WIRE_FULL},
                {"fp16", HP_WIRE_FP16},
                {"bf16", HP_WIRE_BF16},
                {"fp8", HP_WIRE_FP8_E4M3},
                {"fp8_e4m3", HP_WIRE_FP8_E4M3},
                {"fp8_e5m2", HP_WIRE_FP8_E5M2}};
    hp_world *world = NULL;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        setenv(name, rows[i].value, 1);
        ranks_run(1, RANKS_THREADS, chosen, &rows[i].wire);
    }
    setenv(name, "fp4", 1);
    assert_int_equal(hp_world_create(NULL, &world), HP_ERR_ARGUMENT);
    assert_non_null(strstr(hp_last_error(), name));
    assert_non_null(strstr(hp_last_error(), "none|fp16|bf16|fp8_e4m3|fp8_e5m2"));
    unsetenv(name);
}

/* The short form takes the environment's wire; a full form that says FULL does not. */
static void short_form(hp_world *world, void *argument) {
    const float third = 1.0F / 3, rounded = oracle_from_fp16(oracle_to_fp16(1.0F / 3));
    float out = 0;
    hp_coll_call call = HP_COLL_CALL_INIT;
    (void)argument;
    RANK_OK(hp_all_reduce(hp_world_group(world), &third, &out, 1, HP_FP32, HP_SUM));
    RANK_CHECK(out == rounded + rounded);
    call.what = HP_ALL_REDUCE;
    call.group = hp_world_group(world);
    call.in = &third;
    call.out = &out;
    call.count = 1;
    call.wire = HP_WIRE_FULL;
    RANK_OK(hp_coll_run(&call));
    RANK_CHECK(out == third + third);
}

static void test_an_argument_goes_before_the_environment(void **state) {
    (void)state;
    setenv("SYMMETRIC_MEMORY_LOW_PRECISION_DTYPE", "fp16", 1);
    ranks_run(2, RANKS_THREADS, short_form, NULL);
    unsetenv("SYMMETRIC_MEMORY_LOW_PRECISION_DTYPE");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_groups_of_1_to_9),
        cmocka_unit_test(test_thresholds),
        cmocka_unit_test(test_processes),
        cmocka_unit_test(test_outputs_that_peers_write_are_complete),
        cmocka_unit_test(test_cuts_do_not_show),
        cmocka_unit_test(test_nodes_do_not_show),
        cmocka_unit_test(test_layouts_do_not_show),
        cmocka_unit_test(test_SYMMETRIC_MEMORY_LOW_PRECISION_DTYPE),
        cmocka_unit_test(test_an_argument_goes_before_the_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

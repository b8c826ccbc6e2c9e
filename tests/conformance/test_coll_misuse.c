/* SPDX-License-Identifier: Apache-2.0
 *
 * test_coll_misuse.c - what collectives refuse, and what ranks that disagree are told.
 *
 * Wrong arguments are refused before anything is touched; each field in which ranks can differ is a
 * MISMATCH that names it and both ranks, on every rank; counts past 2^31 are counted right; what
 * lies in shared memory has fixed widths, and a line in the wrong byte order is no call.
 */
#include "coll/inside.h"
#include "support/ranks.h"
#include "world/inside.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- disagreement ---- */

typedef hp_status wrong_call(hp_group *group, bool is_odd_one, float *in, float *out);

static hp_status wrong_count(hp_group *group, bool is_odd_one, float *in, float *out) {
    return hp_all_reduce(group, in, out, is_odd_one ? 12 : 10, HP_FP32, HP_SUM);
}
static hp_status wrong_small_count(hp_group *group, bool is_odd_one, float *in, float *out) {
    return hp_all_gather(group, in, out, is_odd_one ? 1 : 2, HP_FP32);
}
static hp_status wrong_zero(hp_group *group, bool is_odd_one, float *in, float *out) {
    return hp_all_reduce(group, in, out, is_odd_one ? 0 : 10, HP_FP32, HP_SUM);
}
static hp_status wrong_dtype(hp_group *group, bool is_odd_one, float *in, float *out) {
    return hp_reduce_scatter(group, in, out, 10, is_odd_one ? HP_BF16 : HP_FP32, HP_SUM);
}
static hp_status wrong_op(hp_group *group, bool is_odd_one, float *in, float *out) {
    return hp_all_reduce(group, in, out, 10, HP_FP32, is_odd_one ? HP_MAX : HP_SUM);
}
static hp_status wrong_root(hp_group *group, bool is_odd_one, float *in, float *out) {
    HP_TRY(hp_broadcast(group, in, 10, HP_FP32, is_odd_one ? 1 : 0));
    /* who was a root, or read what one sent, has met nobody yet */
    return hp_all_gather(group, in, out, 1, HP_FP32);
}
/* Nobody meets anybody: the roots see what the others say when they are too far ahead. */
static hp_status wrong_roots(hp_group *group, bool is_odd_one, float *in, float *out) {
    (void)out;
    for (int i = 0; i < 1000; i++)
        HP_TRY(hp_broadcast(group, in, 1, HP_FP32, is_odd_one && i > 100 ? 1 : 0));
    return HP_OK;
}
static hp_status wrong_broadcast(hp_group *group, bool is_odd_one, float *in, float *out) {
    for (int i = 0; i < 100; i++)
        HP_TRY(hp_broadcast(group, in, i, HP_FP32, 0));
    HP_TRY(hp_broadcast(group, in, is_odd_one ? 101 : 100, HP_FP32, 0));
    return hp_all_gather(group, in, out, 1, HP_FP32);
}
static hp_status wrong_for_broadcast(hp_group *group, bool is_odd_one, float *in, float *out) {
    HP_TRY(is_odd_one ? hp_all_gather(group, in, out, 1, HP_FP32)
                      : hp_broadcast(group, in, 1, HP_FP32, 0));
    return hp_all_gather(group, in, out, 1, HP_FP32);
}
static hp_status wrong_order(hp_group *group, bool is_odd_one, float *in, float *out) {
    return is_odd_one ? hp_barrier(group) : hp_all_gather(group, in, out, 10, HP_FP32);
}

static hp_status run_full(hp_group *group, float *in, float *out, hp_wire wire, int wire_result) {
    hp_coll_call call = HP_COLL_CALL_INIT;
    call.what = HP_ALL_REDUCE;
    call.group = group;
    call.in = in;
    call.out = out;
    call.count = 10;
    call.wire = wire;
    call.wire_result = wire_result;
    return hp_coll_run(&call);
}
static hp_status wrong_wire(hp_group *group, bool is_odd_one, float *in, float *out) {
    return run_full(group, in, out, is_odd_one ? HP_WIRE_BF16 : HP_WIRE_FP16, 0);
}
static hp_status wrong_no_wire(hp_group *group, bool is_odd_one, float *in, float *out) {
    return run_full(group, in, out, is_odd_one ? HP_WIRE_FULL : HP_WIRE_FP8_E4M3, 0);
}
static hp_status wrong_wire_result(hp_group *group, bool is_odd_one, float *in, float *out) {
    return run_full(group, in, out, HP_WIRE_BF16, is_odd_one);
}
static hp_status wrong_exchange(hp_group *group, bool is_odd_one, float *in, float *out) {
    return hp_all_to_all(group, in, out, is_odd_one ? 9 : 10, HP_FP32);
}
static hp_status wrong_exchange_v(hp_group *group, bool is_odd_one, float *in, float *out) {
    const uint64_t counts[] = {5, 5, 5, 5};
    return hp_all_to_all_v(group, in, counts, out, counts, is_odd_one ? HP_INT32 : HP_FP32);
}
static hp_status wrong_gather_v(hp_group *group, bool is_odd_one, float *in, float *out) {
    const uint64_t counts[] = {5, 5, is_odd_one ? 6 : 5, 5};
    return hp_all_gather_v(group, in, out, counts, HP_FP32);
}
static hp_status wrong_scatter_v(hp_group *group, bool is_odd_one, float *in, float *out) {
    const uint64_t counts[] = {5, 5, 5, 5};
    return is_odd_one ? hp_reduce_scatter(group, in, out, 5, HP_FP32, HP_SUM)
                      : hp_reduce_scatter_v(group, in, out, counts, HP_FP32, HP_SUM);
}

static hp_status wrong_gather_form(hp_group *group, bool is_odd_one, float *in, float *out) {
    const uint64_t counts[] = {5, 5, 5, 5};
    return is_odd_one ? hp_all_gather_v(group, in, out, counts, HP_FP32)
                      : hp_all_gather(group, in, out, 5, HP_FP32);
}
static hp_status wrong_exchange_form(hp_group *group, bool is_odd_one, float *in, float *out) {
    const uint64_t counts[] = {5, 5, 5, 5};
    return is_odd_one ? hp_all_to_all_v(group, in, counts, out, counts, HP_FP32)
                      : hp_all_to_all(group, in, out, 5, HP_FP32);
}
static hp_status wrong_scatter_v_wire(hp_group *group, bool is_odd_one, float *in, float *out) {
    const uint64_t counts[] = {5, 5, 5, 5};
    hp_coll_call call = HP_COLL_CALL_INIT;
    call.what = HP_REDUCE_SCATTER_V;
    call.group = group;
    call.in = in;
    call.out = out;
    call.count = 5;
    call.in_counts = counts;
    call.wire = is_odd_one ? HP_WIRE_FP8_E4M3 : HP_WIRE_FP8_E5M2;
    return hp_coll_run(&call);
}

/* What the public calls do not have: blocks, tags, passes, a forced algorithm. */
static hp_status run_door(hp_group *group, const hpi_coll *more, float *in, float *out) {
    hpi_coll c = *more;
    c.in = in;
    c.out = out;
    c.dtype = c.out_dtype = HP_FP32;
    return hpi_coll_run(group, HP_ALL_GATHER, &c, true, NULL);
}
static hp_status wrong_blocks(hp_group *group, bool is_odd_one, float *in, float *out) {
    const hpi_coll c = {.count = 4, .blocks = is_odd_one ? 3 : 2};
    return run_door(group, &c, in, out);
}
static hp_status wrong_tag(hp_group *group, bool is_odd_one, float *in, float *out) {
    const hpi_coll c = {.count = 4, .blocks = 1, .tag = is_odd_one ? 1025 : 1026};
    return run_door(group, &c, in, out);
}
static hp_status wrong_pass(hp_group *group, bool is_odd_one, float *in, float *out) {
    const hpi_coll c = {.count = 4, .blocks = 1, .pass = hpi_coll_pass(is_odd_one ? 2 : 0, 0, 0)};
    return run_door(group, &c, in, out);
}
static hp_status wrong_algorithm(hp_group *group, bool is_odd_one, float *in, float *out) {
    const hpi_coll c = {.count = 40, .blocks = 1};
    HP_TRY(hpi_coll_only(group, is_odd_one ? "staged" : NULL));
    return run_door(group, &c, in, out);
}

static const struct {
    wrong_call *call;
    const char *text; /* that the message holds on every rank */
} wrongs[] = {{wrong_count, "the count differs"},
              {wrong_small_count, "the count differs"},
              {wrong_zero, "the count differs"},
              {wrong_dtype, "the dtype differs"},
              {wrong_op, "the reduction differs"},
              {wrong_root, "the root differs"},
              {wrong_roots, "the root differs"},
              {wrong_broadcast, "the count differs"},
              {wrong_for_broadcast, "the collective differs"},
              {wrong_order, "the collective differs"},
              {wrong_wire, "the wire differs"},
              {wrong_no_wire, "the wire differs"},
              {wrong_wire_result, "the wire differs"},
              {wrong_exchange, "the count differs"},
              {wrong_exchange_v, "the dtype differs"},
              {wrong_gather_v, "the count differs"},
              {wrong_scatter_v, "the collective differs"},
              {wrong_gather_form, "the collective differs"},
              {wrong_exchange_form, "the collective differs"},
              {wrong_scatter_v_wire, "the wire differs"},
              {wrong_blocks, "the number of blocks differs"},
              {wrong_tag, "the tag (unit.parameter) differs"},
              {wrong_pass, "the pass differs"},
              {wrong_algorithm, "the forced algorithm differs"}};

/* Whoever has met a rank that differs names both; whoever still waits is told by one that has. */
static bool names_itself(int rank) {
    char met[24], told[24], told_afar[24];
    snprintf(met, sizeof met, "rank %d (world %d)", rank, rank);
    snprintf(told, sizeof told, "rank %d waited for", rank);
    snprintf(told_afar, sizeof told_afar, "rank %d was in", rank);
    return strstr(hp_last_error(), met) || strstr(hp_last_error(), told) ||
           strstr(hp_last_error(), told_afar);
}

/* What another node tells is short: who failed, and the begin of why. */
static bool is_told_from_afar(void) {
    return strstr(hp_last_error(), " on host ");
}

/* Every other time the last rank comes late: the others learn of it in different orders. */
static void come_late(size_t turn, int rank, int n) {
    if (turn % 2 && rank == n - 1)
        usleep(2000);
}

static void mismatch_body(hp_world *world, void *argument) {
    const int rank = hp_world_rank(world), odd_one = *(int *)argument;
    float in[256] = {0}, out[256] = {0};
    for (size_t i = 0; i < sizeof wrongs / sizeof *wrongs; i++) {
        hp_group *group = NULL;
        char name[24];
        RANK_OK(hp_group_duplicate(hp_world_group(world), &group));
        come_late(i, rank, hp_world_size(world));
        RANK_FAILS(wrongs[i].call(group, rank == odd_one, in, out), HP_ERR_MISMATCH);
        snprintf(name, sizeof name, "rank %d (world %d)", odd_one, odd_one);
        if (!is_told_from_afar()) {
            RANK_CHECK(strstr(hp_last_error(), wrongs[i].text));
            RANK_CHECK(strstr(hp_last_error(), name));
        }
        RANK_CHECK(names_itself(rank));
        /* the group stays failed, with the same record */
        RANK_FAILS(hp_barrier(group), HP_ERR_MISMATCH);
        RANK_CHECK(is_told_from_afar() || strstr(hp_last_error(), wrongs[i].text));
        RANK_OK(hp_barrier(hp_world_group(world)));
        hp_group_destroy(group);
    }
}

/* Rank 0 begins a broadcast, for which nobody meets, and comes to its barrier before the other
 * looks for it at its own: that is one too many. */
static void barrier_ahead_body(hp_world *world, void *argument) {
    hp_group *group = NULL;
    float data = 1;
    (void)argument;
    RANK_OK(hp_group_duplicate(hp_world_group(world), &group));
    RANK_OK(hp_barrier(group));
    if (hp_world_rank(world) == 0) {
        RANK_OK(hp_broadcast(group, &data, 1, HP_FP32, 0));
        RANK_FAILS(hp_barrier(group), HP_ERR_MISMATCH);
    } else {
        RANK_OK(hpi_said_wait(group, 0, 3, "test"));
        RANK_FAILS(hp_barrier(group), HP_ERR_MISMATCH);
    }
    RANK_CHECK(strstr(hp_last_error(), "as collective 2: "));
    RANK_CHECK(strstr(hp_last_error(), "made barrier") &&
               strstr(hp_last_error(), "made broadcast"));
    RANK_OK(hp_barrier(hp_world_group(world)));
    hp_group_destroy(group);
}

/* ---- arguments ---- */

static void arguments_body(hp_world *world, void *argument) {
    hp_group *g = hp_world_group(world);
    float a[64] = {0}, b[64] = {0};
    (void)argument;
    RANK_FAILS(hp_all_gather(NULL, a, b, 1, HP_FP32), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_all_gather(g, NULL, b, 1, HP_FP32), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_all_gather(g, a, b, 1, (hp_dtype)8), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_all_gather(g, a + 1, a, 4, HP_FP32), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_reduce_scatter(g, a, a + 1, 4, HP_FP32, HP_SUM), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_all_reduce(g, a, a + 1, 4, HP_FP32, HP_SUM), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_all_reduce(g, a, b, 4, HP_INT64, HP_AVG), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_all_reduce(g, a, b, 4, HP_FP32, (hp_reduce)4), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_broadcast(g, a, 4, HP_FP32, hp_group_size(g)), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_broadcast(g, a, 4, HP_FP32, -1), HP_ERR_ARGUMENT);
    /* N13: what does not fit into 2^63 bytes; nothing of it is touched */
    RANK_FAILS(hp_all_reduce(g, a, b, UINT64_C(1) << 61, HP_FP32, HP_SUM), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_all_gather(g, a, b, UINT64_MAX, HP_UINT8), HP_ERR_ARGUMENT);
    /* one thread at a time, and a second one is told so */
    RANK_OK(hpi_group_enter(g, "another thread"));
    RANK_FAILS(hp_barrier(g), HP_ERR_BUSY);
    hpi_group_leave(g);
    /* not one of them has counted */
    RANK_CHECK(hpi_coll_seq(g) == 0);
    RANK_OK(hp_barrier(g));
}

/* N13: bytes past 2^31 and 2^32, by the arithmetic alone. */
/* What is kept of a call says nothing of one that differs in a single argument. */
static void repeated_body(hp_world *world, void *argument) {
    hp_group *g = hp_world_group(world);
    const float n = (float)hp_group_size(g), rank = (float)hp_group_rank(g);
    float in[40], out[40] = {0};
    (void)argument;
    for (int i = 0; i < 12; i++) {
        const uint64_t count = i % 4 == 3 ? 40 : 5; /* in a pocket, or in words */
        const bool is_max = i % 3 == 2;
        for (uint64_t k = 0; k < count; k++)
            in[k] = (float)i + rank;
        out[count - 1] = -1;
        RANK_OK(hp_all_reduce(g, in, out, count, HP_FP32, is_max ? HP_MAX : HP_SUM));
        RANK_CHECK(out[count - 1] == (is_max ? (float)i + n - 1 : n * (float)i + n * (n - 1) / 2));
        RANK_OK(hp_all_reduce(g, in, in, count, HP_FP32, is_max ? HP_MAX : HP_SUM));
        RANK_CHECK(in[0] == out[0] && in[count - 1] == out[count - 1]);
    }
    RANK_FAILS(hp_all_reduce(g, in, in + 1, 5, HP_FP32, HP_SUM), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_all_reduce(g, in, out, rank == 1 ? 4 : 5, HP_FP32, HP_SUM), HP_ERR_MISMATCH);
    RANK_CHECK(strstr(hp_last_error(), "the count differs"));
}

static void large_counts_body(hp_world *world, void *argument) {
    static const uint64_t counts[] = {(UINT64_C(1) << 31) - 1, (UINT64_C(1) << 31) + 1,
                                      (UINT64_C(1) << 32) + 1};
    hp_group *g = hp_world_group(world);
    const uint64_t n = (uint64_t)hp_group_size(g);
    unsigned char *low = (unsigned char *)(uintptr_t)4096;
    (void)argument;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        hpi_run run;
        uint64_t begin, end, at = 0;
        hpi_coll c = {.in = low,
                      .out = low,
                      .count = counts[i],
                      .blocks = 1,
                      .dtype = HP_BF16,
                      .out_dtype = HP_BF16};
        RANK_OK(hpi_coll_check(g, HP_ALL_REDUCE, &c, &run));
        RANK_CHECK(run.in_bytes == 2 * counts[i] && run.out_bytes == 2 * counts[i]);
        for (int r = 0; r < run.n; r++, at = end) {
            hpi_slice(&run, counts[i], r, &begin, &end);
            RANK_CHECK(begin == at && (begin % 32 == 0 || begin == counts[i]));
        }
        RANK_CHECK(at == counts[i]);
        c.out = low + (uint64_t)1 * 16 * n * counts[i];
        RANK_OK(hpi_coll_check(g, HP_REDUCE_SCATTER, &c, &run));
        RANK_CHECK(run.in_bytes == 2 * n * counts[i] && run.out_bytes == 2 * counts[i]);
    }
}

/* ---- arguments of the full form ---- */

static void full_arguments_body(hp_world *world, void *argument) {
    hp_group *g = hp_world_group(world);
    float a[64] = {0}, b[64] = {0};
    uint64_t counts[] = {3, 4, 5}, huge[] = {3, 4, UINT64_MAX - 5}, offsets[] = {0, 3, 7};
    uint64_t wide[] = {3, 4, UINT64_C(1) << 61}, over[] = {0, 1, 2};
    const int rank = hp_group_rank(g);
    hp_coll_call good = HP_COLL_CALL_INIT, call;
    (void)argument;
    RANK_FAILS(hp_coll_run(NULL), HP_ERR_ARGUMENT);
    good.what = HP_ALL_GATHER_V;
    good.group = g;
    good.in = a;
    good.out = b;
    good.count = counts[rank];
    good.out_counts = counts;
    good.out_offsets = offsets;
#define REFUSED(change, text)                                                                      \
    do {                                                                                           \
        call = good;                                                                               \
        change;                                                                                    \
        RANK_FAILS(hp_coll_run(&call), HP_ERR_ARGUMENT);                                           \
        RANK_CHECK(strstr(hp_last_error(), text));                                                 \
    } while (0)
    REFUSED(call.size = 0, "given 0");
    REFUSED(call.size = sizeof call + 8, "hp_coll_call");
    REFUSED(call.what = (hp_collective)11, "given 11");
    REFUSED(call.group = NULL, "expected a group");
    REFUSED(call.out_counts = NULL, "out_counts of 3 ranks");
    REFUSED(call.count++, "this rank's own");
    REFUSED(call.out_counts = huge; call.count = huge[rank], "less than 2^63");
    REFUSED(call.out_counts = wide; call.count = wide[rank], "less than 2^63");
    REFUSED(call.out_offsets = huge, "less than 2^63");
    REFUSED(call.in = NULL, "given NULL");
    REFUSED(call.out = NULL, "given NULL");
    REFUSED(call.in = b + 1, "apart or in place");
    /* in place, but others' parts lie over the own one */
    REFUSED(call.in = b + over[rank]; call.out_offsets = over, "apart or in place");
    good.what = HP_REDUCE_SCATTER_V;
    good.in_counts = counts;
    good.out_counts = NULL;
    REFUSED(call.in_counts = NULL, "in_counts of 3 ranks");
    REFUSED(call.count++, "this rank's own");
    REFUSED(call.op = (hp_reduce)9, "sum, avg, max or min");
    REFUSED(call.wire = (hp_wire)6, "given 6");
    REFUSED(call.dtype = HP_INT8; call.op = HP_AVG, "float dtype for avg");
    REFUSED(call.dtype = HP_FP64; call.wire = HP_WIRE_BF16, "fp64");
    good.what = HP_ALL_TO_ALL_V;
    good.out_counts = counts;
    REFUSED(call.out = a, "apart, given");
    REFUSED(call.in_counts = NULL, "in_counts");
    REFUSED(call.out_counts = NULL, "out_counts");
    REFUSED(call.dtype = (hp_dtype)8, "dtype");
#undef REFUSED
    RANK_CHECK(hpi_coll_seq(g) == 0);
    RANK_OK(hp_barrier(g));
}

/* A barrier looks at nothing but its group, whatever the rest of the struct holds. */
static void unnamed_fields_body(hp_world *world, void *argument) {
    hp_coll_call call;
    (void)argument;
    memset(&call, 0x5a, sizeof call);
    call.size = sizeof call;
    call.what = HP_BARRIER;
    call.group = hp_world_group(world);
    call.stream = NULL;
    RANK_OK(hp_coll_run(&call));
}

/* An all_gather_v whose offsets go past 2^32 elements: a sparse output, of which little is there.
 */
static void large_offsets_body(hp_world *world, void *argument) {
    const uint64_t far = (UINT64_C(1) << 32) + 1, bytes = 2 * far + 4096;
    hp_group *g = hp_world_group(world);
    unsigned char *out = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    const uint64_t counts[] = {5, 3}, offsets[] = {2 * far, far};
    const int rank = hp_group_rank(g);
    const unsigned char in[] = {1, 2, 3, 4, 5};
    hp_coll_call call = HP_COLL_CALL_INIT;
    (void)argument;
    RANK_CHECK(out != MAP_FAILED);
    call.what = HP_ALL_GATHER_V;
    call.group = g;
    call.in = in;
    call.out = out;
    call.count = counts[rank];
    call.out_counts = counts;
    call.out_offsets = offsets;
    call.dtype = HP_UINT8;
    RANK_OK(hp_coll_run(&call));
    RANK_CHECK(memcmp(out + 2 * far, in, 5) == 0 && memcmp(out + far, in, 3) == 0);
    RANK_CHECK(out[far + 3] == 0 && out[2 * far + 5] == 0);
    munmap(out, bytes);
}

/* ---- what is shared ---- */

_Static_assert(sizeof(hpi_line) == 128 && sizeof(((hpi_line *)0)->words[0]) == 8,
               "a line is 16 words of 64 bits");
_Static_assert(sizeof(hpi_place) == 16, "a place is two words of a line");

/* Rank 1 enters with words as a machine of the other byte order would have written them. */
static void swapped_body(hp_world *world, void *argument) {
    hp_group *group = NULL;
    float in[100] = {0}, out[100];
    (void)argument;
    RANK_OK(hp_group_duplicate(hp_world_group(world), &group));
    if (hp_group_rank(group) == 0) {
        RANK_FAILS(hp_all_reduce(group, in, out, 100, HP_FP32, HP_SUM), HP_ERR_MISMATCH);
        RANK_CHECK(strstr(hp_last_error(), "rank 1 (world 1) made "));
    } else {
        _Atomic uint64_t *words = hpi_group_said(group, 1, 1)->words;
        const uint64_t types = HP_ALL_REDUCE | HP_FP32 << 4 | HP_FP32 << 8 | HP_WIRE_FULL << 20;
        const uint64_t said[] = {types, 100, 1, 0, 0, 0, 0};
        for (int i = 0; i < 7; i++)
            atomic_store_explicit(&words[i], __builtin_bswap64(said[i]), memory_order_relaxed);
        hpi_said_post(group, 1);
    }
    RANK_OK(hp_barrier(hp_world_group(world)));
    hp_group_destroy(group);
}

/* The same by hand in the right order is a call, so the test above swaps what is read. */
static void unswapped_body(hp_world *world, void *argument) {
    hp_group *group = hp_world_group(world);
    (void)argument;
    if (hp_group_rank(group) == 0) {
        RANK_OK(hp_barrier(group));
        return;
    }
    _Atomic uint64_t *words = hpi_group_said(group, 1, 1)->words;
    const uint64_t types = HP_BARRIER | HP_UINT8 << 4 | HP_UINT8 << 8 | HP_WIRE_FULL << 20;
    const _Atomic uint64_t *theirs = hpi_group_said(group, 0, 1)->words;
    RANK_OK(hpi_said_wait(group, 0, 1, "test"));
    /* the same history as rank 0's, which is no number that a test can know */
    const uint64_t said[] = {types, 0, atomic_load(&theirs[2]), 0, 0, 0, 0};
    RANK_CHECK((uint32_t)said[2] == 1 && atomic_load(&theirs[0]) == types);
    for (int i = 0; i < 7; i++)
        atomic_store_explicit(&words[i], said[i], memory_order_relaxed);
    hpi_said_post(group, 1);
}

/* ---- the tests ---- */

static void test_every_field_that_differs(void **state) {
    (void)state;
    for (int odd_one = 0; odd_one < 4; odd_one += 3)
        ranks_run(4, RANKS_THREADS, mismatch_body, &odd_one);
}
static void test_over_nodes(void **state) {
    int odd_one = 1;
    (void)state;
    ranks_run_nodes(3, 1, mismatch_body, &odd_one);
    for (odd_one = 0; odd_one < 4; odd_one += 3)
        ranks_run_nodes(4, 2, mismatch_body, &odd_one);
}
static void test_a_barrier_after_a_call_that_others_do_not_make(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, barrier_ahead_body, NULL);
}
static void test_as_processes(void **state) {
    int odd_one = 1;
    (void)state;
    ranks_run(3, RANKS_PROCESSES, mismatch_body, &odd_one);
}
static void test_arguments(void **state) {
    (void)state;
    ranks_run(3, RANKS_THREADS, arguments_body, NULL);
    ranks_run(3, RANKS_THREADS, full_arguments_body, NULL);
    ranks_run(2, RANKS_THREADS, unnamed_fields_body, NULL);
    ranks_run(3, RANKS_THREADS, repeated_body, NULL);
}
static void N13_counts_past_2_to_31(void **state) {
    (void)state;
    ranks_run(3, RANKS_THREADS, large_counts_body, NULL);
}
static void N13_offsets_past_2_to_32(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, large_offsets_body, NULL);
}
static void N15_words_in_the_wrong_byte_order(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, swapped_body, NULL);
    ranks_run(2, RANKS_THREADS, unswapped_body, NULL);
}

/* ---- a rank that gives up while a slow one reads its memory ---- */

enum { LARGE_BYTES = 64 << 20 };

/* The root's deadline passes while the other copies; then it uses its buffer again. Who is told
 * that all went well has the bytes that were sent. */
static void gives_up_body(hp_world *world, void *argument) {
    hp_group *group = hp_world_group(world);
    const bool is_root = hp_world_rank(world) == 0;
    hp_symm memory;
    void *data;
    (void)argument;
    RANK_OK(hp_symm_alloc(world, NULL, LARGE_BYTES, 0, &memory));
    RANK_OK(hp_symm_pointer(memory, hp_world_rank(world), NULL, &data));
    memset(data, is_root ? 1 : 0, LARGE_BYTES);
    RANK_OK(hp_barrier(group));
    world->options.signal_timeout_ms = 1;
    const hp_status status = hp_broadcast(group, data, LARGE_BYTES, HP_UINT8, 0);
    if (is_root)
        memset(data, 2, LARGE_BYTES);
    const unsigned char *bytes = data;
    bool is_right = true;
    for (int i = 0; i < LARGE_BYTES; i++)
        is_right = is_right && bytes[i] == 1;
    RANK_CHECK(is_root || status < 0 || is_right);
}

static void test_a_root_that_gives_up(void **state) {
    (void)state;
    for (int i = 0; i < 5; i++)
        ranks_run(2, RANKS_PROCESSES, gives_up_body, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_field_that_differs),
        cmocka_unit_test(test_over_nodes),
        cmocka_unit_test(test_a_barrier_after_a_call_that_others_do_not_make),
        cmocka_unit_test(test_as_processes),
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(N13_counts_past_2_to_31),
        cmocka_unit_test(N13_offsets_past_2_to_32),
        cmocka_unit_test(N15_words_in_the_wrong_byte_order),
        cmocka_unit_test(test_a_root_that_gives_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

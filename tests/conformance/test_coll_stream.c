/* SPDX-License-Identifier: Apache-2.0
 *
 * test_coll_stream.c - collectives on streams, and from several threads at once.
 *
 * Sixteen operations in flight, waited for in any order; four streams over three groups;
 * overlapping groups from two threads. Every operation has data of its own, so any mix-up shows.
 * Arguments are refused at once, arrays of counts are copied, and what fails later comes from the
 * stream.
 */
#include "coll/inside.h"
#include "support/ranks.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static hp_coll_call sum_call(hp_group *group, hp_stream *stream, const float *in, float *out,
                             uint64_t count) {
    hp_coll_call call = HP_COLL_CALL_INIT;
    call.what = HP_ALL_REDUCE;
    call.group = group;
    call.in = in;
    call.out = out;
    call.count = count;
    call.stream = stream;
    return call;
}

/* ---- sixteen in flight ---- */

enum { N_FLIGHT = 16, FLIGHT_COUNT = 900, ROUNDS = 12 };

typedef struct flight {
    hp_group *group[4];
    hp_stream *stream[4];
    float *in, *out; /* [N_FLIGHT][FLIGHT_COUNT] */
} flight;

static void flight_open(flight *f, hp_world *world, int n_streams, float *in, float *out) {
    *f = (flight){.in = in, .out = out};
    for (int i = 0; i < n_streams; i++) {
        RANK_OK(hp_group_duplicate(hp_world_group(world), &f->group[i]));
        RANK_OK(hp_stream_create(NULL, &f->stream[i]));
    }
}

static void flight_close(flight *f, int n_streams) {
    for (int i = 0; i < n_streams; i++) {
        hp_stream_destroy(f->stream[i]);
        hp_group_destroy(f->group[i]);
    }
}

/* 16 operations on n_streams streams, then their marks in an order that changes with the round. */
static void fly(flight *f, int n_streams, int rank, int n, int round) {
    hp_mark marks[N_FLIGHT];
    for (int i = 0; i < N_FLIGHT * FLIGHT_COUNT; i++)
        f->in[i] = (float)(i % 1000 + rank + round);
    for (int k = 0; k < N_FLIGHT; k++) {
        const int s = k % n_streams;
        const hp_coll_call call = sum_call(f->group[s], f->stream[s], f->in + k * FLIGHT_COUNT,
                                           f->out + k * FLIGHT_COUNT, FLIGHT_COUNT);
        RANK_OK(hp_coll_run(&call));
        RANK_OK(hp_stream_record(f->stream[s], &marks[k]));
    }
    for (int k = 0; k < N_FLIGHT; k++) {
        const int which = (k * 5 + round + rank) % N_FLIGHT;
        RANK_OK(hp_mark_synchronize(marks[which]));
        for (int e = 0; e < FLIGHT_COUNT; e++) {
            const int i = which * FLIGHT_COUNT + e;
            RANK_CHECK(f->out[i] == (float)(n * (i % 1000 + round) + n * (n - 1) / 2));
        }
    }
}

static void flight_body(hp_world *world, void *argument) {
    const int rank = hp_world_rank(world), n = hp_world_size(world);
    const uint64_t bytes = sizeof(float) * N_FLIGHT * FLIGHT_COUNT;
    hp_symm memory;
    void *base = NULL;
    flight f;
    (void)argument;
    float *ordinary = malloc(2 * bytes);
    RANK_CHECK(ordinary);
    RANK_OK(hp_symm_alloc(world, NULL, 2 * bytes, 0, &memory));
    RANK_OK(hp_symm_pointer(memory, rank, NULL, &base));
    for (int n_streams = 1; n_streams <= 4; n_streams += 3)
        for (int is_symmetric = 0; is_symmetric < 2; is_symmetric++) {
            float *in = is_symmetric ? base : ordinary;
            flight_open(&f, world, n_streams, in, in + N_FLIGHT * FLIGHT_COUNT);
            for (int round = 0; round < ROUNDS; round++)
                fly(&f, n_streams, rank, n, round);
            flight_close(&f, n_streams);
        }
    RANK_OK(hp_symm_free(memory));
    free(ordinary);
}

/* ---- four streams over three groups ---- */

enum { TURNS = 60, TURN_COUNT = 300 };

/* The third group is used from two streams, in turn: each waits for the other's mark. */
static void shared_group_body(hp_world *world, void *argument) {
    const int rank = hp_world_rank(world), n = hp_world_size(world);
    static const int group_of[4] = {0, 1, 2, 2};
    hp_group *groups[3];
    hp_stream *streams[4];
    (void)argument;
    float *data = malloc(sizeof(float) * 4 * TURN_COUNT);
    RANK_CHECK(data);
    for (int i = 0; i < 3; i++)
        RANK_OK(hp_group_duplicate(hp_world_group(world), &groups[i]));
    for (int i = 0; i < 4; i++)
        RANK_OK(hp_stream_create(NULL, &streams[i]));
    for (int turn = 0; turn < TURNS; turn++) {
        for (int i = 0; i < 4 * TURN_COUNT; i++)
            data[i] = (float)(i + turn * rank);
        for (int i = 0; i < 4; i++) {
            float *at = data + i * TURN_COUNT;
            const hp_coll_call call = sum_call(groups[group_of[i]], streams[i], at, at, TURN_COUNT);
            hp_mark mark;
            RANK_OK(hp_coll_run(&call));
            RANK_OK(hp_stream_record(streams[i], &mark));
            if (i >= 2)
                RANK_OK(hp_stream_wait(streams[5 - i], mark));
        }
        for (int i = 0; i < 4; i++)
            RANK_OK(hp_stream_synchronize(streams[i]));
        for (int i = 0; i < 4 * TURN_COUNT; i++)
            RANK_CHECK(data[i] == (float)(n * i + turn * n * (n - 1) / 2));
    }
    for (int i = 0; i < 4; i++)
        hp_stream_destroy(streams[i]);
    for (int i = 0; i < 3; i++)
        hp_group_destroy(groups[i]);
    free(data);
}

/* ---- every collective on a stream ---- */

/* The arrays of counts are overwritten as soon as the call has returned. */
static void every_call_body(hp_world *world, void *argument) {
    hp_group *group = hp_world_group(world);
    const int rank = hp_group_rank(group), n = hp_group_size(group);
    int32_t in[64], out[9][64];
    uint64_t counts[8];
    hp_stream *stream;
    (void)argument;
    RANK_OK(hp_stream_create(NULL, &stream));
    for (int i = 0; i < 64; i++)
        in[i] = rank * 100 + i;
    memset(out, 0, sizeof out);
    out[HP_BROADCAST][0] = rank == 1 ? 4711 : 0;
    for (int what = HP_ALL_GATHER; what <= HP_BARRIER; what++) {
        hp_coll_call call = HP_COLL_CALL_INIT;
        for (int i = 0; i < n; i++)
            counts[i] =
                (uint64_t)(hpi_is_v((hp_collective)what) && what != HP_ALL_TO_ALL_V ? i : 2);
        call.what = (hp_collective)what;
        call.group = group;
        call.in = in;
        call.out = out[what];
        call.count = hpi_is_v(call.what) ? counts[rank] : 2;
        call.in_counts = call.out_counts = counts;
        call.dtype = HP_INT32;
        call.rank = 1;
        call.stream = stream;
        RANK_OK(hp_coll_run(&call));
        memset(counts, 0xff, sizeof counts);
    }
    RANK_OK(hp_stream_synchronize(stream));
    const int sum = n * (n - 1) / 2 * 100; /* of rank * 100 */
    for (int i = 0; i < n; i++) {
        RANK_CHECK(out[HP_ALL_GATHER][2 * i + 1] == i * 100 + 1);
        RANK_CHECK(out[HP_ALL_TO_ALL][2 * i] == i * 100 + 2 * rank);
        RANK_CHECK(out[HP_ALL_TO_ALL_V][2 * i + 1] == i * 100 + 2 * rank + 1);
        for (int k = 0; k < i; k++)
            RANK_CHECK(out[HP_ALL_GATHER_V][i * (i - 1) / 2 + k] == i * 100 + k);
    }
    for (int k = 0; k < rank; k++)
        RANK_CHECK(out[HP_REDUCE_SCATTER_V][k] == sum + n * (rank * (rank - 1) / 2 + k));
    RANK_CHECK(out[HP_REDUCE_SCATTER][1] == sum + n * (2 * rank + 1));
    RANK_CHECK(out[HP_ALL_REDUCE][1] == sum + n && out[HP_BROADCAST][0] == 4711);
    hp_stream_destroy(stream);
}

/* ---- what goes wrong ---- */

static void failure_body(hp_world *world, void *argument) {
    const int rank = hp_world_rank(world);
    hp_group *group = NULL;
    hp_stream *stream;
    hp_mark mark;
    float in[100] = {0}, out[100] = {0};
    (void)argument;
    RANK_OK(hp_group_duplicate(hp_world_group(world), &group));
    RANK_OK(hp_stream_create(NULL, &stream));
    hp_coll_call call = sum_call(group, stream, in, out, 100);
    call.out = in + 1; /* refused at once, and nothing has happened to the stream */
    RANK_FAILS(hp_coll_run(&call), HP_ERR_ARGUMENT);
    call.out = out;
    RANK_OK(hp_coll_run(&call));
    RANK_OK(hp_stream_synchronize(stream));
    call.count = rank == 1 ? 90 : 91;
    RANK_OK(hp_coll_run(&call));
    const hp_status recorded = hp_stream_record(stream, &mark); /* it may have failed by then */
    RANK_FAILS(recorded == HP_OK ? hp_mark_synchronize(mark) : recorded, HP_ERR_MISMATCH);
    RANK_CHECK(strstr(hp_last_error(), "the count differs"));
    RANK_FAILS(hp_stream_synchronize(stream), HP_ERR_MISMATCH);
    call.stream = NULL;
    RANK_FAILS(hp_coll_run(&call), HP_ERR_MISMATCH); /* the group stays failed */
    hp_stream_destroy(stream);
    hp_group_destroy(group);
}

/* A deadline of one group alone; then a group that is ended while a stream waits in it, whose other
 * member is told, whether it comes before or after. */
static void ended_body(hp_world *world, void *argument) {
    const int rank = hp_world_rank(world);
    hp_group *group[2];
    hp_stream *stream;
    float data = 0;
    hp_error error;
    (void)argument;
    for (int i = 0; i < 2; i++)
        RANK_OK(hp_group_duplicate(hp_world_group(world), &group[i]));
    RANK_FAILS(hp_group_timeout_set(NULL, 1), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_group_cancel(NULL), HP_ERR_ARGUMENT);
    RANK_OK(hp_group_timeout_set(group[0], 20));
    if (rank == 0) {
        RANK_FAILS(hp_barrier(group[0]), HP_ERR_TIMEOUT);
        RANK_CHECK(strstr(hp_last_error(), "for 20 ms"));
    }
    RANK_OK(hp_barrier(hp_world_group(world)));
    if (rank == 1) {
        hp_coll_call call = HP_COLL_CALL_INIT;
        call.what = HP_RECV;
        call.group = group[1];
        call.out = &data;
        call.count = 1;
        call.rank = 0;
        RANK_OK(hp_stream_create(NULL, &stream));
        call.stream = stream;
        RANK_OK(hp_coll_run(&call));
        RANK_OK(hp_group_cancel(group[1]));
        RANK_FAILS(hp_stream_synchronize(stream), HP_ERR_FAILED);
        hp_stream_destroy(stream);
    } else {
        RANK_FAILS(hp_barrier(group[1]), HP_ERR_FAILED);
        hp_last_error_get(&error);
        RANK_CHECK(error.world_rank == 1 && strstr(error.message, "rank 1 cancelled"));
    }
    RANK_OK(hp_barrier(hp_world_group(world)));
    for (int i = 0; i < 2; i++)
        hp_group_destroy(group[i]);
}

/* ---- two threads, overlapping groups ---- */

typedef struct side {
    hp_group *group;
    float *symmetric;
    hp_status status;
    bool is_wrong;
} side;

enum { N_SIDE = 200, SIDE_COUNT = 700 };

/* Sums over the group, now in symmetric memory, now in ordinary, which is staged. */
static void *side_main(void *argument) {
    side *s = argument;
    float ordinary[SIDE_COUNT];
    float expected = 0;
    for (int i = 0; i < hp_group_size(s->group); i++)
        expected += (float)hp_group_world_rank(s->group, i);
    for (int i = 0; i < N_SIDE && s->status == HP_OK; i++) {
        float *data = i % 2 ? s->symmetric : ordinary;
        for (int k = 0; k < SIDE_COUNT; k++)
            data[k] = (float)hp_group_world_rank(s->group, hp_group_rank(s->group)) + (float)i;
        s->status = hp_all_reduce(s->group, data, data, SIDE_COUNT, HP_FP32, HP_SUM);
        const float want = expected + (float)(i * hp_group_size(s->group));
        s->is_wrong |= s->status == HP_OK && (data[0] != want || data[SIDE_COUNT - 1] != want);
    }
    return NULL;
}

/* Ranks 0 to 3; {0,1,2} and {1,2,3}; the members of both use both at once. */
static void overlapping_body(hp_world *world, void *argument) {
    static const int members[2][3] = {{0, 1, 2}, {1, 2, 3}};
    const int rank = hp_world_rank(world);
    hp_symm memory;
    void *base = NULL;
    side sides[2] = {{0}};
    pthread_t thread;
    (void)argument;
    RANK_OK(hp_symm_alloc(world, NULL, 2 * SIDE_COUNT * sizeof(float), 0, &memory));
    RANK_OK(hp_symm_pointer(memory, rank, NULL, &base));
    for (int i = 0; i < 2; i++) {
        sides[i].symmetric = (float *)base + i * SIDE_COUNT;
        if (rank >= members[i][0] && rank <= members[i][2])
            RANK_OK(hp_group_create(world, members[i], 3, &sides[i].group));
    }
    const bool has_thread = sides[0].group && sides[1].group;
    if (has_thread)
        RANK_CHECK(pthread_create(&thread, NULL, side_main, &sides[1]) == 0);
    side_main(sides[0].group ? &sides[0] : &sides[1]);
    if (has_thread)
        pthread_join(thread, NULL);
    for (int i = 0; i < 2; i++) {
        RANK_CHECK(sides[i].status == HP_OK && !sides[i].is_wrong);
        hp_group_destroy(sides[i].group);
    }
    RANK_OK(hp_symm_free(memory));
}

/* ---- the tests ---- */

static void N11_sixteen_in_flight(void **state) {
    (void)state;
    ranks_run(3, RANKS_THREADS, flight_body, NULL);
    ranks_run(2, RANKS_PROCESSES, flight_body, NULL);
}
static void S18_four_streams_three_groups(void **state) {
    (void)state;
    ranks_run(3, RANKS_THREADS, shared_group_body, NULL);
    ranks_run(2, RANKS_PROCESSES, shared_group_body, NULL);
}
static void S18_overlapping_groups_from_two_threads(void **state) {
    (void)state;
    ranks_run(4, RANKS_THREADS, overlapping_body, NULL);
}
static void test_every_call_on_a_stream(void **state) {
    (void)state;
    ranks_run(4, RANKS_THREADS, every_call_body, NULL);
    ranks_run(3, RANKS_PROCESSES, every_call_body, NULL);
}
static void test_failures(void **state) {
    (void)state;
    ranks_run(3, RANKS_THREADS, failure_body, NULL);
}
static void test_deadline_and_end_of_a_group(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, ended_body, NULL);
    ranks_run(2, RANKS_PROCESSES, ended_body, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(N11_sixteen_in_flight),
        cmocka_unit_test(S18_four_streams_three_groups),
        cmocka_unit_test(S18_overlapping_groups_from_two_threads),
        cmocka_unit_test(test_every_call_on_a_stream),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_deadline_and_end_of_a_group),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

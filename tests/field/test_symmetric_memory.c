/* SPDX-License-Identifier: Apache-2.0
 *
 * test_symmetric_memory.c - what went wrong for others with symmetric memory, signals and groups.
 *
 * Each test is named after a public report of its field, see the comment above it; what must hold
 * here is in the same comment. S16 and S20 are about more than one node.
 */
#include "field/payload_then_flag.h"
#include "symm/symm.h"

#include <hyperparallel/coll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static void on_threads(int n, ranks_body body) {
    ranks_run(n, RANKS_THREADS, body, NULL);
}

static void on_both(int n, ranks_body body) {
    ranks_run(n, RANKS_THREADS, body, NULL);
    ranks_run(n, RANKS_PROCESSES, body, NULL);
}

/* ---- S1 (pytorch#192581): a signal in group A completed a wait in group B ---- */

/* Words at the same offset of two groups' memory; each rank adds to both in a different order. A
 * wait of one group never ends by the other's signals. */
static void overlapping_body(hp_world *world, void *argument) {
    static const int members[2][3] = {{0, 1, 2}, {1, 2, 3}};
    const int rank = hp_world_rank(world);
    hp_group *groups[2] = {NULL, NULL};
    hp_symm memories[2] = {{0}, {0}};
    (void)argument;
    for (int g = 0; g < 2; g++) {
        if (rank < members[g][0] || rank > members[g][2])
            continue;
        RANK_OK(hp_group_create(world, members[g], 3, &groups[g]));
        RANK_OK(hp_symm_alloc(world, groups[g], 64, 0, &memories[g]));
    }
    for (uint64_t round = 1; round <= 200; round++)
        for (int k = 0; k < 2; k++) {
            const int g = ((int)round + rank + k) % 2;
            void *word = NULL;
            if (!groups[g])
                continue;
            for (int r = 0; r < 3; r++)
                RANK_OK(hp_symm_signal(memories[g], 8, HP_SIGNAL_ADD, g ? 1000 : 1, r, groups[g]));
            RANK_OK(hp_symm_pointer(memories[g], hp_group_rank(groups[g]), NULL, &word));
            const uint64_t now = atomic_load((_Atomic uint64_t *)((uint64_t *)word + 1));
            RANK_CHECK(now % (g ? 1000 : 1) == 0 && now <= 3 * 200 * (g ? 1000 : 1));
        }
    for (int g = 0; g < 2; g++) {
        if (!groups[g])
            continue;
        RANK_OK(hp_symm_wait(memories[g], 8, HP_EQ, 600 * (g ? 1000 : 1), 0));
        RANK_OK(hp_symm_free(memories[g]));
        hp_group_destroy(groups[g]);
    }
}

static void S1_signals_of_overlapping_groups(void **state) {
    (void)state;
    on_both(4, overlapping_body);
}

/* ---- S2 (pytorch#196082): set-up on a subgroup made a later one of the world hang ---- */

/* Set-up and collectives on subgroups that leave a rank out, then on the world, in 100 orders. */
static void subgroups_body(hp_world *world, void *argument) {
    const int rank = hp_world_rank(world), n = hp_world_size(world);
    uint64_t seed = 11;
    (void)argument;
    for (int i = 0; i < 100; i++) {
        const int left_out = (int)(hpi_random_next(&seed) % (uint64_t)n);
        int members[16], n_members = 0;
        hp_symm some = {0}, all;
        hp_group *group = NULL;
        for (int r = 0; r < n; r++)
            if (r != left_out)
                members[n_members++] = r;
        if (rank != left_out) {
            RANK_OK(hp_group_create(world, members, n_members, &group));
            RANK_OK(hp_symm_alloc(world, group, 100 + (uint64_t)i, 0, &some));
            RANK_OK(hp_barrier(group));
        }
        RANK_OK(hp_symm_alloc(world, NULL, 200, 0, &all));
        RANK_OK(hp_barrier(hp_world_group(world)));
        if (i % 2)
            RANK_OK(hp_symm_free(all));
        if (rank != left_out)
            RANK_OK(hp_symm_free(some));
        if (i % 2 == 0)
            RANK_OK(hp_symm_free(all));
        hp_group_destroy(group);
    }
}

static void S2_subgroup_then_world_in_100_orders(void **state) {
    (void)state;
    on_threads(4, subgroups_body);
}

/* ---- S4 (pytorch#195501): a collective hidden in the first allocation deadlocked ---- */

/* Rank 0 allocates, then meets; the others meet, then allocate: an error, and no hang. */
static void crossed_body(hp_world *world, void *argument) {
    hp_symm memory;
    hp_status status;
    (void)argument;
    if (hp_world_rank(world) == 0) {
        status = hp_symm_alloc(world, NULL, 64, 0, &memory);
        if (status == HP_OK)
            status = hp_barrier(hp_world_group(world));
    } else {
        status = hp_barrier(hp_world_group(world));
        if (status == HP_OK)
            status = hp_symm_alloc(world, NULL, 64, 0, &memory);
    }
    RANK_CHECK(status == HP_ERR_MISMATCH);
}

static void S4_allocation_crosses_a_collective(void **state) {
    (void)state;
    on_both(3, crossed_body);
}

/* The first message of a group takes memory, but alone: it may cross an allocation. */
static void first_message_body(hp_world *world, void *argument) {
    const int rank = hp_world_rank(world);
    hp_symm memory;
    int data = 17 * rank;
    (void)argument;
    if (rank == 0) {
        RANK_OK(hp_send(hp_world_group(world), &data, 1, HP_INT32, 1));
        RANK_OK(hp_symm_alloc(world, NULL, 64, 0, &memory));
        RANK_OK(hp_recv(hp_world_group(world), &data, 1, HP_INT32, 1));
        RANK_CHECK(data == 17);
    } else {
        RANK_OK(hp_send(hp_world_group(world), &data, 1, HP_INT32, 0));
        RANK_OK(hp_symm_alloc(world, NULL, 64, 0, &memory));
        RANK_OK(hp_recv(hp_world_group(world), &data, 1, HP_INT32, 0));
        RANK_CHECK(data == 0);
    }
    RANK_OK(hp_symm_free(memory));
}

static void S4_first_message_crosses_an_allocation(void **state) {
    (void)state;
    on_both(2, first_message_body);
}

/* ---- S5 (pytorch#189228): collectives of one group from two streams deadlocked ---- */

typedef struct worker {
    hp_group *group;
    pthread_t thread;
    int n_done, n_busy, n_wrong;
} worker;

/* Calls of two threads are refused while the other one is inside, and do no harm. */
static void *work(void *argument) {
    enum { CALLS = 100 };
    worker *w = argument;
    while (w->n_done < CALLS) {
        const int64_t one = 1;
        int64_t sum = 0;
        const hp_status status = hp_all_reduce(w->group, &one, &sum, 1, HP_INT64, HP_SUM);
        w->n_done += status == HP_OK;
        w->n_busy += status == HP_ERR_BUSY;
        w->n_wrong += status == HP_OK && sum != hp_group_size(w->group);
        if (status == HP_ERR_BUSY)
            sched_yield();
        else if (status < 0)
            break;
    }
    return NULL;
}

static void two_threads_body(hp_world *world, void *argument) {
    worker workers[2];
    (void)argument;
    for (int i = 0; i < 2; i++) {
        workers[i] = (worker){.group = hp_world_group(world)};
        RANK_CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(workers[i].thread, NULL);
    for (int i = 0; i < 2; i++)
        RANK_CHECK(workers[i].n_done == 100 && workers[i].n_wrong == 0);
}

static void S5_one_group_from_two_threads(void **state) {
    (void)state;
    on_threads(3, two_threads_body);
}

/* ---- S6 (pytorch#191858): barrier, put_signal and wait_signal were silent no-ops ---- */

enum { SAID = 0, WORD = 64, DATA = 128 };

/* The signaller is late; it says so in `SAID` right before each call, and nobody may have gone on
 * before that. */
static void late_body(hp_world *world, void *argument) {
    const int rank = hp_world_rank(world);
    hp_symm memory;
    void *block = NULL;
    (void)argument;
    RANK_OK(hp_symm_alloc(world, NULL, 256, 0, &memory));
    RANK_OK(hp_symm_pointer(memory, 1, NULL, &block));
    _Atomic uint64_t *said = (_Atomic uint64_t *)block + SAID / 8;
    for (uint64_t i = 1; i <= 3; i++) {
        if (rank == 0) {
            hpi_sleep_ns(20000000);
            atomic_store(said, i);
        }
        if (i == 3)
            RANK_OK(hp_barrier(hp_world_group(world)));
        else if (rank == 1)
            RANK_OK(hp_symm_wait(memory, WORD, HP_GE, i, 0));
        else if (i == 1)
            RANK_OK(hp_symm_signal(memory, WORD, HP_SIGNAL_ADD, 1, 1, NULL));
        else
            RANK_OK(hp_symm_put_signal(memory, DATA, &i, sizeof i, memory, WORD, HP_SIGNAL_SET, i,
                                       1, NULL));
        RANK_CHECK(atomic_load(said) >= i);
    }
    RANK_OK(hp_symm_free(memory));
}

static void S6_nobody_goes_on_before_the_signal(void **state) {
    (void)state;
    on_both(2, late_body);
}

/* ---- S8 (pytorch#163194): put-signal went to a wrong address ---- */

/* Blocks lie at offsets that differ. Every rank puts its mark, with a signal, at every rank and at
 * many offsets; each block then holds exactly what all of them must have put. */
static void every_address_body(hp_world *world, void *argument) {
    enum { ROOM = 1024 };
    const int rank = hp_world_rank(world), n = hp_world_size(world);
    uint64_t *block, model[ROOM] = {0};
    hp_group *alone = NULL;
    hp_symm own, memory;
    void *base = NULL;
    (void)argument;
    RANK_OK(hp_group_create(world, &rank, 1, &alone));
    RANK_OK(hp_symm_alloc(world, alone, 64 + 4000 * (uint64_t)rank, 0, &own));
    RANK_OK(hp_symm_alloc(world, NULL, sizeof model, 0, &memory));
    for (int to = 0; to < n; to++)
        for (uint64_t i = (uint64_t)rank; i + 1 < ROOM; i += (uint64_t)n) {
            const uint64_t mark = i * 100 + (uint64_t)(10 * rank + to);
            RANK_OK(hp_symm_put_signal(memory, i * 8, &mark, 8, memory, 8 * (ROOM - 1),
                                       HP_SIGNAL_ADD, 1, to, NULL));
        }
    RANK_OK(hp_symm_wait(memory, 8 * (ROOM - 1), HP_EQ, ROOM - 1, 0));
    RANK_OK(hp_symm_pointer(memory, rank, NULL, &base));
    block = base;
    for (uint64_t i = 0; i + 1 < ROOM; i++)
        RANK_CHECK(block[i] == i * 100 + 10 * (i % (uint64_t)n) + (uint64_t)rank);
    RANK_OK(hp_symm_free(memory));
    RANK_OK(hp_symm_free(own));
    hp_group_destroy(alone);
}

static void S8_every_rank_and_offset(void **state) {
    (void)state;
    on_both(5, every_address_body);
}

/* ---- S9 (pytorch#158167): a flag that one call wrote never ended the other call's wait ---- */

/* A change of a word, and a comparison that is false before it and true after. */
static const struct change {
    hp_compare compare;
    uint64_t value, before, after;
} changes[] = {{HP_EQ, 9, 5, 9}, {HP_NE, 5, 5, 9},
               {HP_GT, 8, 5, 9}, {HP_GE, UINT64_MAX, 5, UINT64_MAX},
               {HP_LT, 9, 9, 5}, {HP_LE, 5, 9, 5}};
enum { N_CHANGES = sizeof changes / sizeof *changes };

/* Bits of how: 0 put_signal instead of put and signal, 1 add instead of set, 2 the producer on a
 * stream, 3 the waiter on a stream. */
enum { N_HOWS = 16 };

static hp_symm_call call_of(hp_symm memory, hp_symm_what what) {
    hp_symm_call call = {.size = sizeof call,
                         .what = what,
                         .memory = memory,
                         .offset = DATA,
                         .signal = memory,
                         .signal_offset = WORD};
    return call;
}

static void produce(hp_symm memory, int how, const struct change *c, const uint64_t *data,
                    hp_stream *stream) {
    hp_symm_call call = call_of(memory, how & 1 ? HP_SYMM_PUT_SIGNAL : HP_SYMM_PUT);
    call.source = data;
    call.bytes = 8;
    call.op = how & 2 ? HP_SIGNAL_ADD : HP_SIGNAL_SET;
    call.value = how & 2 ? c->after - c->before : c->after;
    call.rank = 1;
    call.stream = how & 4 ? stream : NULL;
    RANK_OK(hp_symm_run(&call));
    if (how & 1)
        return;
    call.what = HP_SYMM_SIGNAL;
    RANK_OK(hp_symm_run(&call));
}

static void consume(hp_symm memory, int how, const struct change *c, uint64_t *out_data,
                    hp_stream *stream) {
    hp_symm_call wait = call_of(memory, HP_SYMM_WAIT), get = call_of(memory, HP_SYMM_GET);
    wait.compare = c->compare;
    wait.value = c->value;
    get.target = out_data;
    get.bytes = 8;
    get.rank = 1;
    wait.stream = get.stream = how & 8 ? stream : NULL;
    RANK_OK(hp_symm_run(&wait));
    RANK_OK(hp_symm_run(&get));
}

static void pairs_body(hp_world *world, void *argument) {
    const int rank = hp_world_rank(world);
    hp_stream *stream = NULL;
    hp_symm memory;
    (void)argument;
    RANK_OK(hp_stream_create(NULL, &stream));
    RANK_OK(hp_symm_alloc(world, NULL, 256, 0, &memory));
    for (int how = 0; how < N_HOWS; how++)
        for (int k = 0; k < N_CHANGES; k++) {
            const uint64_t data = (uint64_t)(how * 100 + k);
            uint64_t got = UINT64_MAX;
            if (rank == 1)
                RANK_OK(hp_symm_signal(memory, WORD, HP_SIGNAL_SET, changes[k].before, 1, NULL));
            RANK_OK(hp_barrier(hp_world_group(world)));
            if (rank == 0)
                produce(memory, how, &changes[k], &data, stream);
            else
                consume(memory, how, &changes[k], &got, stream);
            RANK_OK(hp_stream_synchronize(stream));
            RANK_CHECK(rank == 0 || got == data);
            RANK_OK(hp_barrier(hp_world_group(world)));
        }
    RANK_OK(hp_symm_free(memory));
    hp_stream_destroy(stream);
}

static void S9_every_producer_with_every_waiter(void **state) {
    (void)state;
    on_both(2, pairs_body);
}

/* What hp_symm_run checks at once, on a stream too; and what it finds out when the turn comes. */
static void refused_body(hp_world *world, void *argument) {
    hp_stream *stream = NULL;
    hp_symm memory;
    uint64_t data = 1;
    (void)argument;
    RANK_OK(hp_symm_alloc(world, NULL, 256, 0, &memory));
    for (int k = 0; k < 2; k++) {
        hp_symm_call good = call_of(memory, HP_SYMM_PUT_SIGNAL);
        good.source = &data;
        good.bytes = 8;
        good.stream = stream;
        RANK_FAILS(hp_symm_run(NULL), HP_ERR_ARGUMENT);
        hp_symm_call call = good;
        call.size = 3;
        RANK_FAILS(hp_symm_run(&call), HP_ERR_VERSION);
        call = good;
        call.what = (hp_symm_what)9;
        RANK_FAILS(hp_symm_run(&call), HP_ERR_ARGUMENT);
        call = good;
        call.source = NULL;
        RANK_FAILS(hp_symm_run(&call), HP_ERR_ARGUMENT);
        call = good;
        call.bytes = 129;
        RANK_FAILS(hp_symm_run(&call), HP_ERR_ARGUMENT);
        call = good;
        call.signal_offset = 12;
        RANK_FAILS(hp_symm_run(&call), HP_ERR_ARGUMENT);
        call = good;
        call.rank = hp_world_size(world);
        RANK_FAILS(hp_symm_run(&call), HP_ERR_ARGUMENT);
        call = good;
        call.op = (hp_signal_op)2;
        RANK_FAILS(hp_symm_run(&call), HP_ERR_ARGUMENT);
        call = good;
        call.what = HP_SYMM_WAIT;
        call.compare = (hp_compare)6;
        RANK_FAILS(hp_symm_run(&call), HP_ERR_ARGUMENT);
        call = good;
        call.signal.id++;
        RANK_FAILS(hp_symm_run(&call), HP_ERR_HANDLE);
        if (!stream)
            RANK_OK(hp_stream_create(NULL, &stream));
    }
    RANK_OK(hp_stream_synchronize(stream)); /* nothing wrong was put on it */
    /* a time-out on the stream is the stream's failure, with its text */
    hp_symm_call late = call_of(memory, HP_SYMM_WAIT);
    late.compare = HP_EQ;
    late.value = 77;
    late.timeout_ms = 20;
    late.stream = stream;
    RANK_OK(hp_symm_run(&late));
    RANK_FAILS(hp_stream_synchronize(stream), HP_ERR_TIMEOUT);
    RANK_CHECK(strstr(hp_last_error(), "symm_wait"));
    RANK_FAILS(hp_symm_run(&late), HP_ERR_TIMEOUT);
    hp_stream_destroy(stream);
    RANK_OK(hp_symm_free(memory));
}

static void S9_full_form_refuses_at_once(void **state) {
    (void)state;
    on_threads(2, refused_body);
}

/* ---- S11 (hyper-parallel#566): a put through a freed tensor hit whoever had the block next ----
 */

static void stale_body(hp_world *world, void *argument) {
    const int rank = hp_world_rank(world);
    hp_symm old, next;
    uint64_t data = 5;
    void *place = NULL;
    (void)argument;
    RANK_OK(hpi_symm_poison(world, true));
    RANK_OK(hp_symm_alloc(world, NULL, 64, 0, &old));
    RANK_OK(hp_symm_pointer(old, rank, NULL, &place));
    RANK_OK(hp_symm_free(old));
    RANK_CHECK(*(const unsigned char *)place == 0xdb); /* freed memory shows */
    RANK_OK(hp_symm_alloc(world, NULL, 64, 0, &next)); /* at the same place */
    RANK_FAILS(hp_symm_put(old, 0, &data, 8, 1 - rank, NULL), HP_ERR_HANDLE);
    RANK_FAILS(hp_symm_get(&data, old, 0, 8, rank, NULL), HP_ERR_HANDLE);
    RANK_FAILS(hp_symm_signal(old, 0, HP_SIGNAL_ADD, 1, rank, NULL), HP_ERR_HANDLE);
    RANK_FAILS(hp_symm_put_signal(next, 0, &data, 8, old, 0, HP_SIGNAL_SET, 1, 1 - rank, NULL),
               HP_ERR_HANDLE); /* the data has not moved either */
    RANK_FAILS(hp_symm_wait(old, 0, HP_EQ, 0, 0), HP_ERR_HANDLE);
    RANK_FAILS(hp_symm_free(old), HP_ERR_HANDLE);
    RANK_OK(hp_barrier(hp_world_group(world)));
    RANK_OK(hp_symm_get(&data, next, 0, 8, rank, NULL));
    RANK_CHECK(data == 0);
    RANK_OK(hp_symm_free(next));
}

static void S11_stale_handle(void **state) {
    (void)state;
    on_both(2, stale_body);
}

/* ---- S12 (hicann/shmem): sizes that differ gave wrong data and no error ---- */

static void sizes_differ_body(hp_world *world, void *argument) {
    const int rank = hp_world_rank(world);
    hp_symm memory = {0};
    (void)argument;
    RANK_FAILS(hp_symm_alloc(world, NULL, rank == 2 ? 4096 : 64, 0, &memory), HP_ERR_MISMATCH);
    RANK_CHECK(strstr(hp_last_error(), "rank 2") && strstr(hp_last_error(), "4096") &&
               strstr(hp_last_error(), "64"));
    RANK_CHECK(!memory.id);
    RANK_OK(hp_symm_alloc(world, NULL, 64, 0, &memory)); /* they can go on */
    RANK_OK(hp_symm_free(memory));
}

static void S12_sizes_differ(void **state) {
    (void)state;
    on_both(4, sizes_differ_body);
}

/* ---- S14 (SOS#963): what a team took was not given back ---- */

/* More groups than there are at once, a few alive at a time, destroyed in an order that differs
 * between ranks; the last ones work. */
static void churn_body(hp_world *world, void *argument) {
    enum { N_GROUPS = 10000, ALIVE = 8 };
    static const int members[4][3] = {{0, 1, 2}, {2, 0, 1}, {1, 2, 0}, {2, 1, 0}};
    hp_group *groups[ALIVE] = {NULL};
    uint64_t seed = (uint64_t)hp_world_rank(world) + 1, shared = 9;
    (void)argument;
    for (int i = 0; i < N_GROUPS; i++) {
        const int slot = (int)(hpi_random_next(&seed) % ALIVE); /* of this rank's own choice */
        hp_group_destroy(groups[slot]);
        groups[slot] = NULL;
        RANK_OK(hp_group_create(world, members[hpi_random_next(&shared) % 4], 3, &groups[slot]));
        if (i % 500 == 499)
            RANK_OK(hp_barrier(groups[slot]));
    }
    for (int i = 0; i < ALIVE; i++)
        hp_group_destroy(groups[i]);
    RANK_OK(hp_barrier(hp_world_group(world)));
}

static void S14_ten_thousand_groups(void **state) {
    (void)state;
    on_threads(3, churn_body);
}

/* ---- S15 (DeepEP#478): a team was split before all were there ---- */

static void late_split_body(hp_world *world, void *argument) {
    const int rank = hp_world_rank(world), n = hp_world_size(world);
    hp_group *half = NULL;
    int64_t in = rank, sum = 0;
    (void)argument;
    if (rank == n - 1)
        hpi_sleep_ns(500000000);
    RANK_OK(hp_group_split(hp_world_group(world), rank % 2, -rank, &half));
    RANK_CHECK(hp_group_size(half) == n / 2);
    RANK_CHECK(hp_group_rank(half) == n / 2 - 1 - rank / 2);
    RANK_OK(hp_all_reduce(half, &in, &sum, 1, HP_INT64, HP_SUM));
    RANK_CHECK(sum == (rank % 2 ? 1 + 3 : 0 + 2));
    hp_group_destroy(half);
}

static void S15_split_with_one_rank_late(void **state) {
    (void)state;
    ranks_run(4, RANKS_PROCESSES, late_split_body, NULL);
}

/* ---- S18 (gloo#484): asynchronous operations from several threads were not safe ---- */

/* Four streams a rank: a group each for sums on three of them, messages on the first group beside
 * its sums on the fourth. */
static void four_streams_body(hp_world *world, void *argument) {
    enum { ROUNDS = 60, COUNT = 300 };
    const int rank = hp_world_rank(world), n = hp_world_size(world);
    hp_group *groups[3] = {hp_world_group(world), NULL, NULL};
    hp_stream *streams[4];
    int32_t *in = calloc(ROUNDS * COUNT, sizeof *in),
            *out = calloc(3 * ROUNDS * COUNT, sizeof *out);
    int64_t sent[ROUNDS], got[ROUNDS];
    (void)argument;
    RANK_CHECK(in && out);
    RANK_OK(hp_group_duplicate(groups[0], &groups[1]));
    RANK_OK(hp_group_split(groups[0], 0, -rank, &groups[2]));
    for (int i = 0; i < 4; i++)
        RANK_OK(hp_stream_create(NULL, &streams[i]));
    for (int i = 0; i < ROUNDS * COUNT; i++)
        in[i] = i + rank;
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < 5; i++) {
            hp_coll_call call = HP_COLL_CALL_INIT;
            call.what = HP_ALL_REDUCE;
            call.group = groups[i % 3];
            call.in = in + round * COUNT;
            call.out = out + (i % 3 * ROUNDS + round) * COUNT;
            call.count = COUNT;
            call.dtype = HP_INT32;
            call.stream = streams[i < 3 ? i : 3];
            if (i >= 3) {
                sent[round] = round * 10 + rank;
                call.what = i == 3 ? HP_SEND : HP_RECV;
                call.group = groups[0];
                call.in = &sent[round];
                call.out = &got[round];
                call.count = 1;
                call.dtype = HP_INT64;
                call.rank = (rank + (i == 3 ? 1 : n - 1)) % n;
            }
            RANK_OK(hp_coll_run(&call));
        }
    for (int i = 0; i < 4; i++)
        RANK_OK(hp_stream_synchronize(streams[i]));
    for (int i = 0; i < 3 * ROUNDS * COUNT; i++)
        RANK_CHECK(out[i] == n * (i % (ROUNDS * COUNT)) + n * (n - 1) / 2);
    for (int round = 0; round < ROUNDS; round++)
        RANK_CHECK(got[round] == round * 10 + (rank + n - 1) % n);
    for (int i = 0; i < 4; i++)
        hp_stream_destroy(streams[i]);
    hp_group_destroy(groups[1]);
    hp_group_destroy(groups[2]);
    free(in);
    free(out);
}

static void S18_four_threads_on_three_groups(void **state) {
    (void)state;
    on_both(3, four_streams_body);
}

/* ---- S19 (vllm-ascend#3988): a ready flag was visible before its payload ---- */

static void S19_payload_before_flag(void **state) {
    uint64_t n = 100000;
    (void)state;
    ranks_run(2, RANKS_THREADS, payload_then_flag_body, &n);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(S1_signals_of_overlapping_groups),
        cmocka_unit_test(S2_subgroup_then_world_in_100_orders),
        cmocka_unit_test(S4_allocation_crosses_a_collective),
        cmocka_unit_test(S4_first_message_crosses_an_allocation),
        cmocka_unit_test(S5_one_group_from_two_threads),
        cmocka_unit_test(S6_nobody_goes_on_before_the_signal),
        cmocka_unit_test(S8_every_rank_and_offset),
        cmocka_unit_test(S9_every_producer_with_every_waiter),
        cmocka_unit_test(S9_full_form_refuses_at_once),
        cmocka_unit_test(S11_stale_handle),
        cmocka_unit_test(S12_sizes_differ),
        cmocka_unit_test(S14_ten_thousand_groups),
        cmocka_unit_test(S15_split_with_one_rank_late),
        cmocka_unit_test(S18_four_threads_on_three_groups),
        cmocka_unit_test(S19_payload_before_flag),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * test_mailbox.c - send and receive: order, every size and dtype, and every way to go wrong.
 *
 * A message's bytes follow from its number, so that one that is lost, doubled, overtaken or cut is
 * seen. Where a sender must not have waited, a barrier between its return and the receiver's first
 * look says so; nothing depends on how long something takes but what must end within a second.
 */
#include "coll/message/mailbox.h"
#include "support/ranks.h"
#include "world/inside.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static void fill(void *out, uint64_t bytes, uint64_t number) {
    unsigned char *at = out;
    uint64_t seed = number * 1000003 + bytes;
    for (uint64_t i = 0; i < bytes; i += 8) {
        const uint64_t word = hpi_random_next(&seed);
        memcpy(at + i, &word, hpi_min(8, bytes - i));
    }
}

static bool is_filled(const void *data, uint64_t bytes, uint64_t number) {
    const unsigned char *at = data;
    uint64_t seed = number * 1000003 + bytes;
    for (uint64_t i = 0; i < bytes; i += 8) {
        const uint64_t word = hpi_random_next(&seed);
        if (memcmp(at + i, &word, hpi_min(8, bytes - i)) != 0)
            return false;
    }
    return true;
}

static void *allocate(uint64_t bytes) {
    void *memory = malloc(bytes);
    RANK_CHECK(memory);
    return memory;
}

/* ---- order ---- */

enum { N_MESSAGES = 10000, WINDOW = 8, N_FIFO_GROUPS = 3, MOST_BYTES = 2 * HPI_CELL_BYTES };

typedef struct message {
    int group;
    hp_dtype dtype;
    uint64_t count, number; /* number: on its group */
} message;

/* The same list on both sides. Most are short, some take two cells. */
static void make_messages(message *out, int n) {
    uint64_t seed = 5, numbers[N_FIFO_GROUPS] = {0};
    for (int i = 0; i < n; i++) {
        const uint64_t r = hpi_random_next(&seed), size = hpi_random_next(&seed);
        message *m = &out[i];
        m->group = (int)(r % N_FIFO_GROUPS);
        m->dtype = (hp_dtype)(r / 16 % (HP_UINT8 + 1));
        m->count = size % (r / 256 % 16 ? 600 : MOST_BYTES) / hp_dtype_size(m->dtype);
        m->number = numbers[m->group]++;
    }
}

/* Groups of one pair of ranks, in both orders of members. */
static void make_groups(hp_world *world, hp_group **out) {
    RANK_OK(hp_group_create(world, (int[]){0, 1}, 2, &out[0]));
    RANK_OK(hp_group_create(world, (int[]){1, 0}, 2, &out[1]));
    RANK_OK(hp_group_duplicate(out[0], &out[2]));
}

/* Rank 0 sends over three groups; rank 1 reads them in another order, a window of messages at a
 * time (no more than a ring holds): groups do not hold each other up, and each is in order. */
static void fifo_body(hp_world *world, void *argument) {
    const int rank = hp_world_rank(world), n = *(int *)argument;
    message *messages = allocate((size_t)n * sizeof *messages);
    unsigned char *data = allocate(MOST_BYTES);
    hp_group *groups[N_FIFO_GROUPS];
    make_messages(messages, n);
    make_groups(world, groups);
    for (int first = 0; first < n; first += WINDOW)
        for (int g = 0; g < N_FIFO_GROUPS; g++)
            for (int i = first; i < first + WINDOW && i < n; i++) {
                const message *m = &messages[i];
                const uint64_t bytes = m->count * hp_dtype_size(m->dtype);
                const uint64_t number = m->number * N_FIFO_GROUPS + (uint64_t)m->group;
                if (rank == 0 && g == 0) { /* all groups, as the list goes */
                    fill(data, bytes, number);
                    RANK_OK(hp_send(groups[m->group], data, m->count, m->dtype,
                                    1 - hp_group_rank(groups[m->group])));
                } else if (rank == 1 && m->group == N_FIFO_GROUPS - 1 - g) {
                    memset(data, 0, bytes);
                    RANK_OK(hp_recv(groups[m->group], data, m->count, m->dtype,
                                    1 - hp_group_rank(groups[m->group])));
                    RANK_CHECK(is_filled(data, bytes, number));
                }
            }
    RANK_OK(hp_barrier(hp_world_group(world)));
    for (int g = 0; g < N_FIFO_GROUPS; g++)
        hp_group_destroy(groups[g]);
    free(data);
    free(messages);
}

/* ---- sizes, memory, alignment ---- */

static const uint64_t sizes[] = {0,
                                 1,
                                 7,
                                 64,
                                 HPI_CELL_BYTES - 1,
                                 HPI_CELL_BYTES,
                                 HPI_CELL_BYTES + 1,
                                 HPI_N_CELLS *HPI_CELL_BYTES - 1,
                                 HPI_N_CELLS *HPI_CELL_BYTES,
                                 HPI_N_CELLS *HPI_CELL_BYTES + 1,
                                 HPI_PLACED_BYTES + 17,
                                 HPI_ACROSS_BYTES + 17};
enum { N_SIZES = sizeof sizes / sizeof *sizes, GUARD = 64 };

static void one_way(hp_group *group, int source, unsigned char *data, uint64_t bytes) {
    if (hp_group_rank(group) == source) {
        fill(data, bytes, (uint64_t)source);
        RANK_OK(hp_send(group, data, bytes, HP_UINT8, 1 - source));
        RANK_CHECK(is_filled(data, bytes, (uint64_t)source));
        return;
    }
    memset(data - GUARD, 0xa5, bytes + 2 * GUARD);
    RANK_OK(hp_recv(group, data, bytes, HP_UINT8, source));
    RANK_CHECK(is_filled(data, bytes, (uint64_t)source));
    for (int i = 0; i < GUARD; i++)
        RANK_CHECK(data[-1 - i] == 0xa5 && data[bytes + (uint64_t)i] == 0xa5);
}

static void sizes_body(hp_world *world, void *argument) {
    const uint64_t room = sizes[N_SIZES - 1] + 4 * GUARD;
    hp_group *group = hp_world_group(world);
    unsigned char *ordinary = allocate(room);
    void *shared = NULL;
    hp_symm memory;
    (void)argument;
    RANK_OK(hp_symm_alloc(world, NULL, room, 0, &memory));
    RANK_OK(hp_symm_pointer(memory, hp_world_rank(world), NULL, &shared));
    for (int k = 0; k < N_SIZES; k++)
        for (int kind = 0; kind < 4; kind++) {
            const int rank = hp_world_rank(world), off = GUARD + k % 3 + rank;
            unsigned char *place = (kind >> rank & 1 ? (unsigned char *)shared : ordinary) + off;
            one_way(group, 0, place, sizes[k]);
            one_way(group, 1, place, sizes[k]);
        }
    RANK_OK(hp_symm_free(memory));
    free(ordinary);
}

/* Memory of a group that the receiver is not in cannot be read where it lies. */
static void foreign_body(hp_world *world, void *argument) {
    enum { BYTES = 100000 };
    const int rank = hp_world_rank(world);
    unsigned char *data = allocate(BYTES);
    hp_group *alone = NULL;
    hp_symm memory = {0};
    void *place = data;
    (void)argument;
    if (rank == 0) {
        RANK_OK(hp_group_create(world, &rank, 1, &alone));
        RANK_OK(hp_symm_alloc(world, alone, BYTES, 0, &memory));
        RANK_OK(hp_symm_pointer(memory, 0, NULL, &place));
        fill(place, BYTES, 3);
        RANK_OK(hp_send(hp_world_group(world), place, BYTES, HP_UINT8, 1));
    } else {
        RANK_OK(hp_recv(hp_world_group(world), data, BYTES, HP_UINT8, 0));
        RANK_CHECK(is_filled(data, BYTES, 3));
    }
    RANK_OK(hp_symm_free(memory));
    hp_group_destroy(alone);
    free(data);
}

/* ---- to and fro ---- */

static void one_of_them(hp_group *group, int from, unsigned char *data, uint64_t bytes,
                        uint64_t seed) {
    const int rank = hp_group_rank(group);
    fill(data, bytes, rank == from ? seed : ~seed);
    if (rank == from) {
        RANK_OK(hp_send(group, data, bytes, HP_INT8, 1 - from));
        fill(data, bytes, ~seed);
    } else {
        RANK_OK(hp_recv(group, data, bytes, HP_INT8, from));
        RANK_CHECK(is_filled(data, bytes, seed));
    }
}

static void both_at_once(hp_group *group, unsigned char *data, uint64_t bytes, uint64_t seed) {
    enum { N_EACH = 3 };
    const uint64_t rank = (uint64_t)hp_group_rank(group);
    for (uint64_t k = 0; k < N_EACH; k++) {
        fill(data, bytes, seed + 2 * k + rank);
        RANK_OK(hp_send(group, data, bytes, HP_INT8, 1 - (int)rank));
    }
    for (uint64_t k = 0; k < N_EACH; k++) {
        RANK_OK(hp_recv(group, data, bytes, HP_INT8, 1 - (int)rank));
        RANK_CHECK(is_filled(data, bytes, seed + 2 * k + 1 - rank));
    }
}

/* Answers, several messages behind each other, and both at once: who has a piece sends in it, and
 * none is written while somebody reads it. */
static void to_and_fro_body(hp_world *world, void *argument) {
    enum { N_ROUNDS = 300, MOST = 300000 };
    static const uint64_t lengths[] = {1025, 5000, 70000, MOST};
    hp_group *group = hp_world_group(world);
    unsigned char *data = allocate(MOST);
    uint64_t seed = 11, late = (uint64_t)hp_group_rank(group);
    (void)argument;
    for (uint64_t i = 0; i < N_ROUNDS; i++) {
        const uint64_t kind = hpi_random_next(&seed) % 3,
                       bytes = lengths[hpi_random_next(&seed) % 4];
        const int n_behind = kind == 0 ? 1 : 3;
        if (hpi_random_next(&late) % 8 == 0)
            hpi_sleep_ns(100000);
        for (int k = 0; k < 2 * n_behind && kind < 2; k++)
            one_of_them(group, k / n_behind, data, bytes, i * 10 + (uint64_t)k);
        if (kind == 2)
            both_at_once(group, data, lengths[0], i * 10);
    }
    free(data);
}

/* ---- at once ---- */

enum { RING_BYTES = HPI_FLOW_BYTES + (1 << 20) };

/* Everybody sends to the right, on a stream, while it receives from the left; then both on streams.
 * What is longer than a ring of cells would wait for ever otherwise. */
static void ring_body(hp_world *world, void *argument) {
    const int n = hp_world_size(world), rank = hp_world_rank(world);
    const int left = (rank + n - 1) % n, right = (rank + 1) % n;
    unsigned char *out = allocate(RING_BYTES), *in = allocate(RING_BYTES);
    hp_stream *sending = NULL, *receiving = NULL;
    (void)argument;
    RANK_OK(hp_stream_create(NULL, &sending));
    RANK_OK(hp_stream_create(NULL, &receiving));
    for (int round = 0; round < 6; round++) {
        hp_coll_call call = HP_COLL_CALL_INIT;
        call.group = hp_world_group(world);
        call.count = RING_BYTES;
        call.dtype = HP_INT8;
        fill(out, RING_BYTES, (uint64_t)(rank * 10 + round));
        call.what = HP_SEND;
        call.in = out;
        call.rank = right;
        call.stream = sending;
        RANK_OK(hp_coll_run(&call));
        call.what = HP_RECV;
        call.out = in;
        call.rank = left;
        call.stream = round % 2 ? receiving : NULL;
        RANK_OK(hp_coll_run(&call));
        RANK_OK(hp_stream_synchronize(receiving));
        RANK_CHECK(is_filled(in, RING_BYTES, (uint64_t)(left * 10 + round)));
        RANK_OK(hp_stream_synchronize(sending));
    }
    hp_stream_destroy(receiving);
    hp_stream_destroy(sending);
    free(in);
    free(out);
}

/* The thread that sends and the one that receives share the pieces that go to and fro. */
static void at_once_body(hp_world *world, void *argument) {
    enum { N_MESSAGES_EACH = 400, BYTES = 3000 };
    const int rank = hp_world_rank(world);
    unsigned char *out = allocate(N_MESSAGES_EACH * BYTES), *in = allocate(BYTES);
    hp_stream *sending = NULL;
    (void)argument;
    RANK_OK(hp_stream_create(NULL, &sending));
    for (uint64_t i = 0; i < N_MESSAGES_EACH; i++) {
        hp_coll_call call = HP_COLL_CALL_INIT;
        call.what = HP_SEND;
        call.group = hp_world_group(world);
        call.in = out + i * BYTES;
        call.count = BYTES;
        call.dtype = HP_INT8;
        call.rank = 1 - rank;
        call.stream = sending;
        fill(out + i * BYTES, BYTES, 2 * i + (uint64_t)rank);
        RANK_OK(hp_coll_run(&call));
    }
    for (uint64_t i = 0; i < N_MESSAGES_EACH; i++) {
        RANK_OK(hp_recv(hp_world_group(world), in, BYTES, HP_INT8, 1 - rank));
        RANK_CHECK(is_filled(in, BYTES, 2 * i + 1 - (uint64_t)rank));
    }
    RANK_OK(hp_stream_synchronize(sending));
    hp_stream_destroy(sending);
    free(in);
    free(out);
}

/* Messages and collectives of one group go on beside each other. */
static void beside_collectives_body(hp_world *world, void *argument) {
    enum { ROUNDS = 200 };
    const int rank = hp_world_rank(world);
    hp_group *group = hp_world_group(world);
    hp_stream *stream = NULL;
    int64_t in[ROUNDS], sum;
    (void)argument;
    RANK_OK(hp_stream_create(NULL, &stream));
    for (int64_t i = 0; i < ROUNDS; i++) {
        hp_coll_call call = HP_COLL_CALL_INIT;
        call.what = rank == 0 ? HP_SEND : HP_RECV;
        call.group = group;
        in[i] = rank == 0 ? i * 7 : -1;
        call.in = call.out = &in[i];
        call.count = 1;
        call.dtype = HP_INT64;
        call.rank = 1 - rank;
        call.stream = stream;
        RANK_OK(hp_coll_run(&call));
        RANK_OK(hp_all_reduce(group, &i, &sum, 1, HP_INT64, HP_SUM));
        RANK_CHECK(sum == 2 * i);
    }
    RANK_OK(hp_stream_synchronize(stream));
    for (int64_t i = 0; i < ROUNDS; i++)
        RANK_CHECK(in[i] == i * 7);
    hp_stream_destroy(stream);
}

typedef struct receiver {
    hp_group *group;
    _Atomic int status;
    int got;
} receiver;

static void *receive_one(void *argument) {
    receiver *r = argument;
    atomic_store(&r->status, hp_recv(r->group, &r->got, 1, HP_INT32, 1));
    return NULL;
}

/* Two threads that receive from one rank: one of them is told so, and the message comes. */
static void busy_body(hp_world *world, void *argument) {
    hp_group *group = hp_world_group(world);
    (void)argument;
    if (hp_world_rank(world) == 0) {
        receiver r[2] = {{group, HP_OK, 0}, {group, HP_OK, 0}};
        pthread_t threads[2];
        const int go = 1;
        for (int i = 0; i < 2; i++)
            RANK_CHECK(pthread_create(&threads[i], NULL, receive_one, &r[i]) == 0);
        /* the one that is refused ends by itself; only then comes the message */
        while (atomic_load(&r[0].status) != HP_ERR_BUSY && atomic_load(&r[1].status) != HP_ERR_BUSY)
            hpi_sleep_ns(1000000);
        RANK_OK(hp_send(group, &go, 1, HP_INT32, 1)); /* the other direction is free */
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        RANK_CHECK(r[0].status + r[1].status == HP_ERR_BUSY);
        RANK_CHECK(r[0].got + r[1].got == 42);
    } else {
        int go = 0;
        const int answer = 42;
        RANK_OK(hp_recv(group, &go, 1, HP_INT32, 0));
        RANK_OK(hp_send(group, &answer, 1, HP_INT32, 0));
    }
}

/* ---- what is buffered ---- */

/* As many messages as there are cells are sent before the receiver looks; the sender even destroys
 * the group, twice as often as would fit if nothing came back. */
static void buffered_body(hp_world *world, void *argument) {
    const int rank = hp_world_rank(world);
    unsigned char data[100];
    hp_symm_stats stats;
    (void)argument;
    for (uint64_t round = 0; round < 20; round++) {
        hp_group *group = NULL;
        RANK_OK(hp_group_create(world, (int[]){0, 1}, 2, &group));
        for (uint64_t i = 0; rank == 0 && i < HPI_N_CELLS; i++) {
            fill(data, sizeof data, round * 100 + i);
            RANK_OK(hp_send(group, data, sizeof data, HP_UINT8, 1));
        }
        if (rank == 0)
            hp_group_destroy(group);
        RANK_OK(hp_barrier(hp_world_group(world)));
        for (uint64_t i = 0; rank == 1 && i < HPI_N_CELLS; i++) {
            RANK_OK(hp_recv(group, data, sizeof data, HP_UINT8, 0));
            RANK_CHECK(is_filled(data, sizeof data, round * 100 + i));
        }
        if (rank == 1)
            hp_group_destroy(group);
        RANK_OK(hp_barrier(hp_world_group(world)));
    }
    RANK_OK(hp_symm_stats_get(world, &stats));
    RANK_CHECK(stats.allocated_bytes <= 2 * HPI_N_CELLS * sizeof(hpi_cell));
    RANK_CHECK(stats.peak_bytes <= 3 * HPI_N_CELLS * sizeof(hpi_cell));
}

/* Messages that nobody ever reads keep their memory only until the last member has left. */
static void unread_body(hp_world *world, void *argument) {
    const int rank = hp_world_rank(world);
    hp_symm_stats stats;
    (void)argument;
    for (int i = 0; i < 50; i++) {
        hp_group *group = NULL;
        RANK_OK(hp_group_create(world, (int[]){0, 1}, 2, &group));
        RANK_OK(hp_send(group, &i, 1, HP_INT32, 1 - rank));
        hp_group_destroy(group);
        RANK_OK(hp_barrier(hp_world_group(world)));
    }
    RANK_OK(hp_symm_stats_get(world, &stats));
    RANK_CHECK(stats.peak_bytes <= 3 * HPI_N_CELLS * sizeof(hpi_cell));
}

/* ---- disagreement ---- */

typedef struct disagreement {
    uint64_t sent, wanted;
    hp_dtype sent_dtype, wanted_dtype;
} disagreement;

/* Both learn of it, in the same words; a sender that had not waited learns with its next call. */
static void mismatch_body(hp_world *world, void *argument) {
    const disagreement *d = argument;
    const int rank = hp_world_rank(world);
    hp_group *group = hp_world_group(world);
    unsigned char *data = allocate(d->sent * 8 + d->wanted * 8 + 8);
    char sent[64], wanted[64];
    int good = 5;
    memset(data, 0, 8);
    hp_status status;
    if (rank == 0) {
        RANK_OK(hp_send(group, &good, 1, HP_INT32, 1));
        status = hp_send(group, data, d->sent, d->sent_dtype, 1);
        for (int i = 0; i < 100000 && status == HP_OK; i++)
            status = hp_send(group, &good, 1, HP_INT32, 1);
    } else {
        RANK_OK(hp_recv(group, &good, 1, HP_INT32, 0));
        status = hp_recv(group, data, d->wanted, d->wanted_dtype, 0);
    }
    RANK_CHECK(status == HP_ERR_MISMATCH);
    snprintf(sent, sizeof sent, "%llu %s", (unsigned long long)d->sent,
             hp_dtype_name(d->sent_dtype));
    snprintf(wanted, sizeof wanted, "%llu %s", (unsigned long long)d->wanted,
             hp_dtype_name(d->wanted_dtype));
    RANK_CHECK(strstr(hp_last_error(), sent) && strstr(hp_last_error(), wanted));
    RANK_CHECK(strstr(hp_last_error(), "message 2"));
    RANK_FAILS(hp_send(group, &good, 1, HP_INT32, 1 - rank), HP_ERR_MISMATCH); /* stays failed */
    RANK_FAILS(hp_barrier(group), HP_ERR_MISMATCH);
    free(data);
}

/* A sender that never waits, and for another rank than the one that refused, learns of it too. */
static void third_body(hp_world *world, void *argument) {
    const int rank = hp_world_rank(world);
    hp_group *group = hp_world_group(world);
    int64_t data = 3;
    hp_status status = HP_OK;
    (void)argument;
    if (rank == 1)
        status = hp_recv(group, &data, 1, HP_FP64, 0);
    if (rank == 0)
        RANK_OK(hp_send(group, &data, 1, HP_INT64, 1));
    for (int i = 0; rank == 0 && i < 100 && status == HP_OK; i++) {
        hpi_sleep_ns(20000000);
        status = hp_send(group, &data, 1, HP_INT64, 2);
    }
    if (rank == 2)
        while ((status = hp_recv(group, &data, 1, HP_INT64, 0)) == HP_OK) {
        }
    RANK_CHECK(status == HP_ERR_MISMATCH);
    RANK_CHECK(strstr(hp_last_error(), "1 int64") && strstr(hp_last_error(), "1 fp64"));
}

/* ---- ends ---- */

/* Rank 1 dies; what rank 0 does then: 0 receives, 1 sends short messages, 2 a long one. */
static void death_body(hp_world *world, void *argument) {
    const int what = *(const int *)argument;
    hp_group *group = hp_world_group(world);
    unsigned char *data = allocate(RING_BYTES);
    int first = 1;
    if (hp_world_rank(world) == 1) {
        RANK_OK(hp_recv(group, &first, 1, HP_INT32, 0));
        free(data);
        ranks_die();
    }
    memset(data, 0, RING_BYTES);
    RANK_OK(hp_send(group, &first, 1, HP_INT32, 1));
    const uint64_t begin_ns = hpi_now_ns();
    hp_status status = HP_OK;
    if (what == 0)
        status = hp_recv(group, data, 10, HP_INT32, 1);
    for (; what == 1 && status == HP_OK; hpi_sleep_ns(20000000))
        status = hp_send(group, data, 10, HP_INT32, 1);
    if (what == 2)
        status = hp_send(group, data, RING_BYTES, HP_UINT8, 1);
    RANK_CHECK(status == HP_ERR_PEER);
    RANK_CHECK(strstr(hp_last_error(), "rank 1"));
    RANK_CHECK(hpi_now_ns() - begin_ns < UINT64_C(1000000000));
    free(data);
}

/* Everybody sends more than a ring holds and nobody receives: as with MPI_Send this cannot end, so
 * it ends at the deadline. */
static void stuck_body(hp_world *world, void *argument) {
    const int n = hp_world_size(world), rank = hp_world_rank(world);
    unsigned char *data = allocate(RING_BYTES);
    (void)argument;
    memset(data, 0, RING_BYTES);
    const hp_status status =
        hp_send(hp_world_group(world), data, RING_BYTES, HP_UINT8, (rank + 1) % n);
    RANK_CHECK(status == HP_ERR_TIMEOUT || status == HP_ERR_PEER);
    RANK_CHECK(strstr(hp_last_error(), "send"));
    free(data);
}

static void wait_until_sending(hp_world *world) {
    char text[256] = "";
    while (!strstr(text, "in send")) {
        hpi_sleep_ns(1000000);
        hpi_control_describe(hpi_world_control(world, hp_world_rank(world)), text, sizeof text);
    }
}

/* A sender whose data was to be read where it lies gives up, because of rank 2, and writes there:
 * who receives only then gets no mixture. */
static void late_body(hp_world *world, void *argument) {
    const int rank = hp_world_rank(world);
    hp_group *own = NULL;
    unsigned char *data = allocate(RING_BYTES);
    void *shared = NULL;
    hp_symm memory;
    int32_t word = 0;
    (void)argument;
    RANK_OK(hp_group_duplicate(hp_world_group(world), &own));
    RANK_OK(hp_symm_alloc(world, NULL, RING_BYTES, 0, &memory));
    RANK_OK(hp_symm_pointer(memory, rank, NULL, &shared));
    if (rank == 0) {
        hp_coll_call call = HP_COLL_CALL_INIT;
        call.what = HP_SEND;
        call.group = own;
        call.in = shared;
        call.count = RING_BYTES;
        call.dtype = HP_UINT8;
        call.rank = 1;
        RANK_OK(hp_stream_create(NULL, &call.stream));
        RANK_OK(hp_coll_run(&call));
        wait_until_sending(world);
        RANK_OK(hp_send(own, &word, 1, HP_INT32, 2));
        RANK_FAILS(hp_stream_synchronize(call.stream), HP_ERR_MISMATCH);
        hp_stream_destroy(call.stream);
        memset(shared, 1, RING_BYTES);
        RANK_OK(hp_symm_signal(memory, 0, HP_SIGNAL_SET, 1, 1, NULL));
    } else if (rank == 1) {
        RANK_OK(hp_symm_wait(memory, 0, HP_EQ, 1, 0));
        RANK_FAILS(hp_recv(own, data, RING_BYTES, HP_UINT8, 0), HP_ERR_MISMATCH);
    } else {
        RANK_FAILS(hp_recv(own, &word, 1, HP_FP32, 0), HP_ERR_MISMATCH);
    }
    RANK_OK(hp_symm_free(memory));
    hp_group_destroy(own);
    free(data);
}

/* The k-th allocation of the first message fails: both ranks learn of it, neither waits. */
static void no_memory_body(hp_world *world, void *argument) {
    const uint64_t k = *(const uint64_t *)argument;
    const int rank = hp_world_rank(world);
    int data = 1;
    hp_group *group = NULL;
    RANK_OK(hp_group_create(world, (int[]){0, 1}, 2, &group));
    RANK_OK(hp_barrier(hp_world_group(world)));
    const uint64_t begin_ns = hpi_now_ns();
    if (rank == 0)
        hpi_alloc_fail_after(k);
    const hp_status status =
        rank == 0 ? hp_send(group, &data, 1, HP_INT32, 1) : hp_recv(group, &data, 1, HP_INT32, 0);
    hpi_alloc_fail_after(0);
    RANK_CHECK(status == HP_OK || status == HP_ERR_MEMORY);
    RANK_CHECK(hpi_now_ns() - begin_ns < UINT64_C(1000000000));
    hp_group_destroy(group);
}

/* Rank 0's symmetric memory is full, but for what is free: 0 bytes, or its slots alone. */
static void full_heap_body(hp_world *world, void *argument) {
    const int rank = hp_world_rank(world);
    hp_group *alone = NULL, *group = hp_world_group(world);
    hp_symm_stats stats;
    hp_symm memory;
    int data = 1;
    RANK_OK(hp_group_create(world, &rank, 1, &alone));
    RANK_OK(hp_symm_stats_get(world, &stats));
    RANK_OK(hp_symm_alloc(world, alone, stats.free_bytes - *(uint64_t *)argument, 0, &memory));
    RANK_OK(hp_barrier(group));
    const uint64_t begin_ns = hpi_now_ns();
    RANK_FAILS(rank == 0 ? hp_send(group, &data, 1, HP_INT32, 1)
                         : hp_recv(group, &data, 1, HP_INT32, 0),
               HP_ERR_LIMIT);
    RANK_CHECK(strstr(hp_last_error(), "SYMMETRIC_MEMORY_HEAP_SIZE"));
    RANK_CHECK(hpi_now_ns() - begin_ns < UINT64_C(1000000000));
    RANK_OK(hp_symm_free(memory));
    hp_group_destroy(alone);
}

/* ---- arguments ---- */

static void arguments_body(hp_world *world, void *argument) {
    const int rank = hp_world_rank(world);
    hp_group *group = hp_world_group(world);
    int data = 0;
    (void)argument;
    RANK_FAILS(hp_send(NULL, &data, 1, HP_INT32, 0), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_recv(NULL, &data, 1, HP_INT32, 0), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_send(group, &data, 1, HP_INT32, rank), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_recv(group, &data, 1, HP_INT32, rank), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_send(group, &data, 1, HP_INT32, 2), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_send(group, &data, 1, HP_INT32, -1), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_send(group, &data, 1, (hp_dtype)99, 1 - rank), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_send(group, NULL, 1, HP_INT32, 1 - rank), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_recv(group, NULL, 1, HP_INT32, 1 - rank), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_send(group, &data, UINT64_MAX / 4 + 2, HP_INT32, 1 - rank), HP_ERR_ARGUMENT);
    RANK_CHECK(strstr(hp_last_error(), "2^63"));
    /* none of them has touched anything */
    if (rank == 0)
        RANK_OK(hp_send(group, NULL, 0, HP_FP64, 1));
    else
        RANK_OK(hp_recv(group, NULL, 0, HP_FP64, 0));
}

/* ---- the tests ---- */

#define RUN(name, n, kind, body)                                                                   \
    static void name(void **state) {                                                               \
        (void)state;                                                                               \
        ranks_run(n, kind, body, NULL);                                                            \
    }
RUN(test_sizes, 2, RANKS_THREADS, sizes_body)
RUN(test_sizes_of_processes, 2, RANKS_PROCESSES, sizes_body)
RUN(test_foreign_memory, 2, RANKS_THREADS, foreign_body)
RUN(test_to_and_fro, 2, RANKS_THREADS, to_and_fro_body)
RUN(test_to_and_fro_of_processes, 2, RANKS_PROCESSES, to_and_fro_body)
RUN(test_ring_on_streams, 4, RANKS_THREADS, ring_body)
RUN(test_ring_of_processes, 3, RANKS_PROCESSES, ring_body)
RUN(test_at_once, 2, RANKS_THREADS, at_once_body)
RUN(test_beside_collectives, 2, RANKS_THREADS, beside_collectives_body)
RUN(test_busy, 2, RANKS_THREADS, busy_body)
RUN(test_buffered, 2, RANKS_THREADS, buffered_body)
RUN(test_buffered_by_processes, 2, RANKS_PROCESSES, buffered_body)
RUN(test_unread, 2, RANKS_THREADS, unread_body)
RUN(test_late_receiver, 3, RANKS_PROCESSES, late_body)
RUN(test_arguments, 2, RANKS_THREADS, arguments_body)

static void test_order(void **state) {
    int n = N_MESSAGES, few = N_MESSAGES / 5;
    (void)state;
    ranks_run(2, RANKS_THREADS, fifo_body, &n);
    ranks_run(2, RANKS_PROCESSES, fifo_body, &few);
}

static void test_mismatch(void **state) {
    static const disagreement all[] = {{4, 5, HP_FP32, HP_FP32},
                                       {4, 4, HP_FP32, HP_INT32},
                                       {0, 1, HP_FP32, HP_FP32},
                                       {RING_BYTES, 1, HP_UINT8, HP_UINT8}};
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        disagreement d = all[i];
        ranks_run(2, i == 1 ? RANKS_PROCESSES : RANKS_THREADS, mismatch_body, &d);
    }
    ranks_run(3, RANKS_THREADS, third_body, NULL);
}

static void test_death(void **state) {
    (void)state;
    for (int what = 0; what < 3; what++)
        for (int kind = RANKS_THREADS; kind <= RANKS_PROCESSES; kind++)
            ranks_run(2, (ranks_kind)kind, death_body, &what);
}

static void test_no_memory(void **state) {
    (void)state;
    for (uint64_t k = 1; k <= 10; k++)
        ranks_run(2, RANKS_PROCESSES, no_memory_body, &k);
}

static void test_full_heap(void **state) {
    (void)state;
    setenv("SYMMETRIC_MEMORY_HEAP_SIZE", "4M", 1);
    for (uint64_t free_bytes = 0; free_bytes <= 4096; free_bytes += 4096)
        ranks_run(2, RANKS_THREADS, full_heap_body, &free_bytes);
    unsetenv("SYMMETRIC_MEMORY_HEAP_SIZE");
}

static void test_stuck_ring(void **state) {
    (void)state;
    setenv("SYMMETRIC_MEMORY_SIGNAL_TIMEOUT_MS", "300", 1);
    ranks_run(3, RANKS_THREADS, stuck_body, NULL);
    unsetenv("SYMMETRIC_MEMORY_SIGNAL_TIMEOUT_MS");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_sizes_of_processes),
        cmocka_unit_test(test_foreign_memory),
        cmocka_unit_test(test_to_and_fro),
        cmocka_unit_test(test_to_and_fro_of_processes),
        cmocka_unit_test(test_ring_on_streams),
        cmocka_unit_test(test_ring_of_processes),
        cmocka_unit_test(test_at_once),
        cmocka_unit_test(test_beside_collectives),
        cmocka_unit_test(test_busy),
        cmocka_unit_test(test_buffered),
        cmocka_unit_test(test_buffered_by_processes),
        cmocka_unit_test(test_unread),
        cmocka_unit_test(test_mismatch),
        cmocka_unit_test(test_death),
        cmocka_unit_test(test_late_receiver),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_full_heap),
        cmocka_unit_test(test_stuck_ring),
        cmocka_unit_test(test_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

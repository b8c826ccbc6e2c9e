/* SPDX-License-Identifier: Apache-2.0
 *
 * test_symm.c - the symmetric heap: places, handles, signals, and what must be refused.
 *
 * The list of free extents against a map of bytes; then ranks as threads: offsets that differ,
 * every (rank, offset) translated right, stale handles, sizes that differ. What has gone wrong for
 * others is in tests/field/test_symmetric_memory.c.
 */
#include "support/ranks.h"
#include "symm/heap.h"
#include "symm/symm.h"

#include <hyperparallel/coll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- the list of free extents ---- */

enum { HEAP_UNITS = 512, HEAP_BYTES = HEAP_UNITS * HPI_HEAP_UNIT, MOST_BLOCKS = 64 };

typedef struct taken {
    uint64_t offset, bytes;
} taken;

static void mark(bool *is_taken, taken t, bool value) {
    for (uint64_t u = 0; u < hpi_heap_room(t.bytes) / HPI_HEAP_UNIT; u++) {
        assert_int_equal(is_taken[t.offset / HPI_HEAP_UNIT + u], !value);
        is_taken[t.offset / HPI_HEAP_UNIT + u] = value;
    }
}

/* First fit by looking at every unit: UINT64_MAX when there is no place. */
static uint64_t first_fit(const bool *is_taken, uint64_t bytes, uint64_t alignment) {
    const uint64_t units = hpi_heap_room(bytes) / HPI_HEAP_UNIT;
    for (uint64_t at = 0; at + units <= HEAP_UNITS; at++) {
        uint64_t free = 0;
        while (free < units && !is_taken[at + free])
            free++;
        if (free == units && at * HPI_HEAP_UNIT % alignment == 0)
            return at * HPI_HEAP_UNIT;
    }
    return UINT64_MAX;
}

static void test_heap_is_first_fit(void **state) {
    hpi_heap heap;
    bool is_taken[HEAP_UNITS] = {false};
    taken blocks[MOST_BLOCKS];
    int n = 0;
    uint64_t seed = 7;
    (void)state;
    assert_int_equal(hpi_heap_init(&heap, HEAP_BYTES + 17), HP_OK);
    for (int i = 0; i < 20000; i++) {
        const uint64_t r = hpi_random_next(&seed);
        if (n < MOST_BLOCKS && r % 2) {
            taken t = {0, (r >> 8) % 2000};
            const uint64_t alignment = UINT64_C(1) << (r >> 40) % 11;
            const uint64_t place = first_fit(is_taken, t.bytes, alignment);
            const hp_status status = hpi_heap_take(&heap, t.bytes, alignment, &t.offset);
            assert_int_equal(status, place == UINT64_MAX ? HP_ERR_LIMIT : HP_OK);
            if (status < 0)
                continue;
            assert_int_equal(t.offset, place);
            mark(is_taken, t, true);
            blocks[n++] = t;
        } else if (n > 0) {
            const int k = (int)((r >> 8) % (uint64_t)n);
            mark(is_taken, blocks[k], false);
            hpi_heap_give(&heap, blocks[k].offset, blocks[k].bytes);
            blocks[k] = blocks[--n];
        }
        assert_int_equal(heap.n_live, n);
    }
    while (n > 0) {
        n--;
        hpi_heap_give(&heap, blocks[n].offset, blocks[n].bytes);
    }
    assert_int_equal(heap.n_free, 1); /* all merged again */
    assert_int_equal(heap.free[0].bytes, HEAP_BYTES);
    assert_int_equal(heap.used_bytes, 0);
    hpi_heap_fini(&heap);
}

static void test_heap_refuses(void **state) {
    hpi_heap heap;
    uint64_t offset = 1;
    (void)state;
    assert_int_equal(hpi_heap_init(&heap, HEAP_BYTES), HP_OK);
    assert_int_equal(hpi_heap_take(&heap, HEAP_BYTES + 1, 64, &offset), HP_ERR_LIMIT);
    assert_int_equal(hpi_heap_take(&heap, UINT64_MAX, 64, &offset), HP_ERR_LIMIT);
    assert_non_null(strstr(hp_last_error(), "SYMMETRIC_MEMORY_HEAP_SIZE"));
    assert_int_equal(hpi_heap_take(&heap, HEAP_BYTES, 4096, &offset), HP_OK);
    assert_int_equal(offset, 0);
    assert_int_equal(hpi_heap_take(&heap, 0, 64, &offset), HP_ERR_LIMIT);
    hpi_heap_fini(&heap);
}

/* Every free extent between two taken blocks, and the list as short as it may be: what comes back
 * needs a row of its own before it is merged. */
static void test_heap_list_is_full(void **state) {
    enum { ALIGNMENT = 4096 };
    (void)state;
    for (uint64_t n = 2; n <= 80; n++) {
        hpi_heap heap;
        uint64_t first, last = 0;
        assert_int_equal(hpi_heap_init(&heap, (n + 4) * ALIGNMENT), HP_OK);
        assert_int_equal(hpi_heap_take(&heap, 1, 1, &first), HP_OK);
        for (uint64_t k = 1; k < n; k++)
            assert_int_equal(hpi_heap_take(&heap, 1, ALIGNMENT, &last), HP_OK);
        hpi_heap_give(&heap, first, 1);
        /* longer than the gaps */
        assert_int_equal(hpi_heap_take(&heap, ALIGNMENT + 1, ALIGNMENT, &last), HP_OK);
        assert_int_equal(heap.n_free, n + 1);
        assert_true(heap.n_free < heap.capacity);
        hpi_heap_give(&heap, last, ALIGNMENT + 1);
        hpi_heap_fini(&heap);
    }
}

/* ---- places ---- */

static void fill(unsigned char *data, uint64_t bytes, uint64_t seed) {
    for (uint64_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)hpi_random_next(&seed);
}

/* Blocks of odd ranks lie elsewhere, because these ranks took something of their own before. */
static void alloc_apart(hp_world *world, uint64_t bytes, hp_symm *own, hp_symm *out_memory) {
    const int rank = hp_world_rank(world);
    hp_group *alone = NULL;
    *own = (hp_symm){0};
    if (rank % 2) {
        RANK_OK(hp_group_create(world, &rank, 1, &alone));
        RANK_OK(hp_symm_alloc(world, alone, (uint64_t)rank * 100, 0, own));
        RANK_OK(hp_symm_free(*own));
        RANK_OK(hp_symm_alloc(world, alone, (uint64_t)rank * 1000, 0, own));
        hp_group_destroy(alone);
    }
    RANK_OK(hp_symm_alloc(world, NULL, bytes, 256, out_memory));
}

enum { BLOCK_BYTES = 3000, N_PUTS = 300 };

/* Every rank puts a byte pattern to a place that only it writes, at every rank; each then checks
 * its whole block against what all of them must have put (S8). */
static void translation_body(hp_world *world, void *argument) {
    const int n = hp_world_size(world), rank = hp_world_rank(world);
    const uint64_t part = BLOCK_BYTES / (uint64_t)n;
    unsigned char model[BLOCK_BYTES] = {0}, piece[BLOCK_BYTES];
    hp_symm own, memory;
    void *base = NULL;
    (void)argument;
    alloc_apart(world, BLOCK_BYTES, &own, &memory);
    RANK_OK(hp_symm_pointer(memory, rank, NULL, &base));
    RANK_CHECK((uintptr_t)base % 256 == 0);
    for (int source = 0; source < n; source++) {
        uint64_t seed = (uint64_t)source + 1;
        for (int i = 0; i < N_PUTS; i++) {
            const int target = (int)(hpi_random_next(&seed) % (uint64_t)n);
            const uint64_t at = hpi_random_next(&seed) % part;
            const uint64_t bytes = hpi_random_next(&seed) % (part - at + 1);
            const uint64_t offset = (uint64_t)source * part + at;
            fill(piece, bytes, seed);
            if (source == rank)
                RANK_OK(hp_symm_put(memory, offset, piece, bytes, target, NULL));
            if (target == rank)
                memcpy(model + offset, piece, bytes);
        }
    }
    RANK_OK(hp_barrier(hp_world_group(world)));
    RANK_CHECK(memcmp(base, model, BLOCK_BYTES) == 0);
    for (int target = 0; target < n; target++) { /* a get sees what the pointer sees */
        void *theirs = NULL;
        RANK_OK(hp_symm_pointer(memory, target, NULL, &theirs));
        RANK_OK(hp_symm_get(piece, memory, 17, 2000, target, NULL));
        RANK_CHECK(memcmp(piece, (unsigned char *)theirs + 17, 2000) == 0);
    }
    RANK_OK(hp_symm_free(memory));
}

/* The look-ups of the collectives: pointer to place, place to pointer, pointer to peers. */
static void place_body(hp_world *world, void *argument) {
    enum { N = 40 };
    const int n = hp_world_size(world), rank = hp_world_rank(world);
    hp_symm own, memories[N];
    unsigned char *peers[16], *bases[N];
    (void)argument;
    alloc_apart(world, 10, &own, &memories[0]);
    for (int i = 1; i < N; i++)
        RANK_OK(hp_symm_alloc(world, NULL, (uint64_t)i * 100, 0, &memories[i]));
    for (int i = 0; i < N; i++) {
        void *base = NULL;
        RANK_OK(hp_symm_pointer(memories[i], rank, NULL, &base));
        bases[i] = base;
    }
    for (int i = 1; i < N; i++) {
        const uint64_t bytes = (uint64_t)i * 100;
        const hpi_place place = hpi_symm_place(world, bases[i] + 7, bytes - 7);
        RANK_CHECK(place.key == memories[i].id && place.offset == 7);
        RANK_CHECK(hpi_symm_place(world, bases[i] + 7, bytes - 6).key == 0);
        RANK_CHECK(hpi_symm_place(world, bases[i] - 1, 2).key == 0);
        RANK_CHECK(hpi_symm_peers(hp_world_group(world), bases[i] + 7, bytes - 7, peers));
        for (int r = 0; r < n; r++) {
            void *theirs = NULL;
            RANK_OK(hp_symm_pointer(memories[i], r, NULL, &theirs));
            RANK_CHECK(peers[r] == (unsigned char *)theirs + 7);
            RANK_CHECK(hpi_symm_at(world, place, r) == peers[r]);
        }
        RANK_CHECK(!hpi_symm_at(world, (hpi_place){place.key + 1000, 0}, 0));
        RANK_CHECK(!hpi_symm_at(world, (hpi_place){place.key, bytes + 1}, 0));
    }
    RANK_CHECK(hpi_symm_place(world, peers, sizeof peers).key == 0);
    if (rank % 2) { /* memory of one rank alone is no memory of the group */
        void *base = NULL;
        RANK_OK(hp_symm_pointer(own, 0, NULL, &base));
        RANK_CHECK(hpi_symm_place(world, base, 8).key == own.id);
        RANK_CHECK(!hpi_symm_peers(hp_world_group(world), base, 8, peers));
    }
    for (int i = N; i-- > 0;)
        RANK_OK(hp_symm_free(memories[i]));
}

static void zeroed_body(hp_world *world, void *argument) {
    hp_symm_stats before, after;
    (void)argument;
    RANK_OK(hp_symm_stats_get(world, &before));
    RANK_CHECK(before.allocated_bytes == 0 && before.n_allocations == 0);
    for (uint64_t bytes = 1; bytes < 40000; bytes = bytes * 3 + 5) {
        hp_symm memory;
        void *base = NULL;
        RANK_OK(hp_symm_alloc(world, NULL, bytes, 0, &memory));
        RANK_OK(hp_symm_pointer(memory, hp_world_rank(world), NULL, &base));
        for (uint64_t i = 0; i < bytes; i++)
            RANK_CHECK(((unsigned char *)base)[i] == 0);
        memset(base, 0xff, bytes);
        RANK_OK(hp_symm_stats_get(world, &after));
        RANK_CHECK(after.allocated_bytes == hpi_heap_room(bytes) && after.n_allocations == 1);
        RANK_CHECK(after.peak_bytes == after.allocated_bytes && after.message_bytes == 0);
        RANK_CHECK(after.free_bytes == before.free_bytes - after.allocated_bytes);
        RANK_OK(hp_symm_free(memory));
    }
    RANK_OK(hp_symm_stats_get(world, &after));
    RANK_CHECK(after.allocated_bytes == 0 && after.n_allocations == 0 && after.peak_bytes > 0);
    RANK_OK(hp_symm_free((hp_symm){0}));
}

static void spanning_body(hp_world *world, void *argument) {
    enum { PART = 4096 + 64 };
    const int n = hp_world_size(world), rank = hp_world_rank(world);
    hp_symm memory;
    hp_symm_stats stats;
    void *first = NULL, *pointer = NULL;
    unsigned char *peers[16];
    (void)argument;
    RANK_OK(hp_symm_alloc_spanning(world, NULL, PART, &memory));
    RANK_OK(hp_symm_pointer(memory, 0, NULL, &first));
    for (int r = 0; r < n; r++) {
        RANK_OK(hp_symm_pointer(memory, r, NULL, &pointer));
        RANK_CHECK(pointer == (unsigned char *)first + r * PART);
    }
    memset((unsigned char *)first + rank * PART, rank + 1, PART);
    RANK_OK(hp_barrier(hp_world_group(world)));
    for (int i = 0; i < n * PART; i++)
        RANK_CHECK(((unsigned char *)first)[i] == i / PART + 1);
    RANK_CHECK(
        hpi_symm_peers(hp_world_group(world), (unsigned char *)first + rank * PART, PART, peers));
    RANK_CHECK(peers[n - 1] == (unsigned char *)first + (n - 1) * PART);
    RANK_OK(hp_symm_stats_get(world, &stats));
    RANK_CHECK(stats.allocated_bytes == PART);
    RANK_OK(hp_symm_free(memory));
    RANK_FAILS(hp_symm_pointer(memory, 0, NULL, &pointer), HP_ERR_HANDLE);
    RANK_FAILS(hp_symm_alloc_spanning(world, NULL, 65, &memory), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_symm_alloc_spanning(world, NULL, 0, &memory), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_symm_alloc_spanning(world, NULL, UINT64_MAX / 64 * 64, &memory), HP_ERR_ARGUMENT);
    RANK_OK(hp_symm_stats_get(world, &stats));
    RANK_CHECK(stats.allocated_bytes == 0);
}

/* ---- what must be refused ---- */

/* A child made by fork can be told so alone: a lock may be held by a thread that it lacks. */
static void fork_body(hp_world *world, void *argument) {
    int how = -1;
    hp_symm_stats stats;
    (void)argument;
    const pid_t child = fork();
    RANK_CHECK(child >= 0);
    if (child == 0)
        _exit(hp_symm_stats_get(world, &stats) != HP_ERR_FORKED);
    RANK_CHECK(waitpid(child, &how, 0) == child && how == 0);
    RANK_OK(hp_symm_stats_get(world, &stats));
}

/* A wait names no group, so anything may stand there, also where calls are recorded. */
static void unnamed_body(hp_world *world, void *argument) {
    static const hp_symm_call unnamed = {.size = sizeof unnamed,
                                         .what = HP_SYMM_WAIT,
                                         .source = &unnamed,
                                         .target = (void *)8,
                                         .bytes = UINT64_MAX,
                                         .rank = 77,
                                         .group = (hp_group *)8};
    hp_symm_call call = unnamed;
    hp_trace *trace = NULL;
    (void)argument;
    RANK_OK(hp_trace_create(0, 8, &trace));
    RANK_OK(hp_trace_thread(trace, 0));
    RANK_OK(hp_symm_alloc(world, NULL, 8, 0, &call.signal));
    RANK_OK(hp_symm_run(&call));
    RANK_OK(hp_symm_free(call.signal));
    RANK_OK(hp_trace_thread(NULL, 0));
    hp_trace_destroy(trace);
}

/* Memory from before and after `stale` must not be touched through it (S11). */
static void handles_body(hp_world *world, void *argument) {
    const int rank = hp_world_rank(world), n = hp_world_size(world);
    hp_symm stale, reused, nothing = {0};
    void *base = NULL, *again = NULL, *pointer = NULL;
    uint64_t word = 1;
    (void)argument;
    RANK_OK(hpi_symm_poison(world, true));
    RANK_OK(hp_symm_alloc(world, NULL, 4096, 0, &stale));
    RANK_OK(hp_symm_pointer(stale, rank, NULL, &base));
    memset(base, 1, 4096);
    RANK_OK(hp_symm_free(stale));
    for (int i = 0; i < 4096; i++)
        RANK_CHECK(((unsigned char *)base)[i] == 0xdb);
    RANK_CHECK(hpi_symm_place(world, base, 8).key == 0); /* ordinary memory again */
    RANK_OK(hp_barrier(hp_world_group(world)));
    RANK_OK(hp_symm_alloc(world, NULL, 4096, 0, &reused));
    RANK_OK(hp_symm_pointer(reused, rank, NULL, &again));
    RANK_CHECK(again == base && reused.id != stale.id);
    const hp_symm bad[] = {stale, nothing, {world, 12345}, {NULL, reused.id}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        RANK_FAILS(hp_symm_put(bad[i], 0, &word, 8, 0, NULL), HP_ERR_HANDLE);
        RANK_FAILS(hp_symm_put(bad[i], 0, &word, 0, 0, NULL), HP_ERR_HANDLE);
        RANK_FAILS(hp_symm_get(&word, bad[i], 0, 8, 0, NULL), HP_ERR_HANDLE);
        RANK_FAILS(hp_symm_signal(bad[i], 0, HP_SIGNAL_SET, 1, 0, NULL), HP_ERR_HANDLE);
        RANK_FAILS(hp_symm_put_signal(reused, 0, &word, 8, bad[i], 0, HP_SIGNAL_SET, 1, 0, NULL),
                   HP_ERR_HANDLE);
        RANK_FAILS(hp_symm_put_signal(bad[i], 0, &word, 8, reused, 0, HP_SIGNAL_SET, 1, 0, NULL),
                   HP_ERR_HANDLE);
        RANK_FAILS(hp_symm_wait(bad[i], 0, HP_EQ, 0, 1), HP_ERR_HANDLE);
        RANK_FAILS(hp_symm_pointer(bad[i], 0, NULL, &pointer), HP_ERR_HANDLE);
    }
    RANK_FAILS(hp_symm_free(stale), HP_ERR_HANDLE);
    RANK_CHECK(!pointer);
    for (int i = 0; i < 4096; i++)
        RANK_CHECK(((unsigned char *)again)[i] == 0);

    RANK_FAILS(hp_symm_put(reused, 0, &word, 8, n, NULL), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_symm_put(reused, 0, &word, 8, -1, NULL), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_symm_put(reused, 4089, &word, 8, 0, NULL), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_symm_put(reused, UINT64_MAX, &word, 8, 0, NULL), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_symm_put(reused, 0, &word, UINT64_MAX, 0, NULL), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_symm_put(reused, 0, NULL, 8, 0, NULL), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_symm_signal(reused, 4, HP_SIGNAL_SET, 1, 0, NULL), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_symm_signal(reused, 4096, HP_SIGNAL_SET, 1, 0, NULL), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_symm_signal(reused, 0, (hp_signal_op)2, 1, 0, NULL), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_symm_wait(reused, 0, (hp_compare)6, 1, 1), HP_ERR_ARGUMENT);
    RANK_OK(hp_symm_put(reused, 4096, NULL, 0, 0, NULL));
    RANK_OK(hp_symm_free(reused));
}

/* A group's memory is no business of others, and ranks are numbers in the given group. */
static void members_body(hp_world *world, void *argument) {
    static const int members[] = {2, 0};
    const int rank = hp_world_rank(world);
    hp_group *pair = NULL, *all = hp_world_group(world);
    hp_symm memory = {0};
    uint64_t word = 0;
    void *by_pair = NULL, *by_world = NULL;
    (void)argument;
    if (rank != 1) {
        RANK_OK(hp_group_create(world, members, 2, &pair));
        RANK_OK(hp_symm_alloc(world, pair, 64, 0, &memory));
        RANK_OK(hp_symm_pointer(memory, 1, NULL, &by_pair));
        RANK_OK(hp_symm_pointer(memory, 0, all, &by_world));
        RANK_CHECK(by_pair == by_world);
        RANK_FAILS(hp_symm_put(memory, 0, &word, 8, 1, all), HP_ERR_ARGUMENT);
        RANK_CHECK(strstr(hp_last_error(), "world rank 1"));
        RANK_OK(hp_symm_free(memory));
        hp_group_destroy(pair);
    } else {
        RANK_FAILS(hp_symm_alloc(world, all, 64, 3, &memory), HP_ERR_ARGUMENT);
    }
    if (rank != 1) /* rank 1's bad argument reaches everybody instead of leaving them waiting */
        RANK_FAILS(hp_symm_alloc(world, all, 64, 3, &memory), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_symm_alloc(world, all, 64, 8192, &memory), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_symm_alloc(NULL, all, 64, 0, &memory), HP_ERR_HANDLE);
    RANK_FAILS(hp_symm_alloc(world, all, 64, 0, NULL), HP_ERR_ARGUMENT);
}

/* S12: every rank learns what every rank asked for, and nothing stays allocated. */
static void mismatch_body(hp_world *world, void *argument) {
    const int rank = hp_world_rank(world);
    hp_symm memory = {0};
    hp_symm_stats stats;
    (void)argument;
    RANK_FAILS(hp_symm_alloc(world, NULL, rank == 2 ? 8192 : 4096, 0, &memory), HP_ERR_MISMATCH);
    RANK_CHECK(strstr(hp_last_error(), "rank 0 (world 0) 4096 bytes"));
    RANK_CHECK(strstr(hp_last_error(), "rank 2 (world 2) 8192 bytes"));
    RANK_FAILS(hp_symm_alloc(world, NULL, 4096, rank == 1 ? 64 : 128, &memory), HP_ERR_MISMATCH);
    RANK_CHECK(strstr(hp_last_error(), "aligned to 64"));
    if (rank == 0)
        RANK_FAILS(hp_symm_alloc_spanning(world, NULL, 4096, &memory), HP_ERR_MISMATCH);
    else
        RANK_FAILS(hp_symm_alloc(world, NULL, 4096, 0, &memory), HP_ERR_MISMATCH);
    RANK_CHECK(strstr(hp_last_error(), "spanning"));
    RANK_CHECK(!memory.world && !memory.id);
    RANK_OK(hp_symm_stats_get(world, &stats));
    RANK_CHECK(stats.allocated_bytes == 0 && stats.n_allocations == 0);
    /* one rank has no room: an error on all, and they can go on */
    hp_symm a, b;
    RANK_OK(hp_symm_alloc(world, NULL, 64, 0, &a));
    RANK_OK(hp_symm_alloc(world, NULL, 64, 0, &b));
    RANK_FAILS(hp_symm_alloc(world, NULL, stats.free_bytes, 0, &memory), HP_ERR_LIMIT);
    RANK_FAILS(hp_symm_free(rank == 1 ? a : b), HP_ERR_MISMATCH);
    RANK_OK(hp_symm_free(b));
    RANK_OK(hp_symm_free(a));
}

/* ---- signals ---- */

static void ping_pong_body(hp_world *world, void *argument) {
    enum { ROUNDS = 2000, WORDS = 16 };
    const int rank = hp_world_rank(world), peer = 1 - rank;
    uint64_t data[WORDS], got[WORDS];
    hp_symm memory;
    (void)argument;
    RANK_OK(hp_symm_alloc(world, NULL, 4096, 0, &memory));
    for (uint64_t i = 1; i <= ROUNDS; i++) {
        for (int k = 0; k < WORDS; k++)
            data[k] = i * 100 + (uint64_t)(rank * 50 + k);
        if (rank == (int)(i % 2))
            RANK_OK(hp_symm_wait(memory, 2048, HP_GE, i, 0));
        const uint64_t offset = i % 2 * 1024;
        RANK_OK(hp_symm_put_signal(memory, offset, data, sizeof data, memory, 2048, HP_SIGNAL_SET,
                                   i, peer, NULL));
        if (rank != (int)(i % 2))
            RANK_OK(hp_symm_wait(memory, 2048, HP_GE, i, 0));
        RANK_OK(hp_symm_get(got, memory, offset, sizeof got, rank, NULL));
        for (int k = 0; k < WORDS; k++)
            RANK_CHECK(got[k] == i * 100 + (uint64_t)(peer * 50 + k));
    }
    RANK_FAILS(hp_symm_wait(memory, 2048, HP_GT, UINT64_MAX - 1, 20), HP_ERR_TIMEOUT);
    RANK_OK(hp_symm_free(memory));
}

/* ---- threads of one rank ---- */

typedef struct reader {
    hp_symm memory;
    hp_world *world;
    unsigned char *base;
    _Atomic int is_over;
    int n_wrong;
} reader;

/* Look up a block that lives, while others come and go. */
static void *reader_main(void *argument) {
    reader *r = argument;
    unsigned char *peers[16];
    uint64_t word;
    while (!atomic_load(&r->is_over)) {
        const hpi_place place = hpi_symm_place(r->world, r->base + 8, 8);
        r->n_wrong += place.key != r->memory.id || place.offset != 8;
        r->n_wrong += !hpi_symm_peers(hp_world_group(r->world), r->base, 64, peers);
        r->n_wrong += hp_symm_get(&word, r->memory, 0, 8, 0, NULL) != HP_OK;
        sched_yield(); /* the set-up calls need the cores too */
    }
    return NULL;
}

static void readers_body(hp_world *world, void *argument) {
    reader r = {.world = world};
    pthread_t thread;
    void *base = NULL;
    (void)argument;
    RANK_OK(hp_symm_alloc(world, NULL, 64, 0, &r.memory));
    RANK_OK(hp_symm_pointer(r.memory, hp_world_rank(world), NULL, &base));
    r.base = base;
    RANK_CHECK(pthread_create(&thread, NULL, reader_main, &r) == 0);
    for (uint64_t i = 0; i < 50; i++) {
        hp_symm a, b;
        RANK_OK(hp_symm_alloc(world, NULL, i * 64, 0, &a));
        RANK_OK(hp_symm_alloc(world, NULL, 64, 0, &b));
        RANK_OK(hp_symm_free(a));
        RANK_OK(hp_symm_free(b));
    }
    atomic_store(&r.is_over, 1);
    pthread_join(thread, NULL);
    RANK_CHECK(r.n_wrong == 0);
    RANK_OK(hp_symm_free(r.memory));
}

/* One rank allocates while the other frees: both are told, and nobody's words are taken for another
 * call's. */
static void other_call_body(hp_world *world, void *argument) {
    (void)argument;
    hp_symm first, second = {0};
    RANK_OK(hp_symm_alloc(world, NULL, 64, 0, &first));
    const bool is_odd = hp_world_rank(world) == 1;
    const hp_status status =
        is_odd ? hp_symm_free(first) : hp_symm_alloc(world, NULL, 64, 0, &second);
    RANK_CHECK(status == HP_ERR_MISMATCH);
    RANK_CHECK(strstr(hp_last_error(), "symm_free") && strstr(hp_last_error(), "symm_alloc"));
    RANK_FAILS(hp_symm_alloc(world, NULL, 64, 0, &second), HP_ERR_MISMATCH); /* it stays failed */
}

/* ---- the tests ---- */

#define THREADS(name, n, body)                                                                     \
    static void name(void **state) {                                                               \
        (void)state;                                                                               \
        ranks_run(n, RANKS_THREADS, body, NULL);                                                   \
    }
THREADS(test_translation, 5, translation_body)
THREADS(test_places, 4, place_body)
THREADS(test_zeroed_and_counted, 3, zeroed_body)
THREADS(test_spanning, 4, spanning_body)
THREADS(test_handles, 3, handles_body)
THREADS(test_members, 3, members_body)
THREADS(test_sizes_differ, 4, mismatch_body)
THREADS(test_ping_pong, 2, ping_pong_body)
THREADS(test_readers, 3, readers_body)
THREADS(test_other_call, 2, other_call_body)
THREADS(test_unnamed_fields, 1, unnamed_body)

static void test_processes(void **state) {
    (void)state;
    ranks_run(3, RANKS_PROCESSES, translation_body, NULL);
    ranks_run(4, RANKS_PROCESSES, place_body, NULL);
    ranks_run(3, RANKS_PROCESSES, spanning_body, NULL);
    ranks_run(2, RANKS_PROCESSES, ping_pong_body, NULL);
    ranks_run(3, RANKS_PROCESSES, mismatch_body, NULL);
    ranks_run(1, RANKS_PROCESSES, fork_body, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heap_is_first_fit),
        cmocka_unit_test(test_heap_refuses),
        cmocka_unit_test(test_heap_list_is_full),
        cmocka_unit_test(test_translation),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_zeroed_and_counted),
        cmocka_unit_test(test_spanning),
        cmocka_unit_test(test_handles),
        cmocka_unit_test(test_members),
        cmocka_unit_test(test_sizes_differ),
        cmocka_unit_test(test_ping_pong),
        cmocka_unit_test(test_readers),
        cmocka_unit_test(test_other_call),
        cmocka_unit_test(test_unnamed_fields),
        cmocka_unit_test(test_processes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

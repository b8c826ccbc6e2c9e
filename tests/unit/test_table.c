/* SPDX-License-Identifier: Apache-2.0
 *
 * test_table.c - the table of blocks while it changes: what holds is never torn, old or mixed.
 *
 * A writer inserts and kills blocks whose every field follows from the key, so that a reader sees
 * at once whether all that it has read belongs together; one block lives through all of it, and has
 * to be found always.
 */
#include "support/ranks.h"
#include "symm/table.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { N_READERS = 3, N_ROUNDS = 20000, MOST_LIVE = 12, STRIDE = 4096, LASTING = 1000000000 };

typedef struct scene {
    hpi_table table;
    hp_group *group;
    _Atomic uint64_t newest; /* key */
    _Atomic bool is_over;
    _Atomic uint64_t n_wrong, n_found;
} scene;

static unsigned char *base_of(uint64_t key) {
    return (unsigned char *)(uintptr_t)(key * STRIDE);
}
static uint64_t bytes_of(uint64_t key) {
    return 1 + key % STRIDE;
}

static hpi_block *insert(scene *s, uint64_t key) {
    hpi_block *b = hpi_block_make(&s->table, s->group);
    RANK_CHECK(b);
    HPI_FILL(b->key, key);
    HPI_FILL(b->bytes, bytes_of(key));
    HPI_FILL(b->base, base_of(key));
    HPI_FILL(b->at[0], base_of(key) + 1);
    RANK_OK(hpi_table_insert(&s->table, b));
    return b;
}

/* Blocks come in turn at random places of the order, and go in another. */
static void write_all(scene *s) {
    hpi_block *live[MOST_LIVE] = {0};
    for (uint64_t i = 1; i <= N_ROUNDS; i++) {
        const uint64_t at = i * 7 % MOST_LIVE, key = i * 2654435761U % 999983 + 1;
        if (live[at])
            hpi_block_kill(live[at]);
        live[at] = insert(s, key);
        atomic_store(&s->newest, key);
        if (i % 64 == 0)
            sched_yield();
    }
}

static bool is_whole(const hpi_block *b, uint64_t key) {
    return HPI_READ(b->key) == key && HPI_READ(b->bytes) == bytes_of(key) &&
           HPI_READ(b->base) == base_of(key) && HPI_READ(b->at[0]) == base_of(key) + 1 &&
           HPI_READ(b->n_members) == 1 && HPI_READ(b->members[0]) == 0;
}

/* Is the block found both ways? Where it is, all of it is its own. */
static bool find(scene *s, uint64_t key) {
    hpi_look look;
    bool is_found, is_right;
    do {
        look = hpi_table_look(&s->table);
        const hpi_block *b = hpi_look_by_key(look, key);
        is_found = b != NULL;
        is_right = !b || is_whole(b, key);
        b = hpi_look_by_address(look, base_of(key), bytes_of(key));
        is_right &= !b || is_whole(b, key);
    } while (!hpi_look_holds(look));
    atomic_fetch_add(&s->n_wrong, !is_right);
    return is_found;
}

static void *read_all(void *argument) {
    scene *s = argument;
    while (!atomic_load(&s->is_over)) {
        const uint64_t newest = atomic_load(&s->newest);
        if (newest)
            atomic_fetch_add(&s->n_found, find(s, newest));
        atomic_fetch_add(&s->n_wrong, !find(s, LASTING));
        sched_yield();
    }
    return NULL;
}

static void readers_body(hp_world *world, void *argument) {
    scene s = {.group = hp_world_group(world)};
    pthread_t readers[N_READERS];
    hpi_look empty = hpi_table_look(&s.table);
    (void)argument;
    RANK_CHECK(!hpi_look_by_key(empty, 1) && hpi_look_holds(empty));
    insert(&s, LASTING);
    for (int i = 0; i < N_READERS; i++)
        RANK_CHECK(pthread_create(&readers[i], NULL, read_all, &s) == 0);
    write_all(&s);
    RANK_CHECK(find(&s, atomic_load(&s.newest)));
    atomic_store(&s.is_over, true);
    for (int i = 0; i < N_READERS; i++)
        pthread_join(readers[i], NULL);
    RANK_CHECK(atomic_load(&s.n_wrong) == 0);
    hpi_table_fini(&s.table);
}

/* Blocks and snapshots are used again: what is taken does not grow with what has been. */
static void reuse_body(hp_world *world, void *argument) {
    enum { WARM = 8 };
    scene s = {.group = hp_world_group(world)};
    hpi_block *blocks[2] = {0}, *block = insert(&s, 1);
    const hpi_snapshot *snapshots[2] = {0};
    (void)argument;
    insert(&s, LASTING);
    for (uint64_t key = 2; key < 100; key++) {
        hpi_block_kill(block); /* it stays until the next one is in */
        block = insert(&s, key);
        const hpi_snapshot *now = HPI_READ(s.table.now);
        if (key > WARM)
            RANK_CHECK(block == blocks[key % 2] && now == snapshots[key % 2]);
        blocks[key % 2] = block;
        snapshots[key % 2] = now;
        RANK_CHECK(find(&s, key) && find(&s, LASTING) && !find(&s, key - 1));
    }
    RANK_CHECK(atomic_load(&s.n_wrong) == 0);
    hpi_table_fini(&s.table);
}

static void test_readers(void **state) {
    (void)state;
    ranks_run(1, RANKS_THREADS, readers_body, NULL);
}
static void test_reuse(void **state) {
    (void)state;
    ranks_run(1, RANKS_THREADS, reuse_body, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_readers),
        cmocka_unit_test(test_reuse),
    };
    return cmocka_run_group_tests_name("table", tests, NULL, NULL);
}

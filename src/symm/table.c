/* SPDX-License-Identifier: Apache-2.0
 *
 * table.c - snapshots that readers search without a lock.
 *
 * A reader raises n_readers, then loads `now`; a writer stores `now`, then loads n_readers. All
 * four are sequentially consistent, so a writer that finds 0 knows that whoever comes later sees
 * the new snapshot, and frees the retired ones; else they wait for a later insert.
 */
#include "table.h"

#include <stdlib.h>

hpi_block *hpi_block_make(const hp_group *group) {
    const int n = hp_group_size(group), world_size = hp_world_size(hp_group_world(group));
    hpi_block *b = hpi_alloc(1, sizeof *b + (size_t)world_size * sizeof *b->at +
                                    (size_t)n * sizeof *b->members);
    if (!b)
        return NULL;
    b->at = (unsigned char **)(b + 1);
    b->members = (int *)(b->at + world_size);
    b->n_members = n;
    for (int i = 0; i < n; i++)
        b->members[i] = hp_group_world_rank(group, i);
    return b;
}

void hpi_block_free(hpi_block *block) {
    hpi_free(block);
}

void hpi_block_kill(hpi_block *block) {
    atomic_store_explicit(&block->is_dead, 1, memory_order_release);
}

static bool is_live(const hpi_block *block) {
    return !atomic_load_explicit(&block->is_dead, memory_order_acquire);
}

/* ---- readers ---- */

const hpi_snapshot *hpi_table_enter(hpi_table *table) {
    atomic_fetch_add_explicit(&table->n_readers, 1, memory_order_seq_cst);
    return atomic_load_explicit(&table->now, memory_order_seq_cst);
}

void hpi_table_leave(hpi_table *table) {
    atomic_fetch_sub_explicit(&table->n_readers, 1, memory_order_seq_cst);
}

const hpi_block *hpi_snapshot_by_key(const hpi_snapshot *snapshot, uint64_t key) {
    uint32_t low = 0, high = snapshot ? snapshot->n : 0;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        const hpi_block *b = snapshot->by_key[middle];
        if (b->key == key)
            return is_live(b) ? b : NULL;
        if (b->key < key)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

const hpi_block *hpi_snapshot_by_address(const hpi_snapshot *snapshot, const void *pointer,
                                         uint64_t bytes) {
    const uintptr_t address = (uintptr_t)pointer;
    uint32_t low = 0, high = snapshot ? snapshot->n : 0;
    while (low < high) { /* ends at the first block whose base is above the address */
        const uint32_t middle = (low + high) / 2;
        if ((uintptr_t)snapshot->by_base[middle]->base <= address)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0)
        return NULL;
    const hpi_block *b = snapshot->by_base[low - 1];
    const uint64_t offset = address - (uintptr_t)b->base;
    const bool holds = offset <= b->bytes && bytes <= b->bytes - offset;
    return holds && is_live(b) ? b : NULL;
}

/* ---- writers ---- */

static int compare_keys(const void *a, const void *b) {
    const uint64_t x = (*(hpi_block *const *)a)->key, y = (*(hpi_block *const *)b)->key;
    return (x > y) - (x < y);
}

static int compare_bases(const void *a, const void *b) {
    const uintptr_t x = (uintptr_t)(*(hpi_block *const *)a)->base;
    const uintptr_t y = (uintptr_t)(*(hpi_block *const *)b)->base;
    return (x > y) - (x < y);
}

static void free_snapshot(hpi_snapshot *s) {
    while (s->purged) {
        hpi_block *block = s->purged;
        s->purged = block->next_purged;
        hpi_block_free(block);
    }
    hpi_free(s);
}

static void reclaim(hpi_table *table) {
    if (atomic_load_explicit(&table->n_readers, memory_order_seq_cst) != 0)
        return;
    while (table->retired) {
        hpi_snapshot *s = table->retired;
        table->retired = s->next_retired;
        free_snapshot(s);
    }
}

/* The live blocks of `old` go to `out`, the dead ones to its purge list. */
static void sift(hpi_snapshot *old, hpi_snapshot *out) {
    for (uint32_t i = 0; i < old->n; i++) {
        hpi_block *block = old->by_key[i];
        if (is_live(block)) {
            out->by_key[out->n++] = block;
        } else {
            block->next_purged = old->purged;
            old->purged = block;
        }
    }
}

hp_status hpi_table_insert(hpi_table *table, hpi_block *block) {
    hpi_snapshot *old = atomic_load_explicit(&table->now, memory_order_relaxed);
    const size_t most = (old ? old->n : 0) + (size_t)1;
    hpi_snapshot *s = hpi_alloc(1, sizeof *s + 2 * most * sizeof(hpi_block *));
    if (!s)
        return HP_ERR_MEMORY;
    s->by_key = (hpi_block **)(s + 1);
    if (old)
        sift(old, s);
    s->by_key[s->n++] = block;
    s->by_base = s->by_key + s->n;
    memcpy(s->by_base, s->by_key, s->n * sizeof(hpi_block *));
    qsort(s->by_key, s->n, sizeof(hpi_block *), compare_keys);
    qsort(s->by_base, s->n, sizeof(hpi_block *), compare_bases);

    atomic_store_explicit(&table->now, s, memory_order_seq_cst);
    if (old) {
        old->next_retired = table->retired;
        table->retired = old;
    }
    reclaim(table);
    return HP_OK;
}

void hpi_table_fini(hpi_table *table) {
    hpi_snapshot *now = atomic_load_explicit(&table->now, memory_order_relaxed);
    reclaim(table);
    for (uint32_t i = 0; now && i < now->n; i++)
        hpi_block_free(now->by_key[i]);
    hpi_free(now);
}

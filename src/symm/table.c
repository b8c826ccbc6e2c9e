/* SPDX-License-Identifier: Apache-2.0
 *
 * table.c - snapshots that readers search without a lock, and without a store.
 *
 *     writer    fill the spare one, its version even; now = it; version of the old one odd
 *     reader    s = now, its version; search, read the block; is the version what it was, and even?
 *
 * A snapshot other than `now` is void, so blocks that the new one leaves out may be filled anew at
 * once: whoever still reads them came by a void one. A reader looks again only if a writer has
 * published meanwhile, and never twice for the same one. Model: tests/protocol/table.pml.
 */
#include "table.h"

/* ---- blocks ---- */

static hpi_block *block_create(size_t world_size) {
    hpi_block *b = hpi_alloc(1, sizeof *b + world_size * (sizeof *b->at + sizeof *b->members));
    if (b)
        b->members = (_Atomic int *)(void *)(b->at + world_size);
    return b;
}

hpi_block *hpi_block_make(hpi_table *table, hp_group *group) {
    const int n = hp_group_size(group), world_size = hp_world_size(hp_group_world(group));
    hpi_block *b = table->free;
    if (b)
        table->free = b->next;
    else
        b = block_create((size_t)world_size);
    if (!b)
        return NULL;
    b->map = NULL;
    b->offset = 0;
    HPI_FILL(b->group, group);
    HPI_FILL(b->is_dead, 0);
    HPI_FILL(b->n_members, (uint32_t)n);
    for (int i = 0; i < world_size; i++)
        HPI_FILL(b->at[i], NULL);
    for (int i = 0; i < n; i++)
        HPI_FILL(b->members[i], hp_group_world_rank(group, i));
    return b;
}

void hpi_block_free(hpi_table *table, hpi_block *block) {
    if (!block)
        return;
    block->next = table->free;
    table->free = block;
}

void hpi_block_kill(hpi_block *block) {
    HPI_FILL(block->is_dead, 1);
}

static bool is_live(const hpi_block *block) {
    return !HPI_READ(block->is_dead);
}

/* ---- readers ---- */

/* The last of those sorted entries whose name is not above `name`; NULL: there is none. */
static const hpi_entry *find_last(const hpi_entry *entries, uint32_t n, uint64_t name) {
    const hpi_entry *found = NULL;
    while (n > 0) {
        const hpi_entry *middle = entries + n / 2;
        const bool is_above = HPI_READ(middle->name) > name;
        found = is_above ? found : middle;
        entries = is_above ? entries : middle + 1;
        n = is_above ? n / 2 : n - n / 2 - 1;
    }
    return found;
}

const hpi_block *hpi_look_by_address(hpi_look look, const void *pointer, uint64_t bytes) {
    const hpi_snapshot *s = look.snapshot;
    const uintptr_t address = (uintptr_t)pointer;
    const hpi_entry *entry = s ? find_last(s->by_base, HPI_READ(s->n), address) : NULL;
    if (!entry)
        return NULL;
    const hpi_block *b = HPI_READ(entry->block);
    const uint64_t offset = address - HPI_READ(entry->name), whole = HPI_READ(b->bytes);
    return offset <= whole && bytes <= whole - offset && is_live(b) ? b : NULL;
}

/* ---- writers ---- */

static hpi_snapshot *snapshot_create(uint32_t capacity) {
    size_t n_slots = 1;
    while (n_slots <= 2 * (size_t)capacity)
        n_slots *= 2;
    hpi_snapshot *s = hpi_alloc(1, sizeof *s + n_slots * sizeof *s->slots +
                                       2 * (size_t)capacity * sizeof *s->by_key);
    if (!s)
        return NULL;
    s->capacity = capacity;
    s->mask = n_slots - 1;
    s->by_key = (hpi_entry *)(void *)(s->slots + n_slots);
    s->by_base = s->by_key + capacity;
    atomic_init(&s->version, 1);
    return s;
}

/* A void snapshot for n blocks. What is too small stays, since a reader may be in it: half as much
 * each time. */
static hpi_snapshot *take_spare(hpi_table *table, uint32_t n) {
    hpi_snapshot *s = table->spare;
    if (s && s->capacity >= n)
        return s;
    hpi_snapshot *larger = snapshot_create(2 * n);
    if (larger && s) {
        s->next = table->small;
        table->small = s;
    }
    table->spare = larger ? larger : s;
    return larger;
}

static void set_version(hpi_snapshot *s, uint64_t value) {
    HPI_FILL(s->version, value);
}

/* The live ones of `old`, and the new one in its place. Returns how many there are. */
static uint32_t fill(hpi_entry *out, const hpi_entry *old, uint32_t n_old, uint64_t name,
                     hpi_block *block) {
    uint32_t n = 0;
    bool is_in = false;
    for (uint32_t i = 0; i <= n_old; i++) {
        const uint64_t next = i < n_old ? HPI_READ(old[i].name) : UINT64_MAX;
        if (!is_in && name < next) {
            HPI_FILL(out[n].name, name);
            HPI_FILL(out[n++].block, block);
            is_in = true;
        }
        if (i < n_old && is_live(HPI_READ(old[i].block))) {
            HPI_FILL(out[n].name, next);
            HPI_FILL(out[n++].block, HPI_READ(old[i].block));
        }
    }
    return n;
}

static void fill_slots(hpi_snapshot *s) {
    for (uint64_t i = 0; i <= s->mask; i++)
        HPI_FILL(s->slots[i], NULL);
    for (uint32_t k = 0; k < HPI_READ(s->n); k++) {
        uint64_t i = hpi_slot_of(HPI_READ(s->by_key[k].name));
        while (HPI_READ(s->slots[i & s->mask]))
            i++;
        HPI_FILL(s->slots[i & s->mask], HPI_READ(s->by_key[k].block));
    }
}

/* Of a snapshot that is void: what the next one has left out. */
static void free_dead(hpi_table *table, const hpi_snapshot *old) {
    const uint32_t n = HPI_READ(old->n);
    for (uint32_t i = 0; i < n; i++) {
        hpi_block *block = HPI_READ(old->by_key[i].block);
        if (!is_live(block))
            hpi_block_free(table, block);
    }
}

hp_status hpi_table_insert(hpi_table *table, hpi_block *block) {
    hpi_snapshot *old = HPI_READ(table->now);
    const uint32_t n_old = old ? HPI_READ(old->n) : 0;
    hpi_snapshot *s = take_spare(table, n_old + 1);
    if (!s)
        return HP_ERR_MEMORY;
    fill(s->by_base, old ? old->by_base : NULL, n_old, (uintptr_t)HPI_READ(block->base), block);
    HPI_FILL(s->n, fill(s->by_key, old ? old->by_key : NULL, n_old, HPI_READ(block->key), block));
    fill_slots(s);
    set_version(s, HPI_READ(s->version) + 1);
    HPI_FILL(table->now, s);
    table->spare = old;
    if (old) {
        set_version(old, HPI_READ(old->version) + 1);
        free_dead(table, old);
    }
    return HP_OK;
}

static void free_blocks(hpi_block *block) {
    while (block) {
        hpi_block *next = block->next;
        hpi_free(block);
        block = next;
    }
}

void hpi_table_fini(hpi_table *table) {
    hpi_snapshot *now = HPI_READ(table->now);
    for (uint32_t i = 0; now && i < HPI_READ(now->n); i++)
        hpi_free(HPI_READ(now->by_key[i].block));
    free_blocks(table->free);
    hpi_free(now);
    hpi_free(table->spare);
    while (table->small) {
        hpi_snapshot *s = table->small;
        table->small = s->next;
        hpi_free(s);
    }
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * directory.c - which slot of signal lines a group has, agreed without waiting for anybody.
 *
 * The directory lies in the segment of the node's first rank and is shared by the node. The first
 * member of a group to come takes a free entry, whose index is the slot of the group's lines on
 * every member; the others find it by the list of members. Because every member creates groups of
 * one list in the same order, the oldest entry of that list that a member has not joined is the one
 * it means: no counts are kept, and groups of different lists may be created in any order by
 * anybody. When all members have left, the entry is free. Values of the lines are never reset: a
 * new group counts from the furthest value that it finds.
 */
#include "inside.h"

#include <sched.h>

typedef struct membership {
    uint64_t hash[2];
    int n_ranks;
} membership;

/* `of` tells inner groups of larger groups from other groups of their members. */
static membership membership_of(const int *world_ranks, int n_ranks, uint64_t of) {
    membership m = {{UINT64_C(0x243f6a8885a308d3) ^ of, UINT64_C(0x13198a2e03707344)}, n_ranks};
    for (int i = 0; i < n_ranks; i++)
        for (int k = 0; k < 2; k++) {
            uint64_t state = m.hash[k] ^ (uint64_t)world_ranks[i];
            m.hash[k] = hpi_random_next(&state);
        }
    return m;
}

static hpi_directory *directory_of(const hp_world *world) {
    return hpi_segment_directory(&world->segments[world->local[0]]);
}

/* Is `holder` (1 + rank) dead, and did it die with the lock? */
static bool died_holding(hp_world *world, uint64_t holder) {
    hpi_liveness_poll(world);
    return holder && hpi_liveness_is_dead(world, (int)holder - 1) &&
           atomic_load_explicit(&directory_of(world)->lock, memory_order_acquire) == holder;
}

/* Held for microseconds, so there is no sleeping; but its holder may be killed, or stopped. */
static hp_status directory_lock(hp_world *world) {
    enum { N_YIELDS = 64 };
    const uint64_t mine = 1 + (uint64_t)world->rank;
    const uint64_t timeout_ms = world->options.signal_timeout_ms;
    const uint64_t deadline_ns = hpi_now_ns() + timeout_ms * UINT64_C(1000000);
    for (int n = 0;; n++) {
        uint64_t holder = 0;
        if (atomic_compare_exchange_strong_explicit(&directory_of(world)->lock, &holder, mine,
                                                    memory_order_acquire, memory_order_relaxed))
            return HP_OK;
        if (n < N_YIELDS) {
            sched_yield();
            continue;
        }
        hpi_sleep_ns(200000);
        const int rank = (int)holder - 1;
        if (died_holding(world, holder)) {
            hpi_liveness_blame(world, rank);
            return HPI_FAIL_RANK(HP_ERR_PEER, rank, "rank %d died while it created a group", rank);
        }
        if (hpi_now_ns() > deadline_ns)
            return HPI_FAIL_RANK(HP_ERR_TIMEOUT, rank,
                                 "rank %d waited %llu ms for rank %d, which is stopped while it "
                                 "creates a group",
                                 world->rank, (unsigned long long)timeout_ms, rank);
    }
}

static void directory_unlock(hp_world *world) {
    atomic_store_explicit(&directory_of(world)->lock, 0, memory_order_release);
}

static bool is_live(const hp_world *world, const hpi_entry *e) {
    return atomic_load_explicit(&e->generation, memory_order_acquire) == world->generation;
}

static bool has_joined(const hp_world *world, const hpi_entry *e, int world_rank) {
    const int place = world->place_of[world_rank];
    const uint64_t bits = atomic_load_explicit(&e->joined[place / 64], memory_order_relaxed);
    return bits >> (place % 64) & 1;
}

static void mark_joined(const hp_world *world, hpi_entry *e) {
    const int place = world->place_of[world->rank];
    atomic_fetch_or_explicit(&e->joined[place / 64], UINT64_C(1) << (place % 64),
                             memory_order_relaxed);
}

/* The oldest group of this list that we have not joined yet. */
static hpi_entry *find_entry(const hp_world *world, const membership *m) {
    hpi_directory *d = directory_of(world);
    hpi_entry *found = NULL;
    for (uint64_t i = 0; i < d->n_entries; i++) {
        hpi_entry *e = &d->entries[i];
        if (is_live(world, e) && e->hash[0] == m->hash[0] && e->hash[1] == m->hash[1] &&
            e->size == (uint32_t)m->n_ranks && !has_joined(world, e, world->rank) &&
            (!found || e->serial < found->serial))
            found = e;
    }
    return found;
}

/* By difference, as lines compare. */
static uint64_t further(const _Atomic uint64_t *word, uint64_t than) {
    const uint64_t value = atomic_load_explicit(word, memory_order_acquire);
    return (int64_t)(value - than) > 0 ? value : than;
}

static uint64_t furthest_value(const hp_world *world, const int *world_ranks, int n_ranks,
                               uint32_t slot) {
    uint64_t furthest = atomic_load_explicit(
        &hpi_segment_lines(&world->segments[world_ranks[0]], slot)->value, memory_order_acquire);
    for (int i = 0; i < n_ranks; i++) {
        const hpi_line *lines = hpi_segment_lines(&world->segments[world_ranks[i]], slot);
        const hpi_said *ring = hpi_segment_ring(&world->segments[world_ranks[i]], slot);
        for (int k = 0; k < HPI_N_LINES; k++)
            furthest = further(&lines[k].value, furthest);
        for (int k = 0; k < HPI_N_SAID; k++)
            furthest = further(&ring[k].value, furthest);
    }
    return furthest;
}

static hp_status new_entry(hp_world *world, const membership *m, const int *world_ranks,
                           hpi_entry **out_entry) {
    hpi_directory *d = directory_of(world);
    uint64_t i = 0;
    while (i < d->n_entries && is_live(world, &d->entries[i]))
        i++;
    if (i == HPI_MAX_GROUPS)
        return HPI_FAIL(HP_ERR_LIMIT,
                        "expected at most %d groups alive at once on a node, this is "
                        "one more",
                        HPI_MAX_GROUPS);
    hpi_entry *e = &d->entries[i];
    e->serial = ++d->n_serials;
    e->hash[0] = m->hash[0];
    e->hash[1] = m->hash[1];
    e->size = (uint32_t)m->n_ranks;
    e->base = furthest_value(world, world_ranks, m->n_ranks, (uint32_t)i);
    atomic_store_explicit(&e->n_left, 0, memory_order_relaxed);
    atomic_store_explicit(&e->refused, 0, memory_order_relaxed);
    for (int k = 0; k < HPI_MAX_LOCAL / 64; k++)
        atomic_store_explicit(&e->joined[k], 0, memory_order_relaxed);
    atomic_store_explicit(&e->generation, world->generation, memory_order_release);
    d->n_entries = hpi_max(d->n_entries, i + 1);
    *out_entry = e;
    return HP_OK;
}

hp_status hpi_directory_join(hp_world *world, const int *world_ranks, int n_ranks, uint64_t of,
                             uint32_t *out_slot, uint64_t *out_base) {
    const membership m = membership_of(world_ranks, n_ranks, of);
    HP_TRY(directory_lock(world));
    hpi_entry *e = find_entry(world, &m);
    const hp_status status = e ? HP_OK : new_entry(world, &m, world_ranks, &e);
    if (!status) {
        mark_joined(world, e);
        *out_slot = (uint32_t)(e - directory_of(world)->entries);
        *out_base = e->base;
    }
    directory_unlock(world);
    return status;
}

void hpi_directory_leave(hp_world *world, uint32_t slot) {
    hpi_entry *e = &directory_of(world)->entries[slot];
    /* read first: as soon as the last member has left, the entry may be another group's */
    const uint32_t size = e->size;
    /* the last one's release follows everybody's last write to the lines */
    if (atomic_fetch_add_explicit(&e->n_left, 1, memory_order_acq_rel) + 1 == size)
        atomic_store_explicit(&e->generation, 0, memory_order_release);
}

void hpi_directory_disown(hp_world *world, uint32_t slot) {
    hpi_entry *e = &directory_of(world)->entries[slot];
    hp_error record;
    hp_last_error_get(&record);
    const bool is_locked = directory_lock(world) == HP_OK;
    const bool is_ours = is_locked && is_live(world, e) && !has_joined(world, e, world->rank);
    if (is_ours)
        mark_joined(world, e);
    if (is_locked)
        directory_unlock(world);
    if (is_ours)
        hpi_directory_refuse(world, slot, HP_ERR_MISMATCH);
    (void)hpi_error_set(&record);
}

void hpi_directory_refuse(hp_world *world, uint32_t slot, hp_status status) {
    hpi_entry *e = &directory_of(world)->entries[slot];
    const uint64_t why = (uint64_t)(-(int64_t)status) << 32;
    atomic_store_explicit(&e->refused, why | (1 + (uint64_t)world->rank), memory_order_release);
    hpi_directory_leave(world, slot);
}

int hpi_directory_refused(const hp_world *world, uint32_t slot, hp_status *out_status) {
    const hpi_entry *e = &directory_of(world)->entries[slot];
    const uint64_t refused = atomic_load_explicit(&e->refused, memory_order_acquire);
    *out_status = (hp_status)(-(int64_t)(refused >> 32));
    return (int)(uint32_t)refused - 1;
}

bool hpi_directory_has_joined(const hp_world *world, uint32_t slot, int world_rank) {
    return has_joined(world, &directory_of(world)->entries[slot], world_rank);
}

/* serial is written before generation (release): who sees another group's generation sees its
 * serial. */
bool hpi_term_is_over(const hp_world *world, hpi_term term) {
    const hpi_entry *e = &directory_of(world)->entries[term.slot];
    return !is_live(world, e) ||
           atomic_load_explicit(&e->serial, memory_order_relaxed) != term.serial;
}

hpi_term hpi_group_term(const hp_group *group) {
    const hpi_entry *e = &directory_of(group->world)->entries[group->slot];
    return (hpi_term){atomic_load_explicit(&e->serial, memory_order_relaxed), group->slot};
}

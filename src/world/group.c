/* SPDX-License-Identifier: Apache-2.0
 *
 * group.c - groups: an ordered list of ranks and signal lines of their own.
 *
 * The directory says which lines a group has, without waiting for the other members; so creating a
 * group never blocks, and overlapping groups may be created in any order. A member that never comes
 * is noticed where it is first needed. A group whose members do not all share memory has no lines
 * of its own: spanning.c. split and duplicate are collective over the parent and
 * exchange over its set-up lines.
 */
#include "inside.h"

#include <stdio.h>

void hpi_name_ranks(const char *prefix, const int *ranks, int n, char *out_name, size_t size) {
    const int step = n > 1 ? ranks[1] - ranks[0] : 1;
    bool is_regular = n > 1 && step > 0;
    for (int i = 1; i < n && is_regular; i++)
        is_regular = ranks[i] - ranks[i - 1] == step;
    if (n == 1)
        snprintf(out_name, size, "%s[%d]", prefix, ranks[0]);
    else if (n == 2)
        snprintf(out_name, size, "%s[%d,%d]", prefix, ranks[0], ranks[1]);
    else if (is_regular && step == 1)
        snprintf(out_name, size, "%s[%d..%d]", prefix, ranks[0], ranks[n - 1]);
    else if (is_regular)
        snprintf(out_name, size, "%s[%d..%d by %d]", prefix, ranks[0], ranks[n - 1], step);
    else
        snprintf(out_name, size, "%s[%d,%d,%d%s]", prefix, ranks[0], ranks[1], ranks[2],
                 n > 3 ? ",..." : "");
}

/* ---- create ------------------------------------------------------------------------------- */

static hp_status check_members(const hp_world *world, const int *ranks, int n, int *out_rank) {
    int mine = -1;
    for (int i = 0; i < n; i++) {
        if (ranks[i] < 0 || ranks[i] >= world->n_ranks)
            return HPI_FAIL(HP_ERR_ARGUMENT, "expected members in [0, %d), given %d at place %d",
                            world->n_ranks, ranks[i], i);
        for (int k = 0; k < i; k++)
            if (ranks[k] == ranks[i])
                return HPI_FAIL(HP_ERR_ARGUMENT,
                                "expected each member once, rank %d is given twice", ranks[i]);
        if (ranks[i] == world->rank)
            mine = i;
    }
    if (mine < 0)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected this rank (%d) among the members", world->rank);
    *out_rank = mine;
    return HP_OK;
}

static void group_free(hp_group *group) {
    if (!group)
        return;
    hpi_spanning_close(group);
    hpi_free(group->world_ranks);
    hpi_free(group->pockets);
    hpi_free(group->lines);
    hpi_free(group);
}

/* Room for a group's record; NULL, with the error's record written, when there is none. */
static hp_group *group_make(hp_world *world, const int *world_ranks, int n_ranks, int rank) {
    const size_t n = (size_t)n_ranks;
    hp_group *group = hpi_alloc(1, sizeof *group);
    if (!group)
        return NULL;
    group->world = world;
    group->rank = rank;
    group->size = n_ranks;
    group->world_ranks = hpi_alloc(n, sizeof *group->world_ranks);
    group->lines = hpi_alloc(n, sizeof *group->lines);
    group->pockets = hpi_alloc(n, sizeof *group->pockets);
    if (!group->world_ranks || !group->lines || !group->pockets) {
        group_free(group);
        return NULL;
    }
    memcpy(group->world_ranks, world_ranks, n * sizeof *world_ranks);
    hpi_name_ranks("group", world_ranks, n_ranks, group->name, sizeof group->name);
    return group;
}

static hp_status take_lines(hp_group *group, uint32_t slot, uint64_t base) {
    const hp_world *world = group->world;
    const uint64_t begin = HPI_LINES_OFFSET + slot * HPI_SLOT_BYTES;
    group->slot = slot;
    group->base = base;
    HP_TRY(hpi_fd_commit(world->segments[world->rank].fd, begin, begin + HPI_SLOT_BYTES));
    for (int i = 0; i < group->size; i++) {
        const hpi_segment *segment = &world->segments[group->world_ranks[i]];
        group->lines[i] = hpi_segment_lines(segment, slot);
        group->pockets[i] = segment->base + hpi_pockets_offset(slot);
    }
    return HP_OK;
}

hp_status hpi_group_open_pockets(hp_group *group) {
    const hp_world *world = group->world;
    const uint64_t begin = hpi_pockets_offset(group->slot);
    return hpi_fd_commit(world->segments[world->rank].fd, begin, begin + 2 * HPI_POCKET_BYTES);
}

/* First the directory: a member that then has no memory for the group can say so in it. */
static hp_status create_on_node(hp_world *world, const int *world_ranks, int n_ranks, int rank,
                                uint64_t of, hp_group **out_group) {
    uint32_t slot;
    uint64_t base;
    HP_TRY(hpi_directory_join(world, world_ranks, n_ranks, of, &slot, &base));
    hp_group *group = group_make(world, world_ranks, n_ranks, rank);
    const hp_status status = group ? take_lines(group, slot, base) : HP_ERR_MEMORY;
    if (status) {
        hpi_directory_refuse(world, slot, status);
        group_free(group);
        return status;
    }
    *out_group = group;
    return HP_OK;
}

hp_status hpi_group_create_inner(const hp_group *of, const int *world_ranks, int n_ranks,
                                 hp_group **out_inner) {
    int rank = 0;
    while (world_ranks[rank] != of->world->rank)
        rank++;
    HP_TRY(create_on_node(of->world, world_ranks, n_ranks, rank, of->check, out_inner));
    hpi_group_set_name(*out_inner, of->name);
    return HP_OK;
}

static hp_status create_spanning(hp_world *world, const int *world_ranks, int n_ranks, int rank,
                                 bool is_carried, hp_group **out_group) {
    hp_group *group = group_make(world, world_ranks, n_ranks, rank);
    const hp_status status = group ? hpi_spanning_open(group, is_carried) : HP_ERR_MEMORY;
    if (status)
        group_free(group);
    else
        *out_group = group;
    return status;
}

static hp_status create(hp_world *world, const int *world_ranks, int n_ranks, hp_carrier carrier,
                        hp_group **out_group) {
    int rank;
    HP_TRY(hpi_world_usable(world));
    HP_TRY(check_members(world, world_ranks, n_ranks, &rank));
    const bool is_carried = carrier == HP_CARRIER_TRANSPORT;
    return is_carried || hpi_ranks_span(world, world_ranks, n_ranks)
               ? create_spanning(world, world_ranks, n_ranks, rank, is_carried, out_group)
               : create_on_node(world, world_ranks, n_ranks, rank, 0, out_group);
}

hp_status hp_group_create(hp_world *world, const int *world_ranks, int n_ranks,
                          hp_group **out_group) {
    if (!world || !world_ranks || !out_group || n_ranks < 1)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected a world, a list of at least one rank and a place for the group, "
                        "given %p, %p, %d ranks, %p",
                        (void *)world, (const void *)world_ranks, n_ranks, (void *)out_group);
    hpi_probe probe = hpi_probe_begin(HPI_EVENT_group_create, hpi_world_journal(world), NULL, 0, 0);
    const hp_status status = create(world, world_ranks, n_ranks, HP_CARRIER_AUTO, out_group);
    if (status == HP_OK)
        probe.group = (*out_group)->name;
    return hpi_probe_end(&probe, status);
}

void hp_group_destroy(hp_group *group) {
    if (!group)
        return;
    /* in a forked child the shared state is the parent's */
    if (hpi_world_usable(group->world) != HP_ERR_FORKED) {
        for (int slot = HPI_N_SLOTS - 1; slot >= 0; slot--)
            if (group->attached[slot].destroy)
                group->attached[slot].destroy(group->attached[slot].state);
        hpi_group_say_destroyed(group);
        if (!group->nodes)
            hpi_directory_leave(group->world, group->slot);
    }
    group_free(group);
}

/* The inner group's waits are this one's; relaxed: a number of its own. */
hp_status hp_group_timeout_set(hp_group *group, uint64_t timeout_ms) {
    if (!group)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a group, given NULL");
    atomic_store_explicit(&group->timeout_ms, timeout_ms, memory_order_relaxed);
    return group->inner ? hp_group_timeout_set(group->inner, timeout_ms) : HP_OK;
}

hp_status hp_group_cancel(hp_group *group) {
    if (!group)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a group, given NULL");
    (void)HPI_FAIL_RANK(HP_ERR_FAILED, group->world->rank, "rank %d cancelled %s",
                        group->world->rank, group->name);
    hpi_group_cancel(group);
    return HP_OK;
}

/* ---- split and duplicate ------------------------------------------------------------------ */

enum { SPLIT_COLOR, SPLIT_KEY, SPLIT_STATUS, N_SPLIT_WORDS };

/* Members of my color, by key, then by parent rank. Returns how many. */
static int split_order(const hp_group *parent, const uint64_t *words, int color, int *out_ranks) {
    int n = 0;
    for (int i = 0; i < parent->size; i++)
        if ((int64_t)words[N_SPLIT_WORDS * i + SPLIT_COLOR] == color)
            out_ranks[n++] = i;
    for (int i = 1; i < n; i++) /* insertion keeps equal keys in parent order */
        for (int k = i; k > 0; k--) {
            const int one = out_ranks[k], before = out_ranks[k - 1];
            if ((int64_t)words[N_SPLIT_WORDS * one + SPLIT_KEY] >=
                (int64_t)words[N_SPLIT_WORDS * before + SPLIT_KEY])
                break;
            out_ranks[k] = before;
            out_ranks[k - 1] = one;
        }
    for (int i = 0; i < n; i++)
        out_ranks[i] = parent->world_ranks[out_ranks[i]];
    return n;
}

/* Nobody splits when one member has no memory for it. */
static hp_status check_split(const hp_group *parent, const uint64_t *words) {
    for (int i = 0; i < parent->size; i++) {
        const hp_status status = (hp_status)(int64_t)words[N_SPLIT_WORDS * i + SPLIT_STATUS];
        if (status)
            return HPI_FAIL_RANK(status, parent->world_ranks[i], "rank %d could not split %s: %s",
                                 parent->world_ranks[i], parent->name, hp_status_text(status));
    }
    return HP_OK;
}

static hp_status split(hp_group *parent, int color, int key, hp_group **out_group) {
    uint64_t mine[N_SPLIT_WORDS] = {(uint64_t)(int64_t)color, (uint64_t)(int64_t)key};
    uint64_t *words = hpi_alloc((size_t)parent->size, sizeof mine);
    int *ranks = words ? hpi_alloc((size_t)parent->size, sizeof *ranks) : NULL;
    hp_group *group = NULL;
    mine[SPLIT_STATUS] = (uint64_t)(int64_t)(ranks ? HP_OK : HP_ERR_MEMORY);
    hp_status status =
        hpi_group_exchange(parent, "group_split", mine, N_SPLIT_WORDS, ranks ? words : NULL);
    if (!status)
        status = ranks ? check_split(parent, words) : HP_ERR_MEMORY;
    if (!status && color >= 0)
        status =
            hp_group_create(parent->world, ranks, split_order(parent, words, color, ranks), &group);
    hpi_free(words);
    hpi_free(ranks);
    if (!status)
        *out_group = group;
    return status;
}

hp_status hp_group_split(hp_group *parent, int color, int key, hp_group **out_group) {
    if (!parent || !out_group)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected a group and a place for the new one, given NULL");
    const hpi_probe probe = hpi_probe_begin(HPI_EVENT_group_split, hpi_world_journal(parent->world),
                                            parent->name, 0, 0);
    hp_status status = hpi_group_enter(parent, __func__);
    if (status == HP_OK) {
        status = split(parent, color, key, out_group);
        hpi_group_leave(parent);
    }
    return hpi_probe_end(&probe, status);
}

static hp_status duplicate(hp_group *group, hp_carrier carrier, const char *call,
                           hp_group **out_group) {
    const hpi_probe probe = hpi_probe_begin(HPI_EVENT_group_duplicate,
                                            hpi_world_journal(group->world), group->name, 0, 0);
    hp_status status = hpi_group_enter(group, call);
    if (status == HP_OK) {
        status = create(group->world, group->world_ranks, group->size, carrier, out_group);
        hpi_group_leave(group);
    }
    return hpi_probe_end(&probe, status);
}

static hp_carrier carrier_of(const hp_group *group) {
    return group->nodes && group->nodes->n == group->size ? HP_CARRIER_TRANSPORT : HP_CARRIER_AUTO;
}

hp_status hp_group_duplicate(hp_group *group, hp_group **out_group) {
    if (!group || !out_group)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected a group and a place for the new one, given NULL");
    return duplicate(group, carrier_of(group), __func__, out_group);
}

hp_status hp_group_duplicate_over(hp_group *group, hp_carrier carrier, hp_group **out_group) {
    if (!group || !out_group || (carrier != HP_CARRIER_AUTO && carrier != HP_CARRIER_TRANSPORT))
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected a group, a carrier from %d to %d and a place for the new group, "
                        "given %p, %d, %p",
                        HP_CARRIER_AUTO, HP_CARRIER_TRANSPORT, (void *)group, (int)carrier,
                        (void *)out_group);
    return duplicate(group, carrier, __func__, out_group);
}

/* ---- what a group is ---------------------------------------------------------------------- */

int hp_group_rank(const hp_group *group) {
    return group->rank;
}
int hp_group_size(const hp_group *group) {
    return group->size;
}
hp_world *hp_group_world(const hp_group *group) {
    return group->world;
}
int hp_group_world_rank(const hp_group *group, int rank) {
    return rank >= 0 && rank < group->size ? group->world_ranks[rank] : -1;
}

void hpi_group_set_name(hp_group *group, const char *name) {
    snprintf(group->name, sizeof group->name, "%s", name);
}

bool hpi_group_attach(hp_group *group, int slot, void *state, void (*destroy)(void *state)) {
    return hpi_attach(&group->attached[slot], state, destroy);
}
/* ---- one thread at a time ------------------------------------------------------------------ */

hp_status hpi_group_tell_busy(const hp_group *group, const char *call) {
    return hpi_fail(HP_ERR_BUSY, group->world->rank, call, __FILE__, __LINE__,
                    "expected one thread at a time in group %s, rank %d has another one inside",
                    group->name, group->world->rank);
}

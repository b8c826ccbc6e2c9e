/* SPDX-License-Identifier: Apache-2.0
 *
 * across.c - one collective of a group that spans nodes, from its call to its end.
 *
 * It is checked as any other; then members agree while the first data move, see agree.c. Whatever
 * is left of it when it ends, well or not, is waited for or given up, so that nothing is written to
 * an operand afterwards; but for what the network is cut off in the middle of, see `cancel` of
 * transport.h. A failure leaves members at different places: it fails the group.
 */
#include "across.h"

#include <stdio.h>

enum { SCRATCH_BYTES = 16 << 20, PIECE_BYTES = 1 << 20 };

/* ---- state ---- */

static void across_destroy(hpi_across *a) {
    if (!a)
        return;
    hpi_flights_free(a);
    hpi_free(a->folds);
    hpi_free(a->branches);
    hpi_free(a->tree);
    hpi_free(a->sent);
    hpi_free(a->heard);
    hpi_free(a->beside);
    hpi_free(a->counts);
    hpi_free(a->begins);
    for (int i = 0; i < 2; i++) {
        hpi_free(a->inner_counts[i]);
        hpi_free(a->inner_begins[i]);
    }
    hpi_free(a->slots.at);
    hpi_free(a->pack.at);
    hpi_free(a);
}

static void state_destroy(void *memory) {
    hpi_coll_state *s = memory;
    if (!s)
        return;
    across_destroy(s->across);
    hpi_free(s->packed[0]);
    hpi_free(s->packed[1]);
    hpi_free(s);
}

static bool take_memory(hpi_across *a) {
    const size_t n = (size_t)a->n, size = (size_t)a->size;
    bool is_there = true;
    for (int i = 0; i < 2; i++) {
        a->inner_counts[i] = hpi_alloc(size, sizeof **a->inner_counts);
        a->inner_begins[i] = hpi_alloc(size, sizeof **a->inner_begins);
        is_there &= a->inner_counts[i] && a->inner_begins[i];
    }
    a->folds = hpi_alloc((size_t)a->nodes->n, sizeof *a->folds);
    a->branches = hpi_alloc(n, sizeof *a->branches);
    a->tree = hpi_alloc_aligned(64, hpi_scratch_bytes(a->n));
    a->sent = hpi_alloc(n, sizeof *a->sent);
    a->heard = hpi_alloc(n, sizeof *a->heard);
    a->beside = hpi_alloc(size, sizeof *a->beside);
    a->counts = hpi_alloc(n, sizeof *a->counts);
    a->begins = hpi_alloc(n, sizeof *a->begins);
    return is_there && a->folds && a->branches && a->tree && a->sent && a->heard && a->beside &&
           a->counts && a->begins;
}

static hp_status across_create(hp_group *group, hpi_across **out_across) {
    hpi_across *a = hpi_alloc(1, sizeof *a);
    if (!a)
        return HP_ERR_MEMORY;
    *out_across = a;
    a->group = group;
    a->inner = hpi_group_inner(group);
    a->nodes = hpi_group_nodes(group);
    a->n = hp_group_size(group);
    a->rank = hp_group_rank(group);
    a->mine = a->nodes->mine;
    a->place = a->nodes->place_of[a->rank];
    a->size = hpi_node_size(a->nodes, a->mine);
    a->scratch_bytes = SCRATCH_BYTES;
    a->piece_bytes = PIECE_BYTES;
    if (!take_memory(a))
        return HP_ERR_MEMORY;
    hpi_tree_plant(a);
    for (int over_wire = 0; over_wire < 2; over_wire++)
        a->n_slots[over_wire] = hpi_sum_slots(a, over_wire);
    return HP_OK;
}

/* Of the state of other groups what is of use here: the number of the collective, the last row,
 * and where parts begin. */
hp_status hpi_across_state(hp_group *group, hpi_coll_state **out_state) {
    const size_t n = (size_t)hp_group_size(group);
    *out_state = hpi_group_attached(group, HPI_SLOT_COLL);
    if (*out_state)
        return HP_OK;
    hpi_coll_state *s = hpi_alloc(1, sizeof *s);
    if (!s)
        return HP_ERR_MEMORY;
    s->group = group;
    s->packed[0] = hpi_alloc(n, sizeof **s->packed);
    s->packed[1] = hpi_alloc(n, sizeof **s->packed);
    if (!s->packed[0] || !s->packed[1] || across_create(group, &s->across)) {
        state_destroy(s);
        return HP_ERR_MEMORY;
    }
    hpi_group_attach(group, HPI_SLOT_COLL, s, state_destroy);
    *out_state = s;
    return HP_OK;
}

/* ---- what the ways share ---- */

hp_status hpi_room_take(hpi_room *room, uint64_t bytes) {
    if (bytes <= room->bytes)
        return HP_OK;
    hpi_free(room->at);
    *room = (hpi_room){hpi_alloc_aligned(64, hpi_align_up(bytes, 64)), bytes};
    if (room->at)
        return HP_OK;
    room->bytes = 0;
    return HP_ERR_MEMORY;
}

hpi_parts hpi_equal_parts(hpi_across *a, uint64_t count) {
    for (int i = 0; i < a->n; i++) {
        a->counts[i] = count;
        a->begins[i] = (uint64_t)i * count;
    }
    return (hpi_parts){a->counts, a->begins};
}

uint64_t hpi_longest(const hpi_across *a, const uint64_t *counts) {
    uint64_t longest = 0;
    for (int i = 0; i < a->n; i++)
        longest = hpi_max(longest, counts[i]);
    return longest;
}

hp_status hpi_across_inner(hpi_across *a, hp_collective what, const hpi_coll *c) {
    return hpi_coll_run(a->inner, what, c, true, NULL);
}

/* ---- one collective ---- */

/* All of this node have come, then of the others; then those here have been told so. */
static hp_status barrier(hpi_across *a) {
    const hpi_coll c = {.blocks = 1, .dtype = HP_UINT8, .out_dtype = HP_UINT8};
    HP_TRY(hpi_agree_end(a));
    return a->size == 1 ? HP_OK : hpi_across_inner(a, HP_BARRIER, &c);
}

static hp_status move(hpi_across *a) {
    switch (a->run->what) {
    case HP_ALL_GATHER:
    case HP_ALL_GATHER_V:
        return hpi_across_gather(a);
    case HP_REDUCE_SCATTER:
    case HP_REDUCE_SCATTER_V:
        return hpi_across_scatter_reduce(a);
    case HP_ALL_REDUCE:
        return hpi_is_short(a) ? hpi_across_reduce_short(a) : hpi_across_reduce(a);
    case HP_ALL_TO_ALL:
    case HP_ALL_TO_ALL_V:
        return hpi_across_exchange(a);
    case HP_BROADCAST:
        return hpi_across_broadcast(a);
    default:
        return barrier(a);
    }
}

static hp_status run_together(hpi_across *a) {
    a->sent_bytes = a->received_bytes = 0;
    HP_TRY(hpi_agree_begin(a));
    HP_TRY(a->run->is_empty && a->run->what != HP_BARRIER ? hpi_agree_end(a) : move(a));
    return hpi_land_all(a, HPI_SENT);
}

/* What depends on the call and the state alone. */
static void prepare(hpi_run *run) {
    hpi_across *a = run->state->across;
    hpi_words_prepare(run);
    if (hpi_is_v(run->what))
        hpi_parts_lay(run);
    run->c.in = run->c.in ? run->c.in : a->nothing;
    run->c.out = run->c.out ? run->c.out : a->nothing;
    a->run = run;
    a->row =
        (hpi_algorithm){.what = run->what,
                        .name = "across",
                        .needs = run->wire == HP_WIRE_FULL ? HPI_NEEDS_NOTHING : HPI_NEEDS_WIRE,
                        .steps = 1};
}

static hp_status run_checked(hpi_run *run, uint64_t *out_seq) {
    hpi_coll_state *s = run->state;
    char note[64];
    run->seq = atomic_load_explicit(&s->seq, memory_order_relaxed) + 1;
    atomic_store_explicit(&s->seq, run->seq, memory_order_relaxed);
    prepare(run);
    hpi_probe probe = hpi_probe_begin(
        hpi_collective_event(run->what), hpi_world_journal(hp_group_world(run->group)),
        hpi_group_name(run->group), run->seq, hpi_max(run->in_bytes, run->out_bytes));
    const hp_status status = run_together(s->across);
    hpi_flights_end(s->across);
    if (status < 0)
        hpi_group_fail(run->group);
    else if (out_seq)
        *out_seq = run->seq;
    s->last = run->is_empty ? NULL : &s->across->row;
    snprintf(note, sizeof note, "across, %s", hpi_coll_last(s->across->inner));
    probe.note = note;
    const hp_status ended = hpi_probe_end(&probe, status);
    probe.note = NULL;
    return ended;
}

hp_status hpi_across_run(hp_group *group, hp_collective what, const hpi_coll *c,
                         uint64_t *out_seq) {
    hpi_run run;
    HP_TRY(hpi_group_enter(group, hpi_collective_name(what)));
    hp_status status = hpi_coll_check(group, what, c, &run);
    if (status == HP_OK) {
        status = hpi_across_state(group, &run.state);
        if (status < 0) /* the others will wait for this rank */
            hpi_group_fail(group);
        else
            status = run_checked(&run, out_seq);
    }
    hpi_group_leave(group);
    return status;
}

void hpi_across_traffic(const hpi_run *run, hp_coll_traffic *out_traffic) {
    const hpi_across *a = run->state->across;
    *out_traffic = (hp_coll_traffic){a->row.name, a->row.steps, a->sent_bytes, a->received_bytes};
}

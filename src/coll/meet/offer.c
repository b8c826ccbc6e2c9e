/* SPDX-License-Identifier: Apache-2.0
 *
 * offer.c - where a rank's operands lie, as it says when it enters.
 *
 * An input of up to 32 bytes comes itself in the words. A small one is *carried*: copied to where
 * all can read it, before its rank says so, so that nobody waits once more, and no peer touches the
 * caller's memory. Carried is what lies in ordinary memory, what is so small that the copy costs
 * nothing, and what would cost its writer more to take back from its readers than two copies do
 * (AMD; see ring.c). Anything else is named: {key, offset} in symmetric memory.
 * An all-reduce in place does better where it lies, if every rank's lies in symmetric memory.
 *
 * It is decided from this rank's memory alone. Where only some ranks carry, what they carried is as
 * good as ordinary memory that peers may not read, and all go through cells.
 *
 * Two pockets alternate over the collectives that may use them: a rank fills the one of two ago
 * after its collective of one ago, a meeting, has found all peers there, and so out of that of two
 * ago. What is larger goes into the ring, for the same reason: see ring.c. Of two ranks each fills
 * what it has read in the collective before.
 */
#include "words.h"

/* Where an operand lies, for the whole group; key 0 and its address when not every member can see
 * it. The pointers of those who will name the same place are kept in `peers`. */
static hpi_place place_of(const hpi_run *run, const void *pointer, uint64_t bytes, void *peers) {
    if (bytes && hpi_symm_peers(run->group, pointer, bytes, peers))
        return hpi_symm_place(hp_group_world(run->group), pointer, bytes);
    return (hpi_place){0, (uintptr_t)pointer};
}

static hpi_place place_of_input(const hpi_run *run) {
    if (run->in_bytes == 0)
        return hpi_nowhere;
    if (run->what == HP_ALL_TO_ALL && run->is_in_place) /* it is written before all have read it */
        return (hpi_place){0, 0};
    return place_of(run, run->c.in, run->in_bytes, run->state->in);
}

/* The last two words: a place of an all-reduce, else numbers. A reduce-scatter reads its part where
 * this rank's offsets say, so it reads in place only where all have laid them out in one way. */
static hpi_place said_last(const hpi_run *run) {
    switch (run->what) {
    case HP_ALL_REDUCE: /* those whose outputs peers write */
    case HP_BROADCAST:
        return place_of(run, run->c.out, run->out_bytes, run->state->out);
    case HP_ALL_GATHER_V:
        return (hpi_place){run->c.count, 0};
    case HP_REDUCE_SCATTER_V:
        return (hpi_place){run->c.count, hpi_words_hash(run, run->in_parts.begins)};
    case HP_ALL_TO_ALL_V:
        return (hpi_place){hpi_exchange_balance(run), hpi_part_longest(run)};
    default:
        return (hpi_place){0, 0};
    }
}

/* ---- carrying ---- */

static bool is_in_symmetric_memory(const hpi_run *run, const hpi_entered *e) {
    return e->in.key && (run->what != HP_ALL_REDUCE || e->out.key);
}

/* NULL: there is no memory for a ring, and the call can do without. */
static unsigned char *room_for(hpi_run *run) {
    const uint64_t bytes = run->in_bytes - run->carried_own_bytes;
    if (bytes <= HPI_POCKET_BYTES)
        return hpi_pocket_of(run, run->rank);
    return hpi_ring_open(run) == HP_OK ? hpi_ring_take(run, bytes, true) : NULL;
}

/* No peer reads this rank's own part: the parts after it follow those before it. A gather may put
 * its part of the output there as well. */
static void fill(hpi_run *run, unsigned char *room) {
    const unsigned char *in = run->c.in;
    const uint64_t own = run->carried_own_bytes, begin = (uint64_t)run->rank * own;
    const uint64_t end = begin + own;
    run->state->twice_bytes = 0;
    if (run->what == HP_ALL_GATHER && run->c.blocks == 1 && !run->is_in_place) {
        unsigned char *out = (unsigned char *)run->c.out + (uint64_t)run->rank * run->in_bytes;
        run->has_own = hpi_ring_fill_twice(&run->state->distance, room, out, in, run->in_bytes);
        run->state->twice_bytes = run->has_own ? run->in_bytes : 0;
        return;
    }
    if (begin > 0)
        hpi_ring_fill(&run->state->distance, room, in, begin);
    if (end < run->in_bytes)
        hpi_ring_fill(&run->state->distance, room + begin, in + end, run->in_bytes - end);
}

static bool carry(hpi_run *run, hpi_entered *mine) {
    unsigned char *room = room_for(run);
    if (!room)
        return false;
    fill(run, room);
    *mine = (hpi_entered){{HPI_CARRIED, hpi_ring_told(run, room)}, {0, 0}};
    return true;
}

/* ---- what is said ---- */

static const uint64_t *offer_words(const hpi_run *run) {
    uint64_t *row = run->state->small[run->rank];
    memset(row, 0, HPI_SMALL_BYTES);
    memcpy(row, run->c.in, run->in_bytes);
    return row;
}

/* Who goes through cells for that alone has a ring, or gets one: it is not worth a failure. */
static bool is_afar(hpi_run *run, const hpi_entered *mine) {
    enum { CALLS_PER_DOUBT = 32 };
    hpi_distance *d = &run->state->distance;
    if (!mine->in.key || run->is_carried || run->c.tag || !hpi_is_afar(d) ||
        !hpi_has_row(run, HPI_NEEDS_AFAR) || hpi_ring_open(run) < 0)
        return false;
    if (d->is_unasked && ++run->state->n_afar % CALLS_PER_DOUBT == 0)
        d->n_slow--; /* this call reads where inputs lie, and times that: handback.c */
    return hpi_is_afar(d);
}

const uint64_t *hpi_offer(hpi_run *run, uint64_t room[HPI_SMALL_WORDS]) {
    hpi_entered *mine = &run->state->entered[run->rank];
    if (run->is_small)
        return offer_words(run);
    run->state->n_pocketed += run->may_be_carried;
    if (run->must_be_carried && carry(run, mine))
        run->is_carried = true;
    else
        *mine = (hpi_entered){place_of_input(run), said_last(run)};
    if (!run->is_carried && run->may_be_carried &&
        hpi_is_worth_carrying(run, is_in_symmetric_memory(run, mine)))
        run->is_carried = carry(run, mine);
    run->are_afar = is_afar(run, mine);
    room[0] = mine->in.key;
    room[1] = mine->in.offset | (run->are_afar ? HPI_IS_AFAR : 0);
    room[2] = mine->out.key;
    room[3] = mine->out.offset;
    return room;
}

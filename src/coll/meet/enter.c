/* SPDX-License-Identifier: Apache-2.0
 *
 * enter.c - the meeting at the start of a collective.
 *
 * Each rank writes what it is about to do into the entry k of its ring (world.h) and posts the
 * collective's number k; then it reads the entries k of all peers. A peer that has posted k has
 * left k - 1, so after a meeting nobody needs entries before k; a broadcast may go without a
 * meeting, and ahead.c bounds how many can follow each other so. The words hold a hash of all calls
 * up to k, so that a difference in one of those is found at the next meeting.
 *
 * The words say where the operands lie; an input of up to 32 bytes comes itself in their place, and
 * one of up to 16 KiB lies in the rank's pocket before it says anything. Two pockets alternate
 * over the collectives that use them: a rank fills the one of two ago after its collective of one
 * ago, a meeting, has found all peers there, and so out of that of two ago. An all-reduce in place
 * does better where it lies, if every rank's lies in symmetric memory; where only some do, those in
 * pockets go through cells with the others.
 * From the same words every rank chooses the same algorithm, so nothing more has to be agreed.
 */
#include "../direct/direct.h"
#include "words.h"

static uint64_t types_word(const hpi_run *run) {
    const hpi_types t = {run->what,
                         run->c.dtype,
                         run->c.out_dtype,
                         run->c.op,
                         hpi_only_of(run),
                         run->wire,
                         run->c.is_wire_result,
                         (unsigned)run->c.root,
                         run->c.pass,
                         run->c.tag & 0xffffff};
    return hpi_pack_types(&t);
}

static void word_store(_Atomic uint64_t *word, uint64_t value) {
    atomic_store_explicit(word, value, memory_order_relaxed);
}
static uint64_t word_load(const _Atomic uint64_t *word) {
    return atomic_load_explicit(word, memory_order_relaxed);
}

/* ---- saying ---- */

/* Where an operand lies, for the whole group; key 0 and its address when not every member can see
 * it. The pointers of those who will name the same place are kept in `peers`. */
static hpi_place place_of(const hpi_run *run, const void *pointer, uint64_t bytes, void *peers) {
    if (bytes && hpi_symm_peers(run->group, pointer, bytes, peers))
        return hpi_symm_place(hp_group_world(run->group), pointer, bytes);
    return (hpi_place){0, (uintptr_t)pointer};
}

/* An input without an element is as good as placed: nobody reads it. */
static const hpi_place nothing = {0, 1};

static bool same_place(hpi_place a, hpi_place b) {
    return a.key == b.key && a.offset == b.offset;
}

static hpi_place place_of_input(const hpi_run *run) {
    if (run->in_bytes == 0)
        return nothing;
    if (run->what == HP_ALL_TO_ALL && run->is_in_place) /* it is written before all have read it */
        return (hpi_place){0, 0};
    return place_of(run, run->c.in, run->in_bytes, run->state->in);
}

static uint64_t hash(const hpi_run *run, const uint64_t *numbers) {
    return hpi_checksum(numbers, (uint64_t)run->n * sizeof *numbers);
}

/* The last two words: a place of an all-reduce, else numbers. A reduce-scatter reads its part where
 * this rank's offsets say, so it reads in place only where all have laid them out in one way. */
static hpi_place said_last(const hpi_run *run) {
    switch (run->what) {
    case HP_ALL_REDUCE: /* the one collective whose outputs peers write */
        return place_of(run, run->c.out, run->out_bytes, run->state->out);
    case HP_ALL_GATHER_V:
        return (hpi_place){run->c.count, 0};
    case HP_REDUCE_SCATTER_V:
        return (hpi_place){run->c.count, hash(run, run->in_parts.begins)};
    case HP_ALL_TO_ALL_V:
        return (hpi_place){hpi_exchange_balance(run), hpi_part_longest(run)};
    default:
        return (hpi_place){0, 0};
    }
}

/* The counts of a v form stand for its count; those of all_to_all_v differ, see its balance. */
static uint64_t count_word(const hpi_run *run) {
    if (run->what == HP_ALL_GATHER_V)
        return hash(run, run->c.out_counts);
    return run->what == HP_REDUCE_SCATTER_V ? hash(run, run->c.in_counts) : run->c.count;
}

static uint64_t mix(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 32;
}

void hpi_words_prepare(hpi_run *run) {
    run->types = types_word(run);
    run->count_word = count_word(run);
    run->mixed = mix(mix(run->types, run->count_word), run->c.blocks);
}

/* The words are kept: to read them back from the entry would take it from a peer that reads them.
 */
void hpi_words_write(hpi_run *run, const uint64_t payload[HPI_SMALL_WORDS]) {
    hpi_coll_state *s = run->state;
    uint64_t *said = s->said;
    said[HPI_WORD_TYPES] = run->types;
    said[HPI_WORD_COUNT] = run->count_word;
    s->history = mix(s->history, run->mixed);
    said[HPI_WORD_BLOCKS] = hpi_pack_blocks(run->c.blocks, s->history);
    memcpy(said + HPI_WORD_PLACES, payload, HPI_SMALL_BYTES);
    hpi_said *entry = hpi_group_said(run->group, run->rank, run->seq);
    for (int i = 0; i < HPI_N_WORDS; i++)
        word_store(&entry->words[i], said[i]);
}

/* What a rank says that is in its pocket: it names no place, which peers could not read anyhow. */
static const hpi_entered in_pocket = {{0, 0}, {0, 0}};

static unsigned char *pocket_of(const hpi_run *run, int rank) {
    return hpi_group_pocket(run->group, rank, run->state->n_pocketed);
}

/* Decided from this rank's memory alone; whoever is in its pocket names no place. */
static void choose_pocket(hpi_run *run) {
    hpi_entered *mine = &run->state->entered[run->rank];
    run->state->n_pocketed++;
    if (hpi_stays_in_place(run))
        *mine = (hpi_entered){place_of_input(run), said_last(run)};
    else
        *mine = in_pocket;
    run->is_in_pocket = !mine->in.key || !mine->out.key;
    if (run->is_in_pocket) {
        *mine = in_pocket;
        memcpy(pocket_of(run, run->rank), run->c.in, run->in_bytes);
    }
}

/* Beside the place of an input in symmetric memory: this rank has found the others near. */
#define IS_NEAR (UINT64_C(1) << 63)

/* A call that needs no more memory must not fail for it. The option is the same on every rank. */
static bool has_room_for_cells(const hpi_run *run) {
    return hpi_world_options(hp_group_world(run->group))->heap_size == 0;
}

static void say(hpi_run *run) {
    uint64_t payload[HPI_SMALL_WORDS] = {0};
    if (run->may_be_in_pocket)
        choose_pocket(run);
    if (run->is_small) {
        memcpy(payload, run->c.in, run->in_bytes);
        memcpy(run->state->small[run->rank], payload, HPI_SMALL_BYTES);
    } else if (!run->is_in_pocket) {
        hpi_entered *mine = &run->state->entered[run->rank];
        if (!run->may_be_in_pocket)
            *mine = (hpi_entered){place_of_input(run), said_last(run)};
        payload[0] = mine->in.key;
        run->are_near = mine->in.key && hpi_found_near(run) && has_room_for_cells(run);
        payload[1] = mine->in.offset | (run->are_near ? IS_NEAR : 0);
        payload[2] = mine->out.key;
        payload[3] = mine->out.offset;
    }
    hpi_words_write(run, payload);
    hpi_said_post(run->group, run->seq);
}

/* ---- listening ---- */

hp_status hpi_words_hear(hpi_run *run, int peer, uint64_t out_payload[HPI_SMALL_WORDS]) {
    uint64_t w[HPI_N_WORDS];
    HP_TRY(hpi_said_wait(run->group, peer, run->seq, run->name));
    const hpi_said *entry = hpi_group_said(run->group, peer, run->seq);
    for (int i = 0; i < HPI_N_WORDS; i++)
        w[i] = word_load(&entry->words[i]);
    HP_TRY(hpi_words_compare(run, peer, w));
    memcpy(out_payload, w + HPI_WORD_PLACES, HPI_SMALL_BYTES);
    return HP_OK;
}

/* What a peer says: compare it, and keep what it says beyond that. */
static hp_status listen(hpi_run *run, int peer) {
    hpi_coll_state *s = run->state;
    uint64_t last[HPI_SMALL_WORDS];
    HP_TRY(hpi_words_hear(run, peer, last));
    if (run->is_small) {
        memcpy(s->small[peer], last, HPI_SMALL_BYTES);
        s->in[peer] = (const unsigned char *)s->small[peer];
    } else {
        if (run->is_in_pocket)
            s->in[peer] = pocket_of(run, peer);
        if (!last[0] || !(last[1] & IS_NEAR))
            run->are_near = false;
        else
            last[1] &= ~IS_NEAR;
        s->entered[peer] = (hpi_entered){{last[0], last[1]}, {last[2], last[3]}};
    }
    return HP_OK;
}

/* Who is in symmetric memory: of a broadcast the root alone matters. */
static void survey_places(hpi_run *run) {
    const hpi_entered *mine = &run->state->entered[run->rank];
    run->inputs_placed = true;
    run->outputs_placed = run->what == HP_ALL_REDUCE;
    for (int i = 0; i < run->n; i++) {
        const hpi_entered *e = &run->state->entered[i];
        const bool is_seen = e->in.key || same_place(e->in, nothing);
        if (!is_seen && (run->what != HP_BROADCAST || i == run->c.root))
            run->inputs_placed = false;
        if (run->what == HP_REDUCE_SCATTER_V && e->out.offset != mine->out.offset)
            run->inputs_placed = false;
        if (!e->out.key)
            run->outputs_placed = false;
    }
}

/* An all_to_all_v: is every part as long as its receiver expects, and which is the longest? */
static hp_status survey_exchange(hpi_run *run) {
    uint64_t balance = 0;
    for (int i = 0; i < run->n; i++) {
        const hpi_entered *e = &run->state->entered[i];
        balance += e->out.key;
        run->longest = hpi_max(run->longest, e->out.offset);
    }
    return balance == 0 ? HP_OK : hpi_exchange_blame(run);
}

/* Would a row of direct/ run, if ranks can read each other's memory? Then they find out whether. */
static hp_status survey_reach(hpi_run *run) {
    hpi_coll_state *s = run->state;
    const bool is_placed =
        run->inputs_placed && (run->outputs_placed || run->what != HP_ALL_REDUCE);
    bool is_named = run->wire == HP_WIRE_FULL && run->what != HP_ALL_TO_ALL_V;
    for (int i = 0; i < run->n && is_named; i++) {
        const hpi_entered *e = &s->entered[i];
        const bool is_read = run->what != HP_BROADCAST || i == run->c.root;
        if ((is_read && !e->in.key && !e->in.offset) ||
            (run->what == HP_REDUCE_SCATTER_V && e->out.offset != s->entered[run->rank].out.offset))
            is_named = false;
    }
    if (is_named && (s->only ? strcmp(s->only, "direct") == 0
                             : !is_placed && hpi_is_from(run, HPI_FROM_DIRECT)))
        HP_TRY(hpi_direct_open(run));
    run->is_readable = is_named && s->reach == HPI_REACH_ALL;
    return HP_OK;
}

/* Are all in their pockets? Where only some are, nobody counts as being. */
static bool are_in_pockets(const hpi_run *run) {
    for (int i = 0; i < run->n && run->is_in_pocket; i++)
        if (run->state->entered[i].in.key)
            return false;
    return run->is_in_pocket;
}

/* What all ranks find in what all have said. */
static hp_status survey(hpi_run *run) {
    survey_places(run);
    if (run->what == HP_ALL_TO_ALL_V)
        HP_TRY(survey_exchange(run));
    return survey_reach(run);
}

/* Turn places into pointers; those that equal our own were found when we entered. */
static hp_status find_places(hpi_run *run) {
    hpi_coll_state *s = run->state;
    hp_world *world = hp_group_world(run->group);
    const hpi_entered *mine = &s->entered[run->rank];
    for (int i = 0; i < run->n; i++) {
        const hpi_entered *e = &s->entered[i];
        const bool has_out = run->outputs_placed;
        const int world_rank = hp_group_world_rank(run->group, i);
        if (e->in.key && !same_place(e->in, mine->in))
            s->in[i] = hpi_symm_at(world, e->in, world_rank);
        if (has_out && !same_place(e->out, mine->out))
            s->out[i] = hpi_symm_at(world, e->out, world_rank);
        if ((e->in.key && !s->in[i]) || (has_out && !s->out[i]))
            return HPI_FAIL_RANK(HP_ERR_HANDLE, world_rank,
                                 "%s: expected rank %d (world %d) of %s to use live memory, it was "
                                 "freed meanwhile",
                                 run->name, i, world_rank, hpi_group_name(run->group));
    }
    return HP_OK;
}

/* What did not come with the meeting: by which algorithm it moves, and where from. */
static hp_status find(hpi_run *run) {
    HP_TRY(survey(run));
    HP_TRY(hpi_choose(run));
    const hpi_needs needs = run->algorithm->needs;
    if (needs == HPI_NEEDS_READABLE)
        return hpi_direct_find(run);
    if (needs == HPI_NEEDS_INPUTS || needs == HPI_NEEDS_OUTPUTS || hpi_needs_wire(needs))
        return find_places(run);
    return HP_OK;
}

hp_status hpi_coll_enter(hpi_run *run) {
    hpi_coll_state *s = run->state;
    HP_TRY(hpi_ahead_wait(run));
    say(run);
    HP_TRY(hpi_wait_beside(run->group, HPI_LINE_SAID, run->seq, run->name));
    for (int k = 1; k < run->n; k++)
        HP_TRY(listen(run, (run->rank + k) % run->n));
    hpi_ahead_met(run);
    if (run->is_empty)
        return HP_OK;
    run->is_in_pocket = are_in_pockets(run);
    if (run->is_small || run->is_in_pocket)
        run->algorithm = run->carried;
    else
        HP_TRY(find(run));
    s->in[run->rank] = run->c.in;
    s->out[run->rank] = run->c.out;
    return HP_OK;
}

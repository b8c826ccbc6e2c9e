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
 * The words say where the operands lie, or are the input: offer.c.
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

uint64_t hpi_words_hash(const hpi_run *run, const uint64_t *numbers) {
    return hpi_checksum(numbers, (uint64_t)run->n * sizeof *numbers);
}

/* The counts of a v form stand for its count; those of all_to_all_v differ, see its balance. */
static uint64_t count_word(const hpi_run *run) {
    if (run->what == HP_ALL_GATHER_V)
        return hpi_words_hash(run, run->c.out_counts);
    return run->what == HP_REDUCE_SCATTER_V ? hpi_words_hash(run, run->c.in_counts) : run->c.count;
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

/* What is compared is kept: to read it back from the entry would take that from a peer that reads
 * it. Word by word: a vector that is loaded right after its parts were stored has to wait for them.
 */
void hpi_words_write(hpi_run *run, const uint64_t payload[HPI_SMALL_WORDS]) {
    hpi_coll_state *s = run->state;
    uint64_t *said = s->said;
    said[HPI_WORD_TYPES] = run->types;
    said[HPI_WORD_COUNT] = run->count_word;
    s->history = mix(s->history, run->mixed);
    said[HPI_WORD_BLOCKS] = hpi_pack_blocks(run->c.blocks, s->history);
    hpi_said *entry = hpi_group_said(run->group, run->rank, run->seq);
    for (int i = 0; i < HPI_WORD_PLACES; i++)
        word_store(&entry->words[i], said[i]);
    for (int i = 0; i < HPI_SMALL_WORDS; i++)
        word_store(&entry->words[HPI_WORD_PLACES + i], payload[i]);
}

static void say(hpi_run *run) {
    uint64_t room[HPI_SMALL_WORDS];
    hpi_words_write(run, hpi_offer(run, room));
    hpi_said_post(run->group, run->seq);
}

/* ---- listening ---- */

hp_status hpi_words_hear(hpi_run *run, int peer, uint64_t out_payload[HPI_SMALL_WORDS]) {
    const uint64_t *mine = run->state->said;
    HP_TRY(hpi_said_wait(run->group, peer, run->seq, run->name));
    const hpi_said *entry = hpi_group_said(run->group, peer, run->seq);
    uint64_t difference = 0;
    for (int i = 0; i < HPI_WORD_PLACES; i++)
        difference |= mine[i] ^ word_load(&entry->words[i]);
    for (int i = 0; i < HPI_SMALL_WORDS; i++)
        out_payload[i] = word_load(&entry->words[HPI_WORD_PLACES + i]);
    return HPI_LIKELY(difference == 0) ? HP_OK : hpi_words_differ(run, peer, entry);
}

/* Where a peer's input would begin, of which this rank's part was carried: the peer's own was not,
 * and parts after it follow those before it. A pocket is known before the peer says so, and its
 * lines are on their way here while the processor still reads what was said. */
static const unsigned char *carried_at(hpi_run *run, int peer, uint64_t told) {
    const uint64_t own = run->carried_own_bytes;
    const unsigned char *begin;
    if (run->in_bytes - own <= HPI_POCKET_BYTES) {
        begin = hpi_pocket_of(run, peer);
    } else {
        hpi_ring_took(run, true);
        begin = hpi_ring_find(run, peer, told);
    }
    return begin - (run->rank > peer ? own : 0);
}

static void hear_place(hpi_run *run, int peer) {
    hpi_place *in = &run->state->entered[peer].in;
    if (in->key && in->offset & HPI_IS_AFAR)
        in->offset &= ~HPI_IS_AFAR;
    else
        run->are_afar = false;
}

/* What a peer says: compare it, and keep what it says beyond that. */
static hp_status listen(hpi_run *run, int peer) {
    hpi_coll_state *s = run->state;
    uint64_t last[HPI_SMALL_WORDS];
    HP_TRY(hpi_words_hear(run, peer, last));
    if (run->is_small) {
        memcpy(s->small[peer], last, HPI_SMALL_BYTES);
        s->in[peer] = (const unsigned char *)s->small[peer];
        return HP_OK;
    }
    s->entered[peer] = (hpi_entered){{last[0], last[1]}, {last[2], last[3]}};
    if (last[0] == HPI_CARRIED) {
        if (run->is_carried)
            s->in[peer] = carried_at(run, peer, last[1]);
    } else {
        run->is_carried = false;
        hear_place(run, peer);
    }
    return HP_OK;
}

/* What only some ranks carry lies nowhere for peers. */
static void forget_carried(hpi_run *run) {
    for (int i = 0; i < run->n; i++)
        if (run->state->entered[i].in.key == HPI_CARRIED)
            run->state->entered[i] = (hpi_entered){{0, 0}, {0, 0}};
}

static bool same_place(hpi_place a, hpi_place b) {
    return a.key == b.key && a.offset == b.offset;
}

/* Who is in symmetric memory: of a broadcast the root alone matters. */
static void survey_places(hpi_run *run) {
    const hpi_entered *mine = &run->state->entered[run->rank];
    run->inputs_placed = true;
    run->outputs_placed = run->what == HP_ALL_REDUCE || run->what == HP_BROADCAST;
    for (int i = 0; i < run->n; i++) {
        const hpi_entered *e = &run->state->entered[i];
        const bool is_seen = e->in.key || same_place(e->in, hpi_nowhere);
        if (!is_seen && (run->what != HP_BROADCAST || i == run->c.root))
            run->inputs_placed = false;
        if (run->what == HP_REDUCE_SCATTER_V && e->out.offset != mine->out.offset)
            run->inputs_placed = false;
        if (!e->out.key)
            run->outputs_placed = false;
        if (!same_place(e->in, e->out) && run->c.dtype == run->c.out_dtype)
            run->is_apart = true;
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
                             : !is_placed && hpi_has_row(run, HPI_NEEDS_READABLE)))
        HP_TRY(hpi_direct_open(run));
    run->is_readable = is_named && s->reach == HPI_REACH_ALL;
    return HP_OK;
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
    forget_carried(run);
    HP_TRY(survey(run));
    HP_TRY(hpi_choose(run));
    const hpi_needs needs = run->algorithm->needs;
    if (needs == HPI_NEEDS_READABLE)
        return hpi_direct_find(run);
    if (needs == HPI_NEEDS_INPUTS || needs == HPI_NEEDS_OUTPUTS || needs == HPI_NEEDS_APART ||
        hpi_needs_wire(needs))
        return find_places(run);
    return HP_OK;
}

hp_status hpi_coll_enter(hpi_run *run) {
    hpi_coll_state *s = run->state;
    HP_TRY(hpi_ahead_wait(run));
    if (run->what == HP_BARRIER && hpi_world_can_spin(hp_group_world(run->group))) {
        HP_TRY(hpi_barrier_meet(run));
        hpi_ahead_met(run);
        return HP_OK;
    }
    say(run);
    HP_TRY(hpi_wait_beside(run->group, HPI_LINE_SAID, run->seq, run->name));
    for (int k = 1; k < run->n; k++)
        HP_TRY(listen(run, (run->rank + k) % run->n));
    hpi_ahead_met(run);
    if (run->is_empty)
        return HP_OK;
    if (run->is_small || run->is_carried)
        run->algorithm = run->carried;
    else
        HP_TRY(find(run));
    s->in[run->rank] = run->c.in;
    s->out[run->rank] = run->c.out;
    return HP_OK;
}

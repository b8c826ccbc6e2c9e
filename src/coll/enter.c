/* SPDX-License-Identifier: Apache-2.0
 *
 * enter.c - the meeting at the start of a collective.
 *
 * Each rank writes what it is about to do into 7 words of its ENTER line and posts the collective's
 * number k; then it reads the words of every peer that has posted k. Two sets of words alternate by
 * the parity of k. That is enough: a rank writes the words of k + 2 after its collective k + 1 has
 * found every peer's k + 1, and a peer posts k + 1 only when it has finished reading the words of
 * k. Nobody can be two collectives ahead of anybody.
 *
 * The words say where the operands lie; an input of up to 32 bytes comes itself in their place.
 * From the same words every rank chooses the same algorithm, so nothing more has to be agreed.
 */
#include "inside.h"

#include <stdio.h>

/* The words; TYPES packs collective, dtypes, op, forced algorithm, root, pass and tag. */
enum { WORD_TYPES, WORD_COUNT, WORD_BLOCKS, WORD_PLACES, N_WORDS = WORD_PLACES + HPI_SMALL_WORDS };
_Static_assert(2 * N_WORDS <= 15, "two sets of words fit into a line");

typedef struct types {
    unsigned what, dtype, out_dtype, op, only, wire, wire_result, root, pass, tag;
} types;
_Static_assert(HP_RECV < 16 && HP_UINT8 < 16 && HP_MIN < 4 && HP_WIRE_FP8_E5M2 < 8 &&
                   HPI_PASS_BITS == 6,
               "what pack_types packs fits into its bits");

static uint64_t pack_types(const types *t) {
    return t->what | t->dtype << 4 | t->out_dtype << 8 | t->op << 12 | t->only << 14 |
           t->wire << 20 | t->wire_result << 23 | (uint64_t)(t->root & 0x3ff) << 24 |
           (uint64_t)(t->pass & 63) << 34 | (uint64_t)t->tag << 40;
}

static types unpack_types(uint64_t word) {
    return (types){.what = word & 15,
                   .dtype = word >> 4 & 15,
                   .out_dtype = word >> 8 & 15,
                   .op = word >> 12 & 3,
                   .only = word >> 14 & 63,
                   .wire = word >> 20 & 7,
                   .wire_result = word >> 23 & 1,
                   .root = word >> 24 & 0x3ff,
                   .pass = word >> 34 & 63,
                   .tag = (unsigned)(word >> 40)};
}

/* The number of the forced row, from 1; 0: none. */
static unsigned only_of(const hpi_run *run) {
    for (int i = 0; run->state->only && i < hpi_n_algorithms; i++)
        if (hpi_algorithms[i].what == run->what &&
            strcmp(hpi_algorithms[i].name, run->state->only) == 0)
            return (unsigned)i + 1;
    return 0;
}

static uint64_t types_word(const hpi_run *run) {
    const types t = {run->what,
                     run->c.dtype,
                     run->c.out_dtype,
                     run->c.op,
                     only_of(run),
                     run->wire,
                     run->c.is_wire_result,
                     (unsigned)run->c.root,
                     run->c.pass,
                     run->c.tag & 0xffffff};
    return pack_types(&t);
}

static _Atomic uint64_t *words_of(const hpi_run *run, int rank) {
    return hpi_group_line(run->group, rank, HPI_LINE_ENTER)->words + (run->seq & 1) * N_WORDS;
}

static void word_store(_Atomic uint64_t *word, uint64_t value) {
    atomic_store_explicit(word, value, memory_order_relaxed);
}
static uint64_t word_load(const _Atomic uint64_t *word) {
    return atomic_load_explicit(word, memory_order_relaxed);
}

/* ---- saying ---- */

/* Where an operand lies, for the whole group; key 0 when not every member can see it. The pointers
 * of those who will name the same place are kept in `peers`. */
static hpi_place place_of(const hpi_run *run, const void *pointer, uint64_t bytes, void *peers) {
    if (bytes && hpi_symm_peers(run->group, pointer, bytes, peers))
        return hpi_symm_place(hp_group_world(run->group), pointer, bytes);
    return (hpi_place){0, 0};
}

static void say(hpi_run *run) {
    hpi_coll_state *s = run->state;
    _Atomic uint64_t *words = words_of(run, run->rank);
    word_store(&words[WORD_TYPES], types_word(run));
    word_store(&words[WORD_COUNT], run->c.count);
    word_store(&words[WORD_BLOCKS], run->c.blocks);
    if (run->is_small) {
        uint64_t small[HPI_SMALL_WORDS] = {0};
        memcpy(small, run->c.in, run->in_bytes);
        for (int i = 0; i < HPI_SMALL_WORDS; i++)
            word_store(&words[WORD_PLACES + i], small[i]);
    } else {
        hpi_entered *mine = &s->entered[run->rank];
        mine->in = place_of(run, run->c.in, run->in_bytes, s->in);
        mine->out = (hpi_place){0, 0};
        if (run->what == HP_ALL_REDUCE) /* the one collective whose outputs peers write */
            mine->out = place_of(run, run->c.out, run->out_bytes, s->out);
        word_store(&words[WORD_PLACES], mine->in.key);
        word_store(&words[WORD_PLACES + 1], mine->in.offset);
        word_store(&words[WORD_PLACES + 2], mine->out.key);
        word_store(&words[WORD_PLACES + 3], mine->out.offset);
    }
    hpi_line_post(run->group, HPI_LINE_ENTER, run->seq);
}

/* ---- comparing ---- */

static void describe(const uint64_t *words, char *out_text, size_t size) {
    const types t = unpack_types(words[WORD_TYPES]);
    const char *name = hpi_collective_name((hp_collective)t.what);
    if (t.what == HP_BARRIER) {
        snprintf(out_text, size, "%s", name);
        return;
    }
    int used = snprintf(out_text, size, "%s of %llu %s", name,
                        (unsigned long long)words[WORD_COUNT], hp_dtype_name((hp_dtype)t.dtype));
    if (words[WORD_BLOCKS] != 1)
        used += snprintf(out_text + used, size - (size_t)used, " in %llu blocks",
                         (unsigned long long)words[WORD_BLOCKS]);
    if (t.what == HP_BROADCAST)
        used += snprintf(out_text + used, size - (size_t)used, " from root %u", t.root);
    if (t.what == HP_REDUCE_SCATTER || t.what == HP_ALL_REDUCE)
        used += snprintf(out_text + used, size - (size_t)used, " by %s to %s",
                         hpi_reduce_name((hp_reduce)t.op), hp_dtype_name((hp_dtype)t.out_dtype));
    const unsigned low = (1U << HPI_TAG_BITS) - 1;
    if (t.tag)
        used += snprintf(out_text + used, size - (size_t)used, " tagged %u",
                         (t.tag >> HPI_TAG_BITS) - 1);
    if (t.tag && (t.tag & low) != low)
        used += snprintf(out_text + used, size - (size_t)used, ".%u", t.tag & low);
    if (t.only)
        used += snprintf(out_text + used, size - (size_t)used, " with algorithm %u forced", t.only);
    static const char *const passes[] = {"", "HP_SYNC", "HP_EVALUATE", "HP_NO_SYNC"};
    if (t.pass)
        snprintf(out_text + used, size - (size_t)used, " in a %s pass after %u of HP_NO_SYNC",
                 passes[t.pass & 3], t.pass >> 2);
}

static const char *difference(const uint64_t *a, const uint64_t *b) {
    const types x = unpack_types(a[WORD_TYPES]), y = unpack_types(b[WORD_TYPES]);
    if (x.what != y.what)
        return "the collective";
    if (x.pass != y.pass)
        return "the pass";
    if (a[WORD_COUNT] != b[WORD_COUNT])
        return "the count";
    if (a[WORD_BLOCKS] != b[WORD_BLOCKS])
        return "the number of blocks";
    if (x.dtype != y.dtype || x.out_dtype != y.out_dtype)
        return "the dtype";
    if (x.op != y.op)
        return "the reduction";
    if (x.root != y.root)
        return "the root";
    if (x.tag != y.tag)
        return "the tag (unit.parameter)";
    return "the forced algorithm";
}

static hp_status fail_mismatch(const hpi_run *run, const uint64_t *mine, int peer,
                               const uint64_t *theirs) {
    char our_text[200], their_text[200];
    describe(mine, our_text, sizeof our_text);
    describe(theirs, their_text, sizeof their_text);
    const int our_world = hp_group_world_rank(run->group, run->rank);
    const int their_world = hp_group_world_rank(run->group, peer);
    return HPI_FAIL_RANK(HP_ERR_MISMATCH, their_world,
                         "expected every rank of %s to make the same call as collective %llu: rank "
                         "%d (world %d) made %s, rank %d (world %d) made %s; %s differs",
                         hpi_group_name(run->group), (unsigned long long)run->seq, run->rank,
                         our_world, our_text, peer, their_world, their_text,
                         difference(mine, theirs));
}

static hp_status compare(const hpi_run *run, int peer, const _Atomic uint64_t *words) {
    const uint64_t mine[] = {types_word(run), run->c.count, run->c.blocks};
    uint64_t theirs[] = {word_load(&words[0]), word_load(&words[1]), word_load(&words[2])};
    if (memcmp(mine, theirs, sizeof mine) == 0)
        return HP_OK;
    return fail_mismatch(run, mine, peer, theirs);
}

/* ---- listening ---- */

/* Keep what a peer's words say beyond the comparison. */
static void listen(hpi_run *run, int peer, const _Atomic uint64_t *words) {
    hpi_coll_state *s = run->state;
    uint64_t w[HPI_SMALL_WORDS];
    for (int i = 0; i < HPI_SMALL_WORDS; i++)
        w[i] = word_load(&words[WORD_PLACES + i]);
    if (run->is_small) {
        memcpy(s->small[peer], w, sizeof w);
        s->in[peer] = (const unsigned char *)s->small[peer];
    } else {
        s->entered[peer] = (hpi_entered){{w[0], w[1]}, {w[2], w[3]}};
    }
}

/* Who is in symmetric memory: of a broadcast the root alone matters. */
static void survey(hpi_run *run) {
    run->inputs_placed = run->outputs_placed = !run->is_small;
    for (int i = 0; i < run->n; i++) {
        const hpi_entered *e = &run->state->entered[i];
        if (!e->in.key && (run->what != HP_BROADCAST || i == run->c.root))
            run->inputs_placed = false;
        if (!e->out.key)
            run->outputs_placed = false;
    }
}

static bool needs_met(const hpi_run *run, hpi_needs needs) {
    switch (needs) {
    case HPI_NEEDS_WORDS:
        return run->is_small;
    case HPI_NEEDS_INPUTS:
        return run->inputs_placed;
    case HPI_NEEDS_OUTPUTS:
        return run->inputs_placed && run->outputs_placed;
    default:
        return true;
    }
}

static hp_status choose(hpi_run *run) {
    const unsigned only = only_of(run);
    for (int i = 0; i < hpi_n_algorithms && !run->algorithm; i++) {
        const hpi_algorithm *a = &hpi_algorithms[i];
        if (a->what == run->what && (!only || only == (unsigned)i + 1) && needs_met(run, a->needs))
            run->algorithm = a;
    }
    if (!run->algorithm)
        return HPI_FAIL(HP_ERR_UNSUPPORTED, "%s: expected operands that algorithm \"%s\" can take",
                        run->name, run->state->only);
    return HP_OK;
}

static bool same_place(hpi_place a, hpi_place b) {
    return a.key == b.key && a.offset == b.offset;
}

/* Turn places into pointers; those that equal our own were found when we entered. */
static hp_status find_places(hpi_run *run) {
    hpi_coll_state *s = run->state;
    hp_world *world = hp_group_world(run->group);
    const hpi_entered *mine = &s->entered[run->rank];
    for (int i = 0; i < run->n; i++) {
        const hpi_entered *e = &s->entered[i];
        const int world_rank = hp_group_world_rank(run->group, i);
        if (e->in.key && !same_place(e->in, mine->in))
            s->in[i] = hpi_symm_at(world, e->in, world_rank);
        if (e->out.key && !same_place(e->out, mine->out))
            s->out[i] = hpi_symm_at(world, e->out, world_rank);
        if ((e->in.key && !s->in[i]) || (e->out.key && !s->out[i]))
            return HPI_FAIL_RANK(HP_ERR_HANDLE, world_rank,
                                 "%s: expected rank %d (world %d) of %s to use live memory, it was "
                                 "freed meanwhile",
                                 run->name, i, world_rank, hpi_group_name(run->group));
    }
    return HP_OK;
}

hp_status hpi_coll_enter(hpi_run *run) {
    hpi_coll_state *s = run->state;
    const char *only = s->only;
    run->is_small = run->in_bytes > 0 && run->in_bytes <= HPI_SMALL_BYTES &&
                    (!only_of(run) || strcmp(only, "words") == 0);
    say(run);
    for (int k = 1; k < run->n; k++) {
        const int peer = (run->rank + k) % run->n;
        HP_TRY(hpi_line_wait(run->group, peer, HPI_LINE_ENTER, run->seq, run->name));
        HP_TRY(compare(run, peer, words_of(run, peer)));
        listen(run, peer, words_of(run, peer));
    }
    if (run->in_bytes == 0)
        return HP_OK;
    survey(run);
    HP_TRY(choose(run));
    if (run->algorithm->needs == HPI_NEEDS_INPUTS || run->algorithm->needs == HPI_NEEDS_OUTPUTS)
        HP_TRY(find_places(run));
    s->in[run->rank] = run->c.in;
    s->out[run->rank] = run->c.out;
    return HP_OK;
}

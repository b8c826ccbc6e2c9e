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

#include <stdarg.h>
#include <stdio.h>

/* The words; TYPES packs collective, dtypes, op, forced algorithm, tag, and the root of a broadcast
 * or the pass of any other. */
enum { WORD_TYPES, WORD_COUNT, WORD_BLOCKS, WORD_PLACES, N_WORDS = HPI_ENTER_WORDS };
_Static_assert(N_WORDS == WORD_PLACES + HPI_SMALL_WORDS, "the last words are places or an input");
_Static_assert(2 * N_WORDS <= 15, "two sets of words fit into a line");

typedef struct types {
    unsigned what, dtype, out_dtype, op, only, wire, wire_result, root, pass, tag;
} types;
_Static_assert(HPI_LAST_COLLECTIVE < 16 && HPI_N_DTYPES <= 16 && HPI_LAST_REDUCE < 4 &&
                   HPI_LAST_WIRE < 8 && HPI_PASS_BITS == 16 && HPI_MAX_LOCAL <= 0xffff + 1,
               "what pack_types packs fits into its bits");

static uint64_t pack_types(const types *t) {
    const unsigned root_or_pass = t->what == HP_BROADCAST ? t->root : t->pass;
    return t->what | t->dtype << 4 | t->out_dtype << 8 | t->op << 12 | t->only << 14 |
           t->wire << 20 | t->wire_result << 23 | (uint64_t)(root_or_pass & 0xffff) << 24 |
           (uint64_t)t->tag << 40;
}

static types unpack_types(uint64_t word) {
    const bool is_rooted = (word & 15) == HP_BROADCAST;
    const unsigned root_or_pass = word >> 24 & 0xffff;
    return (types){.what = word & 15,
                   .dtype = word >> 4 & 15,
                   .out_dtype = word >> 8 & 15,
                   .op = word >> 12 & 3,
                   .only = word >> 14 & 63,
                   .wire = word >> 20 & 7,
                   .wire_result = word >> 23 & 1,
                   .root = is_rooted ? root_or_pass : 0,
                   .pass = is_rooted ? 0 : root_or_pass,
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

/* The words are kept: to read them back from the line would take it from a peer that reads them. */
static void say(hpi_run *run) {
    hpi_coll_state *s = run->state;
    _Atomic uint64_t *words = words_of(run, run->rank);
    uint64_t *said = s->said;
    said[WORD_TYPES] = types_word(run);
    said[WORD_COUNT] = count_word(run);
    said[WORD_BLOCKS] = run->c.blocks;
    if (run->is_small) {
        memset(said + WORD_PLACES, 0, HPI_SMALL_BYTES);
        memcpy(said + WORD_PLACES, run->c.in, run->in_bytes);
    } else {
        hpi_entered *mine = &s->entered[run->rank];
        *mine = (hpi_entered){place_of_input(run), said_last(run)};
        said[WORD_PLACES] = mine->in.key;
        said[WORD_PLACES + 1] = mine->in.offset;
        said[WORD_PLACES + 2] = mine->out.key;
        said[WORD_PLACES + 3] = mine->out.offset;
    }
    for (int i = 0; i < N_WORDS; i++)
        word_store(&words[i], said[i]);
    hpi_line_post(run->group, HPI_LINE_ENTER, run->seq);
}

/* ---- comparing ---- */

/* A text that is put together; what does not fit is cut. */
typedef struct text {
    char *at;
    size_t size, used;
} text;

static void add(text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(text *t, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(t->at + t->used, t->size - t->used, format, arguments);
    va_end(arguments);
    t->used = hpi_min(t->used + (size_t)(length < 0 ? 0 : length), t->size - 1);
}

static void describe_counts(text *out, hp_collective what, const uint64_t *words) {
    const types t = unpack_types(words[WORD_TYPES]);
    const char *dtype = hp_dtype_name((hp_dtype)t.dtype);
    if (what == HP_ALL_TO_ALL_V)
        add(out, " of %s", dtype);
    else if (hpi_is_v(what))
        add(out, " of %s, its own part %llu", dtype, (unsigned long long)words[WORD_PLACES + 2]);
    else
        add(out, " of %llu %s", (unsigned long long)words[WORD_COUNT], dtype);
    if (words[WORD_BLOCKS] != 1)
        add(out, " in %llu blocks", (unsigned long long)words[WORD_BLOCKS]);
}

static void describe_pass(text *out, unsigned pass) {
    static const char *const passes[] = {"", "HP_SYNC", "HP_EVALUATE", "HP_NO_SYNC",
                                         "HP_DEFER_REPLICATE"};
    const unsigned kind = pass & 7, n_deferred = pass >> 9 & 63;
    if (kind == 0 || kind >= sizeof passes / sizeof *passes)
        return;
    add(out, " in a %s pass after %u of HP_NO_SYNC", passes[kind], pass >> 3 & 63);
    if (n_deferred)
        add(out, " and %u of HP_DEFER_REPLICATE", n_deferred);
}

static void describe(const uint64_t *words, char *out_text, size_t size) {
    const types t = unpack_types(words[WORD_TYPES]);
    const hp_collective what = (hp_collective)t.what;
    const unsigned low = (1U << HPI_TAG_BITS) - 1;
    text out = {out_text, size, 0};
    add(&out, "%s", hpi_collective_name(what));
    if (what == HP_BARRIER)
        return;
    describe_counts(&out, what, words);
    if (what == HP_BROADCAST)
        add(&out, " from root %u", t.root);
    if (what == HP_REDUCE_SCATTER || what == HP_REDUCE_SCATTER_V || what == HP_ALL_REDUCE)
        add(&out, " by %s to %s", hpi_reduce_name((hp_reduce)t.op),
            hp_dtype_name((hp_dtype)t.out_dtype));
    if (t.wire > HP_WIRE_FULL)
        add(&out, " over %s%s", hpi_wire_name((hp_wire)t.wire),
            t.wire_result ? ", the result too" : "");
    if (t.tag)
        add(&out, " tagged %u", (t.tag >> HPI_TAG_BITS) - 1);
    if (t.tag && (t.tag & low) != low)
        add(&out, ".%u", t.tag & low);
    if (t.only)
        add(&out, " with algorithm %u forced", t.only);
    describe_pass(&out, t.pass);
}

static const char *difference(const uint64_t *a, const uint64_t *b) {
    const types x = unpack_types(a[WORD_TYPES]), y = unpack_types(b[WORD_TYPES]);
    if (x.what != y.what)
        return "the collective";
    if (x.pass != y.pass)
        return "the pass";
    if (x.dtype != y.dtype || x.out_dtype != y.out_dtype)
        return "the dtype";
    if (a[WORD_COUNT] != b[WORD_COUNT])
        return "the count";
    if (a[WORD_BLOCKS] != b[WORD_BLOCKS])
        return "the number of blocks";
    if (x.op != y.op)
        return "the reduction";
    if (x.root != y.root)
        return "the root";
    if (x.wire != y.wire || x.wire_result != y.wire_result)
        return "the wire";
    if (x.tag != y.tag)
        return "the tag (unit.parameter)";
    return "the forced algorithm";
}

/* What a peer has for its own part, where our counts say otherwise. */
static void explain_counts(const hpi_run *run, int peer, const uint64_t *theirs, char *out_text,
                           size_t size) {
    const uint64_t *counts = run->what == HP_ALL_GATHER_V ? run->c.out_counts : run->c.in_counts;
    const uint64_t own = theirs[WORD_PLACES + 2];
    out_text[0] = 0;
    if (unpack_types(theirs[WORD_TYPES]).what == run->what && run->what != HP_ALL_TO_ALL_V &&
        hpi_is_v(run->what) && own != counts[peer])
        snprintf(out_text, size, ": rank %d gives %llu to the part of rank %d", run->rank,
                 (unsigned long long)counts[peer], peer);
}

static hp_status fail_mismatch(const hpi_run *run, const uint64_t *mine, int peer,
                               const uint64_t *theirs) {
    char our_text[200], their_text[200], counts_text[80];
    describe(mine, our_text, sizeof our_text);
    describe(theirs, their_text, sizeof their_text);
    explain_counts(run, peer, theirs, counts_text, sizeof counts_text);
    const int our_world = hp_group_world_rank(run->group, run->rank);
    const int their_world = hp_group_world_rank(run->group, peer);
    return HPI_FAIL_RANK(HP_ERR_MISMATCH, their_world,
                         "expected every rank of %s to make the same call as collective %llu: rank "
                         "%d (world %d) made %s, rank %d (world %d) made %s; %s differs%s",
                         hpi_group_name(run->group), (unsigned long long)run->seq, run->rank,
                         our_world, our_text, peer, their_world, their_text,
                         difference(mine, theirs), counts_text);
}

static hp_status compare(const hpi_run *run, int peer, const uint64_t *theirs) {
    const uint64_t *mine = run->state->said;
    if (memcmp(mine, theirs, WORD_PLACES * sizeof *mine) == 0)
        return HP_OK;
    return fail_mismatch(run, mine, peer, theirs);
}

/* ---- listening ---- */

/* What a peer says: compare it, and keep what it says beyond that. */
static hp_status listen(hpi_run *run, int peer) {
    hpi_coll_state *s = run->state;
    const _Atomic uint64_t *words = words_of(run, peer);
    uint64_t w[N_WORDS];
    for (int i = 0; i < N_WORDS; i++)
        w[i] = word_load(&words[i]);
    HP_TRY(compare(run, peer, w));
    const uint64_t *last = w + WORD_PLACES;
    if (run->is_small) {
        memcpy(s->small[peer], last, HPI_SMALL_BYTES);
        s->in[peer] = (const unsigned char *)s->small[peer];
    } else {
        s->entered[peer] = (hpi_entered){{last[0], last[1]}, {last[2], last[3]}};
    }
    return HP_OK;
}

/* Who is in symmetric memory: of a broadcast the root alone matters. */
static void survey(hpi_run *run) {
    const hpi_entered *mine = &run->state->entered[run->rank];
    run->inputs_placed = !run->is_small;
    run->outputs_placed = !run->is_small && run->what == HP_ALL_REDUCE;
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

static bool needs_met(const hpi_run *run, hpi_needs needs) {
    if (run->wire != HP_WIRE_FULL)
        return needs == HPI_NEEDS_WIRE;
    switch (needs) {
    case HPI_NEEDS_WORDS:
        return run->is_small;
    case HPI_NEEDS_INPUTS:
        return run->inputs_placed;
    case HPI_NEEDS_OUTPUTS:
        return run->inputs_placed && run->outputs_placed;
    case HPI_NEEDS_WIRE:
        return false;
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

static bool goes_in_words(const hpi_run *run) {
    return run->in_bytes > 0 && run->in_bytes <= HPI_SMALL_BYTES && !hpi_is_v(run->what) &&
           run->wire == HP_WIRE_FULL && (!only_of(run) || strcmp(run->state->only, "words") == 0);
}

hp_status hpi_coll_enter(hpi_run *run) {
    hpi_coll_state *s = run->state;
    run->is_small = goes_in_words(run);
    say(run);
    for (int k = 1; k < run->n; k++) {
        const int peer = (run->rank + k) % run->n;
        HP_TRY(hpi_line_wait(run->group, peer, HPI_LINE_ENTER, run->seq, run->name));
        HP_TRY(listen(run, peer));
    }
    if (run->is_empty)
        return HP_OK;
    survey(run);
    if (run->what == HP_ALL_TO_ALL_V)
        HP_TRY(survey_exchange(run));
    HP_TRY(choose(run));
    if (run->algorithm->needs != HPI_NEEDS_WORDS && run->algorithm->needs != HPI_NEEDS_NOTHING)
        HP_TRY(find_places(run));
    s->in[run->rank] = run->c.in;
    s->out[run->rank] = run->c.out;
    return HP_OK;
}

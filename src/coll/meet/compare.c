/* SPDX-License-Identifier: Apache-2.0
 *
 * compare.c - do all ranks mean the same collective, and if not, what differs: in words for people.
 */
#include "words.h"

#include <stdio.h>

static void describe_counts(hpi_sentence *out, hp_collective what, const uint64_t *words) {
    const hpi_types t = hpi_unpack_types(words[HPI_WORD_TYPES]);
    const char *dtype = hp_dtype_name((hp_dtype)t.dtype);
    if (what == HP_ALL_TO_ALL_V)
        hpi_sentence_add(out, " of %s", dtype);
    else if (hpi_is_v(what))
        hpi_sentence_add(out, " of %s, its own part %llu", dtype,
                         (unsigned long long)words[HPI_WORD_PLACES + 2]);
    else
        hpi_sentence_add(out, " of %llu %s", (unsigned long long)words[HPI_WORD_COUNT], dtype);
    if (hpi_unpack_blocks(words[HPI_WORD_BLOCKS]) != 1)
        hpi_sentence_add(out, " in %u blocks", hpi_unpack_blocks(words[HPI_WORD_BLOCKS]));
}

static void describe_pass(hpi_sentence *out, unsigned pass) {
    static const char *const passes[] = {"", "HP_SYNC", "HP_EVALUATE", "HP_NO_SYNC",
                                         "HP_DEFER_REPLICATE"};
    const unsigned kind = pass & 7, n_deferred = pass >> 9 & 63;
    if (kind == 0 || kind >= sizeof passes / sizeof *passes)
        return;
    hpi_sentence_add(out, " in a %s pass after %u of HP_NO_SYNC", passes[kind], pass >> 3 & 63);
    if (n_deferred)
        hpi_sentence_add(out, " and %u of HP_DEFER_REPLICATE", n_deferred);
}

static void describe(const uint64_t *words, char *out_text, size_t size) {
    const hpi_types t = hpi_unpack_types(words[HPI_WORD_TYPES]);
    const hp_collective what = (hp_collective)t.what;
    const unsigned low = (1U << HPI_TAG_BITS) - 1;
    hpi_sentence out = {out_text, size, 0};
    hpi_sentence_add(&out, "%s", hpi_collective_name(what));
    if (what == HP_BARRIER)
        return;
    describe_counts(&out, what, words);
    if (what == HP_BROADCAST)
        hpi_sentence_add(&out, " from root %u", t.root);
    if (what == HP_REDUCE_SCATTER || what == HP_REDUCE_SCATTER_V || what == HP_ALL_REDUCE)
        hpi_sentence_add(&out, " by %s to %s", hpi_reduce_name((hp_reduce)t.op),
                         hp_dtype_name((hp_dtype)t.out_dtype));
    if (t.wire > HP_WIRE_FULL)
        hpi_sentence_add(&out, " over %s%s", hpi_wire_name((hp_wire)t.wire),
                         t.wire_result ? ", the result too" : "");
    if (t.tag)
        hpi_sentence_add(&out, " tagged %u", (t.tag >> HPI_TAG_BITS) - 1);
    if (t.tag && (t.tag & low) != low)
        hpi_sentence_add(&out, ".%u", t.tag & low);
    if (t.only)
        hpi_sentence_add(&out, " with algorithm %u forced", t.only);
    describe_pass(&out, t.pass);
}

static const char *difference(const uint64_t *a, const uint64_t *b) {
    const hpi_types x = hpi_unpack_types(a[HPI_WORD_TYPES]),
                    y = hpi_unpack_types(b[HPI_WORD_TYPES]);
    if (x.what != y.what)
        return "the collective";
    if (x.pass != y.pass)
        return "the pass";
    if (x.dtype != y.dtype || x.out_dtype != y.out_dtype)
        return "the dtype";
    if (a[HPI_WORD_COUNT] != b[HPI_WORD_COUNT])
        return "the count";
    if (hpi_unpack_blocks(a[HPI_WORD_BLOCKS]) != hpi_unpack_blocks(b[HPI_WORD_BLOCKS]))
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
    const uint64_t own = theirs[HPI_WORD_PLACES + 2];
    out_text[0] = 0;
    if (hpi_unpack_types(theirs[HPI_WORD_TYPES]).what == run->what &&
        run->what != HP_ALL_TO_ALL_V && hpi_is_v(run->what) && own != counts[peer])
        snprintf(out_text, size, ": rank %d gives %llu to the part of rank %d", run->rank,
                 (unsigned long long)counts[peer], peer);
}

hp_status hpi_words_mismatch(const hpi_run *run, uint64_t seq, const uint64_t *mine, int peer,
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
                         hpi_group_name(run->group), (unsigned long long)seq, run->rank, our_world,
                         our_text, peer, their_world, their_text, difference(mine, theirs),
                         counts_text);
}

/* ---- calls of the past ---- */

/* The history too. */
static bool is_same(const uint64_t *a, const uint64_t *b) {
    return memcmp(a, b, HPI_WORD_PLACES * sizeof *a) == 0;
}

static bool is_same_call(const uint64_t *a, const uint64_t *b) {
    return a[HPI_WORD_TYPES] == b[HPI_WORD_TYPES] && a[HPI_WORD_COUNT] == b[HPI_WORD_COUNT] &&
           hpi_unpack_blocks(a[HPI_WORD_BLOCKS]) == hpi_unpack_blocks(b[HPI_WORD_BLOCKS]);
}

static void read_words(const hpi_said *entry, uint64_t *out_words) {
    for (int i = 0; i < HPI_N_WORDS; i++)
        out_words[i] = atomic_load_explicit(&entry->words[i], memory_order_relaxed);
}

/* What `rank` said as number seq; false when its entry holds another number by now. */
static bool recall(const hpi_run *run, int rank, uint64_t seq, uint64_t *out_words) {
    const hpi_said *said = hpi_group_said(run->group, rank, seq);
    if (!hpi_said_is_there(run->group, rank, seq))
        return false;
    read_words(said, out_words);
    return true;
}

/* The histories differ at number seq: find the first call that does. Calls before the floor are
 * known to be the same, and of those a peer that is ahead may be writing over its entries. */
static hp_status fail_past(const hpi_run *run, int peer, uint64_t seq) {
    uint64_t mine[HPI_N_WORDS], theirs[HPI_N_WORDS];
    for (uint64_t k = run->seq > HPI_MOST_AHEAD ? run->seq - HPI_MOST_AHEAD : 1; k <= seq; k++)
        if (recall(run, run->rank, k, mine) && recall(run, peer, k, theirs) &&
            !is_same_call(mine, theirs))
            return hpi_words_mismatch(run, k, mine, peer, theirs);
    const int world_rank = hp_group_world_rank(run->group, peer);
    return HPI_FAIL_RANK(HP_ERR_MISMATCH, world_rank,
                         "expected every rank of %s to make the same calls up to collective %llu, "
                         "rank %d (world %d) made others than rank %d (world %d)",
                         hpi_group_name(run->group), (unsigned long long)seq, peer, world_rank,
                         run->rank, hp_group_world_rank(run->group, run->rank));
}

hp_status hpi_words_compare_past(const hpi_run *run, int peer, uint64_t seq) {
    uint64_t mine[HPI_N_WORDS], theirs[HPI_N_WORDS];
    const bool is_known = recall(run, run->rank, seq, mine) && recall(run, peer, seq, theirs);
    return is_known && is_same(mine, theirs) ? HP_OK : fail_past(run, peer, seq);
}

hp_status hpi_words_differ(const hpi_run *run, int peer, const hpi_said *entry) {
    uint64_t mine[HPI_N_WORDS], theirs[HPI_N_WORDS];
    read_words(hpi_group_said(run->group, run->rank, run->seq), mine);
    read_words(entry, theirs);
    return is_same_call(mine, theirs) ? fail_past(run, peer, run->seq)
                                      : hpi_words_mismatch(run, run->seq, mine, peer, theirs);
}

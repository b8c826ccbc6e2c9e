/* SPDX-License-Identifier: Apache-2.0
 *
 * choose.c - which algorithm a collective runs: the first row of algorithms.def whose needs are
 * met and whose range holds the call's bytes; and why, for people.
 *
 * hp_coll_choice_get asks the same functions about a call that nobody makes, so what it says cannot
 * drift from what runs. It takes the ranks to be near each other, which they find out as they run.
 */
#include "inside.h"

#include <stdio.h>

static const char *const needs_words[] = {
#define X(NAME, words) words,
#include "needs.def"
#undef X
};

/* ---- choosing ---- */

/* Of the larger operand, and the same on every rank. */
static uint64_t bytes_of(const hpi_run *run) {
    if (run->what == HP_ALL_TO_ALL_V)
        return run->longest * (uint64_t)run->n * run->in_size;
    if (hpi_is_v(run->what))
        return hpi_part_longest(run) * (uint64_t)run->n * run->in_size;
    return hpi_max(run->in_bytes, run->out_bytes);
}

bool hpi_is_from(const hpi_run *run, hpi_threshold threshold) {
    return threshold == HPI_FROM_ANY || bytes_of(run) >= run->state->thresholds[threshold];
}

bool hpi_passes_caches(const hpi_run *run) {
    return run->in_bytes + run->out_bytes >= 2 * run->state->thresholds[HPI_FROM_STREAM];
}

static bool is_in_range(const hpi_run *run, const hpi_algorithm *a) {
    return hpi_is_from(run, a->from) && (a->to == HPI_FROM_ANY || !hpi_is_from(run, a->to));
}

unsigned hpi_only_find(const hpi_run *run) {
    for (int i = 0; i < hpi_n_algorithms; i++)
        if (hpi_algorithms[i].what == run->what &&
            strcmp(hpi_algorithms[i].name, run->state->only) == 0)
            return (unsigned)i + 1;
    return 0;
}

static bool goes_in_words(const hpi_run *run) {
    return run->in_bytes > 0 && run->in_bytes <= HPI_SMALL_BYTES && !hpi_is_v(run->what) &&
           run->wire == HP_WIRE_FULL &&
           (!hpi_only_of(run) || strcmp(run->state->only, "words") == 0);
}

static bool fits_a_piece(const hpi_run *run) {
    return run->in_bytes <= hpi_max(HPI_POCKET_BYTES, hpi_ring_most(run->state));
}

static bool may_be_carried(const hpi_run *run) {
    const bool has_row = run->what == HP_ALL_GATHER || run->what == HP_REDUCE_SCATTER ||
                         run->what == HP_ALL_REDUCE || run->what == HP_ALL_TO_ALL;
    return has_row && !run->is_small && run->in_bytes > 0 && fits_a_piece(run) &&
           run->wire == HP_WIRE_FULL &&
           (hpi_only_of(run) ? strcmp(run->state->only, "one_shot") == 0
                             : !hpi_is_from(run, HPI_FROM_CARRIED));
}

/* If it is, with its output, in symmetric memory. */
static bool stays_in_place(const hpi_run *run) {
    const bool is_copied = !run->is_in_place && run->c.dtype == run->c.out_dtype;
    return run->what == HP_ALL_REDUCE && !hpi_only_of(run) &&
           ((run->is_in_place && hpi_is_from(run, HPI_FROM_IN_PLACE)) ||
            (is_copied && hpi_is_from(run, HPI_FROM_COPIED)));
}

/* The lines of a training step have left the caches when they are written again: handback.c. */
bool hpi_is_worth_carrying(const hpi_run *run, bool is_symmetric) {
    if (hpi_only_of(run) || !is_symmetric)
        return true;
    if (stays_in_place(run))
        return false;
    if (!hpi_is_from(run, HPI_FROM_ONE_SHOT))
        return true;
    return run->state->are_lines_dear && !run->c.tag &&
           !(run->what == HP_ALL_REDUCE && hpi_is_from(run, HPI_FROM_COPIED));
}

static bool needs_met(const hpi_run *run, hpi_needs needs) {
    if ((run->wire != HP_WIRE_FULL) != hpi_needs_wire(needs))
        return false;
    switch (needs) {
    case HPI_NEEDS_WORDS:
        return run->is_small;
    case HPI_NEEDS_CARRIED:
        return run->is_carried;
    case HPI_NEEDS_INPUTS:
    case HPI_NEEDS_WIRE_INPUTS:
        return run->inputs_placed;
    case HPI_NEEDS_AFAR:
        return run->inputs_placed && (run->are_afar || hpi_only_of(run));
    case HPI_NEEDS_OUTPUTS:
    case HPI_NEEDS_WIRE_OUTPUTS:
        return run->inputs_placed && run->outputs_placed;
    case HPI_NEEDS_APART:
        return run->inputs_placed && run->outputs_placed && run->is_apart;
    case HPI_NEEDS_WIRE_APART:
        return run->inputs_placed && run->outputs_placed && run->is_apart &&
               hpi_rounds_in_registers(run);
    case HPI_NEEDS_READABLE:
        return run->is_readable;
    default:
        return true;
    }
}

/* NULL: there is none. */
static const hpi_algorithm *first_row(const hpi_run *run) {
    const unsigned only = hpi_only_of(run);
    for (int i = run->state->first_row[run->what]; i < hpi_n_algorithms; i++) {
        const hpi_algorithm *a = &hpi_algorithms[i];
        if (a->what == run->what && (only ? only == (unsigned)i + 1 : is_in_range(run, a)) &&
            needs_met(run, a->needs))
            return a;
    }
    return NULL;
}

bool hpi_has_row(const hpi_run *run, hpi_needs needs) {
    for (int i = run->state->first_row[run->what]; i < hpi_n_algorithms; i++) {
        const hpi_algorithm *a = &hpi_algorithms[i];
        if (a->what == run->what && a->needs == needs)
            return is_in_range(run, a);
    }
    return false;
}

/* The row of a broadcast for which nobody meets. */
static const hpi_algorithm *unmet_row(const hpi_run *run) {
    const hpi_algorithm *a = run->what == HP_BROADCAST && !run->is_empty ? first_row(run) : NULL;
    return a && (a->needs == HPI_NEEDS_NOBODY || a->needs == HPI_NEEDS_WORDS) ? a : NULL;
}

/* Of an input that is cut into parts, which lie in one piece each. */
static uint64_t carried_own_bytes(const hpi_run *run) {
    const bool is_cut = run->what == HP_ALL_TO_ALL || run->what == HP_REDUCE_SCATTER;
    return is_cut && run->c.blocks == 1 ? run->c.count * run->in_size : 0;
}

void hpi_choose_ahead(hpi_run *run) {
    run->is_small = goes_in_words(run);
    run->may_be_carried = may_be_carried(run);
    run->unmet = unmet_row(run);
    run->must_be_carried =
        run->may_be_carried && !hpi_is_from(run, HPI_FROM_ONE_SHOT) && !stays_in_place(run);
    run->is_carried = run->may_be_carried;
    run->carried = run->is_small || run->is_carried ? first_row(run) : NULL;
    run->is_carried = false;
    run->carried_own_bytes = carried_own_bytes(run);
}

hp_status hpi_choose(hpi_run *run) {
    run->algorithm = first_row(run);
    if (!run->algorithm)
        return HPI_FAIL(HP_ERR_UNSUPPORTED, "%s: expected operands that algorithm \"%s\" can take",
                        run->name, run->state->only);
    return HP_OK;
}

/* ---- why ---- */

static void add_threshold(hpi_sentence *t, const hpi_run *run, const char *before, const char *word,
                          hpi_threshold threshold) {
    static const char suffixes[] = "KMGT";
    uint64_t bytes = run->state->thresholds[threshold];
    int n = 0;
    for (; n < 4 && bytes != 0 && bytes % 1024 == 0; n++)
        bytes /= 1024;
    hpi_sentence_add(t, "%s%s%s=%llu%.*s", before, word, hpi_threshold_name(threshold),
                     (unsigned long long)bytes, n > 0, &suffixes[n - (n > 0)]);
}

/* "from direct=512K", "below one_shot=16385", behind `before`; nothing of a row without a range. */
static void add_range(hpi_sentence *t, const hpi_run *run, const char *before,
                      const hpi_algorithm *a) {
    if (a->from != HPI_FROM_ANY)
        add_threshold(t, run, before, "from ", a->from);
    if (a->to != HPI_FROM_ANY)
        add_threshold(t, run, a->from != HPI_FROM_ANY ? "" : before,
                      a->from != HPI_FROM_ANY ? " to " : "below ", a->to);
}

/* Why a call that is small enough was not carried. */
static void add_not_carried(hpi_sentence *t, const hpi_run *run) {
    if (!fits_a_piece(run))
        hpi_sentence_add(t, ", longer than a piece of the ring");
    else if (!stays_in_place(run))
        add_threshold(t, run, ", ", "from ", HPI_FROM_ONE_SHOT);
    else if (run->is_in_place)
        add_threshold(t, run, ", in place ", "from ", HPI_FROM_IN_PLACE);
    else
        add_threshold(t, run, ", not in place ", "from ", HPI_FROM_COPIED);
}

/* The rows that come before the one that was chosen, those that the call is out of range of with
 * their range. */
static void add_passed_over(hpi_sentence *t, const hpi_run *run) {
    for (const hpi_algorithm *a = hpi_algorithms; a != run->algorithm; a++) {
        if (a->what != run->what)
            continue;
        hpi_sentence_add(t, "; not %s", a->name);
        const bool asks_more = a->needs == HPI_NEEDS_CARRIED && run->wire == HP_WIRE_FULL;
        if (needs_met(run, a->needs) || (asks_more && !is_in_range(run, a)))
            add_range(t, run, ", which runs ", a);
        else if (asks_more)
            add_not_carried(t, run);
    }
}

/* "inputs and outputs are in symmetric memory; not words; not one_shot" */
void hpi_choice_explain(const hpi_run *run, char *out_text, size_t size) {
    hpi_sentence t = {out_text, size, 0};
    const hpi_algorithm *a = run->algorithm;
    hpi_sentence_add(&t, "%s", needs_words[a->needs]);
    add_range(&t, run, ", ", a);
    if (hpi_only_of(run))
        hpi_sentence_add(&t, "; forced");
    else
        add_passed_over(&t, run);
}

/* ---- a call that nobody makes ---- */

enum { MOST_RANKS = HPI_MAX_LOCAL };

static hp_status check_case(const hp_coll_case *c) {
    if (!c || c->size != sizeof *c)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected a case whose size is that of hp_coll_case, %zu, given %zu",
                        sizeof *c, c ? c->size : 0);
    if ((unsigned)c->what > HPI_LAST_COLLECTIVE)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a collective from %d to %d, given %d",
                        HP_ALL_GATHER, HPI_LAST_COLLECTIVE, (int)c->what);
    if (c->n_ranks < 1 || c->n_ranks > MOST_RANKS)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected 1 to %d ranks, given %d", MOST_RANKS,
                        c->n_ranks);
    return HP_OK;
}

/* The parts of a v form are all as long as the longest. `counts` has room for all ranks. */
static hp_status lay_parts(hpi_run *run, uint64_t longest, uint64_t *counts) {
    uint64_t bytes;
    if (!hpi_multiply(longest, (uint64_t)run->n * run->in_size, &bytes) || bytes > INT64_MAX)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "%s: expected less than 2^63 bytes in all, given %d parts of %llu elements",
                        run->name, run->n, (unsigned long long)longest);
    for (int i = 0; i < run->n; i++)
        counts[i] = longest;
    run->c.in_counts = run->c.out_counts = counts;
    run->longest = longest;
    return HP_OK;
}

static hp_status run_of(const hp_coll_case *c, hpi_coll_state *state, uint64_t *counts,
                        hpi_run *out_run) {
    hpi_run *run = out_run;
    *run = (hpi_run){.state = state,
                     .what = c->what,
                     .c = {.count = c->count,
                           .blocks = 1,
                           .dtype = c->dtype,
                           .out_dtype = c->dtype,
                           .wire = c->wire},
                     .name = hpi_collective_name(c->what),
                     .n = c->n_ranks,
                     .is_in_place = c->is_in_place != 0};
    HP_TRY(hpi_coll_check_shape(run));
    if (hpi_is_v(run->what))
        HP_TRY(lay_parts(run, c->count, counts));
    run->is_small = goes_in_words(run);
    /* as offer.c and enter.c find them */
    const bool is_exchanged_in_place = c->what == HP_ALL_TO_ALL && c->is_in_place;
    const bool is_placed = c->in_is_symmetric && !is_exchanged_in_place &&
                           (c->what != HP_ALL_REDUCE || c->out_is_symmetric);
    run->is_carried = may_be_carried(run) && hpi_is_worth_carrying(run, is_placed);
    const bool is_carried = run->is_small || run->is_carried;
    run->inputs_placed = !is_carried && c->in_is_symmetric && !is_exchanged_in_place;
    run->outputs_placed =
        !is_carried && c->out_is_symmetric && (c->what == HP_ALL_REDUCE || c->what == HP_BROADCAST);
    run->is_apart = !run->is_in_place;
    run->is_readable = !is_carried && run->wire == HP_WIRE_FULL && !is_exchanged_in_place;
    return HP_OK;
}

static hp_coll_choice no_choice(const char *algorithm, const char *why) {
    hp_coll_choice choice = {
        .algorithm = algorithm, .to_bytes = UINT64_MAX, .moves = "", .source = ""};
    snprintf(choice.why, sizeof choice.why, "%s", why);
    return choice;
}

static hp_status choose_for(hpi_run *run, hp_coll_choice *out_choice) {
    HP_TRY(hpi_choose(run));
    const hpi_algorithm *a = run->algorithm;
    const uint64_t *thresholds = run->state->thresholds;
    *out_choice = no_choice(a->name, "");
    hpi_choice_explain(run, out_choice->why, sizeof out_choice->why);
    if (a->from != HPI_FROM_ANY)
        out_choice->from_bytes = thresholds[a->from];
    if (a->to != HPI_FROM_ANY)
        out_choice->to_bytes = thresholds[a->to];
    out_choice->bytes = bytes_of(run);
    out_choice->steps = a->steps;
    out_choice->moves = a->moves;
    out_choice->source = a->source;
    return HP_OK;
}

hp_status hp_coll_choice_get(const hp_coll_case *c, hp_coll_choice *out_choice) {
    hpi_coll_state state = {.are_lines_dear = hpi_are_lines_dear()};
    uint64_t counts[MOST_RANKS];
    hpi_options options;
    hpi_run run;
    HP_TRY(check_case(c));
    if (!out_choice)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a place for the choice, given NULL");
    HP_TRY(hpi_options_load(&options));
    HP_TRY(hpi_thresholds_fill(options.thresholds, c->is_crowded, state.thresholds));
    hpi_ring_size(&state, c->n_ranks, !c->is_crowded && !options.heap_size);
    HP_TRY(run_of(c, &state, counts, &run));
    if (c->what == HP_SEND || c->what == HP_RECV)
        *out_choice = no_choice("mailbox", "messages go through it");
    else if (c->what == HP_BARRIER || c->count == 0)
        *out_choice = no_choice("", "ranks meet, and nothing is moved");
    else if (c->n_ranks == 1)
        *out_choice = no_choice("", "a group of one copies");
    else
        return choose_for(&run, out_choice);
    return HP_OK;
}

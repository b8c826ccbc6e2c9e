/* SPDX-License-Identifier: Apache-2.0
 *
 * line.c - signal lines: one member writes, the others read, the value only rises.
 *
 * A line's value is the group's base plus a sequence number, so that a group can use lines that an
 * earlier one has left at any value up to the base; number 0 is reached by definition. Values are
 * compared by their difference, so that nothing happens where they wrap. Post is a
 * sequentially consistent store (the release that reached and wait acquire), then a look for
 * sleepers. An entry of the ring is the same with one number: it is there or it is not.
 */
#include "inside.h"

/* `awaited`: who sleeps for this rank is woken; -1: whoever sleeps. */
static void post(hp_group *group, _Atomic uint64_t *value, uint64_t seq, int awaited) {
    atomic_store_explicit(value, group->base + seq, memory_order_seq_cst);
    for (int i = 0; i < group->size; i++)
        if (i != group->rank && hpi_world_sleeps(group->world, group->world_ranks[i], awaited))
            hpi_world_wake_for(group->world, group->world_ranks[i], awaited);
}

/* That a member has failed, or gone, concerns who waits for another, too. */
void hpi_line_post(hp_group *group, int channel, uint64_t seq) {
    post(group, &hpi_group_line(group, group->rank, channel)->value, seq,
         channel == HPI_LINE_STATE ? -1 : group->world->rank);
}

hp_status hpi_line_wait(hp_group *group, int rank, int channel, uint64_t seq,
                        const char *operation) {
    const hpi_reason reason = {operation, group, rank, seq, 0, 1 + channel};
    if (hpi_line_reached(group, rank, channel, seq))
        return HP_OK;
    return hpi_world_wait(group->world, &hpi_group_line(group, rank, channel)->value,
                          (hp_compare)HPI_REACHED, group->base + seq, &reason);
}

/* ---- the ring ------------------------------------------------------------------------------- */

void hpi_said_post(hp_group *group, uint64_t seq) {
    post(group, &hpi_group_said(group, group->rank, seq)->value, seq, group->world->rank);
}

void hpi_said_put(hp_group *group, uint64_t seq) {
    atomic_store_explicit(&hpi_group_said(group, group->rank, seq)->value, group->base + seq,
                          memory_order_release); /* acquired by hpi_said_is_there */
}

hp_status hpi_said_wait(hp_group *group, int rank, uint64_t seq, const char *operation) {
    if (hpi_said_is_there(group, rank, seq))
        return HP_OK;
    const hpi_reason reason = {operation, group, rank, seq, 0, 1 + HPI_LINE_SAID};
    return hpi_world_wait(group->world, &hpi_group_said(group, rank, seq)->value, HP_EQ,
                          group->base + seq, &reason);
}

/* ---- exchanges ------------------------------------------------------------------------------ */

static hp_status wait_all(hp_group *group, uint64_t seq, const char *operation) {
    for (int i = 0; i < group->size; i++)
        if (i != group->rank)
            HP_TRY(hpi_line_wait(group, i, HPI_LINE_SETUP, seq, operation));
    return HP_OK;
}

/* The name of the call travels with the words, so that ranks that are in different calls are told
 * apart; it takes the last two words of the line. */
enum { NAME_WORD = HPI_EXCHANGE_WORDS, N_NAME_WORDS = 2 };
_Static_assert(NAME_WORD + N_NAME_WORDS == 15, "words and name fill the line");

static void read_name(const hpi_line *line, char *out_name) {
    hpi_text_read(&line->words[NAME_WORD], N_NAME_WORDS, out_name);
}

static hp_status check_names(const hp_group *group, const char *operation) {
    char mine[8 * N_NAME_WORDS], theirs[8 * N_NAME_WORDS];
    read_name(hpi_group_line(group, group->rank, HPI_LINE_SETUP), mine);
    for (int i = 0; i < group->size; i++) {
        read_name(hpi_group_line(group, i, HPI_LINE_SETUP), theirs);
        if (strcmp(mine, theirs) != 0)
            return HPI_FAIL_RANK(
                HP_ERR_MISMATCH, group->world_ranks[i],
                "expected every rank of %s to make the same call: rank %d made %s, "
                "rank %d made %s",
                group->name, group->world->rank, operation, group->world_ranks[i], theirs);
    }
    return HP_OK;
}

/* Exchange k posts 2k + 1 when its words are there and 2k + 2 when it has read everybody's; the
 * next exchange waits for the latter before it writes, so this one need not wait for it. */
static hp_status exchange(hp_group *group, const char *operation, const uint64_t *words,
                          int n_words, uint64_t *out_words) {
    hpi_line *own = hpi_group_line(group, group->rank, HPI_LINE_SETUP);
    const uint64_t seq = 2 * group->n_exchanges;
    HP_TRY(wait_all(group, seq, operation));
    for (int k = 0; k < n_words; k++)
        atomic_store_explicit(&own->words[k], words[k], memory_order_relaxed);
    hpi_text_write(&own->words[NAME_WORD], N_NAME_WORDS, operation);
    group->n_exchanges++;
    hpi_line_post(group, HPI_LINE_SETUP, seq + 1);
    HP_TRY(wait_all(group, seq + 1, operation));
    const hp_status status = check_names(group, operation);
    for (int i = 0; out_words && i < group->size && !status; i++) {
        const hpi_line *line = hpi_group_line(group, i, HPI_LINE_SETUP);
        for (int k = 0; k < n_words; k++)
            out_words[i * n_words + k] =
                atomic_load_explicit(&line->words[k], memory_order_relaxed);
    }
    hpi_line_post(group, HPI_LINE_SETUP, seq + 2);
    return status;
}

hp_status hpi_group_exchange(hp_group *group, const char *operation, const uint64_t *words,
                             int n_words, uint64_t *out_words) {
    HP_TRY(hpi_group_check(group));
    const hp_status status =
        group->nodes ? hpi_spanning_exchange(group, operation, words, n_words, out_words)
                     : exchange(group, operation, words, n_words, out_words);
    /* the ranks are at different places now: nothing that follows could be trusted */
    if (status < 0)
        hpi_group_fail(group);
    return status;
}

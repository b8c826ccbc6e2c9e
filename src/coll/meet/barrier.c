/* SPDX-License-Identifier: Apache-2.0
 *
 * barrier.c - a barrier among ranks that have a core each: over a line that only barriers use.
 *
 * A rank says what it says in any meeting, in its entry of the ring, but nobody waits for that. It
 * is waited for at one line: the number of its last barrier, and the hash of all its calls up to
 * that one and up to the one before. The next number will do, too, and that rank cannot leave it
 * without us. So a rank that is late fetches the line once for two barriers, and in a row of them
 * each takes one exchange of lines for two, where entries would have to come one by one.
 *
 * Whatever is not as it should be, a rank that takes its time, does something else or has done so,
 * is left to the entries: they are waited for, and say what differs. Model: barrier.pml.
 */
#include "words.h"

enum { SPINS = 64 }; /* as long as hpi_world_wait spins before it reads a clock */

static hpi_line *line_of(const hpi_run *run, int rank) {
    return hpi_group_line(run->group, rank, HPI_LINE_BARRIER);
}

enum { UP_TO_THIS, UP_TO_LAST }; /* words of the line */

/* The hash is that of the line's number, or already of the next one: then the number follows. The
 * next number alone says little: that rank may have begun a broadcast for which nobody meets. */
static bool has_come(const hpi_run *run, int peer) {
    const hpi_line *line = line_of(run, peer);
    const uint64_t ahead = hpi_line_seq(run->group, peer, HPI_LINE_BARRIER) - run->seq;
    const int word = ahead == 0 ? UP_TO_THIS : UP_TO_LAST;
    return ahead <= 1 &&
           atomic_load_explicit(&line->words[word], memory_order_relaxed) == run->state->history;
}

static void say(const hpi_run *run, int word, uint64_t history) {
    atomic_store_explicit(&line_of(run, run->rank)->words[word], history, memory_order_relaxed);
}

static bool comes_soon(const hpi_run *run, int peer) {
    for (int i = 0; i < SPINS; i++) {
        if (has_come(run, peer))
            return true;
        hpi_relax();
    }
    return false;
}

hp_status hpi_barrier_meet(hpi_run *run) {
    static const uint64_t nothing[HPI_SMALL_WORDS];
    uint64_t unused[HPI_SMALL_WORDS];
    const bool spins = hpi_thread_spins(hp_group_world(run->group));
    say(run, UP_TO_LAST, run->state->history);
    hpi_words_write(run, nothing);
    say(run, UP_TO_THIS, run->state->history);
    hpi_line_put(run->group, HPI_LINE_BARRIER, run->seq); /* who sleeps does so at the entry */
    hpi_said_post(run->group, run->seq);
    for (int k = 1; k < run->n; k++) {
        const int peer = (run->rank + k) % run->n;
        if (!spins || !comes_soon(run, peer))
            HP_TRY(hpi_words_hear(run, peer, unused));
    }
    return HP_OK;
}

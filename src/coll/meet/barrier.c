/* SPDX-License-Identifier: Apache-2.0
 *
 * barrier.c - a barrier among ranks that have a core each: over a line that only barriers use.
 *
 * A rank says what it says in any meeting, in its entry of the ring, but nobody waits for that. It
 * is waited for at one line: the number of its last barrier, and the hash of all its calls so far.
 * A number beyond ours will do: that rank has left ours, so it has found our hash equal. So a rank
 * that is late fetches the line once for two barriers, and in a row of them each takes one exchange
 * of lines for two, where entries would have to come one by one.
 *
 * Whatever is not as it should be, a rank that takes its time, does something else or has done so,
 * is left to the entries: they are waited for, and say what differs. Model: barrier.pml.
 */
#include "words.h"

enum { SPINS = 64 }; /* as long as hpi_world_wait spins before it reads a clock */

static hpi_line *line_of(const hpi_run *run, int rank) {
    return hpi_group_line(run->group, rank, HPI_LINE_BARRIER);
}

/* The hash is that of the line's number, or already of the next one: then the number follows. */
static bool has_come(const hpi_run *run, int peer) {
    const hpi_line *line = line_of(run, peer);
    const uint64_t number = hpi_line_seq(run->group, peer, HPI_LINE_BARRIER);
    return number > run->seq ||
           (number == run->seq &&
            atomic_load_explicit(&line->words[0], memory_order_relaxed) == run->state->history);
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
    hpi_words_write(run, nothing);
    atomic_store_explicit(&line_of(run, run->rank)->words[0], run->state->history,
                          memory_order_relaxed);
    hpi_line_put(run->group, HPI_LINE_BARRIER, run->seq); /* who sleeps does so at the entry */
    hpi_said_post(run->group, run->seq);
    for (int k = 1; k < run->n; k++) {
        const int peer = (run->rank + k) % run->n;
        if (!spins || !comes_soon(run, peer))
            HP_TRY(hpi_words_hear(run, peer, unused));
    }
    return HP_OK;
}

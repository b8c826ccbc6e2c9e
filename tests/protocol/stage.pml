/* SPDX-License-Identifier: Apache-2.0
 *
 * stage.pml - the ticks of src/coll/staged/stage.c: two cells for each rank, by the parity of the tick
 * (the library's are pieces of a ring, of which the next never touches the last; two by turns are the
 * harder case; of two ranks they go to and fro, see swap.pml; the words that say where they lie are by turns too, and so part of a cell here).
 *
 * Models tick_begin, tick_post and tick_wait_all as hpi_gather_staged, hpi_broadcast_staged and
 * reduce_staged_chunk use them, one after the other, so that ticks go on over collectives: a tick
 * where all have data (gather, both ticks of a reduction) and one where the root alone has
 * (broadcast: others post without filling, and read the root's cell alone). What is read must be of
 * this tick. A cell is one word, whose value is the tick that it was filled for; a reader takes two
 * looks at it, since it copies for a while.
 *
 * Mutants, with the memory that they need and what must come out:
 *   1 weak holds  tick_post: a release alone (sleepers need more: wait.pml)
 *   2 weak fails  tick_post: relaxed, and overtakes the cell
 *   3 weak fails  tick_wait: relaxed, and the cell is read before it
 *   4 tso  fails  one cell
 *   5 tso  fails  the root of a broadcast waits for nobody
 *   6 tso  fails  ranks wait for the root of a broadcast alone
 *   7 tso  fails  the tick is posted before the cell is filled
 */
#ifndef N_RANKS
#define N_RANKS 3
#endif
#define N_TICKS 4
#define ROOT 0
#define LINE(rank) (3 * (rank))
#define CELL(rank, t) (3 * (rank) + 1 + ((t) % 2) * (mutant != 4))
#define N_WORDS (3 * N_RANKS)
#define N_WRITERS N_RANKS
#define N_BUFFERED 2
#include "memory.inc"

/* gather or reduction, broadcast, broadcast, gather or reduction */
#define is_broadcast(t) ((t) == 2 || (t) == 3)
#define has_data(rank, t) (!is_broadcast(t) || (rank) == ROOT)

inline fill(t) {
    if
    :: has_data(rank, t) -> store(rank, CELL(rank, t), t)
    :: else
    fi
}

inline tick_post(t) {
    if
    :: mutant == 2 -> store(rank, LINE(rank), t)
    :: mutant == 1 -> store_release(rank, LINE(rank), t)
    :: else -> store_release(rank, LINE(rank), t); fence(rank)
    fi
}

inline read_cell(t) {
    if
    :: has_data(peer, t) ->
        if
        :: mutant == 3 -> seen = load(CELL(peer, t)); load(LINE(peer)) >= t
        :: else -> load(LINE(peer)) >= t; seen = load(CELL(peer, t))
        fi;
        assert(seen == t);
        seen = 0;
        assert(load(CELL(peer, t)) == t)
    :: else -> load(LINE(peer)) >= t
    fi
}

proctype member(byte rank) {
    byte t, i, peer, seen;
    for (t : 1 .. N_TICKS) {
        if
        :: mutant == 7 -> tick_post(t); fill(t)
        :: else -> fill(t); tick_post(t)
        fi;
        for (i : 1 .. N_RANKS - 1) {
            peer = (rank + i) % N_RANKS;
            if
            :: mutant == 5 && is_broadcast(t) && rank == ROOT -> skip
            :: mutant == 6 && is_broadcast(t) && peer != ROOT -> skip
            :: else -> read_cell(t)
            fi
        }
    }
}

init {
    byte who;
    choose_mutant();
    atomic {
        for (who : 0 .. N_RANKS - 1) {
            run member(who);
            run drain(who);
            if
            :: is_weak -> run overtake(who, LINE(who)); run overtake(who, LINE(who) + 1);
                run overtake(who, LINE(who) + 2)
            :: else
            fi
        }
    }
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * exchange.pml - the set-up exchange of src/world/line.c: one set of words, two posts.
 *
 * Models exchange(): wait until all have read the words of the exchange before (2k), write the own,
 * post 2k + 1, wait for everybody's, read them, post 2k + 2. What is read must be of exchange k.
 * The words are two here, so that a set that is half old would show; their value is k + 1.
 *
 * Mutants, with the memory that they need and what must come out:
 *   1 weak holds  hpi_line_post: a release alone (sleepers need more: wait.pml)
 *   2 weak fails  the post of 2k + 1: relaxed, and overtakes the words
 *   3 weak fails  the post of 2k + 2: relaxed, and goes before the words are read
 *   4 weak fails  the wait for 2k + 1: relaxed, and the words are read before it
 *   5 tso  fails  no wait for 2k
 *   6 tso  fails  2k + 2 is not posted apart, 2k + 1 of the exchange before counts for it
 *   7 tso  fails  the wait for 2k leaves out one peer
 */
#ifndef N_RANKS
#define N_RANKS 3
#endif
#define N_ROUNDS 3
#define LINE(rank) (3 * (rank))
#define FIRST(rank) (3 * (rank) + 1)
#define SECOND(rank) (3 * (rank) + 2)
#define N_WORDS (3 * N_RANKS)
#define N_WRITERS N_RANKS
#define N_BUFFERED 3
#include "memory.inc"

inline post(value) {
    if
    :: mutant == 2 -> store(rank, LINE(rank), value)
    :: mutant == 1 -> store_release(rank, LINE(rank), value)
    :: else -> store_release(rank, LINE(rank), value); fence(rank)
    fi
}

inline wait_all_read(value) {
    for (i : 1 .. N_RANKS - 1) {
        peer = (rank + i) % N_RANKS;
        if
        :: mutant == 5 || (mutant == 7 && i == 1) -> skip
        :: mutant == 6 -> load(LINE(peer)) + 1 >= value
        :: else -> load(LINE(peer)) >= value
        fi
    }
}

inline read_words(k) {
    if
    :: mutant == 4 -> seen = load(FIRST(peer)); load(LINE(peer)) >= 2 * k + 1
    :: else -> load(LINE(peer)) >= 2 * k + 1; seen = load(FIRST(peer))
    fi;
    assert(seen == k + 1);
    seen = load(SECOND(peer));
    assert(seen == k + 1);
    seen = 0
}

proctype member(byte rank) {
    byte k, i, peer, seen;
    for (k : 0 .. N_ROUNDS - 1) {
        wait_all_read(2 * k);
        store(rank, FIRST(rank), k + 1);
        store(rank, SECOND(rank), k + 1);
        post(2 * k + 1);
        if
        :: mutant == 3 -> /* all waits first: the loads behind them are what may be late */
            for (i : 1 .. N_RANKS - 1) {
                load(LINE((rank + i) % N_RANKS)) >= 2 * k + 1
            }
            post(2 * k + 2)
        :: else
        fi;
        for (i : 1 .. N_RANKS - 1) {
            peer = (rank + i) % N_RANKS;
            read_words(k)
        }
        if
        :: mutant != 3 -> post(2 * k + 2)
        :: else
        fi
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
            :: is_weak -> run overtake(who, LINE(who)); run overtake(who, FIRST(who));
                run overtake(who, SECOND(who))
            :: else
            fi
        }
    }
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * enter.pml - the entries of src/coll/meet/enter.c where every collective is a meeting.
 *
 * Models hpi_coll_enter: say (words, then the post of number k), and for every peer the wait for k,
 * then compare and listen. What is read must be of collective k, and nobody may be two collectives
 * ahead of anybody. So two entries by the parity of the collective would do; the ring has more for
 * broadcasts, see ahead.pml. An entry is one word here, whose value is the number that it was
 * written for, and one line of the rank says its number.
 *
 * Mutants, with the memory that they need and what must come out:
 *   1 weak holds  hpi_said_post: a release alone (sleepers need more: wait.pml)
 *   2 weak fails  hpi_said_post: relaxed, and overtakes the words
 *   3 weak fails  hpi_said_post: relaxed, and loads of the collective before go behind it
 *   4 weak fails  hpi_said_wait: relaxed, and the words are read before it
 *   5 tso  fails  one entry
 *   6 tso  fails  a rank waits for its next peer alone
 *   7 tso  fails  the post goes before the words
 */
#ifndef N_RANKS
#define N_RANKS 3
#endif
#define N_ROUNDS 4
#define LINE(rank) (3 * (rank))
#define SET(rank, k) (3 * (rank) + 1 + ((k) % 2) * (mutant != 5))
#define N_WORDS (3 * N_RANKS)
#define N_WRITERS N_RANKS
#define N_BUFFERED 2
#include "memory.inc"

byte entered[N_RANKS];

inline post(k) {
    if
    :: mutant == 2 || mutant == 3 -> store(rank, LINE(rank), k)
    :: else -> store_release(rank, LINE(rank), k)
    fi;
    if
    :: mutant != 1 && mutant != 2 && mutant != 3 -> fence(rank)
    :: else
    fi
}

inline say(k) {
    if
    :: mutant == 7 -> post(k); store(rank, SET(rank, k), k)
    :: else -> store(rank, SET(rank, k), k); post(k)
    fi
}

inline listen(k) {
    if
    :: mutant == 4 -> heard = load(SET(peer, k)); load(LINE(peer)) >= k
    :: else -> load(LINE(peer)) >= k; heard = load(SET(peer, k))
    fi;
    assert(heard == k);
    heard = 0
}

/* Mutant 3: the last peer's words of k are read once k + 1 has been posted. */
proctype member(byte rank) {
    byte k, i, peer, heard, late;
    for (k : 1 .. N_ROUNDS) {
        atomic {
            entered[rank] = k;
            for (i : 0 .. N_RANKS - 1) {
                assert(entered[i] + 1 >= k)
            }
        }
        say(k);
        if
        :: late -> heard = load(SET(peer, k - 1)); assert(heard == k - 1); heard = 0; late = 0
        :: else
        fi;
        for (i : 1 .. N_RANKS - 1) {
            peer = (rank + i) % N_RANKS;
            if
            :: mutant == 6 && i > 1 -> skip
            :: mutant == 3 && i == N_RANKS - 1 -> load(LINE(peer)) >= k; late = (k < N_ROUNDS)
            :: else -> listen(k)
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

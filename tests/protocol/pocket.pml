/* SPDX-License-Identifier: Apache-2.0
 *
 * pocket.pml - the pockets of src/coll/meet/offer.c: two for each rank, by the count of their uses
 * (of more than two ranks; those of two: swap.pml).
 *
 * Models hpi_coll_enter where inputs lie in pockets: fill the own pocket, post the collective's
 * number, wait for every peer's, read all pockets. Between two such collectives lies a broadcast for
 * which nobody meets, so it is not the number of the collective by which pockets may alternate. What
 * is read must be of this use. A pocket is one word, whose value is the use that it was filled for;
 * a reader takes two looks at it, since it sums for a while.
 *
 * Mutants, with the memory that they need and what must come out:
 *   1 weak holds  hpi_said_post: a release alone (sleepers need more: wait.pml)
 *   2 weak fails  hpi_said_post: relaxed, and overtakes the pocket
 *   3 weak fails  hpi_said_post: relaxed, and loads of the use before go behind it
 *   4 weak fails  hpi_said_wait: relaxed, and the pocket is read before it
 *   5 tso  fails  one pocket
 *   6 tso  fails  pockets alternate by the number of the collective
 *   7 tso  fails  a rank waits for its next peer alone
 *   8 tso  fails  the post goes before the pocket is filled
 */
#ifndef N_RANKS
#define N_RANKS 3
#endif
#define N_USES 4
#define NUMBER(use) (2 * (use) - 1)
#define LINE(rank) (3 * (rank))
#define COUNT(use) ((mutant == 6) * NUMBER(use) + (mutant != 6) * (use))
#define TURN(use) ((COUNT(use) % 2) * (mutant != 5))
#define POCKET(rank, use) (3 * (rank) + 1 + TURN(use))
#define N_WORDS (3 * N_RANKS)
#define N_WRITERS N_RANKS
#define N_BUFFERED 2
#include "memory.inc"

inline post(use) {
    if
    :: mutant == 2 || mutant == 3 -> store(rank, LINE(rank), NUMBER(use))
    :: else -> store_release(rank, LINE(rank), NUMBER(use))
    fi;
    if
    :: mutant != 1 && mutant != 2 && mutant != 3 -> fence(rank)
    :: else
    fi
}

inline say(use) {
    if
    :: mutant == 8 -> post(use); store(rank, POCKET(rank, use), use)
    :: else -> store(rank, POCKET(rank, use), use); post(use)
    fi
}

inline read_twice(use) {
    assert(load(POCKET(peer, use)) == use);
    assert(load(POCKET(peer, use)) == use)
}

inline listen(use) {
    if
    :: mutant == 4 -> heard = load(POCKET(peer, use)); load(LINE(peer)) >= NUMBER(use);
        assert(heard == use); heard = 0
    :: else -> load(LINE(peer)) >= NUMBER(use); read_twice(use)
    fi
}

/* Mutant 3: the last peer's pocket of a use is read once the next number has been posted. */
proctype member(byte rank) {
    byte use, i, peer, heard, late;
    for (use : 1 .. N_USES) {
        say(use);
        if
        :: late -> read_twice(use - 1); late = 0
        :: else
        fi;
        for (i : 1 .. N_RANKS - 1) {
            peer = (rank + i) % N_RANKS;
            if
            :: mutant == 7 && i > 1 -> skip
            :: mutant == 3 && i == N_RANKS - 1 -> load(LINE(peer)) >= NUMBER(use);
                late = (use < N_USES)
            :: else -> listen(use)
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

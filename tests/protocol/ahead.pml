/* SPDX-License-Identifier: Apache-2.0
 *
 * ahead.pml - the ring of entries of src/coll/meet, where the root of a broadcast meets nobody.
 *
 * Models hpi_ahead_wait, hpi_words_write with its post, hpi_words_hear and hpi_ahead_leave of two
 * ranks, with rings of four entries: a rank is at most two numbers ahead (MOST_AHEAD), waits then
 * for one number back (CATCH_UP), and says what it has left at every number (LEAVE_STEP 1). Numbers
 * 1 to 5 are broadcasts from rank 0, in which the other one waits for the root alone, and 6 is a
 * meeting. An entry is its data, the number that it was written for, and its own number; both ranks
 * say theirs, and what is read must be of the number that is meant. The look back: of the last
 * number that a peer has left, the root still finds the peer's entry.
 *
 * Mutants, with the memory that they need and what must come out:
 *   1 weak holds  hpi_said_put: a release alone
 *   2 weak fails  hpi_said_post: relaxed, and overtakes the words
 *   3 weak fails  hpi_words_hear: the words are read before the number
 *   4 tso  fails  nobody waits: the root writes over entries that are being read
 *   5 tso  fails  the meeting raises no floor, and what is waited for was never said
 *   6 weak fails  hpi_line_post: relaxed, and what a peer has left is seen before its entry
 *   7 tso  fails  fail_past: looks further back than MOST_AHEAD, where a peer writes anew
 */
#define N_CASTS 5
#define MEETING (N_CASTS + 1)
#define N_ENTRIES 4
#define MOST_AHEAD 2
#define CATCH_UP 1
#define LEFT(rank) (rank)
#define DATA(rank, k) (2 + (rank) * 2 * N_ENTRIES + (k) % N_ENTRIES)
#define NUMBER(rank, k) (2 + N_ENTRIES + (rank) * 2 * N_ENTRIES + (k) % N_ENTRIES)
#define N_WORDS (2 + 4 * N_ENTRIES)
#define N_WRITERS 2
#define N_BUFFERED 3
#include "memory.inc"

/* Who looks for the first call that differed reads what is there under its number. */
#define FARTHEST_BACK (mutant == 7 -> MOST_AHEAD + 1 : MOST_AHEAD)
inline look_back(k) {
    if
    :: k > FARTHEST_BACK ->
        heard = load(NUMBER(1 - rank, k - FARTHEST_BACK));
        if
        :: heard == k - FARTHEST_BACK ->
            heard = load(DATA(1 - rank, k - FARTHEST_BACK));
            assert(heard == k - FARTHEST_BACK)
        :: else
        fi
    :: else
    fi
}

/* Mutant 5: the floor stays, so that after the meeting one more wait is made, for the meeting's own
 * number, which nobody posts. */
inline ahead_wait(k) {
    if
    :: k > floor + MOST_AHEAD && mutant != 4 ->
        load(LEFT(1 - rank)) >= k - CATCH_UP;
        floor = (load(LEFT(1 - rank)) < k - 1 -> load(LEFT(1 - rank)) : k - 1);
        heard = load(NUMBER(1 - rank, floor));
        assert(heard == floor);
        heard = load(DATA(1 - rank, floor));
        assert(heard == floor);
        look_back(k);
        heard = 0
    :: else
    fi
}

inline say(k, wakes) {
    store(rank, DATA(rank, k), k);
    if
    :: mutant == 2 -> store(rank, NUMBER(rank, k), k)
    :: else -> store_release(rank, NUMBER(rank, k), k);
        if
        :: wakes && mutant != 1 -> fence(rank)
        :: else
        fi
    fi
}

inline hear(k) {
    if
    :: mutant == 3 -> heard = load(DATA(1 - rank, k)); load(NUMBER(1 - rank, k)) == k
    :: else -> load(NUMBER(1 - rank, k)) == k; heard = load(DATA(1 - rank, k))
    fi;
    assert(heard == k);
    heard = 0
}

inline leave(k) {
    if
    :: mutant == 6 -> store(rank, LEFT(rank), k)
    :: else -> store_release(rank, LEFT(rank), k); fence(rank)
    fi
}

proctype member(byte rank) {
    byte k, heard, floor;
    for (k : 1 .. N_CASTS) {
        ahead_wait(k);
        say(k, rank == 0);
        if
        :: rank == 1 -> hear(k)
        :: else
        fi;
        leave(k)
    }
    ahead_wait(MEETING);
    say(MEETING, true);
    hear(MEETING);
    if
    :: mutant != 5 -> floor = MEETING - 1
    :: else -> floor = MEETING - MOST_AHEAD - 1
    fi;
    if /* the next one is a broadcast again */
    :: MEETING + 1 > floor + MOST_AHEAD -> load(LEFT(1 - rank)) >= MEETING + 1 - CATCH_UP
    :: else
    fi
}

init {
    byte who, word;
    choose_mutant();
    atomic {
        run member(0); run member(1);
        run drain(0); run drain(1);
        if
        :: is_weak ->
            for (who : 0 .. 1) {
                run overtake(who, LEFT(who));
                for (word : DATA(who, 0) .. DATA(who, 0) + 2 * N_ENTRIES - 1) {
                    run overtake(who, word)
                }
            }
        :: else
        fi
    }
}

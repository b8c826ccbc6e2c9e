/* SPDX-License-Identifier: Apache-2.0
 *
 * notes.pml - the notes of src/world/wait/notes.c: a reader has one whole note, or knows that it has not.
 *
 * Models hpi_note_write and hpi_note_free against hpi_note_read. The word `since` is 1 while the
 * fields change and tells two notes apart; a reader looks at it before and after. There are two
 * fields here, and a note's value stands in both and in `since`.
 *
 * Mutants, with the memory that they need and what must come out:
 *   1 weak fails  the fields are relaxed stores, and overtake the word that takes the note
 *   2 weak fails  the last store of since is relaxed, and overtakes the fields
 *   3 weak fails  the fields are relaxed loads, and the second look goes before them
 *   4 weak fails  the first look is relaxed, and goes behind a field
 *   5 tso  fails  the note is not taken before it changes
 *   6 tso  fails  there is no second look
 *   7 weak holds  the store that takes the note is relaxed (the fields' own releases suffice)
 */
#define SINCE 0
#define FIRST 1
#define SECOND 2
#define N_WORDS 3
#define N_WRITERS 1
#define N_BUFFERED 4
#define WRITER 0
#define TAKEN 1
#include "memory.inc"

inline store_field(word, value) {
    if
    :: mutant == 1 -> store(WRITER, word, value)
    :: else -> store_release(WRITER, word, value)
    fi
}

proctype writer() {
    byte note;
    for (note : 2 .. 4) {
        if
        :: mutant == 5
        :: mutant == 7 -> store(WRITER, SINCE, TAKEN)
        :: else -> store_release(WRITER, SINCE, TAKEN)
        fi;
        store_field(FIRST, note);
        store_field(SECOND, note);
        if
        :: mutant == 2 -> store(WRITER, SINCE, note)
        :: else -> store_release(WRITER, SINCE, note)
        fi;
        if
        :: note == 3 -> store_release(WRITER, SINCE, 0)
        :: else
        fi
    }
}

proctype reader() {
    byte round, since, first, second, again;
    for (round : 1 .. 2) {
        if
        :: mutant == 4 -> first = load(FIRST); since = load(SINCE)
        :: else -> since = load(SINCE); again = load(SINCE); first = load(FIRST)
        fi;
        if
        :: mutant == 3 -> second = load(SECOND)
        :: mutant == 6 -> second = load(SECOND); again = since
        :: else -> second = load(SECOND); again = load(SINCE)
        fi;
        assert(since <= TAKEN || again != since || (first == since && second == since));
        atomic { since = 0; first = 0; second = 0; again = 0 }
    }
}

init {
    choose_mutant();
    atomic {
        run writer(); run reader(); run drain(WRITER);
        if
        :: is_weak -> run overtake(WRITER, SINCE); run overtake(WRITER, FIRST);
            run overtake(WRITER, SECOND)
        :: else
        fi
    }
}

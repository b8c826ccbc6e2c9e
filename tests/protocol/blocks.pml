/* SPDX-License-Identifier: Apache-2.0
 *
 * blocks.pml - the entries and blocks of src/fused/meet.c and gather.c.
 *
 * Models hpi_fused_say, hpi_fused_hear and drain over calls one after the other: of a gather, whose
 * block the caller writes anew before each call and peers read, and of a scatter, which has none and
 * waits for no reader. An entry is a number and a word that says of which call it is; there
 * are two by turns. Every rank hears every entry before it returns.
 *
 * Mutants, with the memory that they need and what must come out:
 *   1 weak holds  posts: a release alone (sleepers need more: wait.pml)
 *   2 weak fails  the entry's number: relaxed, and overtakes the block and the words
 *   3 tso  fails  one entry
 *   4 tso  fails  a gather returns before its block was read
 *   5 tso  fails  read is posted before the block is read
 *   6 tso  fails  one rank returns from a scatter before it has heard
 */
#ifndef N_RANKS
#define N_RANKS 2
#endif
#define N_CALLS 5
#define SEQ(rank, s) (6 * (rank) + ((s) % 2) * (mutant != 3))
#define WORDS(rank, s) (6 * (rank) + 2 + ((s) % 2) * (mutant != 3))
#define READ(rank) (6 * (rank) + 4)
#define BLOCK(rank) (6 * (rank) + 5)
#define N_WORDS (6 * N_RANKS)
#define N_WRITERS N_RANKS
#define N_BUFFERED 3
#include "memory.inc"

/* gather, gather, scatter, scatter, gather */
#define is_gather(s) ((s) <= 2 || (s) == N_CALLS)

inline post(word, value) {
    if
    :: mutant == 2 -> store(rank, word, value)
    :: mutant == 1 -> store_release(rank, word, value)
    :: else -> store_release(rank, word, value); fence(rank)
    fi
}

inline say(s) {
    if
    :: is_gather(s) -> store(rank, BLOCK(rank), s)
    :: else
    fi;
    store(rank, WORDS(rank, s), s);
    post(SEQ(rank, s), s)
}

inline hear_all(s) {
    for (i : 1 .. N_RANKS - 1) {
        peer = (rank + i) % N_RANKS;
        load(SEQ(peer, s)) >= s;
        assert(load(WORDS(peer, s)) == s)
    }
}

inline read_blocks(s) {
    for (i : 1 .. N_RANKS - 1) {
        peer = (rank + i) % N_RANKS;
        assert(load(BLOCK(peer)) == s)
    }
}

inline await_readers(s) {
    for (i : 1 .. N_RANKS - 1) {
        peer = (rank + i) % N_RANKS;
        load(READ(peer)) >= s
    }
}

inline gather(s) {
    hear_all(s);
    if
    :: mutant == 5 -> post(READ(rank), s); read_blocks(s)
    :: else -> read_blocks(s); post(READ(rank), s)
    fi;
    if
    :: mutant == 4 -> skip
    :: else -> await_readers(s)
    fi
}

proctype member(byte rank) {
    byte s, i, peer;
    for (s : 1 .. N_CALLS) {
        say(s);
        if
        :: is_gather(s) -> gather(s)
        :: mutant == 6 && rank == 0 && !is_gather(s) -> skip
        :: else -> hear_all(s)
        fi
    }
}

init {
    byte who, word;
    choose_mutant();
    atomic {
        for (who : 0 .. N_RANKS - 1) {
            run member(who);
            run drain(who);
            if
            :: is_weak ->
                for (word : 0 .. 5) {
                    run overtake(who, 6 * who + word)
                }
            :: else
            fi
        }
    }
}

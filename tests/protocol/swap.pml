/* SPDX-License-Identifier: Apache-2.0
 *
 * swap.pml - the pieces of two ranks, which go to and fro: src/coll/ring.c, and the pockets of
 * src/coll/meet/words.h.
 *
 * Models, call after call, hpi_coll_enter where inputs are carried, and the ticks of stage.c: a rank
 * fills the piece that it was the last to read, posts the number, waits for the peer's, reads the
 * peer's piece, which it fills next. Cells take turns between two pairs, because their owner reads
 * them too, while the peer may be one tick ahead; what is carried stays in its pair until a cell
 * comes (pockets: it always does). What is read must be of this number. A piece is one word, whose
 * value is the number that it was filled for; a reader takes two looks at it, since it copies for a
 * while.
 *
 * Mutants, with the memory that they need and what must come out:
 *   1 weak holds  the post: a release alone (sleepers need more: wait.pml)
 *   2 weak fails  the post: relaxed, and overtakes the piece
 *   3 weak fails  the wait: relaxed, and the piece is read before it
 *   4 tso  fails  cells stay in their pair
 *   5 tso  fails  what is carried stays in the pair of the cell before it
 *   6 tso  fails  the post goes before the piece is filled
 *   7 tso  fails  a rank fills the piece that it has filled before
 */
#define N_NUMBERS 8
#define LINE(rank) (rank)
#define PIECE(pair, owner) (2 + 2 * (pair) + (owner))
#define N_WORDS 6
#define N_WRITERS 2
#define N_BUFFERED 2
#include "memory.inc"

/* carried, carried, cell, cell, cell, carried, carried, cell */
#define is_carried(number) ((number) <= 2 || (number) == 6 || (number) == 7)
#define stays(number)                                                                              \
    ((is_carried(number) && (mutant == 5 || is_carried((number) - 1))) ||                               \
     (!is_carried(number) && mutant == 4))

inline fill() {
    store(rank, PIECE(pair, is_across[pair] ^ rank), number)
}

inline post() {
    if
    :: mutant == 2 -> store(rank, LINE(rank), number)
    :: mutant == 1 -> store_release(rank, LINE(rank), number)
    :: else -> store_release(rank, LINE(rank), number); fence(rank)
    fi
}

inline read_peers() {
    if
    :: mutant == 3 -> seen = load(PIECE(pair, is_across[pair] ^ (1 - rank)));
        load(LINE(1 - rank)) >= number
    :: else -> load(LINE(1 - rank)) >= number;
        seen = load(PIECE(pair, is_across[pair] ^ (1 - rank)))
    fi;
    assert(seen == number);
    seen = 0;
    assert(load(PIECE(pair, is_across[pair] ^ (1 - rank))) == number)
}

/* Mutant 1: its own stores may still lie in its buffer, where no model looks. */
inline read_own() {
    if
    :: !is_carried(number) && mutant != 1 ->
        assert(load(PIECE(pair, is_across[pair] ^ rank)) == number)
    :: else
    fi
}

proctype member(byte rank) {
    byte number, pair, seen;
    bit is_across[2];
    is_across[0] = 1; is_across[1] = 1;
    for (number : 1 .. N_NUMBERS) {
        if
        :: stays(number) -> skip
        :: else -> pair = 1 - pair
        fi;
        if
        :: mutant == 7 -> is_across[pair] = 0
        :: else -> is_across[pair] = 1 - is_across[pair]
        fi;
        if
        :: mutant == 6 -> post(); fill()
        :: else -> fill(); post()
        fi;
        read_peers();
        read_own()
    }
}

init {
    byte who, word;
    choose_mutant();
    atomic {
        for (who : 0 .. 1) {
            run member(who);
            run drain(who);
            if
            :: is_weak ->
                for (word : 0 .. N_WORDS - 1) {
                    run overtake(who, word)
                }
            :: else
            fi
        }
    }
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * slots.pml - the slots of src/fused/scatter.c: tiles that all ranks make, each of which one adds.
 *
 * Models make_tile, await_slot, add_until and add_what_is_there: tile t lies in slot t % N_SLOTS of each
 * rank; its owner adds it when all have made it, at the latest before it makes tile t + N_SLOTS; who
 * makes waits until all owners need the slot no more. A slot is one word, whose value is the tile that
 * it was filled with; who adds takes two looks at it, since it adds for a while. Tiles count from 1;
 * where a call begins, in slot 0, numbers are left out, which nobody makes or adds.
 *
 * Mutants, with the memory that they need and what must come out:
 *   1 weak holds  made and added: a release alone (sleepers need more: wait.pml)
 *   2 weak fails  made: relaxed, and overtakes the slot
 *   3 weak fails  the slot is read before made is seen
 *   4 tso  fails  nobody waits for a slot
 *   5 tso  fails  a slot is free one tile too early
 *   6 tso  fails  added is posted before the slots are read
 *   7 tso  fails  made is posted before the slot is filled
 */
#ifndef N_RANKS
#define N_RANKS 2
#endif
#define N_SLOTS 2
#define N_TILES 5
#define LEFT_OUT 3
#define MADE(rank) (4 * (rank))
#define ADDED(rank) (4 * (rank) + 1)
#define SLOT(rank, t) (4 * (rank) + 2 + (t) % N_SLOTS)
#define N_WORDS (4 * N_RANKS)
#define N_WRITERS N_RANKS
#define N_BUFFERED 3
#include "memory.inc"

inline post(word, value) {
    if
    :: mutant == 2 -> store(rank, word, value)
    :: mutant == 1 -> store_release(rank, word, value)
    :: else -> store_release(rank, word, value); fence(rank)
    fi
}

/* The tiles before the next own one are needed no more. */
inline say_added() {
    if
    :: next > N_TILES -> post(ADDED(rank), N_TILES)
    :: else -> post(ADDED(rank), next - 1)
    fi
}

inline read_slots() {
    for (i : 1 .. N_RANKS - 1) {
        peer = (rank + i) % N_RANKS;
        if
        :: mutant == 3 -> seen = load(SLOT(peer, tile)); load(MADE(peer)) >= tile
        :: else -> load(MADE(peer)) >= tile; seen = load(SLOT(peer, tile))
        fi;
        assert(seen == tile);
        seen = 0;
        assert(load(SLOT(peer, tile)) == tile)
    }
}

inline add() {
    tile = next;
    next = next + N_RANKS;
    next = (next == LEFT_OUT -> next + N_RANKS : next);
    if
    :: mutant == 6 -> say_added(); read_slots()
    :: else -> read_slots(); say_added()
    fi
}

inline await_slot() {
    do
    :: next + N_SLOTS <= t -> add()
    :: else -> break
    od;
    for (i : 1 .. N_RANKS - 1) {
        peer = (rank + i) % N_RANKS;
        mutant == 4 || load(ADDED(peer)) + N_SLOTS + (mutant == 5) >= t
    }
}

proctype member(byte rank) {
    byte t, i, peer, seen, tile, next;
    next = (rank == 0 -> N_RANKS : rank);
    say_added();
    for (t : 1 .. N_TILES) {
        if
        :: t == LEFT_OUT -> goto left_out
        :: else
        fi;
        await_slot();
        if
        :: mutant == 7 -> post(MADE(rank), t); store(rank, SLOT(rank, t), t)
        :: else -> store(rank, SLOT(rank, t), t); post(MADE(rank), t)
        fi;
        do
        :: next <= t -> add()
        :: break
        od;
left_out:
        skip
    }
    do
    :: next <= N_TILES -> add()
    :: else -> break
    od
}

init {
    byte who;
    choose_mutant();
    atomic {
        for (who : 0 .. N_RANKS - 1) {
            run member(who);
            run drain(who);
            if
            :: is_weak -> run overtake(who, MADE(who)); run overtake(who, ADDED(who));
                run overtake(who, SLOT(who, 0)); run overtake(who, SLOT(who, 1))
            :: else
            fi
        }
    }
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * barrier.pml - the line of src/coll/meet/barrier.c, at which ranks wait instead of at the entries.
 *
 * Models hpi_barrier_meet: the entry (number and words are one word here, and enter.pml has them
 * apart), the line (the hashes of all calls up to the last number and up to this one, then the
 * number). A peer has come when its line has our number and our hash, or the next number and our
 * hash before it; or, for who does not wait at the line any longer, when its entry has come, whose
 * hash is then compared. The hash after barrier k is k; rank 0 may make another call before barrier
 * `odd`, or one for which it meets nobody instead of it, and its hash differs from there on: then no
 * rank may leave that barrier. Behind a barrier lies what all wrote before it.
 *
 * Mutants, with the memory that they need and what must come out:
 *   1 weak fails  hpi_line_put: relaxed, and overtakes what was written before the barrier
 *   2 tso  fails  a number is enough, whatever the hash
 *   3 tso  fails  the number before ours is enough
 *   4 tso  fails  a rank waits for its next peer alone
 *   5 tso  fails  a later number is enough, whatever the hash before it
 */
#ifndef N_RANKS
#define N_RANKS 3
#endif
#define N_ROUNDS 2
#define LINE(rank) (6 * (rank))
#define HASH(rank) (6 * (rank) + 1)
#define DATA(rank) (6 * (rank) + 2)
#define ENTRY(rank, k) (6 * (rank) + 3 + (k) % 2)
#define LAST(rank) (6 * (rank) + 5)
#define N_WORDS (6 * N_RANKS)
#define N_WRITERS N_RANKS
#define N_BUFFERED 5
#include "memory.inc"

#define OTHER 8 /* what the hash is more, of who has made another call */

byte odd; /* 0: all make the same calls */
bit skips; /* rank 0 meets nobody at `odd` */
bit has_failed; /* what the STATE line says */

inline say(k) {
    store(rank, DATA(rank), k);
    store(rank, LAST(rank), last);
    store(rank, HASH(rank), mine);
    if
    :: mutant == 1 -> store(rank, LINE(rank), k)
    :: else -> store_release(rank, LINE(rank), k)
    fi;
    store_release(rank, ENTRY(rank, k), mine);
    fence(rank)
}

inline listen(k) {
    heard = 0;
    do
    :: heard == 0 && load(LINE(peer)) + (mutant == 3) >= k -> /* at the line */
        d_step {
            number = load(LINE(peer)) + (mutant == 3)
        };
        heard = load((number > k -> LAST(peer) : HASH(peer)));
        if
        :: heard == mine || mutant == 2 || mutant == 3 -> break
        :: number > k && mutant == 5 -> break
        :: else /* it may already be that of the next number: look again, or at the entry */
        fi
    :: load(ENTRY(peer, k)) % OTHER == k ->
        has_failed = has_failed | (load(ENTRY(peer, k)) != mine);
        break
    :: has_failed -> break
    od;
    heard = 0; number = 0
}

proctype member(byte rank) {
    byte k, i, peer, heard, number, mine, last;
    for (k : 1 .. N_ROUNDS) {
        last = mine;
        mine = k + (rank == 0 && odd && k >= odd -> OTHER : 0);
        if
        :: rank == 0 && skips && k == odd ->
            store_release(rank, ENTRY(rank, k), mine);
            goto next
        :: else
        fi;
        say(k);
        for (i : 1 .. N_RANKS - 1) {
            peer = (rank + i) % N_RANKS;
            if
            :: mutant == 4 && i > 1 -> skip
            :: else -> listen(k)
            fi;
            if
            :: has_failed -> goto over
            :: else
            fi;
            assert(load(DATA(peer)) >= k || mutant == 4)
        }
        assert(!odd || k < odd);
next:
        skip
    }
over:
    skip
}

init {
    byte who;
    choose_mutant();
    if
    :: odd = 2 /* first: most mutants are found there */
    :: odd = 0
    :: odd = 1; skips = 1
    fi;
    atomic {
        for (who : 0 .. N_RANKS - 1) {
            run member(who);
            run drain(who);
            if
            :: is_weak -> run overtake(who, LINE(who)); run overtake(who, HASH(who));
                run overtake(who, DATA(who)); run overtake(who, LAST(who))
            :: else
            fi
        }
    }
}

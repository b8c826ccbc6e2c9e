/* SPDX-License-Identifier: Apache-2.0
 *
 * piece.pml - the two pieces of two ranks that send each other messages: src/coll/message/cells.c.
 *
 * Models find_piece, send_piece and get_piece, with a thread that sends and one that receives on each
 * rank. Who sends takes the peer's piece if it is here, else its own, else the ring (mailbox.pml);
 * whoever has read a message has its piece from then on. A cell is one word, which says where its
 * message lies; a piece is one word, whose value is the message; a reader takes two looks at it,
 * since it copies for a while.
 *
 * Mutants, with the memory that they need and what must come out:
 *   1 weak fails  post: relaxed, and the cell overtakes the piece
 *   2 weak fails  hpi_next_full_cell: relaxed, and the piece is read before it
 *   3 weak fails  get_piece: relaxed, and the piece is read behind it
 *   4 tso  fails  a piece that was sent is still here
 *   5 tso  fails  a receiver has a piece when its first run was read
 */
#define N_MESSAGES 2
#define RING 1
#define IN(owner) (2 + (owner))
#define CELL(rank, message) ((rank) * N_MESSAGES + (message) - 1)
#define PIECE(owner) (2 * N_MESSAGES + (owner))
#define N_CAME(rank, owner) (2 * N_MESSAGES + 2 + 2 * (rank) + (owner))
#define N_WORDS (2 * N_MESSAGES + 6)
#define N_WRITERS 4
#define SENDER(rank) (rank)
#define RECEIVER(rank) (2 + (rank))
#define N_BUFFERED 2
#include "memory.inc"

#define ID(rank, message) (1 + (rank) * N_MESSAGES + (message))

/* What a rank has before anything has come. */
#define n_came(owner) (load(N_CAME(rank, owner)) + ((owner) == rank))

proctype sender(byte rank) {
    byte message, piece, n_sent[2];
    for (message : 1 .. N_MESSAGES) {
        if
        :: n_came(1 - rank) > n_sent[1 - rank] -> piece = IN(1 - rank)
        :: else ->
            if
            :: n_came(rank) > n_sent[rank] -> piece = IN(rank)
            :: else -> piece = RING
            fi
        fi;
        if
        :: piece != RING ->
            n_sent[piece - IN(0)] = n_sent[piece - IN(0)] + (mutant != 4);
            store(SENDER(rank), PIECE(piece - IN(0)), ID(rank, message))
        :: else
        fi;
        if
        :: mutant == 1 -> store(SENDER(rank), CELL(rank, message), piece)
        :: else -> store_release(SENDER(rank), CELL(rank, message), piece)
        fi
    }
}

inline get() {
    n_got[owner]++;
    store_release(RECEIVER(rank), N_CAME(rank, owner), n_got[owner])
}

inline look() {
    assert(load(PIECE(owner)) == ID(1 - rank, message))
}

/* Mutant 2: what it read of either piece before the cell was there. */
proctype receiver(byte rank) {
    byte message, owner, early[2], n_got[2];
    for (message : 1 .. N_MESSAGES) {
        if
        :: mutant == 2 -> early[0] = load(PIECE(0)); early[1] = load(PIECE(1))
        :: else
        fi;
        load(CELL(1 - rank, message)) > 0;
        if
        :: load(CELL(1 - rank, message)) == RING -> skip
        :: else ->
            owner = load(CELL(1 - rank, message)) - IN(0);
            if
            :: mutant == 2 -> assert(early[owner] == ID(1 - rank, message))
            :: mutant == 3 || mutant == 5 -> look(); get(); look()
            :: else -> look(); look(); get()
            fi
        fi
    }
}

init {
    byte who;
    choose_mutant();
    atomic {
        for (who : 0 .. 1) {
            run sender(who);
            run receiver(who);
            run drain(SENDER(who));
            run drain(RECEIVER(who));
            if
            :: is_weak -> run overtake(SENDER(who), PIECE(0)); run overtake(SENDER(who), PIECE(1));
                run overtake(SENDER(who), CELL(who, 1)); run overtake(SENDER(who), CELL(who, 2))
            :: else
            fi
        }
    }
}

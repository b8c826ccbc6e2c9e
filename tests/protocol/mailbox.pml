/* SPDX-License-Identifier: Apache-2.0
 *
 * mailbox.pml - one way of src/coll/message/mailbox.c: a ring of cells from a sender to a receiver.
 *
 * Models send_copied, send_placed and send_far (next_free_cell, post, await_taken) against receive
 * (wait for the number of a cell, read, take), refuse, and a partner that dies, with two cells.
 * Message 1 fills one cell, 2 goes in two pieces, 3 lies where the receiver reads it, or else the
 * receiver says that it cannot and it comes in a cell, 4 fills one cell. A cell's data and a source
 * are one word each; data are the number of cells up to it, a source that of its message, and the
 * caller overwrites it as soon as send is back. The receiver says what it has taken at once where
 * the sender waits for it, and else now or with a later cell, but never two cells late. The receiver may refuse
 * any message. Either may die at any message: its stores are seen before its death is (the kernel
 * reports a process that has ended), and who waits looks at the word once more (look_around in
 * src/world/wait/wait.c): what was posted before dying counts. The same for a receiver that refused.
 *
 * Mutants, with the memory that they need and what must come out:
 *   1 weak holds  take, refuse: a release alone, as in post (sleepers need more: wait.pml)
 *   2 weak fails  post: relaxed, and the number overtakes the cell
 *   3 weak fails  take: relaxed, and the cell is read behind it
 *   4 weak fails  next_full_cell: relaxed, and the cell is read before it
 *   5 weak fails  refuse: relaxed, and taken overtakes what was wanted
 *   6 tso  fails  next_free_cell: one cell more than there are
 *   7 tso  fails  send_placed does not wait until it was taken
 *   8 tso  fails  who waits for a dead partner does not look once more
 *   9 tso  fails  who waits does not learn that the partner has died
 *  10 tso  fails  a refusal raises taken by one, it is no answer to every wait
 *  11 weak fails  take: relaxed, and it overtakes the word that says that the source cannot be read
 *  12 tso  fails  what is taken is said with the next ring alone, and the sender waits for ever
 */
#define N_MESSAGES 4
#define N_CELLS 2
#define REFUSED 100
#define TAKEN 0
#define WANTED 1
#define UNREADABLE 2
#define SOURCE 3
#define CELL(n) (4 + (n) % N_CELLS) /* of the cell after n others */
#define NUMBER(n) (4 + N_CELLS + (n) % N_CELLS)
#define N_WORDS (4 + 2 * N_CELLS)
#define N_WRITERS 2
#define N_BUFFERED 3
#define SENDER 0
#define RECEIVER 1
#include "memory.inc"

bool is_dead[2];
byte n_posted; /* by a sender that has died */

#define is_placed(message) ((message) == 3)
#define n_pieces(message) ((message) == 2 -> 2 : 1)

inline publish(who, word, value) {
    if
    :: mutant == 2 && who == SENDER -> store(who, word, value)
    :: mutant == 5 && value == REFUSED -> store(who, word, value)
    :: mutant == 11 && who == RECEIVER && is_copied -> store(who, word, value)
    :: mutant == 1 || (who == SENDER && mutant != 2) -> store_release(who, word, value)
    :: else -> store_release(who, word, value); fence(who)
    fi
}

/* is_over: the partner has died, and the word has not got there. */
inline await(partner, word, value) {
    if
    :: load(word) >= value
    :: is_dead[partner] && mutant != 9 -> is_over = (mutant == 8 || load(word) < value)
    fi
}

/* A free cell, filled and posted. */
inline fill_cell() {
    next_free_cell();
    if
    :: is_over -> goto ended
    :: else
    fi;
    store(SENDER, CELL(n), n + 1);
    publish(SENDER, NUMBER(n), n + 1);
    n++
}

inline die(who) {
    atomic { fence(who); is_dead[who] = true }
}

inline await_taken(value) {
    await(RECEIVER, TAKEN, value);
    if
    :: load(TAKEN) == REFUSED -> assert(load(WANTED) > 0); is_over = true
    :: else
    fi
}

inline next_free_cell() {
    if
    :: n + (mutant != 6) > N_CELLS -> await_taken(n + (mutant != 6) - N_CELLS)
    :: else
    fi
}

proctype sender() {
    byte message, n, piece;
    bool is_over, is_copied;
    for (message : 1 .. N_MESSAGES) {
        if
        :: true -> atomic { fence(SENDER); n_posted = n; is_dead[SENDER] = true }; goto ended
        :: true
        fi;
        if
        :: is_placed(message) -> store(SENDER, SOURCE, message)
        :: else
        fi;
        for (piece : 1 .. n_pieces(message)) {
            fill_cell()
        }
        if
        :: is_placed(message) && mutant != 7 -> await_taken(n);
            if
            :: !is_over && load(UNREADABLE) -> fill_cell()
            :: else
            fi
        :: else
        fi;
        if
        :: is_over -> goto ended
        :: else -> store(SENDER, SOURCE, 0)
        fi
    }
ended:
    skip
}

inline read_cell() {
    if
    :: mutant == 4 -> seen = load(CELL(n)); await(SENDER, NUMBER(n), n + 1)
    :: else -> await(SENDER, NUMBER(n), n + 1); seen = load(CELL(n))
    fi;
    if
    :: is_over -> assert(n >= n_posted); goto ended
    :: mutant == 3 -> skip
    :: else -> assert(seen == n + 1)
    fi;
    seen = 0
}

inline take(is_awaited) {
    n++;
    if
    :: !is_awaited && n - said < N_CELLS + 2 * (mutant == 12) -> skip
    :: said = n; publish(RECEIVER, TAKEN, n)
    fi;
    if
    :: mutant == 3 -> assert(load(CELL(n - 1)) == n)
    :: else
    fi
}

proctype receiver() {
    byte message, n, piece, seen, answer, said;
    bool is_over, is_copied;
    for (message : 1 .. N_MESSAGES) {
        if
        :: true -> die(RECEIVER); goto ended
        :: true
        fi;
        for (piece : 1 .. n_pieces(message)) {
            read_cell();
            if
            :: piece == 1 -> /* this count or dtype was not wanted */
                store(RECEIVER, WANTED, message);
                answer = (mutant == 10 -> n + 1 : REFUSED);
                publish(RECEIVER, TAKEN, answer);
                goto ended
            :: is_placed(message) -> assert(load(SOURCE) == message); take(true)
            :: is_placed(message) -> /* the kernel did not let it */
                store(RECEIVER, UNREADABLE, 1);
                is_copied = true;
                take(true);
                is_copied = false;
                read_cell();
                take(false)
            :: !is_placed(message) -> take(false)
            fi
        }
    }
ended:
    skip
}

init {
    byte word;
    choose_mutant();
    atomic {
        run sender(); run receiver();
        run drain(SENDER); run drain(RECEIVER);
        if
        :: is_weak ->
            run overtake(RECEIVER, TAKEN);
            run overtake(RECEIVER, WANTED);
            run overtake(RECEIVER, UNREADABLE);
            for (word : SOURCE .. N_WORDS - 1) {
                run overtake(SENDER, word)
            }
        :: else
        fi
    }
}

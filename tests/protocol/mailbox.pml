/* SPDX-License-Identifier: Apache-2.0
 *
 * mailbox.pml - one way of src/coll/message: cells, and a ring of bytes, from a sender to a
 * receiver.
 *
 * Models hpi_send_copied (send_cells, send_runs, await_room), send_shared and send_far with
 * hpi_next_free_cell, post and hpi_letter_await_taken, against receive (wait for the number of a
 * cell, read, take), receive_placed (come, await_help), receive_far, refuse, and a partner that dies,
 * with two cells and a ring that holds one run. Message 1 fills one cell, 2 goes in two runs, 3 lies
 * where the receiver reads it and the sender copies a part, or else the receiver says that it cannot
 * and it comes in a cell, 4 goes in three cells. A cell's data, a run, a source and what the sender
 * copies into the receiver's memory are one word each; data are the number of cells up to it, a
 * source that of its message, and the caller overwrites it as soon as send is back. The receiver says
 * what it has taken at once where the sender waits for it, and else now or with a later cell, but
 * never two cells late. The receiver may refuse any message. Either may die at any message: its
 * stores are seen before its death is (the kernel reports a process that has ended), and who waits
 * looks at the word once more (look_around in src/world/wait/wait.c): what was posted before dying
 * counts. The same for a receiver that refused. Stores past the caches wait for a fence before their
 * cell is posted, so they are stores like others here.
 *
 * Mutants, with the memory that they need and what must come out:
 *   1 weak holds  take, refuse: a release alone, as in post (sleepers need more: wait.pml)
 *   2 weak fails  post: relaxed, and the number overtakes the cell
 *   3 weak fails  take: relaxed, and the cell is read behind it
 *   4 weak fails  hpi_next_full_cell: relaxed, and the cell is read before it
 *   5 weak fails  refuse: relaxed, and taken overtakes what was wanted
 *   6 tso  fails  hpi_next_free_cell: one cell more than there are
 *   7 tso  fails  send_shared does not wait until it was taken
 *   8 tso  fails  who waits for a dead partner does not look once more
 *   9 tso  fails  who waits does not learn that the partner has died
 *  10 tso  fails  a refusal raises taken by one, it is no answer to every wait
 *  11 weak fails  take: relaxed, and it overtakes the word that says that the source cannot be read
 *  12 tso  fails  what is taken is said with the next ring alone, and the sender waits for ever
 *  13 weak fails  send_shared: relaxed, and helped overtakes what the sender has copied
 *  14 tso  fails  the receiver does not wait for the sender's part
 *  15 tso  fails  await_room: a run is written before the one that lay there was taken
 *  16 weak fails  come: relaxed, and it overtakes the place that the sender copies to
 */
#define N_MESSAGES 4
#define N_CELLS 2
#define REFUSED 100
#define TAKEN 0
#define WANTED 1
#define UNREADABLE 2
#define CAME_TO 3
#define PLACE 4 /* of the receiver's memory: the message that it is for */
#define SOURCE 5
#define COPIED 6 /* by the sender, into the receiver's memory */
#define HELPED 7
#define RUN 8
#define CELL(n) (9 + (n) % N_CELLS) /* of the cell after n others */
#define NUMBER(n) (9 + N_CELLS + (n) % N_CELLS)
#define N_WORDS (9 + 2 * N_CELLS)
#define N_WRITERS 2
#define N_BUFFERED 3
#define SENDER 0
#define RECEIVER 1
#include "memory.inc"

bool is_dead[2];
byte n_posted; /* by a sender that has died */

#define is_placed(message) ((message) == 3)
#define is_in_runs(message) ((message) == 2)
#define n_pieces(message) (is_in_runs(message) -> 2 : ((message) == 4 -> 3 : 1))

inline publish(who, word, value) {
    if
    :: mutant == 2 && who == SENDER && word != HELPED -> store(who, word, value)
    :: mutant == 13 && word == HELPED -> store(who, word, value)
    :: mutant == 16 && word == CAME_TO && value != REFUSED -> store(who, word, value)
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

/* A free cell, filled and posted, with its data or with a run of the ring. */
inline fill_cell(is_run) {
    next_free_cell();
    if
    :: !is_over && is_run && mutant != 15 -> await_taken(n_in_ring)
    :: else
    fi;
    if
    :: is_over -> goto ended
    :: else
    fi;
    if
    :: is_run -> store(SENDER, RUN, n + 1); n_in_ring = n + 1
    :: else -> store(SENDER, CELL(n), n + 1)
    fi;
    publish(SENDER, NUMBER(n), n + 1);
    n++
}

/* The sender's part of a message that both copy, unless it was refused. */
inline help() {
    await(RECEIVER, CAME_TO, n);
    if
    :: is_over -> goto ended
    :: !is_over && load(CAME_TO) != REFUSED ->
        assert(load(PLACE) == message);
        store(SENDER, COPIED, message);
        publish(SENDER, HELPED, n)
    :: else
    fi
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
    byte message, n, piece, n_in_ring;
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
            fill_cell(is_in_runs(message))
        }
        if
        :: is_placed(message) && mutant != 7 ->
            help();
            await_taken(n);
            if
            :: !is_over && load(UNREADABLE) -> fill_cell(false)
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

#define DATA(is_run) (is_run -> RUN : CELL(n))

inline read_cell(is_run) {
    if
    :: mutant == 4 -> seen = load(DATA(is_run)); await(SENDER, NUMBER(n), n + 1)
    :: else -> await(SENDER, NUMBER(n), n + 1); seen = load(DATA(is_run))
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
    :: !(is_awaited) && n - said < N_CELLS + 2 * (mutant == 12) -> skip
    :: said = n; publish(RECEIVER, TAKEN, n)
    fi;
    if
    :: mutant == 3 && !is_in_runs(message) -> assert(load(CELL(n - 1)) == n)
    :: else
    fi
}

inline come() {
    store(RECEIVER, PLACE, message);
    publish(RECEIVER, CAME_TO, n + 1)
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
            read_cell(is_in_runs(message));
            if
            :: piece == 1 -> /* this count or dtype was not wanted */
                store(RECEIVER, WANTED, message);
                answer = (mutant == 10 -> n + 1 : REFUSED);
                publish(RECEIVER, CAME_TO, answer);
                publish(RECEIVER, TAKEN, answer);
                goto ended
            :: is_placed(message) ->
                come();
                assert(load(SOURCE) == message);
                if
                :: mutant != 14 -> await(SENDER, HELPED, n + 1)
                :: else
                fi;
                if
                :: is_over -> goto ended
                :: else -> assert(load(COPIED) == message)
                fi;
                take(true)
            :: is_placed(message) -> /* the kernel did not let it */
                come();
                store(RECEIVER, UNREADABLE, 1);
                is_copied = true;
                take(true);
                is_copied = false;
                read_cell(false);
                take(false)
            :: !is_placed(message) -> take(is_in_runs(message) && mutant != 12)
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
            run overtake(RECEIVER, CAME_TO);
            run overtake(RECEIVER, PLACE);
            for (word : SOURCE .. N_WORDS - 1) {
                run overtake(SENDER, word)
            }
        :: else
        fi
    }
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * wait.pml - the sleep and wake protocol of src/world/wait/wait.c: no wake-up is lost.
 *
 * Models sleep_until (announce, read bump, look at the word, sleep on bump), hpi_world_wake (look
 * at sleepers, raise bump, wake) and the store of hpi_line_post in src/world/line.c. One rank has
 * two threads that sleep, two other ranks each raise a word of theirs and look at the count of those
 * who wait for it. There are no time slices
 * here: a lost wake-up is a deadlock, which spin reports as an invalid end state. The futex is the
 * kernel's: comparing and falling asleep are one step, and a wake begins with a full barrier. That
 * is why two of the accesses need no order of their own: the increment of bump (its barrier
 * follows) and the decrement of sleepers (one that comes late wakes somebody once too often).
 *
 * Mutants, with the memory that they need and what must come out:
 *   1 tso  fails  hpi_line_post: the word's store is a release alone
 *   2 weak fails  hpi_world_wake: the look at sleepers is relaxed, and goes before the word's store
 *   3 weak fails  sleep_until: raising sleepers is relaxed, later loads go before it
 *   4 weak fails  sleep_until: the load of bump is relaxed, and goes behind the look at the word
 *   5 weak fails  is_reached: the look at the word is relaxed, and goes before the load of bump
 *   6 tso  fails  hpi_world_wake: bump is not raised
 *   7 tso  fails  hpi_world_wake: bump is raised behind the wake
 *   8 tso  fails  sleep_until: raising sleepers is a store that stays in the buffer
 *   9 tso  fails  sleep_until: the thread counts among those that wait for the other rank
 */
#define N_ROUNDS 2
#define SLEEPERS(whom) (2 + (whom)) /* a byte each of one word */
#define BUMP 4
#define N_WORDS 5
#define N_WRITERS 4 /* two signallers, two threads */
#define N_BUFFERED 1
#include "memory.inc"

/* The mutant comes to each process as a parameter, so that spin knows a test of it as a local step. */
bool is_asleep[2];

inline futex_wake(who) {
    atomic { fence(who); is_asleep[0] = false; is_asleep[1] = false }
}
inline raise_bump(who) {
    atomic { fence(who); mem[BUMP] = mem[BUMP] + 1 }
}

proctype signaller(byte self, which) {
    byte round, n_sleepers;
    for (round : 1 .. N_ROUNDS) {
        atomic {
            if
            :: which == 2 -> n_sleepers = load(SLEEPERS(self))
            :: else
            fi
        };
        store_release(self, self, round);
        if
        :: which != 1 -> fence(self)
        :: else
        fi;
        if
        :: which != 2 -> n_sleepers = load(SLEEPERS(self))
        :: else
        fi;
        if
        :: n_sleepers && which == 6 -> futex_wake(self)
        :: n_sleepers && which == 7 -> futex_wake(self); raise_bump(self)
        :: n_sleepers && which != 6 && which != 7 -> raise_bump(self); futex_wake(self)
        :: else
        fi;
        n_sleepers = 0
    }
}

inline add_sleepers(n) {
    atomic {
        fence(2 + thread);
        mem[SLEEPERS(whom)] = mem[SLEEPERS(whom)] + n
    }
}

/* The word and bump, in the order that the mutant lets them go. */
inline look() {
    if
    :: which == 4 || which == 5 -> seen = load(word); bump = load(BUMP)
    :: else -> bump = load(BUMP); seen = load(word)
    fi
}

/* Thread 0 waits for both words in each round, thread 1 for the last value of the second. */
inline wait_for(value) {
    if
    :: load(word) >= value -> skip
    :: else ->
        is_early = false;
        whom = (which == 9 -> 1 - word : word);
        if
        :: which == 3 -> look(); is_early = true; add_sleepers(1)
        :: which == 8 -> store(2 + thread, SLEEPERS(whom), load(SLEEPERS(whom)) + 1)
        :: else -> add_sleepers(1)
        fi;
        do
        :: true ->
            if
            :: !is_early -> look()
            :: else -> is_early = false
            fi;
            if
            :: seen >= value -> break
            :: else -> skip
            fi;
            atomic { is_asleep[thread] = (load(BUMP) == bump) };
            !is_asleep[thread]
        od;
        add_sleepers(-1);
        atomic { seen = 0; bump = 0; whom = 0 }
    fi
}

proctype sleeper(byte thread, which) {
    byte round, word, whom, seen, bump;
    bool is_early;
    if
    :: thread == 0 ->
        for (round : 1 .. N_ROUNDS) {
            word = 0;
            wait_for(round);
            word = 1;
            wait_for(round)
        }
    :: else ->
        word = 1;
        wait_for(N_ROUNDS)
    fi
}

init {
    byte who;
    choose_mutant();
    atomic {
        for (who : 0 .. N_WRITERS - 1) {
            run drain(who)
        }
        run signaller(0, mutant); run signaller(1, mutant);
        run sleeper(0, mutant); run sleeper(1, mutant)
    }
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * stream.pml - sleep and wake of the thread executor, src/stream/thread.c: no wake-up is lost.
 *
 * Models await (read bump, say what is wished for, look at the counter, sleep on bump) against
 * raise_counter (raise it, look at the wish, take it back, wake). One stream waits for two counters
 * in turn, each raised by a thread of its own. As in wait.pml a lost wake-up is a deadlock, and the
 * futex is the kernel's. The compare-and-swap that takes a wish back needs no order: what matters
 * is which of two raisers gets it.
 *
 * Mutants, with the memory that they need and what must come out:
 *   1 tso  fails  raise_counter: the counter's store is a release alone
 *   2 weak fails  raise_counter: the look at the wish is relaxed, and goes before the store
 *   3 tso  fails  await: the store of the wish is a release alone
 *   4 weak fails  await: the load of bump is relaxed, and goes behind the second look
 *   5 weak fails  await: the second look is relaxed, and goes before the store of the wish
 *   6 tso  fails  wake does not raise bump
 *   7 tso  fails  await does not look a second time
 */
#define N_VALUES 2
#define COUNTER(i) (i)
#define WISH 2
#define BUMP 3
#define N_WORDS 4
#define N_WRITERS 3 /* two that raise, one that waits */
#define N_BUFFERED 2
#define WAITER 2
#include "memory.inc"

#define wish_of(counter, value) (2 * (value) + (counter))

bool is_asleep;

proctype raiser(byte self) {
    byte value, wish;
    bool is_mine;
    for (value : 1 .. N_VALUES) {
        if
        :: mutant == 2 -> wish = load(WISH)
        :: else
        fi;
        store_release(self, COUNTER(self), value);
        if
        :: mutant != 1 -> fence(self)
        :: else
        fi;
        if
        :: mutant != 2 -> wish = load(WISH)
        :: else
        fi;
        if
        :: wish && wish % 2 == self && wish / 2 <= value ->
            atomic {
                fence(self);
                is_mine = (mem[WISH] == wish);
                mem[WISH] = (is_mine -> 0 : mem[WISH])
            };
            if
            :: is_mine && mutant != 6 -> atomic { mem[BUMP] = mem[BUMP] + 1 }; is_asleep = false
            :: is_mine && mutant == 6 -> is_asleep = false
            :: else
            fi
        :: else
        fi;
        atomic { wish = 0; is_mine = false }
    }
}

inline wish_for() {
    store_release(WAITER, WISH, wish_of(counter, value));
    if
    :: mutant != 3 -> fence(WAITER)
    :: else
    fi
}

inline await() {
    do
    :: load(COUNTER(counter)) >= value -> break
    :: else ->
        if
        :: mutant == 4 -> wish_for(); count = load(COUNTER(counter)); seen = load(BUMP)
        :: mutant == 5 -> seen = load(BUMP); count = load(COUNTER(counter)); wish_for()
        :: mutant == 7 -> seen = load(BUMP); wish_for(); count = 0
        :: else -> seen = load(BUMP); wish_for(); count = load(COUNTER(counter))
        fi;
        if
        :: count < value -> atomic { is_asleep = (load(BUMP) == seen) }; !is_asleep
        :: else
        fi;
        store(WAITER, WISH, 0)
    od
}

proctype waiter() {
    byte value, counter, seen, count;
    for (value : 1 .. N_VALUES) {
        for (counter : 0 .. 1) {
            await();
            atomic { seen = 0; count = 0 }
        }
    }
}

init {
    byte who;
    choose_mutant();
    atomic {
        run raiser(0); run raiser(1); run waiter();
        for (who : 0 .. N_WRITERS - 1) {
            run drain(who)
        }
        if
        :: is_weak -> run overtake(WAITER, WISH)
        :: else
        fi
    }
}

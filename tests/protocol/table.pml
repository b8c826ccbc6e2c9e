/* SPDX-License-Identifier: Apache-2.0
 *
 * table.pml - readers of src/symm/table.c without a lock and without a store.
 *
 * Models hpi_table_look and hpi_look_holds against hpi_table_insert. There are two snapshots, which
 * the writer fills and publishes in turn; each holds two words, which are its own number's, and
 * what a block is filled with, since a block is used again only where its snapshot is void. The
 * second snapshot begins as memory that nobody has filled, the first as the one of now. A reader
 * takes the snapshot of now and its version, reads both words, and believes them if the version is
 * still what it was, and even: then they have to belong together, and be no older than what was now
 * when the reader began; they may be what comes next.
 *
 * Mutants, with the memory that they need and what must come out:
 *   1 weak fails  insert: a fill is relaxed, and overtakes the store that makes the snapshot void
 *   2 weak fails  insert: the version that makes it whole is relaxed, and overtakes a fill
 *   3 weak fails  insert: the store of now is relaxed, and shows what was never filled
 *   4 weak fails  holds: the loads before it are relaxed, and the version is read before them
 *   5 weak fails  look: the load of the version is relaxed, and goes behind what is read
 *   6 tso  fails  insert: the old snapshot is not made void
 *   7 tso  fails  holds: an odd version is as good as an even one
 */
#define N_INSERTS 3
#define NOW 0
#define VERSION(s) (1 + (s))
#define LEFT(s) (3 + (s))
#define RIGHT(s) (5 + (s))
#define N_WORDS 7
#define N_WRITERS 1
#define N_BUFFERED 4
#define WRITER 0
#include "memory.inc"

/* Snapshot 0 is now, and whole: version 2 and zeros. Snapshot 1 is of memory that looks so. */
proctype writer() {
    byte next, s, old;
    for (next : 1 .. N_INSERTS) {
        s = next % 2;
        old = 1 - s;
        if
        :: next == 1 -> /* nobody has come to it: made void before all else */
            store_release(WRITER, VERSION(s), 1)
        :: else
        fi;
        if
        :: mutant == 1 -> store(WRITER, LEFT(s), next)
        :: else -> store_release(WRITER, LEFT(s), next)
        fi;
        store_release(WRITER, RIGHT(s), next);
        if
        :: mutant == 2 -> store(WRITER, VERSION(s), 2 * next + 2)
        :: else -> store_release(WRITER, VERSION(s), 2 * next + 2)
        fi;
        if
        :: mutant == 3 -> store(WRITER, NOW, s)
        :: else -> store_release(WRITER, NOW, s)
        fi;
        if
        :: mutant == 6
        :: else -> store_release(WRITER, VERSION(old), 2 * next + 1)
        fi
    }
}

proctype reader() {
    byte round, s, version, left, right, again, begun;
    for (round : 1 .. 2) {
        atomic { s = load(NOW); begun = load(LEFT(s)) }
        if
        :: mutant == 5 -> left = load(LEFT(s)); version = load(VERSION(s))
        :: else -> version = load(VERSION(s)); left = load(LEFT(s))
        fi;
        if
        :: mutant == 4 -> again = load(VERSION(s)); right = load(RIGHT(s))
        :: else -> right = load(RIGHT(s)); again = load(VERSION(s))
        fi;
        if
        :: version == again && (version % 2 == 0 || mutant == 7) ->
            assert(left == right && left >= begun)
        :: else
        fi;
        s = 0; version = 0; left = 0; right = 0; again = 0; begun = 0
    }
}

init {
    choose_mutant();
    atomic {
        mem[VERSION(0)] = 2;
        mem[LEFT(1)] = 9; /* whatever was there */
        run writer(); run reader(); run drain(WRITER);
        if
        :: is_weak ->
            run overtake(WRITER, NOW);
            run overtake(WRITER, LEFT(0)); run overtake(WRITER, LEFT(1));
            run overtake(WRITER, VERSION(0)); run overtake(WRITER, VERSION(1))
        :: else
        fi
    }
}

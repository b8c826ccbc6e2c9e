/* SPDX-License-Identifier: Apache-2.0
 *
 * table.pml - readers of src/symm/table.c without a lock: no snapshot is freed under them.
 *
 * Models hpi_table_enter and hpi_table_leave against hpi_table_insert and reclaim. A reader says
 * that it is there, then takes the snapshot of now; a writer publishes a snapshot, then looks for
 * readers, and frees what is retired only where there are none. Either order of the two makes one
 * see the other, as in wait.pml. A snapshot's content is one word, its own number.
 *
 * Mutants, with the memory that they need and what must come out:
 *   1 tso  fails  insert: the store of now is a release alone
 *   2 weak fails  insert: the store of now is relaxed, and overtakes the content
 *   3 weak fails  reclaim: the look at readers is relaxed, and goes before the store of now
 *   4 weak fails  enter: raising readers is relaxed, or the load of now, which goes before it
 *   5 weak fails  leave: lowering readers is relaxed, and uses of the snapshot go behind it
 *   6 tso  fails  reclaim looks at nothing
 */
#define N_SNAPSHOTS 4
#define NOW 0
#define N_READERS 1
#define CONTENT(snapshot) (1 + (snapshot)) /* of snapshot 1 and up */
#define N_WORDS (1 + N_SNAPSHOTS + 1)
#define N_WRITERS 1
#define N_BUFFERED 2
#define WRITER 0
#include "memory.inc"

bool is_freed[N_SNAPSHOTS];

proctype writer() {
    byte next, n_readers, i, n_freed;
    for (next : 1 .. N_SNAPSHOTS - 1) {
        if
        :: mutant == 3 -> n_readers = load(N_READERS)
        :: else
        fi;
        store(WRITER, CONTENT(next), next);
        if
        :: mutant == 2 -> store(WRITER, NOW, next)
        :: else -> store_release(WRITER, NOW, next)
        fi;
        if
        :: mutant != 1 && mutant != 2 -> fence(WRITER)
        :: else
        fi;
        if
        :: mutant == 6 -> n_readers = 0
        :: mutant == 3
        :: else -> n_readers = load(N_READERS)
        fi;
        if
        :: n_readers == 0 ->
            do
            :: n_freed + 1 < next -> n_freed++; is_freed[n_freed] = true
            :: else -> break
            od
        :: else
        fi
    }
}

inline raise_readers(n) {
    atomic { mem[N_READERS] = mem[N_READERS] + n }
}
inline use() {
    assert(!snapshot || (!is_freed[snapshot] && load(CONTENT(snapshot)) == snapshot))
}

proctype reader() {
    byte round, snapshot;
    for (round : 1 .. 2) {
        if
        :: mutant == 4 -> snapshot = load(NOW); raise_readers(1)
        :: else -> raise_readers(1); snapshot = load(NOW)
        fi;
        use();
        if
        :: mutant == 5 -> raise_readers(-1); use()
        :: else -> use(); raise_readers(-1)
        fi
    }
}

init {
    choose_mutant();
    atomic {
        run writer(); run reader(); run reader(); run drain(WRITER);
        if
        :: is_weak -> run overtake(WRITER, NOW)
        :: else
        fi
    }
}

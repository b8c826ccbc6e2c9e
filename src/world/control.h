/* SPDX-License-Identifier: Apache-2.0
 *
 * world/control.h - what lies at the start of a rank's shared segment.
 *
 *     [control | directory of groups | news | signal lines | pockets | heap, handed to others ...]
 *
 * Every process of the node maps every segment, at addresses of its own, and the launcher maps the
 * control block alone: so there are no pointers here, only integers of fixed width, and everything
 * that two ranks touch is atomic. The memory outlives its rank, which is how a launcher can tell
 * what a killed rank was waiting for. The directory of a node's first rank is in use, and of the
 * news most of that one's.
 */
#ifndef HPI_CONTROL_H
#define HPI_CONTROL_H

#include "world.h"

enum {
    HPI_LAYOUT_VERSION = 7,
    HPI_MAX_GROUPS = 4096, /* groups of a node that are alive at once */
    HPI_N_NOTES = 8,       /* threads of one rank that can explain their wait at once */
    HPI_NAME_WORDS = 4,    /* a text of up to 31 bytes, as 64-bit words */
    HPI_DOING_WORDS = 8,
    HPI_CORES_WORDS = 16 /* a bit for each core that a cpu_set_t has */
};
#define HPI_CONTROL_MAGIC UINT64_C(0x6c6f72746e6f4348) /* "HControl", read as bytes */

/* How far a rank has come in its present world. Only rises within one generation, but for a
 * rank that refused and comes again. */
enum {
    HPI_LIFE_NONE = 0,
    HPI_LIFE_ARRIVED = 1, /* has left every earlier world of this segment */
    HPI_LIFE_ALIVE = 2,
    HPI_LIFE_LEFT = 3,   /* destroyed its world in order */
    HPI_LIFE_DEAD = 4,   /* gave up: a thread rank that failed, or a start that did */
    HPI_LIFE_REFUSED = 5 /* failed before it arrived; may come again in the same generation */
};
/* Worlds may follow each other on one segment; `life` holds the world's number and the state. */
static inline uint64_t hpi_life(uint64_t generation, unsigned state) {
    return generation * 8 + state;
}
static inline unsigned hpi_life_state(uint64_t life) {
    return (unsigned)(life % 8);
}
static inline uint64_t hpi_life_generation(uint64_t life) {
    return life / 8;
}

/* Why a thread sleeps. since_ns: 0 free, 1 being written, else when the wait began. */
typedef struct hpi_note {
    _Alignas(128) _Atomic uint64_t since_ns;
    _Atomic uint64_t seq;
    _Atomic int64_t rank; /* waited for, in the group; -1 unknown */
    _Atomic int64_t world_rank;
    _Atomic uint64_t operation[HPI_NAME_WORDS];
    _Atomic uint64_t group[HPI_NAME_WORDS];
    /* which line of a group is waited for; slot is 1 + the group's slot, 0: no line */
    _Atomic uint64_t slot, base, channel;
    _Atomic uint64_t is_lone; /* 1: its process has no other thread that could act meanwhile */
} hpi_note;

/* What a rank says of its core where ranks share them: 1 + its number, and whether it has given the
 * core to others. 0: it has said nothing yet, or has a core to itself. */
#define HPI_CORE_IS_LEFT (UINT64_C(1) << 32)

typedef struct hpi_control {
    uint64_t magic;
    uint32_t layout_version;
    int32_t world_rank;
    _Alignas(128) _Atomic uint64_t life;
    _Alignas(128) _Atomic uint32_t bump; /* the futex word that this rank's threads sleep on */
    /* Threads that sleep, or are about to. A byte each for those that wait for a rank with the same
     * remainder by 8; who waits for nobody in particular counts in all of them. */
    _Atomic uint64_t sleepers;
    _Atomic uint64_t blamed; /* 1 + the world rank whose end failed a wait; 0 none */
    _Atomic uint64_t core;   /* where a thread of this rank last waited; see HPI_CORE_IS_LEFT */
    hpi_note notes[HPI_N_NOTES];
    hpi_note failure;                                      /* the last wait that failed */
    _Alignas(128) _Atomic uint64_t doing[HPI_DOING_WORDS]; /* text, when no thread waits */
    _Alignas(128) _Atomic uint64_t cores[HPI_CORES_WORDS]; /* that this rank may run on */
} hpi_control;

/* A group of the directory; its index is the slot of its lines on every member. */
typedef struct hpi_entry {
    _Atomic uint64_t generation; /* of the world that it belongs to; another one: free */
    _Atomic uint64_t serial;     /* older groups have smaller ones */
    uint64_t hash[2];            /* of the list of members */
    uint64_t base;               /* values of its lines count from here */
    uint32_t size;
    _Atomic uint32_t n_left;                     /* members that have destroyed it */
    _Atomic uint64_t joined[HPI_MAX_LOCAL / 64]; /* bit per rank of the node */
    /* 1 + the world rank of a member that came and had no memory for it, -status << 32; 0 none */
    _Atomic uint64_t refused;
    uint64_t spare;
} hpi_entry;

typedef struct hpi_directory {
    _Alignas(128) _Atomic uint64_t lock; /* 0 free, else 1 + the world rank that holds it */
    uint64_t n_serials;
    uint64_t n_entries; /* entries that were ever used */
    _Alignas(128) hpi_entry entries[HPI_MAX_GROUPS];
} hpi_directory;

#define HPI_PAGE_BYTES UINT64_C(4096)
#define HPI_DIRECTORY_OFFSET HPI_PAGE_BYTES
#define HPI_NEWS_OFFSET (HPI_PAGE_BYTES * 194) /* wait/news.h */
#define HPI_LINES_OFFSET (UINT64_C(1) << 20)
#define HPI_POCKETS_OFFSET (UINT64_C(24) << 20)
#define HPI_HEAP_OFFSET (HPI_POCKETS_OFFSET + UINT64_C(2) * HPI_MAX_GROUPS * HPI_POCKET_BYTES)
/* A slot: a member's lines of one group, its ring of entries, what it says of its failure. */
#define HPI_SLOT_BYTES UINT64_C(5888)
#define HPI_RING_OFFSET (HPI_N_LINES * sizeof(hpi_line))
#define HPI_FAILURE_OFFSET (HPI_RING_OFFSET + HPI_N_SAID * sizeof(hpi_said))
#define HPI_FAILURE_WORDS ((HPI_SLOT_BYTES - HPI_FAILURE_OFFSET) / sizeof(uint64_t))

_Static_assert(sizeof(_Atomic uint64_t) == 8 && sizeof(_Atomic uint32_t) == 4, "no hidden locks");
_Static_assert(sizeof(hpi_note) == 128, "shared between processes");
_Static_assert(offsetof(hpi_control, life) == 128, "shared between processes");
_Static_assert(offsetof(hpi_control, bump) == 256, "shared between processes");
_Static_assert(offsetof(hpi_control, sleepers) == 264, "shared between processes");
_Static_assert(offsetof(hpi_control, blamed) == 272, "shared between processes");
_Static_assert(offsetof(hpi_control, core) == 280, "shared between processes");
_Static_assert(offsetof(hpi_control, notes) == 384, "shared between processes");
_Static_assert(offsetof(hpi_control, failure) == 1408, "shared between processes");
_Static_assert(offsetof(hpi_control, doing) == 1536, "shared between processes");
_Static_assert(offsetof(hpi_control, cores) == 1664, "shared between processes");
_Static_assert(sizeof(hpi_control) <= HPI_PAGE_BYTES, "one page, mapped by the launcher");
_Static_assert(sizeof(hpi_entry) == 192, "shared between processes");
_Static_assert(offsetof(hpi_directory, entries) == 128, "shared between processes");
_Static_assert(HPI_DIRECTORY_OFFSET + sizeof(hpi_directory) <= HPI_NEWS_OFFSET, "they overlap");
_Static_assert(HPI_FAILURE_WORDS * 8 > sizeof(((hp_error *)NULL)->message), "room for a record");
_Static_assert(HPI_LINES_OFFSET + HPI_MAX_GROUPS * HPI_SLOT_BYTES <= HPI_POCKETS_OFFSET,
               "lines and pockets overlap");
_Static_assert(HPI_HEAP_OFFSET % (2 << 20) == 0, "a huge page begins with the heap");

/* ---- notes.c: texts in shared memory, and what they say of a rank ------------------------- */

void hpi_text_write(_Atomic uint64_t *words, size_t n_words, const char *text);
void hpi_text_read(const _Atomic uint64_t *words, size_t n_words, char *out_text);

/* Take a note for a wait; NULL when all are taken (the wait then goes unexplained). */
hpi_note *hpi_note_take(hpi_control *control);
void hpi_note_write(hpi_note *note, const hpi_reason *reason, int world_rank, uint64_t since_ns);
void hpi_note_free(hpi_note *note);
typedef struct hpi_note_copy {
    uint64_t since_ns, seq, slot, base, channel, is_lone;
    int64_t rank, world_rank;
    char operation[HPI_NAME_WORDS * 8], group[HPI_NAME_WORDS * 8];
} hpi_note_copy;
/* One whole note; false when it is free or changed meanwhile. */
bool hpi_note_read(const hpi_note *note, hpi_note_copy *out_copy);
/* What the rank of this control block is doing, in words: "waiting for rank 1 (world rank 5) in
 * all_gather #17 of shard[4..7] for 120 ms" (true), else what it says that it does (false). */
bool hpi_control_describe(const hpi_control *control, char *out_text, size_t size);
/* The same of its last failed wait; false when none has failed. */
bool hpi_control_describe_failure(const hpi_control *control, char *out_text, size_t size);

/* ---- process.c: what /proc says of a rank's process ----------------------------------------- */

/* Stopped by a signal or a debugger? */
bool hpi_process_is_stopped(int pid);

#endif

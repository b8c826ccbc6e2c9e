/* SPDX-License-Identifier: Apache-2.0
 *
 * message/letter.h - one message on its way through: what mailbox.c, cells.c and whole.c share.
 */
#ifndef HPI_LETTER_H
#define HPI_LETTER_H

#include "mailbox.h"

typedef struct hpi_letter {
    hp_group *group;
    hpi_mailbox *mailbox;
    hpi_way *way;
    const hpi_coll *c;
    const char *name; /* a literal: "send" */
    int peer;
    uint64_t bytes;
} hpi_letter;

static inline hp_world *hpi_letter_world(const hpi_letter *l) {
    return hp_group_world(l->group);
}
static inline int hpi_letter_peer(const hpi_letter *l) {
    return hp_group_world_rank(l->group, l->peer);
}

/* ---- mailbox.c ---- */

/* The failure of a message that its receiver refused, in the same words on both sides. */
hp_status hpi_letter_refused(const hpi_letter *l, int source, int target);

/* ---- cells.c: the cells, and messages that are copied into them or into the ring of bytes ---- */

/* Until a word of the partner's has come that far. */
hp_status hpi_letter_await(const hpi_letter *l, const _Atomic uint64_t *word, uint64_t value);
/* Until the receiver has read the first n cells. MISMATCH: it has refused. */
hp_status hpi_letter_await_more(const hpi_letter *l, uint64_t n);
static inline hp_status hpi_letter_await_taken(const hpi_letter *l, uint64_t n) {
    return n <= l->way->n_taken ? HP_OK : hpi_letter_await_more(l, n);
}
/* For a partner that may sleep, once a word that it waits for has been stored, sequentially
 * consistent. */
void hpi_letter_wake(const hpi_letter *l);

hp_status hpi_next_free_cell(const hpi_letter *l, hpi_cell **out_cell);
/* The last cell of a message, filled but for what every cell says. */
void hpi_cell_post(const hpi_letter *l, hpi_cell_kind kind, hpi_cell *cell);
hp_status hpi_next_full_cell(const hpi_letter *l, hpi_cell **out_cell);
/* The receiver is done with a cell that its sender waits for. */
void hpi_cell_take(const hpi_letter *l);

hp_status hpi_send_copied(const hpi_letter *l);
/* From its first cell on; NULL: that is still to come. */
hp_status hpi_receive_copied(const hpi_letter *l, hpi_cell *cell);

/* ---- whole.c: messages that are read where they lie ---- */

/* How the message goes, HPI_CELL_DATA: copied; out_place: where the receiver can read its data. */
hpi_cell_kind hpi_letter_kind(const hpi_letter *l, hpi_place *out_place);
hp_status hpi_send_whole(const hpi_letter *l, hpi_cell_kind kind, hpi_place place);
hp_status hpi_receive_whole(const hpi_letter *l, hpi_cell *cell);

#endif

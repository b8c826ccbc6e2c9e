/* SPDX-License-Identifier: Apache-2.0
 *
 * exchange.c - all-to-all between nodes: a message for each pair, and an inner exchange meanwhile.
 *
 * In place what comes takes the place of what goes, so a part leaves through a slot, piece by
 * piece. Two members are each other's partner in the same step, number (a + b) modulo n; so whoever
 * is behind all others never waits for a slot, and each step ends.
 */
#include "across.h"

enum { N_SLOTS = 16 };

static bool is_remote(const hpi_across *a, int rank) {
    return a->nodes->node_of[rank] != a->mine;
}

/* ---- apart ---- */

static hp_status exchange_inside(hpi_across *a) {
    const hpi_run *run = a->run;
    for (int i = 0; i < a->size; i++) {
        const int rank = hpi_member(a, a->mine, i);
        const hpi_piece in = hpi_sent_to(run, rank), out = hpi_got_of(run, rank);
        a->inner_counts[0][i] = in.bytes / run->in_size;
        a->inner_begins[0][i] = in.begin / run->in_size;
        a->inner_counts[1][i] = out.bytes / run->in_size;
        a->inner_begins[1][i] = out.begin / run->in_size;
    }
    const hpi_coll c = {.in = run->c.in,
                        .out = run->c.out,
                        .blocks = 1,
                        .dtype = run->c.dtype,
                        .out_dtype = run->c.dtype,
                        .in_counts = a->inner_counts[0],
                        .in_offsets = a->inner_begins[0],
                        .out_counts = a->inner_counts[1],
                        .out_offsets = a->inner_begins[1]};
    return hpi_across_inner(a, HP_ALL_TO_ALL_V, &c);
}

static hp_status exchange_apart(hpi_across *a) {
    const hpi_run *run = a->run;
    for (int k = 1; k < a->n; k++) {
        const int from = (a->rank + a->n - k) % a->n;
        const hpi_piece out = hpi_got_of(run, from);
        if (is_remote(a, from))
            HP_TRY(hpi_fly_from(a, HPI_PARTS, from, HPI_TAG_PART,
                                (unsigned char *)run->c.out + out.begin, out.bytes));
    }
    for (int k = 1; k < a->n; k++) {
        const int to = (a->rank + k) % a->n;
        const hpi_piece in = hpi_sent_to(run, to);
        if (is_remote(a, to))
            HP_TRY(hpi_fly_to(a, HPI_SENT, to, HPI_TAG_PART,
                              (const unsigned char *)run->c.in + in.begin, in.bytes));
    }
    HP_TRY(exchange_inside(a));
    HP_TRY(hpi_agree_end(a));
    HP_TRY(hpi_land_all(a, HPI_PARTS));
    return hpi_land_all(a, HPI_SENT);
}

/* ---- in place ---- */

static hp_status swap_piece(hpi_across *a, int peer, uint64_t at, uint64_t bytes) {
    const int n_sent = a->flights[HPI_SENT_PARTS].n;
    unsigned char *place = (unsigned char *)a->run->c.out + hpi_got_of(a->run, peer).begin + at;
    unsigned char *slot = a->slots.at + (uint64_t)(n_sent % N_SLOTS) * a->piece_bytes;
    if (n_sent >= N_SLOTS)
        HP_TRY(hpi_land(a, HPI_SENT_PARTS, n_sent - N_SLOTS + 1));
    memcpy(slot, place, bytes);
    HP_TRY(hpi_fly_from(a, HPI_PARTS, peer, HPI_TAG_PART, place, bytes));
    return hpi_fly_to(a, HPI_SENT_PARTS, peer, HPI_TAG_PART, slot, bytes);
}

/* The parts of this node, a stretch of each at a time. */
static hp_status swap_inside(hpi_across *a, uint64_t part_bytes) {
    const uint64_t step = hpi_max(a->scratch_bytes / (uint64_t)a->size, 1);
    unsigned char *out = a->run->c.out;
    HP_TRY(hpi_room_take(&a->pack, (uint64_t)a->size * hpi_min(step, part_bytes)));
    for (uint64_t at = 0; at < part_bytes && a->size > 1; at += step) {
        const uint64_t bytes = hpi_min(step, part_bytes - at);
        const hpi_coll c = {.in = a->pack.at,
                            .out = a->pack.at,
                            .count = bytes,
                            .blocks = 1,
                            .dtype = HP_UINT8,
                            .out_dtype = HP_UINT8};
        for (int i = 0; i < a->size; i++)
            memcpy(a->pack.at + (uint64_t)i * bytes,
                   out + hpi_got_of(a->run, hpi_member(a, a->mine, i)).begin + at, bytes);
        HP_TRY(hpi_across_inner(a, HP_ALL_TO_ALL, &c));
        for (int i = 0; i < a->size; i++)
            memcpy(out + hpi_got_of(a->run, hpi_member(a, a->mine, i)).begin + at,
                   a->pack.at + (uint64_t)i * bytes, bytes);
    }
    return HP_OK;
}

static hp_status exchange_in_place(hpi_across *a) {
    const uint64_t part_bytes = hpi_got_of(a->run, 0).bytes;
    HP_TRY(hpi_agree_end(a));
    HP_TRY(hpi_room_take(&a->slots, (uint64_t)N_SLOTS * a->piece_bytes));
    for (uint64_t at = 0; at < part_bytes; at += a->piece_bytes)
        for (int step = 0; step < a->n; step++) {
            const int peer = (step + a->n - a->rank) % a->n;
            if (is_remote(a, peer))
                HP_TRY(swap_piece(a, peer, at, hpi_min(a->piece_bytes, part_bytes - at)));
        }
    HP_TRY(swap_inside(a, part_bytes));
    HP_TRY(hpi_land_all(a, HPI_PARTS));
    return hpi_land_all(a, HPI_SENT_PARTS);
}

hp_status hpi_across_exchange(hpi_across *a) {
    return a->run->is_in_place ? exchange_in_place(a) : exchange_apart(a);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * gather.c - all-gather between nodes.
 *
 *     node          A: 0    1      B: 2    3
 *     own part         a    b         c    d
 *     message          c    d         a    b      each part once to each node, to a partner there
 *     inner gather    abcd abcd      abcd abcd    straight in every output
 *
 * Each member receives into its own output the parts of those whose partner it is; where a node has
 * more members than this one, in rounds. Then an inner all_gather_v in place, for each node and
 * round, gives them to all members here. Parts go in pieces, all of which are posted at once, so
 * that a piece is shared while the next is on its way. Source: MPICH, HAN of Open MPI.
 */
#include "across.h"

static uint64_t piece_of(const hpi_spread *s, int rank, uint64_t k, uint64_t *out_begin) {
    *out_begin = s->parts.begins[rank] + k * s->step;
    return hpi_piece_length(s->parts.counts[rank], s->step, k);
}

hp_status hpi_spread_send(hpi_across *a, const hpi_spread *s, const unsigned char *own,
                          uint64_t k) {
    uint64_t begin;
    const uint64_t bytes = piece_of(s, a->rank, k, &begin) * s->size;
    for (int i = 0; i < a->nodes->n - 1; i++)
        HP_TRY(hpi_fly_to(a, HPI_SENT, hpi_node_partner(a->nodes, hpi_other_node(a, i), a->place),
                          HPI_TAG_RESULT, own + k * s->step * s->size, bytes));
    return HP_OK;
}

hp_status hpi_spread_receive(hpi_across *a, const hpi_spread *s, uint64_t k) {
    for (int i = 0; i < a->nodes->n - 1; i++) {
        const int node = hpi_other_node(a, i), size = hpi_node_size(a->nodes, node);
        for (int place = a->place; place < size; place += a->size) {
            const int rank = hpi_member(a, node, place);
            uint64_t begin;
            const uint64_t bytes = piece_of(s, rank, k, &begin) * s->size;
            HP_TRY(hpi_fly_from(a, HPI_RESULTS, rank, HPI_TAG_RESULT, s->out + begin * s->size,
                                bytes));
        }
    }
    return HP_OK;
}

/* Piece k of the members from `first` on of a node, one for each member here, of which this rank
 * has its own at `in`; NULL: where it belongs. */
static hp_status share_round(hpi_across *a, const hpi_spread *s, int node, int first, uint64_t k,
                             const unsigned char *in) {
    uint64_t *counts = a->inner_counts[0], *begins = a->inner_begins[0], total = 0;
    for (int i = 0; i < a->size; i++) {
        const bool is_there = first + i < hpi_node_size(a->nodes, node);
        begins[i] = counts[i] = 0;
        if (is_there)
            counts[i] = piece_of(s, hpi_member(a, node, first + i), k, &begins[i]);
        total += counts[i];
    }
    unsigned char *here = s->out + begins[a->place] * s->size;
    if (total == 0)
        return HP_OK;
    if (a->size == 1) {
        if (in && in != here)
            hpi_copy(here, in, total * s->size);
        return HP_OK;
    }
    const hpi_coll c = {.in = in ? in : here,
                        .out = s->out,
                        .count = counts[a->place],
                        .blocks = 1,
                        .dtype = s->dtype,
                        .out_dtype = s->dtype,
                        .out_counts = counts,
                        .out_offsets = begins};
    return hpi_across_inner(a, HP_ALL_GATHER_V, &c);
}

hp_status hpi_spread_own(hpi_across *a, const hpi_spread *s, const unsigned char *own, uint64_t k) {
    return share_round(a, s, a->mine, 0, k, own + k * s->step * s->size);
}

hp_status hpi_spread_share(hpi_across *a, const hpi_spread *s, uint64_t k) {
    for (int i = 0; i < a->nodes->n - 1; i++) {
        const int node = hpi_other_node(a, i), size = hpi_node_size(a->nodes, node);
        for (int first = 0; first < size; first += a->size) {
            if (first + a->place < size)
                HP_TRY(hpi_land(a, HPI_RESULTS, a->flights[HPI_RESULTS].n_landed + 1));
            HP_TRY(share_round(a, s, node, first, k, NULL));
        }
    }
    return HP_OK;
}

/* ---- the collective ---- */

static hp_status gather(hpi_across *a, const hpi_spread *s, const unsigned char *own) {
    const uint64_t n_pieces = hpi_ceil_div(hpi_longest(a, s->parts.counts), s->step);
    hpi_spread whole = *s;
    whole.step = UINT64_MAX;
    for (uint64_t k = 0; k < n_pieces; k++)
        HP_TRY(hpi_spread_receive(a, s, k));
    for (uint64_t k = 0; k < n_pieces; k++)
        HP_TRY(hpi_spread_send(a, s, own, k));
    HP_TRY(hpi_spread_own(a, &whole, own, 0));
    HP_TRY(hpi_agree_end(a));
    for (uint64_t k = 0; k < n_pieces; k++)
        HP_TRY(hpi_spread_share(a, s, k));
    return hpi_land_all(a, HPI_SENT);
}

/* An output in blocks: parts are gathered one behind the other, a stretch of each at a time, and
 * then put where they belong. */
static hp_status gather_blocks(hpi_across *a, hpi_spread *s) {
    const hpi_run *run = a->run;
    const uint64_t total = run->c.count * run->c.blocks, n = (uint64_t)a->n;
    const uint64_t step = hpi_min(total, hpi_max(a->scratch_bytes / (n * s->size), 1));
    HP_TRY(hpi_room_take(&a->pack, n * step * s->size));
    s->out = a->pack.at;
    for (uint64_t at = 0; at < total; at += step) {
        const uint64_t count = hpi_min(step, total - at);
        s->parts = hpi_equal_parts(a, count);
        HP_TRY(gather(a, s, (const unsigned char *)run->c.in + at * s->size));
        for (int i = 0; i < a->n; i++)
            hpi_part_scatter(run, i, s->out + s->parts.begins[i] * s->size, at * s->size,
                             (at + count) * s->size);
    }
    return HP_OK;
}

hp_status hpi_across_gather(hpi_across *a) {
    const hpi_run *run = a->run;
    hpi_spread s = {.out = run->c.out,
                    .dtype = run->c.dtype,
                    .size = run->in_size,
                    .step = a->piece_bytes / run->in_size};
    if (run->what == HP_ALL_GATHER_V)
        s.parts = run->out_parts;
    else if (run->c.blocks == 1)
        s.parts = hpi_equal_parts(a, run->c.count);
    else
        return gather_blocks(a, &s);
    return gather(a, &s, run->c.in);
}

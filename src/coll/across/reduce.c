/* SPDX-License-Identifier: Apache-2.0
 *
 * reduce.c - reduce-scatter between nodes, and an all-reduce made of it and a gather.
 *
 *     node                 A: 0    1      B: 2    3          parts of 0 1 2 3: a b c d
 *     inner, parts of A       a01  b01        a23  b23       each sums what its partner will want
 *     inner, parts of B       c01  d01        c23  d23
 *     messages                a23  b23        c01  d01       one branch for each element and node
 *     sum                     a    b          c    d         the tree's last additions: tree.c
 *     all-reduce              abcd abcd       abcd abcd      gather.c
 *
 * Where a node does not fold, each member sends its contribution as it is. Parts go in pieces; as
 * many as the scratch has slots for are on their way while the next are summed inside the node, and
 * an all-reduce gives a piece back as soon as it is summed: both directions of the network are
 * busy from the first piece to the last. Source: HAN of Open MPI; Rabenseifner 2004.
 */
#include "../staged/wire.h"
#include "across.h"

enum { LEAST_PIECE_BYTES = 4 << 10 };
enum { WINDOW = 8 }; /* pieces under way, where the scratch allows it */
enum { GRAIN = HPI_FP8_BLOCK };

/* One pass over the parts. */
typedef struct summing {
    const unsigned char *in;
    unsigned char *out; /* this rank's result */
    hpi_parts parts;    /* [n], of the input */
    uint64_t step, n_pieces, window, slot_bytes;
    int n_slots;
    const hpi_spread *spread; /* of an all-reduce: where results go; NULL */
    int n_sent[64];           /* by window: sends up to that piece */
    unsigned char *next;      /* slot of the piece that is being started */
} summing;
_Static_assert(WINDOW <= 64, "a place for each piece under way");

static bool is_wire(const hpi_across *a) {
    return a->run->wire != HP_WIRE_FULL;
}

/* ---- slots ---- */

/* Slots that a member of `node` fills for others: branches, or leaves that are encoded. */
static int n_made(const hpi_across *a, int node, bool over_wire) {
    const int size = hpi_node_size(a->nodes, node);
    if (hpi_is_leafy(a, node))
        return over_wire ? a->n - size + (a->folds[node] ? 0 : size) : 0;
    int n = 0;
    for (int other = 0; other < a->nodes->n; other++)
        if (other != node)
            n += (hpi_node_size(a->nodes, other) + size - 1) / size;
    return n;
}

int hpi_sum_slots(const hpi_across *a, bool over_wire) {
    int heard = 0, most = 0;
    for (int node = 0; node < a->nodes->n; node++)
        heard += hpi_n_branches(a, node);
    for (int node = 0; node < a->nodes->n; node++) {
        const int made = n_made(a, node, over_wire);
        most = made > most ? made : most;
    }
    return heard + most;
}

/* The same on every member. */
static hp_status cut(hpi_across *a, summing *s) {
    const uint64_t longest = hpi_longest(a, s->parts.counts);
    const uint64_t size = hpi_max(hp_dtype_size(hpi_sum_dtype(a->run->c.dtype)), a->run->in_size);
    s->n_slots = a->n_slots[is_wire(a)];
    const uint64_t n_slots = (uint64_t)s->n_slots;
    uint64_t bytes = a->scratch_bytes / (WINDOW * n_slots);
    bytes = hpi_min(hpi_max(bytes, LEAST_PIECE_BYTES), a->piece_bytes);
    s->step = hpi_min(hpi_align_up(bytes / size, GRAIN), hpi_align_up(longest, GRAIN));
    s->step = hpi_max(s->step, GRAIN);
    s->n_pieces = hpi_ceil_div(longest, s->step);
    s->slot_bytes = hpi_align_up(s->step * size, 64);
    s->window = hpi_max(hpi_min(a->scratch_bytes / (s->slot_bytes * n_slots), WINDOW), 2);
    s->window = hpi_max(hpi_min(s->window, s->n_pieces), 1);
    return s->n_pieces ? hpi_room_take(&a->slots, s->window * n_slots * s->slot_bytes) : HP_OK;
}

static unsigned char *slots_of(const hpi_across *a, const summing *s, uint64_t k) {
    return a->slots.at + k % s->window * (uint64_t)s->n_slots * s->slot_bytes;
}

static unsigned char *take_slot(summing *s) {
    unsigned char *slot = s->next;
    s->next += s->slot_bytes;
    return slot;
}

static uint64_t length_of(const summing *s, int rank, uint64_t k) {
    return hpi_piece_length(s->parts.counts[rank], s->step, k);
}

static const unsigned char *piece_at(const hpi_across *a, const summing *s, int rank, uint64_t k) {
    return s->in + (s->parts.begins[rank] + k * s->step) * a->run->in_size;
}

/* ---- inner calls ---- */

/* Piece k of the parts of the members from `first` on of a node, one for each member here: this
 * rank's, summed over this node, goes to `out`. */
static hp_status sum_round(hpi_across *a, const summing *s, int node, int first, uint64_t k,
                           unsigned char *out) {
    uint64_t *counts = a->inner_counts[0], *begins = a->inner_begins[0], total = 0;
    for (int i = 0; i < a->size; i++) {
        begins[i] = counts[i] = 0;
        if (first + i >= hpi_node_size(a->nodes, node))
            continue;
        const int rank = hpi_member(a, node, first + i);
        counts[i] = length_of(s, rank, k);
        begins[i] = s->parts.begins[rank] + k * s->step;
        total += counts[i];
    }
    if (total == 0)
        return HP_OK;
    const hpi_coll c = {.in = s->in,
                        .out = out,
                        .count = counts[a->place],
                        .blocks = 1,
                        .dtype = a->run->c.dtype,
                        .out_dtype = hpi_sum_dtype(a->run->c.dtype),
                        .op = a->run->c.op == HP_AVG ? HP_SUM : a->run->c.op,
                        .wire = a->run->wire,
                        .in_counts = counts,
                        .in_offsets = begins};
    return hpi_across_inner(a, HP_REDUCE_SCATTER_V, &c);
}

/* This rank's contribution to a piece, as it travels: where it lies, or encoded in a slot. */
static const unsigned char *leaf(const hpi_across *a, summing *s, int rank, uint64_t k) {
    const unsigned char *piece = piece_at(a, s, rank, k);
    if (!is_wire(a))
        return piece;
    unsigned char *slot = take_slot(s);
    hpi_wire_encode(a->run->wire, a->run->c.dtype, piece, length_of(s, rank, k), slot);
    return slot;
}

/* A node that does not fold: each member gets the leaves of its own part, into slots from `out` on.
 * They travel as bytes. */
static hp_status exchange_leaves(hpi_across *a, summing *s, uint64_t k, unsigned char *out) {
    uint64_t **counts = a->inner_counts, **begins = a->inner_begins, total = 0;
    const unsigned char *base = is_wire(a) ? s->next : s->in;
    const uint64_t own = hpi_branch_bytes(a, true, length_of(s, a->rank, k));
    for (int i = 0; i < a->size; i++) {
        const int rank = hpi_member(a, a->mine, i);
        counts[0][i] = hpi_branch_bytes(a, true, length_of(s, rank, k));
        begins[0][i] = counts[0][i] ? (uint64_t)(leaf(a, s, rank, k) - base) : 0;
        counts[1][i] = own;
        begins[1][i] = (uint64_t)i * s->slot_bytes;
        total += counts[0][i];
    }
    if (total == 0)
        return HP_OK;
    const hpi_coll c = {.in = base,
                        .out = out,
                        .blocks = 1,
                        .dtype = HP_UINT8,
                        .out_dtype = HP_UINT8,
                        .in_counts = counts[0],
                        .in_offsets = begins[0],
                        .out_counts = counts[1],
                        .out_offsets = begins[1]};
    return hpi_across_inner(a, HP_ALL_TO_ALL_V, &c);
}

/* ---- a piece begins ---- */

/* Slots for what others send of this rank's part, and for what this node has of it. */
static hp_status await_branches(hpi_across *a, summing *s, uint64_t k) {
    const uint64_t count = length_of(s, a->rank, k);
    for (int i = 0; i < a->nodes->n - 1; i++) {
        const int node = hpi_other_node(a, i);
        const bool is_leaf = hpi_is_leafy(a, node);
        for (int j = 0; j < hpi_n_branches(a, node); j++) {
            const int from = a->folds[node] ? hpi_node_partner(a->nodes, node, a->place)
                                            : hpi_member(a, node, j);
            unsigned char *slot = take_slot(s);
            HP_TRY(hpi_fly_from(a, HPI_PARTS, from, HPI_TAG_PART, slot,
                                hpi_branch_bytes(a, is_leaf, count)));
        }
    }
    return HP_OK;
}

static hp_status send_branches(hpi_across *a, summing *s, int node, uint64_t k) {
    const int size = hpi_node_size(a->nodes, node);
    for (int first = 0; first < size; first += a->size) {
        unsigned char *slot = take_slot(s);
        HP_TRY(sum_round(a, s, node, first, k, slot));
        if (first + a->place >= size)
            continue;
        const int to = hpi_member(a, node, first + a->place);
        HP_TRY(hpi_fly_to(a, HPI_SENT_PARTS, to, HPI_TAG_PART, slot,
                          hpi_branch_bytes(a, false, length_of(s, to, k))));
    }
    return HP_OK;
}

static hp_status send_leaves(hpi_across *a, summing *s, int node, uint64_t k) {
    for (int i = 0; i < hpi_node_size(a->nodes, node); i++) {
        const int to = hpi_member(a, node, i);
        const uint64_t bytes = hpi_branch_bytes(a, true, length_of(s, to, k));
        HP_TRY(hpi_fly_to(a, HPI_SENT_PARTS, to, HPI_TAG_PART, bytes ? leaf(a, s, to, k) : NULL,
                          bytes));
    }
    return HP_OK;
}

/* What this node has of this rank's part, in the first slots. */
static hp_status sum_own_node(hpi_across *a, summing *s, uint64_t k) {
    unsigned char *slots = slots_of(a, s, k);
    if (a->size == 1) {
        if (is_wire(a) && length_of(s, a->rank, k))
            hpi_wire_encode(a->run->wire, a->run->c.dtype, piece_at(a, s, a->rank, k),
                            length_of(s, a->rank, k), slots);
        return HP_OK;
    }
    return a->folds[a->mine] ? sum_round(a, s, a->mine, 0, k, slots)
                             : exchange_leaves(a, s, k, slots);
}

static hp_status begin_piece(hpi_across *a, summing *s, uint64_t k) {
    if (k >= s->window) /* its slots were sent from */
        HP_TRY(hpi_land(a, HPI_SENT_PARTS, s->n_sent[k % s->window]));
    s->next = slots_of(a, s, k) + (uint64_t)hpi_n_branches(a, a->mine) * s->slot_bytes;
    HP_TRY(await_branches(a, s, k));
    for (int i = 0; i < a->nodes->n - 1; i++) {
        const int node = hpi_other_node(a, i);
        HP_TRY(hpi_is_leafy(a, a->mine) ? send_leaves(a, s, node, k)
                                        : send_branches(a, s, node, k));
    }
    s->n_sent[k % s->window] = a->flights[HPI_SENT_PARTS].n;
    return sum_own_node(a, s, k);
}

/* ---- and ends ---- */

static void hang_branches(hpi_across *a, const summing *s, int node, const unsigned char **slot) {
    for (int j = 0; j < hpi_n_branches(a, node); j++, *slot += s->slot_bytes)
        a->branches[hpi_member(a, node, j)].data = *slot;
}

static void find_branches(hpi_across *a, const summing *s, uint64_t k) {
    const unsigned char *slot = slots_of(a, s, k);
    hang_branches(a, s, a->mine, &slot);
    for (int i = 0; i < a->nodes->n - 1; i++)
        hang_branches(a, s, hpi_other_node(a, i), &slot);
    if (a->size == 1 && !is_wire(a))
        a->branches[a->rank].data = piece_at(a, s, a->rank, k);
}

static int n_awaited(const hpi_across *a) {
    int n = 0;
    for (int node = 0; node < a->nodes->n; node++)
        n += node == a->mine ? 0 : hpi_n_branches(a, node);
    return n;
}

/* In place, results come to where contributions were sent from. */
static hp_status give_back(hpi_across *a, const summing *s, uint64_t k) {
    if (a->run->is_in_place)
        HP_TRY(hpi_land(a, HPI_SENT_PARTS, s->n_sent[k % s->window]));
    HP_TRY(hpi_spread_receive(a, s->spread, k));
    return hpi_spread_send(a, s->spread, s->out, k);
}

static hp_status end_piece(hpi_across *a, const summing *s, uint64_t k) {
    if (k == 0)
        HP_TRY(hpi_agree_end(a));
    HP_TRY(hpi_land(a, HPI_PARTS, (int)(k + 1) * n_awaited(a)));
    const uint64_t count = length_of(s, a->rank, k);
    find_branches(a, s, k);
    if (count)
        hpi_tree_sum(a, s->out + k * s->step * a->run->out_size, count);
    return s->spread ? give_back(a, s, k) : HP_OK;
}

static hp_status share_piece(hpi_across *a, const summing *s, uint64_t k) {
    HP_TRY(hpi_spread_own(a, s->spread, s->out, k));
    return hpi_spread_share(a, s->spread, k);
}

/* A piece ends when as many as the window holds have begun, and is shared as much later. */
static hp_status sum_parts(hpi_across *a, summing *s) {
    const uint64_t lag = s->window - 1;
    for (uint64_t k = 0; k < s->n_pieces + 2 * lag; k++) {
        if (k < s->n_pieces)
            HP_TRY(begin_piece(a, s, k));
        if (k >= lag && k - lag < s->n_pieces)
            HP_TRY(end_piece(a, s, k - lag));
        if (s->spread && k >= 2 * lag)
            HP_TRY(share_piece(a, s, k - 2 * lag));
    }
    HP_TRY(hpi_land_all(a, HPI_SENT_PARTS));
    return hpi_land_all(a, HPI_SENT);
}

/* ---- reduce-scatter ---- */

static hp_status sum_again(hpi_across *a, summing *s) {
    hpi_flights_forget(a, HPI_PARTS);
    hpi_flights_forget(a, HPI_SENT_PARTS);
    HP_TRY(cut(a, s));
    return sum_parts(a, s);
}

/* An input in blocks: a stretch of every part is collected one behind the other, at the end of the
 * scratch, and summed. A stretch begins at a multiple of the blocks of fp8. */
static hp_status scatter_blocks(hpi_across *a, summing *s) {
    const hpi_run *run = a->run;
    const uint64_t total = run->c.count * run->c.blocks, n = (uint64_t)a->n;
    const uint64_t most = a->scratch_bytes / (n * run->in_size) / GRAIN * GRAIN;
    const uint64_t step = hpi_min(total, hpi_max(most, GRAIN));
    HP_TRY(hpi_room_take(&a->pack, n * step * run->in_size));
    for (uint64_t at = 0; at < total; at += step) {
        const uint64_t count = hpi_min(step, total - at);
        for (int i = 0; i < a->n; i++)
            hpi_part_collect(run, i, a->pack.at + (uint64_t)i * count * run->in_size,
                             at * run->in_size, (at + count) * run->in_size);
        s->in = a->pack.at;
        s->out = (unsigned char *)run->c.out + at * run->out_size;
        s->parts = hpi_equal_parts(a, count);
        HP_TRY(sum_again(a, s));
    }
    return HP_OK;
}

hp_status hpi_across_scatter_reduce(hpi_across *a) {
    const hpi_run *run = a->run;
    summing s = {.in = run->c.in, .out = run->c.out};
    if (run->what == HP_REDUCE_SCATTER_V)
        s.parts = run->in_parts;
    else if (run->c.blocks == 1)
        s.parts = hpi_equal_parts(a, run->c.count);
    else
        return scatter_blocks(a, &s);
    return sum_again(a, &s);
}

/* ---- all-reduce ---- */

/* Slices of the vector are its parts; they begin where blocks of fp8 do. */
static hpi_parts slices(hpi_across *a, uint64_t count) {
    const uint64_t share = hpi_align_up(hpi_ceil_div(count, (uint64_t)a->n), GRAIN);
    for (int i = 0; i < a->n; i++) {
        a->begins[i] = hpi_min((uint64_t)i * share, count);
        a->counts[i] = hpi_min(share, count - a->begins[i]);
    }
    return (hpi_parts){a->counts, a->begins};
}

hp_status hpi_across_reduce(hpi_across *a) {
    const hpi_run *run = a->run;
    summing s = {.in = run->c.in, .parts = slices(a, run->c.count)};
    s.out = (unsigned char *)run->c.out + s.parts.begins[a->rank] * run->out_size;
    HP_TRY(cut(a, &s));
    const hpi_spread spread = {.out = run->c.out,
                               .dtype = run->c.out_dtype,
                               .size = run->out_size,
                               .parts = s.parts,
                               .step = s.step};
    s.spread = &spread;
    return sum_parts(a, &s);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * broadcast.c - broadcast between nodes: pieces down a binomial tree of nodes, each shared inside.
 *
 *     nodes, counted from the root's    0 -> 1, 2, 4     1 -> -     2 -> 3     4 -> 5, 6     6 -> 7
 *
 * One member of each node speaks for it: the root, and its partners elsewhere. It passes a piece on
 * as soon as it has it, and then broadcasts it inside. Source: binomial broadcast, MPICH.
 */
#include "across.h"

typedef struct cast {
    int root_node, n_nodes, number; /* of this node, counted from the root's */
    int speaker;                    /* of this node, as a place */
} cast;

static int speaker_of(const hpi_across *a, const cast *t, int number) {
    const int node = (t->root_node + number) % t->n_nodes, root = a->run->c.root;
    return number == 0 ? root : hpi_node_partner(a->nodes, node, a->nodes->place_of[root]);
}

static cast cast_of(const hpi_across *a) {
    cast t = {.root_node = a->nodes->node_of[a->run->c.root], .n_nodes = a->nodes->n};
    t.number = (a->mine + t.n_nodes - t.root_node) % t.n_nodes;
    t.speaker = a->nodes->place_of[speaker_of(a, &t, t.number)];
    return t;
}

/* Below number k are k + 1, k + 2, k + 4 ..., the largest first, as far as k's lowest bit. */
static int widest_step(const cast *t) {
    int step = t->number ? (t->number & -t->number) / 2 : 1;
    while (t->number == 0 && step * 2 < t->n_nodes)
        step *= 2;
    return step;
}

static hp_status pass_on(hpi_across *a, const cast *t, const unsigned char *piece, uint64_t bytes) {
    for (int step = widest_step(t); step > 0; step /= 2)
        if (t->number + step < t->n_nodes)
            HP_TRY(hpi_fly_to(a, HPI_SENT, speaker_of(a, t, t->number + step), HPI_TAG_RESULT,
                              piece, bytes));
    return HP_OK;
}

static hp_status cast_inside(hpi_across *a, const cast *t, unsigned char *piece, uint64_t bytes) {
    const hpi_coll c = {.in = piece,
                        .out = piece,
                        .count = bytes,
                        .blocks = 1,
                        .dtype = HP_UINT8,
                        .out_dtype = HP_UINT8,
                        .root = t->speaker};
    return a->size == 1 ? HP_OK : hpi_across_inner(a, HP_BROADCAST, &c);
}

static hp_status await_pieces(hpi_across *a, const cast *t) {
    unsigned char *data = a->run->c.out;
    const uint64_t total = a->run->out_bytes;
    const int above = speaker_of(a, t, t->number & (t->number - 1));
    for (uint64_t at = 0; at < total; at += a->piece_bytes)
        HP_TRY(hpi_fly_from(a, HPI_RESULTS, above, HPI_TAG_RESULT, data + at,
                            hpi_min(a->piece_bytes, total - at)));
    return HP_OK;
}

hp_status hpi_across_broadcast(hpi_across *a) {
    const cast t = cast_of(a);
    const bool is_root = a->rank == a->run->c.root, speaks = a->place == t.speaker;
    const uint64_t total = a->run->out_bytes;
    unsigned char *data = a->run->c.out;
    if (speaks && !is_root) {
        HP_TRY(await_pieces(a, &t));
        HP_TRY(hpi_agree_end(a));
    }
    for (uint64_t at = 0; at < total; at += a->piece_bytes) {
        const uint64_t bytes = hpi_min(a->piece_bytes, total - at);
        if (speaks && !is_root)
            HP_TRY(hpi_land(a, HPI_RESULTS, a->flights[HPI_RESULTS].n_landed + 1));
        if (speaks)
            HP_TRY(pass_on(a, &t, data + at, bytes));
        HP_TRY(cast_inside(a, &t, data + at, bytes));
    }
    HP_TRY(hpi_agree_end(a));
    return hpi_land_all(a, HPI_SENT);
}

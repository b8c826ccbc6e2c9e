/* SPDX-License-Identifier: Apache-2.0
 *
 * small.c - an all-reduce so short that its messages cost what a message costs.
 *
 *     node                    A: 0    1      B: 2    3
 *     inner all-reduce           01   01         23   23
 *     messages, to partners      23   23         01   01     one latency
 *     sum                        0123 0123       0123 0123   every member the same, by the tree
 *
 * Where a node does not fold, an inner all-gather of the contributions stands for the inner sum,
 * and messages hold them all.
 */
#include "../staged/wire.h"
#include "across.h"

enum { MOST_BYTES = 4096 };

/* Of one branch, whatever its node. */
static uint64_t slot_bytes(const hpi_across *a) {
    const uint64_t count = a->run->c.count;
    return hpi_align_up(
        hpi_max(hpi_branch_bytes(a, true, count), hpi_branch_bytes(a, false, count)), 8);
}

bool hpi_is_short(const hpi_across *a) {
    int most = 0;
    if (a->run->c.count > MOST_BYTES)
        return false;
    for (int node = 0; node < a->nodes->n; node++)
        most = hpi_n_branches(a, node) > most ? hpi_n_branches(a, node) : most;
    return slot_bytes(a) * (uint64_t)most <= MOST_BYTES;
}

static void make_leaf(const hpi_across *a, unsigned char *out) {
    const hpi_run *run = a->run;
    if (run->wire == HP_WIRE_FULL)
        memcpy(out, run->c.in, run->in_bytes);
    else
        hpi_wire_encode(run->wire, run->c.dtype, run->c.in, run->c.count, out);
}

/* Leaves of all members, side by side; this rank's own is there. */
static hp_status gather_leaves(hpi_across *a, unsigned char *block) {
    const uint64_t bytes = slot_bytes(a);
    unsigned char *own = block + (uint64_t)a->place * bytes;
    make_leaf(a, own);
    const hpi_coll c = {.in = own,
                        .out = block,
                        .count = bytes,
                        .blocks = 1,
                        .dtype = HP_UINT8,
                        .out_dtype = HP_UINT8};
    return a->size == 1 ? HP_OK : hpi_across_inner(a, HP_ALL_GATHER, &c);
}

static hp_status sum_node(hpi_across *a, unsigned char *block) {
    const hpi_run *run = a->run;
    const hpi_coll c = {.in = run->c.in,
                        .out = block,
                        .count = run->c.count,
                        .blocks = 1,
                        .dtype = run->c.dtype,
                        .out_dtype = hpi_sum_dtype(run->c.dtype),
                        .op = run->c.op == HP_AVG ? HP_SUM : run->c.op,
                        .wire = run->wire};
    return hpi_across_inner(a, HP_ALL_REDUCE, &c);
}

/* To each member of a node whose partner here this rank is. */
static hp_status send_block(hpi_across *a, int node, const unsigned char *block, uint64_t bytes) {
    for (int i = a->place; i < hpi_node_size(a->nodes, node); i += a->size)
        HP_TRY(hpi_fly_to(a, HPI_SENT, hpi_member(a, node, i), HPI_TAG_PART, block, bytes));
    return HP_OK;
}

/* A node's block, and where its branches lie in it. */
static unsigned char *block_of(hpi_across *a, int node, unsigned char **next) {
    unsigned char *block = *next;
    for (int i = 0; i < hpi_n_branches(a, node); i++, *next += slot_bytes(a))
        a->branches[hpi_member(a, node, i)].data = *next;
    return block;
}

hp_status hpi_across_reduce_short(hpi_across *a) {
    const uint64_t bytes = slot_bytes(a);
    HP_TRY(hpi_room_take(&a->slots, (uint64_t)a->n * bytes));
    unsigned char *next = a->slots.at;
    unsigned char *own = block_of(a, a->mine, &next);
    for (int i = 0; i < a->nodes->n - 1; i++) {
        const int node = hpi_other_node(a, i);
        unsigned char *block = block_of(a, node, &next);
        HP_TRY(hpi_fly_from(a, HPI_PARTS, hpi_node_partner(a->nodes, node, a->place), HPI_TAG_PART,
                            block, (uint64_t)hpi_n_branches(a, node) * bytes));
    }
    HP_TRY(hpi_is_leafy(a, a->mine) ? gather_leaves(a, own) : sum_node(a, own));
    for (int i = 0; i < a->nodes->n - 1; i++)
        HP_TRY(
            send_block(a, hpi_other_node(a, i), own, (uint64_t)hpi_n_branches(a, a->mine) * bytes));
    HP_TRY(hpi_agree_end(a));
    HP_TRY(hpi_land_all(a, HPI_PARTS));
    hpi_tree_sum(a, a->run->c.out, a->run->c.count);
    return hpi_land_all(a, HPI_SENT);
}

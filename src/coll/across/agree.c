/* SPDX-License-Identifier: Apache-2.0
 *
 * agree.c - do all members make the same call?
 *
 * Members of a node show each other what they are about to do, in shared memory; then each pair of
 * nodes is compared by pairs of members, so that each member of the larger node is in one. Where
 * data go between other pairs too, these compare as well: what is received has been agreed on with
 * its sender. Headers are posted before the data, and are small: they cost no time of their own.
 */
#include "across.h"

#include <stdio.h>

/* Do members of different nodes, at these places among so many, make a pair? */
static bool is_pair(int place, int size, int other_place, int other_size) {
    return size <= other_size ? other_place % size == place : place % other_size == other_place;
}

/* Data between any two. */
static bool is_all_to_all(const hpi_across *a) {
    const hp_collective what = a->run->what;
    const bool reduces =
        what == HP_REDUCE_SCATTER || what == HP_REDUCE_SCATTER_V || what == HP_ALL_REDUCE;
    return what == HP_ALL_TO_ALL || what == HP_ALL_TO_ALL_V || (reduces && !a->do_all_fold);
}

static bool is_heard(const hpi_across *a, int rank) {
    const hpi_nodes *nodes = a->nodes;
    const int node = nodes->node_of[rank];
    return node != a->mine && (is_all_to_all(a) || is_pair(a->place, a->size, nodes->place_of[rank],
                                                           hpi_node_size(nodes, node)));
}

static void fill_header(hpi_across *a) {
    const hpi_run *run = a->run;
    a->own = (hpi_header){.words = {run->types, run->count_word, hpi_pack_blocks(run->c.blocks, 0),
                                    0, 0, run->c.count},
                          .group = hpi_group_check_number(a->group),
                          .seq = run->seq};
}

/* ---- comparing ---- */

static hp_status fail_group(const hpi_across *a, int peer, const hpi_header *theirs) {
    return HPI_FAIL_RANK(HP_ERR_MISMATCH, hp_group_world_rank(a->group, peer),
                         "%s: expected rank %d (world %d) to be in collective %llu of %s, it is in "
                         "collective %llu of %s",
                         a->run->name, peer, hp_group_world_rank(a->group, peer),
                         (unsigned long long)a->run->seq, hpi_group_name(a->group),
                         (unsigned long long)theirs->seq,
                         theirs->group == a->own.group ? "that" : "another group");
}

static hp_status fail_part(const hpi_across *a, int peer, uint64_t sent) {
    return HPI_FAIL_RANK(
        HP_ERR_MISMATCH, hp_group_world_rank(a->group, peer),
        "%s: expected each rank of %s to receive what it is sent, rank %d (world %d) sends %llu "
        "elements to rank %d (world %d), which expects %llu",
        a->run->name, hpi_group_name(a->group), peer, hp_group_world_rank(a->group, peer),
        (unsigned long long)sent, a->rank, hp_group_world_rank(a->group, a->rank),
        (unsigned long long)a->run->c.out_counts[peer]);
}

static hp_status compare(const hpi_across *a, int peer, const hpi_header *theirs) {
    const hpi_header *mine = &a->own;
    if (theirs->group != mine->group || theirs->seq != mine->seq)
        return fail_group(a, peer, theirs);
    if (memcmp(theirs->words, mine->words, HPI_WORD_PLACES * sizeof *mine->words) != 0)
        return hpi_words_mismatch(a->run, a->run->seq, mine->words, peer, theirs->words);
    if (a->run->what == HP_ALL_TO_ALL_V && theirs->part != a->run->c.out_counts[peer])
        return fail_part(a, peer, theirs->part);
    return HP_OK;
}

/* ---- the two halves ---- */

static hp_status compare_inside(hpi_across *a) {
    if (a->size == 1)
        return HP_OK;
    const hpi_coll c = {.in = &a->own,
                        .out = a->beside,
                        .count = sizeof a->own,
                        .blocks = 1,
                        .dtype = HP_UINT8,
                        .out_dtype = HP_UINT8};
    HP_TRY(hpi_across_inner(a, HP_ALL_GATHER, &c));
    for (int i = 0; i < a->size; i++) {
        if (i == a->place)
            continue;
        hpi_header theirs = a->beside[i];
        theirs.part = 0; /* what members of a node send each other their own call compares */
        if (a->run->what == HP_ALL_TO_ALL_V)
            theirs.part = a->run->c.out_counts[hpi_member(a, a->mine, i)];
        HP_TRY(compare(a, hpi_member(a, a->mine, i), &theirs));
    }
    return HP_OK;
}

hp_status hpi_agree_begin(hpi_across *a) {
    fill_header(a);
    for (int k = 1; k < a->n; k++) {
        const int peer = (a->rank + k) % a->n;
        if (!is_heard(a, peer))
            continue;
        a->sent[peer] = a->own;
        if (a->run->what == HP_ALL_TO_ALL_V)
            a->sent[peer].part = a->run->c.in_counts[peer];
        HP_TRY(hpi_fly_from(a, HPI_HEARD, peer, HPI_TAG_HEADER, &a->heard[peer], sizeof *a->heard));
        HP_TRY(hpi_fly_to(a, HPI_SENT, peer, HPI_TAG_HEADER, &a->sent[peer], sizeof *a->sent));
    }
    return compare_inside(a); /* who differs has told the others so */
}

hp_status hpi_agree_end(hpi_across *a) {
    int n_heard = 0;
    for (int k = 1; k < a->n; k++) {
        const int peer = (a->rank + k) % a->n;
        if (!is_heard(a, peer))
            continue;
        HP_TRY(hpi_land(a, HPI_HEARD, ++n_heard));
        HP_TRY(compare(a, peer, &a->heard[peer]));
    }
    return HP_OK;
}

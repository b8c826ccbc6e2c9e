/* SPDX-License-Identifier: Apache-2.0
 *
 * match.c - the members of a communicator issue the same collectives in the same order.
 *
 * Every member is compared with the first one of its group, position by position. What a collective
 * is for (unit and parameter) counts too: ranks that exchange two of equal sizes would add up
 * gradients of different parameters.
 */
#include "proof.h"

#include <stdio.h>

static void gather_members(hpi_proof *p, uint32_t comm, uint32_t *ranks) {
    const uint32_t n_ranks = p->job->n_ranks;
    const int *colors = comm ? p->job->colors + (uint64_t)comm * n_ranks : NULL;
    hpi_members *members = p->members + (uint64_t)comm * n_ranks;
    for (uint32_t first = 0; first < n_ranks; first++) {
        uint32_t n = 0;
        if (members[first].n)
            continue; /* of a group that has been seen */
        ranks[n++] = first;
        for (uint32_t r = first + 1; colors && colors[first] >= 0 && r < n_ranks; r++)
            if (colors[r] == colors[first])
                ranks[n++] = r;
        for (uint32_t i = 0; i < n; i++)
            members[ranks[i]] = (hpi_members){ranks, n};
        ranks += n;
    }
}

hp_status hpi_proof_find_members(hpi_proof *p) {
    const size_t n = (size_t)p->job->n_comms * p->job->n_ranks;
    p->members = hpi_alloc(n, sizeof *p->members);
    p->member_ranks = hpi_alloc(n, sizeof *p->member_ranks);
    if (!p->members || !p->member_ranks)
        return HP_ERR_MEMORY;
    for (uint32_t comm = 0; comm < p->job->n_comms; comm++)
        gather_members(p, comm, p->member_ranks + (uint64_t)comm * p->job->n_ranks);
    return HP_OK;
}

/* What must be equal, in the order in which a difference is told. */
enum { N_FIELDS = 8 };
static const char *const field_names[N_FIELDS] = {"kind", "unit",   "param",  "dtype",
                                                  "wire", "reduce", "blocks", "bytes"};
static void read_fields(const hp_op *op, uint64_t out[N_FIELDS]) {
    const uint64_t fields[N_FIELDS] = {op->kind, op->unit,   op->param,  op->dtype,
                                       op->wire, op->reduce, op->blocks, op->bytes};
    memcpy(out, fields, sizeof fields);
}

static hp_status compare(hpi_proof *p, hpi_place a, hpi_place b) {
    char one[HPI_PLACE_TEXT], other[HPI_PLACE_TEXT];
    uint64_t x[N_FIELDS], y[N_FIELDS];
    const hp_op *op = hpi_op_at(p, a);
    read_fields(op, x);
    read_fields(hpi_op_at(p, b), y);
    for (int f = 0; f < N_FIELDS; f++)
        if (x[f] != y[f])
            return hpi_unsound(p, HP_RULE_MATCH, a, b,
                               "%s and %s are number %u on communicator %u, with %s %llu and %llu",
                               hpi_place_text(p, a, one), hpi_place_text(p, b, other), op->seq,
                               op->comm, field_names[f], (unsigned long long)x[f],
                               (unsigned long long)y[f]);
    return HP_OK;
}

static hp_status compare_members(hpi_proof *p, uint32_t step, uint32_t comm, uint32_t first,
                                 uint32_t rank) {
    char name[HPI_PLACE_TEXT];
    uint32_t n, n_first;
    const uint32_t *ids = hpi_collectives_of(p, step, rank, comm, &n);
    const uint32_t *first_ids = hpi_collectives_of(p, step, first, comm, &n_first);
    for (uint32_t k = 0; k < n && k < n_first; k++)
        HP_TRY(compare(p, (hpi_place){first, step, first_ids[k]}, (hpi_place){rank, step, ids[k]}));
    if (n == n_first)
        return HP_OK;
    const hpi_place alone = n > n_first ? (hpi_place){rank, step, ids[n_first]}
                                        : (hpi_place){first, step, first_ids[n]};
    return hpi_unsound(p, HP_RULE_MATCH, alone, alone,
                       "%s is one that rank %u does not issue: it has %llu on communicator %u",
                       hpi_place_text(p, alone, name), n > n_first ? first : rank,
                       (unsigned long long)hpi_min(n, n_first), comm);
}

hp_status hpi_proof_match(hpi_proof *p) {
    for (uint32_t step = 0; step < p->job->n_steps; step++)
        for (uint32_t comm = 1; comm < p->job->n_comms; comm++)
            for (uint32_t rank = 0; rank < p->job->n_ranks; rank++)
                HP_TRY(
                    compare_members(p, step, comm, hpi_members_of(p, comm, rank)->ranks[0], rank));
    return HP_OK;
}

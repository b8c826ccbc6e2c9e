/* SPDX-License-Identifier: Apache-2.0
 *
 * meetings.c - who meets whom: the groups of a job and the places of their collectives.
 *
 * Ranks of one color on a communicator are a group. A collective of a group in a step is a meeting,
 * numbered by its position; all that is kept of one is how many members have come.
 */
#include "virtual.h"

#include <stdlib.h>

/* A group by its color on its communicator, to be sorted. */
struct place {
    uint32_t comm, rank;
    int color;
};

static int color_of(const hp_job *job, uint32_t comm, uint32_t rank) {
    return comm ? job->colors[(size_t)comm * job->n_ranks + rank] : (int)rank;
}

static int compare(const void *left, const void *right) {
    const struct place *a = left, *b = right;
    if (a->comm != b->comm)
        return a->comm < b->comm ? -1 : 1;
    if (a->color != b->color)
        return a->color < b->color ? -1 : 1;
    return a->rank < b->rank ? -1 : a->rank > b->rank;
}

/* Each rank once for every communicator, the members of a group beside each other. */
static struct place *sort_places(const hp_job *job, uint32_t n_comms) {
    const size_t n = (size_t)n_comms * job->n_ranks;
    struct place *places = hpi_alloc(n, sizeof *places);
    for (size_t i = 0; places && i < n; i++) {
        const uint32_t comm = (uint32_t)(i / job->n_ranks), rank = (uint32_t)(i % job->n_ranks);
        places[i] = (struct place){comm, rank, color_of(job, comm, rank)};
    }
    if (places)
        qsort(places, n, sizeof *places, compare);
    return places;
}

static void make_groups(const hp_job *job, const struct place *places, size_t n, hpi_meetings *m) {
    uint32_t n_members = 0;
    for (size_t i = 0; i < n; i++) {
        if (places[i].color < 0) /* in none; never asked for */
            continue;
        const bool is_new = !n_members || places[i].comm != places[i - 1].comm ||
                            places[i].color != places[i - 1].color;
        if (is_new)
            m->starts[m->n_groups++] = n_members;
        m->group_of[(size_t)places[i].comm * job->n_ranks + places[i].rank] = m->n_groups - 1;
        m->members[n_members++] = places[i].rank;
    }
    m->starts[m->n_groups] = n_members;
}

/* How many meetings a group has in a step: as many as its busiest member comes to. */
static void count_meetings(const hp_job *job, hpi_meetings *m) {
    for (uint32_t step = 0; step < job->n_steps; step++)
        for (uint32_t rank = 0; rank < job->n_ranks; rank++) {
            const hp_list *list = &job->lists[(size_t)step * job->n_ranks + rank];
            for (uint64_t i = 0; i < list->n; i++) {
                const hp_op *op = &list->ops[i];
                const uint32_t group = m->group_of[(size_t)op->comm * job->n_ranks + rank];
                uint64_t *n = &m->bases[(size_t)step * m->n_groups + group];
                if (op->comm)
                    *n = hpi_max(*n, (uint64_t)op->seq + 1);
            }
        }
}

/* Counts become places; returns their sum. */
static uint64_t sum_up(uint64_t *counts, size_t n) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        const uint64_t count = counts[i];
        counts[i] = sum;
        sum += count;
    }
    return sum;
}

static hp_status make_meetings(const hp_job *job, hpi_meetings *m) {
    const size_t n = (size_t)job->n_steps * m->n_groups;
    m->bases = hpi_alloc(n, sizeof *m->bases);
    if (!m->bases)
        return HP_ERR_MEMORY;
    count_meetings(job, m);
    m->n_come = hpi_alloc(sum_up(m->bases, n), sizeof *m->n_come);
    return m->n_come ? HP_OK : HP_ERR_MEMORY;
}

/* The lists were checked: positions are below their length, members have a color. */
hp_status hpi_meetings_create(const hp_job *job, hpi_meetings *out_meetings) {
    const uint32_t n_comms = job->n_comms ? job->n_comms : 1;
    const size_t n = (size_t)n_comms * job->n_ranks;
    hpi_meetings *m = out_meetings;
    m->group_of = hpi_alloc(n, sizeof *m->group_of);
    m->starts = hpi_alloc(n + 1, sizeof *m->starts);
    m->members = hpi_alloc(n, sizeof *m->members);
    struct place *places = sort_places(job, n_comms);
    if (!m->group_of || !m->starts || !m->members || !places) {
        hpi_free(places);
        return HP_ERR_MEMORY;
    }
    make_groups(job, places, n, m);
    hpi_free(places);
    return make_meetings(job, m);
}

void hpi_meetings_destroy(hpi_meetings *meetings) {
    hpi_free(meetings->group_of);
    hpi_free(meetings->starts);
    hpi_free(meetings->members);
    hpi_free(meetings->bases);
    hpi_free(meetings->n_come);
}

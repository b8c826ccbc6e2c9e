/* SPDX-License-Identifier: Apache-2.0
 *
 * verify.c - hp_verify: a job is free of races, of use outside a life, of disagreement and of
 * deadlock, or here are the two operations because of which it is not.
 *
 * Each list is read by itself (lists.c), the members of each communicator are compared (match.c),
 * then all operations are walked through in an order that nothing forbids (walk.c), and whatever
 * touches bytes is compared with what touched them before (accesses.c).
 */
#include "proof.h"

static hp_status check_job(const hp_job *job) {
    if (job->size != sizeof *job)
        return HPI_FAIL(HP_ERR_VERSION, "expected hp_job of %zu bytes, given %zu: use HP_JOB_INIT",
                        sizeof *job, job->size);
    if (!job->n_ranks || !job->n_steps || job->n_ranks > 4096)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected 1 to 4096 ranks and at least one step, given %u and %u",
                        job->n_ranks, job->n_steps);
    if (!job->lists || !job->kinds || !job->n_kinds || !job->buffers || !job->n_buffers)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected lists, kinds and buffers, given none of %s",
                        !job->lists                    ? "the lists"
                        : !job->kinds || !job->n_kinds ? "the kinds"
                                                       : "the buffers");
    if (job->n_comms > 1 && !job->colors)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected the colors of %u communicators, given NULL",
                        job->n_comms);
    for (uint32_t b = 0; b < job->n_buffers; b++)
        if (job->buffers[b].shared_by && job->buffers[b].shared_by >= job->n_comms)
            return HPI_FAIL(HP_ERR_ARGUMENT,
                            "expected buffer %u to be shared by a communicator below %u, given %u",
                            b, job->n_comms, job->buffers[b].shared_by);
    return HP_OK;
}

static hp_status check_kinds(const hp_job *job) {
    for (uint32_t i = 0; i < job->n_kinds; i++)
        if (!job->kinds[i].name)
            return HPI_FAIL(HP_ERR_ARGUMENT,
                            "expected a name for every kind, given none for kind %u", i);
    return HP_OK;
}

static hp_status check_lists(const hp_job *job, uint64_t *out_n_ops) {
    uint64_t n_ops = 0;
    for (uint64_t i = 0; i < (uint64_t)job->n_steps * job->n_ranks; i++) {
        if (!job->lists[i].ops && job->lists[i].n)
            return HPI_FAIL(HP_ERR_ARGUMENT, "expected %llu operations, given NULL",
                            (unsigned long long)job->lists[i].n);
        n_ops = hpi_add_saturated(n_ops, job->lists[i].n);
    }
    if (n_ops > INT32_MAX) /* an event is twice an id */
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected at most %d operations, given %llu", INT32_MAX,
                        (unsigned long long)n_ops);
    *out_n_ops = n_ops;
    return HP_OK;
}

static hp_status take_memory(hpi_proof *p) {
    const hp_job *job = p->job;
    const size_t n_lists = (size_t)job->n_steps * job->n_ranks;
    const size_t n_comms = job->n_comms;
    p->notes = hpi_alloc(p->verdict->n_ops, sizeof *p->notes);
    p->first_note = hpi_alloc(n_lists, sizeof *p->first_note);
    p->by_seq = hpi_alloc(p->verdict->n_ops, sizeof *p->by_seq);
    p->first_by_seq = hpi_alloc(n_lists * n_comms + 1, sizeof *p->first_by_seq);
    p->has_lives = hpi_alloc(job->n_buffers, sizeof *p->has_lives);
    p->memories = hpi_alloc((size_t)job->n_ranks * job->n_buffers, sizeof *p->memories);
    if (!p->notes || !p->first_note || !p->by_seq || !p->first_by_seq || !p->has_lives ||
        !p->memories)
        return HP_ERR_MEMORY;
    uint32_t first = 0;
    for (size_t i = 0; i < n_lists; i++) {
        p->first_note[i] = first;
        first += (uint32_t)job->lists[i].n;
    }
    HP_TRY(hpi_proof_find_members(p));
    return hpi_clocks_create(&p->clocks, job->n_ranks);
}

static void give_back(hpi_proof *p) {
    const size_t n = (size_t)p->job->n_ranks * p->job->n_buffers;
    for (size_t i = 0; p->memories && i < n; i++)
        hpi_free(p->memories[i].accesses);
    hpi_free(p->memories);
    hpi_free(p->has_lives);
    hpi_free(p->first_by_seq);
    hpi_free(p->by_seq);
    hpi_free(p->first_note);
    hpi_free(p->notes);
    hpi_free(p->members);
    hpi_free(p->member_ranks);
    hpi_clocks_destroy(&p->clocks);
}

static hp_status prove(hpi_proof *p) {
    HP_TRY(take_memory(p));
    HP_TRY(hpi_proof_read(p));
    HP_TRY(hpi_proof_match(p));
    return hpi_proof_walk(p);
}

hp_status hp_verify(const hp_job *job, hp_verdict *out_verdict) {
    if (!job || !out_verdict)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a job and a place for the verdict, given %s",
                        job ? "no place" : "no job");
    uint64_t n_ops;
    HP_TRY(check_job(job));
    HP_TRY(check_kinds(job));
    HP_TRY(check_lists(job, &n_ops));
    hp_job own = *job; /* communicator 0 has a row, also where there are no others */
    own.n_comms = own.n_comms ? own.n_comms : 1;
    *out_verdict = (hp_verdict){.n_ops = n_ops};
    hpi_proof proof = {.job = &own, .verdict = out_verdict};
    const hp_status status = prove(&proof);
    give_back(&proof);
    return status;
}

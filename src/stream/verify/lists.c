/* SPDX-License-Identifier: Apache-2.0
 *
 * lists.c - each list by itself: is it whole, and what will the walk have to know of it?
 *
 * Here are found broken ids, events, kinds, ranges outside their buffer and begins without an end;
 * and every operation's place on its chain, who waits for it, the collectives of each communicator
 * by their sequence number, and how many bytes the lives of a list take at the most.
 */
#include "proof.h"

#define BROKEN(proof, at, ...) hpi_unsound(proof, HP_RULE_LIST, at, at, __VA_ARGS__)

/* ---- one operation --------------------------------------------------------------------------- */

static hp_status check_ref(hpi_proof *p, hpi_place at, hp_ref ref) {
    char text[HPI_PLACE_TEXT], name[HPI_PLACE_TEXT];
    if (!ref.buffer)
        return HP_OK;
    if (ref.buffer >= p->job->n_buffers)
        return BROKEN(p, at, "%s names buffer %u of %u", hpi_place_text(p, at, name), ref.buffer,
                      p->job->n_buffers);
    const hp_buffer *buffer = &p->job->buffers[ref.buffer];
    if (ref.begin > ref.end || ref.end > buffer->bytes)
        return BROKEN(p, at, "%s names %s, of %llu bytes", hpi_place_text(p, at, name),
                      hpi_ref_text(ref, text), (unsigned long long)buffer->bytes);
    if (ref.life && buffer->shared_by)
        return BROKEN(p, at, "%s names %s, but memory that ranks share has no lives",
                      hpi_place_text(p, at, name), hpi_ref_text(ref, text));
    return HP_OK;
}

static hp_status check_waits(hpi_proof *p, hpi_place at, const hp_op *op) {
    char name[HPI_PLACE_TEXT];
    if (op->n_waits > HP_OP_WAITS)
        return BROKEN(p, at, "%s has %u waits, %d are the most", hpi_place_text(p, at, name),
                      op->n_waits, HP_OP_WAITS);
    for (uint32_t i = 0; i < op->n_waits; i++)
        if (op->waits[i] && (op->waits[i] < hpi_done(0) || hpi_event_op(op->waits[i]) >= at.id))
            return BROKEN(p, at, "%s waits for event %u, which is of no operation before it",
                          hpi_place_text(p, at, name), op->waits[i]);
    return HP_OK;
}

static hp_status check_collective(hpi_proof *p, hpi_place at, const hp_op *op, uint32_t seq) {
    char name[HPI_PLACE_TEXT];
    if (op->seq != seq)
        return BROKEN(p, at, "%s is number %u on communicator %u, given %u",
                      hpi_place_text(p, at, name), seq, op->comm, op->seq);
    if (p->job->colors[(uint64_t)op->comm * p->job->n_ranks + at.rank] < 0)
        return BROKEN(p, at, "%s is on communicator %u, of which its rank is no member",
                      hpi_place_text(p, at, name), op->comm);
    return HP_OK;
}

/* What begins or ends a life names that one, and touches nothing else. */
static hp_status check_life(hpi_proof *p, hpi_place at, const hp_op *op) {
    char name[HPI_PLACE_TEXT];
    const hp_role role = hpi_role_of(p, op);
    const hp_ref *life = role == HP_ROLE_ALLOCATE ? &op->writes[0] : &op->reads[0];
    if (role != HP_ROLE_ALLOCATE && role != HP_ROLE_RELEASE)
        return HP_OK;
    if (!life->buffer || !life->life)
        return BROKEN(p, at, "%s names no life", hpi_place_text(p, at, name));
    for (int k = 0; k < 2; k++)
        if ((op->reads[k].buffer && &op->reads[k] != life) ||
            (op->writes[k].buffer && &op->writes[k] != life))
            return BROKEN(p, at, "%s names more than a life", hpi_place_text(p, at, name));
    return HP_OK;
}

static hp_status check_op(hpi_proof *p, hpi_place at, const hp_op *op) {
    char name[HPI_PLACE_TEXT];
    if (op->id != at.id)
        return BROKEN(p, at, "%s has id %u", hpi_place_text(p, at, name), op->id);
    if (op->kind >= p->job->n_kinds || op->stream >= HP_N_STREAMS)
        return BROKEN(p, at, "%s has kind %u of %u and stream %u of %d",
                      hpi_place_text(p, at, name), op->kind, p->job->n_kinds, op->stream,
                      HP_N_STREAMS);
    if (op->comm && op->comm >= p->job->n_comms)
        return BROKEN(p, at, "%s is on communicator %u of %u", hpi_place_text(p, at, name),
                      op->comm, p->job->n_comms);
    for (int k = 0; k < 2; k++) {
        HP_TRY(check_ref(p, at, op->reads[k]));
        HP_TRY(check_ref(p, at, op->writes[k]));
    }
    HP_TRY(check_life(p, at, op));
    return check_waits(p, at, op);
}

/* ---- one list -------------------------------------------------------------------------------- */

/* What is known while a list is read. */
struct reader {
    hpi_proof *proof;
    uint32_t *positions; /* [n_chains]: of the last operation, over all steps */
    uint32_t *open;      /* ids of the begins that no end has closed yet */
    uint32_t n_open;
    uint64_t live_bytes;
    uint32_t *n_seqs; /* [n_comms] */
};

static void note_waits(const hpi_proof *p, hpi_place at, const hp_op *op) {
    for (uint32_t i = 0; i < op->n_waits; i++) {
        if (!op->waits[i])
            continue;
        const hpi_place other = {at.rank, at.step, hpi_event_op(op->waits[i])};
        const bool is_drained =
            hpi_event_is_drained(op->waits[i]) && hpi_op_at(p, other)->comm != 0;
        hpi_note_at(p, other)->n_waiters[is_drained]++;
    }
}

/* An end closes the last begin of its unit. On another stream it might come first. */
static hp_status close_begin(struct reader *r, hpi_place at, const hp_op *op) {
    char name[HPI_PLACE_TEXT], other[HPI_PLACE_TEXT];
    for (uint32_t i = r->n_open; i-- > 0;) {
        const hpi_place begin = {at.rank, at.step, r->open[i]};
        if (hpi_op_at(r->proof, begin)->unit != op->unit)
            continue;
        if (hpi_op_at(r->proof, begin)->stream != op->stream)
            return hpi_unsound(
                r->proof, HP_RULE_LIST, begin, at, "%s ends on another stream, with %s",
                hpi_place_text(r->proof, begin, other), hpi_place_text(r->proof, at, name));
        hpi_note_at(r->proof, begin)->last = at.id;
        memmove(r->open + i, r->open + i + 1, (r->n_open - i - 1) * sizeof *r->open);
        r->n_open--;
        return HP_OK;
    }
    return BROKEN(r->proof, at, "%s ends what has not begun", hpi_place_text(r->proof, at, name));
}

static hp_status note_role(struct reader *r, hpi_place at, const hp_op *op) {
    const uint64_t bytes[] = {op->reads[0].end - op->reads[0].begin,
                              op->writes[0].end - op->writes[0].begin};
    hp_verdict *verdict = r->proof->verdict;
    switch (hpi_role_of(r->proof, op)) {
    case HP_ROLE_PLAIN:
        return HP_OK;
    case HP_ROLE_ALLOCATE:
        r->proof->has_lives[op->writes[0].buffer] = true;
        r->live_bytes += bytes[1];
        if (r->live_bytes <= verdict->peak_bytes)
            return HP_OK;
        verdict->peak_bytes = r->live_bytes;
        verdict->peak_rank = at.rank;
        return HP_OK;
    case HP_ROLE_RELEASE: /* whether there was such a life is found out by the walk */
        r->live_bytes -= hpi_min(r->live_bytes, bytes[0]);
        return HP_OK;
    case HP_ROLE_BEGIN:
        r->open[r->n_open++] = at.id;
        return HP_OK;
    case HP_ROLE_END:
        return close_begin(r, at, op);
    }
    return HP_OK;
}

static hp_status read_op(struct reader *r, hpi_place at) {
    const hp_op *op = hpi_op_at(r->proof, at);
    HP_TRY(check_op(r->proof, at, op));
    if (op->comm)
        HP_TRY(check_collective(r->proof, at, op, r->n_seqs[op->comm]++));
    hpi_note *note = hpi_note_at(r->proof, at);
    note->position = ++r->positions[hpi_chain_of(at, op)];
    note->last = at.id;
    note_waits(r->proof, at, op);
    return note_role(r, at, op);
}

/* The collectives of a list that was checked: `at` counts them up over all lists. */
static uint32_t sort_collectives(hpi_proof *p, uint32_t step, uint32_t rank, const uint32_t *n_seqs,
                                 uint32_t at) {
    const hp_list *list = hpi_list_at(p, step, rank);
    uint32_t *first = p->first_by_seq + ((uint64_t)step * p->job->n_ranks + rank) * p->job->n_comms;
    for (uint32_t comm = 0; comm < p->job->n_comms; comm++) {
        first[comm] = at;
        at += n_seqs[comm];
    }
    first[p->job->n_comms] = at;
    for (uint32_t id = 0; id < list->n; id++)
        if (list->ops[id].comm)
            p->by_seq[first[list->ops[id].comm] + list->ops[id].seq] = id;
    return at;
}

static hp_status read_list(struct reader *r, uint32_t step, uint32_t rank) {
    char name[HPI_PLACE_TEXT];
    r->n_open = 0;
    r->live_bytes = 0;
    memset(r->n_seqs, 0, r->proof->job->n_comms * sizeof *r->n_seqs);
    for (uint32_t id = 0; id < hpi_list_at(r->proof, step, rank)->n; id++)
        HP_TRY(read_op(r, (hpi_place){rank, step, id}));
    if (!r->n_open)
        return HP_OK;
    const hpi_place at = {rank, step, r->open[r->n_open - 1]};
    return BROKEN(r->proof, at, "%s has no end", hpi_place_text(r->proof, at, name));
}

static hp_status read_all(struct reader *r) {
    const hp_job *job = r->proof->job;
    uint32_t n_collectives = 0;
    for (uint32_t step = 0; step < job->n_steps; step++)
        for (uint32_t rank = 0; rank < job->n_ranks; rank++) {
            HP_TRY(read_list(r, step, rank));
            n_collectives = sort_collectives(r->proof, step, rank, r->n_seqs, n_collectives);
        }
    return HP_OK;
}

hp_status hpi_proof_read(hpi_proof *proof) {
    const hp_job *job = proof->job;
    uint64_t longest = 0;
    for (uint64_t i = 0; i < (uint64_t)job->n_steps * job->n_ranks; i++)
        longest = hpi_max(longest, job->lists[i].n);
    struct reader reader = {.proof = proof};
    reader.positions = hpi_alloc((size_t)job->n_ranks * HP_N_STREAMS, sizeof *reader.positions);
    reader.open = hpi_alloc(longest, sizeof *reader.open);
    reader.n_seqs = hpi_alloc(job->n_comms, sizeof *reader.n_seqs);
    const bool has_memory = reader.positions && reader.open && reader.n_seqs;
    const hp_status status = has_memory ? read_all(&reader) : HP_ERR_MEMORY;
    hpi_free(reader.positions);
    hpi_free(reader.open);
    hpi_free(reader.n_seqs);
    return status;
}

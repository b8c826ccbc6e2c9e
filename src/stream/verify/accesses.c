/* SPDX-License-Identifier: Apache-2.0
 *
 * accesses.c - who does what with which bytes, and is the one over when the other begins?
 *
 * Each memory keeps the accesses that a later one may still collide with. A new one is compared
 * with all of them that overlap it; then those that it makes superfluous go: what is over when it
 * begins, lies inside it and cannot collide where it does not. So a memory's list stays as short as
 * the pieces that it is used in. Lives are checked in the same stroke.
 */
#include "proof.h"

/* ---- is it over? ------------------------------------------------------------------------------
 */

static bool is_done(const hpi_proof *p, hpi_place at, const uint32_t *clock) {
    return clock[hpi_chain_of(at, hpi_op_at(p, at))] >= hpi_note_at(p, at)->position;
}

static bool is_drained(const hpi_proof *p, hpi_place at, const uint32_t *clock) {
    const hpi_members *members = hpi_members_of(p, hpi_op_at(p, at)->comm, at.rank);
    for (uint32_t i = 0; i < members->n; i++)
        if (!is_done(p, hpi_peer_place(p, at, members->ranks[i]), clock))
            return false;
    return true;
}

static bool is_over(const hpi_proof *p, const hpi_access *a, const uint32_t *clock) {
    return clock[a->chain] >= a->position && (!a->is_by_peers || is_drained(p, a->place, clock));
}

/* ---- lists of accesses ------------------------------------------------------------------------
 */

static hpi_memory *memory_of(const hpi_proof *p, uint32_t rank, uint32_t buffer) {
    const uint32_t comm = p->job->buffers[buffer].shared_by;
    const uint32_t owner = comm ? hpi_members_of(p, comm, rank)->ranks[0] : rank;
    return &p->memories[(uint64_t)owner * p->job->n_buffers + buffer];
}

/* After `a` nothing need be compared with `older` any more: whoever is ordered after `a` is ordered
 * after it, and whoever collides with it collides with `a`. */
static bool is_superseded(const hpi_proof *p, const hpi_access *older, const hpi_access *a,
                          const uint32_t *clock) {
    return a->ref.begin <= older->ref.begin && older->ref.end <= a->ref.end &&
           (a->is_write || !older->is_write) && is_over(p, older, clock);
}

static hp_status append(hpi_memory *m, const hpi_access *access) {
    if (m->n_accesses == m->capacity) {
        const uint32_t capacity = m->capacity ? 2 * m->capacity : 8;
        hpi_access *grown = hpi_alloc(capacity, sizeof *grown);
        if (!grown)
            return HP_ERR_MEMORY;
        if (m->n_accesses)
            memcpy(grown, m->accesses, m->n_accesses * sizeof *grown);
        hpi_free(m->accesses);
        m->accesses = grown;
        m->capacity = capacity;
    }
    m->accesses[m->n_accesses++] = *access;
    return HP_OK;
}

static hp_status keep(const hpi_proof *p, const hpi_access *access, const uint32_t *clock) {
    hpi_memory *m = memory_of(p, access->place.rank, access->ref.buffer);
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->n_accesses; i++)
        if (!is_superseded(p, &m->accesses[i], access, clock))
            m->accesses[n++] = m->accesses[i];
    m->n_accesses = n;
    p->verdict->n_accesses++;
    return append(m, access);
}

/* ---- races and lives --------------------------------------------------------------------------
 */

static const char *verb(const hpi_access *a) {
    return a->is_write ? "writes" : a->is_by_peers ? "lets peers read" : "reads";
}

/* The walk may meet either one first: the verdict does not hang on that. */
static bool comes_first(hpi_place a, hpi_place b) {
    if (a.step != b.step)
        return a.step < b.step;
    return a.rank != b.rank ? a.rank < b.rank : a.id < b.id;
}

static hp_status fail_race(hpi_proof *p, const hpi_access *a, const hpi_access *b) {
    char one[HPI_PLACE_TEXT], other[HPI_PLACE_TEXT], mine[HPI_PLACE_TEXT], its[HPI_PLACE_TEXT];
    if (comes_first(b->place, a->place))
        return fail_race(p, b, a);
    return hpi_unsound(p, HP_RULE_RACE, a->place, b->place,
                       "%s %s %s while %s %s %s: nothing orders them",
                       hpi_place_text(p, a->place, one), verb(a), hpi_ref_text(a->ref, mine),
                       hpi_place_text(p, b->place, other), verb(b), hpi_ref_text(b->ref, its));
}

static hp_status check_races(hpi_proof *p, const hpi_access *a, const uint32_t *clock) {
    const hpi_memory *m = memory_of(p, a->place.rank, a->ref.buffer);
    for (uint32_t i = 0; i < m->n_accesses; i++) {
        const hpi_access *b = &m->accesses[i];
        const bool overlap = b->ref.begin < a->ref.end && a->ref.begin < b->ref.end;
        if (overlap && (a->is_write || b->is_write) && !is_over(p, b, clock))
            return fail_race(p, b, a);
    }
    return HP_OK;
}

/* Where a life is allocated in a list, whether the walk has come there or not; else `at`. */
static hpi_place find_allocate(const hpi_proof *p, hpi_place at, hp_ref ref) {
    const hp_list *list = hpi_list_at(p, at.step, at.rank);
    for (uint32_t id = 0; id < list->n; id++) {
        const hp_ref *life = &list->ops[id].writes[0];
        if (hpi_role_of(p, &list->ops[id]) == HP_ROLE_ALLOCATE && life->buffer == ref.buffer &&
            life->life == ref.life)
            return (hpi_place){at.rank, at.step, id};
    }
    return at;
}

static hp_status fail_life(hpi_proof *p, hpi_place at, hp_ref ref, hpi_place other,
                           const char *problem) {
    char name[HPI_PLACE_TEXT], piece[HPI_PLACE_TEXT], second[HPI_PLACE_TEXT];
    return hpi_unsound(p, HP_RULE_LIFE, at, other, "%s uses %s %s: %s", hpi_place_text(p, at, name),
                       hpi_ref_text(ref, piece), problem, hpi_place_text(p, other, second));
}

static hp_status fail_reuse(hpi_proof *p, hpi_place release, const hpi_access *a) {
    char name[HPI_PLACE_TEXT], other[HPI_PLACE_TEXT], piece[HPI_PLACE_TEXT];
    return hpi_unsound(p, HP_RULE_REUSE, release, a->place,
                       "%s does not come after %s, which %s %s", hpi_place_text(p, release, name),
                       hpi_place_text(p, a->place, other), verb(a), hpi_ref_text(a->ref, piece));
}

/* The life of `a` has begun for certain when `clock` is over, and has not ended. */
static hp_status check_life(hpi_proof *p, const hpi_access *a, const uint32_t *clock) {
    const hpi_place at = a->place;
    const hp_ref ref = a->ref;
    const hpi_memory *m = memory_of(p, at.rank, ref.buffer);
    if (!ref.life)
        return p->has_lives[ref.buffer]
                   ? fail_life(p, at, ref, at, "outside the lives that this buffer has")
                   : HP_OK;
    if (ref.life > m->life || (ref.life == m->life && !is_done(p, m->allocated, clock)))
        return fail_life(p, at, ref, find_allocate(p, at, ref), "not after its allocate");
    if (ref.life < m->life)
        return fail_life(p, at, ref, m->allocated, "after the next allocate");
    if (m->is_released && is_done(p, m->released, clock))
        return fail_life(p, at, ref, m->released, "after its release");
    if (m->is_released)
        return fail_reuse(p, m->released, a);
    if (ref.begin < m->begin || ref.end > m->end)
        return fail_life(p, at, ref, m->allocated, "outside what was allocated");
    return HP_OK;
}

static hp_status allocate(hpi_proof *p, hpi_place at, hp_ref ref, const uint32_t *clock) {
    char name[HPI_PLACE_TEXT], other[HPI_PLACE_TEXT], piece[HPI_PLACE_TEXT];
    hpi_memory *m = memory_of(p, at.rank, ref.buffer);
    if (m->life && !m->is_released)
        return fail_life(p, at, ref, m->allocated, "before the life ends that began here");
    if (ref.life != m->life + 1)
        return fail_life(p, at, ref, m->life ? m->allocated : at, "which is not the next life");
    if (m->is_released && !is_done(p, m->released, clock))
        return hpi_unsound(p, HP_RULE_REUSE, at, m->released, "%s begins %s, not after %s",
                           hpi_place_text(p, at, name), hpi_ref_text(ref, piece),
                           hpi_place_text(p, m->released, other));
    m->life = ref.life;
    m->is_released = false;
    m->allocated = at;
    m->begin = ref.begin;
    m->end = ref.end;
    return HP_OK;
}

static hp_status release(hpi_proof *p, hpi_place at, hp_ref ref, const uint32_t *clock) {
    hpi_memory *m = memory_of(p, at.rank, ref.buffer);
    const hpi_access end = {.place = at, .ref = ref, .is_write = true};
    HP_TRY(check_life(p, &end, clock));
    for (uint32_t i = 0; i < m->n_accesses; i++)
        if (!is_over(p, &m->accesses[i], clock))
            return fail_reuse(p, at, &m->accesses[i]);
    m->n_accesses = 0;
    m->is_released = true;
    m->released = at;
    return HP_OK;
}

hp_status hpi_proof_end_lives(hpi_proof *p, uint32_t rank) {
    char name[HPI_PLACE_TEXT], piece[HPI_PLACE_TEXT];
    for (uint32_t b = 1; b < p->job->n_buffers; b++) {
        hpi_memory *m = &p->memories[(uint64_t)rank * p->job->n_buffers + b];
        if (m->life && !m->is_released)
            return hpi_unsound(p, HP_RULE_LIFE, m->allocated, m->allocated,
                               "%s begins %s, which is never released",
                               hpi_place_text(p, m->allocated, name),
                               hpi_ref_text(hpi_op_at(p, m->allocated)->writes[0], piece));
        m->life = 0;
        m->is_released = false;
    }
    return HP_OK;
}

/* ---- an operation begins -----------------------------------------------------------------------
 */

static uint32_t collect(const hpi_proof *p, hpi_place at, hpi_access out[4]) {
    const hp_op *op = hpi_op_at(p, at);
    const hpi_place last = {at.rank, at.step, hpi_note_at(p, at)->last};
    uint32_t n = 0;
    for (int k = 0; k < 4; k++) {
        const hp_ref ref = k < 2 ? op->reads[k] : op->writes[k - 2];
        if (!ref.buffer || ref.begin == ref.end)
            continue;
        out[n++] = (hpi_access){.place = at,
                                .ref = ref,
                                .chain = hpi_chain_of(last, hpi_op_at(p, last)),
                                .position = hpi_note_at(p, last)->position,
                                .is_write = k >= 2,
                                .is_by_peers = op->comm && k < 2 && (op->peers_read >> k & 1)};
    }
    return n;
}

hp_status hpi_proof_access(hpi_proof *p, hpi_place at, const uint32_t *clock) {
    const hp_op *op = hpi_op_at(p, at);
    const hp_role role = hpi_role_of(p, op);
    hpi_access accesses[4];
    if (role == HP_ROLE_ALLOCATE)
        return allocate(p, at, op->writes[0], clock);
    if (role == HP_ROLE_RELEASE)
        return release(p, at, op->reads[0], clock);
    const uint32_t n = collect(p, at, accesses);
    for (uint32_t i = 0; i < n; i++) {
        HP_TRY(check_life(p, &accesses[i], clock));
        HP_TRY(check_races(p, &accesses[i], clock));
    }
    for (uint32_t i = 0; i < n; i++)
        HP_TRY(keep(p, &accesses[i], clock));
    return HP_OK;
}

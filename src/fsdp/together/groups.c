/* SPDX-License-Identifier: Apache-2.0
 *
 * groups.c - the groups that an fsdp talks in, and how it stops talking.
 *
 * unshard and reduce have the same ranks and two signal spaces; replicate is across them; `all` is
 * every rank, for what is agreed between passes. A failed group stays failed, so whoever leaves a
 * pass cancels all four, which ends the waits of every peer, and hp_fsdp_reset makes new ones.
 * `meeting` is for resets alone: it fails when a rank has ended, and its ENTER line says how many
 * resets a rank has begun.
 */
#include "groups.h"

#include "../../world/world.h"
#include <hyperparallel/coll.h>

/* `before`: of those that came before it; a failure of one of these is what is returned. */
static hp_status duplicate(hp_group *of, const char *name, hp_group **out_group, hp_status before) {
    hp_error error;
    hp_last_error_get(&error);
    const hp_status status = hp_group_duplicate(of, out_group);
    if (status == HP_OK)
        hpi_group_set_name(*out_group, name);
    return before < 0 ? hpi_error_set(&error) : status;
}

/* All of them, where one cannot be had too: ranks count the groups that they make, and the next one
 * of this rank must not be taken for one that the others have made already. */
hp_status hpi_fsdp_take_groups(hp_fsdp *fsdp) {
    hp_group *shard = hp_mesh_group(fsdp->mesh, hp_mesh_n_dims(fsdp->mesh) - 1);
    hp_status status = duplicate(shard, "unshard", &fsdp->shard, HP_OK);
    status = duplicate(shard, "reduce", &fsdp->reduce, status);
    if (fsdp->n_replicas > 1)
        status = duplicate(hp_mesh_group(fsdp->mesh, 0), "replicate", &fsdp->replicate, status);
    return duplicate(hp_world_group(fsdp->world), "fsdp", &fsdp->all, status);
}

hp_status hpi_fsdp_warm_up(hp_fsdp *fsdp) {
    return hp_barrier(fsdp->all);
}

static void drop(hp_group **group) {
    hp_group_destroy(*group);
    *group = NULL;
}

void hpi_fsdp_drop_groups(hp_fsdp *fsdp) {
    drop(&fsdp->all);
    drop(&fsdp->replicate);
    drop(&fsdp->reduce);
    drop(&fsdp->shard);
}

static void end_groups(hp_fsdp *fsdp, void (*end)(hp_group *group)) {
    hp_group *const groups[] = {fsdp->shard, fsdp->reduce, fsdp->replicate, fsdp->all};
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (groups[i])
            end(groups[i]);
}

void hpi_fsdp_fail_groups(hp_fsdp *fsdp) {
    end_groups(fsdp, hpi_group_fail);
}

void hpi_fsdp_cancel_groups(hp_fsdp *fsdp) {
    end_groups(fsdp, hpi_group_cancel);
}

/* ---- resets ------------------------------------------------------------------------------ */

enum { WORD_STATUS, WORD_UPDATES, N_WORDS };

struct hpi_meeting {
    hp_group *group;
    uint64_t n_resets;  /* announced; the last of them is under way while is_announced */
    uint64_t n_done;    /* calls of all ranks that have ended here since then */
    uint64_t announced; /* where this rank stood then: what it waits for */
    bool is_announced;
    uint64_t words[]; /* [size][N_WORDS], what the ranks said */
};

hp_status hpi_fsdp_take_meeting(hp_fsdp *fsdp) {
    const size_t bytes = (size_t)hp_world_size(fsdp->world) * N_WORDS * sizeof(uint64_t);
    hp_group *group = NULL;
    const hp_status status = duplicate(hp_world_group(fsdp->world), "reset", &group, HP_OK);
    fsdp->meeting = hpi_alloc(1, sizeof *fsdp->meeting + bytes);
    if (!fsdp->meeting) {
        hp_group_destroy(group);
        return HP_ERR_MEMORY;
    }
    fsdp->meeting->group = group;
    return status;
}

void hpi_fsdp_drop_meeting(hp_fsdp *fsdp) {
    if (fsdp->meeting)
        drop(&fsdp->meeting->group);
    hpi_free(fsdp->meeting);
}

/* Those whose lines this rank sees. Who is on another node learns of a reset by the groups that it
 * cancels, which is said some 20 ms behind what was sent in them: so a rank that needs nothing more
 * of this one comes to the end of its call. */
static hp_group *near(const hpi_meeting *m) {
    return hpi_group_inner(m->group);
}

/* A look takes a system call, and leaves the record that names with whom it began. */
void hpi_fsdp_end_meetings(hp_fsdp *fsdp) {
    hp_group *group = fsdp->meeting->group;
    hp_status status = HP_OK;
    for (int i = 0; i < hp_group_size(group) && status == HP_OK; i++)
        if (i != hp_group_rank(group))
            status = hpi_group_look(group, i, "fsdp_reset");
    if (status == HP_ERR_PEER)
        hpi_group_fail(group);
}

/* Where a rank stands; a reset that is announced is beyond all that went before it. Only rises:
 * there is room for 30 years of a thousand calls a second, and for 16 million resets. */
static uint64_t progress(uint64_t n_resets, uint64_t n_done) {
    return n_resets << 40 | n_done;
}

/* n_done of a rank when it announced a reset. */
static _Atomic uint64_t *left_at(const hpi_meeting *m, int rank) {
    return &hpi_group_line(near(m), rank, HPI_LINE_ENTER)->words[0];
}

void hpi_fsdp_done(const hp_fsdp *fsdp) {
    hpi_meeting *m = fsdp->meeting;
    if (m)
        hpi_line_post(near(m), HPI_LINE_ENTER, progress(m->n_resets, ++m->n_done));
}

static void announce(hpi_meeting *m) {
    const uint64_t n_done = m->n_done;
    m->announced = progress(m->n_resets, n_done);
    m->is_announced = true;
    m->n_done = 0;
    atomic_store_explicit(left_at(m, hp_group_rank(near(m))), n_done, memory_order_relaxed);
    hpi_line_post(near(m), HPI_LINE_ENTER, progress(++m->n_resets, 0));
}

/* One that did not come through is tried again under its own number: the others have made, or will
 * make, one reset for it. */
hp_status hpi_fsdp_begin_reset(const hp_fsdp *fsdp) {
    hpi_meeting *m = fsdp->meeting;
    hp_status status = HP_OK;
    if (!m->is_announced)
        announce(m);
    for (int i = 0; i < hp_group_size(near(m)) && status == HP_OK; i++)
        if (i != hp_group_rank(near(m)))
            status = hpi_line_wait(near(m), i, HPI_LINE_ENTER, m->announced, "fsdp_reset");
    return status;
}

void hpi_fsdp_end_reset(const hp_fsdp *fsdp) {
    fsdp->meeting->is_announced = false;
}

hp_status hpi_fsdp_listen(const hp_fsdp *fsdp, const char *call) {
    const hpi_meeting *m = fsdp->meeting;
    for (int i = 0; m && i < hp_group_size(near(m)); i++) {
        const int rank = hp_group_world_rank(near(m), i);
        if (!hpi_line_reached(near(m), i, HPI_LINE_ENTER, progress(m->n_resets + 1, 0)) ||
            atomic_load_explicit(left_at(m, i), memory_order_relaxed) > m->n_done)
            continue; /* it left a later pass: this rank can finish its own */
        return HPI_FAIL_RANK(HP_ERR_FAILED, rank,
                             "%s: expected a pass that every rank is in, rank %d has reset it: "
                             "hp_fsdp_reset here too",
                             call, rank);
    }
    return HP_OK;
}

static hp_status compare(const hp_fsdp *fsdp, int rank) {
    const uint64_t *words = fsdp->meeting->words + (size_t)rank * N_WORDS;
    const hp_status status = (hp_status)(int64_t)words[WORD_STATUS];
    if (status < 0)
        return HPI_FAIL_RANK(status, rank, "hp_fsdp_reset: rank %d could not start over: %s", rank,
                             hp_status_text(status));
    if (words[WORD_UPDATES] != fsdp->n_updates)
        return HPI_FAIL_RANK(HP_ERR_MISMATCH, rank,
                             "hp_fsdp_reset: expected the same weights on all ranks, rank %d has "
                             "updated them %llu times and this rank %llu times",
                             rank, (unsigned long long)words[WORD_UPDATES],
                             (unsigned long long)fsdp->n_updates);
    return HP_OK;
}

hp_status hpi_fsdp_meet(hp_fsdp *fsdp, hp_status mine) {
    hpi_meeting *m = fsdp->meeting;
    const uint64_t words[N_WORDS] = {(uint64_t)(int64_t)mine, fsdp->n_updates};
    hp_error error;
    hp_last_error_get(&error);
    HP_TRY(hpi_group_enter(m->group, "hp_fsdp_reset"));
    hp_status status = hpi_group_exchange(m->group, "fsdp_reset", words, N_WORDS, m->words);
    hpi_group_leave(m->group);
    if (status == HP_OK && mine < 0)
        return hpi_error_set(&error);
    for (int i = 0; status == HP_OK && i < hp_group_size(m->group); i++)
        status = compare(fsdp, i);
    return status;
}

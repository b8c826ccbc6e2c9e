/* SPDX-License-Identifier: Apache-2.0
 *
 * meet.c - what ranks say to each other when they come, and waiting for it.
 *
 * Nobody waits for all: a rank says its entry and goes on with what it has; it hears a peer before
 * it touches that peer's memory. A block in symmetric memory is named, another one is copied into
 * the own segment first, when everybody has done with the block that was there before.
 */
#include "inside.h"

#include <stdio.h>

static void word_store(_Atomic uint64_t *word, uint64_t value) {
    atomic_store_explicit(word, value, memory_order_relaxed);
}
static uint64_t word_load(const _Atomic uint64_t *word) {
    return atomic_load_explicit(word, memory_order_relaxed);
}

/* ---- posting and waiting ---- */

void hpi_fused_post(hpi_fused_run *run, _Atomic uint64_t *own, uint64_t value) {
    atomic_store_explicit(own, value, memory_order_seq_cst);
    const int me = hp_group_world_rank(run->group, run->rank);
    for (int k = 1; k < run->n; k++) /* those that sleep for somebody else sleep on */
        hpi_world_wake_for(run->world, hp_group_world_rank(run->group, (run->rank + k) % run->n),
                           me);
}

hp_status hpi_fused_wait(hpi_fused_run *run, const _Atomic uint64_t *word, int i, uint64_t value) {
    if (hpi_fused_is_there(word, value))
        return HP_OK;
    const hpi_reason reason = {.operation = run->name,
                               .group = run->group,
                               .rank = i,
                               .seq = run->seq,
                               .line = 1 + HPI_LINE_FUSED};
    return hpi_world_wait(run->world, word, HP_GE, value, &reason);
}

/* ---- saying ---- */

static bool is_gather(const hpi_fused_run *run) {
    return run->what != HPI_MATMUL_SCATTER;
}

/* What all ranks must mean alike. */
static void compared_words(const hpi_fused_run *run, uint64_t *out_words) {
    const hp_fused_args *a = run->args;
    int64_t rows = 0, columns = 0;
    if (!is_gather(run))
        hpi_fused_tile(run, &rows, &columns);
    out_words[HPI_SAYS_TYPES] = (uint64_t)run->what << 32 | (uint64_t)a->dtype;
    out_words[HPI_SAYS_WIDTH] = (uint64_t)(is_gather(run) ? a->k : a->n);
    out_words[HPI_SAYS_ROWS] = hpi_checksum(a->rows, (uint64_t)run->n * sizeof *a->rows);
    out_words[HPI_SAYS_CUT] = (uint64_t)rows << 32 | (uint64_t)columns;
}

static hp_status take_staging(hpi_fused_state *s, uint64_t bytes) {
    if (bytes <= s->staging_bytes)
        return HP_OK;
    hpi_outbox *larger;
    HP_TRY(hpi_outbox_take(s->group, bytes, &larger));
    if (s->staging)
        hpi_outbox_leave(s->group, s->staging);
    s->staging = larger;
    s->staging_bytes = bytes;
    return HP_OK;
}

static hp_status stage(hpi_fused_run *run, uint64_t words[HPI_N_SAYS]) {
    hpi_fused_state *s = run->state;
    const hp_fused_args *a = run->args;
    const uint64_t row = (uint64_t)a->k * run->element;
    for (int i = 0; i < run->n; i++)
        if (i != run->rank)
            HP_TRY(hpi_fused_wait(run, &s->shared[i]->read.value, i, s->staged_seq));
    HP_TRY(take_staging(s, (uint64_t)a->rows[run->rank] * row));
    hpi_fused_copy(hpi_outbox_memory(s->staging), row, a->a, (uint64_t)a->lda * run->element, row,
                   a->rows[run->rank]);
    s->staged_seq = run->seq;
    words[HPI_SAYS_OFFSET] = hpi_outbox_offset(s->staging);
    words[HPI_SAYS_STRIDE] = (uint64_t)a->k;
    return HP_OK;
}

/* Where ranks share cores a call that waits for its readers at the end waits for others to be given
 * a core, some 2 us each: copying a block for them takes less as long as it is small. */
static bool is_better_copied(const hpi_fused_run *run, uint64_t rows) {
    enum { MOST_BYTES = 32 << 10 };
    return !hpi_world_can_spin(run->world) &&
           rows * (uint64_t)run->args->k * run->element <= MOST_BYTES;
}

static hp_status place_block(hpi_fused_run *run, uint64_t words[HPI_N_SAYS]) {
    const hp_fused_args *a = run->args;
    const uint64_t rows = (uint64_t)a->rows[run->rank];
    if (rows == 0 || a->k == 0 || run->n == 1)
        return HP_OK;
    const uint64_t elements = (rows - 1) * (uint64_t)a->lda + (uint64_t)a->k;
    const hpi_place place = hpi_symm_place(run->world, a->a, elements * run->element);
    if (!place.key || is_better_copied(run, rows))
        return stage(run, words);
    words[HPI_SAYS_KEY] = place.key;
    words[HPI_SAYS_OFFSET] = place.offset;
    words[HPI_SAYS_STRIDE] = (uint64_t)a->lda;
    return HP_OK;
}

static hp_status place_slots(hpi_fused_run *run, uint64_t words[HPI_N_SAYS]) {
    hpi_fused_state *s = run->state;
    if (!s->slots)
        HP_TRY(hpi_outbox_take(run->group, (uint64_t)HPI_TILE_SLOTS * HPI_TILE_BYTES, &s->slots));
    words[HPI_SAYS_OFFSET] = hpi_outbox_offset(s->slots);
    return HP_OK;
}

hp_status hpi_fused_say(hpi_fused_run *run) {
    hpi_fused_state *s = run->state;
    hpi_fused_entry *entry = &s->shared[run->rank]->entries[run->seq % 2];
    uint64_t words[HPI_N_SAYS] = {0};
    words[HPI_SAYS_TIME] = hpi_now_ns();
    compared_words(run, words);
    HP_TRY(is_gather(run) ? place_block(run, words) : place_slots(run, words));
    for (int i = 0; i < HPI_N_SAYS; i++)
        word_store(&entry->words[i], words[i]);
    memset(s->is_heard, 0, (size_t)run->n * sizeof *s->is_heard);
    hpi_fused_post(run, &entry->seq, run->seq);
    return HP_OK;
}

/* ---- hearing ---- */

static const hpi_fused_entry *entry_of(const hpi_fused_run *run, int i) {
    return &run->state->shared[i]->entries[run->seq % 2];
}

bool hpi_fused_has_come(const hpi_fused_run *run, int i) {
    return hpi_fused_is_there(&entry_of(run, i)->seq, run->seq);
}

static const char *what_name(uint64_t types) {
    const uint64_t what = types >> 32;
    return what < HPI_N_FUSED ? hpi_fused_name((hpi_fused_what)what) : "?";
}

/* The first word that differs, in words. */
static hp_status differ(const hpi_fused_run *run, int i, const uint64_t *mine,
                        const uint64_t *theirs) {
    char what[160];
    const uint64_t my_types = mine[HPI_SAYS_TYPES], their_types = theirs[HPI_SAYS_TYPES];
    if (my_types != their_types)
        snprintf(what, sizeof what, "%s of %s there and %s of %s here", what_name(their_types),
                 hp_dtype_name((hp_dtype)(uint32_t)their_types), what_name(my_types),
                 hp_dtype_name((hp_dtype)(uint32_t)my_types));
    else if (mine[HPI_SAYS_WIDTH] != theirs[HPI_SAYS_WIDTH])
        snprintf(what, sizeof what, "%s %llu there and %llu here", is_gather(run) ? "k" : "n",
                 (unsigned long long)theirs[HPI_SAYS_WIDTH],
                 (unsigned long long)mine[HPI_SAYS_WIDTH]);
    else
        snprintf(what, sizeof what, "other rows there than here");
    const int world_rank = hp_group_world_rank(run->group, i);
    return HPI_FAIL_RANK(HP_ERR_MISMATCH, world_rank,
                         "%s: expected the same call of all ranks of %s, rank %d (world %d) has %s",
                         run->name, hpi_group_name(run->group), i, world_rank, what);
}

static hp_status compare(const hpi_fused_run *run, int i, const uint64_t *theirs) {
    uint64_t mine[HPI_N_COMPARED];
    compared_words(run, mine);
    return memcmp(mine, theirs, sizeof mine) == 0 ? HP_OK : differ(run, i, mine, theirs);
}

/* Where rank i's block, or its slots, are seen here. */
static hp_status find(hpi_fused_run *run, int i, const uint64_t *words) {
    hpi_fused_state *s = run->state;
    const hpi_place place = {words[HPI_SAYS_KEY], words[HPI_SAYS_OFFSET]};
    const int world_rank = hp_group_world_rank(run->group, i);
    s->block[i] =
        place.key ? hpi_symm_at(run->world, place, world_rank) : s->heaps[i] + place.offset;
    s->stride[i] = words[HPI_SAYS_STRIDE];
    if (!s->block[i])
        return HPI_FAIL_RANK(HP_ERR_HANDLE, world_rank,
                             "%s: expected rank %d (world %d) of %s to use live memory that this "
                             "rank shares, it does not",
                             run->name, i, world_rank, hpi_group_name(run->group));
    return HP_OK;
}

hp_status hpi_fused_hear(hpi_fused_run *run, int i) {
    hpi_fused_state *s = run->state;
    const hpi_fused_entry *entry = entry_of(run, i);
    uint64_t words[HPI_N_SAYS];
    if (s->is_heard[i])
        return HP_OK;
    HP_TRY(hpi_fused_wait(run, &entry->seq, i, run->seq));
    for (int k = 0; k < HPI_N_SAYS; k++)
        words[k] = word_load(&entry->words[k]);
    HP_TRY(compare(run, i, words));
    HP_TRY(find(run, i, words));
    if (i == run->rank && is_gather(run)) {
        s->block[i] = run->args->a;
        s->stride[i] = (uint64_t)run->args->lda;
    }
    s->is_heard[i] = true;
    return HP_OK;
}

hp_status hpi_fused_hear_all(hpi_fused_run *run, int first, int end) {
    for (int k = 0; k < 2 * run->n; k++) {
        const int i = hpi_fused_other(run, k);
        if (i >= first && i < end)
            HP_TRY(hpi_fused_hear(run, i));
    }
    return first <= run->rank && run->rank < end ? hpi_fused_hear(run, run->rank) : HP_OK;
}

#define LATE_NS UINT64_C(200000)

bool hpi_fused_is_late(const hpi_fused_run *run) {
    const hp_fused_args *a = run->args;
    const uint64_t rows = (uint64_t)(run->m - a->rows[run->rank]);
    /* 1 GB/s: 8 times a copy */
    const uint64_t least_ns = hpi_max(LATE_NS, rows * (uint64_t)a->k * run->element);
    const uint64_t now_ns = hpi_now_ns();
    if (run->state->cut.late)
        return run->state->cut.late > 0;
    for (int i = 0; i < run->n; i++)
        if (i != run->rank &&
            (!hpi_fused_has_come(run, i) ||
             now_ns < word_load(&entry_of(run, i)->words[HPI_SAYS_TIME]) + least_ns))
            return false;
    return true;
}

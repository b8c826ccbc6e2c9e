/* SPDX-License-Identifier: Apache-2.0
 *
 * staged.c - of a reduce_scatter inputs go to who has their results, and gradients come back.
 *
 *     rank          0     1     2     3
 *     a tick       [bcd] [efh] [ikl] [mno]     inputs of the others' columns
 *     the next     [y00] [0x0] [00w] [z00]     gradients for the others, as they have won
 *
 * It passes in chunks of as many elements of each column, two ticks for each. A rank finds the
 * winners of its own column from the cells and its own input; the gradients that it keeps go where
 * they belong at once. Ticks take turns in the same lines, so one of inputs and one of gradients,
 * though both could go in one tick: a line that was not read since this rank has filled it would be
 * dear to fill. What a tick is, and why a cell may be filled again: staged/stage.c, ring.c.
 */
#include "won.h"

typedef struct staged {
    const hpi_won *w;
    hpi_run run;           /* as ticks ask for one */
    uint64_t most;         /* elements of a column in a chunk */
    uint64_t room;         /* bytes of a piece: `most` elements */
    unsigned char **cells; /* [n] each: of the tick of inputs */
    const void **from;
    void **to;
} staged;

/* Elements of part i in a chunk, the first of them element *out_begin of the input. */
static uint64_t column_of(const staged *s, uint64_t chunk, int i, uint64_t *out_begin) {
    const uint64_t at = chunk * s->most, count = hpi_won_counts(s->w)[i];
    *out_begin = hpi_won_begins(s->w)[i] + at;
    return at < count ? hpi_min(count - at, s->most) : 0;
}

/* Where in the cell of `writer` a piece for `reader` lies: one of each other rank. */
static uint64_t piece_at(const staged *s, int writer, int reader) {
    return hpi_cell_index(&s->run, writer, reader) * s->room;
}
static uint64_t pieces_bytes(const staged *s) {
    return (uint64_t)(s->w->n - 1) * s->room;
}

static void fill(const staged *s, uint64_t chunk, unsigned char *cell) {
    const hpi_won *w = s->w;
    for (int k = 1; k < w->n; k++) {
        const int i = (w->rank + k) % w->n;
        uint64_t begin;
        const uint64_t bytes = column_of(s, chunk, i, &begin) * w->size;
        if (bytes)
            hpi_ring_fill(&s->run.state->distance, cell + piece_at(s, w->rank, i),
                          w->in + begin * w->size, bytes);
    }
}

/* From the cells of inputs: this rank's to its in_grad, those of the others to the next cell. */
static void give(const staged *s, uint64_t chunk, unsigned char *next) {
    const hpi_won *w = s->w;
    uint64_t begin;
    const uint64_t count = column_of(s, chunk, w->rank, &begin);
    if (count == 0)
        return;
    for (int i = 0; i < w->n; i++) {
        s->from[i] = s->cells[i] + piece_at(s, i, w->rank);
        s->to[i] = next + piece_at(s, w->rank, i);
    }
    s->from[w->rank] = w->in + begin * w->size;
    s->to[w->rank] = w->in_grad + begin * w->size;
    hpi_give_gradient(w->dtype, w->op, s->from, w->n, w->out_grad + chunk * s->most * w->size,
                      s->to, count);
}

static void take(const staged *s, uint64_t chunk, int peer) {
    const hpi_won *w = s->w;
    uint64_t begin;
    const uint64_t bytes = column_of(s, chunk, peer, &begin) * w->size;
    if (bytes)
        hpi_ring_read(w->in_grad + begin * w->size,
                      hpi_cell_of(&s->run, peer) + piece_at(s, peer, w->rank), bytes);
}

static hp_status run_chunk(staged *s, uint64_t chunk) {
    hpi_run *run = &s->run;
    fill(s, chunk, hpi_tick_begin(run, pieces_bytes(s)));
    hpi_tick_post(run);
    HP_TRY(hpi_tick_wait_all(run));
    for (int i = 0; i < run->n; i++)
        s->cells[i] = hpi_cell_of(run, i);
    give(s, chunk, hpi_tick_begin(run, pieces_bytes(s)));
    hpi_tick_post(run);
    HP_TRY(hpi_tick_wait_all(run));
    for (int k = 1; k < run->n; k++)
        take(s, chunk, (run->rank + k) % run->n);
    return HP_OK;
}

static hp_status run_chunks(staged *s) {
    HP_TRY(hpi_ring_open(&s->run));
    for (uint64_t chunk = 0; chunk * s->most < s->w->longest; chunk++)
        HP_TRY(run_chunk(s, chunk));
    return HP_OK;
}

/* A cell has room for as many pieces as there are other ranks. */
static void cut(staged *s) {
    const uint64_t n_pieces = hpi_max((uint64_t)s->w->n - 1, 1);
    s->room = hpi_min(s->run.state->cell_bytes / n_pieces / 64 * 64,
                      hpi_align_up(s->w->longest * s->w->size, 64));
    s->most = s->room / s->w->size;
}

/* Returns how much it is. */
static uint64_t lay_out(staged *s, unsigned char *memory) {
    const uint64_t pointers = (uint64_t)s->w->n * sizeof(void *);
    uint64_t at = 0;
    s->cells = hpi_won_take(memory, &at, pointers);
    s->from = hpi_won_take(memory, &at, pointers);
    s->to = hpi_won_take(memory, &at, pointers);
    return at;
}

static hp_status run(staged *s) {
    _Alignas(64) unsigned char few[1024]; /* what few ranks need */
    const uint64_t bytes = lay_out(s, NULL);
    unsigned char *memory = bytes <= sizeof few ? few : hpi_alloc_aligned(64, bytes);
    if (!memory)
        return HP_ERR_MEMORY;
    lay_out(s, memory);
    cut(s);
    const hp_status status = run_chunks(s);
    if (memory != few)
        hpi_free(memory);
    return status;
}

hp_status hpi_won_run_staged(const hpi_won *w) {
    staged s = {.w = w,
                .run = {.state = hpi_group_attached(w->group, HPI_SLOT_COLL), /* they have met */
                        .group = w->group,
                        .what = w->what,
                        .name = w->name,
                        .rank = w->rank,
                        .n = w->n}};
    hp_status status = hpi_group_enter(w->group, w->name);
    if (status == HP_OK) {
        status = run(&s);
        hpi_group_leave(w->group);
    }
    if (status < 0)
        hpi_group_fail(w->group); /* the others wait for this rank */
    return status;
}

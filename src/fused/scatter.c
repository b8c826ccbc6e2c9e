/* SPDX-License-Identifier: Apache-2.0
 *
 * scatter.c - a product whose rows are summed over ranks, each of which gets some of them.
 *
 *     tile        0        1        2        3        4
 *     rank 0   makes    makes    makes    makes    makes       into its slots 0 1 2 3 0
 *              adds 0            adds 2            adds 4      of all ranks, into its c
 *     rank 1   makes    makes    makes    makes    makes
 *                       adds 1            adds 3
 *
 * All ranks make all tiles in one order: one of each rank's block in turn, so that ranks add in
 * turn. Who is behind holds the others up when their slots are full, and not before. A tile's slots
 * are in caches when they are added, and the whole product lies nowhere. Each call begins in slot
 * 0, so that one of a single tile writes where the last one did: numbers that are left out count as
 * made and added. Each element is the tree over ranks of fp32 products, rounded once.
 */
#include "inside.h"

/* Where one tile lies in the product, [row, end) x [column, column + columns), and its number among
 * those of this call. */
typedef struct tile {
    int64_t number;
    int64_t row, end, column, columns;
} tile;

/* All tiles of a call, and how far one has gone over them. */
typedef struct tiles {
    const hpi_fused_run *run;
    int64_t rows, columns; /* of a tile */
    bool is_joined;        /* tiles are cut of all rows, not of blocks */
    int64_t number, round, owner, column;
} tiles;

static tiles tiles_of(const hpi_fused_run *run) {
    tiles t = {.run = run};
    hpi_fused_tile(run, &t.rows, &t.columns);
    t.is_joined = run->m / run->n < t.rows;
    return t;
}

/* Owners of a round: blocks, or all rows as one. */
static int64_t n_owners(const tiles *t) {
    return t->is_joined ? 1 : t->run->n;
}
static int64_t owner_begin(const tiles *t, int64_t owner) {
    return t->is_joined ? 0 : hpi_rows_before(t->run, (int)owner);
}
static int64_t owner_rows(const tiles *t, int64_t owner) {
    return t->is_joined ? t->run->m : t->run->args->rows[owner];
}

static int64_t most_rows(const tiles *t) {
    int64_t most = 0;
    for (int64_t i = 0; i < n_owners(t); i++)
        if (owner_rows(t, i) > most)
            most = owner_rows(t, i);
    return most;
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Go on to the next owner, or the next round. */
static void next_owner(tiles *t) {
    t->column = 0;
    if (++t->owner == n_owners(t)) {
        t->owner = 0;
        t->round++;
    }
}

/* The next tile; false: there is none. */
static bool next_tile(tiles *t, tile *out) {
    const int64_t most = most_rows(t), n = t->run->args->n;
    for (; n > 0 && t->round * t->rows < most; next_owner(t)) {
        const int64_t at = t->round * t->rows, rows = owner_rows(t, t->owner);
        if (at >= rows || t->column >= n)
            continue;
        const int64_t begin = owner_begin(t, t->owner);
        *out = (tile){t->number++, begin + at, begin + smaller(at + t->rows, rows), t->column,
                      smaller(t->columns, n - t->column)};
        t->column += t->columns;
        return true;
    }
    return false;
}

/* ---- making ---- */

static float *slot_at(unsigned char *slots, uint64_t number) {
    return (float *)(void *)(slots + number % HPI_TILE_SLOTS * HPI_TILE_BYTES);
}

static hp_status multiply(const hpi_fused_run *run, const tile *t, float *slot) {
    const hp_fused_args *a = run->args;
    hp_matmul_args p = HP_MATMUL_ARGS_INIT;
    p.m = t->end - t->row;
    p.n = t->columns;
    p.k = a->k;
    p.dtype = a->dtype;
    p.transpose_b = a->transpose_b;
    p.a = (const unsigned char *)a->a + (uint64_t)(t->row * a->lda) * run->element;
    p.lda = a->lda;
    p.b = (const unsigned char *)a->b +
          (uint64_t)(a->transpose_b ? t->column * a->ldb : t->column) * run->element;
    p.ldb = a->ldb;
    p.c = slot;
    p.ldc = t->columns;
    return hp_matmul_run(a->matmul, &p);
}

/* In a group of one there is nothing to add. */
static hp_status multiply_alone(const hpi_fused_run *run) {
    const hp_fused_args *a = run->args;
    hp_matmul_args p = HP_MATMUL_ARGS_INIT;
    p.m = run->m;
    p.n = a->n;
    p.k = a->k;
    p.dtype = a->dtype;
    p.out_dtype = a->out_dtype;
    p.transpose_b = a->transpose_b;
    p.accumulate = a->accumulate;
    p.a = a->a;
    p.lda = a->lda;
    p.b = a->b;
    p.ldb = a->ldb;
    p.c = a->c;
    p.ldc = a->ldc;
    return hp_matmul_run(a->matmul, &p);
}

/* ---- adding ---- */

/* This rank's sums, on their way: tiles before `next` are added, or are not of its rows. */
typedef struct adder {
    tiles tiles;
    tile next;
    bool has_next;
    int64_t begin, end; /* this rank's rows */
} adder;

static bool is_mine(const adder *a, const tile *t) {
    return t->row < a->end && t->end > a->begin;
}

/* In slot 0, which is warm: the numbers between are left out. */
static uint64_t next_call_begins(uint64_t n_tiles) {
    return hpi_align_up(n_tiles, HPI_TILE_SLOTS);
}

/* Who makes tiles may overwrite those before the next one that this rank adds. */
static void adder_advance(hpi_fused_run *run, adder *a) {
    do
        a->has_next = next_tile(&a->tiles, &a->next);
    while (a->has_next && !is_mine(a, &a->next));
    const uint64_t before = run->state->n_tiles;
    const uint64_t added = a->has_next ? before + (uint64_t)a->next.number
                                       : next_call_begins(before + (uint64_t)a->tiles.number);
    hpi_fused_post(run, &run->state->shared[run->rank]->added.value, added);
}

static adder adder_begin(hpi_fused_run *run) {
    adder a = {.tiles = tiles_of(run),
               .begin = hpi_rows_before(run, run->rank),
               .end = hpi_rows_before(run, run->rank + 1)};
    adder_advance(run, &a);
    return a;
}

/* n sums to row `row` of c, from column `column` on. */
static hp_status store(const hpi_fused_run *run, float *sums, int64_t row, int64_t column,
                       uint64_t n) {
    const hp_fused_args *a = run->args;
    const uint64_t at = (uint64_t)(row * a->ldc + column);
    void *c = (unsigned char *)a->c + at * hp_dtype_size(a->out_dtype);
    if (a->accumulate) {
        float *before = sums + n;
        HP_TRY(hpi_convert(c, a->out_dtype, before, HP_FP32, n));
        for (uint64_t j = 0; j < n; j++)
            sums[j] += before[j];
    }
    return hpi_convert(sums, HP_FP32, c, a->out_dtype, n);
}

/* `rows` adjacent rows of a tile, which are adjacent in c as well where rows > 1. */
static hp_status add_rows(const hpi_fused_run *run, const tile *t, int64_t row, int64_t rows,
                          int64_t c_row) {
    hpi_fused_state *s = run->state;
    const hp_fused_args *a = run->args;
    const uint64_t n = (uint64_t)(rows * t->columns);
    for (int i = 0; i < run->n; i++) {
        unsigned char *slots = (unsigned char *)(uintptr_t)s->block[i];
        s->tile[i] = slot_at(slots, s->n_tiles + (uint64_t)t->number) + (row - t->row) * t->columns;
    }
    if (a->out_dtype == HP_FP32 && !a->accumulate) {
        hpi_sum_fp32(s->tile, run->n, (float *)a->c + c_row * a->ldc + t->column, n, s->scratch);
        return HP_OK;
    }
    hpi_sum_fp32(s->tile, run->n, s->sums.data, n, s->scratch);
    return store(run, s->sums.data, c_row, t->column, n);
}

/* The tile that is next, when all ranks have made it. */
static hp_status add_tile(hpi_fused_run *run, adder *a) {
    const tile *t = &a->next;
    const int64_t begin = t->row > a->begin ? t->row : a->begin, end = smaller(t->end, a->end);
    const bool is_whole =
        run->args->ldc == t->columns && run->args->out_dtype == HP_FP32 && !run->args->accumulate;
    const int64_t step = is_whole ? end - begin : 1;
    for (int64_t row = begin; row < end; row += step)
        HP_TRY(add_rows(run, t, row, step, row - a->begin));
    adder_advance(run, a);
    return HP_OK;
}

static const _Atomic uint64_t *made_by(const hpi_fused_run *run, int i) {
    return &run->state->shared[i]->made.value;
}

static bool is_made(const hpi_fused_run *run, const tile *t) {
    for (int i = 0; i < run->n; i++)
        if (!hpi_fused_is_there(made_by(run, i), run->state->n_tiles + (uint64_t)t->number + 1))
            return false;
    return true;
}

static hp_status await_made(hpi_fused_run *run, const tile *t) {
    const uint64_t number = run->state->n_tiles + (uint64_t)t->number;
    for (int k = 0; k < 2 * run->n; k++) {
        const int i = hpi_fused_other(run, k);
        if (i < 0)
            continue;
        HP_TRY(hpi_fused_hear(run, i));
        HP_TRY(hpi_fused_wait(run, made_by(run, i), i, number + 1));
    }
    return hpi_fused_hear(run, run->rank);
}

/* Add what is mine of the tiles before number `until`. */
static hp_status add_until(hpi_fused_run *run, adder *a, int64_t until) {
    while (a->has_next && a->next.number < until) {
        HP_TRY(await_made(run, &a->next));
        HP_TRY(add_tile(run, a));
    }
    return HP_OK;
}

static hp_status add_what_is_there(hpi_fused_run *run, adder *a) {
    while (a->has_next && is_made(run, &a->next))
        HP_TRY(add_until(run, a, a->next.number + 1));
    return HP_OK;
}

/* ---- both ---- */

/* The slot of this tile is free when nobody needs the one that lay there. */
static hp_status await_slot(hpi_fused_run *run, adder *a, const tile *t) {
    const hpi_fused_state *s = run->state;
    const uint64_t number = s->n_tiles + (uint64_t)t->number;
    HP_TRY(add_until(run, a, t->number + 1 - HPI_TILE_SLOTS));
    for (int k = 0; k < 2 * run->n && number >= HPI_TILE_SLOTS; k++) {
        const int i = hpi_fused_other(run, k);
        if (i >= 0)
            HP_TRY(hpi_fused_wait(run, &s->shared[i]->added.value, i, number + 1 - HPI_TILE_SLOTS));
    }
    return HP_OK;
}

static hp_status make_tile(hpi_fused_run *run, adder *a, const tile *t) {
    hpi_fused_state *s = run->state;
    const uint64_t number = s->n_tiles + (uint64_t)t->number;
    HP_TRY(await_slot(run, a, t));
    HP_TRY(multiply(run, t, slot_at(hpi_outbox_memory(s->slots), number)));
    hpi_fused_post(run, &s->shared[run->rank]->made.value, number + 1);
    return add_what_is_there(run, a);
}

hp_status hpi_fused_run_scatter(hpi_fused_run *run) {
    hpi_fused_state *s = run->state;
    tiles all = tiles_of(run);
    tile t;
    if (run->n == 1)
        return multiply_alone(run);
    s->n_tiles = next_call_begins(s->n_tiles);
    HP_TRY(hpi_fused_reserve(&s->sums, 2 * (uint64_t)all.columns * sizeof(float)));
    HP_TRY(hpi_fused_say(run));
    adder a = adder_begin(run);
    while (next_tile(&all, &t))
        HP_TRY(make_tile(run, &a, &t));
    HP_TRY(add_until(run, &a, all.number));
    HP_TRY(hpi_fused_hear_all(run, 0, run->n));
    s->n_tiles += (uint64_t)all.number;
    return hpi_group_listen(run->group, run->name);
}

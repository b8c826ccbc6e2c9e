/* SPDX-License-Identifier: Apache-2.0
 *
 * gather.c - products of a matrix whose rows lie at the ranks.
 *
 *     rank 1 of 4, apart    [1]  [2]  [3]  [0]     its own first, then the others'
 *             or at once    [0 1 2 3]
 *
 * A piece of one rank is multiplied where that rank has its block; the blocks of all are copied
 * side by side first. Pieces of a product have rows of c of their own, so whichever is there is
 * next. Those of a weight gradient are added, in the order above, so that its bits do not hang on
 * who came when. Source of the order: Chang et al. 2024 (Flux), tiles of the own rank first.
 */
#include "inside.h"

/* Returns their number. */
static int cut(const hpi_fused_run *run) {
    hpi_fused_piece *pieces = run->state->pieces;
    if (!hpi_fused_is_apart(run)) {
        pieces[0] = (hpi_fused_piece){0, run->n, false};
        return 1;
    }
    for (int k = 0; k < run->n; k++) {
        const int i = (run->rank + k) % run->n;
        pieces[k] = (hpi_fused_piece){i, i + 1, false};
    }
    return run->n;
}

/* ---- copies ---- */

/* Where blocks are copied to: the caller's matrix, if it wants one. */
typedef struct target {
    unsigned char *data;
    uint64_t stride; /* elements */
    bool is_wanted;
} target;

static hp_status target_of(hpi_fused_run *run, target *out) {
    const hp_fused_args *a = run->args;
    if (a->gathered) {
        *out = (target){a->gathered, (uint64_t)a->ld_gathered, true};
        return HP_OK;
    }
    HP_TRY(hpi_fused_reserve(&run->state->gathered,
                             hpi_max(1, (uint64_t)run->m * (uint64_t)a->k * run->element)));
    *out = (target){run->state->gathered.data, (uint64_t)a->k, false};
    return HP_OK;
}

/* When rank i has come. From now on its block is the copy. */
static hp_status copy_block(hpi_fused_run *run, const target *t, int i) {
    hpi_fused_state *s = run->state;
    const hp_fused_args *a = run->args;
    unsigned char *to = t->data + (uint64_t)hpi_rows_before(run, i) * t->stride * run->element;
    HP_TRY(hpi_fused_hear(run, i));
    if (s->block[i] != to)
        hpi_fused_copy(to, t->stride * run->element, s->block[i], s->stride[i] * run->element,
                       (uint64_t)a->k * run->element, a->rows[i]);
    s->block[i] = to;
    s->stride[i] = t->stride;
    return HP_OK;
}

/* The own one first, while others come. */
static hp_status copy_blocks(hpi_fused_run *run, const target *t, int first, int end) {
    if (first <= run->rank && run->rank < end)
        HP_TRY(copy_block(run, t, run->rank));
    for (int k = 0; k < 2 * run->n; k++) {
        const int i = hpi_fused_other(run, k);
        if (i >= first && i < end)
            HP_TRY(copy_block(run, t, i));
    }
    return HP_OK;
}

/* ---- products ---- */

/* Rows [begin, begin + rows) of the gathered matrix, which lie at `block`. */
static hp_status multiply(const hpi_fused_run *run, const void *block, uint64_t stride,
                          int64_t begin, int64_t rows) {
    const hp_fused_args *a = run->args;
    hp_matmul_args p = HP_MATMUL_ARGS_INIT;
    p.m = rows;
    p.n = a->n;
    p.k = a->k;
    p.dtype = a->dtype;
    p.out_dtype = a->out_dtype;
    p.transpose_b = a->transpose_b;
    p.accumulate = a->accumulate;
    p.a = block;
    p.lda = (int64_t)stride;
    p.b = a->b;
    p.ldb = a->ldb;
    p.c = (unsigned char *)a->c + (uint64_t)(begin * a->ldc) * hp_dtype_size(a->out_dtype);
    p.ldc = a->ldc;
    return hp_matmul_run(a->matmul, &p);
}

/* The same rows of a weight gradient: all of c, to which the first piece need not add. */
static hp_status multiply_weights(const hpi_fused_run *run, const void *block, uint64_t stride,
                                  int64_t begin, int64_t rows, bool is_first) {
    const hp_fused_args *a = run->args;
    const void *local = (const unsigned char *)a->b + (uint64_t)(begin * a->ldb) * run->element;
    hp_matmul_args p = HP_MATMUL_ARGS_INIT;
    p.m = a->transpose_c ? a->n : a->k;
    p.n = a->transpose_c ? a->k : a->n;
    p.k = rows;
    p.dtype = a->dtype;
    p.out_dtype = a->out_dtype;
    p.transpose_a = 1;
    p.accumulate = a->accumulate || !is_first;
    p.a = a->transpose_c ? local : block;
    p.lda = a->transpose_c ? a->ldb : (int64_t)stride;
    p.b = a->transpose_c ? block : local;
    p.ldb = a->transpose_c ? (int64_t)stride : a->ldb;
    p.c = a->c;
    p.ldc = a->ldc;
    return hp_matmul_run(a->matmul, &p);
}

/* ---- pieces ---- */

static bool is_there(const hpi_fused_run *run, const hpi_fused_piece *p) {
    for (int i = p->first; i < p->end; i++)
        if (!hpi_fused_has_come(run, i))
            return false;
    return true;
}

/* The first that is there; else the first, to be waited for. */
static hpi_fused_piece *next_piece(const hpi_fused_run *run, int n_pieces) {
    hpi_fused_piece *pieces = run->state->pieces, *first = NULL;
    for (int i = 0; i < n_pieces; i++) {
        if (pieces[i].is_done)
            continue;
        if (!first)
            first = &pieces[i];
        if (run->what == HPI_GATHER_WEIGHTS || is_there(run, &pieces[i]))
            return &pieces[i];
    }
    return first;
}

/* Blocks of peers are not looked at any more. A member that gave up waiting for us, which it says
 * first, may have written what we read. */
static hp_status say_read(hpi_fused_run *run) {
    HP_TRY(hpi_group_listen(run->group, run->name));
    hpi_fused_post(run, &run->state->shared[run->rank]->read.value, run->seq);
    return HP_OK;
}

/* When the last of all comes, the others have a block left to multiply and this rank has all of
 * them: where ranks share cores they go first, which a scheduler would not give them. */
static hp_status give_way(hpi_fused_run *run) {
    if (hpi_world_can_spin(run->world))
        return HP_OK;
    for (int i = 0; i < run->n; i++)
        if (i != run->rank && hpi_world_is_beside(run->world, hp_group_world_rank(run->group, i)))
            HP_TRY(hpi_fused_wait(run, &run->state->shared[i]->read.value, i, run->seq));
    return HP_OK;
}

/* One piece; the last one says that all was read, as soon as it was. */
static hp_status run_piece(hpi_fused_run *run, const target *t, const hpi_fused_piece *p,
                           bool is_first, bool is_last) {
    const hpi_fused_state *s = run->state;
    const bool is_copied = t->is_wanted || p->end - p->first > 1;
    const int64_t begin = hpi_rows_before(run, p->first);
    const int64_t rows = hpi_rows_before(run, p->end) - begin;
    HP_TRY(is_copied ? copy_blocks(run, t, p->first, p->end) : hpi_fused_hear(run, p->first));
    if (is_last && is_copied)
        HP_TRY(say_read(run));
    const void *block = s->block[p->first];
    const uint64_t stride = rows > 0 && !is_copied ? s->stride[p->first] : hpi_max(t->stride, 1);
    HP_TRY(run->what == HPI_GATHER_WEIGHTS
               ? multiply_weights(run, block, stride, begin, rows, is_first)
               : multiply(run, block, stride, begin, rows));
    return is_last && !is_copied ? say_read(run) : HP_OK;
}

/* Peers may read the caller's block until they say that they have done with it; a copy is the
 * library's, and the next call that needs its place waits. */
static hp_status drain(hpi_fused_run *run) {
    const hpi_fused_state *s = run->state;
    for (int k = 0; k < 2 * run->n && s->staged_seq != run->seq; k++) {
        const int i = hpi_fused_other(run, k);
        if (i >= 0)
            HP_TRY(hpi_fused_wait(run, &s->shared[i]->read.value, i, run->seq));
    }
    return HP_OK;
}

hp_status hpi_fused_run_gather(hpi_fused_run *run) {
    target t;
    const int n_pieces = cut(run);
    HP_TRY(hpi_fused_say(run));
    HP_TRY(target_of(run, &t));
    const bool is_late = n_pieces > 1 && hpi_fused_is_late(run);
    if (is_late) {
        HP_TRY(copy_blocks(run, &t, 0, run->n));
        HP_TRY(say_read(run));
        HP_TRY(give_way(run));
    }
    for (int i = 0; i < n_pieces; i++) {
        hpi_fused_piece *p = next_piece(run, n_pieces);
        HP_TRY(run_piece(run, &t, p, i == 0, i == n_pieces - 1 && !is_late));
        p->is_done = true;
    }
    return drain(run);
}

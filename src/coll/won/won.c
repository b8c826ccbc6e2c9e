/* SPDX-License-Identifier: Apache-2.0
 *
 * won.c - the backward of max and min from its arguments to one of its three ways, won.h.
 *
 * Which way it is follows from what all ranks have said, and they have said the same: what would
 * differ without being told by a collective is compared when they first meet.
 */
#include "won.h"

#include "../staged/wire.h"

/* ---- made from the call ---- */

static bool overlap(const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes) {
    return a_bytes && b_bytes && (uintptr_t)a < (uintptr_t)b + b_bytes &&
           (uintptr_t)b < (uintptr_t)a + a_bytes;
}

/* `run` is the mirror's, which has the shape of the forward turned around. */
static hp_status check_forward(const hp_coll_backward_call *b, const hpi_run *run) {
    const hp_coll_call *f = b->forward;
    const uint64_t in_bytes = run->out_bytes, out_bytes = run->in_bytes;
    const char *name = hpi_collective_name(f->what), *op = hpi_reduce_name(f->op);
    if ((in_bytes && !f->in) || (out_bytes && !f->out))
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "%s: expected in and out of the forward call for the backward of %s, given "
                        "NULL",
                        name, op);
    if (overlap(f->in, in_bytes, f->out, out_bytes))
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "%s: expected the input as it was before the forward call for the backward "
                        "of %s, given one in place, which the results have overwritten",
                        name, op);
    if (overlap(b->in_grad, in_bytes, f->in, in_bytes) ||
        overlap(b->in_grad, in_bytes, f->out, out_bytes))
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "%s: expected in_grad to be apart from in and out of the forward call for "
                        "the backward of %s, given one that overlaps them",
                        name, op);
    return HP_OK;
}

/* Once more rounded, with other scales, a result is nobody's contribution. */
static hp_status choose_wire(const hp_coll_call *f, hp_wire *out_wire) {
    const char *name = hpi_collective_name(f->what);
    HP_TRY(hpi_wire_choose(f->group, f->dtype, f->wire, name, out_wire));
    if (f->what == HP_ALL_REDUCE && f->wire_result &&
        (*out_wire == HP_WIRE_FP8_E4M3 || *out_wire == HP_WIRE_FP8_E5M2))
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "%s: expected no wire_result with fp8 for the backward of %s, whose "
                        "results no rank has contributed",
                        name, hpi_reduce_name(f->op));
    return HP_OK;
}

static void lay_parts(hpi_won *w, const hp_coll_call *f) {
    const bool is_v = hpi_is_v(f->what);
    uint64_t *counts = w->numbers, *begins = counts + w->n_parts;
    for (int i = 0; i < w->n_parts; i++) {
        counts[i] = is_v ? f->in_counts[i] : f->count;
        begins[i] = is_v && f->in_offsets ? f->in_offsets[i] : w->total;
        w->total += counts[i];
        w->longest = hpi_max(w->longest, counts[i]);
    }
}

static uint64_t bytes_of(int n_parts, int n) {
    return sizeof(hpi_won) + 2 * (uint64_t)(n_parts + n) * sizeof(uint64_t);
}

/* `w` has the numbers behind it, for as many parts. */
static void fill(const hp_coll_backward_call *b, const hpi_run *run, hp_wire wire, int n_parts,
                 hpi_won *w) {
    const hp_coll_call *f = b->forward;
    *w = (hpi_won){.bytes = bytes_of(n_parts, run->n),
                   .group = f->group,
                   .name = hpi_collective_name(f->what),
                   .in = f->in,
                   .out = f->out,
                   .out_grad = b->out_grad,
                   .in_grad = b->in_grad,
                   .sum = run->c,
                   .what = f->what,
                   .dtype = f->dtype,
                   .op = f->op,
                   .wire = wire,
                   .is_summed = f->what == HP_ALL_REDUCE && b->mode == HP_BACKWARD_SUM,
                   .is_on_stream = b->stream != NULL,
                   .rank = run->rank,
                   .n = run->n,
                   .n_parts = n_parts,
                   .size = run->in_size};
    lay_parts(w, f);
}

/* ---- what ranks must agree on ---- */

enum { DTYPE_AT = 4, OP_AT = 8, SUMMED_AT = 10, WIRE_AT = 11 };

hpi_won_said hpi_won_say(const hpi_won *w) {
    const uint64_t *counts = hpi_won_counts(w);
    return (hpi_won_said){
        (uint64_t)w->what | (uint64_t)w->dtype << DTYPE_AT | (uint64_t)w->op << OP_AT |
            (uint64_t)w->is_summed << SUMMED_AT | (uint64_t)w->wire << WIRE_AT,
        hpi_is_v(w->what) ? hpi_checksum(counts, (uint64_t)w->n * sizeof *counts) : counts[0]};
}

static void describe(const hpi_won_said *said, char *out_text, size_t size) {
    hpi_sentence out = {out_text, size, 0};
    const hp_collective what = (hp_collective)(said->call & 15);
    hpi_sentence_add(&out, "that of %s by %s over", hpi_collective_name(what),
                     hpi_reduce_name((hp_reduce)(said->call >> OP_AT & 3)));
    if (!hpi_is_v(what))
        hpi_sentence_add(&out, " %llu", (unsigned long long)said->count);
    hpi_sentence_add(&out, " %s", hp_dtype_name((hp_dtype)(said->call >> DTYPE_AT & 15)));
    if (what == HP_ALL_REDUCE)
        hpi_sentence_add(&out, ", mode %s", said->call >> SUMMED_AT & 1 ? "SUM" : "IDENTITY");
    if (said->call >> WIRE_AT > HP_WIRE_FULL)
        hpi_sentence_add(&out, ", over %s", hpi_wire_name((hp_wire)(said->call >> WIRE_AT)));
}

/* Rank i has said something else. */
static hp_status differ(const hpi_won *w, int i, const hpi_won_said *mine,
                        const hpi_won_said *theirs) {
    char our_text[120], their_text[120];
    describe(mine, our_text, sizeof our_text);
    describe(theirs, their_text, sizeof their_text);
    const int our_world = hp_group_world_rank(w->group, w->rank);
    const int their_world = hp_group_world_rank(w->group, i);
    const hp_status status = HPI_FAIL_RANK(
        HP_ERR_MISMATCH, their_world,
        "expected one backward of all ranks of %s, rank %d (world %d) calls %s, rank %d (world %d) "
        "%s%s",
        hpi_group_name(w->group), i, their_world, their_text, w->rank, our_world, our_text,
        mine->call == theirs->call && hpi_is_v(w->what) ? ", of other counts" : "");
    hpi_group_fail(w->group);
    return status;
}

hp_status hpi_won_gather(const hpi_won *w, const hpi_coll *c) {
    const unsigned char *said = c->out;
    const hpi_won_said mine = hpi_won_say(w);
    HP_TRY(hpi_coll_run(w->group, HP_ALL_GATHER, c, true, NULL));
    for (int i = 0; i < w->n; i++) {
        hpi_won_said theirs;
        memcpy(&theirs, said, sizeof theirs);
        if (mine.call != theirs.call || mine.count != theirs.count)
            return differ(w, i, &mine, &theirs);
        said += c->count * hp_dtype_size(c->dtype);
    }
    return HP_OK;
}

static hp_status meet(hpi_won *w) {
    const hpi_won_said mine = hpi_won_say(w);
    const hpi_coll c = {.in = &mine,
                        .out = w->numbers + 2 * w->n_parts,
                        .count = sizeof mine / sizeof(uint64_t),
                        .blocks = 1,
                        .dtype = HP_INT64,
                        .out_dtype = HP_INT64};
    return hpi_won_gather(w, &c);
}

/* ---- what the ways share ---- */

void hpi_won_sum(const hpi_won *w, const void *const *in, uint64_t count, unsigned char *scratch,
                 void *out) {
    const hpi_reduction r = {.kernel = hpi_kernel_of(w->dtype),
                             .dtype = w->dtype,
                             .out_dtype = w->dtype,
                             .op = HP_SUM,
                             .n = w->n,
                             .scratch = scratch};
    hpi_reduce_into(&r, in, &out, 1, count, false);
}

/* ---- its ways ---- */

/* Behind the gradients' sum an all_reduce tells what it is with its bits. */
static hp_status run_unplaced(hpi_won *w, bool have_met) {
    if (w->what == HP_ALL_REDUCE)
        return hpi_won_run_spans(w);
    if (!have_met)
        HP_TRY(meet(w));
    return w->wire == HP_WIRE_FULL && !hpi_group_nodes(w->group) ? hpi_won_run_staged(w)
                                                                 : hpi_won_run_spans(w);
}

static hp_status run(hpi_won *w) {
    const bool are_gradients_equal = w->what == HP_ALL_REDUCE && !w->is_summed;
    bool is_done = false;
    if (are_gradients_equal)
        return hpi_won_run_spans(w);
    if (hpi_won_is_small(w))
        return hpi_won_run_small(w);
    const bool is_large = hpi_won_may_be_placed(w);
    if (is_large)
        HP_TRY(hpi_won_run_placed(w, &is_done));
    return is_done ? HP_OK : run_unplaced(w, is_large);
}

static hp_status run_won(void *won) {
    hpi_won *w = won;
    if (w->is_on_stream)
        hpi_thread_never_spins();
    return run(w);
}

/* ---- the door ---- */

static hp_status start(const hp_coll_backward_call *b, hpi_won *w) {
    return b->stream ? hpi_stream_push(b->stream, run_won, w, w->bytes) : run_won(w);
}

hp_status hpi_won_start(const hp_coll_backward_call *b, const hp_coll_call *mirror) {
    _Alignas(hpi_won) unsigned char few[1024]; /* of few ranks */
    const hp_coll_call *f = b->forward;
    hp_wire wire;
    hpi_run run;
    HP_TRY(hpi_coll_check_call(mirror, &run));
    HP_TRY(choose_wire(f, &wire));
    HP_TRY(check_forward(b, &run));
    const int n_parts = f->what == HP_ALL_REDUCE ? 1 : run.n;
    const uint64_t bytes = bytes_of(n_parts, run.n);
    hpi_won *w = bytes <= sizeof few ? (void *)few : hpi_alloc(1, bytes);
    if (!w)
        return HP_ERR_MEMORY;
    fill(b, &run, wire, n_parts, w);
    const hp_status status = start(b, w);
    if ((unsigned char *)w != few)
        hpi_free(w);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * reduce.c - reductions that read every peer's input where it lies.
 *
 *     rank            0      1      2      3
 *     inputs         [abcd] [efgh] [ijkl] [mnop]
 *     scatter_reduce  aeim   bfjn   cgko   dhlp      each reads its own column
 *     push           [all]  [all]  [all]  [all]      each stores its column into every output
 *     copied         [abcd] [efgh] [ijkl] [mnop]     every output is its rank's input first, but
 *                    [all]  [all]  [all]  [all]      its own column; then as push, in place
 *
 * A page of each input at a time. In place works, because nobody but the owner touches a slice
 * anywhere, and it reads an element before it stores it. The order of additions is the tree over
 * ranks, see kernels.c; it depends on nothing else.
 */
#include "../inside.h"

enum { PAGE = 4096 };

/* A line of the page after next, so that its address is known by then: see copy.c. */
static void look_ahead(const void *page, uint64_t left) {
    if (left > 2 * PAGE)
        __builtin_prefetch((const unsigned char *)page + 2 * PAGE);
}

/* Over a wire it rounds what it reads: see rounded.c. */
static const hpi_kernel *kernel_of(const hpi_run *run) {
    _Static_assert((int)HP_WIRE_FP8_E5M2 - HP_WIRE_FP16 == HPI_BY_E5M2, "hp_wire and hpi_rounding");
    if (run->wire == HP_WIRE_FULL)
        return hpi_kernel_of(run->c.dtype);
    return hpi_kernel_rounding((hpi_rounding)(run->wire - HP_WIRE_FP16));
}

hpi_reduction hpi_reduction_of(const hpi_run *run) {
    return (hpi_reduction){.kernel = kernel_of(run),
                           .dtype = run->c.dtype,
                           .out_dtype = run->c.out_dtype,
                           .op = run->c.op,
                           .n = run->n,
                           .scratch = run->state->scratch};
}

/* How several outputs get their sums: all of them at once; our own, page by page, and copies of it,
 * which go past the caches or not; all at once past the caches. */
typedef enum way { AT_ONCE, COPIED, COPIED_PAST, PAST } way;
static bool is_copied(way w) {
    return w == COPIED || w == COPIED_PAST;
}

/* What is reduced and where to. */
typedef struct span {
    uint64_t in_offset, out_offset, count; /* bytes, bytes, elements */
    unsigned char *const *out;
    int n_out;
    way way;
} span;

/* Elements [at, at + n) of our own output to the others. */
static void copy_on(const hpi_run *run, const span *s, uint64_t at, uint64_t n) {
    const uint64_t offset = s->out_offset + at * run->out_size;
    for (int k = 1; k < s->n_out; k++)
        (s->way == COPIED ? hpi_copy : hpi_copy_past)(s->out[(run->rank + k) % s->n_out] + offset,
                                                      s->out[run->rank] + offset,
                                                      n * run->out_size);
}

/* Elements [at, end). */
static void reduce(const hpi_run *run, const span *s, uint64_t at, uint64_t end) {
    const hpi_reduction r = hpi_reduction_of(run);
    const uint64_t step = PAGE / run->in_size;
    const void **in = run->state->chunk;
    void *to[HPI_MOST_INPUTS];
    for (; at < end; at += step) {
        const uint64_t n = hpi_min(step, end - at);
        for (int i = 0; i < run->n; i++) {
            in[i] = run->state->in[i] + s->in_offset + at * run->in_size;
            look_ahead(in[i], (s->count - at) * run->in_size);
        }
        for (int k = 0; k < s->n_out; k++) /* our own first: the others start elsewhere */
            to[k] = s->out[(run->rank + k) % s->n_out] + s->out_offset + at * run->out_size;
        hpi_reduce_into(&r, in, to, is_copied(s->way) ? 1 : s->n_out, n, s->way == PAST);
        if (is_copied(s->way))
            copy_on(run, s, at, n);
    }
}

static void hand_back(const hpi_run *run, const span *s, uint64_t at, uint64_t n,
                      const hpi_reading *reading) {
    for (int i = 0; i < run->n; i++)
        if (i != run->rank)
            hpi_hand_back(reading, run->state->in[i] + s->in_offset + at * run->in_size,
                          n * run->in_size);
}

/* Inputs of which nobody else reads these pieces. Outputs of peers from afar are written past the
 * caches, for the reason in handback.c. */
static void reduce_alone(const hpi_run *run, const span *given, const hpi_reading *reading) {
    span s = *given;
    if (s.n_out > 1 && s.way != PAST && hpi_is_from_afar(reading))
        s.way = COPIED_PAST;
    for (uint64_t at = 0, n; at < s.count; at += n) {
        n = hpi_min(hpi_reading_step(reading) / run->in_size, s.count - at);
        reduce(run, &s, at, at + n);
        hand_back(run, &s, at, n, reading);
    }
}

/* Of elements [begin, begin + count) of every input: in place others write the rest. */
static hpi_reading reading_of(const hpi_run *run, uint64_t begin, uint64_t count) {
    const unsigned char *const *in = run->state->in;
    const uint64_t offset = begin * run->in_size;
    return hpi_reading_begin(run, in[run->rank] + offset, in[(run->rank + 1) % run->n] + offset,
                             count * run->in_size);
}

/* What an input has just brought is not written past the caches. What stays in caches is copied on:
 * a store that waits for a peer's line would hold up those to our own. */
static way way_of(const hpi_run *run) {
    if (run->is_in_place)
        return AT_ONCE;
    return hpi_passes_caches(run) ? PAST : COPIED;
}

void hpi_slice(const hpi_run *run, uint64_t count, int rank, uint64_t *out_begin,
               uint64_t *out_end) {
    const uint64_t line = run->wire == HP_WIRE_FULL ? 64 / run->in_size : HPI_FP8_BLOCK;
    const uint64_t share = hpi_align_up(hpi_ceil_div(count, (uint64_t)run->n), line);
    *out_begin = hpi_min((uint64_t)rank * share, count);
    *out_end = hpi_min(*out_begin + share, count);
}

hp_status hpi_scatter_reduce(hpi_run *run) {
    const uint64_t row = (uint64_t)run->n * run->c.count; /* one block of equal parts */
    unsigned char *out = run->c.out;
    uint64_t begin, count;
    hpi_part_elements(run, run->rank, &begin, &count);
    const hpi_reading reading = reading_of(run, begin, count);
    for (uint64_t b = 0; b < run->c.blocks; b++) {
        const span s = {(b * row + begin) * run->in_size,
                        b * count * run->out_size,
                        count,
                        &out,
                        1,
                        way_of(run)};
        reduce_alone(run, &s, &reading);
    }
    return HP_OK;
}

/* ---- over copies ----
 *
 * A line that a peer has read and its owner writes anew costs the owner 7 ns where they are near
 * and 27 where they are far (AMD); a line that the peer has written as well, 2 and 4: it is the
 * peer's alone then, and comes back as any line does. In place every line that is read is written,
 * so a sum that is not in place costs less when each rank copies its input to its output first. */

/* Who shares this rank's core shares its caches, and reads its input where it lies. A bit for each
 * rank, all of them where there are too many. */
static uint64_t copied_for(const hpi_run *run) {
    const hp_world *world = hp_group_world(run->group);
    uint64_t ranks = UINT64_MAX;
    if (run->c.in == run->c.out)
        return 0;
    for (int i = 0; i < run->n && run->n <= 64 && !hpi_world_can_spin(world); i++)
        if (hpi_world_is_beside(world, hp_group_world_rank(run->group, i)))
            ranks &= ~(UINT64_C(1) << i);
    return ranks;
}

static bool is_among(uint64_t ranks, int rank) {
    return ranks >> rank % 64 & 1;
}

/* This rank's slice is read by itself alone. */
static void copy_to_output(hpi_run *run, uint64_t ranks) {
    run->state->copied_bytes = 0;
    for (int i = 0; i < run->n; i++) {
        uint64_t begin, end;
        if (i == run->rank || !is_among(ranks, i))
            continue;
        hpi_slice(run, run->c.count, i, &begin, &end);
        hpi_copy((unsigned char *)run->c.out + begin * run->out_size,
                 (const unsigned char *)run->c.in + begin * run->in_size,
                 (end - begin) * run->in_size);
        run->state->copied_bytes += (end - begin) * run->in_size;
    }
}

hp_status hpi_reduce_copied(hpi_run *run) {
    hpi_coll_state *s = run->state;
    const uint64_t ranks = copied_for(run);
    uint64_t begin, end;
    copy_to_output(run, ranks);
    HP_TRY(hpi_tick_tell(run, ranks));
    for (int i = 0; i < run->n; i++)
        if (i != run->rank && is_among(hpi_tick_told(run, i), run->rank))
            s->in[i] = s->out[i];
    hpi_slice(run, run->c.count, run->rank, &begin, &end);
    const span all = {
        begin * run->in_size, begin * run->out_size, end - begin, s->out, run->n, AT_ONCE};
    reduce(run, &all, 0, all.count);
    return HP_OK;
}

hp_status hpi_reduce_push(hpi_run *run) {
    uint64_t begin, end;
    hpi_slice(run, run->c.count, run->rank, &begin, &end);
    const hpi_reading reading = reading_of(run, begin, end - begin);
    const span s = {
        begin * run->in_size, begin * run->out_size, end - begin, run->state->out, run->n,
        way_of(run)};
    if (run->is_in_place) /* what was read is written as well, and stays here */
        reduce(run, &s, 0, s.count);
    else
        reduce_alone(run, &s, &reading);
    return HP_OK;
}

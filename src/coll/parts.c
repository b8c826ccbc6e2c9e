/* SPDX-License-Identifier: Apache-2.0
 *
 * parts.c - an operand that is cut into a part for each rank.
 *
 *     equal parts, in blocks    block 0: [part 0 | part 1 | ... ]   block 1: [part 0 | part 1 | ...
 *     parts of any size         [part 0 |..| part 1 | ... ], in one block, gaps as the caller likes
 *
 * Algorithms see neither: they ask for bytes [begin, end) of a part, its blocks taken as adjacent.
 */
#include "inside.h"

/* ---- checking a v form ---- */

/* From the begin of the first part to the end of the last; empty parts lie nowhere. */
typedef struct extent {
    uint64_t begin, end, total;
} extent;

/* False when the elements cannot be counted in 64 bits. */
static bool extent_of(const uint64_t *counts, const uint64_t *offsets, int n, extent *out_extent) {
    extent e = {UINT64_MAX, 0, 0};
    for (int i = 0; i < n; i++) {
        const uint64_t begin = offsets ? offsets[i] : e.total;
        uint64_t end;
        if (__builtin_add_overflow(begin, counts[i], &end) ||
            __builtin_add_overflow(e.total, counts[i], &e.total))
            return false;
        if (counts[i]) {
            e.begin = hpi_min(e.begin, begin);
            e.end = hpi_max(e.end, end);
        }
    }
    e.begin = hpi_min(e.begin, e.end);
    *out_extent = e;
    return true;
}

/* The same of an operand that is this rank's part alone. */
static extent whole(uint64_t count) {
    return (extent){0, count, count};
}

static hp_status check_counts(const hpi_run *run, const uint64_t *counts, const char *name) {
    if (!counts)
        return HPI_FAIL(HP_ERR_ARGUMENT, "%s: expected %s of %d ranks, given NULL", run->name, name,
                        run->n);
    if (run->what != HP_ALL_TO_ALL_V && run->c.count != counts[run->rank])
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "%s: expected count to be this rank's own, %s[%d] = %llu, given %llu",
                        run->name, name, run->rank, (unsigned long long)counts[run->rank],
                        (unsigned long long)run->c.count);
    return HP_OK;
}

static hp_status fail_size(const hpi_run *run, const char *name) {
    return HPI_FAIL(HP_ERR_ARGUMENT,
                    "%s: expected %s and offsets of less than 2^63 bytes of %s in all, given more",
                    run->name, name, hp_dtype_name(run->c.dtype));
}

static uint64_t own_begin(const uint64_t *counts, const uint64_t *offsets, int rank) {
    uint64_t begin = 0;
    for (int i = 0; !offsets && i < rank; i++)
        begin += counts[i];
    return offsets ? offsets[rank] : begin;
}

/* The wider of both sizes, as for equal parts: a sum type must fit where its dtype does. */
static bool fits(const hpi_run *run, const extent *e) {
    uint64_t bytes;
    return hpi_multiply(hpi_max(e->end, e->total), hpi_max(run->in_size, run->out_size), &bytes) &&
           bytes <= INT64_MAX;
}

hp_status hpi_parts_check(hpi_run *run) {
    const hpi_coll *c = &run->c;
    const bool cuts_in = run->what != HP_ALL_GATHER_V, cuts_out = run->what != HP_REDUCE_SCATTER_V;
    extent in = whole(c->count), out = whole(c->count);
    if (cuts_in)
        HP_TRY(check_counts(run, c->in_counts, "in_counts"));
    if (cuts_out)
        HP_TRY(check_counts(run, c->out_counts, "out_counts"));
    if (cuts_in && (!extent_of(c->in_counts, c->in_offsets, run->n, &in) || !fits(run, &in)))
        return fail_size(run, "in_counts");
    if (cuts_out && (!extent_of(c->out_counts, c->out_offsets, run->n, &out) || !fits(run, &out)))
        return fail_size(run, "out_counts");
    if ((in.total && !c->in) || (out.total && !c->out))
        return HPI_FAIL(HP_ERR_ARGUMENT, "%s: expected a buffer for %llu elements, given NULL",
                        run->name, (unsigned long long)(c->in ? out.total : in.total));
    run->in_bytes = in.end * run->in_size;
    run->out_bytes = out.end * run->out_size;
    run->in_skip_bytes = in.begin * run->in_size;
    run->out_skip_bytes = out.begin * run->out_size;
    run->own_begin = cuts_in ? own_begin(c->in_counts, c->in_offsets, run->rank)
                             : own_begin(c->out_counts, c->out_offsets, run->rank);
    run->is_empty = run->what != HP_ALL_TO_ALL_V && (cuts_in ? in.total : out.total) == 0;
    return HP_OK;
}

bool hpi_parts_own_is_apart(const hpi_run *run) {
    const bool is_gather = run->what == HP_ALL_GATHER_V;
    const uint64_t *counts = is_gather ? run->c.out_counts : run->c.in_counts;
    const uint64_t *offsets = is_gather ? run->c.out_offsets : run->c.in_offsets;
    const uint64_t begin = run->own_begin, end = begin + counts[run->rank];
    for (int i = 0; offsets && i < run->n; i++)
        if (i != run->rank && counts[i] && offsets[i] < end && begin < offsets[i] + counts[i])
            return false;
    return true;
}

/* ---- where the parts lie ---- */

/* Where each part begins: as the caller says, else packed. */
static hpi_parts lay(const uint64_t *counts, const uint64_t *offsets, int n, uint64_t *packed) {
    uint64_t begin = 0;
    for (int i = 0; !offsets && i < n; i++) {
        packed[i] = begin;
        begin += counts[i];
    }
    return (hpi_parts){counts, offsets ? offsets : packed};
}

void hpi_parts_lay(hpi_run *run) {
    const hpi_coll *c = &run->c;
    uint64_t *const *packed = run->state->packed;
    if (run->what == HP_REDUCE_SCATTER_V || run->what == HP_ALL_TO_ALL_V)
        run->in_parts = lay(c->in_counts, c->in_offsets, run->n, packed[0]);
    if (run->what == HP_ALL_GATHER_V || run->what == HP_ALL_TO_ALL_V)
        run->out_parts = lay(c->out_counts, c->out_offsets, run->n, packed[1]);
}

/* The operand that is cut and agreed on: a gather's output, a reduce-scatter's input. */
static const hpi_parts *parts_of(const hpi_run *run) {
    return run->what == HP_ALL_GATHER_V ? &run->out_parts : &run->in_parts;
}

void hpi_part_elements(const hpi_run *run, int i, uint64_t *out_begin, uint64_t *out_count) {
    const hpi_parts *parts = parts_of(run);
    *out_begin = parts->counts ? parts->begins[i] : (uint64_t)i * run->c.count;
    *out_count = parts->counts ? parts->counts[i] : run->c.count;
}

uint64_t hpi_part_total(const hpi_run *run, int i) {
    const hpi_parts *parts = parts_of(run);
    return parts->counts ? parts->counts[i] : run->c.count * run->c.blocks;
}

uint64_t hpi_part_longest(const hpi_run *run) {
    if (!parts_of(run)->counts)
        return hpi_part_total(run, 0);
    uint64_t longest = 0;
    for (int i = 0; i < run->n; i++)
        longest = hpi_max(longest, hpi_part_total(run, i));
    return longest;
}

uint64_t hpi_part_piece(const hpi_run *run, int part, uint64_t at, uint64_t end,
                        uint64_t *out_offset) {
    uint64_t first, count;
    hpi_part_elements(run, part, &first, &count);
    const uint64_t row = count * run->in_size; /* the part in one block */
    const uint64_t block = at / row, within = at % row;
    *out_offset = (block * (uint64_t)run->n * run->c.count + first) * run->in_size + within;
    return hpi_min(row - within, end - at);
}

void hpi_part_scatter(const hpi_run *run, int part, const void *plain, uint64_t begin,
                      uint64_t end) {
    const unsigned char *from = plain;
    uint64_t offset;
    for (uint64_t at = begin, bytes; at < end; at += bytes) {
        bytes = hpi_part_piece(run, part, at, end, &offset);
        hpi_copy((unsigned char *)run->c.out + offset, from + (at - begin), bytes);
    }
}

void hpi_part_collect(const hpi_run *run, int part, void *plain, uint64_t begin, uint64_t end) {
    unsigned char *to = plain;
    uint64_t offset;
    for (uint64_t at = begin, bytes; at < end; at += bytes) {
        bytes = hpi_part_piece(run, part, at, end, &offset);
        hpi_copy(to + (at - begin), (const unsigned char *)run->c.in + offset, bytes);
    }
}

/* ---- of an all-to-all ---- */

static hpi_piece piece_of(const hpi_run *run, const hpi_parts *parts, int i) {
    const uint64_t begin = parts->counts ? parts->begins[i] : (uint64_t)i * run->c.count;
    const uint64_t count = parts->counts ? parts->counts[i] : run->c.count;
    return (hpi_piece){begin * run->in_size, count * run->in_size};
}

hpi_piece hpi_sent_to(const hpi_run *run, int j) {
    return piece_of(run, &run->in_parts, j);
}

hpi_piece hpi_got_of(const hpi_run *run, int i) {
    return piece_of(run, &run->out_parts, i);
}

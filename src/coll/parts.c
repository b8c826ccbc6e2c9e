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

/* The bytes from `at` on that are adjacent in the operand, and where they lie in it. */
static uint64_t piece_at(const hpi_run *run, int part, uint64_t at, uint64_t end,
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
        bytes = piece_at(run, part, at, end, &offset);
        memcpy((unsigned char *)run->c.out + offset, from + (at - begin), bytes);
    }
}

void hpi_part_collect(const hpi_run *run, int part, void *plain, uint64_t begin, uint64_t end) {
    unsigned char *to = plain;
    uint64_t offset;
    for (uint64_t at = begin, bytes; at < end; at += bytes) {
        bytes = piece_at(run, part, at, end, &offset);
        memcpy(to + (at - begin), (const unsigned char *)run->c.in + offset, bytes);
    }
}

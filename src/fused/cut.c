/* SPDX-License-Identifier: Apache-2.0
 *
 * cut.c - how a product is cut, by its shape alone.
 *
 * Every further call of an engine has a price: b is packed anew, which takes as long as some rows;
 * in a weight gradient the result is read and written once more. Blocks that are multiplied one by
 * one need not be copied, and can begin early. So they are where the price is below the copies of
 * the peers' blocks and a hundredth of the whole; else all are gathered and multiplied at once, as
 * in the separate form. Groups of blocks pay both, the price and copies. Measured with oneDNN 2.6
 * on an EPYC 9004: packing takes 0.1 ns an element of b, a product 2 m n k / 115 ns (fp32), a copy
 * 0.4 ns an element.
 */
#include "inside.h"

/* What a further call costs, in rows of the product. Engines widen fp16, b once a call. */
static double price(const hpi_fused_run *run) {
    const double widened = run->args->dtype == HP_FP16 ? 40 : 0;
    return widened + (run->what == HPI_GATHER_WEIGHTS ? 30 : 6);
}

/* All in rows of the product. */
bool hpi_fused_is_apart(const hpi_fused_run *run) {
    const hp_fused_args *a = run->args;
    const double others = run->n - 1, early = 0.01 * (double)run->m;
    const double copies = a->gathered || a->n == 0 ? 0 : 16 * (double)run->m / (double)a->n;
    if (run->what == HPI_GATHER_WEIGHTS && a->out_dtype != HP_FP32)
        return false; /* the sum over blocks would be rounded for each of them */
    if (run->state->cut.apart)
        return run->state->cut.apart > 0;
    return others * price(run) <= early + copies * others / run->n;
}

/* Equal tiles of `size` elements, at most `most` each, but for the last. */
static int64_t equal_parts(int64_t size, int64_t most, int64_t step) {
    if (size <= most)
        return size > 0 ? size : 1;
    const int64_t n = (size + most - 1) / most;
    const int64_t part = (int64_t)hpi_align_up((uint64_t)((size + n - 1) / n), (uint64_t)step);
    return part < most ? part : most;
}

/* Of a block of each rank in turn, where blocks are long enough; else of all rows. */
void hpi_fused_tile(const hpi_fused_run *run, int64_t *out_rows, int64_t *out_columns) {
    enum { ROWS = 512, MOST_ROWS = 1024, ELEMENTS = HPI_TILE_BYTES / sizeof(float) };
    const hpi_fused_cut *forced = &run->state->cut;
    const int64_t block = run->m / run->n;
    int64_t rows = block >= ROWS ? ROWS : equal_parts(run->m, MOST_ROWS, 1);
    if (forced->tile_rows)
        rows = forced->tile_rows;
    int64_t columns = equal_parts(run->args->n, ELEMENTS / rows, 16);
    if (forced->tile_columns && forced->tile_columns < columns)
        columns = forced->tile_columns;
    *out_rows = rows;
    *out_columns = columns;
}

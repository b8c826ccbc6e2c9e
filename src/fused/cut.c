/* SPDX-License-Identifier: Apache-2.0
 *
 * cut.c - how a product is cut, by its shape alone.
 *
 * Every further call of an engine has a price: b is packed anew, which takes as long as some rows;
 * in a weight gradient the result is read and written once more. A rank's block that is multiplied
 * by itself need not be copied, and any piece can begin early. So all blocks are cut apart where
 * that costs less than their copies and a hundredth of the whole; else as often as the hundredth
 * pays, and what is not cut is gathered first. Measured with oneDNN 2.6 on an EPYC 9004: packing
 * takes 0.1 ns an element of b, a product 2 m n k / 115 ns (fp32), a copy 0.4 ns an element.
 */
#include "inside.h"

/* What a further call costs, in rows of the product. Engines widen fp16, b once a call. */
static double price(const hpi_fused_run *run) {
    const double widened = run->args->dtype == HP_FP16 ? 40 : 0;
    return widened + (run->what == HPI_GATHER_WEIGHTS ? 30 : 6);
}

/* All in rows of the product. */
int hpi_fused_pieces(const hpi_fused_run *run) {
    const hp_fused_args *a = run->args;
    const int forced = run->state->cut.n_pieces;
    const double call = price(run), early = 0.01 * (double)run->m;
    const double copies = a->gathered || a->n == 0 ? 0 : 16 * (double)run->m / (double)a->n;
    if (run->what == HPI_GATHER_WEIGHTS && a->out_dtype != HP_FP32)
        return 1; /* the sum over pieces would be rounded for each of them */
    if (forced)
        return forced < run->n ? forced : run->n;
    if ((run->n - 1) * call <= early + copies)
        return run->n;
    return 1 + (int)((early + copies / run->n) / call); /* the own block is spared a copy */
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

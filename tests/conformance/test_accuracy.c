/* SPDX-License-Identifier: Apache-2.0
 *
 * test_accuracy.c - the accuracy that is promised, a test for each promise.
 *
 * An fp32 sum is the tree's, bit for bit. Gathering and averaging gives the input back: exactly in
 * groups whose size is a power of two, within one ulp in others (the worst over all significands).
 * 16-bit results are the fp32 sum rounded once. Low precision on the wire is within the bound of
 * docs/low-precision.md of full precision.
 */
#include "support/oracle.h"
#include "support/ranks.h"

#include <hyperparallel/coll.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { MAX_RANKS = 8, COUNT = 1024 };

/* Every rank's data, the same on all. */
typedef struct data {
    hp_group *group;
    int rank, n;
    float in[MAX_RANKS][COUNT], out[COUNT], full[COUNT], wide[MAX_RANKS * COUNT];
    const void *rows[MAX_RANKS];
} data;

static data *data_create(hp_world *world) {
    data *d = calloc(1, sizeof *d);
    RANK_CHECK(d);
    d->group = hp_world_group(world);
    d->rank = hp_group_rank(d->group);
    d->n = hp_group_size(d->group);
    for (int i = 0; i < d->n; i++)
        d->rows[i] = d->in[i];
    return d;
}

/* Numbers in (-1, 1) or [0, 1), whose low bits are all in use. */
static void fill(data *d, uint64_t seed, bool is_signed) {
    uint64_t state = seed;
    for (int i = 0; i < d->n; i++)
        for (int k = 0; k < COUNT; k++) {
            const double u = hpi_random_unit(&state);
            d->in[i][k] = (float)(is_signed ? 2 * u - 1 : u);
        }
}

static bool is_close(double got, double full) { /* numpy's allclose, as the seed asks for */
    return fabs(got - full) <= 1e-5 + 1e-3 * fabs(full);
}

/* ---- fp32: the tree, bit for bit ---- */

static void fp32_sum(hp_world *world, void *argument) {
    data *d = data_create(world);
    float expected[COUNT];
    uint64_t first;
    (void)argument;
    for (uint64_t seed = 0; seed < 4; seed++) {
        for (int i = 0; i < d->n; i++)
            oracle_fill(HP_FP32, d->in[i], COUNT, seed * MAX_RANKS + (uint64_t)i);
        RANK_OK(hp_all_reduce(d->group, d->in[d->rank], d->out, COUNT, HP_FP32, HP_SUM));
        oracle_reduce(HP_FP32, HP_FP32, HP_SUM, d->rows, d->n, expected, COUNT);
        RANK_CHECK(oracle_same(HP_FP32, d->out, expected, COUNT, &first));
    }
    free(d);
}

static void accuracy_of_an_fp32_sum_is_bit_exact(void **state) {
    (void)state;
    for (int n = 2; n <= MAX_RANKS; n++)
        ranks_run(n, RANKS_THREADS, fp32_sum, NULL);
}

/* ---- gather, then scatter the average ---- */

static int ulps(float a, float b) {
    int32_t x, y;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    return abs(x - y);
}

static void round_trip(hp_world *world, void *argument) {
    data *d = data_create(world);
    const bool is_power_of_two = (d->n & (d->n - 1)) == 0;
    (void)argument;
    fill(d, 5, true);
    const float *own = d->in[d->rank];
    RANK_OK(hp_all_gather(d->group, own, d->wide, COUNT, HP_FP32));
    RANK_OK(hp_reduce_scatter(d->group, d->wide, d->out, COUNT, HP_FP32, HP_AVG));
    for (int k = 0; k < COUNT; k++)
        RANK_CHECK(ulps(d->out[k], own[k]) <= (is_power_of_two ? 0 : 1));
    free(d);
}

static void accuracy_of_gather_and_averaging_scatter(void **state) {
    (void)state;
    for (int n = 1; n <= MAX_RANKS; n++)
        ranks_run(n, RANKS_THREADS, round_trip, NULL);
}

/* ---- 16 bits: the fp32 sum, rounded once ---- */

static uint16_t round_to(hp_dtype dtype, float f) {
    return dtype == HP_FP16 ? oracle_to_fp16(f) : oracle_to_bf16(f);
}
static float widen(hp_dtype dtype, uint16_t h) {
    return dtype == HP_FP16 ? oracle_from_fp16(h) : oracle_from_bf16(h);
}

static void half_sum(hp_world *world, void *argument) {
    const hp_dtype dtype = *(const hp_dtype *)argument;
    data *d = data_create(world);
    uint16_t in[COUNT], out[COUNT];
    fill(d, 6, true);
    for (int i = 0; i < d->n; i++)
        for (int k = 0; k < COUNT; k++) {
            const uint16_t half = round_to(dtype, d->in[i][k]);
            d->in[i][k] = widen(dtype, half);
            if (i == d->rank)
                in[k] = half;
        }
    RANK_OK(hp_all_reduce(d->group, in, out, COUNT, dtype, HP_SUM));
    oracle_reduce(HP_FP32, HP_FP32, HP_SUM, d->rows, d->n, d->full, COUNT);
    for (int k = 0; k < COUNT; k++) {
        RANK_CHECK(out[k] == round_to(dtype, d->full[k]));
        RANK_CHECK(dtype != HP_FP16 || is_close((double)widen(dtype, out[k]), (double)d->full[k]));
    }
    free(d);
}

static void accuracy_of_16_bit_sums_is_one_rounding(void **state) {
    hp_dtype dtypes[] = {HP_FP16, HP_BF16};
    (void)state;
    for (int i = 0; i < 2; i++)
        for (int n = 2; n <= MAX_RANKS; n += 3)
            ranks_run(n, RANKS_THREADS, half_sum, &dtypes[i]);
}

/* ---- low precision on the wire, against full precision ---- */

/* What a term of a block whose largest magnitude is `largest` may be off by. */
typedef struct bound {
    hp_wire wire;
    double of_itself, of_largest, at_least;
} bound;
static const bound bounds[] = {{HP_WIRE_FP16, 0x1p-11, 0, 0x1p-25},
                               {HP_WIRE_BF16, 0x1p-8, 0, 0x1p-134},
                               {HP_WIRE_FP8_E4M3, 0x1p-4, 0x1p-17, 0},
                               {HP_WIRE_FP8_E5M2, 0x1p-3, 0x1p-31, 0}};

static double largest_of_block(const float *in, int k) {
    double largest = 0;
    for (int i = k / 128 * 128; i < k / 128 * 128 + 128; i++)
        largest = fmax(largest, fabs((double)in[i]));
    return largest;
}

/* The fp32 sums of both, over three levels of the tree, are off by a little of their own. */
static double bound_of_sum(const data *d, const bound *b, int k) {
    double sum = 0, magnitudes = 0;
    for (int i = 0; i < d->n; i++) {
        const double term = fabs((double)d->in[i][k]);
        sum += fmax(fmax(b->of_itself * term, b->of_largest * largest_of_block(d->in[i], k)),
                    b->at_least);
        magnitudes += term;
    }
    return sum + magnitudes * 2 * 3 * 0x1p-24 * (1 + b->of_itself);
}

static void all_reduce(data *d, hp_wire wire, float *out) {
    hp_coll_call call = HP_COLL_CALL_INIT;
    call.what = HP_ALL_REDUCE;
    call.group = d->group;
    call.in = d->in[d->rank];
    call.out = out;
    call.count = COUNT;
    call.wire = wire;
    RANK_OK(hp_coll_run(&call));
}

static void low_precision(hp_world *world, void *argument) {
    data *d = data_create(world);
    (void)argument;
    for (int turn = 0; turn < 3; turn++) {
        fill(d, 7 + (uint64_t)turn, turn > 0);
        for (int i = 0; turn == 2 && i < d->n; i++) /* magnitudes of every kind, in each block */
            for (int k = 0; k < COUNT; k++)
                d->in[i][k] = ldexpf(d->in[i][k], -(k * 7 + i) % 40);
        all_reduce(d, HP_WIRE_FULL, d->full);
        for (int w = 0; w < 4; w++) {
            all_reduce(d, bounds[w].wire, d->out);
            for (int k = 0; k < COUNT; k++) {
                const double full = (double)d->full[k], got = (double)d->out[k];
                RANK_CHECK(fabs(got - full) <= bound_of_sum(d, &bounds[w], k));
                /* Without cancellation fp16 meets the seed's tolerance, element by element. */
                RANK_CHECK(w > 0 || turn > 0 || is_close(got, full));
            }
        }
    }
    free(d);
}

/* Whole numbers up to 8 are exact in every form: then so is the sum. */
static void represented(hp_world *world, void *argument) {
    data *d = data_create(world);
    (void)argument;
    for (int i = 0; i < d->n; i++)
        for (int k = 0; k < COUNT; k++)
            d->in[i][k] = (float)((k * 31 + i * 7) % 17 - 8);
    all_reduce(d, HP_WIRE_FULL, d->full);
    for (int w = 0; w < 4; w++) {
        all_reduce(d, bounds[w].wire, d->out);
        RANK_CHECK(memcmp(d->out, d->full, sizeof d->out) == 0);
    }
    free(d);
}

static void accuracy_of_low_precision_is_within_its_bound(void **state) {
    (void)state;
    for (int n = 1; n <= MAX_RANKS; n++)
        ranks_run(n, RANKS_THREADS, low_precision, NULL);
}

static void accuracy_of_low_precision_on_represented_values(void **state) {
    (void)state;
    for (int n = 1; n <= MAX_RANKS; n += 3)
        ranks_run(n, RANKS_THREADS, represented, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accuracy_of_an_fp32_sum_is_bit_exact),
        cmocka_unit_test(accuracy_of_gather_and_averaging_scatter),
        cmocka_unit_test(accuracy_of_16_bit_sums_is_one_rounding),
        cmocka_unit_test(accuracy_of_low_precision_is_within_its_bound),
        cmocka_unit_test(accuracy_of_low_precision_on_represented_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * test_layout.c - shards put together again give the parameter (F13), whatever the sizes.
 *
 * The property: extract every shard, lay the shards side by side as a gather does, read the whole
 * back. Dimension 0 may be of any size; inner dimensions divide; the padding is never written.
 */
#include "fsdp/memory/layout.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static hp_param make_param(int n_dims, const int64_t *shape, int shard_dim) {
    hp_param param = HP_PARAM_INIT;
    param.name = "w";
    param.n_dims = n_dims;
    param.shard_dim = shard_dim;
    for (int d = 0; d < n_dims; d++)
        param.shape[d] = shape[d];
    return param;
}

static uint32_t *numbered(uint64_t n) {
    uint32_t *values = malloc((n ? n : 1) * sizeof *values);
    assert_non_null(values);
    for (uint64_t i = 0; i < n; i++)
        values[i] = (uint32_t)i + 1;
    return values;
}

/* Where element `e` of the parameter lies in the gathered [n_shards][outer][chunk][inner]. */
static uint64_t gathered_at(const hpi_layout *l, uint64_t e) {
    const uint64_t inner = e % l->inner, row = e / l->inner % l->rows;
    const uint64_t outer = e / l->inner / l->rows;
    return row / l->chunk * l->shard_elements + (outer * l->chunk + row % l->chunk) * l->inner +
           inner;
}

/* Extract all shards of `param` and compare element by element; what is left must be padding. */
static void check_round_trip(const hp_param *param, int n_ranks) {
    hpi_layout l;
    assert_int_equal(hpi_layout_make(param, n_ranks, &l), HP_OK);
    uint32_t *whole = numbered(l.n_elements);
    uint32_t *gathered = calloc(l.full_elements + 1, sizeof *gathered);
    assert_non_null(gathered);
    uint64_t held = 0, next = 0;
    for (int r = 0; r < (int)l.n_shards; r++) {
        uint64_t begin, end;
        hpi_layout_rows(&l, r, &begin, &end);
        assert_int_equal(begin, next);
        assert_true(end - begin <= l.chunk);
        next = end;
        held += hpi_layout_count(&l, r);
        hpi_layout_extract(&l, r, sizeof *whole, whole, gathered + (uint64_t)r * l.shard_elements);
    }
    assert_int_equal(next, l.rows);
    assert_int_equal(held, l.n_elements);
    for (uint64_t e = 0; e < l.n_elements; e++) {
        uint32_t *at = gathered + gathered_at(&l, e);
        assert_int_equal(*at, whole[e]);
        *at = 0;
    }
    for (uint64_t i = 0; i < l.full_elements; i++)
        assert_int_equal(gathered[i], 0);
    free(gathered);
    free(whole);
}

static void f13_any_dim0_over_any_ranks(void **state) {
    (void)state;
    static const int64_t sizes[] = {0, 1, 2, 3, 5, 7, 31, 32001};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int n = 1; n <= 9; n++) {
            const hp_param flat = make_param(1, (int64_t[]){sizes[s]}, 0);
            check_round_trip(&flat, n);
            const hp_param matrix = make_param(3, (int64_t[]){sizes[s], 3, 2}, 0);
            check_round_trip(&matrix, n);
        }
}

static void ten_rows_over_four_ranks_are_3_3_3_1(void **state) {
    (void)state;
    const hp_param param = make_param(2, (int64_t[]){10, 7}, 0);
    hpi_layout l;
    assert_int_equal(hpi_layout_make(&param, 4, &l), HP_OK);
    static const uint64_t ends[] = {3, 6, 9, 10};
    for (int r = 0; r < 4; r++) {
        uint64_t begin, end;
        hpi_layout_rows(&l, r, &begin, &end);
        assert_int_equal(begin, r ? ends[r - 1] : 0);
        assert_int_equal(end, ends[r]);
        assert_int_equal(hpi_layout_count(&l, r), (end - begin) * 7);
    }
    assert_int_equal(l.full_elements, 12 * 7);
}

static void inner_dimensions_divide(void **state) {
    (void)state;
    for (int n = 1; n <= 9; n++) {
        const hp_param middle = make_param(3, (int64_t[]){3, 4 * n, 5}, 1);
        check_round_trip(&middle, n);
        const hp_param last = make_param(3, (int64_t[]){2, 3, n}, 2);
        check_round_trip(&last, n);
        const hp_param empty = make_param(3, (int64_t[]){0, n, 5}, 1);
        check_round_trip(&empty, n);
    }
    hpi_layout l;
    const hp_param uneven = make_param(2, (int64_t[]){4, 10}, 1);
    assert_int_equal(hpi_layout_make(&uneven, 4, &l), HP_ERR_ARGUMENT);
    assert_non_null(strstr(hp_last_error(), "\"w\""));
    assert_non_null(strstr(hp_last_error(), "10"));
}

static void scalars_and_replicated(void **state) {
    (void)state;
    for (int n = 1; n <= 9; n++) {
        const hp_param scalar = make_param(0, NULL, 0);
        check_round_trip(&scalar, n);
        const hp_param replicated = make_param(2, (int64_t[]){5, 3}, HP_REPLICATED);
        check_round_trip(&replicated, n);
        hpi_layout l;
        uint64_t begin, end;
        assert_int_equal(hpi_layout_make(&replicated, n, &l), HP_OK);
        hpi_layout_rows(&l, n - 1, &begin, &end); /* every rank holds the one shard */
        assert_int_equal(begin, 0);
        assert_int_equal(end, 5);
    }
}

static void refuses_what_cannot_be(void **state) {
    (void)state;
    const int64_t huge = INT64_C(1) << 31, most = INT64_MAX;
    hpi_layout l, before;
    memset(&l, 0x5a, sizeof l);
    before = l;
    hp_param cases[] = {
        make_param(2, (int64_t[]){huge, huge}, 0),
        make_param(1, (int64_t[]){most}, 0),
        make_param(2, (int64_t[]){10, INT64_MAX / 80}, 0), /* fits, but not with its padding */
        make_param(1, (int64_t[]){-1}, 0),
        make_param(1, (int64_t[]){4}, 1),
        make_param(1, (int64_t[]){4}, -2),
        make_param(0, NULL, 1),
        make_param(0, NULL, 0),
        make_param(0, NULL, 0),
    };
    const size_t n = sizeof cases / sizeof *cases;
    cases[n - 2].n_dims = HP_MAX_DIMS + 1;
    cases[n - 1].n_dims = -1;
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(hpi_layout_make(&cases[i], 9, &l), HP_ERR_ARGUMENT);
        assert_non_null(strstr(hp_last_error(), "\"w\""));
    }
    const hp_param good = make_param(1, (int64_t[]){4}, 0);
    assert_int_equal(hpi_layout_make(&good, 0, &l), HP_ERR_ARGUMENT);
    assert_memory_equal(&l, &before, sizeof l); /* outputs change only on success */
    const hp_param large = make_param(2, (int64_t[]){huge, huge / 8}, 0);
    assert_int_equal(hpi_layout_make(&large, 8, &l), HP_OK);
    assert_int_equal(l.n_elements, UINT64_C(1) << 59);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f13_any_dim0_over_any_ranks),
        cmocka_unit_test(ten_rows_over_four_ranks_are_3_3_3_1),
        cmocka_unit_test(inner_dimensions_divide),
        cmocka_unit_test(scalars_and_replicated),
        cmocka_unit_test(refuses_what_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

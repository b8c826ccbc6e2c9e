/* SPDX-License-Identifier: Apache-2.0
 *
 * test_ring.c - pieces of a ring: each lies inside, apart from the one before it, at a cache line,
 * and small ones go round all of it before a byte is used again; those of two ranks go to and fro.
 */
#include "../../src/coll/inside.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
/* after those */
#include <cmocka.h>

typedef struct piece {
    uint64_t begin, end;
} piece;

static piece take(hpi_run *run, uint64_t bytes) {
    const hpi_ring *ring = &run->state->ring;
    const uint64_t begin = (uint64_t)(hpi_ring_take(run, bytes, true) - ring->base);
    assert_int_equal(begin % 64, 0);
    assert_true(begin + bytes <= ring->bytes);
    return (piece){begin, begin + bytes};
}

static void each_is_apart_from_the_last(void **state) {
    (void)state;
    for (int n_ranks = 3; n_ranks <= HPI_MAX_LOCAL; n_ranks = n_ranks * 2 + 1)
        for (int is_roomy = 0; is_roomy < 2; is_roomy++) {
            hpi_coll_state s = {0};
            hpi_run run = {.state = &s, .n = n_ranks};
            hpi_ring_size(&s, n_ranks, is_roomy);
            assert_true(s.cell_bytes <= hpi_ring_most(&s));
            s.ring.base = malloc(s.ring.bytes);
            assert_non_null(s.ring.base);
            piece last = {0, 0};
            srand(7);
            for (int k = 0; k < 20000; k++) {
                const uint64_t most = hpi_ring_most(&s) >> (rand() % 12);
                const piece p = take(&run, k % 5 ? 1 + (uint64_t)rand() % most : most);
                assert_true(p.end <= last.begin || p.begin >= last.end);
                last = p;
            }
            free(s.ring.base);
        }
}

static void small_ones_use_all_of_it(void **state) {
    (void)state;
    enum { BYTES = 20000 };
    hpi_coll_state s = {0};
    hpi_run run = {.state = &s, .n = 3};
    hpi_ring_size(&s, 3, true);
    s.ring.base = malloc(s.ring.bytes);
    assert_non_null(s.ring.base);
    uint64_t used = 0;
    for (piece p = take(&run, BYTES); p.end >= used; p = take(&run, BYTES))
        used = p.end;
    assert_true(used > s.ring.bytes - 2 * BYTES);
    free(s.ring.base);
}

/* Each fills what it was the last to find, but for its first two; a cell never lies where the piece
 * before it does. */
static void those_of_two_go_to_and_fro(void **state) {
    (void)state;
    hpi_coll_state s[2] = {{0}};
    unsigned char *heaps[2], *filled[2], *found[2][2] = {{NULL}}, *last[2] = {NULL};
    for (int i = 0; i < 2; i++) {
        hpi_ring_size(&s[i], 2, true);
        heaps[i] = s[i].ring.base = malloc(s[i].ring.bytes);
        assert_non_null(heaps[i]);
        s[i].heaps = heaps;
        s[i].ring.is_across[0] = s[i].ring.is_across[1] = true;
    }
    srand(7);
    for (int k = 0; k < 2000; k++) {
        const bool is_carried = rand() % 2, stays = is_carried && s[0].ring.was_carried;
        hpi_run runs[] = {{.state = &s[0], .n = 2, .rank = 0}, {.state = &s[1], .n = 2, .rank = 1}};
        for (int i = 0; i < 2; i++) {
            filled[i] = hpi_ring_take(&runs[i], hpi_ring_most(&s[i]), is_carried);
            hpi_ring_took(&runs[i], is_carried);
        }
        assert_ptr_not_equal(filled[0], filled[1]);
        for (int i = 0; i < 2; i++) {
            const unsigned pair = s[i].ring.pair;
            unsigned char **known = &found[i][pair];
            assert_ptr_equal(filled[i], *known ? *known : heaps[i] + pair * s[i].ring.bytes / 2);
            assert_true(stays || (filled[i] != last[0] && filled[i] != last[1]));
            *known = hpi_ring_find(&runs[i], 1 - i, hpi_ring_told(&runs[1 - i], filled[1 - i]));
            assert_ptr_equal(*known, filled[1 - i]);
        }
        memcpy(last, filled, sizeof last);
    }
    free(heaps[0]);
    free(heaps[1]);
}

/* Whether its readers seem near or far. */
static void filled_is_what_was_given(void **state) {
    (void)state;
    enum { MOST = 40000, MARGIN = 64, FOR_SURE = 3 };
    unsigned char *from = malloc(MOST + MARGIN), *to = malloc(MOST + MARGIN);
    assert_true(from && to);
    for (int i = 0; i < MOST + MARGIN; i++)
        from[i] = (unsigned char)(i * 7 + i / 251);
    for (uint64_t n_slow = 0; n_slow <= FOR_SURE; n_slow++)
        for (uint64_t bytes = 1; bytes <= MOST; bytes = bytes * 3 + 5)
            for (uint64_t skip = 0; skip < MARGIN; skip += 21) {
                hpi_distance d = {.n_slow = n_slow};
                for (int turn = 0; turn < 2; turn++) { /* the first may be sampled */
                    memset(to, 0xee, MOST + MARGIN);
                    hpi_ring_fill(&d, to, from + skip, bytes);
                    assert_memory_equal(to, from + skip, bytes);
                    assert_int_equal(to[bytes], 0xee);
                }
            }
    free(from);
    free(to);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_is_apart_from_the_last), cmocka_unit_test(small_ones_use_all_of_it),
        cmocka_unit_test(those_of_two_go_to_and_fro), cmocka_unit_test(filled_is_what_was_given)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

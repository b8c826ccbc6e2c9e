/* SPDX-License-Identifier: Apache-2.0
 *
 * test_index.c - any cut of a parameter is read into any other, and an index that lies is refused.
 *
 * The texts here carry a right checksum: what is tested is that nothing in an index is believed
 * just because it is whole.
 */
#include "fsdp/checkpoint/files.h"
#include "fsdp/checkpoint/index.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static char directory[] = "/tmp/test_index.XXXXXX";
static char path[64];

static int make_directory(void **state) {
    (void)state;
    if (!mkdtemp(directory))
        return -1;
    snprintf(path, sizeof path, "%s/index.json", directory);
    return 0;
}

static int remove_directory(void **state) {
    (void)state;
    hpi_directory_remove(directory);
    return access(directory, F_OK) == 0;
}

/* ---- pieces --------------------------------------------------------------------------------- */

static hpi_layout layout_of(const int64_t *shape, int n_dims, int shard_dim, int n_shards) {
    hp_param param = HP_PARAM_INIT;
    hpi_layout layout;
    param.name = "w";
    param.n_dims = n_dims;
    param.shard_dim = shard_dim;
    for (int d = 0; d < n_dims; d++)
        param.shape[d] = shape[d];
    assert_int_equal(hpi_layout_make(&param, n_shards, &layout), HP_OK);
    return layout;
}

/* Cut `whole` one way, read all its pieces into each piece of the other way, and compare. */
static void check_recut(const hpi_layout *from, const hpi_layout *to) {
    enum { MOST = 512 };
    uint32_t whole[MOST];
    assert_true(from->n_elements <= MOST && to->n_elements == from->n_elements);
    for (uint64_t i = 0; i < from->n_elements; i++)
        whole[i] = (uint32_t)i + 1;
    for (int r = 0; r < (int)to->n_shards; r++) {
        uint32_t expected[MOST] = {0}, read[MOST] = {0}, piece[MOST];
        const hpi_piece mine = hpi_piece_of(to, r);
        uint64_t n_read = 0, n_counted = 0;
        hpi_layout_extract(to, r, sizeof *whole, whole, expected);
        for (int s = 0; s < (int)from->n_shards; s++) {
            const hpi_piece theirs = hpi_piece_of(from, s);
            hpi_layout_extract(from, s, sizeof *whole, whole, piece);
            n_read += hpi_piece_copy(&theirs, piece, &mine, read, sizeof *whole);
            n_counted += hpi_piece_copy(&theirs, NULL, &mine, NULL, sizeof *whole);
        }
        assert_int_equal(n_read, hpi_piece_count(&mine));
        assert_int_equal(n_counted, n_read);
        assert_memory_equal(read, expected, sizeof read);
    }
}

static void any_cut_reads_any_other(void **state) {
    (void)state;
    static const int64_t shape[] = {4, 12, 6};
    static const int64_t odd[] = {31, 3};
    for (int a = 1; a <= 6; a++)
        for (int b = 1; b <= 6; b++) {
            const hpi_layout from = layout_of(odd, 2, 0, a), to = layout_of(odd, 2, 0, b);
            check_recut(&from, &to);
        }
    static const int counts[] = {1, 2, 3, 6};
    for (int i = 0; i < 64 * 4; i++) { /* each dimension (or none) and count against each */
        const int from_dim = i / 4 % 4 - 1, to_dim = i / 16 % 4 - 1;
        const hpi_layout from = layout_of(shape, 3, from_dim, counts[i % 4]);
        const hpi_layout to = layout_of(shape, 3, to_dim, counts[i / 64]);
        check_recut(&from, &to);
    }
}

/* ---- an index ------------------------------------------------------------------------------- */

static void put_index(const char *body) {
    hpi_text text = {0};
    hpi_text_add(&text, "%s", body);
    hpi_text_add(&text, ",\n\"xxh3\": \"%016" PRIx64 "\"}\n",
                 hpi_checksum(text.data, text.n_bytes));
    assert_false(text.is_failed);
    const struct iovec part = {text.data, text.n_bytes};
    unlink(path);
    assert_int_equal(hpi_file_create(path, &part, 1), HP_OK);
    hpi_text_free(&text);
}

#define HEAD "{\"format\": \"hyperparallel-checkpoint\", \"version\": 1, \"step\": 7"
#define FILES ", \"files\": [\"m\", \"n\"]"
#define ENTRY(shape, outer, stride, pieces)                                                        \
    "{\"dtype\": \"F32\", \"shape\": " shape ", \"outer\": " outer ", \"stride\": " stride         \
    ", \"pieces\": " pieces "}"
#define WEIGHTS(entry) HEAD FILES ", \"states\": {}, \"weights\": {\"w\": " entry "}"

static void a_sound_index_is_read(void **state) {
    (void)state;
    hpi_index index;
    put_index(HEAD FILES
              ", \"optimizer\": {\"name\": \"sgd\", \"steps\": 5}"
              ", \"states\": {\"momentum_buffer.w\": " ENTRY(
                  "[]", "1", "1",
                  "[[1,0,1]]") "}"
                               ", \"weights\": {\"w\": " ENTRY(
                                   "[6,4]", "6", "4",
                                   "[[1,1,4],[0,0,1]]") ", \"empty\": " ENTRY("[0,4]", "1", "0",
                                                                              "[]") "}");
    assert_int_equal(hpi_index_open(directory, &index), HP_OK);
    assert_int_equal(index.step, 7);
    assert_string_equal(index.optimizer, "sgd");
    assert_int_equal(index.optimizer_steps, 5);
    assert_int_equal(index.n_files, 2);
    assert_int_equal(index.weights.n, 2);
    const hpi_entry *w = hpi_index_find(&index.weights, "w");
    assert_non_null(w);
    assert_int_equal(w->n_pieces, 2);
    assert_int_equal(w->pieces[0].end, 1); /* in order of begin */
    assert_int_equal(w->pieces[1].file, 1);
    assert_int_equal(hpi_index_find(&index.weights, "empty")->n_pieces, 0);
    assert_null(hpi_index_find(&index.weights, "x"));
    assert_non_null(hpi_index_find(&index.states, "momentum_buffer.w"));
    hpi_index_close(&index);
}

static void lies_are_refused(void **state) {
    (void)state;
    static const char *const bodies[] = {
        "{",
        "{\"format\": \"other\", \"version\": 1",
        "{\"format\": \"hyperparallel-checkpoint\", \"version\": 2",
        "{\"format\": \"hyperparallel-checkpoint\", \"version\": 1",
        HEAD,
        HEAD FILES,
        HEAD FILES ", \"weights\": {}",
        HEAD FILES ", \"weights\": [], \"states\": {}",
        HEAD FILES ", \"weights\": {}, \"states\": {}, \"optimizer\": {\"name\": \"sgd\"}",
        HEAD ", \"files\": [\"../m\"], \"weights\": {}, \"states\": {}",
        HEAD ", \"files\": [\"/m\"], \"weights\": {}, \"states\": {}",
        HEAD ", \"files\": [\"\"], \"weights\": {}, \"states\": {}",
        HEAD ", \"files\": [7], \"weights\": {}, \"states\": {}",
        WEIGHTS("7"),
        WEIGHTS(ENTRY("[24]", "1", "24", "[]")),                   /* nothing held */
        WEIGHTS(ENTRY("[24]", "1", "24", "[[0,0,23]]")),           /* the last one missing */
        WEIGHTS(ENTRY("[24]", "1", "24", "[[0,1,24]]")),           /* the first one missing */
        WEIGHTS(ENTRY("[24]", "1", "24", "[[0,0,25]]")),           /* too many */
        WEIGHTS(ENTRY("[24]", "1", "24", "[[0,0,12],[1,13,24]]")), /* a gap */
        WEIGHTS(ENTRY("[24]", "1", "24", "[[0,0,12],[1,11,24]]")), /* an overlap */
        WEIGHTS(ENTRY("[24]", "1", "24", "[[0,0,24],[1,0,24]]")),  /* twice */
        WEIGHTS(ENTRY("[24]", "1", "24", "[[2,0,24]]")),           /* a file that is not listed */
        WEIGHTS(ENTRY("[24]", "1", "24", "[[0,0]]")),
        WEIGHTS(ENTRY("[24]", "1", "24", "[[0,0,24,0]]")),
        WEIGHTS(ENTRY("[24]", "1", "24", "[0,0,24]")),
        WEIGHTS(ENTRY("[24]", "1", "24", "[[0,24,0]]")),
        WEIGHTS(ENTRY("[24]", "1", "24", "{\"a\": [0,0,24]}")),
        WEIGHTS(ENTRY("[24]", "1", "23", "[[0,0,23]]")), /* blocks that do not make the shape */
        WEIGHTS(ENTRY("[24]", "2", "24", "[[0,0,24]]")),
        WEIGHTS(ENTRY("[0]", "1", "0", "[[0,0,1]]")),
        WEIGHTS(ENTRY("[24,-1]", "1", "24", "[[0,0,24]]")),
        WEIGHTS(ENTRY("[1,1,1,1,1,1,1,1,24]", "1", "24", "[[0,0,24]]")),
        WEIGHTS(ENTRY("[4294967296,4294967296]", "0", "0", "[]")), /* overflows to 0 elements */
        WEIGHTS(ENTRY("[2305843009213693952]", "1", "2305843009213693952",
                      "[[0,0,2305843009213693952]]")),
        WEIGHTS(
            ENTRY("[24]", "1", "24", "[[0,0,24]]") ", \"w\": " ENTRY("[1]", "1", "1", "[[0,0,1]]")),
    };
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        hpi_index index;
        put_index(bodies[i]);
        assert_int_equal(hpi_index_open(directory, &index), HP_ERR_FORMAT);
        assert_non_null(strstr(hp_last_error(), path));
    }
}

static void a_wrong_checksum_is_refused(void **state) {
    (void)state;
    hpi_index index;
    static const char text[] = HEAD FILES ", \"weights\": {}, \"states\": {},\n\"xxh3\": "
                                          "\"0123456789abcdef\"}\n";
    const struct iovec part = {(void *)(uintptr_t)text, sizeof text - 1};
    unlink(path);
    assert_int_equal(hpi_file_create(path, &part, 1), HP_OK);
    assert_int_equal(hpi_index_open(directory, &index), HP_ERR_FORMAT);
    assert_non_null(strstr(hp_last_error(), "checksum"));
    unlink(path);
    assert_int_equal(hpi_index_open(directory, &index), HP_ERR_FILE);
    put_index(HEAD FILES ", \"weights\": {}, \"states\": {}");
    assert_int_equal(hpi_index_open(directory, &index), HP_OK);
    hpi_index_close(&index);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_cut_reads_any_other),
        cmocka_unit_test(a_sound_index_is_read),
        cmocka_unit_test(lies_are_refused),
        cmocka_unit_test(a_wrong_checksum_is_refused),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}

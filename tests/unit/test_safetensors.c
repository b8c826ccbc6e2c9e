/* SPDX-License-Identifier: Apache-2.0
 *
 * test_safetensors.c - what is written is read back, and no damaged file is believed.
 *
 * Damage is done by hand: a good file is written, its header or its bytes are changed, and opening
 * or reading must say FORMAT, naming the file. A sanitizer build sees that nothing is read past an
 * end.
 */
#include "fsdp/checkpoint/files.h"
#include "fsdp/checkpoint/safetensors.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char directory[] = "/tmp/test_safetensors.XXXXXX";
static char path[64];

static int make_directory(void **state) {
    (void)state;
    if (!mkdtemp(directory))
        return -1;
    snprintf(path, sizeof path, "%s/x.safetensors", directory);
    return 0;
}

static int remove_directory(void **state) {
    (void)state;
    hpi_directory_remove(directory);
    return access(directory, F_OK) == 0;
}

/* Put a file of this header and `data_bytes` bytes of data at `path`. */
static void put_file(const char *header, uint64_t header_bytes, uint64_t claimed,
                     size_t data_bytes) {
    static char data[256];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (char)i;
    const struct iovec parts[] = {
        {&claimed, 8}, {(void *)(uintptr_t)header, header_bytes}, {data, data_bytes}};
    unlink(path);
    assert_int_equal(hpi_file_create(path, parts, 3), HP_OK);
}

static void put_header(const char *header, size_t data_bytes) {
    put_file(header, strlen(header), strlen(header), data_bytes);
}

static void expect_open(hp_status expected) {
    hpi_safetensors file;
    assert_int_equal(hpi_safetensors_open(path, &file), expected);
    if (expected == HP_OK)
        hpi_safetensors_close(&file);
    else
        assert_non_null(strstr(hp_last_error(), path));
}

static const float weights[6] = {0.5F, -1, 2, -3.25F, 4, 5};
static const double state_values[3] = {1e-300, -0.0, 7};
static const uint16_t halves[5] = {1, 2, 3, 4, 5};

static void write_good(void) {
    const hpi_tensor tensors[] = {
        {.name = "h", .dtype = HP_BF16, .n_dims = 1, .shape = {5}, .n_bytes = 10, .data = halves},
        {.name = "w \"1\"",
         .dtype = HP_FP32,
         .n_dims = 2,
         .shape = {2, 3},
         .n_bytes = 24,
         .data = weights},
        {.name = "empty", .dtype = HP_FP32, .n_dims = 2, .shape = {0, 3}},
        {.name = "state",
         .dtype = HP_FP64,
         .n_dims = 1,
         .shape = {3},
         .n_bytes = 24,
         .data = state_values},
        {.name = "scalar", .dtype = HP_FP32, .n_bytes = 4, .data = weights},
    };
    unlink(path);
    assert_int_equal(hpi_safetensors_write(path, tensors, sizeof tensors / sizeof *tensors), HP_OK);
}

static void expect_tensor(const hpi_safetensors *file, const char *name, hp_dtype dtype, int n_dims,
                          const void *data, size_t n_bytes) {
    char bytes[64];
    const hpi_tensor *tensor = hpi_safetensors_find(file, name);
    assert_non_null(tensor);
    assert_int_equal(tensor->dtype, dtype);
    assert_int_equal(tensor->n_dims, n_dims);
    assert_int_equal(tensor->n_bytes, n_bytes);
    assert_int_equal(tensor->offset % hp_dtype_size(dtype), 0);
    assert_true(tensor->has_checksum);
    assert_int_equal(hpi_safetensors_read(file, tensor, bytes), HP_OK);
    assert_memory_equal(bytes, data, n_bytes);
}

static void what_is_written_is_read(void **state) {
    (void)state;
    hpi_safetensors file;
    write_good();
    assert_int_equal(hpi_safetensors_open(path, &file), HP_OK);
    assert_int_equal(file.n_tensors, 5);
    expect_tensor(&file, "h", HP_BF16, 1, halves, sizeof halves);
    expect_tensor(&file, "w \"1\"", HP_FP32, 2, weights, sizeof weights);
    expect_tensor(&file, "state", HP_FP64, 1, state_values, sizeof state_values);
    expect_tensor(&file, "scalar", HP_FP32, 0, weights, 4);
    expect_tensor(&file, "empty", HP_FP32, 2, weights, 0);
    assert_int_equal(hpi_safetensors_find(&file, "empty")->shape[1], 3);
    assert_null(hpi_safetensors_find(&file, "absent"));
    hpi_safetensors_close(&file);
}

static void no_tensors_are_a_file_too(void **state) {
    (void)state;
    hpi_safetensors file;
    unlink(path);
    assert_int_equal(hpi_safetensors_write(path, NULL, 0), HP_OK);
    assert_int_equal(hpi_safetensors_open(path, &file), HP_OK);
    assert_null(hpi_safetensors_find(&file, "w"));
    hpi_safetensors_close(&file);
}

/* A file as the Python library writes it: no checksums, other metadata. */
static void files_of_others_are_read(void **state) {
    (void)state;
    hpi_safetensors file;
    char bytes[8];
    put_header("{\"a\":{\"dtype\":\"I32\",\"shape\":[2],\"data_offsets\":[0,8]},"
               "\"__metadata__\":{\"made_by\":\"me\"}}   ",
               8);
    assert_int_equal(hpi_safetensors_open(path, &file), HP_OK);
    const hpi_tensor *a = hpi_safetensors_find(&file, "a");
    assert_non_null(a);
    assert_false(a->has_checksum);
    assert_int_equal(hpi_safetensors_read(&file, a, bytes), HP_OK);
    assert_int_equal(bytes[7], 7);
    hpi_safetensors_close(&file);
}

static void lying_headers_are_refused(void **state) {
    (void)state;
#define TENSOR(name, dtype, shape, offsets)                                                        \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
    static const char *const headers[] = {
        "",
        "[]",
        "{",
        "{\"a\":1}",
        "{" TENSOR("a", "F32", "[2]", "[0,12]") "}", /* shape and offsets differ */
        "{" TENSOR("a", "F32", "[4]", "[0,16]") "}", /* past the end */
        "{" TENSOR("a", "F32", "[1]", "[0,4]") "}",  /* bytes that belong to nobody */
        "{" TENSOR("a", "F32", "[2]", "[4,12]") "}", /* begins behind a gap */
        "{" TENSOR("a", "F32", "[2]", "[8,0]") "}",  /* backwards */
        "{" TENSOR("a", "F32", "[2]", "[0,8,8]") "}",
        "{" TENSOR("a", "F32", "[2]", "[0]") "}",
        "{" TENSOR("a", "F32", "[-2]", "[0,8]") "}",
        "{" TENSOR("a", "F32", "[2.0]", "[0,8]") "}",
        "{" TENSOR("a", "F32", "2", "[0,8]") "}",
        "{" TENSOR("a", "F33", "[2]", "[0,8]") "}",
        "{" TENSOR("a", "F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]") "}",
        "{" TENSOR("a", "F32", "[4611686018427387904,4]", "[0,0]") "}", /* product overflows to 0 */
        "{" TENSOR("a", "F32", "[2]", "[18446744073709551608,18446744073709551616]") "}",
        "{" TENSOR("a", "U8", "[8]", "[18446744073709551608,0]") "}",
        "{" TENSOR("a", "F32", "[1]", "[0,4]") "," TENSOR("b", "F32", "[1]", "[0,4]") "}",
        "{" TENSOR("a", "F32", "[2]", "[0,8]") "," TENSOR("b", "F32", "[1]", "[4,8]") "}",
        "{" TENSOR("a", "F32", "[1]", "[0,4]") "," TENSOR("a", "F32", "[1]", "[4,8]") "}",
        "{" TENSOR("a", "F32", "[2]", "[0,8]") ",\"__metadata__\":{\"xxh3.a\":\"12\"}}",
        "{" TENSOR("a", "F32", "[2]",
                   "[0,8]") ",\"__metadata__\":{\"xxh3.b\":\"0123456789abcdef\"}}",
    };
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        put_header(headers[i], 8);
        expect_open(HP_ERR_FORMAT);
    }
    put_header("{" TENSOR("a", "F32", "[2]", "[0,8]") "}", 8); /* the same way, but true */
    expect_open(HP_OK);
}

static void lying_sizes_are_refused(void **state) {
    (void)state;
    put_file("{}", 2, 3, 0);
    expect_open(HP_ERR_FORMAT);
    put_file("{}", 2, UINT64_MAX, 0);
    expect_open(HP_ERR_FORMAT);
    put_file("{}", 2, 100000001, 0);
    expect_open(HP_ERR_FORMAT);
    put_file("{}", 2, 0, 0);
    expect_open(HP_ERR_FORMAT);
    put_file("{}", 2, 2, 0);
    expect_open(HP_OK);
}

static void every_cut_is_noticed(void **state) {
    (void)state;
    struct stat about;
    write_good();
    assert_int_equal(stat(path, &about), 0);
    for (off_t n = about.st_size - 1; n >= 0; n -= 3) {
        assert_int_equal(truncate(path, n), 0);
        expect_open(HP_ERR_FORMAT);
    }
}

/* Whatever byte is flipped, the tensors are those that were written, or somebody says FORMAT. */
static void every_flipped_byte_is_noticed_or_harmless(void **state) {
    (void)state;
    struct stat about;
    write_good();
    assert_int_equal(stat(path, &about), 0);
    const int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    uint64_t n_noticed = 0;
    for (off_t at = 0; at < about.st_size; at++) {
        unsigned char byte, flipped;
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        flipped = byte ^ (unsigned char)(1U << (at % 8));
        assert_int_equal(pwrite(fd, &flipped, 1, at), 1);
        hpi_safetensors file;
        char bytes[64];
        if (hpi_safetensors_open(path, &file) == HP_OK) {
            const hpi_tensor *w = hpi_safetensors_find(&file, "w \"1\"");
            if (!w || w->n_bytes != 24 || !w->has_checksum ||
                hpi_safetensors_read(&file, w, bytes) < 0)
                n_noticed++;
            else
                assert_memory_equal(bytes, weights, sizeof weights);
            hpi_safetensors_close(&file);
        } else {
            n_noticed++;
        }
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    }
    assert_true(n_noticed > 100);
    close(fd);
    expect_open(HP_OK);
}

static void a_name_of_the_format_is_refused(void **state) {
    (void)state;
    const hpi_tensor tensor = {.name = "__metadata__", .dtype = HP_FP32};
    unlink(path);
    assert_int_equal(hpi_safetensors_write(path, &tensor, 1), HP_ERR_ARGUMENT);
    assert_int_equal(access(path, F_OK), -1);
}

static void failures_of_files_name_them(void **state) {
    (void)state;
    hpi_safetensors file;
    write_good();
    assert_int_equal(hpi_safetensors_write(path, NULL, 0), HP_ERR_FILE); /* is there already */
    assert_non_null(strstr(hp_last_error(), path));
    unlink(path);
    expect_open(HP_ERR_FILE);
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_open(HP_ERR_FILE);
    unlink(path);
    assert_int_equal(hpi_safetensors_open("/dev", &file), HP_ERR_FILE);
    assert_int_equal(hpi_safetensors_write("/dev/full/x", NULL, 0), HP_ERR_FILE);
}

static void failed_allocations_leave_nothing(void **state) {
    (void)state;
    for (uint64_t n = 1; n <= 3; n++) {
        unlink(path);
        hpi_alloc_fail_after(n);
        assert_int_equal(hpi_safetensors_write(path, NULL, 0), HP_ERR_MEMORY);
        assert_int_equal(access(path, F_OK), -1);
    }
    hpi_alloc_fail_after(0);
    write_good();
    for (uint64_t n = 1; n <= 5; n++) {
        hpi_safetensors file;
        hpi_alloc_fail_after(n);
        assert_int_equal(hpi_safetensors_open(path, &file), HP_ERR_MEMORY);
    }
    hpi_alloc_fail_after(0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(no_tensors_are_a_file_too),
        cmocka_unit_test(files_of_others_are_read),
        cmocka_unit_test(lying_headers_are_refused),
        cmocka_unit_test(lying_sizes_are_refused),
        cmocka_unit_test(every_cut_is_noticed),
        cmocka_unit_test(every_flipped_byte_is_noticed_or_harmless),
        cmocka_unit_test(a_name_of_the_format_is_refused),
        cmocka_unit_test(failures_of_files_name_them),
        cmocka_unit_test(failed_allocations_leave_nothing),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}

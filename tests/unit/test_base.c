/* SPDX-License-Identifier: Apache-2.0
 *
 * test_base.c - room `base`: errors, data types, options, memory, clocks, numbers.
 *
 * Tables are checked against values written down here a second time; bf16 is checked over all of
 * its values and at every midpoint between two of them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/base.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static void assert_record(hp_status status, const char *part) {
    hp_error error;
    hp_last_error_get(&error);
    assert_int_equal(error.status, status);
    if (!strstr(error.message, part))
        fail_msg("expected \"%s\" in \"%s\"", part, error.message);
}

/* ---- status and errors --------------------------------------------------------------------- */

static void status_table_is_complete(void **state) {
    (void)state;
    for (int status = HP_ERR_UNSOUND; status <= HP_IN_PROGRESS; status++) {
        assert_memory_equal(hp_status_name((hp_status)status), "HP_", 3);
        assert_true(strlen(hp_status_text((hp_status)status)) > 3);
        assert_true(strlen(hp_status_hint((hp_status)status)) > 3);
        for (int other = HP_ERR_UNSOUND; other < status; other++)
            assert_string_not_equal(hp_status_name((hp_status)status),
                                    hp_status_name((hp_status)other));
    }
    assert_string_equal(hp_status_name(HP_ERR_TIMEOUT), "HP_ERR_TIMEOUT");
    assert_string_equal(hp_status_name((hp_status)-18), "HP_STATUS_?");
    assert_string_equal(hp_status_name((hp_status)2), "HP_STATUS_?");
    assert_non_null(hp_status_text((hp_status)99));
    assert_non_null(hp_status_hint((hp_status)99));
}

static void a_failure_leaves_a_record(void **state) {
    (void)state;
    const int line = __LINE__ + 1;
    assert_int_equal(HPI_FAIL_RANK(HP_ERR_PEER, 3, "expected %d, given %d", 1, 2), HP_ERR_PEER);
    hp_error error;
    hp_last_error_get(&error);
    assert_int_equal(error.status, HP_ERR_PEER);
    assert_int_equal(error.world_rank, 3);
    assert_int_equal(error.line, line);
    assert_string_equal(error.file, "test_base.c");
    assert_string_equal(error.call, __func__);
    assert_string_equal(error.message, "expected 1, given 2");
    const char *sentence = hp_last_error();
    assert_non_null(strstr(sentence, "expected 1, given 2"));
    assert_non_null(strstr(sentence, "HP_ERR_PEER"));
    assert_non_null(strstr(sentence, hp_status_hint(HP_ERR_PEER)));
}

static void a_long_message_is_cut(void **state) {
    (void)state;
    char text[2000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    assert_int_equal(HPI_FAIL(HP_ERR_FILE, "%s", text), HP_ERR_FILE);
    hp_error error;
    hp_last_error_get(&error);
    assert_int_equal(strlen(error.message), sizeof error.message - 1);
    assert_int_equal(error.world_rank, -1);
    assert_true(strlen(hp_last_error()) > sizeof error.message - 1);
}

static void a_long_sentence_is_cut(void **state) {
    (void)state;
    char memory[8];
    hpi_sentence s = {memory, sizeof memory, 0};
    hpi_sentence_add(&s, "%d, ", 12);
    hpi_sentence_add(&s, "%s", "345678");
    hpi_sentence_add(&s, "9");
    assert_string_equal(memory, "12, 345");
    assert_int_equal(s.used, sizeof memory - 1);
}

/* What is built on the library fails like it, under its own name and without a line of ours. */
static void code_above_sets_the_record(void **state) {
    (void)state;
    hp_error error;
    assert_int_equal(hp_error_set(HP_ERR_FORMAT, "model_read", "expected %d, given %s", 3, "x"),
                     HP_ERR_FORMAT);
    hp_last_error_get(&error);
    assert_int_equal(error.status, HP_ERR_FORMAT);
    assert_int_equal(error.world_rank, -1);
    assert_string_equal(error.message, "expected 3, given x");
    const char *sentence = hp_last_error();
    assert_ptr_equal(strstr(sentence, "model_read: expected 3, given x (HP_ERR_FORMAT; try: "),
                     sentence);
    (void)hp_error_set(HP_ERR_STATE, NULL, "no name");
    assert_ptr_equal(strstr(hp_last_error(), "no name (HP_ERR_STATE"), hp_last_error());
}

static void *fresh_thread(void *argument) {
    const hp_error *given = argument;
    bool is_good = strcmp(hp_last_error(), "") == 0;
    is_good = is_good && hpi_error_set(given) == given->status;
    return is_good && strstr(hp_last_error(), given->message) ? argument : NULL;
}

static void records_belong_to_threads_and_can_be_carried(void **state) {
    (void)state;
    (void)HPI_FAIL(HP_ERR_BUSY, "expected the other thread's text");
    hp_error mine;
    hp_last_error_get(&mine);
    pthread_t thread;
    void *result = NULL;
    assert_int_equal(pthread_create(&thread, NULL, fresh_thread, &mine), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_ptr_equal(result, &mine);
}

static hp_status passes_on(hp_status status, bool *out_went_on) {
    HP_TRY(status);
    *out_went_on = true;
    return HP_OK;
}

static void try_returns_failures_alone(void **state) {
    (void)state;
    bool went_on = false;
    assert_int_equal(passes_on(HP_ERR_LIMIT, &went_on), HP_ERR_LIMIT);
    assert_false(went_on);
    assert_int_equal(passes_on(HP_IN_PROGRESS, &went_on), HP_OK);
    assert_true(went_on);
}

static void version_is_the_header_s(void **state) {
    (void)state;
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", HP_VERSION_MAJOR, HP_VERSION_MINOR, HP_VERSION_PATCH);
    assert_string_equal(hp_version(), text);
}

/* ---- data types ---------------------------------------------------------------------------- */

static const struct {
    hp_dtype dtype;
    const char *name;
    size_t bytes;
    bool is_float;
    hp_dtype sum;
} dtypes[] = {
    {HP_FP64, "fp64", 8, true, HP_FP64},     {HP_FP32, "fp32", 4, true, HP_FP32},
    {HP_FP16, "fp16", 2, true, HP_FP32},     {HP_BF16, "bf16", 2, true, HP_FP32},
    {HP_INT64, "int64", 8, false, HP_INT64}, {HP_INT32, "int32", 4, false, HP_INT32},
    {HP_INT8, "int8", 1, false, HP_INT8},    {HP_UINT8, "uint8", 1, false, HP_UINT8},
};

static void dtypes_have_names_and_sizes(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        hp_dtype parsed = (hp_dtype)99;
        assert_int_equal(hp_dtype_size(dtypes[i].dtype), dtypes[i].bytes);
        assert_string_equal(hp_dtype_name(dtypes[i].dtype), dtypes[i].name);
        assert_int_equal(hp_dtype_parse(dtypes[i].name, &parsed), HP_OK);
        assert_int_equal(parsed, dtypes[i].dtype);
        assert_int_equal(hpi_dtype_is_float(dtypes[i].dtype), dtypes[i].is_float);
        assert_int_equal(hpi_sum_dtype(dtypes[i].dtype), dtypes[i].sum);
    }
}

static void unknown_dtypes_are_refused(void **state) {
    (void)state;
    assert_int_equal(hp_dtype_size((hp_dtype)8), 0);
    assert_int_equal(hp_dtype_size((hp_dtype)-1), 0);
    assert_string_equal(hp_dtype_name((hp_dtype)8), "?");
    hp_dtype parsed = HP_INT8;
    assert_int_equal(hp_dtype_parse("float32", &parsed), HP_ERR_ARGUMENT);
    assert_record(HP_ERR_ARGUMENT, "given \"float32\"");
    assert_record(HP_ERR_ARGUMENT, "bf16");
    assert_int_equal(hp_dtype_parse(NULL, &parsed), HP_ERR_ARGUMENT);
    assert_int_equal(hp_dtype_parse("", &parsed), HP_ERR_ARGUMENT);
    assert_int_equal(parsed, HP_INT8);
}

static float from_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void every_bf16_value_survives_fp32(void **state) {
    (void)state;
    for (uint32_t h = 0; h <= UINT16_MAX; h++) {
        const float f = hpi_bf16_to_fp32((uint16_t)h);
        const uint16_t back = hpi_fp32_to_bf16(f);
        if (isnan(f)) { /* quiet, with its sign */
            assert_true(isnan(hpi_bf16_to_fp32(back)));
            assert_int_equal(back, h | 0x40U);
        } else {
            assert_int_equal(back, h);
        }
    }
}

/* Between two neighbours h and h + 1: below the midpoint goes down, above it up, on it to even. */
static void fp32_rounds_to_the_nearest_even_bf16(void **state) {
    (void)state;
    for (uint32_t h = 0; h <= UINT16_MAX; h++) {
        if ((h & 0x7fffU) >= 0x7f80U)
            continue;
        const uint32_t middle = h << 16 | 0x8000U;
        assert_int_equal(hpi_fp32_to_bf16(from_bits(middle - 1)), h);
        assert_int_equal(hpi_fp32_to_bf16(from_bits(middle)), h + (h & 1U));
        assert_int_equal(hpi_fp32_to_bf16(from_bits(middle + 1)), h + 1);
    }
    assert_int_equal(hpi_fp32_to_bf16(from_bits(0x7f7fffffU)), 0x7f80); /* above the largest */
    assert_int_equal(hpi_fp32_to_bf16(INFINITY), 0x7f80);
    assert_int_equal(hpi_fp32_to_bf16(-INFINITY), 0xff80);
    assert_true(isnan(hpi_bf16_to_fp32(hpi_fp32_to_bf16(from_bits(0x7f800001U)))));
    assert_true(isnan(hpi_bf16_to_fp32(hpi_fp32_to_bf16(from_bits(0xffffffffU)))));
}

/* ---- options ------------------------------------------------------------------------------- */

static const char *const option_names[] = {
#define X(field, type, name, fallback, least, most, unit, text) name,
#include "base/options.def"
#undef X
};

static int clear_options(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof option_names / sizeof *option_names; i++)
        unsetenv(option_names[i]);
    return unsetenv("HP_TEST_NUMBER");
}

static void options_have_their_defaults(void **state) {
    (void)state;
    hpi_options options;
    assert_int_equal(hpi_options_load(&options), HP_OK);
    assert_int_equal(options.heap_size, 0);
    assert_int_equal(options.signal_timeout_ms, 300000);
    assert_string_equal(options.delay, "");
    setenv("SYMMETRIC_MEMORY_SIGNAL_TIMEOUT_MS", "", 1); /* empty is unset */
    assert_int_equal(hpi_options_load(&options), HP_OK);
    assert_int_equal(options.signal_timeout_ms, 300000);
}

static void options_come_from_the_environment(void **state) {
    (void)state;
    hpi_options options;
    setenv("SYMMETRIC_MEMORY_HEAP_SIZE", "64M", 1);
    setenv("SYMMETRIC_MEMORY_SIGNAL_TIMEOUT_MS", "1500", 1);
    setenv("HYPER_PARALLEL_DELAY", "kind=*,us=1", 1);
    assert_int_equal(hpi_options_load(&options), HP_OK);
    assert_int_equal(options.heap_size, 64 << 20);
    assert_int_equal(options.signal_timeout_ms, 1500);
    assert_string_equal(options.delay, "kind=*,us=1");
}

static void a_bad_option_is_named(void **state) {
    (void)state;
    static const char *const bad[] = {"0", "86400001", "1K", "-1", "12x", " 5", "0x10", "1.5"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        hpi_options options;
        char given[64];
        snprintf(given, sizeof given, "given \"%s\"", bad[i]);
        setenv("SYMMETRIC_MEMORY_SIGNAL_TIMEOUT_MS", bad[i], 1);
        assert_int_equal(hpi_options_load(&options), HP_ERR_ARGUMENT);
        assert_record(HP_ERR_ARGUMENT, "SYMMETRIC_MEMORY_SIGNAL_TIMEOUT_MS");
        assert_record(HP_ERR_ARGUMENT, "from 1 to 86400000");
        assert_record(HP_ERR_ARGUMENT, given);
    }
}

static void numbers_of_other_launchers(void **state) {
    (void)state;
    int64_t value = -5;
    assert_null(hpi_environment("HP_TEST_NUMBER"));
    assert_int_equal(hpi_environment_int("HP_TEST_NUMBER", -2, 9, 7, &value), HP_OK);
    assert_int_equal(value, 7);
    setenv("HP_TEST_NUMBER", "-2", 1);
    assert_int_equal(hpi_environment_int("HP_TEST_NUMBER", -2, 9, 7, &value), HP_OK);
    assert_int_equal(value, -2);
    static const char *const bad[] = {"-3", "10", "1x", "x", "99999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        setenv("HP_TEST_NUMBER", bad[i], 1);
        assert_int_equal(hpi_environment_int("HP_TEST_NUMBER", -2, 9, 7, &value), HP_ERR_ARGUMENT);
        assert_record(HP_ERR_ARGUMENT, bad[i]);
        assert_int_equal(value, -2);
    }
}

static void bytes_take_suffixes(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"0", 0},
                {"1048576", 1048576},
                {"1K", 1024},
                {"64m", UINT64_C(64) << 20},
                {"2G", UINT64_C(2) << 30},
                {"3T", UINT64_C(3) << 40},
                {"18446744073709551615", UINT64_MAX},
                {"16777215T", UINT64_C(16777215) << 40}};
    static const char *const bad[] = {"",
                                      "K",
                                      "-1",
                                      "+1",
                                      "1KB",
                                      "1 K",
                                      "1.5G",
                                      "1P",
                                      "0x10",
                                      "16777216T",
                                      "18446744073709551616",
                                      " 1"};
    uint64_t bytes = 77;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(hpi_parse_bytes(good[i].text, &bytes), HP_OK);
        assert_true(bytes == good[i].bytes);
    }
    bytes = 77;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (hpi_parse_bytes(bad[i], &bytes) != HP_ERR_ARGUMENT)
            fail_msg("expected \"%s\" to be refused", bad[i]);
        assert_record(HP_ERR_ARGUMENT, bad[i]);
    }
    assert_true(bytes == 77);
}

/* ---- memory -------------------------------------------------------------------------------- */

static void memory_is_zeroed_and_counted(void **state) {
    (void)state;
    static const unsigned char zeros[1000];
    const uint64_t before = hpi_alloc_count();
    unsigned char *plain = hpi_alloc(10, 100);
    unsigned char *aligned = hpi_alloc_aligned(256, 1000);
    char *text = hpi_strdup("text");
    void *nothing = hpi_alloc(0, 8);
    assert_int_equal(hpi_alloc_count() - before, 4);
    assert_memory_equal(plain, zeros, 1000);
    assert_memory_equal(aligned, zeros, 1000);
    assert_int_equal((uintptr_t)aligned % 256, 0);
    assert_string_equal(text, "text");
    assert_non_null(nothing);
    hpi_free(plain);
    hpi_free(aligned);
    hpi_free(text);
    hpi_free(nothing);
    hpi_free(NULL);
}

static void the_nth_allocation_fails(void **state) {
    (void)state;
    for (uint64_t n = 1; n <= 3; n++) {
        hpi_alloc_fail_after(n);
        for (uint64_t i = 1; i <= 4; i++) {
            void *memory = i % 2 ? hpi_alloc(1, 16) : hpi_alloc_aligned(64, 16);
            assert_int_equal(memory == NULL, i == n);
            if (!memory)
                assert_record(HP_ERR_MEMORY, "16");
            hpi_free(memory);
        }
    }
    hpi_alloc_fail_after(1);
    assert_null(hpi_strdup("text"));
    hpi_alloc_fail_after(1);
    hpi_alloc_fail_after(0); /* off again */
    void *memory = hpi_alloc(1, 1);
    assert_non_null(memory);
    hpi_free(memory);
}

static void impossible_sizes_are_refused(void **state) {
    (void)state;
#ifdef HP_PLAIN_KERNELS
    print_message("a sanitizer ends the program that asks for such a size\n");
    skip();
#endif
    assert_null(hpi_alloc(SIZE_MAX / 2, 4));
    assert_record(HP_ERR_MEMORY, "the system gave none");
}

/* ---- clocks and numbers -------------------------------------------------------------------- */

static void the_clock_rises_and_sleep_sleeps(void **state) {
    (void)state;
    const uint64_t begin_ns = hpi_now_ns();
    hpi_sleep_ns(2000000);
    assert_true(hpi_now_ns() - begin_ns >= 2000000);
}

/* The first outputs of the published generator for seed 1234567. */
static void random_numbers_are_splitmix64(void **state) {
    (void)state;
    static const uint64_t expected[] = {
        UINT64_C(6457827717110365317), UINT64_C(3203168211198807973), UINT64_C(9817491932198370423),
        UINT64_C(4593380528125082431), UINT64_C(16408922859458223821)};
    uint64_t seed = 1234567;
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        assert_true(hpi_random_next(&seed) == expected[i]);
    double sum = 0;
    for (int i = 0; i < 10000; i++) {
        const double u = hpi_random_unit(&seed);
        assert_true(u >= 0 && u < 1);
        sum += u;
    }
    assert_true(fabs(sum / 10000 - 0.5) < 0.02); /* the seed is fixed, so this is no gamble */
}

static void arithmetic_does_not_surprise(void **state) {
    (void)state;
    assert_int_equal(hpi_ceil_div(0, 4), 0);
    assert_int_equal(hpi_ceil_div(10, 4), 3);
    assert_true(hpi_ceil_div(UINT64_MAX, 2) == UINT64_C(1) << 63);
    assert_int_equal(hpi_align_up(0, 512), 0);
    assert_int_equal(hpi_align_up(513, 512), 1024);
    assert_false(hpi_is_power_of_two(0));
    assert_true(hpi_is_power_of_two(1) && hpi_is_power_of_two(64) && !hpi_is_power_of_two(48));
    uint64_t product = 0;
    assert_true(hpi_multiply(UINT64_C(1) << 32, UINT32_MAX, &product));
    assert_true(product == UINT64_MAX - UINT32_MAX);
    assert_false(hpi_multiply(UINT64_C(1) << 32, UINT64_C(1) << 32, &product));
    assert_int_equal(hpi_min(3, 5), 3);
    assert_int_equal(hpi_max(3, 5), 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(code_above_sets_the_record),
        cmocka_unit_test(status_table_is_complete),
        cmocka_unit_test(a_failure_leaves_a_record),
        cmocka_unit_test(a_long_message_is_cut),
        cmocka_unit_test(a_long_sentence_is_cut),
        cmocka_unit_test(records_belong_to_threads_and_can_be_carried),
        cmocka_unit_test(try_returns_failures_alone),
        cmocka_unit_test(version_is_the_header_s),
        cmocka_unit_test(dtypes_have_names_and_sizes),
        cmocka_unit_test(unknown_dtypes_are_refused),
        cmocka_unit_test(every_bf16_value_survives_fp32),
        cmocka_unit_test(fp32_rounds_to_the_nearest_even_bf16),
        cmocka_unit_test_setup_teardown(options_have_their_defaults, clear_options, clear_options),
        cmocka_unit_test_setup_teardown(options_come_from_the_environment, clear_options,
                                        clear_options),
        cmocka_unit_test_setup_teardown(a_bad_option_is_named, clear_options, clear_options),
        cmocka_unit_test_setup_teardown(numbers_of_other_launchers, clear_options, clear_options),
        cmocka_unit_test(bytes_take_suffixes),
        cmocka_unit_test(memory_is_zeroed_and_counted),
        cmocka_unit_test(the_nth_allocation_fails),
        cmocka_unit_test(impossible_sizes_are_refused),
        cmocka_unit_test(the_clock_rises_and_sleep_sleeps),
        cmocka_unit_test(random_numbers_are_splitmix64),
        cmocka_unit_test(arithmetic_does_not_surprise),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

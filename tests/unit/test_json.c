/* SPDX-License-Identifier: Apache-2.0
 *
 * test_json.c - the reader of JSON: what it finds, what it refuses, and that depth cannot hurt it.
 */
#include "fsdp/checkpoint/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* A document over a copy of the text; the copy is one byte longer than nothing, so that a sanitizer
 * sees every step too far. */
static hp_status parse(const char *text, hpi_json *json) {
    const size_t n = strlen(text);
    char *copy = malloc(n ? n : 1);
    assert_non_null(copy);
    memcpy(copy, text, n);
    const hp_status status = hpi_json_parse("text", copy, n, json);
    if (status < 0)
        free(copy);
    return status;
}

static void drop(hpi_json *json) {
    free(json->text);
    hpi_json_free(json);
}

static void finds_values(void **state) {
    (void)state;
    hpi_json json;
    uint64_t value = 0;
    assert_int_equal(parse(" {\"a\": 7, \"b\": [1, [2, 3], {\"c\": \"x\"}], \"d\": {}, \"e\": "
                           "18446744073709551615, \"f\": null} ",
                           &json),
                     HP_OK);
    assert_int_equal(hpi_json_size(&json, 0), 5);
    assert_true(hpi_json_u64(&json, hpi_json_find(&json, 0, "a"), &value));
    assert_int_equal(value, 7);
    const hpi_json_at b = hpi_json_find(&json, 0, "b");
    assert_int_equal(hpi_json_size(&json, b), 3);
    hpi_json_at at = hpi_json_first(&json, b);
    at = hpi_json_next(&json, b, at);
    assert_int_equal(hpi_json_size(&json, at), 2);
    at = hpi_json_next(&json, b, at); /* over the inner array as a whole */
    assert_string_equal(hpi_json_string(&json, hpi_json_find(&json, at, "c")), "x");
    assert_int_equal(hpi_json_next(&json, b, at), HPI_JSON_NONE);
    assert_int_equal(hpi_json_first(&json, hpi_json_find(&json, 0, "d")), HPI_JSON_NONE);
    assert_true(hpi_json_u64(&json, hpi_json_find(&json, 0, "e"), &value));
    assert_true(value == UINT64_MAX);
    assert_false(hpi_json_u64(&json, hpi_json_find(&json, 0, "f"), &value));
    /* Look-ups of what is not there chain. */
    assert_null(hpi_json_string(&json, hpi_json_find(&json, hpi_json_find(&json, 0, "x"), "y")));
    assert_int_equal(hpi_json_size(&json, HPI_JSON_NONE), 0);
    drop(&json);
}

static void strings_come_back(void **state) {
    (void)state;
    static const char *const names[] = {
        "", "plain", "with \"quotes\" and \\", "\n\t\x01\x1f", "gr\xc3\xbc\xc3\x9f", "{[,:]}"};
    hpi_text text = {0};
    hpi_json json;
    hpi_text_add(&text, "[");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        hpi_text_add(&text, i ? ",\"" : "\"");
        hpi_text_add_escaped(&text, names[i]);
        hpi_text_add(&text, "\"");
    }
    hpi_text_add(&text, "]");
    assert_false(text.is_failed);
    assert_int_equal(hpi_json_parse("text", text.data, text.n_bytes, &json), HP_OK);
    for (uint32_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_string_equal(hpi_json_string(&json, i + 1), names[i]);
    hpi_json_free(&json);
    hpi_text_free(&text);
    assert_int_equal(parse("[\"\\u00fc\\u20AC\\ud83d\\ude00\\/\\b\\f\\r\"]", &json), HP_OK);
    assert_string_equal(hpi_json_string(&json, 1), "\xc3\xbc\xe2\x82\xac\xf0\x9f\x98\x80/\b\f\r");
    drop(&json);
}

static void refuses_what_is_no_json(void **state) {
    (void)state;
    static const char *const texts[] = {
        "",
        " ",
        "7",
        "\"x\"",
        "{",
        "[1,2",
        "}",
        "[]]",
        "[]:]",
        "[[]:[1]]",
        "[[]:1]",
        "[{}:{\"a\":1}]",
        "[37e0[37e0:]:]",
        "[1x]",
        "[01]",
        "[-]",
        "[1.]",
        "[1e+]",
        "[tru]",
        "[nullx]",
        "[]:[1]",
        "{}:]][[1]]",
        "{}{}",
        "[1}",
        "{\"a\"}",
        "{\"a\" \"b\"}",
        "{\"a\":1 \"b\":2}",
        "{1:2}",
        "{[]:1}",
        "{\"a\":}",
        "{\"a\":[\"x\"]:5}",
        "[\"a\":1]",
        "[\"\\x\"]",
        "[\"\\u12\"]",
        "[\"\\u0000\"]",
        "[\"\\ud83d\"]",
        "[\"\\ud83dxxxxxx\"]",
        "[\"\\ude00\"]",
        "[\"abc",
        "[\"abc\\",
        "[nonsense",
        "[1\"]",
        "[1 \"a\"]",
        "[\"a\" \"b\"]",
        "[\"a\"[]]",
        "{\"a\":[1\",[],1\"]}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        hpi_json json;
        assert_int_equal(parse(texts[i], &json), HP_ERR_FORMAT);
        assert_non_null(strstr(hp_last_error(), "text"));
    }
    hpi_json json;
    char with_nul[] = "[1]\0[2]";
    assert_int_equal(hpi_json_parse("text", with_nul, sizeof with_nul - 1, &json), HP_ERR_FORMAT);
}

static void numbers_are_digits(void **state) {
    (void)state;
    hpi_json json;
    uint64_t value = 5;
    assert_int_equal(
        parse("[-1,1.0,1e3,18446744073709551616,true,\"1\",99999999999999999999]", &json), HP_OK);
    for (uint32_t i = 1; i < json.n_nodes; i++)
        assert_false(hpi_json_u64(&json, i, &value));
    assert_int_equal(value, 5);
    drop(&json);
}

/* A million brackets end at once, and a long flat text is read. */
static void depth_and_length(void **state) {
    (void)state;
    const size_t n = 1000000;
    hpi_json json;
    char *text = malloc(2 * n + 3);
    assert_non_null(text);
    memset(text, '[', n);
    memset(text + n, ']', n);
    assert_int_equal(hpi_json_parse("text", text, 2 * n, &json), HP_ERR_FORMAT);
    text[0] = '[';
    for (size_t i = 0; i < n; i++)
        memcpy(text + 1 + 2 * i, i + 1 < n ? "1," : "1]", 2);
    assert_int_equal(hpi_json_parse("text", text, 2 * n + 1, &json), HP_OK);
    assert_int_equal(hpi_json_size(&json, 0), n);
    hpi_json_free(&json);
    free(text);
}

/* jsmn takes quotes into numbers, and what stands between two such is no string for it: brackets
 * there count. Of so many it would close the last ones for minutes. */
static void depth_cannot_hide_behind_quotes(void **state) {
    (void)state;
    static const char *const numbers[] = {"1\"", "1 \"", "-[\"", "t{\"", "1:\"", "\"a\":1:\""};
    const size_t n = 500000;
    char *text = malloc(2 * n + 64), *brackets = malloc(2 * n + 1);
    assert_true(text && brackets);
    memset(brackets, '[', n);
    memset(brackets + n, ']', n);
    brackets[2 * n] = '\0';
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        hpi_json json;
        const int n_bytes =
            snprintf(text, 2 * n + 64, "{\"a\":[%s,%s,%s]}", numbers[i], brackets, numbers[i]);
        assert_int_equal(hpi_json_parse("text", text, (uint64_t)n_bytes, &json), HP_ERR_FORMAT);
    }
    free(brackets);
    free(text);
}

/* Every text at a distance of one byte from a good one is answered, whatever the answer. */
static void flipped_bytes_do_no_harm(void **state) {
    (void)state;
    static const char good[] =
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"o\":[0,24]},\"\\u00fc\":[]}";
    for (size_t i = 0; i < sizeof good - 1; i++)
        for (unsigned b = 0; b < 256; b++) {
            char *text = malloc(sizeof good - 1);
            hpi_json json;
            assert_non_null(text);
            memcpy(text, good, sizeof good - 1);
            text[i] = (char)b;
            if (hpi_json_parse("text", text, sizeof good - 1, &json) == HP_OK) {
                (void)hpi_json_find(&json, hpi_json_find(&json, 0, "a"), "dtype");
                hpi_json_free(&json);
            }
            free(text);
        }
}

static void failed_allocations_are_reported(void **state) {
    (void)state;
    for (uint64_t n = 1; n <= 2; n++) {
        hpi_json json;
        hpi_alloc_fail_after(n);
        assert_int_equal(parse("[1,2]", &json), HP_ERR_MEMORY);
    }
    hpi_alloc_fail_after(1);
    hpi_text text = {0};
    hpi_text_add(&text, "%d", 1);
    hpi_text_add(&text, "%d", 2);
    hpi_alloc_fail_after(0);
    assert_true(text.is_failed);
    hpi_text_free(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_values),
        cmocka_unit_test(strings_come_back),
        cmocka_unit_test(refuses_what_is_no_json),
        cmocka_unit_test(numbers_are_digits),
        cmocka_unit_test(depth_and_length),
        cmocka_unit_test(depth_cannot_hide_behind_quotes),
        cmocka_unit_test(flipped_bytes_do_no_harm),
        cmocka_unit_test(failed_allocations_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

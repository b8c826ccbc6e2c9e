/* SPDX-License-Identifier: Apache-2.0
 *
 * test_qwen3_config.c - config.json: what Transformers writes is read, what is broken is refused.
 *
 * A refusal must name the file and the field, and leave the caller's struct as it was. The text of
 * Transformers 5 was written by save_pretrained, that of 4.51 by hand after its documentation.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "qwen3/config.h"

#include <locale.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Transformers 5.24, of all fields but the labels. */
static const char transformers_5[] =
    "{\"architectures\": [\"Qwen3ForCausalLM\"], \"attention_bias\": false,"
    " \"attention_dropout\": 0.0, \"bos_token_id\": null, \"chunk_size_feed_forward\": 0,"
    " \"dtype\": \"float32\", \"eos_token_id\": null, \"head_dim\": 8, \"hidden_act\": \"silu\","
    " \"hidden_size\": 32, \"id2label\": {\"0\": \"LABEL_0\", \"1\": \"LABEL_1\"},"
    " \"initializer_range\": 0.5, \"intermediate_size\": 64, \"is_encoder_decoder\": false,"
    " \"layer_types\": [\"full_attention\", \"full_attention\"],"
    " \"max_position_embeddings\": 1024, \"max_window_layers\": 28, \"model_type\": \"qwen3\","
    " \"num_attention_heads\": 4, \"num_hidden_layers\": 2, \"num_key_value_heads\": 2,"
    " \"output_attentions\": false, \"pad_token_id\": null, \"problem_type\": null,"
    " \"return_dict\": true, \"rms_norm_eps\": 1e-05,"
    " \"rope_parameters\": {\"rope_theta\": 5000.0, \"rope_type\": \"default\"},"
    " \"sliding_window\": null, \"tie_word_embeddings\": true,"
    " \"transformers_version\": \"5.24.0\", \"use_cache\": true, \"use_sliding_window\": false,"
    " \"vocab_size\": 96}\n";

/* Transformers 4.51: theta at the top, no layer_types. */
static const char transformers_4[] =
    "{\"architectures\": [\"Qwen3ForCausalLM\"], \"attention_bias\": false,"
    " \"attention_dropout\": 0.0, \"bos_token_id\": 151643, \"eos_token_id\": 151645,"
    " \"head_dim\": 128, \"hidden_act\": \"silu\", \"hidden_size\": 1024,"
    " \"initializer_range\": 0.02, \"intermediate_size\": 3072,"
    " \"max_position_embeddings\": 40960, \"max_window_layers\": 28, \"model_type\": \"qwen3\","
    " \"num_attention_heads\": 16, \"num_hidden_layers\": 28, \"num_key_value_heads\": 8,"
    " \"rms_norm_eps\": 1e-06, \"rope_scaling\": null, \"rope_theta\": 1000000,"
    " \"sliding_window\": null, \"tie_word_embeddings\": true, \"torch_dtype\": \"bfloat16\","
    " \"transformers_version\": \"4.51.0\", \"use_cache\": true, \"use_sliding_window\": false,"
    " \"vocab_size\": 151936}";

/* The sizes alone; tests add to them. */
#define HEADS                                                                                      \
    "\"model_type\": \"qwen3\", \"vocab_size\": 96, \"hidden_size\": 32, "                         \
    "\"intermediate_size\": 64, \"num_hidden_layers\": 2, \"num_attention_heads\": 4"
#define SIZES HEADS ", \"num_key_value_heads\": 2"

static char path[] = "/tmp/qwen3-config-XXXXXX";

static void write_file(const char *text, size_t n) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static qwen3_config read_good(const char *text) {
    qwen3_config config;
    write_file(text, strlen(text));
    if (qwen3_config_read(path, &config) < 0)
        fail_msg("%s", hp_last_error());
    return config;
}

/* says: what the message must hold besides the path. */
static void refuse_bytes(const char *text, size_t n, hp_status status, const char *says) {
    qwen3_config config, before;
    memset(&config, 0x5a, sizeof config);
    before = config;
    write_file(text, n);
    const hp_status given = qwen3_config_read(path, &config);
    if (given != status || !strstr(hp_last_error(), path) || !strstr(hp_last_error(), says))
        fail_msg("'%.80s': expected %s saying '%s', given %s: %s", text, hp_status_name(status),
                 says, hp_status_name(given), given < 0 ? hp_last_error() : "");
    assert_memory_equal(&config, &before, sizeof config);
}

static void refuse(const char *text, hp_status status, const char *says) {
    refuse_bytes(text, strlen(text), status, says);
}

/* The sizes with one more member. */
static void refuse_member(const char *member, hp_status status, const char *says) {
    char text[1024];
    snprintf(text, sizeof text, "{" SIZES ", %s}", member);
    refuse(text, status, says);
}

static void read_member(const char *member) {
    char text[1024];
    snprintf(text, sizeof text, "{" SIZES ", %s}", member);
    (void)read_good(text);
}

static void what_transformers_writes_is_read(void **state) {
    (void)state;
    const qwen3_config five = read_good(transformers_5), four = read_good(transformers_4);
    assert_int_equal(five.size, sizeof five);
    assert_int_equal(five.vocab_size, 96);
    assert_int_equal(five.hidden_size, 32);
    assert_int_equal(five.intermediate_size, 64);
    assert_int_equal(five.num_hidden_layers, 2);
    assert_int_equal(five.num_attention_heads, 4);
    assert_int_equal(five.num_key_value_heads, 2);
    assert_int_equal(five.head_dim, 8);
    assert_int_equal(five.max_position_embeddings, 1024);
    assert_int_equal(five.tie_word_embeddings, 1);
    assert_true(five.rms_norm_eps == 1e-5 && five.rope_theta == 5000);
    assert_true(five.initializer_range == 0.5);
    assert_int_equal(four.num_hidden_layers, 28);
    assert_int_equal(four.head_dim, 128);
    assert_true(four.rope_theta == 1e6 && four.rms_norm_eps == 1e-6);
}

static void missing_fields_take_the_defaults(void **state) {
    (void)state;
    const qwen3_config config = read_good("{" SIZES "}");
    assert_int_equal(config.head_dim, 128);
    assert_int_equal(config.tie_word_embeddings, 0);
    assert_true(config.rope_theta == 10000 && config.rms_norm_eps == 1e-6);
    assert_int_equal(config.num_key_value_heads, 2);
    assert_int_equal(read_good("{" HEADS ", \"num_key_value_heads\": null}").num_key_value_heads,
                     4);
    read_member("\"rope_theta\": 3e5, \"rope_parameters\": {\"rope_theta\": 300000}");
    read_member("\"rope_parameters\": null, \"rope_scaling\": {\"type\": \"default\"}");
    read_member("\"architectures\": null, \"layer_types\": null, \"pruned_heads\": {}");
}

static void sizes_must_be_there(void **state) {
    (void)state;
    static const char *const names[] = {
        "vocab_size",          "hidden_size",         "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "model_type"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char text[1024], *at;
        snprintf(text, sizeof text, "{" SIZES "}");
        at = strstr(text, names[i]);
        memcpy(at, "dtype_____________________", strlen(names[i])); /* an unknown name */
        refuse(text, HP_ERR_FORMAT, "dtype_");
        snprintf(text, sizeof text, "{" SIZES "}");
        at = strstr(text, names[i]) - 1;
        char *end = strchr(at, ',') ? strchr(at, ',') + 1 : strchr(at, '}');
        memmove(at, end, strlen(end) + 1);
        if (strcmp(names[i], "num_key_value_heads") == 0) /* the last one */
            *(strrchr(text, ',')) = ' ';
        refuse(text, HP_ERR_FORMAT, names[i]);
    }
}

static void what_is_not_built_is_refused(void **state) {
    (void)state;
    refuse_member("\"hidden_act\": \"gelu\"", HP_ERR_UNSUPPORTED, "hidden_act");
    refuse_member("\"attention_bias\": true", HP_ERR_UNSUPPORTED, "attention_bias");
    refuse_member("\"attention_dropout\": 0.1", HP_ERR_UNSUPPORTED, "attention_dropout");
    refuse_member("\"use_sliding_window\": true", HP_ERR_UNSUPPORTED, "use_sliding_window");
    refuse_member("\"layer_types\": [\"full_attention\", \"sliding_attention\"]",
                  HP_ERR_UNSUPPORTED, "layer_types");
    refuse_member("\"architectures\": [\"Qwen3ForSequenceClassification\"]", HP_ERR_UNSUPPORTED,
                  "architectures");
    refuse_member("\"rope_scaling\": {\"factor\": 4.0, \"rope_type\": \"yarn\"}",
                  HP_ERR_UNSUPPORTED, "yarn");
    refuse_member("\"rope_parameters\": {\"rope_theta\": 1e4, \"rope_type\": \"linear\"}",
                  HP_ERR_UNSUPPORTED, "linear");
    refuse_member("\"pruned_heads\": {\"0\": [1]}", HP_ERR_UNSUPPORTED, "pruned_heads");
    refuse("{\"model_type\": \"llama\", \"vocab_size\": 3}", HP_ERR_UNSUPPORTED, "model_type");
}

static void broken_fields_are_named(void **state) {
    (void)state;
    refuse_member("\"hidden_sizes\": 3", HP_ERR_FORMAT, "hidden_sizes");
    refuse_member("\"quantization_config\": {}", HP_ERR_FORMAT, "quantization_config");
    refuse_member("\"vocab_size\": 96", HP_ERR_FORMAT, "vocab_size");
    refuse_member("\"head_dim\": \"8\"", HP_ERR_FORMAT, "head_dim");
    refuse_member("\"head_dim\": 8.5", HP_ERR_FORMAT, "head_dim");
    refuse_member("\"head_dim\": -8", HP_ERR_FORMAT, "head_dim");
    refuse_member("\"head_dim\": 0", HP_ERR_FORMAT, "head_dim");
    refuse_member("\"head_dim\": 7", HP_ERR_FORMAT, "head_dim");
    refuse_member("\"head_dim\": 1e30", HP_ERR_FORMAT, "head_dim");
    refuse_member("\"head_dim\": 1e999", HP_ERR_FORMAT, "head_dim");
    refuse_member("\"head_dim\": null", HP_ERR_FORMAT, "head_dim");
    refuse_member("\"head_dim\": [8]", HP_ERR_FORMAT, "head_dim");
    refuse("{" HEADS ", \"num_key_value_heads\": 3}", HP_ERR_FORMAT, "num_key_value_heads");
    refuse("{" HEADS ", \"num_key_value_heads\": 0}", HP_ERR_FORMAT, "num_key_value_heads");
    refuse("{" HEADS ", \"num_key_value_heads\": 8}", HP_ERR_FORMAT, "num_key_value_heads");
    refuse("{" HEADS ", \"num_key_value_heads\": -2147483648}", HP_ERR_FORMAT,
           "num_key_value_heads");
    refuse_member("\"tie_word_embeddings\": 1", HP_ERR_FORMAT, "tie_word_embeddings");
    refuse_member("\"rms_norm_eps\": \"small\"", HP_ERR_FORMAT, "rms_norm_eps");
    refuse_member("\"rms_norm_eps\": 1e999", HP_ERR_FORMAT, "rms_norm_eps");
    refuse_member("\"rms_norm_eps\": -1e-6", HP_ERR_FORMAT, "rms_norm_eps");
    refuse_member("\"rope_theta\": 0", HP_ERR_FORMAT, "rope_theta");
    refuse_member("\"rope_theta\": 1e4, \"rope_parameters\": {\"rope_theta\": 1e6}", HP_ERR_FORMAT,
                  "rope_theta");
    refuse_member("\"rope_parameters\": 3", HP_ERR_FORMAT, "rope_parameters");
    refuse_member("\"rope_parameters\": {\"rope_thetas\": 3}", HP_ERR_FORMAT, "rope_thetas");
    refuse_member("\"layer_types\": [\"full_attention\"]", HP_ERR_FORMAT, "layer_types");
    refuse_member("\"layer_types\": \"full_attention\"", HP_ERR_FORMAT, "layer_types");
    refuse_member("\"architectures\": \"Qwen3ForCausalLM\"", HP_ERR_FORMAT, "architectures");
    refuse_member("\"hidden_act\": null", HP_ERR_FORMAT, "hidden_act");
    refuse_member("\"attention_bias\": 0", HP_ERR_FORMAT, "attention_bias");
}

static void what_is_no_config_is_refused(void **state) {
    (void)state;
    refuse("", HP_ERR_FORMAT, "line 1");
    refuse("[1]", HP_ERR_FORMAT, "object");
    refuse("\"qwen3\"", HP_ERR_FORMAT, "object");
    refuse("{" SIZES "\n\n", HP_ERR_FORMAT, "line 2");
    refuse("{" SIZES "} {}", HP_ERR_FORMAT, "line 1");
    refuse("{" SIZES ", \"hidden_act\": \"silu\\u0000x\"}", HP_ERR_FORMAT, "line");
    refuse("\x7f"
           "ELF\x02\x01",
           HP_ERR_FORMAT, "line 1");
    for (size_t n = 0; n < sizeof transformers_5 - 2; n++) /* cut anywhere */
        refuse_bytes(transformers_5, n, HP_ERR_FORMAT, "");
    char *deep = malloc(100000);
    memset(deep, '[', 100000);
    refuse_bytes(deep, 100000, HP_ERR_FORMAT, "");
    free(deep);
}

/* No more is read than a config.json can have. */
static void a_huge_file_is_not_read(void **state) {
    (void)state;
    qwen3_config config;
    write_file("{", 1);
    assert_int_equal(truncate(path, (off_t)1 << 30), 0);
    assert_int_equal(qwen3_config_read(path, &config), HP_ERR_FORMAT);
    assert_non_null(strstr(hp_last_error(), "1048576 bytes"));
    assert_int_equal(truncate(path, 0), 0);
}

static void files_that_cannot_be_read_are_named(void **state) {
    (void)state;
    qwen3_config config;
    assert_int_equal(qwen3_config_read("/nowhere/config.json", &config), HP_ERR_FILE);
    assert_non_null(strstr(hp_last_error(), "/nowhere/config.json"));
    assert_int_equal(qwen3_config_read("/tmp", &config), HP_ERR_FILE);
    assert_non_null(strstr(hp_last_error(), "/tmp: expected a regular file"));
    assert_int_equal(qwen3_config_read(NULL, &config), HP_ERR_ARGUMENT);
    assert_int_equal(qwen3_config_read(path, NULL), HP_ERR_ARGUMENT);
}

/* Nobody writes into it: to wait would be to wait for ever. */
static void a_fifo_is_refused(void **state) {
    (void)state;
    qwen3_config config;
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    alarm(20);
    assert_int_equal(qwen3_config_read(path, &config), HP_ERR_FILE);
    alarm(0);
    assert_non_null(strstr(hp_last_error(), "expected a regular file"));
    assert_int_equal(unlink(path), 0);
}

static void what_is_written_is_read_again(void **state) {
    (void)state;
    char text[2048], text_again[2048];
    qwen3_config config = QWEN3_CONFIG_INIT;
    for (int i = 0; i < 2; i++) {
        const int n = qwen3_config_write(&config, HP_BF16, text, sizeof text);
        assert_int_equal(n, strlen(text));
        assert_non_null(strstr(text, "bfloat16"));
        const qwen3_config again = read_good(text);
        assert_int_equal(qwen3_config_write(&again, HP_BF16, text_again, sizeof text_again), n);
        assert_string_equal(text_again, text);
        assert_true(again.rope_theta == config.rope_theta &&
                    again.rms_norm_eps == config.rms_norm_eps &&
                    again.initializer_range == config.initializer_range);
        assert_int_equal(qwen3_config_write(&config, HP_BF16, text, (size_t)n), -1);
        assert_int_equal(qwen3_config_write(&config, HP_BF16, text, (size_t)n + 1), n);
        config = read_good(transformers_5);
        config.rope_theta = 1234567.8910111213; /* needs all 17 digits */
        config.rms_norm_eps = 0x1.23456789abcdfp-20;
        config.initializer_range = 1;
    }
}

/* A locale that has a comma where others have a point, made here since few machines have one.
 * Returns false where that cannot be done. */
static bool enter_comma_locale(const char *folder) {
    static const char source[] = "LC_NUMERIC\ndecimal_point \"<U002C>\"\nthousands_sep \"\"\n"
                                 "grouping -1\nEND LC_NUMERIC\n";
    char command[256];
    write_file(source, strlen(source));
    snprintf(command, sizeof command,
             "localedef --no-archive -c -i %s -f UTF-8 %s/comma >/dev/null 2>&1", path, folder);
    (void)!system(command); /* warns of all that is not in the source */
    setenv("LOCPATH", folder, 1);
    return setlocale(LC_NUMERIC, "comma") != NULL;
}

static void the_locale_changes_nothing(void **state) {
    (void)state;
    char text[2048], expected[2048], folder[] = "/tmp/qwen3-locale-XXXXXX", command[64];
    assert_non_null(mkdtemp(folder));
    qwen3_config config = read_good(transformers_5);
    config.rope_theta = 1234567.8910111213;
    assert_true(qwen3_config_write(&config, HP_FP32, expected, sizeof expected) > 0);
    const bool is_in = enter_comma_locale(folder);
    if (is_in) {
        snprintf(text, sizeof text, "%.1f", 0.5);
        assert_string_equal(text, "0,5");
        assert_true(qwen3_config_write(&config, HP_FP32, text, sizeof text) > 0);
        config = read_good(text);
    }
    setlocale(LC_NUMERIC, "C");
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
    if (!is_in) {
        print_message("no locale with a decimal comma could be made here (localedef)\n");
        skip();
    }
    assert_string_equal(text, expected);
    assert_true(config.rope_theta == 1234567.8910111213);
}

static void sizes_are_checked_against_each_other(void **state) {
    (void)state;
    const qwen3_config good = QWEN3_CONFIG_INIT;
    assert_int_equal(qwen3_config_check(&good), HP_OK);
    assert_int_equal(qwen3_config_check(NULL), HP_ERR_ARGUMENT);
    qwen3_config bad = good;
    bad.size = 4;
    assert_int_equal(qwen3_config_check(&bad), HP_ERR_ARGUMENT);
    bad = good;
    bad.rms_norm_eps = NAN;
    assert_int_equal(qwen3_config_check(&bad), HP_ERR_ARGUMENT);
    assert_non_null(strstr(hp_last_error(), "rms_norm_eps"));
    bad = good;
    bad.num_attention_heads = 33;
    assert_int_equal(qwen3_config_check(&bad), HP_ERR_ARGUMENT);
    assert_non_null(strstr(hp_last_error(), "33 and 32"));
}

static int make_path(void **state) {
    (void)state;
    const int fd = mkstemp(path);
    return fd < 0 ? 1 : close(fd);
}

static int remove_path(void **state) {
    (void)state;
    return unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_transformers_writes_is_read),
        cmocka_unit_test(missing_fields_take_the_defaults),
        cmocka_unit_test(sizes_must_be_there),
        cmocka_unit_test(what_is_not_built_is_refused),
        cmocka_unit_test(broken_fields_are_named),
        cmocka_unit_test(what_is_no_config_is_refused),
        cmocka_unit_test(a_huge_file_is_not_read),
        cmocka_unit_test(files_that_cannot_be_read_are_named),
        cmocka_unit_test(a_fifo_is_refused),
        cmocka_unit_test(what_is_written_is_read_again),
        cmocka_unit_test(the_locale_changes_nothing),
        cmocka_unit_test(sizes_are_checked_against_each_other),
    };
    return cmocka_run_group_tests_name("qwen3_config", tests, make_path, remove_path);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * test_weights_broken.c - files and indexes that lie, are cut, or are of another model.
 *
 * Each case damages a directory that loads, names what the error must say, and is tried on two
 * ranks; afterwards every weight is the zero that it was. Without damage the same directory loads,
 * so that no case fails for a reason of its own.
 */
#include "unit/weights_model.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* ---- loading --------------------------------------------------------------------------------- */

typedef struct attempt {
    const char *name; /* in the scratch directory */
    hp_status status;
    char message[640];
} attempt;

static void check_untouched(const weights_model *m) {
    hp_shard shard;
    for (int row = 0; row < ROW_LEFT; row++) {
        RANK_OK(hp_param_shard(m->unit, row, &shard));
        for (uint64_t i = 0; i < shard.n_elements; i++)
            RANK_CHECK(weights_read(shard.values, shard.dtype, i) == 0);
    }
    RANK_OK(hp_fsdp_begin(m->fsdp, HP_EVALUATE)); /* as sound as before */
    RANK_OK(hp_fsdp_end(m->fsdp));
}

static void load(hp_world *world, void *argument) {
    attempt *a = argument;
    hp_error error;
    char path[128];
    weights_model m;
    snprintf(path, sizeof path, "%s/%s", scratch, a->name);
    weights_create(world, 1, 0, &m);
    const hp_status status = hp_weights_load(m.fsdp, path);
    hp_last_error_get(&error);
    if (status < 0)
        check_untouched(&m);
    if (hp_world_rank(world) == 0) {
        a->status = status;
        memcpy(a->message, error.message, sizeof a->message);
    }
    weights_destroy(&m);
}

static void expect(const char *name, hp_status expected, const char *const *says) {
    attempt a = {.name = name};
    ranks_run(2, RANKS_THREADS, load, &a);
    if (a.status != expected)
        fail_msg("expected %s, found %s: %s", hp_status_name(expected), hp_status_name(a.status),
                 a.message);
    for (; expected < 0 && *says; says++)
        if (!strstr(a.message, *says))
            fail_msg("expected the message to say '%s', it says '%s'", *says, a.message);
}

/* ---- damaging -------------------------------------------------------------------------------- */

static size_t read_whole(const char *name, char *out, size_t size) {
    FILE *file = fopen(scratch_path(name), "r");
    assert_non_null(file);
    const size_t n = fread(out, 1, size, file);
    fclose(file);
    return n;
}

/* Replace one text of a header, whose size is set right. */
static void edit_header(const char *name, const char *from, const char *to) {
    char file[8192], header[8192] = {0};
    uint64_t size;
    const size_t n = read_whole(name, file, sizeof file);
    memcpy(&size, file, sizeof size);
    file[8 + size - 1] = '\0'; /* the last bracket, for strstr; written again below */
    const char *at = strstr(file + 8, from);
    assert_non_null(at);
    snprintf(header, sizeof header, "%.*s%s%s}", (int)(at - file - 8), file + 8, to,
             at + strlen(from));
    weights_put(name, header, file + 8 + size, n - 8 - size);
}

static void edit_text(const char *name, const char *from, const char *to) {
    char text[8192] = {0}, edited[16384];
    (void)read_whole(name, text, sizeof text - 1);
    const char *at = strstr(text, from);
    assert_non_null(at);
    snprintf(edited, sizeof edited, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    scratch_write(name, edited);
}

/* ---- one file -------------------------------------------------------------------------------- */

#define ONE "one.safetensors"

typedef struct edit_case {
    const char *from, *to;
    const char *says[4];
} edit_case;

static void put_one(void) {
    weights_put_rows(ONE, 0, ROW_LEFT, 0, HP_FP32);
}

static void headers_of_another_model(void **state) {
    (void)state;
    static const edit_case cases[] = {
        {"\"scalar\"",
         "\"scalxr\"",
         {ONE, "1 are missing, such as tensor \"scalar\"",
          "1 are not the model's, such as tensor \"scalxr\" in /"}},
        {"\"scalar\":{",
         "\"extra\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[288,288]},\"scalar\":{",
         {ONE, "expected the model's tensors alone, 1 are not", "tensor \"extra\""}},
        {"[5,3]", "[3,5]", {ONE ": tensor \"w\": expected shape [5, 3], found [3, 5]"}},
        {"[5,3]", "[15]", {ONE ": tensor \"w\": expected shape [5, 3], found [15]"}},
        {"[]", "[1]", {ONE ": tensor \"scalar\": expected shape [], found [1]"}},
        {"[0,4]", "[0]", {ONE ": tensor \"empty\": expected shape [0, 4], found [0]"}},
        {"\"w.alias\":{\"dtype\":\"F32\",\"shape\":[5,3]",
         "\"w.alias\":{\"dtype\":\"F32\",\"shape\":[3,5]",
         {ONE ": tensor \"w.alias\": expected shape [5, 3], found [3, 5]"}},
        {"\"w\":{\"dtype\":\"F32\"",
         "\"w\":{\"dtype\":\"I32\"",
         {ONE ": tensor \"w\": expected dtype F32, BF16, F16 or F64, found I32"}},
        {"I64", "F64", {ONE ": tensor \"ids\": expected dtype I64, found F64"}},
        {"F32", "F8_E4M3", {ONE ": tensor \"w\": expected a dtype such as F32, found F8_E4M3"}},
    };
    put_one();
    expect(ONE, HP_OK, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_one();
        edit_header(ONE, cases[i].from, cases[i].to);
        expect(ONE, HP_ERR_FORMAT, cases[i].says);
    }
}

static void headers_that_lie(void **state) {
    (void)state;
    static const edit_case cases[] = {
        {"[120,216]", "[116,212]", {ONE ": tensor \"inner\"", "nor overlap"}},
        {"[120,216]", "[124,220]", {ONE ": tensor \"inner\"", "neither gap"}},
        {"[288,292]", "[288,296]", {ONE ": tensor \"scalar\": expected data_offsets"}},
        {"[288,292]", "[288]", {ONE ": tensor \"scalar\": expected data_offsets"}},
        {"[5,3]", "[5,-3]", {ONE ": tensor \"w\": expected a shape"}},
        {"[5,3]", "[4611686018427387904,4]", {ONE ": tensor \"w\": expected a shape", "product"}},
        {"\"half\"", "\"w\"", {ONE ": tensor \"w\": expected once, found twice"}},
        {"{\"__metadata__\"", "[\"__metadata__\"", {ONE ": expected"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_one();
        edit_header(ONE, cases[i].from, cases[i].to);
        expect(ONE, HP_ERR_FORMAT, cases[i].says);
    }
}

/* Both names of a tied parameter, with values that differ in one bit on one rank. */
static void a_tie_that_the_file_does_not_know(void **state) {
    (void)state;
    static const char *const says[] = {
        ONE ": tensor \"w.alias\": expected the values of \"w\", with which the model ties it",
        NULL};
    struct stat about;
    for (int element = 0; element < 15; element += 7) {
        put_one();
        assert_int_equal(stat(scratch_path(ONE), &about), 0);
        FILE *file = fopen(scratch_path(ONE), "r+");
        assert_non_null(file);
        assert_int_equal(fseek(file, about.st_size - 292 + 60 + 4L * element, SEEK_SET), 0);
        const int byte = fgetc(file);
        assert_int_equal(fseek(file, -1, SEEK_CUR), 0);
        fputc(byte ^ 1, file);
        fclose(file);
        expect(ONE, HP_ERR_FORMAT, says);
    }
}

static void several_names_are_told_at_once(void **state) {
    (void)state;
    static const char *const says[] = {
        ONE ": expected all of the model's tensors, 7 are missing, such as tensor \"inner\", "
            "\"bias\", \"double\", \"ids\", \"half\"",
        NULL};
    weights_put_rows(ONE, 0, 1, 0, HP_FP32);
    expect(ONE, HP_ERR_FORMAT, says);
}

static void cut_and_padded_files(void **state) {
    (void)state;
    static const char *const names_the_tensor[] = {ONE ": tensor \"", "inside the file", NULL};
    static const char *const names_the_file[] = {ONE, NULL};
    struct stat about;
    put_one();
    assert_int_equal(stat(scratch_path(ONE), &about), 0);
    for (long cut = 1; cut < 292; cut += 97) {
        put_one();
        assert_int_equal(truncate(scratch_path(ONE), about.st_size - cut), 0);
        expect(ONE, HP_ERR_FORMAT, names_the_tensor);
    }
    for (long n = 0; n < about.st_size - 292; n += 200) {
        put_one();
        assert_int_equal(truncate(scratch_path(ONE), n), 0);
        expect(ONE, HP_ERR_FORMAT, names_the_file);
    }
    put_one();
    assert_int_equal(truncate(scratch_path(ONE), about.st_size + 1), 0);
    expect(ONE, HP_ERR_FORMAT, names_the_file);
}

/* ---- an index -------------------------------------------------------------------------------- */

#define INDEX "model.safetensors.index.json"

static void put_several(void) {
    weights_put_rows("a.safetensors", 0, 4, 1U << ROW_ALIAS, HP_FP32);
    weights_put_rows("b.safetensors", 4, ROW_LEFT, 0, HP_FP32);
    scratch_write(INDEX,
                  "{\"metadata\": {\"total_size\": 232}, \"weight_map\": {\"w\": \"a.safetensors\","
                  "\"inner\": \"a.safetensors\", \"bias\": \"a.safetensors\","
                  "\"double\": \"b.safetensors\", \"ids\": \"b.safetensors\","
                  "\"half\": \"b.safetensors\", \"empty\": \"b.safetensors\","
                  "\"scalar\": \"b.safetensors\"}}");
}

static void an_index_that_leads_outside(void **state) {
    (void)state;
    static const char *const names[] = {"\"/etc/passwd\"",
                                        "\"../a.safetensors\"",
                                        "\"..\"",
                                        "\".\"",
                                        "\".hidden\"",
                                        "\"\"",
                                        "\"x/a.safetensors\"",
                                        "\"./a.safetensors\"",
                                        "\"\\u002fetc/group\"",
                                        "7",
                                        "{\"a\": 1}"};
    static const char *const says[] = {INDEX ": tensor \"w\": expected the plain name of a file",
                                       NULL};
    put_several();
    expect("", HP_OK, NULL);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        put_several();
        edit_text(INDEX, "\"a.safetensors\"", names[i]);
        expect("", HP_ERR_FORMAT, says);
    }
}

static void an_index_that_files_contradict(void **state) {
    (void)state;
    static const edit_case cases[] = {
        {"\"w\": \"a.safetensors\"",
         "\"w\": \"b.safetensors\"",
         {INDEX ": tensor \"w\": expected in ", "b.safetensors, which holds none"}},
        {"\"w\"", "\"v\"", {INDEX ": tensor \"v\": expected in ", "which holds none"}},
        {"\"w\":",
         "\"w\": \"a.safetensors\", \"w\":",
         {INDEX ": tensor \"w\": expected once, found twice"}},
        {"\"half\": \"b.safetensors\",",
         "",
         {"b.safetensors: tensor \"half\": expected those alone that", INDEX}},
        {"\"weight_map\"", "\"weight_mop\"", {INDEX ": expected a weight_map"}},
        {"}}", "}", {INDEX ": expected JSON"}},
        {"{\"metadata\"", "[{\"metadata\"", {INDEX ": expected JSON"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_several();
        edit_text(INDEX, cases[i].from, cases[i].to);
        expect("", HP_ERR_FORMAT, cases[i].says);
    }
}

static void a_tensor_in_two_files(void **state) {
    (void)state;
    static const char *const says[] = {
        "a.safetensors: tensor \"double\": expected in b.safetensors alone", INDEX, NULL};
    put_several();
    weights_put_rows("a.safetensors", 0, 5, 1U << ROW_ALIAS, HP_FP32);
    expect("", HP_ERR_FORMAT, says);
}

static void files_that_are_none(void **state) {
    (void)state;
    static const char *const says_b[] = {"b.safetensors", NULL}, *const says_index[] = {INDEX,
                                                                                        NULL};
    put_several();
    unlink(scratch_path("b.safetensors"));
    expect("", HP_ERR_FILE, says_b);
    mkdir(scratch_path("b.safetensors"), 0700);
    expect("", HP_ERR_FILE, says_b);
    rmdir(scratch_path("b.safetensors"));
    assert_int_equal(mkfifo(scratch_path("b.safetensors"), 0600), 0);
    expect("", HP_ERR_FILE, says_b);
    unlink(scratch_path("b.safetensors"));
    put_several();
    scratch_write("b.safetensors", "");
    expect("", HP_ERR_FORMAT, says_b);
    unlink(scratch_path(INDEX));
    expect("", HP_ERR_FILE, says_index);
    mkdir(scratch_path(INDEX), 0700);
    expect("", HP_ERR_FILE, says_index);
    rmdir(scratch_path(INDEX));
    scratch_write(INDEX, "");
    expect("", HP_ERR_FORMAT, says_index);
    scratch_write(INDEX, "{\"weight_map\": {}}"); /* sound, but of no model */
    expect("", HP_ERR_FORMAT, says_index);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_make, scratch_remove)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(headers_of_another_model),
        TEST(headers_that_lie),
        TEST(a_tie_that_the_file_does_not_know),
        TEST(several_names_are_told_at_once),
        TEST(cut_and_padded_files),
        TEST(an_index_that_leads_outside),
        TEST(an_index_that_files_contradict),
        TEST(a_tensor_in_two_files),
        TEST(files_that_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

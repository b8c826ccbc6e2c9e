/* SPDX-License-Identifier: Apache-2.0
 *
 * test_weights.c - weights go out and come in: over meshes and dtypes, in one file and in several.
 *
 * What a load must give is computed in double from the first values (weights_model.h). Files are
 * compared byte for byte with what is put together here by hand.
 */
#include "unit/varied_model.h"
#include "unit/weights_model.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/syscall.h>

#include <cmocka.h>

static const int meshes[][2] = {{1, 1}, {1, 2}, {2, 1}, {1, 3}, {2, 3}};
enum { N_MESHES = sizeof meshes / sizeof *meshes };

typedef struct job {
    int n_replicas;
    hp_weights_config config;
    const char *path;
    hp_dtype dtype; /* that the values went through */
    weights_values values[2];
} job;

static job job_of(hp_dtype dtype, uint64_t max_file_bytes) {
    job j = {.n_replicas = 1, .config = HP_WEIGHTS_CONFIG_INIT, .dtype = dtype};
    j.config.dtype = dtype;
    j.config.max_file_bytes = max_file_bytes;
    return j;
}

static void save(hp_world *world, void *argument) {
    const job *j = argument;
    weights_model m;
    weights_create(world, j->n_replicas, 1, &m);
    RANK_OK(hp_weights_save(m.fsdp, j->path, &j->config));
    weights_destroy(&m);
}

static void load(hp_world *world, void *argument) {
    job *j = argument;
    weights_model m;
    weights_create(world, j->n_replicas, 0, &m);
    RANK_OK(hp_weights_load(m.fsdp, j->path));
    for (int replica = 0; replica < j->n_replicas; replica++)
        weights_collect(&m, replica, &j->values[replica]);
    weights_destroy(&m);
}

static void run_on(int mesh, ranks_body body, job *j) {
    j->n_replicas = meshes[mesh][0];
    ranks_run(meshes[mesh][0] * meshes[mesh][1], RANKS_THREADS, body, j);
}

/* Load on a mesh, and compare every replica. */
static void check_load(int mesh, job *j) {
    memset(j->values, 0x55, sizeof j->values);
    run_on(mesh, load, j);
    for (int replica = 0; replica < j->n_replicas; replica++)
        assert_true(weights_match(&j->values[replica], j->dtype));
}

/* As scratch_path, for bodies that run as several threads. */
typedef struct own_path {
    char text[96];
} own_path;
static own_path path_to(const char *name) {
    own_path path;
    snprintf(path.text, sizeof path.text, "%s/%s", scratch, name);
    return path;
}

static int count_entries(const char *path) {
    int n = 0;
    DIR *directory = opendir(path);
    assert_non_null(directory);
    while (readdir(directory))
        n++;
    closedir(directory);
    return n - 2; /* . and .. */
}

static char *read_file(const char *name, size_t *out_bytes) {
    FILE *file = fopen(scratch_path(name), "r");
    assert_non_null(file);
    char *text = calloc(1, 1 << 16);
    assert_non_null(text);
    *out_bytes = fread(text, 1, (1 << 16) - 1, file);
    fclose(file);
    return text;
}

/* ---- round trips ----------------------------------------------------------------------------- */

static void any_mesh_loads_what_any_other_saved(void **state) {
    (void)state;
    for (int from = 0; from < N_MESHES; from++) {
        job j = job_of(HP_FP32, 5000000000);
        j.path = scratch_path("model");
        run_on(from, save, &j);
        assert_int_equal(count_entries(j.path), 1);
        for (int to = 0; to < N_MESHES; to++)
            check_load(to, &j);
    }
    assert_int_equal(count_entries(scratch), 1);
}

static void every_dtype_rounds_once(void **state) {
    (void)state;
    static const hp_dtype dtypes[] = {HP_FP32, HP_BF16, HP_FP16};
    for (size_t i = 0; i < 3; i++) {
        job j = job_of(dtypes[i], 5000000000);
        j.path = scratch_path("model");
        run_on(3, save, &j);
        check_load(1, &j);
    }
}

static void several_files_have_an_index(void **state) {
    (void)state;
    static const uint64_t limits[] = {1, 40, 64, 100, 200};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        for (int mesh = 0; mesh < N_MESHES; mesh++) {
            job j = job_of(HP_FP32, limits[i]);
            j.path = scratch_path("model");
            run_on(mesh, save, &j);
            assert_true(scratch_has("model/model.safetensors.index.json"));
            assert_false(scratch_has("model/model.safetensors"));
            check_load((mesh + 1) % N_MESHES, &j);
        }
}

static void processes_save_and_load(void **state) {
    (void)state;
    if (hpi_environment("HP_TEST_THREADS_ONLY")) {
        print_message("needs ranks as processes: HP_TEST_THREADS_ONLY is set\n");
        skip();
    }
    job j = job_of(HP_FP32, 100);
    j.path = scratch_path("model");
    j.n_replicas = 2;
    ranks_run(4, RANKS_PROCESSES, save, &j);
    check_load(3, &j);
}

/* ---- the bytes ------------------------------------------------------------------------------- */

static const char whole_header[] =
    "{\"__metadata__\":{\"format\":\"pt\"},"
    "\"ids\":{\"dtype\":\"I64\",\"shape\":[3],\"data_offsets\":[0,24]},"
    "\"w\":{\"dtype\":\"F16\",\"shape\":[5,3],\"data_offsets\":[24,54]},"
    "\"inner\":{\"dtype\":\"F16\",\"shape\":[4,6],\"data_offsets\":[54,102]},"
    "\"bias\":{\"dtype\":\"F16\",\"shape\":[4],\"data_offsets\":[102,110]},"
    "\"double\":{\"dtype\":\"F16\",\"shape\":[3],\"data_offsets\":[110,116]},"
    "\"half\":{\"dtype\":\"F16\",\"shape\":[5],\"data_offsets\":[116,126]},"
    "\"empty\":{\"dtype\":\"F16\",\"shape\":[0,4],\"data_offsets\":[126,126]},"
    "\"scalar\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[126,128]}}";

static void a_file_is_what_the_format_says(void **state) {
    (void)state;
    static const int order[] = {5, 0, 2, 3, 4, 6, 7, 8};
    size_t n_bytes;
    job j = job_of(HP_FP16, 5000000000);
    j.path = scratch_path("model");
    run_on(3, save, &j);
    char *text = read_file("model/model.safetensors", &n_bytes);
    uint64_t n_header;
    memcpy(&n_header, text, sizeof n_header);
    assert_int_equal(n_header, (strlen(whole_header) + 7) / 8 * 8);
    assert_int_equal(n_bytes, 8 + n_header + 128);
    assert_memory_equal(text + 8, whole_header, strlen(whole_header));
    const char *data = text + 8 + n_header;
    for (size_t k = 0; k < sizeof order / sizeof *order; k++) {
        const int row = order[k];
        const hp_dtype dtype = row == 5 ? HP_INT64 : HP_FP16;
        double aligned[MOST_ELEMENTS];
        memcpy(aligned, data, weights_count(row) * hp_dtype_size(dtype));
        data += weights_count(row) * hp_dtype_size(dtype);
        for (uint64_t i = 0; i < weights_count(row); i++)
            assert_true(weights_same(
                weights_read(aligned, dtype, i),
                weights_round(weights_round(weights_value(row, i), weights_rows[row].dtype),
                              dtype)));
    }
    free(text);
}

static void an_index_is_what_transformers_writes(void **state) {
    (void)state;
    size_t n_bytes;
    job j = job_of(HP_FP32, 100); /* 24, 60 | 96 | 16, 12, 20, 0, 4 */
    j.path = scratch_path("model");
    run_on(1, save, &j);
    char *text = read_file("model/model.safetensors.index.json", &n_bytes);
    assert_string_equal(text, "{\n  \"metadata\": {\n    \"total_size\": 232\n  },\n"
                              "  \"weight_map\": {\n"
                              "    \"ids\": \"model-00001-of-00003.safetensors\",\n"
                              "    \"w\": \"model-00001-of-00003.safetensors\",\n"
                              "    \"inner\": \"model-00002-of-00003.safetensors\",\n"
                              "    \"bias\": \"model-00003-of-00003.safetensors\",\n"
                              "    \"double\": \"model-00003-of-00003.safetensors\",\n"
                              "    \"half\": \"model-00003-of-00003.safetensors\",\n"
                              "    \"empty\": \"model-00003-of-00003.safetensors\",\n"
                              "    \"scalar\": \"model-00003-of-00003.safetensors\"\n"
                              "  }\n}\n");
    free(text);
    assert_int_equal(count_entries(j.path), 4);
}

/* ---- files of others ------------------------------------------------------------------------- */

static void files_of_others_are_loaded(void **state) {
    (void)state;
    static const hp_dtype dtypes[] = {HP_FP64, HP_FP32, HP_BF16, HP_FP16};
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        for (int mesh = 0; mesh < N_MESHES; mesh++) {
            job j = job_of(dtypes[i], 1);
            j.path = scratch_path("one.safetensors");
            weights_put_rows("one.safetensors", 0, N_ROWS, 1U << ROW_LEFT, dtypes[i]);
            check_load(mesh, &j); /* with the alias's name */
            weights_put_rows("one.safetensors", 0, N_ROWS, 1U << ROW_ALIAS, dtypes[i]);
            check_load(mesh, &j); /* with an ignored parameter's */
        }
}

static void a_directory_may_hold_one_file_or_several(void **state) {
    (void)state;
    job j = job_of(HP_FP32, 1);
    j.path = scratch;
    weights_put_rows("some.safetensors", 0, 4, 0, HP_FP32);
    weights_put_rows("others.safetensors", 4, 9, 0, HP_FP32);
    scratch_write("model.safetensors.index.json",
                  "{\"weight_map\": {\"w\": \"some.safetensors\", \"inner\": \"some.safetensors\","
                  "\"bias\": \"some.safetensors\", \"w.alias\": \"some.safetensors\","
                  "\"double\": \"others.safetensors\", \"ids\": \"others.safetensors\","
                  "\"half\": \"others.safetensors\", \"empty\": \"others.safetensors\","
                  "\"scalar\": \"others.safetensors\"}, \"metadata\": {}}");
    check_load(3, &j);
    unlink(scratch_path("some.safetensors"));
    weights_put_rows("model.safetensors", 0, 9, 0, HP_FP32); /* comes before an index */
    check_load(3, &j);
}

/* How often the process has written into a file. */
static int n_writes;
ssize_t pwrite(int fd, const void *data, size_t n_bytes, off_t offset) {
    __atomic_add_fetch(&n_writes, 1, __ATOMIC_RELAXED);
    return syscall(SYS_pwrite64, fd, data, n_bytes, offset);
}

/* Shards along an inner dimension whose pieces are small, and large ones; both through blocks. */
static void load_wide(hp_world *world, void *argument) {
    const int64_t *shape = argument;
    const int sizes[] = {1, hp_world_size(world)};
    const uint64_t n = (uint64_t)(shape[0] * shape[1]);
    weights_model m;
    hp_param p = HP_PARAM_INIT;
    hp_shard shard;
    hp_weights_config config = HP_WEIGHTS_CONFIG_INIT;
    float *values = calloc(n, sizeof *values);
    RANK_CHECK(values != NULL);
    for (uint64_t i = 0; i < n; i++)
        values[i] = (float)(i % 2039); /* exact in fp16 */
    p.name = "wide";
    p.n_dims = 2;
    p.shape[0] = shape[0];
    p.shape[1] = shape[1];
    p.shard_dim = 1;
    p.data = values;
    for (int is_filled = 1; is_filled >= 0; is_filled--) {
        RANK_OK(hp_mesh_create(world, sizes, 2, &m.mesh));
        RANK_OK(hp_fsdp_create(m.mesh, NULL, &m.fsdp));
        if (!is_filled)
            p.data = NULL;
        RANK_OK(hp_unit_create(m.fsdp, "u", &p, 1, NULL, &m.unit));
        RANK_OK(hp_fsdp_commit(m.fsdp));
        for (int half = 0; half < 2; half++) {
            config.dtype = half ? HP_FP16 : HP_FP32;
            if (is_filled)
                RANK_OK(hp_weights_save(m.fsdp, path_to(half ? "h" : "s").text, &config));
            else
                RANK_OK(hp_weights_load(m.fsdp, path_to(half ? "h" : "s").text));
            RANK_OK(hp_param_shard(m.unit, 0, &shard));
            const uint64_t run = (uint64_t)(shard.end - shard.begin);
            for (uint64_t i = 0; i < shard.n_elements; i++)
                RANK_CHECK(((const float *)shard.values)[i] ==
                           values[i / run * (uint64_t)shape[1] + (uint64_t)shard.begin + i % run]);
        }
        weights_destroy(&m);
    }
    free(values);
}

static void pieces_of_all_sizes_go_through_blocks(void **state) {
    (void)state;
    struct {
        int n_ranks;
        int64_t shape[2];
    } cases[] = {{2, {40000, 6}}, {2, {3, 400000}}, {1, {700, 600}}, {3, {50000, 3}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        n_writes = 0;
        ranks_run(cases[i].n_ranks, RANKS_THREADS, load_wide, cases[i].shape);
        assert_true(n_writes < 40); /* of headers and blocks, not of rows */
    }
}

/* ---- what stands beside ---------------------------------------------------------------------- */

static void other_files_are_kept(void **state) {
    (void)state;
    static const char *const names[] = {"config.json", "notes.txt"};
    static const char *texts[] = {"{\"a\": 1}\n", "first"};
    size_t n_bytes;
    job j = job_of(HP_FP32, 100);
    const own_path path = path_to("model/"); /* a slash more */
    j.path = path.text;
    j.config.file_names = names;
    j.config.file_texts = texts;
    j.config.n_files = 2;
    mkdir(scratch_path("model"), 0750);
    scratch_write("model/tokenizer.json", "mine");
    scratch_write("model/.hidden", "mine too");
    mkdir(scratch_path("model/.cache"), 0700); /* as `hf download` leaves it */
    mkdir(scratch_path("model/.cache/huggingface"), 0755);
    scratch_write("model/.cache/huggingface/CACHEDIR.TAG", "a cache");
    scratch_write("model/config.json", "old");
    scratch_write("model/model-00007-of-00008.safetensors", "stale");
    scratch_write("model/model-007-of-008.safetensors", "no name of ours");
    assert_int_equal(symlink("../elsewhere", scratch_path("model/link")), 0);
    run_on(1, save, &j);
    assert_false(scratch_has("model/model-00007-of-00008.safetensors"));
    assert_int_equal(count_entries(scratch_path("model")), 4 + 2 + 5);
    texts[1] = "second";
    j.config.max_file_bytes = 5000000000;
    run_on(0, save, &j);
    assert_false(scratch_has("model/model.safetensors.index.json"));
    assert_int_equal(count_entries(scratch_path("model")), 1 + 2 + 5);
    static const char *const kept[][2] = {{"model/tokenizer.json", "mine"},
                                          {"model/.hidden", "mine too"},
                                          {"model/.cache/huggingface/CACHEDIR.TAG", "a cache"},
                                          {"model/config.json", "{\"a\": 1}\n"},
                                          {"model/notes.txt", "second"}};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        char *text = read_file(kept[i][0], &n_bytes);
        assert_string_equal(text, kept[i][1]);
        free(text);
    }
    struct stat about;
    assert_int_equal(stat(scratch_path("model"), &about), 0);
    assert_int_equal(about.st_mode & 0777, 0750);
    assert_int_equal(count_entries(scratch), 1);
    check_load(2, &j);
}

static void a_link_to_a_directory_stays_one(void **state) {
    (void)state;
    job j = job_of(HP_FP32, 100);
    mkdir(scratch_path("version1"), 0755);
    assert_int_equal(symlink("version1", scratch_path("model")), 0);
    j.path = scratch_path("model");
    run_on(1, save, &j);
    assert_true(scratch_has("version1/model.safetensors.index.json"));
    check_load(0, &j);
    assert_int_equal(count_entries(scratch), 2);
}

/* ---- gradients, casts, misuse ---------------------------------------------------------------- */

static void load_between_steps(hp_world *world, void *argument) {
    (void)argument;
    varied m;
    hp_optimizer *o;
    hp_shard shard;
    double norm;
    varied_values *values = calloc(3, sizeof *values);
    RANK_CHECK(values != NULL);
    varied_create(world, 1, &m);
    RANK_OK(hp_optimizer_create(m.fsdp, "adamw", NULL, &o));
    varied_pass(&m, 0, 1);
    RANK_OK(hp_optimizer_step(o, 0.1));
    RANK_OK(hp_weights_save(m.fsdp, path_to("model").text, NULL));
    varied_collect(&m, VARIED_WEIGHTS, values);
    varied_pass(&m, 1, 1);
    RANK_OK(hp_optimizer_step(o, 0.1));
    varied_pass(&m, 2, 1);
    RANK_OK(hp_weights_load(m.fsdp, path_to("model").text));
    RANK_OK(hp_param_shard(m.units[0], 0, &shard));
    RANK_CHECK(shard.grad == NULL);
    RANK_FAILS(hp_optimizer_step(o, 0.1), HP_ERR_STATE); /* gradients of other weights */
    RANK_FAILS(hp_clip_grad_norm(m.fsdp, 1, 2, &norm), HP_ERR_STATE);
    varied_check_casts(&m);
    varied_collect(&m, VARIED_WEIGHTS, values + 1);
    for (int row = 0; row < N_VARIED; row++)
        for (uint64_t i = 0; hp_world_size(world) == 1 && i < varied_count(&varied_rows[row]); i++)
            RANK_CHECK(values[1].of[row][i] == (double)(float)values[0].of[row][i]);
    varied_pass(&m, 3, 1);
    RANK_OK(hp_optimizer_step(o, 0.1));
    hp_optimizer_destroy(o);
    varied_destroy(&m);
    free(values);
}

static void gradients_are_no_more_after_a_load(void **state) {
    (void)state;
    ranks_run(1, RANKS_THREADS, load_between_steps, NULL);
    ranks_run(3, RANKS_THREADS, load_between_steps, NULL);
}

static void misuse(hp_world *world, void *argument) {
    (void)argument;
    static const char *const bad_names[] = {
        "a/b", "..", ".hidden", "", "model.safetensors", "model-00001-of-00002.safetensors", NULL};
    static const char *const texts[] = {"", ""}, *const twice[] = {"x", "x"};
    weights_model m;
    hp_weights_config config = HP_WEIGHTS_CONFIG_INIT;
    weights_create(world, 1, 1, &m);
    RANK_FAILS(hp_weights_load(NULL, scratch), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_weights_load(m.fsdp, NULL), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_weights_load(m.fsdp, ""), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_weights_load(m.fsdp, path_to("none").text), HP_ERR_FILE);
    RANK_CHECK(strstr(hp_last_error(), "/none"));
    RANK_FAILS(hp_weights_load(m.fsdp, scratch), HP_ERR_FILE); /* an empty directory */
    RANK_CHECK(strstr(hp_last_error(), "model.safetensors.index.json"));
    RANK_FAILS(hp_weights_save(NULL, scratch, NULL), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_weights_save(m.fsdp, NULL, NULL), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_weights_save(m.fsdp, "", NULL), HP_ERR_ARGUMENT);
    config.size = 4;
    RANK_FAILS(hp_weights_save(m.fsdp, scratch, &config), HP_ERR_VERSION);
    config = (hp_weights_config)HP_WEIGHTS_CONFIG_INIT;
    config.dtype = HP_INT32;
    RANK_FAILS(hp_weights_save(m.fsdp, scratch, &config), HP_ERR_ARGUMENT);
    config.dtype = HP_FP64;
    RANK_FAILS(hp_weights_save(m.fsdp, scratch, &config), HP_ERR_ARGUMENT);
    config.dtype = HP_BF16;
    config.max_file_bytes = 0;
    RANK_FAILS(hp_weights_save(m.fsdp, scratch, &config), HP_ERR_ARGUMENT);
    config.max_file_bytes = 1;
    config.n_files = 1;
    RANK_FAILS(hp_weights_save(m.fsdp, scratch, &config), HP_ERR_ARGUMENT);
    config.file_texts = texts;
    for (size_t i = 0; i < sizeof bad_names / sizeof *bad_names; i++) {
        config.file_names = &bad_names[i];
        RANK_FAILS(hp_weights_save(m.fsdp, scratch, &config), HP_ERR_ARGUMENT);
    }
    config.file_names = twice;
    config.n_files = 2;
    RANK_FAILS(hp_weights_save(m.fsdp, scratch, &config), HP_ERR_ARGUMENT);
    const bool is_odd = hp_world_rank(world) == 1; /* alone with a bad argument */
    RANK_FAILS(hp_weights_save(m.fsdp, path_to("x").text, is_odd ? &config : NULL),
               HP_ERR_ARGUMENT);
    RANK_CHECK(strstr(hp_last_error(), "rank 1: hp_weights_save: expected file x once"));
    RANK_FAILS(hp_weights_load(m.fsdp, is_odd ? NULL : scratch), HP_ERR_ARGUMENT);
    RANK_CHECK(strstr(hp_last_error(), "rank 1: hp_weights_load: expected a file or directory"));
    config.n_files = hp_world_rank(world); /* 0 or 1 */
    RANK_FAILS(hp_weights_save(m.fsdp, path_to("x").text, &config), HP_ERR_MISMATCH);
    RANK_CHECK(strstr(hp_last_error(), "rank 1"));
    RANK_OK(hp_fsdp_begin(m.fsdp, HP_EVALUATE));
    RANK_FAILS(hp_weights_load(m.fsdp, scratch), HP_ERR_STATE);
    RANK_FAILS(hp_weights_save(m.fsdp, scratch, NULL), HP_ERR_STATE);
    RANK_OK(hp_fsdp_end(m.fsdp));
    weights_destroy(&m);
}

static void misuse_is_refused(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, misuse, NULL);
    assert_int_equal(count_entries(scratch), 0);
}

static void starve(hp_world *world, void *argument) {
    weights_values *values = argument;
    weights_model m;
    hp_status status = HP_ERR_MEMORY;
    weights_create(world, 1, 1, &m);
    for (uint64_t n = 1; status < 0; n++) {
        hpi_alloc_fail_after(n);
        status = hp_weights_save(m.fsdp, scratch_path("model"), NULL);
        hpi_alloc_fail_after(0);
        RANK_CHECK(status == HP_OK || status == HP_ERR_MEMORY);
        RANK_CHECK(n < 500);
    }
    weights_destroy(&m);
    weights_create(world, 1, 0, &m);
    status = HP_ERR_MEMORY;
    for (uint64_t n = 1; status < 0; n++) {
        weights_collect(&m, 0, values);
        for (int row = 0; row < N_ROWS; row++)
            for (uint64_t i = 0; i < weights_count(row); i++)
                RANK_CHECK(values->of[row][i] == 0); /* nothing was touched */
        hpi_alloc_fail_after(n);
        status = hp_weights_load(m.fsdp, scratch_path("model"));
        hpi_alloc_fail_after(0);
        RANK_CHECK(status == HP_OK || status == HP_ERR_MEMORY);
        RANK_CHECK(n < 500);
    }
    weights_collect(&m, 0, values);
    RANK_CHECK(weights_match(values, HP_FP32));
    weights_destroy(&m);
}

static void failed_allocations_are_reported(void **state) {
    (void)state;
    weights_values *values = calloc(1, sizeof *values);
    ranks_run(1, RANKS_THREADS, starve, values);
    free(values);
    assert_int_equal(count_entries(scratch), 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_make, scratch_remove)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(any_mesh_loads_what_any_other_saved),
        TEST(every_dtype_rounds_once),
        TEST(several_files_have_an_index),
        TEST(processes_save_and_load),
        TEST(a_file_is_what_the_format_says),
        TEST(an_index_is_what_transformers_writes),
        TEST(files_of_others_are_loaded),
        TEST(a_directory_may_hold_one_file_or_several),
        TEST(pieces_of_all_sizes_go_through_blocks),
        TEST(other_files_are_kept),
        TEST(a_link_to_a_directory_stays_one),
        TEST(gradients_are_no_more_after_a_load),
        TEST(misuse_is_refused),
        TEST(failed_allocations_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

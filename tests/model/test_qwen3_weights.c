/* SPDX-License-Identifier: Apache-2.0
 *
 * test_qwen3_weights.c - the model's weights as a Hugging Face directory, out and in.
 *
 * What one mesh has saved, another loads, bit for bit. The name lm_head.weight may stand beside a
 * tied table (Qwen3-0.6B ships it), and has to stand beside an untied one.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "small_qwen3.h"
#include "unit/scratch.h"

#include <math.h>

typedef struct job {
    small_config config;
    const char *directory;
    const char *says;    /* what a refusal must say; NULL: it is loaded */
    bool has_equal_ends; /* of a saved model: its head has the table's values */
    uint64_t digest;     /* of rank 0, after saving or loading */
    double loss;         /* of the pass after it */
} job;

static job job_init(const char *directory, int tied, int n_replicas, int n_shards) {
    job j = {.config = small_config_init(), .directory = directory};
    j.config.model.tie_word_embeddings = tied;
    j.config.n_replicas = n_replicas;
    j.config.n_shards = n_shards;
    return j;
}

static void look(small *s, job *j) {
    const uint64_t digest = small_digest(s, false);
    double loss = small_pass(s, HP_EVALUATE, hp_world_rank(s->world));
    RANK_OK(hp_all_reduce(hp_world_group(s->world), &loss, &loss, 1, HP_FP64, HP_SUM));
    if (hp_world_rank(s->world) == 0) {
        j->digest = digest;
        j->loss = loss / hp_world_size(s->world);
    }
}

/* The untied model's head gets the table's values, behind the library's back. */
static void make_ends_equal(const qwen3 *model) {
    hp_shard table, head;
    RANK_OK(hp_param_shard(model->embed, QWEN3_TABLE, &table));
    RANK_OK(hp_param_shard(model->head, model->head_w, &head));
    memcpy((void *)head.values, table.values, table.n_elements * sizeof(float));
}

static void save_body(hp_world *world, void *argument) {
    job *j = argument;
    char text[2048];
    const char *const names[] = {"config.json"}, *const texts[] = {text};
    hp_weights_config config = HP_WEIGHTS_CONFIG_INIT;
    RANK_CHECK(qwen3_config_write(&j->config.model, HP_FP32, text, sizeof text) > 0);
    config.file_names = names;
    config.file_texts = texts;
    config.n_files = 1;
    small s = small_begin(world, &j->config);
    small_step(&s, 0);
    if (j->has_equal_ends)
        make_ends_equal(s.model);
    RANK_OK(hp_weights_save(s.fsdp, j->directory, &config));
    look(&s, j);
    small_end(&s);
}

static void load_body(hp_world *world, void *argument) {
    job *j = argument;
    small s = small_begin(world, &j->config);
    if (j->says)
        FAILS_SAYING(hp_weights_load(s.fsdp, j->directory), HP_ERR_FORMAT, j->says);
    else
        RANK_OK(hp_weights_load(s.fsdp, j->directory));
    look(&s, j);
    small_end(&s);
}

static void save(job *j) {
    ranks_run(j->config.n_replicas * j->config.n_shards, RANKS_THREADS, save_body, j);
}

static void load(job *j) {
    j->config.options.seed = 77; /* other weights than the file's */
    ranks_run(j->config.n_replicas * j->config.n_shards, RANKS_THREADS, load_body, j);
}

static void another_mesh_loads_what_was_saved(void **state) {
    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        const char *directory = scratch_path(tied ? "tied" : "untied");
        job saved = job_init(directory, tied, 1, 2), loaded = job_init(directory, tied, 2, 1);
        save(&saved);
        load(&loaded);
        assert_int_equal(loaded.digest, saved.digest);
        assert_true(loaded.loss == saved.loss);
    }
}

static void the_config_beside_the_weights_is_read(void **state) {
    (void)state;
    job saved = job_init(scratch_path("one"), 1, 1, 1);
    qwen3_config config;
    save(&saved);
    if (qwen3_config_read(scratch_path("one/config.json"), &config) < 0)
        fail_msg("%s", hp_last_error());
    assert_int_equal(config.hidden_size, saved.config.model.hidden_size);
    assert_int_equal(config.tie_word_embeddings, 1);
}

/* The untied model's file has one name more, which is the tied table's other one. */
static void a_tied_table_may_be_there_by_both_names(void **state) {
    (void)state;
    job untied = job_init(scratch_path("untied"), 0, 1, 1), tied = untied, refused;
    untied.has_equal_ends = true;
    save(&untied);
    tied.config.model.tie_word_embeddings = 1;
    load(&tied);
    assert_true(tied.loss == untied.loss);

    untied = job_init(scratch_path("apart"), 0, 1, 1); /* which of the two would it be? */
    save(&untied);
    refused = untied;
    refused.config.model.tie_word_embeddings = 1;
    refused.says = "lm_head.weight";
    load(&refused);

    untied = job_init(scratch_path("tied"), 1, 1, 1);
    save(&untied);
    refused = job_init(scratch_path("tied"), 0, 1, 1);
    refused.says = "lm_head.weight";
    load(&refused);
}

static void another_models_weights_are_refused_by_name(void **state) {
    (void)state;
    job saved = job_init(scratch_path("saved"), 0, 1, 1), other = saved;
    save(&saved);
    other.config.model.intermediate_size = 40;
    other.says = "mlp.";
    load(&other);
    other = job_init(saved.directory, 0, 1, 1);
    other.config.model.num_hidden_layers = 1;
    other.says = "model.layers.1.";
    load(&other);
    other.config.model.num_hidden_layers = 3;
    other.says = "model.layers.2.";
    load(&other);
}

#define IN_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_make, scratch_remove)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_SCRATCH(another_mesh_loads_what_was_saved),
        IN_SCRATCH(the_config_beside_the_weights_is_read),
        IN_SCRATCH(a_tied_table_may_be_there_by_both_names),
        IN_SCRATCH(another_models_weights_are_refused_by_name),
    };
    return cmocka_run_group_tests_name("qwen3_weights", tests, NULL, NULL);
}

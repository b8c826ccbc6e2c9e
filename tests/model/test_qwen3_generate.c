/* SPDX-License-Identifier: Apache-2.0
 *
 * test_qwen3_generate.c - text made token by token against full forwards, and how it is drawn.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "small_qwen3.h"

#include <math.h>
#include <string.h>

/* The likeliest next token by a full forward over tokens[0, n). */
static int32_t next_by_forward(small *s, const int32_t *tokens, int n) {
    double loss;
    int64_t n_targets;
    const int vocab = s->config->model.vocab_size;
    const qwen3_batch batch = {tokens, NULL, 1, n};
    RANK_OK(hp_fsdp_begin(s->fsdp, HP_EVALUATE));
    RANK_OK(qwen3_forward(s->model, &batch, &loss, &n_targets));
    RANK_OK(hp_fsdp_end(s->fsdp));
    const float *logits = qwen3_logits(s->model) + (n - 1) * vocab;
    int32_t best = 0;
    for (int32_t v = 1; v < vocab; v++)
        best = logits[v] > logits[best] ? v : best;
    return best;
}

/* The text so far is read again from its later half whenever the context is full. */
static void greedy_body(hp_world *world, void *argument) {
    enum { SEQ = 12, N_PROMPT = 4, N = 30 };
    small_config config = *(const small_config *)argument;
    config.options.generate = 1;
    config.options.batch = 1;
    config.options.seq = SEQ;
    config.n_shards = hp_world_size(world);
    small s = small_begin(world, &config);
    for (int step = 0; step < 3; step++)
        small_step(&s, step);
    int32_t text[N_PROMPT + N] = {3, 1, 4, 1}, made[N];
    const qwen3_sampling greedy = {0, 0, 1}, one = {0.7, 1, 9};
    RANK_OK(qwen3_generate(s.model, text, N_PROMPT, &greedy, N, made));
    int begin = 0;
    for (int i = 0; i < N; i++) {
        const int end = N_PROMPT + i;
        RANK_CHECK(made[i] == next_by_forward(&s, text + begin, end - begin));
        text[end] = made[i];
        if (end - begin == SEQ)
            begin = end + 1 - SEQ / 2;
    }
    int32_t again[N];
    RANK_OK(qwen3_generate(s.model, text, N_PROMPT, &one, N, again)); /* the best of one */
    RANK_CHECK(memcmp(again, made, sizeof made) == 0);
    /* Of a prompt longer than the context its end is read. */
    RANK_OK(qwen3_generate(s.model, text, SEQ + 5, &greedy, 1, again));
    RANK_CHECK(again[0] == next_by_forward(&s, text + SEQ + 5 - SEQ / 2, SEQ / 2));
    small_end(&s);
}

static void greedy_generation_is_the_argmax_of_the_forward(void **state) {
    (void)state;
    small_config c = small_config_init();
    ranks_run(1, RANKS_THREADS, greedy_body, &c);
    c.model.tie_word_embeddings = 1;
    ranks_run(3, RANKS_THREADS, greedy_body, &c);
}

static void sampling_body(hp_world *world, void *argument) {
    (void)argument;
    enum { N = 64 };
    small_config config = small_config_init();
    config.options.generate = 1;
    config.options.seq = 2;
    config.n_shards = 2;
    small s = small_begin(world, &config);
    const int32_t prompt[2] = {5, 6};
    int32_t first[N], again[N], other[N], narrow[N], all[2 * N];
    qwen3_sampling sampling = {1.0, 0, 3};
    RANK_OK(qwen3_generate(s.model, prompt, 2, &sampling, N, first));
    RANK_OK(qwen3_generate(s.model, prompt, 2, &sampling, N, again));
    RANK_CHECK(memcmp(first, again, sizeof first) == 0);
    sampling.seed = 4;
    RANK_OK(qwen3_generate(s.model, prompt, 2, &sampling, N, other));
    RANK_CHECK(memcmp(first, other, sizeof first) != 0);
    RANK_OK(hp_all_gather(hp_world_group(world), first, all, N, HP_INT32));
    RANK_CHECK(memcmp(all, all + N, sizeof first) == 0);
    /* Among the two likeliest, whatever the temperature; both are met. */
    sampling = (qwen3_sampling){1e6, 2, 5};
    int n_met = 0;
    for (uint64_t seed = 0; seed < 16; seed++) {
        sampling.seed = seed;
        RANK_OK(qwen3_generate(s.model, prompt, 2, &sampling, 1, &narrow[seed]));
        bool is_new = true;
        for (uint64_t k = 0; k < seed; k++)
            is_new = is_new && narrow[k] != narrow[seed];
        n_met += is_new;
    }
    RANK_CHECK(n_met == 2);
    RANK_OK(qwen3_generate(s.model, prompt, 2, &sampling, 0, NULL));
    small_end(&s);
}

static void sampling_is_seeded_and_the_same_on_all_ranks(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, sampling_body, NULL);
}

/* An engine that counts. */
typedef struct counting {
    hp_matmul door, *engine;
    int n_products;
} counting;

static hp_status run_counted(hp_matmul *matmul, const hp_matmul_args *args) {
    counting *c = matmul->state;
    c->n_products++;
    return hp_matmul_run(c->engine, args);
}

/* Products of reading a prompt and choosing one token. */
static int products_of(small *s, const int32_t *prompt, int n) {
    counting c = {.door = *s->matmul, .engine = s->matmul};
    const qwen3_sampling greedy = {0, 0, 0};
    int32_t made;
    c.door.run = run_counted;
    c.door.state = &c;
    s->model->shape.matmul = &c.door;
    RANK_OK(qwen3_generate(s->model, prompt, n, &greedy, 1, &made));
    s->model->shape.matmul = s->matmul;
    return c.n_products;
}

/* Inside a block of attention, a prompt of any length is as many products as one of two tokens. */
static void prompt_body(hp_world *world, void *argument) {
    (void)argument;
    enum { SEQ = 48 };
    small_config config = small_config_init();
    config.options.generate = 1;
    config.options.seq = SEQ;
    small s = small_begin(world, &config);
    int32_t prompt[SEQ];
    for (int i = 0; i < SEQ; i++)
        prompt[i] = i * 7 % 29;
    const int n = products_of(&s, prompt, 2);
    RANK_CHECK(n > 0 && products_of(&s, prompt, SEQ) == n);
    small_end(&s);
}

static void a_prompt_is_read_in_one_forward(void **state) {
    (void)state;
    ranks_run(1, RANKS_THREADS, prompt_body, NULL);
}

/* A context of one token: the model sees nothing but the last. */
static void shortest_context_body(hp_world *world, void *argument) {
    (void)argument;
    small_config config = small_config_init();
    config.options.generate = 1;
    config.options.seq = 1;
    small s = small_begin(world, &config);
    int32_t made[5];
    const int32_t prompt[3] = {1, 2, 3};
    const qwen3_sampling greedy = {0, 0, 0};
    RANK_OK(qwen3_generate(s.model, prompt, 3, &greedy, 5, made));
    for (int i = 0; i < 5; i++)
        RANK_CHECK(made[i] == next_by_forward(&s, i ? &made[i - 1] : &prompt[2], 1));
    small_end(&s);
}

static void a_context_may_be_one_token(void **state) {
    (void)state;
    ranks_run(1, RANKS_THREADS, shortest_context_body, NULL);
}

/* Text that is not made costs nothing: logits and the backward that is due are still there. */
static void kept_forward_body(hp_world *world, void *argument) {
    (void)argument;
    small_config config = small_config_init();
    config.options.generate = 1;
    config.options.batch = 1;
    config.n_shards = hp_world_size(world);
    small s = small_begin(world, &config);
    int32_t tokens[SMALL_MOST_TOKENS], targets[SMALL_MOST_TOKENS], made[1];
    double loss;
    int64_t n_targets;
    const qwen3_sampling greedy = {0, 0, 0};
    small_sample(&config, hp_world_rank(world), config.options.seq, tokens, targets);
    const qwen3_batch batch = {tokens, targets, 1, config.options.seq};
    RANK_OK(hp_fsdp_begin(s.fsdp, HP_SYNC));
    RANK_OK(qwen3_forward(s.model, &batch, &loss, &n_targets));
    RANK_FAILS(qwen3_generate(s.model, tokens, 2, &greedy, 1, made), HP_ERR_STATE);
    RANK_OK(qwen3_generate(s.model, tokens, 2, &greedy, 0, NULL));
    RANK_CHECK(qwen3_logits(s.model) != NULL);
    RANK_OK(qwen3_backward(s.model, 1));
    RANK_OK(hp_fsdp_end(s.fsdp));
    small_end(&s);
}

static void what_makes_no_text_keeps_the_forward(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, kept_forward_body, NULL);
}

/* ---- misuse ---- */

static void bad_generation_body(hp_world *world, void *argument) {
    small_config config = small_config_init();
    config.options.generate = argument != NULL;
    small s = small_begin(world, &config);
    int32_t prompt[2] = {1, 29}, out[2];
    qwen3_sampling sampling = {0, 0, 1};
    if (!argument) {
        FAILS_SAYING(qwen3_generate(s.model, prompt, 1, &sampling, 1, out), HP_ERR_STATE,
                     "options.generate");
    } else {
        RANK_FAILS(qwen3_generate(NULL, prompt, 1, &sampling, 1, out), HP_ERR_ARGUMENT);
        RANK_FAILS(qwen3_generate(s.model, NULL, 1, &sampling, 1, out), HP_ERR_ARGUMENT);
        RANK_FAILS(qwen3_generate(s.model, prompt, 0, &sampling, 1, out), HP_ERR_ARGUMENT);
        RANK_FAILS(qwen3_generate(s.model, prompt, 1, NULL, 1, out), HP_ERR_ARGUMENT);
        RANK_FAILS(qwen3_generate(s.model, prompt, 1, &sampling, -1, out), HP_ERR_ARGUMENT);
        RANK_FAILS(qwen3_generate(s.model, prompt, 1, &sampling, 1, NULL), HP_ERR_ARGUMENT);
        FAILS_SAYING(qwen3_generate(s.model, prompt, 2, &sampling, 1, out), HP_ERR_ARGUMENT,
                     "from 0 to vocab_size - 1 = 28, given 29 at position 1");
        sampling.temperature = -1;
        RANK_FAILS(qwen3_generate(s.model, prompt, 1, &sampling, 1, out), HP_ERR_ARGUMENT);
        sampling.temperature = NAN;
        RANK_FAILS(qwen3_generate(s.model, prompt, 1, &sampling, 1, out), HP_ERR_ARGUMENT);
        sampling = (qwen3_sampling){1, -1, 1};
        RANK_FAILS(qwen3_generate(s.model, prompt, 1, &sampling, 1, out), HP_ERR_ARGUMENT);
    }
    small_end(&s);
}

static void misuse_is_refused(void **state) {
    (void)state;
    ranks_run(1, RANKS_THREADS, bad_generation_body, NULL);
    ranks_run(1, RANKS_THREADS, bad_generation_body, &(int){1});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_generation_is_the_argmax_of_the_forward),
        cmocka_unit_test(sampling_is_seeded_and_the_same_on_all_ranks),
        cmocka_unit_test(a_prompt_is_read_in_one_forward),
        cmocka_unit_test(a_context_may_be_one_token),
        cmocka_unit_test(what_makes_no_text_keeps_the_forward),
        cmocka_unit_test(misuse_is_refused),
    };
    return cmocka_run_group_tests_name("qwen3_generate", tests, NULL, NULL);
}

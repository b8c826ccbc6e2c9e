/* SPDX-License-Identifier: Apache-2.0
 *
 * qwen3_probe.c - does to a Qwen3 model what it is told, and writes down what came out.
 *
 * usage: qwen3_probe CONFIG.json DTYPE RxS BATCH SEQ TOKENS COMMAND...      under hprun, or alone
 *
 * TOKENS is a file of int32 [batches][ranks * BATCH][SEQ + 1]; rank r takes the r-th BATCH rows of
 * a batch. The commands run one after the other, on all ranks:
 *   load PATH           weights of another program
 *   save DIR DTYPE MAX  weights for another program, at most MAX bytes of tensors in a file
 *   logits FILE         of the first batch, float32 [ranks * BATCH][SEQ][vocabulary]
 *   losses FILE N RATE  of N steps of AdamW, clipped to 1, as text
 *   sgd RATE            one step on the first batch; the gradient is (before - after) / RATE
 *   serve RATE          a step of AdamW on the first batch for each line of input; prints its times
 * Built on public headers alone: what it can do, any program can.
 */
#include <hyperparallel/hyperparallel.h>

#include "qwen3/qwen3.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A matmul engine that measures another one. A product with a side no longer than a head belongs
 * to the attention: the sizes that are measured have no other. */
typedef struct stopwatch {
    hp_matmul engine; /* what the model sees */
    hp_matmul *inner;
    int64_t head_dim;
    uint64_t weights_ns, attention_ns;
} stopwatch;

typedef struct probe {
    hp_world *world;
    hp_mesh *mesh;
    hp_fsdp *fsdp;
    qwen3 *model;
    qwen3_config config;
    stopwatch stopwatch;
    int batch, seq;
    int32_t *inputs, *targets; /* [n_batches][batch][seq] of this rank */
    int n_batches;
} probe;

static _Noreturn void end(const char *expected, const char *given) {
    fprintf(stderr, "qwen3_probe: expected %s, given %s\n", expected, given);
    exit(2);
}

static void ok(hp_status status) {
    if (status >= 0)
        return;
    fprintf(stderr, "qwen3_probe: %s: %s\n", hp_status_text(status), hp_last_error());
    exit(1);
}

static void *allocate(size_t n_bytes) {
    void *memory = malloc(n_bytes + 1);
    if (!memory)
        end("memory", "none");
    return memory;
}

static uint64_t read_ns(clockid_t clock) {
    struct timespec now;
    (void)clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

static uint64_t now_ns(void) {
    return read_ns(CLOCK_MONOTONIC);
}

static int is_first(const probe *p) {
    return hp_world_rank(p->world) == 0;
}

/* ---- set up ---- */

static hp_status measured_run(hp_matmul *engine, const hp_matmul_args *args) {
    stopwatch *s = engine->state;
    const int is_attention =
        args->m <= s->head_dim || args->n <= s->head_dim || args->k <= s->head_dim;
    const uint64_t begin_ns = now_ns();
    const hp_status status = hp_matmul_run(s->inner, args);
    *(is_attention ? &s->attention_ns : &s->weights_ns) += now_ns() - begin_ns;
    return status;
}

static void open_stopwatch(probe *p) {
    stopwatch *s = &p->stopwatch;
    ok(hp_matmul_open("auto", 1, &s->inner));
    s->engine = *s->inner;
    s->engine.run = measured_run;
    s->engine.close = NULL;
    s->engine.state = s;
    s->head_dim = p->config.head_dim;
}

static void read_tokens(probe *p, const char *path) {
    const size_t n_ranks = (size_t)hp_world_size(p->world), rank = (size_t)hp_world_rank(p->world);
    const size_t seq = (size_t)p->seq, n = (size_t)p->batch * seq, row = seq + 1;
    const size_t batch_rows = n_ranks * (size_t)p->batch, rows_bytes = batch_rows * row * 4;
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0)
        end("a file of tokens", path);
    const size_t n_batches = (size_t)ftell(file) / rows_bytes;
    if (n_batches == 0)
        end("a whole batch of tokens", path);
    int32_t *rows = allocate(rows_bytes);
    p->inputs = allocate(n_batches * n * 4);
    p->targets = allocate(n_batches * n * 4);
    rewind(file);
    for (size_t i = 0; i < n_batches; i++) {
        if (fread(rows, 1, rows_bytes, file) != rows_bytes)
            end("whole batches of tokens", path);
        for (size_t j = 0; j < n; j++) {
            const int32_t *token = rows + (rank * (size_t)p->batch + j / seq) * row + j % seq;
            p->inputs[i * n + j] = token[0];
            p->targets[i * n + j] = token[1];
        }
    }
    (void)fclose(file);
    free(rows);
    p->n_batches = (int)n_batches;
}

static void set_up(probe *p, char **argv) {
    hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    qwen3_options options = QWEN3_OPTIONS_INIT;
    int sizes[2];
    if (sscanf(argv[3], "%dx%d", &sizes[0], &sizes[1]) != 2)
        end("RxS", argv[3]);
    options.batch = p->batch = atoi(argv[4]);
    options.seq = p->seq = atoi(argv[5]);
    ok(qwen3_config_read(argv[1], &p->config));
    ok(hp_dtype_parse(argv[2], &options.dtype));
    ok(hp_world_create(NULL, &p->world));
    ok(hp_mesh_create(p->world, sizes, 2, &p->mesh));
    read_tokens(p, argv[6]);
    open_stopwatch(p);
    config.param_dtype = (int)options.dtype;
    config.reduce_dtype = HP_FP32;
    options.matmul = &p->stopwatch.engine;
    ok(hp_fsdp_create(p->mesh, &config, &p->fsdp));
    ok(qwen3_create(p->fsdp, &p->config, &options, &p->model));
    ok(hp_fsdp_commit(p->fsdp));
}

static void tear_down(probe *p) {
    hp_fsdp_destroy(p->fsdp);
    qwen3_destroy(p->model);
    hp_matmul_close(p->stopwatch.inner);
    hp_mesh_destroy(p->mesh);
    hp_world_destroy(p->world);
    free(p->inputs);
    free(p->targets);
}

/* ---- commands ---- */

static qwen3_batch batch_of(const probe *p, int i) {
    const size_t first = (size_t)(i % p->n_batches) * (size_t)p->batch * (size_t)p->seq;
    return (qwen3_batch){p->inputs + first, p->targets + first, p->batch, p->seq};
}

/* Forward, backward, and what else a pass needs; the mean loss of all ranks. */
static double train_pass(probe *p, int i, uint64_t *out_forward_ns) {
    const qwen3_batch batch = batch_of(p, i);
    double sums[2] = {0, 0};
    int64_t n_targets = 0;
    const uint64_t begin_ns = now_ns();
    ok(hp_fsdp_begin(p->fsdp, HP_SYNC));
    ok(qwen3_forward(p->model, &batch, &sums[0], &n_targets));
    *out_forward_ns = now_ns() - begin_ns;
    ok(qwen3_backward(p->model, 1.0));
    ok(hp_fsdp_end(p->fsdp));
    sums[1] = (double)n_targets;
    ok(hp_all_reduce(hp_world_group(p->world), sums, sums, 2, HP_FP64, HP_SUM));
    return sums[0] / sums[1];
}

static void losses(probe *p, char **arguments) {
    const int n_steps = atoi(arguments[1]);
    const double rate = atof(arguments[2]);
    hp_optimizer *adamw;
    double norm;
    uint64_t ignored_ns;
    FILE *file = is_first(p) ? fopen(arguments[0], "w") : NULL;
    if (is_first(p) && !file)
        end("a file to write", arguments[0]);
    ok(hp_optimizer_create(p->fsdp, "adamw", NULL, &adamw));
    for (int i = 0; i < n_steps; i++) {
        const double loss = train_pass(p, i, &ignored_ns);
        ok(hp_clip_grad_norm(p->fsdp, 1.0, 2.0, &norm));
        ok(hp_optimizer_step(adamw, rate));
        if (file)
            fprintf(file, "%.17g %.17g\n", loss, norm);
    }
    hp_optimizer_destroy(adamw);
    if (file && fclose(file) != 0)
        end("to write losses", arguments[0]);
}

/* Plain: no momentum, no decay. */
static void sgd(probe *p, char **arguments) {
    hp_optimizer *optimizer;
    uint64_t ignored_ns;
    ok(hp_optimizer_create(p->fsdp, "sgd", NULL, &optimizer));
    (void)train_pass(p, 0, &ignored_ns);
    ok(hp_optimizer_step(optimizer, atof(arguments[0])));
    hp_optimizer_destroy(optimizer);
}

static void logits(probe *p, char **arguments) {
    const qwen3_batch batch = batch_of(p, 0);
    const size_t n = (size_t)p->batch * (size_t)p->seq * (size_t)p->config.vocab_size;
    const size_t n_all = n * (size_t)hp_world_size(p->world);
    float *all = allocate(n_all * sizeof *all);
    double loss;
    int64_t n_targets;
    ok(hp_fsdp_begin(p->fsdp, HP_EVALUATE));
    ok(qwen3_forward(p->model, &batch, &loss, &n_targets));
    ok(hp_fsdp_end(p->fsdp));
    ok(hp_all_gather(hp_world_group(p->world), qwen3_logits(p->model), all, n, HP_FP32));
    FILE *file = is_first(p) ? fopen(arguments[0], "wb") : NULL;
    if (is_first(p) && (!file || fwrite(all, sizeof *all, n_all, file) != n_all || fclose(file)))
        end("to write logits", arguments[0]);
    free(all);
}

static void load(probe *p, char **arguments) {
    ok(hp_weights_load(p->fsdp, arguments[0]));
}

static void save(probe *p, char **arguments) {
    hp_weights_config config = HP_WEIGHTS_CONFIG_INIT;
    char text[4096];
    ok(hp_dtype_parse(arguments[1], &config.dtype));
    if (qwen3_config_write(&p->config, config.dtype, text, sizeof text) < 0)
        end("a short config.json", "a long one");
    config.max_file_bytes = strtoull(arguments[2], NULL, 10);
    config.file_names = (const char *[]){"config.json"};
    config.file_texts = (const char *[]){text};
    config.n_files = 1;
    ok(hp_weights_save(p->fsdp, arguments[0], &config));
}

/* A peer that is measured beside this program steps while this one waits for the next line. */
static void serve(probe *p, char **arguments) {
    const double rate = atof(arguments[0]);
    char line[64];
    hp_optimizer *adamw;
    ok(hp_optimizer_create(p->fsdp, "adamw", NULL, &adamw));
    while (fgets(line, sizeof line, stdin)) {
        stopwatch *s = &p->stopwatch;
        uint64_t forward_ns;
        s->weights_ns = s->attention_ns = 0;
        const uint64_t begin_ns = now_ns(), begin_cpu_ns = read_ns(CLOCK_PROCESS_CPUTIME_ID);
        const double loss = train_pass(p, 0, &forward_ns);
        const uint64_t passes_ns = now_ns() - begin_ns;
        ok(hp_optimizer_step(adamw, rate));
        const uint64_t all_ns = now_ns() - begin_ns;
        const uint64_t cpu_ns = read_ns(CLOCK_PROCESS_CPUTIME_ID) - begin_cpu_ns;
        printf("{\"loss\": %.9g, \"step_ms\": %.3f, \"cpu_ms\": %.3f, \"forward_ms\": %.3f, "
               "\"backward_ms\": %.3f, \"optimizer_ms\": %.3f, "
               "\"products_ms\": %.3f, \"attention_products_ms\": %.3f}\n",
               loss, (double)all_ns * 1e-6, (double)cpu_ns * 1e-6, (double)forward_ns * 1e-6,
               (double)(passes_ns - forward_ns) * 1e-6, (double)(all_ns - passes_ns) * 1e-6,
               (double)s->weights_ns * 1e-6, (double)s->attention_ns * 1e-6);
        (void)fflush(stdout);
    }
    hp_optimizer_destroy(adamw);
}

static const struct {
    const char *name;
    int n_arguments;
    void (*run)(probe *p, char **arguments);
} commands[] = {{"load", 1, load},     {"save", 3, save}, {"logits", 1, logits},
                {"losses", 3, losses}, {"sgd", 1, sgd},   {"serve", 1, serve}};

/* Runs the command that begins at argv and returns where the next one does. */
static char **run(probe *p, char **argv) {
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(*argv, commands[i].name) != 0)
            continue;
        for (int j = 1; j <= commands[i].n_arguments; j++)
            if (!argv[j])
                end("more arguments", *argv);
        commands[i].run(p, argv + 1);
        return argv + 1 + commands[i].n_arguments;
    }
    end("a command", *argv);
}

int main(int argc, char **argv) {
    probe p = {0};
    if (argc < 8)
        end("CONFIG.json DTYPE RxS BATCH SEQ TOKENS COMMAND...", "fewer");
    set_up(&p, argv);
    for (char **command = argv + 7; *command;)
        command = run(&p, command);
    tear_down(&p);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/train.c - the training loop, on the library's public interface alone.
 *
 * A step: samples by the number of the step, forward, backward, clip, update, and one small
 * all-reduce in which the ranks share the loss and whether one of them was asked to stop. So all
 * stop after the same step, and the same run gives the same bits wherever it was resumed.
 */
#include "train.h"
#include "bytes_mlp/bytes_mlp.h"
#include "fail.h"
#include "report.h"
#include "text.h"

#include <errno.h>
#include <hyperparallel/hyperparallel.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Windows of the held-out part on which the loss is measured: the same ones every time. */
enum { N_HELD_OUT = 256 };

typedef struct trainer {
    const options *o;
    hp_world *world;
    text text;
    unsigned char *samples, *held_out; /* [batch] and [N_HELD_OUT], each window + seq bytes */
    int mesh_sizes[2];                 /* replicate, shard */
    hp_mesh *mesh;
    hp_trace *trace;
    bool has_traced;
    hp_fsdp *fsdp;
    bytes_mlp *model;
    hp_optimizer *optimizer;
    uint64_t first_step; /* steps done before this run */
    uint64_t saved_step; /* of the newest checkpoint; 0: none */
    hp_fsdp_stats last;  /* at the end of the last step */
    report *report;      /* rank 0; else NULL */
} trainer;

/* ---- signals ---- */

/* A signal can reach nothing but a global. */
static volatile sig_atomic_t stop_requested;

static void request_stop(int signal) {
    (void)signal;
    stop_requested = 1;
}

static void catch_signals(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = request_stop;
    action.sa_flags = SA_RESTART;           /* a step in progress is not disturbed */
    (void)sigaction(SIGINT, &action, NULL); /* fails only for signals that do not exist */
    (void)sigaction(SIGTERM, &action, NULL);
}

/* ---- set up ---- */

/* Create the directory of a path with its parents; several ranks may do so at once. */
static void make_parents(const char *path, size_t length) {
    char part[4096];
    for (size_t i = 1; i <= length && i < sizeof part; i++)
        if (path[i] == '/' || i == length) {
            memcpy(part, path, i);
            part[i] = 0;
            (void)mkdir(part, 0777); /* access says whether it is there */
        }
}

static hp_status check_directory(const char *option, const char *path) {
    if (!*path)
        return HP_OK;
    make_parents(path, strlen(path));
    if (access(path, W_OK | X_OK) != 0)
        return fail(HP_ERR_FILE, "expected --%s at a place that can be written, given %s: %s",
                    option, path, strerror(errno));
    return HP_OK;
}

/* A file is not created yet: a run that fails early leaves none. */
static hp_status check_file(const char *option, const char *path) {
    char directory[4096] = ".";
    const char *slash = strrchr(path, '/');
    if (slash && (size_t)(slash - path) < sizeof directory - 1)
        snprintf(directory, sizeof directory, "%.*s", (int)(slash - path) + 1, path);
    return *path ? check_directory(option, directory) : HP_OK;
}

/* Before the first step, so that no hour of training ends at a path that cannot be written. */
static hp_status check_places(const options *o) {
    TRY(check_file("log", o->log));
    TRY(check_file("curve", o->curve));
    TRY(check_directory("save", o->save));
    return check_directory("trace", o->trace);
}

static hp_status read_text(trainer *t) {
    const size_t sample_bytes = (size_t)(t->o->window + t->o->seq);
    TRY(text_load(t->o->data, sample_bytes, &t->text));
    t->samples = malloc((size_t)t->o->batch * sample_bytes);
    t->held_out = malloc(N_HELD_OUT * sample_bytes);
    if (!t->samples || !t->held_out)
        return fail(HP_ERR_MEMORY, "expected memory for %lld samples of %zu bytes",
                    (long long)t->o->batch + N_HELD_OUT, sample_bytes);
    text_held_out(&t->text, N_HELD_OUT, t->held_out);
    return HP_OK;
}

static hp_status check_mesh(trainer *t) {
    const int n_ranks = hp_world_size(t->world);
    t->mesh_sizes[0] = t->o->n_shards ? t->o->n_replicas : 1;
    t->mesh_sizes[1] = t->o->n_shards ? t->o->n_shards : n_ranks;
    const int n = t->mesh_sizes[0] * t->mesh_sizes[1];
    if (n != n_ranks)
        return fail(HP_ERR_ARGUMENT,
                    "expected --mesh RxS with R x S = %d, the number of ranks, given %s = %d",
                    n_ranks, t->o->mesh, n);
    return HP_OK;
}

/* What a rank can find wrong by itself, before the ranks depend on each other. */
static hp_status check_own(trainer *t) {
    TRY(check_mesh(t));
    TRY(check_places(t->o));
    return read_text(t);
}

static uint64_t global_batch(const trainer *t) {
    return (uint64_t)t->o->batch * (uint64_t)hp_world_size(t->world);
}

/* Spans that a stream may need for the steps to be traced and the evaluations among them: a unit
 * takes about 30 in a step and 12 in a pass of an evaluation. */
static uint64_t trace_spans(const trainer *t) {
    const uint64_t n_steps = (uint64_t)t->o->trace_steps, every = (uint64_t)t->o->eval_every;
    const uint64_t n_evaluations = 2 + (every ? n_steps / every : 0);
    const uint64_t n_passes = n_evaluations * (N_HELD_OUT / global_batch(t) + 1);
    return ((uint64_t)t->o->blocks + 2) * (64 * n_steps + 32 * n_passes);
}

static hp_status make_fsdp(trainer *t) {
    const options *o = t->o;
    hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    TRY(hp_mode_parse(o->comm, &config.mode));
    config.prefetch = (int)o->prefetch;
    config.executor = strcmp(o->executor, "inline") == 0 ? HP_EXECUTOR_INLINE : HP_EXECUTOR_THREAD;
    config.schedule = strcmp(o->schedule, "serial") == 0 ? HP_SERIAL : HP_OVERLAP;
    if (*o->trace)
        TRY(hp_trace_create(hp_world_rank(t->world), trace_spans(t), &t->trace));
    config.trace = t->trace;
    return hp_fsdp_create(t->mesh, &config, &t->fsdp);
}

static hp_status declare_model(trainer *t) {
    const options *o = t->o;
    bytes_mlp_config config = BYTES_MLP_CONFIG_INIT;
    config.window = (int)o->window;
    config.width = (int)o->width;
    config.hidden = (int)o->hidden;
    config.n_blocks = (int)o->blocks;
    config.seq = (int)o->seq;
    config.batch = (int)o->batch;
    config.seed = (uint64_t)o->seed;
    const hp_status status = bytes_mlp_create(t->fsdp, &config, &t->model);
    if (status == HP_ERR_MEMORY)
        return fail(
            status,
            "expected memory for the activations of %d samples of %d bytes (--batch, --seq) in "
            "%d blocks (--width %d, --hidden %d), the system gave none",
            config.batch, config.seq, config.n_blocks, config.width, config.hidden);
    return status;
}

static hp_status make_optimizer(trainer *t) {
    hp_optimizer_config config = HP_OPTIMIZER_CONFIG_INIT;
    config.weight_decay = t->o->weight_decay;
    config.momentum = t->o->momentum;
    return hp_optimizer_create(t->fsdp, t->o->optimizer, &config, &t->optimizer);
}

/* The optimizer's state comes back too, else the next update would differ. */
static hp_status resume(trainer *t) {
    if (!*t->o->resume)
        return HP_OK;
    TRY(hp_checkpoint_load(t->fsdp, t->optimizer, t->o->resume, &t->first_step));
    if (t->first_step >= (uint64_t)t->o->steps)
        return fail(HP_ERR_ARGUMENT,
                    "expected --steps above %llu, the step of the checkpoint in %s, given %lld",
                    (unsigned long long)t->first_step, t->o->resume, (long long)t->o->steps);
    return HP_OK;
}

static hp_status begin_report(trainer *t) {
    const run_facts facts = {
        .data = t->text.path,
        .n_parameters = bytes_mlp_n_parameters(t->model),
        .n_train_bytes = t->text.n_train,
        .n_held_out_bytes = t->text.n_bytes - t->text.n_train,
        .tokens_per_step = global_batch(t) * (uint64_t)t->o->seq,
        .n_ranks = hp_world_size(t->world),
        .n_replicas = hp_mesh_size(t->mesh, 0),
        .n_shards = hp_mesh_size(t->mesh, 1),
        .first_step = t->first_step,
        .n_steps = (uint64_t)t->o->steps,
    };
    if (hp_world_rank(t->world) != 0)
        return HP_OK;
    t->report = calloc(1, sizeof *t->report);
    if (!t->report)
        return HP_ERR_MEMORY;
    return report_begin(t->report, t->o, &facts);
}

static hp_status set_up(trainer *t) {
    TRY(agree(t->world, check_own(t)));
    TRY(hp_mesh_create(t->world, t->mesh_sizes, 2, &t->mesh));
    TRY(make_fsdp(t));
    TRY(agree(t->world, declare_model(t)));
    TRY(hp_fsdp_commit(t->fsdp));
    TRY(make_optimizer(t));
    TRY(resume(t));
    return begin_report(t);
}

/* In the reverse order of set_up; everything takes NULL. */
static void tear_down(trainer *t) {
    if (t->report)
        report_close(t->report);
    free(t->report);
    hp_optimizer_destroy(t->optimizer);
    hp_fsdp_destroy(t->fsdp);
    bytes_mlp_destroy(t->model);
    hp_trace_destroy(t->trace);
    hp_mesh_destroy(t->mesh);
    free(t->held_out);
    free(t->samples);
    text_free(&t->text);
}

/* ---- a step ---- */

/* Shards, gathered units and gradients lie in symmetric memory; the rest is this rank's own. */
static hp_status peak_bytes(const trainer *t, double *out_bytes) {
    hp_symm_stats memory;
    hp_fsdp_stats stats;
    TRY(hp_symm_stats_get(t->world, &memory));
    TRY(hp_fsdp_stats_get(t->fsdp, &stats));
    *out_bytes =
        (double)(memory.peak_bytes + stats.optimizer_bytes + bytes_mlp_activation_bytes(t->model));
    return HP_OK;
}

/* What the ranks tell each other after a step; all are sums over the ranks. */
enum { LOSS, STOP, UNSHARD_NS, REDUCE_NS, REPLICATE_NS, N_SHARED };

/* The stop travels with the loss, so that no rank begins a step that another does not. */
static hp_status share(trainer *t, double loss, step_record *out, bool *out_stop) {
    hp_group *all = hp_world_group(t->world);
    const double n_ranks = hp_world_size(t->world);
    const hp_fsdp_stats before = t->last;
    double peak = 0;
    TRY(hp_fsdp_stats_get(t->fsdp, &t->last));
    double sums[N_SHARED] = {
        [LOSS] = loss,
        [STOP] = stop_requested,
        [UNSHARD_NS] = (double)(t->last.exposed_unshard_ns - before.exposed_unshard_ns),
        [REDUCE_NS] = (double)(t->last.exposed_reduce_ns - before.exposed_reduce_ns),
        [REPLICATE_NS] = (double)(t->last.exposed_replicate_ns - before.exposed_replicate_ns),
    };
    TRY(hp_all_reduce(all, sums, sums, N_SHARED, HP_FP64, HP_SUM));
    TRY(peak_bytes(t, &peak));
    TRY(hp_all_reduce(all, &peak, &peak, 1, HP_FP64, HP_MAX));
    out->loss = sums[LOSS] / (double)(global_batch(t) * (uint64_t)t->o->seq);
    out->unshard_ms = sums[UNSHARD_NS] / n_ranks * 1e-6;
    out->reduce_ms = sums[REDUCE_NS] / n_ranks * 1e-6;
    out->replicate_ms = sums[REPLICATE_NS] / n_ranks * 1e-6;
    out->peak_bytes = (uint64_t)peak;
    *out_stop = sums[STOP] > 0;
    return HP_OK;
}

/* Sample j of this rank is number step x global batch + rank x batch + j of the data. */
static void next_samples(trainer *t, uint64_t step) {
    const uint64_t first =
        step * global_batch(t) + (uint64_t)hp_world_rank(t->world) * (uint64_t)t->o->batch;
    text_samples(&t->text, (uint64_t)t->o->seed, first, (int)t->o->batch, t->samples);
}

static hp_status update(trainer *t) {
    double norm;
    if (t->o->clip > 0)
        TRY(hp_clip_grad_norm(t->fsdp, t->o->clip, 2.0, &norm));
    return hp_optimizer_step(t->optimizer, t->o->lr);
}

static hp_status train_step(trainer *t, uint64_t step, step_record *out, bool *out_stop) {
    const uint64_t begin_ns = now_ns();
    double loss = 0;
    TRY(hp_world_check(t->world)); /* hprun may be gone while nobody waits for long */
    next_samples(t, step);
    TRY(hp_fsdp_begin(t->fsdp, HP_SYNC));
    TRY(bytes_mlp_forward(t->model, t->samples, (int)t->o->batch, &loss));
    TRY(bytes_mlp_backward(t->model, 1));
    TRY(hp_fsdp_end(t->fsdp));
    TRY(update(t));
    TRY(share(t, loss, out, out_stop));
    if (!isfinite(out->loss)) /* before anything of it is saved; all ranks see the same sum */
        return agree(
            t->world,
            fail(HP_ERR_STATE,
                 "expected a finite loss, step %llu gave %g: the run has diverged (a smaller "
                 "--lr, or --clip); the last checkpoint is as it was",
                 (unsigned long long)step + 1, out->loss));
    const double seconds = (double)(now_ns() - begin_ns) * 1e-9;
    out->step = step + 1;
    out->step_ms = seconds * 1e3;
    out->tokens_per_s = (double)(global_batch(t) * (uint64_t)t->o->seq) / seconds;
    out->held_out_loss = NAN;
    return HP_OK;
}

/* ---- the run ---- */

static hp_status evaluate(trainer *t, uint64_t step, double *out_loss) {
    TRY(bytes_mlp_evaluate(t->model, t->world, t->held_out, N_HELD_OUT, out_loss));
    TRY(hp_fsdp_stats_get(t->fsdp, &t->last)); /* its waits belong to no step */
    if (t->report)
        report_held_out(t->report, step, *out_loss);
    return HP_OK;
}

/* The end may fall on a step that was saved already. */
static hp_status save(trainer *t, uint64_t step) {
    if (!*t->o->save || t->saved_step == step)
        return HP_OK;
    TRY(hp_checkpoint_save(t->fsdp, t->optimizer, t->o->save, step));
    t->saved_step = step;
    return HP_OK;
}

/* Once: when the steps to be traced are done, or at the end of a shorter run. */
static hp_status write_trace(trainer *t) {
    char path[4200];
    if (!t->trace || t->has_traced)
        return HP_OK;
    t->has_traced = true;
    snprintf(path, sizeof path, "%s/trace-%d.json", t->o->trace, hp_world_rank(t->world));
    return hp_trace_write(t->trace, path);
}

static bool is_due(int64_t every, uint64_t step) {
    return every > 0 && step % (uint64_t)every == 0;
}

/* The loss before training is measured too: it is what the curve starts from. */
static hp_status train_all(trainer *t, uint64_t *out_done, bool *out_stop) {
    double ignored;
    uint64_t step = t->first_step;
    bool stop = false;
    TRY(evaluate(t, step, &ignored));
    while (step < (uint64_t)t->o->steps && !stop) {
        step_record record;
        TRY(train_step(t, step++, &record, &stop));
        if (is_due(t->o->eval_every, step) || stop || step == (uint64_t)t->o->steps)
            TRY(evaluate(t, step, &record.held_out_loss));
        if (t->report)
            TRY(report_step(t->report, &record));
        if (is_due(t->o->save_every, step))
            TRY(save(t, step));
        if (step - t->first_step == (uint64_t)t->o->trace_steps)
            TRY(write_trace(t));
    }
    *out_done = step;
    *out_stop = stop;
    return HP_OK;
}

static hp_status run(trainer *t) {
    uint64_t n_done = 0;
    bool stop = false;
    TRY(set_up(t));
    TRY(train_all(t, &n_done, &stop));
    TRY(save(t, n_done));
    TRY(write_trace(t));
    return t->report ? report_end(t->report, n_done, stop) : HP_OK;
}

hp_status train(hp_world *world, const options *o) {
    trainer t = {.o = o, .world = world};
    catch_signals();
    const hp_status status = run(&t);
    tear_down(&t);
    return status;
}

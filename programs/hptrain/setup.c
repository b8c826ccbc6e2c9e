/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/setup.c - from options to a model that is ready to train, and back.
 *
 * First each rank checks what it can check by itself, then the ranks agree, then come the calls
 * that all of them make together.
 */
#include "fail.h"
#include "places.h"
#include "record.h"
#include "trainer.h"

#include <hyperparallel/coll.h>
#include <hyperparallel/fused.h>

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int n_data(const trainer *t) {
    return hp_world_size(t->world) / (int)t->o->tp;
}

int data_rank(const trainer *t) {
    return hp_world_rank(t->world) / (int)t->o->tp;
}

uint64_t global_batch(const trainer *t) {
    return (uint64_t)(t->o->accumulate * t->o->batch) * (uint64_t)n_data(t);
}

uint64_t tokens_per_step(const trainer *t) {
    return global_batch(t) * (uint64_t)t->o->seq;
}

/* ---- what a rank can find wrong by itself ---- */

static hp_status check_mesh(trainer *t) {
    const int n_ranks = hp_world_size(t->world), n_tensor = (int)t->o->tp;
    if (n_ranks % n_tensor != 0)
        return fail(HP_ERR_ARGUMENT, "expected --tp to divide the %d ranks, given %d", n_ranks,
                    n_tensor);
    const int n_shards = t->o->n_shards ? t->o->n_shards : n_ranks / n_tensor;
    const int n_replicas = t->o->n_replicas ? t->o->n_replicas : n_ranks / n_tensor / n_shards;
    const int n = n_replicas * n_shards * n_tensor;
    t->mesh_sizes[0] = n_replicas;
    t->mesh_sizes[1] = n_shards * n_tensor;
    if (n != n_ranks)
        return fail(HP_ERR_ARGUMENT,
                    "expected --mesh RxS with R x S%s = %d, the number of ranks, given %s = %d",
                    n_tensor > 1 ? " x --tp" : "", n_ranks, t->o->mesh, n);
    return HP_OK;
}

static hp_status open_model(trainer *t) {
    t->model.options = t->o;
    t->model.kind = options_is_bytes_mlp(t->o) ? &model_bytes_mlp : &model_qwen3;
    return t->model.kind->open(&t->model, t->data.vocab_size);
}

static hp_status take_samples(trainer *t) {
    const size_t sample_bytes = (size_t)t->model.sample_tokens * sizeof *t->samples;
    const int n_held_out = (int)t->o->eval_samples;
    TRY(data_fit(&t->data, t->model.sample_tokens, t->model.vocab_size));
    t->samples = calloc((size_t)t->o->batch, sample_bytes);
    t->held_out = malloc((size_t)n_held_out * sample_bytes);
    if (!t->samples || !t->held_out)
        return fail(HP_ERR_MEMORY, "expected memory for %lld samples of %zu bytes",
                    (long long)t->o->batch + n_held_out, sample_bytes);
    return data_held_out(&t->data, n_held_out, t->held_out);
}

static hp_status check_own(trainer *t) {
    TRY(check_mesh(t));
    TRY(data_open(t->o->data, &t->data));
    TRY(open_model(t));
    TRY(options_settle(t->o, t->model.has_weights));
    TRY(take_samples(t));
    TRY(sample_read_prompt(t));
    TRY(restart_find(t));
    return places_check(t->o);
}

/* Cores that this process may run on; a mask of more than 1,024 does not fit and is counted whole.
 */
static int n_allowed_cores(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                       : (int)sysconf(_SC_NPROCESSORS_ONLN);
}

/* OpenMP's threads spin where they wait, on the core that the rank they wait for needs. The
 * variable is read when the plug-in is loaded; no thread of this program runs yet. */
static void let_waiting_threads_sleep(const trainer *t) {
    if (t->o->threads * hp_world_local_size(t->world) > n_allowed_cores())
        (void)setenv("OMP_WAIT_POLICY", "passive", 0);
}

/* ---- together ---- */

/* What each rank found by itself must be what rank 0 found. */
static hp_status compare(const trainer *t, const char *what, const char *mine) {
    char first[32] = "";
    snprintf(first, sizeof first, "%s", mine);
    TRY(hp_broadcast(hp_world_group(t->world), first, sizeof first, HP_INT8, 0));
    const bool is_same = strncmp(first, mine, sizeof first - 1) == 0;
    return agree(t->world, is_same ? HP_OK
                                   : fail(HP_ERR_MISMATCH, "expected %s as on rank 0, %s, given %s",
                                          what, first, mine));
}

/* Spans that a stream may need for the steps to be traced and the evaluations among them: a unit
 * takes about 30 in a pass of training and 12 in one of an evaluation. */
static uint64_t trace_spans(const trainer *t) {
    const int64_t most = t->o->trace_steps < t->o->steps ? t->o->trace_steps : t->o->steps;
    const uint64_t n_steps = (uint64_t)most, every = (uint64_t)t->o->eval_every;
    const uint64_t n_evaluations = 2 + (every ? n_steps / every : 0);
    const uint64_t n_at_once = (uint64_t)t->o->batch * (uint64_t)n_data(t);
    const uint64_t n_passes = n_evaluations * ((uint64_t)t->o->eval_samples / n_at_once + 1);
    return (uint64_t)t->model.n_units * (64 * n_steps * (uint64_t)t->o->accumulate + 32 * n_passes);
}

static hp_status take_dtype(const char *name, int *out_dtype) {
    hp_dtype dtype;
    TRY(hp_dtype_parse(name, &dtype));
    *out_dtype = (int)dtype;
    return HP_OK;
}

static hp_status configure(const options *o, hp_fsdp_config *out) {
    TRY(hp_mode_parse(o->comm, &out->mode));
    TRY(hp_schedule_parse(o->schedule, &out->schedule));
    TRY(take_dtype(o->param_dtype, &out->param_dtype));
    TRY(take_dtype(o->reduce_dtype, &out->reduce_dtype));
    TRY(take_dtype(o->replicate_wire, &out->replicate_wire));
    out->prefetch = (int)o->prefetch;
    out->reshard_after_forward = (int)o->reshard;
    out->executor = strcmp(o->executor, "inline") == 0 ? HP_EXECUTOR_INLINE : HP_EXECUTOR_THREAD;
    out->missing_grad = strcmp(o->missing_grad, "error") == 0 ? HP_MISSING_ERROR : HP_MISSING_ZERO;
    out->offload = o->offload;
    out->replay_after = (int)o->replay;
    out->record = o->verify || o->replay;
    return HP_OK;
}

/* A gather of nothing meets all of the group: who is on another node is named here, before anything
 * is computed. */
static hp_status meet(hp_group *group) {
    const int64_t rows[MOST_TENSOR] = {0};
    hp_fused_args args = HP_FUSED_ARGS_INIT;
    hp_matmul *matmul = NULL;
    TRY(hp_matmul_open("plain", 1, &matmul));
    args.group = group;
    args.matmul = matmul;
    args.rows = rows;
    const hp_status status = hp_all_gather_matmul(&args);
    hp_matmul_close(matmul);
    return status;
}

static hp_status make_tensor_group(trainer *t) {
    if (t->o->tp == 1)
        return HP_OK;
    TRY(hp_group_split(hp_world_group(t->world), data_rank(t), 0, &t->tensor));
    t->model.tensor = t->tensor;
    return agree(t->world, meet(t->tensor));
}

static hp_status make_fsdp(trainer *t) {
    hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    TRY(configure(t->o, &config));
    if (*t->o->trace)
        TRY(hp_trace_create(hp_world_rank(t->world), trace_spans(t), &t->trace));
    config.trace = t->trace;
    return hp_fsdp_create(t->mesh, &config, &t->fsdp);
}

static hp_status make_optimizer(trainer *t) {
    hp_optimizer_config config = HP_OPTIMIZER_CONFIG_INIT;
    config.weight_decay = t->o->weight_decay;
    config.momentum = t->o->momentum;
    config.beta2 = t->o->beta2;
    return hp_optimizer_create(t->fsdp, t->o->optimizer, &config, &t->optimizer);
}

/* The optimizer's state comes back too, else the next update would differ. */
static hp_status resume(trainer *t) {
    TRY(agree(t->world, record_compare(t, t->resumed_note)));
    TRY(hp_checkpoint_load(t->fsdp, t->optimizer, t->o->resume, &t->first_step));
    hp_status status = HP_OK;
    if (t->o->steps && t->first_step > (uint64_t)t->o->steps)
        status = fail(HP_ERR_ARGUMENT,
                      "expected --steps of at least %llu, the step of the checkpoint in %s, given "
                      "%lld",
                      (unsigned long long)t->first_step, t->o->resume, (long long)t->o->steps);
    return agree(t->world, status);
}

static hp_status find_weights(trainer *t) {
    if (*t->o->resume)
        return resume(t);
    return t->model.kind->load ? t->model.kind->load(&t->model, t->fsdp) : HP_OK;
}

static const char *weights_name(const trainer *t) {
    if (*t->o->resume)
        return "checkpoint";
    return t->model.has_weights ? t->o->model : "first";
}

static hp_status begin_report(trainer *t) {
    hp_schedule schedule;
    TRY(hp_schedule_parse(t->o->schedule, &schedule));
    const run_facts facts = {
        .data = t->data.path,
        .unit = data_unit(&t->data),
        .engine = t->model.engine,
        .engine_note = *t->model.engine_note ? t->model.engine_note : NULL,
        .weights = weights_name(t),
        .resumed_note = t->resumed_note,
        .mode = hp_mode_name(hp_fsdp_mode(t->fsdp)),
        .schedule = hp_schedule_name(schedule),
        .n_restarts = t->n_restarts,
        .vocab_size = t->model.vocab_size,
        .n_parameters = t->model.n_parameters,
        .n_train = t->data.n_train,
        .n_held_out = t->data.n_tokens - t->data.n_train,
        .tokens_per_step = tokens_per_step(t),
        .n_ranks = hp_world_size(t->world),
        .n_replicas = hp_mesh_size(t->mesh, 0),
        .n_shards = hp_mesh_size(t->mesh, 1) / (int)t->o->tp,
        .n_tensor = (int)t->o->tp,
        .n_cores = n_allowed_cores(),
        .first_step = t->first_step,
        .n_steps = t->last_step,
    };
    if (hp_world_rank(t->world) != 0)
        return HP_OK;
    t->report = calloc(1, sizeof *t->report);
    if (!t->report)
        return fail(HP_ERR_MEMORY, "expected memory for the report");
    return report_begin(t->report, t->o, &facts);
}

hp_status set_up(trainer *t) {
    TRY(options_compare(t->world, t->o));
    let_waiting_threads_sleep(t);
    TRY(agree(t->world, check_own(t)));
    TRY(compare(t, "checkpoints to resume", *t->o->resume ? "some" : "none"));
    TRY(compare(t, "weights in --model", t->model.has_weights ? "some" : "none"));
    TRY(hp_mesh_create(t->world, t->mesh_sizes, 2, &t->mesh));
    TRY(make_tensor_group(t));
    TRY(make_fsdp(t));
    TRY(agree(t->world, t->model.kind->create(&t->model, t->fsdp)));
    TRY(compare(t, "the engine of matrix products", t->model.engine));
    TRY(hp_fsdp_commit(t->fsdp));
    TRY(make_optimizer(t));
    TRY(find_weights(t));
    t->last_step = t->o->steps ? (uint64_t)t->o->steps : t->first_step;
    return agree(t->world, begin_report(t));
}

void tear_down(trainer *t) {
    if (t->report)
        report_close(t->report);
    free(t->report);
    hp_optimizer_destroy(t->optimizer);
    hp_fsdp_destroy(t->fsdp);
    if (t->model.kind)
        t->model.kind->close(&t->model);
    hp_trace_destroy(t->trace);
    hp_group_destroy(t->tensor);
    hp_mesh_destroy(t->mesh);
    free(t->prompt);
    free(t->held_out);
    free(t->samples);
    data_close(&t->data);
}

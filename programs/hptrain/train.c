/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/train.c - the run: steps, evaluations, checkpoints.
 *
 * Which samples a step takes and how fast it learns depend on its number alone, so a run that is
 * resumed is the same run. Whether to stop travels with the loss, so that all ranks do.
 */
#include "train.h"
#include "fail.h"
#include "schedule.h"
#include "stop.h"
#include "trainer.h"

#include <hyperparallel/coll.h>
#include <hyperparallel/symm.h>

#include <math.h>
#include <string.h>

/* ---- a step ---- */

/* Shards, gathered units and gradients lie in symmetric memory; the rest is this rank's own. */
static hp_status peak_bytes(const trainer *t, double *out_bytes) {
    hp_symm_stats memory;
    hp_fsdp_stats stats;
    TRY(hp_symm_stats_get(t->world, &memory));
    TRY(hp_fsdp_stats_get(t->fsdp, &stats));
    *out_bytes = (double)(memory.peak_bytes + stats.optimizer_bytes + t->model.activation_bytes);
    return HP_OK;
}

/* What the ranks tell each other after a step; all are sums over the ranks. */
enum { LOSS, STOP, UNSHARD_NS, REDUCE_NS, REPLICATE_NS, N_SHARED };

static hp_status share(trainer *t, double loss, step_record *out, bool *out_stop) {
    hp_group *all = hp_world_group(t->world);
    const double n_ranks = hp_world_size(t->world);
    const hp_fsdp_stats before = t->last;
    double peak = 0;
    TRY(hp_fsdp_stats_get(t->fsdp, &t->last));
    double sums[N_SHARED] = {
        [LOSS] = loss,
        [STOP] = stop_is_requested(),
        [UNSHARD_NS] = (double)(t->last.exposed_unshard_ns - before.exposed_unshard_ns),
        [REDUCE_NS] = (double)(t->last.exposed_reduce_ns - before.exposed_reduce_ns),
        [REPLICATE_NS] = (double)(t->last.exposed_replicate_ns - before.exposed_replicate_ns),
    };
    TRY(hp_all_reduce(all, sums, sums, N_SHARED, HP_FP64, HP_SUM));
    TRY(peak_bytes(t, &peak));
    TRY(hp_all_reduce(all, &peak, &peak, 1, HP_FP64, HP_MAX));
    out->loss = sums[LOSS] / (double)tokens_per_step(t);
    out->unshard_ms = sums[UNSHARD_NS] / n_ranks * 1e-6;
    out->reduce_ms = sums[REDUCE_NS] / n_ranks * 1e-6;
    out->replicate_ms = sums[REPLICATE_NS] / n_ranks * 1e-6;
    out->peak_bytes = (uint64_t)peak;
    *out_stop = sums[STOP] > 0;
    return HP_OK;
}

/* Sample j of this rank in pass k is number step x global batch + (k x ranks + rank) x batch + j of
 * the data. */
static hp_status next_samples(trainer *t, uint64_t step, uint64_t k) {
    const uint64_t n_ranks = (uint64_t)hp_world_size(t->world);
    const uint64_t slot = k * n_ranks + (uint64_t)hp_world_rank(t->world);
    return data_samples(&t->data, (uint64_t)t->o->seed,
                        step * global_batch(t) + slot * (uint64_t)t->o->batch, (int)t->o->batch,
                        t->samples);
}

/* The passes before the last one keep their gradients on the rank. */
static hp_status train_pass(trainer *t, uint64_t step, uint64_t k, double *inout_loss) {
    const uint64_t n_passes = (uint64_t)t->o->accumulate;
    double loss = 0;
    TRY(next_samples(t, step, k));
    TRY(hp_fsdp_begin(t->fsdp, k + 1 < n_passes ? HP_NO_SYNC : HP_SYNC));
    TRY(t->model.kind->forward(&t->model, t->samples, (int)t->o->batch, &loss));
    TRY(t->model.kind->backward(&t->model, 1 / (double)n_passes));
    *inout_loss += loss;
    return hp_fsdp_end(t->fsdp);
}

static hp_status update(trainer *t, uint64_t step, step_record *out) {
    out->lr = schedule_learning_rate(t->o, step);
    out->grad_norm = NAN;
    if (t->o->clip > 0)
        TRY(hp_clip_grad_norm(t->fsdp, t->o->clip, 2.0, &out->grad_norm));
    return hp_optimizer_step(t->optimizer, out->lr);
}

/* Before anything of it is saved. All ranks see the same sum, so one of them tells. */
static hp_status check_loss(const trainer *t, const step_record *record) {
    if (isfinite(record->loss))
        return HP_OK;
    return agree(t->world,
                 fail(HP_ERR_STATE,
                      "expected a finite loss, step %llu gave %g: the run has diverged (a smaller "
                      "--lr, or --clip); the last checkpoint is as it was",
                      (unsigned long long)record->step, record->loss));
}

static hp_status train_step(trainer *t, uint64_t step, step_record *out, bool *out_stop) {
    const uint64_t begin_ns = now_ns();
    double loss = 0;
    TRY(hp_world_check(t->world)); /* hprun may be gone while nobody waits for long */
    for (uint64_t k = 0; k < (uint64_t)t->o->accumulate; k++)
        TRY(train_pass(t, step, k, &loss));
    TRY(update(t, step, out));
    TRY(share(t, loss, out, out_stop));
    const double seconds = (double)(now_ns() - begin_ns) * 1e-9;
    out->step = step + 1;
    out->step_ms = seconds * 1e3;
    out->tokens_per_s = (double)tokens_per_step(t) / seconds;
    out->held_out_loss = NAN;
    return check_loss(t, out);
}

/* ---- evaluation ---- */

static int64_t clamp(int64_t value, int64_t least, int64_t most) {
    return value < least ? least : value > most ? most : value;
}

/* Loss alone: no gradients are kept or reduced. */
static hp_status evaluate_pass(trainer *t, const int32_t *samples, int n, double *inout_loss) {
    double loss = 0;
    TRY(hp_fsdp_begin(t->fsdp, HP_EVALUATE));
    TRY(t->model.kind->forward(&t->model, samples, n, &loss));
    *inout_loss += loss;
    return hp_fsdp_end(t->fsdp);
}

/* Pass after pass takes the next batch for each rank; every rank makes every pass, even with no
 * samples left for it, since the units' gathers are collective. */
static hp_status held_out_loss(trainer *t, double *out_loss) {
    const int64_t batch = t->o->batch, n_samples = t->o->eval_samples;
    const int64_t stride = batch * hp_world_size(t->world);
    double loss = 0;
    for (int64_t first = 0; first < n_samples; first += stride) {
        const int64_t mine = first + batch * hp_world_rank(t->world);
        const int64_t n = clamp(n_samples - mine, 0, batch);
        const int32_t *from = t->held_out + (n ? mine * t->model.sample_tokens : 0);
        TRY(evaluate_pass(t, from, (int)n, &loss));
    }
    TRY(hp_all_reduce(hp_world_group(t->world), &loss, &loss, 1, HP_FP64, HP_SUM));
    *out_loss = loss / ((double)n_samples * (double)t->o->seq);
    return HP_OK;
}

static hp_status evaluate(trainer *t, uint64_t step, double *out_loss) {
    TRY(held_out_loss(t, out_loss));
    TRY(hp_fsdp_stats_get(t->fsdp, &t->last)); /* its waits belong to no step */
    return t->report ? report_held_out(t->report, step, *out_loss) : HP_OK;
}

/* ---- the run ---- */

/* The end may fall on a step that was saved already. */
static hp_status save(trainer *t, uint64_t step) {
    if (!*t->o->save || (t->has_saved && t->saved_step == step))
        return HP_OK;
    TRY(hp_checkpoint_save(t->fsdp, t->optimizer, t->o->save, step));
    t->has_saved = true;
    t->saved_step = step;
    return HP_OK;
}

static hp_status export_model(trainer *t) {
    char path[PATH_MAX];
    if (strcmp(t->o->export, "none") == 0)
        return HP_OK;
    if ((size_t)snprintf(path, sizeof path, "%s/hf", t->o->save) >= sizeof path)
        return fail(HP_ERR_ARGUMENT, "expected --save to be a path below %zu bytes", sizeof path);
    return t->model.kind->export(&t->model, t->fsdp, path);
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
    while (step < t->last_step && !stop) {
        step_record record;
        TRY(train_step(t, step++, &record, &stop));
        if (is_due(t->o->eval_every, step) || stop || step == t->last_step)
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
    TRY(export_model(t));
    TRY(write_trace(t));
    if (t->report)
        TRY(report_result(t->report, n_done, stop));
    if (!stop)
        TRY(sample_generate(t));
    return t->report ? report_end(t->report, n_done, stop) : HP_OK;
}

hp_status train(hp_world *world, const options *o) {
    trainer t = {.o = o, .world = world};
    stop_catch_signals();
    const hp_status status = run(&t);
    tear_down(&t);
    return status;
}

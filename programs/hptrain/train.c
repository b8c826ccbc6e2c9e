/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/train.c - the run: steps, evaluations, checkpoints.
 *
 * Which samples a step takes and how fast it learns depend on its number alone, so a run that is
 * resumed is the same run. Whether to stop travels with the loss, so that all ranks do.
 */
#include "train.h"
#include "fail.h"
#include "finite.h"
#include "record.h"
#include "schedule.h"
#include "stop.h"
#include "trainer.h"

#include <hyperparallel/coll.h>
#include <hyperparallel/symm.h>

#include <math.h>
#include <string.h>

/* ---- failures of one rank ---- */

void keep(trainer *t, hp_status status) {
    if (status < 0 && t->own >= 0)
        t->own = status;
}

/* What a rank kept becomes everybody's. Collective. */
static hp_status tell(trainer *t) {
    if (t->report)
        report_end_line(t->report); /* another rank may be the one that speaks */
    return agree(t->world, t->own);
}

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
enum { LOSS, STOP, FAILED, UNSHARD_NS, REDUCE_NS, REPLICATE_NS, N_SHARED };

static hp_status share(trainer *t, double loss, step_record *out, bool *out_stop) {
    hp_group *all = hp_world_group(t->world);
    const double n_ranks = hp_world_size(t->world);
    const hp_fsdp_stats before = t->last;
    double peak = 0;
    TRY(hp_fsdp_stats_get(t->fsdp, &t->last));
    double sums[N_SHARED] = {
        [LOSS] = loss,
        [STOP] = stop_is_requested(),
        [FAILED] = t->own < 0,
        [UNSHARD_NS] = (double)(t->last.exposed_unshard_ns - before.exposed_unshard_ns),
        [REDUCE_NS] = (double)(t->last.exposed_reduce_ns - before.exposed_reduce_ns),
        [REPLICATE_NS] = (double)(t->last.exposed_replicate_ns - before.exposed_replicate_ns),
    };
    TRY(hp_all_reduce(all, sums, sums, N_SHARED, HP_FP64, HP_SUM));
    if (sums[FAILED] > 0)
        return tell(t);
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
 * the data, groups of --tp counting as ranks. A rank whose samples cannot be had makes the pass
 * with what it has, as the others wait for it there; before the update all of them know. */
static void next_samples(trainer *t, uint64_t step, uint64_t k) {
    const uint64_t slot = k * (uint64_t)n_data(t) + (uint64_t)data_rank(t);
    if (t->own >= 0)
        keep(t, data_samples(&t->data, (uint64_t)t->o->seed,
                             step * global_batch(t) + slot * (uint64_t)t->o->batch,
                             (int)t->o->batch, t->samples));
}

/* The passes before the last one leave their gradients on the rank, or in its shards. */
static hp_pass pass_of(const options *o, uint64_t k) {
    if (k + 1 == (uint64_t)o->accumulate)
        return HP_SYNC;
    return strcmp(o->accumulate_mode, "no-sync") == 0 ? HP_NO_SYNC : HP_DEFER_REPLICATE;
}

static hp_status train_pass(trainer *t, uint64_t step, uint64_t k, double *inout_loss) {
    const uint64_t n_passes = (uint64_t)t->o->accumulate;
    double loss = 0;
    next_samples(t, step, k);
    TRY(hp_fsdp_begin(t->fsdp, pass_of(t->o, k)));
    TRY(t->model.kind->forward(&t->model, t->samples, (int)t->o->batch, &loss));
    TRY(t->model.kind->backward(&t->model, 1 / (double)n_passes));
    *inout_loss += loss;
    return hp_fsdp_end(t->fsdp);
}

/* All ranks have the same value, and one of them tells. */
static hp_status check(trainer *t, const char *what, double value, uint64_t step) {
    keep(t, finite_check(what, value, step));
    return isfinite(value) ? HP_OK : tell(t);
}

/* The norm is measured without a limit too: it tells whether the update can be made. */
static hp_status update(trainer *t, step_record *out) {
    const double limit = t->o->clip > 0 ? t->o->clip : INFINITY;
    TRY(hp_clip_grad_norm(t->fsdp, limit, 2.0, &out->grad_norm));
    TRY(check(t, "norm of the gradient", out->grad_norm, out->step));
    return hp_optimizer_step(t->optimizer, out->lr);
}

/* What could end the run is told before the update: a step that failed has changed nothing. */
static hp_status train_step(trainer *t, uint64_t step, step_record *out, bool *out_stop) {
    const uint64_t begin_ns = now_ns();
    double loss = 0;
    *out = (step_record){.step = step + 1, .lr = schedule_learning_rate(t->o, step)};
    TRY(hp_world_check(t->world)); /* hprun may be gone while nobody waits for long */
    for (uint64_t k = 0; k < (uint64_t)t->o->accumulate; k++)
        TRY(train_pass(t, step, k, &loss));
    TRY(share(t, loss, out, out_stop));
    TRY(check(t, "loss", out->loss, out->step));
    TRY(update(t, out));
    const double seconds = (double)(now_ns() - begin_ns) * 1e-9;
    out->step_ms = seconds * 1e3;
    out->tokens_per_s = (double)tokens_per_step(t) / seconds;
    return HP_OK;
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
 * samples left for it, since the units' gathers are collective. With *out_stop there is no loss. */
static hp_status held_out_loss(trainer *t, double *out_loss, bool *out_stop) {
    const int64_t batch = t->o->batch, n_samples = t->o->eval_samples;
    const int64_t stride = batch * n_data(t);
    double loss = 0;
    for (int64_t first = 0; first < n_samples; first += stride) {
        const int64_t mine = first + batch * data_rank(t);
        const int64_t n = clamp(n_samples - mine, 0, batch);
        const int32_t *from = t->held_out + (n ? mine * t->model.sample_tokens : 0);
        TRY(stop_agree(t->world, out_stop));
        if (*out_stop)
            return HP_OK;
        TRY(evaluate_pass(t, from, (int)n, &loss));
    }
    TRY(hp_all_reduce(hp_world_group(t->world), &loss, &loss, 1, HP_FP64, HP_SUM));
    *out_loss = loss / ((double)n_samples * (double)t->o->seq);
    return HP_OK;
}

/* After record->step. *out_stop: asked to end, there is no loss. */
static hp_status evaluate(trainer *t, step_record *record, bool *out_stop) {
    TRY(held_out_loss(t, &record->held_out_loss, out_stop));
    TRY(hp_fsdp_stats_get(t->fsdp, &t->last)); /* its waits belong to no step */
    record->has_held_out = !*out_stop;
    if (*out_stop)
        return HP_OK;
    if (t->report)
        keep(t, report_held_out(t->report, record->step, record->held_out_loss));
    return check(t, "held-out loss", record->held_out_loss, record->step);
}

/* ---- the run ---- */

/* The end may fall on a step that was saved already. */
static hp_status save(trainer *t, uint64_t step) {
    if (!*t->o->save || (t->has_saved && t->saved_step == step))
        return HP_OK;
    TRY(agree(t->world, finite_check_weights(t->fsdp, step)));
    TRY(hp_checkpoint_save(t->fsdp, t->optimizer, t->o->save, step));
    if (!t->has_saved && hp_world_rank(t->world) == 0)
        keep(t, record_write(t));
    t->has_saved = true;
    t->saved_step = step;
    return HP_OK;
}

/* Of weights that save() has looked at. */
static hp_status export_model(trainer *t) {
    char path[PATH_MAX];
    if (strcmp(t->o->export, "none") == 0)
        return HP_OK;
    options_export_path(t->o, path);
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

/* A step, and what is due after it. The report comes before a checkpoint: a run that is killed in
 * between and started again makes the step twice and leaves no gap in the log. A log that cannot be
 * written ends the run in the next step, so that it costs no checkpoint. Who asks to end gets the
 * checkpoint, without an evaluation. */
static hp_status train_one(trainer *t, uint64_t step, bool *out_stop) {
    const int64_t every = t->o->eval_every, save_every = t->o->save_every;
    step_record record;
    TRY(train_step(t, step, &record, out_stop));
    const uint64_t n_done = record.step;
    if (*out_stop || n_done == t->last_step)
        TRY(verify(t, HP_VERIFY_RECORDED));
    if (!*out_stop && (is_due(every, n_done) || n_done == t->last_step))
        TRY(evaluate(t, &record, out_stop));
    if (t->report)
        keep(t, report_step(t->report, &record));
    if (*out_stop || is_due(save_every, n_done))
        TRY(save(t, n_done));
    if (n_done - t->first_step == (uint64_t)t->o->trace_steps)
        keep(t, write_trace(t));
    return HP_OK;
}

/* The loss before training is measured too: it is what the curve starts from. */
static hp_status train_all(trainer *t, uint64_t *out_done, bool *out_stop) {
    step_record before = {.step = t->first_step};
    uint64_t step = t->first_step;
    TRY(evaluate(t, &before, out_stop));
    while (step < t->last_step && !*out_stop)
        TRY(train_one(t, step++, out_stop));
    *out_done = step;
    return HP_OK;
}

static hp_status run(trainer *t) {
    uint64_t n_done = 0;
    bool stop = false;
    TRY(set_up(t));
    TRY(verify(t, HP_VERIFY_PLAN));
    TRY(train_all(t, &n_done, &stop));
    TRY(save(t, n_done));
    TRY(export_model(t));
    keep(t, write_trace(t));
    if (t->report)
        keep(t, report_result(t->report, n_done, stop));
    TRY(tell(t));
    if (!stop)
        TRY(sample_generate(t, &stop));
    if (t->report)
        keep(t, report_end(t->report, n_done, stop));
    return tell(t);
}

hp_status train(hp_world *world, options *o) {
    trainer t = {.o = o, .world = world};
    stop_catch_signals(hp_world_rank(world) == 0 && !o->quiet);
    const hp_status status = run(&t);
    tear_down(&t);
    return status;
}

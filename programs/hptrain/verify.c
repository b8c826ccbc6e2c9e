/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/verify.c - --verify: what the library proves of this run, in the log and beside traces.
 *
 * The plan is verified before the first step, what was done after the last one; both verdicts are
 * the same on all ranks, and rank 0 writes them. verdict.json is the last one's, which is the first
 * that is not sound, as the run ends there.
 */
#include "fail.h"
#include "json.h"
#include "trainer.h"

#include <errno.h>
#include <string.h>

static void write_verdict(FILE *file, const trainer *t, const verified *v) {
    const run_facts *f = &t->report->facts;
    fprintf(file, "{\"sound\": %s", v->is_sound ? "true" : "false");
    json_text(file, "what", v->what);
    log_write_verified(file, v);
    json_count(file, "ranks", (uint64_t)f->n_ranks);
    json_text(file, "mode", f->mode);
    /* Of what is verified: ranks of --tp are shards to it. */
    fprintf(file, ", \"mesh\": [%d, %d]", f->n_replicas, f->n_shards * f->n_tensor);
    json_text(file, "schedule", f->schedule);
    json_count(file, "prefetch", (uint64_t)t->o->prefetch);
    fputs("}\n", file);
}

static hp_status save_verdict(const trainer *t, const verified *v) {
    char path[PATH_MAX];
    if (!*t->o->trace)
        return HP_OK;
    if (snprintf(path, sizeof path, "%s/verdict.json", t->o->trace) >= (int)sizeof path)
        return fail(HP_ERR_ARGUMENT, "expected --trace to be a path below %zu bytes", sizeof path);
    FILE *file = fopen(path, "we");
    if (!file)
        return fail(HP_ERR_FILE, "could not write %s: %s", path, strerror(errno));
    write_verdict(file, t, v);
    const bool is_written = fflush(file) == 0;
    if (fclose(file) != 0 || !is_written)
        return fail(HP_ERR_FILE, "could not write %s: %s", path, strerror(errno));
    return HP_OK;
}

/* The record of an unsound verdict is still there for whoever reports the failure. */
static hp_status publish(trainer *t, const verified *v) {
    const hp_status logged = report_verified(t->report, v);
    const hp_status saved = save_verdict(t, v);
    return logged < 0 ? logged : saved;
}

hp_status verify(trainer *t, hp_verify_what what) {
    hp_verdict verdict;
    hp_error error;
    hp_fsdp_stats stats;
    if (!t->o->verify)
        return HP_OK;
    const hp_status status = hp_fsdp_verify(t->fsdp, what, &verdict);
    const bool is_sound = status >= 0;
    if (!is_sound && status != HP_ERR_UNSOUND)
        return status;
    hp_last_error_get(&error);
    TRY(hp_fsdp_stats_get(t->fsdp, &stats));
    const verified v = {
        .what = what == HP_VERIFY_PLAN ? "plan" : "recorded",
        .is_sound = is_sound,
        .rule = hp_rule_name(verdict.rule),
        .text = is_sound ? "" : error.message,
        .n_steps = what == HP_VERIFY_PLAN ? 3 : 2,
        .n_ops = verdict.n_ops,
        .peak_bytes = verdict.peak_bytes,
        .bound_bytes = stats.bound_bytes,
        .steady_bytes =
            stats.shard_bytes + stats.bucket_bytes + stats.optimizer_bytes + stats.shared_bytes,
    };
    if (t->report)
        keep(t, publish(t, &v));
    return status;
}

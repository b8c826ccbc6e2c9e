/* SPDX-License-Identifier: Apache-2.0
 *
 * test_fsdp_buffers.c - what went wrong with communication buffers elsewhere, and must hold here:
 * rows F7 to F10 and F26 of the field's reports, in every mode.
 *
 * Each is a training in which every value is known (exact_training.h), over poisoned buffers, with
 * the delay that made the others lose values.
 */
#include "freed_buffers.h"
#include "fsdp/plan/plan.h"

/* ---- F7: one buffer for the all-reduces of all layers ------------------------------------- */

static void F7_each_layer_keeps_its_gradient(void **state) {
    static const int meshes[][2] = {{2, 2}, {4, 1}};
    exact_job job = EXACT_JOB_INIT;
    (void)state;
    job.n_units = 6;
    job.fsdp.poison = 1;
    for (int k = 0; k < job.n_units; k++) { /* the all-reduce of layer k comes late, on one rank */
        char delay[64];
        snprintf(delay, sizeof delay, "kind=all_reduce,rank=%d,unit=u%d,us=1500", k % 4, k);
        job.fsdp.delay = delay;
        exact_train_all(job, meshes, 2);
    }
}

/* ---- F8: a freed buffer is read ----------------------------------------------------------- */

static void F8_nothing_freed_is_read(void **state) {
    (void)state;
    train_over_freed_buffers(100, 1);
}

/* ---- F9: the next layer overwrites what is being reduced ---------------------------------- */

/* Six layers take turns in two slots. */
static void look_at_slots(const exact_training *t, int step) {
    uint64_t n;
    uint32_t slots[6], n_slots = 0;
    const hp_op *ops = exact_recorded(t, &n);
    (void)step;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t k = 0;
        if (ops[i].kind != HPI_OP_BACKWARD_BEGIN)
            continue;
        while (k < n_slots && slots[k] != ops[i].writes[0].buffer)
            k++;
        RANK_CHECK(k < 6 && ops[i].writes[0].buffer != 0);
        slots[k] = ops[i].writes[0].buffer;
        n_slots += k == n_slots;
    }
    RANK_CHECK(n_slots == 2);
}

static void F9_two_slots_and_slow_reductions(void **state) {
    exact_job job = EXACT_JOB_INIT;
    (void)state;
    job.n_units = 6;
    job.fsdp.record = 1;
    job.fsdp.poison = 1;
    job.look = look_at_slots;
    job.fsdp.delay = "kind=reduce_scatter,rank=1,us=1500";
    exact_train_all(job, meshes_of_4, 2); /* (4,1) needs no slots */
}

/* ---- F10: memory that changes hands before its event -------------------------------------- */

static void verify_step(const exact_training *t, int step) {
    hp_verdict verdict;
    (void)step;
    RANK_OK(hp_fsdp_verify(t->fsdp, HP_VERIFY_RECORDED, &verdict));
    RANK_CHECK(verdict.rule == HP_RULE_NONE && verdict.n_accesses > 0);
}

static void F10_memory_changes_hands_after_its_event(void **state) {
    exact_job job = EXACT_JOB_INIT;
    (void)state;
    job.fsdp.record = 1;
    job.fsdp.poison = 1;
    job.look = verify_step;
    job.fsdp.delay = "kind=*,rank=2,us=300,seed=3";
    exact_train_all(job, meshes_of_4, N_MESHES_OF_4);
}

/* ---- F26: a level with less sharding and a higher peak ------------------------------------ */

static const exact_param square[] = {{"weight", 128, 64, HP_FP32, 0, 0}};

/* The formula of each level, from the model alone; nothing in it is padded. */
static uint64_t ceiling_of(const exact_job *job) {
    const uint64_t unit = 128 * 64 * 4, n_units = (uint64_t)job->n_units;
    const uint64_t n_shards = (uint64_t)job->n_shards;
    uint64_t bytes = 2 * unit * n_units / n_shards; /* shards and gradient shards; no state */
    if (n_shards == 1)
        return bytes;
    bytes += 2 * unit; /* full gradients */
    if (job->fsdp.mode == HP_FUSED || job->fsdp.mode == HP_FUSED_ZERO_COPY)
        bytes += 2 * unit; /* what a gather gives, and what is packed */
    if (job->fsdp.mode == HP_MAPPED)
        return bytes;
    return bytes + unit * (job->fsdp.reshard_after_forward ? 2 : n_units);
}

static void look_at_memory(const exact_training *t, int step) {
    hp_symm_stats symm;
    hp_fsdp_stats s;
    (void)step;
    RANK_OK(hp_symm_stats_get(t->world, &symm));
    RANK_OK(hp_fsdp_stats_get(t->fsdp, &s));
    const uint64_t taken = s.shard_bytes + s.gather_bytes + s.grad_bytes + s.bucket_bytes +
                           s.pack_bytes + s.shared_bytes + s.optimizer_bytes;
    RANK_CHECK(taken <= ceiling_of(t->job));
    RANK_CHECK(symm.peak_bytes - symm.message_bytes <=
               ceiling_of(t->job) + 2 * 4096); /* whole pages */
}

static void F26_peak_is_below_the_formula(void **state) {
    exact_job job = EXACT_JOB_INIT;
    (void)state;
    job.params = square;
    job.n_params = 1;
    job.n_units = 6;
    job.n_steps = 3;
    job.look = look_at_memory;
    for (int is_resharded = 0; is_resharded < 2; is_resharded++) {
        job.fsdp.reshard_after_forward = is_resharded;
        exact_train_all(job, meshes_of_4, N_MESHES_OF_4);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(F7_each_layer_keeps_its_gradient),
        cmocka_unit_test(F8_nothing_freed_is_read),
        cmocka_unit_test(F9_two_slots_and_slow_reductions),
        cmocka_unit_test(F10_memory_changes_hands_after_its_event),
        cmocka_unit_test(F26_peak_is_below_the_formula),
    };
    return cmocka_run_group_tests_name("fsdp_buffers", tests, NULL, NULL);
}

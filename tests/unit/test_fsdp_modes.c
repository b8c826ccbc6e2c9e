/* SPDX-License-Identifier: Apache-2.0
 *
 * test_fsdp_modes.c - the ways to unshard and reduce: the same bits in each, and each one's memory.
 *
 * SPEC A5 and A9: whatever the mode, schedule, prefetch, executor and mesh, the tiny model ends in
 * the same bits, in every precision, with accumulated gradients and with a unit used twice.
 * FIELD-CASES F28, F13, F18: memory in use after a step does not grow, rows that do not divide,
 * only what trains is reduced.
 */
#include "fsdp/together/between.h"
#include "unit/tiny_job.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* ---- the same bits ----------------------------------------------------------------------- */

static void expect_same_bits(const struct job *a, const struct job *b) {
    const hp_fsdp_config *c = &b->config.fsdp;
    if (a->result.gradients != b->result.gradients || a->result.weights != b->result.weights ||
        memcmp(a->result.losses, b->result.losses,
               (size_t)a->config.n_steps * sizeof *a->result.losses) != 0)
        fail_msg("(%d,%d) %s, %s, prefetch %d, executor %d ends in other bits than (%d,%d) %s",
                 b->config.n_replicas, b->config.n_shards, hp_mode_name(c->mode),
                 hp_schedule_name(c->schedule), c->prefetch, (int)c->executor, a->config.n_replicas,
                 a->config.n_shards, hp_mode_name(a->config.fsdp.mode));
}

struct setting {
    int param_dtype, reduce_dtype;
    int is_mixed, is_tied, n_passes;
};

static struct job make_job(const struct setting *s) {
    struct job job = {.config = TINY_CONFIG_INIT};
    tiny_config *c = &job.config;
    c->n_steps = 5;
    c->global_batch = 48;
    c->width = s->is_mixed ? 16 : 10;
    c->is_mixed = s->is_mixed;
    c->is_tied = s->is_tied;
    c->n_passes = s->n_passes;
    c->fsdp.param_dtype = s->param_dtype;
    c->fsdp.reduce_dtype = s->reduce_dtype;
    c->n_shards = 8;
    return job;
}

/* Variant v of setting i: what does not change bits, in pairs that differ from setting to setting.
 */
static struct job make_variant(const struct setting *s, int i, int v) {
    static const int meshes[][2] = {{1, 8}, {2, 4}, {4, 2}, {8, 1}};
    static const hp_mode modes[] = {HP_FUSED, HP_FUSED_ZERO_COPY, HP_AUTO};
    struct job job = make_job(s);
    tiny_config *c = &job.config;
    c->n_replicas = meshes[v % 4][0];
    c->n_shards = meshes[v % 4][1];
    c->fsdp.mode = modes[(v + v / 4 + i) % 3];
    c->fsdp.schedule = (hp_schedule)((v + i) % 3);
    c->fsdp.prefetch = (v + i / 2) % 3;
    c->fsdp.executor = (hp_executor_type)((v + i / 3) % 2);
    c->fsdp.reshard_after_forward = (v / 2 + i) % 2;
    return job;
}

static void test_same_bits(void **state) {
    (void)state;
    enum { OWN = HP_OWN_DTYPE, N = 8 };
    static const struct setting settings[N] = {
        {OWN, OWN, 0, 0, 1},         {OWN, OWN, 1, 1, 3},         {HP_BF16, HP_FP32, 1, 0, 2},
        {HP_BF16, HP_BF16, 0, 1, 1}, {HP_FP32, HP_BF16, 1, 1, 2}, {HP_FP16, OWN, 0, 0, 2},
        {HP_FP16, HP_FP32, 1, 1, 1}, {HP_FP32, HP_FP16, 1, 0, 3},
    };
    for (int i = 0; i < N; i++) {
        struct job first = make_job(&settings[i]);
        train(&first);
        assert_true(first.result.losses[first.config.n_steps - 1] < first.result.losses[0]);
        for (int v = 0; v < 8; v++) {
            struct job job = make_variant(&settings[i], i, v);
            train(&job);
            expect_same_bits(&first, &job);
        }
    }
}

/* Replayed steps, delays anywhere, and clipping. */
static void test_same_bits_when_disturbed(void **state) {
    (void)state;
    const struct setting setting = {HP_BF16, HP_FP32, 1, 1, 1};
    struct job calm = make_job(&setting);
    calm.config.n_replicas = calm.config.n_shards = 2;
    calm.config.n_steps = 8;
    calm.config.max_norm = 0.05;
    train(&calm);
    for (hp_mode mode = HP_FUSED; mode <= HP_FUSED_ZERO_COPY; mode++) {
        struct job job = calm;
        job.config.fsdp.mode = mode;
        job.config.fsdp.poison = 1;
        job.config.fsdp.delay = "kind=*,rank=*,us=300,seed=5";
        train(&job);
        expect_same_bits(&calm, &job);
        job.config.fsdp.delay = NULL;
        job.config.fsdp.record = 1;
        job.config.fsdp.replay_after = 3;
        train(&job);
        expect_same_bits(&calm, &job);
    }
}

/* ---- units of awkward shapes ------------------------------------------------------------- */

enum { N_SHAPES = 8, N_AWKWARD = N_SHAPES + 4 };

static void fill_ramp(void *context, uint64_t begin, uint64_t end, void *out) {
    const float base = *(const float *)context;
    for (uint64_t i = begin; i < end; i++)
        ((float *)out)[i - begin] = base + (float)(i % 64) / 64;
}

/* d0 in 1, 2, 3, 5, 7, 31 and more, then an inner dimension, a replicated, an empty, a frozen. */
static void describe_awkward(hp_param *params) {
    static const int64_t rows[N_SHAPES] = {1, 2, 3, 5, 7, 31, 8, 13};
    static const char *const names[N_AWKWARD] = {"a", "b", "c", "d", "e", "f",
                                                 "g", "h", "i", "j", "k", "l"};
    static float bases[N_AWKWARD] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    for (int j = 0; j < N_AWKWARD; j++) {
        params[j] = (hp_param)HP_PARAM_INIT;
        params[j].name = names[j];
        params[j].n_dims = 2;
        params[j].shape[0] = j < N_SHAPES ? rows[j] : 3;
        params[j].shape[1] = j % 3 + 1;
        params[j].fill = fill_ramp;
        params[j].fill_context = &bases[j];
    }
    params[N_SHAPES].shape[1] = 8;
    params[N_SHAPES].shard_dim = 1;
    params[N_SHAPES + 1].shard_dim = HP_REPLICATED;
    params[N_SHAPES + 2].shape[0] = 0;
    params[N_SHAPES + 3].is_frozen = 1;
}

static uint64_t count_of(const hp_param *p) {
    return (uint64_t)(p->shape[0] * p->shape[1]);
}

static void check_values(const hp_unit *unit, const hp_param *params) {
    for (int j = 0; j < N_AWKWARD; j++) {
        const float *data = hp_param_data(unit, j);
        for (uint64_t i = 0; i < count_of(&params[j]); i++)
            RANK_CHECK(data[i] == *(float *)params[j].fill_context + (float)(i % 64) / 64);
    }
}

static void write_gradients(hp_unit *unit, const hp_param *params, int rank) {
    for (int j = 0; j < N_AWKWARD; j++) {
        float *grad = params[j].is_frozen ? NULL : hp_param_grad(unit, j);
        for (uint64_t i = 0; grad && i < count_of(&params[j]); i++)
            grad[i] = (float)(rank + 1) * (float)(j * 64 + (int)i);
    }
}

/* `factor` times the closed form; and every byte of the bucket that is no gradient is zero. */
static void check_gradients(const hp_fsdp *fsdp, const hp_unit *unit, int n_ranks, float factor) {
    double sum = 0, of_all = 0;
    for (int j = 0; j < N_AWKWARD; j++) {
        const hpi_param *p = hpi_unit_param(unit, j);
        const float *grad = p->bucket < 0 ? NULL : hpi_param_grad_shard(unit, p);
        uint64_t begin, end;
        hpi_layout_rows(&p->layout, fsdp->shard_rank, &begin, &end);
        for (uint64_t i = 0; grad && i < hpi_layout_count(&p->layout, fsdp->shard_rank); i++) {
            const uint64_t run = (end - begin) * p->layout.inner;
            const uint64_t place =
                i / run * p->layout.rows * p->layout.inner + begin * p->layout.inner + i % run;
            RANK_CHECK(grad[i] == factor * (float)(j * 64 + (int)place) * (float)(n_ranks + 1) / 2);
            sum += (double)grad[i];
        }
    }
    const hp_ref bucket = fsdp->plan_units[unit->index].bucket[0];
    const float *all = (const float *)fsdp->bindings.buffers[bucket.buffer];
    for (uint64_t i = 0; i < bucket.end / sizeof *all; i++)
        of_all += (double)all[i];
    RANK_CHECK(sum == of_all);
}

/* One pass in which the unit has n_backwards of n_uses forwards. */
static void awkward_pass(hp_unit *unit, const hp_param *params, hp_pass pass, int n_uses,
                         int n_backwards) {
    hp_fsdp *fsdp = unit->fsdp;
    RANK_OK(hp_fsdp_begin(fsdp, pass));
    for (int k = 0; k < n_uses; k++) {
        RANK_OK(hp_forward_begin(unit));
        check_values(unit, params);
        RANK_OK(hp_forward_end(unit));
    }
    for (int k = 0; k < n_backwards; k++) {
        RANK_OK(hp_backward_begin(unit));
        check_values(unit, params);
        write_gradients(unit, params, hp_world_rank(fsdp->world));
        RANK_OK(hp_backward_end(unit));
    }
    RANK_OK(hp_fsdp_end(fsdp));
}

static void awkward_body(hp_world *world, void *argument) {
    const hp_mode mode = *(hp_mode *)argument;
    const int n_ranks = hp_world_size(world), n_replicas = n_ranks > 2 ? 2 : 1;
    const int sizes[] = {n_replicas, n_ranks / n_replicas};
    hp_param params[N_AWKWARD];
    hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    hp_mesh *mesh;
    hp_fsdp *fsdp;
    hp_unit *unit;
    config.mode = mode;
    describe_awkward(params);
    config.poison = 1;
    RANK_OK(hp_mesh_create(world, sizes, 2, &mesh));
    RANK_OK(hp_fsdp_create(mesh, &config, &fsdp));
    RANK_OK(hp_unit_create(fsdp, "awkward", params, N_AWKWARD, NULL, &unit));
    RANK_OK(hp_fsdp_commit(fsdp));
    for (int step = 0; step < 2; step++) {
        awkward_pass(unit, params, HP_SYNC, 1, 1);
        check_gradients(fsdp, unit, n_ranks, 1);
        awkward_pass(unit, params, HP_NO_SYNC, 2, 2);
        awkward_pass(unit, params, HP_EVALUATE, 1, 0);
        awkward_pass(unit, params, HP_DEFER_REPLICATE, 1, 1);
        awkward_pass(unit, params, HP_SYNC, 2, 2);
        check_gradients(fsdp, unit, n_ranks, 5);
        awkward_pass(unit, params, HP_SYNC, 1, 0); /* no gradient: zero */
        check_gradients(fsdp, unit, n_ranks, 0);
    }
    hp_fsdp_destroy(fsdp);
    hp_mesh_destroy(mesh);
}

static void test_awkward_shapes(void **state) {
    (void)state;
    static const int n_ranks[] = {1, 2, 4, 8};
    for (hp_mode mode = HP_PER_PARAM; mode <= HP_FUSED_ZERO_COPY; mode++)
        for (int k = 0; k < 4; k++)
            ranks_run(n_ranks[k], RANKS_THREADS, awkward_body, &mode);
}

/* ---- memory ------------------------------------------------------------------------------ */

/* Bytes in lives that are open after the list, and the most at one time. */
static int64_t bytes_in_use(const hp_op *ops, uint64_t n, int64_t *out_most) {
    int64_t bytes = 0;
    *out_most = 0;
    for (uint64_t i = 0; i < n; i++) {
        if (ops[i].kind == HPI_OP_ALLOCATE)
            bytes += (int64_t)ops[i].bytes;
        if (ops[i].kind == HPI_OP_RELEASE)
            bytes -= (int64_t)ops[i].bytes;
        *out_most = bytes > *out_most ? bytes : *out_most;
    }
    return bytes;
}

static void f28_body(hp_world *world, void *argument) {
    tiny_config config = *(tiny_config *)argument;
    hp_fsdp_stats before, after;
    int64_t first_most = 0, most;
    tiny *t = NULL;
    double loss;
    RANK_OK(tiny_create(world, &config, &t));
    RANK_OK(hp_fsdp_stats_get(tiny_fsdp(t), &before));
    for (int step = 0; step < config.n_steps; step++) {
        const hp_op *ops;
        const hp_kind *kinds;
        uint64_t n;
        uint32_t n_kinds;
        RANK_OK(tiny_step(t, step, &loss));
        RANK_OK(hp_fsdp_recorded(tiny_fsdp(t), &ops, &n, &kinds, &n_kinds));
        RANK_CHECK(bytes_in_use(ops, n, &most) == 0);
        first_most = step == 2 ? most : first_most;
        RANK_CHECK(step < 2 || most == first_most);
    }
    RANK_OK(hp_fsdp_stats_get(tiny_fsdp(t), &after));
    RANK_CHECK(before.pack_bytes > 0 && before.pack_bytes == after.pack_bytes &&
               before.gather_bytes == after.gather_bytes && before.grad_bytes == after.grad_bytes);
    /* lives fit into what was taken: slots, one gather's output, one pack */
    RANK_CHECK((uint64_t)first_most <= after.gather_bytes + after.grad_bytes + after.pack_bytes);
    tiny_destroy(t);
}

/* F28: the fused gather's output is released after copy-out. */
static void F28_bytes_in_use_do_not_grow(void **state) {
    (void)state;
    tiny_config config = TINY_CONFIG_INIT;
    config.n_replicas = config.n_shards = 2;
    config.n_steps = 100;
    config.fsdp.record = 1;
    for (hp_mode mode = HP_FUSED; mode <= HP_FUSED_ZERO_COPY; mode++) {
        config.fsdp.mode = mode;
        ranks_run(4, RANKS_THREADS, f28_body, &config);
    }
}

/* ---- proven ------------------------------------------------------------------------------ */

/* No race, no use outside a life, no disagreement: as it will be planned, and as it ran. */
static void proven_body(hp_world *world, void *argument) {
    const tiny_config *config = argument;
    hp_verdict verdict;
    double loss;
    tiny *t = NULL;
    RANK_OK(tiny_create(world, config, &t));
    RANK_OK(hp_fsdp_verify(tiny_fsdp(t), HP_VERIFY_PLAN, &verdict));
    RANK_CHECK(verdict.rule == HP_RULE_NONE && verdict.n_ops > 100);
    for (int step = 0; step < 3; step++)
        RANK_OK(tiny_step(t, step, &loss));
    RANK_OK(hp_fsdp_verify(tiny_fsdp(t), HP_VERIFY_RECORDED, &verdict));
    RANK_CHECK(verdict.rule == HP_RULE_NONE && verdict.n_ops > 100);
    tiny_destroy(t);
}

static void test_schedules_are_proven(void **state) {
    (void)state;
    static const int meshes[][2] = {{1, 4}, {2, 2}, {4, 1}};
    tiny_config config = TINY_CONFIG_INIT;
    config.is_mixed = config.is_tied = 1;
    config.width = 16;
    config.fsdp.record = 1;
    for (int k = 0; k < 18; k++) {
        config.n_replicas = meshes[k / 2 % 3][0];
        config.n_shards = meshes[k / 2 % 3][1];
        config.n_passes = 1 + k % 2;
        config.fsdp.mode = (hp_mode)(k % 3);
        config.fsdp.schedule = (hp_schedule)(k / 3 % 3);
        config.fsdp.prefetch = k / 2 % 3;
        config.fsdp.reshard_after_forward = k / 6 % 2;
        ranks_run(4, RANKS_THREADS, proven_body, &config);
    }
}

/* ---- precision --------------------------------------------------------------------------- */

/* One parameter over four ranks; rank r's gradients are `terms[r]`. Returns one of the result. */
struct reduction {
    int n_replicas;
    hp_fsdp_config config;
    float terms[4], result;
};

static void reduce_body(hp_world *world, void *argument) {
    struct reduction *r = argument;
    const int rank = hp_world_rank(world), sizes[] = {r->n_replicas, 4 / r->n_replicas};
    hp_param param = HP_PARAM_INIT;
    hp_mesh *mesh;
    hp_fsdp *fsdp;
    hp_unit *unit;
    hp_shard shard;
    hp_dtype data, dtype;
    param.name = "p";
    param.n_dims = 1;
    param.shape[0] = 300;
    RANK_OK(hp_mesh_create(world, sizes, 2, &mesh));
    RANK_OK(hp_fsdp_create(mesh, &r->config, &fsdp));
    RANK_OK(hp_unit_create(fsdp, "u", &param, 1, NULL, &unit));
    RANK_OK(hp_fsdp_commit(fsdp));
    RANK_OK(hp_param_dtypes(unit, 0, &data, &dtype));
    RANK_OK(hp_fsdp_begin(fsdp, HP_SYNC));
    RANK_OK(hp_forward_begin(unit));
    RANK_OK(hp_forward_end(unit));
    RANK_OK(hp_backward_begin(unit));
    unsigned char *grad = hp_param_grad(unit, 0);
    for (int i = 0; i < 300; i++)
        RANK_OK(hp_convert(&r->terms[rank], HP_FP32, grad + (size_t)i * hp_dtype_size(dtype), dtype,
                           1));
    RANK_OK(hp_backward_end(unit));
    RANK_OK(hp_fsdp_end(fsdp));
    RANK_OK(hp_param_shard(unit, 0, &shard));
    for (uint64_t i = 1; i < shard.n_elements; i++)
        RANK_CHECK(((const float *)shard.grad)[i] == ((const float *)shard.grad)[0]);
    if (rank == 0)
        r->result = ((const float *)shard.grad)[0];
    hp_fsdp_destroy(fsdp);
    hp_mesh_destroy(mesh);
}

/* SPEC A6: the leaves are fp16, the sum is not: four times 60,000 is more than fp16 holds. */
static void test_fp16_does_not_overflow(void **state) {
    (void)state;
    struct reduction r = {.config = HP_FSDP_CONFIG_INIT, .terms = {60000, 60000, 60000, 60000}};
    r.config.param_dtype = HP_FP16;
    for (hp_mode mode = HP_PER_PARAM; mode <= HP_FUSED_ZERO_COPY; mode++)
        for (r.n_replicas = 1; r.n_replicas <= 4; r.n_replicas *= 2) {
            r.config.mode = mode;
            ranks_run(4, RANKS_THREADS, reduce_body, &r);
            assert_true(r.result == 60000.0F);
        }
}

/* Partial sums are rounded once, on the wire between replicas; their sum stays fp32. */
static void test_replicate_wire(void **state) {
    (void)state;
    struct reduction r = {.config = HP_FSDP_CONFIG_INIT,
                          .n_replicas = 2,
                          .terms = {1.0F, 1.0F / 512, 3.0F, 1.0F / 1024}};
    static const int wires[] = {HP_OWN_DTYPE, HP_FP32, HP_BF16, HP_FP16};
    const float full = (1 + 1.0F / 512 + 3 + 1.0F / 1024) / 4;
    const float expected[] = {full, full, (1 + 3) / 4.0F, (1 + 1.0F / 512 + 3) / 4};
    for (hp_mode mode = HP_PER_PARAM; mode <= HP_FUSED_ZERO_COPY; mode++)
        for (int k = 0; k < 4; k++) {
            r.config.mode = mode;
            r.config.replicate_wire = wires[k];
            ranks_run(4, RANKS_THREADS, reduce_body, &r);
            if (r.result != expected[k])
                fail_msg("%s, wire %d: %.9g, expected %.9g", hp_mode_name(mode), wires[k],
                         (double)r.result, (double)expected[k]);
        }
}

/* ---- auto -------------------------------------------------------------------------------- */

/* The mode is told, and no longer auto, after commit. */
static void auto_body(hp_world *world, void *argument) {
    const hp_mode *expected = argument;
    const int n_ranks = hp_world_size(world);
    hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    hp_param param = HP_PARAM_INIT;
    hp_mesh *mesh;
    hp_fsdp *fsdp;
    hp_unit *unit;
    config.mode = HP_AUTO;
    param.name = "p";
    RANK_OK(hp_mesh_create(world, &n_ranks, 1, &mesh));
    RANK_OK(hp_fsdp_create(mesh, &config, &fsdp));
    RANK_OK(hp_unit_create(fsdp, "u", &param, 1, NULL, &unit));
    RANK_CHECK(hp_fsdp_mode(fsdp) == HP_AUTO);
    RANK_OK(hp_fsdp_commit(fsdp));
    RANK_CHECK(hp_fsdp_mode(fsdp) == *expected);
    hp_fsdp_destroy(fsdp);
    hp_mesh_destroy(mesh);
}

static void test_auto(void **state) {
    (void)state;
    const uint64_t small = 1024, large = UINT64_C(1) << 22;
    assert_int_equal(hpi_mode_choose(1, true, 10, 10 * large), HP_PER_PARAM);
    assert_int_equal(hpi_mode_choose(1, false, 10, 10 * small), HP_PER_PARAM);
    assert_int_equal(hpi_mode_choose(2, true, 10, 10 * small), HP_MAPPED);
    assert_int_equal(hpi_mode_choose(8, true, 10, 10 * large), HP_MAPPED);
    assert_int_equal(hpi_mode_choose(8, false, 10, 10 * large), HP_PER_PARAM);
    assert_int_equal(hpi_mode_choose(8, false, 10, 10 * small), HP_FUSED_ZERO_COPY);
    assert_int_equal(hpi_mode_choose(8, false, 0, 0), HP_FUSED_ZERO_COPY);
    hp_mode mode = HP_MAPPED;
    ranks_run(2, RANKS_THREADS, auto_body, &mode);
    mode = HP_PER_PARAM;
    ranks_run(1, RANKS_THREADS, auto_body, &mode);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_same_bits_when_disturbed),
        cmocka_unit_test(test_awkward_shapes),
        cmocka_unit_test(F28_bytes_in_use_do_not_grow),
        cmocka_unit_test(test_schedules_are_proven),
        cmocka_unit_test(test_fp16_does_not_overflow),
        cmocka_unit_test(test_replicate_wire),
        cmocka_unit_test(test_auto),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * same_bits.h - SPEC A9: one training in any setting of eleven factors, held against the oracle.
 *
 * Eight thread ranks train the small network in one setting; each compares everything that it holds
 * with the serial reference, bit for bit: parameters where they are read, losses, gradient shards,
 * the norm, clipped gradients and weights of every step. The planned and the executed schedule are
 * verified as well. A session may go through several optimizers and clippings, one after the other,
 * with the same weights. Released buffers are poisoned.
 */
#ifndef SAME_BITS_H
#define SAME_BITS_H

#include "support/ranks.h"
#include "unit/same_bits_oracle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

/* ---- settings ---------------------------------------------------------------------------- */

typedef enum factor {
    MODE,
    PREFETCH,
    EXECUTOR,
    MESH,
    SCHEDULE,
    OPTIMIZER,
    CLIP,
    ACCUMULATION,
    PRECISION,
    RESHARD,
    REPLAY,
    N_FACTORS
} factor;
typedef struct setting {
    int of[N_FACTORS];
} setting;

enum { N_MODES = 5, N_MESHES = 4, N_PRECISIONS = 4, MAX_VALUES = 5, REPLAY_AFTER = 3 };
static const int n_values[N_FACTORS] = {
    N_MODES, 3, 2, N_MESHES, 3, N_OPTIMIZERS, N_CLIPS, N_ACCUMULATIONS, N_PRECISIONS, 2, 2};
static const int mesh_replicas[N_MESHES] = {1, 2, 4, 8};
static const struct {
    const char *name;
    int param_dtype, reduce_dtype;
} precisions[N_PRECISIONS] = {{"fp32", HP_OWN_DTYPE, HP_OWN_DTYPE},
                              {"bf16, reduced in fp32", HP_BF16, HP_FP32},
                              {"bf16", HP_BF16, HP_BF16},
                              {"fp16", HP_FP16, HP_FP16}};

/* Optimizer and clipping are those of the phase. */
static inline void setting_name(const setting *s, char *text, size_t size) {
    static const char *const optimizers[] = {"sgd", "momentum", "adamw"};
    static const char *const accumulations[] = {"one pass", "no-sync", "deferred"};
    snprintf(text, size,
             "%s, %s, prefetch %d, %s, (%d,%d), reshard %d, replay %d, %s, %s, %s, p = %g%s",
             hp_mode_name((hp_mode)s->of[MODE]), hp_schedule_name((hp_schedule)s->of[SCHEDULE]),
             s->of[PREFETCH], s->of[EXECUTOR] == HP_EXECUTOR_INLINE ? "inline" : "threads",
             mesh_replicas[s->of[MESH]], N_RANKS / mesh_replicas[s->of[MESH]], s->of[RESHARD],
             s->of[REPLAY], accumulations[s->of[ACCUMULATION]], precisions[s->of[PRECISION]].name,
             optimizers[s->of[OPTIMIZER]], clip_powers[s->of[CLIP]],
             s->of[CLIP] == NO_CLIP ? " (not clipped)" : "");
}

static inline lesson setting_lesson(const setting *s) {
    return (lesson){precisions[s->of[PRECISION]].param_dtype,
                    precisions[s->of[PRECISION]].reduce_dtype, (accumulation)s->of[ACCUMULATION],
                    mesh_replicas[s->of[MESH]]};
}

static inline hp_fsdp_config setting_config(const setting *s) {
    hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    config.mode = (hp_mode)s->of[MODE];
    config.prefetch = s->of[PREFETCH];
    config.reshard_after_forward = s->of[RESHARD];
    config.schedule = (hp_schedule)s->of[SCHEDULE];
    config.executor = s->of[EXECUTOR] ? HP_EXECUTOR_INLINE : HP_EXECUTOR_THREAD;
    config.record = 1;
    config.replay_after = s->of[REPLAY] ? REPLAY_AFTER : 0;
    config.param_dtype = precisions[s->of[PRECISION]].param_dtype;
    config.reduce_dtype = precisions[s->of[PRECISION]].reduce_dtype;
    config.poison = 1;
    return config;
}

/* ---- sessions ---------------------------------------------------------------------------- */

typedef struct phase {
    optimizer_choice optimizer;
    clip_choice clip;
} phase;

/* expected[0] has the first weights, expected[1 + k] step k. */
typedef struct session {
    setting setting;
    const phase *phases;
    int n_phases, n_steps; /* of each phase */
    snapshot *expected;
} session;

/* The oracle's training; fails the test when there is nothing to see in it. */
static inline snapshot *expect(const lesson *l, const phase *phases, int n_phases, int n_steps) {
    oracle *o = oracle_create(l);
    snapshot *all = calloc((size_t)(n_phases * n_steps) + 1, sizeof *all), *at = all;
    assert_non_null(all);
    memcpy(at->weights, o->weights, sizeof at->weights);
    for (int k = 0; k < n_phases; k++) {
        int n_scaled = 0;
        oracle_forget(o);
        for (int i = 0; i < n_steps; i++) {
            const int step = (int)(++at - all) - 1;
            oracle_step(o, phases[k].optimizer, phases[k].clip, step, at);
            assert_memory_not_equal(at->weights, (at - 1)->weights, sizeof at->weights);
            assert_true(isfinite(at->norm) && isfinite(at->losses[0][0]));
            n_scaled += memcmp(at->clipped, at->gradients, sizeof at->clipped) != 0;
        }
        assert_true(phases[k].clip == NO_CLIP ? n_scaled == 0 : 2 * n_scaled > n_steps);
    }
    free(o);
    return all;
}

/* ---- one rank ---------------------------------------------------------------------------- */

typedef struct learner {
    const session *session;
    setting setting; /* with the phase's optimizer and clipping */
    lesson lesson;
    int rank, step;
    hp_mesh *mesh;
    hp_fsdp *fsdp;
    hp_unit *units[N_UNITS];
    network net;
} learner;

static inline double read_value(const void *values, hp_dtype dtype, uint64_t i) {
    if (dtype == HP_FP64)
        return ((const double *)values)[i];
    if (dtype == HP_FP32)
        return (double)((const float *)values)[i];
    const uint16_t half = ((const uint16_t *)values)[i];
    return (double)(dtype == HP_BF16 ? oracle_from_bf16(half) : oracle_from_fp16(half));
}

static inline void write_value(void *values, hp_dtype dtype, uint64_t i, double value) {
    if (dtype == HP_FP64)
        ((double *)values)[i] = value;
    else if (dtype == HP_FP32)
        ((float *)values)[i] = (float)value;
    else
        ((uint16_t *)values)[i] =
            dtype == HP_BF16 ? oracle_to_bf16((float)value) : oracle_to_fp16((float)value);
}

/* The bits are the oracle's, or this rank ends, saying where and in which setting. */
static inline void expect_bits(const learner *l, const char *what, int row, uint64_t i,
                               double value, double expected) {
    char name[256], text[512];
    if (memcmp(&value, &expected, sizeof value) == 0)
        return;
    setting_name(&l->setting, name, sizeof name);
    snprintf(text, sizeof text, "step %d, %s %s[%llu]: %a, expected %a, in %s:", l->step, what,
             row < 0 ? "" : rows[row].name, (unsigned long long)i, value, expected, name);
    ranks_fail(__FILE__, __LINE__, text, 0);
}

static inline const snapshot *before_step(const learner *l) {
    return &l->session->expected[l->step];
}
static inline const snapshot *after_step(const learner *l) {
    return &l->session->expected[l->step + 1];
}

/* ---- its model --------------------------------------------------------------------------- */

static inline void fill_row(void *context, uint64_t begin, uint64_t end, void *out) {
    const model_row *row = context;
    for (uint64_t i = begin; i < end; i++)
        write_value(out, row->dtype, i - begin, first_value((int)(row - rows), i));
}

static inline hp_param make_param(int row) {
    hp_param p = HP_PARAM_INIT;
    p.name = rows[row].name;
    p.n_dims = rows[row].n_dims;
    memcpy(p.shape, rows[row].shape, sizeof rows[row].shape);
    p.dtype = rows[row].dtype;
    p.shard_dim = rows[row].shard_dim;
    p.is_frozen = rows[row].is_frozen;
    p.is_ignored = rows[row].is_ignored;
    p.tied_to = rows[row].tied_to == NO_ROW ? NULL : rows[rows[row].tied_to].name;
    if (!p.tied_to) {
        p.fill = fill_row;
        p.fill_context = (void *)(uintptr_t)&rows[row];
    }
    return p;
}

static inline void make_unit(learner *l, int unit) {
    static const char *const names[N_UNITS] = {"a", "b", "c", "d", "e"};
    hp_unit_config config = HP_UNIT_CONFIG_INIT;
    hp_param params[MAX_UNIT_PARAMS];
    int n = 0;
    for (int row = 0; row < N_ROWS; row++)
        if (rows[row].unit == unit)
            params[n++] = make_param(row);
    config.reduce = unit_scaling[unit].reduce;
    config.factor = unit_scaling[unit].factor;
    RANK_OK(hp_unit_create(l->fsdp, names[unit], params, n, &config, &l->units[unit]));
}

/* One replica: a mesh of one dimension. */
static inline void make_learner(hp_world *world, const session *s, learner *l) {
    const hp_fsdp_config config = setting_config(&s->setting);
    *l = (learner){.session = s, .setting = s->setting, .lesson = setting_lesson(&s->setting)};
    const int sizes[] = {l->lesson.n_replicas, N_RANKS / l->lesson.n_replicas};
    const bool is_flat = l->lesson.n_replicas == 1;
    l->rank = hp_world_rank(world);
    RANK_OK(hp_mesh_create(world, sizes + is_flat, 2 - is_flat, &l->mesh));
    RANK_OK(hp_fsdp_create(l->mesh, &config, &l->fsdp));
    for (int unit = 0; unit < N_UNITS; unit++)
        make_unit(l, unit);
    RANK_OK(hp_fsdp_commit(l->fsdp));
}

static inline void drop_learner(learner *l) {
    hp_fsdp_destroy(l->fsdp);
    hp_mesh_destroy(l->mesh);
}

static inline void verify(const learner *l, hp_verify_what what) {
    hp_verdict verdict;
    RANK_OK(hp_fsdp_verify(l->fsdp, what, &verdict));
    RANK_CHECK(verdict.rule == HP_RULE_NONE && verdict.n_ops > N_RANKS * N_LAYERS);
}

/* ---- its steps --------------------------------------------------------------------------- */

/* The parameters of a unit, by every name, are the oracle's, rounded to the dtype that is agreed.
 */
static inline void load_unit(learner *l, int unit) {
    for (int row = 0; row < N_ROWS; row++) {
        hp_dtype data, grad;
        if (rows[row].unit != unit || rows[row].is_ignored)
            continue;
        RANK_OK(hp_param_dtypes(l->units[unit], row_param(row), &data, &grad));
        RANK_CHECK(data == data_dtype(&l->lesson, row) && grad == grad_dtype(&l->lesson, row));
        const void *values = hp_param_data(l->units[unit], row_param(row));
        const double *expected = before_step(l)->weights + owner_begin(row);
        for (uint64_t i = 0; i < row_count(row); i++) {
            const double value = read_value(values, data, i);
            expect_bits(l, "parameter", row, i, value, rounded(data, expected[i]));
            l->net.x[owner_begin(row) + i] = (float)value;
        }
    }
}

static inline void store_gradients(learner *l, int unit) {
    for (int row = 0; row < N_ROWS; row++) {
        if (rows[row].unit != unit || !row_is_trained(row))
            continue;
        void *grad = hp_param_grad(l->units[unit], row_param(row));
        for (uint64_t i = 0; i < row_count(row); i++)
            write_value(grad, grad_dtype(&l->lesson, row), i,
                        (double)l->net.dx[row_begin(row) + i]);
    }
}

static inline void run_pass(learner *l, hp_pass kind, int pass) {
    const int n_passes = lesson_n_passes(&l->lesson);
    RANK_OK(hp_fsdp_begin(l->fsdp, kind));
    network_input(&l->net, sample_of(l->step, pass, n_passes, l->rank));
    for (int layer = 0; layer < N_LAYERS; layer++) {
        RANK_OK(hp_forward_begin(l->units[layer_unit(layer)]));
        load_unit(l, layer_unit(layer));
        network_forward(&l->net, layer);
        RANK_OK(hp_forward_end(l->units[layer_unit(layer)]));
    }
    expect_bits(l, "loss of pass", -1, (uint64_t)pass, network_loss(&l->net, n_passes),
                after_step(l)->losses[pass][l->rank]);
    for (int layer = N_LAYERS; layer-- > 0;) {
        RANK_OK(hp_backward_begin(l->units[layer_unit(layer)]));
        load_unit(l, layer_unit(layer));
        network_backward(&l->net, layer);
        store_gradients(l, layer_unit(layer));
        RANK_OK(hp_backward_end(l->units[layer_unit(layer)]));
    }
    RANK_OK(hp_fsdp_end(l->fsdp));
}

/* Where element i of a shard stands in the whole parameter. */
static inline uint64_t place_in_row(const learner *l, int row, const hp_shard *shard, uint64_t i) {
    const model_row *r = &rows[row];
    const uint64_t begin = (uint64_t)shard->begin;
    uint64_t inner = 1;
    if (hp_fsdp_mode(l->fsdp) == HP_MAPPED || r->n_dims == 0)
        return begin + i;
    const int dim = r->shard_dim == HP_REPLICATED ? 0 : r->shard_dim;
    for (int d = dim + 1; d < r->n_dims; d++)
        inner *= (uint64_t)r->shape[d];
    const uint64_t run = ((uint64_t)shard->end - begin) * inner;
    return i / run * (uint64_t)r->shape[dim] * inner + begin * inner + i % run;
}

/* This rank's shards: weights, or with `of_gradients` what the optimizer is about to see. */
static inline void check_shards(const learner *l, const char *what, bool of_gradients,
                                const double *expected) {
    for (int row = 0; row < N_ROWS; row++) {
        hp_shard shard;
        if (rows[row].is_ignored || rows[row].tied_to != NO_ROW ||
            (of_gradients && !row_is_trained(row)))
            continue;
        RANK_OK(hp_param_shard(l->units[rows[row].unit], row_param(row), &shard));
        for (uint64_t i = 0; i < shard.n_elements; i++) {
            const uint64_t place = place_in_row(l, row, &shard, i);
            RANK_CHECK(place < row_count(row));
            expect_bits(l, what, row, place,
                        read_value(of_gradients ? shard.grad : shard.values, shard.dtype, i),
                        expected[row_begin(row) + place]);
        }
    }
}

static inline void clip_gradients(learner *l, clip_choice choice) {
    double norm;
    if (choice == NO_CLIP)
        return;
    RANK_OK(hp_clip_grad_norm(l->fsdp, clip_norms[choice], clip_powers[choice], &norm));
    expect_bits(l, "norm", -1, 0, norm, after_step(l)->norm);
    check_shards(l, "clipped gradient", true, after_step(l)->clipped);
}

static inline void run_step(learner *l, hp_optimizer *optimizer, const phase *p) {
    const int last = lesson_n_passes(&l->lesson) - 1;
    for (int pass = 0; pass < last; pass++)
        run_pass(l, l->lesson.accumulation == NO_SYNC ? HP_NO_SYNC : HP_DEFER_REPLICATE, pass);
    run_pass(l, HP_SYNC, last);
    check_shards(l, "gradient", true, after_step(l)->gradients);
    clip_gradients(l, p->clip);
    RANK_OK(hp_optimizer_step(optimizer, learning_rates[p->optimizer]));
    check_shards(l, "weight", false, after_step(l)->weights);
}

static inline void run_phase(learner *l, const phase *p) {
    hp_optimizer_config config = HP_OPTIMIZER_CONFIG_INIT;
    hp_optimizer *optimizer;
    config.weight_decay = weight_decay;
    config.momentum = p->optimizer == MOMENTUM ? momentum : 0;
    l->setting.of[OPTIMIZER] = (int)p->optimizer;
    l->setting.of[CLIP] = (int)p->clip;
    RANK_OK(
        hp_optimizer_create(l->fsdp, p->optimizer == ADAMW ? "adamw" : "sgd", &config, &optimizer));
    for (int i = 0; i < l->session->n_steps; i++, l->step++)
        run_step(l, optimizer, p);
    hp_optimizer_destroy(optimizer);
}

static inline void session_body(hp_world *world, void *argument) {
    const session *s = argument;
    learner l;
    make_learner(world, s, &l);
    verify(&l, HP_VERIFY_PLAN);
    for (int k = 0; k < s->n_phases; k++)
        run_phase(&l, &s->phases[k]);
    verify(&l, HP_VERIFY_RECORDED);
    drop_learner(&l);
}

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * test_optimizer.c - AdamW and SGD give what torch.optim's formulas give, on every mesh the same
 * bits.
 *
 * The oracle follows the formulas in long double over the whole parameter; the library's fp32 and
 * fp64 results must be within their rounding of it (F5: the update is compared, not the gradient
 * alone).
 */
#include "fsdp/optimize/optimizer.h"
#include "support/tiny.h"
#include "unit/varied_model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { N_STEPS = 6 };
static const double learning_rates[N_STEPS] = {0.1, 0.05, 0.0, 0.2, 0.01, 0.02};

typedef struct run {
    const char *name;
    hp_optimizer_config config;
    int n_replicas;
    varied_values values;
} run;

/* ---- the oracle ----------------------------------------------------------------------------- */

static long double adamw(const hp_optimizer_config *c, double decay, int row, uint64_t i,
                         long double p) {
    long double m = 0, v = 0;
    for (int t = 1; t <= N_STEPS; t++) {
        const long double lr = learning_rates[t - 1], g = varied_gradient(row, t, i);
        m = c->beta1 * m + (1 - c->beta1) * g;
        v = c->beta2 * v + (1 - c->beta2) * g * g;
        const long double m_hat = m / (1 - powl(c->beta1, t)), v_hat = v / (1 - powl(c->beta2, t));
        p = p * (1 - lr * decay) - lr * m_hat / (sqrtl(v_hat) + c->eps);
    }
    return p;
}

static long double sgd(const hp_optimizer_config *c, double decay, int row, uint64_t i,
                       long double p) {
    long double buffer = 0;
    for (int t = 1; t <= N_STEPS; t++) {
        const long double d = varied_gradient(row, t, i) + decay * p;
        buffer = t == 1 ? d : c->momentum * buffer + d;
        p -= learning_rates[t - 1] * (c->momentum != 0 ? buffer : d);
    }
    return p;
}

static double first_value(int row, uint64_t i) {
    return row == 0 ? 0 : varied_first_value(row, i); /* row 0 is tied and starts as zeros */
}

static void check_values(const run *r) {
    const bool is_adamw = strcmp(r->name, "adamw") == 0;
    const double decay = r->config.weight_decay >= 0 ? r->config.weight_decay : is_adamw ? 0.01 : 0;
    for (int row = 0; row < N_VARIED; row++)
        for (uint64_t i = 0; i < varied_count(&varied_rows[row]); i++) {
            long double expected = first_value(row, i);
            if (varied_is_trained(&varied_rows[row]))
                expected = (is_adamw ? adamw : sgd)(&r->config, decay, row, i, expected);
            else if (varied_rows[row].is_ignored || varied_rows[row].is_tied)
                continue;
            const double rounding = varied_rows[row].dtype == HP_FP64 ? 4e-15 : 2e-6;
            assert_true(fabsl(r->values.of[row][i] - expected) <= rounding);
        }
}

/* ---- training ------------------------------------------------------------------------------- */

/* Padding was zero and must be zero after every step, in weights and state. */
static void check_padding(const varied *m, const hp_optimizer *o) {
    for (hpi_cursor c = {0}; hpi_next_trainable(m->fsdp, &c);) {
        const hpi_param *p = c.param;
        const uint64_t n_held = hpi_param_count(m->fsdp, p);
        for (uint64_t i = n_held; i < p->layout.shard_elements; i++) {
            RANK_CHECK(varied_read(hpi_param_master(c.unit, p), p->master, i) == 0);
            RANK_CHECK(varied_read(hpi_param_grad_shard(c.unit, p), p->master, i) == 0);
            for (int s = 0; s < o->n_states; s++) {
                const void *state = hpi_optimizer_state(o, c.unit, (int)(p - c.unit->params), s);
                RANK_CHECK(varied_read(state, p->master, i) == 0);
            }
        }
    }
}

static void train(hp_world *world, void *argument) {
    run *r = argument;
    varied m;
    hp_optimizer *optimizer;
    varied_create(world, r->n_replicas, &m);
    RANK_OK(hp_optimizer_create(m.fsdp, r->name, &r->config, &optimizer));
    for (int t = 1; t <= N_STEPS; t++) {
        varied_pass(&m, t, 1);
        RANK_OK(hp_optimizer_step(optimizer, learning_rates[t - 1]));
        check_padding(&m, optimizer);
        varied_check_casts(&m);
    }
    varied_collect(&m, VARIED_WEIGHTS, &r->values);
    hp_optimizer_destroy(optimizer);
    varied_destroy(&m);
}

static void check_on_meshes(const char *name, const hp_optimizer_config *config) {
    static const int meshes[][2] = {{1, 1}, {1, 2}, {1, 3}, {1, 4}, {2, 2}, {3, 1}};
    run *first = calloc(1, sizeof *first), *other = calloc(1, sizeof *other);
    assert_non_null(first);
    assert_non_null(other);
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        run *r = i ? other : first;
        *r = (run){.name = name, .config = *config, .n_replicas = meshes[i][0]};
        ranks_run(meshes[i][0] * meshes[i][1], RANKS_THREADS, train, r);
        assert_memory_equal(&r->values, &first->values, sizeof r->values);
    }
    check_values(first);
    free(other);
    free(first);
}

static void adamw_follows_its_formulas(void **state) {
    (void)state;
    hp_optimizer_config config = HP_OPTIMIZER_CONFIG_INIT;
    check_on_meshes("adamw", &config);
    config.weight_decay = 0.3;
    config.beta1 = 0.5;
    config.beta2 = 0.75;
    config.eps = 1e-3;
    check_on_meshes("adamw", &config);
}

static void sgd_follows_its_formulas(void **state) {
    (void)state;
    hp_optimizer_config config = HP_OPTIMIZER_CONFIG_INIT;
    check_on_meshes("sgd", &config);
    config.weight_decay = 0.125;
    check_on_meshes("sgd", &config);
    config.momentum = 0.9;
    check_on_meshes("sgd", &config);
}

/* ---- one step by hand ----------------------------------------------------------------------- */

/* After one step from p = 0 AdamW has moved each element by lr against the sign of its gradient. */
static void first_step(hp_world *world, void *argument) {
    (void)argument;
    varied m;
    hp_optimizer *optimizer;
    hp_shard shard;
    varied_create(world, 1, &m);
    RANK_OK(hp_optimizer_create(m.fsdp, "adamw", NULL, &optimizer));
    varied_pass(&m, 1, 1);
    RANK_OK(hp_optimizer_step(optimizer, 0.25));
    RANK_OK(hp_param_shard(m.units[0], 0, &shard));
    for (uint64_t i = 0; i < shard.n_elements; i++) {
        const float g = ((const float *)shard.grad)[i], p = ((const float *)shard.values)[i];
        const float expected = g > 0 ? -0.25F : g < 0 ? 0.25F : 0.0F;
        RANK_CHECK(fabsf(p - expected) < 1e-6F);
    }
    hp_optimizer_destroy(optimizer);
    varied_destroy(&m);
}

static void the_first_step_is_lr_against_the_sign(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, first_step, NULL);
}

/* ---- misuse --------------------------------------------------------------------------------- */

static void misuse(hp_world *world, void *argument) {
    (void)argument;
    varied m;
    hp_optimizer *o = NULL;
    hp_optimizer_config config = HP_OPTIMIZER_CONFIG_INIT;
    varied_create(world, 1, &m);
    RANK_FAILS(hp_optimizer_create(m.fsdp, "adam", NULL, &o), HP_ERR_ARGUMENT);
    RANK_CHECK(strstr(hp_last_error(), "adamw") && strstr(hp_last_error(), "sgd"));
    RANK_FAILS(hp_optimizer_create(m.fsdp, NULL, NULL, &o), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_optimizer_create(NULL, "sgd", NULL, &o), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_optimizer_create(m.fsdp, "sgd", NULL, NULL), HP_ERR_ARGUMENT);
    config.beta2 = 1;
    RANK_FAILS(hp_optimizer_create(m.fsdp, "adamw", &config, &o), HP_ERR_ARGUMENT);
    config = (hp_optimizer_config)HP_OPTIMIZER_CONFIG_INIT;
    config.momentum = NAN;
    RANK_FAILS(hp_optimizer_create(m.fsdp, "sgd", &config, &o), HP_ERR_ARGUMENT);
    config.size = 1;
    RANK_FAILS(hp_optimizer_create(m.fsdp, "sgd", &config, &o), HP_ERR_VERSION);
    config = (hp_optimizer_config)HP_OPTIMIZER_CONFIG_INIT;
    config.beta1 = hp_world_rank(world) ? 0.9 : 0.8;
    RANK_FAILS(hp_optimizer_create(m.fsdp, "adamw", &config, &o), HP_ERR_MISMATCH);
    config.beta1 = hp_world_rank(world) ? 0.9 : 1.5; /* one rank alone fails all */
    RANK_FAILS(hp_optimizer_create(m.fsdp, "adamw", &config, &o), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_optimizer_create(m.fsdp, hp_world_rank(world) ? "sgd" : "adamw", NULL, &o),
               HP_ERR_MISMATCH);
    RANK_CHECK(o == NULL);

    RANK_OK(hp_optimizer_create(m.fsdp, "sgd", NULL, &o));
    RANK_FAILS(hp_optimizer_step(NULL, 0.1), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_optimizer_step(o, 0.1), HP_ERR_STATE); /* no gradients yet */
    RANK_OK(hp_fsdp_begin(m.fsdp, HP_EVALUATE));
    RANK_FAILS(hp_optimizer_step(o, 0.1), HP_ERR_STATE);
    RANK_OK(hp_fsdp_end(m.fsdp));
    RANK_FAILS(hp_optimizer_step(o, 0.1), HP_ERR_STATE); /* an evaluation leaves none */
    varied_pass(&m, 1, 1);
    RANK_FAILS(hp_optimizer_step(o, NAN), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_optimizer_step(o, -0.1), HP_ERR_ARGUMENT);
    RANK_FAILS(hp_optimizer_step(o, INFINITY), HP_ERR_ARGUMENT);
    RANK_OK(hp_optimizer_step(o, 0.1));
    RANK_FAILS(hp_optimizer_step(o, 0.1), HP_ERR_STATE); /* used already */
    varied_pass(&m, 2, 1);
    RANK_OK(hp_optimizer_step(o, 0.1));
    hp_optimizer_destroy(o);
    hp_optimizer_destroy(NULL);
    varied_destroy(&m);
}

static void misuse_is_refused(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, misuse, NULL);
}

/* ---- memory --------------------------------------------------------------------------------- */

static void memory(hp_world *world, void *argument) {
    (void)argument;
    varied m;
    hp_optimizer *o = NULL;
    hp_fsdp_stats stats;
    varied_create(world, 1, &m);
    hp_status status = HP_ERR_MEMORY;
    for (uint64_t n = 1; status < 0; n++) { /* whichever allocation fails, nothing is left */
        hpi_alloc_fail_after(n);
        status = hp_optimizer_create(m.fsdp, "adamw", NULL, &o);
        hpi_alloc_fail_after(0);
        RANK_CHECK(status == HP_OK || status == HP_ERR_MEMORY);
        RANK_CHECK(n < 50);
    }
    RANK_OK(hp_fsdp_stats_get(m.fsdp, &stats));
    /* Two states of 30 + 5 + 48 + 1 + 48 fp32 and 7 fp64 elements, each padded to 64 bytes. */
    RANK_CHECK(stats.optimizer_bytes == 2 * (128 + 64 + 192 + 64 + 64 + 192));
    for (int t = 1; t <= 6; t++) {
        const uint64_t before = hpi_alloc_count();
        double norm;
        varied_pass(&m, t, 1);
        RANK_OK(hp_clip_grad_norm(m.fsdp, 0.5, 2, &norm));
        RANK_OK(hp_optimizer_step(o, 0.1));
        RANK_CHECK(t < 3 || hpi_alloc_count() == before);
    }
    hp_optimizer_destroy(o);
    RANK_OK(hp_fsdp_stats_get(m.fsdp, &stats));
    RANK_CHECK(stats.optimizer_bytes == 0);
    varied_destroy(&m);
}

static void memory_is_taken_once(void **state) {
    (void)state;
    ranks_run(1, RANKS_THREADS, memory, NULL);
}

/* ---- an update of the caller's own ----------------------------------------------------------- */

typedef struct own_update {
    tiny_config config;
    int is_own;          /* 1: told, 2: untold */
    uint64_t weights[3]; /* after each step, on rank 0 */
} own_update;

/* SGD, in the arithmetic of the library's. */
static void write_shard(const hp_shard *shard, double learning_rate) {
    const bool is_double = shard->dtype == HP_FP64;
    for (uint64_t k = 0; shard->grad && k < shard->n_elements; k++)
        if (is_double)
            ((double *)(uintptr_t)shard->values)[k] -=
                learning_rate * ((const double *)shard->grad)[k];
        else
            ((float *)(uintptr_t)shard->values)[k] -=
                (float)learning_rate * ((const float *)shard->grad)[k];
}

static void write_shards(hp_fsdp *fsdp, double learning_rate) {
    hp_unit *unit;
    for (int i = 0; (unit = hp_fsdp_unit(fsdp, i)); i++)
        for (int j = 0; j < hp_unit_n_params(unit); j++) {
            hp_shard shard;
            RANK_OK(hp_param_shard(unit, j, &shard));
            write_shard(&shard, learning_rate);
        }
}

static void own_update_body(hp_world *world, void *argument) {
    own_update *u = argument;
    tiny *t;
    RANK_OK(tiny_create(world, &u->config, &t));
    hp_fsdp *fsdp = tiny_fsdp(t);
    for (int step = 0; step < 3; step++) {
        double loss;
        uint64_t digest;
        RANK_OK(tiny_step(t, step, &loss));
        if (step == 1) /* weights that peers may still read: begin has to wait */
            RANK_OK(tiny_evaluate(t, step, &loss));
        if (step == 1)
            RANK_OK(tiny_step(t, step, &loss));
        if (u->is_own == 2) {
            write_shards(fsdp, 0.1);
        } else if (u->is_own) {
            RANK_OK(hp_fsdp_update_begin(fsdp));
            write_shards(fsdp, 0.1);
            RANK_OK(hp_fsdp_update_end(fsdp));
        } else {
            RANK_OK(hp_optimizer_step(tiny_optimizer(t), 0.1));
        }
        if (step == 2)
            RANK_OK(tiny_evaluate(t, step, &loss));
        RANK_OK(tiny_digest(t, 0, &digest));
        if (hp_world_rank(world) == 0)
            u->weights[step] = digest;
    }
    tiny_destroy(t);
}

static void a_callers_update_is_an_update(void **state) {
    (void)state;
    for (int v = 0; v < 8; v++) {
        own_update u[3];
        for (int k = 0; k < 3; k++) {
            u[k] = (own_update){.config = TINY_CONFIG_INIT, .is_own = k};
            tiny_config *c = &u[k].config;
            c->n_shards = 2;
            c->n_replicas = 1 + v % 2;
            c->optimizer = "sgd";
            c->is_mixed = 1;
            c->fsdp.mode = (hp_mode)(v / 2);
            c->fsdp.caller_writes = k == 2;
            c->n_passes = 1 + v / 4; /* whose sums of gradients no write drops */
            c->fsdp.param_dtype = v % 2 ? HP_BF16 : HP_OWN_DTYPE;
            ranks_run(c->n_replicas * 2, RANKS_THREADS, own_update_body, &u[k]);
        }
        assert_memory_equal(u[0].weights, u[1].weights, sizeof u[0].weights);
        assert_memory_equal(u[0].weights, u[2].weights, sizeof u[0].weights);
        assert_int_not_equal(u[0].weights[0], u[0].weights[2]);
    }
}

static void half_updated_body(hp_world *world, void *argument) {
    const tiny_config c = *(tiny_config *)argument;
    tiny *t;
    double loss, norm;
    RANK_OK(tiny_create(world, &c, &t));
    hp_fsdp *fsdp = tiny_fsdp(t);
    RANK_FAILS(hp_fsdp_update_end(fsdp), HP_ERR_STATE);
    RANK_FAILS(hp_fsdp_update_begin(NULL), HP_ERR_ARGUMENT);
    RANK_OK(tiny_step(t, 0, &loss));
    RANK_OK(hp_fsdp_begin(fsdp, HP_EVALUATE));
    RANK_FAILS(hp_fsdp_update_begin(fsdp), HP_ERR_STATE);
    RANK_OK(hp_fsdp_end(fsdp));
    RANK_OK(tiny_step(t, 0, &loss));
    RANK_OK(hp_fsdp_update_begin(fsdp));
    RANK_FAILS(hp_fsdp_update_begin(fsdp), HP_ERR_STATE);
    RANK_FAILS(hp_fsdp_begin(fsdp, HP_SYNC), HP_ERR_STATE);
    RANK_FAILS(hp_clip_grad_norm(fsdp, 1.0, 2.0, &norm), HP_ERR_STATE);
    RANK_FAILS(hp_optimizer_step(tiny_optimizer(t), 0.1), HP_ERR_STATE);
    RANK_FAILS(hp_fsdp_reset(fsdp), HP_ERR_FAILED);
    RANK_OK(hp_fsdp_update_end(fsdp));
    RANK_OK(tiny_step(t, 1, &loss));
    RANK_OK(hp_optimizer_step(tiny_optimizer(t), 0.1));
    tiny_destroy(t);
}

static void nothing_else_comes_into_an_update(void **state) {
    tiny_config c = TINY_CONFIG_INIT;
    (void)state;
    c.n_shards = 2;
    c.fsdp.mode = HP_MAPPED;
    ranks_run(2, RANKS_THREADS, half_updated_body, &c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adamw_follows_its_formulas),
        cmocka_unit_test(sgd_follows_its_formulas),
        cmocka_unit_test(the_first_step_is_lr_against_the_sign),
        cmocka_unit_test(misuse_is_refused),
        cmocka_unit_test(memory_is_taken_once),
        cmocka_unit_test(a_callers_update_is_an_update),
        cmocka_unit_test(nothing_else_comes_into_an_update),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

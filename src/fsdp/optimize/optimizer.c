/* SPDX-License-Identifier: Apache-2.0
 *
 * optimizer.c - AdamW and SGD on shards, in place, as torch.optim defines them.
 *
 * Every element is computed by itself, in the dtype of its master (fp32 or fp64): the bits depend
 * on neither sharding nor vector width. What is equal for all elements (bias corrections, step
 * size, decay) is computed in double and rounded once to that dtype. The cast copy of a unit is
 * refreshed in the same operation. Source: Loshchilov and Hutter 2019, algorithm 2;
 * torch.optim.SGD.
 */
#include "optimizer.h"
#include "../together/agree.h"
#include "../together/between.h"

#include <assert.h>
#include <hyperparallel/coll.h>
#include <math.h>

enum { STATE_ALIGNMENT = 64 };

/* What a step does to every element, in double. */
struct scalars {
    double learning_rate, weight_decay, momentum; /* sgd */
    double beta1, beta2, eps;                     /* adamw, and the rest: */
    double decay;                                 /* 1 - lr * weight_decay */
    double step_size;                             /* lr / (1 - beta1^t) */
    double root_correction;                       /* sqrt(1 - beta2^t) */
};

/* One parameter's shard. */
struct shard {
    void *p, *state[HPI_MAX_STATES];
    const void *g;
    uint64_t n;
};

typedef void (*kernel)(const struct shard *s, const struct scalars *c);

/* ---- kernels: the same text for both dtypes ------------------------------------------------- */

/* clang-format off */
#define ADAMW(type, root)                                                                          \
    HPI_KERNEL static void adamw_##type(const struct shard *s, const struct scalars *c) {          \
        const type beta1 = (type)c->beta1, beta2 = (type)c->beta2, eps = (type)c->eps;             \
        const type rest1 = (type)(1.0 - c->beta1), rest2 = (type)(1.0 - c->beta2);                 \
        const type decay = (type)c->decay, step_size = (type)c->step_size;                         \
        const type root_correction = (type)c->root_correction;                                     \
        type *restrict p = s->p, *restrict m = s->state[0], *restrict v = s->state[1];             \
        const type *restrict g = s->g;                                                             \
        for (uint64_t i = 0; i < s->n; i++) {                                                      \
            m[i] = beta1 * m[i] + rest1 * g[i];                                                    \
            v[i] = beta2 * v[i] + rest2 * g[i] * g[i];                                             \
            p[i] = decay * p[i] - step_size * (m[i] / (root(v[i]) / root_correction + eps));       \
        }                                                                                          \
    }

#define SGD(type)                                                                                  \
    HPI_KERNEL static void sgd_##type(const struct shard *s, const struct scalars *c) {            \
        const type lr = (type)c->learning_rate, decay = (type)c->weight_decay;                     \
        type *restrict p = s->p;                                                                   \
        const type *restrict g = s->g;                                                             \
        for (uint64_t i = 0; i < s->n; i++)                                                        \
            p[i] -= lr * (g[i] + decay * p[i]);                                                    \
    }

/* The buffer starts as zeros, so that after the first step it is the gradient, as torch has it. */
#define MOMENTUM(type)                                                                             \
    HPI_KERNEL static void momentum_##type(const struct shard *s, const struct scalars *c) {       \
        const type lr = (type)c->learning_rate, decay = (type)c->weight_decay;                     \
        const type momentum = (type)c->momentum;                                                   \
        type *restrict p = s->p, *restrict b = s->state[0];                                        \
        const type *restrict g = s->g;                                                             \
        for (uint64_t i = 0; i < s->n; i++) {                                                      \
            b[i] = momentum * b[i] + (g[i] + decay * p[i]);                                        \
            p[i] -= lr * b[i];                                                                     \
        }                                                                                          \
    }
/* clang-format on */

ADAMW(float, sqrtf)
ADAMW(double, sqrt)
SGD(float)
SGD(double)
MOMENTUM(float)
MOMENTUM(double)

/* ---- the table ------------------------------------------------------------------------------ */

struct hpi_algorithm {
    const char *name;
    double weight_decay; /* the default */
    bool has_momentum;   /* of two rows with one name, which */
    int n_states;
    const char *states[HPI_MAX_STATES];
    kernel step_fp32, step_fp64;
};

static const hpi_algorithm algorithms[] = {
    {"adamw", 0.01, false, 2, {"exp_avg", "exp_avg_sq"}, adamw_float, adamw_double},
    {"sgd", 0.0, false, 0, {NULL, NULL}, sgd_float, sgd_double},
    {"sgd", 0.0, true, 1, {"momentum_buffer", NULL}, momentum_float, momentum_double},
};
enum { N_ALGORITHMS = sizeof algorithms / sizeof *algorithms };

/* The row of that name, the one with momentum where the configuration asks for it. */
static const hpi_algorithm *find_algorithm(const char *name, const hp_optimizer_config *config) {
    const hpi_algorithm *found = NULL;
    for (int i = 0; name && i < N_ALGORITHMS; i++)
        if (strcmp(algorithms[i].name, name) == 0 && (!found || config->momentum != 0))
            found = &algorithms[i];
    return found;
}

/* ---- create --------------------------------------------------------------------------------- */

static bool is_in(double value, double least, double most) {
    return value >= least && value <= most; /* false for NaN */
}

static hp_status check_config(const char *name, const hp_optimizer_config *c) {
    if (c->size != sizeof *c)
        return HPI_FAIL(HP_ERR_VERSION,
                        "expected hp_optimizer_config of %zu bytes, given %zu: use "
                        "HP_OPTIMIZER_CONFIG_INIT",
                        sizeof *c, c->size);
    if (!find_algorithm(name, c))
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected an optimizer, adamw or sgd, given \"%s\"",
                        name ? name : "(null)");
    if (!is_in(c->weight_decay, -INFINITY, 1e30) || !is_in(c->momentum, 0, 1e30) ||
        !is_in(c->eps, 0, 1e30))
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected finite weight_decay, and momentum and eps of 0 or more, given "
                        "%g, %g and %g",
                        c->weight_decay, c->momentum, c->eps);
    if (!is_in(c->beta1, 0, 1 - 0x1p-53) || !is_in(c->beta2, 0, 1 - 0x1p-53))
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected betas from 0 to less than 1, given %g and %g",
                        c->beta1, c->beta2);
    return HP_OK;
}

static uint64_t state_bytes(const hpi_param *p) {
    return hpi_align_up(p->layout.shard_elements * hp_dtype_size(p->master), STATE_ALIGNMENT);
}

/* Give every trainable parameter its place. */
static hp_status place_states(hp_optimizer *o) {
    const hp_fsdp *fsdp = o->fsdp;
    o->offsets = hpi_alloc(fsdp->n_units, sizeof *o->offsets);
    for (uint32_t i = 0; o->offsets && i < fsdp->n_units; i++) {
        const hp_unit *unit = fsdp->units[i];
        o->offsets[i] = hpi_alloc((size_t)unit->n_params, sizeof **o->offsets);
        if (!o->offsets[i])
            return HP_ERR_MEMORY;
        for (int j = 0; j < unit->n_params; j++) {
            o->offsets[i][j] = o->memory_bytes;
            if (hpi_param_is_trainable(&unit->params[j]))
                o->memory_bytes += (uint64_t)o->n_states * state_bytes(&unit->params[j]);
        }
    }
    return o->offsets ? HP_OK : HP_ERR_MEMORY;
}

static hp_status take_memory(hp_optimizer *o) {
    HP_TRY(place_states(o));
    if (hpi_fsdp_is_virtual(o->fsdp))
        return HP_OK;
    o->memory = hpi_alloc_aligned(STATE_ALIGNMENT, o->memory_bytes);
    return o->memory ? HP_OK : HP_ERR_MEMORY;
}

static hp_status make(hp_fsdp *fsdp, const char *name, const hp_optimizer_config *config,
                      hp_optimizer **out_optimizer) {
    hp_optimizer *o = hpi_alloc(1, sizeof *o);
    if (!o)
        return HP_ERR_MEMORY;
    o->fsdp = fsdp;
    o->algorithm = find_algorithm(name, config);
    o->name = o->algorithm->name;
    o->n_states = o->algorithm->n_states;
    memcpy(o->states, o->algorithm->states, sizeof o->states);
    o->config = *config;
    if (config->weight_decay < 0)
        o->config.weight_decay = o->algorithm->weight_decay;
    *out_optimizer = o;
    return take_memory(o);
}

/* Ranks that step differently drift apart in silence, so a difference is told here. */
static hp_status check_equal(const hp_optimizer *o) {
    const uint64_t mine =
        hpi_checksum(&o->config, sizeof o->config) ^ (uint64_t)(o->algorithm - algorithms);
    int64_t least[] = {(int64_t)mine, (int64_t)~mine};
    if (hpi_fsdp_is_virtual(o->fsdp))
        return HP_OK;
    HP_TRY(hp_all_reduce(o->fsdp->all, least, least, 2, HP_INT64, HP_MIN));
    if (least[0] != ~least[1])
        return HPI_FAIL(HP_ERR_MISMATCH,
                        "expected the same optimizer with the same options on all ranks; this rank "
                        "has %s, weight_decay %g, momentum %g, betas %g and %g, eps %g",
                        o->name, o->config.weight_decay, o->config.momentum, o->config.beta1,
                        o->config.beta2, o->config.eps);
    return HP_OK;
}

static void free_optimizer(hp_optimizer *o) {
    for (uint32_t i = 0; o && o->offsets && i < o->fsdp->n_units; i++)
        hpi_free(o->offsets[i]);
    if (o) {
        hpi_free(o->offsets);
        hpi_free(o->memory);
    }
    hpi_free(o);
}

hp_status hp_optimizer_create(hp_fsdp *fsdp, const char *name, const hp_optimizer_config *config,
                              hp_optimizer **out_optimizer) {
    static const hp_optimizer_config defaults = HP_OPTIMIZER_CONFIG_INIT;
    const hp_optimizer_config *chosen = config ? config : &defaults;
    HP_TRY(hpi_fsdp_check_idle(fsdp, __func__));
    if (!out_optimizer)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected out_optimizer, given NULL");
    hp_optimizer *o = NULL;
    hp_status status = check_config(name, chosen);
    status = hpi_agree(fsdp, status ? status : make(fsdp, name, chosen, &o));
    assert(status < 0 || o); /* all agreed, so this rank's was made */
    status = status ? status : check_equal(o);
    if (status < 0) {
        free_optimizer(o);
        return status;
    }
    fsdp->optimizer_bytes += o->memory_bytes;
    *out_optimizer = o;
    return HP_OK;
}

void hp_optimizer_destroy(hp_optimizer *optimizer) {
    if (!optimizer)
        return;
    optimizer->fsdp->optimizer_bytes -= optimizer->memory_bytes;
    free_optimizer(optimizer);
}

void *hpi_optimizer_state(const hp_optimizer *optimizer, const hp_unit *unit, int param,
                          int state) {
    return optimizer->memory + optimizer->offsets[unit->index][param] +
           (uint64_t)state * state_bytes(&unit->params[param]);
}

/* ---- step ----------------------------------------------------------------------------------- */

static struct scalars make_scalars(const hp_optimizer *o, double learning_rate) {
    const hp_optimizer_config *c = &o->config;
    const double t = (double)(o->n_steps + 1);
    return (struct scalars){
        .learning_rate = learning_rate,
        .weight_decay = c->weight_decay,
        .momentum = c->momentum,
        .beta1 = c->beta1,
        .beta2 = c->beta2,
        .eps = c->eps,
        .decay = 1.0 - learning_rate * c->weight_decay,
        .step_size = learning_rate / (1.0 - pow(c->beta1, t)),
        .root_correction = sqrt(1.0 - pow(c->beta2, t)),
    };
}

struct update {
    const hp_optimizer *optimizer;
    struct scalars scalars;
};

static hp_status update_param(const struct update *u, hp_unit *unit, int j) {
    const hp_optimizer *o = u->optimizer;
    const hpi_param *p = &unit->params[j];
    struct shard s = {.p = hpi_param_master(unit, p),
                      .g = hpi_param_grad_shard(unit, p),
                      .n = hpi_param_count(o->fsdp, p)};
    for (int k = 0; k < o->n_states; k++)
        s.state[k] = hpi_optimizer_state(o, unit, j, k);
    const kernel step = p->master == HP_FP64 ? o->algorithm->step_fp64 : o->algorithm->step_fp32;
    step(&s, &u->scalars);
    return hpi_param_refresh_cast(unit, p);
}

static hp_status update_unit(void *context, hp_unit *unit) {
    for (int j = 0; unit->has_gradients && j < unit->n_params; j++)
        if (hpi_param_is_trainable(&unit->params[j]))
            HP_TRY(update_param(context, unit, j));
    return HP_OK;
}

hp_status hp_optimizer_step(hp_optimizer *optimizer, double learning_rate) {
    if (!optimizer)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected an optimizer, given NULL");
    hp_fsdp *fsdp = optimizer->fsdp;
    HP_TRY(hpi_fsdp_check_gradients(fsdp, __func__));
    if (!is_in(learning_rate, 0, 1e30))
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a learning rate of 0 or more, given %g",
                        learning_rate);
    if (optimizer->used_generation == fsdp->grad_generation)
        return HPI_FAIL(HP_ERR_STATE, "expected new gradients: one step after each hp_fsdp_end, "
                                      "these were used or belong to weights that are no more");
    const uint64_t began_ns = hp_executor_now_ns(fsdp->executor);
    struct update update = {optimizer, make_scalars(optimizer, learning_rate)};
    HP_TRY(hpi_fsdp_apply(fsdp, HPI_APPLY_UPDATE, update_unit, &update));
    optimizer->n_steps++;
    optimizer->used_generation = fsdp->grad_generation;
    hpi_fsdp_trace(fsdp, hpi_span_optimizer, began_ns, 0);
    return HP_OK;
}

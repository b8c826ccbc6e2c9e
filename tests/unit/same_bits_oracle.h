/* SPDX-License-Identifier: Apache-2.0
 *
 * same_bits_oracle.h - what a training of the small network must give, in serial loops.
 *
 * No fsdp, no collective, no kernel of the library: eight ranks' samples one after the other, sums
 * by the tree, the optimizers' formulas, one element at a time. A value is kept as a double that a
 * number of its dtype holds; an operation is done in double and rounded once to that dtype, which
 * for fp32 gives what an fp32 operation gives (double has more than twice its bits). Source: the
 * words of fsdp.h and coll.h; SPEC A6 to A9; torch.optim.
 */
#ifndef SAME_BITS_ORACLE_H
#define SAME_BITS_ORACLE_H

#include "support/oracle.h"
#include "unit/same_bits_model.h"

#include <stdlib.h>
#include <string.h>

enum { N_RANKS = 8, MAX_PASSES = 3 };
typedef enum optimizer_choice { SGD, MOMENTUM, ADAMW, N_OPTIMIZERS } optimizer_choice;
typedef enum clip_choice { NO_CLIP, CLIP_1, CLIP_2, CLIP_INFINITY, N_CLIPS } clip_choice;
typedef enum accumulation { ONE_PASS, NO_SYNC, DEFERRED, N_ACCUMULATIONS } accumulation;

static const double learning_rates[N_OPTIMIZERS] = {0.05, 0.02, 0.01};
static const double weight_decay = 0.125, momentum = 0.5;
/* Small enough for most steps to be scaled. */
static const double clip_norms[N_CLIPS] = {INFINITY, 0.125, 0.015625, 0.001953125};
static const double clip_powers[N_CLIPS] = {2, 1, 2, INFINITY};

/* What decides the bits. The mesh does, where partial sums are kept between passes. */
typedef struct lesson {
    int param_dtype, reduce_dtype; /* of hp_fsdp_config */
    accumulation accumulation;
    int n_replicas;
} lesson;

/* One step. Values by element of all rows; zero where there is none. */
typedef struct snapshot {
    double losses[MAX_PASSES][N_RANKS];
    double norm;
    double gradients[MAX_ELEMENTS], clipped[MAX_ELEMENTS]; /* before and after */
    double weights[MAX_ELEMENTS];                          /* after the step */
} snapshot;

typedef struct oracle {
    lesson lesson;
    double weights[MAX_ELEMENTS], state[2][MAX_ELEMENTS];
    int n_updates; /* of this optimizer */
    double sums[N_RANKS][MAX_ELEMENTS], full[N_RANKS][MAX_ELEMENTS];
    bool has_sums[N_RANKS][N_UNITS];
    double partial[N_RANKS][MAX_ELEMENTS]; /* by replica */
    bool has_partial;
    network net;
} oracle;

/* ---- dtypes ------------------------------------------------------------------------------ */

static inline double rounded(hp_dtype dtype, double x) {
    if (dtype == HP_BF16)
        return (double)oracle_from_bf16(oracle_to_bf16((float)x));
    if (dtype == HP_FP16)
        return (double)oracle_from_fp16(oracle_to_fp16((float)x));
    return dtype == HP_FP32 ? (double)(float)x : x;
}

static inline hp_dtype data_dtype(const lesson *l, int row) {
    const hp_dtype own = rows[row].dtype;
    return own == HP_FP64 || l->param_dtype == HP_OWN_DTYPE ? own : (hp_dtype)l->param_dtype;
}

static inline hp_dtype grad_dtype(const lesson *l, int row) {
    const hp_dtype data = data_dtype(l, row);
    return data == HP_FP64 || l->reduce_dtype == HP_OWN_DTYPE ? data : (hp_dtype)l->reduce_dtype;
}

/* Of weights, state and sums. */
static inline hp_dtype master_dtype(int row) {
    return rows[row].dtype == HP_FP64 ? HP_FP64 : HP_FP32;
}

/* Two are accumulated, and join those of the third. */
static inline int lesson_n_passes(const lesson *l) {
    return l->accumulation == ONE_PASS ? 1 : MAX_PASSES;
}

/* ---- gradients --------------------------------------------------------------------------- */

/* Sample index of SPEC A9, a batch of one. */
static inline int sample_of(int step, int pass, int n_passes, int rank) {
    return (step * n_passes + pass) * N_RANKS + rank;
}

/* A full gradient of a unit, in its dtype: one that is reduced takes in the sums of those before
 * it, and is rounded again; any other is added to them. */
static inline void keep_gradient(oracle *o, int rank, int unit, bool is_reduced) {
    const bool has_sums = o->has_sums[rank][unit];
    for (int row = 0; row < N_ROWS; row++) {
        if (rows[row].unit != unit || !row_is_trained(row))
            continue;
        const hp_dtype dtype = grad_dtype(&o->lesson, row);
        for (uint64_t i = row_begin(row); i < row_begin(row) + row_count(row); i++) {
            const double g = rounded(dtype, (double)o->net.dx[i]);
            const double sum = has_sums ? rounded(master_dtype(row), o->sums[rank][i] + g) : g;
            if (is_reduced)
                o->full[rank][i] = rounded(dtype, sum);
            else
                o->sums[rank][i] = sum;
        }
    }
    o->has_sums[rank][unit] = !is_reduced;
}

static inline void load_weights(oracle *o) {
    for (int row = 0; row < N_ROWS; row++)
        for (uint64_t i = row_begin(row); i < row_begin(row) + row_count(row); i++)
            o->net.x[i] = (float)rounded(data_dtype(&o->lesson, row), o->weights[i]);
}

static inline double run_sample(oracle *o, int sample, int rank, bool is_reduced) {
    load_weights(o);
    network_input(&o->net, sample);
    for (int layer = 0; layer < N_LAYERS; layer++)
        network_forward(&o->net, layer);
    const double loss = network_loss(&o->net, lesson_n_passes(&o->lesson));
    for (int layer = N_LAYERS; layer-- > 0;) {
        network_backward(&o->net, layer);
        /* a unit's first use is the last in backward */
        keep_gradient(o, rank, layer_unit(layer), is_reduced && layer < N_UNITS);
    }
    return loss;
}

/* ((r0+r1)+(r2+r3))+... of n values, a power of two, `stride` apart. */
static inline double tree(hp_dtype dtype, const double *values, int n, int stride) {
    if (n == 1)
        return *values;
    const double low = tree(dtype, values, n / 2, stride);
    return rounded(dtype, low + tree(dtype, values + n / 2 * stride, n / 2, stride));
}

/* Over each shard group; what is deferred is kept, and what was deferred is added, before the sum
 * over replicas. */
static inline double reduce_element(oracle *o, hp_dtype dtype, uint64_t i, bool is_deferred) {
    const int n_replicas = o->lesson.n_replicas, n_shards = N_RANKS / n_replicas;
    double sums[N_RANKS];
    for (int r = 0; r < n_replicas; r++) {
        sums[r] = tree(dtype, &o->full[r * n_shards][i], n_shards, MAX_ELEMENTS);
        if (o->has_partial)
            sums[r] = rounded(dtype, sums[r] + o->partial[r][i]);
        o->partial[r][i] = sums[r];
    }
    return is_deferred ? 0 : tree(dtype, sums, n_replicas, 1);
}

static inline double scaled(int row, double sum) {
    const hp_dtype dtype = master_dtype(row);
    const double parts = unit_scaling[rows[row].unit].reduce == HP_AVG ? N_RANKS : 1;
    const double factor = unit_scaling[rows[row].unit].factor;
    return rounded(dtype, factor == 1 ? sum / parts : sum * rounded(dtype, factor / parts));
}

static inline void reduce_all(oracle *o, bool is_deferred, double *out_gradients) {
    for (int row = 0; row < N_ROWS; row++)
        for (uint64_t i = row_begin(row); i < row_begin(row) + row_count(row); i++)
            if (row_is_trained(row))
                out_gradients[i] =
                    scaled(row, reduce_element(o, master_dtype(row), i, is_deferred));
    o->has_partial = is_deferred;
}

/* ---- clipping ---------------------------------------------------------------------------- */

__extension__ typedef __int128 wide_int;

/* Terms scaled by the largest one's power of two, in whole multiples of 2^-78. */
static inline double exact_norm(const double *x, int n, double power) {
    double largest = 0;
    int exponent;
    wide_int sum = 0;
    for (int i = 0; i < n; i++)
        largest = fmax(largest, fabs(x[i]));
    if (isinf(power) || largest == 0)
        return largest;
    (void)frexp(largest, &exponent);
    for (int i = 0; i < n; i++) {
        const double scaled_x = ldexp(fabs(x[i]), -exponent);
        const double term = power == 1 ? scaled_x : scaled_x * scaled_x;
        sum += (wide_int)rintl(ldexpl((long double)term, 78));
    }
    return power == 1 ? ldexp((double)sum, exponent - 78)
                      : ldexp(sqrt((double)sum), exponent - 78 / 2);
}

static inline void clip(clip_choice choice, snapshot *out) {
    memcpy(out->clipped, out->gradients, sizeof out->clipped);
    if (choice == NO_CLIP)
        return;
    out->norm = exact_norm(out->gradients, MAX_ELEMENTS, clip_powers[choice]);
    const double factor = clip_norms[choice] / (out->norm + 1e-6);
    for (int row = 0; row < N_ROWS && factor < 1; row++)
        for (uint64_t i = row_begin(row); i < row_begin(row) + row_count(row); i++)
            out->clipped[i] =
                rounded(master_dtype(row), out->gradients[i] * rounded(master_dtype(row), factor));
}

/* ---- optimizers -------------------------------------------------------------------------- */

/* Each operation is rounded to the dtype: R is what an fp32 or fp64 operation gives. */
#define R(x) rounded(dtype, x)

static inline double sgd_update(hp_dtype dtype, double p, double g) {
    return R(p - R(R(learning_rates[SGD]) * R(g + R(R(weight_decay) * p))));
}

static inline double momentum_update(hp_dtype dtype, double p, double g, double *b) {
    *b = R(R(R(momentum) * *b) + R(g + R(R(weight_decay) * p)));
    return R(p - R(R(learning_rates[MOMENTUM]) * *b));
}

static inline double adamw_update(hp_dtype dtype, double p, double g, double *m, double *v, int t) {
    const double rate = learning_rates[ADAMW], beta1 = 0.9, beta2 = 0.999;
    const double step_size = R(rate / (1 - pow(beta1, t))), root = R(sqrt(1 - pow(beta2, t)));
    *m = R(R(R(beta1) * *m) + R(R(1 - beta1) * g));
    *v = R(R(R(beta2) * *v) + R(R(R(1 - beta2) * g) * g));
    const double ratio = R(*m / R(R(R(sqrt(*v)) / root) + R(1e-8)));
    return R(R(R(1 - rate * weight_decay) * p) - R(step_size * ratio));
}
#undef R

static inline void update(oracle *o, optimizer_choice choice, const double *g) {
    const int t = ++o->n_updates;
    for (int row = 0; row < N_ROWS; row++)
        for (uint64_t i = row_begin(row); i < row_begin(row) + row_count(row); i++) {
            const hp_dtype dtype = master_dtype(row);
            double *p = &o->weights[i];
            if (!row_is_trained(row))
                continue;
            if (choice == SGD)
                *p = sgd_update(dtype, *p, g[i]);
            else if (choice == MOMENTUM)
                *p = momentum_update(dtype, *p, g[i], &o->state[0][i]);
            else
                *p = adamw_update(dtype, *p, g[i], &o->state[0][i], &o->state[1][i], t);
        }
}

/* ---- training ---------------------------------------------------------------------------- */

static inline oracle *oracle_create(const lesson *l) {
    oracle *o = calloc(1, sizeof *o);
    if (!o)
        abort();
    o->lesson = *l;
    for (int row = 0; row < N_ROWS; row++)
        for (uint64_t i = 0; i < row_count(row); i++)
            o->weights[row_begin(row) + i] = rounded(rows[row].dtype, first_value(row, i));
    return o;
}

/* A new optimizer: without state, its first step to come. */
static inline void oracle_forget(oracle *o) {
    memset(o->state, 0, sizeof o->state);
    o->n_updates = 0;
}

static inline void oracle_step(oracle *o, optimizer_choice optimizer, clip_choice choice, int step,
                               snapshot *out) {
    const int n_passes = lesson_n_passes(&o->lesson);
    memset(out, 0, sizeof *out);
    for (int pass = 0; pass < n_passes; pass++) {
        const bool is_last = pass + 1 == n_passes;
        const bool is_reduced = is_last || o->lesson.accumulation == DEFERRED;
        for (int rank = 0; rank < N_RANKS; rank++)
            out->losses[pass][rank] =
                run_sample(o, sample_of(step, pass, n_passes, rank), rank, is_reduced);
        if (is_reduced)
            reduce_all(o, !is_last, out->gradients);
    }
    clip(choice, out);
    update(o, optimizer, out->clipped);
    memcpy(out->weights, o->weights, sizeof out->weights);
}

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * random_fsdp.h - random training loops in random ways, held against the plainest way, bit by bit.
 *
 * A seed gives a number of ranks, a model, a loop (random_loop.h), and a way to run it: mesh, mode,
 * schedule, prefetch, executor, precision, replay, poison, delays. It is run twice: in mode
 * per-param at once in list order, and in its own way. Everything that is read in it, every norm
 * and all weights and gradients at the end must be the same bits; what was recorded must be sound.
 */
#ifndef RANDOM_FSDP_H
#define RANDOM_FSDP_H

#include "fault/random_loop.h"
#include "fsdp/engine.h"
#include "support/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { FSDP_RANKS = 8 };

typedef struct fsdp_way {
    int n_replicas;
    hp_fsdp_config config;
    char delay[64];
    bool is_verified;
} fsdp_way;

/* What a run leaves: a word of each rank for each call, and all weights, then all gradients. */
typedef struct fsdp_run {
    uint64_t words[FSDP_RANKS][LOOP_CALLS];
    double *values;
} fsdp_run;

typedef struct fsdp_case {
    uint64_t seed;
    int n_ranks;
    loop_model model;
    loop loop;
    const char *optimizer;
    fsdp_way ways[2], *way; /* the plainest one and its own; which is played */
    fsdp_run runs[2], *run;
} fsdp_case;

/* ---- drawing ----------------------------------------------------------------------------- */

static inline int draw_dtype(uint64_t *random) {
    static const int dtypes[] = {HP_OWN_DTYPE, HP_OWN_DTYPE, HP_FP32, HP_BF16, HP_FP16};
    return dtypes[draw(random, 5)];
}

static inline int draw_divisor(uint64_t *random, int n) {
    int d = 1 + draw(random, n);
    while (n % d)
        d = 1 + draw(random, n);
    return d;
}

static inline void draw_ways(uint64_t *random, fsdp_case *c) {
    fsdp_way *plain = &c->ways[0], *own = &c->ways[1];
    hp_fsdp_config *config = &own->config;
    *config = (hp_fsdp_config)HP_FSDP_CONFIG_INIT;
    own->n_replicas = draw_divisor(random, c->n_ranks);
    config->param_dtype = draw_dtype(random);
    config->reduce_dtype = draw_dtype(random);
    config->replicate_wire = draw_chance(random, 70) ? HP_OWN_DTYPE : draw_dtype(random);
    config->reshard_after_forward = draw(random, 2);
    *plain = *own;
    config->mode = (hp_mode)draw(random, HP_AUTO + 1);
    config->prefetch = draw(random, 4);
    config->schedule = (hp_schedule)(draw_chance(random, 60) ? HP_OVERLAP : draw(random, 3));
    config->executor = draw_chance(random, 70) ? HP_EXECUTOR_THREAD : HP_EXECUTOR_INLINE;
    config->record = draw_chance(random, 60);
    config->replay_after = config->record && draw_chance(random, 40) ? 1 + draw(random, 3) : 0;
    config->poison = draw_chance(random, 80);
    own->is_verified = config->record && draw_chance(random, 70);
    if (draw_chance(random, 50))
        snprintf(own->delay, sizeof own->delay, "kind=*,rank=%d,us=%d,seed=%d",
                 draw(random, c->n_ranks), 20 + draw(random, 100), draw(random, 1000));
    plain->config.executor = HP_EXECUTOR_INLINE;
    plain->config.prefetch = 8; /* more than is ever held */
}

/* Do sums over the ranks have the same bits on all meshes? */
static inline bool is_alike_on_meshes(const fsdp_case *c) {
    const int wire = c->ways[1].config.replicate_wire;
    return !(c->n_ranks & (c->n_ranks - 1)) && !c->loop.has_deferred &&
           (wire == HP_OWN_DTYPE || wire == HP_FP32);
}

static inline void draw_case(uint64_t seed, int most_ranks, fsdp_case *c) {
    uint64_t random = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    memset(c, 0, sizeof *c);
    c->seed = seed;
    c->n_ranks = 1 + draw(&random, most_ranks);
    draw_model(&random, c->n_ranks, &c->model);
    draw_ways(&random, c);
    const hp_fsdp_config *config = &c->ways[1].config;
    const int room = config->schedule == HP_SERIAL ? 0 : config->prefetch;
    draw_loop(hpi_random_next(&random), c->model.n_units, room,
              config->replay_after || draw_chance(&random, 40), &c->loop);
    c->optimizer = draw(&random, 2) ? "adamw" : "sgd";
    if (is_alike_on_meshes(c))
        c->ways[0].n_replicas = draw_divisor(&random, c->n_ranks);
}

/* ---- values ------------------------------------------------------------------------------ */

/* In [-1, 1), exact in no dtype but fp64. */
static inline double value_of(uint64_t seed, uint64_t i) {
    uint64_t state = seed + i * UINT64_C(0x9e3779b97f4a7c15);
    return 2 * hpi_random_unit(&state) - 1;
}

static inline bool is_float(hp_dtype dtype) {
    return dtype <= HP_BF16;
}

static inline void write_value(void *values, hp_dtype dtype, uint64_t i, double value) {
    const size_t bytes = hp_dtype_size(dtype);
    const uint64_t raw = (uint64_t)(int64_t)(value * 100);
    void *to = (unsigned char *)values + i * bytes;
    if (is_float(dtype))
        RANK_OK(hpi_convert(&value, HP_FP64, to, dtype, 1));
    else
        memcpy(to, &raw, bytes);
}

static inline double read_value(const void *values, hp_dtype dtype, uint64_t i) {
    const size_t bytes = hp_dtype_size(dtype);
    const void *from = (const unsigned char *)values + i * bytes;
    double value = 0;
    if (is_float(dtype))
        RANK_OK(hpi_convert(from, dtype, &value, HP_FP64, 1));
    else
        memcpy(&value, from, bytes);
    return value;
}

static inline void fill_param(void *context, uint64_t begin, uint64_t end, void *out_elements) {
    const loop_param *p = context;
    for (uint64_t i = begin; i < end; i++)
        write_value(out_elements, p->dtype, i - begin, value_of(p->seed, i));
}

/* ---- a rank ------------------------------------------------------------------------------ */

typedef struct fsdp_player {
    fsdp_case *c;
    hp_world *world;
    int rank;
    hp_mesh *mesh;
    hp_fsdp *fsdp;
    hp_unit *units[LOOP_UNITS];
    hp_optimizer *optimizer;
    int at;             /* of the calls */
    uint64_t *word;     /* of that call */
    uint64_t last_list; /* of operations of the HP_SYNC pass before */
} fsdp_player;

static inline void create_unit(fsdp_player *p, int u) {
    loop_unit *unit = &p->c->model.units[u];
    hp_param params[LOOP_PARAMS];
    for (int j = 0; j < unit->n_params; j++) {
        loop_param *from = &unit->params[j];
        params[j] = (hp_param)HP_PARAM_INIT;
        params[j].name = from->name;
        params[j].n_dims = from->n_dims;
        memcpy(params[j].shape, from->shape, sizeof from->shape);
        params[j].dtype = from->dtype;
        params[j].shard_dim = from->shard_dim;
        params[j].is_frozen = from->is_frozen;
        params[j].is_ignored = from->is_ignored;
        params[j].fill = fill_param;
        params[j].fill_context = from;
        params[j].tied_to = from->owner >= 0 ? unit->params[from->owner].name : NULL;
    }
    hp_unit_config config = HP_UNIT_CONFIG_INIT;
    config.reshard_after_forward = unit->reshard;
    config.reduce = unit->reduce;
    config.factor = unit->factor;
    char name[16];
    snprintf(name, sizeof name, "u%d", u);
    hp_unit *list[3];
    /* a list can name units that are there already */
    config.n_prefetch = 0;
    for (int k = 0; k < unit->n_prefetch; k++)
        if (unit->prefetch[k] < u)
            list[config.n_prefetch++] = p->units[unit->prefetch[k]];
    config.prefetch = unit->n_prefetch >= 0 ? list : NULL;
    RANK_OK(hp_unit_create(p->fsdp, name, params, unit->n_params, &config, &p->units[u]));
}

static inline void check_bound(const fsdp_player *p) {
    hp_fsdp_stats s;
    RANK_OK(hp_fsdp_stats_get(p->fsdp, &s));
    RANK_CHECK(s.shard_bytes + s.gather_bytes + s.grad_bytes + s.bucket_bytes + s.optimizer_bytes +
                   s.pack_bytes + s.shared_bytes <=
               s.bound_bytes);
}

static inline void check_sound(const fsdp_player *p, hp_verify_what what) {
    hp_verdict verdict;
    RANK_OK(hp_fsdp_verify(p->fsdp, what, &verdict));
    RANK_CHECK(verdict.rule == HP_RULE_NONE);
}

static inline void create_player(fsdp_player *p) {
    fsdp_way *way = p->c->way;
    hp_fsdp_config config = way->config;
    const int sizes[] = {way->n_replicas, p->c->n_ranks / way->n_replicas};
    config.delay = *way->delay ? way->delay : NULL;
    RANK_OK(hp_mesh_create(p->world, sizes, 2, &p->mesh));
    RANK_OK(hp_fsdp_create(p->mesh, &config, &p->fsdp));
    for (int u = 0; u < p->c->model.n_units; u++)
        create_unit(p, u);
    RANK_OK(hp_fsdp_commit(p->fsdp));
    RANK_OK(hp_optimizer_create(p->fsdp, p->c->optimizer, NULL, &p->optimizer));
    check_bound(p);
    if (way->is_verified)
        check_sound(p, HP_VERIFY_PLAN);
}

static inline void note(fsdp_player *p, const void *bytes, uint64_t n) {
    const uint64_t pair[] = {*p->word, hpi_checksum(bytes, n)};
    *p->word = hpi_checksum(pair, sizeof pair);
}

/* All bits of the unit's parameters. */
static inline void read_unit(fsdp_player *p, int u) {
    const loop_unit *unit = &p->c->model.units[u];
    for (int j = 0; j < unit->n_params; j++) {
        hp_dtype data, grad;
        if (unit->params[j].is_ignored)
            continue;
        RANK_OK(hp_param_dtypes(p->units[u], j, &data, &grad));
        const void *values = hp_param_data(p->units[u], j);
        RANK_CHECK(values != NULL);
        note(p, values, unit->params[j].n_elements * hp_dtype_size(data));
    }
}

/* Gradients that follow from the weights; here and there one is not asked for. */
static inline void write_gradients(fsdp_player *p, int u) {
    const loop_unit *unit = &p->c->model.units[u];
    for (int j = 0; j < unit->n_params; j++) {
        const loop_param *from = &unit->params[j];
        const uint64_t seed = from->seed + (uint64_t)p->at * 64 + (uint64_t)p->rank;
        hp_dtype data, grad;
        if (from->is_ignored || from->is_frozen || from->owner >= 0 || value_of(seed, 1) > 0.8)
            continue;
        RANK_OK(hp_param_dtypes(p->units[u], j, &data, &grad));
        void *out = hp_param_grad(p->units[u], j);
        const void *values = hp_param_data(p->units[u], j);
        RANK_CHECK(out && values);
        for (uint64_t i = 0; i < from->n_elements; i++)
            write_value(out, grad, i, value_of(seed, i) + read_value(values, data, i) / 8);
    }
}

static inline void play_forward(fsdp_player *p, int unit, int inner) {
    RANK_OK(hp_forward_begin(p->units[unit]));
    if (inner >= 0)
        play_forward(p, inner, -1);
    read_unit(p, unit);
    RANK_OK(hp_forward_end(p->units[unit]));
}

static inline void play_backward(fsdp_player *p, int unit, int inner) {
    RANK_OK(hp_backward_begin(p->units[unit]));
    if (inner >= 0)
        play_backward(p, inner, -1);
    write_gradients(p, unit);
    read_unit(p, unit);
    RANK_OK(hp_backward_end(p->units[unit]));
}

static inline void play_recompute(fsdp_player *p, int unit) {
    RANK_OK(hp_recompute_begin(p->units[unit]));
    read_unit(p, unit);
    RANK_OK(hp_recompute_end(p->units[unit]));
}

/* The lists of equal steps are equal from the third on. */
static inline void compare_lists(fsdp_player *p, bool is_like_the_last) {
    const hp_op *ops;
    const hp_kind *kinds;
    uint64_t n;
    uint32_t n_kinds;
    RANK_OK(hp_fsdp_recorded(p->fsdp, &ops, &n, &kinds, &n_kinds));
    const uint64_t list = hpi_checksum(ops, n * sizeof *ops);
    RANK_CHECK(!is_like_the_last || list == p->last_list);
    p->last_list = list;
}

static inline void play_end(fsdp_player *p, const loop_call *call) {
    hp_fsdp_stats stats;
    RANK_OK(hp_fsdp_end(p->fsdp));
    RANK_OK(hp_fsdp_stats_get(p->fsdp, &stats));
    RANK_CHECK(stats.gathered_units == 0);
    if (p->fsdp->pass == HP_SYNC && p->c->way->config.record)
        compare_lists(p, call->is_last);
    if (p->c->way->is_verified)
        check_sound(p, HP_VERIFY_RECORDED);
}

static inline void play_clip(fsdp_player *p, int is_clipped) {
    double norm;
    RANK_OK(hp_clip_grad_norm(p->fsdp, is_clipped ? 0.5 : 1e30, 2.0, &norm));
    note(p, &norm, sizeof norm);
}

static inline void play_call(fsdp_player *p, const loop_call *call) {
    hp_unit *unit = call->unit >= 0 ? p->units[call->unit] : NULL;
    switch (call->what) {
    case LOOP_BEGIN:
        RANK_OK(hp_fsdp_begin(p->fsdp, (hp_pass)call->number));
        break;
    case LOOP_END:
        play_end(p, call);
        break;
    case LOOP_FORWARD:
        play_forward(p, call->unit, call->number);
        break;
    case LOOP_BACKWARD:
        play_backward(p, call->unit, call->number);
        break;
    case LOOP_RECOMPUTE:
        play_recompute(p, call->unit);
        break;
    case LOOP_HOLD:
        RANK_OK(hp_unit_unshard(unit, call->number));
        if (call->number)
            read_unit(p, call->unit);
        break;
    case LOOP_LET_GO:
        if (call->number)
            read_unit(p, call->unit);
        RANK_OK(hp_unit_reshard(unit));
        break;
    case LOOP_SET_PASS:
        RANK_OK(hp_unit_set_pass(unit, call->number));
        break;
    case LOOP_CLIP:
        play_clip(p, call->number);
        break;
    case LOOP_UPDATE:
        RANK_OK(hp_optimizer_step(p->optimizer, 0.05));
        break;
    case LOOP_RESET: /* who is still in the pass when another resets is told so, and reads less */
        RANK_OK(hp_barrier(hp_world_group(p->world)));
        RANK_OK(hp_fsdp_reset(p->fsdp));
        break;
    }
}

/* ---- the end ----------------------------------------------------------------------------- */

/* Where element i of the shard stands in the whole parameter. */
static inline uint64_t place_of(const hpi_layout *l, const hp_shard *shard, uint64_t i) {
    const uint64_t begin = (uint64_t)shard->begin;
    const uint64_t run = ((uint64_t)shard->end - begin) * l->inner;
    if (l->n_shards == 1)
        return i;
    return i / run * (l->rows * l->inner) + begin * l->inner + i % run;
}

/* Put the shard where all ranks see it, or compare what another one has put there. */
static inline void keep_shard(fsdp_player *p, int u, int j, bool is_kept) {
    const loop_param *from = &p->c->model.units[u].params[j];
    const hpi_param *param = hpi_unit_param(p->units[u], j);
    hp_shard shard;
    RANK_OK(hp_param_shard(p->units[u], j, &shard));
    for (int what = 0; what < 2; what++) {
        double *all = p->c->run->values + (what ? p->c->model.n_elements : 0) + from->first;
        const void *values = what ? shard.grad : shard.values;
        for (uint64_t i = 0; values && i < shard.n_elements; i++) {
            const double value = read_value(values, shard.dtype, i);
            double *kept = &all[place_of(&param->layout, &shard, i)];
            RANK_CHECK(is_kept || memcmp(kept, &value, sizeof value) == 0);
            if (is_kept)
                *kept = value;
        }
    }
}

static inline void keep_shards(fsdp_player *p, bool is_kept) {
    for (int u = 0; u < p->c->model.n_units; u++)
        for (int j = 0; j < p->c->model.units[u].n_params; j++) {
            const loop_param *param = &p->c->model.units[u].params[j];
            const bool is_first = p->fsdp->replica_rank == 0 &&
                                  (param->shard_dim != HP_REPLICATED || p->fsdp->shard_rank == 0);
            if (!param->is_ignored && is_first == is_kept)
                keep_shard(p, u, j, is_kept);
        }
}

static inline void fsdp_body(hp_world *world, void *argument) {
    fsdp_player player = {.c = argument, .world = world, .rank = hp_world_rank(world)};
    fsdp_player *p = &player;
    create_player(p);
    for (; p->at < p->c->loop.n_calls; p->at++) {
        p->word = &p->c->run->words[p->rank][p->at];
        play_call(p, &p->c->loop.calls[p->at]);
    }
    keep_shards(p, true);
    RANK_OK(hp_barrier(hp_world_group(world)));
    keep_shards(p, false);
    hp_optimizer_destroy(p->optimizer);
    hp_fsdp_destroy(p->fsdp);
    hp_mesh_destroy(p->mesh);
}

/* ---- a test ------------------------------------------------------------------------------ */

static inline void print_case(const fsdp_case *c) {
    for (int w = 0; w < 2; w++) {
        const fsdp_way *way = &c->ways[w];
        const hp_fsdp_config *f = &way->config;
        print_error("  %dx%d %s %s prefetch %d executor %d dtypes %d %d %d replay %d poison %d "
                    "delay \"%s\"\n",
                    way->n_replicas, c->n_ranks / way->n_replicas, hp_mode_name(f->mode),
                    hp_schedule_name(f->schedule), f->prefetch, (int)f->executor, f->param_dtype,
                    f->reduce_dtype, f->replicate_wire, f->replay_after, f->poison, way->delay);
    }
}

/* The first call in which a rank read something else; -1. */
static inline int first_difference(const fsdp_case *c) {
    for (int i = 0; i < c->loop.n_calls; i++)
        for (int r = 0; r < c->n_ranks; r++)
            if (c->runs[0].words[r][i] != c->runs[1].words[r][i])
                return i;
    return -1;
}

static inline void run_case(fsdp_case *c) {
    const uint64_t n = 2 * c->model.n_elements;
    char text[2048] = "";
    int n_failed = 0, difference = -1;
    for (int w = 0; w < 2 && !n_failed; w++) {
        c->way = &c->ways[w];
        c->run = &c->runs[w];
        assert_non_null(c->run->values = calloc(n + 1, sizeof(double)));
        n_failed = ranks_try(c->n_ranks, RANKS_THREADS, fsdp_body, c, text, sizeof text);
    }
    bool is_same = !n_failed;
    if (is_same) {
        difference = first_difference(c);
        is_same = difference < 0 && memcmp(c->runs[0].values, c->runs[1].values, n * 8) == 0;
    }
    if (!is_same) {
        print_case(c);
        if (difference >= 0)
            print_error("  call %d: %d of unit %d\n", difference,
                        (int)c->loop.calls[difference].what, c->loop.calls[difference].unit);
        fail_msg("HP_TEST_SEED=%llu plays it again: %s", (unsigned long long)c->seed,
                 n_failed ? text : "other bits than in the plainest way");
    }
    free(c->runs[0].values);
    free(c->runs[1].values);
}

/* Seeds from..from+n, or the one that the environment names. */
static inline void run_seeds(uint64_t from, uint64_t n, int most_ranks) {
    const char *named = getenv("HP_TEST_SEED"), *number = getenv("HP_TEST_CASES");
    fsdp_case *c = malloc(sizeof *c);
    assert_non_null(c);
    if (named) {
        from = strtoull(named, NULL, 10);
        n = number ? strtoull(number, NULL, 10) : 1;
    }
    for (uint64_t seed = from; seed < from + n; seed++) {
        draw_case(seed, most_ranks, c);
        run_case(c);
    }
    free(c);
}

#endif

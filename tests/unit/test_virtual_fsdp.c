/* SPDX-License-Identifier: Apache-2.0
 *
 * test_virtual_fsdp.c - an fsdp of ranks that do not exist: how long a step takes in virtual time,
 * and what it refuses.
 *
 * 32 equal units whose compute takes as long as each of their gathers, reductions and all-reduces:
 * then everything can be hidden but the first gather, the last reduction and the last all-reduce.
 * All times here are exact, so they are compared with the bound itself.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/base.h"
#include "coll/coll.h"
#include "fsdp/plan/plan.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>

enum { N_UNITS = 32, N_PARAMS = 4, ROWS = 64, COLUMNS = 128, MS = 1000000 };
enum { UNIT_BYTES = N_PARAMS * ROWS * COLUMNS * 4 };

/* ---- the bench --------------------------------------------------------------------------------
 */

/* Of one unit, in ms; collectives of the whole unit. */
struct times {
    double forward, backward, gather, reduce, replicate;
};

struct model {
    hp_cost costs[HPI_OP_N_KINDS][HPI_N_COMMS];
    uint64_t forward_ns[N_UNITS], backward_ns[N_UNITS];
    const uint64_t *unit_ns[HPI_OP_N_KINDS];
    hp_cost_model costs_model;
    hp_mesh *mesh;
    hp_trace *trace;
    hp_fsdp *fsdp;
    hp_unit *units[N_UNITS];
    hp_optimizer *optimizer;
};

struct measured {
    double forward, backward; /* ms of the last step */
};

/* A unit's collectives take as long together whether there is one or one for each parameter. */
static void set_costs(struct model *m, const struct times *t, int n_shards) {
    const double shard_bytes = (double)UNIT_BYTES / n_shards;
    hp_cost(*costs)[HPI_N_COMMS] = m->costs;
    costs[HPI_KIND_ALL_GATHER][HPI_COMM_UNSHARD].ns_per_byte = t->gather * MS / shard_bytes;
    costs[HPI_OP_BARRIER][HPI_COMM_UNSHARD].fixed_ns = (uint64_t)(t->gather * MS);
    costs[HPI_KIND_REDUCE_SCATTER][HPI_COMM_REDUCE].ns_per_byte = t->reduce * MS / UNIT_BYTES;
    costs[HPI_KIND_ALL_REDUCE][HPI_COMM_REPLICATE].ns_per_byte = t->replicate * MS / shard_bytes;
    for (int i = 0; i < N_UNITS; i++) {
        m->forward_ns[i] = (uint64_t)(t->forward * MS);
        m->backward_ns[i] = (uint64_t)(t->backward * MS);
    }
    m->unit_ns[HPI_OP_FORWARD_END] = m->forward_ns;
    m->unit_ns[HPI_OP_BACKWARD_END] = m->backward_ns;
    m->costs_model = (hp_cost_model)HP_COST_MODEL_INIT;
    m->costs_model.costs = &costs[0][0];
    m->costs_model.n_kinds = HPI_OP_N_KINDS;
    m->costs_model.n_comms = HPI_N_COMMS;
    m->costs_model.unit_ns = m->unit_ns;
    m->costs_model.n_units = N_UNITS;
}

static void add_unit(struct model *m, int i, int64_t rows, int64_t columns) {
    char name[32], names[N_PARAMS][48];
    hp_param params[N_PARAMS];
    snprintf(name, sizeof name, "layer%d", i);
    for (int j = 0; j < N_PARAMS; j++) {
        params[j] = (hp_param)HP_PARAM_INIT;
        snprintf(names[j], sizeof names[j], "%s.%d", name, j);
        params[j].name = names[j];
        params[j].n_dims = 2;
        params[j].shape[0] = rows;
        params[j].shape[1] = columns;
    }
    assert_int_equal(hp_unit_create(m->fsdp, name, params, N_PARAMS, NULL, &m->units[i]), HP_OK);
}

static struct model *create(const int sizes[2], int rank, hp_fsdp_config config,
                            const struct times *t) {
    struct model *m = calloc(1, sizeof *m);
    assert_non_null(m);
    assert_int_equal(hp_trace_create(rank, 8192, &m->trace), HP_OK);
    assert_int_equal(hp_mesh_create_virtual(sizes, 2, rank, &m->mesh), HP_OK);
    set_costs(m, t, sizes[1]);
    config.executor = HP_EXECUTOR_VIRTUAL;
    config.trace = m->trace;
    config.costs = &m->costs_model;
    assert_int_equal(hp_fsdp_create(m->mesh, &config, &m->fsdp), HP_OK);
    for (int i = 0; i < N_UNITS; i++)
        add_unit(m, i, ROWS, COLUMNS);
    assert_int_equal(hp_fsdp_commit(m->fsdp), HP_OK);
    assert_int_equal(hp_optimizer_create(m->fsdp, "adamw", NULL, &m->optimizer), HP_OK);
    return m;
}

static void destroy(struct model *m) {
    hp_optimizer_destroy(m->optimizer);
    hp_fsdp_destroy(m->fsdp);
    hp_mesh_destroy(m->mesh);
    hp_trace_destroy(m->trace);
    free(m);
}

static void pass(struct model *m, hp_pass what) {
    assert_int_equal(hp_fsdp_begin(m->fsdp, what), HP_OK);
    for (int i = 0; i < N_UNITS; i++) {
        assert_int_equal(hp_forward_begin(m->units[i]), HP_OK);
        assert_int_equal(hp_forward_end(m->units[i]), HP_OK);
    }
    for (int i = N_UNITS; i-- > 0;) {
        assert_int_equal(hp_backward_begin(m->units[i]), HP_OK);
        assert_int_equal(hp_backward_end(m->units[i]), HP_OK);
    }
    assert_int_equal(hp_fsdp_end(m->fsdp), HP_OK);
}

/* The step's begin and end, and between them the end of the last forward, from the trace. */
static struct measured look(const struct model *m) {
    uint64_t begin_ns = 0, end_ns = 0, forwarded_ns = 0;
    uint32_t step = 0;
    for (uint64_t i = 0; i < hp_trace_count(m->trace, HP_STREAM_COMPUTE); i++) {
        const hp_span *span = hp_trace_at(m->trace, HP_STREAM_COMPUTE, i);
        if (strcmp(span->name, "forward_end") == 0)
            forwarded_ns = span->end_ns;
        if (strcmp(span->name, "step") != 0)
            continue;
        begin_ns = span->begin_ns;
        end_ns = span->end_ns;
        step = span->step;
    }
    assert_int_equal(step, 2);
    return (struct measured){(double)(forwarded_ns - begin_ns) / MS,
                             (double)(end_ns - forwarded_ns) / MS};
}

static struct measured measure(const int sizes[2], hp_fsdp_config config, const struct times *t) {
    struct model *m = create(sizes, 0, config, t);
    for (int step = 0; step < 3; step++) {
        pass(m, HP_SYNC);
        assert_int_equal(hp_optimizer_step(m->optimizer, 1e-3), HP_OK);
    }
    assert_int_equal(hp_trace_dropped(m->trace), 0);
    const struct measured measured = look(m);
    destroy(m);
    return measured;
}

/* ---- the bound --------------------------------------------------------------------------------
 */

static double max(double a, double b) {
    return a > b ? a : b;
}

/* forward = max(compute, gathers), backward = max(compute, busiest stream), and the first gather,
 * the last reduction, the last all-reduce. The last unit of the forward stays, so backward gathers
 * one less. */
static double bound_of(const struct times *t, const int sizes[2]) {
    const double gather = sizes[1] > 1 ? t->gather : 0, reduce = sizes[1] > 1 ? t->reduce : 0;
    const double replicate = sizes[0] > 1 ? t->replicate : 0;
    const double forward = N_UNITS * max(t->forward, gather);
    const double stream = max(max(gather, reduce), replicate);
    return forward + N_UNITS * max(t->backward, stream) + gather + reduce + replicate;
}

static const int meshes[][2] = {{1, 8}, {2, 4}, {4, 2}, {8, 1}, {1, 1}};
static const hp_mode modes[] = {HP_PER_PARAM, HP_FUSED, HP_FUSED_ZERO_COPY, HP_MAPPED};
enum { N_MESHES = sizeof meshes / sizeof *meshes, N_MODES = sizeof modes / sizeof *modes };

static void check_within(const char *what, const int sizes[2], hp_mode mode, double step,
                         double limit) {
    if (step > limit)
        fail_msg("%s, mode %s, mesh (%d,%d): a step takes %.3f ms, expected at most %.3f", what,
                 hp_mode_name(mode), sizes[0], sizes[1], step, limit);
}

static void everything_that_can_be_is_hidden(void **state) {
    (void)state;
    const struct times equal = {1, 1, 1, 1, 1};
    for (int k = 0; k < N_MESHES * N_MODES; k++) {
        const int *sizes = meshes[k / N_MODES];
        hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
        config.mode = modes[k % N_MODES];
        const struct measured full = measure(sizes, config, &equal);
        config.schedule = HP_SERIAL;
        const struct measured serial = measure(sizes, config, &equal);
        config.schedule = HP_PREFETCH;
        const struct measured prefetch = measure(sizes, config, &equal);
        const double step = full.forward + full.backward;
        check_within("full", sizes, config.mode, step, 1.01 * bound_of(&equal, sizes));
        check_within("full against serial", sizes, config.mode, step,
                     serial.forward + serial.backward);
        check_within("full against prefetch", sizes, config.mode, step,
                     prefetch.forward + prefetch.backward);
        check_within("prefetch against serial", sizes, config.mode,
                     prefetch.forward + prefetch.backward, serial.forward + serial.backward);
    }
}

static uint64_t exposed_ns(const struct model *m) {
    hp_fsdp_stats s;
    assert_int_equal(hp_fsdp_stats_get(m->fsdp, &s), HP_OK);
    return s.exposed_unshard_ns + s.exposed_reduce_ns + s.exposed_replicate_ns;
}

/* Compute stands still for the first gather, the last reduction and the last all-reduce of a step,
 * by the fsdp's own count. */
static void only_the_ends_are_exposed(void **state) {
    (void)state;
    const struct times equal = {1, 1, 1, 1, 1};
    for (int k = 0; k < N_MESHES * N_MODES; k++) {
        const int *sizes = meshes[k / N_MODES];
        const uint64_t n_ends = 2 * (sizes[1] > 1) + (sizes[0] > 1);
        hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
        uint64_t before_ns = 0;
        config.mode = modes[k % N_MODES];
        struct model *m = create(sizes, 0, config, &equal);
        for (int step = 0; step < 3; step++) {
            before_ns = exposed_ns(m);
            pass(m, HP_SYNC);
            assert_int_equal(hp_optimizer_step(m->optimizer, 1e-3), HP_OK);
        }
        assert_int_equal(exposed_ns(m) - before_ns, n_ends * MS);
        destroy(m);
    }
}

/* The bound of a case in which gathers, reductions or all-reduces are longer than compute: the
 * stream that never rests, and what stands at its ends. */
static double tight_bound_of(const struct times *t, hp_mode mode) {
    const double gathers = mode == HP_MAPPED ? t->gather : N_UNITS * t->gather;
    const double later = mode == HP_MAPPED ? 0 : (N_UNITS - 1) * t->gather;
    const double tail = t->reduce + t->replicate;
    const double forward = max(t->gather + N_UNITS * t->forward, gathers + t->forward);
    double backward = N_UNITS * t->backward + tail;
    backward = max(backward, later + t->backward + tail);
    backward = max(backward, t->backward + N_UNITS * t->reduce + t->replicate);
    return forward + max(backward, t->backward + t->reduce + N_UNITS * t->replicate);
}

/* Whatever is the longest: within 1% of the bound, at prefetch 1 and 2. */
static void whatever_is_the_longest(void **state) {
    (void)state;
    const struct times cases[] = {{1, 2, 0.5, 0.9, 0.7}, {0.5, 1, 1, 0.2, 0.1}, {1, 1, 0.3, 2, 0.5},
                                  {1, 1, 0.3, 0.5, 2},   {1, 2, 0, 0, 0},       {0, 0, 1, 1, 1}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        for (int i = 0; i < 2 * N_MODES; i++) {
            hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
            char what[48];
            config.mode = modes[i % N_MODES];
            config.prefetch = 1 + i / N_MODES;
            snprintf(what, sizeof what, "case %zu, prefetch %d", k, config.prefetch);
            const struct measured full = measure(meshes[1], config, &cases[k]);
            check_within(what, meshes[1], config.mode, full.forward + full.backward,
                         1.01 * tight_bound_of(&cases[k], config.mode));
        }
}

/* ---- one rank and all of them -----------------------------------------------------------------
 */

/* The executor of one rank and the simulation of all say the same of what is planned. */
static void the_job_takes_as_long(void **state) {
    (void)state;
    const struct times t = {1, 1.7, 0.8, 1.9, 0.6};
    for (int k = 0; k < N_MODES; k++) {
        hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
        config.mode = modes[k];
        struct model *m = create(meshes[1], 5, config, &t);
        for (int step = 0; step < 3; step++) {
            pass(m, HP_SYNC);
            assert_int_equal(hp_optimizer_step(m->optimizer, 1e-3), HP_OK);
        }
        uint64_t end_ns = 0;
        for (uint64_t i = 0; i < hp_trace_count(m->trace, HP_STREAM_COMPUTE); i++)
            end_ns = hpi_max(end_ns, hp_trace_at(m->trace, HP_STREAM_COMPUTE, i)->end_ns);
        hp_job job;
        uint64_t simulated_ns = 0;
        hp_executor_stats stats[8];
        hp_fsdp_stats executed;
        assert_int_equal(hp_fsdp_job_create(m->fsdp, &job), HP_OK);
        assert_int_equal(job.n_ranks, 8);
        assert_int_equal(hp_simulate(&job, &m->costs_model, NULL, NULL, stats, &simulated_ns),
                         HP_OK);
        assert_int_equal(simulated_ns, end_ns);
        assert_int_equal(hp_fsdp_stats_get(m->fsdp, &executed), HP_OK);
        for (int rank = 0; rank < 8; rank++) {
            const uint64_t *waited = stats[rank].waited_ns;
            assert_int_equal(waited[HP_STREAM_UNSHARD], executed.exposed_unshard_ns);
            assert_int_equal(waited[HP_STREAM_REDUCE], executed.exposed_reduce_ns);
            assert_int_equal(waited[HP_STREAM_REPLICATE], executed.exposed_replicate_ns);
        }
        hp_verdict verdict;
        assert_int_equal(hp_fsdp_verify(m->fsdp, HP_VERIFY_PLAN, &verdict), HP_OK);
        hp_fsdp_job_destroy(&job);
        destroy(m);
    }
}

/* ---- what else it does ------------------------------------------------------------------------
 */

/* 8.6 billion parameters on 1,024 ranks plan in some MB: nothing of them is there. */
static void a_large_model_takes_no_memory(void **state) {
    (void)state;
    enum { MOST_BYTES = 64 << 20 };
    hp_mesh *mesh;
    hp_fsdp *fsdp;
    hp_fsdp_stats stats;
    hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    config.executor = HP_EXECUTOR_VIRTUAL;
    config.param_dtype = HP_BF16;
    const struct mallinfo2 before = mallinfo2();
    assert_int_equal(hp_mesh_create_virtual((int[]){16, 64}, 2, 1023, &mesh), HP_OK);
    assert_int_equal(hp_fsdp_create(mesh, &config, &fsdp), HP_OK);
    struct model m = {.fsdp = fsdp};
    for (int i = 0; i < N_UNITS; i++)
        add_unit(&m, i, 4096, 4 * 4096);
    assert_int_equal(hp_fsdp_commit(fsdp), HP_OK);
    assert_int_equal(hp_fsdp_stats_get(fsdp, &stats), HP_OK);
    assert_true(stats.shard_bytes > (uint64_t)MOST_BYTES);
    for (int pass_kind = HP_SYNC; pass_kind <= HP_DEFER_REPLICATE; pass_kind++) {
        if (pass_kind == HP_EVALUATE)
            continue;
        pass(&m, (hp_pass)pass_kind);
    }
    const struct mallinfo2 after = mallinfo2();
    assert_true(after.uordblks + after.hblkhd < before.uordblks + before.hblkhd + MOST_BYTES);
    hp_fsdp_destroy(fsdp);
    hp_mesh_destroy(mesh);
}

/* A step that is repeated without planning takes as long as the one it repeats, and none takes
 * memory. */
static void replayed_steps_are_the_same(void **state) {
    (void)state;
    const struct times t = {1, 1.7, 0.8, 1.9, 0.6};
    hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    config.record = 1;
    config.replay_after = 3;
    struct model *m = create(meshes[1], 0, config, &t);
    uint64_t lengths[6] = {0}, n_allocations = 0;
    for (int step = 0; step < 6; step++) {
        pass(m, HP_SYNC);
        assert_int_equal(hp_optimizer_step(m->optimizer, 1e-3), HP_OK);
        if (step == 4) /* what is repeated was kept when the fourth began */
            n_allocations = hpi_alloc_count();
    }
    assert_int_equal(hpi_alloc_count(), n_allocations);
    for (uint64_t i = 0; i < hp_trace_count(m->trace, HP_STREAM_COMPUTE); i++) {
        const hp_span *span = hp_trace_at(m->trace, HP_STREAM_COMPUTE, i);
        if (strcmp(span->name, "step") == 0)
            lengths[span->step] = span->end_ns - span->begin_ns;
    }
    assert_true(lengths[2] > 0);
    for (int step = 3; step < 6; step++)
        assert_int_equal(lengths[step], lengths[2]);
    destroy(m);
}

static void check_refused(hp_status status, hp_status expected, const char *text) {
    hp_error error;
    hp_last_error_get(&error);
    if (status != expected || !strstr(error.message, text))
        fail_msg("expected %s and \"%s\", given %s and \"%s\"", hp_status_name(expected), text,
                 hp_status_name(status), error.message);
}

static void values_are_refused(void **state) {
    (void)state;
    const struct times t = {1, 1, 1, 1, 1};
    const hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    struct model *m = create(meshes[1], 3, config, &t);
    double norm;
    uint64_t step;
    hp_shard shard;
    pass(m, HP_SYNC);
    check_refused(hp_clip_grad_norm(m->fsdp, 1, 2, &norm), HP_ERR_UNSUPPORTED, "virtual mesh");
    check_refused(hp_checkpoint_save(m->fsdp, m->optimizer, "/tmp/no", 1), HP_ERR_UNSUPPORTED,
                  "hp_checkpoint_save");
    check_refused(hp_checkpoint_load(m->fsdp, m->optimizer, "/tmp/no", &step), HP_ERR_UNSUPPORTED,
                  "hp_checkpoint_load");
    check_refused(hp_weights_save(m->fsdp, "/tmp/no", NULL), HP_ERR_UNSUPPORTED, "virtual mesh");
    check_refused(hp_weights_load(m->fsdp, "/tmp/no"), HP_ERR_UNSUPPORTED, "virtual mesh");
    assert_int_equal(hp_param_shard(m->units[0], 0, &shard), HP_OK);
    assert_true(shard.n_elements == ROWS * COLUMNS / 4 && shard.begin == 3 * ROWS / 4);
    assert_true(!shard.values && !shard.grad);
    assert_int_equal(hp_fsdp_begin(m->fsdp, HP_SYNC), HP_OK);
    assert_int_equal(hp_backward_begin(m->units[0]), HP_ERR_STATE);
    assert_int_equal(hp_forward_begin(m->units[0]), HP_OK);
    assert_null(hp_param_data(m->units[0], 0));
    check_refused(HP_ERR_UNSUPPORTED, HP_ERR_UNSUPPORTED, "hp_param_data");
    assert_int_equal(hp_forward_begin(m->units[0]), HP_ERR_STATE);
    assert_int_equal(hp_forward_end(m->units[0]), HP_OK);
    assert_int_equal(hp_unit_unshard(m->units[0], 1), HP_OK);
    assert_int_equal(hp_recompute_begin(m->units[0]), HP_OK);
    assert_int_equal(hp_recompute_end(m->units[0]), HP_OK);
    assert_int_equal(hp_unit_reshard(m->units[0]), HP_OK);
    assert_int_equal(hp_backward_begin(m->units[0]), HP_OK);
    assert_null(hp_param_grad(m->units[0], 0));
    check_refused(HP_ERR_UNSUPPORTED, HP_ERR_UNSUPPORTED, "hp_param_grad");
    assert_int_equal(hp_fsdp_reset(m->fsdp), HP_OK); /* in the middle of a pass */
    pass(m, HP_SYNC);
    destroy(m);
}

static void time_and_mesh_belong_together(void **state) {
    (void)state;
    const hp_cost_model costs = HP_COST_MODEL_INIT;
    hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    hp_mesh *mesh, *real;
    hp_world *world;
    hp_fsdp *fsdp;
    assert_int_equal(hp_mesh_create_virtual((int[]){2, 4}, 2, 6, &mesh), HP_OK);
    assert_int_equal(hp_mesh_coordinate(mesh, 0), 1);
    assert_int_equal(hp_mesh_coordinate(mesh, 1), 2);
    assert_null(hp_mesh_world(mesh));
    assert_null(hp_mesh_group(mesh, 0));
    check_refused(hp_fsdp_create(mesh, &config, &fsdp), HP_ERR_ARGUMENT, "HP_EXECUTOR_VIRTUAL");
    config.executor = HP_EXECUTOR_VIRTUAL;
    assert_int_equal(hp_world_create(NULL, &world), HP_OK);
    assert_int_equal(hp_mesh_create(world, (int[]){1}, 1, &real), HP_OK);
    check_refused(hp_fsdp_create(real, &config, &fsdp), HP_ERR_ARGUMENT, "hp_mesh_create_virtual");
    config.executor = HP_EXECUTOR_THREAD;
    config.costs = &costs;
    check_refused(hp_fsdp_create(real, &config, &fsdp), HP_ERR_ARGUMENT, "costs");
    hp_mesh_destroy(real);
    hp_world_destroy(world);
    hp_mesh_destroy(mesh);
    check_refused(hp_mesh_create_virtual((int[]){2, 4}, 2, 8, &mesh), HP_ERR_ARGUMENT, "rank 8");
    check_refused(hp_mesh_create_virtual((int[]){2, 0}, 2, 0, &mesh), HP_ERR_ARGUMENT, "given 0");
    check_refused(hp_mesh_create_virtual((int[]){1 << 20, 1 << 20}, 2, 0, &mesh), HP_ERR_ARGUMENT,
                  "or more");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_that_can_be_is_hidden),
        cmocka_unit_test(only_the_ends_are_exposed),
        cmocka_unit_test(whatever_is_the_longest),
        cmocka_unit_test(the_job_takes_as_long),
        cmocka_unit_test(a_large_model_takes_no_memory),
        cmocka_unit_test(replayed_steps_are_the_same),
        cmocka_unit_test(values_are_refused),
        cmocka_unit_test(time_and_mesh_belong_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

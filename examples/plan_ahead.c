/* SPDX-License-Identifier: Apache-2.0
 *
 * plan_ahead.c - how long a step of a large run would take, on ranks that nobody has yet.
 *
 *     plan_ahead
 *
 * 36 layers of 193 million parameters, bf16 on the wire, on 64 ranks as different meshes. The fsdp
 * is virtual: it plans what every rank would do and takes no memory; hp_simulate runs the plans of
 * all ranks with the times that the machine is expected to take. Its plan is proved sound, too.
 */
#include <hyperparallel/hyperparallel.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 36, PARAMS = 7 };
static const int64_t shapes[PARAMS][2] = {{4096, 4096},  {1024, 4096},  {1024, 4096}, {4096, 4096},
                                          {12288, 4096}, {12288, 4096}, {4096, 12288}};
static const double forward_ms = 12, backward_ms = 24; /* of a layer */
static const double gb_per_s = 25;                     /* of a rank, into and out of the network */

static void ok(hp_status status) {
    if (status >= 0)
        return;
    fprintf(stderr, "plan_ahead: %s\n", hp_last_error());
    exit(1);
}

static void add_layer(hp_fsdp *fsdp, int i) {
    hp_param params[PARAMS];
    char names[PARAMS][32], name[32];
    hp_unit *unit;
    for (int j = 0; j < PARAMS; j++) {
        params[j] = (hp_param)HP_PARAM_INIT;
        snprintf(names[j], sizeof names[j], "layer%d.%d", i, j);
        params[j].name = names[j];
        params[j].n_dims = 2;
        memcpy(params[j].shape, shapes[j], sizeof shapes[j]);
    }
    snprintf(name, sizeof name, "layer%d", i);
    ok(hp_unit_create(fsdp, name, params, PARAMS, NULL, &unit));
}

/* What ring algorithms take: a gather receives n - 1 times what a rank gives, a reduce-scatter
 * sends (n - 1) / n of what it has, an all-reduce twice that. Gathers and reduce-scatters share a
 * link. */
static void set_cost(hp_cost *cost, const char *kind, double n) {
    const double ns_per_byte = 1 / gb_per_s;
    if (strcmp(kind, "forward_end") == 0)
        cost->fixed_ns = (uint64_t)(forward_ms * 1e6);
    else if (strcmp(kind, "backward_end") == 0)
        cost->fixed_ns = (uint64_t)(backward_ms * 1e6);
    else if (strcmp(kind, "all_gather") == 0)
        *cost = (hp_cost){20000, (n - 1) * ns_per_byte, 1};
    else if (strcmp(kind, "reduce_scatter") == 0)
        *cost = (hp_cost){20000, (n - 1) / n * ns_per_byte, 1};
    else if (strcmp(kind, "all_reduce") == 0)
        *cost = (hp_cost){20000, 2 * (n - 1) / n * ns_per_byte, 2};
}

/* The communicators that a collective of the plan uses tell the size of its groups. */
static hp_cost *make_costs(const hp_job *job, int n_replicas, int n_shards) {
    hp_cost *costs = calloc((size_t)job->n_kinds * job->n_comms, sizeof *costs);
    if (!costs)
        exit(1);
    for (uint64_t i = 0; i < job->lists[0].n; i++) {
        const hp_op *op = &job->lists[0].ops[i];
        const int n = op->stream == HP_STREAM_REPLICATE ? n_replicas : n_shards;
        set_cost(&costs[(size_t)op->kind * job->n_comms + op->comm], job->kinds[op->kind].name, n);
    }
    return costs;
}

static void plan(int n_replicas, int n_shards, hp_mode mode) {
    hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    hp_cost_model model = HP_COST_MODEL_INIT;
    hp_mesh *mesh;
    hp_fsdp *fsdp;
    hp_fsdp_stats stats;
    hp_verdict verdict;
    hp_job job;
    uint64_t end_ns;
    config.mode = mode;
    config.param_dtype = HP_BF16;
    config.executor = HP_EXECUTOR_VIRTUAL;
    ok(hp_mesh_create_virtual((int[]){n_replicas, n_shards}, 2, 0, &mesh));
    ok(hp_fsdp_create(mesh, &config, &fsdp));
    for (int i = 0; i < LAYERS; i++)
        add_layer(fsdp, i);
    ok(hp_fsdp_commit(fsdp));
    ok(hp_fsdp_verify(fsdp, HP_VERIFY_PLAN, &verdict));
    ok(hp_fsdp_job_create(fsdp, &job));
    hp_cost *costs = make_costs(&job, n_replicas, n_shards);
    model.costs = costs;
    model.n_kinds = job.n_kinds;
    model.n_comms = job.n_comms;
    ok(hp_simulate(&job, &model, NULL, NULL, NULL, &end_ns));
    ok(hp_fsdp_stats_get(fsdp, &stats));
    const double step_ms = (double)end_ns / 1e6 / job.n_steps;
    const double compute_ms = LAYERS * (forward_ms + backward_ms);
    printf("%2d x %2d  %-9s  a step of %.0f ms, %.0f%% of it compute; %.1f GB of a rank\n",
           n_replicas, n_shards, hp_mode_name(mode), step_ms, 100 * compute_ms / step_ms,
           (double)stats.bound_bytes / 1e9);
    free(costs);
    hp_fsdp_job_destroy(&job);
    hp_fsdp_destroy(fsdp);
    hp_mesh_destroy(mesh);
}

int main(void) {
    for (int n_shards = 64; n_shards >= 8; n_shards /= 2)
        plan(64 / n_shards, n_shards, HP_PER_PARAM);
    plan(8, 8, HP_FUSED);
    return 0;
}

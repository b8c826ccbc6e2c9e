/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/step/model.c - units, and steps through them, as a user writes them.
 *
 * Between begin and end of a unit every parameter is compared and every gradient written anew: what
 * peers read has just been written, and what was gathered is read. A step begins at a barrier.
 */
#include "../../perf/step_values.h"
#include "../fail.h"
#include "step.h"

#include <stdlib.h>
#include <time.h>

struct step_model {
    hp_world *world;
    const step_options *o;
    uint32_t n_elements; /* of a parameter */
    hp_mesh *mesh;
    hp_trace *trace; /* NULL: none */
    hp_fsdp *fsdp;
    hp_unit *units[STEP_MOST_UNITS];
    double calls_ns;
    uint64_t wrong;
};

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* The calls of the library are what is timed. */
static hp_status timed(step_model *m, hp_status (*call)(hp_unit *unit), int unit) {
    const double began_ns = now_ns();
    TRY(call(m->units[unit]));
    m->calls_ns += now_ns() - began_ns;
    return HP_OK;
}

static hp_status timed_begin(step_model *m) {
    const double began_ns = now_ns();
    TRY(hp_fsdp_begin(m->fsdp, HP_SYNC));
    m->calls_ns += now_ns() - began_ns;
    return HP_OK;
}

static hp_status timed_end(step_model *m) {
    const double began_ns = now_ns();
    TRY(hp_fsdp_end(m->fsdp));
    m->calls_ns += now_ns() - began_ns;
    return HP_OK;
}

/* ---- a step ---- */

static hp_status read_params(step_model *m, int unit) {
    for (int j = 0; j < m->o->n_params; j++) {
        const float *data = hp_param_data(m->units[unit], j);
        if (!data)
            return HP_ERR_STATE; /* with the record */
        m->wrong += step_count_params(data, unit, j, 0, m->n_elements);
    }
    return HP_OK;
}

static hp_status write_grads(step_model *m, int unit) {
    for (int j = 0; j < m->o->n_params; j++) {
        float *grad = hp_param_grad(m->units[unit], j);
        if (!grad)
            return HP_ERR_STATE;
        step_write_grads(grad, unit, j, hp_world_rank(m->world), m->n_elements);
    }
    return HP_OK;
}

static hp_status one_step(step_model *m) {
    TRY(hp_barrier(hp_world_group(m->world)));
    TRY(timed_begin(m));
    for (int i = 0; i < m->o->n_units; i++) {
        TRY(timed(m, hp_forward_begin, i));
        TRY(read_params(m, i));
        TRY(timed(m, hp_forward_end, i));
    }
    for (int i = m->o->n_units; i-- > 0;) {
        TRY(timed(m, hp_backward_begin, i));
        TRY(read_params(m, i));
        TRY(write_grads(m, i));
        TRY(timed(m, hp_backward_end, i));
    }
    return timed_end(m);
}

static hp_status check_grads(step_model *m) {
    for (int i = 0; i < m->o->n_units; i++)
        for (int j = 0; j < m->o->n_params; j++) {
            hp_shard shard;
            TRY(hp_param_shard(m->units[i], j, &shard));
            m->wrong += step_count_grads(shard.grad, i, j, hp_world_size(m->world),
                                         (uint32_t)shard.begin, (uint32_t)shard.end);
        }
    return HP_OK;
}

hp_status step_model_turn(step_model *m, double *out_ms, double *out_wrong) {
    m->wrong = 0;
    TRY(one_step(m));
    m->calls_ns = 0;
    for (int k = 0; k < m->o->n_steps; k++)
        TRY(one_step(m));
    TRY(check_grads(m));
    double most[] = {m->calls_ns / 1e6 / m->o->n_steps, (double)m->wrong};
    TRY(hp_all_reduce(hp_world_group(m->world), most, most, 2, HP_FP64, HP_MAX));
    *out_ms = most[0];
    *out_wrong = most[1];
    return HP_OK;
}

/* ---- creation ---- */

static void fill(void *context, uint64_t begin, uint64_t end, void *out_elements) {
    const int place = (int)(uintptr_t)context; /* the numbers themselves */
    for (uint64_t i = begin; i < end; i++)
        ((float *)out_elements)[i - begin] =
            step_param(place / STEP_MOST_PARAMS, place % STEP_MOST_PARAMS, (uint32_t)i);
}

static hp_status make_unit(step_model *m, int i) {
    hp_param params[STEP_MOST_PARAMS];
    char names[STEP_MOST_PARAMS][24], name[16];
    for (int j = 0; j < m->o->n_params; j++) {
        params[j] = (hp_param)HP_PARAM_INIT;
        snprintf(names[j], sizeof names[j], "unit%d.%d", i, j);
        params[j].name = names[j];
        params[j].n_dims = 1;
        params[j].shape[0] = (int64_t)m->n_elements;
        params[j].fill = fill;
        params[j].fill_context = (void *)(uintptr_t)(i * STEP_MOST_PARAMS + j);
    }
    snprintf(name, sizeof name, "unit%d", i);
    return hp_unit_create(m->fsdp, name, params, m->o->n_params, NULL, &m->units[i]);
}

/* Spans of a stream in all turns, and more. */
static hp_status make_trace(step_model *m) {
    const uint64_t in_step = (uint64_t)m->o->n_units * (uint64_t)(32 + 8 * m->o->n_params) + 64;
    const uint64_t n_steps = (uint64_t)m->o->n_pairs * (uint64_t)(m->o->n_steps + 1);
    if (!m->o->trace)
        return HP_OK;
    TRY(hp_trace_create(hp_world_rank(m->world), in_step * n_steps, &m->trace));
    for (unsigned s = 0; s < HP_N_STREAMS; s++)
        TRY(hp_trace_name_stream(m->trace, s, hp_stream_id_name(s)));
    return HP_OK;
}

static hp_status make_fsdp(step_model *m, hp_mode mode) {
    hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    config.mode = mode;
    config.schedule = HP_SERIAL;
    config.executor = m->o->is_threaded ? HP_EXECUTOR_THREAD : HP_EXECUTOR_INLINE;
    config.prefetch = 0; /* serial asks for none: one slot of gathered parameters, as the peer's */
    config.trace = m->trace;
    TRY(hp_fsdp_create(m->mesh, &config, &m->fsdp));
    for (int i = 0; i < m->o->n_units; i++)
        TRY(make_unit(m, i));
    return hp_fsdp_commit(m->fsdp);
}

hp_status step_model_create(hp_world *world, const step_options *o, hp_mode mode,
                            step_model **out_model) {
    step_model *m = calloc(1, sizeof *m);
    hp_status status = agree(world, m ? HP_OK : fail(HP_ERR_MEMORY, "expected memory"));
    if (status < 0 || !m) {
        free(m);
        return status;
    }
    *out_model = m;
    m->world = world;
    m->o = o;
    m->n_elements = (uint32_t)(o->width_bytes / sizeof(float) / (uint64_t)o->n_params);
    TRY(hp_mesh_create(world, (int[]){1, hp_world_size(world)}, 2, &m->mesh));
    TRY(agree(world, make_trace(m)));
    return make_fsdp(m, mode);
}

void step_model_destroy(step_model *m) {
    if (!m)
        return;
    hp_fsdp_destroy(m->fsdp);
    hp_trace_destroy(m->trace);
    hp_mesh_destroy(m->mesh);
    free(m);
}

hp_mode step_model_mode(const step_model *m) {
    return hp_fsdp_mode(m->fsdp);
}

hp_status step_model_write_trace(const step_model *m) {
    char path[4096];
    if (!m->trace)
        return HP_OK;
    snprintf(path, sizeof path, "%s/trace-%d.json", m->o->trace, hp_world_rank(m->world));
    return agree(m->world, hp_trace_write(m->trace, path));
}

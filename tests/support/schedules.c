/* SPDX-License-Identifier: Apache-2.0
 *
 * schedules.c - planned jobs for tests (schedules.h).
 */
#include "support/schedules.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MUST(call)                                                                                 \
    do {                                                                                           \
        if ((call) != HP_OK)                                                                       \
            fail_msg("%s: %s", #call, hp_last_error());                                            \
    } while (0)

static void declare_unit(hp_fsdp *fsdp, int index) {
    char name[24], names[3][32];
    hp_param params[3] = {HP_PARAM_INIT, HP_PARAM_INIT, HP_PARAM_INIT};
    hp_unit *unit;
    snprintf(name, sizeof name, "block %d", index);
    for (int j = 0; j < 3; j++) {
        snprintf(names[j], sizeof names[j], "%d.%d", index, j);
        params[j].name = names[j];
        params[j].n_dims = 2;
        params[j].shape[0] = 8 + j;
        params[j].shape[1] = 16;
    }
    params[1].is_frozen = index == 1;
    if (index == 2)
        params[1].shard_dim = HP_REPLICATED;
    MUST(hp_unit_create(fsdp, name, params, 3, NULL, &unit));
}

/* Every rank's list of every step in memory of its own. */
static void copy_lists(schedule *s) {
    const hp_job *job = &s->planned;
    const size_t n = (size_t)job->n_steps * job->n_ranks;
    s->ops = calloc(n, sizeof *s->ops);
    s->lists = calloc(n, sizeof *s->lists);
    assert_true(s->ops && s->lists);
    for (size_t i = 0; i < n; i++) {
        s->ops[i] = malloc((size_t)job->lists[i].n * sizeof(hp_op) + 1);
        assert_non_null(s->ops[i]);
        memcpy(s->ops[i], job->lists[i].ops, (size_t)job->lists[i].n * sizeof(hp_op));
        s->lists[i] = (hp_list){s->ops[i], job->lists[i].n};
    }
    s->job = *job;
    s->job.lists = s->lists;
}

void schedule_make(const schedule_shape *shape, schedule *out) {
    const int sizes[] = {shape->n_replicas, shape->n_shards};
    hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    memset(out, 0, sizeof *out);
    config.mode = shape->mode;
    config.prefetch = shape->prefetch;
    config.reshard_after_forward = shape->reshard_after_forward;
    config.schedule = shape->schedule;
    config.param_dtype = shape->param_dtype;
    config.executor = HP_EXECUTOR_VIRTUAL;
    MUST(hp_mesh_create_virtual(sizes, 2, 0, &out->mesh));
    MUST(hp_fsdp_create(out->mesh, &config, &out->fsdp));
    for (int i = 0; i < shape->n_units; i++)
        declare_unit(out->fsdp, i);
    MUST(hp_fsdp_commit(out->fsdp));
    MUST(hp_fsdp_job_create(out->fsdp, &out->planned));
    copy_lists(out);
}

void schedule_drop(schedule *s) {
    for (size_t i = 0; i < (size_t)s->planned.n_steps * s->planned.n_ranks; i++)
        free(s->ops[i]);
    free(s->ops);
    free(s->lists);
    hp_fsdp_job_destroy(&s->planned);
    hp_fsdp_destroy(s->fsdp);
    hp_mesh_destroy(s->mesh);
}

const char *schedule_name(const schedule_shape *shape, char *text, size_t size) {
    snprintf(text, size, "%s (%d,%d) prefetch %d reshard %d %s %s", hp_mode_name(shape->mode),
             shape->n_replicas, shape->n_shards, shape->prefetch, shape->reshard_after_forward,
             hp_schedule_name(shape->schedule),
             shape->param_dtype == HP_OWN_DTYPE ? "own"
                                                : hp_dtype_name((hp_dtype)shape->param_dtype));
    return text;
}

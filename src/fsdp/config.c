/* SPDX-License-Identifier: Apache-2.0
 *
 * config.c - the names of modes and schedules, what hp_fsdp_create accepts, and what `auto` means.
 *
 * The rule of `auto` is docs/modes.md's: memory that the shard group shares where there is such,
 * because then nothing is gathered; else few large collectives where parameters are small, because
 * each costs the same wait, and none but the parameters' own where they are large, because then
 * copies cost more than waits.
 */
#include "engine.h"
#include "together/agree.h"

/* ---- names ------------------------------------------------------------------------------- */

static const char *const mode_names[] = {
    [HP_PER_PARAM] = "per-param", [HP_FUSED] = "fused", [HP_FUSED_ZERO_COPY] = "fused-zero-copy",
    [HP_MAPPED] = "mapped",       [HP_AUTO] = "auto",
};
static const char *const schedule_names[] = {
    [HP_OVERLAP] = "full", [HP_SERIAL] = "serial", [HP_PREFETCH] = "prefetch"};

enum {
    N_MODES = sizeof mode_names / sizeof *mode_names,
    N_SCHEDULES = sizeof schedule_names / sizeof *schedule_names
};

/* The number of a name, or -1. */
static int find_name(const char *const *names, int n, const char *name) {
    for (int i = 0; name && i < n; i++)
        if (strcmp(name, names[i]) == 0)
            return i;
    return -1;
}

hp_status hp_mode_parse(const char *name, hp_mode *out_mode) {
    const int mode = find_name(mode_names, N_MODES, name);
    if (mode < 0 || !out_mode)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected a mode (per-param, fused, fused-zero-copy, mapped or auto)%s, "
                        "given \"%s\"",
                        out_mode ? "" : " and out_mode", name ? name : "(null)");
    *out_mode = (hp_mode)mode;
    return HP_OK;
}

const char *hp_mode_name(hp_mode mode) {
    return (unsigned)mode < N_MODES ? mode_names[mode] : "?";
}

hp_status hp_schedule_parse(const char *name, hp_schedule *out_schedule) {
    const bool is_other_name = name && strcmp(name, "overlap") == 0;
    const int schedule = is_other_name ? HP_OVERLAP : find_name(schedule_names, N_SCHEDULES, name);
    if (schedule < 0 || !out_schedule)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected a schedule (serial, prefetch or full)%s, given \"%s\"",
                        out_schedule ? "" : " and out_schedule", name ? name : "(null)");
    *out_schedule = (hp_schedule)schedule;
    return HP_OK;
}

const char *hp_schedule_name(hp_schedule schedule) {
    return (unsigned)schedule < N_SCHEDULES ? schedule_names[schedule] : "?";
}

/* ---- checks ------------------------------------------------------------------------------ */

/* What the precision policy takes. */
static hp_status check_dtype(const char *field, int dtype) {
    if (dtype == HP_OWN_DTYPE || dtype == HP_FP32 || dtype == HP_BF16 || dtype == HP_FP16)
        return HP_OK;
    const bool is_dtype = dtype >= 0 && hp_dtype_size((hp_dtype)dtype);
    return HPI_FAIL(is_dtype ? HP_ERR_UNSUPPORTED : HP_ERR_ARGUMENT,
                    "expected %s HP_FP32, HP_BF16, HP_FP16 or HP_OWN_DTYPE, given %d (%s)", field,
                    dtype, is_dtype ? hp_dtype_name((hp_dtype)dtype) : "no dtype");
}

static hp_status check_precision(const hp_fsdp_config *c) {
    HP_TRY(check_dtype("param_dtype", c->param_dtype));
    HP_TRY(check_dtype("reduce_dtype", c->reduce_dtype));
    return check_dtype("replicate_wire", c->replicate_wire);
}

static hp_status check_choices(const hp_fsdp_config *c) {
    if ((unsigned)c->mode >= N_MODES)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a mode from 0 (%s) to %d (%s), given %d",
                        mode_names[0], N_MODES - 1, mode_names[N_MODES - 1], (int)c->mode);
    if ((unsigned)c->schedule >= N_SCHEDULES)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected schedule HP_OVERLAP, HP_SERIAL or HP_PREFETCH, given %d",
                        (int)c->schedule);
    if ((unsigned)c->executor > HP_EXECUTOR_VIRTUAL)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected executor HP_EXECUTOR_THREAD, HP_EXECUTOR_INLINE or "
                        "HP_EXECUTOR_VIRTUAL, given %d",
                        (int)c->executor);
    if ((unsigned)c->missing_grad > HP_MISSING_ERROR)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected missing_grad HP_MISSING_ZERO or HP_MISSING_ERROR, given %d",
                        (int)c->missing_grad);
    return HP_OK;
}

/* Ranks that do not exist have no time but a virtual one, and real ones no use for it. */
static hp_status check_time(const hp_mesh *mesh, const hp_fsdp_config *c) {
    const bool is_virtual = !hp_mesh_world(mesh);
    if (is_virtual != (c->executor == HP_EXECUTOR_VIRTUAL))
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected HP_EXECUTOR_VIRTUAL with a mesh of hp_mesh_create_virtual, or "
                        "neither, given %s and executor %d",
                        is_virtual ? "such a mesh" : "a mesh of a world", (int)c->executor);
    if (c->costs && !is_virtual)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected costs with HP_EXECUTOR_VIRTUAL alone, given "
                                         "some with a mesh of a world");
    return HP_OK;
}

hp_status hpi_config_check(const hp_mesh *mesh, const hp_fsdp_config *c) {
    if (c->size != sizeof *c)
        return HPI_FAIL(HP_ERR_VERSION,
                        "expected hp_fsdp_config of %zu bytes, given %zu: use HP_FSDP_CONFIG_INIT",
                        sizeof *c, c->size);
    if (hp_mesh_n_dims(mesh) < 1 || hp_mesh_n_dims(mesh) > 2)
        return HPI_FAIL(
            HP_ERR_ARGUMENT,
            "expected a mesh of one dimension (shard) or two (replicate, shard), given %d",
            hp_mesh_n_dims(mesh));
    HP_TRY(check_choices(c));
    HP_TRY(check_time(mesh, c));
    if (c->prefetch < 0 || c->prefetch > HPI_MAX_SLOTS - 2)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected prefetch in [0, %d], given %d",
                        HPI_MAX_SLOTS - 2, c->prefetch);
    if (c->replay_after < 0 || (c->replay_after && !c->record))
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected replay_after of at least 0, with record, given %d and %d",
                        c->replay_after, c->record);
    return check_precision(c);
}

/* ---- auto -------------------------------------------------------------------------------- */

/* A parameter's own collectives take longer than two more copies of it, below this size; measured,
 * see docs/modes.md. */
enum { SMALL_PARAM_BYTES = 32 * 1024 };

hp_mode hpi_mode_choose(int n_shards, bool is_on_node, uint64_t n_params, uint64_t n_bytes) {
    if (n_shards == 1) /* nothing is gathered */
        return HP_PER_PARAM;
    if (is_on_node)
        return HP_MAPPED;
    return n_bytes / hpi_max(n_params, 1) < SMALL_PARAM_BYTES ? HP_FUSED_ZERO_COPY : HP_PER_PARAM;
}

/* Bytes of a parameter that is cut and gathered; 0 of others. A size that does not fit, which
 * commit refuses, counts as large. */
static uint64_t gathered_bytes(const hpi_param *p) {
    uint64_t bytes = hp_dtype_size(p->data_dtype);
    if (!hpi_param_is_owned(p) || p->shard_dim == HP_REPLICATED)
        return 0;
    for (int d = 0; d < p->n_dims; d++)
        if (!hpi_multiply(bytes, (uint64_t)p->shape[d], &bytes))
            return UINT32_MAX;
    return hpi_min(bytes, UINT32_MAX);
}

static void count_params(const hp_fsdp *fsdp, uint64_t *out_n_params, uint64_t *out_n_bytes) {
    *out_n_params = *out_n_bytes = 0;
    for (uint32_t i = 0; i < fsdp->n_units; i++)
        for (int j = 0; j < fsdp->units[i]->n_params; j++) {
            const uint64_t bytes = gathered_bytes(&fsdp->units[i]->params[j]);
            *out_n_params += bytes != 0;
            *out_n_bytes += bytes;
        }
}

static bool is_group_on_node(const hp_fsdp *fsdp) {
    const int n_ranks = fsdp->shard ? hp_group_size(fsdp->shard) : 0; /* none in virtual time */
    for (int i = 0; i < n_ranks; i++)
        if (!hpi_world_is_local(fsdp->world, hp_group_world_rank(fsdp->shard, i)))
            return false;
    return true;
}

hp_status hpi_fsdp_choose_mode(hp_fsdp *fsdp) {
    const bool is_on_node = is_group_on_node(fsdp);
    uint64_t n_params, n_bytes;
    int odd; /* a rank whose group lies otherwise; asked by all, also if their modes differ */
    HP_TRY(hpi_find_odd_rank(fsdp, is_on_node, &odd));
    if (fsdp->config.mode != HP_AUTO)
        return HP_OK;
    count_params(fsdp, &n_params, &n_bytes);
    fsdp->config.mode = hpi_mode_choose(fsdp->n_shards, is_on_node && odd < 0, n_params, n_bytes);
    return HP_OK;
}

hp_mode hp_fsdp_mode(const hp_fsdp *fsdp) {
    return fsdp ? fsdp->config.mode : HP_AUTO;
}

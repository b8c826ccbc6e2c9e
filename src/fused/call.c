/* SPDX-License-Identifier: Apache-2.0
 *
 * call.c - the public doors: arguments are checked, then the call runs here or goes on its stream.
 *
 * What follows from the arguments alone stands in the run; a failure behind the checks fails the
 * group, because peers may wait for this rank.
 */
#include "inside.h"

#include <inttypes.h>

static const struct {
    const char *name;
    hpi_event event;
    hp_status (*run)(hpi_fused_run *run);
} kinds[HPI_N_FUSED] = {
    [HPI_GATHER_MATMUL] = {"all_gather_matmul", HPI_EVENT_all_gather_matmul, hpi_fused_run_gather},
    [HPI_MATMUL_SCATTER] = {"matmul_reduce_scatter", HPI_EVENT_matmul_reduce_scatter,
                            hpi_fused_run_scatter},
    [HPI_GATHER_WEIGHTS] = {"all_gather_weight_grad", HPI_EVENT_all_gather_weight_grad,
                            hpi_fused_run_gather},
};

const char *hpi_fused_name(hpi_fused_what what) {
    return kinds[what].name;
}

/* ---- check ---- */

static hp_status check_group(hp_group *group, const char *name) {
    const hp_world *world = hp_group_world(group);
    HP_TRY(hpi_world_usable(world));
    if (!hpi_group_nodes(group))
        return HP_OK;
    for (int i = 0; i < hp_group_size(group); i++) {
        const int world_rank = hp_group_world_rank(group, i);
        if (!hpi_world_is_local(world, world_rank))
            return HPI_FAIL_RANK(HP_ERR_UNSUPPORTED, world_rank,
                                 "%s: expected every rank of %s on this node (%s), world rank %d "
                                 "is on %s",
                                 name, hpi_group_name(group),
                                 hpi_world_host(world, hp_world_rank(world)), world_rank,
                                 hpi_world_host(world, world_rank));
    }
    return HPI_FAIL(HP_ERR_UNSUPPORTED,
                    "%s: expected a group over shared memory, %s goes over the transport on %s",
                    name, hpi_group_name(group), hpi_world_host(world, hp_world_rank(world)));
}

static hp_status check_dtypes(const hp_fused_args *a, const char *name) {
    const bool is_taken = a->dtype == HP_FP32 || a->dtype == HP_BF16 || a->dtype == HP_FP16;
    if (is_taken && (a->out_dtype == a->dtype || a->out_dtype == HP_FP32))
        return HP_OK;
    return HPI_FAIL(HP_ERR_ARGUMENT,
                    "%s: expected fp32, bf16 or fp16, and c in the same or in fp32; given %s and "
                    "%s",
                    name, hp_dtype_name(a->dtype), hp_dtype_name(a->out_dtype));
}

static hp_status check_rows(const hp_fused_args *a, const char *name, int64_t *out_m) {
    if (!a->rows)
        return HPI_FAIL(HP_ERR_ARGUMENT, "%s: expected the rows of each rank, given NULL", name);
    *out_m = 0;
    for (int i = 0; i < hp_group_size(a->group); i++)
        if (a->rows[i] < 0 || __builtin_add_overflow(*out_m, a->rows[i], out_m))
            return HPI_FAIL(HP_ERR_ARGUMENT,
                            "%s: expected rows of 0 or more, less than 2^63 in all, given %" PRId64
                            " for rank %d",
                            name, a->rows[i], i);
    if (a->n < 0 || a->k < 0)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "%s: expected sizes of 0 or more, given n %" PRId64 " k %" PRId64, name,
                        a->n, a->k);
    return HP_OK;
}

/* One operand, as it lies in memory. */
typedef struct matrix {
    const char *name, *stride_name;
    const void *data;
    int64_t rows, columns, stride;
    hp_dtype dtype;
} matrix;

static hp_status check_matrix(const matrix *x, const char *name) {
    uint64_t elements, bytes;
    if (x->stride < x->columns)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "%s: expected %s of at least a row, %" PRId64 " elements, given %" PRId64,
                        name, x->stride_name, x->columns, x->stride);
    if (x->rows == 0 || x->columns == 0)
        return HP_OK;
    if (!x->data)
        return HPI_FAIL(HP_ERR_ARGUMENT, "%s: expected %s of %" PRId64 " x %" PRId64 ", given NULL",
                        name, x->name, x->rows, x->columns);
    if (!hpi_multiply((uint64_t)x->rows, (uint64_t)x->stride, &elements) ||
        !hpi_multiply(elements, hp_dtype_size(x->dtype), &bytes) || bytes > INT64_MAX)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "%s: expected %s of less than 2^63 bytes, given %" PRId64
                        " rows of %" PRId64,
                        name, x->name, x->rows, x->stride);
    return HP_OK;
}

static hp_status check_matrices(const hpi_fused_run *run) {
    const hp_fused_args *a = run->args;
    const bool is_scatter = run->what == HPI_MATMUL_SCATTER;
    const bool is_weights = run->what == HPI_GATHER_WEIGHTS;
    const int64_t mine = a->rows[run->rank];
    const bool turns_b = !is_weights && a->transpose_b, turns_c = is_weights && a->transpose_c;
    const int64_t b_rows = is_weights ? run->m : a->k, c_rows = is_weights ? a->k : run->m;
    const matrix all[] = {
        {"a", "lda", a->a, is_scatter ? run->m : mine, a->k, a->lda, a->dtype},
        {"b", "ldb", a->b, turns_b ? a->n : b_rows, turns_b ? a->k : a->n, a->ldb, a->dtype},
        {"c", "ldc", a->c,
         turns_c      ? a->n
         : is_scatter ? mine
                      : c_rows,
         turns_c ? a->k : a->n, a->ldc, a->out_dtype},
        {"gathered", "ld_gathered", a->gathered, run->m, a->k, a->ld_gathered, a->dtype}};
    for (int i = 0; i < 3; i++)
        HP_TRY(check_matrix(&all[i], run->name));
    return a->gathered && !is_scatter ? check_matrix(&all[3], run->name) : HP_OK;
}

/* Every argument. Fills what follows from them. Touches nothing. */
static hp_status check(const hp_fused_args *a, hpi_fused_what what, hpi_fused_run *out_run) {
    const char *name = kinds[what].name;
    if (!a || !a->group || !a->matmul)
        return HPI_FAIL(HP_ERR_ARGUMENT, "%s: expected %s, given NULL", name,
                        !a          ? "arguments"
                        : !a->group ? "a group"
                                    : "an engine");
    if (a->size != sizeof *a)
        return HPI_FAIL(HP_ERR_VERSION,
                        "%s: expected hp_fused_args of %zu bytes, given %zu: use "
                        "HP_FUSED_ARGS_INIT",
                        name, sizeof *a, a->size);
    HP_TRY(check_group(a->group, name));
    *out_run = (hpi_fused_run){.group = a->group,
                               .world = hp_group_world(a->group),
                               .args = a,
                               .what = what,
                               .name = name,
                               .rank = hp_group_rank(a->group),
                               .n = hp_group_size(a->group),
                               .element = hp_dtype_size(a->dtype)};
    HP_TRY(check_dtypes(a, name));
    HP_TRY(check_rows(a, name, &out_run->m));
    return check_matrices(out_run);
}

/* ---- running it ---- */

static hp_status run_entered(hpi_fused_run *run) {
    HP_TRY(hpi_fused_state_get(run->group, &run->state));
    run->seq = run->group->n_fused = ++run->state->seq;
    const uint64_t bytes =
        (uint64_t)run->m * run->element *
        (uint64_t)(run->what == HPI_MATMUL_SCATTER ? run->args->n : run->args->k);
    const hpi_probe probe = hpi_probe_begin(kinds[run->what].event, hpi_world_journal(run->world),
                                            hpi_group_name(run->group), run->seq, bytes);
    return hpi_probe_end(&probe, kinds[run->what].run(run));
}

static hp_status run_here(hpi_fused_run *run) {
    HP_TRY(hpi_group_enter(run->group, run->name));
    const hp_status status = run_entered(run);
    if (status < 0)
        hpi_group_fail(run->group);
    hpi_group_leave(run->group);
    return status;
}

/* What a stream is given. */
typedef struct pushed {
    hp_fused_args args;
    hpi_fused_what what;
    int64_t rows[]; /* [size of the group] */
} pushed;

static hp_status run_pushed(void *arguments) {
    pushed *p = arguments;
    hpi_fused_run run;
    p->args.rows = p->rows;
    HP_TRY(check(&p->args, p->what, &run));
    hpi_thread_never_spins();
    return run_here(&run);
}

static hp_status push(const hpi_fused_run *run) {
    const size_t rows_bytes = (size_t)run->n * sizeof *run->args->rows;
    pushed *p = hpi_alloc(1, sizeof *p + rows_bytes);
    if (!p)
        return HP_ERR_MEMORY;
    p->args = *run->args;
    p->what = run->what;
    memcpy(p->rows, run->args->rows, rows_bytes);
    const hp_status status = hpi_stream_push(p->args.stream, run_pushed, p, sizeof *p + rows_bytes);
    hpi_free(p);
    return status;
}

static hp_status start(const hp_fused_args *args, hpi_fused_what what) {
    hpi_fused_run run;
    HP_TRY(check(args, what, &run));
    return args->stream ? push(&run) : run_here(&run);
}

static hp_status call(const hp_fused_args *args, hpi_fused_what what) {
    hpi_journal *journal =
        args && args->group ? hpi_world_journal(hp_group_world(args->group)) : NULL;
    return hpi_tell_failure(journal, "fused", start(args, what));
}

hp_status hp_all_gather_matmul(const hp_fused_args *args) {
    return call(args, HPI_GATHER_MATMUL);
}

hp_status hp_matmul_reduce_scatter(const hp_fused_args *args) {
    return call(args, HPI_MATMUL_SCATTER);
}

hp_status hp_all_gather_weight_grad(const hp_fused_args *args) {
    return call(args, HPI_GATHER_WEIGHTS);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * check.c - arguments of a collective, before anything is touched.
 *
 * Counts come from the caller and are multiplied here once, in 64 bits with overflow looked at;
 * every later product is smaller than one that was found to fit into 2^63 bytes.
 */
#include "inside.h"

static const char *const reduce_names[] = {
    [HP_SUM] = "sum", [HP_AVG] = "avg", [HP_MAX] = "max", [HP_MIN] = "min"};
static const char *const names[] = {[HP_ALL_GATHER] = "all_gather",
                                    [HP_ALL_GATHER_V] = "all_gather_v",
                                    [HP_REDUCE_SCATTER] = "reduce_scatter",
                                    [HP_REDUCE_SCATTER_V] = "reduce_scatter_v",
                                    [HP_ALL_REDUCE] = "all_reduce",
                                    [HP_ALL_TO_ALL] = "all_to_all",
                                    [HP_ALL_TO_ALL_V] = "all_to_all_v",
                                    [HP_BROADCAST] = "broadcast",
                                    [HP_BARRIER] = "barrier",
                                    [HP_SEND] = "send",
                                    [HP_RECV] = "recv"};

const char *hpi_collective_name(hp_collective what) {
    return (unsigned)what <= HPI_LAST_COLLECTIVE ? names[what] : "?";
}

static const char *const wire_names[] = {
    [HP_WIRE_DEFAULT] = "default",   [HP_WIRE_FULL] = "full",
    [HP_WIRE_FP16] = "fp16",         [HP_WIRE_BF16] = "bf16",
    [HP_WIRE_FP8_E4M3] = "fp8_e4m3", [HP_WIRE_FP8_E5M2] = "fp8_e5m2"};

const char *hpi_wire_name(hp_wire wire) {
    return (unsigned)wire <= HPI_LAST_WIRE ? wire_names[wire] : "?";
}

#define N_OF(table) (sizeof(table) / sizeof *(table))
_Static_assert(N_OF(names) == HPI_LAST_COLLECTIVE + 1 && N_OF(wire_names) == HPI_LAST_WIRE + 1 &&
                   N_OF(reduce_names) == HPI_LAST_REDUCE + 1,
               "every value that a call may give has a name");

const char *hpi_reduce_name(hp_reduce op) {
    return (unsigned)op <= HPI_LAST_REDUCE ? reduce_names[op] : "?";
}

static bool reduces(hp_collective what) {
    return what == HP_REDUCE_SCATTER || what == HP_REDUCE_SCATTER_V || what == HP_ALL_REDUCE;
}

static hp_status check_types(const hpi_run *run) {
    const hpi_coll *c = &run->c;
    if (!hp_dtype_size(c->dtype))
        return HPI_FAIL(HP_ERR_ARGUMENT, "%s: expected a dtype, given %d", run->name,
                        (int)c->dtype);
    if (!reduces(run->what))
        return HP_OK;
    if ((unsigned)c->op > HPI_LAST_REDUCE)
        return HPI_FAIL(HP_ERR_ARGUMENT, "%s: expected sum, avg, max or min, given %d", run->name,
                        (int)c->op);
    if (c->op == HP_AVG && !hpi_dtype_is_float(c->dtype))
        return HPI_FAIL(HP_ERR_ARGUMENT, "%s: expected a float dtype for avg, given %s", run->name,
                        hp_dtype_name(c->dtype));
    if ((unsigned)run->wire > HPI_LAST_WIRE)
        return HPI_FAIL(HP_ERR_ARGUMENT, "%s: expected a wire from default to fp8_e5m2, given %d",
                        run->name, (int)run->wire);
    if (c->out_dtype != c->dtype && c->out_dtype != hpi_sum_dtype(c->dtype))
        return HPI_FAIL(HP_ERR_ARGUMENT, "%s: expected a result of %s or %s, given %s", run->name,
                        hp_dtype_name(c->dtype), hp_dtype_name(hpi_sum_dtype(c->dtype)),
                        hp_dtype_name(c->out_dtype));
    return HP_OK;
}

/* in_bytes and out_bytes; false when the largest of them is 2^63 or more. */
static bool fill_sizes(hpi_run *run) {
    const hpi_coll *c = &run->c;
    const uint64_t n = (uint64_t)run->n;
    const bool is_exchange = run->what == HP_ALL_TO_ALL;
    uint64_t part, most; /* elements of one rank's part; bytes of the whole, in the wider type */
    if (!hpi_multiply(c->count, c->blocks, &part) || !hpi_multiply(part, n, &most) ||
        !hpi_multiply(most, hpi_max(run->in_size, run->out_size), &most) || most > INT64_MAX)
        return false;
    run->in_bytes = part * run->in_size * (run->what == HP_REDUCE_SCATTER || is_exchange ? n : 1);
    run->out_bytes = part * run->out_size * (run->what == HP_ALL_GATHER || is_exchange ? n : 1);
    run->own_begin = (uint64_t)run->rank * c->count;
    run->is_empty = run->in_bytes == 0;
    return true;
}

static hp_status check_counts(hpi_run *run) {
    const hpi_coll *c = &run->c;
    const bool has_blocks = run->what == HP_ALL_GATHER || run->what == HP_REDUCE_SCATTER;
    if (c->blocks < 1 || (c->blocks > 1 && !has_blocks))
        return HPI_FAIL(HP_ERR_ARGUMENT, "%s: expected %s, given %llu", run->name,
                        has_blocks ? "1 or more blocks" : "1 block", (unsigned long long)c->blocks);
    if (!fill_sizes(run))
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "%s: expected less than 2^63 bytes in all, given %llu elements of %s in "
                        "%llu blocks on %d ranks",
                        run->name, (unsigned long long)c->count, hp_dtype_name(c->dtype),
                        (unsigned long long)c->blocks, run->n);
    return HP_OK;
}

static hp_status check_buffers(const hpi_run *run) {
    const hpi_coll *c = &run->c;
    if (run->in_bytes && (!c->in || !c->out))
        return HPI_FAIL(HP_ERR_ARGUMENT, "%s: expected %s for %llu elements, given NULL", run->name,
                        run->what == HP_BROADCAST ? "a buffer" : "two buffers",
                        (unsigned long long)c->count);
    return HP_OK;
}

/* Operands may overlap in one way alone: each element's input and output are the same bytes. */
static bool is_in_place(const hpi_run *run) {
    const hpi_coll *c = &run->c;
    const uint64_t in = (uintptr_t)c->in, out = (uintptr_t)c->out;
    const bool is_one_piece = c->blocks == 1 || run->n == 1;
    switch (run->what) {
    case HP_ALL_GATHER:
        return is_one_piece && in == out + run->own_begin * run->in_size;
    case HP_ALL_GATHER_V:
        return in == out + run->own_begin * run->in_size && hpi_parts_own_is_apart(run);
    case HP_REDUCE_SCATTER:
        return is_one_piece && run->in_size == run->out_size &&
               out == in + run->own_begin * run->in_size;
    case HP_REDUCE_SCATTER_V:
        return run->in_size == run->out_size && out == in + run->own_begin * run->in_size &&
               hpi_parts_own_is_apart(run);
    case HP_ALL_TO_ALL_V:
        return false;
    default:
        return in == out && run->in_size == run->out_size;
    }
}

static hp_status check_overlap(hpi_run *run) {
    const uint64_t in = (uintptr_t)run->c.in, out = (uintptr_t)run->c.out;
    run->is_in_place = is_in_place(run);
    if (run->is_in_place || run->in_bytes == 0 || run->out_bytes == 0 ||
        in + run->in_skip_bytes >= out + run->out_bytes ||
        out + run->out_skip_bytes >= in + run->in_bytes)
        return HP_OK;
    return HPI_FAIL(HP_ERR_ARGUMENT,
                    "%s: expected buffers that are apart%s, given an input of %llu bytes that "
                    "begins %llu bytes %s the output of %llu bytes",
                    run->name, run->what == HP_ALL_TO_ALL_V ? "" : " or in place",
                    (unsigned long long)run->in_bytes,
                    (unsigned long long)(in < out ? out - in : in - out),
                    in < out ? "before" : "after", (unsigned long long)run->out_bytes);
}

/* What a collective does not look at must not make its ranks differ. */
static void normalise(hpi_run *run) {
    hpi_coll *c = &run->c;
    if (!reduces(run->what)) {
        c->op = HP_SUM;
        c->out_dtype = c->dtype;
        c->wire = HP_WIRE_FULL;
    }
    run->wire = c->wire == HP_WIRE_DEFAULT ? HP_WIRE_FULL : c->wire;
    if (run->what != HP_ALL_REDUCE || run->wire == HP_WIRE_FULL)
        c->is_wire_result = false;
    if (run->what != HP_BROADCAST)
        c->root = 0;
    if (hpi_is_v(run->what))
        c->blocks = 1;
    if (run->what == HP_ALL_TO_ALL_V)
        c->count = 0;
}

hp_status hpi_coll_check_shape(hpi_run *run) {
    normalise(run);
    HP_TRY(check_types(run));
    run->in_size = hp_dtype_size(run->c.dtype);
    run->out_size = hp_dtype_size(run->c.out_dtype);
    return hpi_is_v(run->what) ? HP_OK : check_counts(run);
}

hp_status hpi_coll_check(hp_group *group, hp_collective what, const hpi_coll *c, hpi_run *out_run) {
    hpi_run *run = out_run; /* filled where it is: it is large, and this is every call's way */
    if (!group)
        return HPI_FAIL(HP_ERR_ARGUMENT, "%s: expected a group, given NULL", names[what]);
    *run = (hpi_run){.group = group,
                     .what = what,
                     .c = *c,
                     .name = names[what],
                     .rank = hp_group_rank(group),
                     .n = hp_group_size(group)};
    HP_TRY(hpi_world_usable(hp_group_world(group)));
    HP_TRY(hpi_coll_check_shape(run));
    if (what == HP_BROADCAST && (c->root < 0 || c->root >= run->n))
        return HPI_FAIL(HP_ERR_ARGUMENT, "%s: expected a root from 0 to %d, given %d", run->name,
                        run->n - 1, c->root);
    HP_TRY(hpi_is_v(what) ? hpi_parts_check(run) : check_buffers(run));
    return check_overlap(run);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * call.c - the public doors: hp_coll_run, and the short forms that fill its struct.
 *
 * A call becomes a hpi_coll without the fields that it does not name, so these may hold anything.
 * Then it runs here, or it is checked and put on its stream: the block that the stream copies holds
 * the hpi_coll and behind it the arrays of counts, so that the caller's may go.
 */
#include "inside.h"

/* In a short form the compiler knows most fields: inlined, the struct need not lie in memory. */
#define INLINE __attribute__((always_inline)) static inline

/* ---- from a call to a hpi_coll ---- */

static bool has_wire(hp_collective what) {
    return what == HP_REDUCE_SCATTER || what == HP_REDUCE_SCATTER_V || what == HP_ALL_REDUCE;
}

INLINE hpi_coll named_fields(const hp_coll_call *call) {
    const hp_collective what = call->what;
    hpi_coll c = {.in = call->in,
                  .out = call->out,
                  .count = call->count,
                  .blocks = 1,
                  .dtype = call->dtype,
                  .out_dtype = call->dtype,
                  .op = call->op,
                  .root = call->rank,
                  .is_wire_result = call->wire_result != 0};
    if (what == HP_BARRIER)
        return (hpi_coll){.blocks = 1, .dtype = HP_UINT8, .out_dtype = HP_UINT8};
    if (what == HP_BROADCAST)
        c.in = call->out;
    if (what == HP_REDUCE_SCATTER_V || what == HP_ALL_TO_ALL_V) {
        c.in_counts = call->in_counts;
        c.in_offsets = call->in_offsets;
    }
    if (what == HP_ALL_GATHER_V || what == HP_ALL_TO_ALL_V) {
        c.out_counts = call->out_counts;
        c.out_offsets = call->out_offsets;
    }
    return c;
}

INLINE hp_status make_coll(const hp_coll_call *call, hpi_coll *out_coll) {
    if ((unsigned)call->what > HPI_LAST_COLLECTIVE)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a collective from %d to %d, given %d",
                        HP_ALL_GATHER, HPI_LAST_COLLECTIVE, (int)call->what);
    const char *name = hpi_collective_name(call->what);
    if (!call->group)
        return HPI_FAIL(HP_ERR_ARGUMENT, "%s: expected a group, given NULL", name);
    *out_coll = named_fields(call);
    if (has_wire(call->what))
        return hpi_wire_choose(call->group, call->dtype, call->wire, name, &out_coll->wire);
    return HP_OK;
}

hp_status hpi_coll_of(const hp_coll_call *call, hpi_coll *out_coll) {
    return make_coll(call, out_coll);
}

/* ---- running it ---- */

static hp_status check(hp_group *group, hp_collective what, const hpi_coll *c, hpi_run *out_run) {
    if (what != HP_SEND && what != HP_RECV)
        return hpi_coll_check(group, what, c, out_run);
    out_run->what = what;
    return hpi_mailbox_check(group, what, c);
}

static bool is_message(hp_collective what) {
    return what == HP_SEND || what == HP_RECV;
}

static hp_status run_here(hp_group *group, hp_collective what, const hpi_coll *c) {
    return is_message(what) ? hpi_mailbox_run(group, what, c)
                            : hpi_coll_run(group, what, c, true, NULL);
}

/* What a stream is given. */
typedef struct pushed {
    hp_group *group;
    hp_collective what;
    hpi_coll c;
    uint64_t
        numbers[]; /* the arrays that c names, in their order there: [size of the group] each */
} pushed;

enum { N_ARRAYS = 4 };
static void list_arrays(hpi_coll *c, const uint64_t **out_arrays[N_ARRAYS]) {
    const uint64_t **arrays[N_ARRAYS] = {&c->in_counts, &c->in_offsets, &c->out_counts,
                                         &c->out_offsets};
    memcpy(out_arrays, arrays, sizeof arrays);
}

static hp_status run_pushed(void *arguments) {
    pushed *p = arguments;
    const uint64_t **arrays[N_ARRAYS], *next = p->numbers;
    list_arrays(&p->c, arrays);
    for (int i = 0; i < N_ARRAYS; i++)
        if (*arrays[i]) { /* the caller's; here is the copy */
            *arrays[i] = next;
            next += hp_group_size(p->group);
        }
    hpi_thread_never_spins();
    return run_here(p->group, p->what, &p->c);
}

static hp_status push(hp_stream *stream, const pushed *p, size_t bytes) {
    hpi_run run;
    HP_TRY(check(p->group, p->what, &p->c, &run));
    return hpi_stream_push(stream, run_pushed, p, bytes);
}

/* The block of a call with arrays does not fit a struct. */
static hp_status push_arrays(hp_stream *stream, const pushed *head) {
    const size_t n = (size_t)hp_group_size(head->group);
    pushed *p = hpi_alloc(1, sizeof *p + N_ARRAYS * n * sizeof *p->numbers);
    if (!p)
        return HP_ERR_MEMORY;
    *p = *head;
    const uint64_t **arrays[N_ARRAYS];
    uint64_t *next = p->numbers;
    list_arrays(&p->c, arrays);
    for (int i = 0; i < N_ARRAYS; i++)
        if (*arrays[i]) {
            memcpy(next, *arrays[i], n * sizeof *next);
            next += n;
        }
    const hp_status status =
        push(stream, p, sizeof *p + (size_t)(next - p->numbers) * sizeof *next);
    hpi_free(p);
    return status;
}

INLINE hp_status start_call(const hp_coll_call *call) {
    hpi_coll c;
    if (call->group && !call->stream && (unsigned)call->what <= HPI_LAST_COLLECTIVE &&
        !is_message(call->what))
        return hpi_coll_run_call(call);
    HP_TRY(make_coll(call, &c));
    if (!call->stream)
        return run_here(call->group, call->what, &c);
    const pushed p = {.group = call->group, .what = call->what, .c = c};
    if (hpi_is_v(call->what))
        return push_arrays(call->stream, &p);
    return push(call->stream, &p, sizeof p);
}

INLINE hp_status run_call(const hp_coll_call *call) {
    hpi_journal *journal = call->group ? hpi_world_journal(hp_group_world(call->group)) : NULL;
    return hpi_tell_failure(journal, "coll", start_call(call));
}

/* ---- the doors ---- */

static hp_status check_size(const hp_coll_call *call) {
    if (!call || call->size != sizeof *call)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected a call whose size is that of hp_coll_call, %zu, given %zu",
                        sizeof *call, call ? call->size : 0);
    return HP_OK;
}

hp_status hp_coll_run(const hp_coll_call *call) {
    HP_TRY(check_size(call));
    return run_call(call);
}

hp_status hpi_coll_check_call(const hp_coll_call *call, hpi_run *out_run) {
    hpi_coll c;
    HP_TRY(check_size(call));
    HP_TRY(make_coll(call, &c));
    return check(call->group, call->what, &c, out_run);
}

hp_status hp_all_gather(hp_group *group, const void *in, void *out, uint64_t count,
                        hp_dtype dtype) {
    const hp_coll_call call = {.what = HP_ALL_GATHER,
                               .group = group,
                               .in = in,
                               .out = out,
                               .count = count,
                               .dtype = dtype};
    return run_call(&call);
}

/* The own count of a form with counts; whoever gave no group or no counts is told so later. */
static uint64_t own_count(const hp_group *group, const uint64_t *counts) {
    return group && counts ? counts[hp_group_rank(group)] : 0;
}

hp_status hp_all_gather_v(hp_group *group, const void *in, void *out, const uint64_t *counts,
                          hp_dtype dtype) {
    const hp_coll_call call = {.what = HP_ALL_GATHER_V,
                               .group = group,
                               .in = in,
                               .out = out,
                               .count = own_count(group, counts),
                               .out_counts = counts,
                               .dtype = dtype};
    return run_call(&call);
}

hp_status hp_reduce_scatter(hp_group *group, const void *in, void *out, uint64_t count,
                            hp_dtype dtype, hp_reduce op) {
    const hp_coll_call call = {.what = HP_REDUCE_SCATTER,
                               .group = group,
                               .in = in,
                               .out = out,
                               .count = count,
                               .dtype = dtype,
                               .op = op};
    return run_call(&call);
}

hp_status hp_reduce_scatter_v(hp_group *group, const void *in, void *out, const uint64_t *counts,
                              hp_dtype dtype, hp_reduce op) {
    const hp_coll_call call = {.what = HP_REDUCE_SCATTER_V,
                               .group = group,
                               .in = in,
                               .out = out,
                               .count = own_count(group, counts),
                               .in_counts = counts,
                               .dtype = dtype,
                               .op = op};
    return run_call(&call);
}

hp_status hp_all_reduce(hp_group *group, const void *in, void *out, uint64_t count, hp_dtype dtype,
                        hp_reduce op) {
    const hp_coll_call call = {.what = HP_ALL_REDUCE,
                               .group = group,
                               .in = in,
                               .out = out,
                               .count = count,
                               .dtype = dtype,
                               .op = op};
    return run_call(&call);
}

hp_status hp_broadcast(hp_group *group, void *data, uint64_t count, hp_dtype dtype, int root) {
    const hp_coll_call call = {.what = HP_BROADCAST,
                               .group = group,
                               .out = data,
                               .count = count,
                               .dtype = dtype,
                               .rank = root};
    return run_call(&call);
}

hp_status hp_all_to_all(hp_group *group, const void *in, void *out, uint64_t count,
                        hp_dtype dtype) {
    const hp_coll_call call = {.what = HP_ALL_TO_ALL,
                               .group = group,
                               .in = in,
                               .out = out,
                               .count = count,
                               .dtype = dtype};
    return run_call(&call);
}

hp_status hp_all_to_all_v(hp_group *group, const void *in, const uint64_t *in_counts, void *out,
                          const uint64_t *out_counts, hp_dtype dtype) {
    const hp_coll_call call = {.what = HP_ALL_TO_ALL_V,
                               .group = group,
                               .in = in,
                               .out = out,
                               .in_counts = in_counts,
                               .out_counts = out_counts,
                               .dtype = dtype};
    return run_call(&call);
}

hp_status hp_send(hp_group *group, const void *data, uint64_t count, hp_dtype dtype, int target) {
    const hp_coll_call call = {.what = HP_SEND,
                               .group = group,
                               .in = data,
                               .count = count,
                               .dtype = dtype,
                               .rank = target};
    return run_call(&call);
}

hp_status hp_recv(hp_group *group, void *data, uint64_t count, hp_dtype dtype, int source) {
    const hp_coll_call call = {.what = HP_RECV,
                               .group = group,
                               .out = data,
                               .count = count,
                               .dtype = dtype,
                               .rank = source};
    return run_call(&call);
}

hp_status hp_barrier(hp_group *group) {
    const hp_coll_call call = {.what = HP_BARRIER, .group = group};
    return run_call(&call);
}

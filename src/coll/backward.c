/* SPDX-License-Identifier: Apache-2.0
 *
 * backward.c - gradients: the backward of a collective is its mirror, which is a collective too.
 *
 *     all_gather           reduce_scatter         all_reduce, SUM        all_reduce
 *     reduce_scatter       all_gather             all_reduce, IDENTITY   nothing moves
 *     all_to_all           itself, parts swapped  broadcast              all_reduce, then zeros
 *     send, recv           recv, send
 *
 * avg divides what there is least of: a gather's own part, in its place, which then is gathered in
 * place. max and min: won/.
 */
#include "won/won.h"

/* What is run for each. */
static const hp_collective mirrors[] = {[HP_ALL_GATHER] = HP_REDUCE_SCATTER,
                                        [HP_ALL_GATHER_V] = HP_REDUCE_SCATTER_V,
                                        [HP_REDUCE_SCATTER] = HP_ALL_GATHER,
                                        [HP_REDUCE_SCATTER_V] = HP_ALL_GATHER_V,
                                        [HP_ALL_REDUCE] = HP_ALL_REDUCE,
                                        [HP_ALL_TO_ALL] = HP_ALL_TO_ALL,
                                        [HP_ALL_TO_ALL_V] = HP_ALL_TO_ALL_V,
                                        [HP_BROADCAST] = HP_ALL_REDUCE,
                                        [HP_BARRIER] = HP_BARRIER,
                                        [HP_SEND] = HP_RECV,
                                        [HP_RECV] = HP_SEND};
_Static_assert(sizeof mirrors / sizeof *mirrors == HPI_LAST_COLLECTIVE + 1, "every one has one");

static hp_coll_call mirror_of(const hp_coll_backward_call *b) {
    hp_coll_call m = *b->forward;
    m.what = mirrors[m.what];
    m.in = b->out_grad;
    m.out = b->in_grad;
    m.in_counts = b->forward->out_counts;
    m.in_offsets = b->forward->out_offsets;
    m.out_counts = b->forward->in_counts;
    m.out_offsets = b->forward->in_offsets;
    m.op = m.op == HP_AVG && b->forward->what == HP_ALL_REDUCE ? HP_AVG : HP_SUM;
    m.stream = b->stream;
    return m;
}

/* ---- what this rank does by itself, before or after ---- */

typedef struct own_step {
    const void *from; /* NULL: zeros */
    void *to;
    uint64_t count;
    hp_dtype dtype;
    int divisor; /* 1: none */
} own_step;

static hp_status run_own_step(void *arguments) {
    const own_step *s = arguments;
    const uint64_t bytes = s->count * hp_dtype_size(s->dtype);
    if (bytes == 0 || !s->to) /* who has elements has a place for them: checked */
        return HP_OK;
    if (!s->from)
        memset(s->to, 0, bytes);
    else if (s->divisor != 1)
        hpi_divide(s->dtype, s->from, s->to, s->count, s->divisor);
    else if (s->from != s->to)
        hpi_copy(s->to, s->from, bytes);
    return HP_OK;
}

static hp_status do_own_step(hp_stream *stream, own_step s) {
    return stream ? hpi_stream_push(stream, run_own_step, &s, sizeof s) : run_own_step(&s);
}

/* ---- the ways ---- */

/* An all_reduce whose gradient is equal on all ranks already. */
static hp_status keep_own(const hp_coll_backward_call *b, const hp_coll_call *m) {
    hpi_run run;
    HP_TRY(hpi_coll_check_call(m, &run));
    HP_TRY(hpi_group_check(m->group));
    return do_own_step(b->stream, (own_step){m->in, m->out, m->count, m->dtype,
                                             b->forward->op == HP_AVG ? run.n : 1});
}

/* Small parts are divided when all have come: that takes less than to check the call twice. */
static hp_status gather_divided(const hp_coll_backward_call *b, hp_coll_call *m) {
    enum { SMALL = 1024 }; /* elements of a part */
    const uint64_t n = m->group ? (uint64_t)hp_group_size(m->group) : 0;
    hpi_run run;
    if (m->what == HP_ALL_GATHER && m->count <= SMALL) {
        HP_TRY(hp_coll_run(m));
        return do_own_step(b->stream, (own_step){m->out, m->out, n * m->count, m->dtype, (int)n});
    }
    HP_TRY(hpi_coll_check_call(m, &run));
    unsigned char *own = m->out;
    if (own)
        own += run.own_begin * run.in_size;
    HP_TRY(do_own_step(b->stream, (own_step){m->in, own, m->count, m->dtype, run.n}));
    m->in = own;
    return hp_coll_run(m);
}

/* What the others had before is not in what came: their gradient is zero. That they get the sum too
 * has every core at work, and takes less time than a sum that the root makes alone. */
static hp_status reduce_to_root(const hp_coll_backward_call *b, hp_coll_call *m) {
    hp_coll_call forward = *b->forward;
    hpi_run run;
    forward.out = b->in_grad;
    HP_TRY(hpi_coll_check_call(&forward, &run)); /* which names a root that is none */
    m->wire_result = 0;
    HP_TRY(hp_coll_run(m));
    if (run.rank == forward.rank)
        return HP_OK;
    return do_own_step(b->stream, (own_step){NULL, b->in_grad, forward.count, forward.dtype, 1});
}

/* ---- the door ---- */

static bool reduces(hp_collective what) {
    return what == HP_ALL_REDUCE || what == HP_REDUCE_SCATTER || what == HP_REDUCE_SCATTER_V;
}

static hp_status start(const hp_coll_backward_call *b) {
    const hp_coll_call *f = b->forward;
    hp_coll_call m = mirror_of(b);
    if (f->what == HP_BROADCAST)
        return reduce_to_root(b, &m);
    if (!reduces(f->what))
        return hp_coll_run(&m);
    if (f->op == HP_MAX || f->op == HP_MIN)
        return hpi_won_start(b, &m);
    if (f->what == HP_ALL_REDUCE)
        return b->mode == HP_BACKWARD_SUM ? hp_coll_run(&m) : keep_own(b, &m);
    return f->op == HP_AVG ? gather_divided(b, &m) : hp_coll_run(&m);
}

/* What no mirror looks at. */
static hp_status check(const hp_coll_backward_call *b) {
    const hp_coll_call *f = b ? b->forward : NULL;
    if (!b || b->size != sizeof *b)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected a call whose size is that of hp_coll_backward_call, %zu, given "
                        "%zu",
                        sizeof *b, b ? b->size : 0);
    if (!f || f->size != sizeof *f)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected a forward call whose size is that of hp_coll_call, %zu, given "
                        "%zu",
                        sizeof *f, f ? f->size : 0);
    if ((unsigned)f->what > HPI_LAST_COLLECTIVE)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a collective from %d to %d, given %d",
                        HP_ALL_GATHER, HPI_LAST_COLLECTIVE, (int)f->what);
    const char *name = hpi_collective_name(f->what);
    if (reduces(f->what) && (unsigned)f->op > HPI_LAST_REDUCE)
        return HPI_FAIL(HP_ERR_ARGUMENT, "%s: expected sum, avg, max or min, given %d", name,
                        (int)f->op);
    if (reduces(f->what) && f->op == HP_AVG && !hpi_dtype_is_float(f->dtype))
        return HPI_FAIL(HP_ERR_ARGUMENT, "%s: expected a float dtype for avg, given %s", name,
                        hp_dtype_name(f->dtype));
    if (f->what == HP_ALL_REDUCE && (unsigned)b->mode > HP_BACKWARD_SUM)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "%s: expected a backward by IDENTITY (0) or SUM (1), given %d", name,
                        (int)b->mode);
    return HP_OK;
}

hp_status hp_coll_backward(const hp_coll_backward_call *call) {
    HP_TRY(check(call));
    hp_group *group = call->forward->group;
    hpi_journal *journal = group ? hpi_world_journal(hp_group_world(group)) : NULL;
    return hpi_tell_failure(journal, "coll", start(call));
}

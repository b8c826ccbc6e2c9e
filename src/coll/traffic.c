/* SPDX-License-Identifier: Apache-2.0
 *
 * traffic.c - the bytes that a collective moved, from the algorithm that ran.
 *
 * A row for each algorithm says what one rank loads and stores, as its code does it, in terms of
 * the operands. tests/unit/test_traffic.c holds algorithms.def to having a row here each.
 */
#include "inside.h"
#include "message/mailbox.h"
#include "staged/wire.h"

/* What the expressions of the rows are made of; bytes, of this rank. */
typedef struct operands {
    uint64_t in, out;
    uint64_t keep;        /* of the output, what is there already: in place, or the root's */
    uint64_t own;         /* of an input that is cut, the part that stays */
    uint64_t copied;      /* of an all-reduce, from the input to the output */
    uint64_t share;       /* of a broadcast, what this rank copies where all take part */
    uint64_t slice, sums; /* of an all-reduce, what this rank sums, of one input; the result */
    uint64_t in_coded, out_coded; /* as they travel in low precision */
    uint64_t slice_coded;
    uint64_t twice; /* loaded once, stored twice */
    uint64_t n;     /* ranks */
} operands;

/* Elements of an operand that is cut into parts of any size. */
static uint64_t sum_of(const uint64_t *counts, int n) {
    uint64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += counts[i];
    return sum;
}

static uint64_t kept(const hpi_run *run, const operands *o) {
    switch (run->what) {
    case HP_BROADCAST:
        return run->rank == run->c.root ? o->out : 0;
    case HP_ALL_GATHER:
    case HP_ALL_GATHER_V:
        return run->is_in_place ? o->in : 0;
    case HP_ALL_TO_ALL:
        return run->is_in_place ? o->own : 0;
    default:
        return 0;
    }
}

static uint64_t own_count(const hpi_run *run) {
    if (run->what == HP_ALL_TO_ALL_V)
        return run->c.in_counts[run->rank];
    const bool is_cut = run->what == HP_ALL_TO_ALL || run->what == HP_REDUCE_SCATTER;
    return is_cut && run->c.blocks == 1 ? run->c.count : 0;
}

/* See placed/broadcast.c. */
static uint64_t share_of(const hpi_run *run) {
    const hpi_piece last = hpi_root_slice(run);
    return run->rank == run->c.root ? (uint64_t)(run->n - 1) * last.bytes : last.begin;
}

static operands operands_of(const hpi_run *run) {
    const hpi_coll *c = &run->c;
    operands o = {.n = (uint64_t)run->n, .own = own_count(run) * run->in_size};
    o.in = c->in_counts ? sum_of(c->in_counts, run->n) * run->in_size : run->in_bytes;
    o.out = c->out_counts ? sum_of(c->out_counts, run->n) * run->out_size : run->out_bytes;
    o.keep = kept(run, &o);
    o.share = run->what == HP_BROADCAST ? share_of(run) : 0;
    return o;
}

/* What this rank sums of a vector of `count` elements. */
static uint64_t slice_of(const hpi_run *run, uint64_t count) {
    uint64_t begin, end;
    hpi_slice(run, count, run->rank, &begin, &end);
    return end - begin;
}

/* The same of a vector that passes in chunks of `step`, each cut by itself. */
static void slices(const hpi_run *run, uint64_t step, operands *o) {
    const uint64_t n_full = run->c.count / step;
    const uint64_t each = slice_of(run, step), last = slice_of(run, run->c.count % step);
    o->slice = (n_full * each + last) * run->in_size;
    o->sums = (n_full * each + last) * run->out_size;
    if (run->wire != HP_WIRE_FULL)
        o->slice_coded = n_full * hpi_wire_bytes(run->wire, each) + hpi_wire_bytes(run->wire, last);
}

static void cut(const hpi_run *run, operands *o) {
    if (run->algorithm->needs == HPI_NEEDS_WIRE)
        slices(run, hpi_wire_step(run), o);
    else if (run->algorithm->needs == HPI_NEEDS_READABLE)
        slices(run, hpi_reduce_direct_step(run), o);
    else if (run->algorithm->run == hpi_reduce_staged)
        slices(run, hpi_reduce_staged_step(run), o);
    else
        slices(run, run->c.count, o);
}

/* In low precision: the parts of a scatter are encoded one by one. */
static void code(const hpi_run *run, operands *o) {
    o->out_coded = hpi_wire_bytes(run->wire, o->out / run->out_size);
    o->in_coded = run->what == HP_ALL_REDUCE ? o->out_coded : 0;
    for (int i = 0; i < run->n && run->what != HP_ALL_REDUCE; i++)
        o->in_coded +=
            hpi_wire_bytes(run->wire, run->c.in_counts ? run->c.in_counts[i] : run->c.count);
}

/* "words" is the same everywhere: the contribution goes into the line, those of the peers come. Of
 * a broadcast the root's alone, and it hears nobody. */
static void of_words(const hpi_run *run, const operands *o, hp_coll_traffic *t) {
    const bool is_rooted = run->what == HP_BROADCAST, is_root = run->rank == run->c.root;
    const uint64_t n_heard = is_rooted ? !is_root : o->n - 1;
    t->read_bytes = (is_rooted && !is_root ? 0 : o->in) + n_heard * HPI_SMALL_BYTES;
    t->written_bytes = HPI_SMALL_BYTES + o->out - o->keep;
}

/* X(COLLECTIVE, name, bytes read, bytes written) */
#define ROWS                                                                                       \
    X(ALL_GATHER, pull, out - keep, out - keep)                                                    \
    X(ALL_GATHER, direct, out - keep, out - keep)                                                  \
    X(ALL_GATHER, one_shot, in + out - keep - twice, in + out - keep)                              \
    X(ALL_GATHER, cells, in + out - keep, in + out - keep)                                         \
    X(ALL_GATHER, staged, in + out - keep, in + out - keep)                                        \
    X(ALL_GATHER_V, pull, out - keep, out - keep)                                                  \
    X(ALL_GATHER_V, direct, out - keep, out - keep)                                                \
    X(ALL_GATHER_V, staged, in + out - keep, in + out - keep)                                      \
    X(REDUCE_SCATTER, pull, n *out, out)                                                           \
    X(REDUCE_SCATTER, direct, (2 * n - 1) * out, n * out)                                          \
    X(REDUCE_SCATTER, one_shot, in - own + n * out, in - own + out)                                \
    X(REDUCE_SCATTER, rounded, n *out, out)                                                        \
    X(REDUCE_SCATTER, wire, in + n * out_coded, in_coded + out)                                    \
    X(REDUCE_SCATTER, cells, in + (n - 1) * out, in)                                               \
    X(REDUCE_SCATTER, staged, in + (n - 1) * out, in)                                              \
    X(REDUCE_SCATTER_V, pull, n *out, out)                                                         \
    X(REDUCE_SCATTER_V, direct, (2 * n - 1) * out, n * out)                                        \
    X(REDUCE_SCATTER_V, rounded, n *out, out)                                                      \
    X(REDUCE_SCATTER_V, wire, in + n * out_coded, in_coded + out)                                  \
    X(REDUCE_SCATTER_V, staged, in + (n - 1) * out, in)                                            \
    X(ALL_REDUCE, one_shot, in + n * out, in + out)                                                \
    X(ALL_REDUCE, copied, copied + n * slice, copied + n * slice)                                  \
    X(ALL_REDUCE, push, n *slice, n *slice)                                                        \
    X(ALL_REDUCE, rounded, n *slice, n *sums)                                                      \
    X(ALL_REDUCE, rounded_copies, copied + n * slice, copied + n * slice)                          \
    X(ALL_REDUCE, direct, (2 * n - 1) * slice + out - sums, (n - 1) * slice + out)                 \
    X(ALL_REDUCE, staged, in + (n - 1) * slice + out - sums, in - slice + out + sums)              \
    X(BROADCAST, push_pull, share, share)                                                          \
    X(BROADCAST, pull, out - keep, out - keep)                                                     \
    X(BROADCAST, direct, share, share)                                                             \
    X(BROADCAST, cells, out, out)                                                                  \
    X(BROADCAST, staged, out, out)                                                                 \
    X(ALL_TO_ALL, pull, out, out)                                                                  \
    X(ALL_TO_ALL, direct, out, out)                                                                \
    X(ALL_TO_ALL, one_shot, in - own + out - keep, in - own + out - keep)                          \
    X(ALL_TO_ALL, cells, in + out - own - keep, in + out - own - keep)                             \
    X(ALL_TO_ALL, staged, in + out - own - keep, in + out - own - keep)                            \
    X(ALL_TO_ALL_V, pull, out, out)                                                                \
    X(ALL_TO_ALL_V, staged, in + out - own, in + out - own)

/* Owners store results straight into every output, or through cells, as they travel or not. */
static void of_all_reduce_wire(const hpi_run *run, const operands *o, hp_coll_traffic *t) {
    const bool is_coded = run->c.is_wire_result;
    t->read_bytes = o->in + o->n * o->slice_coded;
    t->written_bytes = o->in_coded;
    if (run->state->is_last_pushed) {
        t->written_bytes += o->n * o->slice;
    } else {
        t->read_bytes += is_coded ? o->in_coded : o->out;
        t->written_bytes += (is_coded ? o->slice_coded : o->slice) + o->out;
    }
}

static bool of_row(const hpi_algorithm *algorithm, const operands *o, hp_coll_traffic *t) {
    const uint64_t in = o->in, out = o->out, keep = o->keep, own = o->own, slice = o->slice;
    const uint64_t sums = o->sums, copied = o->copied, share = o->share, twice = o->twice;
    const uint64_t in_coded = o->in_coded, out_coded = o->out_coded, n = o->n;
#define X(collective, row, read, written) {HP_##collective, #row, read, written},
    const struct {
        hp_collective what;
        const char *name;
        uint64_t read_bytes, written_bytes;
    } rows[] = {ROWS};
#undef X
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (algorithm->what != rows[i].what || strcmp(algorithm->name, rows[i].name) != 0)
            continue;
        t->read_bytes = rows[i].read_bytes;
        t->written_bytes = rows[i].written_bytes;
        return true;
    }
    return false;
}

bool hpi_traffic_of(const hpi_run *run, hp_coll_traffic *out_traffic) {
    const hpi_algorithm *algorithm = run->algorithm;
    operands o = operands_of(run);
    *out_traffic = (hp_coll_traffic){.algorithm = algorithm->name, .steps = algorithm->steps};
    if (algorithm->needs == HPI_NEEDS_WORDS) {
        of_words(run, &o, out_traffic);
        return true;
    }
    if (run->wire != HP_WIRE_FULL)
        code(run, &o);
    o.copied = run->state->copied_bytes;
    o.twice = run->state->twice_bytes;
    if (run->what == HP_ALL_REDUCE)
        cut(run, &o);
    if (run->what == HP_ALL_REDUCE && algorithm->needs == HPI_NEEDS_WIRE) {
        of_all_reduce_wire(run, &o, out_traffic);
        return true;
    }
    return of_row(algorithm, &o, out_traffic);
}

/* A group of one copies, unless what is there already is what comes out. */
static void of_one(const hpi_run *run, hp_coll_traffic *out_traffic) {
    const operands o = operands_of(run);
    const bool moves = !run->is_in_place || run->wire != HP_WIRE_FULL;
    *out_traffic = (hp_coll_traffic){"", 0, moves ? o.in : 0, moves ? o.out : 0};
}

/* A message is copied into cells and out of them; one that its receiver can read where it lies, by
 * the receiver alone. */
static hp_status of_message(const hp_coll_call *call, hp_coll_traffic *out_traffic) {
    const uint64_t bytes = call->count * hp_dtype_size(call->dtype);
    bool is_read = false;
    if (call->what == HP_SEND && !hpi_group_nodes(call->group))
        HP_TRY(hpi_mailbox_is_read(call->group, call->in, bytes, call->rank, &is_read));
    const uint64_t copied = is_read ? 0 : bytes;
    *out_traffic = (hp_coll_traffic){"mailbox", 1, copied, copied};
    return HP_OK;
}

static bool moves_nothing(const hpi_run *run) {
    const operands o = operands_of(run);
    return o.in == 0 && o.out == 0;
}

/* What ran last, if it can have been this call. */
static hp_status find_last(hpi_run *run) {
    run->state = hpi_group_attached(run->group, HPI_SLOT_COLL);
    const hpi_algorithm *last = run->state ? run->state->last : NULL;
    const bool is_wire = run->wire != HP_WIRE_FULL;
    if (!last || last->what != run->what || hpi_needs_wire(last->needs) != is_wire)
        return HPI_FAIL(HP_ERR_STATE, "expected %s%s to be what ran last on %s, it was %s%s%s",
                        run->name, is_wire ? " over a wire" : "", hpi_group_name(run->group),
                        last ? hpi_collective_name(last->what) : "none that moves bytes",
                        last ? " by " : "", last ? last->name : "");
    run->algorithm = last;
    return HP_OK;
}

static hp_status of_last(hpi_run *run, hp_coll_traffic *out_traffic) {
    HP_TRY(find_last(run));
    if (run->state->across)
        hpi_across_traffic(run, out_traffic);
    else if (!hpi_traffic_of(run, out_traffic))
        return HPI_FAIL(HP_ERR_UNSUPPORTED, "expected a row for %s by %s in traffic.c, found none",
                        run->name, run->algorithm->name);
    return HP_OK;
}

/* One thread at a time is in a group: what ran last is not overwritten meanwhile. */
static hp_status of_collective(hpi_run *run, hp_coll_traffic *out_traffic) {
    HP_TRY(hpi_group_enter(run->group, "traffic_get"));
    const hp_status status = of_last(run, out_traffic);
    hpi_group_leave(run->group);
    return status;
}

hp_status hp_coll_traffic_get(const hp_coll_call *call, hp_coll_traffic *out_traffic) {
    hpi_run run;
    if (!out_traffic)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a place for the traffic, given NULL");
    HP_TRY(hpi_coll_check_call(call, &run));
    if (run.what == HP_SEND || run.what == HP_RECV)
        return of_message(call, out_traffic);
    if (moves_nothing(&run))
        *out_traffic = (hp_coll_traffic){.algorithm = ""};
    else if (run.n == 1)
        of_one(&run, out_traffic);
    else
        return of_collective(&run, out_traffic);
    return HP_OK;
}

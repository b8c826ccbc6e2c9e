/* SPDX-License-Identifier: Apache-2.0
 *
 * traffic.c - the bytes that a collective moved, from the algorithm that ran.
 *
 * A row for each algorithm says what one rank loads and stores, as its code does it, in terms of
 * the operands. tests/unit/test_traffic.c holds algorithms.def to having a row here each.
 */
#include "inside.h"
#include "mailbox.h"
#include "wire.h"

/* What the expressions of the rows are made of; bytes, of this rank. */
typedef struct operands {
    uint64_t in, out;
    uint64_t keep;  /* of the output, what is there already: in place, or the root's */
    uint64_t own;   /* of an all-to-all, the part that stays */
    uint64_t slice; /* of an all-reduce, what this rank sums */
    uint64_t in_coded, out_coded; /* as they travel in low precision */
    uint64_t slice_coded;
    uint64_t n; /* ranks */
} operands;

static uint64_t sum_of(const uint64_t *counts, int n) {
    uint64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += counts[i];
    return sum;
}

/* Elements of the operands. */
static void lengths(const hp_coll_call *c, int n, uint64_t *out_in, uint64_t *out_out) {
    const uint64_t all = (uint64_t)n * c->count;
    *out_in = *out_out = c->count;
    switch (c->what) {
    case HP_ALL_GATHER:
        *out_out = all;
        break;
    case HP_ALL_GATHER_V:
        *out_out = sum_of(c->out_counts, n);
        break;
    case HP_REDUCE_SCATTER:
        *out_in = all;
        break;
    case HP_REDUCE_SCATTER_V:
        *out_in = sum_of(c->in_counts, n);
        break;
    case HP_ALL_TO_ALL:
        *out_in = *out_out = all;
        break;
    case HP_ALL_TO_ALL_V:
        *out_in = sum_of(c->in_counts, n);
        *out_out = sum_of(c->out_counts, n);
        break;
    case HP_BARRIER:
        *out_in = *out_out = 0;
        break;
    default:
        break;
    }
}

static uint64_t kept(const hp_coll_call *c, const operands *o, uint64_t size) {
    const int rank = hp_group_rank(c->group);
    const unsigned char *out = c->out;
    if (c->what == HP_BROADCAST)
        return rank == c->rank ? o->out : 0;
    if (c->what == HP_ALL_GATHER && c->in == out + (uint64_t)rank * o->in)
        return o->in;
    if (c->what == HP_ALL_GATHER_V) {
        const uint64_t first = c->out_offsets ? c->out_offsets[rank] : sum_of(c->out_counts, rank);
        return c->in == out + first * size ? o->in : 0;
    }
    if (c->what == HP_ALL_TO_ALL && c->in == out)
        return o->own;
    return 0;
}

static uint64_t own_count(const hp_coll_call *c) {
    if (c->what == HP_ALL_TO_ALL_V)
        return c->in_counts[hp_group_rank(c->group)];
    return c->what == HP_ALL_TO_ALL ? c->count : 0;
}

/* In low precision slices are whole blocks. */
static void code(const hp_coll_call *c, hp_wire wire, uint64_t size, operands *o) {
    const uint64_t share = hpi_align_up(hpi_ceil_div(c->count, o->n), HPI_WIRE_BLOCK);
    const uint64_t begin = hpi_min((uint64_t)hp_group_rank(c->group) * share, c->count);
    const uint64_t length = hpi_min(share, c->count - begin);
    o->in_coded = hpi_wire_bytes(wire, o->in / size);
    o->out_coded = hpi_wire_bytes(wire, o->out / size);
    o->slice = length * size;
    o->slice_coded = hpi_wire_bytes(wire, length);
}

static operands operands_of(const hp_coll_call *c) {
    const uint64_t size = hp_dtype_size(c->dtype);
    const int n = hp_group_size(c->group);
    const hpi_run run = {.n = n, .in_size = size};
    uint64_t begin, end;
    operands o = {.n = (uint64_t)n};
    lengths(c, n, &o.in, &o.out);
    o.in *= size;
    o.out *= size;
    o.own = own_count(c) * size;
    o.keep = kept(c, &o, size);
    hpi_slice(&run, c->count, hp_group_rank(c->group), &begin, &end);
    o.slice = (end - begin) * size;
    return o;
}

/* "words" is the same everywhere: the contribution goes into the line, those of the peers come. */
static void of_words(const operands *o, hp_coll_traffic *t) {
    t->read_bytes = o->in + (o->n - 1) * HPI_SMALL_BYTES;
    t->written_bytes = HPI_SMALL_BYTES + o->out - o->keep;
}

/* X(COLLECTIVE, name, bytes read, bytes written) */
#define ROWS                                                                                       \
    X(ALL_GATHER, pull, out - keep, out - keep)                                                    \
    X(ALL_GATHER, staged, in + out - keep, in + out - keep)                                        \
    X(ALL_GATHER_V, pull, out - keep, out - keep)                                                  \
    X(ALL_GATHER_V, staged, in + out - keep, in + out - keep)                                      \
    X(REDUCE_SCATTER, pull, n *out, out)                                                           \
    X(REDUCE_SCATTER, wire, in + n * out_coded, in_coded + out)                                    \
    X(REDUCE_SCATTER, staged, in + n * out, in + out)                                              \
    X(REDUCE_SCATTER_V, pull, n *out, out)                                                         \
    X(REDUCE_SCATTER_V, wire, in + n * out_coded, in_coded + out)                                  \
    X(REDUCE_SCATTER_V, staged, in + n * out, in + out)                                            \
    X(ALL_REDUCE, push, n *slice, n *slice)                                                        \
    X(ALL_REDUCE, staged, in + n * slice + out, in + slice + out)                                  \
    X(BROADCAST, pull, out - keep, out - keep)                                                     \
    X(BROADCAST, staged, out, out)                                                                 \
    X(ALL_TO_ALL, pull, out, out)                                                                  \
    X(ALL_TO_ALL, staged, in + out - own - keep, in + out - own - keep)                            \
    X(ALL_TO_ALL_V, pull, out, out)                                                                \
    X(ALL_TO_ALL_V, staged, in + out - own, in + out - own)

/* Owners store results straight into every output, or through cells, as they travel or not. */
static void of_all_reduce_wire(const operands *o, const hp_coll_call *call, hp_coll_traffic *t) {
    const hpi_place place = hpi_symm_place(hp_group_world(call->group), call->out, o->out);
    t->read_bytes = o->in + o->n * o->slice_coded;
    t->written_bytes = o->in_coded;
    if (place.key && !call->wire_result) {
        t->written_bytes += o->n * o->slice;
    } else {
        t->read_bytes += call->wire_result ? o->in_coded : o->out;
        t->written_bytes += (call->wire_result ? o->slice_coded : o->slice) + o->out;
    }
}

static bool of_row(const hpi_algorithm *algorithm, const operands *o, hp_coll_traffic *t) {
    const uint64_t in = o->in, out = o->out, keep = o->keep, own = o->own, slice = o->slice;
    const uint64_t in_coded = o->in_coded, out_coded = o->out_coded, n = o->n;
#define X(collective, row, read, written)                                                          \
    if (algorithm->what == HP_##collective && strcmp(algorithm->name, #row) == 0) {                \
        t->read_bytes = (read);                                                                    \
        t->written_bytes = (written);                                                              \
        return true;                                                                               \
    }
    ROWS
#undef X
        return false;
}

bool hpi_traffic_of(const hpi_algorithm *algorithm, const hp_coll_call *call, hp_wire wire,
                    hp_coll_traffic *out_traffic) {
    operands o = operands_of(call);
    *out_traffic = (hp_coll_traffic){.algorithm = algorithm->name, .steps = algorithm->steps};
    if (algorithm->needs == HPI_NEEDS_WORDS) {
        of_words(&o, out_traffic);
        return true;
    }
    if (algorithm->needs == HPI_NEEDS_WIRE)
        code(call, wire, hp_dtype_size(call->dtype), &o);
    if (algorithm->needs == HPI_NEEDS_WIRE && call->what == HP_ALL_REDUCE) {
        of_all_reduce_wire(&o, call, out_traffic);
        return true;
    }
    return of_row(algorithm, &o, out_traffic);
}

/* A group of one copies, unless in place. */
static void of_one(const hp_coll_call *call, hp_coll_traffic *out_traffic) {
    const operands o = operands_of(call);
    const bool moves = call->in != call->out && call->what != HP_BROADCAST;
    *out_traffic = (hp_coll_traffic){"", 0, moves ? o.in : 0, moves ? o.out : 0};
}

/* A message is copied into cells and out of them; one that lies where the receiver can read it, by
 * the receiver alone. */
static void of_message(const hp_coll_call *call, hp_coll_traffic *out_traffic) {
    const uint64_t bytes = call->count * hp_dtype_size(call->dtype);
    hp_world *world = hp_group_world(call->group);
    const int peer = hp_group_world_rank(call->group, call->rank);
    bool is_placed = false;
    if (call->what == HP_SEND && bytes > HPI_CELL_BYTES) {
        const hpi_place place = hpi_symm_place(world, call->in, bytes);
        is_placed = place.key && hpi_symm_at(world, place, peer);
    }
    const uint64_t copied = is_placed ? 0 : bytes;
    *out_traffic = (hp_coll_traffic){"mailbox", 1, copied, copied};
}

/* What ran last, if it can have been this call. */
static hp_status last_of(const hp_coll_call *call, const hpi_algorithm **out_last) {
    const hpi_coll_state *s = hpi_group_attached(call->group, HPI_SLOT_COLL);
    const hpi_algorithm *last = s ? s->last : NULL;
    if (!last || last->what != call->what)
        return HPI_FAIL(HP_ERR_STATE, "expected %s to be what ran last on %s, it was %s",
                        hpi_collective_name(call->what), hpi_group_name(call->group),
                        last ? hpi_collective_name(last->what) : "none that moves bytes");
    *out_last = last;
    return HP_OK;
}

static hp_status of_collective(const hp_coll_call *call, hp_coll_traffic *out_traffic) {
    const hpi_algorithm *last;
    hp_wire wire = HP_WIRE_FULL;
    HP_TRY(last_of(call, &last));
    if (last->needs == HPI_NEEDS_WIRE)
        HP_TRY(hpi_wire_choose(call->group, call->dtype, call->wire, __func__, &wire));
    if (!hpi_traffic_of(last, call, wire, out_traffic))
        return HPI_FAIL(HP_ERR_UNSUPPORTED, "expected a row for %s by %s in traffic.c, found none",
                        hpi_collective_name(call->what), last->name);
    return HP_OK;
}

hp_status hp_coll_traffic_get(const hp_coll_call *call, hp_coll_traffic *out_traffic) {
    if (!call || call->size != sizeof *call || !call->group || !out_traffic)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected a call of %zu bytes with a group, and a place for its traffic",
                        sizeof *call);
    if (call->what == HP_SEND || call->what == HP_RECV)
        of_message(call, out_traffic);
    else if (hp_group_size(call->group) == 1)
        of_one(call, out_traffic);
    else if (call->what == HP_BARRIER)
        *out_traffic = (hp_coll_traffic){.algorithm = ""};
    else
        return of_collective(call, out_traffic);
    return HP_OK;
}

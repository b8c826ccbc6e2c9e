/* SPDX-License-Identifier: Apache-2.0
 *
 * access.c - put, get, signal, wait: one rank reaching into another's block.
 *
 * Every call finds the block by the handle's key, checks the range, and only then touches memory.
 * There is one path: the short forms fill a hp_symm_call. On a stream the checks are made twice, at
 * once for the caller and again when its turn comes, since the memory may have been freed
 * meanwhile. A put is a plain copy; the signal after it releases the copy to whoever acquires the
 * word in hp_symm_wait, and is sequentially consistent with the look at the sleepers' count after.
 */
#include "../stream/stream.h"
#include "state.h"

#include <stdio.h>

/* A short form is the call struct with most fields known: inlined, they never reach memory. */
#define INLINED __attribute__((always_inline))

/* A range in somebody's block, as the caller names it. */
typedef struct target {
    hp_symm memory;
    uint64_t offset, bytes;
    int rank;         /* in `group` */
    hp_group *group;  /* NULL: the block's own */
    bool is_own;      /* this rank's block; rank and group say nothing */
    const char *role; /* behind "memory" in messages: a call may reach for two */
} target;

/* Where that is. */
typedef struct spot {
    unsigned char *pointer;
    int world_rank;
    hp_group *group; /* of the block */
} spot;

INLINED static inline hp_status check_range(const hpi_block *b, const target *t) {
    const uint64_t bytes = HPI_READ(b->bytes);
    if (t->offset > bytes || t->bytes > bytes - t->offset)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected a range inside the %llu bytes of the memory%s, given %llu bytes "
                        "at offset %llu",
                        (unsigned long long)bytes, t->role, (unsigned long long)t->bytes,
                        (unsigned long long)t->offset);
    return HP_OK;
}

/* In the world; -1: the block has no such rank. */
static int member(const hpi_block *b, int rank) {
    return (unsigned)rank < HPI_READ(b->n_members) ? HPI_READ(b->members[rank]) : -1;
}

/* One that took no part in the allocation, or whose memory is that of another node. */
static hp_status tell_unreachable(const hp_world *world, int world_rank) {
    if (hpi_world_is_local(world, world_rank))
        return HPI_FAIL_RANK(HP_ERR_ARGUMENT, world_rank,
                             "expected a rank that the memory was allocated over, world rank %d "
                             "took no part",
                             world_rank);
    return HPI_FAIL_RANK(HP_ERR_UNSUPPORTED, world_rank,
                         "expected a rank of this node (%s), world rank %d is on %s: collectives "
                         "and messages go there, one-sided calls do not",
                         hpi_world_host(world, hp_world_rank(world)), world_rank,
                         hpi_world_host(world, world_rank));
}

/* The rank in the world that the target means. */
INLINED static inline hp_status find_rank(const hpi_block *b, const target *t,
                                          int *out_world_rank) {
    if (t->is_own) {
        *out_world_rank = hp_world_rank(t->memory.world);
        return HP_OK;
    }
    if (t->group && hp_group_world(t->group) != t->memory.world)
        return HPI_FAIL(HP_ERR_HANDLE, "expected memory of the world of %s, given another world's",
                        hpi_group_name(t->group));
    *out_world_rank = t->group ? hp_group_world_rank(t->group, t->rank) : member(b, t->rank);
    if (*out_world_rank < 0)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a rank from 0 to %d, given %d",
                        (t->group ? hp_group_size(t->group) : (int)HPI_READ(b->n_members)) - 1,
                        t->rank);
    if (!HPI_READ(b->at[*out_world_rank]))
        return tell_unreachable(t->memory.world, *out_world_rank);
    return HP_OK;
}

INLINED static inline hp_status reach_block(const hpi_block *b, const target *t, spot *out_spot) {
    int world_rank = -1;
    if (!b)
        return HPI_FAIL(HP_ERR_HANDLE,
                        "expected live memory%s, id %llx is freed or not this rank's", t->role,
                        (unsigned long long)t->memory.id);
    HP_TRY(find_rank(b, t, &world_rank));
    HP_TRY(check_range(b, t));
    *out_spot = (spot){HPI_READ(b->at[world_rank]) + t->offset, world_rank, HPI_READ(b->group)};
    return HP_OK;
}

/* The table that the target's handle is looked up in. */
INLINED static inline hp_status find_table(const target *t, hpi_table **out_table) {
    hp_world *world = t->memory.world;
    if (!world)
        return HPI_FAIL(HP_ERR_HANDLE, "expected live memory%s, given the all-zero handle",
                        t->role);
    HP_TRY(hpi_world_usable(world));
    hpi_symm_state *s = hpi_symm_state_find(world);
    if (!s)
        return HPI_FAIL(HP_ERR_HANDLE, "expected live memory%s, this world has none", t->role);
    *out_table = &s->table;
    return HP_OK;
}

/* From a handle to an address; nothing is touched. */
INLINED static inline hp_status reach_in(const hpi_table *table, const target *t, spot *out_spot) {
    hpi_look look;
    hp_status status;
    do {
        look = hpi_table_look(table);
        status = reach_block(hpi_look_by_key(look, t->memory.id), t, out_spot);
    } while (!hpi_look_holds(look));
    return status;
}

INLINED static inline hp_status reach(const target *t, spot *out_spot) {
    hpi_table *table;
    HP_TRY(find_table(t, &table));
    return reach_in(table, t, out_spot);
}

/* Two at once, which lie in one world as a rule. */
INLINED static inline hp_status reach_two(const target *a, spot *out_a, const target *b,
                                          spot *out_b) {
    hpi_table *table;
    HP_TRY(find_table(a, &table));
    HP_TRY(reach_in(table, a, out_a));
    if (b->memory.world != a->memory.world)
        HP_TRY(find_table(b, &table));
    return reach_in(table, b, out_b);
}

static hp_status check_word(const target *t) {
    if (t->offset % sizeof(uint64_t) != 0)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected the offset of a signal to be a multiple of 8, "
                        "given %llu",
                        (unsigned long long)t->offset);
    return HP_OK;
}

static _Atomic uint64_t *word_at(const spot *place) {
    return (_Atomic uint64_t *)(void *)place->pointer;
}

/* A store that is sequentially consistent waits, on x86, until the line of the put before it has
 * come, and only then asks for its own; a release and a fence ask for both at once. */
static void store_word(_Atomic uint64_t *word, uint64_t value) {
#if defined(__SANITIZE_THREAD__) /* knows no fences */
    atomic_store_explicit(word, value, memory_order_seq_cst);
#else
    atomic_store_explicit(word, value, memory_order_release); /* acquired by hp_symm_wait */
    atomic_thread_fence(memory_order_seq_cst);                /* before the sleepers are looked at */
#endif
}

static void raise_word(hp_world *world, const spot *place, hp_signal_op op, uint64_t value) {
    if (op == HP_SIGNAL_SET)
        store_word(word_at(place), value);
    else
        atomic_fetch_add_explicit(word_at(place), value, memory_order_seq_cst);
    hpi_world_wake(world, place->world_rank);
}

static bool has_data(hp_symm_what what) {
    return what == HP_SYMM_PUT || what == HP_SYMM_GET || what == HP_SYMM_PUT_SIGNAL;
}

/* Where a call reaches. */
typedef struct places {
    spot data, word;
} places;

INLINED static inline hp_status check_values(const hp_symm_call *c) {
    if ((unsigned)c->what > HP_SYMM_WAIT)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected HP_SYMM_PUT to HP_SYMM_WAIT, given %d",
                        (int)c->what);
    if (has_data(c->what) && c->bytes && !(c->what == HP_SYMM_GET ? c->target : c->source))
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a %s, given NULL",
                        c->what == HP_SYMM_GET ? "target" : "source");
    if ((c->what == HP_SYMM_SIGNAL || c->what == HP_SYMM_PUT_SIGNAL) && c->op != HP_SIGNAL_SET &&
        c->op != HP_SIGNAL_ADD)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected HP_SIGNAL_SET or HP_SIGNAL_ADD, given %d",
                        (int)c->op);
    if (c->what == HP_SYMM_WAIT && (unsigned)c->compare > HP_LE)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected HP_EQ to HP_LE, given %d", (int)c->compare);
    return HP_OK;
}

/* Check everything and find the places; nothing is touched. */
INLINED static inline hp_status resolve(const hp_symm_call *c, places *out_places) {
    const target data = {c->memory, c->offset, c->bytes, c->rank, c->group, false, ""};
    const target word = {c->signal, c->signal_offset,        sizeof(uint64_t), c->rank,
                         c->group,  c->what == HP_SYMM_WAIT, " for the signal"};
    HP_TRY(check_values(c));
    if (c->what == HP_SYMM_PUT || c->what == HP_SYMM_GET)
        return reach(&data, &out_places->data);
    HP_TRY(check_word(&word));
    return has_data(c->what) ? reach_two(&word, &out_places->word, &data, &out_places->data)
                             : reach(&word, &out_places->word);
}

/* The record names the call that the caller knows, whichever helper noticed. */
static __attribute__((noinline)) hp_status name_call(const char *name, hp_status status) {
    hp_error e;
    hp_last_error_get(&e);
    snprintf(e.call, sizeof e.call, "%s", name);
    (void)hpi_error_set(&e);
    return status;
}

static hp_status refuse(const hp_symm_call *c, hp_status status) {
    static const char *const names[] = {"hp_symm_put", "hp_symm_get", "hp_symm_signal",
                                        "hp_symm_put_signal", "hp_symm_wait"};
    return name_call((unsigned)c->what > HP_SYMM_WAIT ? "hp_symm_run" : names[c->what], status);
}

static hp_status wait_word(const hp_symm_call *c, const spot *word) {
    const hpi_reason reason = {.operation = "symm_wait",
                               .group = word->group,
                               .rank = -1,
                               .seq = c->value,
                               .timeout_ms = c->timeout_ms};
    return hpi_world_wait(c->signal.world, word_at(word), c->compare, c->value, &reason);
}

INLINED static inline hp_status perform(const hp_symm_call *c, const places *p) {
    if (c->what == HP_SYMM_WAIT)
        return wait_word(c, &p->word);
    if (c->what == HP_SYMM_GET && c->bytes)
        memmove(c->target, p->data.pointer, c->bytes);
    if ((c->what == HP_SYMM_PUT || c->what == HP_SYMM_PUT_SIGNAL) && c->bytes)
        memmove(p->data.pointer, c->source, c->bytes);
    if (c->what == HP_SYMM_SIGNAL || c->what == HP_SYMM_PUT_SIGNAL)
        raise_word(c->signal.world, &p->word, c->op, c->value);
    return HP_OK;
}

INLINED static inline hp_status run_now(const hp_symm_call *c) {
    places p = {0};
    const hp_status status = resolve(c, &p);
    return status < 0 ? refuse(c, status) : perform(c, &p);
}

static hpi_journal *journal_of(const hp_symm_call *c) {
    return hpi_world_journal(has_data(c->what) ? c->memory.world : c->signal.world);
}

/* Where `what` is known one nop is left of each probe. The group's name is for who is told. */
INLINED static inline hp_status run_told(const hp_symm_call *c) {
    static const hpi_event events[] = {HPI_EVENT_put, HPI_EVENT_get, HPI_EVENT_signal,
                                       HPI_EVENT_put_signal, HPI_EVENT_symm_wait};
    const bool is_wait = c->what == HP_SYMM_WAIT; /* and names no group: there may be anything */
    hpi_probe probe = hpi_probe_begin(events[c->what], journal_of(c), NULL, is_wait ? c->value : 0,
                                      has_data(c->what) ? c->bytes : 0);
    const hp_status status = run_now(c);
    if (__builtin_expect(probe.begin_ns || status < 0, 0) && !is_wait && c->group)
        probe.group = hpi_group_name(c->group);
    return hpi_probe_end(&probe, status);
}

INLINED static inline hp_status run_as(const hp_symm_call *c, hp_symm_what what) {
    hp_symm_call known = *c; /* no copy is made: but for `what` the caller's fields are read */
    known.what = what;
    return run_told(&known);
}

/* The call is checked: it is one of these. */
static hp_status run_any(const hp_symm_call *c) {
    switch (c->what) {
    case HP_SYMM_PUT:
        return run_as(c, HP_SYMM_PUT);
    case HP_SYMM_GET:
        return run_as(c, HP_SYMM_GET);
    case HP_SYMM_SIGNAL:
        return run_as(c, HP_SYMM_SIGNAL);
    case HP_SYMM_PUT_SIGNAL:
        return run_as(c, HP_SYMM_PUT_SIGNAL);
    default:
        return run_as(c, HP_SYMM_WAIT);
    }
}

static hp_status run_on_stream(void *arguments) {
    hpi_thread_never_spins();
    return run_any(arguments);
}

static hp_status push(const hp_symm_call *call) {
    places p = {0};
    const hp_status status = resolve(call, &p);
    return status < 0 ? refuse(call, status)
                      : hpi_stream_push(call->stream, run_on_stream, call, sizeof *call);
}

hp_status hp_symm_run(const hp_symm_call *call) {
    if (!call)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a call, given NULL");
    if (call->size != sizeof *call)
        return HPI_FAIL(HP_ERR_VERSION, "expected hp_symm_call.size to be %zu, given %zu",
                        sizeof *call, call->size);
    const hp_status status = check_values(call);
    if (status < 0)
        return refuse(call, status);
    return call->stream ? hpi_tell_failure(journal_of(call), "symm", push(call)) : run_any(call);
}

/* ---- the short forms --------------------------------------------------------------------------
 */

hp_status hp_symm_put(hp_symm memory, uint64_t offset, const void *source, uint64_t bytes, int rank,
                      hp_group *group) {
    const hp_symm_call c = {.what = HP_SYMM_PUT,
                            .memory = memory,
                            .offset = offset,
                            .source = source,
                            .bytes = bytes,
                            .rank = rank,
                            .group = group};
    return run_told(&c);
}

hp_status hp_symm_get(void *out_target, hp_symm memory, uint64_t offset, uint64_t bytes, int rank,
                      hp_group *group) {
    const hp_symm_call c = {.what = HP_SYMM_GET,
                            .memory = memory,
                            .offset = offset,
                            .target = out_target,
                            .bytes = bytes,
                            .rank = rank,
                            .group = group};
    return run_told(&c);
}

hp_status hp_symm_signal(hp_symm memory, uint64_t offset, hp_signal_op op, uint64_t value, int rank,
                         hp_group *group) {
    const hp_symm_call c = {.what = HP_SYMM_SIGNAL,
                            .signal = memory,
                            .signal_offset = offset,
                            .op = op,
                            .value = value,
                            .rank = rank,
                            .group = group};
    return run_told(&c);
}

hp_status hp_symm_put_signal(hp_symm memory, uint64_t offset, const void *source, uint64_t bytes,
                             hp_symm signal, uint64_t signal_offset, hp_signal_op op,
                             uint64_t value, int rank, hp_group *group) {
    const hp_symm_call c = {.what = HP_SYMM_PUT_SIGNAL,
                            .memory = memory,
                            .offset = offset,
                            .source = source,
                            .bytes = bytes,
                            .signal = signal,
                            .signal_offset = signal_offset,
                            .op = op,
                            .value = value,
                            .rank = rank,
                            .group = group};
    return run_told(&c);
}

hp_status hp_symm_wait(hp_symm memory, uint64_t offset, hp_compare compare, uint64_t value,
                       uint64_t timeout_ms) {
    const hp_symm_call c = {.what = HP_SYMM_WAIT,
                            .signal = memory,
                            .signal_offset = offset,
                            .compare = compare,
                            .value = value,
                            .timeout_ms = timeout_ms};
    return run_told(&c);
}

hp_status hp_symm_pointer(hp_symm memory, int rank, hp_group *group, void **out_pointer) {
    const target t = {memory, 0, 0, rank, group, false, ""};
    spot place;
    if (!out_pointer)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a place for the pointer, given NULL");
    const hp_status status = reach(&t, &place);
    if (status < 0)
        return name_call(__func__, status);
    *out_pointer = place.pointer;
    return HP_OK;
}

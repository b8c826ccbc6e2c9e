/* SPDX-License-Identifier: Apache-2.0
 *
 * coll.c - one collective: check, enter, move, leave; drain. The public doors are in call.c.
 *
 * A failure after the ranks have met leaves them at different places, so it fails the group: every
 * later call on it gives the same error. Nothing is allocated but by the first collective of a
 * group and the first that stages.
 */
#include "direct/direct.h"
#include "inside.h"

#include <stdio.h>

const hpi_algorithm hpi_algorithms[] = {
#define X(what, name, function, needs, from, to, steps, moves, source)                             \
    {HP_##what, #name, function, HPI_NEEDS_##needs, HPI_FROM_##from, HPI_FROM_##to,                \
     steps,     moves, source},
#include "algorithms.def"
#undef X
};
const int hpi_n_algorithms = sizeof hpi_algorithms / sizeof *hpi_algorithms;
_Static_assert(sizeof hpi_algorithms / sizeof *hpi_algorithms < 64,
               "enter.c has 6 bits for the number of a row");

/* ---- state ---- */

static void state_destroy(void *memory) {
    hpi_coll_state *s = memory;
    if (!s)
        return;
    hpi_ring_close(s);
    hpi_direct_close(s);
    hpi_free(s->strips);
    hpi_free(s->pids);
    hpi_cast_destroy(s->group, s->cast);
    hpi_free(s->packed[0]);
    hpi_free(s->packed[1]);
    hpi_free(s->scratch);
    hpi_free(s->kept);
    hpi_free(s->small);
    hpi_free(s->entered);
    hpi_free(s->chunk);
    hpi_free(s->cells);
    hpi_free(s->heaps);
    hpi_free(s->out);
    hpi_free(s->in);
    hpi_free(s);
}

static void find_first_rows(hpi_coll_state *s) {
    for (int i = hpi_n_algorithms; i-- > 0;)
        s->first_row[hpi_algorithms[i].what] = (uint8_t)i;
}

static void find_heaps(hpi_coll_state *s) {
    uint64_t bytes;
    for (int i = 0; i < hp_group_size(s->group); i++)
        s->heaps[i] =
            hpi_world_segment(hp_group_world(s->group), hp_group_world_rank(s->group, i), &bytes);
}

static hp_status state_create(hp_group *group, hpi_coll_state **out_state) {
    const size_t n = (size_t)hp_group_size(group);
    hpi_coll_state *s = hpi_alloc(1, sizeof *s);
    if (!s)
        return HP_ERR_MEMORY;
    s->group = group;
    find_first_rows(s);
    s->are_lines_dear = hpi_are_lines_dear();
    s->in = hpi_alloc(n, sizeof *s->in);
    s->pids = hpi_alloc(n, sizeof *s->pids);
    s->out = hpi_alloc(n, sizeof *s->out);
    s->cells = hpi_alloc(n, sizeof *s->cells);
    s->heaps = hpi_alloc(n, sizeof *s->heaps);
    s->chunk = hpi_alloc(n, sizeof *s->chunk);
    s->entered = hpi_alloc(n, sizeof *s->entered);
    s->small = hpi_alloc_aligned(HPI_ROW_BYTES, n * sizeof *s->small);
    s->scratch = hpi_alloc_aligned(64, hpi_scratch_bytes((int)n));
    s->kept = hpi_alloc(HPI_LAST_COLLECTIVE + 1, sizeof *s->kept);
    s->packed[0] = hpi_alloc(n, sizeof **s->packed);
    s->packed[1] = hpi_alloc(n, sizeof **s->packed);
    if (!s->pids || !s->in || !s->out || !s->cells || !s->heaps || !s->chunk || !s->entered ||
        !s->small || !s->scratch || !s->kept || !s->packed[0] || !s->packed[1] ||
        hpi_cast_create(&s->cast)) {
        state_destroy(s);
        return HP_ERR_MEMORY;
    }
    const hp_world *world = hp_group_world(group);
    find_heaps(s);
    hpi_ring_size(s, (int)n, hpi_world_can_spin(world) && !hpi_world_options(world)->heap_size);
    hp_status status = hpi_thresholds_fill(hpi_world_options(world)->thresholds,
                                           !hpi_world_can_spin(world), s->thresholds);
    if (!status)
        status = hpi_group_open_pockets(group);
    if (status)
        state_destroy(s);
    else
        *out_state = s;
    return status;
}

/* The group is entered: one thread at a time is here. */
static hp_status state_get(hp_group *group, hpi_coll_state **out_state) {
    *out_state = hpi_group_attached(group, HPI_SLOT_COLL);
    if (*out_state)
        return HP_OK;
    HP_TRY(hpi_symm_begin(hp_group_world(group)));
    HP_TRY(state_create(group, out_state));
    hpi_group_attach(group, HPI_SLOT_COLL, *out_state, state_destroy);
    return HP_OK;
}

/* ---- one collective ---- */

/* A group of one: the result is the input, rounded once where a wire says so. */
static hp_status run_alone(hpi_run *run) {
    const hpi_coll *c = &run->c;
    if (run->what == HP_ALL_TO_ALL_V && c->in_counts[0] != c->out_counts[0])
        return HPI_FAIL_RANK(HP_ERR_MISMATCH, hp_group_world_rank(run->group, 0),
                             "%s: expected rank 0 to receive what it sends itself, it sends %llu "
                             "elements and expects %llu",
                             run->name, (unsigned long long)c->in_counts[0],
                             (unsigned long long)c->out_counts[0]);
    if (run->wire != HP_WIRE_FULL)
        return hpi_wire_alone(run);
    const unsigned char *in = (const unsigned char *)c->in + run->in_skip_bytes;
    unsigned char *out = (unsigned char *)c->out + run->out_skip_bytes;
    const uint64_t bytes = run->in_bytes - run->in_skip_bytes;
    if (bytes == 0 || in == out)
        return HP_OK;
    if (run->c.dtype != run->c.out_dtype)
        return hpi_convert(in, c->dtype, out, c->out_dtype, bytes / run->in_size);
    memcpy(out, in, bytes);
    return HP_OK;
}

/* Peers read our operands: the caller may not touch them until they have finished. */
static bool is_read_by_peers(const hpi_run *run) {
    if (!run->algorithm || run->is_small || run->is_carried)
        return false;
    switch (run->algorithm->needs) {
    case HPI_NEEDS_INPUTS:
    case HPI_NEEDS_OUTPUTS:
    case HPI_NEEDS_APART:
    case HPI_NEEDS_READABLE:
    case HPI_NEEDS_WIRE_INPUTS:
    case HPI_NEEDS_WIRE_OUTPUTS:
    case HPI_NEEDS_WIRE_APART:
        return true;
    default:
        return hpi_wire_pushes(run);
    }
}

/* Peers read the sums that we return. */
static bool is_result_read(const hpi_run *run) {
    return run->what == HP_ALL_REDUCE && run->algorithm &&
           run->algorithm->needs == HPI_NEEDS_READABLE;
}

/* Peers write what we return: it is there when they have finished. */
static bool is_written_by_peers(const hpi_run *run) {
    if (!run->algorithm)
        return false;
    const hpi_needs needs = run->algorithm->needs;
    return needs == HPI_NEEDS_OUTPUTS || needs == HPI_NEEDS_APART ||
           needs == HPI_NEEDS_WIRE_OUTPUTS || needs == HPI_NEEDS_WIRE_APART ||
           (needs == HPI_NEEDS_READABLE && run->what == HP_BROADCAST) || hpi_wire_pushes(run);
}

/* The root goes on, and the others wait for it alone. */
static hp_status run_unmet(hpi_run *run) {
    run->algorithm = run->unmet;
    HP_TRY(run->algorithm->run(run));
    run->state->last = run->algorithm;
    run->state->is_last_pushed = false;
    return HP_OK;
}

/* Where peers have touched nobody's memory, nobody asks when they have finished. */
static void leave(const hpi_run *run) {
    if (!is_read_by_peers(run)) {
        hpi_line_put(run->group, HPI_LINE_READ, run->seq);
        return;
    }
    atomic_store_explicit(&run->state->last_read, run->seq, memory_order_relaxed);
    hpi_line_post(run->group, HPI_LINE_READ, run->seq);
}

/* Everybody has all that it needs: nobody touches anybody's memory any more. */
static hp_status run_carried(hpi_run *run) {
    HP_TRY(run->algorithm->run(run));
    run->state->last = run->algorithm;
    run->state->is_last_pushed = false;
    hpi_line_put(run->group, HPI_LINE_READ, run->seq);
    return HP_OK;
}

static hp_status run_together(hpi_run *run) {
    if (run->unmet)
        return run_unmet(run);
    HP_TRY(hpi_coll_enter(run));
    if (run->what == HP_BARRIER)
        return HP_OK;
    if (run->is_small || run->is_carried)
        return run_carried(run);
    if (run->algorithm)
        HP_TRY(run->algorithm->run(run));
    /* a member that gave up waiting for us, which it says first, may have written what we read */
    if (is_read_by_peers(run))
        HP_TRY(hpi_group_listen(run->group, run->name));
    run->state->last = run->algorithm;
    const bool is_written = is_written_by_peers(run);
    run->state->is_last_pushed = is_written;
    leave(run);
    return is_written || is_result_read(run) ? hpi_coll_drain(run->group, run->seq) : HP_OK;
}

/* Whoever reads each call's line is told why it ran that way. */
__attribute__((noinline)) static hp_status end_with_reason(hpi_probe *probe, const hpi_run *run,
                                                           hp_status status) {
    char why[256], note[300];
    hpi_choice_explain(run, why, sizeof why);
    snprintf(note, sizeof note, "%s (%s)", run->algorithm->name, why);
    probe->note = note;
    const hp_status ended = hpi_probe_end(probe, status);
    probe->note = NULL;
    return ended;
}

/* ---- the same call once more ---- */

/* Of a form without counts of its own. */
static bool is_same_call(const hpi_coll *a, const hpi_coll *b) {
    return a->in == b->in && a->out == b->out && a->count == b->count && a->blocks == b->blocks &&
           a->dtype == b->dtype && a->out_dtype == b->out_dtype && a->op == b->op &&
           a->root == b->root && a->wire == b->wire && a->is_wire_result == b->is_wire_result &&
           a->tag == b->tag && a->pass == b->pass;
}

/* Of the public forms, in which some fields may hold anything: then the answer is no. */
static bool is_same_public(const hp_coll_call *a, const hp_coll_call *b) {
    return a->in == b->in && a->out == b->out && a->count == b->count && a->dtype == b->dtype &&
           a->op == b->op && a->rank == b->rank && a->wire == b->wire &&
           a->wire_result == b->wire_result;
}

/* The last call of a kind; NULL: none was kept. */
static hpi_kept *last_of(const hp_group *group, hp_collective what) {
    hpi_coll_state *s = hpi_group_attached(group, HPI_SLOT_COLL);
    return s && s->kept[what].is_there ? &s->kept[what] : NULL;
}

static hpi_run *run_again(hpi_kept *kept) {
    hpi_run *run = &kept->run;
    memset((char *)run + HPI_RUN_MET, 0, sizeof *run - HPI_RUN_MET);
    return run;
}

/* What depends on the checked call and the state alone. */
static hp_status prepare(hpi_run *run) {
    HP_TRY(state_get(run->group, &run->state));
    run->reduction = hpi_reduction_of(run);
    hpi_words_prepare(run);
    hpi_choose_ahead(run);
    return HP_OK;
}

/* A v form is not kept: its counts may change where they lie. */
static hpi_run *keep(hpi_run *run, const hpi_coll *given) {
    hpi_kept *kept = &run->state->kept[run->what];
    if (hpi_is_v(run->what))
        return run;
    *kept = (hpi_kept){.is_there = true, .given = *given, .run = *run};
    return &kept->run;
}

/* This call, checked and prepared: the kept one, or the caller's `fresh`. */
static hp_status find_run(hp_group *group, hp_collective what, const hpi_coll *c, hpi_run *fresh,
                          hpi_run **out_run) {
    hpi_kept *last = last_of(group, what);
    if (last && is_same_call(&last->given, c)) {
        *out_run = run_again(last);
        return HP_OK;
    }
    HP_TRY(hpi_coll_check(group, what, c, fresh));
    const hp_status status = prepare(fresh);
    if (status < 0) /* the others will wait for this rank */
        hpi_group_fail(group);
    else
        *out_run = keep(fresh, c);
    return status;
}

/* The same from a public call. */
static hp_status find_run_of(const hp_coll_call *call, hpi_run *fresh, hpi_run **out_run) {
    hpi_kept *last = last_of(call->group, call->what);
    hpi_coll c;
    if (HPI_LIKELY(last && last->has_call && is_same_public(&last->call, call))) {
        *out_run = run_again(last);
        return HP_OK;
    }
    HP_TRY(hpi_coll_of(call, &c));
    HP_TRY(find_run(call->group, call->what, &c, fresh, out_run));
    last = last_of(call->group, call->what);
    if (last && *out_run == &last->run) {
        last->has_call = true;
        last->call = *call;
    }
    return HP_OK;
}

static hp_status run_entered(hpi_run *run, bool is_public, uint64_t *out_seq) {
    const uint64_t seq = atomic_load_explicit(&run->state->seq, memory_order_relaxed) + 1;
    atomic_store_explicit(&run->state->seq, seq, memory_order_relaxed);
    run->seq = seq;
    if (hpi_is_v(run->what))
        hpi_parts_lay(run);
    hpi_probe probe = hpi_probe_begin(
        hpi_collective_event(run->what), hpi_world_journal(hp_group_world(run->group)),
        hpi_group_name(run->group), seq, hpi_max(run->in_bytes, run->out_bytes));
    hp_status status = run->n == 1 ? run_alone(run) : run_together(run);
    if (status == HP_OK && is_public && is_read_by_peers(run))
        status = hpi_coll_drain(run->group, seq);
    if (status < 0)
        hpi_group_fail(run->group);
    else if (out_seq)
        *out_seq = seq;
    probe.note = run->algorithm ? run->algorithm->name : NULL;
    if (__builtin_expect(run->algorithm && hpi_journal_has(probe.journal, HPI_LOG_DEBUG), 0))
        return end_with_reason(&probe, run, status);
    return hpi_probe_end(&probe, status);
}

/* ---- a group that spans nodes ---- */

__attribute__((noinline)) static hp_status run_across(hp_group *group, hp_collective what,
                                                      const hpi_coll *c, uint64_t *out_seq) {
    return hpi_tell_failure(hpi_world_journal(hp_group_world(group)), "coll",
                            hpi_across_run(group, what, c, out_seq));
}

__attribute__((noinline)) static hp_status run_call_across(const hp_coll_call *call) {
    hpi_coll c;
    HP_TRY(hpi_coll_of(call, &c));
    return hpi_across_run(call->group, call->what, &c, NULL);
}

/* ---- any group ---- */

hp_status hpi_coll_run(hp_group *group, hp_collective what, const hpi_coll *c, bool is_public,
                       uint64_t *out_seq) {
    hpi_run fresh, *run;
    if (!group)
        return hpi_coll_check(group, what, c, &fresh);
    if (!HPI_LIKELY(!hpi_group_nodes(group)))
        return run_across(group, what, c, out_seq);
    hp_status status = hpi_group_enter(group, hpi_collective_name(what));
    if (status == HP_OK) {
        status = find_run(group, what, c, &fresh, &run);
        if (status == HP_OK)
            status = run_entered(run, is_public, out_seq);
        hpi_group_leave(group);
    }
    return hpi_tell_failure(hpi_world_journal(hp_group_world(group)), "coll", status);
}

hp_status hpi_coll_run_call(const hp_coll_call *call) {
    hpi_run fresh, *run;
    if (!HPI_LIKELY(!hpi_group_nodes(call->group)))
        return run_call_across(call);
    HP_TRY(hpi_group_enter(call->group, hpi_collective_name(call->what)));
    hp_status status = find_run_of(call, &fresh, &run);
    if (status == HP_OK)
        status = run_entered(run, true, NULL);
    hpi_group_leave(call->group);
    return status;
}

/* ---- the door of the room ---- */

hp_status hpi_all_gather(hp_group *group, const hpi_coll *c, uint64_t *out_seq) {
    return hpi_coll_run(group, HP_ALL_GATHER, c, false, out_seq);
}

hp_status hpi_reduce_scatter(hp_group *group, const hpi_coll *c, uint64_t *out_seq) {
    return hpi_coll_run(group, HP_REDUCE_SCATTER, c, false, out_seq);
}

hp_status hpi_all_reduce(hp_group *group, const hpi_coll *c, uint64_t *out_seq) {
    return hpi_coll_run(group, HP_ALL_REDUCE, c, false, out_seq);
}

hp_status hpi_barrier(hp_group *group, const hpi_coll *c, uint64_t *out_seq) {
    return hpi_coll_run(group, HP_BARRIER, c, false, out_seq);
}

static hp_status wait_line(hp_group *group, int rank, int channel, uint64_t seq, const char *name) {
    return channel == HPI_LINE_SAID ? hpi_said_wait(group, rank, seq, name)
                                    : hpi_line_wait(group, rank, channel, seq, name);
}

hp_status hpi_wait_those_beside(hp_group *group, int channel, uint64_t seq, const char *name) {
    const hp_world *world = hp_group_world(group);
    const int n = hp_group_size(group), rank = hp_group_rank(group);
    for (int k = 1; k < n; k++) {
        const int peer = (rank + k) % n;
        if (hpi_world_is_beside(world, hp_group_world_rank(group, peer)))
            HP_TRY(wait_line(group, peer, channel, seq, name));
    }
    return HP_OK;
}

/* Peers touch nothing of this rank's in what follows the last collective that says so. */
hp_status hpi_coll_drain(hp_group *group, uint64_t seq) {
    if (!HPI_LIKELY(!hpi_group_nodes(group)))
        return hpi_group_check(group); /* nothing of a collective there outlasts it */
    const int n = hp_group_size(group), rank = hp_group_rank(group);
    const hpi_coll_state *s = hpi_group_attached(group, HPI_SLOT_COLL);
    if (s)
        seq = hpi_min(seq, atomic_load_explicit(&s->last_read, memory_order_relaxed));
    HP_TRY(hpi_wait_beside(group, HPI_LINE_READ, seq, "drain"));
    for (int k = 1; k < n; k++)
        HP_TRY(hpi_line_wait(group, (rank + k) % n, HPI_LINE_READ, seq, "drain"));
    return HP_OK;
}

uint64_t hpi_coll_seq(hp_group *group) {
    hpi_coll_state *s = hpi_group_attached(group, HPI_SLOT_COLL);
    return s ? atomic_load_explicit(&s->seq, memory_order_relaxed) : 0;
}

hp_status hpi_coll_only(hp_group *group, const char *name) {
    hpi_coll_state *s;
    const bool is_across = hpi_group_nodes(group);
    HP_TRY(is_across ? hpi_across_state(group, &s) : state_get(group, &s));
    s->only = name;
    if (is_across) /* there it is compared, and no more */
        return HP_OK;
    for (int i = 0; i <= HPI_LAST_COLLECTIVE; i++)
        s->kept[i].is_there = false; /* was prepared for another */
    return HP_OK;
}

const char *hpi_coll_last(hp_group *group) {
    const hpi_coll_state *s = hpi_group_attached(group, HPI_SLOT_COLL);
    return s && s->last ? s->last->name : "";
}

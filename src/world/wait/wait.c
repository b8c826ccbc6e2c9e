/* SPDX-License-Identifier: Apache-2.0
 *
 * wait.c - waiting for a word, and waking whoever waits.
 *
 * With a core for each rank: spin, soon giving way now and then to whoever wants the core all the
 * same, then yield a few times. Where ranks share cores: yield for a while, and spin a moment, at
 * first and after each yield, for a rank that runs on another core, until it says that it has given
 * way: so a meeting takes one change of threads for each rank beside this one, no more. Then sleep
 * on the futex word `bump` of the own
 * control block, a slice at a time. The protocol that loses no wake-up: the sleeper raises
 * `sleepers`, reads `bump`, looks at the word, sleeps while bump has that value; the signaller
 * stores the word, then looks at `sleepers`. All of it is sequentially consistent, so either the
 * signaller sees the sleeper, or the sleeper sees the word; and if the bump comes before the sleep,
 * the futex does not sleep. Liveness is looked at once a slice, and a death found is an error only
 * after one more look at the word: what was posted before dying counts.
 */
#include "../inside.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { N_YIELDS = 8, SPINS_AT_ONCE = 64, SPINS_PER_LOOK = 256, N_GREEDY = 4 };
enum { SPINS_WHILE_IT_RUNS = 256 }; /* it may copy meanwhile what we wait for */
#define SPIN_NS UINT64_C(2000000)
#define YIELD_NS UINT64_C(200000)
#define SLICE_NS UINT64_C(50000000) /* the rule is at most 100 ms */

static _Thread_local bool never_spins;
void hpi_thread_never_spins(void) {
    never_spins = true;
}

bool hpi_thread_spins(const hp_world *world) {
    return world->can_spin && !never_spins;
}

typedef struct wait_state {
    hp_world *world;
    const _Atomic uint64_t *word;
    hp_compare how;
    uint64_t value;
    const hpi_reason *reason;
    uint64_t begin_ns, deadline_ns, next_look_ns, timeout_ms;
    uint64_t slow_ns; /* when it is time to warn */
    hpi_note *note;   /* NULL: none was free */
} wait_state;

bool hpi_compare(uint64_t word, hp_compare how, uint64_t value) {
    if ((int)how == HPI_REACHED)
        return (int64_t)(word - value) >= 0;
    switch (how) {
    case HP_EQ:
        return word == value;
    case HP_NE:
        return word != value;
    case HP_GT:
        return word > value;
    case HP_GE:
        return word >= value;
    case HP_LT:
        return word < value;
    case HP_LE:
        return word <= value;
    }
    return false;
}

static bool is_reached(const wait_state *w) {
    return hpi_compare(atomic_load_explicit(w->word, memory_order_seq_cst), w->how, w->value);
}

/* Most waits of ranks that work in step are over before a clock could be read. */
static bool comes_soon(const _Atomic uint64_t *word, hp_compare how, uint64_t value) {
    for (int i = 0; i < SPINS_AT_ONCE; i++) {
        if (hpi_compare(atomic_load_explicit(word, memory_order_acquire), how, value))
            return true;
        hpi_relax();
    }
    return false;
}

static bool spin(const wait_state *w) {
    const uint64_t end_ns = hpi_min(w->begin_ns + SPIN_NS, w->deadline_ns);
    for (int n = 0; n == 0 || hpi_now_ns() < end_ns; n++) {
        for (int i = 0; i < SPINS_PER_LOOK; i++) {
            if (is_reached(w))
                return true;
            hpi_relax();
        }
        if (n >= N_GREEDY) /* somebody else may want the core: the awaited rank, for one */
            sched_yield();
    }
    return false;
}

/* What is said of cores is relaxed: no more than a hint. */
static _Atomic uint64_t *own_core(hp_world *world) {
    return &hpi_world_control(world, world->rank)->core;
}

static uint64_t say_core(hp_world *world) {
    const uint64_t core = 1 + (uint64_t)sched_getcpu();
    if (atomic_load_explicit(own_core(world), memory_order_relaxed) != core)
        atomic_store_explicit(own_core(world), core, memory_order_relaxed);
    return core;
}

static void say_left(hp_world *world) {
    const uint64_t core = 1 + (uint64_t)sched_getcpu();
    atomic_store_explicit(own_core(world), core | HPI_CORE_IS_LEFT, memory_order_relaxed);
}

static uint64_t said_of(const hp_world *world, int world_rank) {
    return atomic_load_explicit(&hpi_world_control(world, world_rank)->core, memory_order_relaxed);
}

static uint64_t core_of(const hp_world *world, int world_rank) {
    return said_of(world, world_rank) & ~HPI_CORE_IS_LEFT;
}

static bool has_left(const hp_world *world, int world_rank) {
    return said_of(world, world_rank) & HPI_CORE_IS_LEFT;
}

bool hpi_world_is_beside(const hp_world *world, int world_rank) {
    return core_of(world, world_rank) == core_of(world, world->rank);
}

static int awaited_world_rank(const hpi_reason *r) {
    return r->group ? hp_group_world_rank(r->group, r->rank) : r->rank;
}

/* Where ranks share cores, whoever runs on another one may be about to answer, and a change of
 * threads here and back takes longer than a short spin. Whoever has left its core cannot answer
 * before others there have had their turn, nor can whoever is on this one while we spin. */
static bool comes_from_elsewhere(hp_world *world, const _Atomic uint64_t *word, hp_compare how,
                                 uint64_t value, int awaited) {
    const uint64_t core = say_core(world);
    if (awaited < 0 || core_of(world, awaited) == core)
        return false;
    for (int i = 0; i < SPINS_WHILE_IT_RUNS && !has_left(world, awaited); i++) {
        if (hpi_compare(atomic_load_explicit(word, memory_order_acquire), how, value))
            return true;
        hpi_relax();
    }
    return hpi_compare(atomic_load_explicit(word, memory_order_acquire), how, value);
}

/* A thread that never spins has one beside it that computes. */
static bool yield_few(const wait_state *w) {
    for (int i = 0; i < N_YIELDS && hpi_yield(); i++)
        if (is_reached(w))
            return true;
    return false;
}

/* Everybody on this core may have to run before the word comes. After a change of threads to one
 * that computes the time is over. */
static bool yield_a_while(const wait_state *w) {
    const int awaited = awaited_world_rank(w->reason);
    const uint64_t end_ns = hpi_min(w->begin_ns + YIELD_NS, w->deadline_ns);
    do {
        say_left(w->world);
        sched_yield();
        say_core(w->world);
        if (is_reached(w) || comes_from_elsewhere(w->world, w->word, w->how, w->value, awaited))
            return true;
    } while (hpi_now_ns() < end_ns);
    return false;
}

static void futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t ns) {
    const struct timespec limit = {.tv_sec = (time_t)(ns / UINT64_C(1000000000)),
                                   .tv_nsec = (long)(ns % UINT64_C(1000000000))};
    syscall(SYS_futex, word, FUTEX_WAIT, value, &limit, NULL, 0);
}

void hpi_world_wake(hp_world *world, int world_rank) {
    hpi_world_wake_for(world, world_rank, -1);
}

void hpi_world_wake_for(hp_world *world, int world_rank, int awaited) {
    hpi_control *control = hpi_world_control(world, world_rank);
    if (!hpi_world_sleeps(world, world_rank, awaited))
        return;
    atomic_fetch_add_explicit(&control->bump, 1, memory_order_seq_cst);
    syscall(SYS_futex, &control->bump, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* ---- what can end a wait before its word does ---------------------------------------------- */

/* "rank 1 waited for rank 5 (rank 1 of shard[4..7]) in all_gather #17" */
static void wait_text(const wait_state *w, char *text, size_t size) {
    const hpi_reason *r = w->reason;
    char whom[96] = "a signal", group[64] = "";
    if (r->group)
        snprintf(group, sizeof group, " (rank %d of %s)", r->rank, hpi_group_name(r->group));
    if (r->rank >= 0)
        snprintf(whom, sizeof whom, "rank %d%s", awaited_world_rank(r), group);
    snprintf(text, size, "rank %d waited for %s in %s #%llu", w->world->rank, whom, r->operation,
             (unsigned long long)r->seq);
}

/* Those whose end, or silence, matters to the wait. */
static int n_watched(const wait_state *w) {
    return w->reason->group ? w->reason->group->size : w->world->n_local;
}
static int watched(const wait_state *w, int i) {
    return w->reason->group ? w->reason->group->world_ranks[i] : w->world->local[i];
}

static hp_status fail_peer(const wait_state *w, int culprit, const char *how) {
    char waited[200], doing[256];
    wait_text(w, waited, sizeof waited);
    hpi_world_describe(w->world, culprit, doing, sizeof doing);
    hpi_liveness_blame(w->world, culprit);
    return HPI_FAIL_RANK(HP_ERR_PEER, culprit, "rank %d %s: %s; rank %d was last seen %s", culprit,
                         how, waited, culprit, doing);
}

static bool never_came(const wait_state *w, int world_rank) {
    const hp_group *group = w->reason->group;
    return group && !group->nodes && !hpi_directory_has_joined(w->world, group->slot, world_rank);
}

/* What keeps `rank` from signalling; NULL: nothing does. */
static const char *why_silent(const wait_state *w, int rank) {
    if (hpi_rank_is_stopped(w->world, rank))
        return "is stopped (SIGSTOP or a debugger)";
    return hpi_liveness_has_left(w->world, rank) ? "has left the job (hp_world_destroy)" : NULL;
}

/* Nobody is awaited in particular: what tells is how far the word has come, and who of those who
 * could signal cannot any more. */
static hp_status fail_signal(const wait_state *w, const char *waited) {
    static const char *const comparisons[] = {"==", "!=", ">", ">=", "<", "<=", ">="};
    char silent[200] = "";
    size_t length = 0;
    int first = -1; /* of those who are stopped, or else who have left, maybe because of them */
    bool is_stopped = false;
    for (int i = 0; i < n_watched(w) && length < sizeof silent; i++) {
        const char *why = why_silent(w, watched(w, i));
        if (!why)
            continue;
        const bool has_stopped = hpi_rank_is_stopped(w->world, watched(w, i));
        if (first < 0 || (has_stopped && !is_stopped))
            first = watched(w, i);
        is_stopped |= has_stopped;
        length += (size_t)snprintf(silent + length, sizeof silent - length, "; rank %d %s",
                                   watched(w, i), why);
    }
    return HPI_FAIL_RANK(
        HP_ERR_TIMEOUT, first, "%s for %llu ms; expected its word %s %llu, it is %llu%s", waited,
        (unsigned long long)w->timeout_ms, comparisons[w->how], (unsigned long long)w->value,
        (unsigned long long)atomic_load_explicit(w->word, memory_order_relaxed), silent);
}

static hp_status fail_timeout(const wait_state *w) {
    char waited[200], doing[256], via[48] = "";
    const int whom = awaited_world_rank(w->reason);
    wait_text(w, waited, sizeof waited);
    if (whom < 0)
        return fail_signal(w, waited);
    const int last = hpi_chain_end(w->world, w->reason->group, whom, w->begin_ns);
    if (last != whom)
        snprintf(via, sizeof via, ", which holds up rank %d,", whom);
    hpi_control_describe(hpi_world_control(w->world, last), doing, sizeof doing);
    return HPI_FAIL_RANK(
        HP_ERR_TIMEOUT, last, "%s for %llu ms; rank %d%s %s, %s%s", waited,
        (unsigned long long)w->timeout_ms, last, via,
        hpi_rank_is_stopped(w->world, last) ? "is stopped (SIGSTOP or a debugger)" : "is alive",
        last == whom && never_came(w, whom) ? "has never created this group, " : "", doing);
}

/* Once, and only when the log wants it. */
static void warn_slow(wait_state *w) {
    char waited[200], doing[256] = "";
    const int whom = awaited_world_rank(w->reason);
    w->slow_ns = UINT64_MAX;
    if (!hpi_journal_has(w->world->journal, HPI_LOG_WARNING))
        return;
    wait_text(w, waited, sizeof waited);
    if (whom >= 0)
        hpi_control_describe(hpi_world_control(w->world, whom), doing, sizeof doing);
    HPI_SAY(w->world->journal, HPI_LOG_WARNING, "world", "%s for %llu ms and waits on%s%s", waited,
            (unsigned long long)w->world->options.slow_wait_ms, *doing ? "; that rank is " : "",
            doing);
}

static bool has_destroyed(const wait_state *w, int i) {
    return w->reason->group && hpi_group_has_destroyed(w->reason->group, i);
}

/* Whose fault it is that `rank` ended. */
static int find_origin(const wait_state *w, int rank, const char **out_how) {
    const int origin = hpi_liveness_origin(w->world, rank);
    *out_how = hpi_liveness_is_dead(w->world, origin)    ? "died"
               : hpi_liveness_has_left(w->world, origin) ? "left the job (hp_world_destroy)"
                                                         : "was waited for in vain by others";
    return origin;
}

/* A rank whose end makes this wait hopeless; -1 when there is none. Leaving in order, the job or
 * the group, is fatal from the awaited rank, or, when anybody could signal, from the last other. */
static int find_culprit(const wait_state *w, const char **out_how) {
    const int whom = awaited_world_rank(w->reason);
    const char *left_how = NULL;
    int last_left = -1, n_others = 0, n_left = 0;
    for (int i = 0; i < n_watched(w); i++) {
        const int rank = watched(w, i);
        if (rank == w->world->rank)
            continue;
        if (hpi_liveness_is_dead(w->world, rank))
            return find_origin(w, rank, out_how);
        n_others++;
        const bool is_away = hpi_liveness_has_left(w->world, rank);
        if (!is_away && !has_destroyed(w, i))
            continue;
        n_left++;
        if (whom == rank && /* it may have gone because of somebody's end */
            hpi_liveness_is_dead(w->world, hpi_liveness_origin(w->world, rank)))
            return find_origin(w, rank, out_how);
        if (whom == rank || whom < 0) {
            last_left = rank;
            left_how = is_away ? "left the job (hp_world_destroy)"
                               : "destroyed the group (hp_group_destroy)";
        }
    }
    *out_how = left_how;
    return whom >= 0 || n_left == n_others ? last_left : -1;
}

/* Has the group ended for another member, or never begun? */
static hp_status look_at_group(const wait_state *w) {
    char waited[200];
    hp_status refusal;
    const hp_group *group = w->reason->group;
    const int failed = hpi_group_find_failed(group);
    const int refused = hpi_directory_refused(w->world, group->slot, &refusal);
    if (failed < 0 && refused < 0)
        return HP_OK;
    wait_text(w, waited, sizeof waited);
    if (failed >= 0)
        return hpi_group_told(group, failed, waited);
    return HPI_FAIL_RANK(refusal, refused, "rank %d %s this group (%s): %s", refused,
                         refusal == HP_ERR_MISMATCH ? "never created" : "could not create",
                         hp_status_text(refusal), waited);
}

/* Nobody but this thread can do what others wait for: said in its note. Threads: unknown. */
static bool is_lone(const wait_state *w) {
    struct stat tasks; /* two links, and one for each thread */
    const bool is_lone = w->note && !hpi_world_is_threads(w->world) &&
                         !stat("/proc/self/task", &tasks) && tasks.st_nlink == 3;
    if (is_lone)
        atomic_store_explicit(&w->note->is_lone, 1, memory_order_release);
    return is_lone;
}

static hpi_certainty certainty_of(const wait_state *w, uint64_t now_ns) {
    if (now_ns >= w->deadline_ns)
        return HPI_IS_LATE;
    return w->reason->line && is_lone(w) ? HPI_IS_LONE : HPI_MAY_ACT;
}

/* HP_IN_PROGRESS while there is hope. */
static hp_status look_around(wait_state *w) {
    const char *how = NULL;
    const uint64_t now_ns = hpi_now_ns();
    const bool is_slice = now_ns >= hpi_min(w->next_look_ns, w->deadline_ns);
    if (is_slice) {
        hpi_liveness_poll(w->world);
        w->next_look_ns = now_ns + SLICE_NS;
    }
    hp_status status = w->reason->group ? look_at_group(w) : HP_OK;
    if (status == HP_OK && is_slice)
        status = hpi_crossed_check(w->reason, certainty_of(w, now_ns));
    if (status < 0)
        return is_reached(w) ? HP_OK : status;
    const int culprit = find_culprit(w, &how);
    if (culprit >= 0) {
        /* who failed and has gone since the look above said so first */
        status = w->reason->group ? look_at_group(w) : HP_OK;
        return is_reached(w) ? HP_OK : status < 0 ? status : fail_peer(w, culprit, how);
    }
    HP_TRY(hpi_world_usable(w->world));
    if (w->reason->group)
        HP_TRY(hpi_group_check(w->reason->group));
    if (atomic_load_explicit(&w->world->is_launcher_gone, memory_order_acquire))
        return HPI_FAIL(HP_ERR_PEER, "rank %d waited in %s when the launcher (hprun) died",
                        w->world->rank, w->reason->operation);
    if (now_ns >= w->deadline_ns) {
        /* whoever failed since the look above has told us first and freed its note then */
        HP_TRY(w->reason->group ? look_at_group(w) : HP_OK);
        return fail_timeout(w);
    }
    if (now_ns >= w->slow_ns)
        warn_slow(w);
    return HP_IN_PROGRESS;
}

static hp_status sleep_until(wait_state *w) {
    hpi_control *own = hpi_world_control(w->world, w->world->rank);
    const int awaited = awaited_world_rank(w->reason);
    const uint64_t sleeper = hpi_sleeper_for(awaited);
    hpi_note *note = w->note = hpi_note_take(own);
    if (note)
        hpi_note_write(note, w->reason, awaited, w->begin_ns);
    hp_status status = HP_IN_PROGRESS;
    atomic_fetch_add_explicit(&own->sleepers, sleeper, memory_order_seq_cst);
    while (status == HP_IN_PROGRESS) {
        const uint32_t bump = atomic_load_explicit(&own->bump, memory_order_seq_cst);
        status = is_reached(w) ? HP_OK : look_around(w);
        if (status == HP_IN_PROGRESS)
            futex_wait(&own->bump, bump,
                       hpi_min(SLICE_NS, w->deadline_ns - hpi_min(hpi_now_ns(), w->deadline_ns)));
    }
    atomic_fetch_sub_explicit(&own->sleepers, sleeper, memory_order_seq_cst);
    if (status < 0)
        hpi_note_write(&own->failure, w->reason, awaited, w->begin_ns);
    hpi_note_free(note);
    return status;
}

hp_status hpi_world_wait(hp_world *world, const _Atomic uint64_t *word, hp_compare how,
                         uint64_t value, const hpi_reason *reason) {
    const bool spins = hpi_thread_spins(world);
    const bool shares = !world->can_spin && !never_spins;
    if (hpi_compare(atomic_load_explicit(word, memory_order_acquire), how, value) ||
        (spins && comes_soon(word, how, value)) ||
        (shares && comes_from_elsewhere(world, word, how, value, awaited_world_rank(reason))))
        return HP_OK;
    HP_TRY(hpi_world_usable(world));
    wait_state w = {world, word, how, value, reason, hpi_now_ns(), 0, 0, reason->timeout_ms,
                    0,     NULL};
    if (!w.timeout_ms)
        w.timeout_ms = hpi_timeout_ms(world, reason->group);
    w.deadline_ns = hpi_add_saturated(w.begin_ns, hpi_ms_to_ns(w.timeout_ms));
    w.next_look_ns = w.begin_ns + SLICE_NS;
    w.slow_ns = hpi_add_saturated(w.begin_ns, hpi_ms_to_ns(world->options.slow_wait_ms));
    if ((spins && spin(&w)) || (shares ? yield_a_while(&w) : yield_few(&w)))
        return HP_OK;
    if (shares)
        say_left(world);
    const hp_status status = sleep_until(&w);
    if (shares)
        say_core(world);
    return status;
}

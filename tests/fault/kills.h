/* SPDX-License-Identifier: Apache-2.0
 *
 * kills.h - every call of the library, and one rank that ends in the middle of it.
 *
 * A row of `kill_calls` is a call, made over and over until it fails. kill_run plays one job: a
 * seed chooses victim, fault and moment; kill_judge says what did not hold. Promised (SPEC C4):
 * each survivor gets an error that names the victim within a second of its end; of a rank that is
 * silent (stopped, never there) within the deadline and a second; the launcher names it; nothing is
 * left.
 */
#ifndef KILLS_H
#define KILLS_H

#include "fault/faults.h"
#include "support/tiny.h"

enum { KILL_LATE_MS = 300 }; /* the deadline where a rank falls silent */
enum { KILL_SMALL = 7, KILL_POCKET = 500, KILL_MEDIUM = 5000, KILL_LARGE = 200000 }; /* counts */
#define KILL_PROMISE_NS UINT64_C(1000000000)

/* ---- a rank's things ------------------------------------------------------------------------- */

typedef struct kill_call kill_call;

typedef struct kill_state {
    const kill_call *call;
    hp_world *world;
    int rank, n;
    hp_group *group; /* the world's */
    hp_symm memory, spare;
    void *in, *out; /* of the collectives: [n * count] each, in symmetric or ordinary memory */
    void *owned_in, *owned_out;
    uint64_t counts[FAULT_RANKS];
    hp_stream *stream;
    hp_trace *trace;
    tiny *model;
} kill_state;

struct kill_call {
    const char *name;
    hp_status (*setup)(kill_state *s); /* NULL: nothing to set up */
    hp_status (*once)(kill_state *s, uint64_t i);
    hp_collective what;
    uint64_t count;
    bool is_symmetric, is_on_stream;
    hp_wire wire;
    /* It waits in symm_wait, which cannot know who will signal: who leaves may not be missed, and
     * who falls silent is not named. */
    bool is_anonymous;
};

static char kill_folder[96]; /* of checkpoints */

/* ---- world, groups, memory ------------------------------------------------------------------- */

static inline hp_status kill_once_world(kill_state *s, uint64_t i) {
    (void)i;
    HP_TRY(hp_barrier(hp_world_group(s->world)));
    hp_world_destroy(s->world);
    s->world = NULL;
    HP_TRY(hp_world_create(NULL, &s->world));
    s->group = hp_world_group(s->world);
    return HP_OK;
}

/* Creating a group waits for nobody: a first barrier over it does. */
static inline hp_status kill_use_group(hp_group *group) {
    const hp_status status = group ? hp_barrier(group) : HP_OK;
    hp_group_destroy(group);
    return status;
}

static inline hp_status kill_once_create(kill_state *s, uint64_t i) {
    int ranks[FAULT_RANKS];
    hp_group *group;
    for (int k = 0; k < s->n; k++)
        ranks[k] = (k + (int)i) % s->n;
    HP_TRY(hp_group_create(s->world, ranks, s->n, &group));
    return kill_use_group(group);
}

static inline hp_status kill_once_split(kill_state *s, uint64_t i) {
    hp_group *group;
    HP_TRY(hp_group_split(s->group, 0, (int)i % 2 ? s->rank : -s->rank, &group));
    return kill_use_group(group);
}

static inline hp_status kill_once_duplicate(kill_state *s, uint64_t i) {
    hp_group *group;
    (void)i;
    HP_TRY(hp_group_duplicate(s->group, &group));
    return kill_use_group(group);
}

static inline hp_status kill_once_mesh(kill_state *s, uint64_t i) {
    hp_mesh *mesh;
    (void)i;
    HP_TRY(hp_mesh_create(s->world, (int[]){1, s->n}, 2, &mesh));
    const hp_status status = hp_barrier(hp_mesh_group(mesh, 1));
    hp_mesh_destroy(mesh);
    return status;
}

static inline hp_status kill_once_alloc(kill_state *s, uint64_t i) {
    hp_symm memory;
    HP_TRY(hp_symm_alloc(s->world, NULL, 64 << i % 12, 0, &memory));
    return hp_symm_free(memory);
}

static inline hp_status kill_once_spanning(kill_state *s, uint64_t i) {
    hp_symm memory;
    HP_TRY(hp_symm_alloc_spanning(s->world, NULL, 64 << i % 12, &memory));
    return hp_symm_free(memory);
}

/* A ring: put to the next, tell it, wait for the one before. */
static inline hp_status kill_setup_ring(kill_state *s) {
    HP_TRY(hp_symm_alloc(s->world, NULL, 4096, 0, &s->memory));
    return hp_symm_alloc(s->world, NULL, 64, 0, &s->spare);
}

static inline hp_status kill_once_put(kill_state *s, uint64_t i) {
    char bytes[1024] = {0};
    const int next = (s->rank + 1) % s->n;
    HP_TRY(hp_symm_put(s->memory, 0, bytes, sizeof bytes, next, NULL));
    HP_TRY(hp_symm_signal(s->spare, 0, HP_SIGNAL_ADD, 1, next, NULL));
    return hp_symm_wait(s->spare, 0, HP_GE, i + 1, 0);
}

static inline hp_status kill_once_put_signal(kill_state *s, uint64_t i) {
    char bytes[1024] = {0};
    const int next = (s->rank + 1) % s->n;
    HP_TRY(hp_symm_put_signal(s->memory, 1024, bytes, sizeof bytes, s->spare, 8, HP_SIGNAL_SET,
                              i + 1, next, NULL));
    HP_TRY(hp_symm_get(bytes, s->memory, 1024, sizeof bytes, next, NULL));
    return hp_symm_wait(s->spare, 8, HP_GE, i + 1, 0);
}

/* Nobody will ever signal: only the victim's end, or the deadline, ends it. */
static inline hp_status kill_once_wait(kill_state *s, uint64_t i) {
    (void)i;
    return hp_symm_wait(s->spare, 16, HP_NE, 0, 0);
}

/* ---- collectives ----------------------------------------------------------------------------- */

/* A thousandth of each for the counts of v forms to differ by rank. */
static inline uint64_t kill_count_of(const kill_state *s, int rank) {
    return s->call->count - s->call->count / 4 * (uint64_t)(rank % 2);
}

static inline hp_status kill_setup_coll(kill_state *s) {
    const kill_call *c = s->call;
    const uint64_t bytes = (uint64_t)s->n * (c->count + 1) * sizeof(float);
    for (int i = 0; i < s->n; i++)
        s->counts[i] = kill_count_of(s, i);
    if (c->is_on_stream)
        HP_TRY(hp_stream_create(NULL, &s->stream));
    if (c->is_symmetric) {
        HP_TRY(hp_symm_alloc(s->world, NULL, bytes, 0, &s->memory));
        HP_TRY(hp_symm_alloc(s->world, NULL, bytes, 0, &s->spare));
        HP_TRY(hp_symm_pointer(s->memory, s->rank, NULL, &s->in));
        return hp_symm_pointer(s->spare, s->rank, NULL, &s->out);
    }
    s->in = s->owned_in = calloc(bytes, 1);
    s->out = s->owned_out = calloc(bytes, 1);
    return s->in && s->out ? HP_OK
                           : hp_error_set(HP_ERR_MEMORY, __func__, "no room for %llu bytes",
                                          (unsigned long long)bytes);
}

/* The counts that a v form names; all-to-all-v: everybody sends the same to a rank. */
static inline void kill_fill_counts(const kill_state *s, uint64_t *equal, hp_coll_call *c) {
    c->count = s->call->count;
    for (int i = 0; i < s->n; i++)
        equal[i] = s->counts[s->rank];
    if (c->what == HP_ALL_GATHER_V || c->what == HP_REDUCE_SCATTER_V)
        c->count = s->counts[s->rank];
    c->in_counts = s->counts;
    c->out_counts = c->what == HP_ALL_TO_ALL_V ? equal : s->counts;
}

static inline hp_status kill_once_coll(kill_state *s, uint64_t i) {
    uint64_t equal[FAULT_RANKS];
    hp_coll_call c = HP_COLL_CALL_INIT;
    c.what = s->call->what;
    c.group = s->group;
    c.in = s->in;
    c.out = s->out;
    c.op = (hp_reduce)(i % 4);
    c.rank = (int)(i % (uint64_t)s->n);
    c.wire = s->call->wire;
    c.stream = s->stream;
    kill_fill_counts(s, equal, &c);
    HP_TRY(hp_coll_run(&c));
    return s->stream && i % 4 == 3 ? hp_stream_synchronize(s->stream) : HP_OK;
}

/* The root runs ahead, and waits for nobody in most of them. */
static inline hp_status kill_once_cast(kill_state *s, uint64_t i) {
    return hp_broadcast(s->group, s->out, i % 2 ? s->call->count : KILL_SMALL, HP_FP32, 0);
}

/* Round the ring: even ranks send first. The last of an odd ring finds both its neighbours even. */
static inline hp_status kill_once_send(kill_state *s, uint64_t i) {
    const int next = (s->rank + 1) % s->n, before = (s->rank + s->n - 1) % s->n;
    (void)i;
    if (s->rank % 2 == 0)
        HP_TRY(hp_send(s->group, s->in, s->call->count, HP_FP32, next));
    HP_TRY(hp_recv(s->group, s->out, s->call->count, HP_FP32, before));
    return s->rank % 2 ? hp_send(s->group, s->in, s->call->count, HP_FP32, next) : HP_OK;
}

/* ---- above: traces, training, checkpoints ------------------------------------------------------
 */

static inline hp_status kill_setup_trace(kill_state *s) {
    HP_TRY(kill_setup_coll(s));
    HP_TRY(hp_trace_create(s->rank, 1000, &s->trace));
    return hp_trace_thread(s->trace, 0);
}

static inline hp_status kill_setup_model_as(kill_state *s, hp_mode mode) {
    tiny_config config = TINY_CONFIG_INIT;
    config.n_units = 3;
    config.n_shards = s->n;
    config.fsdp.mode = mode;
    return tiny_create(s->world, &config, &s->model);
}

static inline hp_status kill_setup_model(kill_state *s) {
    return kill_setup_model_as(s, HP_PER_PARAM);
}

static inline hp_status kill_setup_mapped(kill_state *s) {
    return kill_setup_model_as(s, HP_MAPPED);
}

static inline hp_status kill_once_step(kill_state *s, uint64_t i) {
    double loss, norm;
    HP_TRY(tiny_step(s->model, (int)(i % 64), &loss));
    HP_TRY(hp_clip_grad_norm(tiny_fsdp(s->model), 1.0, 2.0, &norm));
    return hp_optimizer_step(tiny_optimizer(s->model), 1e-3);
}

static inline hp_status kill_once_save(kill_state *s, uint64_t i) {
    return hp_checkpoint_save(tiny_fsdp(s->model), tiny_optimizer(s->model), kill_folder, i + 1);
}

/* Ranks leave the pass at different units, and some are told so by others; in every fourth all but
 * one are in a checkpoint instead. */
static inline hp_status kill_once_reset(kill_state *s, uint64_t i) {
    hp_fsdp *fsdp = tiny_fsdp(s->model);
    const bool saves = i % 4 == 3 && s->rank != (int)(i / 4 % (uint64_t)s->n);
    hp_status status = saves ? kill_once_save(s, i) : hp_fsdp_begin(fsdp, HP_SYNC);
    for (int u = 0; !saves && status >= 0 && u < (int)((i + (uint64_t)s->rank) % 3); u++) {
        status = hp_forward_begin(hp_fsdp_unit(fsdp, u));
        status = status < 0 ? status : hp_forward_end(hp_fsdp_unit(fsdp, u));
    }
    if (status < 0 && status != HP_ERR_FAILED)
        return status;
    return hp_fsdp_reset(fsdp);
}

/* ---- the table ------------------------------------------------------------------------------- */

#define KILL_COLL(text, kind, n, is_symm, is_stream, on_wire)                                      \
    { text, kill_setup_coll, kill_once_coll, kind, n, is_symm, is_stream, on_wire, false }
#define KILL_CALL(text, setup, once)                                                               \
    { text, setup, once, HP_BARRIER, 0, false, false, HP_WIRE_FULL, false }
#define KILL_RING(text, once)                                                                      \
    { text, kill_setup_ring, once, HP_BARRIER, 0, false, false, HP_WIRE_FULL, true }

static const kill_call kill_calls[] = {
    KILL_CALL("world_create, world_destroy", NULL, kill_once_world),
    KILL_CALL("group_create", NULL, kill_once_create),
    KILL_CALL("group_split", NULL, kill_once_split),
    KILL_CALL("group_duplicate", NULL, kill_once_duplicate),
    KILL_CALL("mesh_create", NULL, kill_once_mesh),
    KILL_CALL("symm_alloc, symm_free", NULL, kill_once_alloc),
    KILL_CALL("symm_alloc_spanning, symm_free", NULL, kill_once_spanning),
    KILL_RING("symm_put, signal, wait", kill_once_put),
    KILL_RING("symm_put_signal, get, wait", kill_once_put_signal),
    KILL_RING("symm_wait for nobody", kill_once_wait),
    KILL_COLL("barrier", HP_BARRIER, KILL_SMALL, false, false, HP_WIRE_FULL),
    KILL_COLL("barrier, on a stream", HP_BARRIER, KILL_SMALL, false, true, HP_WIRE_FULL),
    KILL_COLL("all_gather, small", HP_ALL_GATHER, KILL_SMALL, false, false, HP_WIRE_FULL),
    KILL_COLL("all_gather, medium", HP_ALL_GATHER, KILL_MEDIUM, true, false, HP_WIRE_FULL),
    KILL_COLL("all_gather, large", HP_ALL_GATHER, KILL_LARGE, false, false, HP_WIRE_FULL),
    KILL_COLL("all_gather_v, medium", HP_ALL_GATHER_V, KILL_MEDIUM, false, false, HP_WIRE_FULL),
    KILL_COLL("reduce_scatter, small", HP_REDUCE_SCATTER, KILL_SMALL, true, false, HP_WIRE_FULL),
    KILL_COLL("reduce_scatter, large", HP_REDUCE_SCATTER, KILL_LARGE, true, false, HP_WIRE_FULL),
    KILL_COLL("reduce_scatter_v, medium", HP_REDUCE_SCATTER_V, KILL_MEDIUM, false, false,
              HP_WIRE_FULL),
    KILL_COLL("all_reduce, small", HP_ALL_REDUCE, KILL_SMALL, false, false, HP_WIRE_FULL),
    KILL_COLL("all_reduce, in pockets", HP_ALL_REDUCE, KILL_POCKET, true, false, HP_WIRE_FULL),
    KILL_COLL("all_reduce, large", HP_ALL_REDUCE, KILL_LARGE, true, false, HP_WIRE_FULL),
    KILL_COLL("all_reduce, large, ordinary", HP_ALL_REDUCE, KILL_LARGE, false, false, HP_WIRE_FULL),
    KILL_COLL("all_reduce, on a stream", HP_ALL_REDUCE, KILL_MEDIUM, false, true, HP_WIRE_FULL),
    KILL_COLL("all_reduce, bf16 wire", HP_ALL_REDUCE, KILL_MEDIUM, false, false, HP_WIRE_BF16),
    KILL_COLL("all_reduce, fp8 wire", HP_ALL_REDUCE, KILL_MEDIUM, true, false, HP_WIRE_FP8_E4M3),
    KILL_COLL("all_to_all, small", HP_ALL_TO_ALL, KILL_SMALL, true, false, HP_WIRE_FULL),
    KILL_COLL("all_to_all, large", HP_ALL_TO_ALL, KILL_LARGE, false, false, HP_WIRE_FULL),
    KILL_COLL("all_to_all_v, medium", HP_ALL_TO_ALL_V, KILL_MEDIUM, false, false, HP_WIRE_FULL),
    KILL_COLL("broadcast, small", HP_BROADCAST, KILL_SMALL, false, false, HP_WIRE_FULL),
    KILL_COLL("broadcast, medium", HP_BROADCAST, KILL_MEDIUM, true, false, HP_WIRE_FULL),
    {"broadcast, from one root", kill_setup_coll, kill_once_cast, HP_BROADCAST, KILL_MEDIUM, false,
     false, HP_WIRE_FULL, false},
    KILL_COLL("broadcast, large", HP_BROADCAST, KILL_LARGE, false, true, HP_WIRE_FULL),
    {"send, recv, small", kill_setup_coll, kill_once_send, HP_SEND, KILL_SMALL, false, false,
     HP_WIRE_FULL, false},
    {"send, recv, medium", kill_setup_coll, kill_once_send, HP_SEND, KILL_MEDIUM, false, false,
     HP_WIRE_FULL, false},
    {"send, recv, large", kill_setup_coll, kill_once_send, HP_SEND, KILL_LARGE, true, false,
     HP_WIRE_FULL, false},
    {"send, recv, large, ordinary", kill_setup_coll, kill_once_send, HP_SEND, KILL_LARGE, false,
     false, HP_WIRE_FULL, false},
    {"all_reduce, traced", kill_setup_trace, kill_once_coll, HP_ALL_REDUCE, KILL_MEDIUM, false,
     false, HP_WIRE_FULL, false},
    KILL_CALL("training step", kill_setup_model, kill_once_step),
    KILL_CALL("training step, mapped", kill_setup_mapped, kill_once_step),
    KILL_CALL("fsdp_reset", kill_setup_model, kill_once_reset),
    KILL_CALL("fsdp_reset, mapped", kill_setup_mapped, kill_once_reset),
    KILL_CALL("checkpoint_save", kill_setup_model, kill_once_save),
};
enum { N_KILL_CALLS = sizeof kill_calls / sizeof *kill_calls };

/* ---- one job --------------------------------------------------------------------------------- */

typedef struct kill_plan {
    fault_job job;
    const kill_call *call;
    bool is_at_start; /* the clock of the strike starts before hp_world_create, else at the call */
    bool is_tidy;     /* survivors destroy what they have, then end */
    uint64_t delay_ns;
} kill_plan;

static inline hp_status kill_work(kill_plan *p, kill_state *s) {
    fault_page *page = p->job.page;
    const bool is_victim = s->rank == p->job.victim;
    if (p->call->setup)
        HP_TRY(p->call->setup(s));
    fault_phase_set(page, s->rank, PHASE_CALL);
    if (is_victim && !p->is_at_start)
        fault_arm(page, p->job.how, p->delay_ns);
    for (uint64_t i = 0; !is_victim || !atomic_load(&page->is_time_to_leave); i++)
        HP_TRY(p->call->once(s, i));
    return HP_OK;
}

/* Without symm_free, which is collective: the world takes its memory with it. */
static inline void kill_drop(kill_state *s) {
    hp_stream_destroy(s->stream);
    tiny_destroy(s->model);
    if (s->trace)
        (void)!hp_trace_thread(NULL, 0);
    hp_trace_destroy(s->trace);
    hp_world_destroy(s->world);
    free(s->owned_in);
    free(s->owned_out);
}

static inline int kill_rank_main(void *argument) {
    kill_plan *p = argument;
    fault_page *page = p->job.page;
    kill_state s = {.call = p->call, .rank = fault_own_rank(), .n = p->job.n_ranks};
    const bool is_victim = s.rank == p->job.victim;
    atomic_store(&page->ranks[s.rank].pid, getpid());
    signal(SIGTERM, is_victim ? SIG_DFL : SIG_IGN);
    if (is_victim && p->job.how == FAULT_NEVER) {
        atomic_store(&page->struck_ns, hpi_now_ns());
        for (;;)
            pause();
    }
    if (is_victim && p->is_at_start)
        fault_arm(page, p->job.how, p->delay_ns);
    fault_phase_set(page, s.rank, PHASE_CREATE);
    hp_status status = hp_world_create(NULL, &s.world);
    if (!status) {
        fault_phase_set(page, s.rank, PHASE_SETUP);
        s.group = hp_world_group(s.world);
        status = kill_work(p, &s);
    }
    if (!status)
        atomic_store(&page->struck_ns, hpi_now_ns());
    else
        fault_note(page, s.rank, status);
    if (!status || p->is_tidy) {
        fault_phase_set(page, s.rank, PHASE_DESTROY);
        kill_drop(&s);
    }
    return status ? 5 : 0;
}

/* The job of a seed: any victim and moment; of the silent faults, which cost their deadline, few.
 */
static inline void kill_choose(kill_plan *p, uint64_t seed, fault_page *page) {
    uint64_t random = seed * 2 + 1;
    *p = (kill_plan){0};
    p->call = &kill_calls[seed % N_KILL_CALLS];
    p->job.n_ranks = 2 + (int)(hpi_random_next(&random) % 3);
    p->job.victim = (int)(hpi_random_next(&random) % (uint64_t)p->job.n_ranks);
    const uint64_t how = hpi_random_next(&random) % 40;
    p->job.how = how < 22   ? FAULT_KILL
                 : how < 38 ? (fault)(FAULT_CRASH + (how - 22) / 4)
                            : (fault)(FAULT_STOP + (how - 38));
    if (p->job.how == FAULT_LEAVE && p->call->is_anonymous)
        p->job.how = FAULT_EXIT_0;
    p->is_at_start = p->job.how != FAULT_LEAVE && hpi_random_next(&random) % 4 == 0;
    p->is_tidy = hpi_random_next(&random) % 2;
    p->delay_ns = hpi_random_next(&random) % (p->is_at_start ? 4000000 : 6000000);
    p->job.page = page;
    p->job.body = kill_rank_main;
    p->job.argument = p;
}

static inline bool kill_is_silent(const kill_plan *p) {
    return p->job.how == FAULT_STOP || p->job.how == FAULT_NEVER;
}

static inline hp_status kill_run(kill_plan *p) {
    char ms[16];
    snprintf(ms, sizeof ms, "%d", kill_is_silent(p) ? KILL_LATE_MS : 15000);
    setenv("SYMMETRIC_MEMORY_SIGNAL_TIMEOUT_MS", ms, 1);
    setenv("HYPER_PARALLEL_START_TIMEOUT_MS", ms, 1);
    setenv("SYMMETRIC_MEMORY_HEAP_SIZE", "16M", 1);
    p->job.grace_ms = kill_is_silent(p) ? 700 : 4000;
    const hp_status status = fault_launch(&p->job);
    unsetenv("SYMMETRIC_MEMORY_SIGNAL_TIMEOUT_MS"); /* jobs after it have time */
    unsetenv("HYPER_PARALLEL_START_TIMEOUT_MS");
    unsetenv("SYMMETRIC_MEMORY_HEAP_SIZE");
    return status;
}

/* ---- what must hold -------------------------------------------------------------------------- */

/* From the strike to the last survivor's error. */
static inline uint64_t kill_last_ns(const kill_plan *p) {
    const fault_page *page = p->job.page;
    uint64_t last_ns = atomic_load(&page->struck_ns);
    for (int i = 0; i < p->job.n_ranks; i++)
        if (i != p->job.victim)
            last_ns = hpi_max(last_ns, atomic_load(&page->ranks[i].noted_ns));
    return last_ns - atomic_load(&page->struck_ns);
}

static inline const char *kill_judge_launcher(const kill_plan *p) {
    char begin[32], how[48] = "";
    const int victim = p->job.victim;
    int expected = 5;
    if (p->job.how == FAULT_KILL || p->job.how == FAULT_CRASH) {
        const int number = p->job.how == FAULT_KILL ? SIGKILL : SIGSEGV;
        expected = 128 + number;
        snprintf(how, sizeof how, "was killed by SIG%s", sigabbrev_np(number));
    } else if (p->job.how == FAULT_EXIT_3) {
        expected = 3;
        snprintf(how, sizeof how, "ended with status 3");
    }
    if (p->job.exit_status != expected)
        return "another exit status than the victim's, or the survivors' own";
    snprintf(begin, sizeof begin, *how ? "rank %d (pid " : "rank %d was ", victim);
    return fault_was_said(&p->job, begin, how) ? NULL : "the launcher does not name the victim";
}

/* What did not hold, or NULL. */
static inline const char *kill_judge(const kill_plan *p) {
    const fault_page *page = p->job.page;
    if (!atomic_load(&page->struck_ns))
        return "the victim was not struck";
    for (int i = 0; i < p->job.n_ranks; i++) {
        const int status = atomic_load(&page->ranks[i].status);
        if (i == p->job.victim)
            continue;
        if (!status)
            return "a survivor got no error";
        if (status != HP_ERR_PEER && !(kill_is_silent(p) && status == HP_ERR_TIMEOUT))
            return "a survivor got another error";
        const int named = atomic_load(&page->ranks[i].world_rank);
        const bool may_be_nobody = p->call->is_anonymous && status == HP_ERR_TIMEOUT;
        if (named != p->job.victim && !(may_be_nobody && named < 0))
            return "a survivor names another rank";
    }
    const uint64_t silent_ns = kill_is_silent(p) ? KILL_LATE_MS * UINT64_C(1000000) : 0;
    if (kill_last_ns(p) > silent_ns + KILL_PROMISE_NS)
        return "a survivor got its error late";
    return kill_judge_launcher(p);
}

static inline void kill_print(const kill_plan *p, const char *what) {
    fprintf(stderr, "%s: %s%s%s\n", what, p->call->name,
            p->is_at_start ? ", struck at the start" : "", p->is_tidy ? ", tidy" : "");
    fault_print(&p->job);
}

#endif

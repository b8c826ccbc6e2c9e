/* SPDX-License-Identifier: Apache-2.0
 *
 * test_lives.c - worlds that come and go by the hundred, and a rank that forks.
 *
 * 200 worlds one after another leave no descriptor and no memory behind, among threads and among
 * processes, in one job and in one after the other. A forked child of a rank has the rank's memory
 * but is no rank: every call tells it so, at once, and whatever it does harms nobody.
 */
#include "fault/faults.h"
#include "support/ranks.h"
#include "support/tiny.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#ifdef __SANITIZE_ADDRESS__
enum { N_LIVES = 40, N_RANKS = 3 }; /* each costs ten times as much */
#else
enum { N_LIVES = 200, N_RANKS = 3 };
#endif

/* ---- lives ----------------------------------------------------------------------------------- */

/* Some of everything that a world can hold. */
static hp_status live(hp_world *world) {
    hp_group *half;
    hp_symm memory;
    int32_t mine = hp_world_rank(world), sum;
    HP_TRY(hp_group_split(hp_world_group(world), mine % 2, 0, &half));
    HP_TRY(hp_symm_alloc(world, NULL, 5000, 0, &memory));
    HP_TRY(hp_all_reduce(half, &mine, &sum, 1, HP_INT32, HP_SUM));
    hp_group_destroy(half);
    return HP_OK; /* without a barrier: some leave before others */
}

static hp_status live_once(const hp_world_config *config) {
    hp_world *world;
    HP_TRY(hp_world_create(config, &world));
    HP_TRY(live(world));
    hp_world_destroy(world);
    return HP_OK;
}

/* In one process, or thread, 200 worlds: its descriptors stay as many as after the first. */
static int lives_main(void *argument) {
    int n_fds = 0;
    (void)argument;
    for (int i = 0; i < N_LIVES; i++) {
        if (live_once(NULL)) {
            fprintf(stderr, "life %d of rank %d: %s\n", i, fault_own_rank(), hp_last_error());
            return 1;
        }
        if (i == 0)
            n_fds = fault_count_entries("/proc/self/fd");
    }
    return fault_count_entries("/proc/self/fd") != n_fds;
}

static void two_hundred_worlds_of_one_job(void **state) {
    hp_launch_config config = HP_LAUNCH_CONFIG_INIT;
    int status = -1;
    (void)state;
    config.n_ranks = N_RANKS;
    config.body = lives_main;
    config.deadline_ms = 60000;
    assert_int_equal(hp_launch(&config, &status), HP_OK);
    assert_int_equal(status, 0);
}

static void live_body(hp_world *world, void *argument) {
    (void)argument;
    RANK_OK(live(world));
}

static void two_hundred_jobs_of(ranks_kind kind) {
    char text[160];
    const fault_leftovers before = fault_look();
    for (int i = 0; i < N_LIVES; i++)
        ranks_run(N_RANKS, kind, live_body, NULL);
    if (fault_has_left(&before, text, sizeof text))
        fail_msg("left: %s", text);
}

static void two_hundred_jobs_of_threads(void **state) {
    (void)state;
    two_hundred_jobs_of(RANKS_THREADS);
}

static void two_hundred_jobs_of_processes(void **state) {
    (void)state;
    two_hundred_jobs_of(RANKS_PROCESSES);
}

/* ---- a forked child -------------------------------------------------------------------------- */

typedef struct things {
    hp_world *world;
    hp_group *group;
    hp_symm memory;
    hp_stream *stream;
    tiny *model;
} things;

static hp_status run_coll(const things *t, hp_collective what, hp_stream *stream) {
    static float in[64], out[64];
    static const uint64_t counts[N_RANKS] = {1, 2, 3};
    hp_coll_call c = HP_COLL_CALL_INIT;
    c.what = what;
    c.group = t->group;
    c.in = in;
    c.out = out;
    c.count = 2;
    c.in_counts = c.out_counts = counts;
    c.rank = 1;
    c.stream = stream;
    return hp_coll_run(&c);
}

static hp_status run_symm(const things *t, hp_symm_what what, hp_stream *stream) {
    static char bytes[16];
    const hp_symm_call c = {.size = sizeof c,
                            .what = what,
                            .memory = t->memory,
                            .source = bytes,
                            .target = bytes,
                            .bytes = sizeof bytes,
                            .signal = t->memory,
                            .signal_offset = 64,
                            .compare = HP_NE,
                            .rank = 1,
                            .stream = stream};
    return hp_symm_run(&c);
}

static int expect_forked(hp_status status, const char *call) {
    if (status == HP_ERR_FORKED)
        return 0;
    fprintf(stderr, "%s in a forked child gives %s: %s\n", call, hp_status_name(status),
            status < 0 ? hp_last_error() : "");
    return 1;
}

#define FORKED(call) expect_forked(call, #call)

static int forked_world(things *t) {
    hp_group *group;
    hp_mesh *mesh;
    int n = FORKED(hp_world_check(t->world));
    n += FORKED(hp_group_create(t->world, (int[]){0, 1, 2}, 3, &group));
    n += FORKED(hp_group_split(t->group, 0, 0, &group));
    n += FORKED(hp_group_duplicate(t->group, &group));
    return n + FORKED(hp_mesh_create(t->world, (int[]){N_RANKS}, 1, &mesh));
}

static int forked_symm(things *t) {
    char bytes[16] = {0};
    void *pointer;
    hp_symm memory;
    int n = FORKED(hp_symm_alloc(t->world, NULL, 64, 0, &memory));
    n += FORKED(hp_symm_alloc_spanning(t->world, NULL, 64, &memory));
    n += FORKED(hp_symm_put(t->memory, 0, bytes, sizeof bytes, 1, NULL));
    n += FORKED(hp_symm_get(bytes, t->memory, 0, sizeof bytes, 1, NULL));
    n += FORKED(hp_symm_signal(t->memory, 64, HP_SIGNAL_ADD, 1, 1, NULL));
    n += FORKED(hp_symm_put_signal(t->memory, 0, bytes, sizeof bytes, t->memory, 64, HP_SIGNAL_ADD,
                                   1, 1, NULL));
    n += FORKED(hp_symm_wait(t->memory, 64, HP_NE, 0, 100));
    n += FORKED(hp_symm_pointer(t->memory, 1, NULL, &pointer));
    n += FORKED(hp_symm_free(t->memory));
    for (int what = HP_SYMM_PUT; what <= HP_SYMM_WAIT; what++) {
        n += FORKED(run_symm(t, (hp_symm_what)what, NULL));
        n += FORKED(run_symm(t, (hp_symm_what)what, t->stream));
    }
    return n;
}

static int forked_coll(things *t) {
    float in[8] = {0}, out[32];
    const uint64_t counts[N_RANKS] = {1, 1, 1};
    int n = 0;
    for (int what = HP_ALL_GATHER; what <= HP_RECV; what++) {
        n += FORKED(run_coll(t, (hp_collective)what, NULL));
        n += FORKED(run_coll(t, (hp_collective)what, t->stream));
    }
    n += FORKED(hp_all_gather(t->group, in, out, 1, HP_FP32));
    n += FORKED(hp_reduce_scatter(t->group, in, out, 1, HP_FP32, HP_SUM));
    n += FORKED(hp_all_reduce(t->group, in, out, 1, HP_FP32, HP_SUM));
    n += FORKED(hp_broadcast(t->group, in, 1, HP_FP32, 0));
    n += FORKED(hp_all_to_all(t->group, in, out, 1, HP_FP32));
    n += FORKED(hp_all_to_all_v(t->group, in, counts, out, counts, HP_FP32));
    n += FORKED(hp_all_gather_v(t->group, in, out, counts, HP_FP32));
    n += FORKED(hp_reduce_scatter_v(t->group, in, out, counts, HP_FP32, HP_SUM));
    n += FORKED(hp_send(t->group, in, 1, HP_FP32, 1));
    n += FORKED(hp_recv(t->group, in, 1, HP_FP32, 1));
    return n + FORKED(hp_barrier(t->group));
}

static int forked_fsdp(things *t) {
    double loss, norm;
    int n = FORKED(tiny_step(t->model, 1, &loss));
    n += FORKED(hp_clip_grad_norm(tiny_fsdp(t->model), 1.0, 2.0, &norm));
    n += FORKED(hp_optimizer_step(tiny_optimizer(t->model), 0.1));
    return n + FORKED(hp_checkpoint_save(tiny_fsdp(t->model), NULL, "/nowhere", 1));
}

/* Everything once; then it ends as programs do, with what runs at exit. */
static void calling_child(things *t) {
    alarm(10); /* a call that hangs */
    exit(forked_world(t) + forked_symm(t) + forked_coll(t) + forked_fsdp(t));
}

/* It lets go of what is the parent's. What hangs on the world stays: it has threads there. */
static void leaving_child(things *t) {
    alarm(10);
    hp_group_destroy(t->group);
    hp_world_destroy(t->world);
    _exit(0);
}

static void fork_and_wait(void (*child_main)(things *t), things *t) {
    int status;
    const pid_t child = fork();
    RANK_CHECK(child >= 0);
    if (child == 0)
        child_main(t);
    RANK_CHECK(waitpid(child, &status, 0) == child);
    RANK_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static hp_status make_things(hp_world *world, things *t) {
    tiny_config config = TINY_CONFIG_INIT;
    config.n_shards = N_RANKS;
    t->world = world;
    HP_TRY(hp_group_duplicate(hp_world_group(world), &t->group));
    HP_TRY(hp_symm_alloc(world, NULL, 4096, 0, &t->memory));
    HP_TRY(hp_stream_create(NULL, &t->stream));
    return tiny_create(world, &config, &t->model);
}

static void fork_body(hp_world *world, void *argument) {
    things t = {0};
    double loss;
    (void)argument;
    RANK_OK(make_things(world, &t));
    RANK_OK(tiny_step(t.model, 0, &loss));
    if (hp_world_rank(world) == 0) {
        fork_and_wait(calling_child, &t);
        fork_and_wait(leaving_child, &t);
    }
    /* nothing has changed for the ranks */
    for (int step = 1; step < 4; step++)
        RANK_OK(tiny_step(t.model, step, &loss));
    for (int what = HP_ALL_GATHER; what <= HP_BARRIER; what++)
        if (what != HP_ALL_GATHER_V && what != HP_REDUCE_SCATTER_V && what != HP_ALL_TO_ALL_V)
            RANK_OK(run_coll(&t, (hp_collective)what, t.stream));
    RANK_OK(hp_stream_synchronize(t.stream));
    RANK_OK(hp_symm_free(t.memory));
    tiny_destroy(t.model);
    hp_stream_destroy(t.stream);
    hp_group_destroy(t.group);
}

static void a_forked_child_is_told_by_every_call(void **state) {
    (void)state;
    ranks_run(N_RANKS, RANKS_PROCESSES, fork_body, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_hundred_worlds_of_one_job),
        cmocka_unit_test(two_hundred_jobs_of_threads),
        cmocka_unit_test(two_hundred_jobs_of_processes),
        cmocka_unit_test(a_forked_child_is_told_by_every_call),
    };
    (void)fault_be_alone();
    return cmocka_run_group_tests_name("lives", tests, NULL, NULL);
}

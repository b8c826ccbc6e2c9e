/* SPDX-License-Identifier: Apache-2.0
 *
 * world.h - who we are: ranks, groups, the mesh, and how a job starts and ends.
 *
 * A world is all ranks of a job. It comes from hprun, from torchrun's environment (RANK,
 * WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT), from the mpirun of an MPI or
 * from srun, from the caller's own key-value store, or from a hub, where the ranks are threads of
 * one process. A program that was started by none of them is a world of one rank.
 *
 * Ranks that share memory are a *node*; which they are is found out by trying, under mpirun and
 * srun. A group may span nodes: its collectives and messages work alike, and give the same bits.
 *
 * Everything hangs from the world: destroy groups, meshes and what was built on them first.
 */
#ifndef HYPERPARALLEL_WORLD_H
#define HYPERPARALLEL_WORLD_H

#include <hyperparallel/base.h>

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

typedef struct hp_world hp_world;
typedef struct hp_group hp_group;
typedef struct hp_mesh hp_mesh;
typedef struct hp_hub hp_hub;

/* A key-value store that all ranks of a job share, used to start up and to form groups. */
typedef struct hp_store {
    void *context;
    /* Make `value` visible under `key`; a key is set once. */
    hp_status (*set)(void *context, const char *key, const void *value, size_t n_bytes);
    /* Wait until `key` is there, at most timeout_ms (else HP_ERR_TIMEOUT), and copy its value.
     * A value longer than `capacity` is HP_ERR_ARGUMENT. */
    hp_status (*get)(void *context, const char *key, void *out_value, size_t capacity,
                     size_t *out_n_bytes, uint64_t timeout_ms);
    void (*close)(void *context); /* called once by hp_world_destroy; may be NULL */
} hp_store;

typedef struct hp_world_config {
    size_t size;           /* sizeof(hp_world_config) */
    int rank, n_ranks;     /* -1: from the hub, hprun, the environment or the MPI */
    hp_hub *hub;           /* ranks are threads of this process; needs `rank` */
    const hp_store *store; /* needs rank and n_ranks; copied */
    uint32_t version;      /* HP_VERSION_NUMBER of the headers that the caller was compiled with */
} hp_world_config;
#define HP_WORLD_CONFIG_INIT                                                                       \
    { sizeof(hp_world_config), -1, -1, 0, 0, HP_VERSION_NUMBER }

/* Can this machine run the library? 1, or 0 with the reason in hp_last_error(): what the kernel or
 * the sandbox lacks. Threads: any. */
int hp_is_available(void);

/* Join the job. Collective over all ranks. config NULL: everything from the environment.
 * Errors: ARGUMENT, TIMEOUT and PEER naming the ranks that did not come, LIMIT, SYSTEM, VERSION. */
HP_MUST_CHECK hp_status hp_world_create(const hp_world_config *config, hp_world **out_world);
/* Leave. Not a barrier: peers that still wait for this rank get an error saying that it left. */
void hp_world_destroy(hp_world *world);

int hp_world_rank(const hp_world *world);
int hp_world_size(const hp_world *world);
int hp_world_local_rank(const hp_world *world); /* among the ranks of this node */
int hp_world_local_size(const hp_world *world);
/* The group of all ranks; owned by the world. */
hp_group *hp_world_group(const hp_world *world);
/* HP_OK while the launcher and every other rank are alive or left in order; else PEER naming what
 * died. */
HP_MUST_CHECK hp_status hp_world_check(hp_world *world);

/* A hub for ranks that are threads: create it once, give it to each rank's config, destroy it after
 * every rank has destroyed its world. */
HP_MUST_CHECK hp_status hp_hub_create(int n_ranks, hp_hub **out_hub);
void hp_hub_destroy(hp_hub *hub);

/* A group is an ordered list of ranks and a signal space of its own. A rank's number in the group
 * is its position in the list. Threads: set-up calls one at a time per world; a group from one
 * thread at a time (BUSY otherwise), different groups concurrently.
 *
 * Collective over the listed ranks only, all giving the same list; other ranks take no part. Waits
 * for nobody: what is wrong with another member (its list differs, it has no memory, it never
 * comes) is told by the first call that needs it: MISMATCH where two ranks wait for each other in
 * groups that the other never created; soon, when neither process has another thread that might
 * still do so, else at the deadline.
 *
 * A failure that is not about the arguments fails the group on every member: their calls in it end
 * with the status of the first failure (PEER for FAILED), naming that rank and its cause; a TIMEOUT
 * of one is so a TIMEOUT of all. Ranks that are in different calls of one group get MISMATCH, and
 * who waits for a rank that has destroyed the group PEER.
 * Errors: ARGUMENT (rank out of range or twice, own rank missing), MEMORY, LIMIT, TIMEOUT, PEER. */
HP_MUST_CHECK hp_status hp_group_create(hp_world *world, const int *world_ranks, int n_ranks,
                                        hp_group **out_group);
/* Collective over the parent: members with the same color form a group, ordered by key, then by
 * parent rank. A negative color: no group, *out_group is NULL. Carried as by HP_CARRIER_AUTO,
 * whatever carries the parent. */
HP_MUST_CHECK hp_status hp_group_split(hp_group *parent, int color, int key, hp_group **out_group);
/* The same ranks, carried alike, with a second signal space, so that both can be used concurrently.
 * Collective. */
HP_MUST_CHECK hp_status hp_group_duplicate(hp_group *group, hp_group **out_group);
/* What carries a group's collectives and messages. */
typedef enum hp_carrier {
    HP_CARRIER_AUTO = 0,     /* shared memory inside a node, the transport between nodes */
    HP_CARRIER_TRANSPORT = 1 /* the transport (MPI) between all members, also inside a node */
} hp_carrier;
/* The same ranks, carried as said. All members give the same carrier. Collective. Errors: as of
 * hp_group_create; UNSUPPORTED when the job has no transport (HYPER_PARALLEL_TRANSPORT). */
HP_MUST_CHECK hp_status hp_group_duplicate_over(hp_group *group, hp_carrier carrier,
                                                hp_group **out_group);
/* Local: needs nobody else. Takes NULL. */
void hp_group_destroy(hp_group *group);
/* How long this rank waits for another one in calls of the group, from the next wait on; 0: as long
 * as SYMMETRIC_MEMORY_SIGNAL_TIMEOUT_MS says. Local. Threads: any. Errors: ARGUMENT. */
HP_MUST_CHECK hp_status hp_group_timeout_set(hp_group *group, uint64_t timeout_ms);
/* End the group for all its members: their calls in it end with FAILED, which names this rank,
 * those that wait now and those of this rank's other threads too. It is still to be destroyed.
 * Local. Threads: any. Errors: ARGUMENT. */
HP_MUST_CHECK hp_status hp_group_cancel(hp_group *group);
/* Of a group that lives: NULL, as hp_group_split gives for a negative color, is none. */
int hp_group_rank(const hp_group *group);
int hp_group_size(const hp_group *group);
/* The rank in the world of a rank in the group; -1 when out of range. */
int hp_group_world_rank(const hp_group *group, int rank);
hp_world *hp_group_world(const hp_group *group);

/* A row-major mesh over the whole world: the last dimension varies fastest. One group per
 * dimension. For HSDP: {replicate, shard}, world rank = r * n_shard + s. Collective over the world.
 * Errors: ARGUMENT when the sizes do not multiply to the world's size, naming both. */
HP_MUST_CHECK hp_status hp_mesh_create(hp_world *world, const int *sizes, int n_dims,
                                       hp_mesh **out_mesh);
/* A mesh of ranks that do not exist, as `rank` of them would see it: for planning, with
 * HP_EXECUTOR_VIRTUAL. It has no world and no groups (NULL). Local. Errors: ARGUMENT, MEMORY. */
HP_MUST_CHECK hp_status hp_mesh_create_virtual(const int *sizes, int n_dims, int rank,
                                               hp_mesh **out_mesh);
void hp_mesh_destroy(hp_mesh *mesh);
int hp_mesh_n_dims(const hp_mesh *mesh);
int hp_mesh_size(const hp_mesh *mesh, int dim);
int hp_mesh_coordinate(const hp_mesh *mesh, int dim);
hp_group *hp_mesh_group(const hp_mesh *mesh, int dim); /* owned by the mesh */
hp_world *hp_mesh_world(const hp_mesh *mesh);

/* Start `n_ranks` local ranks and watch them: what hprun does. Each rank runs `argv`, or `body` in
 * a forked child when argv is NULL (tests). The ranks die with the caller. When a rank dies or
 * fails, the report names it and what every other rank waited for, and the others are ended. Where
 * all end with 2, the status of a wrong command line, they have said why: there is no report. */
typedef struct hp_launch_config {
    size_t size; /* sizeof(hp_launch_config) */
    int n_ranks;
    char *const *argv;           /* NULL-terminated; NULL: call body */
    int (*body)(void *argument); /* returns the exit status of the rank */
    void *argument;
    uint64_t grace_ms;    /* between asking the others to end and killing them; default 300 */
    uint64_t deadline_ms; /* 0: none; the whole job is ended after it, with its wait reasons */
    /* Receives each line of the report (no newline); NULL: lines are lost. */
    void (*say)(void *context, const char *line);
    void *say_context;
    /* How often all ranks are started anew after one has failed; 0. They find how often that was in
     * TORCHELASTIC_RESTART_COUNT, and this number in TORCHELASTIC_MAX_RESTARTS. Of the try before
     * nothing is left: no process, no memory, no socket. Where it lasted less than a second there
     * is a pause, 100 ms at first, doubled up to 10 s. Not started anew: a job that was told to end
     * (SIGINT, SIGTERM, SIGHUP), that is over its deadline, whose ranks all ended with 2. */
    int max_restarts;
    /* "HOST[:N],...": one mpirun starts N ranks (1) of argv on each host, n_ranks is not read, and
     * the ranks' transport is that MPI. Every try begins on the hosts that answer: fewer ranks
     * after one has died, and the old number when it is back. In the first all must. A host that
     * does not answer for 5 s ends the try, which an mpirun may never. NULL: the ranks run here. */
    const char *hosts;
    const char *mpi;   /* "openmpi" or "mpich"; NULL: the first whose mpirun is in PATH */
    const char *agent; /* starts a command on a host: AGENT HOST COMMAND...; NULL: ssh */
} hp_launch_config;
#define HP_LAUNCH_CONFIG_INIT                                                                      \
    { sizeof(hp_launch_config), 1, 0, 0, 0, 300, 0, 0, 0, 0, 0, 0, 0 }

/* SIGINT, SIGTERM, SIGUSR1, SIGUSR2 and SIGHUP are passed on to the ranks while it runs; a second
 * SIGINT or SIGTERM, 100 ms later or more, kills after the grace the ranks that have not ended.
 * *out_exit is 0 when every rank ended with 0, else the first failing rank's status (128 + signal
 * when killed), of the last try. Errors: ARGUMENT, SYSTEM, LIMIT (nothing was started, or not
 * again). */
HP_MUST_CHECK hp_status hp_launch(const hp_launch_config *config, int *out_exit);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif

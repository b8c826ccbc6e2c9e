/* SPDX-License-Identifier: Apache-2.0
 *
 * mpi.c - the transport of an MPI, built once for each ABI: Open MPI's and MPICH's.
 *
 * MPI belongs to the process, and wants to be ended by the thread that started it. So one thread of
 * the process, the *keeper*, starts it, opens and closes transports, and ends it when the process
 * exits: worlds may come and go before that. Where MPI can do with calls of one thread alone, or
 * the user wants it so, the keeper makes all of them; else whoever posts and tests makes his own,
 * and the keeper lends a hand to messages that do not end with their post: whoever waits for
 * another rank of his node tests nothing meanwhile, and that rank may wait for his message. A
 * program may have started MPI itself; then it ends it too. Nothing here waits inside MPI, but for
 * MPI_Init and MPI_Finalize. Source: MPI 3.1, 12.4 (threads), 8.7 (start and end).
 */
#include "mpi/wire.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FAIL(host, status, ...)                                                                    \
    ((void)(host)->fail((status), -1, __func__, __FILE__, __LINE__, __VA_ARGS__), (status))

#define TEXT_OF(number) #number
#define TEXT(number) TEXT_OF(number)
static const char own_version[] =
    TEXT(HP_VERSION_MAJOR) "." TEXT(HP_VERSION_MINOR) "." TEXT(HP_VERSION_PATCH);

enum { NS_PER_S = 1000000000, LEAST_STEP_NS = 10000, MOST_STEP_NS = 200000 };
enum { N_LAST_LOOKS = 20, LAST_LOOK_NS = 1000000, END_PATIENCE_S = 5 };

typedef struct port {
    hpi_transport_host host;
    hpi_transport_wish wish;
    hpi_transport *out;
    int n_ranks;
    MPI_Comm comm;
    wire *wire;
    struct port *next; /* of those that the keeper drives */
    hp_status status;
    bool is_lost;  /* nobody is to be met when it is closed */
    char why[160]; /* what the keeper has to say of a failure: error records are of threads */
} port;

/* What MPI is for this process. `lock` guards all of it. */
static struct keeper {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    pid_t process;           /* that the thread is of: a forked child has none */
    bool is_there;           /* the thread */
    bool is_ours;            /* we started MPI */
    bool is_driving;         /* all calls are the keeper's */
    bool is_ending;          /* the process exits */
    bool is_lost;            /* a transport failed: MPI_Finalize might wait for ever */
    int level;               /* of threads, as MPI says */
    void (*job)(port *port); /* to be run on the keeper; NULL: none */
    port *of_job;
    port *ports;              /* that it drives; the keeper's own */
    bool has_posts;           /* since it last drove them */
    _Atomic bool is_sleeping; /* until it is told of posts, or given a job */
} keeper = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

static void sleep_ns(uint64_t ns) {
    const struct timespec time = {.tv_sec = (time_t)(ns / NS_PER_S),
                                  .tv_nsec = (long)(ns % NS_PER_S)};
    nanosleep(&time, NULL);
}

/* ---- starting MPI, on the keeper --------------------------------------------------------------
 */

static hp_status say(port *l, hp_status status, const char *why) {
    l->status = status;
    snprintf(l->why, sizeof l->why, "%s", why);
    return status;
}

/* The program's own threads may be inside MPI at any moment, and only it knows which. */
static hp_status use_programs(port *l) {
    int is_over = 0;
    MPI_Finalized(&is_over);
    if (is_over)
        return say(l, HP_ERR_STATE,
                   "expected a process that has not ended its MPI, MPI_Finalize was called; an MPI "
                   "starts once");
    MPI_Query_thread(&keeper.level);
    if (keeper.level < MPI_THREAD_SERIALIZED || (l->wish.one_thread && !keeper.is_ours))
        return say(l, HP_ERR_STATE,
                   "the program started MPI for calls of one thread alone: expected "
                   "MPI_Init_thread with MPI_THREAD_MULTIPLE, or no MPI_Init at all");
    return HP_OK;
}

static hp_status start_mpi(port *l) {
    int is_started = 0;
    MPI_Initialized(&is_started);
    if (is_started && !keeper.is_ours)
        return use_programs(l);
    if (!is_started) {
        const int wanted = l->wish.one_thread ? MPI_THREAD_FUNNELED : MPI_THREAD_MULTIPLE;
        if (MPI_Init_thread(NULL, NULL, wanted, &keeper.level) != MPI_SUCCESS)
            return say(l, HP_ERR_SYSTEM, "MPI_Init_thread failed");
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
        keeper.is_ours = true;
        keeper.is_driving = keeper.level < MPI_THREAD_SERIALIZED || l->wish.one_thread;
    }
    if (l->wish.one_thread && !keeper.is_driving)
        return say(l, HP_ERR_STATE,
                   "expected the same HYPER_PARALLEL_TRANSPORT_THREADS as of the "
                   "first world of this process");
    return HP_OK;
}

/* ---- opening and closing, on the keeper -------------------------------------------------------
 */

/* Tests until all are done. False: MPI failed, or the time is over. */
static bool are_done_in_time(int n, MPI_Request *requests, uint64_t timeout_ms) {
    const uint64_t begin_ns = now_ns();
    uint64_t step_ns = LEAST_STEP_NS;
    for (int i = 0; i < n;) {
        int is_done = 0;
        if (MPI_Test(&requests[i], &is_done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
            return false;
        i += is_done;
        if (is_done)
            continue;
        if ((now_ns() - begin_ns) / 1000000 >= timeout_ms)
            return false;
        sleep_ns(step_ns);
        step_ns = step_ns * 2 < MOST_STEP_NS ? step_ns * 2 : MOST_STEP_NS;
    }
    return true;
}

/* Its messages are kept apart from the program's own. */
static hp_status open_comm(port *l) {
    MPI_Request request;
    if (MPI_Comm_idup(MPI_COMM_WORLD, &l->comm, &request) != MPI_SUCCESS ||
        !are_done_in_time(1, &request, l->wish.timeout_ms))
        return say(l, HP_ERR_TIMEOUT,
                   "expected every rank of the MPI job to open the transport in time");
    MPI_Comm_set_errhandler(l->comm, MPI_ERRORS_RETURN);
    const hp_status status = wire_create(&l->host, l->comm, keeper.is_driving, &l->wire);
    return status ? say(l, status, "expected room for the requests of an MPI") : HP_OK;
}

static void describe(port *l) {
    hpi_transport *t = l->out;
    char version[MPI_MAX_LIBRARY_VERSION_STRING], host[MPI_MAX_PROCESSOR_NAME];
    int length = 0;
    MPI_Comm_rank(l->comm, &t->rank);
    MPI_Comm_size(l->comm, &t->n_ranks);
    l->n_ranks = t->n_ranks;
    MPI_Get_library_version(version, &length);
    version[strcspn(version, "\n,")] = '\0';
    for (char *at = version; *at; at++)
        *at = *at == '\t' ? ' ' : *at;
    MPI_Get_processor_name(host, &length);
    snprintf(t->host, sizeof t->host, "%s", host);
    snprintf(t->about, sizeof t->about, "%.60s, %s", version,
             keeper.is_driving ? "calls of one thread" : "calls of any thread");
}

static void open_job(port *l) {
    if (start_mpi(l) || open_comm(l)) {
        keeper.is_lost = true;
        return;
    }
    describe(l);
    l->next = keeper.ports;
    keeper.ports = l;
}

static void forget(port *l) {
    for (port **at = &keeper.ports; *at; at = &(*at)->next)
        if (*at == l) {
            *at = l->next;
            return;
        }
}

/* Returns when all have come here: MPI_Finalize would spin until then. MPICH 4.0 over UCX and TCP
 * hangs in it, in one run of three, whatever the program, where the connection of a pair has not
 * come up whole, in both directions: a rank that is through looks at the network no more, and
 * another's connection to it is never closed. So each pair talks, and looks on for a while. */
static bool meet_all(const port *l) {
    int is_there;
    bool have_come = true;
    const int n = l->n_ranks;
    char *bytes = l->host.alloc((size_t)n + 1, 1);
    MPI_Request *requests = l->host.alloc((size_t)n * 2, sizeof *requests);
    for (int i = 0; bytes && requests && i < n; i++) {
        have_come &= MPI_Irecv(&bytes[i], 1, MPI_BYTE, i, WIRE_END_TAG, l->comm, &requests[i]) == 0;
        have_come &=
            MPI_Isend(&bytes[n], 1, MPI_BYTE, i, WIRE_END_TAG, l->comm, &requests[n + i]) == 0;
    }
    have_come =
        have_come && bytes && requests && are_done_in_time(2 * n, requests, l->wish.timeout_ms);
    for (int i = 0; have_come && i < N_LAST_LOOKS; i++) {
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, l->comm, &is_there, MPI_STATUS_IGNORE);
        sleep_ns(LAST_LOOK_NS);
    }
    if (have_come) /* else MPI may still use them */
        l->host.free(bytes);
    l->host.free(requests);
    return have_come;
}

static bool all_close(const port *l) {
    int is_over = 0;
    MPI_Finalized(&is_over);
    return !is_over && !l->is_lost && wire_is_clean(l->wire) && meet_all(l);
}

static void close_job(port *l) {
    forget(l);
    const bool is_lost = !all_close(l);
    wire_destroy(l->wire, is_lost);
    if (!is_lost)
        MPI_Comm_free(&l->comm);
    keeper.is_lost |= is_lost;
}

/* ---- the keeper -------------------------------------------------------------------------------
 */

static bool drive_ports(void) {
    bool is_busy = false;
    for (port *l = keeper.ports; l; l = l->next)
        is_busy |= wire_drive(l->wire);
    return is_busy;
}

static void run_job(void) {
    void (*const job)(port *) = keeper.job;
    port *const of_job = keeper.of_job;
    pthread_mutex_unlock(&keeper.lock); /* a job may take long; nobody else changes what it uses */
    job(of_job);
    pthread_mutex_lock(&keeper.lock);
    keeper.job = NULL;
    pthread_cond_broadcast(&keeper.changed);
}

static void wait_ns(uint64_t ns) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    ns += (uint64_t)until.tv_nsec;
    until.tv_sec += (time_t)(ns / NS_PER_S);
    until.tv_nsec = (long)(ns % NS_PER_S);
    pthread_cond_timedwait(&keeper.changed, &keeper.lock, &until);
}

static void *keep(void *unused) {
    uint64_t step_ns = LEAST_STEP_NS;
    (void)unused;
    pthread_mutex_lock(&keeper.lock);
    while (!keeper.is_ending) {
        if (keeper.job)
            run_job();
        if (keeper.has_posts)
            step_ns = LEAST_STEP_NS;
        keeper.has_posts = false;
        keeper.is_sleeping = true; /* before the look: who posts after it sees this, tell_keeper */
        const bool is_busy = drive_ports();
        keeper.is_sleeping &= !is_busy;
        if (is_busy) {
            wait_ns(step_ns);
            step_ns = step_ns * 2 < MOST_STEP_NS ? step_ns * 2 : MOST_STEP_NS;
        } else if (!keeper.job && !keeper.has_posts && !keeper.is_ending) {
            pthread_cond_wait(&keeper.changed, &keeper.lock);
        }
    }
    const bool ends_mpi = keeper.is_ours && !keeper.is_lost && !keeper.ports;
    pthread_mutex_unlock(&keeper.lock);
    if (ends_mpi)
        MPI_Finalize();
    return NULL;
}

/* A process that fails leaves without MPI_Finalize, as one does that is killed: its launcher sees
 * it, and nobody waits for the other ranks. One that is done is not kept by an MPI that hangs. */
static void end_keeper(int exit_status, void *unused) {
    (void)unused;
    if (getpid() != keeper.process)
        return;
    pthread_mutex_lock(&keeper.lock);
    keeper.is_lost |= exit_status != 0;
    keeper.is_ending = true;
    pthread_cond_broadcast(&keeper.changed);
    pthread_mutex_unlock(&keeper.lock);
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += END_PATIENCE_S;
    pthread_timedjoin_np(keeper.thread, NULL, &until);
}

static int start_keeper(void) {
    const int failed = keeper.is_there ? 0 : pthread_create(&keeper.thread, NULL, keep, NULL);
    if (!failed && !keeper.is_there)
        on_exit(end_keeper, NULL);
    keeper.process = getpid();
    keeper.is_there |= !failed;
    return failed;
}

/* Run `job` on the keeper and wait for it; one after another. */
static int on_keeper(void (*job)(port *), port *l) {
    pthread_mutex_lock(&keeper.lock);
    const int failed = start_keeper();
    if (!failed) {
        while (keeper.job)
            pthread_cond_wait(&keeper.changed, &keeper.lock);
        keeper.job = job;
        keeper.of_job = l;
        pthread_cond_broadcast(&keeper.changed);
        while (keeper.job == job && keeper.of_job == l)
            pthread_cond_wait(&keeper.changed, &keeper.lock);
    }
    pthread_mutex_unlock(&keeper.lock);
    return failed;
}

/* ---- the table --------------------------------------------------------------------------------
 */

static wire *wire_of(hpi_transport *t) {
    return ((port *)t->self)->wire;
}

/* Where it does not make all calls, only of what needs it and while it sleeps. */
static void tell_keeper(uint64_t bytes) {
    if (!keeper.is_driving && (bytes <= WIRE_SMALL_BYTES || !keeper.is_sleeping))
        return;
    pthread_mutex_lock(&keeper.lock);
    keeper.has_posts = true;
    pthread_cond_broadcast(&keeper.changed);
    pthread_mutex_unlock(&keeper.lock);
}

static hp_status post_send(hpi_transport *t, int to, uint64_t tag, const void *data, uint64_t bytes,
                           hpi_transfer **out_transfer) {
    const hp_status status = wire_send(wire_of(t), to, tag, data, bytes, out_transfer);
    tell_keeper(bytes);
    return status;
}

static hp_status post_recv(hpi_transport *t, int from, uint64_t tag, void *out_data, uint64_t bytes,
                           hpi_transfer **out_transfer) {
    const hp_status status = wire_receive(wire_of(t), from, tag, out_data, bytes, out_transfer);
    tell_keeper(bytes);
    return status;
}

static hp_status test(hpi_transport *t, hpi_transfer *transfer) {
    return wire_test(wire_of(t), transfer);
}

static hp_status cancel(hpi_transport *t, hpi_transfer *transfer) {
    return wire_cancel(wire_of(t), transfer);
}

static void close_transport(hpi_transport *t) {
    port *l = t->self;
    const hpi_transport_host host = l->host;
    l->is_lost = t->is_lost;
    (void)on_keeper(close_job, l);
    host.free(l);
}

static hp_status check_host(const hpi_transport_host *host) {
    if (host->size != sizeof *host || host->transport_size != sizeof(hpi_transport) ||
        strcmp(host->version, own_version) != 0)
        return FAIL(host, HP_ERR_VERSION, "expected a plug-in of library %s, it is of %s",
                    host->version, own_version);
    return HP_OK;
}

__attribute__((visibility("default"))) hpi_transport_plugin_open hp_transport_plugin_open;

hp_status hp_transport_plugin_open(const hpi_transport_host *host, const hpi_transport_wish *wish,
                                   hpi_transport *out_transport) {
    hp_status status = check_host(host);
    port *l = status ? NULL : host->alloc(1, sizeof *l);
    if (!l)
        return status ? status : HP_ERR_MEMORY;
    hpi_transport t = {.size = sizeof t,
                       .name = HP_MPI_NAME,
                       .self = l,
                       .post_send = post_send,
                       .post_recv = post_recv,
                       .test = test,
                       .cancel = cancel,
                       .close = close_transport};
    l->host = *host;
    l->wish = *wish;
    l->out = &t;
    const int failed = on_keeper(open_job, l);
    if (failed)
        status = FAIL(host, HP_ERR_SYSTEM, "expected a thread for MPI: %s", strerror(failed));
    else if (l->status)
        status = FAIL(host, l->status, "%s: %s", HP_MPI_NAME, l->why);
    if (status)
        host->free(l);
    else
        *out_transport = t;
    return status;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/beside/turns.c - who has the token, and what becomes of those who do not come back.
 *
 * Rank 0 holds a connection to every other rank and to every rank of the peer, and is the one that
 * waits with a deadline; the others read until their line comes or rank 0 is gone. Whatever rank 0
 * fails in, it first gives its own ranks their line, so that all fail alike.
 */
#include "../../perf/token.h"
#include "../fail.h"
#include "beside.h"

#include <cjson/cJSON.h>
#include <hyperparallel/coll.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

enum { LOOK_MS = 20, CLOSE_MS = 5000 }; /* how often the launcher is looked at */

struct beside {
    hp_world *world;
    const beside_row *row;
    int n, rank;
    int timeout_ms;
    bool has_failed, starves;
    int pid;      /* of the launcher, rank 0; 0: none */
    int listener; /* rank 0; -1: none */
    int mine;     /* the others: connection to rank 0 */
    int *ours;    /* [n], rank 0: connections, -1 where there is none */
    int *peers;   /* [n] */
    char version[TOKEN_LINE];
};

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* ---- the peer's end ---- */

/* What its launcher has come to, if it has. */
static hp_status look_at_launcher(beside *b, const char *when) {
    char how[64];
    if (!beside_has_ended(b->pid, how, sizeof how))
        return HP_OK;
    b->pid = 0;
    if (strcmp(how, BESIDE_NO_LAUNCHER) == 0)
        return fail(HP_ERR_STATE,
                    "expected %s in PATH for --beside %s; tools/setup.sh %s installs it",
                    b->row->launcher, b->row->name, b->row->group);
    return fail(HP_ERR_STATE, "expected %s to run the peer %s %s, it has ended: %s",
                b->row->launcher, b->row->name, when, how);
}

/* Until there is something to read. */
static hp_status await(beside *b, int fd, int64_t deadline_ms, const char *when) {
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, LOOK_MS) > 0)
            return HP_OK;
        TRY(look_at_launcher(b, when));
        if (now_ms() >= deadline_ms)
            return fail(HP_ERR_STATE, "expected the peer %s %s within %d ms, it is silent",
                        b->row->name, when, b->timeout_ms);
    }
}

/* ---- connecting ---- */

static hp_status listen_at(beside *b, const char *name) {
    struct sockaddr_un address;
    const socklen_t length = token_address(name, &address);
    b->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (b->listener < 0 || bind(b->listener, (struct sockaddr *)&address, length) ||
        listen(b->listener, 2 * b->n))
        return fail(HP_ERR_SYSTEM, "expected a socket for the token: %m");
    return HP_OK;
}

/* Of this user, with a rank that has not come yet. */
static int *place_of(beside *b, int fd, const char *hello) {
    char job[16] = "";
    int rank = -1, at = 0;
    struct ucred who;
    socklen_t size = sizeof who;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) || who.uid != geteuid() ||
        sscanf(hello, "%15s %d %n", job, &rank, &at) != 2 || rank < 0 || rank >= b->n)
        return NULL;
    const bool is_ours = strcmp(job, "ours") == 0;
    int *place = is_ours ? &b->ours[rank] : &b->peers[rank];
    if (!is_ours)
        snprintf(b->version, sizeof b->version, "%s", hello + at);
    return *place < 0 ? place : NULL;
}

static hp_status admit(beside *b, int64_t deadline_ms, const char *when) {
    char hello[TOKEN_LINE];
    TRY(await(b, b->listener, deadline_ms, when));
    const int fd = accept4(b->listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        return fail(HP_ERR_SYSTEM, "expected a connection for the token: %m");
    const hp_status status = await(b, fd, deadline_ms, when);
    int *place = status >= 0 && token_read(fd, hello) == 1 ? place_of(b, fd, hello) : NULL;
    if (place)
        *place = fd;
    else /* whoever it was: those that must come are still waited for */
        close(fd);
    return status;
}

static int n_missing(const beside *b) {
    int n = 0;
    for (int i = 0; i < b->n; i++)
        n += (i > 0 && b->ours[i] < 0) + (b->peers[i] < 0);
    return n;
}

static hp_status start_peer(beside *b, const char *name, const char *arguments) {
    const int64_t deadline_ms = now_ms() + b->timeout_ms;
    TRY(beside_look(b->row));
    b->pid = beside_start(b->row, b->n, name, arguments);
    if (b->pid < 0)
        return fail(HP_ERR_SYSTEM, "expected to start %s: %m", b->row->launcher);
    while (n_missing(b))
        TRY(admit(b, deadline_ms, "until its ranks have connected"));
    return HP_OK;
}

/* Rank 0 listens before the others come, and starts the peer. */
static hp_status meet(beside *b, const char *arguments) {
    char name[64] = "";
    if (b->rank == 0)
        snprintf(name, sizeof name, "hpperf-%d-%lld", (int)getpid(), (long long)now_ms());
    TRY(agree(b->world, b->rank ? HP_OK : listen_at(b, name)));
    TRY(hp_broadcast(hp_world_group(b->world), name, sizeof name, HP_INT8, 0));
    if (b->rank == 0)
        return start_peer(b, name, arguments);
    b->mine = token_connect(name, "ours", b->rank, "");
    return b->mine < 0 ? fail(HP_ERR_SYSTEM, "expected a connection for the token: %m") : HP_OK;
}

static beside *make(hp_world *world, const beside_row *row, int timeout_ms) {
    const int n = hp_world_size(world);
    beside *b = calloc(1, sizeof *b);
    int *fds = calloc(2 * (size_t)n, sizeof *fds);
    if (!b || !fds) {
        free(b);
        free(fds);
        return NULL;
    }
    *b = (beside){.world = world,
                  .row = row,
                  .n = n,
                  .rank = hp_world_rank(world),
                  .timeout_ms = timeout_ms,
                  .starves = row->cannot_yield && beside_n_cores() < n,
                  .listener = -1,
                  .mine = -1,
                  .ours = fds,
                  .peers = fds + n};
    for (int i = 0; i < 2 * n; i++)
        fds[i] = -1;
    return b;
}

hp_status beside_open(hp_world *world, const beside_row *row, const char *arguments, int timeout_ms,
                      beside **out_beside) {
    beside *b = make(world, row, timeout_ms);
    hp_status status = agree(world, b ? HP_OK : fail(HP_ERR_MEMORY, "expected memory"));
    if (status >= 0 && b)
        status = agree(world, meet(b, arguments));
    if (status >= 0)
        *out_beside = b;
    else if (b) {
        b->has_failed = true;
        beside_close(b);
    }
    return status;
}

/* ---- a turn ---- */

static hp_status read_reply(const beside *b, int peer, const char *const *names, int n,
                            const char *line, double *values) {
    cJSON *object = cJSON_Parse(line);
    bool is_whole = cJSON_IsObject(object);
    for (int i = 0; is_whole && i < n; i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, names[i]);
        is_whole = cJSON_IsNumber(item);
        if (is_whole && item->valuedouble > values[i])
            values[i] = item->valuedouble;
    }
    cJSON_Delete(object);
    if (is_whole)
        return HP_OK;
    return fail(HP_ERR_STATE, "expected rank %d of the peer %s to tell what it measured, given %s",
                peer, b->row->name, line);
}

static hp_status hear_peer(beside *b, int peer, int64_t deadline_ms, const char *const *names,
                           int n, double *values) {
    char line[TOKEN_LINE];
    TRY(await(b, b->peers[peer], deadline_ms, "to end its turn"));
    if (token_read(b->peers[peer], line) == 1)
        return read_reply(b, peer, names, n, line, values);
    return fail(HP_ERR_STATE, "expected rank %d of the peer %s to end its turn, it is gone", peer,
                b->row->name);
}

static hp_status lead_turn(beside *b, const char *what, const char *const *names, int n,
                           double *values) {
    const int64_t deadline_ms = now_ms() + b->timeout_ms;
    for (int i = 0; i < b->n; i++)
        if (token_write(b->peers[i], what))
            return fail(HP_ERR_STATE,
                        "expected rank %d of the peer %s to take its turn, it is gone", i,
                        b->row->name);
    for (int i = 0; i < b->n; i++)
        TRY(hear_peer(b, i, deadline_ms, names, n, values));
    return HP_OK;
}

/* Ours go on, whatever has become of the peer. */
static hp_status wake_ours(const beside *b) {
    hp_status status = HP_OK;
    for (int i = 1; i < b->n; i++)
        if (token_write(b->ours[i], "go on"))
            status = fail(HP_ERR_PEER, "expected rank %d to wait for the token, it is gone", i);
    return status;
}

static hp_status sleep_through(const beside *b) {
    char line[TOKEN_LINE];
    return token_read(b->mine, line) == 1
               ? HP_OK
               : fail(HP_ERR_PEER, "expected rank 0 to give back the token, it is gone");
}

hp_status beside_turn(beside *b, const char *what, const char *const *names, int n,
                      double *out_values) {
    hp_status status = HP_OK;
    for (int i = 0; i < n; i++)
        out_values[i] = 0;
    if (b->rank) {
        status = sleep_through(b);
    } else {
        status = lead_turn(b, what, names, n, out_values);
        const hp_status woken = wake_ours(b);
        status = status < 0 ? status : woken;
    }
    status = agree(b->world, status);
    b->has_failed = status < 0;
    TRY(status);
    return hp_all_reduce(hp_world_group(b->world), out_values, out_values, (uint64_t)n, HP_FP64,
                         HP_MAX);
}

bool beside_starves(const beside *b) {
    return b->starves;
}

const char *beside_version(const beside *b) {
    return b->version;
}

/* ---- the end ---- */

static void close_open(int fd) {
    if (fd >= 0)
        close(fd);
}

/* Readers see the end of the file and end; the launcher when all have. */
void beside_close(beside *b) {
    if (!b)
        return;
    for (int i = 0; i < 2 * b->n; i++)
        close_open(b->ours[i]);
    close_open(b->listener);
    close_open(b->mine);
    if (b->pid > 0)
        beside_stop(b->pid, b->has_failed ? 0 : CLOSE_MS);
    free(b->ours);
    free(b);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * store_tcp.c - the start-up store over TCP, where torchrun's environment says who we are.
 *
 * Rank 0 serves it in a thread on MASTER_ADDR for as long as the ranks join, no longer. The port is
 * HYPER_PARALLEL_STORE_PORT, else MASTER_PORT, else the one above when torchrun's own agent has a
 * store on MASTER_PORT. Each client greets with a number made of the job's id, restart and size, so
 * that the store of another job, or of an earlier start of this one, is not taken for ours.
 */
#include "store.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define MS UINT64_C(1000000)
enum { LOOK_MS = 100, LINGER_MS = 2000, RETRY_MS = 20, GREETING_MS = 10000, WHERE_BYTES = 96 };

typedef struct tcp_store {
    hp_store client;
    int fd; /* of the client */
    /* rank 0 only */
    hpi_store_server *server;
    int listen_fd, n_ranks;
    uint64_t deadline_ns;
    _Atomic bool is_closing; /* rank 0 itself is done */
    pthread_t thread;
    bool has_thread;
} tcp_store;

typedef struct tcp_place {
    const char *host;
    char port[8];
    char where[WHERE_BYTES];
} tcp_place;

/* ---- where, and whose ---------------------------------------------------------------------- */

static hp_status find_place(const hpi_options *options, tcp_place *out) {
    int64_t port;
    const char *agent = hpi_environment("TORCHELASTIC_USE_AGENT_STORE");
    const bool is_taken = agent && !strcmp(agent, "True");
    out->host = hpi_environment("MASTER_ADDR");
    HP_TRY(hpi_environment_int("MASTER_PORT", 1, 65534, 0, &port));
    if (!out->host || (!port && !options->store_port))
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected MASTER_ADDR and MASTER_PORT beside RANK and WORLD_SIZE, %s is "
                        "missing",
                        out->host ? "MASTER_PORT" : "MASTER_ADDR");
    port = options->store_port ? (int64_t)options->store_port : port + is_taken;
    snprintf(out->port, sizeof out->port, "%d", (int)port);
    snprintf(out->where, sizeof out->where, "%.80s:%s", out->host, out->port);
    return HP_OK;
}

/* FNV-1a over what tells one start of one job from another. */
static uint64_t job_number(void) {
    static const char *const names[] = {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
                                        "WORLD_SIZE", "MASTER_PORT"};
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *text = hpi_environment(names[i]);
        for (const char *at = text ? text : ""; *at; at++)
            hash = (hash ^ (unsigned char)*at) * UINT64_C(0x100000001b3);
        hash = (hash ^ 0xff) * UINT64_C(0x100000001b3);
    }
    return hash;
}

static hp_status resolve(const tcp_place *place, struct addrinfo **out) {
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    const int failed = getaddrinfo(place->host, place->port, &hints, out);
    if (failed)
        return HPI_FAIL(HP_ERR_SYSTEM, "expected MASTER_ADDR to be a host, %s: %s", place->host,
                        gai_strerror(failed));
    return HP_OK;
}

/* ---- rank 0: serving ----------------------------------------------------------------------- */

static int listen_at(int family, const struct sockaddr *address, socklen_t length) {
    const int on = 1;
    const int fd =
        hpi_fd_above_stdio(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd < 0)
        return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (!bind(fd, address, length) && !listen(fd, 1024))
        return fd;
    const int reason = errno;
    close(fd);
    errno = reason;
    return -1;
}

static hp_status open_listener(const tcp_place *place, int *out_fd) {
    struct addrinfo *all;
    HP_TRY(resolve(place, &all));
    int fd = -1;
    for (const struct addrinfo *a = all; a && fd < 0; a = a->ai_next)
        fd = listen_at(a->ai_family, a->ai_addr, a->ai_addrlen);
    if (fd < 0 && errno == EADDRNOTAVAIL) {
        /* the address reaches us, but is not one of ours: a port that was passed on */
        const struct sockaddr_in any = {.sin_family = AF_INET,
                                        .sin_port = htons((uint16_t)strtoul(place->port, NULL, 10)),
                                        .sin_addr.s_addr = htonl(INADDR_ANY)};
        fd = listen_at(AF_INET, (const struct sockaddr *)&any, sizeof any);
    }
    const int reason = errno;
    freeaddrinfo(all);
    if (fd < 0)
        return HPI_FAIL(HP_ERR_SYSTEM,
                        "expected to serve the start-up store at %s: %s "
                        "(HYPER_PARALLEL_STORE_PORT chooses another port)",
                        place->where, strerror(reason));
    *out_fd = fd;
    return HP_OK;
}

static void serve_once(tcp_store *t, struct pollfd *polls) {
    const int n = hpi_store_server_count(t->server);
    polls[0] = (struct pollfd){.fd = t->listen_fd, .events = POLLIN};
    for (int i = 0; i < n; i++)
        polls[1 + i] = (struct pollfd){.fd = hpi_store_server_fd(t->server, i), .events = POLLIN};
    if (poll(polls, (nfds_t)n + 1, LOOK_MS) <= 0)
        return;
    for (int i = 0; i < n; i++)
        if (polls[1 + i].revents)
            hpi_store_server_read(t->server, i);
    if (polls[0].revents) {
        const int fd = hpi_fd_above_stdio(accept4(t->listen_fd, NULL, NULL, SOCK_CLOEXEC));
        if (fd >= 0)
            (void)hpi_store_server_add(t->server, fd, -1);
    }
}

static void *serve(void *argument) {
    tcp_store *t = argument;
    struct pollfd *polls = hpi_alloc((size_t)t->n_ranks * 2 + 32, sizeof *polls);
    /* ranks that give up do so a little later than rank 0 does: they are served to the end */
    const uint64_t end_ns = t->deadline_ns + LINGER_MS * MS;
    while (polls && hpi_now_ns() < end_ns &&
           !(atomic_load_explicit(&t->is_closing, memory_order_acquire) &&
             hpi_store_server_is_done(t->server)))
        serve_once(t, polls);
    hpi_free(polls);
    return NULL;
}

static hp_status open_server(tcp_store *t, const tcp_place *place, uint64_t job) {
    int pair[2];
    HP_TRY(hpi_store_server_create(t->n_ranks, &t->server));
    hpi_store_server_expect(t->server, job);
    HP_TRY(open_listener(place, &t->listen_fd));
    if (hpi_fds_above_stdio(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), pair))
        return HPI_FAIL(HP_ERR_SYSTEM, "expected a socket pair: %s", strerror(errno));
    t->fd = pair[0];
    HP_TRY(hpi_store_server_add(t->server, pair[1], 0));
    const int failed = pthread_create(&t->thread, NULL, serve, t);
    if (failed)
        return HPI_FAIL(HP_ERR_SYSTEM, "expected a thread for the start-up store: %s",
                        strerror(failed));
    t->has_thread = true;
    return hpi_store_client(t->fd, place->where, 0, &t->client);
}

/* ---- the other ranks: connecting ------------------------------------------------------------ */

static int connect_once(const struct addrinfo *all) {
    const int on = 1;
    for (const struct addrinfo *a = all; a; a = a->ai_next) {
        const int fd = hpi_fd_above_stdio(socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
        if (fd >= 0 && !connect(fd, a->ai_addr, a->ai_addrlen)) {
            (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            return fd;
        }
        if (fd >= 0)
            close(fd);
    }
    return -1;
}

static uint64_t ms_until(uint64_t deadline_ns) {
    const uint64_t now_ns = hpi_now_ns();
    return now_ns < deadline_ns ? (deadline_ns - now_ns) / MS + 1 : 0;
}

/* One try: HP_IN_PROGRESS when a later one may do better. */
static hp_status try_server(tcp_store *t, const tcp_place *place, const struct addrinfo *all,
                            const hpi_store_greeting *greeting) {
    t->fd = connect_once(all);
    if (t->fd < 0) {
        (void)HPI_FAIL_RANK(
            HP_ERR_TIMEOUT, 0,
            "rank %d waited for rank 0 to serve the start-up store at %s, connect: %s",
            greeting->rank, place->where, strerror(errno));
        return HP_IN_PROGRESS;
    }
    HP_TRY(hpi_store_client(t->fd, place->where, 0, &t->client));
    const hp_status status =
        hpi_store_greet(&t->client, greeting, hpi_min(GREETING_MS, ms_until(t->deadline_ns)));
    if (!status)
        return HP_OK;
    t->client.close(t->client.context);
    t->client = (hp_store){0};
    close(t->fd);
    t->fd = -1;
    if (status == HP_ERR_TIMEOUT)
        return HPI_FAIL(status,
                        "something answers at %s, but it is not the start-up store of this "
                        "job (HYPER_PARALLEL_STORE_PORT chooses another port)",
                        place->where);
    /* an earlier start's store, or one that is just ending */
    return status == HP_ERR_MISMATCH || status == HP_ERR_PEER ? HP_IN_PROGRESS : status;
}

static hp_status connect_server(tcp_store *t, const tcp_place *place,
                                const hpi_store_greeting *greeting) {
    struct addrinfo *all;
    hp_status status;
    HP_TRY(resolve(place, &all));
    do {
        status = try_server(t, place, all, greeting);
        if (status == HP_IN_PROGRESS)
            hpi_sleep_ns(RETRY_MS * MS);
    } while (status == HP_IN_PROGRESS && ms_until(t->deadline_ns));
    freeaddrinfo(all);
    if (status == HP_IN_PROGRESS) {
        hp_error last;
        hp_last_error_get(&last);
        status = hpi_error_set(&last);
    }
    return status;
}

/* ---- the store ------------------------------------------------------------------------------ */

static hp_status tcp_set(void *context, const char *key, const void *value, size_t n_bytes) {
    const hp_store *client = &((tcp_store *)context)->client;
    return client->set(client->context, key, value, n_bytes);
}

static hp_status tcp_get(void *context, const char *key, void *out_value, size_t capacity,
                         size_t *out_n_bytes, uint64_t timeout_ms) {
    const hp_store *client = &((tcp_store *)context)->client;
    return client->get(client->context, key, out_value, capacity, out_n_bytes, timeout_ms);
}

static void tcp_close(void *context) {
    tcp_store *t = context;
    if (t->client.close)
        t->client.close(t->client.context);
    atomic_store_explicit(&t->is_closing, true, memory_order_release);
    if (t->has_thread)
        pthread_join(t->thread, NULL);
    hpi_store_server_destroy(t->server);
    if (t->listen_fd >= 0)
        close(t->listen_fd);
    if (t->fd >= 0)
        close(t->fd);
    hpi_free(t);
}

hp_status hpi_store_tcp(const hpi_options *options, int rank, int n_ranks, hp_store *out_store) {
    tcp_place place;
    HP_TRY(find_place(options, &place));
    tcp_store *t = hpi_alloc(1, sizeof *t);
    if (!t)
        return HP_ERR_MEMORY;
    t->fd = t->listen_fd = -1;
    t->n_ranks = n_ranks;
    t->deadline_ns = hpi_now_ns() + options->start_timeout_ms * MS;
    const hpi_store_greeting greeting = {HPI_STORE_PROTOCOL, rank, job_number()};
    const hp_status status =
        rank == 0 ? open_server(t, &place, greeting.job) : connect_server(t, &place, &greeting);
    if (status)
        tcp_close(t);
    else
        *out_store = (hp_store){t, tcp_set, tcp_get, tcp_close};
    return status;
}

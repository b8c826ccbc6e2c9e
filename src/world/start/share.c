/* SPDX-License-Identifier: Apache-2.0
 *
 * share.c - passing descriptors between the processes of a node.
 *
 * Each rank has a datagram socket with an abstract name: nothing lies in the file system, and it is
 * gone with its process. Anybody on the machine can send to it, so a message counts only when the
 * kernel says that it comes from our user and it holds the rank's secret, which only the start-up
 * store has told to the others. And a descriptor goes only to a name that a message of our user has
 * come from: who has fooled the store gets nothing. A sender that finds a full queue empties its
 * own meanwhile, so ranks that send to each other cannot block each other. What arrives for another
 * receive is kept, in room that is taken at the start: a receive never fails for want of memory. A
 * rank that gives up while the ranks start says so in a message without a descriptor. Source:
 * unix(7), SCM_RIGHTS, SCM_CREDENTIALS; SO_PASSPIDFD of Linux 6.5.
 */
#include "../inside.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

/* Newer than Debian 12's headers. */
#ifndef SO_PASSPIDFD
#define SO_PASSPIDFD 76
#endif
#ifndef SCM_PIDFD
#define SCM_PIDFD 4
#endif

#define SHARE_MAGIC UINT64_C(0x6572616873504848) /* "HHPshare" */
enum { NAME_BYTES = 8, SECRET_BYTES = HPI_TOKEN_BYTES - NAME_BYTES };
enum { MORE_PARCELS = 64 };                      /* than one of each rank */
enum { RECEIVE_LOOK_MS = 20, SEND_LOOK_MS = 1 }; /* a queue has room again soon */

#define REFUSAL_NS UINT64_C(500000000)
#define KEY_REFUSES UINT64_MAX
#define KEY_GREETS (UINT64_MAX - 1)

typedef struct share_message {
    uint64_t magic;
    unsigned char secret[SECRET_BYTES]; /* of the receiver */
    uint64_t key;
    int64_t from, culprit; /* of a refusal: whose fault it is */
} share_message;

typedef struct share_parcel {
    struct share_parcel *next;
    int from, fd;
    uint64_t key;
} share_parcel;

/* What messages without a descriptor have said of a rank. */
typedef struct share_heard {
    bool has_refused;
    int culprit;     /* ... because of that rank */
    bool is_greeted; /* our user is behind its socket's name */
    bool is_stranger;
    uid_t stranger;
} share_heard;

struct hpi_share {
    int fd;
    unsigned char token[HPI_TOKEN_BYTES];
    unsigned char *peers;         /* [n_ranks][HPI_TOKEN_BYTES] */
    int *pidfds;                  /* [n_ranks] of the processes that were heard; -1 none */
    pthread_mutex_t lock;         /* parcels, pidfds */
    share_parcel *parcels, *free; /* out of `pool` */
    share_parcel *pool;
    share_heard *heard; /* [n_ranks] */
    _Atomic uint64_t n_keys;
};

/* A token is the socket's name, which everybody can see, and the secret. */
static socklen_t address_of(const unsigned char *token, struct sockaddr_un *out) {
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    int length = snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "hyperparallel-");
    for (int i = 0; i < NAME_BYTES; i++)
        length += snprintf(out->sun_path + 1 + length, sizeof out->sun_path - 1 - (size_t)length,
                           "%02x", token[i]);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

static hp_status socket_open(hpi_share *s) {
    struct sockaddr_un address;
    const int on = 1;
    if (getrandom(s->token, sizeof s->token, 0) != (ssize_t)sizeof s->token)
        return HPI_FAIL(HP_ERR_SYSTEM, "expected random bytes, getrandom: %s", strerror(errno));
    s->fd = hpi_fd_above_stdio(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const socklen_t length = address_of(s->token, &address);
    if (s->fd < 0 || setsockopt(s->fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) ||
        bind(s->fd, (const struct sockaddr *)&address, length))
        return HPI_FAIL(HP_ERR_SYSTEM, "expected a socket to pass descriptors, the system says: %s",
                        strerror(errno));
    /* an older kernel refuses: then pidfd_open does */
    (void)setsockopt(s->fd, SOL_SOCKET, SO_PASSPIDFD, &on, sizeof on);
    return HP_OK;
}

static void give_parcel(hpi_share *s, share_parcel *parcel) {
    parcel->next = s->free;
    s->free = parcel;
}

hp_status hpi_share_open(hp_world *world, unsigned char *out_token) {
    const size_t n = (size_t)world->n_ranks;
    hpi_share *s = hpi_alloc(1, sizeof *s);
    if (!s)
        return HP_ERR_MEMORY;
    s->fd = -1;
    pthread_mutex_init(&s->lock, NULL);
    world->share = s;
    s->pidfds = hpi_alloc(n, sizeof *s->pidfds);
    for (size_t i = 0; s->pidfds && i < n; i++)
        s->pidfds[i] = -1;
    s->peers = hpi_alloc(n, HPI_TOKEN_BYTES);
    s->pool = hpi_alloc(n + MORE_PARCELS, sizeof *s->pool);
    s->heard = hpi_alloc(n, sizeof *s->heard);
    if (!s->peers || !s->pidfds || !s->pool || !s->heard)
        return HP_ERR_MEMORY;
    for (size_t i = 0; i < n + MORE_PARCELS; i++)
        give_parcel(s, &s->pool[i]);
    HP_TRY(socket_open(s));
    memcpy(out_token, s->token, HPI_TOKEN_BYTES);
    return HP_OK;
}

void hpi_share_close(hp_world *world) {
    hpi_share *s = world->share;
    if (!s)
        return;
    for (share_parcel *p = s->parcels; p; p = p->next)
        close(p->fd);
    for (int i = 0; s->pidfds && i < world->n_ranks; i++)
        if (s->pidfds[i] >= 0)
            close(s->pidfds[i]);
    if (s->fd >= 0)
        close(s->fd);
    pthread_mutex_destroy(&s->lock);
    hpi_free(s->pidfds);
    hpi_free(s->peers);
    hpi_free(s->pool);
    hpi_free(s->heard);
    hpi_free(s);
    world->share = NULL;
}

void hpi_share_peer(hp_world *world, int world_rank, const unsigned char *token) {
    memcpy(world->share->peers + world_rank * HPI_TOKEN_BYTES, token, HPI_TOKEN_BYTES);
}

uint64_t hpi_share_key(hp_world *world) {
    return world->share
               ? 1 + atomic_fetch_add_explicit(&world->share->n_keys, 1, memory_order_relaxed)
               : 0;
}

int hpi_share_pidfd(hp_world *world, int from) {
    const int fd = world->share->pidfds[from];
    world->share->pidfds[from] = -1;
    return fd;
}

/* ---- receiving ----------------------------------------------------------------------------- */

typedef union share_controls {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(struct ucred)) + 2 * CMSG_SPACE(sizeof(int))];
} share_controls;

typedef struct share_arrival {
    share_message message;
    int fd, pidfd; /* -1: none */
    struct ucred sender;
    struct sockaddr_un name; /* that it was sent from */
    socklen_t name_bytes;
} share_arrival;

/* A message of ours has one descriptor. A stranger's may have many, and none of them stays open. */
static void read_rights(const struct cmsghdr *c, share_arrival *a) {
    const size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < n; i++) {
        int fd;
        memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
        if (a->fd < 0)
            a->fd = fd;
        else
            close(fd);
    }
}

static void read_controls(struct msghdr *header, share_arrival *a) {
    for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c; c = CMSG_NXTHDR(header, c)) {
        if (c->cmsg_level != SOL_SOCKET)
            continue;
        if (c->cmsg_type == SCM_RIGHTS)
            read_rights(c, a);
        else if (c->cmsg_type == SCM_PIDFD && a->pidfd < 0)
            memcpy(&a->pidfd, CMSG_DATA(c), sizeof a->pidfd);
        else if (c->cmsg_type == SCM_CREDENTIALS)
            memcpy(&a->sender, CMSG_DATA(c), sizeof a->sender);
    }
}

/* Does it hold our secret? */
static bool is_meant(const hp_world *world, const share_arrival *a, ssize_t n_bytes) {
    return n_bytes == (ssize_t)sizeof a->message && a->message.magic == SHARE_MAGIC &&
           a->message.from >= 0 && a->message.from < world->n_ranks &&
           !memcmp(a->message.secret, world->share->token + NAME_BYTES, SECRET_BYTES);
}

static bool is_from_name_of(const hp_world *world, const share_arrival *a, int rank) {
    struct sockaddr_un name;
    const socklen_t n = address_of(world->share->peers + rank * HPI_TOKEN_BYTES, &name);
    return n == a->name_bytes && !memcmp(&name, &a->name, n);
}

/* A meant message that carries nothing but itself. */
static void hear(const hp_world *world, const share_arrival *a) {
    share_heard *h = &world->share->heard[a->message.from];
    if (a->sender.uid != geteuid()) {
        h->is_stranger = true;
        h->stranger = a->sender.uid;
    } else if (a->message.key == KEY_REFUSES) {
        const int64_t culprit = a->message.culprit;
        h->has_refused = true;
        h->culprit = (int)(culprit >= 0 && culprit < world->n_ranks ? culprit : a->message.from);
    } else if (a->message.key == KEY_GREETS) {
        h->is_greeted |= is_from_name_of(world, a, (int)a->message.from);
    }
}

static void keep(hp_world *world, share_arrival *a) {
    hpi_share *s = world->share;
    const int from = (int)a->message.from;
    share_parcel *parcel = s->free;
    s->free = parcel->next;
    if (s->pidfds[from] < 0) {
        s->pidfds[from] = a->pidfd >= 0
                              ? a->pidfd
                              : hpi_fd_above_stdio((int)syscall(SYS_pidfd_open, a->sender.pid, 0));
        a->pidfd = -1;
    }
    *parcel = (share_parcel){s->parcels, from, a->fd, a->message.key};
    s->parcels = parcel;
    a->fd = -1;
}

/* Take in one message. HP_IN_PROGRESS when there is none. A stranger's is dropped. */
static hp_status take_in(hp_world *world) {
    share_arrival a = {.fd = -1, .pidfd = -1, .sender.uid = (uid_t)-1};
    share_controls controls;
    struct iovec part = {&a.message, sizeof a.message};
    struct msghdr header = {.msg_name = &a.name,
                            .msg_namelen = sizeof a.name,
                            .msg_iov = &part,
                            .msg_iovlen = 1,
                            .msg_control = controls.bytes,
                            .msg_controllen = sizeof controls.bytes};
    if (!world->share->free)
        return HPI_FAIL(HP_ERR_LIMIT,
                        "expected to take what ranks pass, %d descriptors that nobody "
                        "asked for are kept already",
                        world->n_ranks + MORE_PARCELS);
    const ssize_t n_bytes = recvmsg(world->share->fd, &header, MSG_CMSG_CLOEXEC);
    if (n_bytes < 0)
        return errno == EAGAIN || errno == EINTR
                   ? HP_IN_PROGRESS
                   : HPI_FAIL(HP_ERR_SYSTEM, "expected a descriptor from a rank, recvmsg: %s",
                              strerror(errno));
    a.name_bytes = header.msg_namelen;
    read_controls(&header, &a);
    const bool has_come = a.fd >= 0;
    a.fd = hpi_fd_above_stdio(a.fd);
    a.pidfd = hpi_fd_above_stdio(a.pidfd);
    const bool is_ours = is_meant(world, &a, n_bytes);
    hp_status status = HP_OK;
    if (is_ours && a.fd < 0 && (has_come || header.msg_flags & MSG_CTRUNC))
        status = HPI_FAIL(HP_ERR_LIMIT, "expected to take a descriptor from a rank, this process "
                                        "may have no more of them (RLIMIT_NOFILE, ulimit -n)");
    else if (is_ours && (a.fd < 0 || a.sender.uid != geteuid()))
        hear(world, &a);
    else if (is_ours)
        keep(world, &a);
    if (a.fd >= 0)
        close(a.fd);
    if (a.pidfd >= 0)
        close(a.pidfd);
    return status;
}

/* All that lies there, but a stranger who sends without end keeps nobody from looking at the clock.
 */
static hp_status take_in_all(hp_world *world) {
    enum { MOST = 256 };
    hp_status status = HP_OK;
    pthread_mutex_lock(&world->share->lock);
    for (int n = 0; n < MOST && status == HP_OK; n++)
        status = take_in(world);
    pthread_mutex_unlock(&world->share->lock);
    return status < 0 ? status : HP_OK;
}

static bool find_parcel(hp_world *world, int from, uint64_t key, int *out_fd) {
    hpi_share *s = world->share;
    share_parcel *found = NULL;
    pthread_mutex_lock(&s->lock);
    for (share_parcel **at = &s->parcels; *at && !found;) {
        if ((*at)->from == from && (*at)->key == key) {
            found = *at;
            *at = found->next;
        } else {
            at = &(*at)->next;
        }
    }
    if (found) {
        *out_fd = found->fd;
        give_parcel(s, found);
    }
    pthread_mutex_unlock(&s->lock);
    return found;
}

static share_heard heard_of(hp_world *world, int rank) {
    pthread_mutex_lock(&world->share->lock);
    const share_heard heard = world->share->heard[rank];
    pthread_mutex_unlock(&world->share->lock);
    return heard;
}

static hp_status fail_dead(hp_world *world, int rank) {
    return HPI_FAIL_RANK(HP_ERR_PEER, rank,
                         "rank %d died while rank %d exchanged shared memory with it", rank,
                         world->rank);
}

static bool is_starting(const hp_world *world) {
    return !world->generation;
}

/* Has this rank ended, refused, or another user? */
static hp_status look_at(hp_world *world, int rank) {
    const bool is_gone = atomic_load_explicit(&world->is_gone[rank], memory_order_acquire);
    const bool is_dead = hpi_liveness_is_dead(world, rank) || (is_gone && is_starting(world));
    if (is_dead) /* its last word may be that it has refused */
        HP_TRY(take_in_all(world));
    const share_heard heard = heard_of(world, rank);
    if (heard.is_stranger)
        return HPI_FAIL_RANK(HP_ERR_MISMATCH, rank,
                             "expected every rank to run as one user, rank %d runs as %d and rank "
                             "%d as %d",
                             world->rank, (int)geteuid(), rank, (int)heard.stranger);
    if (heard.has_refused)
        return HPI_FAIL_RANK(HP_ERR_PEER, heard.culprit,
                             "rank %d gave up while the ranks started, because of rank %d", rank,
                             heard.culprit);
    return is_dead ? fail_dead(world, rank) : HP_OK;
}

/* Wait a little for the own socket, then see whether there is still hope to hear of `rank`. While
 * the ranks start, the end of any of them ends it: `rank` itself may have seen that and given up.
 */
static hp_status wait_a_little(hp_world *world, int ms, int rank, const char *what,
                               uint64_t deadline_ns) {
    struct pollfd own = {.fd = world->share->fd, .events = POLLIN};
    (void)poll(&own, 1, ms);
    hpi_liveness_poll(world);
    HP_TRY(look_at(world, rank));
    for (int i = 0; i < world->n_ranks && is_starting(world); i++)
        HP_TRY(look_at(world, i));
    if (atomic_load_explicit(&world->is_launcher_gone, memory_order_acquire))
        return HPI_FAIL(HP_ERR_PEER, "the launcher (hprun) died before rank %d had %s rank %d",
                        world->rank, what, rank);
    if (hpi_now_ns() > deadline_ns)
        return HPI_FAIL_RANK(HP_ERR_TIMEOUT, rank, "rank %d waited %llu ms and has not %s rank %d",
                             world->rank, (unsigned long long)world->options.start_timeout_ms, what,
                             rank);
    return HP_OK;
}

static uint64_t deadline_of(const hp_world *world) {
    return hpi_now_ns() + world->options.start_timeout_ms * UINT64_C(1000000);
}

static hp_status receive(hp_world *world, int from, uint64_t key, const hp_group *group,
                         int *out_fd) {
    const uint64_t deadline_ns = deadline_of(world);
    for (;;) {
        HP_TRY(take_in_all(world));
        if (find_parcel(world, from, key, out_fd))
            return HP_OK;
        const int failed = group ? hpi_group_find_failed(group) : -1;
        if (failed >= 0)
            return hpi_group_told(group, failed, "a descriptor was to come");
        HP_TRY(wait_a_little(world, RECEIVE_LOOK_MS, from, "received shared memory from",
                             deadline_ns));
    }
}

/* Say whom this rank waits for, as every wait does, to those who wait for it. */
static void explain(hpi_note *note, int rank, const hp_group *group, uint64_t begin_ns) {
    const hpi_reason reason = {"the exchange of shared memory", group, -1, 0, 0, 0};
    if (note)
        hpi_note_write(note, &reason, rank, begin_ns);
}

hp_status hpi_share_receive(hp_world *world, int from, uint64_t key, const hp_group *group,
                            int *out_fd) {
    hpi_control *own = hpi_world_control(world, world->rank);
    const uint64_t begin_ns = hpi_now_ns();
    hpi_note *note = hpi_note_take(own);
    explain(note, from, group, begin_ns);
    const hp_status status = receive(world, from, key, group, out_fd);
    if (status)
        explain(&own->failure, from, group, begin_ns);
    hpi_note_free(note);
    return status;
}

/* ---- sending ------------------------------------------------------------------------------- */

static ssize_t send_once(hp_world *world, int to, const share_message *message, int fd) {
    struct sockaddr_un address;
    share_controls controls = {.bytes = {0}};
    struct iovec part = {(void *)(uintptr_t)message, sizeof *message};
    const socklen_t length = address_of(world->share->peers + to * HPI_TOKEN_BYTES, &address);
    struct msghdr header = {
        .msg_name = &address, .msg_namelen = length, .msg_iov = &part, .msg_iovlen = 1};
    if (fd >= 0) {
        header.msg_control = controls.bytes;
        header.msg_controllen = CMSG_SPACE(sizeof fd);
        struct cmsghdr *c = CMSG_FIRSTHDR(&header);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    return sendmsg(world->share->fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* To `to`, which has told us its secret. */
static share_message message_to(const hp_world *world, int to, uint64_t key) {
    share_message message = {.magic = SHARE_MAGIC, .key = key, .from = world->rank};
    memcpy(message.secret, world->share->peers + to * HPI_TOKEN_BYTES + NAME_BYTES, SECRET_BYTES);
    return message;
}

void hpi_share_refuse(hp_world *world, int culprit) {
    if (world->share->fd < 0) /* it was not opened, so nobody waits for it */
        return;
    for (int i = 0; i < world->n_ranks; i++) {
        share_message message = message_to(world, i, KEY_REFUSES);
        message.culprit = culprit;
        if (i != world->rank) /* a full queue is not waited for: its deadline is the rank's own */
            (void)send_once(world, i, &message, -1);
    }
}

/* fd -1: a message alone. For refusal_ns a refusal is not believed. */
static hp_status deliver(hp_world *world, int to, uint64_t key, int fd, uint64_t refusal_ns) {
    const uint64_t deadline_ns = deadline_of(world);
    const uint64_t refusal_end_ns = hpi_now_ns() + refusal_ns;
    const share_message message = message_to(world, to, key);
    while (send_once(world, to, &message, fd) < 0) {
        /* a dying process closes its socket a little before it has ended: look more than once */
        if (errno == ECONNREFUSED && hpi_now_ns() >= refusal_end_ns)
            return HPI_FAIL_RANK(HP_ERR_UNSUPPORTED, to,
                                 "rank %d cannot reach rank %d to share memory: it is in another "
                                 "network namespace of this machine",
                                 world->rank, to);
        if (errno != EAGAIN && errno != ECONNREFUSED && errno != ENOBUFS && errno != EINTR &&
            errno != ETOOMANYREFS)
            return HPI_FAIL_RANK(HP_ERR_SYSTEM, to,
                                 "expected to pass memory to rank %d, sendmsg: %s", to,
                                 strerror(errno));
        HP_TRY(take_in_all(world));
        HP_TRY(wait_a_little(world, SEND_LOOK_MS, to, "passed shared memory to", deadline_ns));
    }
    return HP_OK;
}

hp_status hpi_share_greet(hp_world *world, int to) {
    return deliver(world, to, KEY_GREETS, -1, REFUSAL_NS);
}

hp_status hpi_share_try(hp_world *world, int to, bool *out_reaches) {
    const hp_status status = deliver(world, to, KEY_GREETS, -1, 0);
    *out_reaches = status == HP_OK;
    return status == HP_ERR_UNSUPPORTED ? HP_OK : status;
}

static hp_status await_greeting(hp_world *world, int from) {
    const uint64_t deadline_ns = deadline_of(world);
    while (!heard_of(world, from).is_greeted) {
        HP_TRY(take_in_all(world));
        if (!heard_of(world, from).is_greeted)
            HP_TRY(wait_a_little(world, RECEIVE_LOOK_MS, from, "heard of", deadline_ns));
    }
    return HP_OK;
}

hp_status hpi_share_send(hp_world *world, int to, uint64_t key, int fd) {
    hpi_control *own = hpi_world_control(world, world->rank);
    const uint64_t begin_ns = hpi_now_ns();
    hpi_note *note = hpi_note_take(own);
    explain(note, to, NULL, begin_ns);
    hp_status status = await_greeting(world, to);
    if (!status)
        status = deliver(world, to, key, fd, REFUSAL_NS);
    if (status)
        explain(&own->failure, to, NULL, begin_ns);
    hpi_note_free(note);
    return status;
}

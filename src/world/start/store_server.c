/* SPDX-License-Identifier: Apache-2.0
 *
 * store_server.c - the key-value store itself, for whoever has a poll loop.
 *
 * Connections are read without blocking into a buffer that holds one whole message; a get that
 * finds no value is parked on its connection. A connection that closes without BYE is a rank that
 * ended: as starting up takes every rank, all parked gets are then answered with its number, and so
 * is every later get that would have to wait.
 */
#include "store.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MESSAGE_BYTES = sizeof(hpi_store_head) + HPI_STORE_KEY_BYTES + HPI_STORE_VALUE_BYTES };

typedef struct store_value {
    struct store_value *next;
    char key[HPI_STORE_KEY_BYTES];
    int n_reads;
    uint32_t n_bytes;
    char bytes[];
} store_value;

typedef struct store_connection {
    int fd; /* -1: closed */
    int rank;
    uint64_t serial;    /* later ones have larger ones */
    bool is_known;      /* may ask */
    bool is_done;       /* said BYE: its end is in order */
    uint32_t parked_id; /* of a get that waits; 0: none */
    char parked[HPI_STORE_KEY_BYTES];
    size_t n_bytes;
    union {
        hpi_store_head head;
        char bytes[MESSAGE_BYTES];
    } in;
} store_connection;

struct hpi_store_server {
    int n_ranks, n_connections, ended_rank;
    uint64_t job, n_added;
    store_connection **connections;
    int capacity;
    store_value *values;
};

hp_status hpi_store_server_create(int n_ranks, hpi_store_server **out_server) {
    hpi_store_server *s = hpi_alloc(1, sizeof *s);
    if (!s)
        return HP_ERR_MEMORY;
    s->n_ranks = n_ranks;
    s->ended_rank = -1;
    s->capacity = 2 * n_ranks + 16; /* strangers may knock */
    s->connections = hpi_alloc((size_t)s->capacity, sizeof *s->connections);
    if (!s->connections) {
        hpi_free(s);
        return HP_ERR_MEMORY;
    }
    *out_server = s;
    return HP_OK;
}

static void connection_close(store_connection *c) {
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    c->parked_id = 0;
}

void hpi_store_server_destroy(hpi_store_server *s) {
    if (!s)
        return;
    for (int i = 0; i < s->n_connections; i++) {
        connection_close(s->connections[i]);
        hpi_free(s->connections[i]);
    }
    for (store_value *v = s->values, *next; v; v = next) {
        next = v->next;
        hpi_free(v);
    }
    hpi_free(s->connections);
    hpi_free(s);
}

/* A place for one more: a closed connection's, a new one, else that of the stranger who came first
 * and has not said who it is: whoever belongs to us says so at once. -1: none. */
static int find_room(const hpi_store_server *s) {
    int oldest = -1;
    for (int i = 0; i < s->n_connections; i++) {
        const store_connection *c = s->connections[i];
        if (c->fd < 0)
            return i;
        if (!c->is_known && (oldest < 0 || c->serial < s->connections[oldest]->serial))
            oldest = i;
    }
    return s->n_connections < s->capacity ? s->n_connections : oldest;
}

hp_status hpi_store_server_add(hpi_store_server *s, int fd, int rank) {
    const int i = find_room(s);
    if (i < 0) {
        close(fd);
        return HPI_FAIL(HP_ERR_LIMIT, "expected at most %d connections to the store", s->capacity);
    }
    if (i == s->n_connections) {
        s->connections[i] = hpi_alloc(1, sizeof **s->connections);
        if (!s->connections[i]) {
            close(fd);
            return HP_ERR_MEMORY;
        }
        s->connections[i]->fd = -1;
        s->n_connections++;
    }
    connection_close(s->connections[i]);
    store_connection *c = s->connections[i];
    c->fd = fd;
    c->serial = ++s->n_added;
    c->rank = rank;
    c->is_known = rank >= 0;
    c->is_done = false;
    c->n_bytes = 0;
    c->parked_id = 0;
    return HP_OK;
}

void hpi_store_server_expect(hpi_store_server *s, uint64_t job) {
    s->job = job;
}
int hpi_store_server_count(const hpi_store_server *s) {
    return s->n_connections;
}
int hpi_store_server_fd(const hpi_store_server *s, int index) {
    return s->connections[index]->fd;
}
bool hpi_store_server_is_done(const hpi_store_server *s) {
    for (int i = 0; i < s->n_connections; i++)
        if (s->connections[i]->fd >= 0 && s->connections[i]->is_known &&
            !s->connections[i]->is_done)
            return false;
    return true;
}

/* ---- answering ----------------------------------------------------------------------------- */

static void reply(store_connection *c, uint32_t id, hp_status status, int rank, const void *value,
                  uint32_t n_bytes) {
    struct {
        hpi_store_head head;
        char body[HPI_STORE_VALUE_BYTES];
    } message = {0};
    message.head = (hpi_store_head){HPI_STORE_MAGIC, HPI_STORE_REPLY, id, status, rank, 0, n_bytes};
    if (n_bytes)
        memcpy(message.body, value, n_bytes);
    const size_t length = sizeof message.head + n_bytes;
    /* a client that has ended, or lets its buffer fill up: the next read finds its end */
    if (send(c->fd, &message, length, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)length)
        shutdown(c->fd, SHUT_RDWR);
}

/* Answer a get from `v`; forget the value when it was the last rank's. */
static void serve_value(hpi_store_server *s, store_connection *c, uint32_t id, store_value **at) {
    store_value *v = *at;
    reply(c, id, HP_OK, -1, v->bytes, v->n_bytes);
    if (++v->n_reads < s->n_ranks)
        return;
    *at = v->next;
    hpi_free(v);
}

static store_value **find_value(hpi_store_server *s, const char *key) {
    store_value **at = &s->values;
    while (*at && strcmp((*at)->key, key))
        at = &(*at)->next;
    return at;
}

static void serve_get(hpi_store_server *s, store_connection *c, uint32_t id, const char *key) {
    store_value **at = find_value(s, key);
    if (*at) {
        serve_value(s, c, id, at);
    } else if (s->ended_rank >= 0) {
        reply(c, id, HP_ERR_PEER, s->ended_rank, NULL, 0);
    } else {
        c->parked_id = id;
        memcpy(c->parked, key, sizeof c->parked);
    }
}

static void serve_set(hpi_store_server *s, store_connection *c, uint32_t id, const char *key,
                      const char *value, uint32_t n_bytes) {
    if (*find_value(s, key)) {
        reply(c, id, HP_ERR_STATE, -1, NULL, 0);
        return;
    }
    store_value *v = hpi_alloc(1, sizeof *v + n_bytes);
    if (!v) {
        reply(c, id, HP_ERR_MEMORY, -1, NULL, 0);
        return;
    }
    memcpy(v->key, key, sizeof v->key);
    memcpy(v->bytes, value, n_bytes);
    v->n_bytes = n_bytes;
    v->next = s->values;
    s->values = v;
    reply(c, id, HP_OK, -1, NULL, 0);
    for (int i = 0; i < s->n_connections; i++) {
        store_connection *other = s->connections[i];
        if (other->parked_id && !strcmp(other->parked, key)) {
            const uint32_t parked_id = other->parked_id;
            other->parked_id = 0;
            serve_get(s, other, parked_id, key);
        }
    }
}

static void serve_greeting(hpi_store_server *s, store_connection *c, uint32_t id, const char *value,
                           uint32_t n_bytes) {
    hpi_store_greeting greeting = {0};
    memcpy(&greeting, value, hpi_min(n_bytes, sizeof greeting));
    hp_status status = HP_OK;
    if (greeting.protocol != HPI_STORE_PROTOCOL)
        status = HP_ERR_VERSION;
    else if (greeting.job != s->job || greeting.rank < 0 || greeting.rank >= s->n_ranks)
        status = HP_ERR_MISMATCH;
    c->is_known = !status;
    c->rank = greeting.rank;
    reply(c, id, status, -1, NULL, 0);
}

static void rank_ended(hpi_store_server *s, int rank) {
    if (s->ended_rank < 0)
        s->ended_rank = rank;
    for (int i = 0; i < s->n_connections; i++) {
        store_connection *c = s->connections[i];
        if (!c->parked_id)
            continue;
        reply(c, c->parked_id, HP_ERR_PEER, s->ended_rank, NULL, 0);
        c->parked_id = 0;
    }
}

/* ---- reading ------------------------------------------------------------------------------- */

static void serve(hpi_store_server *s, store_connection *c) {
    const hpi_store_head *head = &c->in.head;
    const char *body = c->in.bytes + sizeof *head;
    char key[HPI_STORE_KEY_BYTES] = "";
    memcpy(key, body, head->key_bytes);
    body += head->key_bytes;
    c->is_done = head->op == HPI_STORE_BYE; /* until it asks again, for another world */
    if (head->op == HPI_STORE_GREET)
        serve_greeting(s, c, head->id, body, head->value_bytes);
    else if (!c->is_known)
        connection_close(c);
    else if (head->op == HPI_STORE_SET)
        serve_set(s, c, head->id, key, body, head->value_bytes);
    else if (head->op == HPI_STORE_GET)
        serve_get(s, c, head->id, key);
    else if (head->op != HPI_STORE_BYE)
        connection_close(c);
}

/* Bytes that the message in the buffer has, as far as it says; 0 when it is not one of ours. */
static size_t message_bytes(const store_connection *c) {
    const hpi_store_head *head = &c->in.head;
    if (c->n_bytes < sizeof *head)
        return sizeof *head;
    if (head->magic != HPI_STORE_MAGIC || head->key_bytes >= HPI_STORE_KEY_BYTES ||
        head->value_bytes > HPI_STORE_VALUE_BYTES)
        return 0;
    return sizeof *head + head->key_bytes + head->value_bytes;
}

static void lost(hpi_store_server *s, store_connection *c) {
    const bool is_rank = c->is_known && !c->is_done;
    connection_close(c);
    if (is_rank)
        rank_ended(s, c->rank);
}

void hpi_store_server_read(hpi_store_server *s, int index) {
    store_connection *c = s->connections[index];
    while (c->fd >= 0) {
        const size_t wanted = message_bytes(c);
        if (!wanted) {
            lost(s, c);
        } else if (c->n_bytes == wanted && wanted >= sizeof c->in.head) {
            c->n_bytes = 0;
            serve(s, c);
        } else {
            const ssize_t got =
                recv(c->fd, c->in.bytes + c->n_bytes, wanted - c->n_bytes, MSG_DONTWAIT);
            if (got < 0 && (errno == EAGAIN || errno == EINTR))
                return;
            if (got <= 0)
                lost(s, c);
            else
                c->n_bytes += (size_t)got;
        }
    }
}

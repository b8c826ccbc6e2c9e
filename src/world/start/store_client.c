/* SPDX-License-Identifier: Apache-2.0
 *
 * store_client.c - a store behind a stream socket, as its client sees it.
 *
 * Requests are numbered: when a get has timed out, its answer may still come, and the next request
 * passes over it. A peer that does not speak the protocol is found by the first eight bytes.
 */
#include "store.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>

typedef struct store_client {
    int fd;
    uint32_t n_requests;
    int host;       /* the rank that it lives in; -1: a launcher */
    bool is_broken; /* in the middle of a message: nothing more can be read */
    char where[96];
} store_client;

static hp_status send_all(store_client *c, const void *bytes, size_t n) {
    const char *at = bytes;
    while (n) {
        const ssize_t sent = send(c->fd, at, n, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return HPI_FAIL_RANK(HP_ERR_PEER, c->host, "the start-up store (%s) is gone, send: %s",
                                 c->where, strerror(errno));
        at += sent;
        n -= (size_t)sent;
    }
    return HP_OK;
}

static hp_status receive_all(store_client *c, void *bytes, size_t n, uint64_t deadline_ns) {
    char *at = bytes;
    const size_t whole = n;
    while (n) {
        const uint64_t now_ns = hpi_now_ns();
        struct pollfd ready = {.fd = c->fd, .events = POLLIN};
        if (now_ns >= deadline_ns) {
            c->is_broken = n < whole;
            return HPI_FAIL(HP_ERR_TIMEOUT, "the start-up store (%s) has not answered in time",
                            c->where);
        }
        const uint64_t wait_ms = hpi_ceil_div(deadline_ns - now_ns, 1000000);
        if (poll(&ready, 1, (int)hpi_min(wait_ms, 1000)) <= 0)
            continue;
        const ssize_t got = recv(c->fd, at, n, MSG_DONTWAIT);
        if (got < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (got <= 0)
            return HPI_FAIL_RANK(HP_ERR_PEER, c->host,
                                 "the start-up store (%s) has closed the connection", c->where);
        at += got;
        n -= (size_t)got;
    }
    return HP_OK;
}

static hp_status send_request(store_client *c, hpi_store_op op, const char *key, const void *value,
                              size_t value_bytes) {
    struct {
        hpi_store_head head;
        char body[HPI_STORE_KEY_BYTES + HPI_STORE_VALUE_BYTES];
    } message = {0};
    const size_t key_bytes = strlen(key);
    if (key_bytes >= HPI_STORE_KEY_BYTES || value_bytes > HPI_STORE_VALUE_BYTES)
        return HPI_FAIL(
            HP_ERR_ARGUMENT,
            "expected a key below %d and a value of at most %d bytes, given %zu and %zu",
            HPI_STORE_KEY_BYTES, HPI_STORE_VALUE_BYTES, key_bytes, value_bytes);
    message.head = (hpi_store_head){
        HPI_STORE_MAGIC, op, ++c->n_requests, 0, -1, (uint32_t)key_bytes, (uint32_t)value_bytes};
    memcpy(message.body, key, key_bytes);
    if (value_bytes)
        memcpy(message.body + key_bytes, value, value_bytes);
    return send_all(c, &message, sizeof message.head + key_bytes + value_bytes);
}

/* One reply, whichever request it belongs to. */
static hp_status receive_reply(store_client *c, hpi_store_head *head, char *value,
                               uint64_t deadline_ns) {
    HP_TRY(receive_all(c, head, sizeof *head, deadline_ns));
    c->is_broken = true;
    if (head->magic != HPI_STORE_MAGIC || head->op != HPI_STORE_REPLY || head->key_bytes ||
        head->value_bytes > HPI_STORE_VALUE_BYTES)
        return HPI_FAIL(
            HP_ERR_FORMAT,
            "expected the start-up store of this job at %s, something else answers there "
            "(HYPER_PARALLEL_STORE_PORT chooses another port)",
            c->where);
    HP_TRY(receive_all(c, value, head->value_bytes, deadline_ns));
    c->is_broken = false;
    return HP_OK;
}

static hp_status request(store_client *c, hpi_store_op op, const char *key, const void *value,
                         size_t value_bytes, uint64_t timeout_ms, hpi_store_head *out_head,
                         char *out_value) {
    const uint64_t deadline_ns = hpi_add_saturated(hpi_now_ns(), hpi_ms_to_ns(timeout_ms));
    if (c->is_broken)
        return HPI_FAIL(HP_ERR_STATE, "the start-up store (%s) failed earlier", c->where);
    HP_TRY(send_request(c, op, key, value, value_bytes));
    do
        HP_TRY(receive_reply(c, out_head, out_value, deadline_ns));
    while (out_head->id != c->n_requests);
    const hp_status status = (hp_status)out_head->status;
    if (status == HP_ERR_PEER)
        return HPI_FAIL_RANK(status, out_head->rank, "rank %d ended before every rank had joined",
                             (int)out_head->rank);
    if (status == HP_ERR_MISMATCH)
        return HPI_FAIL(status,
                        "the start-up store at %s belongs to another job, or to an earlier "
                        "start of this one",
                        c->where);
    if (status == HP_ERR_VERSION)
        return HPI_FAIL(status, "the start-up store at %s is of another version of the library",
                        c->where);
    return status ? HPI_FAIL(status, "the start-up store (%s) refuses %s", c->where, key) : HP_OK;
}

static hp_status client_set(void *context, const char *key, const void *value, size_t n_bytes) {
    hpi_store_head head;
    char none[HPI_STORE_VALUE_BYTES];
    return request(context, HPI_STORE_SET, key, value, n_bytes, 60000, &head, none);
}

static hp_status client_get(void *context, const char *key, void *out_value, size_t capacity,
                            size_t *out_n_bytes, uint64_t timeout_ms) {
    hpi_store_head head;
    char value[HPI_STORE_VALUE_BYTES];
    HP_TRY(request(context, HPI_STORE_GET, key, NULL, 0, timeout_ms, &head, value));
    if (head.value_bytes > capacity)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected a value of at most %zu bytes under %s, it has %u", capacity, key,
                        head.value_bytes);
    memcpy(out_value, value, head.value_bytes);
    *out_n_bytes = head.value_bytes;
    return HP_OK;
}

/* Nobody waits for an answer: what cannot be sent now is known from the closed connection too. */
static void client_close(void *context) {
    store_client *c = context;
    if (c->host >= 0)
        (void)send_request(c, HPI_STORE_BYE, "", NULL, 0);
    hpi_free(c);
}

void hpi_store_bye(const hp_store *store) {
    (void)send_request(store->context, HPI_STORE_BYE, "", NULL, 0);
}

hp_status hpi_store_client(int fd, const char *where, int host, hp_store *out_store) {
    store_client *c = hpi_alloc(1, sizeof *c);
    if (!c)
        return HP_ERR_MEMORY;
    c->fd = fd;
    c->host = host;
    snprintf(c->where, sizeof c->where, "%s", where);
    *out_store = (hp_store){c, client_set, client_get, client_close};
    return HP_OK;
}

hp_status hpi_store_greet(const hp_store *store, const hpi_store_greeting *greeting,
                          uint64_t timeout_ms) {
    hpi_store_head head;
    char none[HPI_STORE_VALUE_BYTES];
    return request(store->context, HPI_STORE_GREET, "", greeting, sizeof *greeting, timeout_ms,
                   &head, none);
}

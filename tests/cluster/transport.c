/* SPDX-License-Identifier: Apache-2.0
 *
 * transport.c - what a transport promises, asked of the one that the job was started with.
 *
 * usage: mpirun ... transport CASE A B [CASE A B...]     (tests/cli/test_transport.sh,
 * tools/cluster.sh)
 *
 * Every rank makes up the same messages from one seed, so each knows what must come. A case that
 * fails says what it expected on standard error; the exit status is 1. Cases in which a rank dies
 * print the error of each survivor.
 */
#include "transport/transport.h"
#include "base/base.h"

#include "reordered.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { N_LAP = 1024, N_WINDOW = 12, MOST_BYTES = 8 << 20 };

#define EXPECT(condition, ...)                                                                     \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "transport: rank %d, line %d: expected %s: ", t->rank, __LINE__,       \
                    #condition);                                                                   \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fprintf(stderr, " (%s)\n", last_message());                                            \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static const char *last_message(void) {
    static _Thread_local hp_error error;
    hp_last_error_get(&error);
    return error.message;
}

static hpi_patience patience = {.operation = "test", .timeout_ms = 30000};

/* ---- messages that every rank knows -----------------------------------------------------------
 */

typedef struct message {
    int from, to;
    uint64_t tag, bytes, seed;
} message;

static uint64_t random_size(uint64_t *random, uint64_t most) {
    const uint64_t bits = hpi_random_next(random) % 24;
    const uint64_t bytes = hpi_random_next(random) & ((UINT64_C(1) << bits) - 1);
    return bytes > most ? most : bytes;
}

/* A few tags, so that equal ones meet; they differ in high bits alone, or in low ones alone. */
static uint64_t random_tag(uint64_t *random) {
    static const uint64_t tags[] = {
        0, 1, UINT64_C(1) << 32, UINT64_C(1) << 62, UINT64_C(0x7fffffff), (UINT64_C(1) << 62) + 1};
    return tags[hpi_random_next(random) % (sizeof tags / sizeof *tags)];
}

static message random_message(const hpi_transport *t, uint64_t *random, uint64_t most) {
    message m = {.from = (int)(hpi_random_next(random) % (uint64_t)t->n_ranks),
                 .to = (int)(hpi_random_next(random) % (uint64_t)t->n_ranks)};
    m.tag = random_tag(random);
    m.bytes = random_size(random, most);
    m.seed = hpi_random_next(random);
    return m;
}

/* Eight bytes that hang on the place, so that a piece in another's place is seen. */
static void fill(const message *m, char *data) {
    uint64_t i = 0;
    for (; i + 8 <= m->bytes; i += 8) {
        const uint64_t word = (m->seed + i) * UINT64_C(0x9e3779b97f4a7c15);
        memcpy(data + i, &word, 8);
    }
    for (; i < m->bytes; i++)
        data[i] = (char)(m->seed + i);
}

static bool holds(const message *m, const char *data) {
    uint64_t i = 0;
    for (; i + 8 <= m->bytes; i += 8) {
        const uint64_t word = (m->seed + i) * UINT64_C(0x9e3779b97f4a7c15);
        if (memcmp(data + i, &word, 8))
            return false;
    }
    for (; i < m->bytes; i++)
        if (data[i] != (char)(m->seed + i))
            return false;
    return true;
}

/* ---- random -----------------------------------------------------------------------------------
 */

/* One end of a message that this rank has part in. */
typedef struct end {
    message m;
    bool is_send, is_posted, is_done;
    char *data;
    hpi_transfer *transfer;
} end;

static void post(hpi_transport *t, end *e) {
    e->data = malloc(e->m.bytes + 1);
    EXPECT(e->data, "room for %" PRIu64 " bytes", e->m.bytes);
    hp_status status;
    if (e->is_send) {
        fill(&e->m, e->data);
        status = t->post_send(t, e->m.to, e->m.tag, e->data, e->m.bytes, &e->transfer);
    } else {
        memset(e->data, 0x55, e->m.bytes);
        status = t->post_recv(t, e->m.from, e->m.tag, e->data, e->m.bytes, &e->transfer);
    }
    EXPECT(status == HP_OK, "post");
    e->is_posted = true;
}

static void finish(hpi_transport *t, end *e) {
    EXPECT(e->is_send || holds(&e->m, e->data), "%" PRIu64 " bytes from rank %d under tag %" PRIx64,
           e->m.bytes, e->m.from, e->m.tag);
    free(e->data);
    e->is_done = true;
}

static bool may_post(const end *ends, int first, const end *e) {
    for (const end *o = ends + first; o < e; o++)
        if (!o->is_posted && o->is_send == e->is_send && o->m.from == e->m.from &&
            o->m.to == e->m.to && o->m.tag == e->m.tag)
            return false;
    return true;
}

static int list_ends(const hpi_transport *t, uint64_t seed, int n_messages, uint64_t most,
                     end *ends) {
    int n = 0;
    for (int i = 0; i < n_messages; i++) {
        const message m = random_message(t, &seed, most);
        if (m.from == t->rank)
            ends[n++] = (end){.m = m, .is_send = true};
        if (m.to == t->rank)
            ends[n++] = (end){.m = m};
    }
    return n;
}

/* In the order of the list, but for a window in which anything may come first that a pair and tag
 * allow: the first message that is not done is in the window at both of its ends. */
static void exchange(hpi_transport *t, uint64_t seed, int n_messages, uint64_t most) {
    end *ends = calloc((size_t)n_messages * 2, sizeof *ends);
    EXPECT(ends, "room");
    const int n = list_ends(t, seed, n_messages, most, ends);
    uint64_t random = seed + 1 + (uint64_t)t->rank;
    const uint64_t deadline_ns = hpi_now_ns() + UINT64_C(40000000000);
    for (int first = 0; first < n;) {
        const int last = first + N_WINDOW < n ? first + N_WINDOW : n;
        end *e = &ends[first + (int)(hpi_random_next(&random) % (uint64_t)(last - first))];
        if (!e->is_posted && may_post(ends, first, e))
            post(t, e);
        else if (e->is_posted && !e->is_done) {
            const hp_status status = t->test(t, e->transfer);
            EXPECT(status >= 0, "test");
            if (status == HP_OK)
                finish(t, e);
            else if (hpi_random_next(&random) % 8 == 0)
                hpi_sleep_ns(20000);
        }
        while (first < n && ends[first].is_done)
            first++;
        EXPECT(hpi_now_ns() < deadline_ns, "message %d of %d in time", first, n);
    }
    free(ends);
}

static void barrier(hpi_transport *t) {
    char mine = 0, all[1024];
    EXPECT(hpi_transport_gather(t, &mine, 1, all, &patience) == HP_OK, "gather");
}

static void random_case(hpi_transport *t, uint64_t seed, uint64_t n_messages) {
    exchange(t, seed, (int)n_messages, MOST_BYTES);
}

static void reordered_case(hpi_transport *t, uint64_t seed, uint64_t n_messages) {
    static reordered r;
    hpi_transport other = reorder(&r, t, seed + (uint64_t)t->rank);
    exchange(&other, seed, (int)n_messages, 64 << 10);
}

/* ---- order, many under way, sizes that differ, giving up ---------------------------------------
 */

/* Small and large ones of one tag in turn, all posted before the first is awaited. */
static void order_case(hpi_transport *t, uint64_t n_messages, uint64_t unused) {
    const int n = (int)n_messages, to = (t->rank + 1) % t->n_ranks;
    const int from = (t->rank + t->n_ranks - 1) % t->n_ranks;
    end *in = calloc(n_messages, sizeof *in), *out = calloc(n_messages, sizeof *out);
    (void)unused;
    EXPECT(in && out, "room");
    for (int i = 0; i < n; i++) {
        const uint64_t bytes = i % 3 ? (uint64_t)(i % 64) : UINT64_C(20000) + (uint64_t)i;
        const message m = {.tag = 7, .bytes = bytes, .seed = (uint64_t)i};
        out[i] = (end){.m = m, .is_send = true};
        in[i] = (end){.m = m};
        out[i].m.to = to;
        in[i].m.from = from;
    }
    for (int i = 0; i < n; i++)
        post(t, &out[i]);
    for (int i = 0; i < n; i++)
        post(t, &in[i]);
    for (int i = n; i-- > 0;) {
        EXPECT(hpi_transport_wait(t, in[i].transfer, &patience) == HP_OK, "message %d", i);
        finish(t, &in[i]);
    }
    for (int i = 0; i < n; i++) {
        EXPECT(hpi_transport_wait(t, out[i].transfer, &patience) == HP_OK, "message %d", i);
        finish(t, &out[i]);
    }
    free(in);
    free(out);
}

static hp_status send_now(hpi_transport *t, int to, uint64_t tag, const void *data,
                          uint64_t bytes) {
    hpi_transfer *transfer;
    HP_TRY(t->post_send(t, to, tag, data, bytes, &transfer));
    return hpi_transport_wait(t, transfer, &patience);
}

static hp_status receive_now(hpi_transport *t, int from, uint64_t tag, void *out, uint64_t bytes) {
    hpi_transfer *transfer;
    HP_TRY(t->post_recv(t, from, tag, out, bytes, &transfer));
    return hpi_transport_wait(t, transfer, &patience);
}

/* Another size, small and large, is an error of the receiver that names both, and of nobody else;
 * the next message is whole. */
static void sizes_case(hpi_transport *t, uint64_t unused, uint64_t unused_too) {
    enum { LARGE = 1 << 20 };
    static char data[LARGE];
    (void)unused, (void)unused_too;
    const uint64_t sent[] = {8, LARGE, 8, LARGE}, awaited[] = {9, LARGE / 2, LARGE, 8};
    for (int i = 0; i < 4; i++) {
        memset(data, t->rank == 0 ? 'a' : 'b', sizeof data);
        if (t->rank == 0)
            EXPECT(send_now(t, 1, 5, data, sent[i]) == HP_OK, "case %d", i);
        if (t->rank == 1) {
            EXPECT(receive_now(t, 0, 5, data, awaited[i]) == HP_ERR_MISMATCH, "case %d", i);
            char text[64];
            snprintf(text, sizeof text, "of %" PRIu64 " bytes, it sends %" PRIu64, awaited[i],
                     sent[i]);
            EXPECT(strstr(last_message(), text), "\"%s\"", text);
            EXPECT(data[0] == 'b', "memory that is not written");
        }
        if (t->rank == 0)
            EXPECT(send_now(t, 1, 5, data, LARGE) == HP_OK, "case %d", i);
        if (t->rank == 1)
            EXPECT(receive_now(t, 0, 5, data, LARGE) == HP_OK && data[LARGE - 1] == 'a',
                   "the next message of case %d", i);
    }
}

static hp_status find_dead(void *dead) {
    return HPI_FAIL_RANK(HP_ERR_PEER, *(int *)dead, "rank %d is dead", *(int *)dead);
}

/* A receive that was given up takes nothing: its message is there for the next one. A send whose
 * receive never comes can be given up at once where it is small. */
static void cancel_case(hpi_transport *t, uint64_t unused, uint64_t unused_too) {
    enum { LARGE = 1 << 20 };
    static char data[LARGE], other[LARGE];
    hpi_transfer *transfer;
    (void)unused, (void)unused_too;
    for (int i = 0; i < 8; i++) {
        const uint64_t bytes = i % 2 ? LARGE : 100;
        memset(data, 'a' + i, sizeof data);
        if (t->rank == 1) {
            EXPECT(t->post_recv(t, 0, 9, other, bytes, &transfer) == HP_OK, "post");
            EXPECT(t->test(t, transfer) == HP_IN_PROGRESS, "nothing to be there");
            EXPECT(t->cancel(t, transfer) == HP_OK, "free memory");
        }
        barrier(t);
        if (t->rank == 0)
            EXPECT(send_now(t, 1, 9, data, bytes) == HP_OK, "send %d", i);
        if (t->rank == 1) {
            memset(other, 0, sizeof other);
            EXPECT(receive_now(t, 0, 9, other, bytes) == HP_OK, "receive %d", i);
            EXPECT(!memcmp(data, other, bytes), "what was sent");
        }
    }
    if (t->rank == 0) {
        EXPECT(t->post_send(t, 1, 10, data, 100, &transfer) == HP_OK, "post");
        EXPECT(t->cancel(t, transfer) == HP_OK, "a small send's memory to be free");
    }
    /* a deadline names whom it waited for, and gives the receive up */
    const hpi_patience short_one = {.operation = "nothing", .timeout_ms = 30};
    if (t->rank == 1) { /* it may have gone out, or not */
        EXPECT(t->post_recv(t, 0, 10, other, 100, &transfer) == HP_OK, "post");
        const hp_status status = hpi_transport_wait(t, transfer, &short_one);
        EXPECT(status == HP_OK || status == HP_ERR_TIMEOUT, "a message or none");
    }
    if (t->rank == 1) {
        EXPECT(t->post_recv(t, 0, 11, other, 10, &transfer) == HP_OK, "post");
        EXPECT(hpi_transport_wait(t, transfer, &short_one) == HP_ERR_TIMEOUT, "a time-out");
        EXPECT(strstr(last_message(), "rank 1 waited 30 ms in nothing to receive 10 bytes from "
                                      "rank 0 on "),
               "whom and what");
        int dead = 0;
        const hpi_patience looks = {
            .operation = "nothing", .timeout_ms = 30000, .look = find_dead, .context = &dead};
        EXPECT(t->post_recv(t, 0, 11, other, 10, &transfer) == HP_OK, "post");
        EXPECT(hpi_transport_wait(t, transfer, &looks) == HP_ERR_PEER, "what look says");
        EXPECT(!strcmp(last_message(), "rank 0 is dead"), "its record");
    }
    barrier(t);
}

/* A receive that was given up in the middle of its message writes nothing afterwards: it has taken
 * all of it, or nothing. */
static void cut_off_case(hpi_transport *t, uint64_t n, uint64_t unused) {
    enum { BYTES = 4 << 20 };
    char *data = calloc(1, BYTES), *before = calloc(1, BYTES);
    hpi_transfer *transfer;
    (void)unused;
    memset(data, t->rank == 0 ? 'x' : 0, BYTES);
    for (uint64_t i = 0; i < n; i++) {
        hp_status status = HP_IN_PROGRESS;
        barrier(t);
        if (t->rank == 0)
            EXPECT(send_now(t, 1, 12, data, BYTES) == HP_OK, "%s", last_message());
        if (t->rank != 1)
            continue;
        memset(data, 0, BYTES);
        EXPECT(t->post_recv(t, 0, 12, data, BYTES, &transfer) == HP_OK, "post");
        for (uint64_t k = 0; k < i % 40 && status == HP_IN_PROGRESS; k++) {
            hpi_sleep_ns(20000 * (i % 7));
            status = t->test(t, transfer);
        }
        if (status == HP_IN_PROGRESS)
            EXPECT(t->cancel(t, transfer) == HP_OK, "the rest to come soon");
        const bool has_come = data[0];
        memcpy(before, data, BYTES);
        if (!has_come)
            EXPECT(receive_now(t, 0, 12, data, BYTES) == HP_OK, "%s", last_message());
        for (int at = 0; at < BYTES; at++) {
            EXPECT(data[at] == 'x', "the message");
            EXPECT(before[at] == (has_come ? 'x' : 0), "all or nothing at %d", at);
        }
    }
    barrier(t);
    free(before);
    free(data);
}

/* ---- threads ----------------------------------------------------------------------------------
 */

typedef struct talk {
    hpi_transport *t;
    uint64_t tag;
} talk;

static void *talk_to_next(void *argument) {
    const talk *k = argument;
    hpi_transport *t = k->t;
    const int to = (t->rank + 1) % t->n_ranks, from = (t->rank + t->n_ranks - 1) % t->n_ranks;
    for (uint64_t i = 0; i < 60; i++) {
        hpi_transfer *out, *in;
        uint64_t bytes = i % 7 == 0 ? 70000 : i * 50, sent[70000 / 8], got[70000 / 8];
        bytes = bytes / 8 * 8;
        for (uint64_t w = 0; w < bytes / 8; w++)
            sent[w] = k->tag * 1000003 + i * 1009 + w;
        EXPECT(t->post_recv(t, from, k->tag, got, bytes, &in) == HP_OK, "post");
        EXPECT(t->post_send(t, to, k->tag, sent, bytes, &out) == HP_OK, "post");
        EXPECT(hpi_transport_wait(t, in, &patience) == HP_OK, "message %d", (int)i);
        EXPECT(hpi_transport_wait(t, out, &patience) == HP_OK, "message %d", (int)i);
        EXPECT(!memcmp(sent, got, bytes), "thread %d's own message", (int)k->tag);
    }
    return NULL;
}

static void threads_case(hpi_transport *t, uint64_t n_threads, uint64_t unused) {
    pthread_t threads[16];
    talk talks[16];
    (void)unused;
    for (uint64_t i = 0; i < n_threads; i++) {
        talks[i] = (talk){t, i << 40};
        EXPECT(!pthread_create(&threads[i], NULL, talk_to_next, &talks[i]), "a thread");
    }
    for (uint64_t i = 0; i < n_threads; i++)
        pthread_join(threads[i], NULL);
}

/* ---- one large message, and the rate ----------------------------------------------------------
 */

/* From the first half of the ranks to the second. */
static void large_case(hpi_transport *t, uint64_t bytes, uint64_t unused) {
    const int half = t->n_ranks / 2;
    message m = {.from = t->rank % half, .bytes = bytes, .seed = 3};
    char *data = malloc(bytes);
    (void)unused;
    EXPECT(data, "room for %" PRIu64 " bytes", bytes);
    if (t->rank < half) {
        fill(&m, data);
        EXPECT(send_now(t, t->rank + half, 1, data, bytes) == HP_OK, "send");
    } else {
        EXPECT(receive_now(t, t->rank - half, 1, data, bytes) == HP_OK, "receive");
        EXPECT(holds(&m, data), "the bytes that were sent");
    }
    free(data);
}

/* What `n` messages from each rank of the first half reach together, as bytes of users. */
static void rate_case(hpi_transport *t, uint64_t bytes, uint64_t n) {
    const int half = t->n_ranks / 2;
    char *data = calloc(1, bytes);
    EXPECT(data, "room");
    uint64_t begin_ns = 0;
    for (uint64_t i = 0; i <= n; i++) { /* the first one warms up */
        if (i == 1) {
            barrier(t);
            begin_ns = hpi_now_ns();
        }
        if (t->rank < half)
            EXPECT(send_now(t, t->rank + half, 1, data, bytes) == HP_OK, "send");
        else
            EXPECT(receive_now(t, t->rank - half, 1, data, bytes) == HP_OK, "receive");
    }
    barrier(t);
    const double seconds = (double)(hpi_now_ns() - begin_ns) / 1e9;
    if (t->rank == 0)
        printf("%.1f\n", (double)(n * bytes * (uint64_t)half) * 8 / seconds / 1e6);
    free(data);
}

/* Half of the time that a small message takes there and back, in us. */
static void latency_case(hpi_transport *t, uint64_t bytes, uint64_t n) {
    const int half = t->n_ranks / 2, other = t->rank < half ? t->rank + half : t->rank - half;
    char *data = calloc(1, bytes + 1);
    EXPECT(data, "room");
    patience.may_spin = true;
    barrier(t);
    const uint64_t begin_ns = hpi_now_ns();
    for (uint64_t i = 0; i < n; i++) {
        if (t->rank < half)
            EXPECT(send_now(t, other, 1, data, bytes) == HP_OK, "send");
        EXPECT(receive_now(t, other, 1, data, bytes) == HP_OK, "receive");
        if (t->rank >= half)
            EXPECT(send_now(t, other, 1, data, bytes) == HP_OK, "send");
    }
    if (t->rank == 0)
        printf("%.2f\n", (double)(hpi_now_ns() - begin_ns) / 1e3 / (double)n / 2);
    free(data);
}

/* ---- ends that are no ends of the test ----------------------------------------------------------
 */

static void say_error(const hpi_transport *t, hp_status status, uint64_t begin_ns) {
    hp_error error;
    hp_last_error_get(&error);
    printf("survivor %d: %s of rank %d after %d ms: %s\n", t->rank, hp_status_text(status),
           error.world_rank, (int)((hpi_now_ns() - begin_ns) / 1000000), error.message);
    fflush(stdout);
}

/* `victim` dies in the middle of a large message between it and each other rank; every other rank
 * is told, by the network or at the deadline, and goes on: the others' way to each other holds. */
static void kill_case(hpi_transport *t, uint64_t victim, uint64_t timeout_ms) {
    enum { LARGE = 64 << 20 };
    char *data = calloc(1, LARGE);
    hpi_transfer *out, *in;
    EXPECT(data, "room");
    barrier(t);
    if ((uint64_t)t->rank == victim) {
        for (int i = 0; i < t->n_ranks; i++)
            if (i != t->rank)
                EXPECT(t->post_send(t, i, 3, data, LARGE, &out) == HP_OK, "post");
        hpi_sleep_ns(UINT64_C(20000000));
        kill(getpid(), SIGKILL);
    }
    const uint64_t begin_ns = hpi_now_ns();
    const hpi_patience p = {.operation = "kill", .timeout_ms = timeout_ms};
    EXPECT(t->post_recv(t, (int)victim, 3, data, LARGE, &in) == HP_OK, "post");
    hp_status status = hpi_transport_wait(t, in, &p);
    if (status == HP_OK) { /* it was faster than its death: what comes never can be there */
        EXPECT(t->post_recv(t, (int)victim, 4, data, LARGE, &in) == HP_OK, "post");
        status = hpi_transport_wait(t, in, &p);
    }
    EXPECT(status == HP_ERR_PEER || status == HP_ERR_TIMEOUT, "an error");
    say_error(t, status, begin_ns);
    hpi_sleep_ns(UINT64_C(300000000)); /* the other survivors' errors come too */
    _exit(3);
}

/* A rank that does not come to a gathering is named to all. */
static void missing_case(hpi_transport *t, uint64_t missing, uint64_t timeout_ms) {
    uint64_t mine = 1, all[1024];
    const hpi_patience p = {.operation = "missing", .timeout_ms = timeout_ms};
    barrier(t);
    if ((uint64_t)t->rank == missing) {
        hpi_sleep_ns((timeout_ms + 500) * UINT64_C(1000000));
        return;
    }
    const hp_status status = hpi_transport_gather(t, &mine, sizeof mine, all, &p);
    hp_error error;
    hp_last_error_get(&error);
    EXPECT(status == HP_ERR_TIMEOUT && (uint64_t)error.world_rank == missing, "the missing rank");
}

/* A long message arrives while its sender does something else: he may be waiting for whoever waits
 * for it. */
static void unwatched_case(hpi_transport *t, uint64_t ms, uint64_t unused) {
    enum { BYTES = 4 << 20 };
    char *data = calloc(1, BYTES);
    hpi_transfer *transfer;
    const hpi_patience p = {.operation = "unwatched", .timeout_ms = ms};
    (void)unused;
    barrier(t);
    if (t->rank == 0) {
        EXPECT(!t->post_send(t, 1, 1, data, BYTES, &transfer), "%s", last_message());
        hpi_sleep_ns((ms + 200) * UINT64_C(1000000));
        EXPECT(!hpi_transport_wait(t, transfer, &patience), "%s", last_message());
    } else if (t->rank == 1) {
        EXPECT(!t->post_recv(t, 0, 1, data, BYTES, &transfer), "%s", last_message());
        EXPECT(!hpi_transport_wait(t, transfer, &p), "%s", last_message());
    }
    free(data);
}

/* ---- the whole --------------------------------------------------------------------------------
 */

static void about_case(hpi_transport *t, uint64_t unused, uint64_t unused_too) {
    (void)unused, (void)unused_too;
    printf("rank %d of %d on %s, rank 0 on %s: %s, %s\n", t->rank, t->n_ranks, t->host,
           hpi_transport_host_of(t, 0), t->name, t->about);
}

static const struct {
    const char *name;
    void (*run)(hpi_transport *t, uint64_t a, uint64_t b);
} cases[] = {{"about", about_case},         {"random", random_case},  {"order", order_case},
             {"sizes", sizes_case},         {"cancel", cancel_case},  {"threads", threads_case},
             {"large", large_case},         {"rate", rate_case},      {"latency", latency_case},
             {"reordered", reordered_case}, {"kill", kill_case},      {"missing", missing_case},
             {"unwatched", unwatched_case}, {"cut_off", cut_off_case}};

static hpi_transport *open_transport(void) {
    hpi_options options;
    hpi_transport *t = NULL;
    if (hpi_options_load(&options) || hpi_transport_open(&options, -1, -1, &t)) {
        fprintf(stderr, "transport: %s\n", last_message());
        exit(2);
    }
    return t;
}

static void run_case(const char *name, uint64_t a, uint64_t b) {
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        if (!strcmp(cases[k].name, name)) {
            hpi_transport *t = open_transport();
            cases[k].run(t, a, b);
            hpi_transport_close(t);
            return;
        }
    fprintf(stderr, "transport: there is no case %s\n", name);
    exit(2);
}

/* Each case opens the transport again. */
int main(int argc, char **argv) {
    for (int i = 1; i < argc; i += 3) {
        const uint64_t a = i + 1 < argc ? strtoull(argv[i + 1], NULL, 10) : 0;
        const uint64_t b = i + 2 < argc ? strtoull(argv[i + 2], NULL, 10) : 0;
        run_case(argv[i], a, b);
    }
    return 0;
}

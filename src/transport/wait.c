/* SPDX-License-Identifier: Apache-2.0
 *
 * wait.c - waiting for a transfer, and the gathering that set-up needs, made of transfers.
 *
 * Testing a transfer is what moves it, and nobody wakes who waits for the network: so a wait tests,
 * for a moment without a pause where the thread has a core to itself, and then sleeps in between,
 * longer and longer. Sleeping threads leave the core to who computes; the longest step is short
 * beside what a socket's buffer takes to fill.
 */
#include "transport.h"

#include "../base/base.h"

#include <stdio.h>

#define MS UINT64_C(1000000)
#define SPIN_NS UINT64_C(200000)
#define LEAST_STEP_NS UINT64_C(5000)
#define MOST_STEP_NS UINT64_C(100000)
#define LOOK_NS UINT64_C(5000000)

static hp_status fail_timeout(const hpi_transport *t, const hpi_transfer *transfer,
                              const hpi_patience *p) {
    return HPI_FAIL_RANK(HP_ERR_TIMEOUT, transfer->peer,
                         "rank %d waited %llu ms in %s to %s %llu bytes %s rank %d on %s", t->rank,
                         (unsigned long long)p->timeout_ms, p->operation,
                         transfer->is_send ? "send" : "receive",
                         (unsigned long long)transfer->bytes, transfer->is_send ? "to" : "from",
                         transfer->peer, hpi_transport_host_of(t, transfer->peer));
}

/* Why the wait is to end without the transfer; HP_OK: it is not. */
static hp_status look(const hpi_transport *t, const hpi_transfer *transfer, const hpi_patience *p,
                      uint64_t deadline_ns) {
    if (p->look)
        HP_TRY(p->look(p->context));
    return hpi_now_ns() < deadline_ns ? HP_OK : fail_timeout(t, transfer, p);
}

static hp_status give_up(hpi_transport *t, hpi_transfer *transfer, hp_status status) {
    hp_error record;
    hp_last_error_get(&record);
    (void)t->cancel(t, transfer);
    (void)hpi_error_set(&record);
    return status;
}

hp_status hpi_transport_wait(hpi_transport *t, hpi_transfer *transfer, const hpi_patience *p) {
    hp_status status = t->test(t, transfer);
    if (status != HP_IN_PROGRESS)
        return status;
    const uint64_t begin_ns = hpi_now_ns();
    const uint64_t deadline_ns = hpi_add_saturated(begin_ns, hpi_ms_to_ns(p->timeout_ms));
    uint64_t now_ns = begin_ns, next_look_ns = begin_ns, step_ns = LEAST_STEP_NS;
    while ((status = t->test(t, transfer)) == HP_IN_PROGRESS) {
        if (now_ns >= next_look_ns) {
            const hp_status why = look(t, transfer, p, deadline_ns);
            if (why < 0)
                return give_up(t, transfer, why);
            next_look_ns = hpi_min(now_ns + LOOK_NS, deadline_ns);
        }
        if (!p->may_spin || now_ns - begin_ns > SPIN_NS) {
            hpi_sleep_ns(step_ns);
            step_ns = hpi_min(step_ns * 2, MOST_STEP_NS);
        }
        now_ns = hpi_now_ns();
    }
    return status;
}

/* ---- gathering ------------------------------------------------------------------------------- */

/* How long after rank 0's deadline the others go on waiting for what it has to say. */
enum { LINGER_MS = 2000 };
enum { TAG_GIVE, TAG_VERDICT, TAG_ALL };

/* What rank 0 found, before the bytes of all. */
typedef struct verdict {
    int32_t status, culprit;
    char message[496];
} verdict;
_Static_assert(sizeof(verdict) == 504, "sent between hosts");

static hp_status receive(hpi_transport *t, int from, uint64_t tag, void *out, uint64_t bytes,
                         const hpi_patience *p) {
    hpi_transfer *transfer;
    HP_TRY(t->post_recv(t, from, HPI_TAG_OWN | tag, out, bytes, &transfer));
    return hpi_transport_wait(t, transfer, p);
}

static hp_status send(hpi_transport *t, int to, uint64_t tag, const void *data, uint64_t bytes,
                      const hpi_patience *p) {
    hpi_transfer *transfer;
    HP_TRY(t->post_send(t, to, HPI_TAG_OWN | tag, data, bytes, &transfer));
    return hpi_transport_wait(t, transfer, p);
}

/* Rank 0 hears the others. After the first that does not come the rest are only looked for. */
static hp_status collect(hpi_transport *t, size_t bytes, char *all, const hpi_patience *patience) {
    hpi_patience p = *patience;
    hp_error first = {.status = HP_OK};
    char missing[200] = "";
    hpi_sentence list = {missing, sizeof missing, 0};
    const uint64_t deadline_ns =
        hpi_add_saturated(hpi_now_ns(), hpi_ms_to_ns(patience->timeout_ms));
    for (int i = 1; i < t->n_ranks; i++) {
        const uint64_t now_ns = hpi_now_ns();
        p.timeout_ms = now_ns < deadline_ns ? (deadline_ns - now_ns) / MS : 0;
        const hp_status status = receive(t, i, TAG_GIVE, all + (size_t)i * bytes, bytes, &p);
        if (status >= 0)
            continue;
        hpi_sentence_add(&list, "%s%d", *missing ? ", " : "", i);
        if (first.status == HP_OK)
            hp_last_error_get(&first);
    }
    if (first.status == HP_OK)
        return HP_OK;
    return HPI_FAIL_RANK(first.status, first.world_rank,
                         "expected %d ranks in %s, these did not come: %s (%.200s)", t->n_ranks,
                         patience->operation, missing, first.message);
}

/* The ranks below `rank` in the binomial tree of root 0 are rank + 2^k, for each 2^k below rank's
 * lowest set bit, the largest first. */
static int parent_of(int rank) {
    return rank & (rank - 1);
}
static int widest_child(int rank, int n_ranks) {
    int step = rank ? (rank & -rank) / 2 : 1;
    while (!rank && step * 2 < n_ranks)
        step *= 2;
    return step;
}

/* One rank's failure to send does not keep the others from being told. */
static hp_status pass_on(hpi_transport *t, const verdict *v, const char *all, uint64_t bytes,
                         const hpi_patience *p) {
    hp_status status = HP_OK;
    for (int step = widest_child(t->rank, t->n_ranks); step > 0; step /= 2) {
        const int child = t->rank + step;
        if (child >= t->n_ranks)
            continue;
        hp_status sent = send(t, child, TAG_VERDICT, v, sizeof *v, p);
        if (!sent && !v->status)
            sent = send(t, child, TAG_ALL, all, bytes, p);
        status = status ? status : sent;
    }
    return status;
}

static void fill_verdict(verdict *v, hp_status status) {
    hp_error record;
    hp_last_error_get(&record);
    *v = (verdict){.status = status, .culprit = status ? record.world_rank : -1};
    if (status)
        snprintf(v->message, sizeof v->message, "%s", record.message);
}

static hp_status hear(hpi_transport *t, verdict *v, char *all, uint64_t bytes,
                      const hpi_patience *p) {
    HP_TRY(receive(t, parent_of(t->rank), TAG_VERDICT, v, sizeof *v, p));
    v->message[sizeof v->message - 1] = '\0';
    return v->status ? HP_OK : receive(t, parent_of(t->rank), TAG_ALL, all, bytes, p);
}

hp_status hpi_transport_gather(hpi_transport *t, const void *mine, size_t bytes, void *out_all,
                               const hpi_patience *patience) {
    verdict v;
    char *all = out_all;
    const uint64_t all_bytes = (uint64_t)t->n_ranks * bytes;
    hpi_patience longer = *patience;
    longer.timeout_ms += LINGER_MS;
    memcpy(all + (size_t)t->rank * bytes, mine, bytes);
    if (t->rank == 0) {
        fill_verdict(&v, collect(t, bytes, all, patience));
    } else {
        HP_TRY(send(t, 0, TAG_GIVE, mine, bytes, patience));
        HP_TRY(hear(t, &v, all, all_bytes, &longer));
    }
    HP_TRY(pass_on(t, &v, all, all_bytes, &longer));
    if (v.status < 0)
        return HPI_FAIL_RANK((hp_status)v.status, v.culprit, "%s", v.message);
    return HP_OK;
}

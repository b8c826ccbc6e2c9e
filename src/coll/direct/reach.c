/* SPDX-License-Identifier: Apache-2.0
 *
 * reach.c - may the ranks of a group read and write each other's memory, and the doing.
 *
 * Who may is up to the kernel: a security module (Yama), a seccomp filter or a container may forbid
 * it to some pairs and not to others, and process numbers may mean nothing to a peer in another
 * namespace. So each rank tells the others its number, an address and the random word that lies
 * there; who reads that word from each peer can. The answers are exchanged, and the group reads
 * only where every rank can read from every other one, and write that word back. Yama's usual mode
 * lets a process be read by its ancestors alone unless it names another reader: if the first try
 * fails, every rank names its parent, the launcher, which stands for all that it has started, and
 * they try once more.
 */
#include "direct.h"

#include <errno.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { LOOKS = 100, LOOK_NS = 1000000 }; /* for the end of a peer, while it ends */
enum { MOST_BYTES = 1 << 26 };           /* of a piece: the kernel takes 2 GiB a call */

/* ---- finding out ---- */

/* It writes what is there, and other peers do the same. */
static bool can_reach(int64_t pid, uint64_t address, uint64_t expected) {
    uint64_t word = ~expected;
    const struct iovec to = {&word, sizeof word};
    const struct iovec from = {(void *)(uintptr_t)address, sizeof word};
    return process_vm_readv((pid_t)pid, &to, 1, &from, 1, 0) == (ssize_t)sizeof word &&
           word == expected &&
           process_vm_writev((pid_t)pid, &to, 1, &from, 1, 0) == (ssize_t)sizeof word;
}

/* Every rank reads a word of every other one: *out_can, on all of them alike. */
static hp_status try_all(hpi_run *run, bool *out_can) {
    enum { N = 3 };
    uint64_t all[N * HPI_MAX_LOCAL], seed = hpi_now_ns() ^ (uint64_t)getpid() << 32;
    volatile uint64_t probe = hpi_random_next(&seed);
    const uint64_t mine[N] = {(uint64_t)getpid(), (uintptr_t)&probe, probe};
    uint64_t can = 1;
    HP_TRY(hpi_group_exchange(run->group, "who can read", mine, N, all));
    for (int i = 0; i < run->n; i++) {
        const uint64_t *theirs = all + N * i;
        run->state->pids[i] = (int64_t)theirs[0];
        can &= i == run->rank || can_reach((int64_t)theirs[0], theirs[1], theirs[2]);
    }
    /* it is also why nobody leaves before all have read its word */
    HP_TRY(hpi_group_exchange(run->group, "who could read", &can, 1, all));
    *out_can = true;
    for (int i = 0; i < run->n; i++)
        *out_can = *out_can && all[i];
    return HP_OK;
}

hp_status hpi_direct_open(hpi_run *run) {
    hpi_coll_state *s = run->state;
    bool can = hpi_world_is_threads(hp_group_world(run->group));
    if (s->reach != HPI_REACH_UNKNOWN)
        return HP_OK;
    if (!can)
        HP_TRY(try_all(run, &can));
    if (!can) {
        (void)prctl(PR_SET_PTRACER, (unsigned long)getppid(), 0, 0, 0); /* EINVAL without Yama */
        HP_TRY(try_all(run, &can));
    }
    s->reach = can ? HPI_REACH_ALL : HPI_REACH_NONE;
    return HP_OK;
}

/* ---- where the operands lie ---- */

bool hpi_is_near(const hpi_run *run, int i, hpi_place place) {
    return i == run->rank || place.key || hpi_world_is_threads(hp_group_world(run->group));
}

static hp_status find(const hpi_run *run, int i, hpi_place place, unsigned char **out) {
    const int world_rank = hp_group_world_rank(run->group, i);
    *out = place.key ? hpi_symm_at(hp_group_world(run->group), place, world_rank)
                     : (unsigned char *)(uintptr_t)place.offset;
    if (place.key && !*out)
        return HPI_FAIL_RANK(HP_ERR_HANDLE, world_rank,
                             "%s: expected rank %d (world %d) of %s to use live memory, it was "
                             "freed meanwhile",
                             run->name, i, world_rank, hpi_group_name(run->group));
    return HP_OK;
}

hp_status hpi_direct_find(hpi_run *run) {
    hpi_coll_state *s = run->state;
    for (int i = 0; i < run->n; i++) {
        unsigned char *in;
        HP_TRY(find(run, i, s->entered[i].in, &in));
        s->in[i] = in;
        if (run->what == HP_ALL_REDUCE || run->what == HP_BROADCAST)
            HP_TRY(find(run, i, s->entered[i].out, &s->out[i]));
    }
    return HP_OK;
}

/* ---- reading ---- */

/* A peer that ends has no memory a little before its end is seen. */
static hp_status explain(const hpi_fetch *f, int error) {
    const hpi_run *run = f->run;
    const int world_rank = hp_group_world_rank(run->group, f->peer);
    for (int k = 0; k < LOOKS; k++) {
        HP_TRY(hpi_group_look(run->group, f->peer, run->name));
        hpi_sleep_ns(LOOK_NS);
    }
    return HPI_FAIL_RANK(HP_ERR_SYSTEM, world_rank,
                         "%s: expected to %s %llu bytes of rank %d (world %d) of %s from %p on, "
                         "process_vm_%s of process %lld gave %s",
                         run->name, f->is_store ? "write" : "read", (unsigned long long)f->bytes,
                         f->peer, world_rank, hpi_group_name(run->group),
                         f->is_store ? f->to[0].iov_base : f->from[0].iov_base,
                         f->is_store ? "writev" : "readv", (long long)run->state->pids[f->peer],
                         strerror(error));
}

void hpi_fetch_begin(hpi_fetch *f, const hpi_run *run, int peer, hpi_place place) {
    f->run = run;
    f->peer = peer;
    f->is_near = hpi_is_near(run, peer, place);
    f->is_store = false;
    f->n = 0;
    f->bytes = 0;
}

hp_status hpi_fetch_end(hpi_fetch *f) {
    if (f->n == 0)
        return HP_OK;
    const unsigned long n = (unsigned long)f->n;
    const pid_t pid = (pid_t)f->run->state->pids[f->peer];
    const ssize_t got = f->is_store ? process_vm_writev(pid, f->from, n, f->to, n, 0)
                                    : process_vm_readv(pid, f->to, n, f->from, n, 0);
    if (got != (ssize_t)f->bytes)
        return explain(f, got < 0 ? errno : EFAULT);
    f->n = 0;
    f->bytes = 0;
    return HP_OK;
}

hp_status hpi_fetch_add(hpi_fetch *f, void *to, const void *from, uint64_t bytes) {
    unsigned char *t = to;
    const unsigned char *source = from;
    if (f->is_near && bytes)
        hpi_copy(to, from, bytes);
    for (uint64_t at = 0; at < bytes && !f->is_near; at += MOST_BYTES) {
        const uint64_t piece = hpi_min(bytes - at, MOST_BYTES);
        if (f->n == HPI_FETCH_PIECES || f->bytes + piece > MOST_BYTES)
            HP_TRY(hpi_fetch_end(f));
        f->to[f->n] = (struct iovec){t + at, piece};
        f->from[f->n++] = (struct iovec){(void *)(uintptr_t)(source + at), piece};
        f->bytes += piece;
    }
    return HP_OK;
}

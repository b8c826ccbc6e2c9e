/* SPDX-License-Identifier: Apache-2.0
 *
 * test_kill_start.c - a rank that ends before each of the system calls by which it starts, in turn.
 *
 * The program counts the calls on sockets, descriptors and shared memory of a rank that starts, and
 * strikes before the n-th: before it has said hello, between hello and segments, while segments are
 * passed, when it joins. For every n the others must say which rank it was: under a launcher, and
 * started by hand, where rank 0 serves the store that all start over.
 */
#include "fault/faults.h"

#include <arpa/inet.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <cmocka.h>

enum { N_RANKS = 3, MOST_CALLS = 400, LATE_MS = 300 };

static fault_page *page;
static bool is_by_hand;
static _Atomic int countdown; /* calls until the strike; 0: none */

static void may_strike(void) {
    if (atomic_load(&countdown) && atomic_fetch_sub(&countdown, 1) == 1)
        fault_strike(0);
}

/* ---- the calls that count ----------------------------------------------------------------------
 */

int socket(int domain, int type, int protocol) {
    may_strike();
    return (int)syscall(SYS_socket, domain, type, protocol);
}

int bind(int fd, const struct sockaddr *address, socklen_t length) {
    may_strike();
    return (int)syscall(SYS_bind, fd, address, length);
}

int connect(int fd, const struct sockaddr *address, socklen_t length) {
    may_strike();
    return (int)syscall(SYS_connect, fd, address, length);
}

ssize_t send(int fd, const void *bytes, size_t n_bytes, int flags) {
    may_strike();
    return syscall(SYS_sendto, fd, bytes, n_bytes, flags, NULL, 0);
}

ssize_t recv(int fd, void *bytes, size_t n_bytes, int flags) {
    may_strike();
    return syscall(SYS_recvfrom, fd, bytes, n_bytes, flags, NULL, NULL);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    may_strike();
    return syscall(SYS_sendmsg, fd, message, flags);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
    may_strike();
    return syscall(SYS_recvmsg, fd, message, flags);
}

int ftruncate(int fd, off_t n_bytes) {
    may_strike();
    return (int)syscall(SYS_ftruncate, fd, n_bytes);
}

int fallocate(int fd, int mode, off_t offset, off_t n_bytes) {
    may_strike();
    return (int)syscall(SYS_fallocate, fd, mode, offset, n_bytes);
}

int epoll_ctl(int epoll_fd, int operation, int fd, struct epoll_event *event) {
    may_strike();
    return (int)syscall(SYS_epoll_ctl, epoll_fd, operation, fd, event);
}

/* ---- one start ----------------------------------------------------------------------------------
 */

typedef struct start {
    fault_job job;
    int n; /* the call before which the victim is struck */
    int port;
} start;

/* Join and meet until something fails. */
static int rank_main(void *argument) {
    const start *s = argument;
    const int rank = fault_own_rank();
    hp_world *world;
    signal(SIGTERM, rank == s->job.victim ? SIG_DFL : SIG_IGN);
    fault_phase_set(page, rank, PHASE_CREATE);
    if (rank == s->job.victim) {
        fault_striker.page = page;
        fault_striker.how = s->job.how;
        atomic_store(&countdown, s->n);
    }
    hp_status status = hp_world_create(NULL, &world);
    atomic_store(&countdown, 0);
    fault_phase_set(page, rank, PHASE_CALL);
    if (!status && rank == s->job.victim)
        return 0; /* its start took fewer calls: ends in order, but for the world */
    while (!status)
        status = hp_barrier(hp_world_group(world));
    fault_note(page, rank, status);
    return 5;
}

static void set_number(const char *name, int value) {
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

static int free_port(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0 && !bind(fd, (struct sockaddr *)&address, length));
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    close(fd);
    return ntohs(address.sin_port);
}

/* Without a launcher: each process is told who it is, as torchrun does. */
static void run_by_hand(start *s) {
    pid_t pids[N_RANKS];
    s->port = free_port();
    memset(page, 0, sizeof *page);
    fflush(NULL);
    for (int i = 0; i < N_RANKS; i++) {
        pids[i] = fork();
        assert_true(pids[i] >= 0);
        if (pids[i])
            continue;
        set_number("RANK", i);
        set_number("WORLD_SIZE", N_RANKS);
        set_number("LOCAL_RANK", i);
        set_number("LOCAL_WORLD_SIZE", N_RANKS);
        setenv("MASTER_ADDR", "127.0.0.1", 1);
        set_number("MASTER_PORT", s->port);
        alarm(20);
        signal(SIGALRM, SIG_DFL);
        _exit(rank_main(s));
    }
    for (int i = 0; i < N_RANKS; i++)
        if (i != s->job.victim)
            assert_int_equal(waitpid(pids[i], NULL, 0), pids[i]);
    kill(pids[s->job.victim], SIGKILL);
    assert_int_equal(waitpid(pids[s->job.victim], NULL, 0), pids[s->job.victim]);
}

/* By hand, who has not greeted the store yet was never there, and who comes when the store has gone
 * with its rank finds nobody: these learn it from the deadline, as all do of a rank that stopped.
 */
static const char *judge_one(const start *s, int rank) {
    const fault_seen *seen = &page->ranks[rank];
    const int status = atomic_load(&seen->status), named = atomic_load(&seen->world_rank);
    const bool may_be_late = is_by_hand || s->job.how == FAULT_STOP;
    const uint64_t late_ms = status == HP_ERR_TIMEOUT ? LATE_MS : 0;
    if (status != HP_ERR_PEER && !(may_be_late && status == HP_ERR_TIMEOUT))
        return status ? "a survivor got another error" : "a survivor got no error";
    const bool finds_nobody = is_by_hand && status == HP_ERR_TIMEOUT && named == 0 &&
                              strstr(seen->text, "to serve the start-up store") != NULL;
    if (named != s->job.victim && !finds_nobody)
        return "a survivor names another rank";
    if (atomic_load(&seen->noted_ns) >
        atomic_load(&page->struck_ns) + (1000 + late_ms) * UINT64_C(1000000))
        return "a survivor got its error late";
    return NULL;
}

/* What did not hold, or NULL. */
static const char *judge(const start *s) {
    const char *what = NULL;
    for (int i = 0; i < N_RANKS && !what; i++)
        what = i == s->job.victim ? NULL : judge_one(s, i);
    return what;
}

/* Strike before each call; every `step`-th alone where that costs a deadline. */
static void strike_before_each_call(fault how, int victim, int step) {
    start *s = calloc(1, sizeof *s);
    int n_failed = 0;
    assert_non_null(s);
    s->job = (fault_job){.n_ranks = N_RANKS,
                         .victim = victim,
                         .how = how,
                         .page = page,
                         .body = rank_main,
                         .argument = s,
                         .grace_ms = how == FAULT_STOP ? 700 : 4000};
    const int ms = is_by_hand || how == FAULT_STOP ? LATE_MS : 15000;
    set_number("SYMMETRIC_MEMORY_SIGNAL_TIMEOUT_MS", ms);
    set_number("HYPER_PARALLEL_START_TIMEOUT_MS", ms);
    setenv("SYMMETRIC_MEMORY_HEAP_SIZE", "1M", 1);
    const fault_leftovers before = fault_look();
    for (s->n = 1; s->n < MOST_CALLS; s->n += step) {
        char text[160];
        if (is_by_hand)
            run_by_hand(s);
        else
            assert_int_equal(fault_launch(&s->job), HP_OK);
        if (!atomic_load(&page->struck_ns))
            break;
        const char *what = judge(s);
        if (what) {
            fprintf(stderr, "before call %d: %s\n", s->n, what);
            fault_print(&s->job);
        }
        n_failed += what != NULL;
        if (fault_has_left(&before, text, sizeof text))
            fail_msg("left: %s", text);
    }
    print_message("%s, rank %d of %d %s before each of %d calls\n",
                  is_by_hand ? "by hand" : "under a launcher", victim, N_RANKS, fault_name(how),
                  s->n - step);
    assert_in_range(s->n, 10, MOST_CALLS - 1); /* there were calls to be struck before */
    free(s);
    assert_int_equal(n_failed, 0);
}

static void killed_under_a_launcher(void **state) {
    (void)state;
    is_by_hand = false;
    strike_before_each_call(FAULT_KILL, 1, 1);
}

static void killed_by_hand(void **state) {
    (void)state;
    is_by_hand = true;
    strike_before_each_call(FAULT_KILL, 1, 2);
}

static void killed_by_hand_where_the_store_is(void **state) {
    (void)state;
    is_by_hand = true;
    strike_before_each_call(FAULT_KILL, 0, 5);
}

static void stopped_under_a_launcher(void **state) {
    (void)state;
    is_by_hand = false;
    strike_before_each_call(FAULT_STOP, 2, 7);
}

static int setup(void **state) {
    (void)state;
    page = fault_page_map();
    return !page;
}

static int teardown(void **state) {
    (void)state;
    return munmap(page, sizeof *page);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_under_a_launcher),
        cmocka_unit_test(killed_by_hand),
        cmocka_unit_test(killed_by_hand_where_the_store_is),
        cmocka_unit_test(stopped_under_a_launcher),
    };
    (void)fault_be_alone();
    return cmocka_run_group_tests_name("kill_start", tests, setup, teardown);
}

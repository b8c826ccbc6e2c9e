/* SPDX-License-Identifier: Apache-2.0
 *
 * test_hostile.c - strangers at the doors of a job: its start-up store and its ranks' sockets.
 *
 * A process that belongs to no job connects to the store, as often as it can, and says nothing,
 * nonsense, half a message or one of impossible length; another sends datagrams with descriptors to
 * the sockets that ranks pass memory over. The job starts and works as if nobody was there, and no
 * rank keeps a descriptor that a stranger sent. The messages one by one: tests/fuzz.
 */
#include "support/ranks.h"
#include "world/inside.h"
#include "world/start/store.h"
#include <hyperparallel/symm.h>

#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_RANKS = 3, MOST_FDS = 9, N_ROUNDS = 60, N_KNOCKS = 1000000 };

/* A rank's socket, told to the stranger; length 0: not known yet. */
typedef struct door {
    struct sockaddr_un address;
    _Atomic socklen_t length;
} door;

typedef struct page {
    door doors[N_RANKS];
    _Atomic uint64_t n_knocks;
} page;

static page *shared;

static int setup(void **state) {
    (void)state;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return shared == MAP_FAILED;
}

static int teardown(void **state) {
    (void)state;
    return munmap(shared, sizeof *shared);
}

/* ---- processes --------------------------------------------------------------------------------
 */

typedef int (*process_body)(int number);

static pid_t start(process_body body, int number) {
    fflush(NULL);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(50);
        _exit(body(number));
    }
    return pid;
}

static int end_of(pid_t pid) {
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* The ranks work beside a stranger, who is there first. */
static void run_beside(process_body stranger, process_body rank) {
    pid_t ranks[N_RANKS];
    memset(shared, 0, sizeof *shared);
    const pid_t pid = start(stranger, 0);
    for (int i = 0; i < N_RANKS; i++)
        ranks[i] = start(rank, i);
    for (int i = 0; i < N_RANKS; i++)
        assert_int_equal(end_of(ranks[i]), 0);
    print_message("%llu knocks of a stranger\n",
                  (unsigned long long)atomic_load(&shared->n_knocks));
    assert_true(atomic_load(&shared->n_knocks) > 0);
    kill(pid, SIGKILL);
    assert_int_equal(end_of(pid), 128 + SIGKILL);
}

static void knocked(void) {
    atomic_fetch_add(&shared->n_knocks, 1);
}

/* ---- at the store -----------------------------------------------------------------------------
 */

static int port; /* of the store; set before processes start */

static int free_port(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, length), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    close(fd);
    return ntohs(address.sin_port);
}

/* What a stranger says, by turns; true: there may be more, so the connection is worth keeping. */
static bool say_something(int fd, uint64_t *seed) {
    uint8_t bytes[600];
    hpi_store_head head = {.magic = HPI_STORE_MAGIC, .op = HPI_STORE_GET, .id = 1};
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)hpi_random_next(seed);
    switch (hpi_random_next(seed) % 6) {
    case 0: /* nothing */
        return true;
    case 1: /* half a head */
        (void)send(fd, &head, sizeof head / 2, MSG_NOSIGNAL | MSG_DONTWAIT);
        return true;
    case 2: /* a length that nobody takes */
        head.value_bytes = UINT32_MAX;
        (void)send(fd, &head, sizeof head, MSG_NOSIGNAL | MSG_DONTWAIT);
        return false;
    case 3: /* a question before a greeting */
        (void)send(fd, &head, sizeof head, MSG_NOSIGNAL | MSG_DONTWAIT);
        return false;
    case 4: /* a greeting of another job, and more behind it */
        head.op = HPI_STORE_GREET;
        head.value_bytes = sizeof(hpi_store_greeting);
        (void)send(fd, &head, sizeof head, MSG_NOSIGNAL | MSG_DONTWAIT);
        (void)send(fd, bytes, sizeof bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        return true;
    default:
        (void)send(fd, bytes, sizeof bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        return false;
    }
}

static int knock_at_store(int number) {
    enum { N_KEPT = 100 }; /* more than a store of three ranks holds */
    const struct sockaddr_in address = {.sin_family = AF_INET,
                                        .sin_port = htons((uint16_t)port),
                                        .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int n_kept = 0;
    uint64_t seed = 1;
    (void)number;
    for (unsigned n = 0; n < N_KNOCKS; n++) {
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0 || connect(fd, (const struct sockaddr *)&address, sizeof address)) {
            close(fd);
            hpi_sleep_ns(200000);
            continue;
        }
        knocked();
        /* so many are held for good, which is all that there was room for */
        if (say_something(fd, &seed) && n_kept < N_KEPT)
            n_kept++;
        else
            close(fd);
        hpi_sleep_ns(100000);
    }
    return 1; /* it should have been ended long ago */
}

static void set_number(const char *name, int value) {
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

static int complain(int rank, const char *what) {
    fprintf(stderr, "rank %d: %s: %s\n", rank, what, hp_last_error());
    return 1;
}

static int join_with_strangers(int rank) {
    hp_world *world;
    uint64_t all[N_RANKS];
    const uint64_t mine = (uint64_t)rank + 5;
    set_number("RANK", rank);
    set_number("WORLD_SIZE", N_RANKS);
    set_number("LOCAL_RANK", rank);
    set_number("LOCAL_WORLD_SIZE", N_RANKS);
    set_number("MASTER_PORT", port);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("TORCHELASTIC_RUN_ID", "test_hostile", 1);
    if (rank > 0) /* when the strangers have taken all that there is */
        hpi_sleep_ns(UINT64_C(200000000) * (uint64_t)rank);
    if (hp_world_create(NULL, &world))
        return complain(rank, "create");
    if (hpi_group_exchange(hp_world_group(world), "test", &mine, 1, all))
        return complain(rank, "exchange");
    for (int i = 0; i < N_RANKS; i++)
        if (all[i] != (uint64_t)i + 5)
            return complain(rank, "a wrong value");
    hp_world_destroy(world);
    return 0;
}

static void strangers_at_the_store(void **state) {
    (void)state;
    port = free_port();
    run_beside(knock_at_store, join_with_strangers);
}

/* ---- at the sockets ----------------------------------------------------------------------------
 */

static void send_to(int fd, const door *d, uint64_t *seed) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(MOST_FDS * sizeof(int))];
    } controls = {.bytes = {0}};
    uint64_t words[16] = {UINT64_C(0x6572616873504848)}; /* "HHPshare": ours but for the secret */
    const size_t n_fds = hpi_random_next(seed) % (MOST_FDS + 1);
    for (size_t i = hpi_random_next(seed) % 2; i < 16; i++)
        words[i] = hpi_random_next(seed);
    struct iovec part = {words, hpi_random_next(seed) % 2 ? 40 : hpi_random_next(seed) % 128};
    struct msghdr header = {.msg_name = (void *)(uintptr_t)&d->address,
                            .msg_namelen = atomic_load(&d->length),
                            .msg_iov = &part,
                            .msg_iovlen = 1};
    if (n_fds) {
        header.msg_control = controls.bytes;
        header.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&header);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        for (size_t i = 0; i < n_fds; i++)
            memcpy(CMSG_DATA(c) + i * sizeof fd, &fd, sizeof fd);
    }
    if (sendmsg(fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
        knocked();
}

static int knock_at_sockets(int number) {
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    uint64_t seed = 2;
    (void)number;
    for (unsigned n = 0; n < N_KNOCKS; n++) {
        for (int i = 0; i < N_RANKS; i++)
            if (atomic_load(&shared->doors[i].length))
                send_to(fd, &shared->doors[i], &seed);
        hpi_sleep_ns(20000);
    }
    return 1;
}

/* Beside a rank that starts: find the socket among our own descriptors, and tell of it. */
static void *look_for_door(void *argument) {
    door *d = argument;
    for (;;)
        for (int fd = 3; fd < 100; fd++) {
            struct sockaddr_un address = {.sun_family = AF_UNSPEC};
            socklen_t length = sizeof address;
            static const char begin[] = "hyperparallel-";
            if (getsockname(fd, (struct sockaddr *)&address, &length) ||
                address.sun_family != AF_UNIX || length < 2 + sizeof begin ||
                memcmp(address.sun_path + 1, begin, sizeof begin - 1))
                continue;
            d->address = address;
            atomic_store(&d->length, length);
            return NULL;
        }
}

static int count_fds(void) {
    int n = 0;
    for (int fd = 0; fd < 1024; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static hp_status share_often(hp_world *world) {
    for (int i = 0; i < N_ROUNDS; i++) {
        hp_symm memory;
        HP_TRY(hp_symm_alloc_spanning(world, NULL, 4096, &memory));
        HP_TRY(hp_symm_free(memory));
        hpi_sleep_ns(1000000);
    }
    return HP_OK;
}

static int share_with_strangers(void *argument) {
    hp_world *world;
    pthread_t thread;
    const char *text = getenv("RANK");
    const int rank = text ? atoi(text) : 0;
    (void)argument;
    if (pthread_create(&thread, NULL, look_for_door, &shared->doors[rank]))
        return 2;
    if (hp_world_create(NULL, &world))
        return complain(rank, "create");
    pthread_join(thread, NULL);
    if (share_often(world))
        return complain(rank, "allocate");
    const int before = count_fds();
    if (share_often(world))
        return complain(rank, "allocate again");
    if (count_fds() != before)
        return complain(rank, "descriptors of strangers stay open");
    hp_world_destroy(world);
    return 0;
}

static void strangers_at_the_sockets(void **state) {
    hp_launch_config config = HP_LAUNCH_CONFIG_INIT;
    int status = -1;
    (void)state;
    memset(shared, 0, sizeof *shared);
    config.n_ranks = N_RANKS;
    config.body = share_with_strangers;
    config.deadline_ms = 50000;
    const pid_t pid = start(knock_at_sockets, 0);
    assert_int_equal(hp_launch(&config, &status), HP_OK);
    kill(pid, SIGKILL);
    assert_int_equal(end_of(pid), 128 + SIGKILL);
    print_message("%llu knocks of a stranger\n",
                  (unsigned long long)atomic_load(&shared->n_knocks));
    assert_int_equal(status, 0);
    assert_true(atomic_load(&shared->n_knocks) > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strangers_at_the_store),
        cmocka_unit_test(strangers_at_the_sockets),
    };
    return cmocka_run_group_tests_name("hostile", tests, setup, teardown);
}

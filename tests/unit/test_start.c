/* SPDX-License-Identifier: Apache-2.0
 *
 * test_start.c - how a world comes about: alone, hub, launcher, torchrun's names, a caller's store;
 * and what is said when it does not.
 *
 * Processes without a launcher are started here: each is given its environment, creates a world and
 * ends with 0 when that went as the test expects.
 */
#include "support/ranks.h"
#include "world/inside.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- processes of our own ------------------------------------------------------------------- */

typedef int (*process_body)(int rank, void *argument);

/* Run body in n children at once; the sum of what they return. */
static int run_processes(int n, process_body body, void *argument) {
    pid_t pids[16];
    int sum = 0;
    fflush(NULL);
    for (int i = 0; i < n; i++) {
        pids[i] = fork();
        assert_true(pids[i] >= 0);
        if (pids[i] == 0) {
            alarm(60);
            _exit(body(i, argument));
        }
    }
    for (int i = 0; i < n; i++) {
        int status;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        sum += WIFEXITED(status) ? WEXITSTATUS(status) : 100;
    }
    return sum;
}

static void set_number(const char *name, int value) {
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

/* A socket that listens on a port of this machine that is free. */
static int listen_somewhere(int *out_port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, length), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    assert_int_equal(listen(fd, 16), 0);
    *out_port = ntohs(address.sin_port);
    return fd;
}

static int free_port(void) {
    int port;
    close(listen_somewhere(&port));
    return port;
}

typedef struct torchrun {
    int n_ranks, n_worlds, port;
    bool has_agent_store;
    int failing_rank;
    hp_status expected;
    const char *text; /* in the error */
} torchrun;

static void set_torchrun(int rank, const torchrun *t) {
    set_number("RANK", rank);
    set_number("WORLD_SIZE", t->n_ranks);
    set_number("LOCAL_RANK", rank);
    set_number("LOCAL_WORLD_SIZE", t->n_ranks);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_number("MASTER_PORT", t->port);
    setenv("TORCHELASTIC_RUN_ID", "test_start", 1);
    setenv("TORCHELASTIC_RESTART_COUNT", "0", 1);
    if (t->has_agent_store)
        setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
}

static int complain(int rank, const char *what) {
    fprintf(stderr, "rank %d: %s: %s\n", rank, what, hp_last_error());
    return 1;
}

static bool exchanges_well(hp_world *world) {
    uint64_t all[16];
    const uint64_t mine = 7 * (uint64_t)hp_world_rank(world);
    for (int round = 0; round < 20; round++) {
        if (hpi_group_exchange(hp_world_group(world), "test", &mine, 1, all))
            return false;
        for (int i = 0; i < hp_world_size(world); i++)
            if (all[i] != 7 * (uint64_t)i)
                return false;
    }
    return true;
}

/* Join, work, leave, as often as it says. */
static int join_and_leave(int rank, const hp_world_config *config, int n_ranks, int n_worlds) {
    for (int i = 0; i < n_worlds; i++) {
        hp_world *world;
        if (hp_world_create(config, &world))
            return complain(rank, "create");
        if (hp_world_rank(world) != rank || hp_world_size(world) != n_ranks)
            return complain(rank, "a wrong rank");
        if (!exchanges_well(world))
            return complain(rank, "exchange");
        hp_world_destroy(world);
    }
    return 0;
}

/* ---- torchrun ------------------------------------------------------------------------------ */

static int torchrun_body(int rank, void *argument) {
    const torchrun *t = argument;
    set_torchrun(rank, t);
    return join_and_leave(rank, NULL, t->n_ranks, t->n_worlds);
}

static void test_torchrun(void **state) {
    (void)state;
    torchrun t = {.n_ranks = 4, .n_worlds = 3, .port = free_port()};
    assert_int_equal(run_processes(4, torchrun_body, &t), 0);
    t = (torchrun){.n_ranks = 1, .n_worlds = 1, .port = free_port()};
    assert_int_equal(run_processes(1, torchrun_body, &t), 0);
}

/* torchrun's own store sits on MASTER_PORT: ours is the port above. */
static void test_agent_store(void **state) {
    (void)state;
    torchrun t = {.n_ranks = 2, .n_worlds = 1, .has_agent_store = true};
    const int agent = listen_somewhere(&t.port);
    assert_int_equal(run_processes(2, torchrun_body, &t), 0);
    close(agent);
}

static int expect_failure(int rank, const torchrun *t) {
    hp_world *world;
    const hp_status status = hp_world_create(NULL, &world);
    if (status != t->expected || !strstr(hp_last_error(), t->text))
        return complain(rank, status ? "another failure" : "no failure");
    return 0;
}

static int foreign_body(int rank, void *argument) {
    const torchrun *t = argument;
    set_torchrun(1, t);
    return expect_failure(rank, t);
}

static void *answer_nonsense(void *argument) {
    const int client = accept(*(int *)argument, NULL, NULL);
    const char nonsense[64] = "HTTP/1.1 400 Bad Request\r\n\r\n";
    char request[256];
    (void)!read(client, request, sizeof request);
    (void)!write(client, nonsense, sizeof nonsense);
    close(client);
    return NULL;
}

/* Something else on the port is told apart from a store, at once. */
static void test_foreign_service(void **state) {
    pthread_t thread;
    torchrun t = {.n_ranks = 2, .expected = HP_ERR_FORMAT, .text = "something else answers"};
    (void)state;
    int fd = listen_somewhere(&t.port);
    assert_int_equal(pthread_create(&thread, NULL, answer_nonsense, &fd), 0);
    assert_int_equal(run_processes(1, foreign_body, &t), 0);
    pthread_join(thread, NULL);
    close(fd);
}

static int taken_body(int rank, void *argument) {
    const torchrun *t = argument;
    set_torchrun(rank, t);
    return expect_failure(rank, t);
}

static void test_port_taken(void **state) {
    torchrun t = {.n_ranks = 2, .expected = HP_ERR_SYSTEM, .text = "HYPER_PARALLEL_STORE_PORT"};
    (void)state;
    const int fd = listen_somewhere(&t.port);
    assert_int_equal(run_processes(1, taken_body, &t), 0);
    close(fd);
}

/* Two jobs of equal ports meet: the store of one refuses the ranks of the other. */
static int other_job_body(int rank, void *argument) {
    torchrun *t = argument;
    set_torchrun(rank, t);
    setenv("HYPER_PARALLEL_START_TIMEOUT_MS", rank == 2 ? "300" : "3000", 1);
    if (rank < 2)
        return join_and_leave(rank, NULL, 2, 1);
    setenv("RANK", "1", 1);
    setenv("TORCHELASTIC_RUN_ID", "another", 1);
    hp_world *world;
    return hp_world_create(NULL, &world) ? 0 : complain(rank, "joined a job that is not its own");
}

static void test_other_job(void **state) {
    (void)state;
    torchrun t = {.n_ranks = 2, .port = free_port()};
    assert_int_equal(run_processes(3, other_job_body, &t), 0);
}

static int missing_body(int rank, void *argument) {
    const torchrun *t = argument;
    set_torchrun(rank, t);
    setenv("HYPER_PARALLEL_START_TIMEOUT_MS", "400", 1);
    return rank == t->failing_rank ? 0 : expect_failure(rank, t);
}

static void test_missing_rank(void **state) {
    (void)state;
    torchrun t = {.n_ranks = 3,
                  .port = free_port(),
                  .failing_rank = 2,
                  .expected = HP_ERR_TIMEOUT,
                  .text = "these did not come: 2"};
    assert_int_equal(run_processes(3, missing_body, &t), 0);
    t = (torchrun){.n_ranks = 2,
                   .port = free_port(),
                   .failing_rank = 0,
                   .expected = HP_ERR_TIMEOUT,
                   .text = "waited for rank 0"};
    assert_int_equal(run_processes(2, missing_body, &t), 0);
}

/* A rank that ends while the others still gather is named at once. */
static int early_body(int rank, void *argument) {
    const torchrun *t = argument;
    set_torchrun(rank, t);
    if (rank != t->failing_rank)
        return expect_failure(rank, t);
    /* greets the store, says no hello, ends */
    alarm(0);
    setenv("HYPER_PARALLEL_START_TIMEOUT_MS", "60000", 1);
    setrlimit(RLIMIT_NOFILE, &(struct rlimit){5, 5});
    hp_world *world;
    return hp_world_create(NULL, &world) ? 0 : 1;
}

static void test_rank_that_cannot_start(void **state) {
    (void)state;
    torchrun t = {.n_ranks = 3,
                  .port = free_port(),
                  .failing_rank = 2,
                  .expected = HP_ERR_SYSTEM,
                  .text = "rank 2 cannot take part"};
    assert_int_equal(run_processes(3, early_body, &t), 0);
}

static int disagree_body(int rank, void *argument) {
    const torchrun *t = argument;
    set_torchrun(rank, t);
    setenv("SYMMETRIC_MEMORY_HEAP_SIZE", rank == 1 ? "2M" : "1M", 1);
    return expect_failure(rank, t);
}

static void test_options_disagree(void **state) {
    (void)state;
    torchrun t = {.n_ranks = 3,
                  .port = free_port(),
                  .expected = HP_ERR_MISMATCH,
                  .text = "rank 1 says 2097152 and rank 0 says 1048576"};
    assert_int_equal(run_processes(3, disagree_body, &t), 0);
}

static int disagree_on_thresholds_body(int rank, void *argument) {
    const torchrun *t = argument;
    set_torchrun(rank, t);
    setenv("HYPER_PARALLEL_THRESHOLDS", rank == 1 ? "stream=1M" : "stream=2M", 1);
    return expect_failure(rank, t);
}

static void test_thresholds_disagree(void **state) {
    (void)state;
    torchrun t = {.n_ranks = 3,
                  .port = free_port(),
                  .expected = HP_ERR_MISMATCH,
                  .text = "rank 1 says \"stream=1M\" and rank 0 says \"stream=2M\""};
    assert_int_equal(run_processes(3, disagree_on_thresholds_body, &t), 0);
}

static int incomplete_body(int rank, void *argument) {
    hp_world *world;
    (void)argument;
    setenv("WORLD_SIZE", "2", 1);
    if (hp_world_create(NULL, &world) != HP_ERR_ARGUMENT || !strstr(hp_last_error(), "RANK"))
        return complain(rank, "RANK is missing");
    setenv("RANK", "2", 1);
    if (hp_world_create(NULL, &world) != HP_ERR_ARGUMENT)
        return complain(rank, "RANK is too large");
    setenv("RANK", "1", 1);
    if (hp_world_create(NULL, &world) != HP_ERR_ARGUMENT || !strstr(hp_last_error(), "MASTER_ADDR"))
        return complain(rank, "MASTER_ADDR is missing");
    setenv("HYPER_PARALLEL_LAUNCHER", "nonsense", 1);
    if (hp_world_create(NULL, &world) != HP_ERR_ARGUMENT)
        return complain(rank, "the launcher's words are nonsense");
    setenv("HYPER_PARALLEL_LAUNCHER", "layout=1,store=98,segment=99", 1);
    if (hp_world_create(NULL, &world) >= 0)
        return complain(rank, "the launcher's descriptors are closed");
    return 0;
}

static void test_incomplete_environment(void **state) {
    (void)state;
    assert_int_equal(run_processes(1, incomplete_body, NULL), 0);
}

/* ---- a caller's store ------------------------------------------------------------------------ */

/* Slots in memory that the forked ranks share; waiting is polling. */
typedef struct shared_store {
    pthread_mutex_t lock;
    int n, n_closed;
    struct {
        char key[64];
        size_t n_bytes;
        char bytes[1024];
    } values[32];
} shared_store;

static hp_status shared_set(void *context, const char *key, const void *value, size_t n_bytes) {
    shared_store *s = context;
    pthread_mutex_lock(&s->lock);
    snprintf(s->values[s->n].key, sizeof s->values[0].key, "%s", key);
    memcpy(s->values[s->n].bytes, value, n_bytes);
    s->values[s->n++].n_bytes = n_bytes;
    pthread_mutex_unlock(&s->lock);
    return HP_OK;
}

static hp_status shared_get(void *context, const char *key, void *out_value, size_t capacity,
                            size_t *out_n_bytes, uint64_t timeout_ms) {
    shared_store *s = context;
    const uint64_t deadline_ns = hpi_now_ns() + timeout_ms * UINT64_C(1000000);
    bool is_found = false;
    while (!is_found && hpi_now_ns() < deadline_ns) {
        pthread_mutex_lock(&s->lock);
        for (int i = 0; i < s->n && !is_found; i++) {
            is_found = !strcmp(s->values[i].key, key) && s->values[i].n_bytes <= capacity;
            if (is_found)
                memcpy(out_value, s->values[i].bytes, *out_n_bytes = s->values[i].n_bytes);
        }
        pthread_mutex_unlock(&s->lock);
        hpi_sleep_ns(is_found ? 0 : 1000000);
    }
    return is_found ? HP_OK : HP_ERR_TIMEOUT;
}

static void shared_close(void *context) {
    shared_store *s = context;
    pthread_mutex_lock(&s->lock);
    s->n_closed++;
    pthread_mutex_unlock(&s->lock);
}

static int store_body(int rank, void *argument) {
    const hp_store store = {argument, shared_set, shared_get, shared_close};
    hp_world_config config = HP_WORLD_CONFIG_INIT;
    config.rank = rank;
    config.n_ranks = 3;
    config.store = &store;
    return join_and_leave(rank, &config, 3, 1);
}

static void test_callers_store(void **state) {
    pthread_mutexattr_t attributes;
    (void)state;
    shared_store *s =
        mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(s != MAP_FAILED);
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&s->lock, &attributes);
    assert_int_equal(run_processes(3, store_body, s), 0);
    assert_int_equal(s->n_closed, 3);
    munmap(s, sizeof *s);
}

/* ---- alone, hub, and wrong configs ----------------------------------------------------------- */

static void test_alone(void **state) {
    hp_world *world;
    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(hp_world_create(NULL, &world), HP_OK);
        assert_int_equal(hp_world_size(world), 1);
        assert_true(exchanges_well(world));
        hp_world_destroy(world);
    }
    hp_world_destroy(NULL);
}

static void test_wrong_configs(void **state) {
    hp_world_config config = HP_WORLD_CONFIG_INIT;
    hp_world *world;
    hp_hub *hub;
    (void)state;
    assert_int_equal(hp_world_create(NULL, NULL), HP_ERR_ARGUMENT);
    config.rank = 1;
    assert_int_equal(hp_world_create(&config, &world), HP_ERR_ARGUMENT);
    config.size = 3;
    assert_int_equal(hp_world_create(&config, &world), HP_ERR_ARGUMENT);
    assert_int_equal(hp_hub_create(0, &hub), HP_ERR_ARGUMENT);
    assert_int_equal(hp_hub_create(2, NULL), HP_ERR_ARGUMENT);
    assert_int_equal(hp_hub_create(2, &hub), HP_OK);
    config = (hp_world_config)HP_WORLD_CONFIG_INIT;
    config.hub = hub;
    assert_int_equal(hp_world_create(&config, &world), HP_ERR_ARGUMENT); /* which rank? */
    config.rank = 2;
    assert_int_equal(hp_world_create(&config, &world), HP_ERR_ARGUMENT);
    hp_hub_destroy(hub);
    hp_hub_destroy(NULL);
}

/* A rank of a hub whose peer does not come, and then a rank that is there twice. */
static void test_hub_alone(void **state) {
    hp_world_config config = HP_WORLD_CONFIG_INIT;
    hp_world *world, *twin;
    hp_error error;
    (void)state;
    assert_int_equal(hp_hub_create(2, &config.hub), HP_OK);
    config.rank = 0;
    setenv("HYPER_PARALLEL_START_TIMEOUT_MS", "100", 1);
    assert_int_equal(hp_world_create(&config, &world), HP_ERR_TIMEOUT);
    hp_last_error_get(&error);
    assert_int_equal(error.world_rank, 1);
    unsetenv("HYPER_PARALLEL_START_TIMEOUT_MS");
    hp_hub_destroy(config.hub);

    assert_int_equal(hp_hub_create(1, &config.hub), HP_OK);
    assert_int_equal(hp_world_create(&config, &world), HP_OK);
    assert_int_equal(hp_world_create(&config, &twin), HP_ERR_STATE);
    hp_world_destroy(world);
    assert_int_equal(hp_world_create(&config, &twin), HP_OK);
    hp_world_destroy(twin);
    hp_hub_destroy(config.hub);
}

/* ---- one world after another, on the same segments ------------------------------------------- */

static void again_body(hp_world *first, void *argument) {
    const int rank = hp_world_rank(first);
    uint64_t bytes;
    (void)argument;
    unsigned char *heap = hpi_world_segment(first, rank, &bytes);
    RANK_OK(hpi_world_commit(first, 0, 4096));
    heap[5] = 1;
    hp_group *left_over;
    RANK_OK(hp_group_create(first, (int[]){0, 1, 2}, 3, &left_over));
    hp_group_destroy(left_over);
}

static int again_main(void *argument) {
    (void)argument;
    for (int i = 0; i < 5; i++) {
        hp_world *world;
        uint64_t bytes;
        if (hp_world_create(NULL, &world))
            return complain(-1, "create");
        unsigned char *heap = hpi_world_segment(world, hp_world_rank(world), &bytes);
        if (heap[5] || hpi_world_commit(world, 0, 4096) || !exchanges_well(world))
            return complain(hp_world_rank(world), "not like new");
        heap[5] = 1;
        hp_world_destroy(world);
    }
    return 0;
}

static void test_again(void **state) {
    hp_launch_config config = HP_LAUNCH_CONFIG_INIT;
    int status = -1;
    (void)state;
    config.n_ranks = 3;
    config.body = again_main;
    assert_int_equal(hp_launch(&config, &status), HP_OK);
    assert_int_equal(status, 0);
    ranks_run(3, RANKS_THREADS, again_body, NULL);
}

/* ---- limits ---------------------------------------------------------------------------------- */

static void never_body(hp_world *world, void *argument) {
    (void)world;
    (void)argument;
    RANK_CHECK(false);
}

static void test_heap_above_memory(void **state) {
    char text[2048];
    (void)state;
    hp_hub *hub;
    setenv("SYMMETRIC_MEMORY_HEAP_SIZE", "32T", 1);
    assert_int_equal(hp_hub_create(2, &hub), HP_ERR_LIMIT);
    assert_non_null(strstr(hp_last_error(), "SYMMETRIC_MEMORY_HEAP_SIZE of all ranks"));
    assert_non_null(strstr(hp_last_error(), "70368744177664 bytes")); /* 2 x 32 TiB */
    assert_non_null(strstr(hp_last_error(), "available"));
    print_message("(refusals of a heap of 32 TiB follow, as they should)\n");
    assert_int_equal(ranks_try(2, RANKS_PROCESSES, never_body, NULL, text, sizeof text), 1);
    assert_non_null(strstr(text, "ended with status 1"));
    unsetenv("SYMMETRIC_MEMORY_HEAP_SIZE");
}

static void heap_body(hp_world *world, void *argument) {
    uint64_t bytes;
    RANK_CHECK(hpi_world_segment(world, hp_world_rank(world), &bytes));
    RANK_CHECK(bytes <= *(uint64_t *)argument && bytes >= 4096);
    RANK_OK(hpi_world_commit(world, 0, bytes));
}

static void test_heap_size(void **state) {
    (void)state;
    setenv("SYMMETRIC_MEMORY_HEAP_SIZE", "3M", 1);
    ranks_run(2, RANKS_THREADS, heap_body, &(uint64_t){3 << 20});
    ranks_run(2, RANKS_PROCESSES, heap_body, &(uint64_t){3 << 20});
    unsetenv("SYMMETRIC_MEMORY_HEAP_SIZE");
}

static int file_limit_body(int rank, void *argument) {
    const uint64_t limit = HPI_HEAP_OFFSET + (UINT64_C(2) << 20);
    hp_hub *hub;
    (void)argument;
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){limit, limit});
    /* without a wish, the heap takes what the limit leaves */
    hp_world *world;
    uint64_t bytes;
    if (hp_world_create(NULL, &world))
        return complain(rank, "create");
    if (!hpi_world_segment(world, 0, &bytes) || bytes != limit - HPI_HEAP_OFFSET ||
        hpi_world_commit(world, 0, bytes))
        return complain(rank, "heap");
    hp_world_destroy(world);
    setenv("SYMMETRIC_MEMORY_HEAP_SIZE", "16M", 1);
    if (hp_hub_create(2, &hub) != HP_ERR_LIMIT || !strstr(hp_last_error(), "RLIMIT_FSIZE"))
        return complain(rank, "a heap above the limit");
    unsetenv("SYMMETRIC_MEMORY_HEAP_SIZE");
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){1 << 20, 1 << 20});
    if (hp_hub_create(2, &hub) != HP_ERR_LIMIT)
        return complain(rank, "a limit below the signal lines");
    return 0;
}

static void test_file_limit(void **state) {
    (void)state;
    assert_int_equal(run_processes(1, file_limit_body, NULL), 0);
}

static int count_fds(void) {
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;
    while (dir && readdir(dir))
        n++;
    if (dir)
        closedir(dir);
    return n;
}

/* The n-th allocation fails: an error, nothing left open, and the next try works. */
static void test_no_memory(void **state) {
    hp_world *world;
    (void)state;
    const int n_fds = count_fds();
    int n = 1;
    for (;; n++) {
        hpi_alloc_fail_after((uint64_t)n);
        const hp_status status = hp_world_create(NULL, &world);
        hpi_alloc_fail_after(0);
        if (!status)
            break;
        assert_int_equal(status, HP_ERR_MEMORY);
        assert_int_equal(count_fds(), n_fds);
    }
    assert_true(n > 3);
    hp_world_destroy(world);
    assert_int_equal(count_fds(), n_fds);
}

/* ---- without standard input, output and error ------------------------------------------------ */

enum { N_STDIO = 3 };

static bool is_open(int fd) {
    return fcntl(fd, F_GETFD) >= 0;
}

/* What is printed may not land in anything of the library's. Of a launcher's ranks all but the
 * first are given /dev/null to read. 0: it went well. */
static int stdio_free_body(void *is_of_launcher) {
    hp_world *world;
    int n_wrong = 0;
    alarm(60);
    if (hp_world_create(NULL, &world))
        return 1;
    const bool has_stdin = is_of_launcher && hp_world_rank(world) > 0;
    for (int fd = has_stdin ? 1 : 0; fd < N_STDIO; fd++)
        n_wrong += 2 * is_open(fd);
    n_wrong += has_stdin && !is_open(0);
    if (!exchanges_well(world))
        n_wrong += 10;
    hp_world_destroy(world);
    return n_wrong;
}

static void close_stdio(void) {
    for (int fd = 0; fd < N_STDIO; fd++)
        close(fd);
}

static int stdio_torchrun_body(int rank, void *argument) {
    set_torchrun(rank, argument);
    close_stdio();
    return stdio_free_body(NULL);
}

static int stdio_launcher_body(int rank, void *argument) {
    hp_launch_config config = HP_LAUNCH_CONFIG_INIT;
    int code;
    (void)rank;
    (void)argument;
    close_stdio();
    config.n_ranks = 3;
    config.body = stdio_free_body;
    config.argument = &config;
    return hp_launch(&config, &code) ? 50 : code;
}

static void test_closed_stdio(void **state) {
    (void)state;
    torchrun alone = {.n_ranks = 1, .port = free_port()};
    torchrun three = {.n_ranks = 3, .port = free_port()};
    assert_int_equal(run_processes(1, stdio_torchrun_body, &alone), 0);
    assert_int_equal(run_processes(3, stdio_torchrun_body, &three), 0);
    assert_int_equal(run_processes(1, stdio_launcher_body, NULL), 0);
}

typedef struct starved {
    torchrun job;
    int n;             /* the allocation that fails in rank 1 */
    bool *out_is_over; /* shared: it went well */
} starved;

/* Of two processes one gets no memory. The other may not hang, nor crash, nor join alone. */
static int starved_body(int rank, void *argument) {
    const starved *s = argument;
    hp_world *world;
    const int n_fds = count_fds();
    set_torchrun(rank, &s->job);
    setenv("HYPER_PARALLEL_START_TIMEOUT_MS", "200", 1);
    hpi_alloc_fail_after(rank == 1 ? (uint64_t)s->n : 0);
    const hp_status status = hp_world_create(NULL, &world);
    hpi_alloc_fail_after(0);
    if (!status) {
        if (rank == 1)
            *s->out_is_over = true;
        hp_world_destroy(world);
    } else if (rank == 1 && status != HP_ERR_MEMORY) {
        return complain(rank, "expected HP_ERR_MEMORY");
    }
    return count_fds() == n_fds ? 0 : complain(rank, "left a descriptor open");
}

static void test_no_memory_among_processes(void **state) {
    bool *is_over = mmap(NULL, 1, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    (void)state;
    assert_true(is_over != MAP_FAILED);
    starved s = {.job = {.n_ranks = 2}, .n = 1, .out_is_over = is_over};
    for (; !*is_over; s.n++) {
        s.job.port = free_port();
        assert_int_equal(run_processes(2, starved_body, &s), 0);
        assert_true(s.n < 100);
    }
    munmap(is_over, 1);
}

/* ---- fork ------------------------------------------------------------------------------------ */

static int forked_main(hp_world *world) {
    hp_group *group;
    const hpi_reason reason = {"test", NULL, -1, 0, 1000, 0};
    static _Atomic uint64_t never;
    if (hpi_world_usable(world) != HP_ERR_FORKED || hp_world_check(world) != HP_ERR_FORKED)
        return complain(0, "usable");
    if (hp_group_create(world, (int[]){0, 1}, 2, &group) != HP_ERR_FORKED)
        return complain(0, "group");
    if (hp_group_duplicate(hp_world_group(world), &group) != HP_ERR_FORKED)
        return complain(0, "duplicate");
    if (hpi_world_wait(world, &never, HP_NE, 0, &reason) != HP_ERR_FORKED)
        return complain(0, "wait");
    hp_world_destroy(world); /* takes nothing from the parent */
    return 0;
}

static void fork_body(hp_world *world, void *argument) {
    (void)argument;
    if (hp_world_rank(world) == 0) {
        int status;
        const pid_t pid = fork();
        RANK_CHECK(pid >= 0);
        if (pid == 0)
            _exit(forked_main(world));
        RANK_CHECK(waitpid(pid, &status, 0) == pid);
        RANK_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    RANK_CHECK(exchanges_well(world));
}

static void test_fork(void **state) {
    (void)state;
    ranks_run(2, RANKS_PROCESSES, fork_body, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_alone),
                                       cmocka_unit_test(test_wrong_configs),
                                       cmocka_unit_test(test_hub_alone),
                                       cmocka_unit_test(test_torchrun),
                                       cmocka_unit_test(test_agent_store),
                                       cmocka_unit_test(test_foreign_service),
                                       cmocka_unit_test(test_port_taken),
                                       cmocka_unit_test(test_other_job),
                                       cmocka_unit_test(test_missing_rank),
                                       cmocka_unit_test(test_rank_that_cannot_start),
                                       cmocka_unit_test(test_options_disagree),
                                       cmocka_unit_test(test_thresholds_disagree),
                                       cmocka_unit_test(test_incomplete_environment),
                                       cmocka_unit_test(test_callers_store),
                                       cmocka_unit_test(test_again),
                                       cmocka_unit_test(test_heap_above_memory),
                                       cmocka_unit_test(test_heap_size),
                                       cmocka_unit_test(test_file_limit),
                                       cmocka_unit_test(test_closed_stdio),
                                       cmocka_unit_test(test_no_memory),
                                       cmocka_unit_test(test_no_memory_among_processes),
                                       cmocka_unit_test(test_fork)};
    return cmocka_run_group_tests_name("start", tests, NULL, NULL);
}

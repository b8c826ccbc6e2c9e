/* SPDX-License-Identifier: Apache-2.0
 *
 * test_queue.c - streams of calls: order, marks, waits between streams, failure, the end.
 *
 * What must not happen yet is held back by a gate that the test opens, never by a sleep, so that
 * nothing here depends on how fast a thread gets its turn.
 */
#include "base/base.h"
#include "stream/stream.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static hp_stream *stream_new(const char *name) {
    hp_stream_config config = HP_STREAM_CONFIG_INIT;
    hp_stream *stream = NULL;
    config.name = name;
    assert_int_equal(hp_stream_create(&config, &stream), HP_OK);
    return stream;
}

/* ---- a call that waits until it may go on ---- */

typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_open;
} gate;
#define GATE_INIT                                                                                  \
    { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false }

static hp_status gate_pass(void *argument) {
    gate *g = argument;
    pthread_mutex_lock(&g->lock);
    while (!g->is_open)
        pthread_cond_wait(&g->changed, &g->lock);
    pthread_mutex_unlock(&g->lock);
    return HP_OK;
}

static void gate_open(gate *g) {
    pthread_mutex_lock(&g->lock);
    g->is_open = true;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

static hp_status count(void *argument) {
    atomic_fetch_add((_Atomic int *)argument, 1);
    return HP_OK;
}

static hp_status fail_with_record(void *argument) {
    (void)argument;
    return HPI_FAIL_RANK(HP_ERR_LIMIT, 7, "expected luck, given none");
}

static hp_status fail_silently(void *argument) {
    (void)argument;
    return HP_ERR_FORMAT;
}

/* ---- order ---- */

typedef struct step {
    uint64_t *next; /* touched by the stream's thread alone */
    uint64_t number;
    unsigned char filling[3000]; /* of any length: what is pushed is copied */
} step;

static hp_status run_step(void *arguments) {
    step *s = arguments;
    for (size_t i = 0; i < s->number % sizeof s->filling; i++)
        if (s->filling[i] != (unsigned char)s->number)
            return HP_ERR_FORMAT;
    return (*s->next)++ == s->number ? HP_OK : HP_ERR_STATE;
}

static void test_in_order_and_copied(void **state) {
    hp_stream *stream = stream_new("order");
    uint64_t next = 0;
    (void)state;
    for (uint64_t i = 0; i < 20000; i++) {
        step s = {&next, i, {0}};
        const size_t filled = i % sizeof s.filling;
        memset(s.filling, (int)(i & 255), filled);
        assert_int_equal(hpi_stream_push(stream, run_step, &s, offsetof(step, filling) + filled),
                         HP_OK);
        memset(&s, 0xee, sizeof s);
        if (i % 4096 == 4095)
            assert_int_equal(hp_stream_synchronize(stream), HP_OK);
    }
    assert_int_equal(hp_stream_synchronize(stream), HP_OK);
    assert_int_equal(next, 20000);
    hp_stream_destroy(stream);
}

static void test_steady_state_allocates_nothing(void **state) {
    hp_stream *a = stream_new("a"), *b = stream_new("b");
    gate first = GATE_INIT;
    _Atomic int n = 0;
    hp_mark mark;
    (void)state;
    assert_int_equal(hp_stream_call(a, gate_pass, &first), HP_OK);
    for (int i = 0; i < 64; i++)
        assert_int_equal(hp_stream_call(a, count, &n), HP_OK);
    gate_open(&first);
    assert_int_equal(hp_stream_synchronize(a), HP_OK);
    assert_int_equal(hp_stream_record(a, &mark), HP_OK);
    assert_int_equal(hp_stream_wait(b, mark), HP_OK);
    assert_int_equal(hp_stream_synchronize(b), HP_OK);
    const uint64_t before = hpi_alloc_count();
    for (int i = 0; i < 100; i++) {
        for (int k = 0; k < 32; k++)
            assert_int_equal(hp_stream_call(a, count, &n), HP_OK);
        assert_int_equal(hp_stream_record(a, &mark), HP_OK);
        assert_int_equal(hp_stream_wait(b, mark), HP_OK);
        assert_int_equal(hp_stream_synchronize(b), HP_OK);
    }
    assert_int_equal(hpi_alloc_count(), before);
    assert_int_equal(n, 64 + 3200);
    hp_stream_destroy(a);
    hp_stream_destroy(b);
}

typedef struct producer {
    hp_stream *stream;
    uint64_t next; /* of this producer's calls, checked in the stream's thread */
    pthread_t thread;
    int n_refused;
} producer;

static hp_status run_numbered(void *arguments) {
    const step *s = arguments;
    return (*s->next)++ == s->number ? HP_OK : HP_ERR_STATE;
}

static void *produce_numbered(void *argument) {
    producer *p = argument;
    for (uint64_t i = 0; i < 2000; i++) {
        const step s = {.next = &p->next, .number = i};
        p->n_refused +=
            hpi_stream_push(p->stream, run_numbered, &s, offsetof(step, filling)) != HP_OK;
    }
    return NULL;
}

static void test_many_threads_put_calls(void **state) {
    hp_stream *stream = stream_new("shared");
    producer producers[4];
    (void)state;
    for (int i = 0; i < 4; i++) {
        producers[i] = (producer){.stream = stream};
        assert_int_equal(
            pthread_create(&producers[i].thread, NULL, produce_numbered, &producers[i]), 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(producers[i].thread, NULL);
    assert_int_equal(hp_stream_synchronize(stream), HP_OK);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(producers[i].next, 2000);
        assert_int_equal(producers[i].n_refused, 0);
    }
    hp_stream_destroy(stream);
}

/* ---- marks ---- */

static void test_marks(void **state) {
    hp_stream *stream = stream_new(NULL);
    gate one = GATE_INIT, two = GATE_INIT;
    hp_mark empty, first, second;
    (void)state;
    assert_int_equal(hp_stream_record(stream, &empty), HP_OK);
    assert_int_equal(hp_mark_query(empty), HP_OK);
    assert_int_equal(hp_mark_synchronize(empty), HP_OK);
    assert_int_equal(hp_stream_call(stream, gate_pass, &one), HP_OK);
    assert_int_equal(hp_stream_record(stream, &first), HP_OK);
    assert_int_equal(hp_stream_call(stream, gate_pass, &two), HP_OK);
    assert_int_equal(hp_stream_record(stream, &second), HP_OK);
    assert_int_equal(hp_mark_query(first), HP_IN_PROGRESS);
    gate_open(&one);
    assert_int_equal(hp_mark_synchronize(first), HP_OK);
    assert_int_equal(hp_mark_query(second), HP_IN_PROGRESS);
    /* a wait for a mark of its own, reached or not, holds nothing up */
    assert_int_equal(hp_stream_wait(stream, first), HP_OK);
    assert_int_equal(hp_stream_wait(stream, second), HP_OK);
    gate_open(&two);
    assert_int_equal(hp_stream_synchronize(stream), HP_OK);
    assert_int_equal(hp_mark_query(second), HP_OK);
    hp_stream_destroy(stream);
}

static void test_wait_between_streams(void **state) {
    hp_stream *a = stream_new("a"), *b = stream_new("b");
    gate g = GATE_INIT;
    _Atomic int n = 0;
    hp_mark mark, behind;
    (void)state;
    assert_int_equal(hp_stream_call(a, gate_pass, &g), HP_OK);
    assert_int_equal(hp_stream_call(a, count, &n), HP_OK);
    assert_int_equal(hp_stream_record(a, &mark), HP_OK);
    assert_int_equal(hp_stream_wait(b, mark), HP_OK); /* does not wait here */
    assert_int_equal(hp_stream_call(b, count, &n), HP_OK);
    assert_int_equal(hp_stream_record(b, &behind), HP_OK);
    assert_int_equal(hp_mark_query(behind), HP_IN_PROGRESS);
    assert_int_equal(n, 0);
    gate_open(&g);
    assert_int_equal(hp_mark_synchronize(behind), HP_OK);
    assert_int_equal(n, 2);
    hp_stream_destroy(b);
    hp_stream_destroy(a);
}

/* ---- many streams, random marks and waits ---- */

enum { N_RANDOM_STREAMS = 4, N_RANDOM_CALLS = 4000 };

/* A call that must come after certain others, and says that it has come. */
typedef struct random_call {
    atomic_bool *is_done; /* [N_RANDOM_CALLS] */
    int number, after[2]; /* -1: nobody */
} random_call;

static hp_status run_random(void *arguments) {
    const random_call *c = arguments;
    for (int i = 0; i < 2; i++)
        if (c->after[i] >= 0 && !atomic_load(&c->is_done[c->after[i]]))
            return HPI_FAIL(HP_ERR_STATE, "call %d came before %d", c->number, c->after[i]);
    atomic_store(&c->is_done[c->number], true);
    return HP_OK;
}

static void test_random_waits_end(void **state) {
    static atomic_bool is_done[N_RANDOM_CALLS];
    hp_stream *streams[N_RANDOM_STREAMS];
    hp_mark marks[N_RANDOM_CALLS];
    int last[N_RANDOM_STREAMS];
    uint64_t seed = 3;
    (void)state;
    for (int i = 0; i < N_RANDOM_STREAMS; i++) {
        streams[i] = stream_new("random");
        last[i] = -1;
    }
    for (int i = 0; i < N_RANDOM_CALLS; i++) {
        const int s = (int)(hpi_random_next(&seed) % N_RANDOM_STREAMS);
        random_call c = {is_done, i, {last[s], -1}};
        if (i > 0 && hpi_random_next(&seed) % 2) {
            const int recent = (int)(hpi_random_next(&seed) % (uint64_t)(i < 50 ? i : 50));
            c.after[1] = i - 1 - recent;
            assert_int_equal(hp_stream_wait(streams[s], marks[c.after[1]]), HP_OK);
        }
        assert_int_equal(hpi_stream_push(streams[s], run_random, &c, sizeof c), HP_OK);
        assert_int_equal(hp_stream_record(streams[s], &marks[i]), HP_OK);
        last[s] = i;
    }
    for (int i = 0; i < N_RANDOM_STREAMS; i++)
        assert_int_equal(hp_stream_synchronize(streams[i]), HP_OK);
    for (int i = 0; i < N_RANDOM_CALLS; i++)
        assert_true(is_done[i]);
    for (int i = 0; i < N_RANDOM_STREAMS; i++)
        hp_stream_destroy(streams[i]);
}

/* ---- failure ---- */

static void expect_failure(hp_status status) {
    hp_error error;
    assert_int_equal(status, HP_ERR_LIMIT);
    hp_last_error_get(&error);
    assert_int_equal(error.status, HP_ERR_LIMIT);
    assert_int_equal(error.world_rank, 7);
    assert_string_equal(error.call, "fail_with_record");
    assert_string_equal(error.message, "expected luck, given none");
}

static void forget_error(void) {
    (void)HPI_FAIL(HP_ERR_STATE, "something else");
}

static void test_first_failure_stops_the_stream(void **state) {
    hp_stream *stream = stream_new("fails");
    gate g = GATE_INIT;
    _Atomic int n = 0;
    hp_mark before, behind, mark;
    (void)state;
    assert_int_equal(hp_stream_call(stream, gate_pass, &g), HP_OK);
    assert_int_equal(hp_stream_record(stream, &before), HP_OK);
    assert_int_equal(hp_stream_call(stream, fail_with_record, NULL), HP_OK);
    assert_int_equal(hp_stream_call(stream, count, &n), HP_OK);
    assert_int_equal(hp_stream_call(stream, fail_silently, NULL), HP_OK);
    assert_int_equal(hp_stream_record(stream, &behind), HP_OK);
    gate_open(&g);
    expect_failure(hp_stream_synchronize(stream));
    forget_error();
    expect_failure(hp_stream_synchronize(stream));
    forget_error();
    expect_failure(hp_mark_query(behind));
    forget_error();
    expect_failure(hp_mark_synchronize(behind));
    forget_error();
    expect_failure(hp_stream_call(stream, count, &n));
    forget_error();
    expect_failure(hp_stream_record(stream, &mark));
    forget_error();
    expect_failure(hp_stream_wait(stream, before));
    assert_int_equal(hp_mark_query(before), HP_OK); /* what was done stays done */
    assert_int_equal(n, 0);
    hp_stream_destroy(stream);
}

typedef struct told {
    hp_status status;
    _Atomic int n;
    char message[64];
} told;

static void be_told(void *argument, hp_status status) {
    told *t = argument;
    t->status = status;
    if (status < 0) {
        hp_error error;
        hp_last_error_get(&error);
        snprintf(t->message, sizeof t->message, "%.60s", error.message);
    }
    t->n++;
}

/* One of a notice before a failure, behind it, and when nothing can be put on any more. */
static void test_notices(void **state) {
    hp_stream *stream = stream_new("tells");
    gate g = GATE_INIT;
    told before = {.status = HP_IN_PROGRESS}, behind = before, late = before;
    hp_error error;
    hp_mark mark;
    (void)state;
    assert_int_equal(hp_stream_notify(stream, NULL, &before), HP_ERR_ARGUMENT);
    assert_int_equal(hp_stream_call(stream, gate_pass, &g), HP_OK);
    assert_int_equal(hp_stream_notify(stream, be_told, &before), HP_OK);
    assert_int_equal(hp_stream_record(stream, &mark), HP_OK);
    assert_int_equal(hp_stream_call(stream, fail_with_record, NULL), HP_OK);
    assert_int_equal(hp_stream_notify(stream, be_told, &behind), HP_OK);
    gate_open(&g);
    expect_failure(hp_stream_synchronize(stream));
    hp_last_error_get(&error);
    assert_int_equal(hp_mark_query(mark), HP_OK);
    expect_failure(hp_stream_notify(stream, be_told, &late));
    hp_stream_destroy(stream); /* its thread may have been about to call */
    while (behind.n == 0)
        sched_yield();
    assert_true(before.n == 1 && before.status == HP_OK);
    assert_true(behind.n == 1 && behind.status == error.status);
    assert_int_equal(strncmp(behind.message, error.message, 60), 0);
    assert_int_equal(late.n, 0);
}

static void test_failure_without_a_record(void **state) {
    hp_stream *stream = stream_new("silent");
    (void)state;
    forget_error();
    assert_int_equal(hp_stream_call(stream, fail_silently, NULL), HP_OK);
    assert_int_equal(hp_stream_synchronize(stream), HP_ERR_FORMAT);
    assert_non_null(strstr(hp_last_error(), "call 1 of stream silent"));
    hp_stream_destroy(stream);
}

static void test_failure_travels(void **state) {
    hp_stream *a = stream_new("a"), *b = stream_new("b"), *c = stream_new("c");
    _Atomic int n = 0;
    hp_mark of_a, of_b;
    gate g = GATE_INIT;
    (void)state;
    assert_int_equal(hp_stream_call(a, gate_pass, &g), HP_OK);
    assert_int_equal(hp_stream_call(a, fail_with_record, NULL), HP_OK);
    assert_int_equal(hp_stream_record(a, &of_a), HP_OK);
    assert_int_equal(hp_stream_wait(b, of_a), HP_OK);
    assert_int_equal(hp_stream_call(b, count, &n), HP_OK);
    assert_int_equal(hp_stream_record(b, &of_b), HP_OK);
    gate_open(&g);
    assert_int_equal(hp_stream_wait(c, of_b), HP_OK);
    forget_error();
    expect_failure(hp_stream_synchronize(c));
    forget_error();
    expect_failure(hp_stream_synchronize(b));
    /* a wait that is put on after the failure too */
    hp_stream *d = stream_new("d");
    assert_int_equal(hp_stream_wait(d, of_a), HP_OK);
    forget_error();
    expect_failure(hp_stream_synchronize(d));
    assert_int_equal(n, 0);
    hp_stream_destroy(a);
    hp_stream_destroy(b);
    hp_stream_destroy(c);
    hp_stream_destroy(d);
}

static void test_no_memory(void **state) {
    hp_stream *stream = NULL;
    _Atomic int n = 0;
    (void)state;
    for (uint64_t k = 1; k <= 2; k++) {
        hpi_alloc_fail_after(k);
        assert_int_equal(hp_stream_create(NULL, &stream), HP_ERR_MEMORY);
        assert_null(stream);
    }
    hpi_alloc_fail_after(0);
    assert_int_equal(hp_stream_create(NULL, &stream), HP_OK);
    hpi_alloc_fail_after(1);
    assert_int_equal(hp_stream_call(stream, count, &n), HP_ERR_MEMORY);
    hpi_alloc_fail_after(0);
    assert_int_equal(hp_stream_call(stream, count, &n), HP_OK); /* the stream is well */
    assert_int_equal(hp_stream_synchronize(stream), HP_OK);
    assert_int_equal(hpi_stream_push(stream, count, &n, SIZE_MAX), HP_ERR_MEMORY);
    assert_int_equal(n, 1);
    hp_stream_destroy(stream);
}

/* ---- the end ---- */

static void test_destroy_runs_what_is_there(void **state) {
    hp_stream *stream = stream_new("ends");
    _Atomic int n = 0;
    (void)state;
    for (int i = 0; i < 1000; i++)
        assert_int_equal(hp_stream_call(stream, count, &n), HP_OK);
    hp_stream_destroy(stream);
    assert_int_equal(n, 1000);
    hp_stream_destroy(NULL);
}

/* A stream is destroyed while others still have waits for it queued, one of them never to run. */
static void test_destroy_under_waits(void **state) {
    hp_stream *a = stream_new("a"), *b = stream_new("b"), *c = stream_new("c");
    gate g = GATE_INIT;
    _Atomic int n = 0;
    hp_mark mark;
    (void)state;
    assert_int_equal(hp_stream_call(b, gate_pass, &g), HP_OK);
    assert_int_equal(hp_stream_call(c, fail_silently, NULL), HP_OK);
    assert_int_equal(hp_stream_call(a, count, &n), HP_OK);
    assert_int_equal(hp_stream_record(a, &mark), HP_OK);
    assert_int_equal(hp_stream_wait(b, mark), HP_OK);
    const hp_status status = hp_stream_wait(c, mark);
    assert_true(status == HP_OK || status == HP_ERR_FORMAT);
    hp_stream_destroy(a);
    gate_open(&g);
    assert_int_equal(hp_stream_synchronize(b), HP_OK);
    hp_stream_destroy(b);
    hp_stream_destroy(c);
    assert_int_equal(n, 1);
}

typedef struct inside {
    hp_stream *stream;
    gate is_over;
    hp_status synchronized, marked;
} inside;

static hp_status end_from_inside(void *argument) {
    inside *i = argument;
    hp_mark mark;
    i->synchronized = hp_stream_synchronize(i->stream);
    i->marked = hp_stream_record(i->stream, &mark);
    if (i->marked == HP_OK)
        i->marked = hp_mark_synchronize(mark);
    hp_stream_destroy(i->stream);
    return HP_OK;
}

static hp_status open_gate(void *argument) {
    gate_open(argument);
    return HP_OK;
}

/* A call cannot wait for itself, and says so; a stream destroyed by a call on it runs what is still
 * there, then ends by itself. */
static void test_from_inside(void **state) {
    inside i = {.stream = stream_new("inside"), .is_over = GATE_INIT};
    gate held = GATE_INIT;
    (void)state;
    assert_int_equal(hp_stream_call(i.stream, gate_pass, &held), HP_OK);
    assert_int_equal(hp_stream_call(i.stream, end_from_inside, &i), HP_OK);
    assert_int_equal(hp_stream_call(i.stream, open_gate, &i.is_over), HP_OK);
    gate_open(&held);
    assert_int_equal(gate_pass(&i.is_over), HP_OK);
    assert_int_equal(i.synchronized, HP_ERR_STATE);
    assert_int_equal(i.marked, HP_ERR_STATE);
}

static void *put_until_it_fails(void *argument) {
    hp_stream *stream = argument;
    _Atomic int n = 0;
    while (hp_stream_call(stream, count, &n) == HP_OK && hp_stream_synchronize(stream) == HP_OK) {
    }
    return NULL;
}

/* In the child, where the lock may be held for ever. */
static int look_from_child(hp_stream *stream, hp_mark mark) {
    int n_right = 0;
    n_right += hp_stream_call(stream, fail_silently, NULL) == HP_ERR_FORKED;
    n_right += hp_stream_record(stream, &mark) == HP_ERR_FORKED;
    n_right += hp_stream_wait(stream, mark) == HP_ERR_FORKED;
    n_right += hp_stream_synchronize(stream) == HP_ERR_FORKED;
    n_right += hp_mark_synchronize(mark) == HP_ERR_FORKED;
    n_right += hp_mark_query(mark) == HP_ERR_FORKED;
    hp_stream_destroy(stream); /* must return */
    return 6 - n_right;
}

static void test_after_fork(void **state) {
    hp_stream *stream = stream_new("parent");
    pthread_t putter;
    hp_mark mark;
    (void)state;
    assert_int_equal(hp_stream_record(stream, &mark), HP_OK);
    assert_int_equal(pthread_create(&putter, NULL, put_until_it_fails, stream), 0);
    for (int i = 0; i < 20; i++) {
        int how = -1;
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            alarm(10);
            _exit(look_from_child(stream, mark));
        }
        assert_int_equal(waitpid(child, &how, 0), child);
        assert_int_equal(how, 0);
    }
    assert_int_equal(hp_stream_call(stream, fail_silently, NULL),
                     HP_OK); /* ends the other thread */
    assert_int_equal(pthread_join(putter, NULL), 0);
    hp_stream_destroy(stream);
}

/* ---- what the thread is ---- */

typedef struct look {
    char name[16];
    sigset_t blocked;
} look;

static hp_status look_at_thread(void *argument) {
    look *l = argument;
    pthread_getname_np(pthread_self(), l->name, sizeof l->name);
    pthread_sigmask(SIG_SETMASK, NULL, &l->blocked);
    return HP_OK;
}

static void test_name_and_signals(void **state) {
    char name[32] = "gradients-of-a-long-name";
    look l = {{0}, {{0}}};
    (void)state;
    hp_stream *stream = stream_new(name);
    memset(name, 'x', 10); /* copied */
    assert_int_equal(hp_stream_call(stream, look_at_thread, &l), HP_OK);
    assert_int_equal(hp_stream_synchronize(stream), HP_OK);
    assert_string_equal(l.name, "gradients-of-a-");
    assert_int_equal(sigismember(&l.blocked, SIGTERM), 1);
    assert_int_equal(sigismember(&l.blocked, SIGUSR1), 1);
    assert_int_equal(sigismember(&l.blocked, SIGSEGV), 0); /* its own */
    hp_stream_destroy(stream);
}

/* ---- what is refused ---- */

static void test_arguments(void **state) {
    hp_stream_config config = HP_STREAM_CONFIG_INIT;
    hp_stream *stream = stream_new(NULL), *none = NULL;
    hp_mark mark = {NULL, 0};
    (void)state;
    assert_int_equal(hp_stream_create(NULL, NULL), HP_ERR_ARGUMENT);
    config.size = 8;
    assert_int_equal(hp_stream_create(&config, &none), HP_ERR_VERSION);
    assert_int_equal(hp_stream_call(NULL, count, NULL), HP_ERR_ARGUMENT);
    assert_int_equal(hp_stream_call(stream, NULL, NULL), HP_ERR_ARGUMENT);
    assert_int_equal(hp_stream_record(NULL, &mark), HP_ERR_ARGUMENT);
    assert_int_equal(hp_stream_record(stream, NULL), HP_ERR_ARGUMENT);
    assert_int_equal(hp_stream_wait(NULL, mark), HP_ERR_ARGUMENT);
    assert_int_equal(hp_stream_wait(stream, mark), HP_ERR_ARGUMENT);
    assert_int_equal(hp_stream_synchronize(NULL), HP_ERR_ARGUMENT);
    assert_int_equal(hp_mark_query(mark), HP_ERR_ARGUMENT);
    assert_int_equal(hp_mark_synchronize(mark), HP_ERR_ARGUMENT);
    /* a mark that nobody recorded would be waited for in vain */
    mark = (hp_mark){stream, 1};
    assert_int_equal(hp_mark_synchronize(mark), HP_ERR_ARGUMENT);
    assert_int_equal(hp_stream_wait(stream, mark), HP_ERR_ARGUMENT);
    assert_non_null(strstr(hp_last_error(), "0 calls"));
    assert_int_equal(hp_stream_synchronize(stream), HP_OK);
    hp_stream_destroy(stream);
}

static void test_trace(void **state) {
    hp_stream_config config = HP_STREAM_CONFIG_INIT;
    hp_stream *traced = NULL, *other = stream_new("other");
    gate g = GATE_INIT;
    hp_mark mark;
    (void)state;
    assert_int_equal(hp_trace_create(0, 64, &config.trace), HP_OK);
    config.name = "traced";
    config.trace_stream = HP_TRACE_STREAMS;
    assert_int_equal(hp_stream_create(&config, &traced), HP_ERR_ARGUMENT);
    config.trace_stream = 3;
    assert_int_equal(hp_stream_create(&config, &traced), HP_OK);
    assert_int_equal(hp_stream_call(other, gate_pass, &g), HP_OK);
    assert_int_equal(hp_stream_record(other, &mark), HP_OK);
    assert_int_equal(hp_stream_wait(traced, mark), HP_OK);
    gate_open(&g);
    assert_int_equal(hp_stream_synchronize(traced), HP_OK);
    assert_int_equal(hp_stream_call(traced, gate_pass, &g), HP_OK);
    assert_int_equal(hp_stream_synchronize(traced), HP_OK);
    assert_int_equal(hp_trace_count(config.trace, 3), 2);
    assert_string_equal(hp_trace_at(config.trace, 3, 0)->name, "wait");
    assert_string_equal(hp_trace_at(config.trace, 3, 1)->name, "call");
    hp_stream_destroy(traced);
    hp_stream_destroy(other);
    hp_trace_destroy(config.trace);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_in_order_and_copied),
        cmocka_unit_test(test_steady_state_allocates_nothing),
        cmocka_unit_test(test_many_threads_put_calls),
        cmocka_unit_test(test_marks),
        cmocka_unit_test(test_wait_between_streams),
        cmocka_unit_test(test_random_waits_end),
        cmocka_unit_test(test_first_failure_stops_the_stream),
        cmocka_unit_test(test_notices),
        cmocka_unit_test(test_failure_without_a_record),
        cmocka_unit_test(test_failure_travels),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_destroy_runs_what_is_there),
        cmocka_unit_test(test_destroy_under_waits),
        cmocka_unit_test(test_from_inside),
        cmocka_unit_test(test_after_fork),
        cmocka_unit_test(test_name_and_signals),
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_trace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

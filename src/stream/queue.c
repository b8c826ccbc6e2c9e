/* SPDX-License-Identifier: Apache-2.0
 *
 * queue.c - hp_stream: an ordered queue of calls and the thread that runs them.
 *
 * One lock guards the queue; calls run outside it. Two numbers only rise: how many calls were put
 * on the stream, and how many of them are done; a mark is a value of the first, reached when the
 * second is there. A wait for a mark is a node of the queue itself, so it costs the caller nothing.
 * Marks name calls that were put on before the mark was taken, hence every dependence points back
 * in time and streams that wait for each other cannot form a cycle.
 *
 * Nodes are kept by the size of what they hold and used again: in steady state nothing is
 * allocated. A stream lives until its owner, its thread, and whoever waits for its marks have all
 * let go, so that a stream may be destroyed while another one still has a wait for it queued.
 */
#include "../base/base.h"
#include "../trace/trace.h"
#include "stream.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/mman.h>

enum { FORK_PAGE_BYTES = 4096 };
enum { LEAST_CLASS = 8, N_CLASSES = 64 }; /* a node of class k takes 2^k bytes, at least 256 */

typedef struct node {
    struct node *next;
    hp_status (*run)(void *arguments); /* NULL: wait for `mark`, whose stream is held */
    hp_mark mark;
    unsigned size_class;
    _Alignas(max_align_t) unsigned char arguments[];
} node;

struct hp_stream {
    pthread_mutex_t lock; /* of everything down to `free` */
    pthread_cond_t filled, advanced;
    node *first, *last;
    uint64_t n_put, n_done;
    unsigned n_waiting;    /* threads that sleep on `advanced` */
    unsigned n_references; /* owner, thread, and whoever waits for a mark */
    bool is_ending, has_failed;
    hp_error error; /* the first failure */
    node *free[N_CLASSES];

    hp_stream_config config;
    pthread_t thread;
    volatile char *fork_page; /* reads 0 in a child process, where there is no thread, and where the
                                 lock may be held by one that is not there */
};

/* ---- nodes ------------------------------------------------------------------------------------
 */

static unsigned class_of(size_t bytes) {
    unsigned k = LEAST_CLASS;
    while (k < N_CLASSES - 1 && (size_t)1 << k < bytes)
        k++;
    return k;
}

/* Locked. */
static node *node_take(hp_stream *s, size_t argument_bytes) {
    if (argument_bytes > PTRDIFF_MAX / 2) {
        (void)HPI_FAIL(HP_ERR_MEMORY, "expected room for %zu bytes of arguments, there is none",
                       argument_bytes);
        return NULL;
    }
    const unsigned k = class_of(sizeof(node) + argument_bytes);
    node *n = s->free[k];
    if (n)
        s->free[k] = n->next;
    else if (!(n = hpi_alloc(1, (size_t)1 << k)))
        return NULL;
    n->next = NULL;
    n->size_class = k;
    return n;
}

/* Locked. */
static void node_give(hp_stream *s, node *n) {
    n->next = s->free[n->size_class];
    s->free[n->size_class] = n;
}

static void list_free(node *n) {
    while (n) {
        node *next = n->next;
        hpi_free(n);
        n = next;
    }
}

/* ---- life -------------------------------------------------------------------------------------
 */

static void stream_free(hp_stream *s) {
    for (int k = 0; k < N_CLASSES; k++)
        list_free(s->free[k]);
    pthread_cond_destroy(&s->advanced);
    pthread_cond_destroy(&s->filled);
    pthread_mutex_destroy(&s->lock);
    if (s->fork_page)
        munmap((void *)(uintptr_t)s->fork_page, FORK_PAGE_BYTES);
    hpi_free((void *)(uintptr_t)s->config.name);
    hpi_free(s);
}

static hp_status make_fork_page(hp_stream *s) {
    void *page =
        mmap(NULL, FORK_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return HPI_FAIL(HP_ERR_SYSTEM, "expected a page for stream %s, mmap gave: %s",
                        s->config.name, strerror(errno));
    s->fork_page = page;
    s->fork_page[0] = 1;
    if (madvise(page, FORK_PAGE_BYTES, MADV_WIPEONFORK))
        return HPI_FAIL(HP_ERR_SYSTEM, "expected a page that forks wipe, madvise gave: %s",
                        strerror(errno));
    return HP_OK;
}

static bool is_forked(const hp_stream *s) {
    return !s->fork_page[0];
}

static void hold(hp_stream *s) {
    pthread_mutex_lock(&s->lock);
    s->n_references++;
    pthread_mutex_unlock(&s->lock);
}

static void let_go(hp_stream *s) {
    pthread_mutex_lock(&s->lock);
    const bool is_last = --s->n_references == 0;
    pthread_mutex_unlock(&s->lock);
    if (is_last)
        stream_free(s);
}

/* ---- waiting ----------------------------------------------------------------------------------
 */

static bool is_own_thread(const hp_stream *s) {
    return pthread_equal(pthread_self(), s->thread);
}

/* Locked. What is said of the first `number` calls: done ones stay done, whatever came later. */
static hp_status outcome(const hp_stream *s, uint64_t number) {
    if (s->n_done >= number)
        return HP_OK;
    return s->has_failed ? hpi_error_set(&s->error) : HP_IN_PROGRESS;
}

/* Sleep until the first `number` calls are done, or never will be. */
static hp_status await(hp_stream *s, uint64_t number) {
    pthread_mutex_lock(&s->lock);
    s->n_references++;
    s->n_waiting++;
    hp_status status;
    while ((status = outcome(s, number)) == HP_IN_PROGRESS)
        pthread_cond_wait(&s->advanced, &s->lock);
    s->n_waiting--;
    pthread_mutex_unlock(&s->lock);
    let_go(s);
    return status;
}

static hp_status check_stream(const hp_stream *s, const char *call) {
    if (!s)
        return HPI_FAIL(HP_ERR_ARGUMENT, "%s: expected a stream, given NULL", call);
    if (is_forked(s))
        return HPI_FAIL(HP_ERR_FORKED,
                        "%s: expected the process that created stream %s, this is a child made by "
                        "fork",
                        call, s->config.name);
    return HP_OK;
}

/* Who may wait here: not a call on the stream, for what comes behind itself. */
static hp_status check_waiter(const hp_stream *s, const char *call) {
    if (is_own_thread(s))
        return HPI_FAIL(HP_ERR_STATE,
                        "%s: expected a thread other than the one of stream %s, a call on it would "
                        "wait for itself",
                        call, s->config.name);
    return HP_OK;
}

/* ---- the thread -------------------------------------------------------------------------------
 */

/* Locked. Keep the calling thread's record as the stream's failure, and tell who waits. What is
 * still queued will never run. */
static void fail(hp_stream *s, hp_status status) {
    hp_last_error_get(&s->error);
    if (s->error.status != status) {
        (void)HPI_FAIL(status, "expected call %llu of stream %s to say why it failed, it did not",
                       (unsigned long long)s->n_done + 1, s->config.name);
        hp_last_error_get(&s->error);
    }
    s->has_failed = true;
    pthread_cond_broadcast(&s->advanced);
}

/* In the stream's thread: what it did from begin_ns until now. */
static void add_span(const hp_stream *s, const char *name, uint64_t begin_ns) {
    const hp_span span = {
        .name = name, .begin_ns = begin_ns, .end_ns = hpi_now_ns(), .id = UINT32_MAX};
    hp_trace_span(s->config.trace, s->config.trace_stream, &span);
}

/* As a call of the stream: whoever waits for a stream that failed has failed like it. */
static hp_status run_wait(const hp_stream *s, hp_mark mark) {
    const uint64_t begin_ns = hpi_now_ns();
    const hp_status status = await(mark.stream, mark.number);
    add_span(s, hpi_span_wait, begin_ns);
    return status;
}

/* Locked, but not while the call runs. */
static void run(hp_stream *s, node *n) {
    pthread_mutex_unlock(&s->lock);
    const hp_status status = n->run ? n->run(n->arguments) : run_wait(s, n->mark);
    pthread_mutex_lock(&s->lock);
    if (status < 0)
        fail(s, status);
    if (s->has_failed)
        return;
    s->n_done++;
    if (s->n_waiting)
        pthread_cond_broadcast(&s->advanced);
}

typedef struct notice {
    const hp_stream
        *stream; /* it fails in its own thread alone: there it is read without the lock */
    void (*function)(void *argument, hp_status status);
    void *argument;
} notice;

/* The one call that is also run when the stream has failed. */
static hp_status run_notice(void *arguments) {
    const notice *n = arguments;
    n->function(n->argument, n->stream->has_failed ? hpi_error_set(&n->stream->error) : HP_OK);
    return HP_OK;
}

/* Locked. Take the first call off the queue; NULL: the stream ends. */
static node *next_call(hp_stream *s) {
    while (!s->first && !s->is_ending)
        pthread_cond_wait(&s->filled, &s->lock);
    node *n = s->first;
    if (n && !(s->first = n->next))
        s->last = NULL;
    return n;
}

/* Locked. After a failure calls are not run any more, only put away. */
static void dispose(hp_stream *s, node *n) {
    hp_stream *held = n->run ? NULL : n->mark.stream;
    node_give(s, n);
    if (!held)
        return;
    pthread_mutex_unlock(&s->lock);
    let_go(held);
    pthread_mutex_lock(&s->lock);
}

static void *thread_main(void *argument) {
    hp_stream *s = argument;
    node *n;
    hp_status traced = HP_OK;
    if (s->config.trace)
        traced = hp_trace_thread(s->config.trace, s->config.trace_stream);
    pthread_mutex_lock(&s->lock);
    if (traced < 0)
        fail(s, traced);
    while ((n = next_call(s))) {
        if (!s->has_failed || n->run == run_notice)
            run(s, n);
        dispose(s, n);
    }
    pthread_mutex_unlock(&s->lock);
    if (s->config.trace)
        (void)!hp_trace_thread(NULL, 0); /* leaving cannot fail */
    let_go(s);
    return NULL;
}

/* ---- putting calls on it ----------------------------------------------------------------------
 */

/* Locked. */
static void append(hp_stream *s, node *n) {
    if (s->last)
        s->last->next = n;
    else
        s->first = n;
    s->last = n;
    s->n_put++;
    pthread_cond_signal(&s->filled);
}

/* Locked. */
static hp_status push(hp_stream *s, hp_status (*call)(void *), hp_mark mark, const void *arguments,
                      size_t bytes) {
    if (s->has_failed)
        return hpi_error_set(&s->error);
    node *n = node_take(s, bytes);
    if (!n)
        return HP_ERR_MEMORY;
    n->run = call;
    n->mark = mark;
    if (bytes)
        memcpy(n->arguments, arguments, bytes);
    append(s, n);
    return HP_OK;
}

hp_status hpi_stream_push(hp_stream *stream, hp_status (*call)(void *arguments),
                          const void *arguments, size_t bytes) {
    HP_TRY(check_stream(stream, "hpi_stream_push"));
    pthread_mutex_lock(&stream->lock);
    const hp_status status = push(stream, call, (hp_mark){0}, arguments, bytes);
    pthread_mutex_unlock(&stream->lock);
    return status;
}

typedef struct user_call {
    const hp_stream *stream;
    hp_status (*function)(void *argument);
    void *argument;
} user_call;

static hp_status run_user_call(void *arguments) {
    const user_call *c = arguments;
    const uint64_t begin_ns = hpi_now_ns();
    const hp_status status = c->function(c->argument);
    add_span(c->stream, hpi_span_call, begin_ns);
    return status;
}

hp_status hp_stream_call(hp_stream *stream, hp_status (*function)(void *argument), void *argument) {
    const user_call c = {stream, function, argument};
    HP_TRY(check_stream(stream, __func__));
    if (!function)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a function, given NULL");
    return hpi_stream_push(stream, run_user_call, &c, sizeof c);
}

hp_status hp_stream_notify(hp_stream *stream, void (*function)(void *argument, hp_status status),
                           void *argument) {
    const notice n = {stream, function, argument};
    HP_TRY(check_stream(stream, __func__));
    if (!function)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a function, given NULL");
    return hpi_stream_push(stream, run_notice, &n, sizeof n);
}

/* ---- marks ------------------------------------------------------------------------------------
 */

hp_status hp_stream_record(hp_stream *stream, hp_mark *out_mark) {
    HP_TRY(check_stream(stream, __func__));
    if (!out_mark)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a place for the mark, given NULL");
    pthread_mutex_lock(&stream->lock);
    const hp_status status = stream->has_failed ? hpi_error_set(&stream->error) : HP_OK;
    if (status == HP_OK)
        *out_mark = (hp_mark){stream, stream->n_put};
    pthread_mutex_unlock(&stream->lock);
    return status;
}

static hp_status check_mark(hp_mark mark, const char *call) {
    HP_TRY(check_stream(mark.stream, call));
    pthread_mutex_lock(&mark.stream->lock);
    const uint64_t n_put = mark.stream->n_put;
    pthread_mutex_unlock(&mark.stream->lock);
    if (mark.number > n_put)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "%s: expected a mark of the %llu calls put on stream %s, given %llu", call,
                        (unsigned long long)n_put, mark.stream->config.name,
                        (unsigned long long)mark.number);
    return HP_OK;
}

static hp_status look(hp_stream *s, uint64_t number) {
    pthread_mutex_lock(&s->lock);
    const hp_status status = outcome(s, number);
    pthread_mutex_unlock(&s->lock);
    return status;
}

hp_status hp_mark_query(hp_mark mark) {
    HP_TRY(check_mark(mark, __func__));
    return look(mark.stream, mark.number);
}

hp_status hp_mark_synchronize(hp_mark mark) {
    HP_TRY(check_mark(mark, __func__));
    const hp_status status = look(mark.stream, mark.number);
    if (status != HP_IN_PROGRESS)
        return status;
    HP_TRY(check_waiter(mark.stream, __func__));
    return await(mark.stream, mark.number);
}

hp_status hp_stream_wait(hp_stream *stream, hp_mark mark) {
    HP_TRY(check_stream(stream, __func__));
    HP_TRY(check_mark(mark, __func__));
    if (mark.stream == stream) /* comes later anyway */
        mark.number = 0;
    hold(mark.stream); /* until the wait has run, see dispose */
    pthread_mutex_lock(&stream->lock);
    const hp_status status = push(stream, NULL, mark, NULL, 0);
    pthread_mutex_unlock(&stream->lock);
    if (status < 0)
        let_go(mark.stream);
    return status;
}

hp_status hp_stream_synchronize(hp_stream *stream) {
    HP_TRY(check_stream(stream, __func__));
    HP_TRY(check_waiter(stream, __func__));
    pthread_mutex_lock(&stream->lock);
    const uint64_t number = stream->n_put;
    const hp_status status = stream->has_failed ? hpi_error_set(&stream->error) : HP_OK;
    pthread_mutex_unlock(&stream->lock);
    return status < 0 ? status : await(stream, number);
}

/* ---- creation and destruction -----------------------------------------------------------------
 */

static hp_status read_config(const hp_stream_config *given, hp_stream_config *out_config) {
    const hp_stream_config defaults = HP_STREAM_CONFIG_INIT;
    if (given && given->size != sizeof defaults)
        return HPI_FAIL(HP_ERR_VERSION, "expected hp_stream_config.size to be %zu, given %zu",
                        sizeof defaults, given->size);
    *out_config = given ? *given : defaults;
    if (!out_config->name)
        out_config->name = "stream";
    if (out_config->trace && out_config->trace_stream >= HP_TRACE_STREAMS)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a trace_stream from 0 to %d, given %u",
                        HP_TRACE_STREAMS - 1, out_config->trace_stream);
    if (out_config->trace)
        return hp_trace_name_stream(out_config->trace, out_config->trace_stream, out_config->name);
    return HP_OK;
}

static hp_status start_thread(hp_stream *s) {
    sigset_t before;
    hpi_signals_block(&before);
    s->n_references = 2;          /* owner and thread */
    pthread_mutex_lock(&s->lock); /* the thread comes past this when `thread` is written */
    const int error = pthread_create(&s->thread, NULL, thread_main, s);
    pthread_mutex_unlock(&s->lock);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error)
        return HPI_FAIL(HP_ERR_SYSTEM, "expected a thread for stream %s, pthread_create gave: %s",
                        s->config.name, strerror(error));
    char name[16]; /* what the kernel keeps */
    snprintf(name, sizeof name, "%s", s->config.name);
    pthread_setname_np(s->thread, name);
    return HP_OK;
}

hp_status hp_stream_create(const hp_stream_config *config, hp_stream **out_stream) {
    hp_stream_config own;
    if (!out_stream)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a place for the stream, given NULL");
    HP_TRY(read_config(config, &own));
    hp_stream *s = hpi_alloc(1, sizeof *s);
    char *name = s ? hpi_strdup(own.name) : NULL;
    if (!name) {
        hpi_free(s);
        return HP_ERR_MEMORY;
    }
    s->config = own;
    s->config.name = name;
    /* with default attributes these three do not fail on Linux */
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->filled, NULL);
    pthread_cond_init(&s->advanced, NULL);
    hp_status status = make_fork_page(s);
    if (status == HP_OK)
        status = start_thread(s);
    if (status < 0)
        stream_free(s);
    else
        *out_stream = s;
    return status;
}

void hp_stream_destroy(hp_stream *stream) {
    if (!stream || is_forked(stream)) /* it is the parent's */
        return;
    const pthread_t thread = stream->thread;
    const bool is_own = is_own_thread(stream);
    pthread_mutex_lock(&stream->lock);
    stream->is_ending = true;
    pthread_cond_signal(&stream->filled);
    pthread_mutex_unlock(&stream->lock);
    if (is_own) /* cannot wait for itself: it runs what is there, then ends by itself */
        pthread_detach(thread);
    else
        pthread_join(thread, NULL);
    let_go(stream);
}

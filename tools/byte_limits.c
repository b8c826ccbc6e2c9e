/* SPDX-License-Identifier: Apache-2.0
 *
 * byte_limits.c - what the bytes of two ranks with a core each allow at best on this machine.
 *
 * Two threads on two cores: how long a cache line takes to the other one, how long it takes to read
 * what the other has just written, how fast both copy at once, and what the loads and stores of
 * each collective take where nothing is left in a cache. No protocol, no wait in what is timed.
 * Prints one JSON object; `make bench` takes it for the limits of docs/performance.md.
 *
 * usage: byte_limits
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define MOST (UINT64_C(64) << 20)
enum { MOST_ROUNDS = 200, N_BUFFERS = 4 };

typedef struct job job;
typedef void body(job *j, int thread);
struct job {
    body *run;
    uint64_t bytes, value;
    int n_rounds;
    double us[2][MOST_ROUNDS];
    unsigned char *buffers[2][N_BUFFERS]; /* of each thread */
    void *memory[2 * N_BUFFERS];          /* that they lie in */
    _Alignas(128) _Atomic uint64_t turn;
    _Alignas(128) _Atomic uint64_t met[2];
    volatile uint64_t sink[2];
};

static int cores[2];

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* Whoever waits leaves the core to the other, where two share one. */
static void pause_a_bit(void) {
#ifdef __SSE2__
    _mm_pause();
#endif
}

/* Both come here before either goes on: the release of each is the acquire of the other. */
static void meet(job *j, int thread, uint64_t round) {
    atomic_store_explicit(&j->met[thread], round, memory_order_release);
    while (atomic_load_explicit(&j->met[!thread], memory_order_acquire) < round)
        pause_a_bit();
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, compare);
    return x[n / 2];
}

/* ---- kernels ----------------------------------------------------------------------------------
 */

static uint64_t read_all(const unsigned char *bytes, uint64_t n) {
    const uint64_t *words = (const uint64_t *)(const void *)bytes;
    uint64_t sum = 0;
    for (uint64_t i = 0; i < n / 8; i++)
        sum += words[i];
    return sum;
}

static void write_all(unsigned char *bytes, uint64_t n, uint64_t value) {
    uint64_t *words = (uint64_t *)(void *)bytes;
    for (uint64_t i = 0; i < n / 8; i++)
        words[i] = value + i;
}

#ifdef __SSE2__
typedef __m128 four;
static four load_4(const float *at) {
    return _mm_load_ps(at);
}
static void store_4(float *at, four x, bool is_streaming) {
    if (is_streaming)
        _mm_stream_ps(at, x);
    else
        _mm_store_ps(at, x);
}
#else
typedef float four __attribute__((vector_size(16)));
static four load_4(const float *at) {
    return *(const four *)(const void *)at;
}
static void store_4(float *at, four x, bool is_streaming) {
    (void)is_streaming;
    *(four *)(void *)at = x;
}
#endif

/* out0 (and out1) = x (+ y), of n bytes. */
static void combine(unsigned char *const *out, int n_out, const unsigned char *x,
                    const unsigned char *y, uint64_t n, bool is_streaming) {
    for (uint64_t at = 0; at < n; at += 16) {
        four sum = load_4((const float *)(const void *)(x + at));
        if (y)
            sum += load_4((const float *)(const void *)(y + at));
        for (int i = 0; i < n_out; i++)
            store_4((float *)(void *)(out[i] + at), sum, is_streaming);
    }
}

/* ---- what is timed ----------------------------------------------------------------------------
 */

/* A number goes there and back; half of it counts. */
static void bounce(job *j, int thread) {
    enum { TIMES = 200 };
    for (int r = 0; r < j->n_rounds; r++) {
        meet(j, thread, (uint64_t)r + 1);
        const uint64_t base = (uint64_t)r * 2 * TIMES;
        const double begin = now_us();
        for (uint64_t i = 0; i < TIMES; i++) {
            const uint64_t mine = base + 2 * i + (uint64_t)thread;
            while (atomic_load_explicit(&j->turn, memory_order_acquire) != mine)
                pause_a_bit();
            atomic_store_explicit(&j->turn, mine + 1, memory_order_release);
        }
        while (atomic_load_explicit(&j->turn, memory_order_acquire) < base + 2 * TIMES)
            pause_a_bit();
        j->us[thread][r] = (now_us() - begin) / (2 * TIMES);
    }
}

/* Thread 0 writes, thread 1 reads what has just been written. */
static void cross(job *j, int thread) {
    for (int r = 0; r < j->n_rounds; r++) {
        if (thread == 0)
            write_all(j->buffers[0][0], j->bytes, (uint64_t)r);
        meet(j, thread, 2 * (uint64_t)r + 1);
        const double begin = now_us();
        if (thread == 1)
            j->sink[1] += read_all(j->buffers[0][0], j->bytes);
        j->us[thread][r] = now_us() - begin;
        meet(j, thread, 2 * (uint64_t)r + 2);
    }
}

/* What the clock itself takes, and the end of a loop. */
static void nothing(job *j, int thread) {
    for (int r = 0; r < j->n_rounds; r++) {
        meet(j, thread, (uint64_t)r + 1);
        const double begin = now_us();
        j->us[thread][r] = now_us() - begin;
    }
}

/* value: 0 copy, 1 sum to one output, 2 sum to two, 3 sum in place to both; + 4: past the caches.
 */
static void move(job *j, int thread) {
    unsigned char **b = j->buffers[thread];
    const bool is_streaming = j->value >= 4;
    const int how = (int)j->value % 4;
    unsigned char *const in_place[] = {b[0], b[1]};
    unsigned char *const apart[] = {b[2], b[3]};
    for (int r = 0; r < j->n_rounds; r++) {
        meet(j, thread, (uint64_t)r + 1);
        const double begin = now_us();
        if (how == 0 && !is_streaming)
            memcpy(b[2], b[0], j->bytes);
        else
            combine(how == 3 ? in_place : apart, how < 2 ? 1 : 2, b[0], how ? b[1] : NULL, j->bytes,
                    is_streaming);
        j->us[thread][r] = now_us() - begin;
    }
}

/* ---- running ----------------------------------------------------------------------------------
 */

typedef struct start {
    job *j;
    int thread;
} start;

static void *run_thread(void *argument) {
    const start *s = argument;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cores[s->thread], &set);
    (void)sched_setaffinity(0, sizeof set, &set);
    for (int i = 0; i < N_BUFFERS; i++) /* where its core is */
        memset(s->j->buffers[s->thread][i], 1, s->j->bytes);
    s->j->run(s->j, s->thread);
    return NULL;
}

static void die(const char *what) {
    fprintf(stderr, "byte_limits: %s\n", what);
    exit(1);
}

/* The median of the slower thread; of the reader, where only one is timed. */
static double time_of(job *j, body *run, uint64_t bytes, uint64_t value) {
    pthread_t threads[2];
    start starts[2] = {{j, 0}, {j, 1}};
    j->run = run;
    j->bytes = bytes;
    j->value = value;
    j->n_rounds = bytes > 4 << 20 ? 9 : bytes > 1 << 18 ? 40 : MOST_ROUNDS;
    atomic_store(&j->turn, 0);
    atomic_store(&j->met[0], 0);
    atomic_store(&j->met[1], 0);
    for (int i = 0; i < 2; i++)
        if (pthread_create(&threads[i], NULL, run_thread, &starts[i]))
            die("expected two threads");
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    const double a = median(j->us[0], j->n_rounds), b = median(j->us[1], j->n_rounds);
    return a > b ? a : b;
}

static double faster(double a, double b) {
    return a < b ? a : b;
}

/* Both threads at once, the better of plain and streaming stores. */
static double move_us(job *j, uint64_t bytes, uint64_t how) {
    return faster(time_of(j, move, bytes, how), time_of(j, move, bytes, how + 4));
}

static void find_cores(void) {
    cpu_set_t allowed;
    int n = 0;
    if (sched_getaffinity(0, sizeof allowed, &allowed))
        die("expected to be told the allowed cores");
    for (int core = 0; core < CPU_SETSIZE && n < 2; core++)
        if (CPU_ISSET((size_t)core, &allowed))
            cores[n++] = core;
    if (n < 2)
        die("expected two cores that this process may use, there is one");
}

static job *make_job(void) {
    job *j = aligned_alloc(128, (sizeof *j + 127) / 128 * 128);
    if (!j)
        die("expected memory");
    memset(j, 0, sizeof *j);
    for (int i = 0; i < 2 * N_BUFFERS; i++) {
        /* apart by more than a page, or all would want the same places of a cache */
        const uint64_t apart = (uint64_t)i * 9 * 4096 / 8;
        unsigned char *at = aligned_alloc(2 << 20, MOST + (2 << 20));
        if (!at)
            die("expected memory for buffers of 64 MiB");
        (void)madvise(at, MOST + (2 << 20), MADV_HUGEPAGE);
        j->memory[i] = at;
        j->buffers[i / N_BUFFERS][i % N_BUFFERS] = at + apart;
    }
    return j;
}

static void print_crossing(job *j) {
    const double clock_us = time_of(j, nothing, 64, 0);
    const double line_us = time_of(j, bounce, 64, 0);
    printf("{\"line_us\": %.4f, \"crossing_us\": {", line_us);
    for (uint64_t bytes = 64; bytes <= 16 << 20; bytes *= 4) {
        const double us = time_of(j, cross, bytes, 0) - clock_us;
        printf("%s\"%llu\": %.4f", bytes > 64 ? ", " : "", (unsigned long long)bytes,
               us > line_us ? us : line_us);
    }
    printf("}");
}

/* A rank's share of a collective of `MOST` bytes on two ranks. */
static void print_memory(job *j) {
    const double half_copy = move_us(j, MOST / 2, 0), copy = 2 * half_copy;
    printf(", \"memory_us\": {\"all_reduce\": %.1f, \"all_reduce in place\": %.1f, "
           "\"reduce_scatter\": %.1f, \"all_gather\": %.1f, \"all_gather in place\": %.1f, "
           "\"all_to_all\": %.1f}}\n",
           move_us(j, MOST / 2, 2), move_us(j, MOST / 2, 3), move_us(j, MOST / 2, 1), copy,
           half_copy, copy);
}

int main(void) {
    find_cores();
    job *j = make_job();
    print_crossing(j);
    printf(", \"copy_GBps\": {");
    for (uint64_t bytes = 32 << 10; bytes <= MOST; bytes *= 4)
        printf("%s\"%llu\": %.2f", bytes > 32 << 10 ? ", " : "", (unsigned long long)bytes,
               2e-3 * (double)bytes / move_us(j, bytes, 0));
    printf("}");
    print_memory(j);
    for (int i = 0; i < 2 * N_BUFFERS; i++)
        free(j->memory[i]);
    free(j);
    return fflush(stdout) || ferror(stdout);
}

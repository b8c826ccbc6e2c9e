/* SPDX-License-Identifier: Apache-2.0
 *
 * base/base.h - the door of room `base`: failing, memory, clocks, options, small arithmetic.
 *
 * Nothing here knows of ranks. A function that fails returns through HPI_FAIL, which writes the
 * thread's error record; a caller passes it on with HP_TRY. All memory that the library takes goes
 * through hpi_alloc, so that tests can count it and make the n-th allocation fail.
 */
#ifndef HPI_BASE_H
#define HPI_BASE_H

#include "floats.h"
#include "kernel.h"

#include <hyperparallel/base.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>

/* Pass a failure on; the record was written by whoever noticed it. */
#define HP_TRY(expression)                                                                         \
    do {                                                                                           \
        const hp_status hp_try_status_ = (expression);                                             \
        if (hp_try_status_ < 0)                                                                    \
            return hp_try_status_;                                                                 \
    } while (0)

/* Write the record and yield the status: return HPI_FAIL(HP_ERR_ARGUMENT, "expected ..., given
 * ..."). The status is named again, and not taken from hpi_fail, so that the compiler sees that a
 * failing function does not go on to use its outputs. */
#define HPI_FAIL(status, ...) HPI_FAIL_RANK(status, -1, __VA_ARGS__)
/* The same, naming the rank (in the world) whose doing it was. */
#define HPI_FAIL_RANK(status, world_rank, ...)                                                     \
    ((void)hpi_fail((status), (world_rank), __func__, __FILE__, __LINE__, __VA_ARGS__), (status))

hp_status hpi_fail(hp_status status, int world_rank, const char *call, const char *file, int line,
                   const char *format, ...) __attribute__((cold, format(printf, 6, 7)));
/* Make `error` this thread's record (it came from another thread) and return its status. */
hp_status hpi_error_set(const hp_error *error);
/* Has this thread failed since the last call of this function? For who writes failures down. */
bool hpi_error_take_untold(void);

/* Memory: zeroed, or NULL with the record written. hpi_free takes NULL. Threads: any. */
void *hpi_alloc(size_t count, size_t size);
void *hpi_alloc_aligned(size_t alignment, size_t bytes);
void hpi_free(void *memory);
char *hpi_strdup(const char *text);
/* How many allocations the process has made so far; a step after warm-up makes none. */
uint64_t hpi_alloc_count(void);
/* Make the n-th allocation from now fail (1 is the next); 0 turns it off. For tests. */
void hpi_alloc_fail_after(uint64_t n);

/* The descriptor as one of 3 or above that closes on exec, for who wraps the call that made it;
 * negative, with errno, where that failed or there is no room: then the old one is closed. */
int hpi_fd_above_stdio(int fd);
/* The same around pipe2 and socketpair: 0, or negative with both closed. */
int hpi_fds_above_stdio(int failed, int fds[2]);

/* CLOCK_MONOTONIC, one clock for all processes of a node. */
uint64_t hpi_now_ns(void);
void hpi_sleep_ns(uint64_t ns);
/* Let others run; false: it was too dear lately, and nothing was done. */
bool hpi_yield(void);
/* Between two looks at a word that another core is about to write. */
static inline void hpi_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Signals belong to the caller's threads: around pthread_create, since a new thread inherits the
 * mask. What a thread does wrong itself (SIGSEGV) still reaches the program's handler. Undone by
 * pthread_sigmask(SIG_SETMASK, &before, NULL). */
void hpi_signals_block(sigset_t *out_before);

/* Arithmetic that cannot surprise. */
static inline uint64_t hpi_ceil_div(uint64_t a, uint64_t b) {
    return a / b + (a % b != 0);
}
static inline uint64_t hpi_align_up(uint64_t a, uint64_t to) {
    return (a + to - 1) / to * to;
}
static inline bool hpi_is_power_of_two(uint64_t a) {
    return a != 0 && (a & (a - 1)) == 0;
}
/* a * b, or false when it does not fit. */
static inline bool hpi_multiply(uint64_t a, uint64_t b, uint64_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}
/* Milliseconds as nanoseconds; what does not fit is for ever. */
static inline uint64_t hpi_ms_to_ns(uint64_t ms) {
    uint64_t ns;
    return __builtin_mul_overflow(ms, UINT64_C(1000000), &ns) ? UINT64_MAX : ns;
}
/* a + b, at most UINT64_MAX: a moment that far away never comes. */
static inline uint64_t hpi_add_saturated(uint64_t a, uint64_t b) {
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}
static inline uint64_t hpi_min(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}
static inline uint64_t hpi_max(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* memcpy, faster for blocks of many pages. */
void hpi_copy(void *to, const void *from, uint64_t bytes);
/* The same past the caches: nobody is asked for the lines of `to`, and none stay here. */
void hpi_copy_past(void *to, const void *from, uint64_t bytes);

/* splitmix64: one step of a seeded sequence. Source: Steele, Lea, Flood, OOPSLA 2014. */
uint64_t hpi_random_next(uint64_t *state);
/* Uniform in [0, 1), from the top 53 bits. */
double hpi_random_unit(uint64_t *state);

/* XXH3, 64 bits, seed 0. Source: Yann Collet, xxHash. */
uint64_t hpi_checksum(const void *data, uint64_t n_bytes);

/* hp_convert for callers whose operands are known to be good. */
hp_status hpi_convert(const void *in, hp_dtype in_dtype, void *out, hp_dtype out_dtype,
                      uint64_t count);

enum { HPI_N_DTYPES = HP_UINT8 + 1 };
/* The type in which contributions of `dtype` are summed: fp64 for fp64, itself for integers, else
 * fp32. */
hp_dtype hpi_sum_dtype(hp_dtype dtype);
bool hpi_dtype_is_float(hp_dtype dtype);

/* The options, one field per row of options.def. getenv stands in options.c alone. */
typedef struct hpi_options {
#define X_UINT uint64_t
#define X_BYTES uint64_t
#define X_FLAG uint64_t
#define X_TEXT const char *
#define X_CHOICE uint64_t
#define X(field, type, name, fallback, least, most, unit, text) X_##type field;
#include "options.def"
#undef X
#undef X_UINT
#undef X_BYTES
#undef X_FLAG
#undef X_TEXT
#undef X_CHOICE
} hpi_options;

/* Fill every field from the environment, else its default. Errors: ARGUMENT naming the option, what
 * it takes and what it was given. TEXT fields point into the environment. */
hp_status hpi_options_load(hpi_options *out_options);
/* A variable that another launcher sets (RANK, MASTER_ADDR ...); NULL when unset or empty. */
const char *hpi_environment(const char *name);
/* The same as a number in [least, most]; `fallback` when unset. */
hp_status hpi_environment_int(const char *name, int64_t least, int64_t most, int64_t fallback,
                              int64_t *out_value);
/* "64M" -> 67108864. Errors: ARGUMENT. */
hp_status hpi_parse_bytes(const char *text, uint64_t *out_bytes);
/* The function or object `symbol` of the shared object `file`, which stays loaded: looked for in
 * `folder` or, when that is empty, in lib/hyperparallel beside and above the library's own file and
 * the program's. Errors: UNSUPPORTED, saying where it was looked for or why it does not load. */
hp_status hpi_plugin_find(const char *folder, const char *file, const char *symbol,
                          void **out_symbol);
/* Words for people, put together in `size` bytes at `at`; what does not fit is cut. It begins as
 * {at, size, 0}. */
typedef struct hpi_sentence {
    char *at;
    size_t size, used;
} hpi_sentence;
void hpi_sentence_add(hpi_sentence *sentence, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The word at `index` of "FULL|FP16|BF16". */
void hpi_choice_name(const char *names, uint64_t index, char *out_name, size_t size);

#include "log.h" /* part of this door; it needs what stands above */

#endif

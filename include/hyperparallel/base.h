/* SPDX-License-Identifier: Apache-2.0
 *
 * base.h - status codes, the error record, data types and their conversion, the version.
 *
 * Every function of the library that can fail returns an hp_status: 0 is done, positive is "not
 * yet", negative has failed. The first function that knows the cause writes a record that the
 * calling thread reads with hp_last_error(). The library never prints, exits or aborts.
 */
#ifndef HYPERPARALLEL_BASE_H
#define HYPERPARALLEL_BASE_H

#include <stddef.h>
#include <stdint.h>

#define HP_VERSION_MAJOR 0
#define HP_VERSION_MINOR 1
#define HP_VERSION_PATCH 0
#define HP_VERSION_NUMBER (HP_VERSION_MAJOR * 1000000 + HP_VERSION_MINOR * 1000 + HP_VERSION_PATCH)

/* In front of every function whose status must not be ignored. */
#define HP_MUST_CHECK __attribute__((warn_unused_result))

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* The outcome of a call. The rows stand in src/base/status.def, which docs/status.md shows. */
typedef enum hp_status {
    HP_OK = 0,                /* done */
    HP_IN_PROGRESS = 1,       /* not yet */
    HP_ERR_ARGUMENT = -1,     /* an argument is outside what the call takes */
    HP_ERR_STATE = -2,        /* the call does not fit the object's state */
    HP_ERR_BUSY = -3,         /* another thread is inside this object */
    HP_ERR_HANDLE = -4,       /* the handle is stale, foreign or freed */
    HP_ERR_MEMORY = -5,       /* ordinary memory could not be had */
    HP_ERR_LIMIT = -6,        /* the machine, a cgroup or a limit does not allow it */
    HP_ERR_SYSTEM = -7,       /* a system call failed */
    HP_ERR_TIMEOUT = -8,      /* a deadline passed while waiting for a rank */
    HP_ERR_PEER = -9,         /* a rank died, or left before it did its part */
    HP_ERR_MISMATCH = -10,    /* the ranks disagree about what they are doing */
    HP_ERR_FILE = -11,        /* a file could not be read or written */
    HP_ERR_FORMAT = -12,      /* a file or message is damaged */
    HP_ERR_UNSUPPORTED = -13, /* valid, but not built yet for this case */
    HP_ERR_FORKED = -14,      /* used in a child process made by fork */
    HP_ERR_VERSION = -15,     /* library, headers or ranks differ in version */
    HP_ERR_FAILED = -16,      /* the object failed earlier and stays failed */
    HP_ERR_UNSOUND = -17      /* a schedule breaks a rule that keeps data safe */
} hp_status;

/* What an element is. Sums run in fp32 (fp64 for fp64, wrapping for integers). */
typedef enum hp_dtype {
    HP_FP64 = 0,
    HP_FP32 = 1,
    HP_FP16 = 2,
    HP_BF16 = 3,
    HP_INT64 = 4,
    HP_INT32 = 5,
    HP_INT8 = 6,
    HP_UINT8 = 7
} hp_dtype;

/* How the contributions of ranks are combined. avg is sum, then one division. */
typedef enum hp_reduce { HP_SUM = 0, HP_AVG = 1, HP_MAX = 2, HP_MIN = 3 } hp_reduce;

/* The comparison that a wait asks for: word COMPARE value. Unsigned 64-bit. */
typedef enum hp_compare {
    HP_EQ = 0,
    HP_NE = 1,
    HP_GT = 2,
    HP_GE = 3,
    HP_LT = 4,
    HP_LE = 5
} hp_compare;

/* Everything known of a failure. Strings are NUL-terminated, possibly cut. */
typedef struct hp_error {
    hp_status status;
    int32_t world_rank; /* whose fault it was, -1 when nobody's in particular */
    int32_t line;       /* where the cause was noticed */
    char file[60];
    char call[64];     /* the function that noticed */
    char message[640]; /* what was expected, what was given */
} hp_error;

/* One sentence for this thread's last failure: the call (when it is a public one), the cause, what
 * to try. "" when there was none. The text stays valid until this thread's next failing call.
 * Threads: any. */
const char *hp_last_error(void);

/* The record behind hp_last_error(). Threads: any. */
void hp_last_error_get(hp_error *out_error);

/* Make this the thread's last failure and return `status`: for code that is built on the library (a
 * model, a front end) and fails like it. call: the function that noticed, or NULL. Threads: any. */
hp_status hp_error_set(hp_status status, const char *call, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The name ("HP_ERR_TIMEOUT"), the sentence, and what to do next. Never NULL. Threads: any. */
const char *hp_status_name(hp_status status);
const char *hp_status_text(hp_status status);
const char *hp_status_hint(hp_status status);

/* Bytes of one element; 0 for a value outside the enum. Threads: any. */
size_t hp_dtype_size(hp_dtype dtype);

/* "fp32", "bf16", ...; "?" for a value outside the enum. Threads: any. */
const char *hp_dtype_name(hp_dtype dtype);

/* The dtype of that name. Returns HP_ERR_ARGUMENT, listing the names, for any other text. */
HP_MUST_CHECK hp_status hp_dtype_parse(const char *name, hp_dtype *out_dtype);

/* out[k] = in[k] as the other type, rounded once to nearest even: fp64, fp32, fp16 and bf16 among
 * each other; a type to itself is copied, whichever it is. in, out: [count], at any address, in
 * place (in == out) or apart. Threads: any. Errors: ARGUMENT (NULL, an overlap, no dtype),
 * UNSUPPORTED (integers). */
HP_MUST_CHECK hp_status hp_convert(const void *in, hp_dtype in_dtype, void *out, hp_dtype out_dtype,
                                   uint64_t count);

/* "0.1.0", of the library that is loaded. */
const char *hp_version(void);
/* Can the library that is loaded serve a program compiled with headers of this HP_VERSION_NUMBER?
 * (the same major and, below 1.0, minor version, and not an older library). hp_world_create asks
 * it when it gets a config. Errors: VERSION naming both. Threads: any. */
HP_MUST_CHECK hp_status hp_version_check(uint32_t headers_version);
/* "gcc 12.2.0, usdt probes": what it was compiled with. */
const char *hp_version_build(void);

/* A row of the table of options, and what the environment says of it now. */
typedef struct hp_option {
    const char *name, *meaning;
    const char *value;  /* that the environment sets; NULL: the default holds */
    char fallback[128]; /* the default; "": none */
    char takes[128];    /* "1 to 86400000 ms" */
} hp_option;
/* The options in the order of docs/options.md: returns 1, or 0 when there are no more. Threads:
 * any; `value` is valid until the environment changes. */
int hp_option_at(int index, hp_option *out_option);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif

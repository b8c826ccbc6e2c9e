/* SPDX-License-Identifier: Apache-2.0
 *
 * stream/executor.h - the inside of room `stream`: what an executor is, and what those that run
 * operations share.
 *
 * An executor is a table of calls; the public functions check, keep a second thread out, and pass
 * on. hpi_ops holds the operations of the current step and everything that does not depend on how
 * they are scheduled: the checks, running one with its delay, statistics and span, draining, and
 * the first failure. All of its memory is taken at creation.
 */
#ifndef HPI_EXECUTOR_H
#define HPI_EXECUTOR_H

#include "../base/base.h"
#include "stream.h"
#include <pthread.h>
#include <stdatomic.h>

typedef struct hpi_executor_calls {
    hp_status (*submit)(hp_executor *executor, const hp_op *ops, uint64_t n_ops);
    hp_status (*wait)(hp_executor *executor, hp_event event);
    hp_status (*drain)(hp_executor *executor);
    hp_status (*begin_step)(hp_executor *executor);
    uint64_t (*now_ns)(const hp_executor *executor);
    void (*stats)(const hp_executor *executor, hp_executor_stats *out_stats);
    void (*destroy)(hp_executor *executor);
} hpi_executor_calls;

/* The first member of every executor. */
struct hp_executor {
    const hpi_executor_calls *calls;
    atomic_bool is_busy; /* a thread is inside a public call */
};

hp_status hpi_thread_executor_create(const hp_executor_config *config, hp_executor **out_executor);
hp_status hpi_inline_executor_create(const hp_executor_config *config, hp_executor **out_executor);
hp_status hpi_virtual_executor_create(const hp_executor_config *config, hp_executor **out_executor);

/* The calling thread, of a stream, wants its turns soon and short. */
void hpi_slices_short(void);

/* ---- delays ------------------------------------------------------------------------------- */

typedef struct hpi_delay hpi_delay;

/* The rules of config->delay that concern config->rank. Errors: ARGUMENT naming the part. */
hp_status hpi_delay_create(const hp_executor_config *config, hpi_delay **out_delay);
/* How long to sleep before `op`, the `ordinal`-th of this executor. */
uint64_t hpi_delay_ns(const hpi_delay *delay, const hp_op *op, uint64_t ordinal);
void hpi_delay_destroy(hpi_delay *delay);

/* ---- the operations of a step -------------------------------------------------------------- */

typedef struct hpi_ops {
    hp_executor_config config;
    hpi_delay *delay;
    hp_op *ops;              /* [config.max_ops], in order of id */
    atomic_bool *is_drained; /* [config.max_ops]; set from the start for kinds without drain */
    uint32_t n_ops;          /* of the current step; the submitting thread's */
    uint32_t step;
    uint64_t n_earlier; /* operations of the steps before */

    pthread_mutex_t error_lock; /* taken when something fails, never before */
    atomic_bool has_failed;
    hp_error error; /* the first failure; written once, before has_failed */

    _Atomic uint64_t n_run;
    _Atomic uint64_t waited_ns[HP_N_STREAMS], busy_ns[HP_N_STREAMS];
} hpi_ops;

/* `o` is zeroed memory of the caller's; nothing is left to destroy after a failure. */
hp_status hpi_ops_create(const hp_executor_config *config, hpi_ops *o);
void hpi_ops_destroy(hpi_ops *o);

/* Could this list be appended? Errors: ARGUMENT. */
hp_status hpi_ops_check(const hpi_ops *o, const hp_op *ops, uint64_t n_ops);
/* Check a list and append it, or leave everything as it was. Errors: ARGUMENT. */
hp_status hpi_ops_append(hpi_ops *o, const hp_op *ops, uint64_t n_ops);
/* ARGUMENT for an event of an operation that was not submitted yet. */
hp_status hpi_ops_check_event(const hpi_ops *o, hp_event event);
/* Forget the step. STATE while an operation is not known to be drained. */
hp_status hpi_ops_begin_step(hpi_ops *o);

/* The rest may be called from any thread. A negative status is the executor's first failure. */

/* Run an operation whose turn it is. */
hp_status hpi_ops_run(hpi_ops *o, const hp_op *op);
/* Make sure that a done operation is drained. `is_compute`: the compute stream stands still for it.
 */
hp_status hpi_ops_drain(hpi_ops *o, uint32_t id, bool is_compute);
/* The compute stream stood still from `begin_ns` until now; `name` of the span is a literal. */
void hpi_ops_stood_still(hpi_ops *o, const char *name, uint32_t id, uint64_t begin_ns);
/* The same for who runs operations himself, in a time of his own: one was run, or stood still for;
 * one has failed, with this thread's record. */
void hpi_ops_count(hpi_ops *o, const hp_op *op, uint64_t begin_ns, uint64_t end_ns);
void hpi_ops_count_still(hpi_ops *o, const char *name, uint32_t id, uint64_t begin_ns,
                         uint64_t end_ns);
hp_status hpi_ops_fail(hpi_ops *o, const hp_op *op, hp_status status);
/* HP_OK, or the first failure, which becomes the calling thread's record. */
hp_status hpi_ops_failure(const hpi_ops *o);
void hpi_ops_stats(const hpi_ops *o, hp_executor_stats *out_stats);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * stream/stream.h - the door of room `stream`: events, the table that binds ids to memory, and how
 * other rooms put their calls on a hp_stream.
 *
 * Operations name buffers and communicators by number. A hpi_bindings says where they lie on this
 * rank; it is the `context` of the executors that move real bytes.
 */
#ifndef HPI_STREAM_H
#define HPI_STREAM_H

#include <hyperparallel/stream.h>

static inline hp_event hpi_done(uint32_t op_id) {
    return 2 * (op_id + 1);
}
static inline hp_event hpi_drained(uint32_t op_id) {
    return 2 * (op_id + 1) + 1;
}
static inline uint32_t hpi_event_op(hp_event event) {
    return event / 2 - 1;
}
static inline int hpi_event_is_drained(hp_event event) {
    return (int)(event & 1U);
}

/* Put a call on the stream: run(a copy of `bytes` bytes of arguments, aligned for anything) in its
 * thread, once all calls before it are done. A negative status, with this thread's record, fails
 * the stream. `run` says itself that its thread must not spin. Errors: MEMORY, the stream's
 * failure. Threads: any. */
hp_status hpi_stream_push(hp_stream *stream, hp_status (*run)(void *arguments),
                          const void *arguments, size_t bytes);

/* Of a recorder: the operations of the step before the one that hp_recorder_ops tells; none: 0. */
void hpi_recorder_before(const hp_executor *recorder, const hp_op **out_ops, uint64_t *out_n);

_Static_assert(sizeof(hp_ref) == 24, "hp_ref is hashed and compared byte for byte");
_Static_assert(sizeof(hp_op) == 160, "hp_op is hashed and compared byte for byte");

typedef struct hpi_bindings {
    unsigned char **buffers; /* [n_buffers], by hp_ref.buffer; entry 0 is NULL */
    uint64_t *buffer_bytes;
    uint32_t n_buffers;
    void **comms;        /* [n_comms], by hp_op.comm: a hp_group; entry 0 is NULL */
    uint64_t *comm_base; /* sequence number of each communicator when the step began */
    uint32_t n_comms;
    uint32_t pass;       /* what the step is, for collectives to compare: see hpi_coll.pass */
    uint32_t *unit_pass; /* [n_units]: the same of a unit's operations; `pass` of nobody's */
    uint32_t n_units;
    void *owner; /* of the kinds that are not collectives */
} hpi_bindings;

/* Where a piece lies; NULL for none. */
static inline void *hpi_bound(const hpi_bindings *bindings, const hp_ref *ref) {
    return ref->buffer ? bindings->buffers[ref->buffer] + ref->begin : (void *)0;
}

#endif

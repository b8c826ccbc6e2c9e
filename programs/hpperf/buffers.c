/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/buffers.c - the memory of a measurement, and what is written into and read from it.
 *
 * What a put writes and a get reads is symmetric whatever --memory says, or there is no such call.
 */
#include "bench.h"
#include "fail.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, HUGE_PAGE = 2 << 20, SPOILED = 0xa5 };

/* ---- taking ---- */

static bool is_put(const bench *b) {
    return b->op->reads_itself;
}
static bool is_get(const bench *b) {
    return b->op->is_one_sided;
}

hp_status buffer_open(bench *b, uint64_t bytes, bool is_private, buffer *out) {
    void *data;
    bytes += b->o->misalign_bytes;
    if (is_private) {
        const size_t size = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
        out->ordinary = aligned_alloc(HUGE_PAGE, size);
        if (!out->ordinary)
            return fail(HP_ERR_MEMORY, "expected %llu bytes of memory for a buffer",
                        (unsigned long long)bytes);
        (void)madvise(out->ordinary, size, MADV_HUGEPAGE); /* as the peers' memory is */
        data = out->ordinary;
    } else {
        TRY(hp_symm_alloc(b->world, b->group, bytes, PAGE, &out->symm));
        TRY(hp_symm_pointer(out->symm, b->rank, b->group, &data));
    }
    out->data = (unsigned char *)data + b->o->misalign_bytes;
    memset(out->data, SPOILED, bytes - b->o->misalign_bytes); /* its pages are there from now on */
    return HP_OK;
}

hp_status buffer_close(buffer *old) {
    const hp_status status = hp_symm_free(old->symm);
    free(old->ordinary);
    memset(old, 0, sizeof *old);
    return status;
}

static bool is_one_buffer(const bench *b) {
    return b->op->source == FROM_ROOT || (b->o->is_in_place && b->op->has_in_place);
}

uint64_t bench_parts(const bench *b) {
    return b->op->each_in || b->op->each_out ? (uint64_t)b->n : 1;
}

static hp_status open_buffers(bench *b, uint64_t most_bytes) {
    const uint64_t part = most_bytes / bench_parts(b);
    const bool is_private = b->o->is_private;
    const uint64_t in = b->op->each_in ? most_bytes : part;
    const uint64_t out = b->op->each_out ? most_bytes : part;
    if (is_one_buffer(b))
        return agree(b->world, buffer_open(b, most_bytes, is_private, &b->out_buffer));
    TRY(agree(b->world, buffer_open(b, in, is_private && !is_get(b), &b->in_buffer)));
    return agree(b->world, buffer_open(b, out, is_private && !is_put(b), &b->out_buffer));
}

hp_status bench_open(bench *b, uint64_t most_bytes) {
    const values_config config = {.dtype = b->dtype,
                                  .n_ranks = b->n,
                                  .reduces = b->op->reduces,
                                  .op = b->reduce,
                                  .is_rounded = b->o->wire != HP_WIRE_FULL};
    if (b->op->is_latency)
        TRY(hp_symm_alloc(b->world, b->group, sizeof(uint64_t), 0, &b->signal));
    b->n_bounces = 0;
    if (!bench_has_data(b->op))
        return HP_OK;
    TRY(agree(b->world,
              values_create(&config, &b->values)
                  ? HP_OK
                  : fail(HP_ERR_MEMORY, "expected memory for the values of %d ranks", b->n)));
    return open_buffers(b, most_bytes);
}

hp_status bench_close(bench *b) {
    hp_status status = buffer_close(&b->in_buffer);
    const hp_status closed = buffer_close(&b->out_buffer), freed = hp_symm_free(b->signal);
    values_destroy(&b->values);
    memset(&b->signal, 0, sizeof b->signal);
    if (status >= 0)
        status = closed;
    return status >= 0 ? freed : status;
}

void bench_abandon(bench *b) {
    free(b->in_buffer.ordinary);
    free(b->out_buffer.ordinary);
    values_destroy(&b->values);
}

/* ---- laying out ---- */

/* In place, a rank's part is its place in the larger buffer. */
static void lay_out_in_place(bench *b, uint64_t part_bytes) {
    unsigned char *data = b->out_buffer.data;
    const uint64_t own = (uint64_t)b->rank * part_bytes;
    b->in = data + (b->op->each_out && !b->op->each_in ? own : 0);
    b->out = data + (b->op->each_in && !b->op->each_out ? own : 0);
}

void bench_set_count(bench *b, uint64_t count) {
    const uint64_t part_bytes = count * hp_dtype_size(b->dtype), n = (uint64_t)b->n;
    b->count = count;
    b->bytes = part_bytes * bench_parts(b);
    b->in_bytes = part_bytes * (b->op->each_in ? n : 1);
    b->out_bytes = part_bytes * (b->op->each_out ? n : 1);
    b->in = b->in_buffer.data;
    b->out = b->out_buffer.data;
    if (is_one_buffer(b))
        lay_out_in_place(b, part_bytes);
    b->call = (hp_coll_call)HP_COLL_CALL_INIT;
    b->call.what = b->op->what;
    b->call.group = b->group;
    b->call.in = b->in;
    b->call.out = b->out;
    b->call.count = count;
    b->call.dtype = b->dtype;
    b->call.op = b->reduce;
    b->call.rank = b->op->source == FROM_PARTNER ? b->partner : b->o->root;
    b->call.wire = b->o->wire;
    b->call.stream = b->stream;
}

/* ---- writing, reading ---- */

static bool has_input(const bench *b) {
    return bench_has_data(b->op) && (b->op->source != FROM_ROOT || b->rank == b->o->root);
}

hp_status bench_fill(void *argument) {
    bench *b = argument;
    b->iteration++;
    if (has_input(b))
        values_fill(&b->values, b->rank, b->iteration, 0, b->in_bytes / hp_dtype_size(b->dtype),
                    b->in);
    return HP_OK;
}

void bench_spoil(bench *b) {
    if (b->out_bytes)
        memset(b->out, SPOILED, b->out_bytes);
}

hp_status bench_read(void *argument) {
    bench *b = argument;
    if (b->out_bytes)
        b->sink = values_read(b->out, b->out_bytes);
    return HP_OK;
}

hp_status bench_do(bench *b, hp_status (*function)(void *argument)) {
    return b->stream ? hp_stream_call(b->stream, function, b) : function(b);
}

/* ---- checking ---- */

static uint64_t wrong_parts(const bench *b) {
    const uint64_t first = b->op->each_in ? (uint64_t)b->rank * b->count : 0;
    const uint64_t part_bytes = b->count * hp_dtype_size(b->dtype);
    uint64_t wrong = 0;
    for (int i = 0; i < b->n; i++)
        wrong += values_wrong(&b->values, i, b->iteration, first, b->count,
                              b->out + (uint64_t)i * part_bytes);
    return wrong;
}

uint64_t bench_wrong(const bench *b) {
    const uint64_t first = b->op->each_in ? (uint64_t)b->rank * b->count : 0;
    switch (b->op->source) {
    case FROM_ALL:
        return values_wrong(&b->values, VALUES_REDUCED, b->iteration, first, b->count, b->out);
    case FROM_EACH:
        return wrong_parts(b);
    case FROM_ROOT:
        return values_wrong(&b->values, b->o->root, b->iteration, 0, b->count, b->out);
    case FROM_PARTNER:
        if (b->partner < 0 || (b->op->is_one_sided && b->rank % 2 == 1))
            return 0;
        return values_wrong(&b->values, b->partner, b->iteration, 0, b->count, b->out);
    default:
        return 0;
    }
}

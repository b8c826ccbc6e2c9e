/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels.c - which loops, and the tree that calls them.
 *
 * The tree of the bit contract is sum(b, e) = sum(b, m) + sum(m, e), m - b the largest power of two
 * below e - b. Its bottom, 1, 2, 4 or 8 inputs, is added in registers by one loop, and mostly that
 * is all. Above it, accumulators of one chunk are merged in first-level cache; the last merge
 * divides, narrows and stores. Every addition stands in the source in the order in which it
 * happens, so the vector width changes nothing.
 */
#include "kernels.h"
#include "versions.h"

#include <hyperparallel/coll.h>

/* ---- versions ---- */

#ifdef __x86_64__
static bool has_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
/* Every processor with AVX2 converts fp16 (F16C), which is the older one. */
static bool has_avx2(void) {
    return __builtin_cpu_supports("avx2");
}
#endif

const hpi_kernel_version *hpi_kernel_version_at(int index) {
    const hpi_kernel_version *found[4] = {NULL, NULL, NULL, NULL};
    int n = 0;
#ifdef __x86_64__
    if (has_avx512() && __builtin_cpu_supports("avx512bf16"))
        found[n++] = &hpi_kernels_avx512_bf16;
    if (has_avx512())
        found[n++] = &hpi_kernels_avx512;
    if (has_avx2())
        found[n++] = &hpi_kernels_avx2;
#endif
    found[n++] = &hpi_kernels_plain;
    return index >= 0 && index < n ? found[index] : NULL;
}

const hpi_kernel *hpi_kernel_of(hp_dtype dtype) {
    return (unsigned)dtype < HPI_N_DTYPES ? &hpi_kernel_version_at(0)->kernels[dtype] : NULL;
}

const hpi_kernel *hpi_kernel_rounding(hpi_rounding rounding) {
    return &hpi_kernel_version_at(0)->rounding[rounding];
}

const char *hp_coll_kernels(void) {
    return hpi_kernel_version_at(0)->name;
}

/* ---- the tree ---- */

static int combine_of(hp_reduce op) {
    return op == HP_MAX ? 1 : op == HP_MIN ? 2 : 0;
}

static hpi_pass dividing_pass(int n, int n_out, int divisor) {
    hpi_pass pass = {.n = n, .n_out = n_out, .divisor = divisor, .reciprocal = 1};
    if (divisor != 1)
        pass.reciprocal = hpi_is_power_of_two((uint64_t)divisor) ? 1.0 / divisor : 0;
    return pass;
}

/* The divisor belongs to the last pass over a result, and to no other. */
static hpi_pass pass_of(int n, int n_out, const hpi_reduction *r) {
    return dividing_pass(n, n_out, r && r->op == HP_AVG ? r->n : 1);
}

/* Are n inputs added by one loop? */
static bool is_leaf(int n) {
    return n <= HPI_LEAVES && hpi_is_power_of_two((uint64_t)n);
}

static int left_of(int n) {
    int left = 1;
    while (2 * left < n)
        left *= 2;
    return left;
}

/* in[0..n)[0..count) into a chunk of accumulators, undivided. */
static void accumulate(const hpi_reduction *r, const void *const *in, int n, unsigned char *acc,
                       uint64_t count) {
    const int combine = combine_of(r->op);
    void *const out = acc;
    if (is_leaf(n)) {
        const hpi_pass pass = pass_of(n, 1, NULL);
        r->kernel->to_sum[combine](&pass, in, &out, 0, count);
        return;
    }
    const int left = left_of(n);
    const void *const halves[2] = {acc, acc + HPI_CHUNK_BYTES};
    const hpi_pass pass = pass_of(2, 1, NULL);
    accumulate(r, in, left, acc, count);
    accumulate(r, in + left, n - left, acc + HPI_CHUNK_BYTES, count);
    r->kernel->merge[combine](&pass, halves, &out, 0, count);
}

/* The loops that take partial results to out_dtype. */
static hpi_loop *const *last_merge(const hpi_reduction *r) {
    if (r->out_dtype == hpi_sum_dtype(r->dtype))
        return r->kernel->merge;
    return r->out_dtype == r->dtype ? r->kernel->merge_to_own
                                    : hpi_kernel_of(r->out_dtype)->merge_to_own;
}

/* A chunk by way of the scratch: the two halves of the tree, then all that is left in one pass. */
static void reduce_in_scratch(const hpi_reduction *r, const void *const *in, void *const *out,
                              int n_out, uint64_t count) {
    const bool is_whole = is_leaf(r->n);
    if (is_whole && r->out_dtype == hpi_sum_dtype(r->dtype)) {
        const hpi_pass only = pass_of(r->n, n_out, r);
        r->kernel->to_sum[combine_of(r->op)](&only, in, out, 0, count);
        return;
    }
    const int left = is_whole ? r->n : left_of(r->n);
    unsigned char *more = r->scratch + HPI_CHUNK_BYTES;
    const void *const halves[2] = {r->scratch, more};
    const hpi_pass pass = pass_of(is_whole ? 1 : 2, n_out, r);
    accumulate(r, in, left, r->scratch, count);
    if (!is_whole)
        accumulate(r, in + left, r->n - left, more, count);
    last_merge(r)[combine_of(r->op)](&pass, halves, out, 0, count);
}

/* A level for every halving, and one more. */
uint64_t hpi_scratch_bytes(int n) {
    uint64_t levels = 2;
    for (; n > 1; n /= 2)
        levels++;
    return levels * HPI_CHUNK_BYTES;
}

uint64_t hpi_chunk_elements(const hpi_reduction *r) {
    return HPI_CHUNK_BYTES / hp_dtype_size(hpi_sum_dtype(r->dtype));
}

/* The result may replace the accumulators: it is not wider, and stored after they were read. */
const void *hpi_reduce_chunk(const hpi_reduction *r, const void *const *in, uint64_t count) {
    void *const out = r->scratch;
    reduce_in_scratch(r, in, &out, 1, count);
    return out;
}

/* ---- any count, any outputs ---- */

enum { PAGE = 4096, LINE = 64, FEW = PAGE / 8 }; /* elements of at most 8 bytes */

/* The pages after the next: see copy.c. Writes past the caches need no line, but the page too. */
static void look_ahead(const void *const *in, int n, uint64_t in_at, void *const *out, int n_out,
                       uint64_t out_at) {
    for (int i = 0; i < n; i++)
        __builtin_prefetch((const unsigned char *)in[i] + in_at, 0);
    for (int k = 0; k < n_out; k++)
        __builtin_prefetch((const unsigned char *)out[k] + out_at, 1);
}

/* Elements before the first that lies at the start of a line in every output; `count` when there is
 * none. */
static uint64_t elements_to_line(void *const *out, int n_out, uint64_t size, uint64_t count) {
    const uint64_t bytes = -(uintptr_t)out[0] % LINE;
    for (int k = 1; k < n_out; k++)
        if (-(uintptr_t)out[k] % LINE != bytes)
            return count;
    return bytes % size == 0 && bytes / size < count ? bytes / size : count;
}

static void reduce_in_registers(const hpi_reduction *r, const void *const *in, void *const *out,
                                int n_out, uint64_t count, bool is_streaming) {
    hpi_loop *loop =
        (r->out_dtype == r->dtype ? r->kernel->to_own : r->kernel->to_sum)[combine_of(r->op)];
    hpi_pass pass = pass_of(r->n, n_out, r);
    if (count <= FEW && !is_streaming) { /* no page to look ahead to */
        loop(&pass, in, out, 0, count);
        return;
    }
    const uint64_t in_size = hp_dtype_size(r->dtype), out_size = hp_dtype_size(r->out_dtype);
    const uint64_t step = PAGE / in_size;
    uint64_t at = 0;
    if (is_streaming) {
        at = elements_to_line(out, n_out, out_size, count);
        if (at > 0 && r->kernel->is_in_blocks)
            at = count;
        loop(&pass, in, out, 0, at);
        pass.is_streaming = true;
    }
    for (; count - at > 3 * step; at += step) {
        look_ahead(in, r->n, (at + 2 * step) * in_size, out, n_out, (at + 2 * step) * out_size);
        loop(&pass, in, out, at, at + step);
    }
    loop(&pass, in, out, at, count);
#ifdef __x86_64__
    if (is_streaming)
        __builtin_ia32_sfence(); /* the release store that follows does not order such stores */
#endif
}

void hpi_reduce_into(const hpi_reduction *r, const void *const *in, void *const *out, int n_out,
                     uint64_t count, bool is_streaming) {
    if (is_leaf(r->n) && (r->out_dtype == r->dtype || r->out_dtype == hpi_sum_dtype(r->dtype))) {
        reduce_in_registers(r, in, out, n_out, count, is_streaming);
        return;
    }
    const uint64_t step = hpi_chunk_elements(r), in_size = hp_dtype_size(r->dtype),
                   out_size = hp_dtype_size(r->out_dtype);
    const void *from[HPI_MOST_INPUTS];
    void *to[HPI_MOST_INPUTS];
    for (uint64_t at = 0; at < count; at += step) {
        for (int i = 0; i < r->n; i++)
            from[i] = (const unsigned char *)in[i] + at * in_size;
        for (int k = 0; k < n_out; k++)
            to[k] = (unsigned char *)out[k] + at * out_size;
        reduce_in_scratch(r, from, to, n_out, hpi_min(step, count - at));
    }
}

/* ---- for gradients ---- */

void hpi_divide(hp_dtype dtype, const void *in, void *out, uint64_t count, int divisor) {
    const hpi_pass pass = dividing_pass(1, 1, divisor);
    hpi_kernel_of(dtype)->to_own[combine_of(HP_SUM)](&pass, &in, &out, 0, count);
}

/* The row of an element's size. */
static int row_of(hp_dtype dtype) {
    return __builtin_ctzll(hp_dtype_size(dtype));
}

/* Integers have no NaN: no magnitude is above this. */
static uint64_t infinity_of(hp_dtype dtype) {
    switch (dtype) {
    case HP_FP64:
        return UINT64_C(0x7ff0000000000000);
    case HP_FP32:
        return HPI_FP32_INFINITY;
    case HP_FP16:
        return 0x7c00;
    case HP_BF16:
        return 0x7f80;
    default:
        return UINT64_MAX;
    }
}

void hpi_same_values(hp_dtype dtype, const void *a, const void *b, uint64_t *out_bits,
                     uint64_t count) {
    hpi_kernel_version_at(0)->winners->same[row_of(dtype)](a, b, infinity_of(dtype), out_bits,
                                                           count);
}

void hpi_keep_values(hp_dtype dtype, const uint64_t *bits, const void *from, void *to,
                     uint64_t count) {
    hpi_kernel_version_at(0)->winners->keep[row_of(dtype)](bits, from, to, count);
}

/* Lowest first where the least wins; without a sign 0 is the least of them. */
static hpi_order order_of(hp_dtype dtype, hp_reduce op) {
    const uint64_t sign = UINT64_C(1) << (8 * hp_dtype_size(dtype) - 1);
    return (hpi_order){.flip = (op == HP_MIN ? UINT64_MAX : 0) ^ (dtype == HP_UINT8 ? sign : 0),
                       .infinity = infinity_of(dtype)};
}

void hpi_give_gradient(hp_dtype dtype, hp_reduce op, const void *const *in, int n,
                       const void *gradient, void *const *out, uint64_t count) {
    const hpi_order order = order_of(dtype, op);
    const hpi_winners *winners = hpi_kernel_version_at(0)->winners;
    winners->give[hpi_dtype_is_float(dtype)][row_of(dtype)](&order, in, n, gradient, out, count);
}

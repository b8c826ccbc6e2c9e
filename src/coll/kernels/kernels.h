/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels/kernels.h - the tree sum of n inputs.
 *
 * hpi_reduce_into is the door: one pass over the inputs, in registers. Below it stand the loops of
 * one instruction set, a row per dtype; the widest that the processor has is taken, and tests run
 * each. Whatever the loop, the bits are the same.
 */
#ifndef HPI_KERNELS_H
#define HPI_KERNELS_H

#include "../../base/base.h"

enum { HPI_LEAVES = 8 };         /* inputs that are added in registers, at most */
enum { HPI_MOST_INPUTS = 1024 }; /* ranks of a node */
enum { HPI_N_COMBINE = 3 };      /* sum (avg too), max, min */
enum { HPI_FP8_BLOCK = 128 };    /* elements that have a scale */

/* What a loop does besides combining. */
typedef struct hpi_pass {
    int n;                      /* inputs: 1, 2, 4 or 8 */
    int n_out;                  /* each output gets every result */
    double divisor, reciprocal; /* 1: none; 0: the reciprocal is not a number */
    bool is_streaming;          /* past the caches: every out[k] + begin is aligned to 64 bytes */
} hpi_pass;

/* out[k][j] = the tree over in[0..n)[j], for j in [begin, end). Any address; out[k] may be an input
 * or lies apart from all. */
typedef void hpi_loop(const hpi_pass *pass, const void *const *in, void *const *out, uint64_t begin,
                      uint64_t end);

/* The loops of a dtype, each for sum, max and min. Where the dtype is its own sum type they are the
 * same four times. */
typedef struct hpi_kernel {
    hpi_loop *to_sum[HPI_N_COMBINE];       /* contributions, to the sum type */
    hpi_loop *to_own[HPI_N_COMBINE];       /* the same, narrowed to the dtype */
    hpi_loop *merge[HPI_N_COMBINE];        /* partial results of the sum type, to that */
    hpi_loop *merge_to_own[HPI_N_COMBINE]; /* the same, narrowed */
    bool is_in_blocks; /* ranges of contributions begin at a multiple of HPI_FP8_BLOCK */
} hpi_kernel;

/* The widest loops that this processor has; NULL for a value outside the enum. */
const hpi_kernel *hpi_kernel_of(hp_dtype dtype);

/* Of fp32 contributions that are rounded once when they are read; to fp8 in blocks, each with its
 * scale, which are counted from element 0. */
typedef enum hpi_rounding {
    HPI_BY_FP16,
    HPI_BY_BF16,
    HPI_BY_E4M3,
    HPI_BY_E5M2,
    HPI_N_ROUNDINGS
} hpi_rounding;
const hpi_kernel *hpi_kernel_rounding(hpi_rounding rounding);

/* Between fp32 and a format of 8 bits, as floats.h says. Operands lie apart, at any address. */
typedef struct hpi_fp8 {
    /* Bits of the largest finite magnitude; 0 when there is none. */
    uint32_t (*largest_finite)(const void *in, uint64_t count);
    /* out[k] = in[k] * first * second, rounded */
    void (*encode)(const void *in, float first, float second, uint8_t *out, uint64_t count);
    /* out[k] = in[k] * scale */
    void (*decode)(const uint8_t *in, float scale, void *out, uint64_t count);
    /* decode(encode(in)) */
    void (*round)(const void *in, float first, float second, float scale, void *out,
                  uint64_t count);
} hpi_fp8;

/* How values compare: as integers with a sign, of their bits after an exclusive or with `flip`; of
 * floats with the magnitude of negative ones turned round, and the greatest of all where a
 * magnitude is above `infinity`, a NaN. The greatest wins. */
typedef struct hpi_order {
    uint64_t flip, infinity;
} hpi_order;

/* Of max and min, what a backward asks: a row for elements of 1, 2, 4 and 8 bytes, at any address.
 */
typedef struct hpi_winners {
    /* Bit k of the words at `out`: a[k] and b[k] are the same bits, or both a NaN, a magnitude
     * above `infinity`. Bits behind the last are 0. */
    void (*same[4])(const void *a, const void *b, uint64_t infinity, uint64_t *out, uint64_t count);
    /* to[k] = from[k] where bit k of the words at `in` is set, else 0; `to` may be `from`. */
    void (*keep[4])(const uint64_t *in, const void *from, void *to, uint64_t count);
    /* out[i][k] = gradient[k] where in[i][k] is the first of in[0..n)[k] to win, else 0. The
     * gradient may be an output, and an output the input of the same i. Integers, floats. */
    void (*give[2][4])(const hpi_order *order, const void *const *in, int n, const void *gradient,
                       void *const *out, uint64_t count);
} hpi_winners;

/* Loops compiled for one instruction set. */
typedef struct hpi_kernel_version {
    const char *name;
    const hpi_kernel *kernels;  /* by dtype */
    const hpi_kernel *rounding; /* by hpi_rounding */
    const hpi_fp8 *fp8;         /* e4m3, e5m2 */
    const hpi_winners *winners;
} hpi_kernel_version;

/* Those that this processor can run, the one in use first; NULL beyond the last. */
const hpi_kernel_version *hpi_kernel_version_at(int index);

enum { HPI_CHUNK_BYTES = 8192 }; /* of accumulators; a level of the tree holds one chunk */

/* One reduction, the same for all its chunks. */
typedef struct hpi_reduction {
    const hpi_kernel *kernel; /* of dtype; to_sum may be replaced, for hpi_reduce_chunk */
    hp_dtype dtype, out_dtype;
    hp_reduce op;
    int n;
    /* hpi_scratch_bytes(n), 64-byte aligned; or, when n is a power of two up to HPI_LEAVES and
     * nothing is narrowed, where the result is wanted, apart from the inputs. */
    unsigned char *scratch;
} hpi_reduction;

uint64_t hpi_scratch_bytes(int n);
/* Elements of a chunk. */
uint64_t hpi_chunk_elements(const hpi_reduction *reduction);
/* Reduce in[i][0..count), at most a chunk; returns the result, in out_dtype, inside the scratch. */
const void *hpi_reduce_chunk(const hpi_reduction *reduction, const void *const *in, uint64_t count);

/* Reduce in[i][0..count), any count, and store the result, in out_dtype (dtype or its sum type), to
 * each of out[0..n_out): out[k] may be an input, or lies apart from all of them. is_streaming: past
 * the caches, for outputs that are far larger than they are. Errors: none. */
void hpi_reduce_into(const hpi_reduction *reduction, const void *const *in, void *const *out,
                     int n_out, uint64_t count, bool is_streaming);

/* out[k] = in[k] / divisor, as hpi_reduce_into divides for avg; `out` may be `in`. */
void hpi_divide(hp_dtype dtype, const void *in, void *out, uint64_t count, int divisor);

/* See hpi_winners. */
void hpi_same_values(hp_dtype dtype, const void *a, const void *b, uint64_t *out_bits,
                     uint64_t count);
void hpi_keep_values(hp_dtype dtype, const uint64_t *bits, const void *from, void *to,
                     uint64_t count);
/* By HP_MAX or HP_MIN. */
void hpi_give_gradient(hp_dtype dtype, hp_reduce op, const void *const *in, int n,
                       const void *gradient, void *const *out, uint64_t count);

#endif

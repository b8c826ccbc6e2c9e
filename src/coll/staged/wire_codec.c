/* SPDX-License-Identifier: Apache-2.0
 *
 * wire_codec.c - to the wire, and kernels that sum what lies on it.
 *
 * fp16 and bf16 are dtypes, so their kernels are there already. A block of fp8 is divided by its
 * scale, see kernels/scale.h. Both directions of the scaling are exact but where the result is far
 * below the format's least step. Source: OCP 8-bit Floating Point Specification (OFP8) 1.0, 2023.
 */
#include "../kernels/scale.h"
#include "wire.h"

enum { BLOCK = HPI_FP8_BLOCK, SCALE_BYTES = sizeof(float), FP8_BLOCK = SCALE_BYTES + BLOCK };

uint64_t hpi_wire_bytes(hp_wire wire, uint64_t count) {
    if (wire == HP_WIRE_FP16 || wire == HP_WIRE_BF16)
        return 2 * count;
    return count + hpi_ceil_div(count, BLOCK) * SCALE_BYTES;
}

/* ---- fp8, a block at a time ---- */

/* The loops of a format. */
static const hpi_fp8 *fp8_of(hp_wire wire) {
    return &hpi_kernel_version_at(0)->fp8[wire == HP_WIRE_FP8_E4M3 ? 0 : 1];
}

static hpi_scaling scaling_of(hp_wire wire, const hpi_fp8 *fp8, const void *in, uint64_t count) {
    const bool is_e4m3 = wire == HP_WIRE_FP8_E4M3;
    return hpi_scaling_of(fp8->largest_finite(in, count), is_e4m3 ? 8 : 15, is_e4m3 ? -9 : -16);
}

static void encode_block(hp_wire wire, const hpi_fp8 *fp8, const void *in, uint64_t count,
                         uint8_t *out) {
    const hpi_scaling s = scaling_of(wire, fp8, in, count);
    memcpy(out, &s.scale, SCALE_BYTES);
    fp8->encode(in, s.first, s.second, out + SCALE_BYTES, count);
}

static void decode_block(const hpi_fp8 *fp8, const uint8_t *in, uint64_t count, float *out) {
    float scale;
    memcpy(&scale, in, SCALE_BYTES);
    fp8->decode(in + SCALE_BYTES, scale, out, count);
}

/* ---- encoding ---- */

static void convert(const void *in, hp_dtype in_dtype, void *out, hp_dtype out_dtype,
                    uint64_t count) {
    const hp_status status = hpi_convert(in, in_dtype, out, out_dtype, count);
    (void)status; /* between floats it cannot fail */
}

void hpi_wire_encode(hp_wire wire, hp_dtype dtype, const void *in, uint64_t count, void *out) {
    if (wire == HP_WIRE_FP16 || wire == HP_WIRE_BF16) {
        convert(in, dtype, out, wire == HP_WIRE_FP16 ? HP_FP16 : HP_BF16, count);
        return;
    }
    const unsigned char *from = in;
    const hpi_fp8 *fp8 = fp8_of(wire);
    uint8_t *to = out;
    for (uint64_t at = 0; at < count; at += BLOCK, to += FP8_BLOCK) {
        const uint64_t n = hpi_min(BLOCK, count - at);
        const void *block = from + at * hp_dtype_size(dtype);
        float wide[BLOCK];
        if (dtype != HP_FP32) {
            convert(block, dtype, wide, HP_FP32, n);
            block = wide;
        }
        encode_block(wire, fp8, block, n, to);
    }
}

void hpi_wire_round(hp_wire wire, hp_dtype dtype, const void *in, uint64_t count, void *out) {
    const unsigned char *from = in;
    const hpi_fp8 *fp8 = fp8_of(wire);
    const bool is_half = wire == HP_WIRE_FP16 || wire == HP_WIRE_BF16;
    for (uint64_t at = 0; at < count; at += BLOCK) {
        const uint64_t n = hpi_min(BLOCK, count - at);
        const void *block = from + at * hp_dtype_size(dtype);
        float *to = (float *)out + at, wide[BLOCK];
        if (is_half) {
            hpi_wire_encode(wire, dtype, block, n, wide);
            convert(wide, wire == HP_WIRE_FP16 ? HP_FP16 : HP_BF16, to, HP_FP32, n);
            continue;
        }
        if (dtype != HP_FP32) {
            convert(block, dtype, wide, HP_FP32, n);
            block = wide;
        }
        const hpi_scaling s = scaling_of(wire, fp8, block, n);
        fp8->round(block, s.first, s.second, s.scale, to, n);
    }
}

/* ---- summing ---- */

/* The leaves of fp32 over `n` inputs, widened a block at a time. */
static void leaves(hp_wire wire, int combine, const hpi_pass *pass, const void *const *in,
                   void *const *out, uint64_t begin, uint64_t end) {
    const hpi_kernel *fp32 = hpi_kernel_of(HP_FP32);
    const hpi_fp8 *fp8 = fp8_of(wire);
    float wide[8][BLOCK];
    const void *rows[8];
    for (uint64_t at = begin; at < end; at += BLOCK) {
        const uint64_t length = hpi_min(BLOCK, end - at);
        void *const acc = (float *)out[0] + at;
        for (int i = 0; i < pass->n; i++) {
            decode_block(fp8, (const uint8_t *)in[i] + at / BLOCK * FP8_BLOCK, length, wide[i]);
            rows[i] = wide[i];
        }
        fp32->to_sum[combine](pass, rows, &acc, 0, length);
    }
}

#define LEAVES(name, wire, combine)                                                                \
    static void name(const hpi_pass *pass, const void *const *in, void *const *out,                \
                     uint64_t begin, uint64_t end) {                                               \
        leaves(wire, combine, pass, in, out, begin, end);                                          \
    }
LEAVES(sum_e4m3, HP_WIRE_FP8_E4M3, 0)
LEAVES(max_e4m3, HP_WIRE_FP8_E4M3, 1)
LEAVES(min_e4m3, HP_WIRE_FP8_E4M3, 2)
LEAVES(sum_e5m2, HP_WIRE_FP8_E5M2, 0)
LEAVES(max_e5m2, HP_WIRE_FP8_E5M2, 1)
LEAVES(min_e5m2, HP_WIRE_FP8_E5M2, 2)

hpi_kernel hpi_wire_kernel(hp_wire wire) {
    if (wire == HP_WIRE_FP16 || wire == HP_WIRE_BF16)
        return *hpi_kernel_of(wire == HP_WIRE_FP16 ? HP_FP16 : HP_BF16);
    const bool is_e4m3 = wire == HP_WIRE_FP8_E4M3;
    hpi_kernel kernel = *hpi_kernel_of(HP_FP32);
    kernel.to_sum[0] = is_e4m3 ? sum_e4m3 : sum_e5m2;
    kernel.to_sum[1] = is_e4m3 ? max_e4m3 : max_e5m2;
    kernel.to_sum[2] = is_e4m3 ? min_e4m3 : min_e5m2;
    return kernel;
}

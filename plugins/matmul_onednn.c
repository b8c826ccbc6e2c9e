/* SPDX-License-Identifier: Apache-2.0
 *
 * matmul_onednn.c - the engine "onednn": oneDNN's matmul primitives, one per shape, kept.
 *
 * A primitive is code that oneDNN generates for one shape and one layout. The first call of a shape
 * makes it, later calls find it in a table; its scratchpad is ours, so a warm call makes nothing.
 * Where the processor multiplies no bf16, operands are widened and fp32 is multiplied: oneDNN's own
 * emulation is a third as fast, and on AVX2 there is none. This oneDNN multiplies no fp16 on a
 * processor, so that is widened everywhere. fp64 is left to the plain loops.
 * Source: oneDNN 2.6 developer guide, matmul primitive.
 */
#include "../src/base/base.h"
#include "../src/matmul/matmul.h"

#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_debug.h>
#include <stdio.h>

/* Of the OpenMP run time that oneDNN itself was linked with, whichever that is. */
__attribute__((weak)) void omp_set_num_threads(int n_threads);
__attribute__((weak)) int omp_get_max_threads(void);

/* Everything that a primitive depends on: eight bytes each, so no padding is compared. */
typedef struct shape {
    int64_t m, n, k, lda, ldb, ldc;
    int64_t dtype, out_dtype, transpose_a, transpose_b, accumulate;
} shape;

enum { A, B, C, SCRATCHPAD, N_OPERANDS };

typedef struct product {
    shape shape;
    dnnl_primitive_t primitive; /* NULL: a free slot */
    dnnl_memory_t operands[N_OPERANDS];
    size_t scratchpad_bytes;
} product;

/* Slots of the table, and how many of them are filled before it is emptied and begun anew. A model
 * has some dozens of shapes. */
enum { N_SLOTS = 1024, MOST_PRODUCTS = 512 };

typedef struct buffer {
    void *data;
    size_t bytes;
} buffer;

typedef struct engine {
    hpi_matmul_host host;
    dnnl_engine_t cpu;
    dnnl_stream_t stream;
    int n_threads;
    bool has_bf16;
    hp_matmul plain;
    buffer scratchpad, wide; /* wide: operands in fp32 that came in bf16 or fp16 */
    size_t n_products;
    product products[N_SLOTS];
} engine;

static hp_status of_dnnl(const engine *e, dnnl_status_t status, const char *call) {
    const hp_status mine = status == dnnl_out_of_memory   ? HP_ERR_MEMORY
                           : status == dnnl_unimplemented ? HP_ERR_UNSUPPORTED
                                                          : HP_ERR_SYSTEM;
    return e->host.fail(mine, NULL, "oneDNN's %.*s failed: %s", (int)strcspn(call, "("), call,
                        dnnl_status2str(status));
}

#define DNNL_TRY(e, call)                                                                          \
    do {                                                                                           \
        const dnnl_status_t dnnl_status_ = (call);                                                 \
        if (dnnl_status_ != dnnl_success)                                                          \
            return of_dnnl((e), dnnl_status_, #call);                                              \
    } while (0)

/* What a buffer held before is lost. */
static hp_status buffer_reserve(const engine *e, buffer *b, size_t bytes) {
    if (bytes <= b->bytes)
        return HP_OK;
    void *data = e->host.alloc(64, bytes);
    if (!data)
        return HP_ERR_MEMORY;
    e->host.free(b->data);
    *b = (buffer){data, bytes};
    return HP_OK;
}

/* ---- primitives ---- */

static uint64_t shape_hash(const shape *s) {
    uint64_t words[sizeof *s / sizeof(uint64_t)], hash = 0;
    memcpy(words, s, sizeof *s);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        hash = (hash ^ words[i]) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 32;
}

/* The slot of that shape, or the free one where it belongs. */
static product *product_find(engine *e, const shape *s) {
    size_t i = shape_hash(s) % N_SLOTS;
    while (e->products[i].primitive && memcmp(&e->products[i].shape, s, sizeof *s) != 0)
        i = (i + 1) % N_SLOTS;
    return &e->products[i];
}

static void product_destroy(product *p) {
    for (int i = 0; i < N_OPERANDS; i++)
        dnnl_memory_destroy(p->operands[i]);
    dnnl_primitive_destroy(p->primitive);
    memset(p, 0, sizeof *p);
}

static void products_destroy(engine *e) {
    for (size_t i = 0; i < N_SLOTS; i++)
        product_destroy(&e->products[i]);
    e->n_products = 0;
}

static hp_status describe(const engine *e, const shape *s, dnnl_memory_desc_t out[3]) {
    const dnnl_data_type_t in = s->dtype == HP_BF16 ? dnnl_bf16 : dnnl_f32;
    const dnnl_dims_t sizes[] = {{s->m, s->k}, {s->k, s->n}, {s->m, s->n}};
    const dnnl_dims_t steps[] = {{s->transpose_a ? 1 : s->lda, s->transpose_a ? s->lda : 1},
                                 {s->transpose_b ? 1 : s->ldb, s->transpose_b ? s->ldb : 1},
                                 {s->ldc, 1}};
    const dnnl_data_type_t types[] = {in, in, s->out_dtype == HP_BF16 ? dnnl_bf16 : dnnl_f32};
    for (int i = 0; i < 3; i++)
        DNNL_TRY(e, dnnl_memory_desc_init_by_strides(&out[i], 2, sizes[i], types[i], steps[i]));
    return HP_OK;
}

/* The two settings of a primitive: its scratchpad comes from us; it may add to what is in C. */
static hp_status set_attributes(const engine *e, const shape *s, dnnl_primitive_attr_t attributes) {
    dnnl_post_ops_t then;
    DNNL_TRY(e, dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user));
    if (!s->accumulate)
        return HP_OK;
    DNNL_TRY(e, dnnl_post_ops_create(&then));
    dnnl_status_t status = dnnl_post_ops_append_sum(then, 1.0F);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_post_ops(attributes, then);
    dnnl_post_ops_destroy(then);
    return status == dnnl_success ? HP_OK : of_dnnl(e, status, "dnnl_post_ops_append_sum");
}

/* out: also what was made before a failure; the caller destroys it. */
static hp_status product_make(const engine *e, const dnnl_memory_desc_t *operands,
                              const_dnnl_primitive_desc_t made, product *out) {
    const dnnl_memory_desc_t *scratchpad =
        dnnl_primitive_desc_query_md(made, dnnl_query_scratchpad_md, 0);
    out->scratchpad_bytes = dnnl_memory_desc_get_size(scratchpad);
    for (int i = 0; i < N_OPERANDS; i++)
        DNNL_TRY(e,
                 dnnl_memory_create(&out->operands[i], i < SCRATCHPAD ? &operands[i] : scratchpad,
                                    e->cpu, DNNL_MEMORY_NONE));
    DNNL_TRY(e, dnnl_primitive_create(&out->primitive, made));
    return HP_OK;
}

static hp_status product_create(const engine *e, const shape *s, product *out) {
    dnnl_memory_desc_t operands[3];
    dnnl_matmul_desc_t wanted;
    dnnl_primitive_attr_t attributes;
    dnnl_primitive_desc_t made = NULL;
    HP_TRY(describe(e, s, operands));
    DNNL_TRY(e, dnnl_matmul_desc_init(&wanted, &operands[A], &operands[B], NULL, &operands[C]));
    DNNL_TRY(e, dnnl_primitive_attr_create(&attributes));
    hp_status status = set_attributes(e, s, attributes);
    if (status == HP_OK) {
        const dnnl_status_t given =
            dnnl_primitive_desc_create(&made, &wanted, attributes, e->cpu, NULL);
        status = given == dnnl_success ? product_make(e, operands, made, out)
                                       : of_dnnl(e, given, "dnnl_primitive_desc_create");
    }
    dnnl_primitive_desc_destroy(made);
    dnnl_primitive_attr_destroy(attributes);
    if (status == HP_OK)
        out->shape = *s;
    else
        product_destroy(out);
    return status;
}

/* ---- one product ---- */

static hp_status product_get(engine *e, const hp_matmul_args *p, product **out) {
    const shape s = {p->m,
                     p->n,
                     p->k,
                     p->lda,
                     p->ldb,
                     p->ldc,
                     p->dtype,
                     p->out_dtype,
                     p->transpose_a != 0,
                     p->transpose_b != 0,
                     p->accumulate != 0};
    product *found = product_find(e, &s);
    if (!found->primitive) {
        if (e->n_products == MOST_PRODUCTS) {
            products_destroy(e);
            found = product_find(e, &s);
        }
        HP_TRY(product_create(e, &s, found));
        e->n_products++;
    }
    HP_TRY(buffer_reserve(e, &e->scratchpad, found->scratchpad_bytes));
    *out = found;
    return HP_OK;
}

static hp_status multiply(engine *e, const hp_matmul_args *p) {
    static const int roles[N_OPERANDS] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST,
                                          DNNL_ARG_SCRATCHPAD};
    product *found;
    dnnl_exec_arg_t arguments[N_OPERANDS];
    HP_TRY(product_get(e, p, &found));
    /* oneDNN takes pointers to what it only reads without a const */
    void *const data[N_OPERANDS] = {(void *)(uintptr_t)p->a, (void *)(uintptr_t)p->b, p->c,
                                    e->scratchpad.data};
    for (int i = 0; i < N_OPERANDS; i++) {
        DNNL_TRY(e, dnnl_memory_set_data_handle(found->operands[i], data[i]));
        arguments[i] = (dnnl_exec_arg_t){roles[i], found->operands[i]};
    }
    DNNL_TRY(e, dnnl_primitive_execute(found->primitive, e->stream, N_OPERANDS, arguments));
    DNNL_TRY(e, dnnl_stream_wait(e->stream));
    return HP_OK;
}

/* The number of threads is the calling thread's, and its program's again afterwards. */
static hp_status multiply_threaded(engine *e, const hp_matmul_args *p) {
    const int before = omp_get_max_threads();
    if (before == e->n_threads)
        return multiply(e, p);
    omp_set_num_threads(e->n_threads);
    const hp_status status = multiply(e, p);
    omp_set_num_threads(before);
    return status;
}

/* ---- what the processor does not multiply ---- */

static float *widen(float *out, const void *data, hp_dtype dtype, int64_t n_rows, int64_t n_columns,
                    int64_t stride) {
    for (int64_t i = 0; i < n_rows; i++) {
        const uint16_t *in = (const uint16_t *)data + i * stride;
        float *row = out + i * n_columns;
        if (dtype == HP_BF16)
            for (int64_t j = 0; j < n_columns; j++)
                row[j] = hpi_bf16_to_fp32(in[j]);
        else
            for (int64_t j = 0; j < n_columns; j++)
                row[j] = hpi_fp16_to_fp32(in[j]);
    }
    return out + n_rows * n_columns;
}

static float of_half(uint16_t half, hp_dtype dtype) {
    return dtype == HP_BF16 ? hpi_bf16_to_fp32(half) : hpi_fp16_to_fp32(half);
}
static uint16_t to_half(float value, hp_dtype dtype) {
    return dtype == HP_BF16 ? hpi_fp32_to_bf16(value) : hpi_fp32_to_fp16(value);
}

static void narrow(const hp_matmul_args *p, const float *in) {
    uint16_t *out = p->c;
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t j = 0; j < p->n; j++) {
            uint16_t *c = &out[i * p->ldc + j];
            const float sum = in[i * p->n + j];
            *c = to_half(p->accumulate ? sum + of_half(*c, p->dtype) : sum, p->dtype);
        }
}

static hp_status multiply_widened(engine *e, const hp_matmul_args *p) {
    const size_t n = (size_t)(p->m * p->k + p->k * p->n + p->m * p->n);
    HP_TRY(buffer_reserve(e, &e->wide, n * sizeof(float)));
    hp_matmul_args wide = *p;
    float *a = e->wide.data;
    wide.dtype = wide.out_dtype = HP_FP32;
    wide.lda = p->transpose_a ? p->m : p->k;
    wide.ldb = p->transpose_b ? p->k : p->n;
    float *b = widen(a, p->a, p->dtype, p->transpose_a ? p->k : p->m, wide.lda, p->lda);
    float *c = widen(b, p->b, p->dtype, p->transpose_b ? p->n : p->k, wide.ldb, p->ldb);
    wide.a = a;
    wide.b = b;
    if (p->out_dtype == HP_FP32)
        return multiply_threaded(e, &wide);
    wide.c = c;
    wide.ldc = p->n;
    wide.accumulate = 0;
    HP_TRY(multiply_threaded(e, &wide));
    narrow(p, c);
    return HP_OK;
}

/* ---- the engine ---- */

static hp_status onednn_run(hp_matmul *matmul, const hp_matmul_args *p) {
    engine *e = matmul->state;
    if (p->dtype == HP_FP64)
        return e->plain.run(&e->plain, p);
    const bool is_widened = p->dtype == HP_FP16 || (p->dtype == HP_BF16 && !e->has_bf16);
    return is_widened ? multiply_widened(e, p) : multiply_threaded(e, p);
}

/* Takes what engine_fill left when it failed. */
static void engine_destroy(engine *e) {
    products_destroy(e);
    dnnl_stream_destroy(e->stream);
    dnnl_engine_destroy(e->cpu);
    if (e->plain.close)
        e->plain.close(&e->plain);
    e->host.free(e->scratchpad.data);
    e->host.free(e->wide.data);
    e->host.free(e);
}

static void onednn_close(hp_matmul *matmul) {
    engine_destroy(matmul->state);
}

static hp_status engine_fill(engine *e) {
    DNNL_TRY(e, dnnl_engine_create(&e->cpu, dnnl_cpu, 0));
    DNNL_TRY(e, dnnl_stream_create(&e->stream, e->cpu, dnnl_stream_default_flags));
    const int isa = (int)dnnl_get_effective_cpu_isa();
    e->has_bf16 = (isa & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16;
    return e->host.open_plain(&e->plain);
}

static hp_status check_host(const hpi_matmul_host *host) {
    static const int mine[] = {HP_VERSION_MAJOR, HP_VERSION_MINOR, HP_VERSION_PATCH};
    char version[48];
    snprintf(version, sizeof version, "%d.%d.%d", mine[0], mine[1], mine[2]);
    if (host->size != sizeof *host || host->engine_size != sizeof(hp_matmul) ||
        strcmp(host->version, version) != 0)
        return host->fail(HP_ERR_VERSION, NULL,
                          "expected matmul_onednn.so of the library's version, %s, given %s",
                          host->version, version);
    if (!omp_set_num_threads || !omp_get_max_threads)
        return host->fail(HP_ERR_UNSUPPORTED, NULL,
                          "expected a oneDNN that runs on OpenMP, given one that does not");
    return HP_OK;
}

__attribute__((visibility("default"))) hpi_matmul_plugin_open hp_matmul_plugin_open;

hp_status hp_matmul_plugin_open(const hpi_matmul_host *host, int n_threads, hp_matmul *out_matmul) {
    HP_TRY(check_host(host));
    engine *e = host->alloc(64, sizeof *e);
    if (!e)
        return HP_ERR_MEMORY;
    e->host = *host;
    e->n_threads = n_threads;
    const hp_status status = engine_fill(e);
    if (status < 0) {
        engine_destroy(e);
        return status;
    }
    *out_matmul = (hp_matmul){.size = sizeof *out_matmul,
                              .name = "onednn",
                              .run = onednn_run,
                              .close = onednn_close,
                              .n_threads = n_threads,
                              .state = e};
    return HP_OK;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_trace.c - any bytes as the traces and the verdict of a run, up to the page of hpreport.
 *
 * The input is cut at bytes 0 into trace-0.json, trace-1.json, ... and verdict.json, the last.
 * Either hpreport refuses them, or its figures and its data are JSON that no page takes for markup,
 * and the spans of a lane are one behind the other, as the page unpacks them. tools/fuzz.sh adds
 * the other files of hpreport, but for die.c and assets.c, in whose place this one stands: what
 * would end the program comes back here, and memory is given back whatever happened (there, free is
 * given_back).
 */
#define reader_open file_open /* here files are memory */
#define reader_close file_close
#include "hpreport/reader.c"
#undef reader_open
#undef reader_close
void reader_open(reader *r, const char *path);
void reader_close(reader *r);

#include "hpreport/run.c"

#include "fuzz.h"
#include "hpreport/assets.h"
#include "hpreport/out.h"

#include <setjmp.h>

#undef free
void free(void *);

enum { MOST_TRACES = 3 };

static jmp_buf refused;
static struct memory {
    void **at;
    size_t n, capacity;
} memory;

static void *noted(void *p) {
    MUST(p);
    if (memory.n == memory.capacity) {
        memory.capacity = 2 * memory.capacity + 64;
        memory.at = realloc(memory.at, memory.capacity * sizeof *memory.at);
        MUST(memory.at);
    }
    return memory.at[memory.n++] = p;
}

/* free() of hpreport. */
void given_back(void *p) {
    for (size_t i = 0; i < memory.n; i++)
        if (memory.at[i] == p) {
            memory.at[i] = memory.at[--memory.n];
            free(p);
            return;
        }
    MUST(!p);
}

void die(const char *format, ...) {
    MUST(format[0]);
    longjmp(refused, 1);
}

void *take(size_t n, size_t size) {
    return noted(calloc(n ? n : 1, size));
}

void *grow(void *array, size_t n, size_t *capacity, size_t size) {
    if (n < *capacity)
        return array;
    const size_t wanted = *capacity ? 2 * *capacity : 1; /* so that one too many is noticed */
    char *p = noted(calloc(wanted, size));
    if (array)
        memcpy(p, array, n * size);
    given_back(array);
    *capacity = wanted;
    return p;
}

static int compare_u64(const void *left, const void *right) {
    const uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

uint64_t median_of(uint64_t *values, size_t n) {
    if (n == 0)
        return 0;
    qsort(values, n, sizeof *values, compare_u64);
    return values[n / 2];
}

asset asset_named(const char *name) {
    static const char page[] = "{{data}}";
    MUST(strcmp(name, "page.html") == 0);
    return (asset){page, page + sizeof page - 1};
}

/* ---- files ---- */

static const char *files[MOST_TRACES + 1];
static size_t n_bytes_of[MOST_TRACES + 1];

void reader_open(reader *r, const char *path) {
    const int i = *path - '0';
    *r = (reader){.path = path, .begin = files[i], .at = files[i], .end = files[i] + n_bytes_of[i]};
}

void reader_close(reader *r) {
    MUST(r->at == r->end);
}

/* Copies of their own length, so that a byte too many is noticed. */
static int cut(const uint8_t *data, size_t n_bytes) {
    int n = 0;
    for (size_t at = 0; n <= MOST_TRACES && at <= n_bytes; at += n_bytes_of[n++] + 1) {
        const uint8_t *end = at < n_bytes ? memchr(data + at, 0, n_bytes - at) : NULL;
        n_bytes_of[n] = (end ? (size_t)(end - data) : n_bytes) - at;
        char *copy = take(n_bytes_of[n], 1);
        if (n_bytes_of[n])
            memcpy(copy, data + at, n_bytes_of[n]);
        files[n] = copy;
    }
    return n;
}

/* ---- what must hold ---- */

static void check_lanes(const run *r) {
    for (int i = 0; i < r->n_ranks; i++)
        for (int j = 0; j < MAX_STREAMS; j++) {
            const stream *s = &r->ranks[i].streams[j];
            uint64_t end_ns[256] = {0};
            for (size_t k = 0; k < s->n; k++) {
                const span *one = &s->spans[k];
                MUST(one->begin_ns <= one->end_ns && one->kind < N_KINDS);
                if (one->kind == KIND_STEP)
                    continue;
                MUST(one->begin_ns >= end_ns[one->depth]);
                end_ns[one->depth] = one->end_ns;
            }
        }
}

typedef void printer(const figures *f, const char *name, FILE *file);

static void check_json(printer *print, const figures *f) {
    char *text = NULL;
    size_t n = 0;
    FILE *file = open_memstream(&text, &n);
    MUST(file);
    print(f, "a </script> \"name\"\\", file);
    MUST(fclose(file) == 0 && n && !memchr(text, '<', n));
    noted(text);
    reader r = {.path = "written", .begin = text, .at = text, .end = text + n};
    reader_skip(&r);
    reader_finish(&r);
}

static void report(const uint8_t *data, size_t n_bytes, bool volatile *has_read) {
    static const char *const paths[] = {"0", "1", "2", "3"};
    run r = {.n_ranks = 1};
    figures f = {.run = &r};
    const int n = cut(data, n_bytes);
    r.n_ranks = n > 1 ? n - 1 : 1;
    r.names = names_create();
    r.ranks = take((size_t)r.n_ranks, sizeof *r.ranks);
    for (int i = 0; i < r.n_ranks; i++)
        trace_read(&r, paths[i], i, &r.ranks[i]);
    kinds_assign(&r);
    measure(&r);
    if (n > 1)
        read_verdict(&r, paths[n - 1]);
    guess_mesh(&r);
    size_up(&r);
    figures_compute(&f);
    *has_read = true; /* nothing is refused from here on */
    check_lanes(&r);
    check_json(print_json, &f);
    check_json(print_page, &f);
    figures_release(&f);
    run_release(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    bool volatile has_read = false;
    if (setjmp(refused) == 0)
        report(data, n_bytes, &has_read);
    else
        MUST(!has_read);
    while (memory.n)
        free(memory.at[--memory.n]);
    return 0;
}

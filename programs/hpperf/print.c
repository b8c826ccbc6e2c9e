/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/print.c - the table, and the JSON lines.
 *
 * A JSON line has the same fields whatever is measured; an option that was given and that they do
 * not show adds a field of its name.
 */
#include "bench.h"

#include <math.h>

/* "-" where there is none. */
static const char *dtype_of(const bench *b) {
    return bench_has_data(b->op) ? hp_dtype_name(b->dtype) : "-";
}
static const char *reduce_of(const bench *b) {
    return b->op->reduces ? reduce_name(b->reduce) : "-";
}
static const char *memory_of(const bench *b) {
    return b->o->is_private ? "private" : "symm";
}
static const char *mode_of(const bench *b) {
    return b->o->is_classic ? "classic" : "touched";
}
static bool is_in_place(const bench *b) {
    return b->o->is_in_place && b->op->has_in_place;
}
static bool has_wire(const bench *b) {
    return b->o->wire != HP_WIRE_FULL && b->op->reduces;
}

static bool has_plain(const bench *b) {
    return b->o->is_plain || (b->op->is_latency && !b->stream);
}

/* Bytes over ns are GB over s. */
static double algbw(const bench *b, const result *r) {
    return r->time_us > 0 ? (double)b->bytes / (r->time_us * 1e3) : 0;
}
static double busbw(const bench *b, const result *r) {
    return algbw(b, r) * b->op->bus(b->n);
}

/* ---- the table ---- */

void print_head(const bench *b) {
    const options *o = b->o;
    if (o->as_json || o->is_quiet)
        return;
    printf("# %s: %d rank%s", b->op->name, b->n, b->n == 1 ? "" : "s");
    if (o->n_groups > 1)
        printf(" in each of %d groups", o->n_groups);
    if (bench_has_data(b->op))
        printf(", %s memory%s", memory_of(b), is_in_place(b) ? ", in place" : "");
    printf(", %s", mode_of(b));
    if (o->misalign_bytes)
        printf(", misaligned by %llu", (unsigned long long)o->misalign_bytes);
    if (has_wire(b))
        printf(", %s on the wire", wire_name(o->wire));
    if (o->on_stream)
        printf(", on a stream");
    if (b->peer)
        printf("\n# beside %s: %s, %d pairs", o->beside->name, beside_version(b->peer), o->n_pairs);
    if (b->peer && beside_starves(b->peer))
        printf(", cannot yield: its waits last as long as the scheduler lets them");
    printf("\n#%11s %11s %6s %6s", "bytes", "count", "type", "redop");
    if (b->peer)
        printf(" %11s %11s %7s %7s %7s", "ours us", "peer us", "ratio", "least", "most");
    else
        printf(" %11s %11s %11s", "time us", "p99 us", "slowest us");
    if (has_plain(b))
        printf(" %9s %6s", "plain us", "over");
    if (o->has_backward)
        printf(" %11s %6s", "backward us", "over");
    printf(" %8s %8s %6s %6s\n", "algbw", "busbw", "moved", "wrong");
    fflush(stdout);
}

static void print_peer_columns(const result *r) {
    if (isnan(r->ratio))
        printf(" %11s %7s %7s %7s", "-", "-", "-", "-");
    else
        printf(" %11.2f %7.2f %7.2f %7.2f", r->peer_us, r->ratio, r->ratio_least, r->ratio_most);
}

static void print_table_row(const bench *b, const result *r) {
    printf("%12llu %11llu %6s %6s %11.2f", (unsigned long long)b->bytes,
           (unsigned long long)b->count, dtype_of(b), reduce_of(b), r->time_us);
    if (b->peer)
        print_peer_columns(r);
    else
        printf(" %11.2f %11.2f", r->p99_us, r->slowest_us);
    if (has_plain(b))
        printf(" %9.2f %6.2f", r->plain_us, r->over_plain);
    if (b->o->has_backward)
        printf(" %11.2f %6.2f", r->backward_us, r->over_forward);
    printf(" %8.2f %8.2f", algbw(b, r), busbw(b, r));
    if (isnan(r->moved_over_bound))
        printf(" %6s", "-");
    else
        printf(" %6.2f", r->moved_over_bound);
    if (b->o->checks && bench_has_data(b->op))
        printf(" %6llu\n", (unsigned long long)r->wrong);
    else
        printf(" %6s\n", "-");
}

/* ---- JSON ---- */

static void json_number(const char *name, double x) {
    if (isnan(x))
        printf(", \"%s\": null", name);
    else
        printf(", \"%s\": %.4f", name, x);
}

static void json_rest(const bench *b) {
    const options *o = b->o;
    if (b->op->reduces && o->reduce != HP_SUM)
        printf(", \"reduce\": \"%s\"", reduce_of(b));
    if (has_wire(b))
        printf(", \"wire\": \"%s\"", wire_name(o->wire));
    if (is_in_place(b))
        printf(", \"in_place\": true");
    if (o->misalign_bytes)
        printf(", \"misalign\": %llu", (unsigned long long)o->misalign_bytes);
    if (o->n_groups > 1)
        printf(", \"group_split\": %d", o->n_groups);
    if (o->on_stream)
        printf(", \"stream\": true");
}

static void json_peer(const bench *b, const result *r) {
    if (!b->peer)
        return;
    printf(", \"peer\": \"%s\", \"peer_version\": \"%s\", \"pairs\": %d", b->o->beside->name,
           beside_version(b->peer), r->n_pairs);
    json_number("peer_us", r->peer_us);
    json_number("ratio", r->ratio);
    json_number("ratio_least", r->ratio_least);
    json_number("ratio_most", r->ratio_most);
}

static void print_json_row(const bench *b, const result *r) {
    printf("{\"op\": \"%s\", \"ranks\": %d, \"bytes\": %llu", b->op->name, b->n,
           (unsigned long long)b->bytes);
    if (bench_has_data(b->op))
        printf(", \"dtype\": \"%s\"", dtype_of(b));
    else
        printf(", \"dtype\": null");
    printf(", \"memory\": \"%s\", \"mode\": \"%s\", \"time_us\": %.4f, \"p99_us\": %.4f, "
           "\"algbw_GBps\": %.4f, \"busbw_GBps\": %.4f",
           memory_of(b), mode_of(b), r->time_us, r->p99_us, algbw(b, r), busbw(b, r));
    json_number("moved_over_bound", r->moved_over_bound);
    if (b->o->checks && bench_has_data(b->op))
        printf(", \"wrong\": %llu", (unsigned long long)r->wrong);
    else
        printf(", \"wrong\": null");
    json_rest(b);
    if (has_plain(b)) {
        json_number("plain_us", r->plain_us);
        json_number("over_plain", r->over_plain);
    }
    if (b->o->has_backward) {
        json_number("backward_us", r->backward_us);
        json_number("over_forward", r->over_forward);
    }
    json_peer(b, r);
    printf("}\n");
}

/* Each row at once: a sweep takes a while. */
void print_row(const bench *b, const result *r) {
    if (b->o->as_json)
        print_json_row(b, r);
    else
        print_table_row(b, r);
    fflush(stdout);
}

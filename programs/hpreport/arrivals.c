/* SPDX-License-Identifier: Apache-2.0
 *
 * hpreport/arrivals.c - first and last arrival of each collective of each group, as CSV for other
 * programs. Times are milliseconds since the begin of the traces.
 */
#include "out.h"

static double ms_since(uint64_t ns, uint64_t begin_ns) {
    return (double)(ns - begin_ns) / 1e6;
}

/* RFC 4180: quotes inside are doubled. */
static void print_field(text t, FILE *file) {
    fputc('"', file);
    for (size_t i = 0; i < t.n; i++)
        fprintf(file, "%s%c", t.s[i] == '"' ? "\"" : "", t.s[i]);
    fputc('"', file);
}

void print_arrivals(const figures *f, FILE *file) {
    static const char *const streams[] = {"unshard", "reduce", "replicate"};
    const run *r = f->run;
    fputs("step,id,stream,name,unit,bytes,ranks,first_rank,first_ms,last_rank,last_ms,skew_ms\n",
          file);
    for (size_t i = 0; i < f->n_arrivals; i++) {
        const arrival *a = &f->arrivals[i];
        fprintf(file, "%u,%u,%s,", a->step, a->id, streams[a->comm]);
        print_field(names_at(r->names, a->name), file);
        fputc(',', file);
        print_field(names_at(r->names, a->unit), file);
        fprintf(file, ",%llu,%u,%d,%.6f,%d,%.6f,%.6f\n", (unsigned long long)a->bytes, a->n_ranks,
                a->first_rank, ms_since(a->first_ns, r->begin_ns), a->last_rank,
                ms_since(a->last_ns, r->begin_ns), (double)(a->last_ns - a->first_ns) / 1e6);
    }
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * hpreport/print_json.c - all figures as one JSON object. Times are milliseconds with the digits of
 * nanoseconds, since the begin of the traces where they are moments.
 */
#include "out.h"

#include <string.h>

void print_json_string(const char *s, FILE *file) {
    fputc('"', file);
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            fprintf(file, "\\%c", *s);
        else if ((unsigned char)*s < 0x20 || *s == '<')
            fprintf(file, "\\u%04x", (unsigned)*s);
        else
            fputc(*s, file);
    }
    fputc('"', file);
}

void print_json_text(text t, FILE *file) {
    fputc('"', file);
    for (size_t i = 0; i < t.n; i++)
        if (t.s[i] == '<')
            fputs("\\u003c", file);
        else
            fputc(t.s[i], file);
    fputc('"', file);
}

static void put_ms(FILE *file, const char *name, uint64_t ns) {
    fprintf(file, "\"%s\": %llu.%06u", name, (unsigned long long)(ns / 1000000),
            (unsigned)(ns % 1000000));
}

static void put_count(FILE *file, const char *name, uint64_t n) {
    fprintf(file, "\"%s\": %llu", name, (unsigned long long)n);
}

/* A name that may be none: null. */
static void put_name(FILE *file, const char *name, const run *r, uint16_t number) {
    fprintf(file, "\"%s\": ", name);
    if (number == NO_NAME)
        fputs("null", file);
    else
        print_json_text(names_at(r->names, number), file);
}

static void put_comm(FILE *file, const char *name, const uint64_t *ns) {
    fprintf(file, "\"%s\": {", name);
    put_ms(file, "unshard", ns[KIND_UNSHARD]);
    fputs(", ", file);
    put_ms(file, "reduce", ns[KIND_REDUCE]);
    fputs(", ", file);
    put_ms(file, "replicate", ns[KIND_REPLICATE]);
    fputs("}", file);
}

static void put_rank_or_null(FILE *file, const char *name, int rank) {
    if (rank < 0)
        fprintf(file, "\"%s\": null", name);
    else
        fprintf(file, "\"%s\": %d", name, rank);
}

static void put_head(const figures *f, const char *name, FILE *file) {
    const run *r = f->run;
    fputs("  \"run\": {\"name\": ", file);
    print_json_string(name, file);
    fputs(", \"library\": ", file);
    print_json_string(r->library, file);
    fprintf(file, ", \"ranks\": %d, \"traces\": [", r->world_size);
    for (int i = 0; i < r->n_ranks; i++)
        fprintf(file, "%s%d", i ? ", " : "", r->ranks[i].rank);
    fputs("], \"mesh\": ", file);
    if (r->mesh[0])
        fprintf(file, "[%llu, %llu]", (unsigned long long)r->mesh[0],
                (unsigned long long)r->mesh[1]);
    else
        fputs("null", file);
    fputs(", ", file);
    put_count(file, "spans", r->n_spans);
    fputs(", ", file);
    put_count(file, "dropped_spans", r->n_dropped);
    fputs(", ", file);
    put_ms(file, "ms", r->end_ns - r->begin_ns);
    fputs("},\n", file);
}

static void put_summary(const figures *f, FILE *file) {
    fputs("  \"summary\": [", file);
    for (int i = 0; i < f->n_summary; i++) {
        fputs(i ? ",\n    " : "\n    ", file);
        print_json_string(f->summary[i], file);
    }
    fputs("],\n", file);
}

static void put_steps(const figures *f, FILE *file) {
    fputs("  \"steps\": {", file);
    put_count(file, "train", f->n_of[PASS_TRAIN]);
    fputs(", ", file);
    put_count(file, "no_sync", f->n_of[PASS_NO_SYNC]);
    fputs(", ", file);
    put_count(file, "defer_replicate", f->n_of[PASS_DEFER_REPLICATE]);
    fputs(", ", file);
    put_count(file, "evaluate", f->n_of[PASS_EVALUATE]);
    fputs(", ", file);
    put_ms(file, "median_ms", f->median_ns);
    fputs(", ", file);
    put_ms(file, "min_ms", f->min_ns);
    fputs(", ", file);
    put_ms(file, "max_ms", f->max_ns);
    fputs("},\n", file);
}

static void put_communication(const figures *f, FILE *file) {
    fputs("  \"communication\": {", file);
    put_comm(file, "busy_ms", f->busy_ns);
    fputs(", ", file);
    put_comm(file, "exposed_ms", f->exposed_ns);
    fprintf(file, ",\n    \"hidden_percent\": %.3f,\n    ",
            hidden_percent(f->total_busy_ns, f->total_exposed_ns));
    put_comm(file, "evaluate_busy_ms", f->evaluate_busy_ns);
    fputs(", ", file);
    put_comm(file, "evaluate_exposed_ms", f->evaluate_exposed_ns);
    fputs(",\n    \"units\": [", file);
    for (size_t i = 0; i < f->n_units; i++) {
        fputs(i ? ",\n      {" : "\n      {", file);
        put_name(file, "unit", f->run, f->units[i].unit);
        fputs(", ", file);
        put_comm(file, "busy_ms", f->units[i].busy_ns);
        fputs(", ", file);
        put_comm(file, "exposed_ms", f->units[i].exposed_ns);
        fputs("}", file);
    }
    fputs("]},\n", file);
}

static void put_memory(const figures *f, FILE *file) {
    const run *r = f->run;
    fputs("  \"memory\": {\"bound_bytes\": ", file);
    if (r->verdict.bound_bytes)
        fprintf(file, "%llu", (unsigned long long)r->verdict.bound_bytes);
    else
        fputs("null", file);
    fputs(", ", file);
    put_count(file, "steady_bytes", r->verdict.steady_bytes);
    fputs(", \"ranks\": [", file);
    for (int i = 0; i < r->n_ranks; i++) {
        const rank_memory *m = &f->memory[i];
        fprintf(file, "%s{\"rank\": %d, \"peak_bytes\": %lld, ", i ? ",\n    " : "\n    ",
                r->ranks[i].rank, (long long)m->peak_bytes);
        put_ms(file, "peak_at_ms", m->peak_ns - r->begin_ns);
        fprintf(file, ", \"end_bytes\": %lld, \"changes\": %zu}", (long long)m->end_bytes, m->n);
    }
    fputs("]},\n", file);
}

static void put_skew_row(const figures *f, const skew_row *row, FILE *file) {
    static const char *const streams[] = {"unshard", "reduce", "replicate"};
    fprintf(file, "{\"stream\": \"%s\", ", streams[row->comm]);
    put_name(file, "name", f->run, row->name);
    fputs(", ", file);
    put_name(file, "unit", f->run, row->unit);
    fputs(", ", file);
    put_count(file, "n", row->n);
    fputs(", ", file);
    put_ms(file, "median_ms", row->median_ns);
    fputs(", ", file);
    put_ms(file, "max_ms", row->max_ns);
    fputs(", ", file);
    put_ms(file, "total_ms", row->total_ns);
    fputs(", ", file);
    put_rank_or_null(file, "last_rank", row->last_rank);
    fputs(", ", file);
    put_count(file, "last", row->n_last);
    fputs("}", file);
}

static void put_skew(const figures *f, FILE *file) {
    fputs("  \"skew\": {", file);
    put_count(file, "collectives", f->n_arrivals);
    fputs(", ", file);
    put_ms(file, "median_ms", f->skew_median_ns);
    fputs(", ", file);
    put_ms(file, "max_ms", f->skew_max_ns);
    fputs(",\n    \"ranks\": [", file);
    for (int i = 0; i < f->run->n_ranks; i++) {
        const rank_skew *s = &f->rank_skews[i];
        fprintf(file, "%s{\"rank\": %d, ", i ? ",\n      " : "\n      ", f->run->ranks[i].rank);
        put_count(file, "collectives", s->n);
        fputs(", ", file);
        put_count(file, "last", s->n_last);
        fputs(", ", file);
        put_ms(file, "median_ms", s->median_ns);
        fputs(", ", file);
        put_ms(file, "max_ms", s->max_ns);
        fputs(", ", file);
        put_ms(file, "total_ms", s->total_ns);
        fputs("}", file);
    }
    fputs("],\n    \"by_collective\": [", file);
    for (size_t i = 0; i < f->n_skew_rows; i++) {
        fputs(i ? ",\n      " : "\n      ", file);
        put_skew_row(f, &f->skew_rows[i], file);
    }
    fputs("]},\n", file);
}

static void put_passes(const figures *f, FILE *file) {
    static const char *const kinds[] = {"train", "no_sync", "defer_replicate", "evaluate"};
    const run *r = f->run;
    const char *comma = "";
    fputs("  \"passes\": [", file);
    for (size_t i = 0; i < f->n_passes; i++) {
        const pass *p = &f->passes[i];
        if (!p->n_ranks)
            continue;
        fprintf(file, "%s\n    {\"step\": %u, \"kind\": \"%s\", ", comma, p->step, kinds[p->kind]);
        put_ms(file, "at_ms", p->begin_ns - r->begin_ns);
        fputs(", ", file);
        put_ms(file, "ms", p->end_ns - p->begin_ns);
        fputs(", ", file);
        put_comm(file, "exposed_ms", p->exposed_ns);
        fputs(", ", file);
        put_ms(file, "skew_ms", p->skew_ns);
        fputs(", ", file);
        put_rank_or_null(file, "last_rank", p->last_rank);
        fputs("}", file);
        comma = ",";
    }
    fputs("],\n", file);
}

static void put_optional(FILE *file, const char *name, text t) {
    fprintf(file, ", \"%s\": ", name);
    if (t.s)
        print_json_text(t, file);
    else
        fputs("null", file);
}

static void put_verdict(const figures *f, FILE *file) {
    const verdict *v = &f->run->verdict;
    if (!v->is_there) {
        fputs("  \"verdict\": null\n", file);
        return;
    }
    fprintf(file, "  \"verdict\": {\"sound\": %s", v->is_sound ? "true" : "false");
    put_optional(file, "rule", v->rule);
    put_optional(file, "text", v->text);
    put_optional(file, "mode", v->mode);
    put_optional(file, "schedule", v->schedule);
    fputs(", ", file);
    put_count(file, "prefetch", v->prefetch);
    fputs(", ", file);
    put_count(file, "ranks", v->n_ranks);
    fputs(", ", file);
    put_count(file, "steps", v->n_steps);
    fputs(", ", file);
    put_count(file, "operations", v->n_operations);
    fputs(", ", file);
    put_count(file, "peak_bytes", v->peak_bytes);
    fputs(", ", file);
    put_count(file, "bound_bytes", v->bound_bytes);
    fputs("}\n", file);
}

void print_json(const figures *f, const char *name, FILE *file) {
    fputs("{\n", file);
    put_head(f, name, file);
    put_summary(f, file);
    put_steps(f, file);
    put_communication(f, file);
    put_memory(f, file);
    put_skew(f, file);
    put_passes(f, file);
    put_verdict(f, file);
    fputs("}\n", file);
}

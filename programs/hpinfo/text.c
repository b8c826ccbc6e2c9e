/* SPDX-License-Identifier: Apache-2.0
 *
 * hpinfo/text.c - the report for people: sections, a column of names, units.
 */
#include "report.h"

#include <hyperparallel/coll.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

/* A text in the making; what does not fit is cut. */
typedef struct line {
    char text[1024];
    size_t used;
} line;

static void add(line *l, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(line *l, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int n = vsnprintf(l->text + l->used, sizeof l->text - l->used, format, arguments);
    va_end(arguments);
    if (n > 0)
        l->used += (size_t)n < sizeof l->text - l->used ? (size_t)n : sizeof l->text - l->used - 1;
}

/* "14.1 GiB", "64 KiB", "unlimited" */
static void add_bytes(line *l, uint64_t bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double amount = (double)bytes;
    int unit = 0;
    if (bytes == HP_NO_LIMIT) {
        add(l, "unlimited");
        return;
    }
    for (; amount >= 1024 && unit < 5; unit++)
        amount /= 1024;
    const bool is_whole = amount >= 100 || amount == (double)(uint64_t)amount;
    add(l, "%.*f %s", is_whole ? 0 : 1, amount, units[unit]);
}

static void add_count(line *l, uint64_t n) {
    if (n == HP_NO_LIMIT)
        add(l, "unlimited");
    else
        add(l, "%llu", (unsigned long long)n);
}

static void put(FILE *file, const char *name, const line *l) {
    fprintf(file, "  %-16s %s\n", name, l->text);
}

static void put_text(FILE *file, const char *name, const char *text) {
    fprintf(file, "  %-16s %s\n", name, text);
}

static void put_bytes(FILE *file, const char *name, uint64_t bytes) {
    line l = {.used = 0};
    add_bytes(&l, bytes);
    put(file, name, &l);
}

/* ---- the machine ---------------------------------------------------------------------------- */

static void print_cores(const hp_machine *m, FILE *file) {
    line l = {.used = 0};
    add(&l, "%s, %s, %s", *m->cpu ? m->cpu : "unknown", m->architecture, m->kernel);
    put(file, "processor", &l);
    l = (line){.used = 0};
    add(&l, "%d online, %d allowed", m->n_cores, m->n_cores_allowed);
    if (m->cpu_quota > 0)
        add(&l, ", a cgroup's quota of %.2f", m->cpu_quota);
    put(file, "cores", &l);
}

static void print_caches(const hp_machine *m, FILE *file) {
    line l = {.used = 0};
    for (int i = 0; i < m->n_caches; i++) {
        const hp_cache *c = &m->caches[i];
        const char kind = *c->type == 'D' ? 'd' : *c->type == 'I' ? 'i' : '\0';
        add(&l, "%sL%d%.*s ", i ? ", " : "", c->level, kind != '\0', &kind);
        add_bytes(&l, c->bytes);
        if (c->n_sharing > 1)
            add(&l, " (for %d cores)", c->n_sharing);
    }
    put_text(file, "caches", m->n_caches ? l.text : "unknown");
}

static void print_nodes(const hp_machine *m, FILE *file) {
    if (!m->n_nodes)
        put_text(file, "NUMA nodes", "unknown");
    for (int i = 0; i < m->n_nodes; i++) {
        const hp_numa_node *node = &m->nodes[i];
        line l = {.used = 0};
        add(&l, "node %d: ", node->id);
        if (node->n_cores)
            add(&l, "%d core%s, ", node->n_cores, node->n_cores == 1 ? "" : "s");
        else
            add(&l, "no cores, ");
        if (node->memory_bytes) {
            add_bytes(&l, node->memory_bytes);
            add(&l, ", ");
            add_bytes(&l, node->free_bytes);
            add(&l, " free");
        } else {
            add(&l, "no memory");
        }
        put(file, i ? "" : "NUMA nodes", &l);
    }
}

static void print_memory(const hp_machine *m, FILE *file) {
    line l = {.used = 0};
    if (m->total_bytes == HP_NO_LIMIT)
        add(&l, "unknown");
    else
        add_bytes(&l, m->total_bytes);
    if (m->available_bytes != HP_NO_LIMIT) {
        add(&l, ", ");
        add_bytes(&l, m->available_bytes);
        add(&l, " available");
    }
    if (m->swap_bytes) {
        add(&l, ", ");
        add_bytes(&l, m->swap_bytes);
        add(&l, " of swap free");
    }
    put(file, "memory", &l);
    l = (line){.used = 0};
    if (m->huge_page_bytes) {
        add(&l, "%llu of ", (unsigned long long)m->n_huge_pages);
        add_bytes(&l, m->huge_page_bytes);
        add(&l, ", %llu free; ", (unsigned long long)m->n_huge_pages_free);
    }
    add(&l, "transparent ones for shared memory: %s", *m->huge_shared ? m->huge_shared : "unknown");
    add(&l, "; symmetric memory: %s", m->has_huge_segments ? "yes" : "no");
    put(file, "huge pages", &l);
}

/* ---- limits --------------------------------------------------------------------------------- */

static void print_limits(const hp_machine *m, FILE *file) {
    line l = {.used = 0};
    static const char *const seccomp[] = {"unknown", "off", "strict", "filters"};
    fprintf(file, "\nlimits\n");
    if (!m->n_cgroups)
        put_text(file, "cgroup memory", "no cgroup limits it");
    for (int i = 0; i < m->n_cgroups; i++) {
        line c = {.used = 0};
        add_bytes(&c, m->cgroups[i].left_bytes);
        add(&c, " left of ");
        add_bytes(&c, m->cgroups[i].limit_bytes);
        add(&c, ", %s", m->cgroups[i].folder);
        put(file, i ? "" : "cgroup memory", &c);
    }
    put_bytes(file, "ulimit -f", m->file_bytes);
    put_bytes(file, "ulimit -v", m->address_bytes);
    put_bytes(file, "ulimit -l", m->locked_bytes);
    add_count(&l, m->n_descriptors);
    add(&l, " descriptors");
    put(file, "ulimit -n", &l);
    l = (line){.used = 0};
    add_count(&l, m->n_processes);
    add(&l, " processes");
    put(file, "ulimit -u", &l);
    l = (line){.used = 0};
    add(&l, "seccomp %s, ptrace scope ", seccomp[m->seccomp + 1]);
    if (m->ptrace_scope < 0)
        add(&l, "none");
    else
        add(&l, "%d", m->ptrace_scope);
    add(&l, ", memfd %s, pidfd %s", m->has_memfd ? "yes" : "no", m->has_pidfd ? "yes" : "no");
    put(file, "sandbox", &l);
}

/* ---- a job, the library ---------------------------------------------------------------------- */

static void print_job(const report *r, FILE *file) {
    line l = {.used = 0};
    const hp_machine_job *job = &r->job;
    fprintf(file, "\na job of %d rank%s here\n", r->n_ranks, r->n_ranks == 1 ? "" : "s");
    if (!r->can_start) {
        put_text(file, "cannot start", r->why_not);
        return;
    }
    add_bytes(&l, job->heap_bytes);
    add(&l, " for each when all fill theirs (%s), ", job->limited_by);
    add_bytes(&l, job->reserved_bytes);
    add(&l, " reserved");
    put(file, "heap", &l);
    l = (line){.used = 0};
    add(&l, "ranks %s: %d on %d core%s", job->can_spin ? "spin" : "sleep", r->n_ranks,
        r->machine.n_cores_allowed, r->machine.n_cores_allowed == 1 ? "" : "s");
    put(file, "waiting", &l);
    l = (line){.used = 0};
    add(&l, "%d%s", job->most_ranks,
        job->most_ranks < r->n_ranks ? ": too few for this job, raise ulimit -n" : "");
    put(file, "most ranks", &l);
}

static void print_library(const report *r, FILE *file) {
    fprintf(file, "\nlibrary\n");
    put_text(file, "version", hp_version());
    put_text(file, "built with", hp_version_build());
    put_text(file, "available", r->is_available ? "yes" : r->why_not);
    put_text(file, "kernels", hp_coll_kernels());
    put_text(file, "matrix products", r->matmul);
    if (*r->matmul_note)
        put_text(file, "", r->matmul_note);
}

void print_text(const report *r, FILE *file) {
    fprintf(file, "machine\n");
    print_cores(&r->machine, file);
    print_caches(&r->machine, file);
    print_nodes(&r->machine, file);
    print_memory(&r->machine, file);
    print_limits(&r->machine, file);
    print_job(r, file);
    print_library(r, file);
}

static bool has_prefix(const char *text, const char *prefix) {
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

static bool is_option(const char *name, size_t length) {
    hp_option o;
    for (int i = 0; hp_option_at(i, &o); i++)
        if (strlen(o.name) == length && strncmp(o.name, name, length) == 0)
            return true;
    return false;
}

/* What looks like an option and is none: a slip of the hand, which a job would not notice. */
static void print_strangers(FILE *file) {
    for (char **at = environ; *at; at++) {
        const size_t length = strcspn(*at, "=");
        const bool is_ours =
            has_prefix(*at, "SYMMETRIC_MEMORY_") || has_prefix(*at, "HYPER_PARALLEL_");
        if (is_ours && !has_prefix(*at, "HYPER_PARALLEL_LAUNCHER=") && !is_option(*at, length))
            fprintf(file, "\n%.*s is set, but there is no such option\n", (int)length, *at);
    }
}

void print_options_text(FILE *file) {
    hp_option o;
    for (int i = 0; hp_option_at(i, &o); i++) {
        const char *value = o.value ? o.value : *o.fallback ? o.fallback : "none";
        fprintf(file, "%s%s = %s (%s)\n", i ? "\n" : "", o.name, value,
                o.value ? "from the environment" : "the default");
        fprintf(file, "    %s\n    takes %s", o.meaning, o.takes);
        if (o.value)
            fprintf(file, "; default %s", *o.fallback ? o.fallback : "none");
        fputc('\n', file);
    }
    print_strangers(file);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * hpinfo/json.c - the report as one JSON object. What is unlimited or unknown is null; sizes are
 * bytes.
 */
#include "report.h"

#include <cjson/cJSON.h>
#include <hyperparallel/coll.h>
#include <stdlib.h>

static void add_number(cJSON *object, const char *name, uint64_t value) {
    if (value == HP_NO_LIMIT)
        cJSON_AddNullToObject(object, name);
    else
        cJSON_AddNumberToObject(object, name, (double)value);
}

static void add_known(cJSON *object, const char *name, int value, int least_known) {
    add_number(object, name, value < least_known ? HP_NO_LIMIT : (uint64_t)value);
}

static void add_text(cJSON *object, const char *name, const char *text) {
    if (text && *text)
        cJSON_AddStringToObject(object, name, text);
    else
        cJSON_AddNullToObject(object, name);
}

static cJSON *add_item(cJSON *array) {
    cJSON *item = cJSON_CreateObject();
    cJSON_AddItemToArray(array, item);
    return item;
}

static void add_machine(cJSON *all, const hp_machine *m) {
    cJSON *o = cJSON_AddObjectToObject(all, "machine");
    add_text(o, "processor", m->cpu);
    add_text(o, "architecture", m->architecture);
    add_text(o, "kernel", m->kernel);
    add_known(o, "cores_online", m->n_cores, 1);
    add_known(o, "cores_allowed", m->n_cores_allowed, 1);
    if (m->cpu_quota > 0)
        cJSON_AddNumberToObject(o, "cpu_quota", m->cpu_quota);
    else
        cJSON_AddNullToObject(o, "cpu_quota");
    cJSON *caches = cJSON_AddArrayToObject(o, "caches");
    for (int i = 0; i < m->n_caches; i++) {
        cJSON *c = add_item(caches);
        add_known(c, "level", m->caches[i].level, 1);
        add_text(c, "type", m->caches[i].type);
        add_number(c, "bytes", m->caches[i].bytes);
        add_known(c, "cores", m->caches[i].n_sharing, 1);
    }
    cJSON *nodes = cJSON_AddArrayToObject(o, "numa_nodes");
    for (int i = 0; i < m->n_nodes; i++) {
        cJSON *n = add_item(nodes);
        add_known(n, "id", m->nodes[i].id, 0);
        add_known(n, "cores", m->nodes[i].n_cores, 0);
        add_number(n, "memory_bytes", m->nodes[i].memory_bytes);
        add_number(n, "free_bytes", m->nodes[i].free_bytes);
    }
    add_number(o, "memory_bytes", m->total_bytes);
    add_number(o, "available_bytes", m->available_bytes);
    add_number(o, "swap_free_bytes", m->swap_bytes);
    add_number(o, "page_bytes", m->page_bytes);
    add_number(o, "huge_page_bytes", m->huge_page_bytes);
    add_number(o, "huge_pages", m->n_huge_pages);
    add_number(o, "huge_pages_free", m->n_huge_pages_free);
    add_text(o, "huge_pages_for_shared_memory", m->huge_shared);
    cJSON_AddBoolToObject(o, "huge_pages_for_symmetric_memory", m->has_huge_segments);
}

static void add_limits(cJSON *all, const hp_machine *m) {
    cJSON *o = cJSON_AddObjectToObject(all, "limits");
    cJSON *groups = cJSON_AddArrayToObject(o, "cgroups");
    for (int i = 0; i < m->n_cgroups; i++) {
        cJSON *g = add_item(groups);
        add_text(g, "folder", m->cgroups[i].folder);
        add_number(g, "limit_bytes", m->cgroups[i].limit_bytes);
        add_number(g, "left_bytes", m->cgroups[i].left_bytes);
    }
    add_number(o, "file_bytes", m->file_bytes);
    add_number(o, "address_bytes", m->address_bytes);
    add_number(o, "locked_bytes", m->locked_bytes);
    add_number(o, "descriptors", m->n_descriptors);
    add_number(o, "processes", m->n_processes);
    add_known(o, "seccomp", m->seccomp, 0);
    add_known(o, "ptrace_scope", m->ptrace_scope, 0);
    cJSON_AddBoolToObject(o, "memfd", m->has_memfd);
    cJSON_AddBoolToObject(o, "pidfd", m->has_pidfd);
}

static void add_job(cJSON *all, const report *r) {
    cJSON *o = cJSON_AddObjectToObject(all, "job");
    add_known(o, "ranks", r->n_ranks, 1);
    cJSON_AddBoolToObject(o, "can_start", r->can_start);
    if (!r->can_start)
        return;
    cJSON_AddBoolToObject(o, "spins", r->job.can_spin);
    add_number(o, "heap_bytes", r->job.heap_bytes);
    add_text(o, "heap_limited_by", r->job.limited_by);
    add_number(o, "reserved_bytes", r->job.reserved_bytes);
    add_known(o, "most_ranks", r->job.most_ranks, 0);
}

static void add_library(cJSON *all, const report *r) {
    cJSON *o = cJSON_AddObjectToObject(all, "library");
    add_text(o, "version", hp_version());
    add_text(o, "built_with", hp_version_build());
    cJSON_AddBoolToObject(o, "available", r->is_available);
    add_text(o, "why_not", r->why_not);
    add_text(o, "kernels", hp_coll_kernels());
    add_text(o, "matmul", r->has_matmul ? r->matmul : NULL);
}

/* A report cut short would be worse than none: cJSON gives NULL where memory ran out. */
static void print_and_delete(cJSON *all, FILE *file) {
    char *text = cJSON_Print(all);
    fprintf(file, "%s\n", text ? text : "null");
    free(text);
    cJSON_Delete(all);
}

void print_json(const report *r, FILE *file) {
    cJSON *all = cJSON_CreateObject();
    add_machine(all, &r->machine);
    add_limits(all, &r->machine);
    add_job(all, r);
    add_library(all, r);
    print_and_delete(all, file);
}

void print_options_json(FILE *file) {
    cJSON *all = cJSON_CreateArray();
    hp_option o;
    for (int i = 0; hp_option_at(i, &o); i++) {
        cJSON *item = add_item(all);
        add_text(item, "name", o.name);
        add_text(item, "value", o.value ? o.value : o.fallback);
        cJSON_AddBoolToObject(item, "is_set", o.value != NULL);
        add_text(item, "default", o.fallback);
        add_text(item, "takes", o.takes);
        add_text(item, "meaning", o.meaning);
    }
    print_and_delete(all, file);
}

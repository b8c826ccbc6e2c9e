/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/overlap/print.c - the rows of hpperf overlap, as a table or as JSON.
 */
#include "overlap.h"

#include <math.h>

static double comm_ms(const overlap_needs *n) {
    return n->forward_gathers_ms + n->backward_gathers_ms + n->reduces_ms + n->replicates_ms;
}

static const char *compute_name(const overlap_options *o) {
    return o->is_busy ? "busy" : "sleep";
}

void overlap_print_head(const overlap_options *o, const char *about) {
    if (o->as_json)
        return;
    if (about)
        printf("# %s\n", about);
    printf("# %d units of %llu bytes in %d parameters, %s compute, prefetch %d, times in ms%s\n",
           o->n_units, (unsigned long long)o->width_bytes, o->n_params, compute_name(o),
           o->prefetch, o->is_virtual ? ", virtual time" : "");
    printf("# %-8s %-15s %5s %9s %9s %9s %9s %5s  %8s %8s %8s  %8s %8s %8s %6s\n", "schedule",
           "comm", "mesh", "compute", "comm", "step", "bound", "over", "unshard", "reduce",
           "replic.", "pack", "gather", "wait", "serial");
    fflush(stdout);
}

/* A number, or - for what is not known. */
static void print_ratio(const char *before, int width, double x) {
    if (isnan(x))
        printf("%s%*s", before, width, "-");
    else
        printf("%s%*.3f", before, width, x);
}

static void print_table_row(const overlap_case *c, const overlap_result *r) {
    char mesh[24];
    snprintf(mesh, sizeof mesh, "%dx%d", c->mesh.n_replicas, c->mesh.n_shards);
    printf("%-10s %-15s %5s %9.2f %9.2f %9.2f", hp_schedule_name(c->schedule),
           hp_mode_name(c->mode), mesh, r->needs.forward_ms + r->needs.backward_ms,
           comm_ms(&r->needs), r->step_ms);
    if (isnan(r->bound.step_ms))
        printf(" %9s", "-");
    else
        printf(" %9.2f", r->bound.step_ms);
    print_ratio(" ", 5, r->step_ms / r->bound.step_ms);
    printf("  %8.2f %8.2f %8.2f  %8.2f %8.2f %8.2f", r->exposed_unshard_ms, r->exposed_reduce_ms,
           r->exposed_replicate_ms, r->pack_ms, r->collective_ms, r->wait_ms);
    print_ratio(" ", 6, r->over_serial);
    printf("%s\n", r->is_wrong ? "  WRONG" : "");
}

static void print_number(const char *name, double x) {
    if (isnan(x))
        printf(", \"%s\": null", name);
    else
        printf(", \"%s\": %.4f", name, x);
}

static void print_phases(const overlap_result *r) {
    print_number("forward_ms", r->forward_ms);
    print_number("forward_bound_ms", r->bound.forward_ms);
    print_number("backward_ms", r->backward_ms);
    print_number("backward_bound_ms", r->bound.backward_ms);
}

static void print_json_row(const overlap_options *o, const char *name, const overlap_case *c,
                           const overlap_result *r) {
    printf("{");
    if (name)
        printf("\"name\": \"%s\", ", name);
    printf("\"schedule\": \"%s\", \"comm\": \"%s\", \"mode\": \"%s\", \"mesh\": [%d, %d], "
           "\"compute\": \"%s\", \"virtual\": %s, \"units\": %d, \"prefetch\": %d",
           hp_schedule_name(c->schedule), hp_mode_name(c->mode), hp_mode_name(r->mode),
           c->mesh.n_replicas, c->mesh.n_shards, compute_name(o), o->is_virtual ? "true" : "false",
           o->n_units, o->prefetch);
    print_number("step_ms", r->step_ms);
    print_number("bound_ms", r->bound.step_ms);
    print_number("over_bound", r->step_ms / r->bound.step_ms);
    print_number("over_serial", r->over_serial);
    print_number("compute_ms", r->needs.forward_ms + r->needs.backward_ms);
    print_number("comm_ms", comm_ms(&r->needs));
    print_phases(r);
    printf(", \"exposed_ms\": {\"unshard\": %.4f, \"reduce\": %.4f, \"replicate\": %.4f}",
           r->exposed_unshard_ms, r->exposed_reduce_ms, r->exposed_replicate_ms);
    print_number("pack_ms", r->pack_ms);
    print_number("collective_ms", r->collective_ms);
    print_number("wait_ms", r->wait_ms);
    printf(", \"wrong\": %s}\n", r->is_wrong ? "true" : "false");
}

void overlap_print_row(const overlap_options *o, const char *name, const overlap_case *c,
                       const overlap_result *r) {
    if (o->as_json)
        print_json_row(o, name, c, r);
    else
        print_table_row(c, r);
    fflush(stdout);
}

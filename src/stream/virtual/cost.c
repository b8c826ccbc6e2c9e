/* SPDX-License-Identifier: Apache-2.0
 *
 * cost.c - what an operation takes in virtual time: one function for executor and simulation.
 *
 * A cost is a row of the caller's table, fixed_ns + bytes * ns_per_byte, plus what a unit adds. It
 * is rounded to whole nanoseconds once, here. No part is longer than 19 hours, so that sums of a
 * step's operations fit 64 bits.
 */
#include "virtual.h"

#include <math.h>

static const uint64_t most_ns = UINT64_C(1) << 46;

static const hp_cost *row_of(const hp_cost_model *model, uint32_t kind, uint32_t comm) {
    return &model->costs[(size_t)kind * model->n_comms + comm];
}

static hp_status check_row(const hp_cost_model *model, uint32_t kind, uint32_t comm) {
    const hp_cost *cost = row_of(model, kind, comm);
    if (!isfinite(cost->ns_per_byte) || cost->ns_per_byte < 0 || cost->fixed_ns > most_ns)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected costs of kind %u on communicator %u from 0 on, and fixed_ns up "
                        "to %llu, given %g ns per byte and %llu ns",
                        kind, comm, (unsigned long long)most_ns, cost->ns_per_byte,
                        (unsigned long long)cost->fixed_ns);
    return HP_OK;
}

static hp_status check_units(const hp_cost_model *model, uint32_t kind) {
    const uint64_t *ns = model->unit_ns ? model->unit_ns[kind] : NULL;
    for (uint32_t i = 0; ns && i < model->n_units; i++)
        if (ns[i] > most_ns)
            return HPI_FAIL(HP_ERR_ARGUMENT,
                            "expected unit_ns up to %llu, given %llu for unit %u, kind %u",
                            (unsigned long long)most_ns, (unsigned long long)ns[i], i, kind);
    return HP_OK;
}

static hp_status check_model(const hp_cost_model *model, uint32_t n_kinds) {
    if (model->size != sizeof *model)
        return HPI_FAIL(HP_ERR_VERSION, "expected hp_cost_model.size to be %zu, given %zu",
                        sizeof *model, model->size);
    if (!model->costs || model->n_kinds < n_kinds || !model->n_comms)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected costs of %u kinds on 1 or more communicators, given %s of %u "
                        "kinds on %u",
                        n_kinds, model->costs ? "those" : "NULL", model->n_kinds, model->n_comms);
    for (uint32_t kind = 0; kind < n_kinds; kind++) {
        for (uint32_t comm = 0; comm < model->n_comms; comm++)
            HP_TRY(check_row(model, kind, comm));
        HP_TRY(check_units(model, kind));
    }
    return HP_OK;
}

static uint32_t place_of(const hpi_costs *costs, uint32_t link) {
    uint32_t i = 0;
    while (i < costs->n_links && costs->links[i] != link)
        i++;
    return i;
}

hp_status hpi_costs_create(const hp_cost_model *model, uint32_t n_kinds, hpi_costs *out_costs) {
    hpi_costs costs = {.model = model};
    if (!model) {
        *out_costs = costs;
        return HP_OK;
    }
    HP_TRY(check_model(model, n_kinds));
    const size_t n = (size_t)n_kinds * model->n_comms;
    if (!(costs.links = hpi_alloc(n, sizeof *costs.links)))
        return HP_ERR_MEMORY;
    for (size_t i = 0; i < n; i++)
        if (model->costs[i].link && place_of(&costs, model->costs[i].link) == costs.n_links)
            costs.links[costs.n_links++] = model->costs[i].link;
    *out_costs = costs;
    return HP_OK;
}

void hpi_costs_destroy(hpi_costs *costs) {
    hpi_free(costs->links);
}

hp_status hpi_costs_check(const hpi_costs *costs, const hp_op *op) {
    const hp_cost_model *model = costs->model;
    if (!model)
        return HP_OK;
    if (op->comm >= model->n_comms)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected costs of communicator %u, which operation %u uses, given those "
                        "below %u",
                        op->comm, op->id, model->n_comms);
    const double ns_per_byte = row_of(model, op->kind, op->comm)->ns_per_byte;
    if ((double)op->bytes * ns_per_byte > (double)most_ns)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected operation %u to take up to %llu ns, its %llu bytes take %g each",
                        op->id, (unsigned long long)most_ns, (unsigned long long)op->bytes,
                        ns_per_byte);
    return HP_OK;
}

hpi_cost hpi_cost_of(const hpi_costs *costs, const hp_op *op) {
    const hp_cost_model *model = costs->model;
    if (!model)
        return (hpi_cost){0, 0, 0};
    const hp_cost *row = row_of(model, op->kind, op->comm);
    const uint64_t *unit_ns = model->unit_ns ? model->unit_ns[op->kind] : NULL;
    return (hpi_cost){.fixed_ns = row->fixed_ns +
                                  (unit_ns && op->unit < model->n_units ? unit_ns[op->unit] : 0),
                      .moving_ns = (uint64_t)((double)op->bytes * row->ns_per_byte + 0.5),
                      .link = row->link ? 1 + place_of(costs, row->link) : 0};
}

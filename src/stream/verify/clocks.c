/* SPDX-License-Identifier: Apache-2.0
 *
 * clocks.c - vector clocks: one for each chain as the walk goes, and copies for those who wait.
 *
 * A clock is n_ranks x 4 words, 1 KiB for 64 ranks, so it is not kept for every operation: only
 * what is waited for is copied, and the copy goes back when the last of those has begun.
 */
#include "proof.h"

hp_status hpi_clocks_create(hpi_clocks *c, uint32_t n_ranks) {
    c->n_chains = n_ranks * HP_N_STREAMS;
    c->first_free = HPI_NO_OP;
    c->now = hpi_alloc((size_t)c->n_chains * c->n_chains, sizeof *c->now);
    c->after = hpi_alloc((size_t)n_ranks * c->n_chains, sizeof *c->after);
    return c->now && c->after ? HP_OK : HP_ERR_MEMORY;
}

void hpi_clocks_destroy(hpi_clocks *c) {
    for (uint32_t i = 0; i < c->n_kept; i++)
        hpi_free(c->kept[i]);
    hpi_free(c->kept);
    hpi_free(c->next_free);
    hpi_free(c->after);
    hpi_free(c->now);
}

HPI_KERNEL void hpi_clock_join(const hpi_clocks *c, uint32_t *into, const uint32_t *other) {
    for (uint32_t i = 0; i < c->n_chains; i++)
        into[i] = into[i] > other[i] ? into[i] : other[i];
}

void hpi_clock_copy(const hpi_clocks *c, uint32_t *into, const uint32_t *other) {
    memcpy(into, other, c->n_chains * sizeof *into);
}

static hp_status grow(hpi_clocks *c) {
    const uint32_t capacity = c->capacity ? 2 * c->capacity : 64;
    uint32_t **kept = hpi_alloc(capacity, sizeof *kept);
    uint32_t *next_free = kept ? hpi_alloc(capacity, sizeof *next_free) : NULL;
    if (!next_free) {
        hpi_free(kept);
        return HP_ERR_MEMORY;
    }
    if (c->n_kept)
        memcpy(kept, c->kept, c->n_kept * sizeof *kept);
    hpi_free(c->kept);
    hpi_free(c->next_free); /* all are in use: there is no link to save */
    c->kept = kept;
    c->next_free = next_free;
    c->capacity = capacity;
    return HP_OK;
}

static hp_status take(hpi_clocks *c, uint32_t *out_number) {
    if (c->first_free != HPI_NO_OP) {
        *out_number = c->first_free;
        c->first_free = c->next_free[c->first_free];
        return HP_OK;
    }
    if (c->n_kept == c->capacity)
        HP_TRY(grow(c));
    c->kept[c->n_kept] = hpi_alloc(c->n_chains, sizeof **c->kept);
    if (!c->kept[c->n_kept])
        return HP_ERR_MEMORY;
    *out_number = c->n_kept++;
    return HP_OK;
}

hp_status hpi_clock_keep(hpi_clocks *c, const uint32_t *clock, uint32_t *out_number) {
    HP_TRY(take(c, out_number));
    hpi_clock_copy(c, c->kept[*out_number], clock);
    return HP_OK;
}

void hpi_clock_drop(hpi_clocks *c, uint32_t number) {
    c->next_free[number] = c->first_free;
    c->first_free = number;
}

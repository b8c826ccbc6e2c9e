/* SPDX-License-Identifier: Apache-2.0
 *
 * pieces.c - pieces of parameters, and the list of what a rank holds.
 *
 * Two pieces of one parameter are compared run by run: a run is the interval of one block, and the
 * blocks of the other piece that it touches follow by division. So any cut can be read into any
 * other.
 */
#include "pieces.h"
#include "../together/between.h"

#include <stdio.h>

/* ---- pieces --------------------------------------------------------------------------------- */

hpi_piece hpi_piece_of(const hpi_layout *layout, int rank) {
    uint64_t begin, end;
    hpi_layout_rows(layout, rank, &begin, &end);
    return (hpi_piece){layout->outer, layout->rows * layout->inner, begin * layout->inner,
                       end * layout->inner};
}

/* Elements [begin, end) of the parameter, whose first goes to to_data: copy what `from` holds. */
static uint64_t copy_run(const hpi_piece *from, const unsigned char *from_data, uint64_t begin,
                         uint64_t end, unsigned char *to_data, size_t bytes) {
    uint64_t n_copied = 0;
    for (uint64_t block = begin / from->stride; block * from->stride < end; block++) {
        const uint64_t first = block * from->stride + from->begin;
        const uint64_t least = hpi_max(begin, first);
        const uint64_t most = hpi_min(end, block * from->stride + from->end);
        if (least >= most)
            continue;
        const uint64_t at = block * (from->end - from->begin) + least - first;
        if (to_data)
            memcpy(to_data + (least - begin) * bytes, from_data + at * bytes,
                   (most - least) * bytes);
        n_copied += most - least;
    }
    return n_copied;
}

uint64_t hpi_piece_copy(const hpi_piece *from, const void *from_data, const hpi_piece *to,
                        void *to_data, size_t element_bytes) {
    const uint64_t run = to->end - to->begin;
    uint64_t n_copied = 0;
    if (!hpi_piece_count(from) || !hpi_piece_count(to))
        return 0;
    for (uint64_t block = 0; block < to->outer; block++) {
        const uint64_t begin = block * to->stride + to->begin;
        unsigned char *target =
            to_data ? (unsigned char *)to_data + block * run * element_bytes : NULL;
        n_copied += copy_run(from, from_data, begin, begin + run, target, element_bytes);
    }
    return n_copied;
}

/* ---- what this rank holds ------------------------------------------------------------------- */

static char *join(const char *prefix, const char *name) {
    const size_t n_bytes = strlen(prefix) + strlen(name) + 2;
    char *joined = hpi_alloc(n_bytes, 1);
    if (joined)
        snprintf(joined, n_bytes, "%s.%s", prefix, name);
    return joined;
}

static hp_status add_part(hpi_parts *parts, const hpi_cursor *c, char *name, void *data) {
    const hpi_param *p = c->param;
    const hpi_piece mine = hpi_piece_of(&p->layout, c->unit->fsdp->shard_rank);
    const uint64_t n_bytes = hpi_piece_count(&mine) * hp_dtype_size(p->master);
    parts->list[parts->n++] = (hpi_part){name, c->unit, p, mine, data, n_bytes};
    return name ? HP_OK : HP_ERR_MEMORY;
}

static hp_status add_weights(const hp_fsdp *fsdp, hpi_parts *parts) {
    for (hpi_cursor c = {0}; hpi_next_owned(fsdp, &c);) {
        void *data = c.param->layout.n_elements ? hpi_param_master(c.unit, c.param) : NULL;
        HP_TRY(add_part(parts, &c, hpi_strdup(c.param->name), data));
    }
    parts->n_weights = parts->n;
    return HP_OK;
}

static hp_status add_states(const hp_optimizer *o, hpi_parts *parts) {
    for (int s = 0; s < o->n_states; s++)
        for (hpi_cursor c = {0}; hpi_next_trainable(o->fsdp, &c);) {
            const int index = (int)(c.param - c.unit->params);
            HP_TRY(add_part(parts, &c, join(o->states[s], c.param->name),
                            hpi_optimizer_state(o, c.unit, index, s)));
        }
    return HP_OK;
}

static uint64_t count_params(const hp_fsdp *fsdp) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < fsdp->n_units; i++)
        n += (uint64_t)fsdp->units[i]->n_params;
    return n;
}

hp_status hpi_parts_make(const hp_fsdp *fsdp, const hp_optimizer *optimizer, hpi_parts *out_parts) {
    const uint64_t n_states = optimizer ? (uint64_t)optimizer->n_states : 0;
    hpi_parts parts = {.list = hpi_alloc(count_params(fsdp) * (1 + n_states), sizeof *parts.list)};
    hp_status status = parts.list ? add_weights(fsdp, &parts) : HP_ERR_MEMORY;
    if (status == HP_OK && optimizer)
        status = add_states(optimizer, &parts);
    if (status < 0)
        hpi_parts_free(&parts);
    else
        *out_parts = parts;
    return status;
}

bool hpi_part_is_written(const hp_fsdp *fsdp, const hpi_part *part) {
    return part->n_bytes && (part->param->layout.n_shards > 1 || fsdp->shard_rank == 0);
}

hp_status hpi_parts_install(hp_fsdp *fsdp, hpi_apply install, void *context) {
    fsdp->has_gradients = false;
    return hpi_fsdp_apply(fsdp, HPI_APPLY_UPDATE, install, context);
}

void hpi_parts_free(hpi_parts *parts) {
    for (uint64_t i = 0; i < parts->n; i++)
        hpi_free(parts->list[i].name);
    hpi_free(parts->list);
    *parts = (hpi_parts){0};
}

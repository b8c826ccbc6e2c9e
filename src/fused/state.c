/* SPDX-License-Identifier: Apache-2.0
 *
 * state.c - what a group keeps for its fused products.
 *
 * Shared memory is taken by each rank for itself, as an outbox, so that a peer that is behind may
 * read it after this rank has left the group. Where the control parts lie is exchanged once; what
 * else is taken is told in the entries.
 */
#include "inside.h"

#include <sys/mman.h>

enum { HUGE_BYTES = 2 << 20, HUGE_FROM_BYTES = 128 << 10 };

static void leave(hp_group *group, hpi_outbox *box) {
    if (box)
        hpi_outbox_leave(group, box);
}

static void state_destroy(void *memory) {
    hpi_fused_state *s = memory;
    leave(s->group, s->control);
    leave(s->group, s->staging);
    leave(s->group, s->slots);
    hpi_free(s->shared);
    hpi_free(s->heaps);
    hpi_free(s->block);
    hpi_free(s->stride);
    hpi_free(s->is_heard);
    hpi_free(s->pieces);
    hpi_free(s->tile);
    hpi_free(s->scratch);
    hpi_free(s->gathered.allocation);
    hpi_free(s->sums.allocation);
    hpi_free(s);
}

static hp_status allocate(hpi_fused_state *s, size_t n) {
    s->shared = hpi_alloc(n, sizeof *s->shared);
    s->heaps = hpi_alloc(n, sizeof *s->heaps);
    s->block = hpi_alloc(n, sizeof *s->block);
    s->stride = hpi_alloc(n, sizeof *s->stride);
    s->is_heard = hpi_alloc(n, sizeof *s->is_heard);
    s->pieces = hpi_alloc(n, sizeof *s->pieces);
    s->tile = hpi_alloc(n, sizeof *s->tile);
    s->scratch = hpi_alloc_aligned(64, hpi_sum_scratch_bytes((int)n));
    return s->shared && s->heaps && s->block && s->stride && s->is_heard && s->pieces && s->tile &&
                   s->scratch
               ? HP_OK
               : HP_ERR_MEMORY;
}

/* offsets: [size], room for those of all ranks. */
static hp_status meet(hpi_fused_state *s, uint64_t *offsets) {
    hp_group *group = s->group;
    const hp_world *world = hp_group_world(group);
    HP_TRY(hpi_outbox_take(group, sizeof(hpi_shared), &s->control));
    const uint64_t mine = hpi_outbox_offset(s->control);
    HP_TRY(hpi_group_exchange(group, "fused", &mine, 1, offsets));
    for (int i = 0; i < hp_group_size(group); i++) {
        uint64_t bytes;
        s->heaps[i] = hpi_world_segment(world, hp_group_world_rank(group, i), &bytes);
        s->shared[i] = (hpi_shared *)(void *)(s->heaps[i] + offsets[i]);
    }
    return HP_OK;
}

static hp_status state_create(hp_group *group, hpi_fused_state **out_state) {
    const size_t n = (size_t)hp_group_size(group);
    HP_TRY(hpi_symm_begin(hp_group_world(group)));
    hpi_fused_state *s = hpi_alloc(1, sizeof *s);
    if (!s)
        return HP_ERR_MEMORY;
    s->group = group;
    uint64_t *offsets = hpi_alloc(n, sizeof *offsets);
    hp_status status = offsets ? allocate(s, n) : HP_ERR_MEMORY;
    if (status == HP_OK)
        status = meet(s, offsets);
    hpi_free(offsets);
    if (status < 0)
        state_destroy(s);
    else
        *out_state = s;
    return status;
}

hp_status hpi_fused_state_get(hp_group *group, hpi_fused_state **out_state) {
    *out_state = hpi_group_attached(group, HPI_SLOT_FUSED);
    if (*out_state)
        return HP_OK;
    HP_TRY(state_create(group, out_state));
    hpi_group_attach(group, HPI_SLOT_FUSED, *out_state, state_destroy);
    return HP_OK;
}

hp_status hpi_fused_reserve(hpi_memory *memory, uint64_t bytes) {
    if (bytes <= memory->bytes)
        return HP_OK;
    const bool is_large = bytes >= HUGE_FROM_BYTES;
    const uint64_t room = is_large ? hpi_align_up(bytes, HUGE_BYTES) : bytes;
    unsigned char *allocation = hpi_alloc(room + (is_large ? HUGE_BYTES : 0), 1);
    if (!allocation)
        return HP_ERR_MEMORY;
    unsigned char *data = allocation;
    if (is_large) {
        data += -(uintptr_t)allocation % HUGE_BYTES;
        (void)madvise(data, room, MADV_HUGEPAGE); /* it makes things faster, and nothing else */
    }
    hpi_free(memory->allocation);
    *memory = (hpi_memory){allocation, data, room};
    return HP_OK;
}

void hpi_fused_copy(void *to, uint64_t to_step, const void *from, uint64_t from_step,
                    uint64_t row_bytes, int64_t n_rows) {
    if (n_rows == 0 || row_bytes == 0)
        return;
    if (to_step == row_bytes && from_step == row_bytes) {
        hpi_copy(to, from, (uint64_t)n_rows * row_bytes);
        return;
    }
    for (int64_t i = 0; i < n_rows; i++)
        memcpy((unsigned char *)to + (uint64_t)i * to_step,
               (const unsigned char *)from + (uint64_t)i * from_step, row_bytes);
}

hp_status hpi_fused_set_cut(hp_group *group, const hpi_fused_cut *cut) {
    hpi_fused_state *s;
    HP_TRY(hpi_group_enter(group, "fused"));
    const hp_status status = hpi_fused_state_get(group, &s);
    if (status == HP_OK)
        s->cut = *cut;
    hpi_group_leave(group);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * field/payload_then_flag.h - the litmus test of row S19: who sees the flag sees the payload.
 *
 * Rank 0 writes a payload with plain stores, then raises a flag with hp_symm_signal; rank 1 waits
 * for the flag and reads the payload with plain loads. Slots are used in turn, and rank 0 is never
 * more than all of them ahead, so that both run most of the time without waiting for each other.
 */
#ifndef FIELD_PAYLOAD_THEN_FLAG_H
#define FIELD_PAYLOAD_THEN_FLAG_H

#include "support/ranks.h"

#include <hyperparallel/symm.h>

enum { LITMUS_SLOTS = 64, LITMUS_WORDS = 7, LITMUS_FLAG = LITMUS_SLOTS * 64 };

/* argument: a uint64_t, how often. */
static void payload_then_flag_body(hp_world *world, void *argument) {
    const uint64_t n = *(const uint64_t *)argument;
    const int rank = hp_world_rank(world);
    hp_symm memory;
    void *block = NULL;
    RANK_OK(hp_symm_alloc(world, NULL, LITMUS_FLAG + 64, 64, &memory));
    RANK_OK(hp_symm_pointer(memory, 1, NULL, &block));
    for (uint64_t i = 1; i <= n; i++) {
        uint64_t *slot = (uint64_t *)block + i % LITMUS_SLOTS * 8;
        if (rank == 0) {
            if (i > LITMUS_SLOTS)
                RANK_OK(hp_symm_wait(memory, LITMUS_FLAG, HP_GE, i - LITMUS_SLOTS, 0));
            for (uint64_t k = 0; k < LITMUS_WORDS; k++)
                slot[k] = i * (2 * k + 1);
            RANK_OK(hp_symm_signal(memory, LITMUS_FLAG, HP_SIGNAL_SET, i, 1, NULL));
        } else {
            RANK_OK(hp_symm_wait(memory, LITMUS_FLAG, HP_GE, i, 0));
            for (uint64_t k = 0; k < LITMUS_WORDS; k++)
                RANK_CHECK(slot[k] == i * (2 * k + 1));
            RANK_OK(hp_symm_signal(memory, LITMUS_FLAG, HP_SIGNAL_SET, i, 0, NULL));
        }
    }
    RANK_OK(hp_symm_free(memory));
}

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * replay.c - a pass's operations, call by call, so that the next pass needs no planning.
 *
 * While a HP_SYNC pass is planned, each hook notes how many operations it brought; the recorder has
 * the operations themselves. Replaying hands out the same slices, and refuses a pass that calls the
 * hooks in another order, or to which other gradients were left by HP_NO_SYNC passes, which are
 * planned each time.
 */
#include "../engine.h"

#include <assert.h>

struct note {
    uint32_t hook, unit;
    uint64_t n_ops;
};

struct hpi_replay {
    struct note *notes; /* of the last planned HP_SYNC step */
    uint64_t n_notes, capacity;
    hp_op *ops; /* when active */
    uint64_t n_ops;
    uint64_t next_note, next_op;
    uint64_t carried; /* hpi_plan_carried when the step began */
    bool is_active;
};

hp_status hpi_replay_create(hpi_replay **out_replay) {
    hpi_replay *replay = hpi_alloc(1, sizeof *replay);
    if (!replay)
        return HP_ERR_MEMORY;
    *out_replay = replay;
    return HP_OK;
}

void hpi_replay_destroy(hpi_replay *replay) {
    if (!replay)
        return;
    hpi_free(replay->notes);
    hpi_free(replay->ops);
    hpi_free(replay);
}

void hpi_replay_forget(hpi_replay *replay) {
    hpi_free(replay->ops);
    replay->ops = NULL;
    replay->n_notes = replay->n_ops = 0;
    replay->is_active = false;
}

bool hpi_replay_is_active(const hpi_replay *replay) {
    return replay && replay->is_active;
}

uint64_t hpi_replay_n_ops(const hpi_replay *replay) {
    return replay->n_ops;
}

hp_status hpi_replay_keep(hpi_replay *replay, const hp_executor *recorder) {
    const hp_op *ops = NULL;
    uint64_t n_ops = 0, n_noted = 0;
    if (replay->is_active || !replay->n_notes)
        return HP_OK;
    HP_TRY(hp_recorder_ops(recorder, &ops, &n_ops));
    for (uint64_t i = 0; i < replay->n_notes; i++)
        n_noted += replay->notes[i].n_ops;
    if (!n_noted || n_ops < n_noted)
        return HPI_FAIL(
            HP_ERR_STATE,
            "expected a recorded training step to replay, given %llu operations of %llu",
            (unsigned long long)n_ops, (unsigned long long)n_noted);
    replay->ops = hpi_alloc(n_noted, sizeof *replay->ops);
    if (!replay->ops)
        return HP_ERR_MEMORY;
    memcpy(replay->ops, ops, n_noted * sizeof *ops);
    replay->n_ops = n_noted;
    replay->is_active = true;
    return HP_OK;
}

hp_status hpi_replay_begin(hpi_replay *replay, uint64_t carried) {
    if (replay->is_active && carried != replay->carried)
        return HPI_FAIL(HP_ERR_STATE,
                        "expected the accumulated gradients of the recorded step, given those of "
                        "other passes or units");
    replay->carried = carried;
    replay->next_note = replay->next_op = 0;
    if (!replay->is_active)
        replay->n_notes = 0;
    return HP_OK;
}

hp_status hpi_replay_reserve(hpi_replay *replay) {
    if (replay->n_notes < replay->capacity)
        return HP_OK;
    const uint64_t capacity = replay->capacity ? 2 * replay->capacity : 64;
    struct note *grown = hpi_alloc(capacity, sizeof *grown);
    if (!grown)
        return HP_ERR_MEMORY;
    if (replay->n_notes)
        memcpy(grown, replay->notes, replay->n_notes * sizeof *grown);
    hpi_free(replay->notes);
    replay->notes = grown;
    replay->capacity = capacity;
    return HP_OK;
}

void hpi_replay_note(hpi_replay *replay, hpi_hook hook, uint32_t unit, uint64_t n_ops) {
    assert(replay->n_notes < replay->capacity);
    replay->notes[replay->n_notes++] = (struct note){hook, unit, n_ops};
}

hp_status hpi_replay_next(hpi_replay *replay, hpi_hook hook, uint32_t unit, hpi_burst *out_burst) {
    const struct note *note = &replay->notes[replay->next_note];
    if (replay->next_note == replay->n_notes || note->hook != (uint32_t)hook || note->unit != unit)
        return HPI_FAIL(HP_ERR_STATE,
                        "expected the calls of the recorded step, given another one at call %llu",
                        (unsigned long long)replay->next_note);
    *out_burst = (hpi_burst){replay->ops + replay->next_op, note->n_ops};
    replay->next_op += note->n_ops;
    replay->next_note++;
    return HP_OK;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * notes.c - why a rank waits, written where others can read it.
 *
 * A note lies in the rank's control block and is read by other ranks (to explain a time-out) and by
 * the launcher (after a kill), at any moment. since_ns works as a sequence lock: 0 before the
 * fields change, the begin of the wait after; a reader that finds the same value before and after
 * has read one whole note. Release stores and acquire loads of the fields stand in for the fences.
 */
#include "../inside.h"

#include <stdio.h>

enum { NOTE_FREE = 0, NOTE_TAKEN = 1 };

void hpi_text_write(_Atomic uint64_t *words, size_t n_words, const char *text) {
    const size_t room = n_words * 8 - 1;
    const size_t length = strnlen(text, room);
    for (size_t i = 0; i < n_words; i++) {
        uint64_t word = 0;
        if (i * 8 < length)
            memcpy(&word, text + i * 8, hpi_min(8, length - i * 8));
        atomic_store_explicit(&words[i], word, memory_order_release);
    }
}

void hpi_text_read(const _Atomic uint64_t *words, size_t n_words, char *out_text) {
    for (size_t i = 0; i < n_words; i++) {
        const uint64_t word = atomic_load_explicit(&words[i], memory_order_acquire);
        memcpy(out_text + i * 8, &word, 8);
    }
    out_text[n_words * 8 - 1] = '\0';
}

hpi_note *hpi_note_take(hpi_control *control) {
    for (int i = 0; i < HPI_N_NOTES; i++) {
        uint64_t expected = NOTE_FREE;
        if (atomic_compare_exchange_strong_explicit(&control->notes[i].since_ns, &expected,
                                                    NOTE_TAKEN, memory_order_acq_rel,
                                                    memory_order_relaxed))
            return &control->notes[i];
    }
    return NULL;
}

/* 1 + the slot of the group whose line is waited for. */
static uint64_t line_slot(const hpi_reason *reason) {
    return reason->line ? 1 + (uint64_t)reason->group->slot : 0;
}

void hpi_note_write(hpi_note *note, const hpi_reason *reason, int world_rank, uint64_t since_ns) {
    atomic_store_explicit(&note->since_ns, NOTE_TAKEN, memory_order_release);
    atomic_store_explicit(&note->seq, reason->seq, memory_order_release);
    atomic_store_explicit(&note->rank, reason->rank, memory_order_release);
    atomic_store_explicit(&note->world_rank, world_rank, memory_order_release);
    atomic_store_explicit(&note->slot, line_slot(reason), memory_order_release);
    atomic_store_explicit(&note->base, reason->group ? reason->group->base : 0,
                          memory_order_release);
    atomic_store_explicit(&note->channel, (uint64_t)reason->line - 1, memory_order_release);
    atomic_store_explicit(&note->is_lone, 0, memory_order_release);
    hpi_text_write(note->operation, HPI_NAME_WORDS, reason->operation);
    hpi_text_write(note->group, HPI_NAME_WORDS, reason->group ? hpi_group_name(reason->group) : "");
    atomic_store_explicit(&note->since_ns, since_ns, memory_order_release);
}

void hpi_note_free(hpi_note *note) {
    if (note)
        atomic_store_explicit(&note->since_ns, NOTE_FREE, memory_order_release);
}

bool hpi_note_read(const hpi_note *note, hpi_note_copy *out) {
    const uint64_t since_ns = atomic_load_explicit(&note->since_ns, memory_order_acquire);
    if (since_ns <= NOTE_TAKEN)
        return false;
    out->since_ns = since_ns;
    out->seq = atomic_load_explicit(&note->seq, memory_order_acquire);
    out->rank = atomic_load_explicit(&note->rank, memory_order_acquire);
    out->world_rank = atomic_load_explicit(&note->world_rank, memory_order_acquire);
    out->slot = atomic_load_explicit(&note->slot, memory_order_acquire);
    out->base = atomic_load_explicit(&note->base, memory_order_acquire);
    out->channel = atomic_load_explicit(&note->channel, memory_order_acquire);
    out->is_lone = atomic_load_explicit(&note->is_lone, memory_order_acquire);
    hpi_text_read(note->operation, HPI_NAME_WORDS, out->operation);
    hpi_text_read(note->group, HPI_NAME_WORDS, out->group);
    return atomic_load_explicit(&note->since_ns, memory_order_relaxed) == since_ns;
}

/* "waiting for ..."; false when there is nothing to read. */
static bool note_describe(const hpi_note *note, char *text, size_t size) {
    char whom[64] = "a signal";
    hpi_note_copy n;
    if (!hpi_note_read(note, &n))
        return false;
    if (n.rank >= 0 && n.rank != n.world_rank)
        snprintf(whom, sizeof whom, "rank %lld (world rank %lld)", (long long)n.rank,
                 (long long)n.world_rank);
    else if (n.world_rank >= 0)
        snprintf(whom, sizeof whom, "rank %lld", (long long)n.world_rank);
    const uint64_t now_ns = hpi_now_ns();
    snprintf(text, size, "waiting for %s in %s #%llu%s%s for %llu ms", whom, n.operation,
             (unsigned long long)n.seq, *n.group ? " of " : "", n.group,
             (unsigned long long)((now_ns > n.since_ns ? now_ns - n.since_ns : 0) / 1000000));
    return true;
}

bool hpi_control_describe(const hpi_control *control, char *out_text, size_t size) {
    char doing[HPI_DOING_WORDS * 8];
    size_t length = 0;
    for (int i = 0; i < HPI_N_NOTES && length + 8 < size; i++) {
        char one[192];
        if (note_describe(&control->notes[i], one, sizeof one))
            length +=
                (size_t)snprintf(out_text + length, size - length, "%s%s", length ? "; " : "", one);
    }
    if (length)
        return true;
    hpi_text_read(control->doing, HPI_DOING_WORDS, doing);
    snprintf(out_text, size, "%s", *doing ? doing : "not in the job yet");
    return false;
}

bool hpi_control_describe_failure(const hpi_control *control, char *out_text, size_t size) {
    return note_describe(&control->failure, out_text, size);
}

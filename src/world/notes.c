/* SPDX-License-Identifier: Apache-2.0
 *
 * notes.c - why a rank waits, written where others can read it.
 *
 * A note lies in the rank's control block and is read by other ranks (to explain a time-out) and by
 * the launcher (after a kill), at any moment. since_ns works as a sequence lock: 0 before the
 * fields change, the begin of the wait after; a reader that finds the same value before and after
 * has read one whole note. Release stores and acquire loads of the fields stand in for the fences.
 */
#include "inside.h"

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

void hpi_note_write(hpi_note *note, const hpi_reason *reason, int world_rank, uint64_t since_ns) {
    atomic_store_explicit(&note->since_ns, NOTE_TAKEN, memory_order_release);
    atomic_store_explicit(&note->seq, reason->seq, memory_order_release);
    atomic_store_explicit(&note->rank, reason->rank, memory_order_release);
    atomic_store_explicit(&note->world_rank, world_rank, memory_order_release);
    hpi_text_write(note->operation, HPI_NAME_WORDS, reason->operation);
    hpi_text_write(note->group, HPI_NAME_WORDS, reason->group ? hpi_group_name(reason->group) : "");
    atomic_store_explicit(&note->since_ns, since_ns, memory_order_release);
}

void hpi_note_free(hpi_note *note) {
    if (note)
        atomic_store_explicit(&note->since_ns, NOTE_FREE, memory_order_release);
}

/* Append "waiting for ..." to text; false when the note is free or changed meanwhile. */
static bool note_describe(const hpi_note *note, char *text, size_t size) {
    char operation[HPI_NAME_WORDS * 8], group[HPI_NAME_WORDS * 8], whom[64] = "a signal";
    const uint64_t since_ns = atomic_load_explicit(&note->since_ns, memory_order_acquire);
    if (since_ns <= NOTE_TAKEN)
        return false;
    const uint64_t seq = atomic_load_explicit(&note->seq, memory_order_acquire);
    const int64_t rank = atomic_load_explicit(&note->rank, memory_order_acquire);
    const int64_t world_rank = atomic_load_explicit(&note->world_rank, memory_order_acquire);
    hpi_text_read(note->operation, HPI_NAME_WORDS, operation);
    hpi_text_read(note->group, HPI_NAME_WORDS, group);
    if (atomic_load_explicit(&note->since_ns, memory_order_relaxed) != since_ns)
        return false;
    if (rank >= 0 && rank != world_rank)
        snprintf(whom, sizeof whom, "rank %lld (world rank %lld)", (long long)rank,
                 (long long)world_rank);
    else if (world_rank >= 0)
        snprintf(whom, sizeof whom, "rank %lld", (long long)world_rank);
    const uint64_t now_ns = hpi_now_ns();
    snprintf(text, size, "waiting for %s in %s #%llu%s%s for %llu ms", whom, operation,
             (unsigned long long)seq, *group ? " of " : "", group,
             (unsigned long long)((now_ns > since_ns ? now_ns - since_ns : 0) / 1000000));
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

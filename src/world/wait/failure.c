/* SPDX-License-Identifier: Apache-2.0
 *
 * failure.c - a group that has ended for one member ends for all.
 *
 * A failed group stays failed. The member that fails it says so on its STATE line, with the status,
 * whose fault it was and a sentence; whoever waits in the group looks at these lines whenever it
 * wakes and once a slice, gives the same status, and so fails the group in its turn. A member that
 * passes on what it was told marks that, and readers look for the first cause behind it. Leaving
 * the group (hp_group_destroy) is said on the same line. Values: base + 1 failed, base + 2
 * destroyed; so the line only rises and the slot's next group counts on from there.
 */
#include "../inside.h"

#include <stdio.h>

enum { STATE_FAILED = 1, STATE_DESTROYED = 2 };
enum { WORD_STATUS, WORD_CULPRIT, WORD_IS_TOLD, N_WORDS };

/* Its words are behind the lines and the ring of the slot. */
static _Atomic uint64_t *sentence_of(const hp_group *group, int rank) {
    return (_Atomic uint64_t *)(void *)((char *)group->lines[rank] + HPI_FAILURE_OFFSET);
}

/* How far the member has come: 0 is in the group, or has yet to come. */
static int64_t state_of(const hp_group *group, int rank) {
    const hpi_line *line = hpi_group_line(group, rank, HPI_LINE_STATE);
    return (int64_t)(atomic_load_explicit(&line->value, memory_order_acquire) - group->base);
}

static uint64_t state_word(const hp_group *group, int rank, int word) {
    return atomic_load_explicit(&hpi_group_line(group, rank, HPI_LINE_STATE)->words[word],
                                memory_order_relaxed);
}

static void set_state_word(hp_group *group, int word, uint64_t value) {
    atomic_store_explicit(&hpi_group_line(group, group->rank, HPI_LINE_STATE)->words[word], value,
                          memory_order_relaxed);
}

static bool member_failed(const hp_group *group, int rank) {
    return state_of(group, rank) >= STATE_FAILED && state_word(group, rank, WORD_STATUS);
}

int hpi_group_find_failed(const hp_group *group) {
    int told = -1;
    if (group->nodes) /* told by its inner group and by the news */
        return -1;
    for (int i = 0; i < group->size; i++) {
        if (i == group->rank || !member_failed(group, i))
            continue;
        if (!state_word(group, i, WORD_IS_TOLD))
            return i;
        told = i;
    }
    return told;
}

/* ---- the own failure ------------------------------------------------------------------------ */

/* A rank that was given up has FAILED; for the others that is the end of a peer. FAILED is what
 * they get of a group that was cancelled, whoever tells them. */
static hp_status status_for_others(const hp_group *group, bool is_cancelled, int told_by) {
    const hp_status status = group->error.status;
    if (status != HP_ERR_FAILED || is_cancelled)
        return status;
    const bool is_told =
        told_by >= 0 && (int64_t)state_word(group, told_by, WORD_STATUS) == HP_ERR_FAILED;
    return is_told ? HP_ERR_FAILED : HP_ERR_PEER;
}

static void publish(hp_group *group, bool is_cancelled) {
    const hp_error *error = &group->error;
    const int told_by = hpi_group_find_failed(group);
    /* a message fails the group beside its collectives, and says itself what it is */
    const char *call = atomic_load_explicit(&group->is_busy, memory_order_relaxed)
                           ? atomic_load_explicit(&group->call, memory_order_relaxed)
                           : NULL;
    char sentence[HPI_FAILURE_WORDS * 8];
    snprintf(sentence, sizeof sentence, "%s%s: %s", call ? " in " : "", call ? call : "",
             error->message); /* stands behind "rank 1 failed" */
    hpi_text_write(sentence_of(group, group->rank), HPI_FAILURE_WORDS, sentence);
    set_state_word(group, WORD_STATUS,
                   (uint64_t)(int64_t)status_for_others(group, is_cancelled, told_by));
    set_state_word(group, WORD_CULPRIT,
                   (uint64_t)(error->world_rank >= 0 ? error->world_rank : group->world->rank));
    set_state_word(group, WORD_IS_TOLD, told_by >= 0);
    hpi_line_post(group, HPI_LINE_STATE, STATE_FAILED);
}

hp_status hpi_group_tell_failed(const hp_group *group) {
    return hpi_error_set(&group->error);
}

static void fail(hp_group *group, bool is_cancelled);

/* To those of this node by the inner group, to the others as news. */
static void publish_across(hp_group *group, bool is_cancelled) {
    fail(group->inner, is_cancelled);
    if (!hpi_world_is_forked(group->world))
        hpi_news_tell(group, is_cancelled ? HPI_GROUP_CANCELLED : HPI_GROUP_FAILED);
    (void)hpi_error_set(&group->error);
}

static void fail(hp_group *group, bool is_cancelled) {
    int expected = HPI_FAILED_NO;
    if (!atomic_compare_exchange_strong_explicit(&group->failed, &expected, HPI_FAILED_WRITING,
                                                 memory_order_relaxed, memory_order_relaxed))
        return;
    hp_last_error_get(&group->error);
    if (group->nodes)
        publish_across(group, is_cancelled);
    else if (!hpi_world_is_forked(group->world)) /* else the lines are the parent's */
        publish(group, is_cancelled);
    atomic_store_explicit(&group->failed, HPI_FAILED_YES, memory_order_release);
    if (!hpi_world_is_forked(group->world))
        hpi_world_wake(group->world, group->world->rank); /* this rank's other threads */
}

/* Who was not heard in time is not met when the transport is closed, either. */
static void give_up_transport(hp_group *group) {
    hp_error record;
    hp_last_error_get(&record);
    if (group->world->transport && record.status == HP_ERR_TIMEOUT)
        group->world->transport->is_lost = true;
}

void hpi_group_fail(hp_group *group) {
    give_up_transport(group);
    fail(group, false);
}

void hpi_group_cancel(hp_group *group) {
    fail(group, true);
}

void hpi_group_say_destroyed(hp_group *group) {
    if (group->nodes) {
        hpi_news_tell(group, HPI_GROUP_DESTROYED);
        return;
    }
    if (state_of(group, group->rank) < STATE_FAILED) /* words of an earlier group of this slot */
        set_state_word(group, WORD_STATUS, 0);
    hpi_line_post(group, HPI_LINE_STATE, STATE_DESTROYED);
}

/* ---- the others' ---------------------------------------------------------------------------- */

bool hpi_group_has_destroyed(const hp_group *group, int rank) {
    return group->nodes ? hpi_news_has_destroyed(group, rank)
                        : state_of(group, rank) == STATE_DESTROYED;
}

hp_status hpi_group_told(const hp_group *group, int rank, const char *waited) {
    char sentence[HPI_FAILURE_WORDS * 8];
    const hp_status status = (hp_status)(int64_t)state_word(group, rank, WORD_STATUS);
    int culprit = (int)state_word(group, rank, WORD_CULPRIT);
    hpi_text_read(sentence_of(group, rank), HPI_FAILURE_WORDS, sentence);
    if (culprit == group->world->rank) /* who gave up on us in another group is who we lost */
        culprit = group->world_ranks[rank];
    if (status == HP_ERR_PEER) /* who gave up because of another's end has blamed that one */
        culprit = hpi_liveness_origin(group->world, culprit);
    if (status == HP_ERR_PEER)
        hpi_liveness_blame(group->world, culprit);
    return HPI_FAIL_RANK(status, culprit, "rank %d failed%s; %s meanwhile",
                         group->world_ranks[rank], sentence, waited);
}

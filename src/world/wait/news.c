/* SPDX-License-Identifier: Apache-2.0
 *
 * news.c - what this rank tells other nodes of its groups, and what it hears of them.
 *
 * A ring's entry works as a sequence lock, as notes do: its number is 0 while the fields change,
 * and who finds the same number before and after has read one whole notice. A reader that comes
 * when the ring has gone round misses it; so the rings are long beside what can fail at once, and
 * the end of a rank is no notice but a word, which stays. Release stores and acquire loads of the
 * fields stand in for fences.
 */
#include "news.h"

#include <stdio.h>

/* A destroyed group's last messages, on other ways than this, may come after the notice. */
#define GRACE_NS UINT64_C(500000000)

/* ---- rings ---------------------------------------------------------------------------------- */

static uint64_t pack(int32_t high, int32_t low) {
    return (uint64_t)(uint32_t)high << 32 | (uint32_t)low;
}

static void put(_Atomic uint64_t *word, uint64_t value) {
    atomic_store_explicit(word, value, memory_order_release);
}

static uint64_t get(const _Atomic uint64_t *word) {
    return atomic_load_explicit(word, memory_order_acquire);
}

void hpi_notice_write(hpi_notice *ring, size_t n_ring, _Atomic uint64_t *n_written,
                      const hpi_told *told) {
    const uint64_t number = atomic_load_explicit(n_written, memory_order_relaxed);
    hpi_notice *notice = &ring[number % n_ring];
    put(&notice->number, 0);
    put(&notice->tag, told->tag);
    put(&notice->check, told->check);
    put(&notice->since_ns, hpi_now_ns());
    put(&notice->end_status, pack(told->end, told->status));
    put(&notice->culprit_teller, pack(told->culprit, told->teller));
    hpi_text_write(notice->text, HPI_TOLD_WORDS, told->text);
    put(&notice->number, number + 1); /* acquired by hpi_notice_read */
    atomic_store_explicit(n_written, number + 1, memory_order_seq_cst); /* before sleepers: wake */
}

bool hpi_notice_read(const hpi_notice *ring, size_t n_ring, uint64_t number, hpi_told *out,
                     uint64_t *out_since_ns) {
    const hpi_notice *notice = &ring[number % n_ring];
    if (get(&notice->number) != number + 1)
        return false;
    const uint64_t end_status = get(&notice->end_status);
    const uint64_t culprit_teller = get(&notice->culprit_teller);
    out->tag = get(&notice->tag);
    out->check = get(&notice->check);
    *out_since_ns = get(&notice->since_ns);
    out->end = (int32_t)(end_status >> 32);
    out->status = (int32_t)(uint32_t)end_status;
    out->culprit = (int32_t)(culprit_teller >> 32);
    out->teller = (int32_t)(uint32_t)culprit_teller;
    hpi_text_read(notice->text, HPI_TOLD_WORDS, out->text);
    return get(&notice->number) == number + 1;
}

/* ---- the node's first rank ------------------------------------------------------------------ */

hp_status hpi_news_open(hp_world *world, hpi_heartbeat *heartbeat) {
    const hpi_segment *own = &world->segments[world->rank];
    const bool is_first = world->local[0] == world->rank;
    const uint64_t bytes = is_first ? offsetof(hpi_news, ranks) + 8 * (uint64_t)world->n_ranks
                                    : offsetof(hpi_news, notices);
    HP_TRY(hpi_fd_commit(own->fd, HPI_NEWS_OFFSET, HPI_NEWS_OFFSET + bytes));
    heartbeat->own = hpi_segment_news(own);
    heartbeat->node = hpi_segment_news(&world->segments[world->local[0]]);
    hpi_news *news = heartbeat->own;
    for (int i = 0; i < HPI_N_OWN_NOTICES; i++) /* of groups of an earlier world */
        put(&news->own[i].number, 0);
    if (!is_first)
        return HP_OK;
    put(&news->epoch, 0); /* for who is still in that */
    put(&news->n_changes, 0);
    put(&news->n_notices, 0);
    for (int i = 0; i < HPI_N_NOTICES; i++)
        put(&news->notices[i].number, 0);
    for (int i = 0; i < world->n_ranks; i++)
        put(&news->ranks[i], 0);
    put(&news->epoch, heartbeat->epoch);
    return HP_OK;
}

/* Sleepers look for themselves: the stores before this are sequentially consistent. */
void hpi_news_wake(hp_world *world) {
    for (int i = 0; i < world->n_local; i++)
        hpi_world_wake(world, world->local[i]);
}

void hpi_news_publish(hp_world *world, const hpi_told *told) {
    hpi_news *news = world->heartbeat->node;
    hpi_notice_write(news->notices, HPI_N_NOTICES, &news->n_notices, told);
    hpi_news_wake(world);
}

void hpi_news_set_fate(hp_world *world, int world_rank, const hpi_fate *fate) {
    hpi_news *news = world->heartbeat->node;
    atomic_store_explicit(&news->ranks[world_rank], hpi_fate_word(fate), memory_order_seq_cst);
    atomic_fetch_add_explicit(&news->n_changes, 1, memory_order_release); /* of hpi_news_read */
}

/* ---- what has become of ranks --------------------------------------------------------------- */

/* Is what the node's first rank says of this world? */
static bool is_current(const hpi_heartbeat *heartbeat) {
    return heartbeat && heartbeat->epoch && get(&heartbeat->node->epoch) == heartbeat->epoch;
}

hpi_fate hpi_news_fate(const hp_world *world, int world_rank) {
    const bool is_told = is_current(world->heartbeat);
    return hpi_fate_of(is_told ? get(&world->heartbeat->node->ranks[world_rank]) : 0);
}

static void tell_of_link(hp_world *world, int node) {
    const int leader = world->heartbeat->leaders[node];
    const uint32_t slowness = hpi_news_fate(world, leader).slowness;
    const uint32_t before = atomic_exchange_explicit(&world->heartbeat->is_slow[node],
                                                     slowness != 0, memory_order_relaxed);
    if (slowness && !before)
        HPI_SAY(world->journal, HPI_LOG_WARNING, "world",
                "the link to host %s is %u times slower than it was", hpi_host_of(world, leader),
                slowness);
    if (!slowness && before)
        HPI_SAY(world->journal, HPI_LOG_INFO, "world", "the link to host %s is well again",
                hpi_host_of(world, leader));
}

void hpi_news_read(hp_world *world) {
    hpi_heartbeat *h = world->heartbeat;
    if (!is_current(h))
        return;
    const uint64_t n = get(&h->node->n_changes);
    if (n == atomic_exchange_explicit(&h->n_seen, n, memory_order_relaxed))
        return;
    for (int i = 0; i < world->n_ranks; i++)
        if (hpi_news_fate(world, i).life == HPI_LIFE_DEAD)
            atomic_store_explicit(&world->is_gone[i], true, memory_order_release);
    for (int node = 0; node < world->n_nodes; node++)
        tell_of_link(world, node);
}

void hpi_news_describe(const hp_world *world, int world_rank, char *out, size_t size) {
    hpi_sentence text = {out, size, 0};
    char why[128];
    hpi_sentence_add(&text, "on host %s", hpi_world_host(world, world_rank));
    if (!is_current(world->heartbeat))
        return;
    const hpi_fate fate = hpi_news_fate(world, world_rank);
    const int leader = world->heartbeat->leaders[world->node_of[world_rank]];
    const uint32_t slowness = hpi_news_fate(world, leader).slowness;
    hpi_link_why(fate.end, fate.detail, why, sizeof why);
    if (*why)
        hpi_sentence_add(&text, ": %s", why);
    if (slowness)
        hpi_sentence_add(&text, ", to which the link is %u times slower than it was", slowness);
}

void hpi_news_explain(const hp_world *world, int world_rank) {
    hp_error record;
    if (!is_current(world->heartbeat) || !hpi_rank_is_elsewhere(world, world_rank))
        return;
    const int leader = world->heartbeat->leaders[world->node_of[world_rank]];
    const uint32_t slowness = hpi_news_fate(world, leader).slowness;
    hp_last_error_get(&record);
    hpi_sentence text = {record.message, sizeof record.message, strlen(record.message)};
    if (slowness)
        hpi_sentence_add(&text, "; the link to host %s is %u times slower than it was",
                         hpi_host_of(world, world_rank), slowness);
    (void)hpi_error_set(&record);
}

/* ---- groups --------------------------------------------------------------------------------- */

typedef struct found {
    hpi_told told;
    uint64_t since_ns;
} found;

typedef bool (*question)(const found *f, int world_rank);

static bool find_in(const hpi_notice *ring, size_t n_ring, uint64_t n, const hp_group *group,
                    question is_it, int world_rank, found *out) {
    for (uint64_t i = n > n_ring ? n - n_ring : 0; i < n; i++)
        if (get(&ring[i % n_ring].tag) == group->tag &&
            hpi_notice_read(ring, n_ring, i, &out->told, &out->since_ns) &&
            out->told.tag == group->tag && out->told.check == group->check &&
            out->told.teller != group->world->rank && is_it(out, world_rank))
            return true;
    return false;
}

/* A notice of this group from another rank that answers the question. From a rank of this node it
 * is taken where that wrote it: it may have left the job since, which is seen at once. */
static bool find(const hp_group *group, question is_it, int world_rank, found *out) {
    const hp_world *world = group->world;
    if (!is_current(world->heartbeat))
        return false;
    for (int i = 0; i < group->size; i++) {
        const int rank = group->world_ranks[i];
        if (!hpi_world_is_local(world, rank))
            continue;
        const hpi_news *news = hpi_segment_news(&world->segments[rank]);
        if (find_in(news->own, HPI_N_OWN_NOTICES, get(&news->n_own), group, is_it, world_rank, out))
            return true;
    }
    const hpi_news *news = world->heartbeat->node;
    return find_in(news->notices, HPI_N_NOTICES, get(&news->n_notices), group, is_it, world_rank,
                   out);
}

static bool is_failure(const found *f, int world_rank) {
    (void)world_rank;
    return f->told.end == HPI_GROUP_FAILED || f->told.end == HPI_GROUP_CANCELLED;
}

static bool is_destroyed(const found *f, int world_rank) {
    return f->told.end == HPI_GROUP_DESTROYED && f->told.teller == world_rank;
}

bool hpi_news_has_destroyed(const hp_group *group, int rank) {
    found f;
    const hp_world *world = group->world;
    if (!find(group, is_destroyed, group->world_ranks[rank], &f))
        return false;
    const int leader = world->heartbeat->leaders[world->node_of[f.told.teller]];
    const uint64_t slowness = hpi_news_fate(world, leader).slowness;
    return hpi_now_ns() - f.since_ns > GRACE_NS * hpi_max(slowness, 1);
}

/* As failure.c has it for members that share memory. */
hp_status hpi_news_of(const hp_group *group, const char *operation) {
    found f;
    const hp_world *world = group->world;
    if (!find(group, is_failure, -1, &f))
        return HP_OK;
    const hp_status status = (hp_status)f.told.status;
    int culprit = f.told.culprit;
    if (culprit < 0 || culprit >= world->n_ranks || culprit == world->rank)
        culprit = f.told.teller; /* who gave up on us in another group is who we lost */
    if (status == HP_ERR_PEER)   /* who gave up because of another's end has blamed that one */
        culprit = hpi_liveness_origin(group->world, culprit);
    if (status == HP_ERR_PEER)
        hpi_liveness_blame(group->world, culprit);
    return HPI_FAIL_RANK(status, culprit,
                         "rank %d on host %s failed%s; rank %d was in %s meanwhile", f.told.teller,
                         hpi_host_of(world, f.told.teller), f.told.text, world->rank, operation);
}

/* A rank that was given up has FAILED; for the others that is the end of a peer. A group that was
 * cancelled has FAILED for all of them, whoever of them tells it. */
static hp_status status_for_others(const hp_group *group, hpi_group_end end, const hp_error *e) {
    const bool is_passed_on = e->world_rank >= 0 && e->world_rank != group->world->rank;
    return e->status == HP_ERR_FAILED && end != HPI_GROUP_CANCELLED && !is_passed_on ? HP_ERR_PEER
                                                                                     : e->status;
}

void hpi_news_tell(const hp_group *group, hpi_group_end end) {
    hpi_heartbeat *h = group->world->heartbeat;
    found f;
    hp_error error;
    if (!h)
        return;
    hp_last_error_get(&error);
    if (end != HPI_GROUP_DESTROYED && find(group, is_failure, -1, &f))
        return; /* all have been told, as this rank has */
    hpi_told told = {.tag = group->tag,
                     .check = group->check,
                     .end = end,
                     .status = status_for_others(group, end, &error),
                     .culprit = error.world_rank >= 0 ? error.world_rank : group->world->rank,
                     .teller = group->world->rank};
    const char *call = atomic_load_explicit(&group->is_busy, memory_order_relaxed)
                           ? atomic_load_explicit(&group->call, memory_order_relaxed)
                           : NULL;
    if (end != HPI_GROUP_DESTROYED)
        snprintf(told.text, sizeof told.text, "%s%s: %s", call ? " in " : "", call ? call : "",
                 error.message);
    pthread_mutex_lock(&h->lock);
    hpi_notice_write(h->own->own, HPI_N_OWN_NOTICES, &h->own->n_own, &told);
    pthread_mutex_unlock(&h->lock);
    hpi_heartbeat_hurry(group->world, false);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * heartbeat.c - opening and closing what the ranks of a job on several nodes have for each other's
 * ends.
 *
 * All ranks give a card over the transport, those of first ranks with addresses and tokens; the
 * first ranks then meet (meeting.c), and start their threads (beater.c). Every rank learns so in
 * which segment the news of its node is, and by which epoch to believe it.
 */
#include "beater.h"
#include "meeting.h"

#include <errno.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

static hp_status make_rows(hpi_beater *b) {
    const size_t n = (size_t)b->world->n_nodes, n_local = (size_t)b->world->n_local;
    b->ours = hpi_alloc(n_local, sizeof *b->ours);
    b->n_read = hpi_alloc(n_local, sizeof *b->n_read);
    b->left_ns = hpi_alloc((size_t)b->world->n_ranks, sizeof *b->left_ns);
    b->polls = hpi_alloc(n + 2, sizeof *b->polls);
    b->nodes = hpi_alloc(n, sizeof *b->nodes);
    for (size_t node = 0; b->nodes && node < n; node++) /* first: beater_free closes them */
        b->nodes[node].link.fd = -1;
    if (!b->ours || !b->n_read || !b->left_ns || !b->polls || !b->nodes)
        return HP_ERR_MEMORY;
    for (size_t node = 0; node < n; node++) {
        b->nodes[node].is_over = (int)node == b->world->node_of[b->world->rank];
        b->nodes[node].told = hpi_alloc(n_local, sizeof *b->nodes[node].told);
        if (!b->nodes[node].told)
            return HP_ERR_MEMORY;
    }
    return HP_OK;
}

static hp_status hold_meeting(hpi_beater *b, int listen_fd, const hpi_card *all) {
    const hp_world *world = b->world;
    const size_t n = (size_t)world->n_nodes;
    const hpi_card **cards = hpi_alloc(n, sizeof *cards);
    hpi_link *links = hpi_alloc(n, sizeof *links);
    hp_status status = HP_ERR_MEMORY;
    if (cards && links) {
        for (size_t node = 0; node < n; node++) {
            cards[node] = &all[world->heartbeat->leaders[node]];
            links[node].fd = -1;
        }
        const hpi_meeting meeting = {.listen_fd = listen_fd,
                                     .n_nodes = world->n_nodes,
                                     .mine = world->node_of[world->rank],
                                     .cards = cards,
                                     .leaders = world->heartbeat->leaders,
                                     .transport = world->transport,
                                     .timeout_ms = world->options.start_timeout_ms};
        status = hpi_meeting_hold(&meeting, links);
        for (size_t node = 0; node < n; node++) {
            b->nodes[node].link = links[node];
            b->nodes[node].is_over |= links[node].fd < 0;
        }
    }
    hpi_free(links);
    hpi_free(cards);
    return status;
}

static hp_status find_leaders(const hp_world *world, hpi_heartbeat *h) {
    h->leaders = hpi_alloc((size_t)world->n_nodes, sizeof *h->leaders);
    h->is_slow = hpi_alloc((size_t)world->n_nodes, sizeof *h->is_slow);
    h->hosts = hpi_alloc((size_t)world->n_nodes, sizeof *h->hosts);
    if (!h->leaders || !h->is_slow || !h->hosts)
        return HP_ERR_MEMORY;
    for (int i = world->n_ranks - 1; i >= 0; i--)
        h->leaders[world->node_of[i]] = i;
    for (int node = 0; node < world->n_nodes; node++)
        snprintf(h->hosts[node], sizeof h->hosts[node], "%s",
                 hpi_transport_host_of(world->transport, h->leaders[node]));
    return HP_OK;
}

/* Those of earlier worlds are not ours. Before the cards are given: who has all of them goes on,
 * and may write the first of this world. */
static void skip_old_notices(hpi_beater *b) {
    for (int i = 0; i < b->world->n_local; i++) {
        const hpi_segment *segment = &b->world->segments[b->world->local[i]];
        b->n_read[i] =
            atomic_load_explicit(&hpi_segment_news(segment)->n_own, memory_order_acquire);
    }
}

/* What this rank can do alone. */
static hp_status prepare(hp_world *world, int *out_listen_fd, hpi_card *card) {
    hpi_heartbeat *h = world->heartbeat;
    HP_TRY(find_leaders(world, h));
    if (world->local[0] == world->rank) {
        h->beater = hpi_alloc(1, sizeof *h->beater);
        if (!h->beater)
            return HP_ERR_MEMORY;
        h->beater->world = world;
        h->beater->wake_fd = hpi_fd_above_stdio(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
        if (h->beater->wake_fd < 0)
            return HPI_FAIL(HP_ERR_SYSTEM, "expected an eventfd: %s", strerror(errno));
        HP_TRY(make_rows(h->beater));
        skip_old_notices(h->beater);
        HP_TRY(hpi_meeting_open(out_listen_fd, card));
        h->epoch = card->epoch;
    }
    return hpi_news_open(world, h);
}

/* All have come, with what they have, or with nothing. */
static hp_status check_cards(const hp_world *world, const hpi_card *all) {
    for (int i = 0; i < world->n_ranks; i++)
        if (!all[i].epoch)
            return HPI_FAIL_RANK(HP_ERR_PEER, i, "rank %d on host %s could not open its heartbeat",
                                 i, hpi_transport_host_of(world->transport, i));
    return HP_OK;
}

static hp_status begin(hp_world *world, int listen_fd, const hpi_card *all) {
    hpi_heartbeat *h = world->heartbeat;
    hpi_beater *b = h->beater;
    HP_TRY(check_cards(world, all));
    h->epoch = all[world->local[0]].epoch;
    if (!b)
        return HP_OK;
    HP_TRY(hold_meeting(b, listen_fd, all));
    return hpi_beater_start(b);
}

hp_status hpi_heartbeat_open(hp_world *world) {
    hpi_card card = {0};
    int listen_fd = -1;
    if (world->n_nodes == 1)
        return HP_OK;
    const hpi_patience patience = {.operation = "world_create",
                                   .timeout_ms = world->options.start_timeout_ms};
    hpi_card *all = hpi_alloc((size_t)world->n_ranks, sizeof *all);
    world->heartbeat = hpi_alloc(1, sizeof *world->heartbeat);
    if (!all || !world->heartbeat) {
        hpi_free(all);
        return HP_ERR_MEMORY;
    }
    pthread_mutex_init(&world->heartbeat->lock, NULL);
    hp_error record;
    const hp_status own = prepare(world, &listen_fd, &card);
    hp_last_error_get(&record);
    card.epoch = own ? 0 : hpi_max(card.epoch, 1);
    hp_status status = hpi_transport_gather(world->transport, &card, sizeof card, all, &patience);
    if (own)
        status = hpi_error_set(&record);
    if (!status)
        status = begin(world, listen_fd, all);
    if (listen_fd >= 0)
        close(listen_fd);
    hpi_free(all);
    return status;
}

static void beater_free(hpi_beater *b) {
    if (!b)
        return;
    for (int node = 0; b->nodes && node < b->world->n_nodes; node++) {
        hpi_link_close(&b->nodes[node].link);
        hpi_free(b->nodes[node].told);
    }
    if (b->wake_fd >= 0)
        close(b->wake_fd);
    hpi_free(b->nodes);
    hpi_free(b->polls);
    hpi_free(b->left_ns);
    hpi_free(b->n_read);
    hpi_free(b->ours);
    hpi_free(b);
}

void hpi_heartbeat_close(hp_world *world) {
    hpi_heartbeat *h = world->heartbeat;
    if (!h)
        return;
    if (h->beater && h->beater->has_thread && !hpi_world_is_forked(world))
        hpi_beater_stop(h->beater);
    world->heartbeat = NULL;
    beater_free(h->beater);
    pthread_mutex_destroy(&h->lock);
    hpi_free(h->leaders);
    hpi_free(h->hosts);
    hpi_free((void *)(uintptr_t)h->is_slow);
    hpi_free(h);
}

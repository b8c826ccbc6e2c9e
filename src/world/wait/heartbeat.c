/* SPDX-License-Identifier: Apache-2.0
 *
 * heartbeat.c - the thread of a node's first rank that speaks with those of the other nodes.
 *
 * Every 20 ms, or when something comes, a round: hear the others, look after the ranks of this
 * node, tell each other node what it has yet to be told, a beat among it. What is to be told is
 * kept as it stands (a word for each rank, a ring of notices), and each link remembers how far it
 * is, so nothing is queued, and nothing allocated. What comes is published to all ranks of this
 * node (news.c), who are woken. A silence counts only while this thread ran.
 */
#include "meeting.h"
#include "news.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define MS UINT64_C(1000000)
enum { ROUND_MS = 20 };
enum { LINGER_MS = 2000, LAST_WORDS_MS = 200 }; /* of who leaves: for its node, for the others */
enum { LEFT_MS = 300 }; /* messages of who has left may still be under way, by other ways */

/* Another node. */
typedef struct neighbour {
    hpi_link link;
    bool is_over;       /* what came of it is settled */
    uint64_t *told;     /* [n_local] of our ranks' words */
    uint64_t n_told;    /* beater.n_changes when it had been told all */
    uint64_t n_notices; /* of our node's ring that it has been told, or need not be */
} neighbour;

struct hpi_beater {
    hp_world *world;
    pthread_t thread;
    bool has_thread;
    int wake_fd;
    _Atomic bool is_closing;
    _Atomic uint64_t n_rounds; /* done */
    uint64_t *ours;            /* [n_local] words of this node's ranks */
    uint64_t n_changes;        /* of them */
    uint64_t *n_read;          /* [n_local] notices taken from each */
    uint64_t *left_ns;         /* [n_ranks] when it was heard of one that it left; 0: it was not */
    int n_leaving;             /* of whom that is not published yet */
    neighbour *nodes;          /* [n_nodes] */
    struct pollfd *polls;      /* [n_nodes], wake_fd, the pidfds' epoll */
    uint64_t next_look_ns;
};

/* ---- this node's ranks ---------------------------------------------------------------------- */

static uint64_t own_word(hp_world *world, int rank) {
    hpi_fate fate = {.life = HPI_LIFE_NONE};
    fate.blamed =
        (int)atomic_load_explicit(&hpi_world_control(world, rank)->blamed, memory_order_acquire) -
        1;
    if (hpi_liveness_is_dead(world, rank))
        fate.life = HPI_LIFE_DEAD;
    else if (hpi_liveness_has_left(world, rank))
        fate.life = HPI_LIFE_LEFT;
    return hpi_fate_word(&fate);
}

static void look_after_own(hpi_beater *b) {
    hp_world *world = b->world;
    hpi_liveness_poll(world);
    for (int i = 0; i < world->n_local; i++) {
        const uint64_t word = own_word(world, world->local[i]);
        b->n_changes += word != b->ours[i];
        b->ours[i] = word;
    }
}

static void take_notices(hpi_beater *b) {
    const hp_world *world = b->world;
    for (int i = 0; i < world->n_local; i++) {
        const hpi_news *news = hpi_segment_news(&world->segments[world->local[i]]);
        const uint64_t n = atomic_load_explicit(&news->n_own, memory_order_acquire);
        hpi_told told;
        uint64_t since_ns;
        if (n > b->n_read[i] + HPI_N_OWN_NOTICES)
            b->n_read[i] = n - HPI_N_OWN_NOTICES;
        for (; b->n_read[i] < n; b->n_read[i]++)
            if (hpi_notice_read(news->own, HPI_N_OWN_NOTICES, b->n_read[i], &told, &since_ns))
                hpi_news_publish(b->world, &told);
    }
}

static bool all_have_ended(const hpi_beater *b) {
    for (int i = 0; i < b->world->n_local; i++)
        if (hpi_fate_of(b->ours[i]).life == HPI_LIFE_NONE)
            return false;
    return true;
}

/* ---- telling -------------------------------------------------------------------------------- */

/* false: not all, the connection takes no more now. */
static bool tell_ranks(hpi_beater *b, neighbour *n) {
    for (int i = 0; i < b->world->n_local; i++) {
        hpi_frame frame = {.kind = HPI_FRAME_RANK};
        if (n->told[i] == b->ours[i])
            continue;
        frame.is.rank.rank = b->world->local[i];
        frame.is.rank.word = b->ours[i];
        if (!hpi_link_write(&n->link, &frame))
            return false;
        n->told[i] = b->ours[i];
    }
    n->n_told = b->n_changes;
    return true;
}

/* The ring holds what others have told, too. */
static bool tell_notices(hpi_beater *b, neighbour *n) {
    const hpi_news *news = b->world->heartbeat->node;
    const uint64_t end = atomic_load_explicit(&news->n_notices, memory_order_relaxed); /* ours */
    if (end > n->n_notices + HPI_N_NOTICES)
        n->n_notices = end - HPI_N_NOTICES;
    for (; n->n_notices < end; n->n_notices++) {
        hpi_frame frame = {.kind = HPI_FRAME_NOTICE};
        uint64_t since_ns;
        if (hpi_notice_read(news->notices, HPI_N_NOTICES, n->n_notices, &frame.is.notice,
                            &since_ns) &&
            hpi_world_is_local(b->world, frame.is.notice.teller) &&
            !hpi_link_write(&n->link, &frame))
            return false;
    }
    return true;
}

/* Is there nothing left to tell? */
static bool tell(hpi_beater *b, neighbour *n) {
    return (n->n_told == b->n_changes || tell_ranks(b, n)) && tell_notices(b, n) &&
           hpi_link_flush(&n->link);
}

static bool tell_all(hpi_beater *b) {
    bool is_told = true;
    for (int node = 0; node < b->world->n_nodes; node++)
        if (!b->nodes[node].is_over)
            is_told &= tell(b, &b->nodes[node]);
    return is_told;
}

/* ---- hearing -------------------------------------------------------------------------------- */

static void is_leaving(hpi_beater *b, int rank, uint64_t now_ns) {
    b->n_leaving += !b->left_ns[rank];
    if (!b->left_ns[rank])
        b->left_ns[rank] = now_ns;
}

static void publish_leavers(hpi_beater *b, uint64_t now_ns) {
    for (int i = 0; i < b->world->n_ranks && b->n_leaving; i++) {
        hpi_fate fate = hpi_news_fate(b->world, i);
        if (!b->left_ns[i] || fate.life != HPI_LIFE_NONE || now_ns < b->left_ns[i] + LEFT_MS * MS)
            continue;
        fate.life = HPI_LIFE_LEFT;
        hpi_news_set_fate(b->world, i, &fate);
        b->n_leaving--;
        hpi_news_wake(b->world);
    }
}

static bool take_rank(hpi_beater *b, int node, const hpi_frame *frame, uint64_t now_ns) {
    hp_world *world = b->world;
    const int rank = frame->is.rank.rank;
    const hpi_fate told = hpi_fate_of(frame->is.rank.word);
    if (rank < 0 || rank >= world->n_ranks || world->node_of[rank] != node ||
        told.blamed >= world->n_ranks)
        return false;
    hpi_fate fate = hpi_news_fate(world, rank);
    fate.blamed = told.blamed;
    if (told.life == HPI_LIFE_DEAD)
        fate.life = HPI_LIFE_DEAD;
    if (told.life == HPI_LIFE_LEFT)
        is_leaving(b, rank, now_ns);
    hpi_news_set_fate(world, rank, &fate);
    hpi_news_wake(world);
    return true;
}

static bool take_notice(hpi_beater *b, int node, hpi_told *told) {
    const hp_world *world = b->world;
    if (told->teller < 0 || told->teller >= world->n_ranks ||
        world->node_of[told->teller] != node || told->end < HPI_GROUP_FAILED ||
        told->end > HPI_GROUP_DESTROYED || told->status > 0)
        return false;
    told->text[sizeof told->text - 1] = '\0';
    hpi_news_publish(b->world, told);
    return true;
}

static void hear(hpi_beater *b, int node, uint64_t now_ns) {
    hpi_link *link = &b->nodes[node].link;
    hpi_frame frame;
    while (hpi_link_read(link, now_ns, &frame))
        if (!(frame.kind == HPI_FRAME_RANK     ? take_rank(b, node, &frame, now_ns)
              : frame.kind == HPI_FRAME_NOTICE ? take_notice(b, node, &frame.is.notice)
                                               : false))
            hpi_link_spoil(link);
}

/* ---- the end of a link ---------------------------------------------------------------------- */

/* Of a node whose connection has gone: who died there first, as far as that was told; else whom its
 * first rank gave up because of; else that rank, whose connection it was. */
static int find_culprit(const hp_world *world, int node) {
    const int leader = world->heartbeat->leaders[node];
    const int blamed = hpi_news_fate(world, leader).blamed;
    for (int i = 0; i < world->n_ranks; i++)
        if (world->node_of[i] == node && hpi_news_fate(world, i).life == HPI_LIFE_DEAD)
            return i;
    return blamed >= 0 ? blamed : leader;
}

static void give_up_node(hpi_beater *b, int node, const hpi_link *link) {
    hp_world *world = b->world;
    const int leader = world->heartbeat->leaders[node], culprit = find_culprit(world, node);
    char why[128];
    for (int i = 0; i < world->n_ranks; i++) {
        hpi_fate fate = hpi_news_fate(world, i);
        if (world->node_of[i] != node || fate.life != HPI_LIFE_NONE || b->left_ns[i])
            continue;
        fate.life = HPI_LIFE_DEAD;
        fate.end = link->end;
        fate.detail = link->detail;
        if (fate.blamed < 0 && culprit != i)
            fate.blamed = culprit;
        hpi_news_set_fate(world, i, &fate);
    }
    hpi_link_why(link->end, link->detail, why, sizeof why);
    HPI_SAY(world->journal, HPI_LOG_WARNING, "world", "host %s is gone: %s",
            hpi_host_of(world, leader), why);
}

static void settle_end(hpi_beater *b, int node, uint64_t now_ns) {
    neighbour *n = &b->nodes[node];
    n->is_over = true;
    if (n->link.end == HPI_LINK_BYE)
        is_leaving(b, b->world->heartbeat->leaders[node], now_ns);
    else
        give_up_node(b, node, &n->link);
    hpi_link_close(&n->link);
    hpi_news_wake(b->world);
}

static void publish_slowness(hpi_beater *b, int node) {
    const int leader = b->world->heartbeat->leaders[node];
    hpi_fate fate = hpi_news_fate(b->world, leader);
    const uint32_t slowness = hpi_link_slowness(&b->nodes[node].link);
    if (slowness == fate.slowness)
        return;
    fate.slowness = slowness;
    hpi_news_set_fate(b->world, leader, &fate);
}

/* ---- the thread ----------------------------------------------------------------------------- */

/* Returns for how long this thread did not run when it wanted to. */
static uint64_t wait_for_any(hpi_beater *b) {
    const int n = b->world->n_nodes;
    const uint64_t begin_ns = hpi_now_ns();
    uint64_t woken;
    for (int node = 0; node < n; node++) {
        const hpi_link *link = &b->nodes[node].link;
        const short events = (short)(link->out_bytes ? POLLIN | POLLOUT : POLLIN);
        b->polls[node] =
            (struct pollfd){.fd = b->nodes[node].is_over ? -1 : link->fd, .events = events};
    }
    b->polls[n] = (struct pollfd){.fd = b->wake_fd, .events = POLLIN};
    b->polls[n + 1] = (struct pollfd){.fd = b->world->epoll_fd, .events = POLLIN};
    if (poll(b->polls, (nfds_t)n + 2, ROUND_MS) < 0)
        hpi_sleep_ns(MS); /* EINTR, or no memory for it */
    if (b->polls[n].revents && read(b->wake_fd, &woken, sizeof woken) < 0)
        return 0;
    const uint64_t took_ns = hpi_now_ns() - begin_ns;
    return took_ns > ROUND_MS * MS ? took_ns - ROUND_MS * MS : 0;
}

static void meet_node(hpi_beater *b, int node, uint64_t now_ns, uint64_t late_ns) {
    neighbour *n = &b->nodes[node];
    if (n->is_over)
        return;
    hpi_link_wake(&n->link, now_ns, late_ns);
    hear(b, node, now_ns);
    hpi_link_judge(&n->link, now_ns);
    if (n->link.end == HPI_LINK_UP) {
        hpi_link_beat(&n->link, now_ns);
        (void)tell(b, n);
        publish_slowness(b, node);
    }
    if (n->link.end != HPI_LINK_UP)
        settle_end(b, node, now_ns);
}

static void make_round(hpi_beater *b) {
    const uint64_t late_ns = wait_for_any(b), now_ns = hpi_now_ns();
    const bool is_called =
        b->polls[b->world->n_nodes].revents || b->polls[b->world->n_nodes + 1].revents;
    if (is_called || now_ns >= b->next_look_ns) {
        look_after_own(b);
        take_notices(b);
        publish_leavers(b, now_ns);
        b->next_look_ns = now_ns + ROUND_MS * MS;
    }
    for (int node = 0; node < b->world->n_nodes; node++)
        meet_node(b, node, now_ns, late_ns);
    atomic_fetch_add_explicit(&b->n_rounds, 1, memory_order_release); /* hpi_heartbeat_hurry */
}

static bool is_linked(const hpi_beater *b) {
    for (int node = 0; node < b->world->n_nodes; node++)
        if (!b->nodes[node].is_over)
            return true;
    return false;
}

/* A connection that is closed with something unread may take with it what was said last: so this
 * side says that it is done, and waits a moment until the other has closed. */
static void part(hpi_beater *b, bool is_in_order) {
    const uint64_t end_ns = hpi_now_ns() + LAST_WORDS_MS * MS;
    hpi_frame bye = {.kind = HPI_FRAME_BYE}, ignored;
    for (int node = 0; node < b->world->n_nodes; node++) {
        hpi_link *link = &b->nodes[node].link;
        if (b->nodes[node].is_over)
            continue;
        while (is_in_order && link->end == HPI_LINK_UP && !hpi_link_write(link, &bye) &&
               hpi_now_ns() < end_ns)
            hpi_sleep_ns(MS);
        while (link->end == HPI_LINK_UP && !hpi_link_flush(link) && hpi_now_ns() < end_ns)
            hpi_sleep_ns(MS);
        (void)shutdown(link->fd, SHUT_WR);
    }
    for (int node = 0; node < b->world->n_nodes; node++) {
        hpi_link *link = &b->nodes[node].link;
        while (!b->nodes[node].is_over && link->end == HPI_LINK_UP && hpi_now_ns() < end_ns)
            if (!hpi_link_read(link, hpi_now_ns(), &ignored))
                hpi_sleep_ns(MS / 4);
    }
}

static void *beat(void *argument) {
    hpi_beater *b = argument;
    uint64_t closing_ns = 0;
    bool is_in_order = false, is_done = false;
    while (!is_done) {
        make_round(b);
        if (!atomic_load_explicit(&b->is_closing, memory_order_acquire))
            continue;
        const uint64_t now_ns = hpi_now_ns();
        look_after_own(b);
        if (!closing_ns)
            closing_ns = now_ns;
        is_in_order = !hpi_liveness_is_dead(b->world, b->world->rank);
        const uint64_t linger_ns = is_in_order ? LINGER_MS * MS : 0;
        is_done = !is_linked(b) || now_ns > closing_ns + linger_ns + LAST_WORDS_MS * MS ||
                  ((all_have_ended(b) || now_ns > closing_ns + linger_ns) && tell_all(b));
    }
    part(b, is_in_order);
    return NULL;
}

static void call_thread(const hpi_beater *b) {
    const uint64_t one = 1;
    if (write(b->wake_fd, &one, sizeof one) < 0) /* it is called already */
        return;
}

void hpi_heartbeat_hurry(const hp_world *world, bool and_wait) {
    hpi_beater *b = world->heartbeat ? world->heartbeat->beater : NULL;
    if (!b || !b->has_thread || hpi_world_is_forked(world))
        return;
    const uint64_t begin_ns = hpi_now_ns();
    const uint64_t begin = atomic_load_explicit(&b->n_rounds, memory_order_acquire);
    call_thread(b);
    while (and_wait && hpi_now_ns() - begin_ns < ROUND_MS * MS &&
           atomic_load_explicit(&b->n_rounds, memory_order_acquire) < begin + 2) {
        hpi_sleep_ns(MS / 10);
        call_thread(b); /* the round under way may have looked already: one more */
    }
}

/* ---- opening and closing --------------------------------------------------------------------- */

static hp_status make_rows(hpi_beater *b) {
    const size_t n = (size_t)b->world->n_nodes, n_local = (size_t)b->world->n_local;
    b->ours = hpi_alloc(n_local, sizeof *b->ours);
    b->n_read = hpi_alloc(n_local, sizeof *b->n_read);
    b->left_ns = hpi_alloc((size_t)b->world->n_ranks, sizeof *b->left_ns);
    b->polls = hpi_alloc(n + 2, sizeof *b->polls);
    b->nodes = hpi_alloc(n, sizeof *b->nodes);
    if (!b->ours || !b->n_read || !b->left_ns || !b->polls || !b->nodes)
        return HP_ERR_MEMORY;
    for (size_t node = 0; node < n; node++) {
        b->nodes[node].link.fd = -1;
        b->nodes[node].is_over = (int)node == b->world->node_of[b->world->rank];
        b->nodes[node].told = hpi_alloc(n_local, sizeof *b->nodes[node].told);
        if (!b->nodes[node].told)
            return HP_ERR_MEMORY;
    }
    return HP_OK;
}

static hp_status start_thread(hpi_beater *b) {
    sigset_t before;
    hpi_signals_block(&before);
    const int failed = pthread_create(&b->thread, NULL, beat, b);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        return HPI_FAIL(HP_ERR_SYSTEM, "expected a thread for the heartbeat: %s", strerror(failed));
    b->has_thread = true;
    pthread_setname_np(b->thread, "hp-heartbeat");
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
    for (int i = 0; i < world->n_local; i++) /* those of earlier worlds are not ours */
        b->n_read[i] = atomic_load_explicit(
            &hpi_segment_news(&world->segments[world->local[i]])->n_own, memory_order_acquire);
    HP_TRY(hold_meeting(b, listen_fd, all));
    return start_thread(b);
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
    if (h->beater && h->beater->has_thread && !hpi_world_is_forked(world)) {
        atomic_store_explicit(&h->beater->is_closing, true, memory_order_release);
        call_thread(h->beater);
        pthread_join(h->beater->thread, NULL);
    }
    world->heartbeat = NULL;
    beater_free(h->beater);
    pthread_mutex_destroy(&h->lock);
    hpi_free(h->leaders);
    hpi_free(h->hosts);
    hpi_free((void *)(uintptr_t)h->is_slow);
    hpi_free(h);
}

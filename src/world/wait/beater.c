/* SPDX-License-Identifier: Apache-2.0
 *
 * beater.c - what the thread does: hear, look, tell.
 *
 * Every 20 ms, or when something comes, a round: hear the others, look after the ranks of this
 * node, tell each other node what it has yet to be told, a beat among it. What is to be told is
 * kept as it stands (a word for each rank, a ring of notices), and each link remembers how far it
 * is, so nothing is queued, and nothing allocated. What comes is published to all ranks of this
 * node (news.c), who are woken. A silence counts only while this thread ran.
 */
#include "beater.h"

#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#define MS UINT64_C(1000000)
enum { ROUND_MS = 20 };
enum { LINGER_MS = 2000, LAST_WORDS_MS = 200 }; /* of who leaves: for its node, for the others */
/* Messages of who has left may still be under way, by other ways: what sockets hold of them takes
 * as long as so many beats behind them. */
enum { LEFT_MS = 300, LEFT_TRIPS = 100 };

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
static bool tell_ranks(hpi_beater *b, hpi_neighbour *n) {
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
static bool tell_notices(hpi_beater *b, hpi_neighbour *n) {
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
static bool tell(hpi_beater *b, hpi_neighbour *n) {
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

static bool is_away(const hpi_beater *b, int rank, uint64_t now_ns) {
    const hpi_link *link = &b->nodes[b->world->node_of[rank]].link;
    return b->left_ns[rank] &&
           now_ns - b->left_ns[rank] > LEFT_MS * MS + LEFT_TRIPS * link->trip_ns;
}

static void publish_leavers(hpi_beater *b, uint64_t now_ns) {
    for (int i = 0; i < b->world->n_ranks && b->n_leaving; i++) {
        hpi_fate fate = hpi_news_fate(b->world, i);
        if (fate.life != HPI_LIFE_NONE || !is_away(b, i, now_ns))
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
    hpi_neighbour *n = &b->nodes[node];
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
    hpi_neighbour *n = &b->nodes[node];
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

hp_status hpi_beater_start(hpi_beater *b) {
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

void hpi_beater_stop(hpi_beater *b) {
    atomic_store_explicit(&b->is_closing, true, memory_order_release);
    call_thread(b);
    pthread_join(b->thread, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * liveness.c - knowing that a rank has ended, and that this process is a forked copy.
 *
 * Peers that are processes are watched through pidfds in one epoll set, looked at by whoever waits,
 * once a slice. A rank that left in order, or gave up, says so itself in its control block; a
 * process that ended without saying so has died. A page that is wiped on fork tells a child.
 */
#include "news.h"

#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

enum { WATCH_LAUNCHER = -1 };

hp_status hpi_liveness_open(hp_world *world) {
    world->pidfds = hpi_alloc((size_t)world->n_ranks, sizeof *world->pidfds);
    for (int i = 0; world->pidfds && i < world->n_ranks; i++)
        world->pidfds[i] = -1;
    world->is_gone = hpi_alloc((size_t)world->n_ranks, sizeof *world->is_gone);
    if (!world->is_gone || !world->pidfds)
        return HP_ERR_MEMORY;
    void *page =
        mmap(NULL, HPI_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED || madvise(page, HPI_PAGE_BYTES, MADV_WIPEONFORK))
        return HPI_FAIL(HP_ERR_SYSTEM, "expected a page that forks wipe, the system says: %s",
                        strerror(errno));
    world->fork_page = page;
    world->fork_page[0] = 1;
    return HP_OK;
}

void hpi_liveness_close(hp_world *world) {
    for (int i = 0; world->pidfds && i < world->n_ranks; i++)
        if (world->pidfds[i] >= 0)
            close(world->pidfds[i]);
    if (world->epoll_fd >= 0)
        close(world->epoll_fd);
    if (world->fork_page)
        munmap((void *)(uintptr_t)world->fork_page, HPI_PAGE_BYTES);
    hpi_free(world->pidfds);
    hpi_free((void *)(uintptr_t)world->is_gone);
}

static hp_status watch(hp_world *world, int fd, uint32_t events, int who) {
    struct epoll_event event = {.events = events, .data.fd = who};
    if (world->epoll_fd < 0)
        world->epoll_fd = hpi_fd_above_stdio(epoll_create1(EPOLL_CLOEXEC));
    if (world->epoll_fd < 0 || epoll_ctl(world->epoll_fd, EPOLL_CTL_ADD, fd, &event))
        return HPI_FAIL(HP_ERR_SYSTEM, "expected to watch for the end of rank %d, epoll: %s", who,
                        strerror(errno));
    return HP_OK;
}

hp_status hpi_liveness_watch(hp_world *world, int world_rank, int pidfd) {
    world->pidfds[world_rank] = pidfd;
    return watch(world, pidfd, EPOLLIN, world_rank);
}

hp_status hpi_liveness_watch_launcher(hp_world *world, int fd) {
    /* edge: what arrives on the socket is read by the store, only the hang-up matters here */
    return watch(world, fd, EPOLLRDHUP | EPOLLET, WATCH_LAUNCHER);
}

void hpi_liveness_poll(hp_world *world) {
    struct epoll_event events[16];
    int n = 0;
    if (world->epoll_fd >= 0)
        n = epoll_wait(world->epoll_fd, events, 16, 0);
    for (int i = 0; i < n; i++) {
        const int who = events[i].data.fd;
        if (who == WATCH_LAUNCHER) {
            if (events[i].events & (EPOLLRDHUP | EPOLLHUP))
                atomic_store_explicit(&world->is_launcher_gone, true, memory_order_release);
            continue;
        }
        atomic_store_explicit(&world->is_gone[who], true, memory_order_release);
        (void)epoll_ctl(world->epoll_fd, EPOLL_CTL_DEL, world->pidfds[who], NULL);
    }
    hpi_news_read(world);
}

/* Where it has not been mapped yet, it has not got anywhere. */
static uint64_t life_of(const hp_world *world, int world_rank) {
    if (!world->segments[world_rank].base)
        return 0;
    return atomic_load_explicit(&hpi_world_control(world, world_rank)->life, memory_order_acquire);
}

bool hpi_liveness_has_left(const hp_world *world, int world_rank) {
    if (hpi_rank_is_elsewhere(world, world_rank))
        return hpi_news_fate(world, world_rank).life == HPI_LIFE_LEFT;
    const uint64_t life = life_of(world, world_rank);
    return hpi_life_generation(life) > world->generation ||
           life == hpi_life(world->generation, HPI_LIFE_LEFT);
}

/* It is there, or was, and its start has failed. */
static bool has_given_up(const hp_world *world, int world_rank) {
    return life_of(world, world_rank) == hpi_life(world->generation, HPI_LIFE_DEAD);
}

bool hpi_liveness_is_dead(const hp_world *world, int world_rank) {
    /* in this order: a rank that left in order says so before its process ends */
    const bool is_gone = atomic_load_explicit(&world->is_gone[world_rank], memory_order_acquire);
    if (hpi_rank_is_elsewhere(world, world_rank))
        return is_gone || hpi_news_fate(world, world_rank).life == HPI_LIFE_DEAD;
    const uint64_t life = life_of(world, world_rank);
    if (life == hpi_life(world->generation, HPI_LIFE_DEAD) ||
        life == hpi_life(world->generation, HPI_LIFE_REFUSED))
        return true;
    return is_gone && !hpi_liveness_has_left(world, world_rank);
}

void hpi_liveness_blame(hp_world *world, int world_rank) {
    if (world_rank < 0 || !world->segments[world->rank].base)
        return;
    const uint64_t before =
        atomic_exchange_explicit(&hpi_world_control(world, world->rank)->blamed,
                                 1 + (uint64_t)world_rank, memory_order_acq_rel);
    if (before != 1 + (uint64_t)world_rank) /* it may end this process: other nodes know first */
        hpi_heartbeat_hurry(world, true);
}

static int blamed_by(const hp_world *world, int world_rank) {
    if (hpi_rank_is_elsewhere(world, world_rank))
        return hpi_news_fate(world, world_rank).blamed;
    return (int)atomic_load_explicit(&hpi_world_control(world, world_rank)->blamed,
                                     memory_order_acquire) -
           1;
}

int hpi_liveness_origin(hp_world *world, int world_rank) {
    hpi_liveness_poll(world); /* what a blamer saw must be seen here too */
    for (int n = 0; n < world->n_ranks; n++) {
        const int next = blamed_by(world, world_rank);
        /* a blame is old news where its rank is well, but of a silent rank that its start failed of
         */
        if (next < 0 || next >= world->n_ranks || next == world->rank ||
            !(hpi_liveness_is_dead(world, next) || hpi_liveness_has_left(world, next) ||
              has_given_up(world, world_rank)))
            break;
        world_rank = next;
    }
    return world_rank;
}

hp_status hpi_group_listen(const hp_group *group, const char *operation) {
    char doing[64];
    if (group->nodes) {
        HP_TRY(hpi_group_listen(group->inner, operation));
        return hpi_news_of(group, operation);
    }
    const int failed = hpi_group_find_failed(group);
    if (failed < 0)
        return HP_OK;
    snprintf(doing, sizeof doing, "rank %d was in %s", group->world->rank, operation);
    return hpi_group_told(group, failed, doing);
}

hp_status hpi_group_look(const hp_group *group, int rank, const char *operation) {
    hp_world *world = group->world;
    const int world_rank = group->world_ranks[rank];
    hpi_liveness_poll(world);
    const bool is_dead = hpi_liveness_is_dead(world, world_rank);
    if (!is_dead) /* first: who has failed may have left because of it */
        HP_TRY(hpi_group_listen(group, operation));
    const bool has_left = !is_dead && hpi_liveness_has_left(world, world_rank);
    if (!is_dead && !has_left && !(group->nodes && hpi_group_has_destroyed(group, rank)))
        return HP_OK;
    char where[256] = "";
    const int culprit = is_dead ? hpi_liveness_origin(world, world_rank) : world_rank;
    if (hpi_rank_is_elsewhere(world, culprit))
        hpi_news_describe(world, culprit, where, sizeof where);
    hpi_liveness_blame(world, culprit);
    return HPI_FAIL_RANK(
        HP_ERR_PEER, culprit, "%s: expected rank %d (world %d) of %s, rank %d %s%s%s", operation,
        rank, world_rank, group->name, culprit,
        is_dead ? "died" : "left the job (hp_world_destroy)", *where ? " " : "", where);
}

hp_status hp_world_check(hp_world *world) {
    if (!world)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a world, given NULL");
    HP_TRY(hpi_world_usable(world));
    hpi_liveness_poll(world);
    if (atomic_load_explicit(&world->is_launcher_gone, memory_order_acquire))
        return HPI_FAIL(HP_ERR_PEER,
                        "expected the launcher (hprun) of rank %d to be alive, it died",
                        world->rank);
    for (int i = 0; i < world->n_ranks; i++) {
        char text[256];
        if (i == world->rank || !hpi_liveness_is_dead(world, i))
            continue;
        const int origin = hpi_liveness_origin(world, i);
        const bool is_dead = hpi_liveness_is_dead(world, origin);
        hpi_liveness_blame(world, origin);
        hpi_world_describe(world, origin, text, sizeof text);
        return HPI_FAIL_RANK(HP_ERR_PEER, origin,
                             "expected every rank to be alive, rank %d %s%s %s", origin,
                             is_dead ? "died" : "left the job (hp_world_destroy)",
                             hpi_rank_is_elsewhere(world, origin) ? "" : " while", text);
    }
    return HP_OK;
}

hp_status hpi_world_tell_unusable(const hp_world *world) {
    if (hpi_world_is_forked(world))
        return HPI_FAIL(HP_ERR_FORKED,
                        "expected the process that created the world of rank %d, this is a child "
                        "made by fork",
                        world->rank);
    return HPI_FAIL(HP_ERR_FAILED, "rank %d was given up and takes no further part", world->rank);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * beside.c - calls of the inner group, while messages are under way.
 *
 * Most networks move a message while its ranks look at it, and no longer. A rank that slept in an
 * inner call until a neighbour comes, who waits for the other node, which waits for a message of
 * the sleeper, would end them all. So members of a node come together first, looking at their
 * messages meanwhile; the call that follows waits for nobody.
 */
#include "across.h"

#define SPIN_NS UINT64_C(200000)
#define LEAST_STEP_NS UINT64_C(5000)
#define MOST_STEP_NS UINT64_C(100000)
#define LOOK_NS UINT64_C(5000000)

/* Look at a message that is under way, which moves all of them. */
static hp_status look_at(hpi_across *a, hpi_transfer **transfer) {
    const hp_status status = hpi_remote_test(a->group, *transfer);
    if (status != HP_IN_PROGRESS)
        *transfer = NULL;
    return status;
}

/* A neighbour that has not come: may it still? */
static hp_status check_beside(hpi_across *a, int place, uint64_t waited_ns) {
    const uint64_t timeout_ms = hpi_world_options(hp_group_world(a->group))->signal_timeout_ms;
    const int world_rank = hp_group_world_rank(a->inner, place);
    HP_TRY(hpi_group_look(a->inner, place, a->run->name));
    HP_TRY(hpi_group_listen(a->group, a->run->name));
    if (waited_ns < hpi_ms_to_ns(timeout_ms))
        return HP_OK;
    return HPI_FAIL_RANK(HP_ERR_TIMEOUT, world_rank,
                         "rank %d waited %llu ms in %s #%llu of %s for rank %d of its node",
                         hp_world_rank(hp_group_world(a->group)), (unsigned long long)timeout_ms,
                         a->run->name, (unsigned long long)a->run->seq, hpi_group_name(a->group),
                         world_rank);
}

static hp_status await(hpi_across *a, int place) {
    const bool may_spin = hpi_thread_spins(hp_group_world(a->group));
    uint64_t begin_ns = 0, next_look_ns = 0, step_ns = LEAST_STEP_NS;
    while (!hpi_line_reached(a->inner, place, HPI_LINE_ENTER, a->n_inner)) {
        hpi_transfer **flying = hpi_find_flying(a);
        if (!flying)
            return hpi_line_wait(a->inner, place, HPI_LINE_ENTER, a->n_inner, a->run->name);
        HP_TRY(look_at(a, flying));
        const uint64_t now_ns = hpi_now_ns();
        begin_ns = begin_ns ? begin_ns : now_ns;
        if (now_ns >= next_look_ns) {
            HP_TRY(check_beside(a, place, now_ns - begin_ns));
            next_look_ns = now_ns + LOOK_NS;
        }
        if (may_spin && now_ns - begin_ns < SPIN_NS)
            continue;
        hpi_sleep_ns(step_ns);
        step_ns = hpi_min(2 * step_ns, MOST_STEP_NS);
    }
    return HP_OK;
}

hp_status hpi_across_inner(hpi_across *a, hp_collective what, const hpi_coll *c) {
    hpi_line_post(a->inner, HPI_LINE_ENTER, ++a->n_inner);
    for (int k = 1; k < a->size; k++)
        HP_TRY(await(a, (a->place + k) % a->size));
    return hpi_coll_run(a->inner, what, c, true, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * cores.c - has each rank of the node a core of its own?
 *
 * Ranks may be bound to different cores, so no rank can tell from its own alone, and ranks that
 * answered differently would wait and move in ways that do not fit each other. Each says in its
 * control block which cores it may use, before it arrives; when all have arrived all read the same
 * masks and come to the same answer: a matching of ranks and cores, found by augmenting paths.
 * Source: Kuhn 1955, The Hungarian method, for equal costs.
 */
#include "inside.h"

#include <sched.h>

enum { N_CORES = 64 * HPI_CORES_WORDS };
_Static_assert(N_CORES == CPU_SETSIZE, "a bit for each core of a cpu_set_t");

typedef struct matching {
    const hp_world *world;
    int owner[N_CORES];     /* the rank that has it; -1: none */
    bool is_tried[N_CORES]; /* on the present path */
} matching;

/* Relaxed: the rank's arrival publishes it, and whoever reads has seen that. */
void hpi_cores_say(hp_world *world) {
    hpi_control *control = hpi_world_control(world, world->rank);
    cpu_set_t allowed;
    uint64_t words[HPI_CORES_WORDS] = {0};
    if (!sched_getaffinity(0, sizeof allowed, &allowed))
        for (size_t core = 0; core < N_CORES; core++)
            words[core / 64] |= (uint64_t) !!CPU_ISSET(core, &allowed) << core % 64;
    for (int i = 0; i < HPI_CORES_WORDS; i++)
        atomic_store_explicit(&control->cores[i], words[i], memory_order_relaxed);
}

static bool may_use(const hp_world *world, int rank, int core) {
    return atomic_load_explicit(&hpi_world_control(world, rank)->cores[core / 64],
                                memory_order_relaxed) >>
               core % 64 &
           1;
}

/* A core that nobody has; -1: none. */
static int free_core(const matching *m, int rank) {
    for (int core = 0; core < N_CORES; core++)
        if (m->owner[core] < 0 && may_use(m->world, rank, core))
            return core;
    return -1;
}

/* Give `rank` a core: a free one, else one whose owner can be given another. */
static bool seat(matching *m, int rank) {
    int found = free_core(m, rank);
    for (int core = 0; found < 0 && core < N_CORES; core++) {
        if (m->is_tried[core] || !may_use(m->world, rank, core))
            continue;
        m->is_tried[core] = true;
        if (seat(m, m->owner[core]))
            found = core;
    }
    if (found >= 0)
        m->owner[found] = rank;
    return found >= 0;
}

bool hpi_cores_suffice(const hp_world *world) {
    matching m = {.world = world};
    memset(m.owner, -1, sizeof m.owner);
    for (int i = 0; i < world->n_local; i++) {
        memset(m.is_tried, 0, sizeof m.is_tried);
        if (!seat(&m, world->local[i]))
            return false;
    }
    return true;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * world.c - joining and leaving a job.
 *
 * Joining: find out who we are, get every rank's segment mapped (hub.c or bootstrap.c), take the
 * next generation on the own segment, and wait until everybody is there. A segment may serve one
 * world after another; the ranks meet twice, because its heap may be cleared only when all have
 * left the world before. Leaving says so in the control block and waits for nobody.
 */
#include "inside.h"

#include <sched.h>
#include <stdio.h>
#include <unistd.h>

void hpi_world_doing(hp_world *world, const char *text) {
    hpi_text_write(hpi_world_control(world, world->rank)->doing, HPI_DOING_WORDS, text);
}

static void set_life(hp_world *world, unsigned state) {
    atomic_store_explicit(&hpi_world_control(world, world->rank)->life,
                          hpi_life(world->generation, state), memory_order_seq_cst);
    for (int i = 0; i < world->n_local; i++)
        if (world->local[i] != world->rank && world->segments[world->local[i]].base)
            hpi_world_wake(world, world->local[i]);
}

void hpi_world_abandon(hp_world *world) {
    set_life(world, HPI_LIFE_DEAD);
}

/* Reach `state` and wait until every rank of this node has. */
static hp_status gather(hp_world *world, unsigned state, const char *operation) {
    set_life(world, state);
    for (int k = 0; k < world->n_local; k++) {
        const int i = world->local[k];
        const hpi_reason reason = {
            operation, NULL, i, world->generation, world->options.start_timeout_ms, 0};
        if (i != world->rank)
            HP_TRY(hpi_world_wait(world, &hpi_world_control(world, i)->life, HP_GE,
                                  hpi_life(world->generation, state), &reason));
        /* nobody gets further before we have arrived: this one has refused */
        if (state == HPI_LIFE_ARRIVED && hpi_liveness_is_dead(world, i))
            return HPI_FAIL_RANK(HP_ERR_PEER, hpi_liveness_origin(world, i),
                                 "rank %d gave up while the ranks started", i);
    }
    return HP_OK;
}

/* Of a thread that refused: the world that it refused, or where the others have given that up too,
 * the one after it. */
static uint64_t generation_again(const hp_world *world, uint64_t refused) {
    uint64_t next = refused;
    for (int i = 0; i < world->n_local; i++) {
        const uint64_t life = atomic_load_explicit(&hpi_world_control(world, world->local[i])->life,
                                                   memory_order_acquire);
        const unsigned state = hpi_life_state(life);
        const bool has_ended = state == HPI_LIFE_DEAD || state == HPI_LIFE_LEFT;
        next = hpi_max(next, hpi_life_generation(life) + has_ended);
    }
    return next;
}

/* The next world of this segment. Refuses a rank that is in the job already. */
static hp_status take_generation(hp_world *world) {
    hpi_control *control = hpi_world_control(world, world->rank);
    uint64_t life = atomic_load_explicit(&control->life, memory_order_acquire);
    const unsigned state = hpi_life_state(life);
    uint64_t next = hpi_life_generation(life) + 1;
    if (state == HPI_LIFE_REFUSED)
        next = generation_again(world, next - 1);
    if (state == HPI_LIFE_ALIVE || state == HPI_LIFE_ARRIVED ||
        !atomic_compare_exchange_strong_explicit(&control->life, &life,
                                                 hpi_life(next, HPI_LIFE_ARRIVED),
                                                 memory_order_acq_rel, memory_order_relaxed))
        return HPI_FAIL(HP_ERR_STATE,
                        "expected rank %d to join once at a time, it is in the job already",
                        world->rank);
    world->generation = next;
    world->life_if_dead = hpi_life(next, HPI_LIFE_DEAD);
    return HP_OK;
}

static hp_status create_world_group(hp_world *world) {
    int *ranks = hpi_alloc((size_t)world->n_ranks, sizeof *ranks);
    if (!ranks)
        return HP_ERR_MEMORY;
    for (int i = 0; i < world->n_ranks; i++)
        ranks[i] = i;
    const hp_status status = hp_group_create(world, ranks, world->n_ranks, &world->group);
    hpi_free(ranks);
    if (!status)
        hpi_group_set_name(world->group, "world");
    return status;
}

/* From mapped segments to a world in which everybody is. */
static hp_status meet(hp_world *world) {
    hpi_cores_say(world); /* before the generation is taken, which says that we have arrived */
    HP_TRY(take_generation(world));
    atomic_store_explicit(&hpi_world_control(world, world->rank)->blamed, 0, memory_order_release);
    hpi_world_doing(world, "joining the job");
    HP_TRY(gather(world, HPI_LIFE_ARRIVED, "world_create (arriving)"));
    world->can_spin = hpi_cores_suffice(world); /* nobody says anew before we are alive */
    if (world->generation > 1)
        HP_TRY(hpi_segment_clear(&world->segments[world->rank]));
    HP_TRY(gather(world, HPI_LIFE_ALIVE, "world_create"));
    HP_TRY(hpi_heartbeat_open(world));
    HP_TRY(create_world_group(world));
    hpi_world_doing(world, "running, waiting for nobody");
    return HP_OK;
}

/* Who knows of an end waits for nobody; others are watched until they have come to the same place.
 */
static void close_across(hp_world *world) {
    for (int i = 0; world->transport && world->segments && i < world->n_ranks; i++)
        if (hpi_liveness_is_dead(world, i))
            world->transport->is_lost = true;
    hpi_transport_close(world->transport);
    hpi_heartbeat_close(world);
}

static void world_free(hp_world *world) {
    /* in a forked child the connections are the parent's */
    const bool is_forked = world->fork_page && hpi_world_is_forked(world);
    if (!is_forked)
        close_across(world);
    hpi_liveness_close(world);
    if (world->hub)
        hpi_free(world->segments);
    else
        hpi_bootstrap_close(world);
    hpi_lists_free(world);
    hpi_world_unplace(world);
    if (world->owns_hub)
        hp_hub_destroy(world->hub);
    hpi_journal_destroy(world->journal);
    hpi_free(world);
}

static hp_status map_ranks(hp_world *world, const hp_world_config *config,
                           const hpi_identity *identity) {
    hp_hub *hub = config->hub;
    const bool is_single = identity->n_ranks == 1 && identity->origin != HPI_FROM_LAUNCHER;
    if (identity->origin == HPI_FROM_TRANSPORT)
        return hpi_bootstrap_across(world);
    if (!hub && !is_single)
        return hpi_bootstrap(world, identity);
    if (!hub) {
        HP_TRY(hp_hub_create(1, &hub));
        world->owns_hub = true;
    }
    world->hub = hub;
    return hpi_hub_join(world, hub);
}

static void say_started(const hp_world *world) {
    char elsewhere[64] = "";
    uint64_t bytes = 0;
    cpu_set_t allowed;
    (void)hpi_world_segment(world, world->rank, &bytes);
    if (world->n_nodes > 1)
        snprintf(elsewhere, sizeof elsewhere, " of %d on %d nodes", world->n_ranks, world->n_nodes);
    HPI_SAY(
        world->journal, HPI_LOG_INFO, "world",
        "start: %d rank%s on this node%s, %s; %d cores allowed, ranks %s; %llu bytes of symmetric "
        "memory reserved; library %s (%s), pid %d",
        world->n_local, world->n_local == 1 ? "" : "s", elsewhere,
        hpi_world_is_threads(world) ? "threads" : "processes",
        sched_getaffinity(0, sizeof allowed, &allowed) ? 0 : CPU_COUNT(&allowed),
        world->can_spin ? "spin" : "sleep", (unsigned long long)bytes, hp_version(),
        hp_version_build(), (int)getpid());
}

static hp_status open_transport(hp_world *world, hpi_identity *identity) {
    HP_TRY(
        hpi_transport_open(&world->options, identity->rank, identity->n_ranks, &world->transport));
    identity->rank = world->transport->rank;
    identity->n_ranks = world->transport->n_ranks;
    if (identity->n_ranks > HPI_MAX_RANKS)
        return HPI_FAIL(HP_ERR_LIMIT, "expected at most %d ranks in a job, given %d", HPI_MAX_RANKS,
                        identity->n_ranks);
    return HP_OK;
}

static hp_status join(hp_world *world, const hp_world_config *config) {
    hpi_identity identity;
    HP_TRY(config->version ? hp_version_check(config->version) : HP_OK);
    HP_TRY(hpi_options_load(&world->options));
    HP_TRY(hpi_who_are_we(config, &world->options, &identity));
    if (identity.origin == HPI_FROM_TRANSPORT)
        HP_TRY(open_transport(world, &identity));
    world->rank = identity.rank;
    world->n_ranks = identity.n_ranks;
    HP_TRY(hpi_journal_create(&world->options, world->rank, &world->journal));
    if (config->store)
        world->store = *config->store;
    HP_TRY(hpi_liveness_open(world));
    HP_TRY(hpi_world_place(world, NULL));
    HP_TRY(map_ranks(world, config, &identity));
    world->life = &hpi_world_control(world, world->rank)->life;
    return meet(world);
}

/* A rank that fails before it has arrived is dead in the world that the others are making. */
static void refuse(hpi_control *control, unsigned how) {
    uint64_t life = atomic_load_explicit(&control->life, memory_order_acquire);
    const unsigned state = hpi_life_state(life);
    if (state != HPI_LIFE_ALIVE && state != HPI_LIFE_ARRIVED && state != HPI_LIFE_REFUSED)
        (void)atomic_compare_exchange_strong_explicit(&control->life, &life,
                                                      hpi_life(hpi_life_generation(life) + 1, how),
                                                      memory_order_seq_cst, memory_order_relaxed);
}

/* Peers that already know of this rank must not wait for it, and should learn whose fault it was.
 * `record`: of the failure. */
static void give_up(hp_world *world, const hp_error *record) {
    if (world->journal)
        hpi_log_failure(&world->journal->log, "world");
    if ((record->status == HP_ERR_PEER || record->status == HP_ERR_TIMEOUT) && world->segments)
        hpi_liveness_blame(world, record->world_rank);
    hp_group_destroy(world->group);
    if (world->generation && world->segments)
        hpi_world_abandon(world);
    else if (!world->hub && world->segments && world->segments[world->rank].base)
        refuse(hpi_world_control(world, world->rank), HPI_LIFE_DEAD);
    if (world->share)
        hpi_share_refuse(world, record->world_rank);
    world_free(world);
}

/* The same of a rank that is a thread and may not even have a world. It may come again before the
 * others do. */
static void refuse_hub(const hp_world_config *config) {
    if (config->hub && config->rank >= 0 && config->rank < hpi_hub_size(config->hub))
        refuse(hpi_hub_control(config->hub, config->rank), HPI_LIFE_REFUSED);
}

hp_status hp_world_create(const hp_world_config *config, hp_world **out_world) {
    hp_world_config all = HP_WORLD_CONFIG_INIT;
    if (!out_world || (config && (config->size < sizeof(size_t) || config->size > sizeof all)))
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected a place for the world and a config made with "
                        "HP_WORLD_CONFIG_INIT, given %p and a size of %zu",
                        (void *)out_world, config ? config->size : 0);
    if (config)
        memcpy(&all, config, config->size);
    hp_world *world = hpi_alloc(1, sizeof *world);
    if (!world) {
        refuse_hub(&all);
        return HP_ERR_MEMORY;
    }
    world->epoll_fd = -1;
    hpi_probe probe = hpi_probe_begin(HPI_EVENT_world_create, NULL, NULL, 0, 0);
    const hp_status status = join(world, &all);
    if (status) {
        hp_error record;
        hp_last_error_get(&record);
        const bool has_arrived = world->generation;
        give_up(world, &record);
        if (!has_arrived)
            refuse_hub(&all);
        (void)hpi_error_set(&record);
    } else {
        probe.journal = world->journal;
        probe.rank = world->rank;
        say_started(world);
        *out_world = world;
    }
    return hpi_probe_end(&probe, status);
}

void hp_world_destroy(hp_world *world) {
    if (!world)
        return;
    const bool is_forked = hpi_world_usable(world) == HP_ERR_FORKED;
    if (is_forked)
        hpi_log_mute(&world->journal->log);
    hp_group_destroy(world->group);
    /* in a forked child the shared state, and the threads of the rooms above, are the parent's */
    for (int slot = HPI_N_SLOTS - 1; slot >= 0 && !is_forked; slot--)
        if (world->attached[slot].destroy)
            world->attached[slot].destroy(world->attached[slot].state);
    if (!is_forked) {
        hpi_world_doing(world, "done with hp_world_destroy");
        set_life(world, HPI_LIFE_LEFT);
    }
    if (!is_forked && world->store.close)
        world->store.close(world->store.context);
    world_free(world);
}

/* ---- what a world is ----------------------------------------------------------------------- */

int hp_world_rank(const hp_world *world) {
    return world->rank;
}
int hp_world_size(const hp_world *world) {
    return world->n_ranks;
}
int hp_world_local_rank(const hp_world *world) {
    return world->place_of[world->rank];
}
int hp_world_local_size(const hp_world *world) {
    return world->n_local;
}
hp_group *hp_world_group(const hp_world *world) {
    return world->group;
}

bool hpi_world_is_threads(const hp_world *world) {
    return world->hub;
}
bool hpi_world_is_local(const hp_world *world, int world_rank) {
    return world_rank >= 0 && world_rank < world->n_ranks &&
           world->node_of[world_rank] == world->node_of[world->rank];
}
const char *hpi_world_host(const hp_world *world, int world_rank) {
    return world->transport ? hpi_transport_host_of(world->transport, world_rank) : "this host";
}
void hpi_world_describe(const hp_world *world, int world_rank, char *out_text, size_t size) {
    if (hpi_world_is_local(world, world_rank))
        hpi_control_describe(hpi_world_control(world, world_rank), out_text, size);
    else
        hpi_news_describe(world, world_rank, out_text, size);
}
void *hpi_world_segment(const hp_world *world, int world_rank, uint64_t *out_bytes) {
    if (!hpi_world_is_local(world, world_rank))
        return NULL;
    *out_bytes = world->segments[world_rank].bytes - HPI_HEAP_OFFSET;
    return world->segments[world_rank].base + HPI_HEAP_OFFSET;
}

hp_status hpi_world_commit(hp_world *world, uint64_t offset, uint64_t bytes) {
    const hpi_segment *own = &world->segments[world->rank];
    HP_TRY(hpi_segment_commit(own, offset, bytes));
    if (world->options.huge_pages)
        hpi_make_huge(own->base + HPI_HEAP_OFFSET, offset, offset + bytes);
    return HP_OK;
}

hp_status hpi_world_check_memory(hp_world *world, uint64_t bytes, const char *what) {
    hpi_memory memory;
    hpi_memory_read("", &memory);
    HP_TRY(hpi_memory_check(&memory, bytes, what));
    const uint64_t each = hpi_ceil_div(bytes, (uint64_t)world->n_local);
    if (each > memory.file_bytes)
        return HPI_FAIL(
            HP_ERR_LIMIT,
            "expected RLIMIT_FSIZE (ulimit -f) to allow %llu bytes (%s), it allows %llu",
            (unsigned long long)each, what, (unsigned long long)memory.file_bytes);
    return HP_OK;
}

bool hpi_world_attach(hp_world *world, int slot, void *state, void (*destroy)(void *state)) {
    return hpi_attach(&world->attached[slot], state, destroy);
}

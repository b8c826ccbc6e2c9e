/* SPDX-License-Identifier: Apache-2.0
 *
 * bootstrap.c - from a key-value store to the mapped segments of ranks that are processes.
 *
 * Every rank makes its segment and its socket, and says hello in the store: its version, its
 * options, its machine, the token of its socket, or why it cannot take part. Everybody reads all
 * hellos and so comes to the same verdict. Then segments are passed round as descriptors, and the
 * messages that carry them tell which process to watch. That done, the store is not needed any
 * more.
 */
#include "../inside.h"
#include "hello.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- saying hello -------------------------------------------------------------------------- */

static void read_boot_id(char *out) {
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (!file || !fgets(out, BOOT_BYTES, file))
        snprintf(out, BOOT_BYTES, "?");
    out[strcspn(out, "\n")] = '\0';
    if (file)
        fclose(file);
}

static uint64_t pid_namespace(void) {
    struct stat info;
    return stat("/proc/self/ns/pid", &info) ? 0 : info.st_ino;
}

void hpi_hello_fill(const hp_world *world, hello *h) {
    h->magic = HELLO_MAGIC;
    h->layout_version = HPI_LAYOUT_VERSION;
    h->n_ranks = world->n_ranks;
    h->heap_size = world->options.heap_size;
    h->pid = getpid();
    h->pid_namespace = pid_namespace();
    snprintf(h->version, sizeof h->version, "%s", hp_version());
    (void)snprintf(h->thresholds, sizeof h->thresholds, "%s", world->options.thresholds);
    read_boot_id(h->boot_id);
    if (gethostname(h->host, sizeof h->host - 1))
        snprintf(h->host, sizeof h->host, "?");
}

/* The memfd of the launcher stays open in this process, for a world after this one. */
static hp_status adopt_segment(const hpi_identity *identity, uint64_t heap_bytes,
                               hpi_segment *out) {
    const int fd = fcntl(identity->segment_fd, F_DUPFD_CLOEXEC, 3);
    if (fd < 0)
        return HPI_FAIL(HP_ERR_STATE,
                        "expected the launcher's descriptor %d, it was closed before this program "
                        "started: %s",
                        identity->segment_fd, strerror(errno));
    /* programs that this rank starts are not ranks */
    (void)fcntl(identity->segment_fd, F_SETFD, FD_CLOEXEC);
    (void)fcntl(identity->store_fd, F_SETFD, FD_CLOEXEC);
    return hpi_segment_adopt(fd, heap_bytes, identity->rank, out);
}

/* What this rank can do alone. */
static hp_status prepare(hp_world *world, const hpi_identity *identity, hello *h) {
    uint64_t heap_bytes;
    hpi_segment *own = &world->segments[world->rank];
    HP_TRY(hpi_share_open(world, h->token));
    HP_TRY(hpi_heap_check(&world->options, world->n_ranks));
    HP_TRY(hpi_heap_bytes(&world->options, world->n_ranks, &heap_bytes));
    if (identity->origin == HPI_FROM_LAUNCHER)
        return adopt_segment(identity, heap_bytes, own);
    return hpi_segment_create(heap_bytes, world->rank, own);
}

static uint64_t next_generation(const hp_world *world) {
    const hpi_segment *own = world->segments ? &world->segments[world->rank] : NULL;
    return own && own->base ? 1 + hpi_life_generation(atomic_load_explicit(
                                      &hpi_segment_control(own)->life, memory_order_acquire))
                            : 1;
}

static void hello_key(char *key, size_t size, uint64_t generation, int rank) {
    snprintf(key, size, "hyperparallel/%llu/hello/%d", (unsigned long long)generation, rank);
}

/* ---- reading everybody's ------------------------------------------------------------------- */

static void append_rank(char *list, size_t size, int rank) {
    const size_t length = strlen(list);
    snprintf(list + length, size - length, "%s%d", length ? ", " : "", rank);
}

hp_status hpi_hello_read(hello *h, int rank, size_t n_bytes) {
    if (n_bytes != sizeof *h || h->magic != HELLO_MAGIC || h->status > 0)
        return HPI_FAIL_RANK(HP_ERR_VERSION, rank,
                             "expected the hello of rank %d to be of this library (%s), it is of "
                             "another version",
                             rank, hp_version());
    h->message[MESSAGE_BYTES - 1] = h->version[VERSION_BYTES - 1] = '\0';
    h->host[HOST_BYTES - 1] = h->boot_id[BOOT_BYTES - 1] = '\0';
    h->thresholds[TEXT_BYTES - 1] = '\0';
    return HP_OK;
}

/* A rank that does not come costs the timeout once; after it the others are only looked for. */
static hp_status read_hellos(const hp_store *store, const hp_world *world, uint64_t generation,
                             hello *all) {
    char key[HPI_STORE_KEY_BYTES], missing[200] = "";
    const uint64_t deadline_ns = hpi_now_ns() + world->options.start_timeout_ms * UINT64_C(1000000);
    int first_missing = -1;
    for (int i = 0; i < world->n_ranks; i++) {
        size_t n_bytes = 0;
        const uint64_t now_ns = hpi_now_ns();
        const uint64_t left_ms = now_ns < deadline_ns ? (deadline_ns - now_ns) / 1000000 : 0;
        hello_key(key, sizeof key, generation, i);
        const hp_status status =
            store->get(store->context, key, &all[i], sizeof all[i], &n_bytes, hpi_max(left_ms, 1));
        if (status == HP_ERR_TIMEOUT) {
            append_rank(missing, sizeof missing, i);
            first_missing = first_missing < 0 ? i : first_missing;
            continue;
        }
        HP_TRY(status);
        HP_TRY(hpi_hello_read(&all[i], i, n_bytes));
    }
    if (first_missing >= 0)
        return HPI_FAIL_RANK(HP_ERR_TIMEOUT, first_missing,
                             "expected %d ranks within %llu ms, these did not come: %s",
                             world->n_ranks, (unsigned long long)world->options.start_timeout_ms,
                             missing);
    return HP_OK;
}

static hp_status compare_hello(const hello *first, const hello *h, int rank) {
    if (h->layout_version != first->layout_version || strcmp(h->version, first->version))
        return HPI_FAIL_RANK(
            HP_ERR_VERSION, rank,
            "expected one library on all ranks, rank %d has %s (layout %u) and rank "
            "0 has %s (layout %u)",
            rank, h->version, h->layout_version, first->version, first->layout_version);
    if (h->n_ranks != first->n_ranks)
        return HPI_FAIL_RANK(HP_ERR_MISMATCH, rank,
                             "expected one number of ranks, rank %d says %d and rank 0 says %d",
                             rank, h->n_ranks, first->n_ranks);
    if (h->heap_size != first->heap_size)
        return HPI_FAIL_RANK(
            HP_ERR_MISMATCH, rank,
            "expected one SYMMETRIC_MEMORY_HEAP_SIZE, rank %d says %llu and rank 0 "
            "says %llu",
            rank, (unsigned long long)h->heap_size, (unsigned long long)first->heap_size);
    if (strcmp(h->thresholds, first->thresholds) != 0)
        return HPI_FAIL_RANK(HP_ERR_MISMATCH, rank,
                             "expected one HYPER_PARALLEL_THRESHOLDS, rank %d says \"%.120s\" and "
                             "rank 0 says \"%.120s\"",
                             rank, h->thresholds, first->thresholds);
    return HP_OK;
}

static hp_status check_machines(const hello *all, int n_ranks) {
    char others[200] = "";
    int first = -1;
    for (int i = 0; i < n_ranks; i++) {
        if (!strcmp(all[i].boot_id, all[0].boot_id))
            continue;
        append_rank(others, sizeof others, i);
        first = first < 0 ? i : first;
    }
    if (first >= 0)
        return HPI_FAIL_RANK(
            HP_ERR_UNSUPPORTED, first,
            "expected all ranks on the machine of rank 0 (%s), these are on others: "
            "%s (rank %d on %s); over several machines a job is started by mpirun, srun or hprun "
            "--hosts",
            all[0].host, others, first, all[first].host);
    return HP_OK;
}

hp_status hpi_hellos_check(const hello *all, const hp_world *world) {
    for (int i = 0; i < world->n_ranks; i++)
        if (all[i].status && i != world->rank)
            return HPI_FAIL_RANK((hp_status)all[i].status, i, "rank %d cannot take part: %s", i,
                                 all[i].message);
    for (int i = 1; i < world->n_ranks; i++)
        HP_TRY(compare_hello(&all[0], &all[i], i));
    return HP_OK;
}

/* ---- passing segments round ----------------------------------------------------------------- */

/* From now on a rank that dies is noticed, where its number means something to us. */
static hp_status watch_early(hp_world *world, const hello *all) {
    const hello *own = &all[world->rank];
    for (int k = 0; k < world->n_local; k++) {
        const int i = world->local[k];
        if (i == world->rank || !own->pid_namespace || all[i].pid_namespace != own->pid_namespace)
            continue;
        const int pidfd = hpi_fd_above_stdio((int)syscall(SYS_pidfd_open, all[i].pid, 0));
        if (pidfd < 0)
            return errno == ESRCH
                       ? HPI_FAIL_RANK(HP_ERR_PEER, i, "rank %d died while the ranks started", i)
                       : HPI_FAIL_RANK(HP_ERR_SYSTEM, i,
                                       "expected to watch the process of rank %d, pidfd_open: %s",
                                       i, strerror(errno));
        HP_TRY(hpi_liveness_watch(world, i, pidfd));
    }
    return HP_OK;
}

/* The kernel said which process the segment came from; needed where watch_early could not. */
static hp_status watch_sender(hp_world *world, int rank) {
    const int pidfd = hpi_share_pidfd(world, rank);
    if (world->pidfds[rank] >= 0) {
        if (pidfd >= 0)
            close(pidfd);
        return HP_OK;
    }
    if (pidfd < 0)
        return HPI_FAIL_RANK(HP_ERR_SYSTEM, rank,
                             "expected to watch the process of rank %d, there is no pidfd of it",
                             rank);
    return hpi_liveness_watch(world, rank, pidfd);
}

static hp_status map_peer(hp_world *world, int rank) {
    int fd;
    HP_TRY(hpi_share_receive(world, rank, 0, NULL, &fd));
    const hp_status status = hpi_segment_map(fd, rank, &world->segments[rank]);
    close(fd);
    HP_TRY(status);
    return watch_sender(world, rank);
}

hp_status hpi_pass_segments(hp_world *world, const hello *all) {
    const int n = world->n_local, place = world->place_of[world->rank];
    const int *local = world->local;
    for (int k = 0; k < n; k++)
        hpi_share_peer(world, local[k], all[local[k]].token);
    HP_TRY(watch_early(world, all));
    for (int k = 0; k < n; k++)
        if (k != place)
            HP_TRY(hpi_share_greet(world, local[k]));
    /* each begins behind itself, so that not everybody sends to the first at once */
    for (int k = 1; k < n; k++)
        HP_TRY(hpi_share_send(world, local[(place + k) % n], 0, world->segments[world->rank].fd));
    for (int k = 0; k < n; k++)
        if (k != place)
            HP_TRY(map_peer(world, local[k]));
    return HP_OK;
}

/* ---- the whole ------------------------------------------------------------------------------ */

/* The store to start up over; `close` of the caller's own is called by hp_world_destroy alone. */
static hp_status open_store(hp_world *world, const hpi_identity *identity, hp_store *out) {
    if (identity->origin == HPI_FROM_LAUNCHER)
        return hpi_store_client(identity->store_fd, "hprun", -1, out);
    if (identity->origin == HPI_FROM_ENVIRONMENT)
        return hpi_store_tcp(&world->options, world->rank, world->n_ranks, out);
    *out = world->store;
    out->close = NULL;
    return HP_OK;
}

/* A rank died while segments were passed round, but others may have ended because of it since. The
 * store has seen the ends in their order: whoever asks it for what nobody sets is told the first.
 * Where it is gone itself, the rank that it lived in was first: one that gives up serves the others
 * to the end. */
static hp_status name_first_ended(const hp_store *store, uint64_t generation, hp_status status) {
    enum { PATIENCE_MS = 500 };
    char key[HPI_STORE_KEY_BYTES];
    hp_error record, told;
    size_t n_bytes = 0;
    hp_last_error_get(&record);
    snprintf(key, sizeof key, "hyperparallel/%llu/nothing", (unsigned long long)generation);
    const hp_status answer = store->get(store->context, key, &n_bytes, 0, &n_bytes, PATIENCE_MS);
    hp_last_error_get(&told);
    if (answer != HP_ERR_PEER || told.world_rank < 0)
        (void)hpi_error_set(&record);
    return status;
}

/* Say hello, whether or not this rank can take part: `all`, and the list of segments, is NULL when
 * there is no memory for what the others say. */
static hp_status say_hello(hp_world *world, const hpi_identity *identity, const hp_store *store,
                           uint64_t *out_generation, const hello *all) {
    char key[HPI_STORE_KEY_BYTES];
    hello own = {0};
    hp_error record;
    hpi_hello_fill(world, &own);
    const hp_status status =
        all ? prepare(world, identity, &own)
            : HPI_FAIL(HP_ERR_MEMORY, "expected room for what %d ranks say, the system gave none",
                       world->n_ranks);
    hp_last_error_get(&record);
    own.status = status;
    if (status)
        snprintf(own.message, sizeof own.message, "%s", record.message);
    *out_generation = next_generation(world);
    hello_key(key, sizeof key, *out_generation, world->rank);
    HP_TRY(store->set(store->context, key, &own, sizeof own));
    if (status)
        (void)hpi_error_set(&record);
    return status;
}

static hp_status meet_ranks(hp_world *world, const hpi_identity *identity, const hp_store *store,
                            hello *all) {
    uint64_t generation;
    HP_TRY(say_hello(world, identity, store, &generation, all));
    hpi_world_doing(world, "starting, waiting for every rank to say hello");
    HP_TRY(read_hellos(store, world, generation, all));
    HP_TRY(hpi_hellos_check(all, world));
    HP_TRY(check_machines(all, world->n_ranks));
    hpi_world_doing(world, "starting, exchanging shared memory");
    const hp_status status = hpi_pass_segments(world, all);
    return status == HP_ERR_PEER ? name_first_ended(store, generation, status) : status;
}

bool hpi_segments_list(hp_world *world) {
    world->segments = hpi_alloc((size_t)world->n_ranks, sizeof *world->segments);
    for (int i = 0; world->segments && i < world->n_ranks; i++)
        world->segments[i] = HPI_SEGMENT_NONE;
    return world->segments;
}

hp_status hpi_bootstrap(hp_world *world, const hpi_identity *identity) {
    hp_store store;
    hello *all = hpi_segments_list(world) ? hpi_alloc((size_t)world->n_ranks, sizeof *all) : NULL;
    hp_status status = open_store(world, identity, &store);
    if (!status) {
        status = meet_ranks(world, identity, &store, all);
        hp_error record;
        hp_last_error_get(&record);
        if (status == HP_ERR_TIMEOUT && identity->origin == HPI_FROM_LAUNCHER)
            hpi_store_bye(&store);
        if (store.close)
            store.close(store.context);
        (void)hpi_error_set(&record);
    }
    if (!status && identity->origin == HPI_FROM_LAUNCHER)
        status = hpi_liveness_watch_launcher(world, identity->store_fd);
    hpi_free(all);
    return status;
}

void hpi_bootstrap_close(hp_world *world) {
    hpi_share_close(world);
    for (int i = 0; world->segments && i < world->n_ranks; i++)
        hpi_segment_close(&world->segments[i]);
    hpi_free(world->segments);
}

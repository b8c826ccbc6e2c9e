/* SPDX-License-Identifier: Apache-2.0
 *
 * map.c - one mapping that all members of a group share.
 *
 * Group rank 0 makes a memfd, committed and sealed, and passes it on: to processes as a descriptor,
 * to threads as the address of its one mapping, which the last one to unmap takes away. Two
 * exchanges bracket it, so that all members succeed or all fail.
 */
#include "inside.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

/* Before the memory of thread ranks: how many still have it. A page keeps the memory aligned. */
typedef struct map_head {
    _Atomic uint64_t n_users;
} map_head;

static uint64_t head_bytes(const hp_group *group) {
    return hpi_world_is_threads(group->world) ? HPI_PAGE_BYTES : 0;
}

static hp_status map_fd(int fd, uint64_t bytes, void **out_base) {
    void *base = hpi_map_shared(fd, bytes);
    if (base == MAP_FAILED)
        return HPI_FAIL(HP_ERR_LIMIT, "expected to map %llu shared bytes, mmap: %s",
                        (unsigned long long)bytes, strerror(errno));
    *out_base = base;
    return HP_OK;
}

/* Group rank 0's part: the memory, mapped, and its descriptor. */
static hp_status map_first(hp_group *group, uint64_t bytes, int *out_fd, void **out_base) {
    hpi_memory memory;
    hpi_memory_read("", &memory);
    HP_TRY(hpi_memory_check(&memory, bytes, "memory shared by a group"));
    if (bytes > memory.file_bytes)
        return HPI_FAIL(
            HP_ERR_LIMIT,
            "expected RLIMIT_FSIZE (ulimit -f) to allow %llu bytes for memory shared by "
            "group %s, it allows %llu",
            (unsigned long long)bytes, hpi_group_name(group),
            (unsigned long long)memory.file_bytes);
    int fd;
    HP_TRY(hpi_memfd_create("hyperparallel-span", bytes, &fd));
    const hp_status status = map_fd(fd, bytes, out_base);
    if (status) {
        close(fd);
        return status;
    }
    if (group->world->options.huge_pages)
        hpi_make_huge(*out_base, 0, bytes);
    if (hpi_world_is_threads(group->world))
        atomic_store_explicit(&((map_head *)*out_base)->n_users, (uint64_t)group->size,
                              memory_order_relaxed);
    *out_fd = fd;
    return HP_OK;
}

/* The others' part: the address from rank 0's words, or its descriptor. */
static hp_status map_other(hp_group *group, uint64_t bytes, const uint64_t *words,
                           void **out_base) {
    if (hpi_world_is_threads(group->world)) {
        *out_base = (void *)(uintptr_t)words[1];
        return HP_OK;
    }
    int fd;
    HP_TRY(hpi_share_receive(group->world, group->world_ranks[0], words[2], group, &fd));
    const hp_status status = map_fd(fd, bytes, out_base);
    close(fd);
    return status;
}

static hp_status pass_on(hp_group *group, int fd, uint64_t key) {
    for (int i = 1; i < group->size && !hpi_world_is_threads(group->world); i++)
        HP_TRY(hpi_share_send(group->world, group->world_ranks[i], key, fd));
    return HP_OK;
}

/* A status per member; all fail when one did. Keeps the own record where the own one failed. */
static hp_status agree(hp_group *group, hp_status mine, uint64_t word1, uint64_t word2,
                       uint64_t *words) {
    const uint64_t own[3] = {(uint64_t)(int64_t)mine, word1, word2};
    hp_error record;
    hp_last_error_get(&record);
    HP_TRY(hpi_group_exchange(group, "group_map", own, 3, words));
    if (mine)
        return hpi_error_set(&record);
    for (int i = 0; i < group->size; i++) {
        const hp_status theirs = (hp_status)(int64_t)words[3 * i];
        if (theirs)
            return HPI_FAIL_RANK(theirs, group->world_ranks[i],
                                 "expected memory shared by group %s, its rank %d (rank %d of the "
                                 "world) failed with %s",
                                 hpi_group_name(group), i, group->world_ranks[i],
                                 hp_status_name(theirs));
    }
    return HP_OK;
}

hp_status hpi_group_map(hp_group *group, uint64_t bytes, void **out_memory) {
    const uint64_t all_bytes = bytes + head_bytes(group);
    const bool is_first = group->rank == 0;
    uint64_t *words = hpi_alloc((size_t)group->size, 3 * sizeof *words);
    void *base = NULL;
    int fd = -1;
    hp_status status = HP_OK;
    if (!words) /* tells the others, and hears nothing of them */
        return agree(group, HP_ERR_MEMORY, 0, 0, NULL);
    if (is_first)
        status = map_first(group, all_bytes, &fd, &base);
    status = agree(group, status, (uint64_t)(uintptr_t)base, hpi_share_key(group->world), words);
    if (!status) {
        status =
            is_first ? pass_on(group, fd, words[2]) : map_other(group, all_bytes, words, &base);
        if (status && is_first) /* the others wait for what does not come */
            hpi_group_fail(group);
        status = agree(group, status, 0, 0, words);
    }
    if (fd >= 0)
        close(fd);
    hpi_free(words);
    if (!status)
        *out_memory = (unsigned char *)base + head_bytes(group);
    else if (base && (is_first || !hpi_world_is_threads(group->world)))
        munmap(base, all_bytes);
    return status;
}

void hpi_group_unmap(hp_group *group, void *memory, uint64_t bytes) {
    unsigned char *base = (unsigned char *)memory - head_bytes(group);
    if (hpi_world_is_threads(group->world)) {
        map_head *head = (map_head *)(void *)base;
        if (atomic_fetch_sub_explicit(&head->n_users, 1, memory_order_acq_rel) > 1)
            return;
    }
    munmap(base, bytes + head_bytes(group));
}

hp_status hpi_group_view(const hp_group *group, void *memory, uint64_t bytes, void **out_view) {
    if (hpi_world_is_threads(group->world)) {
        *out_view = memory;
        return HP_OK;
    }
    void *view = hpi_map_again(memory, bytes);
    if (view == MAP_FAILED)
        return HPI_FAIL(HP_ERR_LIMIT, "expected to map %llu shared bytes once more, mremap: %s",
                        (unsigned long long)bytes, strerror(errno));
    if (mprotect(view, bytes, PROT_READ) != 0) {
        const int cause = errno;
        munmap(view, bytes);
        return HPI_FAIL(HP_ERR_LIMIT, "expected a read-only mapping, mprotect: %s",
                        strerror(cause));
    }
    *out_view = view;
    return HP_OK;
}

void hpi_group_drop_view(const hp_group *group, void *view, uint64_t bytes) {
    if (!hpi_world_is_threads(group->world))
        munmap(view, bytes);
}

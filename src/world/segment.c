/* SPDX-License-Identifier: Apache-2.0
 *
 * segment.c - the shared segment of a rank: a memfd, mapped, sealed, committed as it is needed.
 *
 * A memfd has no name, so nothing is left behind however a rank ends, and nobody else can open it.
 * It is as large as the rank may ever need and holds no memory until pages are committed, in steps,
 * each after a look at what the machine has left: a memfd alone takes any size, and the
 * out-of-memory killer answers later. Sealed against resizing, a mapping of it cannot raise SIGBUS.
 */
#include "inside.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };
#define COMMIT_STEP_BYTES (UINT64_C(64) << 20)

static hp_status memfd_size(int fd, uint64_t bytes) {
    if (ftruncate(fd, (off_t)bytes))
        return HPI_FAIL(HP_ERR_LIMIT, "expected a shared segment of %llu bytes, ftruncate: %s",
                        (unsigned long long)bytes, strerror(errno));
    if (fcntl(fd, F_ADD_SEALS, SEALS))
        return HPI_FAIL(HP_ERR_SYSTEM, "expected to seal a shared segment, fcntl: %s",
                        strerror(errno));
    return HP_OK;
}

static hp_status memfd_open(const char *name, int *out_fd) {
    *out_fd = hpi_fd_above_stdio(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (*out_fd < 0)
        return HPI_FAIL(HP_ERR_SYSTEM, "expected a shared segment, memfd_create: %s",
                        strerror(errno));
    return HP_OK;
}

/* Are all pages of [begin, end) there? Where the next hole begins says so. */
static bool is_committed(int fd, uint64_t begin, uint64_t end) {
    const off_t hole = lseek(fd, (off_t)begin, SEEK_HOLE);
    return hole >= 0 && (uint64_t)hole >= end;
}

static hp_status commit_step(int fd, uint64_t begin, uint64_t end) {
    if (is_committed(fd, begin, end))
        return HP_OK;
    hpi_memory memory;
    hpi_memory_read("", &memory);
    HP_TRY(hpi_memory_check(&memory, end - begin, "the next part of this rank's shared memory"));
    int failed;
    do
        failed = fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)begin, (off_t)(end - begin));
    while (failed && errno == EINTR);
    if (failed)
        return HPI_FAIL(HP_ERR_LIMIT,
                        "expected %llu more bytes of shared memory (%llu available), fallocate: %s",
                        (unsigned long long)(end - begin),
                        (unsigned long long)memory.available_bytes, strerror(errno));
    return HP_OK;
}

hp_status hpi_fd_commit(int fd, uint64_t begin, uint64_t end) {
    begin = begin / HPI_PAGE_BYTES * HPI_PAGE_BYTES;
    end = hpi_align_up(end, HPI_PAGE_BYTES);
    for (uint64_t at = begin; at < end; at += COMMIT_STEP_BYTES)
        HP_TRY(commit_step(fd, at, hpi_min(end, at + COMMIT_STEP_BYTES)));
    return HP_OK;
}

hp_status hpi_memfd_create(const char *name, uint64_t bytes, int *out_fd) {
    int fd;
    HP_TRY(memfd_open(name, &fd));
    hp_status status = memfd_size(fd, hpi_align_up(bytes, HPI_PAGE_BYTES));
    if (!status)
        status = hpi_fd_commit(fd, 0, bytes);
    if (status)
        close(fd);
    else
        *out_fd = fd;
    return status;
}

static hp_status segment_mmap(int fd, uint64_t bytes, hpi_segment *out) {
    void *base = hpi_map_shared(fd, bytes);
    if (base == MAP_FAILED)
        return HPI_FAIL(HP_ERR_LIMIT, "expected to map a shared segment of %llu bytes, mmap: %s",
                        (unsigned long long)bytes, strerror(errno));
    out->base = base;
    out->bytes = bytes;
    return HP_OK;
}

static void control_write(hpi_segment *segment, int world_rank) {
    hpi_control *control = hpi_segment_control(segment);
    control->magic = HPI_CONTROL_MAGIC;
    control->layout_version = HPI_LAYOUT_VERSION;
    control->world_rank = world_rank;
}

hp_status hpi_segment_adopt(int fd, uint64_t heap_bytes, int world_rank, hpi_segment *out_segment) {
    struct stat info;
    const int seals = fcntl(fd, F_GET_SEALS);
    hpi_segment segment = {.fd = fd};
    hp_status status = HP_OK;
    if (seals < 0)
        status = HPI_FAIL(HP_ERR_STATE, "expected a shared segment in descriptor %d: %s", fd,
                          strerror(errno));
    /* a sealed one served an earlier world of this rank */
    else if (!(seals & F_SEAL_GROW))
        status = memfd_size(fd, HPI_HEAP_OFFSET + heap_bytes);
    if (!status && fstat(fd, &info))
        status = HPI_FAIL(HP_ERR_SYSTEM, "expected the size of a segment: %s", strerror(errno));
    if (!status)
        status = segment_mmap(fd, (uint64_t)info.st_size, &segment);
    if (!status)
        status = hpi_fd_commit(fd, 0, HPI_PAGE_BYTES);
    if (status) {
        hpi_segment_close(&segment);
        return status;
    }
    control_write(&segment, world_rank);
    *out_segment = segment;
    return HP_OK;
}

hp_status hpi_segment_create(uint64_t heap_bytes, int world_rank, hpi_segment *out_segment) {
    int fd;
    HP_TRY(memfd_open("hyperparallel", &fd));
    return hpi_segment_adopt(fd, heap_bytes, world_rank, out_segment);
}

hp_status hpi_segment_map(int fd, int world_rank, hpi_segment *out_segment) {
    struct stat info;
    hpi_segment segment = HPI_SEGMENT_NONE;
    const int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || fstat(fd, &info) || (seals & SEALS) != SEALS ||
        (uint64_t)info.st_size < HPI_HEAP_OFFSET)
        return HPI_FAIL_RANK(HP_ERR_MISMATCH, world_rank,
                             "expected a sealed segment from rank %d, it passed something else",
                             world_rank);
    HP_TRY(segment_mmap(fd, (uint64_t)info.st_size, &segment));
    const hpi_control *control = hpi_segment_control(&segment);
    if (control->magic != HPI_CONTROL_MAGIC || control->layout_version != HPI_LAYOUT_VERSION ||
        control->world_rank != world_rank) {
        hpi_segment_close(&segment);
        return HPI_FAIL_RANK(HP_ERR_VERSION, world_rank,
                             "expected a segment of layout %d from rank %d, it passed another",
                             HPI_LAYOUT_VERSION, world_rank);
    }
    /* a core dump holds the rank's own memory, not everybody's */
    (void)madvise(segment.base, segment.bytes, MADV_DONTDUMP);
    *out_segment = segment;
    return HP_OK;
}

hp_status hpi_segment_commit(const hpi_segment *segment, uint64_t offset, uint64_t bytes) {
    const uint64_t room = segment->bytes - HPI_HEAP_OFFSET;
    if (bytes > room || offset > room - bytes)
        return HPI_FAIL(HP_ERR_LIMIT,
                        "expected %llu bytes at %llu to fit in the %llu bytes that this rank "
                        "reserved (SYMMETRIC_MEMORY_HEAP_SIZE)",
                        (unsigned long long)bytes, (unsigned long long)offset,
                        (unsigned long long)room);
    return bytes ? hpi_fd_commit(segment->fd, HPI_HEAP_OFFSET + offset,
                                 HPI_HEAP_OFFSET + offset + bytes)
                 : HP_OK;
}

hp_status hpi_segment_clear(const hpi_segment *segment) {
    if (segment->bytes > HPI_HEAP_OFFSET &&
        fallocate(segment->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)HPI_HEAP_OFFSET,
                  (off_t)(segment->bytes - HPI_HEAP_OFFSET)))
        return HPI_FAIL(HP_ERR_SYSTEM, "expected to clear a shared segment, fallocate: %s",
                        strerror(errno));
    return HP_OK;
}

void hpi_segment_close(hpi_segment *segment) {
    if (segment->base)
        munmap(segment->base, segment->bytes);
    if (segment->fd >= 0)
        close(segment->fd);
    *segment = HPI_SEGMENT_NONE;
}

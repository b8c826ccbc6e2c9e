/* SPDX-License-Identifier: Apache-2.0
 *
 * huge.c - shared memory in huge pages, where the kernel can give them.
 *
 * A memfd comes in pages of 4 KiB unless the administrator wants otherwise (shmem_enabled).
 * Whatever he wants, short of `deny`, MADV_COLLAPSE (Linux 6.1) moves 2 MiB of pages that are there
 * into a huge one, under everybody who has them mapped. It needs addresses and offsets that are
 * aligned alike, so every mapping of shared memory begins at a multiple of 2 MiB. Huge pages only
 * make things faster: nothing here fails because there are none.
 */
#include "inside.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Newer than Debian 12's C library. */
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

/* An aligned range of addresses, nothing in it; NULL: none is left. */
static unsigned char *reserve(uint64_t bytes) {
    const uint64_t room = hpi_align_up(bytes, HPI_PAGE_BYTES) + HPI_HUGE_BYTES;
    unsigned char *begin =
        mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (begin == MAP_FAILED)
        return NULL;
    const uint64_t before = hpi_align_up((uintptr_t)begin, HPI_HUGE_BYTES) - (uintptr_t)begin;
    if (before)
        munmap(begin, before);
    munmap(begin + before + hpi_align_up(bytes, HPI_PAGE_BYTES), HPI_HUGE_BYTES - before);
    return begin + before;
}

void *hpi_map_shared(int fd, uint64_t bytes) {
    unsigned char *at = bytes < HPI_HUGE_BYTES ? NULL : reserve(bytes);
    void *base = mmap(at, bytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_NORESERVE | (at ? MAP_FIXED : 0), fd, 0);
    if (base == MAP_FAILED && at)
        munmap(at, bytes);
    return base;
}

void *hpi_map_again(void *memory, uint64_t bytes) {
    unsigned char *at = bytes < HPI_HUGE_BYTES ? NULL : reserve(bytes);
    const int flags = at ? MREMAP_MAYMOVE | MREMAP_FIXED : MREMAP_MAYMOVE;
    /* mremap(2): an old size of 0 maps the pages of a shared mapping once more. Not by the C
     * library, into whose mremap UCX puts one of its own, which forgets the last argument. */
    void *again = (void *)syscall(SYS_mremap, memory, 0UL, (unsigned long)bytes, flags, at);
    if (again == MAP_FAILED && at)
        munmap(at, bytes);
    return again;
}

bool hpi_can_make_huge(void) {
    const int fd = hpi_fd_above_stdio(memfd_create("probe", MFD_CLOEXEC));
    if (fd < 0)
        return false;
    bool can = false;
    if (!fallocate(fd, 0, 0, (off_t)HPI_HUGE_BYTES)) {
        void *base = hpi_map_shared(fd, HPI_HUGE_BYTES);
        can = base != MAP_FAILED && !madvise(base, HPI_HUGE_BYTES, MADV_COLLAPSE);
        if (base != MAP_FAILED)
            munmap(base, HPI_HUGE_BYTES);
    }
    close(fd);
    return can;
}

void hpi_make_huge(unsigned char *base, uint64_t begin, uint64_t end) {
    begin = begin / HPI_HUGE_BYTES * HPI_HUGE_BYTES;
    end = end / HPI_HUGE_BYTES * HPI_HUGE_BYTES;
    for (uint64_t at = begin; at < end; at += HPI_HUGE_STEP_BYTES)
        if (madvise(base + at, hpi_min(end - at, HPI_HUGE_STEP_BYTES), MADV_COLLAPSE))
            return; /* an older kernel, or no huge page is left */
}

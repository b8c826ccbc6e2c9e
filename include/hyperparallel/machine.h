/* SPDX-License-Identifier: Apache-2.0
 *
 * machine.h - what this machine has, and which limits a job on it will hit.
 *
 * Read from /proc and /sys, from the resource limits and from a few harmless system calls; nothing
 * is changed and nothing is kept. What a file does not say is left at "unknown", whatever stands in
 * it: a damaged or missing file is no error. hpinfo prints it.
 */
#ifndef HYPERPARALLEL_MACHINE_H
#define HYPERPARALLEL_MACHINE_H

#include <hyperparallel/base.h>

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

enum {
    HP_MACHINE_NODES = 64,   /* NUMA nodes that are listed */
    HP_MACHINE_CACHES = 8,   /* of the first core */
    HP_MACHINE_CGROUPS = 16, /* those that limit us, the innermost first */
    HP_MACHINE_PATH = 160
};
#define HP_NO_LIMIT UINT64_MAX

/* A node without cores, or without memory, is a node too. */
typedef struct hp_numa_node {
    int id;
    int n_cores;
    uint64_t memory_bytes, free_bytes;
} hp_numa_node;

typedef struct hp_cache {
    int level;
    char type[16]; /* "Data", "Instruction", "Unified"; "" unknown */
    uint64_t bytes;
    uint64_t line_bytes; /* 0 unknown */
    int n_sharing;       /* cores that share it; 0 unknown */
} hp_cache;

typedef struct hp_cgroup {
    char folder[HP_MACHINE_PATH];
    uint64_t limit_bytes, left_bytes; /* file pages that can be dropped count as left */
} hp_cgroup;

typedef struct hp_machine {
    char cpu[96], architecture[32], kernel[96]; /* "" unknown */
    int n_cores;                                /* online; 0 unknown */
    int n_cores_allowed;                        /* that this process may run on; 0 unknown */
    double cpu_quota; /* cores' worth of time that the tightest cgroup grants; 0: no quota */
    int n_nodes, n_caches, n_cgroups;
    hp_numa_node nodes[HP_MACHINE_NODES];
    hp_cache caches[HP_MACHINE_CACHES];
    hp_cgroup cgroups[HP_MACHINE_CGROUPS];

    uint64_t total_bytes, available_bytes; /* MemTotal, MemAvailable; HP_NO_LIMIT unknown */
    uint64_t swap_bytes;                   /* that is free */
    uint64_t page_bytes;
    uint64_t huge_page_bytes; /* of the default size; 0: none */
    uint64_t n_huge_pages, n_huge_pages_free;
    char huge_shared[16];  /* transparent ones for shared memory: "never", "advise" ... */
    int has_huge_segments; /* symmetric memory is moved into huge pages, whatever that says */

    uint64_t file_bytes;    /* RLIMIT_FSIZE, of one segment */
    uint64_t address_bytes; /* RLIMIT_AS, of all segments together */
    uint64_t locked_bytes;  /* RLIMIT_MEMLOCK */
    uint64_t n_descriptors; /* RLIMIT_NOFILE */
    uint64_t n_processes;   /* RLIMIT_NPROC */
    int has_memfd, has_pidfd;
    int seccomp;      /* 0 off, 1 strict, 2 filters; -1 unknown */
    int ptrace_scope; /* Yama's; -1: not there */
} hp_machine;

/* root: a folder that stands before /proc and /sys, "" or NULL for the machine itself; resource
 * limits, the allowed cores and system calls are always those of this process.
 * Errors: ARGUMENT (no place for the result, or a root of 256 bytes or more). Threads: any. */
HP_MUST_CHECK hp_status hp_machine_read(const char *root, hp_machine *out_machine);

/* What a job of n_ranks on such a machine can have. */
typedef struct hp_machine_job {
    int n_ranks;
    int can_spin;                          /* ranks wait without sleeping: a core for each */
    uint64_t reserved_bytes;               /* of heap, by each rank: address space, no memory */
    uint64_t heap_bytes;                   /* that each rank can fill when all do */
    int most_ranks;                        /* that the limit of descriptors allows */
    char limited_by[HP_MACHINE_PATH + 64]; /* what heap_bytes comes from: "MemAvailable" ... */
} hp_machine_job;
/* SYMMETRIC_MEMORY_HEAP_SIZE is read from the environment. Errors: ARGUMENT (n_ranks below 1, the
 * option), LIMIT when no job of that size can start, saying why. Threads: any. */
HP_MUST_CHECK hp_status hp_machine_plan(const hp_machine *machine, int n_ranks,
                                        hp_machine_job *out_job);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif

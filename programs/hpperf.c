/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf.c - measure the collectives, how they hide behind compute, and beside another library;
 * check their results.
 *
 * usage: hprun -n 2 hpperf all_reduce -b 8 -e 256M -f 4 ...   (--help lists the options)
 *        hprun -n 8 hpperf overlap --mesh 2x4 ...             (hpperf overlap --help)
 *        hprun -n 2 hpperf step --beside openmpi ...          (hpperf step --help)
 *        hprun -n 2 hpperf ag_matmul ...                      (hpperf ag_matmul --help)
 *        hprun -n 2 hpperf tune                               (hpperf tune --help)
 *
 * Exit status: 0; 1 when a result is wrong or a call failed; 2 for a wrong command line.
 */
#include "hpperf/bench.h"
#include "hpperf/fail.h"
#include "hpperf/fused/fused.h"
#include "hpperf/overlap/overlap.h"
#include "hpperf/step/step.h"
#include "hpperf/tune/tune.h"
#include "perf/cores.h"
#include "standard.h"

#include <sched.h>
#include <string.h>

/* world_rank: -1 before there is a world. */
static int finish(hp_status status, int world_rank) {
    if (status >= 0)
        return 0;
    failure_print(stderr, status, world_rank);
    return status == HP_ERR_ARGUMENT ? 2 : 1;
}

static hp_status bound(int answer) {
    return answer ? fail(HP_ERR_SYSTEM, "expected to be bound to a core: %m") : HP_OK;
}

/* After the library has seen how many cores there are: it spins only where each rank has one. */
static hp_status pin_rank(const hp_world *world, pin asked) {
    const int n = hp_world_local_size(world);
    cpu_set_t allowed;
    if (asked == PIN_NO || sched_getaffinity(0, sizeof allowed, &allowed))
        return HP_OK;
    if (n > CPU_COUNT(&allowed))
        return asked == PIN_AUTO ? HP_OK
                                 : fail(HP_ERR_ARGUMENT,
                                        "expected a core for each of %d ranks with --pin yes, "
                                        "given %d",
                                        n, CPU_COUNT(&allowed));
    return bound(cores_bind(hp_world_local_rank(world)));
}

/* Of collectives alone: in the other jobs threads of a rank compute beside each other. */
static hp_status spread_rank(const hp_world *world, pin asked) {
    TRY(pin_rank(world, asked));
    if (asked == PIN_NO)
        return HP_OK;
    return bound(cores_spread(hp_world_local_rank(world), hp_world_local_size(world)));
}

/* What the command line asks for; its first word tells, collectives have none. */
typedef struct job {
    bool is_overlap, is_step, is_fused;
    options collectives;
    overlap_options overlap;
    step_options step;
    fused_options fused;
} job;

static hp_status parse(int argc, char **argv, job *j) {
    j->is_overlap = argc > 1 && strcmp(argv[1], "overlap") == 0;
    j->is_step = argc > 1 && strcmp(argv[1], "step") == 0;
    j->is_fused = argc > 1 && fused_op_parse(argv[1], &j->fused.op);
    return j->is_overlap ? overlap_parse(argc - 1, argv + 1, &j->overlap)
           : j->is_step  ? step_parse(argc - 1, argv + 1, &j->step)
           : j->is_fused ? fused_parse(argc - 1, argv + 1, &j->fused)
                         : options_parse(argc, argv, &j->collectives);
}

/* Says what it was asked to say about itself, if it was. */
static bool introduces(const job *j, bool speaks) {
    const bool wants_help = j->overlap.wants_help || j->step.wants_help || j->fused.wants_help ||
                            j->collectives.wants_help;
    const bool wants_version = j->collectives.wants_version;
    if (wants_help && speaks)
        (j->is_overlap ? overlap_help
         : j->is_step  ? step_help
         : j->is_fused ? fused_help
                       : options_help)(stdout);
    else if (wants_version && speaks)
        printf("hpperf (HyperParallel in C) %s\n", hp_version());
    return wants_help || wants_version;
}

static hp_status check_ranks(job *j, int n_ranks) {
    return j->is_overlap ? overlap_check_ranks(&j->overlap, n_ranks)
           : j->is_step  ? step_check_ranks(&j->step, n_ranks)
           : j->is_fused ? fused_check_ranks(&j->fused, n_ranks)
                         : options_check_ranks(&j->collectives, n_ranks);
}

static hp_status open_peer(hp_world *world, const job *j, beside **out_peer) {
    return j->is_step ? step_open_peer(world, &j->step, out_peer)
                      : sweep_open_peer(world, &j->collectives, out_peer);
}

static hp_status measure_job(hp_world *world, const job *j, beside *peer, uint64_t *out_wrong) {
    TRY(agree(world, j->is_overlap ? pin_rank(world, j->overlap.pin)
                     : j->is_step  ? pin_rank(world, j->step.pin)
                     : j->is_fused ? pin_rank(world, j->fused.pin)
                                   : spread_rank(world, j->collectives.pin)));
    return j->is_overlap ? overlap(world, &j->overlap, out_wrong)
           : j->is_step  ? step(world, &j->step, peer, out_wrong)
           : j->is_fused ? fused_job(world, &j->fused, out_wrong)
                         : sweep(world, &j->collectives, peer, out_wrong);
}

/* *out_wrong: elements, or rows of overlap. A peer is started by a rank that is not bound to a core
 * yet. */
static hp_status run(hp_world *world, job *j, uint64_t *out_wrong) {
    beside *peer = NULL;
    if (introduces(j, hp_world_rank(world) == 0))
        return HP_OK;
    TRY(agree(world, check_ranks(j, hp_world_size(world))));
    if (!j->is_overlap && !j->is_fused)
        TRY(open_peer(world, j, &peer));
    const hp_status status = measure_job(world, j, peer, out_wrong);
    beside_close(peer);
    return status;
}

/* Rows are written one by one: what failed to be is remembered by the stream. */
static hp_status finish_output(void) {
    if (fflush(stdout) || ferror(stdout))
        return fail(HP_ERR_SYSTEM, "expected to write the results to standard output");
    return HP_OK;
}

/* The first failure is this program's exit status; a wrong result is one. */
int main(int argc, char **argv) {
    job j = {0};
    hp_world *world = NULL;
    uint64_t wrong = 0;
    open_missing_stdio();
    if (argc > 1 && strcmp(argv[1], "tune") == 0)
        return tune_main(argc - 1, argv + 1, pin_rank);
    const hp_status parsed = parse(argc, argv, &j);
    hp_status status = hp_world_create(NULL, &world);
    if (status < 0)
        return finish(status, -1);
    const int rank = hp_world_rank(world);
    status = agree(world, parsed);
    if (status >= 0)
        status = run(world, &j, &wrong);
    if (status >= 0 && rank == 0)
        status = finish_output();
    int exit_status = finish(status, rank);
    if (wrong && rank == 0)
        fprintf(stderr, "hpperf: expected every result to be right, %llu %s are wrong\n",
                (unsigned long long)wrong, j.is_overlap ? "rows" : "elements");
    if (!exit_status && wrong)
        exit_status = 1;
    hp_world_destroy(world);
    return exit_status;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf.c - measure the collectives, and check their results.
 *
 * usage: hprun -n 2 hpperf all_reduce -b 8 -e 256M -f 4 ...   (--help lists the options)
 *
 * Exit status: 0; 1 when a result is wrong or a call failed; 2 for a wrong command line.
 */
#include "hpperf/bench.h"
#include "hpperf/fail.h"
#include "standard.h"

#include <sched.h>

/* world_rank: -1 before there is a world. */
static int finish(hp_status status, int world_rank) {
    if (status >= 0)
        return 0;
    failure_print(stderr, status, world_rank);
    return status == HP_ERR_ARGUMENT ? 2 : 1;
}

/* The r-th core of those that this process may use. */
static hp_status bind_to_core(const cpu_set_t *allowed, int r) {
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, allowed) && r-- == 0)
            CPU_SET(core, &one);
    if (sched_setaffinity(0, sizeof one, &one))
        return fail(HP_ERR_SYSTEM, "expected to be bound to a core: %m");
    return HP_OK;
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
    return bind_to_core(&allowed, hp_world_local_rank(world));
}

static hp_status run(hp_world *world, const options *o, uint64_t *out_wrong) {
    const bool speaks = hp_world_rank(world) == 0;
    if (o->wants_help && speaks)
        options_help(stdout);
    else if (o->wants_version && speaks)
        printf("hpperf (HyperParallel in C) %s\n", hp_version());
    if (o->wants_help || o->wants_version)
        return HP_OK;
    TRY(agree(world, options_check_ranks(o, hp_world_size(world))));
    TRY(agree(world, pin_rank(world, o->pin)));
    return sweep(world, o, out_wrong);
}

/* Rows are written one by one: what failed to be is remembered by the stream. */
static hp_status finish_output(void) {
    if (fflush(stdout) || ferror(stdout))
        return fail(HP_ERR_SYSTEM, "expected to write the results to standard output");
    return HP_OK;
}

/* The first failure is this program's exit status; a wrong result is one. */
int main(int argc, char **argv) {
    options o;
    hp_world *world = NULL;
    uint64_t wrong = 0;
    open_missing_stdio();
    const hp_status parsed = options_parse(argc, argv, &o);
    hp_status status = hp_world_create(NULL, &world);
    if (status < 0)
        return finish(status, -1);
    const int rank = hp_world_rank(world);
    status = agree(world, parsed);
    if (status >= 0)
        status = run(world, &o, &wrong);
    if (status >= 0 && rank == 0)
        status = finish_output();
    int exit_status = finish(status, rank);
    if (wrong && rank == 0)
        fprintf(stderr, "hpperf: expected every result to be right, %llu elements are wrong\n",
                (unsigned long long)wrong);
    if (!exit_status && wrong)
        exit_status = 1;
    hp_world_destroy(world);
    return exit_status;
}

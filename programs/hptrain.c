/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain.c - train a model over ranks: FSDP or HSDP on one command line.
 *
 * usage: hprun -n 8 hptrain --mesh 2x4 --data FILE ...   (--help lists the options)
 *
 * Exit status: 0 done, or ended by a signal after a whole step; 1 failed; 2 a wrong command line.
 */
#include "hptrain/fail.h"
#include "hptrain/options.h"
#include "hptrain/train.h"
#include "standard.h"

/* world_rank: -1 before there is a world. */
static int finish(hp_status status, int world_rank) {
    if (status >= 0)
        return 0;
    failure_print(stderr, status, world_rank);
    return status == HP_ERR_ARGUMENT ? 2 : 1;
}

static hp_status run(hp_world *world, options *o) {
    const bool speaks = hp_world_rank(world) == 0;
    if (o->wants_help && speaks)
        options_help(stdout);
    else if (o->wants_version && speaks)
        printf("hptrain %s\n", hp_version());
    return o->wants_help || o->wants_version ? HP_OK : train(world, o);
}

int main(int argc, char **argv) {
    options o;
    hp_world *world = NULL;
    open_missing_stdio();
    const hp_status parsed = options_parse(argc, argv, &o);
    hp_status status = hp_world_create(NULL, &world);
    if (status < 0)
        return finish(status, -1);
    status = agree(world, parsed);
    if (status >= 0)
        status = run(world, &o);
    const int exit_status = finish(status, hp_world_rank(world));
    hp_world_destroy(world);
    return exit_status;
}

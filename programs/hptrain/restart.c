/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/restart.c - going on where a job was that hprun, or torchrun, has started again.
 *
 * The command is the same as before, so what decides how the weights go on must be what the record
 * in --save says: a launcher that starts a refused command again (torchrun does) shall not make
 * this run go on from another one's checkpoints. With --mesh -1xS there may be other ranks than
 * there were.
 */
#include "fail.h"
#include "places.h"
#include "record.h"
#include "trainer.h"

#include <stdlib.h>
#include <string.h>

int restart_count(void) {
    const char *text = getenv("TORCHELASTIC_RESTART_COUNT");
    const long n = text ? strtol(text, NULL, 10) : 0;
    return n > 0 && n <= INT_MAX ? (int)n : 0;
}

static bool is_open_mesh(const options *o) {
    return o->n_shards && !o->n_replicas;
}

/* Fewer replicas make more passes, so that a step has the tokens that it had; as nearly as whole
 * passes can. */
static void keep_tokens(trainer *t) {
    const uint64_t before = record_tokens(t),
                   pass = tokens_per_step(t) / (uint64_t)t->o->accumulate;
    if (before)
        t->o->accumulate = before > pass ? (long long)((before + pass / 2) / pass) : 1;
}

static bool is_of_tokens_alone(const char *note) {
    return strncmp(note, RECORD_TOKENS " ", sizeof RECORD_TOKENS) == 0 && !strchr(note, ',');
}

hp_status restart_find(trainer *t) {
    t->n_restarts = restart_count();
    if (!t->n_restarts || !*t->o->save || !places_has_checkpoint(t->o->save))
        return HP_OK;
    t->o->resume = t->o->save;
    if (is_open_mesh(t->o))
        keep_tokens(t);
    TRY(record_compare(t, t->resumed_note));
    if (*t->resumed_note && !(is_open_mesh(t->o) && is_of_tokens_alone(t->resumed_note)))
        return fail(HP_ERR_ARGUMENT,
                    "expected --save %s to hold checkpoints of this run, started again, it has "
                    "those of another: %s",
                    t->o->save, t->resumed_note);
    return HP_OK;
}

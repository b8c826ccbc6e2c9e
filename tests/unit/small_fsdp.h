/* SPDX-License-Identifier: Apache-2.0
 *
 * small_fsdp.h - an fsdp and a parameter in a line each, for tests of single calls.
 *
 * Included by the tests that use it.
 */
#ifndef TESTS_SMALL_FSDP_H
#define TESTS_SMALL_FSDP_H

#include "base/base.h"
#include "support/ranks.h"

#include <hyperparallel/hyperparallel.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* The call fails with this status, and its sentence holds this text. */
#define FAILS_SAYING(call, status, text)                                                           \
    do {                                                                                           \
        RANK_FAILS(call, status);                                                                  \
        RANK_CHECK(strstr(hp_last_error(), text) != NULL);                                         \
    } while (0)

/* One dimension over the world, without units. */
static inline hp_fsdp *make_fsdp(hp_world *world, hp_mesh **out_mesh) {
    hp_fsdp *fsdp = NULL;
    const int size = hp_world_size(world);
    RANK_OK(hp_mesh_create(world, &size, 1, out_mesh));
    RANK_OK(hp_fsdp_create(*out_mesh, NULL, &fsdp));
    return fsdp;
}

static inline hp_param vector(const char *name, int64_t n) {
    hp_param p = HP_PARAM_INIT;
    p.name = name;
    p.n_dims = 1;
    p.shape[0] = n;
    return p;
}

#endif

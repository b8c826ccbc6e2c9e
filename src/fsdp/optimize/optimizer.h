/* SPDX-License-Identifier: Apache-2.0
 *
 * fsdp/optimize/optimizer.h - the inside of an optimizer, for checkpoints.
 *
 * State is ordinary memory of one rank: for each trainable parameter as many elements as its shard
 * has, in the shard's dtype, once per state (AdamW: exp_avg and exp_avg_sq; SGD with momentum:
 * momentum_buffer). It starts as zeros, and its padding stays zero.
 */
#ifndef HPI_OPTIMIZER_H
#define HPI_OPTIMIZER_H

#include "../engine.h"

enum { HPI_MAX_STATES = 2 };

typedef struct hpi_algorithm hpi_algorithm; /* optimizer.c */

struct hp_optimizer {
    hp_fsdp *fsdp;
    const hpi_algorithm *algorithm;
    hp_optimizer_config config;
    const char *name;
    int n_states;
    const char *states[HPI_MAX_STATES]; /* their names, as torch.optim has them */
    uint64_t n_steps;
    uint64_t used_generation; /* the fsdp's grad_generation of the last step */
    unsigned char *memory;
    uint64_t memory_bytes;
    uint64_t **offsets; /* [n_units][n_params]: of a parameter's first state */
};

/* State number `state` of trainable parameter number `param`. */
void *hpi_optimizer_state(const hp_optimizer *optimizer, const hp_unit *unit, int param, int state);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * hyperparallel.h - everything: fully sharded training on symmetric memory.
 */
#ifndef HYPERPARALLEL_H
#define HYPERPARALLEL_H

#include <hyperparallel/base.h>
#include <hyperparallel/coll.h>
#include <hyperparallel/fsdp.h>
#include <hyperparallel/fused.h>
#include <hyperparallel/machine.h>
#include <hyperparallel/matmul.h>
#include <hyperparallel/stream.h>
#include <hyperparallel/symm.h>
#include <hyperparallel/trace.h>
#include <hyperparallel/world.h>

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * fsdp/fsdp.h - the door of room `fsdp`. The public header says it all.
 */
#ifndef HPI_FSDP_H
#define HPI_FSDP_H

#include <hyperparallel/fsdp.h>

#endif

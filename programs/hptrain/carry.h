/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/carry.h - files of --model DIR that belong beside the weights of an export too.
 *
 * The tokenizer's and the like: hptrain does not use them, whoever loads the export does.
 */
#ifndef HPTRAIN_CARRY_H
#define HPTRAIN_CARRY_H

#include <hyperparallel/base.h>

/* Of the names that are carried, and room for one more file, the caller's. */
enum { CARRIED_MOST = 8 };
typedef struct carried {
    const char *names[CARRIED_MOST + 1];
    char *texts[CARRIED_MOST + 1];
    int n;
} carried;

/* Read those that are there. Errors: FILE, FORMAT, naming one that cannot be read as text. Owns:
 * the caller, also after a failure. */
hp_status carried_read(const char *directory, carried *out_files);
/* Takes a zeroed one. */
void carried_free(carried *files);

#endif

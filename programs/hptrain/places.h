/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/places.h - where files will be written.
 */
#ifndef HPTRAIN_PLACES_H
#define HPTRAIN_PLACES_H

#include "options.h"

/* Make the directories of --log, --curve, --save and --trace, and look at what stands there
 * already, before the first step, so that no hour of training ends at a path that cannot be
 * written. Errors: FILE naming the option. */
hp_status places_check(const options *o);

bool places_has_checkpoint(const char *directory);

#endif

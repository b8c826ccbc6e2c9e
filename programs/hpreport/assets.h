/* SPDX-License-Identifier: Apache-2.0
 *
 * hpreport/assets.h - the page's own source, page/, as it is linked into the program.
 */
#ifndef HPREPORT_ASSETS_H
#define HPREPORT_ASSETS_H

#include <stddef.h>

typedef struct asset {
    const char *begin, *end;
} asset;

/* By the name of its file in page/; it is there. */
asset asset_named(const char *name);

#endif

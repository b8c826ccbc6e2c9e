/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/plot.h - the loss curve as text and as SVG.
 */
#ifndef HPTRAIN_PLOT_H
#define HPTRAIN_PLOT_H

#include "curve.h"

#include <hyperparallel/base.h>
#include <stdbool.h>
#include <stdio.h>

/* About 80 columns and 18 lines: the training loss as a line, the held-out loss as o. With is_utf8
 * it is drawn in braille patterns, eight dots to a character, else in dots and quotes. unit: what
 * the loss is per, "byte" or "token". */
void plot_print(const curve *c, const char *unit, bool is_utf8, FILE *file);

/* A picture of its own: no script, no font, no file beside it; light or dark as the reader's page
 * is. Errors: FILE. */
hp_status plot_write_svg(const curve *c, const char *title, const char *subtitle, const char *unit,
                         const char *path);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * hpreport/out.h - what hpreport writes.
 */
#ifndef HPREPORT_OUT_H
#define HPREPORT_OUT_H

#include "figures.h"

#include <stdio.h>

/* print_json.c: all figures as one object. "<" is written as an escape, so that it may stand inside
 * a page. `name` is the run's folder. */
void print_json(const figures *f, const char *name, FILE *file);
/* A C string as one of JSON. */
void print_json_string(const char *s, FILE *file);
/* A string that stands as it did in JSON. */
void print_json_text(text t, FILE *file);

/* arrivals.c: a line for each collective of each group: CSV. */
void print_arrivals(const figures *f, FILE *file);

/* page.c: the page. */
void print_page(const figures *f, const char *name, FILE *file);

#endif

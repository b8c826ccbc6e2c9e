/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/json.h - writing the fields of a JSON object.
 *
 * Each writes `, "NAME": VALUE`: the caller begins the object with a first field and ends it. What
 * cannot be written is found by the caller, when it flushes.
 */
#ifndef HPTRAIN_JSON_H
#define HPTRAIN_JSON_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

void json_name(FILE *file, const char *name); /* alone: a value follows */
void json_text(FILE *file, const char *name, const char *text);
void json_string(FILE *file, const char *name, const char *text, size_t n);
void json_number(FILE *file, const char *name, double value);
void json_count(FILE *file, const char *name, uint64_t value);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * fsdp/checkpoint/json.h - JSON for checkpoints: a reader over a buffer, and a writer that escapes.
 *
 * A document is an array of nodes in the order of the text; node 0 is the root. The children of an
 * object are key, value, key, value, ...; hpi_json_next steps over a whole value. Strings are
 * decoded in place when the text is parsed and end with a NUL. Nothing recurses; brackets
 * deeper than 32 are refused. Source of the tokenizer: jsmn (docs/decisions/0001-json.md).
 */
#ifndef HPI_JSON_H
#define HPI_JSON_H

#include "../../base/base.h"

typedef enum hpi_json_type {
    HPI_JSON_OBJECT,
    HPI_JSON_ARRAY,
    HPI_JSON_STRING,
    HPI_JSON_OTHER /* a number, true, false or null */
} hpi_json_type;

typedef struct hpi_json_node {
    hpi_json_type type;
    uint32_t begin, end; /* in the text, without quotes */
    uint32_t size;       /* values in an array, key-value pairs in an object */
    uint32_t next;       /* first node behind this one and all that it holds */
} hpi_json_node;

typedef struct hpi_json {
    char *text;
    hpi_json_node *nodes;
    uint32_t n_nodes;
} hpi_json;

/* A node's number; HPI_JSON_NONE where there is none. The functions below take it and answer "not
 * there", so that a chain of look-ups is checked once, at its end. */
typedef uint32_t hpi_json_at;
enum { HPI_JSON_NONE = UINT32_MAX };

/* Parse text[0, n_bytes), which is changed and must outlive the document. `what` names the text in
 * errors. Takes 40 bytes per value while it runs, 20 afterwards. Errors: FORMAT, MEMORY. */
hp_status hpi_json_parse(const char *what, char *text, uint64_t n_bytes, hpi_json *out_json);
void hpi_json_free(hpi_json *json);

bool hpi_json_is(const hpi_json *json, hpi_json_at at, hpi_json_type type);
/* The value of a key of an object. */
hpi_json_at hpi_json_find(const hpi_json *json, hpi_json_at object, const char *key);
/* The first value of an array or key of an object, and the one after it inside `parent`. The value
 * of a key is the node after the key. */
hpi_json_at hpi_json_first(const hpi_json *json, hpi_json_at parent);
hpi_json_at hpi_json_next(const hpi_json *json, hpi_json_at parent, hpi_json_at at);
/* How many values or pairs; 0 for anything else. */
uint32_t hpi_json_size(const hpi_json *json, hpi_json_at at);
/* NULL when it is not a string. */
const char *hpi_json_string(const hpi_json *json, hpi_json_at at);
/* Digits alone, up to 2^64 - 1; else false. */
bool hpi_json_u64(const hpi_json *json, hpi_json_at at, uint64_t *out_value);

/* A text that grows. After a failed allocation additions do nothing and is_failed stays true, so a
 * writer looks once, at its end. */
typedef struct hpi_text {
    char *data;
    uint64_t n_bytes, capacity;
    bool is_failed;
} hpi_text;

void hpi_text_add(hpi_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* What stands between the quotes of a JSON string. */
void hpi_text_add_escaped(hpi_text *text, const char *string);
void hpi_text_free(hpi_text *text);

#endif

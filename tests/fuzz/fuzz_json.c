/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_json.c - any bytes at all as JSON, and what is taken written and read once more.
 *
 * The nodes of a document that is taken are a tree (each value is inside its parent, and there are
 * as many as it says). Written out, it is taken again and has the same nodes. libFuzzer's entry
 * (tools/fuzz.sh).
 */
#include "fsdp/checkpoint/json.h"
#include "fuzz.h"

#include <stdlib.h>

/* The reader refuses texts that are deeper than 32, so this may recurse. */
static void write_value(const hpi_json *json, hpi_json_at at, hpi_text *out) {
    const bool is_object = hpi_json_is(json, at, HPI_JSON_OBJECT);
    const char *string = hpi_json_string(json, at), *comma = "";
    uint32_t n = 0;
    if (string) {
        hpi_text_add(out, "\"");
        hpi_text_add_escaped(out, string);
        hpi_text_add(out, "\"");
    } else if (is_object || hpi_json_is(json, at, HPI_JSON_ARRAY)) {
        hpi_text_add(out, is_object ? "{" : "[");
        for (hpi_json_at child = hpi_json_first(json, at); child != HPI_JSON_NONE;
             child = hpi_json_next(json, at, child), n++, comma = ",") {
            MUST(child > at && child < json->nodes[at].next);
            hpi_text_add(out, "%s", comma);
            write_value(json, child, out);
            if (is_object) {
                MUST(hpi_json_string(json, child));
                MUST(hpi_json_find(json, at, hpi_json_string(json, child)) <= child + 1);
                hpi_text_add(out, ":");
                write_value(json, child + 1, out);
            }
        }
        MUST(n == hpi_json_size(json, at));
        hpi_text_add(out, is_object ? "}" : "]");
    } else {
        const hpi_json_node *node = &json->nodes[at];
        MUST(hpi_json_is(json, at, HPI_JSON_OTHER) && node->begin < node->end);
        hpi_text_add(out, "%.*s", (int)(node->end - node->begin), json->text + node->begin);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    hpi_json json, again;
    hpi_text text = {0}, text_again = {0};
    char *copy = malloc(n_bytes + 1);
    MUST(copy);
    if (n_bytes)
        memcpy(copy, data, n_bytes);
    const hp_status status = hpi_json_parse("input", copy, n_bytes, &json);
    if (status < 0) {
        MUST(status == HP_ERR_FORMAT && strstr(hp_last_error(), "input"));
        free(copy);
        return 0;
    }
    write_value(&json, 0, &text);
    char *written = malloc(text.n_bytes + 1);
    MUST(written && !text.is_failed);
    memcpy(written, text.data, text.n_bytes + 1);
    MUST(hpi_json_parse("output", written, text.n_bytes, &again) == HP_OK);
    MUST(again.n_nodes == json.n_nodes);
    write_value(&again, 0, &text_again);
    MUST(text_again.n_bytes == text.n_bytes &&
         memcmp(text_again.data, text.data, text.n_bytes) == 0);
    hpi_text_free(&text_again);
    hpi_text_free(&text);
    hpi_json_free(&again);
    hpi_json_free(&json);
    free(written);
    free(copy);
    return 0;
}

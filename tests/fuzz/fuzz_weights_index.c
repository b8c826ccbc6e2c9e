/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_weights_index.c - any bytes at all as model.safetensors.index.json.
 *
 * One that is taken names plain files alone, every tensor once, and finds each of them again.
 * libFuzzer's entry (tools/fuzz.sh).
 */
#include "fsdp/checkpoint/files.h"
#include "fsdp/weights/index.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    static const char path[] = "input.index.json";
    hpi_weights_index index;
    char *text = hpi_alloc(n_bytes + 1, 1);
    MUST(text);
    if (n_bytes)
        memcpy(text, data, n_bytes);
    const hp_status status = hpi_weights_index_parse(path, text, n_bytes, &index);
    if (status < 0) {
        MUST(status == HP_ERR_FORMAT && strstr(hp_last_error(), path));
        return 0;
    }
    for (uint64_t f = 0; f < index.n_files; f++) {
        MUST(hpi_is_plain_name(index.files[f]) && !strchr(index.files[f], '/'));
        MUST(f == 0 || strcmp(index.files[f - 1], index.files[f]) < 0);
        (void)hpi_weights_is_ours(index.files[f]);
    }
    for (uint64_t i = 0; i < index.n_entries; i++) {
        MUST(index.entries[i].file < index.n_files);
        MUST(hpi_weights_index_find(&index, index.entries[i].tensor) == i);
    }
    hpi_weights_index_close(&index);
    return 0;
}

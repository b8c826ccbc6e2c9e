/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_qwen3_config.c - any bytes at all as a model's config.json.
 *
 * What is taken is within its bounds and, written out, is read as the same model; what is refused
 * is refused by the file's name. libFuzzer's entry (tools/fuzz.sh).
 */
#include "fuzz.h"
#include "qwen3/config.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* One file in memory, written anew for each text. */
static hp_status read_as_file(const void *data, size_t n_bytes, qwen3_config *out_config) {
    static int fd = -1;
    char path[32];
    if (fd < 0)
        fd = memfd_create("config", 0);
    MUST(fd >= 0 && ftruncate(fd, 0) == 0);
    MUST(pwrite(fd, data, n_bytes, 0) == (ssize_t)n_bytes);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    const hp_status status = qwen3_config_read(path, out_config);
    MUST(status == HP_OK || strstr(hp_last_error(), path));
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    char text[4096], text_again[4096];
    qwen3_config config, again;
    const hp_status status = read_as_file(data, n_bytes, &config);
    MUST(status == HP_OK || status == HP_ERR_FORMAT || status == HP_ERR_UNSUPPORTED);
    if (status < 0)
        return 0;
    MUST(qwen3_config_check(&config) == HP_OK);
    const int n = qwen3_config_write(&config, HP_BF16, text, sizeof text);
    MUST(n > 0 && read_as_file(text, (size_t)n, &again) == HP_OK);
    MUST(qwen3_config_write(&again, HP_BF16, text_again, sizeof text_again) == n);
    MUST(memcmp(text, text_again, (size_t)n) == 0);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_safetensors.c - any bytes at all as a safetensors file.
 *
 * A file that is refused says so, naming itself. One that is taken must be what safetensors.h
 * promises: its tensors tile the data, have the bytes of their shapes and different names that are
 * found again, and each can be read to its last byte. libFuzzer's entry (tools/fuzz.sh).
 */
#include "fsdp/checkpoint/safetensors.h"
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* The input as a file: one memory file, written anew each time. */
static const char *file_of(const uint8_t *data, size_t n_bytes) {
    static char path[64];
    static int fd = -1;
    if (fd < 0)
        fd = memfd_create("input.safetensors", 0);
    MUST(fd >= 0 && ftruncate(fd, 0) == 0);
    MUST(pwrite(fd, data, n_bytes, 0) == (ssize_t)n_bytes);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return path;
}

/* `is_taken` has a flag for each byte of the file. */
static void check_tensor(const hpi_safetensors *file, const hpi_tensor *tensor, size_t n_bytes,
                         bool *is_taken) {
    uint64_t expected = hp_dtype_size(tensor->dtype);
    MUST(expected && tensor->n_dims <= HP_MAX_DIMS);
    for (int d = 0; d < tensor->n_dims; d++)
        MUST(hpi_multiply(expected, tensor->shape[d], &expected));
    MUST(tensor->n_bytes == expected);
    MUST(tensor->offset <= n_bytes && tensor->n_bytes <= n_bytes - tensor->offset);
    for (uint64_t i = 0; i < tensor->n_bytes; i++) {
        MUST(!is_taken[tensor->offset + i]);
        is_taken[tensor->offset + i] = true;
    }
    MUST(hpi_safetensors_find(file, tensor->name) == tensor);
    void *values = malloc(tensor->n_bytes + 1);
    MUST(values);
    const hp_status status = hpi_safetensors_read(file, tensor, values);
    MUST(status == HP_OK || (status == HP_ERR_FORMAT && tensor->has_checksum));
    free(values);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    hpi_safetensors file;
    const char *path = file_of(data, n_bytes);
    const hp_status status = hpi_safetensors_open(path, &file);
    if (status < 0) {
        MUST(status == HP_ERR_FORMAT && strstr(hp_last_error(), path));
        return 0;
    }
    uint64_t n_header = 0;
    bool *is_taken = calloc(n_bytes, 1);
    MUST(is_taken);
    for (uint64_t i = 0; i < file.n_tensors; i++)
        check_tensor(&file, &file.tensors[i], n_bytes, is_taken);
    memcpy(&n_header, data, sizeof n_header);
    for (uint64_t i = 0; i < n_bytes; i++)
        MUST(is_taken[i] == (i >= 8 + n_header));
    free(is_taken);
    hpi_safetensors_close(&file);
    return 0;
}

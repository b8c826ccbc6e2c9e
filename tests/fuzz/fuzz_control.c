/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_control.c - what a launcher reads in the control block of a rank that was killed.
 *
 * The block holds any bytes; the texts come out whole, in buffers of any size, and say only that a
 * rank waits where a note says so.
 */
#include "fuzz.h"
#include "world/control.h"

static void check(bool (*read)(const hpi_control *control, char *out_text, size_t size),
                  const hpi_control *control, size_t size) {
    char *text = malloc(size); /* of this size, so that a byte too many is noticed */
    MUST(text);
    memset(text, 'x', size);
    const bool waits = read(control, text, size);
    MUST(waits || read == hpi_control_describe ? memchr(text, 0, size) != NULL : text[0] == 'x');
    if (waits && size > 16)
        MUST(!strncmp(text, "waiting for ", 12));
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    static hpi_control control;
    fuzz_input in = {data, n_bytes};
    const size_t size = 1 + fuzz_byte(&in) * (size_t)4;
    fuzz_take(&in, &control.notes, sizeof control.notes);
    fuzz_take(&in, &control.failure, sizeof control.failure);
    fuzz_take(&in, &control.doing, sizeof control.doing);
    check(hpi_control_describe, &control, size);
    check(hpi_control_describe_failure, &control, size);
    return 0;
}

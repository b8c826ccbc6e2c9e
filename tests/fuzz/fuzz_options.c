/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_options.c - any text in any of the library's environment variables.
 *
 * Taken, a number is within its bounds; refused, the text that is said names the variable. The
 * whole number and the number of bytes have parsers of their own, which see the text as well.
 */
#include "base/base.h"

#include "fuzz.h"

static const char *const names[] = {
#define X(field, type, name, fallback, least, most, unit, text) name,
#include "base/options.def"
#undef X
};
enum { N_NAMES = sizeof names / sizeof *names };

#define IN_UINT(field, least, most) MUST(options.field >= (least) && options.field <= (most))
#define IN_BYTES IN_UINT
#define IN_FLAG(field, least, most) MUST(options.field <= 1)
#define IN_CHOICE(field, least, most) MUST(options.field <= (most) || options.field == unset.field)
#define IN_TEXT(field, least, most) MUST(options.field)

static void check_options(const char *name) {
    hpi_options options, unset;
    const hp_status status = hpi_options_load(&options);
    if (status < 0) {
        MUST(status == HP_ERR_ARGUMENT && strstr(hp_last_error(), name));
        return;
    }
    MUST(unsetenv(name) == 0 && hpi_options_load(&unset) == HP_OK);
    /* unsigned, so a least of 0 is no bound */
#pragma clang diagnostic ignored "-Wtautological-compare"
#define X(field, type, name, fallback, least, most, unit, text) IN_##type(field, least, most);
#include "base/options.def"
#undef X
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    fuzz_input in = {data, n_bytes};
    const char *name = names[fuzz_byte(&in) % N_NAMES];
    char text[300];
    uint64_t bytes = 77;
    int64_t number = 77;
    fuzz_take(&in, text, sizeof text);
    text[sizeof text - 1] = '\0';
    MUST(setenv(name, text, 1) == 0);
    const hp_status status = hpi_environment_int(name, -5, 1000, 3, &number);
    MUST(status ? number == 77 : number >= -5 && number <= 1000);
    check_options(name);
    MUST(unsetenv(name) == 0);
    MUST(hpi_parse_bytes(text, &bytes) == HP_OK || bytes == 77);
    return 0;
}

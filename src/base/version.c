/* SPDX-License-Identifier: Apache-2.0
 *
 * version.c - the version, and whether a program's headers go with it.
 *
 * Below 1.0 a minor version may change anything; from 1.0 on a library serves all headers of its
 * major version that are not newer than itself. Source: semver.org 2.0.0, items 4 and 8.
 */
#include "base.h"

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
const char *hp_version(void) {
    return TEXT(HP_VERSION_MAJOR) "." TEXT(HP_VERSION_MINOR) "." TEXT(HP_VERSION_PATCH);
}

const char *hp_version_build(void) {
    return
#ifdef __clang__
        "clang " __clang_version__
#else
        "gcc " __VERSION__
#endif
#ifdef HP_HAS_SDT
        ", usdt probes"
#endif
#ifdef HP_PLAIN_KERNELS
        ", plain kernels"
#endif
        ;
}

hp_status hp_version_check(uint32_t headers) {
    enum { MAJOR = 1000000, MINOR = 1000, LIBRARY = HP_VERSION_NUMBER };
    const uint32_t of_library = LIBRARY;
    /* what has to be the same: the major version and, below 1.0, the minor one */
    const uint32_t unit = of_library < MAJOR ? MINOR : MAJOR;
    if (headers / unit == of_library / unit && headers <= of_library)
        return HP_OK;
    return HPI_FAIL(HP_ERR_VERSION,
                    "expected a program compiled with headers that this library, %s, serves, given "
                    "one compiled with those of %u.%u.%u",
                    hp_version(), headers / MAJOR, headers / MINOR % MINOR, headers % MINOR);
}

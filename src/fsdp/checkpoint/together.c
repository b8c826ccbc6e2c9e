/* SPDX-License-Identifier: Apache-2.0
 *
 * together.c - a token that rank 0 draws and tells; from the clock where there is no randomness.
 */
#include "together.h"

#include <sys/random.h>

hp_status hpi_token(const hp_fsdp *fsdp, uint64_t *out_token) {
    uint64_t token = 0;
    if (getrandom(&token, sizeof token, 0) != sizeof token)
        token = hpi_now_ns();
    HP_TRY(hpi_tell(fsdp, &token, sizeof token, 0));
    *out_token = token;
    return HP_OK;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * plugin.c - opening an engine that lies in a shared object of its own.
 *
 * The plug-in gets what it needs of the library in a table and fills an engine, which is looked at
 * before it is used.
 */
#include "matmul.h"

#include "../base/base.h"

hp_status hpi_matmul_open_plugin(const char *plugins, const char *file, int n_threads,
                                 hp_matmul *out_matmul) {
    const hpi_matmul_host host = {.size = sizeof host,
                                  .engine_size = sizeof *out_matmul,
                                  .version = hp_version(),
                                  .fail = hp_error_set,
                                  .alloc = hpi_alloc_aligned,
                                  .free = hpi_free,
                                  .open_plain = hpi_matmul_open_plain};
    hpi_matmul_plugin_open *open;
    void *symbol;
    HP_TRY(hpi_plugin_find(plugins, file, HPI_MATMUL_PLUGIN_OPEN, &symbol));
    memcpy(&open, &symbol, sizeof open); /* C converts no object pointer into a function's */
    HP_TRY(open(&host, n_threads, out_matmul));
    if (out_matmul->size != sizeof *out_matmul || !out_matmul->run)
        return HPI_FAIL(HP_ERR_VERSION, "expected %s to fill an engine of %zu bytes, given %zu",
                        file, sizeof *out_matmul, out_matmul->size);
    return HP_OK;
}

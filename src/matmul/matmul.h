/* SPDX-License-Identifier: Apache-2.0
 *
 * matmul/matmul.h - the door of room `matmul`: how an engine is opened, here or in a plug-in.
 *
 * A plug-in is a shared object that exports one function, hp_matmul_plugin_open. It is given
 * what it needs of the library in a table, so it links against nothing of ours and serves the
 * static and the shared library alike. Engines see no product with an empty C or with k = 0, and
 * no argument that hp_matmul_run refuses.
 */
#ifndef HPI_MATMUL_H
#define HPI_MATMUL_H

#include <hyperparallel/matmul.h>

/* What a plug-in gets; it takes a copy. */
typedef struct hpi_matmul_host {
    size_t size;         /* sizeof(hpi_matmul_host) */
    size_t engine_size;  /* sizeof(hp_matmul), what out_matmul has room for */
    const char *version; /* of the library; a plug-in of another one refuses */
    hp_status (*fail)(hp_status status, const char *call, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
    void *(*alloc)(size_t alignment, size_t bytes); /* zeroed; NULL with the record written */
    void (*free)(void *memory);
    hp_status (*open_plain)(hp_matmul *out_matmul); /* for what a plug-in leaves to plain loops */
} hpi_matmul_host;

/* Fill out_matmul, all of it. Errors: UNSUPPORTED when this machine cannot run the engine, VERSION,
 * MEMORY. */
typedef hp_status hpi_matmul_plugin_open(const hpi_matmul_host *host, int n_threads,
                                         hp_matmul *out_matmul);
#define HPI_MATMUL_PLUGIN_OPEN "hp_matmul_plugin_open"

/* The loops of the library. Errors: MEMORY. */
hp_status hpi_matmul_open_plain(hp_matmul *out_matmul);

/* The engine in the shared object `file`, looked for in folder `plugins` or, when that is empty,
 * in lib/hyperparallel beside and above the library's own file and the program's. Errors:
 * UNSUPPORTED, saying where it was looked for; those of the plug-in. */
hp_status hpi_matmul_open_plugin(const char *plugins, const char *file, int n_threads,
                                 hp_matmul *out_matmul);

#endif

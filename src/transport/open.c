/* SPDX-License-Identifier: Apache-2.0
 *
 * open.c - which transport a job has, and the first meeting of its ranks.
 *
 * Every MPI has an ABI of its own, and its launcher speaks to it alone, so the launcher's traces in
 * the environment say which plug-in to load. A plug-in of another MPI would start, each rank for
 * itself; that is noticed and named. Then every rank shows its card, so that different libraries
 * part before anything else is said, and each knows the others' hosts.
 */
#include "transport.h"

#include "../base/base.h"

#include <stdio.h>

enum { TRANSPORT_AUTO, TRANSPORT_NONE, TRANSPORT_MPI, FIRST_ROW };
enum {
#define X(id, name, file, meaning) ROW_##id,
#include "transports.def"
#undef X
    N_ROWS
};
static const struct {
    const char *name, *file;
} rows[] = {
#define X(id, name, file, meaning) {name, file},
#include "transports.def"
#undef X
};
_Static_assert(N_ROWS == 2, "HYPER_PARALLEL_TRANSPORT in options.def takes these names");

/* ---- who started the job --------------------------------------------------------------------- */

typedef struct launcher {
    const char *size;    /* a variable that it sets: how many ranks there are */
    const char *another; /* set as well, or NULL */
    int row;
    const char *text;
} launcher;

static const launcher launchers[] = {
    {"OMPI_COMM_WORLD_SIZE", NULL, ROW_mpi_openmpi, "mpirun of Open MPI"},
    {"PMI_SIZE", NULL, ROW_mpi_mpich, "an mpiexec of MPICH's family, or srun --mpi=pmi2"},
    {"SLURM_NTASKS", "PMIX_RANK", ROW_mpi_openmpi, "srun --mpi=pmix"},
};

static const launcher *find_launcher(void) {
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++)
        if (hpi_environment(launchers[i].size) &&
            (!launchers[i].another || hpi_environment(launchers[i].another)))
            return &launchers[i];
    return NULL;
}

const char *hpi_transport_launcher(void) {
    const launcher *found = find_launcher();
    return found ? found->text : NULL;
}

bool hpi_transport_is_named(const hpi_options *options) {
    return options->transport >= TRANSPORT_MPI;
}

bool hpi_transport_fits(const hpi_options *options) {
    return options->transport == TRANSPORT_AUTO && find_launcher();
}

static hp_status choose_row(const hpi_options *options, int *out_row) {
    const launcher *found = find_launcher();
    if (options->transport == TRANSPORT_NONE)
        return HPI_FAIL(HP_ERR_UNSUPPORTED, "HYPER_PARALLEL_TRANSPORT is none");
    if (options->transport >= FIRST_ROW) {
        *out_row = (int)options->transport - FIRST_ROW;
        return HP_OK;
    }
    if (!found)
        return HPI_FAIL(HP_ERR_UNSUPPORTED,
                        "expected to be started by mpirun of Open MPI, an mpiexec of MPICH's "
                        "family, or srun with --mpi=pmix or pmi2; nothing in the environment says "
                        "so (OMPI_COMM_WORLD_SIZE, PMI_SIZE, PMIX_RANK)");
    *out_row = found->row;
    return HP_OK;
}

/* ---- the first meeting ----------------------------------------------------------------------- */

#define CARD_MAGIC UINT64_C(0x6472614354504848) /* "HHPTCard" */
enum { VERSION_BYTES = 16 };

typedef struct card {
    uint64_t magic;
    char version[VERSION_BYTES];
    char host[HPI_HOST_NAME_BYTES];
} card;
_Static_assert(sizeof(card) == 88, "sent between hosts");

const char *hpi_transport_host_of(const hpi_transport *t, int rank) {
    return t->hosts && rank >= 0 && rank < t->n_ranks ? t->hosts[rank] : "?";
}

static hp_status read_cards(const hpi_transport *t, card *cards) {
    for (int i = 0; i < t->n_ranks; i++) {
        card *c = &cards[i];
        c->version[VERSION_BYTES - 1] = c->host[HPI_HOST_NAME_BYTES - 1] = '\0';
        if (c->magic != CARD_MAGIC || strcmp(c->version, cards[t->rank].version) != 0)
            return HPI_FAIL_RANK(HP_ERR_VERSION, i,
                                 "expected one library on all ranks, rank %d on %s has %s and rank "
                                 "%d on %s has %s",
                                 i, c->host, c->magic == CARD_MAGIC ? c->version : "another",
                                 t->rank, cards[t->rank].host, cards[t->rank].version);
    }
    return HP_OK;
}

/* The cards' hosts become the transport's. */
static hp_status keep_hosts(hpi_transport *t, const card *cards) {
    t->hosts = hpi_alloc((size_t)t->n_ranks, sizeof *t->hosts);
    for (int i = 0; t->hosts && i < t->n_ranks; i++)
        memcpy(t->hosts[i], cards[i].host, sizeof *t->hosts);
    return t->hosts ? HP_OK : HP_ERR_MEMORY;
}

static hp_status meet(hpi_transport *t, uint64_t timeout_ms) {
    card mine = {.magic = CARD_MAGIC};
    const hpi_patience patience = {.operation = "transport_open", .timeout_ms = timeout_ms};
    snprintf(mine.version, sizeof mine.version, "%s", hp_version());
    snprintf(mine.host, sizeof mine.host, "%s", t->host);
    card *cards = hpi_alloc((size_t)t->n_ranks, sizeof *cards);
    hp_status status = cards ? HP_OK : HP_ERR_MEMORY;
    if (!status)
        status = hpi_transport_gather(t, &mine, sizeof mine, cards, &patience);
    if (!status)
        status = read_cards(t, cards);
    if (!status)
        status = keep_hosts(t, cards);
    hpi_free(cards);
    return status;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static hp_status load(const hpi_options *options, int row, hpi_transport *out) {
    const hpi_transport_host host = {.size = sizeof host,
                                     .transport_size = sizeof *out,
                                     .version = hp_version(),
                                     .fail = hpi_fail,
                                     .alloc = hpi_alloc,
                                     .free = hpi_free};
    const hpi_transport_wish wish = {.one_thread = options->transport_threads == 1,
                                     .timeout_ms = options->start_timeout_ms};
    hpi_transport_plugin_open *open;
    void *symbol;
    HP_TRY(hpi_plugin_find(options->plugins, rows[row].file, HPI_TRANSPORT_PLUGIN_OPEN, &symbol));
    memcpy(&open, &symbol, sizeof open); /* C converts no object pointer into a function's */
    HP_TRY(open(&host, &wish, out));
    if (out->size != sizeof *out)
        return HPI_FAIL(HP_ERR_VERSION, "expected %s to fill a transport of %zu bytes, given %zu",
                        rows[row].file, sizeof *out, out->size);
    return HP_OK;
}

/* An MPI that another one's launcher started does not find the other ranks, and goes on alone. */
static hp_status check_ranks(const hpi_transport *t, int row, int rank, int n_ranks) {
    const launcher *found = find_launcher();
    int64_t said = n_ranks;
    if (found)
        HP_TRY(hpi_environment_int(found->size, 1, INT32_MAX, n_ranks, &said));
    if (found && t->n_ranks == 1 && said > 1)
        return HPI_FAIL(HP_ERR_MISMATCH,
                        "expected %d ranks, %s sees itself alone: the job was started by %s; "
                        "HYPER_PARALLEL_TRANSPORT=%s fits that",
                        (int)said, rows[row].name, found->text, rows[found->row].name);
    if ((n_ranks != -1 && n_ranks != t->n_ranks) || (rank != -1 && rank != t->rank))
        return HPI_FAIL(HP_ERR_MISMATCH,
                        "expected rank %d of %d as the caller says, this is rank %d of %d for %s",
                        rank, n_ranks, t->rank, t->n_ranks, rows[row].name);
    return HP_OK;
}

hp_status hpi_transport_open(const hpi_options *options, int rank, int n_ranks,
                             hpi_transport **out_transport) {
    int row;
    HP_TRY(choose_row(options, &row));
    hpi_transport *t = hpi_alloc(1, sizeof *t);
    if (!t)
        return HP_ERR_MEMORY;
    hp_status status = load(options, row, t);
    if (!status)
        status = check_ranks(t, row, rank, n_ranks);
    if (!status)
        status = meet(t, options->start_timeout_ms);
    if (status) {
        hp_error record;
        hp_last_error_get(&record);
        hpi_transport_close(t);
        return hpi_error_set(&record);
    }
    *out_transport = t;
    return HP_OK;
}

void hpi_transport_close(hpi_transport *t) {
    if (!t)
        return;
    if (t->close)
        t->close(t);
    hpi_free(t->hosts);
    hpi_free(t);
}

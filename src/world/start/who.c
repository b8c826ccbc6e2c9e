/* SPDX-License-Identifier: Apache-2.0
 *
 * who.c - who we are: which rank of how many, and who says so.
 *
 * The first of these that applies: a hub in the config (threads), a store in the config, the
 * descriptors that a launcher of ours passed on, a transport that is asked for by name, torchrun's
 * environment, the traces of an MPI's launcher, else a world of one.
 */
#include "../inside.h"
#include "../launch/launch.h"

#include <stdio.h>

static hp_status rank_in_range(int rank, int n_ranks, const char *source) {
    if (n_ranks < 1 || n_ranks > HPI_MAX_LOCAL || rank < 0 || rank >= n_ranks)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected 1 to %d ranks and a rank below their number from %s, given rank "
                        "%d of %d",
                        HPI_MAX_LOCAL, source, rank, n_ranks);
    return HP_OK;
}

static hp_status from_hub(const hp_world_config *config, hpi_identity *out) {
    const int n_ranks = hpi_hub_size(config->hub);
    if (config->store || (config->n_ranks != -1 && config->n_ranks != n_ranks))
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected a hub of %d ranks alone, given n_ranks %d and %s store", n_ranks,
                        config->n_ranks, config->store ? "a" : "no");
    *out = (hpi_identity){.origin = HPI_FROM_HUB, .rank = config->rank, .n_ranks = n_ranks};
    return rank_in_range(out->rank, n_ranks, "the hub's config");
}

static hp_status from_store(const hp_world_config *config, hpi_identity *out) {
    if (!config->store->set || !config->store->get)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a store with set and get, given NULL");
    *out =
        (hpi_identity){.origin = HPI_FROM_STORE, .rank = config->rank, .n_ranks = config->n_ranks};
    return rank_in_range(out->rank, out->n_ranks, "the store's config");
}

/* RANK and WORLD_SIZE; *out_found says whether they are there. */
static hp_status read_ranks(hpi_identity *out, bool *out_found) {
    const bool has_rank = hpi_environment("RANK"), has_size = hpi_environment("WORLD_SIZE");
    int64_t rank, n_ranks;
    if (has_rank != has_size)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected RANK and WORLD_SIZE in the environment or neither, %s is missing",
                        has_rank ? "WORLD_SIZE" : "RANK");
    HP_TRY(hpi_environment_int("WORLD_SIZE", 1, INT32_MAX, 1, &n_ranks));
    HP_TRY(hpi_environment_int("RANK", 0, INT32_MAX, 0, &rank));
    out->rank = (int)rank;
    out->n_ranks = (int)n_ranks;
    *out_found = has_rank;
    return rank_in_range(out->rank, out->n_ranks, "RANK and WORLD_SIZE");
}

/* Started by no launcher of ours. */
static void from_others(const hpi_options *options, bool is_ranked, hpi_identity *out) {
    const bool is_asked = hpi_transport_is_named(options);
    if (is_asked || (!is_ranked && hpi_transport_fits(options))) {
        out->origin = HPI_FROM_TRANSPORT;
        if (!is_ranked)
            out->rank = out->n_ranks = -1;
    } else {
        out->origin = is_ranked && out->n_ranks > 1 ? HPI_FROM_ENVIRONMENT : HPI_ALONE;
    }
}

static hp_status from_environment(const hpi_options *options, hpi_identity *out) {
    const char *launcher = hpi_environment(HPI_LAUNCHER_ENVIRONMENT);
    bool is_ranked;
    *out = (hpi_identity){.origin = HPI_ALONE};
    HP_TRY(read_ranks(out, &is_ranked));
    if (!launcher) {
        from_others(options, is_ranked, out);
        return HP_OK;
    }
    out->origin = HPI_FROM_LAUNCHER;
    if (!is_ranked || sscanf(launcher, HPI_LAUNCHER_FORMAT, &out->layout_version, &out->store_fd,
                             &out->segment_fd) != 3)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected RANK, WORLD_SIZE and %s as hprun sets them, given \"%s\"",
                        HPI_LAUNCHER_ENVIRONMENT, launcher);
    if (out->layout_version != HPI_LAYOUT_VERSION)
        return HPI_FAIL(HP_ERR_VERSION,
                        "expected hprun of this library (layout %d), it has layout %d",
                        HPI_LAYOUT_VERSION, out->layout_version);
    return HP_OK;
}

hp_status hpi_who_are_we(const hp_world_config *config, const hpi_options *options,
                         hpi_identity *out_identity) {
    if (config->hub)
        return from_hub(config, out_identity);
    if (config->store)
        return from_store(config, out_identity);
    HP_TRY(from_environment(options, out_identity));
    if ((config->rank != -1 && config->rank != out_identity->rank) ||
        (config->n_ranks != -1 && config->n_ranks != out_identity->n_ranks))
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected rank and n_ranks of -1 without a hub or a store, given %d and %d "
                        "(the environment says %d and %d)",
                        config->rank, config->n_ranks, out_identity->rank, out_identity->n_ranks);
    return HP_OK;
}

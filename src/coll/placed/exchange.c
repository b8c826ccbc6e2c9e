/* SPDX-License-Identifier: Apache-2.0
 *
 * exchange.c - all-to-all: rank i's part j becomes rank j's part i.
 *
 *     rank   0      1      2      3          all_to_all, 4 ranks: each reads its own column,
 *           [abcd] [efgh] [ijkl] [mnop]      starting below itself, so that no two ranks
 *           [aeim] [bfjn] [cgko] [dhlp]      read from the same one at a time
 *
 * In place an output lies where peers still read, so that goes through cells: staged/exchange.c.
 * Parts of any size (all_to_all_v) are first found to fit: each rank sums a hash of what it sends
 * less one of what it expects, and the meeting adds these up; where they do not cancel, all look
 * for the parts that differ.
 *
 * Steps: 2 (3 for all_to_all_v by pull). Bytes per rank: reads and writes n S, S being the mean
 * part. Source: Bruck et al. 1997 for the lower bound; direct reading has one step.
 */
#include "../inside.h"

void hpi_exchange_own(const hpi_run *run) {
    const hpi_piece from = hpi_sent_to(run, run->rank), to = hpi_got_of(run, run->rank);
    if (!run->is_in_place && to.bytes)
        hpi_copy_own(run, (unsigned char *)run->c.out + to.begin,
                     (const unsigned char *)run->c.in + from.begin, to.bytes);
}

/* Nobody else reads it. */
static void pull(const hpi_reading *reading, unsigned char *to, const unsigned char *from,
                 uint64_t bytes) {
    for (uint64_t at = 0, n; at < bytes; at += n) {
        n = hpi_min(hpi_reading_step(reading), bytes - at);
        hpi_copy(to + at, from + at, n);
        hpi_hand_back(reading, from + at, n);
    }
}

hp_status hpi_exchange(hpi_run *run) {
    const hpi_piece ours = hpi_sent_to(run, run->rank);
    const uint64_t begin = ours.begin; /* of our part in every input */
    const int first = (run->rank + run->n - 1) % run->n;
    const hpi_reading reading =
        hpi_reading_begin(run, run->state->in[run->rank], run->state->in[first], run->in_bytes);
    for (int k = 1; k < run->n; k++) {
        const int peer = (run->rank + run->n - k) % run->n;
        const hpi_piece to = hpi_got_of(run, peer);
        pull(&reading, (unsigned char *)run->c.out + to.begin, run->state->in[peer] + begin,
             to.bytes);
    }
    hpi_exchange_own(run); /* last: see gather.c */
    return HP_OK;
}

/* ---- parts of any size ---- */

/* The cells carry tables of n words here, and have 1024 bytes for each rank: see stage.c. */
static uint64_t *table_begin(hpi_run *run) {
    return (uint64_t *)(void *)hpi_tick_begin(run, (uint64_t)run->n * sizeof(uint64_t));
}
static const uint64_t *table_of(const hpi_run *run, int rank) {
    return (const uint64_t *)(const void *)hpi_cell_of(run, rank);
}

/* Where a part begins, only its sender knows: one tick tells the others. */
hp_status hpi_exchange_v(hpi_run *run) {
    const hpi_reading reading = hpi_reading_begin(run, NULL, NULL, 0); /* as others have found */
    HP_TRY(hpi_ring_open(run));
    memcpy(table_begin(run), run->in_parts.begins, (size_t)run->n * sizeof(uint64_t));
    hpi_tick_post(run);
    hpi_exchange_own(run);
    for (int k = 1; k < run->n; k++) {
        const int peer = (run->rank + run->n - k) % run->n;
        const hpi_piece to = hpi_got_of(run, peer);
        HP_TRY(hpi_tick_wait(run, peer));
        pull(&reading, (unsigned char *)run->c.out + to.begin,
             run->state->in[peer] + table_of(run, peer)[run->rank] * run->in_size, to.bytes);
    }
    return HP_OK;
}

/* A bijection of count for each pair, so that one wrong count never cancels. */
static uint64_t mix(int from, int to, uint64_t count) {
    uint64_t state = (uint64_t)from << 32 | (uint32_t)to;
    state = hpi_random_next(&state) ^ count;
    return hpi_random_next(&state);
}

uint64_t hpi_exchange_balance(const hpi_run *run) {
    uint64_t balance = 0;
    for (int i = 0; i < run->n; i++)
        balance += mix(run->rank, i, run->c.in_counts[i]) - mix(i, run->rank, run->c.out_counts[i]);
    return balance;
}

hp_status hpi_exchange_blame(hpi_run *run) {
    const size_t n = (size_t)run->n;
    HP_TRY(hpi_ring_open(run));
    uint64_t *mine = table_begin(run); /* what is sent to each, what is expected of each */
    memcpy(mine, run->c.in_counts, n * sizeof *mine);
    memcpy(mine + n, run->c.out_counts, n * sizeof *mine);
    hpi_tick_post(run);
    HP_TRY(hpi_tick_wait_all(run));
    for (int i = 0; i < run->n; i++)
        for (int j = 0; j < run->n; j++) {
            const uint64_t sent = table_of(run, i)[j], expected = table_of(run, j)[n + (size_t)i];
            if (sent != expected)
                return HPI_FAIL_RANK(
                    HP_ERR_MISMATCH, hp_group_world_rank(run->group, i),
                    "%s: expected each rank of %s to receive what it is sent, rank "
                    "%d (world %d) sends %llu elements to rank %d (world %d), "
                    "which expects %llu",
                    run->name, hpi_group_name(run->group), i, hp_group_world_rank(run->group, i),
                    (unsigned long long)sent, j, hp_group_world_rank(run->group, j),
                    (unsigned long long)expected);
        }
    return HPI_FAIL(HP_ERR_MISMATCH, "%s: expected counts that stay as they are during the call",
                    run->name);
}

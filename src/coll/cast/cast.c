/* SPDX-License-Identifier: Apache-2.0
 *
 * cast.c - broadcasts for which nobody meets: the root goes on, the others read when they come.
 *
 *     root      its words, with the data in them (words) or with where its cells begin (cells);
 *               then each piece: wait for room in the ring, copy it in, post how far it is written
 *     reader    wait for the root's words, compare, copy each piece out, now and then post how far
 *               it has read
 *
 * Both sides find a piece by the position in the ring, which follows from the calls so far. The
 * first is written before the words are posted, so that a short message needs one wait. Readers
 * say their words too: who is in another collective finds them there. meet/ahead.c bounds how far
 * the root may go, and compares what readers said. Nothing here waits for a reader but for room.
 *
 * Steps: 1. Bytes: the root reads and writes S, each reader reads and writes S. Source: pipelined
 * release-gather of MPICH (Jain et al. 2018); NCCL LL for data beside the number.
 */
#include "cast.h"

enum { N_LINES = HPI_CAST_BYTES / HPI_CAST_LINE, SAY_STEP = N_LINES / 8 };

static hpi_cast *cast_of(const hpi_run *run) {
    return run->state->cast;
}

static bool is_root(const hpi_run *run) {
    return run->rank == run->c.root;
}

/* ---- the ring ------------------------------------------------------------------------------- */

static hp_status ring_open(hpi_run *run) {
    hpi_cast *cast = cast_of(run);
    if (cast->box)
        return HP_OK;
    HP_TRY(hpi_outbox_take(run->group, HPI_CAST_BYTES, &cast->box));
    cast->cells = hpi_outbox_memory(cast->box);
    cast->distance.begin = cast->cells;
    return HP_OK;
}

/* Of a piece of so long a message: large enough that what each costs is little, small enough that
 * the copies of the first and the last, which nothing hides, are short. */
static uint64_t most_bytes(uint64_t bytes) {
    enum { LEAST = 8 << 10, MOST = 32 << 10 };
    return hpi_min(hpi_max(bytes / 4, LEAST), MOST);
}

/* A piece of `bytes` at the position, which skips the end of the ring where it does not fit. */
static uint64_t place_piece(hpi_cast *cast, uint64_t bytes, uint64_t *out_lines) {
    *out_lines = hpi_ceil_div(bytes, HPI_CAST_LINE);
    if (cast->position % N_LINES + *out_lines > N_LINES)
        cast->position = hpi_align_up(cast->position, N_LINES);
    return cast->position % N_LINES * HPI_CAST_LINE;
}

/* Until every reader has read what lay where the next `lines` go. */
static hp_status wait_for_room(const hpi_run *run, uint64_t lines) {
    hpi_cast *cast = cast_of(run);
    const uint64_t end = cast->position + lines;
    uint64_t read = cast->position;
    if (end <= cast->free_to)
        return HP_OK;
    for (int k = 1; k < run->n && end > N_LINES; k++) {
        const int peer = (run->rank + k) % run->n;
        HP_TRY(hpi_line_wait(run->group, peer, HPI_LINE_CAST, end - N_LINES, run->name));
        read = hpi_min(read, hpi_line_seq(run->group, peer, HPI_LINE_CAST));
    }
    cast->free_to = read + N_LINES;
    return HP_OK;
}

/* Written (a root), or read. What a reader says late holds up a root that is far ahead, no more. */
static void pass_piece(const hpi_run *run, uint64_t lines, bool is_awaited) {
    hpi_cast *cast = cast_of(run);
    cast->position += lines;
    if (!is_awaited && cast->position - cast->said < SAY_STEP)
        return;
    cast->said = cast->position;
    hpi_line_post(run->group, HPI_LINE_CAST, cast->position);
}

/* ---- the root ------------------------------------------------------------------------------- */

static void say(hpi_run *run, const uint64_t payload[HPI_SMALL_WORDS]) {
    hpi_words_write(run, payload);
    hpi_said_post(run->group, run->seq);
}

static hp_status write_piece(const hpi_run *run, uint64_t at, uint64_t bytes, bool is_awaited) {
    hpi_cast *cast = cast_of(run);
    uint64_t lines;
    unsigned char *cell = cast->cells + place_piece(cast, bytes, &lines);
    HP_TRY(wait_for_room(run, lines));
    hpi_ring_fill(&cast->distance, cell, (const unsigned char *)run->c.out + at, bytes);
    pass_piece(run, lines, is_awaited);
    return HP_OK;
}

static hp_status send_cells(hpi_run *run) {
    const uint64_t bytes = run->in_bytes, most = most_bytes(bytes);
    HP_TRY(ring_open(run));
    const uint64_t payload[HPI_SMALL_WORDS] = {hpi_outbox_offset(cast_of(run)->box)};
    HP_TRY(write_piece(run, 0, hpi_min(most, bytes), false));
    say(run, payload);
    for (uint64_t at = most; at < bytes; at += most)
        HP_TRY(write_piece(run, at, hpi_min(most, bytes - at), true));
    return HP_OK;
}

static hp_status send_words(hpi_run *run) {
    uint64_t payload[HPI_SMALL_WORDS] = {0};
    memcpy(payload, run->c.out, run->in_bytes);
    say(run, payload);
    return HP_OK;
}

/* ---- a reader ------------------------------------------------------------------------------- */

/* Nobody waits for these words but a rank in another collective, which may find them late. */
static void say_quietly(hpi_run *run) {
    const uint64_t payload[HPI_SMALL_WORDS] = {0};
    hpi_words_write(run, payload);
    hpi_said_put(run->group, run->seq);
}

static hp_status read_piece(const hpi_run *run, const unsigned char *cells, uint64_t at,
                            uint64_t bytes) {
    hpi_cast *cast = cast_of(run);
    uint64_t lines;
    const unsigned char *cell = cells + place_piece(cast, bytes, &lines);
    if (at > 0) /* the words have told of the first */
        HP_TRY(hpi_line_wait(run->group, run->c.root, HPI_LINE_CAST, cast->position + lines,
                             run->name));
    hpi_ring_read((unsigned char *)run->c.out + at, cell, bytes);
    pass_piece(run, lines, false);
    return HP_OK;
}

static hp_status receive(hpi_run *run) {
    uint64_t payload[HPI_SMALL_WORDS];
    say_quietly(run);
    HP_TRY(hpi_words_hear(run, run->c.root, payload));
    if (run->is_small) {
        memcpy(run->c.out, payload, run->in_bytes);
        return HP_OK;
    }
    const unsigned char *cells = run->state->heaps[run->c.root] + payload[0]; /* the root's */
    const uint64_t bytes = run->in_bytes, most = most_bytes(bytes);
    for (uint64_t at = 0; at < bytes; at += most)
        HP_TRY(read_piece(run, cells, at, hpi_min(most, bytes - at)));
    return HP_OK;
}

/* ---- the door ------------------------------------------------------------------------------- */

hp_status hpi_cast_run(hpi_run *run) {
    HP_TRY(hpi_ahead_wait(run));
    if (!is_root(run))
        HP_TRY(receive(run));
    else
        HP_TRY(run->is_small ? send_words(run) : send_cells(run));
    hpi_ahead_leave(run);
    return HP_OK;
}

hp_status hpi_cast_create(hpi_cast **out_cast) {
    *out_cast = hpi_alloc(1, sizeof **out_cast);
    return *out_cast ? HP_OK : HP_ERR_MEMORY;
}

void hpi_cast_destroy(hp_group *group, hpi_cast *cast) {
    if (cast && cast->box)
        hpi_outbox_leave(group, cast->box);
    hpi_free(cast);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * flights.c - messages under way, in lists that are waited for from the front.
 *
 * A list grows to the most that one collective ever had under way, and then no more.
 */
#include "across.h"

enum { FIRST_ROOM = 64 };

static hp_status make_room(hpi_flights *f) {
    if (f->n < f->room)
        return HP_OK;
    const int room = f->room ? 2 * f->room : FIRST_ROOM;
    hpi_transfer **more = hpi_alloc((size_t)room, sizeof *more);
    if (!more)
        return HP_ERR_MEMORY;
    if (f->n)
        memcpy(more, f->at, (size_t)f->n * sizeof *more);
    hpi_free(f->at);
    f->at = more;
    f->room = room;
    return HP_OK;
}

hp_status hpi_fly_to(hpi_across *a, int list, int to, uint32_t tag, const void *data,
                     uint64_t bytes) {
    hpi_flights *f = &a->flights[list];
    hpi_transfer *transfer = NULL;
    HP_TRY(make_room(f));
    if (bytes)
        HP_TRY(hpi_remote_send(a->group, to, tag, data, bytes, &transfer));
    f->at[f->n++] = transfer;
    a->sent_bytes += bytes;
    return HP_OK;
}

hp_status hpi_fly_from(hpi_across *a, int list, int from, uint32_t tag, void *out, uint64_t bytes) {
    hpi_flights *f = &a->flights[list];
    hpi_transfer *transfer = NULL;
    HP_TRY(make_room(f));
    if (bytes)
        HP_TRY(hpi_remote_receive(a->group, from, tag, out, bytes, &transfer));
    f->at[f->n++] = transfer;
    a->received_bytes += bytes;
    return HP_OK;
}

hp_status hpi_land(hpi_across *a, int list, int until) {
    hpi_flights *f = &a->flights[list];
    while (f->n_landed < until) {
        hpi_transfer *transfer = f->at[f->n_landed++];
        if (transfer)
            HP_TRY(hpi_remote_wait(a->group, transfer, a->run->seq, a->run->name));
    }
    return HP_OK;
}

void hpi_flights_end(hpi_across *a) {
    for (int list = 0; list < HPI_N_FLIGHTS; list++) {
        hpi_flights *f = &a->flights[list];
        for (; f->n_landed < f->n; f->n_landed++)
            if (f->at[f->n_landed])
                hpi_remote_cancel(a->group, f->at[f->n_landed]);
        f->n = f->n_landed = 0;
    }
}

void hpi_flights_free(hpi_across *a) {
    for (int list = 0; list < HPI_N_FLIGHTS; list++)
        hpi_free(a->flights[list].at);
}

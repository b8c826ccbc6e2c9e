/* SPDX-License-Identifier: Apache-2.0
 *
 * flights.c - messages under way, in lists that are waited for from the front.
 *
 * A message goes in packets that an MPI sends without asking. For a longer one it asks, and over
 * TCP the answer stands in line behind all that goes the other way: 8 MiB sent to and fro at
 * 1 Gbit/s took 240 ms so, one direction after the other, and 140 in packets. A list grows to the
 * most that one collective ever had under way, and then no more.
 */
#include "across.h"

enum { FIRST_ROOM = 64 };
enum { PACKET_BYTES = 60 << 10 }; /* Open MPI asks from 64 KiB on, over TCP */

static hp_status grow(void **memory, int n, int *room, size_t size) {
    if (n < *room)
        return HP_OK;
    const int wider = *room ? 2 * *room : FIRST_ROOM;
    void *more = hpi_alloc((size_t)wider, size);
    if (!more)
        return HP_ERR_MEMORY;
    if (n)
        memcpy(more, *memory, (size_t)n * size);
    hpi_free(*memory);
    *memory = more;
    *room = wider;
    return HP_OK;
}

static hp_status add_packet(hpi_flights *f, hpi_transfer ***out_at) {
    void *memory = f->at;
    HP_TRY(grow(&memory, f->n_packets, &f->packet_room, sizeof *f->at));
    f->at = memory;
    *out_at = &f->at[f->n_packets];
    return HP_OK;
}

static hp_status end_message(hpi_flights *f) {
    void *memory = f->ends;
    HP_TRY(grow(&memory, f->n, &f->room, sizeof *f->ends));
    f->ends = memory;
    f->ends[f->n++] = f->n_packets;
    return HP_OK;
}

hp_status hpi_fly_to(hpi_across *a, int list, int to, uint32_t tag, const void *data,
                     uint64_t bytes) {
    hpi_flights *f = &a->flights[list];
    for (uint64_t at = 0; at < bytes; at += PACKET_BYTES) {
        hpi_transfer **packet;
        HP_TRY(add_packet(f, &packet));
        HP_TRY(hpi_remote_send(a->group, to, tag, (const char *)data + at,
                               hpi_min(PACKET_BYTES, bytes - at), packet));
        f->n_packets++;
    }
    a->sent_bytes += bytes;
    return end_message(f);
}

hp_status hpi_fly_from(hpi_across *a, int list, int from, uint32_t tag, void *out, uint64_t bytes) {
    hpi_flights *f = &a->flights[list];
    for (uint64_t at = 0; at < bytes; at += PACKET_BYTES) {
        hpi_transfer **packet;
        HP_TRY(add_packet(f, &packet));
        HP_TRY(hpi_remote_receive(a->group, from, tag, (char *)out + at,
                                  hpi_min(PACKET_BYTES, bytes - at), packet));
        f->n_packets++;
    }
    a->received_bytes += bytes;
    return end_message(f);
}

hp_status hpi_land(hpi_across *a, int list, int until) {
    hpi_flights *f = &a->flights[list];
    for (; f->n_landed < until; f->n_landed++)
        for (; f->n_over < f->ends[f->n_landed]; f->n_over++) {
            hpi_transfer *packet = f->at[f->n_over];
            f->at[f->n_over] = NULL;
            if (packet)
                HP_TRY(hpi_remote_wait(a->group, packet, a->run->seq, a->run->name));
        }
    return HP_OK;
}

void hpi_flights_forget(hpi_across *a, int list) {
    hpi_flights *f = &a->flights[list];
    f->n = f->n_landed = f->n_packets = f->n_over = 0;
}

void hpi_flights_end(hpi_across *a) {
    for (int list = 0; list < HPI_N_FLIGHTS; list++) {
        const hpi_flights *f = &a->flights[list];
        for (int i = f->n_over; i < f->n_packets; i++)
            if (f->at[i])
                hpi_remote_cancel(a->group, f->at[i]);
        hpi_flights_forget(a, list);
    }
}

void hpi_flights_free(hpi_across *a) {
    for (int list = 0; list < HPI_N_FLIGHTS; list++) {
        hpi_free(a->flights[list].at);
        hpi_free(a->flights[list].ends);
    }
}

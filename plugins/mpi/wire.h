/* SPDX-License-Identifier: Apache-2.0
 *
 * wire.h - messages with 64-bit tags over one communicator of an MPI.
 *
 * An MPI's tags have 31 bits or fewer, so they cannot be ours. A message travels as a *packet* on
 * one MPI tag: a header with the 64-bit tag, and the bytes themselves where they are few. Packets
 * of a pair arrive in order, and are matched here. The bytes of a larger message follow as its
 * *payload*, straight from and into the user's memory, on an MPI tag that no other payload of the
 * pair under way has. Nothing here blocks. Source: UCX's active messages with rendezvous.
 */
#ifndef HP_MPI_WIRE_H
#define HP_MPI_WIRE_H

#include "../../src/transport/transport.h"

#include <mpi.h>

typedef struct wire wire;

/* An MPI tag that the wire leaves to whoever closes it. */
enum { WIRE_END_TAG = 1 };

/* A message of so many bytes is gone, for its sender, when it is posted. */
enum { WIRE_SMALL_BYTES = 4096 - 24 };

/* Takes the communicator over; its errors must be returned. `is_driven`: calls of the network are
 * made in wire_drive alone, by one thread; else by whoever posts and tests, too. Errors: MEMORY. */
hp_status wire_create(const hpi_transport_host *host, MPI_Comm comm, bool is_driven,
                      wire **out_wire);
/* Gives no communicator back. What is still under way is left to MPI when `is_lost`. */
void wire_destroy(wire *w, bool is_lost);

hp_status wire_send(wire *w, int to, uint64_t tag, const void *data, uint64_t bytes,
                    hpi_transfer **out_transfer);
hp_status wire_receive(wire *w, int from, uint64_t tag, void *out_data, uint64_t bytes,
                       hpi_transfer **out_transfer);
hp_status wire_test(wire *w, hpi_transfer *transfer);
hp_status wire_cancel(wire *w, hpi_transfer *transfer);

/* Hand to MPI what was posted, and take from it what is done. False: nothing is under way. Where
 * the wire is not driven, nothing happens while somebody else is at it. */
bool wire_drive(wire *w);
/* Was everything that was posted done, and did nothing fail? */
bool wire_is_clean(wire *w);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * link.c - frames over one connection, its round trip, and its end.
 *
 * Whatever a socket says that is not data, "later" or "interrupted" ends the link: a closed one is
 * readable for ever, and who took its 0 bytes for "later" would spin. What came before the end
 * counts: silence is judged only when nothing is left to read. Sources: tcp(7), TCP_INFO in
 * linux/tcp.h; smoothing as of RFC 6298, with a quarter, so that four beats tell.
 */
#include "link.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#define FRAME_MAGIC UINT32_C(0x32425048) /* "HPB2", read as bytes */
#define MS UINT64_C(1000000)
#define LATE_NS (5 * MS)
enum { TRIPS_TO_TELL = 4, SPARING_BEAT_MS = 400, ROOM_BYTES = 1 << 20 };

static void end_link(hpi_link *link, hpi_link_end end, int detail) {
    if (link->end == HPI_LINK_UP) {
        link->end = end;
        link->detail = detail;
    }
}

hp_status hpi_link_open(int fd, uint64_t now_ns, hpi_link *out) {
    const int on = 1, patience_ms = HPI_SILENCE_MS, room_bytes = ROOM_BYTES;
    const int flags = fcntl(fd, F_GETFL);
    *out = (hpi_link){.fd = fd, .heard_ns = now_ns};
    /* not of every kind of socket; and who judges silence is above */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room_bytes, sizeof room_bytes);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &patience_ms, sizeof patience_ms);
    if (flags >= 0 && !fcntl(fd, F_SETFL, flags | O_NONBLOCK))
        return HP_OK;
    const int reason = errno;
    hpi_link_close(out);
    return HPI_FAIL(HP_ERR_SYSTEM, "expected a socket that does not block, fcntl: %s",
                    strerror(reason));
}

void hpi_link_close(hpi_link *link) {
    if (link->fd >= 0)
        close(link->fd);
    link->fd = -1;
}

/* ---- reading -------------------------------------------------------------------------------- */

static bool is_over(int reason, hpi_link *link) {
    if (reason == EAGAIN || reason == EWOULDBLOCK || reason == EINTR)
        return false;
    if (reason == ECONNRESET || reason == EPIPE)
        end_link(link, HPI_LINK_CLOSED, reason);
    else if (reason == ETIMEDOUT)
        end_link(link, HPI_LINK_SILENT, HPI_SILENCE_MS);
    else
        end_link(link, HPI_LINK_FAILED, reason);
    return true;
}

static void take_trip(hpi_link *link, uint64_t trip_ns) {
    link->trip_ns = link->n_trips ? (3 * link->trip_ns + trip_ns) / 4 : trip_ns;
    link->n_trips++;
    if (link->n_trips == TRIPS_TO_TELL ||
        (link->n_trips > TRIPS_TO_TELL && link->trip_ns < link->best_ns))
        link->best_ns = link->trip_ns;
}

static void take_beat(hpi_link *link, uint64_t now_ns, const hpi_frame *frame) {
    const uint64_t echo_ns = frame->is.beat.echo_ns, since_ns = frame->is.beat.since_ns;
    link->stamp_ns = link->is_late ? 0 : frame->is.beat.stamp_ns;
    link->stamp_at = now_ns;
    if (!link->is_late && echo_ns && echo_ns <= now_ns && since_ns <= now_ns - echo_ns)
        take_trip(link, now_ns - echo_ns - since_ns);
}

/* Bytes of the next frame, as many as there are. true: it is whole. */
static bool fill(hpi_link *link, uint64_t now_ns) {
    while (link->end == HPI_LINK_UP && link->in_bytes < sizeof link->in) {
        const ssize_t n = recv(link->fd, (char *)&link->in + link->in_bytes,
                               sizeof link->in - link->in_bytes, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            (void)is_over(errno, link);
            return false;
        }
        if (n == 0) {
            end_link(link, HPI_LINK_CLOSED, 0);
            return false;
        }
        link->heard_ns = now_ns;
        link->in_bytes += (uint32_t)n;
    }
    return link->end == HPI_LINK_UP;
}

bool hpi_link_read(hpi_link *link, uint64_t now_ns, hpi_frame *out) {
    while (fill(link, now_ns)) {
        link->in_bytes = 0;
        if (link->in.magic != FRAME_MAGIC || link->in.kind < HPI_FRAME_BEAT ||
            link->in.kind >= HPI_FRAME_KINDS) {
            end_link(link, HPI_LINK_GARBLED, 0);
        } else if (link->in.kind == HPI_FRAME_BYE) {
            end_link(link, HPI_LINK_BYE, 0);
        } else if (link->in.kind == HPI_FRAME_BEAT) {
            take_beat(link, now_ns, &link->in);
        } else {
            *out = link->in;
            return true;
        }
    }
    return false;
}

void hpi_link_spoil(hpi_link *link) {
    end_link(link, HPI_LINK_GARBLED, 0);
}

/* ---- writing -------------------------------------------------------------------------------- */

bool hpi_link_flush(hpi_link *link) {
    while (link->end == HPI_LINK_UP && link->out_bytes) {
        const char *rest = (const char *)&link->out + sizeof link->out - link->out_bytes;
        const ssize_t n = send(link->fd, rest, link->out_bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n >= 0)
            link->out_bytes -= (uint32_t)n;
        else if (errno == EAGAIN || errno == EWOULDBLOCK)
            break;
        else if (errno == EPIPE || errno == ECONNRESET)
            break; /* what came before the end is still to be read, and reading says so too */
        else
            (void)is_over(errno, link);
    }
    return link->out_bytes == 0;
}

bool hpi_link_write(hpi_link *link, hpi_frame *frame) {
    if (link->end != HPI_LINK_UP || !hpi_link_flush(link))
        return false;
    frame->magic = FRAME_MAGIC;
    link->out = *frame;
    link->out_bytes = sizeof link->out;
    (void)hpi_link_flush(link);
    return true;
}

/* A stopped process reads nothing: what it is sent must fit into its socket until it goes on, or
 * for longer than waits last. */
static uint64_t beat_every_ns(const hpi_link *link, uint64_t now_ns) {
    return (now_ns - link->heard_ns > HPI_SILENCE_MS * MS ? SPARING_BEAT_MS : HPI_BEAT_MS) * MS;
}

void hpi_link_beat(hpi_link *link, uint64_t now_ns) {
    if (link->beat_ns && now_ns - link->beat_ns < beat_every_ns(link, now_ns))
        return;
    hpi_frame frame = {.kind = HPI_FRAME_BEAT};
    frame.is.beat.stamp_ns = now_ns;
    frame.is.beat.echo_ns = link->stamp_ns;
    frame.is.beat.since_ns = link->stamp_ns ? now_ns - link->stamp_at : 0;
    if (hpi_link_write(link, &frame))
        link->beat_ns = now_ns;
}

/* ---- judging -------------------------------------------------------------------------------- */

/* How long ago the other kernel has acknowledged something; for ever where that is not known. */
static uint64_t acknowledged_ns_ago(const hpi_link *link) {
    struct tcp_info info = {0};
    socklen_t length = sizeof info;
    if (getsockopt(link->fd, IPPROTO_TCP, TCP_INFO, &info, &length))
        return UINT64_MAX;
    return info.tcpi_last_ack_recv * MS;
}

void hpi_link_wake(hpi_link *link, uint64_t now_ns, uint64_t late_ns) {
    link->heard_ns = hpi_min(now_ns, link->heard_ns + late_ns);
    link->is_late = late_ns > LATE_NS;
}

void hpi_link_judge(hpi_link *link, uint64_t now_ns) {
    const uint64_t silent_ns = now_ns - link->heard_ns;
    if (link->end == HPI_LINK_UP && silent_ns >= HPI_SILENCE_MS * MS &&
        acknowledged_ns_ago(link) >= HPI_SILENCE_MS * MS)
        end_link(link, HPI_LINK_SILENT, (int)hpi_min(silent_ns / MS, UINT16_MAX));
}

uint32_t hpi_link_slowness(hpi_link *link) {
    /* half of what makes it slow ends that, or it would be told of again and again */
    const uint64_t least = link->is_slow ? HPI_SLOW_FACTOR / 2 : HPI_SLOW_FACTOR;
    const uint64_t factor = link->trip_ns / hpi_max(link->best_ns, 1);
    link->is_slow =
        link->n_trips > TRIPS_TO_TELL && link->trip_ns >= HPI_SLOW_LEAST_MS * MS && factor >= least;
    return link->is_slow ? (uint32_t)hpi_min(factor, UINT16_MAX) : 0;
}

void hpi_link_why(hpi_link_end end, int detail, char *out, size_t size) {
    *out = '\0';
    if (end == HPI_LINK_SILENT)
        snprintf(out, size, "it has been silent for %d ms", detail);
    else if (end == HPI_LINK_CLOSED)
        snprintf(out, size, "it closed its connection");
    else if (end == HPI_LINK_FAILED)
        snprintf(out, size, "its connection failed: %s", strerror(detail));
    else if (end == HPI_LINK_GARBLED)
        snprintf(out, size, "it sent something that is not of this library");
}

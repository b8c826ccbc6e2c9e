/* SPDX-License-Identifier: Apache-2.0
 *
 * meeting.c - calls to the higher nodes, callers from the lower ones, until all links are up.
 *
 * Everything is tried again and again, a little later each time, until the deadline: an address may
 * lead nowhere (an interface of containers), to another host that has the same one, or to one whose
 * network is still coming up. It all takes some ms, so it is a loop that sleeps one in between.
 */
#include "meeting.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define MS UINT64_C(1000000)
enum { N_CALLERS = 64, FIRST_TRY_MS = 300, MOST_TRY_MS = 5000, GREETING_MS = 5000, PAUSE_MS = 20 };

/* ---- what a card says ----------------------------------------------------------------------- */

static bool is_loopback(const struct ifaddrs *i) {
    return i->ifa_flags & IFF_LOOPBACK;
}

/* The bytes of an address that another host can use; NULL: it cannot. */
static const void *bytes_of(const struct ifaddrs *i, bool *out_is_v6) {
    if (!i->ifa_addr || !(i->ifa_flags & IFF_UP))
        return NULL;
    *out_is_v6 = i->ifa_addr->sa_family == AF_INET6;
    if (i->ifa_addr->sa_family == AF_INET)
        return &((const struct sockaddr_in *)(const void *)i->ifa_addr)->sin_addr;
    if (!*out_is_v6)
        return NULL;
    const struct in6_addr *v6 =
        &((const struct sockaddr_in6 *)(const void *)i->ifa_addr)->sin6_addr;
    return IN6_IS_ADDR_LINKLOCAL(v6) ? NULL : v6;
}

static void add_address(hpi_card *card, const void *bytes, bool is_v6) {
    if (card->n_addresses == HPI_CARD_ADDRESSES)
        return;
    memcpy(card->addresses[card->n_addresses], bytes, is_v6 ? 16 : 4);
    card->is_v6 |= (uint32_t)is_v6 << card->n_addresses;
    card->n_addresses++;
}

/* IPv4 first, the host's own last: of use on one machine alone. */
static hp_status add_addresses(hpi_card *card, bool has_v6) {
    struct ifaddrs *all;
    if (getifaddrs(&all))
        return HPI_FAIL(HP_ERR_SYSTEM, "expected the addresses of this host, getifaddrs: %s",
                        strerror(errno));
    for (int pass = 0; pass < 4; pass++)
        for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
            bool is_v6;
            const void *bytes = bytes_of(i, &is_v6);
            if (!bytes || is_v6 != pass % 2 || is_loopback(i) != pass / 2 || (is_v6 && !has_v6))
                continue;
            if (card->n_addresses < HPI_CARD_ADDRESSES - 1 || is_loopback(i))
                add_address(card, bytes, is_v6);
        }
    freeifaddrs(all);
    return HP_OK;
}

static uint64_t machine_number(void) {
    char text[64] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    const bool is_known = file && fgets(text, sizeof text, file);
    if (file)
        fclose(file);
    return is_known ? hpi_checksum(text, strlen(text)) : 0;
}

/* Any address, both families where the host has them. */
static int listen_anywhere(int family) {
    const int no = 0;
    const struct sockaddr_in v4 = {.sin_family = AF_INET};
    const struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    const struct sockaddr *address = family == AF_INET ? (const struct sockaddr *)(const void *)&v4
                                                       : (const struct sockaddr *)(const void *)&v6;
    const int fd =
        hpi_fd_above_stdio(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd < 0)
        return -1;
    if ((family == AF_INET || !setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no)) &&
        !bind(fd, address, family == AF_INET ? sizeof v4 : sizeof v6) && !listen(fd, SOMAXCONN))
        return fd;
    const int reason = errno;
    close(fd);
    errno = reason;
    return -1;
}

static hp_status fill_card(int fd, bool has_v6, hpi_card *card) {
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } name = {0};
    socklen_t length = sizeof name;
    *card = (hpi_card){.machine = machine_number()};
    if (getsockname(fd, &name.any, &length) ||
        getrandom(card->token, sizeof card->token, 0) != sizeof card->token ||
        getrandom(&card->epoch, sizeof card->epoch, 0) != sizeof card->epoch)
        return HPI_FAIL(HP_ERR_SYSTEM, "expected a port and a random token: %s", strerror(errno));
    card->epoch |= 1;
    card->port = ntohs(has_v6 ? name.v6.sin6_port : name.v4.sin_port);
    return add_addresses(card, has_v6);
}

hp_status hpi_meeting_open(int *out_listen_fd, hpi_card *out_card) {
    int fd = listen_anywhere(AF_INET6);
    const bool has_v6 = fd >= 0;
    if (!has_v6)
        fd = listen_anywhere(AF_INET);
    if (fd < 0)
        return HPI_FAIL(HP_ERR_SYSTEM, "expected to listen for the other nodes: %s",
                        strerror(errno));
    const hp_status status = fill_card(fd, has_v6, out_card);
    if (status)
        close(fd);
    else
        *out_listen_fd = fd;
    return status;
}

/* ---- an address ------------------------------------------------------------------------------ */

typedef union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
} address;

static socklen_t address_of(const hpi_card *card, int i, address *out) {
    *out = (address){0};
    if (card->is_v6 >> i & 1) {
        out->v6.sin6_family = AF_INET6;
        out->v6.sin6_port = htons(card->port);
        memcpy(&out->v6.sin6_addr, card->addresses[i], 16);
        return sizeof out->v6;
    }
    out->v4.sin_family = AF_INET;
    out->v4.sin_port = htons(card->port);
    memcpy(&out->v4.sin_addr, card->addresses[i], 4);
    return sizeof out->v4;
}

/* A host's own address leads to itself, so another machine's is not tried where it has others. */
static bool is_worth_trying(const hpi_card *card, int i, const hpi_card *mine) {
    static const unsigned char loopback6[16] = {[15] = 1};
    const bool is_own = card->is_v6 >> i & 1 ? !memcmp(card->addresses[i], loopback6, 16)
                                             : card->addresses[i][0] == 127;
    return !is_own || i == 0 || (card->machine && card->machine == mine->machine);
}

static void name_address(const hpi_card *card, int i, hpi_sentence *text) {
    char name[INET6_ADDRSTRLEN] = "?";
    const bool is_v6 = card->is_v6 >> i & 1;
    (void)inet_ntop(is_v6 ? AF_INET6 : AF_INET, card->addresses[i], name, sizeof name);
    hpi_sentence_add(text, is_v6 ? "%s[%s]:%u" : "%s%s:%u", text->used ? ", " : "", name,
                     card->port);
}

/* ---- calling --------------------------------------------------------------------------------- */

enum { CALL_LATER, CALL_CONNECTING, CALL_GREETED, CALL_DONE };

/* Of a higher node; of a lower one only whether it is met. */
typedef struct call {
    bool is_met;
    int phase, address, fd;
    int reason; /* errno of the last try */
    hpi_link link;
    uint64_t until_ns, patience_ns;
} call;

typedef struct hall {
    const hpi_meeting *m;
    hpi_link *links; /* [n_nodes] */
    call *calls;     /* [n_nodes] */
    hpi_link callers[N_CALLERS];
} hall;

static void try_later(call *c, int reason, int n_addresses, uint64_t now_ns) {
    if (c->phase == CALL_CONNECTING)
        close(c->fd);
    if (c->phase == CALL_GREETED)
        hpi_link_close(&c->link);
    c->reason = reason;
    c->phase = CALL_LATER;
    c->until_ns = now_ns + PAUSE_MS * MS;
    if (++c->address < n_addresses)
        return;
    c->address = 0;
    c->patience_ns = hpi_min(2 * c->patience_ns, MOST_TRY_MS * MS);
}

static void greet(const hpi_meeting *m, call *c, int node, uint64_t now_ns) {
    hpi_frame hello = {.kind = HPI_FRAME_HELLO};
    if (hpi_link_open(c->fd, now_ns, &c->link)) {
        c->phase = CALL_LATER;
        return;
    }
    memcpy(hello.is.hello.token, m->cards[node]->token, HPI_TOKEN16_BYTES);
    hello.is.hello.from = m->mine;
    hello.is.hello.to = node;
    (void)hpi_link_write(&c->link, &hello);
    c->phase = CALL_GREETED;
    c->until_ns = now_ns + GREETING_MS * MS;
}

static void connect_on(const hpi_meeting *m, call *c, int node, uint64_t now_ns) {
    address to;
    const hpi_card *card = m->cards[node];
    const socklen_t length = address_of(card, c->address, &to);
    if (!connect(c->fd, &to.any, length) || errno == EISCONN)
        greet(m, c, node, now_ns);
    else if (errno != EINPROGRESS && errno != EALREADY && errno != EINTR)
        try_later(c, errno, card->n_addresses, now_ns);
    else if (now_ns > c->until_ns)
        try_later(c, ETIMEDOUT, card->n_addresses, now_ns);
}

static void begin_call(const hpi_meeting *m, call *c, int node, uint64_t now_ns) {
    address to;
    const hpi_card *card = m->cards[node];
    while (c->address < card->n_addresses - 1 &&
           !is_worth_trying(card, c->address, m->cards[m->mine]))
        c->address++;
    (void)address_of(card, c->address, &to);
    c->fd =
        hpi_fd_above_stdio(socket(to.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (c->fd < 0) {
        try_later(c, errno, card->n_addresses, now_ns);
        return;
    }
    c->phase = CALL_CONNECTING;
    c->until_ns = now_ns + c->patience_ns;
    connect_on(m, c, node, now_ns);
}

static void await_welcome(hall *h, call *c, int node, uint64_t now_ns) {
    hpi_frame frame;
    const hpi_meeting *m = h->m;
    (void)hpi_link_flush(&c->link);
    if (hpi_link_read(&c->link, now_ns, &frame)) {
        if (frame.kind == HPI_FRAME_WELCOME &&
            !memcmp(frame.is.hello.token, m->cards[m->mine]->token, HPI_TOKEN16_BYTES)) {
            (void)hpi_link_write(&c->link, &frame); /* as it is: "I have it" */
            h->links[node] = c->link;
            c->phase = CALL_DONE;
            c->is_met = true;
        } else {
            try_later(c, EPROTO, m->cards[node]->n_addresses, now_ns);
        }
    } else if (c->link.end != HPI_LINK_UP || now_ns > c->until_ns) {
        try_later(c, c->link.end != HPI_LINK_UP ? ECONNRESET : ETIMEDOUT,
                  m->cards[node]->n_addresses, now_ns);
    }
}

static void go_on(hall *h, int node, uint64_t now_ns) {
    call *c = &h->calls[node];
    if (c->phase == CALL_LATER && now_ns >= c->until_ns && h->m->cards[node]->n_addresses)
        begin_call(h->m, c, node, now_ns);
    else if (c->phase == CALL_CONNECTING)
        connect_on(h->m, c, node, now_ns);
    else if (c->phase == CALL_GREETED)
        await_welcome(h, c, node, now_ns);
}

/* ---- being called ---------------------------------------------------------------------------- */

/* A free place, or that of who has been silent for longest. */
static hpi_link *place_for_caller(hall *h) {
    hpi_link *oldest = &h->callers[0];
    for (int i = 0; i < N_CALLERS; i++) {
        if (h->callers[i].fd < 0)
            return &h->callers[i];
        if (h->callers[i].heard_ns < oldest->heard_ns)
            oldest = &h->callers[i];
    }
    hpi_link_close(oldest);
    return oldest;
}

static void take_callers(hall *h, uint64_t now_ns) {
    int fd;
    while ((fd = hpi_fd_above_stdio(accept4(h->m->listen_fd, NULL, NULL, SOCK_CLOEXEC))) >= 0)
        (void)hpi_link_open(fd, now_ns, place_for_caller(h));
}

/* It may have given this connection up, and come again: who is welcomed has to answer. */
static void welcome(hall *h, hpi_link *caller, int node) {
    hpi_frame frame = {.kind = HPI_FRAME_WELCOME};
    memcpy(frame.is.hello.token, h->m->cards[node]->token, HPI_TOKEN16_BYTES);
    frame.is.hello.from = h->m->mine;
    frame.is.hello.to = node;
    (void)hpi_link_write(caller, &frame);
    hpi_link_close(&h->links[node]);
    h->links[node] = *caller;
    caller->fd = -1;
}

static void hear_welcomed(hall *h, int node, uint64_t now_ns) {
    hpi_link *link = &h->links[node];
    hpi_frame frame;
    if (h->calls[node].is_met || link->fd < 0)
        return;
    if (hpi_link_read(link, now_ns, &frame))
        h->calls[node].is_met = frame.kind == HPI_FRAME_WELCOME;
    else if (link->end == HPI_LINK_UP)
        return;
    if (!h->calls[node].is_met)
        hpi_link_close(link);
}

static void hear_caller(hall *h, hpi_link *caller, uint64_t now_ns) {
    const hpi_meeting *m = h->m;
    hpi_frame frame;
    if (hpi_link_read(caller, now_ns, &frame)) {
        const int from = frame.is.hello.from;
        if (frame.kind == HPI_FRAME_HELLO && frame.is.hello.to == m->mine && from >= 0 &&
            from < m->mine && !h->calls[from].is_met &&
            !memcmp(frame.is.hello.token, m->cards[m->mine]->token, HPI_TOKEN16_BYTES))
            welcome(h, caller, from);
        else
            hpi_link_close(caller);
    } else if (caller->end != HPI_LINK_UP || now_ns > caller->heard_ns + GREETING_MS * MS) {
        hpi_link_close(caller);
    }
}

/* ---- the meeting ------------------------------------------------------------------------------
 */

static int find_missing(const hall *h) {
    for (int node = 0; node < h->m->n_nodes; node++)
        if (node != h->m->mine && !h->calls[node].is_met)
            return node;
    return -1;
}

static hp_status fail_missing(const hall *h, int node) {
    char tried[256] = "";
    hpi_sentence text = {tried, sizeof tried, 0};
    const hpi_meeting *m = h->m;
    const bool is_called = node > m->mine;
    const hpi_card *card = m->cards[is_called ? node : m->mine];
    const int reason = h->calls[node].reason;
    for (int i = 0; i < card->n_addresses; i++)
        name_address(card, i, &text);
    return HPI_FAIL_RANK(HP_ERR_TIMEOUT, m->leaders[node],
                         "expected a connection %s rank %d on host %s within %llu ms, at %s%s%s",
                         is_called ? "to" : "from", m->leaders[node],
                         hpi_transport_host_of(m->transport, m->leaders[node]),
                         (unsigned long long)m->timeout_ms, tried, is_called ? ": " : "",
                         is_called ? (reason ? strerror(reason) : "no answer") : "");
}

static hp_status hold(hall *h) {
    const uint64_t deadline_ns = hpi_add_saturated(hpi_now_ns(), hpi_ms_to_ns(h->m->timeout_ms));
    int missing;
    while ((missing = find_missing(h)) >= 0) {
        const uint64_t now_ns = hpi_now_ns();
        if (now_ns > deadline_ns)
            return fail_missing(h, missing);
        for (int node = h->m->mine + 1; node < h->m->n_nodes; node++)
            go_on(h, node, now_ns);
        for (int node = 0; node < h->m->mine; node++)
            hear_welcomed(h, node, now_ns);
        take_callers(h, now_ns);
        for (int i = 0; i < N_CALLERS; i++)
            if (h->callers[i].fd >= 0)
                hear_caller(h, &h->callers[i], now_ns);
        hpi_sleep_ns(MS);
    }
    return HP_OK;
}

static void leave(hall *h) {
    for (int i = 0; i < N_CALLERS; i++)
        hpi_link_close(&h->callers[i]);
    for (int node = 0; node < h->m->n_nodes; node++) {
        if (h->calls[node].phase == CALL_CONNECTING)
            close(h->calls[node].fd);
        if (h->calls[node].phase == CALL_GREETED)
            hpi_link_close(&h->calls[node].link);
    }
}

hp_status hpi_meeting_hold(const hpi_meeting *m, hpi_link *links) {
    hall *h = hpi_alloc(1, sizeof *h);
    call *calls = h ? hpi_alloc((size_t)m->n_nodes, sizeof *calls) : NULL;
    hp_status status = HP_ERR_MEMORY;
    if (calls) {
        h->m = m;
        h->links = links;
        h->calls = calls;
        for (int node = 0; node < m->n_nodes; node++)
            calls[node].patience_ns = FIRST_TRY_MS * MS;
        for (int i = 0; i < N_CALLERS; i++)
            h->callers[i].fd = -1;
        status = hold(h);
        leave(h);
    }
    hpi_free(calls);
    hpi_free(h);
    return status;
}

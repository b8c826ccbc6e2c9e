/* SPDX-License-Identifier: Apache-2.0
 *
 * test_heartbeat.c - one connection between nodes, and how it comes about, with a peer that
 * misbehaves.
 *
 * A link takes the time as an argument, so silence and slowness are tested without waiting. What
 * must hold: whatever comes, a link gives whole frames or ends, once, with the reason; and who has
 * no token is not let in.
 */
#include "support/ranks.h"
#include "world/wait/meeting.h"

#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define MS UINT64_C(1000000)
#define START_NS (1000 * MS)

static void open_pair(hpi_link *a, hpi_link *b) {
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    assert_int_equal(hpi_link_open(fds[0], START_NS, a), HP_OK);
    assert_int_equal(hpi_link_open(fds[1], START_NS, b), HP_OK);
}

static void close_pair(hpi_link *a, hpi_link *b) {
    hpi_link_close(a);
    hpi_link_close(b);
}

static hpi_frame rank_frame(int rank) {
    hpi_frame frame = {.kind = HPI_FRAME_RANK};
    frame.is.rank.rank = rank;
    return frame;
}

/* ---- frames --------------------------------------------------------------------------------- */

/* More than a socket takes: who writes is told, and nothing is lost or turned round. */
static void frames_come_whole_and_in_order(void **state) {
    hpi_link a, b;
    hpi_frame frame;
    int n_sent = 0, n_came = 0;
    (void)state;
    open_pair(&a, &b);
    while (n_came < 20000) {
        frame = rank_frame(n_sent);
        n_sent += n_sent < 20000 && hpi_link_write(&a, &frame);
        (void)hpi_link_flush(&a);
        if (n_sent < 20000 && a.out_bytes == 0)
            continue;
        while (hpi_link_read(&b, START_NS, &frame)) {
            assert_int_equal(frame.kind, HPI_FRAME_RANK);
            assert_int_equal(frame.is.rank.rank, n_came++);
        }
    }
    assert_int_equal(a.end, HPI_LINK_UP);
    assert_int_equal(b.end, HPI_LINK_UP);
    close_pair(&a, &b);
}

static void half_a_frame_is_none(void **state) {
    hpi_link a, b;
    hpi_frame frame = rank_frame(5), in;
    unsigned char bytes[sizeof frame];
    (void)state;
    open_pair(&a, &b);
    assert_true(hpi_link_write(&a, &frame));
    assert_int_equal(recv(b.fd, bytes, sizeof bytes, 0), sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++) {
        assert_false(hpi_link_read(&b, START_NS, &in));
        assert_int_equal(send(a.fd, &bytes[i], 1, 0), 1);
    }
    assert_true(hpi_link_read(&b, START_NS, &in));
    assert_int_equal(in.is.rank.rank, 5);
    close_pair(&a, &b);
}

/* Random bytes, some with a good beginning, cut anywhere. */
static void garbage_ends_a_link(void **state) {
    uint64_t seed = 1;
    (void)state;
    for (int round = 0; round < 2000; round++) {
        unsigned char bytes[3 * sizeof(hpi_frame)];
        hpi_link a, b;
        hpi_frame good = rank_frame(1), in;
        const size_t n = hpi_random_next(&seed) % sizeof bytes;
        int n_came = 0;
        open_pair(&a, &b);
        if (round % 2)
            assert_true(hpi_link_write(&a, &good));
        for (size_t i = 0; i < n; i++)
            bytes[i] = (unsigned char)hpi_random_next(&seed);
        if (n)
            assert_int_equal(send(a.fd, bytes, n, 0), n);
        while (hpi_link_read(&b, START_NS, &in))
            n_came++;
        assert_int_equal(n_came, round % 2);
        assert_int_equal(b.end, n >= sizeof(hpi_frame) ? HPI_LINK_GARBLED : HPI_LINK_UP);
        close_pair(&a, &b);
    }
}

/* ---- ends ----------------------------------------------------------------------------------- */

/* A closed connection is readable for ever: taken for "later" it would be asked again and again. */
static void R5_a_closed_connection_is_its_end(void **state) {
    hpi_link a, b;
    hpi_frame frame = rank_frame(3), in;
    char why[64];
    (void)state;
    open_pair(&a, &b);
    assert_true(hpi_link_write(&a, &frame));
    hpi_link_close(&a);
    assert_true(hpi_link_read(&b, START_NS, &in)); /* what came before the end counts */
    assert_int_equal(b.end, HPI_LINK_UP);
    for (int i = 0; i < 3; i++) {
        assert_false(hpi_link_read(&b, START_NS, &in));
        assert_int_equal(b.end, HPI_LINK_CLOSED);
    }
    assert_false(hpi_link_write(&b, &frame));
    hpi_link_judge(&b, START_NS + 10000 * MS);
    hpi_link_why(b.end, b.detail, why, sizeof why);
    assert_string_equal(why, "it closed its connection");
    hpi_link_close(&b);
}

/* Reset, with something unread on the other side, and in the middle of a frame. */
static void R5_a_reset_in_the_middle(void **state) {
    hpi_link a, b;
    hpi_frame frame = rank_frame(3), in;
    (void)state;
    open_pair(&a, &b);
    assert_true(hpi_link_write(&b, &frame));
    assert_int_equal(send(a.fd, "HPB2", 4, 0), 4);
    hpi_link_close(&a);
    while (b.end == HPI_LINK_UP)
        assert_false(hpi_link_read(&b, START_NS, &in));
    assert_int_equal(b.end, HPI_LINK_CLOSED);
    hpi_link_close(&b);
}

static void a_good_bye_is_no_failure(void **state) {
    hpi_link a, b;
    hpi_frame bye = {.kind = HPI_FRAME_BYE}, in;
    (void)state;
    open_pair(&a, &b);
    assert_true(hpi_link_write(&a, &bye));
    hpi_link_close(&a);
    assert_false(hpi_link_read(&b, START_NS, &in));
    assert_int_equal(b.end, HPI_LINK_BYE);
    hpi_link_close(&b);
}

static void silence_is_judged(void **state) {
    hpi_link a, b;
    hpi_frame in;
    char why[64];
    (void)state;
    open_pair(&a, &b);
    uint64_t now_ns = START_NS + 500 * MS;
    hpi_link_beat(&a, now_ns);
    assert_false(hpi_link_read(&b, now_ns, &in));
    now_ns += (HPI_SILENCE_MS - 1) * MS;
    hpi_link_judge(&b, now_ns);
    assert_int_equal(b.end, HPI_LINK_UP);
    hpi_link_wake(&b, now_ns + 300 * MS, 300 * MS); /* this thread did not run */
    hpi_link_judge(&b, now_ns + 300 * MS);
    assert_int_equal(b.end, HPI_LINK_UP);
    hpi_link_judge(&b, now_ns + 301 * MS);
    assert_int_equal(b.end, HPI_LINK_SILENT);
    hpi_link_why(b.end, b.detail, why, sizeof why);
    assert_string_equal(why, "it has been silent for 800 ms");
    close_pair(&a, &b);
}

/* Both ends of a connection over the loopback. */
static void open_tcp(int fds[2]) {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof name;
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&name, length), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&name, &length), 0);
    fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fds[0], (struct sockaddr *)&name, length), 0);
    fds[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    assert_true(fds[1] >= 0);
    close(listener);
}

/* Its kernel still answers: that host is there, and the process is stopped, or has no core. */
static void a_stopped_process_is_no_dead_host(void **state) {
    hpi_link a;
    int fds[2];
    (void)state;
    open_tcp(fds);
    const uint64_t begin_ns = hpi_now_ns();
    assert_int_equal(hpi_link_open(fds[0], begin_ns, &a), HP_OK);
    hpi_link_beat(&a, begin_ns);
    hpi_link_judge(&a, begin_ns + 5000 * MS);
    assert_int_equal(a.end, HPI_LINK_UP);
    close(fds[1]);
    hpi_link_close(&a);
}

/* ---- round trips ---------------------------------------------------------------------------- */

/* One beat each way over a link that takes trip_ns there and back. */
static void exchange_beats(hpi_link *a, hpi_link *b, uint64_t *now_ns, uint64_t trip_ns) {
    hpi_frame in;
    *now_ns += HPI_BEAT_MS * MS;
    hpi_link_beat(a, *now_ns);
    *now_ns += trip_ns / 2;
    assert_false(hpi_link_read(b, *now_ns, &in));
    *now_ns += HPI_BEAT_MS * MS; /* it answers with its next beat */
    hpi_link_beat(b, *now_ns);
    *now_ns += trip_ns / 2;
    assert_false(hpi_link_read(a, *now_ns, &in));
}

static void a_slow_link_is_noticed(void **state) {
    hpi_link a, b;
    uint64_t now_ns = START_NS;
    (void)state;
    open_pair(&a, &b);
    for (int i = 0; i < 10; i++)
        exchange_beats(&a, &b, &now_ns, MS / 5);
    assert_int_equal(a.best_ns, MS / 5);
    for (int i = 0; i < 10; i++) /* 90 times slower */
        exchange_beats(&a, &b, &now_ns, 18 * MS);
    assert_int_equal(hpi_link_slowness(&a), 0);
    for (int i = 0; i < 4; i++)
        exchange_beats(&a, &b, &now_ns, 50 * MS);
    assert_in_range(hpi_link_slowness(&a), 150, 250);
    for (int i = 0; i < 20; i++) /* below what makes it slow, above what ends that */
        exchange_beats(&a, &b, &now_ns, 20 * MS);
    assert_in_range(hpi_link_slowness(&a), 99, 105);
    for (int i = 0; i < 10; i++)
        exchange_beats(&a, &b, &now_ns, MS);
    assert_int_equal(hpi_link_slowness(&a), 0);
    close_pair(&a, &b);
}

/* A thread that did not run says nothing of the link. */
static void lateness_is_no_slowness(void **state) {
    hpi_link a, b;
    uint64_t now_ns = START_NS;
    (void)state;
    open_pair(&a, &b);
    for (int i = 0; i < 10; i++)
        exchange_beats(&a, &b, &now_ns, MS / 5);
    for (int i = 0; i < 20; i++) {
        hpi_link_wake(i % 2 ? &a : &b, now_ns, 100 * MS);
        hpi_link_wake(i % 2 ? &b : &a, now_ns, 0);
        exchange_beats(&a, &b, &now_ns, 100 * MS);
    }
    assert_int_equal(a.trip_ns, MS / 5);
    close_pair(&a, &b);
}

/* ---- meeting -------------------------------------------------------------------------------- */

enum { N_NODES = 3 };

typedef struct leader {
    hpi_meeting meeting;
    hpi_card card;
    hpi_link links[N_NODES];
    hp_status status;
    pthread_t thread;
} leader;

static char hosts[N_NODES][HPI_HOST_NAME_BYTES] = {"hosta", "hostb", "hostc"};
static hpi_transport named = {.n_ranks = N_NODES, .hosts = hosts};
static const int leaders_of[N_NODES] = {0, 1, 2};

static void *hold(void *argument) {
    leader *l = argument;
    l->status = hpi_meeting_hold(&l->meeting, l->links);
    return NULL;
}

static void open_leaders(leader *leaders, const hpi_card **cards, uint64_t timeout_ms) {
    for (int i = 0; i < N_NODES; i++) {
        leaders[i].meeting = (hpi_meeting){.n_nodes = N_NODES,
                                           .mine = i,
                                           .cards = cards,
                                           .leaders = leaders_of,
                                           .transport = &named,
                                           .timeout_ms = timeout_ms};
        cards[i] = &leaders[i].card;
        assert_int_equal(hpi_meeting_open(&leaders[i].meeting.listen_fd, &leaders[i].card), HP_OK);
        for (int k = 0; k < N_NODES; k++)
            leaders[i].links[k].fd = -1;
    }
}

static void close_leader(leader *l) {
    for (int k = 0; k < N_NODES; k++)
        hpi_link_close(&l->links[k]);
    close(l->meeting.listen_fd);
}

static int connect_to(const hpi_card *card) {
    const struct sockaddr_in name = {.sin_family = AF_INET,
                                     .sin_port = htons(card->port),
                                     .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&name, sizeof name), 0);
    return fd;
}

/* Strangers come first: silent, garbled, and with everything but the token. */
static void strangers_are_not_let_in(void **state) {
    enum { N_STRANGERS = 80 };
    leader leaders[N_NODES] = {0};
    const hpi_card *cards[N_NODES];
    int strangers[N_STRANGERS];
    (void)state;
    open_leaders(leaders, cards, 20000);
    for (int i = 0; i < N_STRANGERS; i++) {
        hpi_link link;
        hpi_frame hello = {.kind = HPI_FRAME_HELLO};
        hello.is.hello.from = i % 2;
        hello.is.hello.to = 2;
        strangers[i] = connect_to(&leaders[2].card);
        if (i % 3 == 1)
            assert_int_equal(send(strangers[i], "GET / HTTP/1.0\r\n\r\n", 18, 0), 18);
        if (i % 3 == 2 && !hpi_link_open(strangers[i], START_NS, &link))
            assert_true(hpi_link_write(&link, &hello));
    }
    for (int i = 0; i < N_NODES; i++)
        assert_int_equal(pthread_create(&leaders[i].thread, NULL, hold, &leaders[i]), 0);
    for (int i = 0; i < N_NODES; i++) {
        pthread_join(leaders[i].thread, NULL);
        assert_int_equal(leaders[i].status, HP_OK);
    }
    for (int i = 0; i < N_NODES; i++)
        for (int k = 0; k < N_NODES; k++) {
            hpi_frame frame = rank_frame(10 * i + k), in;
            if (i == k)
                continue;
            assert_true(hpi_link_write(&leaders[i].links[k], &frame));
            while (!hpi_link_read(&leaders[k].links[i], hpi_now_ns(), &in))
                assert_int_equal(leaders[k].links[i].end, HPI_LINK_UP);
            assert_int_equal(in.is.rank.rank, 10 * i + k);
        }
    for (int i = 0; i < N_STRANGERS; i++)
        close(strangers[i]);
    for (int i = 0; i < N_NODES; i++)
        close_leader(&leaders[i]);
}

/* One that is called and one that should call: both are named, with the addresses. */
static void who_does_not_come_is_named(void **state) {
    leader leaders[N_NODES] = {0};
    const hpi_card *cards[N_NODES];
    char port[16];
    (void)state;
    open_leaders(leaders, cards, 100);
    snprintf(port, sizeof port, ":%u", leaders[1].card.port);
    close(leaders[1].meeting.listen_fd);
    leaders[0].meeting.n_nodes = leaders[1].meeting.n_nodes = 2;
    assert_int_equal(hpi_meeting_hold(&leaders[0].meeting, leaders[0].links), HP_ERR_TIMEOUT);
    assert_non_null(strstr(hp_last_error(), "to rank 1 on host hostb within 100 ms"));
    assert_non_null(strstr(hp_last_error(), port));
    leaders[1].meeting.listen_fd = dup(leaders[2].meeting.listen_fd);
    assert_int_equal(hpi_meeting_hold(&leaders[1].meeting, leaders[1].links), HP_ERR_TIMEOUT);
    assert_non_null(strstr(hp_last_error(), "from rank 0 on host hosta within 100 ms"));
    for (int i = 0; i < N_NODES; i++)
        close_leader(&leaders[i]);
}

/* Who gave a connection up before it was heard, and calls again, is met all the same. */
static void a_caller_comes_again(void **state) {
    leader leaders[N_NODES] = {0};
    const hpi_card *cards[N_NODES];
    hpi_frame hello = {.kind = HPI_FRAME_HELLO};
    hpi_link early;
    (void)state;
    open_leaders(leaders, cards, 20000);
    leaders[0].meeting.n_nodes = leaders[1].meeting.n_nodes = 2;
    hello.is.hello.to = 1;
    memcpy(hello.is.hello.token, cards[1]->token, sizeof hello.is.hello.token);
    assert_int_equal(hpi_link_open(connect_to(cards[1]), START_NS, &early), HP_OK);
    assert_true(hpi_link_write(&early, &hello));
    hpi_link_close(&early);
    assert_int_equal(pthread_create(&leaders[1].thread, NULL, hold, &leaders[1]), 0);
    hpi_sleep_ns(50 * MS);
    assert_int_equal(pthread_create(&leaders[0].thread, NULL, hold, &leaders[0]), 0);
    for (int i = 0; i < 2; i++) {
        pthread_join(leaders[i].thread, NULL);
        assert_int_equal(leaders[i].status, HP_OK);
    }
    for (int i = 0; i < N_NODES; i++)
        close_leader(&leaders[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_come_whole_and_in_order),
        cmocka_unit_test(half_a_frame_is_none),
        cmocka_unit_test(garbage_ends_a_link),
        cmocka_unit_test(R5_a_closed_connection_is_its_end),
        cmocka_unit_test(R5_a_reset_in_the_middle),
        cmocka_unit_test(a_good_bye_is_no_failure),
        cmocka_unit_test(silence_is_judged),
        cmocka_unit_test(a_stopped_process_is_no_dead_host),
        cmocka_unit_test(a_slow_link_is_noticed),
        cmocka_unit_test(lateness_is_no_slowness),
        cmocka_unit_test(strangers_are_not_let_in),
        cmocka_unit_test(who_does_not_come_is_named),
        cmocka_unit_test(a_caller_comes_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

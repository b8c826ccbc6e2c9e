/* SPDX-License-Identifier: Apache-2.0
 *
 * test_hpperf_timed.c - what hpperf and its peers share: the order of fills, calls and reads, what
 * is taken off, the largest over the ranks, a broadcast until the last rank has it; the line that
 * tells a peer what to do, and a peer's whole turn, right and wrong. Time is counted by hand.
 */
#include <time.h>

/* ns; each look at the clock takes none. */
static double clock_ns;
static int fake_clock(clockid_t id, struct timespec *out) {
    (void)id;
    *out = (struct timespec){(time_t)(clock_ns / 1e9), (long)clock_ns % 1000000000};
    clock_ns += 1; /* a loop that waits comes to an end */
    return 0;
}
#define clock_gettime fake_clock
#include "../../programs/perf/timed.c"
#undef clock_gettime

#include "../../programs/perf/peer.h"
#include "../../programs/perf/token.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

/* ---- the loop ---- */

enum { FILL_NS = 1000, CALL_NS = 300000, READ_NS = 2000 };

typedef struct fake {
    char log[400]; /* a letter for each thing that was done */
    int n, n_most; /* of the last one, how many numbers */
    double worst;  /* what another rank brings, where that is more */
    int fails_at;  /* which letter; 0: none */
} fake;

static int note(fake *f, char what, double ns) {
    assert_in_range(f->n, 0, (int)sizeof f->log - 2);
    f->log[f->n++] = what;
    clock_ns += ns;
    return f->n == f->fails_at ? -7 : 0;
}
static int fake_begin(void *self) {
    return note(self, '|', 0);
}
static int fake_fill(void *self) {
    return note(self, 'f', FILL_NS);
}
static int fake_call(void *self) {
    return note(self, 'c', CALL_NS);
}
static int fake_read(void *self) {
    return note(self, 'r', READ_NS);
}
static int fake_most(void *self, double *x, int n) {
    fake *f = self;
    f->n_most = n;
    for (int i = 0; i < n; i++)
        x[i] = x[i] > f->worst ? x[i] : f->worst;
    return 0;
}

static timed touched(fake *f) {
    *f = (fake){.worst = -1e300};
    clock_ns = 5e9;
    return (timed){.self = f,
                   .begin = fake_begin,
                   .fill = fake_fill,
                   .call = fake_call,
                   .read = fake_read,
                   .most = fake_most};
}

static void takes_off_what_stands_beside_the_call(void **state) {
    (void)state;
    fake f;
    const timed t = touched(&f);
    double samples[4] = {0}, own_ns = 0;
    assert_int_equal(timed_run(&t, 2, 2, samples, &own_ns), 0);
    assert_string_equal(f.log, "|frfr|frfr|frfr" /* without it, one more than with it */
                               "|fcrfcr"         /* one with it, not counted */
                               "|fcrfcr|fcrfcr");
    assert_true(own_ns == CALL_NS && samples[0] == CALL_NS && samples[1] == CALL_NS);
}

static void classic_is_the_call_alone(void **state) {
    (void)state;
    fake f;
    timed t = touched(&f);
    double samples[6] = {0}, own_ns = 0;
    t.fill = t.read = NULL;
    assert_int_equal(timed_run(&t, 3, 1, samples, &own_ns), 0);
    assert_string_equal(f.log, "|c|c|c");
    assert_int_equal((int)own_ns, CALL_NS + 1); /* with a look at the clock */
}

static void a_call_that_reads_is_not_followed_by_a_read(void **state) {
    (void)state;
    fake f;
    timed t = touched(&f);
    double ns = 0;
    t.call_reads = true;
    assert_int_equal(timed_iteration(&t, 2, true, &ns), 0);
    assert_int_equal(timed_iteration(&t, 2, false, &ns), 0);
    assert_string_equal(f.log, "|fcfc|frfr");
}

static void the_base_is_measured_anew_each_25_iterations(void **state) {
    (void)state;
    fake f;
    const timed t = touched(&f);
    double samples[52] = {0}, own_ns = 0;
    assert_int_equal(timed_run(&t, 26, 1, samples, &own_ns), 0);
    int n_bases = 0;
    for (const char *at = f.log; (at = strstr(at, "|fr")) != NULL; at++)
        n_bases++;
    assert_int_equal(n_bases, 6 + 2); /* at most six, and one more than there are samples */
}

static void the_slowest_rank_counts(void **state) {
    (void)state;
    fake f;
    const timed t = touched(&f);
    double samples[6] = {0};
    timed_result r = {0};
    f.worst = 9e6;
    assert_int_equal(timed_turn(&t, 3, 1, samples, &r), 0);
    assert_true(r.call_ns == 9e6 && r.whole_ns == 9e6 && samples[0] == 9e6);
    assert_int_equal(strncmp(f.log, "|fcr|fcr|fr", 11), 0); /* caches are warm first */
}

/* The root's time counts from before its fill, the others' to behind their read; neither of them is
 * part of it. */
static void one_way_is_from_the_root_to_the_last_rank(void **state) {
    (void)state;
    fake f;
    timed t = touched(&f);
    double samples[4] = {0}, own_ns = 0;
    t.is_one_way = t.is_root = true;
    assert_int_equal(timed_run(&t, 2, 1, samples, &own_ns), 0);
    assert_string_equal(f.log, "|fr|fr|fr|fcr|fcr|fcr");
    assert_int_equal(f.n_most, 4);
    assert_in_range((int)samples[0], CALL_NS - 4, CALL_NS + 4);
    /* Another rank was done a second later. */
    t = touched(&f);
    t.is_one_way = t.is_root = true;
    f.worst = 6e9;
    assert_int_equal(timed_run(&t, 1, 1, samples, &own_ns), 0);
    assert_true(samples[0] > 0.9e9);
}

static void a_failure_comes_back(void **state) {
    (void)state;
    for (int at = 1; at < 20; at++) {
        fake f;
        timed t = touched(&f);
        double samples[6] = {0}, own_ns = 0;
        f.fails_at = at;
        t.is_one_way = at % 2;
        assert_int_equal(timed_run(&t, 3, 1, samples, &own_ns), -7);
        assert_int_equal(f.n, at);
    }
}

static void short_calls_come_in_batches(void **state) {
    (void)state;
    assert_int_equal(timed_batch(0), TIMED_MOST_BATCH);
    assert_int_equal(timed_batch(5000), 4);
    assert_int_equal(timed_batch(1e9), 1);
    assert_int_equal(timed_count(1e6, 2, 20e6, 3, 25), 10);
    assert_int_equal(timed_count(1e9, 1, 20e6, 3, 25), 3);
    assert_int_equal(timed_count(0, 1, 20e6, 3, 25), 25);
}

/* ---- a peer ---- */

static void a_turn_is_read_as_it_was_written(void **state) {
    (void)state;
    const turn t = {HP_REDUCE_SCATTER, HP_BF16, HP_MAX, 123456789012, true, false, true, 3, 64, 25};
    char line[200];
    turn back = {0};
    turn_print(&t, line, sizeof line);
    assert_string_equal(line, "reduce_scatter bf16 max 123456789012 classic out_of_place root=3 "
                              "batch=64 iterations=25 check");
    assert_true(turn_parse(line, &back));
    assert_true(back.what == t.what && back.dtype == t.dtype && back.reduce == t.reduce);
    assert_true(back.count == t.count && back.is_classic && !back.is_in_place && back.checks);
    assert_true(back.root == 3 && back.batch == 64 && back.iterations == 25);
    assert_false(turn_parse("step", &back));
    assert_false(
        turn_parse("reduce fp32 sum 1 touched in_place root=0 batch=1 iterations=1 check", &back));
    assert_false(
        turn_parse("barrier fp32 sum 1 touched in_place root=0 batch=0 iterations=1 check", &back));
}

/* A library of one rank, which copies, or does not. */
typedef struct alone {
    int supports, copies, n_calls;
} alone;

static int alone_prepare(void *self, const peer_call *c) {
    (void)c;
    return ((alone *)self)->supports;
}
static int alone_run(void *self, const peer_call *c) {
    alone *a = self;
    a->n_calls++;
    if (a->copies && c->in != c->out)
        memcpy(c->out, c->in, c->part_bytes);
    return 0;
}
static int alone_barrier(void *self) {
    (void)self;
    return 0;
}
static int alone_most(void *self, double *x, int n) {
    (void)self;
    (void)x;
    (void)n;
    return 0;
}

/* What it answers to a line. */
static void ask(alone *a, const char *line, char reply[TOKEN_LINE]) {
    const peer_library library = {.self = a,
                                  .n_ranks = 1,
                                  .prepare = alone_prepare,
                                  .run = alone_run,
                                  .barrier = alone_barrier,
                                  .most = alone_most};
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    assert_int_equal(token_write(ends[0], line), 0);
    assert_int_equal(shutdown(ends[0], SHUT_WR), 0);
    assert_int_equal(peer_take_turns(&library, ends[1]), 0);
    assert_int_equal(token_read(ends[0], reply), 1);
    close(ends[0]);
    close(ends[1]);
}

static void a_peer_is_timed_and_checked(void **state) {
    (void)state;
    static const char *const lines[] = {
        "all_reduce fp32 sum 1000 touched out_of_place root=0 batch=3 iterations=2 check",
        "all_gather int8 sum 999 classic out_of_place root=0 batch=3 iterations=2 check",
        "broadcast fp64 sum 5 touched in_place root=0 batch=3 iterations=2 check",
        "barrier uint8 sum 0 touched out_of_place root=0 batch=3 iterations=2 check"};
    char reply[TOKEN_LINE];
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        alone a = {1, 1, 0};
        ask(&a, lines[i], reply);
        assert_non_null(strstr(reply, "\"wrong\": 0, \"unsupported\": 0}"));
        assert_true(a.n_calls > 3);
    }
}

static void a_peer_that_is_wrong_says_so(void **state) {
    (void)state;
    char reply[TOKEN_LINE];
    alone a = {1, 0, 0};
    ask(&a, "all_reduce fp32 sum 1000 classic out_of_place root=0 batch=1 iterations=2 check",
        reply);
    assert_non_null(strstr(reply, "\"wrong\": 1000,"));
    ask(&a, "all_reduce fp32 sum 1000 classic out_of_place root=0 batch=1 iterations=2 no_check",
        reply);
    assert_non_null(strstr(reply, "\"wrong\": 0,"));
}

static void what_a_peer_does_not_have_is_not_called(void **state) {
    (void)state;
    char reply[TOKEN_LINE];
    alone a = {0, 1, 0};
    ask(&a, "all_reduce bf16 sum 1000 touched in_place root=0 batch=1 iterations=2 check", reply);
    assert_non_null(strstr(reply, "\"unsupported\": 1}"));
    assert_int_equal(a.n_calls, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_off_what_stands_beside_the_call),
        cmocka_unit_test(classic_is_the_call_alone),
        cmocka_unit_test(a_call_that_reads_is_not_followed_by_a_read),
        cmocka_unit_test(the_base_is_measured_anew_each_25_iterations),
        cmocka_unit_test(the_slowest_rank_counts),
        cmocka_unit_test(one_way_is_from_the_root_to_the_last_rank),
        cmocka_unit_test(a_failure_comes_back),
        cmocka_unit_test(short_calls_come_in_batches),
        cmocka_unit_test(a_turn_is_read_as_it_was_written),
        cmocka_unit_test(a_peer_is_timed_and_checked),
        cmocka_unit_test(a_peer_that_is_wrong_says_so),
        cmocka_unit_test(what_a_peer_does_not_have_is_not_called),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

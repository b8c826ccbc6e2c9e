/* SPDX-License-Identifier: Apache-2.0
 *
 * test_transport.c - the transport between threads: what the door promises, without an MPI.
 *
 * One thread plays all ranks, since nothing blocks. tests/cluster does the same to real networks.
 */
#include "base/base.h"
#include "transport/transport.h"

#include <setjmp.h>
#include <stdarg.h>
/* after those */
#include <cmocka.h>

enum { N = 3, LARGE = 100000 };

typedef struct job {
    hpi_threads *threads;
    hpi_transport *ranks[N];
} job;

static void job_open(job *j) {
    assert_int_equal(hpi_threads_create(N, 2, &j->threads), HP_OK);
    for (int i = 0; i < N; i++)
        assert_int_equal(hpi_threads_open(j->threads, i, &j->ranks[i]), HP_OK);
}

static void job_close(job *j) {
    for (int i = 0; i < N; i++)
        hpi_transport_close(j->ranks[i]);
    hpi_threads_destroy(j->threads);
}

static hpi_transfer *send(job *j, int from, int to, uint64_t tag, const void *data,
                          uint64_t bytes) {
    hpi_transfer *transfer;
    hpi_transport *t = j->ranks[from];
    assert_int_equal(t->post_send(t, to, tag, data, bytes, &transfer), HP_OK);
    return transfer;
}

static hpi_transfer *receive(job *j, int to, int from, uint64_t tag, void *out, uint64_t bytes) {
    hpi_transfer *transfer;
    hpi_transport *t = j->ranks[to];
    assert_int_equal(t->post_recv(t, from, tag, out, bytes, &transfer), HP_OK);
    return transfer;
}

static hp_status try(job *j, int rank, hpi_transfer *transfer) {
    return j->ranks[rank]->test(j->ranks[rank], transfer);
}

static void test_small_are_sent_at_once_and_large_are_not(void **state) {
    (void)state;
    static unsigned char large[LARGE], got[LARGE];
    job j;
    int value = 7, out = 0;
    job_open(&j);
    memset(large, 5, sizeof large);
    hpi_transfer *big = send(&j, 0, 2, 1, large, LARGE);
    hpi_transfer *small = send(&j, 0, 2, 2, &value, sizeof value);
    value = 0;
    assert_int_equal(try(&j, 0, big), HP_IN_PROGRESS);
    assert_int_equal(try(&j, 0, small), HP_OK);
    assert_int_equal(try(&j, 2, receive(&j, 2, 0, 2, &out, sizeof out)), HP_OK);
    assert_int_equal(out, 7);
    assert_int_equal(try(&j, 2, receive(&j, 2, 0, 1, got, LARGE)), HP_OK);
    assert_int_equal(try(&j, 0, big), HP_OK);
    assert_memory_equal(got, large, LARGE);
    assert_string_equal(hpi_transport_host_of(j.ranks[0], 2), "node1");
    job_close(&j);
}

static void test_another_size_is_named(void **state) {
    (void)state;
    job j;
    int out[2] = {0};
    hp_error error;
    job_open(&j);
    hpi_transfer *r = receive(&j, 1, 0, 9, out, sizeof out);
    assert_int_equal(try(&j, 0, send(&j, 0, 1, 9, out, 4)), HP_OK);
    assert_int_equal(try(&j, 1, r), HP_ERR_MISMATCH);
    hp_last_error_get(&error);
    assert_int_equal(error.world_rank, 0);
    assert_string_equal(error.message,
                        "expected a message of 8 bytes from rank 0 to rank 1, it sends 4");
    job_close(&j);
}

static void test_what_is_given_up_is_not_touched(void **state) {
    (void)state;
    static unsigned char large[LARGE];
    job j;
    int value = 3, out = 0;
    job_open(&j);
    hpi_transport *t = j.ranks[1];
    assert_int_equal(t->cancel(t, receive(&j, 1, 0, 4, &out, sizeof out)), HP_OK);
    hpi_transfer *sent = send(&j, 0, 1, 4, large, LARGE);
    assert_int_equal(j.ranks[0]->cancel(j.ranks[0], sent), HP_OK);
    assert_int_equal(try(&j, 0, send(&j, 0, 1, 4, &value, sizeof value)), HP_OK);
    assert_int_equal(out, 0);
    assert_int_equal(try(&j, 1, receive(&j, 1, 0, 4, &out, sizeof out)), HP_OK);
    assert_int_equal(out, 3);
    job_close(&j);
}

static void test_disorder_keeps_the_order_of_a_tag(void **state) {
    (void)state;
    enum { N_TAGS = 4, N_EACH = 8 };
    int out[N_TAGS][N_EACH], n_others_first = 0;
    hpi_transfer *transfers[N_TAGS][N_EACH];
    job j;
    job_open(&j);
    hpi_threads_disorder(j.ranks[0], 1);
    for (int k = 0; k < N_TAGS * N_EACH; k++) {
        const int tag = k % N_TAGS, i = k / N_TAGS;
        transfers[tag][i] = receive(&j, 1, 0, (uint64_t)tag, &out[tag][i], sizeof out[tag][i]);
        assert_int_equal(try(&j, 0, send(&j, 0, 1, (uint64_t)tag, &i, sizeof i)), HP_OK);
    }
    for (int tag = 0; tag < N_TAGS; tag++)
        for (int i = 0; i < N_EACH; i++) {
            int n_tests = 1;
            for (; try(&j, 1, transfers[tag][i]) == HP_IN_PROGRESS; n_tests++) {
            }
            n_others_first += n_tests > 1;
            assert_int_equal(out[tag][i], i);
        }
    assert_true(n_others_first > 0);
    job_close(&j);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_are_sent_at_once_and_large_are_not),
        cmocka_unit_test(test_another_size_is_named),
        cmocka_unit_test(test_what_is_given_up_is_not_touched),
        cmocka_unit_test(test_disorder_keeps_the_order_of_a_tag),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

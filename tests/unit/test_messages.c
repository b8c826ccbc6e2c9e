/* SPDX-License-Identifier: Apache-2.0
 *
 * test_messages.c - what a refused call says: the public call, which of its arguments, what was
 * expected and what was given. One rank, in a world of its own, where no other is needed.
 */
#include "support/ranks.h"

#include <hyperparallel/coll.h>
#include <hyperparallel/symm.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { N = 16 };

typedef struct fixture {
    hp_world *world;
    hp_group *group;
    hp_symm memory, signal; /* 64 bytes, 8 bytes */
    float data[N];
} fixture;

static int set_up(void **state) {
    static fixture f;
    if (hp_world_create(NULL, &f.world) < 0)
        return -1;
    f.group = hp_world_group(f.world);
    *state = &f;
    return hp_symm_alloc(f.world, NULL, 64, 0, &f.memory) < 0 ||
           hp_symm_alloc(f.world, NULL, 8, 0, &f.signal) < 0;
}

static int tear_down(void **state) {
    fixture *f = *state;
    const bool is_freed = hp_symm_free(f->signal) == HP_OK && hp_symm_free(f->memory) == HP_OK;
    hp_world_destroy(f->world);
    return is_freed ? 0 : -1;
}

/* Failed with `status`, and the sentence begins with this. */
static void assert_says(hp_status given, hp_status status, const char *begin) {
    assert_int_equal(given, status);
    if (strncmp(hp_last_error(), begin, strlen(begin)) != 0)
        fail_msg("expected \"%s...\", given \"%s\"", begin, hp_last_error());
}

static void test_symm_names_the_call(void **state) {
    fixture *f = *state;
    void *pointer;
    assert_says(hp_symm_put(f->memory, 60, f->data, 8, 0, NULL), HP_ERR_ARGUMENT,
                "hp_symm_put: expected a range inside the 64 bytes of the memory, given 8 bytes at "
                "offset 60");
    assert_says(hp_symm_get(NULL, f->memory, 0, 8, 0, NULL), HP_ERR_ARGUMENT,
                "hp_symm_get: expected a target, given NULL");
    assert_says(hp_symm_signal(f->signal, 0, (hp_signal_op)9, 1, 0, NULL), HP_ERR_ARGUMENT,
                "hp_symm_signal: expected HP_SIGNAL_SET or HP_SIGNAL_ADD, given 9");
    assert_says(hp_symm_wait(f->signal, 4, HP_EQ, 1, 0), HP_ERR_ARGUMENT,
                "hp_symm_wait: expected the offset of a signal to be a multiple of 8, given 4");
    assert_says(hp_symm_pointer(f->memory, 1, NULL, &pointer), HP_ERR_ARGUMENT,
                "hp_symm_pointer: expected a rank from 0 to 0, given 1");
}

/* Memory and signal of put_signal are handles alike: the message tells them apart. */
static void test_symm_names_the_handle(void **state) {
    fixture *f = *state;
    const hp_symm none = {0};
    assert_says(
        hp_symm_put_signal(f->memory, 0, f->data, 8, f->signal, 8, HP_SIGNAL_ADD, 1, 0, NULL),
        HP_ERR_ARGUMENT,
        "hp_symm_put_signal: expected a range inside the 8 bytes of the memory for the "
        "signal, given 8 bytes at offset 8");
    assert_says(hp_symm_put_signal(f->memory, 0, f->data, 8, none, 0, HP_SIGNAL_ADD, 1, 0, NULL),
                HP_ERR_HANDLE,
                "hp_symm_put_signal: expected live memory for the signal, given the all-zero");
    assert_says(hp_symm_put_signal(none, 0, f->data, 8, f->signal, 0, HP_SIGNAL_ADD, 1, 0, NULL),
                HP_ERR_HANDLE, "hp_symm_put_signal: expected live memory, given the all-zero");
}

static void test_symm_call_in_full(void **state) {
    fixture *f = *state;
    hp_symm_call call = HP_SYMM_CALL_INIT;
    assert_says(hp_symm_run(&call), HP_ERR_HANDLE, "hp_symm_put: expected live memory, given");
    call.memory = f->memory;
    call.source = f->data;
    call.bytes = 8;
    assert_int_equal(hp_symm_run(&call), HP_OK); /* no other field stands in the way */
    assert_int_equal(hp_stream_create(NULL, &call.stream), HP_OK);
    call.rank = 3;
    assert_says(hp_symm_run(&call), HP_ERR_ARGUMENT,
                "hp_symm_put: expected a rank from 0 to 0, given 3");
    hp_stream_destroy(call.stream);
    call.what = (hp_symm_what)7;
    assert_says(hp_symm_run(&call), HP_ERR_ARGUMENT,
                "hp_symm_run: expected HP_SYMM_PUT to HP_SYMM_WAIT, given 7");
}

/* A time-out that can name no rank tells how far the word had come. */
static void test_wait_tells_the_word(void **state) {
    fixture *f = *state;
    assert_int_equal(hp_symm_signal(f->signal, 0, HP_SIGNAL_SET, 5, 0, NULL), HP_OK);
    assert_says(hp_symm_wait(f->signal, 0, HP_GE, 6, 1), HP_ERR_TIMEOUT,
                "rank 0 waited for a signal in symm_wait #6 for 1 ms; expected its word >= 6, it "
                "is 5");
    assert_says(hp_symm_wait(f->signal, 0, HP_NE, 5, 1), HP_ERR_TIMEOUT,
                "rank 0 waited for a signal in symm_wait #5 for 1 ms; expected its word != 5, it "
                "is 5");
}

/* Nor does it where several could signal: then it tells which of them cannot. */
static void silent_body(hp_world *world, void *argument) {
    const uint64_t mine = (uint64_t)getpid();
    uint64_t pids[3];
    hp_symm signal = {0};
    hp_error error;
    (void)argument;
    RANK_OK(hpi_group_exchange(hp_world_group(world), "pids", &mine, 1, pids));
    RANK_OK(hp_symm_alloc(world, NULL, sizeof(uint64_t), 0, &signal));
    if (hp_world_rank(world) == 1)
        RANK_CHECK(raise(SIGSTOP) == 0);
    if (hp_world_rank(world) > 0)
        return;
    do {
        RANK_FAILS(hp_symm_wait(signal, 0, HP_EQ, 1, 20), HP_ERR_TIMEOUT);
        hp_last_error_get(&error);
    } while (!strstr(error.message, "it is 0; rank 1 is stopped (SIGSTOP or a debugger)") ||
             !strstr(error.message, "; rank 2 has left the job (hp_world_destroy)"));
    RANK_CHECK(error.world_rank == 1);
    RANK_CHECK(kill((pid_t)pids[1], SIGCONT) == 0);
}

static void test_wait_tells_who_cannot_signal(void **state) {
    (void)state;
    ranks_run(3, RANKS_PROCESSES, silent_body, NULL);
}

static void test_collectives(void **state) {
    fixture *f = *state;
    float *x = f->data;
    hp_coll_call call = HP_COLL_CALL_INIT;
    assert_says(hp_all_reduce(f->group, x, x + 1, 4, HP_FP32, HP_SUM), HP_ERR_ARGUMENT,
                "all_reduce: expected buffers that are apart or in place, given an input of 16 "
                "bytes that begins 4 bytes before the output of 16 bytes");
    assert_says(hp_all_reduce(f->group, x + 1, x, 4, HP_FP32, HP_SUM), HP_ERR_ARGUMENT,
                "all_reduce: expected buffers that are apart or in place, given an input of 16 "
                "bytes that begins 4 bytes after the output of 16 bytes");
    assert_says(hp_broadcast(f->group, NULL, 3, HP_FP32, 0), HP_ERR_ARGUMENT,
                "broadcast: expected a buffer for 3 elements, given NULL");
    call.what = HP_ALL_REDUCE;
    call.group = f->group;
    call.in = call.out = x;
    call.count = 1;
    call.wire = (hp_wire)9;
    assert_says(hp_coll_run(&call), HP_ERR_ARGUMENT,
                "all_reduce: expected a wire from 0 to 5, given 9");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_symm_names_the_call),
        cmocka_unit_test(test_symm_names_the_handle),
        cmocka_unit_test(test_symm_call_in_full),
        cmocka_unit_test(test_wait_tells_the_word),
        cmocka_unit_test(test_wait_tells_who_cannot_signal),
        cmocka_unit_test(test_collectives),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

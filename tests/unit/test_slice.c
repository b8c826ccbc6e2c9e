/* SPDX-License-Identifier: Apache-2.0
 *
 * test_slice.c - threads of streams ask for short slices, and the caller is left as it was.
 */
#include "base/base.h"
#include "stream/stream.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
} attributes;

static attributes ask(void) {
    attributes a = {.size = sizeof a};
    assert_int_equal(syscall(SYS_sched_getattr, 0, &a, sizeof a, 0), 0);
    return a;
}

static hp_status note(void *context, const hp_op *op) {
    ((attributes *)context)[op->stream] = ask();
    return HP_OK;
}

static void note_all(attributes seen[HP_N_STREAMS]) {
    static const hp_kind kinds[] = {{"note", note, NULL, HP_ROLE_PLAIN}};
    hp_executor_config config = HP_EXECUTOR_CONFIG_INIT;
    hp_executor *executor = NULL;
    hp_op ops[HP_N_STREAMS] = {{0}};
    config.kinds = kinds;
    config.n_kinds = 1;
    config.context = seen;
    for (uint16_t s = 0; s < HP_N_STREAMS; s++)
        ops[s] =
            (hp_op){.stream = s, .id = s, .unit = UINT32_MAX, .param = UINT32_MAX, .blocks = 1};
    assert_int_equal(hp_executor_create(&config, &executor), HP_OK);
    assert_int_equal(hp_executor_submit(executor, ops, HP_N_STREAMS), HP_OK);
    assert_int_equal(hp_executor_drain(executor), HP_OK);
    hp_executor_destroy(executor);
}

static void streams_ask_for_short_slices(void **state) {
    (void)state;
    attributes seen[HP_N_STREAMS];
    const attributes before = ask();
    if (before.policy != 0 || before.runtime_ns == 0) {
        print_message("skipped: this kernel shows no slices of ordinary threads\n");
        skip();
    }
    note_all(seen);
    assert_int_equal(seen[HP_STREAM_COMPUTE].runtime_ns, before.runtime_ns);
    for (unsigned s = HP_STREAM_COMPUTE + 1; s < HP_N_STREAMS; s++) {
        assert_int_equal(seen[s].runtime_ns, 100000);
        assert_int_equal(seen[s].policy, before.policy);
        assert_int_equal(seen[s].nice, before.nice);
    }
    const attributes after = ask();
    assert_memory_equal(&before, &after, sizeof after);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(streams_ask_for_short_slices)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

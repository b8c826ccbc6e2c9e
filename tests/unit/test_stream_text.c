/* SPDX-License-Identifier: Apache-2.0
 *
 * test_stream_text.c - operations as data: the recorder's list, printed lines, and delay rules.
 */
#include "synthetic_kinds.h"

#include "stream/executor.h"
#include <stdio.h>
#include <stdlib.h>

static struct notes *make_notes(void) {
    struct notes *notes = calloc(1, sizeof *notes);
    assert_non_null(notes);
    return notes;
}

/* ---- the recorder ---------------------------------------------------------------------------- */

static hp_executor *record(hp_executor *inner) {
    hp_executor *recorder = NULL;
    assert_int_equal(hp_recorder_create(inner, &recorder), HP_OK);
    return recorder;
}

static void check_recorded(const hp_executor *recorder, const hp_op *ops, uint64_t n_ops,
                           const uint64_t *counts, uint64_t n_counts) {
    const hp_op *kept = NULL;
    const uint64_t *kept_counts = NULL;
    uint64_t n_kept = 99, n_kept_counts = 99;
    assert_int_equal(hp_recorder_ops(recorder, &kept, &n_kept), HP_OK);
    assert_int_equal(hp_recorder_bursts(recorder, &kept_counts, &n_kept_counts), HP_OK);
    assert_int_equal(n_kept, n_ops);
    assert_int_equal(n_kept_counts, n_counts);
    if (n_ops)
        assert_memory_equal(kept, ops, n_ops * sizeof *ops);
    if (n_counts)
        assert_memory_equal(kept_counts, counts, n_counts * sizeof *counts);
}

static void the_recorder_keeps_every_byte(void **state) {
    (void)state;
    static const uint64_t counts[] = {3, 0, 1, 600, 396};
    static hp_op ops[1000];
    struct notes *notes = make_notes();
    hp_executor *recorder = record(create(notes, HP_EXECUTOR_THREAD));
    uint64_t seed = 9;
    check_recorded(recorder, NULL, 0, NULL, 0);
    for (int step = 0; step < 4; step++) {
        const uint64_t n_allocations = hpi_alloc_count();
        assert_int_equal(hp_executor_begin_step(recorder), HP_OK);
        check_recorded(recorder, NULL, 0, NULL, 0);
        make_random_ops(ops, 1000, K_NOTE, &seed);
        uint64_t at = 0;
        for (int i = 0; i < 5; at += counts[i++]) {
            assert_int_equal(hp_executor_submit(recorder, ops + at, counts[i]), HP_OK);
            check_recorded(recorder, ops, at + counts[i], counts, (uint64_t)i + 1);
        }
        assert_int_equal(hp_executor_drain(recorder), HP_OK);
        assert_true(step < 2 || hpi_alloc_count() == n_allocations); /* two lists */
    }
    hp_executor_stats stats;
    hp_executor_stats_get(recorder, &stats);
    assert_int_equal(stats.n_ops, 4000);
    hp_executor_destroy(recorder);
    free(notes);
}

static void the_recorder_passes_everything_on(void **state) {
    (void)state;
    struct notes *notes = make_notes();
    hp_executor *recorder = record(record(create(notes, HP_EXECUTOR_INLINE)));
    const hp_op bad = make_op(7, K_NOTE, 0, 0), send = make_op(0, K_SEND, 0, 0);
    assert_int_equal(hp_executor_submit(recorder, &bad, 1), HP_ERR_ARGUMENT);
    check_recorded(recorder, NULL, 0, NULL, 0);
    open_gate(notes, 0);
    submit(recorder, send);
    assert_int_equal(hp_executor_begin_step(recorder), HP_ERR_STATE);
    check_recorded(recorder, &send, 1, (uint64_t[]){1}, 1);
    assert_int_equal(hp_executor_wait(recorder, hpi_drained(0)), HP_OK);
    assert_int_equal(atomic_load(&notes->n_drains[0]), 1);
    assert_int_equal(hp_executor_wait(recorder, hpi_done(1)), HP_ERR_ARGUMENT);
    assert_true(hp_executor_now_ns(recorder) > 0);
    hp_executor_destroy(recorder);
    free(notes);
}

static void recorders_alone_have_lists(void **state) {
    (void)state;
    struct notes *notes = make_notes();
    hp_executor *executor = create(notes, HP_EXECUTOR_INLINE);
    const hp_op *ops = NULL;
    const uint64_t *counts = NULL;
    uint64_t n = 0;
    assert_int_equal(hp_recorder_ops(executor, &ops, &n), HP_ERR_ARGUMENT);
    assert_int_equal(hp_recorder_ops(NULL, &ops, &n), HP_ERR_ARGUMENT);
    assert_int_equal(hp_recorder_bursts(executor, &counts, &n), HP_ERR_ARGUMENT);
    assert_int_equal(hp_recorder_create(NULL, &executor), HP_ERR_ARGUMENT);
    assert_int_equal(hp_recorder_create(executor, NULL), HP_ERR_ARGUMENT);
    hp_executor *recorder = record(executor);
    assert_int_equal(hp_recorder_ops(recorder, NULL, &n), HP_ERR_ARGUMENT);
    assert_int_equal(hp_recorder_bursts(recorder, &counts, NULL), HP_ERR_ARGUMENT);
    hp_executor_destroy(recorder);
    free(notes);
}

static void the_recorder_without_memory(void **state) {
    (void)state;
    struct notes *notes = make_notes();
    hp_executor *executor = create(notes, HP_EXECUTOR_INLINE), *recorder = NULL;
    hpi_alloc_fail_after(1);
    assert_int_equal(hp_recorder_create(executor, &recorder), HP_ERR_MEMORY);
    recorder = record(executor);
    const hp_op op = make_op(0, K_NOTE, 0, 0);
    hpi_alloc_fail_after(1); /* the operations */
    assert_int_equal(hp_executor_submit(recorder, &op, 1), HP_ERR_MEMORY);
    hpi_alloc_fail_after(2); /* the counts */
    assert_int_equal(hp_executor_submit(recorder, &op, 1), HP_ERR_MEMORY);
    assert_int_equal(atomic_load(&notes->begin[0]), 0); /* nothing was run */
    hpi_alloc_fail_after(0);
    check_recorded(recorder, NULL, 0, NULL, 0);
    submit(recorder, op);
    check_recorded(recorder, &op, 1, (uint64_t[]){1}, 1);
    hp_executor_destroy(recorder);
    free(notes);
}

/* ---- printing -------------------------------------------------------------------------------- */

static void assert_line(const hp_op *op, const char *expected) {
    char text[256];
    assert_int_equal(hp_op_print(op, synthetic_kinds, N_KINDS, text, sizeof text),
                     strlen(expected));
    assert_string_equal(text, expected);
}

static void operations_as_lines(void **state) {
    (void)state;
    hp_op op = make_op(3, K_NOTHING, HP_STREAM_COMPUTE, 0);
    op.param = UINT32_MAX;
    assert_line(&op, "3 nothing compute");
    op.kind = 77;
    op.stream = 9;
    op.unit = 0;
    op.n_waits = 2;
    op.waits[0] = hpi_done(0);
    op.waits[1] = hpi_drained(2);
    op.writes[0] = (hp_ref){4, 2, 0, 64};
    assert_line(&op, "3 kind-77 ? unit=0 waits 0.done 2.drained writes 4/2[0,64)");
    op = (hp_op){.kind = K_SEND,
                 .stream = HP_STREAM_REDUCE,
                 .id = 12,
                 .unit = 3,
                 .param = 1,
                 .comm = 2,
                 .seq = 5,
                 .dtype = HP_BF16,
                 .wire = HP_FP32,
                 .reduce = HP_AVG,
                 .peers_read = 2,
                 .reads = {{5, 0, 0, 4096}, {6, 1, 8, 16}},
                 .bytes = 4096,
                 .blocks = 3};
    assert_line(&op, "12 send reduce unit=3 param=1 comm=2 seq=5 bf16 wire=fp32 avg blocks=3 "
                     "reads 5/0[0,4096) 6/1[8,16)* bytes=4096");
}

static void lines_are_cut_like_snprintf_s(void **state) {
    (void)state;
    const hp_op op = make_op(3, K_NOTHING, HP_STREAM_UNSHARD, hpi_done(1));
    char whole[256], part[256];
    const int length = hp_op_print(&op, synthetic_kinds, N_KINDS, whole, sizeof whole);
    for (size_t size = 0; size < (size_t)length + 2; size++) {
        memset(part, '#', sizeof part);
        assert_int_equal(hp_op_print(&op, synthetic_kinds, N_KINDS, part, size), length);
        assert_int_equal(part[size], '#');
        const size_t n = size ? hpi_min(size - 1, (uint64_t)length) : 0;
        assert_memory_equal(part, whole, n);
        assert_int_equal(part[n], size ? '\0' : '#');
    }
    assert_int_equal(hp_op_print(&op, NULL, 0, part, sizeof part), length - 1);
    assert_memory_equal(part, "3 kind-1 unshard", 16);
}

/* ---- delays ---------------------------------------------------------------------------------- */

static const char *const unit_names[] = {"first", "second"};

static hpi_delay *make_delay(const char *text, int rank) {
    hp_executor_config config = HP_EXECUTOR_CONFIG_INIT;
    hpi_delay *delay = NULL;
    config.kinds = synthetic_kinds;
    config.n_kinds = N_KINDS;
    config.units = unit_names;
    config.n_units = 2;
    config.delay = text;
    config.rank = rank;
    assert_int_equal(hpi_delay_create(&config, &delay), HP_OK);
    return delay;
}

static uint64_t delay_ns(const char *text, int rank, unsigned kind, unsigned stream,
                         uint64_t ordinal) {
    const hp_op op = make_op(0, kind, stream, 0);
    hpi_delay *delay = make_delay(text, rank);
    const uint64_t ns = hpi_delay_ns(delay, &op, ordinal);
    hpi_delay_destroy(delay);
    return ns;
}

static void rules_match_kind_rank_and_stream(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int rank;
        unsigned kind, stream;
        uint64_t us;
    } cases[] = {
        {"", 0, K_NOTE, 0, 0},
        {"us=5", 3, K_NOTE, 2, 5},
        {"kind=*,rank=*,us=5", 3, K_NOTE, 2, 5},
        {"kind=send,rank=1,us=20000", 1, K_SEND, 0, 20000},
        {"kind=send,rank=1,us=20000", 0, K_SEND, 0, 0},
        {"kind=send,rank=1,us=20000", 1, K_NOTE, 0, 0},
        {"us=7,stream=reduce,kind=note", 0, K_NOTE, HP_STREAM_REDUCE, 7},
        {"us=7,stream=reduce,kind=note", 0, K_NOTE, HP_STREAM_UNSHARD, 0},
        {"us=7,stream=*", 0, K_NOTE, HP_STREAM_UNSHARD, 7},
        {"us=1;kind=send,us=10;rank=2,us=100;stream=compute,us=1000;", 2, K_SEND, 0, 1111},
        {"us=1;kind=send,us=10;rank=2,us=100;stream=compute,us=1000;", 1, K_NOTE, 1, 1},
        {"us=3600000000", 0, K_NOTE, 0, 3600000000},
        {"us=0", 0, K_NOTE, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(delay_ns(cases[i].text, cases[i].rank, cases[i].kind, cases[i].stream, i),
                         cases[i].us * 1000);
}

static void rules_match_unit(void **state) {
    (void)state;
    hpi_delay *delay = make_delay("us=1;us=10,unit=first;us=100,unit=second;us=1000,unit=*", 0);
    hp_op op = make_op(0, K_NOTE, 0, 0);
    op.unit = 0;
    assert_int_equal(hpi_delay_ns(delay, &op, 0), 1011 * 1000);
    op.unit = 1;
    assert_int_equal(hpi_delay_ns(delay, &op, 0), 1101 * 1000);
    op.unit = UINT32_MAX; /* nobody's */
    assert_int_equal(hpi_delay_ns(delay, &op, 0), 1001 * 1000);
    hpi_delay_destroy(delay);
}

static void seeded_delays_can_be_repeated(void **state) {
    (void)state;
    enum { N = 2000 };
    uint64_t largest = 0, n_equal = 0, n_equal_rank = 0, n_equal_seed = 0;
    double sum = 0;
    for (uint64_t i = 0; i < N; i++) {
        const uint64_t ns = delay_ns("us=10,seed=7", 1, K_NOTE, 0, i);
        assert_int_equal(ns, delay_ns("us=10,seed=7", 1, K_SEND, 1, i));
        n_equal += ns == delay_ns("us=10,seed=7", 1, K_NOTE, 0, i + 1);
        n_equal_rank += ns == delay_ns("us=10,seed=7", 2, K_NOTE, 0, i);
        n_equal_seed += ns == delay_ns("us=10,seed=8", 1, K_NOTE, 0, i);
        largest = hpi_max(largest, ns);
        sum += (double)ns;
    }
    assert_in_range(largest, 9900, 10000);
    assert_true(sum / N > 4700 && sum / N < 5300);
    assert_true(n_equal < 5 && n_equal_rank < 5 && n_equal_seed < 5);
    assert_int_equal(delay_ns("us=0,seed=7", 1, K_NOTE, 0, 3), 0);
}

static void bad_rules_name_the_part(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"us=5x", "given \"5x\""},
        {"us=", "expected us= of a delay to be a whole number"},
        {"us=-1", "given \"-1\""},
        {"us=3600000001", "up to 3600000000"},
        {"kind=sent,us=1", "given \"sent\""},
        {"kind=sent,us=1", "note, nothing, sleep"},
        {"kind=,us=1", "given \"\""},
        {"rank=x,us=1", "expected rank="},
        {"seed=1.5,us=1", "expected seed="},
        {"stream=fast,us=1", "given \"fast\""},
        {"unit=third,us=1", "unit= of a delay to be one of 0 units, or *, given \"third\""},
        {"ms=1", "given \"ms\""},
        {"us", "given \"us\""},
        {"kind=send,rank=1", "us= in every rule"},
        {"us=1;rank=9", "us= in every rule"}, /* also in rules of other ranks */
        {",", "us= in every rule"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        hp_executor_config config = HP_EXECUTOR_CONFIG_INIT;
        hpi_delay *delay = NULL;
        config.kinds = synthetic_kinds;
        config.n_kinds = N_KINDS;
        config.delay = cases[i][0];
        if (hpi_delay_create(&config, &delay) != HP_ERR_ARGUMENT)
            fail_msg("expected \"%s\" to be refused", cases[i][0]);
        assert_null(delay);
        assert_record(HP_ERR_ARGUMENT, -1, cases[i][1]);
    }
}

static void delays_come_before_operations(void **state) {
    (void)state;
    static const hp_executor_type types[] = {HP_EXECUTOR_THREAD, HP_EXECUTOR_INLINE};
    for (int t = 0; t < 2; t++) {
        struct notes *notes = make_notes();
        hp_executor_config config = HP_EXECUTOR_CONFIG_INIT;
        config.rank = 2;
        config.delay = "kind=send,rank=2,us=3000;kind=note,rank=1,us=3000000";
        hp_executor *executor = create_with(notes, config, types[t]);
        hp_executor_stats stats;
        open_gate(notes, 0);
        submit(executor, make_op(0, K_NOTE, HP_STREAM_REDUCE, 0));
        submit(executor, make_op(1, K_SEND, HP_STREAM_REPLICATE, 0));
        assert_int_equal(hp_executor_drain(executor), HP_OK);
        hp_executor_stats_get(executor, &stats);
        assert_true(stats.busy_ns[HP_STREAM_REPLICATE] >= 3000000);
        assert_true(stats.busy_ns[HP_STREAM_REDUCE] < 3000000000);
        hp_executor_destroy(executor);
        free(notes);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_recorder_keeps_every_byte),
        cmocka_unit_test(the_recorder_passes_everything_on),
        cmocka_unit_test(recorders_alone_have_lists),
        cmocka_unit_test(the_recorder_without_memory),
        cmocka_unit_test(operations_as_lines),
        cmocka_unit_test(lines_are_cut_like_snprintf_s),
        cmocka_unit_test(rules_match_kind_rank_and_stream),
        cmocka_unit_test(rules_match_unit),
        cmocka_unit_test(seeded_delays_can_be_repeated),
        cmocka_unit_test(bad_rules_name_the_part),
        cmocka_unit_test(delays_come_before_operations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * test_verify.c - every rule of hp_verify in both directions: a job that breaks it is rejected with
 * its two operations, and the same job is accepted once they are ordered.
 */
#include "job_bench.h"

/* ---- races -------------------------------------------------------------------------------------
 */

static void test_two_streams_race_unless_one_waits(void **state) {
    struct bench *b = *state;
    start(b, 1, 1);
    hp_op *first = writes(add(b, 0, 0, K_WORK, UNSHARD), whole(1, 0));
    hp_op *second = reads(add(b, 0, 0, K_WORK, COMPUTE), piece(1, 0, 100, 200));
    first->unit = 1;
    first->param = 7;
    expect(b, HP_RULE_RACE, first, second,
           "race: work of block 1 param 7 (step 0, rank 0, op 0) writes buffer 1 life 0 [0, 4096) "
           "while work (step 0, rank 0, op 1) reads buffer 1 life 0 [100, 200): nothing orders "
           "them");
    after(second, hpi_done(0));
    expect_sound(b);
    assert_int_equal(b->verdict.n_ops, 2);
    assert_int_equal(b->verdict.n_accesses, 2);
}

static void test_apart_or_reading_is_no_race(void **state) {
    struct bench *b = *state;
    start(b, 1, 1);
    writes(add(b, 0, 0, K_WORK, UNSHARD), piece(1, 0, 0, 100));
    writes(add(b, 0, 0, K_WORK, COMPUTE), piece(1, 0, 100, 200));
    reads(add(b, 0, 0, K_WORK, UNSHARD), whole(2, 0));
    reads(add(b, 0, 0, K_WORK, COMPUTE), whole(2, 0));
    writes(reads(add(b, 0, 0, K_WORK, COMPUTE), whole(3, 0)), whole(3, 0)); /* in place */
    writes(add(b, 0, 0, K_WORK, UNSHARD), piece(4, 0, 7, 7));               /* nothing */
    writes(add(b, 0, 0, K_WORK, COMPUTE), whole(4, 0));
    expect_sound(b);
}

/* That an operation stands later in the list, or ran later, orders nothing. */
static void test_waits_carry_over(void **state) {
    struct bench *b = *state;
    start(b, 1, 1);
    hp_op *a = writes(add(b, 0, 0, K_WORK, UNSHARD), whole(1, 0));
    hp_op *between = after(add(b, 0, 0, K_WORK, REDUCE), hpi_done(0));
    add(b, 0, 0, K_WORK, COMPUTE);
    hp_op *c = after(writes(add(b, 0, 0, K_WORK, COMPUTE), whole(1, 0)), hpi_done(1));
    expect_sound(b);
    between->n_waits = 0;
    expect(b, HP_RULE_RACE, a, c, "while");
}

/* A begin holds what it names until its end is done. */
static void test_a_begin_holds_until_its_end(void **state) {
    struct bench *b = *state;
    start(b, 1, 1);
    hp_op *hold = reads(add(b, 0, 0, K_HOLD, COMPUTE), whole(1, 0));
    add(b, 0, 0, K_LET_GO, COMPUTE);
    hp_op *write = after(writes(add(b, 0, 0, K_WORK, REDUCE), whole(1, 0)), hpi_done(1));
    expect_sound(b);
    write->waits[0] = hpi_done(0);
    expect(b, HP_RULE_RACE, hold, write, "hold");
}

static void test_begins_nest_by_unit(void **state) {
    struct bench *b = *state;
    start(b, 1, 1);
    add(b, 0, 0, K_HOLD, COMPUTE)->unit = 0;
    add(b, 0, 0, K_HOLD, COMPUTE)->unit = 1;
    hp_op *inner = writes(add(b, 0, 0, K_HOLD, COMPUTE), whole(1, 0));
    inner->unit = 0;
    add(b, 0, 0, K_LET_GO, COMPUTE)->unit = 0; /* of the inner one */
    reads(add(b, 0, 0, K_WORK, COMPUTE), whole(1, 0));
    add(b, 0, 0, K_LET_GO, COMPUTE)->unit = 1;
    hp_op *last = add(b, 0, 0, K_LET_GO, COMPUTE);
    last->unit = 0;
    expect_sound(b);
    last->unit = 1;
    expect(b, HP_RULE_LIST, last, last, "list: let_go of block 1 (step 0, rank 0, op 6) ends what");
    b->lists[0].n--;
    expect(b, HP_RULE_LIST, &b->ops[0][0][0], &b->ops[0][0][0], "has no end");
}

/* Its end might come first: nothing would hold what the begin names. */
static void test_an_end_is_on_its_begins_stream(void **state) {
    struct bench *b = *state;
    start(b, 1, 1);
    hp_op *hold = reads(add(b, 0, 0, K_HOLD, REDUCE), whole(1, 0));
    hp_op *end = add(b, 0, 0, K_LET_GO, COMPUTE);
    after(writes(add(b, 0, 0, K_WORK, UNSHARD), whole(1, 0)), hpi_done(1));
    expect(b, HP_RULE_LIST, hold, end, "hold (step 0, rank 0, op 0) ends on another stream");
    end->stream = REDUCE;
    expect_sound(b);
}

static void test_a_step_begins_when_the_last_is_drained(void **state) {
    struct bench *b = *state;
    start(b, 2, 3);
    for (uint32_t r = 0; r < 2; r++) {
        reads(share(b, 0, r, UNSHARD, 1), whole(1, 0));
        writes(add(b, 2, r, K_WORK, COMPUTE), whole(1, 0)); /* step 1 is empty */
    }
    expect_sound(b);
}

/* ---- collectives -------------------------------------------------------------------------------
 */

/* Both ranks let the other read buffer 1, then write it. */
static void share_then_write(struct bench *b, hp_event event) {
    start(b, 2, 1);
    for (uint32_t r = 0; r < 2; r++) {
        writes(reads(share(b, 0, r, UNSHARD, 1), whole(1, 0)), whole(2, 0));
        after(writes(add(b, 0, r, K_WORK, COMPUTE), whole(1, 0)), event);
    }
}

static void test_done_is_not_drained(void **state) {
    struct bench *b = *state;
    share_then_write(b, hpi_drained(0));
    expect_sound(b);
    share_then_write(b, hpi_done(0));
    assert_int_equal(hp_verify(&b->job, &b->verdict), HP_ERR_UNSOUND);
    assert_non_null(strstr(hp_last_error(), "lets peers read"));
    share_then_write(b, hpi_done(0));
    for (uint32_t r = 0; r < 2; r++) {
        b->ops[0][r][0].peers_read = 0; /* inputs that travel inside the signal */
    }
    expect_sound(b);
}

/* The next collective of a communicator is done nowhere before this one is done everywhere. */
static void test_a_later_collective_is_evidence(void **state) {
    struct bench *b = *state;
    start(b, 2, 1);
    for (uint32_t r = 0; r < 2; r++) {
        reads(share(b, 0, r, UNSHARD, 1), whole(1, 0));
        share(b, 0, r, UNSHARD, 1);
        after(writes(add(b, 0, r, K_WORK, COMPUTE), whole(1, 0)), hpi_done(1));
    }
    expect_sound(b);
}

static void test_outputs_are_there_when_done(void **state) {
    struct bench *b = *state;
    start(b, 2, 1);
    for (uint32_t r = 0; r < 2; r++) {
        writes(share(b, 0, r, UNSHARD, 1), whole(1, 0));
        after(reads(add(b, 0, r, K_WORK, COMPUTE), whole(1, 0)), hpi_done(0));
    }
    expect_sound(b);
    b->ops[0][1][1].n_waits = 0;
    expect(b, HP_RULE_RACE, &b->ops[0][1][0], &b->ops[0][1][1], "rank 1");
}

static void test_members_must_match(void **state) {
    struct bench *b = *state;
    start(b, 2, 1);
    for (uint32_t r = 0; r < 2; r++)
        for (uint32_t k = 0; k < 3; k++)
            share(b, 0, r, UNSHARD, 1)->bytes = 64;
    hp_op *mine = &b->ops[0][0][1], *other = &b->ops[0][1][1];
    expect_sound(b);
    other->dtype = HP_BF16;
    expect(b, HP_RULE_MATCH, mine, other, "number 1 on communicator 1, with dtype 0 and 3");
    other->dtype = mine->dtype;
    other->bytes = 65;
    expect(b, HP_RULE_MATCH, mine, other, "with bytes 64 and 65");
    other->bytes = 64;
    other->unit = 1;
    expect(b, HP_RULE_MATCH, mine, other, "with unit");
    other->unit = UINT32_MAX;
    other->kind = K_WORK;
    expect(b, HP_RULE_MATCH, mine, other, "with kind");
    other->kind = K_SHARE;
    b->lists[0].n--;
    expect(b, HP_RULE_MATCH, &b->ops[0][1][2], &b->ops[0][1][2],
           "is one that rank 0 does not issue: it has 2 on communicator 1");
}

/* Groups of one communicator are apart, whatever each does. */
static void test_groups_do_not_mix(void **state) {
    struct bench *b = *state;
    start(b, 4, 1);
    for (uint32_t r = 0; r < 4; r++) {
        b->colors[4 + r] = (int)r % 2;
        share(b, 0, r, UNSHARD, 1)->bytes = r % 2;
    }
    expect_sound(b);
    b->colors[4 + 3] = -1;
    expect(b, HP_RULE_LIST, &b->ops[0][3][0], &b->ops[0][3][0], "of which its rank is no member");
}

static void test_one_communicator_on_two_streams(void **state) {
    struct bench *b = *state;
    start(b, 2, 1);
    for (uint32_t r = 0; r < 2; r++) {
        share(b, 0, r, UNSHARD, 1);
        after(share(b, 0, r, REDUCE, 1), hpi_done(0));
    }
    expect_sound(b);
    b->ops[0][0][1].n_waits = 0;
    expect(b, HP_RULE_MATCH, &b->ops[0][0][0], &b->ops[0][0][1], "in no order");
}

static void test_a_circle_across_ranks(void **state) {
    struct bench *b = *state;
    start(b, 2, 1);
    for (uint32_t r = 0; r < 2; r++) {
        share(b, 0, r, UNSHARD, 1 + r);
        share(b, 0, r, UNSHARD, 2 - r);
    }
    assert_int_equal(hp_verify(&b->job, &b->verdict), HP_ERR_UNSOUND);
    assert_string_equal(hp_rule_name(b->verdict.rule), "cycle");
    assert_int_equal(b->verdict.at[0].rank + b->verdict.at[1].rank, 1);
    assert_non_null(strstr(hp_last_error(), "wait for each other"));
    b->ops[0][1][0].stream = REDUCE; /* an executor that runs lists in order does not see it */
    assert_int_equal(hp_verify(&b->job, &b->verdict), HP_ERR_UNSOUND);
    assert_string_equal(hp_rule_name(b->verdict.rule), "cycle");
}

/* The caller stands in its wait and has not submitted what the other rank waits for. */
static void test_a_circle_through_the_caller(void **state) {
    struct bench *b = *state;
    start(b, 2, 1);
    for (uint32_t r = 0; r < 2; r++) {
        share(b, 0, r, r ? REDUCE : UNSHARD, 1 + r);
        after(add(b, 0, r, K_WORK, COMPUTE), hpi_done(0));
        share(b, 0, r, r ? UNSHARD : REDUCE, 2 - r);
    }
    expect(b, HP_RULE_CYCLE, &b->ops[0][0][0], &b->ops[0][1][0], "wait for each other");
    b->ops[0][1][0].comm = 1;
    b->ops[0][1][2].comm = 2;
    expect_sound(b);
}

/* The circle may close over a step: rank 1 cannot begin its next one. */
static void test_a_circle_across_steps(void **state) {
    struct bench *b = *state;
    start(b, 2, 1);
    share(b, 0, 0, UNSHARD, 1);
    after(share(b, 0, 0, REDUCE, 2), hpi_done(0));
    share(b, 0, 1, REDUCE, 2);
    after(share(b, 0, 1, UNSHARD, 1), hpi_drained(0));
    assert_int_equal(hp_verify(&b->job, &b->verdict), HP_ERR_UNSOUND);
    assert_string_equal(hp_rule_name(b->verdict.rule), "cycle");
}

/* ---- lives -------------------------------------------------------------------------------------
 */

/* allocate, a gather into it, a read of it, a release: what may be moved. */
static void one_life(struct bench *b) {
    start(b, 2, 2);
    for (uint32_t s = 0; s < 2; s++)
        for (uint32_t r = 0; r < 2; r++) {
            writes(add(b, s, r, K_ALLOCATE, COMPUTE), whole(1, 1));
            after(writes(share(b, s, r, UNSHARD, 1), whole(1, 1)), hpi_done(0));
            after(reads(add(b, s, r, K_WORK, COMPUTE), whole(1, 1)), hpi_done(1));
            reads(add(b, s, r, K_RELEASE, COMPUTE), whole(1, 1));
        }
}

static void test_a_life(void **state) {
    struct bench *b = *state;
    one_life(b);
    hp_op *ops = b->ops[0][0];
    expect_sound(b);
    assert_int_equal(b->verdict.peak_bytes, BYTES);
    ops[1].n_waits = 0;
    expect(b, HP_RULE_LIFE, &ops[1], &ops[0], "not after its allocate");
    one_life(b);
    ops[2].n_waits = 0;
    ops[2].reads[0].buffer = 0; /* it is released while it is being gathered */
    expect(
        b, HP_RULE_REUSE, &ops[3], &ops[1],
        "reuse: release (step 0, rank 0, op 3) does not come after share (step 0, rank 0, op 1), "
        "which writes buffer 1 life 1 [0, 4096)");
}

static void test_a_life_ends_once(void **state) {
    struct bench *b = *state;
    one_life(b);
    hp_op *ops = b->ops[0][0];
    hp_op *again = reads(add(b, 0, 0, K_RELEASE, COMPUTE), whole(1, 1));
    expect(b, HP_RULE_LIFE, again, &ops[3], "after its release");
    again->kind = K_WORK;
    expect(b, HP_RULE_LIFE, again, &ops[3], "after its release");
    one_life(b);
    b->lists[0].n--;
    expect(b, HP_RULE_LIFE, &ops[0], &ops[0], "which is never released");
}

static void test_lives_follow_each_other(void **state) {
    struct bench *b = *state;
    one_life(b);
    hp_op *ops = b->ops[0][0];
    hp_op *next = writes(add(b, 0, 0, K_ALLOCATE, COMPUTE), whole(1, 2));
    hp_op *use = reads(add(b, 0, 0, K_WORK, COMPUTE), whole(1, 2));
    reads(add(b, 0, 0, K_RELEASE, COMPUTE), whole(1, 2));
    expect_sound(b);
    use->reads[0].life = 1;
    expect(b, HP_RULE_LIFE, use, next, "after the next allocate");
    use->reads[0].life = 3;
    expect(b, HP_RULE_LIFE, use, use, "not after its allocate");
    use->reads[0] = piece(1, 2, 0, BYTES);
    next->writes[0].end = BYTES - 1;
    expect(b, HP_RULE_LIFE, use, next, "outside what was allocated");
    next->writes[0].end = BYTES;
    use->reads[0].life = 0;
    expect(b, HP_RULE_LIFE, use, use, "outside the lives that this buffer has");
    use->reads[0].life = 2;
    next->stream = REDUCE; /* nothing says that the life before has ended */
    use->waits[use->n_waits++] = hpi_done(4);
    expect(b, HP_RULE_REUSE, next, &ops[3], "not after release");
    after(next, hpi_done(3));
    expect_sound(b);
}

/* ---- memory of several ranks -------------------------------------------------------------------
 */

static void share_memory(struct bench *b) {
    start(b, 2, 1);
    b->buffers[1].shared_by = 1;
    for (uint32_t r = 0; r < 2; r++) {
        writes(add(b, 0, r, K_WORK, COMPUTE), piece(1, 0, r * 2048, r * 2048 + 2048));
        after(share(b, 0, r, UNSHARD, 1), hpi_done(0));
        after(reads(add(b, 0, r, K_WORK, COMPUTE), whole(1, 0)), hpi_done(1));
    }
}

static void test_shared_memory_needs_a_meeting(void **state) {
    struct bench *b = *state;
    share_memory(b);
    expect_sound(b);
    b->ops[0][1][1].n_waits = 0; /* rank 1 arrives before it has written */
    expect(b, HP_RULE_RACE, &b->ops[0][0][2], &b->ops[0][1][0], "rank 1, op 0) writes buffer 1");
    share_memory(b);
    b->ops[0][0][0].writes[0].end++; /* one byte of the other's */
    expect(b, HP_RULE_RACE, &b->ops[0][0][0], &b->ops[0][1][0], "while");
    share_memory(b);
    b->buffers[1].shared_by = 0;
    b->ops[0][1][1].n_waits = 0;
    expect_sound(b);
}

static void test_memory_is_shared_within_a_group(void **state) {
    struct bench *b = *state;
    start(b, 4, 1);
    b->buffers[1].shared_by = 1;
    for (uint32_t r = 0; r < 4; r++)
        b->colors[4 + r] = (int)r / 2;
    writes(add(b, 0, 1, K_WORK, COMPUTE), whole(1, 0));
    hp_op *far = writes(add(b, 0, 2, K_WORK, COMPUTE), whole(1, 0));
    expect_sound(b);
    far->reads[0] = whole(1, 1);
    expect(b, HP_RULE_LIST, far, far, "memory that ranks share has no lives");
}

/* ---- broken lists and arguments ----------------------------------------------------------------
 */

static void test_broken_lists(void **state) {
    struct bench *b = *state;
    start(b, 1, 1);
    add(b, 0, 0, K_WORK, COMPUTE);
    hp_op *op = add(b, 0, 0, K_WORK, COMPUTE);
    const hp_op good = *op;
    op->id = 5;
    assert_int_equal(hp_verify(&b->job, &b->verdict), HP_ERR_UNSOUND);
    assert_int_equal(b->verdict.rule, HP_RULE_LIST);
    assert_int_equal(b->verdict.at[0].op.id, 5);
#define BROKEN(change, text)                                                                       \
    do {                                                                                           \
        *op = good;                                                                                \
        change;                                                                                    \
        expect(b, HP_RULE_LIST, op, op, text);                                                     \
    } while (0)
    BROKEN(op->kind = N_KINDS, "has kind 6 of 6");
    BROKEN(op->stream = HP_N_STREAMS, "stream 4 of 4");
    BROKEN(op->n_waits = 5, "has 5 waits");
    BROKEN(after(op, hpi_done(1)), "waits for event 4");
    BROKEN(after(op, 1), "waits for event 1");
    BROKEN(reads(op, whole(N_BUFFERS, 0)), "names buffer 6 of 6");
    BROKEN(writes(op, piece(1, 0, 0, BYTES + 1)), "of 4096 bytes");
    BROKEN(writes(op, piece(1, 0, 2, 1)), "of 4096 bytes");
    BROKEN((op->comm = 1, op->seq = 1), "is number 0 on communicator 1, given 1");
    BROKEN(op->comm = N_COMMS, "is on communicator 3 of 3");
    BROKEN(op->kind = K_ALLOCATE, "names no life");
    BROKEN(op->kind = K_RELEASE, "names no life");
    BROKEN(reads(writes(op, whole(1, 1)), whole(2, 0))->kind = K_ALLOCATE, "more than a life");
    BROKEN(writes(reads(op, whole(1, 1)), whole(2, 0))->kind = K_RELEASE, "more than a life");
    BROKEN(op->kind = K_LET_GO, "ends what has not begun");
#undef BROKEN
}

static void test_arguments(void **state) {
    struct bench *b = *state;
    start(b, 1, 1);
    expect_sound(b); /* nothing to do is sound */
    assert_int_equal(hp_verify(NULL, &b->verdict), HP_ERR_ARGUMENT);
    assert_int_equal(hp_verify(&b->job, NULL), HP_ERR_ARGUMENT);
#define WRONG(field, value, status)                                                                \
    do {                                                                                           \
        const hp_job good = b->job;                                                                \
        b->job.field = value;                                                                      \
        assert_int_equal(hp_verify(&b->job, &b->verdict), status);                                 \
        b->job = good;                                                                             \
    } while (0)
    WRONG(size, 8, HP_ERR_VERSION);
    WRONG(n_ranks, 0, HP_ERR_ARGUMENT);
    WRONG(n_ranks, 4097, HP_ERR_ARGUMENT);
    WRONG(n_steps, 0, HP_ERR_ARGUMENT);
    WRONG(lists, NULL, HP_ERR_ARGUMENT);
    WRONG(kinds, NULL, HP_ERR_ARGUMENT);
    WRONG(buffers, NULL, HP_ERR_ARGUMENT);
    WRONG(colors, NULL, HP_ERR_ARGUMENT);
    const hp_kind nameless[N_KINDS] = {{NULL, NULL, NULL, HP_ROLE_PLAIN}};
    uint64_t end_ns;
    WRONG(kinds, nameless, HP_ERR_ARGUMENT);
    b->job.kinds = nameless;
    assert_int_equal(hp_simulate(&b->job, NULL, "kind=work,us=1", NULL, NULL, &end_ns),
                     HP_ERR_ARGUMENT);
    b->job.kinds = kinds;
    assert_int_equal(hp_simulate(&b->job, NULL, NULL, NULL, NULL, &end_ns), HP_OK);
    assert_int_equal(end_ns, 0);
#undef WRONG
    b->buffers[2].shared_by = N_COMMS;
    assert_int_equal(hp_verify(&b->job, &b->verdict), HP_ERR_ARGUMENT);
    assert_string_equal(hp_rule_name((hp_rule)99), "?");
}

/* Whatever allocation fails, the job is left alone and no memory is lost. */
static void test_no_memory(void **state) {
    struct bench *b = *state;
    one_life(b);
    for (uint64_t n = 1;; n++) {
        hpi_alloc_fail_after(n);
        const hp_status status = hp_verify(&b->job, &b->verdict);
        hpi_alloc_fail_after(0);
        if (status == HP_OK)
            break;
        assert_int_equal(status, HP_ERR_MEMORY);
        assert_true(n < 1000);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_bench, drop_bench)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_two_streams_race_unless_one_waits),
        TEST(test_apart_or_reading_is_no_race),
        TEST(test_waits_carry_over),
        TEST(test_a_begin_holds_until_its_end),
        TEST(test_begins_nest_by_unit),
        TEST(test_an_end_is_on_its_begins_stream),
        TEST(test_a_step_begins_when_the_last_is_drained),
        TEST(test_done_is_not_drained),
        TEST(test_a_later_collective_is_evidence),
        TEST(test_outputs_are_there_when_done),
        TEST(test_members_must_match),
        TEST(test_groups_do_not_mix),
        TEST(test_one_communicator_on_two_streams),
        TEST(test_a_circle_across_ranks),
        TEST(test_a_circle_through_the_caller),
        TEST(test_a_circle_across_steps),
        TEST(test_a_life),
        TEST(test_a_life_ends_once),
        TEST(test_lives_follow_each_other),
        TEST(test_shared_memory_needs_a_meeting),
        TEST(test_memory_is_shared_within_a_group),
        TEST(test_broken_lists),
        TEST(test_arguments),
        TEST(test_no_memory),
    };
    return cmocka_run_group_tests_name("verify", tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * test_schedule.c - the plans of every mode, mesh, prefetch depth and schedule are sound, and each
 * fault of the field that a plan could have is found, with the two operations that it is about.
 *
 * A fault is planted by changing the list of a sound plan. F rows: FIELD-CASES F7 to F10, F15, F16,
 * F21, F24, F26, F28, F29. Last, every single wait of the plans is taken out: the verifier objects,
 * or what the wait says follows from others, for one of the reasons that are listed here.
 */
#include "base/base.h"
#include "fsdp/plan/plan.h"
#include "support/schedules.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* ---- all plans are sound, and within their memory ---------------------------------------------
 */

/* Everything that a rank holds is at most what the rule of docs/memory.md allows it. */
static void check_bound(const schedule *s, const char *name) {
    hp_fsdp_stats t;
    assert_int_equal(hp_fsdp_stats_get(s->fsdp, &t), HP_OK);
    const uint64_t lives = t.gather_bytes + t.grad_bytes + t.pack_bytes;
    const uint64_t sum = lives + t.shard_bytes + t.bucket_bytes + t.shared_bytes;
    if (sum > t.bound_bytes || s->verdict.peak_bytes > lives)
        fail_msg("%s: %llu bytes taken of %llu, lives %llu of %llu", name, (unsigned long long)sum,
                 (unsigned long long)t.bound_bytes, (unsigned long long)s->verdict.peak_bytes,
                 (unsigned long long)lives);
}

static void check_sound(const schedule_shape *shape) {
    schedule s;
    char name[160];
    schedule_make(shape, &s);
    schedule_name(shape, name, sizeof name);
    if (hp_verify(&s.job, &s.verdict) != HP_OK)
        fail_msg("%s: %s", name, hp_last_error());
    check_bound(&s, name);
    schedule_drop(&s);
}

static const hp_mode modes[] = {HP_PER_PARAM, HP_FUSED, HP_FUSED_ZERO_COPY, HP_MAPPED};
enum { N_MODES = sizeof modes / sizeof *modes };

static void for_all(const int meshes[][2], int n_meshes, int n_depths,
                    void (*check)(const schedule_shape *shape)) {
    static const hp_schedule schedules[] = {HP_OVERLAP, HP_PREFETCH, HP_SERIAL};
    static const int dtypes[] = {HP_OWN_DTYPE, HP_BF16};
    for (int m = 0; m < N_MODES; m++)
        for (int g = 0; g < n_meshes; g++)
            for (int depth = 0; depth < n_depths; depth++)
                for (int k = 0; k < 3 * 2 * 2; k++) {
                    schedule_shape shape = SCHEDULE_SHAPE_INIT;
                    shape.mode = modes[m];
                    shape.n_replicas = meshes[g][0];
                    shape.n_shards = meshes[g][1];
                    shape.prefetch = 2 - depth;
                    shape.schedule = schedules[k % 3];
                    shape.reshard_after_forward = k / 3 % 2;
                    shape.param_dtype = dtypes[k / 6];
                    check(&shape);
                }
}

static void test_every_plan_is_sound(void **state) {
    static const int meshes[][2] = {{1, 1}, {1, 2}, {2, 1}, {2, 2}, {1, 4}, {2, 4}, {4, 2}, {8, 1}};
    (void)state;
    for_all(meshes, 8, 3, check_sound);
}

/* The same door as for ranks that are there. */
static void test_a_virtual_fsdp_verifies_its_plan(void **state) {
    schedule s;
    const schedule_shape shape = SCHEDULE_SHAPE_INIT;
    (void)state;
    schedule_make(&shape, &s);
    assert_int_equal(hp_fsdp_verify(s.fsdp, HP_VERIFY_PLAN, &s.verdict), HP_OK);
    assert_int_equal(s.verdict.n_ops, 3 * 4 * s.lists[0].n);
    assert_int_equal(hp_fsdp_verify(s.fsdp, HP_VERIFY_RECORDED, &s.verdict), HP_ERR_STATE);
    schedule_drop(&s);
}

/* ---- planted faults ---------------------------------------------------------------------------
 */

/* The n-th operation of its kind that is a unit's, in step 1 of a rank. */
static hp_op *find(const schedule *s, uint32_t rank, int kind, int unit, int n) {
    const hp_list *list = &s->lists[s->job.n_ranks + rank];
    hp_op *ops = s->ops[s->job.n_ranks + rank];
    for (uint64_t i = 0; i < list->n; i++)
        if (ops[i].kind == kind && (int)ops[i].unit == unit && n-- == 0)
            return &ops[i];
    fail_msg("expected operation %d of unit %d on rank %u", kind, unit, rank);
    return NULL;
}

/* The allocate or release of what `op` names first. */
static hp_op *find_life(const schedule *s, uint32_t rank, int kind, hp_ref ref) {
    const hp_list *list = &s->lists[s->job.n_ranks + rank];
    hp_op *ops = s->ops[s->job.n_ranks + rank];
    for (uint64_t i = 0; i < list->n; i++) {
        const hp_ref *life = kind == HPI_OP_ALLOCATE ? &ops[i].writes[0] : &ops[i].reads[0];
        if (ops[i].kind == kind && life->buffer == ref.buffer && life->life == ref.life)
            return &ops[i];
    }
    fail_msg("expected a life of buffer %u", ref.buffer);
    return NULL;
}

/* Rejected for this rule, and these are the two operations, of step 1. */
static void expect(schedule *s, hp_rule rule, const hp_op *first, const hp_op *second) {
    const hp_op *const expected[] = {first, second};
    assert_int_equal(hp_verify(&s->job, &s->verdict), HP_ERR_UNSOUND);
    if (s->verdict.rule != rule)
        fail_msg("expected %s, given %s", hp_rule_name(rule), hp_last_error());
    for (int k = 0; k < 2; k++) {
        const uint32_t rank = s->verdict.at[k].rank, step = s->verdict.at[k].step;
        const hp_op *at = &s->ops[step * s->job.n_ranks + rank][s->verdict.at[k].op.id];
        if (at != expected[k])
            fail_msg("expected operation %u (kind %u) as number %d, given %s", expected[k]->id,
                     expected[k]->kind, k, hp_last_error());
    }
    assert_non_null(strstr(hp_last_error(), " of block "));
}

/* Nothing but a place in the list. */
static void blank(hp_op *op) {
    const hp_op old = *op;
    memset(op, 0, sizeof *op);
    op->kind = HPI_OP_WAIT;
    op->id = old.id;
    op->unit = old.unit;
    op->param = old.param;
}

static void make(hp_mode mode, schedule *out) {
    schedule_shape shape = SCHEDULE_SHAPE_INIT;
    shape.mode = mode;
    schedule_make(&shape, out);
    assert_int_equal(hp_verify(&out->job, &out->verdict), HP_OK);
}

/* Two layers have one buffer for the all-reduce: the later gradients overwrite the others. */
static void test_f7_one_bucket_for_two_layers(void **state) {
    (void)state;
    for (int m = 0; m < N_MODES; m++) {
        schedule s;
        make(modes[m], &s);
        hp_op *sum = find(&s, 0, HPI_OP_ALL_REDUCE, 5, 0),
              *scatter = find(&s, 0, HPI_OP_REDUCE_SCATTER, 4, 0);
        scatter->writes[0].buffer = sum->reads[0].buffer;
        const bool is_first = scatter->id < sum->id;
        expect(&s, HP_RULE_RACE, is_first ? scatter : sum, is_first ? sum : scatter);
        schedule_drop(&s);
    }
}

/* The gradients' memory is given back while it is still read, or read when it was given back. */
static void test_f8_a_freed_buffer_is_read(void **state) {
    schedule s;
    (void)state;
    make(HP_PER_PARAM, &s);
    hp_op *scatter = find(&s, 1, HPI_OP_REDUCE_SCATTER, 5, 2);
    hp_op *release = find_life(&s, 1, HPI_OP_RELEASE, scatter->reads[0]);
    release->n_waits = 0;
    expect(&s, HP_RULE_REUSE, release, scatter);
    hp_op *divide = find(&s, 1, HPI_OP_DIVIDE, 5, 0);
    release->n_waits = 1;
    divide->reads[0] = scatter->reads[0];
    assert_int_equal(hp_verify(&s.job, &s.verdict), HP_ERR_UNSOUND);
    assert_int_equal(s.verdict.rule, HP_RULE_LIFE);
    assert_int_equal(s.verdict.at[0].op.id, divide->id);
    schedule_drop(&s);
}

/* The next layer's backward writes where the last one's reduce-scatter still reads. */
static void test_f9_adjacent_layers_share_a_slot(void **state) {
    (void)state;
    for (int m = 0; m < N_MODES; m++) {
        schedule s;
        make(modes[m], &s);
        hp_op *first = find(&s, 0, HPI_OP_BACKWARD_BEGIN, 5, 0);
        hp_op *second = find(&s, 0, HPI_OP_BACKWARD_BEGIN, 4, 0);
        const bool is_packed = modes[m] == HP_FUSED || modes[m] == HP_FUSED_ZERO_COPY;
        hp_op *reader = find(&s, 0, is_packed ? HPI_OP_PACK_GRADS : HPI_OP_REDUCE_SCATTER, 5, 0);
        second->writes[0] = first->writes[0];
        if (is_packed) /* the slot goes back as soon as it has been packed */
            expect(&s, HP_RULE_REUSE, find_life(&s, 0, HPI_OP_RELEASE, first->writes[0]), second);
        else
            expect(&s, HP_RULE_RACE, reader, second);
        schedule_drop(&s);
    }
}

/* Memory taken on another stream than that of whoever uses it. */
static void test_f10_allocated_on_another_stream(void **state) {
    schedule s;
    (void)state;
    make(HP_PER_PARAM, &s);
    hp_op *begin = find(&s, 0, HPI_OP_BACKWARD_BEGIN, 3, 0);
    hp_op *allocate = find_life(&s, 0, HPI_OP_ALLOCATE, begin->writes[0]);
    allocate->stream = HP_STREAM_REDUCE;
    assert_int_equal(hp_verify(&s.job, &s.verdict), HP_ERR_UNSOUND); /* nor is the last life over */
    begin->waits[begin->n_waits++] = hpi_done(allocate->id);
    assert_int_equal(hp_verify(&s.job, &s.verdict), HP_ERR_UNSOUND);
    hp_op *release =
        find_life(&s, 0, HPI_OP_RELEASE,
                  (hp_ref){allocate->writes[0].buffer, allocate->writes[0].life - 1, 0, 0});
    allocate->waits[allocate->n_waits++] = hpi_done(release->id);
    assert_int_equal(hp_verify(&s.job, &s.verdict), HP_OK);
    begin->n_waits--;
    expect(&s, HP_RULE_LIFE, begin, allocate);
    schedule_drop(&s);
}

/* A parameter has a gradient on some ranks only. */
static void test_f15_a_gradient_on_some_ranks(void **state) {
    schedule s;
    (void)state;
    make(HP_PER_PARAM, &s);
    hp_op *mine = find(&s, 0, HPI_OP_REDUCE_SCATTER, 3, 1),
          *other = find(&s, 1, HPI_OP_REDUCE_SCATTER, 3, 1);
    other->bytes /= 2;
    expect(&s, HP_RULE_MATCH, mine, other);
    other->bytes *= 2;
    other->param++; /* what comes next is taken for it */
    expect(&s, HP_RULE_MATCH, mine, other);
    other->param--;
    other->dtype = HP_BF16;
    expect(&s, HP_RULE_MATCH, mine, other);
    schedule_drop(&s);
}

/* One rank runs a step less. */
static void test_f16_one_rank_stops_early(void **state) {
    schedule s;
    (void)state;
    make(HP_PER_PARAM, &s);
    s.lists[s.job.n_ranks + 1].n = 0;
    hp_op *alone = find(&s, 0, HPI_OP_ALL_GATHER, 0, 0);
    expect(&s, HP_RULE_MATCH, alone, alone);
    assert_non_null(strstr(hp_last_error(), "rank 1 does not issue"));
    schedule_drop(&s);
}

/* Something is added to what the all-reduce has taken already: other replicas never see it. */
static void test_f21_accumulating_behind_the_all_reduce(void **state) {
    (void)state;
    for (int m = 0; m < N_MODES; m++) {
        schedule s;
        make(modes[m], &s);
        hp_op *sum = find(&s, 0, HPI_OP_ALL_REDUCE, 4, 0),
              *late = find(&s, 0, HPI_OP_BACKWARD_END, 2, 0);
        assert_true(late->id > sum->id);
        late->writes[0] = sum->writes[0];
        expect(&s, HP_RULE_RACE, sum, late);
        schedule_drop(&s);
    }
}

/* The second step sees the gradient as the whole parameter, not as this rank's shard. */
static void test_f24_the_second_step_has_another_shape(void **state) {
    schedule s;
    (void)state;
    make(HP_PER_PARAM, &s);
    hp_op *scatter = find(&s, 0, HPI_OP_REDUCE_SCATTER, 3, 2);
    scatter->writes[0].end = scatter->writes[0].begin + scatter->bytes * 8;
    expect(&s, HP_RULE_LIST, scatter, scatter);
    schedule_drop(&s);
}

/* What was gathered for all parameters at once is kept after it was copied out. */
static void test_f28_the_gathered_buffer_is_kept(void **state) {
    (void)state;
    for (int m = 1; m < 3; m++) {
        schedule s;
        make(modes[m], &s);
        hp_op *gather = find(&s, 0, HPI_OP_ALL_GATHER, 0, 0);
        hp_op *last =
            find(&s, 0, HPI_OP_ALL_GATHER, 0, 1); /* of the backward: the last of the step */
        blank(find_life(&s, 0, HPI_OP_RELEASE, last->writes[0]));
        hp_op *kept = find_life(&s, 0, HPI_OP_ALLOCATE, last->writes[0]);
        expect(&s, HP_RULE_LIFE, kept, kept);
        blank(find_life(&s, 0, HPI_OP_RELEASE, gather->writes[0]));
        hp_op *next =
            find_life(&s, 0, HPI_OP_ALLOCATE, find(&s, 0, HPI_OP_ALL_GATHER, 1, 0)->writes[0]);
        expect(&s, HP_RULE_LIFE, next, find_life(&s, 0, HPI_OP_ALLOCATE, gather->writes[0]));
        schedule_drop(&s);
    }
}

/* A unit's storage is held to the end of the step, in a slot more than the rule has. */
static void test_f26_the_peak_tells(void **state) {
    schedule s;
    hp_fsdp_stats t;
    (void)state;
    make(HP_PER_PARAM, &s);
    assert_int_equal(hp_fsdp_stats_get(s.fsdp, &t), HP_OK);
    assert_true(s.verdict.peak_bytes <= t.gather_bytes + t.grad_bytes);
    for (uint32_t unit = 0; unit < 5; unit++) /* every release of the forward comes too late */
        blank(find(&s, 0, HPI_OP_RELEASE, (int)unit, 0));
    assert_int_equal(hp_verify(&s.job, &s.verdict), HP_ERR_UNSOUND);
    assert_int_equal(s.verdict.rule, HP_RULE_LIFE);
    assert_true(s.verdict.peak_bytes > t.gather_bytes + t.grad_bytes);
    schedule_drop(&s);
}

/* A piece that begins elsewhere, or goes beyond what was allocated. */
static void test_f29_a_misplaced_piece(void **state) {
    schedule s;
    (void)state;
    make(HP_FUSED, &s);
    hp_op *scatter = find(&s, 0, HPI_OP_REDUCE_SCATTER, 3, 0);
    hp_op *allocate = find_life(&s, 0, HPI_OP_ALLOCATE, scatter->reads[0]);
    allocate->writes[0].end -= 64;
    hp_op *pack = find(&s, 0, HPI_OP_PACK_GRADS, 3, 0);
    expect(&s, HP_RULE_LIFE, pack, allocate);
    schedule_drop(&s);
}

/* ---- further faults: each changes one thing ---- */

static void test_a_release_for_done_alone(void **state) {
    schedule s;
    (void)state;
    make(HP_FUSED, &s);
    hp_op *gather = find(&s, 0, HPI_OP_ALL_GATHER, 0, 0);
    hp_op *release = find_life(&s, 0, HPI_OP_RELEASE, gather->writes[0]);
    assert_true(release->waits[0] == hpi_drained(gather->id));
    release->waits[0] = hpi_done(gather->id);
    expect(&s, HP_RULE_REUSE, release, gather);
    schedule_drop(&s);
}

static void test_an_all_reduce_before_its_reduce_scatter(void **state) {
    (void)state;
    for (int m = 0; m < N_MODES; m++) {
        schedule s;
        make(modes[m], &s);
        hp_op *sum = find(&s, 1, HPI_OP_ALL_REDUCE, 3, 0);
        sum->n_waits = 0;
        assert_int_equal(hp_verify(&s.job, &s.verdict), HP_ERR_UNSOUND);
        assert_int_equal(s.verdict.rule, HP_RULE_RACE);
        assert_int_equal(s.verdict.at[0].op.kind, HPI_OP_REDUCE_SCATTER);
        assert_int_equal(s.verdict.at[0].op.unit, 3);
        assert_int_equal(s.verdict.at[1].op.id, sum->id);
        schedule_drop(&s);
    }
}

/* A prefetch that nobody used, dropped without waiting for it. */
static void test_a_cancelled_gather_is_not_waited_for(void **state) {
    schedule s;
    (void)state;
    make(HP_PER_PARAM, &s);
    hp_op *gather = find(&s, 0, HPI_OP_ALL_GATHER, 3, 0), *wait = find(&s, 0, HPI_OP_WAIT, 3, 0);
    for (int j = 0; j < 2; j++)
        gather->param == 2 ? (void)0 : (void)(gather = find(&s, 0, HPI_OP_ALL_GATHER, 3, j + 1));
    assert_true(wait->waits[0] == hpi_done(gather->id));
    blank(wait);
    blank(find(&s, 0, HPI_OP_FORWARD_BEGIN, 3, 0));
    blank(find(&s, 0, HPI_OP_FORWARD_END, 3, 0));
    hp_op *release = find_life(&s, 0, HPI_OP_RELEASE, gather->writes[0]);
    assert_int_equal(hp_verify(&s.job, &s.verdict), HP_ERR_UNSOUND);
    assert_int_equal(s.verdict.rule, HP_RULE_REUSE);
    assert_int_equal(s.verdict.at[0].op.id, release->id);
    assert_int_equal(s.verdict.at[1].op.kind, HPI_OP_ALL_GATHER);
    release->waits[release->n_waits++] = hpi_done(gather->id);
    assert_int_equal(hp_verify(&s.job, &s.verdict), HP_OK);
    schedule_drop(&s);
}

static void test_two_collectives_exchanged_on_one_rank(void **state) {
    schedule s;
    (void)state;
    make(HP_PER_PARAM, &s);
    hp_op *one = find(&s, 1, HPI_OP_REDUCE_SCATTER, 3, 0),
          *two = find(&s, 1, HPI_OP_REDUCE_SCATTER, 3, 1);
    const uint32_t param = one->param;
    one->param = two->param;
    two->param = param;
    expect(&s, HP_RULE_MATCH, find(&s, 0, HPI_OP_REDUCE_SCATTER, 3, 0), one);
    schedule_drop(&s);
}

static void test_a_collective_on_another_stream(void **state) {
    schedule s;
    (void)state;
    make(HP_PER_PARAM, &s);
    hp_op *scatter = find(&s, 0, HPI_OP_REDUCE_SCATTER, 3, 2);
    scatter->stream = HP_STREAM_UNSHARD;
    scatter->waits[scatter->n_waits++] = hpi_done(find(&s, 0, HPI_OP_BACKWARD_END, 3, 0)->id);
    assert_int_equal(hp_verify(&s.job, &s.verdict), HP_ERR_UNSOUND);
    assert_int_equal(s.verdict.rule, HP_RULE_MATCH);
    assert_non_null(strstr(hp_last_error(), "in no order"));
    schedule_drop(&s);
}

/* Weights are written while a peer may still gather the old ones, or read them. */
static void test_an_update_before_the_readers_are_through(void **state) {
    (void)state;
    for (int m = 0; m < N_MODES; m++) {
        schedule s;
        make(modes[m], &s);
        hp_op *update = find(&s, 0, HPI_OP_UPDATE, 0, modes[m] == HP_MAPPED);
        const hp_ref written = update->writes[0];
        blank(update);
        hp_op *early = find(&s, 0, HPI_OP_FORWARD_END, 0, 0);
        early->writes[0] = written; /* as soon as the last forward has begun */
        assert_int_equal(hp_verify(&s.job, &s.verdict), HP_ERR_UNSOUND);
        assert_int_equal(s.verdict.rule, HP_RULE_RACE);
        schedule_drop(&s);
    }
}

/* ---- every wait is needed ---------------------------------------------------------------------
 */

/* What may be taken out, because it follows from other waits. */
static const struct reason {
    int kind, waited; /* kinds; -1: any */
    int is_drained;   /* of the event; -1: either */
    bool is_last;     /* the wait at the end of a pass, which is nobody's */
    const char *why;
} reasons[] = {
    {HPI_OP_WAIT, -1, 1, true, "what runs after the pass is drained; it is said here all the same"},
    {HPI_OP_WAIT, HPI_OP_ALL_REDUCE, 0, false, "drained, which stands beside it, says more"},
    {HPI_OP_WAIT, HPI_OP_ALL_REDUCE, 1, false,
     "a later all-reduce, waited for, was begun everywhere"},
    {HPI_OP_WAIT, HPI_OP_REDUCE_SCATTER, 0, false,
     "its all-reduce waits too; here it bounds what is in flight"},
    {HPI_OP_WAIT, HPI_OP_BACKWARD_END, 0, false, "compute waits for compute: nothing is reduced"},
    {HPI_OP_WAIT, HPI_OP_CONVERT, 0, false, "the same"},
    {HPI_OP_RELEASE, HPI_OP_REDUCE_SCATTER, 1, false,
     "a later reduce-scatter, waited for, was begun everywhere"},
    {HPI_OP_ALLOCATE, HPI_OP_RELEASE, 0, false, "the reduce-scatter behind it was waited for"},
};
enum { N_REASONS = sizeof reasons / sizeof *reasons };

static struct { uint64_t n_waits, n_needed, n_for[N_REASONS]; } taken_out;

static int find_reason(const hp_op *op, const hp_op *waited, hp_event event) {
    for (int i = 0; i < N_REASONS; i++) {
        const struct reason *r = &reasons[i];
        if (r->kind == op->kind && (r->waited < 0 || r->waited == waited->kind) &&
            (r->is_drained < 0 || r->is_drained == (int)(event & 1)) &&
            r->is_last == (op->unit == UINT32_MAX))
            return i;
    }
    return -1;
}

static void take_out(schedule *s, hp_op *op, uint32_t w, const char *name) {
    const hp_op good = *op;
    taken_out.n_waits++;
    op->waits[w] = 0;
    const hp_status status = hp_verify(&s->job, &s->verdict);
    *op = good;
    if (status) {
        assert_int_equal(status, HP_ERR_UNSOUND);
        taken_out.n_needed++;
        return;
    }
    const hp_op *waited = op - op->id + hpi_event_op(good.waits[w]);
    const int reason = find_reason(op, waited, good.waits[w]);
    if (reason < 0)
        fail_msg("%s: %s of unit %d need not wait for %s of unit %d", name,
                 s->job.kinds[op->kind].name, (int)op->unit, s->job.kinds[waited->kind].name,
                 (int)waited->unit);
    taken_out.n_for[reason]++;
}

static void take_out_each(const schedule_shape *shape) {
    schedule s;
    char name[160];
    schedule_make(shape, &s);
    schedule_name(shape, name, sizeof name);
    const uint32_t at = s.job.n_ranks; /* step 1, rank 0 */
    for (uint64_t i = 0; i < s.lists[at].n; i++)
        for (uint32_t w = 0; w < s.ops[at][i].n_waits; w++)
            take_out(&s, &s.ops[at][i], w, name);
    schedule_drop(&s);
}

static void test_every_wait_is_needed(void **state) {
    static const int meshes[][2] = {{1, 2}, {2, 1}, {2, 2}};
    (void)state;
    for_all(meshes, 3, 2, take_out_each);
    print_message("%llu waits taken out, %llu noticed\n", (unsigned long long)taken_out.n_waits,
                  (unsigned long long)taken_out.n_needed);
    for (int i = 0; i < N_REASONS; i++) {
        print_message("%6llu not: %s\n", (unsigned long long)taken_out.n_for[i], reasons[i].why);
        assert_true(taken_out.n_for[i] > 0); /* else it is no reason any more */
    }
    assert_true(2 * taken_out.n_needed > taken_out.n_waits);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_plan_is_sound),
        cmocka_unit_test(test_a_virtual_fsdp_verifies_its_plan),
        cmocka_unit_test(test_f7_one_bucket_for_two_layers),
        cmocka_unit_test(test_f8_a_freed_buffer_is_read),
        cmocka_unit_test(test_f9_adjacent_layers_share_a_slot),
        cmocka_unit_test(test_f10_allocated_on_another_stream),
        cmocka_unit_test(test_f15_a_gradient_on_some_ranks),
        cmocka_unit_test(test_f16_one_rank_stops_early),
        cmocka_unit_test(test_f21_accumulating_behind_the_all_reduce),
        cmocka_unit_test(test_f24_the_second_step_has_another_shape),
        cmocka_unit_test(test_f26_the_peak_tells),
        cmocka_unit_test(test_f28_the_gathered_buffer_is_kept),
        cmocka_unit_test(test_f29_a_misplaced_piece),
        cmocka_unit_test(test_a_release_for_done_alone),
        cmocka_unit_test(test_an_all_reduce_before_its_reduce_scatter),
        cmocka_unit_test(test_a_cancelled_gather_is_not_waited_for),
        cmocka_unit_test(test_two_collectives_exchanged_on_one_rank),
        cmocka_unit_test(test_a_collective_on_another_stream),
        cmocka_unit_test(test_an_update_before_the_readers_are_through),
        cmocka_unit_test(test_every_wait_is_needed),
    };
    return cmocka_run_group_tests_name("schedule", tests, NULL, NULL);
}

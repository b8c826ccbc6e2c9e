/* SPDX-License-Identifier: Apache-2.0
 *
 * test_virtual_orders.c - hp_simulate of random jobs against the longest way through each.
 *
 * Without links there is nothing to share, so the moments of a job are what its rules say, and a
 * few lines find them: push every operation back until nothing pushes it any more. No heap, no
 * lanes, no events. What the verifier calls sound must run, and the order of the ranks, the order
 * in which they are numbered, must not matter.
 */
#include "random_jobs.h"

enum { DELAYED_RANK = 1, DELAY_NS = 5000 };

static const char delay[] = "kind=share,rank=1,us=5";
static const uint64_t work_ns[] = {7, 11}; /* added for units 0 and 1 */
static const uint64_t *const unit_ns[N_KINDS] = {[K_LET_GO] = work_ns};

/* [kind][comm]; no two are alike, some are free. */
static const hp_cost costs[N_KINDS][N_COMMS] = {
    [K_WORK] = {{5, 0.25, 0}},
    [K_SHARE] = {{0, 0, 0}, {30, 1.0, 0}, {17, 0.5, 0}},
    [K_RELEASE] = {{2, 0, 0}},
    [K_LET_GO] = {{13, 0, 0}},
};

struct moments {
    hp_moment at[MAX_STEPS * MAX_RANKS][MAX_OPS], *lists[MAX_STEPS * MAX_RANKS];
    hp_executor_stats stats[MAX_RANKS];
    uint64_t end_ns;
};

/* ---- the longest way ---- */

static uint64_t cost_ns(const hp_op *op) {
    const hp_cost *cost = &costs[op->kind][op->comm];
    const uint64_t unit = op->kind == K_LET_GO && op->unit < 2 ? work_ns[op->unit] : 0;
    return cost->fixed_ns + unit + (uint64_t)((double)op->bytes * cost->ns_per_byte + 0.5);
}

static hp_moment *moment_of(const struct every *e, struct moments *m, uint32_t i) {
    return &m->at[e->ops[i].step * e->job->n_ranks + e->ops[i].rank][e->ops[i].op->id];
}

/* Must `i` begin after `k` is done? */
static bool comes_after(const struct every *e, uint32_t i, uint32_t k) {
    const hp_op *op = e->ops[i].op, *other = e->ops[k].op;
    if (e->ops[k].rank != e->ops[i].rank || e->ops[k].step != e->ops[i].step)
        return e->ops[k].rank == e->ops[i].rank && e->ops[k].step < e->ops[i].step;
    for (uint32_t w = 0; w < op->n_waits; w++)
        if (hpi_event_op(op->waits[w]) == other->id)
            return true;
    const hp_role role = every_role(e, k);
    const bool is_gate = other->stream == COMPUTE && (role == HP_ROLE_BEGIN || role == HP_ROLE_END);
    return other->id < op->id && (is_gate || other->stream == op->stream);
}

static uint64_t meets_ns(const struct every *e, struct moments *m, uint32_t i) {
    const bool is_late = e->ops[i].op->kind == K_SHARE && e->ops[i].rank == DELAYED_RANK;
    return moment_of(e, m, i)->begin_ns + (is_late ? DELAY_NS : 0);
}

static bool push_back(const struct every *e, struct moments *m, uint32_t i) {
    hp_moment *mine = moment_of(e, m, i);
    const hp_moment before = *mine;
    uint64_t meets = 0;
    for (uint32_t k = 0; k < e->n_ops; k++) {
        if (k != i && comes_after(e, i, k))
            mine->begin_ns = hpi_max(mine->begin_ns, moment_of(e, m, k)->done_ns);
        if (every_is_partner(e, i, k))
            meets = hpi_max(meets, meets_ns(e, m, k));
    }
    mine->done_ns = mine->drained_ns = hpi_max(meets, meets_ns(e, m, i)) + cost_ns(e->ops[i].op);
    return memcmp(&before, mine, sizeof before) != 0;
}

static void find_moments(const struct every *e, struct moments *m) {
    memset(m, 0, sizeof *m);
    for (bool has_moved = true; has_moved;) {
        has_moved = false;
        for (uint32_t i = 0; i < e->n_ops; i++)
            has_moved |= push_back(e, m, i);
    }
    for (uint32_t i = 0; i < e->n_ops; i++) {
        const hp_moment *moment = moment_of(e, m, i);
        hp_executor_stats *stats = &m->stats[e->ops[i].rank];
        m->end_ns = hpi_max(m->end_ns, moment->done_ns);
        stats->n_ops++;
        stats->busy_ns[e->ops[i].op->stream] += moment->done_ns - moment->begin_ns;
    }
}

/* ---- against the clock ---- */

static hp_status simulate(const hp_job *job, const char *rule, struct moments *m) {
    hp_cost_model model = HP_COST_MODEL_INIT;
    model.costs = &costs[0][0];
    model.n_kinds = N_KINDS;
    model.n_comms = N_COMMS;
    model.unit_ns = unit_ns;
    model.n_units = 2;
    memset(m, 0, sizeof *m);
    for (uint32_t i = 0; i < job->n_steps * job->n_ranks; i++)
        m->lists[i] = m->at[i];
    return hp_simulate(job, &model, rule, m->lists, m->stats, &m->end_ns);
}

static void compare_moments(const struct moments *mine, const struct moments *other,
                            uint32_t n_ranks) {
    assert_int_equal(mine->end_ns, other->end_ns);
    assert_memory_equal(mine->at, other->at, sizeof mine->at);
    for (uint32_t r = 0; r < n_ranks; r++) {
        assert_int_equal(mine->stats[r].n_ops, other->stats[r].n_ops);
        assert_memory_equal(mine->stats[r].busy_ns, other->stats[r].busy_ns,
                            sizeof mine->stats[r].busy_ns);
    }
}

/* The same job, its ranks numbered from the last to the first. */
static void turn_round(const struct bench *b, struct bench *out) {
    const uint32_t n = b->job.n_ranks;
    *out = *b;
    out->job.lists = out->lists;
    out->job.colors = out->colors;
    for (uint32_t s = 0; s < b->job.n_steps; s++)
        for (uint32_t r = 0; r < n; r++)
            out->lists[s * n + r] = b->lists[s * n + n - 1 - r];
    for (uint32_t c = 1; c < N_COMMS; c++)
        for (uint32_t r = 0; r < n; r++)
            out->colors[c * n + r] = b->colors[c * n + n - 1 - r];
}

static void compare_turned(const struct bench *b, struct bench *turned, struct moments *straight,
                           struct moments *m) {
    const uint32_t n = b->job.n_ranks;
    turn_round(b, turned);
    assert_int_equal(simulate(&b->job, NULL, straight), HP_OK);
    assert_int_equal(simulate(&turned->job, NULL, m), HP_OK);
    assert_int_equal(straight->end_ns, m->end_ns);
    for (uint32_t r = 0; r < n; r++)
        assert_memory_equal(&straight->stats[r], &m->stats[n - 1 - r], sizeof m->stats[r]);
    for (uint32_t s = 0; s < b->job.n_steps; s++)
        for (uint32_t r = 0; r < n; r++)
            assert_memory_equal(straight->at[s * n + r], m->at[s * n + n - 1 - r], sizeof m->at[0]);
}

static void test_random_jobs_take_their_longest_way(void **state) {
    struct bench *b = malloc(2 * sizeof *b);
    struct moments *m = malloc(2 * sizeof *m);
    struct every every = {.n_ops = 0};
    uint64_t random = 3;
    uint32_t n_run = 0;
    (void)state;
    assert_true(b && m);
    for (uint32_t i = 0; i < 10000; i++) {
        random_job(&random, b);
        for (uint32_t l = 0; l < b->job.n_steps * b->job.n_ranks; l++) /* the same on all ranks */
            for (uint32_t k = 0; k < b->lists[l].n; k++)
                ((hp_op *)b->lists[l].ops)[k].bytes = 10 * (b->lists[l].ops[k].seq + 1);
        if (hp_verify(&b->job, &b->verdict) < 0)
            continue;
        every_read(&every, &b->job);
        find_moments(&every, &m[1]);
        if (simulate(&b->job, delay, &m[0]) < 0)
            fail_msg("job %u: %s", i, hp_last_error());
        compare_moments(&m[0], &m[1], b->job.n_ranks);
        compare_turned(b, &b[1], &m[0], &m[1]);
        n_run++;
    }
    assert_true(n_run > 4000);
    free(b);
    free(m);
}

/* Something of one operation, or one rank's color, becomes anything. */
static void spoil(uint64_t *random, struct bench *b) {
    const uint32_t l = below(random, b->job.n_steps * b->job.n_ranks);
    if (!b->lists[l].n)
        return;
    hp_op *op = (hp_op *)b->lists[l].ops + below(random, (uint32_t)b->lists[l].n);
    unsigned char *byte = (unsigned char *)op + below(random, sizeof *op);
    if (below(random, 8) == 0)
        b->colors[below(random, N_COMMS * b->job.n_ranks)] = (int)below(random, 4) - 1;
    else
        *byte =
            below(random, 2) ? (unsigned char)below(random, 8) : (unsigned char)below(random, 256);
}

/* Whatever is in a list, it is refused or run; nothing outside of it is read or written. */
static void test_spoiled_jobs_do_no_harm(void **state) {
    struct bench *b = malloc(sizeof *b);
    struct moments *m = malloc(sizeof *m);
    uint64_t random = 5;
    uint32_t n_refused = 0;
    char text[64];
    (void)state;
    assert_true(b && m);
    for (uint32_t i = 0; i < 20000; i++) {
        random_job(&random, b);
        for (uint32_t k = 1 + below(&random, 3); k-- > 0;)
            spoil(&random, b);
        const hp_status verdict = hp_verify(&b->job, &b->verdict);
        const hp_status status = simulate(&b->job, delay, m);
        if (verdict == HP_OK && status < 0 && status != HP_ERR_ARGUMENT)
            fail_msg("job %u is sound and does not run: %s", i, hp_last_error());
        assert_int_not_equal(verdict, HP_ERR_MEMORY);
        n_refused += verdict < 0;
        (void)hp_op_print(b->lists[0].ops, kinds, N_KINDS, text, below(&random, sizeof text));
    }
    assert_true(n_refused > 2000 && n_refused < 18000);
    free(b);
    free(m);
}

/* More than a clock can tell is refused, not told wrongly. */
static void test_times_that_do_not_fit(void **state) {
    enum { N_OPS = 1 << 19 };
    const hp_cost most = {UINT64_C(1) << 46, 0, 0};
    hp_cost_model model = HP_COST_MODEL_INIT;
    hp_job job = HP_JOB_INIT;
    hp_op *ops = calloc(N_OPS, sizeof *ops);
    hp_executor_stats stats = {.n_ops = 42};
    uint64_t end_ns = 0;
    (void)state;
    assert_non_null(ops);
    for (uint32_t i = 0; i < N_OPS; i++)
        ops[i].id = i;
    const hp_list list = {ops, N_OPS};
    model.costs = &most;
    model.n_kinds = model.n_comms = 1;
    job.n_ranks = job.n_steps = job.n_kinds = 1;
    job.lists = &list;
    job.kinds = kinds;
    assert_int_equal(hp_simulate(&job, &model, NULL, NULL, NULL, &end_ns), HP_ERR_ARGUMENT);
    assert_non_null(strstr(hp_last_error(), "584 years"));
    ops[0].id = 1; /* refused before anything is touched */
    assert_int_equal(hp_simulate(&job, &model, NULL, NULL, &stats, &end_ns), HP_ERR_ARGUMENT);
    assert_int_equal(stats.n_ops, 42);
    assert_int_equal(end_ns, 0);
    free(ops);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_jobs_take_their_longest_way),
        cmocka_unit_test(test_spoiled_jobs_do_no_harm),
        cmocka_unit_test(test_times_that_do_not_fit),
    };
    return cmocka_run_group_tests_name("virtual_orders", tests, NULL, NULL);
}

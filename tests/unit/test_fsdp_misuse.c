/* SPDX-License-Identifier: Apache-2.0
 *
 * test_fsdp_misuse.c - calls out of order, ties, ranks that disagree: clear errors, nothing lost.
 *
 * Every message must name what was wrong; after it the object works on, or is failed and says so.
 */
#include "small_fsdp.h"

#include <sys/resource.h>

/* ---- ties -------------------------------------------------------------------------------- */

static void tie_across_units(hp_world *world, void *argument) {
    (void)argument;
    static const float values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    hp_mesh *mesh;
    hp_unit *unit;
    hp_fsdp *fsdp = make_fsdp(world, &mesh);
    hp_param a = vector("embedding", 8), b = vector("head", 8);
    a.data = b.data = values;
    RANK_OK(hp_unit_create(fsdp, "first", &a, 1, NULL, &unit));
    RANK_OK(hp_unit_create(fsdp, "last", &b, 1, NULL, &unit));
    FAILS_SAYING(hp_fsdp_commit(fsdp), HP_ERR_ARGUMENT,
                 "embedding of unit first and head of unit last");
    hp_fsdp_destroy(fsdp);
    hp_mesh_destroy(mesh);
}

static void tie_inside_a_unit(hp_world *world, void *argument) {
    (void)argument;
    static const float values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    hp_mesh *mesh;
    hp_unit *unit;
    hp_fsdp *fsdp = make_fsdp(world, &mesh);
    hp_param both[2] = {vector("embedding", 8), vector("head", 8)};
    both[0].data = both[1].data = values;
    RANK_OK(hp_unit_create(fsdp, "tied", both, 2, NULL, &unit));
    RANK_OK(hp_fsdp_commit(fsdp));
    RANK_OK(hp_fsdp_begin(fsdp, HP_EVALUATE));
    RANK_OK(hp_forward_begin(unit));
    RANK_CHECK(hp_param_data(unit, 0) == hp_param_data(unit, 1));
    RANK_CHECK(memcmp(hp_param_data(unit, 1), values, sizeof values) == 0);
    RANK_OK(hp_forward_end(unit));
    RANK_OK(hp_fsdp_end(fsdp));
    hp_fsdp_destroy(fsdp);
    hp_mesh_destroy(mesh);
}

/* Tied by their values, and one of them frozen or replicated. */
static void tie_that_differs(hp_world *world, void *argument) {
    (void)argument;
    static const float values[8];
    for (int c = 0; c < 2; c++) {
        hp_mesh *mesh;
        hp_unit *unit;
        hp_fsdp *fsdp = make_fsdp(world, &mesh);
        hp_param both[2] = {vector("embedding", 8), vector("head", 8)};
        both[0].data = both[1].data = values;
        both[0].is_frozen = c == 0;
        both[1].shard_dim = c == 1 ? HP_REPLICATED : 0;
        RANK_OK(hp_unit_create(fsdp, "tied", both, 2, NULL, &unit));
        FAILS_SAYING(hp_fsdp_commit(fsdp), HP_ERR_ARGUMENT,
                     c ? "embedding with 0 and 0 and head with -1 and 0"
                       : "embedding with 0 and 1 and head with 0 and 0");
        hp_fsdp_destroy(fsdp);
        hp_mesh_destroy(mesh);
    }
}

static void tie_by_name(hp_world *world, void *argument) {
    (void)argument;
    static const float values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    hp_mesh *mesh;
    hp_unit *unit;
    hp_fsdp *fsdp = make_fsdp(world, &mesh);
    hp_param names[3] = {vector("embedding", 8), vector("head", 8), vector("third", 7)};
    names[0].data = values;
    names[1].tied_to = "embedding";
    names[2].tied_to = "head";
    FAILS_SAYING(hp_unit_create(fsdp, "tied", names, 3, NULL, &unit), HP_ERR_ARGUMENT,
                 "embedding and third");
    names[2].shape[0] = 8;
    names[1].tied_to = "third";
    FAILS_SAYING(hp_unit_create(fsdp, "tied", names, 3, NULL, &unit), HP_ERR_ARGUMENT,
                 "expected head to be tied to an earlier parameter of the unit, given third");
    names[1].tied_to = "embedding";
    names[2].shard_dim = HP_REPLICATED;
    FAILS_SAYING(hp_unit_create(fsdp, "tied", names, 3, NULL, &unit), HP_ERR_ARGUMENT,
                 "given embedding with 0 and 0 and third with -1 and 0");
    names[2].shard_dim = 0;
    names[1].is_frozen = 1;
    FAILS_SAYING(hp_unit_create(fsdp, "tied", names, 3, NULL, &unit), HP_ERR_ARGUMENT,
                 "given embedding with 0 and 0 and head with 0 and 1");
    names[1].is_frozen = 0;
    RANK_OK(hp_unit_create(fsdp, "tied", names, 3, NULL, &unit));
    RANK_OK(hp_fsdp_commit(fsdp));
    RANK_OK(hp_fsdp_begin(fsdp, HP_EVALUATE));
    RANK_OK(hp_forward_begin(unit));
    for (int j = 1; j < 3; j++)
        RANK_CHECK(hp_param_data(unit, 0) == hp_param_data(unit, j));
    RANK_CHECK(memcmp(hp_param_data(unit, 2), values, sizeof values) == 0);
    RANK_OK(hp_forward_end(unit));
    RANK_OK(hp_fsdp_end(fsdp));
    hp_fsdp_destroy(fsdp);
    hp_mesh_destroy(mesh);
}

/* ---- disagreement ------------------------------------------------------------------------ */

static void ranks_disagree(hp_world *world, void *argument) {
    (void)argument;
    hp_mesh *mesh;
    hp_unit *unit;
    hp_fsdp *fsdp = make_fsdp(world, &mesh);
    hp_param p = vector("w", hp_world_rank(world) == 2 ? 9 : 8);
    RANK_OK(hp_unit_create(fsdp, "layer", &p, 1, NULL, &unit));
    FAILS_SAYING(hp_fsdp_commit(fsdp), HP_ERR_MISMATCH, "ranks 0 and 2");
    RANK_CHECK(strstr(hp_last_error(), "layer") != NULL);
    FAILS_SAYING(hp_fsdp_begin(fsdp, HP_SYNC), HP_ERR_FAILED, "sound");
    hp_error before, after; /* destroying does not overwrite what there is to print */
    hp_last_error_get(&before);
    hp_fsdp_destroy(fsdp);
    hp_last_error_get(&after);
    RANK_CHECK(strcmp(before.message, after.message) == 0);
    hp_mesh_destroy(mesh);
}

/* Equal layers in another order on one rank: sizes agree, so only the tags can tell. */
static void other_order_on_one_rank(hp_world *world, void *argument) {
    (void)argument;
    hp_mesh *mesh;
    hp_unit *unit[4];
    static const char *const names[] = {"u0", "u1", "u2", "u3"};
    hp_fsdp *fsdp = make_fsdp(world, &mesh);
    for (int i = 0; i < 4; i++) {
        hp_param p = vector(names[i], 64);
        RANK_OK(hp_unit_create(fsdp, names[i], &p, 1, NULL, &unit[i]));
    }
    RANK_OK(hp_fsdp_commit(fsdp));
    const int order[] = {0, 2, 1, 3};
    hp_status status = hp_fsdp_begin(fsdp, HP_SYNC);
    for (int i = 0; i < 4 && !status; i++) {
        hp_unit *u = unit[hp_world_rank(world) == 1 ? order[i] : i];
        status = hp_forward_begin(u);
        status = status ? status : hp_forward_end(u);
    }
    RANK_CHECK(status == HP_ERR_MISMATCH || status == HP_ERR_PEER);
    if (status == HP_ERR_MISMATCH)
        RANK_CHECK(strstr(hp_last_error(), "the tag") != NULL);
    hp_fsdp_destroy(fsdp);
    hp_mesh_destroy(mesh);
}

/* ---- one pass ---------------------------------------------------------------------------- */

static hp_status run_pass(hp_fsdp *fsdp, hp_unit *unit, hp_pass pass) {
    hp_status status = hp_fsdp_begin(fsdp, pass);
    status = status ? status : hp_forward_begin(unit);
    status = status ? status : hp_forward_end(unit);
    status = status ? status : hp_backward_begin(unit);
    status = status ? status : hp_backward_end(unit);
    return status ? status : hp_fsdp_end(fsdp);
}

/* ---- a rank without memory --------------------------------------------------------------- */

/* The nth allocation of rank 1 fails; 0: none does. */
static hp_status commit_without(hp_world *world, uint64_t nth, int64_t *out_total) {
    hp_mesh *mesh;
    hp_unit *unit;
    hp_fsdp *fsdp = make_fsdp(world, &mesh);
    hp_param p = vector("w", 8);
    RANK_OK(hp_unit_create(fsdp, "layer", &p, 1, NULL, &unit));
    hpi_alloc_fail_after(hp_world_rank(world) == 1 ? nth : 0);
    const uint64_t before = hpi_alloc_count();
    const hp_status status = hp_fsdp_commit(fsdp);
    *out_total = (int64_t)(hpi_alloc_count() - before);
    hpi_alloc_fail_after(0);
    hp_fsdp_destroy(fsdp);
    hp_mesh_destroy(mesh);
    return status;
}

/* Whatever a rank takes alone, before its symmetric memory or after it: nobody waits for it. */
static void no_memory_for_commit(hp_world *world, void *argument) {
    (void)argument;
    enum { N_BEFORE = 8, N_AFTER = 10 };
    int64_t total, taken;
    RANK_OK(commit_without(world, 0, &taken)); /* takes more, once and for all */
    for (int64_t n = 1; n <= N_BEFORE + N_AFTER; n++) {
        /* what the table of symmetric memory has freed it uses again: the total may become less */
        RANK_OK(commit_without(world, 0, &total));
        RANK_CHECK(total > N_BEFORE + N_AFTER);
        const int64_t nth = n <= N_BEFORE ? n : total - N_BEFORE - N_AFTER + n;
        RANK_FAILS(commit_without(world, (uint64_t)nth, &taken), HP_ERR_MEMORY);
        RANK_CHECK(strstr(hp_last_error(), "rank 1: expected room for") != NULL);
    }
    RANK_OK(commit_without(world, 0, &taken));
}

static void test_no_memory_for_commit(void **state) {
    (void)state;
    ranks_run(2, RANKS_PROCESSES, no_memory_for_commit, NULL);
}

/* ---- no room for sums of gradients ------------------------------------------------------- */

/* A limit on files stands for one on memory, which a test cannot set: one check looks at both. */
static void no_room_for_sums(hp_world *world, void *argument) {
    (void)argument;
    hp_mesh *mesh;
    hp_unit *unit;
    struct rlimit given, least;
    hp_fsdp *fsdp = make_fsdp(world, &mesh);
    hp_param p = vector("w", 4096);
    RANK_OK(hp_unit_create(fsdp, "layer", &p, 1, NULL, &unit));
    RANK_OK(hp_fsdp_commit(fsdp));
    RANK_OK(hp_fsdp_begin(fsdp, HP_NO_SYNC));
    RANK_OK(hp_forward_begin(unit));
    RANK_OK(hp_forward_end(unit));
    RANK_CHECK(getrlimit(RLIMIT_FSIZE, &given) == 0);
    least = (struct rlimit){4096 * sizeof(float) - 1, given.rlim_max};
    RANK_CHECK(setrlimit(RLIMIT_FSIZE, &least) == 0);
    FAILS_SAYING(hp_backward_begin(unit), HP_ERR_LIMIT, "sums of full gradients of unit layer");
    RANK_CHECK(setrlimit(RLIMIT_FSIZE, &given) == 0);
    RANK_OK(hp_backward_begin(unit)); /* nothing had changed */
    RANK_OK(hp_backward_end(unit));
    RANK_OK(hp_fsdp_end(fsdp));
    RANK_OK(run_pass(fsdp, unit, HP_SYNC));
    hp_fsdp_destroy(fsdp);
    hp_mesh_destroy(mesh);
}

static void test_no_room_for_sums(void **state) {
    (void)state;
    ranks_run(2, RANKS_PROCESSES, no_room_for_sums, NULL);
}

/* ---- fewer microbatches on one rank (A12) ------------------------------------------------ */

struct short_job {
    int sizes[2];
    int first_short; /* ranks from here on have a microbatch less */
    const char *said;
};

/* Told at once by whoever meets such a rank, and by the others when those have left. */
static void fewer_microbatches(hp_world *world, void *argument) {
    const struct short_job *job = argument;
    hp_mesh *mesh;
    hp_fsdp *fsdp;
    hp_unit *unit;
    hp_param p = vector("w", 16);
    const int n_passes = hp_world_rank(world) >= job->first_short ? 1 : 2;
    RANK_OK(hp_mesh_create(world, job->sizes, 2, &mesh));
    RANK_OK(hp_fsdp_create(mesh, NULL, &fsdp));
    RANK_OK(hp_unit_create(fsdp, "layer", &p, 1, NULL, &unit));
    RANK_OK(hp_fsdp_commit(fsdp));
    hp_status status = HP_OK;
    for (int step = 0; step < 2 && !status; step++) /* all have as many in the first step */
        for (int k = step ? 2 - n_passes : 0; k < 3 && !status; k++)
            status = run_pass(fsdp, unit, k < 2 ? HP_NO_SYNC : HP_SYNC);
    hp_error error;
    hp_last_error_get(&error);
    RANK_CHECK(status == HP_ERR_MISMATCH ||
               (job->sizes[0] > 1 && job->sizes[1] > 1 && status == HP_ERR_PEER));
    if (status == HP_ERR_MISMATCH) {
        RANK_CHECK(error.world_rank >= 0 && error.world_rank != hp_world_rank(world));
        RANK_CHECK(strstr(error.message, job->said) != NULL);
        RANK_CHECK(strstr(error.message, "the pass differs") != NULL);
    }
    hp_fsdp_destroy(fsdp);
    hp_mesh_destroy(mesh);
}

static void test_fewer_microbatches(void **state) {
    (void)state;
    struct short_job jobs[] = {
        {{2, 1}, 1, "in a HP_SYNC pass after 1 of HP_NO_SYNC"},
        {{1, 2}, 1, "in a HP_NO_SYNC pass after 1 of HP_NO_SYNC"},
        {{2, 2}, 2, "in a HP_SYNC pass after 1 of HP_NO_SYNC"},
        {{2, 2}, 3, "in a HP_NO_SYNC pass after 1 of HP_NO_SYNC"},
    };
    for (int j = 0; j < 4; j++)
        ranks_run(jobs[j].sizes[0] * jobs[j].sizes[1], RANKS_THREADS, fewer_microbatches, &jobs[j]);
}

/* Options that change the schedule must agree too. */
static void other_options_on_one_rank(hp_world *world, void *argument) {
    (void)argument;
    const bool is_odd = hp_world_rank(world) == 1;
    for (int c = 0; c < 2; c++) {
        hp_mesh *mesh;
        hp_unit *unit[2], *list[1];
        hp_fsdp *fsdp = make_fsdp(world, &mesh);
        hp_unit_config config = HP_UNIT_CONFIG_INIT;
        hp_param p = vector("w", 64), q = vector("v", 64);
        RANK_OK(hp_unit_create(fsdp, "first", &p, 1, NULL, &unit[0]));
        list[0] = unit[0];
        config.reshard_after_forward = c == 0 && is_odd ? 0 : -1;
        config.prefetch = c == 1 && is_odd ? list : NULL;
        config.n_prefetch = 1;
        RANK_OK(hp_unit_create(fsdp, "second", &q, 1, &config, &unit[1]));
        FAILS_SAYING(hp_fsdp_commit(fsdp), HP_ERR_MISMATCH, "second");
        hp_fsdp_destroy(fsdp);
        hp_mesh_destroy(mesh);
    }
}

/* ---- order of calls ---------------------------------------------------------------------- */

static void calls_out_of_order(hp_world *world, void *argument) {
    (void)argument;
    hp_mesh *mesh;
    hp_unit *unit, *other;
    hp_fsdp *fsdp = make_fsdp(world, &mesh);
    hp_param p = vector("w", 8), q = vector("v", 8);
    FAILS_SAYING(hp_fsdp_begin(fsdp, HP_SYNC), HP_ERR_STATE, "hp_fsdp_commit first");
    RANK_OK(hp_unit_create(fsdp, "layer", &p, 1, NULL, &unit));
    FAILS_SAYING(hp_unit_create(fsdp, "again", &p, 1, NULL, &other), HP_ERR_ARGUMENT,
                 "which unit layer has");
    RANK_OK(hp_unit_create(fsdp, "next", &q, 1, NULL, &other));
    RANK_OK(hp_fsdp_commit(fsdp));
    FAILS_SAYING(hp_fsdp_end(fsdp), HP_ERR_STATE, "hp_fsdp_begin");
    FAILS_SAYING(hp_forward_begin(unit), HP_ERR_STATE, "layer");
    RANK_CHECK(hp_param_data(unit, 0) == NULL);
    RANK_OK(hp_fsdp_begin(fsdp, HP_SYNC));
    FAILS_SAYING(hp_fsdp_begin(fsdp, HP_SYNC), HP_ERR_STATE, "hp_fsdp_end");
    FAILS_SAYING(hp_forward_end(unit), HP_ERR_STATE, "layer to be in forward, it is idle");
    FAILS_SAYING(hp_backward_begin(unit), HP_ERR_STATE, "forward of unit layer");
    RANK_OK(hp_forward_begin(unit));
    FAILS_SAYING(hp_forward_begin(unit), HP_ERR_STATE, "it is in forward");
    RANK_CHECK(hp_param_data(unit, 1) == NULL);
    RANK_CHECK(hp_param_grad(unit, 0) == NULL);
    FAILS_SAYING(hp_fsdp_end(fsdp), HP_ERR_STATE, "end of unit layer");
    RANK_OK(hp_forward_end(unit));
    RANK_OK(hp_backward_begin(unit));
    RANK_OK(hp_backward_end(unit));
    FAILS_SAYING(hp_backward_begin(unit), HP_ERR_STATE, "given 1 and one backward more");
    RANK_OK(hp_forward_begin(unit));
    RANK_OK(hp_forward_end(unit));
    FAILS_SAYING(hp_backward_begin(unit), HP_ERR_STATE, "all forwards of unit layer before");
    RANK_OK(hp_fsdp_end(fsdp)); /* `next` never ran: its gradient is zero */
    hp_shard shard;
    RANK_OK(hp_param_shard(other, 0, &shard));
    for (uint64_t k = 0; k < shard.n_elements; k++)
        RANK_CHECK(((const float *)shard.grad)[k] == 0);
    RANK_OK(hp_fsdp_begin(fsdp, HP_EVALUATE));
    RANK_OK(hp_forward_begin(unit));
    RANK_OK(hp_forward_end(unit));
    FAILS_SAYING(hp_backward_begin(unit), HP_ERR_STATE, "HP_SYNC");
    RANK_OK(hp_fsdp_end(fsdp));
    hp_fsdp_destroy(fsdp);
    hp_mesh_destroy(mesh);
}

/* One unit inside another, where there is room for one. */
static void too_many_in_use(hp_world *world, void *argument) {
    (void)argument;
    hp_mesh *mesh;
    hp_fsdp *fsdp;
    hp_unit *outer, *inner;
    const int size = hp_world_size(world);
    hp_param p = vector("w", 8), q = vector("v", 8);
    hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    config.prefetch = 0;
    RANK_OK(hp_mesh_create(world, &size, 1, &mesh));
    RANK_OK(hp_fsdp_create(mesh, &config, &fsdp));
    RANK_OK(hp_unit_create(fsdp, "outer", &p, 1, NULL, &outer));
    RANK_OK(hp_unit_create(fsdp, "inner", &q, 1, NULL, &inner));
    RANK_OK(hp_fsdp_commit(fsdp));
    RANK_OK(hp_fsdp_begin(fsdp, HP_SYNC));
    RANK_OK(hp_forward_begin(outer));
    FAILS_SAYING(hp_forward_begin(inner), HP_ERR_STATE,
                 "hp_forward_begin: unit inner: expected at most 1 units in use at once");
    RANK_OK(hp_forward_end(outer));
    RANK_OK(hp_fsdp_end(fsdp));
    hp_fsdp_destroy(fsdp);
    hp_mesh_destroy(mesh);
}

static void bad_declarations(hp_world *world, void *argument) {
    (void)argument;
    hp_mesh *mesh;
    hp_unit *unit;
    hp_fsdp *fsdp = make_fsdp(world, &mesh);
    hp_param p = vector(NULL, 8);
    FAILS_SAYING(hp_unit_create(fsdp, "u", &p, 1, NULL, &unit), HP_ERR_ARGUMENT, "name");
    p = vector("w", -1);
    FAILS_SAYING(hp_unit_create(fsdp, "u", &p, 1, NULL, &unit), HP_ERR_ARGUMENT,
                 "given -1 in dimension 0");
    p = vector("w", 8);
    p.shard_dim = 1;
    FAILS_SAYING(hp_unit_create(fsdp, "u", &p, 1, NULL, &unit), HP_ERR_ARGUMENT,
                 "shard_dim in [0, 1)");
    p = vector("w", 8);
    p.dtype = HP_INT64;
    FAILS_SAYING(hp_unit_create(fsdp, "u", &p, 1, NULL, &unit), HP_ERR_UNSUPPORTED, "given int64");
    p.size = 8;
    FAILS_SAYING(hp_unit_create(fsdp, "u", &p, 1, NULL, &unit), HP_ERR_VERSION, "HP_PARAM_INIT");
    FAILS_SAYING(hp_fsdp_commit(fsdp), HP_ERR_STATE, "at least one unit");
    hp_fsdp_destroy(fsdp);
    hp_mesh_destroy(mesh);
    fsdp = make_fsdp(world, &mesh);
    hp_param huge[2] = {vector("huge", INT64_C(1) << 58), vector("small", 8)};
    RANK_OK(hp_unit_create(fsdp, "u", huge, 2, NULL, &unit));
    RANK_CHECK(hp_unit_n_params(unit) == 2 && strcmp(hp_unit_name(unit), "u") == 0);
    RANK_CHECK(hp_fsdp_unit(fsdp, 0) == unit && !hp_fsdp_unit(fsdp, 1) && !hp_fsdp_unit(fsdp, -1));
    FAILS_SAYING(hp_fsdp_commit(fsdp), HP_ERR_ARGUMENT, "huge of unit u");
    hp_fsdp_destroy(fsdp);
    hp_fsdp_config config = HP_FSDP_CONFIG_INIT;
    config.prefetch = 17;
    FAILS_SAYING(hp_fsdp_create(mesh, &config, &fsdp), HP_ERR_ARGUMENT, "prefetch");
    hp_mesh_destroy(mesh);
}

static void test_mode_names(void **state) {
    (void)state;
    static const char *const names[] = {"per-param", "fused", "fused-zero-copy", "mapped", "auto"};
    hp_mode mode;
    for (int i = 0; i < 5; i++) {
        assert_int_equal(hp_mode_parse(names[i], &mode), HP_OK);
        assert_int_equal(mode, (hp_mode)i);
        assert_string_equal(hp_mode_name(mode), names[i]);
    }
    assert_string_equal(hp_mode_name((hp_mode)5), "?");
    assert_int_equal(hp_mode_parse("per-parm", &mode), HP_ERR_ARGUMENT);
    assert_non_null(
        strstr(hp_last_error(), "fused-zero-copy, mapped or auto), given \"per-parm\""));
    assert_int_equal(hp_mode_parse(NULL, &mode), HP_ERR_ARGUMENT);
    assert_int_equal(hp_mode_parse("auto", NULL), HP_ERR_ARGUMENT);
}

static void test_schedule_names(void **state) {
    (void)state;
    static const char *const names[] = {"full", "serial", "prefetch"};
    hp_schedule schedule;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(hp_schedule_parse(names[i], &schedule), HP_OK);
        assert_int_equal(schedule, (hp_schedule)i);
        assert_string_equal(hp_schedule_name(schedule), names[i]);
    }
    assert_int_equal(hp_schedule_parse("overlap", &schedule), HP_OK);
    assert_int_equal(schedule, HP_OVERLAP);
    assert_string_equal(hp_schedule_name((hp_schedule)3), "?");
    assert_int_equal(hp_schedule_parse("ful", &schedule), HP_ERR_ARGUMENT);
    assert_non_null(strstr(hp_last_error(), "serial, prefetch or full), given \"ful\""));
    assert_int_equal(hp_schedule_parse("full", NULL), HP_ERR_ARGUMENT);
}

/* ---- a gradient on some ranks only (F15) ------------------------------------------------- */

static void gradient_on_one_rank(hp_world *world, void *argument) {
    (void)argument;
    hp_mesh *mesh;
    hp_unit *unit;
    hp_fsdp *fsdp = make_fsdp(world, &mesh);
    hp_param p = vector("w", 7);
    hp_shard shard;
    RANK_OK(hp_unit_create(fsdp, "layer", &p, 1, NULL, &unit));
    RANK_OK(hp_fsdp_commit(fsdp));
    for (int step = 0; step < 3; step++) {
        RANK_OK(hp_fsdp_begin(fsdp, HP_SYNC));
        RANK_OK(hp_forward_begin(unit));
        RANK_OK(hp_forward_end(unit));
        RANK_OK(hp_backward_begin(unit));
        if (hp_world_rank(world) == 1) {
            float *grad = hp_param_grad(unit, 0);
            for (int k = 0; k < 7; k++)
                grad[k] = 4.0F;
        }
        RANK_OK(hp_backward_end(unit));
        RANK_OK(hp_fsdp_end(fsdp));
        RANK_OK(hp_param_shard(unit, 0, &shard));
        for (uint64_t k = 0; k < shard.n_elements; k++)
            RANK_CHECK(((const float *)shard.grad)[k] == 4.0F / (float)hp_world_size(world));
    }
    hp_fsdp_destroy(fsdp);
    hp_mesh_destroy(mesh);
}

/* ---- factor and sum (A6, F2) ------------------------------------------------------------- */

static void scaling(hp_world *world, void *argument) {
    const int *sizes = argument;
    static const struct {
        hp_reduce reduce;
        double factor, expected;
    } cases[] = {{HP_AVG, 1.0, 2.5}, {HP_SUM, 1.0, 10.0}, {HP_AVG, 4.0, 10.0}, {HP_SUM, 0.5, 5.0}};
    for (int c = 0; c < 4; c++) {
        hp_mesh *mesh;
        hp_fsdp *fsdp;
        hp_unit *unit;
        hp_shard shard;
        hp_param p = vector("w", 5);
        hp_unit_config config = HP_UNIT_CONFIG_INIT;
        config.reduce = cases[c].reduce;
        config.factor = cases[c].factor;
        RANK_OK(hp_mesh_create(world, sizes, 2, &mesh));
        RANK_OK(hp_fsdp_create(mesh, NULL, &fsdp));
        RANK_OK(hp_unit_create(fsdp, "layer", &p, 1, &config, &unit));
        RANK_OK(hp_fsdp_commit(fsdp));
        RANK_OK(hp_fsdp_begin(fsdp, HP_SYNC));
        RANK_OK(hp_forward_begin(unit));
        RANK_OK(hp_forward_end(unit));
        RANK_OK(hp_backward_begin(unit));
        float *grad = hp_param_grad(unit, 0);
        for (int k = 0; k < 5; k++)
            grad[k] = (float)(hp_world_rank(world) + 1); /* 1 + 2 + 3 + 4 */
        RANK_OK(hp_backward_end(unit));
        RANK_OK(hp_fsdp_end(fsdp));
        RANK_OK(hp_param_shard(unit, 0, &shard));
        for (uint64_t k = 0; k < shard.n_elements; k++)
            RANK_CHECK((double)((const float *)shard.grad)[k] == cases[c].expected);
        hp_fsdp_destroy(fsdp);
        hp_mesh_destroy(mesh);
    }
}

static void test_tie_across_units(void **state) {
    (void)state;
    ranks_run(3, RANKS_THREADS, tie_across_units, NULL);
}
static void test_tie_by_name(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, tie_by_name, NULL);
}

static void test_tie_inside_a_unit(void **state) {
    (void)state;
    ranks_run(3, RANKS_THREADS, tie_inside_a_unit, NULL);
}
static void test_tie_that_differs(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, tie_that_differs, NULL);
}
static void test_too_many_in_use(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, too_many_in_use, NULL);
}
static void test_ranks_disagree(void **state) {
    (void)state;
    ranks_run(4, RANKS_THREADS, ranks_disagree, NULL);
}
static void test_other_order_on_one_rank(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, other_order_on_one_rank, NULL);
}
static void test_other_options_on_one_rank(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, other_options_on_one_rank, NULL);
}
static void test_calls_out_of_order(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, calls_out_of_order, NULL);
}
static void test_bad_declarations(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, bad_declarations, NULL);
}
static void test_gradient_on_one_rank(void **state) {
    (void)state;
    ranks_run(4, RANKS_THREADS, gradient_on_one_rank, NULL);
}
static void test_scaling(void **state) {
    (void)state;
    int meshes[][2] = {{1, 4}, {2, 2}, {4, 1}};
    for (int m = 0; m < 3; m++)
        ranks_run(4, RANKS_THREADS, scaling, meshes[m]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mode_names),
        cmocka_unit_test(test_schedule_names),
        cmocka_unit_test(test_tie_across_units),
        cmocka_unit_test(test_tie_inside_a_unit),
        cmocka_unit_test(test_tie_by_name),
        cmocka_unit_test(test_tie_that_differs),
        cmocka_unit_test(test_ranks_disagree),
        cmocka_unit_test(test_other_order_on_one_rank),
        cmocka_unit_test(test_other_options_on_one_rank),
        cmocka_unit_test(test_no_memory_for_commit),
        cmocka_unit_test(test_no_room_for_sums),
        cmocka_unit_test(test_fewer_microbatches),
        cmocka_unit_test(test_calls_out_of_order),
        cmocka_unit_test(test_too_many_in_use),
        cmocka_unit_test(test_bad_declarations),
        cmocka_unit_test(test_gradient_on_one_rank),
        cmocka_unit_test(test_scaling),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

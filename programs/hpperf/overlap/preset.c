/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/overlap/preset.c - the cases of the seed's tables, with its figures as times.
 *
 * The seed measured Qwen3-8B-lite, 32 layers, mesh (2,4), before and after a change of its own. Its
 * "before" is read as the serial schedule, its "after" as full. What it tells and what is assumed
 * here stands beside each number and in docs/virtual-time.md. On real ranks the same cases run with
 * all times divided by `real_faster`. Source: seed 000_6d6cc6bbd622ac69, sections 5.2 to 5.8.
 */
#include "../fail.h"
#include "overlap.h"

#include <string.h>

enum { N_LAYERS = 32, N_GATHERS = 2 * N_LAYERS - 1, REAL_FASTER = 4 };

/* ---- the seed's figures, in ms ----------------------------------------------------------------
 */

static const double forward_ms = 943, backward_ms = 2067;       /* 5.3, the profiler, before */
static const double gathers_ms = 1421, gathers_after_ms = 1847; /* of a step, before and after */
/* 5.3, whole steps before: as it was, without the copy before each gather, without prefetch. */
static const double step_ms = 1556.56, step_zero_copy_ms = 1459.88, step_no_prefetch_ms = 1738.78;

/* A gather in each forward and each backward but the first, whose unit has stayed. What is left of
 * the forward is compute. Assumed: backward computes twice as long, and what is left of it are
 * reductions, three quarters of that the reduce-scatters over 4 shards, one the all-reduces over 2
 * replicas of the quarter that is left, since that is how the bytes on their wires are. */
static overlap_times profiled(void) {
    overlap_times t = {.gather_ms = gathers_ms / N_GATHERS};
    t.forward_ms = forward_ms / N_LAYERS - t.gather_ms;
    t.backward_ms = 2 * t.forward_ms;
    const double reductions_ms =
        (backward_ms - (N_LAYERS - 1) * t.gather_ms) / N_LAYERS - t.backward_ms;
    t.reduce_ms = 0.75 * reductions_ms;
    t.replicate_ms = 0.25 * reductions_ms;
    return t;
}

static overlap_times times_scaled(overlap_times t, double by) {
    return (overlap_times){t.forward_ms * by, t.backward_ms * by,  t.gather_ms * by,
                           t.reduce_ms * by,  t.replicate_ms * by, t.copy_ms * by};
}

/* What zero-copy saved of a step, by the gathers. */
static double copy_ms(void) {
    return (step_ms - step_zero_copy_ms) / N_GATHERS;
}

/* The profiled proportions in a step that was measured whole, without the profiler. */
static overlap_times configured(double whole_ms, bool has_copy) {
    const double copies_ms = has_copy ? copy_ms() * N_GATHERS : 0;
    overlap_times t = times_scaled(profiled(), (whole_ms - copies_ms) / (forward_ms + backward_ms));
    t.copy_ms = has_copy ? copy_ms() : 0;
    return t;
}

/* ---- the rows ---------------------------------------------------------------------------------
 */

typedef struct row {
    const char *name, *about;
    hp_mode mode;
    overlap_mesh mesh;
    int n_units, prefetch;
    overlap_times times;
    double real_faster;
} row;

enum { MOST_ROWS = 20 };

static row make_row(const char *name, const char *about, hp_mode mode, overlap_times times) {
    return (row){name, about, mode, {2, 4}, N_LAYERS, 1, times, REAL_FASTER};
}

/* 5.2 to 5.6. */
static int add_scenarios(row *rows) {
    const overlap_times t = profiled();
    overlap_times copied = t, tiny = times_scaled(t, 0.05), bound = t;
    int n = 0;
    copied.copy_ms = copy_ms();
    tiny.copy_ms = copy_ms(); /* more than is saved */
    bound.forward_ms /= 4;    /* a short sequence */
    bound.backward_ms /= 4;
    rows[n++] =
        make_row("scenario-1", "5.2: no fusion, reductions behind backward", HP_PER_PARAM, t);
    rows[n++] = make_row("scenario-2", "5.3: fusion, with copies before gathers", HP_FUSED, copied);
    rows[n++] = make_row("scenario-3", "5.4: values, not speed: means over both dimensions",
                         HP_FUSED_ZERO_COPY, t);
    rows[n] =
        make_row("scenario-4", "5.5: memory: more prefetch with what was freed", HP_FUSED, copied);
    rows[n++].prefetch = 4;
    rows[n] = make_row("scenario-5-1d", "5.6: one dimension, no replicas", HP_PER_PARAM, t);
    rows[n++].mesh = (overlap_mesh){1, 8};
    rows[n] = make_row("scenario-5-one-unit", "5.6: the whole model in one unit", HP_PER_PARAM,
                       times_scaled(t, N_LAYERS));
    rows[n++].n_units = 1;
    rows[n] = make_row("scenario-5-tiny", "5.6: a small network, copies longer than gathers",
                       HP_FUSED, tiny);
    rows[n++].real_faster = 1; /* it is short enough */
    rows[n++] = make_row("scenario-5-bound", "5.6: fusion, forward bound by communication",
                         HP_FUSED, bound);
    return n;
}

/* 5.3, the table of whole steps. */
static int add_configurations(row *rows) {
    int n = 0;
    rows[n++] = make_row("configuration-1", "prefetch 1, no zero-copy: 1556.56 to 1624.80 there",
                         HP_FUSED, configured(step_ms, true));
    rows[n++] = make_row("configuration-2", "prefetch 1, zero-copy: 1459.88 to 1627.37 there",
                         HP_FUSED_ZERO_COPY, configured(step_zero_copy_ms, false));
    rows[n] = make_row("configuration-3", "no prefetch, no zero-copy: 1738.78 to 1795.32 there",
                       HP_FUSED, configured(step_no_prefetch_ms, true));
    rows[n++].prefetch = 0;
    return n;
}

/* 5.8. */
static int add_follow_ups(row *rows) {
    overlap_times heavy = profiled(), after = profiled();
    int n = 0;
    heavy.backward_ms *= 4; /* a large batch of short sequences */
    after.gather_ms = gathers_after_ms / N_GATHERS;
    after.copy_ms = copy_ms();
    rows[n++] = make_row("follow-up-1", "no fusion, two dimensions, prefetch", HP_PER_PARAM,
                         configured(step_zero_copy_ms, false));
    rows[n++] = make_row("follow-up-2", "fusion with zero-copy", HP_FUSED_ZERO_COPY, profiled());
    rows[n++] = make_row("follow-up-3", "backward longer than all else", HP_PER_PARAM, heavy);
    rows[n++] =
        make_row("follow-up-4", "the gathers of after: pack, collective and wait", HP_FUSED, after);
    return n;
}

/* ---- measuring --------------------------------------------------------------------------------
 */

static overlap_options options_of(const overlap_options *o, const row *r, bool is_virtual) {
    overlap_options own = *o;
    own.n_modes = own.n_meshes = 1;
    own.modes[0] = r->mode;
    own.meshes[0] = r->mesh;
    own.n_units = r->n_units;
    own.prefetch = r->prefetch;
    own.is_virtual = is_virtual;
    own.times = is_virtual ? r->times : times_scaled(r->times, 1.0 / r->real_faster);
    return own;
}

static hp_status measure_row(hp_world *world, const overlap_options *o, const row *r,
                             uint64_t *wrong) {
    overlap_case cases[OVERLAP_MOST];
    overlap_result results[OVERLAP_MOST] = {0};
    const int n = overlap_n_cases(o);
    char about[160];
    for (int i = 0; i < n; i++)
        cases[i] = overlap_case_at(o, i);
    snprintf(about, sizeof about, "%s, %s", r->name, r->about);
    if (hp_world_rank(world) == 0)
        overlap_print_head(o, about);
    TRY(o->is_virtual ? agree(world, overlap_virtual(o, cases, n, results))
                      : overlap_run(world, o, cases, n, results));
    for (int i = 0; i < n; i++) {
        *wrong += results[i].is_wrong;
        if (hp_world_rank(world) == 0)
            overlap_print_row(o, r->name, &cases[i], &results[i]);
    }
    return HP_OK;
}

hp_status overlap_preset(hp_world *world, const overlap_options *o, uint64_t *out_wrong) {
    row rows[MOST_ROWS];
    const int n_ranks = hp_world_size(world);
    if (strcmp(o->preset, "seed") != 0)
        return fail(HP_ERR_ARGUMENT, "expected --preset seed, given \"%s\"", o->preset);
    int n = add_scenarios(rows);
    n += add_configurations(rows + n);
    n += add_follow_ups(rows + n);
    *out_wrong = 0;
    for (int is_virtual = 1; is_virtual >= 0; is_virtual--) {
        const bool is_left_out = !is_virtual && (o->is_virtual || n_ranks != 8);
        if (is_left_out && !o->is_virtual && !o->as_json && hp_world_rank(world) == 0)
            printf("# on real ranks: hprun -n 8 (here are %d)\n", n_ranks);
        for (int i = 0; i < n && !is_left_out; i++) {
            const overlap_options own = options_of(o, &rows[i], is_virtual);
            TRY(measure_row(world, &own, &rows[i], out_wrong));
        }
    }
    return HP_OK;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * hpperf/overlap/bound.c - the least that a step can take, and the delays that are put into it.
 *
 * A phase lasts as long as its busiest stream, and what cannot lie beside it: before the gathers of
 * a forward nothing is computed, after the last gradient everything is computed. The bound is that
 * of any schedule, never more than "max of the streams + first gather + last reduction", and equal
 * to it where compute is the longest.
 */
#include "overlap.h"

static double max(double a, double b) {
    return a > b ? a : b;
}

/* The first gather, then all computes; or all gathers, then the last compute. */
static double forward_bound(const overlap_needs *needs) {
    if (!needs->prefetch)
        return needs->forward_gathers_ms + needs->forward_ms;
    return max(needs->first_gather_ms + needs->forward_ms,
               needs->forward_gathers_ms + needs->forward_ms / needs->n_units);
}

/* Each stream in turn as the one that never rests: what must come before its first operation and
 * after its last one. */
static double backward_bound(const overlap_needs *needs) {
    const double one = needs->backward_ms / needs->n_units;
    const double tail = needs->last_reduce_ms + needs->last_replicate_ms;
    double bound = needs->backward_ms + tail;
    if (!needs->prefetch)
        bound += needs->backward_gathers_ms;
    bound = max(bound, needs->backward_gathers_ms + one + tail);
    bound = max(bound, one + needs->reduces_ms + needs->last_replicate_ms);
    return max(bound, one + needs->first_reduce_ms + needs->replicates_ms);
}

overlap_bound overlap_bound_of(const overlap_needs *needs) {
    const double forward_ms = forward_bound(needs), backward_ms = backward_bound(needs);
    return (overlap_bound){forward_ms, backward_ms, forward_ms + backward_ms};
}

/* splitmix64. */
static uint64_t mix(uint64_t z) {
    z += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* ---- collectives --------------------------------------------------------------------------- */

double overlap_stream_ms(const overlap_times *times, unsigned stream) {
    return stream == HP_STREAM_UNSHARD     ? times->gather_ms
           : stream == HP_STREAM_REDUCE    ? times->reduce_ms
           : stream == HP_STREAM_REPLICATE ? times->replicate_ms
                                           : 0;
}

const char *overlap_collective(hp_mode mode, unsigned stream) {
    return stream == HP_STREAM_UNSHARD  ? mode == HP_MAPPED ? "barrier" : "all_gather"
           : stream == HP_STREAM_REDUCE ? "reduce_scatter"
                                        : "all_reduce";
}

int overlap_n_collectives(const overlap_options *o, hp_mode mode, unsigned stream) {
    return mode == HP_PER_PARAM && stream != HP_STREAM_REPLICATE ? o->n_params : 1;
}

/* It depends on nothing that a schedule or a mode changes, so all cases bear the same. */
uint64_t overlap_delay_us(const overlap_options *o, unsigned stream, int rank, int unit,
                          int n_collectives) {
    double ms = overlap_stream_ms(&o->times, stream);
    if (o->injects) {
        const uint64_t z = mix(mix(mix(o->inject_seed) ^ (uint64_t)rank) ^
                               ((uint64_t)unit * HP_N_STREAMS + stream));
        ms += ms * (double)(z >> 11) * 0x1.0p-53;
    }
    return (uint64_t)(ms * 1e3 / n_collectives + 0.5);
}

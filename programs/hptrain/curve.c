/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/curve.c - series that thin themselves out, and axes with round numbers.
 */
#include "curve.h"

#include <math.h>

/* The points that stay are those that would have been taken with twice the stride. */
static void thin_out(series *s) {
    for (size_t i = 0; i < s->n; i += 2)
        s->points[i / 2] = s->points[i];
    s->n = (s->n + 1) / 2;
    s->stride *= 2;
}

void series_add(series *s, uint64_t step, double loss) {
    if (!isfinite(loss))
        return;
    if (s->stride == 0)
        s->stride = 1;
    if (s->n == SERIES_POINTS)
        thin_out(s);
    if (s->n_seen++ % s->stride == 0)
        s->points[s->n++] = (point){(double)step, loss};
}

/* The smallest of 1, 2, 5, 10 ... times a power of ten that needs at most n steps for `range`. */
static double round_tick(double range, int n) {
    const double power = pow(10, floor(log10(range / n)));
    static const double factors[] = {1, 2, 5};
    for (int i = 0; i < 3; i++)
        if (factors[i] * power * n >= range)
            return factors[i] * power;
    return 10 * power;
}

/* A flat or empty curve still gets an axis of some length. */
static axis axis_over(double least, double most, int n_ticks) {
    const double range = most > least ? most - least : 1;
    const double tick = round_tick(range, n_ticks);
    return (axis){floor(least / tick) * tick, ceil((least + range) / tick) * tick, tick};
}

/* Widen [*least, *most] to the series. */
static void widen(const series *s, int is_step, double *least, double *most) {
    for (size_t i = 0; i < s->n; i++) {
        const double value = is_step ? s->points[i].step : s->points[i].loss;
        *least = fmin(*least, value);
        *most = fmax(*most, value);
    }
}

static axis axis_of(const curve *c, int is_step, int n_ticks) {
    double least = INFINITY, most = -INFINITY;
    widen(&c->train, is_step, &least, &most);
    widen(&c->held_out, is_step, &least, &most);
    return least <= most ? axis_over(least, most, n_ticks) : axis_over(0, 1, n_ticks);
}

axis curve_steps(const curve *c, int n_ticks) {
    return axis_of(c, 1, n_ticks);
}
axis curve_losses(const curve *c, int n_ticks) {
    return axis_of(c, 0, n_ticks);
}

double axis_place(const axis *a, double value) {
    return (value - a->low) / (a->high - a->low);
}

int axis_n_ticks(const axis *a) {
    return (int)lround((a->high - a->low) / a->tick) + 1;
}

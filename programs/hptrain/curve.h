/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/curve.h - the loss over the steps, in memory that does not grow.
 *
 * A series holds at most SERIES_POINTS points. When it is full, every second one is dropped and
 * from then on half as many are taken: a long run keeps its shape.
 */
#ifndef HPTRAIN_CURVE_H
#define HPTRAIN_CURVE_H

#include <stddef.h>
#include <stdint.h>

enum { SERIES_POINTS = 1024 };

typedef struct point {
    double step, loss;
} point;

typedef struct series {
    point points[SERIES_POINTS]; /* steps rise */
    size_t n;
    uint64_t n_seen, stride; /* one point of `stride` is taken; 0 means 1 */
} series;

/* All zero: empty. */
typedef struct curve {
    series train, held_out;
} curve;

/* A loss that is not finite leaves a gap. */
void series_add(series *s, uint64_t step, double loss);

/* A range with round numbers: ticks at low, low + tick, ... up to high. */
typedef struct axis {
    double low, high, tick;
} axis;

/* The axes that hold all points of the curve, with about n ticks. */
axis curve_steps(const curve *c, int n_ticks);
axis curve_losses(const curve *c, int n_ticks);
/* Where a value lies on an axis: 0 at low, 1 at high. */
double axis_place(const axis *a, double value);
int axis_n_ticks(const axis *a);

#endif

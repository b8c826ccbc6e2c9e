/* SPDX-License-Identifier: Apache-2.0
 *
 * perf/median.h - what is printed of times that were measured again and again.
 */
#ifndef PERF_MEDIAN_H
#define PERF_MEDIAN_H

/* Of an even number the mean of the middle two. Sorts. */
double median(double *x, int n);

#endif

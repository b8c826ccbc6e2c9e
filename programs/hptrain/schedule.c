/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/schedule.c - warm-up and decay.
 */
#include "schedule.h"

#include <math.h>
#include <string.h>

double schedule_learning_rate(const options *o, uint64_t step) {
    const double at = (double)step, warmup = (double)o->warmup;
    if (at < warmup)
        return o->lr * (at + 1) / warmup;
    if (strcmp(o->lr_decay, "none") == 0)
        return o->lr;
    const double n_falling = (double)o->steps - warmup;
    const double share = n_falling > 0 ? (at - warmup) / n_falling : 1;
    return o->lr_min + (o->lr - o->lr_min) * 0.5 * (1 + cos(share * acos(-1)));
}

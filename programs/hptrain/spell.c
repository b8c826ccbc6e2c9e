/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/spell.c - the distance, by the table of all beginnings.
 *
 * cost[i][j] leads from the first i characters of a to the first j of b. Source: Wagner and
 * Fischer, JACM 1974; swaps: Damerau, CACM 1964.
 */
#include "spell.h"

#include <stdbool.h>
#include <string.h>

enum { MOST = 31 };

static int least(int a, int b) {
    return a < b ? a : b;
}

int spell_distance(const char *a, const char *b) {
    int cost[MOST + 1][MOST + 1];
    const size_t n_a = strnlen(a, MOST), n_b = strnlen(b, MOST);
    for (size_t i = 0; i <= n_a; i++)
        for (size_t j = 0; j <= n_b; j++) {
            if (i == 0 || j == 0) {
                cost[i][j] = (int)(i + j);
                continue;
            }
            const bool is_swap = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            cost[i][j] = least(cost[i - 1][j], cost[i][j - 1]) + 1;
            cost[i][j] = least(cost[i][j], cost[i - 1][j - 1] + (a[i - 1] != b[j - 1]));
            if (is_swap)
                cost[i][j] = least(cost[i][j], cost[i - 2][j - 2] + 1);
        }
    return cost[n_a][n_b];
}

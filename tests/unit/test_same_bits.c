/* SPDX-License-Identifier: Apache-2.0
 *
 * test_same_bits.c - SPEC A9, pairwise: every two choices of any two factors, in some training.
 *
 * The settings are a covering array of strength 2, found greedily: each one begins with a pair that
 * is still missing, and its other factors take, in a random order with a fixed seed, the value that
 * brings most new pairs. All of them are held against the serial oracle. test_same_bits_full.c has
 * the products.
 */
#include "unit/same_bits.h"

/* ---- the covering array ------------------------------------------------------------------ */

enum { MAX_SETTINGS = 64, UNSET = -1, N_STEPS = 6 };
typedef struct pairs {
    bool is_covered[N_FACTORS][MAX_VALUES][N_FACTORS][MAX_VALUES];
} pairs;

static void cover(pairs *p, const setting *s) {
    for (int a = 0; a < N_FACTORS; a++)
        for (int b = 0; b < N_FACTORS; b++)
            p->is_covered[a][s->of[a]][b][s->of[b]] = true;
}

/* Of factor a with value x and what is set already. */
static int count_new(const pairs *p, const setting *s, int a, int x) {
    int n = 0;
    for (int b = 0; b < N_FACTORS; b++)
        n += b != a && s->of[b] != UNSET && !p->is_covered[a][x][b][s->of[b]];
    return n;
}

/* The first pair that is missing; false when none is. */
static bool begin_setting(const pairs *p, setting *out) {
    for (int a = 0; a < N_FACTORS; a++)
        out->of[a] = UNSET;
    for (int a = 0; a < N_FACTORS; a++)
        for (int b = 0; b < a; b++)
            for (int x = 0; x < n_values[a]; x++)
                for (int y = 0; y < n_values[b]; y++)
                    if (!p->is_covered[a][x][b][y]) {
                        out->of[a] = x;
                        out->of[b] = y;
                        return true;
                    }
    return false;
}

static int best_value(const pairs *p, const setting *s, int a, uint64_t *seed) {
    int best = (int)(hpi_random_next(seed) % (uint64_t)n_values[a]);
    for (int x = 0; x < n_values[a]; x++)
        if (count_new(p, s, a, x) > count_new(p, s, a, best))
            best = x;
    return best;
}

static void complete_setting(const pairs *p, setting *s, uint64_t *seed) {
    const int first = (int)(hpi_random_next(seed) % N_FACTORS);
    for (int k = 0; k < N_FACTORS; k++) {
        const int a = (first + k * 3) % N_FACTORS; /* 3 and 11 have no common factor */
        if (s->of[a] == UNSET)
            s->of[a] = best_value(p, s, a, seed);
    }
}

static int make_settings(setting *out) {
    pairs covered = {0};
    uint64_t seed = 5;
    int n = 0;
    while (n < MAX_SETTINGS && begin_setting(&covered, &out[n])) {
        complete_setting(&covered, &out[n], &seed);
        cover(&covered, &out[n++]);
    }
    return n;
}

/* ---- tests ------------------------------------------------------------------------------- */

/* Counted from the settings alone. */
static void test_every_pair_is_covered(void **state) {
    (void)state;
    setting settings[MAX_SETTINGS];
    const int n = make_settings(settings);
    int n_pairs = 0;
    for (int a = 0; a < N_FACTORS; a++)
        for (int b = 0; b < a; b++)
            for (int x = 0; x < n_values[a]; x++)
                for (int y = 0; y < n_values[b]; y++, n_pairs++) {
                    int found = 0;
                    for (int i = 0; i < n; i++)
                        found += settings[i].of[a] == x && settings[i].of[b] == y;
                    assert_true(found > 0);
                }
    printf("%d pairs in %d trainings\n", n_pairs, n);
}

static void test_same_bits(void **state) {
    (void)state;
    setting settings[MAX_SETTINGS];
    const int n = make_settings(settings);
    for (int i = 0; i < n; i++) {
        const phase only = {(optimizer_choice)settings[i].of[OPTIMIZER],
                            (clip_choice)settings[i].of[CLIP]};
        const lesson of = setting_lesson(&settings[i]);
        session s = {settings[i], &only, 1, N_STEPS, expect(&of, &only, 1, N_STEPS)};
        ranks_run(N_RANKS, RANKS_THREADS, session_body, &s);
        free(s.expected);
    }
}

/* What the ranks are held against is the same on every mesh, except where partial sums over a shard
 * group are kept: then it is each mesh's own. */
static void test_meshes_share_one_reference(void **state) {
    (void)state;
    enum { N = 4 };
    const phase only = {ADAMW, CLIP_2};
    const size_t bytes = (N + 1) * sizeof(snapshot);
    for (int k = 0; k < N_ACCUMULATIONS; k++) {
        lesson l = {HP_BF16, HP_FP32, (accumulation)k, mesh_replicas[0]};
        snapshot *first = expect(&l, &only, 1, N);
        for (int m = 1; m < N_MESHES; m++) {
            l.n_replicas = mesh_replicas[m];
            snapshot *other = expect(&l, &only, 1, N);
            assert_true((memcmp(first, other, bytes) == 0) == (k != DEFERRED));
            free(other);
        }
        free(first);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_pair_is_covered),
        cmocka_unit_test(test_meshes_share_one_reference),
        cmocka_unit_test(test_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

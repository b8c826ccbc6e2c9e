/* SPDX-License-Identifier: Apache-2.0
 *
 * wire_errors.c - measure what low precision on the wire costs, as the tables of
 * docs/low-precision.md.
 *
 * usage: wire_errors
 *
 * Ranks are threads; each makes the same all-reduce once in full precision and once over each wire,
 * of data that seeded integer code makes, so that every machine prints the same figures. Of each
 * element of the result: error = |over the wire - in full|. max is the largest of error / (sum of
 * the terms' magnitudes), rms is the root of (sum of error squared / sum of full squared).
 * tools/gen_docs.sh puts the tables into the page, tests/cli/test_docs.sh compares them.
 */
#include <hyperparallel/hyperparallel.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 32768, MOST_RANKS = 8, N_WIRES = 4 };
static const hp_wire wires[N_WIRES] = {HP_WIRE_FP16, HP_WIRE_BF16, HP_WIRE_FP8_E4M3,
                                       HP_WIRE_FP8_E5M2};

/* ---- data ---- */

/* splitmix64. Source: Steele, Lea, Flood, OOPSLA 2014. */
static uint64_t next_random(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static double uniform(uint64_t *state) { /* [0, 1) */
    return (double)(next_random(state) >> 40) * 0x1p-24;
}

/* The sum of 12 uniform numbers less 6: close to normal, and only additions. */
static double normal(uint64_t *state) {
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += uniform(state);
    return sum;
}

/* Magnitudes from 2^-20 to 1, each power of two as likely as the others, of both signs. */
static double log_uniform(uint64_t *state) {
    const uint64_t r = next_random(state);
    return ldexp(r % 2 ? 1 + uniform(state) : -1 - uniform(state), -1 - (int)(r % 40 / 2));
}

static double whole(uint64_t *state) { /* -8 to 8 */
    return (double)(next_random(state) % 17) - 8;
}

typedef double generator(uint64_t *state);

/* ---- one measurement ---- */

typedef struct job {
    generator *generate;
    int n_ranks, wire_result;
    hp_hub *hub;
    float data[MOST_RANKS][COUNT];
    float full[COUNT], wired[N_WIRES][COUNT]; /* results of rank 0 */
} job;

typedef struct errors {
    double max, rms;
    int n_outside; /* elements beyond rtol 1e-3 and atol 1e-5 */
} errors;

static void must(hp_status status) {
    if (status >= 0)
        return;
    fprintf(stderr, "wire_errors: %s\n", hp_last_error());
    exit(1);
}

static void reduce(const job *j, hp_group *group, hp_wire wire, float *out) {
    hp_coll_call call = HP_COLL_CALL_INIT;
    call.what = HP_ALL_REDUCE;
    call.group = group;
    call.in = j->data[hp_group_rank(group)];
    call.out = out;
    call.count = COUNT;
    call.wire = wire;
    call.wire_result = j->wire_result;
    must(hp_coll_run(&call));
}

typedef struct rank {
    job *job;
    int number;
    pthread_t thread;
} rank;

static void *run_rank(void *argument) {
    rank *r = argument;
    hp_world_config config = HP_WORLD_CONFIG_INIT;
    hp_world *world;
    float *other = malloc(COUNT * sizeof *other); /* results of other ranks: the same bits */
    config.hub = r->job->hub;
    config.rank = r->number;
    must(other ? hp_world_create(&config, &world) : HP_ERR_MEMORY);
    reduce(r->job, hp_world_group(world), HP_WIRE_FULL, r->number ? other : r->job->full);
    for (int w = 0; w < N_WIRES; w++)
        reduce(r->job, hp_world_group(world), wires[w], r->number ? other : r->job->wired[w]);
    hp_world_destroy(world);
    free(other);
    return NULL;
}

static void run(job *j) {
    rank ranks[MOST_RANKS];
    uint64_t state = 42;
    for (int i = 0; i < j->n_ranks; i++)
        for (int k = 0; k < COUNT; k++)
            j->data[i][k] = (float)j->generate(&state);
    must(hp_hub_create(j->n_ranks, &j->hub));
    for (int i = 0; i < j->n_ranks; i++) {
        ranks[i] = (rank){.job = j, .number = i};
        if (pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]))
            exit(1);
    }
    for (int i = 0; i < j->n_ranks; i++)
        pthread_join(ranks[i].thread, NULL);
    hp_hub_destroy(j->hub);
}

static errors measure(const job *j, int w) {
    errors e = {0};
    double squares = 0, of_full = 0;
    for (int k = 0; k < COUNT; k++) {
        const double full = (double)j->full[k], error = fabs((double)j->wired[w][k] - full);
        double magnitudes = 0;
        for (int i = 0; i < j->n_ranks; i++)
            magnitudes += fabs((double)j->data[i][k]);
        if (magnitudes > 0)
            e.max = fmax(e.max, error / magnitudes);
        squares += error * error;
        of_full += full * full;
        e.n_outside += error > 1e-5 + 1e-3 * fabs(full);
    }
    e.rms = sqrt(squares / of_full);
    return e;
}

/* ---- tables ---- */

static void print_number(double x) {
    printf(x == 0 ? " 0 |" : " %.1e |", x);
}

static void print_head(const char *title, const char *first) {
    printf("\n%s\n\n| %s | fp16 max | rms | bf16 max | rms | e4m3 max | rms | e5m2 max | rms |\n",
           title, first);
    printf("|---|---|---|---|---|---|---|---|---|\n");
}

static void print_row(job *j, const char *name) {
    run(j);
    printf("| %s |", name);
    for (int w = 0; w < N_WIRES; w++) {
        const errors e = measure(j, w);
        print_number(e.max);
        print_number(e.rms);
    }
    printf("\n");
}

static void print_by_ranks(job *j, const char *title, generator *generate) {
    static const char *const names[] = {"1", "2", "3", "4", "5", "6", "7", "8"};
    print_head(title, "ranks");
    for (j->n_ranks = 1; j->n_ranks <= MOST_RANKS; j->n_ranks++) {
        j->generate = generate;
        print_row(j, names[j->n_ranks - 1]);
    }
}

static void print_outside(job *j, const char *name, generator *generate) {
    j->generate = generate;
    run(j);
    printf("| %s |", name);
    for (int w = 0; w < N_WIRES; w++)
        printf(" %.2f%% |", 100.0 * measure(j, w).n_outside / COUNT);
    printf("\n");
}

static void print_all(job *j) {
    print_by_ranks(j, "Uniform in [0, 1):", uniform);
    print_by_ranks(j, "Normal, mean 0, deviation 1:", normal);
    print_by_ranks(j, "Log-uniform magnitudes from 2^-20 to 1, both signs:", log_uniform);
    print_by_ranks(j, "Whole numbers from -8 to 8, which every form represents:", whole);

    print_head("`wire_result` = 1 (the sum is rounded to the wire as well), 8 ranks:", "data");
    j->n_ranks = 8;
    j->wire_result = 1;
    j->generate = uniform;
    print_row(j, "uniform");
    j->generate = normal;
    print_row(j, "normal");
    j->generate = log_uniform;
    print_row(j, "log-uniform");
    j->wire_result = 0;

    printf("\nElements of the sum over 8 ranks outside |error| <= 1e-5 + 1e-3 |full|:\n\n"
           "| data | fp16 | bf16 | e4m3 | e5m2 |\n|---|---|---|---|---|\n");
    print_outside(j, "uniform", uniform);
    print_outside(j, "normal", normal);
    print_outside(j, "log-uniform", log_uniform);
    print_outside(j, "whole", whole);
}

int main(void) {
    job *j = calloc(1, sizeof *j);
    if (!j)
        return 1;
    print_all(j);
    free(j);
    return fflush(stdout) == 0 && !ferror(stdout) ? 0 : 1;
}

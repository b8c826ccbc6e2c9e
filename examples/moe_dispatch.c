/* SPDX-License-Identifier: Apache-2.0
 *
 * moe_dispatch.c - a mixture of experts: tokens travel to experts on other ranks and back while the
 * shared expert, which every token visits, is computed.
 *
 *     hprun -n 4 moe_dispatch
 *
 * Two streams: `travel` moves tokens by all_to_all_v, `compute` runs experts, and marks tell one
 * how far the other is. Each rank has one expert of its group; an even number of ranks above 2 is
 * two groups with the same experts and tokens of their own. Shapes are in the comments, row-major.
 */
#include <hyperparallel/hyperparallel.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 96 /* of a rank */, WIDTH = 32, MAX_EXPERTS = 64, SHARED = MAX_EXPERTS };

static void ok(hp_status status) {
    if (status >= 0)
        return;
    fprintf(stderr, "moe_dispatch: %s\n", hp_last_error());
    exit(1);
}

/* The i-th number of a fixed sequence in [-1, 1), the same on every rank. */
static float noise(uint64_t i) {
    i = (i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    i = (i ^ (i >> 32)) * UINT64_C(0xd6e8feb86659fd93);
    return (float)(i >> 40) / 0x1p23F - 1;
}

/* An expert: y = tanh(W x) for n tokens. x, y: [n][WIDTH]. Any rank knows the weights of any
 * expert here, so that it can check what others have done. */
static void expert(int number, const float *x, float *y, uint64_t n) {
    for (uint64_t t = 0; t < n; t++)
        for (uint64_t o = 0; o < WIDTH; o++) {
            float sum = 0;
            for (uint64_t i = 0; i < WIDTH; i++)
                sum += noise(((uint64_t)number * WIDTH + o) * WIDTH + i) * x[t * WIDTH + i];
            y[t * WIDTH + o] = tanhf(sum / WIDTH);
        }
}

/* What one rank holds. Elements, not tokens, in the counts: that is what all_to_all_v takes. */
typedef struct moe {
    int rank, n_experts; /* in the group; expert r lives on rank r */
    float tokens[TOKENS][WIDTH], shared[TOKENS][WIDTH];
    int expert_of[TOKENS], place_of[TOKENS]; /* the router's choice; the row in `sorted` */
    float sorted[TOKENS][WIDTH], back[TOKENS][WIDTH];
    uint64_t to[MAX_EXPERTS], from[MAX_EXPERTS], n_arrived;
    float *arrived, *done; /* [n_arrived][WIDTH]: for the expert of this rank, and out of it */
} moe;

/* The router: a token goes to one expert, low numbers are busier. Tokens for one expert are
 * adjacent in `sorted`, in the order of experts. */
static void route(moe *m, uint64_t first_token) {
    int n_sorted = 0;
    for (uint64_t t = 0; t < TOKENS; t++) {
        const float choice = (noise(UINT64_C(3) << 40 | (first_token + t)) + 1) / 2;
        m->expert_of[t] = (int)(choice * choice * (float)m->n_experts);
        for (uint64_t i = 0; i < WIDTH; i++)
            m->tokens[t][i] = noise(UINT64_C(1) << 40 | ((first_token + t) * WIDTH + i));
    }
    for (int e = 0; e < m->n_experts; e++)
        for (int t = 0; t < TOKENS; t++)
            if (m->expert_of[t] == e) {
                memcpy(m->sorted[n_sorted], m->tokens[t], sizeof m->tokens[t]);
                m->place_of[t] = n_sorted++;
                m->to[e] += WIDTH;
            }
}

/* Calls of the program's own on a stream. */
static hp_status run_shared_expert(void *argument) {
    moe *m = argument;
    expert(SHARED, m->tokens[0], m->shared[0], TOKENS);
    return HP_OK;
}
static hp_status run_own_expert(void *argument) {
    moe *m = argument;
    expert(m->rank, m->arrived, m->done, m->n_arrived);
    return HP_OK;
}

static void exchange(hp_group *group, hp_stream *stream, const float *in, const uint64_t *in_counts,
                     float *out, const uint64_t *out_counts) {
    hp_coll_call call = HP_COLL_CALL_INIT;
    call.what = HP_ALL_TO_ALL_V;
    call.group = group;
    call.in = in;
    call.in_counts = in_counts;
    call.out = out;
    call.out_counts = out_counts;
    call.stream = stream;
    ok(hp_coll_run(&call)); /* checked now, run when its turn comes */
}

static void forward(moe *m, hp_group *group, hp_stream *travel, hp_stream *compute) {
    hp_mark mark;
    /* How much comes from whom must be known before it comes. */
    ok(hp_all_to_all(group, m->to, m->from, 1, HP_INT64));
    for (int r = 0; r < m->n_experts; r++)
        m->n_arrived += m->from[r] / WIDTH;
    m->arrived = calloc(m->n_arrived + 1, sizeof m->tokens[0]);
    m->done = calloc(m->n_arrived + 1, sizeof m->tokens[0]);
    if (!m->arrived || !m->done)
        ok(hp_error_set(HP_ERR_MEMORY, NULL, "no memory for %llu tokens",
                        (unsigned long long)m->n_arrived));

    exchange(group, travel, m->sorted[0], m->to, m->arrived, m->from);
    ok(hp_stream_call(compute, run_shared_expert, m)); /* meanwhile */

    ok(hp_stream_record(travel, &mark));
    ok(hp_stream_wait(compute, mark)); /* the tokens are there */
    ok(hp_stream_call(compute, run_own_expert, m));

    ok(hp_stream_record(compute, &mark));
    ok(hp_stream_wait(travel, mark)); /* the expert is done: the same way back */
    exchange(group, travel, m->done, m->from, m->back[0], m->to);
    ok(hp_stream_synchronize(travel));
}

/* Tokens whose sum of both experts is not what plain loops on this rank give, to the bit. */
static uint64_t count_wrong(const moe *m) {
    uint64_t n_wrong = 0;
    for (int t = 0; t < TOKENS; t++) {
        float y[WIDTH], shared[WIDTH];
        int is_wrong = 0;
        expert(m->expert_of[t], m->tokens[t], y, 1);
        expert(SHARED, m->tokens[t], shared, 1);
        for (int i = 0; i < WIDTH; i++)
            is_wrong |= shared[i] + y[i] != m->shared[t][i] + m->back[m->place_of[t]][i];
        n_wrong += (uint64_t)is_wrong;
    }
    return n_wrong;
}

int main(void) {
    static moe m;
    hp_world *world;
    hp_mesh *mesh;
    hp_stream *travel, *compute;
    ok(hp_world_create(NULL, &world));
    const int rank = hp_world_rank(world), n = hp_world_size(world);
    m.n_experts = n > 2 && n % 2 == 0 ? n / 2 : n;
    if (m.n_experts > MAX_EXPERTS) {
        fprintf(stderr, "moe_dispatch: expected at most %d experts, given %d ranks\n", MAX_EXPERTS,
                n);
        return 2;
    }
    ok(hp_mesh_create(world, (int[]){n / m.n_experts, m.n_experts}, 2, &mesh));
    hp_group *group = hp_mesh_group(mesh, 1);
    m.rank = hp_group_rank(group);
    ok(hp_stream_create(NULL, &travel));
    ok(hp_stream_create(NULL, &compute));

    route(&m, (uint64_t)rank * TOKENS);
    forward(&m, group, travel, compute);

    uint64_t counts[] = {count_wrong(&m), TOKENS - m.to[m.rank] / WIDTH};
    ok(hp_all_reduce(hp_world_group(world), counts, counts, 2, HP_INT64, HP_SUM));
    if (rank == 0) {
        printf("%d groups of %d experts, %d tokens; %llu of them went to another rank\n",
               n / m.n_experts, m.n_experts, n * TOKENS, (unsigned long long)counts[1]);
        printf("%s: %llu tokens differ from plain loops\n", counts[0] ? "wrong" : "right",
               (unsigned long long)counts[0]);
    }
    free(m.done);
    free(m.arrived);
    hp_stream_destroy(compute);
    hp_stream_destroy(travel);
    hp_mesh_destroy(mesh);
    hp_world_destroy(world);
    return counts[0] != 0;
}

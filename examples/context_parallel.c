/* SPDX-License-Identifier: Apache-2.0
 *
 * context_parallel.c - attention over a sequence that is cut over the ranks: keys and values go
 * round a ring, one block a step, while each rank attends to the block that it has.
 *
 *     hprun -n 4 context_parallel
 *
 * One-sided: a rank puts its block into the right neighbour's memory and a signal behind it; nobody
 * meets anybody. A block has two slots, one to read and one to be written, and `free` tells the
 * left neighbour when a slot may be written again.
 */
#include <hyperparallel/hyperparallel.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 48 /* positions of a rank */, WIDTH = 32 };
enum { READY = 0, FREE = 8, WORDS_BYTES = 16 }; /* where the two signal words lie */
enum { QUERY = 1, KEY = 2, VALUE = 3 };

typedef float rows[ROWS][WIDTH];
typedef struct block {
    rows keys, values;
} block;

static void ok(hp_status status) {
    if (status >= 0)
        return;
    fprintf(stderr, "context_parallel: %s\n", hp_last_error());
    exit(1);
}

/* A number in [-1, 1) for each row of the whole sequence, the same on every rank. */
static float element(uint64_t what, uint64_t row, uint64_t i) {
    uint64_t x = (what << 40 | (row * WIDTH + i)) * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 32)) * UINT64_C(0xd6e8feb86659fd93);
    return (float)(x >> 40) / 0x1p23F - 1;
}
static void fill(uint64_t what, int rank, rows out) {
    for (uint64_t r = 0; r < ROWS; r++)
        for (uint64_t i = 0; i < WIDTH; i++)
            out[r][i] = element(what, (uint64_t)rank * ROWS + r, i);
}

/* Softmax while the scores come in: the largest one so far, and sums relative to it. */
typedef struct attention {
    rows queries, out;
    float largest[ROWS], sum[ROWS];
} attention;

static void attend(attention *a, const block *b) {
    for (int q = 0; q < ROWS; q++)
        for (int k = 0; k < ROWS; k++) {
            float score = 0;
            for (int i = 0; i < WIDTH; i++)
                score += a->queries[q][i] * b->keys[k][i];
            const float largest = fmaxf(a->largest[q], score);
            const float shrink = expf(a->largest[q] - largest), weight = expf(score - largest);
            for (int i = 0; i < WIDTH; i++)
                a->out[q][i] = a->out[q][i] * shrink + weight * b->values[k][i];
            a->sum[q] = a->sum[q] * shrink + weight;
            a->largest[q] = largest;
        }
}

/* Send a slot on to the right: when the neighbour's other slot is free, a put, then its signal.
 * Both wait their turn on the stream; this returns at once. */
static hp_mark send_on(hp_world *world, hp_symm slots, hp_symm words, const block *from, int step,
                       hp_stream *stream) {
    hp_symm_call wait = {.size = sizeof wait, .what = HP_SYMM_WAIT, .stream = stream};
    wait.signal = words;
    wait.signal_offset = FREE;
    wait.compare = HP_GE;
    wait.value = (uint64_t)step;
    ok(hp_symm_run(&wait));

    hp_symm_call put = {.size = sizeof put, .what = HP_SYMM_PUT_SIGNAL, .stream = stream};
    put.memory = slots;
    put.offset = (uint64_t)((step + 1) % 2) * sizeof(block);
    put.source = from;
    put.bytes = sizeof(block);
    put.signal = words;
    put.signal_offset = READY;
    put.op = HP_SIGNAL_SET;
    put.value = (uint64_t)step + 1;
    put.rank = (hp_world_rank(world) + 1) % hp_world_size(world);
    ok(hp_symm_run(&put));

    hp_mark mark;
    ok(hp_stream_record(stream, &mark));
    return mark;
}

/* slots: two blocks, the rank's own in the first. In step s a rank reads slot s % 2 and the left
 * neighbour writes the other one. */
static void ring(hp_world *world, hp_symm slots, hp_symm words, block *mine, attention *a) {
    const int n = hp_world_size(world), left = (hp_world_rank(world) + n - 1) % n;
    hp_stream *stream;
    ok(hp_stream_create(NULL, &stream));
    for (int step = 0; step < n; step++) {
        const block *now = &mine[step % 2];
        const int is_last = step == n - 1;
        hp_mark sent;
        if (!is_last)
            sent = send_on(world, slots, words, now, step, stream);
        attend(a, now);
        if (is_last)
            break;
        ok(hp_mark_synchronize(sent)); /* now nothing reads this slot any more */
        ok(hp_symm_signal(words, FREE, HP_SIGNAL_SET, (uint64_t)step + 1, left, NULL));
        ok(hp_symm_wait(words, READY, HP_GE, (uint64_t)step + 1, 0));
    }
    hp_stream_destroy(stream);
}

/* The largest difference from attention over the whole sequence in plain loops, in double. */
static double compare(const attention *a, int n_ranks) {
    const uint64_t n_rows = (uint64_t)n_ranks * ROWS;
    double largest = 0;
    for (int q = 0; q < ROWS; q++) {
        double out[WIDTH] = {0}, sum = 0;
        for (uint64_t k = 0; k < n_rows; k++) {
            double score = 0;
            for (uint64_t i = 0; i < WIDTH; i++)
                score += (double)a->queries[q][i] * (double)element(KEY, k, i);
            sum += exp(score);
            for (uint64_t i = 0; i < WIDTH; i++)
                out[i] += exp(score) * (double)element(VALUE, k, i);
        }
        for (int i = 0; i < WIDTH; i++)
            largest = fmax(largest, fabs(out[i] / sum - (double)(a->out[q][i] / a->sum[q])));
    }
    return largest;
}

int main(void) {
    static attention a;
    hp_world *world;
    hp_symm slots, words;
    void *mine;
    ok(hp_world_create(NULL, &world));
    const int rank = hp_world_rank(world), n = hp_world_size(world);
    ok(hp_symm_alloc(world, NULL, 2 * sizeof(block), 0, &slots));
    ok(hp_symm_alloc(world, NULL, WORDS_BYTES, 0, &words)); /* zeros */
    ok(hp_symm_pointer(slots, rank, NULL, &mine));
    block *own = mine;
    fill(QUERY, rank, a.queries);
    fill(KEY, rank, own->keys);
    fill(VALUE, rank, own->values);
    for (int q = 0; q < ROWS; q++)
        a.largest[q] = -INFINITY;

    ring(world, slots, words, own, &a);

    double differs = compare(&a, n);
    ok(hp_all_reduce(hp_world_group(world), &differs, &differs, 1, HP_FP64, HP_MAX));
    const int is_wrong = !(differs < 1e-5);
    if (rank == 0)
        printf("%d positions over %d ranks, %d blocks of %zu bytes sent by each\n%s: largest "
               "difference from plain attention %.2g\n",
               n * ROWS, n, n - 1, sizeof(block), is_wrong ? "wrong" : "right", differs);
    ok(hp_symm_free(words));
    ok(hp_symm_free(slots));
    hp_world_destroy(world);
    return is_wrong;
}

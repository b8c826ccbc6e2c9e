/* SPDX-License-Identifier: Apache-2.0
 *
 * tensor_parallel.c - a layer of two matrices, the first cut by columns and the second by rows: a
 * product of gathered tokens, and one whose sum over ranks is scattered.
 *
 *     hprun -n 4 tensor_parallel
 *
 * The ranks of a tensor-parallel group hold a piece of the hidden width each, and between layers a
 * piece of the tokens each. An even number of ranks above 2 is two such groups, with tokens of
 * their own (data parallel). Shapes are in the comments, row-major.
 */
#include <hyperparallel/hyperparallel.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 24, HIDDEN = 40 /* both of a rank */, WIDTH = 32 };
enum { INPUT = 1, UP = 2, DOWN = 3 };

static void ok(hp_status status) {
    if (status >= 0)
        return;
    fprintf(stderr, "tensor_parallel: %s\n", hp_last_error());
    exit(1);
}

/* Element [row][column] of a whole matrix, in [-1, 1), the same on every rank. */
static float element(uint64_t matrix, uint64_t row, uint64_t column) {
    uint64_t x = (matrix << 40 | row << 20 | column) * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 32)) * UINT64_C(0xd6e8feb86659fd93);
    return (float)(x >> 40) / 0x1p23F - 1;
}

/* The piece of a matrix that begins at [row][column]; out: [n_rows][n_columns]. */
static void fill(uint64_t matrix, uint64_t row, uint64_t column, uint64_t n_rows,
                 uint64_t n_columns, float *out) {
    for (uint64_t r = 0; r < n_rows; r++)
        for (uint64_t c = 0; c < n_columns; c++)
            out[r * n_columns + c] = element(matrix, row + r, column + c);
}

typedef struct layer {
    float up[WIDTH][HIDDEN];       /* columns of [WIDTH][size * HIDDEN] */
    float down[HIDDEN][WIDTH];     /* rows of [size * HIDDEN][WIDTH] */
    float *in, out[TOKENS][WIDTH]; /* in: [TOKENS][WIDTH], in symmetric memory */
    float *hidden;                 /* [tokens of the whole group][HIDDEN] */
    int64_t *rows;                 /* tokens of each rank */
} layer;

/* out = relu(in up) down, with up and down whole. */
static void forward(layer *l, hp_group *group, hp_matmul *matmul) {
    hp_fused_args args = HP_FUSED_ARGS_INIT;
    args.group = group;
    args.matmul = matmul;
    args.rows = l->rows;
    /* The others' tokens are read where they lie, each as soon as that rank is here. */
    args.a = l->in;
    args.k = args.lda = WIDTH;
    args.b = l->up;
    args.c = l->hidden;
    args.n = args.ldb = args.ldc = HIDDEN;
    ok(hp_all_gather_matmul(&args));
    for (int64_t i = 0; i < (int64_t)TOKENS * hp_group_size(group) * HIDDEN; i++)
        l->hidden[i] = fmaxf(l->hidden[i], 0);
    /* Every rank has all sums in part, and each gets those of its own tokens whole. */
    args.a = l->hidden;
    args.k = args.lda = HIDDEN;
    args.b = l->down;
    args.c = l->out;
    args.n = args.ldb = args.ldc = WIDTH;
    ok(hp_matmul_reduce_scatter(&args));
}

/* The largest difference of this rank's tokens from plain loops over whole matrices, in double. */
static double compare(const layer *l, uint64_t first_token, uint64_t n_hidden) {
    double largest = 0;
    for (uint64_t t = 0; t < TOKENS; t++) {
        double out[WIDTH] = {0};
        for (uint64_t h = 0; h < n_hidden; h++) {
            double hidden = 0;
            for (uint64_t i = 0; i < WIDTH; i++)
                hidden += (double)element(INPUT, first_token + t, i) * (double)element(UP, i, h);
            for (uint64_t o = 0; o < WIDTH; o++)
                out[o] += fmax(hidden, 0) * (double)element(DOWN, h, o);
        }
        for (uint64_t o = 0; o < WIDTH; o++)
            largest = fmax(largest, fabs(out[o] - (double)l->out[t][o]));
    }
    return largest;
}

int main(void) {
    static layer l;
    hp_world *world;
    hp_mesh *mesh;
    hp_matmul *matmul;
    hp_symm memory;
    void *data;
    ok(hp_world_create(NULL, &world));
    const int rank = hp_world_rank(world), n = hp_world_size(world);
    const int size = n > 2 && n % 2 == 0 ? n / 2 : n;
    ok(hp_mesh_create(world, (int[]){n / size, size}, 2, &mesh));
    hp_group *group = hp_mesh_group(mesh, 1);
    const uint64_t own = (uint64_t)hp_group_rank(group), n_tokens = (uint64_t)size * TOKENS;
    const uint64_t first_token = (uint64_t)rank * TOKENS; /* in the tokens of all groups */
    ok(hp_matmul_open("auto", 1, &matmul));

    /* Memory of the group alone: the other one takes no part, and may be ahead or behind. */
    ok(hp_symm_alloc(world, group, TOKENS * WIDTH * sizeof(float), 0, &memory));
    ok(hp_symm_pointer(memory, hp_group_rank(group), NULL, &data));
    l.in = data;
    l.hidden = calloc(n_tokens, HIDDEN * sizeof *l.hidden);
    l.rows = calloc((size_t)size, sizeof *l.rows);
    if (!l.hidden || !l.rows)
        return 1;
    for (int i = 0; i < size; i++)
        l.rows[i] = TOKENS;
    fill(INPUT, first_token, 0, TOKENS, WIDTH, l.in);
    fill(UP, 0, own * HIDDEN, WIDTH, HIDDEN, l.up[0]);
    fill(DOWN, own * HIDDEN, 0, HIDDEN, WIDTH, l.down[0]);

    forward(&l, group, matmul);

    double differs = compare(&l, first_token, (uint64_t)size * HIDDEN);
    ok(hp_all_reduce(hp_world_group(world), &differs, &differs, 1, HP_FP64, HP_MAX));
    const int is_wrong = !(differs < 1e-4 * sqrt((double)(size * HIDDEN)));
    if (rank == 0)
        printf("%d groups of %d ranks, each with %d tokens and a hidden width of %d; products by "
               "%s\n%s: largest difference from plain loops %.2g\n",
               n / size, size, size * TOKENS, size * HIDDEN, matmul->name,
               is_wrong ? "wrong" : "right", differs);
    free(l.rows);
    free(l.hidden);
    ok(hp_symm_free(memory));
    hp_matmul_close(matmul);
    hp_mesh_destroy(mesh);
    hp_world_destroy(world);
    return is_wrong;
}

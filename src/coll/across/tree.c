/* SPDX-License-Identifier: Apache-2.0
 *
 * tree.c - the tree of the bit contract over nodes.
 *
 *     ranks        0   1   2   3   4   5       on nodes  A: 0 1 2 3   B: 4 5
 *                  (0 + 1)+(2 + 3) (4 + 5)     A and B fold: each sends one branch
 *                         +                    and whoever sums adds the two
 *
 * sum(b, e) = sum(b, m) + sum(m, e), m - b the largest power of two below e - b. So the subtrees of
 * a group of n are [b, min(b + 2^k, n)) for each b that 2^k divides, and no others. A node folds
 * where its members are one of these: its own sum over them is the tree's, and one branch stands
 * for all. Where a node does not, each member's contribution is a branch, a leaf. Whoever sums goes
 * down the tree until it meets a branch. So the bits are those of one node with as many ranks.
 */
#include "../staged/wire.h"
#include "across.h"

static bool folds(const hpi_across *a, int node) {
    const int begin = hpi_member(a, node, 0), size = hpi_node_size(a->nodes, node);
    const int end = hpi_member(a, node, size - 1) + 1;
    int width = 1;
    if (end - begin != size)
        return false;
    while (width < size)
        width *= 2;
    return begin % width == 0 && (size == width || end == a->n);
}

void hpi_tree_plant(hpi_across *a) {
    a->do_all_fold = true;
    for (int node = 0; node < a->nodes->n; node++) {
        a->folds[node] = folds(a, node);
        a->do_all_fold &= a->folds[node];
        const int size = hpi_node_size(a->nodes, node);
        for (int i = 0; i < size; i++) {
            const int rank = hpi_member(a, node, i);
            if (!a->folds[node] || i == 0)
                a->branches[rank] = (hpi_branch){.end = a->folds[node] ? rank + size : rank + 1,
                                                 .is_leaf = hpi_is_leafy(a, node)};
        }
    }
}

uint64_t hpi_branch_bytes(const hpi_across *a, bool is_leaf, uint64_t count) {
    const hpi_run *run = a->run;
    if (!is_leaf)
        return count * hp_dtype_size(hpi_sum_dtype(run->c.dtype));
    return run->wire == HP_WIRE_FULL ? count * run->in_size : hpi_wire_bytes(run->wire, count);
}

/* ---- summing ---- */

/* A chunk of the tree that is being summed; `at` is a multiple of the blocks of fp8. */
typedef struct sum {
    const hpi_across *a;
    hpi_kernel leaf;
    const hpi_kernel *own; /* of partial sums */
    hp_dtype sum_dtype;
    int combine; /* a row of the kernels */
    uint64_t at, count;
} sum;

static const hpi_pass one = {.n = 1, .n_out = 1, .divisor = 1, .reciprocal = 1};
static const hpi_pass two = {.n = 2, .n_out = 1, .divisor = 1, .reciprocal = 1};

static const void *branch(const sum *s, const hpi_branch *b, unsigned char *room) {
    const hpi_run *run = s->a->run;
    const void *data = b->data + hpi_branch_bytes(s->a, b->is_leaf, s->at);
    if (!b->is_leaf || (run->wire == HP_WIRE_FULL && run->c.dtype == s->sum_dtype))
        return data;
    void *const out = room;
    s->leaf.to_sum[s->combine](&one, &data, &out, 0, s->count);
    return room;
}

/* The power of two that sum(begin, end) puts to the left. */
static int left_of(int n) {
    int left = 1;
    while (2 * left < n)
        left *= 2;
    return left;
}

/* Partial sums of ranks [begin, end), where a branch lies or in `room`. */
static const void *partial(const sum *s, int begin, int end, unsigned char *room) {
    const hpi_branch *b = &s->a->branches[begin];
    if (b->end == end)
        return branch(s, b, room);
    const int middle = begin + left_of(end - begin);
    const void *const halves[2] = {partial(s, begin, middle, room),
                                   partial(s, middle, end, room + HPI_CHUNK_BYTES)};
    void *const out = room;
    s->own->merge[s->combine](&two, halves, &out, 0, s->count);
    return room;
}

/* The result as it is after it has travelled. */
static void round_result(const sum *s, const float *result, void *out) {
    const hpi_run *run = s->a->run;
    float rounded[HPI_CHUNK_BYTES / sizeof(float)];
    hpi_wire_round(run->wire, HP_FP32, result, s->count, rounded);
    (void)hpi_convert(rounded, HP_FP32, out, run->c.out_dtype, s->count); /* floats: cannot fail */
}

static void sum_chunk(const sum *s, void *out) {
    const hpi_across *a = s->a;
    const hpi_run *run = a->run;
    const int middle = left_of(a->n);
    const int divisor = run->c.op == HP_AVG ? a->n : 1;
    const hpi_pass last = {.n = 2,
                           .n_out = 1,
                           .divisor = divisor,
                           .reciprocal =
                               hpi_is_power_of_two((uint64_t)divisor) ? 1.0 / divisor : 0};
    const void *const halves[2] = {partial(s, 0, middle, a->tree),
                                   partial(s, middle, a->n, a->tree + HPI_CHUNK_BYTES)};
    void *const result = run->c.is_wire_result ? a->tree : out;
    if (run->c.is_wire_result || run->c.out_dtype == s->sum_dtype)
        s->own->merge[s->combine](&last, halves, &result, 0, s->count);
    else
        hpi_kernel_of(run->c.out_dtype)
            ->merge_to_own[s->combine](&last, halves, &result, 0, s->count);
    if (run->c.is_wire_result)
        round_result(s, result, out);
}

void hpi_tree_sum(const hpi_across *a, void *out, uint64_t count) {
    const hpi_run *run = a->run;
    const bool is_full = run->wire == HP_WIRE_FULL;
    sum s = {.a = a,
             .leaf = is_full ? *hpi_kernel_of(run->c.dtype) : hpi_wire_kernel(run->wire),
             .sum_dtype = hpi_sum_dtype(run->c.dtype),
             .combine = run->c.op == HP_MAX   ? 1
                        : run->c.op == HP_MIN ? 2
                                              : 0};
    s.own = hpi_kernel_of(s.sum_dtype);
    const uint64_t step = HPI_CHUNK_BYTES / hp_dtype_size(s.sum_dtype);
    for (; s.at < count; s.at += step) {
        s.count = hpi_min(step, count - s.at);
        sum_chunk(&s, (unsigned char *)out + s.at * run->out_size);
    }
}

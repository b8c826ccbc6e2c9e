/* SPDX-License-Identifier: Apache-2.0
 *
 * gradient_sync.c - the gradients of HSDP: reduce_scatter inside a shard group, then all_reduce
 * between replicas, while the next layer is already in the shard group.
 *
 *     hprun -n 4 gradient_sync
 *
 * An even number of ranks above 2 is two replicas. The result is compared with what one all_reduce
 * over all ranks gives, and with low precision on the wire with what that costs in accuracy.
 */
#include <hyperparallel/hyperparallel.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { LAYERS = 6, PARAMS = 20000 /* of a layer */ };

static void ok(hp_status status) {
    if (status >= 0)
        return;
    fprintf(stderr, "gradient_sync: %s\n", hp_last_error());
    exit(1);
}

/* The i-th number of a fixed sequence in [-1, 1). */
static float noise(uint64_t i) {
    i = (i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    i = (i ^ (i >> 32)) * UINT64_C(0xd6e8feb86659fd93);
    return (float)(i >> 40) / 0x1p23F - 1;
}

typedef struct sync_job {
    hp_group *shard, *replicate;
    hp_stream *in_shard, *between;
    uint64_t part;                        /* elements of a layer that this rank keeps */
    uint64_t padded;                      /* part * ranks of the shard group: PARAMS and zeros */
    float *gradients, *parts, *reference; /* [LAYERS][padded], [LAYERS][part], [padded] */
} sync_job;

/* This rank's gradient of a layer; each rank has its own. */
static float gradient(int rank, uint64_t layer, uint64_t k) {
    return k < PARAMS ? noise(((uint64_t)rank * LAYERS + layer) * PARAMS + k) : 0;
}

static hp_coll_call reduction(hp_collective what, hp_group *group, hp_stream *stream,
                              hp_wire wire) {
    hp_coll_call call = HP_COLL_CALL_INIT;
    call.what = what;
    call.group = group;
    call.stream = stream;
    call.wire = wire;
    call.dtype = HP_FP32;
    call.op = HP_AVG; /* a mean over the shard group, of which the mean over replicas is taken */
    return call;
}

/* Layers come in the order of a backward, from the last one on. */
static void synchronize(const sync_job *s, hp_wire wire) {
    for (int layer = LAYERS - 1; layer >= 0; layer--) {
        float *part = s->parts + (uint64_t)layer * s->part;
        hp_mark mark;
        hp_coll_call scatter = reduction(HP_REDUCE_SCATTER, s->shard, s->in_shard, wire);
        scatter.in = s->gradients + (uint64_t)layer * s->padded;
        scatter.out = part;
        scatter.count = s->part;
        ok(hp_coll_run(&scatter));

        /* This layer's replicas meet when it is scattered; the next layer does not wait for them:
         * that is what the second stream is for. */
        ok(hp_stream_record(s->in_shard, &mark));
        ok(hp_stream_wait(s->between, mark));
        hp_coll_call reduce = reduction(HP_ALL_REDUCE, s->replicate, s->between, wire);
        reduce.in = part;
        reduce.out = part;
        reduce.count = s->part;
        ok(hp_coll_run(&reduce));
    }
    ok(hp_stream_synchronize(s->between));
}

/* The largest difference from one all_reduce over all ranks, over all layers and ranks. */
static double compare(const sync_job *s, hp_group *all) {
    const uint64_t begin = (uint64_t)hp_group_rank(s->shard) * s->part;
    double largest = 0;
    for (uint64_t layer = 0; layer < LAYERS; layer++) {
        const float *in = s->gradients + layer * s->padded;
        ok(hp_all_reduce(all, in, s->reference, s->padded, HP_FP32, HP_AVG));
        for (uint64_t k = 0; k < s->part; k++)
            largest = fmax(largest, fabs((double)s->parts[layer * s->part + k] -
                                         (double)s->reference[begin + k]));
    }
    ok(hp_all_reduce(all, &largest, &largest, 1, HP_FP64, HP_MAX));
    return largest;
}

/* The same of that all_reduce itself and a plain loop over the ranks, for one layer. */
static double check_reference(const sync_job *s, int n) {
    double largest = 0;
    for (uint64_t k = 0; k < PARAMS; k++) {
        double sum = 0;
        for (int rank = 0; rank < n; rank++)
            sum += (double)gradient(rank, LAYERS - 1, k);
        largest = fmax(largest, fabs(sum / n - (double)s->reference[k]));
    }
    return largest;
}

int main(void) {
    /* Numbers below 1 are rounded once for each group, by half a unit in the last place at most:
     * 2^-9 in bf16, 2^-5 in fp8_e4m3. */
    static const struct {
        const char *name;
        hp_wire wire;
        double most;
    } wires[] = {{"fp32", HP_WIRE_FULL, 0x1p-21},
                 {"bf16", HP_WIRE_BF16, 0x1.01p-8},
                 {"fp8_e4m3", HP_WIRE_FP8_E4M3, 0x1.01p-4}};
    sync_job s;
    hp_world *world;
    hp_mesh *mesh;
    hp_symm memory;
    void *data;
    int is_wrong = 0;
    ok(hp_world_create(NULL, &world));
    const int rank = hp_world_rank(world), n = hp_world_size(world);
    const int n_replicas = n > 2 && n % 2 == 0 ? 2 : 1, n_shards = n / n_replicas;
    ok(hp_mesh_create(world, (int[]){n_replicas, n_shards}, 2, &mesh));
    s.replicate = hp_mesh_group(mesh, 0);
    s.shard = hp_mesh_group(mesh, 1);
    ok(hp_stream_create(NULL, &s.in_shard));
    ok(hp_stream_create(NULL, &s.between));

    /* In symmetric memory peers read the gradients where they are; elsewhere they are staged. */
    s.part = (PARAMS + (uint64_t)n_shards - 1) / (uint64_t)n_shards;
    s.padded = s.part * (uint64_t)n_shards;
    const uint64_t n_elements = LAYERS * (s.padded + s.part) + s.padded;
    ok(hp_symm_alloc(world, NULL, n_elements * sizeof(float), 0, &memory));
    ok(hp_symm_pointer(memory, rank, NULL, &data));
    s.gradients = data;
    s.parts = s.gradients + LAYERS * s.padded;
    s.reference = s.parts + LAYERS * s.part;
    for (uint64_t i = 0; i < LAYERS * s.padded; i++)
        s.gradients[i] = gradient(rank, i / s.padded, i % s.padded);

    if (rank == 0)
        printf("%d replicas of %d shards, %d layers of %d gradients\n", n_replicas, n_shards,
               LAYERS, PARAMS);
    for (size_t i = 0; i < sizeof wires / sizeof *wires; i++) {
        synchronize(&s, wires[i].wire);
        const double differs = compare(&s, hp_world_group(world));
        is_wrong |= !(differs <= wires[i].most) || !(check_reference(&s, n) <= 0x1p-21);
        if (rank == 0)
            printf("%-8s on the wire: largest difference from one all_reduce %.2g\n", wires[i].name,
                   differs);
    }
    ok(hp_all_reduce(hp_world_group(world), &is_wrong, &is_wrong, 1, HP_INT32, HP_MAX));
    if (rank == 0)
        printf("%s\n", is_wrong ? "wrong" : "right: every difference is within its rounding");

    ok(hp_symm_free(memory));
    hp_stream_destroy(s.between);
    hp_stream_destroy(s.in_shard);
    hp_mesh_destroy(mesh);
    hp_world_destroy(world);
    return is_wrong;
}

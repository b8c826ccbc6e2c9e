/* SPDX-License-Identifier: Apache-2.0
 *
 * test_plan_fused.c - the plan of the fused modes: the exact order of SPEC A4 and A5, for 4 units.
 *
 * The bench writes every burst as text. What is on which stream, and where it reads and writes, is
 * looked at operation by operation.
 */
#include "plan_bench.h"

enum { SHARD_RANK = 1, ROW = 64 };

/* The bench's units, fused: two rows of 64 bytes; this is shard rank 1. */
static void set_up_fused(struct bench *b, hp_mode mode, int n_replicas, uint32_t prefetch,
                         hp_schedule schedule) {
    set_up(b, n_replicas, prefetch, schedule);
    for (uint32_t i = 0; i < N_UNITS; i++) {
        hpi_plan_unit *u = &b->units[i];
        const hpi_plan_bundle rows = {.dtype = HP_FP32,
                                      .end = 2 * ROW,
                                      .own_begin = SHARD_RANK * ROW,
                                      .own_end = (SHARD_RANK + 1) * ROW,
                                      .pack_end = ROW,
                                      .bucket_end = ROW};
        u->mode = mode;
        u->gathers[u->n_gathers++] = rows;
        u->scatters[u->n_scatters++] = rows;
        u->gather_bytes = u->pack_bytes = rows.end;
    }
}

#define UNSHARD(u)                                                                                 \
    "allocate " u "\nallocate " u " output\npack " u " <-allocate " u "\ncopy " u "\ngather " u    \
    "\ncopy_out " u "\nrelease " u " output <-gather " u "*\n"
#define REDUCE(u)                                                                                  \
    "allocate " u " packed\npack_grads " u " <-backwarded " u "\nrelease " u " grad\nscatter " u   \
    "\nrelease " u " packed <-scatter " u "*\n"

static void check_fused_forward(struct bench *b) {
    FORWARD_BEGIN(b, 0, UNSHARD("0") "wait 0 <-copy_out 0\n" UNSHARD("1") "forward 0\n");
    FORWARD_END(b, 0, "forwarded 0\nrelease 0\n");
    FORWARD_BEGIN(b, 1, "wait 1 <-copy_out 1\n" UNSHARD("2") "forward 1\n");
    FORWARD_END(b, 1, "forwarded 1\nrelease 1\n");
    FORWARD_BEGIN(b, 2, "wait 2 <-copy_out 2\n" UNSHARD("3") "forward 2\n");
    FORWARD_END(b, 2, "forwarded 2\nrelease 2\n");
    FORWARD_BEGIN(b, 3, "wait 3 <-copy_out 3\nforward 3\n");
    FORWARD_END(b, 3, "forwarded 3\n"); /* stays: backward begins with it */
}

/* SPEC A4: wait the all-reduce of two units back (and divide), wait the previous reduce-scatter and
 * issue its all-reduce, pack and issue this unit's reduce-scatter. */
static void test_order_of_hsdp(void **state) {
    struct bench *b = *state;
    set_up_fused(b, HP_FUSED, 2, 1, HP_OVERLAP);
    for (int step = 0; step < 3; step++) {
        begin(b, HP_SYNC);
        check_fused_forward(b);
        BACKWARD_BEGIN(b, 3, UNSHARD("2") "allocate 3 grad\nbackward 3\n");
        BACKWARD_END(b, 3, "backwarded 3\nrelease 3\n" REDUCE("3"));
        BACKWARD_BEGIN(b, 2, "wait 2 <-copy_out 2\n" UNSHARD("1") "allocate 2 grad\nbackward 2\n");
        BACKWARD_END(b, 2,
                     "backwarded 2\nrelease 2\n"
                     "wait 3 <-scatter 3\nreplicate 3 <-scatter 3\n" REDUCE("2"));
        BACKWARD_BEGIN(b, 1,
                       "wait 1 <-copy_out 1\n" UNSHARD("0") "allocate 1 grad <-release 3\n"
                                                            "backward 1\n");
        BACKWARD_END(b, 1,
                     "backwarded 1\nrelease 1\n"
                     "wait 3 <-replicate 3 <-replicate 3*\ndivide 3\n"
                     "wait 2 <-scatter 2\nreplicate 2 <-scatter 2\n" REDUCE("1"));
        BACKWARD_BEGIN(b, 0, "wait 0 <-copy_out 0\nallocate 0 grad <-release 2\nbackward 0\n");
        BACKWARD_END(b, 0,
                     "backwarded 0\nrelease 0\n"
                     "wait 2 <-replicate 2 <-replicate 2*\ndivide 2\n"
                     "wait 1 <-scatter 1\nreplicate 1 <-scatter 1\n" REDUCE("0"));
        END(b, "wait 1 <-replicate 1 <-replicate 1*\ndivide 1\n"
               "wait 0 <-scatter 0\nreplicate 0 <-scatter 0\n"
               "wait 0 <-replicate 0 <-replicate 0*\ndivide 0\n"
               "wait <-gather 0* <-scatter 0* <-replicate 0*\n");
        assert_true(hpi_plan_is_idle(b->plan));
    }
    hpi_plan_destroy(b->plan);
}

/* One dimension: the reduce-scatter is the last collective. */
static void test_order_of_fsdp(void **state) {
    struct bench *b = *state;
    set_up_fused(b, HP_FUSED, 1, 1, HP_OVERLAP);
    begin(b, HP_SYNC);
    check_fused_forward(b);
    BACKWARD_BEGIN(b, 3, UNSHARD("2") "allocate 3 grad\nbackward 3\n");
    BACKWARD_END(b, 3, "backwarded 3\nrelease 3\n" REDUCE("3"));
    BACKWARD_BEGIN(b, 2, "wait 2 <-copy_out 2\n" UNSHARD("1") "allocate 2 grad\nbackward 2\n");
    BACKWARD_END(b, 2, "backwarded 2\nrelease 2\nwait 3 <-scatter 3\ndivide 3\n" REDUCE("2"));
    /* units 1 and 0 never see a backward: zeros are reduced for them, unit 1 first; the gather of
     * unit 1 that nobody used is cancelled */
    END(b, "release 1 <-copy_out 1\n"
           "allocate 1 grad <-release 3\nbackward 1\nbackwarded 1\n"
           "wait 2 <-scatter 2\ndivide 2\n" REDUCE(
               "1") "allocate 0 grad <-release 2\nbackward 0\n"
                    "backwarded 0\nwait 1 <-scatter 1\n"
                    "divide 1\n" REDUCE(
                        "0") "wait 0 <-scatter 0\ndivide 0\nwait <-gather 1* <-scatter 0*\n");
    assert_true(hpi_plan_is_idle(b->plan));
    hpi_plan_destroy(b->plan);
}

/* Zero-copy: packed where the gather reads it, so there is no copy. */
static void test_zero_copy(void **state) {
    struct bench *b = *state;
    set_up_fused(b, HP_FUSED_ZERO_COPY, 1, 0, HP_OVERLAP);
    begin(b, HP_SYNC);
    FORWARD_BEGIN(b, 0,
                  "allocate 0\nallocate 0 output\npack 0 <-allocate 0\ngather 0\ncopy_out 0\n"
                  "release 0 output <-gather 0*\nwait 0 <-copy_out 0\nforward 0\n");
    const hp_op *pack = &b->ops[2], *gather = &b->ops[3];
    assert_memory_equal(&pack->writes[0], &gather->reads[0], sizeof(hp_ref));
    assert_int_equal(pack->reads[0].buffer, b->units[0].shard.buffer);
    hpi_plan_destroy(b->plan);
}

/* The gather is in place: its input is this rank's row of its output, a new life each time. */
static void test_where_a_gather_reads_and_writes(void **state) {
    struct bench *b = *state;
    set_up_fused(b, HP_FUSED, 1, 0, HP_OVERLAP);
    begin(b, HP_SYNC);
    hpi_burst burst;
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(hpi_plan_forward_begin(b->plan, i, &burst), HP_OK);
        const hp_op *op = burst.ops;
        const hp_ref storage = op[0].writes[0], output = op[1].writes[0];
        const hp_ref row = {output.buffer, output.life, SHARD_RANK * ROW, (SHARD_RANK + 1) * ROW};
        const hp_ref packed = {storage.buffer, storage.life, 0, ROW};
        assert_int_equal(output.buffer, b->config.gather_buffer);
        assert_int_equal(output.life, 1 + i);
        assert_memory_equal(&op[2].writes[0], &packed, sizeof packed); /* pack */
        assert_memory_equal(&op[3].reads[0], &packed, sizeof packed);  /* copy */
        assert_memory_equal(&op[3].writes[0], &row, sizeof row);
        assert_memory_equal(&op[4].reads[0], &row, sizeof row); /* gather */
        assert_memory_equal(&op[4].writes[0], &output, sizeof output);
        assert_int_equal(op[4].bytes, ROW);
        assert_memory_equal(&op[5].reads[0], &output, sizeof output); /* copy_out */
        assert_memory_equal(&op[5].writes[0], &storage, sizeof storage);
        assert_memory_equal(&op[6].reads[0], &output, sizeof output); /* release */
        assert_int_equal(op[0].stream, HP_STREAM_COMPUTE);
        for (int k = 1; k < 7; k++)
            assert_int_equal(op[k].stream, HP_STREAM_UNSHARD);
        assert_int_equal(hpi_plan_forward_end(b->plan, i, &burst), HP_OK);
    }
    hpi_plan_destroy(b->plan);
}

/* A replicated parameter beside the sharded one: packed with it, reduced by a collective of its
 * own, behind the other. Everything on the reduce stream but the wait. */
static void test_replicated_parameters(void **state) {
    struct bench *b = *state;
    hpi_plan_param params[2];
    set_up_fused(b, HP_FUSED, 1, 0, HP_OVERLAP);
    hpi_plan_unit *u = &b->units[3];
    params[0] = params[1] = b->params[3];
    params[1].param = 1;
    params[1].is_gathered = false;
    params[1].route = HPI_ROUTE_ALL_REDUCE;
    params[1].grad_begin = params[1].pack_begin = 128;
    params[1].grad_end = params[1].pack_end = params[1].bucket_end = 256;
    params[1].bucket_begin = 128;
    u->params = params;
    u->n_params = 2;
    u->grad_bytes = u->pack_bytes = 256;
    begin(b, HP_SYNC);
    hpi_burst burst;
    assert_int_equal(hpi_plan_forward_begin(b->plan, 3, &burst), HP_OK);
    (void)describe(b, burst);
    FORWARD_END(b, 3, "forwarded 3\n");
    BACKWARD_BEGIN(b, 3, "allocate 3 grad\nbackward 3\n");
    BACKWARD_END(b, 3,
                 "backwarded 3\nrelease 3\nallocate 3 packed\npack_grads 3 <-backwarded 3\n"
                 "release 3 grad\nscatter 3\nreplicate 3\nrelease 3 packed <-replicate 3*\n");
    const hp_op *all_reduce = &b->ops[b->n_ops - 2];
    assert_int_equal(all_reduce->comm, HPI_COMM_REDUCE);
    assert_int_equal(all_reduce->param, 1);
    assert_int_equal(all_reduce->reads[0].buffer, b->config.pack_buffer);
    assert_int_equal(all_reduce->reads[0].begin, 128);
    assert_int_equal(all_reduce->writes[0].buffer, u->bucket[0].buffer);
    for (uint64_t k = b->n_ops - 6; k < b->n_ops; k++)
        assert_int_equal(b->ops[k].stream, HP_STREAM_REDUCE);
    hpi_plan_destroy(b->plan);
}

/* Gathers ahead of compute, reductions waited for at once. */
static void test_prefetch_alone(void **state) {
    struct bench *b = *state;
    set_up_fused(b, HP_FUSED, 2, 1, HP_PREFETCH);
    begin(b, HP_SYNC);
    check_fused_forward(b);
    BACKWARD_BEGIN(b, 3, UNSHARD("2") "allocate 3 grad\nbackward 3\n");
    BACKWARD_END(b, 3,
                 "backwarded 3\nrelease 3\n" REDUCE("3") "wait 3 <-scatter 3\n"
                                                         "replicate 3 <-scatter 3\n"
                                                         "wait 3 <-replicate 3 <-replicate 3*\n");
    hpi_plan_destroy(b->plan);
}

/* A gradient that is not reduced is added up where backward wrote it, and nothing is packed. */
static void test_no_sync_packs_nothing(void **state) {
    struct bench *b = *state;
    set_up_fused(b, HP_FUSED, 2, 1, HP_OVERLAP);
    begin(b, HP_NO_SYNC);
    check_fused_forward(b);
    BACKWARD_BEGIN(b, 3, UNSHARD("2") "allocate 3 grad\nbackward 3\n");
    BACKWARD_END(b, 3, "backwarded 3\nrelease 3\naccumulate 3\nrelease 3 grad\n");
    hpi_plan_destroy(b->plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_of_hsdp),
        cmocka_unit_test(test_order_of_fsdp),
        cmocka_unit_test(test_zero_copy),
        cmocka_unit_test(test_where_a_gather_reads_and_writes),
        cmocka_unit_test(test_replicated_parameters),
        cmocka_unit_test(test_prefetch_alone),
        cmocka_unit_test(test_no_sync_packs_nothing),
    };
    return cmocka_run_group_tests(tests, make_bench, drop_bench);
}

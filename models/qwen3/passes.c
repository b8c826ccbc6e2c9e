/* SPDX-License-Identifier: Apache-2.0
 *
 * qwen3/passes.c - forward and backward through the units.
 *
 * Each unit's compute stands between its begin and its end, where hp_param_data and hp_param_grad
 * are valid; the arithmetic is in layers.c. Between the layers there is h, in the backward its
 * gradient, in the same memory. A rank without sequences goes the same way: gathers and reductions
 * are collective.
 */
#include "inside.h"

#include <math.h>
#include <string.h>

qwen3_layer_weights qwen3_weights_of(const hp_unit *u) {
    return (qwen3_layer_weights){
        .input_norm = hp_param_data(u, QWEN3_INPUT_NORM),
        .q = hp_param_data(u, QWEN3_Q),
        .k = hp_param_data(u, QWEN3_K),
        .v = hp_param_data(u, QWEN3_V),
        .q_norm = hp_param_data(u, QWEN3_Q_NORM),
        .k_norm = hp_param_data(u, QWEN3_K_NORM),
        .o = hp_param_data(u, QWEN3_O),
        .post_norm = hp_param_data(u, QWEN3_POST_NORM),
        .gate = hp_param_data(u, QWEN3_GATE),
        .up = hp_param_data(u, QWEN3_UP),
        .down = hp_param_data(u, QWEN3_DOWN),
    };
}

static qwen3_layer_grads grads_of(hp_unit *u) {
    return (qwen3_layer_grads){
        .input_norm = hp_param_grad(u, QWEN3_INPUT_NORM),
        .q = hp_param_grad(u, QWEN3_Q),
        .k = hp_param_grad(u, QWEN3_K),
        .v = hp_param_grad(u, QWEN3_V),
        .q_norm = hp_param_grad(u, QWEN3_Q_NORM),
        .k_norm = hp_param_grad(u, QWEN3_K_NORM),
        .o = hp_param_grad(u, QWEN3_O),
        .post_norm = hp_param_grad(u, QWEN3_POST_NORM),
        .gate = hp_param_grad(u, QWEN3_GATE),
        .up = hp_param_grad(u, QWEN3_UP),
        .down = hp_param_grad(u, QWEN3_DOWN),
    };
}

/* ---- the batch ---- */

/* This rank's, and ids [all tokens] where they begin. */
static size_t n_rows(const qwen3 *model) {
    return model->own.n;
}
static const int32_t *own_ids(const qwen3 *model, const int32_t *ids) {
    return ids ? ids + model->own.begin : NULL;
}

/* ids must lie in [least, vocab). */
static hp_status check_ids(const qwen3 *model, const qwen3_batch *batch, const char *what,
                           const int32_t *ids, int32_t least) {
    const int n = batch->n_sequences * batch->seq, vocab = model->config.vocab_size;
    for (int i = 0; i < n; i++)
        if (ids[i] < least || ids[i] >= vocab)
            return hp_error_set(HP_ERR_ARGUMENT, "qwen3_forward",
                                "expected %s to vocab_size - 1 = %d, given %d at position %d of "
                                "sequence %d",
                                what, vocab - 1, (int)ids[i], i % batch->seq, i / batch->seq);
    return HP_OK;
}

static hp_status check_batch(const qwen3 *model, const qwen3_batch *b) {
    const qwen3_options *o = &model->options;
    if (b->n_sequences < 0 || b->n_sequences > o->batch || b->seq < 1 || b->seq > o->seq)
        return hp_error_set(HP_ERR_ARGUMENT, "qwen3_forward",
                            "expected 0 to %d sequences of 1 to %d tokens, given %d of %d",
                            o->batch, o->seq, b->n_sequences, b->seq);
    if (b->n_sequences && !b->tokens)
        return hp_error_set(HP_ERR_ARGUMENT, "qwen3_forward", "expected tokens, given NULL");
    TRY(check_ids(model, b, "tokens from 0", b->tokens, 0));
    return b->targets ? check_ids(model, b, "targets from 0 (below: none)", b->targets, INT32_MIN)
                      : HP_OK;
}

static int64_t count_targets(const int32_t *targets, size_t n_tokens) {
    int64_t n = 0;
    for (size_t i = 0; targets && i < n_tokens; i++)
        n += targets[i] >= 0;
    return n;
}

static void take_batch(qwen3 *model, const qwen3_batch *batch) {
    const size_t n = (size_t)batch->n_sequences * (size_t)batch->seq;
    model->batch = *batch;
    model->own = qwen3_part_of(&model->shape.tensor, n);
    model->n_targets = count_targets(batch->targets, n);
}

/* ---- forward ---- */

static float *input_of(const qwen3 *model, int l) {
    return model->inputs + (size_t)l * model->most_rows * model->shape.hidden;
}

static void *saved_of(const qwen3 *model, int l) {
    return model->saved + (model->options.recompute ? 0 : (size_t)l * model->saved_stride);
}

static hp_status embed_forward(qwen3 *model) {
    TRY(hp_forward_begin(model->embed));
    qwen3_embed_forward(&model->shape, hp_param_data(model->embed, QWEN3_TABLE),
                        own_ids(model, model->batch.tokens), n_rows(model), model->h);
    return hp_forward_end(model->embed);
}

static hp_status compute_layer(qwen3 *model, int l, float *h) {
    const qwen3_layer_weights weights = qwen3_weights_of(model->layers[l]);
    return qwen3_layer_forward(&model->shape, (size_t)model->batch.n_sequences,
                               (size_t)model->batch.seq, &weights, h, saved_of(model, l),
                               model->scratch);
}

static hp_status layer_forward(qwen3 *model, int l) {
    if (model->options.recompute)
        memcpy(input_of(model, l), model->h, n_rows(model) * model->shape.hidden * sizeof(float));
    TRY(hp_forward_begin(model->layers[l]));
    TRY(compute_layer(model, l, model->h));
    return hp_forward_end(model->layers[l]);
}

static hp_status head_forward(qwen3 *model, double *out_loss) {
    TRY(hp_forward_begin(model->head));
    TRY(qwen3_head_forward(&model->shape, hp_param_data(model->head, model->head_norm),
                           hp_param_data(model->head, model->head_w), model->h, n_rows(model),
                           own_ids(model, model->batch.targets), model->logits, model->head_saved,
                           out_loss));
    return hp_forward_end(model->head);
}

hp_status qwen3_forward(qwen3 *model, const qwen3_batch *batch, double *out_loss,
                        int64_t *out_n_targets) {
    if (!model || !batch || !out_loss || !out_n_targets)
        return hp_error_set(HP_ERR_ARGUMENT, "qwen3_forward",
                            "expected model, batch, out_loss and out_n_targets, given NULL");
    TRY(check_batch(model, batch));
    double loss = 0;
    model->has_forward = false;
    take_batch(model, batch);
    TRY(embed_forward(model));
    for (int l = 0; l < model->config.num_hidden_layers; l++)
        TRY(layer_forward(model, l));
    TRY(head_forward(model, &loss));
    model->has_forward = true;
    *out_loss = loss;
    *out_n_targets = count_targets(own_ids(model, batch->targets), n_rows(model));
    return HP_OK;
}

const float *qwen3_logits(const qwen3 *model) {
    return model && model->has_forward ? model->logits : NULL;
}

/* ---- backward ---- */

/* weight: of one target's loss. */
static hp_status head_backward(qwen3 *model, double weight) {
    hp_unit *u = model->head;
    TRY(hp_backward_begin(u));
    TRY(qwen3_head_backward(&model->shape, hp_param_data(u, model->head_norm),
                            hp_param_data(u, model->head_w), hp_param_grad(u, model->head_norm),
                            hp_param_grad(u, model->head_w), own_ids(model, model->batch.targets),
                            n_rows(model), weight, model->logits, model->head_saved, model->h,
                            model->scratch));
    return hp_backward_end(u);
}

/* With recompute, the layer's input is turned into its output once more, for what that leaves. */
static hp_status layer_backward(qwen3 *model, int l) {
    hp_unit *u = model->layers[l];
    TRY(hp_backward_begin(u));
    if (model->options.recompute)
        TRY(compute_layer(model, l, input_of(model, l)));
    const qwen3_layer_weights weights = qwen3_weights_of(u);
    const qwen3_layer_grads grads = grads_of(u);
    TRY(qwen3_layer_backward(&model->shape, (size_t)model->batch.n_sequences,
                             (size_t)model->batch.seq, &weights, &grads, saved_of(model, l),
                             model->h, model->scratch));
    return hp_backward_end(u);
}

/* The second backward of a tied unit: the norm's gradient is not asked for and counts as zero. */
static hp_status embed_backward(qwen3 *model) {
    TRY(hp_backward_begin(model->embed));
    qwen3_embed_backward(&model->shape, own_ids(model, model->batch.tokens), n_rows(model),
                         model->h, hp_param_grad(model->embed, QWEN3_TABLE), model->scratch);
    return hp_backward_end(model->embed);
}

hp_status qwen3_backward(qwen3 *model, double weight) {
    if (!model || !isfinite(weight))
        return hp_error_set(HP_ERR_ARGUMENT, "qwen3_backward",
                            "expected a model and a finite weight, given %s and %g",
                            model ? "one" : "NULL", weight);
    if (!model->has_forward || (!model->batch.targets && model->batch.n_sequences))
        return hp_error_set(HP_ERR_STATE, "qwen3_backward",
                            "expected a forward with targets before it, given %s",
                            model->has_forward ? "one without" : "none");
    model->has_forward = false;
    const double n_together = model->shape.tensor.group ? model->shape.tensor.n_ranks : 1;
    TRY(head_backward(model,
                      model->n_targets ? weight * n_together / (double)model->n_targets : 0));
    for (int l = model->config.num_hidden_layers; l-- > 0;)
        TRY(layer_backward(model, l));
    return embed_backward(model);
}

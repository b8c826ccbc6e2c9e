/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/model_bytes_mlp.c - models/bytes_mlp as a row of the table.
 *
 * A sample is window + seq bytes. The model wants them as bytes, the trainer has them as ids.
 */
#include "fail.h"
#include "model.h"

#include <bytes_mlp/bytes_mlp.h>

#include <stdlib.h>

typedef struct state {
    bytes_mlp *model;
    unsigned char *samples; /* [batch][sample_tokens] */
} state;

static hp_status open_model(model *m, uint32_t data_vocab) {
    const options *o = m->options;
    (void)data_vocab;
    m->sample_tokens = (int)(o->window + o->seq);
    m->vocab_size = 256;
    m->n_units = (int)o->blocks + 2;
    snprintf(m->sizes, sizeof m->sizes, "bytes-mlp: window %d, width %d, hidden %d, blocks %d",
             (int)o->window, (int)o->width, (int)o->hidden, (int)o->blocks);
    state *s = m->state = calloc(1, sizeof *s);
    if (s)
        s->samples = malloc((size_t)o->batch * (size_t)m->sample_tokens);
    if (!s || !s->samples)
        return fail(HP_ERR_MEMORY, "expected memory for %d samples of %d bytes", (int)o->batch,
                    m->sample_tokens);
    return HP_OK;
}

static hp_status create(model *m, hp_fsdp *fsdp) {
    const options *o = m->options;
    state *s = m->state;
    bytes_mlp_config config = BYTES_MLP_CONFIG_INIT;
    config.window = (int)o->window;
    config.width = (int)o->width;
    config.hidden = (int)o->hidden;
    config.n_blocks = (int)o->blocks;
    config.seq = (int)o->seq;
    config.batch = (int)o->batch;
    config.seed = (uint64_t)o->seed;
    const hp_status status = bytes_mlp_create(fsdp, &config, &s->model);
    if (status == HP_ERR_MEMORY)
        return fail(
            status,
            "expected memory for the activations of %d samples of %d bytes (--batch, --seq) in "
            "%d blocks (--width %d, --hidden %d), the system gave none",
            config.batch, config.seq, config.n_blocks, config.width, config.hidden);
    TRY(status);
    m->n_parameters = bytes_mlp_n_parameters(s->model);
    m->engine = "plain";
    m->activation_bytes = bytes_mlp_activation_bytes(s->model);
    return HP_OK;
}

static hp_status forward(model *m, const int32_t *samples, int n, double *out_loss) {
    state *s = m->state;
    for (size_t i = 0; i < (size_t)n * (size_t)m->sample_tokens; i++)
        s->samples[i] = (unsigned char)samples[i];
    return bytes_mlp_forward(s->model, s->samples, n, out_loss);
}

static hp_status backward(model *m, double weight) {
    return bytes_mlp_backward(((state *)m->state)->model, weight);
}

static void close_model(model *m) {
    state *s = m->state;
    if (!s)
        return;
    bytes_mlp_destroy(s->model);
    free(s->samples);
    free(s);
    m->state = NULL;
}

const model_kind model_bytes_mlp = {.open = open_model,
                                    .create = create,
                                    .forward = forward,
                                    .backward = backward,
                                    .close = close_model};

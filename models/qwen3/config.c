/* SPDX-License-Identifier: Apache-2.0
 *
 * qwen3/config.c - the sizes checked against each other, and written as a config.json.
 *
 * What is written is what Transformers 4 and 5 both read. Reading stands in config_read.c.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY(expression)                                                                            \
    do {                                                                                           \
        const hp_status try_status_ = (expression);                                                \
        if (try_status_ < 0)                                                                       \
            return try_status_;                                                                    \
    } while (0)

/* ---- the sizes against each other ---- */

static hp_status check_int(const char *name, int value, int least, int most) {
    if (value >= least && value <= most)
        return HP_OK;
    return hp_error_set(HP_ERR_ARGUMENT, "qwen3_config_check", "expected %s of %d to %d, given %d",
                        name, least, most, value);
}

/* A NaN is outside of every interval. */
static hp_status check_double(const char *name, double value, double least, double most) {
    if (value >= least && value <= most)
        return HP_OK;
    return hp_error_set(HP_ERR_ARGUMENT, "qwen3_config_check", "expected %s of %g to %g, given %g",
                        name, least, most, value);
}

/* The bounds keep every product of two sizes inside 31 bits and of three inside 63. */
hp_status qwen3_config_check(const qwen3_config *c) {
    static const char call[] = "qwen3_config_check";
    if (!c || c->size != sizeof *c)
        return hp_error_set(HP_ERR_ARGUMENT, call,
                            "expected a qwen3_config of %zu bytes, given %zu: use "
                            "QWEN3_CONFIG_INIT",
                            sizeof *c, c ? c->size : 0);
    TRY(check_int("vocab_size", c->vocab_size, 1, 1 << 24));
    TRY(check_int("hidden_size", c->hidden_size, 1, 1 << 16));
    TRY(check_int("intermediate_size", c->intermediate_size, 1, 1 << 20));
    TRY(check_int("num_hidden_layers", c->num_hidden_layers, 1, 1024));
    TRY(check_int("num_attention_heads", c->num_attention_heads, 1, 1024));
    TRY(check_int("num_key_value_heads", c->num_key_value_heads, 1, 1024));
    TRY(check_int("head_dim", c->head_dim, 2, 1024));
    TRY(check_int("max_position_embeddings", c->max_position_embeddings, 1, 1 << 30));
    TRY(check_int("tie_word_embeddings", c->tie_word_embeddings, 0, 1));
    TRY(check_double("rms_norm_eps", c->rms_norm_eps, 0, 1));
    TRY(check_double("rope_theta", c->rope_theta, 1, 1e15));
    TRY(check_double("initializer_range", c->initializer_range, 0, 100));
    if (c->num_attention_heads % c->num_key_value_heads)
        return hp_error_set(HP_ERR_ARGUMENT, call,
                            "expected num_attention_heads to be a multiple of "
                            "num_key_value_heads, given %d and %d",
                            c->num_attention_heads, c->num_key_value_heads);
    if (c->head_dim % 2)
        return hp_error_set(HP_ERR_ARGUMENT, call,
                            "expected an even head_dim, since positions turn pairs of numbers, "
                            "given %d",
                            c->head_dim);
    return HP_OK;
}

/* ---- writing ---- */

/* The shortest decimal that reads back as the same double; with a point or an exponent, since
 * Transformers tells 1 from 1.0. */
static const char *shortest(double value, char out_text[32]) {
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(out_text, 32, "%.*g", digits, value);
        if (strtod(out_text, NULL) == value)
            break;
    }
    if (!strpbrk(out_text, ".e"))
        strcat(out_text, ".0");
    return out_text;
}

static const char *torch_name(hp_dtype dtype) {
    switch (dtype) {
    case HP_BF16:
        return "bfloat16";
    case HP_FP16:
        return "float16";
    case HP_FP64:
        return "float64";
    default:
        return "float32";
    }
}

int qwen3_config_write(const qwen3_config *c, hp_dtype dtype, char *out_text, size_t n_bytes) {
    char theta[32], eps[32], range[32];
    shortest(c->rope_theta, theta);
    /* rope_theta and torch_dtype at the top for Transformers 4, rope_parameters for 5. */
    const int n = snprintf(
        out_text, n_bytes,
        "{\n"
        "  \"architectures\": [\n"
        "    \"Qwen3ForCausalLM\"\n"
        "  ],\n"
        "  \"attention_bias\": false,\n"
        "  \"attention_dropout\": 0.0,\n"
        "  \"head_dim\": %d,\n"
        "  \"hidden_act\": \"silu\",\n"
        "  \"hidden_size\": %d,\n"
        "  \"initializer_range\": %s,\n"
        "  \"intermediate_size\": %d,\n"
        "  \"max_position_embeddings\": %d,\n"
        "  \"model_type\": \"qwen3\",\n"
        "  \"num_attention_heads\": %d,\n"
        "  \"num_hidden_layers\": %d,\n"
        "  \"num_key_value_heads\": %d,\n"
        "  \"rms_norm_eps\": %s,\n"
        "  \"rope_parameters\": {\n"
        "    \"rope_theta\": %s,\n"
        "    \"rope_type\": \"default\"\n"
        "  },\n"
        "  \"rope_theta\": %s,\n"
        "  \"tie_word_embeddings\": %s,\n"
        "  \"torch_dtype\": \"%s\",\n"
        "  \"use_cache\": true,\n"
        "  \"use_sliding_window\": false,\n"
        "  \"vocab_size\": %d\n"
        "}\n",
        c->head_dim, c->hidden_size, shortest(c->initializer_range, range), c->intermediate_size,
        c->max_position_embeddings, c->num_attention_heads, c->num_hidden_layers,
        c->num_key_value_heads, shortest(c->rms_norm_eps, eps), theta, theta,
        c->tie_word_embeddings ? "true" : "false", torch_name(dtype), c->vocab_size);
    return n >= 0 && (size_t)n < n_bytes ? n : -1;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * qwen3/config.c - the sizes checked against each other, and written as a config.json.
 *
 * What is written is what Transformers 4 and 5 both read. Reading stands in config_read.c.
 */
#include "config.h"
#include "common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the sizes against each other ---- */

static const char call[] = "qwen3_config_check";

/* The bounds keep every product of two sizes inside 40 bits and of three inside 63. */
static hp_status check_ints(const qwen3_config *c) {
    const struct {
        const char *name;
        int value, least, most;
    } sizes[] = {
        {"vocab_size", c->vocab_size, 1, 1 << 24},
        {"hidden_size", c->hidden_size, 1, 1 << 16},
        {"intermediate_size", c->intermediate_size, 1, 1 << 20},
        {"num_hidden_layers", c->num_hidden_layers, 1, 1024},
        {"num_attention_heads", c->num_attention_heads, 1, 1024},
        {"num_key_value_heads", c->num_key_value_heads, 1, 1024},
        {"head_dim", c->head_dim, 2, 1024},
        {"max_position_embeddings", c->max_position_embeddings, 1, 1 << 30},
        {"tie_word_embeddings", c->tie_word_embeddings, 0, 1},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].value < sizes[i].least || sizes[i].value > sizes[i].most)
            return hp_error_set(HP_ERR_ARGUMENT, call, "expected %s of %d to %d, given %d",
                                sizes[i].name, sizes[i].least, sizes[i].most, sizes[i].value);
    return HP_OK;
}

/* A NaN is outside of every interval. */
static hp_status check_doubles(const qwen3_config *c) {
    const struct {
        const char *name;
        double value, least, most;
    } numbers[] = {
        {"rms_norm_eps", c->rms_norm_eps, 0, 1},
        {"rope_theta", c->rope_theta, 1, 1e15},
        {"initializer_range", c->initializer_range, 0, 100},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!(numbers[i].value >= numbers[i].least && numbers[i].value <= numbers[i].most))
            return hp_error_set(HP_ERR_ARGUMENT, call, "expected %s of %g to %g, given %g",
                                numbers[i].name, numbers[i].least, numbers[i].most,
                                numbers[i].value);
    return HP_OK;
}

hp_status qwen3_config_check(const qwen3_config *c) {
    if (!c || c->size != sizeof *c)
        return hp_error_set(HP_ERR_ARGUMENT, call,
                            "expected a qwen3_config of %zu bytes, given %zu: use "
                            "QWEN3_CONFIG_INIT",
                            sizeof *c, c ? c->size : 0);
    TRY(check_ints(c));
    TRY(check_doubles(c));
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

/* JSON has a point, whatever the program's locale puts there; it may take several bytes. */
static void make_point(char *number) {
    char *at = number + strspn(number, "-+e0123456789");
    if (!*at)
        return;
    const char *rest = at + strcspn(at, "0123456789");
    *at = '.';
    memmove(at + 1, rest, strlen(rest) + 1);
}

/* The shortest decimal that reads back as the same double; with a point or an exponent, since
 * Transformers tells 1 from 1.0. */
static const char *shortest(double value, char out_text[32]) {
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(out_text, 32, "%.*g", digits, value);
        if (strtod(out_text, NULL) == value)
            break;
    }
    make_point(out_text);
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

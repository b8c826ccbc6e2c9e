/* SPDX-License-Identifier: Apache-2.0
 *
 * qwen3/config_read.c - config.json read and checked.
 *
 * Every name that Transformers writes is known: with a place in qwen3_config, with the one value
 * that is built, or passed over because the numbers do not depend on it. Another name is refused,
 * since nobody can say what it would change. Nothing reaches the caller before the whole file was
 * good. cJSON finds the values (docs/decisions/0004-json-of-models.md).
 */
#include "common.h"
#include "config.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char call[] = "qwen3_config_read";

/* A config.json has a few kilobytes; what is longer is something else. */
enum { MOST_BYTES = 1 << 20 };
/* num_key_value_heads until all fields are known, when it is null. */
enum { AS_HEADS = INT_MIN };

/* ---- what may be done with a field ---- */

/* Where a value stands, for messages. */
typedef struct place {
    const char *path, *field;
} place;

static hp_status refuse(const place *at, hp_status status, const char *expected,
                        const cJSON *value) {
    char *given = cJSON_PrintUnformatted(value);
    hp_error_set(status, call, "%s: expected %s %s, given %.60s%s", at->path, at->field, expected,
                 given ? given : "?", given && strlen(given) > 60 ? "..." : "");
    cJSON_free(given);
    return status;
}

/* A whole number that an int can hold; qwen3_config_check knows the bounds. */
static hp_status take_int(const place *at, const cJSON *value, void *out) {
    const double number = value->valuedouble;
    if (!cJSON_IsNumber(value) || !(number > INT_MIN && number <= INT_MAX) ||
        number != floor(number))
        return refuse(at, HP_ERR_FORMAT, "to be a whole number of at most 31 bits", value);
    *(int *)out = (int)number;
    return HP_OK;
}

static hp_status take_int_or_null(const place *at, const cJSON *value, void *out) {
    if (!cJSON_IsNull(value))
        return take_int(at, value, out);
    *(int *)out = AS_HEADS;
    return HP_OK;
}

static hp_status take_double(const place *at, const cJSON *value, void *out) {
    if (!cJSON_IsNumber(value) || !isfinite(value->valuedouble))
        return refuse(at, HP_ERR_FORMAT, "to be a finite number", value);
    *(double *)out = value->valuedouble;
    return HP_OK;
}

static hp_status take_bool(const place *at, const cJSON *value, void *out) {
    if (!cJSON_IsBool(value))
        return refuse(at, HP_ERR_FORMAT, "to be true or false", value);
    *(int *)out = cJSON_IsTrue(value);
    return HP_OK;
}

static hp_status want_false(const place *at, const cJSON *value, void *out) {
    (void)out;
    if (!cJSON_IsBool(value))
        return refuse(at, HP_ERR_FORMAT, "to be true or false", value);
    return cJSON_IsFalse(value) ? HP_OK
                                : refuse(at, HP_ERR_UNSUPPORTED, "to be false (not built)", value);
}

static hp_status want_zero(const place *at, const cJSON *value, void *out) {
    (void)out;
    if (!cJSON_IsNumber(value))
        return refuse(at, HP_ERR_FORMAT, "to be a number", value);
    return value->valuedouble == 0 ? HP_OK
                                   : refuse(at, HP_ERR_UNSUPPORTED, "to be 0 (not built)", value);
}

/* null, {} or []. */
static hp_status want_nothing(const place *at, const cJSON *value, void *out) {
    (void)out;
    if (cJSON_IsNull(value) || ((cJSON_IsObject(value) || cJSON_IsArray(value)) && !value->child))
        return HP_OK;
    return refuse(at, HP_ERR_UNSUPPORTED, "to be null or empty (not built)", value);
}

static hp_status want_text(const place *at, const cJSON *value, const char *text) {
    char expected[64];
    snprintf(expected, sizeof expected, "to be \"%s\"", text);
    if (!cJSON_IsString(value))
        return refuse(at, HP_ERR_FORMAT, expected, value);
    return strcmp(value->valuestring, text) == 0 ? HP_OK
                                                 : refuse(at, HP_ERR_UNSUPPORTED, expected, value);
}

static hp_status want_qwen3(const place *at, const cJSON *value, void *out) {
    (void)out;
    return want_text(at, value, "qwen3");
}

static hp_status want_silu(const place *at, const cJSON *value, void *out) {
    (void)out;
    return want_text(at, value, "silu");
}

static hp_status want_default(const place *at, const cJSON *value, void *out) {
    (void)out;
    return want_text(at, value, "default");
}

static hp_status want_causal_lm(const place *at, const cJSON *value, void *out) {
    (void)out;
    if (!cJSON_IsNull(value) && !cJSON_IsArray(value))
        return refuse(at, HP_ERR_FORMAT, "to be a list of names", value);
    for (const cJSON *name = value->child; name; name = name->next)
        if (cJSON_IsString(name) && strcmp(name->valuestring, "Qwen3ForCausalLM") == 0)
            return HP_OK;
    return cJSON_IsNull(value)
               ? HP_OK
               : refuse(at, HP_ERR_UNSUPPORTED, "to hold \"Qwen3ForCausalLM\"", value);
}

/* How many there must be is known when all fields are. */
static hp_status want_full_attention(const place *at, const cJSON *value, void *out) {
    (void)out;
    if (!cJSON_IsNull(value) && !cJSON_IsArray(value))
        return refuse(at, HP_ERR_FORMAT, "to be a list of names", value);
    for (const cJSON *name = value->child; name; name = name->next)
        TRY(want_text(at, name, "full_attention"));
    return HP_OK;
}

static hp_status take_rope(const place *at, const cJSON *value, void *out);

/* ---- the fields ---- */

typedef struct field {
    const char *name;
    hp_status (*take)(const place *at, const cJSON *value, void *out);
    size_t offset;    /* in qwen3_config, where `take` stores something */
    bool is_required; /* what a shape would have to be guessed without */
} field;

#define AT(member) offsetof(qwen3_config, member)
static const field fields[] = {
    {"vocab_size", take_int, AT(vocab_size), true},
    {"hidden_size", take_int, AT(hidden_size), true},
    {"intermediate_size", take_int, AT(intermediate_size), true},
    {"num_hidden_layers", take_int, AT(num_hidden_layers), true},
    {"num_attention_heads", take_int, AT(num_attention_heads), true},
    {"num_key_value_heads", take_int_or_null, AT(num_key_value_heads), true},
    {"head_dim", take_int, AT(head_dim), false},
    {"max_position_embeddings", take_int, AT(max_position_embeddings), false},
    {"tie_word_embeddings", take_bool, AT(tie_word_embeddings), false},
    {"rms_norm_eps", take_double, AT(rms_norm_eps), false},
    {"rope_theta", take_double, AT(rope_theta), false},
    {"rope_parameters", take_rope, AT(rope_theta), false},
    {"rope_scaling", take_rope, AT(rope_theta), false},
    {"initializer_range", take_double, AT(initializer_range), false},
    {"model_type", want_qwen3, 0, true},
    {"architectures", want_causal_lm, 0, false},
    {"hidden_act", want_silu, 0, false},
    {"attention_bias", want_false, 0, false},
    {"attention_dropout", want_zero, 0, false},
    {"use_sliding_window", want_false, 0, false},
    {"layer_types", want_full_attention, 0, false},
    {"pruned_heads", want_nothing, 0, false},
    {"per_layer_config", want_nothing, 0, false},
    {"is_encoder_decoder", want_false, 0, false},
    {"add_cross_attention", want_false, 0, false},
};
/* In rope_parameters (Transformers 5) and rope_scaling (4, where it is null as a rule). */
static const field rope_fields[] = {
    {"rope_type", want_default, 0, false},
    {"type", want_default, 0, false},
    {"rope_theta", take_double, 0, false},
};
enum { N_FIELDS = sizeof fields / sizeof *fields };
enum { N_ROPE_FIELDS = sizeof rope_fields / sizeof *rope_fields };

/* The numbers do not depend on them: labels, places, how text is generated. */
/* clang-format off */
static const char *const passed_over[] = {
    "_attn_implementation_autoset", "_commit_hash", "_name_or_path", "bad_words_ids",
    "begin_suppress_tokens", "bos_token_id", "chunk_size_feed_forward",
    "cross_attention_hidden_size", "decoder_start_token_id", "diversity_penalty", "do_sample",
    "dtype", "early_stopping", "encoder_no_repeat_ngram_size", "eos_token_id",
    "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id",
    "forced_eos_token_id", "id2label", "is_decoder", "label2id", "length_penalty", "max_length",
    "max_window_layers", "min_length", "no_repeat_ngram_size", "num_beam_groups", "num_beams",
    "num_labels", "num_return_sequences", "output_attentions", "output_hidden_states",
    "output_scores", "pad_token_id", "prefix", "problem_type", "remove_invalid_values",
    "repetition_penalty", "return_dict", "return_dict_in_generate", "sep_token_id",
    "sliding_window", "suppress_tokens", "task_specific_params", "temperature", "tf_legacy_loss",
    "tie_encoder_decoder", "tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript",
    "transformers_version", "typical_p", "use_bfloat16", "use_cache",
};
/* clang-format on */

static const field *find(const field *table, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(table[i].name, name) == 0)
            return &table[i];
    return NULL;
}

static bool is_passed_over(const char *name) {
    for (size_t i = 0; i < sizeof passed_over / sizeof *passed_over; i++)
        if (strcmp(passed_over[i], name) == 0)
            return true;
    return false;
}

/* Each member of the object by its row, once. out_seen: [n], whether a row's name was there. */
static hp_status take_fields(const place *at, const cJSON *object, const field *table, size_t n,
                             void *out, bool *out_seen) {
    memset(out_seen, 0, n * sizeof *out_seen);
    for (const cJSON *value = object->child; value; value = value->next) {
        const field *row = find(table, n, value->string);
        if (!row && table == fields && is_passed_over(value->string))
            continue;
        if (!row)
            return hp_error_set(HP_ERR_FORMAT, call,
                                "%s: expected the fields of Transformers' Qwen3Config%s%s, "
                                "given %.60s",
                                at->path, *at->field ? " in " : "", at->field, value->string);
        if (out_seen[row - table])
            return hp_error_set(HP_ERR_FORMAT, call, "%s: expected %s once, given it twice",
                                at->path, row->name);
        out_seen[row - table] = true;
        TRY(row->take(&(place){at->path, row->name}, value, (char *)out + row->offset));
    }
    return HP_OK;
}

/* The type comes first: which other fields there may be depends on it. */
static hp_status take_rope(const place *at, const cJSON *value, void *out) {
    bool seen[N_ROPE_FIELDS];
    if (cJSON_IsNull(value))
        return HP_OK;
    if (!cJSON_IsObject(value))
        return refuse(at, HP_ERR_FORMAT, "to be an object or null", value);
    for (int i = 0; i < N_ROPE_FIELDS; i++) {
        const cJSON *type = cJSON_GetObjectItemCaseSensitive(value, rope_fields[i].name);
        if (type && rope_fields[i].take == want_default)
            TRY(want_default(&(place){at->path, rope_fields[i].name}, type, NULL));
    }
    return take_fields(at, value, rope_fields, N_ROPE_FIELDS, out, seen);
}

/* ---- the file as a whole ---- */

/* rope_theta may stand at the top and inside, but then it has to be one number. */
static hp_status check_theta(const char *path, const cJSON *root, double taken) {
    static const char *const outer[] = {"rope_parameters", "rope_scaling"};
    const cJSON *theta[3] = {cJSON_GetObjectItemCaseSensitive(root, "rope_theta")};
    for (int i = 0; i < 2; i++)
        theta[1 + i] = cJSON_GetObjectItemCaseSensitive(
            cJSON_GetObjectItemCaseSensitive(root, outer[i]), "rope_theta");
    for (int i = 0; i < 3; i++)
        if (theta[i] && theta[i]->valuedouble != taken)
            return hp_error_set(HP_ERR_FORMAT, call, "%s: expected one rope_theta, given %g and %g",
                                path, theta[i]->valuedouble, taken);
    return HP_OK;
}

static hp_status check_n_layer_types(const char *path, const cJSON *root, int n_layers) {
    const cJSON *types = cJSON_GetObjectItemCaseSensitive(root, "layer_types");
    const int n = cJSON_GetArraySize(types);
    if (!cJSON_IsArray(types) || n == n_layers)
        return HP_OK;
    return hp_error_set(HP_ERR_FORMAT, call, "%s: expected layer_types of %d layers, given %d",
                        path, n_layers, n);
}

static hp_status check_sizes(const char *path, const qwen3_config *config) {
    hp_error error;
    if (qwen3_config_check(config) == HP_OK)
        return HP_OK;
    hp_last_error_get(&error);
    return hp_error_set(HP_ERR_FORMAT, call, "%s: %s", path, error.message);
}

static hp_status take_root(const char *path, const cJSON *root, qwen3_config *out_config) {
    bool seen[N_FIELDS];
    qwen3_config config = QWEN3_CONFIG_INIT;
    if (!cJSON_IsObject(root))
        return hp_error_set(HP_ERR_FORMAT, call, "%s: expected a JSON object, given another value",
                            path);
    TRY(take_fields(&(place){path, ""}, root, fields, N_FIELDS, &config, seen));
    for (int i = 0; i < N_FIELDS; i++)
        if (fields[i].is_required && !seen[i])
            return hp_error_set(HP_ERR_FORMAT, call, "%s: expected the field %s, which is missing",
                                path, fields[i].name);
    if (config.num_key_value_heads == AS_HEADS)
        config.num_key_value_heads = config.num_attention_heads;
    TRY(check_theta(path, root, config.rope_theta));
    TRY(check_n_layer_types(path, root, config.num_hidden_layers));
    TRY(check_sizes(path, &config));
    *out_config = config;
    return HP_OK;
}

static hp_status fail_file(const char *path) {
    return hp_error_set(HP_ERR_FILE, call, "%s: expected a file that can be read: %s", path,
                        strerror(errno));
}

/* A FIFO would be waited for without O_NONBLOCK, perhaps for ever. */
static hp_status open_text(const char *path, int *out_fd) {
    struct stat about;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return fail_file(path);
    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) {
        close(fd);
        return hp_error_set(HP_ERR_FILE, call, "%s: expected a regular file, it is not one", path);
    }
    *out_fd = fd;
    return HP_OK;
}

/* text: [MOST_BYTES + 1]; no more is asked for, whatever the file's size is. */
static hp_status read_text(const char *path, char *text, size_t *out_n) {
    int fd = -1;
    size_t n = 0;
    ssize_t n_now;
    TRY(open_text(path, &fd));
    do {
        n_now = read(fd, text + n, MOST_BYTES + 1 - n);
        n += n_now > 0 ? (size_t)n_now : 0;
    } while (n_now > 0 || (n_now < 0 && errno == EINTR));
    const hp_status status = n_now < 0 ? fail_file(path) : HP_OK;
    close(fd);
    TRY(status);
    if (n > MOST_BYTES)
        return hp_error_set(HP_ERR_FORMAT, call, "%s: expected at most %d bytes, given more", path,
                            (int)MOST_BYTES);
    *out_n = n;
    return HP_OK;
}

static bool is_blank(const char *text, const char *end) {
    while (text < end && (*text == ' ' || *text == '\t' || *text == '\r' || *text == '\n'))
        text++;
    return text == end;
}

static int line_of(const char *text, const char *at) {
    int line = 1;
    for (; text < at; text++)
        line += *text == '\n';
    return line;
}

static hp_status parse(const char *path, const char *text, size_t n, qwen3_config *out_config) {
    const char *end = text;
    cJSON *root = cJSON_ParseWithLengthOpts(text, n, &end, 0);
    hp_status status;
    /* cJSON ends a string at an escaped NUL, so that "silu\u0000x" would be silu. */
    if (!root || !is_blank(end, text + n) || memmem(text, n, "\\u0000", 6))
        status = hp_error_set(HP_ERR_FORMAT, call,
                              "%s: expected one JSON object, given something else at line %d", path,
                              line_of(text, end));
    else
        status = take_root(path, root, out_config);
    cJSON_Delete(root);
    return status;
}

hp_status qwen3_config_read(const char *path, qwen3_config *out_config) {
    if (!path || !out_config)
        return hp_error_set(HP_ERR_ARGUMENT, call, "expected path and out_config, given NULL");
    char *text = malloc(MOST_BYTES + 1);
    if (!text)
        return hp_error_set(HP_ERR_MEMORY, call, "expected %d bytes of memory", MOST_BYTES + 1);
    size_t n = 0;
    hp_status status = read_text(path, text, &n);
    if (status == HP_OK)
        status = parse(path, text, n, out_config);
    free(text);
    return status;
}

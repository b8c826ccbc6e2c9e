/* SPDX-License-Identifier: Apache-2.0
 *
 * json.c - JSON for checkpoints: jsmn finds the tokens, this file checks and links them.
 *
 * jsmn, even in strict mode, takes texts such as {"a" "b"}, []:] or [1[:]. What it hands over is
 * therefore checked once (one root, each key a string with one value, numbers and words that are
 * such, no NUL) and kept in nodes that know where the next sibling is. A doubled comma, or one that
 * is missing behind a number, is still taken: such a text has one meaning at most, and what is in
 * it is checked by whoever reads it.
 */
#include "json.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>

#define JSMN_STATIC
#define JSMN_STRICT
#define JSMN_PARENT_LINKS
#include <jsmn.h>

/* jsmn counts in int. */
static const uint64_t most_bytes = INT32_MAX;
/* Of brackets in brackets; ours has 5. */
static const int most_depth = 32;

/* ---- strings, decoded in place ------------------------------------------------------------- */

static bool read_hex4(const char *text, const char *end, uint32_t *out) {
    *out = 0;
    if (end - text < 4)
        return false;
    for (int i = 0; i < 4; i++) {
        const int c = tolower((unsigned char)text[i]);
        if (!isxdigit(c))
            return false;
        *out = *out * 16 + (uint32_t)(isdigit(c) ? c - '0' : c - 'a' + 10);
    }
    return true;
}

/* \uXXXX, or the two of a surrogate pair; `in` stands behind the first u and moves on. NUL is
 * refused: our strings end at one. */
static bool read_code_point(const char **in, const char *end, uint32_t *out) {
    uint32_t low;
    if (!read_hex4(*in, end, out) || *out == 0 || *out >> 10 == 0x37)
        return false;
    *in += 4;
    if (*out >> 10 != 0x36)
        return true;
    if (end - *in < 6 || (*in)[0] != '\\' || (*in)[1] != 'u' || !read_hex4(*in + 2, end, &low) ||
        low >> 10 != 0x37)
        return false;
    *in += 6;
    *out = 0x10000 + ((*out & 0x3ff) << 10) + (low & 0x3ff);
    return true;
}

/* At most 4 bytes; an escape is never shorter than its UTF-8. */
static char *write_utf8(char *out, uint32_t c) {
    if (c < 0x80) {
        *out++ = (char)c;
        return out;
    }
    const int n_more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    static const unsigned char lead[] = {0, 0xc0, 0xe0, 0xf0};
    *out++ = (char)(lead[n_more] | (c >> (6 * n_more)));
    for (int i = n_more - 1; i >= 0; i--)
        *out++ = (char)(0x80 | ((c >> (6 * i)) & 0x3f));
    return out;
}

static bool decode_string(char *text, hpi_json_node *node) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *in = text + node->begin, *end = text + node->end;
    char *out = text + node->begin;
    while (in < end) {
        uint32_t c = (unsigned char)*in++;
        if (c == '\\') {
            const char *escape = in < end ? strchr(from, *in) : NULL;
            if (escape && *escape)
                c = (unsigned char)to[escape - from], in++;
            else if (in++ >= end || !read_code_point(&in, end, &c))
                return false;
            out = write_utf8(out, c);
        } else {
            *out++ = (char)c;
        }
    }
    *out = '\0'; /* at the closing quote at the latest */
    node->end = (uint32_t)(out - text);
    return true;
}

/* ---- from tokens to nodes ------------------------------------------------------------------ */

static hpi_json_type type_of(const jsmntok_t *token) {
    switch (token->type) {
    case JSMN_OBJECT:
        return HPI_JSON_OBJECT;
    case JSMN_ARRAY:
        return HPI_JSON_ARRAY;
    case JSMN_STRING:
        return HPI_JSON_STRING;
    default:
        return HPI_JSON_OTHER;
    }
}

static const char *skip_digits(const char *at, const char *end) {
    while (at < end && isdigit((unsigned char)*at))
        at++;
    return at;
}

static bool is_number(const char *at, const char *end) {
    at += at < end && *at == '-';
    const char *digits = at;
    at = skip_digits(at, end);
    if (at == digits || (*digits == '0' && at > digits + 1))
        return false;
    if (at < end && *at == '.') {
        digits = ++at;
        at = skip_digits(at, end);
        if (at == digits)
            return false;
    }
    if (at < end && (*at == 'e' || *at == 'E')) {
        at++;
        digits = at += at < end && (*at == '+' || *at == '-');
        at = skip_digits(at, end);
        if (at == digits)
            return false;
    }
    return at == end;
}

/* jsmn looks at the first letter alone and takes brackets and colons into the rest. */
static bool is_primitive(const char *text, const jsmntok_t *token) {
    static const char *const words[] = {"true", "false", "null"};
    const size_t n = (size_t)(token->end - token->start);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strlen(words[i]) == n && memcmp(text + token->start, words[i], n) == 0)
            return true;
    return is_number(text + token->start, text + token->end);
}

/* Each token hangs where JSON allows it: a key in an object, everything else under a key or in an
 * array. */
static bool is_well_placed(const jsmntok_t *tokens, int i) {
    const jsmntok_t *token = &tokens[i];
    if (token->parent < 0)
        return i == 0 && (token->type == JSMN_OBJECT || token->type == JSMN_ARRAY);
    const jsmntok_t *parent = &tokens[token->parent];
    if (parent->type != JSMN_STRING && token->end > parent->end)
        return false; /* hung there by a colon behind the bracket */
    if (parent->type == JSMN_OBJECT)
        return token->type == JSMN_STRING && token->size == 1;
    const bool is_leaf = token->type == JSMN_STRING || token->type == JSMN_PRIMITIVE;
    return (parent->type == JSMN_STRING || parent->type == JSMN_ARRAY) &&
           (!is_leaf || token->size == 0);
}

static bool link_nodes(const jsmntok_t *tokens, int n, char *text, hpi_json_node *nodes) {
    for (int i = 0; i < n; i++) {
        if (!is_well_placed(tokens, i) ||
            (tokens[i].type == JSMN_PRIMITIVE && !is_primitive(text, &tokens[i])))
            return false;
        nodes[i] =
            (hpi_json_node){type_of(&tokens[i]), (uint32_t)tokens[i].start, (uint32_t)tokens[i].end,
                            (uint32_t)tokens[i].size, (uint32_t)i + 1};
        if (tokens[i].type == JSMN_STRING && !decode_string(text, &nodes[i]))
            return false;
    }
    for (int i = n - 1; i > 0; i--) /* children first: a parent ends where its last child does */
        if (nodes[tokens[i].parent].next < nodes[i].next)
            nodes[tokens[i].parent].next = nodes[i].next;
    return true;
}

/* May `c`, outside a string, come behind `before`, the last byte that is not white space (NUL:
 * none)? jsmn takes quotes, brackets and colons into numbers and words. Refusing them there makes a
 * string begin here exactly where jsmn begins one. */
static bool may_follow(char before, char c) {
    if (c == ':')
        return before == '"';
    if (c == '"' || c == '[' || c == '{')
        return before == '\0' || strchr("[{,:", before);
    return true;
}

/* One value in brackets that are closed as often as opened, with nothing but white space behind it:
 * jsmn loses count where a colon stands behind the root. And shallow: it closes a bracket in time
 * proportional to the depth, so a hostile text of nothing but brackets would take days. */
static bool is_bracketed(const char *text, uint64_t n_bytes) {
    int depth = 0;
    char before = '\0';
    bool in_string = false, is_over = false;
    for (uint64_t i = 0; i < n_bytes; i++) {
        const char c = text[i];
        const bool is_blank = strchr(" \t\r\n", c) != NULL;
        if ((is_over && !is_blank) || (!in_string && !may_follow(before, c)))
            return false;
        if (in_string && c == '\\')
            i++;
        else if (c == '"')
            in_string = !in_string;
        else if (!in_string)
            depth += (c == '[' || c == '{') - (c == ']' || c == '}');
        if (depth > most_depth || depth < 0)
            return false;
        is_over = is_over || (depth == 0 && (c == ']' || c == '}') && !in_string);
        before = is_blank ? before : c;
    }
    return depth == 0;
}

/* The tokens of the text in memory of their own, *out_n of them; NULL with the record written. */
static jsmntok_t *tokenize(const char *what, const char *text, uint64_t n_bytes, int *out_n) {
    jsmn_parser parser;
    jsmn_init(&parser);
    const bool is_fit = n_bytes <= most_bytes && is_bracketed(text, n_bytes);
    const int n = is_fit ? jsmn_parse(&parser, text, n_bytes, NULL, 0) : -1;
    jsmntok_t *tokens = n > 0 ? hpi_alloc((size_t)n, sizeof *tokens) : NULL;
    if (n > 0 && !tokens)
        return NULL;
    jsmn_init(&parser);
    if (n <= 0 || jsmn_parse(&parser, text, n_bytes, tokens, (unsigned)n) != n ||
        parser.pos != n_bytes) {
        (void)HPI_FAIL(HP_ERR_FORMAT, "%s: expected JSON, the text breaks off or is none", what);
        hpi_free(tokens);
        return NULL;
    }
    *out_n = n;
    return tokens;
}

hp_status hpi_json_parse(const char *what, char *text, uint64_t n_bytes, hpi_json *out_json) {
    int n = 0;
    hp_error error;
    jsmntok_t *tokens = tokenize(what, text, n_bytes, &n);
    hpi_json_node *nodes = tokens ? hpi_alloc((size_t)n, sizeof *nodes) : NULL;
    if (!nodes) {
        hp_last_error_get(&error);
        hpi_free(tokens);
        return error.status;
    }
    const bool is_good = link_nodes(tokens, n, text, nodes);
    hpi_free(tokens);
    if (!is_good) {
        hpi_free(nodes);
        return HPI_FAIL(HP_ERR_FORMAT,
                        "%s: expected JSON, found a value out of place, a word that is none or a "
                        "string with a bad escape",
                        what);
    }
    *out_json = (hpi_json){text, nodes, (uint32_t)n};
    return HP_OK;
}

void hpi_json_free(hpi_json *json) {
    hpi_free(json->nodes);
    *json = (hpi_json){0};
}

/* ---- looking things up --------------------------------------------------------------------- */

bool hpi_json_is(const hpi_json *json, hpi_json_at at, hpi_json_type type) {
    return at < json->n_nodes && json->nodes[at].type == type;
}

hpi_json_at hpi_json_first(const hpi_json *json, hpi_json_at parent) {
    const bool is_there = parent < json->n_nodes && json->nodes[parent].next > parent + 1;
    return is_there ? parent + 1 : HPI_JSON_NONE;
}

hpi_json_at hpi_json_next(const hpi_json *json, hpi_json_at parent, hpi_json_at at) {
    const uint32_t next = json->nodes[at].next;
    return next < json->nodes[parent].next ? next : HPI_JSON_NONE;
}

hpi_json_at hpi_json_find(const hpi_json *json, hpi_json_at object, const char *key) {
    if (!hpi_json_is(json, object, HPI_JSON_OBJECT))
        return HPI_JSON_NONE;
    for (hpi_json_at at = hpi_json_first(json, object); at != HPI_JSON_NONE;
         at = hpi_json_next(json, object, at))
        if (strcmp(json->text + json->nodes[at].begin, key) == 0)
            return at + 1;
    return HPI_JSON_NONE;
}

uint32_t hpi_json_size(const hpi_json *json, hpi_json_at at) {
    const bool has_size =
        hpi_json_is(json, at, HPI_JSON_OBJECT) || hpi_json_is(json, at, HPI_JSON_ARRAY);
    return has_size ? json->nodes[at].size : 0;
}

const char *hpi_json_string(const hpi_json *json, hpi_json_at at) {
    return hpi_json_is(json, at, HPI_JSON_STRING) ? json->text + json->nodes[at].begin : NULL;
}

bool hpi_json_u64(const hpi_json *json, hpi_json_at at, uint64_t *out_value) {
    if (!hpi_json_is(json, at, HPI_JSON_OTHER))
        return false;
    uint64_t value = 0;
    for (uint32_t i = json->nodes[at].begin; i < json->nodes[at].end; i++) {
        const char c = json->text[i];
        if (!isdigit((unsigned char)c) || __builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(c - '0'), &value))
            return false;
    }
    *out_value = value;
    return true;
}

/* ---- writing ------------------------------------------------------------------------------- */

/* Room for n more bytes and a NUL. */
static bool make_room(hpi_text *text, uint64_t n) {
    const uint64_t needed = text->n_bytes + n + 1;
    if (needed <= text->capacity)
        return true;
    const uint64_t capacity = hpi_max(needed, hpi_max(4096, 2 * text->capacity));
    char *data = hpi_alloc(capacity, 1);
    text->is_failed = !data;
    if (!data)
        return false;
    if (text->n_bytes)
        memcpy(data, text->data, text->n_bytes);
    hpi_free(text->data);
    text->data = data;
    text->capacity = capacity;
    return true;
}

void hpi_text_add(hpi_text *text, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int n = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (n < 0)
        text->is_failed = true;
    if (text->is_failed || !make_room(text, (uint64_t)n))
        return;
    va_start(arguments, format);
    vsnprintf(text->data + text->n_bytes, (size_t)n + 1, format, arguments);
    va_end(arguments);
    text->n_bytes += (uint64_t)n;
}

void hpi_text_add_escaped(hpi_text *text, const char *string) {
    for (; *string; string++) {
        const unsigned char c = (unsigned char)*string;
        const bool is_special = c < 0x20 || c == '"' || c == '\\';
        hpi_text_add(text, is_special ? "\\u%04x" : "%c", c);
    }
}

void hpi_text_free(hpi_text *text) {
    hpi_free(text->data);
    *text = (hpi_text){0};
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * delay.c - delays put before operations, for tests.
 *
 * A rule is kind=NAME|*,rank=N|*,us=N[,seed=N][,stream=NAME][,unit=NAME]; several are separated by
 * ';' and add up. What is left out matches everything, but `us` must be there. Without a seed the
 * delay is exactly `us`; with one it is uniform in [0, us] and depends on (seed, rank, ordinal of
 * the operation) alone, so that a run can be repeated whatever its threads do.
 */
#include "executor.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

struct rule {
    int32_t kind, stream; /* -1: any */
    int64_t rank, unit;   /* -1: any */
    uint64_t us;
    uint64_t seed;
    bool has_us, has_seed;
};

struct hpi_delay {
    int rank;
    uint32_t n_rules;
    struct rule rules[];
};

static const uint64_t most_us = UINT64_C(3600000000);

static bool is_any(const char *text) {
    return strcmp(text, "*") == 0;
}

static hp_status parse_number(const char *key, const char *text, uint64_t most,
                              uint64_t *out_value) {
    char *end = NULL;
    errno = 0;
    const unsigned long long value = strtoull(text, &end, 10);
    if (errno || *text < '0' || *text > '9' || *end || value > most)
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected %s= of a delay to be a whole number up to %llu, given \"%s\"",
                        key, (unsigned long long)most, text);
    *out_value = value;
    return HP_OK;
}

static hp_status parse_kind(const hp_executor_config *config, const char *text, int32_t *out_kind) {
    char names[400] = "";
    size_t length = 0;
    for (uint32_t i = 0; i < config->n_kinds; i++) {
        const char *name = config->kinds[i].name;
        if (strcmp(name, text) == 0) {
            *out_kind = (int32_t)i;
            return HP_OK;
        }
        if (length < sizeof names)
            length += (size_t)snprintf(names + length, sizeof names - length, "%s, ", name);
    }
    return HPI_FAIL(HP_ERR_ARGUMENT, "expected kind= of a delay to be %sor *, given \"%s\"", names,
                    text);
}

static hp_status parse_stream(const char *text, int32_t *out_stream) {
    for (unsigned i = 0; i < HP_N_STREAMS; i++)
        if (strcmp(hp_stream_id_name(i), text) == 0) {
            *out_stream = (int32_t)i;
            return HP_OK;
        }
    return HPI_FAIL(HP_ERR_ARGUMENT,
                    "expected stream= of a delay to be compute, unshard, reduce, replicate or *, "
                    "given \"%s\"",
                    text);
}

static hp_status parse_unit(const hp_executor_config *config, const char *text, int64_t *out_unit) {
    for (uint32_t i = 0; config->units && i < config->n_units; i++)
        if (config->units[i] && strcmp(config->units[i], text) == 0) {
            *out_unit = i;
            return HP_OK;
        }
    return HPI_FAIL(HP_ERR_ARGUMENT,
                    "expected unit= of a delay to be one of %u units, or *, given \"%s\"",
                    config->units ? config->n_units : 0, text);
}

static hp_status parse_rank(const char *text, int64_t *out_rank) {
    uint64_t rank = 0;
    HP_TRY(parse_number("rank", text, INT32_MAX, &rank));
    *out_rank = (int64_t)rank;
    return HP_OK;
}

/* One key=value of a rule; cut in place. */
static hp_status parse_part(const hp_executor_config *config, char *part, struct rule *rule) {
    char *value = strchr(part, '=');
    if (value)
        *value++ = '\0';
    if (value && strcmp(part, "us") == 0) {
        rule->has_us = true;
        return parse_number(part, value, most_us, &rule->us);
    }
    if (value && strcmp(part, "seed") == 0) {
        rule->has_seed = true;
        return parse_number(part, value, UINT64_MAX, &rule->seed);
    }
    if (value && strcmp(part, "kind") == 0)
        return is_any(value) ? HP_OK : parse_kind(config, value, &rule->kind);
    if (value && strcmp(part, "rank") == 0)
        return is_any(value) ? HP_OK : parse_rank(value, &rule->rank);
    if (value && strcmp(part, "stream") == 0)
        return is_any(value) ? HP_OK : parse_stream(value, &rule->stream);
    if (value && strcmp(part, "unit") == 0)
        return is_any(value) ? HP_OK : parse_unit(config, value, &rule->unit);
    return HPI_FAIL(HP_ERR_ARGUMENT,
                    "expected a delay to consist of kind=, rank=, us=, seed=, stream= and unit=, "
                    "given \"%s\"",
                    part);
}

static hp_status parse_rule(const hp_executor_config *config, char *text, struct rule *out_rule) {
    struct rule rule = {.kind = -1, .stream = -1, .rank = -1, .unit = -1};
    char *rest = NULL;
    for (char *part = strtok_r(text, ",", &rest); part; part = strtok_r(NULL, ",", &rest))
        HP_TRY(parse_part(config, part, &rule));
    if (!rule.has_us)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected us= in every rule of the delay \"%s\"",
                        config->delay);
    *out_rule = rule;
    return HP_OK;
}

static hp_status parse_rules(const hp_executor_config *config, char *text, hpi_delay *delay) {
    char *rest = NULL;
    for (char *one = strtok_r(text, ";", &rest); one; one = strtok_r(NULL, ";", &rest)) {
        struct rule *rule = &delay->rules[delay->n_rules];
        HP_TRY(parse_rule(config, one, rule));
        if (rule->rank < 0 || rule->rank == config->rank)
            delay->n_rules++;
    }
    return HP_OK;
}

hp_status hpi_delay_create(const hp_executor_config *config, hpi_delay **out_delay) {
    if (!config->delay || !*config->delay)
        return HP_OK;
    size_t n_rules = 1;
    for (const char *c = config->delay; *c; c++)
        n_rules += *c == ';';
    hp_status status = HP_ERR_MEMORY;
    char *text = hpi_strdup(config->delay);
    hpi_delay *delay = text ? hpi_alloc(1, sizeof *delay + n_rules * sizeof delay->rules[0]) : NULL;
    if (!delay)
        goto out;
    delay->rank = config->rank;
    status = parse_rules(config, text, delay);
    if (status == HP_OK)
        *out_delay = delay;
    else
        hpi_free(delay);
out:
    hpi_free(text);
    return status;
}

void hpi_delay_destroy(hpi_delay *delay) {
    hpi_free(delay);
}

/* Three steps of the generator, each taking in one of the three numbers. */
static uint64_t random_delay_ns(const struct rule *rule, int rank, uint64_t ordinal) {
    uint64_t state = rule->seed;
    state = hpi_random_next(&state) ^ (uint64_t)rank;
    state = hpi_random_next(&state) ^ ordinal;
    return (uint64_t)(hpi_random_unit(&state) * ((double)rule->us * 1000.0 + 1.0));
}

uint64_t hpi_delay_ns(const hpi_delay *delay, const hp_op *op, uint64_t ordinal) {
    uint64_t sum_ns = 0;
    for (uint32_t i = 0; delay && i < delay->n_rules; i++) {
        const struct rule *rule = &delay->rules[i];
        if ((rule->kind < 0 || rule->kind == op->kind) &&
            (rule->stream < 0 || rule->stream == op->stream) &&
            (rule->unit < 0 || rule->unit == op->unit))
            sum_ns +=
                rule->has_seed ? random_delay_ns(rule, delay->rank, ordinal) : rule->us * 1000;
    }
    return sum_ns;
}

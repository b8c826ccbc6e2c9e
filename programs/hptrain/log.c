/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/log.c - writing the JSON lines, each to every file that wants it.
 */
#include "log.h"
#include "fail.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- JSON ---- */

/* Bytes of the UTF-8 character at the front, 0 where there is none. Source: RFC 3629, section 4.
 */
static size_t utf8_length(const unsigned char *s, size_t n) {
    const size_t length = s[0] < 0x80                   ? 1
                          : s[0] >= 0xc2 && s[0] < 0xe0 ? 2
                          : s[0] >= 0xe0 && s[0] < 0xf0 ? 3
                          : s[0] >= 0xf0 && s[0] < 0xf5 ? 4
                                                        : 0;
    if (!length || length > n)
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    const unsigned second = length > 1 ? s[1] : 0;
    const bool is_bad = (s[0] == 0xe0 && second < 0xa0) || (s[0] == 0xed && second > 0x9f) ||
                        (s[0] == 0xf0 && second < 0x90) || (s[0] == 0xf4 && second > 0x8f);
    return is_bad ? 0 : length;
}

/* A byte that is not part of UTF-8 becomes the replacement character: JSON has no other way. */
static void write_string(FILE *file, const char *name, const char *text, size_t n) {
    const unsigned char *s = (const unsigned char *)text;
    fprintf(file, ", \"%s\": \"", name);
    for (size_t i = 0; i < n;) {
        const size_t length = utf8_length(s + i, n - i);
        if (length == 0)
            fputs("\\ufffd", file);
        else if (s[i] == '"' || s[i] == '\\')
            fprintf(file, "\\%c", s[i]);
        else if (s[i] < 0x20 || s[i] == 0x7f)
            fprintf(file, "\\u%04x", s[i]);
        else
            fwrite(s + i, 1, length, file);
        i += length ? length : 1;
    }
    fputc('"', file);
}

static void write_text(FILE *file, const char *name, const char *text) {
    write_string(file, name, text, strlen(text));
}

static void write_path(FILE *file, const char *name, const char *path) {
    if (*path)
        write_text(file, name, path);
}

/* 17 significant digits give every double back. JSON has no NaN: null. */
static void write_number(FILE *file, const char *name, double value) {
    if (isfinite(value))
        fprintf(file, ", \"%s\": %.17g", name, value);
    else
        fprintf(file, ", \"%s\": null", name);
}

static void write_count(FILE *file, const char *name, uint64_t value) {
    fprintf(file, ", \"%s\": %" PRIu64, name, value);
}

/* ---- lines ---- */

typedef void line_writer(FILE *file, const options *o, const void *what);

static void write_begin(FILE *file, const options *o, const void *what) {
    const run_facts *f = what;
    write_text(file, "model", o->model);
    write_count(file, "n_parameters", f->n_parameters);
    write_count(file, "vocab_size", (uint64_t)f->vocab_size);
    write_text(file, "weights", f->weights);
    write_text(file, "data", f->data);
    write_text(file, "unit", f->unit);
    write_count(file, "n_train", f->n_train);
    write_count(file, "n_held_out", f->n_held_out);
    write_count(file, "n_ranks", (uint64_t)f->n_ranks);
    write_count(file, "n_replicas", (uint64_t)f->n_replicas);
    write_count(file, "n_shards", (uint64_t)f->n_shards);
    write_text(file, "optimizer", o->optimizer);
    write_text(file, "matmul", f->engine);
    write_count(file, "tokens_per_step", f->tokens_per_step);
    write_count(file, "first_step", f->first_step);
    write_count(file, "steps", f->n_steps);
}

static void write_held_out(FILE *file, const options *o, const void *what) {
    const step_record *s = what;
    (void)o;
    write_count(file, "step", s->step);
    write_number(file, "held_out_loss", s->held_out_loss);
}

static void write_step(FILE *file, const options *o, const void *what) {
    const step_record *s = what;
    (void)o;
    write_count(file, "step", s->step);
    write_number(file, "loss", s->loss);
    write_number(file, "lr", s->lr);
    write_number(file, "grad_norm", s->grad_norm);
    fprintf(file,
            ", \"step_ms\": %.3f, \"tokens_per_s\": %.1f, \"exposed_ms\": {\"unshard\": %.3f, "
            "\"reduce\": %.3f, \"replicate\": %.3f}",
            s->step_ms, s->tokens_per_s, s->unshard_ms, s->reduce_ms, s->replicate_ms);
    write_count(file, "peak_bytes", s->peak_bytes);
    if (s->has_held_out)
        write_number(file, "held_out_loss", s->held_out_loss);
}

static void write_sample(FILE *file, const options *o, const void *what) {
    const sample_text *s = what;
    (void)o;
    write_string(file, "prompt", s->prompt, s->n_prompt);
    write_string(file, "text", s->text, s->n_text);
}

static void write_end(FILE *file, const options *o, const void *what) {
    const run_end *e = what;
    write_count(file, "step", e->step);
    fprintf(file, ", \"is_stopped\": %s, \"seconds\": %.3f", e->is_stopped ? "true" : "false",
            e->seconds);
    if (e->n_held_out) {
        write_number(file, "held_out_loss_before", e->held_out_before);
        write_number(file, "held_out_loss_after", e->held_out_after);
    }
    write_path(file, "checkpoint", o->save);
    if (strcmp(o->export, "hf") == 0) {
        char path[PATH_MAX];
        options_export_path(o, path);
        write_text(file, "export", path);
    }
    write_path(file, "log", o->log);
    write_path(file, "trace", o->trace);
    write_path(file, "curve", o->curve);
}

static hp_status write_line(FILE *file, const char *path, const char *event, line_writer *write,
                            const options *o, const void *what) {
    if (!file)
        return HP_OK;
    fprintf(file, "{\"event\": \"%s\"", event);
    write(file, o, what);
    fputs("}\n", file);
    if (fflush(file) != 0)
        return fail(HP_ERR_FILE, "could not write %s: %s", path, strerror(errno));
    return HP_OK;
}

static hp_status write_lines(log_lines *l, const char *event, line_writer *write,
                             const void *what) {
    const bool is_wanted = !l->options->quiet || write == write_sample;
    TRY(write_line(l->file, l->options->log, event, write, l->options, what));
    return is_wanted ? write_line(l->output, "standard output", event, write, l->options, what)
                     : HP_OK;
}

hp_status log_begin(log_lines *l, const run_facts *facts) {
    return write_lines(l, "begin", write_begin, facts);
}
hp_status log_held_out(log_lines *l, uint64_t step, double loss) {
    const step_record record = {.step = step, .held_out_loss = loss};
    return write_lines(l, "held_out", write_held_out, &record);
}
hp_status log_step(log_lines *l, const step_record *record) {
    return write_lines(l, "step", write_step, record);
}
hp_status log_sample(log_lines *l, const sample_text *sample) {
    return write_lines(l, "sample", write_sample, sample);
}
hp_status log_end(log_lines *l, const run_end *end) {
    return write_lines(l, "end", write_end, end);
}

hp_status log_open(log_lines *l, const options *o, bool is_resumed, FILE *output) {
    l->options = o;
    l->output = output;
    if (!*o->log)
        return HP_OK;
    l->file = fopen(o->log, is_resumed ? "a" : "w");
    if (!l->file)
        return fail(HP_ERR_FILE, "expected --log to be a file that can be written, given %s: %s",
                    o->log, strerror(errno));
    return HP_OK;
}

void log_close(log_lines *l) {
    if (l->file)
        (void)fclose(l->file); /* each line was flushed and checked */
    l->file = NULL;
}

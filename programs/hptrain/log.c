/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/log.c - writing the JSON lines, each to every file that wants it.
 */
#include "log.h"
#include "fail.h"
#include "json.h"
#include "stop.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- lines ---- */

typedef void line_writer(FILE *file, const options *o, const void *what);

static void write_begin(FILE *file, const options *o, const void *what) {
    const run_facts *f = what;
    json_text(file, "model", o->model);
    json_count(file, "n_parameters", f->n_parameters);
    json_count(file, "vocab_size", (uint64_t)f->vocab_size);
    json_text(file, "weights", f->weights);
    json_text(file, "data", f->data);
    json_text(file, "unit", f->unit);
    json_count(file, "n_train", f->n_train);
    json_count(file, "n_held_out", f->n_held_out);
    json_count(file, "n_ranks", (uint64_t)f->n_ranks);
    json_count(file, "n_replicas", (uint64_t)f->n_replicas);
    json_count(file, "n_shards", (uint64_t)f->n_shards);
    json_count(file, "n_tensor", (uint64_t)f->n_tensor);
    json_text(file, "comm", f->mode);
    json_text(file, "schedule", f->schedule);
    json_count(file, "restart", (uint64_t)f->n_restarts);
    json_text(file, "optimizer", o->optimizer);
    json_text(file, "matmul", f->engine);
    json_count(file, "tokens_per_step", f->tokens_per_step);
    json_count(file, "first_step", f->first_step);
    json_count(file, "steps", f->n_steps);
    json_name(file, "options");
    fprintf(file, "{\"version\": \"%s\"", hp_version());
    options_write_json(file, o);
    fputc('}', file);
}

void log_write_verified(FILE *file, const verified *v) {
    json_text(file, "rule", v->rule);
    json_text(file, "text", v->text);
    json_count(file, "steps", v->n_steps);
    json_count(file, "operations", v->n_ops);
    json_count(file, "peak_bytes", v->peak_bytes);
    json_count(file, "bound_bytes", v->bound_bytes);
    json_count(file, "steady_bytes", v->steady_bytes);
}

static void write_verified(FILE *file, const options *o, const void *what) {
    const verified *v = what;
    (void)o;
    json_text(file, "what", v->what);
    fprintf(file, ", \"sound\": %s", v->is_sound ? "true" : "false");
    log_write_verified(file, v);
}

static void write_held_out(FILE *file, const options *o, const void *what) {
    const step_record *s = what;
    (void)o;
    json_count(file, "step", s->step);
    json_number(file, "held_out_loss", s->held_out_loss);
}

static void write_step(FILE *file, const options *o, const void *what) {
    const step_record *s = what;
    (void)o;
    json_count(file, "step", s->step);
    json_number(file, "loss", s->loss);
    json_number(file, "lr", s->lr);
    json_number(file, "grad_norm", s->grad_norm);
    fprintf(file,
            ", \"step_ms\": %.3f, \"tokens_per_s\": %.1f, \"exposed_ms\": {\"unshard\": %.3f, "
            "\"reduce\": %.3f, \"replicate\": %.3f}",
            s->step_ms, s->tokens_per_s, s->unshard_ms, s->reduce_ms, s->replicate_ms);
    json_count(file, "peak_bytes", s->peak_bytes);
    if (s->has_held_out)
        json_number(file, "held_out_loss", s->held_out_loss);
}

static void write_sample(FILE *file, const options *o, const void *what) {
    const sample_text *s = what;
    (void)o;
    json_string(file, "prompt", s->prompt, s->n_prompt);
    json_string(file, "text", s->text, s->n_text);
}

static void write_path(FILE *file, const char *name, const char *path) {
    if (*path)
        json_text(file, name, path);
}

static void write_end(FILE *file, const options *o, const void *what) {
    const run_end *e = what;
    json_count(file, "step", e->step);
    fprintf(file, ", \"is_stopped\": %s, \"seconds\": %.3f", e->is_stopped ? "true" : "false",
            e->seconds);
    if (e->n_held_out) {
        json_number(file, "held_out_loss_before", e->held_out_before);
        json_number(file, "held_out_loss_after", e->held_out_after);
    }
    write_path(file, "checkpoint", o->save);
    if (strcmp(o->export, "hf") == 0) {
        char path[PATH_MAX];
        options_export_path(o, path);
        json_text(file, "export", path);
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
        return errno == EPIPE && file == stdout
                   ? stop_unread()
                   : fail(HP_ERR_FILE, "could not write %s: %s", path, strerror(errno));
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
hp_status log_verified(log_lines *l, const verified *v) {
    return write_lines(l, "verify", write_verified, v);
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

/* Behind the last end of a line before `end`; 0: there is none. Negative: it cannot be read. */
static off_t last_line_end(int fd, off_t end) {
    char block[4096];
    while (end > 0) {
        const off_t begin = end > (off_t)sizeof block ? end - (off_t)sizeof block : 0;
        ssize_t n = pread(fd, block, (size_t)(end - begin), begin);
        if (n != end - begin)
            return -1;
        while (n > 0 && block[n - 1] != '\n')
            n--;
        if (n > 0)
            return begin + n;
        end = begin;
    }
    return 0;
}

/* A run that was killed while it wrote has left the beginning of a line, which the next line would
 * make unreadable with itself: it goes. A file that cannot be cut is left as it is. */
static void drop_half_line(const char *path) {
    struct stat about;
    if (stat(path, &about) != 0 || !S_ISREG(about.st_mode))
        return;
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    const off_t end = fd >= 0 ? last_line_end(fd, about.st_size) : -1;
    if (end >= 0 && end < about.st_size)
        (void)!ftruncate(fd, end);
    if (fd >= 0)
        (void)close(fd);
}

/* A FIFO without a reader would hold the opening up for ever; one with a reader may be full for a
 * moment, and is waited for. */
static FILE *open_file(const char *path, bool is_resumed) {
    const int way = is_resumed ? O_APPEND : O_TRUNC;
    if (is_resumed)
        drop_half_line(path);
    const int fd = open(path, O_WRONLY | O_CREAT | O_NONBLOCK | O_CLOEXEC | way, 0666);
    if (fd < 0)
        return NULL;
    const int flags = fcntl(fd, F_GETFL);
    FILE *file = fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) == 0 ? fdopen(fd, "a") : NULL;
    if (!file)
        (void)close(fd); /* nothing was written */
    return file;
}

hp_status log_open(log_lines *l, const options *o, bool is_resumed, FILE *output) {
    l->options = o;
    l->output = output;
    if (!*o->log)
        return HP_OK;
    l->file = open_file(o->log, is_resumed);
    if (!l->file && errno == ENXIO)
        return fail(HP_ERR_FILE, "expected --log to be a file, given %s, a FIFO that nobody reads",
                    o->log);
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

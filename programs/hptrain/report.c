/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/report.c - progress, and the words at the beginning and the end.
 */
#include "report.h"
#include "fail.h"
#include "plot.h"

#include <inttypes.h>
#include <langinfo.h>
#include <locale.h>
#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Often enough to look alive, seldom enough to cost nothing. */
static const uint64_t live_every_ns = 100000000, line_every_ns = UINT64_C(5000000000);

uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static const char *file_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

/* "952,832" in `text`. */
static const char *grouped(uint64_t value, char text[32]) {
    char digits[24];
    const int n = snprintf(digits, sizeof digits, "%" PRIu64, value);
    int to = 0;
    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0)
            text[to++] = ',';
        text[to++] = digits[i];
    }
    text[to] = 0;
    return text;
}

/* ---- beginning ---- */

static bool wants_json(const options *o) {
    if (strcmp(o->output, "auto") == 0)
        return isatty(STDOUT_FILENO) != 1;
    return strcmp(o->output, "json") == 0;
}

/* The FILE that people read; NULL when there is none. */
static FILE *choose_text(const options *o) {
    if (o->quiet)
        return NULL;
    if (!wants_json(o))
        return stdout;
    return isatty(STDERR_FILENO) == 1 ? stderr : NULL;
}

static void say_facts(FILE *out, const run_facts *f, const options *o) {
    char text[3][32];
    fprintf(out, "%s: %s parameters; %d %s as %dx%d (replicate x shard); %s; matrix products: %s\n",
            o->model, grouped(f->n_parameters, text[0]), f->n_ranks,
            f->n_ranks == 1 ? "rank" : "ranks", f->n_replicas, f->n_shards, o->optimizer,
            f->engine);
    fprintf(out, "%s: %s %ss to train on, %s held out\n", f->data, grouped(f->n_train, text[0]),
            f->unit, grouped(f->n_held_out, text[1]));
    if (f->first_step < f->n_steps)
        fprintf(out, "steps %s to %s, %s %ss predicted in each\n",
                grouped(f->first_step + 1, text[0]), grouped(f->n_steps, text[1]),
                grouped(f->tokens_per_step, text[2]), f->unit);
    if (f->vocab_size > 256 && strcmp(f->unit, "byte") == 0)
        fprintf(out,
                "the model has %d tokens and gets bytes: is --data meant to be a token file?\n",
                f->vocab_size);
    const long n_cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (f->n_ranks > n_cores)
        fprintf(out, "%d ranks share %ld cores: most of what is exposed is waiting for a core\n",
                f->n_ranks, n_cores);
    fflush(out);
}

hp_status report_begin(report *r, const options *o, const run_facts *facts) {
    r->options = o;
    r->facts = *facts;
    r->text = choose_text(o);
    r->is_live = r->text && isatty(fileno(r->text)) == 1;
    r->held_out_before = r->held_out_after = NAN;
    r->begin_ns = now_ns();
    TRY(log_open(&r->log, o, facts->first_step > 0, wants_json(o) ? stdout : NULL));
    if (r->text)
        say_facts(r->text, facts, o);
    return log_begin(&r->log, facts);
}

/* ---- steps ---- */

hp_status report_held_out(report *r, uint64_t step, double loss) {
    const bool is_first = isnan(r->held_out_before);
    series_add(&r->curve.held_out, step, loss);
    r->held_out_after = loss;
    if (!is_first)
        return HP_OK; /* it stands in the step's line */
    r->held_out_before = loss;
    return log_held_out(&r->log, step, loss);
}

/* Steps still to come at the speed of those that were. */
static uint64_t seconds_left(const report *r, const step_record *s) {
    const uint64_t n_done = s->step - r->facts.first_step;
    const double seconds = (double)(now_ns() - r->begin_ns) * 1e-9;
    return (uint64_t)(seconds / (double)n_done * (double)(r->facts.n_steps - s->step));
}

/* The last step is always shown, so that the final numbers stand there. */
static void show_progress(report *r, const step_record *s) {
    const uint64_t now = now_ns(), left = seconds_left(r, s);
    const bool is_due = now - r->shown_ns >= (r->is_live ? live_every_ns : line_every_ns);
    if (!is_due && s->step != r->facts.n_steps)
        return;
    r->shown_ns = now;
    fprintf(r->text, "%sstep %" PRIu64 "/%" PRIu64 "  loss %.4f", r->is_live ? "\r" : "", s->step,
            r->facts.n_steps, s->loss);
    if (!isnan(r->held_out_after))
        fprintf(r->text, "  held out %.4f", r->held_out_after);
    fprintf(r->text,
            "  %.1fk tokens/s  exposed %.1f ms of %.1f  peak %.1f MB  ETA %" PRIu64 ":%02" PRIu64
            "%s",
            s->tokens_per_s * 1e-3, s->unshard_ms + s->reduce_ms + s->replicate_ms, s->step_ms,
            (double)s->peak_bytes * 1e-6, left / 60, left % 60, r->is_live ? "\033[K" : "\n");
    fflush(r->text);
}

hp_status report_step(report *r, const step_record *record) {
    series_add(&r->curve.train, record->step, record->loss);
    if (r->text)
        show_progress(r, record);
    return log_step(&r->log, record);
}

/* ---- end ---- */

/* Only LC_CTYPE: numbers keep their point in every language. */
static bool is_utf8(void) {
    setlocale(LC_CTYPE, "");
    return strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
}

static hp_status write_picture(const report *r) {
    const run_facts *f = &r->facts;
    char title[256], subtitle[256], text[2][32];
    if (!*r->options->curve)
        return HP_OK;
    snprintf(title, sizeof title, "%.80s on %.160s", file_name(r->options->model),
             file_name(f->data));
    snprintf(subtitle, sizeof subtitle,
             "%s parameters, %d ranks as %d x %d (replicate x shard), %s %ss per step",
             grouped(f->n_parameters, text[0]), f->n_ranks, f->n_replicas, f->n_shards,
             grouped(f->tokens_per_step, text[1]), f->unit);
    return plot_write_svg(&r->curve, title, subtitle, f->unit, r->options->curve);
}

static void say_losses(const report *r, uint64_t n_done, bool is_stopped) {
    const uint64_t n_steps = n_done - r->facts.first_step;
    if (r->is_live && r->shown_ns)
        putc('\n', r->text); /* what follows must not be written over the live line */
    if (n_steps)
        plot_print(&r->curve, r->facts.unit, is_utf8(), r->text);
    if (is_stopped)
        fprintf(r->text, "stopped by a signal after step %" PRIu64 "\n", n_done);
    if (n_steps)
        fprintf(r->text, "held-out loss %.4f -> %.4f nats per %s, %" PRIu64 " steps in %.1f s\n",
                r->held_out_before, r->held_out_after, r->facts.unit, n_steps,
                (double)(now_ns() - r->begin_ns) * 1e-9);
    else
        fprintf(r->text, "held-out loss %.4f nats per %s\n", r->held_out_after, r->facts.unit);
    fflush(r->text);
}

hp_status report_result(report *r, uint64_t n_done, bool is_stopped) {
    if (r->text)
        say_losses(r, n_done, is_stopped);
    return write_picture(r);
}

/* A control character could do anything to a terminal. */
static void print_plainly(FILE *out, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        putc((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f ? '?' : c, out);
    }
}

hp_status report_sample(report *r, const sample_text *sample) {
    FILE *out = r->text ? r->text : r->log.output ? NULL : stdout;
    if (out) {
        if (r->text)
            fprintf(out, "\n");
        print_plainly(out, sample->prompt, sample->n_prompt);
        print_plainly(out, sample->text, sample->n_text);
        fprintf(out, r->text ? "\n\n" : "\n");
        fflush(out);
    }
    return log_sample(&r->log, sample);
}

static void say_what_was_written(FILE *out, const options *o) {
    if (*o->log)
        fprintf(out, "log         %s\n", o->log);
    if (*o->curve)
        fprintf(out, "loss curve  %s\n", o->curve);
    if (*o->trace)
        fprintf(out,
                "trace       %s/trace-*.json, one per rank: open in Perfetto or chrome://tracing\n",
                o->trace);
    if (*o->save)
        fprintf(out, "checkpoint  %s\n", o->save);
    if (strcmp(o->export, "hf") == 0)
        fprintf(out, "model       %s/hf, for Transformers and for --model\n", o->save);
}

/* One thing to try, the first that this run has not done. */
static void say_what_next(FILE *out, const report *r, uint64_t n_done) {
    const options *o = r->options;
    fprintf(out, "try next: ");
    if (*o->save && n_done < r->facts.n_steps)
        fprintf(out, "the same command with --resume %s goes on from step %" PRIu64 "\n", o->save,
                n_done);
    else if (*o->save)
        fprintf(out,
                "--resume %s --steps %" PRIu64
                " goes on from this checkpoint, on any number of ranks and any --mesh\n",
                o->save, n_done ? 2 * n_done : 100);
    else if (r->facts.n_ranks == 1)
        fprintf(out, "hprun -n 8 hptrain --mesh 2x4 trains over 8 ranks\n");
    else
        fprintf(out, "--schedule serial shows what a step costs when no communication is hidden\n");
}

hp_status report_end(report *r, uint64_t n_done, bool is_stopped) {
    const run_end end = {n_done, (double)(now_ns() - r->begin_ns) * 1e-9, r->held_out_before,
                         r->held_out_after, is_stopped};
    if (r->text) {
        say_what_was_written(r->text, r->options);
        say_what_next(r->text, r, n_done);
        fflush(r->text);
    }
    return log_end(&r->log, &end);
}

void report_close(report *r) {
    log_close(&r->log);
}

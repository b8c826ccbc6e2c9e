/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/report.c - log, progress, and the words at the beginning and the end.
 */
#include "report.h"
#include "fail.h"
#include "plot.h"

#include <errno.h>
#include <inttypes.h>
#include <langinfo.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
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
    return slash ? slash + 1 : path;
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

/* Steps of a resumed run follow those that the log has already. */
static hp_status open_log(report *r) {
    const char *path = r->options->log;
    if (!*path)
        return HP_OK;
    r->log = fopen(path, r->facts.first_step ? "a" : "w");
    if (!r->log)
        return fail(HP_ERR_FILE, "expected --log to be a file that can be written, given %s: %s",
                    path, strerror(errno));
    return HP_OK;
}

static void say_facts(const run_facts *f, const options *o) {
    char text[3][32];
    printf("%s: %s parameters; %d %s as %dx%d (replicate x shard); %s\n", o->model,
           grouped(f->n_parameters, text[0]), f->n_ranks, f->n_ranks == 1 ? "rank" : "ranks",
           f->n_replicas, f->n_shards, o->optimizer);
    printf("%s: %s bytes to train on, %s held out\n", f->data, grouped(f->n_train_bytes, text[0]),
           grouped(f->n_held_out_bytes, text[1]));
    printf("steps %s to %s, %s bytes predicted in each\n", grouped(f->first_step + 1, text[0]),
           grouped(f->n_steps, text[1]), grouped(f->tokens_per_step, text[2]));
    const long n_cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (f->n_ranks > n_cores)
        printf("%d ranks share %ld cores: most of what is exposed is waiting for a core\n",
               f->n_ranks, n_cores);
    fflush(stdout);
}

hp_status report_begin(report *r, const options *o, const run_facts *facts) {
    r->options = o;
    r->facts = *facts;
    r->is_live = isatty(STDOUT_FILENO) == 1;
    r->held_out_before = r->held_out_after = NAN;
    r->begin_ns = now_ns();
    TRY(open_log(r));
    say_facts(facts, o);
    return HP_OK;
}

/* ---- steps ---- */

void report_held_out(report *r, uint64_t step, double loss) {
    series_add(&r->curve.held_out, step, loss);
    if (isnan(r->held_out_before))
        r->held_out_before = loss;
    r->held_out_after = loss;
}

/* 17 significant digits give every double back. JSON has no NaN: null. */
static void write_number(FILE *file, const char *name, double value) {
    if (isfinite(value))
        fprintf(file, "\"%s\": %.17g", name, value);
    else
        fprintf(file, "\"%s\": null", name);
}

/* Flushed line by line: a run that is killed leaves all of its steps. */
static hp_status write_log(report *r, const step_record *s) {
    if (!r->log)
        return HP_OK;
    fprintf(r->log, "{\"step\": %" PRIu64 ", ", s->step);
    write_number(r->log, "loss", s->loss);
    fprintf(r->log,
            ", \"step_ms\": %.3f, \"tokens_per_s\": %.1f, \"exposed_ms\": {\"unshard\": %.3f, "
            "\"reduce\": %.3f, \"replicate\": %.3f}, \"peak_bytes\": %" PRIu64,
            s->step_ms, s->tokens_per_s, s->unshard_ms, s->reduce_ms, s->replicate_ms,
            s->peak_bytes);
    if (!isnan(s->held_out_loss)) {
        fputs(", ", r->log);
        write_number(r->log, "held_out_loss", s->held_out_loss);
    }
    fputs("}\n", r->log);
    if (fflush(r->log) != 0)
        return fail(HP_ERR_FILE, "could not write --log %s: %s", r->options->log, strerror(errno));
    return HP_OK;
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
    printf("%sstep %" PRIu64 "/%" PRIu64 "  loss %.4f", r->is_live ? "\r" : "", s->step,
           r->facts.n_steps, s->loss);
    if (!isnan(r->held_out_after))
        printf("  held out %.4f", r->held_out_after);
    printf("  %.1fk tokens/s  exposed %.1f ms of %.1f  peak %.1f MB  ETA %" PRIu64 ":%02" PRIu64
           "%s",
           s->tokens_per_s * 1e-3, s->unshard_ms + s->reduce_ms + s->replicate_ms, s->step_ms,
           (double)s->peak_bytes * 1e-6, left / 60, left % 60, r->is_live ? "\033[K" : "\n");
    fflush(stdout);
}

hp_status report_step(report *r, const step_record *record) {
    series_add(&r->curve.train, record->step, record->loss);
    show_progress(r, record);
    return write_log(r, record);
}

/* What follows must not be written over the live line. */
static void end_live_line(const report *r) {
    if (r->is_live && r->shown_ns)
        putchar('\n');
}

void report_say(report *r, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    end_live_line(r);
    vprintf(format, arguments);
    putchar('\n');
    fflush(stdout);
    va_end(arguments);
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
    snprintf(title, sizeof title, "%s on %.200s", r->options->model, file_name(f->data));
    snprintf(subtitle, sizeof subtitle,
             "%s parameters, %d ranks as %d x %d (replicate x shard), %s bytes per step",
             grouped(f->n_parameters, text[0]), f->n_ranks, f->n_replicas, f->n_shards,
             grouped(f->tokens_per_step, text[1]));
    return plot_write_svg(&r->curve, title, subtitle, r->options->curve);
}

static void say_what_was_written(const options *o) {
    if (*o->log)
        printf("log         %s\n", o->log);
    if (*o->curve)
        printf("loss curve  %s\n", o->curve);
    if (*o->trace)
        printf("trace       %s/trace-*.json, one per rank: open in Perfetto or chrome://tracing\n",
               o->trace);
    if (*o->save)
        printf("checkpoint  %s\n", o->save);
}

/* One thing to try, the first that this run has not done. */
static void say_what_next(const report *r, uint64_t n_done) {
    const options *o = r->options;
    printf("try next: ");
    if (*o->save && n_done < r->facts.n_steps)
        printf("the same command with --resume %s goes on from step %" PRIu64 "\n", o->save,
               n_done);
    else if (*o->save)
        printf("--resume %s --steps %" PRIu64
               " goes on from this checkpoint, on any number of ranks "
               "and any --mesh\n",
               o->save, 2 * n_done);
    else if (r->facts.n_ranks == 1)
        printf("hprun -n 8 hptrain --mesh 2x4 trains over 8 ranks\n");
    else
        printf("--schedule serial shows what a step costs when no communication is hidden\n");
}

hp_status report_end(report *r, uint64_t n_done, bool is_stopped) {
    end_live_line(r);
    const double seconds = (double)(now_ns() - r->begin_ns) * 1e-9;
    plot_print(&r->curve, is_utf8(), stdout);
    if (is_stopped)
        printf("stopped by a signal after step %" PRIu64 "\n", n_done);
    printf("held-out loss %.4f -> %.4f nats per byte, %" PRIu64 " steps in %.1f s\n",
           r->held_out_before, r->held_out_after, n_done - r->facts.first_step, seconds);
    TRY(write_picture(r));
    say_what_was_written(r->options);
    say_what_next(r, n_done);
    fflush(stdout);
    return HP_OK;
}

void report_close(report *r) {
    if (r->log)
        (void)fclose(r->log); /* each line was flushed and checked */
    r->log = NULL;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/report.c - progress, and the words at the beginning and the end.
 */
#include "report.h"
#include "fail.h"
#include "plot.h"
#include "schedule.h"
#include "stop.h"

#include <errno.h>
#include <inttypes.h>
#include <langinfo.h>
#include <locale.h>
#include <math.h>
#include <string.h>
#include <sys/ioctl.h>
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

static void say_weights(FILE *out, const run_facts *f, const options *o) {
    if (strcmp(f->weights, "first") == 0)
        fprintf(out, "weights: first ones, of seed %" PRId64 "\n", o->seed);
    else if (*o->resume)
        fprintf(out, "weights: of the checkpoint in %s\n", o->resume);
    else
        fprintf(out, "weights: of %s\n", f->weights);
}

/* Programs that read the lines do not look for it in them: it goes where errors go. */
static void say_engine_note(FILE *out, const run_facts *f) {
    if (f->engine_note)
        fprintf(out, "matrix products: plain loops, several times slower than oneDNN: %s\n",
                f->engine_note);
}

/* "2x4 (replicate x shard)" */
enum { MESH_BYTES = 80 };
static const char *mesh_text(const run_facts *f, const char *times, char out_text[MESH_BYTES]) {
    if (f->n_tensor > 1)
        snprintf(out_text, MESH_BYTES, "%d%s%d%s%d (replicate x shard x tensor)", f->n_replicas,
                 times, f->n_shards, times, f->n_tensor);
    else
        snprintf(out_text, MESH_BYTES, "%d%s%d (replicate x shard)", f->n_replicas, times,
                 f->n_shards);
    return out_text;
}

static void say_facts(FILE *out, const run_facts *f, const options *o) {
    char text[3][32], mesh[MESH_BYTES];
    fprintf(out, "%s: %s parameters; %d %s as %s, %s, %s; %s; matrix products: %s\n", o->model,
            grouped(f->n_parameters, text[0]), f->n_ranks, f->n_ranks == 1 ? "rank" : "ranks",
            mesh_text(f, "x", mesh), f->mode, f->schedule, o->optimizer, f->engine);
    if (f->n_restarts)
        fprintf(out, "restart %d of the job\n", f->n_restarts);
    say_weights(out, f, o);
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
    if (f->n_ranks > f->n_cores)
        fprintf(out, "%d ranks share %d cores: most of what is exposed is waiting for a core\n",
                f->n_ranks, f->n_cores);
    if (!*o->save && f->first_step < f->n_steps)
        fputs("nothing will be saved (no --save)\n", out);
}

/* Text that cannot be written for another reason is not worth the run. */
static void flush(FILE *out) {
    if (fflush(out) != 0 && errno == EPIPE && out == stdout)
        (void)stop_unread();
}

static void say_resumed_note(FILE *out, const run_facts *f, const options *o) {
    if (*f->resumed_note)
        fprintf(out, "note: the run that saved %s goes on otherwise: %s\n", o->resume,
                f->resumed_note);
}

hp_status report_begin(report *r, const options *o, const run_facts *facts) {
    r->options = o;
    r->facts = *facts;
    r->text = choose_text(o);
    r->is_live = r->text && isatty(fileno(r->text)) == 1;
    r->begin_ns = now_ns();
    const bool goes_on = facts->first_step > 0 || facts->n_restarts > 0;
    TRY(log_open(&r->log, o, goes_on, wants_json(o) ? stdout : NULL));
    if (r->text)
        say_facts(r->text, facts, o);
    if (!o->quiet)
        say_engine_note(r->text ? r->text : stderr, facts);
    if (!o->quiet)
        say_resumed_note(r->text ? r->text : stderr, facts, o);
    if (r->text)
        flush(r->text);
    return log_begin(&r->log, facts);
}

hp_status report_verified(report *r, const verified *v) {
    char text[32];
    report_end_line(r);
    if (r->text)
        fprintf(r->text, "verified (%s): %s, %s operations of %d ranks\n", v->what, v->rule,
                grouped(v->n_ops, text), r->facts.n_ranks);
    return log_verified(&r->log, v);
}

/* ---- steps ---- */

hp_status report_held_out(report *r, uint64_t step, double loss) {
    const bool is_first = r->n_held_out++ == 0;
    series_add(&r->curve.held_out, step, loss);
    r->held_out_after = loss;
    r->held_out_step = step;
    if (!is_first)
        return HP_OK; /* it stands in the step's line */
    r->steps_begin_ns = now_ns();
    r->held_out_before = loss;
    return log_held_out(&r->log, step, loss);
}

/* Steps still to come at the speed of those that were; the first ones of a run are slower. */
enum { N_STEPS_BEFORE_ETA = 5 };

static void write_time_left(const report *r, const step_record *s, size_t size, char *out_text) {
    const uint64_t n_done = s->step - r->facts.first_step, n_left = r->facts.n_steps - s->step;
    const double seconds = (double)(now_ns() - r->steps_begin_ns) * 1e-9;
    const uint64_t left = (uint64_t)(seconds / (double)n_done * (double)n_left);
    *out_text = 0;
    if (n_done >= N_STEPS_BEFORE_ETA || n_left == 0)
        snprintf(out_text, size, "  ETA %" PRIu64 ":%02" PRIu64, left / 60, left % 60);
}

/* A piece of the line of progress. */
typedef struct piece {
    int rank; /* the highest goes first where there is no room */
    char text[64];
} piece;
enum { N_PIECES = 6 };

static void make_pieces(const report *r, const step_record *s, piece out[N_PIECES]) {
    const double exposed_ms = s->unshard_ms + s->reduce_ms + s->replicate_ms;
    enum { SIZE = sizeof out->text };
    snprintf(out[0].text, SIZE, "step %" PRIu64 "/%" PRIu64 "  loss %.4f", s->step,
             r->facts.n_steps, s->loss);
    if (r->n_held_out)
        snprintf(out[1].text, SIZE, "  held out %.4f@%" PRIu64, r->held_out_after,
                 r->held_out_step);
    snprintf(out[2].text, SIZE, "  %.1fk tokens/s", s->tokens_per_s * 1e-3);
    snprintf(out[3].text, SIZE, "  exposed %.1f ms of %.1f", exposed_ms, s->step_ms);
    snprintf(out[4].text, SIZE, "  peak %.1f MB", (double)s->peak_bytes * 1e-6);
    write_time_left(r, s, SIZE, out[5].text);
}

/* A line that wraps could not be written over. The last column stays free: some terminals wrap
 * there. */
static int line_width(const report *r) {
    struct winsize size;
    if (!r->is_live)
        return INT_MAX;
    return ioctl(fileno(r->text), TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col - 1 : 79;
}

static int width_up_to(const piece *pieces, int most) {
    int width = 0;
    for (int i = 0; i < N_PIECES; i++)
        width += pieces[i].rank <= most ? (int)strlen(pieces[i].text) : 0;
    return width;
}

static void write_line(report *r, const piece *pieces) {
    int left = line_width(r), most = N_PIECES - 1;
    while (most > 0 && width_up_to(pieces, most) > left)
        most--;
    fputs(r->is_live ? "\r" : "", r->text);
    for (int i = 0; i < N_PIECES && left > 0; i++)
        if (pieces[i].rank <= most)
            left -= fprintf(r->text, "%.*s", left, pieces[i].text);
    fputs(r->is_live ? "\033[K" : "\n", r->text);
    flush(r->text);
    r->is_line_open = r->is_live;
}

/* The last step is always shown, so that the final numbers stand there. */
static void show_progress(report *r, const step_record *s) {
    piece pieces[N_PIECES] = {{.rank = 0}, {.rank = 2}, {.rank = 3},
                              {.rank = 4}, {.rank = 5}, {.rank = 1}};
    const uint64_t now = now_ns();
    const bool is_due = now - r->shown_ns >= (r->is_live ? live_every_ns : line_every_ns);
    if (!is_due && s->step != r->facts.n_steps)
        return;
    r->shown_ns = now;
    make_pieces(r, s, pieces);
    write_line(r, pieces);
}

void report_end_line(report *r) {
    if (!r->is_line_open)
        return;
    putc('\n', r->text);
    fflush(r->text);
    r->is_line_open = false;
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
    char title[256], subtitle[256], text[2][32], mesh[MESH_BYTES];
    if (!*r->options->curve)
        return HP_OK;
    snprintf(title, sizeof title, "%.80s on %.160s", file_name(r->options->model),
             file_name(f->data));
    snprintf(subtitle, sizeof subtitle, "%s parameters, %d ranks as %s, %s %ss per step",
             grouped(f->n_parameters, text[0]), f->n_ranks, mesh_text(f, " x ", mesh),
             grouped(f->tokens_per_step, text[1]), f->unit);
    return plot_write_svg(&r->curve, title, subtitle, f->unit, r->options->curve);
}

/* Fewer make no curve. */
enum { N_STEPS_OF_CURVE = 20 };

static void say_losses(report *r, uint64_t n_done, bool is_stopped) {
    const uint64_t n_steps = n_done - r->facts.first_step;
    report_end_line(r);
    if (n_steps >= N_STEPS_OF_CURVE)
        plot_print(&r->curve, r->facts.unit, is_utf8(), r->text);
    if (is_stopped)
        fprintf(r->text, "stopped by a signal after step %" PRIu64 "\n", n_done);
    if (r->n_held_out > 1)
        fprintf(r->text, "held-out loss %.4f -> %.4f nats per %s, %" PRIu64 " steps in %.1f s\n",
                r->held_out_before, r->held_out_after, r->facts.unit, n_steps,
                (double)(now_ns() - r->begin_ns) * 1e-9);
    else if (r->n_held_out)
        fprintf(r->text, "held-out loss %.4f nats per %s%s\n", r->held_out_after, r->facts.unit,
                n_steps ? " before the first step" : "");
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
    if (strcmp(o->export, "hf") == 0) {
        char path[PATH_MAX];
        options_export_path(o, path);
        fprintf(out, "model       %s, for Transformers and for --model\n", path);
    }
}

/* The command of this run, with --resume of what it saved and other `more` options. */
static void say_command(FILE *out, const report *r, const bool *is_replaced, const char *more) {
    const options *o = r->options;
    const int n = r->facts.n_ranks;
    options given = *o; /* --save is what is resumed */
    given.resume = given.save;
    given.is_given[OPTION_resume] = true;
    fputs("  ", out);
    if (n > 1)
        fprintf(out, "hprun -n %d ", n);
    fputs("hptrain", out);
    options_write_line(out, &given, is_replaced);
    fprintf(out, "%s\n", more);
}

/* A run that was stopped goes on as it is; one that is done goes on at the rate it ended with. */
static void say_how_to_go_on(FILE *out, const report *r, uint64_t n_done) {
    bool is_replaced[N_OPTIONS] = {false};
    char more[128] = "";
    if (n_done < r->facts.n_steps) {
        fprintf(out, "to go on from step %" PRIu64 ":\n", n_done);
    } else if (n_done > r->facts.first_step) {
        fputs("to go on at the rate that this run ended with, on any number of ranks and any "
              "--mesh:\n",
              out);
        is_replaced[OPTION_steps] = is_replaced[OPTION_warmup] = true;
        is_replaced[OPTION_lr] = is_replaced[OPTION_lr_min] = is_replaced[OPTION_lr_decay] = true;
        snprintf(more, sizeof more, " --steps %" PRIu64 " --warmup 0 --lr-decay none --lr %g",
                 2 * n_done, schedule_learning_rate(r->options, n_done));
    } else {
        fputs("to train these weights:\n", out);
        is_replaced[OPTION_steps] = true;
        snprintf(more, sizeof more, " --steps %" PRIu64, n_done + 100);
    }
    say_command(out, r, is_replaced, more);
}

/* One thing to try, the first that this run has not done. */
static void say_what_next(FILE *out, const report *r, uint64_t n_done) {
    fprintf(out, "try next: ");
    if (*r->options->save)
        say_how_to_go_on(out, r, n_done);
    else if (r->facts.n_ranks == 1)
        fprintf(out, "hprun -n 8 hptrain --mesh 2x4 trains over 8 ranks\n");
    else
        fprintf(out, "--schedule serial shows what a step costs when no communication is hidden\n");
}

hp_status report_end(report *r, uint64_t n_done, bool is_stopped) {
    const run_end end = {.step = n_done,
                         .seconds = (double)(now_ns() - r->begin_ns) * 1e-9,
                         .n_held_out = r->n_held_out,
                         .held_out_before = r->held_out_before,
                         .held_out_after = r->held_out_after,
                         .is_stopped = is_stopped};
    if (r->text) {
        say_what_was_written(r->text, r->options);
        say_what_next(r->text, r, n_done);
        fflush(r->text);
    }
    return log_end(&r->log, &end);
}

void report_close(report *r) {
    report_end_line(r); /* of a run that has failed */
    log_close(&r->log);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/plot_svg.c - the loss curve as a self-contained SVG.
 *
 * Numbers are written with one decimal in a fixed frame, so equal curves give equal files. Colours
 * are those of Okabe and Ito, which readers with any kind of colour vision tell apart.
 */
#include "fail.h"
#include "plot.h"

#include <errno.h>
#include <string.h>

enum { WIDTH = 820, HEIGHT = 460, LEFT = 68, RIGHT = 790, TOP = 74, BOTTOM = 404 };

typedef struct frame {
    FILE *file;
    axis steps, losses;
} frame;

/* From values to pixels; y grows downwards. */
static double x_of(const frame *f, double step) {
    return LEFT + (RIGHT - LEFT) * axis_place(&f->steps, step);
}

static double y_of(const frame *f, double loss) {
    return BOTTOM - (BOTTOM - TOP) * axis_place(&f->losses, loss);
}

/* The title holds a file name, which may hold anything. */
static void write_escaped(FILE *file, const char *text) {
    for (; *text; text++)
        switch (*text) {
        case '<':
            fputs("&lt;", file);
            break;
        case '>':
            fputs("&gt;", file);
            break;
        case '&':
            fputs("&amp;", file);
            break;
        default:
            fputc((unsigned char)*text < ' ' ? ' ' : *text, file);
        }
}

static void write_text(FILE *file, const char *class, double x, double y, const char *text) {
    fprintf(file, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\">", class, x, y);
    write_escaped(file, text);
    fputs("</text>\n", file);
}

/* The style follows the reader's page: colours for light and for dark. */
static void write_head(FILE *file) {
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
            "height=\"%d\" role=\"img\" aria-label=\"loss over steps\">\n",
            WIDTH, HEIGHT, WIDTH, HEIGHT);
    fputs("<style>\n"
          "svg { background: #ffffff; font-family: system-ui, sans-serif; font-size: 13px; }\n"
          "text { fill: #444444; } .title { fill: #111111; font-size: 17px; font-weight: 600; }\n"
          ".x, .name { text-anchor: middle; } .y { text-anchor: end; }\n"
          ".grid { stroke: #e4e4e4; } .axis { stroke: #888888; }\n"
          ".line { fill: none; stroke-width: 2; stroke-linejoin: round; }\n"
          ".train { stroke: #0072b2; } .held { stroke: #d55e00; }\n"
          ".mark { fill: #d55e00; } .train-text { fill: #0072b2; } .held-text { fill: #d55e00; }\n"
          "@media (prefers-color-scheme: dark) {\n"
          "svg { background: #14171a; } text { fill: #b8bec4; } .title { fill: #f2f2f2; }\n"
          ".grid { stroke: #2a2f34; } .train { stroke: #56b4e9; } .held { stroke: #e69f00; }\n"
          ".mark, .held-text { fill: #e69f00; } .train-text { fill: #56b4e9; }\n"
          "}\n</style>\n",
          file);
}

static void write_line(FILE *file, const char *class, double x0, double y0, double x1, double y1) {
    fprintf(file, "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", class,
            x0, y0, x1, y1);
}

/* Only losses get lines across: steps are read off roughly, losses exactly. */
static void write_axes(const frame *f, const char *unit) {
    char label[32];
    for (int i = 0; i < axis_n_ticks(&f->losses); i++) {
        const double value = f->losses.low + i * f->losses.tick, y = y_of(f, value);
        write_line(f->file, "grid", LEFT, y, RIGHT, y);
        snprintf(label, sizeof label, "%.4g", value);
        write_text(f->file, "y", LEFT - 10, y + 4.5, label);
    }
    for (int i = 0; i < axis_n_ticks(&f->steps); i++) {
        const double value = f->steps.low + i * f->steps.tick, x = x_of(f, value);
        write_line(f->file, "axis", x, BOTTOM, x, BOTTOM + 5);
        snprintf(label, sizeof label, "%.8g", value);
        write_text(f->file, "x", x, BOTTOM + 20, label);
    }
    write_line(f->file, "axis", LEFT, BOTTOM, RIGHT, BOTTOM);
    write_text(f->file, "name", (LEFT + RIGHT) / 2.0, HEIGHT - 14, "step");
    fprintf(f->file,
            "<text class=\"name\" transform=\"translate(20 %.1f) rotate(-90)\">loss (nats per "
            "%s)</text>\n",
            (TOP + BOTTOM) / 2.0, unit);
}

static void write_series(const frame *f, const series *s, const char *class, bool has_marks) {
    fprintf(f->file, "<polyline class=\"line %s\" points=\"", class);
    for (size_t i = 0; i < s->n; i++)
        fprintf(f->file, "%s%.1f,%.1f", i ? " " : "", x_of(f, s->points[i].step),
                y_of(f, s->points[i].loss));
    fputs("\"/>\n", f->file);
    for (size_t i = 0; has_marks && i < s->n; i++)
        fprintf(f->file, "<circle class=\"mark\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"/>\n",
                x_of(f, s->points[i].step), y_of(f, s->points[i].loss));
}

/* One line of the legend: a stroke, the name and the last value. */
static void write_legend(const frame *f, const series *s, int row, const char *class,
                         const char *text_class, const char *name) {
    char label[64];
    const double x = RIGHT - 190, y = TOP + 18 + 22 * row;
    if (!s->n)
        return;
    snprintf(label, sizeof label, "%s, last %.3f", name, s->points[s->n - 1].loss);
    fprintf(f->file, "<line class=\"line %s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n",
            class, x, y - 4.5, x + 26, y - 4.5);
    write_text(f->file, text_class, x + 36, y, label);
}

static void write_all(const curve *c, const char *title, const char *subtitle, const char *unit,
                      FILE *file) {
    const frame f = {file, curve_steps(c, 8), curve_losses(c, 6)};
    write_head(file);
    write_text(file, "title", LEFT, 32, title);
    write_text(file, "subtitle", LEFT, 54, subtitle);
    write_axes(&f, unit);
    write_series(&f, &c->train, "train", false);
    write_series(&f, &c->held_out, "held", true);
    write_legend(&f, &c->train, 0, "train", "train-text", "training");
    write_legend(&f, &c->held_out, 1, "held", "held-text", "held out");
    fputs("</svg>\n", file);
}

hp_status plot_write_svg(const curve *c, const char *title, const char *subtitle, const char *unit,
                         const char *path) {
    errno = 0;
    FILE *file = fopen(path, "w");
    if (!file)
        return fail(HP_ERR_FILE, "expected --curve to be a file that can be written, given %s: %s",
                    path, strerror(errno));
    write_all(c, title, subtitle, unit, file);
    /* A full disk may show only when the last bytes leave the buffer. */
    const bool has_failed = ferror(file) != 0;
    if (fclose(file) != 0 || has_failed)
        return fail(HP_ERR_FILE, "could not write --curve %s: %s", path, strerror(errno));
    return HP_OK;
}

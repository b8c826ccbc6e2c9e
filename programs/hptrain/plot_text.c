/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/plot_text.c - the loss curve in characters.
 *
 * The plot is a grid of dots, two across and four down in each character: the raster of the braille
 * patterns of Unicode (U+2800 + one bit per dot), so that one grid serves both kinds of terminal.
 */
#include "plot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 66, LINES = 15, DOTS_X = 2 * COLUMNS, DOTS_Y = 4 * LINES };

typedef struct grid {
    unsigned char dots[DOTS_Y][DOTS_X];
    bool has_mark[LINES][COLUMNS];
} grid;

/* The nearest of n places to a share of [0, 1]. */
static int nearest(double share, int n) {
    const int at = (int)lround(share * (n - 1));
    return at < 0 ? 0 : at >= n ? n - 1 : at;
}

/* Without it a steep curve would fall into separate dots. */
static void draw_line(grid *g, int x0, int y0, int x1, int y1) {
    const int n = (int)fmax(abs(x1 - x0), abs(y1 - y0));
    for (int i = 0; i <= n; i++) {
        const double share = n ? (double)i / n : 0;
        g->dots[y0 + (int)lround(share * (y1 - y0))][x0 + (int)lround(share * (x1 - x0))] = 1;
    }
}

static void draw(grid *g, const curve *c, const axis *steps, const axis *losses) {
    int last_x = -1, last_y = 0;
    for (size_t i = 0; i < c->train.n; i++) {
        const point *p = &c->train.points[i];
        const int x = nearest(axis_place(steps, p->step), DOTS_X);
        const int y = nearest(1 - axis_place(losses, p->loss), DOTS_Y);
        draw_line(g, last_x < 0 ? x : last_x, last_x < 0 ? y : last_y, x, y);
        last_x = x;
        last_y = y;
    }
    for (size_t i = 0; i < c->held_out.n; i++) {
        const point *p = &c->held_out.points[i];
        g->has_mark[nearest(1 - axis_place(losses, p->loss), LINES)]
                   [nearest(axis_place(steps, p->step), COLUMNS)] = true;
    }
}

static void print_braille(const grid *g, int line, int column, FILE *file) {
    static const unsigned char bit[4][2] = {{0, 3}, {1, 4}, {2, 5}, {6, 7}};
    unsigned pattern = 0;
    for (int y = 0; y < 4; y++)
        for (int x = 0; x < 2; x++)
            pattern |= (unsigned)g->dots[4 * line + y][2 * column + x] << bit[y][x];
    if (pattern) /* U+2800 + pattern in UTF-8 */
        fprintf(file, "\xe2%c%c", 0xa0 | (int)(pattern >> 6), 0x80 | (int)(pattern & 0x3f));
    else
        fputc(' ', file);
}

/* Two dots high is what ASCII can tell apart: a quote above, a point below. */
static void print_ascii(const grid *g, int line, int column, FILE *file) {
    bool half[2] = {false, false};
    for (int y = 0; y < 4; y++)
        for (int x = 0; x < 2; x++)
            half[y / 2] |= g->dots[4 * line + y][2 * column + x] != 0;
    fputc(half[0] && half[1] ? ':' : half[0] ? '\'' : half[1] ? '.' : ' ', file);
}

/* The tick whose line this is, else spaces. */
static void print_loss_label(const axis *losses, int line, FILE *file) {
    for (int i = 0; i < axis_n_ticks(losses); i++) {
        const double value = losses->low + i * losses->tick;
        if (nearest(1 - axis_place(losses, value), LINES) == line) {
            fprintf(file, "%8.4g |", value);
            return;
        }
    }
    fprintf(file, "%8s |", "");
}

/* Labels begin at their tick; a last one may reach past the grid, hence the spare room. */
static void print_steps(const axis *steps, FILE *file) {
    char labels[COLUMNS + 24];
    memset(labels, ' ', sizeof labels);
    fprintf(file, "%8s +", "");
    for (int column = 0; column < COLUMNS; column++)
        fputc('-', file);
    for (int i = 0; i < axis_n_ticks(steps); i++) {
        char label[24];
        const double value = steps->low + i * steps->tick;
        const int n = snprintf(label, sizeof label, "%.6g", value);
        memcpy(labels + nearest(axis_place(steps, value), COLUMNS), label, (size_t)n);
    }
    fprintf(file, "\n%8s  %.*s step\n", "", (int)sizeof labels - 18, labels);
}

static bool is_blank(const grid *g, int line, int column) {
    int n_dots = g->has_mark[line][column];
    for (int y = 0; y < 4; y++)
        n_dots += g->dots[4 * line + y][2 * column] + g->dots[4 * line + y][2 * column + 1];
    return n_dots == 0;
}

static void print_line(const grid *g, int line, bool is_utf8, FILE *file) {
    int n = COLUMNS;
    while (n > 0 && is_blank(g, line, n - 1))
        n--;
    for (int column = 0; column < n; column++)
        if (g->has_mark[line][column])
            fputc('o', file);
        else if (is_utf8)
            print_braille(g, line, column, file);
        else
            print_ascii(g, line, column, file);
    fputc('\n', file);
}

void plot_print(const curve *c, const char *unit, bool is_utf8, FILE *file) {
    const axis steps = curve_steps(c, 6), losses = curve_losses(c, 5);
    grid g = {.dots = {{0}}};
    draw(&g, c, &steps, &losses);
    fprintf(file, "    loss, nats per %s: the line is training, o is held out\n", unit);
    for (int line = 0; line < LINES; line++) {
        print_loss_label(&losses, line, file);
        print_line(&g, line, is_utf8, file);
    }
    print_steps(&steps, file);
}

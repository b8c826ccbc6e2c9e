/* SPDX-License-Identifier: Apache-2.0
 *
 * hpreport/page.c - the page: its source with figures and spans filled in.
 *
 * The spans of all ranks are packed as base64 of numbers of 7 bits a byte, the lowest first, the
 * top bit saying that more follow (LEB128). A lane is what one stream of one rank did at one depth;
 * its spans do not overlap. Each is: time since the end of the one before, its length, and twice
 * the number of what it was, plus one when its step is another than that of the one before; then
 * the difference follows (zigzag). What a span was (name, unit, bytes, id, kind) is the same in
 * every step, so it stands once in a list. Spans that took no time are left out. data.js reads it.
 */
#include "assets.h"
#include "die.h"
#include "out.h"

#include <stdlib.h>
#include <string.h>

typedef struct bytes {
    unsigned char *at;
    size_t n, capacity;
} bytes;

typedef struct what {
    uint64_t bytes;
    uint32_t id;
    uint16_t name, unit;
    uint32_t kind;
} what;

/* All there are, and a table with open addressing to find one. */
typedef struct what_list {
    what *at;
    size_t n, capacity;
    uint32_t *slots; /* number + 1; 0: free */
    size_t n_slots;  /* a power of two, more than twice n */
} what_list;

static void put_number(bytes *b, uint64_t value) {
    do {
        b->at = grow(b->at, b->n, &b->capacity, 1);
        b->at[b->n++] = (unsigned char)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
        value >>= 7;
    } while (value);
}

/* Small numbers of either sign become small ones. */
static uint64_t zigzag(int64_t value) {
    return (uint64_t)value << 1 ^ (value < 0 ? UINT64_MAX : 0);
}

static size_t slot_of(const what_list *w, const what *key) {
    uint64_t h = key->bytes * UINT64_C(0x9e3779b97f4a7c15);
    h = (h ^ key->id) * UINT64_C(0x9e3779b97f4a7c15);
    h = (h ^ (uint64_t)key->name << 32 ^ (uint64_t)key->unit << 8 ^ key->kind) *
        UINT64_C(0x9e3779b97f4a7c15);
    return (size_t)(h >> 20) & (w->n_slots - 1);
}

static bool is_same(const what *a, const what *b) {
    return a->bytes == b->bytes && a->id == b->id && a->name == b->name && a->unit == b->unit &&
           a->kind == b->kind;
}

static size_t find(const what_list *w, const what *key) {
    size_t slot = slot_of(w, key);
    while (w->slots[slot] && !is_same(&w->at[w->slots[slot] - 1], key))
        slot = (slot + 1) & (w->n_slots - 1);
    return slot;
}

static void make_room(what_list *w) {
    if (2 * (w->n + 1) < w->n_slots)
        return;
    free(w->slots);
    w->n_slots = w->n_slots ? 2 * w->n_slots : 4096;
    w->slots = take(w->n_slots, sizeof *w->slots);
    for (size_t i = 0; i < w->n; i++)
        w->slots[find(w, &w->at[i])] = (uint32_t)i + 1;
}

static uint64_t number_of(what_list *w, const span *s) {
    const what key = {s->bytes, s->id, s->name, s->unit, s->kind};
    make_room(w);
    const size_t slot = find(w, &key);
    if (!w->slots[slot]) {
        w->at = grow(w->at, w->n, &w->capacity, sizeof *w->at);
        w->at[w->n++] = key;
        w->slots[slot] = (uint32_t)w->n;
    }
    return w->slots[slot] - 1;
}

static bool is_drawn(const span *s, unsigned depth) {
    return s->depth == depth && s->kind != KIND_STEP && s->end_ns > s->begin_ns;
}

/* Returns how many spans it has. */
static size_t pack_lane(bytes *b, what_list *w, const stream *s, unsigned depth,
                        uint64_t begin_ns) {
    uint64_t now_ns = begin_ns;
    uint32_t step = 0;
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        const span *one = &s->spans[i];
        if (!is_drawn(one, depth))
            continue;
        put_number(b, one->begin_ns - now_ns);
        put_number(b, one->end_ns - one->begin_ns);
        put_number(b, 2 * number_of(w, one) + (one->step != step));
        if (one->step != step)
            put_number(b, zigzag((int64_t)one->step - step));
        step = one->step;
        now_ns = one->end_ns;
        n++;
    }
    return n;
}

static unsigned depth_of(const stream *s) {
    unsigned depth = 0;
    for (size_t i = 0; i < s->n; i++)
        depth = s->spans[i].depth > depth ? s->spans[i].depth : depth;
    return depth;
}

static void put_lanes(const figures *f, bytes *b, what_list *w, FILE *file) {
    const run *r = f->run;
    const char *comma = "";
    for (int i = 0; i < r->n_ranks; i++)
        for (int j = 0; j < MAX_STREAMS; j++) {
            const stream *s = &r->ranks[i].streams[j];
            for (unsigned depth = 0; s->n && depth <= depth_of(s); depth++) {
                const size_t before = b->n, n = pack_lane(b, w, s, depth, r->begin_ns);
                if (!n)
                    continue;
                fprintf(file, "%s\n{\"rank\": %d, \"stream\": ", comma, r->ranks[i].rank);
                print_json_text(names_at(r->names, s->name), file);
                fprintf(file, ", \"depth\": %u, \"n\": %zu, \"bytes\": %zu}", depth, n,
                        b->n - before);
                comma = ",";
            }
        }
}

/* Per change: time since the last one, and the difference in bytes (zigzag). */
static void put_memory(const figures *f, bytes *b, FILE *file) {
    for (int i = 0; i < f->run->n_ranks; i++) {
        const rank_memory *m = &f->memory[i];
        const size_t before = b->n;
        uint64_t now_ns = f->run->begin_ns;
        int64_t held = 0;
        for (size_t j = 0; j < m->n; j++) {
            put_number(b, m->points[j].ns - now_ns);
            put_number(b, zigzag(m->points[j].bytes - held));
            now_ns = m->points[j].ns;
            held = m->points[j].bytes;
        }
        fprintf(file, "%s\n{\"rank\": %d, \"n\": %zu, \"bytes\": %zu}", i ? "," : "",
                f->run->ranks[i].rank, m->n, b->n - before);
    }
}

static void put_names(const run *r, FILE *file) {
    for (uint16_t i = 0; i < names_count(r->names); i++) {
        fputs(i ? ", " : "", file);
        print_json_text(names_at(r->names, i), file);
    }
}

/* -1: none. */
static void put_whats(const what_list *w, FILE *file) {
    for (size_t i = 0; i < w->n; i++) {
        const what *a = &w->at[i];
        fprintf(file, "%s[%d,%d,%llu,%lld,%u]", i ? "," : "", a->name == NO_NAME ? -1 : a->name,
                a->unit == NO_NAME ? -1 : a->unit, (unsigned long long)a->bytes,
                a->id == NO_ID ? -1LL : (long long)a->id, a->kind);
    }
}

static void put_data(const figures *f, const char *name, bytes *b, FILE *file) {
    what_list w = {0};
    fputs("{\"figures\": ", file);
    print_json(f, name, file);
    fputs(", \"lanes\": [", file);
    put_lanes(f, b, &w, file);
    fputs("], \"memory\": [", file);
    put_memory(f, b, file);
    fputs("], \"names\": [", file);
    put_names(f->run, file);
    fputs("],\n\"what\": [", file);
    put_whats(&w, file);
    fputs("]}", file);
    free(w.at);
    free(w.slots);
}

static void put_base64(const bytes *b, FILE *file) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < b->n; i += 3) {
        const size_t left = b->n - i;
        const uint32_t v = (uint32_t)b->at[i] << 16 | (left > 1 ? (uint32_t)b->at[i + 1] << 8 : 0) |
                           (left > 2 ? (uint32_t)b->at[i + 2] : 0);
        const char four[4] = {digits[v >> 18], digits[v >> 12 & 63],
                              left > 1 ? digits[v >> 6 & 63] : '=',
                              left > 2 ? digits[v & 63] : '='};
        fwrite(four, 1, 4, file);
    }
}

static void put_escaped(const char *s, FILE *file) {
    for (; *s; s++) {
        if (*s == '<')
            fputs("&lt;", file);
        else if (*s == '&')
            fputs("&amp;", file);
        else
            fputc(*s, file);
    }
}

/* The sentences are there without JavaScript too. */
static void put_summary(const figures *f, FILE *file) {
    for (int i = 0; i < f->n_summary; i++) {
        fputs("<li>", file);
        put_escaped(f->summary[i], file);
        fputs("</li>\n", file);
    }
}

static void put_asset(const char *name, FILE *file) {
    const asset a = asset_named(name);
    fwrite(a.begin, 1, (size_t)(a.end - a.begin), file);
}

/* What stands in the place of {{word}} in page.html. */
static void put_part(const figures *f, const char *name, text word, bytes *b, FILE *file) {
    if (text_is(word, "title"))
        put_escaped(name, file);
    else if (text_is(word, "library"))
        put_escaped(f->run->library, file);
    else if (text_is(word, "summary"))
        put_summary(f, file);
    else if (text_is(word, "data"))
        put_data(f, name, b, file);
    else if (text_is(word, "spans"))
        put_base64(b, file);
    else if (text_is(word, "css"))
        put_asset("page.css", file);
    else if (text_is(word, "js")) {
        put_asset("data.js", file);
        put_asset("timeline.js", file);
        put_asset("panels.js", file);
    } else
        die("expected a part of the page, given \"%.*s\"", (int)word.n, word.s);
}

void print_page(const figures *f, const char *name, FILE *file) {
    const asset page = asset_named("page.html");
    bytes b = {0};
    const char *at = page.begin;
    for (const char *mark; (mark = strstr(at, "{{")); at = strstr(mark, "}}") + 2) {
        const char *end = strstr(mark, "}}");
        fwrite(at, 1, (size_t)(mark - at), file);
        put_part(f, name, (text){mark + 2, (size_t)(end - mark - 2)}, &b, file);
    }
    fwrite(at, 1, (size_t)(page.end - at), file);
    free(b.at);
}

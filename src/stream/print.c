/* SPDX-License-Identifier: Apache-2.0
 *
 * print.c - streams and operations as text.
 *
 * A line reads, with the parts that do not apply left out:
 *   12 all_gather unshard unit=3 param=1 comm=1 seq=4 bf16 waits 10.done 7.drained
 *   reads 5/0[0,4096)* writes 9/2[0,16384) bytes=4096
 * where 9/2 is life 2 of buffer 9 and a star says that peers read there.
 */
#include "../base/base.h"
#include "stream.h"

#include <stdarg.h>
#include <stdio.h>

const char *hp_stream_id_name(unsigned stream) {
    static const char *const names[HP_N_STREAMS] = {"compute", "unshard", "reduce", "replicate"};
    return stream < HP_N_STREAMS ? names[stream] : "?";
}

struct line {
    char *text;
    size_t size;
    size_t length; /* of the whole line, also where `text` is too small for it */
};

__attribute__((format(printf, 2, 3))) static void add(struct line *line, const char *format, ...) {
    const size_t at = hpi_min(line->length, line->size);
    va_list arguments;
    va_start(arguments, format);
    const int n = vsnprintf(line->text + at, line->size - at, format, arguments);
    va_end(arguments);
    line->length += n > 0 ? (size_t)n : 0;
}

static void add_refs(struct line *line, const char *title, const hp_ref *refs, unsigned peers) {
    const char *before = title;
    for (unsigned i = 0; i < 2; i++) {
        if (refs[i].buffer == 0)
            continue;
        add(line, "%s %u/%u[%llu,%llu)%s", before, refs[i].buffer, refs[i].life,
            (unsigned long long)refs[i].begin, (unsigned long long)refs[i].end,
            peers >> i & 1U ? "*" : "");
        before = "";
    }
}

static void add_waits(struct line *line, const hp_op *op) {
    const char *before = " waits";
    for (unsigned i = 0; i < op->n_waits && i < HP_OP_WAITS; i++) {
        if (op->waits[i] < hpi_done(0))
            continue;
        add(line, "%s %u.%s", before, hpi_event_op(op->waits[i]),
            hpi_event_is_drained(op->waits[i]) ? "drained" : "done");
        before = "";
    }
}

/* What only a collective has. */
static void add_collective(struct line *line, const hp_op *op) {
    static const char *const reduces[] = {"sum", "avg", "max", "min"};
    add(line, " comm=%u seq=%u %s", op->comm, op->seq, hp_dtype_name((hp_dtype)op->dtype));
    if (op->wire != op->dtype)
        add(line, " wire=%s", hp_dtype_name((hp_dtype)op->wire));
    add(line, " %s", op->reduce <= HP_MIN ? reduces[op->reduce] : "?");
    if (op->blocks > 1)
        add(line, " blocks=%llu", (unsigned long long)op->blocks);
}

int hp_op_print(const hp_op *op, const hp_kind *kinds, uint32_t n_kinds, char *text, size_t size) {
    struct line line = {text, size, 0};
    add(&line, "%u ", op->id);
    if (kinds && op->kind < n_kinds)
        add(&line, "%s", kinds[op->kind].name);
    else
        add(&line, "kind-%u", op->kind);
    add(&line, " %s", hp_stream_id_name(op->stream));
    if (op->unit != UINT32_MAX)
        add(&line, " unit=%u", op->unit);
    if (op->param != UINT32_MAX)
        add(&line, " param=%u", op->param);
    if (op->comm)
        add_collective(&line, op);
    add_waits(&line, op);
    add_refs(&line, " reads", op->reads, op->peers_read);
    add_refs(&line, " writes", op->writes, 0);
    if (op->bytes)
        add(&line, " bytes=%llu", (unsigned long long)op->bytes);
    return (int)line.length;
}

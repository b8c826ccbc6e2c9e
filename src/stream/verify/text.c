/* SPDX-License-Identifier: Apache-2.0
 *
 * text.c - the verdict in words: which rule, and the two operations that break it.
 */
#include "proof.h"

#include <stdarg.h>
#include <stdio.h>

const char *hp_rule_name(hp_rule rule) {
    static const char *const names[] = {"sound", "list", "life", "reuse", "race", "match", "cycle"};
    return (unsigned)rule < sizeof names / sizeof *names ? names[rule] : "?";
}

const char *hpi_place_text(const hpi_proof *proof, hpi_place at, char text[HPI_PLACE_TEXT]) {
    const hp_job *job = proof->job;
    const hp_op *op = hpi_op_at(proof, at);
    char unit[80] = "", param[24] = "";
    if (op->unit < job->n_units && job->units && job->units[op->unit])
        snprintf(unit, sizeof unit, " of %s", job->units[op->unit]);
    else if (op->unit != HPI_NO_OP)
        snprintf(unit, sizeof unit, " of unit %u", op->unit);
    if (op->param != HPI_NO_OP)
        snprintf(param, sizeof param, " param %u", op->param);
    snprintf(text, HPI_PLACE_TEXT, "%s%s%s (step %u, rank %u, op %u)",
             op->kind < job->n_kinds ? job->kinds[op->kind].name : "?", unit, param, at.step,
             at.rank, at.id);
    return text;
}

const char *hpi_ref_text(hp_ref ref, char text[HPI_PLACE_TEXT]) {
    snprintf(text, HPI_PLACE_TEXT, "buffer %u life %u [%llu, %llu)", ref.buffer, ref.life,
             (unsigned long long)ref.begin, (unsigned long long)ref.end);
    return text;
}

static void point_at(const hpi_proof *proof, int which, hpi_place at) {
    hp_verdict *verdict = proof->verdict;
    verdict->at[which].rank = at.rank;
    verdict->at[which].step = at.step;
    verdict->at[which].op = *hpi_op_at(proof, at);
}

hp_status hpi_unsound(hpi_proof *proof, hp_rule rule, hpi_place first, hpi_place second,
                      const char *format, ...) {
    char text[560];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    proof->verdict->rule = rule;
    point_at(proof, 0, first);
    point_at(proof, 1, second);
    return HPI_FAIL_RANK(HP_ERR_UNSOUND, (int)first.rank, "%s: %s", hp_rule_name(rule), text);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * list.c - a list of operations, ready to run: what follows what on a stream.
 *
 * Streams are in order, so whether an operation is done is one comparison: its place on its stream
 * against how many are done there. Nothing of this depends on the rank: ranks that run one list
 * share it.
 */
#include "virtual.h"

hp_status hpi_program_create(uint32_t n, hpi_program *out_program) {
    hpi_program p = {.next = hpi_alloc(n, sizeof *p.next)};
    p.turn = p.next ? hpi_alloc(n, sizeof *p.turn) : NULL;
    p.gate = p.turn ? hpi_alloc(n, sizeof *p.gate) : NULL;
    if (!p.gate) {
        hpi_program_destroy(&p);
        return HP_ERR_MEMORY;
    }
    hpi_program_clear(&p);
    *out_program = p;
    return HP_OK;
}

void hpi_program_destroy(hpi_program *program) {
    hpi_free(program->next);
    hpi_free(program->turn);
    hpi_free(program->gate);
}

void hpi_program_clear(hpi_program *program) {
    program->n = 0;
    program->last_gate = HPI_NO_OP;
    for (int s = 0; s < HP_N_STREAMS; s++) {
        program->first[s] = program->last[s] = HPI_NO_OP;
        program->count[s] = 0;
    }
}

static void append(hpi_program *p, const hp_op *op, hp_role role) {
    const uint32_t id = p->n++, s = op->stream;
    p->next[id] = HPI_NO_OP;
    p->turn[id] = ++p->count[s];
    p->gate[id] = p->last_gate;
    if (p->last[s] == HPI_NO_OP)
        p->first[s] = id;
    else
        p->next[p->last[s]] = id;
    p->last[s] = id;
    if (s == HP_STREAM_COMPUTE && (role == HP_ROLE_BEGIN || role == HP_ROLE_END))
        p->last_gate = id;
}

void hpi_program_extend(hpi_program *program, const hp_op *ops, uint32_t n, const hp_kind *kinds) {
    program->ops = ops;
    while (program->n < n)
        append(program, &ops[program->n], kinds[ops[program->n].kind].role);
}

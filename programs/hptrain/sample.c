/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/sample.c - the prompt as ids, and what the model makes of it as text.
 *
 * With a text the ids are bytes. With a token file they are numbers, read and written in decimal:
 * tools/make_tokens.py turns them into text and back.
 */
#include "fail.h"
#include "stop.h"
#include "trainer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- in ---- */

static void read_bytes(trainer *t) {
    for (const char *c = t->o->sample; *c; c++)
        t->prompt[t->n_prompt++] = (unsigned char)*c;
}

static hp_status read_ids(trainer *t) {
    const char *text = t->o->sample;
    for (;;) {
        char *end = NULL;
        text += strspn(text, " ");
        if (!*text)
            break;
        errno = 0;
        const long id = strtol(text, &end, 10);
        if (errno || end == text || (*end && *end != ' ') || id < 0 || id >= t->model.vocab_size)
            return fail(HP_ERR_ARGUMENT,
                        "expected --sample to be ids below %d, parted by spaces, as %s holds "
                        "tokens; given \"%s\"",
                        t->model.vocab_size, t->data.path, text);
        t->prompt[t->n_prompt++] = (int32_t)id;
        text = end;
    }
    if (!t->n_prompt)
        return fail(HP_ERR_ARGUMENT, "expected --sample to be at least one id, given none");
    return HP_OK;
}

hp_status sample_read_prompt(trainer *t) {
    const size_t length = strlen(t->o->sample);
    if (!length)
        return HP_OK;
    t->prompt = malloc(length * sizeof *t->prompt); /* an id takes a character at least */
    if (!t->prompt)
        return fail(HP_ERR_MEMORY, "expected memory for a prompt of %zu bytes", length);
    if (!data_is_text(&t->data))
        return read_ids(t);
    read_bytes(t);
    return HP_OK;
}

/* ---- out ---- */

/* A model of more than 256 tokens may answer with one that is no byte: its number in brackets. */
static void write_tokens(FILE *file, const trainer *t, const int32_t *tokens, int n) {
    for (int i = 0; i < n; i++)
        if (!data_is_text(&t->data))
            fprintf(file, " %d", (int)tokens[i]);
        else if (tokens[i] < 256)
            putc(tokens[i], file);
        else
            fprintf(file, "<%d>", (int)tokens[i]);
}

static hp_status report_tokens(trainer *t, const int32_t *tokens, int n) {
    sample_text sample = {.prompt = t->o->sample, .n_prompt = strlen(t->o->sample)};
    char *text = NULL;
    FILE *file = open_memstream(&text, &sample.n_text);
    if (file)
        write_tokens(file, t, tokens, n);
    if (!file || fclose(file) != 0)
        return fail(HP_ERR_MEMORY, "expected memory for the text of %d tokens", n);
    sample.text = text;
    const hp_status status = report_sample(t->report, &sample);
    free(text);
    return status;
}

/* Read again for each piece is the text so far, or its end; whoever asks to end waits for a piece.
 */
enum { PIECE = 32 };

/* text: the prompt, and room for n tokens behind it. */
static hp_status generate(trainer *t, int32_t *text, int n, int *out_n, bool *out_stop) {
    int n_done = 0;
    for (*out_stop = false; n_done < n;) {
        const int n_text = t->n_prompt + n_done, n_next = n - n_done < PIECE ? n - n_done : PIECE;
        TRY(stop_agree(t->world, out_stop));
        if (*out_stop)
            break;
        TRY(t->model.kind->generate(&t->model, text, n_text,
                                    (uint64_t)t->o->seed + (uint64_t)n_done, n_next,
                                    text + n_text));
        n_done += n_next;
    }
    *out_n = n_done;
    return HP_OK;
}

static hp_status generate_and_report(trainer *t, int32_t *text, int n, bool *out_stop) {
    int n_done = 0;
    TRY(agree(t->world, text ? HP_OK : fail(HP_ERR_MEMORY, "expected memory for %d tokens", n)));
    memcpy(text, t->prompt, (size_t)t->n_prompt * sizeof *text);
    TRY(generate(t, text, n, &n_done, out_stop));
    return agree(t->world, t->report ? report_tokens(t, text + t->n_prompt, n_done) : HP_OK);
}

hp_status sample_generate(trainer *t, bool *out_stop) {
    const int n = (int)t->o->sample_bytes;
    if (!t->prompt)
        return HP_OK;
    int32_t *text = malloc(((size_t)t->n_prompt + (size_t)n) * sizeof *text);
    const hp_status status = generate_and_report(t, text, n, out_stop);
    free(text);
    return status;
}

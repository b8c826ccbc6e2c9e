/* SPDX-License-Identifier: Apache-2.0
 *
 * programs/odd_word.h - which word of the command line argp did not understand.
 *
 * Every rank parses the same line, so argp is kept silent and one rank says what is wrong. A parser
 * keeps state->next as `n_read` in each of its calls and asks when it is called with
 * ARGP_KEY_ERROR.
 */
#ifndef PROGRAMS_ODD_WORD_H
#define PROGRAMS_ODD_WORD_H

#include <argp.h>
#include <stdbool.h>

/* argp is behind that word, unless the word is a bundle of letters, of which it has read the first:
 * then it has come no further than before, or over words that are no options. */
static inline const char *odd_word(const struct argp_state *state, int n_read) {
    const int next = state->next;
    const bool is_behind = next > n_read && *state->argv[next - 1] == '-';
    return state->argv[is_behind || next >= state->argc ? next - 1 : next];
}

#endif

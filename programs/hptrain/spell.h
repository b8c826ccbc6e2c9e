/* SPDX-License-Identifier: Apache-2.0
 *
 * hptrain/spell.h - how far a word is from another, for "did you mean".
 */
#ifndef HPTRAIN_SPELL_H
#define HPTRAIN_SPELL_H

/* Characters to put in, take out, replace, or swap with the next one, to get from `a` to `b`; what
 * is behind the 31st character of either is not looked at. */
int spell_distance(const char *a, const char *b);

#endif

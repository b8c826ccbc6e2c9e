/* SPDX-License-Identifier: Apache-2.0
 *
 * hpreport/names.c - names are kept once and known by number: a table with open addressing.
 */
#include "die.h"
#include "run.h"

#include <stdlib.h>
#include <string.h>

enum { SLOTS = 1 << 17 }; /* twice the names that there may be */

struct names {
    text at[NO_NAME];
    uint16_t n;
    uint16_t slots[SLOTS]; /* number + 1; 0: free */
};

struct names *names_create(void) {
    return take(1, sizeof(struct names));
}

void names_destroy(struct names *names) {
    for (uint16_t i = 0; i < names->n; i++)
        free((void *)(uintptr_t)names->at[i].s);
    free(names);
}

/* FNV-1a. */
static uint32_t hash_of(text name) {
    uint32_t h = 2166136261U;
    for (size_t i = 0; i < name.n; i++)
        h = (h ^ (unsigned char)name.s[i]) * 16777619U;
    return h;
}

/* The name's own memory: the file that it comes from is unmapped before the names are used. */
static text copy_of(text name) {
    char *s = take(name.n + 1, 1);
    memcpy(s, name.s, name.n);
    return (text){s, name.n};
}

uint16_t names_add(struct names *names, text name) {
    uint32_t slot = hash_of(name) % SLOTS;
    for (; names->slots[slot]; slot = (slot + 1) % SLOTS) {
        const text old = names->at[names->slots[slot] - 1];
        if (old.n == name.n && memcmp(old.s, name.s, name.n) == 0)
            return (uint16_t)(names->slots[slot] - 1);
    }
    if (names->n == NO_NAME)
        die("expected at most %d names of spans and units", NO_NAME);
    names->at[names->n] = copy_of(name);
    names->slots[slot] = ++names->n;
    return (uint16_t)(names->n - 1);
}

text names_at(const struct names *names, uint16_t number) {
    return number == NO_NAME ? (text){"", 0} : names->at[number];
}

uint16_t names_count(const struct names *names) {
    return names->n;
}

bool name_is(const run *r, uint16_t number, const char *word) {
    return text_is(names_at(r->names, number), word);
}

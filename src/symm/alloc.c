/* SPDX-License-Identifier: Apache-2.0
 *
 * alloc.c - taking and giving back, collectively over a group.
 *
 * Each member takes a place in its own heap, then all exchange what they asked for and where it
 * lies. Only when all agree is memory committed and zeroed; a second exchange says that all
 * succeeded. So either every member holds the block or none does, the offsets need not be equal,
 * and a member that cannot take part tells the others instead of leaving them to their deadline.
 */
#include "state.h"

#include <stdio.h>

enum {
    WORD_STATUS,
    WORD_BYTES,
    WORD_ALIGNMENT,
    WORD_IS_SPANNING,
    WORD_KEY,
    WORD_OFFSET,
    WORD_FRESH,
    N_WORDS
};
enum { MAX_ALIGNMENT = 4096, DEFAULT_ALIGNMENT = 64 };

typedef struct request {
    hpi_symm_state *state;
    hp_status own; /* of getting the state; a rank without it still says so to the others */
    hp_group *group;
    uint64_t bytes, alignment;
    bool is_spanning;
} request;

/* A status as a word, and back. */
static uint64_t status_word(hp_status status) {
    return (uint64_t)(int64_t)status;
}
static hp_status word_status(uint64_t word) {
    return (hp_status)(int64_t)word;
}

/* ---- agreeing ---- */

static bool same_request(const uint64_t *a, const uint64_t *b) {
    return a[WORD_BYTES] == b[WORD_BYTES] && a[WORD_ALIGNMENT] == b[WORD_ALIGNMENT] &&
           a[WORD_IS_SPANNING] == b[WORD_IS_SPANNING];
}

/* The same text on every rank: what each of them asked for. */
static hp_status fail_mismatch(const request *q, const uint64_t *all, int odd_one) {
    char text[480];
    int used = 0;
    for (int i = 0; i < hp_group_size(q->group) && used < (int)sizeof text - 1; i++) {
        const uint64_t *words = all + (size_t)i * N_WORDS;
        used += snprintf(text + used, sizeof text - (size_t)used,
                         "%srank %d (world %d) %llu bytes%s", i ? ", " : "", i,
                         hp_group_world_rank(q->group, i), (unsigned long long)words[WORD_BYTES],
                         words[WORD_IS_SPANNING] ? " spanning" : "");
        if (words[WORD_ALIGNMENT] != all[WORD_ALIGNMENT] && used < (int)sizeof text - 1)
            used += snprintf(text + used, sizeof text - (size_t)used, " aligned to %llu",
                             (unsigned long long)words[WORD_ALIGNMENT]);
    }
    return HPI_FAIL_RANK(HP_ERR_MISMATCH, hp_group_world_rank(q->group, odd_one),
                         "expected the same size on every rank of %s, given: %s",
                         hpi_group_name(q->group), text);
}

/* The first failure among the members: our own keeps its record. `own` is this rank's status. */
static hp_status agree_on_status(hp_group *group, const uint64_t *all, int n_words, hp_status own) {
    if (own < 0)
        return own;
    for (int i = 0; i < hp_group_size(group); i++) {
        const hp_status status = word_status(all[(size_t)i * (size_t)n_words]);
        if (status < 0)
            return HPI_FAIL_RANK(status, hp_group_world_rank(group, i),
                                 "rank %d (world %d) of %s could not take its part: %s", i,
                                 hp_group_world_rank(group, i), hpi_group_name(group),
                                 hp_status_text(status));
    }
    return HP_OK;
}

static hp_status check_same_request(const request *q, const uint64_t *all) {
    for (int i = 1; i < hp_group_size(q->group); i++)
        if (!same_request(all, all + (size_t)i * N_WORDS))
            return fail_mismatch(q, all, i);
    return HP_OK;
}

/* Has everyone succeeded? `votes` has room for a word of each. */
static hp_status vote(hp_group *group, hp_status own, uint64_t *votes) {
    const uint64_t word = status_word(own);
    HP_TRY(hpi_group_exchange(group, "symm_alloc", &word, 1, votes));
    return agree_on_status(group, votes, 1, own);
}

/* ---- this rank's part ---- */

static hp_status check_request(const request *q) {
    if (q->alignment > MAX_ALIGNMENT || !hpi_is_power_of_two(q->alignment))
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected an alignment that is a power of two up to %d, given %llu",
                        MAX_ALIGNMENT, (unsigned long long)q->alignment);
    if (q->is_spanning && (q->bytes == 0 || q->bytes % HPI_HEAP_UNIT != 0))
        return HPI_FAIL(HP_ERR_ARGUMENT,
                        "expected bytes_per_rank to be a positive multiple of %d, given %llu",
                        HPI_HEAP_UNIT, (unsigned long long)q->bytes);
    uint64_t total;
    if (q->is_spanning && !hpi_multiply(q->bytes, (uint64_t)hp_group_size(q->group), &total))
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected less than 2^64 bytes in all, given %llu x %d",
                        (unsigned long long)q->bytes, hp_group_size(q->group));
    return HP_OK;
}

/* Fill `words` with what this rank asks for and where it would lie. */
static hp_status reserve(const request *q, uint64_t *words) {
    hpi_symm_state *s = q->state;
    memset(words, 0, N_WORDS * sizeof *words);
    words[WORD_BYTES] = q->bytes;
    words[WORD_ALIGNMENT] = q->alignment;
    words[WORD_IS_SPANNING] = q->is_spanning;
    hp_status status = q->own < 0 ? q->own : check_request(q);
    words[WORD_STATUS] = status_word(status);
    if (status < 0) /* without a state there is a failure */
        return status;

    pthread_mutex_lock(&s->lock);
    words[WORD_KEY] = ((uint64_t)hp_world_rank(s->world) + 1) << 40 | ++s->n_keys;
    if (!q->is_spanning) {
        status = hpi_heap_take(&s->heap, q->bytes, q->alignment, &words[WORD_OFFSET]);
        if (status == HP_OK)
            words[WORD_FRESH] = hpi_symm_fresh_bytes(s, words[WORD_OFFSET], q->bytes);
    }
    pthread_mutex_unlock(&s->lock);
    words[WORD_STATUS] = status_word(status);
    return status;
}

static void release(const request *q, uint64_t offset) {
    if (q->is_spanning)
        return;
    pthread_mutex_lock(&q->state->lock);
    hpi_heap_give(&q->state->heap, offset, q->bytes);
    pthread_mutex_unlock(&q->state->lock);
}

/* May the members of this node together take what they are about to commit? */
static hp_status check_memory(const request *q, const uint64_t *all) {
    uint64_t total = 0;
    for (int i = 0; i < hp_group_size(q->group); i++)
        if (hpi_world_is_local(q->state->world, hp_group_world_rank(q->group, i)))
            total += all[(size_t)i * N_WORDS + WORD_FRESH];
    return total ? hpi_world_check_memory(q->state->world, total, "symmetric memory") : HP_OK;
}

/* Where the blocks of this node's members are seen here; those of others are not. */
static void locate(const request *q, const uint64_t *all, hpi_block *b) {
    for (int i = 0; i < hp_group_size(q->group); i++) {
        const int rank = hp_group_world_rank(q->group, i);
        uint64_t bytes;
        if (!hpi_world_is_local(q->state->world, rank))
            continue;
        unsigned char *segment = hpi_world_segment(q->state->world, rank, &bytes);
        HPI_FILL(b->at[rank], q->is_spanning ? (unsigned char *)b->map + (uint64_t)i * q->bytes
                                             : segment + all[(size_t)i * N_WORDS + WORD_OFFSET]);
    }
    HPI_FILL(b->base, HPI_READ(b->at[hp_world_rank(q->state->world)]));
}

static hp_status publish(const request *q, hpi_block *block) {
    hpi_symm_state *s = q->state;
    pthread_mutex_lock(&s->lock);
    const hp_status status = hpi_table_insert(&s->table, block);
    if (status == HP_OK) {
        s->n_allocations++;
        s->spanning_bytes += q->is_spanning ? q->bytes : 0;
        s->peak_bytes = hpi_max(s->peak_bytes, s->heap.used_bytes + s->spanning_bytes);
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

static hpi_block *make(const request *q) {
    if (!q->state)
        return NULL;
    pthread_mutex_lock(&q->state->lock);
    hpi_block *block = hpi_block_make(&q->state->table, q->group);
    pthread_mutex_unlock(&q->state->lock);
    return block;
}

/* One that was never published, or NULL. */
static void drop(const request *q, hpi_block *block) {
    if (!block)
        return;
    pthread_mutex_lock(&q->state->lock);
    hpi_block_free(&q->state->table, block);
    pthread_mutex_unlock(&q->state->lock);
}

/* Take a published block out again; its record is freed by the table. */
static void retract(hpi_symm_state *s, const hpi_block *block) {
    pthread_mutex_lock(&s->lock);
    s->n_allocations--;
    s->spanning_bytes -= block->map ? HPI_READ(block->bytes) : 0;
    hpi_block_kill((hpi_block *)block);
    pthread_mutex_unlock(&s->lock);
}

/* The members agree on who lies where (`all`): take the memory for good and publish the block,
 * which is taken over. A failure of one member undoes it on all. */
static hp_status settle(const request *q, const uint64_t *all, uint64_t *votes, hpi_block *block) {
    const uint64_t map_bytes = q->bytes * (uint64_t)hp_group_size(q->group);
    bool is_published = false;
    hp_status own = check_memory(q, all);
    if (q->is_spanning) { /* mapping is collective: all begin it, or none */
        own = vote(q->group, own, votes);
        if (own == HP_OK)
            own = hpi_group_map(q->group, map_bytes, &block->map);
    } else if (own == HP_OK) {
        own = hpi_symm_commit(q->state, block->offset, q->bytes);
    }
    if (own == HP_OK) {
        locate(q, all, block);
        own = publish(q, block);
        is_published = own == HP_OK;
    }
    const hp_status status = vote(q->group, own, votes);
    if (status < 0) {
        void *map = block->map;
        if (is_published)
            retract(q->state, block);
        else
            drop(q, block);
        if (map)
            hpi_group_unmap(q->group, map, map_bytes);
    }
    return status;
}

/* Say what this rank asks for, or that it cannot take part, and hear the others. A rank that has no
 * memory for the answers (`all` NULL) hears nothing. */
static hp_status ask(const request *q, const uint64_t *words, uint64_t *all) {
    HP_TRY(hpi_group_exchange(q->group, "symm_alloc", words, N_WORDS, all));
    return all ? check_same_request(q, all) : HP_OK;
}

static hp_status take(const request *q, hp_symm *out_memory) {
    const size_t n = (size_t)hp_group_size(q->group);
    uint64_t words[N_WORDS];
    hp_error record;
    const hp_status reserved = reserve(q, words);
    hp_status own = reserved;
    if (own < 0)
        hp_last_error_get(&record);
    uint64_t *all = hpi_alloc(n, (N_WORDS + 1) * sizeof *all);
    hpi_block *block = make(q);
    if (own >= 0 && (!all || !block)) {
        own = HP_ERR_MEMORY;
        hp_last_error_get(&record);
    }
    words[WORD_STATUS] = status_word(own);
    hp_status status = ask(q, words, all);
    if (status >= 0 && own < 0) {
        (void)hpi_error_set(&record);
        status = own;
    } else if (status >= 0) {
        status = agree_on_status(q->group, all, N_WORDS, own);
    }
    if (status == HP_OK) {
        HPI_FILL(block->key, all[WORD_KEY]);
        HPI_FILL(block->bytes, q->bytes);
        block->offset = words[WORD_OFFSET];
        const hp_symm memory = {q->state->world, all[WORD_KEY]};
        status = settle(q, all, all + n * N_WORDS, block);
        block = NULL;
        if (status == HP_OK)
            *out_memory = memory;
    }
    if (status < 0 && reserved == HP_OK)
        release(q, words[WORD_OFFSET]);
    hpi_free(all);
    drop(q, block);
    return status;
}

/* ---- the doors ---- */

/* Who fills the reservation soon learns of it in the log. */
static void warn_when_full(hpi_symm_state *s, hpi_journal *journal) {
    if (!hpi_journal_has(journal, HPI_LOG_WARNING))
        return;
    pthread_mutex_lock(&s->lock);
    const uint64_t used = s->heap.used_bytes, size = s->heap.size_bytes;
    pthread_mutex_unlock(&s->lock);
    if (used > size / 10 * 9)
        HPI_SAY(journal, HPI_LOG_WARNING, "symm",
                "%llu of %llu bytes of symmetric memory are taken "
                "(SYMMETRIC_MEMORY_HEAP_SIZE)",
                (unsigned long long)used, (unsigned long long)size);
}

static hp_status take_entered(request *q, const char *call, hp_symm *out_memory) {
    hpi_journal *journal = hpi_world_journal(hp_group_world(q->group));
    const hpi_probe probe =
        hpi_probe_begin(HPI_EVENT_symm_alloc, journal, hpi_group_name(q->group), 0, q->bytes);
    hp_status status = hpi_group_enter(q->group, call);
    if (status == HP_OK) {
        status = take(q, out_memory);
        hpi_group_leave(q->group);
    }
    if (status == HP_OK && q->state)
        warn_when_full(q->state, journal);
    return hpi_probe_end(&probe, status);
}

/* One range for all members can lie on one node alone. */
static hp_status check_is_on_node(hp_group *group) {
    hp_world *world = hp_group_world(group);
    for (int i = 0; i < hp_group_size(group); i++) {
        const int world_rank = hp_group_world_rank(group, i);
        if (!hpi_world_is_local(world, world_rank))
            return HPI_FAIL_RANK(HP_ERR_UNSUPPORTED, world_rank,
                                 "expected every rank of %s on this node (%s), world rank %d is on "
                                 "%s",
                                 hpi_group_name(group), hpi_world_host(world, hp_world_rank(world)),
                                 world_rank, hpi_world_host(world, world_rank));
    }
    return HP_OK;
}

static hp_status request_begin(hp_world *world, hp_group *group, request *out_request) {
    out_request->own = hpi_symm_state_get(world, &out_request->state);
    if (!world || hpi_world_usable(world) < 0)
        return out_request->own;
    if (out_request->own < 0)
        out_request->state = NULL;
    out_request->group = group ? group : hp_world_group(world);
    if (hp_group_world(out_request->group) != world)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a group of this world, given %s of another",
                        hpi_group_name(group));
    return out_request->is_spanning ? check_is_on_node(out_request->group) : HP_OK;
}

hp_status hp_symm_alloc(hp_world *world, hp_group *group, uint64_t bytes, uint64_t alignment,
                        hp_symm *out_memory) {
    request q = {.bytes = bytes, .alignment = alignment ? alignment : DEFAULT_ALIGNMENT};
    if (!out_memory)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a place for the handle, given NULL");
    HP_TRY(hpi_tell_failure(hpi_world_journal(world), "symm", request_begin(world, group, &q)));
    return take_entered(&q, "hp_symm_alloc", out_memory);
}

hp_status hp_symm_alloc_spanning(hp_world *world, hp_group *group, uint64_t bytes_per_rank,
                                 hp_symm *out_memory) {
    request q = {.bytes = bytes_per_rank, .alignment = DEFAULT_ALIGNMENT, .is_spanning = true};
    if (!out_memory)
        return HPI_FAIL(HP_ERR_ARGUMENT, "expected a place for the handle, given NULL");
    HP_TRY(hpi_tell_failure(hpi_world_journal(world), "symm", request_begin(world, group, &q)));
    return take_entered(&q, "hp_symm_alloc_spanning", out_memory);
}

hp_status hpi_symm_alloc_inside(hp_group *group, uint64_t bytes, uint64_t alignment,
                                hp_symm *out_memory) {
    request q = {.bytes = bytes, .alignment = alignment};
    HP_TRY(request_begin(hp_group_world(group), group, &q));
    return take(&q, out_memory);
}

/* ---- giving back ---- */

static hp_status compare_keys(hp_group *group, uint64_t key, const uint64_t *all) {
    for (int i = 0; i < hp_group_size(group); i++)
        if (all[i] != key)
            return HPI_FAIL_RANK(HP_ERR_MISMATCH, hp_group_world_rank(group, i),
                                 "expected every rank of %s to free the same memory, rank %d "
                                 "(world %d) gave id %llx, this rank %llx",
                                 hpi_group_name(group), i, hp_group_world_rank(group, i),
                                 (unsigned long long)all[i], (unsigned long long)key);
    return HP_OK;
}

/* Everyone has come, so nobody is inside a call on it; all must mean the same block. Inside a node
 * the keys need no memory that could be missing: freeing never fails for want of it. */
static hp_status meet_to_free(hp_group *group, uint64_t key) {
    uint64_t few[HPI_MAX_LOCAL], *many = NULL;
    if (hp_group_size(group) > HPI_MAX_LOCAL &&
        !(many = hpi_alloc((size_t)hp_group_size(group), sizeof *many)))
        return HP_ERR_MEMORY;
    uint64_t *all = many ? many : few;
    hp_status status = hpi_group_exchange(group, "symm_free", &key, 1, all);
    if (status == HP_OK)
        status = compare_keys(group, key, all);
    hpi_free(many);
    return status;
}

static void give_back(hpi_symm_state *s, const hpi_block *block) {
    const uint64_t offset = block->offset, bytes = HPI_READ(block->bytes);
    if (block->map) { /* first nobody finds it any more, then it goes */
        hp_group *group = HPI_READ(block->group);
        void *map = block->map;
        const uint64_t all_bytes = bytes * HPI_READ(block->n_members);
        retract(s, block);
        hpi_group_unmap(group, map, all_bytes);
        return;
    }
    if (s->is_poisoning)
        memset(HPI_READ(block->base), 0xdb, bytes);
    retract(s, block);
    pthread_mutex_lock(&s->lock);
    hpi_heap_give(&s->heap, offset, bytes);
    pthread_mutex_unlock(&s->lock);
}

/* The block stays what it is: only its own free kills it, and that is us. */
static hp_status find_block(hp_symm memory, hpi_symm_state **out_state,
                            const hpi_block **out_block) {
    HP_TRY(hpi_symm_state_get(memory.world, out_state));
    hpi_look look;
    do {
        look = hpi_table_look(&(*out_state)->table);
        *out_block = hpi_look_by_key(look, memory.id);
    } while (!hpi_look_holds(look));
    if (!*out_block)
        return HPI_FAIL(HP_ERR_HANDLE, "expected live memory, id %llx is freed or not this rank's",
                        (unsigned long long)memory.id);
    return HP_OK;
}

static hp_status free_block(hp_symm memory) {
    hpi_symm_state *s;
    const hpi_block *block;
    HP_TRY(find_block(memory, &s, &block));
    hp_group *group = HPI_READ(block->group);
    HP_TRY(hpi_group_enter(group, "hp_symm_free"));
    const hp_status status = meet_to_free(group, memory.id);
    if (status == HP_OK)
        give_back(s, block);
    hpi_group_leave(group);
    return status;
}

hp_status hp_symm_free(hp_symm memory) {
    if (!memory.world && !memory.id)
        return HP_OK;
    const hpi_probe probe =
        hpi_probe_begin(HPI_EVENT_symm_free, hpi_world_journal(memory.world), NULL, 0, 0);
    return hpi_probe_end(&probe, free_block(memory));
}

void hpi_symm_drop(hp_symm memory) {
    hpi_symm_state *s;
    const hpi_block *block;
    if (memory.world && find_block(memory, &s, &block) == HP_OK)
        give_back(s, block);
}

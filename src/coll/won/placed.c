/* SPDX-License-Identifier: Apache-2.0
 *
 * placed.c - gradients are stored straight into every rank's in_grad.
 *
 *     rank            0      1      2      3
 *     inputs         [abcd] [efgh] [ijkl] [mnop]     each reads its own column, as the forward did,
 *     gradients       x      y      z      w         and its own gradient, or adds up all ranks';
 *     in_grads       [00z0] [x00w] [0y00] [0000]     each stores its own column
 *
 * What the forward read is read again, which tells the results as well. The ranks meet before it,
 * saying where their operands lie, and behind it. Nobody but the owner touches a column of the
 * in_grads, and it reads a gradient before it stores there, so that one may lie in the other.
 */
#include "won.h"

enum { PAGE = 4096 };
/* From where the forward reads peers' memory, too: so it has found how far they are. */
bool hpi_won_may_be_placed(const hpi_won *w) {
    const hpi_coll_state *state = hpi_group_attached(w->group, HPI_SLOT_COLL);
    const hpi_threshold from = w->is_summed ? HPI_FROM_APART : HPI_FROM_CARRIED;
    return w->wire == HP_WIRE_FULL && !hpi_group_nodes(w->group) && state &&
           w->total * w->size >= state->thresholds[from];
}

/* What a rank tells the others: what it calls, and where its operands lie. `last` is the place of
 * the gradient where these are summed, else two numbers. Beside the place of in_grad: IS_AFAR, its
 * rank has found the others so. */
#define IS_AFAR (UINT64_C(1) << 63)
typedef struct told {
    hpi_won_said said;
    hpi_place in, in_grad, last;
} told;
_Static_assert(sizeof(told) == 64, "one line");

typedef struct placed {
    const hpi_won *w;
    told *all;                            /* [n] */
    unsigned char **in, **in_grad, **sum; /* [n] each: operands as seen here; gradients to sum */
    const void **from;                    /* [n] each: a page of them */
    void **to;
    unsigned char *scratch; /* of the sum */
    unsigned char *pages;   /* [n], for peers that are afar */
    bool are_afar;          /* as some rank has found: lines of peers are dear to write */
} placed;

/* ---- the meeting ---- */

/* Key 0: not every member can see it. Pointers to those who will name the same are in `peers`. */
static hpi_place place_of(const hpi_won *w, const void *pointer, uint64_t count,
                          unsigned char **peers) {
    const uint64_t bytes = count * w->size;
    if (!hpi_symm_peers(w->group, pointer, bytes, peers))
        return (hpi_place){0, 0};
    return hpi_symm_place(hp_group_world(w->group), pointer, bytes);
}

/* Up to the end of the last part. */
static uint64_t extent_of(const hpi_won *w) {
    uint64_t end = 0;
    for (int p = 0; p < w->n_parts; p++)
        if (hpi_won_counts(w)[p])
            end = hpi_max(end, hpi_won_begins(w)[p] + hpi_won_counts(w)[p]);
    return end;
}

static bool has_found_afar(const hpi_won *w) {
    const hpi_coll_state *state = hpi_group_attached(w->group, HPI_SLOT_COLL);
    return hpi_is_afar(&state->distance);
}

/* A reduce_scatter looks at its part where this rank's offsets say: they must be those of all. */
static told tell(const placed *p) {
    const hpi_won *w = p->w;
    told t = {.said = hpi_won_say(w)};
    t.in = place_of(w, w->in, extent_of(w), p->in);
    t.in_grad = place_of(w, w->in_grad, extent_of(w), p->in_grad);
    t.in_grad.offset |= has_found_afar(w) ? IS_AFAR : 0;
    if (w->is_summed)
        t.last = place_of(w, w->out_grad, w->longest, p->sum);
    else
        t.last = (hpi_place){
            1, hpi_checksum(hpi_won_begins(w), (uint64_t)w->n_parts * sizeof *hpi_won_begins(w))};
    return t;
}

static hp_status meet(placed *p) {
    const hpi_won *w = p->w;
    const told mine = tell(p);
    const hpi_coll c = {.in = &mine,
                        .out = p->all,
                        .count = sizeof mine / sizeof(uint64_t),
                        .blocks = 1,
                        .dtype = HP_INT64,
                        .out_dtype = HP_INT64};
    HP_TRY(hpi_won_gather(w, &c));
    for (int i = 0; i < w->n; i++) {
        p->are_afar |= (p->all[i].in_grad.offset & IS_AFAR) != 0;
        p->all[i].in_grad.offset &= ~IS_AFAR;
    }
    return HP_OK;
}

/* From afar less is worth being staged: for the reason in placed/handback.c. */
static bool is_worth_it(const placed *p) {
    const hpi_coll_state *state = hpi_group_attached(p->w->group, HPI_SLOT_COLL);
    return !p->are_afar || p->w->total * p->w->size >= state->thresholds[HPI_FROM_APART];
}

static bool are_all_placed(const placed *p) {
    const uint64_t mine = p->all[p->w->rank].last.offset;
    for (int i = 0; i < p->w->n; i++) {
        const told *t = &p->all[i];
        const bool is_laid_as_ours = p->w->is_summed || t->last.offset == mine;
        if (!t->in.key || !t->in_grad.key || !t->last.key || !is_laid_as_ours)
            return false;
    }
    return true;
}

/* ---- the peers' operands ---- */

/* Those in the place of our own were found before. */
static bool find(const placed *p, int i, hpi_place theirs, hpi_place mine, unsigned char **at) {
    const hpi_won *w = p->w;
    if (theirs.key != mine.key || theirs.offset != mine.offset)
        at[i] = hpi_symm_at(hp_group_world(w->group), theirs, hp_group_world_rank(w->group, i));
    return at[i];
}

static hp_status find_all(const placed *p) {
    const hpi_won *w = p->w;
    const told *mine = &p->all[w->rank];
    for (int i = 0; i < w->n; i++) {
        const told *t = &p->all[i];
        const int world_rank = hp_group_world_rank(w->group, i);
        if (!find(p, i, t->in, mine->in, p->in) ||
            !find(p, i, t->in_grad, mine->in_grad, p->in_grad) ||
            (w->is_summed && !find(p, i, t->last, mine->last, p->sum)))
            return HPI_FAIL_RANK(HP_ERR_HANDLE, world_rank,
                                 "%s: expected rank %d (world %d) of %s to use live memory, it was "
                                 "freed meanwhile",
                                 w->name, i, world_rank, hpi_group_name(w->group));
    }
    return HP_OK;
}

/* ---- a column ---- */

/* A line of the page after next, so that its address is known by then: see base/copy.c. */
static void look_ahead(const unsigned char *page, uint64_t left, bool is_written) {
    if (left > 2 * PAGE && is_written)
        __builtin_prefetch(page + 2 * PAGE, 1);
    else if (left > 2 * PAGE)
        __builtin_prefetch(page + 2 * PAGE);
}

/* Of all gradients, `offset` bytes from their begin. */
static void sum(const placed *p, uint64_t offset, uint64_t count, void *out) {
    const hpi_won *w = p->w;
    for (int i = 0; i < w->n; i++)
        p->from[i] = p->sum[i] + offset;
    hpi_won_sum(w, p->from, count, p->scratch, out);
}

/* What peers from afar have in their caches is written past them: see placed/handback.c. */
static void *page_for(const placed *p, int i, uint64_t offset) {
    return p->are_afar && i != p->w->rank ? p->pages + (uint64_t)i * PAGE : p->in_grad[i] + offset;
}
static void pass_on(const placed *p, uint64_t offset, uint64_t bytes) {
    for (int i = 0; p->are_afar && i < p->w->n; i++)
        if (i != p->w->rank)
            hpi_copy_past(p->in_grad[i] + offset, p->to[i], bytes);
}

/* Elements [begin, begin + count) of the inputs. */
static void give(const placed *p, uint64_t begin, uint64_t count) {
    const hpi_won *w = p->w;
    const uint64_t step = PAGE / w->size;
    _Alignas(64) unsigned char summed[PAGE];
    for (uint64_t at = 0; at < count; at += step) {
        const uint64_t n = hpi_min(step, count - at), offset = (begin + at) * w->size;
        if (w->is_summed)
            sum(p, offset, n, summed);
        for (int i = 0; i < w->n; i++) {
            p->from[i] = p->in[i] + offset;
            p->to[i] = page_for(p, i, offset);
            look_ahead(p->from[i], (count - at) * w->size, false);
            if (!p->are_afar)
                look_ahead(p->to[i], (count - at) * w->size, true);
        }
        hpi_give_gradient(w->dtype, w->op, p->from, w->n,
                          w->is_summed ? summed : w->out_grad + at * w->size, p->to, n);
        pass_on(p, offset, n * w->size);
    }
}

/* Of an all_reduce a slice, cut at lines, so that owners share none. */
static void give_own(const placed *p) {
    const hpi_won *w = p->w;
    if (!w->is_summed) {
        give(p, hpi_won_begins(w)[w->rank], hpi_won_counts(w)[w->rank]);
        return;
    }
    uint64_t begin;
    const uint64_t count = hpi_won_slice(w, w->longest, w->rank, &begin);
    give(p, begin, count);
}

static hp_status run(placed *p, bool *out_is_done) {
    const hpi_coll barrier = {.blocks = 1, .dtype = HP_UINT8, .out_dtype = HP_UINT8};
    *out_is_done = false;
    HP_TRY(meet(p));
    if (!are_all_placed(p) || !is_worth_it(p))
        return HP_OK;
    const hp_status status = find_all(p);
    if (status < 0) {
        hpi_group_fail(p->w->group); /* the others will wait for this rank */
        return status;
    }
    give_own(p);
    *out_is_done = true;
    return hpi_coll_run(p->w->group, HP_BARRIER, &barrier, true, NULL);
}

/* Returns how much it is. */
static uint64_t lay_out(placed *p, unsigned char *memory) {
    const uint64_t n = (uint64_t)p->w->n, pointers = n * sizeof(void *);
    uint64_t at = 0;
    p->all = hpi_won_take(memory, &at, n * sizeof *p->all);
    p->in = hpi_won_take(memory, &at, pointers);
    p->in_grad = hpi_won_take(memory, &at, pointers);
    p->sum = hpi_won_take(memory, &at, pointers);
    p->from = hpi_won_take(memory, &at, pointers);
    p->to = hpi_won_take(memory, &at, pointers);
    p->scratch = hpi_won_take(memory, &at, hpi_won_scratch_bytes(p->w));
    p->pages = hpi_won_take(memory, &at, n * PAGE);
    return at;
}

hp_status hpi_won_run_placed(const hpi_won *w, bool *out_is_done) {
    placed p = {.w = w};
    _Alignas(64) unsigned char few[20 << 10]; /* of four ranks; not zeroed, as what is taken */
    hp_status status = hpi_symm_begin(hp_group_world(w->group));
    const uint64_t bytes = lay_out(&p, NULL);
    unsigned char *memory = bytes <= sizeof few ? few : hpi_alloc_aligned(64, bytes);
    if (status == HP_OK && !memory)
        status = HP_ERR_MEMORY;
    if (status < 0) {
        hpi_group_fail(w->group); /* the others will wait for this rank */
        if (memory != few)
            hpi_free(memory);
        return status;
    }
    lay_out(&p, memory);
    status = run(&p, out_is_done);
    if (memory != few)
        hpi_free(memory);
    return status;
}

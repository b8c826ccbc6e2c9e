/* SPDX-License-Identifier: Apache-2.0
 *
 * spanning.c - groups whose members do not all share memory: their messages, and the exchange of a
 * few words that set-up calls make.
 *
 * Such a group has no lines; its inner group, of the members on this node, has. Nobody is asked
 * when one is created, as of any group, so both ends of a message must come to the same tag alone:
 * it is made of the list of members and of how many groups of that list this rank has created,
 * which is the same number on each of them. Two groups that came to one tag would be told apart by
 * `check`, another number of the same kind, which what they say carries.
 */
#include "inside.h"

#include <stdio.h>

/* ---- tags ----------------------------------------------------------------------------------- */

/* How many groups of a list were created; lists are never forgotten, as their groups may be. */
typedef struct list_count {
    uint64_t hash, n;
} list_count;
struct hpi_lists {
    size_t n, capacity;
    list_count *counts;
};

static uint64_t mix(uint64_t hash, uint64_t word) {
    uint64_t state = hash ^ word;
    return hpi_random_next(&state);
}

static hp_status count_of(hp_world *world, uint64_t hash, uint64_t **out_n) {
    if (!world->lists && !(world->lists = hpi_alloc(1, sizeof *world->lists)))
        return HP_ERR_MEMORY;
    hpi_lists *l = world->lists;
    for (size_t i = 0; i < l->n; i++)
        if (l->counts[i].hash == hash) {
            *out_n = &l->counts[i].n;
            return HP_OK;
        }
    if (l->n == l->capacity) {
        const size_t capacity = l->capacity ? 2 * l->capacity : 16;
        list_count *more = hpi_alloc(capacity, sizeof *more);
        if (!more)
            return HP_ERR_MEMORY;
        if (l->n)
            memcpy(more, l->counts, l->n * sizeof *more);
        hpi_free(l->counts);
        l->counts = more;
        l->capacity = capacity;
    }
    l->counts[l->n] = (list_count){.hash = hash};
    *out_n = &l->counts[l->n++].n;
    return HP_OK;
}

void hpi_lists_free(hp_world *world) {
    if (world->lists)
        hpi_free(world->lists->counts);
    hpi_free(world->lists);
}

/* A tag of the transport has 64 bits, of which it keeps the highest for itself. */
enum { GROUP_BITS = 62 - HPI_REMOTE_TAG_BITS };

static hp_status name_messages(hp_group *group, bool is_carried) {
    uint64_t hash = mix(UINT64_C(0x9e3779b97f4a7c15), (uint64_t)is_carried), *n;
    for (int i = 0; i < group->size; i++)
        hash = mix(hash, (uint64_t)group->world_ranks[i]);
    HP_TRY(count_of(group->world, hash, &n));
    group->check = mix(hash, ++*n);
    group->tag = mix(group->check, 1) >> (64 - GROUP_BITS);
    return HP_OK;
}

/* ---- making and ending ----------------------------------------------------------------------- */

bool hpi_ranks_span(const hp_world *world, const int *world_ranks, int n_ranks) {
    for (int i = 1; i < n_ranks; i++)
        if (world->node_of[world_ranks[i]] != world->node_of[world_ranks[0]])
            return true;
    return false;
}

/* By node of the world; where the transport is to carry all, each member is a node. */
static hp_status make_nodes(hp_group *group, bool is_carried) {
    int *keys = hpi_alloc((size_t)group->size, sizeof *keys);
    if (!keys)
        return HP_ERR_MEMORY;
    for (int i = 0; i < group->size; i++)
        keys[i] = is_carried ? i : group->world->node_of[group->world_ranks[i]];
    const hp_status status = hpi_nodes_make(keys, group->size, group->rank, &group->nodes);
    hpi_free(keys);
    return status;
}

hp_status hpi_spanning_open(hp_group *group, bool is_carried) {
    hp_world *world = group->world;
    if (!world->transport)
        return HPI_FAIL(HP_ERR_UNSUPPORTED,
                        "expected a transport to carry %s, this job has none: it is started by "
                        "mpirun, or HYPER_PARALLEL_TRANSPORT names one",
                        group->name);
    HP_TRY(name_messages(group, is_carried)); /* first: it counts, though what follows may fail */
    HP_TRY(make_nodes(group, is_carried));
    const int n_inner = hpi_node_size(group->nodes, group->nodes->mine);
    const int *members = group->nodes->members + group->nodes->begin[group->nodes->mine];
    int *ranks = hpi_alloc((size_t)n_inner, sizeof *ranks);
    if (!ranks)
        return HP_ERR_MEMORY;
    for (int i = 0; i < n_inner; i++)
        ranks[i] = group->world_ranks[members[i]];
    const hp_status status = hpi_group_create_inner(group, ranks, n_inner, &group->inner);
    hpi_free(ranks);
    return status;
}

void hpi_spanning_close(hp_group *group) {
    if (!group->nodes)
        return;
    hp_group_destroy(group->inner);
    hpi_nodes_free(group->nodes);
}

/* ---- messages ------------------------------------------------------------------------------- */

static uint64_t tag_of(const hp_group *group, uint32_t tag) {
    return group->tag << HPI_REMOTE_TAG_BITS | tag;
}

hp_status hpi_remote_send(hp_group *group, int rank, uint32_t tag, const void *data, uint64_t bytes,
                          hpi_transfer **out_transfer) {
    hpi_transport *t = group->world->transport;
    return t->post_send(t, group->world_ranks[rank], tag_of(group, tag), data, bytes, out_transfer);
}

hp_status hpi_remote_receive(hp_group *group, int rank, uint32_t tag, void *out_data,
                             uint64_t bytes, hpi_transfer **out_transfer) {
    hpi_transport *t = group->world->transport;
    return t->post_recv(t, group->world_ranks[rank], tag_of(group, tag), out_data, bytes,
                        out_transfer);
}

hp_status hpi_remote_test(hp_group *group, hpi_transfer *transfer) {
    hpi_transport *t = group->world->transport;
    return t->test(t, transfer);
}

void hpi_remote_cancel(hp_group *group, hpi_transfer *transfer) {
    hpi_transport *t = group->world->transport;
    hp_error record;
    hp_last_error_get(&record);
    (void)t->cancel(t, transfer);
    (void)hpi_error_set(&record);
}

/* That a rank of this node has left is seen at once; its last messages take another way. */
#define GRACE_NS UINT64_C(300000000)

typedef struct remote_wait {
    const hp_group *group;
    const char *operation;
    int rank;
    uint64_t left_ns; /* when that was first seen to have left; 0: not yet */
} remote_wait;

static bool has_just_left(remote_wait *w) {
    hp_world *world = w->group->world;
    const int world_rank = w->group->world_ranks[w->rank];
    hpi_liveness_poll(world);
    if (!hpi_world_is_local(world, world_rank) || !hpi_liveness_has_left(world, world_rank))
        return false;
    const uint64_t now_ns = hpi_now_ns();
    w->left_ns = w->left_ns ? w->left_ns : now_ns;
    return now_ns - w->left_ns < GRACE_NS;
}

/* May what is awaited still come? The end of any member counts. */
static hp_status look(void *context) {
    remote_wait *w = context;
    const hp_group *group = w->group;
    if (!has_just_left(w))
        HP_TRY(hpi_group_look(group, w->rank, w->operation)); /* takes in the news */
    for (int i = 0; i < group->size; i++)
        if (hpi_liveness_is_dead(group->world, group->world_ranks[i]))
            return hpi_group_look(group, i, w->operation);
    return HP_OK;
}

static int member_of(const hp_group *group, int world_rank) {
    int rank = group->size - 1;
    while (rank >= 0 && group->world_ranks[rank] != world_rank)
        rank--;
    return rank;
}

hp_status hpi_remote_wait(hp_group *group, hpi_transfer *transfer, uint64_t seq,
                          const char *operation) {
    hp_world *world = group->world;
    hpi_transport *t = world->transport;
    hp_status status = t->test(t, transfer);
    if (status != HP_IN_PROGRESS)
        return status;
    const int peer = transfer->peer, rank = member_of(group, peer);
    remote_wait context = {group, operation, rank, 0};
    const hpi_patience patience = {.operation = operation,
                                   .timeout_ms = hpi_timeout_ms(world, group),
                                   .may_spin = hpi_thread_spins(world),
                                   .look = look,
                                   .context = &context};
    const hpi_reason reason = {operation, group, rank, seq, 0, 0};
    const uint64_t begin_ns = hpi_now_ns();
    hpi_control *own = hpi_world_control(world, world->rank);
    hpi_note *note = hpi_note_take(own);
    if (note)
        hpi_note_write(note, &reason, peer, begin_ns);
    status = hpi_transport_wait(t, transfer, &patience);
    if (status == HP_ERR_TIMEOUT)
        hpi_news_explain(world, peer);
    if (status < 0) {
        hpi_note_write(&own->failure, &reason, peer, begin_ns);
        t->is_lost = true;
    }
    hpi_note_free(note);
    return status;
}

/* ---- exchanges ------------------------------------------------------------------------------ */

/* What goes before the words of a node's members, as a message of its own: calls that differ may
 * have other numbers of words. */
typedef struct exchange_head {
    uint64_t check;
    uint64_t number; /* of the exchange on this group */
    uint32_t n_words, n_members;
    char operation[16];
} exchange_head;
_Static_assert(sizeof(exchange_head) == 40, "sent between hosts");

enum { HEAD, WORDS, N_MESSAGES };

typedef struct exchange_part {
    hpi_transfer *received[N_MESSAGES];
    exchange_head *in; /* and the words behind it */
} exchange_part;

typedef struct spanning_exchange {
    hp_group *group;
    const char *operation;
    size_t row_bytes;                  /* of one member's words */
    exchange_head *out;                /* what this rank sends: the words of its node */
    exchange_part *parts;              /* [n nodes] what others' nodes say */
    hpi_transfer *(*sent)[N_MESSAGES]; /* [size] to members of other nodes */
} spanning_exchange;

static size_t words_bytes(const spanning_exchange *x, int node) {
    return x->row_bytes * (size_t)hpi_node_size(x->group->nodes, node);
}

static hp_status post_part(spanning_exchange *x, int node, int from) {
    exchange_part *part = &x->parts[node];
    part->in = hpi_alloc(1, sizeof *part->in + words_bytes(x, node));
    if (!part->in)
        return HP_ERR_MEMORY;
    HP_TRY(hpi_remote_receive(x->group, from, HPI_REMOTE_SETUP, part->in, sizeof *part->in,
                              &part->received[HEAD]));
    return hpi_remote_receive(x->group, from, HPI_REMOTE_SETUP, part->in + 1, words_bytes(x, node),
                              &part->received[WORDS]);
}

static hp_status post_out(spanning_exchange *x, int to) {
    HP_TRY(hpi_remote_send(x->group, to, HPI_REMOTE_SETUP, x->out, sizeof *x->out,
                           &x->sent[to][HEAD]));
    return hpi_remote_send(x->group, to, HPI_REMOTE_SETUP, x->out + 1,
                           words_bytes(x, x->group->nodes->mine), &x->sent[to][WORDS]);
}

static hp_status post_parts(spanning_exchange *x) {
    hp_group *group = x->group;
    const hpi_nodes *nodes = group->nodes;
    const int place = nodes->place_of[group->rank];
    for (int node = 0; node < nodes->n; node++)
        if (node != nodes->mine)
            HP_TRY(post_part(x, node, hpi_node_partner(nodes, node, place)));
    for (int i = 0; i < group->size; i++)
        if (nodes->node_of[i] != nodes->mine &&
            hpi_node_partner(nodes, nodes->mine, nodes->place_of[i]) == group->rank)
            HP_TRY(post_out(x, i));
    return HP_OK;
}

static hp_status check_head(const spanning_exchange *x, const exchange_head *in, int node) {
    const hp_group *group = x->group;
    const int from = group->world_ranks[hpi_node_partner(group->nodes, node,
                                                         group->nodes->place_of[group->rank])];
    char theirs[sizeof in->operation];
    memcpy(theirs, in->operation, sizeof theirs);
    theirs[sizeof theirs - 1] = '\0';
    if (in->check != x->out->check || in->number != x->out->number ||
        strcmp(theirs, x->out->operation) != 0 || in->n_words != x->out->n_words)
        return HPI_FAIL_RANK(HP_ERR_MISMATCH, from,
                             "expected every rank of %s to make the same call: rank %d made %s "
                             "(set-up call %llu), rank %d made %s (set-up call %llu)",
                             group->name, group->world->rank, x->operation,
                             (unsigned long long)x->out->number, from, theirs,
                             (unsigned long long)in->number);
    return HP_OK;
}

static hp_status wait_one(hp_group *group, hpi_transfer **transfer, uint64_t number,
                          const char *operation) {
    hpi_transfer *t = *transfer;
    *transfer = NULL;
    return t ? hpi_remote_wait(group, t, number, operation) : HP_OK;
}

static hp_status wait_parts(spanning_exchange *x) {
    const hpi_nodes *nodes = x->group->nodes;
    for (int node = 0; node < nodes->n; node++) {
        exchange_part *part = &x->parts[node];
        if (node == nodes->mine)
            continue;
        HP_TRY(wait_one(x->group, &part->received[HEAD], x->out->number, x->operation));
        HP_TRY(check_head(x, part->in, node));
        HP_TRY(wait_one(x->group, &part->received[WORDS], x->out->number, x->operation));
    }
    for (int i = 0; i < N_MESSAGES * x->group->size; i++)
        HP_TRY(wait_one(x->group, &x->sent[i / N_MESSAGES][i % N_MESSAGES], x->out->number,
                        x->operation));
    return HP_OK;
}

static void spread_words(const spanning_exchange *x, uint64_t *out_words) {
    const hpi_nodes *nodes = x->group->nodes;
    for (int node = 0; node < nodes->n; node++) {
        const exchange_head *head = node == nodes->mine ? x->out : x->parts[node].in;
        const char *rows = (const char *)(head + 1);
        for (int k = 0; k < hpi_node_size(nodes, node); k++)
            memcpy((char *)out_words +
                       x->row_bytes * (size_t)nodes->members[nodes->begin[node] + k],
                   rows + x->row_bytes * (size_t)k, x->row_bytes);
    }
}

static void cancel_all(hp_group *group, hpi_transfer *const *transfers) {
    for (int i = 0; i < N_MESSAGES; i++)
        if (transfers[i])
            hpi_remote_cancel(group, transfers[i]);
}

static void exchange_close(spanning_exchange *x) {
    const hpi_nodes *nodes = x->group->nodes;
    for (int node = 0; x->parts && node < nodes->n; node++) {
        cancel_all(x->group, x->parts[node].received);
        hpi_free(x->parts[node].in);
    }
    for (int i = 0; x->sent && i < x->group->size; i++)
        cancel_all(x->group, x->sent[i]);
    hpi_free(x->parts);
    hpi_free(x->sent);
    hpi_free(x->out);
}

static hp_status exchange_open(spanning_exchange *x, int n_words) {
    const hpi_nodes *nodes = x->group->nodes;
    x->out = hpi_alloc(1, sizeof *x->out + words_bytes(x, nodes->mine));
    x->parts = hpi_alloc((size_t)nodes->n, sizeof *x->parts);
    x->sent = hpi_alloc((size_t)x->group->size, sizeof *x->sent);
    if (!x->out || !x->parts || !x->sent)
        return HP_ERR_MEMORY;
    *x->out = (exchange_head){.check = x->group->check,
                              .number = ++x->group->n_exchanges,
                              .n_words = (uint32_t)n_words,
                              .n_members = (uint32_t)hpi_node_size(nodes, nodes->mine)};
    snprintf(x->out->operation, sizeof x->out->operation, "%s", x->operation);
    return HP_OK;
}

/* First inside the node; then each member sends its node's words to its partners. */
hp_status hpi_spanning_exchange(hp_group *group, const char *operation, const uint64_t *words,
                                int n_words, uint64_t *out_words) {
    spanning_exchange x = {
        .group = group, .operation = operation, .row_bytes = (size_t)n_words * sizeof *words};
    hp_status status = exchange_open(&x, n_words);
    if (!status)
        status = hpi_group_exchange(group->inner, operation, words, n_words,
                                    (uint64_t *)(void *)(x.out + 1));
    if (!status)
        status = post_parts(&x);
    if (!status)
        status = wait_parts(&x);
    if (!status && out_words)
        spread_words(&x, out_words);
    exchange_close(&x);
    return status;
}

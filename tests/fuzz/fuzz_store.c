/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_store.c - the start-up store, as server and as client, against any bytes from the other
 * side.
 *
 * The server has three ranks on socket pairs and two strangers, all of whom say what the input
 * tells them to, in pieces; each may hang up. What must hold: at the end the server still answers a
 * rank whose connection stands, no stranger is answered before it has greeted with the job's
 * number, and an end of the job is only ever told of a rank that has one. A client takes the input
 * for the server's answer: it gets a value that fits, or an error, and does not wait for more than
 * there is.
 */
#include "fuzz.h"
#include "world/start/store.h"

#include <sys/socket.h>
#include <unistd.h>

enum { N_RANKS = 3, N_PEERS = 5, QUIET = 2, MAX_PIECE = 5000 };
#define JOB UINT64_C(0x1122334455667788)

typedef struct peers {
    hpi_store_server *server;
    int fds[N_PEERS]; /* our ends; -1: has hung up */
    bool has_greeted[N_PEERS];
} peers;

static void open_peers(peers *p) {
    MUST(hpi_store_server_create(N_RANKS, &p->server) == HP_OK);
    hpi_store_server_expect(p->server, JOB);
    for (int i = 0; i < N_PEERS; i++) {
        int pair[2];
        MUST(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair));
        p->fds[i] = pair[0];
        p->has_greeted[i] = i < N_RANKS;
        MUST(hpi_store_server_add(p->server, pair[1], i < N_RANKS ? i : -1) == HP_OK);
    }
}

static void close_peers(peers *p) {
    for (int i = 0; i < N_PEERS; i++)
        if (p->fds[i] >= 0)
            close(p->fds[i]);
    hpi_store_server_destroy(p->server);
}

static void serve(peers *p) {
    for (int i = 0; i < hpi_store_server_count(p->server); i++)
        if (hpi_store_server_fd(p->server, i) >= 0)
            hpi_store_server_read(p->server, i);
}

static void hear(peers *p, int i) {
    char bytes[sizeof(hpi_store_head) + HPI_STORE_VALUE_BYTES];
    ssize_t got;
    while (p->fds[i] >= 0 && (got = recv(p->fds[i], bytes, sizeof bytes, MSG_DONTWAIT)) > 0) {
        hpi_store_head head;
        if ((size_t)got < sizeof head)
            continue;
        memcpy(&head, bytes, sizeof head);
        if (i < N_RANKS || head.magic != HPI_STORE_MAGIC)
            continue;
        p->has_greeted[i] |= head.op == HPI_STORE_REPLY && head.status == HP_OK;
        MUST(p->has_greeted[i] || head.status == HP_ERR_VERSION || head.status == HP_ERR_MISMATCH);
    }
}

static hpi_store_head head_of(hpi_store_op op, size_t key_bytes, size_t value_bytes) {
    return (hpi_store_head){HPI_STORE_MAGIC,      op, 7, 0, -1, (uint32_t)key_bytes,
                            (uint32_t)value_bytes};
}

/* A piece of the input as it is, or behind a head of our protocol, else nothing gets far. */
static void speak(peers *p, fuzz_input *in) {
    static uint8_t piece[sizeof(hpi_store_head) + MAX_PIECE];
    const uint8_t action = fuzz_byte(in);
    const int i = action % N_PEERS;
    size_t n = (size_t)fuzz_byte(in) << (action >> 5 & 3) * 2;
    n = hpi_min(n, MAX_PIECE);
    if (p->fds[i] < 0)
        return;
    if (action == 0xff && i != QUIET) {
        close(p->fds[i]);
        p->fds[i] = -1;
        return;
    }
    if (action & 0x80) {
        const size_t key_bytes = hpi_min(n, fuzz_byte(in) % HPI_STORE_KEY_BYTES);
        const hpi_store_op op = fuzz_byte(in) % 7;
        hpi_store_head head = head_of(op, key_bytes, n - key_bytes);
        memcpy(piece, &head, sizeof head);
        fuzz_take(in, piece + sizeof head, n);
        n += sizeof head;
    } else {
        fuzz_take(in, piece, n);
    }
    if (i != QUIET)
        (void)send(p->fds[i], piece, n, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* The rank that has said nothing yet is served all the same. */
static void check_quiet_rank(peers *p) {
    static const char key[] = "the quiet rank's own key";
    struct {
        hpi_store_head head;
        char body[sizeof key + 1];
    } message = {.head = head_of(HPI_STORE_SET, sizeof key - 1, 2)};
    hpi_store_head answer = {0};
    memcpy(message.body, key, sizeof key - 1);
    hear(p, QUIET);
    MUST(send(p->fds[QUIET], &message, sizeof message.head + sizeof key + 1, MSG_NOSIGNAL) > 0);
    serve(p);
    MUST(recv(p->fds[QUIET], &answer, sizeof answer, MSG_DONTWAIT) == (ssize_t)sizeof answer);
    MUST(answer.magic == HPI_STORE_MAGIC && answer.op == HPI_STORE_REPLY && answer.id == 7);
    MUST(answer.status == HP_OK || answer.status == HP_ERR_STATE);
}

static void try_server(fuzz_input in) {
    peers p;
    open_peers(&p);
    while (in.left) {
        speak(&p, &in);
        serve(&p);
        for (int i = 0; i < N_PEERS; i++)
            hear(&p, i);
    }
    (void)hpi_store_server_is_done(p.server);
    check_quiet_rank(&p);
    close_peers(&p);
}

static void try_client(fuzz_input in) {
    int pair[2];
    hp_store store;
    static char value[64];
    MUST(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
    MUST(hpi_store_client(pair[0], "a test", true, &store) == HP_OK);
    for (int n = 0; n < 3; n++) {
        uint8_t bytes[512];
        size_t n_bytes = SIZE_MAX;
        const size_t length = fuzz_byte(&in) * (size_t)2;
        hpi_store_head head = head_of(HPI_STORE_REPLY, 0, fuzz_byte(&in));
        head.id = (uint32_t)n + 1;
        if (fuzz_byte(&in) % 4) /* else what the input says is the head, too */
            (void)send(pair[1], &head, sizeof head, MSG_DONTWAIT | MSG_NOSIGNAL);
        fuzz_take(&in, bytes, length);
        (void)send(pair[1], bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n == 2)
            shutdown(pair[1], SHUT_WR);
        const hp_status status = store.get(store.context, "key", value, sizeof value, &n_bytes, 1);
        MUST(status ? status != HP_IN_PROGRESS && n_bytes == SIZE_MAX : n_bytes <= sizeof value);
    }
    store.close(store.context);
    close(pair[0]);
    close(pair[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    fuzz_input in = {data, n_bytes};
    if (fuzz_byte(&in) % 4)
        try_server(in);
    else
        try_client(in);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_share.c - any datagrams at a rank's socket for shared memory, with any number of
 * descriptors.
 *
 * The receiver is the static one of share.c, which is taken in whole. What must hold: only a
 * message with the rank's secret is kept, with the one descriptor that it may carry; of all others
 * nothing is left, no descriptor either; and no message at all is an error.
 */
#include "world/start/share.c"

#include "fuzz.h"

enum { N_RANKS = 3, MOST_FDS = 9 };

static int n_open(void) {
    int n = 0;
    for (int fd = 0; fd < 512; fd++) /* more than an input can make us keep */
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void send_datagram(const hpi_share *s, const void *bytes, size_t n_bytes, int n_fds) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(MOST_FDS * sizeof(int))];
    } controls = {.bytes = {0}};
    struct sockaddr_un address;
    struct iovec part = {(void *)(uintptr_t)bytes, n_bytes};
    const socklen_t length = address_of(s->token, &address);
    struct msghdr header = {
        .msg_name = &address, .msg_namelen = length, .msg_iov = &part, .msg_iovlen = 1};
    if (n_fds) {
        header.msg_control = controls.bytes;
        header.msg_controllen = CMSG_SPACE((size_t)n_fds * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&header);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN((size_t)n_fds * sizeof(int));
        for (int i = 0; i < n_fds; i++)
            memcpy(CMSG_DATA(c) + (size_t)i * sizeof(int), &(int){0}, sizeof(int));
    }
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    MUST(fd >= 0);
    (void)sendmsg(fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
    close(fd);
}

static int n_parcels(const hpi_share *s) {
    int n = 0;
    for (const share_parcel *p = s->parcels; p; p = p->next)
        n++;
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    fuzz_input in = {data, n_bytes};
    unsigned char token[HPI_TOKEN_BYTES];
    hp_world world = {.rank = 1, .n_ranks = N_RANKS, .epoll_fd = -1};
    const int at_first = n_open();
    MUST(hpi_share_open(&world, token) == HP_OK);
    while (in.left && world.share->free) {
        union {
            share_message message;
            uint8_t bytes[2 * sizeof(share_message)];
        } u;
        const uint8_t how = fuzz_byte(&in);
        const int n_fds = how % (MOST_FDS + 1);
        const int before = n_open(), n_before = n_parcels(world.share);
        size_t length = sizeof u.message;
        fuzz_take(&in, &u.message, sizeof u.message);
        if (how & 0x10)
            u.message.magic = SHARE_MAGIC;
        if (how & 0x20)
            memcpy(u.message.secret, token + NAME_BYTES, SECRET_BYTES);
        if (how & 0x40)
            u.message.from = (int64_t)((uint64_t)u.message.from % N_RANKS);
        if (how & 0x80)
            length = fuzz_byte(&in) % sizeof u.bytes;
        const bool is_heard = length >= sizeof u.message && n_fds > 0 &&
                              u.message.magic == SHARE_MAGIC && u.message.from >= 0 &&
                              u.message.from < N_RANKS &&
                              !memcmp(u.message.secret, token + NAME_BYTES, SECRET_BYTES);
        const bool is_known = is_heard && world.share->pidfds[u.message.from] >= 0;
        send_datagram(world.share, u.bytes, length, n_fds);
        MUST(take_in_all(&world) == HP_OK);
        MUST(n_parcels(world.share) - n_before == is_heard);
        MUST(n_open() == before + is_heard + (is_heard && !is_known));
    }
    hpi_share_close(&world);
    MUST(n_open() == at_first);
    return 0;
}

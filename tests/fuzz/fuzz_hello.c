/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_hello.c - what a rank makes of any hellos in the start-up store.
 *
 * The reader is the static one of bootstrap.c, which is taken in whole. Each hello is either ours
 * with some bytes changed, or the input as it is, of any length. Taken or refused, never a text
 * without its end; a refusal names a rank of the job.
 */
#include "world/start/bootstrap.c"

#include "fuzz.h"

enum { N_HELLOS = 3 };

typedef struct hellos {
    uint8_t bytes[N_HELLOS][HPI_STORE_VALUE_BYTES];
    size_t n_bytes[N_HELLOS];
    hp_status status[N_HELLOS];
    int n_asked;
} hellos;

static hp_status get(void *context, const char *key, void *out_value, size_t capacity,
                     size_t *out_n_bytes, uint64_t timeout_ms) {
    hellos *h = context;
    const int i = h->n_asked++;
    (void)timeout_ms;
    MUST(i < N_HELLOS && strstr(key, "/hello/"));
    if (h->status[i])
        return HPI_FAIL_RANK(h->status[i], i, "no hello of rank %d", i);
    if (h->n_bytes[i] > capacity)
        return HPI_FAIL(HP_ERR_ARGUMENT, "too long");
    memcpy(out_value, h->bytes[i], h->n_bytes[i]);
    *out_n_bytes = h->n_bytes[i];
    return HP_OK;
}

static void make_hello(fuzz_input *in, const hello *ours, hellos *h, int i) {
    const uint8_t how = fuzz_byte(in);
    h->status[i] = how == 0xff ? HP_ERR_TIMEOUT : HP_OK;
    if (how & 1) {
        h->n_bytes[i] = hpi_min((size_t)fuzz_byte(in) * 16, HPI_STORE_VALUE_BYTES);
        fuzz_take(in, h->bytes[i], h->n_bytes[i]);
        return;
    }
    h->n_bytes[i] = sizeof *ours;
    memcpy(h->bytes[i], ours, sizeof *ours);
    for (int n = how >> 1 & 7; n > 0; n--) {
        uint16_t at;
        uint8_t run = fuzz_byte(in) % 65;
        fuzz_take(in, &at, sizeof at);
        at %= sizeof *ours;
        fuzz_take(in, h->bytes[i] + at, hpi_min(run, sizeof *ours - at));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    static hellos h;
    static hello all[N_HELLOS], ours;
    fuzz_input in = {data, n_bytes};
    hp_world world = {.rank = 1, .n_ranks = N_HELLOS};
    const hp_store store = {&h, NULL, get, NULL};
    hp_error record;
    world.options.start_timeout_ms = 1;
    world.options.thresholds = "";
    memset(&ours, 0, sizeof ours);
    hpi_hello_fill(&world, &ours);
    h.n_asked = 0;
    for (int i = 0; i < N_HELLOS; i++)
        make_hello(&in, &ours, &h, i);
    memset(all, 0xff, sizeof all);
    hp_status status = read_hellos(&store, &world, 1, all);
    if (!status) {
        for (int i = 0; i < N_HELLOS; i++)
            MUST(memchr(all[i].version, 0, VERSION_BYTES) && memchr(all[i].host, 0, HOST_BYTES) &&
                 memchr(all[i].boot_id, 0, BOOT_BYTES) &&
                 memchr(all[i].message, 0, MESSAGE_BYTES) &&
                 memchr(all[i].thresholds, 0, TEXT_BYTES));
        status = hpi_hellos_check(all, &world);
    }
    MUST(status <= 0);
    hp_last_error_get(&record);
    MUST(!status || (record.status == status && record.world_rank < N_HELLOS));
    return 0;
}

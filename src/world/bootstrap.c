#include "inside.h"
hp_status hpi_bootstrap(hp_world *world, const hpi_identity *identity) {
    return HPI_FAIL(HP_ERR_UNSUPPORTED, "rank %d of %d: processes come with the next commit",
                    world->rank, identity->n_ranks);
}
void hpi_bootstrap_close(hp_world *world) {
    hpi_free(world->segments);
}
uint64_t hpi_share_key(hp_world *world) {
    return world->hub ? 0 : 1;
}
hp_status hpi_share_send(hp_world *world, int to, uint64_t key, int fd) {
    return HPI_FAIL(HP_ERR_UNSUPPORTED, "%d %d %d %llu", world->rank, to, fd,
                    (unsigned long long)key);
}
hp_status hpi_share_receive(hp_world *world, int from, uint64_t key, int *out_fd) {
    return HPI_FAIL(HP_ERR_UNSUPPORTED, "%d %d %p %llu", world->rank, from, (void *)out_fd,
                    (unsigned long long)key);
}

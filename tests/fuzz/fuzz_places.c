/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_places.c - any place that a peer may say: a pointer into a block that both hold, or none.
 *
 * A world of one rank with some blocks, of which the input frees some. A place that names no live
 * block, or lies beyond its end, is no pointer; any other lies inside the block that it names.
 */
#include "fuzz.h"
#include "symm/symm.h"

#include "base/base.h"
#include "world/world.h"

enum { N_BLOCKS = 6, N_PLACES = 16 };
static const uint64_t sizes[N_BLOCKS] = {64, 1, 4096, 100, 65536, 8};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    fuzz_input in = {data, n_bytes};
    static hp_world *world; /* of all inputs: it is not changed by them */
    hp_symm blocks[N_BLOCKS];
    hpi_place places[N_BLOCKS];
    unsigned char *bases[N_BLOCKS];
    uint8_t freed = fuzz_byte(&in);
    if (!world) {
        MUST(setenv("SYMMETRIC_MEMORY_HEAP_SIZE", "16M", 1) == 0);
        MUST(hp_world_create(NULL, &world) == HP_OK);
    }
    for (int i = 0; i < N_BLOCKS; i++) {
        void *base;
        MUST(hp_symm_alloc(world, NULL, sizes[i], 0, &blocks[i]) == HP_OK);
        MUST(hp_symm_pointer(blocks[i], 0, NULL, &base) == HP_OK);
        bases[i] = base;
        places[i] = hpi_symm_place(world, base, sizes[i]);
        MUST(places[i].key && !places[i].offset);
        if (freed >> i & 1)
            MUST(hp_symm_free(blocks[i]) == HP_OK);
    }
    for (int n = 0; n < N_PLACES; n++) {
        const int i = fuzz_byte(&in) % N_BLOCKS;
        hpi_place place;
        fuzz_take(&in, &place, sizeof place);
        if (place.key & 1) /* else it hardly ever is one of ours */
            place.key = places[i].key;
        if (place.offset & 1)
            place.offset >>= 48;
        const unsigned char *at = hpi_symm_at(world, place, 0);
        bool is_inside = false;
        for (int k = 0; k < N_BLOCKS; k++)
            if (place.key == places[k].key && !(freed >> k & 1) && place.offset <= sizes[k])
                is_inside = at == bases[k] + place.offset;
        MUST(at ? is_inside : !is_inside);
    }
    for (int i = 0; i < N_BLOCKS; i++)
        if (!(freed >> i & 1))
            MUST(hp_symm_free(blocks[i]) == HP_OK);
    return 0;
}

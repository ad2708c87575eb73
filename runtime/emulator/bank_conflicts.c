/* Shared memory has 32 banks of 4 bytes. One pass (wavefront) serves any number of lanes as long as no bank is asked
 * for two different words; 8- and 16-byte accesses are served sixteen and eight lanes at a time. The lanes of a warp
 * make their accesses one by one here, so the n-th accesses of its lanes since its last synchronisation are taken for
 * one instruction. */
#include "engine.h"

#include <stdlib.h>

#define BANKS 32u
#define MAX_NOTED 1024u

/* Passes for up to 32 lanes, in chunks of 4, 8 or 16 bytes: the most different chunks that one bank (group) is asked
 * for.
 */
static uint32_t passes(const uint32_t *addrs, uint32_t active, uint32_t bytes) {
    const uint32_t slots = BANKS * 4u / bytes;
    uint32_t worst = 0;
    for (uint32_t slot = 0; slot < slots; ++slot) {
        uint32_t seen[FK_WARP_LANES], count = 0;
        for (uint32_t m = active; m; m &= m - 1) {
            const uint32_t chunk = addrs[__builtin_ctz(m)] / bytes;
            if (chunk % slots != slot) continue;
            uint32_t i = 0;
            while (i < count && seen[i] != chunk)
                ++i;
            if (i == count) seen[count++] = chunk;
        }
        if (count > worst) worst = count;
    }
    return worst;
}

void fk_banks_count(fk_block *block, const uint32_t *addrs, uint32_t active, uint32_t bytes) {
    const uint32_t at_once = BANKS * 4u / bytes;
    for (uint32_t first = 0; first < FK_WARP_LANES; first += at_once) {
        const uint32_t group = active & (FK_ALL_LANES >> (FK_WARP_LANES - at_once)) << first;
        if (!group) continue;
        const uint32_t n = passes(addrs, group, bytes);
        block->stats.smem_wavefronts += n;
        block->stats.smem_conflicts += n - 1;
    }
}

void fk_banks_note(fk_lane *lane, uint32_t addr, uint32_t bytes) {
    if (lane->num_accesses == MAX_NOTED) return;
    if (lane->num_accesses == lane->max_accesses) {
        const size_t max = lane->max_accesses ? 2 * lane->max_accesses : 64;
        fk_access *accesses = realloc(lane->accesses, max * sizeof *accesses);
        if (!accesses) return;
        lane->accesses = accesses;
        lane->max_accesses = max;
    }
    lane->accesses[lane->num_accesses++] = (fk_access){addr, bytes};
}

void fk_banks_flush(fk_warp *warp) {
    fk_block *block = warp->lanes[0].block;
    size_t longest = 0;
    for (uint32_t l = 0; l < FK_WARP_LANES; ++l)
        if (warp->lanes[l].num_accesses > longest) longest = warp->lanes[l].num_accesses;
    for (size_t i = 0; i < longest; ++i) {
        uint32_t addrs[FK_WARP_LANES], single = 0, pair = 0, quad = 0; /* words of the lanes' accesses */
        for (uint32_t l = 0; l < FK_WARP_LANES; ++l) {
            const fk_lane *lane = &warp->lanes[l];
            if (i >= lane->num_accesses) continue;
            addrs[l] = lane->accesses[i].addr;
            const uint32_t bytes = lane->accesses[i].bytes;
            *(bytes == 16 ? &quad : bytes == 8 ? &pair : &single) |= 1u << l;
        }
        if (single) fk_banks_count(block, addrs, single, 4);
        if (pair) fk_banks_count(block, addrs, pair, 8);
        if (quad) fk_banks_count(block, addrs, quad, 16);
    }
    for (uint32_t l = 0; l < FK_WARP_LANES; ++l)
        warp->lanes[l].num_accesses = 0;
}

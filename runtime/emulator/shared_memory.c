/* Shared memory with a shadow: for every four bytes, who wrote and who read last, and when (engine.h says what orders
 * two accesses). An access that is not ordered after an earlier one by another thread is a race if either writes. */
#include "engine.h"

#include <string.h>

uint32_t fk_smem_address(const fk_lane *lane, uint32_t addr) {
    const fk_block *block = lane->block;
    const uint32_t cta = addr >> 24, offset = (addr & 0xffffffu) - FK_SMEM_BASE;
    if (block->ctas == 1) return addr;
    if (cta > block->ctas || offset >= block->cta_window) return addr | 0xff000000u; /* outside of all */
    return FK_SMEM_BASE + offset + (cta ? cta - 1 : lane->rank) * block->cta_window;
}

unsigned char *fk_smem_at(fk_block *block, uint32_t addr, uint32_t bytes, const char *what) {
    const uint32_t offset = addr - FK_SMEM_BASE;
    if (addr % bytes != 0)
        fk_block_fault(block, "%s: shared address smem_base() + %d is not %u-byte aligned", what, (int)offset, bytes);
    if (addr < FK_SMEM_BASE || offset > block->smem_bytes || block->smem_bytes - offset < bytes)
        fk_block_fault(block, "%s: %u bytes at smem_base() + %d are outside the block's %u bytes of shared memory",
                       what, bytes, (int)offset, block->smem_bytes);
    return block->smem + offset;
}

void fk_smem_reset(fk_block *block) {
    memset(block->smem, block->options.poison ? 0xff : 0, block->smem_bytes);
    memset(block->shadow, 0, (block->smem_bytes / 4 + 1) * sizeof *block->shadow);
}

static bool same_warp(uint32_t thread, uint32_t other) {
    return (thread - 1) / FK_WARP_LANES == (other - 1) / FK_WARP_LANES;
}

/* Whether an access at `tick` by `thread` is ordered before one that `lane` makes now. */
static bool ordered(const fk_lane *lane, uint32_t thread, uint32_t tick) {
    const uint32_t me = lane->thread + 1u;
    if (thread == 0 || thread == me) return true;
    return tick < (same_warp(thread, me) ? lane->warp->synced : lane->warp->seen[(thread - 1) / FK_WARP_LANES]);
}

/* `thread` is the earlier one, counted from 1; 0: several lanes of the same warp. */
_Noreturn static void report_race(const fk_lane *lane, uint32_t offset, const char *what, const char *did,
                                  uint32_t thread) {
    const uint32_t warp = lane->warp->index;
    if (thread == 0 || same_warp(thread, lane->thread + 1u))
        fk_block_fault(lane->block, "race at smem_base() + %u: %s, after %s %u %s it, with no __syncwarp between",
                       offset, what, thread ? "thread" : "other lanes of warp", thread ? thread - 1 : warp, did);
    fk_block_fault(lane->block,
                   "race at smem_base() + %u: %s by warp %u, after thread %u (warp %u) %s it, with no __syncthreads "
                   "between",
                   offset, what, warp, thread - 1, (thread - 1) / FK_WARP_LANES, did);
}

_Noreturn static void report_in_flight(const fk_lane *lane, uint32_t offset, const char *what, uint32_t thread,
                                       fk_flight kind) {
    if (kind == FK_TMA)
        fk_block_fault(
            lane->block,
            "%s touches smem_base() + %u while the tma_load of thread %u to it is in flight: no mbarrier_wait "
            "for its phase has passed",
            what, offset, thread - 1);
    fk_block_fault(
        lane->block,
        "%s touches smem_base() + %u while the cp_async_16 of thread %u to it is in flight: no cp_async_wait "
        "has completed it",
        what, offset, thread - 1);
}

static void check_write_before(const fk_lane *lane, const fk_granule *g, uint32_t offset, const char *what) {
    if (g->in_flight) report_in_flight(lane, offset, what, g->writer, (fk_flight)g->in_flight);
    if (!ordered(lane, g->writer, g->write_tick)) report_race(lane, offset, what, "wrote", g->writer);
}

static void note_read(const fk_lane *lane, fk_granule *g, uint32_t offset, const char *what) {
    const fk_block *block = lane->block;
    const uint16_t me = (uint16_t)(lane->thread + 1u);
    check_write_before(lane, g, offset, what);
    if (g->reader == 0 || g->read_tick < block->synced) {
        g->other_reader = 0;
        g->many_lanes = 0;
    } else if (!same_warp(g->reader, me)) {
        g->other_reader = g->reader;
        g->other_tick = g->read_tick;
        g->many_lanes = 0;
    } else if (g->read_tick < lane->warp->synced) {
        g->many_lanes = 0;
    } else if (g->reader != me) {
        g->many_lanes = 1;
    }
    g->reader = me;
    g->read_tick = block->tick;
}

static void note_write(const fk_lane *lane, fk_granule *g, uint32_t offset, const char *what) {
    const uint16_t me = (uint16_t)(lane->thread + 1u);
    check_write_before(lane, g, offset, what);
    if (!ordered(lane, g->reader, g->read_tick)) report_race(lane, offset, what, "read", g->reader);
    if (g->reader && g->read_tick >= lane->block->synced) {
        if (g->other_reader && !same_warp(g->other_reader, me) && !ordered(lane, g->other_reader, g->other_tick))
            report_race(lane, offset, what, "read", g->other_reader);
        if (g->many_lanes && same_warp(g->reader, me) && g->read_tick >= lane->warp->synced)
            report_race(lane, offset, what, "read", 0);
    }
    g->writer = me;
    g->write_tick = lane->block->tick;
}

const unsigned char *fk_smem_read(fk_lane *lane, uint32_t addr, uint32_t bytes, const char *what) {
    fk_block *block = lane->block;
    const unsigned char *host = fk_smem_at(block, addr, bytes, what);
    const uint32_t offset = addr - FK_SMEM_BASE;
    if (block->options.check_races)
        for (uint32_t i = 0; i < bytes; i += 4)
            note_read(lane, &block->shadow[(offset + i) / 4], offset + i, what);
    return host;
}

unsigned char *fk_smem_write(fk_lane *lane, uint32_t addr, uint32_t bytes, const char *what) {
    fk_block *block = lane->block;
    unsigned char *host = fk_smem_at(block, addr, bytes, what);
    const uint32_t offset = addr - FK_SMEM_BASE;
    if (block->options.check_races)
        for (uint32_t i = 0; i < bytes; i += 4)
            note_write(lane, &block->shadow[(offset + i) / 4], offset + i, what);
    return host;
}

void fk_smem_set_in_flight(fk_lane *lane, uint32_t addr, uint32_t bytes, fk_flight in_flight) {
    fk_block *block = lane->block;
    if (!block->options.check_races) return;
    for (uint32_t i = 0; i < bytes; i += 4) {
        fk_granule *g = &block->shadow[(addr - FK_SMEM_BASE + i) / 4];
        g->in_flight = (uint8_t)in_flight;
        g->write_tick = block->tick;
    }
}

/* mbarriers and named barriers: who waits, and what a barrier orders. Ordering is kept for whole warps: an arrival
 * publishes all that its warp has done so far, and a wait that passes tells the waiter's whole warp. */
#include "hopper.h"

#include <string.h>

static void clock_join(fk_clock *clock, const uint32_t *tick) {
    for (uint32_t w = 0; w < FK_MAX_WARPS; ++w)
        if (clock->tick[w] < tick[w]) clock->tick[w] = tick[w];
}

static void publish(fk_lane *lane, fk_clock *clock) {
    lane->warp->seen[lane->warp->index] = ++lane->block->tick;
    clock_join(clock, lane->warp->seen);
}

static void acquire(fk_lane *lane, const fk_clock *clock) {
    fk_warp *warp = lane->warp;
    const uint32_t own = clock->tick[warp->index];
    for (uint32_t w = 0; w < FK_MAX_WARPS; ++w)
        if (warp->seen[w] < clock->tick[w]) warp->seen[w] = clock->tick[w];
    if (warp->synced < own) warp->synced = own;
}

/* The running lane sleeps; what it waits for is in wait_addr or wait_id. */
static void sleep_lane(fk_lane *lane, fk_lane_state state) {
    lane->state = state;
    lane->warp->asleep |= 1u << lane->lane;
    fk_warp_update(lane->block, lane->warp);
    fk_block_yield(lane->block);
}

static void wake(fk_block *block, fk_lane_state state, uint32_t value) {
    for (uint32_t w = 0; w < block->num_warps; ++w) {
        fk_warp *warp = &block->warps[w];
        for (uint32_t m = warp->asleep; m; m &= m - 1) {
            fk_lane *lane = &warp->lanes[__builtin_ctz(m)];
            if (lane->state != state || lane->wait_value != value) continue;
            lane->state = FK_LANE_READY;
            warp->asleep &= ~(1u << lane->lane);
        }
        fk_warp_update(block, warp);
    }
}

void fk_hopper_reset(fk_block *block) {
    struct fk_hopper *h = block->hopper;
    h->num_mbarriers = 0;
    memset(h->named, 0, sizeof h->named);
    memset(h->registers, 0, sizeof h->registers);
    h->loads.count = h->stores.count = 0;
    fk_wgmma_reset(block);
}

/* ---- mbarriers ------------------------------------------------------------------------------------------ */

fk_mbarrier *fk_mbarrier_find(const fk_block *block, uint32_t addr) {
    for (uint32_t i = 0; i < block->hopper->num_mbarriers; ++i)
        if (block->hopper->mbarriers[i].addr == addr) return &block->hopper->mbarriers[i];
    return NULL;
}

fk_mbarrier *fk_mbarrier_at(fk_block *block, uint32_t addr, const char *what) {
    fk_mbarrier *b = fk_mbarrier_find(block, addr);
    if (!b)
        fk_block_fault(block, "%s: no mbarrier_init has made one at smem_base() + %d", what,
                       (int)(addr - FK_SMEM_BASE));
    return b;
}

void fk_emu_mbarrier_init(unsigned int addr, unsigned int arrivals) {
    static const char name[] = "mbarrier_init";
    fk_block *block = fk_block_current();
    addr = fk_smem_address(block->current, addr);
    struct fk_hopper *h = block->hopper;
    memset(fk_smem_write(block->current, addr, 8, name), 0, 8);
    if (arrivals == 0 || arrivals >= 1u << 20)
        fk_block_fault(block, "%s: %u arrivals, must be 1 to 1048575", name, arrivals);
    fk_mbarrier *b = fk_mbarrier_find(block, addr);
    if (!b && h->num_mbarriers == FK_MAX_MBARRIERS)
        fk_block_fault(block, "%s: the emulator keeps at most %u mbarriers in a block", name, FK_MAX_MBARRIERS);
    if (!b) b = &h->mbarriers[h->num_mbarriers++];
    memset(b, 0, sizeof *b);
    b->addr = addr;
    b->arrivals = b->missing = arrivals;
}

static void end_phase_if_due(fk_block *block, fk_mbarrier *b) {
    if (b->missing || b->bytes) return;
    ++b->phase;
    b->missing = b->arrivals;
    clock_join(&b->released, b->gathered.tick);
    memset(&b->gathered, 0, sizeof b->gathered);
    wake(block, FK_LANE_AT_MBARRIER, b->addr);
}

/* The barrier as the running lane sees it: its initialisation must be ordered before. */
static fk_mbarrier *visit(fk_block *block, uint32_t addr, const char *what) {
    fk_smem_read(block->current, addr, 8, what);
    return fk_mbarrier_at(block, addr, what);
}

void fk_emu_mbarrier_arrive(unsigned int addr, unsigned int bytes) {
    const char *name = bytes ? "mbarrier_arrive_expect_tx" : "mbarrier_arrive";
    fk_block *block = fk_block_current();
    addr = fk_smem_address(block->current, addr);
    fk_mbarrier *b = visit(block, addr, name);
    if (b->missing == 0)
        fk_block_fault(block, "%s: phase %u of the mbarrier at smem_base() + %d already has its %u arrivals", name,
                       b->phase, (int)(addr - FK_SMEM_BASE), b->arrivals);
    publish(block->current, &b->gathered);
    b->bytes += bytes;
    --b->missing;
    end_phase_if_due(block, b);
}

void fk_mbarrier_landed(fk_lane *lane, uint32_t addr, uint32_t bytes) {
    fk_mbarrier *b = fk_mbarrier_at(lane->block, addr, "tma_load");
    b->bytes -= bytes;
    publish(lane, &b->gathered);
    end_phase_if_due(lane->block, b);
}

void fk_emu_mbarrier_wait(unsigned int addr, unsigned int parity) {
    static const char name[] = "mbarrier_wait";
    fk_block *block = fk_block_current();
    addr = fk_smem_address(block->current, addr);
    fk_lane *lane = block->current;
    fk_mbarrier *b = visit(block, addr, name);
    if (parity > 1) fk_block_fault(block, "%s: parity %u, must be 0 or 1", name, parity);
    while ((b->phase & 1u) == parity) {
        lane->wait_value = addr;
        sleep_lane(lane, FK_LANE_AT_MBARRIER);
    }
    acquire(lane, &b->released);
}

/* ---- named barriers ------------------------------------------------------------------------------------- */

void fk_emu_named_barrier(unsigned int id, unsigned int threads, int wait) {
    const char *name = wait ? "named_barrier_sync" : "named_barrier_arrive";
    fk_block *block = fk_block_current();
    fk_lane *lane = block->current;
    if (id == 0 || id >= FK_NAMED_BARRIERS) fk_block_fault(block, "%s: barrier %u, must be 1 to 15", name, id);
    if (threads == 0 || threads % FK_WARP_LANES != 0 || threads > block->cta_threads)
        fk_block_fault(block, "%s: barrier %u is for %u threads, must be a multiple of 32 up to %u", name, id, threads,
                       block->cta_threads);
    const uint32_t place = lane->rank * FK_NAMED_BARRIERS + id;
    fk_named_barrier *b = &block->hopper->named[place];
    if (b->threads && b->threads != threads)
        fk_block_fault(block, "%s: barrier %u is for %u threads here, for %u where others came to it", name, id,
                       threads, b->threads);
    b->threads = threads;
    publish(lane, &b->gathered);
    if (++b->arrived == threads) {
        clock_join(&b->released, b->gathered.tick);
        memset(&b->gathered, 0, sizeof b->gathered);
        b->threads = b->arrived = 0;
        wake(block, FK_LANE_AT_NAMED_BARRIER, place);
    } else if (wait) {
        lane->wait_value = place;
        sleep_lane(lane, FK_LANE_AT_NAMED_BARRIER);
    }
    if (wait) acquire(lane, &b->released);
}

/* ---- registers ------------------------------------------------------------------------------------------ */

/* Where an SM has one CTA, as __launch_bounds__(threads, 1) lets the compiler assume: given in eights. */
static uint32_t launch_registers(const fk_block *block) {
    const uint32_t all = 65536 / block->cta_threads / 8 * 8;
    return all < 255 ? all : 255;
}

/* A warp that asks for more waits until others have given back as many, for ever where they keep too many. */
void fk_emu_setmaxnreg(unsigned int registers) {
    fk_block *block = fk_block_current();
    struct fk_hopper *h = block->hopper;
    const uint32_t at_launch = launch_registers(block);
    uint32_t wanted = 0;
    h->registers[block->current->warp->index] = registers;
    for (uint32_t w = 0; w < block->num_warps; ++w) {
        if (!h->registers[w]) return; /* it may give some back yet */
        wanted += h->registers[w];
    }
    if (wanted > block->num_warps * at_launch)
        fk_block_fault(block,
                       "setmaxnreg: the warps want %u registers a lane together, and were launched with %u: the last "
                       "ones wait for ever",
                       wanted, block->num_warps * at_launch);
}

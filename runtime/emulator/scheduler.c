/* One fiber per thread. A lane runs until it waits; then it switches straight to the next lane that can run, in an
 * order drawn from the seed. When no lane can run and some are alive, the block is deadlocked. */
#include "hopper.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Virtual size of a stack; pages are taken as they are touched. ASan's frames are several times larger. */
#ifdef FK_FIBER_ASAN
#define STACK_BYTES ((size_t)1 << 20)
#else
#define STACK_BYTES ((size_t)256 << 10)
#endif

/* initial-exec: read by signal handlers, where the lazy allocation of thread-local storage is not allowed. */
static _Thread_local fk_block *running __attribute__((tls_model("initial-exec")));

fk_block *fk_block_current(void) {
    return running;
}

uint32_t fk_block_random(fk_block *block) {
    /* xorshift64*; Vigna 2016. Seed 0 stays 0. */
    uint64_t x = block->random;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    block->random = x;
    return (uint32_t)((x * 0x2545f4914f6cdd1dull) >> 32);
}

static size_t page_size(void) {
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* Stack `i` lies above a guard page of its own. */
static size_t stack_stride(void) {
    return STACK_BYTES + page_size();
}

fk_status fk_block_init(fk_block *block, fk_error *err) {
    const size_t n = block->threads, bytes = n * stack_stride();
    block->lanes = calloc(n, sizeof *block->lanes);
    block->smem = aligned_alloc(1024, (block->smem_bytes + 1023u) / 1024u * 1024u + 1024u);
    block->hopper = calloc(1, sizeof *block->hopper);
    block->shadow = calloc(block->smem_bytes / 4 + 1, sizeof *block->shadow);
    void *stacks = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    block->stacks = stacks == MAP_FAILED ? NULL : stacks;
    if (!block->lanes || !block->smem || !block->shadow || !block->hopper || !block->stacks)
        return fk_fail(err, FK_NO_MEMORY, "emulator: no memory for a block of %u threads and %u bytes of shared memory",
                       block->threads, block->smem_bytes);
    for (size_t i = 0; i < n; ++i)
        if (mprotect(block->stacks + i * stack_stride(), page_size(), PROT_NONE) != 0)
            return fk_fail(err, FK_NO_MEMORY, "emulator: cannot protect the stacks of %u threads", block->threads);
    block->num_warps = block->threads / FK_WARP_LANES;
    for (uint32_t i = 0; i < block->threads; ++i) {
        fk_lane *lane = &block->lanes[i];
        lane->block = block;
        lane->warp = &block->warps[i / FK_WARP_LANES];
        lane->thread = (uint16_t)i;
        lane->lane = (uint16_t)(i % FK_WARP_LANES);
        lane->rank = i / block->cta_threads;
    }
    return FK_OK;
}

const fk_lane *fk_block_overflowed(const fk_block *block, uintptr_t address) {
    const uintptr_t offset = address - (uintptr_t)block->stacks;
    if (offset >= block->threads * stack_stride() || offset % stack_stride() >= page_size()) return NULL;
    return &block->lanes[offset / stack_stride()];
}

void fk_block_free(fk_block *block) {
    for (uint32_t i = 0; block->lanes && i < block->threads; ++i) {
        free(block->lanes[i].copies);
        free(block->lanes[i].accesses);
    }
    free(block->lanes);
    free(block->smem);
    free(block->shadow);
    if (block->hopper) {
        fk_wgmma_free(block);
        free(block->hopper->loads.items);
        free(block->hopper->stores.items);
        free(block->hopper);
    }
    if (block->stacks) munmap(block->stacks, block->threads * stack_stride());
}

/* A set bit of `mask`, which is not 0: the lowest for seed 0, else one drawn at random. */
static uint32_t pick(fk_block *block, uint32_t mask) {
    const uint32_t shift = fk_block_random(block) & 31u;
    const uint32_t rotated = mask >> shift | mask << ((32u - shift) & 31u);
    return ((uint32_t)__builtin_ctz(rotated) + shift) & 31u;
}

/* Those who poll read again, as nobody else can run. False: there are none. */
static bool wake_pollers(fk_block *block) {
    for (uint32_t w = 0; w < block->num_warps; ++w) {
        fk_warp *warp = &block->warps[w];
        for (uint32_t m = warp->asleep; m; m &= m - 1) {
            fk_lane *lane = &warp->lanes[__builtin_ctz(m)];
            if (lane->state != FK_LANE_POLLING) continue;
            lane->state = FK_LANE_READY;
            warp->asleep &= ~(1u << lane->lane);
        }
        fk_warp_update(block, warp);
    }
    return block->ready != 0;
}

/* The lane to run next, preferably of `warp`: a warp that has begun an operation ends it soonest. */
static fk_lane *next_lane(fk_block *block, fk_warp *warp) {
    while (!block->ready)
        if (!fk_hopper_progress(block) && !wake_pollers(block)) return NULL;
    if (!warp || !(block->ready >> warp->index & 1u)) warp = &block->warps[pick(block, block->ready)];
    return &warp->lanes[pick(block, fk_warp_ready(warp))];
}

void fk_block_yield(fk_block *block) {
    fk_lane *from = block->current;
    fk_lane *to = next_lane(block, from->state == FK_LANE_READY ? NULL : from->warp);
    if (!to) {
        fk_block_report_deadlock(block, block->fault);
        fk_block_abort(block);
    }
    if (to == from) return;
    block->current = to;
    fk_fiber_switch(&from->fiber, &to->fiber);
}

void fk_block_poll(fk_block *block) {
    fk_lane *lane = block->current;
    lane->state = FK_LANE_POLLING;
    lane->warp->asleep |= 1u << lane->lane;
    fk_warp_update(block, lane->warp);
    fk_block_yield(block);
}

void fk_block_abort(fk_block *block) {
    fk_fiber_leave(&block->current->fiber, &block->scheduler);
}

void fk_block_fault(fk_block *block, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fk_fail(block->fault, FK_LAUNCH_FAILED, "%s thread %u: %s", block->name, block->current->thread, text);
    fk_block_abort(block);
}

static void release_barrier(fk_block *block) {
    block->synced = ++block->tick;
    block->arrived = 0;
    block->elected = block->vote;
    block->vote = false;
    for (uint32_t w = 0; w < block->num_warps; ++w) {
        fk_warp *warp = &block->warps[w];
        if (block->counting) fk_banks_flush(warp);
        for (uint32_t m = warp->at_barrier; m; m &= m - 1)
            warp->lanes[__builtin_ctz(m)].state = FK_LANE_READY;
        warp->at_barrier = 0;
        warp->synced = block->synced;
        for (uint32_t other = 0; other < block->num_warps; ++other)
            warp->seen[other] = block->synced;
        fk_warp_update(block, warp);
    }
}

static void meet(fk_block *block) {
    fk_lane *lane = block->current;
    lane->state = FK_LANE_AT_BARRIER;
    lane->warp->at_barrier |= 1u << lane->lane;
    fk_warp_update(block, lane->warp);
    if (++block->arrived == block->alive) release_barrier(block);
    fk_block_yield(block);
}

int fk_emu_syncthreads(int vote) {
    fk_block *block = running;
    if (block->ctas > 1) fk_block_fault(block, "__syncthreads: the emulator has it for CTAs without a cluster alone");
    block->vote = block->vote || vote;
    meet(block);
    return block->elected; /* no lane is past the next barrier before this one has come to it */
}

void fk_emu_cluster_sync(void) {
    meet(running);
}

static void start_lane(void *arg) {
    fk_lane *lane = arg;
    fk_block *block = lane->block;
    fk_fiber_arrived(&lane->fiber, &block->scheduler);
    block->entry(block->params);
    fk_hopper_lane_exits(lane);
    lane->state = FK_LANE_EXITED;
    lane->warp->alive &= ~(1u << lane->lane);
    fk_warp_update(block, lane->warp);
    if (--block->alive == 0) fk_block_abort(block); /* the last one: back to the scheduler, without a fault */
    if (block->arrived == block->alive) release_barrier(block); /* exited threads do not count */
    fk_lane *to = next_lane(block, lane->warp);
    if (!to) {
        fk_block_report_deadlock(block, block->fault);
        fk_block_abort(block);
    }
    block->current = to;
    fk_fiber_leave(&lane->fiber, &to->fiber);
}

static fk_emu_dim block_idx(const fk_block *block) {
    const uint32_t in_row = block->grid.x / block->ctas, rows = block->index / in_row;
    return (fk_emu_dim){block->index % in_row * block->ctas, rows % block->grid.y, rows / block->grid.y};
}

static void prepare_lane(fk_block *block, fk_lane *lane) {
    lane->view.thread_idx = (fk_emu_dim){lane->thread % block->cta_threads, 0, 0};
    lane->view.block_idx = block_idx(block);
    lane->view.block_idx.x += lane->rank;
    lane->view.cluster_rank = lane->rank;
    lane->view.block_dim = (fk_emu_dim){block->cta_threads, 1, 1};
    lane->view.grid_dim = (fk_emu_dim){block->grid.x, block->grid.y, block->grid.z};
    lane->state = FK_LANE_READY;
    lane->num_copies = 0;
    lane->num_accesses = 0;
    lane->group = 0;
    lane->store_group = 0;
    const size_t colour = lane->thread * 7u % 64u * 64u;
    fk_fiber_init(&lane->fiber, block->stacks + lane->thread * stack_stride() + page_size(), STACK_BYTES, colour,
                  start_lane, lane);
}

fk_status fk_block_run(fk_block *block, uint32_t index, fk_error *err) {
    block->index = index;
    const fk_emu_dim at = block_idx(block);
    if (block->grid.y == 1 && block->grid.z == 1)
        snprintf(block->name, sizeof block->name, "block %u", at.x);
    else
        snprintf(block->name, sizeof block->name, "block (%u, %u, %u)", at.x, at.y, at.z);
    block->random = block->options.seed ? block->options.seed * 0x9e3779b97f4a7c15ull + index : 0;
    block->alive = block->threads;
    block->arrived = 0;
    block->tick = block->synced = 1;
    block->signal = 0;
    block->fault = err;
    err->status = FK_OK;
    for (uint32_t w = 0; w < block->num_warps; ++w) {
        block->warps[w] =
            (fk_warp){.lanes = &block->lanes[w * FK_WARP_LANES], .index = w, .alive = FK_ALL_LANES, .synced = 1};
        fk_warp_update(block, &block->warps[w]);
    }
    for (uint32_t i = 0; i < block->threads; ++i)
        prepare_lane(block, &block->lanes[i]);
    fk_smem_reset(block);
    fk_hopper_reset(block);
    fk_fiber_adopt(&block->scheduler);
    block->current = next_lane(block, NULL);
    running = block;
    fk_fiber_switch(&block->scheduler, &block->current->fiber);
    running = NULL;
    for (uint32_t i = 0; i < block->threads; ++i)
        fk_fiber_discard(&block->lanes[i].fiber);
    if (block->counting)
        for (uint32_t w = 0; w < block->num_warps; ++w)
            fk_banks_flush(&block->warps[w]);
    if (!block->signal && err->status == FK_OK) fk_wgmma_check(block, err);
    return block->signal ? fk_fault_describe(block, err) : err->status;
}

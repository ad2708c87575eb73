/* Operations of a warp. Each lane of the mask arrives and waits; the last one to arrive checks that all came to the
 * same operation and does the work of all, so that operands are read while every lane stands still. */
#include "hopper.h"

static void check_same_op(fk_block *block, const fk_warp *warp, fk_emu_op op, uint32_t mask) {
    const uint32_t me = block->current->lane;
    for (uint32_t m = mask; m; m &= m - 1) {
        const fk_lane *peer = &warp->lanes[__builtin_ctz(m)];
        if (peer->op != op)
            fk_block_fault(block, "warp %u diverged: lane %u is in %s, lane %u in %s", warp->index, me,
                           fk_emu_op_name(op), peer->lane, fk_emu_op_name(peer->op));
        if (peer->mask != mask)
            fk_block_fault(block, "%s in warp %u: lane %u names the lanes 0x%08x, lane %u names 0x%08x",
                           fk_emu_op_name(op), warp->index, me, mask, peer->lane, peer->mask);
    }
}

static uint32_t vote(const fk_warp *warp, uint32_t mask) {
    uint32_t ballot = 0;
    for (uint32_t m = mask; m; m &= m - 1) {
        const fk_lane *lane = &warp->lanes[__builtin_ctz(m)];
        if (lane->value) ballot |= 1u << lane->lane;
    }
    return ballot;
}

/* The lane that `lane` reads; itself where the source falls outside its segment. PTX ISA, shfl.sync. */
static uint32_t shuffle_source(const fk_lane *lane, fk_emu_op op) {
    const uint32_t me = lane->lane, first = me & ~(lane->width - 1u), last = first + lane->width - 1u;
    uint32_t source = me;
    switch (op) {
    case FK_EMU_SHFL:
        return first | (lane->source & (lane->width - 1u));
    case FK_EMU_SHFL_UP:
        return me - first >= lane->source ? me - lane->source : me;
    case FK_EMU_SHFL_DOWN:
        return last - me >= lane->source ? me + lane->source : me;
    case FK_EMU_SHFL_XOR:
        source = me ^ (lane->source & 31u);
        break;
    default:
        break;
    }
    return source <= last ? source : me;
}

static void shuffle(fk_block *block, fk_warp *warp, fk_emu_op op, uint32_t mask) {
    uint32_t value[FK_WARP_LANES];
    for (uint32_t m = mask; m; m &= m - 1) {
        const fk_lane *lane = &warp->lanes[__builtin_ctz(m)];
        const uint32_t source = shuffle_source(lane, op);
        if (!(mask >> source & 1u))
            fk_block_fault(block, "%s in warp %u: lane %u reads lane %u, which is not in mask 0x%08x",
                           fk_emu_op_name(op), warp->index, lane->lane, source, mask);
        value[lane->lane] = warp->lanes[source].value;
    }
    for (uint32_t m = mask; m; m &= m - 1) {
        fk_lane *lane = &warp->lanes[__builtin_ctz(m)];
        lane->value = value[lane->lane];
    }
}

static void perform(fk_block *block, fk_warp *warp, fk_emu_op op, uint32_t mask) {
    uint32_t ballot = 0;
    switch (op) {
    case FK_EMU_SYNCWARP:
        return;
    case FK_EMU_SHFL:
    case FK_EMU_SHFL_UP:
    case FK_EMU_SHFL_DOWN:
    case FK_EMU_SHFL_XOR:
        shuffle(block, warp, op, mask);
        return;
    case FK_EMU_BALLOT:
        ballot = vote(warp, mask);
        break;
    case FK_EMU_ANY:
        ballot = vote(warp, mask) != 0;
        break;
    case FK_EMU_ALL:
        ballot = vote(warp, mask) == mask;
        break;
    case FK_EMU_LDMATRIX_X4:
        fk_warp_ldmatrix(block, warp, false);
        return;
    case FK_EMU_LDMATRIX_X4_TRANS:
        fk_warp_ldmatrix(block, warp, true);
        return;
    case FK_EMU_MMA_M16N8K16_FP16:
    case FK_EMU_MMA_M16N8K16_BF16:
    case FK_EMU_MMA_M16N8K8_FP16:
        fk_warp_mma(block, warp, op);
        return;
    case FK_EMU_MMA_M16N8K16_PARTS:
        fk_warp_mma_parts(block, warp);
        return;
    case FK_EMU_WGMMA:
    case FK_EMU_WGMMA_COMMIT:
    case FK_EMU_WGMMA_WAIT:
        fk_warp_wgmma(block, warp, op);
        return;
    }
    for (uint32_t m = mask; m; m &= m - 1)
        warp->lanes[__builtin_ctz(m)].value = ballot;
}

void fk_warp_arrive(fk_lane *lane, fk_emu_op op, uint32_t mask) {
    fk_block *block = lane->block;
    fk_warp *warp = lane->warp;
    lane->op = op;
    lane->mask = mask;
    warp->waiting |= 1u << lane->lane;
    if ((warp->waiting & mask) != mask) {
        lane->state = FK_LANE_IN_WARP_OP;
        fk_warp_update(block, warp);
        fk_block_yield(block);
        return;
    }
    check_same_op(block, warp, op, mask);
    if (block->counting) fk_banks_flush(warp);
    warp->synced = ++block->tick; /* before: what lanes wrote is seen by the operation */
    perform(block, warp, op, mask);
    warp->synced = ++block->tick; /* after: what it read may be overwritten */
    for (uint32_t m = mask; m; m &= m - 1)
        warp->lanes[__builtin_ctz(m)].state = FK_LANE_READY;
    warp->waiting &= ~mask;
    fk_warp_update(block, warp);
    if (block->options.seed && (fk_block_random(block) & 7u) == 0) fk_block_yield(block);
}

unsigned int fk_emu_warp(fk_emu_op op, unsigned int mask, unsigned int value, unsigned int source, unsigned int width) {
    fk_block *block = fk_block_current();
    fk_lane *lane = block->current;
    if (!(mask >> lane->lane & 1u))
        fk_block_fault(block, "%s: mask 0x%08x does not name lane %u, which calls it", fk_emu_op_name(op), mask,
                       lane->lane);
    if (width == 0 || width > FK_WARP_LANES || (width & (width - 1u)) != 0)
        fk_block_fault(block, "%s: width %u, must be a power of two up to 32", fk_emu_op_name(op), width);
    lane->value = value;
    lane->source = source;
    lane->width = width;
    fk_warp_arrive(lane, op, mask);
    return lane->value;
}

/* The report of a deadlock: who waits where, and for whom. */
#include "hopper.h"

#include <stdarg.h>
#include <stdio.h>

const char *fk_emu_op_name(fk_emu_op op) {
    static const char *const names[] = {
#define FK_EMU_NAME(enumerator, name) name,
        FK_EMU_WARP_OPS(FK_EMU_NAME)
#undef FK_EMU_NAME
    };
    return names[op];
}

typedef struct report {
    char text[1024];
    size_t used;
} report;

static void say(report *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(report *r, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(r->text + r->used, sizeof r->text - r->used, format, args);
    va_end(args);
    if (n > 0) r->used += (size_t)n < sizeof r->text - r->used ? (size_t)n : sizeof r->text - r->used - 1;
}

/* "lane 5", "lanes 0-4, 7". */
static void say_lanes(report *r, uint32_t mask) {
    say(r, (mask & (mask - 1)) ? "lanes " : "lane ");
    for (uint32_t i = 0, first = 1; i < FK_WARP_LANES; ++i) {
        if (!(mask >> i & 1u)) continue;
        uint32_t last = i;
        while (last + 1 < FK_WARP_LANES && (mask >> (last + 1) & 1u))
            ++last;
        say(r, last == i ? "%s%u" : "%s%u-%u", first ? "" : ", ", i, last);
        first = 0;
        i = last;
    }
}

static void say_missing(report *r, uint32_t mask, const char *where) {
    if (!mask) return;
    say(r, " for ");
    say_lanes(r, mask);
    say(r, "%s", where);
}

/* One clause for each operation that lanes of the warp wait in. */
static void say_warp(report *r, const fk_warp *warp) {
    for (uint32_t left = warp->waiting; left;) {
        const fk_lane *lane = &warp->lanes[__builtin_ctz(left)];
        uint32_t group = 0;
        for (uint32_t m = left; m; m &= m - 1) {
            const fk_lane *peer = &warp->lanes[__builtin_ctz(m)];
            if (peer->op == lane->op && peer->mask == lane->mask) group |= 1u << peer->lane;
        }
        left &= ~group;
        say(r, "; warp %u: ", warp->index);
        say_lanes(r, group);
        say(r, (group & (group - 1)) ? " wait in %s" : " waits in %s", fk_emu_op_name(lane->op));
        const uint32_t missing = lane->mask & ~group;
        const uint32_t exited = missing & ~warp->alive, blocked = missing & warp->at_barrier;
        const uint32_t elsewhere = missing & (warp->waiting | warp->asleep);
        say_missing(r, exited, ", exited");
        say_missing(r, blocked, ", at __syncthreads");
        say_missing(r, elsewhere, "");
    }
}

/* One clause for each mbarrier or named barrier that lanes of the warp sleep at. */
static void say_asleep(report *r, const fk_block *block, const fk_warp *warp) {
    for (uint32_t left = warp->asleep; left;) {
        const fk_lane *lane = &warp->lanes[__builtin_ctz(left)];
        uint32_t group = 0;
        for (uint32_t m = left; m; m &= m - 1) {
            const fk_lane *peer = &warp->lanes[__builtin_ctz(m)];
            if (peer->state == lane->state && peer->wait_value == lane->wait_value) group |= 1u << peer->lane;
        }
        left &= ~group;
        say(r, "; warp %u: ", warp->index);
        say_lanes(r, group);
        if (lane->state == FK_LANE_AT_NAMED_BARRIER) {
            const fk_named_barrier *b = &block->hopper->named[lane->wait_value];
            say(r, " at named barrier %u, to which %u of %u threads have come", lane->wait_value % FK_NAMED_BARRIERS,
                b->arrived, b->threads);
            continue;
        }
        const fk_mbarrier *b = fk_mbarrier_find(block, lane->wait_value);
        say(r, " at the mbarrier at smem_base() + %u, phase %u, which lacks %u of %u arrivals and %lld bytes",
            b->addr - FK_SMEM_BASE, b->phase, b->missing, b->arrivals, (long long)b->bytes);
    }
}

void fk_block_report_deadlock(const fk_block *block, fk_error *err) {
    report r = {{0}, 0};
    for (uint32_t w = 0; w < block->num_warps; ++w) {
        const fk_warp *warp = &block->warps[w];
        if (warp->at_barrier) {
            say(&r, "; warp %u: ", warp->index);
            say_lanes(&r, warp->at_barrier);
            say(&r, " at __syncthreads");
        }
        say_warp(&r, warp);
        say_asleep(&r, block, warp);
    }
    fk_fail(err, FK_LAUNCH_FAILED, "deadlock: %s: %u of %u threads wait at __syncthreads, %u have exited%s",
            block->name, block->arrived, block->threads, block->threads - block->alive, r.text);
}

/* cp.async. A copy is in flight from its issue to the wait of its own thread that covers its group: until then nobody
 * may touch its destination, and after it other threads still need a barrier. Data lands at issue or, with
 * late_copies, at that wait; real hardware does anything between. */
#include "engine.h"

#include <stdlib.h>
#include <string.h>

static const char name[] = "cp_async";

static fk_copy *append(fk_lane *lane) {
    if (lane->num_copies == lane->max_copies) {
        const size_t max = lane->max_copies ? 2 * lane->max_copies : 64;
        fk_copy *copies = realloc(lane->copies, max * sizeof *copies);
        if (!copies) fk_block_fault(lane->block, "%s: no memory for %zu copies in flight", name, max);
        lane->copies = copies;
        lane->max_copies = max;
    }
    return &lane->copies[lane->num_copies++];
}

static void start(unsigned int dst, const void *src, uint32_t bytes, bool valid, const char *what) {
    fk_block *block = fk_block_current();
    fk_lane *lane = block->current;
    dst = fk_smem_address(lane, dst);
    unsigned char *host = fk_smem_write(lane, dst, bytes, what);
    fk_smem_set_in_flight(lane, dst, bytes, FK_CP_ASYNC);
    if (block->counting) fk_banks_note(lane, dst, bytes);
    fk_copy *copy = append(lane);
    copy->dst = dst;
    copy->group = lane->group;
    copy->bytes = bytes;
    memset(copy->data, 0, sizeof copy->data);
    if (valid) {
        if ((uintptr_t)src % bytes != 0)
            fk_block_fault(block, "%s: global address %p is not %u-byte aligned", what, (void *)(uintptr_t)src, bytes);
        memcpy(copy->data, src, bytes);
        block->stats.global_load_bytes += bytes;
    }
    if (!block->options.late_copies)
        memcpy(host, copy->data, bytes);
    else if (block->options.poison)
        memset(host, 0xff, bytes);
}

void fk_cp_async_16(unsigned int dst, const void *src, int valid) {
    start(dst, src, 16, valid, "cp_async_16");
}

void fk_cp_async_4(unsigned int dst, const void *src) {
    start(dst, src, 4, true, "cp_async_4");
}

void fk_cp_async_commit(void) {
    ++fk_block_current()->current->group;
}

void fk_cp_async_wait(int groups_left) {
    fk_block *block = fk_block_current();
    fk_lane *lane = block->current;
    size_t done = 0;
    for (; done < lane->num_copies; ++done) {
        const fk_copy *copy = &lane->copies[done];
        if (copy->group + (uint32_t)groups_left >= lane->group) break;
        if (block->options.late_copies)
            memcpy(fk_smem_at(block, copy->dst, copy->bytes, name), copy->data, copy->bytes);
        fk_smem_set_in_flight(lane, copy->dst, copy->bytes, FK_LANDED);
    }
    lane->num_copies -= done;
    if (lane->num_copies) memmove(lane->copies, lane->copies + done, lane->num_copies * sizeof *lane->copies);
}

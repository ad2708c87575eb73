/* Copies of boxes, and of bytes that lie side by side. A load is in flight from its issue until its bytes are counted
 * on its mbarrier: nobody may touch its target before, and others must wait for that mbarrier. A store reads at issue
 * or at its thread's wait. */
#include "hopper.h"

#include <stdlib.h>
#include <string.h>

#define MAP_MAGIC 0x70616d20726f736eu

static const uint32_t max_box = 256, alignment = 16;
static const uint64_t max_stride = (uint64_t)1 << 40;

fk_status fk_emu_tensor_map_encode(fk_emu_tensor_map *map, const fk_emu_tensor *t, fk_error *err) {
    memset(map, 0, sizeof *map);
    if (t->rank < 1 || t->rank > FK_EMU_TENSOR_RANK)
        return fk_fail(err, FK_BAD_ARGUMENT, "tensor map: rank is %u, must be 1 to 5", t->rank);
    if (t->element_bytes != 1 && t->element_bytes != 2 && t->element_bytes != 4)
        return fk_fail(err, FK_BAD_ARGUMENT, "tensor map: element_bytes is %u, must be 1, 2 or 4", t->element_bytes);
    if (t->swizzle != 0 && t->swizzle != 32 && t->swizzle != 64 && t->swizzle != 128)
        return fk_fail(err, FK_BAD_ARGUMENT, "tensor map: swizzle is %u, must be 0, 32, 64 or 128", t->swizzle);
    if ((uintptr_t)t->base % alignment != 0)
        return fk_fail(err, FK_BAD_ARGUMENT, "tensor map: base is %p, must be 16-byte aligned", t->base);
    for (uint32_t i = 0; i < t->rank; ++i) {
        if (t->dims[i] == 0) return fk_fail(err, FK_BAD_ARGUMENT, "tensor map: dims[%u] is 0", i);
        if (t->box[i] == 0 || t->box[i] > max_box)
            return fk_fail(err, FK_BAD_ARGUMENT, "tensor map: box[%u] is %u, must be 1 to 256", i, t->box[i]);
        if (i && t->strides[i - 1] % alignment != 0)
            return fk_fail(err, FK_BAD_ARGUMENT, "tensor map: strides[%u] is %llu, must be a multiple of 16", i - 1,
                           t->strides[i - 1]);
        if (i && t->strides[i - 1] >= max_stride)
            return fk_fail(err, FK_BAD_ARGUMENT, "tensor map: strides[%u] is %llu, must be less than 2^40", i - 1,
                           t->strides[i - 1]);
    }
    const uint32_t row = t->box[0] * t->element_bytes;
    if (row % alignment != 0)
        return fk_fail(err, FK_BAD_ARGUMENT, "tensor map: a row of the box is %u bytes, must be a multiple of 16", row);
    if (t->swizzle && row != t->swizzle) /* a GPU takes narrower rows, too, in a layout that no kernel here uses */
        return fk_fail(err, FK_BAD_ARGUMENT, "tensor map: a row of the box is %u bytes, must be the swizzle's %u", row,
                       t->swizzle);
    map->magic = MAP_MAGIC;
    map->tensor = *t;
    return FK_OK;
}

/* Where the 16 bytes go that would be at `addr` without a swizzle: chunk c of 128-byte row r goes to c ^ r % 8, and
 * with the narrower swizzles the fewer chunks of a row change places every second or fourth row. */
static uint32_t swizzled(uint32_t addr, uint32_t swizzle) {
    const uint32_t mask = swizzle / 16u - 1u; /* chunks of a row */
    return swizzle ? addr ^ (addr >> 7 & mask) << 4 : addr;
}

static uint32_t box_bytes(const fk_emu_tensor *t) {
    uint32_t bytes = t->element_bytes;
    for (uint32_t i = 0; i < t->rank; ++i)
        bytes *= t->box[i];
    return bytes;
}

/* 16 bytes of a box, and the element that they begin with. */
typedef struct chunk {
    char *global;  /* NULL: outside the tensor in a dimension other than the innermost */
    int64_t first; /* coordinate in the innermost dimension */
    uint32_t addr;
} chunk;

static chunk chunk_at(const fk_box_copy *copy, uint32_t index) {
    const fk_emu_tensor *t = &copy->map.tensor;
    const uint32_t in_chunk = 16u / t->element_bytes, in_row = t->box[0] / in_chunk;
    uint32_t row = index / in_row;
    chunk c = {t->base, copy->at[0] + (int64_t)(index % in_row * in_chunk), 0};
    bool inside = true;
    for (uint32_t i = 1; i < t->rank; ++i) {
        const int64_t x = copy->at[i] + (int64_t)(row % t->box[i]);
        row /= t->box[i];
        if (x < 0 || x >= (int64_t)t->dims[i])
            inside = false;
        else
            c.global += (uint64_t)x * t->strides[i - 1];
    }
    if (!inside) c.global = NULL;
    c.addr = swizzled(copy->addr + 16u * index, t->swizzle);
    return c;
}

static bool element_inside(const fk_emu_tensor *t, const chunk *c, uint32_t e) {
    return c->global && c->first + e >= 0 && c->first + e < (int64_t)t->dims[0];
}

static fk_box_copy *append(fk_block *block, fk_box_copies *list, const char *what) {
    if (list->count == list->room) {
        const size_t room = list->room ? 2 * list->room : 16;
        fk_box_copy *items = realloc(list->items, room * sizeof *items);
        if (!items) fk_block_fault(block, "%s: no memory for %zu copies in flight", what, room);
        list->items = items;
        list->room = room;
    }
    return &list->items[list->count++];
}

static void remove_copy(fk_box_copies *list, size_t i) {
    memmove(&list->items[i], &list->items[i + 1], (--list->count - i) * sizeof *list->items);
}

static fk_box_copy prepare(fk_block *block, const void *map, uint32_t addr, const int *at, uint32_t rank,
                           const char *what) {
    fk_box_copy copy = {.addr = addr, .lane = block->current};
    memcpy(&copy.map, map, sizeof copy.map);
    copy.addr = fk_smem_address(block->current, addr);
    if (copy.map.magic != MAP_MAGIC) fk_block_fault(block, "%s: no tensor map at %p", what, map);
    if (copy.map.tensor.rank != rank)
        fk_block_fault(block, "%s: %u coordinates for a tensor of rank %u", what, rank, copy.map.tensor.rank);
    if (addr % 128u != 0)
        fk_block_fault(block, "%s: shared address smem_base() + %d is not 128-byte aligned", what,
                       (int)(addr - FK_SMEM_BASE));
    memcpy(copy.at, at, rank * sizeof *at);
    return copy;
}

static fk_box_copy prepare_line(fk_block *block, uint32_t addr, const void *line, uint32_t bytes, const char *what) {
    if (addr % alignment != 0 || (uintptr_t)line % alignment != 0 || bytes % alignment != 0 || bytes == 0)
        fk_block_fault(block,
                       "%s: %u bytes between %p and shared address smem_base() + %d: all must be multiples of 16", what,
                       bytes, (void *)(uintptr_t)line, (int)(addr - FK_SMEM_BASE));
    return (fk_box_copy){.addr = fk_smem_address(block->current, addr),
                         .line = (char *)(uintptr_t)line,
                         .bytes = bytes,
                         .lane = block->current};
}

/* ---- loads ---------------------------------------------------------------------------------------------- */

static void land_line(fk_block *block, const fk_box_copy *copy) {
    for (uint32_t i = 0; i < copy->bytes; i += 16) {
        memcpy(fk_smem_at(block, copy->addr + i, 16, "bulk_load"),
               copy->sent ? (const char *)copy->value : copy->line + i, 16);
        fk_smem_set_in_flight(copy->lane, copy->addr + i, 16, FK_LANDED);
    }
    if (!copy->within) block->stats.global_load_bytes += copy->bytes;
    fk_mbarrier_landed(copy->lane, copy->bar, copy->bytes);
}

static void land(fk_block *block, const fk_box_copy *copy) {
    if (copy->bytes) {
        land_line(block, copy);
        return;
    }
    const fk_emu_tensor *t = &copy->map.tensor;
    const uint32_t bytes = box_bytes(t), size = t->element_bytes;
    for (uint32_t i = 0; i < bytes / 16u; ++i) {
        const chunk c = chunk_at(copy, i);
        unsigned char *to = fk_smem_at(block, c.addr, 16, "tma_load");
        memset(to, 0, 16);
        for (uint32_t e = 0; e < 16u / size; ++e)
            if (element_inside(t, &c, e)) {
                memcpy(to + e * size, c.global + (c.first + e) * size, size);
                block->stats.global_load_bytes += size;
            }
        fk_smem_set_in_flight(copy->lane, c.addr, 16, FK_LANDED);
    }
    fk_mbarrier_landed(copy->lane, copy->bar, bytes);
}

/* In an order of their own. */
static fk_box_copy take(fk_box_copies *loads, size_t i) {
    const fk_box_copy copy = loads->items[i];
    loads->items[i] = loads->items[--loads->count];
    return copy;
}

bool fk_hopper_progress(fk_block *block) {
    fk_box_copies *loads = &block->hopper->loads;
    if (!loads->count) return false;
    const fk_box_copy copy = take(loads, fk_block_random(block) % loads->count);
    land(block, &copy);
    for (size_t i = copy.sent ? loads->count : 0; i-- > 0;) /* with all that one barrier counts, as they are many */
        if (loads->items[i].sent && loads->items[i].bar == copy.bar) {
            const fk_box_copy other = take(loads, i);
            land(block, &other);
        }
    return true;
}

static void start(fk_block *block, const fk_box_copy *copy, uint32_t bytes, const char *what) {
    fk_mbarrier_at(block, copy->bar, what);
    for (uint32_t i = 0; i < bytes; i += 16) {
        unsigned char *host = fk_smem_write(block->current, copy->addr + i, 16, what);
        fk_smem_set_in_flight(block->current, copy->addr + i, 16, FK_TMA);
        if (block->options.poison) memset(host, 0xff, 16);
    }
    if (block->options.late_copies)
        *append(block, &block->hopper->loads, what) = *copy;
    else
        land(block, copy);
}

void fk_emu_tma_load(unsigned int dst, const void *map, unsigned int bar, const int *at, unsigned int rank) {
    static const char name[] = "tma_load";
    fk_block *block = fk_block_current();
    fk_box_copy copy = prepare(block, map, dst, at, rank, name);
    copy.bar = fk_smem_address(block->current, bar);
    start(block, &copy, box_bytes(&copy.map.tensor), name);
}

void fk_emu_bulk_load(unsigned int dst, const void *src, unsigned int bytes, unsigned int bar) {
    static const char name[] = "bulk_load";
    fk_block *block = fk_block_current();
    fk_box_copy copy = prepare_line(block, dst, src, bytes, name);
    copy.bar = fk_smem_address(block->current, bar);
    start(block, &copy, bytes, name);
}

/* Between the windows of a cluster's CTAs. */
void fk_emu_cluster_copy(unsigned int dst, unsigned int src, unsigned int bytes, unsigned int bar) {
    static const char name[] = "cluster_copy";
    fk_block *block = fk_block_current();
    const uint32_t from = fk_smem_address(block->current, src);
    for (uint32_t i = 0; i < bytes; i += 16)
        fk_smem_read(block->current, from + i, 16, name);
    fk_box_copy copy = prepare_line(block, dst, fk_smem_at(block, from, 16, name), bytes, name);
    copy.bar = fk_smem_address(block->current, bar);
    copy.within = true;
    start(block, &copy, bytes, name);
}

void fk_emu_cluster_send_v4(unsigned int dst, const void *value, unsigned int bar) {
    static const char name[] = "cluster_send_v4";
    fk_block *block = fk_block_current();
    fk_box_copy copy = prepare_line(block, dst, NULL, sizeof copy.value, name);
    copy.bar = fk_smem_address(block->current, bar);
    copy.within = copy.sent = true;
    memcpy(copy.value, value, sizeof copy.value);
    start(block, &copy, copy.bytes, name);
}

/* ---- stores --------------------------------------------------------------------------------------------- */

static const char *line_name(const fk_box_copy *copy) {
    return copy->adds ? "bulk_add_f32" : "bulk_store";
}

static void store_line(fk_block *block, const fk_box_copy *copy) {
    for (uint32_t i = 0; i < copy->bytes; i += 16) {
        const unsigned char *from = fk_smem_read(copy->lane, copy->addr + i, 16, line_name(copy));
        float value[4];
        memcpy(value, from, 16);
        if (copy->adds)
            fk_red_add_f32x4((float *)(void *)(copy->line + i), value);
        else
            memcpy(copy->line + i, value, 16);
    }
    if (!copy->adds) block->stats.global_store_bytes += copy->bytes;
}

static void store(fk_block *block, const fk_box_copy *copy) {
    if (copy->bytes) {
        store_line(block, copy);
        return;
    }
    const fk_emu_tensor *t = &copy->map.tensor;
    const uint32_t size = t->element_bytes;
    for (uint32_t i = 0; i < box_bytes(t) / 16u; ++i) {
        const chunk c = chunk_at(copy, i);
        const unsigned char *from = fk_smem_read(copy->lane, c.addr, 16, "tma_store");
        for (uint32_t e = 0; e < 16u / size; ++e)
            if (element_inside(t, &c, e)) {
                char *to = c.global + (c.first + e) * size;
                if (copy->adds) {
                    float x;
                    memcpy(&x, from + e * size, sizeof x);
                    fk_red_add_f32((float *)(void *)to, x);
                    continue;
                }
                memcpy(to, from + e * size, size);
                block->stats.global_store_bytes += size;
            }
    }
}

/* Of a row's last 16 bytes the hardware writes all (seen on an H200), also those that are not the tensor's. */
static void check_rows(fk_block *block, const fk_emu_tensor *t, const char *what) {
    const uint32_t bytes = t->dims[0] * t->element_bytes;
    if (bytes % 16) fk_block_fault(block, "%s: rows of %u bytes, must be a multiple of 16", what, bytes);
}

static void start_store(fk_block *block, fk_box_copy *copy, const char *what) {
    if (!copy->bytes) check_rows(block, &copy->map.tensor, what);
    copy->group = block->current->store_group;
    if (!block->options.late_copies) store(block, copy);
    *append(block, &block->hopper->stores, what) = *copy;
}

void fk_emu_tma_store(const void *map, unsigned int src, const int *at, unsigned int rank) {
    static const char name[] = "tma_store";
    fk_block *block = fk_block_current();
    fk_box_copy copy = prepare(block, map, src, at, rank, name);
    start_store(block, &copy, name);
}

void fk_emu_tma_add(const void *map, unsigned int src, const int *at, unsigned int rank) {
    static const char name[] = "tma_add";
    fk_block *block = fk_block_current();
    fk_box_copy copy = prepare(block, map, src, at, rank, name);
    if (copy.map.tensor.element_bytes != sizeof(float))
        fk_block_fault(block, "%s: elements of %u bytes, must be floats", name, copy.map.tensor.element_bytes);
    copy.adds = true;
    start_store(block, &copy, name);
}

void fk_emu_bulk_store(void *dst, unsigned int src, unsigned int bytes) {
    static const char name[] = "bulk_store";
    fk_block *block = fk_block_current();
    fk_box_copy copy = prepare_line(block, src, dst, bytes, name);
    start_store(block, &copy, name);
}

void fk_emu_bulk_add_f32(float *dst, unsigned int src, unsigned int bytes) {
    static const char name[] = "bulk_add_f32";
    fk_block *block = fk_block_current();
    fk_box_copy copy = prepare_line(block, src, dst, bytes, name);
    copy.adds = true;
    start_store(block, &copy, name);
}

void fk_emu_tma_store_commit(void) {
    ++fk_block_current()->current->store_group;
}

void fk_emu_tma_store_wait(int groups_left) {
    fk_block *block = fk_block_current();
    fk_lane *lane = block->current;
    fk_box_copies *stores = &block->hopper->stores;
    for (size_t i = 0; i < stores->count;) {
        const fk_box_copy *copy = &stores->items[i];
        if (copy->lane != lane || copy->group + (uint32_t)groups_left >= lane->store_group) {
            ++i;
            continue;
        }
        if (block->options.late_copies) store(block, copy);
        remove_copy(stores, i);
    }
}

/* Its shared memory goes with the block, so a store must have been waited for. */
void fk_hopper_lane_exits(fk_lane *lane) {
    const fk_box_copies *stores = &lane->block->hopper->stores;
    for (size_t i = 0; i < stores->count; ++i)
        if (stores->items[i].lane == lane)
            fk_block_fault(lane->block,
                           "exits while its %s from smem_base() + %d is in flight: no "
                           "tma_store_wait_read has completed it",
                           stores->items[i].bytes ? line_name(&stores->items[i]) : "tma_store",
                           (int)(stores->items[i].addr - FK_SMEM_BASE));
}

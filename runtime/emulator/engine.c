/* The table through which kernels call the engine, and the primitives that are one access each. */
#include "engine.h"
#include "half.h"
#include "hopper.h"

#include <string.h>

static const fk_emu_thread *self(void) {
    return &fk_block_current()->current->view;
}

static unsigned int smem_base(void) {
    return FK_SMEM_BASE;
}

/* An access by the running lane alone. */
static const unsigned char *read_shared(unsigned int addr, unsigned int bytes, const char *what) {
    fk_block *block = fk_block_current();
    addr = fk_smem_address(block->current, addr);
    if (block->counting) fk_banks_note(block->current, addr, bytes);
    return fk_smem_read(block->current, addr, bytes, what);
}

static unsigned char *write_shared(unsigned int addr, unsigned int bytes, const char *what) {
    fk_block *block = fk_block_current();
    addr = fk_smem_address(block->current, addr);
    if (block->counting) fk_banks_note(block->current, addr, bytes);
    return fk_smem_write(block->current, addr, bytes, what);
}

static unsigned int ld_shared_u32(unsigned int addr) {
    uint32_t value;
    memcpy(&value, read_shared(addr, 4, "ld_shared_u32"), 4);
    return value;
}

static void st_shared_u32(unsigned int addr, unsigned int value) {
    memcpy(write_shared(addr, 4, "st_shared_u32"), &value, 4);
}

static void ld_shared_f32x2(void *value, unsigned int addr) {
    memcpy(value, read_shared(addr, 8, "ld_shared_f32x2"), 8);
}

static void ld_shared_v4(void *value, unsigned int addr) {
    memcpy(value, read_shared(addr, 16, "ld_shared_v4"), 16);
}

static void st_shared_v4(unsigned int addr, const void *value) {
    memcpy(write_shared(addr, 16, "st_shared_v4"), value, 16);
}

static fk_block *check_global(const void *p, const char *what) {
    fk_block *block = fk_block_current();
    if ((uintptr_t)p % 16u != 0)
        fk_block_fault(block, "%s: global address %p is not 16-byte aligned", what, (void *)(uintptr_t)p);
    return block;
}

static void ld_global_v4(void *value, const void *p) {
    check_global(p, "ld_global_v4")->stats.global_load_bytes += 16;
    memcpy(value, p, 16);
}

static void st_global_v4(void *p, const void *value) {
    check_global(p, "st_global_v4")->stats.global_store_bytes += 16;
    memcpy(p, value, 16);
}

static unsigned int pack_fp16(float lo, float hi) {
    return fk_fp16_from_float(lo) | (unsigned int)fk_fp16_from_float(hi) << 16;
}

static unsigned int pack_bf16(float lo, float hi) {
    return fk_bf16_from_float(lo) | (unsigned int)fk_bf16_from_float(hi) << 16;
}

static unsigned int pack_e4m3(float x) {
    return fk_e4m3_from_float(x);
}

static float unpack_fp16(unsigned int half) {
    return fk_fp16_to_float((uint16_t)half);
}

static float unpack_e4m3(unsigned int byte) {
    return fk_e4m3_to_float((uint8_t)byte);
}

const fk_emu_table fk_emu_engine_table = {
    .self = self,
    .syncthreads = fk_emu_syncthreads,
    .cluster_sync = fk_emu_cluster_sync,
    .warp = fk_emu_warp,
    .ldmatrix = fk_emu_ldmatrix,
    .mma = fk_emu_mma,
    .smem_base = smem_base,
    .ld_shared_u32 = ld_shared_u32,
    .st_shared_u32 = st_shared_u32,
    .ld_shared_f32x2 = ld_shared_f32x2,
    .ld_shared_v4 = ld_shared_v4,
    .st_shared_v4 = st_shared_v4,
    .ld_global_v4 = ld_global_v4,
    .st_global_v4 = st_global_v4,
    .red_add_f32 = fk_red_add_f32,
    .red_add_f32x4 = fk_red_add_f32x4,
    .red_add_u64 = fk_red_add_u64,
    .atom_inc_u32 = fk_atom_inc_u32,
    .cas_u64x2 = fk_cas_u64x2,
    .ld_acquire_u64 = fk_ld_acquire_u64,
    .st_release_u64 = fk_st_release_u64,
    .ld_acquire_u32 = fk_ld_acquire_u32,
    .st_release_u32 = fk_st_release_u32,
    .cp_async_16 = fk_cp_async_16,
    .cp_async_4 = fk_cp_async_4,
    .cp_async_commit = fk_cp_async_commit,
    .cp_async_wait = fk_cp_async_wait,
    .mbarrier_init = fk_emu_mbarrier_init,
    .mbarrier_arrive = fk_emu_mbarrier_arrive,
    .mbarrier_wait = fk_emu_mbarrier_wait,
    .named_barrier = fk_emu_named_barrier,
    .setmaxnreg = fk_emu_setmaxnreg,
    .tma_load = fk_emu_tma_load,
    .tma_store = fk_emu_tma_store,
    .tma_add = fk_emu_tma_add,
    .bulk_load = fk_emu_bulk_load,
    .cluster_copy = fk_emu_cluster_copy,
    .cluster_send_v4 = fk_emu_cluster_send_v4,
    .bulk_store = fk_emu_bulk_store,
    .bulk_add_f32 = fk_emu_bulk_add_f32,
    .tma_store_commit = fk_emu_tma_store_commit,
    .tma_store_wait = fk_emu_tma_store_wait,
    .wgmma = fk_emu_wgmma_issue,
    .wgmma_commit = fk_emu_wgmma_commit,
    .wgmma_wait = fk_emu_wgmma_wait,
    .pack_fp16 = pack_fp16,
    .pack_bf16 = pack_bf16,
    .pack_e4m3 = pack_e4m3,
    .unpack_fp16 = unpack_fp16,
    .unpack_e4m3 = unpack_e4m3,
};

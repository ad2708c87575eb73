/* What a compiled kernel and the engine share, read by the C compiler of the library and by the host C++ compiler of
 * the kernel. A kernel image carries a hash of this file and of device.hpp; no image with another one is loaded. */
#ifndef FK_EMULATOR_ABI_HPP
#define FK_EMULATOR_ABI_HPP

typedef struct fk_emu_dim {
    unsigned int x, y, z;
} fk_emu_dim;

/* A thread as it sees itself. */
typedef struct fk_emu_thread {
    fk_emu_dim thread_idx, block_idx, block_dim, grid_dim;
    unsigned int cluster_rank;
} fk_emu_thread;

/* Acts of a warp: every lane of the mask arrives, the last one to arrive does the work of all.
 * X(enumerator, name as kernels call it) */
#define FK_EMU_WARP_OPS(X)                                                                                             \
    X(FK_EMU_SYNCWARP, "__syncwarp")                                                                                   \
    X(FK_EMU_SHFL, "__shfl_sync")                                                                                      \
    X(FK_EMU_SHFL_UP, "__shfl_up_sync")                                                                                \
    X(FK_EMU_SHFL_DOWN, "__shfl_down_sync")                                                                            \
    X(FK_EMU_SHFL_XOR, "__shfl_xor_sync")                                                                              \
    X(FK_EMU_BALLOT, "__ballot_sync")                                                                                  \
    X(FK_EMU_ANY, "__any_sync")                                                                                        \
    X(FK_EMU_ALL, "__all_sync")                                                                                        \
    X(FK_EMU_LDMATRIX_X4, "ldmatrix_x4")                                                                               \
    X(FK_EMU_LDMATRIX_X4_TRANS, "ldmatrix_x4_trans")                                                                   \
    X(FK_EMU_MMA_M16N8K16_FP16, "mma_m16n8k16_fp16")                                                                   \
    X(FK_EMU_MMA_M16N8K16_BF16, "mma_m16n8k16_bf16")                                                                   \
    X(FK_EMU_MMA_M16N8K8_FP16, "mma_m16n8k8_fp16")                                                                     \
    X(FK_EMU_MMA_M16N8K16_PARTS, "mma_m16n8k16_parts")                                                                 \
    X(FK_EMU_WGMMA, "wgmma")                                                                                           \
    X(FK_EMU_WGMMA_COMMIT, "wgmma_commit")                                                                             \
    X(FK_EMU_WGMMA_WAIT, "wgmma_wait")

typedef enum fk_emu_op {
#define FK_EMU_ENUMERATOR(op, name) op,
    FK_EMU_WARP_OPS(FK_EMU_ENUMERATOR)
#undef FK_EMU_ENUMERATOR
} fk_emu_op;

/* A wgmma as one thread asks for it. */
typedef enum fk_emu_element { FK_EMU_FP16, FK_EMU_BF16, FK_EMU_E4M3 } fk_emu_element;
typedef struct fk_emu_wgmma {
    float *acc;
    unsigned int registers;          /* of acc: N / 2 */
    const unsigned int *a_registers; /* null: A is in shared memory */
    unsigned long long a, b;         /* descriptors */
    int trans_a, trans_b;
    int element; /* fk_emu_element */
    int accumulate;
} fk_emu_wgmma;

/* The engine, as a kernel calls it. Data of 16 bytes is passed by address. */
typedef struct fk_emu_table {
    const fk_emu_thread *(*self)(void);
    int (*syncthreads)(int vote); /* whether a thread of the block voted so */
    void (*cluster_sync)(void);
    /* Votes and shuffles: `lane` is the source lane, delta or lane mask; width splits the warp into segments. */
    unsigned int (*warp)(fk_emu_op op, unsigned int mask, unsigned int value, unsigned int lane, unsigned int width);
    void (*ldmatrix)(fk_emu_op op, unsigned int *r, unsigned int addr);
    void (*mma)(fk_emu_op op, float *c, const unsigned int *a, unsigned int b0, unsigned int b1);
    unsigned int (*smem_base)(void);
    unsigned int (*ld_shared_u32)(unsigned int addr);
    void (*st_shared_u32)(unsigned int addr, unsigned int value);
    void (*ld_shared_f32x2)(void *value, unsigned int addr);
    void (*ld_shared_v4)(void *value, unsigned int addr);
    void (*st_shared_v4)(unsigned int addr, const void *value);
    void (*ld_global_v4)(void *value, const void *p);
    void (*st_global_v4)(void *p, const void *value);
    void (*red_add_f32)(float *p, float value);
    void (*red_add_f32x4)(float *p, const float *value);
    void (*red_add_u64)(unsigned long long *p, unsigned long long value);
    unsigned int (*atom_inc_u32)(unsigned int *p, unsigned int limit);
    void (*cas_u64x2)(unsigned long long *p, const unsigned long long *expected, const unsigned long long *desired);
    unsigned long long (*ld_acquire_u64)(const unsigned long long *p);
    void (*st_release_u64)(unsigned long long *p, unsigned long long value);
    unsigned int (*ld_acquire_u32)(const unsigned int *p);
    void (*st_release_u32)(unsigned int *p, unsigned int value);
    void (*cp_async_16)(unsigned int dst, const void *src, int valid);
    void (*cp_async_4)(unsigned int dst, const void *src);
    void (*cp_async_commit)(void);
    void (*cp_async_wait)(int groups_left);
    /* Hopper. `bytes` are those that the arrival announces. */
    void (*mbarrier_init)(unsigned int addr, unsigned int arrivals);
    void (*mbarrier_arrive)(unsigned int addr, unsigned int bytes);
    void (*mbarrier_wait)(unsigned int addr, unsigned int parity);
    void (*named_barrier)(unsigned int id, unsigned int threads, int wait);
    void (*tma_load)(unsigned int dst, const void *map, unsigned int bar, const int *at, unsigned int rank);
    void (*tma_store)(const void *map, unsigned int src, const int *at, unsigned int rank);
    void (*tma_add)(const void *map, unsigned int src, const int *at, unsigned int rank);
    void (*bulk_load)(unsigned int dst, const void *src, unsigned int bytes, unsigned int bar);
    void (*cluster_copy)(unsigned int dst, unsigned int src, unsigned int bytes, unsigned int bar);
    void (*cluster_send_v4)(unsigned int dst, const void *value, unsigned int bar);
    void (*bulk_store)(void *dst, unsigned int src, unsigned int bytes);
    void (*bulk_add_f32)(float *dst, unsigned int src, unsigned int bytes);
    void (*tma_store_commit)(void);
    void (*tma_store_wait)(int groups_left);
    void (*wgmma)(const fk_emu_wgmma *product);
    void (*wgmma_commit)(void);
    void (*wgmma_wait)(int groups_left);
    unsigned int (*pack_fp16)(float lo, float hi);
    unsigned int (*pack_bf16)(float lo, float hi);
    unsigned int (*pack_e4m3)(float x);
    float (*unpack_fp16)(unsigned int half);
    float (*unpack_e4m3)(unsigned int byte);
    void (*setmaxnreg)(unsigned int registers);
} fk_emu_table;

/* One kernel of an image. */
typedef struct fk_emu_entry {
    const char *name;
    unsigned long long param_bytes;
    void (*run)(const void *params); /* one thread of the kernel */
} fk_emu_entry;

/* What a kernel image exports under the name fk_emu_kernel. */
typedef struct fk_emu_exports {
    void (*bind)(const fk_emu_table *engine);
    const fk_emu_entry *entries;
    unsigned long long num_entries;
    const char *compiler;
} fk_emu_exports;

/* Stands before the compiler's version in the image, so that it is found without loading the image. */
#define FK_EMU_COMPILER_MARK "fk_emu_compiler="

#endif

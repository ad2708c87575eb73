/* What a block has of Hopper: mbarriers, named barriers, box copies, and the products of wgmma that are in flight.
 * Copies land and products are done at issue or, with late_copies, as late as the kernel allows. */
#ifndef FK_EMULATOR_HOPPER_H
#define FK_EMULATOR_HOPPER_H

#include "engine.h"

#define FK_MAX_MBARRIERS 96u
#define FK_NAMED_BARRIERS 16u
#define FK_MAX_CLUSTER 16u
#define FK_WGMMA_LANE_REGISTERS 128u

/* What is ordered before a point: accesses by warp w before tick[w]. */
typedef struct fk_clock {
    uint32_t tick[FK_MAX_WARPS];
} fk_clock;

typedef struct fk_mbarrier {
    uint32_t addr;
    uint32_t arrivals, missing; /* in each phase; in this one */
    int64_t bytes;              /* announced and not landed */
    uint32_t phase;
    fk_clock gathered, released; /* by the arrivals of this phase; of the phases that have ended */
} fk_mbarrier;

typedef struct fk_named_barrier {
    uint32_t threads, arrived; /* threads: 0 while nobody has come */
    fk_clock gathered, released;
} fk_named_barrier;

/* A box on its way to shared memory (bar != 0), or from it; or `bytes` (0: a box) that lie side by side, which are
 * copied from `line`, or added to it as floats; or 16 that a lane sent out of its registers. */
typedef struct fk_box_copy {
    fk_emu_tensor_map map;
    char *line;
    uint32_t bytes;
    int32_t at[FK_EMU_TENSOR_RANK];
    uint32_t addr, bar;
    fk_lane *lane; /* that issued it */
    uint32_t group;
    bool adds;   /* floats */
    bool within; /* a cluster's shared memory */
    bool sent;   /* `value`, in place of `line` */
    float value[4];
} fk_box_copy;

/* A list that grows. */
typedef struct fk_box_copies {
    fk_box_copy *items;
    size_t count, room;
} fk_box_copies;

typedef struct fk_wgmma_queue fk_wgmma_queue;

struct fk_hopper {
    fk_mbarrier mbarriers[FK_MAX_MBARRIERS];
    uint32_t num_mbarriers;
    fk_named_barrier named[FK_MAX_CLUSTER * FK_NAMED_BARRIERS]; /* of each CTA */
    fk_box_copies loads, stores;
    fk_wgmma_queue *wgmma[FK_MAX_WARPS]; /* made at a warp's first product */
    uint32_t registers[FK_MAX_WARPS];    /* of a thread, as setmaxnreg set it; 0: as at the launch */
};

/* hopper_barrier.c */
void fk_hopper_reset(fk_block *block);
/** NULL where none has been made. */
fk_mbarrier *fk_mbarrier_find(const fk_block *block, uint32_t addr);
/** The mbarrier at `addr`; a fault where none has been made. */
fk_mbarrier *fk_mbarrier_at(fk_block *block, uint32_t addr, const char *what);
/** `bytes` of a copy that `lane` issued have landed. */
void fk_mbarrier_landed(fk_lane *lane, uint32_t addr, uint32_t bytes);
void fk_emu_mbarrier_init(unsigned int addr, unsigned int arrivals);
void fk_emu_mbarrier_arrive(unsigned int addr, unsigned int bytes);
void fk_emu_mbarrier_wait(unsigned int addr, unsigned int parity);
void fk_emu_named_barrier(unsigned int id, unsigned int threads, int wait);
void fk_emu_setmaxnreg(unsigned int registers);

/* hopper_tma.c */
void fk_emu_tma_load(unsigned int dst, const void *map, unsigned int bar, const int *at, unsigned int rank);
void fk_emu_tma_store(const void *map, unsigned int src, const int *at, unsigned int rank);
void fk_emu_tma_add(const void *map, unsigned int src, const int *at, unsigned int rank);
void fk_emu_bulk_load(unsigned int dst, const void *src, unsigned int bytes, unsigned int bar);
void fk_emu_cluster_copy(unsigned int dst, unsigned int src, unsigned int bytes, unsigned int bar);
void fk_emu_cluster_send_v4(unsigned int dst, const void *value, unsigned int bar);
void fk_emu_bulk_store(void *dst, unsigned int src, unsigned int bytes);
void fk_emu_bulk_add_f32(float *dst, unsigned int src, unsigned int bytes);
void fk_emu_tma_store_commit(void);
void fk_emu_tma_store_wait(int groups_left);

/* hopper_wgmma.c */
void fk_emu_wgmma_issue(const fk_emu_wgmma *product);
void fk_emu_wgmma_commit(void);
void fk_emu_wgmma_wait(int groups_left);
/** Does for a warp whose lanes have all arrived what the operation asks. */
void fk_warp_wgmma(fk_block *block, fk_warp *warp, fk_emu_op op);
void fk_wgmma_reset(fk_block *block);
void fk_wgmma_free(fk_block *block);

#endif

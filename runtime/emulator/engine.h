/* The state of one running block, which is one CTA, or all CTAs of a cluster with their warps and their windows of
 * shared memory one after another. Each OS thread of a launch owns one fk_block and runs blocks in it one after the
 * other; all lanes of a block are fibers of that OS thread, so nothing here needs a lock.
 *
 * Time is a counter of synchronisations, `tick`: it advances at each __syncthreads and each operation of a whole warp.
 * Of two accesses, the earlier one at tick t is ordered before the later one if a barrier that both pass came after t:
 * t < warp->synced for lanes of one warp, t < warp->seen[w] if warp w made the earlier one. */
#ifndef FK_EMULATOR_ENGINE_H
#define FK_EMULATOR_ENGINE_H

#include "abi.hpp"
#include "emulator.h"
#include "fiber.h"

#include <signal.h>

#define FK_WARP_LANES 32u
#define FK_MAX_THREADS 1024u
#define FK_MAX_WARPS (FK_MAX_THREADS / FK_WARP_LANES)
#define FK_ALL_LANES 0xffffffffu

/* The shared window begins here, so that address 0 is never valid. 1024-byte aligned. */
#define FK_SMEM_BASE 1024u

typedef enum fk_lane_state {
    FK_LANE_READY,
    FK_LANE_IN_WARP_OP,
    FK_LANE_AT_BARRIER,
    FK_LANE_AT_MBARRIER,
    FK_LANE_AT_NAMED_BARRIER,
    FK_LANE_POLLING, /* reads a word of global memory until another thread has changed it */
    FK_LANE_EXITED
} fk_lane_state;

/* Whether a write to shared memory is a copy that has not been waited for. */
typedef enum fk_flight { FK_LANDED, FK_CP_ASYNC, FK_TMA } fk_flight;

/* A cp.async that has been issued and not been waited for. */
typedef struct fk_copy {
    uint32_t dst;
    uint32_t group, bytes;
    unsigned char data[16];
} fk_copy;

/* An access to shared memory, kept until the warp's next synchronisation to count bank conflicts. */
typedef struct fk_access {
    uint32_t addr;
    uint32_t bytes;
} fk_access;

typedef struct fk_warp fk_warp;
typedef struct fk_block fk_block;

typedef struct fk_lane {
    fk_emu_thread view;
    fk_fiber fiber;
    fk_block *block;
    fk_warp *warp;
    uint16_t thread; /* in the block */
    uint16_t lane;   /* in the warp */
    uint32_t rank;   /* of its CTA in the cluster */
    fk_lane_state state;

    /* The warp operation it waits in, and its operands; r, c and a point into the lane's own stack. */
    fk_emu_op op;
    uint32_t mask;
    uint32_t value, source, width; /* shuffles and votes */
    uint32_t addr;                 /* ldmatrix */
    uint32_t *r;
    float *c; /* mma */
    const uint32_t *a;
    uint32_t b[2];
    const fk_emu_wgmma *wgmma;

    uint32_t wait_value;  /* the mbarrier or named barrier it sleeps at */
    uint32_t store_group; /* number of the group of TMA stores being filled */

    fk_copy *copies; /* in order of issue */
    size_t num_copies, max_copies;
    uint32_t group; /* number of the cp.async group being filled */

    fk_access *accesses;
    size_t num_accesses, max_accesses;
} fk_lane;

struct fk_warp {
    fk_lane *lanes; /* 32 */
    uint32_t index;
    uint32_t alive, waiting, at_barrier, asleep; /* masks of lanes; asleep: at mbarriers, named barriers, polling */
    uint32_t synced;                             /* tick of its last operation */
    uint32_t seen[FK_MAX_WARPS];                 /* what other warps did before this tick is ordered before it now */
};

/* Who touched the four bytes of a granule last; threads are counted from 1, 0 is nobody. */
typedef struct fk_granule {
    uint32_t write_tick, read_tick, other_tick;
    uint16_t writer;
    uint16_t reader;
    uint16_t other_reader; /* the last one of another warp than `reader`, at other_tick */
    uint8_t many_lanes;    /* several lanes of `reader`'s warp have read at read_tick */
    uint8_t in_flight;     /* fk_flight of the last write */
} fk_granule;

struct fk_block {
    void (*entry)(const void *params);
    const void *params;
    fk_emu_options options;
    fk_emu_grid grid;
    uint32_t threads, index; /* index: of the running block, x fastest */
    uint32_t ctas;           /* of the cluster that it is */
    uint32_t cta_threads, cta_window;
    char name[40]; /* of the running block, "block 3" or "block (3, 0, 1)" */

    fk_lane *lanes;
    fk_warp warps[FK_MAX_WARPS];
    uint32_t num_warps;
    uint32_t ready; /* mask of warps with a lane that can run */
    uint32_t alive, arrived;
    bool vote, elected; /* of __syncthreads_or: at the barrier that lanes gather at, and at the one before */
    fk_lane *current;
    fk_fiber scheduler;
    char *stacks;
    uint64_t random;

    unsigned char *smem;
    fk_granule *shadow; /* one for every 4 bytes */
    uint32_t smem_bytes;
    uint32_t tick, synced;
    struct fk_hopper *hopper;

    bool counting;
    fk_emu_stats stats;
    fk_error *fault; /* set while a block runs; its status is FK_OK until the block faults */
    int signal;      /* that ended the block, and where */
    uintptr_t signal_address;
};

/* scheduler.c */
fk_status fk_block_init(fk_block *block, fk_error *err);
void fk_block_free(fk_block *block);
/** Runs block `index`; `err` receives its fault. */
fk_status fk_block_run(fk_block *block, uint32_t index, fk_error *err);
/** Suspends the running lane until it is READY again. */
void fk_block_yield(fk_block *block);
/** Suspends the running lane until no other can run. */
void fk_block_poll(fk_block *block);
/** Ends the block from inside a lane; the message gets "block 3 thread 5: " in front. */
_Noreturn void fk_block_fault(fk_block *block, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** Ends the block with block->fault as it stands. */
_Noreturn void fk_block_abort(fk_block *block);
/** The block that this OS thread is running; NULL outside launches. */
fk_block *fk_block_current(void);
uint32_t fk_block_random(fk_block *block);
int fk_emu_syncthreads(int vote);
void fk_emu_cluster_sync(void);
/** If `address` lies in the guard page of a lane's stack: that lane, else NULL. */
const fk_lane *fk_block_overflowed(const fk_block *block, uintptr_t address);

static inline uint32_t fk_warp_ready(const fk_warp *warp) {
    return warp->alive & ~warp->waiting & ~warp->at_barrier & ~warp->asleep;
}

/** Keeps block->ready in step with the warp's masks. */
static inline void fk_warp_update(fk_block *block, const fk_warp *warp) {
    const uint32_t bit = 1u << warp->index;
    if (fk_warp_ready(warp))
        block->ready |= bit;
    else
        block->ready &= ~bit;
}

/* hopper_tma.c, hopper_wgmma.c */
/** When no lane can run: lands a copy, which may let one. @return false: there is none */
bool fk_hopper_progress(fk_block *block);
void fk_hopper_lane_exits(fk_lane *lane);
bool fk_wgmma_check(const fk_block *block, fk_error *err);

/* deadlock.c */
void fk_block_report_deadlock(const fk_block *block, fk_error *err);
const char *fk_emu_op_name(fk_emu_op op);

/* warp.c */
/** The running lane, whose operands are set, arrives at `op`; returns when every lane of the mask has. */
void fk_warp_arrive(fk_lane *lane, fk_emu_op op, uint32_t mask);

/* shared_memory.c: addresses as kernels have them, but that those of a cluster's CTAs follow one another. */
/** Of an address that `lane` has of its own CTA, or of another one of its cluster. */
uint32_t fk_smem_address(const fk_lane *lane, uint32_t addr);
/** Checks alignment and bounds. @return the bytes on the host */
unsigned char *fk_smem_at(fk_block *block, uint32_t addr, uint32_t bytes, const char *what);
/** An access by `lane`: bounds, races, counting. @return the bytes on the host */
const unsigned char *fk_smem_read(fk_lane *lane, uint32_t addr, uint32_t bytes, const char *what);
unsigned char *fk_smem_write(fk_lane *lane, uint32_t addr, uint32_t bytes, const char *what);
/** Marks bytes that `lane` wrote as in flight, or as landed at the present tick. */
void fk_smem_set_in_flight(fk_lane *lane, uint32_t addr, uint32_t bytes, fk_flight in_flight);
void fk_smem_reset(fk_block *block);

/* bank_conflicts.c */
void fk_banks_count(fk_block *block, const uint32_t *addrs, uint32_t active, uint32_t bytes);
void fk_banks_note(fk_lane *lane, uint32_t addr, uint32_t bytes);
void fk_banks_flush(fk_warp *warp);

/* atomics.c: words of global memory that blocks change at a time. */
void fk_red_add_f32(float *p, float value);
void fk_red_add_f32x4(float *p, const float *value);
void fk_red_add_u64(unsigned long long *p, unsigned long long value);
unsigned int fk_atom_inc_u32(unsigned int *p, unsigned int limit);
void fk_cas_u64x2(unsigned long long *p, const unsigned long long *expected, const unsigned long long *desired);
unsigned long long fk_ld_acquire_u64(const unsigned long long *p);
void fk_st_release_u64(unsigned long long *p, unsigned long long value);
unsigned int fk_ld_acquire_u32(const unsigned int *p);
void fk_st_release_u32(unsigned int *p, unsigned int value);

/* async_copy.c, tensor_core.c, warp.c, engine.c: what kernels call */
void fk_cp_async_16(unsigned int dst, const void *src, int valid);
void fk_cp_async_4(unsigned int dst, const void *src);
void fk_cp_async_commit(void);
void fk_cp_async_wait(int groups_left);
void fk_emu_ldmatrix(fk_emu_op op, unsigned int *r, unsigned int addr);
void fk_emu_mma(fk_emu_op op, float *c, const unsigned int *a, unsigned int b0, unsigned int b1);
/** Does the work of ldmatrix or mma for a warp whose lanes have all arrived. */
void fk_warp_ldmatrix(fk_block *block, fk_warp *warp, bool transpose);
void fk_warp_mma(fk_block *block, fk_warp *warp, fk_emu_op op);
void fk_warp_mma_parts(fk_block *block, fk_warp *warp);
unsigned int fk_emu_warp(fk_emu_op op, unsigned int mask, unsigned int value, unsigned int source, unsigned int width);
extern const fk_emu_table fk_emu_engine_table;

/* memory.c: says in words where `address` lies, such as "16 bytes past an allocation of 4096 bytes". */
void fk_emu_describe_address(uintptr_t address, char *out, size_t size);

/* fault.c: a signal of a lane (SIGSEGV, SIGBUS, SIGFPE) ends its block instead of the process. */
typedef struct fk_fault_stack {
    void *memory;
    stack_t saved;
} fk_fault_stack;
/** Installs the handlers; counted, so launches may overlap. The last release restores the handlers of before. */
void fk_faults_catch(void);
void fk_faults_release(void);
/** Gives the calling OS thread an alternate stack to handle signals on; leave restores the one of before. */
fk_status fk_faults_enter(fk_fault_stack *stack, fk_error *err);
void fk_faults_leave(fk_fault_stack *stack);
/** Puts block->signal into words. */
fk_status fk_fault_describe(const fk_block *block, fk_error *err);

#endif

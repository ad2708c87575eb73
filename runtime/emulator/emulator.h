/* The emulator: emitted CUDA text, compiled by the host C++ compiler and run on the CPU (docs/emulator.md).
 * It is a device of its own for programs, and the checker of every kernel for the tests. */
#ifndef FK_RUNTIME_EMULATOR_H
#define FK_RUNTIME_EMULATOR_H

#include "gen/error.h"

#include <stdbool.h>

typedef struct fk_emu_image fk_emu_image;

/** How a launch is driven and what it checks; a null pointer stands for all zero. Bounds, alignment, deadlocks and
 *  mismatched warp operations are always checked. */
typedef struct fk_emu_options {
    uint64_t seed;    /**< order of blocks, warps and lanes; 0: ascending */
    bool late_copies; /**< async copies and wgmma are done as late as their waits allow, not at issue */
    bool poison;      /**< shared memory starts as 0xff bytes (NaN) in each block, not as zeros */
    bool check_races; /**< report unordered accesses to shared memory, and reads of copies in flight */
    bool sanitize;    /**< fk_emu_compile: with -fsanitize=address,undefined; needs a library built with ASan */
} fk_emu_options;

/** The number in environment variable `name`; where that is unset or empty, `value` stays.
 *  @return FK_BAD_ARGUMENT: it holds something else than a number from `least` to `most` */
fk_status fk_emu_number(const char *name, uint64_t least, uint64_t most, uint64_t *value, fk_error *err);

/** Sums over all blocks of a launch. */
typedef struct fk_emu_stats {
    uint64_t mma;                /**< tensor-core instructions, of a warp; a wgmma is four */
    uint64_t global_load_bytes;  /**< by ld_global_v4, cp_async_16 and TMA; plain pointer reads are not seen */
    uint64_t global_store_bytes; /**< by st_global_v4 and TMA */
    uint64_t global_add_bytes;   /**< by red_add_f32, red_add_f32x4 and red_add_u64 */
    uint64_t smem_wavefronts;    /**< passes through the banks that ldmatrix, ld, st and cp.async take */
    uint64_t smem_conflicts;     /**< of these, beyond what an access without bank conflicts takes */
} fk_emu_stats;

/* The compiler's flags that decide the image's bytes, in order, and those of `sanitize` behind them; with text, headers
 * and target they are the key. -O1 compiles in two thirds of -O2's time; a run spends its time in the engine. */
#define FK_EMU_FLAGS                                                                                                   \
    "-std=c++17", "-DFK_EMULATOR", "-shared", "-fPIC", "-lm", "-Wl,--as-needed", "-O1", "-fno-exceptions",             \
        "-fno-rtti", "-fno-math-errno", "-fno-strict-aliasing", "-fvisibility=hidden"
#define FK_EMU_SANITIZE "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g1"

/** Compiles `text`, whose kernels are `entries`, to the bytes of a host shared object.
 *  The compiler is $FLASHKILN_CXX, else the first of c++, g++ and clang++ in PATH.
 *  @param image    malloc'ed; the caller's
 *  @param compiler receives its name and version
 *  @return FK_NO_COMPILER; FK_COMPILE_FAILED with the compiler's log; FK_IO; FK_UNSUPPORTED (sanitize) */
fk_status fk_emu_compile(const char *text, const char *const *entries, size_t num_entries,
                         const fk_emu_options *options, void **image, size_t *size, double *compile_ms,
                         char compiler[96], fk_error *err);

/** Loads the bytes (a memfd, dlopened). @return FK_CHECK_FAILED: not an image of this library's
 *  version, so compile again; FK_IO */
fk_status fk_emu_load(const void *image, size_t size, fk_emu_image **out, fk_error *err);
void fk_emu_unload(fk_emu_image *image);

#define FK_EMU_TENSOR_RANK 5

/** A tensor in global memory and a box of it, dimensions from the innermost out; as cuTensorMapEncodeTiled takes them,
 *  with element strides of 1 and zeros for what is outside. */
typedef struct fk_emu_tensor {
    void *base;
    unsigned long long strides[FK_EMU_TENSOR_RANK - 1]; /**< bytes, of dims[1] on */
    uint32_t dims[FK_EMU_TENSOR_RANK];
    uint16_t box[FK_EMU_TENSOR_RANK];
    uint8_t rank, element_bytes, swizzle; /**< swizzle: 0, 32, 64 or 128 bytes */
} fk_emu_tensor;

/** Stands where a kernel for a GPU has its CUtensorMap; opaque to it. */
typedef union fk_emu_tensor_map {
    struct {
        uint64_t magic;
        fk_emu_tensor tensor;
    };
    _Alignas(64) unsigned char bytes[128];
} fk_emu_tensor_map;
_Static_assert(sizeof(fk_emu_tensor_map) == 128, "as large as a CUtensorMap");

/** @return FK_BAD_ARGUMENT: what cuTensorMapEncodeTiled refuses, or rows of a box narrower than the swizzle */
fk_status fk_emu_tensor_map_encode(fk_emu_tensor_map *map, const fk_emu_tensor *tensor, fk_error *err);

typedef struct fk_emu_grid {
    uint32_t x, y, z; /**< CUDA's limits: x below 2^31, y and z at most 65,535; fewer than 2^32 blocks in all */
    uint32_t cluster; /**< CTAs of a cluster, of which x is a multiple; 0 is 1 */
} fk_emu_grid;

/** Runs a grid of the kernel `entry`, in blocks of `threads` (a multiple of 32, at most 1024) and returns when all are
 * done. Blocks run on $FLASHKILN_EMU_THREADS OS threads (default: one per core, at most 16); results do not depend on
 * their number. Any thread may launch. A fault ends the launch; memory then holds what was written so far.
 *  @param params      the kernel's parameter, `param_bytes` of it
 *  @param smem_bytes  dynamic shared memory, at most 1 MiB
 *  @param options     null = all zero
 *  @param stats       receives counts; may be null (counting costs about a third more time)
 *  @return FK_BAD_ARGUMENT; FK_LAUNCH_FAILED: the kernel faulted, and one sentence says which block and thread did what
 */
fk_status fk_emu_launch_grid(const fk_emu_image *image, const char *entry, const void *params, size_t param_bytes,
                             fk_emu_grid grid, uint32_t threads, size_t smem_bytes, const fk_emu_options *options,
                             fk_emu_stats *stats, fk_error *err);
/** fk_emu_launch_grid of the image's first kernel on {grid_x, 1, 1}, without stats. */
fk_status fk_emu_launch(const fk_emu_image *image, const void *params, size_t param_bytes, uint32_t grid_x,
                        uint32_t threads, size_t smem_bytes, const fk_emu_options *options, fk_error *err);

/** Memory for kernels: filled with 0xff (NaN), 16-byte aligned, with guard pages directly behind its end (rounded up to
 *  16 bytes) and before its first page, so that a kernel that overruns it faults and the message names it. */
fk_status fk_emu_malloc(size_t bytes, void **out, fk_error *err);
void fk_emu_free(void *memory);

#endif

/* The public objects from inside, and what the runtime's files offer each other.
 *
 * Life: a context owns every kernel made in it, so a kernel stays loaded (and a captured graph valid) until the context
 * goes. `users` counts the context's handle and all kernel handles; whoever drops the last one frees everything, so no
 * order of destruction is wrong. */
#ifndef FK_RUNTIME_OBJECT_H
#define FK_RUNTIME_OBJECT_H

#include "advice.h"
#include "cache/store.h"
#include "driver.h"
#include "emulator/emulator.h"
#include "gen/abi.h"
#include "gen/generate.h"
#include "packs.h"

#include <pthread.h>
#include <string.h>

/* ---- table of kernels (table.c) ----------------------------------------------------------------------- */

/* One canonical problem of a context, or of it for one bucket of shapes: being built, or built. */
typedef struct fk_slot {
    fk_kernel *kernel; /* null while it is being built */
    bool shared;       /* the kernel is another slot's, which frees it */
    bool failed;       /* then `error` says how; the slot is no longer in the table */
    int waiting;       /* threads that wait for the build, the builder excepted */
    fk_error error;
} fk_slot;

#define FK_TABLE_BUCKETS 512 /* a power of two; some thousand kernels still have short chains */

typedef struct fk_table {
    pthread_mutex_t lock;
    pthread_cond_t built;
    struct fk_node *bucket[FK_TABLE_BUCKETS];
    size_t num_aliases;
    uint64_t hits;
} fk_table;

void fk_table_init(fk_table *table);
/** Frees the nodes; the kernels are the caller's, one call of `release` each: by the variant that they were made for.
 */
void fk_table_clear(fk_table *table, void (*release)(fk_kernel *));

/** Finds the kernel of `problem` and `variant`, or builds it by `build(user, canonical problem)`; other threads that
 * ask for the same one meanwhile wait for that build. A failed build is forgotten once its waiters have its error. */
fk_status fk_table_find(fk_table *table, const fk_problem *problem, int32_t variant,
                        fk_status (*build)(void *user, const fk_problem *canonical, fk_kernel **out, fk_error *err),
                        void *user, fk_kernel **out, fk_error *err);

/* ---- context ------------------------------------------------------------------------------------------ */

struct fk_context {
    int users; /* atomic */
    fk_device_info runs, planned;
    char target[16];         /* of images: "sm_80", "sm_90a", "compute_75" or "emu" */
    const fk_driver *driver; /* null on the emulator */
    void *primary;           /* CUcontext */
    int device;              /* CUdevice */
    fk_emu_options emulator;
    fk_plan_options planning;
    char *template_dir, *plan; /* what planning points to */
    int cache_mode;
    fk_store *store;
    fk_packs packs;
    bool sided; /* whether `sides` are known */
    fk_sides sides;
    char *pack_keys;
    uint32_t driver_version;  /* CUDA's number; 0 on the emulator */
    fk_context_counts counts; /* atomic, but for `table`, which the table counts */
    fk_table table;
};

/** The cache mode of a context's options: 0 is what $FLASHKILN_CACHE_MODE says. */
fk_status fk_cache_mode_choose(int given, int *mode, fk_error *err);

void fk_context_retain(fk_context *context);
void fk_context_release(fk_context *context);

/** "a100" from the table or "cuda:N" from this machine. */
fk_status fk_device_named(const char *name, fk_device_info *out, fk_error *err);

/* ---- images (build.c) --------------------------------------------------------------------------------- */

/** A plan's text with its image. */
typedef struct fk_built {
    fk_source source; /* from a pack: without its text */
    fk_entry entry;
    int from_store, stored; /* fk_kernel_info's */
    char note[160];
    char pack[512]; /* its path */
} fk_built;

void fk_built_free(fk_built *built);

typedef struct fk_build_request {
    const fk_problem *problem; /* canonical */
    const fk_device_info *planned, *runs;
    const fk_plan_options *planning;
    fk_advice advice;
    /* Makes text and image of one plan: compiles, or asks the store first. */
    fk_status (*obtain)(void *user, const fk_problem *p, const fk_plan_info *plan, fk_built *out, fk_error *err);
    void *user;
} fk_build_request;
/** The image to use: the best plan's, or if that one spills registers or has its wgmma serialised, the one among it and
 * the next four that does so least. */
fk_status fk_build_best(const fk_build_request *request, fk_built *out, fk_error *err);

/** fk_build_best without a context, and without a store. */
fk_status fk_build_offline(const fk_problem *canonical, const fk_device_info *device,
                           const fk_generate_options *options, const fk_emu_options *emulator, fk_built *out,
                           fk_error *err);
/** The target of its images: "emu", or the device's cubins. */
void fk_build_target(const fk_device_info *device, const fk_emu_options *emulator, char out[16]);
/** Of an image, in bytes of spills; more than FK_MINOR_SPILL are worth another plan. */
int64_t fk_build_flaws(int32_t spill_bytes, int32_t serialized_wgmma);
#define FK_BUILD_PLANS 5 /* the best plan, and four more if its image has flaws */

/** "sm_80" of "sm_" and 80. sm_90's has what only GPUs of that number run: "sm_90a". */
void fk_target_name(const char *prefix, int sm, char out[16]);
/** SHA-256 of all that decides the image. `emulator`: null for NVRTC. */
void fk_build_key(const fk_source *source, const char *target, const fk_emu_options *emulator, char key[65]);
/** Compiles `source` into `entry`, whose key and target are set; everything else is overwritten. */
fk_status fk_build_entry(const fk_source *source, const fk_emu_options *emulator, fk_entry *entry, fk_error *err);
void fk_build_describe(const fk_entry *entry, fk_image_info *out);

/* ---- images of a context (obtain.c) ------------------------------------------------------------------- */

/** Text and image of one plan, from the store or compiled and put there; null: of the best, from packs, too. Nothing is
 * loaded. */
fk_status fk_image_obtain(fk_context *context, const fk_problem *canonical, const fk_plan_info *plan, fk_built *out,
                          fk_error *err);
/** A pack's of that plan, which fk_packs_find_short named. @return FK_NO_JIT: none has it */
fk_status fk_image_obtain_packed(fk_context *context, const fk_problem *canonical, const char *plan, fk_built *out,
                                 fk_error *err);
/** Whether kernels are looked for in packs: there are some, which the caller means, or it is sealed. */
bool fk_asks_packs(fk_context *context);
/** The best plan's, compiled whatever the packs have. */
fk_status fk_image_compile(fk_context *context, const fk_problem *canonical, fk_built *out, fk_error *err);
/** Stores a new image. Where it cannot, its note says why, unless a miss for the same reason has said so. */
void fk_image_publish(fk_context *context, fk_built *built);
/** Where the context's records of tuning are. */
fk_advice fk_advice_of(const fk_context *context);

static inline bool fk_forbids_compiling(const fk_context *context) {
    return context->cache_mode == FK_CACHE_NO_JIT || context->cache_mode == FK_CACHE_SEALED;
}

static inline const fk_emu_options *fk_emulator_of(const fk_context *context) {
    return context->driver ? NULL : &context->emulator;
}

static inline fk_pack_query fk_pack_query_of(const fk_context *context, const fk_problem *canonical, const char *plan) {
    return (fk_pack_query){canonical,       &context->planned,       &context->runs,
                           context->target, context->driver_version, plan};
}

static inline void fk_count(uint64_t *counter) {
    __atomic_add_fetch(counter, 1, __ATOMIC_RELAXED);
}

/* ---- kernel ------------------------------------------------------------------------------------------- */

/* fk_kernel.variant: for all sizes whose last tiles are worth parts (parts.c), these in tiles of up to 64 or 128
 * queries, that want the other choice of turns, or another tile: of the candidates, in the order of their lines, the
 * first one, the second one further down, ...; or of a pack's plans for short rows, one below for the first. */
enum {
    FK_IN_PARTS = -1,
    FK_OTHER_TURNS = -2,
    FK_PARTS_OF_64 = -3,
    FK_PARTS_OF_128 = -4,
    FK_OTHER_TILE = -5,
    FK_PACKED_TILE = -1000
};

/* Immutable once it is in the table. */
struct fk_kernel {
    fk_context *context;
    fk_problem problem; /* canonical */
    int32_t variant;    /* 0: serves all sizes; one of these; else a bucket and a class of sizes */
    fk_kernel_info info;
    fk_kernel_launch launch[FK_MAX_KERNELS];           /* in order */
    int num_launches, d_pad, dq_block_m, leading_rows; /* of fk_source */
    int32_t most_keys, staged;                         /* fk_source's */
    bool pattern;                                      /* fk_source's */
    uint32_t early;                                    /* fk_source's */
    void *library, *function[FK_MAX_KERNELS];          /* CUlibrary; CUfunctions in the primary context */
    fk_emu_image *image;                               /* the emulator's */
    int64_t l2_bytes;                                  /* of the device that runs */
    uint32_t mask_inverse[FK_MAX_MASK_SLOTS];
    int32_t mask_value[FK_MAX_MASK_SLOTS], score_value[FK_MAX_SCORE_SLOTS];
    bool has_score_values;
    fk_array_list arrays;
    uint32_t grad, once; /* fk_problem_score's: bits of arrays */
};

/** `plan`: the one to take; null: the best. */
fk_status fk_kernel_build(fk_context *context, const fk_problem *canonical, const fk_plan_info *plan, fk_kernel **out,
                          fk_error *err);
/** The same of a pack's kernel of that plan's line. */
fk_status fk_kernel_build_packed(fk_context *context, const fk_problem *canonical, const char *plan, fk_kernel **out,
                                 fk_error *err);
/** The same of the best plan, as fk_table_find wants it. */
fk_status fk_kernel_build_for_all(void *context, const fk_problem *canonical, fk_kernel **out, fk_error *err);
void fk_kernel_free(fk_kernel *kernel);

/** Fails a public function: `return fk_refuse(FK_BAD_ARGUMENT, "out is null");` */
fk_status fk_refuse(fk_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- arguments (attention.c) -------------------------------------------------------------------------- */

/** Checks batch, heads and lengths. */
fk_status fk_args_check_sizes(const fk_problem *canonical, const fk_args *args, fk_error *err);
/** Memory that a launch may write beside its tensors. */
typedef struct fk_workspace {
    void *data;
    size_t bytes;
} fk_workspace;
/** Checks sizes, strides, pointers and the scale of `args`. `device`: also what the kernel's 16-byte copies need, and
 * the results (o and lse of the forward pass too), which the reference does not touch. `workspace` may be null. */
fk_status fk_args_check(const fk_problem *canonical, const fk_array_list *arrays, const fk_args *args, bool device,
                        const fk_workspace *workspace, fk_error *err);
/** The scale to use: args' own, or 1 / sqrt(head_dim). */
double fk_args_scale(const fk_problem *canonical, const fk_args *args);
typedef struct fk_grid {
    uint32_t x, y, z;
} fk_grid;
/** The grid of one of the kernel's launches. */
fk_status fk_grid_make(const fk_kernel *kernel, const fk_args *args, fk_grid_kind kind, fk_grid *out, fk_error *err);
/** How many kv heads walk together, through which a grid counts before it goes on to the next ones. */
int64_t fk_group_kv_heads(const fk_kernel *kernel, const fk_args *args);
/** Packed: tiles of all sequences of queries (or keys), broken and superfluous ones too. */
int64_t fk_packed_tiles(int64_t total, int64_t batch, int64_t block);
/** min(floor(2^32 / heads), 2^32 - 1): kernels divide by it. */
uint32_t fk_inverse(int64_t heads);
/** Bytes of the parameter block that the kernel's text declares, maps included. */
size_t fk_param_bytes(const fk_kernel *kernel);
/** Checks `args` for this kernel and writes its parameter block and a grid for each of its launches, of x = 0 for one
 * that is left out; all may be written to on failure. */
fk_status fk_forward_prepare(const fk_kernel *kernel, const fk_args *args, const fk_workspace *workspace,
                             fk_forward_params *out, fk_grid grids[FK_MAX_KERNELS], fk_error *err);
/** The same of the backward pass (attention_backward.c). */
fk_status fk_backward_prepare(const fk_kernel *kernel, const fk_args *args, const fk_workspace *workspace,
                              fk_backward_params *out, fk_grid grids[FK_MAX_KERNELS], fk_error *err);

/* A CUtensorMap, or the emulator's. */
typedef struct fk_tensor_map {
    _Alignas(64) unsigned char bytes[128];
} fk_tensor_map;
#define FK_ARRAY_MAPS 2  /* before the others, where they are needed: of a staged array's gradient, and of it */
#define FK_TENSOR_MAPS 4 /* of q, k, v and o */
#define FK_TENSOR_MAPS_BACKWARD 6 /* of q, k, v, dout, dk and dv */
#define FK_ALL_MAPS (FK_ARRAY_MAPS + FK_TENSOR_MAPS_BACKWARD)

/* A launch: one parameter block serves all kernels of a problem; each has a grid of its own, of x = 0 if it is left
 * out. Kernels that copy by TMA take the maps with it, from their address on.
 */
typedef struct fk_launch_block {
    fk_tensor_map map[FK_ALL_MAPS];
    union {
        fk_forward_params forward;
        fk_backward_params backward;
    } params;
    fk_grid grid[FK_MAX_KERNELS];
} fk_launch_block;

#define FK_MAX_MAP_STRIDE ((int64_t)1 << 40) /* bytes, of any dimension: cuTensorMapEncodeTiled's */

/** Where the kernel's parameter block begins. */
void *fk_param_block(const fk_kernel *kernel, fk_launch_block *launch);

/* ---- tensor maps (tensor_map.c) ----------------------------------------------------------------------- */

/** Whether the kernel's parameter block begins with maps. */
static inline bool fk_takes_maps(const fk_kernel *kernel) {
    return strcmp(kernel->info.plan.family, "wgmma") == 0;
}
/** How many of them are of tensors. */
static inline int fk_num_tensor_maps(const fk_kernel *kernel) {
    return kernel->problem.op == FK_BACKWARD ? FK_TENSOR_MAPS_BACKWARD : FK_TENSOR_MAPS;
}
/** Makes the maps of a launch whose args have been checked; the primary context is current. In the workspace, or null:
 * `values` of e4m3, `copy` of the staged array. */
fk_status fk_tensor_maps_make(const fk_kernel *kernel, const fk_args *args, const void *values, const void *copy,
                              fk_tensor_map map[FK_ALL_MAPS], fk_error *err);

/* ---- sides of L2 (sides.c) ---------------------------------------------------------------------------- */

/** Of `num_sms` the side that each is on, 0 that of the first one, by the clocks that atomics on num_lines take, an
 * SM's `pitch` behind the one's before. @return false: they are not of two clear kinds, and `side` says nothing */
bool fk_sides_tell_apart(const uint32_t *clocks, int pitch, int num_sms, int num_lines, bool *side);
/** Of the context's GPU, which is measured once in the process; the emulator has imagined ones. @return false: not
 * known, or off by FLASHKILN_L2_SIDES. Thread-safe. */
bool fk_sides_find(const fk_context *context, fk_sides *out);

/* ---- persistent grids (persistent.c) ------------------------------------------------------------------ */

/** Keys of a part of a leading tile, about: a walk over as many lasts as long as a CTA's share of all others does at
 * 8,192 tokens and more (docs/block-sparse.md). Where there are no more, none has parts. */
#define FK_PART_KEYS 8192
typedef struct fk_persistent {
    int64_t group_heads, last_group_heads; /* query heads that walk together; of the last group, 1 to group_heads */
    int sided;                             /* each side of L2 has heads of its own */
    int64_t last_claim;                    /* how many claims come before the last one */
    int64_t group_tiles, num_tiles;        /* of a whole group, and of all heads: each part of a tile is one */
    int64_t first_part, partial_rows;      /* parts count from there on; rows of lse, or of dk and dv, of each split */
    int64_t late_part, late_tile;          /* of the last tiles: the first of late_splits parts of a tile; which tile */
    int num_splits, late_splits;           /* of the leading tiles, or of the last ones */
    size_t o_partial, lse_partial;         /* where the splits' results start in the workspace */
    size_t bytes;                          /* of the workspace */
} fk_persistent;
bool fk_is_persistent(const fk_kernel *kernel);
/** Backward: it is written down who has added to a tile of dq's sum (templates/piece/adds.cu). */
bool fk_kernel_has_adders(const fk_kernel *kernel);
/** False: more tiles than a launch may have. Sizes have been checked. */
bool fk_persistent_lay_out(const fk_kernel *kernel, const fk_args *args, fk_persistent *out);
fk_status fk_persistent_grid(const fk_kernel *kernel, const fk_args *args, fk_grid *out, fk_error *err);
/** Checks the workspace, and fills what a persistent grid has in the parameter block, once its grid is made. */
fk_status fk_persistent_fill(const fk_kernel *kernel, const fk_args *args, const fk_workspace *workspace,
                             fk_forward_params *out, fk_error *err);

/* ---- values and descales of e4m3 (values.c) ----------------------------------------------------------- */

typedef struct fk_values {
    int64_t tiles, heads; /* of a kv head (kv_e4m3: its keys); kv heads of all batch entries */
    size_t offset,
        bytes;   /* of the workspace: where they start, and all of it, for every kernel with a persistent grid */
    size_t runs; /* where runs start; 0: the kernel has none */
} fk_values;
/** Has the kernel one before it that writes k and v as 16 bits? */
bool fk_widens_before(const fk_kernel *kernel);
/** False: more than 2^60 bytes, or more tiles than a launch may have. Sizes have been checked. */
bool fk_values_lay_out(const fk_kernel *kernel, const fk_args *args, fk_values *out);
/** The same, with the workspace checked. */
fk_status fk_values_prepare(const fk_kernel *kernel, const fk_args *args, const fk_workspace *workspace, fk_values *out,
                            fk_error *err);
#define FK_DESCALES 3
/** Checks q_descale, k_descale or v_descale, and gives its name and the bytes that it spans, none if it is null. */
fk_status fk_descale_check(const fk_problem *canonical, const fk_args *args, int which, const char **name,
                           uintptr_t *begin, uintptr_t *end, fk_error *err);
/** An entry of one, on the host. */
double fk_descale_at(const float *data, const int64_t stride[2], int64_t b, int64_t kv_head);

/** A number that this process has not given before: not 0. */
uint64_t fk_epoch_next(void);

/* ---- dropout (dropout_launch.c) ----------------------------------------------------------------------- */

fk_status fk_dropout_check(const fk_problem *canonical, const fk_args *args, fk_error *err);
/** The fields of a parameter block. args have been checked. */
typedef struct fk_dropout_fields {
    const uint64_t *state;
    uint64_t seed, offset;
    uint32_t rare, invert;
    float scale, keep, scale_log2;
} fk_dropout_fields;
fk_dropout_fields fk_dropout_fields_of(const fk_problem *canonical, const fk_args *args);
/** The random bytes of query head h; args' dropout_state must be the host's. */
struct fk_dropout fk_dropout_of_head(const fk_args *args, int64_t b, int64_t h);
/** The launch of fk_keep_mask. */
fk_status fk_keep_mask_prepare(const fk_kernel *kernel, const fk_args *args, uint8_t *out, fk_launch_block *block,
                               fk_error *err);
fk_grid fk_grid_keep_mask(const fk_kernel *kernel, const fk_args *args); /* grid.c */
/** Launches one of the kernels, with a parameter block of its own. launch.c */
fk_status fk_launch_alone(const fk_kernel *kernel, int entry, void *params, size_t bytes, fk_grid grid, void *stream,
                          fk_error *err);

/* ---- sequences (sequences.c) -------------------------------------------------------------------------- */

/** Sequence b of the batch, as templates/piece/sequence.cu has it. */
typedef struct fk_sequence {
    int64_t batch;              /* what batch strides count; 0 if packed */
    int64_t q_first, k_first;   /* rows before the sequence */
    int64_t seqlen_q, seqlen_k; /* of seqlen_k only used keys */
    int64_t num_keys;           /* rows of k and v, used or not */
} fk_sequence;
/** Reads args' arrays, which must be the host's and checked. */
fk_sequence fk_sequence_at(const fk_problem *canonical, const fk_args *args, int64_t b);
/** Checks what the host's arrays hold. */
fk_status fk_sequences_check(const fk_problem *canonical, const fk_args *args, fk_error *err);
/** Rows of a head of q (and lse), and of k. */
int64_t fk_rows_q(const fk_problem *canonical, const fk_args *args);
int64_t fk_rows_k(const fk_problem *canonical, const fk_args *args);
/** Where the values are: v, or with `latent` the first columns of k. */
static inline const void *fk_args_v(const fk_problem *canonical, const fk_args *args) {
    return canonical->latent ? args->k : args->v;
}
static inline const int64_t *fk_args_v_stride(const fk_problem *canonical, const fk_args *args) {
    return canonical->latent ? args->k_stride : args->v_stride;
}
/** Where the rows of query head h of a sequence start in lse. */
int64_t fk_lse_row(const fk_problem *canonical, const fk_args *args, const fk_sequence *sequence, int64_t h);

/** Refuses a workspace that is null, misaligned or smaller than `needed`. */
fk_status fk_workspace_check(const fk_workspace *workspace, size_t needed, fk_error *err);
#define FK_PART_ALIGNMENT 256 /* bytes: of a workspace, and of its parts */
static inline size_t fk_whole_parts(size_t bytes) {
    return (bytes + FK_PART_ALIGNMENT - 1) / FK_PART_ALIGNMENT * FK_PART_ALIGNMENT;
}
/** Null is aligned. */
fk_status fk_check_aligned(const char *name, const void *data, size_t unit, fk_error *err);

/* ---- splits and pages (attention_split.c) ------------------------------------------------------------- */

fk_status fk_pages_check_sizes(const fk_problem *canonical, const fk_args *args, fk_error *err);
/** From the first to the last entry of the page table that may be read. */
int64_t fk_page_table_entries(const fk_args *args);
/** Checks what the host's page table holds. */
fk_status fk_pages_check(const fk_problem *canonical, const fk_args *args, fk_error *err);
/** What k's and v's first two strides count for a key of sequence b; the arrays of args must be the host's. */
typedef struct fk_key_place {
    int64_t batch, row;
} fk_key_place;
fk_key_place fk_key_at(const fk_problem *canonical, const fk_args *args, int64_t b, const fk_sequence *sequence,
                       int64_t key);
fk_status fk_splits_check(const fk_problem *canonical, const fk_args *args, fk_error *err);
/** 1 without `split`; else args' own number, or the one that fills the GPU. */
int fk_num_splits(const fk_kernel *kernel, const fk_args *args);
#define FK_MAX_GRID_YZ 65535 /* CUDA's limit for gridDim.y and .z */
/** Parts of each leading tile of a grid that does not stay (fk_source.leading_rows), forward and backward; 1: they are
 *  whole. */
int fk_num_leading_parts(const fk_kernel *kernel, const fk_args *args);
typedef struct fk_split_parts {
    int num_splits;
    int64_t rows;      /* of lse */
    size_t lse, bytes; /* of the workspace: offset, and the sum; O starts it. 0 if nothing is combined */
} fk_split_parts;
/** False: more than 2^60 bytes. Sizes have been checked. */
bool fk_splits_lay_out(const fk_kernel *kernel, const fk_args *args, fk_split_parts *out);
/** The same, with the workspace checked. */
fk_status fk_splits_prepare(const fk_kernel *kernel, const fk_args *args, const fk_workspace *workspace,
                            fk_split_parts *out, fk_error *err);
/** Fills what splits, joined heads and pages have in the parameter block. */
void fk_splits_fill(const fk_kernel *kernel, const fk_args *args, const fk_split_parts *parts,
                    const fk_workspace *workspace, fk_forward_params *out);

/* ---- masks as words (seen.c) -------------------------------------------------------------------------- */

/** What each 64 queries of a head see of each tile of keys. */
typedef struct fk_seen {
    int64_t heads, groups, bytes; /* of all batch entries; of queries of a head; 0: the kernel looks nothing up */
    size_t offset;                /* of a forward launch's workspace */
} fk_seen;
/** Whether such a kernel is among its launches. */
bool fk_looks_up_tiles(const fk_kernel *kernel);
/** All but the offset. False: more than 2^60 bytes. Sizes have been checked. */
bool fk_seen_lay_out(const fk_kernel *kernel, const fk_args *args, fk_seen *out);
/** The workspace of a forward launch. False: more than 2^60 bytes, or more tiles than a launch may have. */
bool fk_forward_lay_out(const fk_kernel *kernel, const fk_args *args, fk_seen *seen, size_t *bytes);
/** Checks the workspace, and fills what the parameter block of a forward launch has. */
fk_status fk_seen_fill(const fk_kernel *kernel, const fk_args *args, const fk_workspace *workspace,
                       fk_forward_params *out, fk_error *err);

/* ---- an array's rows once more (aligned.c) ------------------------------------------------------------- */

typedef struct fk_aligned {
    int64_t rows, pitch;         /* of the copy; elements of a row. rows 0: there is none */
    int64_t stride[FK_MAX_RANK]; /* as fk_array's */
    size_t bytes;                /* whole parts */
} fk_aligned;
/** Of the staged array, if no map describes its rows and a copy pays. Sizes have been checked. */
void fk_aligned_lay_out(const fk_kernel *kernel, const fk_args *args, fk_aligned *out);
/** A workspace of `bytes`, and room for the copy. */
size_t fk_with_aligned(const fk_kernel *kernel, const fk_args *args, size_t bytes);
fk_grid fk_aligned_grid(const fk_kernel *kernel, const fk_args *args);
/** Puts the copy behind `offset` bytes of the workspace; where that is too small, threads read the array. */
void fk_aligned_fill(const fk_kernel *kernel, const fk_args *args, const fk_workspace *workspace, size_t offset,
                     fk_array_param array[FK_MAX_ARRAYS], fk_grid grids[FK_MAX_KERNELS]);

/* ---- declared arrays (arrays.c) ----------------------------------------------------------------------- */

/** Checks array `index` of args, and gives the bytes that it spans. */
fk_status fk_array_check_args(const fk_array_list *arrays, int index, const fk_args *args, uintptr_t *begin,
                              uintptr_t *end, fk_error *err);
/** The size of dimension d. */
int64_t fk_array_size(const fk_array_list *arrays, int index, const fk_args *args, int d);
/** Whether a tensor map can copy tiles of array `index`, or of its gradient, which lies at `data`: keys lie beside each
 *  other, what else it depends on in strides of 16 bytes. What it does not depend on has one entry. */
bool fk_array_boxes(const fk_array_list *arrays, int index, const fk_args *args, const void *data,
                    const int64_t *strides, int element_bytes);
/** The arrays of a launch, whose args have been checked. */
void fk_arrays_fill(const fk_array_list *arrays, const fk_args *args, fk_array_param out[FK_MAX_ARRAYS]);
/** An element, an index outside a dimension that of the nearest. */
double fk_array_element(const fk_array_decl *decl, const fk_array *array, const fk_args *args, const int64_t *index);

/* ---- their gradients (array_grads.c) ------------------------------------------------------------------ */

/** Checks the gradient of array `index`, which has been checked itself, and gives the bytes that it spans. */
fk_status fk_array_grad_check(const fk_array_list *arrays, int index, const fk_args *args, uintptr_t *begin,
                              uintptr_t *end, fk_error *err);
/** Words of workspace for the exact sums of its elements; 0: it needs none. */
int64_t fk_array_grad_words(const fk_kernel *kernel, const fk_args *args, int index);
/** The gradients of a launch, whose args have been checked; exact: those words. */
void fk_array_grads_fill(const fk_kernel *kernel, const fk_args *args, uint64_t *const exact[FK_MAX_ARRAYS],
                         fk_array_grad_param out[FK_MAX_ARRAYS]);
/** Rows of the last dimension of the gradient that has most, of those that must be cleared. */
int64_t fk_array_grad_rows(const fk_kernel *kernel, const fk_args *args);

#endif

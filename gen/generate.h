/* problem + device -> plan -> CUDA text. No CUDA, no driver, no GPU, no clock: same input, same bytes. */
#ifndef FK_GEN_GENERATE_H
#define FK_GEN_GENERATE_H

#include "problem.h"

fk_status fk_device_lookup(const char *key, fk_device_info *out, fk_error *err); /* table only */
/** Completes a live device's record (name, sm, sizes set by the driver) with the table's rates: same key, else same sm.
 */
void fk_device_complete(fk_device_info *live);

/** fk_plan_list for a device record, but for tuning records, which are the runtime's. */
fk_status fk_plan_enumerate(const fk_problem *p, const fk_device_info *device, const fk_plan_options *options,
                            fk_plan_info **plans, size_t *count, fk_error *err);
/** The first of them alone. */
fk_status fk_plan_best(const fk_problem *p, const fk_device_info *device, const fk_plan_options *options,
                       fk_plan_info *out, fk_error *err);
/** Gives `tell` the plans for each shape (whose zero fields are filled) in the model's order; they are tell's for that
 * call. */
typedef void (*fk_plan_tell)(void *user, size_t shape, const fk_plan_info *plans, size_t count);
fk_status fk_plan_sweep(const fk_problem *canonical, const fk_device_info *device, const char *template_dir,
                        const fk_shape *shapes, size_t num_shapes, fk_plan_tell tell, void *user, fk_error *err);
/** A plan's one line, and back: only the fields of its tile are set. @return FK_BAD_ARGUMENT */
void fk_plan_write(const fk_plan_info *plan, char out[FK_MAX_PLAN]);
fk_status fk_plan_read(const char *text, fk_plan_info *out, fk_error *err);
/** Whether both are the same family and tile. */
bool fk_plan_equal(const fk_plan_info *a, const fk_plan_info *b);
/** Where the plan stands among `count`, legal or not; `count`: it does not. */
size_t fk_plan_find(const fk_plan_info *plans, size_t count, const fk_plan_info *plan);
/** CTAs of a cluster of the plan's main kernel; 1: it has none. */
int fk_plan_cluster(const fk_problem *p, const fk_plan_info *plan);
/** Query rows of a CTA in the forward pass. */
int fk_plan_own_queries(const fk_problem *p, const fk_plan_info *plan);
/** Keys that a CTA of family wgmma fetches at a time. */
int fk_plan_own_keys(const fk_problem *p, const fk_plan_info *plan);
/** Teams of warpgroups of a CTA of the plan's main kernel, each of which fetches tiles for itself. */
int fk_plan_teams(const fk_problem *p, const fk_plan_info *plan);
/** Whether heads are worth dividing between the sides of L2 (groups.c), as fk_tile_may_have_sides lets them be. */
bool fk_has_sides(const fk_problem *p, const fk_plan_info *plan, const fk_shape *shape);
/** Whether tiles may come in parts, if the plan lets them. Forward the last ones, of their keys: nothing but the
 * diagonal, and what goes by the distance from it, says where a key is, and nothing is added to a row once. Backward
 * all, of their queries: the host knows which of these see a key. `template_dir`: files of its masks and scores may say
 * otherwise (null: fk_template_dir). */
bool fk_problem_may_have_parts(const fk_problem *p, const char *template_dir);
/** fk_tile_may_have_parts of its tile. */
bool fk_plan_may_have_parts(const fk_problem *p, const fk_plan_info *plan, const char *template_dir);
/** That plan with tiles in parts. */
fk_plan_info fk_plan_in_parts(const fk_problem *p, const fk_plan_info *plan);
/** How many kv heads walk together, where tiles of `plan` begin in groups of heads that share `l2_bytes` (groups.c);
 * packed: shape->batch is 1. `d_pad`: columns of dq's sum; `pattern`: fk_source's. */
int64_t fk_group_heads(const fk_problem *p, const fk_plan_info *plan, int d_pad, bool pattern, const fk_shape *shape,
                       int64_t num_sms, int64_t l2_bytes);
/** Moves a plan of a list to its front, where it is the one to take; `chosen`: fk_plan_info's. */
void fk_plan_promote(fk_plan_info *plans, size_t index, int32_t chosen);
/** Fills the zero fields of a shape and checks it. */
fk_status fk_shape_fill(const fk_problem *p, const fk_shape *in, fk_shape *out, fk_error *err);
/** fk_plan_tiles. The pairs are those of one head: the mean of up to four, if the mask reads h. */
fk_status fk_plan_count_tiles(const fk_problem *p, const fk_plan_info *plan, const fk_plan_options *options,
                              fk_tile_counts *out, fk_error *err);

/** fk_plan_tile_map. */
fk_status fk_plan_map_tiles(const fk_problem *p, const fk_plan_info *plan, const fk_plan_options *options, int64_t head,
                            uint8_t *out, size_t size, fk_error *err);

/** Query heads whose rows a tile of this plan holds: all of a kv head's if their queries leave room, else 1. */
int64_t fk_row_heads(const fk_problem *p, const fk_plan_info *plan, int64_t seqlen_q, int64_t heads_per_kv);
/** The number of splits with the shortest time: waves of CTAs, times what one walks over, by what it waits for a tile
 * or by HBM's rate, and the combine kernel. `num_ctas`: with one split; `rows` of O in one of their tiles; `k_tiles`:
 * that one of them walks over then; `registers` that the compiler gave a thread, 0 or less: not known. Masks of a
 * launch and lengths on the device are not looked at. */
int fk_split_choose(const fk_problem *p, const fk_device_info *device, const fk_plan_info *plan, int64_t num_ctas,
                    int64_t rows, int64_t k_tiles, int registers);

/* How a kernel's grid follows from the sizes of a launch. */
typedef enum fk_grid_kind {
    FK_GRID_TILES,      /* the tiles that CTAs own, heads in groups that share L2 */
    FK_GRID_PERSISTENT, /* the same tiles, which CTAs fetch: as many as run at a time */
    FK_GRID_VALUES,     /* e4m3: tiles of 128 keys, one to a CTA, of kv heads in rows */
    FK_GRID_DQ_TILES,   /* the query tiles of dq's own kernel, heads in the same groups */
    FK_GRID_ROWS,       /* query rows, 16 to a CTA */
    FK_GRID_HEADS,      /* query heads of all batch entries, one to a CTA */
    FK_GRID_ARRAYS,     /* rows of the last dimension of gradients of arrays, one or more to a CTA */
    FK_GRID_COMBINE,    /* query rows, one to a CTA; none if there is one split */
    FK_GRID_KEEP_MASK,  /* own tiles, heads in rows; fk_keep_mask's alone */
    FK_GRID_BLOCKS,     /* rows of a table of blocks, or of bools, one to a warp of 4; fk_pack_blocks' alone */
    FK_GRID_ROW_CHUNKS, /* 8 elements of query rows of q's width, two chunks to a thread */
    FK_GRID_RUNS,       /* queries of whole tiles of all batch entries, one to a thread of 128 */
    FK_GRID_KEYS,       /* 8 columns of dk or dv of keys whose queries were split, one to a thread of 128; else none */
    FK_GRID_PARTS,      /* 4 columns of rows of tiles that came in parts, to a thread or four; else none */
    FK_GRID_SEQUENCES,  /* packed sequences, one to a warp of 4 */
    FK_GRID_SEEN,       /* 64 queries of a head to a CTA */
    FK_GRID_WIDEN,      /* FK_WIDEN_KEYS keys to a CTA, kv heads in rows */
    FK_GRID_ALIGN,      /* rows of an array that is copied into others, one or more to a warp of 8; else none */
    FK_GRID_REST        /* packed: a few CTAs where rows of no sequence are to be cleared; else none */
} fk_grid_kind;

#define FK_WIDEN_KEYS 64 /* widen_keys of templates/piece/widen.cu */

/* One kernel of a source. All of them but fk_pack_blocks take the same parameter block. */
typedef struct fk_kernel_launch {
    char entry[32];
    int32_t threads, smem_bytes;
    fk_grid_kind grid;
} fk_kernel_launch;

/* What backward may have: clear, delta, sinks, seen, itself, combine, dq, arrays; and two more. */
#define FK_MAX_KERNELS 10

/** Everything that is launched by: text and its launch facts. */
typedef struct fk_source {
    char *text;                              /* malloc'ed */
    fk_kernel_launch kernel[FK_MAX_KERNELS]; /* in the order in which they are launched */
    int32_t num_kernels, main_kernel;        /* main: the one that the plan is of */
    uint32_t early; /* bits of kernels that may start before the one before has ended: they wait for it themselves */
    int32_t dq_block_m; /* query rows of a CTA of dq's own kernel; 0: dq has none */
    int32_t d_pad;      /* columns of q and k tiles, and of dq's sum */
    char spelling[FK_MAX_SPELLING];
    fk_plan_info plan;
    int32_t q_order; /* +1: later own tiles are longer, so they start first; -1: the reverse */
    fk_mask_param param[FK_MAX_MASKS * FK_MAX_MASK_VALUES]; /* values of the parameter block's mask_value, in order */
    int32_t num_params;
    fk_score_param score_param[FK_MAX_SCORES * FK_MAX_SCORE_VALUES]; /* values of score_value, in order */
    int32_t num_score_params;
    fk_array_list arrays; /* of the parameter block's array */
    uint32_t grad, once;  /* fk_problem_score's */
    int32_t staged;       /* one more than the array of which tiles are copied beside those of K; 0: none */
    int32_t pattern;      /* bool: tiles are those of a pattern */
    int32_t most_keys;    /* that are served */
    int32_t leading_rows; /* forward: queries of a head whose keys may be shared among splits, as they see far more than
                             most; backward: keys, whose queries may be, or FK_ALL_LEAD; 0: none */
} fk_source;

#define FK_ALL_LEAD FK_MAX_SEQLEN /* leading_rows: however many keys there are */

fk_status fk_source_create(const fk_problem *p, const fk_device_info *device, const fk_plan_info *plan,
                           const char *template_dir, bool standalone, fk_source *out, fk_error *err);
void fk_source_free(fk_source *source);

#endif

/* Inside the planner: a tile plan is judged (does it fit?) and modelled (how long does it take?). */
#ifndef FK_GEN_PLAN_H
#define FK_GEN_PLAN_H

#include "bind.h"
#include "generate.h"

fk_status fk_plan_options_check(const fk_plan_options *options, fk_error *err);

/* ---- tiles.c ---- */

/** The tiles of one head of one batch entry. */
typedef struct fk_tile_totals {
    double partial, full;                          /* of all CTAs */
    double min_visited, mean_visited, max_visited; /* tiles that one CTA walks over */
    double first_visited, last_visited;            /* by the CTAs of the first and the last own tile */
    int64_t num_ctas, num_walked;                  /* own tiles, walked tiles */
} fk_tile_totals;

/** Interval arithmetic over each tile. `walks_q` (backward): CTAs own tiles of keys and walk over tiles of queries;
 * else the other way round. `max_ctas`: CTAs looked at, evenly spread; the rest is extrapolated. INT64_MAX: all, and
 * each to the tile; else what a long walk's bounds do not decide may be counted as partial in ranges. */
void fk_tiles_count(const fk_problem *p, const fk_problem_mask *mask, bool walks_q, const fk_shape *shape, int block_m,
                    int block_n, int64_t max_ctas, fk_tile_totals *out);
/** Of the own tiles of the first head, from the last one on for a positive `q_order`, as many as come before one that
 * walks over less than twice the mean: those of queries that see all, or of keys that all see. */
int fk_tiles_leading(const fk_problem *p, const fk_problem_mask *mask, bool walks_q, const fk_shape *shape, int block_m,
                     int block_n, int q_order);

/* ---- model_score.c ---- */

/** What the terms add to a score of the forward pass. */
typedef struct fk_score_work {
    double lanes; /* instructions */
    bool along;   /* it adds straight lines along the keys */
    bool at_once; /* from the raw score alone: a tile that is seen as a whole becomes weights in one pass */
    int pairs;    /* arrays of which it reads an element of its key's, two keys at a time */
    int bytes;    /* of these elements, per score */
    double l2;    /* clocks of an SM to read them, per score */
} fk_score_work;
/** Clocks that a warp waits for what it reads for `atoms` of 8 keys when it needs them. */
double fk_model_waits(const fk_score_work *score, double atoms);
fk_score_work fk_model_score(const fk_problem_terms *terms);

/* ---- model.c ---- */

/** Tokens that documents and packed sequences are taken to have, which begin and end anywhere in a tile. */
#define FK_SHORT_SEQUENCE 1024.0

/** Estimated registers of a thread. */
int fk_model_registers(const fk_problem *p, const fk_tile *tile, const fk_smem_layout *layout, const fk_arch *arch);
/** Fills the times, hbm_bytes and bound of a plan whose tile fields are set. */
void fk_model_times(const fk_problem *p, const fk_device_info *device, const fk_arch *arch,
                    const fk_smem_layout *layout, const fk_shape *shape, const fk_tile_totals *tiles,
                    const fk_score_work *score, fk_plan_info *plan);

/** How the tensor cores multiply a dtype. */
typedef struct fk_mma_kind {
    double passes; /* products for one: six of bf16 for one of fp32 */
    double depth;  /* of an instruction of 16 x 8 */
    double bytes;  /* of an element */
} fk_mma_kind;
/** `parted`: as their parts (fk_tile_parted). */
fk_mma_kind fk_model_mma(const fk_problem *p, const fk_arch *arch, bool parted);
/** Of how many rows of a tile of K or V a thread copies a chunk of 16 bytes (templates/piece/tile_copy.cu). `chunks`:
 * of a row. */
int fk_model_copied_rows(int block_n, int chunks, int threads);
/** fp32: registers that the parts of operands take, of a warp's rows (or keys) and of two atoms beside them. */
int fk_model_part_registers(const fk_smem_layout *layout, int rows);
/** Instructions (lanes) of products of `flops` that read `bytes`, of them `column_bytes` down columns: mma and loads;
 * for fp32 also splitting what is read, and adding what is done. */
double fk_model_gemm_lanes(const fk_mma_kind *mma, double flops, double bytes, double column_bytes);
/** The same of fp32 whose tiles lie in shared memory as parts, where `elements` of tiles and weights are split once. */
double fk_model_parted_lanes(const fk_mma_kind *mma, double flops, double bytes, double elements);

/** Whether packed sequences are so short that where they end within tiles counts: the shape then has the longest, and
 * lengths are taken as spread evenly below it. */
bool fk_lengths_spread(const fk_problem *p, const fk_shape *shape);
/** Adds a share of another plan's times and bytes, as of dq's own kernel. */
void fk_model_add(fk_plan_info *plan, const fk_plan_info *other, double share);

/** Clocks of an SM for one visit of a walked tile, by unit. */
typedef struct fk_visit_cost {
    double tensor, exp, issue, smem, l2;
    double chained;     /* fp32: products that wait for one another, and what stands between them */
    double serial;      /* of one warp alone */
    double turns;       /* warps of a CTA on each scheduler that take turns; 1: serial is of all of them */
    double alone;       /* share that one CTA without neighbours takes longer */
    double lone;        /* clocks of a team that has the SM to itself; 0: there is but one */
    double start, edge; /* clocks of an own tile besides; and for what it reads first and writes last */
    double head;        /* backward: clocks besides of each query head of a group, through which a walk goes */
} fk_visit_cost;

/* ---- model_split.c: the forward pass of a problem with `split` ---- */

typedef struct fk_split_model {
    double num_ctas, share;       /* of the main kernel; and of its visits, of those of tiles of one head each */
    double combine_bytes;         /* of the second kernel */
    double loading_us, around_us; /* the keys' way from HBM; launches and the second kernel */
} fk_split_model;
/** Shares the tiles of each walk among as many splits as fk_split_choose says. */
void fk_model_split(const fk_problem *p, const fk_device_info *device, const fk_shape *shape, const fk_plan_info *plan,
                    fk_tile_totals *walks, fk_split_model *out);
/** The time of both kernels, given what the main one computes. */
double fk_model_overlap(double clocks_us, const fk_split_model *split);

/* ---- groups.c, model_l2.c: what is fetched more than once ---- */

/** Bytes that the tiles of one kv head walk over. `d_pad`: columns of dq's sum; `wgmma`: of that family. */
int64_t fk_walked_bytes(const fk_problem *p, const fk_shape *shape, int d_pad, bool wgmma);
/** Family wgmma: how often, after the first time, what tiles walk over comes from HBM. */
double fk_model_passes_again(const fk_problem *p, const fk_device_info *device, const fk_smem_layout *layout,
                             const fk_shape *shape, const fk_plan_info *plan, const fk_tile_totals *tiles);

/* ---- model_backward.c: the same for the backward pass ---- */

int fk_backward_registers(const fk_problem *p, const fk_tile *tile, const fk_smem_layout *layout, const fk_arch *arch);
fk_visit_cost fk_backward_visit(const fk_problem *p, const fk_device_info *device, const fk_arch *arch,
                                const fk_smem_layout *layout, const fk_plan_info *plan, double partial_share);
/** Bytes of the main kernel, and of those around it. */
void fk_backward_hbm_bytes(const fk_problem *p, const fk_device_info *device, const fk_smem_layout *layout,
                           const fk_shape *shape, const fk_plan_info *plan, const fk_tile_totals *tiles,
                           double *tiles_bytes, double *around_bytes);

/* ---- model_dq.c: the same for its kernel of dq ---- */

int fk_dq_registers(const fk_problem *p, const fk_tile *tile, const fk_smem_layout *layout, const fk_arch *arch);
fk_visit_cost fk_dq_visit(const fk_problem *p, const fk_device_info *device, const fk_arch *arch,
                          const fk_smem_layout *layout, const fk_plan_info *plan, double partial_share);
double fk_dq_hbm_bytes(const fk_problem *p, const fk_device_info *device, const fk_shape *shape,
                       const fk_plan_info *plan, const fk_tile_totals *tiles);

/* ---- model_wgmma.c: the same for the forward pass of that family ---- */

int fk_wgmma_registers(const fk_problem *p, const fk_tile *tile, const fk_smem_layout *layout);
/** That a thread of a warpgroup gets forward where so many compute; gen/layout.lua has where it is otherwise. */
int fk_wgmma_consumer_registers(int computing);
/** `visits`: of a tile of queries, in the mean. */
fk_visit_cost fk_wgmma_visit(const fk_problem *p, const fk_device_info *device, const fk_arch *arch,
                             const fk_smem_layout *layout, const fk_plan_info *plan, const fk_score_work *score,
                             double partial_share, double visits);
/** Of the atoms of 8 keys in a tile, how many are read ahead where terms read arrays along the keys: as many as there
 * are registers for. */
int fk_wgmma_pairs_ahead(const fk_problem *p, const fk_tile *tile);
/** Clocks at the nominal rate of what takes `clocks`, in `tensor` of which the tensor cores work. */
double fk_wgmma_slow(double clocks, double tensor);

/* ---- model_wgmma_backward.c: the same for its backward pass ---- */

fk_visit_cost fk_wgmma_backward_visit(const fk_problem *p, const fk_device_info *device, const fk_arch *arch,
                                      const fk_smem_layout *layout, const fk_plan_info *plan, double partial_share);

/* ---- plan.c ---- */

/** What candidates are judged against; `p` and `device` must outlive it. */
typedef struct fk_planner {
    const fk_problem *p; /* canonical */
    const fk_device_info *device;
    fk_shape shape;
    fk_arch arch;
    const char *template_dir; /* as it was given */
    fk_lua *lua;              /* the arch table stays in its registry */
    fk_expr_pool *pool;
    fk_problem_terms terms;
    fk_score_work score;
    fk_plan_info dq; /* backward: of the kernel of dq, if dq has one; not legal: no tile fits */
    fk_smem_layout dq_layout;
} fk_planner;

fk_status fk_planner_open(const fk_problem *p, const fk_device_info *device, const fk_shape *shape,
                          const char *template_dir, fk_planner *out, fk_error *err);
void fk_planner_close(fk_planner *planner);
/** Pushes the arch table. In bodies. */
void fk_planner_push_arch(lua_State *L);

/** What the mask leaves to look for within its bounds. */
fk_mask_scan fk_plan_scan(const fk_planner *planner, const fk_tile *tile);
/** How many keys a kernel of that tile serves: where tiles are looked for, one is told in what flags leave of a word
 *  (Visit of templates/piece/scanner.cu). */
int32_t fk_plan_most_keys(const fk_planner *planner, const fk_tile *tile);
/** Whether kernels of that tile take fk_problem_mask.runs for its split. */
bool fk_plan_takes_runs(const fk_planner *planner, const fk_tile *tile);
/** Whether kernels of that tile know a mask's words of 32 keys, of which a kernel before says what tiles hold. */
bool fk_plan_takes_words(const fk_planner *planner, const fk_tile *tile);
/** Fills everything of `out` but the model: smem, registers, legal, reason. */
fk_status fk_plan_judge(fk_planner *planner, const fk_tile *tile, fk_plan_info *out, fk_smem_layout *layout,
                        fk_error *err);
/** Fills the times of a legal plan. */
void fk_plan_model(const fk_planner *planner, const fk_smem_layout *layout, fk_plan_info *plan);
/** The same of a candidate, which is no longer legal if the planner's sizes are more than it serves. */
void fk_plan_model_candidate(const fk_planner *planner, const fk_smem_layout *layout, fk_plan_info *plan);
/** Puts a plan where it belongs among `*count` that are in the model's order, and counts it. */
void fk_plan_insert(fk_plan_info *plans, size_t *count, const fk_plan_info *plan);
/** The tile of a plan. */
fk_tile fk_plan_tile(const fk_problem *p, const fk_plan_info *plan);
/** The tile of the planner's dq. */
fk_tile fk_plan_dq_tile(const fk_planner *planner);

/* ---- plan_limits.c ---- */

/** Notes why a plan is not legal. */
void fk_plan_reject(fk_plan_info *plan, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** What the tile itself must satisfy; false: no layout can be asked for. */
bool fk_plan_check_tile(const fk_planner *planner, const fk_tile *tile, fk_plan_info *plan);
/** What its layout and the device say, once smem_bytes and registers of the plan are set. */
void fk_plan_check_limits(const fk_planner *planner, const fk_tile *tile, const fk_smem_layout *layout,
                          fk_plan_info *plan);

#endif

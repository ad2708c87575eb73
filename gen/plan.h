/* Inside the planner: a tile plan is judged (does it fit?) and modelled (how long does it take?). */
#ifndef FK_GEN_PLAN_H
#define FK_GEN_PLAN_H

#include "bind.h"
#include "generate.h"

/** Fills the zero fields of a shape and checks it. */
fk_status fk_shape_fill(const fk_problem *p, const fk_shape *in, fk_shape *out, fk_error *err);

fk_status fk_plan_options_check(const fk_plan_options *options, fk_error *err);

/* ---- tiles.c ---- */

/** The tiles of one head of one batch entry. */
typedef struct fk_tile_totals {
    double partial, full;                          /* of all query tiles */
    double min_visited, mean_visited, max_visited; /* key tiles of one query tile */
    double first_visited, last_visited;            /* of the first and the last query tile */
    int64_t num_m, num_n;                          /* query tiles, key tiles */
} fk_tile_totals;

/** Interval arithmetic over each tile. `max_rows`: query tiles looked at, evenly spread; the rest is extrapolated. */
void fk_tiles_count(const fk_problem *p, const fk_problem_mask *mask, const fk_shape *shape, int block_m, int block_n,
                    int64_t max_rows, fk_tile_totals *out);

/* ---- model.c ---- */

/** Estimated registers of a thread. */
int fk_model_registers(const fk_tile *tile, const fk_smem_layout *layout, const fk_arch *arch);
/** Fills the times, hbm_bytes and bound of a plan whose tile fields are set. */
void fk_model_times(const fk_problem *p, const fk_device_info *device, const fk_arch *arch,
                    const fk_smem_layout *layout, const fk_shape *shape, const fk_tile_totals *tiles,
                    fk_plan_info *plan);

/* ---- plan.c ---- */

/** What candidates are judged against; `p` and `device` must outlive it. */
typedef struct fk_planner {
    const fk_problem *p; /* canonical */
    const fk_device_info *device;
    fk_shape shape;
    fk_arch arch;
    fk_lua *lua; /* the arch table stays in its registry */
    fk_expr_pool *pool;
    fk_problem_mask mask;
} fk_planner;

fk_status fk_planner_open(const fk_problem *p, const fk_device_info *device, const fk_shape *shape,
                          const char *template_dir, fk_planner *out, fk_error *err);
void fk_planner_close(fk_planner *planner);
/** Pushes the arch table. In bodies. */
void fk_planner_push_arch(lua_State *L);

/** Fills everything of `out` but the model: smem, registers, legal, reason. */
fk_status fk_plan_judge(fk_planner *planner, const fk_tile *tile, fk_plan_info *out, fk_smem_layout *layout,
                        fk_error *err);
/** Fills the times of a legal plan. */
void fk_plan_model(const fk_planner *planner, const fk_smem_layout *layout, fk_plan_info *plan);
/** The tile of a plan. */
fk_tile fk_plan_tile(const fk_plan_info *plan);

#endif

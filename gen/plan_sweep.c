/* Plans for many sizes of one problem: which tiles fit does not depend on sizes, and is what planning takes its time
 * for. */
#include "plan.h"

#include <stdlib.h>

typedef struct candidates {
    fk_plan_info *plan;
    fk_smem_layout *layout; /* of each that is legal */
    size_t count;
} candidates;

static fk_status judge_all(fk_planner *planner, candidates *c, fk_error *err) {
    for (int i = 0; i < planner->arch.num_tiles; ++i) {
        const fk_status status =
            fk_plan_judge(planner, &planner->arch.tile[i], &c->plan[c->count], &c->layout[c->count], err);
        if (status != FK_OK) return status;
        c->count += fk_plan_find(c->plan, c->count, &c->plan[c->count]) == c->count;
    }
    return FK_OK;
}

static fk_status model_each(fk_planner *planner, const candidates *c, const fk_shape *shapes, size_t num_shapes,
                            fk_plan_info *plans, fk_plan_tell tell, void *user, fk_error *err) {
    for (size_t s = 0; s < num_shapes; ++s) {
        const fk_status status = fk_shape_fill(planner->p, &shapes[s], &planner->shape, err);
        if (status != FK_OK) return status;
        size_t count = 0;
        for (size_t i = 0; i < c->count; ++i) {
            fk_plan_info plan = c->plan[i];
            fk_plan_model_candidate(planner, &c->layout[i], &plan);
            fk_plan_insert(plans, &count, &plan);
        }
        tell(user, s, plans, count);
    }
    return FK_OK;
}

fk_status fk_plan_sweep(const fk_problem *p, const fk_device_info *device, const char *template_dir,
                        const fk_shape *shapes, size_t num_shapes, fk_plan_tell tell, void *user, fk_error *err) {
    fk_planner planner;
    if (!num_shapes) return FK_OK;
    fk_status status = fk_planner_open(p, device, shapes, template_dir, &planner, err);
    if (status != FK_OK) return status;
    const size_t room = (size_t)planner.arch.num_tiles + 1;
    candidates c = {calloc(room, sizeof *c.plan), calloc(room, sizeof *c.layout), 0};
    fk_plan_info *plans = calloc(room, sizeof *plans);
    if (!c.plan || !c.layout || !plans) status = fk_fail(err, FK_NO_MEMORY, "no memory for %zu plans", room);
    if (status == FK_OK) status = judge_all(&planner, &c, err);
    if (status == FK_OK) status = model_each(&planner, &c, shapes, num_shapes, plans, tell, user, err);
    free(plans);
    free(c.layout);
    free(c.plan);
    fk_planner_close(&planner);
    return status;
}

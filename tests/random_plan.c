#include "random_plan.h"

#include <string.h>

static bool list(const drawn *d, const char *gpu, const char *plan, bool sized, fk_plan_info **out, size_t *count) {
    fk_plan_options options = FK_PLAN_OPTIONS_INIT;
    fk_problem problem;
    options.plan = plan;
    if (sized) options.shape.seqlen_q = d->args.seqlen_q;
    return !fk_problem_parse(d->spelling, &problem) && !fk_plan_list(&problem, gpu, &options, out, count);
}

/* Takes `changed` where it is legal. */
static void try_change(const drawn *d, const char *gpu, const fk_plan_info *changed, char out[FK_MAX_PLAN]) {
    char line[FK_MAX_PLAN];
    fk_plan_info *plans;
    size_t count;
    if (fk_plan_spell(changed, line, sizeof line) || !list(d, gpu, line, false, &plans, &count)) return;
    if (plans->legal) strcpy(out, line);
    fk_free(plans);
}

/* Takes a plan that serves rows as short as these alone, if there is one. */
static void try_heads(const drawn *d, const char *gpu, rng *r, char out[FK_MAX_PLAN]) {
    fk_plan_info *plans;
    size_t count, legal = 0;
    if (!list(d, gpu, NULL, true, &plans, &count)) return;
    for (size_t i = 0; i < count && plans[i].legal; i++)
        if (plans[i].head_rows) plans[legal++] = plans[i];
    if (legal) fk_plan_spell(&plans[rng_range(r, 0, (int64_t)legal - 1)], out, FK_MAX_PLAN);
    fk_free(plans);
}

bool random_plan(const drawn *d, const char *gpu, char out[FK_MAX_PLAN]) {
    rng r = {(d->seed / kernel_reuse + 1) * 0x9e3779b97f4a7c15u};
    fk_plan_info *plans;
    size_t count, legal = 0;
    if (!list(d, gpu, NULL, false, &plans, &count)) return false;
    while (legal < count && plans[legal].legal)
        legal++;
    fk_plan_info plan = plans[rng_range(&r, 0, (int64_t)legal - 1)];
    const bool spelled = !fk_plan_spell(&plan, out, FK_MAX_PLAN);
    fk_free(plans);
    if (d->backward && rng_chance(&r, 30)) {
        try_heads(d, gpu, &r, out);
    } else if (d->backward && rng_chance(&r, 30)) {
        plan.turns = !plan.turns;
        try_change(d, gpu, &plan, out);
    } else if (rng_chance(&r, d->backward ? 30 : 40)) {
        plan.parts = 1;
        try_change(d, gpu, &plan, out);
    }
    return spelled;
}

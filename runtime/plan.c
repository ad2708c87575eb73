/* The public functions that choose a plan: the planner's, with tuning records. */
#include "advice.h"
#include "object.h"

#include <stdlib.h>

static const fk_advice default_advice = {.dir = NULL};

fk_status fk_plan_list(const fk_problem *problem, const char *gpu, const fk_plan_options *options, fk_plan_info **plans,
                       size_t *count) {
    fk_error err;
    fk_device_info device;
    if (!problem || !plans || !count)
        return fk_refuse(FK_BAD_ARGUMENT, "%s is null", !problem ? "problem" : !plans ? "plans" : "count");
    fk_status status = fk_device_named(gpu, &device, &err);
    if (!status) status = fk_plan_advised(problem, &device, options, &default_advice, plans, count, &err);
    return status ? fk_report(&err) : FK_OK;
}

static fk_status choose(const fk_problem *p, const fk_device_info *device, const fk_plan_options *options,
                        fk_plan_info *out, fk_error *err) {
    fk_plan_info *plans;
    size_t count;
    const fk_status status = fk_plan_advised(p, device, options, &default_advice, &plans, &count, err);
    if (status) return status;
    *out = plans[0];
    free(plans);
    return FK_OK;
}

static fk_status generate(const fk_problem *problem, const char *gpu, const fk_generate_options *options,
                          fk_source *out, fk_error *err) {
    fk_device_info device;
    fk_plan_info plan;
    fk_status status = fk_device_named(gpu, &device, err);
    if (!status && options->struct_size != sizeof *options)
        status = fk_fail(err, FK_BAD_ARGUMENT,
                         "fk_generate_options.struct_size is %zu: must be %zu, as FK_GENERATE_OPTIONS_INIT sets it",
                         options->struct_size, sizeof *options);
    if (!status && options->plan) plan = *options->plan;
    if (!status && !options->plan) status = choose(problem, &device, &options->planning, &plan, err);
    if (status) return status;
    return fk_source_create(problem, &device, &plan, options->planning.template_dir, options->standalone != 0, out,
                            err);
}

fk_status fk_generate(const fk_problem *problem, const char *gpu, const fk_generate_options *options, char **text,
                      fk_plan_info *chosen) {
    static const fk_generate_options defaults = FK_GENERATE_OPTIONS_INIT;
    fk_error err;
    fk_source source;
    if (!problem || !text) return fk_refuse(FK_BAD_ARGUMENT, "%s is null", problem ? "text" : "problem");
    if (generate(problem, gpu, options ? options : &defaults, &source, &err)) return fk_report(&err);
    *text = source.text;
    if (chosen) *chosen = source.plan;
    return FK_OK;
}

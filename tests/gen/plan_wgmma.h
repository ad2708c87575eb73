/* Plans of family wgmma: helpers of its tests. */
#ifndef FK_TESTS_PLAN_WGMMA_H
#define FK_TESTS_PLAN_WGMMA_H

#include "gen/generate.h"
#include "gen/plan.h"
#include "test.h"

static inline fk_device_info device_of(const char *key) {
    fk_device_info device;
    fk_error err;
    assert_int_equal(fk_device_lookup(key, &device, &err), FK_OK);
    return device;
}

static inline fk_problem problem_of(const char *spelling) {
    fk_problem p, canonical;
    fk_error err = {.text = ""};
    if (fk_problem_read(spelling, &p, &err) != FK_OK) fail_msg("%s", err.text);
    if (fk_problem_normalise(&p, &canonical, &err) != FK_OK) fail_msg("%s", err.text);
    return canonical;
}

static inline size_t enumerate(const char *spelling, const char *gpu, const fk_plan_options *options,
                               fk_plan_info **plans) {
    const fk_problem p = problem_of(spelling);
    const fk_device_info device = device_of(gpu);
    fk_error err = {.text = ""};
    size_t count;
    if (fk_plan_enumerate(&p, &device, options, plans, &count, &err) != FK_OK) fail_msg("%s: %s", spelling, err.text);
    return count;
}

/** The text of the plan that is chosen; the caller frees it by fk_source_free. */
static inline fk_source source_of(const char *spelling, const char *gpu) {
    const fk_problem p = problem_of(spelling);
    const fk_device_info device = device_of(gpu);
    fk_plan_info plan;
    fk_source source;
    fk_error err = {.text = ""};
    if (fk_plan_best(&p, &device, NULL, &plan, &err) != FK_OK) fail_msg("%s: %s", spelling, err.text);
    if (fk_source_create(&p, &device, &plan, NULL, true, &source, &err) != FK_OK)
        fail_msg("%s: %s", spelling, err.text);
    return source;
}

static inline bool is_wgmma(const fk_plan_info *plan) {
    return strcmp(plan->family, "wgmma") == 0;
}

/* Rows of an arch file. */
#define ROW_OF(m, n, warps, stages, rest)                                                                              \
    "{ block_m = " #m ", block_n = " #n ", warps = " #warps ", stages = " #stages ", ctas = 1, " rest " },\n"
#define ROW(m, n, warps, rest) ROW_OF(m, n, warps, 2, rest)
#define REST "q_stages = 2, turns = false, overlap = 1"
#define SMEM_2 "q_in_regs = false, k_stages = 2, " REST
#define REGS_2 "q_in_regs = true, k_stages = 2, " REST

#endif

/* What a GPU has is what plans may take of it, to the byte and the thread. */
#include "gen/plan.h"
#include "test.h"

/* Is this plan legal on such a GPU? */
static bool fits(const fk_problem *p, const fk_device_info *device, const fk_plan_info *plan) {
    fk_plan_info *plans;
    size_t count;
    fk_error err;
    if (fk_plan_enumerate(p, device, NULL, &plans, &count, &err) != FK_OK) return false; /* none is */
    const size_t at = fk_plan_find(plans, count, plan);
    const bool legal = at < count && plans[at].legal;
    free(plans);
    return legal;
}

static void test_limits_are_exact(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"fwd fp16 d128 causal", "a100"}, {"fwd bf16 d64", "h200"}, {"bwd fp16 d64", "rtx3090"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        fk_problem p;
        fk_device_info device;
        fk_plan_info *plans;
        size_t count;
        fk_error err = {.text = ""};
        assert_int_equal(fk_problem_read(cases[i][0], &p, &err), FK_OK);
        assert_int_equal(fk_device_lookup(cases[i][1], &device, &err), FK_OK);
        assert_int_equal(fk_plan_enumerate(&p, &device, NULL, &plans, &count, &err), FK_OK);
        for (size_t j = 0; j < count && plans[j].legal; ++j) {
            const fk_plan_info *plan = &plans[j];
            fk_device_info less = device;
            less.smem_per_sm = plan->ctas_per_sm * (plan->smem_bytes + device.smem_reserved);
            assert_true(fits(&p, &less, plan));
            --less.smem_per_sm;
            assert_false(fits(&p, &less, plan));
            less = device, less.smem_per_block = plan->smem_bytes;
            assert_true(fits(&p, &less, plan));
            --less.smem_per_block;
            assert_false(fits(&p, &less, plan));
            less = device, less.threads_per_sm = plan->ctas_per_sm * plan->warps * 32;
            assert_true(fits(&p, &less, plan));
            --less.threads_per_sm;
            assert_false(fits(&p, &less, plan));
            less = device, less.blocks_per_sm = plan->ctas_per_sm;
            assert_true(fits(&p, &less, plan));
            --less.blocks_per_sm;
            assert_false(fits(&p, &less, plan));
        }
        free(plans);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_limits_are_exact)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* A plan's one line: every candidate goes through it and back, and what is no plan is refused with its reason. */
#include "gen/generate.h"
#include "test.h"

static fk_problem parsed(const char *spelling) {
    fk_problem p;
    assert_int_equal(fk_problem_parse(spelling, &p), FK_OK);
    return p;
}

static void candidates_come_back(void **state) {
    (void)state;
    static const char *const rows[][2] = {
        {"fwd bf16 d128 causal", "h200"}, {"bwd bf16 d64", "h200"}, {"bwd bf16 d256 deterministic", "a100"},
        {"fwd e4m3 d128", "h200"},        {"fwd fp16 d64", "t4"},   {"fwd fp32 d128", "rtx3090"}};
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        const fk_problem p = parsed(rows[n][0]);
        fk_device_info device;
        fk_plan_info *plans, back;
        size_t count;
        fk_error err;
        assert_int_equal(fk_device_lookup(rows[n][1], &device, &err), FK_OK);
        assert_int_equal(fk_plan_enumerate(&p, &device, NULL, &plans, &count, &err), FK_OK);
        for (size_t i = 0; i < count; i++) {
            char line[FK_MAX_PLAN];
            assert_int_equal(fk_plan_spell(&plans[i], line, sizeof line), FK_OK);
            if (fk_plan_read(line, &back, &err)) fail_msg("%s: %s", line, err.text);
            assert_true(fk_plan_equal(&plans[i], &back));
            for (size_t j = 0; j < i; j++) /* no two candidates are one */
                assert_false(fk_plan_equal(&plans[i], &plans[j]));
        }
        free(plans);
    }
}

static void refuses_what_is_no_plan(void **state) {
    (void)state;
    static const char *const rows[][2] = {{"", "family"},
                                          {"m128", "family"},
                                          {"gemm m128", "family"},
                                          {"mma m", "\"m\""},
                                          {"mma m0", "\"m0\""},
                                          {"mma m5000", "4096"},
                                          {"mma m-1", "\"m-1\""},
                                          {"mma m64x", "\"m64x\""},
                                          {"mma z3", "\"z3\""},
                                          {"mma m64 m64", "twice"},
                                          {"mma m99999999999999999999", "4096"}};
    char longer[2 * FK_MAX_PLAN];
    fk_plan_info out;
    fk_error err;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(fk_plan_read(rows[i][0], &out, &err), FK_BAD_ARGUMENT);
        assert_non_null(strstr(err.text, rows[i][1]));
    }
    memset(longer, ' ', sizeof longer);
    longer[sizeof longer - 1] = 0;
    assert_int_equal(fk_plan_read(longer, &out, &err), FK_BAD_ARGUMENT);
    assert_int_equal(fk_plan_read("  mma  m64 n64 ", &out, &err), FK_OK);
    assert_true(out.block_m == 64 && out.block_n == 64 && out.stages == 0);
    assert_int_equal(fk_plan_spell(&out, longer, 11), FK_BAD_ARGUMENT);
    assert_int_equal(fk_plan_spell(&out, longer, 12), FK_OK);
    assert_string_equal(longer, "mma m64 n64");
}

/* A plan that is asked for goes first, a candidate or not, and is judged like any other. */
static void a_plan_can_be_forced(void **state) {
    (void)state;
    const fk_problem p = parsed("fwd bf16 d64 causal");
    fk_plan_options options = FK_PLAN_OPTIONS_INIT;
    fk_generate_options how = FK_GENERATE_OPTIONS_INIT;
    fk_device_info device;
    fk_plan_info *plans, plan;
    size_t all, count;
    char *text;
    fk_error err;
    assert_int_equal(fk_device_lookup("a100", &device, &err), FK_OK);
    assert_int_equal(fk_plan_enumerate(&p, &device, NULL, &plans, &all, &err), FK_OK);
    char last[FK_MAX_PLAN] = "";
    for (size_t i = 0; i < all; i++)
        if (plans[i].legal) fk_plan_write(&plans[i], last);
    free(plans);
    options.plan = last;
    assert_int_equal(fk_plan_enumerate(&p, &device, &options, &plans, &count, &err), FK_OK);
    assert_true(count == all && plans[0].chosen == FK_CHOSEN_BY_CALLER && plans[0].model_us > plans[1].model_us);
    for (size_t i = 1; i < count; i++)
        assert_int_equal(plans[i].chosen, 0);
    free(plans);
    options.plan = "mma m16 n16 w1 s1 c1"; /* none of the candidates */
    assert_int_equal(fk_plan_enumerate(&p, &device, &options, &plans, &count, &err), FK_OK);
    assert_true(count == all + 1 && plans[0].block_m == 16 && plans[0].model_us > 0 && plans[0].smem_bytes > 0);
    free(plans);
    how.planning.plan = options.plan;
    assert_int_equal(fk_generate(&p, "a100", &how, &text, &plan), FK_OK);
    assert_true(plan.block_m == 16 && strstr(text, "block_m (B_r) 16"));
    fk_free(text);
    options.plan = "mma m128 n256 w4 s4 c2";
    assert_int_equal(fk_plan_enumerate(&p, &device, &options, &plans, &count, &err), FK_UNSUPPORTED);
    assert_true(strstr(err.text, "m128 n256") && strstr(err.text, "shared memory"));
    options.plan = "wgmma m64 n64 w8 s2 c1 q1 k2 o1";
    assert_int_equal(fk_plan_enumerate(&p, &device, &options, &plans, &count, &err), FK_UNSUPPORTED);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(candidates_come_back),
                                       cmocka_unit_test(refuses_what_is_no_plan),
                                       cmocka_unit_test(a_plan_can_be_forced)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

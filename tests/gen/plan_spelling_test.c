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

/* Every reason for which a tile cannot be launched, however wrong it is: nothing reaches a layout, a template or a
 * device. */
static void a_plan_that_cannot_be_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *problem, *gpu, *plan, *says;
    } rows[] = {
        {"fwd bf16 d64", "t4", "mma m64 n64 w4 s1 c1", "dtype bf16: the tensor cores of"},
        {"fwd bf16 kv_e4m3 d64", "t4", "mma m64 n64 w4 s1 c1", "dtype bf16: the tensor cores of sm_75"},
        {"fwd bf16 kv_e4m3 d64 split", "h200", "wgmma m128 n64 w12 s2 c1 q2 k2 o1", "split: the wgmma family has none"},
        {"fwd e4m3 d64 paged", "h200", "wgmma m128 n64 w12 s2 c1 q2 k2 o1",
         "paged, of any page size: the wgmma family"},
        {"fwd fp32 d64", "t4", "mma m64 n64 w4 s1 c1", "dtype fp32: the tensor cores of"},
        {"fwd fp32 d64", "a100", "mma m64 n64 w4 s1 c1 r1", "q_in_regs 1: must be 0 for fp32"},
        {"fwd fp32 d64", "a100", "mma m64 n32 w4 s1 c1 k2", "k_stages 2: must be 0, or 1 of fp32"},
        {"fwd bf16 d64", "a100", "mma m64 n64 w4 s1 c1 k1", "k_stages 1: must be 0, or 1 of fp32"},
        {"bwd fp32 d64", "h200", "mma m32 n64 w4 s2 c1 k1", "k_stages 1: must be 0 backward with more stages than 1"},
        {"bwd fp32 d64 deterministic", "h200", "mma m32 n64 w4 s1 c1 k1",
         "k_stages 1: must be 0 backward with a kernel of dq"},
        {"fwd fp16 d64", "a100", "mma m48 n32 w3 s1 c1", "warps 3: must be a power of two"},
        {"bwd fp16 d64", "a100", "mma m48 n32 w2 s1 c1", "block_m 48: must be a power of two in the backward pass"},
        {"fwd fp32 d256", "a100", "mma m16 n16 w1 s1 c1",
         "warps 1: must be at least 2, whose threads copy a row of 256"},
        {"fwd fp16 d64", "a100", "mma m64 n64 w33 s1 c1",
         "warps 33, stages 1, ctas_per_sm 1: must be positive, warps at most 32"},
        {"fwd fp16 d64", "a100", "mma m64 n64 s1 c1", "warps 0, stages 1, ctas_per_sm 1: must be positive"},
        {"fwd fp16 d64", "a100", "mma m64 n64 w4 c1", "warps 4, stages 0, ctas_per_sm 1: must be positive"},
        {"fwd fp16 d64", "a100", "mma m64 n64 w4 s1", "warps 4, stages 1, ctas_per_sm 0: must be positive"},
        {"fwd fp16 d64", "a100", "mma n64 w4 s1 c1", "block_m 0: must be a multiple of 16 rows for each of 4 warps"},
        {"fwd fp16 d64", "a100", "mma m64 w4 s1 c1", "block_n 0: must be a multiple of 16"},
        {"fwd fp16 d64", "a100", "mma m72 n64 w4 s1 c1", "block_m 72: must be"},
        {"fwd fp16 d64", "a100", "mma m64 n24 w4 s1 c1", "block_n 24: must be"},
        {"bwd fp16 d64", "a100", "mma m64 n64 w4 s1 c1 r1", "q_in_regs 1: must be 0 in the backward pass"},
        {"fwd fp16 d64", "a100", "mma m64 n64 w4 s1 c99", "99 CTAs"},
        {"fwd fp16 d64", "a100", "wgmma m128 n128 w12 s2 c1 q1 k2 o1", "sm_80: has no wgmma"},
        {"fwd fp32 d64", "h200", "wgmma m128 n128 w12 s2 c1 q1 k2 o1", "dtype fp32: the wgmma family has none"},
        {"fwd fp16 d64 split", "h200", "wgmma m128 n128 w12 s2 c1 q1 k2 o1", "split: the wgmma family has none"},
        {"fwd fp16 d64 paged", "h200", "wgmma m128 n128 w12 s2 c1 q1 k2 o1",
         "paged, of any page size: the wgmma family has none"},
        {"fwd fp16 d64", "h200", "wgmma m128 n128 w13 s2 c1 q1 k2 o1", "warps 13: must be 8, 12, 16 or 20"},
        {"fwd fp16 d64", "h200", "wgmma m128 n128 w4 s2 c1 q1 k2 o1", "warps 4: must be"},
        {"fwd fp16 d64", "h200", "wgmma m128 n128 w24 s2 c1 q1 k2 o1", "warps 24: must be"},
        {"fwd fp16 d64", "h200", "wgmma m128 n128 w12 s2 c2 q1 k2 o1", "ctas_per_sm 2: must be 1"},
        {"fwd fp16 d64", "h200", "wgmma m80 n128 w12 s2 c1 q1 k2 o1", "block_m 80: must be 64 rows for each of"},
        {"fwd fp16 d64", "h200", "wgmma m128 n272 w12 s2 c1 q1 k2 o1", "block_n 272: must be"},
        {"fwd fp16 d64", "h200", "wgmma m128 n40 w12 s2 c1 q1 k2 o1", "block_n 40: must be"},
        {"fwd e4m3 d64", "h200", "wgmma m128 n144 w12 s2 c1 q1 k2 o1",
         "block_n 144: must be a multiple of 32, at most 128, for e4m3"},
        {"fwd e4m3 d64", "h200", "wgmma m128 n48 w12 s2 c1 q1 k2 o1", "block_n 48: must be a multiple of 32"},
        {"fwd fp16 d64", "h200", "wgmma m128 n128 w12 s1 c1 q1 k2 o1", "k_stages 2, stages 1: must be from 2 to 8"},
        {"fwd fp16 d64", "h200", "wgmma m128 n128 w12 s9 c1 q1 k2 o1", "stages 9: must be from 2 to 8"},
        {"fwd fp16 d64", "h200", "wgmma m128 n128 w12 s2 c1 q1 k1 o1", "k_stages 1"},
        {"fwd fp16 d64", "h200", "wgmma m128 n128 w12 s2 c1 q1 k9 o1", "k_stages 9"},
        {"fwd fp16 d64", "h200", "wgmma m128 n128 w12 s2 c1 k2 o1", "q_stages 0, overlap 1: must be 1 or 2"},
        {"fwd fp16 d64", "h200", "wgmma m128 n128 w12 s2 c1 q3 k2 o1", "q_stages 3, overlap 1: must be 1 or 2"},
        {"fwd fp16 d64", "h200", "wgmma m128 n128 w12 s2 c1 q1 k2", "q_stages 1, overlap 0: must be 1 or 2"},
        {"fwd fp16 d64", "h200", "wgmma m128 n128 w12 s2 c1 q1 k2 o3", "q_stages 1, overlap 3: must be 1 or 2"},
        {"fwd fp16 d64", "h200", "wgmma m128 n64 w20 s4 c1 q1 k4 o2", "q_stages 1: must be 2 with two teams"},
        {"fwd fp16 d64", "h200", "wgmma m512 n64 w12 s2 c1 q2 k2 o1", "block_m 512: must be 64 rows for each of 2"},
        {"fwd e4m3 d64", "h200", "wgmma m256 n64 w12 s2 c1 q2 k2 o1", "block_m 256: clusters have no dtype e4m3"},
        {"fwd fp16 d64 packed", "h200", "wgmma m256 n64 w12 s2 c1 q2 k2 o1", "block_m 256: clusters have no packed"},
        {"fwd fp16 d64 document", "h200", "wgmma m256 n64 w12 s2 c1 q2 k2 o1",
         "block_m 256: clusters have no mask that is no bound"},
        {"bwd fp16 d64", "h200", "wgmma m64 n128 w16 s2 c1 q2 k2 o1", "warps 16: must be 12"},
        {"bwd fp16 d64", "h200", "wgmma m64 n96 w12 s2 c1 q2 k2 o1",
         "block_n 96: must be 64, or 64 keys for each of 2"},
        {"bwd fp16 d64", "h200", "wgmma m96 n128 w12 s2 c1 q2 k2 o1", "block_m 96: must be 64"},
        {"bwd fp16 d64", "h200", "wgmma m64 n64 w12 s2 c1 q2 k2 o1", "block_n 64: must be 128 where head_dim"},
        {"bwd fp16 d256", "h200", "wgmma m128 n64 w12 s2 c1 k2 o1", "block_m 128: must be 64"},
        {"bwd fp16 d256", "h200", "wgmma m64 n128 w12 s2 c1 q2 k2 o1", "with head_dim above 128 a cluster's"},
        {"bwd fp16 d256", "h200", "wgmma m64 n128 w12 s2 c1 k3 o1", "with head_dim above 128 a cluster's"},
        {"bwd fp16 d128 dv256", "h200", "wgmma m64 n128 w12 s2 c1 k2 o1",
         "block_n 128: must be 64 where head_dim_v alone"},
        {"bwd fp16 d64", "h200", "wgmma m64 n128 w12 s2 c1 k4 o1", "k_stages 4: must be 2"},
        {"bwd fp16 d64", "h200", "wgmma m64 n128 w12 s1 c1 k2 o1", "stages 1: must be from 2 to 8"},
        {"bwd fp16 d64", "h200", "wgmma m64 n128 w12 s9 c1 k2 o1", "stages 9: must be from 2 to 8"},
        {"bwd fp16 d64 deterministic", "h200", "wgmma m64 n128 w12 s2 c1 q1 k2 o1",
         "q_stages 1: must be 0, or 2 buffers of dQ"},
        {"bwd fp16 d64", "h200", "wgmma m64 n128 w12 s2 c1 k2 o3", "overlap 3: must be 1 or 2"},
        {"bwd fp16 d64", "h200", "wgmma m64 n128 w12 s2 c1 r1 k2 o1",
         "q_in_regs 1, turns 0: must be 0 in the backward pass"},
        {"fwd fp16 d256", "h200", "wgmma m128 n256 w12 s4 c1 q2 k4 o1", "shared memory: "},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fk_problem p, asked;
        fk_plan_options options = FK_PLAN_OPTIONS_INIT;
        fk_device_info device;
        fk_plan_info *plans = NULL;
        size_t count;
        fk_error err = {.text = ""};
        if (fk_problem_read(rows[i].problem, &asked, &err) || fk_problem_normalise(&asked, &p, &err))
            fail_msg("%s: %s", rows[i].problem, err.text);
        assert_int_equal(fk_device_lookup(rows[i].gpu, &device, &err), FK_OK);
        options.plan = rows[i].plan;
        const fk_status status = fk_plan_enumerate(&p, &device, &options, &plans, &count, &err);
        if (status == FK_OK) free(plans);
        if (status == FK_OK || !strstr(err.text, rows[i].says))
            fail_msg("%s, %s: \"%s\", not \"%s\"", rows[i].problem, rows[i].plan, err.text, rows[i].says);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(candidates_come_back), cmocka_unit_test(refuses_what_is_no_plan),
        cmocka_unit_test(a_plan_can_be_forced), cmocka_unit_test(a_plan_that_cannot_be_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

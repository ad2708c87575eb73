/* Head dims above 256: which there are, and that there are plans for them. */
#include "gen/generate.h"
#include "test.h"

static void test_what_there_is(void **state) {
    (void)state;
    static const char *const refused[][2] = {
        {"fwd fp16 d640", "head_dim is 640: must be a multiple of 8 from 8 to 256, or of 64 to 576"},
        {"fwd fp16 d328", "head_dim is 328: must be"},
        {"fwd fp16 d576", "head_dim_v is 576: must be a multiple of 8 from 8 to 256, or of 64 to 512"},
        {"bwd fp16 d576 dv520", "head_dim_v is 520: must be"}};
    static const char *const taken[] = {"fwd fp16 d320", "fwd bf16 d576 dv512", "fwd fp32 d64 dv448", "bwd bf16 d512"};
    fk_problem p;
    fk_error err;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; ++i) {
        assert_int_equal(fk_problem_read(refused[i][0], &p, &err), FK_BAD_PROBLEM);
        assert_non_null(strstr(err.text, refused[i][1]));
    }
    for (size_t i = 0; i < sizeof taken / sizeof *taken; ++i)
        assert_int_equal(fk_problem_read(taken[i], &p, &err), FK_OK);
}

static fk_plan_info best(const char *spelling, const char *gpu) {
    fk_problem p;
    fk_device_info device;
    fk_plan_info *plans = NULL, plan;
    size_t count;
    fk_error err = {.text = ""};
    if (fk_problem_read(spelling, &p, &err) || fk_device_lookup(gpu, &device, &err) ||
        fk_plan_enumerate(&p, &device, NULL, &plans, &count, &err))
        fail_msg("%s for %s: %s", spelling, gpu, err.text);
    plan = plans[0];
    free(plans);
    assert_true(plan.legal && plan.smem_bytes <= device.smem_per_block && plan.registers <= 255);
    assert_true(plan.model_us >= plan.tensor_us && plan.model_us >= plan.smem_us);
    return plan;
}

/* Of V each of two CTAs has half of the columns, so that registers hold the sums. 64 KB are too few from d384 on. */
static void test_every_gpu_has_plans(void **state) {
    (void)state;
    for (size_t i = 0; i < fk_device_table_size(); ++i) {
        fk_device_info device;
        assert_int_equal(fk_device_table(i, &device), FK_OK);
        for (int d = 320; d <= (device.sm >= 80 ? FK_MAX_HEAD_DIM : 320); d += 64) {
            const int others[] = {8, 256, d < FK_MAX_HEAD_DIM_V ? d : FK_MAX_HEAD_DIM_V};
            for (int j = 0; j < 6; ++j) {
                char spelling[64];
                snprintf(spelling, sizeof spelling, "fwd fp16 d%d dv%d gqa causal%s", d, others[j / 2],
                         j % 2 ? " split" : "");
                const char *family = best(spelling, device.key).family;
                if (device.sm != 90 || j % 2)
                    assert_string_equal(family, "mma");
                else if (j / 2 == 2) /* where V is narrow the model may have either */
                    assert_string_equal(family, "wgmma");
            }
        }
    }
}

/* By mma K, V, Q and dO of all columns are in shared memory, by wgmma halves, of at most 256 columns. */
static void test_backward_plans(void **state) {
    (void)state;
    static const char *const rows[][3] = {{"bwd bf16 d576 dv512 causal", "h200", "mma"},
                                          {"bwd bf16 d512 deterministic", "h200", "wgmma"},
                                          {"bwd bf16 d512", "h200", "wgmma"},
                                          {"bwd fp16 d320 causal", "h200", "wgmma"},
                                          {"bwd fp16 d64 dv512 packed", "h200", "wgmma"},
                                          {"bwd fp16 d512 gqa causal", "a100", "mma"},
                                          {"bwd fp16 d512 deterministic", "a100", "mma"},
                                          {"bwd bf16 d320 dropout", "rtx3090", "mma"},
                                          {"bwd fp16 d320 causal", "t4", "mma"},
                                          {"bwd fp16 d72 dv512", "a100", "mma"},
                                          {"bwd fp32 d320", "h200", "mma"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i)
        assert_string_equal(best(rows[i][0], rows[i][1]).family, rows[i][2]);
}

static bool starts_with(const char *text, const char *start) {
    return strncmp(text, start, strlen(start)) == 0;
}

/* Two CTAs of a cluster have half of all columns each; what they do not serve is family mma's. */
static void test_halves_of_all_columns(void **state) {
    (void)state;
    static const char *const rows[][2] = {
        {"fwd fp16 d64 dv320", NULL},
        {"fwd bf16 d320 dv64", NULL},
        {"fwd bf16 d512 packed seqused_k paged(16) butterfly(64) dropout", NULL},
        {"fwd fp16 d576 dv512 softcap(30) causal", NULL},
        {"bwd bf16 d512 packed butterfly(64) dropout", NULL},
        {"bwd bf16 d576 dv512", "shared memory: "},
        {"fwd bf16 d320 gqa split", "split: the wgmma family has none"},
        {"fwd fp32 d320", "dtype fp32: the wgmma family has none"},
        {"fwd bf16 d320 paged", "paged, of any page size: the wgmma family has none"},
        {"fwd e4m3 d320", "block_m 128: clusters have no dtype e4m3"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        fk_plan_info *plans;
        size_t count, legal = 0, refused = 0;
        fk_problem p;
        assert_int_equal(fk_problem_parse(rows[i][0], &p), FK_OK);
        assert_int_equal(fk_plan_list(&p, "h200", NULL, &plans, &count), FK_OK);
        for (size_t j = 0; j < count; ++j) {
            if (strcmp(plans[j].family, "wgmma") != 0) continue;
            legal += plans[j].legal != 0;
            refused += rows[i][1] && !plans[j].legal && starts_with(plans[j].reason, rows[i][1]);
        }
        if (rows[i][1] ? legal || !refused : !legal) fail_msg("%s: %zu legal, %zu refused", rows[i][0], legal, refused);
        fk_free(plans);
    }
}

/* A cluster of two has the products of all columns once, family mma Q K^T twice. */
static void test_nothing_is_multiplied_twice(void **state) {
    (void)state;
    const fk_plan_info narrow = best("fwd fp16 d256", "h200"), wide = best("fwd fp16 d512", "h200");
    assert_string_equal(wide.family, "wgmma");
    assert_true(wide.tensor_us > 0.99 * narrow.tensor_us &&
                wide.tensor_us < 1.01 * narrow.tensor_us); /* of half the heads */
    assert_int_equal(wide.block_m, 128);
}

/* Two halves of V are two times the CTAs, each with all of Q K^T. */
static void test_halves_of_values_are_modelled(void **state) {
    (void)state;
    const fk_plan_info narrow = best("fwd fp16 d256", "a100"), wide = best("fwd fp16 d256 dv512", "a100");
    assert_true(wide.tensor_us > 1.99 * narrow.tensor_us && wide.tensor_us < 2.01 * narrow.tensor_us);
    assert_true(wide.hbm_bytes > narrow.hbm_bytes);
}

/* Values that are the first columns of keys are no more than these, of 16 or 32 bits, and forward. */
static void test_latent(void **state) {
    (void)state;
    static const char *const refused[][2] = {
        {"bwd bf16 d64 latent", "latent is 1: must be 0 for bwd"},
        {"fwd bf16 d64 latent kv_e4m3", "latent is 1: must be 0 for keys and values of e4m3"},
        {"fwd e4m3 d64 latent", "latent is 1: must be 0 for keys and values of e4m3"},
        {"fwd bf16 d64 dv72 latent", "head_dim_v is 72: must be at most head_dim, 64, with latent"},
        {"fwd bf16 d64 latent latent", "latent is given twice"},
    };
    fk_problem p;
    char text[FK_MAX_SPELLING];
    assert_int_equal(fk_problem_parse("fwd gqa latent dv512 d576 bf16", &p), FK_OK);
    assert_int_equal(fk_problem_spell(&p, text, sizeof text), FK_OK);
    assert_string_equal(text, "fwd bf16 d576 dv512 latent gqa");
    for (size_t i = 0; i < sizeof refused / sizeof *refused; ++i) {
        assert_int_equal(fk_problem_parse(refused[i][0], &p), FK_BAD_PROBLEM);
        if (!strstr(fk_last_error(), refused[i][1])) fail_msg("%s: %s", refused[i][0], fk_last_error());
    }
    const fk_plan_info plan = best("fwd bf16 d576 dv512 latent", "h200"), both = best("fwd bf16 d576 dv512", "h200");
    assert_true(plan.stages == 3 && plan.block_n == 64 && both.block_n == 48 && plan.hbm_bytes < both.hbm_bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_there_is),
        cmocka_unit_test(test_every_gpu_has_plans),
        cmocka_unit_test(test_backward_plans),
        cmocka_unit_test(test_halves_of_all_columns),
        cmocka_unit_test(test_nothing_is_multiplied_twice),
        cmocka_unit_test(test_halves_of_values_are_modelled),
        cmocka_unit_test(test_latent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

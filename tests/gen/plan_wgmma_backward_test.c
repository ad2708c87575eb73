/* The planner's wgmma family in the backward pass: what is chosen, how it is laid out, and what is rejected. */
#include "plan_wgmma.h"

static void test_what_is_chosen_backward(void **state) {
    (void)state;
    static const struct {
        const char *spelling;
        int block_m, block_n, q_stages, k_stages, turns, panel_bytes;
    } cases[] = {
        /* K, V; two stages of Q and dO; two of dS; two of dQ in float32, which other warps add, and two barriers of
           each, also of dS where the warpgroups take turns */
        {"bwd bf16 d64", 128, 128, 2, 2, 1, 2 * 16384 + 4 * 16384 + 2 * 32768 + 2 * 32768 + 64},
        {"bwd bf16 d64 causal", 128, 128, 2, 2, 1, 2 * 16384 + 4 * 16384 + 2 * 32768 + 2 * 32768 + 64},
        {"bwd bf16 d64 causal gqa dropout", 128, 128, 2, 2, 1, 2 * 16384 + 4 * 16384 + 2 * 32768 + 2 * 32768 + 64},
        /* not where walks are short, or of unlike length and add in order */
        {"bwd fp16 d64 causal packed", 128, 128, 2, 2, 0, 2 * 16384 + 4 * 16384 + 2 * 32768 + 2 * 32768 + 32},
        {"bwd bf16 d128", 64, 128, 2, 2, 0, 2 * 32768 + 4 * 16384 + 2 * 16384 + 2 * 32768 + 32},
        {"bwd bf16 d128 causal dropout", 64, 128, 2, 2, 0, 2 * 32768 + 4 * 16384 + 2 * 16384 + 2 * 32768 + 32},
        {"bwd bf16 d72 dv64", 64, 128, 2, 2, 0, 32768 + 16384 + 3 * (16384 + 8192) + 2 * 16384 + 2 * 32768 + 32},
        {"bwd fp16 d64 causal gqa packed", 128, 128, 2, 2, 0, 2 * 16384 + 4 * 16384 + 2 * 32768 + 2 * 32768 + 32},
        {"bwd bf16 d128 causal gqa", 64, 128, 2, 2, 0, 2 * 32768 + 4 * 16384 + 2 * 16384 + 2 * 32768 + 32},
        {"bwd bf16 d64 butterfly(128)", 128, 128, 2, 2, 0, 2 * 16384 + 4 * 16384 + 2 * 32768 + 2 * 32768 + 32},
        {"bwd bf16 d128 butterfly(128)", 64, 128, 2, 2, 0, 2 * 32768 + 4 * 16384 + 2 * 16384 + 2 * 32768 + 32},
        /* whose tiles of 64 queries have room for a third stage */
        {"bwd bf16 d64 document", 64, 128, 2, 2, 0, 2 * 16384 + 3 * 16384 + 2 * 16384 + 2 * 16384 + 32},
        {"bwd bf16 d128 document", 64, 128, 2, 2, 0, 2 * 32768 + 4 * 16384 + 2 * 16384 + 2 * 32768 + 32},
        /* a cluster's, of which each CTA has 64 keys for both warpgroups, half of the other's K, one buffer of dO,
         * beside dS as much for P, and the other's dS; and eleven more barriers, and a slot. dQ has no room */
        {"bwd bf16 d256", 64, 128, 0, 2, 0, 2 * 32768 + 16384 + 3 * 32768 + 4 * 8192 + 2 * 8192 + 88},
        {"bwd fp16 d192 causal", 64, 128, 0, 2, 0, 2 * 32768 + 16384 + 3 * 32768 + 4 * 8192 + 2 * 8192 + 88},
        /* no cluster: two buffers of dO */
        {"bwd fp16 d128 dv256", 64, 64, 0, 2, 0, 16384 + 32768 + 2 * (16384 + 32768) + 4 * 8192},
        /* without a buffer of dQ, three barriers of each turn */
        {"bwd bf16 d64 deterministic", 128, 128, 2, 2, 1, 2 * 16384 + 4 * 16384 + 2 * 32768 + 2 * 32768 + 64},
        {"bwd bf16 d64 causal deterministic", 128, 128, 2, 2, 0, 2 * 16384 + 4 * 16384 + 2 * 32768 + 2 * 32768 + 32},
        {"bwd fp16 d128 causal deterministic", 64, 128, 2, 2, 0, 2 * 32768 + 4 * 16384 + 2 * 16384 + 2 * 32768 + 32},
        {"bwd bf16 d256 deterministic", 64, 128, 0, 2, 0,
         2 * 32768 + 16384 + 3 * 32768 + 4 * 8192 + 2 * 8192 + 88 + 48},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        fk_plan_info *plans;
        enumerate(cases[i].spelling, i % 2 ? "h200" : "h100", NULL, &plans);
        print_message("%s: %s %d x %d\n", cases[i].spelling, plans->family, plans->block_m, plans->block_n);
        assert_true(is_wgmma(plans));
        assert_int_equal(plans->block_m, cases[i].block_m);
        assert_int_equal(plans->block_n, cases[i].block_n);
        assert_int_equal(plans->warps, 12);
        assert_int_equal(plans->ctas_per_sm, 1);
        assert_int_equal(plans->k_stages, cases[i].k_stages);
        assert_int_equal(plans->turns, cases[i].turns);
        assert_int_equal(plans->q_stages, cases[i].q_stages);
        assert_int_equal(plans->overlap, 1);
        assert_int_equal(plans->dq_kernel, 0);
        const int rest = plans->stages * (8 * plans->block_m + 3 * 8) + 5 * 8 + 8; /* rows; barriers and slots */
        assert_int_equal(plans->smem_bytes, cases[i].panel_bytes + rest);
        free(plans);
    }
}

static void test_backward_rejections_name_the_limit(void **state) {
    (void)state;
#define BACK(m, n, warps, stages, k_stages, rest)                                                                      \
    ROW_OF(m, n, warps, stages, "q_in_regs = false, turns = false, k_stages = " #k_stages ", " rest)
#define ADDS "q_stages = 0, overlap = 1"
    static const char text[] =
        "return { inherits = 'sm80', name = 'sm_90', wgmma_flops = 4096, backward_tiles = {},\n"
        "wgmma_backward_tiles = {\n" BACK(64, 128, 12, 2, 2, ADDS) BACK(64, 128, 16, 2, 2, ADDS)
            BACK(64, 192, 12, 2, 2, ADDS) BACK(192, 128, 12, 2, 2, ADDS) BACK(64, 64, 12, 2, 2, ADDS)
                BACK(64, 128, 12, 3, 1, ADDS) BACK(64, 128, 12, 1, 2, ADDS) BACK(128, 128, 12, 8, 2, ADDS)
                    BACK(128, 128, 12, 2, 2, "q_stages = 0, overlap = 2")
                        BACK(64, 128, 12, 4, 3, "q_stages = 2, overlap = 1")
                            ROW(64, 128, 8,
                                "q_in_regs = true, k_stages = 2, turns = false, "
                                "q_stages = 0, overlap = 2") "} }\n";
    static const struct {
        int block_m, block_n, warps, stages;
        const char *reason;
    } cases[] = {
        {64, 128, 16, 2, "warps 16: must be 12, of 2 warpgroups that compute and one that loads"},
        {64, 192, 12, 2, "block_n 192: must be 64, or 64 keys for each of 2 warpgroups that compute"},
        {192, 128, 12, 2, "block_m 192: must be 64, or with 128 keys 128"},
        {64, 64, 12, 2, "block_n 64: must be 128 where head_dim and head_dim_v are at most 128"},
        {64, 128, 12, 3, "k_stages 1: must be 2, or with 128 keys and dq added in any order 3"},
        {64, 128, 12, 1, "stages 1: must be from 2 to 8"},
        {128, 128, 12, 8, "shared memory: "},
        {64, 128, 8, 2, "warps 8: must be 12"},
        {64, 128, 12, 4, "k_stages 3: must be 2, or with 128 keys and dq added in any order 3"},
    };
    const temp_dir dir = temp_dir_create();
    temp_dir_write(&dir, "arch/sm90.lua", text);
    fk_plan_options options = FK_PLAN_OPTIONS_INIT;
    options.template_dir = dir.path;
    fk_plan_info *plans;
    const size_t count = enumerate("bwd bf16 d64", "h200", &options, &plans);
    assert_int_equal(count, 2 + sizeof cases / sizeof cases[0]);
    assert_true(plans[1].legal && !plans[2].legal);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        const fk_plan_info *plan = NULL;
        for (size_t j = 2; j < count && !plan; ++j) {
            if (plans[j].block_m == cases[i].block_m && plans[j].block_n == cases[i].block_n &&
                plans[j].warps == cases[i].warps && plans[j].stages == cases[i].stages)
                plan = &plans[j];
        }
        assert_non_null(plan);
        assert_message(plan->reason, cases[i].reason);
    }
    free(plans);
    /* a single buffer would be filled again before its turn */
    const size_t ordered = enumerate("bwd bf16 d64 deterministic", "h200", NULL, &plans);
    size_t single = 0;
    for (size_t j = 0; j < ordered; ++j) {
        if (!is_wgmma(&plans[j]) || plans[j].q_stages != 1 || plans[j].k_stages != 2) continue;
        assert_false(plans[j].legal);
        assert_message(plans[j].reason, "q_stages 1: must be 0, or 2 buffers of dQ, which waits for its turn");
        ++single;
    }
    assert_true(single > 0);
    free(plans);
    /* dQ's columns are shared between two warpgroups in whole panels, and dK and dV pass through dS */
    static const struct {
        const char *spelling, *reason;
        bool cluster; /* whether one row of 128 keys is legal */
    } wide[] = {
        {"bwd bf16 d136 dv32", "block_n 128: with head_dim above 128 a cluster's, which has block_m 64, q_stages 0",
         true},
        {"bwd bf16 d256 deterministic", "block_n 128: with head_dim above 128 a cluster's, which has", true},
        {"bwd bf16 d128 dv136", "block_n 128: must be 64 where head_dim_v alone is more than 128", false},
    };
    for (size_t i = 0; i < sizeof wide / sizeof *wide; ++i) {
        const size_t all = enumerate(wide[i].spelling, "h200", NULL, &plans);
        int legal = 0, rejected = 0;
        for (size_t j = 0; j < all; ++j) {
            if (!is_wgmma(&plans[j]) || plans[j].block_n != 128) continue;
            legal += plans[j].legal;
            if (plans[j].legal || strstr(plans[j].reason, "k_stages 3:") || plans[j].head_rows)
                continue; /* first of what is wrong */
            assert_message(plans[j].reason, wide[i].reason);
            ++rejected;
        }
        assert_int_equal(legal, wide[i].cluster);
        assert_true(rejected > 0);
        free(plans);
    }
    temp_dir_remove(&dir);
}

/* Of all kinds of kernels that a backward pass has, but one for parts of the queries. */
static void test_all_kernels_at_once(void **state) {
    (void)state;
    fk_source source = source_of("bwd bf16 d64 sink bits dropout deterministic grad=sink", "h200");
    assert_int_equal(source.num_kernels, 9);
    for (int k = 0; k < source.num_kernels; ++k)
        assert_message(source.text, source.kernel[k].entry);
    fk_source_free(&source);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_kernels_at_once),
        cmocka_unit_test(test_what_is_chosen_backward),
        cmocka_unit_test(test_backward_rejections_name_the_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

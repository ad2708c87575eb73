/* The planner's wgmma family: when it serves, what it is laid out as, and what is rejected. */
#include "plan_wgmma.h"

static void test_what_is_chosen(void **state) {
    (void)state;
    static const struct {
        const char *spelling;
        int block_m, block_n, teams, k_stages, stages, q_in_regs, q_stages, turns, overlap, panel_bytes, row_bytes;
    } cases[] = {
        {"fwd bf16 d64", 256, 64, 1, 8, 8, 0, 2, 1, 2, 2 * 32768 + 16 * 8192, 0},
        {"fwd bf16 d64 causal", 256, 64, 1, 8, 8, 0, 2, 0, 2, 2 * 32768 + 16 * 8192, 0},
        {"fwd bf16 d64 packed document", 128, 64, 2, 4, 4, 0, 2, 1, 2, 2 * (2 * 16384 + 8 * 8192) + 1024,
         2 * 4 * (2 * 128 + 4 * 64)},
        /* first and last keys of queries, and words of an order */
        {"fwd bf16 d64 document", 128, 64, 2, 4, 4, 0, 2, 0, 2, 2 * (2 * 16384 + 8 * 8192) + 1024,
         2 * 4 * 2 * 2 * 128 + 1032},
        /* what products add along the keys takes room alone: 16 bytes a key, 128 a slope, 2048 the last */
        {"fwd bf16 d64 alibi", 256, 64, 1, 8, 8, 0, 2, 1, 2, 2 * 32768 + 16 * 8192, 16 * 64 + 4 * 128 + 2048},
        {"fwd bf16 d128 alibi", 128, 128, 1, 3, 2, 1, 2, 0, 2, 2 * 32768 + 5 * 32768, 0},
        {"fwd bf16 d128 alibi causal", 128, 128, 1, 3, 2, 1, 2, 1, 2, 2 * 32768 + 5 * 32768, 0},
        {"fwd bf16 d128 score=\"s + 0.01 * q * k\"", 128, 128, 1, 3, 2, 1, 2, 0, 2, 2 * 32768 + 5 * 32768, 0},
        {"fwd bf16 d64 block_bits(128)", 128, 64, 2, 4, 4, 0, 2, 1, 2, 2 * (2 * 16384 + 8 * 8192) + 1024, 1032},
        {"fwd bf16 d64 block_bits(64)", 64, 64, 4, 2, 2, 0, 2, 0, 1, 4 * (2 * 8192 + 4 * 8192) + 3 * 1024, 1032},
        /* one array of weights, and turns where tiles are looked for */
        {"fwd fp16 d128", 128, 128, 1, 3, 2, 1, 2, 0, 1, 2 * 32768 + 5 * 32768, 0},
        {"fwd bf16 d128 causal gqa dropout", 128, 128, 1, 3, 2, 1, 2, 1, 1, 2 * 32768 + 5 * 32768, 0},
        {"fwd bf16 d128 block_bits(128)", 128, 128, 1, 3, 2, 1, 2, 1, 1, 2 * 32768 + 5 * 32768, 1032},
        {"fwd bf16 d80 butterfly(128)", 128, 128, 1, 3, 2, 1, 2, 1, 1, 2 * 32768 + 5 * 32768, 1032},
        /* one buffer of Q: each warp has panels of 2,048 bytes for O, a multiple of 1,024 from the beginning */
        {"fwd bf16 d192 block_bits(128)", 128, 64, 1, 2, 2, 0, 1, 1, 1, 49152 + 4 * 24576 + 3 * 16384, 1032},
        /* wider tiles for three warpgroups, where a score takes many instructions */
        {"fwd bf16 d96 dropout", 192, 112, 1, 2, 2, 0, 2, 1, 1, 2 * 49152 + 4 * 28672, 0},
        {"fwd bf16 d112 causal dropout", 192, 96, 1, 2, 2, 0, 2, 1, 1, 2 * 49152 + 4 * 24576, 0},
        {"fwd bf16 d80 causal softcap(30)", 192, 96, 1, 2, 2, 0, 2, 1, 1, 2 * 49152 + 4 * 24576, 0},
        /* rows that are no whole sectors are copied slowly, which more rows of queries share */
        {"fwd bf16 d104", 192, 64, 1, 4, 4, 0, 2, 0, 2, 2 * 49152 + 8 * 16384, 0},
        {"fwd bf16 d112 causal", 192, 64, 1, 4, 4, 0, 2, 0, 2, 2 * 49152 + 8 * 16384, 0},
        {"fwd bf16 d120 causal", 192, 64, 1, 4, 4, 0, 2, 0, 2, 2 * 49152 + 8 * 16384, 0},
        {"fwd bf16 d64 packed", 128, 64, 2, 4, 4, 0, 2, 0, 2, 2 * (2 * 16384 + 8 * 8192) + 1024, 0},
        {"fwd bf16 d128 packed causal", 192, 64, 1, 4, 4, 0, 2, 0, 2, 2 * 49152 + 8 * 16384, 0},
        {"fwd bf16 d128 packed seqused_k", 192, 64, 1, 4, 4, 0, 2, 0, 2, 2 * 49152 + 8 * 16384, 0},
        {"fwd bf16 d128 softcap(30)", 192, 64, 1, 4, 4, 0, 2, 0, 2, 2 * 49152 + 8 * 16384, 0},
        {"fwd bf16 d128 causal softcap(50)", 192, 64, 1, 4, 4, 0, 2, 0, 2, 2 * 49152 + 8 * 16384, 0},
        {"fwd bf16 d128 packed document", 128, 128, 1, 2, 2, 0, 2, 1, 1, 2 * 32768 + 4 * 32768,
         4 * (2 * 128 + 2 * 128)},
        {"fwd bf16 d128 document", 192, 64, 1, 3, 4, 0, 2, 0, 2, 2 * 49152 + 7 * 16384, 4 * 2 * 2 * 192 + 1032},
        {"fwd bf16 d128 document causal", 192, 64, 1, 3, 4, 0, 2, 0, 2, 2 * 49152 + 7 * 16384, 4 * 2 * 2 * 192 + 1032},
        /* panels of 64 columns, of which 72 take two; Q's buffer is as wide as the output's */
        {"fwd bf16 d72 dv64", 192, 128, 1, 2, 2, 0, 2, 1, 1, 2 * 49152 + 2 * 32768 + 2 * 16384, 0},
        {"fwd bf16 d256", 128, 64, 1, 2, 2, 0, 1, 0, 1, 65536 + 4 * 32768 + 1024 + 2 * 16384, 0},
        {"fwd bf16 d256 causal", 128, 64, 1, 2, 2, 0, 1, 0, 1, 65536 + 4 * 32768 + 1024 + 2 * 16384, 0},
    };
    static const char *const gpus[] = {"h200", "h100"};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        fk_plan_info *plans;
        enumerate(cases[i].spelling, gpus[i % 2], NULL, &plans);
        print_message("%s: %s %d x %d\n", cases[i].spelling, plans->family, plans->block_m, plans->block_n);
        assert_true(is_wgmma(plans));
        assert_int_equal(plans->sm, 90);
        assert_int_equal(plans->block_m, cases[i].block_m);
        assert_int_equal(plans->block_n, cases[i].block_n);
        assert_int_equal(plans->warps, cases[i].teams * cases[i].block_m / 16 + 4);
        assert_int_equal(plans->stages, cases[i].stages);
        assert_int_equal(plans->k_stages, cases[i].k_stages);
        assert_int_equal(plans->ctas_per_sm, 1);
        assert_int_equal(plans->q_in_regs, cases[i].q_in_regs);
        assert_int_equal(plans->q_stages, cases[i].q_stages);
        assert_int_equal(plans->turns, cases[i].turns);
        assert_int_equal(plans->overlap, cases[i].overlap);
        assert_true(plans->l2_us > 0);
        assert_int_equal((plans->smem_bytes - cases[i].row_bytes) / 1024 * 1024,
                         cases[i].panel_bytes); /* and barriers */
        const int barriers = 2 * (plans->q_stages + plans->k_stages + plans->stages) + 2;
        const int behind = plans->q_stages == 1 ? 0 : 8 * barriers; /* or before O's panels */
        assert_true(plans->smem_bytes >= cases[i].panel_bytes + behind);
        free(plans);
    }
}

/* Where the family has nothing to offer, the mma rows of the same arch serve, and each wgmma row says why it does not.
 */
static void test_fallbacks_say_why(void **state) {
    (void)state;
    static const struct {
        const char *spelling, *gpu, *reason;
    } cases[] = {
        {"fwd bf16 d128 split", "h200", "split: the wgmma family has none"},
        {"fwd bf16 d128 paged", "h200", "paged, of any page size: the wgmma family has none"},
        {"fwd fp32 d64", "h200", "dtype fp32: the wgmma family has none"},
        {"bwd fp32 d64 causal", "h200", "dtype fp32: the wgmma family has none"},
        {"fwd bf16 d128", "b200", "sm_100: has no wgmma, which is sm_90's alone"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        fk_plan_info *plans;
        const size_t count = enumerate(cases[i].spelling, cases[i].gpu, NULL, &plans);
        size_t rows = 0;
        assert_string_equal(plans[0].family, "mma");
        for (size_t j = 0; j < count; ++j) {
            if (!is_wgmma(&plans[j])) continue;
            assert_int_equal(plans[j].legal, 0);
            assert_string_equal(plans[j].reason, cases[i].reason);
            ++rows;
        }
        assert_true(rows >= 3);
        free(plans);
    }
    fk_plan_info *plans;
    const size_t count = enumerate("fwd fp16 d64", "a100", NULL, &plans);
    for (size_t j = 0; j < count; ++j)
        assert_string_equal(plans[j].family, "mma");
    free(plans);
}

/* `fast` of bf16: a lane less for each score, where wgmma serves; elsewhere the word changes nothing. */
static void test_fast(void **state) {
    (void)state;
    static const struct {
        const char *ordinary, *fast, *gpu;
        bool serves;
    } cases[] = {
        {"fwd bf16 d64", "fwd bf16 d64 fast", "h200", true},
        {"fwd bf16 d64 paged(16) sink causal", "fwd fast bf16 d64 sink causal paged(16)", "h200", true},
        {"fwd bf16 d64 split", "fwd bf16 d64 split fast", "h200", false},
        {"fwd bf16 d64 paged", "fwd bf16 d64 paged fast", "h200", false},
        {"fwd bf16 d64 causal", "fwd bf16 d64 fast causal", "a100", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        fk_plan_info *plans[2];
        enumerate(cases[i].ordinary, cases[i].gpu, NULL, &plans[0]);
        enumerate(cases[i].fast, cases[i].gpu, NULL, &plans[1]);
        print_message("%s: %g us, %g\n", cases[i].fast, plans[1]->model_us, plans[0]->model_us);
        assert_true(is_wgmma(plans[1]) == cases[i].serves);
        assert_int_equal(plans[1]->block_m, plans[0]->block_m);
        assert_int_equal(plans[1]->model_us < plans[0]->model_us, cases[i].serves);
        free(plans[0]);
        free(plans[1]);
    }
    static const struct {
        const char *spelling, *message;
    } bad[] = {
        {"fwd fp16 d64 fast", "fast is 1: must be 0 for dtype fp16: bf16 and e4m3 have it"},
        {"fwd fp32 d64 fast", "fast is 1: must be 0 for dtype fp32"},
        {"bwd bf16 d64 fast", "fast is 1: must be 0 for bwd"},
        {"fwd bf16 d64 fast sink softcap(20)", "fast is 1: must be 0 for dtype bf16 with score softcap"},
        {"fwd bf16 d64 fast score=\"s * 2\"", "fast is 1: must be 0 for dtype bf16 with score s * 2"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
        fk_problem p;
        fk_error err = {.text = ""};
        assert_int_equal(fk_problem_read(bad[i].spelling, &p, &err), FK_BAD_PROBLEM);
        assert_message(err.text, bad[i].message);
    }
}

/* e4m3 has tiles of its own in family wgmma, of bytes, at twice the rate; family mma has it everywhere, as halves. */
static void test_e4m3(void **state) {
    (void)state;
    static const struct {
        const char *spelling;
        int block_m, block_n, q_stages, smem; /* smem: without barriers */
    } cases[] = {
        /* rows of q and k fill a panel, as o's do; of two teams each has its own */
        {"fwd e4m3 d64", 128, 64, 2, 2 * (2 * 128 * 128 + 4 * (64 * 128 + 64 * 128)) + 1024},
        {"fwd e4m3 d64 dv128", 192, 96, 2, 2 * 192 * 256 + 4 * (96 * 128 + 128 * 128)},
        /* o has twice q's bytes; columns of v have rows of 128 */
        {"fwd e4m3 d128 causal", 192, 96, 2, 2 * 192 * 256 + 4 * (96 * 128 + 128 * 128)},
        {"fwd e4m3 d256", 128, 128, 1, 128 * 256 + 2 * 128 * 512 + 1024 + 4 * 16384},
        {"fwd e4m3 d256 keep=\"(q - k) % 4 == 0\"", 64, 128, 1,
         64 * 256 + 2 * 128 * 512 + 1024 + 4 * 8192}, /* the walk takes registers */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        fk_plan_info *plans;
        const size_t count = enumerate(cases[i].spelling, "h200", NULL, &plans);
        assert_true(is_wgmma(plans) && plans->block_n == cases[i].block_n && plans->mma_flops == 8192);
        assert_int_equal(plans->block_m, cases[i].block_m);
        assert_int_equal(plans->q_stages, cases[i].q_stages);
        assert_int_equal(plans->smem_bytes / 1024 * 1024, cases[i].smem);
        for (size_t j = 0; j < count && plans[j].legal; ++j)
            assert_true(is_wgmma(&plans[j]) || plans[j].model_us > plans->model_us);
        free(plans);
    }
    static const struct {
        const char *spelling, *gpu;
        int smem; /* of halves */
    } widened[] = {
        {"fwd e4m3 d64", "t4", 0},
        {"fwd e4m3 d128 causal", "a100", 0},
        {"fwd e4m3 d64", "l4", 0},
        {"fwd e4m3 d64", "b200", 0},
        {"fwd e4m3 d128 split", "h200", 2 * 32 * 128 * 2},
        {"fwd e4m3 d64 paged", "h200", 0},
        {"fwd bf16 kv_e4m3 d128 split", "h200", 2 * 32 * 128 * 2},
        {"fwd fp16 kv_e4m3 d72 dv40", "t4", 0},
        {"fwd bf16 kv_e4m3 d128 causal", "a100", 0},
    };
    for (size_t i = 0; i < sizeof widened / sizeof widened[0]; ++i) {
        fk_plan_info *plans;
        enumerate(widened[i].spelling, widened[i].gpu, NULL, &plans);
        assert_string_equal(plans->family, "mma");
        if (widened[i].smem) assert_int_equal(plans->smem_bytes, widened[i].smem);
        free(plans);
    }
    /* 16 bits in the workspace, while there is room for them, have the plans of 16 bits */
    fk_plan_options options = FK_PLAN_OPTIONS_INIT;
    fk_plan_info *plans, *wide;
    enumerate("fwd bf16 kv_e4m3 d128 causal paged", "h200", NULL, &plans);
    enumerate("fwd bf16 d128 causal", "h200", NULL, &wide);
    assert_true(is_wgmma(plans) && plans->block_m == wide->block_m && plans->block_n == wide->block_n);
    assert_true(plans->model_us > wide->model_us && plans->hbm_bytes > wide->hbm_bytes);
    free(plans), free(wide);
    options.shape = (fk_shape){8, 8, 8, 512, 1 << 17};
    enumerate("fwd bf16 kv_e4m3 d128 causal", "h200", &options, &plans);
    assert_true(is_wgmma(plans));
    free(plans);
    options.shape.batch = 9;
    const size_t count = enumerate("fwd bf16 kv_e4m3 d128 causal", "h200", &options, &plans);
    assert_false(is_wgmma(plans));
    bool said = false;
    for (size_t i = 0; i < count; ++i)
        said = said || strstr(plans[i].reason, "e4m3: what a kernel before makes of the cache takes 4608 MB");
    assert_true(said);
    free(plans);
    options.shape = (fk_shape){65, 8, 8, 512, 1 << 16}; /* 128 bytes of transposed values a key, or more */
    enumerate("fwd e4m3 d128 paged(16)", "h200", &options, &plans);
    assert_false(is_wgmma(plans));
    free(plans);
    enumerate("fwd e4m3 d128", "h200", &options, &plans);
    assert_true(is_wgmma(plans));
    free(plans);
}

/* A plan is all that is needed to get the same plan again. */
static void test_plans_and_tiles_go_both_ways(void **state) {
    (void)state;
    static const char *const spellings[] = {"fwd bf16 d64", "fwd fp16 d192 dv128 causal", "fwd e4m3 d128",
                                            "bwd bf16 d128"};
    const fk_device_info h200 = device_of("h200");
    for (size_t i = 0; i < sizeof spellings / sizeof spellings[0]; ++i) {
        static const fk_shape nominal = {0, 0, 0, 0, 0};
        const fk_problem p = problem_of(spellings[i]);
        fk_planner planner;
        fk_error err = {.text = ""};
        assert_int_equal(fk_planner_open(&p, &h200, &nominal, NULL, &planner, &err), FK_OK);
        for (int j = 0; j < planner.arch.num_tiles; ++j) {
            const fk_tile *tile = &planner.arch.tile[j];
            fk_plan_info plan;
            fk_smem_layout layout;
            assert_int_equal(fk_plan_judge(&planner, tile, &plan, &layout, &err), FK_OK);
            const fk_tile again = fk_plan_tile(&p, &plan);
            const size_t flags = offsetof(fk_tile, walks_q); /* all but what pads it: */
            assert_memory_equal(&again, tile, offsetof(fk_tile, parts) + sizeof tile->parts);
            assert_int_equal(again.head_rows, tile->head_rows);
            assert_memory_equal((char *)&again + flags, (const char *)tile + flags,
                                offsetof(fk_tile, wgmma) + sizeof tile->wgmma - flags);
        }
        fk_planner_close(&planner);
    }
}

static void test_rejections_name_the_limit(void **state) {
    (void)state;
    static const char text[] =
        "return { inherits = 'sm80', name = 'sm_90', wgmma_flops = 4096, tiles = {}, wgmma_tiles = {\n"
        /* those that are legal */
        ROW(192, 112, 16, REGS_2) ROW(192, 128, 16, SMEM_2)
            ROW_OF(64, 16, 8, 8, "q_in_regs = false, k_stages = 8, " REST)
        /* as in cases[] */
        ROW(192, 128, 16, REGS_2) ROW(128, 256, 12, SMEM_2) ROW(64, 256, 8, SMEM_2) ROW(128, 272, 12, SMEM_2)
            ROW(128, 120, 12, SMEM_2) ROW(192, 64, 12, SMEM_2) ROW(320, 64, 24, SMEM_2) ROW(64, 64, 6, SMEM_2)
                ROW(128, 112, 20, SMEM_2)
                    ROW(128, 16, 20, "q_in_regs = false, k_stages = 2, q_stages = 1, turns = false, overlap = 1")
                        ROW_OF(128, 32, 12, 1, SMEM_2) ROW_OF(128, 48, 12, 9, SMEM_2)
                            ROW(128, 64, 12, "q_in_regs = false, k_stages = 1, " REST)
                                ROW(128, 80, 12, "q_in_regs = false, k_stages = 9, " REST)
                                    ROW_OF(128, 128, 12, 8, "q_in_regs = false, k_stages = 8, " REST) "} }\n";
    static const struct {
        int block_m, block_n;
        const char *reason;
    } cases[] = {
        {192, 128, "registers: about 172 > 160 of a thread of 3 warpgroups that compute"},
        {128, 256, "registers: about 252 > 224 of a thread of 2 warpgroups that compute"},
        {64, 256, "registers: about 252 > 248 of a thread of 1 warpgroup"},
        {128, 272, "block_n 272: must be a multiple of 16, at most 256"},
        {128, 120, "block_n 120: must be a multiple of 16, at most 256"},
        {192, 64, "block_m 192: must be 64 rows for each of 2 warpgroups that compute"},
        {320, 64, "warps 24: must be 8, 12, 16 or 20, of 1 to 4 warpgroups that compute and one that loads"},
        {64, 64, "warps 6: must be 8, 12, 16 or 20"},
        {128, 112, "registers: about 144 > 112 of a thread of 2 warpgroups that compute"},
        {128, 16, "q_stages 1: must be 2 with two teams"},
        {128, 32, "k_stages 2, stages 1: must be from 2 to 8"},
        {128, 48, "k_stages 2, stages 9: must be from 2 to 8"},
        {128, 64, "k_stages 1, stages 2: must be from 2 to 8"},
        {128, 80, "k_stages 9, stages 2: must be from 2 to 8"},
        {128, 128, "shared memory: 295456 bytes > 232448 of a block"}, /* each ring counts its own stages */
    };
    enum { NUM_LEGAL = 3, NUM_CASES = sizeof cases / sizeof cases[0] };
    const temp_dir dir = temp_dir_create();
    temp_dir_write(&dir, "arch/sm90.lua", text);
    fk_plan_options options = FK_PLAN_OPTIONS_INIT;
    options.template_dir = dir.path;
    fk_plan_info *plans;
    const size_t count = enumerate("fwd bf16 d64", "h200", &options, &plans);
    assert_int_equal(count, NUM_LEGAL + NUM_CASES);
    assert_true(plans[NUM_LEGAL - 1].legal && !plans[NUM_LEGAL].legal);
    for (size_t i = 0; i < NUM_CASES; ++i) {
        const fk_plan_info *plan = NULL;
        for (size_t j = NUM_LEGAL; j < count && !plan; ++j) {
            if (plans[j].block_m == cases[i].block_m && plans[j].block_n == cases[i].block_n) plan = &plans[j];
        }
        assert_non_null(plan);
        assert_message(plan->reason, cases[i].reason);
    }
    free(plans);
    temp_dir_remove(&dir);
}

/* Three warpgroups serve every mask, since none that computes looks for tiles. Where a mask is not all bounds, shared
 * memory has room besides for who looks: two barriers, 64 words of tiles and 4 around them, one for each stage of K. */
static void test_masks_that_are_no_bounds(void **state) {
    (void)state;
    static const struct {
        const char *spelling;
        bool all_bounds;
        int query_rows, key_rows; /* of 4 bytes beside each buffer of Q and of K */
        bool line;                /* along the keys */
    } cases[] = {
        {"fwd bf16 d64 window(1024,0)", true, 0, 0, false},
        {"fwd bf16 d64 causal alibi", true, 0, 0, true},
        {"fwd bf16 d64 keep=\"a[b][q] == c[b][k]\" array=a:int[b][q] array=c:int[b][k]", false, 1, 1, false},
        {"fwd fp16 d64 causal keep=\"(q - k) % 4 == 0\"", false, 0, 0, false},
        {"fwd fp16 d64 keep=\"id[k] != seg[k] && id[k] < row[q][k / 2]\" array=id:int[k] array=seg:int[k] "
         "array=row:int[q][]",
         false, 0, 2, false},
    };
    fk_plan_info *unmasked;
    const size_t num_unmasked = enumerate("fwd bf16 d64", "h200", NULL, &unmasked);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        fk_plan_info *plans;
        const size_t count = enumerate(cases[i].spelling, "h200", NULL, &plans);
        size_t rows = 0;
        for (size_t j = 0; j < count; ++j) {
            if (plans[j].block_m != 192) continue;
            if (plans[j].block_n == 64 && plans[j].k_stages == 3) { /* for runs of keys */
                assert_message(plans[j].reason, "k_stages 3: must be 4 with 192 x 64");
                continue;
            }
            assert_int_equal(plans[j].legal, 1);
            for (size_t k = 0; k < num_unmasked; ++k) {
                if (unmasked[k].block_m != 192 || unmasked[k].block_n != plans[j].block_n ||
                    unmasked[k].k_stages != plans[j].k_stages)
                    continue;
                /* instead of ranges of tiles: two of them for each warpgroup, 8 words each */
                const int scan_words = cases[i].all_bounds ? 0 : 2 * 2 + 64 + 4 + plans[j].k_stages - 2 * 3 * 8;
                const int rows_words = cases[i].query_rows * plans[j].q_stages * 192 +
                                       cases[i].key_rows * plans[j].k_stages * plans[j].block_n;
                const int line_words = cases[i].line ? 4 * plans[j].block_n + 3 * 32 + 512 : 0;
                assert_int_equal(plans[j].smem_bytes - unmasked[k].smem_bytes,
                                 4 * (scan_words + rows_words + line_words));
                ++rows;
            }
        }
        assert_true(rows > 1);
        free(plans);
    }
    free(unmasked);
}

static void test_rows_are_read_strictly(void **state) {
    (void)state;
#define HEAD "return { inherits = 'sm80', name = 'sm_90', wgmma_flops = 4096, wgmma_tiles = {\n"
    static const struct {
        const char *text, *message;
    } cases[] = {
        {HEAD ROW(128, 64, 12, "q_in_regs = false, q_stages = 3, k_stages = 2, turns = false, overlap = 1") "} }",
         "sm90.lua: wgmma_tiles[1]: field 'q_stages' is 3: must be an integer from 1 to 2"},
        {HEAD ROW(128, 64, 12, "q_in_regs = false, q_stages = 1, k_stages = 2, turns = false") "} }",
         "sm90.lua: wgmma_tiles[1]: field 'overlap' is missing"},
        {HEAD ROW(128, 64, 12, "q_in_regs = false, " REST) "} }",
         "sm90.lua: wgmma_tiles[1]: field 'k_stages' is missing: must be an integer from 1 to 16"},
        {HEAD ROW(128, 64, 12, "q_in_regs = false, k_stages = 17, " REST) "} }",
         "sm90.lua: wgmma_tiles[1]: field 'k_stages' is 17: must be an integer from 1 to 16"},
        {HEAD ROW(128, 64, 12, "q_in_regs = false, q_stages = 1, k_stages = 2, overlap = 1") "} }",
         "sm90.lua: wgmma_tiles[1]: field 'turns' is missing: must be true or false"},
        {HEAD ROW(128, 64, 12, "q_in_regs = false, q_stages = 1, k_stages = 2, turns = 1, overlap = 1") "} }",
         "sm90.lua: wgmma_tiles[1]: field 'turns' is 1: must be true or false"},
        {HEAD ROW(128, 64, 12, SMEM_2 ", dq_kernel = true") "} }",
         "sm90.lua: wgmma_tiles[1]: unknown field 'dq_kernel'"},
        {"return { inherits = 'sm80', wgmma_tiles = {" ROW(128, 64, 12, SMEM_2) "} }",
         "sm90.lua: field 'wgmma_flops' is 0: must be an integer from 1"},
        {"return { inherits = 'sm80', tiles = { " ROW(128, 64, 4, SMEM_2) "} }", "sm90.lua: tiles[1]: unknown field"},
        {"return { inherits = 'sm80', tiles = { " ROW(128, 64, 4, "q_in_regs = false, turns = false") "} }",
         "sm90.lua: tiles[1]: unknown field 'turns'"},
        {"return { inherits = 'sm80', tiles = { " ROW(128, 64, 4, "q_in_regs = false, k_stages = 2") "} }",
         "sm90.lua: tiles[1]: unknown field 'k_stages'"},
    };
    const fk_problem p = problem_of("fwd fp16 d64");
    const fk_device_info h200 = device_of("h200");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        const temp_dir dir = temp_dir_create();
        temp_dir_write(&dir, "arch/sm90.lua", cases[i].text);
        fk_plan_options options = FK_PLAN_OPTIONS_INIT;
        options.template_dir = dir.path;
        fk_plan_info plan;
        fk_error err = {.text = ""};
        assert_int_equal(fk_plan_best(&p, &h200, &options, &plan, &err), FK_TEMPLATE_ERROR);
        assert_message(err.text, cases[i].message);
        temp_dir_remove(&dir);
    }
}

static void test_source_is_launched_as_planned(void **state) {
    (void)state;
    fk_source source = source_of("fwd bf16 d64 causal dropout", "h200");
    const fk_plan_info plan = source.plan;
    assert_true(is_wgmma(&plan));
    assert_string_equal(source.kernel[0].entry, "fk_forward");
    assert_int_equal(source.kernel[0].grid, FK_GRID_PERSISTENT);
    assert_int_equal(source.kernel[0].threads, plan.warps * 32);
    assert_int_equal(source.kernel[0].smem_bytes, plan.smem_bytes);
    assert_int_equal(source.kernel[1].grid, FK_GRID_KEEP_MASK);
    assert_int_equal(source.kernel[1].threads, plan.block_m / 16 * 32); /* those that own a tile's rows */
    assert_int_equal(source.num_kernels, 2);
    const char *maps = strstr(source.text, "map_q"), *first = strstr(source.text, "const Element * q;");
    if (!first) first = strstr(source.text, "const Element *q;");
    assert_true(maps && first && maps < first);
    fk_source_free(&source);
}

/* A plan of the caller's is judged like those of the arch file. */
static void test_given_plans_are_judged(void **state) {
    (void)state;
    const fk_problem p = problem_of("fwd bf16 d128");
    const fk_device_info h200 = device_of("h200"), a100 = device_of("a100");
    fk_plan_info plan;
    fk_source source;
    fk_error err = {.text = ""};
    assert_int_equal(fk_plan_best(&p, &h200, NULL, &plan, &err), FK_OK);
    assert_int_equal(fk_source_create(&p, &a100, &plan, NULL, true, &source, &err), FK_UNSUPPORTED);
    assert_message(err.text, "plan: sm_80: has no wgmma");
    plan.overlap = 3;
    assert_int_equal(fk_source_create(&p, &h200, &plan, NULL, true, &source, &err), FK_UNSUPPORTED);
    assert_message(err.text, "plan: q_stages 2, overlap 3: must be 1 or 2");
    plan.overlap = 2;
    plan.ctas_per_sm = 2;
    assert_int_equal(fk_source_create(&p, &h200, &plan, NULL, true, &source, &err), FK_UNSUPPORTED);
    assert_message(err.text, "plan: ctas_per_sm 2: must be 1");
    plan.ctas_per_sm = 1;
    plan.stages = 1;
    assert_int_equal(fk_source_create(&p, &h200, &plan, NULL, true, &source, &err), FK_UNSUPPORTED);
    assert_message(err.text, "plan: k_stages 3, stages 1: must be from 2 to 8");
    plan.stages = 2;
    plan.k_stages = 0;
    assert_int_equal(fk_source_create(&p, &h200, &plan, NULL, true, &source, &err), FK_UNSUPPORTED);
    assert_message(err.text, "plan: k_stages 0, stages 2: must be from 2 to 8");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_chosen),
        cmocka_unit_test(test_fallbacks_say_why),
        cmocka_unit_test(test_fast),
        cmocka_unit_test(test_e4m3),
        cmocka_unit_test(test_plans_and_tiles_go_both_ways),
        cmocka_unit_test(test_rejections_name_the_limit),
        cmocka_unit_test(test_masks_that_are_no_bounds),
        cmocka_unit_test(test_rows_are_read_strictly),
        cmocka_unit_test(test_source_is_launched_as_planned),
        cmocka_unit_test(test_given_plans_are_judged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The planner: every candidate is judged, what cannot launch is never offered, and the model orders the rest. */
#include "gen/generate.h"
#include "test.h"

static fk_device_info device_of(const char *key) {
    fk_device_info device;
    fk_error err;
    assert_int_equal(fk_device_lookup(key, &device, &err), FK_OK);
    return device;
}

static fk_problem problem_of(const char *spelling) {
    fk_problem p;
    fk_error err = {.text = ""};
    if (fk_problem_read(spelling, &p, &err) != FK_OK) fail_msg("%s", err.text);
    return p;
}

static size_t enumerate(const char *spelling, const char *gpu, const fk_plan_options *options, fk_plan_info **plans) {
    const fk_problem p = problem_of(spelling);
    const fk_device_info device = device_of(gpu);
    fk_error err = {.text = ""};
    size_t count;
    if (fk_plan_enumerate(&p, &device, options, plans, &count, &err) != FK_OK) fail_msg("%s", err.text);
    return count;
}

/* What must hold of every list. */
static void check_list(const fk_plan_info *plans, size_t count, const fk_device_info *device, bool backward) {
    assert_int_equal(plans[0].legal, 1);
    for (size_t i = 0; i < count; ++i) {
        const fk_plan_info *plan = &plans[i];
        assert_int_equal(plan->chosen, i == 0);
        if (i > 0) assert_true(plans[i - 1].legal >= plan->legal); /* rejected ones last */
        for (size_t j = 0; j < i; ++j)
            assert_false(fk_plan_equal(&plans[j], plan));
        if (!plan->legal) {
            assert_true(plan->reason[0]);
            continue;
        }
        assert_string_equal(plan->reason, "");
        assert_true(plan->model_us >= plan->tensor_us && plan->model_us >= plan->exp_us &&
                    plan->model_us >= plan->issue_us && plan->model_us >= plan->smem_us &&
                    plan->model_us >= plan->hbm_us);
        assert_true(plan->tensor_us > 0 && plan->exp_us > 0 && plan->issue_us > 0 && plan->smem_us > 0);
        assert_true(plan->hbm_us > 0 && plan->hbm_bytes > 0 && plan->bound[0]);
        if (i > 0) assert_true(plans[i - 1].model_us <= plan->model_us);
        assert_true(plan->smem_bytes <= device->smem_per_block);
        assert_true(plan->ctas_per_sm * (plan->smem_bytes + device->smem_reserved) <= device->smem_per_sm);
        assert_true(plan->ctas_per_sm * plan->warps * 32 <= device->threads_per_sm);
        assert_true(plan->registers <= 255);
        const bool wgmma =
            strcmp(plan->family, "wgmma") == 0; /* its last four warps load, with 24 registers at least */
        const int owners = wgmma ? plan->warps - 4 : plan->warps, others = wgmma ? 4 * 32 * 24 : 0;
        assert_true(plan->ctas_per_sm * owners * 32 * plan->registers + others <= device->registers_per_sm);
        const int teams = wgmma && !backward && plan->block_m < 16 * owners ? 16 * owners / plan->block_m : 1;
        assert_int_equal(plan->block_m % (backward ? 16 : 16 * owners / teams), 0);
        assert_true(plan->mma_flops >= device->mma_flops);
        assert_true(!wgmma || (plan->q_stages >= (backward ? 0 : 1) && plan->k_stages >= 2 && plan->overlap >= 1));
        assert_true(wgmma || (!plan->q_stages && plan->k_stages <= 1 && !plan->turns && !plan->overlap));
        assert_int_equal(plan->block_n % 16, 0);
        const bool adds = backward && !plan->dq_kernel;
        assert_true(plan->model_us >= plan->l2_us);
        if (backward || !wgmma) assert_int_equal(plan->l2_us > 0, adds); /* else of rows that are no whole sectors */
    }
}

static void test_every_head_dim_has_a_plan_everywhere(void **state) {
    (void)state;
    for (size_t i = 0; i < fk_device_table_size(); ++i) {
        fk_device_info device;
        assert_int_equal(fk_device_table(i, &device), FK_OK);
        for (int d = 8; d <= FK_NARROW_HEAD_DIM; d += 8) {
            const int others[] = {8, d, FK_NARROW_HEAD_DIM};
            for (int j = 0; j < 9; ++j) {
                char spelling[64];
                const bool backward = j % 3;
                snprintf(spelling, sizeof spelling, "%s fp16 d%d dv%d causal%s", backward ? "bwd" : "fwd", d,
                         others[j / 3], j % 3 == 2 ? " deterministic" : "");
                fk_plan_info *plans;
                const size_t count = enumerate(spelling, device.key, NULL, &plans);
                check_list(plans, count, &device, backward);
                free(plans);
            }
        }
    }
}

/* K, V, Q and dO of both widths must fit a block's shared memory with 16 keys and 32 queries: on 99 KB up to 496
 * columns. */
static void test_every_head_dim_has_an_fp32_plan_from_sm_80_on(void **state) {
    (void)state;
    for (size_t i = 0; i < fk_device_table_size(); ++i) {
        fk_device_info device;
        assert_int_equal(fk_device_table(i, &device), FK_OK);
        for (int d = 8; d <= FK_NARROW_HEAD_DIM && device.sm >= 80; d += 8) {
            static const char *const words[][2] = {{"fwd", ""}, {"bwd", ""}, {"bwd", " deterministic"}};
            for (int j = 0; j < 3; ++j) {
                char spelling[64];
                if (j > 0 && d > 240 && device.smem_per_block < 100 << 10) continue;
                snprintf(spelling, sizeof spelling, "%s fp32 d%d causal%s", words[j][0], d, words[j][1]);
                fk_plan_info *plans;
                const size_t count = enumerate(spelling, device.key, NULL, &plans);
                check_list(plans, count, &device, j > 0);
                free(plans);
            }
        }
    }
}

/* Parts fill shared memory sooner: where they do, and beside a kernel of dq, each warp splits what it reads. */
static void test_fp32_becomes_parts_where_there_is_room(void **state) {
    (void)state;
    static const struct {
        const char *spelling, *gpu;
        int parts;
    } cases[] = {
        {"fwd fp32 d64", "h200", 1},  {"fwd fp32 d128 causal", "a100", 1},       {"fwd fp32 d64", "rtx3090", 1},
        {"fwd fp32 d256", "a100", 0}, {"bwd fp32 d64 deterministic", "h200", 0}, {"bwd fp32 d128 causal", "h200", 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        const fk_problem p = problem_of(cases[i].spelling);
        fk_plan_info *plans;
        enumerate(cases[i].spelling, cases[i].gpu, NULL, &plans);
        assert_int_equal(plans->k_stages, cases[i].parts);
        const int d = p.head_dim, m = plans->block_m, n = plans->block_n;
        if (cases[i].parts && p.op == FK_FORWARD) /* Q, and K and V of each stage */
            assert_int_equal(plans->smem_bytes, 3 * 2 * (m + 2 * plans->stages * n) * d);
        if (cases[i].parts && p.op == FK_BACKWARD) /* K, V, Q and dO, and of these floats besides; dS, and P */
            assert_int_equal(plans->smem_bytes, 3 * 2 * (2 * (m + n) * d + 2 * m * n) + 4 * 2 * m * d + 16 * m);
        free(plans);
    }
}

static void expect_reason(const fk_plan_info *plans, size_t count, const char *part) {
    for (size_t i = 0; i < count; ++i) {
        if (strstr(plans[i].reason, part)) return;
    }
    fail_msg("no plan is rejected for \"%s\"", part);
}

/* sm_75's own table, with tiles that break each limit. */
static const char arch_text[] =
    "return { name = 'sm_75', family = 'mma', mma_k = 8, async_copy = false, bf16 = false, vector_add = false, "
    "early_start = false, e4m3 = false, tiles = "
    "{\n"
    "{ block_m = 64, block_n = 64, warps = 4, stages = 1, q_in_regs = false, ctas = 1 },\n"
    "{ block_m = 64, block_n = 512, warps = 4, stages = 1, q_in_regs = false, ctas = 1 },\n"
    "{ block_m = 64, block_n = 96, warps = 4, stages = 1, q_in_regs = false, ctas = 2 },\n"
    "{ block_m = 128, block_n = 128, warps = 2, stages = 1, q_in_regs = false, ctas = 1 },\n"
    "{ block_m = 128, block_n = 64, warps = 8, stages = 1, q_in_regs = false, ctas = 2 },\n"
    "{ block_m = 32, block_n = 16, warps = 2, stages = 1, q_in_regs = false, ctas = 17 },\n"
    "{ block_m = 40, block_n = 16, warps = 2, stages = 1, q_in_regs = false, ctas = 1 },\n"
    "{ block_m = 32, block_n = 24, warps = 2, stages = 1, q_in_regs = false, ctas = 1 } } }\n";

static void test_rejections_name_the_limit(void **state) {
    (void)state;
    const temp_dir dir = temp_dir_create();
    temp_dir_write(&dir, "arch/sm75.lua", arch_text);
    fk_plan_options options = FK_PLAN_OPTIONS_INIT;
    options.template_dir = dir.path;
    fk_plan_info *plans;
    size_t count = enumerate("fwd fp16 d64", "t4", &options, &plans);
    assert_int_equal(count, 8);
    expect_reason(plans, count, "shared memory: 139264 bytes > 65536 of a block");
    expect_reason(plans, count, "registers: about ");
    expect_reason(plans, count, " > 255 of a thread");
    expect_reason(plans, count, "block_m 40: must be a multiple of 16 rows for each of 2 warps");
    expect_reason(plans, count, "block_n 24: must be a multiple of 16");
    free(plans);
    count = enumerate("fwd fp16 d128", "t4", &options, &plans);
    expect_reason(plans, count, "shared memory: 2 CTAs of 65536 + 0 bytes > 65536 of an SM");
    free(plans);
    count = enumerate("fwd fp16 d8", "t4", &options, &plans);
    expect_reason(plans, count, "17 CTAs of 64 threads > 1024 threads or 16 CTAs of an SM");
    free(plans);
    /* 512 threads leave 128 registers each. */
    temp_dir_write(&dir, "arch/sm75.lua",
                   "return { name = 'sm_75', family = 'mma', mma_k = 8, async_copy = false, bf16 = false, vector_add = "
                   "false, early_start = false, e4m3 = false, tiles = {\n"
                   "{ block_m = 128, block_n = 32, warps = 8, stages = 1, q_in_regs = false, ctas = 2 } } }\n");
    const fk_problem p = problem_of("fwd fp16 d8 dv128");
    const fk_device_info t4 = device_of("t4");
    fk_error err;
    assert_int_equal(fk_plan_enumerate(&p, &t4, &options, &plans, &count, &err), FK_UNSUPPORTED);
    assert_message(err.text,
                   "no plan for t4 (sm_75): of 1 tilings, the last one (128 x 32, 8 warps): registers: about ");
    assert_message(err.text, " > 128 that 2 CTAs of 256 threads leave each");
    temp_dir_remove(&dir);
}

static void test_dtype_must_be_the_archs(void **state) {
    (void)state;
    const fk_problem p = problem_of("fwd bf16 d64");
    fk_plan_info *plans;
    size_t count;
    fk_error err;
    const fk_device_info t4 = device_of("t4");
    assert_int_equal(fk_plan_enumerate(&p, &t4, NULL, &plans, &count, &err), FK_UNSUPPORTED);
    assert_message(err.text, "dtype bf16: the tensor cores of sm_75 take fp16 only");
    const fk_problem fp32 = problem_of("bwd fp32 d64");
    assert_int_equal(fk_plan_enumerate(&fp32, &t4, NULL, &plans, &count, &err), FK_UNSUPPORTED);
    assert_message(err.text, "dtype fp32: the tensor cores of sm_75 have no bf16");
    fk_device_info old = t4;
    old.sm = 70;
    assert_int_equal(fk_plan_enumerate(&p, &old, NULL, &plans, &count, &err), FK_UNSUPPORTED);
    assert_message(err.text, "no templates for sm_70");
}

static void test_unlisted_sms_take_the_nearest_lower_row(void **state) {
    (void)state;
    const fk_problem p = problem_of("fwd bf16 d64");
    fk_device_info device = device_of("rtx3090");
    fk_plan_info plan;
    fk_error err;
    static const int cases[][2] = {{75, 75}, {80, 80}, {86, 86},  {87, 86}, {89, 89},
                                   {88, 86}, {90, 90}, {100, 90}, {121, 90}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        fk_problem q = p;
        q.dtype = cases[i][0] == 75 ? FK_FP16 : FK_BF16;
        device.sm = cases[i][0];
        assert_int_equal(fk_plan_best(&q, &device, NULL, &plan, &err), FK_OK);
        assert_int_equal(plan.sm, cases[i][1]);
        assert_string_equal(plan.family, cases[i][0] == 90 ? "wgmma" : "mma");
    }
}

static void test_arch_files_are_read_strictly(void **state) {
    (void)state;
#define HEAD                                                                                                           \
    "return { name = 'x', family = 'mma', mma_k = 8, async_copy = false, bf16 = false, vector_add = false, "           \
    "early_start = false, e4m3 = false, tiles = { "
#define TILE "block_m = 64, block_n = 64, warps = 4, stages = 1, q_in_regs = false, ctas = 1 "
    static const struct {
        const char *file, *text, *message;
    } cases[] = {
        {"arch/sm75.lua", HEAD "{ " TILE ", block_k = 3 } } }",
         "sm75.lua: tiles[1]: unknown field 'block_k'; known: block_m"},
        {"arch/sm75.lua", HEAD "{ block_m = 64 } } }",
         "sm75.lua: tiles[1]: field 'block_n' is missing: must be an integer"},
        {"arch/sm75.lua", HEAD "{ " TILE "}, 5 } }", "sm75.lua: tiles[2]: not a table"},
        {"arch/sm75.lua", HEAD "} }", "sm75.lua: has 0 tiles: must be from 1 to 72"},
        {"arch/sm75.lua", "return { name = 'x' }", "sm75.lua: field 'family' is missing: must be text"},
        {"arch/sm75.lua", "return { name = 'x', family = 'mma', mma_k = 8.5 }",
         "field 'mma_k' is 8.5: must be an integer"},
        {"arch/sm75.lua", "return { name = 'x', family = 'mma', mma_k = 8, async_copy = 0 }",
         "field 'async_copy' is 0: must be true or false"},
        {"arch/sm75.lua", "return { inherits = 'sm75' }", "sm75.lua: inherits more than 8 deep"},
        {"arch/sm75.lua", "return { inherits = 'nowhere' }", "templates/arch/nowhere.lua: no such template"},
        {"arch/sm75.lua", "return { inherits = 'sm80', async_cpy = true }",
         "sm75.lua: field 'async_cpy' is a boolean: must be a field that is, as in its parent sm80"},
        {"registry.lua", "return { [75] = 3 }", "registry.lua: a row must be [SM] = \"arch file\""},
        {"registry.lua", "return { x = 'sm75' }", "registry.lua: a row must be [SM] = \"arch file\""},
    };
    const fk_problem p = problem_of("fwd fp16 d64");
    const fk_device_info t4 = device_of("t4");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        const temp_dir dir = temp_dir_create();
        temp_dir_write(&dir, "arch/sm80.lua", HEAD "{ " TILE "} } }");
        temp_dir_write(&dir, cases[i].file, cases[i].text);
        fk_plan_options options = FK_PLAN_OPTIONS_INIT;
        options.template_dir = dir.path;
        fk_plan_info plan;
        fk_error err = {.text = ""};
        assert_int_equal(fk_plan_best(&p, &t4, &options, &plan, &err), FK_TEMPLATE_ERROR);
        assert_message(err.text, cases[i].message);
        temp_dir_remove(&dir);
    }
}

static void test_paper_rule(void **state) {
    (void)state;
    static const struct {
        const char *spelling, *gpu, *formula;
    } cases[] = {
        {"fwd fp16 d64", "a100", "paper: B_c = ceil(83456 / (4 * 64)) = 326, B_r = min(326, 64) = 64; "},
        {"fwd fp16 d128", "a100", "paper: B_c = ceil(83456 / (4 * 128)) = 163, B_r = min(163, 128) = 128; "},
        {"fwd fp16 d256", "t4", "paper: B_c = ceil(32768 / (4 * 256)) = 32, B_r = min(32, 256) = 32; "},
        {"fwd fp16 d8", "h100", "paper: B_c = ceil(116224 / (4 * 8)) = 3632, B_r = min(3632, 8) = 8; "},
    };
    fk_plan_options options = FK_PLAN_OPTIONS_INIT;
    options.rule = FK_RULE_PAPER;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        const fk_device_info device = device_of(cases[i].gpu);
        fk_plan_info *plans;
        assert_int_equal(enumerate(cases[i].spelling, cases[i].gpu, &options, &plans), 1);
        assert_message(plans->reason, cases[i].formula);
        int b_r, b_c, b_r_legal, b_c_legal;
        assert_int_equal(sscanf(strstr(plans->reason, ")) = "),
                                ")) = %d, B_r = min(%*d, %*d) = %d; what is legal here: "
                                "B_c = %d, B_r = %d",
                                &b_c, &b_r, &b_c_legal, &b_r_legal),
                         4);
        assert_int_equal(plans->block_n, b_c_legal);
        assert_int_equal(plans->block_m, b_r_legal);
        assert_true(b_c_legal <= b_c && (b_r_legal <= b_r || b_r_legal == 16 || b_c_legal == 16));
        plans->reason[0] = 0;
        check_list(plans, 1, &device, false);
        free(plans);
    }
}

/* The model's answers where they are known from the kernels of others, and where arithmetic says so. */
static void test_model_follows_the_machine(void **state) {
    (void)state;
    fk_plan_info *full, *causal, *plans;
    enumerate("fwd fp16 d128", "a100", NULL, &full);
    enumerate("fwd fp16 d128 causal", "a100", NULL, &causal);
    /* 4 x 16 heads of 4096 x 4096 x 128: 2 GEMMs of 2 FLOP. */
    const double flop = 4.0 * 4 * 16 * 4096.0 * 4096 * 128;
    const double us = flop / (108 * 2048 * 1.41e9) * 1e6;
    assert_true(full->tensor_us > us * 0.999 && full->tensor_us < us * 1.001);
    assert_true(causal->tensor_us > 0.5 * us && causal->tensor_us < 0.6 * us);
    assert_true(causal->model_us < 0.6 * full->model_us);
    assert_string_equal(full->bound, "tensor");
    /* At least Q, K, V, O and lse once. */
    assert_true(full->hbm_bytes >= 4.0 * 4 * 4096 * 2048 * 2 + 4 * 16 * 4096 * 4);
    assert_true(full->hbm_bytes < 2 * 4.0 * 4 * 4096 * 2048 * 2);
    free(full);
    free(causal);
    /* A window of 64 keys leaves so little that memory is what takes time. */
    enumerate("fwd fp16 d64 window(64,0)", "l4", NULL, &plans);
    assert_string_equal(plans->bound, "hbm");
    free(plans);
    /* One row of queries cannot fill a GPU: the longest CTA bounds, far above every floor. */
    fk_plan_options options = FK_PLAN_OPTIONS_INIT;
    options.shape = (fk_shape){1, 1, 1, 16, 65536};
    enumerate("fwd fp16 d64", "a100", &options, &plans);
    assert_true(plans->model_us > 20 * plans->tensor_us);
    free(plans);
    /* Twice the batch takes twice the time once the GPU is full. */
    fk_plan_info *once, *twice;
    options.shape = (fk_shape){8, 32, 32, 4096, 4096};
    enumerate("fwd fp16 d64", "a100", &options, &once);
    options.shape.batch = 16;
    enumerate("fwd fp16 d64", "a100", &options, &twice);
    assert_true(twice->model_us > 1.95 * once->model_us && twice->model_us < 2.05 * once->model_us);
    free(once);
    free(twice);
}

/* Backward: five products for two, at least; query heads of a group come one after the other in one CTA. */
static void test_backward_model(void **state) {
    (void)state;
    fk_plan_options options = FK_PLAN_OPTIONS_INIT;
    fk_plan_info *forward, *backward, *gqa;
    options.shape = (fk_shape){4, 16, 16, 4096, 4096};
    enumerate("fwd fp16 d128", "a100", &options, &forward);
    enumerate("bwd fp16 d128", "a100", &options, &backward);
    assert_true(backward->tensor_us > 2.499 * forward->tensor_us && backward->tensor_us < 2.501 * forward->tensor_us);
    assert_true(backward->hbm_bytes > 2 * forward->hbm_bytes);
    options.shape.num_heads_kv = 2;
    enumerate("bwd fp16 d128 gqa", "a100", &options, &gqa);
    assert_true(gqa->tensor_us > 0.999 * backward->tensor_us && gqa->tensor_us < 1.001 * backward->tensor_us);
    free(forward);
    free(backward);
    free(gqa);
    fk_plan_info *plans;
    size_t count;
    fk_error err;
    const fk_problem p = problem_of("bwd fp16 d64");
    const fk_device_info a100 = device_of("a100");
    options = (fk_plan_options)FK_PLAN_OPTIONS_INIT;
    options.rule = FK_RULE_PAPER;
    assert_int_equal(fk_plan_enumerate(&p, &a100, &options, &plans, &count, &err), FK_UNSUPPORTED);
    assert_message(err.text, "rule is paper: must be model for bwd");
}

static const char backward_arch_text[] =
    "return { name = 'sm_80', family = 'mma', mma_k = 16, async_copy = true, bf16 = true, vector_add = false, "
    "early_start = false, e4m3 = false, tiles = "
    "{}, backward_tiles = "
    "{\n"
    "{ block_m = 64, block_n = 64, warps = 4, stages = 2, q_in_regs = false, ctas = 1 },\n"
    "{ block_m = 64, block_n = 64, warps = 4, stages = 2, q_in_regs = true, ctas = 1 },\n"
    "{ block_m = 40, block_n = 64, warps = 4, stages = 2, q_in_regs = false, ctas = 1 },\n"
    "{ block_m = 64, block_n = 24, warps = 1, stages = 2, q_in_regs = false, ctas = 1 },\n"
    "{ block_m = 64, block_n = 96, warps = 4, stages = 2, q_in_regs = false, ctas = 1 },\n"
    "{ block_m = 16, block_n = 16, warps = 4, stages = 2, q_in_regs = false, ctas = 1 },\n"
    "{ block_m = 64, block_n = 256, warps = 4, stages = 2, q_in_regs = false, ctas = 1 } } }\n";

static void test_backward_rejections_name_the_limit(void **state) {
    (void)state;
    const temp_dir dir = temp_dir_create();
    temp_dir_write(&dir, "arch/sm80.lua", backward_arch_text);
    fk_plan_options options = FK_PLAN_OPTIONS_INIT;
    options.template_dir = dir.path;
    fk_plan_info *plans;
    const size_t count = enumerate("bwd fp16 d64", "a100", &options, &plans);
    assert_int_equal(count, 7);
    assert_int_equal(plans[0].block_n, 64);
    expect_reason(plans, count, "q_in_regs 1: must be 0 in the backward pass");
    expect_reason(plans, count, "block_m 40: must be a multiple of 16");
    expect_reason(plans, count, "block_n 24: must be a multiple of 16");
    expect_reason(plans, count, "block_n 96: must be a multiple of 16 keys for each of 4 rows of warps");
    expect_reason(plans, count, "block_m 16: must be a multiple of 16 queries for each of 4 columns of warps");
    expect_reason(plans, count, "registers: about ");
    free(plans);
    temp_dir_write(&dir, "arch/sm80.lua",
                   "return { name = 'x', family = 'mma', mma_k = 16, async_copy = true, bf16 = true, vector_add = "
                   "false, early_start = false, e4m3 = false }");
    const fk_problem p = problem_of("bwd fp16 d64");
    const fk_device_info a100 = device_of("a100");
    fk_plan_info plan;
    fk_error err = {.text = ""};
    assert_int_equal(fk_plan_best(&p, &a100, &options, &plan, &err), FK_TEMPLATE_ERROR);
    assert_message(err.text, "sm80.lua: field 'backward_tiles' is missing: must be an array of tiles");
    temp_dir_remove(&dir);
}

/* A problem that needs a kernel of dq needs tiles for it, and a tile may ask for one where the problem does not. */
static void test_kernels_of_dq(void **state) {
    (void)state;
    static const char text[] =
        "return { name = 'sm_80', family = 'mma', mma_k = 16, async_copy = true, bf16 = true, "
        "vector_add = false, early_start = false, e4m3 = false, tiles = {}, backward_tiles = {\n"
        "{ block_m = 64, block_n = 64, warps = 4, stages = 2, q_in_regs = false, ctas = 1%s }\n}%s }\n";
    static const char dq_tiles[] =
        ", dq_tiles = { { block_m = 64, block_n = %d, warps = 4, stages = 2, q_in_regs = false, ctas = 1 } }";
    const temp_dir dir = temp_dir_create();
    const fk_problem p = problem_of("bwd fp16 d64 deterministic");
    const fk_device_info a100 = device_of("a100");
    fk_plan_options options = FK_PLAN_OPTIONS_INIT;
    options.template_dir = dir.path;
    fk_plan_info plan, *plans;
    fk_error err = {.text = ""};
    char arch[1024], tiles[128];
    snprintf(arch, sizeof arch, text, "", "");
    temp_dir_write(&dir, "arch/sm80.lua", arch);
    assert_int_equal(fk_plan_best(&p, &a100, &options, &plan, &err), FK_UNSUPPORTED);
    assert_message(err.text, "dq's own kernel: no tiles for fp16 on sm_80");
    snprintf(tiles, sizeof tiles, dq_tiles, 512);
    snprintf(arch, sizeof arch, text, "", tiles);
    temp_dir_write(&dir, "arch/sm80.lua", arch);
    assert_int_equal(fk_plan_best(&p, &a100, &options, &plan, &err), FK_UNSUPPORTED);
    assert_message(err.text, "dq's own kernel: shared memory: ");
    snprintf(tiles, sizeof tiles, dq_tiles, 64);
    snprintf(arch, sizeof arch, text, "", tiles);
    temp_dir_write(&dir, "arch/sm80.lua", arch);
    assert_int_equal(enumerate("bwd fp16 d64 deterministic", "a100", &options, &plans), 1);
    free(plans);
    assert_int_equal(enumerate("bwd fp16 d64", "a100", &options, &plans), 1);
    assert_int_equal(plans[0].dq_kernel, 0);
    const fk_plan_info added = plans[0];
    free(plans);
    snprintf(arch, sizeof arch, text, ", dq_kernel = true", tiles);
    temp_dir_write(&dir, "arch/sm80.lua", arch);
    assert_int_equal(enumerate("bwd fp16 d64", "a100", &options, &plans), 1);
    assert_int_equal(plans[0].dq_kernel, 1);
    assert_true(plans[0].tensor_us > added.tensor_us * 1.39 &&
                plans[0].tensor_us < added.tensor_us * 1.41); /* 7 of 5 */
    assert_true(plans[0].l2_us < 1e-9 && added.l2_us > 0);
    free(plans);
    temp_dir_remove(&dir);
}

static void test_planning_long_sequences_is_quick(void **state) {
    (void)state;
    fk_plan_options options = FK_PLAN_OPTIONS_INIT;
    options.shape = (fk_shape){1, 1, 1, 1 << 20, 1 << 20};
    fk_plan_info *plans;
    /* Every tile of this one is partial; 2^28 of them, for each candidate. */
    const size_t count = enumerate("fwd fp16 d64 causal keep=\"(q - k) % 4 == 0\"", "a100", &options, &plans);
    assert_true(count > 0 && plans->legal);
    free(plans);
}

static void test_public_list(void **state) {
    (void)state;
    const fk_problem p = problem_of("fwd fp16 d64");
    fk_plan_info *plans = NULL;
    size_t count = 0;
    assert_int_equal(fk_plan_list(&p, "a100", NULL, &plans, &count), FK_OK);
    assert_true(count > 5);
    fk_free(plans);
    assert_int_equal(fk_plan_list(&p, "a1", NULL, &plans, &count), FK_NO_DEVICE);
    assert_int_equal(fk_plan_list(NULL, "a100", NULL, &plans, &count), FK_BAD_ARGUMENT);
    assert_message(fk_last_error(), "problem is null");
    assert_int_equal(fk_plan_list(&p, "a100", NULL, NULL, &count), FK_BAD_ARGUMENT);
    assert_message(fk_last_error(), "plans is null");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_head_dim_has_a_plan_everywhere),
        cmocka_unit_test(test_rejections_name_the_limit),
        cmocka_unit_test(test_every_head_dim_has_an_fp32_plan_from_sm_80_on),
        cmocka_unit_test(test_fp32_becomes_parts_where_there_is_room),
        cmocka_unit_test(test_dtype_must_be_the_archs),
        cmocka_unit_test(test_unlisted_sms_take_the_nearest_lower_row),
        cmocka_unit_test(test_arch_files_are_read_strictly),
        cmocka_unit_test(test_paper_rule),
        cmocka_unit_test(test_model_follows_the_machine),
        cmocka_unit_test(test_backward_model),
        cmocka_unit_test(test_backward_rejections_name_the_limit),
        cmocka_unit_test(test_kernels_of_dq),
        cmocka_unit_test(test_planning_long_sequences_is_quick),
        cmocka_unit_test(test_public_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

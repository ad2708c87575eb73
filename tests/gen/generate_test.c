/* The emitted text: the same bytes for the same kernel, readable, self-contained; and every way to get none of it. */
#include "gen/generate.h"
#include "test.h"

static fk_problem problem_of(const char *spelling) {
    fk_problem p;
    fk_error err = {.text = ""};
    if (fk_problem_read(spelling, &p, &err) != FK_OK) fail_msg("%s", err.text);
    return p;
}

static fk_status create(const char *spelling, const char *gpu, const char *template_dir, bool standalone,
                        fk_source *out, fk_error *err) {
    const fk_problem p = problem_of(spelling);
    fk_plan_options options = FK_PLAN_OPTIONS_INIT;
    options.template_dir = template_dir;
    fk_device_info device;
    fk_plan_info plan;
    fk_status status = fk_device_lookup(gpu, &device, err);
    if (status == FK_OK) status = fk_plan_best(&p, &device, &options, &plan, err);
    if (status == FK_OK) status = fk_source_create(&p, &device, &plan, template_dir, standalone, out, err);
    return status;
}

static fk_source must_create(const char *spelling, const char *gpu, bool standalone) {
    fk_source source;
    fk_error err = {.text = ""};
    if (create(spelling, gpu, NULL, standalone, &source, &err) != FK_OK)
        fail_msg("%s on %s: %s", spelling, gpu, err.text);
    return source;
}

static const char *const spellings[] = {
    "fwd fp16 d64",
    "fwd fp16 d80 dv128 gqa causal",
    "fwd fp16 d128 window(100,0) top-left",
    "fwd fp16 d256 causal keep=\"(q - k) % 4 == 0\" window(7,7)",
    "fwd fp16 d8 keep=\"popcount(q / 64 ^ k / 64) <= 1 || h == 3\"",
    "fwd fp16 d64 array=id:int[k][] score=\"s + id[k][q / 2]\" softcap(3.5) alibi sink document key_padding",
};

static void check_text(const fk_source *source, bool standalone) {
    const char *text = source->text;
    const size_t size = strlen(text);
    assert_true(size > 5000);
    assert_string_equal(source->kernel[source->main_kernel].entry, "fk_forward");
    assert_int_equal(source->num_kernels, source->main_kernel + 1);
    assert_message(text, "extern \"C\" __global__");
    assert_message(text, "fk_forward(");
    assert_message(text, "struct Params {");
    assert_null(strstr(text, "#include"));
    assert_null(strstr(text, " \n")); /* no trailing blanks */
    assert_null(strstr(text, "\t"));
    assert_null(strchr(text, '\r'));
    assert_null(strstr(text, "\n\n\n"));
    assert_int_equal(text[size - 1], '\n');
    assert_int_not_equal(text[size - 2], '\n');
    assert_int_equal(strstr(text, "#line ") == NULL, standalone);
    assert_null(strstr(text, "$("));
    for (const char *line = text; line; line = strchr(line + 1, '\n')) {
        assert_true(line[strspn(line, "\n ")] != '@');
    }
}

static void test_same_bytes_twice(void **state) {
    (void)state;
    static const char *const gpus[] = {"t4", "a100", "rtx3090", "h200", "rtx5090"};
    for (size_t i = 0; i < sizeof spellings / sizeof spellings[0]; ++i) {
        for (size_t j = 0; j < sizeof gpus / sizeof gpus[0]; ++j) {
            for (int standalone = 0; standalone < 2; ++standalone) {
                fk_source a = must_create(spellings[i], gpus[j], standalone);
                fk_source b = must_create(spellings[i], gpus[j], standalone);
                assert_string_equal(a.text, b.text);
                assert_string_equal(a.spelling, spellings[i]);
                assert_memory_equal(&a.plan, &b.plan, sizeof a.plan);
                assert_int_equal(a.kernel[a.main_kernel].threads, a.plan.warps * 32);
                check_text(&a, standalone);
                fk_source_free(&a);
                fk_source_free(&b);
            }
        }
    }
}

/* What the text shows is what was asked, planned and laid out. */
static void test_text_holds_the_plan(void **state) {
    (void)state;
    fk_source source = must_create("fwd bf16 d128 causal", "a100", true);
    char line[128];
    assert_message(source.text, "// fwd bf16 d128 causal, for sm_80\n");
    snprintf(line, sizeof line, "block_m = %d;", source.plan.block_m);
    assert_message(source.text, line);
    snprintf(line, sizeof line, "block_n = %d;", source.plan.block_n);
    assert_message(source.text, line);
    snprintf(line, sizeof line, "__launch_bounds__(threads, %d)", source.plan.ctas_per_sm);
    assert_message(source.text, line);
    snprintf(line, sizeof line, "%d bytes of shared memory", source.plan.smem_bytes);
    assert_message(source.text, line);
    assert_message(source.text, "KiB of HBM traffic, bound by tensor");
    fk_source_free(&source);
}

/* One kernel serves every window: values are run-time, and the text must not depend on them. */
static void test_run_time_values_do_not_change_the_text(void **state) {
    (void)state;
    const fk_problem a = problem_of("fwd fp16 d64 window(1024,0)"), b = problem_of("fwd fp16 d64 window(900,0)");
    fk_device_info device;
    fk_plan_info plan;
    fk_source one, two;
    fk_error err = {.text = ""};
    assert_int_equal(fk_device_lookup("a100", &device, &err), FK_OK);
    assert_int_equal(fk_plan_best(&a, &device, NULL, &plan, &err), FK_OK);
    assert_int_equal(fk_source_create(&a, &device, &plan, NULL, false, &one, &err), FK_OK);
    assert_int_equal(fk_source_create(&b, &device, &plan, NULL, false, &two, &err), FK_OK);
    assert_string_equal(one.text, two.text);
    assert_message(one.text, "// fwd fp16 d64 window(window0_left,window0_right), for sm_80\n");
    assert_int_equal(one.num_params, 2);
    assert_string_equal(one.param[0].name, "window0_left");
    assert_int_equal(one.param[0].value, 1024);
    assert_int_equal(two.param[0].value, 900);
    assert_string_equal(two.spelling, "fwd fp16 d64 window(900,0)");
    fk_source_free(&one);
    fk_source_free(&two);
}

static void test_longest_query_tiles_start_first(void **state) {
    (void)state;
    static const struct {
        const char *spelling;
        int order;
    } cases[] = {{"fwd fp16 d64 causal", 1},
                 {"fwd fp16 d64", 1},
                 {"fwd fp16 d64 keep=\"k >= q\"", -1},
                 {"bwd fp16 d64 causal", -1},
                 {"bwd fp16 d64 keep=\"k >= q\"", 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        fk_source source = must_create(cases[i].spelling, "a100", true);
        assert_int_equal(source.q_order, cases[i].order);
        fk_source_free(&source);
    }
}

/* Tiles of queries that see all keys, or of keys that all see, are claimed before all else, perhaps in parts, whose
 * results another kernel adds up. */
static void test_tiles_far_longer_than_most_are_claimed_first(void **state) {
    (void)state;
    static const struct {
        const char *spelling;
        int leading, leading_rows;
    } cases[] = {{"fwd bf16 d64 bigbird(128)", 1, 128},
                 {"bwd bf16 d64 bigbird(128)", 1, 128},
                 {"bwd bf16 d128 longformer(128,2,1,2) deterministic", 2, 256},
                 {"bwd bf16 d64 bigbird(128) seqused_k", 1, 0},
                 {"bwd bf16 d64 bigbird(128) packed", 0, 0},
                 {"bwd bf16 d64 butterfly(128)", 0, 0},
                 {"fwd bf16 d128 butterfly(128,0,2)", 2, 256},
                 {"fwd bf16 d128 longformer(128,2,1,1) sink", 1, 0},
                 {"fwd bf16 d128 bigbird(128) packed", 0, 0},
                 {"fwd bf16 d64 butterfly(128)", 0, 0},
                 {"fwd bf16 d64 causal", 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        fk_source source = must_create(cases[i].spelling, "h200", true);
        char words[40];
        snprintf(words, sizeof words, "leading = min(%d, tiles)", cases[i].leading);
        assert_int_equal(strstr(source.text, cases[i].leading ? words : "in_turn") != NULL, cases[i].leading > 0);
        assert_int_equal(source.leading_rows, cases[i].leading_rows);
        const bool backward = strncmp(cases[i].spelling, "bwd", 3) == 0;
        const fk_grid_kind combines = backward ? FK_GRID_KEYS : FK_GRID_COMBINE;
        const char *const combine = backward ? "fk_backward_combine(" : "fk_forward_combine(";
        const int after = source.main_kernel + 1;
        assert_int_equal(strstr(source.text, combine) != NULL, cases[i].leading_rows > 0);
        assert_int_equal(source.num_kernels > after && source.kernel[after].grid == combines,
                         cases[i].leading_rows > 0);
        fk_source_free(&source);
    }
}

/* Where how long tiles are is known at run time alone, they are counted. */
static void test_tiles_of_unlike_length_are_counted(void **state) {
    (void)state;
    static const struct {
        const char *spelling;
        bool counted;
    } cases[] = {{"fwd bf16 d64 block_bits(128)", true},
                 {"fwd bf16 d128 gqa block_bits(64x128) causal", true},
                 {"fwd fp16 d64 blocks(128)=\"hash(i, j) % 4 == 0\"", true},
                 {"fwd bf16 d64 butterfly(128)", false},
                 {"fwd bf16 d64 bigbird(128)", false},
                 {"fwd bf16 d64 block_bits(128) packed", false},
                 {"bwd bf16 d64 block_bits(128)", false},
                 {"fwd bf16 d64 keep=\"hash(q, k) % 4 == 0\"", false},
                 {"fwd bf16 d64 causal", false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        fk_source source = must_create(cases[i].spelling, "h200", true);
        assert_int_equal(strstr(source.text, "order_tiles(p);") != NULL, cases[i].counted);
        fk_source_free(&source);
    }
}

/* One text, three kernels: statistics of rows, tiles, and dq from its sum. */
static void test_backward_has_three_kernels(void **state) {
    (void)state;
    static const fk_grid_kind grids[] = {FK_GRID_ROWS, FK_GRID_TILES, FK_GRID_ROW_CHUNKS};
    fk_source source = must_create("bwd bf16 d128 gqa causal", "a100", true);
    assert_int_equal(source.num_kernels, 3);
    assert_string_equal(source.kernel[source.main_kernel].entry, "fk_backward");
    assert_int_equal(source.kernel[source.main_kernel].threads, source.plan.warps * 32);
    assert_int_equal(source.kernel[source.main_kernel].smem_bytes, source.plan.smem_bytes);
    assert_int_equal(source.d_pad, 128);
    for (int i = 0; i < 3; ++i) {
        char declaration[96];
        snprintf(declaration, sizeof declaration, "%s(const __grid_constant__ Params p)", source.kernel[i].entry);
        assert_message(source.text, declaration);
        assert_int_equal(source.kernel[i].grid, grids[i]);
    }
    assert_message(source.text, "// bwd bf16 d128 gqa causal, for sm_80\n");
    fk_source_free(&source);
}

/* Deterministic: dq has a kernel of its own, with tiles of its own, and nothing is added in global memory. */
static void test_deterministic_backward_adds_nothing(void **state) {
    (void)state;
    fk_source source = must_create("bwd bf16 d128 gqa causal deterministic", "a100", true);
    assert_int_equal(source.num_kernels, 3);
    assert_string_equal(source.kernel[source.main_kernel].entry, "fk_backward");
    assert_string_equal(source.kernel[2].entry, "fk_backward_dq_tiles");
    assert_int_equal(source.kernel[2].grid, FK_GRID_DQ_TILES);
    assert_true(source.dq_block_m > 0 && source.dq_block_m % 16 == 0);
    assert_int_equal(source.plan.dq_kernel, 1);
    char declaration[96];
    snprintf(declaration, sizeof declaration, "constexpr int block_m = %d, ", source.dq_block_m);
    assert_message(source.text, declaration);
    assert_message(source.text, "fk_backward_dq_tiles(const __grid_constant__ Params p)");
    assert_null(strstr(source.text, "red.global.add"));
    assert_null(strstr(source.text, "p.dq_acc"));
    fk_source_free(&source);
    source = must_create("bwd bf16 d128 gqa causal", "a100", true);
    assert_int_equal(source.dq_block_m, 0);
    assert_int_equal(source.plan.dq_kernel, 0);
    assert_message(source.text, "red.global.add");
    fk_source_free(&source);
}

/* Scores that shrink with the distance leave the range of weights without a maximum, but for those that begin at the
 * diagonal. */
/* Where the first tile says little of a row's maximum, its raw scores are taken for an estimate of it. */
static void test_first_tiles_that_say_little_are_estimates(void **state) {
    (void)state;
    static const struct {
        const char *spelling;
        bool estimates;
    } cases[] = {{"fwd bf16 d64 alibi", true},
                 {"fwd bf16 d64 alibi causal", false},
                 {"fwd bf16 d64 alibi key_padding", true},
                 {"fwd bf16 d64 bias", false},
                 {"fwd bf16 d64 relative(32)", false},
                 {"fwd bf16 d64 document", true},
                 {"fwd bf16 d64 window(1024,0)", true},
                 {"fwd bf16 d64 causal", false},
                 {"fwd e4m3 d64 document", false},
                 {"fwd bf16 d64 document fast", false}, /* whose reference is 0 */
                 {"fwd bf16 d64", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        fk_source source = must_create(cases[i].spelling, "h200", true);
        print_message("%s\n", cases[i].spelling);
        assert_int_equal(strstr(source.text, "take_estimate(m_i, estimate") != NULL, cases[i].estimates);
        fk_source_free(&source);
    }
}

/* Runs of keys that sorted arrays leave are looked up by a kernel before, which the main one need not have seen end. */
static void test_runs_are_looked_up_before(void **state) {
    (void)state;
    static const struct {
        const char *spelling, *gpu;
        bool runs, shifts;
    } cases[] = {
        {"fwd bf16 d64 document", "h200", true, true},
        {"fwd fp16 d128 document causal key_padding", "h200", true, true},
        {"fwd bf16 d64 document dropout", "h200", true, false},
        {"fwd bf16 d64 alibi document", "h200", true, false},
        {"fwd bf16 d64 document sink", "h200", true, true},
        {"fwd bf16 d64 document dilated(4)", "h200", false, false},
        {"fwd bf16 d64 packed document", "h200", false, false},
        {"fwd e4m3 d64 document", "h200", false, false},
        {"fwd fp16 d64 document", "a100", false, false},
        {"bwd bf16 d64 document", "h200", false, false},
        {"fwd bf16 d64 keep=\"a[b][q] == c[b][k]\" array=a:int[b][q] array=c:int[b][k]:sorted", "h200", false, false},
        {"fwd bf16 d64 keep=\"a[q] == c[k]\" array=a:int[q]:sorted array=c:int[k]:sorted", "h200", false, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        fk_source source = must_create(cases[i].spelling, cases[i].gpu, true);
        print_message("%s\n", cases[i].spelling);
        assert_int_equal(strcmp(source.kernel[0].entry, "fk_forward_runs") == 0, cases[i].runs);
        assert_int_equal(strstr(source.text, "int k_first; //") != NULL, cases[i].shifts);
        if (cases[i].runs) {
            assert_int_equal(source.main_kernel, 1);
            assert_int_equal(source.early, 2);
            assert_message(source.text, "wait_for_previous();");
        }
        fk_source_free(&source);
    }
}

static void test_template_errors_name_file_and_line(void **state) {
    (void)state;
    static const struct {
        const char *file, *text, *message;
    } cases[] = {
        {"kernel/forward_mma.cu", "int a;\n$(plan.block_k)\n",
         "templates/kernel/forward_mma.cu:2: plan has no field 'block_k'"},
        {"kernel/forward_mma.cu", "int a;\n\n$(problm.dtype)\n",
         "templates/kernel/forward_mma.cu:3: unknown name 'problm'"},
        {"kernel/forward_mma.cu", "@ if true then\nint a;\n", "templates/kernel/forward_mma.cu:"},
        {"kernel/forward_mma.cu", "$(1.5)\n", "templates/kernel/forward_mma.cu:1: a hole takes a string or an integer"},
        {"kernel/forward_mma.cu", "$(nil)\n", "templates/kernel/forward_mma.cu:1: a hole takes a string or an integer"},
        {"kernel/forward_mma.cu", "$(arch.tma)\n", "forward_mma.cu:1: arch has no field 'tma'"},
        {"kernel/forward_mma.cu", "$(layout.r)\n", "forward_mma.cu:1: layout has no field 'r'"},
        {"kernel/forward_mma.cu", "$(mask.kep)\n", "forward_mma.cu:1: mask has no field 'kep'"},
        {"kernel/forward_mma.cu", "@ if mask.uses.z then\n@ end\n", "forward_mma.cu:1: mask.uses has no field 'z'"},
        {"kernel/forward_mma.cu", "$(params[1].nam)\n", "params[i] has no field 'nam'"},
        {"kernel/forward_mma.cu", "@ plan.foo = 1\n", "'foo' cannot be added to plan"},
        {"kernel/forward_mma.cu", "@ include('piece/no.cu')\n", "templates/piece/no.cu: no such template"},
        {"kernel/forward_mma.cu", "@ include('../../etc/passwd')\n", "must be relative, without \"..\""},
        {"kernel/forward_mma.cu", "\n@ while true do end\n", "templates/kernel/forward_mma.cu:2: over the limit of"},
        {"kernel/forward_mma.cu", "@ local s = 'x'\n@ while true do s = s .. s end\n", "over the memory limit"},
        {"kernel/forward_mma.cu", "@ local a = load('return 1')\n", "unknown name 'load'"},
        {"kernel/forward_mma.cu", "$('\\0')\n", "the text holds a zero byte"},
        {"mask/causal.lua", "return { keep = 'k <= ' }", "templates/mask/causal.lua: "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        const temp_dir dir = temp_dir_create();
        temp_dir_write(&dir, cases[i].file, cases[i].text);
        fk_source source = {.text = NULL};
        fk_error err = {.text = ""};
        assert_int_equal(create("fwd fp16 d64 causal", "a100", dir.path, false, &source, &err), FK_TEMPLATE_ERROR);
        assert_message(err.text, cases[i].message);
        assert_null(source.text);
        temp_dir_remove(&dir);
    }
}

/* Text without holes comes out as it is: empty lines at either end, what closes a Lua string, carriage returns, and a
 * last line without a newline; and a later error names its line. */
static void test_plain_text_stays_as_it_is(void **state) {
    (void)state;
    static const struct {
        const char *text, *out;
    } cases[] = {
        {"a\n\nb\n", "a\n\nb\n"},
        {"\n\na", "\n\na\n"},
        {"a\n\n\n", "a\n\n\n"},
        {"[==[ a ]==]\n]===]\n]]\n", "[==[ a ]==]\n]===]\n]]\n"},
        {"a\r\nb\r\n", "a\r\nb\r\n"},
        {"\\n \"x\" '\\0'\n", "\\n \"x\" '\\0'\n"},
        {"a ]=\n", "a ]=\n"},
        {"a $\n@ for i = 1, 2 do\nb\n\n$(i) ]==]\n@ end\n\nc\n", "a $\nb\n\n1 ]==]\nb\n\n2 ]==]\n\nc\n"},
        {"a\nb\n\n$(nothing)\n", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        const temp_dir dir = temp_dir_create();
        temp_dir_write(&dir, "kernel/forward_mma.cu", cases[i].text);
        fk_source source = {.text = NULL};
        fk_error err = {.text = ""};
        const fk_status status = create("fwd fp16 d64", "a100", dir.path, true, &source, &err);
        if (cases[i].out) {
            if (status != FK_OK) fail_msg("case %zu: %s", i, err.text);
            assert_string_equal(source.text, cases[i].out);
        } else {
            assert_message(err.text, "templates/kernel/forward_mma.cu:4: unknown name 'nothing'");
        }
        fk_source_free(&source);
        temp_dir_remove(&dir);
    }
}

static void test_template_dir_stands_before_the_built_in(void **state) {
    (void)state;
    const temp_dir dir = temp_dir_create();
    temp_dir_write(&dir, "kernel/forward_mma.cu",
                   "// $(problem.spelling) $(problem.head_dim_v) $(tostring(problem.gqa)) $(arch.sm) $(plan.threads) "
                   "$(plan.rows_per_warp) $(layout.d_pad) $(mask.keep)\n"
                   "@ for _, name in ipairs(mask.params) do\n"
                   "int $(name);\n"
                   "@ end\n"
                   "@ for name, used in sorted_pairs(mask.uses) do\n"
                   "@   if used then\n"
                   "uses $(name);\n"
                   "@   end\n"
                   "@ end\n"
                   "$(params[1].type) $(params[1].name) $(tostring(standalone)) $(#mask.upper) $(mask.lower[1])\n");
    fk_source source;
    fk_error err = {.text = ""};
    const fk_status status = create("fwd fp16 d24 dv8 gqa window(3,0)", "a100", dir.path, true, &source, &err);
    if (status != FK_OK) fail_msg("%s", err.text);
    char expected[1024];
    snprintf(expected, sizeof expected,
             "// fwd fp16 d24 dv8 gqa window(window0_left,window0_right) 8 true 80 %d %d 32 "
             "k >= q + diag - window0_left && k <= q + diag + window0_right\n"
             "int window0_left;\nint window0_right;\nuses diag;\nuses k;\nuses q;\n"
             "const Element * q true 1 iv_sub(iv_add(q_iv, diag_iv), window0_left_iv)\n",
             source.kernel[0].threads, source.plan.block_m / source.plan.warps);
    assert_string_equal(source.text, expected);
    fk_source_free(&source);
    temp_dir_remove(&dir);
    assert_int_equal(create("fwd fp16 d24", "a100", dir.path, true, &source, &err), FK_IO);
}

static void test_plans_of_the_caller_are_checked(void **state) {
    (void)state;
    const fk_problem p = problem_of("fwd fp16 d64");
    fk_device_info device;
    fk_plan_info best;
    fk_source source;
    fk_error err = {.text = ""};
    assert_int_equal(fk_device_lookup("t4", &device, &err), FK_OK);
    assert_int_equal(fk_plan_best(&p, &device, NULL, &best, &err), FK_OK);
    fk_plan_info plan = best;
    plan.block_n = 512;
    assert_int_equal(fk_source_create(&p, &device, &plan, NULL, false, &source, &err), FK_UNSUPPORTED);
    assert_message(err.text, "plan: shared memory: ");
    plan = best;
    plan.warps = 0;
    assert_int_equal(fk_source_create(&p, &device, &plan, NULL, false, &source, &err), FK_UNSUPPORTED);
    assert_message(err.text, "plan: warps 0, ");
    plan = best;
    plan.block_m = 24;
    assert_int_equal(fk_source_create(&p, &device, &plan, NULL, false, &source, &err), FK_UNSUPPORTED);
    assert_message(err.text, "plan: block_m 24: must be a multiple of 16 rows");
}

static void test_public_generate(void **state) {
    (void)state;
    const fk_problem p = problem_of("fwd bf16 d64 causal");
    fk_generate_options options = FK_GENERATE_OPTIONS_INIT;
    fk_plan_info chosen, again;
    char *text, *same;
    assert_int_equal(fk_generate(&p, "a100", NULL, &text, &chosen), FK_OK);
    assert_message(text, "#line 1 \"templates/");
    options.plan = &chosen;
    assert_int_equal(fk_generate(&p, "a100", &options, &same, &again), FK_OK);
    assert_string_equal(text, same);
    fk_free(text);
    fk_free(same);
    assert_int_equal(fk_generate(&p, "t4", NULL, &text, NULL), FK_UNSUPPORTED);
    assert_message(fk_last_error(), "dtype bf16");
    assert_int_equal(fk_generate(&p, "", NULL, &text, NULL), FK_NO_DEVICE);
    assert_int_equal(fk_generate(NULL, "a100", NULL, &text, NULL), FK_BAD_ARGUMENT);
    assert_int_equal(fk_generate(&p, "a100", NULL, NULL, NULL), FK_BAD_ARGUMENT);
    options.struct_size = 3;
    assert_int_equal(fk_generate(&p, "a100", &options, &text, NULL), FK_BAD_ARGUMENT);
    assert_message(fk_last_error(), "fk_generate_options.struct_size is 3: must be");
}

static void test_names_and_version(void **state) {
    (void)state;
    assert_int_equal(fk_version(), 100);
    static const fk_status all[] = {FK_OK,           FK_BAD_ARGUMENT, FK_BAD_PROBLEM,    FK_UNSUPPORTED,
                                    FK_NO_DEVICE,    FK_NO_COMPILER,  FK_COMPILE_FAILED, FK_NO_JIT,
                                    FK_NO_MEMORY,    FK_IO,           FK_TEMPLATE_ERROR, FK_LAUNCH_FAILED,
                                    FK_CHECK_FAILED, FK_INTERNAL};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) {
        assert_memory_equal(fk_status_name(all[i]), "FK_", 3);
        for (size_t j = 0; j < i; ++j)
            assert_string_not_equal(fk_status_name(all[i]), fk_status_name(all[j]));
    }
    assert_string_equal(fk_status_name((fk_status)12345), "unknown fk_status");
    fk_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bytes_twice),
        cmocka_unit_test(test_text_holds_the_plan),
        cmocka_unit_test(test_run_time_values_do_not_change_the_text),
        cmocka_unit_test(test_longest_query_tiles_start_first),
        cmocka_unit_test(test_tiles_far_longer_than_most_are_claimed_first),
        cmocka_unit_test(test_tiles_of_unlike_length_are_counted),
        cmocka_unit_test(test_backward_has_three_kernels),
        cmocka_unit_test(test_deterministic_backward_adds_nothing),
        cmocka_unit_test(test_first_tiles_that_say_little_are_estimates),
        cmocka_unit_test(test_runs_are_looked_up_before),
        cmocka_unit_test(test_template_errors_name_file_and_line),
        cmocka_unit_test(test_plain_text_stays_as_it_is),
        cmocka_unit_test(test_template_dir_stands_before_the_built_in),
        cmocka_unit_test(test_plans_of_the_caller_are_checked),
        cmocka_unit_test(test_public_generate),
        cmocka_unit_test(test_names_and_version),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

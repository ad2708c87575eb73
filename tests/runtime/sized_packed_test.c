/* Kernels for some sizes from a pack: sealed, without planning, fk_kernel_create_for gives what it would compile, and
 * the kernel for all sizes where the pack has none. */
#include "emulated.h"
#include "runtime/object.h"
#include "scratch.h"

static char dir[256], with_path[300], without_path[300], merged_path[300], store_dir[300];

static const char *const spellings[] = {"fwd bf16 d64", "fwd fp16 d128 gqa", "bwd fp16 d64", "bwd bf16 d64 gqa causal"};
enum { SPELLINGS = sizeof spellings / sizeof *spellings };

static fk_context *open_context(fk_cache_mode mode, const char *packs, const char *template_dir) {
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    fk_context *context = NULL;
    options.device = "emu", options.plan_for = "h200", options.cache_dir = store_dir;
    options.cache_mode = (int32_t)mode, options.packs = packs, options.planning.template_dir = template_dir;
    if (fk_context_create(&options, &context)) fail_msg("%s", fk_last_error());
    return context;
}

/* Whether it is the kernel for all sizes; gives it up. */
static bool describe(fk_kernel *kernel, fk_kernel_info *info) {
    const bool for_all = kernel->variant == 0;
    assert_int_equal(fk_kernel_describe(kernel, info), FK_OK);
    fk_kernel_destroy(kernel);
    return for_all;
}

static const struct {
    int spelling;
    fk_shape shape;
    bool own; /* it has a kernel of its own */
} cases[] = {
    {0, {64, 16, 16, 257, 257}, true},    {0, {64, 16, 16, 300, 310}, true},
    {0, {64, 16, 16, 512, 512}, false},   {0, {1, 16, 16, 1024, 1024}, true},
    {0, {1, 8, 8, 2048, 2048}, true},     {0, {1, 1, 1, 1, 1}, false},
    {0, {16, 16, 16, 2049, 2049}, false}, {0, {4096, 64, 64, 64, 64}, true},
    {1, {64, 16, 2, 257, 257}, true},     {1, {64, 16, 2, 512, 512}, false},
    {2, {4, 16, 16, 4096, 4096}, false},  {1, {1, 8, 1, 512, 8192}, true},   /* its last tiles come in parts */
    {1, {1, 8, 1, 512, 1024}, true},      {2, {64, 16, 16, 256, 256}, true}, /* a CTA has a whole head */
    {3, {1, 8, 1, 4096, 4096}, true},                                        /* its tiles of keys come in parts */
    {3, {4, 32, 8, 8192, 8192}, false},
};
enum { CASES = sizeof cases / sizeof *cases };

static void packed_are_those_compiled(void **state) {
    (void)state;
    fk_context *sealed = open_context(FK_CACHE_SEALED, with_path, NULL);
    fk_context *beside = open_context(FK_CACHE_NO_JIT, with_path, NULL), *jit = open_context(FK_CACHE_NORMAL, "", NULL);
    for (int i = 0; i < CASES; i++) {
        const char *spelling = spellings[cases[i].spelling];
        fk_kernel_info packed, asked, compiled;
        const bool for_all = describe(emulated_kernel(sealed, spelling, &cases[i].shape), &packed);
        describe(emulated_kernel(beside, spelling, &cases[i].shape), &asked);
        describe(emulated_kernel(jit, spelling, &cases[i].shape), &compiled);
        if (for_all == cases[i].own)
            fail_msg("case %d, %s: %d x %d", i, spelling, packed.plan.block_m, packed.plan.block_n);
        if (strcmp(packed.image.key, compiled.image.key) != 0 || strcmp(asked.image.key, compiled.image.key) != 0)
            fail_msg("case %d, %s: a pack gives %d x %d, the compiler %d x %d", i, spelling, packed.plan.block_m,
                     packed.plan.block_n, compiled.plan.block_m, compiled.plan.block_n);
        assert_int_equal(packed.from_store, 2);
    }
    fk_context_destroy(jit);
    fk_context_destroy(beside);
    fk_context_destroy(sealed);
}

/* Other numbers of keys have no map; and a pack that was made without maps has none. */
static void that_for_all_sizes_serves(void **state) {
    (void)state;
    static const fk_shape shape = {64, 16, 16, 257, 257}, cross = {64, 16, 16, 257, 77};
    fk_context *with = open_context(FK_CACHE_SEALED, with_path, NULL);
    fk_context *without = open_context(FK_CACHE_SEALED, without_path, NULL);
    fk_kernel_info info;
    assert_true(describe(emulated_kernel(with, spellings[0], &cross), &info));
    assert_true(describe(emulated_kernel(without, spellings[0], &shape), &info));
    fk_context_destroy(without);
    fk_context_destroy(with);
}

/* Maps of packs that are merged are united; the first pack that tells of a problem is asked. */
static void packs_beside_each_other(void **state) {
    (void)state;
    static const fk_shape shape = {64, 16, 16, 257, 257};
    const char *const packs[] = {without_path, with_path};
    char both[640];
    fk_kernel_info info;
    assert_int_equal(fk_pack_merge(merged_path, packs, 2, NULL), FK_OK);
    snprintf(both, sizeof both, "%s:%s", without_path, with_path);
    const char *const paths[] = {merged_path, both};
    for (int i = 0; i < 2; i++) {
        fk_context *context = open_context(FK_CACHE_SEALED, paths[i], NULL);
        assert_false(describe(emulated_kernel(context, spellings[0], &shape), &info));
        fk_context_destroy(context);
    }
}

/* Who brings templates does not mean a pack's kernels. */
static void other_templates(void **state) {
    (void)state;
    static const fk_shape shape = {64, 16, 16, 257, 257};
    fk_kernel_info info;
    fk_context *context = open_context(FK_CACHE_NORMAL, with_path, dir);
    describe(emulated_kernel(context, spellings[0], &shape), &info);
    assert_int_not_equal(info.from_store, 2);
    fk_context_destroy(context);
}

/* Nothing to compile with, and nothing to plan with: packs are asked whatever the mode. */
static void without_tools(void **state) {
    (void)state;
    static const char *const missing[] = {"FLASHKILN_CXX", "FLASHKILN_LUA"};
    static const fk_shape shape = {64, 16, 16, 257, 257}, many = {4, 16, 16, 4096, 4096};
    fk_kernel_info info;
    for (int i = 0; i < 2; i++) {
        setenv(missing[i], "/nonexistent", 1);
        fk_context *context = open_context(FK_CACHE_OFF, with_path, NULL);
        describe(emulated_kernel(context, spellings[0], &shape), &info);
        assert_int_equal(info.from_store, 2);
        describe(emulated_kernel(context, spellings[0], &many), &info);
        assert_int_equal(info.from_store, 2);
        fk_context_destroy(context);
    }
    unsetenv(missing[0]), unsetenv(missing[1]);
}

/* A line that is not as fk_short_map_write writes it tells nothing, and reads nothing past its end. */
static void lines(void **state) {
    (void)state;
    static const struct {
        const char *info;
        int number;
    } infos[] = {
        {"", -1},
        {"short rows: h200: a;b: 0x1 2x1023: fwd", 2},
        {"short rows: h200: a;b: 1x1 2x1023: fwd", 2},
        {"short rows: h200: a;b: 0x2: fwd", 0},
        {"short rows: h200: a;b: 0x1: fwd", 0}, /* runs end before the class */
        {"short rows: h200: a;b: 0x1 3x9: fwd", 0},
        {"short rows: h200: a;b: 0x1 99x9: fwd", 0},
        {"short rows: h200: a;b: 0x1 2x0: fwd", 0},
        {"short rows: h200: a;b: 0x1 2: fwd", 0},
        {"short rows: h200: a;b: 0x1 2x9: bwd", -1},
        {"short rows: h200: a;b: 0x1 2x9", -1},
        {"short rows: h200", -1},
        {"short rows: ", -1},
        {"rows: h200: a;b: 0x1 2x9: fwd", -1},
        {"short rows: h200: : 0x1 1x9: fwd", 0},
        {"short rows: a100: a;b: 0x1 1x9: fwd\nshort rows: h200: a;b: 0x1 2x9: fwd\n", 2},
        {"short rows: a100: a;b: 0x1 1x9: fwd\nshort rows: t4: a;b: 0x1 2x9: fwd\n", 1},
        {"short rows: a100: a;b: 0x1 1x9: fwd\nshort rows: h200: a;b: 0x9: fwd\n", 0},
        {"term: x\nshort rows: h200: a;b: 0x1 1x9: fwd: 1\nshort rows: h200: a;b: 0x1 2x9: fwd\n", 2},
    };
    const fk_short_class class = {true, true, 64, 64, 1};
    for (size_t i = 0; i < sizeof infos / sizeof *infos; i++) {
        char plan[FK_MAX_PLAN] = "", *info = strdup(infos[i].info);
        const int number = fk_short_map_find(info, "h200", "fwd", &class, plan);
        if (number != infos[i].number) fail_msg("line %zu: %d", i, number);
        if (number > 0) assert_string_equal(plan, number == 1 ? "a" : "b");
        free(info);
    }
}

static int make_packs(void **state) {
    (void)state;
    static const char *const gpu = "h200";
    fk_pack_options options = FK_PACK_OPTIONS_INIT;
    unsetenv("FLASHKILN_TUNING"); /* with which one kernel serves all sizes */
    if (!scratch_make(dir, sizeof dir)) return -1;
    snprintf(with_path, sizeof with_path, "%s/with.fkpack", dir);
    snprintf(without_path, sizeof without_path, "%s/without.fkpack", dir);
    snprintf(merged_path, sizeof merged_path, "%s/merged.fkpack", dir);
    snprintf(store_dir, sizeof store_dir, "%s/store", dir);
    options.emulate = 1;
    if (fk_pack_build(without_path, spellings, 1, &gpu, 1, &options, NULL, NULL, NULL)) return -1;
    options.sized = 1;
    return fk_pack_build(with_path, spellings, SPELLINGS, &gpu, 1, &options, NULL, NULL, NULL) ? -1 : 0;
}

static int remove_packs(void **state) {
    (void)state;
    scratch_remove(dir);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(packed_are_those_compiled),
                                       cmocka_unit_test(that_for_all_sizes_serves),
                                       cmocka_unit_test(packs_beside_each_other),
                                       cmocka_unit_test(other_templates),
                                       cmocka_unit_test(without_tools),
                                       cmocka_unit_test(lines)};
    return cmocka_run_group_tests(tests, make_packs, remove_packs);
}

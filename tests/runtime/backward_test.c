/* The backward pass on the emulator, the whole way: one small case of each kind of path. Broad random coverage is
 * tests/random_problems.c. */
#include "backward_sample.h"

/* Returns a hash of the results. */
static uint64_t run(const sample *s) {
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    fk_context *context;
    fk_kernel_info info;
    uint64_t hash = 0;
    options.device = "emu", options.plan_for = s->plan_for, options.cache_mode = FK_CACHE_OFF;
    if (fk_context_create(&options, &context)) fail_msg("%s", fk_last_error());
    assert_true(backward_run(context, s, &info, &hash));
    assert_string_equal(info.image.target, "emu");
    fk_context_destroy(context);
    return hash;
}

static void samples(void **state) {
    (void)state;
    static const sample all[] = {
        {"bwd fp16 d32 causal", "a100", 1, 2, 2, 200, 200, FK_BSHD, 0},
        {"bwd bf16 d64 gqa causal", "a100", 2, 4, 2, 70, 150, FK_BHSD, 0},
        {"bwd fp16 d40 dv24", "rtx3090", 1, 1, 1, 65, 33, FK_BSHD, 72},
        {"bwd fp16 d64 causal top-left", "t4", 1, 2, 2, 130, 70, FK_BSHD, 0},
        {"bwd fp16 d64 keep=\"k <= q && (q - k) % 4 == 0\"", "a100", 1, 1, 1, 150, 150, FK_BSHD, 0},
        {"bwd fp16 d64 score=\"k >= 100 ? s - 1e9 : s\"", "t4", 1, 1, 1, 60, 150, FK_BSHD, 0},
        {"bwd bf16 d64 score=\"tanh(s + 1)\"", "h200", 1, 1, 1, 140, 150, FK_BSHD, 0},
        {"bwd fp16 d64 softcap(100000000)", "h200", 1, 1, 1, 140, 150, FK_BSHD, 0},
        /* a tile's blocks are asked about, of which it has several, or a piece of one more */
        {"bwd fp16 d32 bigbird(64)", "h200", 1, 2, 2, 300, 377, FK_BSHD, 0},
        {"bwd bf16 d64 bigbird(32x64)", "h200", 1, 2, 2, 330, 200, FK_BSHD, 0},
        {"bwd fp16 d32 bigbird(32)", "a100", 1, 1, 1, 200, 277, FK_BSHD, 0},
        /* the first tiles in parts of their queries, those of all heads of a group */
        {"bwd fp16 d32 gqa bigbird(64) top-left dropout", "a100", 1, 4, 1, 2100, 130, FK_BSHD, 0},
        {"bwd fp16 d40 dv24 longformer(64,1,1,2) top-left", "t4", 2, 1, 1, 8300, 60, FK_BHSD, 0},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        run(&all[i]);
}

/* The same bits whatever the order of blocks, warps and lanes is, and however many OS threads run them. */
static void deterministic(void **state) {
    (void)state;
    static const sample all[] = {
        {"bwd bf16 d64 causal deterministic", "a100", 1, 2, 2, 300, 300, FK_BSHD, 0},
        {"bwd fp16 d128 gqa deterministic", "h200", 1, 4, 2, 130, 210, FK_BHSD, 0},
        {"bwd fp16 d40 dv72 window(60,20) deterministic", "rtx3090", 1, 1, 1, 150, 200, FK_BSHD, 96},
        {"bwd fp16 d64 keep=\"(q + k) % 3 != 0 || k == 0\" deterministic", "t4", 1, 2, 2, 100, 90, FK_BSHD, 0},
        {"bwd bf16 d256 causal top-left deterministic", "h200", 1, 1, 1, 150, 70, FK_BSHD, 0},
        /* a block's pairs are asked for one by one where intervals of floats tell nothing: who waits must know as well
         */
        {"bwd fp16 d64 blocks(128)=\"float(i) * 0.7 >= float(j)\" deterministic", "h200", 1, 1, 1, 400, 400, FK_BSHD,
         0},
        {"bwd bf16 d64 bigbird(64) deterministic", "h200", 1, 1, 1, 300, 333, FK_BSHD, 0},
    };
    static const char *const schedules[][2] = {{"0", "1"}, {"7", "4"}, {"12345", "3"}}; /* seed, OS threads */
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        uint64_t first = 0;
        for (size_t n = 0; n < sizeof schedules / sizeof *schedules; n++) {
            setenv("FLASHKILN_EMU_SEED", schedules[n][0], 1);
            setenv("FLASHKILN_EMU_THREADS", schedules[n][1], 1);
            const uint64_t hash = run(&all[i]);
            if (n == 0) first = hash;
            assert_int_equal(hash, first);
        }
    }
    unsetenv("FLASHKILN_EMU_SEED");
    unsetenv("FLASHKILN_EMU_THREADS");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(samples), cmocka_unit_test(deterministic)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* How many splits are chosen, and which plans problems with `split` get. */
#include "test.h"

#include "gen/plan.h"

static const fk_plan_info plan = {.block_m = 64, .block_n = 64, .warps = 4, .stages = 2, .ctas_per_sm = 2};

static int choose(int64_t num_ctas, int64_t k_tiles) {
    static const fk_device_info device = {.num_sms = 100, .hbm_gbps = 3000};
    fk_problem p = FK_PROBLEM_INIT;
    p.head_dim = p.head_dim_v = 128, p.split = 1;
    return fk_split_choose(&p, &device, &plan, num_ctas, 1, k_tiles, 0);
}

static void fills_the_gpu(void **state) {
    (void)state;
    assert_int_equal(choose(200, 1000), 1); /* 100 SMs hold 200 CTAs */
    assert_int_equal(choose(100000, 1000), 1);
    assert_int_equal(choose(100, 1000), 2);
    assert_int_equal(choose(20, 1000), 10);
    assert_int_equal(choose(1, 100000), FK_MAX_SPLITS);
    assert_int_equal(choose(1, 0), 1); /* nothing to see */
    assert_int_equal(choose(1, 1), 1); /* one tile cannot be shared */
    assert_int_equal(choose(1, 2), 1); /* and a few are not worth a second kernel */
    for (int64_t k_tiles = 1; k_tiles < 300; k_tiles++)
        assert_in_range(choose(7, k_tiles), 1, k_tiles);
}

static fk_plan_info best(const char *spelling, const char *gpu, fk_shape shape) {
    fk_problem p;
    fk_plan_options options = FK_PLAN_OPTIONS_INIT;
    fk_plan_info *plans = NULL;
    size_t count;
    options.shape = shape;
    if (fk_problem_parse(spelling, &p) || fk_plan_list(&p, gpu, &options, &plans, &count))
        fail_msg("%s: %s", spelling, fk_last_error());
    const fk_plan_info first = plans[0];
    fk_free(plans);
    return first;
}

static void small_tiles_for_few_queries(void **state) {
    (void)state;
    static const char *const gpus[] = {"t4", "a100", "rtx3090", "h200"};
    const fk_shape nominal = {0, 0, 0, 0, 0}, longer = {1, 32, 32, 4096, 4096};
    for (size_t i = 0; i < sizeof gpus / sizeof *gpus; i++) {
        assert_true(best("fwd fp16 d128 split", gpus[i], nominal).block_m <= 64);
        assert_true(best("fwd fp16 d64 split paged", gpus[i], nominal).block_m <= 64);
        assert_true(best("fwd fp16 d64 split", gpus[i], longer).block_m >= 64);
        assert_true(best("fwd fp16 d64", gpus[i], nominal).block_m >= 64);
    }
}

/* Decoding on an H200 (docs/performance-log.md): tiles of 64 keys where registers allow, of 32 rows for a group's few
 * queries; one warp of 16 x 16 keys of 8 bits has no registers to have the next ones on their way. */
static void tiles_for_decoding(void **state) {
    (void)state;
    const fk_shape one = {1, 32, 8, 1, 8192}, four = {16, 64, 8, 4, 4096};
    static const char *const spellings[] = {"fwd bf16 d64 gqa split", "fwd bf16 d96 gqa split",
                                            "fwd bf16 d128 gqa split", "fwd bf16 d192 gqa split"};
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        const fk_plan_info few = best(spellings[i], "h200", one), more = best(spellings[i], "h200", four);
        assert_int_equal(few.block_n, 64);
        assert_true(few.block_m <= 32);
        assert_int_equal(more.block_n, 64);
        assert_int_equal(more.block_m, 32);
    }
    const fk_shape nominal = {0, 0, 0, 0, 0};
    assert_int_equal(best("fwd bf16 d256 gqa split kv_e4m3", "h200", nominal).block_m, 32);
    assert_int_equal(best("fwd bf16 d256 split kv_e4m3", "h200", nominal).block_m, 32);
    assert_int_equal(best("fwd bf16 d128 gqa split", "h200", nominal).block_n, 64);
    assert_int_equal(best("fwd bf16 d128 gqa split", "a100", nominal).block_n, 32); /* where it was not timed */
}

/* A warp of its own copies 64 rows one after another, and finds each in its page: 1.3 times the fastest plan's time on
 * an H200 (docs/performance-log.md). */
static void lanes_share_rows_in_pages(void **state) {
    (void)state;
    static const char *const spellings[] = {"fwd bf16 d128 gqa seqused_k causal split paged",
                                            "fwd fp16 d64 gqa seqused_k causal split paged"};
    const fk_shape decode = {4, 16, 2, 1, 4096};
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        const fk_plan_info first = best(spellings[i], "h200", decode);
        assert_true(first.block_n / first.warps <= 32);
    }
}

static fk_split_model model(int dim_v, int64_t batch) {
    static const fk_device_info device = {.num_sms = 100, .hbm_gbps = 3000};
    const fk_shape shape = {batch, 8, 8, 64, 64 * 1000};
    fk_tile_totals walks = {.num_ctas = 1, .min_visited = 1000, .mean_visited = 1000, .max_visited = 1000};
    fk_problem p = FK_PROBLEM_INIT;
    fk_split_model out;
    p.head_dim = 128, p.head_dim_v = dim_v, p.split = 1;
    fk_model_split(&p, &device, &shape, &plan, &walks, &out);
    return out;
}

/* Each half of values of 512 columns is as many CTAs as there are tiles, with what values of 256 take; both read the
 * same keys. */
static void halves_of_values_are_ctas_of_their_own(void **state) {
    (void)state;
    const fk_split_model wide = model(512, 1), narrow = model(256, 2);
    assert_true(wide.num_ctas == narrow.num_ctas && wide.num_ctas > 16);
    assert_true(wide.share == 1 && narrow.share == 1);
    assert_true(wide.loading_us < narrow.loading_us && wide.loading_us > 0.6 * narrow.loading_us);
    assert_true(wide.around_us == narrow.around_us);
    const double splits = wide.num_ctas / 16; /* each writes and reads a row of floats, and of lse one */
    assert_true(wide.combine_bytes == 8.0 * splits * 8 * 64 * 513);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(fills_the_gpu), cmocka_unit_test(small_tiles_for_few_queries),
                                       cmocka_unit_test(tiles_for_decoding),
                                       cmocka_unit_test(lanes_share_rows_in_pages),
                                       cmocka_unit_test(halves_of_values_are_ctas_of_their_own)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Which kernel fk_kernel_create_for gives the forward pass where rows are short or heads are few: the model's for them,
 * where it takes less time; sizes that want the same plan share it. */
#include "emulated.h"
#include "runtime/object.h"
#include "store.h"

static const emulated plain = {"132", "0", "0"};

/* 0 rows: the kernel for all sizes. */
static void who_gets_which(void **state) {
    (void)state;
    static const struct {
        const char *spelling;
        fk_shape shape;
        int block_m, block_n;
    } cases[] = {
        /* 257 rows are three tiles of 128 or two of 256, of which the second one has one row */
        {"fwd bf16 d64", {64, 16, 16, 257, 257}, 128, 64},
        {"fwd bf16 d64", {64, 16, 16, 300, 300}, 128, 64},
        {"fwd bf16 d64", {64, 16, 16, 512, 512}, 0, 0},
        {"fwd bf16 d64", {16, 16, 16, 1024, 1024}, 0, 0},
        {"fwd bf16 d64", {16, 16, 16, 2049, 2049}, 0, 0}, /* a row of tiles is long */
        /* few heads: more SMs have a tile */
        {"fwd bf16 d64", {1, 12, 12, 1024, 1024}, 128, 128},
        {"fwd bf16 d64", {1, 8, 8, 2048, 2048}, 128, 128},
        {"fwd bf16 d64 causal", {1, 8, 8, 2048, 2048}, 128, 128},
        {"fwd bf16 d64 causal gqa", {99, 21, 3, 49, 49}, 64, 64}, /* 7 divides no class of heads */
        {"fwd bf16 d80 dropout", {1, 24, 24, 1024, 1024}, 128, 128},
        {"fwd bf16 d128", {64, 16, 16, 257, 257}, 192, 64}, /* two tiles of 192 instead of three */
        {"fwd bf16 d128", {32, 32, 32, 512, 512}, 0, 0},
        /* rows of one tile: four teams, or the two that there is room for */
        {"fwd bf16 d64", {512, 16, 16, 49, 49}, 64, 64},
        {"fwd bf16 d128", {512, 16, 16, 49, 49}, 64, 64},
        /* packed, by the longest */
        {"fwd bf16 d64 packed", {400, 32, 32, 64, 64}, 64, 64},
        {"fwd bf16 d128 packed causal", {400, 16, 16, 64, 64}, 64, 64},
        {"fwd bf16 d128 packed", {64, 16, 16, 577, 577}, 0, 0},
        {"fwd bf16 d64 packed", {400, 32, 32, 64, 128}, 0, 0},
        /* decoding: tiles of as few rows as there are */
        {"fwd bf16 d128", {16, 8, 8, 4, 4096}, 64, 128},
        {"fwd bf16 d128", {16, 8, 8, 4, 100}, 0, 0},
        /* what the model was not checked for */
        {"fwd bf16 d64 split", {1, 12, 12, 1024, 1024}, 0, 0},
        {"bwd bf16 d192 causal", {64, 12, 12, 200, 200}, 0, 0},
    };
    fk_context *context = emulated_context("h200", store_dir, &plain);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fk_kernel *all = emulated_kernel(context, cases[i].spelling, NULL);
        fk_kernel *sized = emulated_kernel(context, cases[i].spelling, &cases[i].shape);
        fk_kernel_info info;
        assert_int_equal(fk_kernel_describe(sized, &info), FK_OK);
        if ((sized == all) != (cases[i].block_m == 0) ||
            (sized != all && (info.plan.block_m != cases[i].block_m || info.plan.block_n != cases[i].block_n)))
            fail_msg("case %zu, %s: %d x %d%s", i, cases[i].spelling, info.plan.block_m, info.plan.block_n,
                     sized == all ? ", for all sizes" : "");
        assert_int_equal(sized->variant <= FK_OTHER_TILE, sized != all);
        fk_kernel_destroy(sized);
        fk_kernel_destroy(all);
    }
    fk_context_destroy(context);
}

static void share_one(const char *spelling, const fk_shape *shapes, int count) {
    enum { MOST = 5 };
    fk_problem p;
    fk_kernel *kernel[MOST];
    fk_context_counts counts;
    fk_context *context = emulated_context("h200", store_dir, &plain);
    assert_in_range(count, 2, MOST);
    assert_int_equal(fk_problem_parse(spelling, &p), FK_OK);
    for (int i = 0; i < count; i++) {
        assert_int_equal(fk_kernel_create_for(context, &p, &shapes[i], &kernel[i]), FK_OK);
        assert_ptr_equal(kernel[i], kernel[0]);
    }
    assert_int_equal(fk_context_count(context, &counts), FK_OK);
    assert_int_equal(counts.compiled + counts.store, 1);
    for (int i = 0; i < count; i++)
        fk_kernel_destroy(kernel[i]);
    fk_context_destroy(context);
}

/* Classes that want the same plan have one kernel, which is compiled once; so has a class that is asked for again. */
static void who_shares_one(void **state) {
    (void)state;
    static const fk_shape rows[] = {{64, 16, 16, 100, 100},
                                    {64, 16, 16, 100, 100},
                                    {64, 16, 16, 119, 100},
                                    {32, 16, 16, 577, 577},
                                    {90, 16, 16, 65, 128}},
                          keys[] = {{16, 8, 8, 4, 1000}, {16, 8, 8, 4, 4096}, {16, 8, 8, 2, 20000}};
    share_one("fwd bf16 d64 dropout", rows, sizeof rows / sizeof *rows);
    share_one("fwd bf16 d128", keys, sizeof keys / sizeof *keys);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(who_gets_which), cmocka_unit_test(who_shares_one)};
    return cmocka_run_group_tests(tests, make_sized_store, remove_store);
}

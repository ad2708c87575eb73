/* Which kernel fk_kernel_create_for gives the backward pass: one whose warpgroups take turns where rows are long, and
 * one without where they are shorter; sizes that want the same share it. Where they are short, a CTA has a whole head.
 */
#include "emulated.h"
#include "runtime/object.h"
#include "store.h"

static void turns_where_rows_are_long(void **state) {
    (void)state;
    static const emulated plain = {"132", "0", "0"};
    static const struct {
        const char *spelling;
        fk_shape shape;
        int turns;
        bool for_all;
    } cases[] = {
        {"bwd bf16 d64 causal", {4, 32, 32, 4096, 4096}, 1, true},
        {"bwd bf16 d64 causal", {16, 32, 32, 1024, 1024}, 0, false},
        {"bwd bf16 d64 causal", {8, 12, 12, 1024, 1000}, 0, false},
        {"bwd bf16 d64 causal", {1, 2, 2, 513, 77}, 0, false},
        {"bwd bf16 d64 causal gqa", {4, 84, 12, 8192, 8192}, 1, true}, /* 7 divides no edge of heads */
        {"bwd bf16 d64 causal gqa", {16, 84, 12, 300, 300}, 0, false},
        {"bwd bf16 d64", {4, 32, 32, 4096, 4096}, 1, true},
        {"bwd bf16 d64 block_bits(128)", {4, 32, 32, 4096, 4096}, 1, true},
        {"bwd bf16 d64 block_bits(128)", {16, 32, 32, 1024, 1024}, 0, false},
        {"bwd bf16 d64 butterfly(128)", {2, 32, 32, 8192, 8192}, 1, false},
        {"bwd bf16 d64 butterfly(128)", {1, 8, 8, 65536, 65536}, 1, false},
        {"bwd bf16 d64 butterfly(128)", {16, 32, 32, 1024, 1024}, 0, true},
        {"bwd bf16 d128 causal", {32, 16, 16, 512, 512}, 0, true},
    };
    fk_context *context = emulated_context("h200", store_dir, &plain);
    fk_kernel *other = NULL;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fk_kernel *all = emulated_kernel(context, cases[i].spelling, NULL);
        fk_kernel *sized = emulated_kernel(context, cases[i].spelling, &cases[i].shape);
        fk_kernel_info info;
        assert_int_equal(fk_kernel_describe(sized, &info), FK_OK);
        assert_int_equal(info.plan.turns, cases[i].turns);
        assert_int_equal(sized == all, cases[i].for_all);
        if (i > 0 && strcmp(cases[i].spelling, cases[i - 1].spelling) != 0) other = NULL;
        if (!cases[i].for_all) {
            assert_int_equal(sized->variant, FK_OTHER_TURNS);
            if (other) assert_ptr_equal(other, sized);
            other = sized;
        }
        fk_kernel_destroy(sized);
        fk_kernel_destroy(all);
    }
    fk_context_destroy(context);
}

/* Short rows of many heads: a CTA has all keys of a head. Of few heads most SMs would have none. */
static void whole_heads_where_rows_are_short(void **state) {
    (void)state;
    static const emulated plain = {"132", "0", "0"};
    static const struct {
        const char *spelling;
        fk_shape shape;
        int head_rows; /* 0: the kernel has tiles of keys */
    } cases[] = {
        {"bwd bf16 d64 causal", {32, 32, 32, 512, 512}, 512},
        {"bwd bf16 d64 causal", {32, 32, 32, 449, 470}, 512},
        {"bwd bf16 d64 causal", {32, 32, 32, 513, 513}, 0},
        {"bwd bf16 d64", {64, 16, 16, 257, 257}, 384},
        {"bwd bf16 d64", {64, 16, 16, 197, 197}, 256},
        {"bwd fp16 d128", {64, 16, 16, 128, 128}, 128},
        {"bwd fp16 d128", {64, 16, 16, 129, 129}, 0},
        {"bwd fp16 d64 causal gqa", {64, 16, 4, 256, 256}, 0},
        {"bwd bf16 d64 deterministic", {64, 16, 16, 256, 256}, 256},
        {"bwd bf16 d64", {1, 2, 2, 512, 512}, 0},
        {"bwd bf16 d64", {2, 12, 12, 512, 512}, 0},
        {"bwd bf16 d256", {64, 16, 16, 128, 128}, 0},
        {"bwd bf16 d32", {128, 64, 64, 128, 128}, 0}, /* without turns it is as fast */
        {"bwd bf16 d32", {85, 64, 64, 192, 192}, 256},
        /* Packed, the longest sequence has so many rows. */
        {"bwd bf16 d64 packed", {65, 32, 32, 512, 512}, 512},
        {"bwd bf16 d64 causal packed", {40, 12, 12, 480, 490}, 512},
        {"bwd bf16 d64 packed", {18, 12, 12, 512, 512}, 0},
        {"bwd bf16 d64 packed", {72, 32, 32, 380, 380}, 384},
        {"bwd bf16 d64 packed dropout", {24, 12, 12, 255, 255}, 256},
        {"bwd bf16 d64 packed", {8, 12, 12, 255, 255}, 0},
        {"bwd bf16 d64 packed", {239, 12, 12, 128, 128}, 256},
        {"bwd fp16 d96 packed", {239, 20, 20, 128, 128}, 128},
        {"bwd fp16 d128 packed", {127, 16, 16, 256, 256}, 0},
        {"bwd bf16 d64 packed", {239, 12, 12, 128, 300}, 0},
        {"bwd bf16 d64 gqa packed", {239, 12, 4, 128, 128}, 0},
    };
    fk_context *context = emulated_context("h200", store_dir, &plain);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fk_kernel *sized = emulated_kernel(context, cases[i].spelling, &cases[i].shape);
        fk_kernel_info info;
        assert_int_equal(fk_kernel_describe(sized, &info), FK_OK);
        if (info.plan.head_rows != cases[i].head_rows) fail_msg("case %zu: %d rows", i, info.plan.head_rows);
        fk_kernel *all = emulated_kernel(context, cases[i].spelling, NULL);
        assert_int_equal(fk_kernel_describe(all, &info), FK_OK);
        assert_int_equal(info.plan.head_rows, 0);
        fk_kernel_destroy(all);
        fk_kernel_destroy(sized);
    }
    fk_context_destroy(context);
}

/* The kernel for all sizes serves them, also where it is planned for short rows. */
static void one_for_all_serves_all(void **state) {
    (void)state;
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    fk_context *context;
    fk_kernel_info info;
    options.device = "emu", options.plan_for = "h200", options.cache_dir = store_dir;
    options.planning.shape = (fk_shape){64, 16, 16, 256, 256};
    assert_int_equal(fk_context_create(&options, &context), FK_OK);
    fk_kernel *all = emulated_kernel(context, "bwd bf16 d64", NULL);
    assert_int_equal(fk_kernel_describe(all, &info), FK_OK);
    assert_int_equal(info.plan.head_rows, 0);
    assert_int_equal(info.plan.chosen, FK_CHOSEN_BY_RULE);
    fk_kernel_destroy(all);
    fk_context_destroy(context);
}

/* Of few heads and tokens tiles of 64 x 64 by family mma, unless a CTA has all keys of a head. */
static void few_heads_begin_soon(void **state) {
    (void)state;
    static const emulated plain = {"132", "0", "0"};
    static const struct {
        const char *spelling;
        fk_shape shape;
        bool by_mma;
    } cases[] = {
        {"bwd bf16 d64", {1, 4, 4, 80, 80}, true},
        {"bwd fp16 d128 causal", {2, 8, 8, 192, 192}, true},
        {"bwd bf16 d64 array=bias:bf16[b][h][q][k] grad=bias bias", {1, 12, 12, 64, 64}, true},
        {"bwd bf16 d64", {1, 4, 4, 64, 64}, false}, /* all keys of a head */
        {"bwd bf16 d64", {8, 8, 8, 192, 192}, false},
        {"bwd bf16 d64", {1, 8, 8, 320, 320}, false},
        {"bwd bf16 d64", {1, 8, 8, 80, 2000}, false},
        {"bwd bf16 d64 deterministic", {1, 8, 8, 150, 150}, false},
        {"bwd bf16 d256", {1, 8, 8, 150, 150}, false},
    };
    fk_context *context = emulated_context("h200", store_dir, &plain);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fk_kernel *sized = emulated_kernel(context, cases[i].spelling, &cases[i].shape);
        fk_kernel_info info;
        assert_int_equal(fk_kernel_describe(sized, &info), FK_OK);
        const fk_plan_info *plan = &info.plan;
        const bool small = plan->block_m == 64 && plan->block_n == 64 && plan->warps == 8;
        assert_int_equal(strcmp(plan->family, "mma") == 0 && small, cases[i].by_mma);
        fk_kernel_destroy(sized);
    }
    fk_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turns_where_rows_are_long),
        cmocka_unit_test(whole_heads_where_rows_are_short),
        cmocka_unit_test(one_for_all_serves_all),
        cmocka_unit_test(few_heads_begin_soon),
    };
    return cmocka_run_group_tests(tests, make_sized_store, remove_store);
}

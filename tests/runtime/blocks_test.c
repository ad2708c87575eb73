/* fk_pack_blocks on the emulator, of both families, and what it refuses. */
#include "runtime/blocks_same_sample.h"
#include "runtime/blocks_sample.h"

static void all_forms_become_the_same_bits(void **state) {
    (void)state;
    blocks_run_all("emu", "a100");
    blocks_run_all("emu", "h200");
}

static void predicate_and_table_agree(void **state) {
    (void)state;
    same_run_all("emu", "a100", false);
    same_run_all("emu", "h200", true);
}

static void refusals_name_field_value_and_limit(void **state) {
    (void)state;
    static int32_t bits[64], data[64], indices[64];
    const fk_blocks good = {sizeof good, FK_BLOCK_LISTS, 1, 4, 40, 8, data, indices, NULL};
    enum { ROWS = 14 };
    fk_blocks rows[ROWS];
    static const char *const messages[] = {
        "blocks->struct_size is 3; FK_BLOCKS_INIT makes it",
        "blocks->format is 6; it must be from 0 to 5",
        "blocks->tables is 0; it must be from 1 to",
        "blocks->rows is -1; it must be from 1 to",
        "blocks->columns is 0; it must be from 1 to",
        "blocks->tables x rows is 4294967296; it must be from 1 to",
        "blocks->tables of BSR is 2; it must be from 1 to 1",
        "blocks->indices is null",
        "blocks->width is -1; it must be from 0 to",
        "blocks->width is 39; it must be from 40 to",
        "blocks->width is 39; it must be from 40 to",
        "it must be aligned to 2 bytes",
        "it must be aligned to 4 bytes",
        "blocks->others is at 0x",
    };
    for (int i = 0; i < ROWS; i++)
        rows[i] = good;
    rows[0].struct_size = 3, rows[1].format = 6, rows[2].tables = 0, rows[3].rows = -1, rows[4].columns = 0;
    rows[5].tables = rows[5].rows = 65536, rows[6].format = FK_BLOCK_BSR, rows[6].tables = 2, rows[7].indices = NULL;
    rows[8].width = -1, rows[9].format = FK_BLOCK_BOOLS, rows[9].width = 39;
    rows[10].format = FK_BLOCK_BF16, rows[10].width = 39;
    rows[11].format = FK_BLOCK_FP16, rows[11].width = 0, rows[11].data = (const char *)data + 1;
    rows[12].indices = (const int32_t *)(const void *)((const char *)indices + 2);
    rows[13].others = (int32_t *)(void *)((char *)data + 2);
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    fk_context *context;
    fk_kernel *kernel;
    fk_problem p;
    options.device = "emu", options.plan_for = "a100", options.cache_mode = FK_CACHE_OFF;
    assert_int_equal(fk_context_create(&options, &context), FK_OK);
    assert_int_equal(fk_problem_parse("fwd fp16 d16 block_bits(16)", &p), FK_OK);
    assert_int_equal(fk_kernel_create(context, &p, &kernel), FK_OK);
    for (int i = 0; i < ROWS; i++) {
        assert_int_equal(fk_pack_blocks(kernel, &rows[i], bits, NULL), FK_BAD_ARGUMENT);
        if (!strstr(fk_last_error(), messages[i])) fail_msg("%s: %s", messages[i], fk_last_error());
    }
    assert_int_equal(fk_pack_blocks(kernel, &good, NULL, NULL), FK_BAD_ARGUMENT);
    assert_int_equal(fk_pack_blocks(kernel, &good, (int32_t *)(void *)((char *)bits + 2), NULL), FK_BAD_ARGUMENT);
    assert_non_null(strstr(fk_last_error(), "bits is at 0x"));
    assert_int_equal(fk_pack_blocks(kernel, &good, bits, NULL), FK_OK);
    fk_kernel_destroy(kernel);
    assert_int_equal(fk_problem_parse("fwd fp16 d16 butterfly(16)", &p), FK_OK);
    assert_int_equal(fk_kernel_create(context, &p, &kernel), FK_OK);
    assert_int_equal(fk_pack_blocks(kernel, &good, bits, NULL), FK_BAD_ARGUMENT);
    assert_non_null(strstr(fk_last_error(), "the problem has no table of blocks; it must read block_bits or bits"));
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_forms_become_the_same_bits),
        cmocka_unit_test(predicate_and_table_agree),
        cmocka_unit_test(refusals_name_field_value_and_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

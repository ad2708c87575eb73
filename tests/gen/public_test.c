/* The generator's public functions with what a caller may forget: each null pointer by its name, before any work. */
#include "flashkiln.h"
#include "test.h"

#define SAYS(call, text)                                                                                               \
    do {                                                                                                               \
        assert_int_equal(call, FK_BAD_ARGUMENT);                                                                       \
        assert_string_equal(fk_last_error(), text);                                                                    \
    } while (0)

static void null_pointers(void **state) {
    (void)state;
    fk_problem p;
    fk_array_decl arrays[FK_MAX_ARRAYS];
    fk_shape shape = {0};
    fk_plan_info plan, *plans;
    fk_tile_counts tiles;
    size_t count;
    int32_t rows, columns;
    char text[FK_MAX_SPELLING];
    uint8_t map[16];
    assert_int_equal(fk_problem_parse("fwd fp16 d64 causal", &p), FK_OK);
    assert_int_equal(fk_plan_list(&p, "a100", NULL, &plans, &count), FK_OK);
    plan = plans[0];
    fk_free(plans);
    SAYS(fk_problem_arrays(&p, NULL, &count), "out is null");
    SAYS(fk_problem_arrays(&p, arrays, NULL), "count is null");
    SAYS(fk_problem_blocks(&p, NULL, &columns), "rows is null");
    SAYS(fk_problem_blocks(&p, &rows, NULL), "columns is null");
    SAYS(fk_shape_complete(NULL, &shape), "problem is null");
    SAYS(fk_shape_complete(&p, NULL), "shape is null");
    SAYS(fk_plan_spell(NULL, text, sizeof text), "plan is null");
    SAYS(fk_plan_spell(&plan, NULL, 0), "out is null");
    SAYS(fk_plan_tiles(NULL, &plan, NULL, &tiles), "problem is null");
    SAYS(fk_plan_tiles(&p, NULL, NULL, &tiles), "plan is null");
    SAYS(fk_plan_tiles(&p, &plan, NULL, NULL), "out is null");
    SAYS(fk_plan_tile_map(NULL, &plan, NULL, 0, map, sizeof map), "problem is null");
    SAYS(fk_plan_tile_map(&p, NULL, NULL, 0, map, sizeof map), "plan is null");
    SAYS(fk_plan_tile_map(&p, &plan, NULL, 0, NULL, 0), "out is null");
    fk_free(NULL);
}

/* Fields that no spelling gives. */
static void problems_that_are_none(void **state) {
    (void)state;
    fk_problem p;
    fk_array_decl arrays[FK_MAX_ARRAYS];
    fk_shape shape = {0};
    size_t count;
    int32_t rows, columns;
    assert_int_equal(fk_problem_parse("fwd fp16 d64 causal", &p), FK_OK);
    p.head_dim = 7;
    assert_int_equal(fk_problem_arrays(&p, arrays, &count), FK_BAD_PROBLEM);
    assert_message(fk_last_error(), "head_dim");
    assert_int_equal(fk_problem_blocks(&p, &rows, &columns), FK_BAD_PROBLEM);
    assert_message(fk_last_error(), "head_dim");
    assert_int_equal(fk_shape_complete(&p, &shape), FK_BAD_PROBLEM);
    assert_message(fk_last_error(), "head_dim");
}

/* By two terms that read it, or by one and its file. */
static void what_is_declared_twice_is_one_array(void **state) {
    (void)state;
    fk_problem p, once, twice;
    assert_int_equal(fk_problem_parse("fwd fp16 d64 array=x:float[h] array=y:int[b] score=\"s * x[h]\"", &p), FK_OK);
    assert_int_equal(fk_problem_canonical(&p, &once), FK_OK);
    assert_int_equal(
        fk_problem_parse("fwd fp16 d64 array=x:float[h] array=x:float[h] array=y:int[b] score=\"s * x[h]\"", &p),
        FK_OK);
    assert_int_equal(fk_problem_canonical(&p, &twice), FK_OK);
    assert_memory_equal(&once, &twice, sizeof once);
    assert_int_equal(fk_problem_parse("fwd fp16 d64 array=x:float[h] array=x:float[b]", &p), FK_BAD_PROBLEM);
    assert_message(fk_last_error(), "array x is declared as float[h] and as float[b]");
    assert_int_equal(fk_problem_parse("fwd fp16 d64 array=slope:float[h] alibi", &p), FK_OK);
}

static void blocks_of_patterns(void **state) {
    (void)state;
    static const struct {
        const char *spelling;
        int32_t rows, columns;
    } row[] = {{"fwd fp16 d64 causal", 0, 0},
               {"fwd fp16 d64", 0, 0},
               {"fwd fp16 d64 butterfly(128)", 128, 128},
               {"fwd fp16 d64 causal butterfly(64)", 64, 64}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        fk_problem p;
        int32_t rows = -1, columns = -1;
        assert_int_equal(fk_problem_parse(row[i].spelling, &p), FK_OK);
        assert_int_equal(fk_problem_blocks(&p, &rows, &columns), FK_OK);
        assert_true(rows == row[i].rows && columns == row[i].columns);
    }
}

static void shapes_are_filled(void **state) {
    (void)state;
    static const struct {
        const char *spelling;
        fk_shape given, want;
    } row[] = {
        {"fwd fp16 d64", {0}, {4, 32, 32, 4096, 4096}},
        {"fwd fp16 d64 gqa", {0}, {4, 32, 4, 4096, 4096}},
        {"fwd fp16 d128", {0, 0, 0, 0, 512}, {32, 16, 16, 512, 512}},
        {"fwd fp16 d128", {0, 0, 0, 40000, 0}, {1, 16, 16, 40000, 40000}},
        {"fwd fp16 d128", {2, 0, 3, 64, 64}, {2, 3, 3, 64, 64}},
        {"fwd fp16 d128 gqa", {2, 0, 3, 64, 64}, {2, 24, 3, 64, 64}},
        {"fwd fp16 d128 gqa", {2, 6, 0, 64, 64}, {2, 6, 1, 64, 64}},
        {"fwd fp16 d128 split", {0}, {32, 16, 16, 1, 4096}},
        {"fwd fp16 d128 split", {0, 0, 0, 0, 65536}, {2, 16, 16, 1, 65536}},
    };
    fk_problem p;
    fk_shape bad = {1, 4, 3, 64, 64};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        fk_shape shape = row[i].given;
        assert_int_equal(fk_problem_parse(row[i].spelling, &p), FK_OK);
        assert_int_equal(fk_shape_complete(&p, &shape), FK_OK);
        if (memcmp(&shape, &row[i].want, sizeof shape))
            fail_msg("%s: %lld, %lld, %lld, %lld, %lld", row[i].spelling, (long long)shape.batch,
                     (long long)shape.num_heads_q, (long long)shape.num_heads_kv, (long long)shape.seqlen_q,
                     (long long)shape.seqlen_k);
    }
    assert_int_equal(fk_problem_parse("fwd fp16 d64 gqa", &p), FK_OK);
    SAYS(fk_shape_complete(&p, &bad), "shape.num_heads_q is 4: must be a multiple of num_heads_kv, 3");
}

/* Decoding on Hopper: by the words of the problem, and by how full rounds of tiles are. */
static void heads_that_are_queries(void **state) {
    (void)state;
    static const struct {
        const char *spelling, *gpu, *turned; /* NULL: none */
        fk_shape shape;
    } cases[] = {
        {"fwd bf16 d128 gqa causal split", "h200", "fwd bf16 d128", {16, 32, 8, 1, 4096}},
        {"fwd bf16 d128 gqa split paged(16)", "h100", "fwd bf16 d128 paged(16)", {16, 32, 8, 1, 4096}},
        {"fwd bf16 d128 split", "h200", "fwd bf16 d128", {64, 8, 8, 1, 4096}},
        {"fwd bf16 d128 gqa split", "h200", "fwd bf16 d128", {1, 64 * 132, 132, 1, 4096}},
        {"fwd bf16 d128 gqa split", "h200", NULL, {1, 65 * 132, 132, 1, 4096}}, /* two tiles each */
        {"fwd bf16 d128 gqa split", "h200", NULL, {48, 32, 8, 1, 4096}},        /* an SM has two at a time */
        {"fwd bf16 d192 gqa split", "h200", "fwd bf16 d192", {48, 32, 8, 1, 4096}},
        {"fwd fp16 d512 gqa split", "h200", "fwd fp16 d512", {1, 8, 1, 1, 64}},
        {"fwd fp16 d512", "h200", "fwd fp16 d512", {0, 0, 0, 1, 0}},
        {"fwd bf16 d128 gqa split", "h200", NULL, {18, 32, 8, 1, 4096}},
        {"fwd bf16 d128 gqa split", "h200", NULL, {8, 32, 8, 1, 4096}},
        {"fwd bf16 d128 gqa split", "a100", NULL, {16, 32, 8, 1, 4096}},
        {"fwd bf16 d128 gqa split", "h200", NULL, {16, 32, 8, 2, 4096}},
        {"fwd bf16 d128 gqa split", "h200", NULL, {16, 30, 8, 1, 4096}},
        {"fwd bf16 d128 gqa seqused_k split", "h200", "fwd bf16 d128 seqused_k", {16, 32, 8, 1, 4096}},
        {"fwd bf16 d128 gqa seqused_k split", "h200", NULL, {64, 32, 8, 1, 4096}},
        {"fwd bf16 d192 gqa seqused_k split", "h200", "fwd bf16 d192 seqused_k", {64, 32, 8, 1, 2048}},
        {"fwd bf16 d192 gqa seqused_k split", "h200", NULL, {24, 32, 8, 1, 2048}}, /* a round and a half */
        {"fwd bf16 d64 gqa seqused_k split", "h200", NULL, {16, 32, 8, 1, 4096}},
        {"fwd bf16 d256 gqa seqused_k split", "h200", NULL, {4, 16, 4, 1, 8192}},
        {"fwd bf16 d128 gqa split paged", "h200", NULL, {16, 32, 8, 1, 4096}},
        {"fwd bf16 kv_e4m3 d128 gqa split", "h200", NULL, {16, 32, 8, 1, 4096}},
        {"fwd bf16 d128 gqa causal top-left split", "h200", NULL, {16, 32, 8, 1, 4096}},
        {"fwd bf16 d128 gqa alibi split", "h200", NULL, {16, 32, 8, 1, 4096}},
        {"fwd fp32 d128 gqa split", "h200", NULL, {16, 32, 8, 1, 4096}},
        {"fwd bf16 d128", "h200", NULL, {0, 0, 0, 0, 0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fk_problem p, other;
        fk_device_info device;
        char text[FK_MAX_SPELLING];
        assert_int_equal(fk_problem_parse(cases[i].spelling, &p), FK_OK);
        assert_int_equal(fk_device_find(cases[i].gpu, &device), FK_OK);
        const int turns = fk_problem_heads_are_queries(&p, &device, &cases[i].shape, &other);
        if (turns != (cases[i].turned != NULL)) fail_msg("%s, case %zu: %d", cases[i].spelling, i, turns);
        assert_int_equal(fk_problem_heads_are_queries(&p, &device, &cases[i].shape, NULL), turns);
        assert_int_equal(fk_problem_heads_are_queries(&p, NULL, &cases[i].shape, NULL), 0);
        if (!turns) continue;
        assert_int_equal(fk_problem_spell(&other, text, sizeof text), FK_OK);
        assert_string_equal(text, cases[i].turned);
    }
}

static void every_status_has_a_name(void **state) {
    (void)state;
    assert_string_equal(fk_status_name(FK_OK), "FK_OK");
    assert_string_equal(fk_status_name(FK_INTERNAL), "FK_INTERNAL");
    assert_string_equal(fk_status_name((fk_status)999), "unknown fk_status");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(null_pointers),
                                       cmocka_unit_test(problems_that_are_none),
                                       cmocka_unit_test(what_is_declared_twice_is_one_array),
                                       cmocka_unit_test(blocks_of_patterns),
                                       cmocka_unit_test(shapes_are_filled),
                                       cmocka_unit_test(heads_that_are_queries),
                                       cmocka_unit_test(every_status_has_a_name)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Files of templates/mask: what they may hold, and that one of the user's own is a word of spellings. */
#include "gen/problem.h"
#include "test.h"

static void test_mask_files_are_read_strictly(void **state) {
    (void)state;
    static const struct {
        const char *file, *message;
    } cases[] = {
        {"return { kep = 'k <= q' }", "templates/mask/causal.lua: unknown field 'kep'; known: params keep by_q"},
        {"return { }", "templates/mask/causal.lua: field 'keep' is missing: must be text"},
        {"return { keep = 3 }", "templates/mask/causal.lua: field 'keep' is 3: must be text"},
        {"return { keep = 'k <= q', by_q = 3 }", "templates/mask/causal.lua: field 'by_q' is 3: must be text"},
        {"return { keep = 'k <= q', by_q = 'q >= r' }", "templates/mask/causal.lua: "},
        {"return { keep = {} }", "templates/mask/causal.lua: field 'keep' is table: must be text"},
        {"return 3", "templates/mask/causal.lua: returns a number: must return a table"},
        {"return { keep = 'k <= r' }", "templates/mask/causal.lua: "},
        {"return { keep = 'k + q' }", "templates/mask/causal.lua: expression, column 3: keep must be a bool"},
        {"return { params = 3, keep = 'k <= q' }", "field 'params' is 3: must be an array of names"},
        {"return { params = { 'q' }, keep = 'k <= q' }", "param 'q': must be a new name"},
        {"return { params = { 'a', 'a' }, keep = 'k <= q' }", "param 'a': must be a new name"},
        {"return { params = { '2a' }, keep = 'k <= q' }", "param '2a': must be an identifier"},
        {"return { params = { 7 }, keep = 'k <= q' }", "param '': must be an identifier"},
        {"return { params = { 'a', 'c', 'd', 'e', 'f' }, keep = 'k <= q' }", "has more than 4 scalar params"},
        {"return { params = { 'a' }, keep = 'k <= q' }", "templates/mask/causal.lua: has 1 params: must have 0"},
        {"return { params = { { 'a', 'int', 3 } }, keep = 'k <= q' }", "param 'a': must have no default"},
        {"return { params = { { 'a', 'int', nil, 2, 3 } }, keep = 'k <= q' }",
         "param 'a': its least value must be an integer from -1073741824 to 2"},
        {"return {\n keep = nothing }", "templates/mask/causal.lua:2: unknown name 'nothing'"},
        {"return {\n keep = }", "templates/mask/causal.lua:2: unexpected symbol"},
        {"x = 1", "templates/mask/causal.lua:1: assignment to undeclared name 'x'"},
        {"return { params = { { 'a', 'real' } }, keep = 'k <= q' }",
         "param 'a': type \"real\": must be int, or an array's"},
        {"return { params = { { 'a', 'float' } }, keep = 'k <= q' }", "type \"float\": must be int, or an array's"},
        {"return { params = { { 'a', 'int[x]' } }, keep = 'k <= q' }", "type \"int[x]\": a dimension is b, h, q, k"},
        {"return { params = { { 'a', 'int[q] ' } }, keep = 'k <= q' }", "type \"int[q] \": text behind it"},
        {"return { params = { a = 'int' }, keep = 'k <= q' }", "params is a table by name: must be a list"},
        {"return { params = { { 'a', 'int', most = 3 } }, keep = 'k <= q' }",
         "param 'a': its entry has most: must have at most 5"},
        {"return { params = { { 'a', 'int[q]', 1 } }, keep = 'k <= q' }",
         "param 'a': its entry has more: must have at most 2"},
        {"error({})", "templates/mask/causal.lua: raised a table, not a message"},
        {"\033Lua", "templates/mask/causal.lua: attempt to load a binary chunk"},
        {"return { keep = ('x'):rep(1e10) }", "templates/mask/causal.lua: gen/sandbox.lua"},
    };
    fk_problem p;
    fk_error err;
    assert_int_equal(fk_problem_read("fwd fp16 d64 causal", &p, &err), FK_OK);
    const temp_dir dir = temp_dir_create();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        fk_expr_pool *pool = fk_expr_pool_create();
        fk_problem_terms terms;
        temp_dir_write(&dir, "mask/causal.lua", cases[i].file);
        assert_int_equal(fk_problem_terms_load(pool, &p, dir.path, &terms, &err), FK_TEMPLATE_ERROR);
        assert_message(err.text, cases[i].message);
        fk_expr_pool_destroy(pool);
    }
    temp_dir_remove(&dir);
}

/* Backward a mask with by_q has bounds of q alone, and they say what keep says of every pair. */
static void test_by_q_says_what_keep_says(void **state) {
    (void)state;
    static const char *const names[] = {"q", "k", "diag", "chunked0_size"};
    static const int sizes[] = {1, 7, 64};
    fk_problem p;
    fk_error err;
    for (int i = 0; i < 3; ++i) {
        fk_expr_pool *pool = fk_expr_pool_create();
        fk_problem_terms terms;
        char spelling[64];
        snprintf(spelling, sizeof spelling, "bwd fp16 d64 chunked(%d)", sizes[i]);
        assert_int_equal(fk_problem_read(spelling, &p, &err), FK_OK);
        assert_int_equal(fk_problem_terms_load(pool, &p, NULL, &terms, &err), FK_OK);
        const fk_problem_mask *mask = &terms.mask;
        assert_true(mask->by_q != mask->keep);
        assert_true(mask->split.num_upper == 1 && mask->split.num_lower == 1 && !mask->split.residual);
        assert_true(mask->param[0].divides && strcmp(mask->param[0].name, names[3]) == 0);
        for (double v[4] = {0, 0, -70, sizes[i]}; v[2] <= 70; v[2] += 35) {
            for (v[0] = 0; v[0] < 90; ++v[0]) {
                for (v[1] = 0; v[1] < 90; ++v[1]) {
                    const fk_expr_env env = {.names = names, .values = v, .count = 4};
                    if (fk_expr_eval(mask->keep, &env) != fk_expr_eval(mask->by_q, &env))
                        fail_msg("%s: q %g, k %g, diag %g", spelling, v[0], v[1], v[2]);
                }
            }
        }
        fk_expr_pool_destroy(pool);
    }
}

/* A file in $FLASHKILN_TEMPLATE_DIR/mask is a mask, and one of a built-in name replaces that. */
static void test_a_mask_file_is_a_mask(void **state) {
    (void)state;
    static const char spelling[] = "fwd fp16 d64 causal every(4)";
    char text[FK_MAX_SPELLING], long_name[64], file[80];
    fk_problem p, q;
    fk_error err;
    const temp_dir dir = temp_dir_create();
    temp_dir_write(&dir, "mask/every.lua", "return { params = { 'n' }, keep = '(q + diag - k) % n == 0' }");
    temp_dir_write(&dir, "mask/causal.lua", "return { params = { 'shift' }, keep = 'k <= q + shift' }");
    temp_dir_write(&dir, "mask/gqa.lua", "return { keep = 'k == q' }");
    snprintf(long_name, sizeof long_name, "%032d", 0); /* one letter too many */
    snprintf(file, sizeof file, "mask/%s.lua", long_name);
    temp_dir_write(&dir, file, "return { keep = 'k == q' }");
    assert_int_equal(fk_problem_read(spelling, &p, &err), FK_BAD_PROBLEM);
    assert_message(err.text, "unknown word \"every\"");

    setenv("FLASHKILN_TEMPLATE_DIR", dir.path, 1);
    assert_int_equal(fk_problem_read(spelling, &p, &err), FK_BAD_PROBLEM);
    assert_message(err.text, "mask causal has 0 values: must be 1 (shift)");
    assert_int_equal(fk_problem_read("fwd fp16 d64 gqa causal(-3) every(4)", &p, &err), FK_OK);
    assert_int_equal(p.gqa, 1); /* a word of the language stays one */
    assert_int_equal(fk_problem_write(&p, text, sizeof text, &err), FK_OK);
    assert_string_equal(text, "fwd fp16 d64 gqa causal(-3) every(4)");
    fk_expr_pool *pool = fk_expr_pool_create();
    static fk_problem_terms terms;
    assert_int_equal(fk_problem_terms_load(pool, &p, NULL, &terms, &err), FK_OK);
    const fk_problem_mask *mask = &terms.mask;
    assert_true(mask->num_params == 2 && strcmp(mask->param[1].name, "every1_n") == 0 && mask->param[1].value == 4);
    fk_expr_pool_destroy(pool);
    snprintf(text, sizeof text, "fwd fp16 d64 %s", long_name);
    assert_int_equal(fk_problem_read(text, &q, &err), FK_BAD_PROBLEM);
    assert_message(err.text, "unknown word");
    assert_int_equal(fk_problem_read("fwd fp16 d64 ../causal", &q, &err), FK_BAD_PROBLEM);

    unsetenv("FLASHKILN_TEMPLATE_DIR");
    assert_int_equal(fk_problem_normalise(&p, &q, &err), FK_BAD_PROBLEM);
    temp_dir_remove(&dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mask_files_are_read_strictly),
        cmocka_unit_test(test_by_q_says_what_keep_says),
        cmocka_unit_test(test_a_mask_file_is_a_mask),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

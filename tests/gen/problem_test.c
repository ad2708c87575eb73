/* Problems and their spellings: one canonical form, and an error for everything else that shows where it is wrong. */
#include "gen/problem.h"
#include "test.h"

static void spell(const char *spelling, char out[FK_MAX_SPELLING]) {
    fk_problem p;
    fk_error err = {.text = ""};
    if (fk_problem_read(spelling, &p, &err) != FK_OK) fail_msg("%s", err.text);
    assert_int_equal(fk_problem_write(&p, out, FK_MAX_SPELLING, &err), FK_OK);
}

static void test_spellings_are_canonicalised(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"fwd bf16 d128 causal", "fwd bf16 d128 causal"},
        {"  fwd\tcausal d128 \n bf16 ", "fwd bf16 d128 causal"},
        {"fwd d64 dv64 fp16 bottom-right", "fwd fp16 d64"},
        {"fwd top-left window( 1024 , -3 ) gqa dv128 d64 fp16", "fwd fp16 d64 dv128 gqa window(1024,-3) top-left"},
        {"fwd fp16 d64 keep=\"(k) <= q&&((q-k)%4==0)\"", "fwd fp16 d64 keep=\"k <= q && (q - k) % 4 == 0\""},
        {"fwd fp16 d8 keep=\"k<=q\" causal causal", "fwd fp16 d8 keep=\"k <= q\" causal causal"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        char text[FK_MAX_SPELLING];
        spell(cases[i][0], text);
        assert_string_equal(text, cases[i][1]);
    }
}

/* A random problem as a caller fills it: garbage in every byte that has no meaning. */
static fk_problem random_problem(uint64_t *seed) {
    static const char *const predicates[] = {"k<=q", "(k % 3 == 0) || q > seqlen_q-5", "popcount(q ^ k) <= 2 && b >= 0",
                                             "k >= q + diag ? k < 100 : h == 0"};
    fk_problem p;
    memset(&p, (int)random_below(seed, 256), sizeof p);
    p.struct_size = sizeof p;
    p.op = FK_FORWARD;
    p.dtype = (int32_t)random_below(seed, 2);
    p.head_dim = 8 * (1 + (int32_t)random_below(seed, 32));
    p.head_dim_v = 8 * (int32_t)random_below(seed, 33);
    p.gqa = (int32_t)random_below(seed, 2);
    p.align = (int32_t)random_below(seed, 2);
    p.num_masks = (int32_t)random_below(seed, FK_MAX_MASKS + 1);
    for (int i = 0; i < p.num_masks; ++i) {
        fk_mask *mask = &p.mask[i];
        mask->num_values = 0;
        mask->expr[0] = mask->name[0] = 0;
        switch (random_below(seed, 3)) {
        case 0:
            strcpy(mask->name, "causal");
            break;
        case 1:
            strcpy(mask->name, "window");
            mask->num_values = 2;
            for (int j = 0; j < 2; ++j) {
                mask->value[j] = (int32_t)(random_below(seed, 2 * (int64_t)FK_MAX_SEQLEN + 1) - FK_MAX_SEQLEN);
            }
            break;
        default:
            strcpy(mask->expr, predicates[random_below(seed, 4)]);
            break;
        }
    }
    return p;
}

static void test_round_trip(void **state) {
    (void)state;
    uint64_t seed = 1;
    for (int i = 0; i < 500; ++i) {
        const fk_problem p = random_problem(&seed);
        fk_problem canonical, again, read;
        char text[FK_MAX_SPELLING];
        fk_error err = {.text = ""};
        if (fk_problem_normalise(&p, &canonical, &err) != FK_OK) fail_msg("case %d: %s", i, err.text);
        assert_int_equal(fk_problem_normalise(&canonical, &again, &err), FK_OK);
        assert_memory_equal(&canonical, &again, sizeof canonical);
        assert_int_equal(fk_problem_write(&p, text, sizeof text, &err), FK_OK);
        if (fk_problem_read(text, &read, &err) != FK_OK) fail_msg("case %d: %s", i, err.text);
        assert_memory_equal(&canonical, &read, sizeof canonical);
    }
}

static const struct {
    const char *spelling, *message;
    int column; /* of the caret; -1: the expression shows its own */
} bad_spellings[] = {
    {"", "starts with its op; known: fwd", 0},
    {"bwd bf16 d128", "starts with its op; known: fwd", 0},
    {"fwdx bf16 d128", "starts with its op", 0},
    {"fwd d128", "dtype is missing: must be fp16 or bf16", 8},
    {"fwd bf16", "head_dim is missing: such as d128", 8},
    {"fwd bf16 d128 cusal", "unknown word \"cusal\"; known: fp16 bf16 dN dvN gqa top-left bottom-right", 14},
    {"fwd bf16 d128 cusal(3)", "unknown word \"cusal\"", 14},
    {"fwd bf16 d128 gqa=1", "unknown word \"gqa\"", 14},
    {"fwd bf16 d128 top-left(1)", "unknown word \"top-left\"", 14},
    {"fwd bf16 d128 \"", "unknown word \"\"", 14},
    {"fwd bf16 d128x", "unknown word \"d128x\"", 9},
    {"fwd fp16 d12", "head_dim is 12: must be a multiple of 8 from 8 to 256", 9},
    {"fwd fp16 d264", "head_dim is 264: must be a multiple of 8 from 8 to 256", 9},
    {"fwd fp16 d0", "head_dim is 0: must be", 9},
    {"fwd fp16 d64 dv7", "head_dim_v is 7: must be", 13},
    {"fwd fp16 d99999999999999999999", "head_dim is 99999999999999999999: must be", 10},
    {"fwd fp16 bf16 d64", "dtype is given twice", 9},
    {"fwd fp16 d64 d64", "head_dim is given twice", 13},
    {"fwd fp16 d64 dv8 dv8", "head_dim_v is given twice", 17},
    {"fwd fp16 d64 gqa gqa", "gqa is given twice", 17},
    {"fwd fp16 d64 top-left bottom-right", "alignment is given twice", 22},
    {"fwd fp16 d64 causal(1)", "mask causal has 1 values: must be 0 (none)", 13},
    {"fwd fp16 d64 window", "mask window has 0 values: must be 2 (left,right)", 13},
    {"fwd fp16 d64 gqa window(1)", "mask window has 1 values: must be 2 (left,right)", 17},
    {"fwd fp16 d64 window(1,2,3,4,5)", "window has more than 4 values", 27},
    {"fwd fp16 d64 window(1,x)", "window: expected an integer", 22},
    {"fwd fp16 d64 window(1,--2)", "window: expected an integer", 22},
    {"fwd fp16 d64 window()", "window: expected an integer", 20},
    {"fwd fp16 d64 window(1,2", "window: expected , or )", 23},
    {"fwd fp16 d64 window(1 2)", "window: expected , or )", 22},
    {"fwd fp16 d64 window(1,2)causal", "expected a space after )", 24},
    {"fwd fp16 d64 window(1,1073741825)", "window is 1073741825: must be from -1073741824 to 1073741824", 22},
    {"fwd fp16 d64 causal causal causal causal causal", "more than 4 masks", 41},
    {"fwd fp16 d64 keep", "unknown word \"keep\"", 13},
    {"fwd fp16 d64 keep=k", "keep: expected a predicate in double quotes", 18},
    {"fwd fp16 d64 keep=\"k <= q", "keep: the quote is not closed", 18},
    {"fwd fp16 d64 keep=\"\"", "keep is empty", 18},
    {"fwd fp16 d64 keep=\"k<q\"causal", "expected a space after keep=", 23},
    {"fwd fp16 d64 keep=\"k <= \"", "k <= ", -1},
    {"fwd fp16 d64 keep=\"k <= s\"", "seqlen_k", -1}, /* lists the known names */
    {"fwd fp16 d64 keep=\"k + q\"", "column 3: keep must be a bool, such as k <= q, not int\n    k + q\n      ^", -1},
    {"fwd fp16 d64 keep=\"0.5 * k\"",
     "column 5: keep must be a bool, such as k <= q, not float\n    0.5 * k\n        ^", -1},
};

static void test_bad_spellings_point_at_the_word(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof bad_spellings / sizeof bad_spellings[0]; ++i) {
        fk_problem p;
        fk_error err;
        memset(&p, 0x5a, sizeof p);
        const fk_problem before = p;
        assert_int_equal(fk_problem_read(bad_spellings[i].spelling, &p, &err), FK_BAD_PROBLEM);
        assert_memory_equal(&p, &before, sizeof p); /* written on success only */
        assert_message(err.text, bad_spellings[i].message);
        if (bad_spellings[i].column < 0) continue;
        const char *caret = strrchr(err.text, '\n');
        assert_non_null(caret);
        if ((int)strlen(caret + 1) != 4 + bad_spellings[i].column + 1)
            fail_msg("caret of column %d:\n%s", bad_spellings[i].column, err.text);
        assert_int_equal(caret[strlen(caret) - 1], '^');
        assert_message(err.text, bad_spellings[i].spelling);
    }
}

static void test_long_spellings(void **state) {
    (void)state;
    char text[FK_MAX_SPELLING + 64], shown[80];
    fk_problem p;
    fk_error err;
    memset(text, ' ', sizeof text);
    memcpy(text, "fwd", 3);
    text[sizeof text - 1] = 0;
    assert_int_equal(fk_problem_read(text, &p, &err), FK_BAD_PROBLEM);
    assert_message(err.text, "the spelling is 2111 bytes long: must be below 2048");
    snprintf(text + 1000, 100, "nonsense and so on");
    assert_int_equal(fk_problem_read(text, &p, &err), FK_BAD_PROBLEM);
    assert_message(err.text, "nonsense and so on\n"); /* the part around the caret is shown */
    snprintf(shown, sizeof shown, "    %60s^", "");
    assert_string_equal(strrchr(err.text, '\n') + 1, shown);
    /* keep: 239 bytes are the limit, before and after canonicalisation. */
    char expr[FK_MAX_EXPR * 2] = "fwd fp16 d64 keep=\"k>0";
    while (strlen(expr) < FK_MAX_EXPR - 4 + 19)
        strcat(expr, "+0");
    strcat(expr, "\"");
    assert_int_equal(fk_problem_read(expr, &p, &err), FK_BAD_PROBLEM);
    assert_message(err.text, "keep is ");
    assert_message(err.text, "must be below 240");
}

typedef void (*edit)(fk_problem *p);
static void set_size(fk_problem *p) {
    p->struct_size = 12;
}
static void set_op(fk_problem *p) {
    p->op = 1;
}
static void set_dtype(fk_problem *p) {
    p->dtype = 2;
}
static void set_head_dim(fk_problem *p) {
    p->head_dim = -8;
}
static void set_head_dim_v(fk_problem *p) {
    p->head_dim_v = 300;
}
static void set_gqa(fk_problem *p) {
    p->gqa = 2;
}
static void set_align(fk_problem *p) {
    p->align = -1;
}
static void set_num_masks(fk_problem *p) {
    p->num_masks = 5;
}
static void set_empty_mask(fk_problem *p) {
    p->num_masks = 1;
}
static void set_both(fk_problem *p) {
    p->num_masks = 1;
    strcpy(p->mask[0].name, "causal");
    strcpy(p->mask[0].expr, "k <= q");
}
static void set_open_name(fk_problem *p) {
    p->num_masks = 1;
    memset(p->mask[0].name, 'a', sizeof p->mask[0].name);
}
static void set_path_name(fk_problem *p) {
    p->num_masks = 1;
    strcpy(p->mask[0].name, "../arch/sm75");
}
static void set_values(fk_problem *p) {
    set_empty_mask(p);
    strcpy(p->mask[0].name, "window");
    p->mask[0].num_values = 9;
}
static void set_value(fk_problem *p) {
    set_values(p);
    p->mask[0].num_values = 2;
    p->mask[0].value[1] = INT32_MIN;
}
static void set_expr_values(fk_problem *p) {
    set_empty_mask(p);
    strcpy(p->mask[0].expr, "k <= q");
    p->mask[0].num_values = 1;
}

static void test_bad_fields_are_named(void **state) {
    (void)state;
    static const struct {
        edit break_it;
        fk_status status;
        const char *message;
    } cases[] = {
        {set_size, FK_BAD_ARGUMENT, "fk_problem.struct_size is 12: must be"},
        {set_op, FK_BAD_PROBLEM, "op is 1: must be 0 (forward)"},
        {set_dtype, FK_BAD_PROBLEM, "dtype is 2: must be 0 (fp16) or 1 (bf16)"},
        {set_head_dim, FK_BAD_PROBLEM, "head_dim is -8: must be a multiple of 8 from 8 to 256"},
        {set_head_dim_v, FK_BAD_PROBLEM, "head_dim_v is 300: must be a multiple of 8 from 8 to 256"},
        {set_gqa, FK_BAD_PROBLEM, "gqa is 2: must be 0 or 1"},
        {set_align, FK_BAD_PROBLEM, "align is -1: must be 0 (bottom-right) or 1 (top-left)"},
        {set_num_masks, FK_BAD_PROBLEM, "num_masks is 5: must be from 0 to 4"},
        {set_empty_mask, FK_BAD_PROBLEM, "a mask has neither name nor expr"},
        {set_both, FK_BAD_PROBLEM, "a mask has both name and expr"},
        {set_open_name, FK_BAD_PROBLEM, "must end with a zero"},
        {set_path_name, FK_BAD_PROBLEM, "unknown mask \"../arch/sm75\"; known: causal"},
        {set_values, FK_BAD_PROBLEM, "num_values is 9: must be from 0 to 4"},
        {set_value, FK_BAD_PROBLEM, "right of mask window is -2147483648: must be from -1073741824 to 1073741824"},
        {set_expr_values, FK_BAD_PROBLEM, "num_values of a keep mask is 1: must be 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        fk_problem p = FK_PROBLEM_INIT, out;
        fk_error err;
        p.head_dim = 64;
        assert_int_equal(fk_problem_normalise(&p, &out, &err), FK_OK);
        cases[i].break_it(&p);
        assert_int_equal(fk_problem_normalise(&p, &out, &err), cases[i].status);
        assert_message(err.text, cases[i].message);
    }
    assert_int_equal(fk_problem_canonical(NULL, NULL), FK_BAD_ARGUMENT);
    assert_string_equal(fk_last_error(), "problem is null");
}

static void test_small_buffers_and_nulls(void **state) {
    (void)state;
    fk_problem p;
    char text[32];
    assert_int_equal(fk_problem_parse("fwd bf16 d128 causal", &p), FK_OK);
    assert_int_equal(fk_problem_spell(&p, text, 20), FK_BAD_ARGUMENT);
    assert_string_equal(fk_last_error(), "size is 20: this spelling needs 21");
    assert_int_equal(fk_problem_spell(&p, text, 21), FK_OK);
    assert_int_equal(fk_problem_spell(&p, NULL, 21), FK_BAD_ARGUMENT);
    assert_int_equal(fk_problem_parse(NULL, &p), FK_BAD_ARGUMENT);
    assert_int_equal(fk_problem_parse("fwd bf16 d128", NULL), FK_BAD_ARGUMENT);
    assert_int_equal(fk_problem_canonical(&p, &p), FK_OK); /* in place */
}

static void test_masks_become_one_predicate(void **state) {
    (void)state;
    fk_problem p;
    fk_error err;
    fk_problem_mask mask;
    fk_expr_pool *pool = fk_expr_pool_create();
    assert_int_equal(fk_problem_read("fwd fp16 d64", &p, &err), FK_OK);
    assert_int_equal(fk_problem_mask_load(pool, &p, NULL, &mask, &err), FK_OK);
    assert_null(mask.keep);
    assert_int_equal(fk_problem_read("fwd fp16 d64 window(7,2) keep=\"k % 2 == 0\" window(1,-1)", &p, &err), FK_OK);
    assert_int_equal(fk_problem_mask_load(pool, &p, NULL, &mask, &err), FK_OK);
    assert_int_equal(mask.num_params, 4);
    assert_string_equal(mask.param[0].name, "window0_left");
    assert_string_equal(mask.param[3].name, "window2_right");
    assert_int_equal(mask.param[0].value, 7);
    assert_int_equal(mask.param[3].value, -1);
    assert_true(fk_expr_uses(mask.keep, "window2_left"));
    assert_false(fk_expr_uses(mask.keep, "left"));
    assert_int_equal(mask.split.num_upper, 2);
    assert_int_equal(mask.split.num_lower, 2);
    assert_non_null(mask.split.residual);
    char generic[FK_MAX_SPELLING];
    fk_problem_write_generic(&p, &mask, generic);
    assert_string_equal(generic, "fwd fp16 d64 window(window0_left,window0_right) keep=\"k % 2 == 0\" "
                                 "window(window2_left,window2_right)");
    fk_expr_pool_destroy(pool);
}

static void test_mask_files_are_read_strictly(void **state) {
    (void)state;
    static const struct {
        const char *file, *message;
    } cases[] = {
        {"return { kep = 'k <= q' }", "templates/mask/causal.lua: unknown field 'kep'; known: params keep"},
        {"return { }", "templates/mask/causal.lua: field 'keep' is missing: must be text"},
        {"return { keep = 3 }", "templates/mask/causal.lua: field 'keep' is 3: must be text"},
        {"return { keep = {} }", "templates/mask/causal.lua: field 'keep' is table: must be text"},
        {"return 3", "templates/mask/causal.lua: returns a number: must return a table"},
        {"return { keep = 'k <= r' }", "templates/mask/causal.lua: "},
        {"return { keep = 'k + q' }", "templates/mask/causal.lua: expression, column 3: keep must be a bool"},
        {"return { params = 3, keep = 'k <= q' }", "field 'params' is 3: must be an array of names"},
        {"return { params = { 'q' }, keep = 'k <= q' }", "param 'q': must be a new name"},
        {"return { params = { 'a', 'a' }, keep = 'k <= q' }", "param 'a': must be a new name"},
        {"return { params = { '2a' }, keep = 'k <= q' }", "param '2a': must be an identifier"},
        {"return { params = { 7 }, keep = 'k <= q' }", "param '': must be an identifier"},
        {"return { params = { 'a', 'b', 'c', 'd', 'e' }, keep = 'k <= q' }", "has 5 params: must be at most 4"},
        {"return { params = { 'a' }, keep = 'k <= q' }", "templates/mask/causal.lua: has 1 params: must have 0"},
        {"return {\n keep = nothing }", "templates/mask/causal.lua:2: unknown name 'nothing'"},
        {"return {\n keep = }", "templates/mask/causal.lua:2: unexpected symbol"},
        {"x = 1", "templates/mask/causal.lua:1: assignment to undeclared name 'x'"},
        {"error({})", "raised a table, not a message"},
        {"\033Lua", "attempt to load a binary chunk"},
    };
    fk_problem p;
    fk_error err;
    assert_int_equal(fk_problem_read("fwd fp16 d64 causal", &p, &err), FK_OK);
    const temp_dir dir = temp_dir_create();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        fk_expr_pool *pool = fk_expr_pool_create();
        fk_problem_mask mask;
        temp_dir_write(&dir, "mask/causal.lua", cases[i].file);
        assert_int_equal(fk_problem_mask_load(pool, &p, dir.path, &mask, &err), FK_TEMPLATE_ERROR);
        assert_message(err.text, cases[i].message);
        fk_expr_pool_destroy(pool);
    }
    temp_dir_remove(&dir);
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
    fk_problem_mask mask;
    assert_int_equal(fk_problem_mask_load(pool, &p, NULL, &mask, &err), FK_OK);
    assert_true(mask.num_params == 2 && strcmp(mask.param[1].name, "every1_n") == 0 && mask.param[1].value == 4);
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
        cmocka_unit_test(test_spellings_are_canonicalised),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_bad_spellings_point_at_the_word),
        cmocka_unit_test(test_long_spellings),
        cmocka_unit_test(test_bad_fields_are_named),
        cmocka_unit_test(test_small_buffers_and_nulls),
        cmocka_unit_test(test_masks_become_one_predicate),
        cmocka_unit_test(test_mask_files_are_read_strictly),
        cmocka_unit_test(test_a_mask_file_is_a_mask),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

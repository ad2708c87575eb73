/* Bounds of k and residual, together, say what the predicate says. */
#include "expr_helpers.h"

static void assert_split(const char *keep, const char *upper, const char *lower, const char *residual) {
    fk_expr_pool *pool = fk_expr_pool_create();
    fk_expr_split split;
    assert_int_equal(fk_expr_split_bounds(pool, parse(pool, keep), "k", &split, NULL), FK_OK);
    assert_int_equal(split.num_upper, upper ? 1 : 0);
    assert_int_equal(split.num_lower, lower ? 1 : 0);
    if (upper) assert_prints(split.upper[0], FK_EXPR_C, upper);
    if (lower) assert_prints(split.lower[0], FK_EXPR_C, lower);
    assert_true((residual == NULL) == (split.residual == NULL));
    if (residual) assert_prints(split.residual, FK_EXPR_C, residual);
    fk_expr_pool_destroy(pool);
}

static void splits_read_well(void **state) {
    (void)state;
    assert_split("k <= q", "q", NULL, NULL);
    assert_split("k <= q + diag", "q + diag", NULL, NULL);
    assert_split("q + diag >= k", "q + diag", NULL, NULL);
    assert_split("!(k > q + diag)", "q + diag", NULL, NULL);
    assert_split("!(q + diag < k || k < h)", "q + diag", "h", NULL);
    assert_split("k < q", "q - 1", NULL, NULL);
    assert_split("k > q", NULL, "q + 1", NULL);
    assert_split("q - k < 128", NULL, "q - 127", NULL);
    assert_split("q - k <= h && k <= q", "q", "q - h", NULL);
    assert_split("k >= q + diag - h && k <= q + diag + 3", "q + diag + 3", "q + diag - h", NULL);
    assert_split("k - 5 <= 10", "15", NULL, NULL);
    assert_split("-k >= q - 5", "5 - q", NULL, NULL);
    assert_split("k + k <= q + k", "q", NULL, NULL);
    assert_split("k == q + 1", "q + 1", "q + 1", NULL);
    assert_split("!(k != q)", "q", "q", NULL);
    assert_split("abs(q - k) <= 128", "q + 128", "q - 128", NULL);
    assert_split("abs(k - q) < h", "q + h - 1", "q - h + 1", NULL);
    assert_split("k <= min(q, h * 2) && (q - k) % 4 == 0", "min(q, h * 2)", NULL, "(q - k) % 4 == 0");
    assert_split("k <= id[q]", "id[q]", NULL, NULL);
    assert_split("k <= id[k]", NULL, NULL, "k <= id[k]");
    assert_split("2 * k <= q", NULL, NULL, "2 * k <= q");
    assert_split("k <= q || k == 0", NULL, NULL, "k <= q || k == 0");
    assert_split("k != q", NULL, NULL, "k != q");
    assert_split("!(k == q)", NULL, NULL, "k != q");
    assert_split("!(q > h)", NULL, NULL, "q <= h");
    assert_split("k <= s", NULL, NULL, "k <= s");
    assert_split("!(k <= s)", NULL, NULL, "!(k <= s)");
    assert_split("on && !seen[k] && k <= q", "q", NULL, "on && !seen[k]");
    assert_split("true", NULL, NULL, NULL);
    assert_split("k <= q && false", "q", NULL, "false");
    assert_split("k <= 2147483647 + 1", NULL, NULL, "k <= 2147483647 + 1");

    fk_expr_pool *pool = fk_expr_pool_create();
    fk_expr_split split;
    fk_error err = {0};
    assert_int_equal(fk_expr_split_bounds(pool, NULL, "k", &split, &err), FK_OK);
    assert_true(split.num_upper == 0 && split.num_lower == 0 && !split.residual);
    assert_int_equal(fk_expr_split_bounds(pool, parse(pool, "q + k"), "k", &split, &err), FK_BAD_PROBLEM);
    assert_non_null(strstr(err.text, "a mask is a bool"));
    fk_expr_pool_destroy(pool);
}

typedef struct split_check {
    const fk_expr_split *split;
    int agreed;
} split_check;

static void check_split(const fk_expr *e, const double *values, void *user) {
    split_check *check = user;
    const fk_expr_split *split = check->split;
    const fk_expr_env env = env_of(values);
    if (!fits_int(e, &env)) return;
    bool keep = true;
    for (int i = 0; i < split->num_upper; ++i)
        keep = keep && values[K] <= fk_expr_eval(split->upper[i], &env);
    for (int i = 0; i < split->num_lower; ++i)
        keep = keep && values[K] >= fk_expr_eval(split->lower[i], &env);
    if (split->residual) keep = keep && fk_expr_eval(split->residual, &env) != 0;
    if (keep != (fk_expr_eval(e, &env) != 0)) {
        char *text = NULL;
        fk_expr_print(e, FK_EXPR_C, &text, NULL);
        fail_msg("%s: split differs at q %g k %g h %g diag %g", text, values[Q], values[K], values[H], values[DIAG]);
    }
    ++check->agreed;
}

/* Conjunctions of comparisons that often are linear in k, some negated. */
static void random_mask(random_text *r) {
    static const char *const sides[] = {"k",  "q - k", "k + q",       "abs(q - k)", "k - (q - h)",
                                        "-k", "k * 2", "h - (k - q)", "3"};
    static const char *const signs[] = {" <= ", " < ", " >= ", " > ", " == ", " != "};
    r->used = 0;
    const uint32_t terms = 1 + draw(r, 12);
    for (uint32_t i = 0; i < terms; ++i) {
        if (i) put(r, draw(r, 5) ? " && " : " || ");
        if (draw(r, 4) == 0) {
            put(r, "!");
            random_bool(r, 2);
            continue;
        }
        put(r, draw(r, 3) ? "(" : "!(");
        put(r, sides[draw(r, 9)]);
        put(r, signs[draw(r, 6)]);
        if (draw(r, 2))
            put(r, sides[draw(r, 9)]);
        else
            random_int(r, 2);
        put(r, ")");
    }
}

static void splits_match_brute_force(void **state) {
    (void)state;
    static random_text r = {.state = 21, .arrays = true};
    int agreed = 0, bounds = 0;
    for (int i = 0; i < 2500; ++i) {
        random_mask(&r);
        fk_expr_pool *pool = fk_expr_pool_create();
        const fk_expr *e = parse(pool, r.text);
        fk_expr_split split;
        assert_int_equal(fk_expr_split_bounds(pool, e, "k", &split, NULL), FK_OK);
        assert_true(split.num_upper <= FK_EXPR_MAX_BOUNDS && split.num_lower <= FK_EXPR_MAX_BOUNDS);
        for (int j = 0; j < split.num_upper; ++j)
            assert_false(fk_expr_uses(split.upper[j], "k"));
        for (int j = 0; j < split.num_lower; ++j)
            assert_false(fk_expr_uses(split.lower[j], "k"));
        bounds += split.num_upper + split.num_lower;
        const double q = draw(&r, 20), h = draw(&r, 5);
        const fk_interval box[NUM_NAMES] = {{q - 2, q + 2}, {q - 5, q + 5}, {h - 2, h}, {0, 1}, {0, 1}};
        split_check check = {&split, 0};
        for_each_point(e, box, check_split, &check);
        agreed += check.agreed;
        fk_expr_pool_destroy(pool);
    }
    assert_true(agreed > 1000000 && bounds > 700);
}

/* More bounds than slots: the rest stays in the residual, nothing is lost. */
static void surplus_bounds_stay(void **state) {
    (void)state;
    fk_expr_pool *pool = fk_expr_pool_create();
    fk_expr_split split;
    const char *text = "k<=q+1 && k<=q+2 && k<=q+3 && k<=q+4 && k<=q+5 && k<=q+6 && k<=q+7 && k<=q+8 && k<=q+9 && k==h";
    assert_int_equal(fk_expr_split_bounds(pool, parse(pool, text), "k", &split, NULL), FK_OK);
    assert_int_equal(split.num_upper, FK_EXPR_MAX_BOUNDS);
    assert_int_equal(split.num_lower, 0);
    assert_prints(split.residual, FK_EXPR_C, "k <= q + 9 && k == h");
    fk_expr_pool_destroy(pool);
}

/* A mask that may read two arrays by two indices each. */
static const fk_expr *parse_rows(fk_expr_pool *pool, const char *keep) {
    static const fk_expr_symbol symbols[] = {{"q", FK_EXPR_INT, 0},
                                             {"k", FK_EXPR_INT, 0},
                                             {"b", FK_EXPR_INT, 0},
                                             {"of_q", FK_EXPR_INT, 2},
                                             {"of_k", FK_EXPR_INT, 2}};
    const fk_expr *e;
    assert_int_equal(fk_expr_parse(pool, keep, symbols, sizeof symbols / sizeof *symbols, &e, NULL), FK_OK);
    return e;
}

/* Sorted ids leave runs of keys, beside what bounds there are, if nothing else is left. */
static void runs_are_bounds(void **state) {
    (void)state;
    static const struct {
        const char *keep, *upper, *lower; /* the last ones; null: no runs */
    } cases[] = {
        {"of_q[b][q] == of_k[b][k]", "last_key[b][q]", "first_key[b][q]"},
        {"of_k[b][k] == of_q[b][q] && k <= q", "last_key[b][q]", "first_key[b][q]"},
        {"of_q[b][q] != of_k[b][k]", NULL, NULL},
        {"of_q[b][q] == of_k[b][k] && (q - k) % 4 == 0", NULL, NULL},
        {"of_q[b][q] == of_q[b][k]", NULL, NULL},
        {"of_q[b][q] == of_k[b][k] + 1", NULL, NULL},
        {"k <= q", NULL, NULL},
        {"k<=q+1 && k<=q+2 && k<=q+3 && k<=q+4 && k<=q+5 && k<=q+6 && k<=q+7 && k<=q+8 && of_q[b][q] == of_k[b][k]",
         NULL, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        fk_expr_pool *pool = fk_expr_pool_create();
        const fk_expr *keep = parse_rows(pool, cases[i].keep);
        fk_expr_split split, runs;
        assert_int_equal(fk_expr_split_bounds(pool, keep, "k", &split, NULL), FK_OK);
        const bool found = fk_expr_split_runs(pool, &split, "of_q", "of_k", &runs);
        print_message("%s\n", cases[i].keep);
        assert_int_equal(found, cases[i].upper != NULL);
        if (found) {
            assert_null(runs.residual);
            assert_int_equal(runs.num_upper, split.num_upper + 1);
            assert_prints(runs.upper[runs.num_upper - 1], FK_EXPR_C, cases[i].upper);
            assert_prints(runs.lower[runs.num_lower - 1], FK_EXPR_C, cases[i].lower);
        }
        fk_expr_pool_destroy(pool);
    }
}

static void words_are_found(void **state) {
    (void)state;
    static const struct {
        const char *keep, *word; /* NULL: it has none */
    } cases[] = {
        {"(of_q[b][q] >> (k & 31) & 1) == 1", "of_q[b][q]"},
        {"(of_k[q][k >> 5] >> (k & 31) & 1) == 1", "of_k[q][word]"},
        {"bit(of_k[q][k >> 5], k)", "of_k[q][word]"},
        {"bit(max(k >> 5, q) - (k >> 5), k)", "max(word, q) - word"},
        {"(of_k[q][k] >> (k & 31) & 1) == 1", NULL},
        {"(of_k[q][k >> 6] >> (k & 31) & 1) == 1", NULL},
        {"(of_k[q][k >> 5] >> (k & 15) & 1) == 1", NULL},
        {"(of_k[q][k >> 5] >> (q & 31) & 1) == 1", NULL},
        {"(of_k[q][k >> 5] >> (k & 31) & 1) == 0", NULL},
        {"(of_k[q][k >> 5] >> (k & 31) & 3) == 1", NULL},
        {"(of_k[q][k >> 5] >> k & 1) == 1", NULL},
        {"bit(of_k[q][k >> 5], k + 1)", NULL},
        {"bit(k, k)", NULL},
        {"k <= q", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        fk_expr_pool *pool = fk_expr_pool_create();
        const fk_expr *word = fk_expr_words(pool, parse_rows(pool, cases[i].keep));
        print_message("%s\n", cases[i].keep);
        assert_int_equal(word != NULL, cases[i].word != NULL);
        if (word) assert_prints(word, FK_EXPR_C, cases[i].word);
        fk_expr_pool_destroy(pool);
    }
    fk_expr_pool *pool = fk_expr_pool_create();
    assert_null(fk_expr_words(pool, NULL));
    fk_expr_pool_destroy(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(splits_read_well),    cmocka_unit_test(splits_match_brute_force),
        cmocka_unit_test(surplus_bounds_stay), cmocka_unit_test(runs_are_bounds),
        cmocka_unit_test(words_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

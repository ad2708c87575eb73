/* The language itself: what parses, what is refused and where the caret stands, how trees print. */
#include "expr_helpers.h"

#include <locale.h>

/* ---- printing ---- */

static const struct {
    const char *text, *c, *cuda;
} print_rows[] = {
    {"k<=q+diag", "k <= q + diag", "k <= q + diag"},
    {"((q))-((k-h)-1)", "q - (k - h - 1)", "q - (k - h - 1)"},
    {"q-(k+h)*2", "q - (k + h) * 2", "q - (k + h) * 2"},
    {"q*(k*h)", "q * (k * h)", "q * (k * h)"},
    {"(q&1)==0 || popcount(q^k)==1", "(q & 1) == 0 || popcount(q ^ k) == 1", "(q & 1) == 0 || __popc(q ^ k) == 1"},
    {"on && (on || on) && !on", "on && (on || on) && !on", "on && (on || on) && !on"},
    {"-(-q)", "q", "q"},
    {"- -q - -1", "q - -1", "q - -1"},
    {"+q", "q", "q"},
    {"-(-5) * q - -5", "5 * q - -5", "5 * q - -5"},
    {"!!on", "!!on", "!!on"},
    {"~-q", "~-q", "~-q"},
    {"0x1F", "31", "31"},
    {"q<k?1:on?2:3", "q < k ? 1 : on ? 2 : 3", "q < k ? 1 : on ? 2 : 3"},
    {"(on ? on : on) ? q : k", "(on ? on : on) ? q : k", "(on ? on : on) ? q : k"},
    {"on ? (on ? 1 : 2) : 3", "on ? (on ? 1 : 2) : 3", "on ? (on ? 1 : 2) : 3"},
    {"min(q,k)+max(q,2)-abs(k)", "min(q, k) + max(q, 2) - abs(k)", "min(q, k) + max(q, 2) - abs(k)"},
    {"min(s,k)+max(q,2.)-abs(-s)", "min(s, k) + max(q, 2.0) - abs(-s)", "fminf(s, k) + fmaxf(q, 2.0f) - fabsf(-s)"},
    {"exp(q)+log(s)*tanh(s/2)", "exp(q) + log(s) * tanh(s / 2)", "expf(q) + logf(s) * tanhf(s / 2)"},
    {"float(q)/float(2)", "float(q) / 2", "float(q) / 2"},
    {"float(q)/2*s", "float(q) / 2 * s", NULL},
    {"-float(q)", "-float(q)", "-float(q)"},
    {"abs(float(q))", "abs(float(q))", "fabsf(float(q))"},
    {"float(q) < float(k)", "float(q) < k", "float(q) < k"},
    {"on ? float(q) : k", "on ? float(q) : k", "on ? float(q) : float(k)"},
    {"on ? q : s", "on ? q : s", "on ? float(q) : s"},
    {"float(s)", "s", "s"},
    {"s > 0 ? s : 0", "s > 0 ? s : 0", "s > 0 ? s : float(0)"},
    {"s*q", "s * q", "s * q"},
    {"s - w[h][q+1]*abs(q+diag-k)", "s - w[h][q + 1] * abs(q + diag - k)",
     "s - w_array_at(p, h, q + 1) * abs(q + diag - k)"},
    {"s + bias[0][h][q][k]", "s + bias[0][h][q][k]", "s + bias_array_at(p, 0, h, q, k)"},
    {"id[q]==id[k] && seen[k]", "id[q] == id[k] && seen[k]",
     "id_array_at(p, q) == id_array_at(p, k) && seen_array_at(p, k)"},
    {"q/64==k/64", "q / 64 == k / 64", "q / 64 == k / 64"},
    {"(q+1)/h", "(q + 1) / h", "div_or_0(q + 1, h)"},
    {"q%(k+1)/0", "q % (k + 1) / 0", "div_or_0(mod_or_0(q, k + 1), 0)"},
    {"q<<3>>k", "q << 3 >> k", "shr_or_0(q << 3, k)"},
    {"q<<32", "q << 32", "shl_or_0(q, 32)"},
    {"(q+1)*k>>15", "(q + 1) * k >> 15", "mul_shr(q + 1, k, 15)"}, /* of a product that may leave 32 bits */
    {"h+(q*k>>h)", "h + (q * k >> h)", "h + shr_or_0(q * k, h)"},
    {"s/t", "s / t", "s / t"},
    {"1.5e3f+.5+1e-7+3.+1e20", "1500.0 + 0.5 + 1e-07 + 3.0 + 1e+20", "1500.0f + 0.5f + 1e-07f + 3.0f + 1e+20f"},
    {"0.1+s", "0.1 + s", "0.1f + s"},
    {"3.14159265358979+s", "3.14159265358979 + s", "3.1415927f + s"},
    {"true != false", "true != false", "true != false"},
};

static void prints_c_and_cuda(void **state) {
    (void)state;
    fk_expr_pool *pool = fk_expr_pool_create();
    for (size_t i = 0; i < sizeof print_rows / sizeof *print_rows; ++i) {
        const fk_expr *e = parse(pool, print_rows[i].text);
        assert_prints(e, FK_EXPR_C, print_rows[i].c);
        if (print_rows[i].cuda) assert_prints(e, FK_EXPR_CUDA, print_rows[i].cuda);
        assert_true(fk_expr_equal(parse(pool, print_rows[i].c), e));
    }
    fk_expr_pool_destroy(pool);
}

static void prints_intervals(void **state) {
    (void)state;
    static const struct {
        const char *text, *interval;
    } rows[] = {
        {"k <= q + diag", "iv_le(k_iv, iv_add(q_iv, diag_iv))"},
        {"(q - k) % 4 == 0", "iv_eq(iv_mod(iv_sub(q_iv, k_iv), iv(4)), iv(0))"},
        {"on || true", "iv_lor(on_iv, iv(1))"},
        {"s < q", "iv_maybe()"},
        {"(s < 1 ? q : k) < id[q]", "iv_lt(iv_select(iv_maybe(), q_iv, k_iv), id_array_iv_at(p, q_iv))"},
        {"q * (k + 1) >> 3 == 5", "iv_eq(iv_mul_shr(q_iv, iv_add(k_iv, iv(1)), 3), iv(5))"},
        {"seen[q] == !on", "iv_eq(iv_maybe(), iv_lnot(on_iv))"},
        {"s + 1", "iv_all()"},
    };
    fk_expr_pool *pool = fk_expr_pool_create();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i)
        assert_prints(parse(pool, rows[i].text), FK_EXPR_INTERVAL, rows[i].interval);
    fk_expr_pool_destroy(pool);
}

/* By a run-time value nothing is divided, but multiplied by its inverse. */
static void prints_inverses(void **state) {
    (void)state;
    fk_expr_pool *pool = fk_expr_pool_create();
    const fk_expr *size = fk_expr_variable(pool, "size", FK_EXPR_INT, true);
    const fk_expr *e = fk_expr_substitute(pool, parse(pool, "q / h * h == k % h + h"), "h", size);
    assert_prints(e, FK_EXPR_C, "q / size * size == k % size + size");
    assert_prints(e, FK_EXPR_CUDA, "div_by(q, size, size_inverse) * size == mod_by(k, size, size_inverse) + size");
    assert_prints(e, FK_EXPR_INTERVAL,
                  "iv_eq(iv_mul(iv_div_by(q_iv, size_iv, size_inverse), size_iv), "
                  "iv_add(iv_mod_by(k_iv, size_iv, size_inverse), size_iv))");
    assert_true(fk_expr_divides_by(e, "size") && !fk_expr_divides_by(e, "q"));
    assert_false(fk_expr_divides_by(parse(pool, "q / h == k / 8"), "h"));
    fk_expr_pool_destroy(pool);
}

/* parse(print(e)) == e, whatever e is. */
static void random_trees_round_trip(void **state) {
    (void)state;
    static random_text r = {.state = 1, .arrays = true};
    random_rule *const rules[] = {random_int, random_bool, random_float};
    for (int i = 0; i < 6000; ++i) {
        fk_expr_pool *pool = fk_expr_pool_create();
        const fk_expr *e = parse(pool, random_expression(&r, rules[i % 3], 1 + i % 6));
        char *text = NULL, *again = NULL;
        assert_int_equal(fk_expr_print(e, FK_EXPR_C, &text, NULL), FK_OK);
        const fk_expr *back = parse(pool, text);
        assert_int_equal(fk_expr_print(back, FK_EXPR_C, &again, NULL), FK_OK);
        if (!fk_expr_equal(e, back)) fail_msg("%s\nprints as %s", r.text, text);
        assert_string_equal(text, again);
        free(text);
        free(again);
        fk_expr_pool_destroy(pool);
    }
}

/* A locale that writes 0,5 changes neither reading nor printing. Skipped silently only where none is installed. */
static void locale_does_not_matter(void **state) {
    (void)state;
    static const char *const locales[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "ru_RU.UTF-8"};
    bool found = false;
    for (size_t i = 0; i < sizeof locales / sizeof *locales && !found; ++i)
        found = setlocale(LC_NUMERIC, locales[i]) != NULL;
    fk_expr_pool *pool = fk_expr_pool_create();
    const fk_expr *e = parse(pool, "0.125 + s");
    assert_true(e->arg[0]->f == 0.125);
    assert_prints(e, FK_EXPR_CUDA, "0.125f + s");
    fk_expr_pool_destroy(pool);
    setlocale(LC_NUMERIC, "C");
    if (!found) skip();
}

/* ---- errors ---- */

static const struct {
    const char *text;
    int column;
    const char *says;
} error_rows[] = {
    {"", 1, "empty"},
    {"k <= ", 6, "expected a value, found the end"},
    {"k <= foo + 1", 6, "unknown name 'foo'; names: q, k, h, diag, s, t, on, id[], w[][], seen[], bias[][][][]"},
    {"k <= sin(q)", 6, "unknown function 'sin'; names: q, k"},
    {"k <= sin(q)", 6, "functions: min max abs exp log tanh popcount hash bit float"},
    {"(k <= q", 8, "expected ')' for the '(' of column 1"},
    {"min(q, (k + 1)", 15, "expected ')' for the '(' of column 4"},
    {"id[q", 5, "expected ']' for the '[' of column 3"},
    {"on ? q, k", 7, "expected ':' for the '?' of column 4"},
    {"k <= q)", 7, "expected an operator or the end, found ')'"},
    {"k <= q q", 8, "expected an operator or the end, found 'q'"},
    {"k <= * q", 6, "expected a value, found '*'"},
    {"k = q", 3, "write '==' to compare"},
    {"k <= q;", 7, "';' has no meaning"},
    {"k <= q \\", 8, "'\\' has no meaning"},
    {"k <= \xc3\xa9", 6, "byte 0xc3 has no meaning"},
    {"k \x01", 3, "byte 0x01 has no meaning"},
    {"id < 3", 4, "array 'id' takes 1 index: expected '['"},
    {"w[1] < 3", 6, "array 'w' takes 2 indices: expected '['"},
    {"id[s] < 3", 4, "an index is an int, not float"},
    {"q[1]", 2, "'q' is no array"},
    {"min(q)", 6, "expected ',': min takes 2 arguments"},
    {"min(q, k, h)", 9, "min takes 2 arguments"},
    {"abs(q, k)", 6, "abs takes 1 argument"},
    {"abs()", 5, "expected a value, found ')'"},
    {"q && on", 3, "'&&' takes bools, not int; compare it: x != 0"},
    {"!s", 1, "'!' takes bools, not float; compare it"},
    {"on + 1", 4, "'+' takes numbers, not bool"},
    {"+on", 1, "'+' takes numbers, not bool"},
    {"-on", 1, "'-' takes numbers, not bool"},
    {"q & 1 == 0", 3, "'&' takes ints, not bool; it binds looser than a comparison"},
    {"0 <= k < q", 8, "'<' takes numbers, not bool; comparisons do not chain"},
    {"s % 2", 3, "'%' takes ints, not float"},
    {"popcount(s)", 1, "'popcount' takes ints, not float"},
    {"exp(on)", 1, "'exp' takes numbers, not bool"},
    {"on == 1", 4, "'==' takes two numbers or two bools, not bool and int"},
    {"on ? on : 1", 4, "'?:' takes two numbers or two bools, not bool and int"},
    {"q ? 1 : 2", 3, "'?:' takes a bool before '?', not int"},
    {"q < 2147483648", 5, "exceeds the largest int, 2147483647"},
    {"q < 0x80000000", 5, "exceeds the largest int"},
    {"q < 99999999999999999999999", 5, "exceeds the largest int"},
    {"s < 1e39", 5, "exceeds the largest float"},
    {"s < 1e999999999999999999999999", 5, "exceeds the largest float"},
    {"q < 010", 5, "octal"},
    {"q < 12ab", 5, "'12ab' is not a number"},
    {"s < 1.2.3", 5, "'1.2.3' is not a number"},
    {"s < 1e", 5, "'1e' is not a number"},
    {"s < 1f", 5, "'1f' is not a number"},
    {"q < 0x", 5, "'0x' is not a number"},
    {"q < 0x1g", 5, "'0x1g' is not a number"},
    {"q < 1111111111111111111111111111111111111111111111111", 5, "a number of 49 bytes; the limit is 48"},
};

static void errors_show_the_column(void **state) {
    (void)state;
    fk_expr_pool *pool = fk_expr_pool_create();
    for (size_t i = 0; i < sizeof error_rows / sizeof *error_rows; ++i) {
        const fk_expr *e = NULL;
        fk_error err = {0};
        assert_int_equal(fk_expr_parse(pool, error_rows[i].text, RANDOM_SYMBOLS, NUM_RANDOM_SYMBOLS, &e, &err),
                         FK_BAD_PROBLEM);
        assert_null(e);
        char place[64];
        snprintf(place, sizeof place, "column %d:", error_rows[i].column);
        const char *caret = strrchr(err.text, '\n');
        if (!strstr(err.text, error_rows[i].says) || !strstr(err.text, place))
            fail_msg("%s:\n%s", error_rows[i].text, err.text);
        if (!caret || strcspn(caret, "^") != (size_t)error_rows[i].column + 4) fail_msg("caret of %s", err.text);
    }
    /* The pool is as good as before. */
    assert_prints(parse(pool, "k <= q"), FK_EXPR_C, "k <= q");
    fk_expr_pool_destroy(pool);
}

/* The caret of a whole that is no bool stands under its outermost operator, name or number. */
static void predicates_are_bools(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int column; /* 0: it is a bool */
        const char *says;
    } rows[] = {
        {"k <= q", 0, ""},
        {"on", 0, ""},
        {"k", 1, "not int"},
        {"1.5", 1, "not float"},
        {"(k + q)", 4, "not int"},
        {"k * 2 + q % 3", 7, "not int"},
        {"q - (k - 1)", 3, "not int"},
        {"k <= q ? 1 : 2", 8, "not int"},
        {"min(k, q + 1)", 1, "not int"},
        {" float(q)", 2, "not float"},
        {"float(s)", 1, "not float"},
        {"id[k + 1]", 1, "not int"},
        {"-(k + q)", 1, "not int"},
        {"1 + -5", 3, "not int"},
        {"+ (k + q)", 1, "not int"},
    };
    fk_expr_pool *pool = fk_expr_pool_create();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        static const fk_expr_wanted keep = {"keep", FK_EXPR_BOOL, "k <= q"};
        const fk_expr *e = NULL;
        fk_error err = {0};
        const fk_status status =
            fk_expr_parse_as(pool, rows[i].text, RANDOM_SYMBOLS, NUM_RANDOM_SYMBOLS, &keep, &e, &err);
        assert_int_equal(status, rows[i].column ? FK_BAD_PROBLEM : FK_OK);
        assert_true((e == NULL) == (rows[i].column != 0));
        if (!rows[i].column) continue;
        char place[64];
        snprintf(place, sizeof place, "column %d: keep must be a bool", rows[i].column);
        const char *caret = strrchr(err.text, '\n');
        if (!strstr(err.text, place) || !strstr(err.text, rows[i].says) ||
            strcspn(caret, "^") != (size_t)rows[i].column + 4)
            fail_msg("%s:\n%s", rows[i].text, err.text);
    }
    fk_expr_pool_destroy(pool);
}

static void carets_in_long_and_wide_texts(void **state) {
    (void)state;
    static char text[4096];
    fk_expr_pool *pool = fk_expr_pool_create();
    const fk_expr *e = NULL;
    fk_error err = {0};
    memset(text, ' ', 3000);
    strcpy(text + 3000, "foo < q");
    assert_int_equal(fk_expr_parse(pool, text, RANDOM_SYMBOLS, NUM_RANDOM_SYMBOLS, &e, &err), FK_BAD_PROBLEM);
    const char *shown = strstr(err.text, "foo < q"), *caret = strchr(err.text, '^');
    assert_non_null(strstr(err.text, "column 3001:"));
    assert_non_null(shown);
    const char *line = shown;
    while (line[-1] != '\n')
        --line;
    assert_int_equal(shown - line, caret - (strrchr(err.text, '\n') + 1));

    /* Control characters are shown as blanks, a letter of two bytes takes one column. */
    assert_int_equal(fk_expr_parse(pool, "\t\n=\xc3\xa9", RANDOM_SYMBOLS, NUM_RANDOM_SYMBOLS, &e, &err),
                     FK_BAD_PROBLEM);
    assert_non_null(strstr(err.text, "column 3:"));
    assert_non_null(strstr(err.text, "\n      =\xc3\xa9\n      ^"));
    fk_expr_pool_destroy(pool);
}

static void expect_limit(const char *text, const char *says) {
    fk_expr_pool *pool = fk_expr_pool_create();
    const fk_expr *e = NULL;
    fk_error err = {0};
    assert_int_equal(fk_expr_parse(pool, text, RANDOM_SYMBOLS, NUM_RANDOM_SYMBOLS, &e, &err), FK_BAD_PROBLEM);
    if (!strstr(err.text, says)) fail_msg("%s", err.text);
    assert_int_equal(fk_expr_pool_check(pool, NULL), FK_OK);
    fk_expr_pool_destroy(pool);
}

static void hostile_depth_is_refused(void **state) {
    (void)state;
    static const char *const repeated[] = {"(", "-", "!", "~", "+", "min(", "id[", "on?", "on?1:", "min(1,"};
    static char text[FK_EXPR_MAX_TEXT + 16];
    for (size_t i = 0; i < sizeof repeated / sizeof *repeated; ++i) {
        size_t used = 0;
        while (used + 8 < FK_EXPR_MAX_TEXT)
            used += (size_t)sprintf(text + used, "%s", repeated[i]);
        expect_limit(text, "the limit is 64 levels");
    }
    size_t used = (size_t)sprintf(text, "q");
    while (used + 8 < FK_EXPR_MAX_TEXT)
        used += (size_t)sprintf(text + used, "+q");
    expect_limit(text, "too deep: over 256 operations");
    memset(text, ' ', sizeof text - 1);
    expect_limit(text, "the text has 65551 bytes; the limit is 65536");

    /* Within the limits all is well. */
    fk_expr_pool *pool = fk_expr_pool_create();
    used = (size_t)sprintf(text, "0");
    for (int i = 0; i < 255; ++i)
        used += (size_t)sprintf(text + used, "+1");
    assert_true(fk_expr_eval(parse(pool, text), &(fk_expr_env){0}) == 255);
    used = 0;
    for (int i = 0; i < 63; ++i)
        text[used++] = '(';
    text[used++] = '7';
    for (int i = 0; i < 63; ++i)
        text[used++] = ')';
    text[used] = 0;
    assert_true(fk_expr_eval(parse(pool, text), &(fk_expr_env){0}) == 7);
    fk_expr_pool_destroy(pool);
}

/* Bytes at random, and good texts damaged: a tree or a message, nothing else. */
static void noise_is_survived(void **state) {
    (void)state;
    static const char alphabet[] = "qkhst019.()[]<>=!&|^~%*/+-?:, xef_\x80\xff\n";
    static random_text r = {.state = 7, .arrays = true};
    int good = 0, bad = 0;
    for (int i = 0; i < 40000; ++i) {
        char text[256];
        size_t length = 1 + draw(&r, 40);
        if (i % 2) {
            random_expression(&r, i % 4 == 1 ? random_bool : random_float, 3);
            length = r.used < sizeof text - 1 ? r.used : sizeof text - 1;
            memcpy(text, r.text, length);
            for (uint32_t n = draw(&r, 3); n > 0; --n)
                text[draw(&r, (uint32_t)length)] = alphabet[draw(&r, sizeof alphabet - 1)];
        } else {
            for (size_t j = 0; j < length; ++j)
                text[j] = alphabet[draw(&r, sizeof alphabet - 1)];
        }
        text[length] = 0;
        fk_expr_pool *pool = fk_expr_pool_create();
        const fk_expr *e = NULL;
        fk_error err = {0};
        if (fk_expr_parse(pool, text, RANDOM_SYMBOLS, NUM_RANDOM_SYMBOLS, &e, &err) == FK_OK) {
            ++good;
            assert_non_null(e);
        } else {
            ++bad;
            assert_non_null(strchr(err.text, '^'));
        }
        fk_expr_pool_destroy(pool);
    }
    assert_true(good > 1000 && bad > 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prints_c_and_cuda),        cmocka_unit_test(prints_intervals),
        cmocka_unit_test(prints_inverses),          cmocka_unit_test(random_trees_round_trip),
        cmocka_unit_test(locale_does_not_matter),   cmocka_unit_test(errors_show_the_column),
        cmocka_unit_test(predicates_are_bools),     cmocka_unit_test(carets_in_long_and_wide_texts),
        cmocka_unit_test(hostile_depth_is_refused), cmocka_unit_test(noise_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

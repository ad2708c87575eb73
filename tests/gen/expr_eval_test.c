/* What expressions mean: their values, and their derivatives against finite differences. */
#include "expr_helpers.h"

#include <math.h>

static const struct {
    const char *text;
    double value; /* with q 17, k 5, h -3, diag 0, on 1, s 2.5, t -0.5 */
} value_rows[] = {
    {"q + k * h - -2", 4},
    {"q / k", 3},
    {"h * 5 / 4", -3},
    {"-q / k", -3},
    {"q % k", 2},
    {"-q % k", -2},
    {"q % -5", 2},
    {"q / diag", 0},
    {"q % diag", 0},
    {"q << 2", 68},
    {"q << 32", 0},
    {"q << h", 0},
    {"h >> 1", -2},
    {"h >> 31", -1},
    {"h >> 32", 0},
    {"q >> 4", 1},
    {"q & 24", 16},
    {"q | 6", 23},
    {"q ^ k", 20},
    {"~q", -18},
    {"h & 15", 13},
    {"q < 17", 0},
    {"q <= 17", 1},
    {"q != k", 1},
    {"q == 17 && k > h", 1},
    {"!on || on", 1},
    {"on == (q > k)", 1},
    {"on ? q : k", 17},
    {"!on ? q : h", -3},
    {"min(q, h)", -3},
    {"max(q, h)", 17},
    {"abs(h)", 3},
    {"popcount(q)", 2},
    {"popcount(-1)", 32},
    {"hash(0, 0)", 1463271544},
    {"hash(7, -3)", 63612103},
    {"hash(1, 2) == hash(2, 1)", 0},
    {"bit(5, 2)", 1},
    {"bit(5, 1)", 0},
    {"bit(5, 34)", 1},
    {"bit(-1, -1)", 1},
    {"s * 2", 5},
    {"q / 2 + s", 10.5},
    {"q / 2.0", 8.5},
    {"float(q) / 2", 8.5},
    {"abs(t)", 0.5},
    {"min(s, q)", 2.5},
    {"max(t, h)", -0.5},
    {"exp(diag)", 1},
    {"log(exp(s))", 2.5},
    {"tanh(diag)", 0},
    {"s > q", 0},
    {"s / diag > 1e30", 1},
    {"id[1] * 10", 20},
    {"w[1][2]", 4},
    {"seen[3] && !seen[4]", 1},
    {"absent", 0},
    {"q * 0x7fffffff * 4", 146028887996.0},
};

static void evaluates(void **state) {
    (void)state;
    const double values[] = {17, 5, -3, 0, 1, 2.5, -0.5};
    const fk_expr_env env = env_of(values);
    fk_expr_symbol symbols[NUM_RANDOM_SYMBOLS + 1] = {{"absent", FK_EXPR_INT, 0}};
    memcpy(symbols + 1, RANDOM_SYMBOLS, sizeof RANDOM_SYMBOLS);
    fk_expr_pool *pool = fk_expr_pool_create();
    for (size_t i = 0; i < sizeof value_rows / sizeof *value_rows; ++i) {
        const fk_expr *e = NULL;
        assert_int_equal(fk_expr_parse(pool, value_rows[i].text, symbols, NUM_RANDOM_SYMBOLS + 1, &e, NULL), FK_OK);
        const double value = fk_expr_eval(e, &env);
        if (fabs(value - value_rows[i].value) > 1e-12) fail_msg("%s is %.17g", value_rows[i].text, value);
    }
    assert_true(fk_expr_eval(parse(pool, "id[q] + w[q][k]"), &(fk_expr_env){0}) == 0);
    fk_expr_pool_destroy(pool);
}

/* Extreme values reach every operator: nothing may trap (the sanitizers watch). */
static void evaluation_is_defined_everywhere(void **state) {
    (void)state;
    static const double extremes[] = {0,          1,      -1,      31,    32,  -2147483648.0,
                                      2147483647, 0x1p62, -0x1p63, 1e300, NAN, INFINITY};
    static random_text r = {.state = 3, .arrays = true};
    for (int i = 0; i < 4000; ++i) {
        fk_expr_pool *pool = fk_expr_pool_create();
        const fk_expr *e = parse(pool, random_expression(&r, i % 2 ? random_bool : random_int, 4));
        for (int j = 0; j < 40; ++j) {
            double values[NUM_NAMES];
            for (int n = 0; n < NUM_NAMES; ++n)
                values[n] = n == ON ? j % 2 : extremes[draw(&r, sizeof extremes / sizeof *extremes)];
            const fk_expr_env env = env_of(values);
            const double value = fk_expr_eval(e, &env);
            assert_true(i % 2 ? value == 0 || value == 1 : fabs(value) <= 0x1p63);
        }
        fk_expr_pool_destroy(pool);
    }
}

static void derivatives_read_well(void **state) {
    (void)state;
    static const struct {
        const char *text, *derivative;
    } rows[] = {
        {"s", "1.0"},
        {"t", "0.0"},
        {"s - w[h][q] * abs(q + diag - k)", "1.0"},
        {"s * 3 + t", "3.0"},
        {"s * s", "s + s"},
        {"t * tanh(s / t)", "t * ((1.0 - tanh(s / t) * tanh(s / t)) * (1.0 / t))"},
        {"exp(-s)", "-exp(-s)"},
        {"log(s)", "1.0 / s"},
        {"1 / s", "-(1 / s) / s"},
        {"s / 2", "0.5"},
        {"abs(s)", "s < 0.0 ? -1.0 : 1.0"},
        {"max(s, t)", "s >= t ? 1.0 : 0.0"},
        {"max(t, log(s))", "max(t, log(s)) == t ? 0.0 : 1.0 / s"}, /* of a NaN t is taken */
        {"min(t, exp(s))", "min(t, exp(s)) == t ? 0.0 : exp(s)"},
        {"1 / exp(s)", "(1 / exp(s) == 0.0 ? 0.0 : -(1 / exp(s) * exp(s))) / exp(s)"},
        {"min(s, s + 1)", "1.0"},
        {"on ? s : t", "on ? 1.0 : 0.0"},
        {"q < k ? t : 2", "0.0"},
    };
    fk_expr_pool *pool = fk_expr_pool_create();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        const fk_expr *d = NULL;
        assert_int_equal(fk_expr_differentiate(pool, parse(pool, rows[i].text), "s", &d, NULL), FK_OK);
        assert_prints(d, FK_EXPR_C, rows[i].derivative);
        assert_int_equal(fk_expr_type_of(d), FK_EXPR_FLOAT);
    }
    fk_error err = {0};
    const fk_expr *d = NULL;
    assert_int_equal(fk_expr_differentiate(pool, parse(pool, "q + 1"), "q", &d, &err), FK_BAD_PROBLEM);
    assert_non_null(strstr(err.text, "this one is int"));
    assert_int_equal(fk_expr_differentiate(pool, parse(pool, "s * q"), "q", &d, &err), FK_BAD_PROBLEM);
    assert_non_null(strstr(err.text, "'q', which is not a float"));
    assert_null(d);
    fk_expr_pool_destroy(pool);
}

/* The derivative by one element; equal indices are one element, others are others. */
static void derivatives_by_an_element_read_well(void **state) {
    (void)state;
    static const struct {
        const char *text, *array;
        size_t count;
        const char *read[2], *derivative[2];
    } rows[] = {
        {"s - w[h][q] * abs(q + diag - k)", "w", 1, {"w[h][q]"}, {"-float(abs(q + diag - k))"}},
        {"s + bias[0][h][q][k]", "bias", 1, {"bias[0][h][q][k]"}, {"1.0"}},
        {"w[h][q] * w[h][q] * s", "w", 1, {"w[h][q]"}, {"(w[h][q] + w[h][q]) * s"}},
        {"w[h][q] * w[h][k]", "w", 2, {"w[h][q]", "w[h][k]"}, {"w[h][k]", "w[h][q]"}},
        {"s + w[h][id[k]]", "w", 1, {"w[h][id[k]]"}, {"1.0"}},
        {"s * 2", "w", 0, {NULL}, {NULL}},
    };
    fk_expr_pool *pool = fk_expr_pool_create();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        const fk_expr *e = parse(pool, rows[i].text), *read[2], *d = NULL;
        assert_int_equal(fk_expr_find_reads(e, rows[i].array, read, 2), rows[i].count);
        assert_int_equal(fk_expr_find_reads(e, rows[i].array, NULL, 0) >= rows[i].count, true);
        for (size_t j = 0; j < rows[i].count; ++j) {
            assert_prints(read[j], FK_EXPR_C, rows[i].read[j]);
            assert_int_equal(fk_expr_differentiate_read(pool, e, read[j], &d, NULL), FK_OK);
            assert_prints(d, FK_EXPR_C, rows[i].derivative[j]);
        }
    }
    const fk_expr *e = parse(pool, "s + id[q]"), *read = NULL, *d = NULL;
    fk_error err = {0};
    assert_int_equal(fk_expr_find_reads(e, "id", &read, 1), 1);
    assert_true(fk_expr_is_scalar(fk_expr_index(read, 0), "q") && !fk_expr_index(read, 1) && !fk_expr_index(read, 4));
    assert_int_equal(fk_expr_differentiate_read(pool, e, read, &d, &err), FK_BAD_PROBLEM);
    assert_non_null(strstr(err.text, "'id', which is not a float"));
    fk_expr_pool_destroy(pool);
}

static double eval_at(const fk_expr *e, double *values, double s) {
    values[S] = s;
    const fk_expr_env env = env_of(values);
    return fk_expr_eval(e, &env);
}

static void derivatives_match_finite_differences(void **state) {
    (void)state;
    static random_text r = {.state = 11};
    const double step = 1e-6;
    int compared = 0, kinks = 0;
    for (int i = 0; i < 4000; ++i) {
        fk_expr_pool *pool = fk_expr_pool_create();
        const fk_expr *e = parse(pool, random_expression(&r, random_float, 1 + i % 5)), *d = NULL;
        const bool is_float = fk_expr_type_of(e) == FK_EXPR_FLOAT; /* 2 + 2 is not */
        if (is_float) assert_int_equal(fk_expr_differentiate(pool, e, "s", &d, NULL), FK_OK);
        for (int j = 0; is_float && j < 4; ++j) {
            double values[NUM_NAMES] = {draw(&r, 5), draw(&r, 5), 0, 0, 1, 0, draw(&r, 1000) / 400.0 - 1.3};
            const double s = draw(&r, 1000) / 333.0 - 1.51;
            const double here = eval_at(e, values, s), up = eval_at(e, values, s + step);
            const double down = eval_at(e, values, s - step), slope = eval_at(d, values, s);
            const double scale = 1e-4 * (1 + fabs(slope) + fabs(here) * 1e-3);
            if (fabs((up - here) - (here - down)) / step >
                scale) { /* min, max and abs turn here, or it bends sharply */
                ++kinks;
                continue;
            }
            ++compared;
            if (fabs((up - down) / (2 * step) - slope) > scale)
                fail_msg("%s at s = %g: slope %.9g, derivative %.9g", r.text, s, (up - down) / (2 * step), slope);
        }
        fk_expr_pool_destroy(pool);
    }
    assert_true(compared > 15000 && kinks < 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(evaluates),
        cmocka_unit_test(evaluation_is_defined_everywhere),
        cmocka_unit_test(derivatives_read_well),
        cmocka_unit_test(derivatives_by_an_element_read_well),
        cmocka_unit_test(derivatives_match_finite_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

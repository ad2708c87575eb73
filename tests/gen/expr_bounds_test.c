/* Interval bounds against brute force: they hold every value, and are exact for points. */
#include "expr_helpers.h"

#include <math.h>

static const struct {
    const char *text;
    fk_interval q, k, result;
} bounds_rows[] = {
    {"k <= q", {0, 63}, {0, 63}, {0, 1}},
    {"k <= q", {64, 127}, {0, 63}, {1, 1}},
    {"k <= q", {0, 63}, {64, 127}, {0, 0}},
    {"k <= q", {63, 127}, {0, 63}, {1, 1}},
    {"(q - k) % 4 == 0", {0, 3}, {0, 3}, {0, 1}},
    {"(q - k) % 4 == 0", {8, 8}, {4, 4}, {1, 1}},
    {"(q - k) % 4 == 0", {9, 9}, {4, 4}, {0, 0}},
    {"(q - k) % 4 == 0", {9, 10}, {8, 8}, {0, 0}},
    {"q == k || popcount(q ^ k) == 1", {5, 5}, {4, 4}, {1, 1}},
    {"q == k || popcount(q ^ k) == 1", {5, 5}, {5, 5}, {1, 1}},
    {"q == k || popcount(q ^ k) == 1", {5, 5}, {6, 6}, {0, 0}},
    {"q == k || popcount(q ^ k) == 1", {0, 3}, {12, 15}, {0, 0}},
    {"q / 64 == k / 64", {0, 63}, {0, 63}, {1, 1}},
    {"q / 64 == k / 64", {0, 63}, {64, 127}, {0, 0}},
    {"q / 64 == k / 64", {0, 127}, {64, 127}, {0, 1}},
    {"abs(q - k) <= 128", {0, 63}, {0, 127}, {1, 1}},
    {"abs(q - k) <= 128", {0, 63}, {192, 255}, {0, 0}},
    {"abs(q - k) <= 128", {0, 63}, {128, 191}, {0, 1}},
    {"(q & 64) == 0", {128, 191}, {0, 0}, {1, 1}},
    {"(q & 64) == 0", {192, 255}, {0, 0}, {0, 0}},
    {"q % 128 < 64", {256, 319}, {0, 0}, {1, 1}},
    {"q >> 6 == 4", {256, 319}, {0, 0}, {1, 1}},
    {"(q | 63) == 319", {256, 319}, {0, 0}, {1, 1}},
    {"q / k", {1, 100}, {0, 3}, {-INFINITY, INFINITY}},
    {"q % k", {1, 100}, {-3, 3}, {-INFINITY, INFINITY}},
    {"q / k", {-100, 50}, {2, 5}, {-50, 25}},
    {"q % k", {-100, 3}, {2, 5}, {-4, 3}},
    {"q * k", {-3, 2}, {-5, 7}, {-21, 15}},
    {"q * k", {0, 1 << 30}, {0, 1 << 30}, {-INFINITY, INFINITY}},
    {"min(q * q, 5)", {0, 1 << 30}, {0, 0}, {-INFINITY, 5}},
    {"q * q & 7", {0, 1 << 30}, {0, 0}, {0, 7}},
    {"q << k", {-3, 5}, {0, 4}, {-48, 80}},
    {"q << k", {1, 1}, {31, 32}, {-INFINITY, INFINITY}},
    {"q ^ k", {0, 5}, {8, 9}, {8, 15}},
    {"q & k", {-8, -1}, {-4, -1}, {-8, -1}},
    {"~q", {-3, 9}, {0, 0}, {-10, 2}},
    {"hash(q, k) == hash(5, 6)", {5, 5}, {6, 6}, {1, 1}},
    {"hash(q, k)", {5, 6}, {6, 6}, {0, 0x7fffffff}},
    {"bit(q, k)", {0x0ff0, 0x0ff0}, {4, 11}, {1, 1}},
    {"bit(q, k)", {0x0ff0, 0x0ff0}, {12, 35}, {0, 0}},
    {"bit(q, k)", {0x0ff0, 0x0ff0}, {3, 11}, {0, 1}},
    {"bit(q, k)", {0x0ff0, 0x0ff0}, {44, 47}, {0, 0}},
    {"bit(q, k)", {-1, -1}, {7, 1000}, {1, 1}},
    {"bit(q, k)", {64, 127}, {6, 6}, {1, 1}},
    {"q < k ? 1 : 5", {0, 9}, {10, 12}, {1, 1}},
    {"id[q]", {0, 0}, {0, 0}, {-INFINITY, INFINITY}},
    {"seen[q]", {0, 0}, {0, 0}, {0, 1}},
    {"s < 1", {0, 0}, {0, 0}, {0, 1}},
    {"float(q)", {0, 0}, {0, 0}, {-INFINITY, INFINITY}},
    {"q", {0, 0x1p40}, {0, 0}, {-INFINITY, INFINITY}},
    {"q + 1", {NAN, 2}, {0, 0}, {-INFINITY, INFINITY}},
    {"h", {0, 0}, {0, 0}, {-INFINITY, INFINITY}},
    {"on", {0, 0}, {0, 0}, {0, 1}},
};

static void bounds_of_block_predicates(void **state) {
    (void)state;
    fk_expr_pool *pool = fk_expr_pool_create();
    for (size_t i = 0; i < sizeof bounds_rows / sizeof *bounds_rows; ++i) {
        const fk_interval box[] = {bounds_rows[i].q, bounds_rows[i].k};
        const fk_interval got =
            fk_expr_bounds(parse(pool, bounds_rows[i].text), &(fk_interval_env){NAMES, box, 2, false});
        if (got.lo != bounds_rows[i].result.lo || got.hi != bounds_rows[i].result.hi)
            fail_msg("row %zu: %s is [%g, %g]", i, bounds_rows[i].text, got.lo, got.hi);
    }
    fk_expr_pool_destroy(pool);
}

/* A box of at most 4 x 4 x 3 x 3 points, small or far out. */
static void random_box(random_text *r, fk_interval *box) {
    static const double origins[] = {0, 0, -2, 60, 1 << 20, -(1 << 30), (1 << 30) - 3};
    for (int n = Q; n <= DIAG; ++n) {
        box[n].lo = origins[draw(r, 7)] + draw(r, 8);
        box[n].hi = box[n].lo + draw(r, n <= K ? 4 : 3);
    }
    box[ON] = (fk_interval){draw(r, 2), 1};
}

static void check_within(const fk_expr *e, const double *values, void *user) {
    const fk_interval *bounds = user;
    const fk_expr_env env = env_of(values);
    const double value = fk_expr_eval(e, &env);
    if (!(value >= bounds->lo && value <= bounds->hi)) {
        char *text = NULL;
        fk_expr_print(e, FK_EXPR_C, &text, NULL);
        fail_msg("%s at q %g k %g h %g diag %g on %g is %g, outside [%g, %g]", text, values[Q], values[K], values[H],
                 values[DIAG], values[ON], value, bounds->lo, bounds->hi);
    }
}

static void bounds_contain_brute_force(void **state) {
    (void)state;
    static random_text r = {.state = 5, .arrays = true};
    int bounded = 0, decided = 0;
    for (int i = 0; i < 6000; ++i) {
        fk_expr_pool *pool = fk_expr_pool_create();
        const fk_expr *e = parse(pool, random_expression(&r, i % 3 ? random_int : random_bool, 1 + i % 5));
        for (int j = 0; j < 3; ++j) {
            fk_interval box[NUM_NAMES] = {{0, 0}};
            random_box(&r, box);
            fk_interval bounds = fk_expr_bounds(e, &(fk_interval_env){NAMES, box, ON + 1, false});
            bounded += isfinite(bounds.lo) && i % 3;
            decided += bounds.lo == bounds.hi && i % 3 == 0;
            for_each_point(e, box, check_within, &bounds);
        }
        fk_expr_pool_destroy(pool);
    }
    assert_true(bounded > 5000 && decided > 1500); /* the bounds say something */
}

/* Nothing that bounds give up on: division by zero, a shift outside 0..31, floats, arrays. */
static bool is_plain(const fk_expr *e, const fk_expr_env *env) {
    const double b = e->arg[0] && e->arg[1] ? fk_expr_eval(e->arg[1], env) : 1;
    if ((e->op == OP_DIV || e->op == OP_MOD) && b == 0) return false;
    if ((e->op == OP_SHL || e->op == OP_SHR) && (b < 0 || b > 31)) return false;
    for (int i = 0; i < FK_EXPR_MAX_ARGS && e->arg[i]; ++i) {
        if (!is_plain(e->arg[i], env)) return false;
    }
    return true;
}

static void bounds_of_points_are_exact(void **state) {
    (void)state;
    static random_text r = {.state = 9};
    int exact = 0;
    for (int i = 0; i < 20000; ++i) {
        fk_expr_pool *pool = fk_expr_pool_create();
        const fk_expr *e = parse(pool, random_expression(&r, i % 2 ? random_int : random_bool, 1 + i % 5));
        fk_interval box[NUM_NAMES] = {{0, 0}};
        double values[NUM_NAMES] = {0};
        random_box(&r, box);
        for (int n = Q; n <= ON; ++n) {
            values[n] = box[n].lo;
            box[n].hi = box[n].lo;
        }
        const fk_expr_env env = env_of(values);
        if (fits_int(e, &env) && is_plain(e, &env)) {
            const fk_interval got = fk_expr_bounds(e, &(fk_interval_env){NAMES, box, ON + 1, false});
            const double value = fk_expr_eval(e, &env);
            if (got.lo != value || got.hi != value) fail_msg("%s is %g, not [%g, %g]", r.text, value, got.lo, got.hi);
            ++exact;
        }
        fk_expr_pool_destroy(pool);
    }
    assert_true(exact > 8000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bounds_of_block_predicates),
        cmocka_unit_test(bounds_contain_brute_force),
        cmocka_unit_test(bounds_of_points_are_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

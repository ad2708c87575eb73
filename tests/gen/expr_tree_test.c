/* Trees made of trees: substitution, conjunction, simplification; and what happens without memory. */
#include "expr_helpers.h"

static void substitutes_and_simplifies(void **state) {
    (void)state;
    static const struct {
        const char *text, *name, *by, *result;
    } rows[] = {
        {"k >= q + diag - h", "h", "q", "k >= q + diag - q"},
        {"k >= q + diag - h", "h", "0", "k >= q + diag"},
        {"k >= q - h", "h", "-5", "k >= q + 5"},
        {"q * h + k", "h", "0", "k"},
        {"q * h + k", "h", "1", "q + k"},
        {"q * h + k", "h", "-1", "-q + k"},
        {"k - q * h", "h", "q + 1", "k - q * (q + 1)"},
        {"h * 1000000 * 1000000 < q", "h", "3", "3000000 * 1000000 < q"},
        {"s * h", "h", "3", "s * 3.0"},
        {"on ? q : k", "on", "true", "q"},
        {"on && q < k", "on", "true", "q < k"},
        {"q < k || on", "on", "true", "true"},
        {"!(!on)", "on", "q < k", "q < k"},
        {"s + t", "t", "2", "s + 2.0"},
        {"s + t", "t", "q", "s + q"},
        {"id[h] + h", "h", "k", "id[k] + k"},
        {"7 / h", "h", "0", "0"},
        {"q", "absent", "1", "q"},
    };
    fk_expr_pool *pool = fk_expr_pool_create();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        const fk_expr *e = parse(pool, rows[i].text);
        assert_prints(fk_expr_substitute(pool, e, rows[i].name, parse(pool, rows[i].by)), FK_EXPR_C, rows[i].result);
    }
    const fk_expr *e = parse(pool, "k <= q && id[h] == w[h][k]");
    assert_true(fk_expr_uses(e, "q") && fk_expr_uses(e, "id") && fk_expr_uses(e, "w"));
    assert_false(fk_expr_uses(e, "diag") || fk_expr_uses(e, "i"));
    assert_true(fk_expr_computes_with(e, "k") &&
                fk_expr_computes_with(parse(pool, "w[h][q] * float(abs(q - k))"), "k"));
    assert_false(fk_expr_computes_with(parse(pool, "w[h][q - k] * 2.0"), "k") || fk_expr_computes_with(e, "h"));
    assert_int_equal(fk_expr_block(e, "k"), 1);
    assert_int_equal(fk_expr_block(e, "h"), 1);
    assert_int_equal(fk_expr_block(e, "s"), 0);
    assert_int_equal(fk_expr_block(parse(pool, "hash(q / 64, k >> 7) < 3 && id[k / 192 >> 5] == k / 320 % 5"), "k"),
                     64);
    assert_int_equal(fk_expr_block(parse(pool, "k >> 7 == q && (k + 1) / 128 == 3"), "k"), 1);
    assert_int_equal(fk_expr_block(parse(pool, "k / q == k >> 7"), "k"), 1);
    assert_int_equal(fk_expr_block(parse(pool, "max(q + diag, 0) / 64 == k"), "q"), 1);
    assert_int_equal(fk_expr_row_block(parse(pool, "max(q + diag, 0) / 64 == k && q >> 7 < 3")), 64);
    assert_int_equal(fk_expr_row_block(parse(pool, "max(q + diag, 0) / 64 == q")), 1);
    assert_int_equal(fk_expr_row_block(parse(pool, "max(q + diag, 1) / 64 == k")), 1);
    assert_int_equal(fk_expr_row_block(parse(pool, "max(q - diag, 0) / 64 == k")), 1);
    assert_int_equal(fk_expr_row_block(parse(pool, "k == diag")), 0);
    assert_int_equal(fk_expr_type_of(e), FK_EXPR_BOOL);
    assert_ptr_equal(fk_expr_substitute(pool, e, "diag", parse(pool, "1")), e);
    assert_null(fk_expr_and(pool, NULL, NULL));
    assert_ptr_equal(fk_expr_and(pool, NULL, e), e);
    assert_ptr_equal(fk_expr_and(pool, e, NULL), e);
    assert_prints(fk_expr_and(pool, e, parse(pool, "on || on")), FK_EXPR_C, "k <= q && id[h] == w[h][k] && (on || on)");
    assert_prints(fk_expr_and(pool, e, parse(pool, "true")), FK_EXPR_C, "k <= q && id[h] == w[h][k]");
    assert_prints(fk_expr_and(pool, parse(pool, "false"), e), FK_EXPR_C, "false");

    /* A wrong type fails, and the pool does not forget it: no later call takes the NULL for "no term". */
    assert_null(fk_expr_substitute(pool, e, "q", parse(pool, "s")));
    assert_null(fk_expr_and(pool, NULL, e));
    fk_error err = {0};
    assert_int_equal(fk_expr_pool_check(pool, &err), FK_INTERNAL);
    assert_non_null(strstr(err.text, "another type"));
    fk_expr_split unused;
    assert_int_equal(fk_expr_split_bounds(pool, NULL, "k", &unused, &err), FK_INTERNAL);
    fk_expr_pool_destroy(pool);
}

/* x -> x + x, again and again: shared nodes cost nothing to make, but walking them would take for ever. */
static void growth_is_limited(void **state) {
    (void)state;
    fk_expr_pool *pool = fk_expr_pool_create();
    const fk_expr *twice = parse(pool, "q + q"), *e = twice;
    int rounds = 0;
    for (const fk_expr *next; (next = fk_expr_substitute(pool, e, "q", twice)); e = next)
        ++rounds;
    assert_in_range(rounds, 15, 25);
    fk_error err = {0};
    assert_int_equal(fk_expr_pool_check(pool, &err), FK_BAD_PROBLEM);
    assert_non_null(strstr(err.text, "1048576"));
    fk_expr_pool_destroy(pool);
}

/* Hashes of what does not change are taken out, whole, and once. */
static void takes_own_hashes(void **state) {
    (void)state;
    static const struct {
        const char *text, *rest, *own[3];
    } rows[] = {
        {"k == hash(q, h) * 3 % 7 || k == hash(q, 1) || q < hash(q, h) * 3 % 7",
         "k == own0 || k == own1 || q < own0",
         {"hash(q, h) * 3 % 7", "hash(q, 1)"}},
        {"hash(hash(0, h), k) % 5 == q", "hash(own0, k) % 5 == q", {"hash(0, h)"}},
        {"hash(k, q) < 3 && q < k", "hash(k, q) < 3 && q < k", {NULL}},
        {"k < id[hash(q, h) & 7]",
         "k < id[own0]",
         {"hash(q, h) & 7"}}, /* what is read may change, its index does not */
        {"hash(q, 0) == 1 && k < 3", "own0 == 1 && k < 3", {"hash(q, 0)"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        fk_expr_pool *pool = fk_expr_pool_create();
        const fk_expr *own[FK_EXPR_MAX_OWN];
        int count = 0;
        assert_prints(fk_expr_take_own(pool, parse(pool, rows[i].text), "k", own, &count), FK_EXPR_C, rows[i].rest);
        for (int j = 0; j < count; ++j)
            assert_prints(own[j], FK_EXPR_C, rows[i].own[j]);
        assert_null(rows[i].own[count]);
        fk_expr_pool_destroy(pool);
    }
    /* More than there is room for stay where they are. */
    fk_expr_pool *pool = fk_expr_pool_create();
    const fk_expr *own[FK_EXPR_MAX_OWN], *e = NULL;
    int count = 0;
    for (int i = 0; i <= FK_EXPR_MAX_OWN; ++i) {
        char text[32];
        snprintf(text, sizeof text, "k == hash(q, %d)", i);
        e = fk_expr_and(pool, e, parse(pool, text));
    }
    e = fk_expr_take_own(pool, e, "k", own, &count);
    assert_int_equal(count, FK_EXPR_MAX_OWN);
    assert_true(fk_expr_uses(e, "own7") && fk_expr_uses(e, "q"));
    fk_expr_pool_destroy(pool);
}

/* ---- memory ---- */

static int allocations_left;

static void *failing_malloc(size_t size) {
    return allocations_left-- > 0 ? malloc(size) : NULL;
}

static fk_status do_everything(fk_expr_pool *pool, fk_error *err) {
    const fk_expr *keep, *score, *d;
    fk_expr_split split;
    fk_status status = fk_expr_parse(pool, "!(k > q + diag) && abs(q - k) <= h && id[q] % 2 == id[k] && !on",
                                     RANDOM_SYMBOLS, NUM_RANDOM_SYMBOLS, &keep, err);
    if (status == FK_OK) {
        keep = fk_expr_and(pool, fk_expr_substitute(pool, keep, "h", fk_expr_int(pool, 3)), NULL);
        status = fk_expr_split_bounds(pool, keep, "k", &split, err);
    }
    if (status == FK_OK)
        status = fk_expr_parse(pool, "on ? tanh(s * 2) / (1 + exp(-s)) : max(s, q) - log(abs(s))", RANDOM_SYMBOLS,
                               NUM_RANDOM_SYMBOLS, &score, err);
    if (status == FK_OK) status = fk_expr_differentiate(pool, score, "s", &d, err);
    if (status == FK_OK) assert_true(split.num_upper == 2 && split.num_lower == 1 && split.residual);
    return status;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    int n = 0;
    for (fk_status status = FK_NO_MEMORY; status != FK_OK; ++n) {
        assert_true(n < 2000);
        allocations_left = n;
        fk_expr_pool *pool = fk_expr_pool_create_with(failing_malloc, 1); /* a block for each node */
        fk_error err = {0};
        status = pool ? do_everything(pool, &err) : FK_NO_MEMORY;
        if (status != FK_OK) assert_int_equal(status, FK_NO_MEMORY);
        if (pool && status != FK_OK) assert_non_null(strstr(err.text, "out of memory"));
        fk_expr_pool_destroy(pool);
    }
    assert_true(n > 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(substitutes_and_simplifies),
        cmocka_unit_test(growth_is_limited),
        cmocka_unit_test(takes_own_hashes),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

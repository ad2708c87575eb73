/* A predicate over keys as closed-form bounds. The conjunction is flattened, negations pushed inwards; a comparison of
 * ints whose difference is linear in k with coefficient +-1 says k <= U or k >= L. Everything is done on the difference
 * written as a sum: terms free of k, a constant, and k's coefficient. */
#include "expr_node.h"

#include <stdlib.h>
#include <string.h>

#define MAX_TERMS 32 /* of one comparison; longer ones stay in the residual */

typedef struct sum {
    const fk_expr *term[MAX_TERMS]; /* free of k */
    bool minus[MAX_TERMS];
    int count, coefficient;
    int64_t constant;
    bool linear;
} sum;

typedef struct splitter {
    fk_expr_pool *pool;
    const char *k;
    fk_expr_split *out;
} splitter;

static void sum_add(sum *s, const fk_expr *e, bool minus, const char *k) {
    if (e->op == OP_ADD || e->op == OP_SUB) {
        sum_add(s, e->arg[0], minus, k);
        sum_add(s, e->arg[1], minus != (e->op == OP_SUB), k);
    } else if (e->op == OP_NEG) {
        sum_add(s, e->arg[0], !minus, k);
    } else if (e->op == OP_INT) {
        s->constant += minus ? -e->i : e->i;
    } else if (e->op == OP_SCALAR && strcmp(e->name, k) == 0) {
        s->coefficient += minus ? -1 : 1;
    } else if (s->count == MAX_TERMS || fk_expr_uses(e, k)) {
        s->linear = false;
    } else {
        s->term[s->count] = e;
        s->minus[s->count++] = minus;
    }
}

/* The sum without k, negated if asked: positive terms may come first only, so that `q - w` is not `-w + q`. */
static const fk_expr *sum_expression(const sum *s, bool negate, int64_t offset, fk_expr_pool *pool) {
    const int64_t constant = (negate ? -s->constant : s->constant) + offset;
    int first = 0;
    while (first < s->count && s->minus[first] != negate)
        ++first;
    const bool leads = first == s->count; /* no positive term: the constant leads */
    const fk_expr *e = leads ? fk_expr_int(pool, constant) : s->term[first];
    for (int i = 0; i < s->count; ++i) {
        if (i != first) e = fk_expr_build(pool, s->minus[i] != negate ? OP_SUB : OP_ADD, e, s->term[i], NULL);
    }
    return leads ? e : fk_expr_build(pool, OP_ADD, e, fk_expr_int(pool, constant), NULL);
}

/* Takes lhs <= rhs - strict as a bound of k. False: it stays in the residual. */
static bool take_bound(splitter *s, const fk_expr *lhs, const fk_expr *rhs, int strict) {
    fk_expr_split *out = s->out;
    sum gap = {.linear = true}; /* rhs - lhs, which is >= strict */
    sum_add(&gap, lhs, true, s->k);
    sum_add(&gap, rhs, false, s->k);
    if (!gap.linear || llabs(gap.constant) >= INT32_MAX) return false;
    if (gap.coefficient == -1 && out->num_upper < FK_EXPR_MAX_BOUNDS) {
        out->upper[out->num_upper++] = sum_expression(&gap, false, -strict, s->pool);
        return true;
    }
    if (gap.coefficient == 1 && out->num_lower < FK_EXPR_MAX_BOUNDS) {
        out->lower[out->num_lower++] = sum_expression(&gap, true, strict, s->pool);
        return true;
    }
    return false;
}

/* Both or none. */
static bool take_both(splitter *s, const fk_expr *l0, const fk_expr *r0, const fk_expr *l1, const fk_expr *r1,
                      int strict) {
    const int num_upper = s->out->num_upper, num_lower = s->out->num_lower;
    if (take_bound(s, l0, r0, strict) && take_bound(s, l1, r1, strict)) return true;
    s->out->num_upper = num_upper;
    s->out->num_lower = num_lower;
    return false;
}

static bool take_comparison(splitter *s, fk_expr_op op, const fk_expr *lhs, const fk_expr *rhs) {
    if (op == OP_GT || op == OP_GE) return take_comparison(s, op == OP_GT ? OP_LT : OP_LE, rhs, lhs);
    if (op == OP_EQ) return take_both(s, lhs, rhs, rhs, lhs, 0);
    if (op != OP_LT && op != OP_LE) return false;
    const int strict = op == OP_LT;
    if (lhs->op != OP_ABS) return take_bound(s, lhs, rhs, strict);
    const fk_expr *x = lhs->arg[0], *minus_x = fk_expr_build(s->pool, OP_NEG, x, NULL, NULL);
    return minus_x && take_both(s, minus_x, rhs, x, rhs, strict); /* |x| <= y: -x <= y and x <= y */
}

static fk_expr_op inverse(fk_expr_op op) {
    static const fk_expr_op table[] = {OP_GE, OP_GT, OP_LE, OP_LT, OP_NE, OP_EQ};
    return table[op - OP_LT];
}

/* Takes `e`, or its negation, into the split. */
static void split(splitter *s, const fk_expr *e, bool negated) {
    if (e->op == OP_NOT) {
        split(s, e->arg[0], !negated);
        return;
    }
    if (e->op == (negated ? OP_LOR : OP_LAND)) {
        split(s, e->arg[0], negated);
        split(s, e->arg[1], negated);
        return;
    }
    if (e->op == OP_BOOL && (e->i != 0) != negated) return;
    /* Floats are left alone: with a NaN, !(a < b) is not a >= b. */
    const bool compares = e->op >= OP_LT && e->op <= OP_NE && e->arg[0]->type == FK_EXPR_INT;
    if (compares) {
        const fk_expr_op op = negated ? inverse(e->op) : e->op;
        if (take_comparison(s, op, e->arg[0], e->arg[1])) return;
        e = negated ? fk_expr_node(s->pool, op, e->arg[0], e->arg[1], NULL) : e;
    } else if (negated) {
        e = fk_expr_build(s->pool, OP_NOT, e, NULL, NULL);
    }
    s->out->residual = fk_expr_and(s->pool, s->out->residual, e);
}

fk_status fk_expr_split_bounds(fk_expr_pool *pool, const fk_expr *keep, const char *k, fk_expr_split *out,
                               fk_error *err) {
    if (fk_expr_pool_check(pool, err) != FK_OK) return fk_expr_pool_check(pool, NULL);
    fk_expr_split result = {.num_upper = 0};
    if (keep && keep->type != FK_EXPR_BOOL)
        return fk_fail(err, FK_BAD_PROBLEM, "expression: a mask is a bool, such as k <= q; this one is %s",
                       keep->type == FK_EXPR_INT ? "int" : "float");
    splitter s = {pool, k, &result};
    if (keep) split(&s, keep, false);
    if (fk_expr_pool_check(pool, err) != FK_OK) return fk_expr_pool_check(pool, NULL);
    *out = result;
    return FK_OK;
}

static bool reads(const fk_expr *e, const char *array) {
    return e->op == OP_READ && strcmp(e->name, array) == 0;
}

bool fk_expr_split_runs(fk_expr_pool *pool, const fk_expr_split *in, const char *a, const char *c, fk_expr_split *out) {
    const fk_expr *e = in->residual;
    if (!e || e->op != OP_EQ || in->num_upper == FK_EXPR_MAX_BOUNDS || in->num_lower == FK_EXPR_MAX_BOUNDS)
        return false;
    const int by_query = reads(e->arg[1], a);
    if (!reads(e->arg[by_query], a) || !reads(e->arg[1 - by_query], c)) return false;
    const fk_expr *const *index = e->arg[by_query]->arg;
    *out = *in;
    out->residual = NULL;
    out->upper[out->num_upper++] = fk_expr_read(pool, "last_key", FK_EXPR_INT, index);
    out->lower[out->num_lower++] = fk_expr_read(pool, "first_key", FK_EXPR_INT, index);
    return true;
}

/* x of `x op constant`; NULL: e is something else. */
static const fk_expr *operand(const fk_expr *e, fk_expr_op op, int64_t constant) {
    const bool is_that = e->op == op && e->arg[1]->op == OP_INT && e->arg[1]->i == constant;
    return is_that ? e->arg[0] : NULL;
}

/* e with `word` in place of k >> 5. */
static const fk_expr *by_word(fk_expr_pool *pool, const fk_expr *e) {
    const fk_expr *arg[FK_EXPR_MAX_ARGS] = {NULL}, *shifted = operand(e, OP_SHR, 5);
    if (shifted && fk_expr_is_scalar(shifted, "k")) return fk_expr_scalar(pool, "word", FK_EXPR_INT);
    if (e->op == OP_SCALAR || !fk_expr_uses(e, "k")) return e;
    for (int i = 0; i < FK_EXPR_MAX_ARGS && e->arg[i]; ++i) {
        arg[i] = by_word(pool, e->arg[i]);
        if (!arg[i]) return NULL;
    }
    return e->op == OP_READ ? fk_expr_read(pool, e->name, e->type, arg)
                            : fk_expr_build(pool, e->op, arg[0], arg[1], arg[2]);
}

/* The word, and in *place which of its bits, modulo 32: of bit(word, place), or (word >> (place & 31) & 1) == 1. */
static const fk_expr *tested_word(const fk_expr *e, const fk_expr **place) {
    if (e->op == OP_BIT) {
        *place = e->arg[1];
        return e->arg[0];
    }
    const fk_expr *bit = operand(e, OP_EQ, 1), *shifted = bit ? operand(bit, OP_AND, 1) : NULL;
    if (!shifted || shifted->op != OP_SHR) return NULL;
    *place = operand(shifted->arg[1], OP_AND, 31);
    return *place ? shifted->arg[0] : NULL;
}

const fk_expr *fk_expr_words(fk_expr_pool *pool, const fk_expr *e) {
    const fk_expr *place = NULL, *tested = e ? tested_word(e, &place) : NULL;
    if (!tested || !fk_expr_is_scalar(place, "k")) return NULL;
    const fk_expr *word = by_word(pool, tested);
    return word && !fk_expr_uses(word, "k") ? word : NULL;
}

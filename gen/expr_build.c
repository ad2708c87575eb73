/* Making expressions out of expressions: simplified on the way up, so that what people read in an emitted kernel looks
 * as if it had been written by hand. A rewrite never changes a value, with one exception that derivatives need:
 * 0 * x is 0 for a float x too, which takes x to be finite. */
#include "expr_node.h"

#include <float.h>
#include <math.h>
#include <string.h>

static bool is_value(const fk_expr *e, int value) {
    return (e->op == OP_INT && e->i == value) || (e->op == OP_FLOAT && e->f == value);
}

static bool is_negative(const fk_expr *e) {
    return (e->op == OP_INT && e->i < 0) || (e->op == OP_FLOAT && e->f < 0);
}

/* Folds only what stays the same in the device's 32 bits. */
static const fk_expr *fold(fk_expr_pool *pool, const fk_expr *e) {
    for (int i = 0; i < FK_EXPR_MAX_ARGS && e->arg[i]; ++i) {
        if (!fk_expr_is_constant(e->arg[i])) return e;
    }
    const double value = fk_expr_eval(e, &(fk_expr_env){0});
    if (e->type == FK_EXPR_BOOL) return fk_expr_bool(pool, value != 0);
    if (e->type == FK_EXPR_INT) return fabs(value) <= INT32_MAX ? fk_expr_int(pool, (int64_t)value) : e;
    return fabs(value) <= (double)FLT_MAX ? fk_expr_float(pool, value) : e;
}

static const fk_expr *negated(fk_expr_pool *pool, const fk_expr *e) {
    return fk_expr_build(pool, OP_NEG, e, NULL, NULL);
}

static const fk_expr *simplify_sum(fk_expr_pool *pool, const fk_expr *e) {
    const fk_expr *a = e->arg[0], *b = e->arg[1];
    const fk_expr_op opposite = e->op == OP_ADD ? OP_SUB : OP_ADD;
    if (is_value(b, 0)) return a;
    if (is_value(a, 0)) return e->op == OP_ADD ? b : negated(pool, b);
    if (b->op == OP_NEG || is_negative(b)) return fk_expr_build(pool, opposite, a, negated(pool, b), NULL);
    return e;
}

static const fk_expr *simplify_product(fk_expr_pool *pool, const fk_expr *e) {
    const fk_expr *a = e->arg[0], *b = e->arg[1];
    if (is_value(a, 0) || is_value(b, 1)) return a;
    if (e->op == OP_DIV) return e;
    if (is_value(b, 0) || is_value(a, 1)) return b;
    if (is_value(a, -1)) return negated(pool, b);
    if (is_value(b, -1)) return negated(pool, a);
    return e;
}

static const fk_expr *simplify_logic(const fk_expr *e) {
    const bool absorbs = e->op == OP_LOR; /* the constant that decides alone */
    for (int i = 0; i < 2; ++i) {
        if (e->arg[i]->op == OP_BOOL) return (e->arg[i]->i != 0) == absorbs ? e->arg[i] : e->arg[1 - i];
    }
    return e;
}

static const fk_expr *simplify_select(const fk_expr *e) {
    if (e->arg[0]->op == OP_BOOL) return e->arg[0]->i ? e->arg[1] : e->arg[2];
    return fk_expr_equal(e->arg[1], e->arg[2]) ? e->arg[1] : e;
}

/* Operands that were widened by fk_expr_node have not been folded yet. */
static const fk_expr *fold_widened(fk_expr_pool *pool, const fk_expr *e) {
    return e && e->op == OP_WIDEN ? fold(pool, e) : e;
}

const fk_expr *fk_expr_build(fk_expr_pool *pool, fk_expr_op op, const fk_expr *a, const fk_expr *b, const fk_expr *c) {
    const fk_expr *e = fk_expr_node(pool, op, a, b, c);
    if (!e) return NULL;
    if (op != OP_WIDEN && e->arg[0])
        e = fk_expr_node(pool, op, fold_widened(pool, e->arg[0]), fold_widened(pool, e->arg[1]),
                         fold_widened(pool, e->arg[2]));
    e = e ? fold(pool, e) : NULL;
    if (!e) return NULL;
    switch (e->op) {
    case OP_ADD:
    case OP_SUB:
        return simplify_sum(pool, e);
    case OP_MUL:
    case OP_DIV:
        return simplify_product(pool, e);
    case OP_LAND:
    case OP_LOR:
        return simplify_logic(e);
    case OP_SELECT:
        return simplify_select(e);
    case OP_NEG:
    case OP_NOT:
        return e->arg[0]->op == e->op ? e->arg[0]->arg[0] : e;
    default:
        return e;
    }
}

const fk_expr *fk_expr_and(fk_expr_pool *pool, const fk_expr *a, const fk_expr *b) {
    if (fk_expr_pool_check(pool, NULL) != FK_OK) return NULL; /* a NULL of an earlier failure is not "no term" */
    if (!a || !b) return a ? a : b;
    return fk_expr_build(pool, OP_LAND, a, b, NULL);
}

const fk_expr *fk_expr_rebuild(fk_expr_pool *pool, const fk_expr *e, const fk_expr *const arg[FK_EXPR_MAX_ARGS]) {
    bool changed = false;
    for (int i = 0; i < FK_EXPR_MAX_ARGS && e->arg[i]; ++i)
        changed = changed || arg[i] != e->arg[i];
    if (!changed) return e;
    if (e->op == OP_READ) return fk_expr_read(pool, e->name, e->type, arg);
    return fk_expr_build(pool, e->op, arg[0], arg[1], arg[2]);
}

const fk_expr *fk_expr_substitute(fk_expr_pool *pool, const fk_expr *e, const char *name, const fk_expr *by) {
    if (!e || !by) return NULL;
    if (e->op == OP_SCALAR && strcmp(e->name, name) == 0) {
        if (e->type == by->type) return by;
        if (e->type == FK_EXPR_FLOAT && by->type == FK_EXPR_INT) return fk_expr_build(pool, OP_WIDEN, by, NULL, NULL);
        return fk_expr_pool_fail(pool, FK_INTERNAL, "a name is substituted by a value of another type");
    }
    const fk_expr *arg[FK_EXPR_MAX_ARGS] = {NULL};
    for (int i = 0; i < FK_EXPR_MAX_ARGS && e->arg[i]; ++i) {
        arg[i] = fk_expr_substitute(pool, e->arg[i], name, by);
        if (!arg[i]) return NULL;
    }
    return fk_expr_rebuild(pool, e, arg);
}

/* d e / d leaf by the rules of calculus, one case an operator. The leaf is a scalar or one read of an array. Ints are
 * steps: their derivative is zero. */
#include "expr_node.h"

#include <string.h>

static const fk_expr *derive(fk_expr_pool *pool, const fk_expr *e, const fk_expr *leaf);

static const fk_expr *unary(fk_expr_pool *pool, fk_expr_op op, const fk_expr *a) {
    return fk_expr_build(pool, op, a, NULL, NULL);
}

static const fk_expr *binary(fk_expr_pool *pool, fk_expr_op op, const fk_expr *a, const fk_expr *b) {
    return fk_expr_build(pool, op, a, b, NULL);
}

static bool has_op(const fk_expr *e, fk_expr_op op) {
    for (int i = 0; i < FK_EXPR_MAX_ARGS && e->arg[i]; ++i)
        if (has_op(e->arg[i], op)) return true;
    return e->op == op;
}

/* (a / b)' = (a' - (a / b) b') / b: one division fewer than the schoolbook's, and nothing is squared. Where b's exp is
 * infinite, so is b', and a / b is 0. */
static const fk_expr *derive_quotient(fk_expr_pool *pool, const fk_expr *e, const fk_expr *da, const fk_expr *db) {
    const fk_expr *change = binary(pool, OP_SUB, da, binary(pool, OP_MUL, e, db));
    if (has_op(e->arg[1], OP_EXP))
        change = fk_expr_build(pool, OP_SELECT, binary(pool, OP_EQ, e, fk_expr_float(pool, 0)), da, change);
    return binary(pool, OP_DIV, change, e->arg[1]);
}

/* The branch that the value took, which of a NaN is the other one. */
static const fk_expr *derive_extreme(fk_expr_pool *pool, const fk_expr *e, const fk_expr *da, const fk_expr *db) {
    const fk_expr *a = e->arg[0], *b = e->arg[1];
    const bool may_be_nan = has_op(b, OP_LOG) || has_op(b, OP_DIV) || has_op(b, OP_EXP);
    const fk_expr *took_a = may_be_nan        ? binary(pool, OP_EQ, e, a)
                            : e->op == OP_MIN ? binary(pool, OP_LE, a, b)
                                              : binary(pool, OP_GE, a, b);
    return fk_expr_build(pool, OP_SELECT, took_a, da, db);
}

static const fk_expr *derive_binary(fk_expr_pool *pool, const fk_expr *e, const fk_expr *leaf) {
    const fk_expr *a = e->arg[0], *b = e->arg[1];
    const fk_expr *da = derive(pool, a, leaf), *db = derive(pool, b, leaf);
    switch (e->op) {
    case OP_MUL:
        return binary(pool, OP_ADD, binary(pool, OP_MUL, da, b), binary(pool, OP_MUL, a, db));
    case OP_DIV:
        return derive_quotient(pool, e, da, db);
    case OP_MIN:
    case OP_MAX:
        return derive_extreme(pool, e, da, db);
    default: /* OP_ADD, OP_SUB */
        return binary(pool, e->op, da, db);
    }
}

static const fk_expr *derive_unary(fk_expr_pool *pool, const fk_expr *e, const fk_expr *leaf) {
    const fk_expr *a = e->arg[0], *da = derive(pool, a, leaf);
    switch (e->op) {
    case OP_NEG:
        return unary(pool, OP_NEG, da);
    case OP_ABS:
        return fk_expr_build(pool, OP_SELECT, binary(pool, OP_LT, a, fk_expr_float(pool, 0)), unary(pool, OP_NEG, da),
                             da);
    case OP_EXP:
        return binary(pool, OP_MUL, e, da);
    case OP_LOG:
        return binary(pool, OP_DIV, da, a);
    default: /* OP_TANH */
        return binary(pool, OP_MUL, binary(pool, OP_SUB, fk_expr_float(pool, 1), binary(pool, OP_MUL, e, e)), da);
    }
}

static const fk_expr *derive(fk_expr_pool *pool, const fk_expr *e, const fk_expr *leaf) {
    switch (e->op) {
    case OP_SCALAR:
    case OP_READ:
        return fk_expr_float(pool, fk_expr_equal(e, leaf));
    case OP_FLOAT:
    case OP_WIDEN:
        return fk_expr_float(pool, 0);
    case OP_SELECT:
        return fk_expr_build(pool, OP_SELECT, e->arg[0], derive(pool, e->arg[1], leaf), derive(pool, e->arg[2], leaf));
    default:
        return e->arg[1] ? derive_binary(pool, e, leaf) : derive_unary(pool, e, leaf);
    }
}

static bool reads_as_float(const fk_expr *e, const char *name) {
    if (fk_expr_is_scalar(e, name)) return e->type == FK_EXPR_FLOAT;
    for (int i = 0; i < FK_EXPR_MAX_ARGS && e->arg[i]; ++i) {
        if (!reads_as_float(e->arg[i], name)) return false;
    }
    return true;
}

static fk_status check_float(const fk_expr_pool *pool, const fk_expr *e, fk_error *err) {
    const fk_status status = fk_expr_pool_check(pool, err);
    if (status != FK_OK || e->type == FK_EXPR_FLOAT) return status;
    return fk_fail(err, FK_BAD_PROBLEM, "expression: only a float expression has a derivative; this one is %s",
                   e->type == FK_EXPR_INT ? "int" : "bool");
}

static fk_status differentiate(fk_expr_pool *pool, const fk_expr *e, const fk_expr *leaf, const fk_expr **out,
                               fk_error *err) {
    const fk_expr *d = derive(pool, e, leaf);
    if (!d) return fk_expr_pool_check(pool, err);
    *out = d;
    return FK_OK;
}

fk_status fk_expr_differentiate(fk_expr_pool *pool, const fk_expr *e, const char *name, const fk_expr **out,
                                fk_error *err) {
    const fk_status status = check_float(pool, e, err);
    if (status != FK_OK) return status;
    if (!reads_as_float(e, name))
        return fk_fail(err, FK_BAD_PROBLEM, "expression: no derivative with respect to '%s', which is not a float",
                       name);
    const fk_expr leaf = {.op = OP_SCALAR, .type = FK_EXPR_FLOAT, .depth = 1, .size = 1, .name = name};
    return differentiate(pool, e, &leaf, out, err);
}

fk_status fk_expr_differentiate_read(fk_expr_pool *pool, const fk_expr *e, const fk_expr *read, const fk_expr **out,
                                     fk_error *err) {
    const fk_status status = check_float(pool, e, err);
    if (status != FK_OK) return status;
    if (read->type != FK_EXPR_FLOAT)
        return fk_fail(err, FK_BAD_PROBLEM, "expression: no derivative with respect to '%s', which is not a float",
                       read->name);
    return differentiate(pool, e, read, out, err);
}

/* What of an expression is the same for many of its values: a product's fixed factors, which whoever goes on with the
 * product multiplies once; hashes of what does not change; a course along one name that is a straight line, of which
 * two points tell all. */
#include "expr_node.h"

#include <stdio.h>
#include <string.h>

bool fk_expr_is_sum_with(const fk_expr *e, const char *name) {
    const fk_expr *a = e->arg[0], *b = e->arg[1];
    if (e->op != OP_ADD && e->op != OP_SUB) return fk_expr_is_scalar(e, name);
    const bool left = fk_expr_uses(a, name);
    if (left == fk_expr_uses(b, name) || (!left && e->op == OP_SUB)) return false;
    return fk_expr_is_sum_with(left ? a : b, name);
}

static bool never_negative(const fk_expr *e) {
    switch (e->op) {
    case OP_INT:
        return e->i >= 0;
    case OP_FLOAT:
        return e->f >= 0;
    case OP_ABS:
    case OP_EXP:
        return true;
    case OP_WIDEN:
        return never_negative(e->arg[0]);
    case OP_ADD:
    case OP_MUL:
    case OP_DIV:
        return never_negative(e->arg[0]) && never_negative(e->arg[1]);
    default:
        return false;
    }
}

static bool is_fixed(const fk_expr *e, const char *const *varying) {
    if (e->op == OP_READ) return false;
    for (; e->op == OP_SCALAR && *varying; ++varying) {
        if (strcmp(e->name, *varying) == 0) return false;
    }
    for (int i = 0; i < FK_EXPR_MAX_ARGS && e->arg[i]; ++i) {
        if (!is_fixed(e->arg[i], varying)) return false;
    }
    return true;
}

const fk_expr *fk_expr_take_factor(fk_expr_pool *pool, const fk_expr *e, const char *const *varying,
                                   const fk_expr **rest) {
    *rest = e;
    for (int i = 0; i < 2 && e->op == OP_MUL; ++i) {
        if (!is_fixed(e->arg[i], varying) || !never_negative(e->arg[i])) continue;
        const fk_expr *more = fk_expr_take_factor(pool, e->arg[1 - i], varying, rest);
        return fk_expr_build(pool, OP_MUL, e->arg[i], more, NULL);
    }
    return fk_expr_float(pool, 1);
}

/* y of 1 / y; NULL: e is something else. */
static const fk_expr *inverted(const fk_expr *e) {
    const fk_expr *one = e->op == OP_DIV ? e->arg[0] : NULL;
    if (one && one->op == OP_WIDEN) one = one->arg[0];
    const bool is_one = one && ((one->op == OP_FLOAT && one->f == 1) || (one->op == OP_INT && one->i == 1));
    return is_one && e->type == FK_EXPR_FLOAT ? e->arg[1] : NULL;
}

const fk_expr *fk_expr_divide_once(fk_expr_pool *pool, const fk_expr *e) {
    const fk_expr *arg[FK_EXPR_MAX_ARGS] = {NULL};
    for (int i = 0; i < FK_EXPR_MAX_ARGS && e->arg[i]; ++i) {
        arg[i] = fk_expr_divide_once(pool, e->arg[i]);
        if (!arg[i]) return NULL;
    }
    for (int i = 0; i < 2 && e->op == OP_MUL; ++i) {
        const fk_expr *by = inverted(arg[i]);
        if (by) return fk_expr_build(pool, OP_DIV, arg[1 - i], by, NULL);
    }
    return fk_expr_rebuild(pool, e, arg);
}

static bool has_hash(const fk_expr *e) {
    if (e->op == OP_HASH) return true;
    for (int i = 0; i < FK_EXPR_MAX_ARGS && e->arg[i]; ++i) {
        if (has_hash(e->arg[i])) return true;
    }
    return false;
}

const fk_expr *fk_expr_take_own(fk_expr_pool *pool, const fk_expr *e, const char *varying, const fk_expr **own,
                                int *count) {
    const char *const names[] = {varying, NULL};
    if (!has_hash(e)) return e;
    if (e->type == FK_EXPR_INT && is_fixed(e, names)) {
        int i = 0;
        while (i < *count && !fk_expr_equal(own[i], e))
            ++i;
        if (i == FK_EXPR_MAX_OWN) return e;
        if (i == *count) own[(*count)++] = e;
        char name[16];
        snprintf(name, sizeof name, "own%d", i);
        return fk_expr_scalar(pool, fk_expr_pool_name(pool, name, strlen(name)), FK_EXPR_INT);
    }
    const fk_expr *arg[FK_EXPR_MAX_ARGS] = {NULL};
    for (int i = 0; i < FK_EXPR_MAX_ARGS && e->arg[i]; ++i) {
        arg[i] = fk_expr_take_own(pool, e->arg[i], varying, own, count);
        if (!arg[i]) return NULL;
    }
    return fk_expr_rebuild(pool, e, arg);
}

typedef struct line {
    const char *name;
    const fk_expr **bend;
    int most, *count;
} line;

static bool is_straight(const line *l, const fk_expr *e) {
    const fk_expr *a = e->arg[0], *b = e->arg[1];
    if (!fk_expr_uses(e, l->name)) return true;
    switch (e->op) {
    case OP_SCALAR:
        return true;
    case OP_NEG:
    case OP_WIDEN:
        return is_straight(l, a);
    case OP_ADD:
    case OP_SUB:
        return is_straight(l, a) && is_straight(l, b);
    case OP_MUL:
        if (fk_expr_uses(a, l->name) && fk_expr_uses(b, l->name)) return false;
        return is_straight(l, a) && is_straight(l, b);
    case OP_ABS:
        if (a->type != FK_EXPR_INT || *l->count == l->most || !is_straight(l, a)) return false;
        l->bend[(*l->count)++] = a;
        return true;
    default:
        return false;
    }
}

bool fk_expr_is_straight(const fk_expr *e, const char *name, const fk_expr **bend, int most, int *count) {
    const line l = {name, bend, most, count};
    return is_straight(&l, e);
}

bool fk_expr_has_one_slope(const fk_expr *e, const char *name, const char *other) {
    const fk_expr *a = e->arg[0], *b = e->arg[1];
    if (!fk_expr_uses(e, name) || e->op == OP_SCALAR) return true;
    if (e->op == OP_MUL && fk_expr_uses(fk_expr_uses(a, name) ? b : a, other)) return false;
    return fk_expr_has_one_slope(a, name, other) && (!b || fk_expr_has_one_slope(b, name, other));
}

/* A product's factors that are the same for all scores, taken out of it: whoever goes on with the product multiplies
 * once. */
#include "expr_node.h"

#include <string.h>

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

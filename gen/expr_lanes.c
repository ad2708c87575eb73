/* What an expression costs a GPU where some of its names change from value to value: instructions, roughly, with those
 * of the exponentials' unit counted as the eight others that its clocks could issue. */
#include "expr_node.h"

static double own_lanes(const fk_expr *e) {
    switch (e->op) {
    case OP_READ:
        return 1.5; /* with its address; neighbours are read together */
    case OP_TANH:
        return 6; /* of a small argument: templates/piece/score_values.cu */
    case OP_EXP:
    case OP_LOG:
        return 10;
    case OP_DIV:
        return fk_expr_is_by_inverse(e) ? 8 : 10;
    case OP_MOD:
        return fk_expr_is_by_inverse(e) ? 10 : 20;
    default:
        return e->arg[0] ? 1 : 0;
    }
}

/* Does e change with some of the names? */
static bool varies(const fk_expr *e, const char *const *varying) {
    for (; *varying; ++varying) {
        if (fk_expr_uses(e, *varying)) return true;
    }
    return false;
}

double fk_expr_lanes(const fk_expr *e, const char *const *varying) {
    if (!varies(e, varying)) return 0;
    double lanes = own_lanes(e);
    for (int i = 0; i < FK_EXPR_MAX_ARGS && e->arg[i]; ++i)
        lanes += fk_expr_lanes(e->arg[i], varying);
    return lanes;
}

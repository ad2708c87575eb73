/* Values on the CPU: the meaning of the language. Ints are 64 bit and wrap; no input makes it crash. */
#include "expr_node.h"

#include <math.h>
#include <string.h>

static double eval_float(const fk_expr *e, const fk_expr_env *env);
static int64_t eval_int(const fk_expr *e, const fk_expr_env *env);

static double read_scalar(const char *name, const fk_expr_env *env) {
    for (size_t i = 0; i < env->count; ++i) {
        if (strcmp(env->names[i], name) == 0) return env->values[i];
    }
    return 0;
}

static double read_array(const fk_expr *e, const fk_expr_env *env) {
    int64_t index[FK_EXPR_MAX_RANK] = {0};
    int rank = 0;
    for (; rank < FK_EXPR_MAX_RANK && e->arg[rank]; ++rank)
        index[rank] = eval_int(e->arg[rank], env);
    return env->read ? env->read(env->user, e->name, index, rank) : 0;
}

/* Out of range and NaN become 0: the conversion itself must be defined. */
static int64_t to_int(double x) {
    return fabs(x) < 0x1p63 ? (int64_t)x : 0;
}

static bool compare_float(fk_expr_op op, double a, double b) {
    return op == OP_LT   ? a < b
           : op == OP_LE ? a <= b
           : op == OP_GT ? a > b
           : op == OP_GE ? a >= b
           : op == OP_EQ ? a == b
                         : a != b;
}

static bool compare_int(fk_expr_op op, int64_t a, int64_t b) {
    return op == OP_LT   ? a < b
           : op == OP_LE ? a <= b
           : op == OP_GT ? a > b
           : op == OP_GE ? a >= b
           : op == OP_EQ ? a == b
                         : a != b;
}

static int64_t wrapping_neg(int64_t a) {
    return (int64_t)(0 - (uint64_t)a);
}

static int64_t shift_right(int64_t a, int64_t n) {
    return a < 0 ? ~(~a >> n) : a >> n;
}

/* Operators of two ints that give an int. */
static int64_t int_operator(fk_expr_op op, int64_t a, int64_t b) {
    switch (op) {
    case OP_MUL:
        return (int64_t)((uint64_t)a * (uint64_t)b);
    case OP_DIV:
        return b == 0 ? 0 : b == -1 ? wrapping_neg(a) : a / b;
    case OP_MOD:
        return b == 0 || b == -1 ? 0 : a % b;
    case OP_ADD:
        return (int64_t)((uint64_t)a + (uint64_t)b);
    case OP_SUB:
        return (int64_t)((uint64_t)a - (uint64_t)b);
    case OP_SHL:
        return b >= 0 && b < 32 ? (int64_t)((uint64_t)a << b) : 0;
    case OP_SHR:
        return b >= 0 && b < 32 ? shift_right(a, b) : 0;
    case OP_AND:
        return a & b;
    case OP_XOR:
        return a ^ b;
    case OP_OR:
        return a | b;
    case OP_MIN:
        return a < b ? a : b;
    default: /* OP_MAX */
        return a > b ? a : b;
    }
}

static int64_t eval_int(const fk_expr *e, const fk_expr_env *env) {
    const fk_expr *a = e->arg[0], *b = e->arg[1];
    switch (e->op) {
    case OP_INT:
    case OP_BOOL:
        return e->i;
    case OP_SCALAR:
        return to_int(read_scalar(e->name, env));
    case OP_READ:
        return to_int(read_array(e, env));
    case OP_NEG:
        return wrapping_neg(eval_int(a, env));
    case OP_BITNOT:
        return ~eval_int(a, env);
    case OP_NOT:
        return !eval_int(a, env);
    case OP_LT:
    case OP_LE:
    case OP_GT:
    case OP_GE:
    case OP_EQ:
    case OP_NE:
        if (a->type == FK_EXPR_FLOAT) return compare_float(e->op, eval_float(a, env), eval_float(b, env));
        return compare_int(e->op, eval_int(a, env), eval_int(b, env));
    case OP_LAND:
        return eval_int(a, env) && eval_int(b, env);
    case OP_LOR:
        return eval_int(a, env) || eval_int(b, env);
    case OP_SELECT:
        return eval_int(eval_int(a, env) ? b : e->arg[2], env);
    case OP_ABS: {
        const int64_t x = eval_int(a, env);
        return x < 0 ? wrapping_neg(x) : x;
    }
    case OP_POPCOUNT:
        return __builtin_popcount((uint32_t)eval_int(a, env));
    case OP_HASH:
        return fk_expr_hash(eval_int(a, env), eval_int(b, env));
    case OP_BIT:
        return (uint32_t)eval_int(a, env) >> (eval_int(b, env) & 31) & 1;
    default:
        return int_operator(e->op, eval_int(a, env), eval_int(b, env));
    }
}

static double float_operator(const fk_expr *e, const fk_expr_env *env) {
    const fk_expr *a = e->arg[0], *b = e->arg[1];
    switch (e->op) {
    case OP_FLOAT:
        return e->f;
    case OP_SCALAR:
        return read_scalar(e->name, env);
    case OP_READ:
        return read_array(e, env);
    case OP_WIDEN:
        return (double)eval_int(a, env);
    case OP_NEG:
        return -eval_float(a, env);
    case OP_ADD:
        return eval_float(a, env) + eval_float(b, env);
    case OP_SUB:
        return eval_float(a, env) - eval_float(b, env);
    case OP_MUL:
        return eval_float(a, env) * eval_float(b, env);
    case OP_DIV:
        return eval_float(a, env) / eval_float(b, env);
    case OP_SELECT:
        return eval_float(eval_int(a, env) ? b : e->arg[2], env);
    case OP_MIN:
        return fmin(eval_float(a, env), eval_float(b, env));
    case OP_MAX:
        return fmax(eval_float(a, env), eval_float(b, env));
    case OP_ABS:
        return fabs(eval_float(a, env));
    case OP_EXP:
        return exp(eval_float(a, env));
    case OP_LOG:
        return log(eval_float(a, env));
    default: /* OP_TANH */
        return tanh(eval_float(a, env));
    }
}

static double eval_float(const fk_expr *e, const fk_expr_env *env) {
    const double value = float_operator(e, env);
    return env->single ? (double)(float)value : value;
}

double fk_expr_eval(const fk_expr *e, const fk_expr_env *env) {
    return e->type == FK_EXPR_FLOAT ? eval_float(e, env) : (double)eval_int(e, env);
}

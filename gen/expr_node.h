/* What an expression is made of; included by gen/expr_*.c (and their tests) alone.
 *
 * A node is immutable once made, so subtrees are shared freely. Every node knows the depth and the size of the tree
 * below it, and none is made beyond the limits: so any walk may recurse without a check of its own.
 * A constructor given a NULL operand returns NULL, and the pool remembers the first failure for good: a chain of
 * constructions needs one test, at its end. */
#ifndef FK_GEN_EXPR_NODE_H
#define FK_GEN_EXPR_NODE_H

#include "expr.h"

#include <stdint.h>

#define FK_EXPR_MAX_ARGS FK_EXPR_MAX_RANK
#define FK_EXPR_MAX_TEXT 65536      /* bytes of a text to parse */
#define FK_EXPR_MAX_NESTING 64      /* parentheses, calls, ?: and unary operators inside each other */
#define FK_EXPR_MAX_PARSE_DEPTH 256 /* of a parsed tree; a chain of n operators is n deep */
#define FK_EXPR_MAX_DEPTH 1024      /* of any tree: derivatives are deeper than what they derive */
#define FK_EXPR_MAX_SIZE (1u << 20) /* nodes of any tree, shared ones counted each time */

typedef enum fk_expr_op {
    OP_INT, /* constants */
    OP_FLOAT,
    OP_BOOL,
    OP_SCALAR,
    OP_READ,  /* name[arg0], name[arg0][arg1], ... */
    OP_WIDEN, /* int to float: written float(x), or left out where a float neighbour implies it */
    OP_NEG,
    OP_BITNOT,
    OP_NOT,
    OP_MUL, /* binary operators: OP_MUL .. OP_LOR */
    OP_DIV,
    OP_MOD,
    OP_ADD,
    OP_SUB,
    OP_SHL,
    OP_SHR,
    OP_LT, /* comparisons: OP_LT .. OP_NE */
    OP_LE,
    OP_GT,
    OP_GE,
    OP_EQ,
    OP_NE,
    OP_AND,
    OP_XOR,
    OP_OR,
    OP_LAND,
    OP_LOR,
    OP_SELECT, /* arg0 ? arg1 : arg2 */
    OP_MIN,    /* calls: OP_MIN .. OP_BIT */
    OP_MAX,
    OP_ABS,
    OP_EXP,
    OP_LOG,
    OP_TANH,
    OP_POPCOUNT,
    OP_HASH,
    OP_BIT,
    OP_COUNT
} fk_expr_op;

struct fk_expr {
    fk_expr_op op;
    fk_expr_type type;
    uint32_t depth, size;
    bool inverse; /* OP_SCALAR: fk_expr_variable's */
    union {
        int64_t i; /* OP_INT, OP_BOOL */
        double f;  /* OP_FLOAT */
        const char *name;
    };
    const fk_expr *arg[FK_EXPR_MAX_ARGS]; /* the unused ones are NULL */
};

/* What an operator takes. Ints are widened where a float is needed. */
typedef enum fk_expr_operands {
    TAKES_NOTHING,
    TAKES_NUMBERS, /* all int or all float */
    TAKES_INTS,
    TAKES_FLOATS,
    TAKES_BOOLS,
    TAKES_EQUALS, /* numbers or bools, not mixed */
    TAKES_SELECT  /* a bool, then equals */
} fk_expr_operands;

typedef enum fk_expr_result { GIVES_SAME, GIVES_INT, GIVES_FLOAT, GIVES_BOOL } fk_expr_result;

/* Binding strength, as in C; a higher one binds tighter. */
enum {
    PREC_SELECT = 1,
    PREC_LOR,
    PREC_LAND,
    PREC_OR,
    PREC_XOR,
    PREC_AND,
    PREC_EQ,
    PREC_LT,
    PREC_SHIFT,
    PREC_ADD,
    PREC_MUL,
    PREC_UNARY,
    PREC_PRIMARY
};

typedef struct fk_expr_op_info {
    const char *text; /* in the language */
    int arity, precedence;
    fk_expr_operands takes;
    fk_expr_result gives;
    const char *cuda_int, *cuda_float; /* calls */
    const char *interval;              /* "iv_add" */
} fk_expr_op_info;

extern const fk_expr_op_info fk_expr_op_table[OP_COUNT];

/* For tests: blocks come from `allocate`, at least `block_bytes` each. */
fk_expr_pool *fk_expr_pool_create_with(void *(*allocate)(size_t), size_t block_bytes);
/* Copies a name into the pool. */
const char *fk_expr_pool_name(fk_expr_pool *pool, const char *text, size_t length);
/* Records a failure unless one is recorded; returns NULL. `why` is a literal. */
const fk_expr *fk_expr_pool_fail(fk_expr_pool *pool, fk_status status, const char *why);

const fk_expr *fk_expr_int(fk_expr_pool *pool, int64_t value);
const fk_expr *fk_expr_float(fk_expr_pool *pool, double value);
const fk_expr *fk_expr_bool(fk_expr_pool *pool, bool value);
const fk_expr *fk_expr_scalar(fk_expr_pool *pool, const char *name, fk_expr_type type);
/* Whether e is a quotient or a rest by a scalar that has an inverse. */
bool fk_expr_is_by_inverse(const fk_expr *e);
/* `index`: as many as the array's rank, then NULLs. */
const fk_expr *fk_expr_read(fk_expr_pool *pool, const char *name, fk_expr_type type,
                            const fk_expr *const index[FK_EXPR_MAX_RANK]);
/* An operation as written, operands widened. Their types must fit (fk_expr_op_table). */
const fk_expr *fk_expr_node(fk_expr_pool *pool, fk_expr_op op, const fk_expr *a, const fk_expr *b, const fk_expr *c);
/* The same, simplified: constants folded, x + 0, x * 1, ... removed. */
const fk_expr *fk_expr_build(fk_expr_pool *pool, fk_expr_op op, const fk_expr *a, const fk_expr *b, const fk_expr *c);
/* e with these operands, simplified; e itself where they are its own. */
const fk_expr *fk_expr_rebuild(fk_expr_pool *pool, const fk_expr *e, const fk_expr *const arg[FK_EXPR_MAX_ARGS]);

/* hash(x, y): 31 bits that depend on the low 32 of both; hash_of of templates/piece/interval.cu computes the same. Each
 * mix is a bijection of two multiplications (the constants are C. Wellons's lowbias32, public domain). */
static inline uint32_t fk_expr_mix(uint32_t x) {
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}
static inline int32_t fk_expr_hash(int64_t x, int64_t y) {
    return (int32_t)(fk_expr_mix(fk_expr_mix((uint32_t)x + 0x9e3779b9u) + (uint32_t)y) >> 1);
}

bool fk_expr_is_constant(const fk_expr *e);
bool fk_expr_equal(const fk_expr *a, const fk_expr *b);

#endif

/* The arena of expressions and the nodes in it. Nothing is freed before the pool, so nodes may point at each other
 * without counting. */
#include "expr_node.h"

#include <stdlib.h>
#include <string.h>

typedef struct pool_block {
    struct pool_block *next;
    size_t used, size;
    max_align_t data[];
} pool_block;

struct fk_expr_pool {
    pool_block *blocks;
    void *(*allocate)(size_t);
    size_t block_bytes;
    fk_status status; /* the first failure */
    const char *why;
};

const fk_expr_op_info fk_expr_op_table[OP_COUNT] = {
    [OP_INT] = {"int", 0, PREC_PRIMARY, TAKES_NOTHING, GIVES_INT, 0, 0, "iv"},
    [OP_FLOAT] = {"float", 0, PREC_PRIMARY, TAKES_NOTHING, GIVES_FLOAT, 0, 0, "iv"},
    [OP_BOOL] = {"bool", 0, PREC_PRIMARY, TAKES_NOTHING, GIVES_BOOL, 0, 0, "iv"},
    [OP_SCALAR] = {"name", 0, PREC_PRIMARY, TAKES_NOTHING, GIVES_SAME, 0, 0, 0},
    [OP_READ] = {"[]", 0, PREC_PRIMARY, TAKES_INTS, GIVES_SAME, 0, 0, 0},
    [OP_WIDEN] = {"float", 1, PREC_PRIMARY, TAKES_INTS, GIVES_FLOAT, "float", "float", 0},
    [OP_NEG] = {"-", 1, PREC_UNARY, TAKES_NUMBERS, GIVES_SAME, 0, 0, "iv_neg"},
    [OP_BITNOT] = {"~", 1, PREC_UNARY, TAKES_INTS, GIVES_INT, 0, 0, "iv_not"},
    [OP_NOT] = {"!", 1, PREC_UNARY, TAKES_BOOLS, GIVES_BOOL, 0, 0, "iv_lnot"},
    [OP_MUL] = {"*", 2, PREC_MUL, TAKES_NUMBERS, GIVES_SAME, 0, 0, "iv_mul"},
    [OP_DIV] = {"/", 2, PREC_MUL, TAKES_NUMBERS, GIVES_SAME, "div_or_0", 0, "iv_div"},
    [OP_MOD] = {"%", 2, PREC_MUL, TAKES_INTS, GIVES_INT, "mod_or_0", 0, "iv_mod"},
    [OP_ADD] = {"+", 2, PREC_ADD, TAKES_NUMBERS, GIVES_SAME, 0, 0, "iv_add"},
    [OP_SUB] = {"-", 2, PREC_ADD, TAKES_NUMBERS, GIVES_SAME, 0, 0, "iv_sub"},
    [OP_SHL] = {"<<", 2, PREC_SHIFT, TAKES_INTS, GIVES_INT, "shl_or_0", 0, "iv_shl"},
    [OP_SHR] = {">>", 2, PREC_SHIFT, TAKES_INTS, GIVES_INT, "shr_or_0", 0, "iv_shr"},
    [OP_LT] = {"<", 2, PREC_LT, TAKES_NUMBERS, GIVES_BOOL, 0, 0, "iv_lt"},
    [OP_LE] = {"<=", 2, PREC_LT, TAKES_NUMBERS, GIVES_BOOL, 0, 0, "iv_le"},
    [OP_GT] = {">", 2, PREC_LT, TAKES_NUMBERS, GIVES_BOOL, 0, 0, "iv_gt"},
    [OP_GE] = {">=", 2, PREC_LT, TAKES_NUMBERS, GIVES_BOOL, 0, 0, "iv_ge"},
    [OP_EQ] = {"==", 2, PREC_EQ, TAKES_EQUALS, GIVES_BOOL, 0, 0, "iv_eq"},
    [OP_NE] = {"!=", 2, PREC_EQ, TAKES_EQUALS, GIVES_BOOL, 0, 0, "iv_ne"},
    [OP_AND] = {"&", 2, PREC_AND, TAKES_INTS, GIVES_INT, 0, 0, "iv_and"},
    [OP_XOR] = {"^", 2, PREC_XOR, TAKES_INTS, GIVES_INT, 0, 0, "iv_xor"},
    [OP_OR] = {"|", 2, PREC_OR, TAKES_INTS, GIVES_INT, 0, 0, "iv_or"},
    [OP_LAND] = {"&&", 2, PREC_LAND, TAKES_BOOLS, GIVES_BOOL, 0, 0, "iv_land"},
    [OP_LOR] = {"||", 2, PREC_LOR, TAKES_BOOLS, GIVES_BOOL, 0, 0, "iv_lor"},
    [OP_SELECT] = {"?:", 3, PREC_SELECT, TAKES_SELECT, GIVES_SAME, 0, 0, "iv_select"},
    [OP_MIN] = {"min", 2, PREC_PRIMARY, TAKES_NUMBERS, GIVES_SAME, "min", "fminf", "iv_min"},
    [OP_MAX] = {"max", 2, PREC_PRIMARY, TAKES_NUMBERS, GIVES_SAME, "max", "fmaxf", "iv_max"},
    [OP_ABS] = {"abs", 1, PREC_PRIMARY, TAKES_NUMBERS, GIVES_SAME, "abs", "fabsf", "iv_abs"},
    [OP_EXP] = {"exp", 1, PREC_PRIMARY, TAKES_FLOATS, GIVES_FLOAT, 0, "expf", 0},
    [OP_LOG] = {"log", 1, PREC_PRIMARY, TAKES_FLOATS, GIVES_FLOAT, 0, "logf", 0},
    [OP_TANH] = {"tanh", 1, PREC_PRIMARY, TAKES_FLOATS, GIVES_FLOAT, 0, "tanhf", 0},
    [OP_POPCOUNT] = {"popcount", 1, PREC_PRIMARY, TAKES_INTS, GIVES_INT, "__popc", 0, "iv_popcount"},
    [OP_HASH] = {"hash", 2, PREC_PRIMARY, TAKES_INTS, GIVES_INT, "hash_of", 0, "iv_hash"},
    [OP_BIT] = {"bit", 2, PREC_PRIMARY, TAKES_INTS, GIVES_BOOL, "bit_of", 0, "iv_bit"},
};

fk_expr_pool *fk_expr_pool_create_with(void *(*allocate)(size_t), size_t block_bytes) {
    fk_expr_pool *pool = allocate(sizeof *pool);
    if (pool) *pool = (fk_expr_pool){NULL, allocate, block_bytes, FK_OK, ""};
    return pool;
}

fk_expr_pool *fk_expr_pool_create(void) {
    return fk_expr_pool_create_with(malloc, 4096);
}

void fk_expr_pool_destroy(fk_expr_pool *pool) {
    if (!pool) return;
    for (pool_block *block = pool->blocks, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    free(pool);
}

fk_status fk_expr_pool_check(const fk_expr_pool *pool, fk_error *err) {
    return pool->status == FK_OK ? FK_OK : fk_fail(err, pool->status, "expression: %s", pool->why);
}

const fk_expr *fk_expr_pool_fail(fk_expr_pool *pool, fk_status status, const char *why) {
    if (pool->status == FK_OK) {
        pool->status = status;
        pool->why = why;
    }
    return NULL;
}

static void *pool_take(fk_expr_pool *pool, size_t bytes) {
    bytes = (bytes + sizeof(max_align_t) - 1) / sizeof(max_align_t) * sizeof(max_align_t);
    pool_block *block = pool->blocks;
    if (!block || block->size - block->used < bytes) {
        size_t size = bytes > pool->block_bytes ? bytes : pool->block_bytes;
        block = pool->allocate(sizeof *block + size);
        if (!block) {
            fk_expr_pool_fail(pool, FK_NO_MEMORY, "out of memory");
            return NULL;
        }
        *block = (pool_block){.next = pool->blocks, .used = 0, .size = size};
        pool->blocks = block;
    }
    void *memory = (char *)block->data + block->used;
    block->used += bytes;
    return memory;
}

const char *fk_expr_pool_name(fk_expr_pool *pool, const char *text, size_t length) {
    char *name = pool_take(pool, length + 1);
    if (name) {
        memcpy(name, text, length);
        name[length] = 0;
    }
    return name;
}

/* Fills depth and size; every node passes here. */
static const fk_expr *pool_add(fk_expr_pool *pool, fk_expr e) {
    e.depth = e.size = 1;
    for (int i = 0; i < FK_EXPR_MAX_ARGS && e.arg[i]; ++i) {
        if (e.arg[i]->depth >= e.depth) e.depth = e.arg[i]->depth + 1;
        e.size += e.arg[i]->size;
    }
    if (e.depth > FK_EXPR_MAX_DEPTH || e.size > FK_EXPR_MAX_SIZE)
        return fk_expr_pool_fail(pool, FK_BAD_PROBLEM, "it grows beyond 1024 levels or 1048576 operations");
    fk_expr *node = pool_take(pool, sizeof *node);
    if (node) *node = e;
    return node;
}

const fk_expr *fk_expr_int(fk_expr_pool *pool, int64_t value) {
    return pool_add(pool, (fk_expr){.op = OP_INT, .type = FK_EXPR_INT, .i = value});
}

const fk_expr *fk_expr_float(fk_expr_pool *pool, double value) {
    return pool_add(pool, (fk_expr){.op = OP_FLOAT, .type = FK_EXPR_FLOAT, .f = value});
}

const fk_expr *fk_expr_bool(fk_expr_pool *pool, bool value) {
    return pool_add(pool, (fk_expr){.op = OP_BOOL, .type = FK_EXPR_BOOL, .i = value});
}

const fk_expr *fk_expr_scalar(fk_expr_pool *pool, const char *name, fk_expr_type type) {
    return name ? pool_add(pool, (fk_expr){.op = OP_SCALAR, .type = type, .name = name}) : NULL;
}

const fk_expr *fk_expr_variable(fk_expr_pool *pool, const char *name, fk_expr_type type, bool inverse) {
    const char *own = fk_expr_pool_name(pool, name, strlen(name));
    return own ? pool_add(pool, (fk_expr){.op = OP_SCALAR, .type = type, .inverse = inverse, .name = own}) : NULL;
}

const fk_expr *fk_expr_read(fk_expr_pool *pool, const char *name, fk_expr_type type,
                            const fk_expr *const index[FK_EXPR_MAX_RANK]) {
    fk_expr e = {.op = OP_READ, .type = type, .name = name};
    if (!name || !index[0]) return NULL;
    memcpy(e.arg, index, sizeof e.arg);
    return pool_add(pool, e);
}

static const fk_expr *widen(fk_expr_pool *pool, const fk_expr *e) {
    if (e->type != FK_EXPR_INT) return e;
    return pool_add(pool, (fk_expr){.op = OP_WIDEN, .type = FK_EXPR_FLOAT, .arg = {e}});
}

const fk_expr *fk_expr_node(fk_expr_pool *pool, fk_expr_op op, const fk_expr *a, const fk_expr *b, const fk_expr *c) {
    const fk_expr_op_info *info = &fk_expr_op_table[op];
    fk_expr e = {.op = op, .arg = {a, b, c}};
    const int first = op == OP_SELECT ? 1 : 0; /* of the operands that share a type */
    bool is_float = info->takes == TAKES_FLOATS;
    for (int i = 0; i < info->arity; ++i) {
        if (!e.arg[i]) return NULL;
        if (i >= first && e.arg[i]->type == FK_EXPR_FLOAT) is_float = true;
    }
    if (op == OP_WIDEN) return widen(pool, a);
    for (int i = first; is_float && i < info->arity; ++i) {
        e.arg[i] = widen(pool, e.arg[i]);
        if (!e.arg[i]) return NULL;
    }
    e.type = info->gives == GIVES_SAME    ? e.arg[first]->type
             : info->gives == GIVES_INT   ? FK_EXPR_INT
             : info->gives == GIVES_FLOAT ? FK_EXPR_FLOAT
                                          : FK_EXPR_BOOL;
    return pool_add(pool, e);
}

fk_expr_type fk_expr_type_of(const fk_expr *e) {
    return e->type;
}

int fk_expr_size(const fk_expr *e) {
    return (int)e->size;
}

bool fk_expr_uses(const fk_expr *e, const char *name) {
    if ((e->op == OP_SCALAR || e->op == OP_READ) && strcmp(e->name, name) == 0) return true;
    for (int i = 0; i < FK_EXPR_MAX_ARGS && e->arg[i]; ++i) {
        if (fk_expr_uses(e->arg[i], name)) return true;
    }
    return false;
}

bool fk_expr_is_by_inverse(const fk_expr *e) {
    return (e->op == OP_DIV || e->op == OP_MOD) && e->arg[1]->op == OP_SCALAR && e->arg[1]->inverse;
}

bool fk_expr_divides_by(const fk_expr *e, const char *name) {
    if (fk_expr_is_by_inverse(e) && fk_expr_is_scalar(e->arg[1], name)) return true;
    for (int i = 0; i < FK_EXPR_MAX_ARGS && e->arg[i]; ++i) {
        if (fk_expr_divides_by(e->arg[i], name)) return true;
    }
    return false;
}

bool fk_expr_is_open(const fk_expr *e, const char *name) {
    bool open = (e->op == OP_HASH || e->op == OP_READ) && fk_expr_uses(e, name);
    for (int i = 0; i < FK_EXPR_MAX_ARGS && e->arg[i]; ++i)
        open = open || fk_expr_is_open(e->arg[i], name);
    return open;
}

bool fk_expr_computes_with(const fk_expr *e, const char *name) {
    if (e->op == OP_READ) return false;
    if (e->op == OP_SCALAR && strcmp(e->name, name) == 0) return true;
    for (int i = 0; i < FK_EXPR_MAX_ARGS && e->arg[i]; ++i) {
        if (fk_expr_computes_with(e->arg[i], name)) return true;
    }
    return false;
}

int64_t fk_common_divisor(int64_t a, int64_t b) {
    return b ? fk_common_divisor(b, a % b) : a;
}

/* max(q + diag, 0) */
static bool is_position(const fk_expr *e) {
    const fk_expr *sum = e->arg[0], *least = e->arg[1];
    return e->op == OP_MAX && sum->op == OP_ADD && fk_expr_is_scalar(sum->arg[0], "q") &&
           fk_expr_is_scalar(sum->arg[1], "diag") && least->op == OP_INT && least->i == 0;
}

static int64_t block_of(const fk_expr *e, const char *name, bool positions) {
    if (fk_expr_is_scalar(e, name)) return 1;
    const fk_expr *by = e->arg[1];
    if ((e->op == OP_DIV || e->op == OP_SHR) &&
        (fk_expr_is_scalar(e->arg[0], name) || (positions && is_position(e->arg[0]))) && by->op == OP_INT &&
        by->i >= 0 && (e->op == OP_DIV ? by->i > 0 : by->i < 31))
        return e->op == OP_DIV ? by->i : (int64_t)1 << by->i;
    int64_t block = 0;
    for (int i = 0; i < FK_EXPR_MAX_ARGS && e->arg[i]; ++i)
        block = fk_common_divisor(block, block_of(e->arg[i], name, positions));
    return block;
}

int64_t fk_expr_block(const fk_expr *e, const char *name) {
    return block_of(e, name, false);
}

int64_t fk_expr_row_block(const fk_expr *e) {
    return block_of(e, "q", true);
}

static void find_reads(const fk_expr *e, const char *array, const fk_expr **out, size_t most, size_t *count) {
    bool is_new = e->op == OP_READ && strcmp(e->name, array) == 0;
    for (size_t i = 0; is_new && i < *count && i < most; ++i)
        is_new = !fk_expr_equal(e, out[i]);
    if (is_new && *count < most) out[*count] = e;
    *count += is_new;
    for (int i = 0; i < FK_EXPR_MAX_ARGS && e->arg[i]; ++i)
        find_reads(e->arg[i], array, out, most, count);
}

size_t fk_expr_find_reads(const fk_expr *e, const char *array, const fk_expr **out, size_t most) {
    size_t count = 0;
    find_reads(e, array, out, most, &count);
    return count;
}

const fk_expr *fk_expr_index(const fk_expr *read, int i) {
    return i < FK_EXPR_MAX_RANK ? read->arg[i] : NULL;
}

bool fk_expr_is_scalar(const fk_expr *e, const char *name) {
    return e->op == OP_SCALAR && strcmp(e->name, name) == 0;
}

bool fk_expr_is_constant(const fk_expr *e) {
    return e->op == OP_INT || e->op == OP_FLOAT || e->op == OP_BOOL;
}

bool fk_expr_equal(const fk_expr *a, const fk_expr *b) {
    if (a == b) return true;
    if (!a || !b || a->op != b->op || a->type != b->type || a->size != b->size) return false;
    if (a->op == OP_FLOAT) return a->f == b->f;
    if (fk_expr_is_constant(a)) return a->i == b->i;
    if ((a->op == OP_SCALAR || a->op == OP_READ) && strcmp(a->name, b->name) != 0) return false;
    for (int i = 0; i < FK_EXPR_MAX_ARGS; ++i) {
        if (!fk_expr_equal(a->arg[i], b->arg[i])) return false;
    }
    return true;
}

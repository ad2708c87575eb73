/* Tokens to a checked tree. Precedence climbing over fk_expr_op_table; types are checked where an operator is met,
 * while its column is known. Recursion is bounded by FK_EXPR_MAX_NESTING, chains by FK_EXPR_MAX_PARSE_DEPTH. */
#include "expr_lex.h"

#include <stdio.h>
#include <string.h>

typedef struct parser {
    fk_expr_lexer lex;
    fk_expr_pool *pool;
    const fk_expr_symbol *symbols;
    size_t num_symbols;
    int nesting;
    size_t root; /* byte of the operator, name or number read last: operands come first, so in the end the whole's */
} parser;

static const fk_expr *parse_select(parser *p);

static const char *type_name(fk_expr_type type) {
    static const char *const names[] = {[FK_EXPR_INT] = "int", [FK_EXPR_FLOAT] = "float", [FK_EXPR_BOOL] = "bool"};
    return names[type];
}

/* ---- types ---- */

static bool is_comparison(const fk_expr *e) {
    return e->op >= OP_LT && e->op <= OP_NE;
}

static const char *hint(fk_expr_op op, const fk_expr *operand) {
    const bool bit = op == OP_AND || op == OP_OR || op == OP_XOR;
    if (operand->type != FK_EXPR_BOOL) return fk_expr_op_table[op].takes == TAKES_BOOLS ? "; compare it: x != 0" : "";
    if (bit && is_comparison(operand)) return "; it binds looser than a comparison: add parentheses, or use && or ||";
    if (op >= OP_LT && op <= OP_NE && is_comparison(operand)) return "; comparisons do not chain: join them with &&";
    return "";
}

static bool complain_operand(parser *p, size_t at, fk_expr_op op, const fk_expr *operand, const char *wanted) {
    fk_expr_complain(&p->lex, at, "'%s' takes %s, not %s%s", fk_expr_op_table[op].text, wanted,
                     type_name(operand->type), hint(op, operand));
    return false;
}

static bool check_operands(parser *p, size_t at, fk_expr_op op, const fk_expr *const *arg) {
    const fk_expr_op_info *info = &fk_expr_op_table[op];
    for (int i = 0; i < info->arity; ++i) {
        const fk_expr_type type = arg[i]->type;
        if (info->takes == TAKES_NUMBERS || info->takes == TAKES_FLOATS) {
            if (type == FK_EXPR_BOOL) return complain_operand(p, at, op, arg[i], "numbers");
        } else if (info->takes == TAKES_INTS) {
            if (type != FK_EXPR_INT) return complain_operand(p, at, op, arg[i], "ints");
        } else if (info->takes == TAKES_BOOLS) {
            if (type != FK_EXPR_BOOL) return complain_operand(p, at, op, arg[i], "bools");
        }
    }
    if (info->takes == TAKES_SELECT && arg[0]->type != FK_EXPR_BOOL)
        return complain_operand(p, at, op, arg[0], "a bool before '?'");
    if (info->takes == TAKES_EQUALS || info->takes == TAKES_SELECT) {
        const fk_expr_type x = arg[info->arity - 2]->type, y = arg[info->arity - 1]->type;
        if ((x == FK_EXPR_BOOL) != (y == FK_EXPR_BOOL)) {
            fk_expr_complain(&p->lex, at, "'%s' takes two numbers or two bools, not %s and %s", info->text,
                             type_name(x), type_name(y));
            return false;
        }
    }
    return true;
}

/* The node of an operator at byte `at`; any operand may be NULL after a complaint. */
static const fk_expr *make(parser *p, size_t at, fk_expr_op op, const fk_expr *a, const fk_expr *b, const fk_expr *c) {
    const fk_expr *const arg[] = {a, b, c};
    for (int i = 0; i < fk_expr_op_table[op].arity; ++i) {
        if (!arg[i]) return NULL;
    }
    p->root = at;
    if (op == OP_WIDEN && a->type == FK_EXPR_FLOAT) return a;
    if (!check_operands(p, at, op, arg)) return NULL;
    if (op == OP_NEG && a->op == OP_NEG) return a->arg[0]; /* printed it would nest twice as deep as it was written */
    const fk_expr *e = fk_expr_node(p->pool, op, a, b, c);
    if (e && e->depth > FK_EXPR_MAX_PARSE_DEPTH)
        return fk_expr_complain(&p->lex, at, "too deep: over %d operations that wait for each other",
                                FK_EXPR_MAX_PARSE_DEPTH);
    return e;
}

/* ---- grammar ---- */

static bool enter(parser *p) {
    if (++p->nesting <= FK_EXPR_MAX_NESTING) return true;
    fk_expr_complain(&p->lex, p->lex.token.start, "nested too deep: the limit is %d levels", FK_EXPR_MAX_NESTING);
    return false;
}

/* Consumes `sign`, which closes what opened at byte `opened`. */
static bool close_with(parser *p, const char *sign, size_t opened) {
    if (fk_expr_lex_is(&p->lex, sign)) {
        fk_expr_lex_next(&p->lex);
        return true;
    }
    fk_expr_complain(&p->lex, p->lex.token.start, "expected '%s' for the '%c' of column %zu", sign, p->lex.text[opened],
                     opened + 1);
    return false;
}

static bool spells(const parser *p, const fk_expr_token *token, const char *name) {
    return strlen(name) == token->length && memcmp(p->lex.text + token->start, name, token->length) == 0;
}

static const fk_expr *complain_unknown(parser *p, const fk_expr_token *token, const char *what) {
    char known[512] = "";
    size_t used = 0;
    for (size_t i = 0; i < p->num_symbols && used < sizeof known; ++i) {
        const fk_expr_symbol *s = &p->symbols[i];
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s%.*s", used ? ", " : "", s->name, 2 * s->rank,
                                 "[][][][]");
    }
    const int length = token->length < 64 ? (int)token->length : 64;
    return fk_expr_complain(&p->lex, token->start,
                            "unknown %s '%.*s'; names: %s; functions: min max abs exp log tanh popcount hash bit float",
                            what, length, p->lex.text + token->start, used ? known : "none");
}

static const fk_expr *parse_call(parser *p, const fk_expr_token *name) {
    fk_expr_op op = OP_WIDEN;
    if (!spells(p, name, fk_expr_op_table[op].text)) {
        for (op = OP_MIN; op < OP_COUNT && !spells(p, name, fk_expr_op_table[op].text);)
            ++op;
    }
    if (op == OP_COUNT) return complain_unknown(p, name, "function");
    const fk_expr_op_info *info = &fk_expr_op_table[op];
    const fk_expr *arg[3] = {NULL, NULL, NULL};
    const size_t opened = p->lex.token.start;
    for (int i = 0; i < info->arity; ++i) {
        if (i > 0 && !fk_expr_lex_is(&p->lex, ","))
            return fk_expr_complain(&p->lex, p->lex.token.start, "expected ',': %s takes %d arguments", info->text,
                                    info->arity);
        fk_expr_lex_next(&p->lex);
        arg[i] = parse_select(p);
        if (!arg[i]) return NULL;
    }
    if (fk_expr_lex_is(&p->lex, ","))
        return fk_expr_complain(&p->lex, p->lex.token.start, "%s takes %d argument%s", info->text, info->arity,
                                info->arity == 1 ? "" : "s");
    if (!close_with(p, ")", opened)) return NULL;
    return make(p, name->start, op, arg[0], arg[1], arg[2]);
}

/* `at`: where the array's name stands. */
static const fk_expr *parse_read(parser *p, size_t at, const fk_expr_symbol *symbol, const char *name) {
    const fk_expr *index[FK_EXPR_MAX_RANK] = {NULL};
    for (int i = 0; i < symbol->rank; ++i) {
        const size_t opened = p->lex.token.start;
        if (!fk_expr_lex_is(&p->lex, "["))
            return fk_expr_complain(&p->lex, opened, "array '%s' takes %d ind%s: expected '['", symbol->name,
                                    symbol->rank, symbol->rank == 1 ? "ex" : "ices");
        fk_expr_lex_next(&p->lex);
        const size_t start = p->lex.token.start;
        index[i] = parse_select(p);
        if (!index[i]) return NULL;
        if (index[i]->type != FK_EXPR_INT)
            return fk_expr_complain(&p->lex, start, "an index is an int, not %s", type_name(index[i]->type));
        if (!close_with(p, "]", opened)) return NULL;
    }
    p->root = at;
    const fk_expr *e = fk_expr_read(p->pool, name, symbol->type, index);
    if (e && e->depth > FK_EXPR_MAX_PARSE_DEPTH)
        return fk_expr_complain(&p->lex, p->lex.token.start, "too deep: the limit is %d", FK_EXPR_MAX_PARSE_DEPTH);
    return e;
}

static const fk_expr *parse_name(parser *p) {
    const fk_expr_token token = p->lex.token;
    fk_expr_lex_next(&p->lex);
    if (fk_expr_lex_is(&p->lex, "(")) return parse_call(p, &token);
    if (spells(p, &token, "true")) return fk_expr_bool(p->pool, true);
    if (spells(p, &token, "false")) return fk_expr_bool(p->pool, false);
    for (size_t i = 0; i < p->num_symbols; ++i) {
        const fk_expr_symbol *symbol = &p->symbols[i];
        if (!spells(p, &token, symbol->name)) continue;
        const char *name = fk_expr_pool_name(p->pool, symbol->name, token.length);
        if (!name) return NULL;
        if (symbol->rank > 0) return parse_read(p, token.start, symbol, name);
        if (fk_expr_lex_is(&p->lex, "["))
            return fk_expr_complain(&p->lex, p->lex.token.start, "'%s' is no array", symbol->name);
        return fk_expr_scalar(p->pool, name, symbol->type);
    }
    return complain_unknown(p, &token, "name");
}

static const fk_expr *parse_primary(parser *p) {
    const fk_expr_token token = p->lex.token;
    p->root = token.start;
    if (token.kind == TOKEN_NAME) return parse_name(p);
    if (token.kind == TOKEN_INT || token.kind == TOKEN_FLOAT) {
        fk_expr_lex_next(&p->lex);
        return token.kind == TOKEN_INT ? fk_expr_int(p->pool, token.i) : fk_expr_float(p->pool, token.f);
    }
    if (fk_expr_lex_is(&p->lex, "(")) {
        fk_expr_lex_next(&p->lex);
        const fk_expr *e = parse_select(p);
        return e && close_with(p, ")", token.start) ? e : NULL;
    }
    if (token.kind == TOKEN_END)
        return fk_expr_complain(&p->lex, token.start, "%s", token.start ? "expected a value, found the end" : "empty");
    return fk_expr_complain(&p->lex, token.start, "expected a value, found '%.*s'", (int)token.length,
                            p->lex.text + token.start);
}

static const fk_expr *parse_unary(parser *p) {
    const size_t at = p->lex.token.start;
    const fk_expr_op op = fk_expr_lex_is(&p->lex, "-")   ? OP_NEG
                          : fk_expr_lex_is(&p->lex, "~") ? OP_BITNOT
                          : fk_expr_lex_is(&p->lex, "!") ? OP_NOT
                                                         : OP_COUNT;
    if (op == OP_COUNT && !fk_expr_lex_is(&p->lex, "+")) return parse_primary(p);
    if (!enter(p)) return NULL;
    fk_expr_lex_next(&p->lex);
    const fk_expr *e = parse_unary(p);
    --p->nesting;
    if (op == OP_COUNT && e && e->type == FK_EXPR_BOOL)
        return fk_expr_complain(&p->lex, at, "'+' takes numbers, not bool");
    p->root = at;
    if (op == OP_NEG && e && e->op == OP_INT) return fk_expr_int(p->pool, -e->i); /* -5 is a constant */
    if (op == OP_NEG && e && e->op == OP_FLOAT) return fk_expr_float(p->pool, -e->f);
    return op == OP_COUNT ? e : make(p, at, op, e, NULL, NULL);
}

static fk_expr_op binary_operator(const parser *p) {
    for (fk_expr_op op = OP_MUL; op <= OP_LOR; ++op) {
        if (fk_expr_lex_is(&p->lex, fk_expr_op_table[op].text)) return op;
    }
    return OP_COUNT;
}

static const fk_expr *parse_binary(parser *p, int precedence) {
    const fk_expr *left = parse_unary(p);
    while (left) {
        const fk_expr_op op = binary_operator(p);
        if (op == OP_COUNT || fk_expr_op_table[op].precedence < precedence) break;
        const size_t at = p->lex.token.start;
        fk_expr_lex_next(&p->lex);
        left = make(p, at, op, left, parse_binary(p, fk_expr_op_table[op].precedence + 1), NULL);
    }
    return left;
}

static const fk_expr *parse_select(parser *p) {
    if (!enter(p)) return NULL;
    const fk_expr *e = parse_binary(p, PREC_LOR);
    const size_t at = p->lex.token.start;
    if (e && fk_expr_lex_is(&p->lex, "?")) {
        fk_expr_lex_next(&p->lex);
        const fk_expr *yes = parse_select(p);
        if (!yes || !close_with(p, ":", at)) return NULL;
        e = make(p, at, OP_SELECT, e, yes, parse_select(p));
    }
    --p->nesting;
    return e;
}

/* `wanted`: null, or what type the expression must have. */
static fk_status parse(fk_expr_pool *pool, const char *text, const fk_expr_symbol *symbols, size_t num_symbols,
                       const fk_expr_wanted *wanted, const fk_expr **out, fk_error *err) {
    if (fk_expr_pool_check(pool, err) != FK_OK) return fk_expr_pool_check(pool, NULL);
    parser p = {.pool = pool, .symbols = symbols, .num_symbols = num_symbols};
    fk_expr_lex_start(&p.lex, text, err);
    const fk_expr *e = p.lex.status == FK_OK ? parse_select(&p) : NULL;
    const fk_expr_token token = p.lex.token;
    if (e && p.lex.status == FK_OK && token.kind != TOKEN_END)
        fk_expr_complain(&p.lex, token.start, "expected an operator or the end, found '%.*s'",
                         token.length < 64 ? (int)token.length : 64, text + token.start);
    if (e && p.lex.status == FK_OK && wanted && e->type != wanted->type)
        fk_expr_complain(&p.lex, p.root, "%s must be a %s, such as %s, not %s", wanted->what, type_name(wanted->type),
                         wanted->example, type_name(e->type));
    if (p.lex.status != FK_OK) return p.lex.status;
    if (!e) return fk_expr_pool_check(pool, err);
    *out = e;
    return FK_OK;
}

fk_status fk_expr_parse(fk_expr_pool *pool, const char *text, const fk_expr_symbol *symbols, size_t num_symbols,
                        const fk_expr **out, fk_error *err) {
    return parse(pool, text, symbols, num_symbols, NULL, out, err);
}

fk_status fk_expr_parse_as(fk_expr_pool *pool, const char *text, const fk_expr_symbol *symbols, size_t num_symbols,
                           const fk_expr_wanted *wanted, const fk_expr **out, fk_error *err) {
    return parse(pool, text, symbols, num_symbols, wanted, out, err);
}

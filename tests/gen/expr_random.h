/* Random expressions as text, typed by construction and fully parenthesised, over the names of RANDOM_SYMBOLS. */
#ifndef FK_TESTS_GEN_EXPR_RANDOM_H
#define FK_TESTS_GEN_EXPR_RANDOM_H

#include "gen/expr_node.h"

#include <stdio.h>
#include <string.h>

static const fk_expr_symbol RANDOM_SYMBOLS[] = {
    {"q", FK_EXPR_INT, 0},   {"k", FK_EXPR_INT, 0},     {"h", FK_EXPR_INT, 0},     {"diag", FK_EXPR_INT, 0},
    {"s", FK_EXPR_FLOAT, 0}, {"t", FK_EXPR_FLOAT, 0},   {"on", FK_EXPR_BOOL, 0},   {"id", FK_EXPR_INT, 1},
    {"w", FK_EXPR_FLOAT, 2}, {"seen", FK_EXPR_BOOL, 1}, {"bias", FK_EXPR_FLOAT, 4}};
#define NUM_RANDOM_SYMBOLS (sizeof RANDOM_SYMBOLS / sizeof *RANDOM_SYMBOLS)

typedef struct random_text {
    uint64_t state;
    bool arrays; /* may arrays be read? */
    char text[1 << 16];
    size_t used;
} random_text;

static inline uint32_t random_below(uint64_t *state, uint32_t n) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % n);
}

static inline uint32_t draw(random_text *r, uint32_t n) {
    return random_below(&r->state, n);
}

static inline void put(random_text *r, const char *text) {
    r->used += (size_t)snprintf(r->text + r->used, sizeof r->text - r->used, "%s", text);
}

static inline void random_int(random_text *r, int depth);
static inline void random_float(random_text *r, int depth);
static inline void random_bool(random_text *r, int depth);

typedef void random_rule(random_text *, int);

static inline void put_binary(random_text *r, random_rule *rule, const char *sign, int depth) {
    put(r, "(");
    rule(r, depth - 1);
    put(r, sign);
    rule(r, depth - 1);
    put(r, ")");
}

static inline void put_call(random_text *r, const char *name, random_rule *rule, int arity, int depth) {
    put(r, name);
    put(r, "(");
    rule(r, depth - 1);
    if (arity == 2) {
        put(r, ", ");
        rule(r, depth - 1);
    }
    put(r, ")");
}

static inline void put_select(random_text *r, random_rule *rule, int depth) {
    put(r, "(");
    random_bool(r, depth - 1);
    put(r, " ? ");
    rule(r, depth - 1);
    put(r, " : ");
    rule(r, depth - 1);
    put(r, ")");
}

static inline void random_int(random_text *r, int depth) {
    static const char *const names[] = {"q", "k", "h", "diag"};
    static const char *const numbers[] = {"0",  "1",  "2",  "3",  "4",   "7",    "8",
                                          "15", "16", "31", "64", "100", "1000", "0x7fffffff"};
    static const char *const signs[] = {" + ", " - ", " * ", " / ", " % ", " & ", " | ", " ^ ", " << ", " >> "};
    if (depth <= 0 || draw(r, 8) == 0) {
        if (r->arrays && draw(r, 6) == 0)
            put(r, draw(r, 2) ? "id[q]" : "id[(k + 1)]");
        else if (draw(r, 3) == 0)
            put(r, numbers[draw(r, sizeof numbers / sizeof *numbers)]);
        else
            put(r, names[draw(r, 4)]);
        return;
    }
    switch (draw(r, 10)) {
    case 0:
        put_select(r, random_int, depth);
        break;
    case 1:
        put_call(r, draw(r, 2) ? "min" : "max", random_int, 2, depth);
        break;
    case 2:
        if (draw(r, 3) == 0)
            put_call(r, "hash", random_int, 2, depth);
        else
            put_call(r, draw(r, 2) ? "abs" : "popcount", random_int, 1, depth);
        break;
    case 3:
        put_call(r, draw(r, 2) ? "-" : "~", random_int, 1, depth);
        break;
    default:
        put_binary(r, random_int, signs[draw(r, 10)], depth);
    }
}

static inline void random_bool(random_text *r, int depth) {
    static const char *const signs[] = {" < ", " <= ", " > ", " >= ", " == ", " != "};
    if (depth <= 0) {
        put(r, r->arrays && draw(r, 2) ? "seen[k]" : draw(r, 2) ? "on" : draw(r, 2) ? "true" : "false");
        return;
    }
    switch (draw(r, 8)) {
    case 0:
        put_binary(r, random_bool, draw(r, 2) ? " && " : " || ", depth);
        break;
    case 1:
        put_call(r, "!", random_bool, 1, depth);
        break;
    case 2:
        put_binary(r, random_bool, draw(r, 2) ? " == " : " != ", depth);
        break;
    case 3:
        put_call(r, "bit", random_int, 2, depth);
        break;
    default:
        put_binary(r, random_int, signs[draw(r, 6)], depth);
    }
}

/* Smooth enough to be compared between float and double, and differentiated numerically. */
static inline void random_float(random_text *r, int depth) {
    static const char *const leaves[] = {"s", "t", "0.5", "2", "1.25e-1", "(q * 0.25)", "float(k)"};
    if (depth <= 0 || draw(r, 8) == 0) {
        put(r, leaves[draw(r, 7)]);
        return;
    }
    switch (draw(r, 9)) {
    case 0:
        put(r, "exp(min(");
        random_float(r, depth - 1);
        put(r, ", 1.5))");
        break;
    case 1:
        put(r, "log(1.5 + abs(");
        random_float(r, depth - 1);
        put(r, "))");
        break;
    case 2:
        put_call(r, "tanh", random_float, 1, depth);
        break;
    case 3:
        put(r, "(");
        random_float(r, depth - 1);
        put(r, " / (1.5 + abs(");
        random_float(r, depth - 1);
        put(r, ")))");
        break;
    case 4:
        put_call(r, draw(r, 2) ? "abs" : "-", random_float, 1, depth);
        break;
    case 5:
        put(r, "(q < k ? ");
        random_float(r, depth - 1);
        put(r, " : ");
        random_float(r, depth - 1);
        put(r, ")");
        break;
    case 6:
        put_call(r, draw(r, 2) ? "min" : "max", random_float, 2, depth);
        break;
    default:
        put_binary(r, random_float, draw(r, 3) == 0 ? " * " : draw(r, 2) ? " + " : " - ", depth);
    }
}

static inline const char *random_expression(random_text *r, random_rule *rule, int depth) {
    r->used = 0;
    r->text[0] = 0;
    rule(r, depth);
    return r->text;
}

/* Do all ints that `e` goes through fit 32 bits, so that the device computes the same? */
static inline bool fits_int(const fk_expr *e, const fk_expr_env *env) {
    if (e->type == FK_EXPR_INT) {
        const double value = fk_expr_eval(e, env);
        if (value < INT32_MIN || value > INT32_MAX) return false;
    }
    for (int i = 0; i < FK_EXPR_MAX_ARGS && e->arg[i]; ++i) {
        if (!fits_int(e->arg[i], env)) return false;
    }
    return true;
}

#endif

/* Trees to text. Parentheses are the fewest that parse back to the same tree. A widening is written only where no float
 * neighbour implies it, so `x * 2` comes back as it was written and `float(i) / 2` does not become integer division. */
#include "expr_node.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The shortest digits that read back as `value` (as a float where `single`), with a point or an exponent. The locale
 * may write the point in its own way, so whatever is no digit, sign or exponent becomes '.'. */
static void print_float(FILE *out, double value, bool single) {
    char text[64];
    int digits = 1; /* enough for the integer part, so that 1500 is not 1.5e+03 */
    for (double rest = value; fabs(rest) >= 10 && digits < 9; rest /= 10)
        ++digits;
    for (; digits <= 17; ++digits) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (single ? strtof(text, NULL) == (float)value : strtod(text, NULL) == value) break;
    }
    bool plain = true;
    for (const char *c = text; *c;) {
        const size_t same = strspn(c, "0123456789+-e");
        if (strcspn(c, "e") < same) plain = false;
        fwrite(c, 1, same, out);
        c += same;
        if (!*c) break;
        fputc('.', out);
        plain = false;
        c += strcspn(c, "0123456789+-e");
    }
    if (plain) fputs(".0", out);
    if (single) fputc('f', out);
}

/* Is `parent`'s operand i, a widening, implied by what stands around it? Not so on a device whose other operand of ?:
 * may be a Scaled (templates/piece/score_values.cu), which as well may become an int. */
static bool is_implied(const fk_expr *parent, int i, bool cuda) {
    const fk_expr_op_info *info = &fk_expr_op_table[parent->op];
    if (info->takes == TAKES_FLOATS) return true;
    if (info->takes == TAKES_SELECT) return !cuda && (i == 2 || parent->arg[2]->op != OP_WIDEN);
    return info->arity == 2 && (i == 1 || parent->arg[1]->op != OP_WIDEN);
}

static const fk_expr *operand(const fk_expr *e, int i, bool cuda) {
    const fk_expr *arg = e->arg[i];
    return arg->op == OP_WIDEN && is_implied(e, i, cuda) ? arg->arg[0] : arg;
}

static void print(FILE *out, const fk_expr *e, bool cuda, int precedence);

static void print_call(FILE *out, const char *name, const fk_expr *e, bool cuda) {
    fprintf(out, "%s(", name);
    for (int i = 0; i < FK_EXPR_MAX_ARGS && e->arg[i]; ++i) {
        if (i) fputs(", ", out);
        print(out, operand(e, i, cuda), cuda, PREC_SELECT);
    }
    fputc(')', out);
}

static void print_read(FILE *out, const fk_expr *e, bool cuda) {
    fprintf(out, cuda ? "%s" FK_ARRAY_SUFFIX "_at(p" : "%s", e->name);
    for (int i = 0; i < FK_EXPR_MAX_RANK && e->arg[i]; ++i) {
        fputs(cuda ? ", " : "[", out);
        print(out, e->arg[i], cuda, PREC_SELECT);
        if (!cuda) fputc(']', out);
    }
    if (cuda) fputc(')', out);
}

/* C leaves x / 0, x % 0 and wide shifts open. A constant on the right shows that they do not happen. */
static bool needs_guard(const fk_expr *e) {
    if (e->type != FK_EXPR_INT || e->op < OP_MUL || e->op > OP_LOR || !fk_expr_op_table[e->op].cuda_int) return false;
    const fk_expr *b = e->arg[1];
    if (b->op != OP_INT) return true;
    return e->op == OP_DIV || e->op == OP_MOD ? b->i == 0 : b->i < 0 || b->i > 31;
}

/* a * b >> n, of which the product may need more than the device's 32 bits where the result does not. */
static bool is_share(const fk_expr *e) {
    return e->op == OP_SHR && e->arg[0]->op == OP_MUL && e->arg[1]->op == OP_INT && !needs_guard(e);
}

static void print_share(FILE *out, const fk_expr *e) {
    fputs("mul_shr(", out);
    print(out, e->arg[0]->arg[0], true, PREC_SELECT);
    fputs(", ", out);
    print(out, e->arg[0]->arg[1], true, PREC_SELECT);
    fprintf(out, ", %lld)", (long long)e->arg[1]->i);
}

/* Behind the operands of div_by, mod_by, ...: the divisor's inverse. */
static void print_inverse(FILE *out, const fk_expr *e) {
    fprintf(out, ", %s_inverse)", e->arg[1]->name);
}

static void print_by_inverse(FILE *out, const fk_expr *e) {
    fputs(e->op == OP_DIV ? "div_by(" : "mod_by(", out);
    print(out, e->arg[0], true, PREC_SELECT);
    fprintf(out, ", %s", e->arg[1]->name);
    print_inverse(out, e);
}

static void print_unary(FILE *out, const fk_expr *e, bool cuda) {
    const fk_expr *a = e->arg[0];
    const bool negative = (a->op == OP_INT && a->i < 0) || (a->op == OP_FLOAT && a->f < 0);
    const bool decrement = e->op == OP_NEG && (a->op == OP_NEG || negative); /* --x is another operator in C */
    fputs(fk_expr_op_table[e->op].text, out);
    print(out, a, cuda, decrement ? PREC_PRIMARY + 1 : PREC_UNARY);
}

static void print_operator(FILE *out, const fk_expr *e, bool cuda) {
    const fk_expr_op_info *info = &fk_expr_op_table[e->op];
    if (info->arity == 1) {
        print_unary(out, e, cuda);
    } else if (e->op == OP_SELECT) {
        print(out, e->arg[0], cuda, PREC_LOR);
        fputs(" ? ", out);
        print(out, operand(e, 1, cuda), cuda, PREC_LOR);
        fputs(" : ", out);
        print(out, operand(e, 2, cuda), cuda, PREC_SELECT);
    } else {
        print(out, operand(e, 0, cuda), cuda, info->precedence);
        fprintf(out, " %s ", info->text);
        print(out, operand(e, 1, cuda), cuda, info->precedence + 1);
    }
}

static void print(FILE *out, const fk_expr *e, bool cuda, int precedence) {
    const fk_expr_op_info *info = &fk_expr_op_table[e->op];
    const bool guard = cuda && needs_guard(e), share = cuda && is_share(e),
               negative = (e->op == OP_INT && e->i < 0) || (e->op == OP_FLOAT && e->f < 0);
    const int own = guard || share ? PREC_PRIMARY : negative ? PREC_UNARY : info->precedence;
    if (own < precedence) fputc('(', out);
    if (e->op == OP_INT) {
        fprintf(out, "%lld", (long long)e->i);
    } else if (e->op == OP_FLOAT) {
        print_float(out, e->f, cuda);
    } else if (e->op == OP_BOOL) {
        fputs(e->i ? "true" : "false", out);
    } else if (e->op == OP_SCALAR) {
        fputs(e->name, out);
    } else if (e->op == OP_READ) {
        print_read(out, e, cuda);
    } else if (share) {
        print_share(out, e);
    } else if (guard && fk_expr_is_by_inverse(e)) {
        print_by_inverse(out, e);
    } else if (guard) {
        print_call(out, info->cuda_int, e, cuda);
    } else if (info->precedence == PREC_PRIMARY) {
        print_call(out, !cuda ? info->text : e->type == FK_EXPR_FLOAT ? info->cuda_float : info->cuda_int, e, cuda);
    } else {
        print_operator(out, e, cuda);
    }
    if (own < precedence) fputc(')', out);
}

static void print_interval(FILE *out, const fk_expr *e) {
    const bool floats = e->arg[0] && e->arg[0]->type == FK_EXPR_FLOAT;
    if (e->type == FK_EXPR_FLOAT) {
        fputs("iv_all()", out);
    } else if (e->type == FK_EXPR_BOOL && (e->op == OP_READ || floats)) {
        fputs("iv_maybe()", out);
    } else if (e->op == OP_SCALAR) {
        fprintf(out, "%s_iv", e->name);
    } else if (fk_expr_is_constant(e)) {
        fprintf(out, "iv(%lld)", (long long)e->i);
    } else if (is_share(e)) {
        fputs("iv_mul_shr(", out);
        print_interval(out, e->arg[0]->arg[0]);
        fputs(", ", out);
        print_interval(out, e->arg[0]->arg[1]);
        fprintf(out, ", %lld)", (long long)e->arg[1]->i);
    } else if (fk_expr_is_by_inverse(e)) {
        fputs(e->op == OP_DIV ? "iv_div_by(" : "iv_mod_by(", out);
        print_interval(out, e->arg[0]);
        fprintf(out, ", %s_iv", e->arg[1]->name);
        print_inverse(out, e);
    } else {
        const bool read = e->op == OP_READ;
        fprintf(out, read ? "%s" FK_ARRAY_SUFFIX "_iv_at(p" : "%s(", read ? e->name : fk_expr_op_table[e->op].interval);
        for (int i = 0; i < FK_EXPR_MAX_ARGS && e->arg[i]; ++i) {
            if (i || read) fputs(", ", out);
            print_interval(out, e->arg[i]);
        }
        fputc(')', out);
    }
}

/* ---- bounds ----
 *
 * A comparison's terms were moved from one side to the other: values of its text fit 32 bits, and their sum may not. */

typedef struct weight {
    int64_t most;
    int q, k, diag; /* signs */
} weight;

static void weigh(const fk_expr *e, bool minus, weight *w) {
    if (e->op == OP_ADD || e->op == OP_SUB) {
        weigh(e->arg[0], minus, w);
        weigh(e->arg[1], minus != (e->op == OP_SUB), w);
    } else if (e->op == OP_INT) {
        w->most += llabs(e->i);
    } else if (e->op == OP_SCALAR) { /* a position, the distance of the diagonal, or a word's value */
        const int sign = minus ? -1 : 1;
        w->most += FK_MAX_SEQLEN;
        w->q += strcmp(e->name, "q") == 0 ? sign : 0;
        w->k += strcmp(e->name, "k") == 0 ? sign : 0;
        w->diag += strcmp(e->name, "diag") == 0 ? sign : 0;
    } else {
        w->most += INT64_C(1) << 32;
    }
}

static bool may_wrap(const fk_expr *e) {
    weight w = {0};
    weigh(e, false, &w);
    if (abs(w.diag) == 1 && (w.q == w.diag || w.k == -w.diag)) w.most -= FK_MAX_SEQLEN; /* together a position */
    return w.most > INT64_C(1) << 31 && (e->op == OP_ADD || e->op == OP_SUB); /* positions are below FK_MAX_SEQLEN */
}

static void print_terms(FILE *out, const fk_expr *e, bool minus, bool leads) {
    if (e->op == OP_ADD || e->op == OP_SUB) {
        print_terms(out, e->arg[0], minus, leads);
        print_terms(out, e->arg[1], minus != (e->op == OP_SUB), false);
        return;
    }
    fputs(leads ? "i64(" : minus ? " - " : " + ", out);
    print(out, e, true, leads ? PREC_SELECT : fk_expr_op_table[OP_ADD].precedence + 1);
    if (leads) fputc(')', out);
}

static void print_wide(FILE *out, const fk_expr *e) {
    fputs("fit_int(", out);
    print_terms(out, e, false, true);
    fputc(')', out);
}

fk_status fk_expr_print(const fk_expr *e, fk_expr_form form, char **out, fk_error *err) {
    char *text = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&text, &size);
    if (!stream) return fk_fail(err, FK_NO_MEMORY, "expression: out of memory while printing");
    if (form == FK_EXPR_INTERVAL)
        print_interval(stream, e);
    else if (form == FK_EXPR_BOUND && may_wrap(e))
        print_wide(stream, e);
    else
        print(stream, e, form != FK_EXPR_C, PREC_SELECT);
    const bool failed = ferror(stream) != 0;
    if (fclose(stream) != 0 || failed || !text) {
        free(text);
        return fk_fail(err, FK_NO_MEMORY, "expression: out of memory while printing");
    }
    *out = text;
    return FK_OK;
}

/* Intervals on the CPU. The rules are those of templates/piece/interval.cu, operator by operator; change both.
 *
 * Invariant: an int interval lies within 32 bits or is unbounded. What may leave 32 bits is unbounded at once, so a
 * rule never sees a number that a double does not hold exactly. An unbounded side is infinite here; on the device it is
 * the end of int, which a 32-bit value cannot pass. */
#include "expr_node.h"

#include <math.h>
#include <string.h>

static const fk_interval ALL = {-INFINITY, INFINITY};
static const fk_interval MAYBE = {0, 1};

/* Comparisons with NaN are false, so NaN ends are unbounded too. */
static fk_interval fit(double lo, double hi) {
    return lo >= INT32_MIN && hi <= INT32_MAX && lo <= hi ? (fk_interval){lo, hi} : ALL;
}

static bool is_finite(fk_interval a) {
    return isfinite(a.lo) && isfinite(a.hi);
}
static bool holds_zero(fk_interval a) {
    return a.lo <= 0 && a.hi >= 0;
}

static fk_interval corners(double a, double b, double c, double d) {
    return fit(fmin(fmin(a, b), fmin(c, d)), fmax(fmax(a, b), fmax(c, d)));
}

static fk_interval bounds_mul(fk_interval a, fk_interval b) {
    if (!is_finite(a) || !is_finite(b)) return ALL;
    return corners(a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi);
}

static fk_interval bounds_div(fk_interval a, fk_interval b) {
    if (!is_finite(a) || !is_finite(b) || holds_zero(b)) return ALL;
    return corners(trunc(a.lo / b.lo), trunc(a.lo / b.hi), trunc(a.hi / b.lo), trunc(a.hi / b.hi));
}

static fk_interval bounds_mod(fk_interval a, fk_interval b) {
    if (holds_zero(b)) return ALL;
    if (b.lo == b.hi && trunc(a.lo / b.lo) == trunc(a.hi / b.lo)) /* one period: increasing */
        return fit(fmod(a.lo, b.lo), fmod(a.hi, b.lo));
    const double most = fmax(fabs(b.lo), fabs(b.hi)) - 1;
    return fit(a.lo < 0 ? fmax(a.lo, -most) : 0, a.hi > 0 ? fmin(a.hi, most) : 0);
}

static fk_interval bounds_shl(fk_interval a, fk_interval n) {
    if (!is_finite(a) || n.lo < 0 || n.hi > 31) return ALL;
    return fit(ldexp(a.lo, (int)(a.lo < 0 ? n.hi : n.lo)), ldexp(a.hi, (int)(a.hi < 0 ? n.lo : n.hi)));
}

static fk_interval bounds_shr(fk_interval a, fk_interval n) {
    if (!is_finite(a) || n.lo < 0 || n.hi > 31) return ALL;
    return fit(floor(ldexp(a.lo, -(int)(a.lo < 0 ? n.lo : n.hi))), floor(ldexp(a.hi, -(int)(a.hi < 0 ? n.hi : n.lo))));
}

/* ---- bits: an interval's numbers share the bits above the highest one in which its ends differ ---- */

typedef struct bit_range {
    uint32_t ones, maybe; /* set in every number; set in some number */
} bit_range;

static bit_range bits_of(fk_interval a) {
    const uint32_t lo = (uint32_t)(int32_t)a.lo, differ = lo ^ (uint32_t)(int32_t)a.hi;
    const uint32_t open = differ ? 0xffffffffu >> __builtin_clz(differ) : 0;
    return (bit_range){lo & ~open, lo | open};
}

static fk_interval from_bits(uint32_t ones, uint32_t maybe) {
    const uint32_t sign = 0x80000000u & maybe & ~ones; /* an open sign bit: the least number has it, the largest not */
    return (fk_interval){(int32_t)(ones | sign), (int32_t)(maybe & ~sign)};
}

static fk_interval bounds_and(fk_interval a, fk_interval b) {
    fk_interval r = ALL;
    if (is_finite(a) && is_finite(b)) {
        const bit_range x = bits_of(a), y = bits_of(b);
        r = from_bits(x.ones & y.ones, x.maybe & y.maybe);
    }
    if (a.lo >= 0) r = (fk_interval){fmax(r.lo, 0), fmin(r.hi, a.hi)};
    if (b.lo >= 0) r = (fk_interval){fmax(r.lo, 0), fmin(r.hi, b.hi)};
    return r;
}

static fk_interval bounds_or(fk_interval a, fk_interval b) {
    if (!is_finite(a) || !is_finite(b)) return ALL;
    const bit_range x = bits_of(a), y = bits_of(b);
    fk_interval r = from_bits(x.ones | y.ones, x.maybe | y.maybe);
    if (a.lo >= 0 && b.lo >= 0) r.lo = fmax(r.lo, fmax(a.lo, b.lo));
    return r;
}

static fk_interval bounds_xor(fk_interval a, fk_interval b) {
    if (!is_finite(a) || !is_finite(b)) return ALL;
    const bit_range x = bits_of(a), y = bits_of(b);
    const uint32_t open = (x.ones ^ x.maybe) | (y.ones ^ y.maybe);
    return from_bits((x.ones ^ y.ones) & ~open, (x.ones ^ y.ones) | open);
}

static fk_interval bounds_popcount(fk_interval a) {
    if (!is_finite(a)) return (fk_interval){0, 32};
    const bit_range x = bits_of(a);
    return (fk_interval){__builtin_popcount(x.ones), __builtin_popcount(x.maybe)};
}

static fk_interval bounds_hash(fk_interval a, fk_interval b) {
    if (a.lo != a.hi || b.lo != b.hi) return (fk_interval){0, INT32_MAX};
    const int32_t value = fk_expr_hash((int64_t)a.lo, (int64_t)b.lo);
    return (fk_interval){value, value};
}

/* Bits a.lo & 31 to a.hi & 31 of what is known of the word. */
static fk_interval bounds_bit(fk_interval word, fk_interval n) {
    uint32_t asked = 0xffffffffu;
    if (!is_finite(word)) return MAYBE;
    if (is_finite(n) && n.hi - n.lo < 31) {
        const uint32_t run = (2u << (uint32_t)(n.hi - n.lo)) - 1, by = (uint32_t)(int32_t)n.lo & 31;
        asked = by ? run << by | run >> (32 - by) : run;
    }
    const bit_range x = bits_of(word);
    return (fk_interval){(x.ones & asked) == asked, (x.maybe & asked) != 0};
}

static fk_interval bounds_abs(fk_interval a) {
    if (a.lo >= 0) return a;
    return fit(a.hi <= 0 ? -a.hi : 0, fmax(-a.lo, a.hi));
}

/* ---- truth ---- */

static fk_interval truth(bool always, bool never) {
    return (fk_interval){always, !never};
}

static fk_interval bounds_lt(fk_interval a, fk_interval b) {
    return truth(a.hi < b.lo, a.lo >= b.hi);
}
static fk_interval bounds_le(fk_interval a, fk_interval b) {
    return truth(a.hi <= b.lo, a.lo > b.hi);
}
static fk_interval bounds_eq(fk_interval a, fk_interval b) {
    return truth(a.lo == a.hi && b.lo == b.hi && a.lo == b.lo, a.hi < b.lo || a.lo > b.hi);
}
static fk_interval bounds_lnot(fk_interval a) {
    return (fk_interval){1 - a.hi, 1 - a.lo};
}

static fk_interval bounds_select(fk_interval c, fk_interval a, fk_interval b) {
    if (c.lo >= 1) return a;
    if (c.hi <= 0) return b;
    return (fk_interval){fmin(a.lo, b.lo), fmax(a.hi, b.hi)};
}

static fk_interval bounds_scalar(const fk_expr *e, const fk_interval_env *env) {
    const fk_interval unknown = e->type == FK_EXPR_BOOL ? MAYBE : ALL;
    if (e->type == FK_EXPR_FLOAT) return ALL;
    for (size_t i = 0; i < env->count; ++i) {
        if (strcmp(env->names[i], e->name) != 0) continue;
        const fk_interval a = fit(env->values[i].lo, env->values[i].hi);
        return is_finite(a) ? a : unknown;
    }
    return unknown;
}

static fk_interval bounds_operator(fk_expr_op op, fk_interval a, fk_interval b, fk_interval c) {
    switch (op) {
    case OP_NEG:
        return fit(-a.hi, -a.lo);
    case OP_BITNOT:
        return fit(-1 - a.hi, -1 - a.lo);
    case OP_NOT:
        return bounds_lnot(a);
    case OP_MUL:
        return bounds_mul(a, b);
    case OP_DIV:
        return bounds_div(a, b);
    case OP_MOD:
        return bounds_mod(a, b);
    case OP_ADD:
        return fit(a.lo + b.lo, a.hi + b.hi);
    case OP_SUB:
        return fit(a.lo - b.hi, a.hi - b.lo);
    case OP_SHL:
        return bounds_shl(a, b);
    case OP_SHR:
        return bounds_shr(a, b);
    case OP_LT:
        return bounds_lt(a, b);
    case OP_LE:
        return bounds_le(a, b);
    case OP_GT:
        return bounds_lt(b, a);
    case OP_GE:
        return bounds_le(b, a);
    case OP_EQ:
        return bounds_eq(a, b);
    case OP_NE:
        return bounds_lnot(bounds_eq(a, b));
    case OP_AND:
        return bounds_and(a, b);
    case OP_XOR:
        return bounds_xor(a, b);
    case OP_OR:
        return bounds_or(a, b);
    case OP_LAND:
    case OP_MIN:
        return (fk_interval){fmin(a.lo, b.lo), fmin(a.hi, b.hi)};
    case OP_LOR:
    case OP_MAX:
        return (fk_interval){fmax(a.lo, b.lo), fmax(a.hi, b.hi)};
    case OP_SELECT:
        return bounds_select(a, b, c);
    case OP_ABS:
        return bounds_abs(a);
    case OP_POPCOUNT:
        return bounds_popcount(a);
    case OP_HASH:
        return bounds_hash(a, b);
    default: /* OP_BIT */
        return bounds_bit(a, b);
    }
}

/* ---- tables of bits, for estimates ---- */

/* Bits of table[i0][i1]...[word], n: of rows within the intervals of `at`, which are those of i0, i1, ... and n. */
static void draw_bits(const fk_interval *at, int depth, int32_t seed, bool *any, bool *all) {
    if (depth < 0) {
        const bool set = (seed & 3) == 0;
        *any = *any || set;
        *all = *all && set;
        return;
    }
    for (double place = at[depth].lo; place <= at[depth].hi; ++place)
        draw_bits(at, depth - 1, fk_expr_hash(seed, (int64_t)place), any, all);
}

/* The word's own index follows from n. What b and h read is drawn once for all of them. */
static fk_interval bounds_drawn_bit(const fk_expr *e, const fk_interval_env *env) {
    enum { MOST = 256 }; /* bits of a tile that are looked at */
    const fk_expr *read = e->arg[0];
    fk_interval at[FK_EXPR_MAX_RANK] = {fk_expr_bounds(e->arg[1], env)};
    double bits = at[0].hi - at[0].lo + 1;
    int count = 1;
    bool any = false, all = true;
    for (int d = 0; d + 1 < FK_EXPR_MAX_RANK && read->arg[d + 1]; ++d) {
        if (fk_expr_is_scalar(read->arg[d], "b") || fk_expr_is_scalar(read->arg[d], "h")) continue;
        at[count] = fk_expr_bounds(read->arg[d], env);
        bits *= at[count].hi - at[count].lo + 1;
        ++count;
    }
    if (!(bits <= MOST)) return MAYBE;
    draw_bits(at, count - 1, 1, &any, &all);
    return (fk_interval){all, any};
}

fk_interval fk_expr_bounds(const fk_expr *e, const fk_interval_env *env) {
    if (env->draw_bits && e->op == OP_BIT && e->arg[0]->op == OP_READ) return bounds_drawn_bit(e, env);
    const bool floats = e->arg[0] && e->arg[0]->type == FK_EXPR_FLOAT;
    if (e->type == FK_EXPR_FLOAT) return ALL;
    if (e->op == OP_SCALAR) return bounds_scalar(e, env);
    if (fk_expr_is_constant(e)) return (fk_interval){(double)e->i, (double)e->i};
    if (e->op == OP_READ || floats) return e->type == FK_EXPR_BOOL ? MAYBE : ALL;
    fk_interval arg[3] = {ALL, ALL, ALL}; /* only reads have a fourth */
    for (int i = 0; i < 3 && e->arg[i]; ++i) {
        arg[i] = fk_expr_bounds(e->arg[i], env);
        if ((e->op == OP_LAND && arg[i].hi <= 0) || (e->op == OP_LOR && arg[i].lo >= 1))
            return arg[i]; /* decides alone */
    }
    return bounds_operator(e->op, arg[0], arg[1], arg[2]);
}

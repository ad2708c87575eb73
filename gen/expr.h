/* The mask / score expression language (docs/expressions.md): one parse, many uses.
 *
 *   C syntax: ints and floats, true, false, + - * / % & ^ | ~ << >>, comparisons, && || !, ?:, calls of min max abs exp
 *   log tanh popcount hash bit float, variables, reads of declared arrays a[i], a[i][j], up to rank 4.
 *   Types: int (32 bit on the device, 64 on the CPU), float, bool. Ints widen to float where they meet one.
 *   Integer / and % truncate toward zero, as in C.
 *
 * Expressions are immutable and live in an arena: one fk_expr_pool is freed as a whole. */
#ifndef FK_GEN_EXPR_H
#define FK_GEN_EXPR_H

#include "error.h"

#include <stdbool.h>

typedef struct fk_expr fk_expr;
typedef struct fk_expr_pool fk_expr_pool;

typedef enum fk_expr_type { FK_EXPR_INT, FK_EXPR_FLOAT, FK_EXPR_BOOL } fk_expr_type;

#define FK_EXPR_MAX_RANK 4
#define FK_EXPR_NAME 32 /* bytes of a name with its zero */
/** A name that expressions may read. rank 0: a scalar; 1 to 4: an array (indexed by ints). */
typedef struct fk_expr_symbol {
    char name[FK_EXPR_NAME];
    fk_expr_type type;
    int rank;
} fk_expr_symbol;

fk_expr_pool *fk_expr_pool_create(void); /* NULL: no memory */
void fk_expr_pool_destroy(fk_expr_pool *pool);
/** FK_OK, or the first failure of this pool. It stays: after a NULL from fk_expr_and or fk_expr_substitute, every later
 *  call on the pool that returns a status fails too, so a lost term is never taken for "no term". */
fk_status fk_expr_pool_check(const fk_expr_pool *pool, fk_error *err);

/** Parses and type-checks. On failure the message shows the text with a caret under the column, and says what was
 *  expected: unknown name (lists the known ones), wrong type, unbalanced parenthesis, trailing text, too deep. */
fk_status fk_expr_parse(fk_expr_pool *pool, const char *text, const fk_expr_symbol *symbols, size_t num_symbols,
                        const fk_expr **out, fk_error *err);
/** What an expression must be: its name ("keep"), its type, and an example ("k <= q") for who got it wrong. */
typedef struct fk_expr_wanted {
    const char *what;
    fk_expr_type type;
    const char *example;
} fk_expr_wanted;
fk_status fk_expr_parse_as(fk_expr_pool *pool, const char *text, const fk_expr_symbol *symbols, size_t num_symbols,
                           const fk_expr_wanted *wanted, const fk_expr **out, fk_error *err);

/** A scalar. inverse: of an int; emitted code has the variable <name>_inverse as well, floor(2^32 / |it|), at most
 *  2^32 - 1, and 0 of 0. NULL on failure. */
const fk_expr *fk_expr_variable(fk_expr_pool *pool, const char *name, fk_expr_type type, bool inverse);

fk_expr_type fk_expr_type_of(const fk_expr *e);
/** Whether e is scalar `name` plus or minus what is free of it. */
bool fk_expr_is_sum_with(const fk_expr *e, const char *name);
/** Its operators and operands. */
int fk_expr_size(const fk_expr *e);
bool fk_expr_uses(const fk_expr *e, const char *name);
/** Whether something is divided by scalar `name`, which has an inverse. */
bool fk_expr_divides_by(const fk_expr *e, const char *name);
/** Whether it has a hash of scalar `name`, or an array that is read by it: of several values at once intervals say
 * nothing. */
bool fk_expr_is_open(const fk_expr *e, const char *name);
/** Whether scalar `name` counts for itself, and not as an index of an array alone. */
bool fk_expr_computes_with(const fk_expr *e, const char *name);
/** e is the same for all values of `name` between two multiples of this: name / 128 and name >> 7 make it 128. 0: e
 * does not read `name`. */
int64_t fk_expr_block(const fk_expr *e, const char *name);
/** The same of q where diag is a multiple of it: max(q + diag, 0) / 128 makes it 128. */
int64_t fk_expr_row_block(const fk_expr *e);
/** The greatest one. */
int64_t fk_common_divisor(int64_t a, int64_t b);
/** Both conjoined and simplified; either may be NULL (no term). NULL for two NULLs, or on failure. */
const fk_expr *fk_expr_and(fk_expr_pool *pool, const fk_expr *a, const fk_expr *b);
/** e with every read of scalar `name` replaced by an expression of its type; simplified. NULL on failure. */
const fk_expr *fk_expr_substitute(fk_expr_pool *pool, const fk_expr *e, const char *name, const fk_expr *by);
/** d e / d name for float expressions (piecewise: |x|, min, max, ?: take the branch taken); simplified. */
fk_status fk_expr_differentiate(fk_expr_pool *pool, const fk_expr *e, const char *name, const fk_expr **out,
                                fk_error *err);

/** e with products x (1 / y) as quotients x / y, which are rounded once. NULL on failure. */
const fk_expr *fk_expr_divide_once(fk_expr_pool *pool, const fk_expr *e);
/** The factors of the product e that are 0 or more whatever the names in them are, and that read no array and none of
 *  the names `varying` (ends with NULL); 1 if there are none. `rest`: what they multiply. NULL on failure. */
const fk_expr *fk_expr_take_factor(fk_expr_pool *pool, const fk_expr *e, const char *const *varying,
                                   const fk_expr **rest);

#define FK_EXPR_MAX_OWN 8
/** e with its largest parts that have a hash, read no array and are free of scalar `varying` replaced by scalars own0,
 * own1, ..., equal ones by the same; `own` receives these parts, at most FK_EXPR_MAX_OWN. NULL on failure. */
const fk_expr *fk_expr_take_own(fk_expr_pool *pool, const fk_expr *e, const char *varying, const fk_expr **own,
                                int *count);

/** Instructions for each value of e, where what is free of the names `varying` (ends with NULL) is computed once. */
double fk_expr_lanes(const fk_expr *e, const char *const *varying);
/** Whether e is a sum of a part free of scalar `name` and a multiple of it, wherever none of the ints `bend`, of which
 * it takes the absolute value, changes its sign. At most `most` of these; *count counts on. */
bool fk_expr_is_straight(const fk_expr *e, const char *name, const fk_expr **bend, int most, int *count);
/** Of such an e: whether the multiple is free of scalar `other`, but for the sides of the bends. */
bool fk_expr_has_one_slope(const fk_expr *e, const char *name, const char *other);

/** The distinct reads of an array in e, in the order of the text: `out` receives the first `most`. @return how many */
size_t fk_expr_find_reads(const fk_expr *e, const char *array, const fk_expr **out, size_t most);
/** The i'th index of a read; NULL beyond its rank. */
const fk_expr *fk_expr_index(const fk_expr *read, int i);
bool fk_expr_is_scalar(const fk_expr *e, const char *name);
/** d e / d (the element that `read`, one of e's reads of a float array, reads). Reads of the same array by other
 * indices are taken for other elements: the sum over all of them is the derivative where they meet. */
fk_status fk_expr_differentiate_read(fk_expr_pool *pool, const fk_expr *e, const fk_expr *read, const fk_expr **out,
                                     fk_error *err);

/** Behind an array's name in emitted text, so that no name of a user is one of the templates' own: `tile` reads
 * tile_array_at. */
#define FK_ARRAY_SUFFIX "_array"

/** Prints. C: the language itself, minimal parentheses (round-trips). CUDA: device code over variables of the same
 *  names; calls fminf, __popc, hash_of, ..., name_array_at(p, i, j) for arrays (p: the kernel's Params), and of
 * templates/piece/interval.cu div_or_0, mod_or_0, shl_or_0, shr_or_0 where the right side is no safe constant, div_by,
 * mod_by where it is a scalar with an inverse, and
 * mul_shr(a, b, n) for a * b >> n, of which the product may need more than 32 bits. INTERVAL:
 * nested calls of the iv_ functions of the same file, in which every scalar `x` is printed as the Interval variable
 * `x_iv` and a read of an int array as name_array_iv_at(p, i, j) of Intervals; a bool is an Interval within [0, 1]. The
 * BOUND: CUDA; of a bound that fk_expr_split_bounds gave, whose sum 32 bits may not hold, by fit_int of 64. The
 * text is malloc'ed. */
typedef enum fk_expr_form { FK_EXPR_C, FK_EXPR_CUDA, FK_EXPR_INTERVAL, FK_EXPR_BOUND } fk_expr_form;
fk_status fk_expr_print(const fk_expr *e, fk_expr_form form, char **out, fk_error *err);

/** Values for evaluation on the CPU. Arrays are read through `read` (may be NULL if no arrays are declared). */
typedef struct fk_expr_env {
    const char *const *names;
    const double *values; /* ints up to 2^53 are exact */
    size_t count;
    double (*read)(void *user, const char *array, const int64_t *index, int rank);
    void *user;
    bool single; /* round each float to float32 */
} fk_expr_env;
/** A bool is 0 or 1. Defined for every input: x / 0, x % 0 and shifts by a count outside 0..31 are 0; popcount counts
 *  the low 32 bits; a name that `env` lacks is 0. Floats are doubles here, unless env->single. */
double fk_expr_eval(const fk_expr *e, const fk_expr_env *env);

typedef struct fk_interval {
    double lo, hi;
} fk_interval;
typedef struct fk_interval_env {
    const char *const *names;
    const fk_interval *values;
    size_t count;
    bool draw_bits; /* for estimates: a quarter of the bits that bit(a[...], n) reads are taken to be set, at random */
} fk_interval_env;
/** Bounds that contain every value of `e` over the box; not always the tightest. Unbounded (+-INFINITY): floats, array
 *  reads, names that `env` lacks, and ints that may leave 32 bits. A bool is within [0, 1]. Exact where all names are
 *  single ints and nothing is divided by zero. Same rules as templates/piece/interval.cu. */
fk_interval fk_expr_bounds(const fk_expr *e, const fk_interval_env *env);

/* A predicate over keys as closed-form bounds: keep(q, k) == for all i: k <= upper[i](q), for all j: k >= lower[j](q),
 * and residual(q, k). Terms of the conjunction that are linear in k with coefficient +-1 become bounds; the rest
 * stays. Test the bounds before the residual: in `k < 8 && id[k] == 1` the bound guards the read. */
#define FK_EXPR_MAX_BOUNDS 8
typedef struct fk_expr_split {
    const fk_expr *upper[FK_EXPR_MAX_BOUNDS]; /* free of k */
    int num_upper;
    const fk_expr *lower[FK_EXPR_MAX_BOUNDS];
    int num_lower;
    const fk_expr *residual; /* NULL when nothing is left */
} fk_expr_split;
fk_status fk_expr_split_bounds(fk_expr_pool *pool, const fk_expr *keep, const char *k, fk_expr_split *out,
                               fk_error *err);
/** Where all that `in` leaves is a[b][q] == c[b][k], of sorted arrays, keys that pass it follow each other: `out` has
 * the bounds first_key[b][q] <= k <= last_key[b][q] in its place. False: it is something else, or there are too many
 * bounds. */
bool fk_expr_split_runs(fk_expr_pool *pool, const fk_expr_split *in, const char *a, const char *c, fk_expr_split *out);
/** Of bit(word, k) or (word >> (k & 31) & 1) == 1, where `word` reads k as k >> 5 alone: that int, over `word` in place
 * of k >> 5. NULL: e (which may be NULL) is something else, or a failure. */
const fk_expr *fk_expr_words(fk_expr_pool *pool, const fk_expr *e);

#endif

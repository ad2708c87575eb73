/* Which tiles a mask leaves: empty, partial or full, by the same interval arithmetic that the kernel does at run time.
 * Bounds of the split predicate give a query tile's key range at once; what is left over is asked of ever smaller key
 * ranges, as ranges that are decided as a whole need no look at their tiles. */
#include "plan.h"

#include <math.h>
#include <string.h>

enum { NUM_NAMES = FK_MASK_NUM_SYMBOLS + FK_MAX_MASKS * FK_MAX_MASK_VALUES, Q = 0, K = 1 };

typedef struct counter {
    const fk_problem_mask *mask;
    const char *name[NUM_NAMES];
    fk_interval value[NUM_NAMES];
    fk_interval_env env;
    int64_t seqlen_q, seqlen_k, block_m, block_n;
    int64_t full_begin, full_end; /* key tiles of the row within which all bounds hold everywhere */
    int64_t partial, full;
} counter;

static fk_interval point(int64_t value) {
    return (fk_interval){(double)value, (double)value};
}
static int64_t min64(int64_t a, int64_t b) {
    return a < b ? a : b;
}
static int64_t max64(int64_t a, int64_t b) {
    return a > b ? a : b;
}
static int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

static void counter_init(counter *c, const fk_problem *p, const fk_problem_mask *mask, const fk_shape *shape,
                         int block_m, int block_n) {
    memset(c, 0, sizeof *c);
    c->mask = mask;
    c->seqlen_q = shape->seqlen_q;
    c->seqlen_k = shape->seqlen_k;
    c->block_m = block_m;
    c->block_n = block_n;
    /* In the order of fk_mask_symbols. A mask that reads b or h is judged for all of them at once. */
    const int64_t diag = p->align == FK_TOP_LEFT ? 0 : shape->seqlen_k - shape->seqlen_q;
    const fk_interval values[FK_MASK_NUM_SYMBOLS] = {point(0),
                                                     point(0),
                                                     {0, (double)(shape->batch - 1)},
                                                     {0, (double)(shape->num_heads_q - 1)},
                                                     point(shape->seqlen_q),
                                                     point(shape->seqlen_k),
                                                     point(diag)};
    memcpy(c->value, values, sizeof values);
    for (int i = 0; i < FK_MASK_NUM_SYMBOLS; ++i)
        c->name[i] = fk_mask_symbols[i].name;
    for (int i = 0; i < mask->num_params; ++i) {
        c->name[FK_MASK_NUM_SYMBOLS + i] = mask->param[i].name;
        c->value[FK_MASK_NUM_SYMBOLS + i] = point(mask->param[i].value);
    }
    c->env = (fk_interval_env){c->name, c->value, FK_MASK_NUM_SYMBOLS + (size_t)mask->num_params};
}

/* A bound as a number of keys; NaN and infinities end up at the limits. */
static int64_t clamp_keys(double x, int64_t seqlen_k) {
    if (!(x > 0)) return 0;
    return x < (double)seqlen_k ? (int64_t)x : seqlen_k;
}

static void count_undecided(counter *c, int64_t begin, int64_t end) {
    if (begin >= end) return;
    c->value[K] = (fk_interval){(double)(begin * c->block_n), (double)(min64(end * c->block_n, c->seqlen_k) - 1)};
    const fk_interval seen = fk_expr_bounds(c->mask->split.residual, &c->env);
    if (seen.hi <= 0) return;
    if (seen.lo >= 1) {
        const int64_t full = max64(0, min64(end, c->full_end) - max64(begin, c->full_begin));
        c->full += full;
        c->partial += end - begin - full;
    } else if (end - begin == 1) {
        ++c->partial;
    } else {
        const int64_t middle = begin + (end - begin) / 2;
        count_undecided(c, begin, middle);
        count_undecided(c, middle, end);
    }
}

static int64_t count_row(counter *c, int64_t m) {
    const fk_expr_split *split = &c->mask->split;
    c->value[Q] = (fk_interval){(double)(m * c->block_m), (double)(min64((m + 1) * c->block_m, c->seqlen_q) - 1)};
    /* Keys [begin, end) are seen by some row, [all_begin, all_end) by all, as far as the bounds say. */
    int64_t begin = 0, end = c->seqlen_k, all_begin = 0, all_end = c->seqlen_k;
    for (int i = 0; i < split->num_upper; ++i) {
        const fk_interval bound = fk_expr_bounds(split->upper[i], &c->env);
        end = min64(end, isnan(bound.hi) ? end : clamp_keys(floor(bound.hi) + 1, c->seqlen_k));
        all_end = min64(all_end, clamp_keys(floor(bound.lo) + 1, c->seqlen_k));
    }
    for (int i = 0; i < split->num_lower; ++i) {
        const fk_interval bound = fk_expr_bounds(split->lower[i], &c->env);
        begin = max64(begin, clamp_keys(ceil(bound.lo), c->seqlen_k));
        all_begin = max64(all_begin, isnan(bound.hi) ? c->seqlen_k : clamp_keys(ceil(bound.hi), c->seqlen_k));
    }
    const int64_t n_begin = begin / c->block_n, n_end = begin < end ? ceil_div(end, c->block_n) : n_begin;
    c->full_begin = ceil_div(all_begin, c->block_n);
    c->full_end = all_end / c->block_n; /* a last tile that is cut by seqlen_k is masked */
    const int64_t before = c->partial + c->full;
    if (split->residual) {
        count_undecided(c, n_begin, n_end);
    } else {
        const int64_t full = max64(0, min64(n_end, c->full_end) - max64(n_begin, c->full_begin));
        c->full += full;
        c->partial += n_end - n_begin - full;
    }
    return c->partial + c->full - before;
}

void fk_tiles_count(const fk_problem *p, const fk_problem_mask *mask, const fk_shape *shape, int block_m, int block_n,
                    int64_t max_rows, fk_tile_totals *out) {
    counter c;
    counter_init(&c, p, mask, shape, block_m, block_n);
    memset(out, 0, sizeof *out);
    out->num_m = ceil_div(shape->seqlen_q, block_m);
    out->num_n = ceil_div(shape->seqlen_k, block_n);
    const int64_t rows = min64(out->num_m, max64(2, max_rows));
    for (int64_t i = 0; i < rows; ++i) {
        const double visited = (double)count_row(&c, rows == 1 ? 0 : i * (out->num_m - 1) / (rows - 1));
        if (i == 0) out->first_visited = out->min_visited = out->max_visited = visited;
        if (i == rows - 1) out->last_visited = visited;
        out->min_visited = fmin(out->min_visited, visited);
        out->max_visited = fmax(out->max_visited, visited);
    }
    const double scale = (double)out->num_m / (double)rows;
    out->partial = (double)c.partial * scale;
    out->full = (double)c.full * scale;
    out->mean_visited = (out->partial + out->full) / (double)out->num_m;
}

fk_status fk_plan_count_tiles(const fk_problem *p, const fk_plan_info *plan, const fk_plan_options *options,
                              fk_tile_counts *out, fk_error *err) {
    const fk_plan_options defaults = FK_PLAN_OPTIONS_INIT;
    if (!options) options = &defaults;
    fk_problem problem;
    fk_shape shape;
    fk_problem_mask mask;
    fk_status status = fk_problem_normalise(p, &problem, err);
    if (status == FK_OK) status = fk_plan_options_check(options, err);
    if (status == FK_OK) status = fk_shape_fill(&problem, &options->shape, &shape, err);
    if (status != FK_OK) return status;
    if (plan->block_m <= 0 || plan->block_n <= 0) {
        return fk_fail(err, FK_BAD_ARGUMENT, "plan is %d x %d: block_m and block_n must be positive", plan->block_m,
                       plan->block_n);
    }
    fk_expr_pool *pool = fk_expr_pool_create();
    if (!pool) return fk_fail(err, FK_NO_MEMORY, "no memory for an expression");
    status = fk_problem_mask_load(pool, &problem, options->template_dir, &mask, err);
    if (status == FK_OK) {
        fk_tile_totals totals;
        fk_tiles_count(&problem, &mask, &shape, plan->block_m, plan->block_n, INT64_MAX, &totals);
        out->partial = (int64_t)totals.partial;
        out->full = (int64_t)totals.full;
        out->empty = totals.num_m * totals.num_n - out->partial - out->full;
    }
    fk_expr_pool_destroy(pool);
    return status;
}

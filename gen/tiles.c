/* Which tiles a mask leaves: empty, partial or full, by the same interval arithmetic that the kernel does at run time.
 * Bounds of the split predicate give a CTA's range at once; what is left over is asked of ever smaller ranges, as
 * ranges that are decided as a whole need no look at their tiles. */
#include "plan.h"

#include <math.h>
#include <string.h>

enum { NUM_NAMES = FK_MASK_NUM_SYMBOLS + FK_MAX_MASK_SLOTS, Q = 0, K = 1, H = 3, MOST_HEADS = 4 };
#define LONG 2.0 /* times the mean: an own tile that others should not wait for in the end */

#define MOST_TILES ((int64_t)1 << 20) /* of a head, up to which each row is counted for a caller */
/* Ranges that planning looks at in a row: all that 16,384 walked tiles can ask for. */
#define MOST_LOOKS ((int64_t)1 << 15)

/* A CTA owns a tile of one axis and walks over tiles of the other: query and key, or key and query. */
typedef struct axis {
    int variable;
    int64_t length, block;
    /* Rows of a pattern's blocks that are asked about by themselves, of which one begins where variable + shift is a
     * multiple of them; 0: of no pattern, or too few. templates/piece/scan_tiles.cu asks likewise. */
    int64_t part, shift;
} axis;
#define LEAST_PART 16

typedef struct counter {
    const fk_expr_split *split;
    const char *name[NUM_NAMES];
    fk_interval value[NUM_NAMES];
    fk_interval_env env;
    axis own, walked;
    int64_t full_begin, full_end; /* walked tiles of the row within which all bounds hold everywhere */
    int64_t partial, full;
    int64_t most_looks, looks; /* at ranges of a row, or their parts: how many at most, and how many there were */
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

/* How many blocks a tile has; 0: they do not fit. */
static int64_t parts_in(int64_t block, int64_t tile) {
    return block % tile == 0 ? 1 : tile % block == 0 ? tile / block : 0;
}

static void counter_init(counter *c, const fk_problem *p, const fk_problem_mask *mask, bool walks_q,
                         const fk_shape *shape, int block_m, int block_n) {
    memset(c, 0, sizeof *c);
    c->most_looks = INT64_MAX;
    c->split = walks_q ? &mask->split : &mask->split_k;
    const int64_t diag = p->align == FK_TOP_LEFT ? 0 : shape->seqlen_k - shape->seqlen_q;
    const bool fits_q = mask->block_q % block_m == 0, fits_k = mask->block_k % block_n == 0;
    const int64_t parts = parts_in(mask->block_q, block_m) * parts_in(mask->block_k, block_n);
    const bool joins = fk_problem_joins_heads(p) && !walks_q; /* rows of several heads */
    const bool open = walks_q ? mask->open_q : mask->open_k && mask->long_walk && !joins;
    const bool by_blocks = open && parts >= 1 && parts <= 4;
    const bool asked_q = by_blocks || (fits_q ? !mask->long_walk && (fits_k || mask->open_q) : mask->open_q),
               asked_k = by_blocks || (!fits_k && mask->open_k);
    const int64_t part_q = mask->in_blocks && asked_q && !joins && mask->block_q >= LEAST_PART ? mask->block_q : 0;
    const int64_t part_k = mask->in_blocks && asked_k && mask->block_k >= LEAST_PART ? mask->block_k : 0;
    const bool moved = part_q && fk_expr_uses(mask->keep, "diag");
    const axis q = {Q, shape->seqlen_q, block_m, part_q, moved ? (diag % part_q + part_q) % part_q : 0},
               k = {K, shape->seqlen_k, block_n, part_k, 0};
    c->own = walks_q ? k : q;
    c->walked = walks_q ? q : k;
    /* In the order of fk_mask_symbols. A mask that reads b is judged for all batch entries at once. */
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
    c->env = (fk_interval_env){c->name, c->value, FK_MASK_NUM_SYMBOLS + (size_t)mask->num_params, true};
}

/* A bound as a number of keys (or queries); NaN and infinities end up at the limits. */
static int64_t clamp_to(double x, int64_t length) {
    if (!(x > 0)) return 0;
    return x < (double)length ? (int64_t)x : length;
}

/* Tiles [begin, end) of an axis, as an interval of its variable. */
static void set_range(counter *c, const axis *a, int64_t begin, int64_t end) {
    c->value[a->variable] = (fk_interval){(double)(begin * a->block), (double)(min64(end * a->block, a->length) - 1)};
}

/* The last of `range` that lies in the block of its first. */
static double last_of_part(const axis *a, fk_interval range) {
    if (!a->part) return range.hi;
    const int64_t first = (int64_t)range.lo, last = first + a->part - 1 - (first + a->shift) % a->part;
    return fmin((double)last, range.hi);
}

/* What a predicate says of the ranges at hand, of which a pattern's blocks are asked about one by one: all of the own
 * tile's, and those of a single walked tile. */
static fk_interval ask(counter *c, const fk_expr *predicate, bool single) {
    const fk_interval own = c->value[c->own.variable], walked = c->value[c->walked.variable];
    fk_interval seen = {1, 0}, *i = &c->value[c->own.variable], *j = &c->value[c->walked.variable];
    for (*i = own; i->lo <= own.hi && (seen.lo >= 1 || seen.hi <= 0); *i = (fk_interval){i->hi + 1, own.hi}) {
        i->hi = last_of_part(&c->own, *i);
        for (*j = walked; j->lo <= walked.hi && (seen.lo >= 1 || seen.hi <= 0);
             *j = (fk_interval){j->hi + 1, walked.hi}) {
            if (single) j->hi = last_of_part(&c->walked, *j);
            const fk_interval one = fk_expr_bounds(predicate, &c->env);
            ++c->looks;
            seen = (fk_interval){fmin(seen.lo, one.lo), fmax(seen.hi, one.hi)};
        }
    }
    *i = own, *j = walked;
    return seen;
}

/* A range of up to `grain` tiles that is not decided as a whole is partial. */
static void count_undecided(counter *c, int64_t begin, int64_t end, int64_t grain) {
    if (begin >= end || c->looks > c->most_looks) return;
    set_range(c, &c->walked, begin, end);
    const fk_interval seen = ask(c, c->split->residual, end - begin == 1);
    if (seen.hi <= 0) return;
    if (seen.lo >= 1) {
        const int64_t full = max64(0, min64(end, c->full_end) - max64(begin, c->full_begin));
        c->full += full;
        c->partial += end - begin - full;
    } else if (end - begin <= grain) {
        c->partial += end - begin;
    } else {
        const int64_t middle = begin + (end - begin) / 2;
        count_undecided(c, begin, middle, grain);
        count_undecided(c, middle, end, grain);
    }
}

/* How many parts a tile of the axis has at most. */
static int64_t parts_of(const axis *a) {
    return a->part ? ceil_div(a->block, a->part) + (a->shift > 0) : 1;
}

/* Tile by tile, or where that takes too many looks as finely as they allow: halves of ranges above the grain are at
 * least half of it, so that 2 n / grain of them are less than 4 n / grain ranges. */
static void count_residual(counter *c, int64_t begin, int64_t end) {
    const int64_t partial = c->partial, full = c->full;
    c->looks = 0;
    count_undecided(c, begin, end, 1);
    if (c->looks <= c->most_looks) return;
    c->partial = partial;
    c->full = full;
    c->looks = 0;
    count_undecided(c, begin, end, max64(2, ceil_div(4 * (end - begin) * parts_of(&c->own), c->most_looks)));
}

/* The walked tiles of the CTA that owns tile `own`. */
static int64_t count_row(counter *c, int64_t own) {
    const fk_expr_split *split = c->split;
    const int64_t length = c->walked.length, block = c->walked.block;
    set_range(c, &c->own, own, own + 1);
    /* Keys [begin, end) are seen by some row, [all_begin, all_end) by all, as far as the bounds say. A last tile that
     * is cut by the sequence's end is masked; in the backward pass what is past the end of q has p = 0 without a mask.
     */
    const int64_t limit = c->walked.variable == Q ? ceil_div(length, block) * block : length;
    int64_t begin = 0, end = length, all_begin = 0, all_end = limit;
    for (int i = 0; i < split->num_upper; ++i) {
        const fk_interval bound = fk_expr_bounds(split->upper[i], &c->env);
        end = min64(end, isnan(bound.hi) ? end : clamp_to(floor(bound.hi) + 1, length));
        all_end = min64(all_end, clamp_to(floor(bound.lo) + 1, limit));
    }
    for (int i = 0; i < split->num_lower; ++i) {
        const fk_interval bound = fk_expr_bounds(split->lower[i], &c->env);
        begin = max64(begin, clamp_to(ceil(bound.lo), length));
        all_begin = max64(all_begin, isnan(bound.hi) ? limit : clamp_to(ceil(bound.hi), limit));
    }
    const int64_t first = begin / block, last = begin < end ? ceil_div(end, block) : first;
    c->full_begin = ceil_div(all_begin, block);
    c->full_end = all_end / block;
    const int64_t before = c->partial + c->full;
    if (split->residual) {
        count_residual(c, first, last);
    } else {
        const int64_t full = max64(0, min64(last, c->full_end) - max64(first, c->full_begin));
        c->full += full;
        c->partial += last - first - full;
    }
    return c->partial + c->full - before;
}

static void count(const fk_problem *p, const fk_problem_mask *mask, bool walks_q, const fk_shape *shape, int block_m,
                  int block_n, int64_t max_ctas, int64_t most_looks, fk_tile_totals *out) {
    counter c;
    counter_init(&c, p, mask, walks_q, shape, block_m, block_n);
    c.most_looks = most_looks;
    memset(out, 0, sizeof *out);
    out->num_ctas = ceil_div(c.own.length, c.own.block);
    out->num_walked = ceil_div(c.walked.length, c.walked.block);
    const bool by_head = mask->keep && fk_expr_uses(mask->keep, "h");
    const int64_t heads = by_head ? min64(shape->num_heads_q, MOST_HEADS) : 1;
    const int64_t looks =
        most_looks < INT64_MAX ? parts_of(&c.own) * parts_of(&c.walked) : 1; /* at a tile, in planning */
    const int64_t rows = min64(out->num_ctas, max64(looks > 1 ? 4 : 2, max_ctas / heads / looks));
    /* The first and the last row may see more than all others, and count once. Planning takes them for rows like
     * others. */
    const bool apart = most_looks == INT64_MAX && rows > 2;
    double edge_partial = 0, edge_full = 0;
    for (int64_t i = 0; i < rows * heads; ++i) {
        const int64_t row = i % rows, head = i / rows, partial = c.partial, full = c.full;
        if (by_head) c.value[H] = point(heads == 1 ? 0 : head * (shape->num_heads_q - 1) / (heads - 1));
        const double visited = (double)count_row(&c, rows == 1 ? 0 : row * (out->num_ctas - 1) / (rows - 1));
        const bool is_edge = apart && (row == 0 || row == rows - 1);
        edge_partial += is_edge ? (double)(c.partial - partial) : 0;
        edge_full += is_edge ? (double)(c.full - full) : 0;
        if (i == 0) out->min_visited = out->max_visited = visited;
        if (row == 0) out->first_visited += visited / (double)heads;
        if (row == rows - 1) out->last_visited += visited / (double)heads;
        out->min_visited = fmin(out->min_visited, visited);
        out->max_visited = fmax(out->max_visited, visited);
    }
    const double scale = (double)(out->num_ctas - 2 * apart) / (double)((rows - 2 * apart) * heads);
    out->partial = edge_partial / (double)heads + ((double)c.partial - edge_partial) * scale;
    out->full = edge_full / (double)heads + ((double)c.full - edge_full) * scale;
    out->mean_visited = (out->partial + out->full) / (double)out->num_ctas;
}

void fk_tiles_count(const fk_problem *p, const fk_problem_mask *mask, bool walks_q, const fk_shape *shape, int block_m,
                    int block_n, int64_t max_ctas, fk_tile_totals *out) {
    const int64_t most_looks = max_ctas < INT64_MAX ? MOST_LOOKS : INT64_MAX;
    count(p, mask, walks_q, shape, block_m, block_n, max_ctas, most_looks, out);
}

int fk_tiles_leading(const fk_problem *p, const fk_problem_mask *mask, bool walks_q, const fk_shape *shape, int block_m,
                     int block_n, int q_order) {
    counter c;
    fk_tile_totals totals;
    fk_tiles_count(p, mask, walks_q, shape, block_m, block_n, 64, &totals);
    counter_init(&c, p, mask, walks_q, shape, block_m, block_n);
    c.most_looks = MOST_LOOKS;
    c.value[H] = point(0);
    int leading = 0;
    while (leading < totals.num_ctas &&
           (double)count_row(&c, q_order > 0 ? totals.num_ctas - 1 - leading : leading) > LONG * totals.mean_visited)
        ++leading;
    return leading;
}

/* What counting and mapping start with. `shape` and `terms` are of the canonical problem; `pool` is the caller's. */
typedef struct request {
    fk_problem problem;
    fk_shape shape;
    fk_problem_terms terms;
    fk_expr_pool *pool;
} request;

static fk_status open_request(const fk_problem *p, const fk_plan_info *plan, const fk_plan_options *options,
                              request *out, fk_error *err) {
    const fk_plan_options defaults = FK_PLAN_OPTIONS_INIT;
    if (!options) options = &defaults;
    out->pool = NULL;
    fk_status status = fk_problem_normalise(p, &out->problem, err);
    if (status == FK_OK) status = fk_plan_options_check(options, err);
    if (status == FK_OK) status = fk_shape_fill(&out->problem, &options->shape, &out->shape, err);
    if (status != FK_OK) return status;
    if (plan->block_m <= 0 || plan->block_n <= 0) {
        return fk_fail(err, FK_BAD_ARGUMENT, "plan is %d x %d: block_m and block_n must be positive", plan->block_m,
                       plan->block_n);
    }
    out->pool = fk_expr_pool_create();
    if (!out->pool) return fk_fail(err, FK_NO_MEMORY, "no memory for an expression");
    return fk_problem_terms_load(out->pool, &out->problem, options->template_dir, &out->terms, err);
}

fk_status fk_plan_count_tiles(const fk_problem *p, const fk_plan_info *plan, const fk_plan_options *options,
                              fk_tile_counts *out, fk_error *err) {
    request r;
    const fk_status status = open_request(p, plan, options, &r, err);
    if (status == FK_OK) {
        const double little = 1e-6; /* means over heads may end in any digit */
        fk_tile_totals totals;
        const bool walks_q = r.problem.op == FK_BACKWARD;
        const int64_t rows = ceil_div(r.shape.seqlen_q, plan->block_m),
                      columns = ceil_div(r.shape.seqlen_k, plan->block_n);
        const int64_t most = rows * columns > MOST_TILES ? MOST_TILES / (walks_q ? rows : columns) : INT64_MAX;
        count(&r.problem, &r.terms.mask, walks_q, &r.shape, plan->block_m, plan->block_n, most, INT64_MAX, &totals);
        const int64_t visited = (int64_t)ceil(totals.partial + totals.full - little);
        out->full = (int64_t)floor(totals.full + little);
        out->partial = visited - out->full;
        out->empty = totals.num_ctas * totals.num_walked - visited;
    }
    fk_expr_pool_destroy(r.pool);
    return status;
}

/* `masks_end`: of the last keys, where a tile is longer, as count_row has it forward. */
static uint8_t tile_state(counter *c, const fk_expr *keep, int64_t n, bool masks_end) {
    const fk_interval seen = keep ? ask(c, keep, true) : point(1);
    const bool is_cut = masks_end && (n + 1) * c->walked.block > c->walked.length;
    return seen.hi <= 0 ? FK_TILE_EMPTY : seen.lo >= 1 && !is_cut ? FK_TILE_FULL : FK_TILE_PARTIAL;
}

fk_status fk_plan_map_tiles(const fk_problem *p, const fk_plan_info *plan, const fk_plan_options *options, int64_t head,
                            uint8_t *out, size_t size, fk_error *err) {
    request r;
    counter c;
    fk_status status = open_request(p, plan, options, &r, err);
    if (status == FK_OK) {
        counter_init(&c, &r.problem, &r.terms.mask, false, &r.shape, plan->block_m, plan->block_n);
        const int64_t rows = ceil_div(c.own.length, c.own.block), columns = ceil_div(c.walked.length, c.walked.block);
        if (head < 0 || head >= r.shape.num_heads_q)
            status = fk_fail(err, FK_BAD_ARGUMENT, "head is %lld: must be from 0 to %lld", (long long)head,
                             (long long)r.shape.num_heads_q - 1);
        else if (size / (size_t)columns != (size_t)rows || size % (size_t)columns)
            status = fk_fail(err, FK_BAD_ARGUMENT, "size is %zu: must be %lld x %lld tiles", size, (long long)rows,
                             (long long)columns);
        c.value[H] = point(head);
        for (int64_t i = 0; status == FK_OK && i < rows * columns; ++i) {
            set_range(&c, &c.own, i / columns, i / columns + 1);
            set_range(&c, &c.walked, i % columns, i % columns + 1);
            out[i] = tile_state(&c, r.terms.mask.keep, i % columns, r.problem.op == FK_FORWARD);
        }
    }
    fk_expr_pool_destroy(r.pool);
    return status;
}

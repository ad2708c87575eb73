/* From the terms of a problem to expressions: files are read, params get names that are unique in the kernel, masks are
 * conjoined to one predicate, scores stay a list with their derivatives. Causal is no special case. */
#include "problem.h"
#include "term.h"

#include <stdio.h>
#include <string.h>

typedef struct loader {
    fk_expr_pool *pool;
    fk_lua *lua; /* null: no term is named, or there is no Lua */
    const fk_problem *p;
    fk_term_file score[FK_MAX_SCORES], mask[FK_MAX_MASKS]; /* of the named ones */
    fk_problem_terms *out;
} loader;

/* ---- files and arrays ---- */

static fk_status load_file(loader *l, fk_term_kind kind, const char *name, int num_values, fk_term_file *out,
                           fk_error *err) {
    if (!name[0]) return FK_OK;
    const fk_status status = fk_term_file_load(l->lua, kind, name, out, err);
    if (status != FK_OK || fk_term_takes(kind, out, num_values)) return status;
    /* a template_dir whose file differs from the built-in one */
    return fk_fail(err, FK_TEMPLATE_ERROR, "templates/%s/%s.lua: has %d params: must have %d", fk_term_kind_name(kind),
                   name, out->num_params, num_values - (kind == FK_TERM_PATTERN ? 2 : 0));
}

static fk_status join_arrays(loader *l, const fk_array_decl *array, int count, fk_error *err) {
    fk_status status = FK_OK;
    for (int i = 0; i < count && status == FK_OK; ++i)
        status = fk_array_list_join(&l->out->arrays, &array[i], err);
    return status;
}

static fk_status load_files(loader *l, fk_error *err) {
    const fk_problem *p = l->p;
    fk_status status = FK_OK;
    for (int i = 0; i < p->num_arrays && status == FK_OK; ++i)
        status = fk_array_list_add(&l->out->arrays, &p->array[i], err);
    for (int i = 0; i < p->num_scores && status == FK_OK; ++i) {
        status = load_file(l, FK_TERM_SCORE, p->score[i].name, p->score[i].num_values, &l->score[i], err);
        if (status == FK_OK) status = join_arrays(l, l->score[i].array, l->score[i].num_arrays, err);
    }
    for (int i = 0; i < p->num_masks && status == FK_OK; ++i) {
        status = load_file(l, fk_mask_kind(&p->mask[i]), p->mask[i].name, p->mask[i].num_values, &l->mask[i], err);
        if (status == FK_OK) status = join_arrays(l, l->mask[i].array, l->mask[i].num_arrays, err);
    }
    return status;
}

/* ---- expressions ---- */

/* The variable of a param of the index'th term: left -> window0_left, which is also written to `name`. */
static fk_status name_param(loader *l, const char *term, int index, const fk_term_param *param, bool inverse,
                            char name[48], const fk_expr **out, fk_error *err) {
    const fk_expr_type type = param->is_float ? FK_EXPR_FLOAT : FK_EXPR_INT;
    const char *letter = term[0] >= '0' && term[0] <= '9' ? "m" : ""; /* files' names may begin with a digit */
    const int n = snprintf(name, FK_EXPR_NAME, "%s%s%d_%s", letter, term, index, param->name);
    if (n < 0 || n >= FK_EXPR_NAME) {
        return fk_fail(err, FK_TEMPLATE_ERROR, "%s: param %s: both names must be below %d bytes together", term,
                       param->name, FK_EXPR_NAME - 2);
    }
    *out = fk_expr_variable(l->pool, name, type, inverse && !param->is_float);
    return FK_OK;
}

/* The expression of a file, in which params still have the file's names. */
static fk_status parse_file(loader *l, fk_term_kind kind, const char *name, const fk_term_file *file, const char *text,
                            const fk_expr **out, fk_error *err) {
    fk_error inner;
    fk_status status = fk_term_parse(l->pool, kind, text, file, &l->out->arrays, out, &inner);
    if (status == FK_OK) return FK_OK;
    if (status == FK_BAD_PROBLEM) status = FK_TEMPLATE_ERROR;
    return fk_fail(err, status, "templates/%s/%s.lua: %.1900s", fk_term_kind_name(kind), name, inner.text);
}

static fk_status load_pattern(loader *l, int index, const fk_expr **keep, fk_error *err) {
    const fk_mask *mask = &l->p->mask[index];
    const fk_term_file *file = mask->name[0] ? &l->mask[index] : NULL;
    const fk_expr *block = NULL;
    const fk_status status =
        file ? parse_file(l, FK_TERM_PATTERN, mask->name, file, file->expr, &block, err)
             : fk_term_parse(l->pool, FK_TERM_PATTERN, mask->expr, NULL, &l->out->arrays, &block, err);
    if (status != FK_OK) return status;
    l->out->mask.in_blocks = true;
    return fk_pattern_expand(l->pool, mask, file, l->p->align == FK_TOP_LEFT, block, keep, err);
}

/* A file's, as keep and by_q. */
static fk_status load_named_mask(loader *l, int index, const fk_expr *out[2], fk_error *err) {
    const fk_mask *mask = &l->p->mask[index];
    const fk_term_file *file = &l->mask[index];
    fk_status status = parse_file(l, FK_TERM_MASK, mask->name, file, file->expr, &out[0], err);
    out[1] = out[0];
    if (status == FK_OK && file->by_q[0])
        status = parse_file(l, FK_TERM_MASK, mask->name, file, file->by_q, &out[1], err);
    for (int i = 0; i < file->num_params && status == FK_OK; ++i) {
        fk_mask_param *param = &l->out->mask.param[l->out->mask.num_params++];
        const fk_expr *variable = NULL;
        status = name_param(l, mask->name, index, &file->param[i], true, param->name, &variable, err);
        for (int j = 0; j < 2 && status == FK_OK; ++j)
            out[j] = fk_expr_substitute(l->pool, out[j], file->param[i].name, variable);
        param->value = mask->value[i];
    }
    return status;
}

static fk_status load_mask(loader *l, int index, const fk_expr *out[2], fk_error *err) {
    const fk_mask *mask = &l->p->mask[index];
    const bool is_pattern = fk_mask_kind(mask) == FK_TERM_PATTERN;
    if (!is_pattern && mask->name[0]) return load_named_mask(l, index, out, err);
    const fk_status status =
        is_pattern ? load_pattern(l, index, &out[0], err)
                   : fk_term_parse(l->pool, FK_TERM_MASK, mask->expr, NULL, &l->out->arrays, &out[0], err);
    out[1] = out[0];
    return status;
}

/* Is array i sorted, and has it a row along `dim` for each batch entry, which the mask reads by its own variables? */
static bool is_sorted_row(const loader *l, int i, int dim) {
    const fk_array_decl *array = &l->out->arrays.decl[i];
    return array->sorted && array->rank == 2 && array->dim[0] == FK_DIM_BATCH &&
           fk_array_list_reads_row(&l->out->arrays, l->out->mask.split_k.residual, i, dim);
}

static void find_runs(loader *l) {
    const fk_array_list *arrays = &l->out->arrays;
    fk_problem_mask *mask = &l->out->mask;
    for (int i = 0; i < arrays->count; ++i) {
        for (int j = 0; j < arrays->count && !mask->has_runs; ++j) {
            if (!is_sorted_row(l, i, FK_DIM_SEQLEN_Q) || !is_sorted_row(l, j, FK_DIM_SEQLEN_K)) continue;
            mask->run_q = i, mask->run_k = j;
            mask->has_runs =
                fk_expr_split_runs(l->pool, &mask->split_k, arrays->decl[i].name, arrays->decl[j].name, &mask->runs);
        }
    }
}

static void find_blocks(fk_problem_mask *mask) {
    const fk_expr *a = mask->split.residual, *b = mask->split_k.residual;
    mask->block_k = b ? (int)fk_expr_block(b, "k") : 0;
    mask->block_q = a && b && fk_expr_block(a, "k") == mask->block_k && fk_expr_row_block(a) == fk_expr_row_block(b)
                        ? (int)fk_expr_row_block(a)
                        : 1;
    mask->open_q = b && fk_expr_is_open(b, "q");
    mask->open_k = b && fk_expr_is_open(b, "k");
}

static fk_status load_masks(loader *l, fk_error *err) {
    fk_problem_mask *out = &l->out->mask;
    fk_status status = FK_OK;
    for (int i = 0; i < l->p->num_masks && status == FK_OK; ++i) {
        const fk_expr *keep[2] = {NULL, NULL};
        status = load_mask(l, i, keep, err);
        if (status != FK_OK) break;
        out->keep = fk_expr_and(l->pool, out->keep, keep[0]);
        out->by_q = fk_expr_and(l->pool, out->by_q, keep[1]);
        if (!out->keep || !out->by_q) status = fk_fail(err, FK_NO_MEMORY, "no memory for an expression");
    }
    if (status != FK_OK || !out->keep) return status;
    out->long_walk = out->in_blocks && fk_expr_size(out->keep) > 48;
    fk_array_list_note(&l->out->arrays, out->keep);
    if (l->p->op == FK_FORWARD) out->by_q = out->keep;
    if (out->by_q != out->keep) fk_array_list_note(&l->out->arrays, out->by_q);
    for (fk_mask_param *param = out->param; param < out->param + out->num_params; ++param)
        param->divides = fk_expr_divides_by(out->keep, param->name) || fk_expr_divides_by(out->by_q, param->name);
    status = fk_expr_split_bounds(l->pool, out->keep, "k", &out->split_k, err);
    out->split = out->split_k;
    if (status == FK_OK && l->p->op == FK_FORWARD) find_runs(l);
    if (status == FK_OK && l->p->op == FK_BACKWARD)
        status = fk_expr_split_bounds(l->pool, out->by_q, "q", &out->split, err);
    if (status != FK_OK) return status;
    find_blocks(out);
    out->words = fk_expr_words(l->pool, out->split.residual);
    if (out->long_walk && l->p->op == FK_FORWARD && out->split.residual && !out->open_k) /* or blocks are asked about */
        out->over_own = fk_expr_take_own(l->pool, out->split.residual, "k", out->own, &out->num_own);
    return fk_expr_pool_check(l->pool, err);
}

/* ---- scores ---- */

/* Derivatives of a term's value by the elements of the arrays whose gradients are asked for. */
static fk_status derive_arrays(loader *l, fk_score_term *term, uint32_t *found, fk_error *err) {
    const fk_array_list *arrays = &l->out->arrays;
    fk_status status = FK_OK;
    for (int i = 0; i < arrays->count; ++i) {
        if (!(l->p->grad >> i & 1)) continue;
        const fk_expr *read[FK_MAX_SCORE_READS];
        const size_t count = fk_expr_find_reads(term->value, arrays->decl[i].name, read, FK_MAX_SCORE_READS);
        if (count > FK_MAX_SCORE_READS || count > (size_t)(FK_MAX_SCORE_READS - term->num_reads)) {
            return fk_fail(err, FK_UNSUPPORTED,
                           "grad=%s: one term reads more than %d elements whose gradients are "
                           "asked for",
                           arrays->decl[i].name, FK_MAX_SCORE_READS);
        }
        for (size_t j = 0; j < count && status == FK_OK; ++j) {
            fk_score_read *out = &term->read[term->num_reads++];
            out->array = i;
            out->element = read[j];
            status = fk_expr_differentiate_read(l->pool, term->value, read[j], &out->derivative, err);
        }
        if (count > 0) *found |= 1u << i;
    }
    return status;
}

static fk_status load_score(loader *l, int index, uint32_t *found, fk_error *err) {
    const fk_score *score = &l->p->score[index];
    const fk_term_file *file = &l->score[index];
    fk_problem_score *out = &l->out->score;
    fk_score_term *term = file->is_sink ? &out->sink[out->num_sinks++] : &out->term[out->num_terms++];
    fk_status status =
        score->name[0] ? parse_file(l, FK_TERM_SCORE, score->name, file, file->expr, &term->value, err)
                       : fk_term_parse(l->pool, FK_TERM_SCORE, score->expr, NULL, &l->out->arrays, &term->value, err);
    for (int i = 0; i < file->num_params && status == FK_OK; ++i) {
        fk_score_param *param = &out->param[out->num_params++];
        const fk_expr *variable = NULL;
        param->is_float = file->param[i].is_float;
        param->nonzero = file->param[i].nonzero;
        param->value = score->value[i];
        status = name_param(l, score->name, index, &file->param[i], false, param->name, &variable, err);
        if (status == FK_OK) term->value = fk_expr_substitute(l->pool, term->value, file->param[i].name, variable);
    }
    if (status == FK_OK && !term->value) status = fk_fail(err, FK_NO_MEMORY, "no memory for an expression");
    if (status == FK_OK && l->p->dtype == FK_FP32) { /* where two roundings for one are twice eager's error */
        term->value = fk_expr_divide_once(l->pool, term->value);
        status = fk_expr_pool_check(l->pool, err);
    }
    if (status == FK_OK && !file->is_sink) status = fk_expr_differentiate(l->pool, term->value, "s", &term->ds, err);
    if (status == FK_OK) status = derive_arrays(l, term, found, err);
    if (status == FK_OK) fk_array_list_note(&l->out->arrays, term->value);
    return status;
}

/* Is it array[b][h][q][k], in any order? */
static bool reads_each_once(const fk_expr *element) {
    static const char *const names[] = {"b", "h", "q", "k"};
    int found = 0;
    for (int d = 0; fk_expr_index(element, d); ++d) {
        for (int i = 0; i < 4; ++i) {
            if (fk_expr_is_scalar(fk_expr_index(element, d), names[i])) found |= 1 << i;
        }
    }
    return found == 15;
}

/* The arrays of which an element is read for one pair, by one term: each index is along its own dimension, as else
 * several pairs may read the element that an index is clamped to. */
static uint32_t find_once(const fk_problem_score *score, const fk_array_list *arrays) {
    uint32_t once = score->grad, read = 0;
    for (int i = 0; i < score->num_terms; ++i) {
        for (int j = 0; j < score->term[i].num_reads; ++j) {
            const int array = score->term[i].read[j].array;
            const uint32_t bit = 1u << array;
            if ((read & bit) || arrays->clamp[array] || !reads_each_once(score->term[i].read[j].element)) once &= ~bit;
            read |= bit;
        }
    }
    return once & read;
}

static void take_factor(fk_expr_pool *pool, fk_problem_score *out) {
    static const char *const varying[] = {"s", "q", "k", "b", "h", "seqlen_q", "seqlen_k", "diag", NULL};
    if (out->num_terms > 0)
        out->factor = fk_expr_take_factor(pool, out->term[out->num_terms - 1].value, varying, &out->rest);
}

/* Do scores go by k in straight lines, and nothing but s besides? */
static void find_lines(fk_problem_score *out) {
    bool by_key = false;
    out->along = out->one_slope = true;
    for (int i = 0; i < out->num_terms && out->along; ++i) {
        const fk_score_term *term = &out->term[i];
        by_key = by_key || fk_expr_uses(term->value, "k");
        out->one_slope = out->one_slope && fk_expr_has_one_slope(term->value, "k", "q");
        out->along = fk_expr_is_sum_with(term->value, "s") &&
                     fk_expr_is_straight(term->value, "k", out->bend, FK_MAX_BENDS, &out->num_bends);
    }
    int inner = 0; /* bends of bends, of which there may be none */
    for (int i = 0; i < out->num_bends; ++i)
        out->along = out->along && fk_expr_is_straight(out->bend[i], "q", NULL, 0, &inner);
    out->along = out->along && by_key;
}

static fk_status load_scores(loader *l, fk_error *err) {
    const fk_array_list *arrays = &l->out->arrays;
    fk_status status = FK_OK;
    uint32_t found = 0; /* arrays whose gradients are asked for and that some term reads */
    for (int i = 0; i < l->p->num_scores && status == FK_OK; ++i)
        status = load_score(l, i, &found, err);
    if (status == FK_OK) take_factor(l->pool, &l->out->score);
    if (status == FK_OK) find_lines(&l->out->score);
    if (status == FK_OK) status = fk_expr_pool_check(l->pool, err);
    l->out->score.grad = (uint32_t)l->p->grad;
    l->out->score.once = find_once(&l->out->score, arrays);
    const uint32_t missing = (uint32_t)l->p->grad & ~found;
    if (status != FK_OK || !missing) return status;
    const int first = __builtin_ctz(missing);
    return fk_fail(err, FK_BAD_PROBLEM, "grad=%s: no score term reads it",
                   first < arrays->count ? arrays->decl[first].name : "?");
}

/* Does any term come from a file? */
static bool has_names(const fk_problem *p) {
    bool named = false;
    for (int i = 0; i < p->num_scores; ++i)
        named = named || p->score[i].name[0];
    for (int i = 0; i < p->num_masks; ++i)
        named = named || p->mask[i].name[0];
    return named;
}

fk_status fk_problem_terms_load(fk_expr_pool *pool, const fk_problem *p, const char *template_dir,
                                fk_problem_terms *out, fk_error *err) {
    loader l = {.pool = pool, .p = p, .out = out};
    memset(out, 0, sizeof *out);
    fk_status status = has_names(p) ? fk_term_lua_open(template_dir, &l.lua, err) : FK_OK;
    if (status == FK_OK) status = load_files(&l, err);
    if (status == FK_OK) status = load_masks(&l, err);
    if (status == FK_OK) status = load_scores(&l, err);
    fk_lua_close(l.lua);
    return status;
}

fk_status fk_problem_list_arrays(const fk_problem *p, fk_array_list *out, fk_error *err) {
    fk_problem_terms terms;
    loader l = {.p = p, .out = &terms};
    memset(&terms, 0, sizeof terms);
    fk_status status = has_names(p) ? fk_term_lua_open(NULL, &l.lua, err) : FK_OK;
    if (status == FK_OK) status = load_files(&l, err);
    fk_lua_close(l.lua);
    if (status == FK_OK) *out = terms.arrays;
    return status;
}

fk_status fk_problem_term_lines(const fk_problem *p, const char *template_dir, fk_term_line *line, void *user,
                                fk_error *err) {
    fk_problem_terms terms;
    char text[FK_TERM_TEXT];
    loader l = {.p = p, .out = &terms};
    memset(&terms, 0, sizeof terms);
    fk_status status = has_names(p) ? fk_term_lua_open(template_dir, &l.lua, err) : FK_OK;
    if (status == FK_OK) status = load_files(&l, err);
    fk_lua_close(l.lua);
    for (int i = 0; i < p->num_scores && status == FK_OK; ++i) {
        if (!p->score[i].name[0]) continue;
        fk_term_write(FK_TERM_SCORE, p->score[i].name, &l.score[i], text);
        status = line(user, text, err);
    }
    for (int i = 0; i < p->num_masks && status == FK_OK; ++i) {
        if (!p->mask[i].name[0]) continue;
        fk_term_write(fk_mask_kind(&p->mask[i]), p->mask[i].name, &l.mask[i], text);
        status = line(user, text, err);
    }
    return status;
}

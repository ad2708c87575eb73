/* A canonical problem has every default filled, every byte determined, and means something: its masks and scores parse.
 */
#include "problem.h"

#include "term.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *fk_dtype_name(int32_t dtype) {
    static const char *const names[] = {"fp16", "bf16", "fp32", "e4m3"};
    return names[dtype];
}

fk_status fk_problem_check_head_dim(const char *field, int64_t value, int most, fk_error *err) {
    if (value >= 8 && value <= FK_NARROW_HEAD_DIM && value % 8 == 0) return FK_OK;
    if (value > FK_NARROW_HEAD_DIM && value <= most && value % 64 == 0) return FK_OK;
    return fk_fail(err, FK_BAD_PROBLEM, "%s is %lld: must be a multiple of 8 from 8 to %d, or of 64 to %d", field,
                   (long long)value, FK_NARROW_HEAD_DIM, most);
}

static fk_status check_choice(const char *field, int32_t value, const char *choices, fk_error *err) {
    if (value == 0 || value == 1) return FK_OK;
    return fk_fail(err, FK_BAD_PROBLEM, "%s is %d: must be %s", field, value, choices);
}

static fk_status check_paged(int32_t value, fk_error *err) {
    const bool rows = value >= 8 && value <= FK_MAX_PAGE_ROWS && (value & (value - 1)) == 0;
    if (value == 0 || value == 1 || rows) return FK_OK;
    return fk_fail(err, FK_BAD_PROBLEM, "paged is %d: must be 0, 1 (pages of any size), 8, 16, 32, 64 or %d", value,
                   FK_MAX_PAGE_ROWS);
}

static fk_status check_dtype(int32_t value, fk_error *err) {
    if (value >= FK_FP16 && value <= FK_E4M3) return FK_OK;
    return fk_fail(err, FK_BAD_PROBLEM, "dtype is %d: must be 0 (fp16), 1 (bf16), 2 (fp32) or 3 (e4m3)", value);
}

/* Copies take 16 bytes at a time, which are 16 of its elements; and gradients of it would need a range of their own. */
static fk_status check_e4m3(const fk_problem *in, fk_error *err) {
    if (in->op != FK_FORWARD) return fk_fail(err, FK_BAD_PROBLEM, "op is bwd: must be fwd for dtype e4m3");
    const int dim_v = in->head_dim_v ? in->head_dim_v : in->head_dim;
    const bool of_q = in->head_dim % 16 != 0;
    if (!of_q && dim_v % 16 == 0) return FK_OK;
    return fk_fail(err, FK_BAD_PROBLEM, "%s is %d: must be a multiple of 16 for dtype e4m3",
                   of_q ? "head_dim" : "head_dim_v", of_q ? in->head_dim : dim_v);
}

static fk_status check_kv_e4m3(const fk_problem *in, fk_error *err) {
    const fk_status status = check_choice("kv_e4m3", in->kv_e4m3, "0 or 1", err);
    if (status != FK_OK || !in->kv_e4m3) return status;
    if (in->op != FK_FORWARD) return fk_fail(err, FK_BAD_PROBLEM, "kv_e4m3 is 1: must be 0 for bwd");
    if (in->dtype != FK_FP16 && in->dtype != FK_BF16) {
        return fk_fail(err, FK_BAD_PROBLEM, "kv_e4m3 is 1: must be 0 for dtype %s: fp16 and bf16 have it",
                       fk_dtype_name(in->dtype));
    }
    if (in->fast) return fk_fail(err, FK_BAD_PROBLEM, "fast is 1: must be 0 with kv_e4m3");
    return FK_OK;
}

/* Of e4m3 row sums are those of the weights that are multiplied, of which dropout leaves too few; weights of fp16 have
 * not the range for it. */
static fk_status check_fast(const fk_problem *in, fk_error *err) {
    const fk_status status = check_choice("fast", in->fast, "0 or 1", err);
    if (status != FK_OK || !in->fast) return status;
    if (in->op != FK_FORWARD) return fk_fail(err, FK_BAD_PROBLEM, "fast is 1: must be 0 for bwd");
    if (in->dtype != FK_E4M3 && in->dtype != FK_BF16) {
        return fk_fail(err, FK_BAD_PROBLEM, "fast is 1: must be 0 for dtype %s: bf16 and e4m3 have it",
                       fk_dtype_name(in->dtype));
    }
    if (in->dtype == FK_E4M3 && in->dropout)
        return fk_fail(err, FK_BAD_PROBLEM, "fast is 1: must be 0 with dropout for dtype e4m3");
    return FK_OK;
}

/* Values of 8 bits have a scale of their own, or are brought into columns. */
static fk_status check_latent(const fk_problem *in, int head_dim_v, fk_error *err) {
    const fk_status status = check_choice("latent", in->latent, "0 or 1", err);
    if (status != FK_OK || !in->latent) return status;
    if (in->op != FK_FORWARD) return fk_fail(err, FK_BAD_PROBLEM, "latent is 1: must be 0 for bwd");
    if (in->dtype == FK_E4M3 || in->kv_e4m3)
        return fk_fail(err, FK_BAD_PROBLEM, "latent is 1: must be 0 for keys and values of e4m3");
    if (head_dim_v <= in->head_dim) return FK_OK;
    return fk_fail(err, FK_BAD_PROBLEM, "head_dim_v is %d: must be at most head_dim, %d, with latent", head_dim_v,
                   in->head_dim);
}

static fk_status check_count(const char *field, int32_t value, int32_t limit, fk_error *err) {
    if (value >= 0 && value <= limit) return FK_OK;
    return fk_fail(err, FK_BAD_PROBLEM, "%s is %d: must be from 0 to %d", field, value, limit);
}

static fk_status check_fields(const fk_problem *in, fk_error *err) {
    if (in->struct_size != sizeof *in) {
        return fk_fail(err, FK_BAD_ARGUMENT, "fk_problem.struct_size is %zu: must be %zu, as FK_PROBLEM_INIT sets it",
                       in->struct_size, sizeof *in);
    }
    fk_status status = check_choice("op", in->op, "0 (forward) or 1 (backward)", err);
    if (status == FK_OK) status = check_choice("deterministic", in->deterministic, "0 or 1", err);
    if (status == FK_OK && in->deterministic && in->op == FK_FORWARD) {
        status = fk_fail(err, FK_BAD_PROBLEM, "deterministic is 1: must be 0 for fwd, which always is");
    }
    if (status == FK_OK) status = check_choice("split", in->split, "0 or 1", err);
    if (status == FK_OK) status = check_paged(in->paged, err);
    if (status == FK_OK && in->op == FK_BACKWARD && (in->split || in->paged)) {
        status = fk_fail(err, FK_BAD_PROBLEM, "%s is %d: must be 0 for bwd", in->split ? "split" : "paged",
                         in->split ? in->split : in->paged);
    }
    if (status == FK_OK) status = check_dtype(in->dtype, err);
    if (status == FK_OK) status = check_choice("gqa", in->gqa, "0 or 1", err);
    if (status == FK_OK) status = check_choice("dropout", in->dropout, "0 or 1", err);
    if (status == FK_OK) status = check_choice("packed", in->packed, "0 or 1", err);
    if (status == FK_OK) status = check_choice("seqused_k", in->seqused_k, "0 or 1", err);
    if (status == FK_OK) status = check_choice("align", in->align, "0 (bottom-right) or 1 (top-left)", err);
    if (status == FK_OK) status = fk_problem_check_head_dim("head_dim", in->head_dim, FK_MAX_HEAD_DIM, err);
    const int head_dim_v = in->head_dim_v ? in->head_dim_v : in->head_dim;
    if (status == FK_OK) status = fk_problem_check_head_dim("head_dim_v", head_dim_v, FK_MAX_HEAD_DIM_V, err);
    if (status == FK_OK && in->dtype == FK_E4M3) status = check_e4m3(in, err);
    if (status == FK_OK) status = check_kv_e4m3(in, err);
    if (status == FK_OK) status = check_fast(in, err);
    if (status == FK_OK) status = check_latent(in, head_dim_v, err);
    if (status == FK_OK) status = check_count("num_masks", in->num_masks, FK_MAX_MASKS, err);
    if (status == FK_OK) status = check_count("num_scores", in->num_scores, FK_MAX_SCORES, err);
    if (status == FK_OK) status = check_count("num_arrays", in->num_arrays, FK_MAX_ARRAYS, err);
    return status;
}

/* ---- terms ---- */

/* A mask or a score as its public struct has it. */
typedef struct term {
    fk_term_kind kind;
    const char *name, *expr;
    int num_values;
} term;

/* What canonicalisation needs of all terms at once. */
typedef struct checker {
    fk_lua *lua; /* null until a term is named, and where there is no Lua */
    fk_array_list arrays;
    bool plain_scores; /* bf16 `fast`: a score is its weight's logarithm, with no room for terms but sinks */
} checker;

/* Text ends, and values fit: what must hold before the term is looked at. */
static fk_status check_text(const term *t, fk_error *err) {
    const char *kind = fk_term_kind_name(t->kind);
    if (!memchr(t->name, 0, sizeof((fk_mask *)0)->name) || !memchr(t->expr, 0, FK_MAX_EXPR)) {
        return fk_fail(err, FK_BAD_PROBLEM, "name (%zu bytes) and expr (%d) of a %s must end with a zero",
                       sizeof((fk_mask *)0)->name, FK_MAX_EXPR, kind);
    }
    const int most = t->kind == FK_TERM_SCORE ? FK_MAX_SCORE_VALUES : FK_MAX_MASK_VALUES;
    if (t->num_values >= 0 && t->num_values <= most) return FK_OK;
    return fk_fail(err, FK_BAD_PROBLEM, "num_values is %d: must be from 0 to %d", t->num_values, most);
}

static fk_status check_term(const term *t, fk_error *err) {
    const char *kind = fk_term_kind_name(t->kind);
    if (!t->name[0] == !t->expr[0]) {
        return fk_fail(err, FK_BAD_PROBLEM, "a %s has %s: must have one of them", kind,
                       t->name[0] ? "both name and expr" : "neither name nor expr");
    }
    if (t->expr[0] && t->kind == FK_TERM_MASK && t->num_values != 0) {
        return fk_fail(err, FK_BAD_PROBLEM,
                       "num_values of a keep mask is %d: must be 0, or 2 (the rows and columns of its blocks)",
                       t->num_values);
    }
    if (t->expr[0] && t->kind == FK_TERM_SCORE && t->num_values != 0)
        return fk_fail(err, FK_BAD_PROBLEM, "num_values of a score expression is %d: must be 0", t->num_values);
    return FK_OK;
}

/* The file of a named term, whose arrays join the list. */
static fk_status load_file(checker *c, const term *t, fk_term_file *file, fk_error *err) {
    fk_status status = c->lua ? FK_OK : fk_term_lua_open(NULL, &c->lua, err);
    if (status == FK_OK) status = fk_term_file_load(c->lua, t->kind, t->name, file, err);
    for (int i = 0; status == FK_OK && i < file->num_arrays; ++i)
        status = fk_array_list_join(&c->arrays, &file->array[i], err);
    if (status != FK_OK || fk_term_takes(t->kind, file, t->num_values)) return status;
    const int blocks = t->kind == FK_TERM_PATTERN ? 2 : 0;
    char params[32 + FK_MAX_TERM_VALUES * 48] = "";
    size_t used = (size_t)snprintf(params, sizeof params, "%s", blocks ? "rows,columns" : "");
    for (int i = 0; i < file->num_params; ++i) {
        const fk_term_param *param = &file->param[i];
        used += (size_t)snprintf(params + used, sizeof params - used, "%s%s", used ? "," : "", param->name);
        if (param->has_default) used += (size_t)snprintf(params + used, sizeof params - used, "=%d", param->otherwise);
    }
    const int most = blocks + file->num_params;
    int least = most;
    while (least > blocks && fk_term_takes(t->kind, file, least - 1))
        --least;
    char range[32];
    snprintf(range, sizeof range, least < most ? "from %d to %d" : "%d", least, most);
    return fk_fail(err, FK_BAD_PROBLEM, "%s %s has %d values: must be %s (%s)", fk_term_kind_name(t->kind), t->name,
                   t->num_values, range, used ? params : "none");
}

/* An expression printed back: equal expressions become equal bytes. `out` has room for FK_MAX_EXPR. */
static fk_status canonical_expr(const term *t, const fk_array_list *arrays, char *out, fk_error *err) {
    fk_expr_pool *pool = fk_expr_pool_create();
    if (!pool) return fk_fail(err, FK_NO_MEMORY, "no memory for an expression");
    const fk_expr *e;
    char *text = NULL;
    fk_status status = fk_term_parse(pool, t->kind, t->expr, NULL, arrays, &e, err);
    if (status == FK_OK) status = fk_expr_print(e, FK_EXPR_C, &text, err);
    if (status == FK_OK && strlen(text) >= FK_MAX_EXPR) {
        status = fk_fail(err, FK_BAD_PROBLEM, "%s is %zu bytes long in canonical form: must be below %d",
                         t->kind == FK_TERM_SCORE  ? "score"
                         : t->kind == FK_TERM_MASK ? "keep"
                                                   : "block",
                         strlen(text), FK_MAX_EXPR);
    }
    if (status == FK_OK) memcpy(out, text, strlen(text));
    free(text);
    fk_expr_pool_destroy(pool);
    return status;
}

static term mask_term(const fk_mask *m) {
    return (term){fk_mask_kind(m), m->name, m->expr, m->num_values};
}
static term score_term(const fk_score *s) {
    return (term){FK_TERM_SCORE, s->name, s->expr, s->num_values};
}

/* Everything of a mask but its expression. Values that a pattern may leave out are left out. */
static fk_status canonical_mask(checker *c, const fk_mask *in, fk_mask *out, fk_error *err) {
    term t = {FK_TERM_MASK, in->name, in->expr, in->num_values};
    fk_term_file file = {.num_params = 0};
    fk_status status = check_text(&t, err);
    if (status == FK_OK) t = mask_term(in);
    if (status == FK_OK) status = check_term(&t, err);
    if (status == FK_OK && in->name[0]) status = load_file(c, &t, &file, err);
    const int blocks = t.kind == FK_TERM_PATTERN ? 2 : 0;
    for (int i = 0; status == FK_OK && i < in->num_values; ++i) {
        const int least = i < blocks ? 1 : file.param[i - blocks].least,
                  most = i < blocks ? FK_MAX_SEQLEN : file.param[i - blocks].most;
        out->value[i] = in->value[i];
        if (in->value[i] >= least && in->value[i] <= most) continue;
        status = fk_fail(err, FK_BAD_PROBLEM, "%s of %s %s is %d: must be from %d to %d",
                         i >= blocks ? file.param[i - blocks].name
                         : i == 0    ? "rows of blocks"
                                     : "columns of blocks",
                         fk_term_kind_name(t.kind), in->name[0] ? in->name : "expression", in->value[i], least, most);
    }
    out->num_values = in->num_values;
    while (status == FK_OK && out->num_values > blocks && file.param[out->num_values - blocks - 1].has_default &&
           out->value[out->num_values - 1] == file.param[out->num_values - blocks - 1].otherwise)
        out->value[--out->num_values] = 0;
    memcpy(out->name, in->name, strlen(in->name));
    return status;
}

/* Floats are what the device will see of them. */
static fk_status canonical_score(checker *c, const fk_score *in, fk_score *out, fk_error *err) {
    const term t = score_term(in);
    fk_term_file file;
    fk_status status = check_text(&t, err);
    if (status == FK_OK) status = check_term(&t, err);
    if (status == FK_OK && in->name[0]) status = load_file(c, &t, &file, err);
    if (status == FK_OK && c->plain_scores && (in->expr[0] || !file.is_sink)) {
        return fk_fail(err, FK_BAD_PROBLEM, "fast is 1: must be 0 for dtype bf16 with score %s",
                       in->expr[0] ? in->expr : in->name);
    }
    if (status != FK_OK || in->expr[0]) return status;
    for (int i = 0; status == FK_OK && i < in->num_values; ++i) {
        const bool is_float = file.param[i].is_float;
        const double value = is_float ? (double)(float)in->value[i] : in->value[i];
        const double limit = is_float ? (double)FLT_MAX : FK_MAX_SEQLEN;
        const bool good = fabs(value) <= limit && (is_float || value == trunc(value));
        if (good && (value != 0 || !file.param[i].nonzero)) {
            out->value[i] = value + 0.0; /* and no -0 */
            continue;
        }
        status = fk_fail(err, FK_BAD_PROBLEM, "%s of score %s is %g: must be %s from %g to %g%s", file.param[i].name,
                         in->name, in->value[i], is_float ? "a number" : "an integer", -limit, limit,
                         file.param[i].nonzero ? ", and not 0" : "");
    }
    out->num_values = in->num_values;
    memcpy(out->name, in->name, strlen(in->name));
    return status;
}

/* Only arrays of floats have gradients; that a score reads them is seen where its derivatives are made. */
static fk_status check_grad(const fk_problem *in, const fk_array_list *arrays, fk_error *err) {
    if (in->grad == 0) return FK_OK;
    if (in->op != FK_BACKWARD) return fk_fail(err, FK_BAD_PROBLEM, "grad is %d: must be 0 for fwd", in->grad);
    for (int i = 0; i < 32; ++i) {
        if (!((uint32_t)in->grad >> i & 1) || (i < arrays->count && fk_array_is_float(&arrays->decl[i]))) continue;
        return fk_fail(err, FK_BAD_PROBLEM, "grad names array %d: must be one of the %d arrays, of floats", i,
                       arrays->count);
    }
    return FK_OK;
}

/* Names first: expressions may read the arrays of any of them. */
static fk_status canonical_terms(checker *c, const fk_problem *in, fk_problem *out, int *bad_term, fk_error *err) {
    fk_status status = FK_OK;
    fk_array_decl array;
    for (int i = 0; status == FK_OK && i < in->num_arrays; ++i) {
        status = fk_array_check(&in->array[i], &array, err);
        if (status == FK_OK) status = fk_array_list_add(&c->arrays, &array, err);
    }
    out->num_arrays = c->arrays.count; /* what is declared twice is one array, or a problem had two spellings */
    memcpy(out->array, c->arrays.decl, (size_t)out->num_arrays * sizeof *out->array);
    for (int i = 0; status == FK_OK && i < in->num_scores; ++i) {
        status = canonical_score(c, &in->score[i], &out->score[i], err);
        if (status != FK_OK) *bad_term = i;
    }
    for (int i = 0; status == FK_OK && i < in->num_masks; ++i) {
        status = canonical_mask(c, &in->mask[i], &out->mask[i], err);
        if (status != FK_OK) *bad_term = FK_MAX_SCORES + i;
    }
    for (int i = 0; status == FK_OK && i < in->num_scores; ++i) {
        const term t = score_term(&in->score[i]);
        if (in->score[i].expr[0]) status = canonical_expr(&t, &c->arrays, out->score[i].expr, err);
    }
    for (int i = 0; status == FK_OK && i < in->num_masks; ++i) {
        const term t = mask_term(&in->mask[i]);
        if (in->mask[i].expr[0]) status = canonical_expr(&t, &c->arrays, out->mask[i].expr, err);
    }
    return status == FK_OK ? check_grad(in, &c->arrays, err) : status;
}

fk_status fk_problem_check(const fk_problem *in, fk_problem *out, int *bad_term, fk_error *err) {
    *bad_term = -1;
    fk_status status = check_fields(in, err);
    if (status != FK_OK) return status;
    fk_problem p;
    memset(&p, 0, sizeof p); /* padding too: problems are compared as bytes */
    p.struct_size = sizeof p;
    p.op = in->op;
    p.dtype = in->dtype;
    p.head_dim = in->head_dim;
    p.head_dim_v = in->head_dim_v ? in->head_dim_v : in->head_dim;
    p.gqa = in->gqa;
    p.align = in->align;
    p.deterministic = in->deterministic;
    p.grad = in->grad;
    p.dropout = in->dropout;
    p.packed = in->packed;
    p.seqused_k = in->seqused_k;
    p.split = in->split;
    p.paged = in->paged;
    p.latent = in->latent;
    p.kv_e4m3 = in->kv_e4m3;
    p.fast = in->fast;
    p.num_masks = in->num_masks;
    p.num_scores = in->num_scores;
    checker c = {.lua = NULL, .plain_scores = in->fast && in->dtype == FK_BF16};
    status = canonical_terms(&c, in, &p, bad_term, err);
    fk_lua_close(c.lua);
    if (status == FK_OK) memcpy(out, &p, sizeof p);
    return status;
}

fk_status fk_problem_normalise(const fk_problem *in, fk_problem *out, fk_error *err) {
    int bad_term;
    if (!in || !out) return fk_fail(err, FK_BAD_ARGUMENT, "%s is null", in ? "out" : "problem");
    return fk_problem_check(in, out, &bad_term, err);
}

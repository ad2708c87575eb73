/* The one-line spelling of a problem: a word for each thing asked, in any order after the op; written back in one
 * order only. Reading an error shows the spelling with a caret under the word at fault. */
#include "problem.h"
#include "term.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct reader {
    const char *text, *at;
    fk_problem p;
    bool has_dtype, has_align, has_head_dim, has_head_dim_v;
    const char *term_at[FK_MAX_SCORES + FK_MAX_MASKS]; /* in the order of fk_problem_check's bad_term */
    const char *grad_at[FK_MAX_ARRAYS];                /* names behind grad= */
    int num_grads;
    fk_error *err;
} reader;

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}
static bool is_word_end(char c) {
    return c == 0 || is_space(c);
}
static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* ---- errors ---- */

/* Appends the part of the spelling around `at`, and a caret below it. */
static void append_caret(fk_error *err, const char *text, const char *at) {
    enum { BEFORE = 60, WIDTH = 100 };
    const size_t column = (size_t)(at - text);
    const size_t first = column > BEFORE ? column - BEFORE : 0;
    const size_t used = strlen(err->text);
    char shown[WIDTH + 1];
    snprintf(shown, sizeof shown, "%s", text + first);
    for (char *c = shown; *c; ++c) {
        if ((unsigned char)*c < ' ') *c = ' ';
    }
    snprintf(err->text + used, sizeof err->text - used, "\n    %s\n    %*s", shown, (int)(column - first) + 1, "^");
}

static fk_status fail_at(reader *r, const char *at, const char *format, ...) __attribute__((format(printf, 3, 4)));
static fk_status fail_at(reader *r, const char *at, const char *format, ...) {
    char message[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    fk_fail(r->err, FK_BAD_PROBLEM, "%s", message);
    if (r->err) append_caret(r->err, r->text, at);
    return FK_BAD_PROBLEM;
}

static fk_status unknown_word(reader *r, const char *word) {
    char scores[512], masks[512], patterns[512], packs[512];
    int length = 0;
    while (length < 64 && !is_word_end(word[length]) && !strchr("(=\"", word[length]))
        ++length;
    fk_term_names(FK_TERM_SCORE, scores, sizeof scores);
    fk_term_names(FK_TERM_MASK, masks, sizeof masks);
    fk_term_names(FK_TERM_PATTERN, patterns, sizeof patterns);
    fk_term_missing(packs, sizeof packs);
    return fail_at(
        r, word,
        "unknown word \"%.*s\"; known: fp16 bf16 fp32 e4m3 dN dvN latent gqa packed seqused_k top-left bottom-right "
        "dropout deterministic split paged kv_e4m3 fast "
        "array=NAME:TYPE[...] grad=NAME; scores: score=\"...\"%s; masks: keep=\"...\"%s; "
        "patterns: blocks(ROWSxCOLUMNS)=\"...\"%s%s%s",
        length, word, scores, masks, patterns, *packs ? "; and a pack is not used: " : "", packs);
}

/* ---- reading ---- */

static void skip_space(reader *r) {
    while (is_space(*r->at))
        ++r->at;
}

static fk_status read_int(reader *r, int64_t low, int64_t high, const char *what, int32_t *out) {
    const char *start = r->at;
    char *end;
    errno = 0;
    const long long value = is_digit(start[*start == '-']) ? strtoll(start, &end, 10) : 0;
    if (!is_digit(start[*start == '-'])) return fail_at(r, start, "%s: expected an integer", what);
    if (errno == ERANGE || value < low || value > high) {
        return fail_at(r, start, "%s is %.*s: must be from %lld to %lld", what,
                       (int)(end - start > 24 ? 24 : end - start), start, (long long)low, (long long)high);
    }
    r->at = end;
    *out = (int32_t)value;
    return FK_OK;
}

/* d128 or dv128. */
static fk_status read_head_dim(reader *r, const char *field, int most, bool *has, int32_t *out) {
    const char *word = r->at;
    if (*has) return fail_at(r, word, "%s is given twice", field);
    *has = true;
    r->at += strcspn(word, "0123456789");
    int32_t value = 0;
    fk_status status = read_int(r, 0, INT32_MAX, field, &value);
    if (status != FK_OK) return status;
    if (!is_word_end(*r->at)) return unknown_word(r, word);
    fk_error inner;
    if (fk_problem_check_head_dim(field, value, most, &inner) != FK_OK) return fail_at(r, word, "%s", inner.text);
    *out = value;
    return FK_OK;
}

/* ---- terms: keep="...", score="...", window(1024, 0), softcap(30) ---- */

/* "..." into `expr`, r->at at the opening quote. */
static fk_status read_quoted(reader *r, const char *what, char expr[FK_MAX_EXPR]) {
    if (*r->at != '"') return fail_at(r, r->at, "%s: expected an expression in double quotes", what);
    const char *start = r->at + 1, *end = strchr(start, '"');
    if (!end) return fail_at(r, r->at, "%s: the quote is not closed", what);
    if (end == start) return fail_at(r, r->at, "%s is empty", what);
    if (end - start >= FK_MAX_EXPR) {
        return fail_at(r, start, "%s is %d bytes long: must be below %d", what, (int)(end - start), FK_MAX_EXPR);
    }
    memcpy(expr, start, (size_t)(end - start));
    r->at = end + 1;
    return is_word_end(*r->at) ? FK_OK : fail_at(r, r->at, "expected a space after %s=\"...\"", what);
}

/* And no sum: signs stand in front, or behind an exponent's e. */
static bool is_one_number(const char *text) {
    for (size_t i = 1; text[0] && text[i]; i++)
        if (strchr("+-", text[i]) && !strchr("eE", text[i - 1])) return false;
    return true;
}

/* A number as expressions have it, with a sign; no locale reaches it. */
static fk_status read_number(reader *r, const char *what, double *out) {
    char text[48];
    const char *start = r->at;
    const size_t length = strspn(start, "0123456789.+-eE");
    fk_expr_pool *pool = fk_expr_pool_create();
    if (!pool) return fk_fail(r->err, FK_NO_MEMORY, "no memory for a number");
    snprintf(text, sizeof text, "%.*s", (int)(length < sizeof text ? length : 0), start);
    const fk_expr *e;
    const bool good = is_one_number(text) && fk_expr_parse(pool, text, NULL, 0, &e, NULL) == FK_OK;
    if (good) *out = fk_expr_eval(e, &(fk_expr_env){0});
    fk_expr_pool_destroy(pool);
    if (!good) return fail_at(r, start, "%s: expected a number", what);
    r->at = start + length;
    return FK_OK;
}

/* "(1, 2)", perhaps, or what is left of it; the i'th value is read into ints[i] or numbers[i]. */
static fk_status read_values(reader *r, const char *name, int most, int32_t *count, int32_t *ints, double *numbers) {
    if (is_word_end(*r->at) || !strchr("(,)", *r->at)) return FK_OK;
    for (bool more = *r->at != ')'; more; more = *r->at == ',') {
        if (*count == most) return fail_at(r, r->at, "%s has more than %d values", name, most);
        ++r->at;
        skip_space(r);
        const fk_status status = ints ? read_int(r, -FK_MAX_SEQLEN, FK_MAX_SEQLEN, name, &ints[*count])
                                      : read_number(r, name, &numbers[*count]);
        if (status != FK_OK) return status;
        ++*count;
        skip_space(r);
    }
    if (*r->at != ')') return fail_at(r, r->at, "%s: expected , or )", name);
    ++r->at;
    return is_word_end(*r->at) ? FK_OK : fail_at(r, r->at, "expected a space after )");
}

/* "(64x128", or "(128" of square blocks; r->at is at a comma or a parenthesis then. */
static fk_status read_block_size(reader *r, const char *name, fk_mask *mask) {
    if (*r->at != '(') return fail_at(r, r->at, "%s: expected the size of its blocks, such as %s(128)", name, name);
    for (mask->num_values = 0; mask->num_values < 2;) {
        ++r->at;
        skip_space(r);
        const fk_status status = read_int(r, 1, FK_MAX_SEQLEN, name, &mask->value[mask->num_values++]);
        if (status != FK_OK) return status;
        skip_space(r);
        if (*r->at != 'x') break;
    }
    if (mask->num_values == 1) mask->value[mask->num_values++] = mask->value[0];
    return *r->at == ',' || *r->at == ')' ? FK_OK : fail_at(r, r->at, "%s: expected , or )", name);
}

/* butterfly(128,4) behind the name, or blocks(64x128)="..." when length is 0. */
static fk_status read_pattern(reader *r, const char *word, size_t length) {
    if (r->p.num_masks == FK_MAX_MASKS) return fail_at(r, word, "more than %d masks", FK_MAX_MASKS);
    r->term_at[FK_MAX_SCORES + r->p.num_masks] = word;
    fk_mask *mask = &r->p.mask[r->p.num_masks++];
    memcpy(mask->name, word, length);
    fk_status status = read_block_size(r, length ? mask->name : "blocks", mask);
    if (status != FK_OK) return status;
    if (length) return read_values(r, mask->name, FK_MAX_MASK_VALUES, &mask->num_values, mask->value, NULL);
    if (r->at[0] != ')' || r->at[1] != '=') return fail_at(r, r->at, "blocks: expected )=\"...\"");
    r->at += 2;
    return read_quoted(r, "blocks", mask->expr);
}

/* r->at behind the name, or behind keep= when length is 0. */
static fk_status read_mask(reader *r, const char *word, size_t length) {
    if (r->p.num_masks == FK_MAX_MASKS) return fail_at(r, word, "more than %d masks", FK_MAX_MASKS);
    r->term_at[FK_MAX_SCORES + r->p.num_masks] = word;
    fk_mask *mask = &r->p.mask[r->p.num_masks++];
    if (length == 0) return read_quoted(r, "keep", mask->expr);
    if (length >= sizeof mask->name) return unknown_word(r, word);
    memcpy(mask->name, word, length);
    return read_values(r, mask->name, FK_MAX_MASK_PARAMS, &mask->num_values, mask->value, NULL);
}

/* "(16)", perhaps: what page sizes are a multiple of. r->at is behind the name. */
static fk_status read_paged(reader *r, const char *word) {
    int32_t count = 0, rows = 0;
    if (r->p.paged) return fail_at(r, word, "paged is given twice");
    const fk_status status = read_values(r, "paged", 1, &count, &rows, NULL);
    r->p.paged = count ? rows : 1;
    return status;
}

static fk_status read_score(reader *r, const char *word, size_t length) {
    if (r->p.num_scores == FK_MAX_SCORES) return fail_at(r, word, "more than %d scores", FK_MAX_SCORES);
    r->term_at[r->p.num_scores] = word;
    fk_score *score = &r->p.score[r->p.num_scores++];
    if (length == 0) return read_quoted(r, "score", score->expr);
    if (length >= sizeof score->name) return unknown_word(r, word);
    memcpy(score->name, word, length);
    return read_values(r, score->name, FK_MAX_SCORE_VALUES, &score->num_values, NULL, score->value);
}

/* ---- arrays ---- */

/* slope:float[h], r->at at the name */
static fk_status read_array(reader *r, const char *word) {
    char message[160];
    if (r->p.num_arrays == FK_MAX_ARRAYS) return fail_at(r, word, "more than %d arrays", FK_MAX_ARRAYS);
    fk_array_decl *array = &r->p.array[r->p.num_arrays++];
    const size_t length = strcspn(r->at, ": \t\r\n");
    if (length == 0 || length >= sizeof array->name || r->at[length] != ':')
        return fail_at(r, r->at, "array: expected NAME:TYPE[...], such as slope:float[h]");
    memcpy(array->name, r->at, length);
    r->at += length + 1;
    const char *end = fk_array_read_type(r->at, array, message);
    if (!end) return fail_at(r, r->at, "array %s: %s", array->name, message);
    r->at = end;
    return is_word_end(*end) ? FK_OK : fail_at(r, end, "array %s: expected a space after its type", array->name);
}

/* A name, r->at at it; whose array it is shows when all words are read. */
static fk_status read_grad(reader *r, const char *word) {
    if (r->p.op == FK_FORWARD) return fail_at(r, word, "grad is a word of bwd");
    if (r->num_grads == FK_MAX_ARRAYS) return fail_at(r, word, "more than %d gradients", FK_MAX_ARRAYS);
    r->grad_at[r->num_grads++] = r->at;
    while (!is_word_end(*r->at))
        ++r->at;
    return FK_OK;
}

static fk_status resolve_grads(reader *r, const fk_problem *canonical) {
    fk_array_list arrays;
    fk_status status = r->num_grads ? fk_problem_list_arrays(canonical, &arrays, r->err) : FK_OK;
    for (int i = 0; i < r->num_grads && status == FK_OK; ++i) {
        char name[32];
        const size_t length = strcspn(r->grad_at[i], " \t\r\n");
        snprintf(name, sizeof name, "%.*s", (int)(length < sizeof name ? length : 0), r->grad_at[i]);
        const int found = fk_array_list_find(&arrays, name);
        if (found < 0) return fail_at(r, r->grad_at[i], "grad=%s: the problem has no such array", name);
        if (!fk_array_is_float(&arrays.decl[found]))
            return fail_at(r, r->grad_at[i], "grad=%s: only arrays of floats have gradients", name);
        r->p.grad |= 1 << found;
    }
    return status;
}

/* ---- words ---- */

static bool is_word(const char *word, size_t length, const char *wanted) {
    return strlen(wanted) == length && memcmp(word, wanted, length) == 0;
}

static fk_status set_once(reader *r, const char *word, const char *field, bool *has, int32_t *out, int32_t value) {
    if (*has) return fail_at(r, word, "%s is given twice", field);
    *has = true;
    *out = value;
    return FK_OK;
}

static fk_status read_word(reader *r) {
    const char *word = r->at;
    const size_t length = strcspn(word, " \t\r\n(=\"");
    if (word[0] == 'd' && is_digit(word[1])) {
        return read_head_dim(r, "head_dim", FK_MAX_HEAD_DIM, &r->has_head_dim, &r->p.head_dim);
    }
    if (word[0] == 'd' && word[1] == 'v' && is_digit(word[2])) {
        return read_head_dim(r, "head_dim_v", FK_MAX_HEAD_DIM_V, &r->has_head_dim_v, &r->p.head_dim_v);
    }
    r->at = word + length;
    if (*r->at == '=') {
        ++r->at;
        if (is_word(word, length, "keep")) return read_mask(r, word, 0);
        if (is_word(word, length, "score")) return read_score(r, word, 0);
        if (is_word(word, length, "array")) return read_array(r, word);
        if (is_word(word, length, "grad")) return read_grad(r, word);
        return unknown_word(r, word);
    }
    if (is_word_end(*r->at)) {
        bool has_gqa = r->p.gqa != 0, has_deterministic = r->p.deterministic != 0;
        bool has_packed = r->p.packed != 0, has_used = r->p.seqused_k != 0;
        bool has_dropout = r->p.dropout != 0, has_split = r->p.split != 0, has_fast = r->p.fast != 0;
        bool has_kv_e4m3 = r->p.kv_e4m3 != 0, has_latent = r->p.latent != 0;
        if (is_word(word, length, "fp16")) return set_once(r, word, "dtype", &r->has_dtype, &r->p.dtype, FK_FP16);
        if (is_word(word, length, "bf16")) return set_once(r, word, "dtype", &r->has_dtype, &r->p.dtype, FK_BF16);
        if (is_word(word, length, "fp32")) return set_once(r, word, "dtype", &r->has_dtype, &r->p.dtype, FK_FP32);
        if (is_word(word, length, "e4m3")) return set_once(r, word, "dtype", &r->has_dtype, &r->p.dtype, FK_E4M3);
        if (is_word(word, length, "kv_e4m3")) return set_once(r, word, "kv_e4m3", &has_kv_e4m3, &r->p.kv_e4m3, 1);
        if (is_word(word, length, "latent")) return set_once(r, word, "latent", &has_latent, &r->p.latent, 1);
        if (is_word(word, length, "gqa")) return set_once(r, word, "gqa", &has_gqa, &r->p.gqa, 1);
        if (is_word(word, length, "packed")) return set_once(r, word, "packed", &has_packed, &r->p.packed, 1);
        if (is_word(word, length, "seqused_k")) return set_once(r, word, "seqused_k", &has_used, &r->p.seqused_k, 1);
        if (is_word(word, length, "dropout")) return set_once(r, word, "dropout", &has_dropout, &r->p.dropout, 1);
        if (is_word(word, length, "deterministic")) {
            if (r->p.op == FK_FORWARD) return fail_at(r, word, "deterministic is a word of bwd: fwd always is");
            return set_once(r, word, "deterministic", &has_deterministic, &r->p.deterministic, 1);
        }
        if (is_word(word, length, "split")) return set_once(r, word, "split", &has_split, &r->p.split, 1);
        if (is_word(word, length, "fast")) return set_once(r, word, "fast", &has_fast, &r->p.fast, 1);
        if (is_word(word, length, "top-left")) {
            return set_once(r, word, "alignment", &r->has_align, &r->p.align, FK_TOP_LEFT);
        }
        if (is_word(word, length, "bottom-right")) {
            return set_once(r, word, "alignment", &r->has_align, &r->p.align, FK_BOTTOM_RIGHT);
        }
    }
    if (is_word(word, length, "paged")) return read_paged(r, word);
    fk_term_kind kind;
    const bool is_term = fk_term_find(word, length, &kind);
    if (is_term && kind == FK_TERM_SCORE) return read_score(r, word, length);
    if (is_term && kind == FK_TERM_MASK) return read_mask(r, word, length);
    if (is_word(word, length, "blocks")) return read_pattern(r, word, 0);
    return is_term ? read_pattern(r, word, length) : unknown_word(r, word);
}

fk_status fk_problem_read(const char *spelling, fk_problem *out, fk_error *err) {
    if (!spelling || !out) return fk_fail(err, FK_BAD_ARGUMENT, "%s is null", spelling ? "out" : "spelling");
    reader r = {.text = spelling, .at = spelling, .p = FK_PROBLEM_INIT, .err = err};
    if (strlen(spelling) >= FK_MAX_SPELLING) {
        return fk_fail(err, FK_BAD_PROBLEM, "the spelling is %zu bytes long: must be below %d", strlen(spelling),
                       FK_MAX_SPELLING);
    }
    skip_space(&r);
    const bool forward = strncmp(r.at, "fwd", 3) == 0, backward = strncmp(r.at, "bwd", 3) == 0;
    if (!(forward || backward) || !is_word_end(r.at[3])) {
        return fail_at(&r, r.at, "a spelling starts with its op; known: fwd bwd");
    }
    r.p.op = backward ? FK_BACKWARD : FK_FORWARD;
    r.at += 3;
    for (skip_space(&r); *r.at; skip_space(&r)) {
        const fk_status status = read_word(&r);
        if (status != FK_OK) return status;
    }
    if (!r.has_dtype) return fail_at(&r, r.at, "dtype is missing: must be fp16, bf16, fp32 or e4m3");
    if (!r.has_head_dim) return fail_at(&r, r.at, "head_dim is missing: such as d128");
    int bad_term;
    fk_problem canonical;
    fk_status status = fk_problem_check(&r.p, &canonical, &bad_term, err);
    if (status == FK_OK) status = resolve_grads(&r, &canonical);
    if (status == FK_OK && r.num_grads) status = fk_problem_check(&r.p, &canonical, &bad_term, err);
    if (status == FK_OK) memcpy(out, &canonical, sizeof canonical);
    /* An expression shows a caret of its own. */
    const bool named = bad_term >= 0 && (bad_term < FK_MAX_SCORES ? r.p.score[bad_term].name[0]
                                                                  : r.p.mask[bad_term - FK_MAX_SCORES].name[0]);
    if (status == FK_BAD_PROBLEM && err && named) append_caret(err, spelling, r.term_at[bad_term]);
    return status;
}

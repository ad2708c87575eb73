/* The one-line spelling of a problem: a word for each thing asked, in any order after the op; written back in one
 * order only. Reading an error shows the spelling with a caret under the word at fault. */
#include "problem.h"
#include "problem_mask.h"

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
    const char *mask_at[FK_MAX_MASKS];
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
    char masks[512];
    int length = 0;
    while (length < 64 && !is_word_end(word[length]) && !strchr("(=\"", word[length]))
        ++length;
    fk_mask_names(masks, sizeof masks);
    return fail_at(r, word, "unknown word \"%.*s\"; known: fp16 bf16 dN dvN gqa top-left bottom-right keep=\"...\"%s",
                   length, word, masks);
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
static fk_status read_head_dim(reader *r, const char *field, bool *has, int32_t *out) {
    const char *word = r->at;
    if (*has) return fail_at(r, word, "%s is given twice", field);
    *has = true;
    r->at += strcspn(word, "0123456789");
    int32_t value = 0;
    fk_status status = read_int(r, 0, INT32_MAX, field, &value);
    if (status != FK_OK) return status;
    if (!is_word_end(*r->at)) return unknown_word(r, word);
    fk_error inner;
    if (fk_problem_check_head_dim(field, value, &inner) != FK_OK) return fail_at(r, word, "%s", inner.text);
    *out = value;
    return FK_OK;
}

/* Null: there are too many, and that has been said. */
static fk_mask *add_mask(reader *r, const char *at) {
    if (r->p.num_masks == FK_MAX_MASKS) {
        fail_at(r, at, "more than %d masks", FK_MAX_MASKS);
        return NULL;
    }
    r->mask_at[r->p.num_masks] = at;
    return &r->p.mask[r->p.num_masks++];
}

/* keep="...", r->at behind the = */
static fk_status read_keep(reader *r, const char *word) {
    fk_mask *mask = add_mask(r, word);
    if (!mask) return FK_BAD_PROBLEM;
    if (*r->at != '"') return fail_at(r, r->at, "keep: expected a predicate in double quotes");
    const char *start = r->at + 1, *end = strchr(start, '"');
    if (!end) return fail_at(r, r->at, "keep: the quote is not closed");
    if (end == start) return fail_at(r, r->at, "keep is empty");
    if (end - start >= FK_MAX_EXPR) {
        return fail_at(r, start, "keep is %d bytes long: must be below %d", (int)(end - start), FK_MAX_EXPR);
    }
    memcpy(mask->expr, start, (size_t)(end - start));
    r->at = end + 1;
    return is_word_end(*r->at) ? FK_OK : fail_at(r, r->at, "expected a space after keep=\"...\"");
}

/* window or window(1024, 0); r->at behind the name */
static fk_status read_mask(reader *r, const char *word) {
    fk_mask *mask = add_mask(r, word);
    if (!mask) return FK_BAD_PROBLEM;
    memcpy(mask->name, word, (size_t)(r->at - word)); /* fk_mask_exists knows no longer name */
    if (*r->at != '(') return FK_OK;
    do {
        if (mask->num_values == FK_MAX_MASK_VALUES) {
            return fail_at(r, r->at, "%s has more than %d values", mask->name, FK_MAX_MASK_VALUES);
        }
        ++r->at;
        skip_space(r);
        const fk_status status =
            read_int(r, -FK_MAX_SEQLEN, FK_MAX_SEQLEN, mask->name, &mask->value[mask->num_values++]);
        if (status != FK_OK) return status;
        skip_space(r);
    } while (*r->at == ',');
    if (*r->at != ')') return fail_at(r, r->at, "%s: expected , or )", mask->name);
    ++r->at;
    return is_word_end(*r->at) ? FK_OK : fail_at(r, r->at, "expected a space after )");
}

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
    if (word[0] == 'd' && is_digit(word[1])) return read_head_dim(r, "head_dim", &r->has_head_dim, &r->p.head_dim);
    if (word[0] == 'd' && word[1] == 'v' && is_digit(word[2])) {
        return read_head_dim(r, "head_dim_v", &r->has_head_dim_v, &r->p.head_dim_v);
    }
    r->at = word + length;
    if (is_word(word, length, "keep") && *r->at == '=') {
        ++r->at;
        return read_keep(r, word);
    }
    if (is_word_end(*r->at)) {
        bool has_gqa = r->p.gqa != 0;
        if (is_word(word, length, "fp16")) return set_once(r, word, "dtype", &r->has_dtype, &r->p.dtype, FK_FP16);
        if (is_word(word, length, "bf16")) return set_once(r, word, "dtype", &r->has_dtype, &r->p.dtype, FK_BF16);
        if (is_word(word, length, "gqa")) return set_once(r, word, "gqa", &has_gqa, &r->p.gqa, 1);
        if (is_word(word, length, "top-left")) {
            return set_once(r, word, "alignment", &r->has_align, &r->p.align, FK_TOP_LEFT);
        }
        if (is_word(word, length, "bottom-right")) {
            return set_once(r, word, "alignment", &r->has_align, &r->p.align, FK_BOTTOM_RIGHT);
        }
    }
    return fk_mask_exists(word, length) ? read_mask(r, word) : unknown_word(r, word);
}

fk_status fk_problem_read(const char *spelling, fk_problem *out, fk_error *err) {
    if (!spelling || !out) return fk_fail(err, FK_BAD_ARGUMENT, "%s is null", spelling ? "out" : "spelling");
    reader r = {.text = spelling, .at = spelling, .p = FK_PROBLEM_INIT, .err = err};
    if (strlen(spelling) >= FK_MAX_SPELLING) {
        return fk_fail(err, FK_BAD_PROBLEM, "the spelling is %zu bytes long: must be below %d", strlen(spelling),
                       FK_MAX_SPELLING);
    }
    skip_space(&r);
    if (strncmp(r.at, "fwd", 3) != 0 || !is_word_end(r.at[3])) {
        return fail_at(&r, r.at, "a spelling starts with its op; known: fwd");
    }
    r.at += 3;
    for (skip_space(&r); *r.at; skip_space(&r)) {
        const fk_status status = read_word(&r);
        if (status != FK_OK) return status;
    }
    if (!r.has_dtype) return fail_at(&r, r.at, "dtype is missing: must be fp16 or bf16");
    if (!r.has_head_dim) return fail_at(&r, r.at, "head_dim is missing: such as d128");
    int bad_mask;
    const fk_status status = fk_problem_check(&r.p, out, &bad_mask, err);
    /* A keep expression shows a caret of its own. */
    if (status == FK_BAD_PROBLEM && err && bad_mask >= 0 && r.p.mask[bad_mask].name[0]) {
        append_caret(err, spelling, r.mask_at[bad_mask]);
    }
    return status;
}

/* ---- writing ---- */

typedef struct writer {
    char text[FK_MAX_SPELLING];
    size_t used;
} writer;

static void put(writer *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(writer *w, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(w->text + w->used, sizeof w->text - w->used, format, args);
    va_end(args);
    w->used += n > 0 ? (size_t)n : 0;
}

/* Every problem fits a writer: four masks are at most four times FK_MAX_EXPR bytes. `mask`: print the names of its
 * params in place of the values. */
static void put_words(writer *w, const fk_problem *c, const fk_problem_mask *names) {
    put(w, "fwd %s d%d", c->dtype == FK_BF16 ? "bf16" : "fp16", c->head_dim);
    if (c->head_dim_v != c->head_dim) put(w, " dv%d", c->head_dim_v);
    if (c->gqa) put(w, " gqa");
    int slot = 0;
    for (int i = 0; i < c->num_masks; ++i) {
        const fk_mask *mask = &c->mask[i];
        if (mask->expr[0])
            put(w, " keep=\"%s\"", mask->expr);
        else
            put(w, " %s", mask->name);
        for (int j = 0; j < mask->num_values; ++j, ++slot) {
            put(w, "%c", j ? ',' : '(');
            if (names)
                put(w, "%s", names->param[slot].name);
            else
                put(w, "%d", mask->value[j]);
        }
        if (mask->num_values) put(w, ")");
    }
    if (c->align == FK_TOP_LEFT) put(w, " top-left");
}

fk_status fk_problem_write(const fk_problem *p, char *out, size_t size, fk_error *err) {
    fk_problem c;
    if (!out) return fk_fail(err, FK_BAD_ARGUMENT, "out is null");
    const fk_status status = fk_problem_normalise(p, &c, err);
    if (status != FK_OK) return status;
    writer w = {.used = 0};
    put_words(&w, &c, NULL);
    if (w.used >= size) {
        return fk_fail(err, FK_BAD_ARGUMENT, "size is %zu: this spelling needs %zu", size, w.used + 1);
    }
    memcpy(out, w.text, w.used + 1);
    return FK_OK;
}

void fk_problem_write_generic(const fk_problem *p, const fk_problem_mask *mask, char out[FK_MAX_SPELLING]) {
    writer w = {.used = 0};
    put_words(&w, p, mask);
    memcpy(out, w.text, w.used + 1);
}

/* A problem's canonical spelling, with the values of its terms or with their names. */
#include "problem.h"
#include "term.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct writer {
    char text[FK_MAX_SPELLING];
    size_t used;
    bool stars; /* in place of values */
} writer;

/* Every problem fits a writer: eight expressions of FK_MAX_EXPR bytes, eight declarations below 80 and eight names of
 * arrays leave a kilobyte for the rest. */
static void put(writer *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(writer *w, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(w->text + w->used, sizeof w->text - w->used, format, args);
    va_end(args);
    w->used += n > 0 ? (size_t)n : 0;
}

/* The fewest digits that read back as the same float, or int; whatever point the locale has becomes a dot. */
static void put_number(writer *w, double value) {
    const bool whole =
        value == rint(value) && fabs(value) <= FK_MAX_SEQLEN; /* may be an int, which no float stands for */
    char text[32];
    int digits = 1; /* enough for the integer part, so that 50 is not 5e+01 */
    for (double rest = value; fabs(value) < 1e9 && fabs(rest) >= 10; rest /= 10)
        ++digits;
    for (; digits <= 17; ++digits) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        const double read = strtod(text, NULL);
        if (read == value || (!whole && (double)(float)read == value)) break;
    }
    for (const char *c = text; *c;) {
        const size_t same = strspn(c, "0123456789+-e");
        put(w, "%.*s", (int)same, c);
        c += same;
        if (!*c) break;
        put(w, ".");
        c += strcspn(c, "0123456789+-e");
    }
}

static void put_array(writer *w, const fk_array_decl *array) {
    char type[FK_ARRAY_TYPE_SIZE];
    fk_array_write_type(array, type);
    put(w, " array=%s:%s", array->name, type);
}

/* "name(value,value)"; `names`: those of the values, to be printed in place of them, or null. */
static void put_scores(writer *w, const fk_problem *c, const fk_score_param *names) {
    for (int i = 0; i < c->num_scores; ++i) {
        const fk_score *score = &c->score[i];
        if (score->expr[0])
            put(w, " score=\"%s\"", score->expr);
        else
            put(w, " %s", score->name);
        for (int j = 0; j < score->num_values; ++j) {
            put(w, "%c", j ? ',' : '(');
            if (names)
                put(w, "%s", (names++)->name);
            else if (w->stars)
                put(w, "*");
            else
                put_number(w, score->value[j]);
        }
        if (score->num_values) put(w, ")");
    }
}

/* "butterfly(128,4)", "blocks(64x128)=..." */
static void put_pattern(writer *w, const fk_mask *mask) {
    put(w, " %s(%d", mask->name[0] ? mask->name : "blocks", mask->value[0]);
    if (mask->value[1] != mask->value[0]) put(w, "x%d", mask->value[1]);
    for (int i = 2; i < mask->num_values; ++i)
        put(w, ",%d", mask->value[i]);
    put(w, ")");
    if (mask->expr[0]) put(w, "=\"%s\"", mask->expr);
}

static void put_masks(writer *w, const fk_problem *c, const fk_mask_param *names) {
    for (int i = 0; i < c->num_masks; ++i) {
        const fk_mask *mask = &c->mask[i];
        if (fk_mask_kind(mask) == FK_TERM_PATTERN) {
            put_pattern(w, mask);
            continue;
        }
        if (mask->expr[0])
            put(w, " keep=\"%s\"", mask->expr);
        else
            put(w, " %s", mask->name);
        for (int j = 0; j < mask->num_values; ++j) {
            put(w, "%c", j ? ',' : '(');
            if (names)
                put(w, "%s", (names++)->name);
            else if (w->stars)
                put(w, "*");
            else
                put(w, "%d", mask->value[j]);
        }
        if (mask->num_values) put(w, ")");
    }
}

/* `arrays`: of the problem; needed for grad alone. */
static void put_words(writer *w, const fk_problem *c, const fk_array_list *arrays, const fk_problem_terms *terms) {
    put(w, "%s %s", c->op == FK_BACKWARD ? "bwd" : "fwd", fk_dtype_name(c->dtype));
    if (c->kv_e4m3) put(w, " kv_e4m3");
    put(w, " d%d", c->head_dim);
    if (c->head_dim_v != c->head_dim) put(w, " dv%d", c->head_dim_v);
    if (c->latent) put(w, " latent");
    if (c->gqa) put(w, " gqa");
    if (c->packed) put(w, " packed");
    if (c->seqused_k) put(w, " seqused_k");
    for (int i = 0; i < c->num_arrays; ++i)
        put_array(w, &c->array[i]);
    for (int i = 0; c->grad && i < arrays->count; ++i) {
        if (c->grad >> i & 1) put(w, " grad=%s", arrays->decl[i].name);
    }
    put_scores(w, c, terms ? terms->score.param : NULL);
    put_masks(w, c, terms ? terms->mask.param : NULL);
    if (c->align == FK_TOP_LEFT) put(w, " top-left");
    if (c->dropout) put(w, " dropout");
    if (c->deterministic) put(w, " deterministic");
    if (c->split) put(w, " split");
    if (c->fast) put(w, " fast");
    if (c->paged) put(w, c->paged > 1 ? " paged(%d)" : " paged", c->paged);
}

fk_status fk_problem_write(const fk_problem *p, char *out, size_t size, fk_error *err) {
    fk_problem c;
    fk_array_list arrays = {.count = 0};
    if (!out) return fk_fail(err, FK_BAD_ARGUMENT, "out is null");
    fk_status status = fk_problem_normalise(p, &c, err);
    if (status == FK_OK && c.grad) status = fk_problem_list_arrays(&c, &arrays, err);
    if (status != FK_OK) return status;
    writer w = {.used = 0};
    put_words(&w, &c, &arrays, NULL);
    if (w.used >= size) {
        return fk_fail(err, FK_BAD_ARGUMENT, "size is %zu: this spelling needs %zu", size, w.used + 1);
    }
    memcpy(out, w.text, w.used + 1);
    return FK_OK;
}

void fk_problem_write_generic(const fk_problem *p, const fk_problem_terms *terms, char out[FK_MAX_SPELLING]) {
    writer w = {.used = 0};
    put_words(&w, p, &terms->arrays, terms);
    memcpy(out, w.text, w.used + 1);
}

fk_status fk_problem_write_class(const fk_problem *p, char out[FK_MAX_SPELLING], fk_error *err) {
    fk_array_list arrays = {.count = 0};
    const fk_status status = p->grad ? fk_problem_list_arrays(p, &arrays, err) : FK_OK;
    if (status != FK_OK) return status;
    writer w = {.stars = true};
    put_words(&w, p, &arrays, NULL);
    memcpy(out, w.text, w.used + 1);
    return FK_OK;
}

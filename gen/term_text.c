/* A term's file as one line of text, and the lines that packs have brought: they stand in for files that are not here,
 * which without Lua are all. */
#include "term.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- one line ---- */

#define TOP_LEFT " top-left"
#define NONZERO "!=0"
#define PARAM_TYPE_SIZE 48 /* int=D<=M>=L, or float!=0, or an array's */

void fk_term_write(fk_term_kind kind, const char *name, const fk_term_file *file, char out[FK_TERM_TEXT]) {
    char type[FK_ARRAY_TYPE_SIZE];
    int used = snprintf(out, FK_TERM_TEXT, "%s %s", file->is_sink ? "sink" : fk_term_kind_name(kind), name);
    if (file->top_left) used += snprintf(out + used, FK_TERM_TEXT - (size_t)used, "%s", TOP_LEFT);
    for (int i = 0; i < file->num_params; ++i) {
        const fk_term_param *param = &file->param[i];
        used +=
            snprintf(out + used, FK_TERM_TEXT - (size_t)used, " %s:%s", param->name, param->is_float ? "float" : "int");
        if (param->has_default) used += snprintf(out + used, FK_TERM_TEXT - (size_t)used, "=%d", param->otherwise);
        if (param->most < FK_MAX_SEQLEN) used += snprintf(out + used, FK_TERM_TEXT - (size_t)used, "<=%d", param->most);
        if (param->least > -FK_MAX_SEQLEN)
            used += snprintf(out + used, FK_TERM_TEXT - (size_t)used, ">=%d", param->least);
        if (param->nonzero) used += snprintf(out + used, FK_TERM_TEXT - (size_t)used, NONZERO);
    }
    for (int i = 0; i < file->num_arrays; ++i) {
        fk_array_write_type(&file->array[i], type);
        used += snprintf(out + used, FK_TERM_TEXT - (size_t)used, " %s:%s", file->array[i].name, type);
    }
    snprintf(out + used, FK_TERM_TEXT - (size_t)used, " = %s", file->expr);
    for (char *c = out; *c; ++c) /* one line, however many the file breaks it into */
        if ((unsigned char)*c < ' ') *c = ' ';
}
_Static_assert(8 + 32 + sizeof TOP_LEFT + FK_MAX_TERM_VALUES * (33 + PARAM_TYPE_SIZE) +
                       FK_MAX_TERM_ARRAYS * (33 + FK_ARRAY_TYPE_SIZE) + 3 + FK_MAX_FILE_EXPR <
                   FK_TERM_TEXT,
               "the longest line must fit");

/* Copies the bytes up to a character of `ends`; null: more than `size` - 1, or none. */
static const char *take(const char *at, const char *ends, char *out, size_t size) {
    const size_t length = strcspn(at, ends);
    if (length < 1 || length >= size) return NULL;
    memcpy(out, at, length);
    out[length] = 0;
    return at + length;
}

/* What may follow the type of a score's. */
static void read_nonzero(char *type, fk_term_param *param) {
    const size_t size = strcspn(type, "!");
    param->nonzero = strcmp(type + size, NONZERO) == 0;
    if (param->nonzero) type[size] = 0;
}

/* And of a pattern's or a mask's: "=" its default, "<=" and ">=" its limits. Numbers written otherwise than
 * fk_term_write does are found by comparing lines. */
static void read_numbers(char *type, fk_term_param *param) {
    char *most = strstr(type, "<="), *least = strstr(type, ">="), *end = type + strcspn(type, "<>=");
    if (most) param->most = atoi(most + 2);
    if (least) param->least = atoi(least + 2);
    param->has_default = *end == '=';
    if (param->has_default) param->otherwise = atoi(end + 1);
    *end = 0;
}

/* "name:type" behind a space. */
static const char *read_param(const char *at, fk_term_kind kind, fk_term_file *out) {
    char name[32] = "", type[PARAM_TYPE_SIZE], message[160];
    at = take(at, ": =", name, sizeof name);
    if (!at || *at != ':') return NULL;
    at = take(at + 1, " ", type, sizeof type);
    if (!at) return NULL;
    if (strchr(type, '[')) {
        fk_array_decl array = {.rank = 0};
        memcpy(array.name, name, sizeof name);
        const char *end = fk_array_read_type(type, &array, message);
        if (!end || *end || out->num_arrays == FK_MAX_TERM_ARRAYS) return NULL;
        if (fk_array_check(&array, &out->array[out->num_arrays], NULL) != FK_OK) return NULL;
        ++out->num_arrays;
    } else {
        if (out->num_params == fk_term_max_params(kind) || !fk_is_identifier(name)) return NULL;
        fk_term_param *param = &out->param[out->num_params++];
        memcpy(param->name, name, sizeof name);
        param->least = -FK_MAX_SEQLEN, param->most = FK_MAX_SEQLEN;
        if (kind != FK_TERM_SCORE) read_numbers(type, param);
        if (kind == FK_TERM_SCORE) read_nonzero(type, param);
        if (kind == FK_TERM_MASK && param->has_default) return NULL;
        param->is_float = strcmp(type, "float") == 0;
    }
    return at;
}

fk_status fk_term_read(const char *line, fk_term_kind *kind, char name[32], fk_term_file *out, fk_error *err) {
    static const fk_term_kind kinds[] = {FK_TERM_MASK, FK_TERM_PATTERN, FK_TERM_SCORE};
    char word[8] = "", again[FK_TERM_TEXT];
    int i = 0;
    memset(out, 0, sizeof *out);
    const char *at = take(line, " ", word, sizeof word);
    while (i < 2 && strcmp(word, fk_term_kind_name(kinds[i])) != 0)
        ++i; /* a score, or a sink, else */
    *kind = kinds[i];
    out->is_sink = strcmp(word, "sink") == 0;
    if (at && *at == ' ') at = take(at + 1, " ", name, 32);
    out->top_left = at && *kind == FK_TERM_PATTERN && strncmp(at, TOP_LEFT, sizeof TOP_LEFT - 1) == 0;
    if (out->top_left) at += sizeof TOP_LEFT - 1;
    while (at && at[0] == ' ' && at[1] != '=')
        at = read_param(at + 1, *kind, out);
    if (at && strncmp(at, " = ", 3) == 0) at = take(at + 3, "\n", out->expr, sizeof out->expr);
    if (at) fk_term_write(*kind, name, out, again);
    if (at && strcmp(again, line) == 0) return FK_OK;
    return fk_fail(err, FK_BAD_PROBLEM, "\"%.200s\" declares no term", line);
}

/* ---- the lines of this process ---- */

typedef struct learnt {
    struct learnt *next;
    fk_term_kind kind;
    char name[32];
    fk_term_file file;
} learnt;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, lesson = PTHREAD_MUTEX_INITIALIZER;
static learnt *first;                               /* guarded by lock; never taken out */
static void (*teacher)(char *missing, size_t size); /* guarded by lesson; null once it was called */
static char missing[512];                           /* likewise */

static const learnt *find(fk_term_kind kind, const char *name, size_t length) {
    for (const learnt *l = first; l; l = l->next) {
        if (l->kind == kind && strlen(l->name) == length && memcmp(l->name, name, length) == 0) return l;
    }
    return NULL;
}

/* Under lock. Of any kind: a spelling's word is one term. */
static fk_status agree(const char *name, const char *line, bool *known, fk_error *err) {
    char other[FK_TERM_TEXT];
    const learnt *l = first;
    while (l && strcmp(l->name, name) != 0)
        l = l->next;
    *known = l != NULL;
    if (!l) return FK_OK;
    fk_term_write(l->kind, l->name, &l->file, other);
    if (strcmp(other, line) == 0) return FK_OK;
    return fk_fail(err, FK_CHECK_FAILED, "\"%.500s\" is \"%.500s\" by a pack that was opened before", line, other);
}

fk_status fk_term_agree_learnt(const char *name, const char *line, fk_error *err) {
    bool known;
    pthread_mutex_lock(&lock);
    const fk_status status = agree(name, line, &known, err);
    pthread_mutex_unlock(&lock);
    return status;
}

/* Adds the next line to `list`. */
static fk_status read_line(const char **at, learnt **list, fk_error *err) {
    char line[FK_TERM_TEXT];
    const size_t length = strcspn(*at, "\n");
    learnt *l = calloc(1, sizeof *l);
    if (!l) return fk_fail(err, FK_NO_MEMORY, "no memory for a term");
    snprintf(line, sizeof line, "%.*s", (int)length, *at);
    *at += length + ((*at)[length] == '\n');
    l->next = *list;
    *list = l;
    return fk_term_read(line, &l->kind, l->name, &l->file, err);
}

/* Under lock: moves to the learnt ones what is not among them, if all agree with them. */
static fk_status learn(learnt **list, fk_error *err) {
    char line[FK_TERM_TEXT];
    bool known;
    for (const learnt *l = *list; l; l = l->next) {
        fk_term_write(l->kind, l->name, &l->file, line);
        const fk_status status = agree(l->name, line, &known, err);
        if (status) return status;
    }
    for (learnt **at = list, *l; (l = *at);) {
        if (find(l->kind, l->name, strlen(l->name))) {
            at = &l->next;
        } else {
            *at = l->next;
            l->next = first;
            first = l;
        }
    }
    return FK_OK;
}

fk_status fk_term_learn(const char *lines, fk_error *err) {
    learnt *list = NULL;
    fk_status status = FK_OK;
    while (*lines && !status)
        status = read_line(&lines, &list, err);
    pthread_mutex_lock(&lock);
    if (!status) status = learn(&list, err);
    pthread_mutex_unlock(&lock);
    for (learnt *l = list, *next; l; l = next) {
        next = l->next;
        free(l);
    }
    return status;
}

static bool recall(fk_term_kind kind, const char *name, size_t length, fk_term_file *out) {
    pthread_mutex_lock(&lock);
    const learnt *l = find(kind, name, length);
    if (l && out) *out = l->file;
    pthread_mutex_unlock(&lock);
    return l != NULL;
}

bool fk_term_recall(fk_term_kind kind, const char *name, size_t length, fk_term_file *out) {
    if (recall(kind, name, length, out)) return true;
    pthread_mutex_lock(&lesson);
    if (teacher) teacher(missing, sizeof missing);
    teacher = NULL;
    pthread_mutex_unlock(&lesson);
    return recall(kind, name, length, out);
}

void fk_term_missing(char *out, size_t size) {
    pthread_mutex_lock(&lesson);
    snprintf(out, size, "%s", missing);
    pthread_mutex_unlock(&lesson);
}

void fk_term_set_teacher(void (*teach)(char *, size_t)) {
    pthread_mutex_lock(&lesson);
    teacher = teach;
    pthread_mutex_unlock(&lesson);
}

void fk_terms_hold(void) {
    pthread_mutex_lock(&lesson);
    pthread_mutex_lock(&lock);
}

void fk_terms_release(void) {
    pthread_mutex_unlock(&lock);
    pthread_mutex_unlock(&lesson);
}

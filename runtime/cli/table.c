#include "table.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

typedef struct cell {
    char *shown, *json;
} cell;

struct table {
    const table_column *columns;
    int num_columns;
    size_t *width; /* of each column, titles included */
    size_t count, capacity;
    cell *cells;
    bool failed;
};

table *table_create(const table_column *columns, int num_columns) {
    table *t = calloc(1, sizeof *t);
    if (t) t->width = calloc((size_t)num_columns, sizeof *t->width);
    if (!t || !t->width) {
        free(t);
        return NULL;
    }
    t->columns = columns;
    t->num_columns = num_columns;
    for (int c = 0; c < num_columns; c++)
        t->width[c] = columns[c].title ? strlen(columns[c].title) : 0;
    return t;
}

void table_destroy(table *t) {
    if (!t) return;
    for (size_t i = 0; i < t->count; i++) {
        free(t->cells[i].shown);
        free(t->cells[i].json);
    }
    free(t->cells);
    free(t->width);
    free(t);
}

/* Takes both texts. */
static void add(table *t, char *shown, char *json) {
    if (t && shown && json && t->count == t->capacity) {
        const size_t capacity = t->capacity ? 2 * t->capacity : 64;
        cell *cells = realloc(t->cells, capacity * sizeof *cells);
        if (cells) {
            t->cells = cells;
            t->capacity = capacity;
        }
    }
    if (!t || !shown || !json || t->count == t->capacity) {
        free(shown);
        free(json);
        if (t) t->failed = true;
        return;
    }
    size_t *width = &t->width[t->count % (size_t)t->num_columns];
    if (strlen(shown) > *width) *width = strlen(shown);
    t->cells[t->count++] = (cell){shown, json};
}

/* Bytes of the UTF-8 character at `c`; 0: there is none. */
static int utf8_length(const unsigned char *c) {
    const int length = *c < 0x80 ? 1 : *c < 0xc2 ? 0 : *c < 0xe0 ? 2 : *c < 0xf0 ? 3 : *c < 0xf5 ? 4 : 0;
    for (int i = 1; i < length; i++)
        if ((c[i] & 0xc0) != 0x80) return 0;
    const bool overlong = (c[0] == 0xe0 && c[1] < 0xa0) || (c[0] == 0xf0 && c[1] < 0x90);
    const bool surrogate = c[0] == 0xed && c[1] > 0x9f, beyond = c[0] == 0xf4 && c[1] > 0x8f;
    return overlong || surrogate || beyond ? 0 : length;
}

/* Paths may be any bytes, JSON is UTF-8: each byte that is none becomes U+FFFD. */
static char *json_string(const char *text) {
    char *out = malloc(6 * strlen(text) + 3), *p = out;
    if (!out) return NULL;
    *p++ = '"';
    for (const char *c = text; *c; c++) {
        const int length = utf8_length((const unsigned char *)c);
        if (*c == '"' || *c == '\\') {
            *p++ = '\\';
            *p++ = *c;
        } else if (*c == '\n') {
            *p++ = '\\';
            *p++ = 'n';
        } else if ((unsigned char)*c < 0x20) {
            p += sprintf(p, "\\u%04x", (unsigned)(unsigned char)*c);
        } else if (length) {
            p = mempcpy(p, c, (size_t)length);
            c += length - 1;
        } else {
            p += sprintf(p, "\\ufffd");
        }
    }
    *p++ = '"';
    *p = '\0';
    return out;
}

void table_text(table *t, const char *text) {
    add(t, strdup(text), json_string(text));
}

void table_bool(table *t, bool value, const char *text) {
    add(t, strdup(text), strdup(value ? "true" : "false"));
}

void table_number(table *t, double value, const char *format, ...) {
    char json[40] = "null", *shown = NULL;
    if (isfinite(value)) snprintf(json, sizeof json, "%.15g", value);
    va_list args;
    va_start(args, format);
    if (vasprintf(&shown, format, args) < 0) shown = NULL;
    va_end(args);
    add(t, shown, strdup(json));
}

static bool printable(const table *t) {
    return t && !t->failed && t->count % (size_t)t->num_columns == 0;
}

bool table_print(const table *t, FILE *out) {
    if (!printable(t)) return false;
    const size_t columns = (size_t)t->num_columns, rows = t->count / columns;
    for (size_t r = 0; r <= rows; r++) { /* row 0 is the titles */
        size_t pending = 0;              /* blanks owed; a line does not end with any */
        for (size_t c = 0; c < columns; c++) {
            if (!t->columns[c].title) continue;
            const char *text = r ? t->cells[(r - 1) * columns + c].shown : t->columns[c].title;
            const size_t blanks = t->width[c] - strlen(text);
            if (t->columns[c].right) pending += blanks;
            if (text[0]) {
                fprintf(out, "%*s%s", (int)pending, "", text);
                pending = 0;
            }
            pending += t->columns[c].right ? 2 : blanks + 2;
        }
        fputc('\n', out);
    }
    return !ferror(out);
}

static void print_object(const table *t, size_t row, FILE *out) {
    const size_t columns = (size_t)t->num_columns;
    const char *separator = "{";
    for (size_t c = 0; c < columns; c++) {
        if (!t->columns[c].key) continue;
        fprintf(out, "%s\"%s\": %s", separator, t->columns[c].key, t->cells[row * columns + c].json);
        separator = ", ";
    }
    fputc('}', out);
}

bool table_print_json(const table *t, FILE *out) {
    if (!printable(t)) return false;
    const size_t rows = t->count / (size_t)t->num_columns;
    fputc('[', out);
    for (size_t r = 0; r < rows; r++) {
        fputs(r ? ",\n " : "", out);
        print_object(t, r, out);
    }
    fputs("]\n", out);
    return !ferror(out);
}

bool table_print_json_object(const table *t, FILE *out) {
    if (!printable(t) || t->count == 0) return false;
    print_object(t, 0, out);
    fputc('\n', out);
    return !ferror(out);
}

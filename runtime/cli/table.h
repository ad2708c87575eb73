/* A table is filled cell by cell, row after row, and printed aligned for people or as JSON. Each cell keeps both forms,
 * so that "163 KB" can be 166912 in JSON. Memory that runs out is remembered and reported by the printing call. */
#ifndef FK_CLI_TABLE_H
#define FK_CLI_TABLE_H

#include <stdbool.h>
#include <stdio.h>

typedef struct table table;
typedef struct table_column {
    const char *title; /* NULL: in JSON only */
    const char *key;   /* of the JSON object; NULL: shown to people only */
    bool right;        /* aligned to the right */
} table_column;

/** `columns` must outlive the table. NULL: no memory; every call takes a NULL table. */
table *table_create(const table_column *columns, int num_columns);
void table_destroy(table *t);

void table_text(table *t, const char *text);
/** A number in JSON (null unless finite), and its text for people. */
void table_number(table *t, double value, const char *format, ...) __attribute__((format(printf, 3, 4)));
void table_bool(table *t, bool value, const char *text);

/** @return false: out of memory, or the stream failed */
bool table_print(const table *t, FILE *out);
bool table_print_json(const table *t, FILE *out);        /* an array of one object per row */
bool table_print_json_object(const table *t, FILE *out); /* the first row alone */

#endif

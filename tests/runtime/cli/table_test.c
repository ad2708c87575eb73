/* Tables: aligned for people without blanks at line ends, and JSON that keeps plain numbers. */
#include "runtime/cli/table.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const table_column columns[] = {
    {"name", "name", false}, {"smem", "smem_bytes", true}, {NULL, "hidden", false}, {"why", NULL, false}};

static table *sample(void) {
    table *t = table_create(columns, 4);
    table_text(t, "a\"b\\c\n\x01");
    table_number(t, 65536, "%d KB", 64);
    table_bool(t, true, "");
    table_text(t, "");
    table_text(t, "d");
    table_number(t, (double)NAN, "-");
    table_bool(t, false, "");
    table_text(t, "too large");
    return t;
}

static void expect(bool (*print)(const table *, FILE *), const table *t, const char *text) {
    char *out = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&out, &size);
    assert_true(print(t, file));
    assert_int_equal(fclose(file), 0);
    assert_string_equal(out, text);
    free(out);
}

static void both_forms(void **state) {
    (void)state;
    table *t = sample();
    expect(table_print, t,
           "name      smem  why\n"
           "a\"b\\c\n\x01  64 KB\n"
           "d            -  too large\n");
    expect(table_print_json, t,
           "[{\"name\": \"a\\\"b\\\\c\\n\\u0001\", \"smem_bytes\": 65536, \"hidden\": true},\n"
           " {\"name\": \"d\", \"smem_bytes\": null, \"hidden\": false}]\n");
    expect(table_print_json_object, t,
           "{\"name\": \"a\\\"b\\\\c\\n\\u0001\", \"smem_bytes\": 65536, \"hidden\": true}\n");
    table_destroy(t);
}

/* Bytes that are no UTF-8: one alone, cut short, overlong, a surrogate, beyond U+10FFFF. */
static void bytes_of_paths(void **state) {
    (void)state;
    static const table_column one[] = {{NULL, "path", false}};
    table *t = table_create(one, 1);
    table_text(t, "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80 \xff \xe2\x82 \xc0\xaf \xed\xa0\x80 \xf4\x90\x80\x80");
    expect(table_print_json_object, t,
           "{\"path\": \"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80 \\ufffd \\ufffd\\ufffd \\ufffd\\ufffd "
           "\\ufffd\\ufffd\\ufffd \\ufffd\\ufffd\\ufffd\\ufffd\"}\n");
    table_destroy(t);
}

static void no_rows(void **state) {
    (void)state;
    table *t = table_create(columns, 4);
    expect(table_print, t, "name  smem  why\n");
    expect(table_print_json, t, "[]\n");
    assert_false(table_print_json_object(t, stdout));
    table_destroy(t);
}

static void a_row_must_be_complete(void **state) {
    (void)state;
    table *t = table_create(columns, 4);
    table_text(t, "only one of four");
    assert_false(table_print(t, stdout));
    assert_false(table_print_json(t, stdout));
    table_destroy(t);
}

/* No memory for the table: its calls do nothing and printing says so. */
static void null_table(void **state) {
    (void)state;
    table_text(NULL, "x");
    table_number(NULL, 1, "%d", 1);
    assert_false(table_print(NULL, stdout));
    table_destroy(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_forms), cmocka_unit_test(bytes_of_paths),
        cmocka_unit_test(no_rows),    cmocka_unit_test(a_row_must_be_complete),
        cmocka_unit_test(null_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

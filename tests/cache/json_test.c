/* The reader of one JSON line: what it takes, what it refuses, and that nothing makes it read past the end. */
#include "fixture.h"

#include <locale.h>
#include <math.h>

#include "cache/json.h"

static char text[8];
static double number, numbers[3];
static const fk_json_field fields[] = {{"text", FK_JSON_TEXT, text, sizeof text, false},
                                       {"number", FK_JSON_NUMBER, &number, 1, false},
                                       {"numbers", FK_JSON_NUMBERS, numbers, 3, false},
                                       {"must", FK_JSON_NUMBER, &number, 1, true}};

/* Reads a copy that ends where its memory does, so that a sanitizer sees a step too far. */
static bool reads(const char *line, size_t num_fields) {
    const size_t size = strlen(line);
    char *copy = malloc(size ? size : 1);
    if (!copy) abort();
    memcpy(copy, line, size);
    const bool good = fk_json_read(copy, size, fields, num_fields);
    free(copy);
    return good;
}

static void takes_what_is_json(void **state) {
    (void)state;
    assert_true(reads("{}", 3));
    assert_true(reads(" {\t\"text\" : \"a\\\"b\\\\\" , \"number\":-12.5e-1}", 3));
    assert_string_equal(text, "a\"b\\");
    assert_true(fabs(number + 1.25) < 1e-15);
    assert_true(reads("{\"numbers\":[1,2.5,3e2],\"text\":\"\\u0041\"}", 3));
    assert_true(fabs(numbers[2] - 300) < 1e-12 && strcmp(text, "A") == 0);
    assert_true(reads("{\"numbers\":[7]}", 3) && fabs(numbers[0] - 7) < 1e-12 && isnan(numbers[1]));
    assert_true(reads("{\"numbers\":[]}", 3) && isnan(numbers[0]));
    assert_true(reads("{\"new\":{\"a\":[1,{\"b\":null}],\"c\":\"\\n\"},\"old\":[true,false],\"number\":1}", 3));
    assert_true(reads("{\"number\":123456789012345678901234567890}", 3) &&
                fabs(number / 1.2345678901234568e29 - 1) < 1e-15);
    assert_true(reads("{\"number\":0}", 3) && reads("{\"number\":-0.0}", 3) && reads("{\"number\":1e-400}", 3));
}

static void refuses_what_is_not(void **state) {
    (void)state;
    static const char *const bad[] = {"",
                                      "{",
                                      "}",
                                      "[]",
                                      "{}{}",
                                      "{} x",
                                      "{\"number\"}",
                                      "{\"number\":}",
                                      "{\"number\":1,}",
                                      "{,}",
                                      "{number:1}",
                                      "{\"number\":1 \"text\":\"\"}",
                                      "{\"number\":01}",
                                      "{\"number\":1.}",
                                      "{\"number\":.5}",
                                      "{\"number\":+1}",
                                      "{\"number\":1e}",
                                      "{\"number\":1e999}",
                                      "{\"number\":NaN}",
                                      "{\"number\":\"1\"}",
                                      "{\"number\":null}",
                                      "{\"number\":1,\"number\":1}",
                                      "{\"text\":\"12345678\"}",
                                      "{\"text\":\"a\nb\"}",
                                      "{\"text\":\"\\n\"}",
                                      "{\"text\":\"\\u0000\"}",
                                      "{\"text\":\"\\u00e9\"}",
                                      "{\"text\":\"\\x\"}",
                                      "{\"text\":\"\\u12\"}",
                                      "{\"text\":\"a",
                                      "{\"text\":\"\\",
                                      "{\"text\":1}",
                                      "{\"numbers\":[1,2,3,4]}",
                                      "{\"numbers\":[1 2]}",
                                      "{\"numbers\":[1,]}",
                                      "{\"numbers\":1}",
                                      "{\"x\":tru}",
                                      "{\"x\":[1,2}",
                                      "{\"x\":{\"y\"}}",
                                      "{\"x\":'a'}",
                                      "{\"x\":[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (reads(bad[i], 3)) fail_msg("taken: %s", bad[i]);
    assert_false(reads("{\"number\":1}", 4)); /* a required one is absent */
    assert_true(reads("{\"must\":1}", 4));
}

/* Every prefix of a good line, and every byte of it replaced: refused or taken, never past the end. */
static void survives_damage(void **state) {
    (void)state;
    static const char line[] = "{\"text\":\"a\\u0042c\",\"number\":-1.5e2,\"x\":[{\"y\":[]},null],\"numbers\":[1,2,3]}";
    char copy[sizeof line];
    assert_true(reads(line, 3));
    for (size_t n = 0; n + 1 < sizeof line; n++) {
        memcpy(copy, line, sizeof line);
        copy[n] = 0;
        assert_false(reads(copy, 3));
        for (int byte = 1; byte < 256; byte++) {
            memcpy(copy, line, sizeof line);
            copy[n] = (char)byte;
            reads(copy, 3);
        }
    }
}

static void writes_in_any_locale(void **state) {
    (void)state;
    char out[64];
    setlocale(LC_ALL, "de_DE.UTF-8"); /* where there is none, this tests less */
    static const struct {
        double value;
        const char *text;
    } rows[] = {{0, "0"},
                {1.5, "1.5"},
                {-0.25, "-0.25"},
                {512.123456, "512.123456"},
                {1e-7, "0"},
                {-1e-7, "0"},
                {1700000000, "1700000000"},
                {123456789012345, "123456789012345"},
                {0.1, "0.1"},
                {8999999999, "8999999999"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(fk_json_write_number(rows[i].value, out, sizeof out), strlen(rows[i].text));
        assert_string_equal(out, rows[i].text);
    }
    assert_int_equal(fk_json_write_text("a\"\\", out, sizeof out), 7);
    assert_string_equal(out, "\"a\\\"\\\\\"");
    assert_true(fk_json_write_text("abc", out, 3) >= 3); /* says that it does not fit */
    setlocale(LC_ALL, "C");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(takes_what_is_json), cmocka_unit_test(refuses_what_is_not),
                                       cmocka_unit_test(survives_damage), cmocka_unit_test(writes_in_any_locale)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

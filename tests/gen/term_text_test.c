/* Every term file of the tree as one line, and back; lines that are none; and what names mean that have a line. */
#include "gen/term.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <string.h>

static void round_trip(fk_term_kind kind) {
    char path[4096];
    fk_lua *lua;
    size_t files = 0;
    snprintf(path, sizeof path, FK_SOURCE_DIR "/templates/%s", fk_term_kind_name(kind));
    DIR *folder = opendir(path);
    assert_non_null(folder);
    assert_int_equal(fk_lua_open(NULL, NULL, &lua, NULL), FK_OK);
    for (const struct dirent *d; (d = readdir(folder));) {
        char name[32], back[32], line[FK_TERM_TEXT];
        fk_term_kind as;
        fk_term_file file, again;
        if (!strstr(d->d_name, ".lua")) continue;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(d->d_name, "."), d->d_name);
        assert_int_equal(fk_term_file_load(lua, kind, name, &file, NULL), FK_OK);
        fk_term_write(kind, name, &file, line);
        memset(file.by_q, 0, sizeof file.by_q); /* is not what a name means */
        assert_int_equal(fk_term_read(line, &as, back, &again, NULL), FK_OK);
        assert_int_equal(as, kind);
        assert_string_equal(back, name);
        assert_memory_equal(&file, &again, sizeof file);
        assert_false(fk_term_recall(kind, name, strlen(name), &again));
        assert_int_equal(fk_term_learn(line, NULL), FK_OK);
        assert_true(fk_term_recall(kind, name, strlen(name), &again));
        assert_memory_equal(&file, &again, sizeof file);
        ++files;
    }
    closedir(folder);
    fk_lua_close(lua);
    assert_true(files > 3);
}

static void every_file(void **state) {
    (void)state;
    round_trip(FK_TERM_MASK);
    round_trip(FK_TERM_SCORE);
    round_trip(FK_TERM_PATTERN);
}

static void what_is_no_line(void **state) {
    (void)state;
    static const char *const lines[] = {
        "",
        "mask",
        "mask a",
        "mask a =",
        "mask a = ",
        "score a b:float=1 = s + b",
        "score a b:float<=3 = s + b",
        "score a b:float!=0!=0 = s + b",
        "pattern a b:int!=0 = i == j",
        "pattern a b:int>=1<=5 = i == j",
        "pattern a b:int>=01 = i == j",
        "mask a  = k <= q",
        "mask a = k <= q\n",
        "veil a = k <= q",
        "mask a b = k <= q",
        "mask a b: = k <= q",
        "mask a b:in = k <= q",
        "mask a 7:int = k <= q",
        "mask a b:float[x] = k <= q",
        "mask a b:int c:int d:int e:int f:int = k <= q",
        "mask a b:int=1 = k <= q",
        "mask a top-left = k <= q",
        "pattern a b:int=x = i == j",
        "pattern a b:int=1<= = i == j",
        "pattern a b:int<=3=1 = i == j",
        "pattern a top-left top-left = i == j",
        "patterns a = i == j",
        "mask abcdefghijklmnopqrstuvwxyzabcdefgh = k <= q",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; ++i) {
        fk_term_kind kind;
        fk_term_file file;
        char name[32];
        if (fk_term_read(lines[i], &kind, name, &file, NULL) == FK_OK) fail_msg("\"%s\" is read", lines[i]);
    }
}

/* ---- lines beside files ---- */

static int lessons;
static void teach(char *missing, size_t size) {
    ++lessons;
    assert_int_equal(fk_term_learn("mask taught = k <= q", NULL), FK_OK);
    snprintf(missing, size, "one that is not");
}

static bool says(const char *text, const char *part) {
    return strstr(text, part) != NULL;
}

/* With Lua as without: what has no file is what was learnt, and packs are read no sooner than that. */
static void names_without_a_file(void **state) {
    (void)state;
    fk_term_kind kind;
    fk_term_file file;
    fk_error err;
    fk_lua *lua;
    char missing[40];
    fk_term_set_teacher(teach);
    assert_true(fk_term_find("causal", 6, &kind) && kind == FK_TERM_MASK);
    assert_true(fk_term_find("local", 5, &kind) && kind == FK_TERM_PATTERN);
    assert_int_equal(lessons, 0);
    assert_false(fk_term_find("untaught", 8, &kind));
    assert_true(fk_term_find("taught", 6, &kind) && kind == FK_TERM_MASK);
    assert_false(fk_term_find("../taught", 9, &kind));
    assert_int_equal(lessons, 1);
    fk_term_missing(missing, sizeof missing);
    assert_string_equal(missing, "one that is not");
    assert_int_equal(fk_term_lua_open(NULL, &lua, NULL), FK_OK);
    assert_non_null(lua);
    assert_int_equal(fk_term_file_load(lua, FK_TERM_MASK, "taught", &file, NULL), FK_OK);
    assert_string_equal(file.expr, "k <= q");
    assert_int_equal(fk_term_file_load(lua, FK_TERM_SCORE, "taught", &file, &err), FK_BAD_PROBLEM);
    assert_true(says(err.text, "unknown score \"taught\"; known: alibi"));
    fk_lua_close(lua);
}

/* Of whatever kind: a word is one term. */
static void names_that_are_learnt_twice(void **state) {
    (void)state;
    fk_term_file file;
    fk_error err;
    assert_int_equal(fk_term_learn("mask twice a:int = k <= q + a", NULL), FK_OK);
    assert_int_equal(fk_term_learn("mask twice a:int = k <= q + a", NULL), FK_OK);
    assert_int_equal(fk_term_learn("mask twice a:int = k >= q + a", &err), FK_CHECK_FAILED);
    assert_true(says(err.text, "\"mask twice a:int = k >= q + a\" is \"mask twice a:int = k <= q + a\""));
    assert_int_equal(fk_term_learn("score twice a:float = s + a", &err), FK_CHECK_FAILED);
    assert_int_equal(fk_term_learn("mask twice a", &err), FK_BAD_PROBLEM);
    assert_false(fk_term_recall(FK_TERM_SCORE, "twice", 5, NULL));
    assert_true(fk_term_recall(FK_TERM_MASK, "twice", 5, &file));
    assert_string_equal(file.expr, "k <= q + a");
}

static void lines_are_learnt_all_or_none(void **state) {
    (void)state;
    fk_error err;
    assert_int_equal(fk_term_learn("mask early = k < 5\nmask twice a:int = k >= q + a\nmask late = k > 5\n", &err),
                     FK_CHECK_FAILED);
    assert_int_equal(fk_term_learn("mask early = k < 5\nmask late\n", &err), FK_BAD_PROBLEM);
    assert_false(fk_term_recall(FK_TERM_MASK, "early", 5, NULL) || fk_term_recall(FK_TERM_MASK, "late", 4, NULL));
    assert_int_equal(fk_term_learn("mask early = k < 5\nmask twice a:int = k <= q + a\nmask late = k > 5", NULL),
                     FK_OK);
    assert_true(fk_term_recall(FK_TERM_MASK, "early", 5, NULL) && fk_term_recall(FK_TERM_MASK, "late", 4, NULL));
    assert_int_equal(fk_term_learn("", NULL), FK_OK);
}

static void an_expression_in_lines(void **state) {
    (void)state;
    const fk_term_file file = {.expr = "k <= q\n\t&& q < 100\r\n"};
    char line[FK_TERM_TEXT];
    fk_term_write(FK_TERM_MASK, "lines", &file, line);
    assert_string_equal(line, "mask lines = k <= q  && q < 100  ");
}

static void what_names_mean_here(void **state) {
    (void)state;
    static const struct {
        const char *line;
        bool with_lua, without; /* does it agree? */
        bool is_file;
    } rows[] = {
        {"mask causal = k <= q + diag", true, true, true},    {"mask causal = k >= q + diag", false, false, true},
        {"score causal = s * 2", false, false, true},         {"mask local = k <= q", false, false, true},
        {"mask twice a:int = k <= q + a", true, true, false}, {"mask twice b:int = k <= q + b", false, false, false},
        {"pattern nobodys = i == j", true, true, false},
    };
    fk_lua *lua;
    assert_int_equal(fk_term_lua_open(NULL, &lua, NULL), FK_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        bool is_file;
        fk_error err = {.text = "it agrees"};
        const fk_status with = fk_term_agree(lua, rows[i].line, &is_file, &err);
        if (with != (rows[i].with_lua ? FK_OK : FK_CHECK_FAILED) || is_file != rows[i].is_file)
            fail_msg("%s: %s", rows[i].line, err.text);
        if (with) assert_true(says(err.text, rows[i].is_file ? "here, by templates/" : "opened before"));
        const fk_status without = fk_term_agree(NULL, rows[i].line, &is_file, &err);
        if (without != (rows[i].without ? FK_OK : FK_CHECK_FAILED) || is_file) fail_msg("%s", rows[i].line);
    }
    fk_lua_close(lua);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_file), /* learns them */
        cmocka_unit_test(what_is_no_line),
        cmocka_unit_test(names_without_a_file),
        cmocka_unit_test(names_that_are_learnt_twice),
        cmocka_unit_test(lines_are_learnt_all_or_none),
        cmocka_unit_test(an_expression_in_lines),
        cmocka_unit_test(what_names_mean_here),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

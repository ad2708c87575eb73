/* Every term file of the tree as one line, and back; and lines that are none. */
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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_file), cmocka_unit_test(what_is_no_line)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* fk_problem_list: text and Lua lists give the same canonical spellings; a bad one is named by file and place. */
#include "flashkiln.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char directory[] = "/tmp/fk_list_test_XXXXXX";
static char text_path[64], lua_path[64];

static int make_directory(void **state) {
    (void)state;
    if (!mkdtemp(directory)) return -1;
    snprintf(text_path, sizeof text_path, "%s/list.txt", directory);
    snprintf(lua_path, sizeof lua_path, "%s/list.lua", directory);
    return 0;
}
static int remove_directory(void **state) {
    (void)state;
    unlink(text_path);
    unlink(lua_path);
    return rmdir(directory);
}

static void put(const char *path, const char *bytes, size_t size) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static void reads(const char *path, const char *text, const char *const *expected, size_t n) {
    char **list = NULL;
    size_t count = 0;
    put(path, text, strlen(text));
    assert_int_equal(fk_problem_list(path, &list, &count), FK_OK);
    assert_int_equal(count, n);
    for (size_t i = 0; i < n; i++)
        assert_string_equal(list[i], expected[i]);
    fk_free(list);
}

static void refuses(const char *path, const char *text, fk_status status, const char *part1, const char *part2) {
    char *untouched = NULL, **list = &untouched;
    size_t count = 77;
    put(path, text, strlen(text));
    assert_int_equal(fk_problem_list(path, &list, &count), status);
    assert_ptr_equal(list, &untouched);
    assert_int_equal(count, 77);
    const char *message = fk_last_error();
    if (!strstr(message, path) || !strstr(message, part1) || !strstr(message, part2))
        fail_msg("\"%s\" lacks the path, \"%s\" or \"%s\"", message, part1, part2);
}

static void both_kinds(void **state) {
    (void)state;
    static const char *const two[] = {"fwd fp16 d64", "fwd bf16 d128 causal"};
    reads(text_path, "# kernels\n\n  fwd fp16 d64\r\nfwd causal bf16 d128 # comes last", two, 2);
    reads(lua_path,
          "local out = {}\n"
          "for _, line in ipairs({ 'fwd fp16 d64', 'fwd bf16 d128 causal' }) do out[#out + 1] = line end\n"
          "return out\n",
          two, 2);
}

static void long_lists(void **state) {
    (void)state;
    char **list = NULL;
    size_t count = 0;
    static const char text[] =
        "count = 1000\nlocal out = {}\nfor i = 1, count do out[i] = 'fwd fp16 d64' end\nreturn out";
    put(lua_path, text, sizeof text - 1);
    assert_int_equal(fk_problem_list(lua_path, &list, &count), FK_OK);
    assert_int_equal(count, 1000);
    assert_string_equal(list[999], "fwd fp16 d64");
    fk_free(list);
}

static void bad_entries(void **state) {
    (void)state;
    refuses(text_path, "fwd fp16 d64\nfwd fp16 d12\n", FK_BAD_PROBLEM, "line 2", "12");
    refuses(text_path, "# nothing\n", FK_BAD_PROBLEM, "no spelling", "");
    refuses(lua_path, "return { 'fwd fp16 d64', 'fwd fp99 d64' }", FK_BAD_PROBLEM, "entry 2", "fp99");
    refuses(lua_path, "return { 'fwd fp16 d64', 7 }", FK_BAD_PROBLEM, "entry 2", "number");
    refuses(lua_path, "return 'fwd fp16 d64'", FK_BAD_PROBLEM, "string", "array");
    refuses(lua_path, "return {}", FK_BAD_PROBLEM, "no spelling", "");
    refuses(lua_path, "return {\n'fwd fp16 d64'\n'fwd'}", FK_TEMPLATE_ERROR, ":3:", "'}' expected");
    refuses(lua_path, "local x = 1\nreturn x.y.z", FK_TEMPLATE_ERROR, ":2:", "");
    refuses(lua_path, "return { io.open('/etc/passwd') }", FK_TEMPLATE_ERROR, ":1:", "io");
    refuses(lua_path, "while true do end", FK_TEMPLATE_ERROR, ":1:", "instructions");
}

static void bad_files(void **state) {
    (void)state;
    char **list = NULL;
    size_t count = 0;
    assert_int_equal(fk_problem_list("/tmp/fk/no/such.txt", &list, &count), FK_IO);
    assert_non_null(strstr(fk_last_error(), "/tmp/fk/no/such.txt"));
    assert_int_equal(fk_problem_list(directory, &list, &count), FK_IO);
    put(text_path, "fwd fp16 d64\0\n", 14);
    assert_int_equal(fk_problem_list(text_path, &list, &count), FK_BAD_PROBLEM);
    assert_non_null(strstr(fk_last_error(), "zero byte"));
    assert_int_equal(fk_problem_list(NULL, &list, &count), FK_BAD_ARGUMENT);
    assert_int_equal(fk_problem_list(text_path, NULL, &count), FK_BAD_ARGUMENT);
    assert_int_equal(fk_problem_list(text_path, &list, NULL), FK_BAD_ARGUMENT);
    assert_null(list);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_kinds),
        cmocka_unit_test(long_lists),
        cmocka_unit_test(bad_entries),
        cmocka_unit_test(bad_files),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}

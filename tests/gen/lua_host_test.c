/* The sandbox: what Lua files cannot do, and that whatever they do comes back as a status, with nothing leaked. */
#include "gen/lua_host.h"
#include "test.h"

static void run_body(lua_State *L, void *path) {
    fk_lua_run(L, path);
}

/* Runs templates/mask/try.lua of a directory. */
static fk_status run_in(const temp_dir *dir, const fk_lua_limits *limits, fk_error *err) {
    char path[] = "templates/mask/try.lua";
    fk_lua *lua;
    const fk_status opened = fk_lua_open(dir->path, limits, &lua, err);
    if (opened != FK_OK) return opened;
    const fk_status status = fk_lua_call(lua, run_body, path, err);
    fk_lua_close(lua);
    return status;
}

static fk_status run_text(const char *text, const fk_lua_limits *limits, fk_error *err) {
    const temp_dir dir = temp_dir_create();
    temp_dir_write(&dir, "mask/try.lua", text);
    const fk_status status = run_in(&dir, limits, err);
    temp_dir_remove(&dir);
    return status;
}

static void expect_result(const char *text, const char *expected) {
    char wrapped[1024];
    fk_error err = {.text = ""};
    snprintf(wrapped, sizeof wrapped, "local got = tostring((function() %s end)())\nif got ~= '%s' then error(got) end",
             text, expected);
    if (run_text(wrapped, NULL, &err) != FK_OK) fail_msg("%s\n%s", wrapped, err.text);
}

static void expect_error(const char *text, const char *message) {
    fk_error err = {.text = ""};
    assert_int_equal(run_text(text, NULL, &err), FK_TEMPLATE_ERROR);
    assert_message(err.text, message);
}

static void test_what_files_may_use(void **state) {
    (void)state;
    expect_result("return 1 + 2", "3");
    expect_result("local t = {} for _, x in ipairs({3, 4}) do t[#t + 1] = x * 2 end return table.concat(t, ' ')",
                  "6 8");
    expect_result("return string.format('%d %s %%p', 7, true)", "7 true %p");
    expect_result("return ('x'):rep(3) .. tostring(nil) .. math.max(1, 2)", "xxxnil2");
    expect_result("return select('#', pcall(error, 'x'))", "2");
    expect_result("return setmetatable({}, { __index = { y = 5 } }).y", "5");
}

static void test_order_is_sorted(void **state) {
    (void)state;
    expect_result("local out = {} "
                  "for k, v in sorted_pairs({ b = 1, a = 2, [10] = 3, [9] = 4, B = 5, ab = 6, [1.5] = 7 }) do "
                  "out[#out + 1] = k .. '=' .. v end return table.concat(out, ' ')",
                  "1.5=7 9=4 10=3 B=5 a=2 ab=6 b=1");
    expect_error("for k in sorted_pairs({ [true] = 1 }) do end", "sorted_pairs: a key is a boolean");
}

static void test_what_files_may_not_use(void **state) {
    (void)state;
    static const char *const names[] = {"pairs",      "next", "os",     "io",      "debug",        "package",
                                        "coroutine",  "load", "dofile", "require", "loadfile",     "print",
                                        "loadstring", "_G",   "rawset", "rawget",  "getmetatable", "collectgarbage",
                                        "utf8",       "arg"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
        char text[64], message[64];
        snprintf(text, sizeof text, "\nreturn %s", names[i]);
        snprintf(message, sizeof message, "templates/mask/try.lua:2: unknown name '%s'", names[i]);
        expect_error(text, message);
    }
    expect_result("return tostring(string.dump) .. tostring(math.random) .. tostring(math.randomseed)", "nilnilnil");
    expect_result("return tostring(('').dump)", "nil");
    expect_error("local s = tostring({})", "try.lua:1: a table has no text");
    expect_error("return string.format('%s', {})", "string.format: a table has no text");
    expect_error("return ('%s'):format(ipairs)", "string.format: a function has no text");
    expect_error("return string.format('%%%p', 'x')", "%p is an address");
    expect_error("return string.format('%-20p', 'x')", "%p is an address");
    expect_error("setmetatable({}, { __gc = function() end })", "__gc is not available");
    expect_error("x = 1", "try.lua:1: assignment to undeclared name 'x'");
    expect_error("string = nil", "assignment");
}

static void test_errors_name_file_and_line(void **state) {
    (void)state;
    expect_error("return {\n  a = 1,\n  b = = 2 }", "templates/mask/try.lua:3: unexpected symbol near '='");
    expect_error("\n\nlocal t = nil\nreturn t.x", "templates/mask/try.lua:4: attempt to index a nil value (local 't')");
    expect_error("\nerror('mine')", "templates/mask/try.lua:2: mine");
    expect_error("error('bare', 0)", "bare");
    expect_error("error()", "raised a nil, not a message");
    expect_error("\033LuaT", "attempt to load a binary chunk");
}

static void test_endless_loops_stop(void **state) {
    (void)state;
    static const char *const loops[] = {
        "\nwhile true do end",
        "\nwhile true do pcall(function() while true do end end) end", /* pcall cannot hide it */
        "\nlocal function f() return f() end f()",
        "\n('x'):rep(100):gsub('.', function() while true do end end)",
    };
    const fk_lua_limits limits = {.memory = 8 << 20, .instructions = 200000};
    for (size_t i = 0; i < sizeof loops / sizeof loops[0]; ++i) {
        fk_error err;
        assert_int_equal(run_text(loops[i], &limits, &err), FK_TEMPLATE_ERROR);
        assert_message(err.text, "templates/mask/try.lua:2: over the limit of 200000 instructions");
    }
}

/* What the library does in one call, of which no instruction is counted. */
static void test_endless_calls_are_refused(void **state) {
    (void)state;
    expect_result("return (''):rep(1e18) .. string.rep('', 1 << 62, '') .. ('ab'):rep(2, '-') .. (''):rep(3, '+')",
                  "ab-ab++");
    expect_result("return table.concat(table.move({ 1, 2, 3 }, 1, 3, 2)) .. #table.move({ 1, 2 }, 1, 2, 1, {})",
                  "11232");
    expect_error("\ntable.move({}, 1, 1 << 60, 2)",
                 "try.lua:2: table.move: 1152921504606846976 elements: the limit is 4194304");
    expect_error("table.move({}, 1, nil, 2)", "bad argument #3 to 'move'");
    expect_result("local t = { 1, 3 } table.insert(t, 4) table.insert(t, 2, 2) "
                  "return table.concat(t) .. table.remove(t) .. table.remove(t, 1) .. #t",
                  "1234412");
    expect_error("\ntable.insert(nil, 1)", "try.lua:2: table.insert: a nil is no table");
    /* what a __len says is not asked, nor what C functions as __index have without end */
    expect_result("local t = setmetatable({ 1, 2 }, { __len = function() return 1 << 60 end }) table.insert(t, 1, 0) "
                  "table.sort(t, function(a, b) return a > b end) return table.concat(t) .. table.remove(t, 1)",
                  "2102");
    expect_error("\ntable.insert({}, 3, 'x')", "try.lua:2: table.insert: wanted a value, or a place from 1 to 1");
    expect_error("\ntable.concat(setmetatable({}, { __index = table.concat }), '', 1, 1 << 60)",
                 "try.lua:2: table.concat: 1152921504606846976 elements: the limit is 4194304");
}

static void test_memory_is_limited(void **state) {
    (void)state;
    static const char *const bombs[] = {
        "local t = {} for i = 1, 1e9 do t[i] = { i } end",
        "local s = ('x'):rep(1 << 20) for i = 1, 100 do s = s .. s end",
        "return ('x'):rep(1 << 30)",
    };
    const fk_lua_limits limits = {.memory = 8 << 20, .instructions = 50000000};
    for (size_t i = 0; i < sizeof bombs / sizeof bombs[0]; ++i) {
        fk_error err;
        assert_int_equal(run_text(bombs[i], &limits, &err), FK_TEMPLATE_ERROR);
        assert_message(err.text, "over the memory limit of Lua files, 8 MiB");
    }
    /* Garbage is no memory: 100 MB pass through 8 MiB. */
    fk_error err = {.text = ""};
    if (run_text("for i = 1, 100 do local s = ('x'):rep(1 << 20) end", &limits, &err) != FK_OK)
        fail_msg("%s", err.text);
}

static void test_every_failing_allocation_is_survived(void **state) {
    (void)state;
    const temp_dir dir = temp_dir_create();
    temp_dir_write(&dir, "mask/try.lua",
                   "local out = {} for i = 1, 40 do out[i] = ('%d'):format(i) end return table.concat(out)");
    fk_status status = FK_NO_MEMORY;
    int64_t n = 0;
    while (status == FK_NO_MEMORY && ++n < 10000) {
        const fk_lua_limits limits = {.memory = 8 << 20, .instructions = 1000000, .fail_at = n};
        fk_error err = {.text = "no memory for a Lua state"};
        status = run_in(&dir, &limits, &err);
        assert_string_equal(err.text, "no memory for a Lua state");
    }
    temp_dir_remove(&dir);
    assert_int_equal(status, FK_OK); /* no allocation is left to fail */
    assert_true(n > 100);
}

static void test_files_are_found_and_confined(void **state) {
    (void)state;
    const temp_dir dir = temp_dir_create();
    temp_dir_write(&dir, "mask/causal.lua", "error('mine', 0)");
    temp_dir_write(&dir, "mask/folder/x.lua", "");
    static const struct {
        char path[64];
        const char *message;
        fk_status status;
    } cases[] = {
        {"templates/mask/nothing.lua", "templates/mask/nothing.lua: no such template", FK_TEMPLATE_ERROR},
        {"templates/../templates/mask/causal.lua", "must be relative, without \"..\"", FK_TEMPLATE_ERROR},
        {"/etc/passwd", "must be relative, without \"..\"", FK_TEMPLATE_ERROR},
        {"templates/mask/folder", "must be a file of at most", FK_IO},
        {"templates/mask/causal.lua", "mine", FK_TEMPLATE_ERROR}, /* the directory stands before what is built in */
        {"templates/mask/window.lua", "", FK_OK}, /* which is there still, and failed calls left the state usable */
    };
    fk_lua *lua;
    fk_error err = {.text = ""};
    assert_int_equal(fk_lua_open(dir.path, NULL, &lua, &err), FK_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        char path[64];
        memcpy(path, cases[i].path, sizeof path);
        assert_int_equal(fk_lua_call(lua, run_body, path, &err), cases[i].status);
        assert_message(err.text, cases[i].message);
    }
    fk_lua_close(lua);
    temp_dir_remove(&dir);
    assert_int_equal(fk_lua_open(dir.path, NULL, &lua, &err), FK_IO);
    assert_message(err.text, "must be a directory");
    assert_message(err.text, dir.path);
    setenv("FLASHKILN_TEMPLATE_DIR", dir.path, 1);
    assert_int_equal(fk_lua_open(NULL, NULL, &lua, &err), FK_IO);
    assert_message(err.text, "FLASHKILN_TEMPLATE_DIR");
    setenv("FLASHKILN_TEMPLATE_DIR", "", 1); /* as if it were not set */
    assert_int_equal(fk_lua_open(NULL, NULL, &lua, &err), FK_OK);
    fk_lua_close(lua);
    unsetenv("FLASHKILN_TEMPLATE_DIR");
}

/* What stands in the directory and cannot be read is an error, and never the embedded file in its place. */
static void test_what_cannot_be_read_is_no_absence(void **state) {
    (void)state;
    const temp_dir dir = temp_dir_create();
    char causal[] = "templates/mask/causal.lua", window[] = "templates/mask/window.lua", path[128], long_dir[4100];
    fk_lua *lua;
    fk_error err = {.text = ""};
    temp_dir_write(&dir, "mask/try.lua", "");
    snprintf(path, sizeof path, "%s/mask/causal.lua", dir.path);
    assert_int_equal(fk_lua_open(dir.path, NULL, &lua, &err), FK_OK);
    static const struct {
        const char *target, *message;
    } links[] = {
        {"nowhere", "No such file or directory"}, {"try.lua/x", "Not a directory"}, {"causal.lua", "symbolic"}};
    for (size_t i = 0; i < sizeof links / sizeof *links; ++i) {
        assert_int_equal(symlink(links[i].target, path), 0);
        assert_true(fk_template_exists(dir.path, causal));
        assert_int_equal(fk_lua_call(lua, run_body, causal, &err), FK_IO);
        assert_message(err.text, path);
        assert_message(err.text, links[i].message);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(fk_lua_call(lua, run_body, causal, &err), FK_OK); /* there is none: the embedded one */
    snprintf(path, sizeof path, "%s/mask", dir.path);
    assert_int_equal(chmod(path, 0), 0);
    if (geteuid() != 0) { /* whom no mode stops */
        assert_int_equal(fk_lua_call(lua, run_body, window, &err), FK_IO);
        assert_message(err.text, "Permission denied");
    }
    assert_int_equal(chmod(path, 0700), 0);
    fk_lua_close(lua);

    snprintf(long_dir, sizeof long_dir, "%s", dir.path); /* a path that is short enough alone */
    while (strlen(long_dir) < 4080)
        strcat(long_dir, "/.");
    assert_int_equal(fk_lua_open(long_dir, NULL, &lua, &err), FK_OK);
    assert_int_equal(fk_lua_call(lua, run_body, window, &err), FK_IO);
    assert_message(err.text, "File name too long");
    fk_lua_close(lua);
    temp_dir_remove(&dir);
}

static void raise_body(lua_State *L, void *arg) {
    fk_lua_raise(L, FK_UNSUPPORTED, "not %s, %d", (const char *)arg, 3);
}

static void test_bodies_raise_statuses(void **state) {
    (void)state;
    char here[] = "here";
    fk_lua *lua;
    fk_error err = {.text = ""};
    assert_int_equal(fk_lua_open(NULL, NULL, &lua, &err), FK_OK);
    assert_int_equal(fk_lua_call(lua, raise_body, here, &err), FK_UNSUPPORTED);
    assert_string_equal(err.text, "not here, 3");
    assert_int_equal(fk_lua_call(lua, raise_body, here, NULL), FK_UNSUPPORTED);
    fk_lua_close(lua);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_files_may_use),
        cmocka_unit_test(test_order_is_sorted),
        cmocka_unit_test(test_what_files_may_not_use),
        cmocka_unit_test(test_errors_name_file_and_line),
        cmocka_unit_test(test_endless_loops_stop),
        cmocka_unit_test(test_endless_calls_are_refused),
        cmocka_unit_test(test_memory_is_limited),
        cmocka_unit_test(test_every_failing_allocation_is_survived),
        cmocka_unit_test(test_files_are_found_and_confined),
        cmocka_unit_test(test_what_cannot_be_read_is_no_absence),
        cmocka_unit_test(test_bodies_raise_statuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

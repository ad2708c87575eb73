/* A file of spellings: Lua that returns them, or one a line. The result is one block, pointers first, so that one
 * fk_free frees it and a failure half-way leaves nothing. */
#include "lua_api.h"
#include "lua_host.h"
#include "problem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_COUNT = 65536, MAX_FILE = 1 << 24 };

/* Canonical spellings, one behind the other, each with its zero. */
typedef struct spelling_list {
    const char *path;
    char *text;
    size_t size, capacity, count;
} spelling_list;

/* Checks one entry and appends its canonical form; `where` is "line" or "entry". */
static fk_status append(spelling_list *list, const char *spelling, const char *where, int64_t number, fk_error *err) {
    char canonical[FK_MAX_SPELLING];
    fk_problem problem;
    fk_error inner;
    fk_status status = fk_problem_read(spelling, &problem, &inner);
    if (status == FK_OK) status = fk_problem_write(&problem, canonical, sizeof canonical, &inner);
    if (status != FK_OK)
        return fk_fail(err, status, "%s, %s %lld: %.1500s", list->path, where, (long long)number, inner.text);
    if (list->count == MAX_COUNT)
        return fk_fail(err, FK_BAD_PROBLEM, "%s, %s %lld: a list holds at most %d spellings", list->path, where,
                       (long long)number, MAX_COUNT);
    const size_t length = strlen(canonical) + 1;
    if (list->size + length > list->capacity) {
        const size_t capacity = 2 * (list->size + length) + 4096;
        char *text = realloc(list->text, capacity);
        if (!text) return fk_fail(err, FK_NO_MEMORY, "no memory for the spellings of %s", list->path);
        list->text = text;
        list->capacity = capacity;
    }
    memcpy(list->text + list->size, canonical, length);
    list->size += length;
    list->count++;
    return FK_OK;
}

static fk_status read_whole(const char *path, char **text, size_t *size, fk_error *err) {
    FILE *file = fopen(path, "rbe");
    if (!file) return fk_fail(err, FK_IO, "%s: %s", path, strerror(errno));
    char *bytes = malloc(MAX_FILE + 1);
    if (!bytes) {
        fclose(file);
        return fk_fail(err, FK_NO_MEMORY, "no memory to read %s", path);
    }
    const size_t n = fread(bytes, 1, MAX_FILE + 1, file);
    const int failed = ferror(file), reason = errno;
    fclose(file);
    fk_status status = FK_OK;
    if (failed)
        status = fk_fail(err, FK_IO, "%s: %s", path, strerror(reason));
    else if (n > MAX_FILE)
        status = fk_fail(err, FK_BAD_PROBLEM, "%s: longer than %d bytes", path, MAX_FILE);
    else if (memchr(bytes, '\0', n))
        status = fk_fail(err, FK_BAD_PROBLEM, "%s: holds a zero byte; a list is text", path);
    if (status != FK_OK) {
        free(bytes);
        return status;
    }
    bytes[n] = '\0';
    *text = bytes;
    *size = n;
    return FK_OK;
}

static fk_status read_lines(spelling_list *list, char *text, fk_error *err) {
    int64_t number = 0;
    fk_status status = FK_OK;
    for (char *line = text, *next; line && status == FK_OK; line = next) {
        number++;
        next = strchr(line, '\n');
        if (next) *next++ = '\0';
        line[strcspn(line, "\r#")] = '\0'; /* no spelling has a # */
        line += strspn(line, " \t");
        for (size_t end = strlen(line); end && strchr(" \t", line[end - 1]); --end)
            line[end - 1] = '\0';
        if (line[0]) status = append(list, line, "line", number, err);
    }
    return status;
}

typedef struct lua_list {
    spelling_list *list;
    const char *text;
    size_t size;
} lua_list;

static void lua_body(lua_State *L, void *arg) {
    const lua_list *in = arg;
    spelling_list *list = in->list;
    fk_error err;
    lua_pushfstring(L, "=%s", list->path);
    if (luaL_loadbufferx(L, in->text, in->size, lua_tostring(L, -1), "t") != LUA_OK) lua_error(L);
    lua_newtable(L); /* takes the globals that the file itself sets */
    fk_lua_extend_globals(L);
    lua_setupvalue(L, -2, 1);
    lua_call(L, 0, 1);
    if (!lua_istable(L, -1))
        fk_lua_raise(L, FK_BAD_PROBLEM, "%s: returns a %s; an array of spellings is needed", list->path,
                     luaL_typename(L, -1));
    const lua_Integer count = (lua_Integer)lua_rawlen(L, -1);
    for (lua_Integer i = 1; i <= count; i++) {
        if (lua_rawgeti(L, -1, i) != LUA_TSTRING)
            fk_lua_raise(L, FK_BAD_PROBLEM, "%s, entry %lld: is a %s; a string is needed", list->path, (long long)i,
                         luaL_typename(L, -1));
        if (append(list, lua_tostring(L, -1), "entry", i, &err) != FK_OK) fk_lua_raise(L, err.status, "%s", err.text);
        lua_pop(L, 1);
    }
}

static fk_status read_lua(spelling_list *list, const char *text, size_t size, fk_error *err) {
    fk_lua *lua = NULL;
    lua_list in = {list, text, size};
    fk_status status = fk_lua_open(NULL, NULL, &lua, err);
    if (status == FK_OK) status = fk_lua_call(lua, lua_body, &in, err);
    fk_lua_close(lua);
    return status;
}

static fk_status read_list(spelling_list *list, char ***out, fk_error *err) {
    char *text = NULL;
    size_t size = 0;
    fk_status status = read_whole(list->path, &text, &size, err);
    if (status != FK_OK) return status;
    const char *suffix = strrchr(list->path, '.');
    status = suffix && strcmp(suffix, ".lua") == 0 ? read_lua(list, text, size, err) : read_lines(list, text, err);
    free(text);
    if (status != FK_OK) return status;
    if (list->count == 0) return fk_fail(err, FK_BAD_PROBLEM, "%s: holds no spelling", list->path);
    char **pointers = malloc(list->count * sizeof *pointers + list->size);
    if (!pointers) return fk_fail(err, FK_NO_MEMORY, "no memory for the spellings of %s", list->path);
    char *strings = memcpy((char *)(pointers + list->count), list->text, list->size);
    for (size_t i = 0; i < list->count; i++) {
        pointers[i] = strings;
        strings += strlen(strings) + 1;
    }
    *out = pointers;
    return FK_OK;
}

fk_status fk_problem_list(const char *path, char ***spellings, size_t *count) {
    fk_error err;
    spelling_list list = {.path = path};
    if (!path || !spellings || !count) {
        fk_fail(&err, FK_BAD_ARGUMENT, "%s is null", !path ? "path" : !spellings ? "spellings" : "count");
        return fk_report(&err);
    }
    const fk_status status = read_list(&list, spellings, &err);
    free(list.text);
    if (status != FK_OK) return fk_report(&err);
    *count = list.count;
    return FK_OK;
}

/* The state never outlives its limits: one allocator counts every byte, one hook counts instructions, and a file is
 * text found below templates/ or gen/ only. gen/sandbox.lua says which functions exist. */
#include "lua_host.h"

#include "embedded.h"
#include "lua_api.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HOOK_STEP = 1000 };
static const fk_lua_limits default_limits = {.memory = 64u << 20, .instructions = 50000000, .fail_at = 0};

struct fk_lua {
    lua_State *L;
    const char *template_dir;
    fk_lua_limits limits;
    size_t used;
    int64_t allocations;
    int64_t instructions;
    bool at_limit; /* the last allocation that failed was refused here, not by malloc */
    fk_error raised;
    fk_lua_body body;
    void *arg;
    char running[128]; /* the file, or "": for messages of Lua's that name none */
};

static fk_lua *host_of(lua_State *L) {
    return *(fk_lua **)lua_getextraspace(L);
}

/* For a new object `ptr` is null and `osize` its type, not a size. Lua relies on shrinking never to fail. */
static void *allocate(void *user, void *ptr, size_t osize, size_t nsize) {
    fk_lua *lua = user;
    const size_t old = ptr ? osize : 0;
    if (nsize == 0) {
        free(ptr);
        lua->used -= old;
        return NULL;
    }
    if (nsize > old) {
        ++lua->allocations;
        const bool fails = lua->limits.fail_at && lua->allocations >= lua->limits.fail_at;
        const bool over = nsize - old > lua->limits.memory - lua->used;
        if (fails || over) {
            lua->at_limit = over;
            return NULL;
        }
    }
    void *moved = realloc(ptr, nsize);
    if (!moved) {
        lua->at_limit = false;
        return nsize > old ? NULL : ptr;
    }
    lua->used = lua->used - old + nsize;
    return moved;
}

/* Once over the limit every instruction is an error, so that pcall in a file cannot hide it. */
static void count_instructions(lua_State *L, lua_Debug *event) {
    (void)event;
    fk_lua *lua = host_of(L);
    lua->instructions += HOOK_STEP;
    if (lua->instructions <= lua->limits.instructions) return;
    lua_sethook(L, count_instructions, LUA_MASKCOUNT, 1);
    luaL_where(L, 0);
    lua_pushfstring(L, "%sover the limit of %I instructions: a loop without an end?", lua_tostring(L, -1),
                    (LUAI_UACINT)lua->limits.instructions);
    lua_error(L);
}

void fk_lua_raise(lua_State *L, fk_status status, const char *format, ...) {
    fk_lua *lua = host_of(L);
    va_list args;
    va_start(args, format);
    vsnprintf(lua->raised.text, sizeof lua->raised.text, format, args);
    va_end(args);
    lua->raised.status = status;
    lua_pushlightuserdata(L, lua); /* needs no memory */
    lua_error(L);
    abort(); /* lua_error does not return */
}

/* ---- files ---- */

static const fk_embedded_file *find_embedded(const char *path) {
    for (const fk_embedded_file *file = fk_embedded; file->path; ++file) {
        if (strcmp(file->path, path) == 0) return file;
    }
    return NULL;
}

const char *fk_template_dir(void) {
    const char *dir = secure_getenv("FLASHKILN_TEMPLATE_DIR");
    return dir && *dir ? dir : NULL;
}

enum { THERE = 0, ABSENT = -1 };

/* Looks for the file of template_dir (may be null) that stands before an embedded one: THERE, ABSENT, or the errno for
 * which that cannot be told. A link to nowhere is not absent: who made it does not mean the embedded file. */
static int find_override(const char *template_dir, const char *path, char *out, size_t size, struct stat *info) {
    static const char prefix[] = "templates/";
    if (!template_dir || strncmp(path, prefix, sizeof prefix - 1) != 0) return ABSENT;
    const int n = snprintf(out, size, "%s/%s", template_dir, path + sizeof prefix - 1);
    if (n < 0 || (size_t)n >= size) return ENAMETOOLONG;
    if (stat(out, info) == 0) return THERE;
    const int reason = errno;
    return (reason == ENOENT || reason == ENOTDIR) && lstat(out, info) != 0 ? ABSENT : reason;
}

static void check_path(lua_State *L, const char *path, size_t size) {
    if (strlen(path) != size || size > 200 || path[0] == '/' || strstr(path, "..")) {
        fk_lua_raise(L, FK_TEMPLATE_ERROR, "template path \"%.200s\": must be relative, without \"..\"", path);
    }
}

bool fk_template_override(const char *template_dir, const char *path, char *out, size_t size) {
    struct stat info;
    return find_override(template_dir, path, out, size, &info) != ABSENT;
}

bool fk_template_exists(const char *template_dir, const char *path) {
    char full[4096];
    struct stat info;
    return find_override(template_dir, path, full, sizeof full, &info) != ABSENT || find_embedded(path);
}

bool fk_lua_has_file(lua_State *L, const char *path) {
    return fk_template_exists(host_of(L)->template_dir, path);
}

/* Reads into memory that Lua owns, so that nothing between open and close can raise. */
static const char *read_override(lua_State *L, const char *path, const struct stat *info, size_t *size) {
    if (!S_ISREG(info->st_mode) || info->st_size > FK_MAX_TEMPLATE_BYTES) {
        fk_lua_raise(L, FK_IO, "%s: must be a file of at most %d bytes", path, FK_MAX_TEMPLATE_BYTES);
    }
    const size_t wanted = (size_t)info->st_size;
    char *bytes = lua_newuserdatauv(L, wanted + 1, 0);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) fk_lua_raise(L, FK_IO, "%s: %s", path, strerror(errno));
    size_t got = 0;
    ssize_t n = 1;
    while (got < wanted && (n = read(fd, bytes + got, wanted - got)) != 0) {
        if (n > 0) got += (size_t)n;
        if (n < 0 && errno != EINTR) break;
    }
    const int failure = n < 0 ? errno : 0;
    close(fd);
    if (failure) fk_lua_raise(L, FK_IO, "%s: %s", path, strerror(failure));
    *size = got;
    return bytes;
}

/* The text of a file; pushes one value that keeps it alive. */
static const char *push_file(lua_State *L, const char *path, size_t *size) {
    char full[4096];
    struct stat info;
    const int found = find_override(host_of(L)->template_dir, path, full, sizeof full, &info);
    if (found == THERE) return read_override(L, full, &info, size);
    if (found != ABSENT) fk_lua_raise(L, FK_IO, "%.1500s: %s", full, strerror(found));
    const fk_embedded_file *file = find_embedded(path);
    if (!file) fk_lua_raise(L, FK_TEMPLATE_ERROR, "%s: no such template", path);
    lua_pushnil(L);
    *size = file->size;
    return file->text;
}

int fk_lua_read_file(lua_State *L) {
    size_t path_size, size;
    const char *path = luaL_checklstring(L, 1, &path_size);
    check_path(L, path, path_size);
    const char *text = push_file(L, path, &size);
    lua_pushlstring(L, text, size);
    return 1;
}

/* Pushes a file's chunk, its globals those of its layer: the engine's own Lua may load text, templates may not. */
static void load_file(lua_State *L, const char *path, const char *globals) {
    check_path(L, path, strlen(path));
    luaL_checkstack(L, 8, path);
    const int top = lua_gettop(L);
    size_t size;
    const char *text = push_file(L, path, &size);
    const char *name = lua_pushfstring(L, "=%s", path);
    if (luaL_loadbufferx(L, text, size, name, "t") != LUA_OK) lua_error(L);
    if (globals) {
        lua_getfield(L, LUA_REGISTRYINDEX, globals);
        lua_setupvalue(L, -2, 1);
    }
    lua_replace(L, top + 1);
    lua_settop(L, top + 1);
}

void fk_lua_run(lua_State *L, const char *path) {
    fk_lua *lua = host_of(L);
    const bool engine = strncmp(path, "gen/", 4) == 0;
    if (!engine) snprintf(lua->running, sizeof lua->running, "%s", path);
    load_file(L, path, engine ? "fk.engine" : "fk.globals");
    lua_call(L, 0, 1);
    lua->running[0] = 0;
}

void fk_lua_extend_globals(lua_State *L) {
    luaL_checkstack(L, 4, "globals");
    lua_newtable(L);
    lua_getfield(L, LUA_REGISTRYINDEX, "fk.library");
    lua_setfield(L, -2, "__index");
    lua_setmetatable(L, -2);
}

void fk_lua_seal(lua_State *L, const char *name, const char *const *optional) {
    luaL_checkstack(L, 16, name);
    lua_getfield(L, LUA_REGISTRYINDEX, "fk.strict");
    lua_pushstring(L, name);
    lua_pushvalue(L, -3);
    int n = 2;
    for (; optional && optional[n - 2]; ++n)
        lua_pushstring(L, optional[n - 2]);
    lua_call(L, n, 0);
}

/* ---- the state ---- */

static void open_sandbox(lua_State *L, void *arg) {
    (void)arg;
    luaL_requiref(L, LUA_GNAME, luaopen_base, 1);
    luaL_requiref(L, LUA_TABLIBNAME, luaopen_table, 1);
    luaL_requiref(L, LUA_STRLIBNAME, luaopen_string, 1);
    luaL_requiref(L, LUA_MATHLIBNAME, luaopen_math, 1);
    load_file(L, "gen/sandbox.lua", NULL);
    lua_call(L, 0, 4);
    lua_setfield(L, LUA_REGISTRYINDEX, "fk.strict");
    lua_setfield(L, LUA_REGISTRYINDEX, "fk.engine");
    lua_setfield(L, LUA_REGISTRYINDEX, "fk.globals");
    lua_setfield(L, LUA_REGISTRYINDEX, "fk.library");
}

fk_status fk_lua_open(const char *template_dir, const fk_lua_limits *limits, fk_lua **out, fk_error *err) {
    struct stat info;
    if (!template_dir) template_dir = fk_template_dir();
    if (template_dir && (stat(template_dir, &info) != 0 || !S_ISDIR(info.st_mode))) {
        return fk_fail(err, FK_IO, "template_dir (or FLASHKILN_TEMPLATE_DIR) is \"%s\": must be a directory",
                       template_dir);
    }
    fk_status status = fk_lua_library(err);
    if (status != FK_OK) return status;
    fk_lua *lua = calloc(1, sizeof *lua);
    if (!lua) return fk_fail(err, FK_NO_MEMORY, "no memory for a Lua state");
    lua->template_dir = template_dir;
    lua->limits = limits ? *limits : default_limits;
    lua->L = lua_newstate(allocate, lua);
    if (!lua->L) {
        free(lua);
        return fk_fail(err, FK_NO_MEMORY, "no memory for a Lua state");
    }
    *(fk_lua **)lua_getextraspace(lua->L) = lua;
    lua_sethook(lua->L, count_instructions, LUA_MASKCOUNT, HOOK_STEP);
    status = fk_lua_call(lua, open_sandbox, NULL, err);
    if (status != FK_OK) {
        fk_lua_close(lua);
        return status;
    }
    *out = lua;
    return FK_OK;
}

void fk_lua_close(fk_lua *lua) {
    if (!lua) return;
    lua_close(lua->L);
    free(lua);
}

static int run_body(lua_State *L) {
    fk_lua *lua = host_of(L);
    lua->body(L, lua->arg);
    return 0;
}

fk_status fk_lua_call(fk_lua *lua, fk_lua_body body, void *arg, fk_error *err) {
    lua_State *L = lua->L;
    lua->body = body;
    lua->arg = arg;
    lua->running[0] = 0;
    lua_pushcfunction(L, run_body);
    const int result = lua_pcall(L, 0, 0, 0);
    if (result == LUA_OK) return FK_OK;
    fk_status status;
    const char *file = lua->running, *colon = *file ? ": " : "";
    if (result == LUA_ERRMEM && lua->at_limit) {
        status = fk_fail(err, FK_TEMPLATE_ERROR, "%s%sover the memory limit of Lua files, %zu MiB", file, colon,
                         lua->limits.memory >> 20);
    } else if (result == LUA_ERRMEM) {
        status = fk_fail(err, FK_NO_MEMORY, "no memory for a Lua state");
    } else if (lua_islightuserdata(L, -1) && lua_touserdata(L, -1) == lua) {
        status = fk_fail(err, lua->raised.status, "%s", lua->raised.text);
    } else if (lua_type(L, -1) == LUA_TSTRING) {
        const bool named = strstr(lua_tostring(L, -1), file);
        status = fk_fail(err, FK_TEMPLATE_ERROR, "%s%s%s", named ? "" : file, named ? "" : colon, lua_tostring(L, -1));
    } else {
        status = fk_fail(err, FK_TEMPLATE_ERROR, "%s%sraised a %s, not a message", *file ? file : "a Lua file",
                         *file ? ": " : " ", luaL_typename(L, -1));
    }
    lua_settop(L, 0);
    return status;
}

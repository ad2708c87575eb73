#include "lua_api.h"

#ifndef FK_LUA_SONAME

fk_status fk_lua_library(fk_error *err) {
    (void)err;
    return FK_OK;
}

#else

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

fk_lua_functions fk_lua_table;

static const struct {
    const char *name;
    void **to;
} functions[] = {
#define ROW(name) {#name, (void **)&fk_lua_table.name##_},
    FK_LUA_FUNCTIONS(ROW)
#undef ROW
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool opened;      /* fk_lua_table is complete; written under `lock` */
static fk_error failure; /* of the only attempt, or FK_OK */

/* The library's name differs between distributions; what is behind the names does not. */
static void *find_library(fk_error *err) {
    static const char *const names[] = {FK_LUA_SONAME, "liblua5.4.so.0", "liblua-5.4.so", "liblua.so.5.4"};
    const char *named = secure_getenv("FLASHKILN_LUA");
    void *library = NULL;
    if (named && *named) { /* named: nothing else will do */
        library = dlopen(named, RTLD_NOW | RTLD_LOCAL);
        if (!library) fk_fail(err, FK_NO_COMPILER, "Lua 5.4: %s (from FLASHKILN_LUA)", dlerror());
        return library;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!library)
        fk_fail(err, FK_NO_COMPILER,
                "Lua 5.4 (%s), which writes kernels, was not found: install it, or set FLASHKILN_LUA to the file",
                FK_LUA_SONAME);
    return library;
}

static fk_status open_locked(fk_error *err) {
    void *library = find_library(err);
    if (!library) return FK_NO_COMPILER;
    lua_Number (*version)(lua_State *) = NULL;
    *(void **)&version = dlsym(library, "lua_version");
    const double number = version ? version(NULL) : 0;
    fk_status status = FK_OK;
    if (!(number >= LUA_VERSION_NUM && number <= LUA_VERSION_NUM))
        status = fk_fail(err, FK_NO_COMPILER, "Lua is version %g: %d is needed", number, LUA_VERSION_NUM);
    for (size_t i = 0; i < sizeof functions / sizeof *functions && status == FK_OK; i++)
        if (!(*functions[i].to = dlsym(library, functions[i].name)))
            status = fk_fail(err, FK_NO_COMPILER, "Lua's library has no function %s", functions[i].name);
    if (status == FK_OK)
        __atomic_store_n(&opened, true, __ATOMIC_RELEASE);
    else
        dlclose(library);
    return status;
}

fk_status fk_lua_library(fk_error *err) {
    if (__atomic_load_n(&opened, __ATOMIC_ACQUIRE)) return FK_OK;
    pthread_mutex_lock(&lock);
    if (!opened && !failure.status) open_locked(&failure);
    const fk_status status = failure.status;
    if (status && err) *err = failure;
    pthread_mutex_unlock(&lock);
    return status;
}

#endif

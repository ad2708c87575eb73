/* A sandboxed Lua state: what templates, masks and arch files run in.
 *
 * Everything that touches the state is a body run by fk_lua_call, so that every Lua error, the memory limit and the
 * instruction limit come back as a status. A body is left by longjmp when it fails: what it allocates, Lua must own. */
#ifndef FK_GEN_LUA_HOST_H
#define FK_GEN_LUA_HOST_H

#include "error.h"

#include <stdbool.h>

enum { FK_MAX_TEMPLATE_BYTES = 4 << 20 }; /* of a file of template_dir */

typedef struct lua_State lua_State; /* lua.h */
typedef struct fk_lua fk_lua;

typedef struct fk_lua_limits {
    size_t memory;        /* bytes of all Lua objects */
    int64_t instructions; /* of all calls */
    int64_t fail_at;      /* tests: allocations from this one on fail; 0 = never */
} fk_lua_limits;

/** Opens Lua's library once; any thread. @return FK_NO_COMPILER: there is no Lua 5.4 here; the message says how to name
 * it
 */
fk_status fk_lua_library(fk_error *err);

/** What a null template_dir means: $FLASHKILN_TEMPLATE_DIR, or null. */
const char *fk_template_dir(void);
/** Whether "templates/mask/causal.lua" exists, in template_dir (may be null: none) or embedded. True, too, where that
 *  cannot be told: reading it says why. */
bool fk_template_exists(const char *template_dir, const char *path);

/** The path of its file that stands before the embedded "templates/mask/causal.lua". False: there is none. */
bool fk_template_override(const char *template_dir, const char *path, char *out, size_t size);

/** `template_dir` (null: fk_template_dir) stands before the embedded templates/ and must outlive the state.
 *  `limits`: null = the defaults. */
fk_status fk_lua_open(const char *template_dir, const fk_lua_limits *limits, fk_lua **out, fk_error *err);
void fk_lua_close(fk_lua *lua);

typedef void (*fk_lua_body)(lua_State *L, void *arg);
/** Runs body(L, arg) and restores the stack. @return the body's failure: FK_TEMPLATE_ERROR, FK_NO_MEMORY, FK_IO, or
 *  what it raised */
fk_status fk_lua_call(fk_lua *lua, fk_lua_body body, void *arg, fk_error *err);

/* In bodies only. */

/** Ends the body with a status of its own. */
_Noreturn void fk_lua_raise(lua_State *L, fk_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/** Runs a file ("templates/mask/causal.lua") and pushes the one value it returns. */
void fk_lua_run(lua_State *L, const char *path);
/** fk_template_exists in the state's own template_dir. */
bool fk_lua_has_file(lua_State *L, const char *path);
/** read_file(path) -> text, as a Lua function. */
int fk_lua_read_file(lua_State *L);
/** Lets the table on top fall back on the library of Lua files; what is in neither is nil. */
void fk_lua_extend_globals(lua_State *L);
/** Makes reads of fields that the table on top lacks errors that name them, except `optional` (null-terminated). */
void fk_lua_seal(lua_State *L, const char *name, const char *const *optional);

#endif

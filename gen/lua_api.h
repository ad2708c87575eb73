/* Lua's functions, opened on first need: a program whose kernels all come from a pack starts, and runs, on a machine
 * without liblua. Where Lua is linked in (a wheel), these names are the functions themselves.
 *
 * FK_LUA_SONAME: the file name of the library that the headers belong to; not defined where Lua is linked in. */
#ifndef FK_GEN_LUA_API_H
#define FK_GEN_LUA_API_H

#include "lua_host.h"

#include <stdbool.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#ifdef FK_LUA_SONAME

/* All that gen uses, macros of lua.h resolved. */
#define FK_LUA_FUNCTIONS(X)                                                                                            \
    X(lua_callk)                                                                                                       \
    X(lua_close)                                                                                                       \
    X(lua_copy)                                                                                                        \
    X(lua_createtable)                                                                                                 \
    X(lua_error)                                                                                                       \
    X(lua_getfield)                                                                                                    \
    X(lua_geti)                                                                                                        \
    X(lua_gettop)                                                                                                      \
    X(lua_isinteger)                                                                                                   \
    X(lua_newstate)                                                                                                    \
    X(lua_newuserdatauv)                                                                                               \
    X(lua_next)                                                                                                        \
    X(lua_pcallk)                                                                                                      \
    X(lua_pushboolean)                                                                                                 \
    X(lua_pushcclosure)                                                                                                \
    X(lua_pushfstring)                                                                                                 \
    X(lua_pushinteger)                                                                                                 \
    X(lua_pushlightuserdata)                                                                                           \
    X(lua_pushlstring)                                                                                                 \
    X(lua_pushnil)                                                                                                     \
    X(lua_pushstring)                                                                                                  \
    X(lua_pushvalue)                                                                                                   \
    X(lua_rawget)                                                                                                      \
    X(lua_rawgeti)                                                                                                     \
    X(lua_rawlen)                                                                                                      \
    X(lua_rawset)                                                                                                      \
    X(lua_rotate)                                                                                                      \
    X(lua_setfield)                                                                                                    \
    X(lua_sethook)                                                                                                     \
    X(lua_seti)                                                                                                        \
    X(lua_setmetatable)                                                                                                \
    X(lua_settop)                                                                                                      \
    X(lua_setupvalue)                                                                                                  \
    X(lua_toboolean)                                                                                                   \
    X(lua_tointegerx)                                                                                                  \
    X(lua_tolstring)                                                                                                   \
    X(lua_touserdata)                                                                                                  \
    X(lua_type)                                                                                                        \
    X(lua_typename)                                                                                                    \
    X(luaL_checklstring)                                                                                               \
    X(luaL_checkstack)                                                                                                 \
    X(luaL_loadbufferx)                                                                                                \
    X(luaL_requiref)                                                                                                   \
    X(luaL_tolstring)                                                                                                  \
    X(luaL_where)                                                                                                      \
    X(luaopen_base)                                                                                                    \
    X(luaopen_math)                                                                                                    \
    X(luaopen_string)                                                                                                  \
    X(luaopen_table)

typedef struct fk_lua_functions {
#define FK_LUA_MEMBER(name) __typeof__(&name) name##_;
    FK_LUA_FUNCTIONS(FK_LUA_MEMBER)
#undef FK_LUA_MEMBER
} fk_lua_functions;
extern fk_lua_functions fk_lua_table; /* complete once fk_lua_library has said FK_OK */

#define lua_callk fk_lua_table.lua_callk_
#define lua_close fk_lua_table.lua_close_
#define lua_copy fk_lua_table.lua_copy_
#define lua_createtable fk_lua_table.lua_createtable_
#define lua_error fk_lua_table.lua_error_
#define lua_getfield fk_lua_table.lua_getfield_
#define lua_geti fk_lua_table.lua_geti_
#define lua_gettop fk_lua_table.lua_gettop_
#define lua_isinteger fk_lua_table.lua_isinteger_
#define lua_newstate fk_lua_table.lua_newstate_
#define lua_newuserdatauv fk_lua_table.lua_newuserdatauv_
#define lua_next fk_lua_table.lua_next_
#define lua_pcallk fk_lua_table.lua_pcallk_
#define lua_pushboolean fk_lua_table.lua_pushboolean_
#define lua_pushcclosure fk_lua_table.lua_pushcclosure_
#define lua_pushfstring fk_lua_table.lua_pushfstring_
#define lua_pushinteger fk_lua_table.lua_pushinteger_
#define lua_pushlightuserdata fk_lua_table.lua_pushlightuserdata_
#define lua_pushlstring fk_lua_table.lua_pushlstring_
#define lua_pushnil fk_lua_table.lua_pushnil_
#define lua_pushstring fk_lua_table.lua_pushstring_
#define lua_pushvalue fk_lua_table.lua_pushvalue_
#define lua_rawget fk_lua_table.lua_rawget_
#define lua_rawgeti fk_lua_table.lua_rawgeti_
#define lua_rawlen fk_lua_table.lua_rawlen_
#define lua_rawset fk_lua_table.lua_rawset_
#define lua_rotate fk_lua_table.lua_rotate_
#define lua_setfield fk_lua_table.lua_setfield_
#define lua_sethook fk_lua_table.lua_sethook_
#define lua_seti fk_lua_table.lua_seti_
#define lua_setmetatable fk_lua_table.lua_setmetatable_
#define lua_settop fk_lua_table.lua_settop_
#define lua_setupvalue fk_lua_table.lua_setupvalue_
#define lua_toboolean fk_lua_table.lua_toboolean_
#define lua_tointegerx fk_lua_table.lua_tointegerx_
#define lua_tolstring fk_lua_table.lua_tolstring_
#define lua_touserdata fk_lua_table.lua_touserdata_
#define lua_type fk_lua_table.lua_type_
#define lua_typename fk_lua_table.lua_typename_
#define luaL_checklstring fk_lua_table.luaL_checklstring_
#define luaL_checkstack fk_lua_table.luaL_checkstack_
#define luaL_loadbufferx fk_lua_table.luaL_loadbufferx_
#define luaL_requiref fk_lua_table.luaL_requiref_
#define luaL_tolstring fk_lua_table.luaL_tolstring_
#define luaL_where fk_lua_table.luaL_where_
#define luaopen_base fk_lua_table.luaopen_base_
#define luaopen_math fk_lua_table.luaopen_math_
#define luaopen_string fk_lua_table.luaopen_string_
#define luaopen_table fk_lua_table.luaopen_table_

#endif

#endif

#include "bind.h"

#include "abi.h"
#include "lua_table.h"

#include <lauxlib.h>
#include <lua.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- arch ---- */

static void push_arch(lua_State *L, const char *name, int depth);

/* The table on top gets its parent's fields. A child may only set what its parent has, so that a typo is no new field.
 */
static void inherit(lua_State *L, const char *path, int depth) {
    char parent[32];
    fk_table_text(L, path, "inherits", parent, sizeof parent);
    lua_pushnil(L);
    lua_setfield(L, -2, "inherits");
    push_arch(L, parent, depth + 1);
    lua_pushnil(L);
    while (lua_next(L, -3)) { /* child, parent, key, value */
        lua_pushvalue(L, -2);
        const int type = lua_rawget(L, -4);
        if (type != lua_type(L, -2)) {
            const char *field = luaL_tolstring(L, -3, NULL);
            fk_lua_raise(L, FK_TEMPLATE_ERROR, "%s: field '%s' is a %s: must be a %s, as in its parent %s", path, field,
                         luaL_typename(L, -3), type == LUA_TNIL ? "field that is" : lua_typename(L, type), parent);
        }
        lua_pop(L, 1);
        lua_pushvalue(L, -2);
        lua_insert(L, -2);
        lua_rawset(L, -4); /* the parent takes the child's value */
    }
    lua_remove(L, -2);
}

static void push_arch(lua_State *L, const char *name, int depth) {
    char path[64];
    snprintf(path, sizeof path, "templates/arch/%s.lua", name);
    luaL_checkstack(L, 16, path);
    if (depth > 8) fk_lua_raise(L, FK_TEMPLATE_ERROR, "%s: inherits more than 8 deep", path);
    fk_table_run(L, path);
    const int type = lua_getfield(L, -1, "inherits");
    lua_pop(L, 1);
    if (type != LUA_TNIL) inherit(L, path, depth);
}

/* The registry's row for an SM: its own, else the nearest lower one. Its table stays on the stack. */
static int registry_row(lua_State *L, int device_sm, char *file, size_t size) {
    static const char path[] = "templates/registry.lua";
    fk_table_run(L, path);
    int best = 0;
    lua_pushnil(L);
    while (lua_next(L, -2)) {
        if (!lua_isinteger(L, -2) || lua_type(L, -1) != LUA_TSTRING || strlen(lua_tostring(L, -1)) >= size) {
            fk_lua_raise(L, FK_TEMPLATE_ERROR, "%s: a row must be [SM] = \"arch file\"", path);
        }
        const lua_Integer sm = lua_tointeger(L, -2);
        if (sm <= device_sm && sm > best) {
            best = (int)sm;
            snprintf(file, size, "%s", lua_tostring(L, -1));
        }
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
    if (!best) fk_lua_raise(L, FK_UNSUPPORTED, "no templates for sm_%d: no row of %s is as low", device_sm, path);
    return best;
}

static void read_tiles(lua_State *L, const char *path, const char *field, fk_arch *out) {
    if (lua_getfield(L, -1, field) != LUA_TTABLE) fk_table_fail(L, path, field, "an array of tiles");
    const lua_Unsigned count = lua_rawlen(L, -1);
    if (count < 1 || count > FK_MAX_TILES) {
        fk_lua_raise(L, FK_TEMPLATE_ERROR, "%s: has %d %s: must be from 1 to %d", path, (int)count, field,
                     FK_MAX_TILES);
    }
    for (out->num_tiles = 0; out->num_tiles < (int)count; ++out->num_tiles) {
        fk_tile *tile = &out->tile[out->num_tiles];
        char where[128];
        snprintf(where, sizeof where, "%s: %s[%d]", path, field, out->num_tiles + 1);
        if (lua_geti(L, -1, out->num_tiles + 1) != LUA_TTABLE)
            fk_lua_raise(L, FK_TEMPLATE_ERROR, "%s: not a table", where);
        fk_table_check(L, where, " block_m block_n warps stages q_in_regs ctas ");
        tile->block_m = fk_table_int(L, where, "block_m", 1, 4096);
        tile->block_n = fk_table_int(L, where, "block_n", 1, 4096);
        tile->warps = fk_table_int(L, where, "warps", 1, 32);
        tile->stages = fk_table_int(L, where, "stages", 1, 16);
        tile->q_in_regs = fk_table_bool(L, where, "q_in_regs");
        tile->ctas = fk_table_int(L, where, "ctas", 1, 32);
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
}

void fk_bind_read_arch(lua_State *L, int device_sm, int op, fk_arch *out) {
    char file[32] = "", path[64];
    memset(out, 0, sizeof *out);
    out->sm = registry_row(L, device_sm, file, sizeof file);
    push_arch(L, file, 0);
    snprintf(path, sizeof path, "templates/arch/%s.lua", file);
    lua_pushinteger(L, out->sm);
    lua_setfield(L, -2, "sm");
    fk_table_text(L, path, "name", out->name, sizeof out->name);
    fk_table_text(L, path, "family", out->family, sizeof out->family);
    out->mma_k = fk_table_int(L, path, "mma_k", 1, 256);
    out->async_copy = fk_table_bool(L, path, "async_copy");
    out->bf16 = fk_table_bool(L, path, "bf16");
    read_tiles(L, path, op == FK_BACKWARD ? "backward_tiles" : "tiles", out);
    fk_lua_seal(L, "arch", NULL);
}

/* ---- what templates see ---- */

void fk_bind_push_problem(lua_State *L, const fk_problem *p, const char *spelling) {
    lua_newtable(L);
    fk_table_set_text(L, "op", p->op == FK_BACKWARD ? "bwd" : "fwd");
    fk_table_set_text(L, "dtype", p->dtype == FK_BF16 ? "bf16" : "fp16");
    fk_table_set_int(L, "head_dim", p->head_dim);
    fk_table_set_int(L, "head_dim_v", p->head_dim_v);
    fk_table_set_bool(L, "gqa", p->gqa);
    fk_table_set_bool(L, "deterministic", p->deterministic);
    fk_table_set_text(L, "spelling", spelling);
    fk_lua_seal(L, "problem", NULL);
}

void fk_bind_push_plan(lua_State *L, const fk_problem *p, const fk_tile *tile, const char *summary) {
    lua_newtable(L);
    fk_table_set_int(L, "block_m", tile->block_m);
    fk_table_set_int(L, "block_n", tile->block_n);
    fk_table_set_int(L, "warps", tile->warps);
    fk_table_set_int(L, "threads", tile->warps * 32);
    if (p->op == FK_FORWARD) fk_table_set_int(L, "rows_per_warp", tile->block_m / tile->warps);
    fk_table_set_int(L, "stages", tile->stages);
    fk_table_set_bool(L, "q_in_regs", tile->q_in_regs);
    fk_table_set_int(L, "ctas_per_sm", tile->ctas);
    lua_newtable(L);
    for (lua_Integer line = 1; *summary; ++line) {
        const size_t length = strcspn(summary, "\n");
        lua_pushlstring(L, summary, length);
        lua_seti(L, -2, line);
        summary += length + (summary[length] == '\n');
    }
    lua_setfield(L, -2, "summary");
    fk_lua_seal(L, "plan", NULL);
}

void fk_bind_read_layout(lua_State *L, const fk_problem *p, const fk_tile *tile, int arch, fk_smem_layout *out) {
    static const char path[] = "gen/layout.lua";
    luaL_checkstack(L, 16, path);
    fk_lua_run(L, path);
    fk_bind_push_problem(L, p, "");
    fk_bind_push_plan(L, p, tile, "");
    lua_pushvalue(L, arch);
    lua_call(L, 3, 1);
    if (!lua_istable(L, -1)) fk_lua_raise(L, FK_TEMPLATE_ERROR, "%s: must return a table", path);
    out->bytes = fk_table_int(L, path, "bytes", 0, INT_MAX);
    out->d_pad = fk_table_int(L, path, "d_pad", p->head_dim, 2 * FK_MAX_HEAD_DIM);
    out->dv_pad = fk_table_int(L, path, "dv_pad", p->head_dim_v, 2 * FK_MAX_HEAD_DIM);
    out->col_warps = p->op == FK_BACKWARD ? fk_table_int(L, path, "col_warps", 1, 32) : 1;
    fk_lua_seal(L, "layout", NULL);
}

/* ---- masks as text ---- */

/* Each bound twice: over intervals, and at one query (backward: at one key). */
static fk_status print_bounds(const fk_expr *const *bounds, int count, char **intervals, char **at, fk_error *err) {
    fk_status status = FK_OK;
    for (int i = 0; i < count && status == FK_OK; ++i) {
        status = fk_expr_print(bounds[i], FK_EXPR_INTERVAL, &intervals[i], err);
        if (status == FK_OK) status = fk_expr_print(bounds[i], FK_EXPR_CUDA, &at[i], err);
    }
    return status;
}

fk_status fk_mask_texts_create(const fk_problem_mask *mask, fk_mask_texts *out, fk_error *err) {
    const fk_expr_split *split = &mask->split;
    memset(out, 0, sizeof *out);
    if (!mask->keep) return FK_OK;
    fk_status status = fk_expr_print(mask->keep, FK_EXPR_CUDA, &out->keep, err);
    if (status == FK_OK) status = print_bounds(split->upper, split->num_upper, out->upper, out->upper_at, err);
    if (status == FK_OK) status = print_bounds(split->lower, split->num_lower, out->lower, out->lower_at, err);
    if (status == FK_OK && split->residual) {
        status = fk_expr_print(split->residual, FK_EXPR_INTERVAL, &out->residual, err);
        if (status == FK_OK) status = fk_expr_print(split->residual, FK_EXPR_CUDA, &out->residual_keep, err);
    }
    if (status != FK_OK) fk_mask_texts_free(out);
    return status;
}

void fk_mask_texts_free(fk_mask_texts *texts) {
    free(texts->keep);
    free(texts->residual);
    free(texts->residual_keep);
    for (int i = 0; i < FK_EXPR_MAX_BOUNDS; ++i) {
        free(texts->upper[i]);
        free(texts->lower[i]);
        free(texts->upper_at[i]);
        free(texts->lower_at[i]);
    }
    memset(texts, 0, sizeof *texts);
}

static void set_texts(lua_State *L, const char *field, char *const *texts, int count) {
    lua_newtable(L);
    for (int i = 0; i < count; ++i) {
        lua_pushstring(L, texts[i]);
        lua_seti(L, -2, i + 1);
    }
    lua_setfield(L, -2, field);
}

void fk_bind_push_mask(lua_State *L, const fk_problem_terms *terms, const fk_mask_texts *texts, int q_order) {
    const fk_problem_mask *mask = &terms->mask;
    static const char *const optional[] = {"keep", "residual", "residual_keep", NULL};
    lua_newtable(L);
    if (texts->keep) fk_table_set_text(L, "keep", texts->keep);
    if (texts->residual) fk_table_set_text(L, "residual", texts->residual);
    if (texts->residual_keep) fk_table_set_text(L, "residual_keep", texts->residual_keep);
    set_texts(L, "upper", texts->upper, mask->split.num_upper);
    set_texts(L, "lower", texts->lower, mask->split.num_lower);
    set_texts(L, "upper_at", texts->upper_at, mask->split.num_upper);
    set_texts(L, "lower_at", texts->lower_at, mask->split.num_lower);
    fk_table_set_int(L, "q_order", q_order);
    fk_table_set_bool(L, "reads", mask->keep && fk_array_list_reads(&terms->arrays, mask->keep));
    lua_newtable(L);
    for (int i = 0; i < FK_MASK_NUM_SYMBOLS; ++i) {
        const char *name = fk_mask_symbols[i].name;
        fk_table_set_bool(L, name, mask->keep && fk_expr_uses(mask->keep, name));
    }
    fk_lua_seal(L, "mask.uses", NULL);
    lua_setfield(L, -2, "uses");
    lua_newtable(L);
    for (int i = 0; i < mask->num_params; ++i) {
        lua_pushstring(L, mask->param[i].name);
        lua_seti(L, -2, i + 1);
    }
    lua_setfield(L, -2, "params");
    fk_lua_seal(L, "mask", optional);
}

static void add_param(lua_State *L, int *count, const char *type, const char *name) {
    lua_newtable(L);
    fk_table_set_text(L, "type", type);
    fk_table_set_text(L, "name", name);
    fk_lua_seal(L, "params[i]", NULL);
    lua_seti(L, -2, ++*count);
}

void fk_bind_push_params(lua_State *L, int op, const fk_problem_terms *terms) {
    int count = 0;
    lua_newtable(L);
#define FK_FIELD(ctype, cudatype, name) add_param(L, &count, #cudatype, #name);
    if (op == FK_BACKWARD) {
        FK_BACKWARD_PARAMS(FK_FIELD)
    } else {
        FK_FORWARD_PARAMS(FK_FIELD)
    }
#undef FK_FIELD
    char values[32];
    snprintf(values, sizeof values, "mask_value[%d]", FK_MAX_MASK_SLOTS);
    add_param(L, &count, "int", values);
    if (!terms->score.num_params && !terms->arrays.count) return;
    snprintf(values, sizeof values, "score_value[%d]", FK_MAX_SCORE_SLOTS);
    add_param(L, &count, "int", values);
    if (!terms->arrays.count) return;
    snprintf(values, sizeof values, "array[%d]", terms->arrays.count);
    add_param(L, &count, "Array", values);
}

/* Arch files (templates/arch) and what their tiles say of warpgroups. */
#include "bind.h"

#include "lua_api.h"
#include "lua_table.h"
#include "plan.h"

#include <stdio.h>
#include <string.h>

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

/* dQ may do without a buffer. */
static void read_tile(lua_State *L, const char *where, bool wgmma, bool floats, int least_q_stages, fk_tile *tile) {
    fk_table_check(L, where,
                   wgmma    ? " block_m block_n warps stages q_in_regs ctas q_stages k_stages turns overlap head_rows "
                   : floats ? " block_m block_n warps stages q_in_regs ctas k_stages "
                            : " block_m block_n warps stages q_in_regs ctas dq_kernel ");
    tile->block_m = fk_table_int(L, where, "block_m", 1, 4096);
    tile->block_n = fk_table_int(L, where, "block_n", 1, 4096);
    tile->warps = fk_table_int(L, where, "warps", 1, 32);
    tile->stages = fk_table_int(L, where, "stages", 1, 16);
    tile->q_in_regs = fk_table_bool(L, where, "q_in_regs");
    tile->ctas = fk_table_int(L, where, "ctas", 1, 32);
    tile->wgmma = wgmma;
    if (wgmma) {
        tile->q_stages = fk_table_int(L, where, "q_stages", least_q_stages, 2);
        tile->k_stages = fk_table_int(L, where, "k_stages", 1, 16);
        tile->turns = fk_table_bool(L, where, "turns");
        tile->overlap = fk_table_int(L, where, "overlap", 1, 2);
    }
    if (floats) tile->k_stages = fk_table_int(L, where, "k_stages", 0, 1);
    const bool of_head = lua_getfield(L, -1, "head_rows") != LUA_TNIL;
    lua_pop(L, 1);
    tile->head_rows = of_head ? fk_table_int(L, where, "head_rows", 1, 4096) : 0;
    const bool given = lua_getfield(L, -1, "dq_kernel") != LUA_TNIL;
    lua_pop(L, 1);
    tile->dq_kernel = given && fk_table_bool(L, where, "dq_kernel");
}

/* Returns their number. */
static int read_tiles(lua_State *L, const char *path, const char *field, fk_tile tiles[], int most) {
    const bool backward = strncmp(field, "wgmma_backward_", 15) == 0;
    const bool wgmma = strncmp(field, "wgmma_", 6) == 0 || strncmp(field, "e4m3_", 5) == 0;
    if (lua_getfield(L, -1, field) != LUA_TTABLE) fk_table_fail(L, path, field, "an array of tiles");
    const lua_Unsigned count = lua_rawlen(L, -1);
    if (count < 1 || count > (lua_Unsigned)most) {
        fk_lua_raise(L, FK_TEMPLATE_ERROR, "%s: has %d %s: must be from 1 to %d", path, (int)count, field, most);
    }
    for (int i = 0; i < (int)count; ++i) {
        char where[128];
        snprintf(where, sizeof where, "%s: %s[%d]", path, field, i + 1);
        if (lua_geti(L, -1, i + 1) != LUA_TTABLE) fk_lua_raise(L, FK_TEMPLATE_ERROR, "%s: not a table", where);
        const bool floats = strcmp(field, "fp32_tiles") == 0 || strcmp(field, "fp32_backward_tiles") == 0;
        read_tile(L, where, wgmma, floats, backward ? 0 : 1, &tiles[i]);
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
    return (int)count;
}

/* Tensor cores without bf16 have no tiles for fp32, and what has no kernel of dq none for it. */
static bool has_tiles(lua_State *L, const char *field) {
    lua_getfield(L, -1, field);
    const bool any = lua_istable(L, -1) && lua_rawlen(L, -1) > 0;
    lua_pop(L, 1);
    return any;
}

static void append_tiles(lua_State *L, const char *path, const char *field, fk_arch *out) {
    out->num_tiles += read_tiles(L, path, field, out->tile + out->num_tiles, FK_MAX_TILES - out->num_tiles);
}

void fk_bind_read_arch(lua_State *L, int device_sm, const fk_problem *p, fk_arch *out) {
    const bool backward = p->op == FK_BACKWARD;
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
    out->vector_add = fk_table_bool(L, path, "vector_add");
    out->early_start = fk_table_bool(L, path, "early_start");
    out->bf16 = fk_table_bool(L, path, "bf16");
    out->e4m3 = fk_table_bool(L, path, "e4m3");
    const char *fp32_tiles = backward ? "fp32_backward_tiles" : "fp32_tiles";
    out->fp32 = has_tiles(L, fp32_tiles);
    const bool fp32 = p->dtype == FK_FP32 && out->fp32;
    const char *tiles = fp32 ? fp32_tiles : backward ? "backward_tiles" : "tiles";
    const bool e4m3 = p->dtype == FK_E4M3;
    const char *wgmma_tiles = fk_sums_by_products(p) ? "e4m3_fast_tiles"
                              : e4m3                 ? "e4m3_tiles"
                              : backward      ? fk_is_wide(p) ? "wgmma_backward_halved_tiles" : "wgmma_backward_tiles"
                              : fk_is_wide(p) ? "wgmma_halved_tiles"
                                              : "wgmma_tiles";
    if (has_tiles(L, wgmma_tiles)) {
        out->wgmma_flops = fk_table_int(L, path, "wgmma_flops", 1, 1 << 20) * (e4m3 ? 2 : 1);
        append_tiles(L, path, wgmma_tiles, out);
    }
    if (!out->num_tiles || has_tiles(L, tiles)) append_tiles(L, path, tiles, out);
    const char *split_tiles =
        fk_kv_dtype(p) == FK_E4M3 && has_tiles(L, "split_e4m3_tiles") ? "split_e4m3_tiles" : "split_tiles";
    if (p->split && !fp32) append_tiles(L, path, split_tiles, out);
    for (int i = 0; i < out->num_tiles && backward; ++i) {
        out->tile[i].walks_q = true;
        out->tile[i].dq_kernel = out->tile[i].dq_kernel || (p->deterministic && !out->tile[i].wgmma);
        out->tile[i].adders = out->tile[i].wgmma && fk_has_adders(p, out->tile[i].q_stages, out->tile[i].head_rows);
    }
    const char *dq_tiles = fp32 ? "fp32_dq_tiles" : "dq_tiles";
    if (backward && has_tiles(L, dq_tiles))
        out->num_dq_tiles = read_tiles(L, path, dq_tiles, out->dq_tile, FK_MAX_TILES);
    fk_lua_seal(L, "arch", NULL);
}

const char *fk_tile_family(const fk_tile *tile) {
    return tile->wgmma ? "wgmma" : "mma";
}

bool fk_tile_parted(const fk_problem *p, const fk_tile *tile) {
    return p->dtype == FK_FP32 && !tile->wgmma && tile->k_stages > 0;
}

bool fk_tile_widens(const fk_problem *p, const fk_tile *tile) {
    return fk_kv_dtype(p) == FK_E4M3 && !tile->wgmma;
}

bool fk_tile_widens_before(const fk_problem *p, const fk_tile *tile) {
    return p->kv_e4m3 && tile->wgmma;
}

int32_t fk_operand_dtype(const fk_problem *p, const fk_tile *tile) {
    return p->dtype == FK_E4M3 && fk_tile_widens(p, tile) ? FK_FP16 : p->dtype;
}

static int computing_warpgroups(const fk_tile *tile) {
    return tile->wgmma ? tile->warps / 4 - 1 : 0;
}

bool fk_tile_halved(const fk_problem *p, const fk_tile *tile) {
    return tile->wgmma && fk_is_wide(p);
}

bool fk_tile_takes_values_from_keys(const fk_problem *p, const fk_tile *tile) {
    return p->latent && !tile->walks_q && fk_tile_halved(p, tile) && p->head_dim_v % 128 == 0 &&
           (p->head_dim - p->head_dim_v) % 32 == 0;
}

int fk_tile_cluster(const fk_problem *p, const fk_tile *tile) {
    if (!tile->wgmma) return 1;
    if (fk_tile_halved(p, tile)) return 2;
    const bool shared = tile->walks_q ? tile->block_n == 128 && p->head_dim > 128 /* a tile of keys, or of queries: */
                                      : tile->block_m == 128 * computing_warpgroups(tile);
    return shared ? 2 : 1;
}

/* Of neighbouring heads one is the one side's, the other the other's, so that none may share their keys. Up to head_dim
 * 64, and of packed sequences, sides gained nothing (docs/performance-log.md). */
bool fk_tile_may_have_sides(const fk_problem *p, const fk_tile *tile) {
    return tile->wgmma && !tile->walks_q && p->head_dim > 64 && !p->gqa && !p->packed && fk_tile_cluster(p, tile) == 1;
}

int fk_tile_teams(const fk_tile *tile) {
    const int of_rows = tile->block_m / 64, computing = computing_warpgroups(tile);
    return !tile->walks_q && of_rows > 0 && computing > of_rows && computing % of_rows == 0 ? computing / of_rows : 1;
}

int fk_tile_consumers(const fk_tile *tile) {
    return computing_warpgroups(tile) / fk_tile_teams(tile);
}

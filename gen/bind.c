/* What templates see of a problem and a plan: structs to Lua tables, strict both ways. */
#include "bind.h"

#include "abi.h"
#include "lua_api.h"
#include "lua_table.h"
#include "plan.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void fk_bind_push_problem(lua_State *L, const fk_problem *p, const char *spelling) {
    lua_newtable(L);
    fk_table_set_text(L, "op", p->op == FK_BACKWARD ? "bwd" : "fwd");
    fk_table_set_text(L, "dtype", fk_dtype_name(p->dtype));
    fk_table_set_text(L, "kv_dtype", fk_dtype_name(fk_kv_dtype(p)));
    fk_table_set_text(L, "output_dtype", fk_dtype_name(fk_output_dtype(p->dtype)));
    fk_table_set_int(L, "element_bytes", fk_dtype_bytes(p->dtype));
    fk_table_set_int(L, "head_dim", p->head_dim);
    fk_table_set_int(L, "head_dim_v", p->head_dim_v);
    fk_table_set_int(L, "slices", fk_slices(p));
    fk_table_set_bool(L, "gqa", p->gqa);
    fk_table_set_bool(L, "top_left", p->align == FK_TOP_LEFT);
    fk_table_set_bool(L, "dropout", p->dropout);
    fk_table_set_bool(L, "packed", p->packed);
    fk_table_set_bool(L, "seqused_k", p->seqused_k);
    fk_table_set_bool(L, "deterministic", p->deterministic);
    fk_table_set_bool(L, "split", p->split);
    fk_table_set_bool(L, "joins_heads", fk_problem_joins_heads(p));
    fk_table_set_bool(L, "paged", p->paged);
    fk_table_set_int(L, "page_rows", p->paged);
    fk_table_set_bool(L, "fast", p->fast);
    fk_table_set_bool(L, "prescaled", fk_prescales_queries(p));
    fk_table_set_int(L, "value_rows", fk_value_rows(p));
    fk_table_set_text(L, "spelling", spelling);
    fk_lua_seal(L, "problem", NULL);
}

/* What the kernels call the number of queries or keys, of those walked over, whose scores they hold at once. */
static const char *score_block(const fk_tile *tile, bool halved) {
    if (tile->walks_q) return tile->wgmma ? "part_m" : "block_m";
    return halved ? "half_n" : "block_n";
}

void fk_bind_push_plan(lua_State *L, const fk_problem *p, const fk_tile *tile, const char *summary) {
    const bool halved = fk_tile_halved(p, tile);
    lua_newtable(L);
    fk_table_set_text(L, "family", fk_tile_family(tile));
    fk_table_set_bool(L, "widens", fk_tile_widens(p, tile));
    fk_table_set_bool(L, "parted", fk_tile_parted(p, tile));
    fk_table_set_bool(L, "widens_before", fk_tile_widens_before(p, tile));
    fk_table_set_bool(L, "widens_pages", fk_tile_widens_before(p, tile) && p->paged);
    fk_table_set_text(L, "operands", fk_dtype_name(fk_operand_dtype(p, tile))); /* of products */
    fk_table_set_int(L, "block_m", tile->block_m);
    fk_table_set_int(L, "block_n", tile->block_n);
    fk_table_set_int(L, "warps", tile->warps);
    fk_table_set_int(L, "threads", tile->warps * 32);
    if (!tile->walks_q) fk_table_set_int(L, "rows_per_warp", tile->wgmma ? 16 : tile->block_m / tile->warps);
    fk_table_set_int(L, "stages", tile->stages);
    fk_table_set_bool(L, "q_in_regs", tile->q_in_regs);
    fk_table_set_int(L, "ctas_per_sm", tile->ctas);
    fk_table_set_text(L, "walk", tile->walks_q ? "q" : "k");
    fk_table_set_bool(L, "dq_kernel", tile->dq_kernel);
    fk_table_set_int(L, "q_stages", tile->q_stages);
    fk_table_set_int(L, "k_stages", tile->k_stages);
    fk_table_set_bool(L, "turns", tile->turns);
    fk_table_set_bool(L, "adders", tile->adders);
    fk_table_set_int(L, "overlap", tile->overlap);
    fk_table_set_bool(L, "parts", tile->parts && !tile->walks_q); /* backward: leading tiles, which are all */
    fk_table_set_int(L, "parts_alone", FK_PARTS_ALONE);
    fk_table_set_int(L, "head_rows", tile->head_rows);
    fk_table_set_int(L, "teams", fk_tile_teams(tile));
    fk_table_set_int(L, "consumers", fk_tile_consumers(tile));
    fk_table_set_int(L, "cluster", fk_tile_cluster(p, tile));
    fk_table_set_bool(L, "halved", halved);
    fk_table_set_text(L, "score_block", score_block(tile, halved));
    fk_table_set_text(L, "score_key", halved && !tile->walks_q ? "half_key" : "own_key");
    fk_table_set_bool(L, "values_are_keys", fk_tile_takes_values_from_keys(p, tile));
    fk_table_set_bool(L, "sides", fk_tile_may_have_sides(p, tile));
    fk_table_set_int(L, "pairs_ahead", fk_wgmma_pairs_ahead(p, tile));
    fk_table_set_int(L, "registers_given", fk_wgmma_consumer_registers(fk_tile_teams(tile) * fk_tile_consumers(tile)));
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

void fk_bind_read_layout(lua_State *L, const fk_problem *p, const fk_tile *tile, int arch, fk_mask_scan scan,
                         fk_smem_layout *out) {
    static const char path[] = "gen/layout.lua";
    luaL_checkstack(L, 16, path);
    if (lua_getfield(L, LUA_REGISTRYINDEX, path) == LUA_TNIL) { /* parsed once for all candidates */
        lua_pop(L, 1);
        fk_lua_run(L, path);
        lua_pushvalue(L, -1);
        lua_setfield(L, LUA_REGISTRYINDEX, path);
    }
    fk_bind_push_problem(L, p, "");
    fk_bind_push_plan(L, p, tile, "");
    lua_pushvalue(L, arch);
    lua_newtable(L);
    fk_table_set_bool(L, "needed", scan.needed);
    fk_table_set_bool(L, "counted", scan.counted);
    fk_table_set_int(L, "query_rows", scan.query_rows);
    fk_table_set_int(L, "key_rows", scan.key_rows);
    fk_table_set_int(L, "own", scan.own);
    out->staged = fk_tile_stages(p, tile) ? scan.staged : 0;
    out->unstaged = scan.staged && tile->wgmma && !out->staged && !(tile->walks_q && p->packed);
    fk_table_set_bool(L, "staged", out->staged > 0);
    fk_table_set_int(L, "staged_bytes", out->staged);
    fk_table_set_bool(L, "lines", scan.lines);
    fk_table_set_bool(L, "long_walk", scan.long_walk);
    fk_table_set_bool(L, "fused", scan.fused);
    fk_lua_seal(L, "scan", NULL);
    lua_call(L, 4, 1);
    if (!lua_istable(L, -1)) fk_lua_raise(L, FK_TEMPLATE_ERROR, "%s: must return a table", path);
    out->bytes = fk_table_int(L, path, "bytes", 0, INT_MAX);
    const bool halved = fk_tile_halved(p, tile);
    out->d_pad = fk_table_int(L, path, "d_pad", p->head_dim / (halved ? 2 : 1), 2 * FK_MAX_HEAD_DIM);
    out->dv_pad = fk_table_int(L, path, "dv_pad", p->head_dim_v / (halved ? 2 : fk_slices(p)), 2 * FK_MAX_HEAD_DIM);
    out->walks_q = tile->walks_q;
    out->wgmma = tile->wgmma;
    out->scans = scan.needed;
    out->long_walk = scan.long_walk;
    out->pattern = scan.pattern;
    out->window = scan.window;
    out->runs = scan.runs;
    out->bits = scan.bits;
    out->lines = scan.lines;
    out->mask_rows = scan.query_rows + scan.key_rows > 0;
    out->col_warps = tile->walks_q ? fk_table_int(L, path, "col_warps", 1, 32) : 1;
    const bool holds = tile->walks_q && tile->wgmma;
    out->d_depth = holds ? fk_table_int(L, path, "d_depth", 1, 2 * FK_MAX_HEAD_DIM) : 0;
    out->dv_depth = holds ? fk_table_int(L, path, "dv_depth", 1, 2 * FK_MAX_HEAD_DIM) : 0;
    out->held_k = holds ? fk_table_int(L, path, "held_k", 0, 16) : 0;
    out->held_v = holds ? fk_table_int(L, path, "held_v", 0, 16) : 0;
    out->kv_buffers = holds ? fk_table_int(L, path, "kv_buffers", 1, 2) : 1;
    out->registers = holds ? fk_table_int(L, path, "registers", 1, 1024) : 0;
    out->registers_given = tile->wgmma ? fk_table_int(L, path, "registers_given", 1, 255) : 0;
    out->dq_share = tile->walks_q && !tile->wgmma ? fk_table_int(L, path, "dq_share", 1, 32) : 0;
    fk_lua_seal(L, "layout", NULL);
}

/* ---- masks as text ---- */

/* Each bound twice: over intervals, and at one query (backward: at one key). */
static fk_status print_bounds(const fk_expr *const *bounds, int count, char **intervals, char **at, fk_error *err) {
    fk_status status = FK_OK;
    for (int i = 0; i < count && status == FK_OK; ++i) {
        status = fk_expr_print(bounds[i], FK_EXPR_INTERVAL, &intervals[i], err);
        if (status == FK_OK) status = fk_expr_print(bounds[i], FK_EXPR_BOUND, &at[i], err);
    }
    return status;
}

fk_status fk_mask_texts_create(const fk_problem_mask *mask, const fk_expr_split *split, const fk_expr *words,
                               fk_mask_texts *out, fk_error *err) {
    memset(out, 0, sizeof *out);
    if (!mask->keep) return FK_OK;
    fk_status status = fk_expr_print(mask->keep, FK_EXPR_CUDA, &out->keep, err);
    if (status == FK_OK) status = print_bounds(split->upper, split->num_upper, out->upper, out->upper_at, err);
    if (status == FK_OK) status = print_bounds(split->lower, split->num_lower, out->lower, out->lower_at, err);
    if (status == FK_OK && split->residual) {
        status = fk_expr_print(split->residual, FK_EXPR_INTERVAL, &out->residual, err);
        if (status == FK_OK) status = fk_expr_print(split->residual, FK_EXPR_CUDA, &out->residual_keep, err);
        if (status == FK_OK && mask->num_own)
            status = fk_expr_print(mask->over_own, FK_EXPR_INTERVAL, &out->over_own, err);
        for (int i = 0; i < mask->num_own && status == FK_OK; ++i)
            status = fk_expr_print(mask->own[i], FK_EXPR_INTERVAL, &out->own[i], err);
    }
    if (status == FK_OK && words) status = fk_expr_print(words, FK_EXPR_CUDA, &out->words, err);
    if (status != FK_OK) fk_mask_texts_free(out);
    return status;
}

void fk_mask_texts_free(fk_mask_texts *texts) {
    free(texts->keep);
    free(texts->residual);
    free(texts->residual_keep);
    free(texts->words);
    free(texts->over_own);
    for (int i = 0; i < FK_EXPR_MAX_OWN; ++i)
        free(texts->own[i]);
    for (int i = 0; i < FK_EXPR_MAX_BOUNDS; ++i) {
        free(texts->upper[i]);
        free(texts->lower[i]);
        free(texts->upper_at[i]);
        free(texts->lower_at[i]);
    }
    memset(texts, 0, sizeof *texts);
}

static void set_texts(lua_State *L, const char *field, char *const *texts, int most) {
    lua_newtable(L);
    for (int i = 0; i < most && texts[i]; ++i) {
        lua_pushstring(L, texts[i]);
        lua_seti(L, -2, i + 1);
    }
    lua_setfield(L, -2, field);
}

/* mask.runs: the arrays of which they are. */
static void push_runs(lua_State *L, const fk_problem_terms *terms) {
    lua_newtable(L);
    fk_bind_set_array(L, "q", &terms->arrays.decl[terms->mask.run_q]);
    fk_bind_set_array(L, "k", &terms->arrays.decl[terms->mask.run_k]);
    fk_lua_seal(L, "mask.runs", NULL);
    lua_setfield(L, -2, "runs");
}

void fk_bind_push_mask(lua_State *L, const fk_problem_terms *terms, const fk_mask_texts *texts,
                       const fk_tile_order *order) {
    const fk_problem_mask *mask = &terms->mask;
    static const char *const optional[] = {"keep", "residual", "residual_keep", "over_own", "runs", "words", NULL};
    lua_newtable(L);
    if (texts->keep) fk_table_set_text(L, "keep", texts->keep);
    if (texts->residual) fk_table_set_text(L, "residual", texts->residual);
    if (texts->residual_keep) fk_table_set_text(L, "residual_keep", texts->residual_keep);
    if (texts->over_own) fk_table_set_text(L, "over_own", texts->over_own);
    if (texts->words) fk_table_set_text(L, "words", texts->words);
    set_texts(L, "own", texts->own, FK_EXPR_MAX_OWN);
    set_texts(L, "upper", texts->upper, FK_EXPR_MAX_BOUNDS);
    set_texts(L, "lower", texts->lower, FK_EXPR_MAX_BOUNDS);
    set_texts(L, "upper_at", texts->upper_at, FK_EXPR_MAX_BOUNDS);
    set_texts(L, "lower_at", texts->lower_at, FK_EXPR_MAX_BOUNDS);
    fk_table_set_int(L, "q_order", order->q_order);
    fk_table_set_int(L, "leading", order->leading);
    fk_table_set_int(L, "leading_rows", order->leading_rows);
    fk_table_set_bool(L, "all_lead", order->leading_rows == FK_ALL_LEAD);
    fk_table_set_bool(L, "unlike", order->unlike);
    fk_table_set_bool(L, "in_blocks", mask->in_blocks);
    if (mask->has_runs && !mask->split_k.residual) push_runs(L, terms);
    fk_table_set_bool(L, "shifts", order->shifts);
    fk_table_set_int(L, "block_k", mask->block_k);
    fk_table_set_int(L, "block_q", mask->block_q);
    fk_table_set_bool(L, "open_q", mask->open_q);
    fk_table_set_bool(L, "open_k", mask->open_k);
    fk_table_set_int(L, "size", mask->split.residual ? fk_expr_size(mask->split.residual) : 0);
    fk_table_set_bool(L, "long_walk", mask->long_walk);
    fk_table_set_bool(L, "reads", mask->keep && fk_array_list_reads(&terms->arrays, mask->keep));
    fk_bind_set_reads_along(L, mask->keep && fk_array_list_reads_along(&terms->arrays, mask->keep, FK_DIM_SEQLEN_Q),
                            mask->keep && fk_array_list_reads_along(&terms->arrays, mask->keep, FK_DIM_SEQLEN_K));
    lua_newtable(L);
    for (int i = 0; i < FK_MASK_NUM_SYMBOLS; ++i) {
        const char *name = fk_mask_symbols[i].name;
        fk_table_set_bool(L, name, mask->keep && (fk_expr_uses(mask->keep, name) || fk_expr_uses(mask->by_q, name)));
    }
    fk_lua_seal(L, "mask.uses", NULL);
    lua_setfield(L, -2, "uses");
    lua_newtable(L);
    for (int i = 0; i < mask->num_params; ++i) {
        lua_pushstring(L, mask->param[i].name);
        lua_seti(L, -2, i + 1);
    }
    lua_setfield(L, -2, "params");
    lua_newtable(L);
    for (int i = 0; i < mask->num_params; ++i) {
        lua_pushboolean(L, mask->param[i].divides);
        lua_seti(L, -2, i + 1);
    }
    lua_setfield(L, -2, "divides"); /* by the i'th param */
    fk_lua_seal(L, "mask", optional);
}

static void add_param(lua_State *L, int *count, const char *type, const char *name) {
    lua_newtable(L);
    fk_table_set_text(L, "type", type);
    fk_table_set_text(L, "name", name);
    fk_lua_seal(L, "params[i]", NULL);
    lua_seti(L, -2, ++*count);
}

void fk_bind_push_params(lua_State *L, const fk_problem *p, bool wgmma, const fk_problem_terms *terms, int staged) {
    const int op = p->op;
    static const char *const maps[] = {"map_q", "map_k", "map_v", "map_o"}, *const backward_maps[] = {
                                                                                "map_q",    "map_k",  "map_v",
                                                                                "map_dout", "map_dk", "map_dv"};
    const int num_maps = !wgmma ? 0 : op == FK_BACKWARD ? 6 : 4;
    int count = 0;
    lua_newtable(L);
    if (fk_stages_grad(p, terms->score.grad, staged)) add_param(L, &count, "TensorMap", "map_array_grad");
    if (staged) add_param(L, &count, "TensorMap", "map_array");
    for (int i = 0; i < num_maps; ++i)
        add_param(L, &count, "TensorMap", (op == FK_BACKWARD ? backward_maps : maps)[i]);
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
    snprintf(values, sizeof values, "mask_inverse[%d]", FK_MAX_MASK_SLOTS);
    add_param(L, &count, "u32", values);
    if (!terms->score.num_params && !terms->arrays.count) return;
    snprintf(values, sizeof values, "score_value[%d]", FK_MAX_SCORE_SLOTS);
    add_param(L, &count, "int", values);
    if (!terms->arrays.count) return;
    const int most =
        terms->score.grad ? FK_MAX_ARRAYS : terms->arrays.count; /* all of it, if something stands behind */
    snprintf(values, sizeof values, "array[%d]", most);
    add_param(L, &count, "Array", values);
    if (!terms->score.grad) return;
    snprintf(values, sizeof values, "array_grad[%d]", FK_MAX_ARRAYS);
    add_param(L, &count, "ArrayGrad", values);
}

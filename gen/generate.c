/* The CUDA text is a pure function of problem, plan and templates: nothing else may reach it, or equal kernels would
 * have different keys in the store. Modelled numbers in its head are those of the nominal shape for that reason. */
#include "generate.h"

#include "abi.h"
#include "lua_api.h"
#include "plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNLIKE 1.25 /* times the mean: the longest of own tiles whose order counts */

typedef struct render_call {
    fk_planner *planner;
    const fk_plan_info *plan;
    fk_mask_texts texts, texts_k; /* of the mask's split and split_k */
    fk_score_texts score_texts;
    fk_tile_order order, order_k; /* of the kernels that walk as the split says */
    bool standalone;
    char *text; /* out: malloc'ed */
} render_call;

/* Lines about a kernel. Integers only: their text depends on no locale. `tensors`: what is staged, and what stays. */
static int summarise_tiles(const fk_plan_info *plan, const char *tensors, char *out, size_t size) {
    return snprintf(out, size,
                    "tiles: block_m (B_r) %d x block_n (B_c) %d, %d warps, %d %s of %s in %s\n"
                    "an SM holds %d %s of %d threads, about %d registers each, %d bytes of shared memory\n",
                    plan->block_m, plan->block_n, plan->warps, plan->stages, plan->stages == 1 ? "stage" : "stages",
                    tensors, plan->q_in_regs ? "registers" : "shared memory", plan->ctas_per_sm,
                    plan->ctas_per_sm == 1 ? "CTA" : "CTAs", plan->warps * 32, plan->registers, plan->smem_bytes);
}

/* Lines at the head of the text. The traffic of a mask with run-time values depends on them, and the text must not. */
static void summarise(const fk_planner *planner, const fk_plan_info *plan, char *out, size_t size) {
    const fk_shape *shape = &planner->shape;
    const bool backward = planner->p->op == FK_BACKWARD;
    const fk_tile tile = fk_plan_tile(planner->p, plan);
    const char *forward = fk_tile_takes_values_from_keys(planner->p, &tile) ? "halves of K, which has V, and Q"
                          : fk_tile_halved(planner->p, &tile)               ? "halves of K and V, Q"
                          : fk_slices(planner->p) > 1                       ? "K and half of V, Q"
                                                                            : "K and V, Q";
    const char *walked = fk_tile_halved(planner->p, &tile) ? "halves of Q and dO, K and V" : "Q and dO, K and V";
    const int used = summarise_tiles(plan, backward ? walked : forward, out, size);
    if (planner->terms.mask.num_params || used < 0 || (size_t)used >= size) return;
    snprintf(out + used, size - (size_t)used,
             "modelled at batch %lld, %lld heads, seqlen_q %lld, seqlen_k %lld: %lld KiB of HBM traffic, bound by %s\n",
             (long long)shape->batch, (long long)shape->num_heads_q, (long long)shape->seqlen_q,
             (long long)shape->seqlen_k, (long long)(plan->hbm_bytes / 1024), plan->bound);
}

/* What the kernel of dq has in place of plan and layout. `env`: absolute index. */
static void push_dq(lua_State *L, const fk_planner *planner, int env) {
    const fk_tile tile = fk_plan_dq_tile(planner);
    fk_smem_layout layout;
    char summary[512];
    summarise_tiles(&planner->dq, "K and V, Q and dO", summary, sizeof summary);
    fk_bind_push_plan(L, planner->p, &tile, summary);
    lua_setfield(L, env, "dq_plan");
    fk_planner_push_arch(L);
    fk_bind_read_layout(L, planner->p, &tile, lua_gettop(L), fk_plan_scan(planner, &tile), &layout);
    lua_setfield(L, env, "dq_layout");
    lua_pop(L, 1);
}

/* Whether some mask reads templates/pattern/block_bits.lua's array, which others may keep in other forms. */
static bool reads_blocks(const fk_planner *planner) {
    return fk_array_list_find(&planner->terms.arrays, "block_bits") >= 0;
}

/* The same, or of templates/mask/bits.lua. */
static bool packs_blocks(const fk_planner *planner) {
    return reads_blocks(planner) || fk_array_list_find(&planner->terms.arrays, "bits") >= 0;
}

static void render_body(lua_State *L, void *arg) {
    render_call *call = arg;
    const fk_planner *planner = call->planner;
    const fk_tile tile = fk_plan_tile(planner->p, call->plan);
    char summary[1024], spelling[FK_MAX_SPELLING], path[64];
    fk_problem_write_generic(planner->p, &planner->terms, spelling);
    summarise(planner, call->plan, summary, sizeof summary);
    const bool backward = planner->p->op == FK_BACKWARD;
    snprintf(path, sizeof path, "templates/kernel/%s_%s.cu", backward ? "backward" : "forward", fk_tile_family(&tile));
    luaL_checkstack(L, 32, path);
    fk_lua_run(L, "gen/render.lua");
    lua_pushstring(L, path);
    lua_newtable(L);
    fk_planner_push_arch(L);
    const int arch = lua_gettop(L), env = arch - 1;
    fk_smem_layout layout;
    fk_bind_read_layout(L, planner->p, &tile, arch, fk_plan_scan(planner, &tile), &layout);
    lua_setfield(L, env, "layout");
    lua_setfield(L, env, "arch");
    fk_problem shown = *planner->p;
    if (fk_tile_widens_before(&shown, &tile)) shown.paged = 0; /* the main kernel finds rows */
    fk_bind_push_problem(L, &shown, spelling);
    lua_setfield(L, -2, "problem");
    fk_bind_push_plan(L, planner->p, &tile, summary);
    lua_setfield(L, -2, "plan");
    if (tile.dq_kernel) push_dq(L, planner, env);
    fk_bind_push_mask(L, &planner->terms, &call->texts, &call->order);
    lua_setfield(L, -2, "mask");
    fk_bind_push_mask(L, &planner->terms, &call->texts_k, &call->order_k);
    lua_setfield(L, -2, "mask_k");
    lua_pushstring(L, backward ? "q" : "k");
    lua_setfield(L, -2, "walk");
    fk_bind_push_score(L, planner->p, &planner->terms, &call->score_texts);
    lua_setfield(L, -2, "score");
    const int staged = layout.staged ? fk_score_staged(&planner->terms, backward) : 0;
    fk_bind_push_arrays(L, planner->p, &planner->terms, staged);
    lua_setfield(L, -2, "arrays");
    lua_pushinteger(L, FK_EXACT_WORDS);
    lua_setfield(L, -2, "exact_words");
    fk_bind_push_params(L, planner->p, tile.wgmma, &planner->terms, staged);
    lua_setfield(L, -2, "params");
    lua_pushboolean(L, packs_blocks(planner));
    lua_setfield(L, -2, "packs_blocks");
    lua_pushboolean(L, call->standalone);
    lua_setfield(L, -2, "standalone");
    fk_lua_extend_globals(L);
    lua_pushcfunction(L, fk_lua_read_file);
    lua_pushboolean(L, call->standalone);
    lua_call(L, 4, 1);
    size_t size;
    const char *text = lua_type(L, -1) == LUA_TSTRING ? lua_tolstring(L, -1, &size) : NULL;
    if (!text)
        fk_lua_raise(L, FK_TEMPLATE_ERROR, "gen/render.lua: returned a %s: must return text", luaL_typename(L, -1));
    if (strlen(text) != size) fk_lua_raise(L, FK_TEMPLATE_ERROR, "%s: the text holds a zero byte", path);
    call->text = malloc(size + 1); /* the last step: nothing after it can raise */
    if (!call->text) fk_lua_raise(L, FK_NO_MEMORY, "no memory for %zu bytes of text", size);
    memcpy(call->text, text, size + 1);
}

static int tile_order(const fk_planner *planner, const fk_plan_info *plan, bool walks_q) {
    fk_tile_totals tiles;
    if (planner->terms.mask.words) return walks_q ? -1 : 1; /* whatever bits say: most often they are causal */
    fk_tiles_count(planner->p, &planner->terms.mask, walks_q, &planner->shape, plan->block_m, plan->block_n, 2, &tiles);
    return tiles.last_visited >= tiles.first_visited ? 1 : -1;
}

/* Only patterns have such tiles at any length, and count the same whatever their masks' run-time values are; what a
 * table shows is known then alone. */
static int leading_tiles(const fk_planner *planner, const fk_plan_info *plan, int q_order) {
    const fk_problem_mask *mask = &planner->terms.mask;
    if (plan->parts && planner->p->op == FK_BACKWARD) return FK_ALL_LEAD / plan->block_n;
    if (!mask->in_blocks || mask->num_params || reads_blocks(planner)) return 0;
    return fk_tiles_leading(planner->p, mask, planner->p->op == FK_BACKWARD, &planner->shape, plan->block_m,
                            plan->block_n, q_order);
}

/* Where a tile can be split: its parts' O, or dK and dV, come together in another kernel, which adds no sinks. Family
 * mma: of kernels whose tiles' columns are one CTA's; backward where nothing is counted, nor summed up by keys. */
static int leading_rows(const fk_planner *planner, const fk_plan_info *plan, int leading, int q_order) {
    const fk_problem *p = planner->p;
    if (plan->parts && p->op == FK_BACKWARD) return FK_ALL_LEAD;
    const fk_problem_mask *mask = &planner->terms.mask;
    const bool backward = p->op == FK_BACKWARD;
    const bool wgmma = fk_plan_tile(p, plan).wgmma;
    const bool mma =
        fk_slices(p) == 1 && (backward ? !p->deterministic && !planner->terms.score.grad && !planner->arch.early_start
                                       : !p->split && !fk_problem_joins_heads(p));
    const bool can = wgmma || mma;
    const bool splits = can && !p->packed && !p->seqused_k && fk_kv_dtype(p) != FK_E4M3 &&
                        (backward || planner->terms.score.num_sinks == 0) &&
                        (backward ? &mask->split_k : &mask->split)->residual && q_order < 0;
    return splits ? leading * (backward ? plan->block_n : plan->block_m) : 0;
}

/* Are the own tiles of a head of unlike length, but for leading ones, so that it pays to count what each visits? */
static bool are_unlike(const fk_planner *planner, const fk_plan_info *plan, int leading) {
    fk_tile_totals tiles;
    const fk_tile tile = fk_plan_tile(planner->p, plan);
    if (leading || !tile.wgmma || !fk_plan_scan(planner, &tile).counted) return false;
    if (fk_plan_takes_runs(planner, &tile)) return true; /* as far as anyone knows here */
    fk_tiles_count(planner->p, &planner->terms.mask, false, &planner->shape, plan->block_m, plan->block_n, 64, &tiles);
    return tiles.max_visited > UNLIKE * tiles.mean_visited;
}

/* Is the gradient of an array asked for that a sink reads? */
static bool reads_sinks(const fk_problem_score *score) {
    for (int i = 0; i < score->num_sinks; ++i) {
        if (score->sink[i].num_reads) return true;
    }
    return false;
}

/* create says if there were too many. */
static void add(fk_source *out, fk_kernel_launch kernel) {
    if (out->num_kernels < FK_MAX_KERNELS) out->kernel[out->num_kernels] = kernel;
    ++out->num_kernels;
}

/* Of packed sequences what clears rows of no sequence, which may start beside the kernel before. */
static void add_rest(fk_source *out, fk_kernel_launch rest, bool early) {
    if (early) out->early |= 1u << out->num_kernels;
    add(out, rest);
}

/* The kernels that templates/kernel/forward_*.cu and backward_*.cu define. */
static void name_kernels(const fk_planner *planner, const fk_plan_info *plan, fk_source *out) {
    const fk_problem *p = planner->p;
    const fk_problem_score *score = &planner->terms.score;
    const fk_plan_info *dq = &planner->dq;
    const int threads = plan->warps * 32, smem = plan->smem_bytes;
    const fk_tile tile = fk_plan_tile(p, plan);
    const bool wgmma = tile.wgmma, runs = fk_plan_takes_runs(planner, &tile);
    const bool words = fk_plan_takes_words(planner, &tile), widens = fk_tile_widens_before(p, &tile);
    const fk_kernel_launch seen_tiles = {"fk_seen_tiles", 256, 2 * 256 * 8, FK_GRID_SEEN};
    const fk_grid_kind grid = wgmma ? FK_GRID_PERSISTENT : FK_GRID_TILES;
    out->num_kernels = 0;
    if (out->staged) add(out, (fk_kernel_launch){"fk_align", 256, 0, FK_GRID_ALIGN});
    if (p->op == FK_FORWARD) {
        const int combine_smem = (8 + 128 + 4 * 128) * (int)sizeof(float); /* templates/piece/combine.cu */
        if (p->dtype == FK_E4M3 && wgmma) add(out, (fk_kernel_launch){"fk_forward_values", 64, 0, FK_GRID_VALUES});
        if (widens) add(out, (fk_kernel_launch){"fk_forward_widen", 128, 0, FK_GRID_WIDEN});
        if (runs) add(out, (fk_kernel_launch){"fk_forward_runs", 128, 0, FK_GRID_RUNS});
        if (words) add(out, seen_tiles);
        out->main_kernel = out->num_kernels;
        if (wgmma && out->main_kernel > (out->staged ? 1 : 0)) out->early = 1u << out->main_kernel;
        add(out, (fk_kernel_launch){"fk_forward", threads, smem, grid});
        const bool combines = p->split || out->leading_rows || plan->parts;
        if (combines && planner->arch.early_start) out->early |= 2u << out->main_kernel;
        if (p->split || out->leading_rows)
            add(out, (fk_kernel_launch){"fk_forward_combine", 128, combine_smem, FK_GRID_COMBINE});
        const int parts_smem = 128 * 6 * (int)sizeof(float); /* templates/piece/combine_parts.cu */
        if (plan->parts) add(out, (fk_kernel_launch){"fk_forward_combine", 128, parts_smem, FK_GRID_PARTS});
        if (p->packed) add_rest(out, (fk_kernel_launch){"fk_forward_rest", 256, 0, FK_GRID_REST}, wgmma);
        return;
    }
    if (score->grad) add(out, (fk_kernel_launch){"fk_backward_clear", 256, 0, FK_GRID_ARRAYS});
    if (!plan->head_rows)
        add(out, (fk_kernel_launch){"fk_backward_delta", 128, 0, FK_GRID_ROWS});
    else if (p->packed)
        add(out, (fk_kernel_launch){"fk_backward_order", 128, 0, FK_GRID_SEQUENCES});
    if (reads_sinks(score)) add(out, (fk_kernel_launch){"fk_backward_sinks", 256, 0, FK_GRID_HEADS});
    if (words) add(out, seen_tiles);
    out->main_kernel = out->num_kernels;
    if (wgmma) /* dq's own beside it made launches of 16,384 tokens longer */
        out->early = (plan->head_rows ? 0u : 1u) << out->main_kernel;
    else if (planner->arch.early_start)
        out->early = (reads_sinks(score) ? 2u : 3u) << out->main_kernel; /* and dq's own */
    add(out, (fk_kernel_launch){"fk_backward", threads, smem, grid});
    const fk_kernel_launch combine = {"fk_backward_combine", 128, 0, FK_GRID_KEYS};
    if (out->leading_rows && wgmma) add(out, combine);
    if (plan->dq_kernel) {
        add(out, (fk_kernel_launch){"fk_backward_dq_tiles", dq->warps * 32, dq->smem_bytes, FK_GRID_DQ_TILES});
    } else if (!plan->head_rows) {
        add(out, (fk_kernel_launch){"fk_backward_dq", 128, 0, FK_GRID_ROW_CHUNKS});
    }
    if (out->leading_rows && !wgmma) add(out, combine);
    if (score->grad && p->deterministic) add(out, (fk_kernel_launch){"fk_backward_arrays", 256, 0, FK_GRID_ARRAYS});
    if (p->packed) add_rest(out, (fk_kernel_launch){"fk_backward_rest", 256, 0, FK_GRID_REST}, wgmma);
}

static fk_status render(fk_planner *planner, render_call *call, fk_error *err) {
    const fk_problem_terms *terms = &planner->terms;
    const fk_tile tile = fk_plan_tile(planner->p, call->plan);
    const fk_expr *words = fk_plan_takes_words(planner, &tile) ? terms->mask.words : NULL;
    fk_status status = fk_mask_texts_create(&terms->mask, &terms->mask.split, words, &call->texts, err);
    if (status == FK_OK) status = fk_mask_texts_create(&terms->mask, &terms->mask.split_k, NULL, &call->texts_k, err);
    if (status == FK_OK) status = fk_score_texts_create(&terms->score, &call->score_texts, err);
    if (status == FK_OK) status = fk_lua_call(planner->lua, render_body, call, err);
    fk_score_texts_free(&call->score_texts);
    fk_mask_texts_free(&call->texts_k);
    fk_mask_texts_free(&call->texts);
    return status;
}

static fk_status create(fk_planner *planner, const fk_plan_info *plan, bool standalone, fk_source *out, fk_error *err) {
    fk_plan_info judged;
    fk_smem_layout layout;
    const fk_tile tile = fk_plan_tile(planner->p, plan);
    fk_status status = fk_plan_judge(planner, &tile, &judged, &layout, err);
    if (status == FK_OK && !judged.legal) status = fk_fail(err, FK_UNSUPPORTED, "plan: %s", judged.reason);
    if (status == FK_OK) status = fk_problem_write(planner->p, out->spelling, sizeof out->spelling, err);
    if (status != FK_OK) return status;
    fk_plan_model(planner, &layout, &judged);
    out->q_order = tile_order(planner, plan, planner->p->op == FK_BACKWARD);
    render_call call = {.planner = planner, .plan = &judged, .standalone = standalone};
    const int leading = plan->head_rows ? 0 : leading_tiles(planner, plan, out->q_order);
    out->leading_rows = leading_rows(planner, plan, leading, out->q_order);
    call.order = (fk_tile_order){.q_order = out->q_order,
                                 .leading = leading,
                                 .leading_rows = out->leading_rows,
                                 .unlike = are_unlike(planner, plan, leading)};
    call.order_k = (fk_tile_order){.q_order = tile_order(planner, plan, false)};
    if (fk_plan_takes_runs(planner, &tile)) {
        fk_problem_terms *terms = &planner->terms;
        terms->mask.split = terms->mask.split_k = terms->mask.runs;
        /* what terms and dropout make of keys goes by tiles that begin at multiples of their size */
        call.order.shifts = terms->score.num_terms == 0 && !planner->p->dropout && !planner->p->paged;
    }
    status = render(planner, &call, err);
    if (status != FK_OK) return status;
    out->text = call.text;
    out->plan = *plan;
    out->plan.smem_bytes = judged.smem_bytes; /* what the text really uses */
    out->d_pad = layout.d_pad;
    out->most_keys = fk_plan_most_keys(planner, &tile);
    out->pattern = layout.pattern;
    out->dq_block_m = judged.dq_kernel ? planner->dq.block_m : 0;
    out->staged = layout.staged ? fk_score_staged(&planner->terms, planner->p->op == FK_BACKWARD) : 0;
    name_kernels(planner, &judged, out);
    if (planner->p->dropout) {
        const int warps = tile.wgmma ? 4 * fk_tile_consumers(&tile) : plan->warps; /* those that own rows */
        add(out, (fk_kernel_launch){"fk_keep_mask", warps * 32, 0, FK_GRID_KEEP_MASK});
    }
    if (packs_blocks(planner)) add(out, (fk_kernel_launch){"fk_pack_blocks", 128, 0, FK_GRID_BLOCKS});
    if (out->num_kernels > FK_MAX_KERNELS) {
        fk_source_free(out);
        return fk_fail(err, FK_INTERNAL, "%d kernels: must be at most %d", out->num_kernels, FK_MAX_KERNELS);
    }
    memcpy(out->param, planner->terms.mask.param, sizeof out->param);
    out->num_params = planner->terms.mask.num_params;
    memcpy(out->score_param, planner->terms.score.param, sizeof out->score_param);
    out->num_score_params = planner->terms.score.num_params;
    out->arrays = planner->terms.arrays;
    out->grad = planner->terms.score.grad;
    out->once = planner->terms.score.once;
    return FK_OK;
}

fk_status fk_source_create(const fk_problem *p, const fk_device_info *device, const fk_plan_info *plan,
                           const char *template_dir, bool standalone, fk_source *out, fk_error *err) {
    const fk_shape nominal = {.seqlen_q = plan->head_rows, .seqlen_k = plan->head_rows}; /* 0: the usual one */
    fk_problem problem;
    fk_status status = fk_problem_normalise(p, &problem, err);
    if (status != FK_OK) return status;
    fk_planner planner;
    status = fk_planner_open(&problem, device, &nominal, template_dir, &planner, err);
    if (status != FK_OK) return status;
    fk_source source;
    memset(&source, 0, sizeof source);
    status = create(&planner, plan, standalone, &source, err);
    fk_planner_close(&planner);
    if (status == FK_OK) memcpy(out, &source, sizeof source);
    return status;
}

void fk_source_free(fk_source *source) {
    if (!source) return;
    free(source->text);
    source->text = NULL;
}

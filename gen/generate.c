/* The CUDA text is a pure function of problem, plan and templates: nothing else may reach it, or equal kernels would
 * have different keys in the store. Modelled numbers in its head are those of the nominal shape for that reason. */
#include "generate.h"

#include "plan.h"

#include <lauxlib.h>
#include <lua.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct render_call {
    fk_planner *planner;
    const fk_plan_info *plan;
    const fk_mask_texts *texts;
    const fk_score_texts *score_texts;
    int q_order;
    bool standalone;
    char *text; /* out: malloc'ed */
} render_call;

/* Lines at the head of the text. Integers only: their text depends on no locale. The traffic of a mask with run-time
 * values depends on them, and the text must not. */
static void summarise(const fk_planner *planner, const fk_plan_info *plan, char *out, size_t size) {
    const fk_shape *shape = &planner->shape;
    const bool backward = planner->p->op == FK_BACKWARD;
    const int used =
        snprintf(out, size,
                 "tiles: block_m (B_r) %d x block_n (B_c) %d, %d warps, %d %s of %s in %s\n"
                 "an SM holds %d %s of %d threads, about %d registers each, %d bytes of shared memory\n",
                 plan->block_m, plan->block_n, plan->warps, plan->stages, plan->stages == 1 ? "stage" : "stages",
                 backward ? "Q and dO, K and V" : "K and V, Q", plan->q_in_regs ? "registers" : "shared memory",
                 plan->ctas_per_sm, plan->ctas_per_sm == 1 ? "CTA" : "CTAs", plan->warps * 32, plan->registers,
                 plan->smem_bytes);
    if (planner->terms.mask.num_params || used < 0 || (size_t)used >= size) return;
    snprintf(out + used, size - (size_t)used,
             "modelled at batch %lld, %lld heads, seqlen_q %lld, seqlen_k %lld: %lld KiB of HBM traffic, bound by %s\n",
             (long long)shape->batch, (long long)shape->num_heads_q, (long long)shape->seqlen_q,
             (long long)shape->seqlen_k, (long long)(plan->hbm_bytes / 1024), plan->bound);
}

static void render_body(lua_State *L, void *arg) {
    render_call *call = arg;
    const fk_planner *planner = call->planner;
    const fk_tile tile = fk_plan_tile(call->plan);
    char summary[1024], spelling[FK_MAX_SPELLING], path[64];
    fk_problem_write_generic(planner->p, &planner->terms, spelling);
    summarise(planner, call->plan, summary, sizeof summary);
    const bool backward = planner->p->op == FK_BACKWARD;
    snprintf(path, sizeof path, "templates/kernel/%s_%s.cu", backward ? "backward" : "forward", planner->arch.family);
    luaL_checkstack(L, 32, path);
    fk_lua_run(L, "gen/render.lua");
    lua_pushstring(L, path);
    lua_newtable(L);
    fk_planner_push_arch(L);
    const int arch = lua_gettop(L);
    fk_smem_layout layout;
    fk_bind_read_layout(L, planner->p, &tile, arch, &layout);
    lua_setfield(L, arch - 1, "layout");
    lua_setfield(L, arch - 1, "arch");
    fk_bind_push_problem(L, planner->p, spelling);
    lua_setfield(L, -2, "problem");
    fk_bind_push_plan(L, planner->p, &tile, summary);
    lua_setfield(L, -2, "plan");
    fk_bind_push_mask(L, &planner->terms, call->texts, call->q_order);
    lua_setfield(L, -2, "mask");
    fk_bind_push_score(L, &planner->terms, call->score_texts);
    lua_setfield(L, -2, "score");
    fk_bind_push_arrays(L, &planner->terms.arrays);
    lua_setfield(L, -2, "arrays");
    fk_bind_push_params(L, planner->p->op, &planner->terms);
    lua_setfield(L, -2, "params");
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

static int tile_order(const fk_planner *planner, const fk_plan_info *plan) {
    fk_tile_totals tiles;
    fk_tiles_count(planner->p, &planner->terms.mask, &planner->shape, plan->block_m, plan->block_n, 2, &tiles);
    return tiles.last_visited >= tiles.first_visited ? 1 : -1;
}

/* The kernels that templates/kernel/forward_*.cu and backward_*.cu define. */
static void name_kernels(const fk_problem *p, const fk_plan_info *plan, fk_source *out) {
    const int threads = plan->warps * 32, smem = plan->smem_bytes;
    if (p->op == FK_FORWARD) {
        out->kernel[0] = (fk_kernel_launch){"fk_forward", threads, smem, FK_GRID_TILES};
        out->num_kernels = 1;
        out->main_kernel = 0;
        return;
    }
    out->kernel[0] = (fk_kernel_launch){"fk_backward_delta", 128, 0, FK_GRID_ROWS};
    out->kernel[1] = (fk_kernel_launch){"fk_backward", threads, smem, FK_GRID_TILES};
    out->kernel[2] = (fk_kernel_launch){"fk_backward_dq", 256, 0, FK_GRID_ROW_CHUNKS};
    out->num_kernels = 3;
    out->main_kernel = 1;
}

static fk_status create(fk_planner *planner, const fk_plan_info *plan, bool standalone, fk_source *out, fk_error *err) {
    fk_mask_texts texts;
    fk_score_texts score_texts;
    fk_plan_info judged;
    fk_smem_layout layout;
    const fk_tile tile = fk_plan_tile(plan);
    fk_status status = fk_plan_judge(planner, &tile, &judged, &layout, err);
    if (status == FK_OK && !judged.legal) status = fk_fail(err, FK_UNSUPPORTED, "plan: %s", judged.reason);
    if (status == FK_OK) status = fk_problem_write(planner->p, out->spelling, sizeof out->spelling, err);
    if (status != FK_OK) return status;
    fk_plan_model(planner, &layout, &judged);
    status = fk_mask_texts_create(&planner->terms.mask, &texts, err);
    if (status != FK_OK) return status;
    status = fk_score_texts_create(&planner->terms.score, &score_texts, err);
    if (status != FK_OK) {
        fk_mask_texts_free(&texts);
        return status;
    }
    out->q_order = tile_order(planner, plan);
    render_call call = {planner, &judged, &texts, &score_texts, out->q_order, standalone, NULL};
    status = fk_lua_call(planner->lua, render_body, &call, err);
    fk_score_texts_free(&score_texts);
    fk_mask_texts_free(&texts);
    if (status != FK_OK) return status;
    out->text = call.text;
    out->plan = *plan;
    out->plan.smem_bytes = judged.smem_bytes; /* what the text really uses */
    out->d_pad = layout.d_pad;
    name_kernels(planner->p, &out->plan, out);
    memcpy(out->param, planner->terms.mask.param, sizeof out->param);
    out->num_params = planner->terms.mask.num_params;
    memcpy(out->score_param, planner->terms.score.param, sizeof out->score_param);
    out->num_score_params = planner->terms.score.num_params;
    out->arrays = planner->terms.arrays;
    return FK_OK;
}

fk_status fk_source_create(const fk_problem *p, const fk_device_info *device, const fk_plan_info *plan,
                           const char *template_dir, bool standalone, fk_source *out, fk_error *err) {
    static const fk_shape nominal = {0, 0, 0, 0, 0};
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

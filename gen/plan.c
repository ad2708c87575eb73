/* Candidates come from the arch file, limits from the device, bytes from gen/layout.lua. A plan that cannot launch is
 * never offered: it stays in the list, last, with the limit that it breaks. */
#include "plan.h"
#include "lua_api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

fk_status fk_plan_options_check(const fk_plan_options *options, fk_error *err) {
    if (options->struct_size != sizeof *options) {
        return fk_fail(err, FK_BAD_ARGUMENT,
                       "fk_plan_options.struct_size is %zu: must be %zu, as FK_PLAN_OPTIONS_INIT sets it",
                       options->struct_size, sizeof *options);
    }
    if (options->rule != FK_RULE_MODEL && options->rule != FK_RULE_PAPER) {
        return fk_fail(err, FK_BAD_ARGUMENT, "rule is %d: must be 0 (model) or 1 (paper)", options->rule);
    }
    return FK_OK;
}

/* ---- planner ---- */

static void open_body(lua_State *L, void *arg) {
    fk_planner *planner = arg;
    fk_bind_read_arch(L, planner->device->sm, planner->p, &planner->arch);
    lua_setfield(L, LUA_REGISTRYINDEX, "fk.arch");
}

void fk_planner_push_arch(lua_State *L) {
    lua_getfield(L, LUA_REGISTRYINDEX, "fk.arch");
}

/* The first tile of the arch file that fits: it depends on nothing but problem and device, as the text must. */
static fk_status choose_dq(fk_planner *planner, fk_error *err) {
    const fk_arch *arch = &planner->arch;
    snprintf(planner->dq.reason, sizeof planner->dq.reason, "no tiles for %s on %s", fk_dtype_name(planner->p->dtype),
             arch->name);
    fk_status status = FK_OK;
    for (int i = 0; i < arch->num_dq_tiles && status == FK_OK && !planner->dq.legal; ++i)
        status = fk_plan_judge(planner, &arch->dq_tile[i], &planner->dq, &planner->dq_layout, err);
    return status;
}

fk_status fk_planner_open(const fk_problem *p, const fk_device_info *device, const fk_shape *shape,
                          const char *template_dir, fk_planner *out, fk_error *err) {
    memset(out, 0, sizeof *out);
    out->p = p;
    out->device = device;
    out->template_dir = template_dir;
    fk_status status = fk_shape_fill(p, shape, &out->shape, err);
    if (status == FK_OK) status = fk_lua_open(template_dir, NULL, &out->lua, err);
    if (status == FK_OK) status = fk_lua_call(out->lua, open_body, out, err);
    if (status == FK_OK) {
        out->pool = fk_expr_pool_create();
        if (!out->pool) status = fk_fail(err, FK_NO_MEMORY, "no memory for an expression");
    }
    if (status == FK_OK) status = fk_problem_terms_load(out->pool, p, template_dir, &out->terms, err);
    if (status == FK_OK) out->score = fk_model_score(&out->terms);
    if (status == FK_OK && p->op == FK_BACKWARD) status = choose_dq(out, err);
    if (status != FK_OK) fk_planner_close(out);
    return status;
}

void fk_planner_close(fk_planner *planner) {
    fk_expr_pool_destroy(planner->pool);
    fk_lua_close(planner->lua);
    planner->pool = NULL;
    planner->lua = NULL;
}

fk_tile fk_plan_tile(const fk_problem *p, const fk_plan_info *plan) {
    const bool backward = p->op == FK_BACKWARD, wgmma = strcmp(plan->family, "wgmma") == 0;
    return (fk_tile){.block_m = plan->block_m,
                     .block_n = plan->block_n,
                     .warps = plan->warps,
                     .stages = plan->stages,
                     .q_in_regs = plan->q_in_regs,
                     .ctas = plan->ctas_per_sm,
                     .walks_q = backward,
                     .dq_kernel = backward && (plan->dq_kernel || (p->deterministic && !wgmma)),
                     .adders = backward && wgmma && fk_has_adders(p, plan->q_stages, plan->head_rows),
                     .wgmma = wgmma,
                     .q_stages = plan->q_stages,
                     .k_stages = plan->k_stages,
                     .turns = plan->turns,
                     .overlap = plan->overlap,
                     .parts = plan->parts,
                     .head_rows = plan->head_rows};
}

int fk_plan_cluster(const fk_problem *p, const fk_plan_info *plan) {
    const fk_tile tile = fk_plan_tile(p, plan);
    return fk_tile_cluster(p, &tile);
}

int fk_plan_own_queries(const fk_problem *p, const fk_plan_info *plan) {
    const fk_tile tile = fk_plan_tile(p, plan);
    return fk_tile_halved(p, &tile) ? plan->block_m : plan->block_m / fk_tile_cluster(p, &tile);
}

int fk_plan_own_keys(const fk_problem *p, const fk_plan_info *plan) {
    const fk_tile tile = fk_plan_tile(p, plan);
    if (fk_tile_halved(p, &tile)) return tile.walks_q ? plan->block_n : plan->block_n / 2;
    return plan->block_n / (tile.walks_q ? fk_tile_cluster(p, &tile) : 1);
}

int fk_plan_teams(const fk_problem *p, const fk_plan_info *plan) {
    const fk_tile tile = fk_plan_tile(p, plan);
    return fk_tile_teams(&tile);
}

bool fk_plan_may_have_parts(const fk_problem *p, const fk_plan_info *plan, const char *template_dir) {
    const fk_tile tile = fk_plan_tile(p, plan);
    return fk_tile_may_have_parts(p, &tile, plan->sm, template_dir);
}

/* Backward walks are short then, and turns would take more for each than they gain in its visits. */
fk_plan_info fk_plan_in_parts(const fk_problem *p, const fk_plan_info *plan) {
    fk_plan_info out = *plan;
    out.parts = 1;
    if (p->op == FK_BACKWARD) out.turns = 0;
    return out;
}

fk_tile fk_plan_dq_tile(const fk_planner *planner) {
    fk_tile tile = fk_plan_tile(planner->p, &planner->dq);
    tile.walks_q = tile.dq_kernel = false;
    return tile;
}

/* ---- judging ---- */

/* Keys of 8 bits have another kernel before, and packed sequences no row of runs. */
bool fk_plan_takes_runs(const fk_planner *planner, const fk_tile *tile) {
    const fk_problem *p = planner->p;
    return tile->wgmma && p->op == FK_FORWARD && !p->packed && fk_kv_dtype(p) != FK_E4M3 &&
           planner->terms.mask.has_runs;
}

/* Rows of joined heads count by heads, too. */
bool fk_plan_takes_words(const fk_planner *planner, const fk_tile *tile) {
    const int keys = fk_tile_halved(planner->p, tile) ? tile->block_n / 2 : tile->block_n; /* that a CTA weighs */
    return planner->terms.mask.words && keys % 32 == 0 && !fk_problem_joins_heads(planner->p);
}

/* What a visit is, must be known before its scores are multiplied. Where the products are what takes long, they are
 * not made longer: at head dim 128 that was 0 to 6 % slower than an instruction a score. */
static bool takes_lines(const fk_planner *planner, const fk_expr *residual) {
    const fk_problem *p = planner->p;
    const fk_problem_score *score = &planner->terms.score;
    return p->op == FK_FORWARD && fk_kv_dtype(p) != FK_E4M3 && score->along && score->one_slope && !residual &&
           p->head_dim + p->head_dim_v <= 128 && !fk_problem_joins_heads(p);
}

fk_mask_scan fk_plan_scan(const fk_planner *planner, const fk_tile *tile) {
    const fk_array_list *arrays = &planner->terms.arrays;
    const bool runs = fk_plan_takes_runs(planner, tile);
    const fk_expr_split *split = runs ? &planner->terms.mask.runs : &planner->terms.mask.split_k;
    const fk_expr *keep = planner->terms.mask.keep, *residual = split->residual;
    const bool both = split->num_upper > 0 && split->num_lower > 0;
    const bool counted = planner->p->op == FK_FORWARD && !planner->p->packed && planner->terms.mask.in_blocks;
    fk_mask_scan scan = {.needed = residual != NULL,
                         .pattern = residual && planner->terms.mask.in_blocks,
                         .counted = runs || (residual && counted),
                         .window = both && !residual && !fk_array_list_reads(arrays, keep),
                         .runs = runs,
                         .bits = tile->wgmma && planner->terms.mask.words,
                         .lines = tile->wgmma && takes_lines(planner, residual),
                         .query_rows = runs ? 2 : 0, /* first and last keys */
                         .long_walk = planner->terms.mask.long_walk,
                         .fused = fk_score_fused(&planner->terms.score),
                         .own = planner->terms.mask.num_own};
    const int staged = fk_score_staged(&planner->terms, planner->p->op == FK_BACKWARD);
    const bool grad =
        fk_stages_grad(planner->p, planner->terms.score.grad, staged); /* of floats, in the tile's place */
    if (staged) scan.staged = grad ? (int)sizeof(float) : fk_array_element_bytes(&arrays->decl[staged - 1]);
    for (int i = 0; i < arrays->count && !fk_plan_takes_words(planner, tile); ++i) {
        scan.query_rows += fk_array_list_reads_row(arrays, residual, i, FK_DIM_SEQLEN_Q);
        scan.key_rows += fk_array_list_reads_row(arrays, residual, i, FK_DIM_SEQLEN_K);
    }
    return scan;
}

typedef struct layout_call {
    const fk_planner *planner;
    const fk_tile *tile;
    fk_smem_layout *out;
} layout_call;

static void layout_body(lua_State *L, void *arg) {
    const layout_call *call = arg;
    fk_planner_push_arch(L);
    fk_bind_read_layout(L, call->planner->p, call->tile, lua_gettop(L), fk_plan_scan(call->planner, call->tile),
                        call->out);
}

fk_status fk_plan_judge(fk_planner *planner, const fk_tile *tile, fk_plan_info *out, fk_smem_layout *layout,
                        fk_error *err) {
    memset(out, 0, sizeof *out);
    snprintf(out->family, sizeof out->family, "%s", fk_tile_family(tile));
    out->sm = planner->arch.sm;
    out->block_m = tile->block_m;
    out->block_n = tile->block_n;
    out->warps = tile->warps;
    out->stages = tile->stages;
    out->q_in_regs = tile->q_in_regs;
    out->ctas_per_sm = tile->ctas;
    out->dq_kernel = tile->dq_kernel;
    out->q_stages = tile->q_stages;
    out->k_stages = tile->k_stages;
    out->turns = tile->turns;
    out->overlap = tile->overlap;
    out->parts = tile->parts;
    out->head_rows = tile->head_rows;
    out->mma_flops = tile->wgmma ? planner->arch.wgmma_flops : planner->device->mma_flops;
    out->legal = 1;
    if (!fk_plan_check_tile(planner, tile, out)) return FK_OK;
    layout_call call = {planner, tile, layout};
    const fk_status status = fk_lua_call(planner->lua, layout_body, &call, err);
    if (status != FK_OK) return status;
    out->smem_bytes = layout->bytes;
    out->registers = fk_model_registers(planner->p, tile, layout, &planner->arch);
    fk_plan_check_limits(planner, tile, layout, out);
    if (out->legal && tile->dq_kernel && !planner->dq.legal)
        fk_plan_reject(out, "dq's own kernel: %s", planner->dq.reason);
    return FK_OK;
}

/* ---- candidates ---- */

/* Counting is exact while it is cheap, and sampled where a long sequence would make planning slow. */
static void model_kernel(const fk_planner *planner, const fk_smem_layout *layout, fk_plan_info *plan) {
    enum { MAX_TILES = 1 << 15 };
    const fk_problem_mask *mask = &planner->terms.mask;
    const int64_t num_walked =
        layout->walks_q ? planner->shape.seqlen_q / plan->block_m + 1 : planner->shape.seqlen_k / plan->block_n + 1;
    const int64_t rows = (layout->walks_q ? mask->split : mask->split_k).residual ? MAX_TILES / num_walked : MAX_TILES;
    fk_tile_totals tiles;
    fk_tiles_count(planner->p, mask, layout->walks_q, &planner->shape, plan->block_m, plan->block_n,
                   rows < 16 ? 16 : rows, &tiles);
    fk_model_times(planner->p, planner->device, &planner->arch, layout, &planner->shape, &tiles, &planner->score, plan);
}

/* Packed sequences end anywhere in tiles, which matters where they are short: of lengths that are spread evenly below
 * the longest, the mean. */
static void model_spread(const fk_planner *planner, const fk_smem_layout *layout, fk_plan_info *plan) {
    enum { LENGTHS = 4 };
    const fk_shape *longest = &planner->shape;
    fk_planner of_length = *planner;
    fk_plan_info mean = *plan;
    for (int i = 0; i < LENGTHS; ++i) {
        fk_plan_info one = *plan;
        of_length.shape.seqlen_q = (longest->seqlen_q * (2 * i + 1) + 2 * LENGTHS - 1) / (2 * LENGTHS);
        of_length.shape.seqlen_k = (longest->seqlen_k * (2 * i + 1) + 2 * LENGTHS - 1) / (2 * LENGTHS);
        model_kernel(&of_length, layout, &one);
        fk_model_add(&mean, &one, 1.0 / LENGTHS);
    }
    *plan = mean;
}

void fk_plan_model(const fk_planner *planner, const fk_smem_layout *layout, fk_plan_info *plan) {
    if (fk_lengths_spread(planner->p, &planner->shape)) {
        model_spread(planner, layout, plan);
        return;
    }
    model_kernel(planner, layout, plan);
    if (!plan->dq_kernel) return;
    fk_plan_info dq = planner->dq;
    model_kernel(planner, &planner->dq_layout, &dq);
    fk_model_add(plan, &dq, 1);
}

int32_t fk_plan_most_keys(const fk_planner *planner, const fk_tile *tile) {
    if (!tile->wgmma || planner->p->op == FK_BACKWARD || !fk_plan_scan(planner, tile).needed) return FK_MAX_SEQLEN;
    const int64_t keys = (int64_t)tile->block_n << (30 - 2 * fk_tile_consumers(tile));
    return keys < FK_MAX_SEQLEN ? (int32_t)keys : FK_MAX_SEQLEN;
}

void fk_plan_model_candidate(const fk_planner *planner, const fk_smem_layout *layout, fk_plan_info *plan) {
    const int64_t seqlen_q = planner->shape.seqlen_q, seqlen_k = planner->shape.seqlen_k;
    const fk_tile tile = fk_plan_tile(planner->p, plan);
    const int32_t most_keys = fk_plan_most_keys(planner, &tile);
    if (plan->legal && plan->head_rows && seqlen_q > plan->head_rows)
        fk_plan_reject(plan, "head_rows %d: seqlen_q is %lld", plan->head_rows, (long long)seqlen_q);
    if (plan->legal && seqlen_k > most_keys)
        fk_plan_reject(plan, "tiles of keys are told in a word: %d keys, seqlen_k is %lld", most_keys,
                       (long long)seqlen_k);
    if (plan->legal) fk_plan_model(planner, layout, plan);
}

static bool is_better(const fk_plan_info *a, const fk_plan_info *b) {
    if (a->legal != b->legal) return a->legal;
    if (!a->legal) return false;
    if (a->model_us < b->model_us || a->model_us > b->model_us) return a->model_us < b->model_us;
    return a->smem_bytes < b->smem_bytes;
}

/* What is modelled alike keeps the order of insertion, which is the arch file's. */
void fk_plan_insert(fk_plan_info *plans, size_t *count, const fk_plan_info *plan) {
    size_t at = (*count)++;
    for (; at > 0 && is_better(plan, &plans[at - 1]); --at)
        plans[at] = plans[at - 1];
    plans[at] = *plan;
}

static fk_status enumerate_model(fk_planner *planner, fk_plan_info *plans, size_t *count, fk_error *err) {
    for (int i = 0; i < planner->arch.num_tiles; ++i) {
        fk_plan_info plan;
        fk_smem_layout layout;
        const fk_status status = fk_plan_judge(planner, &planner->arch.tile[i], &plan, &layout, err);
        if (status != FK_OK) return status;
        if (fk_plan_find(plans, *count, &plan) < *count)
            continue; /* a list of some problems' own names it, and that for all */
        fk_plan_model_candidate(planner, &layout, &plan);
        fk_plan_insert(plans, count, &plan);
    }
    return FK_OK;
}

/* Algorithm 1, line 1 of FlashAttention (Dao et al. 2022): M elements of SRAM hold a block each of Q, K, V and O. The
 * formula knows neither registers nor atoms of 16, so it is rounded to what is legal: down, but for B_r
 * where nothing below is. */
static fk_status enumerate_paper(fk_planner *planner, fk_plan_info *plan, size_t *count, fk_error *err) {
    const int d = planner->p->head_dim, elements = planner->device->smem_per_block / fk_dtype_bytes(planner->p->dtype);
    const int b_c = (elements + 4 * d - 1) / (4 * d), b_r = b_c < d ? b_c : d;
    fk_tile tile = {.warps = 8, .stages = 1, .ctas = 1};
    while (tile.warps > 1 && tile.warps * 16 > b_r)
        tile.warps /= 2;
    tile.block_m = b_r < 16 ? 16 : b_r / (16 * tile.warps) * (16 * tile.warps);
    const int largest_n = b_c < 16 ? 16 : b_c > 4096 ? 4096 : b_c / 16 * 16;
    fk_smem_layout layout;
    fk_status status = FK_OK;
    for (;; tile.warps *= 2, tile.block_m *= 2) { /* where few threads must stage the copies, more rows share them */
        tile.block_n = largest_n + 16;
        do {
            tile.block_n -= 16;
            status = fk_plan_judge(planner, &tile, plan, &layout, err);
        } while (status == FK_OK && !plan->legal && tile.block_n > 16);
        if (status != FK_OK || plan->legal || tile.warps == 8) break;
    }
    if (status != FK_OK) return status;
    *count = 1;
    if (!plan->legal) return FK_OK;
    fk_plan_model(planner, &layout, plan);
    snprintf(plan->reason, sizeof plan->reason,
             "paper: B_c = ceil(%d / (4 * %d)) = %d, B_r = min(%d, %d) = %d; what is legal here: B_c = %d, B_r = %d",
             elements, d, b_c, b_c, d, b_r, plan->block_n, plan->block_m);
    return FK_OK;
}

/* The plan that the caller names goes first, one of the candidates or not. */
static fk_status force(fk_planner *planner, const char *text, fk_plan_info *plans, size_t *count, fk_error *err) {
    fk_plan_info wanted, judged;
    fk_smem_layout layout;
    fk_status status = fk_plan_read(text, &wanted, err);
    if (status != FK_OK) return status;
    const fk_tile tile = fk_plan_tile(planner->p, &wanted);
    status = fk_plan_judge(planner, &tile, &judged, &layout, err);
    if (status == FK_OK && !judged.legal) status = fk_fail(err, FK_UNSUPPORTED, "plan \"%s\": %s", text, judged.reason);
    if (status != FK_OK) return status;
    fk_plan_model(planner, &layout, &judged);
    const size_t at = fk_plan_find(plans, *count, &judged);
    plans[at] = judged;
    if (at == *count) ++*count;
    fk_plan_promote(plans, at, FK_CHOSEN_BY_CALLER);
    return FK_OK;
}

/* None of the `count` plans is legal. */
static fk_status fail_illegal(const fk_device_info *device, const fk_plan_info *plans, size_t count, fk_error *err) {
    const fk_plan_info *last = &plans[count - 1];
    const char *gpu = device->key[0] ? device->key : device->name;
    if (count > 1 && strcmp(plans[0].reason, last->reason) == 0) /* the problem is at fault, not a tiling */
        return fk_fail(err, FK_UNSUPPORTED, "no plan for %s (sm_%d): %s", gpu, device->sm, last->reason);
    return fk_fail(err, FK_UNSUPPORTED, "no plan for %s (sm_%d): of %zu tilings, the last one (%d x %d, %d warps): %s",
                   gpu, device->sm, count, last->block_m, last->block_n, last->warps, last->reason);
}

fk_status fk_plan_enumerate(const fk_problem *p, const fk_device_info *device, const fk_plan_options *options,
                            fk_plan_info **plans, size_t *count, fk_error *err) {
    const fk_plan_options defaults = FK_PLAN_OPTIONS_INIT;
    if (!options) options = &defaults;
    fk_problem problem;
    fk_status status = fk_problem_normalise(p, &problem, err);
    if (status == FK_OK) status = fk_plan_options_check(options, err);
    if (status != FK_OK) return status;
    fk_planner planner;
    status = fk_planner_open(&problem, device, &options->shape, options->template_dir, &planner, err);
    if (status != FK_OK) return status;
    size_t n = 0;
    fk_plan_info *list = calloc((size_t)planner.arch.num_tiles + 1, sizeof *list);
    if (!list)
        status = fk_fail(err, FK_NO_MEMORY, "no memory for %d plans", planner.arch.num_tiles);
    else if (options->rule == FK_RULE_PAPER && problem.op == FK_BACKWARD)
        status = fk_fail(err, FK_UNSUPPORTED,
                         "rule is paper: must be model for bwd; the paper's rule sizes the forward pass");
    else if (options->rule == FK_RULE_PAPER)
        status = enumerate_paper(&planner, list, &n, err);
    else
        status = enumerate_model(&planner, list, &n, err);
    if (status == FK_OK) list[0].chosen = FK_CHOSEN_BY_RULE;
    if (status == FK_OK && options->plan) status = force(&planner, options->plan, list, &n, err);
    if (status == FK_OK && !list[0].legal) status = fail_illegal(device, list, n, err);
    fk_planner_close(&planner);
    if (status != FK_OK) {
        free(list);
        return status;
    }
    *plans = list;
    *count = n;
    return FK_OK;
}

fk_status fk_plan_best(const fk_problem *p, const fk_device_info *device, const fk_plan_options *options,
                       fk_plan_info *out, fk_error *err) {
    fk_plan_info *plans;
    size_t count;
    const fk_status status = fk_plan_enumerate(p, device, options, &plans, &count, err);
    if (status != FK_OK) return status;
    *out = plans[0];
    free(plans);
    return FK_OK;
}

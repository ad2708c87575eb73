/* What a tile must satisfy before its layout is asked for, and the limits of the device that it must keep. */
#include "plan.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void fk_plan_reject(fk_plan_info *plan, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(plan->reason, sizeof plan->reason, format, args);
    va_end(args);
    plan->legal = 0;
}

static bool check_mma(const fk_planner *planner, const fk_tile *tile, fk_plan_info *plan) {
    const fk_arch *arch = &planner->arch;
    const bool backward = planner->p->op == FK_BACKWARD;
    const int own_warps = tile->walks_q ? 1 : tile->warps; /* the layout says how warps share a tile of keys */
    const int d = planner->p->head_dim, dv = planner->p->head_dim_v, columns = d > dv ? d : dv;
    const int chunk = planner->p->dtype == FK_FP32 ? 4 : 8; /* elements that a thread copies */
    if (planner->p->dtype == FK_BF16 && !arch->bf16) {
        fk_plan_reject(plan, "dtype bf16: the tensor cores of %s take fp16 only", arch->name);
    } else if (planner->p->dtype == FK_FP32 && !arch->fp32) {
        fk_plan_reject(plan, "dtype fp32: the tensor cores of %s have no bf16", arch->name);
    } else if (planner->p->dtype == FK_FP32 && tile->q_in_regs) {
        fk_plan_reject(plan, "q_in_regs 1: must be 0 for fp32, whose Q would take twice the registers");
    } else if (tile->k_stages && (planner->p->dtype != FK_FP32 || tile->k_stages > 1)) {
        fk_plan_reject(plan, "k_stages %d: must be 0, or 1 of fp32", tile->k_stages);
    } else if (tile->k_stages && backward && (tile->dq_kernel || tile->stages > 1)) {
        fk_plan_reject(plan, "k_stages 1: must be 0 backward with %s",
                       tile->dq_kernel ? "a kernel of dq, whose tiles are no parts" : "more stages than 1");
    } else if (tile->warps < 1 || tile->warps > 32 || tile->stages < 1 || tile->ctas < 1) {
        fk_plan_reject(plan, "warps %d, stages %d, ctas_per_sm %d: must be positive, warps at most 32", tile->warps,
                       tile->stages, tile->ctas);
    } else if (tile->warps & (tile->warps - 1)) {
        fk_plan_reject(plan, "warps %d: must be a power of two, by which rows of tiles are copied", tile->warps);
    } else if (tile->block_m < 1 || tile->block_m > 4096 || tile->block_m % (16 * own_warps)) {
        fk_plan_reject(plan, "block_m %d: must be a multiple of 16 rows for each of %d warps", tile->block_m,
                       own_warps);
    } else if (tile->walks_q && (tile->block_m & (tile->block_m - 1))) {
        fk_plan_reject(plan,
                       "block_m %d: must be a power of two in the backward pass, where dS passes through its columns",
                       tile->block_m);
    } else if (columns / chunk > 32 * tile->warps) {
        fk_plan_reject(plan, "warps %d: must be at least %d, whose threads copy a row of %d columns at a time",
                       tile->warps, (columns / chunk + 31) / 32, columns);
    } else if (tile->block_n < 1 || tile->block_n > 4096 || tile->block_n % 16) {
        fk_plan_reject(plan, "block_n %d: must be a multiple of 16", tile->block_n);
    } else if (backward && tile->q_in_regs) {
        fk_plan_reject(plan, "q_in_regs 1: must be 0 in the backward pass, where every warp reads all of Q");
    }
    return plan->legal;
}

/* What the family does not serve falls to the mma rows beside it. */
static const char *refuse_problem(const fk_problem *p) {
    if (p->dtype == FK_FP32) return "dtype fp32";
    if (p->split) return "split";
    return p->paged == 1 && !p->kv_e4m3 ? "paged, of any page size" : NULL; /* what is widened is in rows */
}

/* What the CTAs of a cluster, which go through the same keys side by side, do not serve. */
static const char *refuse_cluster(const fk_planner *planner, const fk_tile *tile) {
    const fk_problem *p = planner->p;
    if (p->dtype == FK_E4M3) return "dtype e4m3";
    if (fk_tile_halved(p, tile)) return NULL;
    if (p->packed || p->seqused_k || p->paged) return p->packed ? "packed" : p->paged ? "paged" : "seqused_k";
    const bool looks = planner->terms.mask.split.residual || fk_plan_takes_runs(planner, tile);
    return looks ? "mask that is no bound" : NULL;
}

/* What follows from how many warpgroups compute, in the forward pass. */
static void check_wgmma_forward(const fk_planner *planner, const fk_tile *tile, fk_plan_info *plan) {
    const fk_problem *p = planner->p;
    const int consumers = fk_tile_consumers(tile), cluster = fk_tile_cluster(p, tile);
    const bool halved = fk_tile_halved(p, tile);
    const char *refused = cluster > 1 ? refuse_cluster(planner, tile) : NULL;
    if (tile->block_m != 64 * consumers * (halved ? 1 : cluster)) {
        fk_plan_reject(plan, "block_m %d: must be 64 rows for each of %d warpgroups that compute, half or twice that",
                       tile->block_m, consumers);
    } else if (refused) {
        fk_plan_reject(plan, "block_m %d: clusters have no %s", tile->block_m, refused);
    } else if (tile->block_n < 1 || tile->block_n > 256 || tile->block_n % 16) {
        fk_plan_reject(plan, "block_n %d: must be a multiple of 16, at most 256", tile->block_n);
    } else if (p->dtype == FK_E4M3 && (tile->block_n > 128 || tile->block_n % 32)) {
        fk_plan_reject(
            plan,
            "block_n %d: must be a multiple of 32, at most 128, for e4m3, whose values have keys in rows of 128 bytes",
            tile->block_n);
    } else if (halved && tile->block_n % 32 && (p->dropout || fk_plan_scan(planner, tile).key_rows)) {
        fk_plan_reject(plan,
                       "block_n %d: must be a multiple of 32 with %s and head dims above %d, where a CTA weighs half",
                       tile->block_n, p->dropout ? "dropout" : "masks that read arrays by k", FK_NARROW_HEAD_DIM);
    } else if (fk_tile_takes_values_from_keys(p, tile) && (tile->stages != tile->k_stages || tile->stages < 3)) {
        fk_plan_reject(plan, "k_stages %d, stages %d: must be equal, and at least 3, where values are keys",
                       tile->k_stages, tile->stages);
    } else if (tile->k_stages < 2 || tile->k_stages > 8 || tile->stages < 2 || tile->stages > 8) {
        fk_plan_reject(plan, "k_stages %d, stages %d: must be from 2 to 8", tile->k_stages, tile->stages);
    } else if (tile->q_stages < 1 || tile->q_stages > 2 || tile->overlap < 1 || tile->overlap > 2) {
        fk_plan_reject(plan, "q_stages %d, overlap %d: must be 1 or 2", tile->q_stages, tile->overlap);
    } else if (halved && tile->q_stages != 1) {
        fk_plan_reject(plan,
                       "q_stages %d: must be 1 with head dims above %d, where half of O's columns need be no panels",
                       tile->q_stages, FK_NARROW_HEAD_DIM);
    } else if (halved && fk_tile_teams(tile) > 1) {
        fk_plan_reject(plan,
                       "block_m %d: must be 64 rows for each of %d warpgroups that compute with head dims above %d",
                       tile->block_m, fk_tile_teams(tile) * consumers, FK_NARROW_HEAD_DIM);
    } else if (fk_tile_teams(tile) > 1 && tile->q_stages == 1) {
        fk_plan_reject(plan, "q_stages 1: must be 2 with two teams");
    }
}

/* A CTA that has all keys of a head: of how many queries, and which problems it does not serve. */
static void check_heads(const fk_planner *planner, const fk_tile *tile, fk_plan_info *plan) {
    const fk_problem *p = planner->p;
    const char *refused = p->gqa ? "gqa" : planner->terms.score.num_sinks > 0 ? "score with sinks" : NULL;
    if (refused) {
        fk_plan_reject(plan, "head_rows %d: plans with all keys of a head have no %s", tile->head_rows, refused);
    } else if (tile->q_stages) {
        fk_plan_reject(plan, "q_stages %d: must be 0 with head_rows, where dq has no buffers", tile->q_stages);
    } else if (tile->head_rows < 0 || tile->head_rows % tile->block_m || tile->head_rows > 32 * tile->block_m) {
        fk_plan_reject(plan, "head_rows %d: must be a multiple of block_m, %d, and at most 32 times that",
                       tile->head_rows, tile->block_m);
    } else if (tile->block_n == 64 || fk_tile_cluster(p, tile) > 1) {
        fk_plan_reject(plan, "head_rows %d: must be 0 with head_dim above 128", tile->head_rows);
    }
}

/* A warpgroup has 64 keys of its own, or all of them have the same 64 and share the queries and the columns, which are
 * in panels of 64; a product's M is 64, its N at most 256. */
static void check_wgmma_backward(const fk_planner *planner, const fk_tile *tile, fk_plan_info *plan) {
    const fk_problem *p = planner->p;
    const bool halved = fk_tile_halved(p, tile);
    const int consumers = fk_tile_consumers(tile);
    const int widest = p->head_dim > p->head_dim_v ? p->head_dim : p->head_dim_v, cluster = fk_tile_cluster(p, tile);
    if (consumers != 2) {
        fk_plan_reject(plan, "warps %d: must be 12, of 2 warpgroups that compute and one that loads", tile->warps);
    } else if (tile->block_n != 64 && tile->block_n != 64 * consumers) {
        fk_plan_reject(plan, "block_n %d: must be 64, or 64 keys for each of %d warpgroups that compute", tile->block_n,
                       consumers);
    } else if (tile->block_m != 64 && (tile->block_m != 64 * consumers || tile->block_n == 64)) {
        fk_plan_reject(plan, "block_m %d: must be 64, or with %d keys %d", tile->block_m, 64 * consumers,
                       64 * consumers);
    } else if (tile->block_n == 64 && widest <= 128) {
        fk_plan_reject(plan, "block_n 64: must be %d where head_dim and head_dim_v are at most 128", 64 * consumers);
    } else if (halved && (tile->block_n != 64 || tile->q_stages || tile->k_stages != 1)) {
        fk_plan_reject(plan, "block_n %d: with head dims above %d must be 64, with q_stages 0 and k_stages 1",
                       tile->block_n, FK_NARROW_HEAD_DIM);
    } else if (tile->block_n != 64 && widest > 128 && p->head_dim <= 128) {
        fk_plan_reject(plan, "block_n %d: must be 64 where head_dim_v alone is more than 128", tile->block_n);
    } else if (cluster > 1 && !halved && (tile->block_m != 64 || tile->q_stages || tile->k_stages != 2)) {
        fk_plan_reject(plan,
                       "block_n %d: with head_dim above 128 a cluster's, which has block_m 64, q_stages 0, k_stages 2",
                       tile->block_n);
    } else if (!halved && tile->k_stages != 2 && (tile->k_stages != 3 || tile->block_n == 64 || tile->adders)) {
        fk_plan_reject(plan, "k_stages %d: must be 2, or with %d keys and dq added in any order 3", tile->k_stages,
                       64 * consumers);
    } else if (tile->stages < 2 || tile->stages > 8) {
        fk_plan_reject(plan, "stages %d: must be from 2 to 8", tile->stages);
    } else if (tile->q_stages == 1 && tile->adders) {
        fk_plan_reject(plan, "q_stages 1: must be 0, or 2 buffers of dQ, which waits for its turn");
    } else if (tile->overlap < 1 || tile->overlap > 2) {
        fk_plan_reject(plan, "overlap %d: must be 1 or 2", tile->overlap);
    } else if (tile->q_in_regs || (tile->turns && (tile->block_n == 64 || cluster > 1))) {
        fk_plan_reject(plan, "q_in_regs %d, turns %d: must be 0 in the backward pass, turns but with %d keys of a CTA",
                       tile->q_in_regs, tile->turns, 64 * consumers);
    } else if (tile->head_rows) {
        check_heads(planner, tile, plan);
    }
}

/* MB of workspace that a kernel before fills from a cache: keys and values of 16 bits, or transposed values of pages.
 * Of many long caches they are more than a launch should take. */
enum { MAX_FILLED_MB = 4096 };
static double filled_mb(const fk_planner *planner, const fk_tile *tile) {
    const fk_problem *p = planner->p;
    const fk_shape *s = &planner->shape;
    const double keys = (double)s->batch * (double)s->num_heads_kv * (double)s->seqlen_k;
    const bool transposes = p->dtype == FK_E4M3 && p->paged && tile->block_n > 0;
    const double bytes = fk_tile_widens_before(p, tile) ? 2.0 * (p->head_dim + p->head_dim_v)
                         : transposes                   ? 128.0 * fk_value_rows(p) / tile->block_n
                                                        : 0;
    return keys * bytes / (1 << 20);
}

static bool check_wgmma(const fk_planner *planner, const fk_tile *tile, fk_plan_info *plan) {
    const char *refused = refuse_problem(planner->p);
    const int computing = fk_tile_teams(tile) * fk_tile_consumers(tile);
    if (refused) {
        fk_plan_reject(plan, "%s: the wgmma family has none", refused);
    } else if (!planner->arch.wgmma_flops || planner->device->sm != planner->arch.sm) {
        fk_plan_reject(plan, "sm_%d: has no wgmma, which is sm_90's alone", planner->device->sm);
    } else if (tile->warps % 4 || computing < 1 || computing > 4) {
        fk_plan_reject(plan, "warps %d: must be 8, 12, 16 or 20, of 1 to 4 warpgroups that compute and one that loads",
                       tile->warps);
    } else if (tile->ctas != 1) {
        fk_plan_reject(plan, "ctas_per_sm %d: must be 1", tile->ctas);
    } else if (filled_mb(planner, tile) > MAX_FILLED_MB) {
        fk_plan_reject(plan,
                       "e4m3: what a kernel before makes of the cache takes %.0f MB of workspace, and may take %d",
                       filled_mb(planner, tile), MAX_FILLED_MB);
    } else if (tile->walks_q) {
        check_wgmma_backward(planner, tile, plan);
    } else if (tile->block_m == 192 && tile->block_n == 64 && tile->k_stages == 3 &&
               !fk_plan_takes_runs(planner, tile)) {
        fk_plan_reject(plan,
                       "k_stages 3: must be 4 with 192 x 64, but where ends of runs of keys leave no room for it");
    } else {
        check_wgmma_forward(planner, tile, plan);
    }
    return plan->legal;
}

/* By its name; a file of one's own may say anything. */
static bool is_built_in(const char *path, const char *template_dir) {
    char other[4096];
    return !fk_template_override(template_dir ? template_dir : fk_template_dir(), path, other, sizeof other);
}

static bool is_causal(const fk_mask *mask, const char *template_dir) {
    return strcmp(mask->name, "causal") == 0 && is_built_in("templates/mask/causal.lua", template_dir);
}

/* Backward parts are of the queries. How many see a key the runtime works out of causal and windows, and takes for all
 * where arrays say which are hidden (fk_key_parts_choose). Expressions may hide most; patterns, which have values, have
 * leading tiles. */
static bool may_have_key_parts(const fk_problem *p) {
    for (int i = 0; i < p->num_masks; i++) {
        const fk_mask *mask = &p->mask[i];
        if (!mask->name[0] || (mask->num_values && strcmp(mask->name, "window") != 0)) return false;
    }
    return !p->seqused_k && !p->grad;
}

/* Forward parts count their keys from their own first one, and the diagonal follows. */
bool fk_problem_may_have_parts(const fk_problem *p, const char *template_dir) {
    if (p->op == FK_BACKWARD) return may_have_key_parts(p);
    if (p->packed || p->dropout || p->num_masks > 1 || p->num_scores > 1) return false;
    if (p->num_masks && !is_causal(&p->mask[0], template_dir)) return false;
    if (!p->num_scores) return true;
    static const char *const served[][2] = {{"softcap", "templates/score/softcap.lua"},
                                            {"alibi", "templates/score/alibi.lua"},
                                            {"bias", "templates/score/bias.lua"}};
    for (size_t i = 0; i < sizeof served / sizeof *served; i++)
        if (strcmp(p->score[0].name, served[i][0]) == 0) return is_built_in(served[i][1], template_dir);
    return false;
}

/* Of family mma backward, where no CTAs are counted, as Hopper's are, and a tile's columns are one CTA's. */
bool fk_tile_may_have_parts(const fk_problem *p, const fk_tile *tile, int sm, const char *template_dir) {
    if (!fk_problem_may_have_parts(p, template_dir)) return false;
    if (!tile->wgmma) return tile->walks_q && sm < 90 && !p->deterministic && !p->packed && fk_slices(p) == 1;
    if (tile->walks_q) return !tile->head_rows && !fk_tile_halved(p, tile);
    if (fk_problem_has_bias(p) && !fk_tile_stages(p, tile)) return false;
    return fk_tile_teams(tile) == 1 && (fk_tile_cluster(p, tile) == 1 || fk_tile_halved(p, tile));
}

static void reject_parts(const fk_tile *tile, fk_plan_info *plan) {
    fk_plan_reject(plan, "parts 1: must be 0, but in %s",
                   tile->walks_q
                       ? "backward kernels without seqused_k, head_rows, grad, masks by expression or with values but "
                         "window, d > 256; mma: below sm_90, not packed"
                       : "forward wgmma kernels without masks but causal, scores but softcap, "
                         "alibi, tiles of a bias (those built in), dropout, packed, clusters, teams");
}

bool fk_plan_check_tile(const fk_planner *planner, const fk_tile *tile, fk_plan_info *plan) {
    if (tile->parts && !fk_tile_may_have_parts(planner->p, tile, planner->arch.sm, planner->template_dir)) {
        reject_parts(tile, plan);
        return false;
    }
    if (tile->head_rows && !(tile->wgmma && tile->walks_q)) {
        fk_plan_reject(plan, "head_rows %d: must be 0, but in backward kernels of family wgmma", tile->head_rows);
        return false;
    }
    return tile->wgmma ? check_wgmma(planner, tile, plan) : check_mma(planner, tile, plan);
}

/* Warps stand in rows of keys and columns of queries; each computes the scores of whole atoms. */
static void check_warps(const fk_tile *tile, const fk_smem_layout *layout, fk_plan_info *plan) {
    const int cols = layout->col_warps, rows = tile->warps / cols;
    if (tile->warps % cols) {
        fk_plan_reject(plan, "warps %d: must be a multiple of the layout's %d columns of warps", tile->warps, cols);
    } else if (tile->block_n % (16 * rows)) {
        fk_plan_reject(plan, "block_n %d: must be a multiple of 16 keys for each of %d rows of warps", tile->block_n,
                       rows);
    } else if (tile->block_m % (16 * cols)) {
        fk_plan_reject(plan, "block_m %d: must be a multiple of 16 queries for each of %d columns of warps",
                       tile->block_m, cols);
    }
}

/* Warpgroups hand registers on: those that compute take what the one that loads needs not. */
static int register_cap(const fk_planner *planner, const fk_tile *tile, const fk_smem_layout *layout) {
    const fk_device_info *device = planner->device;
    if (tile->wgmma) return layout->registers_given;
    const int warps = (tile->warps * tile->ctas + 3) / 4 * 4; /* of four schedulers, whose registers are their own */
    const int cap = device->registers_per_sm / (32 * warps) / 8 * 8; /* given in eights */
    return cap < 255 ? cap : 255;
}

static void check_limits(const fk_planner *planner, const fk_tile *tile, const fk_smem_layout *layout,
                         fk_plan_info *plan) {
    const fk_device_info *device = planner->device;
    const int threads = tile->warps * 32, ctas = tile->ctas;
    const int64_t smem_all = (int64_t)ctas * (plan->smem_bytes + device->smem_reserved);
    const int cap = register_cap(planner, tile, layout);
    if (plan->smem_bytes > device->smem_per_block) {
        fk_plan_reject(plan, "shared memory: %d bytes > %d of a block", plan->smem_bytes, device->smem_per_block);
    } else if (smem_all > device->smem_per_sm) {
        fk_plan_reject(plan, "shared memory: %d CTAs of %d + %d bytes > %d of an SM", ctas, plan->smem_bytes,
                       device->smem_reserved, device->smem_per_sm);
    } else if (ctas * threads > device->threads_per_sm || ctas > device->blocks_per_sm) {
        fk_plan_reject(plan, "%d CTAs of %d threads > %d threads or %d CTAs of an SM", ctas, threads,
                       device->threads_per_sm, device->blocks_per_sm);
    } else if (plan->registers > 255) {
        fk_plan_reject(plan, "registers: about %d > 255 of a thread", plan->registers);
    } else if (tile->wgmma && plan->registers > cap) {
        fk_plan_reject(plan, "registers: about %d > %d of a thread of %d warpgroups that compute", plan->registers, cap,
                       fk_tile_consumers(tile));
    } else if (plan->registers > cap) {
        fk_plan_reject(plan, "registers: about %d > %d that %d CTAs of %d threads leave each", plan->registers, cap,
                       ctas, threads);
    }
}

void fk_plan_check_limits(const fk_planner *planner, const fk_tile *tile, const fk_smem_layout *layout,
                          fk_plan_info *plan) {
    if (tile->walks_q && !tile->wgmma) check_warps(tile, layout, plan);
    if (plan->legal) check_limits(planner, tile, layout, plan);
}

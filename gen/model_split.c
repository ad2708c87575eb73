/* Split-KV forward: how many CTAs share the keys of a query tile, and what that makes of the model's times. */
#include "plan.h"

#include <math.h>

/* Visits of key tiles that a CTA's start and end cost, and those of launching the combine kernel. */
static const double CTA_VISITS = 2, COMBINE_VISITS = 4;
/* Of a load from HBM while all SMs load; and of each copy of 16 bytes that a thread starts, one after another, where it
 * first looks for the row's page, or need not: fitted to what decoding takes on an H200. */
static const double MEMORY_NS = 800, COPY_NS = 20, PAGED_COPY_NS = 50;
/* Of one more kernel in a stream. */
static const double COMBINE_US = 2.5;
/* Share of what runs beside the longest of computing, loading and waiting that adds to it. */
static const double NOT_HIDDEN = 0.15;

int64_t fk_row_heads(const fk_problem *p, const fk_plan_info *plan, int64_t seqlen_q, int64_t heads_per_kv) {
    return fk_problem_joins_heads(p) && seqlen_q < plan->block_m ? heads_per_kv : 1;
}

int fk_split_choose(const fk_problem *p, const fk_plan_info *plan, int64_t num_sms, int64_t num_ctas, int64_t rows,
                    int64_t k_tiles) {
    if (k_tiles < 1) return 1; /* a mask that leaves nothing to see */
    const int64_t slots = num_sms * plan->ctas_per_sm;
    const int64_t tile_rows = rows < plan->block_m ? rows : plan->block_m;
    const double tile_bytes = (double)fk_dtype_bytes(p->dtype) * plan->block_n * (p->head_dim + p->head_dim_v);
    const double o_visits = 8.0 * (double)(tile_rows * p->head_dim_v) / tile_bytes; /* written and read, in float32 */
    const int most = k_tiles < FK_MAX_SPLITS ? (int)k_tiles : FK_MAX_SPLITS;
    double shortest = (double)((num_ctas + slots - 1) / slots) * ((double)k_tiles + CTA_VISITS);
    int best = 1;
    for (int64_t waves = 1; waves <= 4 && num_ctas < slots; waves++) {
        const int64_t fitting = waves * slots / num_ctas < most ? waves * slots / num_ctas : most;
        const int64_t walk = (k_tiles + fitting - 1) / fitting; /* of the longest share */
        const double time = (double)waves * ((double)walk + CTA_VISITS + o_visits) + COMBINE_VISITS;
        if (time < shortest) {
            shortest = time;
            best = (int)((k_tiles + walk - 1) / walk); /* no more than have something to do */
        }
    }
    return best;
}

void fk_model_split(const fk_problem *p, const fk_device_info *device, const fk_shape *shape, const fk_plan_info *plan,
                    fk_tile_totals *walks, fk_split_model *out) {
    const double heads = (double)shape->batch * (double)shape->num_heads_q;
    const int64_t row_heads = fk_row_heads(p, plan, shape->seqlen_q, shape->num_heads_q / shape->num_heads_kv);
    const int64_t rows = shape->seqlen_q * row_heads; /* joined heads: seqlen_q < block_m <= 4096 */
    const double tiles = row_heads == 1 ? (double)walks->num_ctas : ceil((double)rows / plan->block_m);
    const double num_ctas = heads / (double)row_heads * tiles;
    const int splits = fk_split_choose(p, plan, device->num_sms, (int64_t)fmin(num_ctas, 0x1p40), rows,
                                       (int64_t)ceil(walks->max_visited));
    walks->min_visited /= splits;
    walks->mean_visited /= splits;
    walks->max_visited = ceil(walks->max_visited / splits);
    *out = (fk_split_model){.num_ctas = num_ctas * splits, .share = num_ctas / (heads * (double)walks->num_ctas)};
    if (splits > 1 || row_heads > 1) {
        out->combine_bytes = 8.0 * splits * heads * (double)shape->seqlen_q * (p->head_dim_v + 1);
        out->combine_us = COMBINE_US;
    }
    const double resident = fmin(plan->ctas_per_sm, ceil(out->num_ctas / device->num_sms));
    const double visits = out->num_ctas * walks->mean_visited / (device->num_sms * resident);
    const int per_chunk = 16 / (int)fk_dtype_bytes(p->dtype), threads = 32 * plan->warps;
    const int copies = fk_model_copied_rows(plan->block_n, p->head_dim / per_chunk, threads) +
                       fk_model_copied_rows(plan->block_n, p->head_dim_v / per_chunk, threads);
    const double load_ns = MEMORY_NS * (plan->stages == 1 ? 2 : 1);
    out->latency_us = visits * (load_ns + copies * (p->paged ? PAGED_COPY_NS : COPY_NS)) * 1e-3;
}

double fk_model_overlap(double clocks_us, double hbm_us, const fk_split_model *split) {
    const double longest = fmax(fmax(clocks_us, hbm_us), split->latency_us);
    const double rest = clocks_us + hbm_us + split->latency_us - longest;
    return longest + NOT_HIDDEN * rest + split->combine_us;
}

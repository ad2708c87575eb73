/* Split-KV forward: how many CTAs share the keys of a query tile, and what that makes of the model's times. */
#include "plan.h"

#include <math.h>

/* Fitted to decoding on an H100, head dim 128, 8 to 512 pairs of sequence and kv head of 2,048 to 8,192 keys, three
 * plans, 1 to 64 splits: 47 times, all within 5 % and most within 2. In us: a launch, the second kernel and what it
 * takes for each split; a CTA's start and end. */
static const double START_US = 1.6, COMBINE_US = 2, SPLIT_US = 0.047, CTA_US = 1.3;
/* What HBM gives of its rate; what one CTA alone waits for a tile, what it takes for each of a thread's copies of 16
 * bytes, and the KB that it gets in a us. */
static const double HBM_SHARE = 0.922, TILE_US = 0.44, COPY_US = 0.009, CTA_KB = 63;
/* Of each page that a thread looks up: fitted to what decoding takes on an H200. */
static const double PAGED_COPY_US = 0.03;
/* Registers of a thread over those that are estimated, of which these kernels take more; CTAs that an SM may hold. */
static const double REGISTERS_MORE = 1.3;
enum { MOST_CTAS = 16 };
/* What else tells plans apart on an H200, with 1 to 64 sequences of 4,096 and 8,192 keys. Of 16 bits, tiles of fewer
 * than 64 keys at head dims 96, 128 and 192 (above, wider ones have no registers) took 1.0 to 1.3 times as long, and
 * tiles of 64 rows of which half or fewer are there 1.0 to 1.09. Of 8 bits, tiles in whose threads no register is left
 * to have the next one on its way (16 x 16 at head dim 256) took 1.0 to 1.5 times as long as they should. */
static const double NARROW = 1.06, EMPTY = 1.04, CROWDED = 1.6;
enum { WIDE_TILE = 64, MOST_DIM = 192, FREE_REGISTERS = 240 };

static double slowness(const fk_problem *p, const fk_device_info *device, const fk_plan_info *plan, int64_t rows) {
    if (device->sm < 90) return 1;
    if (p->kv_e4m3) return p->head_dim > MOST_DIM && plan->registers > FREE_REGISTERS ? CROWDED : 1;
    if (fk_dtype_bytes(p->dtype) != 2 || p->head_dim > MOST_DIM || p->head_dim_v != p->head_dim) return 1;
    const bool empty = plan->block_m >= WIDE_TILE && 2 * rows <= plan->block_m;
    return (plan->block_n < WIDE_TILE ? NARROW : 1) * (empty ? EMPTY : 1);
}

/* Share of the shorter of computing and loading that adds to the longer. */
static const double NOT_HIDDEN = 0.3;

int64_t fk_row_heads(const fk_problem *p, const fk_plan_info *plan, int64_t seqlen_q, int64_t heads_per_kv) {
    return fk_problem_joins_heads(p) && seqlen_q < plan->block_m ? heads_per_kv : 1;
}

/* Of the sizes of a launch what its time depends on. */
typedef struct split_sizes {
    int64_t num_ctas, k_tiles; /* as in fk_split_choose */
    int64_t slots;             /* CTAs that run at a time */
    double alone_us, share_us; /* of a tile: what one CTA waits for it; HBM's time for it */
    double row_us;             /* HBM's time for a CTA's rows of O and lse, written and read */
} split_sizes;

/* Copies of a thread that share the look-up of a page: templates/piece/tile_paged.cu. */
static int copies_alike(const fk_problem *p, const fk_plan_info *plan, int chunks) {
    int lanes = 1;
    while (lanes < chunks)
        lanes *= 2;
    const int step = 32 * plan->warps / lanes, together = plan->block_n < p->paged ? plan->block_n : p->paged;
    const bool alike = step && together % step == 0 && plan->block_n % together == 0 && p->paged % together == 0;
    return alike ? together / step : 1;
}

/* What a thread takes to start the copies of a tile of K or V. */
static double copies_us(const fk_problem *p, const fk_plan_info *plan, int columns) {
    const int bytes = p->dtype == FK_FP32 ? 4 : 2; /* as they lie in shared memory */
    const int chunks = (columns + 15) / 16 * 16 * bytes / 16;
    const int copies = fk_model_copied_rows(plan->block_n, chunks, 32 * plan->warps);
    return copies * (COPY_US + (p->paged ? PAGED_COPY_US / copies_alike(p, plan, chunks) : 0));
}

/* What a tile of keys takes where so many CTAs load at the same time: what one waits for it, or its share of HBM, and
 * more than either where they are alike. */
static double visit_us(const split_sizes *s, double resident) {
    const double alone = s->alone_us, share = resident * s->share_us;
    return cbrt(alone * alone * alone + share * share * share);
}

static double loading_us(const split_sizes *s, int splits) {
    const int64_t walk = (s->k_tiles + splits - 1) / splits;
    const int64_t ctas = s->num_ctas * ((s->k_tiles + walk - 1) / walk), rest = ctas % s->slots;
    const double full = (double)(ctas / s->slots) * ((double)walk * visit_us(s, (double)s->slots) + CTA_US);
    return full + (rest ? (double)walk * visit_us(s, (double)rest) + CTA_US : 0);
}

static double combining_us(const split_sizes *s, int splits) {
    return splits == 1 ? 0 : COMBINE_US + splits * (SPLIT_US + (double)s->num_ctas * s->row_us);
}

static int choose(const split_sizes *s) {
    if (s->k_tiles < 1 || s->num_ctas < 1) return 1; /* a mask that leaves nothing to see */
    const int most = s->k_tiles < FK_MAX_SPLITS ? (int)s->k_tiles : FK_MAX_SPLITS;
    int best = 1;
    double shortest = loading_us(s, 1) + combining_us(s, 1);
    /* As many CTAs as fill the GPU a quarter, half, once, twice, ... */
    for (int64_t quarters = 1; quarters <= 16; quarters += quarters < 4 ? 1 : 4) {
        const int64_t ctas = quarters * s->slots / 4;
        for (int more = 0; more < 2; more++) {
            const int64_t fitting = ctas / s->num_ctas + more, splits = fitting < most ? fitting : most;
            if (splits < 2) continue;
            const int64_t walk = (s->k_tiles + splits - 1) / splits;
            const int used = (int)((s->k_tiles + walk - 1) / walk); /* no more than have something to do */
            const double time = loading_us(s, used) + combining_us(s, used);
            if (time < shortest) shortest = time, best = used;
        }
    }
    return best;
}

/* As many CTAs as there is room for, which are often more than the compiler was told of. */
static int64_t slots_of(const fk_device_info *device, const fk_plan_info *plan, int registers) {
    const int threads = 32 * plan->warps, smem = plan->smem_bytes + device->smem_reserved;
    const int each = registers > 0 ? (registers + 7) / 8 * 8 : (int)fmin(255, REGISTERS_MORE * plan->registers);
    int room = smem > 0 ? device->smem_per_sm / smem : MOST_CTAS;
    if (room > MOST_CTAS) room = MOST_CTAS;
    if (room > device->threads_per_sm / threads) room = device->threads_per_sm / threads;
    if (each > 0) { /* an SM has four schedulers, each with registers of its own for whole warps */
        const int warps = 4 * (device->registers_per_sm / 4 / (32 * each));
        if (room > warps / plan->warps) room = warps / plan->warps;
    }
    return (int64_t)device->num_sms * (room > plan->ctas_per_sm ? room : plan->ctas_per_sm);
}

static split_sizes sizes_of(const fk_problem *p, const fk_device_info *device, const fk_plan_info *plan,
                            int64_t num_ctas, int64_t rows, int64_t k_tiles, int registers) {
    const double us_per_byte = 1e-3 / (HBM_SHARE * device->hbm_gbps);
    const int slices = fk_slices(p), own = p->head_dim_v / slices; /* K comes from HBM once for all slices */
    const double row = (double)fk_dtype_bytes(fk_kv_dtype(p)) * plan->block_n, bytes = row * (p->head_dim + own);
    const double waits = plan->stages == 1 && fk_kv_dtype(p) == p->dtype ? 2 : 1; /* for K and for V */
    return (split_sizes){
        .num_ctas = num_ctas,
        .k_tiles = k_tiles,
        .slots = slots_of(device, plan, registers),
        .alone_us = waits * TILE_US + bytes * 1e-3 / CTA_KB + copies_us(p, plan, p->head_dim) + copies_us(p, plan, own),
        .share_us = row * (p->head_dim + p->head_dim_v) / slices * us_per_byte,
        .row_us = 8.0 * (double)rows * (own + 1) * us_per_byte,
    };
}

int fk_split_choose(const fk_problem *p, const fk_device_info *device, const fk_plan_info *plan, int64_t num_ctas,
                    int64_t rows, int64_t k_tiles, int registers) {
    const split_sizes sizes = sizes_of(p, device, plan, num_ctas, rows, k_tiles, registers);
    return choose(&sizes);
}

void fk_model_split(const fk_problem *p, const fk_device_info *device, const fk_shape *shape, const fk_plan_info *plan,
                    fk_tile_totals *walks, fk_split_model *out) {
    const double heads = (double)shape->batch * (double)shape->num_heads_q;
    const int64_t row_heads = fk_row_heads(p, plan, shape->seqlen_q, shape->num_heads_q / shape->num_heads_kv);
    const int64_t rows = shape->seqlen_q * row_heads; /* joined heads: seqlen_q < block_m <= 4096 */
    const double tiles = row_heads == 1 ? (double)walks->num_ctas : ceil((double)rows / plan->block_m);
    const double num_ctas = heads / (double)row_heads * tiles * fk_slices(p);
    const split_sizes sizes =
        sizes_of(p, device, plan, (int64_t)fmin(fmax(1, num_ctas), 0x1p40), rows < plan->block_m ? rows : plan->block_m,
                 (int64_t)ceil(walks->max_visited), 0);
    const int splits = choose(&sizes);
    walks->min_visited /= splits;
    walks->mean_visited /= splits;
    walks->max_visited = ceil(walks->max_visited / splits);
    *out = (fk_split_model){.num_ctas = num_ctas * splits,
                            .share = num_ctas / (heads * (double)walks->num_ctas * fk_slices(p))};
    out->loading_us = sizes.k_tiles < 1 ? 0 : slowness(p, device, plan, rows) * loading_us(&sizes, splits);
    out->around_us = START_US + combining_us(&sizes, splits);
    if (splits > 1) out->combine_bytes = 8.0 * splits * heads * (double)shape->seqlen_q * (p->head_dim_v + 1);
}

double fk_model_overlap(double clocks_us, const fk_split_model *split) {
    return fmax(clocks_us, split->loading_us) + NOT_HIDDEN * fmin(clocks_us, split->loading_us) + split->around_us;
}

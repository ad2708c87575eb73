/* Launches whose CTAs stay and fetch one tile after another (templates/piece/schedule_persistent.cu): which tiles there
 * are, how many CTAs fetch them, and the workspace in which they agree.
 *
 * The forward pass's workspace: | u64 epoch | u32 count | u32 0 | u32 of each tile |, whole parts of FK_PART_ALIGNMENT
 * bytes. It may hold anything: the first CTA that finds another epoch than its launch's starts it afresh. Where tiles
 * are split there follow | O of each split | lse of each split |, float32, in such parts as well; of the last tiles
 * each part's block_m rows. */
#include "parts.h"

#include <time.h>
#include <unistd.h>

#define CLAIM_BYTES 16 /* what stands before the words of tiles */
/* Backward, parts of a tile of keys that all queries see (templates/piece/split_keys.cu). Where a mean one sees eight
 * tiles of queries, as of the usual patterns, and beginning and end cost another, a CTA's share is (9 heads / CTAs) of
 * a whole walk: a part is half of it, but no less than a mean tile's walk. A walk that is no longer than a share stays
 * whole. */
#define MEAN_WALK 8

static bool launches(const fk_kernel *kernel, fk_grid_kind grid) {
    for (int i = 0; i < kernel->num_launches; i++)
        if (kernel->launch[i].grid == grid) return true;
    return false;
}

bool fk_is_persistent(const fk_kernel *kernel) {
    return launches(kernel, FK_GRID_PERSISTENT);
}

static size_t whole_parts(int64_t elements) {
    return fk_whole_parts((size_t)elements * 4);
}

/* The leading tiles of all heads in parts, which are claimed before all else. Returns the end of their numbers. */
static int64_t lay_out_splits(const fk_kernel *kernel, const fk_args *a, int64_t heads, int64_t head_tiles,
                              fk_persistent *out) {
    const int64_t parts = (a->seqlen_k + FK_PART_KEYS - 1) / FK_PART_KEYS;
    const int64_t leading = kernel->leading_rows / kernel->info.plan.block_m;
    const int64_t split = heads * (leading < head_tiles ? leading : head_tiles);
    out->num_splits = parts < FK_MAX_SPLITS ? (int)parts : FK_MAX_SPLITS;
    out->partial_rows = heads * kernel->leading_rows;
    out->first_part = out->num_tiles;
    out->num_tiles += split * (out->num_splits - 1);
    out->o_partial = whole_parts(CLAIM_BYTES / 4 + out->first_part + split * out->num_splits);
    out->lse_partial = out->o_partial + whole_parts(out->num_splits * out->partial_rows * kernel->problem.head_dim_v);
    out->bytes = out->lse_partial + whole_parts(out->num_splits * out->partial_rows);
    return out->first_part + split * out->num_splits;
}

/* How many CTAs, or clusters of them, run at a time: each has a tile. */
static int64_t count_clusters(const fk_kernel *kernel) {
    const fk_plan_info *plan = &kernel->info.plan;
    const int64_t cluster = fk_plan_cluster(&kernel->problem, plan);
    const int64_t room = (int64_t)kernel->context->runs.num_sms * plan->ctas_per_sm / cluster;
    return room < 1 ? 1 : room;
}

/* The last tiles in parts, which are claimed after all else. */
static int64_t lay_out_parts(const fk_kernel *kernel, const fk_args *a, fk_persistent *out) {
    const fk_plan_info *plan = &kernel->info.plan;
    const int64_t k_tiles = (a->seqlen_k + plan->block_n - 1) / plan->block_n, ctas = count_clusters(kernel);
    const fk_parts last = fk_parts_choose(&kernel->problem, plan, ctas, out->num_tiles, k_tiles);
    if (last.splits == 0 ||
        !fk_parts_alike(&kernel->problem, ctas, out->num_tiles, (double)a->seqlen_q, (double)a->seqlen_k))
        return out->num_tiles;
    const int64_t early_parts = last.tiles * last.splits, parts = early_parts + last.late_tiles * last.late_splits;
    out->num_splits = last.splits;
    out->late_splits = last.late_splits;
    out->late_tile = out->num_tiles - last.late_tiles;
    out->first_part = out->late_tile - last.tiles;
    out->late_part = out->first_part + early_parts;
    out->num_tiles = out->first_part + parts;
    out->partial_rows = parts * plan->block_m;
    out->o_partial = whole_parts(CLAIM_BYTES / 4 + out->num_tiles);
    out->lse_partial = out->o_partial + whole_parts(out->partial_rows * kernel->problem.head_dim_v);
    out->bytes = out->lse_partial + whole_parts(out->partial_rows);
    return out->num_tiles;
}

int64_t fk_leading_keys(const fk_kernel *kernel, const fk_args *a) {
    const int64_t keys = kernel->problem.packed ? a->total_k : a->seqlen_k;
    return keys < kernel->leading_rows ? keys : kernel->leading_rows;
}

/* How many parts tiles of keys have that all queries see, of a pattern. */
static int64_t leading_parts(const fk_kernel *kernel, const fk_args *a, int64_t heads) {
    const int64_t wanted = 2 * count_clusters(kernel) / ((MEAN_WALK + 1) * heads);
    const int64_t queries = a->seqlen_q * (a->num_heads_q / a->num_heads_kv);
    const int64_t worth = queries / (MEAN_WALK * kernel->info.plan.block_m);
    return wanted < worth ? wanted : worth;
}

/* The same backward: the leading tiles of keys, or all of them. */
static int64_t lay_out_key_splits(const fk_kernel *kernel, const fk_args *a, int64_t heads, int64_t head_tiles,
                                  fk_persistent *out) {
    const fk_plan_info *plan = &kernel->info.plan;
    const fk_shape shape = {a->batch, a->num_heads_q, a->num_heads_kv, a->seqlen_q, a->seqlen_k};
    const int64_t total_k = kernel->problem.packed ? a->total_k : 0;
    const int64_t parts = plan->parts
                              ? fk_key_parts_choose(&kernel->problem, plan, &kernel->context->runs, &shape, total_k)
                              : leading_parts(kernel, a, heads);
    const int64_t leading = kernel->leading_rows / plan->block_n;
    if (parts <= 1) return out->num_tiles;
    out->num_splits = parts < FK_MAX_SPLITS ? (int)parts : FK_MAX_SPLITS;
    out->partial_rows = heads * fk_leading_keys(kernel, a);
    out->num_tiles += heads * (leading < head_tiles ? leading : head_tiles) * (out->num_splits - 1);
    return out->num_tiles;
}

/* Whether tiles count through the rows of all sequences; with head_rows each packed head has room for the longest. */
static bool counts_by_total(const fk_kernel *kernel) {
    return kernel->problem.packed && !kernel->info.plan.head_rows;
}

/* CTAs count one past the last tile; packed forward, half of the words are of tiles that are computed with care
 * (templates/piece/claimed.cu). */
static int most_tiles(const fk_kernel *kernel) {
    return kernel->problem.packed && kernel->problem.op == FK_FORWARD ? INT32_MAX / 2 - 1 : INT32_MAX - 1;
}

/* Whether each side of L2 has heads of its own. All who claim have a tile to begin with. */
static bool is_sided(const fk_kernel *kernel, const fk_args *a, int64_t claimers, const fk_persistent *tiles) {
    const fk_problem *p = &kernel->problem;
    const fk_plan_info *plan = &kernel->info.plan;
    const fk_shape shape = {a->batch, a->num_heads_q, a->num_heads_kv, a->seqlen_q, a->seqlen_k};
    return kernel->context->sided && fk_has_sides(p, plan, &shape) && tiles->group_heads % 2 == 0 &&
           tiles->num_tiles >= claimers;
}

/* batch x heads <= 2^30, and tiles of a head < 2^32 / 64 + batch: no overflow. */
bool fk_persistent_lay_out(const fk_kernel *kernel, const fk_args *a, fk_persistent *out) {
    const bool by_total = counts_by_total(kernel), own_keys = kernel->problem.op == FK_BACKWARD;
    const int64_t block = own_keys ? kernel->info.plan.block_n : kernel->info.plan.block_m;
    const int64_t own_heads = own_keys ? a->num_heads_kv : a->num_heads_q;
    const int64_t heads = by_total ? own_heads : a->batch * own_heads;
    const int64_t seqlen = own_keys ? a->seqlen_k : a->seqlen_q, total = own_keys ? a->total_k : a->total_q;
    const int64_t head_tiles = by_total ? fk_packed_tiles(total, a->batch, block) : (seqlen + block - 1) / block;
    out->group_heads = fk_group_kv_heads(kernel, a) * (own_heads / a->num_heads_kv);
    out->last_group_heads = (heads - 1) % out->group_heads + 1;
    out->group_tiles = out->group_heads * head_tiles;
    out->num_tiles = heads * head_tiles;
    out->bytes = whole_parts(CLAIM_BYTES / 4 + out->num_tiles);
    out->num_splits = 1;
    out->first_part = INT32_MAX;
    out->late_part = out->late_tile = INT32_MAX;
    out->late_splits = 1;
    int64_t end = out->num_tiles;
    if (kernel->leading_rows && own_keys)
        end = lay_out_key_splits(kernel, a, heads, head_tiles, out);
    else if (kernel->leading_rows && a->seqlen_k > FK_PART_KEYS)
        end = lay_out_splits(kernel, a, heads, head_tiles, out);
    else if (launches(kernel, FK_GRID_PARTS))
        end = lay_out_parts(kernel, a, out);
    const int64_t claimers = count_clusters(kernel) * fk_plan_teams(&kernel->problem, &kernel->info.plan);
    out->sided = is_sided(kernel, a, claimers, out);
    out->last_claim = out->num_tiles - 1 + (out->sided ? claimers : 0); /* each claims in vain once of each side */
    if (kernel->info.plan.head_rows) end += count_clusters(kernel) * out->group_tiles; /* a round is looked ahead */
    return end <= most_tiles(kernel);
}

fk_status fk_persistent_grid(const fk_kernel *kernel, const fk_args *a, fk_grid *out, fk_error *err) {
    fk_persistent tiles;
    const bool fits = fk_persistent_lay_out(kernel, a, &tiles);
    const fk_plan_info *plan = &kernel->info.plan;
    const bool by_total = counts_by_total(kernel), own_keys = kernel->problem.op == FK_BACKWARD;
    if (a->seqlen_k > kernel->most_keys)
        return fk_fail(err, FK_BAD_ARGUMENT,
                       "seqlen_k is %lld; with this mask a plan of %d x %d tiles serves %d keys, and others more",
                       (long long)a->seqlen_k, plan->block_m, plan->block_n, kernel->most_keys);
    if (!fits)
        return fk_fail(
            err, FK_BAD_ARGUMENT,
            "batch is %lld, num_heads_%s %lld, %s_%c %lld, which makes %lld tiles of %d rows; the limit is %d",
            (long long)a->batch, own_keys ? "kv" : "q", (long long)(own_keys ? a->num_heads_kv : a->num_heads_q),
            by_total ? "total" : "seqlen", own_keys ? 'k' : 'q',
            (long long)(own_keys   ? (by_total ? a->total_k : a->seqlen_k)
                        : by_total ? a->total_q
                                   : a->seqlen_q),
            (long long)tiles.num_tiles, own_keys ? plan->block_n : plan->block_m, most_tiles(kernel));
    const int64_t clusters = count_clusters(kernel), ctas = fk_plan_cluster(&kernel->problem, plan);
    const int64_t shares = plan->head_rows ? tiles.num_tiles / tiles.group_tiles : tiles.num_tiles; /* whole heads */
    *out = (fk_grid){(uint32_t)((shares < clusters ? shares : clusters) * ctas), 1, 1};
    return FK_OK;
}

/* ---- epochs ------------------------------------------------------------------------------------------- */

/* MurmurHash3's finaliser (Appleby, public domain): every bit of x reaches every bit of the result. */
static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 33) * 0xff51afd7ed558ccdull;
    x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53ull;
    return x ^ x >> 33;
}

/* Memory that another process, or this one's predecessor, used as a workspace must not hold an epoch of ours. */
static uint64_t first_epoch(const void *address) {
    struct timespec now = {0, 0};
    clock_gettime(CLOCK_REALTIME, &now);
    const uint64_t time = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    return mix(mix(mix(time) + (uint64_t)getpid()) + (uintptr_t)address);
}

uint64_t fk_epoch_next(void) {
    static uint64_t last; /* 0: none yet */
    uint64_t seen = __atomic_load_n(&last, __ATOMIC_RELAXED), next;
    do {
        next = (seen ? seen : first_epoch(&next)) + 1;
        if (next == 0) next = 1; /* 0 is no launch's */
    } while (!__atomic_compare_exchange_n(&last, &seen, next, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return next;
}

/* ---- the parameter block ------------------------------------------------------------------------------ */

fk_status fk_persistent_fill(const fk_kernel *kernel, const fk_args *a, const fk_workspace *workspace,
                             fk_forward_params *out, fk_error *err) {
    fk_persistent tiles;
    fk_values values;
    fk_persistent_lay_out(kernel, a, &tiles); /* fits: a grid has been made of it */
    const fk_status status = fk_values_prepare(kernel, a, workspace, &values, err);
    if (status) return status;
    if (fk_kv_dtype(&kernel->problem) == FK_E4M3) out->values = (char *)workspace->data + values.offset;
    if (values.runs) out->runs = (int32_t *)(void *)((char *)workspace->data + values.runs);
    out->value_tiles = (int32_t)values.tiles;
    out->claims = workspace->data;
    out->epoch = fk_epoch_next();
    out->num_tiles = (int32_t)tiles.num_tiles;
    out->last_claim = (uint32_t)tiles.last_claim;
    out->sided = tiles.sided;
    out->sides = kernel->context->sides;
    out->group_tiles = (int32_t)tiles.group_tiles;
    out->group_tiles_inverse = fk_inverse(tiles.group_tiles);
    out->group_heads = (int32_t)tiles.group_heads;
    out->group_inverse = fk_inverse(tiles.group_heads);
    out->last_group_inverse = fk_inverse(tiles.last_group_heads);
    out->first_part = (int32_t)tiles.first_part;
    out->late_part = (int32_t)tiles.late_part;
    out->late_tile = (int32_t)tiles.late_tile;
    out->late_splits = tiles.late_splits;
    out->late_inverse = fk_inverse(tiles.late_splits);
    if (tiles.num_splits == 1) return FK_OK;
    out->num_splits = tiles.num_splits;
    out->splits_inverse = fk_inverse(tiles.num_splits);
    out->partial_rows = tiles.partial_rows;
    out->o_partial = (float *)(void *)((char *)workspace->data + tiles.o_partial);
    out->lse_partial = (float *)(void *)((char *)workspace->data + tiles.lse_partial);
    return FK_OK;
}

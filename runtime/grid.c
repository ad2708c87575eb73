/* The grids of a problem's kernels, as templates/piece/schedule*.cu take them apart. */
#include "parts.h"

#define REST_CTAS 128         /* which have nothing to do as a rule */
#define MAX_ARRAY_BLOCKS 1024 /* of 256 threads: more than any GPU holds, and they take further rows in turn */

/* A grid's z counts groups, and within each the splits. */
int64_t fk_group_kv_heads(const fk_kernel *kernel, const fk_args *a) {
    const fk_shape shape = {kernel->problem.packed ? 1 : a->batch, a->num_heads_q, a->num_heads_kv, a->seqlen_q,
                            a->seqlen_k};
    const int64_t kv_heads = shape.batch * shape.num_heads_kv, most_groups = FK_MAX_GRID_YZ / fk_num_splits(kernel, a);
    const int64_t num_sms = fk_is_persistent(kernel) ? kernel->context->runs.num_sms : 0;
    const int64_t group = fk_group_heads(&kernel->problem, &kernel->info.plan, kernel->d_pad, kernel->pattern, &shape,
                                         num_sms, kernel->l2_bytes);
    const int64_t least = (kv_heads + most_groups - 1) / most_groups;
    if (kernel->info.plan.head_rows) return group; /* a CTA goes through a group as one head; no z counts them */
    return group > least ? group : least;
}

/* Rows of a CTA's tile, where CTAs own queries. */
static int64_t own_queries(const fk_kernel *kernel) {
    return kernel->problem.op == FK_BACKWARD ? kernel->dq_block_m : kernel->info.plan.block_m;
}

/* x: the heads of a group, and within each the slices (fk_slices); y: own tiles, of keys in backward, of which leading
 * ones may come in parts; z: groups, and within each the splits. */
static fk_status make_tile_grid(const fk_kernel *kernel, const fk_args *a, bool own_keys, fk_grid *out, fk_error *err) {
    const int64_t ratio = a->num_heads_q / a->num_heads_kv, kv_heads = a->batch * a->num_heads_kv;
    const int64_t row_heads = own_keys ? 1 : fk_row_heads(&kernel->problem, &kernel->info.plan, a->seqlen_q, ratio);
    const int64_t own = own_keys ? a->seqlen_k : a->seqlen_q * row_heads;
    const int64_t block = own_keys ? kernel->info.plan.block_n : own_queries(kernel);
    const bool is_main = own_keys == (kernel->problem.op == FK_BACKWARD); /* and not dq's */
    const int64_t leading = is_main ? kernel->leading_rows / block : 0;
    const int64_t whole_tiles = (own + block - 1) / block, group = fk_group_kv_heads(kernel, a);
    const int64_t num_tiles =
        whole_tiles + (leading < whole_tiles ? leading : whole_tiles) * (fk_num_leading_parts(kernel, a) - 1);
    if (num_tiles > FK_MAX_GRID_YZ)
        return fk_fail(err, FK_BAD_ARGUMENT,
                       "seqlen_%c%s is %lld; this kernel's %s tiles have %lld rows, and the limit is %lld",
                       own_keys ? 'k' : 'q', row_heads > 1 ? " x num_heads_q / num_heads_kv" : "", (long long)own,
                       own_keys ? "key" : "query", (long long)block, (long long)(FK_MAX_GRID_YZ * block));
    out->x = (uint32_t)(group * (own_keys ? 1 : ratio / row_heads) * fk_slices(&kernel->problem));
    out->y = (uint32_t)num_tiles;
    out->z = (uint32_t)((kv_heads + group - 1) / group * fk_num_splits(kernel, a));
    return FK_OK;
}

int64_t fk_packed_tiles(int64_t total, int64_t batch, int64_t block) {
    return total / block + batch;
}

/* x: tiles of all sequences, and within each the heads of a group, of each the slices; y: groups; z: splits. */
static fk_status make_packed_grid(const fk_kernel *kernel, const fk_args *a, bool own_keys, fk_grid *out,
                                  fk_error *err) {
    const int64_t slices = fk_slices(&kernel->problem), group = fk_group_kv_heads(kernel, a);
    const int64_t heads = (own_keys ? 1 : a->num_heads_q / a->num_heads_kv) * slices;
    const int64_t total = own_keys ? a->total_k : a->total_q;
    const int64_t block = own_keys ? kernel->info.plan.block_n : own_queries(kernel);
    const int64_t tiles = fk_packed_tiles(total, a->batch, block);
    if (tiles > INT32_MAX / (group * heads))
        return fk_fail(
            err, FK_BAD_ARGUMENT,
            "total_%c is %lld and batch is %lld, which makes %lld tiles for each of %lld heads; a grid has at "
            "most 2^31 - 1",
            own_keys ? 'k' : 'q', (long long)total, (long long)a->batch, (long long)tiles, (long long)(group * heads));
    out->x = (uint32_t)(tiles * group * heads);
    out->y = (uint32_t)((a->num_heads_kv + group - 1) / group);
    out->z = (uint32_t)fk_num_splits(kernel, a);
    return FK_OK;
}

/* `blocks` for each query head: heads fill y, then z. */
static fk_grid make_row_grid(int64_t heads, int64_t blocks) {
    const int64_t y = heads < FK_MAX_GRID_YZ ? heads : FK_MAX_GRID_YZ;
    return (fk_grid){(uint32_t)blocks, (uint32_t)y, (uint32_t)((heads + y - 1) / y)};
}

/* A row of lse to a CTA; packed, one more for each sequence: templates/piece/combine.cu. */
static fk_status make_combine_grid(const fk_kernel *kernel, const fk_args *a, int64_t heads, fk_grid *out,
                                   fk_error *err) {
    int64_t rows = kernel->problem.packed ? fk_packed_tiles(a->total_q, a->batch, 1) : a->seqlen_q;
    if (kernel->leading_rows) {
        fk_persistent tiles = {.num_splits = fk_num_leading_parts(kernel, a)};
        if (fk_is_persistent(kernel)) fk_persistent_lay_out(kernel, a, &tiles);
        if (rows > kernel->leading_rows) rows = kernel->leading_rows;
        *out = make_row_grid(heads, tiles.num_splits > 1 ? rows : 0);
        return FK_OK;
    }
    if (rows > INT32_MAX)
        return fk_fail(err, FK_BAD_ARGUMENT, "total_q + batch is %lld; with split the limit is %d", (long long)rows,
                       INT32_MAX);
    *out = make_row_grid(heads, fk_num_splits(kernel, a) > 1 ? rows : 0);
    return FK_OK;
}

/* 4 columns of a row of the tiles that come in parts to a thread, or, of many parts, to one of each of four warps
 * (templates/piece/combine_parts.cu). */
static fk_grid make_parts_grid(const fk_kernel *kernel, const fk_args *a, int64_t tiles) {
    fk_persistent parts;
    fk_persistent_lay_out(kernel, a, &parts);
    const int64_t cut = tiles * a->batch * a->num_heads_q - parts.first_part;
    const int64_t chunks = cut * kernel->info.plan.block_m * (kernel->problem.head_dim_v / 4),
                  each = parts.num_splits > FK_PARTS_ALONE ? 32 : 128;
    return (fk_grid){parts.num_splits > 1 ? (uint32_t)((chunks + each - 1) / each) : 0, 1, 1};
}

/* Of the keys whose queries were split (templates/piece/combine_keys.cu). */
static fk_grid make_combine_keys_grid(const fk_kernel *kernel, const fk_args *a) {
    const int64_t columns = kernel->problem.head_dim + kernel->problem.head_dim_v;
    const int64_t keys = fk_leading_keys(kernel, a);
    fk_persistent tiles = {.num_splits = fk_num_leading_parts(kernel, a)};
    if (fk_is_persistent(kernel)) fk_persistent_lay_out(kernel, a, &tiles);
    const int64_t heads = (kernel->problem.packed ? 1 : a->batch) * a->num_heads_kv;
    return make_row_grid(heads, tiles.num_splits > 1 ? (keys * columns / 8 + 127) / 128 : 0);
}

fk_grid fk_grid_keep_mask(const fk_kernel *kernel, const fk_args *a) {
    const bool own_keys = kernel->problem.op == FK_BACKWARD;
    const fk_plan_info *plan = &kernel->info.plan;
    const int64_t block =
        own_keys ? fk_plan_own_keys(&kernel->problem, plan) : fk_plan_own_queries(&kernel->problem, plan);
    return make_row_grid(a->batch * a->num_heads_q, ((own_keys ? a->seqlen_k : a->seqlen_q) + block - 1) / block);
}

fk_status fk_grid_make(const fk_kernel *kernel, const fk_args *a, fk_grid_kind kind, fk_grid *out, fk_error *err) {
    const bool packed = kernel->problem.packed, own_keys = kernel->problem.op == FK_BACKWARD;
    const int64_t block_m = kernel->info.plan.block_m, heads = packed ? a->num_heads_q : a->batch * a->num_heads_q;
    const int64_t tiles =
        packed ? fk_packed_tiles(a->total_q, a->batch, block_m) : (a->seqlen_q + block_m - 1) / block_m;
    const int64_t chunks = (a->seqlen_q + 15) / 16 * 16 * (kernel->problem.head_dim / 8); /* an int in the kernel */
    switch (kind) {
    case FK_GRID_TILES:
        return packed ? make_packed_grid(kernel, a, own_keys, out, err) : make_tile_grid(kernel, a, own_keys, out, err);
    case FK_GRID_PERSISTENT:
        return fk_persistent_grid(kernel, a, out, err);
    case FK_GRID_VALUES:
    case FK_GRID_WIDEN: {
        fk_values values;
        const fk_status status =
            fk_persistent_grid(kernel, a, out, err); /* where it does not fit, values have no heads */
        if (status) return status;
        fk_values_lay_out(kernel, a, &values); /* whether they fit is seen with the workspace */
        if (kind == FK_GRID_WIDEN)
            values.tiles = packed ? fk_packed_tiles(a->total_k, a->batch, FK_WIDEN_KEYS)
                                  : (a->seqlen_k + FK_WIDEN_KEYS - 1) / FK_WIDEN_KEYS;
        *out = make_row_grid(values.heads, values.tiles);
        return FK_OK;
    }
    case FK_GRID_RUNS:
        *out = make_row_grid(a->batch, ((a->seqlen_q + block_m - 1) / block_m * block_m + 127) / 128);
        return FK_OK;
    case FK_GRID_SEEN: {
        fk_seen seen;
        fk_seen_lay_out(kernel, a, &seen); /* whether they fit is seen with the workspace */
        *out = make_row_grid(seen.heads, seen.groups);
        return FK_OK;
    }
    case FK_GRID_DQ_TILES:
        return packed ? make_packed_grid(kernel, a, false, out, err) : make_tile_grid(kernel, a, false, out, err);
    case FK_GRID_ROWS:
        *out = make_row_grid(heads, tiles * (block_m / 16)); /* block_m is a multiple of 16 */
        return FK_OK;
    case FK_GRID_HEADS:
        *out = make_row_grid(a->batch * a->num_heads_q, 1);
        return FK_OK;
    case FK_GRID_ARRAYS: {
        const int64_t rows = fk_array_grad_rows(kernel, a);
        *out = (fk_grid){(uint32_t)(rows < MAX_ARRAY_BLOCKS ? rows : MAX_ARRAY_BLOCKS), 1, 1};
        return FK_OK;
    }
    case FK_GRID_COMBINE:
        return make_combine_grid(kernel, a, heads, out, err);
    case FK_GRID_KEYS:
        *out = make_combine_keys_grid(kernel, a);
        return FK_OK;
    case FK_GRID_SEQUENCES:
        *out = (fk_grid){(uint32_t)((a->batch + 3) / 4), 1, 1};
        return FK_OK;
    case FK_GRID_PARTS:
        *out = make_parts_grid(kernel, a, tiles);
        return FK_OK;
    case FK_GRID_ALIGN:
        *out = fk_aligned_grid(kernel, a);
        return FK_OK;
    case FK_GRID_REST:
        *out = (fk_grid){a->clear_rest ? REST_CTAS : 0, 1, 1};
        return FK_OK;
    case FK_GRID_KEEP_MASK: /* fk_execute leaves them out */
    case FK_GRID_BLOCKS:
        *out = (fk_grid){0, 0, 0};
        return FK_OK;
    case FK_GRID_ROW_CHUNKS:
        if (chunks > INT32_MAX - 256)
            return fk_fail(err, FK_BAD_ARGUMENT,
                           "seqlen_q is %lld; seqlen_q x head_dim / 8 may be %d, which is %lld rows",
                           (long long)a->seqlen_q, INT32_MAX - 256,
                           (long long)((INT32_MAX - 256) / (kernel->problem.head_dim / 8)));
        *out = make_row_grid(heads, packed ? tiles : (chunks + 255) / 256);
        return FK_OK;
    }
    return fk_fail(err, FK_INTERNAL, "grid kind %d", (int)kind);
}

uint32_t fk_inverse(int64_t heads) {
    const uint64_t inverse = ((uint64_t)1 << 32) / (uint64_t)heads;
    return inverse > UINT32_MAX ? UINT32_MAX : (uint32_t)inverse;
}

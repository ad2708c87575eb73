/* A backward launch: its workspace, and one parameter block for its kernels.
 *
 * Workspace: | delta | lse in base 2 | dq's fp32 sum | counters | dk and dv of splits | turns to add | exact sums of
 * arrays' gradients | the order of sequences | what tiles of a mask hold |, each part from a multiple of 256 bytes;
 * rows are padded to whole query tiles. Where dq has a kernel of its own it needs no sum; exact sums are there if the
 * problem is deterministic. */
#include "parts.h"

#include <string.h>

#define MAX_WORKSPACE ((int64_t)1 << 60)

typedef struct parts {
    int64_t q_padded;
    size_t delta, lse_log2, dq_acc, claims, splits, added, order, seen, exact[FK_MAX_ARRAYS],
        bytes; /* offsets, and the sum */
} parts;

/* Appends `rows` x `row_bytes` to the layout; false: more than MAX_WORKSPACE. */
static bool add_part(size_t *total, int64_t rows, int64_t row_bytes, size_t *offset) {
    int64_t bytes;
    *offset = *total;
    if (__builtin_mul_overflow(rows, row_bytes, &bytes) || bytes > MAX_WORKSPACE - (int64_t)*total) return false;
    *total += fk_whole_parts((size_t)bytes);
    return true;
}

bool fk_kernel_has_adders(const fk_kernel *kernel) {
    const fk_plan_info *plan = &kernel->info.plan;
    return fk_is_persistent(kernel) && fk_has_adders(&kernel->problem, plan->q_stages, plan->head_rows);
}

/* Words that count: the tiles that persistent CTAs claim, or the CTAs of each kv head that are done, where dq is
 * converted while others run (templates/piece/backward_around.cu). */
static int64_t counters(const fk_kernel *kernel, const fk_args *a) {
    if (kernel->info.plan.head_rows) return 0;
    if (fk_is_persistent(kernel)) return 1;
    return kernel->early && !kernel->dq_block_m && !kernel->problem.packed ? a->batch * a->num_heads_kv : 0;
}

/* dk and dv of keys whose queries are split, which stand behind the counter, if there is one
 * (templates/piece/split_keys.cu). */
static int64_t split_rows(const fk_kernel *kernel, const fk_args *a) {
    fk_persistent tiles = {.num_splits = fk_num_leading_parts(kernel, a),
                           .partial_rows = a->batch * a->num_heads_kv * fk_leading_keys(kernel, a)};
    if (!kernel->leading_rows) return 0;
    if (fk_is_persistent(kernel)) fk_persistent_lay_out(kernel, a, &tiles);
    return tiles.num_splits > 1 ? tiles.num_splits * tiles.partial_rows : 0;
}

/* Sizes have been checked. */
static bool lay_out(const fk_kernel *kernel, const fk_args *a, parts *out) {
    const bool packed = kernel->problem.packed;
    const fk_plan_info *plan = &kernel->info.plan;
    const int64_t block_m = plan->block_m, heads = packed ? a->num_heads_q : a->batch * a->num_heads_q;
    const int64_t tiles =
        packed ? fk_packed_tiles(a->total_q, a->batch, block_m) : (a->seqlen_q + block_m - 1) / block_m;
    const bool sums = !kernel->dq_block_m && !plan->head_rows; /* in the workspace */
    fk_seen seen;
    out->q_padded = tiles * block_m;
    out->bytes = 0;
    if (out->q_padded > INT32_MAX) return false;
    const int64_t rows = heads * out->q_padded; /* heads <= 2^30, rows of a head < 2^31 */
    bool fits =
        fk_seen_lay_out(kernel, a, &seen) && add_part(&out->bytes, rows, sizeof(float), &out->delta) &&
        add_part(&out->bytes, rows, sizeof(float), &out->lse_log2) &&
        add_part(&out->bytes, sums ? rows : 0, kernel->d_pad * (int64_t)sizeof(float), &out->dq_acc) &&
        add_part(&out->bytes, counters(kernel, a), sizeof(uint32_t), &out->claims) &&
        add_part(&out->bytes, split_rows(kernel, a),
                 (kernel->problem.head_dim + kernel->problem.head_dim_v) * (int64_t)sizeof(float), &out->splits) &&
        add_part(&out->bytes,
                 fk_kernel_has_adders(kernel) ? heads * tiles * fk_plan_cluster(&kernel->problem, plan) : 0,
                 sizeof(uint32_t), &out->added) &&
        add_part(&out->bytes, packed && plan->head_rows ? a->batch : 0, sizeof(int32_t), &out->order) &&
        add_part(&out->bytes, seen.bytes, 1, &out->seen);
    for (int i = 0; i < FK_MAX_ARRAYS && fits; i++)
        fits = add_part(&out->bytes, fk_array_grad_words(kernel, a, i), sizeof(uint64_t), &out->exact[i]);
    return fits;
}

static fk_status check_head_rows(const fk_kernel *kernel, const fk_args *a, fk_error *err) {
    const int32_t head_rows = kernel->info.plan.head_rows;
    if (!head_rows || a->seqlen_q <= head_rows) return FK_OK;
    return fk_fail(err, FK_BAD_ARGUMENT, "seqlen_q is %lld; this kernel's plan sums up dq of at most %d rows",
                   (long long)a->seqlen_q, head_rows);
}

size_t fk_kernel_workspace(const fk_kernel *kernel, const fk_args *args) {
    parts p;
    fk_seen seen;
    fk_grid grid;
    size_t bytes;
    if (!kernel || !args || fk_args_check_sizes(&kernel->problem, args, NULL)) return 0;
    if (kernel->problem.op == FK_BACKWARD ? check_head_rows(kernel, args, NULL)
                                          : fk_splits_check(&kernel->problem, args, NULL))
        return 0;
    for (int i = 0; i < kernel->num_launches; i++)
        if (fk_grid_make(kernel, args, kernel->launch[i].grid, &grid, NULL)) return 0;
    if (kernel->problem.op == FK_BACKWARD)
        return lay_out(kernel, args, &p) ? fk_with_aligned(kernel, args, p.bytes) : 0;
    return fk_forward_lay_out(kernel, args, &seen, &bytes) ? fk_with_aligned(kernel, args, bytes) : 0;
}

#define STRIDES(tensor)                                                                                                \
    .tensor##_batch_stride = a->tensor##_stride[0], .tensor##_row_stride = a->tensor##_stride[1],                      \
    .tensor##_head_stride = a->tensor##_stride[2]

static void fill(const fk_kernel *kernel, const fk_args *a, const parts *part, char *memory, fk_backward_params *out) {
    const fk_problem *p = &kernel->problem;
    const double scale = fk_args_scale(p, a);
    const fk_dropout_fields dropout = fk_dropout_fields_of(p, a);
    const bool persistent = fk_is_persistent(kernel);
    const int64_t ratio = a->num_heads_q / a->num_heads_kv;
    const int64_t group = p->packed || persistent ? fk_group_kv_heads(kernel, a) : 1;
    fk_persistent tiles = {.num_splits = fk_num_leading_parts(kernel, a)};
    if (persistent) fk_persistent_lay_out(kernel, a, &tiles); /* fits: a grid has been made of it */
    const int32_t head_parts = kernel->info.plan.parts ? fk_head_parts(tiles.num_splits, ratio) : 1;
    *out = (fk_backward_params){
        .q = a->q,
        .k = a->k,
        .v = a->v,
        .o = a->o,
        .dout = a->dout,
        .dq = a->dq,
        .dk = a->dk,
        .dv = a->dv,
        .lse = a->lse,
        .dlse = a->dlse,
        .delta = (float *)(void *)(memory + part->delta),
        .lse_log2 = (float *)(void *)(memory + part->lse_log2),
        .dq_acc = kernel->dq_block_m || kernel->info.plan.head_rows ? NULL : (float *)(void *)(memory + part->dq_acc),
        .claims = counters(kernel, a)     ? (uint32_t *)(void *)(memory + part->claims)
                  : split_rows(kernel, a) ? (uint32_t *)(void *)(memory + part->splits)
                                          : NULL,
        .added = fk_kernel_has_adders(kernel) ? (uint32_t *)(void *)(memory + part->added) : NULL,
        .order = p->packed && kernel->info.plan.head_rows ? (int32_t *)(void *)(memory + part->order) : NULL,
        .seen = (uint8_t *)memory + part->seen,
        .cu_seqlens_q = a->cu_seqlens_q,
        .cu_seqlens_k = a->cu_seqlens_k,
        .seqused_k = a->seqused_k,
        .condition = a->condition,
        .condition_value = a->condition_value,
        .dropout_state = dropout.state,
        .dropout_seed = dropout.seed,
        .dropout_offset = dropout.offset,
        STRIDES(q),
        STRIDES(k),
        STRIDES(v),
        STRIDES(o),
        STRIDES(dout),
        STRIDES(dq),
        STRIDES(dk),
        STRIDES(dv),
        .num_heads_q = (int32_t)a->num_heads_q,
        .num_heads_kv = (int32_t)a->num_heads_kv,
        .heads_per_kv = (int32_t)ratio,
        .seqlen_q = (int32_t)a->seqlen_q,
        .seqlen_k = (int32_t)a->seqlen_k,
        .q_padded = (int32_t)part->q_padded,
        .diag = p->align == FK_TOP_LEFT ? 0 : (int32_t)(a->seqlen_k - a->seqlen_q),
        .batch = (int32_t)a->batch,
        .total_q = (int32_t)a->total_q,
        .total_k = (int32_t)a->total_k,
        .group_heads = (int32_t)(group * ratio),
        .kv_group_heads = (int32_t)group,
        .group_inverse = fk_inverse(group * ratio),
        .kv_group_inverse = fk_inverse(group),
        .num_tiles = (int32_t)tiles.num_tiles,
        .group_tiles = (int32_t)tiles.group_tiles,
        .last_kv_group_inverse = persistent ? fk_inverse(tiles.last_group_heads) : 0,
        .group_tiles_inverse = persistent ? fk_inverse(tiles.group_tiles) : 0,
        .num_splits = tiles.num_splits,
        .splits_inverse = fk_inverse(tiles.num_splits),
        .part_heads = (int32_t)(ratio / head_parts),
        .query_splits = tiles.num_splits / head_parts,
        .query_splits_inverse = fk_inverse(tiles.num_splits / head_parts),
        .heads_inverse = fk_inverse(a->num_heads_q),
        .kv_heads_inverse = fk_inverse(a->num_heads_kv),
        .scale_log2 = (float)(scale * 1.4426950408889634),
        .scale = (float)scale,
        .dropout_rare = dropout.rare,
        .dropout_invert = dropout.invert,
        .dropout_scale = dropout.scale,
        .dropout_keep = dropout.keep,
        .dropout_scale_log2 = dropout.scale_log2,
    };
    memcpy(out->mask_value, kernel->mask_value, sizeof kernel->mask_value);
    memcpy(out->mask_inverse, kernel->mask_inverse, sizeof kernel->mask_inverse);
    memcpy(out->score_value, kernel->score_value, sizeof kernel->score_value);
    fk_arrays_fill(&kernel->arrays, a, out->array);
    uint64_t *exact[FK_MAX_ARRAYS];
    for (int i = 0; i < FK_MAX_ARRAYS; i++)
        exact[i] = p->deterministic ? (uint64_t *)(void *)(memory + part->exact[i]) : NULL;
    fk_array_grads_fill(kernel, a, exact, out->array_grad);
}

fk_status fk_backward_prepare(const fk_kernel *kernel, const fk_args *a, const fk_workspace *workspace,
                              fk_backward_params *out, fk_grid grids[FK_MAX_KERNELS], fk_error *err) {
    parts part;
    fk_status status = fk_args_check(&kernel->problem, &kernel->arrays, a, true, workspace, err);
    if (!status) status = check_head_rows(kernel, a, err);
    if (status) return status;
    const bool fits = lay_out(kernel, a, &part);
    if (!fits && part.q_padded > INT32_MAX)
        return fk_fail(err, FK_BAD_ARGUMENT,
                       "total_q is %lld and batch is %lld, which makes %lld rows in whole tiles of %d; the limit is %d",
                       (long long)a->total_q, (long long)a->batch, (long long)part.q_padded, kernel->info.plan.block_m,
                       INT32_MAX);
    if (!fits)
        return fk_fail(err, FK_BAD_ARGUMENT,
                       "batch x num_heads_q x seqlen_q is %lld x %lld x %lld; the workspace may "
                       "have 2^60 bytes",
                       (long long)a->batch, (long long)a->num_heads_q, (long long)a->seqlen_q);
    for (int i = 0; i < kernel->num_launches && !status; i++)
        status = fk_grid_make(kernel, a, kernel->launch[i].grid, &grids[i], err);
    if (!status) status = fk_workspace_check(workspace, part.bytes, err);
    if (status) return status;
    fill(kernel, a, &part, workspace->data, out);
    fk_aligned_fill(kernel, a, workspace, part.bytes, out->array, grids);
    return FK_OK;
}

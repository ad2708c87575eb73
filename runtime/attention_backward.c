/* A backward launch: its workspace, and one parameter block for its three kernels.
 *
 * Workspace: | delta | lse in base 2 | dq's fp32 sum | turns |, each part from a multiple of 256 bytes; rows are padded
 * to whole query tiles. Turns are there if the problem is deterministic. */
#include "object.h"

#include <string.h>

#define PART_ALIGNMENT 256
#define MAX_WORKSPACE ((int64_t)1 << 60)

typedef struct parts {
    int64_t q_padded;
    size_t delta, lse_log2, dq_acc, turn, bytes; /* offsets, and the sum */
} parts;

/* Appends `rows` x `row_bytes` to the layout; false: more than MAX_WORKSPACE. */
static bool add_part(size_t *total, int64_t rows, int64_t row_bytes, size_t *offset) {
    int64_t bytes;
    *offset = *total;
    if (__builtin_mul_overflow(rows, row_bytes, &bytes) || bytes > MAX_WORKSPACE - (int64_t)*total) return false;
    *total += ((size_t)bytes + PART_ALIGNMENT - 1) / PART_ALIGNMENT * PART_ALIGNMENT;
    return true;
}

/* Sizes have been checked. */
static bool lay_out(const fk_kernel *kernel, const fk_args *a, parts *out) {
    const int64_t block_m = kernel->info.plan.block_m, tiles = (a->seqlen_q + block_m - 1) / block_m;
    const int64_t heads = a->batch * a->num_heads_q;
    out->q_padded = tiles * block_m;
    out->bytes = 0;
    const int64_t rows = heads * out->q_padded; /* heads <= 2^30, rows of a head <= 2^31 */
    return add_part(&out->bytes, rows, sizeof(float), &out->delta) &&
           add_part(&out->bytes, rows, sizeof(float), &out->lse_log2) &&
           add_part(&out->bytes, rows, kernel->d_pad * (int64_t)sizeof(float), &out->dq_acc) &&
           add_part(&out->bytes, kernel->problem.deterministic ? heads * tiles : 0, sizeof(uint32_t), &out->turn);
}

size_t fk_kernel_workspace(const fk_kernel *kernel, const fk_args *args) {
    parts p;
    if (!kernel || !args || kernel->problem.op != FK_BACKWARD) return 0;
    if (fk_args_check_sizes(&kernel->problem, args, NULL) || !lay_out(kernel, args, &p)) return 0;
    return p.bytes;
}

static fk_status check_workspace(const fk_workspace *workspace, size_t needed, fk_error *err) {
    if (!workspace->data)
        return fk_fail(err, FK_BAD_ARGUMENT, "workspace is null; this launch needs %zu bytes (fk_kernel_workspace)",
                       needed);
    if ((uintptr_t)workspace->data % PART_ALIGNMENT)
        return fk_fail(err, FK_BAD_ARGUMENT, "workspace is at %p; it must be aligned to %d bytes", workspace->data,
                       PART_ALIGNMENT);
    if (workspace->bytes < needed)
        return fk_fail(err, FK_BAD_ARGUMENT, "workspace_bytes is %zu; this launch needs %zu (fk_kernel_workspace)",
                       workspace->bytes, needed);
    return FK_OK;
}

#define STRIDES(tensor)                                                                                                \
    .tensor##_batch_stride = a->tensor##_stride[0], .tensor##_row_stride = a->tensor##_stride[1],                      \
    .tensor##_head_stride = a->tensor##_stride[2]

static void fill(const fk_kernel *kernel, const fk_args *a, const parts *part, char *memory, fk_backward_params *out) {
    const fk_problem *p = &kernel->problem;
    const double scale = fk_args_scale(p, a);
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
        .dq_acc = (float *)(void *)(memory + part->dq_acc),
        .turn = p->deterministic ? (uint32_t *)(void *)(memory + part->turn) : NULL,
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
        .heads_per_kv = (int32_t)(a->num_heads_q / a->num_heads_kv),
        .seqlen_q = (int32_t)a->seqlen_q,
        .seqlen_k = (int32_t)a->seqlen_k,
        .q_padded = (int32_t)part->q_padded,
        .diag = p->align == FK_TOP_LEFT ? 0 : (int32_t)(a->seqlen_k - a->seqlen_q),
        .batch = (int32_t)a->batch,
        .heads_inverse = fk_inverse(a->num_heads_q),
        .kv_heads_inverse = fk_inverse(a->num_heads_kv),
        .scale_log2 = (float)(scale * 1.4426950408889634),
        .scale = (float)scale,
    };
    memcpy(out->mask_value, kernel->mask_value, sizeof kernel->mask_value);
    memcpy(out->score_value, kernel->score_value, sizeof kernel->score_value);
    fk_arrays_fill(&kernel->arrays, a, out->array);
}

fk_status fk_backward_prepare(const fk_kernel *kernel, const fk_args *a, const fk_workspace *workspace,
                              fk_backward_params *out, fk_grid grids[FK_MAX_KERNELS], fk_error *err) {
    parts part;
    fk_status status = fk_args_check(&kernel->problem, &kernel->arrays, a, true, workspace, err);
    if (status) return status;
    if (!lay_out(kernel, a, &part))
        return fk_fail(err, FK_BAD_ARGUMENT,
                       "batch x num_heads_q x seqlen_q is %lld x %lld x %lld; the workspace may "
                       "have 2^60 bytes",
                       (long long)a->batch, (long long)a->num_heads_q, (long long)a->seqlen_q);
    status = check_workspace(workspace, part.bytes, err);
    for (int i = 0; i < kernel->num_launches && !status; i++)
        status = fk_grid_make(kernel, a, kernel->launch[i].grid, &grids[i], err);
    if (!status) fill(kernel, a, &part, workspace->data, out);
    return status;
}

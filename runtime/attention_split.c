/* Forward launches whose keys are shared among splits, or lie in pages: what their arguments must satisfy, how many
 * splits there are, and the workspace through which their results come together.
 *
 * Workspace: | O of each split | lse of each split |, float32, each part from a multiple of FK_PART_ALIGNMENT bytes;
 * none where the main kernel writes the result itself. Of patterns whose first queries see far more than others these
 * rows alone come in parts. */
#include "parts.h"

#define MAX_WORKSPACE ((int64_t)1 << 60)
#define PART_TILES 16 /* that a part of a leading tile walks over: about twice a mean row's */

/* ---- pages -------------------------------------------------------------------------------------------- */

fk_status fk_pages_check_sizes(const fk_problem *p, const fk_args *a, fk_error *err) {
    if (a->page_size < 1 || a->page_size > FK_MAX_SEQLEN)
        return fk_fail(err, FK_BAD_ARGUMENT, "page_size is %lld; it must be 1 to %d", (long long)a->page_size,
                       FK_MAX_SEQLEN);
    if (a->page_size % p->paged)
        return fk_fail(err, FK_BAD_ARGUMENT, "page_size is %lld; the problem's paged says that it is a multiple of %d",
                       (long long)a->page_size, p->paged);
    if (a->num_pages < 1 || a->num_pages > INT32_MAX)
        return fk_fail(err, FK_BAD_ARGUMENT, "num_pages is %lld; it must be 1 to %d", (long long)a->num_pages,
                       INT32_MAX);
    if (a->page_table_stride < 0 || a->page_table_stride > INT32_MAX)
        return fk_fail(err, FK_BAD_ARGUMENT, "page_table_stride is %lld; it must be 0 to %d",
                       (long long)a->page_table_stride, INT32_MAX);
    return FK_OK;
}

/* At least; seqlen_k may be a bound that is far above all sequences, and rows of the table need no room for it. */
int64_t fk_page_table_entries(const fk_args *a) {
    const int64_t columns = (a->seqlen_k + a->page_size - 1) / a->page_size, stride = a->page_table_stride;
    return (a->batch - 1) * stride + (stride && stride < columns ? stride : columns);
}

fk_status fk_pages_check(const fk_problem *p, const fk_args *a, fk_error *err) {
    for (int64_t b = 0; b < a->batch; b++) {
        const int64_t used = (fk_sequence_at(p, a, b).seqlen_k + a->page_size - 1) / a->page_size;
        for (int64_t i = 0; i < used; i++) {
            const int32_t page = a->page_table[b * a->page_table_stride + i];
            if (page >= 0 && page < a->num_pages) continue;
            return fk_fail(err, FK_BAD_ARGUMENT, "page_table[%lld, %lld] is %d; it must be 0 to num_pages - 1, %lld",
                           (long long)b, (long long)i, page, (long long)a->num_pages - 1);
        }
    }
    return FK_OK;
}

fk_key_place fk_key_at(const fk_problem *p, const fk_args *a, int64_t b, const fk_sequence *s, int64_t key) {
    if (!p->paged) return (fk_key_place){s->batch, s->k_first + key};
    return (fk_key_place){a->page_table[b * a->page_table_stride + key / a->page_size], key % a->page_size};
}

/* ---- splits ------------------------------------------------------------------------------------------- */

fk_status fk_splits_check(const fk_problem *p, const fk_args *a, fk_error *err) {
    const int most = p->split ? FK_MAX_SPLITS : 0;
    if (a->num_splits >= 0 && a->num_splits <= most) return FK_OK;
    return fk_fail(err, FK_BAD_ARGUMENT, "num_splits is %d; it must be %s%d%s", a->num_splits, p->split ? "0 to " : "",
                   most, p->split ? "" : ", as the problem does not say split");
}

/* seqlen_k stands for the lengths of all sequences. */
static int choose_splits(const fk_kernel *kernel, const fk_args *a) {
    const fk_problem *p = &kernel->problem;
    const fk_plan_info *plan = &kernel->info.plan;
    const fk_context *context = kernel->context;
    const fk_device_info *device = context->runs.num_sms ? &context->runs : &context->planned;
    const int64_t row_heads = fk_row_heads(p, plan, a->seqlen_q, a->num_heads_q / a->num_heads_kv);
    const int64_t rows = a->seqlen_q * row_heads;
    const int64_t tiles = p->packed ? fk_packed_tiles(a->total_q, a->batch, plan->block_m)
                                    : a->batch * ((rows + plan->block_m - 1) / plan->block_m);
    return fk_split_choose(p, device, plan, a->num_heads_q / row_heads * tiles * fk_slices(p),
                           rows < plan->block_m ? rows : plan->block_m,
                           (a->seqlen_k + plan->block_n - 1) / plan->block_n, kernel->info.image.registers);
}

int fk_num_splits(const fk_kernel *kernel, const fk_args *a) {
    if (!kernel->problem.split) return 1;
    return a->num_splits ? a->num_splits : choose_splits(kernel, a);
}

/* ---- workspace ---------------------------------------------------------------------------------------- */

/* Of all tiles, as many as the grid has rows for. */
static int key_parts(const fk_kernel *kernel, const fk_args *a) {
    const fk_plan_info *plan = &kernel->info.plan;
    const fk_shape shape = {a->batch, a->num_heads_q, a->num_heads_kv, a->seqlen_q, a->seqlen_k};
    const int32_t parts = fk_key_parts_choose(&kernel->problem, plan, &kernel->context->runs, &shape, 0);
    const int64_t tiles = (a->seqlen_k + plan->block_n - 1) / plan->block_n;
    return tiles * parts <= FK_MAX_GRID_YZ ? parts : 1;
}

int fk_num_leading_parts(const fk_kernel *kernel, const fk_args *a) {
    const bool backward = kernel->problem.op == FK_BACKWARD;
    const int64_t walk = backward ? a->seqlen_q * (a->num_heads_q / a->num_heads_kv) : a->seqlen_k;
    if (fk_is_persistent(kernel) || !kernel->leading_rows) return 1;
    if (kernel->info.plan.parts) return key_parts(kernel, a);
    if (walk <= FK_PART_KEYS) return 1;
    const int64_t part = PART_TILES * (backward ? kernel->info.plan.block_m : kernel->info.plan.block_n);
    const int64_t parts = (walk + part - 1) / part, most = parts < FK_MAX_SPLITS ? parts : FK_MAX_SPLITS;
    const int64_t own = backward ? a->seqlen_k : a->seqlen_q;
    const int64_t block = backward ? kernel->info.plan.block_n : kernel->info.plan.block_m;
    const int64_t rows = (own + block - 1) / block + kernel->leading_rows / block * (most - 1); /* of the grid */
    return rows <= FK_MAX_GRID_YZ ? (int)most : 1;
}

bool fk_splits_lay_out(const fk_kernel *kernel, const fk_args *a, fk_split_parts *out) {
    *out = (fk_split_parts){.num_splits = fk_num_splits(kernel, a),
                            .rows = a->num_heads_q * fk_rows_q(&kernel->problem, a)};
    if (kernel->leading_rows && !fk_is_persistent(kernel))
        *out = (fk_split_parts){.num_splits = fk_num_leading_parts(kernel, a),
                                .rows = a->batch * a->num_heads_q * kernel->leading_rows};
    if (out->num_splits == 1) return true;
    const int64_t head_dim_v = kernel->problem.head_dim_v, unit = FK_PART_ALIGNMENT / (int64_t)sizeof(float);
    if (out->rows > MAX_WORKSPACE / FK_MAX_SPLITS / (head_dim_v + 1) / (int64_t)sizeof(float) - unit) return false;
    const int64_t o_floats = out->num_splits * out->rows * head_dim_v, lse_floats = out->num_splits * out->rows;
    out->lse = (size_t)((o_floats + unit - 1) / unit) * FK_PART_ALIGNMENT;
    out->bytes = out->lse + (size_t)((lse_floats + unit - 1) / unit) * FK_PART_ALIGNMENT;
    return true;
}

fk_status fk_splits_prepare(const fk_kernel *kernel, const fk_args *a, const fk_workspace *workspace,
                            fk_split_parts *out, fk_error *err) {
    if (!fk_splits_lay_out(kernel, a, out))
        return fk_fail(err, FK_BAD_ARGUMENT, "%d splits of %lld rows of lse: the workspace may have 2^60 bytes",
                       out->num_splits, (long long)out->rows);
    return out->bytes ? fk_workspace_check(workspace, out->bytes, err) : FK_OK;
}

void fk_splits_fill(const fk_kernel *kernel, const fk_args *a, const fk_split_parts *parts,
                    const fk_workspace *workspace, fk_forward_params *out) {
    const fk_problem *p = &kernel->problem;
    const int64_t ratio = a->num_heads_q / a->num_heads_kv;
    const int64_t row_heads = fk_row_heads(p, &kernel->info.plan, a->seqlen_q, ratio);
    out->row_heads = (int32_t)row_heads;
    out->row_heads_inverse = fk_inverse(row_heads);
    out->own_heads = (int32_t)(a->num_heads_q / row_heads);
    out->own_heads_inverse = fk_inverse(a->num_heads_q / row_heads);
    out->num_splits = parts->num_splits;
    out->splits_inverse = fk_inverse(parts->num_splits);
    out->partial_rows = parts->rows;
    if (parts->bytes) {
        out->o_partial = workspace->data;
        out->lse_partial = (float *)(void *)((char *)workspace->data + parts->lse);
    }
    if (!p->paged) return;
    out->page_table = a->page_table;
    out->page_table_stride = a->page_table_stride;
    out->page_size = (int32_t)a->page_size;
    out->page_inverse = fk_inverse(a->page_size);
}

fk_status fk_workspace_check(const fk_workspace *workspace, size_t needed, fk_error *err) {
    if (!workspace->data)
        return fk_fail(err, FK_BAD_ARGUMENT, "workspace is null; this launch needs %zu bytes (fk_kernel_workspace)",
                       needed);
    const fk_status status = fk_check_aligned("workspace", workspace->data, FK_PART_ALIGNMENT, err);
    if (status) return status;
    if (workspace->bytes < needed)
        return fk_fail(err, FK_BAD_ARGUMENT, "workspace_bytes is %zu; this launch needs %zu (fk_kernel_workspace)",
                       workspace->bytes, needed);
    return FK_OK;
}

/* What a launch may be asked for. Everything a kernel assumes of its arguments is checked here, so that a wrong call
 * gets a sentence and not a fault. Extents are in elements and int64: they are proved not to overflow. */
#include "object.h"

#include <math.h>
#include <string.h>

#define MAX_EXTENT ((int64_t)1 << 60) /* elements between the first and the last of a tensor */
#define MAX_HEADS (1 << 30)           /* batch x num_heads_q: a grid rounds it up, and must stay within int32 */

/* One of q, k, v, o, ... as the caller describes it. */
typedef struct tensor {
    const char *name;
    const void *data;
    const int64_t *stride; /* batch, seqlen, head */
    int64_t size[3];       /* likewise */
    int packed;            /* 1: there is no batch stride */
    int64_t dim;
    const char *dim_name;
    int bytes;  /* of an element */
    int copied; /* bytes at a time */
} tensor;

typedef struct range {
    const char *name;
    uintptr_t begin, end; /* bytes */
    bool written;
} range;

/* What one launch touches, results last. */
enum { MAX_RANGES = 20 + 2 * FK_MAX_ARRAYS };
typedef struct ranges {
    range at[MAX_RANGES];
    size_t count;
} ranges;

static const char *const axis_name[3] = {"batch", "seqlen", "head"};

static fk_status check_size(const char *name, int64_t value, int64_t limit, fk_error *err) {
    if (value >= 1 && value <= limit) return FK_OK;
    return fk_fail(err, FK_BAD_ARGUMENT, "%s is %lld; it must be 1 to %lld", name, (long long)value, (long long)limit);
}

fk_status fk_args_check_sizes(const fk_problem *p, const fk_args *a, fk_error *err) {
    const struct {
        const char *name;
        int64_t value, limit;
    } sizes[] = {{"batch", a->batch, INT32_MAX},
                 {"num_heads_q", a->num_heads_q, INT32_MAX},
                 {"num_heads_kv", a->num_heads_kv, INT32_MAX},
                 {"seqlen_q", a->seqlen_q, FK_MAX_SEQLEN},
                 {"seqlen_k", a->seqlen_k, FK_MAX_SEQLEN}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        fk_status status = check_size(sizes[i].name, sizes[i].value, sizes[i].limit, err);
        if (status) return status;
    }
    if (a->batch * a->num_heads_q > MAX_HEADS)
        return fk_fail(err, FK_BAD_ARGUMENT, "batch x num_heads_q is %lld x %lld; the limit is %d", (long long)a->batch,
                       (long long)a->num_heads_q, MAX_HEADS);
    if (!p->gqa && a->num_heads_q != a->num_heads_kv)
        return fk_fail(err, FK_BAD_ARGUMENT,
                       "num_heads_q is %lld and num_heads_kv is %lld; they must be equal unless the problem says gqa",
                       (long long)a->num_heads_q, (long long)a->num_heads_kv);
    if (a->num_heads_q % a->num_heads_kv)
        return fk_fail(err, FK_BAD_ARGUMENT,
                       "num_heads_q is %lld; it must be a multiple of num_heads_kv, which is %lld",
                       (long long)a->num_heads_q, (long long)a->num_heads_kv);
    if (p->paged) {
        const fk_status pages = fk_pages_check_sizes(p, a, err);
        if (pages) return pages;
    }
    if (!p->packed) return FK_OK;
    fk_status status = check_size("total_q", a->total_q, INT32_MAX, err);
    return status ? status : check_size("total_k", a->total_k, INT32_MAX, err);
}

/* Strides, and with them the extent in elements. */
static fk_status check_strides(const tensor *t, bool device, int64_t *extent, fk_error *err) {
    *extent = t->dim;
    for (int i = t->packed; i < 3; i++) {
        int64_t span;
        const long long stride = t->stride[i];
        if (stride < 0)
            return fk_fail(err, FK_BAD_ARGUMENT, "%s_stride[%d] (%s) is %lld; it must be at least 0", t->name, i,
                           axis_name[i], stride);
        if (device && stride % (t->copied / t->bytes))
            return fk_fail(err, FK_BAD_ARGUMENT, "%s_stride[%d] (%s) is %lld; it must be a multiple of %d elements",
                           t->name, i, axis_name[i], stride, t->copied / t->bytes);
        if (__builtin_mul_overflow(t->stride[i], t->size[i] - 1, &span) || span > MAX_EXTENT - *extent)
            return fk_fail(err, FK_BAD_ARGUMENT,
                           "%s_stride[%d] (%s) is %lld for %lld entries; a tensor may span 2^60 elements", t->name, i,
                           axis_name[i], stride, (long long)t->size[i]);
        *extent += span;
    }
    return FK_OK;
}

fk_status fk_check_aligned(const char *name, const void *data, size_t unit, fk_error *err) {
    if ((uintptr_t)data % unit == 0) return FK_OK;
    return fk_fail(err, FK_BAD_ARGUMENT, "%s is at %p; it must be aligned to %zu bytes", name, data, unit);
}

static fk_status check_pointer(const char *name, const void *data, uintptr_t alignment, fk_error *err) {
    if (!data) return fk_fail(err, FK_BAD_ARGUMENT, "%s is null", name);
    return fk_check_aligned(name, data, alignment, err);
}

/* Two rows of a result at one address would be a race: a stride spans all that smaller ones reach. */
static fk_status check_result_rows(const tensor *t, fk_error *err) {
    int order[3] = {2, 1, 0};
    for (int i = 1; i < 3; i++)
        for (int j = i; j > 0 && t->stride[order[j]] < t->stride[order[j - 1]]; j--) {
            const int smaller = order[j];
            order[j] = order[j - 1];
            order[j - 1] = smaller;
        }
    int64_t span = t->dim; /* below 2^60: check_strides */
    for (int n = 0; n < 3; n++) {
        const int i = order[n];
        if (t->size[i] <= 1) continue;
        if (t->stride[i] < span)
            return fk_fail(err, FK_BAD_ARGUMENT,
                           "%s_stride[%d] (%s) is %lld, so that rows of %s may overlap; it must be at least %s, %lld",
                           t->name, i, axis_name[i], (long long)t->stride[i], t->name,
                           span == t->dim ? t->dim_name : "what smaller strides span", (long long)span);
        span += t->stride[i] * (t->size[i] - 1);
    }
    return FK_OK;
}

static fk_status check_tensor(const tensor *t, bool device, bool written, ranges *touched, fk_error *err) {
    int64_t extent;
    range *out = &touched->at[touched->count];
    fk_status status = check_pointer(t->name, t->data, (uintptr_t)(device ? t->copied : t->bytes), err);
    if (!status) status = check_strides(t, device, &extent, err);
    if (status) return status;
    *out = (range){t->name, (uintptr_t)t->data, 0, written};
    if (__builtin_add_overflow(out->begin, (uintptr_t)extent * (uintptr_t)t->bytes, &out->end))
        return fk_fail(err, FK_BAD_ARGUMENT, "%s at %p spans %lld elements; it must end within the address space",
                       t->name, t->data, (long long)extent);
    touched->count++;
    return written ? check_result_rows(t, err) : FK_OK;
}

static fk_status check_rows(const fk_problem *p, const char *name, const float *data, const fk_args *a, bool written,
                            ranges *touched, fk_error *err) {
    /* batch x heads <= 2^30, seqlen <= 2^30 and total_q < 2^31: no overflow */
    const uintptr_t bytes = (uintptr_t)(a->num_heads_q * fk_rows_q(p, a)) * sizeof(float);
    touched->at[touched->count++] = (range){name, (uintptr_t)data, (uintptr_t)data + bytes, written};
    return check_pointer(name, data, sizeof(float), err);
}

/* A result overlaps nothing that stands before it. */
static fk_status check_overlap(const ranges *touched, fk_error *err) {
    for (size_t i = 0; i < touched->count; i++)
        for (size_t j = 0; j < i; j++) {
            const range *w = &touched->at[i], *other = &touched->at[j];
            if (!w->written || w->begin >= other->end || other->begin >= w->end) continue;
            return fk_fail(err, FK_BAD_ARGUMENT, "%s at 0x%llx to 0x%llx overlaps %s at 0x%llx to 0x%llx; it must not",
                           w->name, (unsigned long long)w->begin, (unsigned long long)w->end, other->name,
                           (unsigned long long)other->begin, (unsigned long long)other->end);
        }
    return FK_OK;
}

/* All tensors of a launch: what of them is used depends on the pass. */
typedef struct tensors {
    tensor q, k, v, o, dout, dq, dk, dv;
} tensors;

static tensors tensors_of(const fk_problem *p, const fk_args *a) {
    const int64_t d = p->head_dim, dv = p->head_dim_v, b = p->packed ? 1 : a->batch;
    const int64_t sq = fk_rows_q(p, a) / b, sk = fk_rows_k(p, a) / b;
    const int64_t hq = a->num_heads_q, hkv = a->num_heads_kv;
    const int packed = p->packed;
    static const char dim[] = "head_dim", dim_v[] = "head_dim_v";
    tensors t = {
        .q = {"q", a->q, a->q_stride, {b, sq, hq}, packed, d, dim},
        .k = {"k", a->k, a->k_stride, {b, sk, hkv}, packed, d, dim},
        .v = {"v", fk_args_v(p, a), fk_args_v_stride(p, a), {b, sk, hkv}, packed, dv, dim_v},
        .o = {"o", a->o, a->o_stride, {b, sq, hq}, packed, dv, dim_v},
        .dout = {"dout", a->dout, a->dout_stride, {b, sq, hq}, packed, dv, dim_v},
        .dq = {"dq", a->dq, a->dq_stride, {b, sq, hq}, packed, d, dim},
        .dk = {"dk", a->dk, a->dk_stride, {b, sk, hkv}, packed, d, dim},
        .dv = {"dv", a->dv, a->dv_stride, {b, sk, hkv}, packed, dv, dim_v},
    };
    tensor *const all[] = {&t.q, &t.k, &t.v, &t.o, &t.dout, &t.dq, &t.dk, &t.dv};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        all[i]->bytes = fk_dtype_bytes(p->dtype), all[i]->copied = 16;
    t.k.bytes = t.v.bytes = fk_dtype_bytes(fk_kv_dtype(p));
    if (p->kv_e4m3) t.k.copied = t.v.copied = 8; /* which become 16 */
    t.o.bytes = fk_dtype_bytes(fk_output_dtype(p->dtype));
    if (p->paged) {
        t.k.size[0] = t.v.size[0] = a->num_pages;
        t.k.size[1] = t.v.size[1] = a->page_size;
        t.k.packed = t.v.packed = 0;
    }
    return t;
}

static fk_status check_forward(const fk_problem *p, const tensors *t, const fk_args *a, bool device, ranges *touched,
                               fk_error *err) {
    if (!device) return FK_OK;
    fk_status status = check_tensor(&t->o, device, true, touched, err);
    return status || !a->lse ? status : check_rows(p, "lse", a->lse, a, true, touched, err);
}

/* The reference computes lse itself, and o unless it is given. */
static fk_status check_backward(const fk_problem *p, const tensors *t, const fk_args *a, bool device, ranges *touched,
                                fk_error *err) {
    fk_status status = check_tensor(&t->dout, device, false, touched, err);
    if (!status && (device || a->o)) status = check_tensor(&t->o, device, false, touched, err);
    if (!status && device) status = check_rows(p, "lse", a->lse, a, false, touched, err);
    if (!status && a->dlse) status = check_rows(p, "dlse", a->dlse, a, false, touched, err);
    const tensor *const results[] = {&t->dq, &t->dk, &t->dv};
    for (size_t i = 0; i < 3 && device && !status; i++)
        status = check_tensor(results[i], device, true, touched, err);
    return status;
}

/* One of cu_seqlens_q, cu_seqlens_k, seqused_k, page_table and condition. */
static fk_status check_lengths(const char *name, const int32_t *data, int64_t count, ranges *touched, fk_error *err) {
    const uintptr_t begin = (uintptr_t)data;
    touched->at[touched->count++] = (range){name, begin, begin + (uintptr_t)count * sizeof(int32_t), false};
    return check_pointer(name, data, sizeof(int32_t), err);
}

static fk_status check_sequences(const fk_problem *p, const fk_args *a, ranges *touched, fk_error *err) {
    fk_status status = FK_OK;
    if (p->packed) status = check_lengths("cu_seqlens_q", a->cu_seqlens_q, a->batch + 1, touched, err);
    if (p->packed && !status) status = check_lengths("cu_seqlens_k", a->cu_seqlens_k, a->batch + 1, touched, err);
    if (p->seqused_k && !status) status = check_lengths("seqused_k", a->seqused_k, a->batch, touched, err);
    if (p->paged && !status)
        status = check_lengths("page_table", a->page_table, fk_page_table_entries(a), touched, err);
    if (a->condition && !status) status = check_lengths("condition", a->condition, 1, touched, err);
    return status;
}

static fk_status check_arrays(const fk_array_list *arrays, const fk_args *a, ranges *touched, fk_error *err) {
    fk_status status = FK_OK;
    for (int i = 0; i < arrays->count && !status; i++) {
        range *out = &touched->at[touched->count++];
        *out = (range){.name = arrays->decl[i].name};
        status = fk_array_check_args(arrays, i, a, &out->begin, &out->end, err);
    }
    return status;
}

static fk_status check_descales(const fk_problem *p, const fk_args *a, ranges *touched, fk_error *err) {
    fk_status status = FK_OK;
    for (int i = 0; i < FK_DESCALES && !status; i++) {
        range *out = &touched->at[touched->count++];
        *out = (range){.written = false};
        status = fk_descale_check(p, a, i, &out->name, &out->begin, &out->end, err);
    }
    return status;
}

static fk_status check_array_grads(const fk_problem *p, const fk_array_list *arrays, const fk_args *a, ranges *touched,
                                   fk_error *err) {
    static const char *const names[FK_MAX_ARRAYS] = {"array_grad[0]", "array_grad[1]", "array_grad[2]",
                                                     "array_grad[3]", "array_grad[4]", "array_grad[5]",
                                                     "array_grad[6]", "array_grad[7]"};
    fk_status status = FK_OK;
    for (int i = 0; i < arrays->count && !status; i++) {
        if (!(p->grad >> i & 1)) continue;
        range *out = &touched->at[touched->count++];
        *out = (range){.name = names[i], .written = true};
        status = fk_array_grad_check(arrays, i, a, &out->begin, &out->end, err);
    }
    return status;
}

fk_status fk_args_check(const fk_problem *p, const fk_array_list *arrays, const fk_args *a, bool device,
                        const fk_workspace *workspace, fk_error *err) {
    if (a->struct_size != sizeof *a)
        return fk_fail(err, FK_BAD_ARGUMENT, "args->struct_size is %zu; FK_ARGS_INIT makes it %zu", a->struct_size,
                       sizeof *a);
    fk_status status = fk_args_check_sizes(p, a, err);
    if (status) return status;
    if (!(isfinite(a->softmax_scale) && a->softmax_scale >= 0))
        return fk_fail(err, FK_BAD_ARGUMENT, "softmax_scale is %g; it must be finite and at least 0 (0 = default)",
                       (double)a->softmax_scale);
    status = fk_dropout_check(p, a, err);
    if (status) return status;
    const tensors t = tensors_of(p, a);
    ranges touched = {.count = 0};
    status = check_tensor(&t.q, device, false, &touched, err);
    if (!status) status = check_tensor(&t.k, device, false, &touched, err);
    if (!status) status = check_tensor(&t.v, device, false, &touched, err);
    if (!status) status = check_sequences(p, a, &touched, err);
    if (p->dropout && a->dropout_state) {
        const uintptr_t begin = (uintptr_t)a->dropout_state;
        touched.at[touched.count++] = (range){"dropout_state", begin, begin + 2 * sizeof(uint64_t), false};
    }
    if (!status) status = check_arrays(arrays, a, &touched, err);
    if (!status) status = check_descales(p, a, &touched, err);
    if (!status) status = (p->op == FK_BACKWARD ? check_backward : check_forward)(p, &t, a, device, &touched, err);
    if (!status && device) status = check_array_grads(p, arrays, a, &touched, err);
    if (status) return status;
    if (workspace) {
        const uintptr_t begin = (uintptr_t)workspace->data;
        touched.at[touched.count++] = (range){"workspace", begin, begin + workspace->bytes, true};
    }
    return check_overlap(&touched, err);
}

double fk_args_scale(const fk_problem *p, const fk_args *a) {
    return a->softmax_scale > 0 ? (double)a->softmax_scale : 1.0 / sqrt(p->head_dim);
}

fk_status fk_args_layout(const fk_problem *problem, fk_layout layout, fk_args *args) {
    fk_error err;
    fk_problem p;
    if (!problem || !args) return fk_refuse(FK_BAD_ARGUMENT, "%s is null", problem ? "args" : "problem");
    if (layout != FK_BSHD && layout != FK_BHSD)
        return fk_refuse(FK_BAD_ARGUMENT, "layout is %d; it must be FK_BSHD (0) or FK_BHSD (1)", (int)layout);
    if (args->struct_size != sizeof *args)
        return fk_refuse(FK_BAD_ARGUMENT, "args->struct_size is %zu; FK_ARGS_INIT makes it %zu", args->struct_size,
                         sizeof *args);
    if (fk_problem_normalise(problem, &p, &err) || fk_args_check_sizes(&p, args, &err)) return fk_report(&err);
    const int64_t sq = p.packed ? args->total_q : args->seqlen_q;
    const int64_t sk = p.paged ? args->page_size : p.packed ? args->total_k : args->seqlen_k;
    const int64_t hq = args->num_heads_q, hkv = args->num_heads_kv;
    const struct {
        int64_t *stride, seqlen, heads, dim;
    } all[] = {{args->q_stride, sq, hq, p.head_dim},      {args->k_stride, sk, hkv, p.head_dim},
               {args->v_stride, sk, hkv, p.head_dim_v},   {args->o_stride, sq, hq, p.head_dim_v},
               {args->dout_stride, sq, hq, p.head_dim_v}, {args->dq_stride, sq, hq, p.head_dim},
               {args->dk_stride, sk, hkv, p.head_dim},    {args->dv_stride, sk, hkv, p.head_dim_v}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) { /* seqlen x dim < 2^31 x 2^10 */
        const int64_t seqlen = all[i].seqlen, heads = all[i].heads, dim = all[i].dim;
        int64_t *stride = all[i].stride;
        if (heads > MAX_EXTENT / (seqlen * dim))
            return fk_refuse(FK_BAD_ARGUMENT,
                             "seqlen x heads x dim is %lld x %lld x %lld; a tensor may span 2^60 elements",
                             (long long)seqlen, (long long)heads, (long long)dim);
        stride[0] =
            p.packed && !(p.paged && (stride == args->k_stride || stride == args->v_stride)) ? 0 : seqlen * heads * dim;
        stride[1] = layout == FK_BSHD ? heads * dim : dim;
        stride[2] = layout == FK_BSHD ? dim : seqlen * dim;
    }
    return FK_OK;
}

/* ---- the parameter block ------------------------------------------------------------------------------ */

#define STRIDES(tensor)                                                                                                \
    .tensor##_batch_stride = a->tensor##_stride[0], .tensor##_row_stride = a->tensor##_stride[1],                      \
    .tensor##_head_stride = a->tensor##_stride[2]

#define DESCALE(tensor)                                                                                                \
    .tensor##_descale = a->tensor##_descale, .tensor##_descale_batch_stride = a->tensor##_descale_stride[0],           \
    .tensor##_descale_head_stride = a->tensor##_descale_stride[1]

fk_status fk_forward_prepare(const fk_kernel *kernel, const fk_args *args, const fk_workspace *workspace,
                             fk_forward_params *out, fk_grid grids[FK_MAX_KERNELS], fk_error *err) {
    const fk_problem *p = &kernel->problem;
    fk_split_parts splits;
    const bool persistent = fk_is_persistent(kernel),
               works = p->split || persistent || kernel->leading_rows || fk_looks_up_tiles(kernel);
    fk_status status = fk_args_check(p, &kernel->arrays, args, true, works ? workspace : NULL, err);
    if (!status) status = fk_splits_check(p, args, err);
    if (status) return status;
    fk_args chosen = *args; /* with the number of splits */
    const fk_args *a = &chosen;
    chosen.num_splits = fk_num_splits(kernel, args);
    chosen.v = fk_args_v(p, args);
    memcpy(chosen.v_stride, fk_args_v_stride(p, args), sizeof chosen.v_stride);
    for (int i = 0; i < kernel->num_launches && !status; i++)
        status = fk_grid_make(kernel, a, kernel->launch[i].grid, &grids[i], err);
    if (!status) status = fk_splits_prepare(kernel, a, workspace, &splits, err);
    if (status) return status;

    const double scale = fk_args_scale(p, a);
    const fk_dropout_fields dropout = fk_dropout_fields_of(p, a);
    const int64_t group_heads = p->packed ? fk_group_kv_heads(kernel, a) * (a->num_heads_q / a->num_heads_kv) : 1;
    *out = (fk_forward_params){
        .q = a->q,
        .k = a->k,
        .v = a->v,
        .o = a->o,
        .lse = a->lse,
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
        DESCALE(q),
        DESCALE(k),
        DESCALE(v),
        .num_heads_kv = (int32_t)a->num_heads_kv,
        .num_heads_q = (int32_t)a->num_heads_q,
        .heads_per_kv = (int32_t)(a->num_heads_q / a->num_heads_kv),
        .seqlen_q = (int32_t)a->seqlen_q,
        .seqlen_k = (int32_t)a->seqlen_k,
        .diag = p->align == FK_TOP_LEFT ? 0 : (int32_t)(a->seqlen_k - a->seqlen_q),
        .batch = (int32_t)a->batch,
        .total_q = (int32_t)a->total_q,
        .group_heads = (int32_t)group_heads,
        .group_inverse = fk_inverse(group_heads),
        .heads_inverse = fk_inverse(a->num_heads_q),
        .scale_log2 = (float)(scale * 1.4426950408889634),
        .scale = (float)scale,
        .dropout_rare = dropout.rare,
        .dropout_invert = dropout.invert,
        .dropout_scale = dropout.scale,
    };
    fk_splits_fill(kernel, a, &splits, workspace, out);
    memcpy(out->mask_value, kernel->mask_value, sizeof kernel->mask_value);
    memcpy(out->mask_inverse, kernel->mask_inverse, sizeof kernel->mask_inverse);
    memcpy(out->score_value, kernel->score_value, sizeof kernel->score_value);
    fk_arrays_fill(&kernel->arrays, a, out->array);
    if (persistent) status = fk_persistent_fill(kernel, a, workspace, out, err);
    if (!status) status = fk_seen_fill(kernel, a, workspace, out, err);
    fk_seen seen;
    size_t bytes;
    if (!status && kernel->staged && fk_forward_lay_out(kernel, a, &seen, &bytes))
        fk_aligned_fill(kernel, a, workspace, bytes, out->array, grids);
    return status;
}

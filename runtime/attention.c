/* What a launch may be asked for. Everything a kernel assumes of its arguments is checked here, so that a wrong call
 * gets a sentence and not a fault. Extents are in elements and int64: they are proved not to overflow. */
#include "object.h"

#include <math.h>
#include <string.h>

#define MAX_EXTENT ((int64_t)1 << 60) /* elements between the first and the last of a tensor */
#define MAX_HEADS (1 << 30)           /* batch x num_heads_q: a grid rounds it up, and must stay within int32 */
#define MAX_GRID_YZ 65535             /* CUDA's limit for gridDim.y and .z */

/* One of q, k, v, o as the caller describes it. */
typedef struct tensor {
    char name[8];
    const void *data;
    const int64_t *stride; /* batch, seqlen, head */
    int64_t size[3];       /* likewise */
    int64_t dim;
} tensor;

typedef struct range {
    const char *name;
    uintptr_t begin, end; /* bytes */
} range;

static const char *const axis_name[3] = {"batch", "seqlen", "head"};

static fk_status check_size(const char *name, int64_t value, int64_t limit, fk_error *err) {
    if (value >= 1 && value <= limit) return FK_OK;
    return fk_fail(err, FK_BAD_ARGUMENT, "%s is %lld; it must be 1 to %lld", name, (long long)value, (long long)limit);
}

static fk_status check_sizes(const fk_problem *p, const fk_args *a, fk_error *err) {
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
    return FK_OK;
}

/* Strides, and with them the extent in elements. */
static fk_status check_strides(const tensor *t, bool device, int64_t *extent, fk_error *err) {
    *extent = t->dim;
    for (int i = 0; i < 3; i++) {
        int64_t span;
        const long long stride = t->stride[i];
        if (stride < 0)
            return fk_fail(err, FK_BAD_ARGUMENT, "%s_stride[%d] (%s) is %lld; it must be at least 0", t->name, i,
                           axis_name[i], stride);
        if (device && stride % 8)
            return fk_fail(err, FK_BAD_ARGUMENT, "%s_stride[%d] (%s) is %lld; it must be a multiple of 8 elements",
                           t->name, i, axis_name[i], stride);
        if (__builtin_mul_overflow(t->stride[i], t->size[i] - 1, &span) || span > MAX_EXTENT - *extent)
            return fk_fail(err, FK_BAD_ARGUMENT,
                           "%s_stride[%d] (%s) is %lld for %lld entries; a tensor may span 2^60 elements", t->name, i,
                           axis_name[i], stride, (long long)t->size[i]);
        *extent += span;
    }
    return FK_OK;
}

static fk_status check_pointer(const char *name, const void *data, uintptr_t alignment, fk_error *err) {
    if (!data) return fk_fail(err, FK_BAD_ARGUMENT, "%s is null", name);
    if ((uintptr_t)data % alignment)
        return fk_fail(err, FK_BAD_ARGUMENT, "%s is at %p; it must be aligned to %d bytes", name, data, (int)alignment);
    return FK_OK;
}

static fk_status check_tensor(const tensor *t, bool device, range *out, fk_error *err) {
    int64_t extent;
    fk_status status = check_pointer(t->name, t->data, device ? 16 : 2, err);
    if (!status) status = check_strides(t, device, &extent, err);
    if (status) return status;
    out->name = t->name;
    out->begin = (uintptr_t)t->data;
    if (__builtin_add_overflow(out->begin, (uintptr_t)extent * 2, &out->end))
        return fk_fail(err, FK_BAD_ARGUMENT, "%s at %p spans %lld elements; it must end within the address space",
                       t->name, t->data, (long long)extent);
    return FK_OK;
}

/* Two rows of o at one address would be a race. */
static fk_status check_output_rows(const tensor *o, fk_error *err) {
    for (int i = 0; i < 3; i++)
        if (o->size[i] > 1 && o->stride[i] < o->dim)
            return fk_fail(err, FK_BAD_ARGUMENT,
                           "o_stride[%d] (%s) is %lld, so that rows of o overlap; it must be at least head_dim_v, %lld",
                           i, axis_name[i], (long long)o->stride[i], (long long)o->dim);
    return FK_OK;
}

static fk_status check_overlap(const range *written, const range *others, size_t count, fk_error *err) {
    for (size_t i = 0; i < count; i++)
        if (written->begin < others[i].end && others[i].begin < written->end)
            return fk_fail(err, FK_BAD_ARGUMENT, "%s at 0x%llx to 0x%llx overlaps %s at 0x%llx to 0x%llx; it must not",
                           written->name, (unsigned long long)written->begin, (unsigned long long)written->end,
                           others[i].name, (unsigned long long)others[i].begin, (unsigned long long)others[i].end);
    return FK_OK;
}

fk_status fk_args_check(const fk_problem *p, const fk_args *a, bool device, fk_error *err) {
    if (a->struct_size != sizeof *a)
        return fk_fail(err, FK_BAD_ARGUMENT, "args->struct_size is %zu; FK_ARGS_INIT makes it %zu", a->struct_size,
                       sizeof *a);
    fk_status status = check_sizes(p, a, err);
    if (status) return status;
    if (!(isfinite(a->softmax_scale) && a->softmax_scale >= 0))
        return fk_fail(err, FK_BAD_ARGUMENT, "softmax_scale is %g; it must be finite and at least 0 (0 = default)",
                       (double)a->softmax_scale);
    const tensor tensors[] = {
        {"q", a->q, a->q_stride, {a->batch, a->seqlen_q, a->num_heads_q}, p->head_dim},
        {"k", a->k, a->k_stride, {a->batch, a->seqlen_k, a->num_heads_kv}, p->head_dim},
        {"v", a->v, a->v_stride, {a->batch, a->seqlen_k, a->num_heads_kv}, p->head_dim_v},
        {"o", a->o, a->o_stride, {a->batch, a->seqlen_q, a->num_heads_q}, p->head_dim_v},
    };
    range ranges[5];
    for (size_t i = 0; i < (device ? 4 : 3); i++) {
        status = check_tensor(&tensors[i], device, &ranges[i], err);
        if (status) return status;
    }
    if (!device) return FK_OK;
    status = check_output_rows(&tensors[3], err);
    if (!status) status = check_overlap(&ranges[3], ranges, 3, err);
    if (status || !a->lse) return status;
    /* batch x heads < 2^31 and seqlen <= 2^30: no overflow */
    ranges[4] = (range){"lse", (uintptr_t)a->lse, 0};
    ranges[4].end = ranges[4].begin + (uintptr_t)(a->batch * a->num_heads_q * a->seqlen_q) * sizeof(float);
    status = check_pointer("lse", a->lse, sizeof(float), err);
    return status ? status : check_overlap(&ranges[4], ranges, 4, err);
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
    if (fk_problem_normalise(problem, &p, &err) || check_sizes(&p, args, &err)) return fk_report(&err);
    const struct {
        int64_t *stride, seqlen, heads, dim;
    } tensors[] = {{args->q_stride, args->seqlen_q, args->num_heads_q, p.head_dim},
                   {args->k_stride, args->seqlen_k, args->num_heads_kv, p.head_dim},
                   {args->v_stride, args->seqlen_k, args->num_heads_kv, p.head_dim_v},
                   {args->o_stride, args->seqlen_q, args->num_heads_q, p.head_dim_v}};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) { /* seqlen x heads x dim < 2^30 x 2^31 x 2^8 */
        const int64_t seqlen = tensors[i].seqlen, heads = tensors[i].heads, dim = tensors[i].dim;
        int64_t *stride = tensors[i].stride;
        if (heads > MAX_EXTENT / (seqlen * dim))
            return fk_refuse(FK_BAD_ARGUMENT,
                             "seqlen x heads x dim is %lld x %lld x %lld; a tensor may span 2^60 elements",
                             (long long)seqlen, (long long)heads, (long long)dim);
        stride[0] = seqlen * heads * dim;
        stride[1] = layout == FK_BSHD ? heads * dim : dim;
        stride[2] = layout == FK_BSHD ? dim : seqlen * dim;
    }
    return FK_OK;
}

/* ---- the parameter block ------------------------------------------------------------------------------ */

/* x: the heads of a group, whose keys and values find room in half of L2 (the rest is for Q, O and luck); z: groups,
 * all as large as the first, or one or more heads short at the end; y: query tiles. */
static fk_status make_grid(const fk_kernel *kernel, const fk_args *a, fk_grid *out, fk_error *err) {
    const int64_t kv_bytes = a->seqlen_k * (kernel->problem.head_dim + kernel->problem.head_dim_v) * 2;
    const int64_t kv_heads = a->batch * a->num_heads_kv;
    int64_t fitting = kernel->l2_bytes / 2 / kv_bytes;
    const int64_t block_m = kernel->info.plan.block_m, num_m_tiles = (a->seqlen_q + block_m - 1) / block_m;
    if (fitting < 1) fitting = 1;
    int64_t groups = (kv_heads + fitting - 1) / fitting;
    if (groups > MAX_GRID_YZ) groups = MAX_GRID_YZ;
    const int64_t group_kv_heads = (kv_heads + groups - 1) / groups;
    if (num_m_tiles > MAX_GRID_YZ)
        return fk_fail(err, FK_BAD_ARGUMENT,
                       "seqlen_q is %lld; this kernel's query tiles have %lld rows, and the limit is %lld",
                       (long long)a->seqlen_q, (long long)block_m, (long long)(MAX_GRID_YZ * block_m));
    out->x = (uint32_t)(group_kv_heads * (a->num_heads_q / a->num_heads_kv));
    out->y = (uint32_t)num_m_tiles;
    out->z = (uint32_t)((kv_heads + group_kv_heads - 1) / group_kv_heads);
    return FK_OK;
}

fk_status fk_forward_prepare(const fk_kernel *kernel, const fk_args *a, fk_forward_params *out, fk_grid *grid,
                             fk_error *err) {
    const fk_problem *p = &kernel->problem;
    fk_status status = fk_args_check(p, a, true, err);
    if (!status) status = make_grid(kernel, a, grid, err);
    if (status) return status;

    const uint64_t inverse = ((uint64_t)1 << 32) / (uint64_t)a->num_heads_q;
    const double scale = fk_args_scale(p, a);
    *out = (fk_forward_params){
        .q = a->q,
        .k = a->k,
        .v = a->v,
        .o = a->o,
        .lse = a->lse,
        .q_batch_stride = a->q_stride[0],
        .q_row_stride = a->q_stride[1],
        .q_head_stride = a->q_stride[2],
        .k_batch_stride = a->k_stride[0],
        .k_row_stride = a->k_stride[1],
        .k_head_stride = a->k_stride[2],
        .v_batch_stride = a->v_stride[0],
        .v_row_stride = a->v_stride[1],
        .v_head_stride = a->v_stride[2],
        .o_batch_stride = a->o_stride[0],
        .o_row_stride = a->o_stride[1],
        .o_head_stride = a->o_stride[2],
        .num_heads_q = (int32_t)a->num_heads_q,
        .heads_per_kv = (int32_t)(a->num_heads_q / a->num_heads_kv),
        .seqlen_q = (int32_t)a->seqlen_q,
        .seqlen_k = (int32_t)a->seqlen_k,
        .diag = p->align == FK_TOP_LEFT ? 0 : (int32_t)(a->seqlen_k - a->seqlen_q),
        .batch = (int32_t)a->batch,
        .heads_inverse = inverse > UINT32_MAX ? UINT32_MAX : (uint32_t)inverse,
        .scale_log2 = (float)(scale * 1.4426950408889634),
        .scale = (float)scale,
    };
    memcpy(out->mask_value, kernel->mask_value, sizeof kernel->mask_value);
    return FK_OK;
}

/* What a launch may be asked for. Everything a kernel assumes of its arguments is checked here, so that a wrong call
 * gets a sentence and not a fault. Extents are in elements and int64: they are proved not to overflow. */
#include "object.h"

#include <math.h>
#include <string.h>

#define MAX_EXTENT ((int64_t)1 << 60) /* elements between the first and the last of a tensor */
#define MAX_HEADS (1 << 30)           /* batch x num_heads_q: a grid rounds it up, and must stay within int32 */
#define MAX_GRID_YZ 65535             /* CUDA's limit for gridDim.y and .z */

/* One of q, k, v, o, ... as the caller describes it. */
typedef struct tensor {
    const char *name;
    const void *data;
    const int64_t *stride; /* batch, seqlen, head */
    int64_t size[3];       /* likewise */
    int64_t dim;
    const char *dim_name;
} tensor;

typedef struct range {
    const char *name;
    uintptr_t begin, end; /* bytes */
    bool written;
} range;

/* What one launch touches, results last. */
enum { MAX_RANGES = 12 + FK_MAX_ARRAYS };
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

/* Two rows of a result at one address would be a race. */
static fk_status check_result_rows(const tensor *t, fk_error *err) {
    for (int i = 0; i < 3; i++)
        if (t->size[i] > 1 && t->stride[i] < t->dim)
            return fk_fail(err, FK_BAD_ARGUMENT,
                           "%s_stride[%d] (%s) is %lld, so that rows of %s overlap; it must be at least %s, %lld",
                           t->name, i, axis_name[i], (long long)t->stride[i], t->name, t->dim_name, (long long)t->dim);
    return FK_OK;
}

static fk_status check_tensor(const tensor *t, bool device, bool written, ranges *touched, fk_error *err) {
    int64_t extent;
    range *out = &touched->at[touched->count];
    fk_status status = check_pointer(t->name, t->data, device ? 16 : 2, err);
    if (!status) status = check_strides(t, device, &extent, err);
    if (status) return status;
    *out = (range){t->name, (uintptr_t)t->data, 0, written};
    if (__builtin_add_overflow(out->begin, (uintptr_t)extent * 2, &out->end))
        return fk_fail(err, FK_BAD_ARGUMENT, "%s at %p spans %lld elements; it must end within the address space",
                       t->name, t->data, (long long)extent);
    touched->count++;
    return written ? check_result_rows(t, err) : FK_OK;
}

static fk_status check_rows(const char *name, const float *data, const fk_args *a, bool written, ranges *touched,
                            fk_error *err) {
    /* batch x heads < 2^31 and seqlen <= 2^30: no overflow */
    const uintptr_t bytes = (uintptr_t)(a->batch * a->num_heads_q * a->seqlen_q) * sizeof(float);
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
    const int64_t d = p->head_dim, dv = p->head_dim_v, b = a->batch, sq = a->seqlen_q, sk = a->seqlen_k;
    const int64_t hq = a->num_heads_q, hkv = a->num_heads_kv;
    static const char dim[] = "head_dim", dim_v[] = "head_dim_v";
    return (tensors){
        .q = {"q", a->q, a->q_stride, {b, sq, hq}, d, dim},
        .k = {"k", a->k, a->k_stride, {b, sk, hkv}, d, dim},
        .v = {"v", a->v, a->v_stride, {b, sk, hkv}, dv, dim_v},
        .o = {"o", a->o, a->o_stride, {b, sq, hq}, dv, dim_v},
        .dout = {"dout", a->dout, a->dout_stride, {b, sq, hq}, dv, dim_v},
        .dq = {"dq", a->dq, a->dq_stride, {b, sq, hq}, d, dim},
        .dk = {"dk", a->dk, a->dk_stride, {b, sk, hkv}, d, dim},
        .dv = {"dv", a->dv, a->dv_stride, {b, sk, hkv}, dv, dim_v},
    };
}

static fk_status check_forward(const tensors *t, const fk_args *a, bool device, ranges *touched, fk_error *err) {
    if (!device) return FK_OK;
    fk_status status = check_tensor(&t->o, device, true, touched, err);
    return status || !a->lse ? status : check_rows("lse", a->lse, a, true, touched, err);
}

/* The reference computes lse itself, and o unless it is given. */
static fk_status check_backward(const tensors *t, const fk_args *a, bool device, ranges *touched, fk_error *err) {
    fk_status status = check_tensor(&t->dout, device, false, touched, err);
    if (!status && (device || a->o)) status = check_tensor(&t->o, device, false, touched, err);
    if (!status && device) status = check_rows("lse", a->lse, a, false, touched, err);
    if (!status && a->dlse) status = check_rows("dlse", a->dlse, a, false, touched, err);
    const tensor *const results[] = {&t->dq, &t->dk, &t->dv};
    for (size_t i = 0; i < 3 && device && !status; i++)
        status = check_tensor(results[i], device, true, touched, err);
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
    const tensors t = tensors_of(p, a);
    ranges touched = {.count = 0};
    status = check_tensor(&t.q, device, false, &touched, err);
    if (!status) status = check_tensor(&t.k, device, false, &touched, err);
    if (!status) status = check_tensor(&t.v, device, false, &touched, err);
    if (!status) status = check_arrays(arrays, a, &touched, err);
    if (!status) status = (p->op == FK_BACKWARD ? check_backward : check_forward)(&t, a, device, &touched, err);
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
    if (fk_problem_normalise(problem, &p, &err) || fk_args_check_sizes(&p, args, &err)) return fk_report(&err);
    const int64_t sq = args->seqlen_q, sk = args->seqlen_k, hq = args->num_heads_q, hkv = args->num_heads_kv;
    const struct {
        int64_t *stride, seqlen, heads, dim;
    } all[] = {{args->q_stride, sq, hq, p.head_dim},      {args->k_stride, sk, hkv, p.head_dim},
               {args->v_stride, sk, hkv, p.head_dim_v},   {args->o_stride, sq, hq, p.head_dim_v},
               {args->dout_stride, sq, hq, p.head_dim_v}, {args->dq_stride, sq, hq, p.head_dim},
               {args->dk_stride, sk, hkv, p.head_dim},    {args->dv_stride, sk, hkv, p.head_dim_v}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) { /* seqlen x heads x dim < 2^30 x 2^31 x 2^8 */
        const int64_t seqlen = all[i].seqlen, heads = all[i].heads, dim = all[i].dim;
        int64_t *stride = all[i].stride;
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

/* ---- the grid ----------------------------------------------------------------------------------------- */

/* x: the heads of a group, for whom what they walk over finds room in half of L2 (the rest is for their own tiles and
 * luck); z: groups, all as large as the first, or one or more heads short at the end; y: own tiles. */
static fk_status make_tile_grid(const fk_kernel *kernel, const fk_args *a, fk_grid *out, fk_error *err) {
    const fk_problem *p = &kernel->problem;
    const bool backward = p->op == FK_BACKWARD;
    const int64_t ratio = a->num_heads_q / a->num_heads_kv, kv_heads = a->batch * a->num_heads_kv;
    const int64_t element_bytes = (p->head_dim + p->head_dim_v) * 2;
    /* Backward walks over q and dout of a kv head's query heads, with two floats a row, and adds to dq's sum. */
    const int64_t walked_bytes =
        backward ? a->seqlen_q * (element_bytes + 8 + kernel->d_pad * 4) * ratio : a->seqlen_k * element_bytes;
    const int64_t own = backward ? a->seqlen_k : a->seqlen_q;
    const int64_t block = backward ? kernel->info.plan.block_n : kernel->info.plan.block_m;
    const int64_t num_tiles = (own + block - 1) / block;
    int64_t fitting = kernel->l2_bytes / 2 / walked_bytes;
    if (fitting < 1) fitting = 1;
    int64_t groups = (kv_heads + fitting - 1) / fitting;
    if (groups > MAX_GRID_YZ) groups = MAX_GRID_YZ;
    const int64_t group_kv_heads = (kv_heads + groups - 1) / groups;
    if (num_tiles > MAX_GRID_YZ)
        return fk_fail(err, FK_BAD_ARGUMENT,
                       "seqlen_%c is %lld; this kernel's %s tiles have %lld rows, and the limit is %lld",
                       backward ? 'k' : 'q', (long long)own, backward ? "key" : "query", (long long)block,
                       (long long)(MAX_GRID_YZ * block));
    out->x = (uint32_t)(group_kv_heads * (backward ? 1 : ratio));
    out->y = (uint32_t)num_tiles;
    out->z = (uint32_t)((kv_heads + group_kv_heads - 1) / group_kv_heads);
    return FK_OK;
}

/* `blocks` for each query head: heads fill y, then z. */
static fk_grid make_row_grid(const fk_args *a, int64_t blocks) {
    const int64_t heads = a->batch * a->num_heads_q, y = heads < MAX_GRID_YZ ? heads : MAX_GRID_YZ;
    return (fk_grid){(uint32_t)blocks, (uint32_t)y, (uint32_t)((heads + y - 1) / y)};
}

fk_status fk_grid_make(const fk_kernel *kernel, const fk_args *a, fk_grid_kind kind, fk_grid *out, fk_error *err) {
    const int64_t block_m = kernel->info.plan.block_m, padded = (a->seqlen_q + block_m - 1) / block_m * block_m;
    const int64_t chunks = a->seqlen_q * (kernel->problem.head_dim / 8); /* an int in the kernel */
    switch (kind) {
    case FK_GRID_TILES:
        return make_tile_grid(kernel, a, out, err);
    case FK_GRID_ROWS:
        *out = make_row_grid(a, padded / 4); /* block_m is a multiple of 16 */
        return FK_OK;
    case FK_GRID_ROW_CHUNKS:
        if (chunks > INT32_MAX - 256)
            return fk_fail(err, FK_BAD_ARGUMENT,
                           "seqlen_q is %lld; seqlen_q x head_dim / 8 may be %d, which is %lld rows",
                           (long long)a->seqlen_q, INT32_MAX - 256,
                           (long long)((INT32_MAX - 256) / (kernel->problem.head_dim / 8)));
        *out = make_row_grid(a, (chunks + 255) / 256);
        return FK_OK;
    }
    return fk_fail(err, FK_INTERNAL, "grid kind %d", (int)kind);
}

uint32_t fk_inverse(int64_t heads) {
    const uint64_t inverse = ((uint64_t)1 << 32) / (uint64_t)heads;
    return inverse > UINT32_MAX ? UINT32_MAX : (uint32_t)inverse;
}

/* ---- the parameter block ------------------------------------------------------------------------------ */

fk_status fk_forward_prepare(const fk_kernel *kernel, const fk_args *a, fk_forward_params *out, fk_grid *grid,
                             fk_error *err) {
    const fk_problem *p = &kernel->problem;
    fk_status status = fk_args_check(p, &kernel->arrays, a, true, NULL, err);
    if (!status) status = fk_grid_make(kernel, a, FK_GRID_TILES, grid, err);
    if (status) return status;

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
        .heads_inverse = fk_inverse(a->num_heads_q),
        .scale_log2 = (float)(scale * 1.4426950408889634),
        .scale = (float)scale,
    };
    memcpy(out->mask_value, kernel->mask_value, sizeof kernel->mask_value);
    memcpy(out->score_value, kernel->score_value, sizeof kernel->score_value);
    fk_arrays_fill(&kernel->arrays, a, out->array);
    return FK_OK;
}

/* The maps by which a launch's TMA copies find their tiles: of q, k, v and o (backward: dout, dk and dv), boxes of 128
 * bytes (with the swizzle that wgmma reads) by a tile's rows. Of e4m3's values, which were transposed, rows are columns
 * of v; of a staged array, queries by keys; of keys in pages, the rows that divide both a page and a tile. The GPU's
 * are the driver's to encode, the emulator's are its own. */
#include "object.h"

#include <stdio.h>
#include <string.h>

enum { RANK = 4, BOX_BYTES = 128 };
enum { WARP_ROWS = 16 };  /* each warp stores its own rows of o, dk and dv */
enum { ARRAY_ROWS = 64 }; /* each warpgroup has its own rows of an array */

_Static_assert(sizeof(fk_tensor_map) == sizeof(fk_emu_tensor_map), "the emulator's maps stand where the GPU's do");

typedef struct tensor {
    const char *name;
    const void *data;
    const int64_t *stride; /* elements: batch, row, head */
    int64_t columns, rows, heads, batch;
    int32_t box_rows, dtype; /* fp32 stands for any 4 bytes */
} tensor;

/* As a map has it, dimensions from the innermost out. */
typedef struct shape {
    uint64_t size[RANK], stride[RANK - 1]; /* stride: bytes, of size[1] on */
    uint32_t box[RANK];
} shape;

/* A dimension of size 1 may have any stride, and gets one that is legal. */
static fk_status shape_of(const tensor *t, shape *out, fk_error *err) {
    static const int axis[RANK - 1] = {1, 2, 0};
    const int element_bytes = fk_dtype_bytes(t->dtype);
    const int chunk = 16 / element_bytes;
    const int64_t whole_row = (t->columns + chunk - 1) / chunk * chunk;
    static const char *const axis_name[3] = {"batch", "seqlen", "head"};
    *out = (shape){.size = {(uint64_t)t->columns, (uint64_t)t->rows, (uint64_t)t->heads, (uint64_t)t->batch},
                   .box = {(uint32_t)(BOX_BYTES / element_bytes), (uint32_t)t->box_rows, 1, 1}};
    for (int i = 0; i < RANK - 1; i++) {
        const int64_t stride = out->size[i + 1] == 1 ? whole_row : t->stride[axis[i]];
        if (stride >= FK_MAX_MAP_STRIDE / element_bytes)
            return fk_fail(err, FK_BAD_ARGUMENT,
                           "%s_stride[%d] (%s) is %lld for %lld entries; this kernel's copies take strides of less "
                           "than 2^%d elements",
                           t->name, axis[i], axis_name[axis[i]], (long long)stride, (long long)out->size[i + 1],
                           element_bytes == 1 ? 40 : 39);
        out->stride[i] = (uint64_t)stride * (uint64_t)element_bytes;
    }
    return FK_OK;
}

static fk_status encode_cuda(const fk_driver *d, const tensor *t, const shape *s, fk_tensor_map *out, fk_error *err) {
    static const uint32_t ones[RANK] = {1, 1, 1, 1};
    const int type = t->dtype == FK_E4M3   ? FK_CU_TENSOR_UINT8
                     : t->dtype == FK_FP32 ? FK_CU_TENSOR_FLOAT32
                     : t->dtype == FK_FP16 ? FK_CU_TENSOR_FLOAT16
                                           : FK_CU_TENSOR_BFLOAT16;
    char what[400];
    const int result =
        d->tensor_map_encode(out, type, RANK, (void *)(uintptr_t)t->data, s->size, s->stride, s->box, ones,
                             FK_CU_INTERLEAVE_NONE, FK_CU_SWIZZLE_128B, FK_CU_L2_PROMOTION_128B, FK_CU_FILL_ZEROS);
    if (!result) return FK_OK;
    snprintf(what, sizeof what,
             "the driver makes no tensor map of %s at %p, head_dim %llu, seqlen %llu, heads %llu, batch %llu, "
             "%s_stride[1] %llu, %s_stride[2] %llu, %s_stride[0] %llu bytes, in tiles of %u rows",
             t->name, t->data, (unsigned long long)s->size[0], (unsigned long long)s->size[1],
             (unsigned long long)s->size[2], (unsigned long long)s->size[3], t->name, (unsigned long long)s->stride[0],
             t->name, (unsigned long long)s->stride[1], t->name, (unsigned long long)s->stride[2], s->box[1]);
    return fk_driver_check(d, result, FK_LAUNCH_FAILED, what, err);
}

static fk_status encode_emulator(const tensor *t, const shape *s, fk_tensor_map *out, fk_error *err) {
    fk_error why;
    fk_emu_tensor described = {.base = (void *)(uintptr_t)t->data,
                               .rank = RANK,
                               .element_bytes = (uint8_t)fk_dtype_bytes(t->dtype),
                               .swizzle = BOX_BYTES};
    for (int i = 0; i < RANK; i++) {
        described.dims[i] = (uint32_t)s->size[i];
        described.box[i] = (uint16_t)s->box[i];
        if (i) described.strides[i - 1] = s->stride[i - 1];
    }
    const fk_status status = fk_emu_tensor_map_encode((fk_emu_tensor_map *)out, &described, &why);
    return status ? fk_fail(err, status, "%s: %.*s", t->name, (int)sizeof why.text - 4, why.text) : FK_OK;
}

/* e4m3's values: tiles of keys, of each the columns of v as rows of 128 bytes. */
static tensor transposed(const fk_kernel *kernel, const fk_args *a, const void *values, int64_t stride[3]) {
    const int64_t columns = BOX_BYTES, rows = fk_value_rows(&kernel->problem);
    fk_values layout;
    fk_values_lay_out(kernel, a, &layout);
    stride[1] = columns;
    stride[2] = columns * rows;
    stride[0] = columns * rows * layout.tiles;
    return (tensor){"v", values, stride, columns, rows, layout.tiles, layout.heads, (int32_t)rows, FK_E4M3};
}

/* Keys, or values, of 16 bits: `widened` as templates/piece/widen.cu has them, rows of a head beside each other. */
static tensor in_rows(tensor t, const void *widened, int64_t stride[3]) {
    stride[1] = t.columns;
    stride[2] = t.columns * t.rows;
    stride[0] = stride[2] * t.heads;
    t.data = widened, t.stride = stride;
    return t;
}

/* Of the staged array or its gradient, as if it had every dimension. What copies cannot read has no map. */
static bool array_of(const fk_kernel *kernel, const fk_args *a, const void *data, const int64_t *strides, int32_t dtype,
                     tensor *out, int64_t stride[3]) {
    const int index = kernel->staged - 1;
    if (!fk_array_boxes(&kernel->arrays, index, a, data, strides, fk_dtype_bytes(dtype))) return false;
    const fk_array_decl *decl = &kernel->arrays.decl[index];
    *out = (tensor){decl->name, data, stride, a->seqlen_k, 1, 1, 1, ARRAY_ROWS, dtype};
    for (int d = 0; d < decl->rank - 1; d++) {
        const int64_t size = strides[d] ? fk_array_size(&kernel->arrays, index, a, d) : 1;
        if (decl->dim[d] == FK_DIM_SEQLEN_Q)
            out->rows = size, stride[1] = strides[d];
        else if (decl->dim[d] == FK_DIM_HEADS_Q)
            out->heads = size, stride[2] = strides[d];
        else
            out->batch = size, stride[0] = strides[d];
    }
    return true;
}

static fk_status make(const fk_driver *driver, const tensor *t, fk_tensor_map *out, fk_error *err) {
    shape s;
    const fk_status status = shape_of(t, &s, err);
    if (status) return status;
    return driver ? encode_cuda(driver, t, &s, out, err) : encode_emulator(t, &s, out, err);
}

/* Those that come before the others. */
static fk_status make_array_maps(const fk_kernel *kernel, const fk_args *a, const void *copy,
                                 fk_tensor_map map[FK_ARRAY_MAPS], fk_error *err) {
    const int index = kernel->staged - 1;
    const fk_driver *driver = kernel->context->driver;
    tensor array;
    int64_t stride[3] = {0, 0, 0};
    memset(map, 0, FK_ARRAY_MAPS * sizeof *map);
    if (index < 0) return FK_OK;
    fk_status status = FK_OK;
    fk_aligned aligned;
    if (copy) fk_aligned_lay_out(kernel, a, &aligned);
    if (array_of(kernel, a, copy ? copy : a->array[index].data, copy ? aligned.stride : a->array[index].stride,
                 fk_array_dtype(&kernel->arrays.decl[index]), &array, stride))
        status = make(driver, &array, &map[1], err);
    if (status || !fk_stages_grad(&kernel->problem, kernel->grad, kernel->staged)) return status;
    if (array_of(kernel, a, a->array_grad[index].data, a->array_grad[index].stride, FK_FP32, &array, stride))
        status = make(driver, &array, &map[0], err);
    return status;
}

/* Keys in pages, which stand for the entries of a batch, in the boxes of templates/piece/paged_rows.cu. */
static tensor in_pages(tensor t, int32_t page_rows, const fk_args *a) {
    while (t.box_rows % page_rows)
        page_rows /= 2;
    t.box_rows = page_rows, t.rows = a->page_size, t.batch = a->num_pages;
    return t;
}

fk_status fk_tensor_maps_make(const fk_kernel *kernel, const fk_args *a, const void *values, const void *copy,
                              fk_tensor_map map[FK_ALL_MAPS], fk_error *err) {
    const fk_problem *p = &kernel->problem;
    const fk_plan_info *plan = &kernel->info.plan;
    const int64_t batch = p->packed ? 1 : a->batch;
    const int64_t rows_q = p->packed ? a->total_q : a->seqlen_q, rows_k = p->packed ? a->total_k : a->seqlen_k;
    /* Of what one CTA has, or loads at a time. */
    const int32_t own_queries = p->op == FK_FORWARD ? fk_plan_own_queries(p, plan) : plan->block_m;
    const int32_t own_keys = fk_plan_own_keys(p, plan);
    const int32_t type = p->dtype;
    int64_t stride[2][3];
    tensor tensors[FK_TENSOR_MAPS_BACKWARD] = {
        {"q", a->q, a->q_stride, p->head_dim, rows_q, a->num_heads_q, batch, own_queries, type},
        {"k", a->k, a->k_stride, p->head_dim, rows_k, a->num_heads_kv, batch, own_keys, type},
        {"v", fk_args_v(p, a), fk_args_v_stride(p, a), p->head_dim_v, rows_k, a->num_heads_kv, batch, own_keys, type},
        {"o", a->o, a->o_stride, p->head_dim_v, rows_q, a->num_heads_q, batch, WARP_ROWS, fk_output_dtype(type)}};
    if (p->op == FK_BACKWARD) {
        tensors[3] =
            (tensor){"dout", a->dout, a->dout_stride, p->head_dim_v, rows_q, a->num_heads_q, batch, own_queries, type};
        tensors[4] = (tensor){"dk", a->dk, a->dk_stride, p->head_dim, rows_k, a->num_heads_kv, batch, WARP_ROWS, type};
        tensors[5] =
            (tensor){"dv", a->dv, a->dv_stride, p->head_dim_v, rows_k, a->num_heads_kv, batch, WARP_ROWS, type};
    }
    if (fk_widens_before(kernel)) {
        const size_t k_bytes = (size_t)(batch * rows_k * a->num_heads_kv) * (size_t)p->head_dim * sizeof(uint16_t);
        tensors[1] = in_rows(tensors[1], values, stride[0]);
        tensors[2] = in_rows(tensors[2], (const char *)values + k_bytes, stride[1]);
    } else if (p->paged) {
        tensors[1] = in_pages(tensors[1], p->paged, a), tensors[2] = in_pages(tensors[2], p->paged, a);
    }
    if (type == FK_E4M3) tensors[2] = transposed(kernel, a, values, stride[0]);
    const fk_driver *driver = kernel->context->driver;
    const int count = fk_num_tensor_maps(kernel), first = FK_ALL_MAPS - count;
    fk_status status = make_array_maps(kernel, a, copy, &map[first - FK_ARRAY_MAPS], err);
    for (int i = 0; i < count && !status; i++)
        status = make(driver, &tensors[i], &map[first + i], err);
    return status;
}

/* Declared arrays of a launch. No read leaves an array: indices are clamped, so data, sizes and strides are all that
 * has to be right. */
#include "emulator/half.h"
#include "object.h"

#include <string.h>

#define MAX_EXTENT ((int64_t)1 << 60) /* elements between the first and the last of an array */

static int64_t size_of(const fk_array_decl *decl, const fk_array *array, const fk_args *a, int d) {
    switch (decl->dim[d]) {
    case FK_DIM_BATCH:
        return a->batch;
    case FK_DIM_HEADS_Q:
        return a->num_heads_q;
    case FK_DIM_SEQLEN_Q:
        return a->seqlen_q;
    case FK_DIM_SEQLEN_K:
        return a->seqlen_k;
    default:
        return array->size[d];
    }
}

int64_t fk_array_size(const fk_array_list *arrays, int index, const fk_args *args, int d) {
    return size_of(&arrays->decl[index], &args->array[index], args, d);
}

fk_status fk_array_check_args(const fk_array_list *arrays, int index, const fk_args *args, uintptr_t *begin,
                              uintptr_t *end, fk_error *err) {
    const fk_array_decl *decl = &arrays->decl[index];
    const fk_array *array = &args->array[index];
    const uintptr_t bytes = (uintptr_t)fk_array_element_bytes(decl);
    int64_t extent = 1;
    if (!array->data) return fk_fail(err, FK_BAD_ARGUMENT, "array[%d] (%s) is null", index, decl->name);
    if ((uintptr_t)array->data % bytes)
        return fk_fail(err, FK_BAD_ARGUMENT, "array[%d] (%s) is at %p; it must be aligned to %d bytes", index,
                       decl->name, array->data, (int)bytes);
    for (int d = 0; d < decl->rank; d++) {
        const int64_t size = size_of(decl, array, args, d), stride = array->stride[d];
        const int64_t limit = d == decl->rank - 1 ? INT32_MAX / 4 : INT64_MAX; /* kernels keep it in bytes, as an int */
        int64_t span;
        if (size < 1 || size > INT32_MAX)
            return fk_fail(err, FK_BAD_ARGUMENT, "array[%d].size[%d] (%s) is %lld; it must be 1 to %d", index, d,
                           decl->name, (long long)size, INT32_MAX);
        if (stride < 0 || stride > limit)
            return fk_fail(err, FK_BAD_ARGUMENT, "array[%d].stride[%d] (%s) is %lld; it must be 0 to %lld", index, d,
                           decl->name, (long long)stride, (long long)limit);
        if (__builtin_mul_overflow(stride, size - 1, &span) || span > MAX_EXTENT - extent)
            return fk_fail(err, FK_BAD_ARGUMENT,
                           "array[%d].stride[%d] (%s) is %lld for %lld entries; an array may span 2^60 elements", index,
                           d, decl->name, (long long)stride, (long long)size);
        extent += span;
    }
    *begin = (uintptr_t)array->data;
    if (__builtin_add_overflow(*begin, (uintptr_t)extent * bytes, end))
        return fk_fail(err, FK_BAD_ARGUMENT,
                       "array[%d] (%s) at %p spans %lld elements; it must end within the address "
                       "space",
                       index, decl->name, array->data, (long long)extent);
    return FK_OK;
}

bool fk_array_boxes(const fk_array_list *arrays, int index, const fk_args *args, const void *data,
                    const int64_t *strides, int element_bytes) {
    const int chunk = 16 / element_bytes; /* elements of the bytes that copies are aligned to */
    const fk_array_decl *decl = &arrays->decl[index];
    bool good = (uintptr_t)data % 16 == 0 && strides[decl->rank - 1] == 1;
    for (int d = 0; d < decl->rank - 1; d++) {
        const int64_t stride = strides[d];
        const bool fits = stride % chunk == 0 && stride < FK_MAX_MAP_STRIDE / element_bytes;
        const bool repeats = stride == 0 && decl->dim[d] == FK_DIM_SEQLEN_Q; /* a tile has more than one row */
        good = good && (fk_array_size(arrays, index, args, d) == 1 || (fits && !repeats));
    }
    return good;
}

void fk_arrays_fill(const fk_array_list *arrays, const fk_args *args, fk_array_param out[FK_MAX_ARRAYS]) {
    for (int i = 0; i < arrays->count; i++) {
        const fk_array *array = &args->array[i];
        out[i].data = array->data;
        out[i].boxed =
            fk_array_boxes(arrays, i, args, array->data, array->stride, fk_array_element_bytes(&arrays->decl[i]));
        out[i].copy = NULL;
        out[i].copy_pitch = 0;
        memcpy(out[i].stride, array->stride, sizeof array->stride);
        for (int d = 0; d < arrays->decl[i].rank; d++)
            out[i].size[d] = (int32_t)size_of(&arrays->decl[i], array, args, d);
    }
}

double fk_array_element(const fk_array_decl *decl, const fk_array *array, const fk_args *args, const int64_t *index) {
    int64_t offset = 0;
    for (int d = 0; d < decl->rank; d++) {
        const int64_t last = size_of(decl, array, args, d) - 1;
        offset += (index[d] < 0 ? 0 : index[d] > last ? last : index[d]) * array->stride[d];
    }
    switch ((fk_element)decl->type) {
    case FK_INT32:
        return ((const int32_t *)array->data)[offset];
    case FK_FLOAT16:
        return (double)fk_fp16_to_float(((const uint16_t *)array->data)[offset]);
    case FK_BFLOAT16:
        return (double)fk_bf16_to_float(((const uint16_t *)array->data)[offset]);
    default:
        return (double)((const float *)array->data)[offset];
    }
}

/* Gradients of declared arrays in a launch. Kernels add to them from many places: in float32, without an order, or, if
 * the problem is deterministic, as integers that hold the sum exactly, in the workspace. What a single pair of query
 * and key writes is stored. */
#include "object.h"

#include <string.h>

#define MAX_EXTENT ((int64_t)1 << 60) /* elements between the first and the last of a gradient */

/* False: the extent leaves MAX_EXTENT, or there is none, `*dim` being at fault. */
static bool extent_of(const fk_array_list *arrays, int index, const fk_args *args, int64_t *extent, int *dim) {
    *extent = 1;
    for (int d = 0; d < arrays->decl[index].rank; d++) {
        const int64_t stride = args->array_grad[index].stride[d];
        int64_t span;
        *dim = d;
        const int64_t size = fk_array_size(arrays, index, args, d);
        if (stride < 0 || size < 1) return false;
        if (__builtin_mul_overflow(stride, size - 1, &span) || span > MAX_EXTENT - *extent) return false;
        *extent += span;
    }
    return true;
}

fk_status fk_array_grad_check(const fk_array_list *arrays, int index, const fk_args *args, uintptr_t *begin,
                              uintptr_t *end, fk_error *err) {
    const fk_array_grad *grad = &args->array_grad[index];
    const char *name = arrays->decl[index].name;
    int64_t extent;
    int d;
    if (!grad->data) return fk_fail(err, FK_BAD_ARGUMENT, "array_grad[%d] (%s) is null", index, name);
    if ((uintptr_t)grad->data % 4)
        return fk_fail(err, FK_BAD_ARGUMENT, "array_grad[%d] (%s) is at %p; it must be aligned to 4 bytes", index, name,
                       (void *)grad->data);
    if (!extent_of(arrays, index, args, &extent, &d))
        return fk_fail(
            err, FK_BAD_ARGUMENT,
            "array_grad[%d].stride[%d] (%s) is %lld for %lld entries; it must be at least 0, and an array may "
            "span 2^60 elements",
            index, d, name, (long long)grad->stride[d], (long long)fk_array_size(arrays, index, args, d));
    *begin = (uintptr_t)grad->data;
    if (__builtin_add_overflow(*begin, (uintptr_t)extent * 4, end))
        return fk_fail(err, FK_BAD_ARGUMENT,
                       "array_grad[%d] (%s) at %p spans %lld elements; it must end within the address space", index,
                       name, (void *)grad->data, (long long)extent);
    return FK_OK;
}

/* Has every pair of query and key an element of its own? Each dimension must step over all smaller ones. One of a
 * single batch entry or head has no steps; of queries or keys a stride of 0 has kernels sum, however many there are. */
static bool elements_are_apart(const fk_array_list *arrays, int index, const fk_args *args) {
    const int64_t *stride = args->array_grad[index].stride;
    const int rank = arrays->decl[index].rank;
    for (int d = 0; d < rank; d++) {
        int64_t smaller = 1;
        const int32_t dim = arrays->decl[index].dim[d];
        if ((dim == FK_DIM_BATCH || dim == FK_DIM_HEADS_Q) && fk_array_size(arrays, index, args, d) == 1) continue;
        for (int e = 0; e < rank; e++)
            if (e != d && (stride[e] < stride[d] || (stride[e] == stride[d] && e < d)))
                smaller += stride[e] * (fk_array_size(arrays, index, args, e) - 1);
        if (stride[d] < smaller) return false;
    }
    return true;
}

/* Is it stored? */
static bool is_once(const fk_kernel *kernel, const fk_args *args, int index) {
    return (kernel->once >> index & 1) && elements_are_apart(&kernel->arrays, index, args);
}

/* Not every element is sure to be written. */
static bool is_cleared(const fk_kernel *kernel, const fk_args *args, int index) {
    const fk_problem *p = &kernel->problem;
    return !is_once(kernel, args, index) || p->num_masks > 0 || p->packed || p->seqused_k;
}

int64_t fk_array_grad_words(const fk_kernel *kernel, const fk_args *args, int index) {
    int64_t extent;
    int d;
    if (!(kernel->grad >> index & 1) || !kernel->problem.deterministic) return 0;
    if (!extent_of(&kernel->arrays, index, args, &extent, &d)) return INT64_MAX;
    if (is_once(kernel, args, index)) return 0;
    return extent > INT64_MAX / FK_EXACT_WORDS ? INT64_MAX : extent * FK_EXACT_WORDS;
}

void fk_array_grads_fill(const fk_kernel *kernel, const fk_args *args, uint64_t *const exact[FK_MAX_ARRAYS],
                         fk_array_grad_param out[FK_MAX_ARRAYS]) {
    for (int i = 0; i < kernel->arrays.count; i++) {
        if (!(kernel->grad >> i & 1)) continue;
        const fk_array_grad *grad = &args->array_grad[i];
        const bool once = is_once(kernel, args, i);
        out[i] = (fk_array_grad_param){.data = grad->data, .exact = once ? NULL : exact[i], .once = once};
        out[i].clear = is_cleared(kernel, args, i);
        out[i].boxed = fk_array_boxes(&kernel->arrays, i, args, grad->data, grad->stride, sizeof(float));
        /* TMA writes 16 bytes at a time: where a row ends within these, what lies behind is the caller's. */
        if (fk_array_size(&kernel->arrays, i, args, kernel->arrays.decl[i].rank - 1) % 4) out[i].boxed = 0;
        /* Rows of stride 0 are summed, also where there is but one. */
        for (int d = 0; d < kernel->arrays.decl[i].rank; d++)
            if (kernel->arrays.decl[i].dim[d] == FK_DIM_SEQLEN_Q && !grad->stride[d]) out[i].boxed = 0;
        memcpy(out[i].stride, grad->stride, sizeof grad->stride);
        for (int d = 0; d < kernel->arrays.decl[i].rank; d++)
            out[i].size[d] = grad->stride[d] ? (int32_t)fk_array_size(&kernel->arrays, i, args, d) : 1;
    }
}

int64_t fk_array_grad_rows(const fk_kernel *kernel, const fk_args *args) {
    int64_t most = 0;
    for (int i = 0; i < kernel->arrays.count; i++) {
        int64_t rows = 1;
        if (!(kernel->grad >> i & 1) || !is_cleared(kernel, args, i)) continue;
        for (int d = 0; d < kernel->arrays.decl[i].rank - 1; d++)
            if (args->array_grad[i].stride[d] && rows < INT32_MAX) rows *= fk_array_size(&kernel->arrays, i, args, d);
        if (rows > most) most = rows;
    }
    return most;
}

/* An array whose tiles a kernel copies by TMA wants rows that begin at multiples of 16 bytes: those of 577 keys of 16
 * bits do not. Threads can read them one element after another, which takes a visit two or three times as long; so
 * where that would cost more, a kernel before copies the rows into the workspace (templates/piece/align.cu), each once
 * however often it repeats. */
#include "object.h"

#include <math.h>

/* Clocks of an SM by which a pair of query and key takes longer where threads read the array, and where two elements of
 * 16 bits share a word, measured on an H200; those that the copy takes besides its bytes, and its share of HBM's rate.
 */
#define READ_CLOCKS 0.5
#define READ_CLOCKS_WORDS 0.3
#define COPY_CLOCKS 4000.0
#define COPY_SHARE 0.75
#define ROW_BYTES 32 /* rows of whole sectors are written faster than those of 16 bytes */
#define CTAS_PER_SM 8
#define ROWS_OF_CTA 8

/* Do two neighbours of 16 bits share a word in each row, as threads read them then? */
static bool are_words(const fk_kernel *kernel, const fk_args *a, int index) {
    const fk_array_decl *decl = &kernel->arrays.decl[index];
    const fk_array *array = &a->array[index];
    int64_t odd = a->seqlen_k | ((int64_t)(uintptr_t)array->data / 2);
    for (int d = 0; d < decl->rank - 1; d++)
        odd |= array->stride[d];
    return fk_array_element_bytes(decl) == 2 && !(odd & 1) && array->stride[decl->rank - 1] == 1;
}

/* Pairs of the SM that has most: at least a tile's, where it has no parts. */
static double pairs_of_sm(const fk_kernel *kernel, const fk_args *a) {
    const fk_plan_info *plan = &kernel->info.plan;
    const bool backward = kernel->problem.op == FK_BACKWARD;
    const double seqlen_q = (double)a->seqlen_q, seqlen_k = (double)a->seqlen_k;
    const double pairs = (double)a->batch * (double)a->num_heads_q * seqlen_q * seqlen_k;
    const double tile = backward ? fmin(seqlen_k, plan->block_n) * seqlen_q : fmin(seqlen_q, plan->block_m) * seqlen_k;
    return fmax(pairs / kernel->context->runs.num_sms, plan->parts ? 0 : tile);
}

static bool pays(const fk_kernel *kernel, const fk_args *a, int index, double bytes) {
    const fk_device_info *device = &kernel->context->runs;
    const double pairs = pairs_of_sm(kernel, a);
    const double seen = kernel->problem.num_masks ? pairs / 2 : pairs; /* as of a causal one */
    const double copying = COPY_CLOCKS + 2 * bytes * device->clock_ghz / (COPY_SHARE * device->hbm_gbps);
    return seen * (are_words(kernel, a, index) ? READ_CLOCKS_WORDS : READ_CLOCKS) > copying;
}

void fk_aligned_lay_out(const fk_kernel *kernel, const fk_args *a, fk_aligned *out) {
    const int index = kernel->staged - 1;
    *out = (fk_aligned){.rows = 0};
    if (index < 0) return;
    const fk_array_decl *decl = &kernel->arrays.decl[index];
    const int64_t *stride = a->array[index].stride;
    const int bytes = fk_array_element_bytes(decl), chunk = ROW_BYTES / bytes, last = decl->rank - 1;
    if (fk_array_boxes(&kernel->arrays, index, a, a->array[index].data, stride, bytes)) return;
    const int64_t pitch = (fk_array_size(&kernel->arrays, index, a, last) + chunk - 1) / chunk * chunk;
    int64_t rows = 1;
    for (int d = last - 1; d >= 0; d--) {
        const int64_t size = fk_array_size(&kernel->arrays, index, a, d);
        if (decl->dim[d] == FK_DIM_SEQLEN_Q && size > 1 && !stride[d])
            return; /* one row for all queries has no tiles */
        out->stride[d] = stride[d] ? rows * pitch : 0;
        if (stride[d] && __builtin_mul_overflow(rows, size, &rows)) return;
        if (rows > INT32_MAX / 2) return; /* an int in the kernel, which goes on by all warps of the grid */
    }
    out->stride[last] = 1;
    if (!pays(kernel, a, index, (double)rows * (double)pitch * bytes)) return;
    out->rows = rows;
    out->pitch = pitch;
    out->bytes = fk_whole_parts((size_t)(rows * pitch) * (size_t)bytes); /* 2^30 x 2^31 elements at most */
}

size_t fk_with_aligned(const fk_kernel *kernel, const fk_args *a, size_t bytes) {
    fk_aligned aligned;
    fk_aligned_lay_out(kernel, a, &aligned);
    return aligned.bytes ? fk_whole_parts(bytes) + aligned.bytes : bytes;
}

fk_grid fk_aligned_grid(const fk_kernel *kernel, const fk_args *a) {
    fk_aligned aligned;
    fk_aligned_lay_out(kernel, a, &aligned);
    const int64_t ctas = (aligned.rows + ROWS_OF_CTA - 1) / ROWS_OF_CTA;
    const int64_t most = (int64_t)kernel->context->runs.num_sms * CTAS_PER_SM;
    return (fk_grid){(uint32_t)(ctas < most ? ctas : most), 1, 1};
}

void fk_aligned_fill(const fk_kernel *kernel, const fk_args *a, const fk_workspace *workspace, size_t offset,
                     fk_array_param array[FK_MAX_ARRAYS], fk_grid grids[FK_MAX_KERNELS]) {
    fk_aligned aligned;
    fk_aligned_lay_out(kernel, a, &aligned);
    if (!aligned.bytes) return;
    offset = fk_whole_parts(offset);
    const bool fits = workspace->data && workspace->bytes >= offset + aligned.bytes;
    fk_array_param *const staged = &array[kernel->staged - 1];
    if (fits) {
        staged->copy = (char *)workspace->data + offset;
        staged->copy_pitch = (int32_t)aligned.pitch;
        staged->boxed = 1;
    }
    for (int i = 0; i < kernel->num_launches && !fits; i++)
        if (kernel->launch[i].grid == FK_GRID_ALIGN) grids[i].x = 0;
}

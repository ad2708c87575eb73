#include "pages.h"
#include "half.h"

#include <stdlib.h>
#include <string.h>

#define SPARE_PAGES 3 /* that no sequence uses */

/* Rows of k before sequence b, and how many it has. */
static int64_t rows_of(const fk_args *a, const fk_problem *p, int64_t b, int64_t *first) {
    *first = p->packed ? a->cu_seqlens_k[b] : b * a->seqlen_k;
    return p->packed ? a->cu_seqlens_k[b + 1] - *first : a->seqlen_k;
}

static int64_t pages_for(int64_t rows, int64_t page_size) {
    return (rows + page_size - 1) / page_size;
}

/* The table, and how many pages there are; entries that are not there name no page. */
static cli_exit make_table(const fk_args *a, const fk_problem *p, int64_t page_size, uint64_t seed, pages *out,
                           int64_t *num_pages) {
    const int64_t width = pages_for(a->seqlen_k, page_size), entries = a->batch * width;
    int64_t used = 0, first;
    if (entries + SPARE_PAGES > INT32_MAX)
        return cli_fail(CLI_BAD_INPUT, "--page-size is %lld, which makes %lld pages; 2^31 - 4 is the limit",
                        (long long)page_size, (long long)entries);
    out->bytes = (size_t)entries * sizeof *out->table;
    out->table = malloc(out->bytes);
    int32_t *order = malloc((size_t)(entries + SPARE_PAGES) * sizeof *order);
    if (!out->table || !order) {
        free(order);
        return cli_fail(CLI_FAILED, "no memory for a page table of %lld entries", (long long)entries);
    }
    for (int64_t b = 0; b < a->batch; b++)
        used += pages_for(rows_of(a, p, b, &first), page_size);
    *num_pages = used + SPARE_PAGES;
    for (int64_t i = 0; i < *num_pages; i++) { /* Fisher-Yates from the front */
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const int64_t j = (int64_t)((seed >> 33) % (uint64_t)(i + 1));
        order[i] = order[j];
        order[j] = (int32_t)i;
    }
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t i = 0, count = pages_for(rows_of(a, p, b, &first), page_size); i < width; i++)
            out->table[b * width + i] = i < count ? order[--used] : INT32_MIN;
    free(order);
    return CLI_OK;
}

/* One of k and v, contiguous in its layout, becomes [page, row, head] or [page, head, row]. */
static cli_exit cut(tensors *t, tensor which, const fk_problem *p, int64_t dim, int64_t stride[3], const pages *from) {
    fk_args *a = &t->args;
    const int64_t size = a->page_size, heads = a->num_heads_kv, page_elements = size * heads * dim;
    const size_t element = element_bytes(kv_dtype(p)), bytes = (size_t)(a->num_pages * page_elements) * element;
    char *out = malloc(bytes);
    if (!out) return cli_fail(CLI_FAILED, "no memory for pages of %zu bytes", bytes);
    memset(out, 0xff, bytes);
    const char *in = t->data[which];
    const int64_t to[3] = {page_elements, t->layout == FK_BSHD ? heads * dim : dim,
                           t->layout == FK_BSHD ? dim : size * dim};
    for (int64_t b = 0; b < a->batch; b++) {
        int64_t first;
        const int64_t rows = rows_of(a, p, b, &first);
        for (int64_t row = 0; row < rows; row++)
            for (int64_t h = 0; h < heads; h++) {
                const int64_t page = from->table[b * a->page_table_stride + row / size];
                const int64_t source =
                    (p->packed ? first * stride[1] : b * stride[0]) + row * stride[1] + h * stride[2];
                const int64_t target = page * to[0] + row % size * to[1] + h * to[2];
                memcpy(out + element * (size_t)target, in + element * (size_t)source, element * (size_t)dim);
            }
    }
    free(t->data[which]);
    t->data[which] = out;
    t->bytes[which] = bytes;
    memcpy(stride, to, sizeof to);
    return CLI_OK;
}

cli_exit pages_cut(tensors *t, const fk_problem *problem, int64_t page_size, uint64_t seed, pages *out) {
    fk_args *a = &t->args;
    if (!problem->paged) return CLI_OK;
    if (!page_size) page_size = 64;
    pages p = {.table = NULL};
    cli_exit code = make_table(a, problem, page_size, seed, &p, &a->num_pages);
    a->page_size = page_size;
    a->page_table_stride = pages_for(a->seqlen_k, page_size);
    a->page_table = p.table;
    if (code == CLI_OK) code = cut(t, TENSOR_K, problem, problem->head_dim, a->k_stride, &p);
    if (code == CLI_OK) code = cut(t, TENSOR_V, problem, problem->head_dim_v, a->v_stride, &p);
    tensors_point(a, t->data, t->count);
    if (code == CLI_OK)
        *out = p;
    else
        pages_free(&p, NULL);
    return code;
}

fk_status pages_upload(pages *p, fk_context *context, fk_args *args) {
    if (!p->table) return FK_OK;
    fk_status status = fk_device_malloc(context, p->bytes, &p->device);
    if (status == FK_OK) status = fk_copy_to_device(context, p->device, p->table, p->bytes);
    args->page_table = p->device;
    return status;
}

void pages_free(pages *p, fk_context *context) {
    free(p->table);
    if (context) fk_device_free(context, p->device);
    *p = (pages){.table = NULL};
}

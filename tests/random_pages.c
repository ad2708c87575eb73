#include "random_pages.h"

#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static int64_t pages_for(int64_t rows, int64_t page_size) {
    return (rows + page_size - 1) / page_size;
}

/* Keys of sequence b that are used. */
static int64_t used_keys(const drawn *d, int64_t b) {
    const int64_t length = d->packed ? d->cu_k[b + 1] - d->cu_k[b] : d->args.seqlen_k;
    if (!d->seqused_k || d->used_k[b] >= length) return length;
    return d->used_k[b] > 0 ? d->used_k[b] : 0;
}

int64_t table_entries(const drawn *d) {
    return (d->args.batch - 1) * d->args.page_table_stride + pages_for(d->args.seqlen_k, d->args.page_size);
}

int32_t draw_page_rows(uint64_t seed) {
    static const int32_t rows[] = {1, 1, 8, 16, 16, 32, 64, 128};
    rng r = {seed * 0xaf251af3b0f025b5u};
    return rows[rng_range(&r, 0, COUNT(rows) - 1)];
}

static int64_t draw_page_size(rng *r, const fk_args *a, int64_t unit) {
    static const int common[] = {1, 2, 3, 16, 16, 17, 64, 128, 256};
    int64_t size = rng_chance(r, 70) ? common[rng_range(r, 0, COUNT(common) - 1)] : rng_range(r, 1, 300);
    if (a->batch > 8 && size > 32) size = 32; /* mostly empty pages are memory for nothing */
    while (a->batch * (pages_for(a->seqlen_k, size) + 5) > MAX_TABLE)
        size = 2 * size + 1;
    return pages_for(size, unit) * unit;
}

void draw_pages(rng *r, drawn *out) {
    static const int32_t garbage[] = {-1, INT32_MIN, INT32_MAX};
    fk_args *a = &out->args;
    int32_t order[MAX_TABLE];
    a->page_size = draw_page_size(r, a, out->paged);
    a->page_table_stride = pages_for(a->seqlen_k, a->page_size) + (rng_chance(r, 30) ? rng_range(r, 1, 5) : 0);
    int64_t used = 0;
    for (int64_t b = 0; b < a->batch; b++)
        used += pages_for(used_keys(out, b), a->page_size);
    a->num_pages = used + (used == 0 || rng_chance(r, 50) ? rng_range(r, 1, 5) : 0);
    if (a->num_pages > MAX_TABLE) a->num_pages = MAX_TABLE;
    for (int64_t i = 0; i < a->num_pages; i++) { /* Fisher-Yates from the front */
        const int64_t j = rng_range(r, 0, i);
        order[i] = order[j];
        order[j] = (int32_t)i;
    }
    memset(out->page_rows, 0, sizeof out->page_rows);
    for (int64_t i = 0; i < (int64_t)COUNT(out->table); i++)
        out->table[i] = garbage[i % (int64_t)COUNT(garbage)];
    for (int64_t b = 0, next = 0; b < a->batch; b++)
        for (int64_t keys = used_keys(out, b), i = 0; i < pages_for(keys, a->page_size); i++) {
            const int64_t rest = keys - i * a->page_size, rows = rest < a->page_size ? rest : a->page_size;
            const int32_t page = next > 0 && rng_chance(r, 5) ? order[rng_range(r, 0, next - 1)] : order[next++];
            out->table[b * a->page_table_stride + i] = page;
            if (out->page_rows[page] < rows) out->page_rows[page] = (int32_t)rows;
        }
    a->page_table = out->table;
}

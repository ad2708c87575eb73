#include "random_sequences.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

static int64_t draw_length(rng *r, int64_t longest) {
    static const int special[] = {0, 0, 1, 2, 3, 15, 16, 31, 34, 63, 64, 68, 128, 132};
    return rng_chance(r, 70) ? special[rng_range(r, 0, COUNT(special) - 1)] : rng_range(r, 1, longest);
}

/* Rows that belong to no sequence may stand before the first and behind the last. Returns the longest length. */
static int64_t place(rng *r, const int64_t *length, int64_t count, int32_t *cu, int64_t *total) {
    int64_t at = rng_chance(r, 15) ? rng_range(r, 1, rng_chance(r, 50) ? 40 : 300) : 0, longest = 1;
    for (int64_t b = 0; b < count; b++) {
        cu[b] = (int32_t)at;
        at += length[b];
        longest = length[b] > longest ? length[b] : longest;
    }
    cu[count] = (int32_t)at;
    *total = at + (rng_chance(r, 15) || at == 0 ? rng_range(r, 1, 40) : 0);
    return longest;
}

void draw_packed(rng *r, int64_t longest, int64_t budget, int64_t dims, drawn *out) {
    fk_args *a = &out->args;
    int64_t q[MAX_SEQUENCES], k[MAX_SEQUENCES], pairs = 0;
    a->batch = rng_chance(r, 10) ? rng_range(r, 33, MAX_SEQUENCES) : rng_range(r, 1, 9);
    const bool same = rng_chance(r, 40);
    for (int64_t b = 0; b < a->batch; b++) {
        q[b] = draw_length(r, longest);
        k[b] = same ? q[b] : draw_length(r, longest);
        if (a->num_heads_q * (pairs + q[b] * k[b]) * dims > budget) q[b] = k[b] = b % 3;
        pairs += q[b] * k[b];
    }
    a->seqlen_q = place(r, q, a->batch, out->cu_q, &a->total_q);
    a->seqlen_k = place(r, k, a->batch, out->cu_k, &a->total_k);
    if (rng_chance(r, 30)) a->seqlen_q += rng_range(r, 1, 200); /* the longest there could be */
    if (rng_chance(r, 30)) a->seqlen_k += rng_range(r, 1, 200);
    a->cu_seqlens_q = out->cu_q;
    a->cu_seqlens_k = out->cu_k;
}

void draw_used(rng *r, drawn *out) {
    fk_args *a = &out->args;
    for (int64_t b = 0; b < a->batch; b++) {
        const int64_t length = out->packed ? out->cu_k[b + 1] - out->cu_k[b] : a->seqlen_k;
        const int64_t kind = rng_range(r, 0, 9);
        out->used_k[b] = (int32_t)(kind == 0   ? 0
                                   : kind == 1 ? length
                                   : kind == 2 ? length + 9
                                   : kind == 3 ? -3
                                               : rng_range(r, 0, length));
    }
    a->seqused_k = out->used_k;
}

/* In a packed tensor, the sequence of a row; -1: none. */
static int64_t sequence_of(const int32_t *cu, int64_t batch, int64_t row) {
    for (int64_t b = 0; b < batch; b++)
        if (row >= cu[b] && row < cu[b + 1]) return b;
    return -1;
}

bool row_exists(const drawn *d, int tensor, int64_t b, int64_t s, bool used) {
    if (d->paged && (tensor == K || tensor == V)) return s < d->page_rows[b];
    const bool keys = tensor == K || tensor == V || tensor == DK || tensor == DV;
    if (d->packed) {
        const int32_t *cu = keys ? d->cu_k : d->cu_q;
        b = sequence_of(cu, d->args.batch, s);
        if (b < 0) return false;
        s -= cu[b];
    }
    return !(keys && used && d->seqused_k) || s < d->used_k[b];
}

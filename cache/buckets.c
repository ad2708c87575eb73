/* Which shapes share a record: a table of edges for each axis, which is data (cache/tuned/buckets.json). */
#include "json.h"
#include "tuning.h"

#include <math.h>
#include <stdio.h>

bool fk_buckets_read(const char *text, size_t size, fk_buckets *out) {
    static const char *const names[FK_BUCKET_AXES] = {"seqlen_q", "seqlen_k", "heads"};
    fk_json_field fields[FK_BUCKET_AXES];
    while (size > 0 && text[size - 1] == '\n')
        size--;
    for (int i = 0; i < FK_BUCKET_AXES; i++)
        fields[i] = (fk_json_field){names[i], FK_JSON_NUMBERS, out->edge[i], FK_BUCKET_EDGES, true};
    if (!fk_json_read(text, size, fields, FK_BUCKET_AXES)) return false;
    for (int i = 0; i < FK_BUCKET_AXES; i++) {
        int n = 0;
        for (; n < FK_BUCKET_EDGES && !isnan(out->edge[i][n]); n++)
            if (out->edge[i][n] < 1 || out->edge[i][n] > FK_MAX_SEQLEN ||
                (n > 0 && out->edge[i][n] <= out->edge[i][n - 1]))
                return false;
        if (n == 0) return false;
        out->count[i] = n;
    }
    return true;
}

fk_bucket fk_bucket_of(const fk_buckets *buckets, const fk_shape *shape) {
    const double value[FK_BUCKET_AXES] = {(double)shape->seqlen_q, (double)shape->seqlen_k,
                                          (double)shape->batch * (double)shape->num_heads_q};
    fk_bucket out;
    for (int i = 0; i < FK_BUCKET_AXES; i++) {
        const double *edge = buckets->edge[i];
        int at = 0;
        while (at + 1 < buckets->count[i] && value[i] * value[i] >= edge[at] * edge[at + 1])
            at++;
        out.index[i] = at;
    }
    return out;
}

bool fk_bucket_equal(const fk_bucket *a, const fk_bucket *b) {
    for (int i = 0; i < FK_BUCKET_AXES; i++)
        if (a->index[i] != b->index[i]) return false;
    return true;
}

void fk_bucket_spell(const fk_buckets *buckets, const fk_bucket *bucket, char out[FK_BUCKET_TEXT]) {
    snprintf(out, FK_BUCKET_TEXT, "q%.0f k%.0f h%.0f", buckets->edge[0][bucket->index[0]],
             buckets->edge[1][bucket->index[1]], buckets->edge[2][bucket->index[2]]);
}

#include "random_terms.h"
#include "random_element.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---- words -------------------------------------------------------------------------------------------- */

/* $ is a run-time value. Each built-in file has a row. */
typedef struct term_row {
    const char *text;
    int lo, hi;
} term_row;

static const term_row scores[] = {
    {"softcap($)", 1, 60},
    {"softcap($)", 100000, 100000000}, /* all but none */
    {"score=\"2.0 * (0.5 * s - 0.05 * abs(q - k))\"", 0, 0},
    {"alibi", 0, 0},
    {"bias", 0, 0},
    {"array=bias:bf16[b][h][q][k] bias", 0, 0},
    {"array=near:fp16[h][q][k] score=\"s + near[h][q][k]\"", 0, 0},
    {"array=table:fp16[h][] relative($)", 0, 60},
    {"relative($)", 0, 60},
    {"sink", 0, 0},
    {"score=\"0.5 * s\"", 0, 0},
    {"array=slope:float[h] score=\"s + 0.1 * tanh(s) - abs(q - k) * slope[h]\"", 0, 0},
    {"array=temp:float[b][h] score=\"s * temp[b][h]\"", 0, 0},
    {"array=w:float[h][] score=\"q < k ? s : s - 0.25 * w[h][abs(q - k) - 3]\"", 0, 0}, /* indices outside, too */
    {"array=u:float[q] array=v:float[k] score=\"s + u[q] * v[k]\"", 0, 0},
    {"array=x:bf16[q] array=y:fp16[k] score=\"s + x[q] * y[k]\"", 0, 0},
    {"score=\"max(s, -4) - log(1 + exp(-abs(s)))\"", 0, 0},
    {"array=id:int[b][k] score=\"s + 0.5 * (id[b][k] + (h + q) % 3)\"", 0, 0},
};

static const term_row masks[] = {
    {"prefix", 0, 0},
    {"chunked($)", 1, 90},
    {"dilated($)", 1, 6},
    {"document", 0, 0},
    {"document causal", 0, 0},
    {"key_padding", 0, 0},
    {"left_padding", 0, 0},
    {"bits", 0, 0},
    {"array=id:int[b][k] keep=\"id[b][k] != 1\"", 0, 0},
    {"array=seg:int[] keep=\"seg[q / 7] <= seg[k / 7 - 1]\"", 0, 0},
    {"array=block:int[h][][] keep=\"block[h][q / 16][k / 16] % 2 == 0\"", 0, 0},
    {"array=x:bf16[q] array=y:fp16[k] keep=\"x[q] > y[k] - 1 || k < 9\"", 0, 0},
    {"array=u:float[q] keep=\"u[q] > -1.5 || k < 9\"", 0, 0},
    {"array=v:float[k] array=id:int[b][k] array=u:float[q] keep=\"v[k] < 1 && u[q] > id[b][k] - 2 || k == q\"", 0, 0},
};

/* Patterns over blocks: a row for each file. # is the size of the blocks, which belongs to the kernel, as $ does here.
 */
static const term_row patterns[] = {
    {"butterfly(#)", 0, 0},
    {"butterfly(#,4,$)", 0, 2},
    {"bigbird(#,1,$)", 0, 1},
    {"bigbird(#,0,0,2,$)", 0, 9},
    {"longformer(#,$,2,1)", 1, 3},
    {"longformer(#,1073741824,2)", 0, 0},
    {"blocks(#)=\"float(i) * 0.75 >= float(j)\"", 0, 0},
    {"strided(#,$)", 2, 5},
    {"fixed(#,$)", 2, 5},
    {"local(#,$)", 0, 3},
    {"block_diagonal(#)", 0, 0},
    {"a_shape(#,1,$)", 1, 3},
    {"block_bits(#)", 0, 0},
    {"blocks(#)=\"h % 2 == 0 ? i - j < $ && i >= j : (i + j) % 3 == 0\"", 1, 4},
    {"array=reach:int[h] blocks(#)=\"abs(i - j) <= reach[h]\"", 0, 0},
};

static void append_row(const term_row *row, rng *values, char *spelling) {
    char *at = spelling + strlen(spelling);
    *at++ = ' ';
    for (const char *c = row->text; *c; c++) {
        if (*c == '$')
            at += sprintf(at, "%d", (int)rng_range(values, row->lo, row->hi));
        else
            *at++ = *c;
    }
    *at = 0;
}

void draw_scores(rng *kernel, rng *values, char *spelling) {
    const int64_t most = rng_chance(kernel, 30) ? 3 : 1;
    for (int64_t i = 0; i < most; i++)
        append_row(&scores[rng_range(kernel, 0, COUNT(scores) - 1)], values, spelling);
}

static void append_blocks(rng *kernel, char *spelling) {
    static const int sizes[] = {16, 32, 64, 64, 128, 128, 256};
    const int rows =
        rng_chance(kernel, 80) ? sizes[rng_range(kernel, 0, COUNT(sizes) - 1)] : (int)rng_range(kernel, 1, 200);
    sprintf(spelling + strlen(spelling), "%d", rows);
    if (rng_chance(kernel, 25))
        sprintf(spelling + strlen(spelling), "x%d", sizes[rng_range(kernel, 0, COUNT(sizes) - 1)]);
}

void draw_pattern(rng *kernel, char *spelling) {
    const term_row *row = &patterns[rng_range(kernel, 0, COUNT(patterns) - 1)];
    const char *hole = strchr(row->text, '#');
    char text[FK_MAX_EXPR];
    snprintf(text, sizeof text, "%.*s", (int)(hole - row->text), row->text);
    append_blocks(kernel, text);
    snprintf(text + strlen(text), sizeof text - strlen(text), "%s", hole + 1);
    append_row(&(term_row){text, row->lo, row->hi}, kernel, spelling);
}

void draw_array_masks(rng *kernel, rng *values, char *spelling) {
    append_row(&masks[rng_range(kernel, 0, COUNT(masks) - 1)], values, spelling);
    const size_t used = strlen(spelling);
    fk_problem p;
    if (rng_chance(kernel, 20)) append_row(&masks[rng_range(kernel, 0, COUNT(masks) - 3)], values, spelling);
    if (fk_problem_parse(spelling, &p) && strstr(fk_last_error(), "more than 4 masks")) spelling[used] = 0;
}

/* ---- data --------------------------------------------------------------------------------------------- */

/* What an array of a name holds: ints of lo .. hi; floats are normal, `lo` and `hi` times a tenth their mean and
 * spread. */
static const struct {
    const char *name;
    int lo, hi;
} contents[] = {{"slope", 1, 1}, {"temp", 10, 2},    {"bias", 0, 20},  {"table", 0, 20}, {"sink", 0, 30},
                {"w", 0, 10},    {"u", 0, 10},       {"v", 0, 10},     {"x", 0, 10},     {"y", 0, 10},
                {"near", 0, 20}, {"bucket", -2, 40}, {"id", 0, 3},     {"seg", 0, 4},    {"block", 0, 5},
                {"reach", 0, 3}, {"first", -2, 0},   {"length", 0, 3}, {"prefix", 0, 1}};

static double range_end(const char *name, bool high, int64_t seqlen_k) {
    for (size_t i = 0; i < COUNT(contents); i++) {
        if (strcmp(contents[i].name, name) != 0) continue;
        const bool is_key = !strcmp(name, "first") || !strcmp(name, "length") || !strcmp(name, "prefix");
        return high ? contents[i].hi + (is_key ? (double)seqlen_k : 0) : contents[i].lo;
    }
    return 0;
}

static float draw_float(rng *r, const char *name, int64_t seqlen_k) {
    if ((strcmp(name, "bias") == 0 || strcmp(name, "near") == 0) && rng_chance(r, 3))
        return -INFINITY; /* as some masks are given */
    return (float)((range_end(name, false, seqlen_k) + range_end(name, true, seqlen_k) * rng_normal(r)) / 10);
}

static int32_t draw_int(rng *r, const char *name, int64_t seqlen_k) {
    if (strcmp(name, "bits") == 0 || strcmp(name, "block_bits") == 0) {
        const int64_t kind = rng_range(r, 0, 3);
        return kind == 0 ? 0 : kind == 1 ? -1 : (int32_t)(uint32_t)rng_next(r);
    }
    return (int32_t)rng_range(r, (int64_t)range_end(name, false, seqlen_k), (int64_t)range_end(name, true, seqlen_k));
}

/* Of row `row` of a mask's bits, word i: tiles of 64 queries and 128 keys are empty, whole, mixed, or show a key now
 * and then, so that some queries see one alone. */
static int32_t draw_bits(rng *r, uint64_t tiles, int64_t row, int64_t i) {
    rng tile = {tiles + (uint64_t)(row / 64) * 1000003 + (uint64_t)(i / 4)};
    switch (rng_range(&tile, 0, 3)) {
    case 0:
        return 0;
    case 1:
        return -1;
    case 2:
        return rng_chance(r, 4) ? (int32_t)(1u << rng_range(r, 0, 31)) : 0;
    default:
        return draw_int(r, "bits", 0);
    }
}

static int64_t dim_size(rng *r, const fk_args *a, int32_t dim) {
    return dim == FK_DIM_BATCH      ? a->batch
           : dim == FK_DIM_HEADS_Q  ? a->num_heads_q
           : dim == FK_DIM_SEQLEN_Q ? a->seqlen_q
           : dim == FK_DIM_SEQLEN_K ? a->seqlen_k
                                    : rng_range(r, 1, 40);
}

/* Of an array's floats. */
static fk_dtype dtype_of(const fk_array_decl *decl) {
    return decl->type == FK_FLOAT16 ? FK_FP16 : decl->type == FK_BFLOAT16 ? FK_BF16 : FK_FP32;
}

/* Rows along the last dimension; those of a sorted array never decrease. `tiles`: of a mask's bits, of row `query`;
 * else null. */
static void fill_row(rng *r, const fk_array_decl *decl, const fk_args *a, void *row, int64_t size, int64_t stride,
                     const uint64_t *tiles, int64_t query) {
    int32_t *ints = row;
    int32_t id = (int32_t)rng_range(r, 0, 2);
    const int percent = (int)rng_range(r, 0, 20);
    for (int64_t i = 0; i < size; i++) {
        if (decl->sorted) {
            id += rng_chance(r, percent);
            ints[i * stride] = id;
        } else if (tiles) {
            ints[i * stride] = draw_bits(r, *tiles, query, i);
        } else if (decl->type == FK_INT32) {
            ints[i * stride] = draw_int(r, decl->name, a->seqlen_k);
        } else {
            element_set(row, dtype_of(decl), i * stride, (double)draw_float(r, decl->name, a->seqlen_k));
        }
    }
}

bool draw_array(rng *r, const fk_array_decl *decl, const fk_args *args, fk_array *out, void **memory, size_t *bytes) {
    int64_t extent = 1, size[FK_MAX_RANK] = {1, 1, 1, 1};
    const int first = (int)rng_range(r, 0, decl->rank - 1); /* the innermost dimension; the others follow */
    for (int i = 0; i < decl->rank; i++) {
        const int d = (first + decl->rank - i) % decl->rank;
        size[d] = dim_size(r, args, decl->dim[d]);
        out->size[d] = size[d];
        const bool repeated =
            (rng_chance(r, 20) || extent * size[d] > MAX_ELEMENTS) && !(decl->sorted && d == decl->rank - 1);
        out->stride[d] = repeated ? 0 : extent;
        if (!repeated) extent *= size[d];
        if (rng_chance(r, 20)) extent += rng_range(r, 1, 3);
    }
    const int64_t offset = rng_chance(r, 30) ? rng_range(r, 1, 5) : 0;
    int64_t last = 0;
    for (int d = 0; d < decl->rank; d++)
        last += (size[d] - 1) * out->stride[d];
    const int64_t size_of_one = dtype_of(decl) == FK_FP32 ? 4 : 2;
    *bytes = (size_t)((offset + last + 1) * size_of_one);
    char *elements = malloc(*bytes);
    *memory = elements;
    if (!elements) return false;
    memset(elements, 0xff, *bytes);
    elements += offset * size_of_one;
    out->data = elements;
    int64_t own[FK_MAX_RANK] = {1, 1, 1, 1}; /* entries along a dimension, of which a repeated one has one */
    for (int d = 0; d < decl->rank; d++)
        own[d] = out->stride[d] ? size[d] : 1;
    const int d = decl->rank - 1;
    const bool in_tiles = strcmp(decl->name, "bits") == 0;
    const uint64_t tiles = in_tiles ? rng_next(r) : 0;
    for (int64_t i = 0; i < (d > 0 ? own[0] : 1); i++)
        for (int64_t j = 0; j < (d > 1 ? own[1] : 1); j++) {
            const uint64_t of_head = tiles + (uint64_t)(i * 31 + j) * 7919;
            for (int64_t k = 0; k < (d > 2 ? own[2] : 1); k++)
                fill_row(r, decl, args,
                         elements + size_of_one * ((d > 0 ? i * out->stride[0] : 0) + (d > 1 ? j * out->stride[1] : 0) +
                                                   (d > 2 ? k * out->stride[2] : 0)),
                         own[d], out->stride[d], in_tiles ? &of_head : NULL, k);
        }
    return true;
}

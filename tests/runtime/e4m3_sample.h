/* One problem of dtype e4m3 on the emulator, whose memory is the host's: inputs, a launch, and how far its result is
 * from float64 of what the inputs stand for.
 *
 * Limits. A weight is rounded to 3 bits of mantissa, by at most 2^-4 of itself, or where it is small by 2^-10, of a sum
 * of at least 2^5: no element errs by more than (2^-4 + keys 2^-15 + 2^-9) times the largest value that v stands for.
 * Such errors of many weights are independent, so that they make about 2^-5 of the result's norm at most, whatever a
 * row's weights are; a quarter more is allowed. Keys in another order, or a descale left out, change all of it. */
#ifndef FK_TESTS_E4M3_SAMPLE_H
#define FK_TESTS_E4M3_SAMPLE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gen/problem.h"
#include "launch.h"
#include "runtime/emulator/half.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BATCH = 3 };

typedef struct sample {
    const char *spelling;
    int64_t batch, num_heads_q, num_heads_kv, seqlen_q, seqlen_k; /* packed: the longest */
    double softmax_scale;                                         /* times 1 / sqrt(head_dim) */
    const char *descales; /* of q, k, v: '-' none, 'h' by head, 'b' by batch too */
} sample;

/* Of one run; host memory, which is the emulator's. */
typedef struct tensors {
    fk_problem p;
    fk_args args;
    uint8_t *in[3];
    uint16_t *o;
    float *lse, *descale[3], slope[8];
    int32_t cu_q[MAX_BATCH + 1], cu_k[MAX_BATCH + 1], used[MAX_BATCH];
    double *exact, *exact_lse;
    size_t rows, bytes[3];
} tensors;

static inline uint32_t next(uint32_t *seed) {
    return *seed = *seed * 1664525u + 1013904223u;
}

/* Nearly normal: the sum of four uniforms. */
static inline float draw(uint32_t *seed) {
    float x = 0;
    for (int j = 0; j < 4; j++)
        x += (float)(next(seed) >> 8) / 16777216.0f - 0.5f;
    return x * 1.7f;
}

static inline void *allocate(fk_context *context, size_t bytes) {
    void *memory = NULL;
    if (fk_device_malloc(context, bytes, &memory)) fail_msg("%s", fk_last_error());
    return memory;
}

static inline void set_lengths(const sample *s, tensors *t) {
    fk_args *a = &t->args;
    for (int64_t b = 0; b < a->batch; b++) {
        t->cu_q[b + 1] = t->cu_q[b] + (int32_t)(b == 1 ? s->seqlen_q / 3 : s->seqlen_q);
        t->cu_k[b + 1] = t->cu_k[b] + (int32_t)(b == 1 ? s->seqlen_k / 2 + 1 : s->seqlen_k);
        t->used[b] = (int32_t)(b == 1 ? 0 : s->seqlen_k * 2 / 3);
    }
    a->cu_seqlens_q = t->cu_q, a->cu_seqlens_k = t->cu_k, a->seqused_k = t->used;
    a->total_q = t->cu_q[a->batch], a->total_k = t->cu_k[a->batch];
}

static inline void set_descales(fk_context *context, const sample *s, tensors *t) {
    fk_args *a = &t->args;
    int64_t *const stride[3] = {a->q_descale_stride, a->k_descale_stride, a->v_descale_stride};
    const float **const to[3] = {&a->q_descale, &a->k_descale, &a->v_descale};
    uint32_t seed = 77;
    for (int i = 0; i < 3; i++) {
        const int64_t count = a->batch * a->num_heads_kv;
        if (s->descales[i] == '-') continue;
        t->descale[i] = allocate(context, (size_t)(2 * count) * sizeof(float));
        for (int64_t j = 0; j < 2 * count; j++)
            t->descale[i][j] = 0.5f + (float)(next(&seed) >> 24) / 128.0f;
        *to[i] = t->descale[i];
        stride[i][0] = s->descales[i] == 'b' ? 2 * a->num_heads_kv : 0;
        stride[i][1] = 2; /* as by the caller's strides, every second one */
    }
}

static inline tensors make(fk_context *context, const sample *s) {
    tensors t = {.args = FK_ARGS_INIT};
    fk_args *a = &t.args;
    uint32_t seed = 5;
    if (fk_problem_parse(s->spelling, &t.p)) fail_msg("%s", fk_last_error());
    a->batch = s->batch, a->num_heads_q = s->num_heads_q, a->num_heads_kv = s->num_heads_kv;
    a->seqlen_q = s->seqlen_q, a->seqlen_k = s->seqlen_k;
    set_lengths(s, &t);
    const int64_t rows_q = t.p.packed ? a->total_q : a->batch * a->seqlen_q;
    const int64_t rows_k = t.p.packed ? a->total_k : a->batch * a->seqlen_k;
    const int64_t elements[3] = {rows_q * a->num_heads_q * t.p.head_dim, rows_k * a->num_heads_kv * t.p.head_dim,
                                 rows_k * a->num_heads_kv * t.p.head_dim_v};
    for (int i = 0; i < 3; i++) {
        t.bytes[i] = (size_t)elements[i];
        t.in[i] = allocate(context, t.bytes[i]);
        for (int64_t j = 0; j < elements[i]; j++)
            t.in[i][j] = fk_e4m3_from_float(draw(&seed));
    }
    t.rows = (size_t)(rows_q * a->num_heads_q);
    const size_t o_elements = t.rows * (size_t)t.p.head_dim_v;
    t.o = allocate(context, o_elements * sizeof *t.o);
    t.lse = allocate(context, t.rows * sizeof *t.lse);
    t.exact = malloc(o_elements * sizeof *t.exact);
    t.exact_lse = malloc(t.rows * sizeof *t.exact_lse);
    assert_true(t.exact && t.exact_lse);
    assert_int_equal(fk_args_layout(&t.p, t.p.packed ? FK_BHSD : FK_BSHD, a), FK_OK);
    a->q = t.in[0], a->k = t.in[1], a->v = t.in[2], a->o = t.o, a->lse = t.lse;
    a->softmax_scale = (float)(s->softmax_scale / sqrt((double)t.p.head_dim));
    if (t.p.dropout) a->dropout_p = 0.25, a->dropout_seed = 3;
    for (int i = 0; i < 8; i++)
        t.slope[i] = 0.02f * (float)(i + 1);
    set_descales(context, s, &t);
    return t;
}

/* What the problem's arrays, which are slopes and sinks of heads, are; pointers into t, so that it must stay. */
static inline void point_arrays(tensors *t) {
    for (int i = 0; i < FK_MAX_ARRAYS; i++)
        t->args.array[i] = (fk_array){.data = t->slope, .stride = {1}};
    t->args.cu_seqlens_q = t->cu_q, t->args.cu_seqlens_k = t->cu_k, t->args.seqused_k = t->used;
}

static inline void release(fk_context *context, tensors *t) {
    for (int i = 0; i < 3; i++) {
        fk_device_free(context, t->in[i]);
        fk_device_free(context, t->descale[i]);
    }
    fk_device_free(context, t->o);
    fk_device_free(context, t->lse);
    free(t->exact);
    free(t->exact_lse);
}

static inline void refer(tensors *t) {
    if (fk_reference(&t->p, &t->args, FK_REFERENCE_F64, t->exact, t->exact_lse)) fail_msg("%s", fk_last_error());
}

/* Where element c of a row of the reference lies in o; row: as the reference counts them. */
static inline double got(const tensors *t, int64_t row, int64_t c) {
    const fk_args *a = &t->args;
    const int64_t length = t->p.packed ? a->total_q : a->seqlen_q;
    const int64_t i = row % length, h = row / length % a->num_heads_q, b = row / length / a->num_heads_q;
    return (double)fk_bf16_to_float(t->o[b * a->o_stride[0] + i * a->o_stride[1] + h * a->o_stride[2] + c]);
}

typedef struct errors {
    double largest, norm; /* norm: relative */
} errors;

static inline errors compare(const tensors *t) {
    errors e = {0, 0};
    double square = 1e-300;
    for (int64_t row = 0; row < (int64_t)t->rows; row++)
        for (int64_t c = 0; c < t->p.head_dim_v; c++) {
            const double want = t->exact[row * t->p.head_dim_v + c], off = fabs(got(t, row, c) - want);
            if (!isfinite(off)) fail_msg("row %d, column %d is %g, not %g", (int)row, (int)c, got(t, row, c), want);
            e.largest = fmax(e.largest, off);
            e.norm += off * off;
            square += want * want;
        }
    e.norm = sqrt(e.norm / square);
    return e;
}

static inline double largest_value(const tensors *t) {
    double largest = 0, by = 1;
    for (size_t i = 0; i < t->bytes[2]; i++)
        largest = fmax(largest, fabs((double)fk_e4m3_to_float(t->in[2][i])));
    for (int64_t i = 0; t->descale[2] && i < 2 * t->args.batch * t->args.num_heads_kv; i++)
        by = fmax(by, (double)t->descale[2][i]);
    return largest * by / (1 - t->args.dropout_p);
}

/* What tensor cores cut off of a score, a sum of products of 8 bits (docs/e4m3.md). */
static const double of_score = 0x1p-9;

static inline double lost_of_scores(const tensors *t) {
    double largest = 0;
    for (size_t row = 0; row < t->rows; row++)
        if (isfinite(t->exact_lse[row])) largest = fmax(largest, fabs(t->exact_lse[row]));
    return of_score * largest;
}

static inline double norm_limit(const tensors *t) {
    return (t->p.fast ? 0x1.9p-5 : 0x1.4p-5) + lost_of_scores(t);
}

/* What a weight is off by, and all those that are too small to count. */
static inline double lost_of_weights(const tensors *t) {
    return t->p.fast ? 0.086 + (double)t->args.seqlen_k * 0x1p-13 : 0x1p-4 + (double)t->args.seqlen_k * 0x1p-15;
}

static inline void check(const sample *s, const tensors *t) {
    const errors e = compare(t);
    const double limit = (lost_of_weights(t) + 0x1p-9 + lost_of_scores(t)) * largest_value(t);
    const double of_sums = fk_sums_by_products(&t->p) ? lost_of_weights(t) : 1e-3;
    print_message("%s, scale %g: error %.2e (limit %.2e), norm %.2e\n", s->spelling, s->softmax_scale, e.largest, limit,
                  e.norm);
    assert_true(e.largest <= limit);
    assert_true(e.norm <= norm_limit(t));
    for (size_t row = 0; row < t->rows; row++) {
        const double lse = (double)t->lse[row], want = t->exact_lse[row];
        if (isinf(want) ? lse != want : !(fabs(lse - want) <= of_sums + of_score * fabs(want)))
            fail_msg("%s: lse of row %d is %g, not %g", s->spelling, (int)row, lse, want);
    }
}

static inline fk_kernel *kernel_of(fk_context *context, const tensors *t) {
    fk_kernel *kernel;
    fk_kernel_info info;
    if (fk_kernel_create(context, &t->p, &kernel)) fail_msg("%s", fk_last_error());
    assert_int_equal(fk_kernel_describe(kernel, &info), FK_OK);
    assert_string_equal(info.plan.family, "wgmma");
    return kernel;
}

static inline void launch(fk_context *context, tensors *t) {
    fk_kernel *kernel = kernel_of(context, t);
    memset(t->o, 0xff, t->rows * (size_t)t->p.head_dim_v * sizeof *t->o);
    if (launch_once(context, kernel, &t->args)) fail_msg("%s", fk_last_error());
    fk_kernel_destroy(kernel);
}

#endif

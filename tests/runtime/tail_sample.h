/* Short sequences with NaNs before, between and behind them, on any device: what lies past a sequence's end may be
 * read, but must not matter. Packed, every other sequence is NaN throughout; keys that are not used are; and so are
 * rows of no sequence. The same bits must come with zeros or large numbers there. */
#ifndef FK_TESTS_TAIL_SAMPLE_H
#define FK_TESTS_TAIL_SAMPLE_H

#include "sample.h"

enum { TAIL_LENGTHS = 8, TAIL_LONGEST = 132, TAIL_GAP = 37, TAIL_UNUSED = 21, TAIL_MAX_BATCH = 2 * TAIL_LENGTHS };
static const int32_t tail_length[TAIL_LENGTHS] = {1, 2, 3, 15, 31, 34, 68, TAIL_LONGEST};

typedef struct tail_sample {
    fk_context *context;
    fk_problem p;
    const char *spelling;
    fk_args args, host;
    int32_t cu[2][TAIL_MAX_BATCH + 1], used[TAIL_MAX_BATCH];
    void *device_cu[2], *device_used;
    uint16_t *data[4], *device[4]; /* q, k, v, o: [batch, seqlen, heads, dim] or [total, heads, dim] */
    float *lse, *device_lse;
    size_t num_lse;
    int64_t rows[4], width[4]; /* of a tensor; `rows`: all, batches and gaps included */
} tail_sample;

static inline void tail_call(const tail_sample *s, fk_status status) {
    if (status) fail_msg("%s: %s", s->spelling, fk_last_error());
}

static inline void *tail_device(const tail_sample *s, size_t bytes) {
    void *memory = NULL;
    tail_call(s, fk_device_malloc(s->context, bytes, &memory));
    return memory;
}

/* Sequence of a row of q (side 0) or k (1), and where it stands there; negative: none. */
typedef struct tail_place {
    int64_t b, row;
} tail_place;
static inline tail_place tail_find(const tail_sample *s, int side, int64_t row) {
    const int64_t seqlen = side ? s->host.seqlen_k : s->host.seqlen_q;
    if (!s->p.packed)
        return row % (seqlen + TAIL_GAP) < seqlen ? (tail_place){row / (seqlen + TAIL_GAP), row % (seqlen + TAIL_GAP)}
                                                  : (tail_place){-1, -1};
    for (int64_t b = 0; b < s->host.batch; b++)
        if (row >= s->cu[side][b] && row < s->cu[side][b + 1]) return (tail_place){b, row - s->cu[side][b]};
    return (tail_place){-1, -1};
}

/* Whether a row of q or k holds numbers. */
static inline bool tail_is_real(const tail_sample *s, int side, tail_place at) {
    if (at.b < 0 || (s->p.packed && at.b % 2)) return false;
    return !side || !s->p.seqused_k || at.row < s->used[at.b];
}

/* The longest queries with the fewest keys, and the other way round. */
static inline void tail_lengths(tail_sample *s) {
    const bool packed = s->p.packed, seqused = s->p.seqused_k;
    fk_args *a = &s->host;
    *a = (fk_args)FK_ARGS_INIT;
    a->batch = packed ? TAIL_MAX_BATCH : TAIL_LENGTHS;
    a->num_heads_q = 2, a->num_heads_kv = s->p.gqa ? 1 : 2;
    a->seqlen_q = TAIL_LONGEST, a->seqlen_k = TAIL_LONGEST + TAIL_UNUSED;
    s->cu[0][0] = 9, s->cu[1][0] = 5;
    for (int b = 0; b < a->batch; b++) {
        const int i = packed ? b / 2 : b;
        const bool real = !packed || b % 2 == 0;
        s->used[b] = real ? tail_length[i] : 0;
        s->cu[0][b + 1] = s->cu[0][b] + (real ? tail_length[TAIL_LENGTHS - 1 - i] : TAIL_GAP);
        s->cu[1][b + 1] = s->cu[1][b] + (real ? tail_length[i] + (seqused ? TAIL_UNUSED : 0) : TAIL_GAP);
    }
    if (packed) a->total_q = s->cu[0][a->batch] + 11, a->total_k = s->cu[1][a->batch] + 3;
    tail_call(s, fk_args_layout(&s->p, FK_BSHD, a));
    s->rows[0] = packed ? a->total_q : a->batch * (a->seqlen_q + TAIL_GAP);
    s->rows[1] = packed ? a->total_k : a->batch * (a->seqlen_k + TAIL_GAP);
    s->rows[2] = s->rows[1], s->rows[3] = s->rows[0];
    s->width[0] = a->num_heads_q * s->p.head_dim, s->width[1] = a->num_heads_kv * s->p.head_dim;
    s->width[2] = a->num_heads_kv * s->p.head_dim_v, s->width[3] = a->num_heads_q * s->p.head_dim_v;
    int64_t *const stride[4] = {a->q_stride, a->k_stride, a->v_stride, a->o_stride};
    for (int i = 0; i < 4 && !packed; i++)
        stride[i][0] = s->width[i] * (s->rows[i] / a->batch);
}

static inline void tail_make(fk_context *context, const char *spelling, tail_sample *s) {
    *s = (tail_sample){.context = context, .spelling = spelling};
    tail_call(s, fk_problem_parse(spelling, &s->p));
    tail_call(s, fk_problem_canonical(&s->p, &s->p));
    tail_lengths(s);
    for (int i = 0; i < 4; i++) {
        s->data[i] = malloc((size_t)(s->rows[i] * s->width[i]) * 2);
        assert_non_null(s->data[i]);
        s->device[i] = tail_device(s, (size_t)(s->rows[i] * s->width[i]) * 2);
    }
    s->num_lse = (size_t)(s->host.num_heads_q * (s->p.packed ? s->host.total_q : s->host.batch * TAIL_LONGEST));
    s->lse = calloc(s->num_lse, sizeof(float));
    s->device_lse = tail_device(s, s->num_lse * sizeof(float));
    if (s->p.dropout) s->host.dropout_p = 0.25;
    s->args = s->host;
    s->host.q = s->data[0], s->host.k = s->data[1], s->host.v = s->data[2];
    s->args.q = s->device[0], s->args.k = s->device[1], s->args.v = s->device[2], s->args.o = s->device[3];
    s->args.lse = s->device_lse;
    for (int side = 0; side < 2; side++) {
        s->device_cu[side] = tail_device(s, sizeof s->cu[side]);
        tail_call(s, fk_copy_to_device(context, s->device_cu[side], s->cu[side], sizeof s->cu[side]));
    }
    s->device_used = tail_device(s, sizeof s->used);
    tail_call(s, fk_copy_to_device(context, s->device_used, s->used, sizeof s->used));
    if (s->p.packed) s->host.cu_seqlens_q = s->cu[0], s->host.cu_seqlens_k = s->cu[1];
    if (s->p.packed) s->args.cu_seqlens_q = s->device_cu[0], s->args.cu_seqlens_k = s->device_cu[1];
    if (s->p.seqused_k) s->host.seqused_k = s->used, s->args.seqused_k = s->device_used;
}

static inline void tail_free(tail_sample *s) {
    for (int i = 0; i < 4; i++) {
        free(s->data[i]);
        fk_device_free(s->context, s->device[i]);
    }
    free(s->lse);
    void *const others[] = {s->device_lse, s->device_cu[0], s->device_cu[1], s->device_used};
    for (int i = 0; i < 4; i++)
        fk_device_free(s->context, others[i]);
}

/* Numbers where they belong, elsewhere `fill`; o is NaN. */
static inline void tail_fill(tail_sample *s, uint16_t fill) {
    for (int i = 0; i < 4; i++) {
        const size_t elements = (size_t)(s->rows[i] * s->width[i]);
        sample_fill(s->data[i], elements, s->p.dtype == FK_BF16, (uint32_t)i + 1);
        for (size_t n = 0; n < elements; n++)
            if (i == 3 || !tail_is_real(s, i > 0, tail_find(s, i > 0, (int64_t)n / s->width[i])))
                s->data[i][n] = i == 3 ? 0xffff : fill;
        tail_call(s, fk_copy_to_device(s->context, s->device[i], s->data[i], elements * 2));
    }
}

static inline void tail_launch(tail_sample *s, const fk_kernel *kernel, uint16_t fill) {
    tail_fill(s, fill);
    tail_call(s, launch_once(s->context, kernel, &s->args));
    tail_call(s, fk_copy_from_device(s->context, s->data[3], s->device[3], (size_t)(s->rows[3] * s->width[3]) * 2));
    tail_call(s, fk_copy_from_device(s->context, s->lse, s->device_lse, s->num_lse * sizeof(float)));
}

/* Against float64: rounding of weights and results, as V's elements are below 4. Rows of no sequence stay NaN, and
 * what sequences of NaNs get does not matter. */
static inline void tail_check(const tail_sample *s) {
    const fk_args *a = &s->host;
    const int64_t dv = s->p.head_dim_v, heads = a->num_heads_q;
    const int64_t rows = s->p.packed ? a->total_q : a->seqlen_q, batch = s->p.packed ? 1 : a->batch;
    double *exact = malloc((size_t)(batch * heads * rows * dv) * sizeof(double));
    const double limit = 2 * 4 * (s->p.dtype == FK_FP16 ? 0x1p-11 : 0x1p-8) / (1 - a->dropout_p);
    assert_non_null(exact);
    tail_call(s, fk_reference(&s->p, a, FK_REFERENCE_F64, exact, NULL));
    for (int64_t i = 0; i < s->rows[3] * s->width[3]; i++) {
        const tail_place at = tail_find(s, 0, i / s->width[3]);
        const uint16_t bits = s->data[3][i];
        if (at.b >= 0 && !tail_is_real(s, 0, at)) continue;
        const int64_t row = s->p.packed ? i / s->width[3] : at.row, b = s->p.packed ? 0 : at.b;
        const int64_t from = ((b * heads + i % s->width[3] / dv) * rows + row) * dv + i % dv;
        const double got = (double)(s->p.dtype == FK_BF16 ? fk_bf16_to_float(bits) : fk_fp16_to_float(bits));
        const bool right = at.b < 0 ? bits == 0xffff : fabs(got - exact[from]) <= limit;
        if (!right)
            fail_msg("%s: sequence %d, row %d: o is %g, not %g", s->spelling, (int)at.b, (int)at.row, got,
                     at.b < 0 ? (double)NAN : exact[from]);
    }
    free(exact);
}

/* The bits of two launches, of rows that are real. */
static inline void tail_compare(const tail_sample *s, const uint16_t *o, const float *lse, const char *fill) {
    const fk_args *a = &s->host;
    const int64_t rows = s->p.packed ? a->total_q : a->seqlen_q;
    for (int64_t i = 0; i < s->rows[3] * s->width[3]; i++) {
        const tail_place at = tail_find(s, 0, i / s->width[3]);
        if (!tail_is_real(s, 0, at)) continue;
        const int64_t head = i % s->width[3] / s->p.head_dim_v;
        const int64_t row =
            s->p.packed ? head * rows + i / s->width[3] : (at.b * a->num_heads_q + head) * rows + at.row;
        if (o[i] != s->data[3][i] || memcmp(&lse[row], &s->lse[row], sizeof *lse))
            fail_msg("%s: sequence %d, row %d: other bits with %s for NaNs, lse %.9g, not %.9g", s->spelling, (int)at.b,
                     (int)at.row, fill, (double)s->lse[row], (double)lse[row]);
    }
}

/** The whole of it for one problem. @return its family */
static inline fk_kernel_info tail_run(fk_context *context, const char *spelling) {
    tail_sample s;
    fk_kernel *kernel;
    fk_kernel_info info;
    tail_make(context, spelling, &s);
    tail_call(&s, fk_kernel_create(context, &s.p, &kernel));
    tail_call(&s, fk_kernel_describe(kernel, &info));
    tail_launch(&s, kernel, 0xffff);
    tail_check(&s);
    const size_t elements = (size_t)(s.rows[3] * s.width[3]);
    uint16_t *first = malloc(elements * 2);
    float *first_lse = malloc(s.num_lse * sizeof(float));
    assert_non_null(first);
    assert_non_null(first_lse);
    memcpy(first, s.data[3], elements * 2);
    memcpy(first_lse, s.lse, s.num_lse * sizeof(float));
    tail_launch(&s, kernel, 0);
    tail_compare(&s, first, first_lse, "zeros");
    tail_launch(&s, kernel, s.p.dtype == FK_BF16 ? 0x4120 : 0x4900); /* which make scores that a cap bends */
    tail_compare(&s, first, first_lse, "tens");
    free(first);
    free(first_lse);
    fk_kernel_destroy(kernel);
    tail_free(&s);
    return info;
}

/* With whole tiles of keys and without, behind which V's tail is. */
static const char *const tail_spellings[] = {
    "fwd bf16 d64 packed",
    "fwd bf16 d64 packed softcap(29085308)", /* whose tanh is exact where arguments are small, which a tile's are
                                                together */
    "fwd fp16 d128 packed causal",
    "fwd bf16 d128 gqa packed window(40,3)",
    "fwd fp16 d72 dv40 packed dropout",
    "fwd bf16 d64 packed seqused_k causal",
    "fwd fp16 d128 packed seqused_k",
    "fwd bf16 d64 seqused_k",
    "fwd bf16 d256 seqused_k causal",
    "fwd bf16 d64 seqused_k softcap(20)",
    "fwd bf16 d128 seqused_k softcap(20) causal",
    "fwd fp16 d128 gqa seqused_k keep=\"(q + k) % 3 != 1\"",
};
enum { NUM_TAIL_SPELLINGS = sizeof tail_spellings / sizeof *tail_spellings };

#endif

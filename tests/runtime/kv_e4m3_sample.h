/* Keys and values of 8 bits beside queries of 16: a launch, and the same with what they stand for in 16 bits, of which
 * a kernel of the same plan makes the same bits. */
#ifndef FK_TESTS_KV_E4M3_SAMPLE_H
#define FK_TESTS_KV_E4M3_SAMPLE_H

#include "sample.h"

typedef struct kv_sample {
    const char *words, *plan_for, *plan; /* words: of the spelling but for op, dtype and kv_e4m3; plan null: the best */
    int64_t batch, num_heads_q, num_heads_kv, seqlen_q, seqlen_k, page_size; /* page_size: of problems with pages */
    int32_t num_splits;
} kv_sample;

typedef struct kv_options {
    const char *device, *store; /* store null: none */
    const char *type;           /* "kv_e4m3", "e4m3" for q as well, or "" for 16 bits */
    bool bf16;
    float k_descale, v_descale, softmax_scale; /* 0: none given */
} kv_options;

/* Host memory that a launch filled. */
typedef struct kv_result {
    uint16_t *o;
    float *lse;
    size_t elements, rows;
} kv_result;

static inline void kv_free(kv_result *r) {
    free(r->o);
    free(r->lse);
}

/* Finite numbers below 2, zeros and subnormal ones among them. */
static inline void kv_fill(uint8_t *bytes, size_t count, uint32_t seed) {
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        bytes[i] = (uint8_t)(seed >> 16 & 0xbf);
    }
}

static inline void *kv_upload(fk_context *context, const void *host, size_t bytes) {
    void *device = NULL;
    if (fk_device_malloc(context, bytes, &device) || (host && fk_copy_to_device(context, device, host, bytes)))
        fail_msg("%s", fk_last_error());
    return device;
}

/* Rows of [batch, seqlen, heads, dim] as pages in reversed order; what no key lies in is NaN in either dtype. */
static inline uint8_t *kv_pages(const kv_sample *s, const uint8_t *rows, size_t row_bytes, int64_t columns) {
    const size_t page_bytes = (size_t)s->page_size * row_bytes, pages = (size_t)(s->batch * columns);
    uint8_t *out = malloc(pages * page_bytes);
    assert_non_null(out);
    memset(out, 0xff, pages * page_bytes);
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t k = 0; k < s->seqlen_k; k++) {
            const size_t page = pages - 1 - (size_t)(b * columns + k / s->page_size);
            memcpy(out + page * page_bytes + (size_t)(k % s->page_size) * row_bytes,
                   rows + (size_t)(b * s->seqlen_k + k) * row_bytes, row_bytes);
        }
    return out;
}

/* One of k and v on the device, of `elements` elements. */
static inline void *kv_tensor(fk_context *context, const kv_sample *s, const kv_options *how, const uint8_t *bytes,
                              size_t elements, int64_t dim, int64_t columns) {
    const bool narrow = how->type[0] != 0;
    const size_t size = narrow ? 1 : 2;
    uint8_t *host = malloc(elements * size);
    assert_non_null(host);
    for (size_t i = 0; i < elements; i++) {
        const float x = fk_e4m3_to_float(bytes[i]);
        const uint16_t wide = how->bf16 ? fk_bf16_from_float(x) : fk_fp16_from_float(x);
        if (narrow)
            host[i] = bytes[i];
        else
            memcpy(host + 2 * i, &wide, 2);
    }
    size_t total = elements * size;
    if (columns) {
        const size_t row_bytes = (size_t)(s->num_heads_kv * dim) * size;
        uint8_t *pages = kv_pages(s, host, row_bytes, columns);
        total = (size_t)(s->batch * columns * s->page_size) * row_bytes;
        free(host);
        host = pages;
    }
    void *device = kv_upload(context, host, total);
    free(host);
    return device;
}

/* Entries behind the last page with keys are garbage. */
static inline int32_t *kv_table(fk_context *context, const kv_sample *s, int64_t columns) {
    const int64_t stride = columns + 2, count = s->batch * columns;
    int32_t *host = malloc((size_t)(s->batch * stride) * sizeof *host);
    assert_non_null(host);
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t i = 0; i < stride; i++)
            host[b * stride + i] = i < columns ? (int32_t)(count - 1 - (b * columns + i)) : INT32_MIN;
    int32_t *device = kv_upload(context, host, (size_t)(s->batch * stride) * sizeof *host);
    free(host);
    return device;
}

/** k, v: contiguous rows; null: drawn. */
static inline kv_result kv_run(const kv_sample *s, const kv_options *how, const uint8_t *k, const uint8_t *v) {
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    fk_context *context;
    fk_kernel *kernel;
    fk_problem p;
    fk_args a = FK_ARGS_INIT;
    char spelling[256];
    const bool of_bytes = strcmp(how->type, "e4m3") == 0;
    const char *dtype = how->bf16 ? "bf16" : "fp16";
    snprintf(spelling, sizeof spelling, "fwd %s %s %s", of_bytes ? "" : dtype, how->type, s->words);
    options.device = how->device, options.plan_for = s->plan_for, options.planning.plan = s->plan;
    options.cache_dir = how->store, options.cache_mode = how->store ? FK_CACHE_NORMAL : FK_CACHE_OFF;
    if (fk_problem_parse(spelling, &p) || fk_problem_canonical(&p, &p)) fail_msg("%s: %s", spelling, fk_last_error());
    if (fk_context_create(&options, &context) || fk_kernel_create(context, &p, &kernel))
        fail_msg("%s: %s", spelling, fk_last_error());

    a.batch = s->batch, a.num_heads_q = s->num_heads_q, a.num_heads_kv = s->num_heads_kv;
    a.seqlen_q = s->seqlen_q, a.seqlen_k = s->seqlen_k, a.num_splits = s->num_splits;
    a.softmax_scale = how->softmax_scale, a.dropout_p = p.dropout ? 0.25 : 0;
    const int64_t columns = p.paged ? (s->seqlen_k + s->page_size - 1) / s->page_size : 0;
    if (p.paged) {
        a.page_size = s->page_size, a.num_pages = s->batch * columns, a.page_table_stride = columns + 2;
        a.page_table = kv_table(context, s, columns);
    }
    assert_int_equal(fk_args_layout(&p, FK_BSHD, &a), FK_OK);

    const size_t rows_k = (size_t)(a.batch * a.num_heads_kv * a.seqlen_k), d = (size_t)p.head_dim;
    kv_result r = {.rows = (size_t)(a.batch * a.num_heads_q * a.seqlen_q)};
    const size_t dv = (size_t)p.head_dim_v, of_q = r.rows * d, of_k = rows_k * d, of_v = rows_k * dv;
    r.elements = r.rows * dv;
    uint16_t *q = malloc(of_q * 2);
    uint8_t *drawn[2] = {malloc(of_k), malloc(of_v)};
    r.o = malloc(r.elements * 2), r.lse = malloc(r.rows * sizeof(float));
    assert_true(q && drawn[0] && drawn[1] && r.o && r.lse);
    if (of_bytes)
        kv_fill((uint8_t *)q, of_q, 1);
    else
        sample_fill(q, of_q, how->bf16, 1);
    kv_fill(drawn[0], of_k, 2);
    kv_fill(drawn[1], of_v, 3);
    void *on_device[4] = {kv_upload(context, q, of_q * (of_bytes ? 1 : 2)), NULL, NULL, NULL};
    on_device[1] = kv_tensor(context, s, how, k ? k : drawn[0], of_k, p.head_dim, columns);
    on_device[2] = kv_tensor(context, s, how, v ? v : drawn[1], of_v, p.head_dim_v, columns);
    memset(r.o, 0xff, r.elements * 2);
    on_device[3] = kv_upload(context, r.o, r.elements * 2);
    a.q = on_device[0], a.k = on_device[1], a.v = on_device[2], a.o = on_device[3];
    a.lse = kv_upload(context, NULL, r.rows * sizeof(float));
    float *descale[2] = {kv_upload(context, &how->k_descale, sizeof(float)),
                         kv_upload(context, &how->v_descale, sizeof(float))};
    if (how->k_descale > 0) a.k_descale = descale[0];
    if (how->v_descale > 0) a.v_descale = descale[1];

    if (launch_once(context, kernel, &a) || fk_copy_from_device(context, r.o, a.o, r.elements * 2) ||
        fk_copy_from_device(context, r.lse, a.lse, r.rows * sizeof(float)))
        fail_msg("%s: %s", spelling, fk_last_error());
    for (int i = 0; i < 4; i++)
        fk_device_free(context, on_device[i]);
    fk_device_free(context, a.lse);
    fk_device_free(context, descale[0]), fk_device_free(context, descale[1]);
    fk_device_free(context, (void *)(uintptr_t)a.page_table);
    free(q), free(drawn[0]), free(drawn[1]);
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
    return r;
}

/* Bit by bit, or, where a GPU's compiler makes one instruction of the last product and sum of a row's lse, or two, but
 * for a unit in the last place. */
static inline void kv_assert_same(const kv_sample *s, const kv_result *a, const kv_result *b, bool exact) {
    for (size_t i = 0; i < a->rows; i++) {
        const double x = (double)a->lse[i], y = (double)b->lse[i];
        const double off = exact ? 0 : 0x1p-22 * fmax(1, fabs(y));
        if (!(x <= y + off && x >= y - off)) fail_msg("%s: lse[%zu] is %.9g, not %.9g", s->words, i, x, y);
    }
    for (size_t i = 0; i < a->elements; i++) {
        const int off = exact ? 0 : 1, x = a->o[i], y = b->o[i];
        if (x - y > off || y - x > off) fail_msg("%s: o[%zu] is %#x, not %#x", s->words, i, x, y);
    }
}

/** The kernel of 8 bits beside that of 16, of the same plan. */
static inline void kv_compare(const kv_sample *s, const char *device, const char *store) {
    for (int bf16 = 0; bf16 < 2; bf16++) {
        if (bf16 && s->plan_for && strcmp(s->plan_for, "t4") == 0) continue;
        const kv_options narrow = {.device = device, .store = store, .type = "kv_e4m3", .bf16 = bf16};
        const kv_options wide = {.device = device, .store = store, .type = "", .bf16 = bf16};
        kv_result ours = kv_run(s, &narrow, NULL, NULL), theirs = kv_run(s, &wide, NULL, NULL);
        kv_assert_same(s, &ours, &theirs, strcmp(device, "emu") == 0);
        kv_free(&ours), kv_free(&theirs);
    }
}

/** Each of the 256 bytes as a value that one key has: o is what it stands for. NaN: NaN, or 480 where there is no
 * instruction that converts. */
static inline void kv_all_bytes(const char *device, const char *plan_for, bool converts) {
    const kv_sample s = {"d256", plan_for, NULL, 1, 1, 1, 1, 1, 0, 0};
    uint8_t bytes[256], ones[256];
    for (int i = 0; i < 256; i++)
        bytes[i] = (uint8_t)i, ones[i] = 0x38;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        if (bf16 && plan_for && strcmp(plan_for, "t4") == 0) continue;
        const kv_options how = {.device = device, .type = "kv_e4m3", .bf16 = bf16};
        kv_result r = kv_run(&s, &how, ones, bytes);
        for (int i = 0; i < 256; i++) {
            const float got = bf16 ? fk_bf16_to_float(r.o[i]) : fk_fp16_to_float(r.o[i]);
            float want = fk_e4m3_to_float((uint8_t)i);
            if (isnan(want) && !converts) want = i & 0x80 ? -480.0f : 480.0f;
            if (isnan(want) ? !isnan(got) : !(got - want <= 0 && got - want >= 0))
                fail_msg("byte %d: %g, not %g", i, (double)got, (double)want);
        }
        kv_free(&r);
    }
}

#endif

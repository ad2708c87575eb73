/* Scores and values at the ends of their range, on any device: what a softmax that does not follow the maximum must
 * notice, and nothing may spoil. Keys are walked from the last to the first.
 *
 * A persistent kernel writes a word of its workspace for each tile that it computes once more, and no other, so that a
 * pattern laid there before tells which tiles those were. */
#ifndef FK_TESTS_EXTREME_SAMPLE_H
#define FK_TESTS_EXTREME_SAMPLE_H

#include "sample.h"

enum extreme_shape {
    EXTREME_FLAT,   /* all keys score `nats` more */
    EXTREME_RAMP,   /* from 0 at the first key to `nats` at the last */
    EXTREME_FIRST,  /* three keys: the first, */
    EXTREME_MIDDLE, /* some in the midst, */
    EXTREME_LAST,   /* the last */
    EXTREME_ROW,    /* the first, and only one query sees it so */
    EXTREME_HALF,
    EXTREME_STAIRS, /* 0 in the last third of the keys, a third of `nats` in the second, all of it in the first */
};

enum extreme_redo { NO_REDO, ONE_REDO /* a head */, SOME_REDO };

/* redo: how many tiles are computed again where each row sees all keys; [0] in bf16, [1] in fp16, whose weights have
 * less room. */
typedef struct extreme {
    const char *name;
    enum extreme_shape shape;
    float nats, v[2]; /* v: what V's elements, about 1, are multiplied by */
    enum extreme_redo redo[2];
} extreme;

static const extreme extremes[] = {
    {"ramp up", EXTREME_RAMP, 600, {1, 1}, {NO_REDO, NO_REDO}},
    {"ramp down", EXTREME_RAMP, -600, {1, 1}, {SOME_REDO, SOME_REDO}},
    {"far above 0", EXTREME_FLAT, 500, {1, 1}, {NO_REDO, NO_REDO}},
    {"far below 0", EXTREME_FLAT, -500, {1, 1}, {NO_REDO, NO_REDO}},
    {"first keys by 400", EXTREME_FIRST, 400, {1, 1}, {SOME_REDO, SOME_REDO}},
    {"middle keys by 400", EXTREME_MIDDLE, 400, {1, 1}, {SOME_REDO, SOME_REDO}},
    {"last keys by 400", EXTREME_LAST, 400, {1, 1}, {NO_REDO, NO_REDO}},
    {"first keys, one query", EXTREME_ROW, 300, {1, 1}, {ONE_REDO, ONE_REDO}},
    {"first half by 90", EXTREME_HALF, 90, {1, 1}, {SOME_REDO, SOME_REDO}},
    {"stairs to 60", EXTREME_STAIRS, 60, {1, 1}, {SOME_REDO, SOME_REDO}},
    {"first keys by 20", EXTREME_FIRST, 20, {1, 1}, {NO_REDO, SOME_REDO}}, /* e^20 > 65504 */
    {"first keys by 60", EXTREME_FIRST, 60, {1, 1}, {SOME_REDO, SOME_REDO}},
    {"large values", EXTREME_FLAT, 0, {1e30f, 1e4f}, {NO_REDO, NO_REDO}},
    {"large products", EXTREME_FIRST, 30, {1e30f, 1e4f}, {SOME_REDO, SOME_REDO}}, /* weights alone stay in range */
};
enum { NUM_EXTREMES = sizeof extremes / sizeof *extremes };

/* A sample with those inputs, and where its results go. */
typedef struct extreme_run {
    const sample *s;
    const extreme *e;
    sample_tensors t;
    uint16_t *first_o; /* of the first launch */
    float *first_lse;
    int redone; /* tiles of the last launch; -1: the kernel is not persistent */
} extreme_run;

static inline float extreme_nats(const extreme *e, int64_t key, int64_t num_keys) {
    const bool hit[] = {[EXTREME_FLAT] = true,
                        [EXTREME_FIRST] = key < 3,
                        [EXTREME_MIDDLE] = key >= num_keys / 2 && key < num_keys / 2 + 3,
                        [EXTREME_LAST] = key >= num_keys - 3,
                        [EXTREME_ROW] = key < 3,
                        [EXTREME_HALF] = key < num_keys / 2};
    if (e->shape == EXTREME_STAIRS) return 3 * key < num_keys ? e->nats : 3 * key < 2 * num_keys ? e->nats / 3 : 0;
    if (e->shape == EXTREME_RAMP) return e->nats * (float)key / (float)num_keys;
    return hit[e->shape] ? e->nats : 0;
}

static inline uint16_t extreme_encode(const fk_problem *p, float x) {
    return p->dtype == FK_BF16 ? fk_bf16_from_float(x) : fk_fp16_from_float(x);
}

static inline float extreme_decode(const fk_problem *p, uint16_t x) {
    return p->dtype == FK_BF16 ? fk_bf16_to_float(x) : fk_fp16_to_float(x);
}

/* Column 0 of q and k makes the scores, the others noise of about 1. */
static inline void extreme_fill(extreme_run *r) {
    const fk_args *a = &r->t.host;
    const fk_problem *p = &r->t.p;
    const int64_t heads_q = a->num_heads_q, heads_k = a->num_heads_kv, d = p->head_dim;
    const float unit = 16, per_nat = sqrtf((float)d) / unit, v = r->e->v[p->dtype == FK_FP16];
    for (int64_t row = 0; row < a->batch * a->seqlen_q * heads_q; row++) {
        const bool sees = r->e->shape != EXTREME_ROW || row / heads_q % a->seqlen_q == a->seqlen_q / 3;
        r->t.data[0][row * d] = extreme_encode(p, sees ? unit : 0);
    }
    for (int64_t row = 0; row < a->batch * a->seqlen_k * heads_k; row++)
        r->t.data[1][row * d] =
            extreme_encode(p, per_nat * extreme_nats(r->e, row / heads_k % a->seqlen_k, a->seqlen_k));
    for (size_t i = 0; i < r->t.elements[2]; i++)
        r->t.data[2][i] = extreme_encode(p, v * extreme_decode(p, r->t.data[2][i]));
}

/* Two documents, of whose second there are eight queries, and others at either end of the keys: of the tiles that rows
 * visit, full ones lie between shared ones. */
static inline void extreme_documents(fk_context *context, extreme_run *r) {
    const int64_t rows[2] = {r->t.host.seqlen_q, r->t.host.seqlen_k};
    for (int of_keys = 0; of_keys < 2; of_keys++) {
        const size_t bytes = (size_t)rows[of_keys] * sizeof(int32_t);
        int32_t *id = malloc(bytes);
        void *device = NULL;
        assert_non_null(id);
        for (int64_t i = 0; i < rows[of_keys]; i++)
            id[i] = !of_keys ? 1 + (i >= rows[0] - 8) : (i >= 40) + (i * 3 >= rows[1] * 2) + (i >= rows[1] - 40);
        if (fk_device_malloc(context, bytes, &device) || fk_copy_to_device(context, device, id, bytes))
            fail_msg("%s", fk_last_error());
        r->t.host.array[of_keys] = (fk_array){.data = id, .stride = {0, 1}};
        r->t.args.array[of_keys] = (fk_array){.data = device, .stride = {0, 1}};
    }
}

static inline extreme_run extreme_make(fk_context *context, const sample *s, const extreme *e) {
    extreme_run r = {.s = s, .e = e};
    assert_true(sample_make(context, s, &r.t));
    extreme_fill(&r);
    const void *const device[3] = {r.t.args.q, r.t.args.k, r.t.args.v};
    for (int i = 0; i < 3; i++)
        if (fk_copy_to_device(context, (void *)(uintptr_t)device[i], r.t.data[i], r.t.elements[i] * 2))
            fail_msg("%s", fk_last_error());
    if (r.t.p.fast) sample_prescale(&r.t); /* of which the reference is taken */
    if (strstr(s->spelling, "document")) extreme_documents(context, &r);
    if (r.t.p.dropout) r.t.args.dropout_p = r.t.host.dropout_p = 0.25;
    r.first_o = calloc(r.t.elements[3], 2);
    r.first_lse = calloc(r.t.rows_q, sizeof(float));
    assert_true(r.first_o && r.first_lse);
    return r;
}

static inline void extreme_free(fk_context *context, extreme_run *r) {
    for (int i = 0; i < 2; i++) {
        fk_device_free(context, (void *)(uintptr_t)r->t.args.array[i].data);
        free((void *)(uintptr_t)r->t.host.array[i].data);
    }
    free(r->first_o);
    free(r->first_lse);
    sample_free(context, &r->t);
}

enum { EXTREME_HEADER = 4, EXTREME_PATTERN = 0x5a5a5a5a }; /* words of a workspace before those of tiles */

/* One launch; its results are in r->t. */
static inline void extreme_launch(fk_context *context, const fk_kernel *kernel, extreme_run *r) {
    const size_t bytes = fk_kernel_workspace(kernel, &r->t.args), words = bytes / sizeof(uint32_t);
    void *workspace = NULL;
    uint32_t *host = malloc(bytes + 1);
    assert_non_null(host);
    memset(host, EXTREME_PATTERN & 0xff, bytes);
    if (bytes && (fk_device_malloc(context, bytes, &workspace) || fk_copy_to_device(context, workspace, host, bytes)))
        fail_msg("%s", fk_last_error());
    memset(r->t.data[3], 0xff, r->t.elements[3] * 2);
    if (fk_copy_to_device(context, r->t.args.o, r->t.data[3], r->t.elements[3] * 2) ||
        fk_execute(kernel, &r->t.args, workspace, bytes, NULL))
        fail_msg("%s, %s: %s", r->s->spelling, r->e->name, fk_last_error());
    sample_fetch(context, r->s, &r->t);
    if (bytes && fk_copy_from_device(context, host, workspace, bytes)) fail_msg("%s", fk_last_error());
    r->redone = bytes ? 0 : -1;
    for (size_t i = EXTREME_HEADER; i < words; i++)
        r->redone += host[i] != EXTREME_PATTERN;
    fk_device_free(context, workspace);
    free(host);
}

static inline void extreme_remember(extreme_run *r) {
    memcpy(r->first_o, r->t.data[3], r->t.elements[3] * 2);
    memcpy(r->first_lse, r->t.lse, r->t.rows_q * sizeof(float));
}

static inline void extreme_assert_same(const extreme_run *r, const char *what) {
    if (memcmp(r->first_o, r->t.data[3], r->t.elements[3] * 2) ||
        memcmp(r->first_lse, r->t.lse, r->t.rows_q * sizeof(float)))
        fail_msg("%s, %s: other bits %s", r->s->spelling, r->e->name, what);
}

/* Only where each row sees all keys is it clear which tiles must be computed again. */
static inline void extreme_assert_redone(const extreme_run *r) {
    const extreme *e = r->e;
    const enum extreme_redo listed = e->redo[r->t.p.dtype == FK_FP16];
    const bool far = e->nats >= 60 || (e->nats <= -60 && e->shape == EXTREME_FLAT); /* from fast's reference, 0 */
    const bool steep = fabsf(e->nats) >= 60 && listed != ONE_REDO;
    const enum extreme_redo want = fk_prescales_queries(&r->t.p) && steep ? (far ? SOME_REDO : NO_REDO) : listed;
    const int heads = (int)(r->t.host.batch * r->t.host.num_heads_q);
    const bool right = (want == NO_REDO && r->redone == 0) || (want == ONE_REDO && r->redone == heads) ||
                       (want == SOME_REDO && r->redone > 0);
    if (!right) fail_msg("%s, %s: %d tiles were computed again", r->s->spelling, r->e->name, r->redone);
}

/* What rounding may do, for eager rounds such scores to nonsense: weights and result, each to the problem's dtype, and
 * float32 scores of up to several hundred. */
static inline double extreme_limit(const extreme_run *r) {
    const bool fp16 = r->t.p.dtype == FK_FP16;
    const double nats = fabs((double)r->e->nats) + 20, kept = 1 - r->t.host.dropout_p;
    double largest = 0;
    for (size_t i = 0; i < r->t.elements[2]; i++)
        largest = fmax(largest, fabs((double)extreme_decode(&r->t.p, r->t.data[2][i])));
    return (2 * (fp16 ? 0x1p-11 : 0x1p-8) + nats * 0x1p-20) * largest / kept;
}

static inline void extreme_check(const extreme_run *r) {
    const fk_args *a = &r->t.host;
    const int64_t dv = r->t.p.head_dim_v, heads = a->num_heads_q;
    double *exact = malloc(r->t.elements[3] * sizeof(double)), *lse = malloc(r->t.rows_q * sizeof(double));
    if (fk_reference(&r->t.p, a, FK_REFERENCE_F64, exact, lse)) fail_msg("%s", fk_last_error());
    const double limit = extreme_limit(r);
    double largest = 0;
    for (int64_t row = 0; row < (int64_t)r->t.rows_q; row++) { /* batch, head, query */
        const int64_t i = row % a->seqlen_q, h = row / a->seqlen_q % heads, b = row / a->seqlen_q / heads;
        for (int64_t c = 0; c < dv; c++) {
            const uint16_t bits = r->t.data[3][((b * a->seqlen_q + i) * heads + h) * dv + c];
            const double error = fabs((double)extreme_decode(&r->t.p, bits) - exact[row * dv + c]);
            if (!(error <= limit))
                fail_msg("%s, %s: o[%d][%d][%d][%d] is %g, not %g; the limit is %g", r->s->spelling, r->e->name, (int)b,
                         (int)h, (int)i, (int)c, (double)extreme_decode(&r->t.p, bits), exact[row * dv + c], limit);
            largest = fmax(largest, error);
        }
        const double got = (double)r->t.lse[row];
        if (isinf(lse[row]) ? got != lse[row]
                            : !(fabs(got - lse[row]) <= sample_lse_limit(&r->t.p) + 1e-5 * fabs(lse[row])))
            fail_msg("%s, %s: lse[%d][%d][%d] is %g, not %g", r->s->spelling, r->e->name, (int)b, (int)h, (int)i, got,
                     lse[row]);
    }
    print_message("%s, %s: error %.2e, limit %.2e; %d tiles again\n", r->s->spelling, r->e->name, largest, limit,
                  r->redone);
    free(exact);
    free(lse);
}

#endif

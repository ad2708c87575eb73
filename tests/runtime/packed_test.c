/* Packed sequences and used keys: each sequence must come out as it does alone, in the references and, bit for bit, in
 * kernels on the emulator; rows of no sequence are left as they are, and NaNs there stay there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "flashkiln.h"
#include "runtime/emulator/half.h"
#include "runtime/object.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 4, HQ = 4, HKV = 2, D = 16, DV = 24, TOTAL_Q = 280, TOTAL_K = 320, NAN_BITS = 0xffff };

/* Lengths 5 x 20, 0 x 9, 70 x 0 and 37 x 90, with rows of no sequence around them. */
static int32_t cu_q[BATCH + 1] = {1, 6, 6, 76, 113}, cu_k[BATCH + 1] = {3, 23, 32, 32, 122};
static int32_t used_k[BATCH] = {25, 4, 0, 64};

static _Alignas(256) uint16_t q[TOTAL_Q * HQ * D], k[TOTAL_K * HKV * D], v[TOTAL_K * HKV * DV], o[TOTAL_Q * HQ * DV],
    dout[TOTAL_Q * HQ * DV], dq[TOTAL_Q * HQ * D], dk[TOTAL_K * HKV * D], dv[TOTAL_K * HKV * DV];
static _Alignas(256) float lse[HQ * TOTAL_Q], dlse[HQ * TOTAL_Q];

/* Sequences' rows get numbers, all others NaN. */
static void fill(uint16_t *data, const int32_t *cu, int64_t total, int64_t width, uint32_t seed) {
    memset(data, 0xff, (size_t)(total * width) * sizeof *data);
    for (int64_t i = cu[0] * width; i < cu[BATCH] * width; i++) {
        seed = seed * 1664525u + 1013904223u;
        data[i] = fk_fp16_from_float((float)((int)(seed >> 24) - 128) / 64);
    }
}

static fk_problem parse(const char *spelling) {
    fk_problem p;
    if (fk_problem_parse(spelling, &p)) fail_msg("%s", fk_last_error());
    return p;
}

static fk_args packed_args(const fk_problem *p) {
    fk_args a = FK_ARGS_INIT;
    fill(q, cu_q, TOTAL_Q, HQ * D, 1);
    fill(k, cu_k, TOTAL_K, HKV * D, 2);
    fill(v, cu_k, TOTAL_K, HKV * DV, 3);
    fill(dout, cu_q, TOTAL_Q, HQ * DV, 4);
    for (int b = 0; b < BATCH && p->seqused_k; b++)
        for (int row = cu_k[b] + used_k[b]; row < cu_k[b + 1]; row++) {
            memset(k + row * HKV * D, 0xff, HKV * D * sizeof *k);
            memset(v + row * HKV * DV, 0xff, HKV * DV * sizeof *v);
        }
    for (int i = 0; i < HQ * TOTAL_Q; i++)
        dlse[i] = (float)(i % 13) / 13;
    a.batch = BATCH, a.num_heads_q = HQ, a.num_heads_kv = HKV, a.seqlen_q = 70, a.seqlen_k = 300;
    a.cu_seqlens_q = cu_q, a.cu_seqlens_k = cu_k, a.total_q = TOTAL_Q, a.total_k = TOTAL_K, a.seqused_k = used_k;
    a.q = q, a.k = k, a.v = v, a.o = o, a.lse = lse;
    a.dout = dout, a.dq = dq, a.dk = dk, a.dv = dv, a.dlse = dlse;
    if (fk_args_layout(p, FK_BSHD, &a)) fail_msg("%s", fk_last_error());
    memset(o, 0xff, sizeof o);
    memset(lse, 0xff, sizeof lse);
    memset(dq, 0xff, sizeof dq);
    memset(dk, 0xff, sizeof dk);
    memset(dv, 0xff, sizeof dv);
    return a;
}

static int64_t used_keys(const fk_problem *p, int b) {
    const int length = cu_k[b + 1] - cu_k[b];
    return p->seqused_k && used_k[b] < length ? used_k[b] : length;
}

/* Sequence b by itself, as the batch of a problem that is not packed, with results of its own; false: it has no query
 * or no key, so that there is no such problem. */
typedef struct alone {
    _Alignas(256) uint16_t o[128 * HQ * DV], dq[128 * HQ * D], dk[128 * HKV * D], dv[128 * HKV * DV];
    _Alignas(256) float lse[HQ * 128], dlse[HQ * 128];
} alone;

static bool alone_args(const fk_problem *packed, int b, alone *out, fk_problem *p, fk_args *a) {
    *p = *packed;
    p->packed = p->seqused_k = 0;
    *a = (fk_args)FK_ARGS_INIT;
    a->batch = 1, a->num_heads_q = HQ, a->num_heads_kv = HKV;
    a->seqlen_q = cu_q[b + 1] - cu_q[b], a->seqlen_k = used_keys(packed, b);
    if (a->seqlen_q == 0 || a->seqlen_k == 0) return false;
    a->q = q + cu_q[b] * HQ * D, a->k = k + cu_k[b] * HKV * D, a->v = v + cu_k[b] * HKV * DV;
    a->dout = dout + cu_q[b] * HQ * DV;
    a->o = out->o, a->lse = out->lse, a->dq = out->dq, a->dk = out->dk, a->dv = out->dv, a->dlse = out->dlse;
    for (int64_t h = 0; h < HQ; h++)
        for (int64_t i = 0; i < a->seqlen_q; i++)
            out->dlse[h * a->seqlen_q + i] = dlse[h * TOTAL_Q + cu_q[b] + i];
    if (fk_args_layout(p, FK_BSHD, a)) fail_msg("%s", fk_last_error());
    return true;
}

/* ---- references ---------------------------------------------------------------------------------------- */

/* Rows [cu[b], cu[b + 1]) of a packed result [heads, total, dim] against sequence b's own [heads, length, dim], null:
 * zeros; rows of the sequence that the latter lacks must be 0, and those of no sequence must not have been touched. */
static void compare(const char *name, const double *all, int64_t heads, int64_t total, int64_t dim, const int32_t *cu,
                    double *const own[BATCH], const int64_t own_rows[BATCH], double none) {
    for (int64_t h = 0; h < heads; h++)
        for (int64_t row = 0; row < total; row++)
            for (int64_t i = 0; i < dim; i++) {
                int b = 0;
                while (b < BATCH && row >= cu[b + 1])
                    b++;
                const bool outside = row < cu[0] || b == BATCH;
                const int64_t local = outside ? 0 : row - cu[b];
                const double want = outside                           ? 77
                                    : !own[b] || local >= own_rows[b] ? none
                                                                      : own[b][(h * own_rows[b] + local) * dim + i];
                const double got = all[(h * total + row) * dim + i];
                if (got != want) fail_msg("%s[%d][%d][%d] is %g, not %g", name, (int)h, (int)row, (int)i, got, want);
            }
}

static double *seventy_sevens(size_t count) {
    double *out = malloc(count * sizeof *out);
    assert_non_null(out);
    for (size_t i = 0; i < count; i++)
        out[i] = 77;
    return out;
}

static void reference_of(const char *spelling, fk_reference_kind kind) {
    static alone memory;
    enum { NUM = 5 }; /* o, lse, dq, dk, dv */
    static const char *const name[NUM] = {"o", "lse", "dq", "dk", "dv"};
    static const int64_t heads[NUM] = {HQ, HQ, HQ, HKV, HKV}, dim[NUM] = {DV, 1, D, D, DV};
    const fk_problem p = parse(spelling);
    fk_args a = packed_args(&p);
    double *all[NUM], *own[NUM][BATCH] = {{NULL}};
    int64_t rows[NUM][BATCH];
    a.o = NULL;
    for (int n = 0; n < NUM; n++)
        all[n] = seventy_sevens((size_t)(heads[n] * dim[n] * TOTAL_K));
    if (fk_reference(&p, &a, kind, all[0], all[1]) || fk_reference_backward(&p, &a, kind, all[2], all[3], all[4]))
        fail_msg("%s: %s", spelling, fk_last_error());
    for (int b = 0; b < BATCH; b++) {
        fk_problem single;
        fk_args s;
        const bool there = alone_args(&p, b, &memory, &single, &s);
        s.o = NULL;
        for (int n = 0; n < NUM; n++) {
            rows[n][b] = n < 3 ? s.seqlen_q : s.seqlen_k;
            if (there) own[n][b] = seventy_sevens((size_t)(heads[n] * dim[n] * 128));
        }
        if (there && (fk_reference(&single, &s, kind, own[0][b], own[1][b]) ||
                      fk_reference_backward(&single, &s, kind, own[2][b], own[3][b], own[4][b])))
            fail_msg("%s, sequence %d: %s", spelling, b, fk_last_error());
    }
    for (int n = 0; n < NUM; n++) {
        compare(name[n], all[n], heads[n], n < 3 ? TOTAL_Q : TOTAL_K, dim[n], n < 3 ? cu_q : cu_k, own[n], rows[n],
                n == 1 ? -(double)INFINITY : 0);
        free(all[n]);
        for (int b = 0; b < BATCH; b++)
            free(own[n][b]);
    }
}

static const char *const spellings[] = {
    "bwd fp16 d16 dv24 gqa packed deterministic",
    "bwd fp16 d16 dv24 gqa packed causal deterministic",
    "bwd fp16 d16 dv24 gqa packed seqused_k causal deterministic",
    "bwd fp16 d16 dv24 gqa packed seqused_k window(30,4) top-left deterministic",
    "bwd fp16 d16 dv24 gqa packed keep=\"(q * 3 + k + seqlen_k) % 5 != 0\" deterministic",
};

static void references(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        reference_of(spellings[i], FK_REFERENCE_F64);
        reference_of(spellings[i], FK_REFERENCE_EAGER);
    }
}

/* ---- kernels -------------------------------------------------------------------------------------------- */

/* Returns in how many parts tiles came, the most. */
static int execute(fk_context *context, const fk_problem *problem, int32_t op, const fk_args *args) {
    fk_problem p = *problem;
    fk_kernel *kernel;
    fk_persistent tiles = {.num_splits = 1};
    void *workspace = NULL;
    p.op = op;
    if (op == FK_FORWARD) p.deterministic = 0;
    if (fk_kernel_create(context, &p, &kernel)) fail_msg("%s", fk_last_error());
    if (fk_is_persistent(kernel)) assert_true(fk_persistent_lay_out(kernel, args, &tiles));
    const size_t bytes = fk_kernel_workspace(kernel, args);
    if (bytes) assert_int_equal(posix_memalign(&workspace, 256, bytes), 0);
    if (bytes) memset(workspace, 0xff, bytes);
    if (fk_execute(kernel, args, workspace, bytes, NULL)) fail_msg("%s", fk_last_error());
    free(workspace);
    fk_kernel_destroy(kernel);
    return tiles.num_splits;
}

/* The same as `compare`, of 16-bit tensors [rows, heads, dim]. `own` of a sequence that is no problem by itself: 0. */
static void compare_bits(const char *name, const uint16_t *all, const uint16_t *own, bool there, int64_t own_rows,
                         const int32_t *cu, int b, int64_t width) {
    for (int64_t row = 0; row < cu[b + 1] - cu[b]; row++)
        for (int64_t i = 0; i < width; i++) {
            const uint16_t got = all[(cu[b] + row) * width + i];
            const uint16_t want = there && row < own_rows ? own[row * width + i] : 0;
            if (got != want && (got | want) != 0x8000) /* -0 is 0 */
                fail_msg("%s of sequence %d, row %d, element %d is %04x, not %04x", name, b, (int)row, (int)i, got,
                         want);
        }
}

static void untouched(const char *name, const uint16_t *all, const int32_t *cu, int64_t total, int64_t width) {
    for (int64_t i = 0; i < total * width; i++)
        if ((i < cu[0] * width || i >= cu[BATCH] * width) && all[i] != NAN_BITS)
            fail_msg("%s, row %d belongs to no sequence and was written", name, (int)(i / width));
}

static void kernel_of(fk_context *context, const char *spelling) {
    static alone own;
    const fk_problem p = parse(spelling);
    const fk_args a = packed_args(&p);
    execute(context, &p, FK_FORWARD, &a);
    execute(context, &p, FK_BACKWARD, &a);
    for (int b = 0; b < BATCH; b++) {
        fk_problem single;
        fk_args s;
        const bool there = alone_args(&p, b, &own, &single, &s);
        if (there) execute(context, &single, FK_FORWARD, &s);
        if (there) execute(context, &single, FK_BACKWARD, &s);
        compare_bits("o", o, own.o, there, s.seqlen_q, cu_q, b, HQ * DV);
        compare_bits("dq", dq, own.dq, there, s.seqlen_q, cu_q, b, HQ * D);
        compare_bits("dk", dk, own.dk, there, s.seqlen_k, cu_k, b, HKV * D);
        compare_bits("dv", dv, own.dv, there, s.seqlen_k, cu_k, b, HKV * DV);
        for (int64_t h = 0; h < HQ; h++)
            for (int64_t i = 0; i < s.seqlen_q; i++) {
                const float want = there ? own.lse[h * s.seqlen_q + i] : -INFINITY;
                if (lse[h * TOTAL_Q + cu_q[b] + i] != want)
                    fail_msg("%s: lse of sequence %d, head %d, row %d is %g, not %g", spelling, b, (int)h, (int)i,
                             (double)lse[h * TOTAL_Q + cu_q[b] + i], (double)want);
            }
    }
    untouched("o", o, cu_q, TOTAL_Q, HQ * DV);
    untouched("dq", dq, cu_q, TOTAL_Q, HQ * D);
    untouched("dk", dk, cu_k, TOTAL_K, HKV * D);
    untouched("dv", dv, cu_k, TOTAL_K, HKV * DV);
}

static void kernels_for(const char *plan_for, size_t first) {
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    fk_context *context;
    options.device = "emu", options.plan_for = plan_for, options.cache_mode = FK_CACHE_OFF;
    if (fk_context_create(&options, &context)) fail_msg("%s", fk_last_error());
    for (size_t i = first; i < sizeof spellings / sizeof *spellings; i++)
        kernel_of(context, spellings[i]);
    fk_context_destroy(context);
}

static void kernels(void **state) {
    (void)state;
    kernels_for("a100", 0);
}

static void kernels_without_async_copies(void **state) {
    (void)state;
    kernels_for("t4", 3);
}

/* A captured graph replays with what the arrays hold then: args stay as they were. */
static void lengths_are_read_at_run_time(void **state) {
    (void)state;
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    fk_context *context;
    options.device = "emu", options.plan_for = "a100", options.cache_mode = FK_CACHE_OFF;
    if (fk_context_create(&options, &context)) fail_msg("%s", fk_last_error());
    const int32_t was[2] = {cu_q[1], cu_k[1]}, used = used_k[3];
    kernel_of(context, spellings[2]);
    cu_q[1] = cu_q[2] = 31, cu_k[1] = 30, used_k[3] = 17;
    kernel_of(context, spellings[2]);
    cu_q[1] = cu_q[2] = was[0], cu_k[1] = was[1], used_k[3] = used;
    fk_context_destroy(context);
}

/* Whole tiles of rows that belong to no sequence. Two key tiles at most add to an element of dq, so that bits do not
 * depend on their order. */
static void first_sequence_far_behind(void **state) {
    (void)state;
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    fk_context *context;
    options.device = "emu", options.plan_for = "a100", options.cache_mode = FK_CACHE_OFF;
    if (fk_context_create(&options, &context)) fail_msg("%s", fk_last_error());
    for (int i = 0; i <= BATCH; i++)
        cu_q[i] += 140, cu_k[i] += 150;
    kernel_of(context, spellings[1]);
    kernel_of(context, "bwd fp16 d16 dv24 gqa packed causal");
    for (int i = 0; i <= BATCH; i++)
        cu_q[i] -= 140, cu_k[i] -= 150;
    fk_context_destroy(context);
}

/* 1,500 sequences of 0 to 2 queries and 0 to 3 keys: a tile's sequence is found in three rounds of 32. */
static void many_sequences(void **state) {
    (void)state;
    enum { COUNT = 1500, ROWS = 3 * COUNT };
    static int32_t many_q[COUNT + 1], many_k[COUNT + 1];
    static _Alignas(256) uint16_t x[3][ROWS * 16], out[ROWS * 16];
    const fk_problem p = parse("fwd fp16 d16 packed");
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    fk_context *context;
    fk_args a = FK_ARGS_INIT;
    for (int b = 0; b < COUNT; b++) {
        many_q[b + 1] = many_q[b] + b % 3;
        many_k[b + 1] = many_k[b] + b * 7 % 4;
    }
    for (uint32_t i = 0; i < 3; i++)
        fill(x[i], (const int32_t[BATCH + 1]){0, 0, 0, 0, ROWS}, ROWS, 16, i + 5);
    a.batch = COUNT, a.num_heads_q = a.num_heads_kv = 1, a.seqlen_q = 2, a.seqlen_k = 3;
    a.cu_seqlens_q = many_q, a.cu_seqlens_k = many_k, a.total_q = many_q[COUNT], a.total_k = many_k[COUNT];
    a.q = x[0], a.k = x[1], a.v = x[2], a.o = out;
    if (fk_args_layout(&p, FK_BSHD, &a)) fail_msg("%s", fk_last_error());
    options.device = "emu", options.plan_for = "a100", options.cache_mode = FK_CACHE_OFF;
    if (fk_context_create(&options, &context)) fail_msg("%s", fk_last_error());
    memset(out, 0xff, sizeof out);
    execute(context, &p, FK_FORWARD, &a);
    fk_context_destroy(context);
    double *want = seventy_sevens(ROWS * 16);
    if (fk_reference(&p, &a, FK_REFERENCE_F64, want, NULL)) fail_msg("%s", fk_last_error());
    for (int64_t i = 0; i < a.total_q * 16; i++)
        if (!(fabs((double)fk_fp16_to_float(out[i]) - want[i]) < 2e-3))
            fail_msg("row %d: %g, not %g", (int)i / 16, (double)fk_fp16_to_float(out[i]), want[i]);
    free(want);
}

/* Hopper's tiles of values reach into the next sequence, whose NaNs show in none but its own rows: weights of 0 would
 * bring them in, and then the tile is computed once more. */
static void neighbours_of_nans(void **state) {
    (void)state;
    static const char *const packed[] = {"fwd fp16 d16 dv24 gqa packed", "fwd fp16 d16 dv24 gqa packed causal",
                                         "fwd fp16 d16 dv24 gqa packed window(9,40)"};
    static const char *const plans[] = {"wgmma m64 n64 w20 s2 c1 q2 k2 o1", "wgmma m64 n64 w8 s2 c1 q1 k2 o1",
                                        "wgmma m128 n128 w12 s2 c1 q2 k2 o2"};
    for (size_t i = 0; i < sizeof packed / sizeof *packed; i++)
        for (size_t j = 0; j < sizeof plans / sizeof *plans; j++) {
            const fk_problem p = parse(packed[i]);
            const fk_args a = packed_args(&p);
            fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
            fk_context *context;
            options.device = "emu", options.plan_for = "h200", options.cache_mode = FK_CACHE_OFF;
            options.planning.plan = plans[j];
            memset(v + cu_k[1] * HKV * DV, 0xff,
                   (size_t)(cu_k[4] - cu_k[1]) * HKV * DV * sizeof *v); /* behind its last */
            if (fk_context_create(&options, &context)) fail_msg("%s", fk_last_error());
            execute(context, &p, FK_FORWARD, &a);
            fk_context_destroy(context);
            double *want = seventy_sevens(HQ * TOTAL_Q * DV);
            if (fk_reference(&p, &a, FK_REFERENCE_F64, want, NULL)) fail_msg("%s", fk_last_error());
            for (int row = cu_q[0]; row < cu_q[BATCH]; row++)
                for (int at = 0; at < HQ * DV; at++) {
                    const double exact = want[(at / DV * TOTAL_Q + row) * DV + at % DV];
                    const double got = (double)fk_fp16_to_float(o[row * HQ * DV + at]);
                    if (isnan(exact) != (row >= cu_q[3]) || (isnan(exact) ? !isnan(got) : !(fabs(got - exact) < 4e-3)))
                        fail_msg("%s, %s: row %d is %g, not %g", packed[i], plans[j], row, got, exact);
                }
            free(want);
        }
}

static void near_to(const char *name, const uint16_t *got, const double *want, int64_t heads, int64_t total,
                    int64_t dim, const int32_t *cu) {
    for (int64_t row = cu[0]; row < cu[BATCH]; row++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < dim; i++) {
                const double x = (double)fk_fp16_to_float(got[(row * heads + h) * dim + i]);
                const double exact = want[(h * total + row) * dim + i];
                if (!(fabs(x - exact) < 4e-3 + 4e-3 * fabs(exact)))
                    fail_msg("%s of row %d, head %d is %g, not %g", name, (int)row, (int)h, x, exact);
            }
}

/* Hopper's tiles of keys in parts, of few kv heads: sums of sequences that lie beside each other in the workspace. */
static void parts_of_keys(void **state) {
    (void)state;
    static const char *const packed[] = {"bwd fp16 d16 dv24 gqa packed", "bwd fp16 d16 dv24 gqa packed causal",
                                         "bwd fp16 d16 dv24 gqa packed window(30,40) deterministic"};
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    fk_context *forward, *backward;
    options.device = "emu", options.plan_for = "h200", options.cache_mode = FK_CACHE_OFF;
    if (fk_context_create(&options, &forward)) fail_msg("%s", fk_last_error());
    options.planning.plan = "wgmma m64 n128 w12 s2 c1 q2 k2 o1 p1";
    if (fk_context_create(&options, &backward)) fail_msg("%s", fk_last_error());
    for (size_t i = 0; i < sizeof packed / sizeof *packed; i++) {
        const fk_problem p = parse(packed[i]);
        const fk_args a = packed_args(&p);
        double *want[3] = {seventy_sevens(HQ * TOTAL_Q * D), seventy_sevens(HKV * TOTAL_K * D),
                           seventy_sevens(HKV * TOTAL_K * DV)};
        execute(forward, &p, FK_FORWARD, &a);
        assert_true(execute(backward, &p, FK_BACKWARD, &a) > 1);
        if (fk_reference_backward(&p, &a, FK_REFERENCE_F64, want[0], want[1], want[2])) fail_msg("%s", fk_last_error());
        near_to("dq", dq, want[0], HQ, TOTAL_Q, D, cu_q);
        near_to("dk", dk, want[1], HKV, TOTAL_K, D, cu_k);
        near_to("dv", dv, want[2], HKV, TOTAL_K, DV, cu_k);
        untouched("dq", dq, cu_q, TOTAL_Q, HQ * D);
        untouched("dk", dk, cu_k, TOTAL_K, HKV * D);
        untouched("dv", dv, cu_k, TOTAL_K, HKV * DV);
        for (int n = 0; n < 3; n++)
            free(want[n]);
    }
    fk_context_destroy(backward);
    fk_context_destroy(forward);
}

static void is_cleared(const char *name, const uint16_t *all, const uint16_t *kept, const int32_t *cu, int64_t total,
                       int64_t width) {
    for (int64_t i = 0; i < total * width; i++) {
        const bool rest = i < cu[0] * width || i >= cu[BATCH] * width;
        if (all[i] != (rest ? 0 : kept[i])) fail_msg("%s, row %d is %04x", name, (int)(i / width), all[i]);
    }
}

/* Rows of no sequence, where that is asked for; all others have what they have without. */
static void rest_is_cleared(void **state) {
    (void)state;
    static const char *const gpus[] = {"t4", "h200"};
    static uint16_t kept[4][TOTAL_K * HQ * DV];
    uint16_t *const out[4] = {o, dq, dk, dv};
    const size_t bytes[4] = {sizeof o, sizeof dq, sizeof dk, sizeof dv};
    for (int g = 0; g < 2; g++) {
        const fk_problem p = parse("bwd fp16 d16 dv24 gqa packed causal deterministic");
        fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
        fk_context *context;
        options.device = "emu", options.plan_for = gpus[g], options.cache_mode = FK_CACHE_OFF;
        if (fk_context_create(&options, &context)) fail_msg("%s", fk_last_error());
        for (int clear = 0; clear < 2; clear++) {
            fk_args a = packed_args(&p);
            a.clear_rest = clear;
            execute(context, &p, FK_FORWARD, &a);
            execute(context, &p, FK_BACKWARD, &a);
            for (int n = 0; n < 4 && !clear; n++)
                memcpy(kept[n], out[n], bytes[n]);
        }
        fk_context_destroy(context);
        is_cleared("o", o, kept[0], cu_q, TOTAL_Q, HQ * DV);
        is_cleared("dq", dq, kept[1], cu_q, TOTAL_Q, HQ * D);
        is_cleared("dk", dk, kept[2], cu_k, TOTAL_K, HKV * D);
        is_cleared("dv", dv, kept[3], cu_k, TOTAL_K, HKV * DV);
        for (int64_t i = 0; i < HQ * TOTAL_Q; i++)
            if (i % TOTAL_Q < cu_q[0] || i % TOTAL_Q >= cu_q[BATCH]) assert_true(lse[i] == -INFINITY);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(references),
        cmocka_unit_test(neighbours_of_nans),
        cmocka_unit_test(kernels),
        cmocka_unit_test(kernels_without_async_copies),
        cmocka_unit_test(lengths_are_read_at_run_time),
        cmocka_unit_test(first_sequence_far_behind),
        cmocka_unit_test(many_sequences),
        cmocka_unit_test(parts_of_keys),
        cmocka_unit_test(rest_is_cleared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

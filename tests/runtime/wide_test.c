/* Head dims above 256: two CTAs have half of the values' columns each, or by wgmma half of all, and sum up the scores
 * together. Packed, shared among splits, in pages, of heads that share rows, and in fp32, on the emulator against
 * float64. */
#include "emulated.h"
#include "launch.h"
#include "runtime/emulator/half.h"
#include "scratch.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { BATCH = 2, HQ = 4, HKV = 2, MOST_Q = 300, MOST_K = 1600, MOST_D = 576, MOST_DV = 512, PAGE = 16 };

typedef struct wide {
    const char *spelling, *plan_for;
    int32_t seqlen_q, seqlen_k, num_splits; /* packed: of the first sequence, at most; 0: as the model chooses */
} wide;

static const wide cases[] = {
    {"fwd fp16 d64 dv320 gqa packed causal", "a100", 70, 110, 0},
    {"fwd fp16 d64 dv512 gqa causal split", "a100", 3, 110, 3}, /* rows of two heads to a tile */
    {"fwd fp32 d64 dv320 gqa split", "a100", 3, 60, 2},
    {"fwd fp32 d64 dv320 gqa causal", "a100", 20, 60, 0},
    {"fwd fp16 d64 dv512 gqa causal split", "a100", 3, 110, 1},
    {"fwd fp16 d64 dv320 gqa packed seqused_k window(30,9) split", "a100", 70, 110, 3},
    {"fwd bf16 d64 dv384 gqa packed causal split paged(16)", "a100", 70, 110, 2},
    {"fwd fp16 d64 dv320 sink split", "a100", 20, 60, 2},
    {"fwd bf16 d64 dv320 sink", "a100", 20, 60, 0}, /* of which one is more than exp can be of */
    {"fwd bf16 d64 dv448 gqa top-left causal paged", "a100", 70, 110, 0},
    {"fwd fp16 d64 dv320 gqa", "t4", 3, 750, 0}, /* L2 holds one head at a time */
    {"fwd fp16 d64 dv320 gqa split", "t4", 70, 750, 2},
    {"fwd fp16 d64 dv320 gqa packed", "t4", 9, 2000, 0},
    {"fwd bf16 d576 dv512 gqa causal", "h200", 150, 200, 0},
    {"fwd fp16 d320 gqa window(40,9) sink", "h200", 140, 110, 0}, /* rows without a key */
    {"fwd bf16 d72 dv384 gqa", "h200", 20, 110, 0}, /* of 48 columns of Q the second CTA has 24, and zeros */
    {"fwd fp16 d512 dv104 gqa softcap(20) causal", "h200", 130, 130, 0},
    {"fwd bf16 d512 gqa packed causal", "h200", 70, 110, 0},
    {"fwd fp16 d320 gqa packed seqused_k butterfly(16) paged(16)", "h200", 70, 110, 0},
    {"fwd bf16 d512 gqa paged(8) causal", "h200", 150, 110, 0},
    {"fwd bf16 d576 dv512 latent gqa causal", "h200", 150, 200, 0}, /* values out of the tiles of keys */
    {"fwd fp16 d320 dv256 latent gqa paged(8)", "h200", 140, 110, 0},
    {"fwd bf16 d512 latent gqa packed causal", "h200", 70, 110, 0},
    {"fwd bf16 d576 dv512 latent gqa packed seqused_k butterfly(16) paged(16)", "h200", 70, 110, 0},
    {"fwd fp16 d320 dv256 latent gqa keep=\"q >= 128 && (q + k) % 3 == 0\"", "h200", 150, 200, 0}, /* some visit none */
    {"fwd bf16 d576 dv320 latent gqa", "h200", 140, 110, 0}, /* which are no whole panels of each CTA */
    {"fwd fp16 d64 dv32 latent gqa causal split paged", "a100", 3, 110, 3},
};

static char store_dir[256];
static _Alignas(256) float q[MOST_Q * HQ * MOST_D], k[MOST_K * HKV * MOST_D], v[MOST_K * HKV * MOST_DV],
    o[MOST_Q * HQ * MOST_DV], lse[MOST_Q * HQ], sinks[HQ] = {0.5f, -1, 200, 0}; /* or of 16 bits, in their place */
static double exact[MOST_Q * HQ * MOST_DV], exact_lse[MOST_Q * HQ];

static void fill(void *data, size_t elements, fk_dtype dtype, uint32_t seed) {
    for (size_t i = 0; i < elements; i++) {
        seed = seed * 1664525u + 1013904223u;
        const float x = (float)((int)(seed >> 24) - 128) / 64;
        if (dtype == FK_FP32)
            ((float *)data)[i] = x;
        else
            ((uint16_t *)data)[i] = dtype == FK_BF16 ? fk_bf16_from_float(x) : fk_fp16_from_float(x);
    }
}

static double element(const void *data, int64_t i, fk_dtype dtype) {
    if (dtype == FK_FP32) return (double)((const float *)data)[i];
    const uint16_t bits = ((const uint16_t *)data)[i];
    return (double)(dtype == FK_BF16 ? fk_bf16_to_float(bits) : fk_fp16_to_float(bits));
}

/* Row `row` of o, of `rows` in all, is [h][row] of an exact result, or [b][h][i]. */
static void check(const wide *w, const fk_problem *p, const fk_args *a, int64_t rows) {
    const double most = p->dtype == FK_FP32 ? 1e-5 : p->dtype == FK_BF16 ? 2e-2 : 4e-3;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t h = 0; h < HQ; h++) {
            const int64_t b = p->packed ? 0 : row / a->seqlen_q, length = p->packed ? rows : a->seqlen_q;
            const int64_t at = (b * HQ + h) * length + row - b * length;
            if (isinf(exact_lse[at]) ? (double)lse[at] != exact_lse[at]
                                     : !(fabs((double)lse[at] - exact_lse[at]) < 1e-3))
                fail_msg("%s: lse of row %d, head %d is %g, not %g", w->spelling, (int)row, (int)h, (double)lse[at],
                         exact_lse[at]);
            for (int64_t i = 0; i < p->head_dim_v; i++) {
                const double got = element(o, (row * HQ + h) * p->head_dim_v + i, (fk_dtype)p->dtype);
                const double want = exact[at * p->head_dim_v + i];
                if (!(fabs(got - want) < most))
                    fail_msg("%s: row %d, head %d, column %d is %g, not %g", w->spelling, (int)row, (int)h, (int)i, got,
                             want);
            }
        }
}

static void run(const wide *w) {
    const bool halves = strcmp(w->plan_for, "h200") == 0; /* by one cluster, so that it goes through several tiles */
    const emulated order = {halves ? "2" : "", "7", "1"};
    fk_context *context = emulated_context(w->plan_for, store_dir, &order);
    const int32_t cu_q[BATCH + 1] = {0, w->seqlen_q, w->seqlen_q + 7}, cu_k[BATCH + 1] = {0, 90, 200};
    const int32_t used_k[BATCH] = {85, 110};
    int32_t table[BATCH * 8];
    fk_kernel *kernel = emulated_kernel(context, w->spelling, NULL);
    fk_problem p;
    fk_args a = FK_ARGS_INIT;
    fk_kernel_info info;
    assert_int_equal(fk_problem_parse(w->spelling, &p), FK_OK);
    assert_int_equal(fk_kernel_describe(kernel, &info), FK_OK);
    if (strcmp(info.plan.family, halves ? "wgmma" : "mma") != 0)
        fail_msg("%s: family %s", w->spelling, info.plan.family);
    for (int i = 0; i < BATCH * 8; i++)
        table[i] = (5 * i + 3) % (MOST_K / PAGE);
    a.batch = BATCH, a.num_heads_q = HQ, a.num_heads_kv = p.gqa ? HKV : HQ;
    a.seqlen_q = w->seqlen_q, a.seqlen_k = w->seqlen_k, a.num_splits = w->num_splits;
    a.total_q = cu_q[BATCH], a.total_k = cu_k[BATCH], a.cu_seqlens_q = cu_q, a.cu_seqlens_k = cu_k;
    a.seqused_k = p.seqused_k ? used_k : NULL;
    a.page_size = PAGE, a.num_pages = MOST_K / PAGE, a.page_table = table, a.page_table_stride = 8;
    a.q = q, a.k = k, a.v = v, a.o = o, a.lse = lse, a.array[0].data = sinks, a.array[0].stride[0] = 1;
    fill(q, sizeof q / sizeof *q, (fk_dtype)p.dtype, 1);
    fill(k, sizeof k / sizeof *k, (fk_dtype)p.dtype, 2);
    fill(v, sizeof v / sizeof *v, (fk_dtype)p.dtype, 3);
    memset(o, 0xff, sizeof o);
    memset(lse, 0xff, sizeof lse);
    if (fk_args_layout(&p, FK_BSHD, &a) || launch_once(context, kernel, &a) ||
        fk_reference(&p, &a, FK_REFERENCE_F64, exact, exact_lse))
        fail_msg("%s: %s", w->spelling, fk_last_error());
    check(w, &p, &a, p.packed ? a.total_q : BATCH * a.seqlen_q);
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
}

static void test_halves_of_values(void **state) {
    (void)state;
    const size_t count = emulated_cases(sizeof cases / sizeof *cases);
    for (size_t i = 0; i < count; i++)
        run(&cases[i]);
}

static int start(void **state) {
    (void)state;
    return scratch_make(store_dir, sizeof store_dir) ? 0 : -1;
}

static int stop(void **state) {
    (void)state;
    return scratch_remove(store_dir) ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_halves_of_values)};
    return cmocka_run_group_tests(tests, start, stop);
}

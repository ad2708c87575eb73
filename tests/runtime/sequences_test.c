/* Launches of packed sequences: what is refused of sizes, pointers and what the arrays hold; parameter block, grids and
 * workspace of good ones. What kernels compute is packed_test.c's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/object.h"

#include <stdio.h>
#include <string.h>

/* 3 sequences of 100, 0 and 60 queries, 300, 9 and 0 keys; 6 query heads over 3 kv heads, d 64, dv 32. */
enum { TOTAL_Q = 170, TOTAL_K = 320 };
static _Alignas(256) char q[TOTAL_Q * 6 * 64 * 2], k[TOTAL_K * 3 * 64 * 2], v[TOTAL_K * 3 * 32 * 2],
    o[TOTAL_Q * 6 * 32 * 2], dout[sizeof o], dq[sizeof q], dk[sizeof k], dv[sizeof v], workspace[1 << 21];
static float lse[6 * TOTAL_Q], dlse[6 * TOTAL_Q];
static const int32_t good_cu_q[4] = {0, 100, 100, 160}, good_cu_k[4] = {11, 311, 320, 320};
static int32_t cu_q[4], cu_k[4], used[3];

static fk_kernel a_kernel(int op) {
    static fk_kernel kernel;
    fk_problem p = FK_PROBLEM_INIT;
    p.op = op, p.head_dim = 64, p.head_dim_v = 32, p.gqa = 1, p.packed = p.seqused_k = 1;
    memset(&kernel, 0, sizeof kernel);
    assert_int_equal(fk_problem_canonical(&p, &kernel.problem), FK_OK);
    kernel.info.plan.block_m = 64, kernel.info.plan.block_n = 128;
    kernel.launch[0] = (fk_kernel_launch){"fk_forward", 128, 0, FK_GRID_TILES};
    kernel.num_launches = 1;
    if (op == FK_BACKWARD) {
        kernel.launch[0] = (fk_kernel_launch){"fk_backward_delta", 128, 0, FK_GRID_ROWS};
        kernel.launch[1] = (fk_kernel_launch){"fk_backward", 256, 1000, FK_GRID_TILES};
        kernel.launch[2] = (fk_kernel_launch){"fk_backward_dq", 128, 0, FK_GRID_ROW_CHUNKS};
        kernel.num_launches = 3;
    }
    kernel.d_pad = 64;
    kernel.l2_bytes = 40 << 20;
    return kernel;
}

static fk_args good_args(const fk_kernel *kernel) {
    fk_args a = FK_ARGS_INIT;
    a.batch = 3, a.num_heads_q = 6, a.num_heads_kv = 3, a.seqlen_q = 100, a.seqlen_k = 300;
    a.q = q, a.k = k, a.v = v, a.o = o, a.lse = lse, a.dout = dout, a.dq = dq, a.dk = dk, a.dv = dv;
    memcpy(cu_q, good_cu_q, sizeof cu_q);
    memcpy(cu_k, good_cu_k, sizeof cu_k);
    a.cu_seqlens_q = cu_q, a.cu_seqlens_k = cu_k, a.total_q = TOTAL_Q, a.total_k = TOTAL_K, a.seqused_k = used;
    assert_int_equal(fk_args_layout(&kernel->problem, FK_BSHD, &a), FK_OK);
    return a;
}

typedef struct refusal {
    const char *what;
    void (*change)(fk_args *a);
    const char *words[4];
} refusal;

#define CHANGE(name, statement)                                                                                        \
    static void name(fk_args *a) {                                                                                     \
        (void)a;                                                                                                       \
        statement;                                                                                                     \
    }
CHANGE(no_queries, a->total_q = 0)
CHANGE(many_keys, a->total_k = (int64_t)1 << 31)
CHANGE(cu_q_null, a->cu_seqlens_q = NULL)
CHANGE(cu_k_null, a->cu_seqlens_k = NULL)
CHANGE(used_null, a->seqused_k = NULL)
CHANGE(cu_q_misaligned, a->cu_seqlens_q = (const void *)((const char *)cu_q + 2))
CHANGE(rows_overlap, a->dk_stride[1] = 8)
CHANGE(heads_odd, a->q_stride[2] = 63)
CHANGE(dq_in_lengths, a->cu_seqlens_k = (const void *)dq)
CHANGE(dv_in_used, a->seqused_k = (const void *)dv)
CHANGE(many_sequences, (a->batch = (int64_t)1 << 25, a->cu_seqlens_q = a->cu_seqlens_k = (void *)((uintptr_t)1 << 60),
                        a->seqused_k = a->cu_seqlens_q))
CHANGE(starts_before, cu_q[0] = -1)
CHANGE(shrinks, cu_k[2] = 310)
CHANGE(longer_than_said, a->seqlen_q = 99)
CHANGE(ends_behind, cu_k[3] = 321)

static void expect(const char *what, fk_status status, const char *text, const char *const words[4]) {
    if (status != FK_BAD_ARGUMENT) fail_msg("%s: not refused: %s", what, text);
    for (int i = 0; i < 4 && words[i]; i++)
        if (!strstr(text, words[i])) fail_msg("%s: \"%s\" is not in \"%s\"", what, words[i], text);
}

static void launches_refused(void **state) {
    (void)state;
    static const refusal refusals[] = {
        {"no queries", no_queries, {"total_q is 0", "1 to 2147483647"}},
        {"many keys", many_keys, {"total_k is 2147483648", "1 to 2147483647"}},
        {"cu_q null", cu_q_null, {"cu_seqlens_q is null"}},
        {"cu_k null", cu_k_null, {"cu_seqlens_k is null"}},
        {"used null", used_null, {"seqused_k is null"}},
        {"cu_q misaligned", cu_q_misaligned, {"cu_seqlens_q is at 0x", "4 bytes"}},
        {"rows overlap", rows_overlap, {"dk_stride[1] (seqlen) is 8", "overlap"}},
        {"heads odd", heads_odd, {"q_stride[2] (head) is 63", "multiple of 8"}},
        {"dq in lengths", dq_in_lengths, {"dq at 0x", "overlaps cu_seqlens_k at 0x"}},
        {"dv in used", dv_in_used, {"dv at 0x", "overlaps seqused_k at 0x"}},
        {"many sequences", many_sequences, {"total_q", "batch is 33554432", "2147483647"}},
    };
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        fk_kernel kernel = a_kernel(FK_BACKWARD);
        fk_args a = good_args(&kernel);
        const fk_workspace w = {workspace, sizeof workspace};
        fk_backward_params params;
        fk_grid grids[FK_MAX_KERNELS];
        fk_error err = {.text = ""};
        refusals[i].change(&a);
        const fk_status status = fk_backward_prepare(&kernel, &a, &w, &params, grids, &err);
        expect(refusals[i].what, status, err.text, refusals[i].words);
    }
}

/* Where the arrays are the host's. */
static void contents_refused(void **state) {
    (void)state;
    static const refusal refusals[] = {
        {"starts before", starts_before, {"cu_seqlens_q[0] is -1", "at least 0"}},
        {"shrinks", shrinks, {"cu_seqlens_k[2] is 310", "at least the one before, 311"}},
        {"longer than said", longer_than_said, {"cu_seqlens_q[1] is 100, 100 more", "seqlen_q, 99"}},
        {"ends behind", ends_behind, {"cu_seqlens_k[3] is 321", "total_k, 320"}},
    };
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const fk_kernel kernel = a_kernel(FK_FORWARD);
        fk_args a = good_args(&kernel);
        refusals[i].change(&a);
        const fk_status status = fk_reference(&kernel.problem, &a, FK_REFERENCE_F64, NULL, NULL);
        expect(refusals[i].what, status, fk_last_error(), refusals[i].words);
    }
}

static void assert_grid(const fk_grid *grid, uint32_t x, uint32_t y, uint32_t z) {
    assert_int_equal(grid->x, x);
    assert_int_equal(grid->y, y);
    assert_int_equal(grid->z, z);
}

static void forward_accepted(void **state) {
    (void)state;
    fk_kernel kernel = a_kernel(FK_FORWARD);
    fk_args a = good_args(&kernel);
    fk_forward_params p;
    fk_grid grids[FK_MAX_KERNELS];
    a.q_stride[0] = -3; /* there is no such stride */
    assert_int_equal(fk_forward_prepare(&kernel, &a, NULL, &p, grids, NULL), FK_OK);
    assert_grid(&grids[0], (170 / 64 + 3) * 6, 1, 1); /* 170 queries in 3 sequences: at most 5 tiles of 64 */
    assert_ptr_equal(p.cu_seqlens_q, cu_q);
    assert_ptr_equal(p.cu_seqlens_k, cu_k);
    assert_ptr_equal(p.seqused_k, used);
    assert_int_equal(p.total_q, TOTAL_Q);
    assert_int_equal(p.group_heads, 6);
    assert_int_equal(p.group_inverse, (((uint64_t)1 << 32) / 6));
    assert_int_equal(a.o_stride[0], 0);
    assert_int_equal(a.o_stride[1], 6 * 32);
    kernel.l2_bytes = 2 * 2 * 300 * 96 * 2; /* keys and values of two heads in its half: groups of 2 and 1 */
    assert_int_equal(fk_forward_prepare(&kernel, &a, NULL, &p, grids, NULL), FK_OK);
    assert_grid(&grids[0], 5 * 4, 2, 1);
    assert_int_equal(p.group_heads, 4);
    assert_int_equal(fk_args_layout(&kernel.problem, FK_BHSD, &a), FK_OK);
    assert_int_equal(a.k_stride[1], 64);
    assert_int_equal(a.k_stride[2], TOTAL_K * 64);
}

static void backward_accepted(void **state) {
    (void)state;
    fk_kernel kernel = a_kernel(FK_BACKWARD);
    fk_args a = good_args(&kernel);
    const fk_workspace w = {workspace, sizeof workspace};
    fk_backward_params p;
    fk_grid grids[FK_MAX_KERNELS];
    a.dlse = dlse;
    assert_int_equal(fk_backward_prepare(&kernel, &a, &w, &p, grids, NULL), FK_OK);
    assert_grid(&grids[0], 5 * 64 / 16, 6, 1);         /* 16 rows a CTA, for each head */
    assert_grid(&grids[1], (320 / 128 + 3) * 3, 1, 1); /* tiles of 128 keys, for each kv head */
    assert_grid(&grids[2], 5, 6, 1);                   /* a tile of 64 queries a CTA */
    assert_int_equal(p.q_padded, 5 * 64);
    assert_int_equal(p.group_heads, 6);
    assert_int_equal(p.kv_group_heads, 3);
    assert_int_equal(p.kv_group_inverse, (((uint64_t)1 << 32) / 3));
    assert_ptr_equal(p.lse_log2, workspace + 6 * 320 * 4);
    assert_ptr_equal(p.dq_acc, workspace + 2 * 6 * 320 * 4);
    assert_int_equal(fk_kernel_workspace(&kernel, &a), 6 * 320 * (4 + 4 + 64 * 4));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(launches_refused),
        cmocka_unit_test(contents_refused),
        cmocka_unit_test(forward_accepted),
        cmocka_unit_test(backward_accepted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

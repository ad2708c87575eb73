/* Every argument that is refused, with field, value and limit in the sentence; and the parameter block of good ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/object.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* batch 2, 6 query heads over 3 kv heads, 100 queries, 300 keys, d 64, dv 32; contiguous [batch, seqlen, head]. */
static _Alignas(16) char q[2 * 100 * 6 * 64 * 2], k[2 * 300 * 3 * 64 * 2], v[2 * 300 * 3 * 32 * 2],
    o[2 * 100 * 6 * 32 * 2];
static float lse[2 * 6 * 100];

static fk_kernel a_kernel(void) {
    static fk_kernel kernel;
    fk_problem p = FK_PROBLEM_INIT;
    p.head_dim = 64, p.head_dim_v = 32, p.gqa = 1;
    memset(&kernel, 0, sizeof kernel);
    assert_int_equal(fk_problem_canonical(&p, &kernel.problem), FK_OK);
    kernel.info.plan.block_m = 64;
    kernel.launch[0].grid = FK_GRID_TILES;
    kernel.num_launches = 1;
    kernel.l2_bytes = 40 << 20;
    kernel.mask_value[0] = 1024, kernel.mask_value[1] = -3;
    return kernel;
}

static fk_args good_args(const fk_kernel *kernel) {
    fk_args a = FK_ARGS_INIT;
    a.batch = 2, a.num_heads_q = 6, a.num_heads_kv = 3, a.seqlen_q = 100, a.seqlen_k = 300;
    a.q = q, a.k = k, a.v = v, a.o = o, a.lse = lse;
    assert_int_equal(fk_args_layout(&kernel->problem, FK_BSHD, &a), FK_OK);
    return a;
}

/* What is changed in good arguments, and the words that the refusal must hold. */
typedef struct refusal {
    const char *what;
    void (*change)(fk_args *a, fk_kernel *kernel);
    const char *words[4];
} refusal;

#define CHANGE(name, statement)                                                                                        \
    static void name(fk_args *a, fk_kernel *kernel) {                                                                  \
        (void)a, (void)kernel;                                                                                         \
        statement;                                                                                                     \
    }
CHANGE(struct_size, a->struct_size = 8)
CHANGE(batch_0, a->batch = 0)
CHANGE(batch_negative, a->batch = -1)
CHANGE(batch_large, a->batch = (int64_t)1 << 31)
CHANGE(heads_q_0, a->num_heads_q = 0)
CHANGE(heads_kv_0, a->num_heads_kv = 0)
CHANGE(seqlen_q_0, a->seqlen_q = 0)
CHANGE(seqlen_k_0, a->seqlen_k = 0)
CHANGE(seqlen_q_large, a->seqlen_q = FK_MAX_SEQLEN + 1)
CHANGE(seqlen_k_large, a->seqlen_k = FK_MAX_SEQLEN + 1)
CHANGE(heads_product, (a->batch = 1 << 20, a->num_heads_q = 3 << 20))
CHANGE(heads_multiple, a->num_heads_kv = 4)
CHANGE(heads_equal, kernel->problem.gqa = 0)
CHANGE(q_null, a->q = NULL)
CHANGE(k_null, a->k = NULL)
CHANGE(v_null, a->v = NULL)
CHANGE(o_null, a->o = NULL)
CHANGE(q_misaligned, a->q = q + 8)
CHANGE(k_misaligned, a->k = k + 2)
CHANGE(v_misaligned, a->v = v + 1)
CHANGE(o_misaligned, a->o = o + 4)
CHANGE(lse_misaligned, a->lse = (void *)((char *)lse + 2))
CHANGE(condition_misaligned, a->condition = (const void *)((const char *)q + 2))
CHANGE(o_in_condition, a->condition = a->o)
CHANGE(o_in_state, (a->batch = 1, kernel->problem.dropout = 1, a->dropout_p = 0.5f,
                    a->dropout_state = (const void *)(o + 8), a->o = o + 16))
CHANGE(q_stride_negative, a->q_stride[1] = -64)
CHANGE(k_stride_odd, a->k_stride[2] = 68)
CHANGE(v_stride_odd, a->v_stride[0] = 28801)
CHANGE(q_stride_huge, a->q_stride[0] = INT64_MAX - 7)
CHANGE(k_stride_huge, a->k_stride[1] = (int64_t)1 << 55)
CHANGE(o_stride_zero, a->o_stride[1] = 0)
CHANGE(o_stride_small, a->o_stride[2] = 24)
CHANGE(o_heads_within, a->o_stride[1] = a->o_stride[2] = 32)
CHANGE(o_is_q, a->o = q)
CHANGE(o_in_k, a->o = k + 64)
CHANGE(lse_in_v, a->lse = (float *)(void *)v)
CHANGE(lse_in_o, a->lse = (float *)(void *)(o + 16))
CHANGE(scale_negative, a->softmax_scale = -0.5f)
CHANGE(scale_nan, a->softmax_scale = NAN)
CHANGE(scale_infinite, a->softmax_scale = INFINITY)
CHANGE(grid, (a->batch = 1, a->seqlen_q = 65535 * 64 + 1, a->lse = NULL, a->o = (void *)((uintptr_t)1 << 60)))

static const refusal refusals[] = {
    {"struct_size", struct_size, {"struct_size", "8", "FK_ARGS_INIT"}},
    {"batch 0", batch_0, {"batch is 0", "1 to 2147483647"}},
    {"batch -1", batch_negative, {"batch is -1", "1 to 2147483647"}},
    {"batch 2^31", batch_large, {"batch is 2147483648", "1 to 2147483647"}},
    {"num_heads_q 0", heads_q_0, {"num_heads_q is 0", "1 to"}},
    {"num_heads_kv 0", heads_kv_0, {"num_heads_kv is 0", "1 to"}},
    {"seqlen_q 0", seqlen_q_0, {"seqlen_q is 0", "1 to 1073741824"}},
    {"seqlen_k 0", seqlen_k_0, {"seqlen_k is 0", "1 to 1073741824"}},
    {"seqlen_q 2^30+1", seqlen_q_large, {"seqlen_q is 1073741825", "1 to 1073741824"}},
    {"seqlen_k 2^30+1", seqlen_k_large, {"seqlen_k is 1073741825", "1 to 1073741824"}},
    {"batch x heads", heads_product, {"batch x num_heads_q", "1048576 x 3145728", "1073741824"}},
    {"heads not a multiple", heads_multiple, {"num_heads_q is 6", "multiple of num_heads_kv", "4"}},
    {"heads not equal", heads_equal, {"num_heads_q is 6", "num_heads_kv is 3", "gqa"}},
    {"q null", q_null, {"q is null"}},
    {"k null", k_null, {"k is null"}},
    {"v null", v_null, {"v is null"}},
    {"o null", o_null, {"o is null"}},
    {"q misaligned", q_misaligned, {"q is at 0x", "16 bytes"}},
    {"k misaligned", k_misaligned, {"k is at 0x", "16 bytes"}},
    {"v misaligned", v_misaligned, {"v is at 0x", "16 bytes"}},
    {"o misaligned", o_misaligned, {"o is at 0x", "16 bytes"}},
    {"lse misaligned", lse_misaligned, {"lse is at 0x", "4 bytes"}},
    {"condition misaligned", condition_misaligned, {"condition is at 0x", "4 bytes"}},
    {"o in condition", o_in_condition, {"o at 0x", "overlaps condition at 0x"}},
    {"o in dropout_state", o_in_state, {"o at 0x", "overlaps dropout_state at 0x"}}, /* its second word */
    {"q stride negative", q_stride_negative, {"q_stride[1] (seqlen) is -64", "at least 0"}},
    {"k stride odd", k_stride_odd, {"k_stride[2] (head) is 68", "multiple of 8"}},
    {"v stride odd", v_stride_odd, {"v_stride[0] (batch) is 28801", "multiple of 8"}},
    {"q stride huge", q_stride_huge, {"q_stride[0] (batch) is 9223372036854775800", "2^60"}},
    {"k stride huge", k_stride_huge, {"k_stride[1] (seqlen) is 36028797018963968", "300 entries", "2^60"}},
    {"o stride 0", o_stride_zero, {"o_stride[1] (seqlen) is 0", "overlap", "head_dim_v, 32"}},
    {"o stride 24", o_stride_small, {"o_stride[2] (head) is 24", "overlap", "head_dim_v, 32"}},
    {"o heads in rows", o_heads_within, {"o_stride[1] (seqlen) is 32", "overlap", "what smaller strides span, 192"}},
    {"o is q", o_is_q, {"o at 0x", "overlaps q at 0x"}},
    {"o in k", o_in_k, {"o at 0x", "overlaps k at 0x"}},
    {"lse in v", lse_in_v, {"lse at 0x", "overlaps v at 0x"}},
    {"lse in o", lse_in_o, {"lse at 0x", "overlaps o at 0x"}},
    {"scale negative", scale_negative, {"softmax_scale is -0.5", "at least 0"}},
    {"scale nan", scale_nan, {"softmax_scale is nan", "finite"}},
    {"scale inf", scale_infinite, {"softmax_scale is inf", "finite"}},
    {"grid", grid, {"seqlen_q is 4194241", "64 rows", "4194240"}},
};

static void refused(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        fk_kernel kernel = a_kernel();
        fk_args a = good_args(&kernel);
        fk_forward_params params;
        fk_grid cells[FK_MAX_KERNELS];
        fk_error err = {.text = ""};
        refusals[i].change(&a, &kernel);
        if (fk_forward_prepare(&kernel, &a, NULL, &params, cells, &err) != FK_BAD_ARGUMENT)
            fail_msg("%s: not refused: %s", refusals[i].what, err.text);
        for (int j = 0; j < 4 && refusals[i].words[j]; j++)
            if (!strstr(err.text, refusals[i].words[j]))
                fail_msg("%s: \"%s\" is not in \"%s\"", refusals[i].what, refusals[i].words[j], err.text);
    }
}

static void assert_grid(const fk_grid *grid, uint32_t x, uint32_t y, uint32_t z) {
    assert_int_equal(grid->x, x);
    assert_int_equal(grid->y, y);
    assert_int_equal(grid->z, z);
}

/* Whatever the numbers, the groups hold every head and no group is empty. */
static void grids(void **state) {
    (void)state;
    static const int64_t cases[][4] = {/* batch, heads q, heads kv, L2 bytes */
                                       {1, 1, 1, 1},       {1, 1, 1, 1 << 30},   {7, 5, 5, 1 << 20},
                                       {70000, 1, 1, 1},   {1, 70000, 70000, 1}, {300, 1000, 500, 1},
                                       {3, 12, 4, 500000}, {1, 64, 1, 100000},   {5, 9, 3, 2000000}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fk_kernel kernel = a_kernel();
        fk_args a = good_args(&kernel);
        fk_forward_params p;
        fk_grid cells[FK_MAX_KERNELS];
        a.batch = cases[i][0], a.num_heads_q = cases[i][1], a.num_heads_kv = cases[i][2], a.seqlen_q = 1;
        kernel.l2_bytes = cases[i][3];
        a.lse = NULL, a.o = (void *)((uintptr_t)1 << 60);
        assert_int_equal(fk_args_layout(&kernel.problem, FK_BSHD, &a), FK_OK);
        assert_int_equal(fk_forward_prepare(&kernel, &a, NULL, &p, cells, NULL), FK_OK);
        assert_true((int64_t)cells[0].x * cells[0].z >= a.batch * a.num_heads_q);
        assert_true((int64_t)cells[0].x * (cells[0].z - 1) < a.batch * a.num_heads_q);
        assert_true(cells[0].z <= 65535 && cells[0].x % (a.num_heads_q / a.num_heads_kv) == 0);
        for (int64_t head = 0; head < a.batch * a.num_heads_q; head += 1 + head / 7) { /* the kernel's division */
            const int64_t quotient = (int64_t)((uint64_t)head * p.heads_inverse >> 32);
            assert_in_range(head / a.num_heads_q - quotient, 0, 1);
        }
    }
}

static void accepted(void **state) {
    (void)state;
    fk_kernel kernel = a_kernel();
    fk_args a = good_args(&kernel);
    fk_forward_params p;
    fk_grid cells[FK_MAX_KERNELS];
    assert_int_equal(fk_forward_prepare(&kernel, &a, NULL, &p, cells, NULL), FK_OK);
    assert_grid(cells, 12, 2, 1); /* 100 rows are two tiles of 64 */
    assert_ptr_equal(p.q, q);
    assert_ptr_equal(p.o, o);
    assert_ptr_equal(p.lse, lse);
    assert_int_equal(p.q_batch_stride, 100 * 6 * 64);
    assert_int_equal(p.k_row_stride, 3 * 64);
    assert_int_equal(p.v_head_stride, 32);
    assert_int_equal(p.o_row_stride, 6 * 32);
    assert_int_equal(p.num_heads_q, 6);
    assert_int_equal(p.heads_per_kv, 2);
    assert_int_equal(p.diag, 200);
    assert_int_equal(p.batch, 2);
    assert_int_equal(p.heads_inverse, 715827882); /* 2^32 / 6 */
    assert_int_equal(p.mask_value[0], 1024);
    assert_int_equal(p.mask_value[1], -3);
    assert_float_equal(p.scale, 0.125, 0);
    assert_float_equal(p.scale_log2, 0.18033688f, 1e-8f);

    kernel.problem.align = FK_TOP_LEFT;
    kernel.l2_bytes = 2 * (300 * (64 + 32) * 2 * 2 + 5); /* half of it holds two kv heads, so four query heads */
    a.softmax_scale = 2, a.lse = NULL;
    a.k_stride[0] = a.v_stride[0] = 0; /* one K and V for all batches */
    assert_int_equal(fk_forward_prepare(&kernel, &a, NULL, &p, cells, NULL), FK_OK);
    assert_int_equal(p.diag, 0);
    assert_grid(cells, 4, 2, 3);
    assert_float_equal(p.scale, 2, 0);
    assert_null(p.lse);
    kernel.l2_bytes = 1000;
    assert_int_equal(fk_forward_prepare(&kernel, &a, NULL, &p, cells, NULL), FK_OK);
    assert_grid(cells, 2, 2, 6); /* one kv head at a time */
}

/* Elements of 8 bits are copied 8 at a time, which are 16 bytes in shared memory. */
static void strides_of_narrow_keys(void **state) {
    (void)state;
    fk_kernel kernel = a_kernel();
    fk_args a = good_args(&kernel);
    fk_forward_params p;
    fk_grid cells[FK_MAX_KERNELS];
    fk_error err;
    kernel.problem.kv_e4m3 = 1;
    a.k_stride[1] = 3 * 64 + 8, a.v_stride[1] = 3 * 32 + 8;
    a.k = k + 8, a.v = v + 24;
    assert_int_equal(fk_forward_prepare(&kernel, &a, NULL, &p, cells, NULL), FK_OK);
    a.v_stride[1] = 3 * 32 + 4;
    assert_int_equal(fk_forward_prepare(&kernel, &a, NULL, &p, cells, &err), FK_BAD_ARGUMENT);
    assert_non_null(strstr(err.text, "v_stride"));
}

static void layouts(void **state) {
    (void)state;
    fk_kernel kernel = a_kernel();
    fk_args a = good_args(&kernel);
    assert_int_equal(fk_args_layout(&kernel.problem, FK_BHSD, &a), FK_OK);
    assert_int_equal(a.q_stride[0], 6 * 100 * 64);
    assert_int_equal(a.q_stride[1], 64);
    assert_int_equal(a.q_stride[2], 100 * 64);
    assert_int_equal(a.v_stride[2], 300 * 32);
    assert_int_equal(fk_args_layout(&kernel.problem, (fk_layout)7, &a), FK_BAD_ARGUMENT);
    assert_non_null(strstr(fk_last_error(), "layout is 7"));
    a.struct_size = 0;
    assert_int_equal(fk_args_layout(&kernel.problem, FK_BHSD, &a), FK_BAD_ARGUMENT);
    assert_non_null(strstr(fk_last_error(), "struct_size is 0"));
    a.struct_size = sizeof a;
    assert_int_equal(fk_args_layout(&kernel.problem, FK_BSHD, NULL), FK_BAD_ARGUMENT);
    a.seqlen_q = FK_MAX_SEQLEN, a.num_heads_q = a.num_heads_kv = 1 << 30, a.batch = 1;
    assert_int_equal(fk_args_layout(&kernel.problem, FK_BSHD, &a), FK_BAD_ARGUMENT);
    assert_non_null(strstr(fk_last_error(), "2^60"));
}

static void null_pointers(void **state) {
    (void)state;
    fk_kernel kernel = a_kernel();
    fk_args a = good_args(&kernel);
    assert_int_equal(fk_execute(NULL, &a, NULL, 0, NULL), FK_BAD_ARGUMENT);
    assert_string_equal(fk_last_error(), "kernel is null");
    assert_int_equal(fk_execute(&kernel, NULL, NULL, 0, NULL), FK_BAD_ARGUMENT);
    assert_string_equal(fk_last_error(), "args is null");
    assert_int_equal(fk_kernel_workspace(&kernel, &a), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refused), cmocka_unit_test(accepted),
        cmocka_unit_test(grids),   cmocka_unit_test(strides_of_narrow_keys),
        cmocka_unit_test(layouts), cmocka_unit_test(null_pointers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

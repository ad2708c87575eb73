/* The look-up of what tiles of a mask hold: its grid, its place in the workspace, and what it refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/object.h"

#include <string.h>

static _Alignas(256) char q[2 * 100 * 6 * 64 * 2], k[2 * 300 * 6 * 64 * 2], v[2 * 300 * 6 * 64 * 2],
    o[2 * 100 * 6 * 64 * 2], workspace[4096];

/* Tiles of 64 x 128, of family mma. */
static fk_kernel a_kernel(bool looks_up) {
    fk_kernel kernel;
    fk_problem p = FK_PROBLEM_INIT;
    memset(&kernel, 0, sizeof kernel);
    p.head_dim = 64;
    assert_int_equal(fk_problem_canonical(&p, &kernel.problem), FK_OK);
    kernel.info.plan.block_m = 64, kernel.info.plan.block_n = 128;
    if (looks_up) kernel.launch[kernel.num_launches++] = (fk_kernel_launch){"fk_seen_tiles", 256, 4096, FK_GRID_SEEN};
    kernel.launch[kernel.num_launches++] = (fk_kernel_launch){"fk_forward", 128, 1000, FK_GRID_TILES};
    kernel.l2_bytes = 40 << 20;
    return kernel;
}

static fk_args some_args(const fk_kernel *kernel) {
    fk_args a = FK_ARGS_INIT;
    a.batch = 2, a.num_heads_q = a.num_heads_kv = 6, a.seqlen_q = 100, a.seqlen_k = 300;
    a.q = q, a.k = k, a.v = v, a.o = o;
    assert_int_equal(fk_args_layout(&kernel->problem, FK_BSHD, &a), FK_OK);
    return a;
}

/* 12 heads, 2 groups of 64 queries, 3 tiles and one byte more: 96 bytes, in whole parts. */
static void it_has_a_workspace_and_a_grid(void **state) {
    (void)state;
    const fk_kernel kernel = a_kernel(true), other = a_kernel(false);
    const fk_args a = some_args(&kernel);
    fk_forward_params p;
    fk_grid grids[FK_MAX_KERNELS];
    fk_seen seen;
    assert_int_equal(fk_kernel_workspace(&kernel, &a), 256);
    assert_int_equal(fk_kernel_workspace(&other, &a), 0);
    assert_true(fk_seen_lay_out(&kernel, &a, &seen) && seen.bytes == 96);
    assert_int_equal(fk_forward_prepare(&kernel, &a, &(fk_workspace){workspace, sizeof workspace}, &p, grids, NULL),
                     FK_OK);
    assert_ptr_equal(p.seen, workspace);
    assert_true(grids[0].x == 2 && grids[0].y == 12 && grids[0].z == 1);
    assert_int_equal(fk_forward_prepare(&other, &a, &(fk_workspace){NULL, 0}, &p, grids, NULL), FK_OK);
    assert_null(p.seen);
}

static void refusals_name_field_value_and_limit(void **state) {
    (void)state;
    const fk_kernel kernel = a_kernel(true);
    fk_args a = some_args(&kernel);
    fk_forward_params p;
    fk_grid grids[FK_MAX_KERNELS];
    fk_seen seen;
    fk_error err;
    assert_int_equal(fk_forward_prepare(&kernel, &a, &(fk_workspace){NULL, 0}, &p, grids, &err), FK_BAD_ARGUMENT);
    assert_non_null(strstr(err.text, "workspace is null; this launch needs 256 bytes"));
    assert_int_equal(fk_forward_prepare(&kernel, &a, &(fk_workspace){workspace, 255}, &p, grids, &err),
                     FK_BAD_ARGUMENT);
    assert_non_null(strstr(err.text, "workspace_bytes is 255; this launch needs 256"));
    a.batch = 1 << 15, a.num_heads_q = a.num_heads_kv = 1 << 15, a.seqlen_q = a.seqlen_k = 1 << 30;
    assert_false(fk_seen_lay_out(&kernel, &a, &seen));
    assert_int_equal(fk_kernel_workspace(&kernel, &a), 0);
    assert_int_equal(fk_seen_fill(&kernel, &a, &(fk_workspace){workspace, sizeof workspace}, &p, &err),
                     FK_BAD_ARGUMENT);
    assert_non_null(strstr(err.text, "32768 x 32768 x 1073741824 x 1073741824"));
    assert_non_null(strstr(err.text, "2^60 bytes"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_has_a_workspace_and_a_grid),
        cmocka_unit_test(refusals_name_field_value_and_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

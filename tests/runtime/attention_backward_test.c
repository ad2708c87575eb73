/* A backward launch: every argument that is refused, with field, value and limit; workspace, parameter block and grids
 * of good ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/object.h"

#include <stdio.h>
#include <string.h>

/* batch 2, 6 query heads over 3 kv heads, 100 queries, 300 keys, d 64, dv 32; contiguous [batch, seqlen, head]. */
static _Alignas(256) char q[2 * 100 * 6 * 64 * 2], k[2 * 300 * 3 * 64 * 2], v[2 * 300 * 3 * 32 * 2],
    o[2 * 100 * 6 * 32 * 2], dout[2 * 100 * 6 * 32 * 2], dq[sizeof q], dk[sizeof k], dv[sizeof v], workspace[1 << 20];
static float lse[2 * 6 * 100], dlse[2 * 6 * 100];

static fk_kernel a_kernel(int deterministic) {
    static fk_kernel kernel;
    fk_problem p = FK_PROBLEM_INIT;
    p.op = FK_BACKWARD, p.head_dim = 64, p.head_dim_v = 32, p.gqa = 1, p.deterministic = deterministic;
    memset(&kernel, 0, sizeof kernel);
    assert_int_equal(fk_problem_canonical(&p, &kernel.problem), FK_OK);
    kernel.info.plan.block_m = 64, kernel.info.plan.block_n = 128;
    kernel.launch[0] = (fk_kernel_launch){"fk_backward_delta", 128, 0, FK_GRID_ROWS};
    kernel.launch[1] = (fk_kernel_launch){"fk_backward", 256, 1000, FK_GRID_TILES};
    kernel.launch[2] = (fk_kernel_launch){"fk_backward_dq", 128, 0, FK_GRID_ROW_CHUNKS};
    kernel.dq_block_m = deterministic ? 32 : 0;
    if (deterministic) kernel.launch[2] = (fk_kernel_launch){"fk_backward_dq_tiles", 64, 1000, FK_GRID_DQ_TILES};
    kernel.num_launches = 3;
    kernel.most_keys = FK_MAX_SEQLEN;
    kernel.d_pad = 64;
    kernel.l2_bytes = 40 << 20;
    kernel.mask_value[0] = 1024, kernel.mask_value[1] = -3;
    return kernel;
}

static fk_args good_args(const fk_kernel *kernel) {
    fk_args a = FK_ARGS_INIT;
    a.batch = 2, a.num_heads_q = 6, a.num_heads_kv = 3, a.seqlen_q = 100, a.seqlen_k = 300;
    a.q = q, a.k = k, a.v = v, a.o = o, a.lse = lse, a.dout = dout, a.dq = dq, a.dk = dk, a.dv = dv;
    assert_int_equal(fk_args_layout(&kernel->problem, FK_BSHD, &a), FK_OK);
    return a;
}

typedef struct refusal {
    const char *what;
    void (*change)(fk_args *a, fk_kernel *kernel, fk_workspace *w);
    const char *words[4];
} refusal;

#define CHANGE(name, statement)                                                                                        \
    static void name(fk_args *a, fk_kernel *kernel, fk_workspace *w) {                                                 \
        (void)a, (void)kernel, (void)w;                                                                                \
        statement;                                                                                                     \
    }
CHANGE(o_null, a->o = NULL)
CHANGE(lse_null, a->lse = NULL)
CHANGE(dout_null, a->dout = NULL)
CHANGE(dq_null, a->dq = NULL)
CHANGE(dk_null, a->dk = NULL)
CHANGE(dv_null, a->dv = NULL)
CHANGE(dout_misaligned, a->dout = dout + 8)
CHANGE(dq_misaligned, a->dq = dq + 4)
CHANGE(dlse_misaligned, a->dlse = (const void *)((const char *)dlse + 2))
CHANGE(dout_stride_odd, a->dout_stride[1] = 36)
CHANGE(dk_stride_negative, a->dk_stride[0] = -8)
CHANGE(dv_stride_huge, a->dv_stride[0] = INT64_MAX - 7)
CHANGE(dq_rows_overlap, a->dq_stride[2] = 32)
CHANGE(dk_rows_overlap, a->dk_stride[1] = 0)
CHANGE(dv_rows_overlap, a->dv_stride[2] = 24)
CHANGE(dq_is_q, a->dq = q)
CHANGE(dv_in_o, a->dv = o + 64)
CHANGE(dk_is_dq, a->dk = dq)
CHANGE(dq_in_lse, a->lse = (float *)(void *)dq)
CHANGE(dk_in_dlse, a->dlse = (const float *)(const void *)dk)
CHANGE(workspace_null, w->data = NULL)
CHANGE(workspace_misaligned, (w->data = workspace + 128, w->bytes -= 128))
CHANGE(workspace_small, w->bytes = 397311)
CHANGE(workspace_is_k, (w->data = k, w->bytes = sizeof k))
CHANGE(many_keys, (a->batch = 1, a->seqlen_k = 65535 * 128 + 1, a->k = (void *)((uintptr_t)1 << 58),
                   a->v = (void *)((uintptr_t)1 << 59), a->dq = (void *)((uintptr_t)1 << 60),
                   a->dk = (void *)((uintptr_t)1 << 61), a->dv = (void *)((uintptr_t)1 << 62)))

static const refusal refusals[] = {
    {"o null", o_null, {"o is null"}},
    {"lse null", lse_null, {"lse is null"}},
    {"dout null", dout_null, {"dout is null"}},
    {"dq null", dq_null, {"dq is null"}},
    {"dk null", dk_null, {"dk is null"}},
    {"dv null", dv_null, {"dv is null"}},
    {"dout misaligned", dout_misaligned, {"dout is at 0x", "16 bytes"}},
    {"dq misaligned", dq_misaligned, {"dq is at 0x", "16 bytes"}},
    {"dlse misaligned", dlse_misaligned, {"dlse is at 0x", "4 bytes"}},
    {"dout stride odd", dout_stride_odd, {"dout_stride[1] (seqlen) is 36", "multiple of 8"}},
    {"dk stride negative", dk_stride_negative, {"dk_stride[0] (batch) is -8", "at least 0"}},
    {"dv stride huge", dv_stride_huge, {"dv_stride[0] (batch) is 9223372036854775800", "2^60"}},
    {"dq rows", dq_rows_overlap, {"dq_stride[2] (head) is 32", "overlap", "head_dim, 64"}},
    {"dk rows", dk_rows_overlap, {"dk_stride[1] (seqlen) is 0", "overlap", "head_dim, 64"}},
    {"dv rows", dv_rows_overlap, {"dv_stride[2] (head) is 24", "overlap", "head_dim_v, 32"}},
    {"dq is q", dq_is_q, {"dq at 0x", "overlaps q at 0x"}},
    {"dv in o", dv_in_o, {"dv at 0x", "overlaps"}},
    {"dk is dq", dk_is_dq, {"dk at 0x", "overlaps"}},
    {"dq in lse", dq_in_lse, {"dq at 0x", "overlaps lse at 0x"}},
    {"dk in dlse", dk_in_dlse, {"dk at 0x", "overlaps dlse at 0x"}},
    {"workspace null", workspace_null, {"workspace is null", "405504 bytes", "fk_kernel_workspace"}},
    {"workspace misaligned", workspace_misaligned, {"workspace is at 0x", "256 bytes"}},
    {"workspace small", workspace_small, {"workspace_bytes is 397311", "needs 405504", "fk_kernel_workspace"}},
    {"workspace is k", workspace_is_k, {"workspace at 0x", "overlaps k at 0x"}},
    {"many keys", many_keys, {"seqlen_k is 8388481", "key tiles", "128 rows", "8388480"}},
};

static void refused(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        fk_kernel kernel = a_kernel(0);
        fk_args a = good_args(&kernel);
        fk_workspace w = {workspace, sizeof workspace};
        fk_backward_params params;
        fk_grid grids[FK_MAX_KERNELS];
        fk_error err = {.text = ""};
        refusals[i].change(&a, &kernel, &w);
        if (fk_backward_prepare(&kernel, &a, &w, &params, grids, &err) != FK_BAD_ARGUMENT)
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

static void accepted(void **state) {
    (void)state;
    fk_kernel kernel = a_kernel(0);
    fk_args a = good_args(&kernel);
    const fk_workspace w = {workspace, sizeof workspace};
    fk_backward_params p;
    fk_grid grids[FK_MAX_KERNELS];
    a.dlse = dlse;
    assert_int_equal(fk_backward_prepare(&kernel, &a, &w, &p, grids, NULL), FK_OK);
    assert_grid(&grids[0], 128 / 16, 12, 1); /* 100 rows are two tiles of 64, four rows a CTA, for each head */
    assert_grid(&grids[1], 6, 3, 1);         /* kv heads; 300 keys are three tiles of 128 */
    assert_grid(&grids[2], 4, 12, 1);        /* 100 rows of 8 chunks, 256 a CTA */
    assert_ptr_equal(p.dout, dout);
    assert_ptr_equal(p.dv, dv);
    assert_ptr_equal(p.dlse, dlse);
    assert_ptr_equal(p.delta, workspace);
    assert_ptr_equal(p.lse_log2, workspace + 12 * 128 * 4);
    assert_ptr_equal(p.dq_acc, workspace + 2 * 12 * 128 * 4);
    assert_int_equal(p.dout_row_stride, 6 * 32);
    assert_int_equal(p.dq_batch_stride, 100 * 6 * 64);
    assert_int_equal(p.dk_head_stride, 64);
    assert_int_equal(p.dv_row_stride, 3 * 32);
    assert_int_equal(p.num_heads_q, 6);
    assert_int_equal(p.num_heads_kv, 3);
    assert_int_equal(p.heads_per_kv, 2);
    assert_int_equal(p.q_padded, 128);
    assert_int_equal(p.diag, 200);
    assert_int_equal(p.heads_inverse, 715827882);     /* 2^32 / 6 */
    assert_int_equal(p.kv_heads_inverse, 1431655765); /* 2^32 / 3 */
    assert_int_equal(p.mask_value[1], -3);
    assert_float_equal(p.scale, 0.125, 0);
    kernel.l2_bytes = 2 * (100 * ((64 + 32) * 2 + 8 + 64 * 4) * 2 * 2 + 5); /* half of it holds two kv heads' queries */
    assert_int_equal(fk_backward_prepare(&kernel, &a, &w, &p, grids, NULL), FK_OK);
    assert_grid(&grids[1], 2, 3, 3);
}

/* dq's own kernel: query tiles for every query head, and no sum. */
static void accepted_deterministic(void **state) {
    (void)state;
    fk_kernel kernel = a_kernel(1);
    fk_args a = good_args(&kernel);
    const fk_workspace w = {workspace, sizeof workspace};
    fk_backward_params p;
    fk_grid grids[FK_MAX_KERNELS];
    assert_int_equal(fk_backward_prepare(&kernel, &a, &w, &p, grids, NULL), FK_OK);
    assert_grid(&grids[0], 128 / 16, 12, 1);
    assert_grid(&grids[1], 6, 3, 1);
    assert_grid(&grids[2], 12, 4, 1); /* 100 rows are four tiles of 32 */
    assert_null(p.dq_acc);
    assert_int_equal(p.q_padded, 128); /* whole tiles of the main kernel's */
    assert_int_equal(fk_kernel_workspace(&kernel, &a), 2 * 12 * 128 * 4);
}

/* On four SMs; its launches are the caller's. */
static fk_kernel a_wgmma_kernel(int deterministic, fk_context *context) {
    fk_kernel kernel = a_kernel(deterministic);
    kernel.context = context;
    kernel.dq_block_m = 0;
    strcpy(kernel.info.plan.family, "wgmma");
    context->runs.num_sms = 4, kernel.info.plan.ctas_per_sm = 1;
    return kernel;
}

/* A CTA has all keys of a head, of as many queries as its plan says: there is a CTA for each head, and no sum. */
static void accepted_whole_heads(void **state) {
    (void)state;
    static fk_context context;
    fk_kernel kernel = a_wgmma_kernel(0, &context);
    kernel.info.plan.head_rows = 128;
    kernel.launch[0].grid = FK_GRID_PERSISTENT;
    kernel.num_launches = 1;
    kernel.l2_bytes = 1 << 30; /* all heads fit */
    fk_args a = good_args(&kernel);
    const fk_workspace w = {workspace, sizeof workspace};
    fk_backward_params p;
    fk_grid grids[FK_MAX_KERNELS];
    fk_error err;
    assert_int_equal(fk_backward_prepare(&kernel, &a, &w, &p, grids, NULL), FK_OK);
    assert_grid(&grids[0], 4, 1, 1);
    assert_null(p.dq_acc);
    assert_null(p.claims);
    assert_int_equal(p.kv_group_heads, 1);
    assert_int_equal(p.num_tiles % p.group_tiles, 0);
    assert_int_equal(fk_kernel_workspace(&kernel, &a), 2 * 12 * 128 * 4);
    context.runs.num_sms = 400;
    assert_int_equal(fk_backward_prepare(&kernel, &a, &w, &p, grids, NULL), FK_OK);
    assert_grid(&grids[0], (uint32_t)(p.num_tiles / p.group_tiles), 1, 1);
    a.batch = 70000; /* more heads than another grid's z counts */
    assert_int_equal(fk_group_kv_heads(&kernel, &a), 1);
    a.batch = good_args(&kernel).batch;
    kernel.info.plan.head_rows = 64;
    assert_int_equal(fk_backward_prepare(&kernel, &a, &w, &p, grids, &err), FK_BAD_ARGUMENT);
    if (!strstr(err.text, "seqlen_q is 100; this kernel's plan sums up dq of at most 64 rows"))
        fail_msg("%s", err.text);
}

/* dq's sum, and which tile of keys added last to each tile of it. Few heads of long walks go side by side, as many of
 * short ones as there are CTAs for. */
static void accepted_in_order(void **state) {
    (void)state;
    static fk_context context;
    fk_kernel kernel = a_wgmma_kernel(1, &context);
    kernel.launch[1].grid = FK_GRID_PERSISTENT;
    kernel.launch[2] = (fk_kernel_launch){"fk_backward_dq", 128, 0, FK_GRID_ROW_CHUNKS};
    kernel.l2_bytes = 1; /* no head fits */
    fk_args a = good_args(&kernel);
    const fk_workspace w = {workspace, sizeof workspace};
    fk_backward_params p;
    fk_grid grids[FK_MAX_KERNELS];
    const size_t sums = 2 * 12 * 128 * 4 + 12 * 128 * 64 * 4;
    assert_int_equal(fk_backward_prepare(&kernel, &a, &w, &p, grids, NULL), FK_OK);
    assert_grid(&grids[1], 4, 1, 1);
    assert_ptr_equal(p.claims, workspace + sums);
    assert_ptr_equal(p.added, workspace + sums + 256); /* 12 heads of two tiles */
    assert_int_equal(fk_kernel_workspace(&kernel, &a), sums + 256 + 256);
    assert_int_equal(p.kv_group_heads, 1); /* a quarter of the CTAs */
    context.runs.num_sms = 12;
    assert_int_equal(fk_backward_prepare(&kernel, &a, &w, &p, grids, NULL), FK_OK);
    assert_int_equal(p.kv_group_heads, 3);
    kernel.info.plan.block_m = 2; /* a walk of 50 tiles for each of a group's two query heads */
    assert_int_equal(fk_group_kv_heads(&kernel, &a), 1);
    kernel.info.plan.block_m = 64;
    kernel.problem.deterministic = 0;
    assert_int_equal(fk_backward_prepare(&kernel, &a, &w, &p, grids, NULL), FK_OK);
    assert_null(p.added);
    assert_int_equal(p.kv_group_heads, 1);
    assert_int_equal(fk_kernel_workspace(&kernel, &a), sums + 256);
    context.runs.num_sms = 64; /* a sixteenth of the CTAs, and as groups are equal one less; an eighth with a mask */
    assert_int_equal(fk_group_kv_heads(&kernel, &a), 3);
    kernel.problem.num_masks = 1;
    assert_int_equal(fk_group_kv_heads(&kernel, &a), 6);
}

/* 128 keys of a head are seen by nearly all queries, of two query heads: where CTAs are many, parts of them leave dk
 * and dv behind the counter. */
static void walks_in_parts(void **state) {
    (void)state;
    static fk_context context;
    fk_kernel kernel = a_kernel(0);
    kernel.context = &context;
    strcpy(kernel.info.plan.family, "wgmma");
    kernel.info.plan.ctas_per_sm = 1, kernel.launch[1].grid = FK_GRID_PERSISTENT;
    kernel.leading_rows = 128;
    fk_args a = good_args(&kernel); /* six kv heads of three tiles of keys */
    fk_persistent tiles;
    fk_grid grid;
    a.seqlen_q = 3 * 8 * 64 / 2; /* three times as long a walk as most */
    context.runs.num_sms = 6 * 9 - 1;
    const size_t whole = fk_kernel_workspace(&kernel, &a);
    assert_true(fk_persistent_lay_out(&kernel, &a, &tiles));
    assert_int_equal(tiles.num_splits, 1);
    assert_int_equal(tiles.num_tiles, 6 * 3);
    assert_int_equal(fk_grid_make(&kernel, &a, FK_GRID_KEYS, &grid, NULL), FK_OK);
    assert_int_equal(grid.x, 0);
    context.runs.num_sms = 6 * 9;
    assert_true(fk_persistent_lay_out(&kernel, &a, &tiles));
    assert_int_equal(tiles.num_splits, 2);
    assert_int_equal(tiles.num_tiles, 6 * 3 + 6);
    assert_int_equal(fk_grid_make(&kernel, &a, FK_GRID_KEYS, &grid, NULL), FK_OK);
    assert_grid(&grid, 128 * (64 + 32) / 8 / 128, 6, 1);
    assert_int_equal(fk_kernel_workspace(&kernel, &a), whole + 2 * 6 * 128 * (64 + 32) * 4);
    context.runs.num_sms = 6 * 9 * 1000;
    assert_true(fk_persistent_lay_out(&kernel, &a, &tiles));
    assert_int_equal(tiles.num_splits, 3); /* no shorter than most */
    a.seqlen_q = 1 << 22;
    assert_true(fk_persistent_lay_out(&kernel, &a, &tiles));
    assert_int_equal(tiles.num_splits, FK_MAX_SPLITS);
}

/* Where other warps add, a third of L2 for walks that are alike, more only where a head has too few queries for all
 * CTAs; for a pattern no more at all. Walks that follow each other and are unlike have half of L2, or more. */
static void groups_of_buffered_sums(void **state) {
    (void)state;
    static fk_context context;
    fk_kernel kernel = a_kernel(0);
    kernel.context = &context;
    strcpy(kernel.info.plan.family, "wgmma");
    kernel.info.plan.q_stages = 2, kernel.info.plan.ctas_per_sm = 1, kernel.launch[1].grid = FK_GRID_PERSISTENT;
    context.runs.num_sms = 16;
    fk_args a = good_args(&kernel); /* six kv heads, of two query heads of 100 rows each */
    const int64_t head = 100 * ((64 + 32) * 2 + 8 + 64 * 4) * 2;
    kernel.l2_bytes = 3 * 3 * head;
    assert_int_equal(fk_group_kv_heads(&kernel, &a), 3);
    kernel.l2_bytes = 1;
    assert_int_equal(fk_group_kv_heads(&kernel, &a), 2); /* an eighth of the CTAs */
    a.seqlen_q = 2048;
    assert_int_equal(fk_group_kv_heads(&kernel, &a), 1); /* 16 CTAs of 256 queries are one head's 4,096 */
    a.seqlen_q = 100;
    kernel.problem.num_masks = 1;
    assert_int_equal(fk_group_kv_heads(&kernel, &a), 3); /* a quarter of the CTAs, in equal groups */
    kernel.pattern = true;
    assert_int_equal(fk_group_kv_heads(&kernel, &a), 1);
    kernel.l2_bytes = 3 * 2 * head;
    assert_int_equal(fk_group_kv_heads(&kernel, &a), 2);
}

/* Its conversion's index is an int, in packed sequences, too. */
static void longest_dq(void **state) {
    (void)state;
    fk_kernel kernel = a_kernel(0);
    fk_args a = good_args(&kernel);
    fk_grid grid;
    fk_error err;
    for (int packed = 0; packed < 2; packed++) {
        kernel.problem.packed = packed;
        a.seqlen_q = a.total_q = (INT32_MAX - 256) / 8 / 16 * 16; /* d64 */
        assert_int_equal(fk_grid_make(&kernel, &a, FK_GRID_ROW_CHUNKS, &grid, NULL), FK_OK);
        a.seqlen_q = a.total_q = a.seqlen_q + 1;
        assert_int_equal(fk_grid_make(&kernel, &a, FK_GRID_ROW_CHUNKS, &grid, &err), FK_BAD_ARGUMENT);
        assert_non_null(strstr(err.text, "seqlen_q x head_dim / 8 may be"));
    }
}

static void workspaces(void **state) {
    (void)state;
    fk_kernel kernel = a_kernel(0);
    fk_args a = good_args(&kernel);
    assert_int_equal(fk_kernel_workspace(&kernel, &a), 2 * 12 * 128 * 4 + 12 * 128 * 64 * 4);
    a.seqlen_q = 0;
    assert_int_equal(fk_kernel_workspace(&kernel, &a), 0); /* refused anyway */
    a.seqlen_q = FK_MAX_SEQLEN, a.batch = 1 << 29, a.num_heads_q = a.num_heads_kv = 2;
    assert_int_equal(fk_kernel_workspace(&kernel, &a), 0); /* beyond 2^60 bytes */
    assert_int_equal(fk_kernel_workspace(NULL, &a), 0);
    assert_int_equal(fk_kernel_workspace(&kernel, NULL), 0);
    kernel.problem.op = FK_FORWARD;
    assert_int_equal(fk_kernel_workspace(&kernel, &a), 0);
}

/* More heads than a grid's y counts: z takes the rest, and no head is left out. */
static void many_heads(void **state) {
    (void)state;
    const fk_kernel kernel = a_kernel(0);
    fk_args a = good_args(&kernel);
    fk_grid grid;
    a.batch = 1000, a.num_heads_q = 200, a.num_heads_kv = 200;
    assert_int_equal(fk_grid_make(&kernel, &a, FK_GRID_ROWS, &grid, NULL), FK_OK);
    assert_grid(&grid, 8, 65535, 4);
    assert_int_equal(fk_grid_make(&kernel, &a, FK_GRID_ROW_CHUNKS, &grid, NULL), FK_OK);
    assert_grid(&grid, 4, 65535, 4);
    a.seqlen_q = 300000000;
    fk_error err;
    assert_int_equal(fk_grid_make(&kernel, &a, FK_GRID_ROW_CHUNKS, &grid, &err), FK_BAD_ARGUMENT);
    assert_non_null(strstr(err.text, "seqlen_q is 300000000"));
    assert_non_null(strstr(err.text, "268435423 rows"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refused),
        cmocka_unit_test(accepted),
        cmocka_unit_test(accepted_deterministic),
        cmocka_unit_test(accepted_whole_heads),
        cmocka_unit_test(accepted_in_order),
        cmocka_unit_test(groups_of_buffered_sums),
        cmocka_unit_test(walks_in_parts),
        cmocka_unit_test(workspaces),
        cmocka_unit_test(longest_dq),
        cmocka_unit_test(many_heads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

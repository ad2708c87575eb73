/* Launches whose CTAs fetch their tiles: grid, what the kernel takes the tiles' numbers apart with, epochs, workspace.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/object.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* batch 2, 6 query heads over 3 kv heads, 300 queries and keys, d 64, dv 32; packed: 170 and 320 rows of 3 sequences.
 */
enum { ROWS = 2 * 300 };
/* As large as any here. */
static _Alignas(256) char q[ROWS * 6 * 96 * 2], k[ROWS * 6 * 96 * 2], v[ROWS * 6 * 32 * 2], o[ROWS * 6 * 32 * 2],
    workspace[4096];
static const int32_t cu_q[4] = {0, 100, 100, 170}, cu_k[4] = {0, 300, 310, 320};
static fk_context context;

static fk_kernel a_kernel(int packed) {
    static fk_kernel kernel;
    fk_problem p = FK_PROBLEM_INIT;
    p.head_dim = 64, p.head_dim_v = 32, p.gqa = 1, p.packed = packed;
    memset(&kernel, 0, sizeof kernel);
    assert_int_equal(fk_problem_canonical(&p, &kernel.problem), FK_OK);
    strcpy(kernel.info.plan.family, "wgmma");
    kernel.info.plan.block_m = 128, kernel.info.plan.block_n = 64, kernel.info.plan.ctas_per_sm = 1;
    kernel.launch[0] = (fk_kernel_launch){"fk_forward", 384, 1000, FK_GRID_PERSISTENT};
    kernel.num_launches = 1;
    kernel.most_keys = FK_MAX_SEQLEN;
    kernel.l2_bytes = 40 << 20;
    kernel.context = &context;
    context.runs.num_sms = 132;
    context.planned.num_sms = 7; /* of no interest */
    return kernel;
}

static fk_args good_args(const fk_kernel *kernel) {
    fk_args a = FK_ARGS_INIT;
    a.batch = 2, a.num_heads_q = 6, a.num_heads_kv = 3, a.seqlen_q = a.seqlen_k = 300;
    a.q = q, a.k = k, a.v = v, a.o = o;
    if (kernel->problem.packed) {
        a.batch = 3, a.total_q = 170, a.total_k = 320;
        a.cu_seqlens_q = cu_q, a.cu_seqlens_k = cu_k;
    }
    assert_int_equal(fk_args_layout(&kernel->problem, FK_BSHD, &a), FK_OK);
    return a;
}

static fk_forward_params prepared(const fk_kernel *kernel, const fk_args *a, uint32_t ctas) {
    const fk_workspace w = {workspace, sizeof workspace};
    fk_forward_params p;
    fk_grid grids[FK_MAX_KERNELS];
    fk_error err;
    if (fk_forward_prepare(kernel, a, &w, &p, grids, &err)) fail_msg("%s", err.text);
    assert_int_equal(grids[0].x, ctas);
    assert_int_equal(grids[0].y, 1);
    assert_int_equal(grids[0].z, 1);
    assert_ptr_equal(p.claims, workspace);
    return p;
}

static void assert_tiles(const fk_forward_params *p, int32_t group_heads, int32_t group_tiles, int32_t num_tiles) {
    assert_int_equal(p->group_heads, group_heads);
    assert_int_equal(p->group_tiles, group_tiles);
    assert_int_equal(p->num_tiles, num_tiles);
    assert_int_equal(p->group_inverse, fk_inverse(group_heads));
    assert_int_equal(p->group_tiles_inverse, fk_inverse(group_tiles));
}

static void batches(void **state) {
    (void)state;
    fk_kernel kernel = a_kernel(0);
    fk_args a = good_args(&kernel);
    fk_forward_params p = prepared(&kernel, &a, 36);
    assert_tiles(&p, 12, 36, 36); /* 3 tiles of 128 for each head, which all fit */
    assert_int_equal(fk_kernel_workspace(&kernel, &a), 256);
    context.runs.num_sms = 5, kernel.info.plan.ctas_per_sm = 2;
    p = prepared(&kernel, &a, 10);
    assert_tiles(&p, 2, 6, 36); /* so few SMs fetch for one kv head at a time */
    context.runs.num_sms = 132, kernel.info.plan.ctas_per_sm = 1;
    kernel.l2_bytes = 4 * (300 * (64 + 32) * 2 * 2 + 5); /* a quarter of it holds two kv heads, so four query heads */
    p = prepared(&kernel, &a, 36);
    assert_tiles(&p, 4, 12, 36);
    a.batch = 1, a.num_heads_kv = a.num_heads_q = 5; /* pairs of heads: the last one is alone */
    assert_int_equal(fk_args_layout(&kernel.problem, FK_BSHD, &a), FK_OK);
    p = prepared(&kernel, &a, 15);
    assert_tiles(&p, 2, 6, 15);
    assert_int_equal(p.last_group_inverse, fk_inverse(1));
    kernel.problem.num_masks = 1; /* two thirds hold all five */
    p = prepared(&kernel, &a, 15);
    assert_tiles(&p, 5, 15, 15);
    kernel.pattern = true; /* half of it four: groups of three and two */
    p = prepared(&kernel, &a, 15);
    assert_tiles(&p, 3, 9, 15);
    assert_int_equal(p.last_group_inverse, fk_inverse(2));
    kernel.pattern = false;
    kernel.problem.num_masks = 0;
    a.seqlen_q = 1, a.batch = 2, a.num_heads_q = a.num_heads_kv = 3;
    assert_int_equal(fk_args_layout(&kernel.problem, FK_BSHD, &a), FK_OK);
    p = prepared(&kernel, &a, 6);
    assert_tiles(&p, 2, 2, 6);
}

static void sequences(void **state) {
    (void)state;
    fk_kernel kernel = a_kernel(1);
    fk_args a = good_args(&kernel);
    fk_forward_params p = prepared(&kernel, &a, 6 * (170 / 128 + 3));
    assert_tiles(&p, 6, 24, 24); /* 170 queries in 3 sequences: at most 4 tiles of 128 */
    assert_int_equal(p.total_q, 170);
    kernel.l2_bytes = 3 * 2 * 300 * 96 * 2; /* a third holds two heads: groups of 2 and 1 */
    p = prepared(&kernel, &a, 24);
    assert_tiles(&p, 4, 16, 24);
}

/* Where the sides of L2 are known each has heads of its own, if all CTAs have a tile to begin with. */
static void sides(void **state) {
    (void)state;
    fk_kernel kernel = a_kernel(0);
    fk_args a = good_args(&kernel);
    context.runs.num_sms = 12;
    kernel.problem.head_dim = 96, kernel.problem.gqa = 0;
    a.seqlen_q = 150, a.num_heads_kv = 6; /* two tiles for each of 12 heads */
    assert_int_equal(fk_args_layout(&kernel.problem, FK_BSHD, &a), FK_OK);
    fk_forward_params p = prepared(&kernel, &a, 12);
    assert_false(p.sided);
    assert_int_equal(p.last_claim, 23);
    context.sided = true, context.sides.of_sm[0] = 0xf0;
    p = prepared(&kernel, &a, 12);
    assert_true(p.sided);
    assert_tiles(&p, 4, 8, 24);              /* three would do: an even number, of which each side has half */
    assert_int_equal(p.last_claim, 23 + 12); /* each CTA claims in vain of both */
    assert_int_equal(p.sides.of_sm[0], 0xf0);
    context.runs.num_sms = 25;
    p = prepared(&kernel, &a, 24);
    assert_false(p.sided);
    context.runs.num_sms = 132, context.sided = false;
}

/* Whatever the numbers, each tile of each head has one number. */
static void every_tile_once(void **state) {
    (void)state;
    static const int64_t cases[][5] = {/* batch, heads q, heads kv, seqlen_q, L2 bytes */
                                       {1, 1, 1, 1, 1},         {7, 5, 5, 300, 1 << 20},  {3, 12, 4, 129, 500000},
                                       {1, 64, 1, 512, 100000}, {5, 9, 3, 1000, 2000000}, {2, 7, 7, 128, 400000}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fk_kernel kernel = a_kernel(0);
        fk_args a = good_args(&kernel);
        a.batch = cases[i][0], a.num_heads_q = cases[i][1], a.num_heads_kv = cases[i][2], a.seqlen_q = cases[i][3];
        kernel.l2_bytes = cases[i][4];
        a.o = (void *)((uintptr_t)1 << 60);
        assert_int_equal(fk_args_layout(&kernel.problem, FK_BSHD, &a), FK_OK);
        const int64_t head_tiles = (a.seqlen_q + 127) / 128, heads = a.batch * a.num_heads_q;
        fk_persistent tiles;
        fk_grid grid;
        assert_true(fk_persistent_lay_out(&kernel, &a, &tiles));
        assert_int_equal(fk_grid_make(&kernel, &a, FK_GRID_PERSISTENT, &grid, NULL), FK_OK);
        assert_int_equal(grid.x, tiles.num_tiles < 132 ? tiles.num_tiles : 132);
        assert_int_equal(tiles.group_tiles, tiles.group_heads * head_tiles);
        char *seen = calloc((size_t)(heads * head_tiles), 1);
        for (int64_t t = 0; t < tiles.num_tiles; t++) {
            const int64_t group = t / tiles.group_tiles, in_group = t % tiles.group_tiles;
            const bool last = heads - group * tiles.group_heads < tiles.group_heads;
            const int64_t own = last ? tiles.last_group_heads : tiles.group_heads;
            const int64_t head = group * tiles.group_heads + in_group % own;
            assert_in_range(in_group / own, 0, head_tiles - 1);
            assert_in_range(head, 0, heads - 1);
            assert_int_equal(seen[head * head_tiles + in_group / own]++, 0);
        }
        for (int64_t t = 0; t < heads * head_tiles; t++)
            assert_int_equal(seen[t], 1);
        free(seen);
        assert_in_range(tiles.bytes, 16 + 4 * tiles.num_tiles, 16 + 4 * tiles.num_tiles + 255);
    }
}

/* The first 256 queries of a head see far more than most: their tiles' keys are shared among splits. */
static void leading_tiles_in_parts(void **state) {
    (void)state;
    fk_kernel kernel = a_kernel(0);
    fk_args a = good_args(&kernel);
    fk_persistent tiles;
    kernel.leading_rows = 256;
    a.seqlen_k = 8192;
    assert_true(fk_persistent_lay_out(&kernel, &a, &tiles));
    assert_int_equal(tiles.num_splits, 1);
    assert_int_equal(tiles.num_tiles, 36);
    assert_int_equal(tiles.bytes, 256);
    a.seqlen_k = 2 * 8192 + 1;
    assert_true(fk_persistent_lay_out(&kernel, &a, &tiles));
    assert_int_equal(tiles.num_splits, 3);
    assert_int_equal(tiles.first_part, 36);
    assert_int_equal(tiles.num_tiles, 36 + 12 * 2 * 2); /* 3 parts for each of 2 tiles of 12 heads */
    assert_int_equal(tiles.partial_rows, 12 * 256);
    assert_int_equal(tiles.o_partial, 512); /* 16 bytes, and 4 for each of 36 tiles and 72 parts */
    assert_int_equal(tiles.lse_partial - tiles.o_partial, 3 * 12 * 256 * 32 * 4);
    assert_int_equal(tiles.bytes - tiles.lse_partial, 3 * 12 * 256 * 4);
    fk_grid grid;
    assert_int_equal(fk_grid_make(&kernel, &a, FK_GRID_COMBINE, &grid, NULL), FK_OK);
    assert_int_equal(grid.x, 256);
    assert_int_equal(grid.y, 12);
    a.seqlen_q = 100; /* one tile, which is not full */
    assert_true(fk_persistent_lay_out(&kernel, &a, &tiles));
    assert_int_equal(tiles.num_tiles, 12 + 12 * 2);
    assert_int_equal(fk_grid_make(&kernel, &a, FK_GRID_COMBINE, &grid, NULL), FK_OK);
    assert_int_equal(grid.x, 100);
    a.seqlen_k = 8192;
    assert_int_equal(fk_grid_make(&kernel, &a, FK_GRID_COMBINE, &grid, NULL), FK_OK);
    assert_int_equal(grid.x, 0);
    a.seqlen_k = 8192 * 1000;
    assert_true(fk_persistent_lay_out(&kernel, &a, &tiles));
    assert_int_equal(tiles.num_splits, FK_MAX_SPLITS);
}

/* Every tile of keys of every tile of queries is in one claim, as templates/piece/parts.cu takes claims apart, and no
 * claim has none. */
static void assert_covered(const fk_persistent *tiles, int64_t num_tiles, int64_t k_tiles) {
    char *seen = calloc((size_t)(num_tiles * k_tiles), 1);
    for (int64_t claim = 0; claim < tiles->num_tiles; claim++) {
        const bool late = claim >= tiles->late_part, whole = claim < tiles->first_part;
        const int64_t splits = whole ? 1 : late ? tiles->late_splits : tiles->num_splits;
        const int64_t nth = whole ? claim : claim - (late ? tiles->late_part : tiles->first_part);
        const int64_t tile = nth / splits + (whole ? 0 : late ? tiles->late_tile : tiles->first_part);
        const int64_t each = (k_tiles + splits - 1) / splits, first = nth % splits * each;
        assert_in_range(tile, 0, num_tiles - 1);
        assert_in_range(first, 0, k_tiles - 1);
        for (int64_t n = first; n < k_tiles && n < first + each; n++)
            assert_int_equal(seen[tile * k_tiles + n]++, 0);
    }
    for (int64_t i = 0; i < num_tiles * k_tiles; i++)
        assert_int_equal(seen[i], 1);
    free(seen);
}

/* The last round's tiles come in parts where that is shorter: heads x tiles of 128 queries, keys -> parts. */
static void last_round_in_parts(void **state) {
    (void)state;
    static const struct {
        int64_t heads, seqlen_q, seqlen_k, tiles, splits, late_tiles, late_splits;
    } cases[] = {
        {16, 16384, 16384, 44, 3, 24, 5}, /* 15 rounds and 68 tiles: two thirds fill one round in thirds */
        {32, 8192, 8192, 66, 2, 2, 16},   /* halves fill one round but for two tiles */
        {16, 16384, 1024, 0, 0, 0, 0},    /* a round is too short */
        {33, 16384, 16384, 0, 0, 0, 0},   /* 32 rounds */
        {1, 8192, 8192, 64, 2, 0, 0},     /* no round is full */
        {2, 300, 5000, 6, 14, 0, 0},      {40, 1024, 1024, 0, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fk_kernel kernel = a_kernel(0);
        kernel.problem.head_dim = kernel.problem.head_dim_v = 128, kernel.info.plan.block_n = 128;
        kernel.launch[kernel.num_launches++] = (fk_kernel_launch){"fk_forward_combine", 128, 0, FK_GRID_PARTS};
        fk_args a = good_args(&kernel);
        a.batch = 1, a.num_heads_q = a.num_heads_kv = cases[i].heads;
        a.seqlen_q = cases[i].seqlen_q, a.seqlen_k = cases[i].seqlen_k;
        const int64_t whole = cases[i].heads * ((a.seqlen_q + 127) / 128), k_tiles = (a.seqlen_k + 127) / 128;
        const int64_t parts = cases[i].tiles * cases[i].splits + cases[i].late_tiles * cases[i].late_splits;
        fk_persistent tiles;
        fk_grid grid;
        assert_true(fk_persistent_lay_out(&kernel, &a, &tiles));
        assert_int_equal(tiles.num_tiles, whole - cases[i].tiles - cases[i].late_tiles + parts);
        assert_covered(&tiles, whole, k_tiles);
        assert_int_equal(fk_grid_make(&kernel, &a, FK_GRID_PARTS, &grid, NULL), FK_OK);
        const int64_t warps = cases[i].splits > 8 ? 4 : 1; /* that share the parts of a row */
        assert_int_equal(grid.x, (cases[i].tiles + cases[i].late_tiles) * 128 * 32 / 128 * warps);
        if (parts == 0) continue;
        assert_int_equal(tiles.num_splits, cases[i].splits);
        assert_in_range(tiles.o_partial, 16 + 4 * tiles.num_tiles, 16 + 4 * tiles.num_tiles + 255);
        assert_int_equal(tiles.lse_partial - tiles.o_partial, parts * 128 * 128 * 4);
        assert_int_equal(tiles.bytes - tiles.lse_partial, parts * 128 * 4);
    }
}

/* Whatever the sizes. */
static void parts_cover_all(void **state) {
    (void)state;
    uint64_t x = 1;
    int cut = 0;
    for (int i = 0; i < 3000; i++) {
        fk_kernel kernel = a_kernel(0);
        kernel.problem.head_dim = kernel.problem.head_dim_v = 128;
        kernel.launch[kernel.num_launches++] = (fk_kernel_launch){"fk_forward_combine", 128, 0, FK_GRID_PARTS};
        fk_args a = good_args(&kernel);
        x = x * 6364136223846793005u + 1442695040888963407u;
        context.runs.num_sms = 1 + (int)(x >> 33) % 20;
        a.num_heads_q = a.num_heads_kv = 1 + (int64_t)(x >> 40) % 7, a.batch = 1 + (int64_t)(x >> 45) % 3;
        a.seqlen_q = 1 + (int64_t)(x >> 48) % 600, a.seqlen_k = 1 + (int64_t)(x >> 50) % 9000;
        fk_persistent tiles;
        assert_true(fk_persistent_lay_out(&kernel, &a, &tiles));
        assert_covered(&tiles, a.batch * a.num_heads_q * ((a.seqlen_q + 127) / 128), (a.seqlen_k + 63) / 64);
        cut += tiles.num_splits > 1;
    }
    assert_in_range(cut, 300, 2700);
}

static void refused(void **state) {
    (void)state;
    fk_kernel kernel = a_kernel(0);
    fk_args a = good_args(&kernel);
    const struct {
        fk_workspace workspace;
        const char *words[2];
    } cases[] = {
        {{NULL, 0}, {"workspace is null", "needs 256 bytes"}},
        {{workspace + 16, 1024}, {"workspace is at", "aligned to 256 bytes"}},
        {{workspace, 255}, {"workspace_bytes is 255", "needs 256"}},
        {{o, sizeof o}, {"workspace at 0x", "overlaps o at 0x"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fk_forward_params p;
        fk_grid grids[FK_MAX_KERNELS];
        fk_error err = {.text = ""};
        assert_int_equal(fk_forward_prepare(&kernel, &a, &cases[i].workspace, &p, grids, &err), FK_BAD_ARGUMENT);
        for (int j = 0; j < 2; j++)
            if (!strstr(err.text, cases[i].words[j])) fail_msg("no \"%s\" in \"%s\"", cases[i].words[j], err.text);
    }
}

static void too_many_tiles(void **state) {
    (void)state;
    fk_kernel kernel = a_kernel(0);
    fk_args a = good_args(&kernel);
    fk_grid grid;
    fk_error err;
    a.batch = 1, a.num_heads_q = a.num_heads_kv = 1 << 8, a.seqlen_q = FK_MAX_SEQLEN;
    assert_int_equal(fk_grid_make(&kernel, &a, FK_GRID_PERSISTENT, &grid, &err), FK_BAD_ARGUMENT);
    assert_non_null(strstr(err.text, "num_heads_q 256, seqlen_q 1073741824"));
    assert_non_null(strstr(err.text, "2147483648 tiles of 128 rows; the limit is 2147483646"));
    assert_int_equal(fk_kernel_workspace(&kernel, &a), 0);
    a.num_heads_q = a.num_heads_kv = 255;
    assert_int_equal(fk_grid_make(&kernel, &a, FK_GRID_PERSISTENT, &grid, &err), FK_OK);
    assert_int_equal(grid.x, 132);
    kernel = a_kernel(1), a = good_args(&kernel);
    a.batch = INT32_MAX, a.num_heads_q = a.num_heads_kv = 1, a.total_q = INT32_MAX;
    assert_int_equal(fk_grid_make(&kernel, &a, FK_GRID_PERSISTENT, &grid, &err), FK_BAD_ARGUMENT);
    assert_non_null(strstr(err.text, "total_q 2147483647"));
    kernel = a_kernel(0), a = good_args(&kernel); /* values of 8 bits are counted by the same tiles */
    kernel.problem.kv_e4m3 = 1;
    a.batch = 1, a.num_heads_q = a.num_heads_kv = 1 << 8, a.seqlen_q = FK_MAX_SEQLEN;
    assert_int_equal(fk_grid_make(&kernel, &a, FK_GRID_VALUES, &grid, &err), FK_BAD_ARGUMENT);
    assert_int_equal(fk_grid_make(&kernel, &a, FK_GRID_WIDEN, &grid, &err), FK_BAD_ARGUMENT);
}

static void too_many_keys(void **state) {
    (void)state;
    fk_kernel kernel = a_kernel(0);
    fk_args a = good_args(&kernel);
    fk_grid grid;
    fk_error err;
    kernel.most_keys = 1 << 28;
    a.seqlen_k = (1 << 28) + 1;
    assert_int_equal(fk_grid_make(&kernel, &a, FK_GRID_PERSISTENT, &grid, &err), FK_BAD_ARGUMENT);
    assert_non_null(
        strstr(err.text, "seqlen_k is 268435457; with this mask a plan of 128 x 64 tiles serves 268435456"));
    assert_int_equal(fk_kernel_workspace(&kernel, &a), 0);
    --a.seqlen_k;
    assert_int_equal(fk_grid_make(&kernel, &a, FK_GRID_PERSISTENT, &grid, &err), FK_OK);
}

static uint64_t epoch_of_another_process(void) {
    int ends[2];
    uint64_t epoch = 0;
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        epoch = fk_epoch_next();
        _exit(write(ends[1], &epoch, sizeof epoch) != sizeof epoch);
    }
    assert_int_equal(read(ends[0], &epoch, sizeof epoch), sizeof epoch);
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(ends[0]);
    close(ends[1]);
    return epoch;
}

/* Runs first, since a forked process goes on where its parent is. */
static void epochs(void **state) {
    (void)state;
    const uint64_t one = epoch_of_another_process(), two = epoch_of_another_process();
    uint64_t last = 0;
    assert_true(one != two && one - two + 1000 > 2000); /* nowhere near */
    for (int i = 0; i < 1000; i++) {
        const uint64_t epoch = fk_epoch_next();
        assert_true(epoch != 0 && epoch != last && (i == 0 || epoch - last < 4));
        last = epoch;
    }
    fk_kernel kernel = a_kernel(0);
    const fk_args a = good_args(&kernel);
    const fk_forward_params first = prepared(&kernel, &a, 36), second = prepared(&kernel, &a, 36);
    assert_true(first.epoch != second.epoch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(epochs),
        cmocka_unit_test(batches),
        cmocka_unit_test(sequences),
        cmocka_unit_test(refused),
        cmocka_unit_test(too_many_tiles),
        cmocka_unit_test(too_many_keys),
        cmocka_unit_test(sides),
        cmocka_unit_test(every_tile_once),
        cmocka_unit_test(leading_tiles_in_parts),
        cmocka_unit_test(last_round_in_parts),
        cmocka_unit_test(parts_cover_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

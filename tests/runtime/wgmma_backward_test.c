/* The wgmma family's backward pass on the emulator: each layout of its warpgroups, under different schedules, with
 * copies and products that are done at once or as late as can be; and NaNs where no sequence is. Broad random coverage
 * is tests/random_problems.c. */
#include "backward_sample.h"
#include "emulated.h"
#include "runtime/object.h"
#include "store.h"

#include <errno.h>

static void samples(void **state) {
    (void)state;
    static const sample cases[] = {
        {"bwd bf16 d64 causal", "h200", 1, 2, 2, 300, 300, FK_BSHD, 0},          /* tiles of 128 queries */
        {"bwd fp16 d128", "h200", 2, 1, 1, 140, 200, FK_BHSD, 0},                /* of 64, and dV early */
        {"bwd bf16 d128 causal dropout", "h200", 1, 1, 1, 130, 190, FK_BSHD, 0}, /* and late */
        {"bwd bf16 d96 dv72 gqa", "h200", 1, 4, 2, 150, 70, FK_BSHD, 0},         /* panels that are not full */
        {"bwd bf16 d256 gqa causal", "h200", 1, 2, 1, 130, 100, FK_BSHD, 0},     /* warpgroups that share keys */
        {"bwd bf16 d256 gqa dropout", "h200", 1, 4, 2, 200, 420, FK_BSHD, 0},    /* clusters share tiles of keys */
        {"bwd fp16 d40 dv24", "h200", 1, 1, 1, 65, 33, FK_BSHD, 72},
        {"bwd fp16 d128 dv256", "h200", 1, 1, 1, 65, 180, FK_BSHD, 0},
        {"bwd fp16 d248 dv232", "h200", 1, 1, 1, 65, 133, FK_BSHD, 0},
        {"bwd fp16 d64 keep=\"(q - k) % 3 != 1\"", "h200", 1, 1, 1, 129, 257, FK_BSHD, 0},
        {"bwd bf16 d64 causal top-left softcap(20)", "h200", 1, 1, 1, 260, 100, FK_BSHD, 0}, /* keys that nobody sees */
        {"bwd fp16 d64 softcap(50)", "h200", 1, 1, 1, 200, 200, FK_BSHD, 0},  /* small arguments, and large ones */
        {"bwd fp16 d64 softcap(1e18)", "h200", 1, 1, 1, 70, 100, FK_BSHD, 0}, /* arguments whose squares vanish */
        {"bwd bf16 d128 softcap(3) causal", "h200", 1, 1, 1, 200, 200, FK_BSHD, 0},
        {"bwd fp16 d64 keep=\"q > 70 && k % 3 != 1\"", "h200", 1, 1, 1, 200, 300, FK_BSHD,
         0},                                                                      /* queries that see none */
        {"bwd bf16 d512 gqa causal", "h200", 1, 4, 2, 150, 200, FK_BSHD, 0},      /* halves of all columns */
        {"bwd fp16 d320 dropout", "h200", 1, 1, 1, 130, 260, FK_BHSD, 0},         /* the second CTA has 64 of 256 */
        {"bwd bf16 d128 dv512 softcap(3)", "h200", 1, 1, 1, 150, 70, FK_BSHD, 0}, /* and of the keys none */
        {"bwd bf16 d448 keep=\"q > 70 && k % 3 != 1\"", "h200", 1, 1, 1, 150, 200, FK_BSHD, 0},
    };
    static const char *const schedules[][3] = {{"1", "0", "0"}, {"3", "7", "1"}}; /* SMs, seed, late */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t n = 0; n < sizeof schedules / sizeof *schedules; n++) {
            fk_kernel_info info;
            fk_context *context =
                emulated_context("h200", store_dir, &(emulated){schedules[n][0], schedules[n][1], schedules[n][2]});
            assert_true(backward_run(context, &cases[i], &info, NULL));
            assert_string_equal(info.plan.family, "wgmma");
            assert_string_equal(info.image.target, "emu");
            fk_context_destroy(context);
        }
}

/* An arch file with other tiles than sm_90's own, which stands before it. */
static void write_tiles(const char *rest) {
    char path[320];
    snprintf(path, sizeof path, "%s/arch", store_dir);
    assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
    snprintf(path, sizeof path, "%s/arch/sm90.lua", store_dir);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file,
            "local function tile(m) return { block_m = m, block_n = 128, warps = 12, stages = 2, q_in_regs = false, "
            "ctas = 1, overlap = 1, %s } end\n"
            "return { inherits = 'sm80', name = 'sm_90', vector_add = true, wgmma_flops = 4096,\n"
            "wgmma_backward_tiles = { tile(128), tile(64) } }\n",
            rest);
    assert_int_equal(fclose(file), 0);
}

/* dQ is multiplied two tiles later, and its warpgroups start together or one after the other; or it is added by warps
 * of their own; or both. */
static void other_tiles(void **state) {
    (void)state;
    static const struct {
        const char *rest;
        int32_t q_stages, k_stages, turns;
    } tiles[] = {{"q_stages = 1, k_stages = 3, turns = false", 1, 3, 0},
                 {"q_stages = 1, k_stages = 3, turns = true", 1, 3, 1},
                 {"q_stages = 2, k_stages = 2, turns = false", 2, 2, 0},
                 {"q_stages = 2, k_stages = 2, turns = true", 2, 2, 1}};
    static const sample cases[] = {
        {"bwd bf16 d64 causal", "h200", 1, 2, 2, 700, 400, FK_BSHD, 0},
        {"bwd fp16 d128 gqa", "h200", 1, 2, 1, 140, 200, FK_BHSD, 0},
        {"bwd bf16 d96 dv72 causal dropout", "h200", 1, 1, 1, 330, 290, FK_BSHD, 0},
        {"bwd bf16 d64 causal top-left softcap(20)", "h200", 1, 1, 1, 260, 100, FK_BSHD, 0},
    };
    static const char *const schedules[][3] = {{"1", "0", "0"}, {"3", "7", "1"}};
    setenv("FLASHKILN_TEMPLATE_DIR", store_dir, 1);
    for (size_t n = 0; n < 2 * (sizeof tiles / sizeof *tiles); n++) {
        write_tiles(tiles[n / 2].rest);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            fk_kernel_info info;
            const char *const *s = schedules[n % 2];
            fk_context *context = emulated_context("h200", store_dir, &(emulated){s[0], s[1], s[2]});
            assert_true(backward_run(context, &cases[i], &info, NULL));
            assert_int_equal(info.plan.q_stages, tiles[n / 2].q_stages);
            assert_int_equal(info.plan.k_stages, tiles[n / 2].k_stages);
            assert_int_equal(info.plan.turns, tiles[n / 2].turns);
            fk_context_destroy(context);
        }
    }
    unsetenv("FLASHKILN_TEMPLATE_DIR");
}

/* Several CTAs at a time add to a tile of dq: whatever the schedule, the bits are the same. */
static void fixed_order(void **state) {
    (void)state;
    static const sample cases[] = {
        {"bwd bf16 d64 causal gqa deterministic", "h200", 1, 2, 1, 700, 700, FK_BSHD, 0},
        {"bwd fp16 d128 window(300,40) deterministic", "h200", 1, 1, 1, 600, 800, FK_BHSD, 0},
        {"bwd bf16 d72 dv64 gqa keep=\"k < 100 || k > 400\" deterministic", "h200", 1, 2, 1, 140, 700, FK_BSHD, 0},
        {"bwd bf16 d256 causal top-left deterministic", "h200", 1, 1, 1, 260, 260, FK_BSHD, 0},
        {"bwd fp16 d128 dv256 gqa deterministic", "h200", 1, 2, 1, 130, 200, FK_BSHD, 0}, /* without a cluster */
        {"bwd bf16 d512 causal deterministic", "h200", 1, 1, 1, 200, 200, FK_BSHD, 0},    /* halves of all columns */
        {"bwd fp16 d64 causal deterministic", "h200", 1, 2, 2, 400, 100, FK_BSHD, 0},     /* tiles that no key sees */
        {"bwd bf16 d64 deterministic", "h200", 1, 1, 1, 700, 600, FK_BSHD, 0},            /* dQ a tile later */
        {"bwd bf16 d64 keep=\"k >= q\" deterministic", "h200", 1, 1, 1, 600, 600, FK_BSHD,
         0}, /* from the last tile on */
        {"bwd bf16 d64 keep=\"(q / 150 + k / 150) % 3 != 1\" deterministic", "h200", 1, 1, 1, 600, 700, FK_BSHD, 0},
    };
    static const char *const schedules[][4] = {{"1", "0", "0", "1"}, {"3", "7", "1", "4"}, {"6", "5", "0", "6"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t first = 0;
        for (size_t n = 0; n < sizeof schedules / sizeof *schedules; n++) {
            fk_kernel_info info;
            uint64_t hash = 0;
            setenv("FLASHKILN_EMU_THREADS", schedules[n][3], 1);
            fk_context *context =
                emulated_context("h200", store_dir, &(emulated){schedules[n][0], schedules[n][1], schedules[n][2]});
            assert_true(backward_run(context, &cases[i], &info, &hash));
            assert_string_equal(info.plan.family, "wgmma");
            assert_int_equal(info.plan.dq_kernel, 0);
            if (n == 0) first = hash;
            if (hash != first) fail_msg("%s: other bits under schedule %zu", cases[i].spelling, n);
            fk_context_destroy(context);
            unsetenv("FLASHKILN_EMU_THREADS");
        }
    }
}

/* Masks that are no bounds: whichever of several CTAs comes first to a tile of dq stores its sum, which others wait
 * for. */
static void first_to_come_stores(void **state) {
    (void)state;
    static const sample cases[] = {
        {"bwd bf16 d64 butterfly(128)", "h200", 1, 1, 1, 1000, 1000, FK_BSHD, 0},
        {"bwd fp16 d128 blocks(128)=\"(i + j) % 4 != 1\" causal", "h200", 1, 1, 1, 500, 700, FK_BHSD, 0},
        {"bwd bf16 d64 gqa blocks(128)=\"i > 1 && (i + j) % 4 == 0\" dropout", "h200", 1, 2, 1, 600, 700, FK_BSHD,
         0}, /* queries that see none, whose sums nobody stores */
    };
    static const char *const schedules[][4] = {{"1", "0", "0", "1"}, {"3", "7", "1", "4"}, {"6", "5", "0", "6"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t n = 0; n < sizeof schedules / sizeof *schedules; n++) {
            fk_kernel_info info;
            setenv("FLASHKILN_EMU_THREADS", schedules[n][3], 1);
            fk_context *context =
                emulated_context("h200", store_dir, &(emulated){schedules[n][0], schedules[n][1], schedules[n][2]});
            assert_true(backward_run(context, &cases[i], &info, NULL));
            assert_int_equal(info.plan.q_stages, 2);
            fk_context_destroy(context);
            unsetenv("FLASHKILN_EMU_THREADS");
        }
}

static int num_parts(fk_context *context, const sample *s) {
    backward_tensors t;
    fk_kernel *kernel;
    fk_persistent tiles;
    memset(&t, 0, sizeof t);
    backward_sizes(s, &t);
    assert_int_equal(fk_kernel_create(context, &t.p, &kernel), FK_OK);
    assert_true(fk_persistent_lay_out(kernel, &t.args, &tiles));
    fk_kernel_destroy(kernel);
    return tiles.num_splits;
}

/* Keys that all queries see, of a head or two: parts of the queries, those of all heads of a group, leave dk and dv,
 * which are added up. What is deterministic has the same bits under any schedule. */
static void walks_in_parts(void **state) {
    (void)state;
    static const struct {
        sample of;
        int parts;
    } cases[] = {
        {{"bwd bf16 d64 gqa bigbird(128) top-left", "h200", 1, 8, 1, 400, 300, FK_BSHD, 0}, 3},
        {{"bwd fp16 d128 gqa longformer(128,2,1,1) top-left dropout", "h200", 1, 8, 1, 300, 260, FK_BHSD, 0}, 4},
        {{"bwd bf16 d72 dv40 gqa longformer(64,2,1,2) top-left deterministic", "h200", 1, 4, 1, 400, 200, FK_BSHD, 0},
         3},
        {{"bwd fp16 d64 gqa butterfly(128,0,2) causal top-left deterministic", "h200", 1, 8, 1, 520, 300, FK_BSHD, 0},
         4},
        /* of a cluster's keys; and fewer keys than a tile has */
        {{"bwd bf16 d256 gqa bigbird(128) top-left", "h200", 1, 8, 1, 300, 200, FK_BSHD, 0}, 2},
        {{"bwd bf16 d64 bigbird(128) top-left", "h200", 1, 1, 1, 2100, 70, FK_BSHD, 0}, 2},
    };
    static const char *const schedules[][4] = {{"18", "0", "0", "1"}, {"18", "7", "1", "4"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const sample *s = &cases[i].of;
        uint64_t first = 0;
        for (size_t n = 0; n < sizeof schedules / sizeof *schedules; n++) {
            fk_kernel_info info;
            uint64_t hash = 0;
            setenv("FLASHKILN_EMU_THREADS", schedules[n][3], 1);
            fk_context *context =
                emulated_context("h200", store_dir, &(emulated){schedules[n][0], schedules[n][1], schedules[n][2]});
            if (!backward_run(context, s, &info, &hash)) fail_msg("%s", s->spelling);
            assert_string_equal(info.plan.family, "wgmma");
            assert_int_equal(num_parts(context, s), cases[i].parts);
            if (n == 0) first = hash;
            if (strstr(s->spelling, "deterministic") && hash != first)
                fail_msg("%s: other bits under schedule %zu", s->spelling, n);
            fk_context_destroy(context);
            unsetenv("FLASHKILN_EMU_THREADS");
        }
    }
}

/* ---- what lies past a sequence's end ---- */

enum { BATCH = 7, HEADS = 2, UNUSED = 21, MAX_ROWS = 700 };
static const int32_t length_q[BATCH] = {1, 37, 64, 3, 132, 11, 70}, length_k[BATCH] = {132, 5, 65, 37, 64, 19, 2};

typedef struct tails {
    fk_problem p;
    fk_args args;
    int32_t cu[2][BATCH + 1], used[BATCH];
    uint16_t *data[BWD_TENSORS];
    float *lse;
    int64_t rows[2]; /* of all sequences, of queries and of keys */
    bool real[2][MAX_ROWS];
    void *workspace;
    size_t workspace_bytes;
} tails;

static bool has_keys(int tensor) {
    return tensor == BWD_K || tensor == BWD_V || tensor == BWD_DK || tensor == BWD_DV;
}

/* Sequences 1, 3 and 5, the last UNUSED keys of each and some rows behind all are not real. */
static void place_sequences(tails *t) {
    const bool seqused = t->p.seqused_k;
    t->cu[0][0] = 9, t->cu[1][0] = 5;
    for (int b = 0; b < BATCH; b++) {
        t->used[b] = b % 2 ? 0 : length_k[b];
        t->cu[0][b + 1] = t->cu[0][b] + length_q[b];
        t->cu[1][b + 1] = t->cu[1][b] + length_k[b] + (seqused ? UNUSED : 0);
        for (int32_t i = 0; b % 2 == 0 && i < length_q[b]; i++)
            t->real[0][t->cu[0][b] + i] = true;
        for (int32_t i = 0; b % 2 == 0 && i < length_k[b]; i++)
            t->real[1][t->cu[1][b] + i] = true;
    }
    t->rows[0] = t->cu[0][BATCH] + 140, t->rows[1] = t->cu[1][BATCH] + 140;
    assert_true(t->rows[0] <= MAX_ROWS && t->rows[1] <= MAX_ROWS);
}

static void make(fk_context *context, const char *spelling, tails *t) {
    memset(t, 0, sizeof *t);
    if (fk_problem_parse(spelling, &t->p) || fk_problem_canonical(&t->p, &t->p)) fail_msg("%s", fk_last_error());
    place_sequences(t);
    fk_args *a = &t->args;
    *a = (fk_args)FK_ARGS_INIT;
    a->batch = BATCH, a->num_heads_q = a->num_heads_kv = HEADS, a->seqlen_q = 132, a->seqlen_k = 132 + UNUSED;
    a->total_q = t->rows[0], a->total_k = t->rows[1];
    assert_int_equal(fk_args_layout(&t->p, FK_BSHD, a), FK_OK);
    void *memory[BWD_TENSORS];
    for (int i = 0; i < BWD_TENSORS; i++) {
        const size_t elements = (size_t)(t->rows[has_keys(i)] * HEADS * t->p.head_dim);
        assert_int_equal(fk_device_malloc(context, elements * 2, &memory[i]), FK_OK);
        t->data[i] = memory[i];
    }
    backward_point(a, memory);
    assert_int_equal(fk_device_malloc(context, (size_t)t->rows[0] * HEADS * 4, &memory[0]), FK_OK);
    t->lse = memory[0];
    a->lse = t->lse, a->cu_seqlens_q = t->cu[0], a->cu_seqlens_k = t->cu[1];
    if (t->p.seqused_k) a->seqused_k = t->used;
}

static void drop(fk_context *context, tails *t) {
    for (int i = 0; i < BWD_TENSORS; i++)
        fk_device_free(context, t->data[i]);
    fk_device_free(context, t->lse);
    fk_device_free(context, t->workspace);
}

/* What is not real becomes `bits`. */
static void fill_tails(tails *t, uint16_t bits) {
    const size_t width = (size_t)HEADS * (size_t)t->p.head_dim;
    for (int i = 0; i < BWD_TENSORS; i++) {
        const int side = has_keys(i);
        sample_fill(t->data[i], (size_t)t->rows[side] * width, t->p.dtype == FK_BF16, (uint32_t)i + 1);
        for (int64_t row = 0; row < t->rows[side]; row++)
            for (size_t c = 0; c < width && !t->real[side][row]; c++)
                t->data[i][(size_t)row * width + c] = bits;
    }
    for (int64_t i = 0; i < HEADS * t->rows[0]; i++) /* [heads, rows]; any will do */
        t->lse[i] = t->real[0][i % t->rows[0]] ? 3.0f : bits ? NAN : 0;
}

/* plan: null, the best for all sizes. */
static void check_tails(const char *spelling, const char *plan, const emulated *e) {
    fk_context *context = emulated_planned("h200", store_dir, plan, e);
    tails t;
    fk_kernel *kernel;
    fk_kernel_info info;
    make(context, spelling, &t);
    if (fk_kernel_create(context, &t.p, &kernel)) fail_msg("%s: %s", spelling, fk_last_error());
    assert_int_equal(fk_kernel_describe(kernel, &info), FK_OK);
    assert_string_equal(info.plan.family, "wgmma");
    t.workspace_bytes = fk_kernel_workspace(kernel, &t.args);
    assert_int_equal(fk_device_malloc(context, t.workspace_bytes, &t.workspace), FK_OK);
    const size_t width = (size_t)HEADS * (size_t)t.p.head_dim;
    uint16_t *kept[3];
    for (int pass = 0; pass < 2; pass++) {
        fill_tails(&t, pass ? 0 : 0x7fff);
        memset(t.workspace, 0xff, t.workspace_bytes);
        if (fk_execute(kernel, &t.args, t.workspace, t.workspace_bytes, NULL))
            fail_msg("%s: %s", spelling, fk_last_error());
        for (int n = 0; n < 3; n++) {
            const int side = has_keys(BWD_DQ + n);
            const size_t elements = (size_t)t.rows[side] * width;
            const uint16_t *got = t.data[BWD_DQ + n];
            if (!pass) kept[n] = malloc(elements * 2);
            if (!pass) memcpy(kept[n], got, elements * 2);
            for (size_t i = 0; i < elements; i++) {
                if (!t.real[side][i / width]) continue;
                const float x = t.p.dtype == FK_BF16 ? fk_bf16_to_float(got[i]) : fk_fp16_to_float(got[i]);
                if (!isfinite(x) || kept[n][i] != got[i])
                    fail_msg("%s: result %d, row %zu: %g, or other bits with zeros for NaNs", spelling, n, i / width,
                             (double)x);
            }
            if (pass) free(kept[n]);
        }
    }
    fk_kernel_destroy(kernel);
    drop(context, &t);
    fk_context_destroy(context);
}

static void nan_tails(void **state) {
    (void)state;
    static const struct {
        const char *spelling, *plan;
    } cases[] = {
        {"bwd bf16 d64 packed", NULL},
        {"bwd fp16 d128 packed causal", NULL},
        {"bwd bf16 d128 packed seqused_k", NULL},
        {"bwd bf16 d256 packed seqused_k causal", NULL},
        {"bwd fp16 d72 packed seqused_k dropout", NULL},
        {"bwd bf16 d64 packed seqused_k causal deterministic", NULL},
        {"bwd bf16 d64 packed", "wgmma m64 n128 w12 s3 c1 k2 o1 h256"}, /* two buffers of K and V */
        {"bwd fp16 d64 packed seqused_k causal dropout", "wgmma m64 n128 w12 s2 c1 k2 o1 h512"},
    };
    setenv("FLASHKILN_EMU_THREADS", "1", 1); /* dQ is added in the same order */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_tails(cases[i].spelling, cases[i].plan, &(emulated){"2", "0", "1"});
        check_tails(cases[i].spelling, cases[i].plan, &(emulated){"2", "5", "0"});
    }
    unsetenv("FLASHKILN_EMU_THREADS");
}

/* A CTA goes through all keys of a head: the same bits under each schedule, and no sum of dq in the workspace. */
static void whole_heads(void **state) {
    (void)state;
    static const struct {
        const char *plan;
        sample s;
    } cases[] = {
        {"wgmma m64 n128 w12 s2 c1 k2 o1 h512", {"bwd bf16 d64 causal", "h200", 2, 3, 3, 300, 300, FK_BSHD, 0}},
        {"wgmma m128 n128 w12 s2 c1 k2 o1 h256", {"bwd fp16 d64", "h200", 3, 2, 2, 200, 270, FK_BHSD, 0}},
        {"wgmma m128 n128 w12 s2 c1 k2 t1 o1 h512", {"bwd bf16 d32 dropout", "h200", 1, 4, 4, 330, 150, FK_BSHD, 0}},
        {"wgmma m64 n128 w12 s2 c1 k2 o1 h128", {"bwd fp16 d128 dv72", "h200", 1, 5, 5, 70, 290, FK_BSHD, 0}},
        {"wgmma m64 n128 w12 s3 c1 k2 o1 h384", {"bwd bf16 d40 window(64,0)", "h200", 1, 3, 3, 384, 384, FK_BSHD, 0}},
        {"wgmma m64 n128 w12 s3 c1 k2 o1 h256", {"bwd bf16 d64 causal", "h200", 3, 2, 2, 130, 270, FK_BSHD, 0}},
        {"wgmma m128 n128 w12 s2 c1 k2 o1 h256", /* queries that see none, and atoms not in fours */
         {"bwd bf16 d24 keep=\"q > 70 && k % 3 != 1\"", "h200", 1, 3, 3, 200, 300, FK_BSHD, 0}},
    };
    static const emulated schedules[] = {{"1", "0", "0"}, {"2", "7", "1"}};
    for (size_t i = 0; i < emulated_cases(sizeof cases / sizeof *cases); i++) {
        const sample *s = &cases[i].s;
        uint64_t first = 0;
        for (size_t n = 0; n < sizeof schedules / sizeof *schedules; n++) {
            fk_context *plain = emulated_context("h200", store_dir, &schedules[n]);
            fk_context *context = emulated_planned("h200", store_dir, cases[i].plan, &schedules[n]);
            backward_tensors t;
            fk_kernel *kernel;
            assert_true(backward_make(plain, s, &t));
            if (fk_kernel_create(context, &t.p, &kernel)) fail_msg("%s: %s", s->spelling, fk_last_error());
            t.workspace_bytes = fk_kernel_workspace(kernel, &t.args);
            assert_true(t.workspace_bytes <= (size_t)(s->batch * s->num_heads_q * 512 * 8 + 512));
            assert_true(backward_allocate(plain, t.workspace_bytes, &t.workspace));
            backward_forward(plain, s, &t);
            backward_execute(context, s, &t, kernel);
            backward_check(s, &t);
            const uint64_t hash = backward_hash(&t);
            if (n == 0) first = hash;
            if (hash != first) fail_msg("%s: other bits under schedule %zu", s->spelling, n);
            fk_kernel_destroy(kernel);
            backward_free(plain, &t);
            fk_context_destroy(context);
            fk_context_destroy(plain);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(samples),        cmocka_unit_test(other_tiles),
                                       cmocka_unit_test(fixed_order),    cmocka_unit_test(first_to_come_stores),
                                       cmocka_unit_test(walks_in_parts), cmocka_unit_test(nan_tails),
                                       cmocka_unit_test(whole_heads)};
    return cmocka_run_group_tests(tests, make_store, remove_store);
}

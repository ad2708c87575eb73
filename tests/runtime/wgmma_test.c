/* The wgmma family on the emulator: few SMs, so that CTAs fetch several tiles, under different schedules; whatever the
 * workspace holds, and whoever used it before. Broad random coverage is tests/random_problems.c. */
#include "emulated.h"
#include "sample.h"
#include "store.h"

#include <unistd.h>

static fk_context *open_context(const char *sms, const char *seed, const char *late) {
    return emulated_context("h100", store_dir, &(emulated){sms, seed, late});
}

static void samples(void **state) {
    (void)state;
    static const sample cases[] = {
        {"fwd bf16 d64 causal", "h100", 1, 2, 2, 300, 300, FK_BSHD, 0},
        {"fwd fp16 d128", "h100", 2, 1, 1, 140, 200, FK_BHSD, 0},
        {"fwd bf16 d72 dv40 gqa", "h100", 1, 4, 2, 150, 70, FK_BSHD, 0},
        {"fwd fp16 d40 dv24", "h100", 1, 1, 1, 65, 33, FK_BSHD, 72},
        /* rows that see their first key in a tile that others see all of, and then a masked one */
        {"fwd bf16 d128 window(1,191)", "h200", 1, 1, 1, 225, 225, FK_BSHD, 0},
        {"fwd fp16 d64 keep=\"(q - k) % 3 != 1\"", "h100", 1, 1, 1, 129, 257, FK_BSHD, 0},
        /* a tile whose last rows are done long before its first ones */
        {"fwd bf16 d64 chunked(1472)", "h200", 1, 1, 1, 2900, 2900, FK_BSHD, 0},
        {"fwd bf16 d64 causal top-left softcap(20)", "h100", 1, 1, 1, 260, 100, FK_BSHD, 0},
        /* of more tiles of keys than are looked through at once, some on either side */
        {"fwd fp16 d64 keep=\"k / 1000 % 69 == q / 100\"", "h100", 1, 1, 1, 200, 140000, FK_BSHD, 0},
        {"fwd bf16 d64 bigbird(128) top-left", "h200", 1, 2, 2, 150, 8300, FK_BSHD, 0}, /* 128 queries in two parts */
        {"fwd fp16 d16 bigbird(8,0,0,3)", "h200", 1, 4, 4, 1, 700000, FK_BSHD,
         0}, /* draws times blocks leave 32 bits */
        {"fwd fp16 d64 longformer(64,1073741824,2)", "h200", 1, 1, 1, 150, 300, FK_BSHD, 0},
        {"fwd fp16 d64 score=\"s + (s > 0 ? 2.0 : 0.0) - 0.1 * abs(q - k)\" causal", "h200", 1, 1, 1, 200, 300, FK_BSHD,
         0},
        {"fwd fp16 d128 score=\"2.0 * (0.5 * s - 0.05 * abs(q - k))\"", "h200", 1, 1, 1, 200, 300, FK_BSHD, 0},
        /* an additive mask of late keys, with which rows begin */
        {"fwd fp16 d64 score=\"k >= 200 ? s - 1e9 : s\"", "h200", 1, 1, 1, 140, 300, FK_BSHD, 0},
        {"fwd bf16 d128 score=\"k >= 200 ? s - 3e38 : s\" causal", "h200", 1, 1, 1, 140, 300, FK_BSHD, 0},
        {"fwd fp16 d64 score=\"s > 0 ? s : 0\"", "h200", 1, 1, 1, 140, 300, FK_BSHD, 0}, /* whose 0 is a float */
        {"fwd bf16 d64 score=\"tanh(0.05 * s * (1 + abs(s)))\"", "h200", 1, 1, 1, 140, 300, FK_BSHD, 0},
        {"fwd bf16 d64 fast causal", "h200", 2, 2, 2, 300, 250, FK_BSHD, 0},
        {"fwd bf16 d56 gqa window(100,0) fast", "h200", 1, 4, 2, 333, 300, FK_BHSD, 0},
        {"fwd bf16 d40 dv24 fast keep=\"(q - k) % 3 != 1\"", "h200", 1, 1, 1, 129, 257, FK_BSHD, 0},
        {"fwd bf16 d256 fast", "h200", 1, 1, 1, 65, 33, FK_BSHD, 264},
        {"fwd fp16 d128 gqa longformer(64,1,1,2) top-left dropout", "h200", 1, 2, 1, 300, 16400, FK_BSHD, 0},
    };
    static const char *const schedules[][3] = {{"1", "0", "0"}, {"2", "7", "1"}};
    for (size_t i = 0; i < emulated_cases(sizeof cases / sizeof *cases); i++)
        for (size_t n = 0; n < sizeof schedules / sizeof *schedules; n++) {
            fk_kernel_info info;
            fk_context *context = open_context(schedules[n][0], schedules[n][1], schedules[n][2]);
            assert_true(sample_run(context, &cases[i], &info));
            assert_string_equal(info.plan.family, "wgmma");
            assert_string_equal(info.image.target, "emu");
            fk_context_destroy(context);
        }
}

/* Two to four teams in a CTA: with fewer tiles than teams, and more; rows that see nothing; masks of every kind: with
 * more than two teams each producer looks for its tiles itself, also of more than are looked through at once. */
static void teams(void **state) {
    (void)state;
    static const sample cases[] = {
        {"fwd bf16 d64", "h200", 1, 1, 1, 100, 130, FK_BSHD, 0},
        {"fwd fp16 d64 causal", "h200", 1, 3, 3, 300, 200, FK_BHSD, 0},
        {"fwd bf16 d64 gqa window(70,10) dropout", "h200", 1, 4, 2, 400, 400, FK_BSHD, 0},
        {"fwd bf16 d64 blocks(128)=\"(i ^ j) % 3 == 0 && i != 1\"", "h200", 2, 2, 2, 500, 700, FK_BSHD, 0},
        {"fwd bf16 d64 causal fast", "h200", 1, 3, 3, 300, 200, FK_BHSD, 0},
        {"fwd bf16 d40 blocks(32x64)=\"hash(i, j) % 4 == 0\" causal", "h200", 1, 2, 2, 300, 300, FK_BSHD, 0},
        {"fwd fp16 d32 gqa bigbird(64) dropout", "h200", 1, 4, 2, 330, 700, FK_BSHD, 0},
        {"fwd fp16 d16 keep=\"k / 1000 % 69 == q / 100\"", "h100", 1, 1, 1, 150, 70000, FK_BSHD, 0},
    };
    static const char *const plans[] = {"wgmma m128 n64 w20 s4 c1 q2 k4 o1", "wgmma m64 n64 w12 s2 c1 q2 k3 o2",
                                        "wgmma m64 n64 w16 s2 c1 q2 k2 o1", "wgmma m64 n64 w20 s2 c1 q2 k2 o1"};
    static const char *const schedules[][3] = {{"1", "0", "0"}, {"3", "7", "1"}};
    for (size_t i = 0; i < emulated_cases(sizeof cases / sizeof *cases); i++)
        for (size_t n = 0; n < sizeof schedules / sizeof *schedules; n++)
            for (size_t j = 0; j < sizeof plans / sizeof *plans; j++) {
                fk_kernel_info info;
                fk_context *context = emulated_planned("h200", store_dir, plans[j],
                                                       &(emulated){schedules[n][0], schedules[n][1], schedules[n][2]});
                assert_true(sample_run(context, &cases[i], &info));
                assert_int_equal(info.image.threads, info.plan.warps * 32);
                assert_int_equal(info.plan.block_n, 64);
                fk_context_destroy(context);
            }
}

/* Four warpgroups that share one ring, and clusters of two CTAs that share tiles of keys: with rows for the first CTA
 * alone, rows that see nothing, more tiles than clusters; causal rows of which each warpgroup visits other tiles. */
static void shared_keys(void **state) {
    (void)state;
    static const struct {
        const char *plan;
        sample of;
    } cases[] = {
        {"wgmma m256 n64 w20 s8 c1 q2 k8 o2", {"fwd bf16 d64", "h200", 1, 1, 1, 100, 130, FK_BSHD, 0}},
        {"wgmma m256 n64 w20 s8 c1 q2 k8 o2", {"fwd fp16 d64 causal", "h200", 2, 2, 2, 600, 700, FK_BHSD, 0}},
        {"wgmma m256 n64 w20 s8 c1 q2 k8 t1 o2",
         {"fwd bf16 d64 gqa keep=\"(q - k) % 3 != 1\"", "h200", 1, 4, 2, 300, 300, FK_BSHD, 0}},
        {"wgmma m256 n128 w12 s2 c1 r1 q2 k3 o2", {"fwd bf16 d128", "h200", 1, 1, 1, 100, 130, FK_BSHD, 0}},
        {"wgmma m256 n128 w12 s2 c1 r1 q2 k3 o2", {"fwd fp16 d128 causal", "h200", 1, 3, 3, 900, 520, FK_BHSD, 0}},
        {"wgmma m256 n128 w12 s2 c1 r1 q2 k3 o2", {"fwd bf16 d64 causal fast", "h200", 1, 3, 3, 900, 520, FK_BHSD, 0}},
        {"wgmma m256 n64 w12 s2 c1 q2 k3 o2", {"fwd bf16 d64 fast", "h200", 1, 3, 3, 400, 300, FK_BSHD, 0}},
        {"wgmma m256 n64 w20 s8 c1 q2 k8 t1 o2", {"fwd bf16 d64 dropout fast", "h200", 2, 2, 2, 300, 700, FK_BSHD, 0}},
        {"wgmma m256 n64 w12 s3 c1 q2 k2 o1", {"fwd bf16 d128 window(90,70)", "h200", 2, 2, 2, 700, 500, FK_BSHD, 0}},
        {"wgmma m256 n128 w12 s2 c1 q2 k2 o1",
         {"fwd bf16 d72 dv104 gqa dropout causal", "h200", 2, 4, 2, 300, 300, FK_BSHD, 0}},
        {"wgmma m384 n128 w16 s2 c1 q2 k2 t1 o1", {"fwd fp16 d64 softcap(20)", "h200", 1, 3, 3, 800, 300, FK_BHSD, 0}},
        {"wgmma m256 n80 w12 s2 c1 q1 k2 o1", {"fwd bf16 d256 causal top-left", "h200", 1, 2, 2, 600, 500, FK_BSHD, 0}},
        /* the second CTA has nothing to do, and is not to be told of what follows before the first one is done */
        {"wgmma m256 n64 w12 s2 c1 q1 k2 o1", {"fwd bf16 d232 dropout", "h200", 1, 1, 1, 127, 127, FK_BSHD, 0}},
    };
    static const char *const schedules[][3] = {{"1", "0", "0"}, {"1", "3", "1"}, {"5", "3", "0"}};
    for (size_t i = 0; i < emulated_cases(sizeof cases / sizeof *cases); i++)
        for (size_t n = 0; n < sizeof schedules / sizeof *schedules; n++) {
            fk_kernel_info info;
            fk_context *context = emulated_planned("h200", store_dir, cases[i].plan,
                                                   &(emulated){schedules[n][0], schedules[n][1], schedules[n][2]});
            if (!sample_run(context, &cases[i].of, &info)) fail_msg("%s: %s", cases[i].plan, cases[i].of.spelling);
            fk_context_destroy(context);
        }
}

/* A tanh of small, larger and large arguments, beside each other as well; of factors that a polynomial cannot take; of
 * what is no multiple of s; and among other terms. Tiles that are seen as a whole, masked ones, and none at all. */
static void soft_caps(void **state) {
    (void)state;
    static const char *const words[] = {
        "softcap(50)",
        "softcap(-30) causal",
        "softcap(8)",
        "softcap(5)",
        "softcap(1)",
        "softcap(1e-3)",
        "softcap(1e6)",
        "softcap(1e20)",
        "score=\"2 - 3 * tanh(0.1 * s)\" causal",
        "score=\"30 * tanh(s * s)\"",
        "score=\"s * s\"",
        "softcap(20) score=\"0.5 * s + 0.01 * k\"",
        "window(90,20) softcap(4)",
        "keep=\"(q - k) % 3 != 1\" softcap(20)",
    };
    for (size_t i = 0; i < emulated_cases(sizeof words / sizeof *words); i++)
        for (int dim = 64; dim <= 128; dim *= 2) {
            char spelling[128];
            snprintf(spelling, sizeof spelling, "fwd bf16 d%d %s", dim, words[i]);
            const sample one = {spelling, "h200", 1, 1, 1, 200, 300, FK_BSHD, 0};
            fk_kernel_info info;
            fk_context *context = open_context("1", "0", "0");
            if (!sample_run(context, &one, &info)) fail_msg("%s", spelling);
            assert_string_equal(info.plan.family, "wgmma");
            fk_context_destroy(context);
        }
}

enum { BATCH = 2, HEADS = 3, QUERIES = 270, KEYS = 190, DIM = 64 };

typedef struct inputs {
    uint16_t *q, *k, *v, *o;
    fk_args args;
} inputs;

static uint16_t *device_tensor(fk_context *context, size_t rows, uint32_t seed) {
    void *memory = NULL;
    assert_int_equal(fk_device_malloc(context, rows * DIM * 2, &memory), FK_OK);
    sample_fill(memory, rows * DIM, true, seed);
    return memory;
}

static inputs make_inputs(fk_context *context, const fk_problem *p) {
    inputs in = {.q = device_tensor(context, BATCH * QUERIES * HEADS, 1),
                 .k = device_tensor(context, BATCH * KEYS * HEADS, 2),
                 .v = device_tensor(context, BATCH * KEYS * HEADS, 3),
                 .o = device_tensor(context, BATCH * QUERIES * HEADS, 4),
                 .args = FK_ARGS_INIT};
    fk_args *a = &in.args;
    a->batch = BATCH, a->num_heads_q = a->num_heads_kv = HEADS, a->seqlen_q = QUERIES, a->seqlen_k = KEYS;
    a->q = in.q, a->k = in.k, a->v = in.v, a->o = in.o;
    assert_int_equal(fk_args_layout(p, FK_BSHD, a), FK_OK);
    return in;
}

static void free_inputs(fk_context *context, const inputs *in) {
    uint16_t *const all[] = {in->q, in->k, in->v, in->o};
    for (int i = 0; i < 4; i++)
        fk_device_free(context, all[i]);
}

/* The same bits with any number of CTAs and order of events, in a workspace that holds anything or has just been used.
 */
static void same_bits(void **state) {
    (void)state;
    static const char *const schedules[][4] = {
        {"132", "0", "0", "1"}, {"1", "0", "1", "1"}, {"2", "3", "0", "4"}, {"3", "5", "1", "4"}};
    enum { ELEMENTS = BATCH * QUERIES * HEADS * DIM };
    static uint16_t first[ELEMENTS];
    fk_problem p;
    assert_int_equal(fk_problem_parse("fwd bf16 d64 causal", &p), FK_OK);
    for (size_t n = 0; n < sizeof schedules / sizeof *schedules; n++) {
        fk_context *context = open_context(schedules[n][0], schedules[n][1], schedules[n][2]);
        const inputs in = make_inputs(context, &p);
        fk_kernel *kernel;
        void *workspace = NULL;
        assert_int_equal(fk_kernel_create(context, &p, &kernel), FK_OK);
        const size_t bytes = fk_kernel_workspace(kernel, &in.args);
        assert_true(bytes > 0);
        assert_int_equal(fk_device_malloc(context, bytes, &workspace), FK_OK);
        memset(workspace, (int)(17 * n), bytes);
        setenv("FLASHKILN_EMU_THREADS", schedules[n][3], 1);
        for (int launch = 0; launch < 3; launch++) {
            memset(in.o, 0xff, ELEMENTS * 2);
            if (fk_execute(kernel, &in.args, workspace, bytes, NULL)) fail_msg("%s", fk_last_error());
            if (n + (size_t)launch == 0) memcpy(first, in.o, sizeof first);
            assert_memory_equal(first, in.o, sizeof first);
        }
        unsetenv("FLASHKILN_EMU_THREADS");
        fk_device_free(context, workspace);
        free_inputs(context, &in);
        fk_kernel_destroy(kernel);
        fk_context_destroy(context);
    }
}

/* One K and V for all batches; one row of V for all keys; q of one head, seen by all. */
static void expanded_tensors(void **state) {
    (void)state;
    static double want[BATCH * QUERIES * HEADS * DIM];
    fk_problem p;
    assert_int_equal(fk_problem_parse("fwd bf16 d64", &p), FK_OK);
    fk_context *context = open_context("2", "0", "0");
    fk_kernel *kernel;
    assert_int_equal(fk_kernel_create(context, &p, &kernel), FK_OK);
    for (int kind = 0; kind < 3; kind++) {
        inputs in = make_inputs(context, &p);
        if (kind == 0) in.args.k_stride[0] = in.args.v_stride[0] = 0;
        if (kind == 1) in.args.v_stride[1] = 0;
        if (kind == 2) in.args.q_stride[2] = 0;
        if (launch_once(context, kernel, &in.args)) fail_msg("%s", fk_last_error());
        assert_int_equal(fk_reference(&p, &in.args, FK_REFERENCE_F64, want, NULL), FK_OK);
        for (int row = 0; row < BATCH * HEADS * QUERIES; row++) { /* of the reference: batch, head, query */
            const int b = row / QUERIES / HEADS, h = row / QUERIES % HEADS, i = row % QUERIES;
            for (int c = 0; c < DIM; c++) {
                const double got = (double)fk_bf16_to_float(in.o[((b * QUERIES + i) * HEADS + h) * DIM + c]);
                if (!(fabs(got - want[row * DIM + c]) < 0.02))
                    fail_msg("kind %d: o[%d][%d][%d][%d] is %g, not %g", kind, b, h, i, c, got, want[row * DIM + c]);
            }
        }
        free_inputs(context, &in);
    }
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
}

/* Ids of queries and keys that grow by a step each `length` rows, of batch entry b, which begins elsewhere. */
static void fill_ids(int32_t *ids, int rows, int length, int step) {
    for (int b = 0; b < BATCH; b++)
        for (int i = 0; i < rows; i++)
            ids[b * rows + i] = (i + 37 * b) / length * step - 3;
}

/* Documents as runs of keys: long ones, those of a few rows, queries without keys and keys without queries. What is not
 * sorted, though it was said to be, ends as well. */
static void documents(void **state) {
    (void)state;
    static const int lengths[][4] = {{300, 1, 300, 1}, {100, 1, 71, 1}, {7, 1, 5, 1},
                                     {1, 1, 1, 1},     {40, 2, 20, 3},  {50, -1, 9, -1}};
    static const char *const spellings[] = {"fwd bf16 d64 document", "fwd bf16 d64 document causal",
                                            "fwd bf16 d64 document window(40,15)"};
    static double want[BATCH * QUERIES * HEADS * DIM];
    static int32_t of_queries[BATCH * QUERIES], of_keys[BATCH * KEYS];
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        fk_problem p;
        fk_kernel *kernel;
        fk_context *context = open_context(i == 1 ? "2" : "132", i ? "5" : "0", i == 2 ? "1" : "0");
        assert_int_equal(fk_problem_parse(spellings[i], &p), FK_OK);
        assert_int_equal(fk_kernel_create(context, &p, &kernel), FK_OK);
        for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++) {
            inputs in = make_inputs(context, &p);
            fill_ids(of_queries, QUERIES, lengths[n][0], lengths[n][1]);
            fill_ids(of_keys, KEYS, lengths[n][2], lengths[n][3]);
            in.args.array[0] = (fk_array){.data = of_queries, .stride = {QUERIES, 1}};
            in.args.array[1] = (fk_array){.data = of_keys, .stride = {KEYS, 1}};
            if (launch_once(context, kernel, &in.args)) fail_msg("%s", fk_last_error());
            assert_int_equal(fk_reference(&p, &in.args, FK_REFERENCE_F64, want, NULL), FK_OK);
            for (int row = 0; lengths[n][1] > 0 && row < BATCH * HEADS * QUERIES; row++) {
                const int b = row / QUERIES / HEADS, h = row / QUERIES % HEADS, q = row % QUERIES;
                for (int c = 0; c < DIM; c++) {
                    const double got = (double)fk_bf16_to_float(in.o[((b * QUERIES + q) * HEADS + h) * DIM + c]);
                    if (!(fabs(got - want[row * DIM + c]) < 0.02))
                        fail_msg("%s, %zu: o[%d][%d][%d][%d] is %g, not %g", spellings[i], n, b, h, q, c, got,
                                 want[row * DIM + c]);
                }
            }
            free_inputs(context, &in);
        }
        fk_kernel_destroy(kernel);
        fk_context_destroy(context);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples),   cmocka_unit_test(teams),     cmocka_unit_test(shared_keys),
        cmocka_unit_test(soft_caps), cmocka_unit_test(same_bits), cmocka_unit_test(expanded_tensors),
        cmocka_unit_test(documents),
    };
    return cmocka_run_group_tests(tests, make_store, remove_store);
}

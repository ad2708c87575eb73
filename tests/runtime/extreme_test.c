/* Extreme scores and values in the wgmma family's kernels, on the emulator: against float64, and the same bits with any
 * number of CTAs, any order of events, and again. */
#include "emulated.h"
#include "extreme_sample.h"
#include "scratch.h"

#include <string.h>

enum { LAUNCHES = 4 };
static fk_context *contexts[LAUNCHES]; /* the last is the one before, once more */
static char store_dir[256];

/* Contexts of the emulator share their memory. @return tiles that were computed again */
static int run(const sample *s, const extreme *e) {
    extreme_run r = extreme_make(contexts[0], s, e);
    for (int i = 0; i < LAUNCHES; i++) {
        fk_kernel *kernel;
        fk_kernel_info info;
        if (fk_kernel_create(contexts[i], &r.t.p, &kernel)) fail_msg("%s: %s", s->spelling, fk_last_error());
        assert_int_equal(fk_kernel_describe(kernel, &info), FK_OK);
        assert_string_equal(info.plan.family, "wgmma");
        const int redone = r.redone;
        extreme_launch(contexts[i], kernel, &r);
        if (i == 0) extreme_check(&r);
        if (i == 0) extreme_remember(&r);
        extreme_assert_same(&r, i == LAUNCHES - 1 ? "in a second launch" : "with other CTAs");
        assert_true(i == 0 || redone == r.redone);
        fk_kernel_destroy(kernel);
    }
    const int redone = r.redone;
    extreme_free(contexts[0], &r);
    return redone;
}

/* All keys are seen, so that it is known what must be computed again. */
static void full(void **state) {
    (void)state;
    static const sample samples[] = {
        {"fwd bf16 d64", "h200", 1, 2, 2, 200, 450, FK_BSHD, 0},
        {"fwd fp16 d64", "h200", 1, 2, 2, 150, 512, FK_BSHD, 0},
        {"fwd bf16 d128", "h200", 1, 2, 2, 150, 400, FK_BSHD, 0},
        {"fwd fp16 d256", "h200", 2, 1, 1, 140, 250, FK_BSHD, 0},
        {"fwd bf16 d64 dropout", "h200", 1, 1, 1, 200, 400, FK_BSHD, 0},
        {"fwd bf16 d64 fast", "h200", 1, 2, 2, 200, 450, FK_BSHD, 0},
        {"fwd bf16 d48 dropout fast", "h200", 1, 1, 1, 150, 400, FK_BSHD, 0},
    };
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++)
        for (int j = 0; j < NUM_EXTREMES; j++) {
            extreme_run r = {.s = &samples[i], .e = &extremes[j], .redone = run(&samples[i], &extremes[j])};
            r.t.p.dtype = strstr(samples[i].spelling, "fp16") ? FK_FP16 : FK_BF16;
            r.t.p.fast = strstr(samples[i].spelling, "fast") != NULL;
            r.t.host.batch = samples[i].batch, r.t.host.num_heads_q = samples[i].num_heads_q;
            extreme_assert_redone(&r);
        }
}

/* Rows whose first tiles are masked, or all of them. */
static void masked(void **state) {
    (void)state;
    static const sample samples[] = {
        {"fwd bf16 d64 causal", "h200", 1, 1, 1, 450, 450, FK_BSHD, 0},
        {"fwd fp16 d128 causal", "h200", 1, 1, 1, 300, 400, FK_BSHD, 0},
        {"fwd bf16 d256 causal top-left", "h200", 1, 1, 1, 280, 250, FK_BSHD, 0},
        {"fwd bf16 d128 window(250,5)", "h200", 1, 1, 1, 300, 400, FK_BSHD, 0},
        /* weights that leave fp16's range in a full tile, and then a maximum that makes the row sum small again */
        {"fwd fp16 d128 window(250,5)", "h200", 1, 1, 1, 300, 400, FK_BSHD, 0},
        {"fwd fp16 d256 window(146,121)", "h200", 1, 1, 1, 231, 248, FK_BSHD, 0},
        {"fwd bf16 d64 document", "h200", 1, 1, 1, 200, 900, FK_BSHD, 0},
        {"fwd fp16 d128 document", "h200", 1, 1, 1, 200, 700, FK_BSHD, 0},
        {"fwd bf16 d64 keep=\"k < 350 || q % 2 == 1\"", "h200", 1, 1, 1, 150, 700, FK_BSHD, 0},
        {"fwd fp16 d64 keep=\"k / 192 % 2 == 0 || q % 3 == k % 3\"", "h200", 1, 1, 1, 150, 700, FK_BSHD, 0},
        {"fwd bf16 d256 document dropout", "h200", 1, 1, 1, 136, 500, FK_BSHD, 0},
        {"fwd bf16 d64 causal fast", "h200", 1, 1, 1, 450, 400, FK_BSHD, 0},
        {"fwd bf16 d32 dv80 window(250,5) fast", "h200", 1, 1, 1, 300, 400, FK_BSHD, 0},
        {"fwd bf16 d64 document fast", "h200", 1, 1, 1, 200, 900, FK_BSHD, 0},
    };
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        int redone = 0;
        for (int j = 0; j < NUM_EXTREMES; j++) {
            const extreme *e = &extremes[j];
            const bool tame =
                e->redo[0] == NO_REDO && e->redo[1] == NO_REDO && e->nats >= 0 && e->shape != EXTREME_RAMP;
            redone += tame ? 0 : run(&samples[i], e);
        }
        if (redone == 0) fail_msg("%s: no tile was computed again", samples[i].spelling);
    }
}

/* CTAs that share tiles of keys compute a tile again together, whichever of them asks for it. */
static void clusters(void **state) {
    (void)state;
    static const sample samples[] = {
        {"fwd bf16 d64", "h200", 1, 2, 2, 400, 450, FK_BSHD, 0},
        {"fwd fp16 d128 causal", "h200", 1, 1, 1, 600, 700, FK_BSHD, 0},
        {"fwd bf16 d64 causal fast", "h200", 1, 1, 1, 400, 450, FK_BSHD, 0},
    };
    static const emulated of[] = {{"132", "0", "0"}, {"1", "3", "1"}, {"4", "7", "0"}};
    fk_context *const others[] = {contexts[0], contexts[1], contexts[2], contexts[3]};
    for (int i = 0; i < LAUNCHES - 1; i++)
        contexts[i] = emulated_planned("h200", store_dir, "wgmma m256 n64 w12 s2 c1 q2 k3 o2", &of[i]);
    contexts[LAUNCHES - 1] = contexts[LAUNCHES - 2];
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        int redone = 0;
        for (int j = 0; j < NUM_EXTREMES; j++)
            redone += run(&samples[i], &extremes[j]);
        if (redone == 0) fail_msg("%s: no tile was computed again", samples[i].spelling);
    }
    for (int i = 0; i < LAUNCHES - 1; i++)
        fk_context_destroy(contexts[i]);
    memcpy(contexts, others, sizeof others);
}

static int start(void **state) {
    (void)state;
    static const emulated of[LAUNCHES - 1] = {{"132", "0", "0"}, {"1", "3", "1"}, {"2", "7", "0"}};
    if (!scratch_make(store_dir, sizeof store_dir)) return -1;
    for (int i = 0; i < LAUNCHES - 1; i++)
        contexts[i] = emulated_context("h200", store_dir, &of[i]);
    contexts[LAUNCHES - 1] = contexts[LAUNCHES - 2];
    return 0;
}

static int stop(void **state) {
    (void)state;
    for (int i = 0; i < LAUNCHES - 1; i++)
        fk_context_destroy(contexts[i]);
    return scratch_remove(store_dir) ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(full), cmocka_unit_test(masked), cmocka_unit_test(clusters)};
    return cmocka_run_group_tests(tests, start, stop);
}

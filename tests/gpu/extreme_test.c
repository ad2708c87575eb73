/* Extreme scores and values, and NaNs past the ends of sequences, on a real GPU's own plans: right, and bitwise the
 * same in each of many launches. Skips itself, by name, without a GPU. */
#include "runtime/extreme_sample.h"
#include "runtime/tail_sample.h"

enum { LAUNCHES = 50 };

static fk_context *open_context(void) {
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    fk_context *context;
    options.device = "cuda:0", options.cache_mode = FK_CACHE_OFF;
    if (fk_context_create(&options, &context)) fail_msg("%s", fk_last_error());
    return context;
}

/* Memory is in use throughout, so that a CTA that reads what another left there is seen. */
static void run(fk_context *context, const sample *s, const extreme *e, bool all_keys) {
    fk_kernel *kernel;
    extreme_run r = extreme_make(context, s, e);
    if (fk_kernel_create(context, &r.t.p, &kernel)) fail_msg("%s: %s", s->spelling, fk_last_error());
    extreme_launch(context, kernel, &r);
    extreme_check(&r);
    if (all_keys && r.redone >= 0) extreme_assert_redone(&r);
    extreme_remember(&r);
    const int redone = r.redone;
    for (int i = 1; i < LAUNCHES; i++) {
        extreme_launch(context, kernel, &r);
        extreme_assert_same(&r, "in a later launch");
        assert_int_equal(r.redone, redone);
    }
    fk_kernel_destroy(kernel);
    extreme_free(context, &r);
}

static void extremes_of(const sample *samples, size_t count, bool all_keys) {
    fk_context *context = open_context();
    for (size_t i = 0; i < count; i++)
        for (int j = 0; j < NUM_EXTREMES; j++)
            run(context, &samples[i], &extremes[j], all_keys);
    fk_context_destroy(context);
}

/* More tiles than an H200 has SMs, and rows that need several tiles of keys. */
static void full(void **state) {
    (void)state;
    static const sample samples[] = {
        {"fwd bf16 d64", NULL, 2, 16, 16, 1000, 700, FK_BSHD, 0},
        {"fwd fp16 d64", NULL, 2, 16, 16, 900, 640, FK_BSHD, 0},
        {"fwd bf16 d128", NULL, 2, 8, 8, 1500, 600, FK_BSHD, 0},
        {"fwd fp16 d256", NULL, 1, 16, 16, 1300, 500, FK_BSHD, 0},
        {"fwd bf16 d128 dropout", NULL, 2, 8, 8, 1500, 600, FK_BSHD, 0},
        {"fwd bf16 d64 fast", NULL, 2, 16, 16, 1000, 700, FK_BSHD, 0},
        {"fwd bf16 d40 fast", NULL, 2, 8, 8, 1500, 600, FK_BSHD, 0},
    };
    extremes_of(samples, sizeof samples / sizeof *samples, true);
}

static void masked(void **state) {
    (void)state;
    static const sample samples[] = {
        {"fwd bf16 d64 causal", NULL, 2, 16, 16, 1100, 1100, FK_BSHD, 0},
        {"fwd bf16 d64 causal fast", NULL, 2, 16, 16, 1100, 1000, FK_BSHD, 0},
        {"fwd fp16 d128 causal", NULL, 2, 8, 8, 1300, 1400, FK_BSHD, 0},
        {"fwd bf16 d256 causal top-left", NULL, 1, 16, 16, 1200, 500, FK_BSHD, 0},
        {"fwd bf16 d128 window(350,5)", NULL, 2, 8, 8, 1500, 1600, FK_BSHD, 0},
        {"fwd bf16 d64 document", NULL, 1, 16, 16, 1100, 900, FK_BSHD, 0},
        {"fwd fp16 d128 keep=\"k < 500 || q % 2 == 1\"", NULL, 1, 16, 16, 1100, 900, FK_BSHD, 0},
        {"fwd fp16 d128 causal dropout", NULL, 2, 8, 8, 1300, 1300, FK_BSHD, 0},
    };
    extremes_of(samples, sizeof samples / sizeof *samples, false);
}

static void tails(void **state) {
    (void)state;
    fk_context *context = open_context();
    for (int i = 0; i < NUM_TAIL_SPELLINGS; i++)
        for (int again = 0; again < 3; again++) {
            const fk_kernel_info info = tail_run(context, tail_spellings[i]);
            if (!again) print_message("%s: family %s\n", tail_spellings[i], info.plan.family);
        }
    fk_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(full), cmocka_unit_test(masked), cmocka_unit_test(tails)};
    fk_device_info device;
    if (fk_device_find("cuda:0", &device)) {
        printf("skipped: gpu/extreme_test needs a GPU: %s\n", fk_last_error());
        return 77;
    }
    printf("on %s, sm_%d\n", device.name, device.sm);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

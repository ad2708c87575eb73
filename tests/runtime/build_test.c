/* fk_build: real text through the real NVRTC for each architecture, without a GPU. Exits with 77 where there is no
 * NVRTC. The whole matrix, with registers and spills, is the business of `flashkiln build`. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "flashkiln.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void builds(void **state) {
    (void)state;
    static const struct {
        const char *spelling, *gpu, *target;
    } cases[] = {
        {"fwd fp16 d64 causal", "t4", "sm_75"},
        {"fwd bf16 d128 causal", "a100", "sm_80"},
        {"fwd fp16 d64 gqa", "rtx3090", "sm_86"},
        {"fwd bf16 d64 keep=\"k <= q && (q - k) % 4 == 0\"", "l4", "sm_89"},
        {"fwd bf16 d128", "h200", "sm_90a"},
        {"fwd fp16 d64 softcap(20) bias sink document causal", "t4", "sm_75"},
        {"fwd bf16 d128 array=slope:float[h] score=\"s + 0.1 * tanh(s) - abs(q - k) * slope[h]\"", "a100", "sm_80"},
        {"fwd bf16 d128 relative(128) prefix", "h200", "sm_90a"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fk_problem p;
        fk_image_info info, again;
        fk_plan_info chosen;
        void *image, *same;
        assert_int_equal(fk_problem_parse(cases[i].spelling, &p), FK_OK);
        if (fk_build(&p, cases[i].gpu, NULL, &image, &info, &chosen))
            fail_msg("%s: %s", cases[i].spelling, fk_last_error());
        print_message("%s for %s: %d registers, %d bytes spilled, %d bytes smem, %.0f ms\n", cases[i].spelling,
                      cases[i].gpu, info.registers, info.spill_bytes, info.smem_dynamic, info.compile_ms);
        assert_string_equal(info.target, cases[i].target);
        assert_memory_equal(image, "\177ELF", 4);
        assert_in_range(info.spill_bytes, 0, FK_MINOR_SPILL);
        assert_int_equal(info.smem_dynamic, chosen.smem_bytes);
        assert_int_equal(info.threads, 32 * chosen.warps);
        assert_in_range(info.registers, 32, 255);
        assert_true(info.smem_dynamic > 0 && info.threads >= 32 && info.image_bytes > 1000 && strlen(info.key) == 64);
        if (i == 0) { /* the same input gives the same bytes under the same key */
            assert_int_equal(fk_build(&p, cases[i].gpu, NULL, &same, &again, NULL), FK_OK);
            assert_string_equal(info.key, again.key);
            assert_int_equal(info.image_bytes, again.image_bytes);
            assert_memory_equal(image, same, (size_t)info.image_bytes);
            fk_free(same);
        }
        fk_free(image);
    }
}

/* What a warp that looks for tiles spills costs less than the next plan does. */
static void some_spills_are_minor(void **state) {
    (void)state;
    static const struct {
        const char *spelling, *gpu;
        int32_t bytes;
    } cases[] = {
        {"fwd bf16 d64 bigbird(128)", "h200", 4 * FK_MINOR_SPILL},
        {"fwd bf16 d64 causal", "h200", FK_MINOR_SPILL},
        {"bwd bf16 d64 bigbird(128)", "h200", FK_MINOR_SPILL},
        {"fwd bf16 d64 bigbird(128)", "a100", FK_MINOR_SPILL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fk_problem p;
        fk_plan_info *plans;
        size_t count;
        assert_int_equal(fk_problem_parse(cases[i].spelling, &p), FK_OK);
        assert_int_equal(fk_plan_list(&p, cases[i].gpu, NULL, &plans, &count), FK_OK);
        assert_int_equal(fk_minor_spill(&p, plans), cases[i].bytes);
        assert_int_equal(fk_minor_spill(NULL, plans), FK_MINOR_SPILL);
        assert_int_equal(fk_minor_spill(&p, NULL), FK_MINOR_SPILL);
        fk_free(plans);
    }
}

static void refuses(void **state) {
    (void)state;
    fk_problem p;
    void *image = NULL;
    fk_generate_options options = FK_GENERATE_OPTIONS_INIT;
    assert_int_equal(fk_problem_parse("fwd bf16 d64", &p), FK_OK);
    assert_int_equal(fk_build(&p, "t4", NULL, &image, NULL, NULL), FK_UNSUPPORTED); /* no bf16 on sm_75 */
    assert_non_null(strstr(fk_last_error(), "bf16"));
    assert_int_equal(fk_build(&p, "a1000", NULL, &image, NULL, NULL), FK_NO_DEVICE);
    assert_int_equal(fk_build(&p, NULL, NULL, &image, NULL, NULL), FK_BAD_ARGUMENT);
    assert_int_equal(fk_build(NULL, "a100", NULL, &image, NULL, NULL), FK_BAD_ARGUMENT);
    assert_int_equal(fk_build(&p, "a100", NULL, NULL, NULL, NULL), FK_BAD_ARGUMENT);
    options.struct_size = 1;
    assert_int_equal(fk_build(&p, "a100", &options, &image, NULL, NULL), FK_BAD_ARGUMENT);
    assert_non_null(strstr(fk_last_error(), "struct_size is 1"));
    assert_null(image);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(builds), cmocka_unit_test(some_spills_are_minor),
                                       cmocka_unit_test(refuses)};
    fk_problem p;
    void *image = NULL;
    if (fk_problem_parse("fwd fp16 d32", &p) == FK_OK &&
        fk_build(&p, "a100", NULL, &image, NULL, NULL) == FK_NO_COMPILER) {
        printf("skipped: runtime/build_test needs NVRTC: %s\n", fk_last_error());
        return 77;
    }
    fk_free(image);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

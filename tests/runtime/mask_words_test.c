/* Masks that come as words of 32 keys (templates/piece/mask_words.cu, mask_words_backward.cu), with words that are
 * computed, so that they need no array: beside bounds, dropout, grouped heads and lengths that are no whole words. */
#include "backward_sample.h"
#include "emulated.h"
#include "store.h"

#define WORDS "keep=\"((q * 40503 + (k >> 5) * 30011 + h * 77) >> (k & 31) & 1) == 1\""

static void assert_by_words(const char *spelling, const char *name) {
    fk_problem p;
    char *text;
    if (fk_problem_parse(spelling, &p) || fk_generate(&p, "h200", NULL, &text, NULL)) fail_msg("%s", fk_last_error());
    if (!strstr(text, name)) fail_msg("%s: no %s", spelling, name);
    fk_free(text);
}

static void compare(const sample *cases, size_t count, bool forward, const char *name) {
    for (size_t i = 0; i < emulated_cases(count); i++) {
        fk_context *context = emulated_context("h200", store_dir, &(emulated){"2", "0", "0"});
        fk_kernel_info info;
        assert_by_words(cases[i].spelling, name);
        assert_true(forward ? sample_run(context, &cases[i], &info) : backward_run(context, &cases[i], &info, NULL));
        fk_context_destroy(context);
    }
}

static void forward(void **state) {
    (void)state;
    static const sample cases[] = {
        {"fwd bf16 d64 " WORDS, "h200", 1, 2, 2, 200, 300, FK_BSHD, 0},
        {"fwd fp16 d128 causal " WORDS, "h200", 2, 1, 1, 150, 150, FK_BHSD, 0},
        {"fwd bf16 d96 window(70,20) " WORDS, "h200", 1, 1, 1, 260, 401, FK_BSHD, 0},
        {"fwd bf16 d128 gqa dropout " WORDS, "h200", 1, 4, 2, 70, 129, FK_BSHD, 0},
        {"fwd fp16 d256 " WORDS, "h200", 1, 1, 1, 129, 95, FK_BSHD, 0},
    };
    compare(cases, sizeof cases / sizeof *cases, true, "struct MaskWords");
}

static void backward(void **state) {
    (void)state;
    static const sample cases[] = {
        {"bwd bf16 d64 " WORDS, "h200", 1, 2, 2, 200, 300, FK_BSHD, 0},
        {"bwd fp16 d128 causal " WORDS, "h200", 2, 1, 1, 150, 150, FK_BHSD, 0},
        {"bwd bf16 d64 window(70,20) " WORDS, "h200", 1, 1, 1, 260, 401, FK_BSHD, 0},
        {"bwd bf16 d128 gqa dropout " WORDS, "h200", 1, 4, 2, 70, 129, FK_BSHD, 0},
        {"bwd fp16 d192 " WORDS, "h200", 1, 1, 1, 129, 95, FK_BSHD, 0},
    };
    compare(cases, sizeof cases / sizeof *cases, false, "A warp's 16 keys lie in one word");
}

/* Two words at a place are no word of the mask. */
static void others_are_not_taken_for_words(void **state) {
    (void)state;
    static const char *const spellings[] = {
        "fwd bf16 d64 keep=\"((q + k) >> (k & 31) & 1) == 1\"",
        "fwd bf16 d64 keep=\"(q >> (k & 31) & 1) == 1 && (h >> (k & 31) & 1) == 1\"",
        "fwd bf16 d64 keep=\"(q >> (k & 15) & 1) == 1\"",
    };
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        fk_problem p;
        char *text;
        if (fk_problem_parse(spellings[i], &p) || fk_generate(&p, "h200", NULL, &text, NULL))
            fail_msg("%s", fk_last_error());
        assert_null(strstr(text, "MaskWords"));
        fk_free(text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(forward), cmocka_unit_test(backward),
                                       cmocka_unit_test(others_are_not_taken_for_words)};
    return cmocka_run_group_tests(tests, make_store, remove_store);
}

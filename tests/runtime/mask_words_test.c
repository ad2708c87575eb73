/* Masks that come as words of 32 keys (templates/piece/seen_tiles.cu, mask_words.cu, mask_words_backward.cu), with
 * words that are computed, so that they need no array: beside bounds, dropout, grouped heads and lengths that are no
 * whole words. */
#include "backward_sample.h"
#include "emulated.h"
#include "store.h"

#define WORDS "keep=\"((q * 40503 + (k >> 5) * 30011 + h * 77) >> (k & 31) & 1) == 1\""

/* Tiles of 64 queries and 128 keys that are empty, whole, and mixed. */
#define TILES                                                                                                          \
    "keep=\"(((q / 64 + (k >> 5) / 4 + h) % 3 == 0 ? 0 : (q / 64 + (k >> 5) / 4 + h) % 3 == 1 ? -1 : "                 \
    "q * 40503 + (k >> 5) * 30011) >> (k & 31) & 1) == 1\""
/* Every third query sees one key, of 310; bits of more are set. */
#define FEW                                                                                                            \
    "keep=\"((q % 3 > 0 || k >> 5 > 9 ? -1 : (k >> 5 == 9 ? -4194304 : 0) | (k >> 5 == q / 32 ? 1 << (q & 31) : 0)) "  \
    ">> (k & 31) & 1) == 1\""

static void assert_by_words(const char *spelling, const char *gpu, const char *name) {
    fk_problem p;
    char *text = NULL;
    if (fk_problem_parse(spelling, &p) || fk_generate(&p, gpu, NULL, &text, NULL)) fail_msg("%s", fk_last_error());
    if (!strstr(text, name)) fail_msg("%s: no %s", spelling, name);
    fk_free(text);
}

static void compare(const sample *cases, size_t count, bool forward, const char *name) {
    for (size_t i = 0; i < emulated_cases(count); i++) {
        fk_context *context = emulated_context(cases[i].plan_for, store_dir, &(emulated){"2", "0", "0"});
        fk_kernel_info info;
        assert_by_words(cases[i].spelling, cases[i].plan_for, name);
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
        {"fwd bf16 d64 " TILES, "h200", 1, 2, 2, 330, 700, FK_BSHD, 0},
        {"fwd fp16 d128 gqa dropout " TILES, "h200", 2, 2, 1, 200, 500, FK_BHSD, 0},
        {"fwd bf16 d64 " FEW, "h200", 1, 1, 1, 300, 310, FK_BSHD, 0},
        {"fwd bf16 d128 " FEW, "h200", 1, 2, 2, 260, 310, FK_BSHD, 0},
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
        {"bwd bf16 d64 " TILES, "h200", 1, 2, 2, 330, 500, FK_BSHD, 0},
        {"bwd bf16 d128 deterministic " TILES, "h200", 1, 2, 2, 200, 400, FK_BHSD, 0},
        {"bwd fp16 d256 gqa " TILES, "h200", 1, 2, 1, 150, 300, FK_BSHD, 0},
    };
    compare(cases, sizeof cases / sizeof *cases, false, "A warp's 16 keys lie in one word");
}

/* The other family tests each pair, but not in tiles that are whole, and visits no empty ones. */
static void other_family(void **state) {
    (void)state;
    static const sample forward_cases[] = {
        {"fwd bf16 d64 " TILES, "a100", 1, 2, 2, 330, 700, FK_BSHD, 0},
        {"fwd fp16 d128 gqa dropout " TILES, "t4", 2, 2, 1, 100, 500, FK_BHSD, 0},
        {"fwd fp16 d64 split " TILES, "a100", 1, 2, 2, 70, 900, FK_BSHD, 0},
    };
    static const sample backward_cases[] = {
        {"bwd bf16 d64 " TILES, "a100", 1, 2, 2, 330, 500, FK_BSHD, 0},
        {"bwd fp16 d64 gqa deterministic " TILES, "t4", 1, 2, 1, 200, 300, FK_BHSD, 0},
    };
    compare(forward_cases, 3, true, "fk_seen_tiles");
    compare(backward_cases, 2, false, "fk_seen_tiles");
}

/* Values that nobody sees, a tile's at least, are not read: they are no numbers here. */
static void empty_tiles_are_not_visited(void **state) {
    (void)state;
    static const struct { const char *dim, *gpu; } cases[] = {{"64", "h200"}, {"128", "h200"}, {"64", "a100"}};
    enum { FIRST = 128, ROWS = 128 };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fk_context *context = emulated_context(cases[i].gpu, store_dir, &(emulated){"2", "0", "0"});
        char spelling[128];
        snprintf(spelling, sizeof spelling, "fwd bf16 d%s keep=\"(((k >> 5) / 4 == 1 ? 0 : -1) >> (k & 31) & 1) == 1\"",
                 cases[i].dim);
        const sample s = {spelling, cases[i].gpu, 1, 1, 1, 150, 500, FK_BSHD, 0};
        sample_tensors t;
        assert_true(sample_make(context, &s, &t));
        const size_t row_bytes = (size_t)t.p.head_dim_v * 2;
        uint16_t *nan = malloc(ROWS * row_bytes);
        assert_non_null(nan);
        memset(nan, 0xff, ROWS * row_bytes);
        assert_int_equal(
            fk_copy_to_device(context, (char *)(uintptr_t)t.args.v + FIRST * row_bytes, nan, ROWS * row_bytes), FK_OK);
        fk_kernel *kernel = emulated_kernel(context, spelling, NULL);
        if (launch_once(context, kernel, &t.args)) fail_msg("%s", fk_last_error());
        sample_fetch(context, &s, &t);
        sample_check(&s, &t);
        fk_kernel_destroy(kernel);
        sample_free(context, &t);
        free(nan);
        fk_context_destroy(context);
    }
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
        char *text = NULL;
        if (fk_problem_parse(spellings[i], &p) || fk_generate(&p, "h200", NULL, &text, NULL))
            fail_msg("%s", fk_last_error());
        assert_null(strstr(text, "MaskWords"));
        assert_null(strstr(text, "fk_seen_tiles"));
        fk_free(text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(forward), cmocka_unit_test(backward),
                                       cmocka_unit_test(other_family), cmocka_unit_test(empty_tiles_are_not_visited),
                                       cmocka_unit_test(others_are_not_taken_for_words)};
    return cmocka_run_group_tests(tests, make_store, remove_store);
}

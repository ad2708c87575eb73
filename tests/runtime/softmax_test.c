/* Scores that grow after the first tiles: a reference of the softmax that was fixed too early must be noticed, and the
 * tile computed again. Keys are walked from the last to the first, so the first keys come last. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "flashkiln.h"
#include "half_value.h"
#include "launch.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { D = 16, NQ = 70, NK = 900, MANY_KEYS = 140000 /* more tiles than are classified at a time */ };

static fk_context *context;

/* Round to nearest would change nothing here: all values are short. */
static uint16_t bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static float from_bf16(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint16_t fp16(float x) {
    return half_of((double)x);
}

static float from_fp16(uint16_t x) {
    return (float)half_value(x);
}

typedef struct trial {
    const char *spelling;
    int first, last; /* these keys score `spike` nats, the others about 0 */
    float spike, v;  /* v: size of V's elements */
    int num_keys;    /* 0: NK */
} trial;

static void *device_memory(size_t bytes) {
    void *memory;
    assert_int_equal(fk_device_malloc(context, bytes, &memory), FK_OK);
    return memory;
}

static uint16_t *tensor(int rows) {
    return device_memory((size_t)rows * D * 2);
}

/* All queries are of the second of three documents, of which the first and the last key tiles are shared with others.
 */
static int *documents(int rows, bool of_keys) {
    int *id = device_memory((size_t)rows * sizeof *id);
    for (int i = 0; i < rows; ++i)
        id[i] = of_keys && i < rows / 9 ? 0 : of_keys && i >= rows - 100 ? 2 : 1;
    return id;
}

static void run(const trial *t) {
    fk_problem p = FK_PROBLEM_INIT;
    fk_kernel *kernel;
    assert_int_equal(fk_problem_parse(t->spelling, &p), FK_OK);
    uint16_t (*encode)(float) = p.dtype == FK_BF16 ? bf16 : fp16;
    float (*decode)(uint16_t) = p.dtype == FK_BF16 ? from_bf16 : from_fp16;
    const int nk = t->num_keys ? t->num_keys : NK;
    uint16_t *q = tensor(NQ), *k = tensor(nk), *v = tensor(nk), *o = tensor(NQ);
    int *doc_q = documents(NQ, false), *doc_k = documents(nk, true);
    for (int i = 0; i < NQ * D; ++i)
        q[i] = encode(i % D == 0 ? 4.0f : (float)(i * 7 % 5 - 2) / 4); /* scale 1/4: s = k[0] + small */
    for (int i = 0; i < nk * D; ++i) {
        const int row = i / D;
        k[i] = encode(i % D ? (float)(i * 11 % 7 - 3) / 8 : row >= t->first && row <= t->last ? t->spike : 0.0f);
        v[i] = encode(t->v * (float)(i * 13 % 9 - 4) / 4);
    }
    fk_args a = FK_ARGS_INIT;
    a.batch = a.num_heads_q = a.num_heads_kv = 1, a.seqlen_q = NQ, a.seqlen_k = nk;
    a.q = q, a.k = k, a.v = v, a.o = o;
    a.array[0] = (fk_array){.data = doc_q, .stride = {0, 1}}, a.array[1] = (fk_array){.data = doc_k, .stride = {0, 1}};
    assert_int_equal(fk_args_layout(&p, FK_BSHD, &a), FK_OK);
    static double exact[NQ * D], eager[NQ * D];
    assert_int_equal(fk_reference(&p, &a, FK_REFERENCE_F64, exact, NULL), FK_OK);
    assert_int_equal(fk_reference(&p, &a, FK_REFERENCE_EAGER, eager, NULL), FK_OK);
    if (fk_kernel_create(context, &p, &kernel)) fail_msg("%s", fk_last_error());
    if (launch_once(context, kernel, &a)) fail_msg("%s", fk_last_error());
    double ours = 0, theirs = 0, largest = 0;
    for (int i = 0; i < NQ * D; ++i) {
        const double value = (double)decode(o[i]);
        if (!isfinite(value)) fail_msg("%s, spike %g: o[%d] is %g", t->spelling, (double)t->spike, i, value);
        ours = fmax(ours, fabs(value - exact[i]));
        theirs = fmax(theirs, fabs(eager[i] - exact[i]));
        largest = fmax(largest, fabs(exact[i]));
    }
    if (!(ours <= 2 * fmax(theirs, largest * 0x1p-9)))
        fail_msg("%s, spike %g: error %g, eager's %g", t->spelling, (double)t->spike, ours, theirs);
    fk_kernel_destroy(kernel);
    void *const memory[] = {q, k, v, o, doc_q, doc_k};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; ++i)
        fk_device_free(context, memory[i]);
}

static void late_maxima(const char *const spellings[], size_t count) {
    static const float spikes[] = {-30, 8, 14, 40, 50, 100, 240};
    for (size_t i = 0; i < count; ++i)
        for (size_t j = 0; j < sizeof spikes / sizeof *spikes; ++j) {
            run(&(trial){spellings[i], 0, 2, spikes[j], 1, 0});     /* in the last tile */
            run(&(trial){spellings[i], 120, 122, spikes[j], 1, 0}); /* the same of a document */
            run(&(trial){spellings[i], 400, 650, spikes[j], 1, 0}); /* in the midst */
        }
}

static void test_late_maxima(void **state) {
    (void)state;
    static const char *const spellings[] = {"fwd bf16 d16", "fwd fp16 d16", "fwd bf16 d16 causal",
                                            "fwd fp16 d16 window(600,5)"};
    late_maxima(spellings, sizeof spellings / sizeof *spellings);
}

/* Masks that are no bounds: full tiles between masked ones, or none at all, or after tiles of which some rows see
 * nothing. */
static void test_late_maxima_between_masked_tiles(void **state) {
    (void)state;
    static const char *const spellings[] = {
        "fwd bf16 d16 document", "fwd fp16 d16 document", "fwd bf16 d16 keep=\"(q - k) % 3 != 1\"",
        "fwd bf16 d16 keep=\"k / 128 % 2 == 0 || q % 3 == k % 3\"", "fwd fp16 d16 keep=\"k < 300 || q % 2 == 1\""};
    late_maxima(spellings, sizeof spellings / sizeof *spellings);
}

/* The first tiles weigh nothing beside the others, or V is so large that only the sum of products overflows. */
static void test_all_keys_but_the_first(void **state) {
    (void)state;
    run(&(trial){"fwd bf16 d16", 0, 700, 240, 1, 0});
    run(&(trial){"fwd fp16 d16", 0, 700, 240, 1, 0});
    run(&(trial){"fwd bf16 d16", 0, 2, 40, 1e30f, 0});
    run(&(trial){"fwd bf16 d16 document", 120, 700, 240, 1, 0});
    run(&(trial){"fwd fp16 d16 document", 120, 700, 240, 1, 0});
    run(&(trial){"fwd bf16 d16 document", 120, 122, 40, 1e30f, 0});
}

/* Few tiles of very many, far apart: what is left of the walk is classified anew, and once more when the reference was
 * wrong. */
static void test_many_tiles(void **state) {
    (void)state;
    static const char *const spellings[] = {"fwd bf16 d16 keep=\"k % 30000 < 300\"",
                                            "fwd bf16 d16 keep=\"k % 90000 < 300 && (q + k) % 3 != 1\""};
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; ++i) {
        run(&(trial){spellings[i], 0, 2, 8, 1, MANY_KEYS});
        run(&(trial){spellings[i], 0, 100, 240, 1, MANY_KEYS});
    }
}

static int open_context(void **state) {
    (void)state;
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    options.device = "emu", options.cache_mode = FK_CACHE_OFF;
    return fk_context_create(&options, &context) != FK_OK;
}

static int close_context(void **state) {
    (void)state;
    fk_context_destroy(context);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_late_maxima), cmocka_unit_test(test_late_maxima_between_masked_tiles),
        cmocka_unit_test(test_all_keys_but_the_first), cmocka_unit_test(test_many_tiles)};
    return cmocka_run_group_tests(tests, open_context, close_context);
}

/* Sides of L2: how SMs are told apart, and that heads of their own for each change no bit of a result. */
#include "emulated.h"
#include "runtime/object.h"
#include "sample.h"
#include "store.h"

enum { SMS = 132, LINES = 64, PITCH = LINES + 1 }; /* before an SM's clocks stands which it is */

/* An SM's side, and a line's: any two halves. */
static bool sm_side(int sm) {
    return sm % 8 > 3;
}
static bool line_side(int line) {
    return line * 7 % 11 > 4;
}

/* Clocks of atomics: `far` more on the other side's lines, and whatever way there is besides. */
static void draw(uint32_t *clocks, bool (*side)(int), uint32_t far) {
    uint32_t seed = 5;
    for (int s = 0; s < SMS; s++)
        for (int j = 0; j < LINES; j++) {
            seed = seed * 1664525u + 1013904223u;
            clocks[s * PITCH + 1 + j] = 330 + (uint32_t)s / 3 + (seed >> 26) + (side(s) != line_side(j) ? far : 0);
        }
}

static bool few(int sm) {
    return sm < 20;
}

static void told_apart(void **state) {
    (void)state;
    static uint32_t clocks[SMS * PITCH];
    bool side[SMS];
    draw(clocks, sm_side, 200);
    assert_true(fk_sides_tell_apart(clocks + 1, PITCH, SMS, LINES, side));
    for (int s = 0; s < SMS; s++)
        assert_int_equal(side[s], sm_side(s)); /* that of the first one is 0 */
    for (int j = 0; j < LINES; j++)
        clocks[17 * PITCH + 1 + j] = 450; /* as far from both */
    assert_false(fk_sides_tell_apart(clocks + 1, PITCH, SMS, LINES, side));
    draw(clocks, sm_side, 0);
    assert_false(fk_sides_tell_apart(clocks + 1, PITCH, SMS, LINES, side));
    draw(clocks, few, 200);
    assert_false(fk_sides_tell_apart(clocks + 1, PITCH, SMS, LINES, side));
}

/* Two launches in one workspace: the claims of the first one end as they should. */
static void launch_twice(const fk_kernel *kernel, const fk_args *args, fk_context *context) {
    const size_t bytes = fk_kernel_workspace(kernel, args);
    void *workspace = NULL;
    assert_int_equal(fk_device_malloc(context, bytes, &workspace), FK_OK);
    for (int i = 0; i < 2; i++)
        if (fk_execute(kernel, args, workspace, bytes, NULL)) fail_msg("%s", fk_last_error());
    assert_int_equal(fk_synchronize(context, NULL), FK_OK);
    fk_device_free(context, workspace);
}

/* The bytes of o and, behind them, of lse. */
static char *run(const sample *s, const char *sides, const char *sms, size_t *bytes) {
    setenv("FLASHKILN_L2_SIDES", sides, 1);
    fk_context *context = emulated_context(s->plan_for, store_dir, &(emulated){sms, "3", "0"});
    unsetenv("FLASHKILN_L2_SIDES");
    fk_kernel *kernel = emulated_kernel(context, s->spelling, NULL);
    fk_persistent tiles;
    sample_tensors t;
    assert_true(sample_make(context, s, &t));
    assert_true(fk_persistent_lay_out(kernel, &t.args, &tiles));
    if (tiles.sided != (strcmp(sides, "on") == 0))
        fail_msg("%s: sided %d with sides %s", s->spelling, tiles.sided, sides);
    launch_twice(kernel, &t.args, context);
    sample_fetch(context, s, &t);
    sample_check(s, &t);
    const size_t o_bytes = t.elements[3] * sizeof *t.data[3];
    *bytes = o_bytes + t.rows_q * sizeof *t.lse;
    char *out = malloc(*bytes);
    assert_non_null(out);
    memcpy(out, t.data[3], o_bytes);
    memcpy(out + o_bytes, t.lse, *bytes - o_bytes);
    sample_free(context, &t);
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
    return out;
}

static void same_bits(void **state) {
    (void)state;
    static const sample cases[] = {
        {"fwd bf16 d128 causal", "h200", 3, 3, 3, 600, 600, FK_BSHD, 0},
        {"fwd fp16 d128", "h200", 2, 4, 4, 260, 130, FK_BSHD, 0},
        {"fwd bf16 d80 dropout causal", "h200", 2, 4, 4, 260, 260, FK_BSHD, 0},
        {"fwd bf16 d256 causal", "h200", 1, 7, 7, 260, 260, FK_BSHD, 0}, /* an odd head is left over */
        {"fwd bf16 d128 keep=\"(q ^ k) % 3 != 0\"", "h200", 1, 6, 6, 300, 300, FK_BSHD, 0},
    };
    for (size_t i = 0; i < emulated_cases(sizeof cases / sizeof *cases); i++) {
        const char *sms = i % 2 ? "5" : "6";
        size_t bytes;
        char *off = run(&cases[i], "off", sms, &bytes), *on = run(&cases[i], "on", sms, &bytes);
        if (memcmp(off, on, bytes) != 0) fail_msg("%s: other bits with sides", cases[i].spelling);
        free(off), free(on);
    }
}

/* Heads of few rows, and enough of them. */
static void where_they_pay(void **state) {
    (void)state;
    fk_problem p;
    fk_plan_info plan = {.family = "wgmma", .block_m = 128, .block_n = 128, .warps = 12, .ctas_per_sm = 1};
    static const struct {
        const char *spelling;
        fk_shape shape;
        bool sided;
    } cases[] = {
        {"fwd bf16 d128", {4, 16, 16, 512, 512}, true},
        {"fwd bf16 d128", {4, 16, 16, 1024, 1024}, false},
        {"fwd bf16 d128 causal", {4, 16, 16, 1024, 1024}, true},
        {"fwd bf16 d128 causal", {4, 16, 16, 2048, 2048}, false},
        {"fwd bf16 d64", {4, 16, 16, 384, 384}, false},
        {"fwd bf16 d80", {4, 16, 16, 480, 480}, true},
        {"fwd bf16 d80", {4, 16, 16, 512, 512}, false},
        {"fwd bf16 d128", {4, 16, 16, 128, 4096}, false},
        {"fwd bf16 d128", {1, 1, 1, 512, 512}, false},
        {"fwd bf16 d128 gqa", {4, 16, 8, 512, 512}, false},
        {"fwd bf16 d128 packed", {4, 16, 16, 512, 512}, false},
        {"bwd bf16 d128", {4, 16, 16, 512, 512}, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(fk_problem_parse(cases[i].spelling, &p), FK_OK);
        if (fk_has_sides(&p, &plan, &cases[i].shape) != cases[i].sided) fail_msg("%s: case %zu", cases[i].spelling, i);
    }
    assert_int_equal(fk_problem_parse("fwd bf16 d128", &p), FK_OK);
    strcpy(plan.family, "mma");
    assert_false(fk_has_sides(&p, &plan, &cases[0].shape));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(told_apart), cmocka_unit_test(same_bits),
                                       cmocka_unit_test(where_they_pay)};
    return cmocka_run_group_tests(tests, make_store, remove_store);
}

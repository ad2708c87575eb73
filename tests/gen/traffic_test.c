/* The traffic that the model predicts, beside what ncu's DRAM counters said on an H200: 65,536 tokens, 1,024 hidden,
 * bf16, all kernels of a pass (docs/benchmarks.md). */
#include "gen/generate.h"
#include "test.h"

#define BLOCKS(percent) " blocks(128)=\"i == j || hash(hash(1, i), j) % 100 < " #percent "\""

typedef struct cell {
    const char *words;
    int head_dim, seqlen;
    double forward, backward; /* GB; 0: not counted with the groups of heads that there are now */
} cell;

static const cell cells[] = {
    {"", 64, 1024, 0, 1.809},
    {"", 64, 2048, 0, 1.873},
    {"", 64, 4096, 0, 1.922},
    {"", 64, 8192, 0.683, 1.768},
    {"", 64, 16384, 0, 1.756},
    {"", 128, 1024, 0, 1.876},
    {"", 128, 2048, 0, 2.912},
    {"", 128, 4096, 0, 2.936},
    {"", 128, 8192, 0.571, 2.955},
    {"", 128, 16384, 0.550, 2.866},
    {" causal", 64, 1024, 0, 1.902},
    {" causal", 64, 2048, 0, 2.068},
    {" causal", 64, 4096, 0, 3.998},
    {" causal", 64, 8192, 0.706, 4.055},
    {" causal", 64, 16384, 0, 4.092},
    {" causal", 128, 1024, 0.539, 2.035},
    {" causal", 128, 2048, 0.592, 2.848},
    {" causal", 128, 4096, 0.689, 2.863},
    {" causal", 128, 8192, 0.739, 2.860},
    {" causal", 128, 16384, 0.740, 2.847},
    {" window(1024,0)", 64, 16384, 0.541, 1.762},
    {" butterfly(128)", 64, 1024, 0.541, 0},
    {" butterfly(128)", 64, 4096, 0.642, 1.777},
    {" butterfly(128)", 64, 8192, 0, 1.753},
    {BLOCKS(12), 64, 4096, 0, 1.807},
    {BLOCKS(50), 64, 4096, 0, 1.805},
    {BLOCKS(6), 64, 8192, 0.768, 1.762},
    {BLOCKS(12), 64, 8192, 0, 1.761},
    {BLOCKS(25), 64, 8192, 1.067, 1.785},
    {BLOCKS(27), 64, 8192, 1.036, 1.757},
    {BLOCKS(50), 64, 8192, 1.272, 1.762},
    {BLOCKS(12), 64, 16384, 0, 1.760},
    {BLOCKS(50), 64, 16384, 0, 1.757},
    {BLOCKS(12), 128, 4096, 0, 1.785},
    {BLOCKS(6), 128, 8192, 0, 1.764},
    {BLOCKS(50), 128, 8192, 0, 1.768},
    {BLOCKS(50), 128, 16384, 0, 1.773},
};

/* Counted when two teams were the plan, where four warpgroups on one ring are now. */
static const cell of_teams[] = {
    {"", 64, 1024, 0.542, 0},        {"", 64, 4096, 0.630, 0},        {"", 64, 8192, 0.620, 0},
    {"", 64, 16384, 0.623, 0},       {" causal", 64, 1024, 0.542, 0}, {" causal", 64, 2048, 0.547, 0},
    {" causal", 64, 4096, 0.601, 0}, {" causal", 64, 8192, 0.721, 0}, {" causal", 64, 16384, 0.742, 0},
};

static void check(const cell *c, const char *op, const char *plan_words, double counted) {
    fk_device_info device;
    fk_problem p;
    fk_plan_info plan;
    fk_error err = {.text = ""};
    fk_plan_options options = FK_PLAN_OPTIONS_INIT;
    char spelling[200];
    const int64_t heads = 1024 / c->head_dim;
    options.plan = plan_words;
    options.shape = (fk_shape){65536 / c->seqlen, heads, heads, c->seqlen, c->seqlen};
    snprintf(spelling, sizeof spelling, "%s bf16 d%d%s", op, c->head_dim, c->words);
    assert_int_equal(fk_device_lookup("h200", &device, &err), FK_OK);
    if (fk_problem_read(spelling, &p, &err) || fk_plan_best(&p, &device, &options, &plan, &err))
        fail_msg("%s", err.text);
    const double ratio = plan.hbm_bytes / (counted * 1e9);
    if (ratio < 0.85 || ratio > 1.15)
        fail_msg("%s at %d tokens: %.3f GB predicted, %.3f counted", spelling, c->seqlen, plan.hbm_bytes * 1e-9,
                 counted);
}

static void within_15_percent(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cells / sizeof *cells; ++i) {
        if (cells[i].forward > 0) check(&cells[i], "fwd", NULL, cells[i].forward);
        if (cells[i].backward > 0) check(&cells[i], "bwd", NULL, cells[i].backward);
    }
    for (size_t i = 0; i < sizeof of_teams / sizeof *of_teams; ++i)
        check(&of_teams[i], "fwd", "wgmma m128 n64 w20 s4 c1 q2 k4 o2", of_teams[i].forward);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(within_15_percent)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

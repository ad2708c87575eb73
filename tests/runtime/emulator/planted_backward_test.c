/* Bugs planted in the templates of the wgmma family's backward pass, one at a time: the emulator must name what each
 * breaks. The untouched templates pass, so a report means the edit. */
#include "tests/runtime/backward_sample.h"
#include "tests/scratch.h"

#include "gen/embedded.h"

#include <sys/stat.h>

static char folder[256]; /* of templates that stand before the built-in ones */

static const char *embedded(const char *path) {
    for (const fk_embedded_file *f = fk_embedded; f->path; f++)
        if (strcmp(f->path, path) == 0) return f->text;
    fail_msg("no %s", path);
    return NULL;
}

/* Writes templates/`name` with `old`, of which there is one, replaced. */
static void edit(const char *name, const char *old, const char *new) {
    char path[512];
    snprintf(path, sizeof path, "templates/%s", name);
    const char *text = embedded(path), *at = strstr(text, old);
    if (!at || strstr(at + 1, old)) fail_msg("%s: not one '%s'", name, old);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    *strrchr(path, '/') = 0;
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "%.*s%s%s", (int)(at - text), text, new, at + strlen(old));
    assert_int_equal(fclose(f), 0);
}

/* On one SM, so that its CTA goes through several tiles of keys; with a plan, through several heads. */
static fk_status run_once(const char *spelling, const char *plan, const char *seed, const char *late, char *message,
                          size_t size) {
    const int heads = plan ? 3 : 1;
    const sample s = {spelling, "h200", 1, heads, heads, plan ? 60 : 300, 300, FK_BSHD, 0};
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    fk_context *context;
    fk_kernel *kernel;
    fk_kernel_info info;
    backward_tensors t;
    setenv("FLASHKILN_EMU_SMS", "1", 1);
    setenv("FLASHKILN_EMU_SEED", seed, 1);
    setenv("FLASHKILN_EMU_LATE", late, 1);
    options.device = "emu", options.plan_for = "h200", options.cache_mode = FK_CACHE_OFF;
    options.planning.template_dir = folder, options.planning.plan = plan;
    if (fk_context_create(&options, &context)) fail_msg("%s", fk_last_error());
    assert_true(backward_make(context, &s, &t));
    if (fk_kernel_create(context, &t.p, &kernel)) fail_msg("%s: %s", spelling, fk_last_error());
    assert_int_equal(fk_kernel_describe(kernel, &info), FK_OK);
    assert_string_equal(info.plan.family, "wgmma");
    t.workspace_bytes = fk_kernel_workspace(kernel, &t.args);
    assert_true(backward_allocate(context, t.workspace_bytes, &t.workspace));
    const fk_status status = fk_execute(kernel, &t.args, t.workspace, t.workspace_bytes, NULL);
    snprintf(message, size, "%s", status ? fk_last_error() : "");
    fk_kernel_destroy(kernel);
    backward_free(context, &t);
    fk_context_destroy(context);
    return status;
}

/* `words`: what a report may say, with | between; null: there must be none. */
static void expect(const char *spelling, const char *plan, const char *what, const char *words) {
    static const char *const schedules[][2] = {{"0", "1"}, {"1", "0"}, {"2", "1"}, {"3", "0"}};
    char message[600], all[200];
    for (size_t i = 0; i < sizeof schedules / sizeof *schedules; i++) {
        if (!run_once(spelling, plan, schedules[i][0], schedules[i][1], message, sizeof message)) continue;
        if (!words) fail_msg("%s, %s: %s", spelling, what, message);
        snprintf(all, sizeof all, "%s", words);
        for (char *rest = all, *word; (word = strtok_r(rest, "|", &rest));)
            if (strstr(message, word)) return;
        fail_msg("%s, %s: none of '%s' in: %s", spelling, what, words, message);
    }
    if (words) fail_msg("%s, %s: not noticed", spelling, what);
}

#define CONSUMER "piece/consumer_backward.cu"
#define STAGES "piece/backward_stages.cu"
#define PRODUCER "piece/pipeline_backward.cu"
#define RACE "race at smem_base() + |is in flight|already has its "

typedef struct plant {
    const char *what, *file, *old, *new, *words;
} plant;

static const plant plants[] = {
    {"dS is not waited for", CONSUMER, "named_barrier_sync(1, 128 * consumers); // dS is there", "//", RACE},
    {"one buffer of dS", "kernel/backward_wgmma.cu", "share_bytes = $(layout.share_bytes)", "share_bytes = 0", RACE},
    {"a stage is given back early", CONSUMER, "wgmma_wait<1>(registers(dk)); ", "",
     RACE "|while in flight|in flight yet"},
    {"the last stage is never given back", STAGES, "            arrive(smem + held);\n", "", "deadlock: "},
    {"the last tile is not known", PRODUCER, "word + is_last : word", "word : word", "deadlock: "},
    {"K comes too early", PRODUCER, "mbarrier_wait(smem + $(bars)k_empty, parity);", "", RACE "|deadlock: "},
    {"V comes too early", PRODUCER, "mbarrier_wait(smem + $(bars)v_empty, parity);\n        if (elect_lane())",
     "if (elect_lane())", RACE "|deadlock: "},
    {"V is never given back", CONSUMER, "if (word & is_last && threadIdx.x % 32 == 0)", "if (false)", "deadlock: "},
    {"gradients pass through dS too early", CONSUMER,
     "named_barrier_sync(1, 128 * consumers); // every warp is done with dS", "//", RACE},
    {"the next dS comes too early", STAGES, "            tma_store_wait_read<0>();\n", "", RACE},
    {"a tile is not waited for", STAGES, "mbarrier_wait(smem + full + 8 * r.index(), r.parity());", "", RACE},
    {"keys are not waited for", CONSUMER, "mbarrier_wait($(keys) + k_full, parity);", "", RACE "|wgmma|deadlock: "},
    {"there is no room", PRODUCER, "mbarrier_wait(smem + empty + 8 * ring.index(), ring.parity() ^ 1);", "",
     RACE "|deadlock: "},
    {"too few bytes", PRODUCER, "mbarrier_arrive_expect_tx(bar, stage_bytes + block_m * 8);",
     "mbarrier_arrive_expect_tx(bar, stage_bytes + block_m * 8 + 16);", "lacks 0 of 1 arrivals and 16 bytes"},
};

/* Of a cluster. */
static const plant pair_plants[] = {
    {"dS is not waited for", CONSUMER, "named_barrier_sync(1, 128 * consumers); // dS is there", "//", RACE},
    {"the other's dS is not waited for", CONSUMER, "exchange.parity() ^ (n < 0));", "1 ^ exchange.parity());", RACE},
    {"dO is not waited for", CONSUMER, "mbarrier_wait(smem + dout_full, dout_parity);", "", RACE},
    {"the other CTA hears of nothing", STAGES, "cluster_arrive(cluster_map(bar, rank ^ 1));", "", "deadlock: "},
    {"dO is given back early", CONSUMER, "wgmma_wait<2>(registers(dv));", "", RACE},
    {"half of Q is loaded for one CTA", PRODUCER, "batch, 3);", "batch, 1);", "deadlock: "},
    {"there is no room for dO", "piece/send_pair.cu", "mbarrier_wait(smem + dout_empty, dout_parity);", "",
     RACE "|deadlock: "},
    {"a claim is read before it comes", "piece/next_tile.cu", "cluster_wait(smem + claim_full, claim_parity);", "",
     RACE "|deadlock: "},
};

#define HALVED "piece/consumer_backward_halved.cu"
#define SHARED "piece/share_halves.cu"

/* Of CTAs with halves of all columns. */
static const plant halved_plants[] = {
    {"sums are not waited for", SHARED, "mbarrier_wait(bar, parity);", "", RACE},
    {"P and dS are not waited for", SHARED, "mbarrier_wait(smem + shared_full, parity);", "", RACE},
    {"P and dS are overwritten too early", SHARED, "mbarrier_wait(smem + shared_empty, parity ^ 1);", "", RACE},
    {"the other CTA hears of nothing", SHARED, "cluster_arrive(cluster_map(smem + shared_empty, rank ^ 1));", "",
     "deadlock: "},
    {"too few bytes", SHARED, "expect_tx(bar, sum_part)", "expect_tx(bar, sum_part + 16)",
     "lacks 0 of 1 arrivals and 16 bytes"},
    {"P is sent before it is there", SHARED, "        __syncwarp();\n#pragma unroll", "#pragma unroll", RACE},
    {"a stage is given back early", HALVED, "wgmma_wait<1>(registers(dk));", "", RACE "|while in flight|in flight yet"},
    {"P and dS are given back early", HALVED,
     "wgmma_wait<0>(registers(dq));\n            if (n >= 0) give_back_shared();",
     "if (n >= 0) give_back_shared();\n            wgmma_wait<0>(registers(dq));", RACE},
    {"gradients pass through the last stage too early", HALVED,
     "named_barrier_sync(1, 128 * consumers); // every warp is done with the last", "//", RACE},
    {"K is given back early", HALVED,
     "wgmma_wait<0>(registers(dq));\n            give_back_shared();\n            if (threadIdx.x % 32 == 0) "
     "mbarrier_arrive(smem + k_empty);",
     "if (threadIdx.x % 32 == 0) mbarrier_arrive(smem + k_empty);\n            wgmma_wait<0>(registers(dq));\n"
     "            give_back_shared();",
     RACE},
};

/* Of a CTA that has whole heads, and two buffers of K and V. */
static const plant head_plants[] = {
    {"K comes too early", PRODUCER, "mbarrier_wait(smem + $(bars)k_empty, parity);", "", RACE "|deadlock: "},
    {"K is never given back", CONSUMER, "if (threadIdx.x % 32 == 0) mbarrier_arrive($(keys) + k_empty);", "",
     "deadlock: "},
    {"one buffer of K and V", PRODUCER, "kv_bytes = $(layout.kv_bytes)", "kv_bytes = 0", RACE},
    {"the next head's statistics are never asked for", PRODUCER,
     "if (elect_lane()) mbarrier_arrive(smem + rows_empty);", "", "deadlock: "},
};

static void test_each(const char *spelling, const char *plan, const plant *list, size_t count) {
    assert_true(scratch_make(folder, sizeof folder));
    expect(spelling, plan, "untouched", NULL);
    assert_true(scratch_remove(folder));
    for (size_t j = 0; j < count; j++) {
        assert_true(scratch_make(folder, sizeof folder));
        edit(list[j].file, list[j].old, list[j].new);
        print_message("%s: %s\n", spelling, list[j].what);
        expect(spelling, plan, list[j].what, list[j].words);
        assert_true(scratch_remove(folder));
    }
}

static void test_plants(void **state) {
    (void)state;
    test_each("bwd bf16 d128", NULL, plants, sizeof plants / sizeof *plants);
    test_each("bwd fp16 d128 dv256 causal", NULL, plants, sizeof plants / sizeof *plants);
    test_each("bwd bf16 d256 causal", NULL, pair_plants, sizeof pair_plants / sizeof *pair_plants);
    test_each("bwd bf16 d512", NULL, halved_plants, sizeof halved_plants / sizeof *halved_plants);
    test_each("bwd bf16 d64", "wgmma m64 n128 w12 s3 c1 k2 o1 h256", head_plants,
              sizeof head_plants / sizeof *head_plants);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_plants)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
